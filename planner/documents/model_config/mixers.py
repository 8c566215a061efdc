"""The mixer of each layer: attention of one kind or another, or a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.documents.model_config.families import Family, Hybrid, Window
from planner.documents.model_config.reader import MAX_NUMBER, Reader
from planner.specs import Attention, Dtype, Indexer, LatentAttention, Mixer, StateMixer

FULL, SLIDING, CHUNKED, LINEAR = (
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "linear_attention",
)
SPARSE = "deepseek_sparse_attention"  # full attention of the families with an indexer
_STATE_DTYPES = {
    "float32": Dtype.FP32,
    "bfloat16": Dtype.BF16,
    "float16": Dtype.FP16,
    "auto": Dtype.FP32,
    None: Dtype.FP32,
}


def mixers(reader: Reader, family: Family, hidden: int, kinds: list[str]) -> list[Mixer] | None:
    """One mixer per layer from the `kinds` of the layers; None, with problems, where a number is missing."""
    full: Mixer | None = (
        _latent(reader, family) if family.latent else grouped_attention(reader, family, hidden)
    )
    by_kind: dict[str, Mixer | None] = {FULL: full}
    for kind in dict.fromkeys(kinds):
        if kind in (SLIDING, CHUNKED):
            by_kind[kind] = _windowed(reader, full, kind)
        elif kind == LINEAR:
            by_kind[kind] = state_mixer(reader, family)
    if FULL in kinds and isinstance(full, Attention):
        by_kind[FULL] = _global_shape(reader, full)
    found = [by_kind[kind] for kind in kinds]
    known = [mixer for mixer in found if mixer is not None]
    if len(known) < len(kinds):
        return None
    return _with_indexers(reader, _with_shared_caches(reader, known))


# --------------------------------------------------------------------------------------------
# Attention


def grouped_attention(reader: Reader, family: Family, hidden: int) -> Attention | None:
    """Attention with keys and values per head or group of heads."""
    heads = reader.need("num_attention_heads")
    kv_heads = _kv_heads(reader, heads)
    head_dim = reader.whole("head_dim") or reader.defaults.get("head_dim")
    if heads is None or kv_heads is None:
        return None
    if heads % kv_heads:
        reader.problem("num_key_value_heads", f"must divide the {heads} attention heads", kv_heads)
        return None
    if head_dim is None:
        if hidden % heads:
            reader.problem("head_dim", f"is missing, and {heads} heads do not divide hidden_size {hidden}")
            return None
        head_dim = hidden // heads or 1  # hidden is 0 where it is missing
    value_dim = reader.whole("v_head_dim")
    if value_dim is not None and value_dim != head_dim:
        reader.problem("v_head_dim", f"differs from head_dim {head_dim}, which this version does not model")
    bias = reader.flag(family.bias_keys, family.attention_bias)
    normed = reader.flag((family.qk_norm_key,), family.qk_norm) if family.qk_norm_key else family.qk_norm
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        bias=bias,
        output_bias=bias and family.output_bias,
        qk_norm=normed,
        spanning_norm=normed and family.spanning_norm,
        gated=family.attention_gate and reader.flag(("attn_output_gate",), True),
        sinks=family.sinks,
    )


def _kv_heads(reader: Reader, heads: int | None) -> int | None:
    """Heads of keys and values: one with ``multi_query``, else what is given, else as many as queries."""
    if reader.flag(("multi_query",), False) and not reader.flag(("new_decoder_architecture",), False):
        return 1
    if reader.given("num_key_value_heads") is not None:
        return reader.whole("num_key_value_heads")
    return reader.defaults.get("num_key_value_heads", heads)


def _windowed(reader: Reader, full: Mixer | None, kind: str) -> Mixer | None:
    """`full` bounded by the sliding window or by the chunk."""
    window = reader.need("attention_chunk_size" if kind == CHUNKED else "sliding_window")
    if window is None or full is None:
        return None
    if not isinstance(full, Attention):
        reader.problem("layer_types", "has windows on latent attention, which this version does not model")
        return None
    return replace(full, window=window)


def _global_shape(reader: Reader, full: Attention) -> Attention | None:
    """Layers of full attention where they have heads of their own (Gemma 4)."""
    head_dim = reader.whole("global_head_dim") or full.head_dim
    if not reader.flag(("attention_k_eq_v",), False):
        return replace(full, head_dim=head_dim)
    kv_heads = reader.whole("num_global_key_value_heads") or full.kv_heads
    if full.heads % kv_heads:
        reader.problem(
            "num_global_key_value_heads", f"must divide the {full.heads} attention heads", kv_heads
        )
        return None
    return replace(full, head_dim=head_dim, kv_heads=kv_heads, values_are_keys=True)


def _latent(reader: Reader, family: Family) -> LatentAttention | None:
    """Latent attention; ``head_dim`` and the number of KV heads mean nothing here."""
    numbers = reader.needed(
        "num_attention_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"
    )
    query_rank = reader.whole("q_lora_rank")
    indexer = _indexer(reader) if family.indexer else None
    if reader.flag(family.bias_keys, False):
        reader.problem("attention_bias", "on latent attention is not modelled by this version")
    if numbers is None or (family.indexer and indexer is None):
        return None
    heads, rank, nope, rope, value = numbers
    return LatentAttention(
        heads=heads,
        query_rank=query_rank,
        kv_rank=rank,
        nope_dim=nope,
        rope_dim=rope,
        value_dim=value,
        indexer=indexer,
    )


def _indexer(reader: Reader) -> Indexer | None:
    numbers = reader.needed("index_n_heads", "index_head_dim", "index_topk")
    return None if numbers is None else Indexer(heads=numbers[0], head_dim=numbers[1], top_k=numbers[2])


def _with_indexers(reader: Reader, found: list[Mixer]) -> list[Mixer]:
    """Take the indexer from layers that reuse the choice of an earlier one."""
    kinds = reader.entries("indexer_types", str, len(found))
    if kinds is None:
        return found
    if set(kinds) - {"full", "shared"}:
        reader.problem("indexer_types", 'must be "full" or "shared" for every layer')
    return [
        replace(m, indexer=Indexer(heads=0, head_dim=0, top_k=m.indexer.top_k))
        if kind == "shared" and isinstance(m, LatentAttention) and m.indexer is not None
        else m
        for kind, m in zip(kinds, found, strict=True)
    ]


def _with_shared_caches(reader: Reader, found: list[Mixer]) -> list[Mixer]:
    """Mark the layers that read the cache of an earlier layer."""
    share = 1
    if reader.flag(("use_cla",), False):
        share = reader.need("cla_share_factor") or 1
    last = reader.whole("num_kv_shared_layers", 0) or 0
    if share == 1 and not last:
        return found
    if last >= len(found):
        reader.problem("num_kv_shared_layers", f"must be less than the {len(found)} layers", last)
    owned = [i % share == 0 and i < len(found) - last for i in range(len(found))]
    return [
        replace(m, owns_kv=False) if isinstance(m, Attention) and not own else m
        for own, m in zip(owned, found, strict=True)
    ]


# --------------------------------------------------------------------------------------------
# States


def state_mixer(reader: Reader, family: Family) -> StateMixer | None:
    """The family's layer with a state."""
    if family.hybrid is None:
        reader.problem("layer_types", "has layers of linear attention, unknown for this model_type")
        return None
    mixer = _STATES[family.hybrid](reader)
    if mixer is not None and mixer.state_elements > MAX_NUMBER:
        reader.problem("num_hidden_layers", "belongs to layers whose state is too large")
        return None
    return mixer


