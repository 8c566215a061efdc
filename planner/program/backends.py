"""Solvers. The only ``import pulp`` and ``import highspy`` of the package.

What these libraries do behind one's back, and is handled here:

- A time limit or an interrupt with an incumbent comes back as "Optimal": the solver's own status is
  read instead.
- A misspelt option is swallowed silently: each option's return code is checked.
- HiGHS returns zeros when the number of threads changes within a process: it is constant.
- Some versions of highspy print a banner to file descriptor 1: the first construction is muted.
- Ctrl-C reaches Python only after a native solver returns: HiGHS runs in a thread and polls a flag.
- PuLP fails on statuses of HiGHS that it does not know: values and status are read from the model.
- CBC reports the continuous relaxation when it has no integer plan: values are checked.
"""

from __future__ import annotations

import math
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import highspy
import pulp

from planner.errors import SolverError, SpecError
from planner.program.rows import LinearProgram, Row

THREADS = 1  # bit-reproducible; HiGHS must not see two different values in one process
POLL = 0.02
"""How often the main thread looks up while HiGHS works. [s]"""
NAME_LIMIT = 100
"""Longest name in an LP file."""

_HIGHS_OPTIONS: dict[str, bool | float] = {
    "mip_heuristic_run_rins": False,  # a third of the time, rarely a better plan
    "mip_heuristic_run_rens": False,
    "mip_allow_restart": False,
    "mip_abs_gap": 1e-9,
}


