"""Plans found by hand: a start for the solver, and the tidying of what it returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from planner.program.check import broken
from planner.program.fleet import Fleet, build_fleet
from planner.program.limits import replicas_for, with_limits
from planner.program.problem import POOLS_OF_MODE, Problem
from planner.specs import Phase

TRIED = 60
"""Cheapest combinations that are built in full."""


def simple_plan(problem: Problem) -> Fleet | None:
    """The best plan found with one group per pool; None if none of those tried is valid.

    Ranked by the price of GPUs used, then built and checked in that order: whole nodes and caps are seen
    only there.
    """
    if problem.demand is None:
        return None
    replicas = [0] * len(problem.candidates)
    for stream in range(len(problem.streams)):
        alone = _simple_stream(problem, stream)
        if alone is None:
            return None
        replicas = [n + m for n, m in zip(replicas, alone.replicas, strict=True)]
    fleet = build_fleet(problem, replicas)
    return None if broken(problem, fleet) else fleet


def _simple_stream(problem: Problem, stream: int) -> Fleet | None:
    """The best plan of one stream by itself."""
    part = only_stream(problem, stream)
    best: Fleet | None = None
    for mode in problem.modes:
        pools = [_sized(part, phase) for phase in POOLS_OF_MODE[mode]]
        combinations = sorted((sum(size[0] for size in sizes), sizes) for sizes in product(*pools))
        for weight, sizes in combinations[:TRIED]:
            if best is not None and weight > best.value:
                break
            best = _better(part, best, _single_groups(part, sizes))
    return best


def tidy(problem: Problem, fleet: Fleet) -> Fleet:
    """A valid plan no worse than `fleet`, without groups or replicas that it can do without.

    The solver stops within its gap, and whole nodes make the objective flat: there this prefers fewer
    groups, then fewer GPUs. For throughput the rate does not fall.
    """
    better: Fleet | None = fleet
    while better is not None:
        fleet = better
        better = next(_improvements(problem, fleet), None)
    return fleet


def roomiest(problem: Problem, fleet: Fleet) -> Fleet:
    """`fleet` with each group swapped for the one on the same GPUs that carries the most.

    What such swaps add is room before the SLOs are missed.
    """
    for i, n in enumerate(fleet.replicas):
        if n == 0:
            continue
        rivals = sorted(_alike(problem, fleet, i), key=lambda k: -problem.usable(k, n))
        for k in rivals:
            if problem.usable(k, n) <= problem.usable(i, n):
                break
            moved = build_fleet(problem, _changed(fleet, {i: 0, k: n}))
            no_worse = _rank(problem, moved)[0] <= _rank(problem, fleet)[0]  # where starting has a price
            if no_worse and not broken(problem, moved):
                fleet = moved
                break
    return fleet


def only_stream(problem: Problem, stream: int) -> Problem:
    """`problem` of one stream, all indices of candidates kept."""
    if len(problem.streams) == 1:
        return problem
    limits = [c.max_replicas if c.stream == stream else 0 for c in problem.candidates]
    kept = with_limits(problem, limits)
    candidates = tuple(replace(c, stream=0) for c in kept.candidates)
    (one,) = problem.streams[stream : stream + 1]
    demand = None if problem.demand is None else problem.rate(stream)
    return replace(kept, candidates=candidates, streams=(replace(one, share=1.0),), demand=demand)


def _alike(problem: Problem, fleet: Fleet, i: int) -> Iterator[int]:
    """Unused candidates with the phase, GPU type and GPUs per replica of candidate i."""
    mine = problem.candidates[i]
    for k, other in enumerate(problem.candidates):
        same = (other.phase, other.gpu_type, other.gpus, other.stream) == (
            mine.phase,
            mine.gpu_type,
            mine.gpus,
            mine.stream,
        )
        if same and fleet.replicas[k] == 0 and other.max_replicas >= fleet.replicas[i]:
            yield k


def _sized(problem: Problem, phase: Phase) -> list[tuple[float, int, int]]:
    """Objective weight of the GPUs used, candidate, replicas: each candidate that carries all load alone."""
    sizes = []
    for i in problem.indices(phase):
        candidate = problem.candidates[i]
        if candidate.max_replicas > 0:
            n = max(replicas_for(problem, i, problem.rate(0)), problem.min_replicas_per_pool)
            if n <= candidate.max_replicas:
                sizes.append((n * candidate.gpus * problem.weight(candidate.gpu_type), i, int(n)))
    return sizes


def _single_groups(problem: Problem, sizes: tuple[tuple[float, int, int], ...]) -> Fleet:
    replicas = [0] * len(problem.candidates)
    for _, index, n in sizes:
        replicas[index] = n
    return build_fleet(problem, replicas)


def _better(problem: Problem, best: Fleet | None, fleet: Fleet) -> Fleet | None:
    """The better of two plans; `fleet` only if it is valid."""
    if best is not None and fleet.rank(problem.objective) >= best.rank(problem.objective):
        return best
    return best if broken(problem, fleet) else fleet


def _improvements(problem: Problem, fleet: Fleet) -> Iterator[Fleet]:
    """Valid plans that rank before `fleet`, by one move."""
    rank = _rank(problem, fleet)
    for replicas in _moves(problem, fleet):
        moved = build_fleet(problem, replicas)
        if _rank(problem, moved) < rank and not broken(problem, moved):
            yield moved


def _rank(problem: Problem, fleet: Fleet) -> tuple[float, int, int, int]:
    """As :meth:`Fleet.rank`, blind to rounding of the objective."""
    value, *rest = fleet.rank(problem.objective)
    stopped, groups, gpus = rest
    return float(f"{value:.10g}"), stopped, groups, gpus


def _moves(problem: Problem, fleet: Fleet) -> Iterator[list[int]]:
    """Keep what stands; leave one group of a pool; drop a group; merge two of a pool; take replicas off."""
    yield from _kept(problem, fleet)
    groups = [i for i, n in enumerate(fleet.replicas) if n > 0]
    for k in groups:
        yield from _alone(problem, fleet, k)
    for i in groups:
        yield _changed(fleet, {i: 0})
    for i, k in product(groups, groups):
        if i != k and _pool_of(problem, i) == _pool_of(problem, k):
            yield from _merged(problem, fleet, i, k)
    for i in sorted(groups, key=lambda i: -problem.candidates[i].gpus):
        n = fleet.replicas[i]
        yield from (_changed(fleet, {i: n - drop}) for drop in _steps(n))


def _kept(problem: Problem, fleet: Fleet) -> Iterator[list[int]]:
    """Replicas that stand back in their groups: all that were stopped of a kind, or one."""
    for kind in problem.moves:
        stopped = kind.current - sum(fleet.replicas[i] for i in kind.candidates)
        if stopped > 0:
            members = [i for i in kind.candidates if fleet.replicas[i] > 0] or list(kind.candidates)
            for i in members:
                yield from (_changed(fleet, {i: fleet.replicas[i] + n}) for n in dict.fromkeys((stopped, 1)))


def _alone(problem: Problem, fleet: Fleet, k: int) -> Iterator[list[int]]:
    """Move the load of a whole pool to its group k."""
    candidate = problem.candidates[k]
    rest = [i for i in problem.indices(candidate.phase, candidate.stream) if fleet.replicas[i] > 0 and i != k]
    served = _served(problem, fleet, candidate.stream)
    n = max(replicas_for(problem, k, served), problem.min_replicas_per_pool)
    if rest and n <= candidate.max_replicas:
        yield _changed(fleet, {**dict.fromkeys(rest, 0), k: int(n)})


def _merged(problem: Problem, fleet: Fleet, i: int, k: int) -> Iterator[list[int]]:
    """Move group i's load to group k."""
    rate = fleet.usable[i] + fleet.usable[k]
    phase, stream = _pool_of(problem, i)
    pool = sum(fleet.usable[j] for j in problem.indices(phase, stream))
    served = _served(problem, fleet, stream)
    n = replicas_for(problem, k, max(rate - (pool - served), 0.0))
    if n <= problem.candidates[k].max_replicas:
        yield _changed(fleet, {i: 0, k: int(max(n, 1))})


def _pool_of(problem: Problem, index: int) -> tuple[Phase, int]:
    candidate = problem.candidates[index]
    return candidate.phase, candidate.stream


def _served(problem: Problem, fleet: Fleet, stream: int) -> float:
    """Load of one stream. [req/s]"""
    if problem.demand is not None:
        return problem.rate(stream)
    return fleet.carried * problem.streams[stream].share / sum(s.share for s in problem.streams)


def _steps(n: int) -> Iterator[int]:
    """Numbers of replicas to take off, large ones first so that few moves are needed."""
    step = 1 << (n.bit_length() - 1)
    while step:
        if step < n:
            yield step
        step >>= 1


def _changed(fleet: Fleet, counts: dict[int, int]) -> list[int]:
    replicas = list(fleet.replicas)
    for index, n in counts.items():
        replicas[index] = n
    return replicas
