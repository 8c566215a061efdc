"""What a load, or a step, cannot do without: FLOP and bytes against a group's peaks.

The plan's last check. It knows no efficiency and no overhead, only shapes and the vendor's peaks, so a
plan above 1 is wrong whatever the calibration says, and so is a step that takes less than :func:`least_time`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.arrays import FloatArray, Numbers
from planner.fleet import Deployed, in_formats
from planner.roofline import dtype_of_rows
from planner.specs import (
    GPU,
    Dtype,
    LatentAttention,
    MixtureOfExperts,
    Model,
    Parallelism,
    Phase,
    Precision,
    Service,
    rows_per_sequence,
)
from planner.traffic import Traffic
from planner.transformer import (
    SIXTEEN_BIT,
    Shards,
    active_weight_bytes,
    attention_area,
    decode_flop,
    head_flop,
    kv_read_bytes,
    layer_kv_read_bytes,
    layer_weights,
    mixing_flop_per_pair,
    prefill_flop,
    seen_context,
    state_flop,
)


@dataclass(frozen=True, slots=True)
class Needed:
    """Least share of a group's peak FLOP/s and HBM bandwidth. [1]"""

    compute: float
    bandwidth: float


def needed(service: Service, group: Deployed, mean_batch: float) -> Needed:
    """Shares that `group` needs at its rate, when each decode step serves `mean_batch` sequences.

    Notes
    -----
    Prefill computes every token that is not cached. Decode reads the weights once per step and the
    KV cache of its context for every token: arithmetic and bytes that no kernel can avoid. Weights
    read by prefill steps are left out: they are few, and how few depends on batching. Where drafted tokens
    are verified, a step computes k + 1 of each sequence and emits a: arithmetic is that of (k + 1) / a tokens
    for each emitted, and what a step reads serves a of them. What drafting itself needs is not known.
    """
    service = in_formats(service, group)
    traffic = Traffic.of_service(service)
    gpus = group.replicas * group.parallelism.num_gpus
    flop = traffic_bytes = 0.0
    if group.phase is not Phase.DECODE:
        per_prompt = prefill_flop(service.model, traffic.isl, traffic.cached)
        flop += group.rate * float(traffic.isl_weights @ per_prompt)
    if group.phase is not Phase.PREFILL:
        tokens = group.rate * traffic.mean_osl
        steps = tokens / traffic.tokens_per_step
        rows = rows_per_sequence(service.speculation)
        flop += steps * rows * float(decode_flop(service.model, traffic.decode_context))
        kv = float(kv_read_bytes(service.model, service.precision.kv_cache, traffic.decode_context))
        read = active_weight_bytes(service.model, service.precision) / max(mean_batch, 1.0)
        traffic_bytes += steps * (kv + read)
    gpu = group.item.gpu
    dtype = dtype_of_rows(service.precision.weights, gpu) or dtype_of_rows(Dtype.BF16, gpu)
    peak = gpu.peak_flops[dtype] if dtype is not None else max(gpu.peak_flops.values())
    return Needed(flop / (gpus * peak), traffic_bytes / (gpus * gpu.hbm_bandwidth))


# --------------------------------------------------------------------------------------------
# Steps


@dataclass(frozen=True, slots=True)
class Work:
    """What a step makes one GPU of a replica do, whatever its kernels are.

    Attributes
    ----------
    flop : mapping of Dtype
        Arithmetic by the format that it is stored in. [FLOP]
    traffic : number or ndarray
        Weights, and what is read of KV caches and states, once. [B]
    """

    flop: Mapping[Dtype, Numbers]
    traffic: Numbers


def peak_flops(gpu: GPU, dtype: Dtype) -> float:
    """Peak at which weights of `dtype` are multiplied: in 16 bits where the GPU lacks the format. [FLOP/s]"""
    alike = {Dtype.FP8_BLOCK: (Dtype.FP8,), Dtype.BF16: (Dtype.FP16,), Dtype.FP16: (Dtype.BF16,)}
    for candidate in (dtype, *alike.get(dtype, ()), Dtype.BF16, Dtype.FP16):
        if candidate in gpu.peak_flops:
            return gpu.peak_flops[candidate]
    return max(gpu.peak_flops.values())