def _state_dtype(reader: Reader) -> Dtype:
    key = "mamba_ssm_cache_dtype" if reader.get("mamba_ssm_cache_dtype") is not None else "mamba_ssm_dtype"
    name = reader.get(key)
    if not isinstance(name, str | None) or name not in _STATE_DTYPES:
        reader.problem(key, f"must be one of {', '.join(k for k in _STATE_DTYPES if k)}", name)
        return Dtype.FP32
    return _STATE_DTYPES[name]


def _gated_delta(reader: Reader) -> StateMixer | None:
    numbers = reader.needed(
        "linear_num_value_heads",
        "linear_num_key_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )
    if numbers is None:
        return None
    heads, groups, key_dim, value_dim, kernel = numbers
    if heads % groups:
        reader.problem("linear_num_key_heads", f"must divide the {heads} value heads", groups)
    keys, values = groups * key_dim, heads * value_dim
    return StateMixer(
        kind=Hybrid.GATED_DELTA.value,
        heads=heads,
        groups=groups,
        input_width=2 * keys + 2 * values + 2 * heads,  # queries, keys, values, output gate; decay and step
        output_width=values,
        conv_channels=2 * keys + values,
        conv_kernel=kernel,
        state_elements=heads * key_dim * value_dim,
        vector_parameters=2 * heads + value_dim,
        state_dtype=_state_dtype(reader),
    )


def _mamba2(reader: Reader) -> StateMixer | None:
    numbers = reader.needed("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    if numbers is None:
        return None
    heads, head_dim, groups, state, kernel = numbers
    if heads % groups:
        reader.problem("n_groups", f"must divide the {heads} Mamba heads", groups)
    inner, channels = heads * head_dim, heads * head_dim + 2 * groups * state
    return StateMixer(
        kind=Hybrid.MAMBA2.value,
        heads=heads,
        groups=groups,
        input_width=inner + channels + heads,
        output_width=inner,
        conv_channels=channels,
        conv_kernel=kernel,
        state_elements=inner * state,
        vector_parameters=3 * heads + inner + (channels if reader.flag(("use_conv_bias",), False) else 0),
        state_dtype=_state_dtype(reader),
    )


def _kimi_delta(reader: Reader) -> StateMixer | None:
    section = reader.get("linear_attn_config")
    if not isinstance(section, dict):
        reader.problem("linear_attn_config", "must be a mapping of keys", section)
        return None
    inner = Reader("linear_attn_config", section, section)
    numbers = inner.needed("num_heads", "head_dim", "short_conv_kernel_size")
    if inner.flag(("use_full_rank_gate",), False):
        inner.problem("use_full_rank_gate", "is not modelled by this version")
    reader.problems += inner.problems
    if numbers is None:
        return None
    heads, head_dim, kernel = numbers
    width = heads * head_dim
    return StateMixer(
        kind=Hybrid.KIMI_DELTA.value,
        heads=heads,
        groups=heads,
        input_width=3 * width + 2 * head_dim + heads,  # queries, keys, values; two gates of low rank; step
        output_width=width,
        conv_channels=3 * width,
        conv_kernel=kernel,
        state_elements=heads * head_dim * head_dim,
        vector_parameters=2 * head_dim * width + width + heads + head_dim,
    )


def _lightning(reader: Reader) -> StateMixer | None:
    numbers = reader.needed("num_attention_heads", "head_dim")
    if numbers is None:
        return None
    heads, head_dim = numbers
    width = heads * head_dim
    return StateMixer(
        kind=Hybrid.LIGHTNING.value,
        heads=heads,
        groups=heads,
        input_width=4 * width,  # queries, keys, values, output gate
        output_width=width,
        conv_channels=0,
        conv_kernel=1,
        state_elements=heads * head_dim * head_dim,
        vector_parameters=width,
    )


_STATES: dict[Hybrid, Callable[[Reader], StateMixer | None]] = {
    Hybrid.GATED_DELTA: _gated_delta,
    Hybrid.MAMBA2: _mamba2,
    Hybrid.KIMI_DELTA: _kimi_delta,
    Hybrid.LIGHTNING: _lightning,
}


# --------------------------------------------------------------------------------------------
# Which kind each layer is


def layer_kinds(reader: Reader, family: Family, layers: int, context: int | None) -> list[str] | None:
    """Kind of each layer's attention; None, with problems, where the configuration does not say."""
    if family.hybrid is not None:
        return _hybrid_kinds(reader, family, layers)
    listed = reader.entries("layer_types", str, layers)
    if listed is None:
        return [] if reader.problems else _windows(reader, family, layers, context)
    if family.indexer:
        listed = [FULL if kind == SPARSE else kind for kind in listed]
    unknown = sorted(set(listed) - {FULL, SLIDING, CHUNKED})
    if unknown:
        reader.problem("layer_types", "has a kind of layer that this version does not know", unknown[0])
        return None
    return [FULL if _is_no_window(reader, kind, context) else kind for kind in listed]


def _is_no_window(reader: Reader, kind: str, context: int | None) -> bool:
    """Whether a window is as long as the context, so that it bounds nothing."""
    key = "attention_chunk_size" if kind == CHUNKED else "sliding_window"
    window = reader.get(key) if kind != FULL else None
    return isinstance(window, int) and context is not None and window >= context


def _windows(reader: Reader, family: Family, layers: int, context: int | None) -> list[str] | None:
    """Kinds from a window and the pattern in which layers have it."""
    kind = CHUNKED if reader.get("attention_chunk_size") is not None else SLIDING
    key = "attention_chunk_size" if kind == CHUNKED else "sliding_window"
    wanted = reader.flag(("use_sliding_window",), family.window is Window.GIVEN)
    if reader.get(key) is None or not wanted or _is_no_window(reader, kind, context):
        return [FULL] * layers
    rotary = reader.entries("no_rope_layers", int, layers) if reader.get("no_rope_layers") else None
    if rotary is not None:  # 1: with rotary positions and a window
        return [kind if flag else FULL for flag in rotary]
    period = reader.whole(family.pattern_key) or family.pattern
    if period:
        return [FULL if (i + 1) % period == 0 else kind for i in range(layers)]
    first = (reader.whole("max_window_layers", 0) or 0) if family.window is Window.FLAG else 0
    return [FULL if i < first else kind for i in range(layers)]


def _hybrid_kinds(reader: Reader, family: Family, layers: int) -> list[str] | None:
    if family.hybrid is Hybrid.KIMI_DELTA:
        return _numbered_kinds(reader, layers)
    listed = reader.entries("layer_types", str, layers)
    flags = reader.entries("attn_type_list", int, layers)
    interval = reader.whole("full_attention_interval")
    if listed is not None:
        unknown = sorted(set(listed) - {FULL, LINEAR})
        if unknown:
            reader.problem("layer_types", "has a kind of layer that this version does not know", unknown[0])
        return None if unknown else listed
    if flags is not None:
        return [FULL if flag else LINEAR for flag in flags]
    if interval is not None:
        return [FULL if (i + 1) % interval == 0 else LINEAR for i in range(layers)]
    if not reader.problems:
        reader.problem("layer_types", "is missing, and so is full_attention_interval")
    return None


def _numbered_kinds(reader: Reader, layers: int) -> list[str] | None:
    """Kimi's lists of layers, counted from 1."""
    section = reader.get("linear_attn_config")
    numbers = section.get("full_attn_layers") if isinstance(section, dict) else None
    if not isinstance(numbers, list) or not all(type(n) is int for n in numbers):
        reader.problem("linear_attn_config", "must hold full_attn_layers, a list of whole numbers")
        return None
    full = set(numbers)
    return [FULL if i + 1 in full else LINEAR for i in range(layers)]
