"""``planner calibrate ops``."""

from __future__ import annotations

from pathlib import Path

import click

from planner.calibration.profile import build_profile, merged
from planner.catalog import load_gpu_document
from planner.cli.output import check_outputs, echo_json, width
from planner.cli.profile import summary, today
from planner.device_facts import DeviceFacts, catalogue_name, facts_of
from planner.documents.files import file_error, write_text_atomic
from planner.documents.gpu_profile import GpuProfileDocument, gpu_from_document
from planner.documents.samples_file import read_samples
from planner.samples import SampleSet


@click.command()
@click.argument("samples", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--gpu",
    metavar="NAME|none",
    help="Whose vendor figures to take; none: what the samples attain. Default: by the device's name.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="The profile to write (YAML)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ops(samples: tuple[Path, ...], gpu: str | None, output: Path, as_json: bool) -> None:
    """Fit a GPU profile to SAMPLES of its operators, as `planner profile` writes them.

    Several files of one device are taken together; of each case the fastest library counts. What SAMPLES do
    not tell is borrowed from the catalogue's profile of the same GPU, and said.
    """
    check_outputs(samples, (output,))
    found = merged([read_samples(path) for path in samples])
    known = catalogue_name(found.device)
    base = None
    if gpu != "none" and (gpu or known):
        base = load_gpu_document(str(gpu or known))
    facts = facts_of(found.device, found.facts) or _facts_without_head(found, base, samples[0])
    if facts.kind == "cpu" and gpu is None:
        base = None
    built = build_profile(
        found, facts, name=output.stem, date=found.facts.get("date", today()), base=base, method=METHOD
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
