"""Constants of engines from measured rows: host time, factors on kernels, and what a benchmark's TTFT counts.

Fitted level by level. All rows give the constants of engines in general, the rows of an engine move them as far
as they have evidence, and those of a version further: few rows move little, and what nobody measured falls back
to the level above. Robust least squares on log errors, so that single rows off by a factor do not decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from planner.arrays import FloatArray
from planner.closed_loop import HostConstants, LoopState, LoopTable, Protocol, run
from planner.documents.measured_file import MeasuredRow
from planner.units import MICRO, MILLI

ClassKey = tuple[str, ...]
"""An engine, its version and the benchmark; shorter keys stand for all of a kind."""

WAVES = frozenset({("sglang", "NVIDIA aic gap analysis")})
"""Engine and origin of rows whose clients send one request each, all at once: their TTFTs are those of a queue
of all prompts, and grow with the number of clients to match."""


FamilyKey = tuple[str, str]
"""An engine and a model: one set of kernels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Constants:
    """Constants of one class of rows, as :class:`HostConstants` and :class:`Protocol` have them."""

    step: float = 0.0
    sequence: float = 0.0
    decode_scale: float = 1.0
    prefill_scale: float = 1.0
    fixed: float = 0.0
    services: float = 1.0
    steps: float = 0.5
    first_wave: float = 0.05


NONE = Constants()
"""Nothing fitted: kernels alone, and a TTFT that counts what the protocol says."""

_UNITS = np.array([1.0 * MILLI, 15.0 * MICRO, 0.03, 0.08, 30.0 * MILLI, 0.5, 1.0, 0.6])
"""How far each constant may lie from the level above: one standard deviation of its prior.

The scales, and the three after the fixed time, in natural logarithm.
"""
_LOGARITHMIC = np.array([False, False, True, True, False, True, True, True])
_NAMES = tuple(Constants.__dataclass_fields__)
_LOWEST = 0.0  # of host times, which are never negative
_FAMILY_SD = 0.15  # of a family's factor, natural logarithm
_TPOT_SD, _TTFT_SD = 0.06, 0.25  # log errors beyond which a row counts less
_FIT_STEPS = 60


def class_of(row: MeasuredRow) -> ClassKey:
    """The finest class of a row."""
    return (row.engine, row.version or "unstated", row.origin or "unstated")


def levels(key: ClassKey) -> tuple[ClassKey, ...]:
    """A class and those above it, the coarsest first."""
    return ((), key[:1], key)


def is_wave(row: MeasuredRow) -> bool:
    """Whether the row's benchmark is one wave of requests."""
    return (row.engine, row.origin) in WAVES


# --------------------------------------------------------------------------------------------
# Constants as vectors


def _vector(constants: Constants) -> FloatArray:
    values = np.array([getattr(constants, name) for name in _NAMES])
    return np.where(_LOGARITHMIC, np.log(np.where(_LOGARITHMIC, values, 1.0)), values)


def _constants(vector: FloatArray) -> Constants:
    values = np.where(_LOGARITHMIC, np.exp(np.where(_LOGARITHMIC, vector, 0.0)), vector)
    return Constants(**{name: float(value) for name, value in zip(_NAMES, values, strict=True)})


def _columns(each: Sequence[Constants]) -> dict[str, FloatArray]:
    return {name: np.array([getattr(c, name) for c in each]) for name in _NAMES}


def predict_loops(
    table: LoopTable,
    constants: Sequence[Constants],
    wave: NDArray[np.bool_],
    factor: FloatArray | float = 1.0,
) -> LoopState:
    """Latencies of loops with the constants of each, and a further factor on all kernels."""
    c = _columns(constants)
    host = HostConstants(
        step=c["step"],
        sequence=c["sequence"],
        decode_scale=c["decode_scale"] * factor,
        prefill_scale=c["prefill_scale"] * factor,
    )
    protocol = Protocol(
        fixed=c["fixed"],
        services=c["services"],
        steps=c["steps"],
        first_wave=c["first_wave"],
        wave=wave,
    )
    return run(table, host, protocol)


