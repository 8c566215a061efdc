"""Rules of objects beyond the types of their fields: those of operators' admission, and what pods need."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from planner.deploy.description import PLACEHOLDER
from planner.deploy.findings import Finding
from planner.deploy.kubernetes.pods import GPU_RESOURCES
from planner.documents.names import one_of
from planner.documents.schema_base import MAX_LABEL
from planner.documents.tree import KeyPath, Tree, dotted

NAME_BUDGET = 45
"""Characters of a graph's and a component's names together, which Grove makes names of pods of
(ai-dynamo/dynamo, pull 5449)."""

ROLE_SUFFIX = 4
"""Of "-ldr" and "-wkr", for components over several nodes, whose name counts twice. [characters]"""

SEMANTIC = re.compile(r"v?\d+\.\d+\.\d+([-+.].*)?")
"""Tags that say a version."""

_MOST_COMPONENTS = 25
_FRAMEWORKS = ("vllm", "sglang", "trtllm")
_FEWEST_ROLES, _MOST_ROLES = 2, 10


def rule_findings(tree: Tree, file: str) -> Iterator[Finding]:
    """What is wrong with an object whose fields are those of its kind."""
    kind = tree.get("kind")
    if kind == "DynamoGraphDeployment":
        yield from _graph_findings(tree, file)
    if kind == "LLMInferenceService":
        sections: tuple[KeyPath, ...] = (("spec",), ("spec", "prefill"))
        for section in sections:
            if tree.has(*section, "replicas") and tree.has(*section, "scaling"):
                line = tree.line((*section, "scaling"))
                yield Finding(file=file, line=line, rule="replicas and scaling exclude one another")
    if kind == "DisaggregatedSet":
        yield from _role_findings(tree, file)
    if kind == "InferencePool":
        yield from _pool_findings(tree, file)
    for path in _pods(tree.raw, ()):
        yield from _pod_findings(tree, path, file)


def _graph_findings(tree: Tree, file: str) -> Iterator[Finding]:
    count = len(tree.entries("spec", "components"))
    if count > _MOST_COMPONENTS:
        rule = f"a graph has at most {_MOST_COMPONENTS} components"
        yield Finding(file=file, line=tree.line(("spec", "components")), rule=rule, value=str(count))
    framework = tree.get("spec", "backendFramework")
    if framework is not None and framework not in _FRAMEWORKS:
        line = tree.line(("spec", "backendFramework"))
        yield Finding(
            file=file, line=line, rule=f"backendFramework {one_of(_FRAMEWORKS)}", value=str(framework)
        )
    if not count:
        rule = "a graph needs a component"
        yield Finding(file=file, line=tree.line(("spec", "components")), rule=rule)
    if tree.has("spec", "restart"):
        line = tree.line(("spec", "restart"))
        yield Finding(file=file, line=line, rule="restart must be left out of a graph that is made")
    policy: KeyPath = ("spec", "experimental", "kvTransferPolicy")
    if tree.has(*policy) and tree.has(*policy, "labelKey") == tree.has(*policy, "clusterTopologyName"):
        rule = "kvTransferPolicy needs one of labelKey and clusterTopologyName"
        yield Finding(file=file, line=tree.line(policy), rule=rule)
    graph = str(tree.get("metadata", "name"))
    paths = [("spec", "components", i) for i in range(count)]
    names = Counter(str(tree.get(*path, "name")).lower() for path in paths)
    doors = [path for path in paths if tree.get(*path, "type") == "epp"]
    for path in paths:
        yield from _component_findings(tree, path, file, graph, names)
    for path in doors:
        if len(doors) > 1 or tree.get(*path, "replicas") not in (None, 1):
            rule = "there is at most one component of type epp, with one replica"
            yield Finding(file=file, line=tree.line(path), rule=rule)


def _component_findings(
    tree: Tree, path: KeyPath, file: str, graph: str, names: Counter[str]
) -> Iterator[Finding]:
    name, line = str(tree.get(*path, "name")), tree.line((*path, "name"))
    if names[name.lower()] > 1:
        rule = "names of components differ in more than capitals"
        yield Finding(file=file, line=line, rule=rule, value=name)
    if len(name) > MAX_LABEL:
        rule = f"a component's name has at most {MAX_LABEL} characters"
        yield Finding(file=file, line=line, rule=rule, value=name)
    nodes = tree.get(*path, "multinode", "nodeCount")
    length = len(graph) + len(name) + (0 if nodes is None else len(name) + ROLE_SUFFIX)
    if length > NAME_BUDGET and not graph.startswith(PLACEHOLDER):
        rule = f"names of graph and component must be up to {NAME_BUDGET} characters together"
        yield Finding(file=file, line=line, rule=rule, value=f"{length} ({graph}, {name})")
    if isinstance(nodes, int) and nodes < 2:
        line = tree.line((*path, "multinode", "nodeCount"))
        yield Finding(file=file, line=line, rule="nodeCount must be at least 2", value=str(nodes))
    least, replicas = tree.get(*path, "minAvailable"), tree.get(*path, "replicas")
    if least is not None and replicas != 0 and least > (1 if replicas is None else replicas):
        rule = "minAvailable must be at most the component's replicas"
        yield Finding(file=file, line=tree.line((*path, "minAvailable")), rule=rule, value=str(least))
    if tree.has(*path, "eppConfig") and tree.get(*path, "type") != "epp":
        rule = "eppConfig belongs to a component of type epp"
        yield Finding(file=file, line=tree.line((*path, "eppConfig")), rule=rule)
    images = [
        str(tree.get(*path, "podTemplate", "spec", "containers", i, "image") or "")
        for i in range(len(tree.entries(*path, "podTemplate", "spec", "containers")))
        if tree.get(*path, "podTemplate", "spec", "containers", i, "name") == "main"
    ]
    if not images or not images[0]:
        rule = "a component needs a container main with an image"
        yield Finding(file=file, line=tree.line((*path, "podTemplate")), rule=rule)
        return
    tag = images[0].rpartition("/")[2].partition(":")[2]
    told = tree.has(*path, "runtimeVersionOverride") or images[0].startswith(PLACEHOLDER)
    if not told and not SEMANTIC.fullmatch(tag):
        rule = "runtimeVersionOverride is required where the image's tag is no version"
        yield Finding(file=file, line=tree.line(path), rule=rule, value=images[0])


def _role_findings(tree: Tree, file: str) -> Iterator[Finding]:
    roles = [str(tree.get("spec", "roles", i, "name")) for i in range(len(tree.entries("spec", "roles")))]
    line = tree.line(("spec", "roles"))
    if not _FEWEST_ROLES <= len(roles) <= _MOST_ROLES:
        rule = f"a set has {_FEWEST_ROLES} to {_MOST_ROLES} roles"
        yield Finding(file=file, line=line, rule=rule, value=str(len(roles)))
    for name, count in Counter(roles).items():
        if count > 1:
            yield Finding(file=file, line=line, rule="two roles have one name", value=name)


def _pool_findings(tree: Tree, file: str) -> Iterator[Finding]:
    """The picker has a port where it is a service; ports of a pool differ."""
    picker: KeyPath = ("spec", "endpointPickerRef")
    service = tree.get(*picker, "kind") in (None, "Service")
    if tree.has(*picker) and service and not tree.has(*picker, "port"):
        rule = "endpointPickerRef.port is required where the picker is a Service"
        yield Finding(file=file, line=tree.line(picker), rule=rule)
    numbers = [
        tree.get("spec", "targetPorts", i, "number") for i in range(_count(tree, ("spec", "targetPorts")))
    ]
    for i, number in enumerate(numbers):
        if number in numbers[:i]:
            line = tree.line(("spec", "targetPorts", i))
            yield Finding(file=file, line=line, rule="two target ports are the same", value=str(number))


# --------------------------------------------------------------------------------------------
# Pods


def _pods(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Where pods are within an object."""
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            yield path
        for key, part in value.items():
            yield from _pods(part, (*path, key))
    elif isinstance(value, list):
        for i, part in enumerate(value):
            yield from _pods(part, (*path, i))


