"""How a form does on shapes that it was not fitted to: each half of the shapes by a fit to the other half."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.calibration.fitting import Fit, predicted, robust_sd
from planner.calibration.forms import Peaks
from planner.samples import Operator, Samples
from planner.units import PERCENT

GROUPED_BY: Mapping[Operator, tuple[str, ...]] = {
    Operator.GEMM: ("n", "k"),
    Operator.DECODE_ATTENTION: ("heads", "kv_heads", "head_dim"),
    Operator.PREFILL_ATTENTION: ("heads", "kv_heads", "head_dim"),
    Operator.EXPERTS: ("hidden", "intermediate", "experts", "top_k", "ep"),
    Operator.LATENT_DECODE: ("heads", "batch"),
    Operator.LATENT_PREFILL: ("heads", "batch"),
    Operator.ALL_REDUCE: ("bytes",),
}
"""Axes that are a property of the model and its sharding: samples that agree in them are one group."""
_SEED = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """Errors on groups that were not fitted: predicted over measured, less 1."""

    groups: int
    median_abs_error: float
    p90_abs_error: float
    bias: float
    log_sd: float


def held_out(samples: Samples, peaks: Peaks, fit_to: Callable[[Samples], Fit]) -> HeldOut | None:
    """Errors of both halves of the groups, drawn at random with a fixed seed; None with one group only."""
    axes = [samples.axes[axis] for axis in GROUPED_BY[samples.operator]]
    groups, group = np.unique(np.column_stack(axes), axis=0, return_inverse=True)
    if len(groups) < 2:
        return None
    order = np.random.default_rng(_SEED).permutation(len(groups))
    first: NDArray[np.bool_] = np.isin(group, order[: len(groups) // 2])
    ratios = []
    for half in (first, ~first):
        values = fit_to(samples.part(half)).values
        tested = samples.part(~half)
        ratios.append(predicted(tested, peaks, values) / tested.time)
    ratio = np.concatenate(ratios)
    return HeldOut(
        groups=len(groups),
        median_abs_error=float(np.median(np.abs(ratio - 1))),
        p90_abs_error=float(np.percentile(np.abs(ratio - 1), 0.9 * PERCENT)),
        bias=float(np.median(ratio) - 1),
        log_sd=robust_sd(np.log(ratio)),
    )
