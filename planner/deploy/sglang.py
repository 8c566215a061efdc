"""What SGLang calls what a deployment decides, on both ways: written and read."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping, Sequence

from planner.deploy.command_line import FlagList
from planner.deploy.description import PLACEHOLDER, Deployment, Engine, EngineGroup, Front
from planner.deploy.dialect import Dialect, Limits, Words
from planner.deploy.findings import Finding
from planner.deploy.probes import sglang_smoke_text
from planner.deploy.reading import GroupEntry, ReadEngine
from planner.deploy.rendering import socket_address
from planner.documents.names import one_of
from planner.errors import SpecError
from planner.specs import Dtype, LatentAttention, Model, Parallelism, Phase

ATTENTION_DP = "--attn-dp-size"
MODE, BACKEND = "--disaggregation-mode", "--disaggregation-transfer-backend"
BOOTSTRAP = "--disaggregation-bootstrap-port"
STAGING = "SGLANG_DISAGG_STAGING_BUFFER"
STAGED = ("mooncake", "nixl")
"""Transfer backends with a buffer that gathers heads for another TP."""

_CAPTURED = 512  # sequences of the largest graph that plans count on
_METRICS_PORT = 29_000  # of the first router
_INIT_PORTS = 16  # that an engine with attention DP takes, from that of its ranks on
_KV_CACHES = {Dtype.BF16: "bfloat16", Dtype.FP8: "fp8_e4m3"}
_ACTIVATIONS = {Dtype.BF16: "bfloat16", Dtype.FP16: "float16"}
_ROLES = {Phase.PREFILL: "prefill", Phase.DECODE: "decode"}
_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "")


# --------------------------------------------------------------------------------------------
# Engines


def engine_arguments(front: Front, group: EngineGroup) -> Words:
    """Flags of ``sglang.launch_server`` that all engines of a group share; None: a flag without a value.

    Raises
    ------
    SpecError
        The engine has no such format or transfer.
    """
    layout = group.parallelism
    yield "--served-model-name", front.served_name
    yield "--tp-size", str(layout.tp * layout.dp)  # of attention TP and DP together
    yield "--pp-size", str(layout.pp)
    yield ATTENTION_DP, str(layout.dp)
    yield "--ep-size", str(layout.ep)
    yield "--max-running-requests", str(group.max_num_seqs * layout.dp)  # both are shared out among ranks
    yield "--chunked-prefill-size", str(group.max_num_batched_tokens * layout.dp)
    yield "--max-prefill-tokens", str(group.max_num_batched_tokens)
    yield "--context-length", str(group.max_model_len)
    yield "--mem-fraction-static", f"{group.memory_fraction:g}"
    yield "--dtype", _ACTIVATIONS[group.activations]
    if group.quantize:
        yield "--quantization", str(group.weights)
    yield "--kv-cache-dtype", kv_cache_name(group)
    yield "--page-size", str(group.block_size)
    if not group.prefix_caching:
        yield "--disable-radix-cache", None
    yield "--attention-backend", group.attention_backend
    if group.role is not Phase.PREFILL:
        yield "--cuda-graph-max-bs-decode", str(min(group.max_num_seqs, _CAPTURED))
    yield from _draft(front.draft)
    yield "--enable-metrics", None  # smoke checks count requests
    if group.transfer is not None:
        yield MODE, _ROLES[group.role]
        yield BACKEND, _transfer_backend(group)


def kv_cache_name(group: EngineGroup) -> str:
    """What SGLang calls the format of a group's KV cache.

    Raises
    ------
    SpecError
        It has no such format.
    """
    if group.kv_cache is Dtype.FP16 or (group.kv_cache.is_16_bit and group.activations is Dtype.FP16):
        return "auto"  # that of activations
    if group.kv_cache not in _KV_CACHES:
        known = ", ".join((*_KV_CACHES, Dtype.FP16))
        raise SpecError(f"group {group.planned_name}: no KV cache in {group.kv_cache} (known: {known})")
    return _KV_CACHES[group.kv_cache]


def _transfer_backend(group: EngineGroup) -> str:
    assert group.transfer is not None
    connector = group.transfer.connector
    if _staged(group) and connector not in STAGED:
        rule = f"{connector} has no staging buffer, which pairs of different TP need"
        raise SpecError(f"group {group.planned_name}: {rule} (it can: {', '.join(STAGED)})")
    return connector


def _staged(group: EngineGroup) -> bool:
    return group.contiguous_heads and not group.latent


def _draft(text: str) -> Words:
    """Flags of speculative decoding: the site's keys after ``--speculative-``."""
    if text.startswith(PLACEHOLDER):
        yield "--speculative-algorithm", text
        return
    for key, value in (json.loads(text) if text else {}).items():
        if not re.fullmatch(r"[a-z][a-z_]*", key) or not isinstance(value, str | int | float):
            raise SpecError(f"draft: {key!r} is not the end of a flag --speculative-... with a value")
        yield f"--speculative-{key.replace('_', '-')}", str(value)


