"""Explanations, stresses and Pareto curves as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.tables import figure, plain_console, plain_table, print_fitting
from planner.specs import Objective
from planner.units import PERCENT
from planner.whatif.explain import Explanation, UnusedGpu, WhatIf
from planner.whatif.pareto import Pareto
from planner.whatif.resolve import Resolved
from planner.whatif.robustness import Robustness, Stress
from planner.whatif.words import placed

_MUCH = 1e-4  # relative difference from which two values are not "same" [1]


def print_explanation(e: Explanation, width: int) -> None:
    """What binds, what a little more is worth, unused GPUs, groups."""
    console = plain_console(width)
    _print_head(console, e.name, e.base, e.unit)
    if e.binding:
        gain = "carries more" if e.objective is Objective.THROUGHPUT else "saves"
        optional = ("fleet then",)
        print_fitting(console, lambda w: _what_ifs(e, "binds", gain, e.binding, w), optional)
        console.print("each lifted alone, all else as asked; SLOs and network tenfold")
    elif e.requirements:
        looked = " of those looked at" if e.interrupted else ""
        console.print(f"no requirement{looked}, lifted alone, makes the plan better (SLOs, network: tenfold)")
    if free := [w.subject for w in e.requirements if not w.binds]:
        console.print(Text("costs nothing: " + ", ".join(free), style="dim"))
    if e.marginal:
        console.print()
        gain = "carries more" if e.objective is Objective.THROUGHPUT else "saves"
        optional = ("fleet then",)
        print_fitting(console, lambda w: _what_ifs(e, "a little more", gain, e.marginal, w), optional)
    if e.unused:
        console.print()
        print_fitting(console, lambda w: _unused(e, w), ("all of pool",))
        console.print("the best fleet in which the GPU serves all of one pool")
        for gpu in e.unused:
            for reason in gpu.reasons:
                console.print(Text(f"{placed(gpu.gpu, gpu.zone)}: {reason}", style="dim"))
    if e.groups:
        console.print()
        console.print(_groups(e))
    _print_notes(console, e.notes)


def _print_head(console: Console, name: str, base: Resolved, unit: str) -> None:
    console.print(Text(f"{name}: {base.description}", style="bold"))
    cost = "" if base.cost is None or unit == "USD/h" else f", {figure(base.cost)} USD/h"
    console.print(f"{figure(base.value or 0.0)} {unit}{cost}, by prediction\n")


def _print_notes(console: Console, notes: Sequence[str]) -> None:
    for note in notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _what_ifs(
    e: Explanation, title: str, gain: str, rows: Sequence[WhatIf], without: frozenset[str]
) -> Table:
    last = [c for c in ("fleet then",) if c not in without]
    table = plain_table(title, "change", e.unit, gain, *last, right=(e.unit, gain))
    for w in rows:
        saving = w.saving or 0.0
        share = f" ({saving / e.base.value:.0%})" if w.binds and e.base.value else ""
        fleet = ("as it is" if w.after is e.base else w.after.description,) if last else ()
        saved = f"{figure(saving)}{share}" if w.binds else "nothing"
        table.add_row(w.subject, w.change, figure(w.after.value or 0.0), saved, *fleet)
    return table


def _unused(e: Explanation, without: frozenset[str]) -> Table:
    worse = "carries less" if e.objective is Objective.THROUGHPUT else "dearer by"
    pool = [c for c in ("all of pool",) if c not in without]
    table = plain_table("not used", e.unit, worse, *pool, "fleet", right=(e.unit, worse))
    for u in e.unused:
        table.add_row(placed(u.gpu, u.zone), *_unused_cells(e, u, bool(pool)))
    return table


def _unused_cells(e: Explanation, u: UnusedGpu, pool: bool) -> tuple[str, ...]:
    if u.best is None or u.best.result.value is None:
        return ("none", "", *(("",) if pool else ()), "cannot serve a pool; see below")
    share = f" ({(u.extra or 0.0) / e.base.value:+.0%})" if e.base.value else ""
    phase = (u.best.phase.value,) if pool else ()
    more = f"{figure(u.extra or 0.0)}{share}"
    return (figure(u.best.result.value), more, *phase, u.best.result.description)


def _groups(e: Explanation) -> Table:
    table = plain_table("group", "load", "binds", right=("load",))
    for g in e.groups:
        table.add_row(g.name, f"{g.utilization:.0%}", g.binds.value.replace("_", " "))
    return table


# --------------------------------------------------------------------------------------------


def print_robustness(r: Robustness, width: int) -> None:
    """Cost under stress, and the load at which the fleet breaks."""
    console = plain_console(width)
    _print_head(console, r.name, r.base, r.unit)
    titles = {"load": "load", "latency": "every time", "confidence": "confidence"}
    for kind, title in titles.items():
        if stresses := r.of(kind):
            console.print(_stresses(r, title, stresses))
            console.print()
    if r.limits:
        console.print(Text(r.fleet))
    for limit in r.limits:
        quantile = "expected times" if limit.confidence == 0.5 else f"{limit.confidence:.0%} quantile"
        first = " and ".join(limit.breaks) or "nothing"
        rates = f"{figure(limit.carried)} for {figure(limit.asked)} req/s"
        error = f"at {quantile}" + ("" if limit.confidence == 0.5 else " of the model error")
        load = f"about {limit.multiple:.2f} times the load"
        console.print(f"breaks at {load} ({rates}, {error}): {first} first")
    _print_notes(console, r.notes)


def _stresses(r: Robustness, title: str, stresses: Sequence[Stress]) -> Table:
    table = plain_table(title, r.unit, "against plan", "fleet", right=(title, r.unit, "against plan"))
    for s in stresses:
        level = f"{s.level:.4g}" if s.kind == "confidence" else f"x {s.level:g}"
        table.add_row(level, *_against(r.base, s.result), _fleet(s.result))
    return table


def _against(base: Resolved, result: Resolved) -> tuple[str, str]:
    if result.value is None:
        return "none", ""
    if not base.value:
        return figure(result.value), ""
    change = result.value / base.value - 1
    return figure(result.value), "same" if abs(change) < _MUCH else f"{change * PERCENT:+.1f} %"


def _fleet(result: Resolved) -> str:
    return result.description if result.feasible else result.reason


# --------------------------------------------------------------------------------------------


def print_pareto(p: Pareto, width: int) -> None:
    """A line for each point."""
    console = plain_console(width)
    console.print(Text(p.name, style="bold"))
    head = p.varied if p.statistic is None else f"{p.statistic} {p.varied.upper()} [ms]"
    table = plain_table(head, p.unit, "fleet", right=(head, p.unit))
    for point in p.points:
        value = "infeasible" if point.result.value is None else figure(point.result.value)
        style = "bold" if abs(point.x - p.asked) <= _MUCH * p.asked else ""
        table.add_row(figure(p.shown(point.x)), value, _fleet(point.result), style=style)
    console.print(table)
    console.print(f"asked for: {figure(p.shown(p.asked))}")
    _print_notes(console, p.notes)
