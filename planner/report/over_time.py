"""What a plan changes: against the fleet that stands, and from period to period."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from planner.plan import HorizonSummary, PeriodPlan, Plan
from planner.report.tables import figure, plain_table, print_fitting
from planner.units import HOURS_PER_MONTH, PERCENT

CENT = 0.01  # [USD]


def print_moves(console: Console, plan: Plan) -> None:
    """Replicas to start and to stop, where the plan was made from a fleet that stands."""
    if plan.move_cost is None:
        return
    console.print()
    if not plan.moves:
        console.print("the fleet that stands is kept as it is")
        return
    table = plain_table("moves", "replicas", "", right=("replicas",))
    for move in plan.moves:
        count = abs(move.change)
        verb = "start" if move.change > 0 else "stop"
        table.add_row(move.group, f"{verb} {count}", f"{move.before} -> {move.after}")
    console.print(table)
    console.print(f"moves cost ${plan.move_cost:,.2f}, once")


def print_periods(console: Console, plan: Plan) -> None:
    """Replicas of every period, and what following the traffic saves."""
    if not plan.periods:
        return
    console.print()
    names = [g.name for g in plan.groups]
    print_fitting(
        console, lambda without: _table(plan.periods, [n for n in names if n not in without]), names
    )
    if plan.horizon is not None:
        _print_horizon(console, plan.horizon, plan.periods)


def _table(periods: Sequence[PeriodPlan], groups: Sequence[str]) -> Table:
    table = plain_table("period", "hours", "req/s", *groups, "$/h", right=("hours", "req/s", *groups, "$/h"))
    for p in periods:
        rate = figure(sum(p.request_rates.values()), 3)
        counts = [str(p.replicas.get(name, 0)) for name in groups]
        table.add_row(p.name, f"{p.hours:g}", rate, *counts, "" if p.cost is None else f"{p.cost:,.2f}")
    return table


def _print_horizon(console: Console, horizon: HorizonSummary, periods: Sequence[PeriodPlan]) -> None:
    if horizon.cost is None:
        return
    starts = horizon.cost - sum(p.hours * (p.cost or 0.0) for p in periods)
    if starts > CENT and all(p.cost is not None for p in periods):
        console.print(f"replicas that start cost ${starts:,.2f} before they serve")
    month = horizon.cost / horizon.hours * HOURS_PER_MONTH
    said = f"over {horizon.hours:g} h: ${horizon.cost:,.2f} (${month:,.0f}/month)"
    if horizon.static_cost is not None and horizon.saving is not None:
        said += (
            f"; a fleet that stays as it is ${horizon.static_cost:,.2f}: "
            f"following the traffic saves {horizon.saving * PERCENT:.1f} %"
        )
    console.print(said)
    for gpu, count in horizon.reserved.items():
        console.print(f"reserved for all hours: {count} x {gpu}")
