"""Several streams that share GPUs: one plan of each stream, chosen together.

1. The best plans of the streams by themselves, GPUs paid one by one, bound what all cost together.
2. Where stock binds, scarce GPUs get a price above their own (Lagrange multipliers of the stock): with prices
   c + m the bound is the sum of the streams' least costs, minus m times the stock.
3. From the cheap plans of every stream those are chosen that fill whole nodes best, by exchanging one or two
   streams' plans at a time.
4. Node counts that cost less are struck off, cheapest first (:mod:`planner.program.branching`).
5. Where those are too many: a plan better by more than the gap has, of every stream, a plan within the
   difference to the bound (the slack). These are enumerated, and a program that picks one of each settles the
   rest. Within a part of the slack, that proves so much of the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from planner.program.backends import LpStatus, solve_lp
from planner.program.branching import Cut, Menu, counted
from planner.program.columns import (
    MOST_GPUS,
    SOON,
    Floats,
    Ints,
    Plans,
    TooManyError,
    joined,
    undominated,
)
from planner.program.limits import ROUNDING
from planner.program.problem import Problem
from planner.program.rows import Draft, LinearProgram
from planner.program.stream_pools import Floor, StreamPools, stream_pools
from planner.specs import Objective

PENALTY = 64.0
"""Times the highest price: of a GPU beyond the stock, while plans are exchanged. [1]"""
TRACE = 1e-3
"""Share of what GPUs used cost that counts while plans are exchanged, so that nodes empty. [1]"""
ROUNDS = 12
"""Steps of the multipliers."""
STEP = 0.04
"""Of the bound, what the first step is meant to raise it by. [1]"""
SLACK = 1e-9
"""Relative difference of costs that is rounding. [1]"""
EXCHANGED = 300
"""Plans of a stream that are exchanged."""
PAIRED = 40
"""Of these, plans that are exchanged for two streams at once."""
FEW = 600
"""Plans of all streams that a program settles at once."""
LISTED = SOON
"""Partial plans of a stream that are looked at, where node counts do without."""
FAR = 0.05
"""Of the bound, the slack beyond which a program picks from the near plans before anything else. [1]"""
SHARES = (0.4, 1.0)
"""Of the slack, within which plans are enumerated."""
STARTS = 6
"""Random choices that exchanges start from."""


def simple(problem: Problem) -> bool:
    """Whether streams meet in nothing but GPUs and their stock, and no pool bears more than spares."""
    shared = (problem.budget, problem.power_cap, problem.max_gpu_types)
    return (
        problem.demand is not None
        and problem.objective is not Objective.THROUGHPUT
        and len(problem.zones) == 1
        and len(problem.events) == 1
        and all(limit is None for limit in shared)
        and not problem.zone_caps
        and not problem.moves
        and not problem.surge_replicas
        and problem.min_replicas_per_pool == 1
        and not any(kind.max_gpus_by_phase for kind in problem.gpu_types)
        and not any(problem.lost(i) for i in range(len(problem.candidates)))
        and all(c.gpus * c.max_replicas <= MOST_GPUS for c in problem.candidates)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A bound on the cost of all streams: that of each at ``prices`` per GPU, minus ``credit``."""

    prices: Floats
    streams: tuple[Floor, ...]
    credit: float

    @property
    def floors(self) -> tuple[float, ...]:
        """Least cost of each stream."""
        return tuple(floor.value for floor in self.streams)

    @property
    def value(self) -> float:
        return sum(self.floors) - self.credit


