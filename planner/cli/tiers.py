"""``planner tiers``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.cli.output import check_outputs, echo_json, progress_bar, width
from planner.cli.tier_option import DEFAULTS, FORM, tier_of
from planner.cli.whatif_facts import resolved_facts
from planner.cli.whatif_options import options_of, resolve_options
from planner.documents.files import write_text_atomic
from planner.documents.plan_extras import rounded
from planner.documents.trace_file import read_trace
from planner.documents.trace_times import SCALES
from planner.units import GIGA
from planner.whatif.asked import asked_of
from planner.whatif.frames import csv_text
from planner.whatif.tier_rows import COLUMNS, Tiers
from planner.whatif.tier_specs import Tier
from planner.whatif.tiers import tiers as tiers_of


def _tiers(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[Tier]:
    return [tier_of(value) for value in values or DEFAULTS]


@click.command()
@click.argument("source", metavar="SCENARIO", type=click.Path(path_type=Path))
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    help="Requests with hashes of their blocks. Default: the scenario's trace.",
)
@click.option("--unit", type=click.Choice(list(SCALES)), help="Of the trace's numeric timestamps.")
@click.option("--block-size", type=click.IntRange(1, 2**16), help="Tokens of a hashed block; default: 512.")
@click.option(
    "--tier",
    "kept",
    multiple=True,
    callback=_tiers,
    metavar=FORM,
    help="Fastest first; amounts are of all, or per /node or /gpu of the plan's prompts; CAPACITY may be "
    f"hits=SHARE.  [default: {' '.join(DEFAULTS)}]",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the rows here (CSV).")
@resolve_options
def tiers(
    source: Path,
    trace: Path | None,
    unit: str | None,
    block_size: int | None,
    kept: list[Tier],
    output: Path | None,
    as_json: bool,
    solver: str,
    gap: float,
    time_limit: float,
) -> None:
    """KV caches kept in host memory, on SSD or in a store: what that does to prefill load, TTFT and cost.

    SCENARIO (or the scenario of a plan file; - is standard input) is solved by prediction without a prefix
    cache, with what its plan's HBM holds, and with one tier after the other. What is found at a size follows
    from the hashes of a trace's blocks; loading it takes prompts time. A tier that makes the plan dearer is
    left out of what follows, and the bandwidth is told above which loading beats computing.
    """
    check_outputs((source, trace), (output,))
    read = None if trace is None else read_trace(trace, unit=unit, block_size=block_size)
    asked = asked_of(source)
    with progress_bar("solving", len(kept) + 2) as (on_stage, on_row):
        options = options_of(solver, gap, time_limit, on_stage)
        result = tiers_of(asked, kept, trace=read, options=options, on_row=on_row)
    if output is not None and not result.interrupted:  # a file would not say that rows are missing
        write_text_atomic(output, csv_text(result.rows(), COLUMNS))
    if as_json:
        echo_json(tiers_facts(result))
        return
    from planner.report.tiers import print_tiers  # rich: only where tables are printed

    print_tiers(result, width())
    if output is not None and not result.interrupted:
        click.echo(f"\nrows written to {output}")


def tiers_facts(t: Tiers) -> dict[str, Any]:
    """The JSON of ``planner tiers``."""
    curve = t.curve
    return {
        "name": t.name,
        "objective": t.objective.value,
        "unit": t.unit,
        "trace": None
        if curve is None
        else {
            "ideal_hit_rate": curve.most,
            "largest_useful_tokens": curve.largest,
            "distinct_blocks": curve.distinct,
            "block_tokens": curve.block_size,
        },
        "rows": [{**row.figures(), **resolved_facts(row.result)} for row in t.steps],
        "break_even": [
            {"gpu": b.gpu, "layout": b.layout, "gb_per_s": rounded(b.bandwidth / GIGA)} for b in t.break_even
        ],
        "notes": list(t.notes),
        "interrupted": t.interrupted,
    }
