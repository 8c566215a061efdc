"""Everything that has to hold on a GPU, in one run of under six minutes: profile, repetition, tables, model.

    python -m benchmarks.gpu_acceptance [--device cuda:0] -o FOLDER

Writes the profile, its samples, and ``acceptance.json`` with the figures and whether each bound holds. The
device's settings are left alone. Needs torch and nothing to download.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from planner.calibration.fitting import predicted
from planner.calibration.forms import FORMS, coefficients_of
from planner.calibration.peaks import peaks_of
from planner.calibration.profile import BuiltProfile, build_profile
from planner.catalog import load_gpu, load_gpu_document
from planner.checked_steps import median_error
from planner.device_facts import catalogue_name
from planner.documents.samples_file import samples_text
from planner.roofline import EFFICIENCY_LIMIT
from planner.samples import Operator, SampleSet
from planner.specs import GPU

PROFILE_SECONDS, REPEAT_ERROR, MODEL_ERROR = 180.0, 0.05, 0.12
GRID_MEDIAN, GRID_P90 = 0.15, 0.35
GRID_OPERATORS = (Operator.GEMM, Operator.DECODE_ATTENTION, Operator.PREFILL_ATTENTION)


def efficiencies(built: BuiltProfile) -> dict[str, float]:
    """Every fitted efficiency by operator and name."""
    return {
        f"{label}.{name}": value
        for label, found in built.fits.items()
        for name, value in found.values.items()
        if name.endswith("efficiency")
    }


def repeat_error(first: SampleSet, second: SampleSet) -> dict[str, float]:
    """Median of |second/first - 1| over the cases that both have, by operator and in all."""
    errors: dict[str, list[float]] = {}
    for key, again in second.fastest().tables.items():
        before = first.fastest().tables.get(key)
        if before is None:
            continue
        known = dict(zip(_cases(before), before.time, strict=True))
        for case, t in zip(_cases(again), again.time, strict=True):
            if case in known:
                errors.setdefault(str(key[0]), []).append(abs(t / known[case] - 1.0))
    every = [e for found in errors.values() for e in found]
    return {name: float(np.median(found)) for name, found in errors.items()} | {
        "all": float(np.median(every))
    }


def _cases(samples: Any) -> list[tuple[float, ...]]:
    axes = list(samples.axes.values())
    return list(zip(*axes, strict=True)) if axes else [()] * len(samples)


def grid_errors(built: BuiltProfile, tables: GPU, samples: SampleSet) -> dict[str, dict[str, float]]:
    """Predicted times of the measured shapes against those by coefficients from tables of the same GPU."""
    found: dict[str, dict[str, float]] = {}
    for (operator, dtype), case in samples.fastest().tables.items():
        if operator not in GRID_OPERATORS or operator not in FORMS:
            continue
        theirs = coefficients_of(tables, operator, dtype)
        ours = coefficients_of(built.gpu, operator, dtype)
        if theirs is None or ours is None:
            continue
        expected = predicted(case, peaks_of(tables, operator, dtype), theirs)
        got = predicted(case, peaks_of(built.gpu, operator, dtype), ours)
        errors = np.abs(got / expected - 1.0)
        name = str(operator) if dtype is None else f"{operator}.{dtype}"
        found[name] = {
            "n": len(errors),
            "median": float(np.median(errors)),
            "p90": float(np.percentile(errors, 90)),
        }
    return found


def run(device_name: str, folder: Path) -> dict[str, Any]:
    """Measure, compare, and write everything to `folder`."""
    from planner.profiling.check import check
    from planner.profiling.device import open_device
    from planner.profiling.session import measure

    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    measured = measure(device_name, full=True, worlds=None, seconds=None, progress=_say)
    full_seconds = time.perf_counter() - began
    facts = measured.facts
    known = catalogue_name(facts.name)
    base = None if known is None else load_gpu_document(known)
    name = f"{known or 'gpu'}-measured"
    (folder / f"{name}.samples.csv").write_text(samples_text(measured.samples), encoding="utf-8")
    built = build_profile(
        measured.samples.fastest(), facts, name=name, date=date.today().isoformat(), base=base
    )
    (folder / f"{name}.yaml").write_text(built.text, encoding="utf-8")
    again = measure(device_name, full=False, worlds=None, seconds=None, progress=_say)
    steps = check(built.gpu, open_device(device_name), progress=print)
    shares = efficiencies(built)
    repeated = repeat_error(measured.samples, again.samples)
    grid = {} if known is None else grid_errors(built, load_gpu(known), measured.samples)
    result = {
        "device": facts.name,
        "software": dict(facts.software),
        "profile_seconds": full_seconds,
        "samples": len(measured.samples),
        "skipped": measured.skipped,
        "unreached": measured.unreached,
        "efficiencies": shares,
        "repeat_error": repeated,
        "grid": grid,
        "fits": {label: asdict(found.residuals) for label, found in built.fits.items()},
        "steps": [
            {"step": s.name, "measured_s": s.measured, "predicted_s": s.predicted, "error": s.error}
            for s in steps
        ],
        "model_median_error": median_error(steps),
        "notes": list(built.notes),
        "holds": {
            "profile in under 3 minutes": full_seconds < PROFILE_SECONDS,
            "efficiencies in (0, 1.02]": all(0 < e <= EFFICIENCY_LIMIT for e in shares.values()),
            "repeat run within 5 %": repeated["all"] <= REPEAT_ERROR,
            "operators within 15 % median and 35 % p90 of the tables": all(
                g["median"] <= GRID_MEDIAN and g["p90"] <= GRID_P90 for g in grid.values()
            ),
            "model within 12 % median": median_error(steps) <= MODEL_ERROR,
        },
        "seconds": time.perf_counter() - began,
    }
    (folder / "acceptance.json").write_text(
        json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8"
    )
    return result


def _say(done: int, total: int, what: str) -> None:
    if done % 20 == 0:
        print(f"{done} of {total}: {what}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--device", default="cuda:0", help="cuda:N; cpu for a trial of the script itself")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to write to")
    arguments = parser.parse_args()
    result = run(arguments.device, arguments.output)
    for step in result["steps"]:
        print(f"{step['step']:20} {step['measured_s'] * 1e3:10.3f} ms  {step['error']:+.1%}")
    for bound, holds in result["holds"].items():
        print(f"{'holds' if holds else 'FAILS'}  {bound}")
    print(f"{result['seconds']:.0f} s in all")


if __name__ == "__main__":
    main()
