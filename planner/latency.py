"""Time of an engine's steps on many replicas at once.

A step with ``D`` decode tokens and ``P`` prompt tokens runs, per layer, the matrix products on
``T = D + P`` tokens, attention of both kinds, the all-reduces and the norms; then the head on the rows
that emit a token. Under pipeline parallelism ``pp`` micro-batches rotate, and under attention data
parallelism ``dp`` ranks each hold their own sequences: a rank's step has ``D / (pp dp)`` of them.

Where a draft proposes k tokens, a step verifies ``k + 1`` tokens of each of its D sequences: matrix
products, experts and the head run on ``D (k + 1)`` rows, attention reads each KV cache once for ``k + 1``
queries, and drafting comes on top. All times here are those of the engine's step, however many tokens it
emits per sequence: with ``a`` of them a request has ``(osl - 1) / a`` steps, and TPOT is ``1 / a`` of one.
The draft's own pass over prompts is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.arrays import FloatArray, Numbers
from planner.experts import largest_of
from planner.operators import (
    PromptShape,
    ReplicaSet,
    attainable,
    decode_mixing,
    handed_over_time,
    layer_operators,
    prefill_mixing,
)
from planner.roofline import gemm_time
from planner.specs import Engine

RANK_SPREAD = 0.6  # coefficient of variation of a sequence's context, for the busiest rank; an estimate [1]


def token_time(r: ReplicaSet, tokens: Numbers, real: Numbers | None = None) -> Numbers:
    """All layers on `tokens` of a rank, and what stages hand on of them, attention and head left out; `real`
    of them are no padding. [s]"""
    total: Numbers = handed_over_time(r, tokens)
    for run in r.kinds:
        for operator in layer_operators(r, run.layer, tokens, real):
            total = total + run.count * operator.time
    return total


def _decode_attention(r: ReplicaSet, batch: Numbers, context: Numbers, queries: float = 1.0) -> Numbers:
    """All layers' attention for `batch` sequences of a rank, with so many queries each; of several ranks the
    busiest decides. [s]"""
    spread = largest_of(r.dp) * RANK_SPREAD / np.sqrt(np.maximum(batch, 1.0))
    longest = context * (1.0 + spread)
    total: Numbers = 0.0
    for run in r.kinds:
        total = total + run.count * decode_mixing(r, run.layer, batch, longest, queries)
    return total


def _prefill_attention(r: ReplicaSet, prompts: PromptShape) -> Numbers:
    total: Numbers = 0.0
    for run in r.kinds:
        total = total + run.count * prefill_mixing(r, run.layer, prompts)
    return total


def head_time(r: ReplicaSet, rows: Numbers) -> Numbers:
    """Logits of `rows` tokens. [s]"""
    return gemm_time(r.head, rows, r.vocabulary, r.model.hidden)


def _pipeline(r: ReplicaSet) -> FloatArray:
    """Hand-overs of one pass through the stages, beside what their bytes take. [s]"""
    return r.hand_over.overhead


# --------------------------------------------------------------------------------------------
# Steps


def padded_batch(engine: Engine, batch: Numbers) -> FloatArray:
    """Batch that a captured graph runs: the next captured size, or `batch` beyond the largest."""
    sizes = np.asarray(engine.graph_batch_sizes, dtype=np.float64)
    values = np.asarray(batch, dtype=np.float64)
    index = np.minimum(np.searchsorted(sizes, values - 1e-9), len(sizes) - 1)
    return np.where(values <= 0, 0.0, np.where(values > sizes[-1], values, sizes[index]))


def _unpadded(r: ReplicaSet, rows: Numbers) -> FloatArray:
    """Of a decode step's rows on a rank those that visit experts: not the padding, and one token at least."""
    return np.asarray(np.where(np.asarray(rows) > 0, np.maximum(rows, 1.0 / r.dp), 0.0))


def decode_kernels_time(r: ReplicaSet, batch: Numbers, context: Numbers) -> Numbers:
    """Kernels of a pure decode step, drafting left out, unscaled. [s]"""
    return _step_kernels(r, batch, context, r.rows)


