"""All plans of one stream that cost little more than its best: what streams that share GPUs choose from.

Beside one another, streams meet only in the GPUs they use. A stream's plan therefore comes down to GPUs per
type, and of two plans of which one uses no more of any type, the other is not needed.

In a pool, candidates of one GPU type that may serve with the same partners are one class: the most that they
carry on u GPUs is found once (:func:`_class`). A pool's plan is then a number of GPUs per class. These are
enumerated class by class. A partial plan is given up where its cost, and a bound on that of the load still
to be carried, exceed a limit: in a minimal plan for a load r every class would carry less than r with fewer
GPUs, and the best of their costs per load, times r, is the bound.

Costs are by any prices of GPUs: the objective's, or these and more for what is scarce.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.program.limits import ROUNDING
from planner.program.problem import Problem
from planner.specs import Phase

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_PAIRS = 3_000_000
"""Partial plans times parts that are looked at before an enumeration is given up."""
MOST_PLANS = 4_000
"""Plans of a pool or stream that are kept before it is given up."""
MOST_GPUS = 8_000
"""GPUs of one class in a pool, beyond which it is not looked at."""
SOON = 400_000
"""The same, where only the best is wanted."""
CHUNK = 128
"""Plans that are compared with others at once."""
WIDER = (1.0 + 1e-9, 1.01, 1.02, 1.04, 1.07, 1.1, 1.15, 1.22, 1.35, 1.6, 2.5, 5.0)
"""Multiples of a bound up to which plans are looked for, one after the other."""


class TooManyError(Exception):
    """There are more plans than are worth looking at."""


Groups = tuple[tuple[int, int], ...]
"""Candidates with their replicas."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """What a pool may consist of: each class with each number of GPUs. Arrays [parts]; loads in req/s.

    ``load`` is the most that a class carries on its ``gpus``; ``before`` is what it carries on fewer.
    ``number`` says which parts of the whole pool these are, as classes may be left out.
    """

    need: float
    of_class: Ints
    gpu_type: Ints
    gpus: Ints
    load: Floats
    before: Floats
    number: Ints

    def only(self, classes: Collection[int]) -> Pool:
        """The pool without all other classes."""
        (kept,) = np.nonzero(np.isin(self.of_class, list(classes)))
        return Pool(
            need=self.need,
            of_class=self.of_class[kept],
            gpu_type=self.gpu_type[kept],
            gpus=self.gpus[kept],
            load=self.load[kept],
            before=self.before[kept],
            number=self.number[kept],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class WholePool:
    """A pool of all classes, with the replicas of each part and the candidates of each class."""

    pool: Pool
    groups: tuple[Groups, ...]
    members: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plans:
    """Plans of a pool or a stream: ``usage`` GPUs [plans, types], ``cost`` [plans], and the ``parts`` of its
    pools that each has."""

    usage: Ints
    cost: Floats
    parts: tuple[tuple[tuple[Phase, int], ...], ...]

    def kept(self, index: Ints) -> Plans:
        """Some of the plans, in another order."""
        parts = tuple(self.parts[k] for k in index.tolist())
        return Plans(usage=self.usage[index], cost=self.cost[index], parts=parts)


def pool_of(problem: Problem, stream: int, phase: Phase, partners: Mapping[int, Set[int]]) -> WholePool:
    """What may serve a phase of a stream; `partners` are those that a candidate must not meet."""
    classes: dict[tuple[int, frozenset[int]], list[int]] = {}
    for i in problem.indices(phase, stream):
        candidate = problem.candidates[i]
        if candidate.max_replicas > 0:
            classes.setdefault((candidate.gpu_type, frozenset(partners.get(i, ()))), []).append(i)
    need = problem.rate(stream) * (1 - ROUNDING)
    tables = [_class(problem, members, need) for members in classes.values()]
    sizes = [gpus.size for gpus, _, _ in tables]
    types = [gpu_type for gpu_type, _ in classes]
    none = np.zeros(0)
    pool = Pool(
        need=need,
        of_class=np.repeat(np.arange(len(sizes)), sizes),
        gpu_type=np.repeat(np.array(types, np.int64), sizes),
        gpus=np.concatenate([none.astype(np.int64), *(gpus for gpus, _, _ in tables)]),
        load=np.concatenate([none, *(load for _, load, _ in tables)]),
        before=np.concatenate([none, *(np.concatenate([[0.0], load[:-1]]) for _, load, _ in tables)]),
        number=np.arange(sum(sizes)),
    )
    return WholePool(
        pool=pool,
        groups=tuple(groups for _, _, found in tables for groups in found),
        members=tuple(map(tuple, classes.values())),
    )


def _class(problem: Problem, members: Sequence[int], need: float) -> tuple[Ints, Floats, list[Groups]]:
    """Numbers of GPUs of which each carries more than the one before, up to the first that carry `need`.

    With the load that they carry at most, and the replicas that do.
    """
    loads = {i: _loads(problem, i) for i in members}
    sizes = {i: problem.candidates[i].gpus * problem.candidates[i].max_replicas for i in members}
    alone = [sizes[i] for i in members if loads[i][-1] >= need]
    stock = problem.stock(problem.candidates[members[0]].gpu_type)
    most = min([*alone, sum(sizes.values()), *([] if stock is None else [stock])])
    best, counts = np.zeros(most + 1), []
    for i in members:
        gpus = problem.candidates[i].gpus
        load = loads[i][: most // gpus + 1]
        with_it, count = best.copy(), np.zeros(most + 1, np.int64)
        for n in np.nonzero(load > 0)[0].tolist():
            more = best[: most + 1 - n * gpus] + load[n]
            better = more > with_it[n * gpus :]
            with_it[n * gpus :][better] = more[better]
            count[n * gpus :][better] = n
        best = with_it
        counts.append(count)
    best = np.maximum.accumulate(best)
    (steps,) = np.nonzero(np.diff(best) > 0)
    steps = steps + 1
    enough = int(np.searchsorted(best[steps], need)) + 1
    steps = steps[:enough]
    return steps, best[steps], [_groups(problem, members, counts, int(u)) for u in steps]


def _groups(problem: Problem, members: Sequence[int], counts: Sequence[Ints], gpus: int) -> Groups:
    """The replicas that carry most on so many GPUs."""
    found = []
    for i, count in zip(reversed(members), reversed(counts), strict=True):
        if n := int(count[gpus]):
            found.append((i, n))
            gpus -= n * problem.candidates[i].gpus
    return tuple(found)


def _loads(problem: Problem, index: int) -> Floats:
    """Load of a group of 0, 1, ... replicas with its spares down. [req/s]"""
    candidate = problem.candidates[index]
    left = np.maximum(np.arange(candidate.max_replicas + 1) - problem.spares, 0)
    ranges = np.searchsorted(candidate.curve.starts, left, side="right") - 1
    return np.where(left > 0, left * np.asarray(candidate.curve.per_replica)[ranges], 0.0)


class _Bounds:
    """Lower bounds on the cost of carrying a load, with all classes or with those after a class.

    Classes stand in the order of their best cost per load, so that what is left to the later ones is dear.
    """

    def __init__(self, pool: Pool, cost: Floats) -> None:
        ratios = cost / pool.load
        classes, of_class = np.unique(pool.of_class, return_inverse=True)
        best = np.full(classes.size, np.inf)
        np.minimum.at(best, of_class, ratios)
        self.rank = np.argsort(np.argsort(best, kind="stable"))[of_class]
        self.curves = []
        for rank in range(-1, classes.size):
            (later,) = np.nonzero(self.rank > rank)
            order = later[np.argsort(pool.before[later], kind="stable")]
            self.curves.append((pool.before[order], np.minimum.accumulate(ratios[order])))

    def all(self, load: Floats) -> Floats:
        """By any classes."""
        return self._by(self.curves[0], load)

    def later(self, load: Floats, rank: Ints) -> Floats:
        """By classes after that of each load."""
        found = np.zeros(load.shape)
        for k, curve in enumerate(self.curves[1:]):
            mine = (rank == k) & (load > 0)
            if mine.any():
                found[mine] = self._by(curve, load[mine])
        return found

    @staticmethod
    def _by(curve: tuple[Floats, Floats], load: Floats) -> Floats:
        starts, ratios = curve
        if not starts.size:
            return np.where(load > 0, np.inf, 0.0)
        at = np.maximum(np.searchsorted(starts, load, side="left") - 1, 0)
        return np.maximum(load, 0.0) * ratios[at]


def pool_plans(phase: Phase, pool: Pool, prices: Floats, most: float, effort: int = MOST_PAIRS) -> Plans:
    """All minimal plans of a pool that cost up to `most`.

    Raises
    ------
    TooManyError
        If there are too many of them.
    """
    if not pool.load.size:
        return plans_of(phase, pool, prices, [])
    cost = prices[pool.gpu_type] * pool.gpus
    return plans_of(phase, pool, prices, list(_minimal(pool, cost, _Bounds(pool, cost), most, effort)))


def _minimal(pool: Pool, cost: Floats, bounds: _Bounds, most: float, effort: int) -> Iterator[Ints]:
    """Parts of all minimal plans up to a cost, by their number. [plans, parts]"""
    left = pool.need - pool.load
    (items,) = np.nonzero(cost + bounds.all(left) <= most)
    first = items[(cost + bounds.later(left, bounds.rank))[items] <= most]
    members = first.reshape(-1, 1)
    enough = left[first] <= 0
    looked = 0
    while members.size:
        yield members[enough]
        members = members[~enough]
        looked += members.shape[0] * items.size
        if looked > effort:
            raise TooManyError
        members, enough = _extended(pool, cost, bounds, members, items, most)


def _extended(
    pool: Pool, cost: Floats, bounds: _Bounds, members: Ints, items: Ints, most: float
) -> tuple[Ints, Bools]:
    """Partial plans with one more part of a later class; which of them carry all the load."""
    spent = cost[members].sum(axis=1)[:, None] + cost[items]
    rest = (pool.need - pool.load[members].sum(axis=1))[:, None]
    later = bounds.rank[items] > bounds.rank[members[:, -1]][:, None]
    later &= (pool.before[items] < rest) & (spent <= most)  # else fewer GPUs would do
    rows, columns = np.nonzero(later)
    left = (rest - pool.load[items])[rows, columns]
    keep = spent[rows, columns] + bounds.later(left, bounds.rank[items[columns]]) <= most
    rows, columns = rows[keep], columns[keep]
    return np.hstack([members[rows], items[columns, None]]), left[keep] <= 0


def plans_of(phase: Phase, pool: Pool, prices: Floats, done: Sequence[Ints]) -> Plans:
    """Plans of a pool, given by their parts. [plans, parts] each"""
    usage = [np.zeros((0, prices.size), np.int64)]
    parts: list[tuple[tuple[Phase, int], ...]] = []
    for members in done:
        table = np.zeros((members.shape[0], prices.size), np.int64)
        rows = np.arange(members.shape[0])
        for column in members.T:
            np.add.at(table, (rows, pool.gpu_type[column]), pool.gpus[column])
        usage.append(table)
        parts += [tuple((phase, k) for k in row) for row in pool.number[members].tolist()]
    whole = np.concatenate(usage)
    return Plans(usage=whole, cost=whole @ prices, parts=tuple(parts))


def rough(pool: Pool, prices: Floats) -> float:
    """A lower bound on the cost of a pool's plan, by the best cost per load."""
    return pool.need * float((prices[pool.gpu_type] * pool.gpus / pool.load).min(initial=np.inf))


