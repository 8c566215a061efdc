"""``planner calibrate engine``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from planner.cli.calibration_setup import setup_of, setup_options, split_results, version_of
from planner.cli.output import check_outputs, echo_json, progress_bar, width
from planner.documents.engine_profile import EngineProfileDocument, profile_text
from planner.documents.files import write_text_atomic
from planner.documents.measured_file import MeasuredRow
from planner.engines import shipped_constants
from planner.errors import SpecError
from planner.validation.calibration import Calibration, calibrate, fits_of
from planner.validation.classes import UNSTATED
from planner.validation.evidence import engine_name, gathered, with_load
from planner.validation.profile import profile_document, rows_by_file


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path))
@setup_options
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the engine profile here (YAML).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def engine(results: tuple[Path, ...], output: Path | None, as_json: bool, **given: Any) -> None:
    """Calibrate an engine with RESULTS, files of your own load tests.

    Read are results of `vllm bench serve --save-result` (also appended to one another), SGLang's
    bench_serving (JSONL), GuideLLM (JSON), AIPerf (JSON and CSV), and a CSV with the columns of
    `planner validate`. Load tests do not say what was served: --model, --gpu, --engine and the parallel sizes
    do, or --plan. Tests in a closed loop (a limit of requests under way) and at a steady rate count.

    Constants that come with this package are moved as far as the rows have evidence. Rows are held out in
    turn and predicted from the others; constants stay as they were where that is no better. At least three
    different loads are needed; 10 to 20 from one request to many, short and long prompts, say most.

    The profile goes into `planner solve --engine-profile FILE`.
    """
    check_outputs((*results, given["plan"]), (output,))
    if len({path.resolve() for path in results}) < len(results):
        raise SpecError("RESULTS: a file is given twice")
    tests, files = split_results(results)
    rows = [row for file in files for row in file.rows]
    setup = setup_of(given, tests, rows)
    name = setup.engine.name if setup is not None else _engine_of(given["engine"], rows)
    used = _of_version([row for row in rows if engine_name(row) == name], given["engine_version"])
    tests = [with_load(test, given["concurrency"], given["rate"]) for test in tests]
    found = gathered(tests, setup, used)
    found.require_some()
    prior = shipped_constants()
    with progress_bar("fitting", fits_of(found.evidence)) as (_, tick):
        calibration = calibrate(found.evidence, prior, tick)
    version, notes = version_of(given, setup, found.evidence)
    known = sum(e.id in prior.rows for e in found.evidence)
    if known:
        notes = (*notes, f"{known} rows are among those that the constants before were fitted to")
    left_out = len(rows) - len(used)
    if left_out:
        notes = (*notes, f"{left_out} rows are of other engines or versions")
    calibration = replace(calibration, notes=(*calibration.notes, *notes))
    owners = {test.name: test.path for test in tests}
    owners |= {row.id: Path(file.source) for file in files for row in file.rows}
    document = profile_document(
        calibration, name, version, rows_by_file(results, owners, found), datetime.now(UTC)
    )
    if output is not None:
        write_text_atomic(output, profile_text(document))
    if as_json:
        echo_json(_facts(calibration, document))
    else:
        from planner.report.engine_calibration import print_calibration  # rich: only where tables are printed

        print_calibration(calibration, document, found, setup, width())
    if output is not None:
        click.echo(f"wrote {output}", err=True)


def _engine_of(given: str | None, rows: Sequence[MeasuredRow]) -> str:
    """The one engine of the rows, or the one that is asked for."""
    names = sorted({engine_name(row) for row in rows})
    if given is None and len(names) > 1:
        raise SpecError(
            f"rows are of several engines: {', '.join(names)} (give --engine to take those of one)"
        )
    if given is not None and given not in names:
        raise SpecError(f"--engine: no row is of {given!r}; rows are of {', '.join(names)}")
    return given or names[0]


def _of_version(rows: Sequence[MeasuredRow], version: str | None) -> list[MeasuredRow]:
    """Rows of the version that is asked for; without one all."""
    known = sorted({row.version or UNSTATED for row in rows})
    if version is not None and rows and version not in known:
        raise SpecError(f"--engine-version: no row is of {version!r}; rows are of {', '.join(known)}")
    return [row for row in rows if version is None or (row.version or UNSTATED) == version]


def _facts(calibration: Calibration, document: EngineProfileDocument) -> dict[str, Any]:
    return {
        **document.model_dump(mode="json"),
        "identified": calibration.identified,
        "unidentified": calibration.unidentified,
        "before": {name: asdict(errors) for name, errors in calibration.before.items()},
        "after": {name: asdict(errors) for name, errors in calibration.after.items()},
    }