def _step_kernels(r: ReplicaSet, batch: Numbers, context: Numbers, rows: int) -> Numbers:
    """Kernels of a step that computes `rows` tokens of each sequence. [s]"""
    matrices, beside = _step_parts(r, batch, context, rows)
    return matrices + beside


def _step_parts(r: ReplicaSet, batch: Numbers, context: Numbers, rows: int) -> tuple[Numbers, Numbers]:
    """A step's kernels: what prompts computed with it have in common with it, and attention and head. [s]"""
    micro = batch / r.lanes
    padded = padded_batch(r.engine, micro * rows)
    layers = float(r.model.num_layers)
    eager = np.where(micro * rows > r.engine.graph_batch_sizes[-1], layers * r.engine.eager_overhead, 0.0)
    matrices = token_time(r, padded, _unpadded(r, micro * rows)) + eager + _pipeline(r)
    return matrices, _decode_attention(r, micro, context, float(rows)) + head_time(r, padded)


@dataclass(frozen=True, slots=True)
class LoopKernels:
    """Kernels of decode steps and of the prompts in them, drafting and host time left out, unscaled.

    Attributes
    ----------
    decode : of a pure decode step. [s]
    plain : the same with one token of each sequence, where a draft's time is a share of it; else 0. [s]
    prompt : by how much longer the steps of a prompt are. [s]
    steps : of a prompt. [1]
    """

    decode: Numbers
    plain: Numbers
    prompt: Numbers
    steps: Numbers


def loop_kernels(
    r: ReplicaSet,
    prompts: ReplicaSet,
    batch: Numbers,
    context: Numbers,
    isl: Numbers,
    token_budget: Numbers,
) -> LoopKernels:
    """What :func:`decode_step_time` and :func:`prompt_time` have of kernels, at the rates of `r` as they are.

    `prompts` are the replicas that compute prompts; where they are `r` itself, `batch` sequences decode in
    the steps of a prompt, which has the attention and the head of both.
    """
    matrices, beside = _step_parts(r, batch, context, r.rows)
    together = prompts is r
    micro = np.asarray(r.rows * batch / r.lanes) if together else np.zeros(1)
    chunk = np.maximum(token_budget - micro, 1.0)
    full = np.floor(np.asarray(isl / chunk, dtype=np.float64))
    rest = isl - full * chunk
    steps = full + (rest > 0)
    time = token_time(prompts, rest + micro) if np.any(rest > 0) else 0.0
    time = np.where(rest > 0, time, 0.0)
    if np.any(full > 0):
        time = time + full * token_time(prompts, chunk + micro)
    time = time + _own_kernels(prompts, _prompts(isl, 0.0, chunk, Companions(), steps))
    plain: Numbers = 0.0
    if r.speculation is not None and r.speculation.draft_share is not None:
        plain = _step_kernels(r, batch, context, 1)
    return LoopKernels(
        decode=matrices + beside,
        plain=plain,
        prompt=np.maximum(time - steps * matrices, 0.0) if together else time,
        steps=steps,
    )


def draft_time(r: ReplicaSet, batch: Numbers, context: Numbers) -> FloatArray:
    """What drafting adds to a step that decodes `batch` sequences, host time and model error included. [s]

    A share is one of the model's own plain step. A time that was given is taken as it is, without the model's
    error.
    """
    if r.speculation is None:
        return np.zeros(1)
    if r.speculation.draft_time is not None:
        return np.asarray(np.where(np.asarray(batch) > 0, r.speculation.draft_time, 0.0))
    assert r.speculation.draft_share is not None
    scale = r.engine.decode_scale
    plain = scale * _step_kernels(attainable(r, scale), batch, context, 1) + _host(r, batch)
    return np.asarray(np.where(np.asarray(batch) > 0, r.speculation.draft_share * r.slowdown * plain, 0.0))


def decode_beside_time(r: ReplicaSet, batch: Numbers, context: Numbers) -> Numbers:
    """What decode tokens add to a step of prompts beside their rows in the matrix products, drafting left
    out, unscaled. [s]"""
    micro = batch / r.lanes
    attention = _decode_attention(r, micro, context, float(r.rows))
    return attention + head_time(r, padded_batch(r.engine, micro * r.rows))


