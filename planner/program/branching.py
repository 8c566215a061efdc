"""Several streams that share GPUs: how many nodes of each type to pay for, cheapest first.

Where last nodes stay part empty, the bound that sees GPUs only lies far below the best plan. Node counts,
however, are few and small, so that all that cost between that bound and the best plan known can be listed,
and struck off until the cheapest left has a plan, or none is left.

1. At any prices of GPUs, what a plan uses is worth at least the sum of the streams' least values. Node counts
   worth less have no plan (a Benders cut), whichever they are: one cut strikes off many. Prices that cut
   the cheapest counts are looked for by steps towards the types that they lack (the relaxation method).
2. Where no cut is found, a stream's plan within the counts is worth no more than its least and what the
   counts are worth beyond the sum of these. Such plans are enumerated and joined stream by stream. If some
   fit, they are a best plan, as all cheaper counts are struck off.

Sources: Benders 1962 (cuts); Agmon 1954 and Polyak 1969 (steps).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.program.columns import MOST_PAIRS, Bools, Floats, Ints, Plans, TooManyError
from planner.program.stream_pools import Floor, StreamPools

MOST_COUNTS = 300_000
"""Node counts that are listed before it is given up."""
MOST_TRIED = 400
"""Node counts that are looked at one by one before it is given up."""
STEPS = 60
"""Steps of the prices for one node count."""
DEPTH = 0.01
"""Of what counts are worth, how far beyond it steps aim. [1]"""
TIGHT = 12
"""Cuts by which plans for one node count are sorted out."""
EPS = 1e-9
"""Relative difference of costs that is rounding. [1]"""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cut:
    """GPUs of every plan are worth the sum of ``least`` [streams] or more, at ``prices`` [types].

    ``floors`` are those of streams not listed in full.
    """

    prices: Floats
    least: Floats
    floors: Mapping[int, Floor]

    def spare(self, gpus: Ints) -> Floats:
        """What GPUs [..., types] are worth beyond that; below zero no plan fits in."""
        return np.asarray(gpus @ self.prices - self.least.sum())

    def holds(self, gpus: Ints) -> Bools:
        """Whether plans may fit into GPUs. [..., types]"""
        return np.asarray(self.spare(gpus) >= -EPS * self.least.sum())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Counted:
    """The plan picked, and a proven bound on what better ones cost. One plan of each of ``lists``."""

    lists: list[Plans]
    picks: list[int] | None
    bound: float


def node_counts(
    costs: Floats, limits: Floats, sizes: Ints, least: float, most: float, cuts: Sequence[Cut]
) -> Ints:
    """All node counts that cost `least` to `most` and hold by all cuts, cheapest first. [counts, types]

    `costs` are those of a node, `limits` the most nodes; types without any are left out.

    Raises
    ------
    TooManyError
        If there are too many of them.
    """
    order = [g for g in np.argsort(-costs, kind="stable").tolist() if limits[g] >= 1]
    counts, spent = np.zeros((1, costs.size), np.int64), np.zeros(1)
    floor = Cut(prices=costs / sizes, least=np.array([least]), floors={})
    for k, g in enumerate(order):
        top = np.minimum((most - spent) / costs[g] + EPS, limits[g]).astype(np.int64) + 1
        if top.sum() > 10 * MOST_COUNTS:
            raise TooManyError
        rows = np.repeat(np.arange(top.size), top)
        more = np.arange(rows.size) - np.repeat(np.cumsum(top) - top, top)
        counts, spent = counts[rows], spent[rows] + more * costs[g]
        counts[:, g] = more
        keep = np.ones(more.size, np.bool_)
        for cut in (floor, *cuts):
            gain = max((cut.prices[h] * sizes[h] / costs[h] for h in order[k + 1 :]), default=0.0)
            keep &= cut.spare(counts * sizes) + (most - spent) * gain >= -EPS * most
        counts, spent = counts[keep], spent[keep]
        if spent.size > MOST_COUNTS:
            raise TooManyError
    return counts[np.lexsort((*counts.T, spent))]


class Menu:
    """Plans of every stream: all that may be in a plan worth finding, or some of them.

    ``lists`` has all, or None where there are too many; ``some`` has those known of such a stream.
    """

    def __init__(self, streams: Sequence[StreamPools], lists: Sequence[Plans | None], some: list[Plans]):
        self.streams = streams
        self.lists = list(lists)
        self.usage = [(x if p is None else p).usage for p, x in zip(lists, some, strict=True)]
        self.stack()

    def empty(self) -> bool:
        """Whether some stream has no plan that is worth finding."""
        return any(plans is not None and not plans.cost.size for plans in self.lists)

    def stack(self) -> None:
        """All lists in one."""
        sizes = [u.shape[0] for u in self.usage]
        self.starts = np.cumsum([0, *sizes[:-1]])
        self.rows = np.concatenate(self.usage).astype(np.float64)

    def least(self, prices: Floats) -> tuple[Floats, Floats]:
        """Least value of each stream's plans known, and the GPUs that these use in all."""
        worth = self.rows @ prices
        ends = [*self.starts[1:].tolist(), worth.size]
        at = [s + int(np.argmin(worth[s:e])) for s, e in zip(self.starts.tolist(), ends, strict=True)]
        return worth[at], self.rows[at].sum(axis=0)

    def proven(self, prices: Floats) -> tuple[Cut, Floats]:
        """Least value of any plan of each stream, and the GPUs that these use in all."""
        least, _ = self.least(prices)
        floors = {}
        for s, stream in enumerate(self.streams):
            if self.lists[s] is None:
                floors[s] = floor = stream.floor(prices)
                least[s] = floor.value
                if floor.usage.any():
                    self.usage[s] = np.concatenate([self.usage[s], floor.usage[None]])
        if floors:
            self.stack()
        return Cut(prices=prices, least=least, floors=floors), self.least(prices)[1]

    def closest(self, gpus: Ints, weights: Floats, start: Floats) -> Cut:
        """A cut that GPUs fall short of, or else nearly so, from prices to start from."""
        best, ratio, prices = start, np.inf, start
        for _ in range(STEPS):
            least, used = self.least(prices)
            worth = float(prices @ gpus)
            spare = worth - float(least.sum())
            if spare < -EPS * worth:
                cut, used = self.proven(prices)
                spare = float(cut.spare(gpus))
                if not cut.holds(gpus):
                    return cut
            if spare < ratio * worth:
                best, ratio = prices, spare / worth
            lack = weights * (used - gpus)
            if np.all(lack <= 0):
                break
            step = (DEPTH * worth + spare) / float(lack @ lack)
            prices = np.maximum(prices + step * weights * lack, 0.0)
        return self.proven(best)[0]

    def fitting(self, gpus: Ints, cuts: Sequence[Cut]) -> tuple[list[Plans], list[int] | None]:
        """Plans that may fit into GPUs by cuts, the first of them the closest; one of each that do fit.

        Raises
        ------
        TooManyError
            If there are too many of them.
        """
        lists: list[Plans] = []
        for s, (stream, plans) in enumerate(zip(self.streams, self.lists, strict=True)):
            if plans is None:
                most = float(cuts[0].least[s] + cuts[0].spare(gpus)) * (1 + EPS)
                plans = stream.plans(cuts[0].prices, cuts[0].floors[s], most)
            keep = np.all(plans.usage <= gpus, axis=1)
            for cut in cuts:
                most = float(cut.least[s] + cut.spare(gpus))
                keep &= plans.usage @ cut.prices <= most + EPS * float(cut.least.sum())
            if not keep.any():
                return lists, None
            lists.append(plans.kept(np.nonzero(keep)[0]))
        return lists, _joined(lists, gpus, cuts[0])

    def sort_out(self, cut: Cut, spare: float) -> None:
        """Leave out plans that no node count has room for."""
        for s, plans in enumerate(self.lists):
            if plans is not None:
                worth = plans.usage @ cut.prices
                (keep,) = np.nonzero(worth <= cut.least[s] + spare + EPS * cut.least.sum())
                if keep.size < 0.7 * worth.size:
                    self.lists[s] = plans.kept(keep)
                    self.usage[s] = plans.usage[keep]
        self.stack()


