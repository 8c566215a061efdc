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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.program.limits import ROUNDING
from planner.program.problem import POOLS_OF_MODE, Problem
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
WIDER = (1.0 + 1e-9, 1.01, 1.02, 1.04, 1.07, 1.1, 1.15, 1.22, 1.35, 1.6, 2.5, 5.0)
"""Multiples of a bound up to which plans are looked for, one after the other."""


class TooManyError(Exception):
    """There are more plans than are worth looking at."""


Groups = tuple[tuple[int, int], ...]
"""Candidates with their replicas."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """What a pool may consist of: each class with each number of GPUs. Arrays [parts]; loads in req/s.

    ``load`` is the most that a class carries on its ``gpus``, by the replicas in ``groups``; ``before`` is
    what it carries on fewer. ``members`` has the candidates of each class.
    """

    need: float
    of_class: Ints
    gpu_type: Ints
    gpus: Ints
    load: Floats
    before: Floats
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


def pool_of(problem: Problem, stream: int, phase: Phase) -> Pool:
    """What may serve a phase of a stream."""
    partners: dict[int, set[int]] = {}
    for i, j in problem.pairs_that_meet():
        partners.setdefault(i, set()).add(j)
        partners.setdefault(j, set()).add(i)
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
    return Pool(
        need=need,
        of_class=np.repeat(np.arange(len(sizes)), sizes),
        gpu_type=np.repeat(np.array(types, np.int64), sizes),
        gpus=np.concatenate([none.astype(np.int64), *(gpus for gpus, _, _ in tables)]),
        load=np.concatenate([none, *(load for _, load, _ in tables)]),
        before=np.concatenate([none, *(np.concatenate([[0.0], load[:-1]]) for _, load, _ in tables)]),
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
        best = np.full(len(pool.members), np.inf)
        np.minimum.at(best, pool.of_class, ratios)
        self.rank = np.argsort(np.argsort(best, kind="stable"))[pool.of_class]
        self.curves = []
        for rank in range(-1, len(pool.members)):
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
        return _plans(phase, pool, prices, [])
    cost = prices[pool.gpu_type] * pool.gpus
    return _plans(phase, pool, prices, list(_minimal(pool, cost, _Bounds(pool, cost), most, effort)))


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


def _plans(phase: Phase, pool: Pool, prices: Floats, done: Sequence[Ints]) -> Plans:
    usage = [np.zeros((0, prices.size), np.int64)]
    parts: list[tuple[tuple[Phase, int], ...]] = []
    for members in done:
        table = np.zeros((members.shape[0], prices.size), np.int64)
        rows = np.arange(members.shape[0])
        for column in members.T:
            np.add.at(table, (rows, pool.gpu_type[column]), pool.gpus[column])
        usage.append(table)
        parts += [tuple((phase, k) for k in row) for row in members.tolist()]
    whole = np.concatenate(usage)
    return Plans(usage=whole, cost=whole @ prices, parts=tuple(parts))


def least(pool: Pool, prices: Floats) -> tuple[float, Ints]:
    """Least cost of a pool's plan, and the GPUs of that plan.

    Where that is not soon found, a lower bound and no GPUs; infinite if no candidate is left.
    """
    usage = np.zeros(prices.size, np.int64)
    if not pool.load.size:
        return float("inf"), usage
    cost = prices[pool.gpu_type] * pool.gpus
    bounds = _Bounds(pool, cost)
    floor = known = float(bounds.all(np.array([pool.need]))[0])
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
    return known, usage


def undominated(plans: Plans) -> Plans:
    """`plans` without those that use no less of any GPU type than another, cheapest first."""
    _, first = np.unique(plans.usage, axis=0, return_index=True)
    if first.size > 20 * MOST_PLANS:
        raise TooManyError
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


def _undominated_alike(plans: Plans, partners: Bools) -> tuple[Plans, Bools]:
    """As :func:`undominated`, among plans with the same illegal partners. [plans, classes]"""
    kinds, kind = np.unique(partners, axis=0, return_inverse=True)
    found = [undominated(plans.kept(np.nonzero(kind.ravel() == k)[0])) for k in range(len(kinds))]
    sizes = [p.cost.size for p in found]
    return joined(found), np.repeat(kinds, sizes, axis=0)


def joined(found: Sequence[Plans]) -> Plans:
    """All of several plans."""
    return Plans(
        usage=np.concatenate([p.usage for p in found]),
        cost=np.concatenate([p.cost for p in found]),
        parts=tuple(parts for p in found for parts in p.parts),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamPools:
    """The pools of one stream.

    ``illegal`` says which classes must not meet. [prefill classes, decode classes]
    """

    problem: Problem
    pools: dict[Phase, Pool]
    illegal: Bools

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
        modes = self.problem.modes
        return self._in_stock(joined([self._of_mode(prices, floors, most, mode, effort) for mode in modes]))

    def alone(self, prices: Floats) -> Plans:
        """Plans whose pools are of one class each."""
        found = []
        for mode in self.problem.modes:
            pools = [(phase, self.pools[phase]) for phase in POOLS_OF_MODE[mode]]
            parts = [
                _plans(phase, pool, prices, [np.nonzero(pool.load >= pool.need)[0].reshape(-1, 1)])
                for phase, pool in pools
            ]
            found.append(self._pairs(parts[0], parts[1], np.inf) if mode else parts[0])
        return self._in_stock(joined(found))

    def _in_stock(self, plans: Plans) -> Plans:
        stocks = [self.problem.stock(g) for g in range(plans.usage.shape[1])]
        stock = np.array([np.inf if s is None else s for s in stocks])
        (fits,) = np.nonzero(np.all(plans.usage <= stock, axis=1))
        return undominated(plans.kept(fits))

    def replicas(self, plans: Plans, index: int) -> Groups:
        """Replicas of one plan."""
        return tuple(group for phase, part in plans.parts[index] for group in self.pools[phase].groups[part])

    def _of_mode(
        self, prices: Floats, floors: Mapping[Phase, float], most: float, mode: bool, effort: int
    ) -> Plans:
        phases = POOLS_OF_MODE[mode]
        total = sum(floors[phase] for phase in phases)
        if not total <= most:
            return _plans(phases[0], self.pools[phases[0]], prices, [])
        parts = [pool_plans(p, self.pools[p], prices, most - total + floors[p], effort) for p in phases]
        return self._pairs(parts[0], parts[1], most) if mode else parts[0]

    def _pairs(self, prefill: Plans, decode: Plans, most: float) -> Plans:
        """Every prefill plan with every decode plan that it may serve with."""
        if not (prefill.cost.size and decode.cost.size):
            return prefill.kept(np.zeros(0, np.int64))
        prefill, barred = _undominated_alike(prefill, self._classes(Phase.PREFILL, prefill) @ self.illegal)
        decode, present = _undominated_alike(decode, self._classes(Phase.DECODE, decode))
        cost = prefill.cost[:, None] + decode.cost
        if cost.size > MOST_PAIRS:
            raise TooManyError
        rows, columns = np.nonzero((cost <= most) & ~(barred @ present.T))
        usage, spent = prefill.usage[rows] + decode.usage[columns], cost[rows, columns]
        _, first = np.unique(usage, axis=0, return_index=True)
        if first.size > 20 * MOST_PLANS:
            raise TooManyError
        pairs = zip(rows[first].tolist(), columns[first].tolist(), strict=True)
        parts = tuple(prefill.parts[a] + decode.parts[b] for a, b in pairs)
        return Plans(usage=usage[first], cost=spent[first], parts=parts)

    def _classes(self, phase: Phase, plans: Plans) -> Bools:
        """Whether a plan has GPUs of a class, of those that must not meet all others. [plans, classes]"""
        pool = self.pools[phase]
        table = np.zeros((plans.cost.size, len(pool.members)), np.bool_)
        axis = 1 if phase is Phase.PREFILL else 0
        if self.illegal.any():
            for row, parts in zip(table, plans.parts, strict=True):
                row[[pool.of_class[part] for _, part in parts]] = True
            table &= self.illegal.any(axis=axis)
        return table


def stream_pools(problem: Problem) -> list[StreamPools]:
    """The pools of every stream."""
    met = problem.pairs_that_meet()
    found = []
    for s in range(len(problem.streams)):
        pools = {phase: pool_of(problem, s, phase) for phase in Phase}
        first = [[members[0] for members in pools[p].members] for p in (Phase.PREFILL, Phase.DECODE)]
        illegal = np.array([[(i, j) in met for j in first[1]] for i in first[0]], np.bool_)
        shape = (len(first[0]), len(first[1]))
        found.append(StreamPools(problem=problem, pools=pools, illegal=illegal.reshape(shape)))
    return found
