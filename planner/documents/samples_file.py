"""Files of measured operator times: one row per case, with what was measured on in the lines before.

CSV with the columns ``operator``, ``dtype``, the axes of all operators (empty where an operator has none
such), ``time_us``, ``spread`` and ``kernel``; lines that start with ``#`` say what device and software
were. ``planner profile`` writes such files, and a fit can be made again from one.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.documents.files import file_error, read_lines
from planner.documents.measurement_table import Cells, column_names, read_rows
from planner.documents.names import did_you_mean, one_of
from planner.samples import ALL_AXES, AXES, TYPED, Key, Operator, Samples, SampleSet
from planner.specs import Dtype
from planner.units import MICRO

COLUMNS = ("operator", "dtype", *ALL_AXES, "time_us", "spread", "kernel")
_REQUIRED = ("operator", "dtype", "time_us")
_DEVICE = "device"


def samples_text(samples: SampleSet) -> str:
    """Text of a file that :func:`read_samples` reads back."""
    out = io.StringIO()
    facts = {_DEVICE: samples.device, **samples.facts}
    for key, value in facts.items():
        out.write(f"# {key}: {' '.join(str(value).split())}\n")
    table = csv.writer(out, lineterminator="\n")
    table.writerow(COLUMNS)
    for (operator, dtype), found in samples.tables.items():
        for i in range(len(found)):
            axes = [f"{found.axes[a][i]:.10g}" if a in found.axes else "" for a in ALL_AXES]
            spread = "" if math.isnan(found.spread[i]) else f"{found.spread[i]:.4g}"
            kernel = found.kernels[i] if found.kernels else ""
            table.writerow(
                [operator, dtype or "", *axes, f"{found.time[i] / MICRO:.6g}", spread, kernel],
            )
    return out.getvalue()


def read_samples(path: str | Path) -> SampleSet:
    """Read a file of operator times, plain or compressed with gzip.

    Times that are no numbers above 0 are kept as they are: a fit leaves them out and counts them.

    Raises
    ------
    SpecError
        Unreadable, columns missing, or with the first problems of its cells.
    """
    facts: dict[str, str] = {}
    table = csv.DictReader(_rows(path, facts))
    columns = column_names(path, table)
    missing = [name for name in _REQUIRED if name not in columns]
    if missing:
        hint = did_you_mean(missing[0], columns) or f"needed: {', '.join(_REQUIRED)} and the axes"
        raise file_error(path, f"no column {', '.join(missing)} in the first line of the table", hint)
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise file_error(path, f"column {twice[0]!r} occurs twice in the first line of the table")
    rows = read_rows(path, table, Cells, _row)
    found: dict[Key, list[_Row]] = {}
    for row in rows:
        found.setdefault((row.operator, row.dtype), []).append(row)
    return SampleSet(
        device=facts.pop(_DEVICE, ""),
        tables={key: _samples(key, members) for key, members in found.items()},
        facts=facts,
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the table, times in seconds."""

    operator: Operator
    dtype: Dtype | None
    axes: Mapping[str, float]
    time: float
    spread: float
    kernel: str


def _rows(path: str | Path, facts: dict[str, str]) -> Iterator[str]:
    """Lines of the table; those before it go into `facts`."""
    for line in read_lines(path):
        if line.startswith("#"):
            key, colon, value = line[1:].partition(":")
            if colon:
                facts[key.strip()] = value.strip()
        elif line.strip():
            yield line


def _row(cells: Cells) -> _Row | None:
    name, text = cells.text("operator"), cells.text("dtype")
    operators = tuple(o.value for o in Operator)
    if name not in operators:
        cells.problem("operator", one_of(operators), did_you_mean(name, operators))
        return None
    operator = Operator(name)
    formats = tuple(d.value for d in Dtype)
    if text and text not in formats:
        cells.problem("dtype", one_of(formats), did_you_mean(text, formats))
    if not text and operator in TYPED:
        cells.problem("dtype", f"must name the format of weights or KV cache that {name} was timed with")
    axes = {}
    for axis in AXES[operator]:
        value = cells.parsed(axis) if cells.text(axis) else _DEFAULTS.get(axis, math.nan)
        if not (math.isfinite(value) and (value > 0 or (value == 0 and _DEFAULTS.get(axis) == 0))):
            cells.problem(axis, f"must be a number > 0 for {name}")
        axes[axis] = value
    for name in ("time_us", "spread"):
        if cells.text(name) and math.isnan(cells.parsed(name)) and cells.text(name).lower() != "nan":
            cells.problem(name, "must be a number")
    if cells.problems:
        return None
    return _Row(
        operator,
        Dtype(text) if text else None,
        axes,
        cells.parsed("time_us") * MICRO,
        cells.parsed("spread") if cells.text("spread") else math.nan,
        cells.text("kernel"),
    )


_DEFAULTS = {"quantize": 0.0, "past": 0.0, "window": 0.0, "arrays": 2.0}
"""Values of axes where nothing stands; those whose default is 0 may be 0."""


def _samples(key: Key, rows: list[_Row]) -> Samples:
    operator, dtype = key
    return Samples.of_rows(
        operator,
        dtype,
        [row.axes for row in rows],
        [row.time for row in rows],
        [row.spread for row in rows],
        [row.kernel for row in rows] if any(row.kernel for row in rows) else (),
    )