def _joined(lists: Sequence[Plans], gpus: Ints, cut: Cut) -> list[int] | None:
    """One plan of each list that together use no more than GPUs; None if there are none."""
    above = [p.usage @ cut.prices - least for p, least in zip(lists, cut.least, strict=True)]
    order = sorted(range(len(lists)), key=lambda s: lists[s].cost.size)
    later = np.cumsum([lists[s].usage.min(axis=0) for s in reversed(order)], axis=0)[::-1]
    room = float(cut.spare(gpus)) + EPS * float(cut.least.sum())
    used, spent = np.zeros((1, gpus.size), np.int64), np.zeros(1)
    trail = np.zeros((1, 0), np.int64)
    for k, s in enumerate(order):
        ranked = np.argsort(above[s], kind="stable")
        many = np.searchsorted(above[s][ranked], room - spent, side="right")
        if many.sum() > MOST_PAIRS:
            raise TooManyError
        rows = np.repeat(np.arange(many.size), many)
        plan = ranked[np.arange(rows.size) - np.repeat(np.cumsum(many) - many, many)]
        total = used[rows] + lists[s].usage[plan]
        rest = later[k + 1] if k + 1 < len(order) else 0
        (fits,) = np.nonzero(np.all(total <= gpus - rest, axis=1))
        if not fits.size:
            return None
        _, first = np.unique(total[fits], axis=0, return_index=True)
        fits = fits[first]
        used, spent = total[fits], spent[rows[fits]] + above[s][plan[fits]]
        trail = np.hstack([trail[rows[fits]], plan[fits, None]])
    picks = [0] * len(lists)
    for s, k in zip(order, trail[0].tolist(), strict=True):
        picks[s] = k
    return picks


def counted(
    menu: Menu,
    *,
    costs: Floats,
    sizes: Ints,
    limits: Floats,
    least: float,
    most: float,
    cuts: list[Cut],
    go_on: Callable[[], bool],
) -> Counted:
    """The best plan that costs up to `most`, by node counts from `least` on.

    Raises
    ------
    TooManyError
        If there are too many node counts.
    """
    counts = node_counts(costs, limits, sizes, least, most, cuts)
    weights = costs / sizes
    bound = least
    for _ in range(MOST_TRIED):
        if not counts.size or menu.empty():
            return Counted(lists=[], picks=None, bound=most)
        bound = max(bound, float(counts[0] @ costs))
        if not go_on():
            break
        gpus = counts[0] * sizes
        near = sorted(cuts, key=lambda cut: float(cut.spare(gpus)) / float(cut.least.sum()))
        cut = menu.closest(gpus, weights, near[0].prices)
        if not cut.holds(gpus):
            cuts.append(cut)
            counts = counts[cut.holds(counts * sizes)]
            if counts.size:
                menu.sort_out(cut, float(cut.spare(counts * sizes).max()))
            continue
        try:
            lists, picks = menu.fitting(gpus, [cut, *near[:TIGHT]])
        except TooManyError:
            break
        if picks is not None:
            return Counted(lists=lists, picks=picks, bound=bound)
        counts = counts[1:]
    return Counted(lists=[], picks=None, bound=bound)