class Packing:
    """The streams of a simple problem, with what is known of them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        kinds = range(len(problem.gpu_types))
        in_use = {c.gpu_type for c in problem.candidates if c.max_replicas > 0}
        self.in_use = np.array([g in in_use for g in kinds])
        self.weights = np.array([problem.weight(g) if g in in_use else 0.0 for g in kinds])
        self.blocks = np.array([problem.gpu_block(g) for g in kinds], np.int64)
        stocks = [problem.stock(g) for g in kinds]
        self.stock = np.array([np.inf if s is None else s for s in stocks])
        self.penalty = PENALTY * float(self.weights.max(initial=0.0))
        self.streams: list[StreamPools] = stream_pools(problem)

    def paid(self, usage: Ints) -> Floats:
        """Cost of whole nodes for GPUs used [..., types]; infinite beyond the stock."""
        paid = -(-usage // self.blocks) * self.blocks
        return np.where(np.any(paid > self.stock, axis=-1), np.inf, paid @ self.weights)

    def bound(self, extra: Floats) -> tuple[Bound, Floats]:
        """The bound with multipliers `extra` [USD/h per GPU]; GPUs that its plans use, per type."""
        prices = self.weights + extra
        floors = tuple(stream.floor(prices) for stream in self.streams)
        finite = np.where(np.isinf(self.stock), 0.0, self.stock)
        used = np.sum([floor.usage for floor in floors], axis=0)
        return Bound(prices=prices, streams=floors, credit=float(extra @ finite)), used

    def best_bound(self) -> Bound:
        """The bound at multipliers that raise it: steps towards what is used beyond the stock, halved where
        they do not."""
        extra = np.zeros(self.weights.size)
        best, used = self.bound(extra)
        step = STEP
        for _ in range(ROUNDS):
            over = np.where(np.isinf(self.stock), 0.0, used - self.stock)
            over = np.where((extra <= 0) & (over < 0), 0.0, over)
            if not over.any():
                break
            tried = np.maximum(extra + step * abs(best.value) / float(over @ over) * over, 0.0)
            bound, would_use = self.bound(tried)
            if bound.value > best.value:
                best, extra, used = bound, tried, would_use
            else:
                step /= 2
        return best

    def near(self, bound: Bound) -> list[Plans]:
        """Cheap plans of every stream, and those with one class per pool; empty where a stream has none."""
        found = []
        for stream, floor in zip(self.streams, bound.streams, strict=True):
            cheap = stream.cheap(bound.prices, floor)
            lists = [stream.alone(bound.prices)]
            if cheap is not None:
                lists.append(cheap.kept(np.arange(min(cheap.cost.size, EXCHANGED))))
            plans = undominated(joined(lists))
            if not plans.cost.size:
                return []
            found.append(plans)
        return found

    def exchanged(self, lists: list[Plans], seed: int = 0) -> list[int] | None:
        """One plan of each list, cheapest in all by exchanges from several starts; None: none in stock."""
        rng = np.random.default_rng(seed)
        best: list[int] | None = None
        least = np.inf
        for start in range(STARTS):
            picks = [0 if start == 0 else int(rng.integers(min(p.cost.size, 4 + start))) for p in lists]
            score = self._improved(lists, picks)
            if score < least:
                best, least = picks, score
        if best is None:
            return None
        usage = sum(p.usage[k] for p, k in zip(lists, best, strict=True))
        return best if np.isfinite(self.paid(np.asarray(usage))) else None

    def _score(self, usage: Ints) -> Floats:
        """What is made small: the cost, with a penalty per GPU beyond the stock, and a trace of GPUs used."""
        paid = -(-usage // self.blocks) * self.blocks
        beyond = np.maximum(paid - self.stock, 0.0).sum(axis=-1)
        return np.asarray(paid @ self.weights + TRACE * (usage @ self.weights) + self.penalty * beyond)

    def _improved(self, lists: list[Plans], picks: list[int]) -> float:
        """Exchange plans while that helps; `picks` is changed."""
        total = sum(p.usage[k] for p, k in zip(lists, picks, strict=True))
        score = float(self._score(np.asarray(total)))
        while True:
            before = score
            for streams in [(s,) for s in range(len(lists))] + list(combinations(range(len(lists)), 2)):
                usage = self._choices(lists, streams)
                rest = total - sum(lists[s].usage[picks[s]] for s in streams)
                scores = self._score(rest + usage.reshape(-1, usage.shape[-1]))
                k = int(np.argmin(scores))
                if scores[k] < score - 1e-9:
                    score = float(scores[k])
                    chosen = np.unravel_index(k, usage.shape[:-1])
                    for s, pick in zip(streams, chosen, strict=True):
                        picks[s] = int(pick)
                    total = rest + usage[chosen]
            if score >= before:
                return score

    @staticmethod
    def _choices(lists: list[Plans], streams: tuple[int, ...]) -> Ints:
        """GPUs used by the plans of a stream [plans, types], or of two [plans, plans, types]."""
        if len(streams) == 1:
            return lists[streams[0]].usage
        a, b = (lists[s].usage[:PAIRED] for s in streams)
        return np.asarray(a[:, None] + b[None])

    def few_within(self, bound: Bound, slack: float) -> bool:
        """Whether there are so few plans :meth:`within` the slack that nothing else need be tried first."""
        left = FEW
        parts = zip(self.streams, bound.streams, strict=True)
        try:
            for stream, floor in sorted(parts, key=lambda part: -part[1].value):  # the most plans first
                left -= stream.plans(bound.prices, floor, floor.value + slack, SOON // 4).cost.size
                if left < 0:
                    return False
        except TooManyError:
            return False
        return slack > 0

    def within(self, bound: Bound, slack: float) -> list[Plans]:
        """All plans of every stream that cost up to `slack` more than its floor.

        Raises
        ------
        TooManyError
            If there are too many of them.
        """
        return [
            stream.plans(bound.prices, floor, floor.value + slack)
            for stream, floor in zip(self.streams, bound.streams, strict=True)
        ]

    def counted(self, best: Packed, some: list[Plans], time_left: Callable[[], float | None]) -> Packed:
        """The better of a plan and that found by node counts, with what these prove of the bound."""
        floors, gap = best.floors, self.problem.gap
        if np.any((self.weights <= 0) & self.in_use):
            return best
        lists = self.known_within(floors, _slack(best, gap))
        try:
            found = counted(
                Menu(self.streams, lists, some),
                costs=self.weights * self.blocks,
                sizes=self.blocks,
                limits=np.where(self.in_use, np.floor(self.stock / self.blocks), 0.0),
                least=best.bound,
                most=best.cutoff(gap),
                cuts=[Cut(prices=floors.prices, least=np.array(floors.floors), floors={})],
                go_on=lambda: (left := time_left()) is None or left > 0,
            )
        except TooManyError:
            return best
        best = replace(best, bound=max(best.bound, found.bound))
        return self.better(best, found.lists, found.picks)

    def known_within(self, bound: Bound, slack: float) -> list[Plans | None]:
        """As :meth:`within`, None for streams with too many plans."""
        found: list[Plans | None] = []
        for stream, floor in zip(self.streams, bound.streams, strict=True):
            try:
                found.append(stream.plans(bound.prices, floor, floor.value + slack, LISTED))
            except TooManyError:
                found.append(None)
        return found

    def replicas(self, lists: list[Plans], picks: list[int]) -> list[int]:
        """Replica counts of one plan of each list."""
        counts = [0] * len(self.problem.candidates)
        for stream, plans, k in zip(self.streams, lists, picks, strict=True):
            for i, n in stream.replicas(plans, k):
                counts[i] = n
        return counts

    def better(self, best: Packed, lists: list[Plans], picks: list[int] | None) -> Packed:
        """The better of a plan and one plan of each list."""
        if picks is None:
            return best
        usage = sum(p.usage[k] for p, k in zip(lists, picks, strict=True))
        value = float(self.paid(np.asarray(usage)))
        if value >= best.value:
            return best
        return replace(best, replicas=tuple(self.replicas(lists, picks)), value=value)

    def picked(
        self, best: Packed, lists: list[Plans], solver: str, time_limit: float | None
    ) -> tuple[Packed, float]:
        """The better of a plan and the best picks; a bound on what picks cost."""
        if not all(plans.cost.size for plans in lists):
            return best, math.inf
        lp, columns = self.program(lists, best.value)
        result = solve_lp(lp, solver=solver, time_limit=time_limit, gap=self.problem.gap)
        best = replace(best, interrupted=result.interrupted)
        if result.values is None:
            return best, math.inf if result.status is LpStatus.INFEASIBLE else -math.inf
        values = np.array(result.values)
        picks = [int(np.argmax(values[c.start : c.stop])) for c in columns]
        return self.better(best, lists, picks), result.bound

    def program(self, lists: list[Plans], worth: float) -> tuple[LinearProgram, list[range]]:
        """Pick one plan of each list so that whole nodes cost least; columns of each list's picks.

        nodes[g] * size >= GPUs that the plans picked use.
        """
        draft = Draft("packing")
        picks, objective = [], []
        for s, plans in enumerate(lists):
            columns = [draft.column(f"pick[{s},{k}]", 0, 1) for k in range(plans.cost.size)]
            draft.row(f"one[{s}]", [(c, 1.0) for c in columns], lower=1, upper=1)
            picks.append(range(columns[0], columns[0] + len(columns)))
        for g, block in enumerate(self.blocks.tolist()):
            terms = list(_used(lists, picks, g))
            if not terms:
                continue
            most = sum(int(p.usage[:, g].max()) for p in lists)
            nodes = min(-(-most // block), float(self.stock[g]) / block)
            column = draft.column(f"nodes[{g}]", 0, nodes)
            draft.row(f"nodes[{g}]", [(column, float(block)), *((c, -n) for c, n in terms)], lower=0)
            objective.append((column, block * float(self.weights[g])))
        draft.minimise(objective)
        if math.isfinite(worth):
            draft.row("better", objective, upper=worth)
        return draft.finish(), picks


def _used(lists: list[Plans], picks: list[range], gpu_type: int) -> Iterator[tuple[int, float]]:
    """Terms of the GPUs of a type that the plans picked use."""
    for plans, columns in zip(lists, picks, strict=True):
        usage = plans.usage[:, gpu_type].tolist()
        yield from ((c, float(n)) for c, n in zip(columns, usage, strict=True) if n)


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """The best plan found, what it costs, and a proven bound.

    ``floors`` are those that the bound comes from; ``interrupted``: ended by the user.
    """

    replicas: tuple[int, ...] | None
    value: float
    bound: float
    floors: Bound
    interrupted: bool = False

    def settled(self, gap: float) -> bool:
        """Whether nothing better by more than the gap exists."""
        return self.replicas is not None and self.bound >= self.cutoff(gap)

    def cutoff(self, gap: float) -> float:
        """Largest cost that is worth finding; a little less than the plan's where there is no gap."""
        return self.value * (1 - max(gap, SLACK))