class LpStatus(StrEnum):
    """How a solver ended."""

    OPTIMAL = "optimal"
    """Proven within the gap."""
    FEASIBLE = "feasible"
    """Stopped early with values."""
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"
    """Stopped early without values."""
    FAILED = "failed"
    """The solver ended in an error of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LpResult:
    """A solver's answer.

    Attributes
    ----------
    values : tuple of float or None
        Per column.
    bound : float
        Proven lower bound on the objective; minus infinity where the solver states none.
    """

    status: LpStatus
    values: tuple[float, ...] | None
    bound: float
    interrupted: bool = False


def solve_lp(
    lp: LinearProgram,
    *,
    solver: str = "highs",
    time_limit: float | None = None,
    gap: float = 0.0,
    start: Sequence[float] | None = None,
    max_nodes: int | None = None,
) -> LpResult:
    """Minimise `lp`.

    Parameters
    ----------
    solver : str
        "highs" or "cbc".
    time_limit : float, optional
        [s]
    gap : float
        Relative gap at which to stop. [1]
    start : sequence of float, optional
        A feasible point to improve on; CBC ignores it.
    max_nodes : int, optional
        Of the search tree.

    Raises
    ------
    KeyboardInterrupt
        On Ctrl-C with CBC. HiGHS returns what it has, marked as interrupted.
    """
    problem, variables = _to_pulp(lp)
    if solver == "highs":
        return _solve_highs(
            lp, problem, variables, time_limit=time_limit, gap=gap, start=start, max_nodes=max_nodes
        )
    if solver == "cbc":
        return _solve_cbc(lp, problem, variables, time_limit=time_limit, gap=gap, max_nodes=max_nodes)
    raise SpecError(f"solver must be 'highs' or 'cbc', got {solver!r}")


def write_lp(lp: LinearProgram, path: str | Path) -> None:
    """Write `lp` to `path` in LP format, for reading or for another solver."""
    problem, _ = _to_pulp(lp)
    problem.writeLP(str(path))


def sanitised(names: Sequence[str]) -> list[str]:
    """`names` in the alphabet of LP files, still different from one another.

    ``stock[h100-sxm,decode]`` becomes ``stock(h100_sxm,decode)``.
    """
    table = str.maketrans({"[": "(", "]": ")", **dict.fromkeys("-+*/<>=:^ \t", "_")})
    taken: set[str] = set()
    result = []
    for name in names:
        base = name.translate(table).encode("ascii", "replace").decode()
        base = base.replace("?", "_")[: NAME_LIMIT - 6]
        unique, number = base, 1
        while unique in taken:
            number += 1
            unique = f"{base}_{number}"
        taken.add(unique)
        result.append(unique)
    return result


def _to_pulp(lp: LinearProgram) -> tuple[Any, list[Any]]:
    """The PuLP problem with its variables in the order of `lp`."""
    problem = pulp.LpProblem(lp.name, pulp.LpMinimize)
    new_variable = getattr(problem, "add_variable", pulp.LpVariable)  # the latter warns from 3.3.2 on
    variables = [
        new_variable(
            name,
            column.lower,
            None if math.isinf(column.upper) else column.upper,
            pulp.LpInteger if column.integer else pulp.LpContinuous,
        )
        for name, column in zip(sanitised([c.name for c in lp.columns]), lp.columns, strict=True)
    ]
    problem.setObjective(
        pulp.LpAffineExpression(
            [(v, c.objective) for v, c in zip(variables, lp.columns, strict=True) if c.objective]
        )
    )
    for name, row in zip(sanitised([r.name for r in lp.rows]), lp.rows, strict=True):
        sense, rhs = _sense(row)
        expression = pulp.LpAffineExpression([(variables[column], value) for column, value in row.terms])
        problem.addConstraint(pulp.LpConstraint(expression, sense, name, rhs))
    return problem, variables


def _sense(row: Row) -> tuple[int, float]:
    if row.lower == row.upper:
        return pulp.LpConstraintEQ, row.lower
    if math.isinf(row.lower):
        return pulp.LpConstraintLE, row.upper
    if math.isinf(row.upper):
        return pulp.LpConstraintGE, row.lower
    raise SolverError(f"row {row.name}: a row has one finite side")


def _values(lp: LinearProgram, variables: list[Any]) -> tuple[float, ...]:
    """Values in the order of `lp`; PuLP leaves out a column that stands in no row."""
    return tuple(
        c.lower if v.varValue is None else float(v.varValue)
        for c, v in zip(lp.columns, variables, strict=True)
    )


# --------------------------------------------------------------------------------------------
# HiGHS


class _Highs(pulp.HiGHS):  # type: ignore[misc]
    """PuLP's HiGHS with checked options, a start, and a run that Ctrl-C can end."""

    def __init__(self, options: dict[str, Any], variables: list[Any], start: Sequence[float] | None) -> None:
        super().__init__(msg=False)
        self.checked_options = options
        self.variables = variables
        self.start = start
        self.interrupted = False

    def createAndConfigureSolver(self, lp: Any) -> None:
        with muted_banner():
            super().createAndConfigureSolver(lp)
        for name, value in self.checked_options.items():
            if lp.solverModel.setOptionValue(name, value) != highspy.HighsStatus.kOk:
                raise SolverError(f"HiGHS does not know the option {name}={value!r}")

    def callSolver(self, lp: Any) -> None:
        model = lp.solverModel
        if self.start is not None:
            value_of = {v.name: x for v, x in zip(self.variables, self.start, strict=True)}
            solution = highspy.HighsSolution()
            # In PuLP's order; it adds a variable of its own where a row or the objective is empty.
            solution.col_value = [value_of.get(v.name, 0.0) for v in lp.variables()]
            model.setSolution(solution)
        self.interrupted = run_interruptibly(model)

    def findSolutionValues(self, lp: Any) -> tuple[int, int]:
        # PuLP's own reading raises on statuses that it does not know; ours comes from the model.
        for variable, value in zip(lp.variables(), lp.solverModel.getSolution().col_value, strict=False):
            variable.varValue = value
        return pulp.LpStatusUndefined, pulp.LpSolutionNoSolutionFound


def run_interruptibly(model: Any) -> bool:
    """Run HiGHS in a thread; True if Ctrl-C ended it."""
    stop, done = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def poll(event: Any) -> None:
        if stop.is_set():
            event.interrupt()

    def work() -> None:
        try:
            model.run()
        except BaseException as error:  # handed to the caller's thread
            failures.append(error)
        finally:
            done.set()

    for callback in (model.cbMipInterrupt, model.cbSimplexInterrupt, model.cbIpmInterrupt):
        callback.subscribe(poll)
    threading.Thread(target=work, name="highs", daemon=True).start()
    while not done.is_set():  # not Thread.join: interrupted, it may take a running thread for a finished one
        try:
            done.wait(POLL)
        except KeyboardInterrupt:
            stop.set()
    if failures:
        raise SolverError(f"HiGHS failed: {failures[0]}") from failures[0]
    return stop.is_set()


