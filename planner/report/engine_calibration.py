"""A calibration as tables: errors before and after, constants, and what the rows do not say."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from planner.documents.engine_profile import EngineProfileDocument, sections_of
from planner.report.tables import plain_console, plain_table
from planner.validation.calibration import Calibration
from planner.validation.evidence import Gathered, Setup
from planner.validation.holdout import KERNELS_AND_HOST, PROTOCOL, UNFITTED

_TITLES = {
    "step": "host time of a step [ms]",
    "sequence": "host time of a sequence [us]",
    "decode_scale": "factor on kernels of decode steps",
    "prefill_scale": "factor on kernels of prompts",
    "fixed": "benchmark: TTFT of client and front end [ms]",
    "services": "benchmark: services of a prompt in TTFT",
    "steps": "benchmark: steps around a prompt in TTFT",
    "first_wave": "benchmark: wait per further client, in services",
}


def print_calibration(
    found: Calibration,
    document: EngineProfileDocument,
    gathered: Gathered,
    setup: Setup | None,
    width: int,
) -> None:
    """Everything that the calibration says."""
    console = plain_console(width)
    made = document.calibration
    console.print(
        Text(
            f"{document.engine} {document.version}: {made.rows:,} rows, {made.loads:,} different loads, on "
            f"{', '.join(made.gpus)}; started from {made.started_from}"
        )
    )
    if setup is not None:
        console.print(Text(f"taken for: {_said(setup)}"))
    console.print(Text(f"moved: {made.moved}", style="yellow" if found.chosen is UNFITTED else "green"))
    console.print()
    _print_errors(console, found)
    console.print()
    _print_constants(console, found, document)
    console.print(Text(f"spread to plan with: {document.log_sd:.3g} of TPOT, natural logarithm"))
    for reason, count in gathered.reasons.items():
        console.print(Text(f"left out: {count:,} x {reason}"))
    if found.unidentified:
        console.print(Text(f"not identified by these rows: {', '.join(map(_title, found.unidentified))}"))
    for note in found.notes:
        console.print(Text(f"note: {note}"))


def _said(setup: Setup) -> str:
    formats = setup.precision
    pools = [f"{count} x {layout}" for count, layout in setup.pools]
    return (
        f"{setup.model.name}, weights {formats.weights}, KV cache {formats.kv_cache}, "
        f"{' > '.join(pools)} on {setup.gpu.name}"
    )


def _print_errors(console: Console, found: Calibration) -> None:
    how = f"held out in {found.folds} parts" if found.folds else "not held out: too few loads"
    right = ("rows", "before: median", "p90", "calibrated: median", "p90 ")
    table = plain_table(f"error, {how}", *right, right=right)
    for name, after in found.after.items():
        before = found.before[name]
        table.add_row(
            name.upper(),
            f"{after.n:,}",
            f"{before.median_ape:.1%}",
            f"{before.p90_ape:.1%}",
            f"{after.median_ape:.1%}",
            f"{after.p90_ape:.1%}",
        )
    console.print(table)


def _print_constants(console: Console, found: Calibration, document: EngineProfileDocument) -> None:
    right = ("before", "calibrated", "prior's spread left")
    table = plain_table("constant", *right, right=right)
    old = sections_of(found.prior.constants((document.engine, document.version)))
    was, now = (_values(*sections) for sections in (old, (document.overheads, document.ttft)))
    left = found.identified | found.unidentified
    for name in (*KERNELS_AND_HOST, *PROTOCOL):
        share = f"{left[name]:.0%}" if name in left else "kept"
        table.add_row(_title(name), f"{was[name]:.4g}", f"{now[name]:.4g}", share)
    for model in document.models:
        before = found.prior.factor((document.engine, model.shape)) or 1.0
        key = f"factor of {model.model}"
        share = f"{left[key]:.0%}" if key in left else "kept"
        table.add_row(
            f"factor on all kernels of {model.model}", f"{before:.4g}", f"{model.factor:.4g}", share
        )
    console.print(table)


def _title(name: str) -> str:
    return _TITLES.get(name, name)


def _values(overheads: object, ttft: object) -> dict[str, float]:
    """Constants by name in the units of a file."""
    keys = {"step": "step_ms", "sequence": "sequence_us", "fixed": "fixed_ms"}
    found = {}
    for owner, names in ((overheads, KERNELS_AND_HOST), (ttft, PROTOCOL)):
        for name in names:
            found[name] = float(getattr(owner, keys.get(name, name)))
    return found
