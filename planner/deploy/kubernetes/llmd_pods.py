"""What llm-d's router and sidecar need of the pods of engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.deploy.check_engines import command_findings, image_findings
from planner.deploy.command_line import FlagList, load_flags, read_command
from planner.deploy.description import EngineGroup, Front
from planner.deploy.dialect import Dialect
from planner.deploy.findings import Finding
from planner.deploy.kubernetes.pods import Object
from planner.deploy.kubernetes.reading import ReadPod, container_path, engine_of, words_of
from planner.deploy.platform_facts import PlatformFacts
from planner.deploy.reading import GroupEntry
from planner.deploy.words import dns_name
from planner.documents.names import one_of
from planner.errors import SpecError
from planner.specs import Phase

MODEL_SERVER, SIDECAR = "modelserver", "routing-proxy"
GUIDE, _ROLE = "llm-d.ai/guide", "llm-d.ai/role"
ROLE_LABELS = {Phase.PREFILL: "prefill", Phase.DECODE: "decode", Phase.COLOCATED: "prefill-decode"}
ENGINE_PORTS: Mapping[Phase, str] = {Phase.PREFILL: "8000", Phase.DECODE: "8200", Phase.COLOCATED: "8000"}
"""Where engines listen: the router asks port 8000 of every pod, of decode pods the sidecar."""

_FRONT_PORT = "8000"
_CONNECTORS = {
    "NixlConnector": "nixlv2",
    "MooncakeConnector": "mooncake",
    "nixl": "sglang",
    "mooncake": "sglang",
}
"""The sidecar's names of what moves KV caches, by that of vLLM, or of SGLang's transfer backend."""


def serving_labels(front: Front, group: EngineGroup) -> dict[str, str]:
    """Labels that the router finds pods by."""
    return {
        GUIDE: front.door,
        _ROLE: ROLE_LABELS[group.role],
        "llm-d.ai/inference-serving": "true",
        "llm-d.ai/model": dns_name(front.served_name),
        "llm-d.ai/accelerator-variant": group.gpu,
        "llm-d.ai/accelerator-vendor": group.vendor,
    }


def sidecar(group: EngineGroup, image: str) -> Object:
    """Takes the requests of a decode pod, and asks a prefill pod for their KV caches first.

    Raises
    ------
    SpecError
        It does not know what moves KV caches.
    """
    assert group.transfer is not None
    connector = group.transfer.connector
    if connector not in _CONNECTORS:
        rule = f"llm-d's sidecar does not know {connector}"
        raise SpecError(f"group {group.planned_name}: {rule} (it can: {', '.join(_CONNECTORS)})")
    return {
        "name": SIDECAR,
        "image": image,
        "args": [
            f"--port={_FRONT_PORT}",
            f"--model-server-port={ENGINE_PORTS[Phase.DECODE]}",
            f"--kv-connector={_CONNECTORS[connector]}",
            "--secure-proxy=false",
        ],
        "ports": [{"name": "sidecar", "containerPort": int(_FRONT_PORT)}],
        "restartPolicy": "Always",
        "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True},
    }


# --------------------------------------------------------------------------------------------
# Checking


def pod_faults(
    pod: ReadPod, group: GroupEntry, dialect: Dialect, flags: FlagList, platform: PlatformFacts
) -> Iterator[Finding]:
    """Role, ports and sidecar of a group's pods."""
    file, tree = pod.file.name, pod.file.tree
    labels = (*pod.template, "metadata", "labels")
    role = str(tree.get(*labels, _ROLE) or "nothing")
    if role != ROLE_LABELS[group.role]:
        rule = f"label {_ROLE} of {group.name} {one_of((ROLE_LABELS[group.role],))}: the router goes by it"
        yield Finding(file=file, line=tree.line((*labels, _ROLE)), rule=rule, value=role)
    engine, main = engine_of(pod, len(dialect.program)), pod.main
    if engine is None or main is None:
        return  # told by itself
    wanted, port = ENGINE_PORTS[group.role], engine.value(flags, "--port")
    if port != wanted:
        line = engine.flags(flags).get("--port", ((), engine.line))[1]
        rule = f"--port of a {group.role} engine {one_of((wanted,))}: nobody asks another"
        yield Finding(file=file, line=line, rule=rule, value=port or "nothing", suggestion=f"--port {wanted}")
    path = container_path(tree, pod.template, SIDECAR, "initContainers")
    if group.role is not Phase.DECODE:
        return
    if path is None:
        rule = f"a decode pod without {SIDECAR} computes the prompts itself"
        yield Finding(file=file, line=pod.line, rule=rule)
        return
    if tree.get(*path, "restartPolicy") != "Always":
        line = tree.line((*path, "restartPolicy"))
        yield Finding(file=file, line=line, rule=f"restartPolicy of {SIDECAR} must be Always: it never ends")
    yield from image_findings(file, tree.line((*path, "image")), str(tree.get(*path, "image") or ""))
    command = words_of(tree, path)
    known = load_flags("llm-d-sidecar", platform.tools["llm-d-sidecar"])
    yield from command_findings(file, command, known, positionals=0)
    given, _, _ = read_command(command.words, known)
    said = {one.name: (one.values[0] if one.values else "", command.lines[one.word]) for one in given}
    connector = _CONNECTORS.get(dialect.connector(engine, flags), "")
    for name, value, why in (
        ("--port", _FRONT_PORT, "the router asks there"),
        ("--model-server-port", wanted, "the engine listens there"),
        ("--kv-connector", connector, "engines hand over with it"),
    ):
        told, line = said.get(name, ("nothing", tree.line(path)))
        if told != value and value:
            rule = f"{name} of {SIDECAR} {one_of((value,))}: {why}"
            yield Finding(file=file, line=line, rule=rule, value=told, suggestion=f"{name}={value}")
