"""Constants of engines from measured rows: host time, factors on kernels, what a benchmark's TTFT counts.

Fitted level by level. All rows give the constants of engines in general, the rows of an engine move them as
far as they have evidence, and those of a version further: few rows move little, and what nobody measured
falls back to the level above. Robust least squares on log errors, so that single rows off by a factor do not
decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from planner.arrays import FloatArray
from planner.closed_loop import LoopState, LoopTable
from planner.specs import NO_CONSTANTS, ClassKey, Constants, FamilyKey, FittedConstants
from planner.units import MICRO, MILLI
from planner.validation.classes import levels, predict_loops

FORM_LOG_SD, FAMILY_LOG_SD, TTFT_LOG_SD = 0.04, 0.10, 0.25
"""Spreads beside that of kernels: of steps with fitted constants, between models, and of a benchmark's TTFT.

Ours, checked by the share of rows that 80 % intervals contain where neither was fitted to.
"""

_UNITS = np.array([1.0 * MILLI, 15.0 * MICRO, 0.03, 0.06, 30.0 * MILLI, 0.5, 1.0, 0.6])
"""How far each constant may lie from the level above: one standard deviation of its prior.

Scales, and the three after the fixed time, in natural logarithm. Kernels of one engine are alike across
versions, while models differ by 0.15.
"""
_FAMILY_PRIOR = 0.15
_LOGARITHMIC = np.array([False, False, True, True, False, True, True, True])
NAMES = tuple(field.name for field in fields(Constants))
_LOWEST = 0.0  # of host times, which are never negative
_FLOOR = np.where(_LOGARITHMIC, -np.inf, _LOWEST)
_TPOT_SD, _TTFT_SD = 0.06, 0.25  # log errors beyond which a row counts less
_FIT_STEPS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Measured loops to fit to; `families` says, for each, whose kernels it runs. Times in seconds.

    `start` and `queue` are those of :func:`predict_loops`; None: its defaults.
    """

    ids: tuple[str, ...]
    table: LoopTable
    keys: tuple[ClassKey, ...]
    families: tuple[FamilyKey, ...]
    wave: NDArray[np.bool_]
    ttft: FloatArray
    tpot: FloatArray
    start: FloatArray | None = None
    queue: FloatArray | None = None

    def predicted(self, constants: Sequence[Constants], factor: FloatArray | float = 1.0) -> LoopState:
        """Latencies with the constants of each loop, and a further factor on all kernels."""
        start = 1.0 if self.start is None else self.start
        queue = 0.0 if self.queue is None else self.queue
        return predict_loops(self.table, constants, self.wave, factor, start, queue)

    def part(self, index: NDArray[np.bool_]) -> Sample:
        """Some of the loops."""

        def taken(values: Sequence[object]) -> tuple[object, ...]:
            return tuple(value for value, kept in zip(values, index, strict=True) if kept)

        return Sample(
            ids=taken(self.ids),  # type: ignore[arg-type]
            table=self.table.part(index),
            keys=taken(self.keys),  # type: ignore[arg-type]
            families=taken(self.families),  # type: ignore[arg-type]
            wave=self.wave[index],
            ttft=self.ttft[index],
            tpot=self.tpot[index],
            start=None if self.start is None else self.start[index],
            queue=None if self.queue is None else self.queue[index],
        )


