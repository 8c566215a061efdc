"""What TensorRT-LLM calls what a deployment decides, on both ways: written and read.

Most of it stands in a config file of the group, which wins over flags. Behind them stands the disaggregated
server (:mod:`planner.deploy.trtllm_server`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.deploy.command_line import FlagList, load_flags
from planner.deploy.command_text import comment
from planner.deploy.config_files import config_findings, read_config
from planner.deploy.description import PLACEHOLDER, Deployment, Engine, EngineGroup, Front
from planner.deploy.dialect import Dialect, Limits, Words
from planner.deploy.findings import Finding
from planner.deploy.probes import trtllm_smoke_text
from planner.deploy.reading import GroupEntry, Manifest, ReadEngine, config_name
from planner.deploy.rendering import provenance
from planner.deploy.trtllm_server import server_arguments, server_files, server_findings
from planner.documents.yaml_text import dump_yaml
from planner.errors import SpecError
from planner.specs import Dtype, Model, Parallelism, Phase

_TRANSCEIVER = "cache_transceiver_config"
_BACKEND, _BUFFER = f"{_TRANSCEIVER}.backend", f"{_TRANSCEIVER}.max_tokens_in_buffer"
_SERIAL, _CHUNKED = "disable_overlap_scheduler", "enable_chunked_prefill"
_RECORDS, _MOST = "return_perf_metrics", "perf_metrics_max_requests"
RECORD_SETTINGS = (_RECORDS, _MOST)
"""What only smoke checks need of the config file."""

_LONGEST, _RANKS = "--max_seq_len", "--tensor_parallel_size"
_KEPT = 512
"""Finished requests that an engine remembers for those who ask: smoke checks count them."""

_KV_CACHES = {Dtype.FP8: "fp8", Dtype.BF16: "auto", Dtype.FP16: "auto"}
_ACTIVATIONS = {Dtype.BF16: "bfloat16", Dtype.FP16: "float16"}


# --------------------------------------------------------------------------------------------
# Engines


def engine_arguments(front: Front, group: EngineGroup) -> Words:
    """Flags of ``trtllm-serve serve`` that all engines of a group share."""
    layout = group.parallelism
    yield "--backend", "pytorch"
    yield _RANKS, str(layout.tp * layout.dp)  # of attention TP and DP together
    yield "--pipeline_parallel_size", str(layout.pp)
    yield "--moe_expert_parallel_size", str(layout.ep)
    yield "--max_batch_size", str(group.max_num_seqs)  # both of one rank of attention DP
    yield "--max_num_tokens", str(group.max_num_batched_tokens)
    yield _LONGEST, str(group.max_model_len)
    yield "--config", config_name(group.name)


def config_of(front: Front, group: EngineGroup) -> dict[str, Any]:
    """What the config file of a group holds.

    Raises
    ------
    SpecError
        The engine has no such layout, format, or transfer.
    """
    _require_known(group)
    config: dict[str, Any] = {
        "dtype": _ACTIVATIONS[group.activations],
        "attn_backend": group.attention_backend,
        "enable_attention_dp": group.parallelism.dp > 1,
        _CHUNKED: True,
        _SERIAL: group.role is Phase.PREFILL,
        "scheduler_config": {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"},
        "kv_cache_config": {
            "dtype": _KV_CACHES[group.kv_cache],
            "tokens_per_block": group.block_size,
            "enable_block_reuse": group.prefix_caching,
            "free_gpu_memory_fraction": float(f"{group.memory_fraction:g}"),
        },
        "cuda_graph_config": None
        if group.role is Phase.PREFILL
        else {"enable_padding": True, "max_batch_size": group.max_num_seqs},
    }
    if group.transfer is not None:
        longest = max(other.max_model_len for other in front.groups)
        blocks = -(-longest // group.block_size)
        config[_TRANSCEIVER] = {
            "backend": group.transfer.connector,
            "max_tokens_in_buffer": blocks * group.block_size,
        }
    if front.draft:
        placeholder = front.draft.startswith(PLACEHOLDER)
        config["speculative_config"] = front.draft if placeholder else json.loads(front.draft)
    return config | {_RECORDS: True, _MOST: _KEPT}


def _require_known(group: EngineGroup) -> None:
    layout = group.parallelism
    if layout.dp > 1 and layout.tp > 1:
        rule = f"with attention DP every rank has all heads, the plan has attention TP {layout.tp}"
        raise SpecError(f"group {group.planned_name}: {rule} (plan with allowed_tp: [1])")
    if group.kv_cache not in _KV_CACHES:
        known = ", ".join(_KV_CACHES)
        raise SpecError(f"group {group.planned_name}: no KV cache in {group.kv_cache} (known: {known})")
    if group.transfer is not None and group.has_state:
        rule = "layers with a recurrent state are handed over by later versions only"
        hint = "plan with colocated: only, or for another engine"
        raise SpecError(f"group {group.planned_name}: {rule}, NVIDIA/TensorRT-LLM pull/12772 ({hint})")


def places(deployment: Deployment, group: EngineGroup, engine: Engine, rank: int) -> dict[str, str]:
    """What differs from engine to engine."""
    return {"port": str(engine.port), "gpus": ",".join(map(str, engine.gpus))}


def place_arguments(group: EngineGroup, places: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Flags that differ from engine to engine."""
    yield "--host", "0.0.0.0"
    yield "--port", places["port"]


