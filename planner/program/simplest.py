"""Of all plans that are as good, one with fewest groups: the second of two objectives."""

from __future__ import annotations

from dataclasses import replace

from planner.program.backends import solve_lp
from planner.program.check import broken
from planner.program.encoding import encode, objective_terms
from planner.program.fleet import Fleet, build_fleet, loss
from planner.program.problem import POOLS_OF_MODE, Problem
from planner.program.rows import LinearProgram, Row, merged

SAME = 1e-9
"""Relative difference of losses below which plans are equally good. [1]"""
MOST_NODES = 100
"""Of the search tree: a limit that is the same on every machine, as a time is not."""
MOST_RANGES = 60
"""Of all groups: larger programs take longer for this than for the plan itself, and gain next to nothing
beyond what tidying does (no group fewer in 40 programs of 6 GPU types). Exact programs are always asked."""


def fewest_groups(problem: Problem, fleet: Fleet, *, solver: str, time_limit: float | None) -> Fleet:
    """A plan no worse than `fleet` with fewer groups, if one is found; else `fleet`."""
    if not may_have_fewer_groups(problem, fleet):
        return fleet
    groups = sum(c.max_replicas > 0 for c in problem.candidates)  # of one range or more each
    if problem.gap > SAME and groups > MOST_RANGES:
        return fleet
    encoding = encode(problem)
    if problem.gap > SAME and sum(map(len, encoding.layout.ranges)) > MOST_RANGES:
        return fleet
    reached = loss(problem.objective, fleet.value)
    limit = (reached + SAME * abs(reached)) / encoding.unit
    kept = Row(
        name="as_good",
        terms=merged(objective_terms(problem, encoding.layout)),
        lower=float("-inf"),
        upper=limit,
    )
    uses = {r.use for ranges in encoding.layout.ranges for r in ranges}
    columns = tuple(
        replace(column, objective=float(i in uses)) for i, column in enumerate(encoding.lp.columns)
    )
    program = LinearProgram(name=encoding.lp.name, columns=columns, rows=(*encoding.lp.rows, kept))
    result = solve_lp(
        program,
        solver=solver,
        time_limit=time_limit,
        start=encoding.values(fleet.replicas),
        max_nodes=MOST_NODES,
    )
    if result.values is None or result.interrupted:
        return fleet
    found = build_fleet(problem, encoding.replicas(result.values))
    as_good = loss(problem.objective, found.value) <= reached + SAME * abs(reached)
    return found if found.groups < fleet.groups and as_good and not broken(problem, found) else fleet


def may_have_fewer_groups(problem: Problem, fleet: Fleet) -> bool:
    """Whether it is worth asking; what stands goes before the number of groups."""
    return fleet.groups > _fewest(problem) and not problem.moves


def _fewest(problem: Problem) -> int:
    """Groups that any plan has."""
    each = min(len(POOLS_OF_MODE[mode]) for mode in problem.modes)
    return each * len(problem.streams)
