"""KServe: an LLMInferenceService for each pair of a prefill and a decode group, or for each colocated group.

KServe's templates start vLLM by a command of their own; what a plan decides reaches it by the variable
VLLM_ADDITIONAL_ARGS, which a shell reads once more. The scheduler of a service sees the pods of that service
alone: prompts of one never go to the prefill engines of another.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from planner.deploy import vllm
from planner.deploy.command_line import FlagList, read_command
from planner.deploy.description import Deployment, EngineGroup, Front
from planner.deploy.findings import Finding
from planner.deploy.kubernetes.llmd_router import picker_config, picker_findings
from planner.deploy.kubernetes.platform import EngineWords, Orchestrator
from planner.deploy.kubernetes.pods import (
    POD_IP,
    Object,
    environment,
    metadata,
    pod_annotations,
    pod_labels,
    pod_spec,
    resources,
)
from planner.deploy.kubernetes.probes import Counted, smoke_text
from planner.deploy.kubernetes.reading import ObjectFile, ReadPod, variables_of
from planner.deploy.platform_facts import PlatformFacts
from planner.deploy.reading import GroupEntry, Manifest, ReadEngine
from planner.documents.names import one_of
from planner.documents.tree import KeyPath
from planner.errors import SpecError
from planner.specs import Phase
from planner.units import MILLI

_KIND = {"apiVersion": "serving.kserve.io/v1alpha2", "kind": "LLMInferenceService"}
_MAIN, _ARGUMENTS = "main", "VLLM_ADDITIONAL_ARGS"
_TENSOR = "--tensor-parallel-size"
_TEMPLATES = (
    "--served-model-name", "--host", "--port", _TENSOR, "--shutdown-timeout", "--ssl-certfile",
    "--ssl-keyfile", "--enable-ssl-refresh", "--disable-access-log-for-endpoints",
    "--disable-uvicorn-access-log",
)  # fmt: skip
"""Flags that the templates set by themselves."""

_PORTS: Mapping[Phase, str] = {Phase.PREFILL: "8000", Phase.DECODE: "8001", Phase.COLOCATED: "8000"}
_SIDE_PORT, _RPC_PORT = "5600", "29550"
_CONNECTOR = "NixlConnector"  # the only one of the sidecar that the templates start
_COUNTER = "vllm:request_success_total"
_WEIGHTS = round(1 / MILLI)  # of all objects of a front together
_EQUAL = 0.02  # difference of shares that counts as none [1]
_DANGEROUS = ("`", "$(", ";", "&", "|", "<", ">", "\n")
"""What a shell would take for more than a character, outside of quotes."""


# --------------------------------------------------------------------------------------------
# Writing


def _members(front: Front) -> list[tuple[EngineGroup, ...]]:
    """Groups of each object: of both phases, prefill first, or colocated ones.

    Raises
    ------
    SpecError
        Prefill and decode groups cannot be paired so that the plan's shares are kept.
    """
    if not front.disaggregated:
        return [(group,) for group in front.groups]
    prefill, decode = (
        sorted((g for g in front.groups if g.role is role), key=lambda g: -g.share)
        for role in (Phase.PREFILL, Phase.DECODE)
    )
    pairs: list[tuple[EngineGroup, ...]] = list(zip(prefill, decode, strict=False))
    apart = any(abs(one.share - other.share) > _EQUAL for one, other in pairs)
    if len(prefill) != len(decode) or apart:
        rule = (
            f"KServe lets engines of one object hand over to one another only; {len(prefill)} prefill and "
            f"{len(decode)} decode groups cannot be paired by their shares"
        )
        hint = "emit for dynamo or llm-d, or plan with one GPU type and layout per pool"
        raise SpecError(f"{front.service}: {rule} ({hint})")
    return pairs


def objects(deployment: Deployment) -> dict[str, Object]:
    """The services, and the account by which their weights are fetched."""
    found: dict[str, Object] = {}
    for front in deployment.fronts:
        members = _members(front)
        weights = _weights([groups[-1].share for groups in members])
        for i, (groups, weight) in enumerate(zip(members, weights, strict=True)):
            name = _name(front, i, len(members))
            alone = len(members) == 1
            route = {} if alone else {"group": front.door, "weight": weight}
            found[f"{name}.yaml"] = _service(deployment, front, groups, name, route)
    if deployment.cluster.token_secret:
        found["account.yaml"] = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(deployment, _account(deployment)),
            "secrets": [{"name": deployment.cluster.token_secret}],
        }
    return found


def _name(front: Front, i: int, count: int) -> str:
    return front.door if count == 1 else f"{front.door}-{i + 1}"


def _account(deployment: Deployment) -> str:
    return f"planner-{deployment.plan_id}"


def _weights(shares: Sequence[float]) -> list[int]:
    """Whole weights that add up to a thousand."""
    total = math.fsum(shares) or 1.0
    edges = [0, *(round(_WEIGHTS * math.fsum(shares[: i + 1]) / total) for i in range(len(shares)))]
    return [after - before for before, after in pairwise(edges)]


def _service(
    deployment: Deployment, front: Front, groups: Sequence[EngineGroup], name: str, route: Object
) -> Object:
    main = groups[-1]  # decode, or colocated
    spec: Object = {
        "model": {"uri": _uri(deployment, front), "name": front.served_name},
        **_workload(deployment, front, main),
        "router": {
            "gateway": {},
            "route": route,
            "scheduler": {"config": {"inline": picker_config(front)}},
        },
    }
    if len(groups) > 1:
        spec["prefill"] = _workload(deployment, front, groups[0])
    return {**_KIND, "metadata": metadata(deployment, name), "spec": spec}


def _uri(deployment: Deployment, front: Front) -> str:
    """Where the weights come from: a repository, or a folder of the claim."""
    if not front.model.startswith("/"):
        return f"hf://{front.model}"
    claim = deployment.cluster.model_claim
    if not claim:
        rule = f"models: {front.model!r} is a path, which needs kubernetes.model_claim"
        raise SpecError(f"{rule} (or name a repository)")
    return f"pvc://{claim}{front.model}"


def _workload(deployment: Deployment, front: Front, group: EngineGroup) -> Object:
    """Engines of a group, as the service or its prefill has them."""
    if group.nodes > 1:
        rule = "KServe's templates for several nodes set flags of their own, which nobody has checked"
        hint = "emit for dynamo or llm-d, or plan with max_nodes_per_replica: 1"
        raise SpecError(f"group {group.planned_name}: {rule} ({hint})")
    if group.transfer is not None and group.transfer.connector != _CONNECTOR:
        rule = f"KServe's sidecar hands over by {_CONNECTOR}, not by {group.transfer.connector}"
        raise SpecError(f"group {group.planned_name}: {rule} (emit for llm-d)")
    places = {"side_port": _SIDE_PORT, "address": POD_IP, "rpc_port": _RPC_PORT}
    if group.parallelism.dp == 1:
        del places["rpc_port"]
    pairs = [*vllm.engine_arguments(front, group), *vllm.place_arguments(group, places)]
    words = [word for pair in pairs if pair[0] not in _TEMPLATES for word in pair if word is not None]
    variables = dict(vllm.environment(deployment, group, places))
    del variables["HF_HOME"]  # weights lie where the templates want them
    container: Object = {
        "name": _MAIN,
        "image": deployment.image,
        "env": environment(deployment, [*variables.items(), (_ARGUMENTS, shlex.join(words))]),
        "resources": resources(deployment.cluster, group),
        "securityContext": {"runAsNonRoot": False},  # as images of vLLM do, against the templates' default
    }
    spec = pod_spec(deployment, group, [container], weights=False, shared_memory="dshm")
    if deployment.cluster.token_secret:
        spec["serviceAccountName"] = _account(deployment)
    return {
        "replicas": group.replicas,
        "labels": pod_labels(deployment, front, group),
        "annotations": pod_annotations(deployment, group),
        "parallelism": {"tensor": group.parallelism.tp},
        "template": spec,
    }


def _smoke(deployment: Deployment, front: Front) -> str:
    return smoke_text(deployment, front, Counted(ports=_PORTS, counter=_COUNTER, front="", answers=False))


def _scaled(deployment: Deployment, front: Front, group: EngineGroup, count: int) -> tuple[str, ...]:
    members = _members(front)
    i = next(i for i, groups in enumerate(members) if group in groups)
    path = {"prefill": {"replicas": count}} if group.role is Phase.PREFILL else {"replicas": count}
    patch = json.dumps({"spec": path})
    return (
        "patch", "llminferenceservice", _name(front, i, len(members)), "--namespace",
        deployment.cluster.namespace, "--type", "merge", "--patch", patch,
    )  # fmt: skip


def _how_to_start(deployment: Deployment) -> Iterator[str]:
    yield "1. With KServe in the cluster: `kubectl apply -k .`"
    yield "2. Wait until `kubectl get llminferenceservice` says that all are ready, and with which URL."


# --------------------------------------------------------------------------------------------
# Reading


def pods(file: ObjectFile) -> Iterator[ReadPod]:
    """The service's engines, and those of its prefill."""
    if file.kind != _KIND["kind"]:
        return
    sections: tuple[KeyPath, ...] = (("spec",), ("spec", "prefill"))
    for section in sections:
        if file.tree.has(*section, "template") or section == ("spec",):
            yield ReadPod(
                file=file,
                template=section,
                replicas=(*section, "replicas"),
                nodes=1,
                container=_MAIN,
                arguments_in=_ARGUMENTS,
                labels=(*section, "labels"),
                spec=(*section, "template"),
                implied=_implied(file, section),
            )


