"""A deployment as files that an operator starts: scripts, compose files, the router, checks and a load test.

What an engine calls things comes from its :class:`~planner.deploy.dialect.Dialect`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.deploy.command_text import command, comment, quoted
from planner.deploy.description import Deployment, Engine, EngineGroup, Front, Host
from planner.deploy.dialect import Dialect
from planner.deploy.manifest import manifest_text, suffixes
from planner.deploy.probes import load_test_text
from planner.deploy.readme import readme_text
from planner.documents.yaml_text import dump_yaml

_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}
_INSIDE = "/deploy"  # where containers see the folder, if they read files of it


def folder_files(dialect: Dialect, deployment: Deployment, plan_text: str) -> dict[str, str]:
    """Files of the deployment by their path in its folder."""
    files = {"plan.yaml": plan_text, **dialect.files(deployment)}
    for front in deployment.fronts:
        for group in front.groups:
            files[f"groups/{group.name}.sh"] = group_script(dialect, deployment, front, group)
    for host in deployment.hosts:
        files[f"hosts/{host.name}.compose.yaml"] = compose_text(dialect, deployment, host)
    for front, suffix in zip(deployment.fronts, suffixes(deployment), strict=True):
        if front.router.policy:
            files[f"router{suffix}.sh"] = router_script(dialect, deployment, front)
        if front.router.policy and deployment.router_image:
            files[f"router{suffix}.compose.yaml"] = router_compose(dialect, deployment, front)
        files[f"smoke-check{suffix}.sh"] = dialect.smoke(deployment, front)
        files[f"load-test{suffix}.sh"] = load_test_text(deployment, front, f"result{suffix}.json")
    files["README.md"] = readme_text(deployment)
    files["manifest.yaml"] = manifest_text(deployment, dialect.target, sorted(files))
    return files


# --------------------------------------------------------------------------------------------
# Engines


def group_script(dialect: Dialect, deployment: Deployment, front: Front, group: EngineGroup) -> str:
    """Starts one engine of a group by its number, or one part of it by number and rank."""
    engines = [engine for engine in front.engines if engine.group == group.name]
    parts = [dialect.places(deployment, group, engines[0], rank) for rank in range(group.nodes)]
    values = {name: f"${name}" for places in parts for name in places}
    told = [_told(dialect, group, {name: f"${name}" for name in p}, rank) for rank, p in enumerate(parts)]
    alike = [pair for pair in told[0] if all(pair in others for others in told)]
    own = ["".join(f" {_flag(pair, values)}" for pair in pairs if pair not in alike) for pairs in told]
    several = group.nodes > 1
    arguments = "NUMBER RANK" if several else "NUMBER"
    ranks = f", 0 to {group.nodes - 1}" if several else ""
    label = group.node_label
    nodes = f" (nodes with {label.key}={label.value})" if label.key else ""
    lines = [
        "#!/bin/sh",
        comment(f"{group.role}: {group.replicas} x {group.parallelism} on {group.gpu}{nodes}"),
        comment(provenance(deployment)),
        comment(
            f"Starts one {'part of an ' if several else ''}engine, on its host: "
            f"sh groups/{group.name}.sh {arguments}"
        ),
        "set -eu",
        *(['cd "$(dirname "$0")/.."'] if dialect.configured else []),
        f'case "${{1:-}}{" ${2:-}" if several else ""}" in',
        *(
            f"  {_key(engine, rank)}) {_case(dialect, deployment, group, engine, rank)}"
            f"{f'; set --{own[rank]}' if own[rank] else ''} ;;"
            for engine in engines
            for rank in range(group.nodes)
        ),
        "  *)",
        f'    echo "usage: $0 {arguments} (1 to {len(engines)}{ranks})" >&2',
        "    exit 2",
        "    ;;",
        "esac",
        f'export {_VISIBLE.get(group.vendor, "CUDA_VISIBLE_DEVICES")}="$gpus"',
        *(
            f"export {name}={_word(value, values)}"
            for name, value in dialect.variables(deployment, group, values)
        ),
    ]
    program = " ".join(dialect.program)
    model = quoted(front.model)
    words = [f"exec {program} {model}" if not dialect.model_flag else f"exec {program}"]
    words += [f"{dialect.model_flag} {model}"] if dialect.model_flag else []
    words += ['"$@"'] if any(own) else []
    words += [_flag(pair, values) for pair in sorted(alike, key=lambda pair: (pair[1] or " ")[0] != "$")]
    words += [
        flag if value is None else f"{flag} {quoted(value)}"
        for flag, value in dialect.arguments(front, group)
    ]
    return "\n".join([*lines, command(words)]) + "\n"


def _told(
    dialect: Dialect, group: EngineGroup, places: Mapping[str, str], rank: int
) -> list[tuple[str, str | None]]:
    """Flags of a part of an engine that hold its place."""
    which = dialect.part_flags(group.parallelism, group.nodes, rank) if group.nodes > 1 else {}
    return [*dialect.place_arguments(group, places), *which.items()]


def _flag(pair: tuple[str, str | None], variables: Mapping[str, str]) -> str:
    flag, value = pair
    return flag if value is None else f"{flag} {_word(value, variables)}"


def _key(engine: Engine, rank: int) -> str:
    """How a script is asked for a part of an engine."""
    return f'"{engine.number} {rank}"' if engine.followers else str(engine.number)


def _word(value: str, variables: Mapping[str, str]) -> str:
    """A value, or the variable that holds it."""
    return f'"{value}"' if value in variables.values() else quoted(value)


def _case(dialect: Dialect, deployment: Deployment, group: EngineGroup, engine: Engine, rank: int) -> str:
    """Variables of a part of an engine; none that the script does not use."""
    places = dialect.places(deployment, group, engine, rank)
    return " ".join(f"{name}={quoted(value)}" for name, value in places.items())


def provenance(deployment: Deployment) -> str:
    """Which plan, and which versions the flags were checked for."""
    d = deployment
    return f"plan {d.plan_id}; flags checked for {d.engine} {d.engine_version}, router {d.router_version}"


# --------------------------------------------------------------------------------------------
# Compose


def compose_text(dialect: Dialect, deployment: Deployment, host: Host) -> str:
    """All engines of a host, or their parts there, as services of one compose file."""
    services = {
        engine.part_name(rank): _service(dialect, deployment, front, engine, rank)
        for front, engine, rank in deployment.parts_on(host)
    }
    body = dump_yaml(escaped({"name": host.name, "services": services}))
    return f"{comment(f'{host.name}: {host.gpus} x {host.gpu}')}\n{comment(provenance(deployment))}\n{body}"


def _service(
    dialect: Dialect, deployment: Deployment, front: Front, engine: Engine, rank: int
) -> dict[str, Any]:
    group = front.group(engine.group)
    places = dialect.places(deployment, group, engine, rank)
    variables = dict(dialect.variables(deployment, group, places))
    gpus = [str(gpu) for gpu in engine.parts[rank].gpus]
    labels = {
        "planner.plan": deployment.plan_id,
        "planner.engine": f"{deployment.engine} {deployment.engine_version}",
        "planner.group": group.planned_name,
        "planner.role": str(group.role),
        "planner.gpu": group.gpu,
    }
    if group.node_label.key:
        labels[group.node_label.key] = group.node_label.value
    arguments = [
        *_told(dialect, group, places, rank),
        *dialect.arguments(front, group),
    ]
    model = [dialect.model_flag, front.model] if dialect.model_flag else [front.model]
    service: dict[str, Any] = {
        "image": group.image,
        "entrypoint": [*dialect.program],
        "command": [*model, *(word for pair in arguments for word in pair if word is not None)],
        "network_mode": "host",
        "ipc": "host",
        "restart": "unless-stopped",
        "labels": labels,
        "volumes": [f"{deployment.model_cache}:{deployment.model_cache}"],
    }
    if dialect.configured:
        service["working_dir"] = _INSIDE
        service["volumes"] += [f"../groups:{_INSIDE}/groups:ro"]
    if group.vendor == "amd":
        service |= {"devices": ["/dev/kfd", "/dev/dri"], "group_add": ["video"]}
        variables["HIP_VISIBLE_DEVICES"] = ",".join(gpus)
    else:
        devices = [{"driver": "nvidia", "device_ids": gpus, "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    return service | {"environment": variables}


def escaped(value: Any) -> Any:
    """Nested texts with dollar signs doubled: compose fills in variables otherwise."""
    if isinstance(value, Mapping):
        return {key: escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [escaped(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value


# --------------------------------------------------------------------------------------------
# Router


def socket_address(deployment: Deployment, host: str) -> str:
    """Address of a host by its name, without the brackets that URLs have."""
    return deployment.host(host).address.strip("[]")


def router_script(dialect: Dialect, deployment: Deployment, front: Front) -> str:
    """Starts the router, at the version that the flags were checked for."""
    words = [f"exec {' '.join(dialect.router)}"]
    arguments = dialect.router_arguments(deployment, front)
    words += [" ".join([flag, *map(quoted, values)]) for flag, *values in arguments]
    lines = [
        "#!/bin/sh",
        comment(f"Router of {front.service}, on {front.router.address}"),
        comment(provenance(deployment)),
        comment(f"Needs: pip install {dialect.router_package}=={deployment.router_version}"),
        "set -eu",
        *(['cd "$(dirname "$0")"'] if dialect.configured else []),
        command(words),
    ]
    return "\n".join(lines) + "\n"


def router_compose(dialect: Dialect, deployment: Deployment, front: Front) -> str:
    """The router as a service of a compose file."""
    service: dict[str, Any] = {
        "image": deployment.router_image,
        "entrypoint": [*dialect.router],
        "command": [word for words in dialect.router_arguments(deployment, front) for word in words],
        "network_mode": "host",
        "restart": "unless-stopped",
        "labels": {"planner.plan": deployment.plan_id, "planner.role": "router"},
    }
    if dialect.configured:
        service |= {"working_dir": _INSIDE, "volumes": [f".:{_INSIDE}:ro"]}
    name = f"router-{front.name}"
    body = dump_yaml(escaped({"name": name, "services": {name: service}}))
    return f"{comment(provenance(deployment))}\n{body}"
