"""``planner validate``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from planner.cli.options import engine_profile_option
from planner.cli.output import check_outputs, echo_json, progress, width
from planner.documents.engine_profile import load_engine_profile
from planner.documents.files import write_text_atomic
from planner.errors import SpecError
from planner.units import MILLI
from planner.validation.comparison import ASSUMED, TPOT, TTFT, Comparison, compare
from planner.validation.evaluate import ConstantsKind, Split
from planner.validation.peers import PeerErrors, peer_errors
from planner.validation.scores import Errors


@click.command()
@click.argument("measured", type=click.Path(path_type=Path))
@click.option("--by", metavar="COLUMN,...", help="Errors by these columns too; kind is dense or moe.")
@click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help="Only rows that are dense, moe, or have COLUMN=VALUE,VALUE; several: all of them.",
)
@click.option(
    "--constants",
    type=click.Choice([kind.value for kind in ConstantsKind]),
    help="Of engines: none, those shipped, or from the other half of the rows. Default: shipped; none for "
    "published values in long format, for which none are shipped.",
)
@click.option(
    "--split",
    type=click.Choice([split.value for split in Split]),
    default=Split.DEPLOYMENT.value,
    show_default=True,
    help="What rows of one half share: the whole deployment, or its load too.",
)
@click.option("--leave-out", metavar="FAMILY", help="Predict this family with constants of all others.")
@click.option("--anchor", is_flag=True, help="Give one measured row of each model and engine.")
@engine_profile_option
@click.option(
    "--peer", type=click.Path(path_type=Path), help="Another tool's predictions of these ids (CSV)."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the rows with predictions (CSV)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def validate(
    measured: Path,
    by: str | None,
    where: tuple[str, ...],
    constants: str | None,
    split: str,
    leave_out: str | None,
    anchor: bool,
    engine_profile: Path | None,
    peer: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Predictions against MEASURED, a CSV of measured latencies: errors, and what cannot be predicted.

    Read are files with one row per configuration and load, and published values in long format. What was put
    right in mislabelled rows is counted by rule; a row that cannot be predicted is counted by its reason.

    Columns of the first form: model_path, system (GPU), backend, mode (agg or disagg), isl, osl, concurrency,
    tp_size, and silicon_ttft_ms or silicon_tpot_ms. Where they count: id, backend_version, gemm_quant_mode,
    moe_quant_mode (else precision), pp_size, attention_dp_size, moe_tp_size, moe_ep_size, n_gpus_total, and
    origin, the benchmark. With mode disagg: prefill_ and decode_ before num_workers and each size.

    Columns of the long format: id, group, model, gpu, n_gpus, parallelism, disagg, framework, precision, isl,
    osl, load_kind, load_value, metric, value, unit, convention, source, date, status, notes.
    """
    for name, path in (("MEASURED", measured), ("-o", output), ("--peer", peer)):
        if path is not None and str(path) == "-":
            raise SpecError(f"{name}: must be a file; standard input and output are not read or written")
    if Split(split) is not Split.DEPLOYMENT and constants != ConstantsKind.CROSSFIT.value:
        raise SpecError("--split: belongs to --constants crossfit")
    if leave_out is not None and constants is not None:
        raise SpecError("--leave-out: fits constants to the other families itself; drop --constants")
    check_outputs((measured, peer, engine_profile), (output,))
    profile = None if engine_profile is None else load_engine_profile(engine_profile)
    with progress(f"predicting {measured.name}"):
        found = compare(
            measured,
            constants=None if constants is None else ConstantsKind(constants),
            split=Split(split),
            leave_out=leave_out,
            anchored=anchor,
            profile=profile,
            where=where,
        )
    columns = tuple(name.strip() for name in by.split(",") if name.strip()) if by else ()
    groups = found.groups(columns) if columns else []
    overall = found.errors()
    other = None if peer is None else peer_errors(found, peer)
    if output is not None:
        write_text_atomic(output, _table(found))
    if as_json:
        echo_json(_document(found, overall, groups, other))
        return
    from planner.report.validation import print_validation  # rich: only where tables are printed

    print_validation(found, overall, groups, other, width())
    if output is not None:
        click.echo(f"wrote {output}", err=True)


def _document(
    found: Comparison,
    overall: Mapping[str, Errors],
    groups: list[tuple[dict[str, str], dict[str, Errors]]],
    other: PeerErrors | None,
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "rows": int(found.chosen.sum()),
        "overall": _errors(overall),
        "groups": [{"key": key, **_errors(errors)} for key, errors in groups],
        "unpredicted": found.unpredicted,
        "repairs": dict(found.repairs),
        "fitted_to": found.fitted_to,
        "notes": [*found.hints, *found.notes],
    }
    if other is not None:
        document["peer"] = {"name": other.name, "ours": _errors(other.ours), "theirs": _errors(other.theirs)}
    return document


def _errors(errors: Mapping[str, Errors]) -> dict[str, Any]:
    """Both latencies always, other kinds where there are any; nothing measured is n = 0."""
    kinds = dict.fromkeys((TPOT, TTFT, *errors))
    return {kind: asdict(errors[kind]) if kind in errors else {"n": 0} for kind in kinds}


def _table(found: Comparison) -> str:
    """The input's columns with predictions, their 80 % intervals and reasons."""
    text = io.StringIO()
    added = [f"predicted_{kind}{_unit(kind)}" for kind in found.series]
    spreads = [f"{kind}_log_sd" for kind in found.series]
    writer = csv.writer(text, lineterminator="\n")
    taken_for = ASSUMED if any(found.assumed) else ()
    writer.writerow([*found.columns, *added, *spreads, *(f"assumed_{name}" for name in taken_for), "reason"])
    predicted: list[dict[str, tuple[float, float]]] = [{} for _ in found.cells]
    for kind, series in found.series.items():
        scale = MILLI if kind in (TPOT, TTFT) and _unit(kind) else 1.0
        for row, value, spread in zip(series.rows, series.predicted, series.log_sd, strict=True):
            predicted[row].setdefault(kind, (value / scale if found.in_seconds else value, spread))
    for row, cells in enumerate(found.cells):
        if not found.chosen[row]:
            continue
        values = [predicted[row].get(kind, (math.nan, math.nan)) for kind in found.series]
        writer.writerow(
            [
                *(cells.get(name, "") for name in found.columns),
                *(_cell(value) for value, _ in values),
                *(_cell(spread) for _, spread in values),
                *(found.assumed[row].get(name, "") for name in taken_for),
                found.reasons[row],
            ]
        )
    return text.getvalue()


def _unit(kind: str) -> str:
    return "_ms" if kind in (TPOT, TTFT) else ""


def _cell(value: float) -> str:
    return "" if not math.isfinite(value) else f"{value:.6g}"
