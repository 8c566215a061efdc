"""NVIDIA Dynamo: one graph per front, one component per group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.deploy import sglang, vllm
from planner.deploy.command_line import FlagList, load_flags
from planner.deploy.description import Deployment, EngineGroup, Front
from planner.deploy.dialect import Dialect, Words
from planner.deploy.findings import Finding
from planner.deploy.kubernetes.platform import EngineWords, Orchestrator
from planner.deploy.kubernetes.pods import (
    GROUP,
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
from planner.deploy.kubernetes.probes import Counted, smoke_text
from planner.deploy.kubernetes.reading import ObjectFile, ReadPod, container_path, variables_of
from planner.deploy.manifest import suffixes
from planner.deploy.platform_facts import PlatformFacts
from planner.deploy.reading import GroupEntry, Manifest, ReadEngine
from planner.deploy.words import dns_name, short_name
from planner.documents.names import did_you_mean, one_of
from planner.documents.tree import KeyPath
from planner.specs import Parallelism, Phase

_KIND = {"apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment"}
_TYPES = {Phase.PREFILL: "prefill", Phase.DECODE: "decode", Phase.COLOCATED: "worker"}
_NAME_BUDGET = 45
"""Of a graph's and a component's names together, which Grove makes names of pods of."""

_ROLE_SUFFIX = 4  # "-ldr" and "-wkr" of components over several nodes, whose name counts twice
_MODE = "--disaggregation-mode"
_DP, _DP_ATTENTION = "--dp-size", "--enable-dp-attention"
_SIDE_PORT = "5600"
_ROUTER_MODE = "DYN_ROUTER_MODE"
_FLAG = "--router-mode"
_MAIN, _FRONTEND = "main", "frontend"
_SYSTEM_PORT = 9090
_COUNTER = r'dynamo_component_requests_total\{[^}]*dynamo_endpoint="generate"'
_SEMANTIC = re.compile(r"v?\d+\.\d+\.\d+([-+.].*)?")


# --------------------------------------------------------------------------------------------
# Engines


def _vllm_arguments(front: Front, group: EngineGroup) -> Words:
    yield from vllm.engine_arguments(front, group)
    if group.transfer is not None:
        yield _MODE, str(group.role)


def _no_place(group: EngineGroup, places: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Workers listen at no port of their own: Dynamo hands them requests."""
    yield from ()


