"""Number formats of a checkpoint: its own 16 bits, or what a quantisation says of each kind of module.

A quantisation is a list of rules, the first that names a module wins. Modules of one kind (mixers,
dense blocks, routed experts) get the format that most of their weights have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from planner.documents.model_config.patterns import ALL, Patterns
from planner.documents.model_config.reader import Reader
from planner.specs import (
    Attention,
    Dtype,
    LatentAttention,
    Layer,
    LayerRun,
    MixtureOfExperts,
    StateMixer,
)

_PLAIN = {
    "float32": Dtype.BF16,  # engines load 32-bit checkpoints in 16 bits
    "bfloat16": Dtype.BF16,
    "float16": Dtype.FP16,
    "half": Dtype.FP16,
    None: Dtype.BF16,
}
_MODELOPT = {
    "FP8": Dtype.FP8,
    "FP8_PB_WO": Dtype.FP8_BLOCK,
    "FP8_PER_CHANNEL_PER_TOKEN": Dtype.FP8,
    "NVFP4": Dtype.NVFP4,
    "NVFP4_AWQ": Dtype.NVFP4,
    "W4A16_NVFP4": Dtype.NVFP4,
    "W4A8_NVFP4_FP8": Dtype.NVFP4,
    "W4A16_AWQ": Dtype.INT4,
    "W4A8_AWQ": Dtype.INT4,
    "INT4_AWQ": Dtype.INT4,
    "W4A8_MXFP4_FP8": Dtype.MXFP4,
    "MXFP4": Dtype.MXFP4,
    "W8A8_SQ_PER_CHANNEL": Dtype.INT8,
    "INT8_SQ": Dtype.INT8,
}
_QUARK = {"fp8_e4m3": Dtype.FP8, "int8": Dtype.INT8, "int4": Dtype.INT4, "fp4": Dtype.MXFP4}
_KV_CACHES = {"FP8": Dtype.FP8, "INT8": Dtype.INT8, "NVFP4": Dtype.NVFP4}


class Kind(StrEnum):
    """Kinds of modules that may have formats of their own."""

    ATTENTION = "attention"
    DENSE = "dense"
    EXPERTS = "experts"


@dataclass(frozen=True, slots=True)
class Formats:
    """Formats of a checkpoint; those of mixers and experts are None where they are that of `weights`."""

    weights: Dtype
    attention: Dtype | None = None
    experts: Dtype | None = None
    kv_cache: Dtype | None = None


@dataclass(frozen=True, slots=True)
class _Rule:
    """Modules named by `patterns` have `dtype`; None: the checkpoint's 16 bits."""

    patterns: Patterns
    dtype: Dtype | None


class _UnknownFormat(Exception):
    """A quantisation that this version does not know."""


def number_formats(reader: Reader, runs: Sequence[LayerRun], hidden: int) -> Formats:
    """Formats of a checkpoint's modules; problems where the quantisation is not known."""
    plain = _plain(reader)
    key = "quantization_config" if reader.either("quantization_config") is not None else "compression_config"
    section = reader.either(key)
    if section is None:
        return Formats(plain)
    if not isinstance(section, dict):
        reader.problem(key, "must be a mapping of keys", section)
        return Formats(plain)
    try:
        rules = _rules(section)
        kv_cache = _kv_cache(section)
    except _UnknownFormat as error:
        method = section.get("quant_method", section.get("quant_algo"))
        said = f": {error}" if str(error) else ""
        reader.problem(key, f"is not a format this version knows{said}", method if not said else None)
        return Formats(plain)
    by_kind = _majority(rules, plain, runs, hidden)
    weights = by_kind.get(Kind.DENSE) or _only_kind(by_kind, plain)
    attention, experts = by_kind.get(Kind.ATTENTION, weights), by_kind.get(Kind.EXPERTS, weights)
    return Formats(
        weights=weights,
        attention=attention if attention is not weights else None,
        experts=experts if experts is not weights else None,
        kv_cache=kv_cache,
    )


def _only_kind(by_kind: Mapping[Kind, Dtype], plain: Dtype) -> Dtype:
    """Where no layer is dense: what experts have, which hold nearly all weights."""
    return by_kind.get(Kind.EXPERTS) or by_kind.get(Kind.ATTENTION) or plain


def _plain(reader: Reader) -> Dtype:
    name = reader.either("dtype") or reader.either("torch_dtype")
    plain = name.removeprefix("torch.") if isinstance(name, str) else name
    if not isinstance(plain, str | None) or plain not in _PLAIN:
        reader.problem("torch_dtype", f"must be one of {', '.join(k for k in _PLAIN if k)}", name)
        return Dtype.BF16
    return _PLAIN[plain]


