"""Time of the operators of one layer, on many replicas at once.

A :class:`ReplicaSet` holds one entry per replica on the *last* axis of every array; token counts,
batches and contexts come with a trailing axis of one (or of the number of replicas) and broadcast.
Under attention data parallelism tokens are those of one rank; the experts see those of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray, Numbers
from planner.collectives import (
    NETWORK_LOG_SD,
    AllReduce,
    AllToAll,
    HandOver,
    all_reduce_time,
    all_to_all_time,
    spread,
)
from planner.experts import ExpertsKernel, experts_time
from planner.latent import (
    INDEXER_COMPUTE_EFFICIENCY,
    LatentDecodeKernel,
    indexer_prefill_time,
    indexer_time,
    latent_decode_time,
    latent_prefill_kernel,
    latent_prefill_time,
    state_decode_time,
    state_prefill_time,
)
from planner.roofline import (
    ELEMENTWISE_EFFICIENCY,
    FALLBACK_LOG_SD,
    DecodeAttentionKernel,
    ElementwiseKernel,
    GemmKernel,
    PrefillAttentionKernel,
    decode_attention_time,
    elementwise_time,
    faster_than_peaks,
    gemm_time,
    prefill_attention_time,
    stack,
    within_peaks,
)
from planner.specs import (
    GPU,
    Attention,
    CalibrationStatus,
    Dtype,
    Engine,
    FeedForward,
    LatentAttention,
    Layer,
    LayerRun,
    MixtureOfExperts,
    Model,
    Parallelism,
    Precision,
    Speculation,
    StateMixer,
    rows_per_sequence,
)
from planner.transformer import (
    SIXTEEN_BIT,
    Shards,
    attention_area,
    kv_bytes_per_token,
    kv_copies,
    kv_heads_per_rank,
    padded_vocabulary,
    seen_context,
)

MIXER_KERNELS = 2  # a norm with residual, and rope or gate
HEAD_NORM_KERNELS = 1  # norms of query and key heads
SPANNING_NORM_KERNELS = 3  # norms over all heads together: squares, then both scaled by what the ranks sum
SPANNING_NORM_BYTES = 8  # one 32-bit sum of squares each for queries and keys [B]
STATE_KERNELS = 4  # short convolution, gates, norm of the state's output, and their copies
DENSE_KERNELS = 2  # a norm with residual, and the activation
EXPERT_KERNELS = 2  # a norm with residual, and the choice of experts; activation belongs to the product
WIDE_COMPUTE = (
    1 / 15
)  # rate of 32-bit arithmetic over that of 16-bit tensor cores: 67 of 989 TFLOP/s on H100 [1]
HANDED_OVER = 2 * SIXTEEN_BIT  # per value of the hidden state: vLLM and SGLang send its residual apart [B]
DISPATCH_BYTES = {Dtype.FP8: 1.0 + 4 / 128, Dtype.FP8_BLOCK: 1.0 + 4 / 128}
"""Per value on its way to experts of these formats, with a 32-bit scale per 128; 16 bits to others. [B]"""
SHARED_KERNELS = 2  # the shared experts' activation, and their sum with the routed ones


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaSet:
    """Replicas of one model and engine on any GPUs, in any formats. Arrays have shape ``(replicas,)``.

    Attributes
    ----------
    lanes : ndarray
        Streams of work that a replica runs side by side: pipeline stages times attention ranks.
    attention, body, head, router : GemmKernel
        Matrices of mixers, dense blocks and shared experts, head, and routers.
    elementwise : ElementwiseKernel
        Norms, rope, activations and other small kernels.
    experts, latent_decode, latent_prefill : kernels or None
        Where the model has such layers.
    exchange, all_to_all : AllReduce, AllToAll
        Between all ranks that share the experts: to each of them, or only to those a token visits.
    dispatch_bytes : ndarray
        Per value of a token on its way to the experts. [B]
    hand_over : HandOver
        Between the stages of a pipeline.
    bandwidth, peak : ndarray
        HBM bandwidth and 16-bit peak, for operators without a kernel above. [B/s, FLOP/s]
    slowdown : ndarray
        Factor on every step time: the quantile of the model error that is planned for. [1]
    log_sd, prompt_log_sd : ndarray
        Spread of that error for decode steps and for prompts, natural log; the larger is planned with. [1]
    prefix_load : ndarray
        Time to bring a token of a found prefix to a replica, where it does not lie in HBM; see
        :func:`planner.latency.prompt_time`. [s/tok]
    speculation : Speculation or None
        What the model's draft does, the same on all replicas.
    """

    model: Model
    engine: Engine
    kinds: tuple[LayerRun, ...]
    tp: FloatArray
    pp: FloatArray
    dp: FloatArray
    ep: FloatArray
    moe_tp: FloatArray
    attention: GemmKernel
    body: GemmKernel
    head: GemmKernel
    decode_attention: DecodeAttentionKernel
    prefill_attention: PrefillAttentionKernel
    elementwise: ElementwiseKernel
    experts: ExpertsKernel | None
    latent_decode: LatentDecodeKernel | None
    latent_prefill: PrefillAttentionKernel | None
    all_reduce: AllReduce
    exchange: AllReduce
    all_to_all: AllToAll
    dispatch_bytes: FloatArray
    hand_over: HandOver
    bandwidth: FloatArray
    peak: FloatArray
    vocabulary: FloatArray
    log_sd: FloatArray
    prompt_log_sd: FloatArray
    slowdown: FloatArray
    prefix_load: FloatArray
    speculation: Speculation | None = None

    @property
    def lanes(self) -> FloatArray:
        return self.pp * self.dp

    @property
    def rows(self) -> int:
        """Tokens of each decoding sequence in a step: more than one where a draft's are verified."""
        return rows_per_sequence(self.speculation)

    def part(self, index: NDArray[np.intp]) -> ReplicaSet:
        """Replicas by number, as often as they are asked for."""

        def taken(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value[index]
            if is_dataclass(value) and not isinstance(value, type):
                return replace(value, **{f.name: taken(getattr(value, f.name)) for f in fields(value)})
            return value

        names = [f.name for f in fields(self) if f.name not in ("model", "engine", "kinds", "speculation")]
        return replace(self, **{name: taken(getattr(self, name)) for name in names})

    @classmethod
    def of(
        cls,
        model: Model,
        precision: Precision | Sequence[Precision],
        engine: Engine,
        replicas: Sequence[tuple[GPU, Parallelism]],
        z: float = 0.0,
        speculation: Speculation | None = None,
    ) -> ReplicaSet:
        """Stack `replicas`; `z` is the standard normal quantile of the model error to plan for.

        `precision` is that of all replicas, or one for each.

        Raises
        ------
        SpecError
            If a GPU has no kernel for the precision, or its ranks no all-reduce.
        """
        gpus = [gpu for gpu, _ in replicas]
        each = [precision] * len(gpus) if isinstance(precision, Precision) else precision
        formats = list(zip(gpus, each, strict=True))
        layouts = [p for _, p in replicas]
        shards = [Shards.of(p) for p in layouts]
        latent = any(isinstance(run.layer.attention, LatentAttention) for run in model.kinds)
        bare = cls(
            model=model,
            engine=for_model(engine, model),
            kinds=model.kinds,
            tp=np.array([float(p.tp) for p in layouts]),
            pp=np.array([float(p.pp) for p in layouts]),
            dp=np.array([float(p.dp) for p in layouts]),
            ep=np.array([float(s.ep) for s in shards]),
            moe_tp=np.array([float(s.moe_tp) for s in shards]),
            attention=stack([GemmKernel.of(g, p.of_attention) for g, p in formats]),
            body=stack([GemmKernel.of(g, p.weights) for g, p in formats]),
            head=stack([GemmKernel.of(g, Dtype.BF16) for g in gpus]),
            decode_attention=stack([DecodeAttentionKernel.of(g, p.kv_cache) for g, p in formats]),
            prefill_attention=stack([PrefillAttentionKernel.of(g) for g in gpus]),
            elementwise=stack([ElementwiseKernel.of(g) for g in gpus]),
            experts=stack([ExpertsKernel.of(g, p.of_experts) for g, p in formats]) if model.routed else None,
            latent_decode=stack([LatentDecodeKernel.of(g, p.kv_cache) for g, p in formats])
            if latent
            else None,
            latent_prefill=stack([latent_prefill_kernel(g) for g in gpus]) if latent else None,
            all_reduce=AllReduce.of(gpus, [p.tp for p in layouts]),
            exchange=AllReduce.of(gpus, [p.tp * p.dp for p in layouts]),
            all_to_all=AllToAll.of(gpus, layouts),
            dispatch_bytes=np.array([DISPATCH_BYTES.get(p.of_experts, SIXTEEN_BIT) for p in each]),
            hand_over=HandOver.of(gpus, layouts),
            bandwidth=np.array([g.hbm_bandwidth for g in gpus]),
            peak=np.array([g.peak_flops.get(Dtype.BF16, g.peak_flops.get(Dtype.FP16, 0.0)) for g in gpus]),
            vocabulary=np.array([float(padded_vocabulary(model, p.tp)) for p in layouts]),
            log_sd=np.zeros(len(gpus)),
            prompt_log_sd=np.zeros(len(gpus)),
            slowdown=np.ones(len(gpus)),
            prefix_load=np.array(
                [_prefix_load(model, p, layout.tp, engine) for p, layout in zip(each, layouts, strict=True)]
            ),
            speculation=speculation,
        )
        decode, prompt = model_errors(bare, gpus)
        return replace(
            bare, log_sd=decode, prompt_log_sd=prompt, slowdown=np.exp(z * np.maximum(decode, prompt))
        )


def _prefix_load(model: Model, precision: Precision, tp: int, engine: Engine) -> float:
    """Time to bring a token's KV cache to a replica, heads that several ranks hold once for each. [s/tok]"""
    size = kv_bytes_per_token(model, precision.kv_cache) * kv_copies(model, tp)
    return size / engine.prefix_bandwidth


def attainable(r: ReplicaSet, scale: float) -> ReplicaSet:
    """`r` as :meth:`ReplicaSet.of` made it, with rates that `scale` and the slowdown lift to peaks at most.

    Where kernels are multiplied by less than 1 (a fast engine, the lower end of the model error) they would
    else beat the data sheet. Each operator is held to its own peaks, so that sums of operators, and
    differences of such sums, need no floor of their own.
    """
    factor = scale * r.slowdown
    if np.all(factor >= 1.0):
        return r

    def capped(kernel: Any) -> Any:
        return None if kernel is None else within_peaks(kernel, factor)

    return replace(
        r,
        bandwidth=r.bandwidth * np.minimum(factor / ELEMENTWISE_EFFICIENCY, 1.0),
        peak=r.peak * np.minimum(factor / INDEXER_COMPUTE_EFFICIENCY, 1.0),
        **{name: capped(getattr(r, name)) for name in _KERNELS},
    )


def beats_peaks(r: ReplicaSet, factor: Numbers) -> NDArray[np.bool_]:
    """Replicas of which a kernel multiplied by `factor` would beat a figure of the vendor's."""
    found = max(ELEMENTWISE_EFFICIENCY, INDEXER_COMPUTE_EFFICIENCY) > factor * np.ones_like(r.tp)
    for name in _KERNELS:
        kernel = getattr(r, name)
        if kernel is not None:
            found = found | faster_than_peaks(kernel, factor)
    return np.asarray(found)


_KERNELS = (
    "attention",
    "body",
    "head",
    "decode_attention",
    "prefill_attention",
    "elementwise",
    "experts",
    "latent_decode",
    "latent_prefill",
)


# --------------------------------------------------------------------------------------------
# Model error

REFERENCE_BATCH, REFERENCE_CONTEXT, REFERENCE_PROMPT = 32.0, 2048.0, 2048.0
"""Step and prompt whose operators' shares weigh their errors. [1, tok, tok]"""


def for_model(engine: Engine, model: Model) -> Engine:
    """`engine` with its scales as they are for a model: where it was measured, with the model's factor."""
    factor = engine.factor(model.shape)
    if factor is None or factor == 1.0:
        return engine
    decode, prefill = engine.decode_scale * factor, engine.prefill_scale * factor
    return replace(engine, decode_scale=decode, prefill_scale=prefill)


def model_errors(r: ReplicaSet, gpus: Sequence[GPU]) -> tuple[FloatArray, FloatArray]:
    r"""Spread of predicted times of decode steps and of prompts, natural log. [1]

    Notes
    -----
    :math:`\sigma^2 = \sigma_{engine}^2 + \sigma_{family}^2 + \sum_k (w_k \sigma_k)^2`: the end-to-end error
    of the form with the engine's constants, that between models where this one was never measured on the
    engine, and the residuals of each kernel's fit weighed with its share of the time. Kernels of one fit err
    together, different fits do not. Coefficients that are estimated are wrong together, all kernels in
    the same direction, so that their own spread counts where it is larger. The error is common to all
    replicas of a type: it never averages out.
    """
    engine = r.engine
    family = 0.0 if engine.factor(r.model.shape) is not None else engine.family_log_sd
    form = engine.log_sd**2 + family**2
    least = np.array([_estimated_spread(gpu) for gpu in gpus])
    links = np.array([_links_spread(gpu, ranks) for gpu, ranks in zip(gpus, r.tp * r.dp, strict=True)])
    decode = np.sqrt(form + _kernel_variance(r, links, prompts=False))
    prompt = np.sqrt(form + _kernel_variance(r, links, prompts=True))
    return np.maximum(decode, least), np.maximum(prompt, least)


def _estimated_spread(gpu: GPU) -> float:
    """Least spread of a GPU whose coefficients nobody measured; 0 for others. [1]"""
    if gpu.calibration.status is not CalibrationStatus.ESTIMATED:
        return 0.0
    return min(gpu.calibration.log_sd.values(), default=FALLBACK_LOG_SD)


def _links_spread(gpu: GPU, ranks: float) -> float:
    """Spread of collectives over so many GPUs: what crosses nodes is estimated. [1]"""
    own = gpu.calibration.log_sd.get("all_reduce", FALLBACK_LOG_SD)
    return own if spread(gpu, int(ranks))[1] == 1 else max(own, NETWORK_LOG_SD)


def _kernel_variance(r: ReplicaSet, links: FloatArray, *, prompts: bool) -> FloatArray:
    """Variance of the log of a step's kernels, from the residuals of each fit and its share. [1]"""
    tokens = REFERENCE_PROMPT if prompts else REFERENCE_BATCH
    time: dict[str, Numbers] = {}

    def add(fit: str, value: Numbers) -> None:
        time[fit] = time.get(fit, 0.0) + value

    for run in r.kinds:
        for operator in layer_operators(r, run.layer, tokens):
            add(_FIT_OF.get(operator.name, "elementwise"), run.count * operator.time)
        state = isinstance(run.layer.attention, StateMixer)
        latent = isinstance(run.layer.attention, LatentAttention)
        fit = "elementwise" if state else ("latent" if latent else "mixing")
        if prompts:
            shape = PromptShape(
                query=tokens,
                cached=0.0,
                chunk=tokens,
                others=0.0,
                others_query=0.0,
                others_area=0.0,
                steps=1.0,
            )
            add(fit, run.count * prefill_mixing(r, run.layer, shape))
        else:
            add(fit, run.count * decode_mixing(r, run.layer, tokens, REFERENCE_CONTEXT))
    add("hand-over", r.hand_over.overhead + handed_over_time(r, tokens))
    mixing = r.prefill_attention if prompts else r.decode_attention
    latent_kernel = r.latent_prefill if prompts else r.latent_decode
    spreads: dict[str, Numbers] = {
        "attention": r.attention.log_sd,
        "body": r.body.log_sd,
        "head": r.head.log_sd,
        "experts": 0.0 if r.experts is None else r.experts.log_sd,
        "links": links,
        "hand-over": np.maximum(links, NETWORK_LOG_SD),
        "mixing": mixing.log_sd,
        "latent": 0.0 if latent_kernel is None else latent_kernel.log_sd,
        "elementwise": r.elementwise.log_sd,
    }
    total = sum(time.values())
    return np.asarray(sum((value / total * spreads[fit]) ** 2 for fit, value in time.items()))


_FIT_OF = {
    "qkv projection": "attention",
    "output projection": "attention",
    "feed-forward up": "body",
    "feed-forward down": "body",
    "router": "head",
    "experts": "experts",
    "all-reduce": "links",
}
"""Whose coefficients an operator has; the others are small kernels."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator's time. [s]"""

    name: str
    time: Numbers


def layer_operators(
    r: ReplicaSet, layer: Layer, tokens: Numbers, real: Numbers | None = None
) -> tuple[Operator, ...]:
    """What one layer does to `tokens` of one rank, attention itself left out.

    Of the tokens `real` are no padding (None: all): only these visit routed experts.
    """
    return (
        *_mixer_operators(r, layer, tokens),
        *_block_operators(r, layer, tokens, tokens if real is None else real),
    )


def handed_over_time(r: ReplicaSet, tokens: Numbers) -> Numbers:
    """What `tokens` of a rank add to the hand-overs of one pass through a pipeline. [s]"""
    return tokens * r.model.hidden * HANDED_OVER * r.hand_over.time_per_byte


def _where_any(tokens: Numbers, time: Numbers) -> Numbers:
    return np.where(np.asarray(tokens) > 0, time, 0.0)


def _elementwise(r: ReplicaSet, tokens: Numbers, values: Numbers, kernels: int) -> Numbers:
    """Norms, rope and activations that move `values` 16-bit numbers per token. [s]"""
    return _where_any(tokens, elementwise_time(r.elementwise, tokens * SIXTEEN_BIT * values, kernels))


def _reduce(r: ReplicaSet, tokens: Numbers) -> Numbers:
    return all_reduce_time(r.all_reduce, tokens * r.model.hidden * SIXTEEN_BIT)


# --------------------------------------------------------------------------------------------
# Mixers


def _mixer_operators(r: ReplicaSet, layer: Layer, tokens: Numbers) -> tuple[Operator, ...]:
    mixer, hidden = layer.attention, r.model.hidden
    if mixer is None:
        return ()
    kernels = MIXER_KERNELS
    reduced = _reduce(r, tokens)
    if isinstance(mixer, Attention):
        if mixer.spanning_norm:
            kernels += SPANNING_NORM_KERNELS
            reduced = reduced + all_reduce_time(r.all_reduce, tokens * SPANNING_NORM_BYTES)
        elif mixer.qk_norm:
            kernels += HEAD_NORM_KERNELS
        heads = mixer.heads * mixer.head_dim / r.tp
        keys = kv_heads_per_rank(mixer, r.tp) * mixer.head_dim if mixer.owns_kv else 0.0
        into = heads * (2 if mixer.gated else 1) + (1 if mixer.values_are_keys else 2) * keys
        out, rotated = heads, heads + keys
    elif isinstance(mixer, LatentAttention):
        return _latent_operators(r, mixer, tokens)
    else:
        into, out = mixer.input_width / r.tp, mixer.output_width / r.tp
        rotated = into
        kernels += STATE_KERNELS
    return (
        Operator("qkv projection", gemm_time(r.attention, tokens, into, hidden)),
        Operator("output projection", gemm_time(r.attention, tokens, hidden, out)),
        Operator("all-reduce", reduced),
        Operator("elementwise", _elementwise(r, tokens, 3.0 * hidden + 2.0 * rotated, kernels)),
    )


def _latent_operators(r: ReplicaSet, a: LatentAttention, tokens: Numbers) -> tuple[Operator, ...]:
    """Projections of latent attention; what expands or absorbs the latent belongs to attention."""
    hidden, heads = r.model.hidden, a.heads / r.tp
    down = a.kv_rank + a.rope_dim + (a.query_rank or 0)
    if a.indexer is not None:
        down += a.indexer.head_dim + a.indexer.heads
    into = gemm_time(r.attention, tokens, down, hidden)
    into = into + gemm_time(r.attention, tokens, heads * a.query_dim, a.query_rank or hidden)
    if a.indexer is not None:
        width = a.indexer.heads * a.indexer.head_dim
        into = into + gemm_time(r.attention, tokens, width, a.query_rank or hidden)
    moved = 3.0 * hidden + 2.0 * (down + heads * a.query_dim)
    return (
        Operator("qkv projection", into),
        Operator("output projection", gemm_time(r.attention, tokens, hidden, heads * a.value_dim)),
        Operator("all-reduce", _reduce(r, tokens)),
        Operator("elementwise", _elementwise(r, tokens, moved, MIXER_KERNELS)),
    )


# --------------------------------------------------------------------------------------------
# Feed-forward blocks


def _block_operators(r: ReplicaSet, layer: Layer, tokens: Numbers, real: Numbers) -> tuple[Operator, ...]:
    block, hidden = layer.feed_forward, r.model.hidden
    if block is None:
        return ()
    if isinstance(block, FeedForward):
        inner = block.intermediate / r.tp
        moved = 3.0 * hidden + block.matrices * inner
        return (
            *_dense_operators(r, tokens, block.matrices, inner),
            Operator("all-reduce", _reduce(r, tokens)),
            Operator("elementwise", _elementwise(r, tokens, moved, DENSE_KERNELS)),
        )
    return _expert_operators(r, block, tokens, real)


def _dense_operators(
    r: ReplicaSet, tokens: Numbers, matrices: int, inner: Numbers
) -> tuple[Operator, Operator]:
    hidden = r.model.hidden
    return (
        Operator("feed-forward up", gemm_time(r.body, tokens, (matrices - 1) * inner, hidden)),
        Operator("feed-forward down", gemm_time(r.body, tokens, hidden, inner)),
    )


def _expert_operators(
    r: ReplicaSet, block: MixtureOfExperts, tokens: Numbers, real: Numbers
) -> tuple[Operator, ...]:
    """Router, shared and routed experts, and the exchange between the ranks that share them."""
    assert r.experts is not None
    hidden = r.model.hidden
    width = float(block.latent or hidden)
    everyone = tokens * r.dp
    routed = experts_time(r.experts, block, real * r.dp, width, r.ep, r.moe_tp)
    if block.latent is not None:
        routed = routed + gemm_time(r.body, tokens, width, hidden) + gemm_time(r.body, tokens, hidden, width)
    exchange = np.minimum(
        all_reduce_time(r.exchange, everyone * hidden * SIXTEEN_BIT), _visits(r, block, tokens)
    )
    shared: tuple[Operator, ...] = ()
    kernels = EXPERT_KERNELS
    if block.shared_intermediate:
        kernels += SHARED_KERNELS
        shared = _dense_operators(r, tokens, block.matrices, block.shared_intermediate / r.tp)
    return (
        Operator("router", _router(r, block, tokens)),
        *shared,
        Operator("experts", routed),
        Operator("all-reduce", exchange),
        Operator("elementwise", _elementwise(r, tokens, 3.0 * hidden, kernels)),
    )


def _visits(r: ReplicaSet, block: MixtureOfExperts, tokens: Numbers) -> Numbers:
    """All-to-all: the GPUs of a tensor-parallel group share its tokens, and gather them after, which counts
    as half an all-reduce. Infinite where experts are not spread, or all ranks hold the same tokens. [s]"""
    copy = r.model.hidden * (r.dispatch_bytes + SIXTEEN_BIT)
    gathered = _reduce(r, tokens) / 2
    return all_to_all_time(r.all_to_all, tokens / r.tp, float(block.top_k), copy) + gathered


def _router(r: ReplicaSet, block: MixtureOfExperts, tokens: Numbers) -> Numbers:
    """Logits of the experts; a router in 32 bits widens its input first and runs without tensor cores. [s]"""
    hidden, experts = r.model.hidden, float(block.experts)
    if not block.wide_router:
        return gemm_time(r.head, tokens, experts, hidden)
    wide = replace(
        r.head,
        compute_rate=r.head.compute_rate * WIDE_COMPUTE,
        weight_bytes=2 * r.head.weight_bytes,
        activation_bytes=2 * r.head.activation_bytes,
    )
    return gemm_time(wide, tokens, experts, hidden) + _elementwise(r, tokens, 3.0 * hidden, 1)


# --------------------------------------------------------------------------------------------
# Attention


def decode_mixing(
    r: ReplicaSet, layer: Layer, batch: Numbers, context: Numbers, queries: float = 1.0
) -> Numbers:
    """Attention or recurrent update of one layer for `batch` sequences of one rank. [s]

    With several `queries` of each sequence, as where drafted tokens are verified, its KV cache is read once:
    what the others add is their arithmetic, at the rate of prompts (an approximation; kernels hide part of
    it behind the reading). An indexer picks other tokens for each of them; a recurrent state is read once
    and kept after each.
    """
    mixer = layer.attention
    if mixer is None:
        return 0.0
    if isinstance(mixer, StateMixer):
        return state_decode_time(mixer, batch, r.tp, r.bandwidth, queries)
    seen = seen_context(layer, context)
    more = batch * (queries - 1.0)
    heads = mixer.heads / r.tp
    if isinstance(mixer, Attention):
        kv_heads = kv_heads_per_rank(mixer, r.tp)
        time = decode_attention_time(r.decode_attention, batch, seen, heads, kv_heads, mixer.head_dim)
        if queries == 1.0:
            return time
        return time + prefill_attention_time(
            r.prefill_attention, more * seen, more, 0.0, 0.0, heads, kv_heads, mixer.head_dim
        )
    assert r.latent_decode is not None
    rows = batch * queries
    time = latent_decode_time(r.latent_decode, mixer, batch, seen, heads, queries)
    absorbed = gemm_time(r.attention, rows, heads * mixer.kv_rank, mixer.nope_dim)
    released = gemm_time(r.attention, rows, heads * mixer.value_dim, mixer.kv_rank)
    if mixer.indexer is not None:
        time = time + indexer_time(mixer.indexer, batch, context, r.bandwidth, r.peak)
        if queries > 1.0:
            time = time + indexer_prefill_time(mixer.indexer, more * context, 0.0, r.peak)
    return time + absorbed + released


@dataclass(frozen=True, slots=True)
class PromptShape:
    """What the prompts of some steps look like to attention.

    Attributes
    ----------
    query, cached : tokens of the prompt to compute, and found in the cache. [tok]
    chunk : tokens of the prompt in a step, the last one apart. [tok]
    others, others_query, others_area : companions' number, tokens and query-key pairs of each.
    steps : launches.
    """

    query: Numbers
    cached: Numbers
    chunk: Numbers
    others: Numbers
    others_query: Numbers
    others_area: Numbers
    steps: Numbers


def keys_read(p: PromptShape, limit: float = math.inf) -> Numbers:
    """Key tokens that all chunks of the prompts read: each of them itself and `limit` tokens before. [tok]"""
    full = np.floor(np.asarray(p.query / p.chunk, dtype=np.float64))
    before = full * p.chunk
    within = full if math.isinf(limit) else np.clip(np.ceil((limit - p.cached) / p.chunk), 0.0, full)
    past = within * p.cached + p.chunk * within * (within - 1) / 2
    if math.isfinite(limit):
        past = past + (full - within) * limit
    past = past + np.where(p.query > before, np.minimum(p.cached + before, limit), 0.0)
    total: Numbers = p.query + past + p.others * p.others_query
    return total


def prefill_mixing(r: ReplicaSet, layer: Layer, p: PromptShape) -> Numbers:
    """Attention or scan of one layer over prompts of one rank. [s]"""
    mixer = layer.attention
    if mixer is None:
        return 0.0
    query = p.query + p.others * p.others_query
    if isinstance(mixer, StateMixer):
        chunks = np.where(np.asarray(p.query) > 0, p.steps, 0.0) + p.others
        return state_prefill_time(mixer, query, chunks, p.steps, r.tp, r.bandwidth, r.peak)
    limit = float(seen_context(layer, np.inf))
    windowed = math.isfinite(limit)
    companions = np.minimum(p.others_area, p.others_query * limit) if windowed else p.others_area
    area = attention_area(layer, p.query, p.cached) + p.others * companions
    heads = mixer.heads / r.tp
    if isinstance(mixer, Attention):
        read = keys_read(p, limit)
        kv_heads = kv_heads_per_rank(mixer, r.tp)
        return prefill_attention_time(
            r.prefill_attention, area, query, read, p.steps, heads, kv_heads, mixer.head_dim
        )
    assert r.latent_prefill is not None
    keys = keys_read(p)
    steps = np.maximum(p.steps, 1.0)  # each reads the expanding matrix again
    width = heads * (mixer.nope_dim + mixer.value_dim)
    expanded = steps * gemm_time(r.attention, keys / steps, width, mixer.kv_rank)
    time = latent_prefill_time(r.latent_prefill, mixer, area, query, keys, p.steps, heads)
    if mixer.indexer is not None:
        pairs = p.query * (p.cached + p.query / 2) + p.others * p.others_area
        time = time + indexer_prefill_time(mixer.indexer, pairs, p.steps, r.peak)
    return time + expanded
