"""Time of an engine's steps on many replicas at once.

A :class:`ReplicaSet` holds one entry per replica on the *last* axis of every array. Batch sizes,
contexts and prompt lengths come with a trailing axis of one (or of the number of replicas) and
broadcast, so that a grid of batches over a hundred replicas is one call.

A step with ``D`` decode tokens and ``P`` prompt tokens runs, per layer, the four matrix products on
``T = D + P`` tokens, attention of both kinds, two all-reduces of ``T hidden`` 16-bit values and the
norms; then the head on the rows that emit a token. Under pipeline parallelism ``pp`` micro-batches
rotate, each of ``D / pp`` sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import FloatArray, Numbers
from planner.collectives import PIPELINE_OVERHEAD, AllReduce, all_reduce_time
from planner.roofline import (
    FALLBACK_LOG_SD,
    DecodeAttentionKernel,
    GemmKernel,
    PrefillAttentionKernel,
    decode_attention_time,
    elementwise_time,
    gemm_time,
    prefill_attention_time,
    stack,
)
from planner.specs import GPU, CalibrationStatus, Dtype, Engine, Layer, Model, Parallelism, Precision
from planner.transformer import SIXTEEN_BIT, kv_heads_per_rank, padded_vocabulary

ALL_REDUCES_PER_LAYER = 2
ELEMENTWISE_PER_LAYER = 4  # two norms with residual, rope, activation


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaSet:
    """Replicas of one model, precision and engine on any GPUs. Arrays have shape ``(replicas,)``.

    Attributes
    ----------
    slowdown : ndarray
        Factor on every step time: the quantile of the model error that is planned for. [1]
    log_sd : ndarray
        Spread of that error, natural log. [1]
    """

    model: Model
    engine: Engine
    tp: FloatArray
    pp: FloatArray
    body: GemmKernel
    head: GemmKernel
    decode_attention: DecodeAttentionKernel
    prefill_attention: PrefillAttentionKernel
    all_reduce: AllReduce
    bandwidth: FloatArray
    vocabulary: FloatArray
    log_sd: FloatArray
    slowdown: FloatArray

    @classmethod
    def of(
        cls,
        model: Model,
        precision: Precision,
        engine: Engine,
        replicas: Sequence[tuple[GPU, Parallelism]],
        z: float = 0.0,
    ) -> ReplicaSet:
        """Stack `replicas`; `z` is the standard normal quantile of the model error to plan for.

        Raises
        ------
        SpecError
            If a GPU has no kernel for the precision or no all-reduce of the size.
        """
        gpus = [gpu for gpu, _ in replicas]
        layouts = [p for _, p in replicas]
        log_sd = np.array([model_error(gpu, engine) for gpu in gpus])
        return cls(
            model=model,
            engine=engine,
            tp=np.array([float(p.tp) for p in layouts]),
            pp=np.array([float(p.pp) for p in layouts]),
            body=stack([GemmKernel.of(g, precision.weights) for g in gpus]),
            head=stack([GemmKernel.of(g, Dtype.BF16) for g in gpus]),
            decode_attention=stack([DecodeAttentionKernel.of(g, precision.kv_cache) for g in gpus]),
            prefill_attention=stack([PrefillAttentionKernel.of(g) for g in gpus]),
            all_reduce=AllReduce.of(gpus, [p.tp for p in layouts]),
            bandwidth=np.array([g.hbm_bandwidth for g in gpus]),
            vocabulary=np.array([float(padded_vocabulary(model, p.tp)) for p in layouts]),
            log_sd=log_sd,
            slowdown=np.exp(z * log_sd),
        )


def model_error(gpu: GPU, engine: Engine) -> float:
    """Spread of a step's predicted time on this GPU and engine, natural log. [1]

    The engine's end-to-end spread. Coefficients that are estimated are wrong together, all operators in the
    same direction, so that their own spread counts where it is larger; residuals of a fit average out
    over a step's operators. The error is common to all replicas of a type: it never averages out.
    """
    calibration = gpu.calibration
    if calibration.status is not CalibrationStatus.ESTIMATED:
        return engine.log_sd
    return max(engine.log_sd, min(calibration.log_sd.values(), default=FALLBACK_LOG_SD))


# --------------------------------------------------------------------------------------------
# Operators of one pass over all layers


@dataclass(frozen=True, slots=True)
class _Operator:
    name: str
    time: Numbers


def _layer_operators(r: ReplicaSet, layer: Layer, tokens: Numbers) -> tuple[_Operator, ...]:
    """Matrix products, all-reduces and norms of one layer on `tokens`."""
    hidden, a, f = r.model.hidden, layer.attention, layer.feed_forward
    kv_heads = kv_heads_per_rank(a, r.tp)
    query_width = a.heads * a.head_dim / r.tp
    inner = f.intermediate / r.tp
    message = tokens * hidden * SIXTEEN_BIT
    moved = (
        tokens
        * SIXTEEN_BIT
        * (
            6.0 * hidden  # two norms: read the input and the residual, write one
            + 2.0 * (query_width + kv_heads * a.head_dim)  # rope
            + f.matrices * inner  # activation: read gate and up, write their product
        )
    )
    return (
        _Operator(
            "qkv projection", gemm_time(r.body, tokens, query_width + 2 * kv_heads * a.head_dim, hidden)
        ),
        _Operator("output projection", gemm_time(r.body, tokens, hidden, query_width)),
        _Operator("feed-forward up", gemm_time(r.body, tokens, (f.matrices - 1) * inner, hidden)),
        _Operator("feed-forward down", gemm_time(r.body, tokens, hidden, inner)),
        _Operator("all-reduce", ALL_REDUCES_PER_LAYER * all_reduce_time(r.all_reduce, message)),
        _Operator(
            "elementwise",
            np.where(
                np.asarray(tokens) > 0, elementwise_time(moved, r.bandwidth, ELEMENTWISE_PER_LAYER), 0.0
            ),
        ),
    )


def _token_time(r: ReplicaSet, tokens: Numbers) -> Numbers:
    """All layers on `tokens`, attention and head left out. [s]"""
    total: Numbers = 0.0
    for run in r.model.layers:
        for operator in _layer_operators(r, run.layer, tokens):
            total = total + run.count * operator.time
    return total


def _decode_attention(r: ReplicaSet, batch: Numbers, context: Numbers) -> Numbers:
    total: Numbers = 0.0
    for run in r.model.layers:
        a = run.layer.attention
        seen = context if a.window is None else np.minimum(context, a.window)
        total = total + run.count * decode_attention_time(
            r.decode_attention, batch, seen, a.heads / r.tp, kv_heads_per_rank(a, r.tp), a.head_dim
        )
    return total


def _prefill_attention(
    r: ReplicaSet, area: Numbers, query: Numbers, keys: Numbers, launches: Numbers
) -> Numbers:
    total: Numbers = 0.0
    for run in r.model.layers:
        a = run.layer.attention
        total = total + run.count * prefill_attention_time(
            r.prefill_attention,
            area, query, keys, launches,
            a.heads / r.tp, kv_heads_per_rank(a, r.tp), a.head_dim,
        )  # fmt: skip
    return total


def _head(r: ReplicaSet, rows: Numbers) -> Numbers:
    return gemm_time(r.head, rows, r.vocabulary, r.model.hidden)


def _pipeline(r: ReplicaSet) -> FloatArray:
    """Hand-overs of one pass through the stages. [s]"""
    return (r.pp - 1) * PIPELINE_OVERHEAD


# --------------------------------------------------------------------------------------------
# Steps


def padded_batch(engine: Engine, batch: Numbers) -> FloatArray:
    """Batch that a captured graph runs: the next captured size, or `batch` beyond the largest."""
    sizes = np.asarray(engine.graph_batch_sizes, dtype=np.float64)
    values = np.asarray(batch, dtype=np.float64)
    index = np.minimum(np.searchsorted(sizes, values - 1e-9), len(sizes) - 1)
    return np.where(values <= 0, 0.0, np.where(values > sizes[-1], values, sizes[index]))


def _decode_kernels(r: ReplicaSet, batch: Numbers, context: Numbers) -> Numbers:
    micro = batch / r.pp
    padded = padded_batch(r.engine, micro)
    layers = float(r.model.num_layers)
    eager = np.where(micro > r.engine.graph_batch_sizes[-1], layers * r.engine.eager_overhead, 0.0)
    return (
        _token_time(r, padded)
        + _decode_attention(r, micro, context)
        + _head(r, padded)
        + eager
        + _pipeline(r)
    )


def _host(r: ReplicaSet, sequences: Numbers) -> Numbers:
    return r.engine.step_overhead + r.engine.sequence_overhead * sequences


def decode_step_time(r: ReplicaSet, batch: Numbers, context: Numbers) -> FloatArray:
    """Time of a pure decode step: one token for each of `batch` sequences of mean `context` [tok]. [s]"""
    kernels = r.engine.decode_scale * _decode_kernels(r, batch, context)
    return np.asarray(r.slowdown * (kernels + _host(r, batch)))


@dataclass(frozen=True, slots=True)
class PromptTime:
    """What a prompt (with the prompts computed beside it) takes.

    Attributes
    ----------
    service : ndarray
        From its first step's start to the end of its last, decode tokens of those steps included. [s]
    stolen : ndarray
        By how much longer those steps are than pure decode steps. [s]
    steps : ndarray
        Engine steps.
    """

    service: FloatArray
    stolen: FloatArray
    steps: FloatArray


@dataclass(frozen=True, slots=True)
class Companions:
    """Prompts computed in the same steps as the one looked at.

    Attributes
    ----------
    count : number
        How many.
    query, area : number
        Tokens to compute and query-key pairs of one of them, on average. [tok, tok^2]
    """

    count: float = 0.0
    query: float = 0.0
    area: float = 0.0


def prompt_time(
    r: ReplicaSet,
    query: Numbers,
    cached: Numbers,
    token_budget: Numbers,
    companions: Companions = Companions(),
    decode_batch: Numbers = 0.0,
    context: Numbers = 0.0,
) -> PromptTime:
    """Time of a prompt, computed in steps of at most `token_budget` tokens.

    Parameters
    ----------
    query, cached : number or ndarray
        Tokens of the prompt to compute, and tokens already in the KV cache. [tok]
    token_budget : number or ndarray
        max_num_batched_tokens; decode tokens take their share of it first. [tok]
    companions : Companions
        Prompts that share its steps.
    decode_batch, context : number or ndarray
        Sequences that decode in the same steps and their mean context; 0 on a prefill replica.

    Returns
    -------
    PromptTime
        Arrays over the broadcast shape.
    """
    micro = np.asarray(decode_batch / r.pp)
    decodes = micro > 0
    chunk = np.maximum(token_budget - micro, 1.0)
    total = np.asarray(query + companions.count * companions.query, dtype=np.float64)
    full = np.floor(total / chunk)
    rest = total - full * chunk
    steps = full + (rest > 0)

    own = _own_kernels(r, query, cached, chunk, companions, steps)
    tokens = full * _token_time(r, chunk + micro) + np.where(rest > 0, _token_time(r, rest + micro), 0.0)
    decode = np.where(decodes, _decode_kernels(r, decode_batch, context), 0.0)
    beside = np.where(
        decodes, _decode_attention(r, micro, context) + _head(r, padded_batch(r.engine, micro)), 0.0
    )
    increment = r.engine.prefill_scale * np.maximum(tokens + own + steps * (beside - decode), 0.0)
    host = steps * _host(r, decode_batch + 1.0 + companions.count)
    return PromptTime(
        service=np.asarray(r.slowdown * (increment + steps * r.engine.decode_scale * decode + host)),
        stolen=np.asarray(r.slowdown * (increment + np.where(decodes, 0.0, host))),
        steps=steps,
    )


def _own_kernels(
    r: ReplicaSet, query: Numbers, cached: Numbers, chunk: Numbers, companions: Companions, steps: Numbers
) -> Numbers:
    """Prompt attention, head rows and hand-overs of a prompt and its companions. [s]"""
    others = companions.count
    attention = _prefill_attention(
        r,
        query * (cached + query / 2) + others * companions.area,
        query + others * companions.query,
        _keys_read(query, cached, chunk) + others * companions.query,
        steps,
    )
    return attention + _head(r, 1.0 + others) + steps * _pipeline(r)


def _keys_read(query: Numbers, cached: Numbers, chunk: Numbers) -> FloatArray:
    """Key tokens read by all chunks of one prompt: each chunk reads everything before it. [tok]"""
    full = np.floor(np.asarray(query / chunk, dtype=np.float64))
    rest = query - full * chunk
    earlier = full * cached + chunk * full * (full + 1) / 2
    return np.asarray(earlier + np.where(rest > 0, cached + query, 0.0))


# --------------------------------------------------------------------------------------------
# Break-downs


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One line of a step's break-down. [s]"""

    name: str
    time: float


