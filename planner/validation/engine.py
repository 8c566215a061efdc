"""An engine calibrated with load tests of one configuration, as ``planner calibrate engine`` does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from planner.configuration import Configuration, Replicas
from planner.documents.engine_profile import EngineProfileDocument, profile_of, profile_text
from planner.documents.files import write_text_atomic
from planner.documents.load_tests import read_load_tests
from planner.engines import estimated_engine, profiled_engine, shipped_constants
from planner.errors import SpecError
from planner.results import Result
from planner.specs import Engine
from planner.units import PERCENT
from planner.validation.calibration import Calibration, calibrate
from planner.validation.evidence import Gathered, Setup, gathered, with_load
from planner.validation.holdout import Tick
from planner.validation.profile import profile_document, rows_by_file


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EngineCalibration(Result):
    """Constants of an engine that load tests moved, and the profile that every command takes.

    Attributes
    ----------
    calibration : Calibration
        Constants, errors of held-out rows, and what was not identified.
    profile : EngineProfileDocument
        What a file of it holds.
    gathered : Gathered
        Runs that count, and why others do not.
    setup : Setup
        What was measured.
    """

    calibration: Calibration
    profile: EngineProfileDocument
    gathered: Gathered
    setup: Setup

    @property
    def engine(self) -> Engine:
        """The engine with these constants, as predictions take it."""
        return profiled_engine(self.profile.engine, profile_of(self.profile, "load tests"))

    @property
    def text(self) -> str:
        """The profile as the text of its file (YAML)."""
        return profile_text(self.profile)

    def save(self, path: str | Path) -> None:
        """Write the profile, for ``engine_profile:`` of a scenario or ``--engine-profile``.

        Raises
        ------
        SpecError
            If the file cannot be written.
        """
        write_text_atomic(Path(path), self.text)

    def rows(self) -> list[dict[str, Any]]:
        """Errors of rows that were held out, a row per latency."""
        found = self.calibration
        return [
            {
                "latency": name,
                "rows": after.n,
                "before_median_percent": found.before[name].median_ape * PERCENT,
                "before_p90_percent": found.before[name].p90_ape * PERCENT,
                "median_percent": after.median_ape * PERCENT,
                "p90_percent": after.p90_ape * PERCENT,
            }
            for name, after in found.after.items()
        ]


def calibrate_engine(
    results: str | Path | Sequence[str | Path],
    configuration: Configuration,
    *,
    engine_version: str | None = None,
    concurrency: float | None = None,
    rate: float | None = None,
    on_fit: Tick = lambda: None,
) -> EngineCalibration:
    """Move the constants of an engine as far as load tests of one configuration have evidence.

    Parameters
    ----------
    results : path or sequence of paths
        Files of load tests, as the command takes them.
    configuration : Configuration
        What was measured; constants that come with its engine do not count.
    engine_version : str, optional
        That ran; default: that of the engine's file.
    concurrency, rate : float, optional
        Clients, or Poisson arrivals, of files that do not say theirs. [1, req/s]
    on_fit : callable
        Called after each fit.

    Raises
    ------
    SpecError
        Files that cannot be read or are of another model, pools on several GPU types, no run of use.
    """
    paths = [Path(path) for path in ([results] if isinstance(results, str | Path) else results)]
    setup = _setup_of(configuration, engine_version)
    tests = [with_load(test, concurrency, rate) for path in paths for test in read_load_tests(path)]
    found = gathered(tests, setup, ())
    found.require_some()
    calibration = calibrate(found.evidence, shipped_constants(), on_fit)
    files = rows_by_file(paths, {test.name: test.path for test in tests}, found)
    engine = setup.engine
    document = profile_document(calibration, engine.name, engine.version, files, datetime.now(UTC))
    return EngineCalibration(calibration=calibration, profile=document, gathered=found, setup=setup)


def _setup_of(c: Configuration, version: str | None) -> Setup:
    pools: list[Replicas] = [pool for pool in (c.colocated, c.prefill, c.decode) if pool is not None]
    if len({pool.gpu.name for pool in pools}) > 1:
        raise SpecError(
            "the pools that were measured have to be on one GPU type (measure each type by itself)"
        )
    engine = estimated_engine(c.engine.name)
    return Setup(
        model=c.model,
        gpu=pools[0].gpu,
        engine=engine if version is None else replace(engine, version=version),
        precision=c.precision,
        pools=tuple((pool.count, pool.parallelism) for pool in pools),
    )
