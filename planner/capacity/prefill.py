"""Capacity of prefill replicas: queues of prompts behind a router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.capacity.limits import Curves, Limit, pooled
from planner.capacity.prompts import PromptQueues, Spread
from planner.plan import Binding
from planner.specs import Routing
from planner.traffic import Traffic

MOST_UTILIZATION = 0.995  # of a prefill queue; no steady state is near beyond [1]
BUSY = 0.9  # utilization from which a prefill group is said to be bound by compute [1]
FIRST_STEPS = 1.5  # a new sequence waits for half a step that runs, then for its own [1]
FIRST_STEP_SPREAD: FloatArray = 1 + np.array([1, 3, 5]) / 6  # that half is anything from none to all of it
_BISECTIONS = 18


@dataclass(frozen=True, slots=True)
class PrefillDemand:
    """What a prefill group must meet.

    Attributes
    ----------
    ttft : tuple of Limit
    admission_miss : float
        Part of the miss share that waits for decode slots take. [1]
    first_step : ndarray, shape (C,)
        Time until a new sequence's first decode step has ended. [s]
    transfer : ndarray, shape (points, C)
        Exposed KV transfer of each prompt length. [s]
    routing : Routing
    """

    ttft: tuple[Limit, ...]
    admission_miss: float
    first_step: FloatArray
    transfer: FloatArray
    routing: Routing


def prefill_curves(
    queues: PromptQueues,
    replica: NDArray[np.int64],
    traffic: Traffic,
    demand: PrefillDemand,
    starts: Sequence[int],
) -> Curves:
    """Capacity of C prefill candidates, candidate c being replica ``replica[c]`` of the queues."""
    counts = np.asarray(starts)
    rate = np.zeros((len(replica), len(counts)))
    prompts, load = np.ones_like(rate), np.zeros_like(rate)
    pipelined = queues.stages[replica] > 1
    for kind in (False, True):
        rows = np.flatnonzero(pipelined == kind)
        if len(rows):
            own = queues.at(replica[rows])
            load[rows] = _largest_load(own, rows, traffic, demand, counts.astype(np.float64))
            rate[rows] = own.rate(load[rows], counts, demand.routing)
            prompts[rows] = own.prompts(load[rows], counts, demand.routing)
    binds = np.where(load >= BUSY, Binding.COMPUTE.value, Binding.TTFT.value)
    return pooled(Curves(counts, rate, prompts, binds))


def _largest_load(
    queues: PromptQueues,
    rows: NDArray[np.int64],
    traffic: Traffic,
    demand: PrefillDemand,
    counts: FloatArray,
) -> FloatArray:
    """Largest load within the limits, by bisection, shape (C, N), of the candidates `rows`."""
    after = _after(queues, rows, traffic, demand)
    low = np.zeros((len(rows), len(counts)))
    high = np.full_like(low, MOST_UTILIZATION)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        sojourn = queues.sojourn(middle, counts, demand.routing, traffic.arrival_scv, after)
        fits = np.ones(low.shape, dtype=bool)
        for limit in demand.ttft:
            if limit.probability is None:
                fits &= sojourn.mean <= limit.time
            else:
                fits &= sojourn.exceeds(limit.time) <= limit.miss - demand.admission_miss
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(low <= MOST_UTILIZATION * 2.0 ** (1 - _BISECTIONS), 0.0, low)


def _after(queues: PromptQueues, rows: NDArray[np.int64], traffic: Traffic, demand: PrefillDemand) -> Spread:
    """Prompt, transfer and first decode step of the candidates `rows`, on few points."""
    steps = FIRST_STEP_SPREAD / FIRST_STEPS * demand.first_step[rows][:, None]
    after = (demand.transfer.T[rows][:, :, None] + steps[:, None, :]).reshape(len(rows), -1)
    alone = np.repeat(queues.alone, len(FIRST_STEP_SPREAD), axis=1)
    weights = np.repeat(traffic.isl_weights / len(FIRST_STEP_SPREAD), len(FIRST_STEP_SPREAD))
    return Spread(alone + after, alone / queues.stages[:, None] + after, weights).condensed()
