"""All layers of a model in order, from mixers and feed-forward blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from planner.documents.model_config.blocks import blocks, dense_block, expert_block
from planner.documents.model_config.families import Family, Hybrid
from planner.documents.model_config.mixers import FULL, grouped_attention, layer_kinds, mixers, state_mixer
from planner.documents.model_config.reader import MAX_LAYERS, NAMES, Reader
from planner.specs import Attention, FeedForward, Layer, LayerRun, MixtureOfExperts

_MAMBA_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
_PARALLEL_NORMS = 7  # Gemma 4: a dense block and experts side by side have norms of their own
_WIDTH_MULTIPLE = 256  # DeciLM rounds the width of a block up to this


def layer_runs(reader: Reader, family: Family, hidden: int, context: int | None) -> tuple[LayerRun, ...]:
    """Layers in order, equal neighbours together; empty, with problems, where a number is missing."""
    if family.hybrid is Hybrid.MAMBA2:
        layers = _parts(reader, family, hidden)
    elif isinstance(reader.get("block_configs"), list):
        layers = _searched(reader, family, hidden)
    else:
        layers = _regular(reader, family, hidden, context)
    return tuple(LayerRun(count=len(list(run)), layer=layer) for layer, run in groupby(layers or ()))


def _count(reader: Reader) -> int | None:
    count = reader.need("num_hidden_layers")
    if count is not None and count > MAX_LAYERS:
        reader.problem(NAMES["num_hidden_layers"][0], f"must not exceed {MAX_LAYERS}", count)
        return None
    return count


def _regular(reader: Reader, family: Family, hidden: int, context: int | None) -> list[Layer] | None:
    """Every layer has a mixer and a block."""
    count = _count(reader)
    # Without the number of layers, one of each still tells what else is missing.
    kinds = layer_kinds(reader, family, count, context) if count is not None else [FULL]
    found_mixers = mixers(reader, family, hidden, kinds or [FULL] * (count or 1))
    found_blocks = blocks(reader, family, hidden, count or 1)
    if count is None or not kinds or found_mixers is None or found_blocks is None:
        return None
    return [_layer(mixer, block, reader) for mixer, block in zip(found_mixers, found_blocks, strict=True)]


def _layer(mixer: Any, block: FeedForward | MixtureOfExperts, reader: Reader) -> Layer:
    beside = isinstance(block, MixtureOfExperts) and reader.get("enable_moe_block") is True
    double = reader.get("use_double_wide_mlp") is True and isinstance(mixer, Attention) and not mixer.owns_kv
    if double and isinstance(block, FeedForward):
        block = replace(block, intermediate=2 * block.intermediate)
    return Layer(attention=mixer, feed_forward=block, norms=_PARALLEL_NORMS if beside else None)


# --------------------------------------------------------------------------------------------
# Layers that have one part only


def _parts(reader: Reader, family: Family, hidden: int) -> list[Layer] | None:
    """Mamba hybrids: each layer is a mixer or a block (Nemotron-H)."""
    kinds = _part_names(reader)
    if kinds is None:
        return None
    known = dict.fromkeys(kinds)
    experts = family.experts
    made: dict[str, Layer | None] = {}
    if "mamba" in known and (state := state_mixer(reader, family)) is not None:
        made["mamba"] = Layer(attention=state, feed_forward=None)
    if "attention" in known and (mixer := grouped_attention(reader, family, hidden)) is not None:
        made["attention"] = Layer(attention=mixer, feed_forward=None)
    if "mlp" in known and (dense := dense_block(reader, family, hidden, "intermediate_size")) is not None:
        made["mlp"] = Layer(attention=None, feed_forward=dense)
    if "moe" in known and experts and (routed := expert_block(reader, family, experts)) is not None:
        made["moe"] = Layer(attention=None, feed_forward=routed)
    layers = [layer for kind in kinds if (layer := made.get(kind)) is not None]
    return layers if len(layers) == len(kinds) else None


def _part_names(reader: Reader) -> list[str] | None:
    pattern = reader.get("hybrid_override_pattern")
    count = _count(reader) if reader.given("num_hidden_layers") is not None else None
    if isinstance(pattern, str):
        names = [_MAMBA_LETTERS.get(letter, letter) for letter in pattern[: MAX_LAYERS + 1]]
        key = "hybrid_override_pattern"
    else:
        key = "layers_block_type"
        listed = reader.entries(key, str)
        if listed is None:
            if reader.get(key) is None:
                rule = "is missing, and so is hybrid_override_pattern: they say which layer is of which kind"
                reader.problem(key, rule)
            return None
        names = listed
    unknown = sorted(set(names) - set(_MAMBA_LETTERS.values()))
    if unknown:
        reader.problem(key, "has a kind of layer that this version does not know", unknown[0])
    elif not 0 < len(names) <= MAX_LAYERS or len(names) != (count or len(names)):
        reader.problem(key, f"must have one entry for each of the {count or MAX_LAYERS} layers at most")
    else:
        return names
    return None


# --------------------------------------------------------------------------------------------
# Layers that a search made different (DeciLM, Nemotron Super)


def _searched(reader: Reader, family: Family, hidden: int) -> list[Layer] | None:
    configs: Sequence[Any] = reader.get("block_configs")
    heads = reader.need("num_attention_heads")
    if not 0 < len(configs) <= MAX_LAYERS or any(not isinstance(c, dict) for c in configs):
        reader.problem("block_configs", f"must be a list of 1 to {MAX_LAYERS} mappings")
    if reader.problems or heads is None:
        return None
    head_dim = reader.whole("head_dim") or max(hidden // heads, 1)
    layers = list(_searched_layers(reader, family, hidden, heads, head_dim))
    return None if reader.problems else layers


def _searched_layers(
    reader: Reader, family: Family, hidden: int, heads: int, head_dim: int
) -> Iterator[Layer]:
    for config in reader.get("block_configs"):
        attention, block = _section(reader, config, "attention"), _section(reader, config, "ffn")
        mixer = dense = None
        if attention.get("no_op") is not True:
            group = attention.get("n_heads_in_group")
            if type(group) is not int or group < 1 or heads % group or attention.get("replace_with_linear"):
                reader.problem("block_configs", "has attention whose n_heads_in_group does not fit")
                return
            mixer = Attention(
                heads=heads, kv_heads=heads // group, head_dim=head_dim, window=_window(reader, attention)
            )
        if block.get("no_op") is not True:
            width = _searched_width(block, hidden)
            if width is None:
                reader.problem("block_configs", "has a block without ffn_mult, or a linear one")
                return
            dense = FeedForward(intermediate=width, gated=family.gated)
        yield Layer(attention=mixer, feed_forward=dense, norms=(mixer is not None) + (dense is not None))


def _searched_width(block: dict[str, Any], hidden: int) -> int | None:
    factor: Any = block.get("ffn_mult")
    usable = type(factor) in (int, float) and math.isfinite(factor) and 0 < factor < MAX_LAYERS
    if not usable or block.get("replace_with_linear"):
        return None
    return max(math.ceil(int(2 * factor * hidden / 3) / _WIDTH_MULTIPLE), 1) * _WIDTH_MULTIPLE


def _section(reader: Reader, config: dict[str, Any], key: str) -> dict[str, Any]:
    section = config.get(key)
    if isinstance(section, dict):
        return section
    reader.problem("block_configs", f"has an entry without {key}")
    return {"no_op": True}


def _window(reader: Reader, attention: dict[str, Any]) -> int | None:
    window = attention.get("window_length")
    if window is not None and (type(window) is not int or window < 1):
        reader.problem("block_configs", "has a window_length that is no whole number > 0")
        return None
    return window