def packed(problem: Problem, *, solver: str, time_left: Callable[[], float | None]) -> Packed:
    """The best plan of all streams of a :func:`simple` problem, as far as it is soon found."""
    try:
        packing, gap = Packing(problem), problem.gap
    except TooManyError:
        nothing = Bound(prices=np.zeros(len(problem.gpu_types)), streams=(), credit=0.0)
        return Packed(replicas=None, value=math.inf, bound=0.0, floors=nothing)
    floors = packing.best_bound()
    best = Packed(replicas=None, value=math.inf, bound=floors.value, floors=floors)
    lists = packing.near(floors)
    if not lists:
        return best
    best = packing.better(best, lists, packing.exchanged(lists))
    far = best.replicas is not None and _slack(best, gap) > FAR * best.bound
    if far:
        best, _ = packing.picked(best, lists, solver, time_left())
    if best.replicas is not None and not best.settled(gap) and not best.interrupted:
        best = packing.counted(best, lists, time_left)
    if best.replicas is None or best.settled(gap) or best.interrupted:
        return best
    few = packing.few_within(floors, _slack(best, gap))
    if not few and not far:
        best, _ = packing.picked(best, lists, solver, time_left())
    for share in (1.0,) if few else SHARES:
        if best.replicas is None or best.settled(gap) or best.interrupted:
            break
        slack = share * _slack(best, gap)
        cutoff = floors.value + slack
        try:
            lists = packing.within(floors, slack)
        except TooManyError:
            break
        best, proven = packing.picked(best, lists, solver, time_left())
        best = replace(best, bound=max(best.bound, min(proven, cutoff)))
    return best


def _slack(best: Packed, gap: float) -> float:
    """What plans worth finding may cost more than the bound of all streams."""
    return best.cutoff(gap) * (1 + ROUNDING) - best.floors.value
