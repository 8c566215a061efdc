"""Time of one operator on one GPU: a calibrated roofline.

Kernels carry the attainable rates of a GPU (peak times efficiency) and fixed costs; the functions
below are pure and broadcast. Stacked kernels (:func:`stack`) have one entry per replica on the *last*
axis, so any quantity with a trailing axis of one or of the number of replicas combines with them.

The forms extend the roofline of [1]_ by a fixed cost per launch, a smooth maximum, the pass that
quantises activations, and the softmax of prompts. They and their coefficients were fitted on measured
operator tables; `ARCHITECTURE.md`, "Performance model", says which and how well.

References
----------
.. [1] S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
   multicore architectures," Commun. ACM, vol. 52, no. 4, pp. 65-76, 2009. doi:10.1145/1498765.1498785
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from planner.arrays import Numbers
from planner.errors import SpecError
from planner.specs import GPU, Dtype, ElementwiseCoefficients

EFFICIENCY_LIMIT = 1.02
"""Share of a peak above which it or the benchmark is wrong; the rest over 1 is the noise of good ones. [1]"""
ELEMENTWISE_EFFICIENCY = ElementwiseCoefficients().memory_efficiency
"""Share of the HBM bandwidth that small kernels reach where nobody measured them. [1]"""
ELEMENTWISE_LOG_SD = 0.3  # of small kernels that nobody measured: an estimate [1]
FALLBACK_LOG_SD = 0.2  # spread of a kernel that borrows another's coefficients [1]
SIXTEEN_BITS = (Dtype.BF16, Dtype.FP16)  # rows of one serve the other; GPUs before Ampere have only fp16
_TINY = 1e-30


@dataclass(frozen=True, kw_only=True, slots=True)
class GemmKernel:
    """A matrix product at one weight format on one GPU.

    Attributes
    ----------
    compute_rate : FLOP rate attained when compute-bound. [FLOP/s]
    memory_rate : traffic attained when memory-bound. [B/s]
    overhead : fixed cost. [s]
    exponent : sharpness of the smooth maximum. [1]
    quantization_rate : traffic of the activation quantisation pass; inf where there is none. [B/s]
    weight_bytes, activation_bytes : per element as stored and as computed. [B]
    log_sd : residual spread, natural log. [1]
    compute_peak, memory_peak : the vendor's figures, see :func:`within_peaks`. [FLOP/s, B/s]
    """

    compute_rate: Numbers
    memory_rate: Numbers
    overhead: Numbers
    exponent: Numbers
    quantization_rate: Numbers
    weight_bytes: Numbers
    activation_bytes: Numbers
    log_sd: Numbers
    compute_peak: Numbers = np.inf
    memory_peak: Numbers = np.inf

    @classmethod
    def of(cls, gpu: GPU, dtype: Dtype) -> GemmKernel:
        """Kernel for weights of `dtype`; falls back to 16-bit arithmetic on weights stored as `dtype`.

        Raises
        ------
        SpecError
            If neither exists on `gpu`.
        """
        calibration = gpu.calibration
        native = dtype in gpu.peak_flops and dtype_of_rows(dtype, gpu) is not None
        compute = dtype_of_rows(dtype, gpu) if native else _sixteen_bit(gpu)
        if compute is None or compute not in calibration.gemm:
            raise SpecError(f"GPU {gpu.name!r} has no matrix kernel for {dtype}")
        rows = calibration.gemm[compute]
        log_sd = calibration.log_sd.get(f"gemm.{compute}", FALLBACK_LOG_SD)
        borrowed = compute is not dtype and not (compute.is_16_bit and dtype.is_16_bit)
        quantization = rows.quantization_efficiency
        return cls(
            compute_rate=gpu.peak_flops[compute] * rows.compute_efficiency,
            memory_rate=gpu.hbm_bandwidth * rows.memory_efficiency,
            overhead=rows.overhead,
            exponent=rows.norm_exponent,
            quantization_rate=np.inf if quantization is None else gpu.hbm_bandwidth * quantization,
            weight_bytes=dtype.bytes,
            activation_bytes=min(compute.bytes, Dtype.BF16.bytes),
            log_sd=max(log_sd, FALLBACK_LOG_SD) if borrowed else log_sd,
            compute_peak=gpu.peak_flops[compute],
            memory_peak=gpu.hbm_bandwidth,
        )


def dtype_of_rows(dtype: Dtype, gpu: GPU) -> Dtype | None:
    """Dtype whose fitted rows serve `dtype` on `gpu`: itself, or its near relative; None if neither."""
    for candidate in (dtype, *_RELATIVES.get(dtype, ())):
        if candidate in gpu.calibration.gemm and candidate in gpu.peak_flops:
            return candidate
    return None


_RELATIVES: dict[Dtype, tuple[Dtype, ...]] = {
    Dtype.FP16: (Dtype.BF16,),
    Dtype.BF16: (Dtype.FP16,),
    Dtype.FP8_BLOCK: (Dtype.FP8,),
}


def _sixteen_bit(gpu: GPU) -> Dtype | None:
    return dtype_of_rows(Dtype.BF16, gpu)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeAttentionKernel:
    """Attention of decode steps: reads the whole KV cache once. Units as in :class:`GemmKernel`."""

    memory_rate: Numbers
    overhead: Numbers
    cta_time: Numbers
    sm_count: Numbers
    kv_bytes: Numbers
    log_sd: Numbers
    memory_peak: Numbers = np.inf

    @classmethod
    def of(cls, gpu: GPU, kv_dtype: Dtype) -> DecodeAttentionKernel:
        """Kernel for a KV cache of `kv_dtype`; a format nobody measured borrows the 16-bit kernel."""
        calibration = gpu.calibration
        sixteen = next((d for d in SIXTEEN_BITS if d in calibration.decode_attention), None)
        own = kv_dtype if kv_dtype in calibration.decode_attention else sixteen
        if own is None:
            raise SpecError(f"GPU {gpu.name!r} has no decode attention kernel for a {kv_dtype} KV cache")
        rows = calibration.decode_attention[own]
        log_sd = calibration.log_sd.get(f"decode_attention.{own}", FALLBACK_LOG_SD)
        borrowed = own is not kv_dtype and not kv_dtype.is_16_bit
        return cls(
            memory_rate=gpu.hbm_bandwidth * rows.memory_efficiency,
            overhead=rows.overhead,
            cta_time=rows.cta_time,
            sm_count=float(gpu.sm_count),
            kv_bytes=kv_dtype.bytes,
            log_sd=max(log_sd, FALLBACK_LOG_SD) if borrowed else log_sd,
            memory_peak=gpu.hbm_bandwidth,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillAttentionKernel:
    """Causal attention of prompts, 16-bit arithmetic. Units as in :class:`GemmKernel`."""

    compute_rate: Numbers
    memory_rate: Numbers
    overhead: Numbers
    softmax_time: Numbers
    sm_count: Numbers
    log_sd: Numbers
    compute_peak: Numbers = np.inf
    memory_peak: Numbers = np.inf

    @classmethod
    def of(cls, gpu: GPU) -> PrefillAttentionKernel:
        rows = gpu.calibration.prefill_attention
        dtype = next((d for d in SIXTEEN_BITS if d in gpu.peak_flops), None)
        if dtype is None:
            raise SpecError(f"GPU {gpu.name!r} has no 16-bit tensor peak")
        return cls(
            compute_rate=gpu.peak_flops[dtype] * rows.compute_efficiency,
            memory_rate=gpu.hbm_bandwidth * rows.memory_efficiency,
            overhead=rows.overhead,
            softmax_time=rows.softmax_time,
            sm_count=float(gpu.sm_count),
            log_sd=gpu.calibration.log_sd.get("prefill_attention", FALLBACK_LOG_SD),
            compute_peak=gpu.peak_flops[dtype],
            memory_peak=gpu.hbm_bandwidth,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ElementwiseKernel:
    """Norms, rope, activations and other small kernels. Units as in :class:`GemmKernel`."""

    memory_rate: Numbers
    overhead: Numbers
    log_sd: Numbers
    memory_peak: Numbers = np.inf

    @classmethod
    def of(cls, gpu: GPU) -> ElementwiseKernel:
        rows = gpu.calibration.elementwise
        return cls(
            memory_rate=gpu.hbm_bandwidth * rows.memory_efficiency,
            overhead=rows.overhead,
            log_sd=gpu.calibration.log_sd.get("elementwise", ELEMENTWISE_LOG_SD),
            memory_peak=gpu.hbm_bandwidth,
        )


Kernel = TypeVar("Kernel")


def stack(kernels: Sequence[Kernel]) -> Kernel:
    """One kernel whose every attribute is an array over `kernels`, shape ``(len(kernels),)``."""
    first: Any = kernels[0]
    columns = {
        f.name: np.array([getattr(k, f.name) for k in kernels], dtype=np.float64) for f in fields(first)
    }
    stacked: Kernel = type(first)(**columns)
    return stacked


_PEAKS = {"compute_rate": "compute_peak", "memory_rate": "memory_peak", "activation_rate": "memory_peak"}


def within_peaks(kernel: Kernel, factor: Numbers) -> Kernel:
    """Kernel whose times may be multiplied by `factor` and still beat no figure of the vendor's.

    A rate grows by ``1 / factor`` when the time shrinks by `factor`, so that it may be no more than `factor`
    of its peak before.
    """
    known: Any = kernel
    rates = {
        rate: np.minimum(getattr(known, rate), factor * getattr(known, peak))
        for rate, peak in _PEAKS.items()
        if hasattr(known, rate)
    }
    capped: Kernel = replace(known, **rates)
    return capped


def faster_than_peaks(kernel: Any, factor: Numbers) -> Any:
    """Whether a rate of `kernel` lies above `factor` times its peak."""
    pairs = [(rate, peak) for rate, peak in _PEAKS.items() if hasattr(kernel, rate)]
    return np.any([getattr(kernel, rate) > factor * getattr(kernel, peak) for rate, peak in pairs], axis=0)


def smooth_maximum(a: Numbers, b: Numbers, exponent: Numbers) -> Numbers:
    """``(a^p + b^p)^(1/p)`` for non-negative `a`, `b`, without overflow."""
    high = np.maximum(np.maximum(a, b), _TINY)
    low = np.minimum(a, b)
    return high * (1.0 + (low / high) ** exponent) ** (1.0 / exponent)


def gemm_time(kernel: GemmKernel, m: Numbers, n: Numbers, k: Numbers) -> Numbers:
    r"""Time of an (m, k) by (k, n) product.

    Parameters
    ----------
    m, n, k : number or ndarray, broadcastable with the kernel
        Rows (tokens), columns and depth. `m` may be fractional: a mean of steps.

    Returns
    -------
    number or ndarray
        0 where ``m == 0``. [s]

    Notes
    -----
    :math:`t_0 + \lVert 2mnk/\pi,\; (a\,mk + w\,nk + 2mn)/\beta \rVert_p + mk(2 + a)/\beta_q` with
    attained rates :math:`\pi, \beta` and storage of activations :math:`a` and weights :math:`w`; the
    last term is the pass that quantises 16-bit activations.
    """
    traffic = kernel.activation_bytes * m * k + kernel.weight_bytes * n * k + 2.0 * m * n
    busy = smooth_maximum(
        2.0 * m * n * k / kernel.compute_rate, traffic / kernel.memory_rate, kernel.exponent
    )
    quantization = m * k * (2.0 + kernel.activation_bytes) / kernel.quantization_rate
    return np.where(np.asarray(m) > 0, kernel.overhead + busy + quantization, 0.0)


def decode_attention_time(
    kernel: DecodeAttentionKernel,
    batch: Numbers,
    context: Numbers,
    heads: Numbers,
    kv_heads: Numbers,
    head_dim: Numbers,
) -> Numbers:
    r"""Time of one layer's attention for `batch` sequences of mean length `context` [tok].

    `heads` and `kv_heads` are those of one GPU. Returns 0 where ``batch == 0``. [s]

    Notes
    -----
    :math:`t_0 + (2BH_{kv}dLb + 4BH_qd)/\beta + t_{cta}BH_{kv}/SM`: the KV cache and the 16-bit query and
    output cross HBM once; the last term is the work of one thread block per sequence and KV head.
    """
    traffic = 2.0 * batch * kv_heads * head_dim * context * kernel.kv_bytes + 4.0 * batch * heads * head_dim
    blocks = kernel.cta_time * batch * kv_heads / kernel.sm_count
    return np.where(np.asarray(batch) > 0, kernel.overhead + traffic / kernel.memory_rate + blocks, 0.0)


def prefill_attention_time(
    kernel: PrefillAttentionKernel,
    area: Numbers,
    query: Numbers,
    keys: Numbers,
    launches: Numbers,
    heads: Numbers,
    kv_heads: Numbers,
    head_dim: Numbers,
) -> Numbers:
    r"""Time of one layer's attention over prompts.

    Parameters
    ----------
    area : number or ndarray
        Query-key pairs under the causal mask, ``q past + q^2 / 2`` summed over chunks and prompts.
    query, keys : number or ndarray
        Query tokens, and key tokens read, summed over chunks and prompts. [tok]
    launches : number or ndarray
        Kernel launches (steps).

    Notes
    -----
    :math:`n t_0 + F/\pi + Q/\beta + (F/4d)\,t_{exp}/SM` with :math:`F = 4H_qd \cdot area` and :math:`Q` the
    16-bit queries, outputs, keys and values. The last term is the softmax's exponentials.
    """
    flop = 4.0 * heads * head_dim * area
    traffic = 2.0 * head_dim * (2.0 * heads * query + 2.0 * kv_heads * keys)
    softmax = heads * area / kernel.sm_count * kernel.softmax_time
    return launches * kernel.overhead + flop / kernel.compute_rate + traffic / kernel.memory_rate + softmax


def elementwise_time(kernel: ElementwiseKernel, traffic: Numbers, launches: Numbers) -> Numbers:
    """Time of `launches` norm, rope or activation kernels that move `traffic` [B] in all. [s]"""
    return launches * kernel.overhead + traffic / kernel.memory_rate
