"""``planner sweep``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from planner.cli.options import Number
from planner.cli.output import check_outputs, echo_json, point_bar, width
from planner.cli.whatif_facts import sweep_facts
from planner.cli.whatif_options import DAY, MINUTE
from planner.documents.files import file_error, write_bytes_atomic, write_text_atomic
from planner.errors import InfeasibleError, SpecError
from planner.search import DEFAULT_GAP
from planner.whatif.frames import csv_text, parquet_bytes, require_parquet
from planner.whatif.journal import journal_of
from planner.whatif.sweep import FEASIBLE, OPTIMAL, Sweep, SweepOptions
from planner.whatif.sweep import sweep as sweep_of
from planner.whatif.workers import ENGINES, MOST_JOBS, Workers

_TABLES = (".csv", ".parquet")


@click.command()
@click.argument("source", metavar="SCENARIO", type=click.Path(path_type=Path))
@click.option(
    "--vary",
    multiple=True,
    required=True,
    metavar="KEY=VALUES",
    help="A key of the file, and its values: 20,30 or start:stop:step or start:stop:x2; again for more keys.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the table here (CSV, Parquet).")
@click.option("--engine", type=click.Choice(ENGINES), default="local", show_default=True)
@click.option("--address", default="", metavar="HOST:PORT", help="Of a Dask scheduler, with --engine dask.")
@click.option(
    "--jobs",
    type=click.IntRange(1, MOST_JOBS),
    metavar="N",
    help="Processes. Default: one per core; 1: no other than this one.",
)
@click.option("--verify", is_flag=True, help="Simulate each plan and correct capacities: seconds a point.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, help="Of the simulated requests.")
@click.option(
    "--resume/--fresh",
    default=True,
    help="Go on from the journal beside the table where there is one (default), or start anew.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--solver", type=click.Choice(["highs", "cbc"]), default="highs", show_default=True)
@click.option(
    "--gap",
    type=Number(0, 1, max_open=True),
    default=DEFAULT_GAP,
    show_default=True,
    help="Relative distance from the proven bound at which each search may stop.",
)
@click.option(
    "--time-limit",
    type=Number(0, DAY, min_open=True),
    default=MINUTE,
    show_default=True,
    metavar="S",
    help="Of one program. [s]",
)
def sweep(
    source: Path,
    vary: tuple[str, ...],
    output: Path | None,
    engine: str,
    address: str,
    jobs: int | None,
    verify: bool,
    seed: int,
    resume: bool,
    as_json: bool,
    solver: str,
    gap: float,
    time_limit: float,
) -> None:
    """The plan of SCENARIO at every combination of values of some keys.

    SCENARIO is a file, or the scenario of a plan file. Keys are those of the file: slo.tpot_ms.p99,
    fleet.h100-sxm.price_per_gpu_hour, options.confidence; null leaves a key out. A point without a plan says
    why in the table. With -o what was found is kept in a journal beside the table until that is written:
    after an interrupt, the same command goes on from there.
    """
    if output is not None and output.suffix.lower() not in _TABLES:
        raise file_error(output, "is no table", "the name has to end in .csv or .parquet")
    if output is not None and output.suffix.lower() == ".parquet":
        require_parquet()
    check_outputs((source,), (output,))
    wanted = _wanted(vary)
    journal = None if output is None else journal_of(output)
    start = time.monotonic()
    with point_bar("solving") as (on_start, on_point):
        result = sweep_of(
            source,
            wanted,
            options=SweepOptions(solver=solver, gap=gap, time_limit=time_limit, verify=verify, seed=seed),
            workers=Workers(engine=engine, address=address, jobs=jobs),
            journal=journal,
            fresh=not resume,
            on_start=on_start,
            on_point=on_point,
        )
    if output is not None and journal is not None:
        _write(result, output)
        journal.unlink(missing_ok=True)
    if as_json:
        echo_json({**sweep_facts(result), "seconds": time.monotonic() - start})
        _require_a_plan(result)
        return
    from planner.report.sweep import print_sweep  # rich: only where tables are printed

    print_sweep(result, width(), brief=output is not None)
    if output is not None:
        click.echo(f"\ntable written to {output}")
    _require_a_plan(result)


def _require_a_plan(result: Sweep) -> None:
    """End with the exit code of infeasible scenarios where no point has a plan."""
    if not any(row["status"] in (OPTIMAL, FEASIBLE) for row in result.points):
        raise click.exceptions.Exit(InfeasibleError.exit_code)


def _wanted(vary: tuple[str, ...]) -> dict[str, Any]:
    """Values, as text, by key."""
    wanted: dict[str, Any] = {}
    for one in vary:
        key, equals, values = one.partition("=")
        key = key.strip()
        if not equals:
            raise SpecError(f"--vary {one}: has no values (write KEY=VALUES, e.g. slo.tpot_ms.p99=20:100:10)")
        if key in wanted:
            raise SpecError(f"--vary {key} is given twice (give all its values at once)")
        wanted[key] = values
    return wanted


def _write(result: Sweep, output: Path) -> None:
    """The table whole, or not at all."""
    if output.suffix.lower() == ".parquet":
        write_bytes_atomic(output, parquet_bytes(result.rows(), result.columns))
    else:
        write_text_atomic(output, csv_text(result.rows(), result.columns))
