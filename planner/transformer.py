"""What a model costs in parameters, bytes and FLOP, sharded over a replica's GPUs.

Everything here is arithmetic on shapes: no GPU, no time. `tp` is the tensor-parallel size; KV heads
per rank are ``max(1, kv_heads / tp)``, so bytes stop shrinking beyond ``tp == kv_heads``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.arrays import Numbers
from planner.specs import Attention, Dtype, FeedForward, Layer, Model, Precision

VOCABULARY_PADDING = 64  # rows; engines pad the vocabulary so that shards are equal
SIXTEEN_BIT = Dtype.BF16.bytes  # norms, embeddings and the head stay in 16 bits [B]


# --------------------------------------------------------------------------------------------
# Parameters and weight bytes


def _attention_matrices(a: Attention, hidden: int, kv_heads: Numbers, share: Numbers) -> Numbers:
    """Weights of the four projections on one rank that holds ``1/share`` of the query heads."""
    return hidden * a.head_dim * (2 * a.heads / share + 2 * kv_heads)


def _attention_vectors(a: Attention, kv_heads: Numbers, share: Numbers) -> Numbers:
    bias = a.head_dim * (a.heads / share + 2 * kv_heads) if a.bias else 0
    return bias + (2 * a.head_dim if a.qk_norm else 0)


def _feed_forward_matrices(f: FeedForward, hidden: int, share: Numbers) -> Numbers:
    return f.matrices * hidden * f.intermediate / share


def _feed_forward_vectors(f: FeedForward, hidden: int, share: Numbers) -> Numbers:
    return ((f.matrices - 1) * f.intermediate / share + hidden) if f.bias else 0


def layer_matrices(layer: Layer, hidden: int, tp: Numbers = 1) -> Numbers:
    """Matrix weights of one layer on one rank; these are what a checkpoint quantises."""
    kv_heads = kv_heads_per_rank(layer.attention, tp)
    attention = _attention_matrices(layer.attention, hidden, kv_heads, tp)
    return attention + _feed_forward_matrices(layer.feed_forward, hidden, tp)


def layer_vectors(layer: Layer, model: Model, tp: Numbers = 1) -> Numbers:
    """Norms and biases of one layer on one rank."""
    kv_heads = kv_heads_per_rank(layer.attention, tp)
    attention = _attention_vectors(layer.attention, kv_heads, tp)
    feed_forward = _feed_forward_vectors(layer.feed_forward, model.hidden, tp)
    return attention + feed_forward + model.norms_per_layer * model.hidden


def parameters(model: Model) -> int:
    """Weights of the whole model, tied embeddings counted once."""
    body = sum(
        run.count * (layer_matrices(run.layer, model.hidden) + layer_vectors(run.layer, model))
        for run in model.layers
    )
    tables = model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
    return round(float(body)) + tables + model.hidden


def stage_layers(num_layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each pipeline stage, as vLLM splits them.

    Equal shares; what remains goes to the stages before the last, which already holds the head.
    """
    base, rest = divmod(num_layers, pp)
    stages = [base] * pp
    for i in range(rest):
        stages[pp - 2 - i if pp - 2 - i >= 0 else pp - 1] += 1
    return tuple(stages)


def _layers_between(model: Model, start: int, stop: int) -> Iterator[tuple[int, Layer]]:
    """(count, layer) of the layers with index in ``[start, stop)``."""
    at = 0
    for run in model.layers:
        count = min(stop, at + run.count) - max(start, at)
        if count > 0:
            yield count, run.layer
        at += run.count


def stages(model: Model, pp: int) -> Iterator[list[tuple[int, Layer]]]:
    """Layers of each pipeline stage, in order."""
    start = 0
    for size in stage_layers(model.num_layers, pp):
        yield list(_layers_between(model, start, start + size))
        start += size


