"""llm-d: a Deployment for each group, or a set of leaders and workers where replicas lie on several nodes.

Values for the chart of its router come with them (:mod:`planner.deploy.kubernetes.llmd_router`).

Groups over several nodes are one LeaderWorkerSet each and not roles of a DisaggregatedSet: roles of that are
scaled and rolled together, while groups of a plan have replicas of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.deploy import sglang, vllm
from planner.deploy.command_line import FlagList
from planner.deploy.description import Deployment, EngineGroup, Front
from planner.deploy.dialect import Dialect
from planner.deploy.findings import Finding
from planner.deploy.kubernetes.llmd_pods import (
    ENGINE_PORTS,
    GUIDE,
    MODEL_SERVER,
    pod_faults,
    serving_labels,
    sidecar,
)
from planner.deploy.kubernetes.llmd_router import CHART, router_faults, values_text
from planner.deploy.kubernetes.platform import EngineWords, Orchestrator
from planner.deploy.kubernetes.pods import (
    FRONT,
    GROUP,
    LEADER,
    POD_IP,
    ROLE,
    WORKER,
    Object,
    environment,
    http_probe,
    literals,
    metadata,
    mounts,
    pod_labels,
    pod_spec,
    resources,
    template,
)
from planner.deploy.kubernetes.probes import Counted, smoke_text
from planner.deploy.kubernetes.reading import ObjectFile, ReadPod, engine_of
from planner.deploy.manifest import suffixes
from planner.deploy.platform_facts import PlatformFacts, load_platform_facts
from planner.deploy.reading import Manifest
from planner.deploy.words import dns_name
from planner.documents.names import one_of
from planner.errors import SpecError
from planner.specs import Phase

_TARGET = "llm-d"
_SIDE_PORT, _BOOTSTRAP, _RPC_PORT = "5600", "8998", "29550"
_LONGEST_NAME = 52  # which leaves room for what is put behind it
_COUNTERS = {"vllm": "vllm:request_success_total", "sglang": "sglang:num_requests_total"}
_STARTUP = {"initialDelaySeconds": 15, "periodSeconds": 30, "timeoutSeconds": 5, "failureThreshold": 120}
_LIVENESS = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3}
_READINESS = {"periodSeconds": 5, "timeoutSeconds": 2, "failureThreshold": 3}
_FIRST_AND_SECOND = 2
_PLACES = ("--host", "--port", "--disaggregation-bootstrap-port")


# --------------------------------------------------------------------------------------------
# Writing


def objects(deployment: Deployment) -> dict[str, Object]:
    """An object for each group."""
    return {
        f"{name}.yaml": _group(deployment, front, group, name)
        for front in deployment.fronts
        for group in front.groups
        for name in [_name(front, group)]
    }


def _name(front: Front, group: EngineGroup) -> str:
    return dns_name(f"{front.door}-{group.name}", _LONGEST_NAME)


def _group(deployment: Deployment, front: Front, group: EngineGroup, name: str) -> Object:
    serving, labels = _template(deployment, front, group, 0), pod_labels(deployment, front, group)
    if group.nodes == 1:
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata(deployment, name),
            "spec": {
                "replicas": group.replicas,
                "selector": {"matchLabels": {key: labels[key] for key in (FRONT, GROUP)}},
                "template": serving,
            },
        }
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata(deployment, name),
        "spec": {
            "replicas": group.replicas,
            "leaderWorkerTemplate": {
                "size": group.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": serving,
                "workerTemplate": _template(deployment, front, group, 1),
            },
        },
    }


def _template(deployment: Deployment, front: Front, group: EngineGroup, rank: int) -> Object:
    """A pod of a group; those of higher rank serve no requests, and the router does not find them."""
    dialect = ENGINES[deployment.engine].dialect
    port = ENGINE_PORTS[group.role]
    places = {"port": port, "side_port": _SIDE_PORT, "address": POD_IP}
    if group.role is Phase.PREFILL and dialect.bootstrap:
        places["side_port"] = _BOOTSTRAP
    if group.nodes > 1:
        places |= {"leader": LEADER, "init": f"{LEADER}:{_RPC_PORT}", "rpc_port": _RPC_PORT}
    elif group.parallelism.dp > 1:
        places |= {"init": f"127.0.0.1:{_RPC_PORT}", "rpc_port": _RPC_PORT}
    if rank and not dialect.bootstrap:
        del places["port"]
    model = [dialect.model_flag, front.model] if dialect.model_flag else [front.model]
    pairs = [
        *dialect.arguments(front, group),
        *dialect.place_arguments(group, places),
        *(_part(dialect, group, rank) if group.nodes > 1 else {}).items(),
    ]
    variables = dict(dialect.variables(deployment, group, places))
    if deployment.engine == "vllm" and group.role is Phase.PREFILL:
        variables["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = "120"  # longer than the sidecar keeps connections
    container: Object = {
        "name": MODEL_SERVER,
        "image": deployment.image,
        "command": list(dialect.program),
        "args": literals([*model, *(word for pair in pairs for word in pair if word is not None)]),
        "env": environment(deployment, variables.items()),
        "resources": resources(deployment.cluster, group),
        "volumeMounts": mounts(deployment),
    }
    if not rank:
        container |= {
            "ports": [
                {"name": "modelserver", "containerPort": int(port)},
                {"name": "nixl", "containerPort": int(places["side_port"])},
            ],
            "startupProbe": http_probe("/v1/models", "modelserver", **_STARTUP),
            "livenessProbe": http_probe("/health", "modelserver", **_LIVENESS),
            "readinessProbe": http_probe("/v1/models", "modelserver", **_READINESS),
        }
    before = [sidecar(group, _facts().tool_images["llm-d-sidecar"])] if _proxied(group, rank) else []
    spec = pod_spec(deployment, group, [container], init=before)
    labels = {ROLE: "worker"} if rank else serving_labels(front, group)
    return template(deployment, front, group, spec, labels)


def _proxied(group: EngineGroup, rank: int) -> bool:
    return group.role is Phase.DECODE and not rank


def _facts() -> PlatformFacts:
    return load_platform_facts(_TARGET)


def _part(dialect: Dialect, group: EngineGroup, rank: int) -> Mapping[str, str | None]:
    """Flags of a pod of an engine over several nodes. From the second on all have one template, in which only
    the rank itself can differ."""
    first = dialect.part_flags(group.parallelism, group.nodes, rank)
    if not rank or group.nodes == _FIRST_AND_SECOND:
        return first
    second = dialect.part_flags(group.parallelism, group.nodes, rank + 1)
    own = [flag for flag in first if first[flag] != second[flag]]
    if any((first[flag], second[flag]) != ("1", "2") for flag in own):
        rule = f"{', '.join(own)} differs from pod to pod, which a template cannot say"
        hint = "plan with max_nodes_per_replica: 2, or emit for dynamo"
        raise SpecError(f"group {group.planned_name}: {rule} ({hint})")
    return first | dict.fromkeys(own, WORKER)


def _smoke(deployment: Deployment, front: Front) -> str:
    counted = Counted(
        ports=ENGINE_PORTS,
        counter=_COUNTERS[deployment.engine],
        front=f"service/{front.door}-epp",
        answers=deployment.engine == "vllm",
    )
    return smoke_text(deployment, front, counted)


def _scaled(deployment: Deployment, front: Front, group: EngineGroup, count: int) -> tuple[str, ...]:
    kind = "deployment" if group.nodes == 1 else "leaderworkerset"
    place = ("--namespace", deployment.cluster.namespace)
    return ("scale", f"{kind}/{_name(front, group)}", *place, "--replicas", str(count))


def _how_to_start(deployment: Deployment) -> Iterator[str]:
    yield "1. `kubectl apply -k .`"
    version = f"v{_facts().version}"
    for front, suffix in zip(deployment.fronts, suffixes(deployment), strict=True):
        where = f"--version {version} --namespace {deployment.cluster.namespace}"
        command = f"helm install {front.door} {CHART} {where} -f router{suffix}.values.yaml"
        yield f"2. `{command}`: the router, and its InferencePool."


# --------------------------------------------------------------------------------------------
# Reading


def pods(file: ObjectFile) -> Iterator[ReadPod]:
    """Deployments and sets that run engines; of a set the leaders."""
    if file.kind == "Deployment":
        yield ReadPod(
            file=file,
            template=("spec", "template"),
            replicas=("spec", "replicas"),
            nodes=1,
            container=MODEL_SERVER,
        )
    if file.kind == "LeaderWorkerSet":
        path = ("spec", "leaderWorkerTemplate")
        size = file.tree.get(*path, "size")
        yield ReadPod(
            file=file,
            template=(*path, "leaderTemplate"),
            replicas=("spec", "replicas"),
            nodes=size if isinstance(size, int) else 1,
            container=MODEL_SERVER,
        )


def _faults(manifest: Manifest, files: tuple[ObjectFile, ...], platform: PlatformFacts) -> Iterator[Finding]:
    words = ENGINES[manifest.engine]
    dialect, flags = words.dialect, words.known(manifest)
    groups = {group.name: group for group in manifest.groups}
    for pod in (pod for file in files for pod in pods(file)):
        if pod.group in groups:
            yield from pod_faults(pod, groups[pod.group], dialect, flags, platform)
            yield from _worker_faults(pod, dialect, flags)


def _worker_faults(pod: ReadPod, dialect: Dialect, flags: FlagList) -> Iterator[Finding]:
    """Pods of an engine say the same, but for which part of it they are; only the first is found."""
    if pod.nodes == 1:
        return
    worker = replace(pod, template=(*pod.template[:-1], "workerTemplate"))
    leader, follower = engine_of(pod, len(dialect.program)), engine_of(worker, len(dialect.program))
    tree, file = pod.file.tree, pod.file.name
    layout = None if leader is None else dialect.layout(leader, flags)
    if leader is None or follower is None or layout is None:
        rule = f"workerTemplate has no container {MODEL_SERVER} that can be read"
        yield Finding(file=file, line=tree.line(worker.template), rule=rule)
        return
    if tree.has(*worker.template, "metadata", "labels", GUIDE):
        line = tree.line((*worker.template, "metadata", "labels", GUIDE))
        yield Finding(file=file, line=line, rule=f"workers must not have {GUIDE}: they answer no requests")
    own = {*dialect.part_flags(layout, pod.nodes, 0), *dialect.part_flags(layout, pod.nodes, 1), *_PLACES}
    mine, theirs = leader.flags(flags), follower.flags(flags)
    for name in sorted((mine.keys() | theirs.keys()) - own):
        values, line = theirs.get(name, ((), follower.line))
        wanted = mine.get(name, ((), 0))[0]
        if values != wanted:
            rule = f"{name} of workers differs from that of their leader"
            shown, hint = " ".join(values) or "nothing", " ".join(wanted)
            yield Finding(file=file, line=line, rule=rule, value=shown, suggestion=hint)
    for name, value in dialect.part_flags(layout, pod.nodes, 1).items():
        values, line = theirs.get(name, ((), follower.line))
        if values not in (() if value is None else (value,), (WORKER,)) or name not in theirs:
            rule = f"{name} of the workers of {pod.nodes} nodes {one_of((value or 'given',))}"
            yield Finding(file=file, line=line, rule=rule, value=" ".join(values) or "nothing")


ENGINES = {
    "vllm": EngineWords(dialect=vllm.VLLM, flags="vllm", of_platform=False),
    "sglang": EngineWords(dialect=sglang.SGLANG, flags="sglang", of_platform=False),
}

LLM_D = Orchestrator(
    target=_TARGET,
    engines=ENGINES,
    objects=objects,
    other_files=lambda deployment, front, suffix: {
        f"router{suffix}.values.yaml": values_text(deployment, front, _facts().version)
    },
    other_faults=router_faults,
    notes=lambda deployment: iter(()),
    pods=pods,
    smoke=_smoke,
    faults=_faults,
    scaled=_scaled,
    how_to_start=_how_to_start,
)
