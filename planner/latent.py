"""Time of attention kinds beside grouped-query: latents (MLA), indexers, recurrent states."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.arrays import Numbers
from planner.errors import SpecError
from planner.roofline import (
    ELEMENTWISE_EFFICIENCY,
    FALLBACK_LOG_SD,
    SIXTEEN_BITS,
    DecodeAttentionKernel,
    PrefillAttentionKernel,
    smooth_maximum,
)
from planner.specs import GPU, Dtype, Indexer, LatentAttention, StateMixer
from planner.transformer import SIXTEEN_BIT
from planner.transformer.cache import index_bytes_per_token, state_bytes
from planner.units import MICRO

STATE_OVERHEAD = 10 * MICRO  # of a recurrent update, an estimate: nobody's tables have it [s]
STATE_COMPUTE_EFFICIENCY = 0.25  # of the 16-bit peak, chunked scan over a prompt, an estimate [1]
INDEXER_COMPUTE_EFFICIENCY = 0.8  # of the 16-bit peak, 8-bit scores at 0.4 of theirs, an estimate [1]
INDEXER_OVERHEAD = 10 * MICRO  # of scores and top-k, an estimate [s]


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentDecodeKernel:
    """Absorbed decode over a latent cache. Units as in :class:`~planner.roofline.GemmKernel`."""

    compute_rate: Numbers
    memory_rate: Numbers
    overhead: Numbers
    exponent: Numbers
    block_time: Numbers
    sm_count: Numbers
    kv_bytes: Numbers
    log_sd: Numbers
    compute_peak: Numbers = np.inf
    memory_peak: Numbers = np.inf

    @classmethod
    def of(cls, gpu: GPU, kv_dtype: Dtype) -> LatentDecodeKernel:
        """Kernel for a latent cache of `kv_dtype`; one nobody measured borrows the 16-bit row, or the
        efficiencies of grouped-query attention."""
        peak = _sixteen_bit_peak(gpu)
        known = gpu.calibration.latent_decode
        own = next((d for d in (kv_dtype, *SIXTEEN_BITS) if d in known), None)
        if own is None:
            plain = DecodeAttentionKernel.of(gpu, kv_dtype)
            return cls(
                compute_rate=peak * 0.7,
                memory_rate=plain.memory_rate,
                overhead=plain.overhead,
                exponent=2.0,
                block_time=plain.cta_time,
                sm_count=plain.sm_count,
                kv_bytes=kv_dtype.bytes,
                log_sd=FALLBACK_LOG_SD,
                compute_peak=peak,
                memory_peak=gpu.hbm_bandwidth,
            )
        rows = known[own]
        log_sd = gpu.calibration.log_sd.get(f"latent_decode.{own}", FALLBACK_LOG_SD)
        return cls(
            compute_rate=peak * rows.compute_efficiency,
            memory_rate=gpu.hbm_bandwidth * rows.memory_efficiency,
            overhead=rows.overhead,
            exponent=rows.norm_exponent,
            block_time=rows.block_time,
            sm_count=float(gpu.sm_count),
            kv_bytes=kv_dtype.bytes,
            log_sd=log_sd if own.bytes == kv_dtype.bytes else max(log_sd, FALLBACK_LOG_SD),
            compute_peak=peak,
            memory_peak=gpu.hbm_bandwidth,
        )


def latent_prefill_kernel(gpu: GPU) -> PrefillAttentionKernel:
    """Kernel of prompts under latent attention; borrows the grouped-query one where none was measured."""
    rows = gpu.calibration.latent_prefill
    if rows is None:
        return PrefillAttentionKernel.of(gpu)
    peak = _sixteen_bit_peak(gpu)
    return PrefillAttentionKernel(
        compute_rate=peak * rows.compute_efficiency,
        memory_rate=gpu.hbm_bandwidth * rows.memory_efficiency,
        overhead=rows.overhead,
        softmax_time=rows.softmax_time,
        sm_count=float(gpu.sm_count),
        log_sd=gpu.calibration.log_sd.get("latent_prefill", FALLBACK_LOG_SD),
        compute_peak=peak,
        memory_peak=gpu.hbm_bandwidth,
    )


def _sixteen_bit_peak(gpu: GPU) -> float:
    for dtype in SIXTEEN_BITS:
        if dtype in gpu.peak_flops:
            return gpu.peak_flops[dtype]
    raise SpecError(f"GPU {gpu.name!r} has no 16-bit tensor peak")


def latent_decode_time(
    kernel: LatentDecodeKernel,
    mixer: LatentAttention,
    batch: Numbers,
    context: Numbers,
    heads: Numbers,
    queries: float = 1.0,
) -> Numbers:
    r"""Time of one layer's latent attention for `batch` sequences; `heads` are those of one GPU. [s]

    Notes
    -----
    With latents of width :math:`c` and rotary keys of width :math:`r`, and :math:`q` queries of a sequence:
    :math:`t_0 + \lVert (BL(c+r)b + 2(2c+r)qBH)/\beta,\; 2(2c+r)qBHL/\pi \rVert_p + t_b B/SM`. Behind an
    indexer each query reads latents of its own.
    """
    width = 2.0 * (2 * mixer.kv_rank + mixer.rope_dim)
    rows = queries * batch
    readers = batch if mixer.indexer is None else rows
    traffic = readers * context * (mixer.kv_rank + mixer.rope_dim) * kernel.kv_bytes + width * rows * heads
    busy = smooth_maximum(
        traffic / kernel.memory_rate, width * rows * heads * context / kernel.compute_rate, kernel.exponent
    )
    time = kernel.overhead + busy + kernel.block_time * batch / kernel.sm_count
    return np.where(np.asarray(batch) > 0, time, 0.0)


def latent_prefill_time(
    kernel: PrefillAttentionKernel,
    mixer: LatentAttention,
    area: Numbers,
    query: Numbers,
    keys: Numbers,
    launches: Numbers,
    heads: Numbers,
) -> Numbers:
    r"""Time of one layer's latent attention over prompts; arguments as for grouped-query attention. [s]

    Notes
    -----
    :math:`n t_0 + 2H(d_q+d_v)A/\pi + 2H((d_q+d_v)q + (d_q+d_v)k)/\beta + HA\,t_{exp}/SM` over the area A, q
    query and k key tokens of expanded heads.
    """
    width = mixer.query_dim + mixer.value_dim
    flop = 2.0 * heads * width * area
    traffic = 2.0 * heads * width * (query + keys)
    softmax = heads * area / kernel.sm_count * kernel.softmax_time
    return launches * kernel.overhead + flop / kernel.compute_rate + traffic / kernel.memory_rate + softmax


def indexer_time(
    indexer: Indexer, batch: Numbers, context: Numbers, bandwidth: Numbers, peak: Numbers
) -> Numbers:
    """Time of scoring `context` keys for `batch` query tokens and picking the best; an estimate. [s]

    From bytes, or from arithmetic where a GPU has little of it for its bandwidth; `peak` is the 16-bit one.
    """
    read = batch * context * index_bytes_per_token(indexer) / (ELEMENTWISE_EFFICIENCY * bandwidth)
    flop = 2.0 * indexer.heads * indexer.head_dim * batch * context
    scored = np.maximum(read, flop / (INDEXER_COMPUTE_EFFICIENCY * peak))
    return np.where(np.asarray(batch) > 0, INDEXER_OVERHEAD + scored, 0.0)


def indexer_prefill_time(indexer: Indexer, area: Numbers, launches: Numbers, peak: Numbers) -> Numbers:
    """Time of scoring `area` query-key pairs of prompts: keys are read once for many queries, so that
    arithmetic decides. `peak` is the 16-bit one. [s]"""
    flop = 2.0 * indexer.heads * indexer.head_dim * area
    return launches * INDEXER_OVERHEAD + flop / (INDEXER_COMPUTE_EFFICIENCY * peak)


def state_decode_time(
    mixer: StateMixer, batch: Numbers, tp: Numbers, bandwidth: Numbers, updates: float = 1.0
) -> Numbers:
    """Time of a recurrent update for `batch` sequences: the state crosses HBM twice. [s]

    After each of several `updates` it is written, since any of them may turn out to be the last.
    """
    moved = (1.0 + updates) * batch * state_bytes(mixer) / tp
    return np.where(np.asarray(batch) > 0, STATE_OVERHEAD + moved / (ELEMENTWISE_EFFICIENCY * bandwidth), 0.0)


def state_prefill_time(
    mixer: StateMixer,
    query: Numbers,
    chunks: Numbers,
    launches: Numbers,
    tp: Numbers,
    bandwidth: Numbers,
    peak: Numbers,
) -> Numbers:
    """Time of a scan over `query` tokens in so many `chunks`. [s]

    Arithmetic on the state, inputs and outputs, and the state itself, which every chunk reads and writes.
    """
    flop = 8.0 * query * mixer.state_elements / tp
    moved = SIXTEEN_BIT * query * (mixer.input_width + mixer.output_width) / tp
    moved = moved + 2.0 * chunks * state_bytes(mixer) / tp
    arithmetic = flop / (STATE_COMPUTE_EFFICIENCY * peak)
    return launches * STATE_OVERHEAD + arithmetic + moved / (ELEMENTWISE_EFFICIENCY * bandwidth)
