"""Rows as tables for other programs: a data frame, or CSV as RFC 4180 has it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
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


def _cell(value: Any) -> Any:
    """A value as a spreadsheet reads it: true and false, and nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value
