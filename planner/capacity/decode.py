"""Capacity of decode replicas: batches that keep steps and caches within limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import FloatArray
from planner.capacity.latency_model import LatencyModel, latency_of
from planner.capacity.limits import Curves, Limit, pooled
from planner.operators import ReplicaSet
from planner.plan import Binding
from planner.queueing import normal_quantile, operating_batch_for_quantile
from planner.traffic import Traffic


def batch_for_tokens(capacity: FloatArray, traffic: Traffic, miss: float) -> FloatArray:
    r"""Sequences whose reserved tokens fit `capacity` [tok] with probability ``1 - miss``.

    Notes
    -----
    Solves :math:`B\mu + z\sigma\sqrt{B} = capacity` for the sum of B reserved lengths.
    """
    z = float(normal_quantile(1 - miss)) * traffic.reserved_sd
    mu = traffic.reserved
    root = (np.sqrt(z * z + 4 * mu * np.maximum(capacity, 0.0)) - z) / (2 * mu)
    return np.asarray(root * root)


@dataclass(frozen=True, slots=True)
class DecodeDemand:
    """What a decode group must meet.

    Attributes
    ----------
    tpot : tuple of Limit
    first_step : ndarray, shape (C,)
        Longest step, at the operating batch, that the partners' TTFT leaves room for. [s]
    admission_miss : float
        Share of requests that may find no free slot. [1]
    kv_tokens, max_num_seqs : ndarray, shape (C,)
        Slots of one replica. [tok, 1]
    """

    tpot: tuple[Limit, ...]
    first_step: FloatArray
    admission_miss: float
    kv_tokens: FloatArray
    max_num_seqs: FloatArray


def batch_grid(r: ReplicaSet | LatencyModel, largest: float) -> FloatArray:
    """Batches at which decode steps are evaluated, shape (points, C).

    Captured micro-batches, and one sequence more than each: there the step jumps to that of the next
    captured size, so that the staircase is kept and interpolation is exact between jumps.
    """
    model = latency_of(r)
    captured = [float(s) for s in model.batch_sizes if s <= largest]
    sizes = {*captured, *(s + 1 for s in captured if s + 1 <= largest), largest}
    sizes |= set(np.arange(max(captured, default=0.0), largest, 64.0).tolist())
    sizes.discard(0.0)
    return np.asarray(np.array(sorted(sizes))[:, None] * model.pp * model.dp)


def decode_curves(
    r: ReplicaSet | LatencyModel, traffic: Traffic, demand: DecodeDemand, starts: Sequence[int]
) -> Curves:
    """Capacity of decode replicas: the operating batch whose quantiles stay within every limit."""
    counts = np.asarray(starts)
    grid = batch_grid(r, float(np.max(demand.max_num_seqs)))
    times = latency_of(r).decode_step(grid, traffic.decode_context)
    grid, times = np.ascontiguousarray(grid.T), np.ascontiguousarray(times.T)

    slots = batch_for_tokens(demand.kv_tokens, traffic, demand.admission_miss)
    ceilings = [
        (Binding.KV_CAPACITY, 1 - demand.admission_miss, slots),
        (Binding.MAX_NUM_SEQS, 1 - demand.admission_miss, demand.max_num_seqs),
    ]
    for limit in demand.tpot:
        # the mean of a nearly linear step is the step at the operating batch
        probability = 0.5 if limit.probability is None else limit.probability
        longest = limit.time * traffic.tokens_per_step
        ceilings.append((Binding.TPOT, probability, _largest_batch(grid, times, longest)))

    operating = np.full((len(grid), len(counts)), np.inf)
    binds = np.full(operating.shape, Binding.TPOT.value, dtype="U24")
    for binding, probability, ceiling in ceilings:
        batch = operating_batch_for_quantile(
            ceiling[:, None], grid[:, None, :], times[:, None, :], counts, probability
        )
        batch = np.where(ceiling[:, None] >= 1.0, batch, 0.0)
        binds = np.where(batch < operating, binding.value, binds)
        operating = np.minimum(operating, batch)
    in_time = _largest_batch(grid, times, demand.first_step)[:, None]
    binds = np.where(in_time < operating, Binding.TTFT.value, binds)
    operating = np.minimum(operating, in_time)
    step = _interpolate(grid, times, operating)
    return pooled(Curves(counts, operating / (traffic.decode_steps * step), operating, binds))


def _largest_batch(grid: FloatArray, times: FloatArray, limit: FloatArray | float) -> FloatArray:
    """Largest batch whose step stays within `limit`, interpolated; 0 where even one does not fit. (C,)"""
    bound = np.minimum(np.broadcast_to(np.asarray(limit, dtype=np.float64), len(grid)), times[:, -1])
    fits = np.logical_and.accumulate(times <= bound[:, None], axis=1).sum(axis=1)
    last = np.clip(fits - 1, 0, grid.shape[1] - 2)
    rows = np.arange(len(grid))
    x0, x1 = grid[rows, last], grid[rows, last + 1]
    t0, t1 = times[rows, last], times[rows, last + 1]
    share = np.clip((bound - t0) / np.maximum(t1 - t0, 1e-12), 0.0, 1.0)
    return np.where(fits == 0, 0.0, x0 + share * (x1 - x0))


def _interpolate(grid: FloatArray, values: FloatArray, x: FloatArray) -> FloatArray:
    """Row-wise linear interpolation of ``values[c]`` over ``grid[c]`` at ``x[c]``, flat at the ends."""
    result = np.empty(x.shape)
    for row in range(len(grid)):
        result[row] = np.interp(x[row], grid[row], values[row])
    return result
