"""Parameters of a model, and the bytes of its weights on each GPU of a replica."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from planner.specs import (
    Attention,
    Dtype,
    FeedForward,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    Model,
    Parallelism,
    Precision,
    StateMixer,
)

VOCABULARY_PADDING = 64  # engines pad the vocabulary to a multiple of this and cut it evenly [rows]
SIXTEEN_BIT = Dtype.BF16.bytes  # norms, routers, embeddings and the head stay in 16 bits [B]


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """By how many ranks each kind of weight is divided.

    ``tp`` cuts mixers and dense blocks; routed experts are spread over ``ep`` ranks and each expert is
    cut by ``moe_tp``. Attention data parallelism repeats everything but the experts.
    """

    tp: int = 1
    ep: int = 1
    moe_tp: int = 1

    @classmethod
    def of(cls, parallelism: Parallelism) -> Shards:
        ranks = parallelism.tp * parallelism.dp
        return cls(tp=parallelism.tp, ep=parallelism.ep, moe_tp=max(ranks // parallelism.ep, 1))


WHOLE = Shards()


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerWeights:
    """Weights of one layer on one rank, by the format they are stored in. [1]

    Attributes
    ----------
    attention : matrices of the mixer
    feed_forward : matrices of dense blocks and shared experts
    experts : matrices of routed experts
    vectors : what stays in 16 bits: norms, biases, routers, convolutions
    """

    attention: float = 0.0
    feed_forward: float = 0.0
    experts: float = 0.0
    vectors: float = 0.0

    @property
    def total(self) -> float:
        return self.attention + self.feed_forward + self.experts + self.vectors

    def bytes(self, precision: Precision) -> float:
        """As stored. [B]"""
        return (
            self.attention * precision.of_attention.bytes
            + self.feed_forward * precision.weights.bytes
            + self.experts * precision.of_experts.bytes
            + self.vectors * SIXTEEN_BIT
        )


def layer_weights(layer: Layer, model: Model, shards: Shards = WHOLE) -> LayerWeights:
    """Weights of one layer on one rank."""
    matrices, vectors = _mixer(layer, model.hidden, shards.tp)
    norms = model.norms_per_layer if layer.norms is None else layer.norms
    block = layer.feed_forward
    if isinstance(block, MixtureOfExperts):
        dense, experts, block_vectors = _experts(block, model.hidden, shards)
    else:
        dense, block_vectors = _dense(block, model.hidden, shards.tp) if block else (0.0, 0.0)
        experts = 0.0
    return LayerWeights(
        attention=matrices,
        feed_forward=dense,
        experts=experts,
        vectors=vectors + block_vectors + norms * model.hidden,
    )


def _mixer(layer: Layer, hidden: int, tp: int) -> tuple[float, float]:
    """Matrices and vectors of the layer's mixer on one rank."""
    mixer = layer.attention
    if mixer is None:
        return 0.0, 0.0
    if isinstance(mixer, Attention):
        return _attention(mixer, hidden, tp)
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, hidden, tp)
    return _state(mixer, hidden, tp)


def _attention(a: Attention, hidden: int, tp: int) -> tuple[float, float]:
    kv_heads = max(1, a.kv_heads / tp) if a.owns_kv else 0.0
    heads = a.heads / tp
    projections = (1 if a.values_are_keys else 2) * kv_heads
    matrices = hidden * a.head_dim * ((3 if a.gated else 2) * heads + projections)
    vectors = 0.0
    if a.bias:
        vectors += a.head_dim * (heads + projections)
    if a.output_bias:
        vectors += hidden
    if a.qk_norm:
        normed = heads + kv_heads if a.spanning_norm else (2 if a.owns_kv else 1)
        vectors += normed * a.head_dim
    if a.sinks:
        vectors += heads
    return matrices, vectors


def _latent(a: LatentAttention, hidden: int, tp: int) -> tuple[float, float]:
    heads = a.heads / tp
    if a.query_rank is None:
        query = hidden * heads * a.query_dim
    else:
        query = hidden * a.query_rank + a.query_rank * heads * a.query_dim
    down = hidden * (a.kv_rank + a.rope_dim)
    up = a.kv_rank * heads * (a.nope_dim + a.value_dim)
    out = heads * a.value_dim * hidden
    vectors = float(a.kv_rank + (a.query_rank or 0))
    matrices = query + down + up + out
    if a.indexer is not None:
        i = a.indexer
        matrices += (a.query_rank or hidden) * i.heads * i.head_dim + hidden * (i.head_dim + i.heads)
        vectors += 2 * i.head_dim
    return matrices, vectors


def _state(m: StateMixer, hidden: int, tp: int) -> tuple[float, float]:
    matrices = hidden * (m.input_width + m.output_width) / tp
    return matrices, (m.conv_channels * m.conv_kernel + m.vector_parameters) / tp


def _dense(f: FeedForward, hidden: int, tp: int) -> tuple[float, float]:
    vectors = (f.matrices - 1) * f.intermediate / tp + hidden if f.bias else 0.0
    return f.matrices * hidden * f.intermediate / tp, vectors


