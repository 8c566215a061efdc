"""Traps of the solver libraries, one test each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import highspy
import pytest
from program_golden import PROBLEMS
from program_instances import realistic

from planner.errors import SolverError
from planner.program import backends
from planner.program.backends import LpStatus, sanitised, solve_lp, write_lp
from planner.program.encoding import encode
from planner.program.rows import Draft, LinearProgram

HARD = """
import sys
sys.path[:0] = {paths!r}
from program_instances import hard
from planner.program import solve
problem = hard()
print("ready", flush=True)
try:
    solution = solve(problem)
except KeyboardInterrupt:
    sys.exit(130)
print(solution.status, solution.interrupted, solution.value > 0, flush=True)
"""


def knapsack(limit: float = 7.5) -> LinearProgram:
    draft = Draft("knapsack")
    x = draft.column("x[a-b]", 0, 10)
    y = draft.column("y", 0, 5, integer=False)
    draft.row("enough[a,b]", [(x, 2.0), (y, 1.0)], lower=limit)
    draft.minimise([(x, 3.0), (y, 2.0)])
    return draft.finish()


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_optimum_and_bound(solver: str) -> None:
    result = solve_lp(knapsack(), solver=solver)
    assert result.status is LpStatus.OPTIMAL
    assert result.values == pytest.approx((4.0, 0.0))
    assert result.bound == pytest.approx(12.0)


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_infeasible(solver: str) -> None:
    result = solve_lp(knapsack(26), solver=solver)
    assert (result.status, result.values) == (LpStatus.INFEASIBLE, None)


def test_time_limit_with_an_incumbent_is_not_called_optimal() -> None:
    encoding = encode(realistic(4))
    result = solve_lp(encoding.lp, time_limit=0.05)
    assert result.status in (LpStatus.FEASIBLE, LpStatus.UNKNOWN)
    assert (result.values is None) == (result.status is LpStatus.UNKNOWN)


def test_cbc_without_an_integer_plan_is_not_believed() -> None:
    """CBC then reports the relaxation's values under a status that says solved."""
    result = solve_lp(encode(realistic(4)).lp, solver="cbc", time_limit=0.01)
    assert result.values is None or not encode(realistic(4)).lp.violated(result.values, 1e-5)


def test_a_start_is_used_whatever_the_order_of_columns() -> None:
    assert solve_lp(knapsack(), start=(4.0, 0.0), time_limit=0.0).values == (4.0, 0.0)


def test_misspelt_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(backends._HIGHS_OPTIONS, "mip_allow_restarts", False)
    with pytest.raises(SolverError, match="does not know the option mip_allow_restarts"):
        solve_lp(knapsack())


def test_a_row_has_one_finite_side() -> None:
    draft = Draft("two-sided")
    draft.row("both", [(draft.column("x", 0, 9), 1.0)], lower=1, upper=2)
    with pytest.raises(SolverError, match="row both"):
        solve_lp(draft.finish())


def test_empty_rows_and_objectives() -> None:
    draft = Draft("empty")
    draft.column("x", 0, 9)
    draft.row("holds", [], upper=1)
    assert solve_lp(draft.finish()).status is LpStatus.OPTIMAL
    draft.row("fails", [], lower=1)
    assert solve_lp(draft.finish()).status is LpStatus.INFEASIBLE


def test_names_stay_different() -> None:
    names = sanitised(["stock[a-b]", "stock[a b]", "x" * 300, "x" * 301, "größe"])
    assert names[:2] == ["stock(a_b)", "stock(a_b)_2"]
    assert len(set(names)) == 5
    assert all(len(name) <= 100 and name.isascii() for name in names)


@pytest.mark.parametrize("family", PROBLEMS)
def test_a_written_program_is_read_back_with_the_same_optimum(family: str, tmp_path: Path) -> None:
    lp = encode(PROBLEMS[family]).lp
    write_lp(lp, tmp_path / "a.lp")
    model = highspy.Highs()
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", backends.THREADS)
    model.readModel(str(tmp_path / "a.lp"))
    model.run()
    values = solve_lp(lp).values
    assert values is not None
    assert model.getInfo().objective_function_value == pytest.approx(lp.objective(values), rel=1e-9)


def test_nothing_is_written_to_standard_output() -> None:
    """Some versions of highspy print a banner past Python's sys.stdout."""
    code = "from test_program_backends import knapsack, solve_lp; solve_lp(knapsack())"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {_paths()!r}; {code}"],
        capture_output=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"", b"")


def _paths() -> list[str]:
    here = Path(__file__).parent
    return [str(here), str(here.parent)]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="SIGINT to a subprocess is POSIX")
@pytest.mark.parametrize("delay", [0.02, 0.5, 1.5])
def test_ctrl_c_returns_the_incumbent_within_a_second(delay: float) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HARD.format(paths=_paths())], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay)
        assert process.poll() is None, "the instance is too easy for this test"
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        answer = process.stdout.readline()
        status = process.wait(timeout=10)
        assert time.monotonic() - sent < 1.0
    assert (status, answer) in [(130, ""), (0, "feasible True True\n")]
    assert delay < 1 or status == 0  # by then there is an incumbent
