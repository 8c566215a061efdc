"""All-reduce over PCIe: one latency and one bandwidth for each world size, since no law joins these."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from planner.calibration.fitting import FEWEST_SAMPLES, Fit
from planner.samples import Samples

LINEAR: Mapping[str, float] = {"per_rank": 0.0, "sqrt_time": 0.0}
"""Coefficients of the ring's law that a latency and a bandwidth leave out."""


def fits_by_world(samples: Samples, fit_one: Callable[[Samples], Fit]) -> dict[int, Fit]:
    """A fit for each number of ranks with enough message sizes, by `fit_one`, which fixes :data:`LINEAR`."""
    usable = samples.part(np.isfinite(samples.time) & (samples.time > 0))
    ranks = usable.axes["ranks"]
    parts = {int(n): usable.part(ranks == n) for n in np.unique(ranks)}
    enough = {n: part for n, part in parts.items() if len(np.unique(part.axes["bytes"])) >= FEWEST_SAMPLES}
    return {n: fit_one(part) for n, part in enough.items()}
