"""Two plans side by side, as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.tables import figure, plain_console, plain_table
from planner.units import HOURS_PER_MONTH, MILLI, PERCENT
from planner.whatif.compare import Comparison, GroupKey, Step, StepKind
from planner.whatif.words import count, placed

_STYLES = {
    StepKind.ADD: "green",
    StepKind.REMOVE: "red",
    StepKind.MOVE: "yellow",
    StepKind.RECONFIGURE: "cyan",
}


def print_comparison(c: Comparison, names: tuple[str, str], width: int) -> None:
    """Steps, GPUs, cost, latencies, and what else differs."""
    console = plain_console(width)
    console.print(Text(f"{names[0]} -> {names[1]}", style="bold"))
    if c.same:
        console.print("the plans are the same")
        return
    _print_steps(console, c)
    if c.gpus:
        console.print()
        console.print(_gpus(c))
    console.print()
    _print_cost(console, c)
    if c.latencies:
        console.print()
        console.print(_latencies(c))
    if c.differences:
        console.print()
        table = plain_table("differs", "before", "after")
        for d in c.differences:
            table.add_row(d.what, d.before, d.after)
        console.print(table)


def _print_steps(console: Console, c: Comparison) -> None:
    if c.same_fleet:
        console.print("the same fleet")
        return
    for step in c.steps:
        console.print(Text(_step(step), style=_STYLES[step.kind]))
    totals = [f"{n} to {kind}" for kind in StepKind if (n := c.replicas(kind))]
    console.print("replicas: " + ", ".join(totals))


def _step(step: Step) -> str:
    what = f"{step.kind} {count(step.replicas, 'replica')}"
    before, after = step.before, step.after
    if before is None or after is None:
        key = after or before
        return f"{what}: {'' if key is None else f'{key.label} ({key.service}; {key.limits})'}"
    if step.kind is StepKind.RECONFIGURE:
        return f"{what}: {after.label}, {_changed(before, after)}"
    formats = _changed(before, after)
    return f"{what}: {before.label} -> {after.label}" + (f", {formats}" if formats else "")


def _changed(before: GroupKey, after: GroupKey) -> str:
    """What the keys that are no part of a label come to."""
    names = (
        "service",
        "engine",
        "weights",
        "kv_cache",
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
    )
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in names)
    return ", ".join(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)


def _gpus(c: Comparison) -> Table:
    table = plain_table("GPU", "used", "paid for", right=("used", "paid for"))
    for g in c.gpus:
        cells = (f"{before} -> {after}" for before, after in (g.used, g.paid))
        table.add_row(placed(g.gpu, g.zone), *cells)
    return table


def _print_cost(console: Console, c: Comparison) -> None:
    before, after = c.cost
    if before is None or after is None:
        console.print(f"objective {figure(c.value[0])} -> {figure(c.value[1])}; cost unknown")
        return
    change = f" ({(after / before - 1) * PERCENT:+.1f} %)" if before else ""
    month = (after - before) * HOURS_PER_MONTH
    more = f"{'-' if month < 0 else '+'}${abs(month):,.0f}/month"
    console.print(Text(f"cost ${before:,.2f}/h -> ${after:,.2f}/h{change}, {more}", style="bold"))


def _latencies(c: Comparison) -> Table:
    columns = ("expected [ms]", "at the error planned for [ms]")
    several = len({x.service for x in c.latencies}) > 1
    table = plain_table("predicted", *columns, right=columns)
    for x in c.latencies:
        name = f"{x.statistic} {x.metric.upper()}" + (f" of {x.service}" if several else "")
        cells = (f"{_ms(before)} -> {_ms(after)}" for before, after in (x.expected, x.planned))
        table.add_row(name, *cells)
    return table


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else figure(seconds / MILLI, 3)
