"""How far predictions are from measurements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.arrays import FloatArray

INTERVAL_Z = 1.2815515655446004  # of the 80 % interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Errors of one latency over some rows, as shares of what was measured.

    Attributes
    ----------
    n : int
        Rows that have both a prediction and a measurement.
    median_ape, mape, p90_ape : float
        Median, mean and 90th percentile of ``|predicted / measured - 1|``. [1]
    bias : float
        Median of ``predicted / measured - 1``. [1]
    covered : float or None
        Share of rows whose measurement lies in the prediction's 80 % interval; None without intervals. [1]
    """

    n: int
    median_ape: float
    mape: float
    p90_ape: float
    bias: float
    covered: float | None = None


def errors_of(predicted: FloatArray, measured: FloatArray, log_sd: FloatArray | None = None) -> Errors | None:
    """Errors over the rows where both are finite and above 0; None where there is no such row.

    Parameters
    ----------
    predicted, measured : ndarray
        One per row, in the same unit.
    log_sd : ndarray, optional
        Spread of each prediction, natural logarithm: its 80 % interval is ``predicted exp(+-1.28 log_sd)``.
    """
    known = np.isfinite(predicted) & np.isfinite(measured) & (predicted > 0) & (measured > 0)
    if not known.any():
        return None
    ratio = predicted[known] / measured[known]
    off = np.abs(ratio - 1.0)
    covered = None
    if log_sd is not None:
        covered = float(np.mean(np.abs(np.log(ratio)) <= INTERVAL_Z * log_sd[known]))
    return Errors(
        n=int(known.sum()),
        median_ape=float(np.median(off)),
        mape=float(np.mean(off)),
        p90_ape=float(np.quantile(off, 0.9)),
        bias=float(np.median(ratio) - 1.0),
        covered=covered,
    )
