"""What tiers of KV caches do to a plan, as a table."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from planner.report.tables import figure, plain_console, plain_table, print_fitting
from planner.specs import Objective
from planner.units import GIGA, KILO, MEGA, MILLI
from planner.whatif.tier_rows import TierRow, Tiers


def print_tiers(t: Tiers, width: int) -> None:
    """A line for each tier, break-even bandwidths, notes."""
    console = plain_console(width)
    console.print(Text(t.name, style="bold"))
    print_fitting(
        console, lambda without: _table(t, without), ("fleet", "loaded at [GB/s]", "computed [ktok/s]")
    )
    for line in t.break_even:
        bandwidth = (
            "never" if math.isinf(line.bandwidth) else f"above {figure(line.bandwidth / GIGA, 3)} GB/s"
        )
        console.print(f"loading beats computing on {line.gpu} {line.layout}: {bandwidth}")
    if any(not row.used for row in t.steps):
        console.print("tiers in brackets make the plan no better, and are left out of the rows below them")
    for note in t.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _table(t: Tiers, without: frozenset[str]) -> Table:
    priced = any(row.price for row in t.steps)
    columns = [
        "with", "room [Mtok]", "found", "loaded", "loaded at [GB/s]", "computed [ktok/s]", "mean TTFT [ms]",
        "p99", t.unit, *(("tiers", "total") if priced else ()), "fleet",
    ]  # fmt: skip
    if t.objective is not Objective.COST:
        columns = [c for c in columns if c not in ("tiers", "total")]
    columns = [c for c in columns if c not in without]
    table = plain_table(*columns, right=[c for c in columns if c not in ("with", "fleet")])
    for row in t.steps:
        cells = _cells(t, row)
        table.add_row(*(cells[c] for c in columns), style="" if row.used else "dim")
    return table


def _cells(t: Tiers, row: TierRow) -> dict[str, str]:
    result, offer = row.result, row.offer
    name = row.name if row.name == t.steps[0].name or row is t.steps[1] else f"+ {row.name}"
    value = "infeasible" if result.value is None else figure(result.value)
    return {
        "with": name if row.used else f"({name})",
        "room [Mtok]": "" if row.capacity is None else figure(row.capacity / MEGA, 3),
        "found": f"{offer.hit_rate:.1%}",
        "loaded": f"{row.loaded:.1%}",
        "loaded at [GB/s]": "" if math.isinf(offer.bandwidth) else figure(offer.bandwidth / GIGA, 3),
        "computed [ktok/s]": figure(row.computed / KILO, 3),
        "mean TTFT [ms]": "" if row.ttft is None else figure(row.ttft.mean / MILLI),
        "p99": "" if row.ttft is None else figure(row.ttft.p99 / MILLI),
        t.unit: value,
        "tiers": figure(row.price),
        "total": "" if row.total is None else figure(row.total),
        "fleet": result.description or result.reason,
    }