# --------------------------------------------------------------------------------------------
# From a quantisation to rules


def _rules(section: Mapping[str, Any]) -> list[_Rule]:
    method = _word(section.get("quant_method")).lower()
    left_out = _Rule(_patterns(section, "modules_to_not_convert", "ignored_layers"), None)
    match method:
        case "compressed-tensors":
            return _compressed(section)
        case "fp8" | "fbgemm_fp8":
            return [left_out, _all(Dtype.FP8_BLOCK if section.get("weight_block_size") else Dtype.FP8)]
        case "awq" | "awq_marlin" | "gptq" | "gptq_marlin" | "auto-round" | "intel/auto-round":
            return [left_out, _all(_integer(section.get("bits", section.get("w_bit"))))]
        case "mxfp4":
            return [left_out, _all(Dtype.MXFP4)]
        case "quark":
            return _quark(section)
        case "modelopt" | "modelopt_fp4" | "modelopt_mixed" | "":
            return _modelopt(section)
        case "bitsandbytes":
            raise _UnknownFormat("bitsandbytes quantises while loading; give the unquantised configuration")
    raise _UnknownFormat


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _all(dtype: Dtype | None) -> _Rule:
    return _Rule(ALL, dtype)


def _integer(bits: object) -> Dtype:
    if type(bits) is int and bits in (4, 8):
        return Dtype.INT4 if bits == 4 else Dtype.INT8
    raise _UnknownFormat("bits must be 4 or 8")


def _names(section: Mapping[str, Any], *keys: str) -> list[str]:
    """Names of modules under the first key that is given."""
    for key in keys:
        value = section.get(key)
        if value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise _UnknownFormat(f"{key} must be a list of names")
        return value
    return []


def _patterns(section: Mapping[str, Any], *keys: str) -> Patterns:
    return _of_names(_names(section, *keys))


def _of_names(names: Sequence[str]) -> Patterns:
    try:
        return Patterns(names)
    except ValueError as error:
        raise _UnknownFormat(str(error)) from None


def _compressed(section: Mapping[str, Any]) -> list[_Rule]:
    groups = section.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise _UnknownFormat("config_groups is missing")
    rules = [_Rule(_patterns(section, "ignore"), None)]
    for group in groups.values():
        if not isinstance(group, dict):
            raise _UnknownFormat("config_groups must hold mappings")
        targets = _patterns(group, "targets") if group.get("targets") else ALL
        rules.append(_Rule(targets, _group(group.get("weights"))))
    if len({rule.dtype for rule in rules[1:] if rule.patterns.everything}) > 1:
        raise _UnknownFormat("its groups differ in format and name no modules")
    return rules


def _group(weights: object) -> Dtype:
    if isinstance(weights, dict):
        match weights.get("num_bits"), weights.get("type"):
            case 8, "float":
                return Dtype.FP8_BLOCK if weights.get("strategy") == "block" else Dtype.FP8
            case 8, "int":
                return Dtype.INT8
            case 4, "float":
                return Dtype.MXFP4 if weights.get("group_size") == 32 else Dtype.NVFP4
            case 4, "int":
                return Dtype.INT4
    raise _UnknownFormat("weights of a group must have 4 or 8 bits")


def _modelopt(section: Mapping[str, Any]) -> list[_Rule]:
    algorithm = _word(section.get("quant_algo")).upper()
    left_out = _Rule(_patterns(section, "exclude_modules", "ignore"), None)
    if algorithm != "MIXED_PRECISION":
        if algorithm not in _MODELOPT:
            raise _UnknownFormat
        return [left_out, _all(_MODELOPT[algorithm])]
    layers = section.get("quantized_layers")
    if not isinstance(layers, dict):
        raise _UnknownFormat("MIXED_PRECISION needs quantized_layers")
    names: dict[Dtype, list[str]] = {}
    for name, layer in layers.items():
        said = _word(layer.get("quant_algo")).upper() if isinstance(layer, dict) else ""
        if said not in _MODELOPT:
            raise _UnknownFormat("quantized_layers has a quant_algo that is not known")
        names.setdefault(_MODELOPT[said], []).append(name)
    return [left_out, *(_Rule(_of_names(found), dtype) for dtype, found in names.items())]


def _quark(section: Mapping[str, Any]) -> list[_Rule]:
    whole = section.get("global_quant_config")
    weight = whole.get("weight") if isinstance(whole, dict) else None
    said = _word(weight.get("dtype")) if isinstance(weight, dict) else ""
    if said not in _QUARK:
        raise _UnknownFormat("global_quant_config has no weight dtype that is known")
    return [_Rule(_patterns(section, "exclude"), None), _all(_QUARK[said])]