def _vllm_hand_over(group: GroupEntry, engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Role on both sides, beside what vLLM needs itself."""
    yield from vllm.hand_over_faults(group, engine, flags)
    given, line = engine.flags(flags).get(_MODE, ((), engine.line))
    wanted = "agg" if group.role is Phase.COLOCATED else str(group.role)
    mode = given[0] if given else "agg"
    if mode != wanted:
        rule = f"{_MODE} of a {group.role} engine {one_of((wanted,))}"
        yield Finding(file=engine.file, line=line, rule=rule, value=mode, suggestion=f"{_MODE} {wanted}")


_VLLM = replace(
    vllm.VLLM,
    target="dynamo",
    program=("python3", "-m", "dynamo.vllm"),
    model_flag="--model",
    arguments=_vllm_arguments,
    place_arguments=_no_place,
    hand_over=_vllm_hand_over,
)


def _sglang_arguments(front: Front, group: EngineGroup) -> Words:
    """Attention DP in the words of the version within Dynamo's image."""
    for flag, value in sglang.engine_arguments(front, group):
        if flag != sglang.ATTENTION_DP:
            yield flag, value
        elif group.parallelism.dp > 1:
            yield _DP, value
            yield _DP_ATTENTION, None


def _sglang_layout(engine: ReadEngine, flags: FlagList) -> Parallelism | None:
    """Sizes of an engine; None where one cannot be read."""
    dp = engine.value(flags, _DP) or "1"
    if dp != "1" and _DP_ATTENTION not in engine.flags(flags):
        return None  # whole copies of the model, which no plan has
    return sglang.layout_of_sizes(engine, flags, dp)


def _sglang_hand_over(group: GroupEntry, engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Role and connector; Dynamo finds and reserves the bootstrap server's place itself."""
    yield from sglang.mode_faults(group, engine, flags)
    dp, line = engine.flags(flags).get(_DP, (("1",), engine.line))
    if dp and dp[0] != "1" and _DP_ATTENTION not in engine.flags(flags):
        rule = f"{_DP} without {_DP_ATTENTION} makes copies of the model"
        yield Finding(file=engine.file, line=line, rule=rule, value=dp[0], suggestion=_DP_ATTENTION)


_SGLANG = replace(
    sglang.SGLANG,
    target="dynamo",
    program=("python3", "-m", "dynamo.sglang"),
    arguments=_sglang_arguments,
    place_arguments=_no_place,
    layout=_sglang_layout,
    hand_over=_sglang_hand_over,
)


def _component(deployment: Deployment, front: Front, group: EngineGroup, dialect: Dialect) -> Object:
    places = {"side_port": _SIDE_PORT, "address": POD_IP}
    words = [
        word
        for pair in (
            (dialect.model_flag, front.model),
            *dialect.arguments(front, group),
            *dialect.place_arguments(group, places),
        )
        for word in pair
        if word is not None
    ]
    container: Object = {
        "name": _MAIN,
        "image": deployment.image,
        "command": list(dialect.program),
        "args": literals(words),
        "env": environment(deployment, dialect.variables(deployment, group, places)),
        "resources": resources(deployment.cluster, group),
        "volumeMounts": mounts(deployment, shared_memory=False),
    }
    spec = pod_spec(deployment, group, [container], shared_memory=False)
    component: Object = {
        "name": component_name(front, group),
        "type": _TYPES[group.role],
        "replicas": group.replicas,
        "sharedMemorySize": deployment.cluster.shared_memory,
    }
    if group.nodes > 1:
        component["multinode"] = {"nodeCount": group.nodes}
    component |= _runtime(deployment)
    component["podTemplate"] = template(deployment, front, group, spec)
    return component


def component_name(front: Front, group: EngineGroup) -> str:
    """Name of a group's component, within what is left of the budget of names."""
    left = _NAME_BUDGET - len(short_name(front.name))
    return dns_name(group.name, (left - _ROLE_SUFFIX) // 2 if group.nodes > 1 else left)


def _runtime(deployment: Deployment) -> Object:
    """The platform's version, where the image's tag does not say it."""
    tag = deployment.image.rpartition("/")[2].partition(":")[2]
    if _SEMANTIC.fullmatch(tag) or deployment.platform is None:
        return {}
    return {"runtimeVersionOverride": deployment.platform.version}


def _frontend(deployment: Deployment, front: Front) -> Object:
    """Takes requests, and hands them to workers."""
    container: Object = {
        "name": _MAIN,
        "image": deployment.image,
        "env": environment(deployment, [(_ROUTER_MODE, front.router.policy)]),
    }
    return {
        "name": _FRONTEND,
        "type": _FRONTEND,
        "replicas": 1,
        **_runtime(deployment),
        "podTemplate": {"spec": {**_pull_secrets(deployment), "containers": [container]}},
    }


def _pull_secrets(deployment: Deployment) -> Object:
    name = deployment.cluster.pull_secret
    return {"imagePullSecrets": [{"name": name}]} if name else {}


def _graph(deployment: Deployment, front: Front) -> Object:
    dialect = ENGINES[deployment.engine].dialect
    return {
        **_KIND,
        "metadata": metadata(deployment, short_name(front.name)),
        "spec": {
            "backendFramework": deployment.engine,
            "components": [
                _frontend(deployment, front),
                *(_component(deployment, front, group, dialect) for group in front.groups),
            ],
        },
    }


def objects(deployment: Deployment) -> dict[str, Object]:
    """A graph per front."""
    return {
        f"graph{suffix}.yaml": _graph(deployment, front)
        for front, suffix in zip(deployment.fronts, suffixes(deployment), strict=True)
    }


def _smoke(deployment: Deployment, front: Front) -> str:
    counted = Counted(
        port=_SYSTEM_PORT,
        counter=_COUNTER,
        front=f"service/{front.door}-frontend",
        answers=False,
    )
    return smoke_text(deployment, front, counted)


# --------------------------------------------------------------------------------------------
# Reading


def pods(file: ObjectFile) -> Iterator[ReadPod]:
    """Components that run engines."""
    if file.kind != _KIND["kind"]:
        return
    for i in range(len(file.tree.entries("spec", "components"))):
        path = ("spec", "components", i)
        if file.tree.get(*path, "type") not in _TYPES.values():
            continue
        nodes = file.tree.get(*path, "multinode", "nodeCount")
        yield ReadPod(
            file=file,
            template=(*path, "podTemplate"),
            replicas=(*path, "replicas"),
            nodes=nodes if isinstance(nodes, int) else 1,
            container=_MAIN,
        )


def _faults(manifest: Manifest, files: tuple[ObjectFile, ...], platform: PlatformFacts) -> Iterator[Finding]:
    """Every graph has a front end with a policy; types of components are the roles of their groups."""
    types = {group.name: _TYPES[group.role] for group in manifest.groups}
    known = next(f for f in load_flags("dynamo-frontend", platform.version).flags.values() if f.name == _FLAG)
    for file in files:
        if file.kind != _KIND["kind"]:
            continue
        tree = file.tree
        given = [tree.get("spec", "components", i, "type") for i in range(_count(file))]
        if _FRONTEND not in given:
            rule = "has no component of type frontend: nobody takes requests"
            yield Finding(file=file.name, line=tree.line(("spec", "components")), rule=rule)
        if tree.get("spec", "backendFramework") != manifest.engine:
            yield Finding(
                file=file.name,
                line=tree.line(("spec", "backendFramework")),
                rule=f"backendFramework {one_of((manifest.engine,))}",
                value=str(tree.get("spec", "backendFramework")),
            )
        for i, kind in enumerate(given):
            path = ("spec", "components", i)
            group = str(tree.get(*path, "podTemplate", "metadata", "labels", GROUP) or "")
            if group in types and kind != types[group]:
                rule = f"type of {group} {one_of((types[group],))}"
                yield Finding(file=file.name, line=tree.line((*path, "type")), rule=rule, value=str(kind))
            if kind == _FRONTEND:
                yield from _mode_findings(file, path, known.choices)


def _count(file: ObjectFile) -> int:
    return len(file.tree.entries("spec", "components"))


def _mode_findings(file: ObjectFile, path: KeyPath, modes: tuple[str, ...]) -> Iterator[Finding]:
    """How the front end picks workers is said, and is a mode that it has."""
    main = container_path(file.tree, (*path, "podTemplate"), _MAIN)
    if main is None:
        yield Finding(file=file.name, line=file.tree.line(path), rule=f"has no container {_MAIN}")
        return
    mode, line = variables_of(file.tree, main).get(_ROUTER_MODE, ("", file.tree.line(main)))
    if mode not in modes:
        rule = f"{_ROUTER_MODE} {one_of(modes)}"
        hint = did_you_mean(mode, modes)
        yield Finding(file=file.name, line=line, rule=rule, value=mode or "nothing", suggestion=hint)


ENGINES = {
    "vllm": EngineWords(dialect=_VLLM, flags="dynamo-vllm", of_platform=True),
    "sglang": EngineWords(dialect=_SGLANG, flags="dynamo-sglang", of_platform=True),
}

DYNAMO = Orchestrator(
    target="dynamo",
    engines=ENGINES,
    objects=objects,
    other_files=lambda deployment, front, suffix: {},
    pods=pods,
    smoke=_smoke,
    faults=_faults,
    how_to_start=(
        "1. With Dynamo's operator in the cluster: `kubectl apply -k .`",
        "2. Wait until `kubectl get dynamographdeployment` says that all are ready.",
    ),
)
