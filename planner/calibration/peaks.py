"""Peaks that efficiencies are shares of: a profile's, or what a device of unknown make attained at best."""

from __future__ import annotations

import math

import numpy as np

from planner.arrays import FloatArray
from planner.calibration.forms import FORMS, Peaks
from planner.errors import SpecError
from planner.roofline import SIXTEEN_BITS
from planner.samples import Operator, Samples, SampleSet
from planner.specs import GPU, Dtype

_WEIGHT_ONLY = (Dtype.MXFP4, Dtype.INT4)
_PEAK_OF = {
    Dtype.BF16: SIXTEEN_BITS,
    Dtype.FP16: (Dtype.FP16, Dtype.BF16),
    Dtype.FP8_BLOCK: (Dtype.FP8_BLOCK, Dtype.FP8),
}


def peaks_of(gpu: GPU, operator: Operator, dtype: Dtype | None) -> Peaks:
    """What the coefficients of an operator are relative to on a GPU of known make.

    Attention, and experts stored in four bits without arithmetic of their own, are shares of the 16-bit peak.

    Raises
    ------
    SpecError
        If the GPU has no peak for the format.
    """
    known = gpu.peak_flops
    own = operator in (Operator.GEMM, Operator.EXPERTS) and dtype not in (None, *_WEIGHT_ONLY)
    wanted = _PEAK_OF.get(dtype, (dtype,)) if own and dtype is not None else SIXTEEN_BITS
    peak = next((known[d] for d in wanted if d in known), None)
    if peak is None:
        raise SpecError(f"GPU {gpu.name!r} has no peak for {dtype} (add it to its spec)")
    return Peaks(
        compute=peak,
        bandwidth=gpu.hbm_bandwidth,
        sm_count=float(gpu.sm_count),
        link=gpu.scale_up_bandwidth,
    )


def traffic_of(samples: Samples) -> FloatArray:
    """Bytes that must cross the memory for each case. [B]"""
    form = FORMS[samples.operator]
    return form.least(samples, Peaks(compute=math.inf, bandwidth=1.0, sm_count=1.0, link=math.inf))


def arithmetic_of(samples: Samples) -> FloatArray:
    """Arithmetic of each case. [FLOP]"""
    form = FORMS[samples.operator]
    return form.least(samples, Peaks(compute=1.0, bandwidth=math.inf, sm_count=1.0, link=math.inf))


_STREAMING = tuple(operator for operator in FORMS if operator is not Operator.ALL_REDUCE)


def attained_bandwidth(samples: SampleSet, cache: float) -> float:
    """The largest traffic over time of cases that no cache of `cache` bytes holds. [B/s]

    Raises
    ------
    SpecError
        If no copy was timed.
    """
    copy = samples.get(Operator.COPY)
    if copy is None or not len(_usable(copy)):
        raise SpecError(
            "no copy was timed: nothing tells the memory bandwidth (add rows of operator copy, or name a GPU "
            "of the catalogue)"
        )
    best = 0.0
    for (operator, _), found in samples.tables.items():
        usable = _usable(found)
        if not len(usable):
            continue
        if operator is Operator.COPY:
            best = max(best, float(np.max(usable.axes["bytes"] / usable.time)))
        elif operator in _STREAMING:
            moved = traffic_of(usable)
            large = moved > 3 * cache
            best = max(best, float(np.max(np.where(large, moved / usable.time, 0.0))))
    return best


def attained_arithmetic(samples: SampleSet, dtype: Dtype) -> float:
    """The largest rate of matrix products of a format. [FLOP/s]

    Raises
    ------
    SpecError
        If none was timed.
    """
    found = samples.get(Operator.GEMM, dtype)
    usable = None if found is None else _usable(found)
    if usable is None or not len(usable):
        raise SpecError(f"no matrix product in {dtype} was timed: its peak cannot be told")
    return float(np.max(arithmetic_of(usable) / usable.time))


def _usable(samples: Samples) -> Samples:
    return samples.part(np.isfinite(samples.time) & (samples.time > 0))