def _kv_cache(section: Mapping[str, Any]) -> Dtype | None:
    """Format of the KV cache that the checkpoint asks for."""
    said = section.get("kv_cache_scheme")
    if said is None:
        said = section.get("kv_cache_quant_algo")
    if said is None:
        return None
    if isinstance(said, dict):
        kind = {(8, "float"): "FP8", (8, "int"): "INT8", (4, "float"): "NVFP4"}
        bits, word = said.get("num_bits"), said.get("type")
        said = kind.get((bits, word)) if type(bits) is int and isinstance(word, str) else None
    if not isinstance(said, str) or said.upper() not in _KV_CACHES:
        raise _UnknownFormat("the format of its KV cache is not known")
    return _KV_CACHES[said.upper()]


# --------------------------------------------------------------------------------------------
# Which format most weights of a kind have


def _majority(
    rules: Sequence[_Rule], plain: Dtype, runs: Sequence[LayerRun], hidden: int
) -> dict[Kind, Dtype]:
    """Format of each kind of module that the model has."""
    votes: dict[Kind, Counter[Dtype]] = {}
    at = 0
    for run in runs:
        modules = list(_modules(run.layer, hidden))
        for index in range(at, at + run.count):
            for kind, names, size in modules:
                full = [f"layers.{index}.{name}" for name in names]
                votes.setdefault(kind, Counter())[_dtype_of(full, rules) or plain] += size
        at += run.count
    return {kind: counter.most_common(1)[0][0] for kind, counter in votes.items()}


def _dtype_of(names: Sequence[str], rules: Sequence[_Rule]) -> Dtype | None:
    for rule in rules:
        if any(rule.patterns.matches(name) for name in names):
            return rule.dtype
    return None


_Module = tuple[Kind, Sequence[str], int]
"""Kind of a module, its names within a layer, and its weights."""


def _modules(layer: Layer, hidden: int) -> Iterator[_Module]:
    """Matrices of one layer; what has several names in different model types is listed under each."""
    mixer = layer.attention
    if isinstance(mixer, Attention):
        yield _projections(("q_proj",), hidden * mixer.heads * mixer.head_dim)
        yield _projections(("k_proj", "v_proj"), 2 * hidden * mixer.kv_heads * mixer.head_dim)
        yield _projections(("o_proj",), hidden * mixer.heads * mixer.head_dim)
    elif isinstance(mixer, LatentAttention):
        yield from _latent_modules(mixer, hidden)
    elif isinstance(mixer, StateMixer):
        yield _projections(("in_proj", "in_proj_qkvz", "in_proj_qkv", "q_proj"), hidden * mixer.input_width)
        yield _projections(("out_proj", "o_proj"), hidden * mixer.output_width)
    block = layer.feed_forward
    if isinstance(block, MixtureOfExperts):
        width = block.latent or hidden
        names = [
            name
            for place in ("mlp", "block_sparse_moe", "mixer", "feed_forward", "ffn", "moe")
            for name in (f"{place}.experts", f"{place}.experts.0.down_proj", f"{place}.experts.0.w2")
        ]
        yield Kind.EXPERTS, names, block.experts * block.matrices * width * block.intermediate
        if block.shared_intermediate:
            shared = [
                f"{place}.{name}.down_proj"
                for place in ("mlp", "mixer", "feed_forward", "ffn", "block_sparse_moe")
                for name in ("shared_experts", "shared_expert", "shared_mlp")
            ]
            yield Kind.DENSE, shared, block.matrices * hidden * block.shared_intermediate
    elif block is not None:
        names = [f"{place}.down_proj" for place in ("mlp", "mixer", "feed_forward", "ffn")]
        yield Kind.DENSE, names, block.matrices * hidden * block.intermediate


def _latent_modules(mixer: LatentAttention, hidden: int) -> Iterator[_Module]:
    heads, rank = mixer.heads, mixer.query_rank
    if rank is None:
        yield _projections(("q_proj",), hidden * heads * mixer.query_dim)
    else:
        yield _projections(("q_a_proj",), hidden * rank)
        yield _projections(("q_b_proj",), rank * heads * mixer.query_dim)
    yield _projections(("kv_a_proj_with_mqa",), hidden * (mixer.kv_rank + mixer.rope_dim))
    yield _projections(("kv_b_proj",), mixer.kv_rank * heads * (mixer.nope_dim + mixer.value_dim))
    yield _projections(("o_proj",), hidden * heads * mixer.value_dim)


def _projections(names: Sequence[str], size: int) -> _Module:
    places = ("self_attn", "linear_attn", "attn", "attention", "mixer")
    return Kind.ATTENTION, [f"{place}.{name}" for place in places for name in names], size
