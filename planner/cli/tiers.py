"""``planner tiers``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from planner.cli.output import check_outputs, echo_json, progress_bar, width
from planner.cli.tier_option import DEFAULTS, FORM, tier_of
from planner.cli.whatif_facts import milliseconds, resolved_facts
from planner.cli.whatif_options import options_of, resolve_options
from planner.documents.files import write_text_atomic
from planner.documents.plan_extras import rounded
from planner.documents.trace_file import read_trace
from planner.documents.trace_times import SCALES
from planner.units import GIGA
from planner.whatif.asked import asked_of
from planner.whatif.frames import csv_text
from planner.whatif.tier_rows import TierRow, Tiers
from planner.whatif.tier_specs import Tier
from planner.whatif.tiers import tiers as tiers_of

COLUMNS = (
    "tier", "used", "capacity_tokens", "hit_rate", "loaded_share", "read_gb_per_s", "prefix_load_gb_per_s",
    "computed_tokens_per_s", "prefill_gpus", "busy_prefill_gpus", "ttft_mean_ms", "ttft_p99_ms", "value",
    "usd_per_hour", "tiers_usd_per_hour", "total_usd_per_hour", "feasible", "fleet", "reason",
)  # fmt: skip


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
        write_text_atomic(output, csv_text([_flat(row) for row in result.rows], COLUMNS))
    if as_json:
        echo_json(tiers_facts(result))
        return
    from planner.report.tiers import print_tiers  # rich: only where tables are printed

    print_tiers(result, width())
    if output is not None and not result.interrupted:
        click.echo(f"\nrows written to {output}")


def _figures(row: TierRow) -> dict[str, Any]:
    """What a row says beside its plan."""
    pool, ttft = row.pool, row.ttft
    return {
        "tier": row.name,
        "used": row.used,
        "capacity_tokens": None if row.capacity is None else round(row.capacity),
        "hit_rate": rounded(row.offer.hit_rate),
        "loaded_share": rounded(row.loaded),
        "read_gb_per_s": rounded(row.load / GIGA),
        "prefix_load_gb_per_s": None
        if math.isinf(row.offer.bandwidth)
        else rounded(row.offer.bandwidth / GIGA),
        "computed_tokens_per_s": rounded(row.computed),
        "prefill_gpus": None if pool is None else pool.gpus,
        "busy_prefill_gpus": None if pool is None or math.isnan(pool.busy_gpus) else rounded(pool.busy_gpus),
        "ttft_mean_ms": milliseconds(None if ttft is None else ttft.mean),
        "ttft_p99_ms": milliseconds(None if ttft is None else ttft.p99),
        "tiers_usd_per_hour": rounded(row.price),
        "total_usd_per_hour": rounded(row.total),
    }


def _flat(row: TierRow) -> dict[str, Any]:
    result = row.result
    return {
        **_figures(row),
        "value": result.value,
        "usd_per_hour": result.cost,
        "feasible": result.feasible,
        "fleet": result.description,
        "reason": result.reason,
    }


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
        "rows": [{**_figures(row), **resolved_facts(row.result)} for row in t.rows],
        "break_even": [
            {"gpu": b.gpu, "layout": b.layout, "gb_per_s": rounded(b.bandwidth / GIGA)} for b in t.break_even
        ],
        "notes": list(t.notes),
        "interrupted": t.interrupted,
    }
