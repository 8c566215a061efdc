"""NVIDIA Dynamo: one graph per front, one component per group.

Workers of a role find requests by the name of their role alone, so that groups of different GPUs and sizes
share one graph; the front end balances what is under way. Where a plan divides prompts by length, every pool
has a graph of its own (:mod:`planner.deploy.kubernetes.dynamo_lengths`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from planner.deploy.check_engines import command_findings
from planner.deploy.command_line import load_flags
from planner.deploy.description import Deployment, EngineGroup, Front
from planner.deploy.findings import Finding
from planner.deploy.kubernetes.dynamo_engines import ENGINES
from planner.deploy.kubernetes.dynamo_graphs import (
    FRONTEND,
    KIND,
    MAIN,
    ROUTER_MODE,
    TYPES,
    component,
    frontend,
    graph,
)
from planner.deploy.kubernetes.dynamo_lengths import (
    divided,
    length_faults,
    length_notes,
    length_objects,
    pool_name,
)
from planner.deploy.kubernetes.platform import Orchestrator
from planner.deploy.kubernetes.pods import GROUP, Object
from planner.deploy.kubernetes.probes import Counted, smoke_text
from planner.deploy.kubernetes.reading import (
    ObjectFile,
    ReadPod,
    container_path,
    one_image,
    variables_of,
    words_of,
)
from planner.deploy.manifest import suffixes
from planner.deploy.platform_facts import PlatformFacts
from planner.deploy.reading import Manifest
from planner.documents.names import did_you_mean, one_of
from planner.documents.tree import KeyPath
from planner.errors import SpecError
from planner.specs import Phase

_SYSTEM_PORT = "9090"
_COUNTER = r'dynamo_component_requests_total\{[^}]*dynamo_endpoint="generate"'
_WITHOUT_ENGINES: Mapping[tuple[str, ...], str] = {
    ("python3", "-m", f"dynamo.{name}"): tool
    for name, tool in (
        ("frontend", "dynamo-frontend"),
        ("router", "dynamo-router"),
        ("global_router", "dynamo-global-router"),
    )
}
"""Programs of components that run no engine, and the lists of their flags."""


# --------------------------------------------------------------------------------------------
# Writing


def objects(deployment: Deployment) -> dict[str, Object]:
    """A graph per front; for fronts that share a model by prompt length, one per pool."""
    found: dict[str, Object] = {}
    for front, suffix in zip(deployment.fronts, suffixes(deployment), strict=True):
        if front.prompts is None:
            _require_alike(front)
            members = [component(deployment, front, group, front.door) for group in front.groups]
            found[f"graph{suffix}.yaml"] = graph(
                deployment, front.door, [frontend(deployment, front), *members]
            )
    for door, fronts in divided(deployment).items():
        for front in fronts:
            _require_alike(front)
        found |= length_objects(deployment, door, fronts)
    return found


def _require_alike(front: Front) -> None:
    """The front end takes no worker whose longest sequence or blocks differ from others of its role."""
    for role in dict.fromkeys(group.role for group in front.groups):
        members = [group for group in front.groups if group.role is role]
        for what, values in (
            ("the longest sequence", {group.max_model_len for group in members}),
            ("KV blocks", {group.block_size for group in members}),
        ):
            if len(values) > 1:
                shown = " and ".join(map(str, sorted(values)))
                rule = (
                    f"Dynamo's front end needs the same for {what} of all {role} engines, not {shown} tokens"
                )
                hint = "give attention_backend in the site file, or plan with one GPU type per pool"
                raise SpecError(f"{front.service}: {rule} ({hint})")


def _notes(deployment: Deployment) -> Iterator[str]:
    policies = {front.router.policy for front in deployment.fronts if front.disaggregated}
    if deployment.engine == "sglang" and policies & {"least-loaded", "power-of-two"}:
        yield (
            "With least-loaded and power-of-two, Dynamo waits for SGLang's prefill before it picks a decode "
            "engine: TTFT has one more step between engines than with round-robin."
        )
    yield from length_notes(deployment)


def _how_to_start(deployment: Deployment) -> Iterator[str]:
    yield "1. With Dynamo's operator in the cluster: `kubectl apply -k .`"
    yield "2. Wait until `kubectl get dynamographdeployment` says that all are ready."


def _smoke(deployment: Deployment, front: Front) -> str:
    service = f"service/{front.door}-frontend"
    return smoke_text(
        deployment,
        front,
        Counted(ports=dict.fromkeys(Phase, _SYSTEM_PORT), counter=_COUNTER, front=service, answers=False),
    )


def _scaled(deployment: Deployment, front: Front, group: EngineGroup, count: int) -> tuple[str, ...]:
    """A patch of one component of the graph that the group is in."""
    if front.prompts is None:
        name, members = front.door, front.groups
    else:
        name = pool_name(deployment, front, group.role)
        members = tuple(one for one in front.groups if one.role is group.role)
    path = f"/spec/components/{1 + members.index(group)}/replicas"  # the first takes requests
    patch = json.dumps([{"op": "replace", "path": path, "value": count}], separators=(",", ":"))
    return (
        "patch", "dynamographdeployment", name, "--namespace", deployment.cluster.namespace,
        "--type", "json", "--patch", patch,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------
# Reading


def pods(file: ObjectFile) -> Iterator[ReadPod]:
    """Components that run engines."""
    if file.kind != KIND["kind"]:
        return
    for path in _components(file):
        if file.tree.get(*path, "type") in TYPES.values():
            nodes = file.tree.get(*path, "multinode", "nodeCount")
            yield ReadPod(
                file=file,
                template=(*path, "podTemplate"),
                replicas=(*path, "replicas"),
                nodes=nodes if isinstance(nodes, int) else 1,
                container=MAIN,
            )


def _components(file: ObjectFile) -> list[KeyPath]:
    return [("spec", "components", i) for i in range(len(file.tree.entries("spec", "components")))]


def _faults(manifest: Manifest, files: tuple[ObjectFile, ...], platform: PlatformFacts) -> Iterator[Finding]:
    """Somebody takes requests in every graph; types of components are the roles of their groups."""
    for file in files:
        if file.kind == KIND["kind"]:
            yield from _graph_findings(manifest, file, platform)
    yield from length_faults(files)


def _graph_findings(manifest: Manifest, file: ObjectFile, platform: PlatformFacts) -> Iterator[Finding]:
    tree = file.tree
    framework = tree.get("spec", "backendFramework")
    if framework != manifest.engine:
        line = tree.line(("spec", "backendFramework"))
        rule = f"backendFramework {one_of((manifest.engine,))}"
        yield Finding(file=file.name, line=line, rule=rule, value=str(framework or "nothing"))
    types = {group.name: TYPES[group.role] for group in manifest.groups}
    doors = 0
    for path in _components(file):
        kind = str(tree.get(*path, "type") or "")
        group = str(tree.get(*path, "podTemplate", "metadata", "labels", GROUP) or "")
        if group in types and kind != types[group]:
            rule = f"type of {group} {one_of((types[group],))}"
            yield Finding(file=file.name, line=tree.line((*path, "type")), rule=rule, value=kind)
        if kind in TYPES.values():
            continue
        tool, found = _other_findings(manifest, file, path, platform)
        yield from found
        doors += kind == FRONTEND or tool == "dynamo-router"
        if kind == FRONTEND:
            yield from _mode_findings(file, path, platform)
    if not doors:
        rule = "has no component of type frontend: nobody takes requests"
        yield Finding(file=file.name, line=tree.line(("spec", "components")), rule=rule)


def _other_findings(
    manifest: Manifest, file: ObjectFile, path: KeyPath, platform: PlatformFacts
) -> tuple[str, list[Finding]]:
    """What a component without an engine runs, and what is wrong with its image and flags."""
    main = container_path(file.tree, (*path, "podTemplate"), MAIN)
    if main is None:
        return "", []
    found = list(one_image(file.name, file.tree, main, manifest))
    command = words_of(file.tree, main)
    tool = _WITHOUT_ENGINES.get(command.words[:3], "")
    if tool:
        flags = load_flags(tool, platform.version)
        found += command_findings(file.name, command.after(3), flags, positionals=0)
    return tool, found


def _mode_findings(file: ObjectFile, path: KeyPath, platform: PlatformFacts) -> Iterator[Finding]:
    """How the front end picks workers is said, and is a mode that it has."""
    modes = load_flags("dynamo-frontend", platform.version).flags["--router-mode"].choices
    main = container_path(file.tree, (*path, "podTemplate"), MAIN)
    if main is None:
        yield Finding(file=file.name, line=file.tree.line(path), rule=f"has no container {MAIN}")
        return
    mode, line = variables_of(file.tree, main).get(ROUTER_MODE, ("", file.tree.line(main)))
    if mode not in modes:
        rule, hint = f"{ROUTER_MODE} {one_of(modes)}", did_you_mean(mode, modes)
        yield Finding(file=file.name, line=line, rule=rule, value=mode or "nothing", suggestion=hint)


DYNAMO = Orchestrator(
    target="dynamo",
    engines=ENGINES,
    objects=objects,
    other_files=lambda deployment, front, suffix: {},
    notes=_notes,
    pods=pods,
    smoke=_smoke,
    faults=_faults,
    scaled=_scaled,
    how_to_start=_how_to_start,
)