def _experts(f: MixtureOfExperts, hidden: int, shards: Shards) -> tuple[float, float, float]:
    """Dense matrices (shared experts, latent projections), routed experts, and vectors."""
    width = f.latent or hidden
    dense = f.matrices * hidden * f.shared_intermediate / shards.tp
    if f.latent is not None:
        dense += 2 * hidden * f.latent
    experts = f.experts / shards.ep
    routed = experts * f.matrices * width * f.intermediate / shards.moe_tp
    vectors = float(hidden * f.experts)  # the router, on every rank
    if f.router_bias:
        vectors += f.experts
    if f.shared_gate:
        vectors += hidden
    if f.expert_bias:
        vectors += experts * ((f.matrices - 1) * f.intermediate / shards.moe_tp + width)
    return dense, routed, vectors


# --------------------------------------------------------------------------------------------
# Whole models


def _body(model: Model) -> Iterator[tuple[int, Layer, LayerWeights]]:
    for run in model.layers:
        yield run.count, run.layer, layer_weights(run.layer, model)


def _outside(model: Model) -> float:
    """Weights that no layer holds; tied tables count once."""
    tables = model.vocab * model.hidden * (1 if model.tied_embeddings else 2)
    return tables + model.embedding_norms * model.hidden + model.extra_parameters


def parameters(model: Model) -> int:
    """Weights of the whole model, tied embeddings counted once."""
    return round(sum(count * w.total for count, _, w in _body(model)) + _outside(model))


def active_parameters(model: Model) -> int:
    """Weights that one token meets: of routed experts the `top_k` that it visits."""
    body = sum(count * (w.total - w.experts * idle_share(layer)) for count, layer, w in _body(model))
    return round(body + _outside(model))


def idle_share(layer: Layer) -> float:
    """Share of a layer's routed experts that a token does not visit. [1]"""
    block = layer.feed_forward
    return 1 - block.top_k / block.experts if isinstance(block, MixtureOfExperts) else 0.0


def stage_layers(num_layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each pipeline stage, as vLLM splits them.

    Equal shares; what remains goes to the stages before the last, which already holds the head.
    """
    base, rest = divmod(num_layers, pp)
    sizes = [base] * pp
    for i in range(rest):
        sizes[pp - 2 - i if pp - 2 - i >= 0 else pp - 1] += 1
    return tuple(sizes)


def _layers_between(model: Model, start: int, stop: int) -> Iterator[tuple[int, Layer]]:
    """(count, layer) of the layers with index in ``[start, stop)``."""
    at = 0
    for run in model.layers:
        count = min(stop, at + run.count) - max(start, at)
        if count > 0:
            yield count, run.layer
        at += run.count


def stages(model: Model, pp: int, split: tuple[int, ...] | None = None) -> Iterator[list[tuple[int, Layer]]]:
    """Layers of each pipeline stage, in order; `split` names their numbers where the engine is told them."""
    start = 0
    for size in split or stage_layers(model.num_layers, pp):
        yield list(_layers_between(model, start, start + size))
        start += size


def padded_vocabulary(model: Model, tp: int) -> int:
    """Vocabulary rows of one of `tp` ranks, padding included."""
    padded = -(-model.vocab // VOCABULARY_PADDING) * VOCABULARY_PADDING
    return -(-padded // tp)


def stage_weight_bytes(
    model: Model,
    precision: Precision,
    tp: int,
    pp: int,
    ep: int = 1,
    dp: int = 1,
    split: tuple[int, ...] | None = None,
) -> tuple[float, ...]:
    """Weights on one GPU of each pipeline stage. [B]

    Embeddings sit on the first stage, head and final norm on the last; a tied table is held by each of
    the two, and once when they are the same stage.
    """
    shards = Shards.of(Parallelism(tp=tp, pp=pp, ep=ep, dp=dp))
    table = padded_vocabulary(model, tp) * model.hidden * SIXTEEN_BIT
    sizes = []
    for index, layers in enumerate(stages(model, pp, split)):
        size = sum(count * layer_weights(layer, model, shards).bytes(precision) for count, layer in layers)
        first, last = index == 0, index == pp - 1
        tables = int(first) + int(last and not (first and model.tied_embeddings))
        outside = model.embedding_norms * model.hidden if last else 0
        outside += model.extra_parameters if first else 0
        sizes.append(size + tables * table + outside * SIXTEEN_BIT)
    return tuple(sizes)


def weight_bytes(model: Model, precision: Precision) -> float:
    """Weights of the whole model as stored. [B]"""
    return stage_weight_bytes(model, precision, 1, 1)[0]


def active_weight_bytes(model: Model, precision: Precision) -> float:
    """Weights of the layers and the head that a step of one token reads, as stored. [B]"""
    body = sum(
        count * (w.bytes(precision) - w.experts * idle_share(layer) * precision.of_experts.bytes)
        for count, layer, w in _body(model)
    )
    return body + model.vocab * model.hidden * SIXTEEN_BIT
