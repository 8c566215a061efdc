"""GPUs compared, and rooflines, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from rich.table import Table
from rich.text import Text

from planner.report.tables import figure, plain_console, plain_table, print_fitting
from planner.rooflines import Roofline
from planner.units import GIGA, MILLI, PERCENT, TERA

_NONE = "-"


def print_comparison(facts: dict[str, Any], width: int) -> None:
    """Figures as rows, GPUs as columns; reference times with their ratio to the first GPU's."""
    gpus = facts["gpus"]
    labels = [g["label"] for g in gpus]
    table = plain_table("", *labels, right=labels)
    for title, rows in (
        ("specification (dense, one direction)", _spec_rows(gpus)),
        ("ridge point [FLOP/B]", _ridge_rows(gpus)),
        ("predicted times", _time_rows(facts["reference_operators"])),
        ("calibration", _calibration_rows(gpus)),
    ):
        table.add_row(Text(title, style="bold"))
        for name, cells in rows:
            table.add_row(f"  {name}", *cells)
    console = plain_console(width)
    console.print(table)
    console.print(
        f"\nratios: to the time on {labels[0]}. Ridge point: FLOP per byte of memory traffic where compute "
        "takes as long as memory; attained: with the calibrated rates."
    )
    for operator in facts["reference_operators"]:
        console.print(f"{operator['operator']}: {operator['shape']}")


Rows = Iterator[tuple[str, list[str]]]


def _spec_rows(gpus: Sequence[dict[str, Any]]) -> Rows:
    yield "architecture", [f"{g['vendor']} {g['architecture']}" for g in gpus]
    for dtype in _keys(gpus, "peak_tflops"):
        yield f"{dtype} [TFLOP/s]", [_number(g["peak_tflops"].get(dtype)) for g in gpus]
    plain = {
        "hbm_gb_per_s": "memory bandwidth [GB/s]",
        "memory_gib": "memory [GiB]",
        "sm_count": "multiprocessors",
        "l2_mb": "L2 [MB]",
        "scale_up_gb_per_s": "link [GB/s]",
        "scale_up_gpus": "GPUs on that link",
        "host_gb_per_s": "host link [GB/s]",
        "network_gbps": "network [Gbit/s]",
        "node_size": "GPUs of a node",
        "power_w": "power [W]",
    }
    for key, text in plain.items():
        if key == "scale_up_gb_per_s":
            yield "link", [g["scale_up"] for g in gpus]
        yield text, [_number(g[key]) for g in gpus]


def _ridge_rows(gpus: Sequence[dict[str, Any]]) -> Rows:
    for dtype in _keys(gpus, "ridge_flop_per_byte"):
        yield f"{dtype}, datasheet", [_number(g["ridge_flop_per_byte"].get(dtype), 3) for g in gpus]
    roofs = [{r["dtype"]: r["calibrated_ridge_flop_per_byte"] for r in g["roofs"]} for g in gpus]
    for dtype in dict.fromkeys(d for own in roofs for d in own):
        yield f"{dtype}, attained", [_number(own.get(dtype), 3) for own in roofs]


def _calibration_rows(gpus: Sequence[dict[str, Any]]) -> Rows:
    yield "status", [g["calibration"] for g in gpus]
    yield "date", [g["calibration_date"] or _NONE for g in gpus]
    for key in _keys(gpus, "coefficients"):
        yield key, [_number(g["coefficients"].get(key), 3) for g in gpus]
    for key in _keys(gpus, "log_sd"):
        yield f"spread {key}", [_number(g["log_sd"].get(key), 2) for g in gpus]


def _time_rows(operators: Sequence[dict[str, Any]]) -> Rows:
    for row in operators:
        cells = []
        for time, ratio in zip(row["time_us"], row["ratio"], strict=True):
            if time is None:
                cells.append(_NONE)
            else:
                cells.append(f"{figure(time, 3)} us" + ("" if ratio is None else f"  x{ratio:.2f}"))
        yield row["operator"], cells


def _keys(gpus: Sequence[dict[str, Any]], name: str) -> dict[str, None]:
    return dict.fromkeys(key for g in gpus for key in g[name])


def _number(value: float | None, digits: int = 4) -> str:
    return _NONE if value is None else figure(value, digits)


def print_rooflines(rooflines: Sequence[Roofline], notes: Sequence[str], width: int) -> None:
    """Roofs of each GPU, and its points by step."""
    console = plain_console(width)
    for i, roofline in enumerate(rooflines):
        if i:
            console.print()
        console.print(Text(f"{roofline.gpu} (calibration: {roofline.calibration})", style="bold"))
        console.print(_roof_table(roofline))
        if roofline.points:
            console.print()
            print_fitting(console, partial(_point_table, roofline), ("of roof", "ms"))
    for note in notes:
        console.print(f"\n{note}")


def _roof_table(roofline: Roofline) -> Table:
    numbers = ("peak [TFLOP/s]", "attained", "memory [GB/s]", "attained ", "ridge [FLOP/B]", "attained  ")
    table = plain_table("format", *numbers, right=numbers)
    for r in roofline.roofs:
        values = (
            r.peak / TERA, r.compute_rate / TERA, r.bandwidth / GIGA, r.memory_rate / GIGA, r.ridge,
            r.calibrated_ridge,
        )  # fmt: skip
        table.add_row(r.dtype.value, *(figure(v) for v in values[:4]), *(figure(v, 3) for v in values[4:]))
    return table


def _point_table(roofline: Roofline, without: frozenset[str]) -> Table:
    numbers = ("FLOP/B", "ridge", "TFLOP/s", "of roof", "ms")
    kept = [c for c in ("format", "FLOP/B", "ridge", "bound", "TFLOP/s", "of roof", "ms") if c not in without]
    table = plain_table("operator", *kept, right=numbers)
    step = ""
    for row in roofline.rows():
        before, step = step, _step_name(row)
        if step != before:
            table.add_row(Text(step, style="bold"))
        cells = {
            "format": row["dtype"],
            "FLOP/B": figure(row["flop_per_byte"], 3),
            "ridge": figure(row["ridge_flop_per_byte"], 3),
            "bound": row["bound"],
            "TFLOP/s": figure(row["flop_per_second"] / TERA, 3),
            "of roof": f"{row['share_of_roof'] * PERCENT:.0f} %",
            "ms": figure(row["seconds"] / MILLI, 3),
        }
        table.add_row(f"  {row['operator']}", *(cells[c] for c in kept))
    return table


def _step_name(row: dict[str, Any]) -> str:
    if row["phase"] == "prefill":
        return f"prefill, a prompt of {row['context']:,.0f} tokens"
    return f"decode, batch {row['batch']:g} at {row['context']:,.0f} tokens"
