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
    """Starts one engine of a group, by its number."""
    engines = [engine for engine in front.engines if engine.group == group.name]
    names = dialect.places(deployment, group, engines[0])
    values = {name: f"${name}" for name in names}
    label = group.node_label
    nodes = f" (nodes with {label.key}={label.value})" if label.key else ""
    lines = [
        "#!/bin/sh",
        comment(f"{group.role}: {group.replicas} x {group.parallelism} on {group.gpu}{nodes}"),
        comment(provenance(deployment)),
        comment(f"Starts one engine, on its host: sh groups/{group.name}.sh NUMBER"),
        "set -eu",
        *(['cd "$(dirname "$0")/.."'] if dialect.configured else []),
        'case "${1:-}" in',
        *(f"  {engine.number}) {_case(dialect, deployment, group, engine)} ;;" for engine in engines),
        "  *)",
        f'    echo "usage: $0 NUMBER (1 to {len(engines)})" >&2',
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
    placed = sorted(dialect.place_arguments(group, values), key=lambda pair: pair[1][0] != "$")
    words += [f"{flag} {_word(value, values)}" for flag, value in placed]
    words += [
        flag if value is None else f"{flag} {quoted(value)}"
        for flag, value in dialect.arguments(front, group)
    ]
    return "\n".join([*lines, command(words)]) + "\n"


def _word(value: str, variables: Mapping[str, str]) -> str:
    """A value, or the variable that holds it."""
    return f'"{value}"' if value in variables.values() else quoted(value)


def _case(dialect: Dialect, deployment: Deployment, group: EngineGroup, engine: Engine) -> str:
    """Variables of one engine; none that the script does not use."""
    places = dialect.places(deployment, group, engine)
    return " ".join(f"{name}={quoted(value)}" for name, value in places.items())


def provenance(deployment: Deployment) -> str:
    """Which plan, and which versions the flags were checked for."""
    d = deployment
    return f"plan {d.plan_id}; flags checked for {d.engine} {d.engine_version}, router {d.router_version}"


# --------------------------------------------------------------------------------------------
# Compose


def compose_text(dialect: Dialect, deployment: Deployment, host: Host) -> str:
    """All engines of a host, as services of one compose file."""
    services = {
        f"{engine.group}-{engine.number}": _service(dialect, deployment, front, engine)
        for front in deployment.fronts
        for engine in front.engines
        if engine.host == host.name
    }
    body = dump_yaml(escaped({"name": host.name, "services": services}))
    return f"{comment(f'{host.name}: {host.gpus} x {host.gpu}')}\n{comment(provenance(deployment))}\n{body}"


def _service(dialect: Dialect, deployment: Deployment, front: Front, engine: Engine) -> dict[str, Any]:
    group = front.group(engine.group)
    places = dialect.places(deployment, group, engine)
    variables = dict(dialect.variables(deployment, group, places))
    gpus = [str(gpu) for gpu in engine.gpus]
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
        *dialect.place_arguments(group, places),
        *dialect.arguments(front, group),
    ]
    model = [dialect.model_flag, front.model] if dialect.model_flag else [front.model]
    service: dict[str, Any] = {
        "image": deployment.image,
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


def socket_address(deployment: Deployment, engine: Engine) -> str:
    """Address of an engine's host, without the brackets that URLs have."""
    return deployment.host(engine.host).address.strip("[]")


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