# --------------------------------------------------------------------------------------------
# Fit


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Measured loops to fit to.

    ``families`` names, for each loop, whose kernels it runs: an engine's and a model's.
    """

    table: LoopTable
    keys: tuple[ClassKey, ...]
    families: tuple[FamilyKey, ...]
    wave: NDArray[np.bool_]
    ttft: FloatArray
    tpot: FloatArray

    def part(self, index: NDArray[np.bool_]) -> Sample:
        return Sample(
            table=self.table.part(index),
            keys=tuple(key for key, taken in zip(self.keys, index, strict=True) if taken),
            families=tuple(key for key, taken in zip(self.families, index, strict=True) if taken),
            wave=self.wave[index],
            ttft=self.ttft[index],
            tpot=self.tpot[index],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """Constants by class, and factors on all kernels by family, natural logarithm."""

    classes: Mapping[ClassKey, Constants]
    families: Mapping[FamilyKey, float]

    def constants(self, key: ClassKey) -> Constants:
        """Of a class, or of the finest level above it that has any."""
        return next((self.classes[level] for level in reversed(levels(key)) if level in self.classes), NONE)

    def factor(self, key: FamilyKey) -> float:
        """On kernels of a family; 1 for one that nobody measured."""
        return float(np.exp(self.families.get(key, 0.0)))


UNFITTED = Fitted(classes={}, families={})


def fit(sample: Sample) -> Fitted:
    """Constants of every class of `sample` and of the levels above, and factors of its families."""
    classes: dict[ClassKey, Constants] = {}
    families: dict[FamilyKey, float] = {}
    for depth in range(3):
        for key in sorted({levels(k)[depth] for k in sample.keys}):
            rows = sample.part(np.array([levels(k)[depth] == key for k in sample.keys]))
            above = classes[levels(key)[depth - 1]] if depth else NONE
            free = sorted(set(rows.families)) if depth == 1 else []
            classes[key], found = _fitted(rows, above, free, families)
            families |= found
    return Fitted(classes=classes, families=families)


def _fitted(
    sample: Sample, above: Constants, free: Sequence[FamilyKey], known: Mapping[FamilyKey, float]
) -> tuple[Constants, dict[FamilyKey, float]]:
    """Constants of a class, and factors of the families in `free` with them."""
    prior = _vector(above)
    count, width = len(sample.keys), len(_NAMES)
    given = np.array([known.get(f, 0.0) for f in sample.families])
    member = np.array([[f == name for f in sample.families] for name in free]).reshape(len(free), count)

    def residuals(x: FloatArray) -> FloatArray:
        constants = _constants(prior + x[:width] * _UNITS)
        factor = np.exp(given + _FAMILY_SD * (x[width:] @ member))
        state = predict_loops(sample.table, [constants] * count, sample.wave, factor)
        errors = np.concatenate(
            [
                _errors(state.tpot, sample.tpot) / _TPOT_SD,
                _errors(state.ttft, sample.ttft) / _TTFT_SD,
            ]
        )
        damped = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([damped, x])

    lowest = np.where(_LOGARITHMIC, -np.inf, (_LOWEST - prior) / _UNITS - 1e-9)
    bounds = np.concatenate([lowest, np.full(len(free), -np.inf)])
    start = np.maximum(np.zeros(len(bounds)), bounds + 1e-6)
    x = least_squares(residuals, start, bounds=(bounds, np.inf), max_nfev=_FIT_STEPS).x
    vector = np.maximum(prior + x[:width] * _UNITS, np.where(_LOGARITHMIC, -np.inf, _LOWEST))
    return _constants(vector), dict(zip(free, (_FAMILY_SD * x[width:]).tolist(), strict=True))


def _errors(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    """Log errors; 0 where nothing was measured."""
    known = np.isfinite(measured)
    return np.where(known, np.log(predicted / np.where(known, measured, 1.0)), 0.0)


# --------------------------------------------------------------------------------------------
# Halves


def halves(rows: Sequence[MeasuredRow], *, by_load: bool = False) -> NDArray[np.intp]:
    """0 or 1 for each row, so that rows of one configuration share a half.

    Within every class the configurations alternate, in sorted order: both halves know most classes.

    Parameters
    ----------
    by_load : bool
        Whether lengths and concurrency are part of a configuration. Without, all loads of a deployment
        (model, GPU, engine, version, formats, layout) are in one half: the stricter split.
    """
    keys = [_configuration(row, by_load) for row in rows]
    sides: dict[tuple[str, ...], int] = {}
    seen: dict[ClassKey, int] = {}
    for key, class_key in sorted(set(zip(keys, map(class_of, rows), strict=True))):
        if key not in sides:
            sides[key] = seen.get(class_key, 0) % 2
            seen[class_key] = seen.get(class_key, 0) + 1
    return np.array([sides[key] for key in keys], dtype=np.intp)


def _configuration(row: MeasuredRow, by_load: bool) -> tuple[str, ...]:
    layout = [str(pool) for pool in row.pools]
    load = [f"{row.isl:g}", f"{row.osl:g}", f"{row.concurrency or row.batch_size or 0:g}"] if by_load else []
    return (row.model, row.gpu, row.engine, row.version, row.gemm, row.moe, *layout, *load)
