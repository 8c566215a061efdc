"""A linear program that grows by columns and says what its rows are worth.

Why not :func:`planner.program.backends.solve_lp`: it hands out no duals, and starts from scratch each time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from planner.errors import SolverError
from planner.program.backends import THREADS, muted_banner, run_interruptibly

Floats = NDArray[np.float64]

PRIMAL = 4
"""HiGHS's number of the primal simplex: with more columns, the last optimum is a feasible start of it."""
Entries = Sequence[tuple[int, float]]
"""Rows with their coefficients, of one column."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LpPoint:
    """An optimum: values per column, duals per row (at least zero for "at least" rows)."""

    objective: float
    values: Floats
    duals: Floats


class GrowingLp:
    """Minimise over columns >= 0; rows first, then columns, as many and as often as needed."""

    def __init__(self) -> None:
        with muted_banner():
            self._model = highspy.Highs()  # type: ignore[no-untyped-call]
        self._set("output_flag", False)
        self._set("threads", THREADS)
        self.rows = 0
        self.columns = 0
        self._pending: list[tuple[float, float, Entries]] = []

    def row(self, lower: float, upper: float) -> int:
        """Add a row without entries; returns its number."""
        self._model.addRow(lower, upper, 0, np.empty(0, np.int32), np.empty(0))
        self.rows += 1
        return self.rows - 1

    def column(self, cost: float, entries: Entries, upper: float = math.inf) -> int:
        """Add a column; returns its number."""
        self._pending.append((cost, upper, entries))
        self.columns += 1
        return self.columns - 1

    def solve(self) -> LpPoint:
        """The optimum.

        Raises
        ------
        KeyboardInterrupt
            If the user stopped it.
        """
        self._flush()
        if run_interruptibly(self._model):
            raise KeyboardInterrupt
        self._set("simplex_strategy", PRIMAL)
        status = self._model.getModelStatus()
        if status not in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kModelEmpty):
            raise SolverError(f"HiGHS failed on a linear program: {status}")
        solution = self._model.getSolution()
        return LpPoint(
            objective=float(self._model.getInfo().objective_function_value),
            values=np.array(solution.col_value),
            duals=np.array(solution.row_dual),
        )

    def _set(self, name: str, value: bool | int) -> None:
        if self._model.setOptionValue(name, value) != highspy.HighsStatus.kOk:
            raise SolverError(f"HiGHS does not know the option {name}={value!r}")

    def _flush(self) -> None:
        """Hand pending columns over."""
        if not self._pending:
            return
        costs, uppers, entries = zip(*self._pending, strict=True)
        starts = np.cumsum([0, *(len(e) for e in entries[:-1])]).astype(np.int32)
        rows = np.array([row for e in entries for row, _ in e], np.int32)
        values = np.array([value for e in entries for _, value in e], np.float64)
        count = len(costs)
        self._model.addCols(
            count, np.array(costs), np.zeros(count), np.array(uppers), len(rows), starts, rows, values
        )
        self._pending = []
