"""``planner report``."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.options import Number
from planner.cli.output import check_outputs, progress_bar
from planner.documents.files import file_error, write_text_atomic
from planner.units import MINUTES_PER_HOUR
from planner.whatif.asked import read_asked_plan
from planner.whatif.resolve import FINE_GAP, ResolveOptions

_SUFFIXES = (".html", ".htm")
_LONGEST_DATE = 60  # characters


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Write the page here (HTML)."
)
@click.option("--fast", is_flag=True, help="Only what the plan itself holds: nothing is solved or simulated.")
@click.option("--no-resolve", is_flag=True, help="Nothing is solved again: no Pareto curves, no sensitivity.")
@click.option("--date", metavar="TEXT", default="", help="Of the report, as it shall read. Default: none.")
@click.option("--solver", type=click.Choice(["highs", "cbc"]), default="highs", show_default=True)
@click.option(
    "--gap",
    type=Number(0, 1, max_open=True),
    default=FINE_GAP,
    show_default=True,
    help="Relative distance from the proven bound at which each search may stop.",
)
@click.option(
    "--time-limit",
    type=Number(0, min_open=True),
    default=MINUTES_PER_HOUR,
    show_default=True,
    metavar="S",
    help="Of one program. [s]",
)
def report(
    plan: Path,
    output: Path,
    fast: bool,
    no_resolve: bool,
    date: str,
    solver: str,
    gap: float,
    time_limit: float,
) -> None:
    """A plan as one HTML page that needs nothing else, for those who decide.

    PLAN is a file of `planner solve -o`; - is standard input. The page says what to run, what it costs and
    whether it holds, with latencies, rooflines, the bill, cost against each SLO, what moves the cost most,
    the first requests over time, alternatives, and where every figure comes from. It opens without a
    network. The same plan gives the same page.
    """
    if output.suffix.lower() not in _SUFFIXES:
        raise file_error(output, "is no page", "the name has to end in .html")
    if len(date) > _LONGEST_DATE or not date.isprintable():
        raise click.BadParameter(
            f"a line of at most {_LONGEST_DATE} characters, got {date!r}", param_hint="--date"
        )
    check_outputs((plan,), (output,))
    from planner.report.html.gather import (  # numba: help does without
        FAST,
        FULL,
        WITHOUT_SOLVES,
        Parts,
        gather,
        steps,
    )
    from planner.report.html.page import plotly_script, report_page  # the same

    plotly_script()  # refuses before long work
    asked = read_asked_plan(plan)
    parts = FULL
    if no_resolve:
        parts = Parts(without_solves=WITHOUT_SOLVES)
    if fast:
        parts = Parts(without_solves=FAST, without_simulation=FAST)
    with progress_bar("reading the plan", steps(asked, parts)) as (on_stage, on_step):
        options = ResolveOptions(solver=solver, gap=gap, time_limit=time_limit, on_stage=on_stage)
        facts = gather(asked, parts, options, on_step=on_step, date=date)
    write_text_atomic(output, report_page(facts))
    click.echo(f"report written to {output}")
    for section, reason in facts.absent.items():
        if not (fast or (no_resolve and reason == WITHOUT_SOLVES)):
            click.echo(f"{section} left out: {reason}", err=True)
