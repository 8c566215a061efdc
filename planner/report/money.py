"""A plan's bill as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.tables import figure, plain_console, plain_table, print_fitting
from planner.units import HOURS_PER_MONTH, KILO, MEGA
from planner.whatif.money import BreakEven, MoneyReport, Share, TokenPrice
from planner.whatif.period_bill import PeriodBill
from planner.whatif.words import count


def print_money(m: MoneyReport, width: int) -> None:
    """The bill by group, pool and GPU type; tokens, idle GPUs, reserving, energy."""
    console = plain_console(width)
    console.print(Text(m.name, style="bold"))
    print_fitting(console, lambda without: _bill(m, without), ("load", "$/GPU/h"))
    console.print()
    console.print(_shares("by pool", m.pools))
    console.print()
    console.print(_shares("by GPU type", m.gpu_types))
    console.print()
    _print_idle(console, m)
    for t in m.tokens:
        _print_tokens(console, t)
    for b in m.break_even:
        console.print(_reserving(b))
    if m.power is not None:
        month = m.power.cost * HOURS_PER_MONTH
        console.print(
            f"energy ${m.power.cost:,.2f}/h, ${month:,.2f}/month: {m.power.draw / KILO:,.4g} kW (TDP, an "
            f"upper bound) x PUE {m.power.pue:g} x ${m.power.price:g}/kWh"
        )
    for note in m.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def print_period_bill(bill: PeriodBill, width: int) -> None:
    """The bill of a plan over periods: each of them, the whole, tokens, reserving."""
    console = plain_console(width)
    console.print(Text(bill.name, style="bold"))
    names = ("hours", "req/s", "replicas", "$/h", "$")
    table = plain_table("period", *names, right=names)
    for line in bill.lines:
        rate = figure(line.request_rate, 3)
        cells = (f"{line.hours:g}", rate, str(line.replicas), f"{line.cost:,.2f}", f"{line.total:,.2f}")
        table.add_row(line.name, *cells)
    if bill.starts:
        table.add_row("start-ups", "", "", "", "", f"{bill.starts:,.2f}")
    mean = bill.cost / bill.horizon.hours
    table.add_row("total", f"{bill.horizon.hours:g}", "", "", f"{mean:,.2f}", f"{bill.cost:,.2f}")
    console.print(table)
    console.print()
    console.print(f"${bill.per_month:,.0f}/month of {HOURS_PER_MONTH:,.0f} h")
    if bill.horizon.static_cost is not None and bill.horizon.saving is not None:
        static = bill.horizon.static_cost
        console.print(f"a fleet that stays as it is ${static:,.2f}: {bill.horizon.saving:.1%} saved")
    prices = (
        (bill.per_million_input, "input tokens"),
        (bill.per_million_output, "output tokens"),
        (bill.per_million, "of both"),
    )
    said = ", or ".join(f"${price:.3g} per million {what}" for price, what in prices)
    console.print(f"over all periods: {said}")
    for gpu, duty in bill.duties.items():
        count = bill.horizon.reserved.get(gpu, 0)
        console.print(f"{count} x {gpu} reserved: it pays for GPUs that are needed {duty:.1%} of the hours")


def _print_tokens(console: Console, t: TokenPrice) -> None:
    per_million = (
        (t.per_million_input, "input tokens"),
        (t.per_million_output, "output tokens"),
        (t.per_million, "of both"),
    )
    prices = ", or ".join(f"${price:.3g} per million {what}" for price, what in per_million)
    console.print(f"{t.service}: {prices}")
    tokens = f"{t.input_tokens / MEGA:,.4g} M input and {t.output_tokens / MEGA:,.4g} M output tokens an hour"
    console.print(f"  ${t.cost:,.2f}/h over {tokens}: {figure(t.request_rate)} req/s all the time")


def _reserving(b: BreakEven) -> str:
    """Whether reserving pays, and what it changes in use all the time."""
    prices = f"reserving {b.gpu} at ${b.reserved:g} instead of ${b.on_demand:g}"
    if b.duty >= 1:
        return f"{prices} never pays"
    hours = f"{b.hours_per_month:,.0f} of {HOURS_PER_MONTH:,.0f} h a month"
    saved = f"${b.saving:,.2f}/h"
    return f"{prices} pays from a duty of {b.duty:.1%} ({hours}); in use all the time it saves {saved}"


def _bill(m: MoneyReport, without: frozenset[str]) -> Table:
    numbers = [n for n in ("GPUs", "load", "$/GPU/h", "$/h", "$/month") if n not in without]
    table = plain_table("bill", *numbers, right=numbers)
    for row in m.rows():
        total = row["kind"] == "total"
        price = row["usd_per_gpu_hour"]
        cells = {
            "GPUs": str(row["gpus"]),
            "load": f"{row['utilization']:.0%}",
            "$/GPU/h": "" if price is None else f"{price:g}",
            "$/h": f"{row['usd_per_hour']:,.2f}",
            "$/month": f"{row['usd_per_month']:,.2f}",
        }
        table.add_row(row["name"], *(cells[n] for n in numbers), style="bold" if total else "")
    return table


def _shares(title: str, shares: Sequence[Share]) -> Table:
    numbers = ("GPUs", "$/h", "$/month", "share")
    table = plain_table(title, *numbers, right=numbers)
    for s in shares:
        month = s.cost * HOURS_PER_MONTH
        table.add_row(s.name, str(s.gpus), f"{s.cost:,.2f}", f"{month:,.2f}", f"{s.share:.1%}")
    return table


def _print_idle(console: Console, m: MoneyReport) -> None:
    unused = m.gpus_paid - m.gpus_used
    share = m.unused_cost / m.cost if m.cost else 0.0
    idle = f"${m.unused_cost:,.2f}/h, {share:.1%} of the cost" if unused else "nothing"
    console.print(
        f"{count(m.gpus_paid, 'GPU')} paid for, {m.gpus_used} used ({m.gpus_used / m.gpus_paid:.0%}); "
        f"unused GPUs cost {idle}; the money works at {m.utilization:.0%} of what it could carry"
    )