def least_time(work: Work, gpu: GPU) -> FloatArray:
    """Time that no step with this work can beat: its arithmetic or its traffic at the peaks. [s]"""
    compute: Numbers = 0.0
    for dtype, flop in work.flop.items():
        compute = compute + flop / peak_flops(gpu, dtype)
    return np.maximum(compute, work.traffic / gpu.hbm_bandwidth)


def decode_work(
    model: Model, precision: Precision, parallelism: Parallelism, batch: Numbers, context: Numbers
) -> Work:
    """Of one token for each of `batch` sequences of `context` tokens, on one GPU of every stage in turn.

    Each stage works on ``batch / pp`` sequences, each attention rank on its share of them. Of routed
    experts those are read that these tokens are expected to visit.
    """
    micro = batch / parallelism.lanes
    return _work(model, precision, parallelism, micro, micro, micro, context, absorbed=True)


def prompt_work(
    model: Model,
    precision: Precision,
    parallelism: Parallelism,
    query: Numbers,
    cached: Numbers,
    rows: float = 1.0,
) -> Work:
    """Of one step that computes `query` tokens of a prompt after `cached` ones, and emits `rows` tokens."""
    return _work(model, precision, parallelism, query, rows, 1.0, cached, absorbed=False)


def _work(
    model: Model,
    precision: Precision,
    parallelism: Parallelism,
    tokens: Numbers,
    rows: Numbers,
    sequences: Numbers,
    past: Numbers,
    *,
    absorbed: bool,
) -> Work:
    """`tokens` in all of `sequences` with so many tokens before them; logits of `rows`. All of one rank."""
    shards, tp = Shards.of(parallelism), parallelism.tp
    flop: dict[Dtype, Numbers] = {}

    def add(dtype: Dtype, amount: Numbers) -> None:
        flop[dtype] = flop.get(dtype, 0.0) + amount

    kv = precision.kv_cache if precision.kv_cache is Dtype.FP8 and absorbed else Dtype.BF16
    traffic: Numbers = np.where(np.asarray(rows) > 0, model.vocab * model.hidden * SIXTEEN_BIT / tp, 0.0)
    add(Dtype.BF16, rows * head_flop(model) / tp)
    for run in model.kinds:
        layer, block = run.layer, run.layer.feed_forward
        w = layer_weights(layer, model, shards)
        visited: Numbers = 0.0
        visits: Numbers = 0.0
        if isinstance(block, MixtureOfExperts):
            everyone = tokens * parallelism.dp
            visited = 1.0 - (1.0 - block.top_k / block.experts) ** everyone
            visits = everyone * block.top_k / block.experts
        add(precision.of_attention, run.count * 2.0 * tokens * w.attention)
        add(precision.weights, run.count * 2.0 * tokens * w.feed_forward)
        add(precision.of_experts, run.count * 2.0 * visits * w.experts)
        pairs = tokens * seen_context(layer, past) if absorbed else attention_area(layer, tokens, past)
        mixing = mixing_flop_per_pair(layer, absorbed=absorbed) * pairs + state_flop(layer) * tokens
        add(kv, run.count * mixing / tp)
        if isinstance(layer.attention, LatentAttention) and (index := layer.attention.indexer) is not None:
            scored = tokens * (past if absorbed else past + tokens / 2)  # in eight bits, by every rank
            add(Dtype.FP8, run.count * 2.0 * index.heads * index.head_dim * scored)
        idle = w.experts * (1.0 - visited) * precision.of_experts.bytes
        traffic = traffic + run.count * (w.bytes(precision) - w.vectors * SIXTEEN_BIT - idle)
        traffic = traffic + run.count * sequences * layer_kv_read_bytes(layer, precision.kv_cache, past, tp)
    return Work(flop, traffic)
