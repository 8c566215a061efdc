"""The cheapest groups that carry a demand, for one pool in all periods at once.

Given weights ``w[t, i]`` of a replica: minimise ``sum w[t, i] * n[i]`` over n with ``sum usable_i(n[i])
>= demand[t]``, ``n <= limits`` and ``sum n >= minimum``. :func:`cover` tries all single groups and all
pairs of groups; :func:`lower_bound` proves how cheap any number of groups can get.

A group with a negative weight is at its limit in every optimum; what is left is a covering
knapsack with weights >= 0. There, an option "n replicas of i" can be left out where even the best rate per
weight of all options cannot serve the rest below a cover already known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.program.check import RATE_TOLERANCE
from planner.program.horizon.pools import Floats, Ints, Pool
from planner.program.limits import ROUNDING

SAFE = 1e-9
"""Relative rounding granted to sums of floats in proofs. [1]"""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Covers:
    """Cheapest covers found.

    `costs` [T], infinite where no group or pair of groups carries the demand; `counts` [T, I]
    replicas per member.
    """

    costs: Floats
    counts: Ints


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Task:
    """A covering problem with weights >= 0, after groups with negative weights.

    `base` [T, I] replicas already there, of cost `paid` [T]; `weights` [T, I], infinite for those;
    `demand` [T] and `minimum` [T] what is left.
    """

    pool: Pool
    base: Ints
    paid: Floats
    weights: Floats
    demand: Floats
    minimum: Ints


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Options:
    """ "n replicas of member i": arrays [O], and their costs [T, O]."""

    member: Ints
    n: Ints
    capacity: Floats
    cost: Floats

    def only(self, keep: NDArray[np.bool_]) -> _Options:
        return _Options(
            member=self.member[keep], n=self.n[keep], capacity=self.capacity[keep], cost=self.cost[:, keep]
        )


def cover(pool: Pool, weights: Floats) -> Covers:
    """The cheapest single group or pair of groups in each period."""
    task = _task(pool, weights)
    counts = task.base.copy()
    costs = np.where((task.demand <= 0) & (task.minimum <= 0), 0.0, np.inf)
    _singles(task, costs, counts)
    _pairs(task, costs, counts)
    _everything(task, costs, counts)
    return Covers(costs=costs + task.paid, counts=counts)


def lower_bound(pool: Pool, weights: Floats, known: Floats, cells: int) -> Floats:
    """A proven lower bound on the cost of any cover in each period, not above `known`.

    Dynamic programming over the capacity in `cells` steps, every group's capacity rounded up.
    Periods are taken together whose demands differ by less than a factor of two.
    """
    task = _task(pool, weights)
    upper = known - task.paid
    bound = np.where((task.demand <= 0) & (task.minimum <= 0), np.minimum(upper, 0.0), upper)
    for periods in _octaves(task):
        found = _grid(task, periods, upper[periods], cells, up=True)
        bound[periods] = np.minimum(upper[periods], found.least)
    slack = SAFE * np.abs(np.where(np.isfinite(bound), bound, 0.0))
    result: Floats = bound + task.paid - slack
    return result


def refined(pool: Pool, weights: Floats, known: Covers, cells: int) -> Covers:
    """`known` covers, with cheaper ones of any number of groups where capacities rounded down show them."""
    task = _task(pool, weights)
    costs, counts = known.costs.copy(), known.counts.copy()
    for periods in _octaves(task):
        found = _grid(task, periods, (costs - task.paid)[periods], cells, up=False)
        better = np.flatnonzero(found.least < (costs - task.paid)[periods] * (1 - SAFE))
        traced = task.base[periods]
        _traced(found, traced)
        costs[periods[better]] = (found.least + task.paid[periods])[better]
        counts[periods[better]] = traced[better]
    return Covers(costs=costs, counts=counts)


def _octaves(task: _Task) -> Iterator[Ints]:
    """Periods with something left to cover, together where demands differ by less than a factor of 2."""
    open_periods = np.flatnonzero((task.demand > 0) | (task.minimum > 0))
    scale = np.floor(np.log2(np.maximum(task.demand[open_periods], 1e-300)))
    for octave in np.unique(scale):
        yield open_periods[scale == octave]


def _task(pool: Pool, weights: Floats) -> _Task:
    negative = weights < 0
    base = np.where(negative & (pool.limits > 0), pool.limits, 0)
    paid = np.where(negative, weights * pool.limits, 0.0).sum(axis=1)
    carried = np.array([table[-1] for table in pool.tables])
    demand = np.maximum(pool.demand - (negative * carried).sum(axis=1), 0.0)
    minimum = np.where(pool.demand > 0, pool.minimum, 0) - base.sum(axis=1)
    demanded = np.where(demand > pool.demand * RATE_TOLERANCE, demand, 0.0)
    return _Task(
        pool=pool,
        base=base,
        paid=paid,
        weights=np.where(negative, np.inf, weights),
        demand=demanded,
        minimum=np.maximum(minimum, 0),
    )


def _singles(task: _Task, costs: Floats, counts: Ints) -> None:
    """Enter the best single groups into `costs` and `counts`."""
    pool = task.pool
    needed = np.stack(
        [np.maximum(pool.fewest(i, task.demand), task.minimum) for i in range(len(pool.members))], axis=1
    )
    fits = (needed <= pool.limits) & np.isfinite(task.weights)
    price = np.where(fits, np.where(fits, task.weights, 0.0) * needed, np.inf)
    best = price.argmin(axis=1)
    rows = np.arange(len(costs))
    better = price[rows, best] < costs
    costs[better] = price[rows, best][better]
    counts[rows[better], best[better]] += needed[rows, best][better]


def _pairs(task: _Task, costs: Floats, counts: Ints) -> None:
    """Enter the best pairs of groups where they beat `costs`: n of one, then the fewest of another."""
    pool = task.pool
    open_periods = np.flatnonzero(task.demand > 0)
    if not len(open_periods):
        return
    options = _pruned(task, open_periods, costs[open_periods])
    members = np.unique(options.member)
    rest = task.demand[open_periods][:, None] - options.capacity
    missing = np.maximum(task.minimum[open_periods][:, None] - options.n, 0)
    for j in members:
        first = options.member < j
        if not first.any():
            continue
        left = np.maximum(rest[:, first], 0.0)
        needed = np.maximum(np.maximum(pool.fewest(int(j), left), missing[:, first]), 1)
        weight = task.weights[open_periods, j][:, None]
        fits = (needed <= pool.limits[j]) & np.isfinite(weight)
        price = np.where(fits, options.cost[:, first] + np.where(fits, weight, 0.0) * needed, np.inf)
        best = price.argmin(axis=1)
        for row in np.flatnonzero(price.min(axis=1) < costs[open_periods] * (1 - SAFE)):
            t, column = open_periods[row], best[row]
            costs[t] = price[row, column]
            counts[t] = task.base[t]
            counts[t, options.member[first][column]] += options.n[first][column]
            counts[t, j] += needed[row, column]


def _everything(task: _Task, costs: Floats, counts: Ints) -> None:
    """All groups at their limits where nothing else was found."""
    pool = task.pool
    carried = math.fsum(float(table[-1]) for table in pool.tables)
    useful = np.array([table[-1] > 0 for table in pool.tables])
    all_of_them = np.where(useful, pool.limits, 0)
    for t in np.flatnonzero(np.isinf(costs)):
        if carried >= pool.demand[t] * (1 - ROUNDING) and all_of_them.sum() >= pool.minimum:
            counts[t] = all_of_them
            added = np.isfinite(task.weights[t])
            costs[t] = (task.weights[t, added] * all_of_them[added]).sum()


def _options(task: _Task, periods: Ints) -> _Options:
    """All options that carry something."""
    member, n, capacity = [], [], []
    for i, table in enumerate(task.pool.tables):
        useful = np.flatnonzero(table > 0)
        member.append(np.full(len(useful), i))
        n.append(useful)
        capacity.append(table[useful])
    members, counts = np.concatenate(member), np.concatenate(n)
    cost = task.weights[periods][:, members] * counts
    return _Options(member=members, n=counts, capacity=np.concatenate(capacity), cost=cost)


def _pruned(task: _Task, periods: Ints, known: Floats) -> _Options:
    """Options that a cover cheaper than `known` may contain in one of `periods`."""
    options = _options(task, periods)
    demand = task.demand[periods][:, None]
    served = np.minimum(options.capacity, demand)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(served > 0, options.cost / served, np.inf).min(axis=1, initial=np.inf)
    ratio = np.where(np.isfinite(ratio), ratio, 0.0)[:, None]
    least = options.cost + ratio * np.maximum(demand * (1 - RATE_TOLERANCE) - options.capacity, 0.0)
    keep = (least * (1 - SAFE) <= known[:, None]) & np.isfinite(options.cost)
    return options.only(keep.any(axis=0))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Grid:
    """Dynamic programming over capacity in cells, for some periods.

    `sizes` [O] cells of each option; `target` [T] cells and `layer` [T] replicas wanted; `tables`
    least costs [replicas, T, cells] with none of the members, with the first, and so on.
    """

    options: _Options
    sizes: Ints
    target: Ints
    layer: Ints
    tables: list[Floats]

    @property
    def least(self) -> Floats:
        """Least cost per period."""
        result: Floats = self.tables[-1][self.layer, np.arange(len(self.target)), self.target]
        return result


def _grid(task: _Task, periods: Ints, known: Floats, cells: int, *, up: bool) -> _Grid:
    """Least costs with capacities rounded up to cells, the demand down; or the other way round."""
    options = _pruned(task, periods, known)
    slack = 2 * RATE_TOLERANCE if up else 0.0
    demand = task.demand[periods] * (1 - slack)
    cell = max(float(demand.max()) / cells, 1e-300)
    round_size = np.ceil if up else np.floor
    target = np.clip(np.ceil(demand / cell - SAFE), 0, cells).astype(np.int64)
    size = np.minimum(round_size(options.capacity / cell + (-SAFE if up else SAFE)), cells).astype(np.int64)
    least = int(task.minimum[periods].max())
    layers = least + 1 if least > 1 else 1
    table = np.full((layers, len(periods), cells + 1), np.inf)
    table[0, :, 0] = 0.0
    tables = [table]
    for chosen in _by_member(options):
        table = tables[-1].copy()
        for o in chosen:
            _add(tables[-1], table, options.cost[:, o], int(size[o]), int(options.n[o]))
        tables = [table] if up else [*tables, table]  # only the last one proves
    layer = np.minimum(task.minimum[periods], layers - 1)
    return _Grid(options=options, sizes=size, target=target, layer=layer, tables=tables)


def _traced(grid: _Grid, counts: Ints) -> None:
    """Add the groups of the cheapest covers to `counts` [T, I]."""
    rows = np.arange(len(grid.target))
    cell, layer = grid.target.copy(), grid.layer.copy()
    options = grid.options
    for before, chosen in reversed(list(zip(grid.tables, _by_member(options), strict=False))):
        left = np.maximum(cell[:, None] - grid.sizes[chosen], 0)
        rest = np.maximum(layer[:, None] - options.n[chosen], 0)
        with_group = before[rest, rows[:, None], left] + options.cost[:, chosen]
        best = with_group.argmin(axis=1)
        taken = np.flatnonzero(with_group[rows, best] < before[layer, rows, cell])
        best = best[taken]
        counts[taken, options.member[chosen[best]]] += options.n[chosen[best]]
        cell[taken], layer[taken] = left[taken, best], rest[taken, best]


def _by_member(options: _Options) -> Iterator[Ints]:
    for member in np.unique(options.member):
        yield np.flatnonzero(options.member == member)


def _add(before: Floats, best: Floats, cost: Floats, size: int, n: int) -> None:
    """Let `best` choose one option on top of `before`: at least c cells in [:, :, c], k replicas in [k]."""
    layers, _, width = before.shape
    for k in range(layers):
        source = before[max(k - n, 0)]
        target = best[k]
        if size < width:
            np.minimum(target[:, size:], source[:, : width - size] + cost[:, None], out=target[:, size:])
        np.minimum(target[:, :size], source[:, :1] + cost[:, None], out=target[:, :size])
