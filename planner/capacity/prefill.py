"""Capacity of prefill replicas: queues of prompts behind a router."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.capacity.limits import Curves, Limit, pooled
from planner.latency import Companions, prompt_time
from planner.operators import ReplicaSet
from planner.plan import Binding
from planner.queueing import ServiceShape, pooled_wait
from planner.specs import Routing
from planner.traffic import Traffic

MOST_UTILIZATION = 0.995  # of a prefill queue; no steady state is near beyond [1]
BUSY = 0.9  # utilization from which a prefill group is said to be bound by compute [1]
PROMPTS_PER_STEP = (1, 2, 4, 8, 16, 32)
FIRST_STEPS = 1.5  # a new sequence waits for half a step that runs, then for its own [1]
_LEAST_OCCUPANCY = 1e-3  # of the shortest prompt, in mean occupancies [1]
_BISECTIONS = 22


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


@dataclass(frozen=True, slots=True)
class PromptQueue:
    """Prefill replicas that compute `number` prompts per step.

    Attributes
    ----------
    latency : ndarray, shape (R, points)
        Of each prompt length beside its companions, without wait. [s]
    shape : ServiceShape, (R,)
        Of the time that a prompt occupies its replica.
    """

    number: int
    latency: FloatArray
    shape: ServiceShape


def prompt_queues(r: ReplicaSet, traffic: Traffic, token_budget: float) -> tuple[PromptQueue, ...]:
    """Queues of R prefill replicas, one for each number of prompts per step that fits the budget.

    Under load an engine batches greedily, see :func:`sharing`; it does at least as well as the best
    fixed number.
    """
    queues: list[PromptQueue] = []
    alone: FloatArray | None = None
    for number in PROMPTS_PER_STEP:
        if number > 1 and number * traffic.mean_query > token_budget:
            break
        beside = Companions(number - 1.0, traffic.mean_query, traffic.mean_area)
        time = prompt_time(r, traffic.query[:, None], traffic.cached[:, None], token_budget, beside)
        service = np.ascontiguousarray(time.service.T)
        alone = service if alone is None else alone
        occupancy, latency = sharing(alone, service, traffic.isl_weights, number)
        shape = ServiceShape.of(occupancy / r.lanes[:, None], traffic.isl_weights)
        queues.append(PromptQueue(number, latency, shape))
    return tuple(queues)


def sharing(
    alone: FloatArray, service: FloatArray, weights: FloatArray, number: int
) -> tuple[FloatArray, FloatArray]:
    r"""What a prompt occupies and what it takes when `number` prompts share its steps, shape (..., points).

    Parameters
    ----------
    alone, service : ndarray, shape (..., points)
        Time of each prompt length by itself, and beside ``number - 1`` average ones. [s]
    weights : ndarray, shape (points,)

    Notes
    -----
    Sharing saves what a step costs whatever is in it. The rest of a prompt's work stays its own, and
    with it the variance that makes others wait: a prompt that takes :math:`s` beside `b` - 1 average ones
    occupies :math:`s - E[s] + E[s]/b`. Of its companions those ahead are in the wait already, so that
    half of them lengthen its own step. Both are ours; `tests/test_capacity_simulation.py` compares them
    with a simulation of greedy batching.
    """
    if number == 1:
        return service, service
    mean = (service @ weights)[..., None]
    occupancy = np.maximum(service - mean * (1 - 1 / number), _LEAST_OCCUPANCY * mean)
    return occupancy, service - 0.5 * (mean - (alone @ weights)[..., None])


def prefill_curves(
    queues: Sequence[PromptQueue],
    replica: NDArray[np.int64],
    traffic: Traffic,
    demand: PrefillDemand,
    starts: Sequence[int],
) -> Curves:
    """Capacity of C prefill candidates, candidate c being replica ``replica[c]`` of the queues."""
    counts = np.asarray(starts)
    best = np.zeros((len(replica), len(counts)))
    prompts = np.ones_like(best)
    utilization = np.zeros_like(best)
    for queue in queues:
        load = _prefill_load(queue, replica, traffic, demand, counts)
        rate = load / queue.shape.mean[replica][:, None]
        better = rate > best
        best = np.where(better, rate, best)
        prompts = np.where(better, queue.number, prompts)
        utilization = np.where(better, load, utilization)
    binds = np.where(utilization >= BUSY, Binding.COMPUTE.value, Binding.TTFT.value)
    return pooled(Curves(counts, best, prompts, binds))


def _prefill_load(
    queue: PromptQueue,
    replica: NDArray[np.int64],
    traffic: Traffic,
    demand: PrefillDemand,
    counts: NDArray[np.int64],
) -> FloatArray:
    """Largest utilization within the limits, by bisection, shape (C, N)."""
    weights = traffic.isl_weights
    shape = queue.shape.at(replica).expanded()
    latency = (queue.latency[replica] + demand.transfer.T + demand.first_step[:, None])[:, None, :]
    low = np.zeros((len(replica), len(counts)))
    high = np.full_like(low, MOST_UTILIZATION)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        wait = pooled_wait(demand.routing, shape, middle * counts / shape.mean, counts, traffic.arrival_scv)
        sojourn = wait.plus(latency, weights)
        fits = np.ones(low.shape, dtype=bool)
        for limit in demand.ttft:
            if limit.probability is None:
                fits &= sojourn.mean <= limit.time
            else:
                fits &= sojourn.exceeds(limit.time) <= limit.miss - demand.admission_miss
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(low <= MOST_UTILIZATION * 2.0 ** (1 - _BISECTIONS), 0.0, low)