def fit(sample: Sample, names: Mapping[str, str] | None = None, source: str = "") -> FittedConstants:
    """Constants of every class of `sample` and of the levels above, and factors of its models."""
    classes: dict[ClassKey, Constants] = {}
    factors: dict[FamilyKey, float] = {}
    for depth in range(3):
        for key in sorted({levels(k)[depth] for k in sample.keys}):
            rows = sample.part(np.array([levels(k)[depth] == key for k in sample.keys]))
            above = classes[levels(key)[depth - 1]] if depth else NO_CONSTANTS
            free = sorted(set(rows.families)) if depth == 1 else []
            shift = fit_shift(rows, [above] * len(rows.keys), free, factors)
            classes[key] = shift.moved(above)
            factors |= shift.factors
    return FittedConstants(
        classes=classes,
        factors={key: float(np.exp(value)) for key, value in factors.items()},
        names={} if names is None else names,
        counts=Counter(level for key in sample.keys for level in levels(key)),
        log_sd=FORM_LOG_SD,
        family_log_sd=FAMILY_LOG_SD,
        ttft_log_sd=TTFT_LOG_SD,
        rows=frozenset(sample.ids),
        source=source,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """How far rows move constants from those above, and how sure they are of it.

    Attributes
    ----------
    by : ndarray, shape (constants,)
        In standard deviations of the prior, in the order of :class:`Constants`. [1]
    factors : dict
        Log factors of the families that were free.
    left : ndarray, shape (constants + families,)
        Of the prior's standard deviations, what the rows leave: 1 where they say nothing. [1]
    """

    by: FloatArray
    factors: dict[FamilyKey, float]
    left: FloatArray

    def moved(self, above: Constants) -> Constants:
        """`above`, moved; host times are never negative."""
        return _constants(np.maximum(_vector(above) + self.by * _UNITS, _FLOOR))


NO_SHIFT = Shift(by=np.zeros(len(NAMES)), factors={}, left=np.ones(len(NAMES)))


def fit_shift(
    sample: Sample,
    above: Sequence[Constants],
    free: Sequence[FamilyKey],
    known: Mapping[FamilyKey, float],
    fixed: Sequence[str] = (),
) -> Shift:
    """What all rows of `sample` together move their constants by.

    Parameters
    ----------
    above : sequence of Constants
        Of each row: where it starts from.
    free : sequence of FamilyKey
        Families whose kernels have a factor that is fitted too.
    known : mapping
        Log factors that families start from; 0 for others.
    fixed : sequence of str
        Names of constants that stay.
    """
    priors = {constants: _vector(constants) for constants in set(above)}
    count, width = len(sample.keys), len(NAMES)
    given = np.array([known.get(f, 0.0) for f in sample.families])
    member = np.array([[f == name for f in sample.families] for name in free]).reshape(len(free), count)
    moving = np.array([*(name not in fixed for name in NAMES), *([True] * len(free))])

    def whole(moved: FloatArray) -> FloatArray:
        x = np.zeros(len(moving))
        x[moving] = moved
        return x

    def residuals(moved: FloatArray) -> FloatArray:
        x = whole(moved)
        each = {key: _constants(prior + x[:width] * _UNITS) for key, prior in priors.items()}
        factor = np.exp(given + _FAMILY_PRIOR * (x[width:] @ member))
        state = sample.predicted([each[key] for key in above], factor)
        errors = np.concatenate(
            [
                _errors(state.tpot, sample.tpot) / _TPOT_SD,
                _errors(state.ttft, sample.ttft) / _TTFT_SD,
            ]
        )
        damped = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([damped, moved])

    least = np.min(list(priors.values()), axis=0)
    lowest = np.where(_LOGARITHMIC, -np.inf, (_LOWEST - least) / _UNITS - 1e-9)
    bounds = np.concatenate([lowest, np.full(len(free), -np.inf)])[moving]
    start = np.maximum(np.zeros(len(bounds)), bounds + 1e-6)
    found = least_squares(residuals, start, bounds=(bounds, np.inf), max_nfev=_FIT_STEPS)
    x = whole(found.x)
    left = np.ones(len(moving))
    left[moving] = np.sqrt(np.diag(np.linalg.inv(found.jac.T @ found.jac)))
    factors = dict(zip(free, (_FAMILY_PRIOR * x[width:]).tolist(), strict=True))
    return Shift(by=x[:width], factors=factors, left=left)


def _errors(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    """Log errors; 0 where nothing was measured."""
    known = np.isfinite(measured)
    return np.where(known, np.log(predicted / np.where(known, measured, 1.0)), 0.0)


def _vector(constants: Constants) -> FloatArray:
    values = np.array([getattr(constants, name) for name in NAMES])
    return np.where(_LOGARITHMIC, np.log(np.where(_LOGARITHMIC, values, 1.0)), values)


def _constants(vector: FloatArray) -> Constants:
    values = np.where(_LOGARITHMIC, np.exp(np.where(_LOGARITHMIC, vector, 0.0)), vector)
    return Constants(**{name: float(value) for name, value in zip(NAMES, values, strict=True)})
