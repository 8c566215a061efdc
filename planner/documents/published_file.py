"""Files of published measurements in long format: one row per measured value, with its source and convention.

Texts stay as they were published; only numbers that have to be numbers are read as such. Lengths often
describe a data set ("p50 280 (dataset)"), so that they stay texts too. What a row means for a prediction is
decided later; a cell that cannot be right is refused with its line and column.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from planner.documents.files import read_lines
from planner.documents.measurement_table import Cells, column_names, read_rows
from planner.documents.names import did_you_mean, one_of
from planner.errors import Problem, SpecError

COLUMNS = (
    "id", "group", "model", "gpu", "n_gpus", "parallelism", "disagg", "framework", "precision", "isl", "osl",
    "load_kind", "load_value", "metric", "value", "unit", "convention", "source", "date", "status", "notes",
)  # fmt: skip
MODES = ("agg", "disagg")

_MARK = ("load_kind", "load_value", "metric", "value", "unit")  # only this format has all of them
_NEEDED = ("id", "group", "model", "gpu", "parallelism", "framework", "isl", "osl", "load_kind", "metric")
_UNITS = {
    "_ms": "ms",
    "_tok_s": "tok/s",
    "_tok_s_per_gpu": "tok/s/gpu",
    "_tok_s_per_node": "tok/s/node",
    "req_s": "req/s",
}
"""Units of metrics, by the end of their names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedRow:
    """One published value. Texts as they stand in the file.

    Attributes
    ----------
    line : int
        Of the file, from 1.
    n_gpus : int
        Of one replica.
    disaggregated : bool
        Whether prefill and decode had replicas of their own.
    isl, osl : str
        Lengths, or what is said of them. [tok]
    load_value : float or None
        Requests in a batch or at a time, or a rate [req/s]; infinite where all requests are queued at once.
    value : float
        In `unit`.
    convention : str
        How the value was counted.
    """

    line: int
    id: str
    group: str
    model: str
    gpu: str
    n_gpus: int
    parallelism: str
    disaggregated: bool
    framework: str
    precision: str
    isl: str
    osl: str
    load_kind: str
    load_value: float | None
    metric: str
    value: float
    unit: str
    convention: str
    source: str
    date: str
    status: str
    notes: str


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """Rows of a file in its order."""

    source: str
    rows: tuple[PublishedRow, ...]


def is_published(columns: tuple[str, ...]) -> bool:
    """Whether a table with these columns is of the long format."""
    return set(_MARK) <= set(columns)


def read_published(path: str | Path) -> PublishedFile:
    """Read a file of published measurements, plain or compressed with gzip.

    Raises
    ------
    SpecError
        Unreadable, columns missing or unknown, or with the first problems of its cells.
    """
    table = csv.DictReader(read_lines(path))
    _check_columns(path, table)
    lines: dict[str, int] = {}

    def row_of(cells: _Cells) -> PublishedRow:
        row = _row(cells)
        first = lines.setdefault(row.id, row.line)
        if row.id and first != row.line:
            cells.problem("id", f"must be unique: line {first} has it too")
        return row

    return PublishedFile(str(path), read_rows(path, table, _Cells, row_of))


def _check_columns(path: str | Path, table: csv.DictReader[str]) -> None:
    columns = column_names(path, table)
    problems = []
    for name in dict.fromkeys(columns):
        if columns.count(name) > 1:
            problems.append(Problem(key=name, rule="column occurs twice", line=1))
        elif name not in COLUMNS:
            hint = did_you_mean(name, [c for c in COLUMNS if c not in columns])
            problems.append(Problem(key=name, rule="unknown column", line=1, suggestion=hint))
    for name in COLUMNS:
        if name not in columns:
            hint = did_you_mean(name, [c for c in columns if c not in COLUMNS])
            problems.append(Problem(key=name, rule="column is missing", line=1, suggestion=hint))
    if problems:
        raise SpecError.of_file(str(path), problems)


class _Cells(Cells):
    """Cells of one row, read by kind."""

    def number(self, name: str, infinite: bool = False) -> float:
        """A number above 0; nan, and a problem, where there is none."""
        value = self.parsed(name)
        if not value > 0 or (math.isinf(value) and not infinite):
            self.problem(name, "must be a number > 0" if infinite else "must be a finite number > 0")
            return math.nan
        return value

    def whole(self, name: str) -> int:
        value = self.number(name)
        if math.isfinite(value) and not value.is_integer():
            self.problem(name, "must be a whole number")
        return int(value) if math.isfinite(value) else 0


def _row(cells: _Cells) -> PublishedRow:
    for name in _NEEDED:
        if not cells.text(name):
            cells.problem(name, "must not be empty")
    mode, metric, unit = cells.text("disagg"), cells.text("metric"), cells.text("unit")
    if mode not in MODES:
        cells.problem("disagg", one_of(MODES), did_you_mean(mode, MODES))
    ends = [end for end in _UNITS if metric.endswith(end)]
    if ends and unit != _UNITS[max(ends, key=len)]:
        cells.problem("unit", f"must be {_UNITS[max(ends, key=len)]} for {metric}")
    return PublishedRow(
        line=cells.line,
        id=cells.text("id"),
        group=cells.text("group"),
        model=cells.text("model"),
        gpu=cells.text("gpu"),
        n_gpus=cells.whole("n_gpus"),
        parallelism=cells.text("parallelism"),
        disaggregated=mode == "disagg",
        framework=cells.text("framework"),
        precision=cells.text("precision"),
        isl=cells.text("isl"),
        osl=cells.text("osl"),
        load_kind=cells.text("load_kind"),
        load_value=cells.number("load_value", infinite=True) if cells.text("load_value") else None,
        metric=metric,
        value=cells.number("value"),
        unit=unit,
        convention=cells.text("convention"),
        source=cells.text("source"),
        date=cells.text("date"),
        status=cells.text("status"),
        notes=cells.text("notes"),
    )