def chunk_attention_time(r: ReplicaSet, query: Numbers, cached: Numbers) -> Numbers:
    """Attention of one chunk of a prompt after `cached` tokens, one launch per layer, unscaled. [s]"""
    return _prefill_attention(r, _prompts(query, cached, np.maximum(query, 1.0), Companions(), 1.0))


def decode_kernels_of_both(
    r: ReplicaSet, prompts: ReplicaSet, batch: Numbers, context: Numbers
) -> tuple[Numbers, Numbers]:
    """Kernels of a pure decode step, with the rates that scaled decode steps attain, and with those of
    `prompts`: ``attainable(r, prefill_scale)``. Unscaled. [s]"""
    theirs = decode_kernels_time(prompts, batch, context)
    if r.engine.decode_scale == r.engine.prefill_scale:
        return theirs, theirs
    own = attainable(r, r.engine.decode_scale)
    return (theirs if own is prompts else decode_kernels_time(own, batch, context)), theirs


def hand_over_time(r: ReplicaSet) -> FloatArray:
    """Fixed time of the hand-overs between pipeline stages in one step, unscaled. [s]"""
    return _pipeline(r)


def _host(r: ReplicaSet, batch: Numbers, prompts: Numbers = 0.0) -> Numbers:
    """Host time of a step of `batch` sequences of all ranks, and of prompts of one of them: every stage of a
    pipeline prepares it for itself, and every attention rank has a scheduler of its own. [s]"""
    return r.pp * r.engine.step_overhead + r.engine.sequence_overhead * (batch / r.dp + prompts)


def decode_step_time(r: ReplicaSet, batch: Numbers, context: Numbers) -> FloatArray:
    """Time of a pure decode step of `batch` sequences of mean `context` [tok]. [s]

    Each gets one token; with a draft it gets some, and the time is that of drafting and verifying them.
    """
    scale = r.engine.decode_scale
    kernels = scale * decode_kernels_time(attainable(r, scale), batch, context)
    step = np.asarray(r.slowdown * (kernels + _host(r, batch)))
    return step if r.speculation is None else step + draft_time(r, batch, context)


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
    cached : number
        Tokens of one of them that are found in the prefix cache, on average. [tok]
    """

    count: Numbers = 0.0
    query: Numbers = 0.0
    area: Numbers = 0.0
    cached: Numbers = 0.0


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
        max_num_batched_tokens; decode tokens, drafted ones too, take their share of it first. [tok]
    companions : Companions
        Prompts that share its steps.
    decode_batch, context : number or ndarray
        Sequences that decode in the same steps and their mean context; 0 on a prefill replica.

    Returns
    -------
    PromptTime
        Arrays over the broadcast shape.

    Notes
    -----
    Cached tokens that do not lie in HBM are loaded first: `prefix_load` for each, of the prompt and of its
    companions, while nothing else is computed. That is a bound: engines that load one layer while they
    compute another, or other prompts meanwhile, hide part of it. The rate is as it was given, without a model
    error; windows and recurrent states, which take no part in it per token, are left out.
    """
    micro = np.asarray(r.rows * decode_batch / r.lanes)
    decodes = micro > 0
    chunk = np.maximum(token_budget - micro, 1.0)
    total = np.asarray(query + companions.count * companions.query, dtype=np.float64)
    full = np.floor(total / chunk)
    rest = total - full * chunk
    steps = full + (rest > 0)

    p = attainable(r, r.engine.prefill_scale)
    own = _own_kernels(p, _prompts(query, cached, chunk, companions, steps))
    tokens = full * token_time(p, chunk + micro) + np.where(rest > 0, token_time(p, rest + micro), 0.0)
    decode, replaced = decode_kernels_of_both(r, p, decode_batch, context)
    decode = np.where(decodes, decode, 0.0)
    beside = np.where(decodes, decode_beside_time(p, decode_batch, context) - replaced, 0.0)
    increment = r.engine.prefill_scale * np.maximum(tokens + own + steps * beside, 0.0)
    host = steps * _host(r, decode_batch, 1.0 + companions.count)
    service = np.asarray(r.slowdown * (increment + steps * r.engine.decode_scale * decode + host))
    if r.speculation is not None:
        decoding = np.minimum(decode_batch / r.lanes, 1.0)  # below one sequence: the share of steps with one
        service = service + steps * decoding * draft_time(r, decode_batch, context)
    load = r.prefix_load * (cached + companions.count * companions.cached)
    return PromptTime(
        service=service + load,
        stolen=np.asarray(r.slowdown * (increment + np.where(decodes, 0.0, host)) + load),
        steps=steps,
    )


