"""A sweep as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.tables import figure, plain_console, plain_table, print_fitting
from planner.whatif.sweep import Sweep

MOST_SHOWN = 100
"""Points in a table; all of them are in the file."""
_OPTIONAL = ("gap", "colocated USD/h", "fleet")


def print_sweep(s: Sweep, width: int, *, brief: bool = False) -> None:
    """Points by status and the range of costs and, unless `brief`, each point."""
    console = plain_console(width)
    if not brief:
        print_fitting(console, lambda without: _table(s, without), _OPTIONAL)
        if len(s.points) > MOST_SHOWN:
            console.print(f"and {len(s.points) - MOST_SHOWN:,} more points")
        console.print()
    print_totals(console, s)


def print_totals(console: Console, s: Sweep) -> None:
    counts = ", ".join(f"{count:,} {status}" for status, count in s.counts.items())
    console.print(Text(f"{s.name}: {len(s.points):,} points: {counts}", style="bold"))
    costs = [row["cost_per_hour"] for row in s.points if row.get("cost_per_hour") is not None]
    if costs:
        console.print(f"{figure(min(costs))} to {figure(max(costs))} USD/h")
    reasons = [row["reason"] for row in s.points if row.get("reason")]
    for reason in sorted(set(reasons), key=lambda r: (-reasons.count(r), r))[:3]:
        console.print(Text(f"{reasons.count(reason):,} x {reason}", style="yellow"))


def _table(s: Sweep, without: frozenset[str]) -> Table:
    last = [c for c in ("GPUs", *_OPTIONAL) if c not in without]
    numbers = (*s.keys, "USD/h", "GPUs", "gap", "colocated USD/h")
    table = plain_table(*s.keys, "status", "USD/h", *last, right=numbers)
    for row in s.points[:MOST_SHOWN]:
        cells = {
            "GPUs": _number(row.get("gpus")),
            "gap": "" if row.get("gap") is None else f"{row['gap']:.2%}",
            "colocated USD/h": _number(row.get("colocated_cost_per_hour")),
            "fleet": row.get("fleet") or "",
        }
        status = row["status"] if not row.get("reason") else f"{row['status']}: {row['reason']}"
        values = [_value(row[key]) for key in s.keys]
        table.add_row(*values, status, _number(row.get("cost_per_hour")), *_picked(cells, last))
    return table


def _picked(cells: dict[str, str], names: Sequence[str]) -> list[str]:
    return [cells[name] for name in names]


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:,.10g}" if isinstance(value, int | float) else str(value)


def _number(value: float | None) -> str:
    return "" if value is None else figure(value)