def least(pool: Pool, prices: Floats, enough: float = math.inf) -> tuple[float, Ints]:
    """Least cost of a pool's plan, and the GPUs of that plan.

    Where that is not soon found or is above `enough`, a lower bound and no GPUs; infinite if no candidate is
    left.
    """
    usage = np.zeros(prices.size, np.int64)
    if not pool.load.size:
        return float("inf"), usage
    cost = prices[pool.gpu_type] * pool.gpus
    bounds = _Bounds(pool, cost)
    floor = known = float(bounds.all(np.array([pool.need]))[0])
    if floor > enough:
        return floor, usage
    alone = float(cost[pool.load >= pool.need].min(initial=np.inf)) * (1 + ROUNDING)
    for factor in WIDER:
        most = min(floor * factor, alone)
        try:
            found = [m for m in _minimal(pool, cost, bounds, most, SOON) if m.size]
        except TooManyError:
            break
        if found:
            sums = [cost[m].sum(axis=1) for m in found]
            k = int(np.argmin([x.min() for x in sums]))
            best = found[k][int(np.argmin(sums[k]))]
            np.add.at(usage, pool.gpu_type[best], pool.gpus[best])
            return float(sums[k].min()), usage
        known = most
        if known > enough:
            break
    return known, usage


def undominated(plans: Plans) -> Plans:
    """`plans` without those that use no less of any GPU type than another, cheapest first."""
    _, first = np.unique(plans.usage, axis=0, return_index=True)
    if first.size > 20 * MOST_PLANS:
        raise TooManyError
    order = first[np.lexsort((plans.usage[first].sum(axis=1), plans.cost[first]))]
    usage = plans.usage[order]
    kept, index = usage[:0], np.zeros(0, np.int64)
    for start in range(0, order.size, CHUNK):
        rows = np.arange(start, min(start + CHUNK, order.size))
        rows = rows[~_dominated(usage[rows], kept)]
        rows = rows[~_dominated(usage[rows], usage[rows], before=True)]
        kept, index = np.concatenate([kept, usage[rows]]), np.concatenate([index, rows])
        if index.size > MOST_PLANS:
            raise TooManyError
    return plans.kept(order[index])


def _dominated(usage: Ints, others: Ints, *, before: bool = False) -> Bools:
    """Whether one of others [others, types] uses no more of any type; only of those `before` in one list."""
    below = np.ones((usage.shape[0], others.shape[0]), np.bool_)
    for mine, theirs in zip(usage.T, others.T, strict=True):
        below &= theirs <= mine[:, None]
    return np.asarray((np.tril(below, -1) if before else below).any(axis=1))


def joined(found: Sequence[Plans]) -> Plans:
    """All of several plans."""
    return Plans(
        usage=np.concatenate([p.usage for p in found]),
        cost=np.concatenate([p.cost for p in found]),
        parts=tuple(parts for p in found for parts in p.parts),
    )