def places(deployment: Deployment, group: EngineGroup, engine: Engine, rank: int) -> dict[str, str]:
    """What differs from engine to engine, and between parts of one: others answer only for their health."""
    part = engine.parts[rank]
    found = {"port": str(engine.port), "gpus": ",".join(map(str, part.gpus))}
    if group.transfer is not None and _numeric(deployment):
        found["address"] = socket_address(deployment, part.host)
    if group.role is Phase.PREFILL:
        found["side_port"] = str(engine.side_port)
    if group.parallelism.dp > 1 or engine.followers:
        first = deployment.host(engine.host).address if engine.followers else "127.0.0.1"
        found["init"] = f"{first}:{_init_port(deployment, engine)}"
    return found


def _numeric(deployment: Deployment) -> bool:
    """Whether engines can listen at the addresses of all hosts: names are not bound to."""
    for host in deployment.hosts:
        try:
            ipaddress.ip_address(host.address.strip("[]"))
        except ValueError:
            if not host.address.startswith(PLACEHOLDER):
                return False
    return True


def _init_port(deployment: Deployment, engine: Engine) -> int:
    """First port between the ranks of an engine, with room for those that follow it."""
    first = engine.gpus[0]
    port = engine.rpc_port - first + _INIT_PORTS * first
    taken = {front.router.port for front in deployment.fronts}
    taken |= {p for front in deployment.fronts for e in front.engines for p in (e.port, e.side_port)}
    room = _INIT_PORTS + (engine.num_gpus if engine.followers else 0)
    wanted = range(port, port + room)
    if wanted.stop > 65_536 or taken & set(wanted):
        rule = f"data_parallel leaves no {room} ports for each GPU of a host"
        raise SpecError(f"ports: {rule} (give a data_parallel that is further from the others)")
    return port


