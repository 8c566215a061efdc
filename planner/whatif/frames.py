"""Rows as tables for other programs: a data frame, or CSV as RFC 4180 has it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from planner.errors import SpecError

if TYPE_CHECKING:
    from pandas import DataFrame


def frame(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> DataFrame:
    """Rows as a data frame with these columns.

    Raises
    ------
    SpecError
        If pandas is not installed.
    """
    try:
        from pandas import DataFrame  # slow, and in the extra [notebook] only
    except ImportError as error:
        message = f"a data frame needs pandas: pip install 'pd-planner[notebook]' ({error})"
        raise SpecError(message) from None
    return DataFrame([dict(row) for row in rows], columns=list(columns))


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as CSV with a head, lines ended by CR LF, and texts quoted where they have to be."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\r\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({column: _cell(row.get(column)) for column in columns})
    return text.getvalue()


def parquet_bytes(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bytes:
    """Rows as a Parquet file; columns of several kinds of values become text.

    Raises
    ------
    SpecError
        If pandas or pyarrow is not installed.
    """
    require_parquet()
    kinds = {c: {_kind(row.get(c)) for row in rows} - {type(None)} for c in columns}
    told = [{c: v if len(kinds[c]) <= 1 else _text(v) for c, v in row.items()} for row in rows]
    data = io.BytesIO()
    frame(told, columns).to_parquet(data, engine="pyarrow", index=False)
    return data.getvalue()


def require_parquet() -> None:
    """Say what Parquet files need where it is not installed, before long work for one begins.

    Raises
    ------
    SpecError
    """
    absent = [name for name in ("pandas", "pyarrow") if find_spec(name) is None]
    if absent:
        needed = " and ".join(absent)
        raise SpecError(f"a Parquet file needs {needed}: pip install 'pd-planner[parquet]' (or write a .csv)")


def _kind(value: Any) -> type:
    """What tells columns apart: all numbers are of one kind."""
    return float if type(value) is int else type(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(_cell(value))


def _cell(value: Any) -> Any:
    """A value as a spreadsheet reads it: true and false, and nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value
