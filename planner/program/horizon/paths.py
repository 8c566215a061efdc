"""The cheapest sequence of covers: a shortest path through the periods."""

from __future__ import annotations

import numpy as np

from planner.program.horizon.pools import Floats, Ints

STARTS = 8
"""Covers tried in the period at which a cycle is cut, cheapest first."""


def cheapest_path(cost: Floats, change: Floats | None, *, cyclic: bool) -> tuple[float, Ints]:
    """Covers per period at the least sum of `cost` [T, K] and `change` [K, K], and that sum.

    A cost is infinite where a cover does not fit, the sum where there is no way. A
    cycle is cut where the fewest covers fit, and only the
    cheapest of those are tried.
    """
    periods = len(cost)
    if change is None or periods == 1:
        path = cost.argmin(axis=1)
        return float(cost[np.arange(periods), path].sum()), path
    cut = int(np.isfinite(cost).sum(axis=1).argmin()) if cyclic else 0
    order = (np.arange(periods) + cut) % periods
    first = np.argsort(cost[cut], kind="stable")
    first = first[np.isfinite(cost[cut, first])]
    if not len(first):
        return np.inf, np.zeros(periods, np.int64)
    if cyclic:
        return _cycle(cost[order], change, first[:STARTS], cut)
    table = cost[0][None, :]
    table, back = _forward(cost, change, table)
    return _trace(table, back, 0, 0)


def _cycle(cost: Floats, change: Floats, first: Ints, cut: int) -> tuple[float, Ints]:
    """As :func:`cheapest_path` for a cycle that is cut before the first row of `cost`."""
    table = np.full((len(first), cost.shape[1]), np.inf)
    table[np.arange(len(first)), first] = cost[0, first]
    table, back = _forward(cost, change, table)
    closed = table + change[:, first].T
    return _trace(closed, back, int(closed.min(axis=1).argmin()), cut)


def _forward(cost: Floats, change: Floats, table: Floats) -> tuple[Floats, list[Ints]]:
    """Least cost up to the last period by start [A] and last cover [K], and where each step came from."""
    back = []
    for row in cost[1:]:
        here = np.flatnonzero(np.isfinite(row))
        there = np.flatnonzero(np.isfinite(table).any(axis=0))
        step = np.full(table.shape, np.inf)
        origin = np.zeros(table.shape, np.int64)
        if len(here) and len(there):
            sums = table[:, there, None] + change[np.ix_(there, here)][None]
            best = sums.argmin(axis=1)
            step[:, here] = np.take_along_axis(sums, best[:, None, :], axis=1)[:, 0] + row[here]
            origin[:, here] = there[best]
        back.append(origin)
        table = step
    return table, back


def _trace(table: Floats, back: list[Ints], start: int, cut: int) -> tuple[float, Ints]:
    """The best path from a start, in the order of periods."""
    cover = int(table[start].argmin())
    value = float(table[start, cover])
    path = [cover]
    for origin in reversed(back):
        path.append(int(origin[start, path[-1]]))
    return value, np.roll(np.array(path[::-1]), cut)
