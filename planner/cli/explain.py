"""``planner explain``."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.output import check_picture, echo_json, progress, width
from planner.cli.whatif_facts import explanation_facts
from planner.cli.whatif_options import options_of, resolve_options
from planner.whatif.asked import asked_of
from planner.whatif.explain import explain as explained


@click.command()
@click.argument("source", metavar="PLAN|SCENARIO", type=click.Path(path_type=Path))
@click.option("--plot", type=click.Path(path_type=Path), help="Draw what binds here (PNG or SVG).")
@resolve_options
def explain(
    source: Path, plot: Path | None, as_json: bool, solver: str, gap: float, time_limit: float
) -> None:
    """Why this plan: what binds, what a little more is worth, why other GPUs lost.

    The argument is a file of `planner solve -o` or a scenario; - is standard input. Each requirement is
    lifted alone, each stock, network and SLO made a little larger, and the scenario solved again by
    prediction. A GPU type that is not used is compared by the best plan in which it serves all of one pool.
    """
    check_picture(plot, (source,))
    asked = asked_of(source)
    with progress("reading") as on_stage:
        result = explained(asked, options_of(solver, gap, time_limit, on_stage))
    if result.interrupted:  # a picture would not say that bars are missing
        plot = None
    if plot is not None:
        from planner.report.explain_plot import save_explanation  # matplotlib: only for pictures

        save_explanation(result, plot)
    if as_json:
        echo_json(explanation_facts(result))
        return
    from planner.report.whatif import print_explanation  # rich: only where tables are printed

    print_explanation(result, width())
    if plot is not None:
        click.echo(f"\npicture written to {plot}")
