"""What Dynamo's workers call what a deployment decides: their engines' words, and a role."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from planner.deploy import sglang, trtllm, vllm
from planner.deploy.command_line import FlagList, load_flags
from planner.deploy.config_files import config_findings, settings_of
from planner.deploy.description import EngineGroup, Front
from planner.deploy.dialect import Limits, Words
from planner.deploy.findings import Finding
from planner.deploy.kubernetes.platform import EngineWords
from planner.deploy.reading import GroupEntry, ReadEngine
from planner.documents.names import one_of
from planner.documents.yaml_text import parse_tree
from planner.errors import SpecError
from planner.specs import Parallelism, Phase

MODE = "--disaggregation-mode"
_DP, _DP_ATTENTION = "--dp-size", "--enable-dp-attention"
_OVERRIDE = "--override-engine-args"
_CONNECTORS = ("NixlConnector", "MooncakeConnector", "LMCacheMPConnector")
"""Which Dynamo's vLLM workers can hand over with; others fail at every request (dynamo/vllm/handlers.py)."""

_SGLANG_TRANSFER = "nixl"
_CONFIG_VERSION = "1.2.1"  # of the list of TensorRT-LLM's settings


def _no_place(group: EngineGroup, places: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Workers listen at no port of their own: Dynamo hands them requests."""
    yield from ()


def _role_faults(group: GroupEntry, engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """A worker without its role takes whole requests, and none without a prefill worker's help."""
    given, line = engine.flags(flags).get(MODE, ((), engine.line))
    wanted = "agg" if group.role is Phase.COLOCATED else str(group.role)
    mode = given[0] if given else "agg"
    if mode != wanted:
        rule = f"{MODE} of a {group.role} engine {one_of((wanted,))}"
        yield Finding(file=engine.file, line=line, rule=rule, value=mode, suggestion=f"{MODE} {wanted}")


# --------------------------------------------------------------------------------------------
# vLLM


def _vllm_arguments(front: Front, group: EngineGroup) -> Words:
    if group.transfer is not None and group.transfer.connector not in _CONNECTORS:
        rule = f"Dynamo's vLLM workers hand nothing over with {group.transfer.connector}"
        raise SpecError(f"group {group.planned_name}: {rule} (they can: {', '.join(_CONNECTORS)})")
    yield from vllm.engine_arguments(front, group)
    if group.transfer is not None:
        yield MODE, str(group.role)


def _vllm_hand_over(group: GroupEntry, engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Role and connector on both sides."""
    yield from vllm.hand_over_faults(group, engine, flags)
    yield from _role_faults(group, engine, flags)
    connector = vllm.VLLM.connector(engine, flags)
    options = flags.kv_transfer
    if connector and options and connector in options.connectors and connector not in _CONNECTORS:
        line = engine.flags(flags)["--kv-transfer-config"][1]
        rule = f"connector of a worker {one_of(_CONNECTORS)}"
        yield Finding(file=engine.file, line=line, rule=rule, value=connector)


_VLLM = replace(
    vllm.VLLM,
    target="dynamo",
    program=("python3", "-m", "dynamo.vllm"),
    model_flag="--model",
    arguments=_vllm_arguments,
    place_arguments=_no_place,
    hand_over=_vllm_hand_over,
)


# --------------------------------------------------------------------------------------------
# SGLang


def _sglang_arguments(front: Front, group: EngineGroup) -> Words:
    """Attention DP in the words of the version within Dynamo's image; KV caches by what it brings."""
    for flag, value in sglang.engine_arguments(front, group):
        if flag == sglang.BACKEND:
            yield flag, _SGLANG_TRANSFER
        elif flag != sglang.ATTENTION_DP:
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


# --------------------------------------------------------------------------------------------
# TensorRT-LLM


def _trtllm_arguments(front: Front, group: EngineGroup) -> Words:
    """Sizes as flags; everything else in the settings that win over them."""
    layout = group.parallelism
    yield "--served-model-name", front.served_name
    yield "--tensor-parallel-size", str(layout.tp * layout.dp)  # of attention TP and DP together
    yield "--pipeline-parallel-size", str(layout.pp)
    yield "--expert-parallel-size", str(layout.ep)
    yield "--max-batch-size", str(group.max_num_seqs)  # both of one rank of attention DP
    yield "--max-num-tokens", str(group.max_num_batched_tokens)
    yield "--max-seq-len", str(group.max_model_len)
    yield "--kv-block-size", str(group.block_size)
    if group.transfer is not None:
        yield MODE, str(group.role)
    settings = {
        key: value
        for key, value in trtllm.config_of(front, group).items()
        if key not in trtllm.RECORD_SETTINGS  # smoke checks ask Dynamo's counters
    }
    yield _OVERRIDE, json.dumps(settings, separators=(",", ":"))


def _trtllm_settings(engine: ReadEngine, flags: FlagList) -> ReadEngine:
    """With the settings that stand in a flag; where it is no JSON, without."""
    given, line = engine.flags(flags).get(_OVERRIDE, ((), engine.line))
    try:
        tree, _ = parse_tree(given[0] if given else "{}", engine.file)
    except SpecError:
        return engine
    settings = {name: (values, line) for name, (values, _) in settings_of(tree).items()}
    return replace(engine, settings=settings, settings_file=engine.file)


def _trtllm_layout(engine: ReadEngine, flags: FlagList) -> Parallelism | None:
    """Sizes of an engine; None where one cannot be read."""
    names = ("--tensor-parallel-size", "--pipeline-parallel-size", "--expert-parallel-size")
    return trtllm.layout_of_sizes(engine, flags, names)


def _trtllm_hand_over(group: GroupEntry, engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Role and transceiver on both sides; settings that the engine knows."""
    yield from _role_faults(group, engine, flags)
    given, line = engine.flags(flags).get(_OVERRIDE, ((), engine.line))
    if not given:
        rule = f"{_OVERRIDE} is missing; the plan counts on it"
        yield Finding(file=engine.file, line=engine.line, rule=rule)
        return
    try:
        tree, problems = parse_tree(given[0], engine.file)
        json.loads(given[0])
    except (SpecError, ValueError) as error:
        rule = f"{_OVERRIDE} is not valid JSON: {' '.join(str(error).split())}"
        yield Finding(file=engine.file, line=line, rule=rule, value=given[0])
        return
    yield from (Finding(file=engine.file, line=line, rule=problem.rule) for problem in problems)
    keys = load_flags("trtllm-config", _CONFIG_VERSION)
    yield from (replace(found, line=line) for found in config_findings(engine.file, tree, keys))
    yield from trtllm.transfer_faults(group, engine, flags, "--max-seq-len")


def _trtllm_place_faults(engine: ReadEngine, flags: FlagList) -> Iterator[Finding]:
    """Experts are spread over whole ranks."""
    return trtllm.spread_faults(engine, flags, "--tensor-parallel-size", "--expert-parallel-size")


_TRTLLM = replace(
    trtllm.TRTLLM,
    target="dynamo",
    program=("python3", "-m", "dynamo.trtllm"),
    model_flag="--model",
    required=(
        "--tensor-parallel-size",
        "--max-batch-size",
        "--max-num-tokens",
        "--max-seq-len",
        "attn_backend",
        "kv_cache_config.dtype",
        "kv_cache_config.tokens_per_block",
        "kv_cache_config.free_gpu_memory_fraction",
    ),
    limits=Limits(
        sequences="--max-batch-size",
        tokens="--max-num-tokens",
        longest="--max-seq-len",
        of_all_ranks=False,
    ),
    arguments=_trtllm_arguments,
    place_arguments=_no_place,
    layout=_trtllm_layout,
    hand_over=_trtllm_hand_over,
    place_faults=_trtllm_place_faults,
    configured=False,
    files=lambda deployment: {},
    file_faults=lambda folder, manifest, flags: iter(()),
)

ENGINES = {
    "vllm": EngineWords(
        dialect=_VLLM,
        flags="dynamo-vllm",
        of_platform=True,
        alike_in_role=("--served-model-name", "--max-model-len", "--block-size"),
    ),
    "sglang": EngineWords(
        dialect=_SGLANG,
        flags="dynamo-sglang",
        of_platform=True,
        alike_in_role=("--served-model-name", "--context-length", "--page-size"),
    ),
    "trtllm": EngineWords(
        dialect=_TRTLLM,
        flags="dynamo-trtllm",
        of_platform=True,
        alike_in_role=("--served-model-name", "--max-seq-len", "--kv-block-size"),
        settled=_trtllm_settings,
    ),
}