def _prompts(
    query: Numbers, cached: Numbers, chunk: Numbers, companions: Companions, steps: Numbers
) -> PromptShape:
    return PromptShape(
        query=query,
        cached=cached,
        chunk=chunk,
        others=companions.count,
        others_query=companions.query,
        others_area=companions.area,
        steps=steps,
    )


def _own_kernels(r: ReplicaSet, prompts: PromptShape) -> Numbers:
    """Prompt attention, head rows and hand-overs of a prompt and its companions. [s]"""
    rows = 1.0 + prompts.others
    return _prefill_attention(r, prompts) + head_time(r, rows) + prompts.steps * _pipeline(r)


# --------------------------------------------------------------------------------------------
# Break-downs


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One line of a step's break-down. [s]"""

    name: str
    time: float


def decode_breakdown(r: ReplicaSet, batch: float, context: float) -> tuple[OperatorTime, ...]:
    """Decode step of the first replica, by operator; the lines add up to :func:`decode_step_time`."""
    micro = batch / r.lanes
    padded = padded_batch(r.engine, micro * r.rows)
    d = attainable(r, r.engine.decode_scale)
    beside = {
        "decode attention": _decode_attention(d, micro, context, float(r.rows)),
        "head": head_time(d, padded),
        "pipeline hand-over": _pipeline(d) + handed_over_time(d, padded),
    }
    named = _named_token_times(d, padded, _unpadded(r, micro * r.rows))
    drafting = draft_time(r, batch, context)
    total = decode_step_time(r, batch, context) - drafting
    lines = _finish_breakdown(r, named | beside, total, r.engine.decode_scale)
    return (*lines, OperatorTime("draft", float(drafting.flat[0]))) if r.speculation is not None else lines


def prefill_breakdown(
    r: ReplicaSet, query: float, cached: float, token_budget: float
) -> tuple[OperatorTime, ...]:
    """One prompt on an idle replica, by operator; the lines add up to its `service`."""
    time = prompt_time(r, query, cached, token_budget)
    steps = float(time.steps.flat[0])
    p = attainable(r, r.engine.prefill_scale)
    attention = _prefill_attention(p, _prompts(query, cached, token_budget, Companions(), steps))
    beside = {
        "prefill attention": attention,
        "head": head_time(p, 1.0),
        "pipeline hand-over": steps * _pipeline(p) + handed_over_time(p, query),
    }
    full = float(np.floor(query / token_budget))
    rest = query - full * token_budget
    parts = [(full, float(token_budget)), (1.0 if rest > 0 else 0.0, rest)]
    merged: dict[str, Numbers] = {}
    for count, tokens in parts:
        for name, value in _named_token_times(p, tokens).items():
            merged[name] = merged.get(name, 0.0) + count * value
    return _finish_breakdown(r, merged | beside, time.service, r.engine.prefill_scale)


def _named_token_times(r: ReplicaSet, tokens: Numbers, real: Numbers | None = None) -> dict[str, Numbers]:
    named: dict[str, Numbers] = {}
    for run in r.kinds:
        for operator in layer_operators(r, run.layer, tokens, real):
            named[operator.name] = named.get(operator.name, 0.0) + run.count * operator.time
    return named


def _finish_breakdown(
    r: ReplicaSet, named: dict[str, Numbers], total: FloatArray, scale: float
) -> tuple[OperatorTime, ...]:
    """Scale the kernels as the step does; what is left of the step is host time."""
    factor = scale * float(r.slowdown[0])
    lines = [OperatorTime(name, factor * float(np.asarray(value).flat[0])) for name, value in named.items()]
    host = float(total.flat[0]) - sum(line.time for line in lines)
    return (*(line for line in lines if line.time > 0), OperatorTime("host", host))
