"""All plans of one stream that cost little: those of its pools together.

Where some prefill and decode classes must not meet, the legal plans are those of a few sets of classes: all
that may serve with one another, none of which can be added to (maximal bicliques). Within a set, the pools
do not mind each other, so that the stream's least cost is the sum of theirs. A plan may be in several sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from planner.program.columns import (
    MOST_PAIRS,
    MOST_PLANS,
    SOON,
    WIDER,
    Bools,
    Floats,
    Groups,
    Ints,
    Plans,
    Pool,
    TooManyError,
    WholePool,
    joined,
    least,
    plans_of,
    pool_of,
    pool_plans,
    rough,
    undominated,
)
from planner.program.problem import POOLS_OF_MODE, Problem
from planner.specs import Phase

MOST_SETS = 400
"""Sets of classes of one stream, beyond which it is not looked at."""

ENOUGH = 25
"""Plans of a stream that are looked for from the cheapest on."""

PoolSet = tuple[tuple[Phase, Pool], ...]
"""Pools that may be chosen without minding each other."""


@dataclass(kw_only=True, slots=True, eq=False)
class Floor:
    """The least cost of a stream at some prices, or a lower bound on it.

    ``pools`` has bounds on that of each pool, for every set; they are raised when a set is looked at, and
    stay once ``done``. ``usage`` has the GPUs of the best plan, none where that was not soon found.
    """

    sets: tuple[PoolSet, ...]
    prices: Floats
    value: float
    pools: list[tuple[float, ...]]
    done: list[bool]
    usage: Ints

    def raised(self, k: int, enough: float) -> tuple[float, ...]:
        """Least cost of each pool of a set; a bound where the set costs more than `enough`."""
        if not self.done[k] and sum(self.pools[k]) <= enough:
            values, usage = _least(self.sets[k], self.prices, self.pools[k], enough)
            self.pools[k], self.done[k] = values, sum(values) <= enough
            if sum(values) < self.value:
                self.value, self.usage = sum(values), usage
        return self.pools[k]


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamPools:
    """The pools of one stream, and the ``sets`` that make its legal plans."""

    problem: Problem
    pools: dict[Phase, WholePool]
    sets: tuple[PoolSet, ...]

    def floor(self, prices: Floats) -> Floor:
        """Bounds on the cost of the stream, each set and each pool."""
        floor = Floor(
            sets=self.sets,
            prices=prices,
            value=math.inf,
            pools=[tuple(rough(pool, prices) for _, pool in chosen) for chosen in self.sets],
            done=[False] * len(self.sets),
            usage=np.zeros(prices.size, np.int64),
        )
        for k in sorted(range(len(self.sets)), key=lambda k: sum(floor.pools[k])):
            floor.raised(k, floor.value)
        return floor

    def plans(self, prices: Floats, floor: Floor, most: float, effort: int = MOST_PAIRS) -> Plans:
        """All plans that cost up to `most`; `floor` is that at these prices.

        Raises
        ------
        TooManyError
            If there are too many of them.
        """
        found = [self._none(prices)]
        for k, chosen in enumerate(self.sets):
            floors = floor.raised(k, most)
            rest = most - sum(floors)
            if rest >= 0:
                parts = [
                    undominated(pool_plans(phase, pool, prices, rest + value, effort))
                    for (phase, pool), value in zip(chosen, floors, strict=True)
                ]
                found.append(_together(parts, most))
        return self._in_stock(joined(found))

    def cheap(self, prices: Floats, floor: Floor) -> Plans | None:
        """Enough plans, from the cheapest on, or as many as are soon found; None: none."""
        plans: Plans | None = None
        effort = SOON
        for factor in WIDER:
            try:
                found = self.plans(prices, floor, floor.value * factor, effort)
            except TooManyError:
                if plans is not None or effort == MOST_PAIRS:
                    break
                effort = MOST_PAIRS
                continue
            if found.cost.size:
                plans = found
            if found.cost.size >= ENOUGH:
                break
        return plans

    def alone(self, prices: Floats) -> Plans:
        """Plans whose pools are of one class each."""
        found = [self._none(prices)]
        for chosen in self.sets:
            parts = [
                plans_of(phase, pool, prices, [np.nonzero(pool.load >= pool.need)[0].reshape(-1, 1)])
                for phase, pool in chosen
            ]
            found.append(_together(parts, np.inf))
        return self._in_stock(joined(found))

    def replicas(self, plans: Plans, index: int) -> Groups:
        """Replicas of one plan."""
        return tuple(group for phase, part in plans.parts[index] for group in self.pools[phase].groups[part])

    def _none(self, prices: Floats) -> Plans:
        return plans_of(Phase.PREFILL, self.pools[Phase.PREFILL].pool, prices, [])

    def _in_stock(self, plans: Plans) -> Plans:
        stocks = [self.problem.stock(g) for g in range(plans.usage.shape[1])]
        stock = np.array([np.inf if s is None else s for s in stocks])
        (fits,) = np.nonzero(np.all(plans.usage <= stock, axis=1))
        return undominated(plans.kept(fits))


def _least(
    chosen: PoolSet, prices: Floats, floors: tuple[float, ...], enough: float
) -> tuple[tuple[float, ...], Ints]:
    """Least cost of each pool of a set, from bounds on it, and the GPUs; given up where above `enough`.

    There are no GPUs where it is given up, or not soon found.
    """
    values, usage = list(floors), []
    for k, (_, pool) in enumerate(chosen):
        value, used = least(pool, prices, enough - sum(values) + values[k])
        values[k] = max(values[k], value)
        usage.append(used)
    found = np.sum(usage, axis=0) if all(u.any() for u in usage) else np.zeros(prices.size, np.int64)
    return tuple(values), found


def _together(parts: list[Plans], most: float) -> Plans:
    """One plan of each pool."""
    if len(parts) == 1:
        return parts[0]
    a, b = parts
    cost = a.cost[:, None] + b.cost
    if cost.size > MOST_PAIRS:
        raise TooManyError
    rows, columns = np.nonzero(cost <= most)
    usage, spent = a.usage[rows] + b.usage[columns], cost[rows, columns]
    _, first = np.unique(usage, axis=0, return_index=True)
    if first.size > 20 * MOST_PLANS:
        raise TooManyError
    pairs = zip(rows[first].tolist(), columns[first].tolist(), strict=True)
    return Plans(
        usage=usage[first], cost=spent[first], parts=tuple(a.parts[i] + b.parts[j] for i, j in pairs)
    )


def legal_sets(illegal: Bools) -> list[tuple[frozenset[int], frozenset[int]]]:
    """Maximal sets of rows and columns no pair of which is illegal [rows, columns]; both have some.

    Raises
    ------
    TooManyError
        If there are too many of them.
    """
    closed = {frozenset(range(illegal.shape[1]))}
    for row in illegal:
        legal = frozenset(np.nonzero(~row)[0].tolist())
        closed |= {legal & other for other in closed}
        if len(closed) > MOST_SETS:
            raise TooManyError
    found = []
    for columns in closed:
        rows = frozenset(np.nonzero(~illegal[:, sorted(columns)].any(axis=1))[0].tolist())
        if rows and columns:
            found.append((rows, columns))
    return sorted(found, key=lambda pair: (sorted(pair[0]), sorted(pair[1])))


def stream_pools(problem: Problem) -> list[StreamPools]:
    """The pools of every stream.

    Raises
    ------
    TooManyError
        If illegal pairs leave too many sets of classes.
    """
    partners: dict[int, set[int]] = {}
    for i, j in problem.pairs_that_meet():
        partners.setdefault(i, set()).add(j)
        partners.setdefault(j, set()).add(i)
    found = []
    for s in range(len(problem.streams)):
        pools = {phase: pool_of(problem, s, phase, partners) for phase in Phase}
        found.append(StreamPools(problem=problem, pools=pools, sets=tuple(_sets(problem, pools, partners))))
    return found


def _sets(
    problem: Problem, pools: Mapping[Phase, WholePool], partners: Mapping[int, set[int]]
) -> Iterator[PoolSet]:
    for mode in problem.modes:
        phases = POOLS_OF_MODE[mode]
        if not mode:
            yield ((phases[0], pools[phases[0]].pool),)
            continue
        prefill, decode = (pools[phase] for phase in phases)
        table = np.zeros((len(prefill.members), len(decode.members)), np.bool_)
        for (a, p), (b, d) in product(enumerate(prefill.members), enumerate(decode.members)):
            table[a, b] = d[0] in partners.get(p[0], ())
        for rows, columns in legal_sets(table):
            yield ((phases[0], prefill.pool.only(rows)), (phases[1], decode.pool.only(columns)))
