"""Fit the roofline coefficients of GPUs to the operator tables of aiconfigurator-core.

    python tools/fit_operator_tables.py [PACKAGE_FOLDER] [-o tools/data/operator_coefficients.json]

The folder is that of the package ``aiconfigurator-core`` (default: the installed one); pyarrow reads its
tables (``pip install 'pd-planner[tables]'``). The output depends on nothing but the tables: coefficients in
SI units, relative to the package's own peaks, with residuals on the rows they were fitted to and on shapes
held out.
``build_gpu_profiles.py`` makes profiles of it.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.calibration.fitting import Residuals
from planner.calibration.forms import Peaks
from planner.calibration.held_out import held_out
from planner.calibration.links import LINEAR, fits_by_world
from planner.calibration.table_rows import FILTERS
from planner.calibration.tables import (
    BOARDS,
    SGLANG,
    Board,
    board_of,
    fit_table,
    label,
    peaks_of,
    read_tables,
)
from planner.documents.files import write_text_atomic
from planner.documents.operator_tables import (
    PACKAGE,
    SystemFigures,
    package_version,
    read_figures,
    system_names,
    tables_folder,
)
from planner.errors import SpecError
from planner.samples import Key, Operator, Samples
from planner.specs import Dtype

DIGITS = 4  # of coefficients; the last one is far below what they are known to
BESIDE: Mapping[str, tuple[Key, ...]] = {SGLANG: ((Operator.EXPERTS, Dtype.MXFP4),)}
"""Tables that are fitted beside the chosen ones, by engine: their fixed times stand in for others'."""
PCIE = ("l40s", "rtx_pro_6000_server")
"""GPUs whose all-reduce goes over PCIe: one latency and one bandwidth per number of ranks."""


def rounded(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")


def residuals(found: Residuals) -> dict[str, Any]:
    names = ("median_abs_error", "p90_abs_error", "bias", "log_sd")
    return {"points": found.points, **{name: rounded(getattr(found, name)) for name in names}}


def entry(samples: Samples, peaks: Peaks, board: Board, source: str) -> dict[str, Any]:
    """One operator at one format, as it goes into the file."""
    found = fit_table(samples, peaks, board)
    other = held_out(samples, peaks, lambda part: fit_table(part, peaks, board))
    row: dict[str, Any] = {
        "table": source,
        "values": {name: rounded(value) for name, value in found.values.items()},
        "residual": residuals(found.residuals),
    }
    if other is not None:
        names = ("median_abs_error", "p90_abs_error", "bias")
        row["held_out"] = {
            "groups": other.groups,
            **{name: rounded(getattr(other, name), 3) for name in names},
        }
    row["ranges"] = {axis: [int(low), int(high)] for axis, (low, high) in found.residuals.ranges.items()}
    row |= {k: list(v) for k, v in (("at_bounds", found.at_bounds), ("unknown", found.unidentified)) if v}
    if found.notes:
        row["notes"] = list(found.notes)
    return row


def over_pcie(samples: Samples, peaks: Peaks, board: Board) -> dict[str, Any]:
    """Latency [s] and bandwidth [B/s] of an all-reduce by the number of ranks, and their joint residual."""
    found = fits_by_world(samples, lambda part: fit_table(part, peaks, board, LINEAR))
    worlds = {
        str(ranks): {
            "alpha": rounded(one.values["overhead"]),
            "bandwidth": rounded(one.values["bandwidth_efficiency"] * peaks.link),
        }
        for ranks, one in found.items()
    }
    errors = [one.residuals for one in found.values()]
    return {
        "by_world_size": worlds,
        "residual": {
            "points": sum(e.points for e in errors),
            "median_abs_error": rounded(max(e.median_abs_error for e in errors)),
            "p90_abs_error": rounded(max(e.p90_abs_error for e in errors)),
        },
    }


def system_entry(systems: Path, system: str) -> dict[str, Any]:
    """Everything that was fitted of one GPU."""
    board, figures = board_of(system), read_figures(systems, system)
    chosen = read_tables(systems, system)
    rows = {
        label(key): entry(samples, peaks_of(figures, system, key), board, chosen.facts[label(key)])
        for key, samples in chosen.tables.items()
    }
    for engine, keys in BESIDE.items():
        others = read_tables(systems, system, engine)
        for key in keys:
            samples = others.tables.get(key)
            if samples is not None:
                source = others.facts[label(key)]
                rows[f"{label(key)}@{engine}"] = entry(samples, peaks_of(figures, system, key), board, source)
    found = {"peaks": _peaks(figures), "fits": rows}
    reduce = chosen.tables.get((Operator.ALL_REDUCE, None))
    if system in PCIE and reduce is not None:
        found["pcie_all_reduce"] = over_pcie(
            reduce, peaks_of(figures, system, (Operator.ALL_REDUCE, None)), board
        )
    return found


def _peaks(figures: SystemFigures) -> dict[str, float]:
    return {**figures.peaks, "bandwidth": figures.bandwidth, "link": figures.link}


def coefficients(systems: Path, names: tuple[str, ...] | None = None) -> dict[str, Any]:
    """The whole file, of all GPUs that have tables of everything."""
    known = names or tuple(name for name in BOARDS if name in system_names(systems))
    if not known:
        raise SpecError(f"none of {', '.join(BOARDS)} has tables in {systems}")
    return {
        "what": "Coefficients of operators, fitted to the silicon tables of aiconfigurator-core "
        "(Apache-2.0), never to end-to-end measurements. Written by tools/fit_operator_tables.py.",
        "units": "s, B, FLOP; efficiencies are shares of the peaks beside them",
        "package": f"{PACKAGE} {package_version(systems)}".strip(),
        "rows": {str(operator): text for operator, text in FILTERS.items()},
        "systems": {name: system_entry(systems, name) for name in known},
    }


def text_of(data: Mapping[str, Any]) -> str:
    """JSON with one line per fit."""

    def block(value: Any, depth: int) -> str:
        if not isinstance(value, dict) or depth == 0:
            return json.dumps(value)
        inner = ",\n".join(
            f"{' ' * (4 - depth)}{json.dumps(k)}: {block(v, depth - 1)}" for k, v in value.items()
        )
        return "{\n" + inner + "\n" + " " * (3 - depth) + "}"

    return block(dict(data), 4) + "\n"


def table_of(data: Mapping[str, Any]) -> str:
    """Held-out median errors as a Markdown table: operators by GPUs, in per cent."""
    names = list(data["systems"])
    rows = list(dict.fromkeys(op for s in data["systems"].values() for op in s["fits"]))
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for operator in rows:
        cells = []
        for name in names:
            found = data["systems"][name]["fits"].get(operator, {}).get("held_out", {})
            error = found.get("median_abs_error", math.nan)
            cells.append("" if math.isnan(error) else f"{100 * error:.1f}")
        lines.append(f"| {operator} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", help="folder of the package (default: the installed one)")
    parser.add_argument("--output", "-o", type=Path, default=Path("tools/data/operator_coefficients.json"))
    arguments = parser.parse_args()
    try:
        data = coefficients(tables_folder(arguments.folder))
        write_text_atomic(arguments.output, text_of(data))
    except SpecError as error:
        parser.exit(2, f"{error}\n")
    print("Median errors on shapes held out [%]:")
    print(table_of(data))


if __name__ == "__main__":
    main()