def _implied(file: ObjectFile, section: KeyPath) -> tuple[tuple[str, KeyPath], ...]:
    """What the templates' command says before the variable."""
    tree = file.tree
    uri, name = str(tree.get("spec", "model", "uri") or ""), str(tree.get("spec", "model", "name") or "")
    tensor = tree.get(*section, "parallelism", "tensor")
    where: KeyPath = ("spec", "model", "uri")
    found: list[tuple[str, KeyPath]] = [(uri.removeprefix("hf://"), where)]
    found += [("--served-model-name", ("spec", "model", "name")), (name, ("spec", "model", "name"))]
    if tensor is not None:
        found += [(_TENSOR, (*section, "parallelism")), (str(tensor), (*section, "parallelism", "tensor"))]
    return tuple(found)


def _hand_over(group: GroupEntry, engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Both roles name the connector that the sidecar knows."""
    yield from vllm.hand_over_faults(group, engine, flags)
    connector = vllm.VLLM.connector(engine, flags)
    if group.role is not Phase.COLOCATED and connector and connector != _CONNECTOR:
        line = engine.flags(flags)["--kv-transfer-config"][1]
        rule = f"kv_connector {one_of((_CONNECTOR,))}: KServe's sidecar knows no other"
        yield Finding(file=engine.file, line=line, rule=rule, value=connector)


def _faults(manifest: Manifest, files: tuple[ObjectFile, ...], platform: PlatformFacts) -> Iterator[Finding]:
    """What the templates' command would make of the variable; the scheduler's configuration."""
    roles = {group.name: group.role for group in manifest.groups}
    flags = ENGINES["vllm"].known(manifest)
    for file in files:
        if file.kind != _KIND["kind"]:
            continue
        apart = file.tree.has("spec", "prefill")
        for pod in pods(file):
            yield from _variable_findings(pod, flags)
            wanted = (
                Phase.PREFILL
                if pod.template[-1] == "prefill"
                else (Phase.DECODE if apart else Phase.COLOCATED)
            )
            role = roles.get(pod.group)
            if role is not None and role is not wanted:
                rule = f"engines of {pod.group} are for {role}, here stands {wanted}"
                yield Finding(file=file.name, line=pod.line, rule=rule)
        inline: KeyPath = ("spec", "router", "scheduler", "config", "inline")
        if not file.tree.has(*inline):
            rule = "router.scheduler.config.inline is missing: the default weighs prefixes, the plan does not"
            yield Finding(file=file.name, line=file.tree.line(("spec", "router")), rule=rule)
        else:
            yield from picker_findings(file.tree, inline, file.name, apart=apart)


def _variable_findings(pod: ReadPod, flags: FlagList) -> Iterator[Finding]:
    main = pod.main
    if main is None:
        return  # told by itself
    text, line = variables_of(pod.file.tree, main).get(_ARGUMENTS, ("", pod.file.tree.line(main)))
    try:
        words = shlex.split(text)
    except ValueError as error:
        rule = f"{_ARGUMENTS} cannot be read as shell words: {error}"
        yield Finding(file=pod.file.name, line=line, rule=rule, value=text)
        return
    if shlex.join(words) != text:
        bare = next((mark for mark in _DANGEROUS if mark in _unquoted(text)), "")
        rule = f"{_ARGUMENTS} is read once more by a shell: words with other characters need quotes"
        value = bare or text
        yield Finding(file=pod.file.name, line=line, rule=rule, value=value, suggestion=shlex.join(words))
    given, _, _ = read_command(words, flags)
    for one in given:
        if one.name in _TEMPLATES:
            hint = "spec.parallelism.tensor" if one.name == _TENSOR else "leave it out"
            rule = "is set by KServe's template already"
            yield Finding(file=pod.file.name, line=line, rule=rule, value=one.name, suggestion=hint)


def _unquoted(text: str) -> str:
    """What stands outside of single quotes."""
    return "".join(text.split("'")[::2])


ENGINES = {
    "vllm": EngineWords(
        dialect=replace(vllm.VLLM, target="kserve", hand_over=_hand_over), flags="vllm", of_platform=False
    ),
}

KSERVE = Orchestrator(
    target="kserve",
    engines=ENGINES,
    objects=objects,
    other_files=lambda deployment, front, suffix: {},
    notes=lambda deployment: iter(()),
    pods=pods,
    smoke=_smoke,
    faults=_faults,
    scaled=_scaled,
    how_to_start=_how_to_start,
)