def decode_breakdown(r: ReplicaSet, batch: float, context: float) -> tuple[OperatorTime, ...]:
    """Decode step of the first replica, by operator; the lines add up to :func:`decode_step_time`."""
    micro = batch / r.pp
    padded = padded_batch(r.engine, micro)
    beside = {
        "decode attention": _decode_attention(r, micro, context),
        "head": _head(r, padded),
        "pipeline hand-over": _pipeline(r),
    }
    total = decode_step_time(r, batch, context)
    return _breakdown(r, padded, 1.0, beside, total, r.engine.decode_scale)


def prefill_breakdown(
    r: ReplicaSet, query: float, cached: float, token_budget: float
) -> tuple[OperatorTime, ...]:
    """One prompt on an idle replica, by operator; the lines add up to its `service`."""
    time = prompt_time(r, query, cached, token_budget)
    steps = float(time.steps.flat[0])
    attention = _prefill_attention(
        r, query * (cached + query / 2), query, _keys_read(query, cached, token_budget), steps
    )
    beside = {
        "prefill attention": attention,
        "head": _head(r, 1.0),
        "pipeline hand-over": steps * _pipeline(r),
    }
    full = float(np.floor(query / token_budget))
    rest = query - full * token_budget
    parts = [(full, float(token_budget)), (1.0 if rest > 0 else 0.0, rest)]
    merged: dict[str, Numbers] = {}
    for count, tokens in parts:
        for name, value in _named_token_times(r, tokens).items():
            merged[name] = merged.get(name, 0.0) + count * value
    return _finish_breakdown(r, merged | beside, time.service, r.engine.prefill_scale)


def _named_token_times(r: ReplicaSet, tokens: Numbers) -> dict[str, Numbers]:
    named: dict[str, Numbers] = {}
    for run in r.model.layers:
        for operator in _layer_operators(r, run.layer, tokens):
            named[operator.name] = named.get(operator.name, 0.0) + run.count * operator.time
    return named


def _breakdown(
    r: ReplicaSet, tokens: Numbers, count: float, beside: dict[str, Numbers], total: FloatArray, scale: float
) -> tuple[OperatorTime, ...]:
    named = {name: count * value for name, value in _named_token_times(r, tokens).items()}
    return _finish_breakdown(r, named | beside, total, scale)


def _finish_breakdown(
    r: ReplicaSet, named: dict[str, Numbers], total: FloatArray, scale: float
) -> tuple[OperatorTime, ...]:
    """Scale the kernels as the step does; what is left of the step is host time."""
    factor = scale * float(r.slowdown[0])
    lines = [OperatorTime(name, factor * float(np.asarray(value).flat[0])) for name, value in named.items()]
    host = float(total.flat[0]) - sum(line.time for line in lines)
    return (*(line for line in lines if line.time > 0), OperatorTime("host", host))