def padded_vocabulary(model: Model, tp: int) -> int:
    """Vocabulary rows of one rank, padding included."""
    padded = -(-model.vocab // VOCABULARY_PADDING) * VOCABULARY_PADDING
    return -(-padded // tp)


def stage_weight_bytes(model: Model, precision: Precision, tp: int, pp: int) -> tuple[float, ...]:
    """Weights on one GPU of each pipeline stage. [B]

    Embeddings sit on the first stage, head and final norm on the last; a tied table is held by each of
    the two, and once when they are the same stage.
    """
    table = padded_vocabulary(model, tp) * model.hidden * SIXTEEN_BIT
    sizes = []
    for index, layers in enumerate(stages(model, pp)):
        size = sum(
            count
            * (
                float(layer_matrices(layer, model.hidden, tp)) * precision.weights.bytes
                + float(layer_vectors(layer, model, tp)) * SIXTEEN_BIT
            )
            for count, layer in layers
        )
        first, last = index == 0, index == pp - 1
        tables = int(first) + int(last and not (first and model.tied_embeddings))
        sizes.append(size + tables * table + (model.hidden * SIXTEEN_BIT if last else 0.0))
    return tuple(sizes)


def weight_bytes(model: Model, precision: Precision) -> float:
    """Weights of the whole model as stored. [B]"""
    return stage_weight_bytes(model, precision, 1, 1)[0]


# --------------------------------------------------------------------------------------------
# KV cache


def kv_heads_per_rank(attention: Attention, tp: Numbers) -> Numbers:
    """KV heads that one tensor-parallel rank holds; replicated when there are fewer than ranks."""
    return (
        np.maximum(1, attention.kv_heads / tp) if not isinstance(tp, int) else max(1, attention.kv_heads / tp)
    )


def layer_kv_bytes_per_token(layer: Layer, dtype: Dtype, tp: int = 1) -> float:
    """Keys and values of one token in one layer on one rank. [B]"""
    a = layer.attention
    return float(2 * kv_heads_per_rank(a, tp) * a.head_dim * dtype.bytes)


def kv_bytes_per_token(model: Model, dtype: Dtype) -> float:
    """Keys and values of one token in all layers, each head once. [B]"""
    return sum(run.count * layer_kv_bytes_per_token(run.layer, dtype) for run in model.layers)


def stage_kv_bytes_per_token(model: Model, dtype: Dtype, tp: int, pp: int) -> tuple[float, ...]:
    """Keys and values of one token on one GPU of each pipeline stage. [B]"""
    return tuple(
        sum(count * layer_kv_bytes_per_token(layer, dtype, tp) for count, layer in layers)
        for layers in stages(model, pp)
    )


# --------------------------------------------------------------------------------------------
# Work


def matrix_flop_per_token(model: Model) -> float:
    """FLOP of the layers' matrices for one token, head excluded: two per weight. [FLOP]"""
    return 2.0 * sum(run.count * float(layer_matrices(run.layer, model.hidden)) for run in model.layers)


def head_flop(model: Model) -> float:
    """FLOP of the language-model head for one token. [FLOP]"""
    return 2.0 * model.hidden * model.vocab


def attention_flop(model: Model, area: Numbers) -> Numbers:
    """FLOP of attention over `area` query-key pairs, all layers. [FLOP]"""
    per_pair = sum(
        4.0 * run.count * run.layer.attention.heads * run.layer.attention.head_dim for run in model.layers
    )
    return per_pair * area


def prefill_flop(model: Model, isl: Numbers, cached: Numbers = 0.0) -> Numbers:
    """FLOP of a prompt of `isl` tokens of which `cached` are already in the KV cache. [FLOP]"""
    computed = isl - cached
    area = computed * (cached + computed / 2)
    return computed * matrix_flop_per_token(model) + attention_flop(model, area) + head_flop(model)


def decode_flop(model: Model, context: Numbers) -> Numbers:
    """FLOP of one output token at `context` tokens. [FLOP]"""
    return matrix_flop_per_token(model) + head_flop(model) + attention_flop(model, context)
