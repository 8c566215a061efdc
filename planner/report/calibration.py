"""Fits of operators on the terminal: coefficients, how well they fit, and what they do not tell."""

from __future__ import annotations

from collections.abc import Sequence

from planner.calibration.profile import BuiltProfile
from planner.checked_steps import CheckedStep, median_error
from planner.device_facts import DeviceFacts
from planner.report.tables import plain_console, plain_table
from planner.units import GIGA, MICRO, MILLI, PERCENT, TERA


def print_profile(built: BuiltProfile, facts: DeviceFacts, width: int) -> None:
    """A measured profile in short."""
    out = plain_console(width)
    gpu = built.gpu
    peaks = ", ".join(f"{d.value} {rate / TERA:,.4g}" for d, rate in gpu.peak_flops.items())
    out.print(f"{gpu.name}: {facts.name}, {facts.sm_count} {_units(facts)}")
    out.print(f"peaks [TFLOP/s] {peaks}; memory {gpu.hbm_bandwidth / GIGA:,.4g} GB/s")
    figures = ("compute", "memory", "fixed [us]", "points", "median", "p90", "bias", "repeat")
    table = plain_table("operator", *figures, right=figures)
    for label, found in built.fits.items():
        v, r = found.values, found.residuals
        table.add_row(
            label,
            _share(v.get("compute_efficiency")),
            _share(v.get("memory_efficiency", v.get("bandwidth_efficiency"))),
            f"{v['overhead'] / MICRO:.2f}",
            str(r.points),
            _percent(r.median_abs_error),
            _percent(r.p90_abs_error),
            f"{r.bias * PERCENT:+.1f} %",
            _percent(r.repeatability),
        )
    out.print(table)


def _units(facts: DeviceFacts) -> str:
    return "threads" if facts.kind == "cpu" else "multiprocessors"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _percent(value: float) -> str:
    return "-" if value != value else f"{value * PERCENT:.1f} %"


def print_steps(steps: Sequence[CheckedStep], width: int) -> None:
    """Measured steps of a model beside predicted ones."""
    out = plain_console(width)
    figures = ("measured [ms]", "predicted [ms]", "error", "repeat")
    table = plain_table("step", *figures, right=figures)
    for step in steps:
        table.add_row(
            step.name,
            f"{step.measured / MILLI:,.3f}",
            f"{step.predicted / MILLI:,.3f}",
            f"{step.error * PERCENT:+.1f} %",
            _percent(step.spread),
        )
    out.print()
    out.print(table)
    out.print(
        f"median error {median_error(steps) * PERCENT:.1f} % (a model of random weights, kernels of torch)"
    )
