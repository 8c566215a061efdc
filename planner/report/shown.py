"""Results in terminals and notebooks: the text that the command line prints, for rich and as HTML."""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import singledispatch

from rich.console import Console, ConsoleOptions
from rich.text import Text

from planner.configuration import Prediction
from planner.evaluation import Evaluation
from planner.plan import Plan
from planner.report.compare import print_comparison
from planner.report.engine_calibration import print_calibration
from planner.report.gpus import print_rooflines
from planner.report.money import print_money, print_period_bill
from planner.report.network import print_networks
from planner.report.rows import rows_of
from planner.report.sweep import print_sweep
from planner.report.tables import figure, plain_console, plain_table, recorded
from planner.report.terminal import print_plan, print_predicted
from planner.report.tiers import print_tiers
from planner.report.whatif import print_explanation, print_pareto, print_robustness
from planner.results import Result
from planner.rooflines import Roofline
from planner.simulator.metrics import SimulationResult
from planner.units import PERCENT
from planner.validation.engine import EngineCalibration
from planner.whatif.compare import Comparison
from planner.whatif.explain import Explanation
from planner.whatif.money import MoneyReport
from planner.whatif.network_rows import Networks
from planner.whatif.pareto import Pareto
from planner.whatif.period_bill import PeriodBill
from planner.whatif.robustness import Robustness
from planner.whatif.sensitivity import Sensitivity
from planner.whatif.sweep import Sweep
from planner.whatif.tier_rows import Tiers

NOTEBOOK_WIDTH = 120  # characters
_HTML = '<pre style="white-space:pre;overflow-x:auto;line-height:normal">{code}</pre>'


def html_of(result: Result) -> str:
    """A result as HTML: its text with styles, every character that HTML knows escaped."""
    console = _recording(NOTEBOOK_WIDTH)
    with recorded(console):
        show(result, NOTEBOOK_WIDTH)
    return console.export_html(inline_styles=True, code_format=_HTML)


def texts_of(result: Result, console: Console, options: ConsoleOptions) -> Iterator[Text]:
    """A result as text for a console of rich."""
    own = _recording(options.max_width)
    with recorded(own):
        show(result, options.max_width)
    yield Text.from_ansi(own.export_text(styles=True).rstrip("\n"))


def _recording(width: int) -> Console:
    return Console(
        width=width,
        file=io.StringIO(),
        record=True,
        force_terminal=True,
        force_jupyter=False,  # where it runs in a kernel, rich would show everything itself
        color_system="standard",
        highlight=False,
        markup=False,
        emoji=False,
    )


@singledispatch
def show(result: Result, width: int) -> None:
    """Print a result as the command line does."""
    raise TypeError(f"no text is known for {type(result).__name__}")


@show.register
def _plan(plan: Plan, width: int) -> None:
    print_plan(plan, width)


@show.register
def _prediction(p: Prediction, width: int) -> None:
    print_predicted(p, width)


@show.register
def _sweep(s: Sweep, width: int) -> None:
    print_sweep(s, width)


@show.register
def _pareto(p: Pareto, width: int) -> None:
    print_pareto(p, width)


@show.register
def _roofline(r: Roofline, width: int) -> None:
    print_rooflines([r], (), width)


@show.register
def _tiers(t: Tiers, width: int) -> None:
    print_tiers(t, width)


@show.register
def _networks(n: Networks, width: int) -> None:
    print_networks(n, width)


@show.register
def _comparison(c: Comparison, width: int) -> None:
    print_comparison(c, ("before", "after"), width)


@show.register
def _explanation(e: Explanation, width: int) -> None:
    print_explanation(e, width)


@show.register
def _robustness(r: Robustness, width: int) -> None:
    print_robustness(r, width)


@show.register
def _sensitivity(s: Sensitivity, width: int) -> None:
    """The levers, largest first: what they make of the plan's value when lower, and when higher."""
    console = plain_console(width)
    base = "no plan" if s.base.value is None else figure(s.base.value)
    console.print(f"{s.name}: {base} {s.unit} as it is\n")
    table = plain_table("what", "by", "lower", "higher", right=("by", "lower", "higher"))
    for row in s.rows():
        ends = ("no plan" if row[k] is None else figure(row[k]) for k in ("value_low", "value_high"))
        table.add_row(row["what"], f"x {figure(row['high'])}", *ends)
    console.print(table)
    for note in s.notes:
        console.print(Text(f"note: {note}", style="yellow"))


@show.register
def _money(m: MoneyReport, width: int) -> None:
    print_money(m, width)


@show.register
def _period_bill(bill: PeriodBill, width: int) -> None:
    print_period_bill(bill, width)


@show.register
def _engine(e: EngineCalibration, width: int) -> None:
    print_calibration(e.calibration, e.profile, e.gathered, e.setup, width)


@show.register
def _simulation(result: SimulationResult, width: int) -> None:
    console = plain_console(width)
    verdict = "meets every SLO" if result.passed else "does not hold"
    style = "bold green" if result.passed else "bold red"
    console.print(Text(f"{result.source}: {verdict}", style=style))
    console.print(
        f"{result.measured:,} of {result.requests:,} requests measured, {figure(result.request_rate)} req/s, "
        f"{result.attainment * PERCENT:.4g} % within all limits\n"
    )
    statistics = ("mean", "p50", "p90", "p95", "p99")
    table = plain_table("[ms]", *statistics, "limits", right=statistics)
    for row in rows_of(result):
        told = f"{row['limits']}: {'met' if row['met'] else 'missed'}" if row["limits"] else ""
        table.add_row(str(row["latency"]).upper(), *(figure(row[f"{s}_ms"]) for s in statistics), told)
    console.print(table)
    console.print()
    groups = plain_table(
        "group", "replicas", "busy", "batch", "req/s", right=("replicas", "busy", "batch", "req/s")
    )
    for g in result.groups:
        groups.add_row(g.name, str(g.replicas), f"{g.busy:.0%}", figure(g.mean_batch), figure(g.request_rate))
    console.print(groups)
    for note in result.notes:
        console.print(Text(f"note: {note}", style="yellow"))


@show.register
def _evaluation(e: Evaluation, width: int) -> None:
    console = plain_console(width)
    console.print(Text(f"carries {figure(e.request_rate)} req/s on {e.gpus} GPUs", style="bold"))
    if e.breaks:
        console.print(f"beyond that {' and '.join(e.breaks)} misses an SLO first\n")
    figures = ("req/s", "p99 TTFT [ms]", "p99 TPOT [ms]")
    table = plain_table("rate", *figures, "holds", right=figures)
    for row in rows_of(e):
        cells = (figure(row[key]) for key in ("requests_per_second", "ttft_p99_ms", "tpot_p99_ms"))
        table.add_row(row["rate"], *cells, "yes" if row["passed"] else "no")
    console.print(table)
