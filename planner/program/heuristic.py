"""Plans found by hand: a start for the solver, and the tidying of what it returns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from planner.program.check import broken
from planner.program.fleet import Fleet, build_fleet
from planner.program.limits import replicas_for
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
    best: Fleet | None = None
    for mode in problem.modes:
        pools = [_sized(problem, phase, problem.demand) for phase in POOLS_OF_MODE[mode]]
        combinations = sorted((sum(size[0] for size in sizes), sizes) for sizes in product(*pools))
        for weight, sizes in combinations[:TRIED]:
            if best is not None and weight > best.value:
                break
            best = _better(problem, best, _single_groups(problem, sizes))
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

    Such swaps change no objective but throughput: what they add is room before the SLOs are missed.
    """
    for i, n in enumerate(fleet.replicas):
        if n == 0:
            continue
        rivals = sorted(_alike(problem, fleet, i), key=lambda k: -problem.usable(k, n))
        for k in rivals:
            if problem.usable(k, n) <= problem.usable(i, n):
                break
            moved = build_fleet(problem, _changed(fleet, {i: 0, k: n}))
            if not broken(problem, moved):
                fleet = moved
                break
    return fleet


def _alike(problem: Problem, fleet: Fleet, i: int) -> Iterator[int]:
    """Unused candidates with the phase, GPU type and GPUs per replica of candidate i."""
    mine = problem.candidates[i]
    for k, other in enumerate(problem.candidates):
        same = (other.phase, other.gpu_type, other.gpus) == (mine.phase, mine.gpu_type, mine.gpus)
        if same and fleet.replicas[k] == 0 and other.max_replicas >= fleet.replicas[i]:
            yield k


def _sized(problem: Problem, phase: Phase, rate: float) -> list[tuple[float, int, int]]:
    """Objective weight of the GPUs used, candidate, replicas: each candidate that carries `rate` alone."""
    sizes = []
    for i in problem.indices(phase):
        candidate = problem.candidates[i]
        if candidate.max_replicas > 0:
            n = max(replicas_for(problem, i, rate), problem.min_replicas_per_pool)
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


def _rank(problem: Problem, fleet: Fleet) -> tuple[float, int, int]:
    """As :meth:`Fleet.rank`, blind to rounding of the objective."""
    value, groups, gpus = fleet.rank(problem.objective)
    return float(f"{value:.10g}"), groups, gpus


def _moves(problem: Problem, fleet: Fleet) -> Iterator[list[int]]:
    """Leave one group of a pool; drop a group; merge two of a pool; take replicas off a group."""
    groups = [i for i, n in enumerate(fleet.replicas) if n > 0]
    for k in groups:
        yield from _alone(problem, fleet, k)
    for i in groups:
        yield _changed(fleet, {i: 0})
    for i, k in product(groups, groups):
        if i != k and problem.candidates[i].phase is problem.candidates[k].phase:
            yield from _merged(problem, fleet, i, k)
    for i in sorted(groups, key=lambda i: -problem.candidates[i].gpus):
        n = fleet.replicas[i]
        yield from (_changed(fleet, {i: n - drop}) for drop in _steps(n))


def _alone(problem: Problem, fleet: Fleet, k: int) -> Iterator[list[int]]:
    """Move the load of a whole pool to its group k."""
    candidate = problem.candidates[k]
    rest = [i for i in problem.indices(candidate.phase) if fleet.replicas[i] > 0 and i != k]
    served = problem.demand if problem.demand is not None else fleet.carried
    n = max(replicas_for(problem, k, served), problem.min_replicas_per_pool)
    if rest and n <= candidate.max_replicas:
        yield _changed(fleet, {**dict.fromkeys(rest, 0), k: int(n)})


def _merged(problem: Problem, fleet: Fleet, i: int, k: int) -> Iterator[list[int]]:
    """Move group i's load to group k."""
    rate = fleet.usable[i] + fleet.usable[k]
    pool = sum(fleet.usable[j] for j in problem.indices(problem.candidates[i].phase))
    served = problem.demand if problem.demand is not None else fleet.carried
    n = replicas_for(problem, k, max(rate - (pool - served), 0.0))
    if n <= problem.candidates[k].max_replicas:
        yield _changed(fleet, {i: 0, k: int(max(n, 1))})


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
