"""What a sequence keeps in GPU memory: keys and values, latents, windows and states."""

from __future__ import annotations

import numpy as np

from planner.arrays import FloatArray, Numbers
from planner.specs import Attention, Dtype, Indexer, LatentAttention, Layer, LayerRun, Model, StateMixer
from planner.transformer.weights import SIXTEEN_BIT, stages

INDEX_SCALE_BLOCK = 128  # elements of an indexer key that share one fp32 scale
INDEX_SCALE_BYTES = Dtype.FP32.bytes  # [B]


def kv_heads_per_rank(attention: Attention, tp: Numbers) -> Numbers:
    """KV heads that one tensor-parallel rank holds; replicated when there are fewer than ranks."""
    return (
        np.maximum(1, attention.kv_heads / tp) if not isinstance(tp, int) else max(1, attention.kv_heads / tp)
    )


def index_bytes_per_token(indexer: Indexer) -> float:
    """Key that a sparse-attention indexer keeps of one token: 8 bits and block scales. [B]"""
    blocks = -(-indexer.head_dim // INDEX_SCALE_BLOCK)
    return indexer.head_dim * Dtype.FP8.bytes + blocks * INDEX_SCALE_BYTES


def layer_kv_bytes_per_token(layer: Layer, dtype: Dtype, tp: int = 1) -> float:
    """What one layer keeps of one token on one rank, windows and states apart. [B]"""
    mixer = layer.attention
    if isinstance(mixer, LatentAttention):
        latent = (mixer.kv_rank + mixer.rope_dim) * dtype.bytes
        return latent + (index_bytes_per_token(mixer.indexer) if mixer.indexer else 0.0)
    if isinstance(mixer, Attention) and mixer.owns_kv:
        return float(2 * kv_heads_per_rank(mixer, tp) * mixer.head_dim * dtype.bytes)
    return 0.0


def _window(layer: Layer) -> int | None:
    return layer.attention.window if isinstance(layer.attention, Attention) else None


def state_bytes(mixer: StateMixer, tp: int = 1) -> float:
    """Recurrent state and convolution window of one sequence on one rank. [B]"""
    convolution = mixer.conv_channels * max(mixer.conv_kernel - 1, 0) * SIXTEEN_BIT
    return (mixer.state_elements * mixer.state_dtype.bytes + convolution) / tp


def layer_kv_bytes(layer: Layer, dtype: Dtype, context: Numbers, tp: int = 1) -> Numbers:
    """What one layer keeps of a sequence of `context` tokens on one rank. [B]"""
    if isinstance(layer.attention, StateMixer):
        return state_bytes(layer.attention, tp) + 0.0 * context
    window = _window(layer)
    kept = context if window is None else np.minimum(context, window)
    return layer_kv_bytes_per_token(layer, dtype, tp) * kept


def kv_bytes(model: Model, dtype: Dtype, context: Numbers) -> FloatArray:
    """What a sequence of `context` tokens keeps in all layers, each head once. [B]"""
    return np.asarray(sum(run.count * layer_kv_bytes(run.layer, dtype, context) for run in model.kinds))


def _grows(model: Model) -> list[LayerRun]:
    """Layers whose cache grows with the context: those of full attention, or, where every layer has a
    window, all of them, until their windows are full."""
    caching = [run for run in model.kinds if layer_kv_bytes_per_token(run.layer, Dtype.BF16) > 0]
    return [run for run in caching if _window(run.layer) is None] or caching


def kv_bytes_per_token(model: Model, dtype: Dtype) -> float:
    """What each further token adds once the windows of some layers are full, each head once. [B]"""
    return sum(run.count * layer_kv_bytes_per_token(run.layer, dtype) for run in _grows(model))


def kv_bytes_per_sequence(model: Model, dtype: Dtype) -> float:
    """What a long sequence keeps beside its growing layers: full windows and recurrent states. [B]"""
    total = 0.0
    growing = _grows(model)
    for run in model.kinds:
        if run in growing:
            continue
        window = _window(run.layer)
        if isinstance(run.layer.attention, StateMixer):
            total += run.count * state_bytes(run.layer.attention)
        elif window is not None:
            total += run.count * window * layer_kv_bytes_per_token(run.layer, dtype)
    return total


def layer_kv_read_bytes(layer: Layer, dtype: Dtype, context: Numbers, tp: int = 1) -> Numbers:
    """What one step reads of what a layer keeps of `context` tokens on one rank; states twice. [B]"""
    mixer = layer.attention
    if isinstance(mixer, StateMixer):
        return 2.0 * state_bytes(mixer, tp)
    per_token = layer_kv_bytes_per_token(layer, dtype, tp)
    if isinstance(mixer, LatentAttention) and mixer.indexer is not None:
        index = index_bytes_per_token(mixer.indexer)
        return index * context + (per_token - index) * seen_context(layer, context)
    return per_token * seen_context(layer, context)


def kv_read_bytes(model: Model, dtype: Dtype, context: Numbers) -> Numbers:
    """What one decode step reads of a sequence of `context` tokens, each head once; states twice. [B]"""
    total: Numbers = 0.0
    for run in model.kinds:
        total = total + run.count * layer_kv_read_bytes(run.layer, dtype, context)
    return total


def seen_context(layer: Layer, context: Numbers) -> Numbers:
    """Tokens that attention of this layer reads at `context`: within its window, or its indexer's top k."""
    mixer = layer.attention
    if isinstance(mixer, Attention) and mixer.window is not None:
        return np.minimum(context, mixer.window)
    if isinstance(mixer, LatentAttention) and mixer.indexer is not None:
        return np.minimum(context, mixer.indexer.top_k)
    return context


def equivalent_tokens(model: Model, dtype: Dtype, context: Numbers) -> FloatArray:
    """Tokens of full attention that take as much memory as a sequence of `context` tokens does. [tok]

    Equal to `context` for a model whose every layer keeps every token. A model without any such layer
    counts in bytes.
    """
    unit = kv_bytes_per_token(model, dtype)
    return kv_bytes(model, dtype, context) / (unit or 1.0)


def kv_copies(model: Model, tp: int) -> float:
    """Times that the bytes of :func:`kv_bytes_per_token` are held by `tp` ranks together. [1]

    KV heads are repeated beyond their number, a latent on every rank.
    """
    whole = held = 0.0
    for run in model.kinds:
        whole += run.count * layer_kv_bytes_per_token(run.layer, Dtype.BF16)
        held += run.count * layer_kv_bytes_per_token(run.layer, Dtype.BF16, tp) * tp
    return held / whole if whole else 1.0


def stage_kv_bytes_per_token(model: Model, dtype: Dtype, tp: int, pp: int) -> tuple[float, ...]:
    """As :func:`kv_bytes_per_token`, on one GPU of each pipeline stage. [B]"""
    return tuple(
        sum(
            count * layer_kv_bytes_per_token(layer, dtype, tp)
            for count, layer in layers
            if _window(layer) is None
        )
        for layers in stages(model, pp)
    )


def stage_kv_bytes(model: Model, dtype: Dtype, tp: int, pp: int, context: float) -> tuple[float, ...]:
    """What a sequence of `context` tokens keeps on one GPU of each pipeline stage. [B]"""
    return tuple(
        float(sum(count * layer_kv_bytes(layer, dtype, context, tp) for count, layer in layers))
        for layers in stages(model, pp)
    )