_banner_seen = False


@contextmanager
def muted_banner() -> Iterator[None]:
    """Send file descriptor 1 to nowhere while the first ``Highs()`` of the process is made."""
    global _banner_seen
    if _banner_seen:
        yield
        return
    _banner_seen = True
    try:
        saved = os.dup(1)
    except OSError:  # no standard output at all
        yield
        return
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(sink)


_HIGHS_STATUS = {
    highspy.HighsModelStatus.kOptimal: LpStatus.OPTIMAL,
    highspy.HighsModelStatus.kInfeasible: LpStatus.INFEASIBLE,
    highspy.HighsModelStatus.kUnboundedOrInfeasible: LpStatus.INFEASIBLE,  # all our columns are bounded
    highspy.HighsModelStatus.kTimeLimit: LpStatus.FEASIBLE,
    highspy.HighsModelStatus.kSolutionLimit: LpStatus.FEASIBLE,
    highspy.HighsModelStatus.kIterationLimit: LpStatus.FEASIBLE,
    highspy.HighsModelStatus.kInterrupt: LpStatus.FEASIBLE,
    highspy.HighsModelStatus.kModelEmpty: LpStatus.OPTIMAL,
}


def _solve_highs(
    lp: LinearProgram,
    problem: Any,
    variables: list[Any],
    *,
    time_limit: float | None,
    gap: float,
    start: Sequence[float] | None,
    max_nodes: int | None,
) -> LpResult:
    options: dict[str, Any] = {**_HIGHS_OPTIONS, "threads": THREADS, "mip_rel_gap": gap}
    if time_limit is not None:
        options["time_limit"] = float(time_limit)
    if max_nodes is not None:
        options["mip_max_nodes"] = max_nodes
    backend = _Highs(options, variables, start)
    problem.solve(backend)
    model = problem.solverModel
    status = _HIGHS_STATUS.get(model.getModelStatus(), LpStatus.FAILED)
    if status is LpStatus.INFEASIBLE:
        return LpResult(status=status, values=None, bound=math.inf, interrupted=backend.interrupted)
    info = model.getInfo()
    bound = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else -math.inf
    feasible = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    if not feasible or status is LpStatus.FAILED:
        ended = LpStatus.UNKNOWN if status is LpStatus.FEASIBLE else LpStatus.FAILED
        return LpResult(status=ended, values=None, bound=bound, interrupted=backend.interrupted)
    values = _values(lp, variables)
    return LpResult(status=status, values=values, bound=bound, interrupted=backend.interrupted)


# --------------------------------------------------------------------------------------------
# CBC


def _solve_cbc(
    lp: LinearProgram,
    problem: Any,
    variables: list[Any],
    *,
    time_limit: float | None,
    gap: float,
    max_nodes: int | None,
) -> LpResult:
    backend = pulp.COIN_CMD(
        path=pulp.PULP_CBC_CMD.pulp_cbc_path,
        msg=False,
        timeLimit=time_limit,
        gapRel=gap,
        gapAbs=1e-9,
        maxNodes=max_nodes,
        threads=None,  # one; CBC may be built without threads and then refuses the option
    )
    if not backend.available():
        raise SolverError("CBC is not available on this machine")
    with tempfile.TemporaryDirectory() as folder:  # an interrupt leaves no files behind
        backend.tmpDir = folder
        try:
            problem.solve(backend)
        except pulp.PulpSolverError as error:
            raise SolverError(f"CBC failed: {error}") from error
    if problem.status == pulp.LpStatusInfeasible and problem.sol_status != pulp.LpSolutionIntegerFeasible:
        return LpResult(status=LpStatus.INFEASIBLE, values=None, bound=math.inf)
    values = _values(lp, variables)
    if lp.violated(values, tolerance=1e-5):
        return LpResult(status=LpStatus.UNKNOWN, values=None, bound=-math.inf)
    if problem.sol_status == pulp.LpSolutionOptimal:
        # CBC's bound is in its log only; what it stopped at is what was asked for.
        objective = lp.objective(values)
        return LpResult(status=LpStatus.OPTIMAL, values=values, bound=objective - gap * abs(objective))
    return LpResult(status=LpStatus.FEASIBLE, values=values, bound=-math.inf)
