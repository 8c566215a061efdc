"""``planner calibrate ops``."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from planner.calibration.profile import build_profile, merged
from planner.calibration.tables import ENGINES, board_of, fit_table, read_tables
from planner.catalog import gpu_name, load_gpu_document
from planner.cli.completions import complete_gpus
from planner.cli.output import check_outputs, echo_json, width
from planner.cli.profile import check_profile_name, summary, today
from planner.device_facts import DeviceFacts, catalogue_name, facts_of
from planner.documents.files import file_error, write_text_atomic
from planner.documents.gpu_profile import GpuProfileDocument, gpu_from_document
from planner.documents.operator_tables import tables_folder
from planner.documents.samples_file import read_samples
from planner.errors import SpecError
from planner.samples import SampleSet
from planner.specs import CalibrationStatus


@click.command()
@click.argument("samples", nargs=-1, type=click.Path(path_type=Path))
@click.option("--tables", metavar="SYSTEM", help="Tables of aiconfigurator-core instead, e.g. of h100_sxm.")
@click.option("--engine", type=click.Choice(ENGINES), help="Whose tables; default: the best for each format.")
@click.option(
    "--package", type=click.Path(path_type=Path), help="Folder of aiconfigurator-core, where not installed."
)
@click.option(
    "--gpu",
    metavar="NAME|none",
    shell_complete=complete_gpus,
    help="Whose vendor figures to take; none: what the samples attain. Default: by the device's name.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The profile to write (YAML)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ops(
    samples: tuple[Path, ...],
    tables: str | None,
    engine: str | None,
    package: Path | None,
    gpu: str | None,
    output: Path,
    as_json: bool,
) -> None:
    """Fit a GPU profile to SAMPLES of its operators, as `planner profile` writes them.

    Several files of one device are taken together; of each case the fastest library counts. What SAMPLES do
    not tell is borrowed from the catalogue's profile of the same GPU, and said.

    With --tables the samples are those of the package aiconfigurator-core (pip install "pd-planner[tables]"
    aiconfigurator-core), Apache-2.0: the GPU's own, or another engine's kernels than the catalogue has.
    """
    if bool(samples) == bool(tables):
        raise SpecError("give SAMPLES or --tables, one of both")
    if tables is None and (engine or package):
        raise SpecError("--engine and --package go with --tables")
    check_profile_name(output)
    check_outputs(samples, (output,))
    if tables is None:
        found = merged([read_samples(path) for path in samples])
        known = catalogue_name(found.device)
    else:
        found = read_tables(tables_folder(package), tables, engine)
        known = known_gpu(tables)
    base = None
    if gpu != "none" and (gpu or known):
        base = load_gpu_document(str(gpu or known))
    source = samples[0] if samples else Path(str(tables))
    try:
        facts = facts_of(found.device, found.facts) or _facts_without_head(found, base, source)
    except SpecError as error:
        raise error if error.source else file_error(source, str(error)) from None
    if facts.kind == "cpu" and base is not None:
        if gpu is not None:
            raise file_error(source, f"was measured on a processor, not on {base.name}", "leave --gpu out")
        base = None
    date = found.facts.get("date", today())
    method = METHOD if tables is None else f"{METHOD} Samples: tables of {found.facts['package']}."
    board = None if tables is None else board_of(tables)
    built = build_profile(
        found if board else found.fastest(),
        facts,
        name=output.stem,
        date=date,
        base=base,
        method=method,
        status=CalibrationStatus.FITTED if board else CalibrationStatus.MEASURED,
        fit_with=None if board is None else lambda samples, peaks: fit_table(samples, peaks, board),
    )
    write_text_atomic(output, built.text)
    if as_json:
        echo_json(summary(built, facts, output, None, list(built.notes)))
        return
    from planner.report.calibration import print_profile  # rich: only where tables are printed

    print_profile(built, facts, width())
    for note in built.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"wrote {output} ({len(found)} samples)")


def known_gpu(system: str) -> str | None:
    """The catalogue's name of a GPU that the package calls `system`; None where it has none."""
    for name in (system, system.replace("_", "-")):
        with contextlib.suppress(SpecError):
            return gpu_name(name)
    return None


METHOD = (
    "Fitted to samples of operators by `planner calibrate ops`: least squares on log residuals with bounds "
    "on every coefficient, the fastest library of each case."
)


def _facts_without_head(found: SampleSet, base: GpuProfileDocument | None, path: Path) -> DeviceFacts:
    """Facts of the catalogue's profile, for a table that somebody else wrote."""
    if base is None:
        raise file_error(
            path,
            "does not say what device it is of in the lines before its table",
            "name a GPU of the catalogue with --gpu",
        )
    gpu = gpu_from_document(base)
    return DeviceFacts(
        name=found.device or gpu.name,
        kind="cuda",
        vendor=gpu.vendor,
        architecture=gpu.architecture,
        sm_count=gpu.sm_count,
        memory=gpu.memory,
        cache=gpu.l2_bytes,
        count=gpu.node_size,
        power=gpu.power,
        driver_memory=gpu.driver_memory,
        software={},
    )
