"""Request traces as files: CSV, TSV and JSON lines of the public traces, and tables with usual names.

Nothing is mended silently. A value that cannot be right is refused with its line; what had to be decided
(order of rows, unit of timestamps, one of two columns) is said in the trace's notes.
"""

from __future__ import annotations

import csv
import json
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.documents.files import file_error, read_lines
from planner.documents.names import one_of
from planner.documents.trace_columns import (
    ALIASES,
    ARRIVAL,
    BLOCKS,
    ISL,
    OSL,
    PLAIN,
    Columns,
    Layout,
    recognise,
)
from planner.documents.trace_times import SCALES, Dates, Unit, is_number, number, numbers, unit_of
from planner.documents.trace_values import block_ids, many_tokens, signed, tokens
from planner.documents.tree import shorten
from planner.errors import Problem, SpecError
from planner.traces import IntArray, PromptBlocks, Trace
from planner.units import GIGA, SECONDS_PER_HOUR

MAX_ROWS = 5_000_000
MAX_BLOCKS = 200_000_000
MAX_DURATION = 10 * 366 * 24 * SECONDS_PER_HOUR  # [s]
MAX_SHOWN = 20  # problems of a file

_CHUNK = 20_000  # rows
_MAX_COLUMNS = 500
_NAMES = "known names: " + "; ".join(
    f"{role}: {', '.join(ALIASES[role][:5])}, ..." for role in (ARRIVAL, ISL, OSL)
)


def read_trace(
    path: str | Path, *, unit: str | None = None, block_size: int | None = None, name: str | None = None
) -> Trace:
    """Read a trace, plain or compressed with gzip.

    Parameters
    ----------
    path : str or Path
    unit : str, optional
        Of numeric timestamps: s, ms, us or ns; worked out, and said, when None.
    block_size : int, optional
        Tokens of a hashed block; default: the layout's, 512. [tok]
    name : str, optional
        Default: the file's.

    Raises
    ------
    SpecError
        With the first problems of the file and the number of all.
    """
    path = Path(path)
    if unit is not None and unit not in SCALES:
        raise SpecError(f"unit: {one_of(tuple(SCALES))}, got {unit!r}")
    reader = _Reader(path, unit, block_size)
    reader.read()
    return reader.trace(name or _stem(path))


def _stem(path: Path) -> str:
    """Name of a trace from its file's, in letters that names may have."""
    stem = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    return re.sub(r"[^\w.+-]+", "-", stem).strip("-") or "trace"


# --------------------------------------------------------------------------------------------
# Problems


@dataclass(slots=True)
class _Problems:
    """The first problems of a file, and how many there are."""

    source: str
    count: int = 0
    shown: list[Problem] = field(default_factory=list)

    def add(self, line: int, rule: str, key: str = "", value: Any = None, suggestion: str = "") -> None:
        self.count += 1
        if len(self.shown) < MAX_SHOWN:
            text = "" if value is None else shorten(repr(value))
            self.shown.append(Problem(key=key, rule=rule, value=text, line=line, suggestion=suggestion))
        elif len(self.shown) == MAX_SHOWN:
            self.shown.append(Problem(key="", rule="", line=line))

    def check(self) -> None:
        """Raise what was found."""
        if self.count == 0:
            return
        shown = self.shown[:MAX_SHOWN]
        if self.count > MAX_SHOWN:
            last = max(self.shown, key=lambda problem: problem.line)
            more = self.count - MAX_SHOWN
            rule = f"{more:,} more problem" + ("s, here and elsewhere" if more > 1 else "")
            shown.append(Problem(key="", rule=rule, line=last.line))
        raise SpecError.of_file(self.source, shown)


# --------------------------------------------------------------------------------------------
# Rows


@dataclass(slots=True)
class _Chunk:
    """Some rows: their lines, and per role their raw values."""

    lines: list[int] = field(default_factory=list)
    rows: list[Sequence[Any]] = field(default_factory=list)