def part_flags(layout: Parallelism, nodes: int, rank: int) -> dict[str, str | None]:
    """Engines over several hosts are started by MPI, not by one command on each.

    Raises
    ------
    SpecError
    """
    rule = f"an engine over {nodes} hosts is started by MPI, which these scripts do not do"
    raise SpecError(f"{layout}: {rule} (plan with max_nodes_per_replica: 1, or for another engine)")


def leader_of(engine: ReadEngine, flags: FlagList) -> tuple[str, str]:
    """Flag and address of an engine's first host: there is no such flag."""
    return "", ""


def environment(
    deployment: Deployment, group: EngineGroup, places: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Variables of an engine."""
    yield "HF_HOME", deployment.model_cache
    yield from deployment.environment


def files(deployment: Deployment) -> dict[str, str]:
    """Config files of groups and of disaggregated servers."""
    found = {}
    for front in deployment.fronts:
        for group in front.groups:
            about = f"{group.role}: {group.parallelism} on {group.gpu}; weights in {group.weights}"
            lines = [
                comment(f"{about}, as the checkpoint has them"),
                comment(provenance(deployment)),
                dump_yaml(config_of(front, group)),
            ]
            found[config_name(group.name)] = "\n".join(lines)
    return found | server_files(deployment)


# --------------------------------------------------------------------------------------------
# Reading


def layout_of(engine: ReadEngine, flags: FlagList) -> Parallelism | None:
    """Sizes of an engine; None where one cannot be read."""
    return layout_of_sizes(engine, flags, (_RANKS, "--pipeline_parallel_size", "--moe_expert_parallel_size"))


def layout_of_sizes(engine: ReadEngine, flags: FlagList, names: tuple[str, str, str]) -> Parallelism | None:
    """Sizes of an engine by its flags of ranks, pipeline and experts."""
    sizes = [engine.value(flags, name) or "1" for name in names]
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        return None
    ranks, pp, ep = map(int, sizes)
    apart = engine.value(flags, "enable_attention_dp") == "true"
    return Parallelism(tp=1 if apart else ranks, pp=pp, dp=ranks if apart else 1, ep=ep)


def _connector(engine: ReadEngine, flags: FlagList) -> str:
    """Nothing: what moves KV caches is compared as a setting."""
    return ""


def hand_over_faults(group: GroupEntry, engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """What an engine needs of its config file, and for hand-overs."""
    yield from _overruled(engine, flags)
    if engine.value(flags, "--host") != "0.0.0.0":
        rule = "--host must be 0.0.0.0; otherwise no other host reaches the engine"
        yield _told(engine, flags, "--host", rule)
    wanted = config_name(group.name)
    if "--config" in engine.flags(flags) and engine.value(flags, "--config") != wanted:
        yield _told(engine, flags, "--config", "is not the config file of its group", wanted)
    if engine.value(flags, _CHUNKED) == "false":
        rule = f"{_CHUNKED} must be true; the plan counts on chunks of --max_num_tokens"
        yield _told(engine, flags, _CHUNKED, rule)
    if engine.value(flags, _RECORDS) != "true":
        yield _told(
            engine, flags, _RECORDS, f"{_RECORDS} must be true: smoke checks read records of requests"
        )
    if engine.value(flags, _MOST) in ("", "0"):
        yield _told(engine, flags, _MOST, f"{_MOST} must be above 0: smoke checks read records of requests")
    yield from transfer_faults(group, engine, flags, _LONGEST)


def transfer_faults(
    group: GroupEntry, engine: ReadEngine, flags: FlagList, longest_flag: str
) -> Iterator[Finding]:
    """Both sides of a hand-over have a transceiver that long prompts fit into; prefill runs step by step."""
    if group.role is Phase.COLOCATED:
        return
    where = f"a {group.role} engine"
    if engine.value(flags, _BACKEND) in ("", "null"):
        rule = f"{where} without {_BACKEND} answers, and hands nothing over"
        yield _told(engine, flags, _BACKEND, rule, f"{_TRANSCEIVER}: {{backend: NIXL}}")
    if group.role is Phase.PREFILL and engine.value(flags, _SERIAL) != "true":
        rule = f"{_SERIAL} of {where} must be true: with the overlap scheduler it takes no such requests"
        yield _told(engine, flags, _SERIAL, rule, f"{_SERIAL}: true")
    size, longest = engine.value(flags, _BUFFER), engine.value(flags, longest_flag)
    if not size.isdecimal() or (longest.isdecimal() and int(size) < int(longest)):
        rule = f"{_BUFFER} must hold the longest prompt, up to the {longest} tokens of {longest_flag}"
        yield _told(engine, flags, _BUFFER, rule)


def _told(engine: ReadEngine, flags: FlagList, name: str, rule: str, suggestion: str = "") -> Finding:
    file, line = engine.place(flags, name)
    value = engine.value(flags, name) or "nothing"
    return Finding(file=file, line=line, rule=rule, value=value, suggestion=suggestion)


def _overruled(engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Settings that a flag gives too: the config file wins. Told is the one that emit does not write."""
    given = engine.flags(flags)
    for name in engine.settings:
        flag = flags.flags.get(f"--{name.removeprefix('kv_cache_config.')}")
        if flag is not None and flag.name in given:
            told = name if "." not in name else flag.name
            rule = f"{flag.name} is given too, and overruled by {name} of the config file"
            yield _told(engine, flags, told, rule, "give one of them")


def place_faults(engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Experts are spread over whole ranks."""
    return spread_faults(engine, flags, _RANKS, "--moe_expert_parallel_size")


def spread_faults(
    engine: ReadEngine, flags: FlagList, ranks_flag: str, spread_flag: str
) -> Iterator[Finding]:
    """Experts are spread over whole ranks."""
    ranks, spread = engine.value(flags, ranks_flag), engine.value(flags, spread_flag) or "1"
    if ranks.isdecimal() and spread.isdecimal() and int(spread) and int(ranks) % int(spread):
        rule = f"{spread_flag} must divide {ranks_flag} {ranks}"
        yield Finding(file=engine.file, line=engine.line, rule=rule, value=spread)


def pair_faults(
    model: Model, prefill: Sequence[ReadEngine], decode: Sequence[ReadEngine], flags: FlagList
) -> Iterator[Finding]:
    """Nothing beyond what holds of every engine."""
    yield from ()


def file_faults(folder: Path, manifest: Manifest, flags: FlagList) -> Iterator[Finding]:
    """Keys and values of config files; the disaggregated servers' know all engines."""
    keys = load_flags("trtllm-config", manifest.version)
    for group in manifest.groups:
        file = config_name(group.name)
        tree, found = read_config(folder, file)
        yield from found
        if tree is not None:
            yield from config_findings(file, tree, keys)
    yield from server_findings(folder, manifest, flags, keys)


TRTLLM = Dialect(
    target="trtllm",
    program=("trtllm-serve", "serve"),
    model_flag="",
    kv_cache="kv_cache_config.dtype",
    block_size="kv_cache_config.tokens_per_block",
    backend="attn_backend",
    quantization="",
    required=(
        _RANKS,
        "--max_batch_size",
        "--max_num_tokens",
        _LONGEST,
        "--config",
        "attn_backend",
        _CHUNKED,
        "kv_cache_config.dtype",
        "kv_cache_config.tokens_per_block",
        "kv_cache_config.free_gpu_memory_fraction",
    ),
    alike=(
        "dtype",
        "attn_backend",
        "kv_cache_config.dtype",
        _BACKEND,
        "speculative_config.decoding_type",
    ),
    ports=("--port",),
    port_variables=(),
    formats={"fp8": Dtype.FP8},
    limits=Limits(
        sequences="--max_batch_size",
        tokens="--max_num_tokens",
        longest=_LONGEST,
        of_all_ranks=False,
    ),
    router=("trtllm-serve", "disaggregated"),
    router_package="tensorrt-llm",
    disaggregated="",
    bootstrap=False,
    places=places,
    arguments=engine_arguments,
    place_arguments=place_arguments,
    variables=environment,
    router_arguments=server_arguments,
    smoke=trtllm_smoke_text,
    layout=layout_of,
    connector=_connector,
    hand_over=hand_over_faults,
    place_faults=place_faults,
    pair_faults=pair_faults,
    part_flags=part_flags,
    leader=leader_of,
    configured=True,
    files=files,
    file_faults=file_faults,
)
