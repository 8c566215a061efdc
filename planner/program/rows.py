"""A mixed-integer linear program as plain data: named columns, named rows, no solver."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from planner.program.problem import Family

Terms = Iterable[tuple[int, float]]
"""Column numbers with their coefficients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A variable within ``lower <= x <= upper``; `objective` is its coefficient in what is minimised."""

    name: str
    lower: float
    upper: float
    integer: bool
    objective: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """``lower <= sum of coefficient * column <= upper``; one of both is infinite, or they are equal.

    `family` is the requirement that the row states, None where it only ties columns together; `subject`
    says what of.
    """

    name: str
    terms: tuple[tuple[int, float], ...]
    lower: float
    upper: float
    family: Family | None = None
    subject: str = ""

    def activity(self, values: Sequence[float]) -> float:
        """The row's sum at `values`."""
        return math.fsum(coefficient * values[column] for column, coefficient in self.terms)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearProgram:
    """Minimise the columns' objective subject to all rows."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def objective(self, values: Sequence[float]) -> float:
        """What is minimised, at `values`."""
        return math.fsum(c.objective * x for c, x in zip(self.columns, values, strict=True) if c.objective)

    def violated(self, values: Sequence[float], tolerance: float = 1e-6) -> tuple[str, ...]:
        """Names of the columns and rows that do not hold at `values`."""
        columns = (
            c.name
            for c, x in zip(self.columns, values, strict=True)
            if not c.lower - tolerance <= x <= c.upper + tolerance
            or (c.integer and abs(x - round(x)) > tolerance)
        )
        rows = (
            r.name for r in self.rows if not r.lower - tolerance <= r.activity(values) <= r.upper + tolerance
        )
        return (*columns, *rows)

    def with_row(self, row: Row) -> LinearProgram:
        """The same program with one more row."""
        return replace(self, rows=(*self.rows, row))


class Draft:
    """A program under construction; merges repeated columns of a row."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.columns: list[Column] = []
        self.rows: list[Row] = []

    def column(self, name: str, lower: float, upper: float, *, integer: bool = True) -> int:
        """Add a variable; returns its number."""
        self.columns.append(Column(name=name, lower=lower, upper=upper, integer=integer))
        return len(self.columns) - 1

    def row(
        self,
        name: str,
        terms: Terms,
        *,
        lower: float = -math.inf,
        upper: float = math.inf,
        family: Family | None = None,
    ) -> None:
        """Add ``lower <= terms <= upper``; a row without terms that holds is left out."""
        entries = merged(terms)
        if entries or not lower <= 0 <= upper:
            self.rows.append(Row(name=name, terms=entries, lower=lower, upper=upper, family=family))

    def requirement(self, name: str, terms: Terms, limit: float, family: Family, subject: str = "") -> None:
        """Add ``terms <= limit``, a limit that a user set."""
        entries = merged(terms)
        if entries:
            self.rows.append(
                Row(name=name, terms=entries, lower=-math.inf, upper=limit, family=family, subject=subject)
            )

    def minimise(self, terms: Terms) -> None:
        """Set the objective."""
        for column, coefficient in merged(terms):
            self.columns[column] = replace(self.columns[column], objective=coefficient)

    def finish(self) -> LinearProgram:
        return LinearProgram(name=self.name, columns=tuple(self.columns), rows=tuple(self.rows))


def merged(terms: Terms) -> tuple[tuple[int, float], ...]:
    """One term per column, in the order of columns, zeros left out."""
    sums: dict[int, float] = {}
    for column, coefficient in terms:
        sums[column] = sums.get(column, 0.0) + coefficient
    return tuple((column, sums[column]) for column in sorted(sums) if sums[column])
