"""Tables and numbers for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.table import Table

NARROWEST = 60
UNBOUNDED = 10_000  # columns: wider than any table


_recorder: ContextVar[Console | None] = ContextVar("recorder", default=None)


@contextmanager
def recorded(console: Console) -> Iterator[None]:
    """Everything that is printed meanwhile goes to `console`."""
    before = _recorder.set(console)
    try:
        yield
    finally:
        _recorder.reset(before)


def plain_console(width: int) -> Console:
    """A console for plain text, names and reasons may hold square brackets; or the one that records."""
    recorder = _recorder.get()
    return (
        recorder
        if recorder is not None
        else Console(width=max(width, NARROWEST), highlight=False, markup=False, emoji=False)
    )


def print_fitting(
    console: Console, build: Callable[[frozenset[str]], Table], optional: Sequence[str]
) -> None:
    """Print the table that `build` makes, leaving out `optional` columns, first ones first, until it fits."""
    for count in range(len(optional) + 1):
        table = build(frozenset(optional[:count]))
        needed = console.measure(table, options=console.options.update(width=UNBOUNDED)).maximum
        if needed <= console.width or count == len(optional):
            console.print(table)
            return


def plain_table(*columns: str, right: Sequence[str] = ()) -> Table:
    """A table without lines; columns named in `right` are aligned there."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def figure(value: float, digits: int = 4) -> str:
    """A number with some significant digits, and all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"
