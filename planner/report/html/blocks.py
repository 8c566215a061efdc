"""What sections are made of: text, tables and figures, as data."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

DIGITS = 6  # significant, of numbers in figures
LONGEST_LABEL = 60  # characters of a name in a figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A paragraph; `kind`: "", "note", "good" or "bad"."""

    text: str
    kind: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Cells as text; columns `numbers` are aligned right; `folded`: shown on demand, under its caption."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()
    caption: str = ""
    folded: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Cards:
    """The figures that count, each with what it is and whether it is good ("good", "bad" or "")."""

    cards: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file's text, on demand."""

    caption: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A chart in plotly's own terms, and what it shows in words.

    Attributes
    ----------
    key : str
        Tells it apart on the page.
    height : int
        [px]
    data, layout : list and dict
        Colours that differ between light and dark pages are tokens: "@ink", "@prefill", ...
    """

    key: str
    caption: str
    height: int
    data: list[dict[str, Any]]
    layout: dict[str, Any]


Block = Text | Cards | Table | Source | Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """One part of the page, under its own heading."""

    key: str
    title: str
    blocks: tuple[Block, ...]


ABOVE: dict[str, Any] = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}
"""A legend over the chart."""


def hatched(colour: str, shape: str) -> dict[str, Any]:
    """Bars of a colour that differ in print as well."""
    pattern = {"shape": shape, "size": 7, "solidity": 0.25, "fillmode": "overlay", "fgcolor": "@paper"}
    return {"color": colour, "pattern": pattern}


def label(text: str, longest: int = LONGEST_LABEL) -> str:
    """A name for a figure: shortened, and so that plotly takes none of it for markup."""
    short = text if len(text) <= longest else f"{text[: longest - 1]}\N{HORIZONTAL ELLIPSIS}"
    return html.escape(short, quote=False)


def rounded(value: Any) -> Any:
    """`value` with numbers of few digits, and None for those that JSON has not."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value


_ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def script_json(value: Any) -> str:
    """JSON that may stand within a script element: nothing in it ends the element."""
    text = json.dumps(rounded(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    return text


def numeric(*columns: int) -> frozenset[int]:
    """Columns of numbers."""
    return frozenset(columns)


def rows_of(cells: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """Rows as a table has them."""
    return tuple(tuple(row) for row in cells)
