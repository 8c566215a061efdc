"""All plans of one stream that cost little more than its best: what streams that share GPUs choose from.

Beside one another, streams meet only in the GPUs they use. A stream's plan therefore comes down to GPUs per
type, and of two plans of which one uses no more of any type, the other is not needed. Plans are enumerated
group by group. A partial plan is given up where its cost, and a bound on that of the load still to be carried,
exceed a limit: a minimal plan for a load r has only groups that with one replica fewer carry less than r, and
the best of their costs per load, times r, is the bound.

Costs are by any prices of GPUs: the objective's, or these and more for what is scarce.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.program.limits import ROUNDING
from planner.program.problem import POOLS_OF_MODE, Problem
from planner.specs import Phase

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_PAIRS = 3_000_000
"""Partial plans times groups that are looked at before an enumeration is given up."""
MOST_PLANS = 4_000
"""Plans of a pool or stream that are kept before it is given up."""
SOON = 400_000
"""The same, where only the best is wanted."""
WIDER = (1.0 + 1e-9, 1.01, 1.02, 1.04, 1.07, 1.1, 1.15, 1.22, 1.35, 1.6, 2.5, 5.0)
"""Multiples of a bound up to which plans are looked for, one after the other."""


class TooManyError(Exception):
    """There are more plans than are worth looking at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Groups that a pool may have: each candidate with each count. Arrays [groups]; loads in req/s.

    ``before`` is what a group carries with one replica fewer.
    """

    need: float
    candidate: Ints
    count: Ints
    gpu_type: Ints
    gpus: Ints
    load: Floats
    before: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Plans:
    """Plans of a pool or a stream: ``usage`` GPUs [plans, types], ``cost`` [plans]; ``groups`` are pairs of
    candidate and replicas."""

    usage: Ints
    cost: Floats
    groups: tuple[tuple[tuple[int, int], ...], ...]

    def kept(self, index: Ints) -> Plans:
        """Some of the plans, in another order."""
        groups = tuple(self.groups[k] for k in index.tolist())
        return Plans(usage=self.usage[index], cost=self.cost[index], groups=groups)


def pool_of(problem: Problem, stream: int, phase: Phase) -> Pool:
    """The groups that may serve a phase of a stream."""
    parts = [part for i in problem.indices(phase, stream) for part in _groups(problem, i)]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [np.zeros(0)] * 6
    whole = [column.astype(np.int64) for column in columns[:4]]
    return Pool(
        need=problem.rate(stream) * (1 - ROUNDING),
        candidate=whole[0],
        count=whole[1],
        gpu_type=whole[2],
        gpus=whole[3],
        load=columns[4],
        before=columns[5],
    )


def _groups(problem: Problem, index: int) -> Iterator[tuple[NDArray[np.generic], ...]]:
    """Candidate, count, type, GPUs, load, and load before, of every count of one candidate."""
    c = problem.candidates[index]
    if c.max_replicas < 1:
        return
    counts = np.arange(c.max_replicas + 1)
    left = np.maximum(counts - problem.spares, 0)
    ranges = np.searchsorted(c.curve.starts, left, side="right") - 1
    load = left * np.where(left > 0, np.asarray(c.curve.per_replica)[ranges], 0.0)
    n = counts[1:][load[1:] > 0]
    yield np.full(n.shape, index), n, np.full(n.shape, c.gpu_type), n * c.gpus, load[n], load[n - 1]


class _Bound:
    """A lower bound on the cost of carrying a load."""

    def __init__(self, pool: Pool, cost: Floats) -> None:
        order = np.argsort(pool.before, kind="stable")
        self.starts = pool.before[order]
        self.ratios = np.minimum.accumulate(cost[order] / pool.load[order])

    def __call__(self, load: Floats) -> Floats:
        at = np.maximum(np.searchsorted(self.starts, load, side="left") - 1, 0)
        return np.maximum(load, 0.0) * self.ratios[at]


def pool_plans(pool: Pool, prices: Floats, most: float, effort: int = MOST_PAIRS) -> Plans:
    """All minimal plans of a pool that cost up to `most`.

    Raises
    ------
    TooManyError
        If there are too many of them.
    """
    if not pool.load.size:
        return _plans(pool, prices, [])
    cost = prices[pool.gpu_type] * pool.gpus
    return _plans(pool, prices, list(_minimal(pool, cost, _Bound(pool, cost), most, effort)))


def _minimal(pool: Pool, cost: Floats, bound: _Bound, most: float, effort: int) -> Iterator[Ints]:
    """Groups of all minimal plans up to a cost, by their number of groups. [plans, groups]"""
    (items,) = np.nonzero(cost + bound(pool.need - pool.load) <= most)
    members = items.reshape(-1, 1)
    enough = pool.load[items] >= pool.need
    looked = 0
    while members.size:
        yield members[enough]
        members = members[~enough]
        looked += members.shape[0] * items.size
        if looked > effort:
            raise TooManyError
        members, enough = _extended(pool, cost, bound, members, items, most)


def _extended(
    pool: Pool, cost: Floats, bound: _Bound, members: Ints, items: Ints, most: float
) -> tuple[Ints, NDArray[np.bool_]]:
    """Partial plans with one more group of a later candidate; which of them carry all the load."""
    spent = cost[members].sum(axis=1)[:, None] + cost[items]
    carried = pool.load[members].sum(axis=1)[:, None] + pool.load[items]
    later = pool.candidate[items] > pool.candidate[members].max(axis=1, initial=-1)[:, None]
    fewer = carried - pool.load[items] + pool.before[items] >= pool.need  # a replica fewer would do
    later &= ~fewer & (spent <= most)
    rows, columns = np.nonzero(later)
    left = pool.need - carried[rows, columns]
    keep = spent[rows, columns] + bound(left) <= most
    rows, columns = rows[keep], columns[keep]
    return np.hstack([members[rows], items[columns, None]]), left[keep] <= 0


def _plans(pool: Pool, prices: Floats, done: Sequence[Ints]) -> Plans:
    usage = [np.zeros((0, prices.size), np.int64)]
    groups: list[tuple[tuple[int, int], ...]] = []
    for members in done:
        table = np.zeros((members.shape[0], prices.size), np.int64)
        rows = np.arange(members.shape[0])
        for column in members.T:
            np.add.at(table, (rows, pool.gpu_type[column]), pool.gpus[column])
        usage.append(table)
        pairs = zip(pool.candidate[members].tolist(), pool.count[members].tolist(), strict=True)
        groups += [tuple(zip(candidates, counts, strict=True)) for candidates, counts in pairs]
    whole = np.concatenate(usage)
    return Plans(usage=whole, cost=whole @ prices, groups=tuple(groups))


def least(pool: Pool, prices: Floats) -> tuple[float, Ints]:
    """Least cost of a pool's plan, and the GPUs of that plan.

    Where that is not soon found, a lower bound and no GPUs; infinite if no candidate is left.
    """
    usage = np.zeros(prices.size, np.int64)
    if not pool.load.size:
        return float("inf"), usage
    cost = prices[pool.gpu_type] * pool.gpus
    bound = _Bound(pool, cost)
    floor = known = float(bound(np.array([pool.need]))[0])
    alone = float(cost[pool.load >= pool.need].min(initial=np.inf)) * (1 + ROUNDING)
    for factor in WIDER:
        most = min(floor * factor, alone)
        try:
            found = [m for m in _minimal(pool, cost, bound, most, SOON) if m.size]
        except TooManyError:
            break
        if found:
            sums = [cost[m].sum(axis=1) for m in found]
            k = int(np.argmin([x.min() for x in sums]))
            best = found[k][int(np.argmin(sums[k]))]
            np.add.at(usage, pool.gpu_type[best], pool.gpus[best])
            return float(sums[k].min()), usage
        known = most
    return known, usage


def undominated(plans: Plans) -> Plans:
    """`plans` without those that use no less of any GPU type than another, cheapest first."""
    if plans.cost.size > 20 * MOST_PLANS:
        raise TooManyError
    _, first = np.unique(plans.usage, axis=0, return_index=True)
    order = first[np.lexsort((plans.usage[first].sum(axis=1), plans.cost[first]))]
    usage = plans.usage[order]
    kept = np.zeros(usage.shape, np.int64)
    index: list[int] = []
    for k, row in enumerate(usage):
        if not np.any(np.all(kept[: len(index)] <= row, axis=1)):
            kept[len(index)] = row
            index.append(k)
            if len(index) > MOST_PLANS:
                raise TooManyError
    return plans.kept(order[np.array(index, np.int64)])


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamPools:
    """The pools of one stream, by phase, and its illegal partners: [prefill candidate, decode candidate]."""

    problem: Problem
    pools: dict[Phase, Pool]
    illegal: NDArray[np.bool_]

    def least(self, prices: Floats) -> dict[Phase, tuple[float, Ints]]:
        """Bounds on the cost of each pool, and the GPUs of its best plan."""
        return {phase: least(pool, prices) for phase, pool in self.pools.items()}

    def plans(
        self, prices: Floats, floors: Mapping[Phase, float], most: float, effort: int = MOST_PAIRS
    ) -> Plans:
        """All plans that cost up to `most`; `floors` are bounds on the pools' costs at these prices.

        Raises
        ------
        TooManyError
            If there are too many of them.
        """
        found = [self._of_mode(prices, floors, most, mode, effort) for mode in self.problem.modes]
        whole = Plans(
            usage=np.concatenate([p.usage for p in found]),
            cost=np.concatenate([p.cost for p in found]),
            groups=tuple(g for p in found for g in p.groups),
        )
        stocks = [self.problem.stock(g) for g in range(prices.size)]
        stock = np.array([np.inf if s is None else s for s in stocks])
        (fits,) = np.nonzero(np.all(whole.usage <= stock, axis=1))
        return undominated(whole.kept(fits))

    def _of_mode(
        self, prices: Floats, floors: Mapping[Phase, float], most: float, mode: bool, effort: int
    ) -> Plans:
        phases = POOLS_OF_MODE[mode]
        total = sum(floors[phase] for phase in phases)
        if not total <= most:
            return _plans(self.pools[phases[0]], prices, [])
        parts = [pool_plans(self.pools[p], prices, most - total + floors[p], effort) for p in phases]
        return self._pairs(*parts, most) if mode else parts[0]

    def _pairs(self, prefill: Plans, decode: Plans, most: float) -> Plans:
        """Every prefill plan with every decode plan that it may serve with."""
        if not self.illegal.any():
            prefill, decode = undominated(prefill), undominated(decode)
        cost = prefill.cost[:, None] + decode.cost
        if cost.size > MOST_PAIRS:
            raise TooManyError
        legal = ~((_presence(prefill, self.illegal) @ self.illegal) @ _presence(decode, self.illegal).T)
        rows, columns = np.nonzero((cost <= most) & legal)
        if rows.size > 20 * MOST_PLANS:
            raise TooManyError
        pairs = zip(rows.tolist(), columns.tolist(), strict=True)
        return Plans(
            usage=prefill.usage[rows] + decode.usage[columns],
            cost=cost[rows, columns],
            groups=tuple(prefill.groups[a] + decode.groups[b] for a, b in pairs),
        )


def _presence(plans: Plans, illegal: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether a candidate is in a plan. [plans, candidates]"""
    table = np.zeros((len(plans.groups), illegal.shape[0]), np.bool_)
    if illegal.any():
        for row, groups in zip(table, plans.groups, strict=True):
            row[[i for i, _ in groups]] = True
    return table


def stream_pools(problem: Problem) -> list[StreamPools]:
    """The pools of every stream."""
    size = len(problem.candidates)
    illegal = np.zeros((size, size), np.bool_)
    for i, j in problem.pairs_that_meet():
        illegal[i, j] = True
    if not illegal.any():
        illegal = illegal[:1, :1]
    return [
        StreamPools(
            problem=problem,
            pools={phase: pool_of(problem, s, phase) for phase in Phase},
            illegal=illegal,
        )
        for s in range(len(problem.streams))
    ]
