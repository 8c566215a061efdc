"""What tables of measurements have in common: cells read by kind, and all problems of a file in one error."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from planner.documents.files import file_error
from planner.documents.tree import shorten
from planner.errors import Problem, SpecError

MAX_ROWS = 200_000
MAX_SHOWN = 20  # problems of a file
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
Row = TypeVar("Row")
CellsKind = TypeVar("CellsKind", bound="Cells")


class Cells:
    """Cells of one row; collects what is wrong with them."""

    def __init__(self, cells: Mapping[str, str | list[str] | None], line: int) -> None:
        self.line = line
        self.problems: list[Problem] = []
        if None in cells:
            self.problems.append(Problem(key="", rule="has more cells than the first line", line=line))
        if any(value is None for value in cells.values()):
            self.problems.append(Problem(key="", rule="has fewer cells than the first line", line=line))
        self.cells = {name: str(value or "").strip() for name, value in cells.items() if name is not None}

    def problem(self, name: str, rule: str, suggestion: str = "") -> None:
        """Something wrong with a cell, which is shown with it."""
        shown = shorten(self.text(name))
        self.problems.append(Problem(key=name, rule=rule, value=shown, line=self.line, suggestion=suggestion))

    def text(self, name: str) -> str:
        """A cell without spaces around it; empty where there is no such column."""
        return self.cells.get(name, "")

    def parsed(self, name: str) -> float:
        """A cell as a number; nan where it is none."""
        try:
            return float(self.text(name).replace("_", " "))  # Python would take 1_000
        except ValueError:
            return math.nan


def column_names(path: str | Path, table: csv.DictReader[str]) -> tuple[str, ...]:
    """Names of a table's columns without spaces around them, which `table` then has.

    Raises
    ------
    SpecError
        A first line that is no CSV, or with other separators than commas.
    """
    try:
        names = [name.strip() for name in table.fieldnames or ()]
    except csv.Error as error:
        raise file_error(path, f"line 1: {error}") from None
    separator = next((name for sign, name in _SEPARATORS.items() if len(names) == 1 and sign in names[0]), "")
    if separator:
        raise file_error(path, f"line 1: cells are separated by {separator}, must be by commas")
    if table.fieldnames is not None:
        table.fieldnames = names
    return tuple(names)


def read_rows(
    path: str | Path,
    table: csv.DictReader[str],
    kind: type[CellsKind],
    row_of: Callable[[CellsKind], Row | None],
) -> tuple[Row, ...]:
    """Rows of a table; those with problems count, but are none.

    Raises
    ------
    SpecError
        With the first problems of its cells and the number of all; too many rows, or none.
    """
    rows: list[Row] = []
    problems: list[Problem] = []
    try:
        for number, cells in enumerate(table):
            if number >= MAX_ROWS:
                raise file_error(path, f"has more than {MAX_ROWS:,} rows")
            reader = kind(cells, table.line_num)
            row = row_of(reader)
            problems += reader.problems
            if row is not None:
                rows.append(row)
    except csv.Error as error:
        raise file_error(path, f"line {table.line_num}: {error}") from None
    if problems:
        more = len(problems) - MAX_SHOWN
        raised = SpecError.of_file(str(path), problems[:MAX_SHOWN])
        raise SpecError(f"{raised}\n  - and {more} more", tuple(problems), str(path)) if more > 0 else raised
    if not rows:
        raise file_error(path, "has no rows")
    return tuple(rows)
