"""What vLLM calls what a deployment decides, on both ways: written and read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.deploy.command_line import FlagList
from planner.deploy.description import Deployment, Engine, EngineGroup, Front, TransferSide
from planner.deploy.dialect import Dialect, Limits, Words
from planner.deploy.findings import Finding
from planner.deploy.probes import vllm_smoke_text
from planner.deploy.reading import GroupEntry, ReadEngine
from planner.deploy.rendering import socket_address
from planner.documents.names import did_you_mean, one_of
from planner.errors import SpecError
from planner.specs import Dtype, Model, Parallelism, Phase

ROLES = {TransferSide.SENDS: "kv_producer", TransferSide.RECEIVES: "kv_consumer"}
ROUTER_CONNECTORS = {"NixlConnector": "nixl", "MooncakeConnector": "mooncake", "MoRIIOConnector": "moriio"}

FORMATS = {Dtype.BF16: "bfloat16", Dtype.FP16: "float16", Dtype.FP8: "fp8"}
FP8_LATENTS = "fp8_ds_mla"
_FP8_LATENT_BACKENDS = ("FLASHMLA_SPARSE",)
_READ_ROLES = {Phase.PREFILL: ("kv_producer", "kv_both"), Phase.DECODE: ("kv_consumer", "kv_both")}
_LAYOUT = "VLLM_KV_CACHE_LAYOUT"
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_BY_HOST: dict[str, Any] = {
    "kv_buffer_device": "cpu",
    "kv_connector_extra_config": {"enforce_handshake_compat": False},
}
"""What lets engines on GPUs of two vendors hand over: their versions and backends differ, which the handshake
compares."""

_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "")


# --------------------------------------------------------------------------------------------
# Engines


def engine_arguments(front: Front, group: EngineGroup) -> Words:
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
        config: dict[str, Any] = {
            "kv_connector": group.transfer.connector,
            "kv_role": ROLES[group.transfer.side],
            "kv_load_failure_policy": "fail",
        }
        if group.transfer.by_host:
            config |= _BY_HOST
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


def places(deployment: Deployment, group: EngineGroup, engine: Engine, rank: int) -> dict[str, str]:
    """What differs from engine to engine, and between parts of one: the first alone serves requests."""
    part = engine.parts[rank]
    found = {} if rank else {"port": str(engine.port)}
    found |= {"gpus": ",".join(map(str, part.gpus))}
    if group.transfer is not None:
        found |= {"address": socket_address(deployment, part.host), "side_port": str(engine.side_port)}
    if engine.followers:
        found |= {"leader": socket_address(deployment, engine.host)}
    if group.parallelism.dp > 1 or engine.followers:
        found |= {"rpc_port": str(engine.rpc_port)}
    return found


def place_arguments(group: EngineGroup, places: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Flags that differ from engine to engine."""
    if "port" in places:
        yield "--host", "0.0.0.0"
        yield "--port", places["port"]
    apart = group.parallelism.dp > 1
    if "leader" in places:
        yield _leader_flag(group.parallelism), places["leader"]
    if "rpc_port" in places:
        yield "--data-parallel-rpc-port" if apart else "--master-port", places["rpc_port"]


def part_flags(layout: Parallelism, nodes: int, rank: int) -> dict[str, str | None]:
    """Which part of an engine over several hosts this is; each has whole ranks of attention DP, or the same
    number of tensor and pipeline ranks.

    A first rank that the leader is told would make it serve its own ranks only.

    Raises
    ------
    SpecError
        Hosts would share a rank of attention DP.
    """
    headless: dict[str, str | None] = {"--headless": None} if rank else {}
    if layout.dp == 1:
        return {"--nnodes": str(nodes), "--node-rank": str(rank), **headless}
    if layout.dp % nodes:
        rule = f"{layout.dp} attention ranks cannot be shared out among {nodes} hosts"
        raise SpecError(f"{layout}: {rule} (plan with DP that the hosts divide)")
    local = layout.dp // nodes
    first: dict[str, str | None] = {"--data-parallel-start-rank": str(rank * local)} if rank else {}
    return {"--data-parallel-size-local": str(local), **headless, **first}


