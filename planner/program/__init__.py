"""The integer program: how many replicas of which candidates serve the load at least cost.

curves -> limits, dominance -> encoding -> named rows -> backends -> tidy -> check

The program knows nothing of latency: capacity curves come in as data.
"""

from __future__ import annotations

from pathlib import Path

from planner.errors import InfeasibleError, SpecError
from planner.program.assignment import (
    Assignment,
    AssignmentProblem,
    Server,
    Stream,
    solve_assignment,
)
from planner.program.backends import write_lp
from planner.program.infeasible import Diagnosis, diagnose
from planner.program.limits import fits_in_stock
from planner.program.problem import Candidate, CapacityCurve, GpuType, Problem, Solution
from planner.program.search import program
from planner.program.search import solve as _solve
from planner.specs import Objective

__all__ = [
    "Assignment",
    "AssignmentProblem",
    "Candidate",
    "CapacityCurve",
    "Diagnosis",
    "GpuType",
    "Problem",
    "Server",
    "Solution",
    "Stream",
    "diagnose",
    "fits_in_stock",
    "save_lp",
    "solve",
    "solve_assignment",
]


def solve(
    problem: Problem,
    *,
    solver: str = "highs",
    time_limit: float | None = None,
    explain: bool = True,
    briefly: bool = False,
) -> Solution:
    """The best plan of `problem`, checked against every constraint.

    Parameters
    ----------
    solver : str
        "highs" or "cbc".
    time_limit : float, optional
        [s]
    explain : bool
        Whether an infeasible program is diagnosed, which takes longer than solving it.
    briefly : bool
        Whether that says no more than what binds.

    Raises
    ------
    InfeasibleError
        If there is no plan; says what binds.
    SolverError
        If the solver failed, or time ran out before there was a plan.
    KeyboardInterrupt
        If the user stopped the search before there was a plan; with a plan it is returned, interrupted.
    """
    _require_finite(problem)
    solution = _solve(problem, solver=solver, time_limit=time_limit)
    if solution is None:
        if not explain:
            raise InfeasibleError("no fleet of this kind")
        raise diagnose(problem, solver=solver, briefly=briefly).error()
    return solution


def save_lp(problem: Problem, path: str | Path) -> None:
    """Write the program of `problem` to `path` in LP format, without solving it."""
    write_lp(program(problem), path)


def _require_finite(problem: Problem) -> None:
    """Refuse to maximise a rate that nothing but a candidate's own limit bounds."""
    if problem.objective is not Objective.THROUGHPUT:
        return
    for candidate in problem.candidates:
        kind = problem.gpu_types[candidate.gpu_type]
        if (
            candidate.max_replicas
            and kind.max_gpus is None
            and not (problem.budget is not None and kind.price)
        ):
            raise SpecError(
                f"GPU type {kind.name!r}: throughput needs a stock, or a budget and a price, to be finite"
            )
