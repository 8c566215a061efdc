"""Graphs of Dynamo and their components."""

from __future__ import annotations

from collections.abc import Sequence

from planner.deploy.description import Deployment, EngineGroup, Front
from planner.deploy.kubernetes.dynamo_engines import ENGINES
from planner.deploy.kubernetes.pods import (
    POD_IP,
    Object,
    environment,
    literals,
    metadata,
    mounts,
    pod_spec,
    resources,
    template,
)
from planner.deploy.kubernetes.rules import NAME_BUDGET, ROLE_SUFFIX, SEMANTIC
from planner.deploy.words import dns_name
from planner.specs import Phase

KIND = {"apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment"}
TYPES = {Phase.PREFILL: "prefill", Phase.DECODE: "decode", Phase.COLOCATED: "worker"}
MAIN, FRONTEND = "main", "frontend"
ROUTER_MODE = "DYN_ROUTER_MODE"

_SIDE_PORT = "5600"


def graph(deployment: Deployment, name: str, components: Sequence[Object]) -> Object:
    """A graph of components."""
    return {
        **KIND,
        "metadata": metadata(deployment, name),
        "spec": {"backendFramework": deployment.engine, "components": list(components)},
    }


def component(deployment: Deployment, front: Front, group: EngineGroup, name: str) -> Object:
    """The engines of a group, in the graph of a name."""
    dialect = ENGINES[deployment.engine].dialect
    places = {"side_port": _SIDE_PORT, "address": POD_IP}
    pairs = [(dialect.model_flag, front.model), *dialect.arguments(front, group)]
    container: Object = {
        "name": MAIN,
        "image": deployment.image,
        "command": list(dialect.program),
        "args": literals(word for pair in pairs for word in pair if word is not None),
        "env": environment(deployment, dialect.variables(deployment, group, places)),
        "resources": resources(deployment.cluster, group),
        "volumeMounts": mounts(deployment, shared_memory=False),
    }
    spec = pod_spec(deployment, group, [container], shared_memory="")
    found: Object = {
        "name": component_name(name, group),
        "type": TYPES[group.role],
        "replicas": group.replicas,
        "sharedMemorySize": deployment.cluster.shared_memory,
    }
    if group.nodes > 1:
        found["multinode"] = {"nodeCount": group.nodes}  # the operator tells each its part
    return found | _runtime(deployment) | {"podTemplate": template(deployment, front, group, spec)}


def component_name(name: str, group: EngineGroup) -> str:
    """Name of a group's component, within what a graph's name leaves of the budget."""
    left = NAME_BUDGET - len(name)
    return dns_name(group.name, (left - ROLE_SUFFIX) // 2 if group.nodes > 1 else left)


def frontend(deployment: Deployment, front: Front) -> Object:
    """Takes requests, and hands them to workers."""
    container = {
        "name": MAIN,
        "image": deployment.image,
        "env": environment(deployment, [(ROUTER_MODE, front.router.policy)]),
    }
    return helper(deployment, FRONTEND, container, kind=FRONTEND)


def helper(deployment: Deployment, name: str, container: Object, *, kind: str = "", **pod: Object) -> Object:
    """One pod without GPUs."""
    secret = deployment.cluster.pull_secret
    pulled = {"imagePullSecrets": [{"name": secret}]} if secret else {}
    return {
        "name": name,
        **({"type": kind} if kind else {}),
        "replicas": 1,
        **_runtime(deployment),
        "podTemplate": {"spec": {**pulled, "containers": [container], **pod}},
    }


def _runtime(deployment: Deployment) -> Object:
    """The platform's version, where the image's tag does not say it."""
    tag = deployment.image.rpartition("/")[2].partition(":")[2]
    if SEMANTIC.fullmatch(tag) or deployment.platform is None:
        return {}
    return {"runtimeVersionOverride": deployment.platform.version}