class _Reader:
    """One pass over a file."""

    def __init__(self, path: Path, unit: str | None, block_size: int | None) -> None:
        self.path = path
        self.given_unit = unit
        self.given_block_size = block_size
        self.problems = _Problems(str(path))
        self.columns = Columns({}, (), "", PLAIN, ())
        self.kind = ""
        self.dates = Dates()
        self.count = 0
        self.arrivals: list[NDArray[Any]] = []  # numbers, or nanoseconds since 1970
        self.dated = False
        self.sides: dict[str, list[IntArray]] = {ISL: [], OSL: []}
        self.lines: list[IntArray] = []
        self.ids = array("q")
        self.block_counts = array("q")

    def read(self) -> None:
        """Collect all rows."""
        lines = read_lines(self.path)
        blank = []
        for line in lines:
            if not line.isspace():
                break
            blank.append(line)
        else:
            raise file_error(self.path, "is empty")
        rest = chain(blank, [line], lines)
        start = line.lstrip()
        if start.startswith("["):
            raise file_error(self.path, "is one JSON array", "write one object per line")
        if start.startswith("version https://git-lfs"):
            raise file_error(self.path, "is a pointer of Git LFS", "fetch the file itself: git lfs pull")
        self.kind = "JSON lines" if start.startswith("{") else "CSV"
        for chunk in self._objects(rest) if start.startswith("{") else self._cells(rest, line):
            self._add(chunk)
        self.problems.check()
        if self.count == 0:
            raise file_error(self.path, "is empty: a header and no rows")

    # ---------------------------------------------------------------------------------------
    # Tables

    def _cells(self, lines: Iterator[str], header: str) -> Iterator[_Chunk]:
        table = csv.reader(lines, delimiter=_delimiter(header), strict=True, skipinitialspace=True)
        chunk = _Chunk()
        try:
            names = next((row for row in table if any(row)), [])
            self._recognise(names, table.line_num, "the header")
            width = len(names)
            line = table.line_num + 1
            for row in table:
                if not any(row):
                    pass  # a blank line, or nothing but delimiters
                elif len(row) == width:
                    chunk.rows.append(row)
                    chunk.lines.append(line)
                    if len(chunk.rows) == _CHUNK:
                        yield chunk
                        chunk = _Chunk()
                else:
                    fields = f"{len(row)} field" + ("s" if len(row) != 1 else "")
                    self.problems.add(line, f"has {fields}, the header has {width}")
                line = table.line_num + 1
        except csv.Error as error:
            self.problems.add(table.line_num, f"is no row of a table: {error}")
        yield chunk

    def _objects(self, lines: Iterator[str]) -> Iterator[_Chunk]:
        decode = json.JSONDecoder(parse_constant=_no_constant).decode
        keys: list[str] = []
        chunk = _Chunk()
        for number_of_line, line in enumerate(lines, 1):
            if line.isspace():
                continue
            try:
                row = decode(line)
            except json.JSONDecodeError as error:
                self.problems.add(number_of_line, f"is not JSON: {error.msg} at column {error.colno}")
                continue
            except (ValueError, RecursionError) as error:
                self.problems.add(number_of_line, f"is not JSON: {shorten(str(error))}")
                continue
            if not isinstance(row, dict):
                self.problems.add(number_of_line, "must be an object in braces", value=row)
                continue
            if not keys:
                names = list(row)
                self._recognise(names, number_of_line, "the first object")
                keys = [names[column] for column in self.columns.index.values()]
                self.columns = replace(self.columns, index={r: i for i, r in enumerate(self.columns.index)})
            try:
                chunk.rows.append([row[key] for key in keys])
            except KeyError as error:
                self.problems.add(number_of_line, f"has no {shorten(repr(error.args[0]))}, which others have")
                continue
            chunk.lines.append(number_of_line)
            if len(chunk.rows) == _CHUNK:
                yield chunk
                chunk = _Chunk()
        yield chunk

    def _recognise(self, names: list[str], line: int, where: str) -> None:
        if len(names) > _MAX_COLUMNS:
            raise file_error(self.path, f"has more than {_MAX_COLUMNS:,} columns")
        twice = sorted({name for name in names if names.count(name) > 1 and name.strip()})
        self.columns = recognise(names)
        used = {names[column] for column in self.columns.index.values()}
        for name in twice:
            if name in used:
                self.problems.add(line, f"{where} names a column twice", value=name)
        if self.columns.missing:
            have = shorten(repr(", ".join(name.strip() for name in names[:20])))
            missing = " and of ".join(self.columns.missing)
            self.problems.add(line, f"{where} has no column of {missing}: {have}", suggestion=_NAMES)
        self.problems.check()

    # ---------------------------------------------------------------------------------------
    # Columns

    def _add(self, chunk: _Chunk) -> None:
        if not chunk.rows:
            return
        self.count += len(chunk.rows)
        if self.count > MAX_ROWS:
            raise file_error(self.path, f"has more than {MAX_ROWS:,} rows", "plan for a part of it")
        index = self.columns.index
        values = {role: [row[index[role]] for row in chunk.rows] for role in index}
        self.lines.append(np.array(chunk.lines, dtype=np.int64))
        self.arrivals.append(self._times(values[ARRIVAL], chunk.lines))
        for role, least in ((ISL, 1), (OSL, 0)):
            found = many_tokens(values[role], least)
            if found is None:
                one_by_one = self._each(role, values[role], chunk.lines, partial(tokens, least=least))
                found = np.array(one_by_one, dtype=np.int64)
            self.sides[role].append(found)
        if BLOCKS in index:
            self._add_blocks(values[BLOCKS], chunk.lines)

    def _times(self, values: list[Any], lines: list[int]) -> NDArray[Any]:
        """Numbers as they are, or nanoseconds since 1970."""
        if not self.arrivals:
            self.dated = not is_number(values[0])
        if self.dated:
            read = self.dates.nanoseconds
            return np.array(self._each(ARRIVAL, values, lines, read), dtype=np.int64)
        found = numbers(values)
        return np.array(self._each(ARRIVAL, values, lines, number)) if found is None else found

    def _each(self, role: str, values: list[Any], lines: list[int], read: Callable[[Any], Any]) -> list[Any]:
        """Values one by one; those that break a rule become problems."""
        result = []
        for line, value in zip(lines, values, strict=True):
            try:
                result.append(read(value))
            except ValueError as error:
                empty = value is None or (isinstance(value, str) and not value.strip())
                self.problems.add(line, str(error), key=role, value=None if empty else value)
                result.append(0)  # the file is refused at its end
        return result

    def _add_blocks(self, values: list[Any], lines: list[int]) -> None:
        for line, value in zip(lines, values, strict=True):
            try:
                ids = block_ids(value)
                before = len(self.ids)
                try:
                    self.ids.extend(ids)
                except OverflowError:  # the first ones are in
                    del self.ids[before:]
                    self.ids.extend(signed(ids))
            except ValueError as error:
                self.problems.add(line, str(error), key=BLOCKS, value=value)
                ids = ()
            self.block_counts.append(len(ids))
        if len(self.ids) > MAX_BLOCKS:
            raise file_error(self.path, f"has more than {MAX_BLOCKS:,} block hashes")

    # ---------------------------------------------------------------------------------------
    # The trace

    def trace(self, name: str) -> Trace:
        """What was read, by arrival."""
        lines = np.concatenate(self.lines)
        isl, osl = (np.concatenate(self.sides[role]) for role in (ISL, OSL))
        seconds, unit = self._seconds(np.concatenate(self.arrivals))
        self._check_duration(seconds, lines)
        blocks = self._blocks(isl, lines)
        self.problems.check()
        layout = self.columns.layout
        notes = list(self.columns.notes)
        if self.dated and self.given_unit:
            notes.append("timestamps are dates: no unit applies")
        if unit.guessed:
            known = f"{unit.name} ({unit.reason})"
            notes.append(f"timestamps are taken for {known}; planner workload --unit says otherwise")
        late = int(np.count_nonzero(np.diff(seconds) < 0))
        order = np.argsort(seconds, kind="stable")
        if late:
            rows = "1 row comes" if late == 1 else f"{late:,} rows come"
            notes.append(f"{rows} before the arrival of the row above: sorted by arrival")
        return Trace(
            name=name,
            source=self.path.name.encode("utf-8", "replace").decode("utf-8"),
            arrival=seconds[order],
            isl=isl[order],
            osl=osl[order],
            lines=lines[order],
            blocks=blocks.ordered(order) if blocks is not None and late else blocks,
            layout=f"{layout.name} ({self.kind})",
            unit=unit.name,
            unit_reason=unit.reason,
            notes=tuple(notes),
        )

    def _seconds(self, arrivals: NDArray[Any]) -> tuple[FloatArray, Unit]:
        """Arrivals since the first."""
        layout = self.columns.layout
        since = arrivals - arrivals.min()
        if self.dated:
            return since / GIGA, Unit("dates", "UTC where they name no zone")
        unit = unit_of(arrivals, self.given_unit, self.columns.unit, layout.name, layout.unit)
        # Dividing by 1,000 is exact where multiplying by 0.001 is not.
        return since / round(1 / SCALES[unit.name]), unit

    def _check_duration(self, seconds: FloatArray, lines: IntArray) -> None:
        if (duration := float(seconds.max())) > MAX_DURATION:
            years = duration / (365.25 * 24 * SECONDS_PER_HOUR)
            rule = f"is {years:,.3g} years after the first arrival; at most 10 are read"
            self.problems.add(int(lines[seconds.argmax()]), rule, key=ARRIVAL, suggestion="wrong unit?")

    def _blocks(self, isl: IntArray, lines: IntArray) -> PromptBlocks | None:
        if BLOCKS not in self.columns.index:
            return None
        layout = self.columns.layout
        size = self.given_block_size or layout.block_size
        counts = np.array(self.block_counts, dtype=np.int64)
        most = -(-isl // size)
        least = most if layout.partial_blocks else isl // size
        for i in np.flatnonzero((counts < least) | (counts > most)):
            self._wrong_count(int(lines[i]), int(counts[i]), int(isl[i]), size, layout)
        return PromptBlocks(
            offsets=np.concatenate([[0], np.cumsum(counts)]),
            ids=np.array(self.ids, dtype=np.int64),
            size=size,
        )

    def _wrong_count(self, line: int, count: int, isl: int, size: int, layout: Layout) -> None:
        hashes = f"{count:,} hash" + ("es" if count != 1 else "")
        rule = f"has {hashes}, but {isl:,} tokens are {-(-isl // size):,} blocks of {size:,}"
        hint = "" if self.given_block_size else "planner workload --block-size sets another size"
        self.problems.add(line, rule, key=BLOCKS, suggestion=hint)


def _delimiter(header: str) -> str:
    """Of comma, tab, semicolon and bar, the one that finds most columns."""
    found = {}
    for delimiter in ",\t;|":
        try:
            names = next(csv.reader([header], delimiter=delimiter, skipinitialspace=True), [])
        except csv.Error:
            continue
        roles = recognise(names).index if len(names) <= _MAX_COLUMNS else ()
        found[delimiter] = (len(roles), len(names))
    return max(found, key=lambda delimiter: found[delimiter], default=",")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
