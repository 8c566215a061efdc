"""Pods of engines: where they go, what they ask for, what they are called. The same on every platform."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planner.deploy.description import PLACEHOLDER, Cluster, Deployment, EngineGroup, Front, checked_for
from planner.deploy.words import short_name

Object = dict[str, Any]

PLAN, FRONT, GROUP, ROLE = "planner.plan", "planner.front", "planner.group", "planner.role"
"""Labels of every pod."""

GPU_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}

POD_IP = "$(POD_IP)"
"""Where an engine says its own address: the pod's, which nobody knows before it runs."""

LEADER, WORKER = "$(LWS_LEADER_ADDRESS)", "$(LWS_WORKER_INDEX)"
"""What pods of an engine over several nodes learn when they start: where the first is, and their number."""

_TOKEN = "HF_TOKEN"


def pod_labels(deployment: Deployment, front: Front, group: EngineGroup) -> dict[str, str]:
    """Labels that pods of a group are found by."""
    return {
        PLAN: deployment.plan_id,
        FRONT: short_name(front.name),
        GROUP: group.name,
        ROLE: group.role.value,
    }


def pod_annotations(deployment: Deployment, group: EngineGroup) -> dict[str, str]:
    """Which plan and versions a group was written for."""
    found = {
        "planner.planned-group": group.planned_name,
        "planner.gpu": group.gpu,
        "planner.flags-checked-for": checked_for(deployment),
    }
    return found | ({"planner.zone": group.zone} if group.zone else {})


def metadata(deployment: Deployment, name: str) -> Object:
    """Metadata of an object, with the plan that it is of."""
    return {
        "name": name,
        "namespace": deployment.cluster.namespace,
        "labels": {"app.kubernetes.io/managed-by": "planner", PLAN: deployment.plan_id},
        "annotations": {"planner.flags-checked-for": checked_for(deployment)},
    }


def gpus_per_pod(group: EngineGroup) -> int:
    """GPUs of each of the pods that a replica has one of on every node. [1]"""
    return group.parallelism.num_gpus // group.nodes


def resources(cluster: Cluster, group: EngineGroup) -> Object:
    """GPUs, and the network where KV caches move; limits and requests are the same."""
    count = gpus_per_pod(group)
    wanted = {GPU_RESOURCES[group.vendor]: str(count)}
    if cluster.rdma_resource and (group.transfer is not None or group.nodes > 1):
        wanted[cluster.rdma_resource] = str(cluster.rdma_count or count)
    return {"limits": wanted, "requests": dict(wanted)}


def environment(deployment: Deployment, variables: Iterable[tuple[str, str]]) -> list[Object]:
    """Variables of a container; the token comes from the cluster's secret."""
    cluster = deployment.cluster
    found = [_variable(name, value) for name, value in variables]
    if cluster.token_secret:
        reference = {"name": cluster.token_secret, "key": _TOKEN}
        found.append({"name": _TOKEN, "valueFrom": {"secretKeyRef": reference}})
    return found


def _variable(name: str, value: str) -> Object:
    if value == POD_IP:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return {"name": name, "value": literal(value)}


def literal(text: str) -> str:
    """A text that Kubernetes fills no variable into but those that are meant."""
    if text == WORKER:
        return text
    return LEADER.join(part.replace("$(", "$$(") for part in text.split(LEADER))


def literals(words: Iterable[str]) -> list[str]:
    """Words of a command that Kubernetes fills no variable into."""
    return [literal(word) for word in words]


def mounts(deployment: Deployment, *, shared_memory: bool = True) -> list[Object]:
    """Volumes of an engine's container: weights, and memory that its processes share."""
    weights = {"name": "weights", "mountPath": deployment.model_cache}
    return [weights, *([{"name": "shm", "mountPath": "/dev/shm"}] if shared_memory else [])]


def pod_spec(
    deployment: Deployment,
    group: EngineGroup,
    containers: Sequence[Object],
    *,
    init: Sequence[Object] = (),
    weights: bool = True,
    shared_memory: str = "shm",
) -> Object:
    """A pod on nodes that have the group's GPUs.

    Parameters
    ----------
    weights : bool
        Whether it has a volume of weights; some platforms fetch them.
    shared_memory : str
        Name of the volume that its processes share memory by; empty: the platform has one.
    """
    cluster = deployment.cluster
    spec: Object = {}
    if group.node_label.key:
        spec["nodeSelector"] = {group.node_label.key: group.node_label.value}
    else:
        spec["nodeSelector"] = {f"{PLACEHOLDER}node-label": group.gpu}
    if group.zone:
        spec["nodeSelector"]["topology.kubernetes.io/zone"] = group.zone
    spec["tolerations"] = _tolerations(cluster, group)
    if cluster.pull_secret:
        spec["imagePullSecrets"] = [{"name": cluster.pull_secret}]
    if init:
        spec["initContainers"] = list(init)
    spec["containers"] = list(containers)
    spec["volumes"] = _volumes(cluster, weights, shared_memory)
    return spec


def _tolerations(cluster: Cluster, group: EngineGroup) -> list[Object]:
    resource = GPU_RESOURCES[group.vendor]
    found: list[Object] = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    for one in cluster.tolerations:
        match = {"operator": "Equal", "value": one.value} if one.value else {"operator": "Exists"}
        found.append({"key": one.key, **match, "effect": one.effect})
    return found


def _volumes(cluster: Cluster, weights: bool, shared_memory: str) -> list[Object]:
    found: list[Object] = []
    if weights and cluster.model_claim:
        found.append({"name": "weights", "persistentVolumeClaim": {"claimName": cluster.model_claim}})
    elif weights:
        found.append({"name": "weights", "emptyDir": {}})
    if shared_memory:
        size = {"medium": "Memory", "sizeLimit": cluster.shared_memory}
        found.append({"name": shared_memory, "emptyDir": size})
    return found


def http_probe(path: str, port: int | str, **more: int) -> Object:
    """A probe that asks a path of a port."""
    return {"httpGet": {"path": path, "port": port}, **more}


def template(
    deployment: Deployment,
    front: Front,
    group: EngineGroup,
    spec: Object,
    labels: Mapping[str, str] | None = None,
) -> Object:
    """A pod template of a group; `labels` are those of a platform."""
    found = pod_labels(deployment, front, group) | dict(labels or {})
    return {
        "metadata": {"labels": found, "annotations": pod_annotations(deployment, group)},
        "spec": spec,
    }
