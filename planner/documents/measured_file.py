"""Files of measured serving latencies: one row per configuration and load, as public benchmarks publish them.

A cell that cannot be right is refused with its line and column. Cells that are understood but say little
(an empty version, no concurrency) are kept as None: what that means for a prediction is decided later.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.documents.files import file_error, read_lines
from planner.documents.measurement_table import Cells, column_names, read_rows
from planner.documents.names import did_you_mean, one_of
from planner.units import MILLI

LARGEST = 1e12  # number in a cell: no count, length or time of a serving system comes near

REQUIRED = ("model_path", "system", "backend", "mode", "isl", "osl", "concurrency", "tp_size")
MODES = ("agg", "disagg")
TTFT_COLUMN, TPOT_COLUMN = "silicon_ttft_ms", "silicon_tpot_ms"
_MARK = "silicon_"  # only this format has such columns


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPool:
    """Equal replicas of one phase, as the file counts them; None where a cell is empty.

    Attributes
    ----------
    workers : int
        Replicas.
    tp, pp, dp : int or None
        Tensor, pipeline and attention data parallel sizes.
    moe_tp, ep : int or None
        Ranks that share each expert, and ranks over which experts are spread.
    """

    workers: int
    tp: int | None
    pp: int | None
    dp: int | None
    moe_tp: int | None
    ep: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRow:
    """One row. Texts as they stand in the file; times in seconds.

    Attributes
    ----------
    line : int
        Of the file, from 1.
    gemm, moe : str
        What the file calls the formats of matrix products and of experts.
    isl, osl : float
        Nominal lengths. [tok]
    concurrency, batch_size : float or None
        Clients in a closed loop; requests in a step, as the file counts them.
    pools : tuple of MeasuredPool
        One, or prefill and decode.
    gpus : int or None
        Of the whole configuration.
    ttft, tpot : float
        Measured means; nan where absent. [s]
    cells : mapping of str
        The row as it stands in the file.
    """

    line: int
    id: str
    model: str
    gpu: str
    engine: str
    version: str
    gemm: str
    moe: str
    isl: float
    osl: float
    concurrency: float | None
    batch_size: float | None
    pools: tuple[MeasuredPool, ...]
    gpus: int | None
    origin: str
    ttft: float
    tpot: float
    cells: Mapping[str, str]

    @property
    def disaggregated(self) -> bool:
        return len(self.pools) == 2


@dataclass(frozen=True, slots=True)
class MeasuredFile:
    """Rows of a file in its order, and its columns."""

    source: str
    columns: tuple[str, ...]
    rows: tuple[MeasuredRow, ...]


def read_measured(path: str | Path) -> MeasuredFile:
    """Read a file of measured latencies, plain or compressed with gzip.

    Raises
    ------
    SpecError
        Unreadable, columns missing, or with the first problems of its cells.
    """
    table = csv.DictReader(read_lines(path))
    columns = _columns(path, table)
    return MeasuredFile(str(path), columns, read_rows(path, table, _Cells, _row))


def measured_columns(path: str | Path) -> tuple[str, ...]:
    """Names in a table's first line; empty for an empty file.

    Raises
    ------
    SpecError
        Unreadable.
    """
    line = next(iter(read_lines(path)), "")
    try:
        return tuple(name.strip() for name in next(csv.reader([line]), []))
    except csv.Error as error:
        raise file_error(path, f"line 1: {error}") from None


def _columns(path: str | Path, table: csv.DictReader[str]) -> tuple[str, ...]:
    columns = column_names(path, table)
    if not columns:
        raise file_error(path, "is empty" if table.fieldnames is None else "line 1: has no columns")
    twice = {name for name in columns if columns.count(name) > 1}
    if twice:
        raise file_error(path, f"line 1: column {sorted(twice)[0]!r} occurs twice")
    missing = [name for name in REQUIRED if name not in columns]
    if not any(name in columns for name in (TTFT_COLUMN, TPOT_COLUMN)):
        missing.append(TPOT_COLUMN)
    if missing:
        hint = did_you_mean(missing[0], [c for c in columns if c not in REQUIRED])
        raise file_error(
            path, f"line 1: no column {', '.join(missing)}", hint or f"needed: {', '.join(REQUIRED)}"
        )
    return columns


class _Cells(Cells):
    """Cells of one row, read by kind."""

    def number(self, name: str) -> float | None:
        """A finite number above 0, or None for an empty cell."""
        if not self.text(name):
            return None
        value = self.parsed(name)
        if not (math.isfinite(value) and value > 0):
            self.problem(name, "must be a finite number > 0, or empty")
            return None
        if value > LARGEST:
            self.problem(name, f"must be at most {LARGEST:g}")
            return None
        return value

    def whole(self, name: str) -> int | None:
        value = self.number(name)
        if value is None:
            return None
        if not value.is_integer():
            self.problem(name, "must be a whole number")
            return None
        return int(value)

    def needed(self, name: str) -> float:
        value = self.number(name)
        if value is None and not self.text(name):
            self.problem(name, "must be a finite number > 0")
        return value or math.nan

    def choice(self, name: str, choices: Iterable[str]) -> str:
        text, known = self.text(name), tuple(choices)
        if text not in known:
            self.problem(name, one_of(known), did_you_mean(text, known))
        return text


def _row(cells: _Cells) -> MeasuredRow | None:
    disaggregated = cells.choice("mode", MODES) == "disagg"
    pools = (_pool(cells, "prefill_"), _pool(cells, "decode_")) if disaggregated else (_pool(cells, ""),)
    ttft, tpot = cells.number(TTFT_COLUMN), cells.number(TPOT_COLUMN)
    for name in ("model_path", "system", "backend"):
        if not cells.text(name):
            cells.problem(name, "must not be empty")
    row = MeasuredRow(
        line=cells.line,
        id=cells.text("id") or f"line {cells.line}",
        model=cells.text("model_path"),
        gpu=cells.text("system"),
        engine=cells.text("backend").lower(),
        version=cells.text("backend_version"),
        gemm=cells.text("gemm_quant_mode").lower(),
        moe=cells.text("moe_quant_mode").lower(),
        isl=cells.needed("isl"),
        osl=cells.needed("osl"),
        concurrency=cells.number("concurrency"),
        batch_size=cells.number("batch_size"),
        pools=pools,
        gpus=cells.whole("n_gpus_total"),
        origin=cells.text("origin"),
        ttft=math.nan if ttft is None else ttft * MILLI,
        tpot=math.nan if tpot is None else tpot * MILLI,
        cells=cells.cells,
    )
    return None if cells.problems else row


def _pool(cells: _Cells, prefix: str) -> MeasuredPool:
    return MeasuredPool(
        workers=cells.whole(f"{prefix}num_workers") or 1,
        tp=cells.whole(f"{prefix}tp_size"),
        pp=cells.whole(f"{prefix}pp_size"),
        dp=cells.whole(f"{prefix}attention_dp_size"),
        moe_tp=cells.whole(f"{prefix}moe_tp_size"),
        ep=cells.whole(f"{prefix}moe_ep_size"),
    )


def is_measured(columns: Iterable[str]) -> bool:
    """Whether a table with these columns is of this form."""
    return any(name.startswith(_MARK) for name in columns)
