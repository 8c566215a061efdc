"""``planner pareto``."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.options import Number
from planner.cli.output import check_outputs, check_picture, echo_json, progress_bar, width
from planner.cli.whatif_facts import pareto_facts
from planner.cli.whatif_options import options_of, resolve_options
from planner.documents.files import write_text_atomic
from planner.units import MEGA, MILLI
from planner.whatif.asked import asked_of
from planner.whatif.frames import csv_text
from planner.whatif.pareto import COLUMNS, MOST_POINTS, POINTS, VARIED
from planner.whatif.pareto import pareto as pareto_of


@click.command()
@click.argument("source", metavar="SCENARIO", type=click.Path(path_type=Path))
@click.option("--vary", type=click.Choice(VARIED), required=True, help="What is asked for, more or less of.")
@click.option("--points", type=click.IntRange(1, MOST_POINTS), default=POINTS, show_default=True)
@click.option(
    "--from",
    "low",
    type=Number(0, MEGA, min_open=True),
    help="Tightest limit [ms], or lowest confidence. Default: a quarter of what is asked, 0.5.",
)
@click.option(
    "--to",
    "high",
    type=Number(0, MEGA, min_open=True),
    help="Loosest limit [ms], or highest confidence. Default: four times what is asked, 0.95.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the points here (CSV).")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw them here (PNG or SVG).")
@resolve_options
def pareto(
    source: Path,
    vary: str,
    points: int,
    low: float | None,
    high: float | None,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
    solver: str,
    gap: float,
    time_limit: float,
) -> None:
    """Cost against a latency limit, or against confidence.

    SCENARIO (or the scenario of a plan file; - is standard input) is solved by prediction at limits spread by
    ratio around the one asked for, or at evenly spread confidences. Points without a plan are shown as such.
    """
    check_picture(plot, ())
    check_outputs((source,), (output, plot))
    asked = asked_of(source)
    scale = 1.0 if vary == "confidence" else MILLI
    with progress_bar(f"varying {vary}", points) as (on_stage, on_point):
        result = pareto_of(
            asked,
            vary,
            points=points,
            low=None if low is None else low * scale,
            high=None if high is None else high * scale,
            options=options_of(solver, gap, time_limit, on_stage),
            on_point=on_point,
        )
    if result.interrupted:  # a file would not say that points are missing
        output = plot = None
    if output is not None:
        write_text_atomic(output, csv_text(result.rows(), (result.axis, *COLUMNS)))
    if plot is not None:
        from planner.report.pareto_plot import save_pareto  # matplotlib: only for pictures

        save_pareto(result, plot)
    if as_json:
        echo_json(pareto_facts(result))
        return
    from planner.report.whatif import print_pareto  # rich: only where tables are printed

    print_pareto(result, width())
    for kind, path in (("points", output), ("picture", plot)):
        if path is not None:
            click.echo(f"\n{kind} written to {path}")
