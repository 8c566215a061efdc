"""vLLM by hand: a shell script per group, a compose file per host, the router, checks and a load test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from planner.deploy.command_text import command, comment, quoted
from planner.deploy.description import (
    Deployment,
    Engine,
    EngineGroup,
    Front,
    Host,
    TransferSide,
)
from planner.deploy.manifest import manifest_text, suffixes
from planner.deploy.readme import readme_text
from planner.deploy.vllm_probes import load_test_text, smoke_text
from planner.documents.yaml_text import dump_yaml
from planner.errors import SpecError
from planner.specs import Dtype, Phase

ROLES = {TransferSide.SENDS: "kv_producer", TransferSide.RECEIVES: "kv_consumer"}
ROUTER_CONNECTORS = {"NixlConnector": "nixl", "MooncakeConnector": "mooncake", "MoRIIOConnector": "moriio"}

FORMATS = {Dtype.BF16: "bfloat16", Dtype.FP16: "float16", Dtype.FP8: "fp8"}
FP8_LATENTS = "fp8_ds_mla"
_FP8_LATENT_BACKENDS = ("FLASHMLA_SPARSE",)
_VARIABLES = ('"$address"', '"$side_port"')
_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


def vllm_files(deployment: Deployment, plan_text: str) -> dict[str, str]:
    """Files of the deployment by their path in its folder."""
    files = {"plan.yaml": plan_text}
    for front in deployment.fronts:
        for group in front.groups:
            files[f"groups/{group.name}.sh"] = group_script(deployment, front, group)
    for host in deployment.hosts:
        files[f"hosts/{host.name}.compose.yaml"] = compose_text(deployment, host)
    for front, suffix in zip(deployment.fronts, suffixes(deployment), strict=True):
        files[f"router{suffix}.sh"] = router_script(deployment, front)
        if deployment.router_image:
            files[f"router{suffix}.compose.yaml"] = router_compose(deployment, front)
        files[f"smoke-check{suffix}.sh"] = smoke_text(deployment, front)
        files[f"load-test{suffix}.sh"] = load_test_text(deployment, front, f"result{suffix}.json")
    files["README.md"] = readme_text(deployment)
    files["manifest.yaml"] = manifest_text(deployment, "vllm", sorted(files))
    return files


# --------------------------------------------------------------------------------------------
# Engines


def engine_arguments(front: Front, group: EngineGroup) -> Iterator[tuple[str, str | None]]:
    """Flags of ``vllm serve`` that all engines of a group share; None: a flag without a value."""
    layout = group.parallelism
    yield "--served-model-name", front.served_name
    yield "--tensor-parallel-size", str(layout.tp)
    yield "--pipeline-parallel-size", str(layout.pp)
    yield "--data-parallel-size", str(layout.dp)
    if layout.ep > 1:
        yield "--enable-expert-parallel", None
    yield "--max-num-seqs", str(group.max_num_seqs)
    yield "--max-num-batched-tokens", str(group.max_num_batched_tokens)
    yield "--max-model-len", str(group.max_model_len)
    yield "--gpu-memory-utilization", f"{group.memory_fraction:g}"
    yield "--dtype", FORMATS[group.activations]
    if group.quantize:
        yield "--quantization", FORMATS[group.weights]
    yield "--kv-cache-dtype", kv_cache_name(group)
    yield "--block-size", str(group.block_size)
    yield "--enable-prefix-caching" if group.prefix_caching else "--no-enable-prefix-caching", None
    yield "--attention-backend", group.attention_backend
    if front.draft:
        yield "--speculative-config", front.draft
    if group.transfer is not None and group.has_state:
        yield "--no-disable-hybrid-kv-cache-manager", None  # off by default beside a connector
    if group.transfer is not None:
        config = {
            "kv_connector": group.transfer.connector,
            "kv_role": ROLES[group.transfer.side],
            "kv_load_failure_policy": "fail",
        }
        yield "--kv-transfer-config", json.dumps(config, separators=(",", ":"))


def kv_cache_name(group: EngineGroup) -> str:
    """What vLLM calls the format of a group's KV cache.

    Raises
    ------
    SpecError
        It has no such format.
    """
    if group.kv_cache not in FORMATS:
        known = ", ".join(FORMATS)
        raise SpecError(f"group {group.planned_name}: no KV cache in {group.kv_cache} (known: {known})")
    own = group.kv_cache is Dtype.FP8 and group.attention_backend in _FP8_LATENT_BACKENDS
    return FP8_LATENTS if own else FORMATS[group.kv_cache]


def place_arguments(group: EngineGroup, port: str, rpc_port: str) -> Iterator[tuple[str, str]]:
    """Flags that differ from engine to engine."""
    yield "--host", "0.0.0.0"
    yield "--port", port
    if group.parallelism.dp > 1:
        yield "--data-parallel-rpc-port", rpc_port


def environment(
    deployment: Deployment, group: EngineGroup, address: str, side_port: str
) -> Iterator[tuple[str, str]]:
    """Variables of an engine."""
    yield "HF_HOME", deployment.model_cache
    if group.transfer is not None:
        yield "VLLM_NIXL_SIDE_CHANNEL_HOST", address
        yield "VLLM_NIXL_SIDE_CHANNEL_PORT", side_port
        if group.contiguous_heads:
            yield "VLLM_KV_CACHE_LAYOUT", "HND"
        if group.has_state:
            yield "VLLM_SSM_CONV_STATE_LAYOUT", "DS"
    yield from deployment.environment


def _address(host: Host) -> str:
    """Of a socket: without the brackets that URLs have."""
    return host.address.strip("[]")


def group_script(deployment: Deployment, front: Front, group: EngineGroup) -> str:
    """Starts one engine of a group, by its number."""
    engines = [engine for engine in front.engines if engine.group == group.name]
    label = group.node_label
    nodes = f" (nodes with {label.key}={label.value})" if label.key else ""
    lines = [
        "#!/bin/sh",
        comment(f"{group.role}: {group.replicas} x {group.parallelism} on {group.gpu}{nodes}"),
        comment(provenance(deployment)),
        comment(f"Starts one engine, on its host: sh groups/{group.name}.sh NUMBER"),
        "set -eu",
        'case "${1:-}" in',
        *(f"  {engine.number}) {_case(deployment, group, engine)} ;;" for engine in engines),
        "  *)",
        f'    echo "usage: $0 NUMBER (1 to {len(engines)})" >&2',
        "    exit 2",
        "    ;;",
        "esac",
        f'export {_VISIBLE.get(group.vendor, "CUDA_VISIBLE_DEVICES")}="$gpus"',
        *(
            f"export {name}={value if value in _VARIABLES else quoted(value)}"
            for name, value in environment(deployment, group, *_VARIABLES)
        ),
    ]
    words = [f"exec vllm serve {quoted(front.model)}"]
    words += [
        f'{flag} "{value}"' for flag, value in place_arguments(group, "$port", "$rpc_port") if "$" in value
    ]
    words += [
        f"{flag} {quoted(value)}"
        for flag, value in place_arguments(group, "$port", "$rpc_port")
        if "$" not in value
    ]
    words += [
        flag if value is None else f"{flag} {quoted(value)}" for flag, value in engine_arguments(front, group)
    ]
    return "\n".join([*lines, command(words)]) + "\n"


def _case(deployment: Deployment, group: EngineGroup, engine: Engine) -> str:
    """Variables of one engine; none that the script does not use."""
    places = {"port": str(engine.port), "gpus": ",".join(map(str, engine.gpus))}
    if group.transfer is not None:
        places |= {"address": _address(deployment.host(engine.host)), "side_port": str(engine.side_port)}
    if group.parallelism.dp > 1:
        places |= {"rpc_port": str(engine.rpc_port)}
    return " ".join(f"{name}={quoted(value)}" for name, value in places.items())


def provenance(deployment: Deployment) -> str:
    """Which plan, and which versions the flags were checked for."""
    d = deployment
    return f"plan {d.plan_id}; flags checked for {d.engine} {d.engine_version}, router {d.router_version}"


# --------------------------------------------------------------------------------------------
# Compose


def compose_text(deployment: Deployment, host: Host) -> str:
    """All engines of a host, as services of one compose file."""
    services = {
        f"{engine.group}-{engine.number}": _service(deployment, front, engine, host)
        for front in deployment.fronts
        for engine in front.engines
        if engine.host == host.name
    }
    body = dump_yaml(escaped({"name": host.name, "services": services}))
    return f"{comment(f'{host.name}: {host.gpus} x {host.gpu}')}\n{comment(provenance(deployment))}\n{body}"


def _service(deployment: Deployment, front: Front, engine: Engine, host: Host) -> dict[str, Any]:
    group = front.group(engine.group)
    variables = dict(environment(deployment, group, _address(host), str(engine.side_port)))
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
        *place_arguments(group, str(engine.port), str(engine.rpc_port)),
        *engine_arguments(front, group),
    ]
    service: dict[str, Any] = {
        "image": deployment.image,
        "entrypoint": ["vllm", "serve"],
        "command": [front.model, *(word for pair in arguments for word in pair if word is not None)],
        "network_mode": "host",
        "ipc": "host",
        "restart": "unless-stopped",
        "labels": labels,
        "volumes": [f"{deployment.model_cache}:{deployment.model_cache}"],
    }
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


def router_arguments(deployment: Deployment, front: Front) -> Iterator[tuple[str, ...]]:
    """Flags of ``vllm-router``, each with its values."""
    yield "--host", "0.0.0.0"
    yield "--port", str(front.router.port)
    if not front.disaggregated:
        yield "--policy", front.router.policy
        yield ("--worker-urls", *(url(deployment, e) for e in front.engines))
        return
    connectors = {group.transfer.connector for group in front.groups if group.transfer is not None}
    yield ("--vllm-pd-disaggregation",)
    yield "--kv-connector", ROUTER_CONNECTORS[connectors.pop()]
    for role in (Phase.PREFILL, Phase.DECODE):
        yield f"--{role}-policy", front.router.policy
        for engine in front.engines_of(role):
            yield f"--{role}", url(deployment, engine)


def url(deployment: Deployment, engine: Engine) -> str:
    """Where an engine serves requests."""
    return f"http://{deployment.host(engine.host).address}:{engine.port}"


def router_script(deployment: Deployment, front: Front) -> str:
    """Starts the router: ``pip install vllm-router`` at the version that the flags were checked for."""
    words = ["exec vllm-router"]
    words += [" ".join([flag, *map(quoted, values)]) for flag, *values in router_arguments(deployment, front)]
    lines = [
        "#!/bin/sh",
        comment(f"Router of {front.service}, on {front.router.address}"),
        comment(provenance(deployment)),
        comment(f"Needs: pip install vllm-router=={deployment.router_version}"),
        "set -eu",
        command(words),
    ]
    return "\n".join(lines) + "\n"


def router_compose(deployment: Deployment, front: Front) -> str:
    """The router as a service of a compose file."""
    service = {
        "image": deployment.router_image,
        "entrypoint": ["vllm-router"],
        "command": [word for words in router_arguments(deployment, front) for word in words],
        "network_mode": "host",
        "restart": "unless-stopped",
        "labels": {"planner.plan": deployment.plan_id, "planner.role": "router"},
    }
    name = f"router-{front.name}"
    body = dump_yaml(escaped({"name": name, "services": {name: service}}))
    return f"{comment(provenance(deployment))}\n{body}"