def _leader_flag(layout: Parallelism) -> str:
    return "--data-parallel-address" if layout.dp > 1 else "--master-addr"


def environment(
    deployment: Deployment, group: EngineGroup, places: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Variables of an engine."""
    yield "HF_HOME", deployment.model_cache
    if group.transfer is not None:
        yield "VLLM_NIXL_SIDE_CHANNEL_HOST", places["address"]
        yield "VLLM_NIXL_SIDE_CHANNEL_PORT", places["side_port"]
        if group.contiguous_heads:
            yield _LAYOUT, "HND"
        elif group.transfer.by_host:
            yield _LAYOUT, "NHD"
        if group.transfer.by_host and "UCX_TLS" not in dict(deployment.environment):
            yield "UCX_TLS", "tcp"
        if group.has_state:
            yield "VLLM_SSM_CONV_STATE_LAYOUT", "DS"
    yield from deployment.environment


def router_arguments(deployment: Deployment, front: Front) -> Iterator[tuple[str, ...]]:
    """Flags of ``vllm-router``, each with its values."""
    yield "--host", "0.0.0.0"
    yield "--port", str(front.router.port)
    if not front.disaggregated:
        yield "--policy", front.router.policy
        yield ("--worker-urls", *(deployment.url(e) for e in front.engines))
        return
    connectors = {group.transfer.connector for group in front.groups if group.transfer is not None}
    yield ("--vllm-pd-disaggregation",)
    yield "--kv-connector", ROUTER_CONNECTORS[connectors.pop()]
    for role in (Phase.PREFILL, Phase.DECODE):
        yield f"--{role}-policy", front.router.policy
        for engine in front.engines_of(role):
            yield f"--{role}", deployment.url(engine)


# --------------------------------------------------------------------------------------------
# Reading


def layout_of(engine: ReadEngine, flags: FlagList) -> Parallelism | None:
    """Sizes of an engine; None where one cannot be read."""
    names = ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size")
    sizes = [engine.value(flags, name) or "1" for name in names]
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        return None
    tp, pp, dp = map(int, sizes)
    spread = engine.flags(flags).get("--enable-expert-parallel")
    return Parallelism(tp=tp, pp=pp, dp=dp, ep=tp * dp if spread is not None and not spread[0] else 1)


def leader_of(engine: ReadEngine, flags: FlagList) -> tuple[str, str]:
    """Flag and address of an engine's first host."""
    flag = _leader_flag(layout_of(engine, flags) or Parallelism())
    return flag, engine.value(flags, flag)


def transfer_config(text: str) -> dict[str, Any]:
    """The connector's settings; empty where they cannot be read."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _connector(engine: ReadEngine, flags: FlagList) -> str:
    return str(transfer_config(engine.value(flags, "--kv-transfer-config")).get("kv_connector", ""))


def hand_over_faults(group: GroupEntry, engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Both sides of a hand-over name a connector and their role in it."""
    given = engine.flags(flags).get("--kv-transfer-config")
    roles = _READ_ROLES.get(group.role)
    if roles is None:
        return
    where = f"a {group.role} engine"
    if given is None:
        rule = f"{where} without --kv-transfer-config answers, and hands nothing over"
        hint = f'--kv-transfer-config \'{{"kv_connector":"NixlConnector","kv_role":"{roles[0]}"}}\''
        yield Finding(file=engine.file, line=engine.line, rule=rule, suggestion=hint)
        return
    values, line = given
    config, options = transfer_config(values[0] if values else ""), flags.kv_transfer
    assert options is not None
    for key in config:
        if key not in options.fields:
            rule, hint = "--kv-transfer-config has no such field", did_you_mean(key, options.fields)
            yield Finding(file=engine.file, line=line, rule=rule, value=key, suggestion=hint)
    connector, role = str(config.get("kv_connector", "")), str(config.get("kv_role", ""))
    if connector not in options.connectors:
        hint = did_you_mean(connector, options.connectors) or f"known: {', '.join(options.connectors)}"
        yield Finding(file=engine.file, line=line, rule="is no connector", value=connector, suggestion=hint)
    if role not in roles:
        rule = f"kv_role of {where} {one_of(roles)}"
        yield Finding(file=engine.file, line=line, rule=rule, value=role, suggestion=roles[0])


def place_faults(engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Other hosts have to reach the side channel."""
    address, line = engine.environment.get("VLLM_NIXL_SIDE_CHANNEL_HOST", ("", engine.line))
    if _connector(engine, flags).startswith("Nixl") and address in _LOCAL:
        rule = "VLLM_NIXL_SIDE_CHANNEL_HOST has to be an address that other hosts reach"
        yield Finding(file=engine.file, line=line, rule=rule, value=address or "nothing")


def pair_faults(
    model: Model, prefill: Sequence[ReadEngine], decode: Sequence[ReadEngine], flags: FlagList
) -> Iterator[Finding]:
    """Engines on GPUs of two vendors hand over through memory of their hosts, laid out alike."""
    engines = (*prefill, *decode)
    kinds = {name for engine in engines for name in _VISIBLE if name in engine.environment}
    if len(kinds) < len(_VISIBLE) or not (prefill and decode):
        return
    layouts = {engine.environment.get(_LAYOUT, ("nothing", 0))[0] for engine in engines}
    for engine in engines:
        values, line = engine.flags(flags).get("--kv-transfer-config", (("",), engine.line))
        config = transfer_config(values[0] if values else "")
        for key, wanted in _BY_HOST.items():
            if config.get(key) != wanted:
                rule = f"{key} of engines on GPUs of two vendors must be {json.dumps(wanted)}"
                shown = json.dumps(config.get(key))
                yield Finding(file=engine.file, line=line, rule=rule, value=shown)
        if len(layouts) > 1 or "nothing" in layouts:
            layout, at = engine.environment.get(_LAYOUT, ("nothing", engine.line))
            rule = f"{_LAYOUT} must be the same on GPUs of two vendors"
            yield Finding(file=engine.file, line=at, rule=rule, value=layout)


VLLM = Dialect(
    target="vllm",
    program=("vllm", "serve"),
    model_flag="",
    kv_cache="--kv-cache-dtype",
    block_size="--block-size",
    backend="--attention-backend",
    quantization="--quantization",
    required=("--tensor-parallel-size", "--kv-cache-dtype", "--block-size", "--attention-backend"),
    alike=("--dtype", "--kv-cache-dtype", "--attention-backend", "--speculative-config"),
    ports=("--port", "--data-parallel-rpc-port", "--master-port"),
    port_variables=("VLLM_NIXL_SIDE_CHANNEL_PORT",),
    formats={
        "bfloat16": Dtype.BF16,
        "float16": Dtype.FP16,
        "half": Dtype.FP16,
        "fp8": Dtype.FP8,
        "fp8_e4m3": Dtype.FP8,
        "fp8_ds_mla": Dtype.FP8,
    },
    limits=Limits(
        sequences="--max-num-seqs",
        tokens="--max-num-batched-tokens",
        longest="--max-model-len",
        of_all_ranks=False,
    ),
    router=("vllm-router",),
    router_package="vllm-router",
    disaggregated="--vllm-pd-disaggregation",
    bootstrap=False,
    places=places,
    arguments=engine_arguments,
    place_arguments=place_arguments,
    part_flags=part_flags,
    leader=leader_of,
    variables=environment,
    router_arguments=router_arguments,
    smoke=vllm_smoke_text,
    layout=layout_of,
    connector=_connector,
    hand_over=hand_over_faults,
    place_faults=place_faults,
    pair_faults=pair_faults,
)
