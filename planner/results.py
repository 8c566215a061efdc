"""What results of the API have in common: they are data frames, and tables in terminals and notebooks.

The forms are in :mod:`planner.report`, which knows every kind of result and lies above all of them. It is
therefore found by name, when a result is first shown: no result imports it, and who only computes loads
neither rich nor pandas.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame

_ROWS, _SHOWN = "planner.report.rows", "planner.report.shown"


class Result:
    """Base of results: frozen dataclasses of which :mod:`planner.report` knows the rows and the text."""

    __slots__ = ()

    def to_frame(self) -> DataFrame:
        """The result as a data frame: a row per group of a plan, per point of a sweep, per statistic of a
        simulation or prediction, per step of a comparison.

        Raises
        ------
        SpecError
            If pandas is not installed.
        """
        frame: DataFrame = import_module(_ROWS).frame_of(self)
        return frame

    def _repr_html_(self) -> str:
        """As notebooks show it."""
        return str(import_module(_SHOWN).html_of(self))

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """As rich prints it: the text of the command line."""
        yield from import_module(_SHOWN).texts_of(self, console, options)