def place_arguments(group: EngineGroup, places: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Flags that differ from engine to engine."""
    yield "--host", "0.0.0.0"
    yield "--port", places["port"]
    if group.role is Phase.PREFILL:
        yield BOOTSTRAP, places["side_port"]
    if "init" in places:
        yield "--dist-init-addr", places["init"]


def part_flags(layout: Parallelism, nodes: int, rank: int) -> dict[str, str | None]:
    """Which part of an engine over several hosts this is."""
    return {"--nnodes": str(nodes), "--node-rank": str(rank)}


def environment(
    deployment: Deployment, group: EngineGroup, places: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Variables of an engine."""
    yield "HF_HOME", deployment.model_cache
    if "address" in places:
        yield "SGLANG_HOST_IP", places["address"]
    if group.transfer is not None and _staged(group):
        yield STAGING, "1"
        yield "SGLANG_DISAGG_STAGING_BUFFER_SIZE_MB", "64"
        yield "SGLANG_DISAGG_STAGING_POOL_SIZE_MB", "4096"
    yield from deployment.environment


# --------------------------------------------------------------------------------------------
# Router


def router_arguments(deployment: Deployment, front: Front) -> Iterator[tuple[str, ...]]:
    """Flags of ``sglang_router.launch_router``, each with its values."""
    yield "--host", "0.0.0.0"
    yield "--port", str(front.router.port)
    yield "--prometheus-port", str(_METRICS_PORT + deployment.fronts.index(front))
    if not front.disaggregated:
        yield "--policy", front.router.policy
        yield ("--worker-urls", *(deployment.url(e) for e in front.engines))
        return
    yield ("--pd-disaggregation",)
    for role in (Phase.PREFILL, Phase.DECODE):
        yield f"--{role}-policy", front.router.policy
        for engine in front.engines_of(role):
            bootstrap = (str(engine.side_port),) if role is Phase.PREFILL else ()
            yield (f"--{role}", deployment.url(engine), *bootstrap)


# --------------------------------------------------------------------------------------------
# Reading


def layout_of(engine: ReadEngine, flags: FlagList) -> Parallelism | None:
    """Sizes of an engine; None where one cannot be read."""
    return layout_of_sizes(engine, flags, engine.value(flags, ATTENTION_DP) or "1")


def layout_of_sizes(engine: ReadEngine, flags: FlagList, attention_dp: str) -> Parallelism | None:
    """Sizes of an engine that says elsewhere how many attention ranks it has."""
    given = [engine.value(flags, name) or "1" for name in ("--tp-size", "--pp-size", "--ep-size")]
    if not all(size.isdecimal() and int(size) > 0 for size in (*given, attention_dp)):
        return None
    (ranks, pp, ep), dp = map(int, given), int(attention_dp)
    return None if ranks % dp else Parallelism(tp=ranks // dp, pp=pp, dp=dp, ep=ep)


def leader_of(engine: ReadEngine, flags: FlagList) -> tuple[str, str]:
    """Flag and address of an engine's first host."""
    flag = "--dist-init-addr"
    return flag, engine.value(flags, flag).rpartition(":")[0].strip("[]")


def _connector(engine: ReadEngine, flags: FlagList) -> str:
    return engine.value(flags, BACKEND)


def hand_over_faults(group: GroupEntry, engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Both sides of a hand-over name their role and what moves KV caches, and can be reached."""
    yield from mode_faults(group, engine, flags)
    given = engine.flags(flags)
    if engine.value(flags, "--host") != "0.0.0.0":
        line = given.get("--host", ((), engine.line))[1]
        rule = "--host must be 0.0.0.0; otherwise no other host reaches the engine"
        yield Finding(
            file=engine.file, line=line, rule=rule, value=engine.value(flags, "--host") or "nothing"
        )
    if group.role is Phase.PREFILL and BOOTSTRAP not in given:
        rule = f"{BOOTSTRAP} is missing; the router has to name it"
        yield Finding(file=engine.file, line=engine.line, rule=rule)


def mode_faults(group: GroupEntry, engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Both sides of a hand-over name their role and what moves KV caches."""
    given = engine.flags(flags)
    mode, line = given.get(MODE, ((), engine.line))
    role = _ROLES.get(group.role)
    if (mode[0] if mode else "null") != (role or "null"):
        rule = f"{MODE} of a {group.role} engine {one_of((role or 'null',))}"
        yield Finding(
            file=engine.file,
            line=line,
            rule=rule,
            value=mode[0] if mode else "nothing",
            suggestion=f"{MODE} {role}" if role else "leave it out",
        )
    if role is None:
        return
    if BACKEND not in given:
        rule = f"{BACKEND} is missing; both sides have to name the same"
        yield Finding(file=engine.file, line=engine.line, rule=rule, suggestion=f"{BACKEND} {STAGED[0]}")
    elif _connector(engine, flags) == "fake":
        rule = "hands nothing over"
        yield Finding(file=engine.file, line=given[BACKEND][1], rule=rule, value="fake", suggestion=STAGED[0])


def place_faults(engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Sizes that divide, and addresses that other hosts reach."""
    ranks, dp = engine.value(flags, "--tp-size"), engine.value(flags, ATTENTION_DP) or "1"
    if ranks.isdecimal() and dp.isdecimal() and int(dp) and int(ranks) % int(dp):
        rule = f"--attn-dp-size must divide --tp-size {ranks}"
        yield Finding(file=engine.file, line=engine.line, rule=rule, value=dp)
    address, line = engine.environment.get("SGLANG_HOST_IP", ("given by nobody", engine.line))
    if address in _LOCAL:
        rule = "SGLANG_HOST_IP has to be an address that other hosts reach"
        yield Finding(file=engine.file, line=line, rule=rule, value=address or "nothing")


def pair_faults(
    model: Model, prefill: Sequence[ReadEngine], decode: Sequence[ReadEngine], flags: FlagList
) -> Iterator[Finding]:
    """Pairs of different attention TP gather heads in a staging buffer, on both sides; latents have none."""
    sizes = {layout.tp for e in (*prefill, *decode) if (layout := layout_of(e, flags)) is not None}
    latent = any(isinstance(run.layer.attention, LatentAttention) for run in model.layers)
    needed = len(sizes) > 1 and not latent
    for engine in (*prefill, *decode) if prefill and decode else ():
        value, line = engine.environment.get(STAGING, ("0", engine.line))
        if needed and value != "1":
            rule = f"{STAGING} must be 1 where attention TP differs"
            yield Finding(file=engine.file, line=line, rule=rule, value=value, suggestion=f"{STAGING}=1")
        if latent and value == "1":
            rule = f"{STAGING} is not for latent attention"
            yield Finding(file=engine.file, line=line, rule=rule, value=value, suggestion="leave it out")
        if needed and (backend := _connector(engine, flags)) not in STAGED:
            rule = f"{BACKEND} {one_of(STAGED)} where attention TP differs"
            line = engine.flags(flags).get(BACKEND, ((), engine.line))[1]
            yield Finding(file=engine.file, line=line, rule=rule, value=backend or "nothing")


SGLANG = Dialect(
    target="sglang",
    program=("python3", "-m", "sglang.launch_server"),
    model_flag="--model-path",
    kv_cache="--kv-cache-dtype",
    block_size="--page-size",
    backend="--attention-backend",
    quantization="--quantization",
    required=("--tp-size", "--kv-cache-dtype", "--page-size", "--attention-backend", "--mem-fraction-static"),
    alike=(
        "--dtype",
        "--kv-cache-dtype",
        "--attention-backend",
        "--speculative-algorithm",
        "--speculative-draft-model-path",
    ),
    ports=("--port", BOOTSTRAP, "--dist-init-addr"),
    port_variables=(),
    formats={
        "bfloat16": Dtype.BF16,
        "bf16": Dtype.BF16,
        "fp8": Dtype.FP8,
        "fp8_e4m3": Dtype.FP8,
        "fp8_e5m2": Dtype.FP8,
    },
    limits=Limits(
        sequences="--max-running-requests",
        tokens="--chunked-prefill-size",
        longest="--context-length",
        of_all_ranks=True,
    ),
    router=("python3", "-m", "sglang_router.launch_router"),
    router_package="sglang-router",
    disaggregated="--pd-disaggregation",
    bootstrap=True,
    places=places,
    arguments=engine_arguments,
    place_arguments=place_arguments,
    part_flags=part_flags,
    leader=leader_of,
    variables=environment,
    router_arguments=router_arguments,
    smoke=sglang_smoke_text,
    layout=layout_of,
    connector=_connector,
    hand_over=hand_over_faults,
    place_faults=place_faults,
    pair_faults=pair_faults,
)
