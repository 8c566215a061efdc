"""Predictions of other tools for measured rows: an id, and their TTFT and TPOT."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from planner.documents.files import file_error, read_lines
from planner.documents.measurement_table import column_names
from planner.documents.tree import shorten
from planner.errors import Problem, SpecError
from planner.units import MILLI

_TTFT, _TPOT = "_ttft_ms", "_tpot_ms"


@dataclass(frozen=True, slots=True)
class PeerFile:
    """What a tool predicted, by id of the row. [s]"""

    name: str
    ttft: dict[str, float]
    tpot: dict[str, float]


def read_peer(path: str | Path) -> PeerFile:
    """Read a file with the columns ``id``, ``NAME_ttft_ms`` and ``NAME_tpot_ms``; empty cells are no answer.

    Raises
    ------
    SpecError
        Unreadable, or with the first cell that is no number.
    """
    table = csv.DictReader(read_lines(path))
    columns = column_names(path, table)
    names = [
        c[: -len(_TPOT)] for c in columns if c.endswith(_TPOT) and f"{c[: -len(_TPOT)]}{_TTFT}" in columns
    ]
    if "id" not in columns or not names:
        raise file_error(path, "line 1: needs columns id, NAME_ttft_ms and NAME_tpot_ms")
    ttft: dict[str, float] = {}
    tpot: dict[str, float] = {}
    for cells in table:
        for suffix, found in ((_TTFT, ttft), (_TPOT, tpot)):
            text = (cells.get(f"{names[0]}{suffix}") or "").strip()
            if not text:
                continue
            try:
                value = float(text)
            except ValueError:
                value = math.nan
            if not (math.isfinite(value) and value > 0):
                problem = Problem(
                    key=f"{names[0]}{suffix}",
                    rule="must be a finite number > 0, or empty",
                    value=shorten(text),
                    line=table.line_num,
                )
                raise SpecError.of_file(str(path), [problem])
            found[str(cells["id"]).strip()] = value * MILLI
    return PeerFile(names[0], ttft, tpot)
