"""A calibration as the engine profile that plans take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from planner import __version__
from planner.documents.engine_constants import short
from planner.documents.engine_profile import (
    CalibrationSection,
    EngineProfileDocument,
    HeldOut,
    ProfileModel,
    ResultsFile,
    sections_of,
)
from planner.validation.calibration import Calibration
from planner.validation.evidence import Gathered
from planner.validation.holdout import ALL, BENCHMARK, FACTOR, UNFITTED

MOVED = {
    UNFITTED.name: "nothing",
    BENCHMARK.name: "what the benchmark's TTFT counts, nothing of the engine",
    FACTOR.name: "a factor on all kernels of each model",
    ALL.name: "all constants",
}
"""What each candidate moves, in words."""


def profile_document(
    calibration: Calibration,
    engine: str,
    version: str,
    results: Mapping[str, tuple[int, Sequence[str]]],
    made: datetime,
) -> EngineProfileDocument:
    """What a file of the profile holds.

    Parameters
    ----------
    results : mapping
        By the name of a file: rows of it that count, and reasons of those that do not.
    made : datetime
        When.
    """
    overheads, ttft = sections_of(calibration.constants(engine, version))
    evidence = calibration.evidence
    names = {
        (e.case.target.engine.name, e.case.target.model.shape): e.case.target.model.name for e in evidence
    }
    level = " ".join(calibration.prior.level((engine, version)) or ()) or "all engines"
    return EngineProfileDocument(
        engine=engine,
        version=version,
        overheads=overheads,
        ttft=ttft,
        models=tuple(
            ProfileModel(model=names[family], shape=family[1], factor=short(factor))
            for family, factor in sorted(calibration.factors.items())
        ),
        log_sd=short(calibration.log_sd),
        ttft_log_sd=short(calibration.ttft_log_sd),
        calibration=CalibrationSection(
            date=made.strftime("%Y-%m-%dT%H:%M:%SZ"),
            planner_version=__version__,
            started_from=level,
            moved=MOVED[calibration.chosen.name],
            results=tuple(
                ResultsFile(file=name, rows=rows, skipped=dict(Counter(reasons)))
                for name, (rows, reasons) in results.items()
            ),
            rows=len(evidence),
            ids=tuple(e.id for e in evidence),
            loads=calibration.loads,
            gpus=tuple(sorted({e.case.target.gpu.name for e in evidence})),
            parts=calibration.folds,
            held_out={}
            if not calibration.folds
            else {
                name: HeldOut(
                    rows=after.n,
                    before_median=short(calibration.before[name].median_ape),
                    before_p90=short(calibration.before[name].p90_ape),
                    median=short(after.median_ape),
                    p90=short(after.p90_ape),
                )
                for name, after in calibration.after.items()
            },
            not_identified=tuple(calibration.unidentified),
            notes=calibration.notes,
        ),
    )


def rows_by_file(
    paths: Sequence[Path], owners: Mapping[str, Path], found: Gathered
) -> dict[str, tuple[int, list[str]]]:
    """Rows that count and reasons of the others, by the name of a file; `owners`: the file of each row."""
    counted = [owners[e.id] for e in found.evidence]
    skipped = [(owners[name], reason) for name, reason in found.skipped]
    return {
        path.name: (counted.count(path), [reason for owner, reason in skipped if owner == path])
        for path in paths
    }
