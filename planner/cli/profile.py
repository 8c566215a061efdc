"""``planner profile``."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import math
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from planner.calibration.profile import BuiltProfile, build_profile
from planner.catalog import load_gpu_document
from planner.checked_steps import CheckedStep, median_error
from planner.cli.completions import complete_gpus
from planner.cli.output import check_outputs, echo_json, point_bar, progress, width
from planner.device_facts import DeviceFacts, catalogue_name
from planner.documents.files import file_error, write_text_atomic
from planner.documents.gpu_profile import GpuProfileDocument
from planner.documents.samples_file import samples_text
from planner.errors import SpecError
from planner.units import GIGA, MILLI, TERA

SAMPLES_SUFFIX = ".samples.csv"
_BUSY = 0.5  # processes per processor that were under way before


@click.command()
@click.option("--device", metavar="cuda:N|cpu", help="Default: the first GPU, else the CPU.")
@click.option("--quick", "depth", flag_value="quick", help="Fewer shapes: within a minute or so.")
@click.option("--full", "depth", flag_value="full", default=True, help="All shapes (the default).")
@click.option(
    "--world-sizes",
    metavar="N,...",
    help="Collectives over so many ranks. Default: 2, 4, 8 as far as there are GPUs; none on a CPU.",
)
@click.option(
    "--seconds", type=click.FloatRange(min=1), help="Time for kernels; what is missing is borrowed."
)
@click.option(
    "--gpu",
    metavar="NAME|none",
    shell_complete=complete_gpus,
    help="Whose vendor figures to take; none: what the device attains. Default: by the device's name.",
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The profile (YAML). Default: after the device."
)
@click.option("--check", "checked", is_flag=True, help="Then hold whole steps of a model against it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def profile(
    device: str | None,
    depth: str,
    world_sizes: str | None,
    seconds: float | None,
    gpu: str | None,
    output: Path | None,
    checked: bool,
    as_json: bool,
) -> None:
    """Measure this machine's GPU, or its CPU, with torch, and write its profile.

    Times matrix products in every format the device multiplies, attention of decode steps and prompts, norms,
    copies, experts and collectives; fits the coefficients of the performance model; and writes a profile that
    scenarios name as their `gpu:`. Raw samples are written beside it, so that the fit can be made again.
    Settings of the device are left alone. Needs torch (`pip install "pd-planner[profile]"`).
    """
    if importlib.util.find_spec("torch") is None:
        raise SpecError('planner profile needs torch: pip install "pd-planner[profile]"')
    if seconds is not None and not math.isfinite(seconds):
        raise SpecError(f"--seconds: must be a finite number, got {seconds:g}")
    worlds = None if world_sizes is None else _numbers(world_sizes)
    base = None if gpu in (None, "none") else load_gpu_document(str(gpu))
    if output is not None:
        check_profile_name(output)
        check_outputs((), (output, samples_path(output)))
    began, busy = time.perf_counter(), _load()
    from planner.profiling.session import measure  # torch: only where a device is measured

    with point_bar("measuring") as (begin, advance):

        def told(done: int, total: int, _case: str) -> None:
            advance() if done else begin(0, total)

        measured = measure(device, full=depth == "full", worlds=worlds, seconds=seconds, progress=told)
    facts = measured.facts
    if gpu is None and (known := catalogue_name(facts.name)) and facts.kind != "cpu":
        base = load_gpu_document(known)
    path = output or Path(f"{_slug(facts, base)}.yaml")
    check_outputs((), (path, samples_path(path)))
    write_text_atomic(samples_path(path), samples_text(measured.samples))
    built = build_profile(measured.samples.fastest(), facts, name=path.stem, date=today(), base=base)
    write_text_atomic(path, built.text)
    seconds_taken = time.perf_counter() - began
    notes = list(built.notes)
    if busy > _BUSY:
        notes.insert(0, f"the machine was busy before (load {busy:.1f} per processor): times may be too long")
    if measured.unreached:
        notes.append(f"{measured.unreached} cases were not reached in time (--seconds)")
    notes += [f"{case}: {reason}" for case, reason in measured.skipped.items()]
    steps = _checked(built, facts, device) if checked else ()
    if as_json:
        found = summary(built, facts, path, seconds_taken, notes)
        echo_json(found | {"samples": str(samples_path(path))} | _step_facts(steps))
        return
    from planner.report.calibration import print_profile, print_steps  # rich: only where tables are printed

    print_profile(built, facts, width())
    if steps:
        print_steps(steps, width())
    for note in notes:
        click.echo(f"note: {note}", err=True)
    click.echo(
        f"wrote {path} and {samples_path(path)} ({len(measured.samples)} samples, {seconds_taken:.0f} s)"
    )


def check_profile_name(path: Path) -> None:
    """Refuse names that no scenario could give as its GPU's profile."""
    if path.suffix.lower() not in (".yaml", ".yml") or not path.stem:
        raise file_error(path, "is no name of a profile", "it has to end in .yaml")


