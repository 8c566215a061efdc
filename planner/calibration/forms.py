"""Forms of operators with free coefficients: the very functions that predictions use.

Each form names its coefficients, the bounds within which a fit may move them, and what they are on a GPU of
which nothing is known (geometric means over the data-centre GPUs with published operator tables).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.arrays import FloatArray, Numbers
from planner.collectives import AllReduce, all_reduce_time
from planner.errors import SpecError
from planner.experts import ExpertsKernel, experts_time
from planner.latent import LatentDecodeKernel, latent_decode_time, latent_prefill_time
from planner.roofline import (
    EFFICIENCY_LIMIT,
    DecodeAttentionKernel,
    ElementwiseKernel,
    GemmKernel,
    PrefillAttentionKernel,
    decode_attention_time,
    elementwise_time,
    gemm_time,
    prefill_attention_time,
)
from planner.samples import Operator, Samples
from planner.specs import GPU, Dtype, LatentAttention
from planner.transformer import windowed_area
from planner.units import MICRO, MILLI, NANO

Values = Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Coefficient:
    """One free number of a form: bounds, and its value and spread (natural log) over known GPUs."""

    name: str
    low: float
    high: float
    typical: float
    log_sd: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Peaks:
    """What efficiencies are shares of. [FLOP/s, B/s, 1, B/s]"""

    compute: float
    bandwidth: float
    sm_count: float
    link: float = np.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """An operator's time by its coefficients.

    Attributes
    ----------
    time : callable
        (coefficients, samples, peaks) to times of all samples. [s]
    least : callable
        (samples, peaks) to the times that arithmetic and traffic take at the peaks: no kernel beats them. [s]
    """

    operator: Operator
    coefficients: tuple[Coefficient, ...]
    time: Callable[[Values, Samples, Peaks], Numbers]
    least: Callable[[Samples, Peaks], FloatArray]


def _efficiency(name: str, typical: float, low: float = 0.05, log_sd: float = 0.3) -> Coefficient:
    return Coefficient(name=name, low=low, high=EFFICIENCY_LIMIT, typical=typical, log_sd=log_sd)


def _duration(name: str, typical: float, low: float, high: float = MILLI, log_sd: float = 0.7) -> Coefficient:
    return Coefficient(name=name, low=low, high=high, typical=typical, log_sd=log_sd)


_OVERHEAD_FLOOR = 0.2 * MICRO
_EXPONENT = Coefficient(name="norm_exponent", low=1.0, high=12.0, typical=2.0, log_sd=0.5)
_SMALLEST = NANO * MICRO


def _gemm_kernel(v: Values, s: Samples, peaks: Peaks) -> GemmKernel:
    dtype = s.dtype or Dtype.BF16
    passes = s.axes["quantize"] > 0
    rate = peaks.bandwidth * v.get("quantization_efficiency", 1.0)
    return GemmKernel(
        compute_rate=peaks.compute * v["compute_efficiency"],
        memory_rate=peaks.bandwidth * v["memory_efficiency"],
        overhead=v["overhead"],
        exponent=v["norm_exponent"],
        quantization_rate=np.where(passes, rate, np.inf),
        weight_bytes=dtype.bytes,
        activation_bytes=min(dtype.bytes, Dtype.BF16.bytes) if dtype is not Dtype.FP32 else dtype.bytes,
        log_sd=0.0,
    )


def _gemm(v: Values, s: Samples, peaks: Peaks) -> Numbers:
    return gemm_time(_gemm_kernel(v, s, peaks), s.axes["m"], s.axes["n"], s.axes["k"])


_AT_PEAK = {
    "compute_efficiency": 1.0,
    "memory_efficiency": 1.0,
    "activation_efficiency": 1.0,
    "overhead": 0.0,
    "norm_exponent": 60.0,  # the larger of both
    "cta_time": 0.0,
    "softmax_time": 0.0,
    "block_time": 0.0,
}
"""Coefficients of a kernel that reaches the peaks."""


def _least_gemm(s: Samples, peaks: Peaks) -> FloatArray:
    bare = Samples(
        operator=s.operator,
        dtype=s.dtype,
        axes={**s.axes, "quantize": np.zeros(len(s))},
        time=s.time,
        spread=s.spread,
    )
    return np.asarray(_gemm(_AT_PEAK, bare, peaks))


def _decode_attention(v: Values, s: Samples, peaks: Peaks) -> Numbers:
    a = s.axes
    kernel = DecodeAttentionKernel(
        memory_rate=peaks.bandwidth * v["memory_efficiency"],
        overhead=v["overhead"],
        cta_time=v["cta_time"],
        sm_count=peaks.sm_count,
        kv_bytes=(s.dtype or Dtype.BF16).bytes,
        log_sd=0.0,
    )
    return decode_attention_time(kernel, a["batch"], a["context"], a["heads"], a["kv_heads"], a["head_dim"])


def area_of(query: FloatArray, past: FloatArray, window: FloatArray) -> Numbers:
    """Query-key pairs of `query` tokens after `past` ones under the causal mask and a window (0: none)."""
    return windowed_area(query, past, np.where(window > 0, window, query + past))


def _prefill_kernel(v: Values, peaks: Peaks) -> PrefillAttentionKernel:
    return PrefillAttentionKernel(
        compute_rate=peaks.compute * v["compute_efficiency"],
        memory_rate=peaks.bandwidth * v["memory_efficiency"],
        overhead=v["overhead"],
        softmax_time=v["softmax_time"],
        sm_count=peaks.sm_count,
        log_sd=0.0,
    )


def _prefill_attention(v: Values, s: Samples, peaks: Peaks) -> Numbers:
    a = s.axes
    pairs = area_of(a["query"], a["past"], a["window"])
    return prefill_attention_time(
        _prefill_kernel(v, peaks),
        area=a["batch"] * pairs,
        query=a["batch"] * a["query"],
        keys=a["batch"] * (a["query"] + a["past"]),
        launches=1.0,
        heads=a["heads"],
        kv_heads=a["kv_heads"],
        head_dim=a["head_dim"],
    )


def _least_prefill_attention(s: Samples, peaks: Peaks) -> FloatArray:
    return _larger(_prefill_attention, s, peaks)


def _larger(
    time: Callable[[Values, Samples, Peaks], Numbers], s: Samples, peaks: Peaks, *, memory: bool = True
) -> FloatArray:
    """The larger of arithmetic and traffic at the peaks, of a form that adds them."""
    unlimited = 1 / _SMALLEST
    bound = np.asarray(time({**_AT_PEAK, "memory_efficiency": unlimited}, s, peaks))
    if memory:
        bound = np.maximum(bound, time({**_AT_PEAK, "compute_efficiency": unlimited}, s, peaks))
    return bound


@dataclass(frozen=True, slots=True)
class _Block:
    """Experts of every sample."""

    experts: FloatArray
    top_k: FloatArray
    intermediate: FloatArray
    matrices: FloatArray


def _experts(v: Values, s: Samples, peaks: Peaks) -> Numbers:
    a = s.axes
    kernel = ExpertsKernel(
        compute_rate=peaks.compute * v["compute_efficiency"],
        memory_rate=peaks.bandwidth * v["memory_efficiency"],
        activation_rate=peaks.bandwidth * v["activation_efficiency"],
        overhead=v["overhead"],
        exponent=v["norm_exponent"],
        weight_bytes=(s.dtype or Dtype.BF16).bytes,
        log_sd=0.0,
    )
    block = _Block(a["experts"], a["top_k"], a["intermediate"], a["matrices"])
    return experts_time(kernel, block, a["tokens"], a["hidden"], a["ep"], 1.0)


LATENT = LatentAttention(heads=128, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
"""The one shape of latent attention that benchmarks have: that of DeepSeek-V2 and V3."""


def _latent_decode(v: Values, s: Samples, peaks: Peaks) -> Numbers:
    a = s.axes
    kernel = LatentDecodeKernel(
        compute_rate=peaks.compute * v["compute_efficiency"],
        memory_rate=peaks.bandwidth * v["memory_efficiency"],
        overhead=v["overhead"],
        exponent=v["norm_exponent"],
        block_time=v["block_time"],
        sm_count=peaks.sm_count,
        kv_bytes=(s.dtype or Dtype.BF16).bytes,
        log_sd=0.0,
    )
    return latent_decode_time(kernel, LATENT, a["batch"], a["context"], a["heads"])


def _latent_prefill(v: Values, s: Samples, peaks: Peaks) -> Numbers:
    a = s.axes
    tokens = a["batch"] * a["query"]
    area = tokens * a["query"] / 2
    return latent_prefill_time(_prefill_kernel(v, peaks), LATENT, area, tokens, tokens, 1.0, a["heads"])


def _least_latent_prefill(s: Samples, peaks: Peaks) -> FloatArray:
    return _larger(_latent_prefill, s, peaks)


def _all_reduce(v: Values, s: Samples, peaks: Peaks) -> Numbers:
    ranks = s.axes["ranks"]
    row = AllReduce(
        overhead=v["overhead"] + v["per_rank"] * (ranks - 2),
        time_per_byte=2 * (ranks - 1) / ranks / (peaks.link * v["bandwidth_efficiency"]),
        sqrt_time=np.asarray(v["sqrt_time"]),
    )
    return all_reduce_time(row, s.axes["bytes"])


def _least_all_reduce(s: Samples, peaks: Peaks) -> FloatArray:
    ranks = s.axes["ranks"]
    return 2 * (ranks - 1) / ranks * s.axes["bytes"] / peaks.link


def _elementwise(v: Values, s: Samples, peaks: Peaks) -> Numbers:
    kernel = ElementwiseKernel(
        memory_rate=peaks.bandwidth * v["memory_efficiency"], overhead=v["overhead"], log_sd=0.0
    )
    return elementwise_time(kernel, s.axes["bytes"], 1.0)


def _at_peak(time: Callable[[Values, Samples, Peaks], Numbers]) -> Callable[[Samples, Peaks], FloatArray]:
    return lambda s, peaks: np.asarray(time(_AT_PEAK, s, peaks))


_QUANTIZATION = _efficiency("quantization_efficiency", 0.25)

FORMS: Mapping[Operator, Form] = {
    form.operator: form
    for form in (
        Form(
            operator=Operator.GEMM,
            coefficients=(
                _efficiency("compute_efficiency", 0.75, low=0.02),
                _efficiency("memory_efficiency", 0.81),
                _duration("overhead", 5.0 * MICRO, _OVERHEAD_FLOOR),
                _EXPONENT,
                _QUANTIZATION,
            ),
            time=_gemm,
            least=_least_gemm,
        ),
        Form(
            operator=Operator.DECODE_ATTENTION,
            coefficients=(
                _efficiency("memory_efficiency", 0.87),
                _duration("overhead", 11.0 * MICRO, _OVERHEAD_FLOOR),
                _duration("cta_time", 2.4 * MICRO, NANO),
            ),
            time=_decode_attention,
            least=_at_peak(_decode_attention),
        ),
        Form(
            operator=Operator.PREFILL_ATTENTION,
            coefficients=(
                _efficiency("compute_efficiency", 0.9, low=0.02),
                _efficiency("memory_efficiency", 0.35),
                _duration("overhead", 12.0 * MICRO, _OVERHEAD_FLOOR),
                _duration("softmax_time", 30.0 * NANO * MILLI, _SMALLEST, MICRO, log_sd=1.0),
            ),
            time=_prefill_attention,
            least=_least_prefill_attention,
        ),
        Form(
            operator=Operator.EXPERTS,
            coefficients=(
                _efficiency("compute_efficiency", 0.5, low=0.02),
                _efficiency("memory_efficiency", 0.9),
                _duration("overhead", 45.0 * MICRO, _OVERHEAD_FLOOR),
                _EXPONENT,
                _efficiency("activation_efficiency", 0.45, log_sd=0.5),
            ),
            time=_experts,
            least=_at_peak(_experts),
        ),
        Form(
            operator=Operator.LATENT_DECODE,
            coefficients=(
                _efficiency("memory_efficiency", 0.85),
                _efficiency("compute_efficiency", 0.9, low=0.02),
                _duration("overhead", 13.0 * MICRO, _OVERHEAD_FLOOR),
                _EXPONENT,
                _duration("block_time", 4.5 * MICRO, NANO),
            ),
            time=_latent_decode,
            least=_at_peak(_latent_decode),
        ),
        Form(
            operator=Operator.LATENT_PREFILL,
            coefficients=(
                _efficiency("compute_efficiency", 0.6, low=0.02),
                _efficiency("memory_efficiency", 0.6),
                _duration("overhead", 18.0 * MICRO, _OVERHEAD_FLOOR),
                _duration("softmax_time", 1.2 * NANO * MILLI, _SMALLEST, MICRO, log_sd=1.0),
            ),
            time=_latent_prefill,
            least=_least_latent_prefill,
        ),
        Form(
            operator=Operator.ELEMENTWISE,
            coefficients=(
                _efficiency("memory_efficiency", 0.75),
                _duration("overhead", 2.0 * MICRO, _OVERHEAD_FLOOR),
            ),
            time=_elementwise,
            least=_at_peak(_elementwise),
        ),
        Form(
            operator=Operator.ALL_REDUCE,
            coefficients=(
                _duration("overhead", 4.0 * MICRO, _OVERHEAD_FLOOR),
                _duration("per_rank", 0.2 * MICRO, NANO),
                _efficiency("bandwidth_efficiency", 0.74),
                _duration("sqrt_time", 2.0 * MICRO, NANO),
            ),
            time=_all_reduce,
            least=_least_all_reduce,
        ),
    )
}


def form_of(operator: Operator) -> Form:
    """The form of an operator.

    Raises
    ------
    SpecError
        For operators that tell of the device itself.
    """
    if operator not in FORMS:
        raise SpecError(f"{operator} has no coefficients; those with: {', '.join(FORMS)}")
    return FORMS[operator]


def coefficients_of(gpu: GPU, operator: Operator, dtype: Dtype | None) -> dict[str, float] | None:
    """A profile's coefficients as a form takes them; None where the profile has none of its own."""
    c = gpu.calibration
    rows: Mapping[Operator, Any] = {
        Operator.GEMM: c.gemm.get(dtype) if dtype else None,
        Operator.DECODE_ATTENTION: c.decode_attention.get(dtype) if dtype else None,
        Operator.PREFILL_ATTENTION: c.prefill_attention,
        Operator.EXPERTS: c.moe.get(dtype) if dtype else None,
        Operator.LATENT_DECODE: c.latent_decode.get(dtype) if dtype else None,
        Operator.LATENT_PREFILL: c.latent_prefill,
        Operator.ELEMENTWISE: c.elementwise,
        Operator.ALL_REDUCE: c.all_reduce,
    }
    row = rows.get(operator)
    if row is None:
        return None
    values = {name.name: getattr(row, name.name) for name in FORMS[operator].coefficients}
    return {name: value for name, value in values.items() if value is not None}
