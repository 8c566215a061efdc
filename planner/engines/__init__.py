"""Serving engines: a data file each, constants fitted to measured rows, and rules of what each can run."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from planner.documents.engine import load_engine_file
from planner.documents.engine_constants import load_engine_constants
from planner.documents.names import did_you_mean
from planner.errors import SpecError
from planner.specs import Engine, EngineProfile, FittedConstants, PairCheck, Service, Workload

_FOLDER = Path(str(files(__name__)))
DEFAULT_ENGINE = "vllm"
"""Of files that name none."""
CONSTANTS_FILE = _FOLDER / "constants" / "fitted.yaml"
VERSION_LOG_SD = 0.06
"""Spread between versions of an engine, which counts for one that nobody measured: ours, natural log. [1]"""


def engine_names() -> tuple[str, ...]:
    """Names of the engines that have a data file, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@cache
def load_engine(name: str, version: str | None = None) -> Engine:
    """Data of an engine by its name, in any case, with the constants that measured rows give it.

    Parameters
    ----------
    version : str, optional
        Whose constants count; the rest is of the version in the engine's file, whatever is asked for.
        Default: that version.

    Raises
    ------
    SpecError
        Unknown name.
    """
    engine = estimated_engine(name)
    if version is not None:
        engine = replace(engine, version=version)
    return with_constants(engine, shipped_constants())


def measured_versions(name: str) -> tuple[str, ...]:
    """Versions of an engine that rows were measured with, as they are named there."""
    keys = shipped_constants().classes
    return tuple(sorted({key[1] for key in keys if len(key) > 1 and key[0] == name.lower()}))


def profiled_engine(name: str, profile: EngineProfile | None) -> Engine:
    """Data of an engine, with the constants that a user's measurements give it, where there are any.

    Raises
    ------
    SpecError
        Unknown name, or a profile of another engine.
    """
    if profile is None:
        return load_engine(name)
    engine = load_engine(name, profile.version)
    if profile.engine != engine.name:
        raise SpecError(f"the engine profile is of {profile.engine}, the engine is {engine.name}")
    for shape, factor in profile.factors:
        engine = engine.with_factor(shape, factor)
    return replace(
        engine,
        version=estimated_engine(name).version,  # defaults are of that one, whatever was measured
        step_overhead=profile.constants.step,
        sequence_overhead=profile.constants.sequence,
        decode_scale=profile.constants.decode_scale,
        prefill_scale=profile.constants.prefill_scale,
        log_sd=profile.log_sd,
        fitted=True,
        provenance=profile.provenance,
    )


def engine_of(service: Service) -> Engine:
    """The engine of a service; with a measured point of its model, kernels are as fast as that one says."""
    engine, point = profiled_engine(service.engine, service.profile), service.measured
    engine = loading_prefixes(engine, service.workload)
    if service.overlap is not None:
        engine = replace(engine, transfer=replace(engine.transfer, overlap=service.overlap))
    if not service.node_links:
        engine = replace(engine, transfer=replace(engine.transfer, peer_links=()))
    if service.cross_vendor:
        kept = tuple(rule for rule in engine.pair_rules if rule.check is not PairCheck.VENDOR)
        engine = replace(engine, pair_rules=kept)
    return engine if point is None else engine.with_factor(service.model.shape, point.factor)


def loading_prefixes(engine: Engine, workload: Workload) -> Engine:
    """The engine with prefixes where the workload has them: in HBM, or loaded from elsewhere."""
    if workload.prefix_bandwidth == engine.prefix_bandwidth:
        return engine
    return replace(engine, prefix_bandwidth=workload.prefix_bandwidth)


@cache
def estimated_engine(name: str) -> Engine:
    """Data of an engine as its file has them: nothing of it is fitted to measured rows.

    Raises
    ------
    SpecError
        Unknown name.
    """
    for known in engine_names():
        if known == name.lower():
            return load_engine_file(_FOLDER / f"{known}.yaml")
    meant = did_you_mean(name, engine_names())
    known = f"known: {', '.join(engine_names())}"
    raise SpecError(f"unknown engine {name!r}: {f'{meant} {known}' if meant else known}")


@cache
def shipped_constants() -> FittedConstants:
    """Constants that come with this package."""
    return load_engine_constants(CONSTANTS_FILE)


def with_constants(engine: Engine, fitted: FittedConstants) -> Engine:
    """`engine` with the constants of its version, or of its other versions; unchanged where it has none.

    Of a version that nobody measured the spread between versions is part of the error.
    """
    level = fitted.level((engine.name, engine.version))
    if not level:
        return engine
    constants, rows = fitted.classes[level], fitted.counts[level]
    measured = len(level) > 1 and level[1] == engine.version
    factors = {shape: factor for (name, shape), factor in fitted.factors.items() if name == engine.name}
    of = f"version {level[1]}" if len(level) > 1 else "other versions"
    return replace(
        engine,
        step_overhead=constants.step,
        sequence_overhead=constants.sequence,
        decode_scale=constants.decode_scale,
        prefill_scale=constants.prefill_scale,
        model_factors=tuple(sorted(factors.items())),
        log_sd=fitted.log_sd if measured else math.hypot(fitted.log_sd, VERSION_LOG_SD),
        family_log_sd=fitted.family_log_sd,
        fitted=True,
        provenance=f"{engine.name} {engine.version}: constants fitted to {rows} measured rows of {of}",
    )
