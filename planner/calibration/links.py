"""All-reduce over PCIe: one latency and one bandwidth for each world size, since no law joins these."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.calibration.fitting import robust_sd
from planner.samples import Samples
from planner.units import GIGA, MICRO

_LEAST_LOG_SD = 0.05


def pcie_rows(samples: Samples) -> dict[str, Any] | None:
    """The section of a profile; None where no world size has two message sizes.

    ``alpha + 2 (n - 1)/n bytes / bandwidth``: the latency is what the smallest messages take, the bandwidth
    what the median of the largest quarter attains beyond it.
    """
    usable = samples.part(np.isfinite(samples.time) & (samples.time > 0))
    rows: dict[str, Any] = {}
    errors: list[np.ndarray[Any, Any]] = []
    for ranks in sorted({int(n) for n in usable.axes["ranks"]}):
        part = usable.part(usable.axes["ranks"] == ranks)
        sizes = part.axes["bytes"]
        if len(set(sizes.tolist())) < 2:
            continue
        small = sizes <= np.quantile(sizes, 0.25)
        large = sizes >= np.quantile(sizes, 0.75)
        alpha = float(np.median(part.time[small]))
        wire = 2 * (ranks - 1) / ranks * sizes
        beyond = np.maximum(part.time[large] - alpha, part.time[large] / 10)
        rate = float(np.median(wire[large] / beyond))
        errors.append(np.log((alpha + wire / rate) / part.time))
        rows[str(ranks)] = {"alpha_us": _rounded(alpha / MICRO), "gb_per_s": _rounded(rate / GIGA)}
    if not rows:
        return None
    every = np.concatenate(errors)
    residual = {
        "points": len(every),
        "median_abs_error": _rounded(float(np.median(np.abs(np.expm1(every))))),
        "bias": _rounded(float(np.expm1(np.median(every)))),
        "log_sd": _rounded(max(robust_sd(every), _LEAST_LOG_SD)),
    }
    return {"by_world_size": rows, "residual": residual}


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