def _pod_findings(tree: Tree, path: KeyPath, file: str) -> Iterator[Finding]:
    volumes = {str(tree.get(*path, "volumes", i, "name")) for i in range(_count(tree, (*path, "volumes")))}
    tolerated = [tree.get(*path, "tolerations", i) for i in range(_count(tree, (*path, "tolerations")))]
    for kind in ("initContainers", "containers"):
        for i in range(_count(tree, (*path, kind))):
            here = (*path, kind, i)
            yield from _gpu_findings(tree, here, file, tolerated)
            for k in range(_count(tree, (*here, "volumeMounts"))):
                name = str(tree.get(*here, "volumeMounts", k, "name"))
                if name not in volumes:
                    line = tree.line((*here, "volumeMounts", k))
                    rule = f"{dotted(here)} mounts a volume that the pod has not"
                    yield Finding(file=file, line=line, rule=rule, value=name)


def _count(tree: Tree, path: KeyPath) -> int:
    return len(tree.entries(*path))


def _gpu_findings(tree: Tree, path: KeyPath, file: str, tolerated: list[Any]) -> Iterator[Finding]:
    """GPUs are asked for as they are limited, and nodes with GPUs may be used."""
    for resource in GPU_RESOURCES.values():
        limit = tree.get(*path, "resources", "limits", resource)
        request = tree.get(*path, "resources", "requests", resource)
        line = tree.line((*path, "resources"))
        if limit is None and request is None:
            continue
        if str(limit) != str(request) and not (request is None and limit is not None):
            rule = f"requests and limits of {resource} must be the same"
            yield Finding(file=file, line=line, rule=rule, value=f"{request} and {limit}")
        for amount in (limit, request):
            if amount is not None and not str(amount).isdecimal() and not str(amount).startswith(PLACEHOLDER):
                rule = f"{resource} must be a whole number"
                yield Finding(file=file, line=line, rule=rule, value=str(amount))
        if not any(_tolerates(one, resource) for one in tolerated):
            rule = f"a pod with {resource} needs a toleration for it: nodes with GPUs keep others out"
            hint = f"{{key: {resource}, operator: Exists, effect: NoSchedule}}"
            yield Finding(file=file, line=line, rule=rule, suggestion=hint)


def _tolerates(toleration: Any, resource: str) -> bool:
    if not isinstance(toleration, dict):
        return False
    everything = "key" not in toleration and toleration.get("operator") == "Exists"
    return everything or toleration.get("key") == resource
