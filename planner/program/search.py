"""From a problem to a checked solution."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.errors import SolverError
from planner.plan import PlanStatus
from planner.program.backends import LpResult, LpStatus, solve_lp
from planner.program.check import broken, verify
from planner.program.dominance import without_dominated
from planner.program.encoding import Encoding, encode, objective_terms
from planner.program.fleet import Fleet, build_fleet, distribute, loss
from planner.program.heuristic import only_stream, roomiest, simple_plan, tidy
from planner.program.limits import legal_islands, loss_bound, restrict, tighten, with_limits
from planner.program.packing import Packed, packed, simple
from planner.program.problem import Problem, Solution
from planner.program.rows import LinearProgram, Row, merged
from planner.program.simplest import fewest_groups, may_have_fewer_groups
from planner.specs import Objective

SLACK = 1e-6
"""Relative distance between losses that a solver cannot tell apart. [1]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of a search.

    Attributes
    ----------
    fleet : Fleet or None
        The best plan found.
    bound : float
        Proven lower bound on the loss; infinite if there is no plan.
    interrupted, stopped : bool
        Ended by the user; ended before the gap was proven.
    """

    fleet: Fleet | None
    bound: float
    interrupted: bool = False
    stopped: bool = False


def solve(problem: Problem, *, solver: str = "highs", time_limit: float | None = None) -> Solution | None:
    """The best plan, tidied and checked; None if there is none.

    Raises
    ------
    SolverError
        If time ran out before there was a plan, or the solver's plan does not hold.
    KeyboardInterrupt
        If the user stopped the search before there was a plan.
    """
    part = reduced(problem) if len(problem.streams) > 1 else problem
    outcome = _searched(problem, part, solver=solver, time_limit=time_limit)
    if outcome.fleet is None:
        if outcome.interrupted:
            raise KeyboardInterrupt
        if outcome.stopped:
            raise SolverError(f"no plan found within the time limit of {time_limit:g} s")
        return None
    fleet = tidy(problem, outcome.fleet)
    if not outcome.interrupted and may_have_fewer_groups(problem, fleet):
        part = part if part is not problem else reduced(problem)
        fleet = fewest_groups(part, fleet, solver=solver, time_limit=time_limit)
    solution = _solution(problem, roomiest(problem, fleet), outcome)
    verify(problem, solution)
    return solution


def reduced(problem: Problem) -> Problem:
    """`problem` without what no optimal plan needs; indices of candidates stay."""
    return without_dominated(tighten(problem))


def program(problem: Problem) -> LinearProgram:
    """The integer program of `problem`, both front doors in one."""
    return encode(reduced(problem)).lp


def search(problem: Problem, *, solver: str = "highs", time_limit: float | None = None) -> Outcome:
    """Look for the best plan, one front door after the other.

    A stream's plan never mixes colocated groups with prefill and decode pools, so for one stream the two are
    separate programs. The one with the better bound goes first, and the other only looks for plans that
    beat it by more than the gap. Several streams are first planned apart, which gives a start.
    """
    whole = reduced(problem) if len(problem.streams) > 1 else problem
    return _searched(problem, whole, solver=solver, time_limit=time_limit)


def _searched(problem: Problem, whole: Problem, *, solver: str, time_limit: float | None) -> Outcome:
    """As :func:`search`; of several streams, `whole` is the problem reduced."""
    deadline = None if time_limit is None else time.monotonic() + time_limit
    if len(problem.streams) > 1:
        return _search_streams(problem, whole, solver, deadline)
    best = Outcome(fleet=None, bound=math.inf)
    parts = _parts(problem)
    for number, part in enumerate(parts, start=1):
        left = _time_left(deadline, last=number == len(parts))
        found = _skipped(part, best) or _search_mode(part, best.fleet, solver=solver, time_limit=left)
        best = Outcome(
            fleet=_better(problem, best.fleet, found.fleet),
            bound=min(best.bound, found.bound),
            interrupted=found.interrupted,
            stopped=best.stopped or found.stopped,
        )
    return best


def _search_streams(problem: Problem, part: Problem, solver: str, deadline: float | None) -> Outcome:
    """Plan all streams together, by their own plans first.

    Where they meet in nothing but GPUs, plans of each are picked together, which mostly settles it. Else each
    is planned as if it were alone, which gives a start. A stream that has no plan alone has none beside
    others. Where GPUs are paid one by one, no plan for all can be better than the sum of the best ones.
    """
    if problem.demand is None:
        return _search_joint(problem, None, solver, deadline)
    if simple(part):
        found = packed(part, solver=solver, time_left=lambda: _time_left(deadline, last=False))
        start = None if found.replicas is None else build_fleet(problem, found.replicas)
        start = None if start is None or broken(problem, start) else start
        if found.interrupted:
            return Outcome(fleet=start, bound=found.bound, interrupted=True, stopped=True)
        if start is not None:
            if found.settled(problem.gap):
                return Outcome(fleet=start, bound=found.bound)
            return _search_joint(problem, start, solver, deadline, found)
    apart = []
    for stream in range(len(problem.streams)):
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0) / 2
        alone = search(only_stream(problem, stream), solver=solver, time_limit=left)
        if alone.fleet is None or alone.interrupted:
            return replace(alone, fleet=None)
        apart.append(alone)
    counts = zip(*(alone.fleet.replicas for alone in apart if alone.fleet is not None), strict=True)
    together = build_fleet(problem, [sum(column) for column in counts])
    start = None if broken(problem, together) else tidy(problem, together)
    bound = sum(alone.bound for alone in apart)
    stopped = any(alone.stopped for alone in apart)
    if start is not None and not problem.whole_nodes and not problem.moves:
        enough = loss(problem.objective, start.value) * (1 - problem.gap) - SLACK
        if bound >= enough or not _coupled(problem):
            return Outcome(fleet=start, bound=bound, stopped=stopped)
    return _search_joint(problem, start, solver, deadline)


def _coupled(problem: Problem) -> bool:
    """Whether anything but the sum of streams decides: limits that all of them share."""
    kinds = problem.gpu_types
    limited = any(kind.max_gpus is not None or kind.max_gpus_by_phase for kind in kinds)
    caps = (problem.budget, problem.power_cap, problem.max_gpu_types)
    return limited or any(cap is not None for cap in caps) or bool(problem.zone_caps)


def _search_joint(
    problem: Problem, start: Fleet | None, solver: str, deadline: float | None, known: Packed | None = None
) -> Outcome:
    """The program of all streams, from a plan and bounds that may be known already."""
    left = _time_left(deadline, last=True)
    found = _search_mode(reduced(problem), None, start, known, solver=solver, time_limit=left)
    return found if known is None else replace(found, bound=max(found.bound, known.bound))


def _time_left(deadline: float | None, *, last: bool) -> float | None:
    """Time for one program, with a share kept for those to come: unsearched, their bound is poor. [s]"""
    if deadline is None:
        return None
    return max(deadline - time.monotonic(), 0.0) * (1.0 if last else 0.75)


def _better(problem: Problem, a: Fleet | None, b: Fleet | None) -> Fleet | None:
    """The better of two plans, where there are two."""
    fleets = [fleet for fleet in (a, b) if fleet is not None]
    return min(fleets, key=lambda fleet: fleet.rank(problem.objective), default=None)


def _parts(problem: Problem) -> list[Problem]:
    """The programs to solve, most promising first; those with an empty pool are left out."""
    modes = [reduced(restrict(problem, mode)) for mode in problem.modes]
    parts = [island for part in modes for island in (_islands(part) if len(part.zones) == 1 else [part])]
    return sorted((p for p in parts if loss_bound(p) < _no_plan(p)), key=_promise)


def _promise(problem: Problem) -> tuple[float, float]:
    """Sort key: the loss of a plan found by hand, then the bound."""
    plan = simple_plan(problem)
    return math.inf if plan is None else loss(problem.objective, plan.value), loss_bound(problem)


def _islands(problem: Problem) -> list[Problem]:
    """`problem` split where illegal pairs leave no choice.

    Two candidates can stand in one plan only if they are linked by legal pairs; each connected part is
    a program of its own, much tighter than rows that forbid the pairs one by one.
    """
    islands = legal_islands(problem)
    if len(islands) < 2:
        return [problem]
    limits = [c.max_replicas for c in problem.candidates]
    return [
        reduced(with_limits(problem, [n if i in island else 0 for i, n in enumerate(limits)]))
        for island in islands
    ]


def _no_plan(problem: Problem) -> float:
    """Loss bound of a program with an empty pool."""
    return 0.0 if problem.objective is Objective.THROUGHPUT else math.inf


def _skipped(problem: Problem, best: Outcome) -> Outcome | None:
    """What is known of a program that need not, or may no longer, be searched."""
    bound = loss_bound(problem)
    if best.interrupted:
        return Outcome(fleet=None, bound=bound, interrupted=True, stopped=True)
    if best.fleet is not None and bound >= _cutoff(problem, best.fleet):
        return Outcome(fleet=None, bound=bound)
    return None


def _cutoff(problem: Problem, incumbent: Fleet) -> float:
    """Largest loss that is worth finding once there is a plan: better than it by more than the gap."""
    reached = loss(problem.objective, incumbent.value)
    return reached + (SLACK if problem.gap <= SLACK else -problem.gap) * abs(reached)


def _search_mode(
    problem: Problem,
    incumbent: Fleet | None,
    start: Fleet | None = None,
    known: Packed | None = None,
    *,
    solver: str,
    time_limit: float | None,
) -> Outcome:
    """Best plan of one program that beats `incumbent`; `start` is a plan of it, looked for where None.

    `known` has bounds on what streams cost, which become rows.
    """
    cutoff = math.inf if incumbent is None else _cutoff(problem, incumbent)
    start = start or simple_plan(problem)
    if start is not None and loss(problem.objective, start.value) > cutoff:
        start = None
    elif start is not None:
        cutoff = loss(problem.objective, start.value) * (1 + SLACK)
    encoding = encode(problem, worth=cutoff)
    if known is not None:
        rows = _floor_rows(encoding, known)
        encoding = replace(encoding, lp=replace(encoding.lp, rows=(*encoding.lp.rows, *rows)))
    result = _minimised(encoding, cutoff, start, solver=solver, time_limit=time_limit)
    fleet = start if result.values is None else build_fleet(problem, encoding.replicas(result.values))
    if fleet is not None and fleet.carried <= 0:  # the best rate is none at all
        fleet = None
    bound = max(result.bound * encoding.unit, loss_bound(problem))
    if result.status is LpStatus.INFEASIBLE:
        bound = cutoff
    stopped = result.status in (LpStatus.FEASIBLE, LpStatus.UNKNOWN)
    return Outcome(fleet=fleet, bound=min(bound, cutoff), interrupted=result.interrupted, stopped=stopped)


def _floor_rows(encoding: Encoding, known: Packed) -> Iterator[Row]:
    """GPUs of each stream, at the prices of the bound, cost at least what was proven of it alone."""
    problem, floors = encoding.problem, known.floors
    for s, floor in enumerate(floors.floors):
        terms = [
            (column, count * float(floors.prices[c.gpu_type]))
            for i, c in enumerate(problem.candidates)
            if c.stream == s
            for column, count in encoding.layout.count(i, c.gpus)
        ]
        least = floor * (1 - SLACK)
        yield Row(name=f"floor[{s}]", terms=merged(terms), lower=least, upper=math.inf)


def _minimised(
    encoding: Encoding, cutoff: float, start: Fleet | None, *, solver: str, time_limit: float | None
) -> LpResult:
    """The solver's answer, with the cutoff as a row unless that row is its undoing.

    HiGHS may settle in presolve on a plan that misses the cutoff by rounding, and then call its own answer an
    error.
    """
    values = None if start is None else encoding.values(start.replicas)
    for lp in (_with_cutoff(encoding, cutoff), encoding.lp):
        result = solve_lp(lp, solver=solver, time_limit=time_limit, gap=encoding.problem.gap, start=values)
        if result.status is not LpStatus.FAILED:
            return result
    raise SolverError(f"{solver} failed on the program")


def _with_cutoff(encoding: Encoding, cutoff: float) -> LinearProgram:
    """The program with "loss <= cutoff" where that says something."""
    if math.isinf(cutoff):
        return encoding.lp
    terms = merged(objective_terms(encoding.problem, encoding.layout))
    return encoding.lp.with_row(
        Row(name="better", terms=terms, lower=-math.inf, upper=cutoff / encoding.unit)
    )


def _solution(problem: Problem, fleet: Fleet, outcome: Outcome) -> Solution:
    """The plan with what was proven of it."""
    reached = loss(problem.objective, fleet.value)
    bound = min(outcome.bound, reached)
    gap = (reached - bound) / abs(reached) if reached else 0.0
    rate = fleet.carried if problem.demand is None else problem.demand
    proven = gap <= problem.gap + 2 * SLACK  # both programs stop within it
    return Solution(
        replicas=fleet.replicas,
        flows=distribute(problem, fleet, rate),
        gpus_used=fleet.gpus_used,
        gpus_paid=fleet.gpus_paid,
        nodes=fleet.nodes,
        cost=fleet.cost,
        value=fleet.value,
        bound=loss(problem.objective, bound),
        gap=gap,
        rate=rate,
        status=PlanStatus.OPTIMAL if proven else PlanStatus.FEASIBLE,
        interrupted=outcome.interrupted,
    )
