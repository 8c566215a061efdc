"""``planner network``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.cli.output import check_outputs, check_picture, echo_json, progress_bar, width
from planner.cli.whatif_facts import resolved_facts
from planner.cli.whatif_options import options_of, resolve_options
from planner.documents.files import write_text_atomic
from planner.documents.plan_extras import rounded
from planner.whatif.asked import asked_of
from planner.whatif.frames import csv_text
from planner.whatif.network import check, networks, variants
from planner.whatif.network_rows import COLUMNS, Networks


@click.command()
@click.argument("source", metavar="SCENARIO", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the rows here (CSV).")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw their cost here (PNG or SVG).")
@resolve_options
def network(
    source: Path,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
    solver: str,
    gap: float,
    time_limit: float,
) -> None:
    """The same scenario under other networks: exposed KV transfer, TTFT, cost, and whether handing over pays.

    SCENARIO (or the scenario of a plan file; - is standard input) is solved by prediction with all NICs at 25
    and 100 Gb/s of TCP, and at 100, 200 and 400 Gb/s of RDMA per GPU, and with all of it within one node;
    each with transfers that follow the prompt and such that are hidden behind it layer by layer, and with the
    KV cache as asked for and in fp8. Beside that stands the best colocated plan.
    """
    check_picture(plot, ())
    check_outputs((source,), (output, plot))
    asked = asked_of(source)
    check(asked.loaded.scenario)
    with progress_bar("solving", len(variants(asked.loaded.scenario))) as (on_stage, on_row):
        options = options_of(solver, gap, time_limit, on_stage)
        result = networks(asked, options, on_row=on_row)
    if result.interrupted:  # a file would not say that rows are missing
        output = plot = None
    if output is not None:
        write_text_atomic(output, csv_text(result.rows(), COLUMNS))
    if plot is not None:
        from planner.report.network_plot import save_networks  # matplotlib: only for pictures

        save_networks(result, plot)
    if as_json:
        echo_json(network_facts(result))
        return
    from planner.report.network import print_networks  # rich: only where tables are printed

    print_networks(result, width())
    for kind, path in (("rows", output), ("picture", plot)):
        if path is not None:
            click.echo(f"\n{kind} written to {path}")


def network_facts(n: Networks) -> dict[str, Any]:
    """The JSON of ``planner network``."""
    return {
        "name": n.name,
        "objective": n.objective.value,
        "unit": n.unit,
        "engine_overlap": rounded(n.own_overlap),
        "colocated": {kv: resolved_facts(result) for kv, result in n.colocated.items()},
        "rows": [{**row.figures(), **resolved_facts(row.result)} for row in n.points],
        "notes": list(n.notes),
        "interrupted": n.interrupted,
    }
