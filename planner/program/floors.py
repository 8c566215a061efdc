"""The least that a stream costs at any prices of GPUs, from its pools."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from planner.program.columns import SOON, WIDER, Floats, Ints, StreamPools, TooManyError
from planner.program.problem import POOLS_OF_MODE
from planner.specs import Phase


def floor_of(
    stream: StreamPools, prices: Floats, pools: Mapping[Phase, tuple[float, Ints]]
) -> tuple[float, Ints]:
    """Least cost of a stream, and the GPUs of that plan; a lower bound and no GPUs where it is not found."""
    modes = [[pools[phase] for phase in POOLS_OF_MODE[mode]] for mode in stream.problem.modes]
    best = min(modes, key=lambda parts: sum(value for value, _ in parts))
    floor, usage = sum(value for value, _ in best), sum(used for _, used in best)
    if not stream.illegal.any() or not np.isfinite(floor):
        return floor, np.asarray(usage)
    floors = {phase: value for phase, (value, _) in pools.items()}
    known = floor
    for factor in WIDER:
        try:
            plans = stream.plans(prices, floors, floor * factor, effort=SOON)
        except TooManyError:
            break
        if plans.cost.size:
            return float(plans.cost[0]), plans.usage[0]
        known = floor * factor
    return known, np.zeros(prices.size, np.int64)