def samples_path(profile_path: Path) -> Path:
    """Where the raw samples of a profile are written."""
    return profile_path.with_name(profile_path.stem + SAMPLES_SUFFIX)


def _checked(built: BuiltProfile, facts: DeviceFacts, device: str | None) -> Sequence[CheckedStep]:
    """Whole steps of a model of random weights on the device, and as the profile predicts them."""
    from planner.profiling.check import check  # torch: only where a device is measured
    from planner.profiling.device import open_device

    with progress("building a model") as say:
        return check(built.gpu, open_device(device or facts.default_device), progress=say)


def _step_facts(steps: Sequence[CheckedStep]) -> dict[str, Any]:
    if not steps:
        return {}
    return {
        "check": {
            "median_abs_error": median_error(steps),
            "steps": [
                {
                    "step": step.name,
                    "measured_ms": step.measured / MILLI,
                    "predicted_ms": step.predicted / MILLI,
                    "error": step.error,
                }
                for step in steps
            ],
        }
    }


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SpecError(f"--world-sizes: must be whole numbers with commas between, got {text!r}") from None


def _load() -> float:
    """Processes under way per processor in the last minute; 0 where nobody tells."""
    with contextlib.suppress(OSError, AttributeError):
        return os.getloadavg()[0] / (os.cpu_count() or 1)
    return 0.0


def _slug(facts: DeviceFacts, base: GpuProfileDocument | None) -> str:
    if base is not None:
        return f"{base.name}-measured"
    name = re.sub(r"[^a-z0-9]+", "-", facts.name.lower()).strip("-") or "device"
    return name if facts.kind != "cpu" or name.startswith("cpu") else f"cpu-{name}"


def today() -> str:
    """The date, as profiles have it."""
    return datetime.date.today().isoformat()


def summary(
    built: BuiltProfile, facts: DeviceFacts, path: Path, seconds: float | None, notes: list[str]
) -> dict[str, Any]:
    """What was measured, for programs."""
    return {
        "profile": str(path),
        "device": facts.name,
        "kind": facts.kind,
        "seconds": seconds,
        "software": dict(facts.software),
        "peak_tflops": {d.value: rate / TERA for d, rate in built.gpu.peak_flops.items()},
        "hbm_gb_per_s": built.gpu.hbm_bandwidth / GIGA,
        "fits": {
            label: {
                "values": dict(found.values),
                "points": found.residuals.points,
                "median_abs_error": found.residuals.median_abs_error,
                "p90_abs_error": found.residuals.p90_abs_error,
                "bias": found.residuals.bias,
                "log_sd": found.residuals.log_sd,
                "repeatability": found.residuals.repeatability,
                "unidentified": list(found.unidentified),
                "at_bounds": list(found.at_bounds),
            }
            for label, found in built.fits.items()
        },
        "notes": notes,
    }
