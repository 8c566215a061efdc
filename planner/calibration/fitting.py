"""Coefficients of one operator from its samples: robust, bounded, and open about what the samples do not say.

Least squares on logarithms of predicted over measured times, in logarithms of the coefficients, with a loss
that grows linearly for samples far off (soft L1 beyond 10 %), so that a few glitches do not decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from planner.arrays import FloatArray
from planner.calibration.forms import Coefficient, Form, Peaks, form_of
from planner.errors import SpecError
from planner.roofline import EFFICIENCY_LIMIT
from planner.samples import ALL_AXES, Samples
from planner.units import PERCENT

FEWEST_SAMPLES = 2
"""Fewer say nothing of a coefficient: one point fits every line."""
ENOUGH_SAMPLES = 24
"""With fewer, coefficients are drawn to those of other GPUs (three times their spread, so weakly)."""
_LOSS_SCALE = 0.1  # log error beyond which a sample counts less
_EXPONENT_STARTS = (1.3, 2.0, 4.0)
_INSENSITIVE = 0.02
"""A coefficient whose doubling moves no sample by more than this share is not identified. [1]"""
_MAD_TO_SD = 1.4826
_LEAST_LOG_SD = 0.02
_BEATEN_SHARE = 0.05
"""Samples beyond the peaks that are glitches; more of them mean a wrong peak or a wrong benchmark. [1]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RegimeResiduals:
    """Residuals of the samples that one term of the form decides: fixed times, traffic, or arithmetic."""

    points: int
    median_abs_error: float
    bias: float
    log_sd: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Residuals:
    """How well a form fits the samples that it was fitted to; errors are predicted over measured, less 1.

    Attributes
    ----------
    points, left_out : int
        Samples used, and those that were no times.
    ranges : mapping of str to (float, float)
        Smallest and largest value along each axis.
    repeatability : float
        Median spread of the repetitions; nan where unknown. [1]
    regimes : mapping of str to RegimeResiduals
        Of samples bound by "latency", "memory" and "compute".
    """

    points: int
    left_out: int
    median_abs_error: float
    p90_abs_error: float
    bias: float
    log_sd: float
    ranges: Mapping[str, tuple[float, float]]
    repeatability: float
    regimes: Mapping[str, RegimeResiduals] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Coefficients in SI units by name, their residuals, and what a reader has to know.

    Attributes
    ----------
    unidentified : tuple of str
        Coefficients of which the samples say nothing: taken from elsewhere.
    at_bounds : tuple of str
        Coefficients at a bound of the fit.
    """

    values: Mapping[str, float]
    residuals: Residuals
    unidentified: tuple[str, ...] = ()
    at_bounds: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def fit(
    samples: Samples,
    peaks: Peaks,
    *,
    prior: Mapping[str, float] | None = None,
    cache_bytes: float = 0.0,
    highest: Mapping[str, float] | None = None,
    fixed: Mapping[str, float] | None = None,
    checked: bool = True,
) -> Fit:
    """Fit the form of an operator to its samples.

    Parameters
    ----------
    samples : Samples
        Entries that are no time (nan, infinite, zero, negative) are left out and counted.
    peaks : Peaks
        What efficiencies are shares of.
    prior : mapping of str to float, optional
        Coefficients that are taken for those the samples do not tell, and to which fits of few samples are
        drawn; default: typical ones.
    cache_bytes : float
        Samples that move less than three times this may have been measured in the last-level cache, and
        may beat the peaks. [B]
    highest : mapping of str to float, optional
        Bounds from above that are closer than the form's.
    fixed : mapping of str to float, optional
        Coefficients that are not fitted.
    checked : bool
        Whether samples that beat the peaks are left out or refused. Experts that are visited unevenly may:
        the form counts those that even visits hit.

    Raises
    ------
    SpecError
        Fewer than two samples, or samples that beat the peaks.
    """
    form = form_of(samples.operator)
    usable = np.isfinite(samples.time) & (samples.time > 0)
    kept = samples.part(usable)
    label = label_of(samples)
    if len(kept) < FEWEST_SAMPLES:
        raise SpecError(
            f"{label}: a fit needs at least {FEWEST_SAMPLES} times above 0, got {len(kept)} "
            f"of {len(samples)} (measure more cases)"
        )
    kept, glitches = _within_peaks(form, kept, peaks, cache_bytes) if checked else (kept, 0)
    known = fixed or {}
    free = [c for c in _free(form, kept, highest or {}) if c.name not in known]
    start = {**_typical(form, prior), **known}
    values = _solved(form, kept, peaks, free, start, len(kept) < ENOUGH_SAMPLES)
    unknown = _insensitive(form, kept, peaks, free, values, start)
    if unknown:
        free = [c for c in free if c.name not in unknown]
        values = _solved(form, kept, peaks, free, start, len(kept) < ENOUGH_SAMPLES)
    return Fit(
        values=values,
        residuals=_residuals(form, kept, peaks, values, len(samples) - len(kept)),
        unidentified=unknown,
        at_bounds=tuple(c.name for c in free if _at_bound(c, values[c.name])),
        notes=_notes(len(kept), glitches),
    )


def label_of(samples: Samples) -> str:
    """Name of the samples in messages."""
    return str(samples.operator) if samples.dtype is None else f"{samples.operator}.{samples.dtype}"


def predicted(samples: Samples, peaks: Peaks, values: Mapping[str, float]) -> FloatArray:
    """Times of samples' cases by fitted coefficients. [s]"""
    return np.asarray(form_of(samples.operator).time(values, samples, peaks), dtype=np.float64)


def _notes(count: int, glitches: int) -> tuple[str, ...]:
    few = f"Only {count} samples: drawn to the coefficients of other GPUs." if count < ENOUGH_SAMPLES else ""
    beaten = f"{glitches} samples that beat the peaks were left out." if glitches else ""
    return tuple(note for note in (few, beaten) if note)


def _within_peaks(form: Form, samples: Samples, peaks: Peaks, cache_bytes: float) -> tuple[Samples, int]:
    """Samples without glitches that beat the peaks, and how many there were.

    Raises
    ------
    SpecError
        If there are more than glitches.
    """
    least = form.least(samples, peaks)
    reached = least / samples.time
    beating = reached > EFFICIENCY_LIMIT
    cached = least * peaks.bandwidth < 3 * cache_bytes
    wrong = beating & ~cached
    if wrong.sum() > max(1.0, _BEATEN_SHARE * len(samples)):
        worst = int(np.argmax(np.where(wrong, reached, 0.0)))
        case = ", ".join(f"{axis} {values[worst]:g}" for axis, values in samples.axes.items())
        raise SpecError(
            f"{label_of(samples)}: {wrong.sum()} of {len(samples)} samples beat the stated peaks, the worst "
            f"by a factor of {reached[worst]:.2f} ({case}); no kernel does. Either the peak is too low (a "
            "figure of another board, or of fewer bits), or the benchmark is wrong (inputs left in the "
            "cache, work that was skipped, a clock read before the device was done)"
        )
    kept = samples.part(~beating)
    if len(kept) < FEWEST_SAMPLES:
        raise SpecError(f"{label_of(samples)}: all samples beat the stated peaks: a wrong peak or benchmark")
    return kept, int(beating.sum())


def _free(form: Form, samples: Samples, highest: Mapping[str, float]) -> list[Coefficient]:
    """Coefficients that this form has for these samples, within their bounds."""
    quantised = "quantize" in samples.axes and bool(np.any(samples.axes["quantize"] > 0))
    return [
        replace(c, high=min(c.high, highest.get(c.name, c.high)))
        for c in form.coefficients
        if quantised or c.name != "quantization_efficiency"
    ]


def _typical(form: Form, prior: Mapping[str, float] | None) -> dict[str, float]:
    known = prior or {}
    return {
        c.name: float(np.clip(known.get(c.name, c.typical) or c.low, c.low, c.high))
        for c in form.coefficients
    }


def _solved(
    form: Form,
    samples: Samples,
    peaks: Peaks,
    free: Sequence[Coefficient],
    start: Mapping[str, float],
    drawn: bool,
) -> dict[str, float]:
    """The best of several starts; coefficients that are not free keep their start."""
    fixed = dict(start)
    if not any(c.name == "quantization_efficiency" for c in free):
        fixed.pop("quantization_efficiency", None)
    if not free:
        return fixed
    low = np.log([c.low for c in free])
    high = np.log([c.high for c in free])
    centre = np.log([fixed[c.name] for c in free])
    width = np.array([3 * c.log_sd for c in free])
    measured = np.log(samples.time)
    pull = _LOSS_SCALE if drawn else 0.0

    def values_of(x: FloatArray) -> dict[str, float]:
        return fixed | {c.name: float(v) for c, v in zip(free, np.exp(x), strict=True)}

    def errors(x: FloatArray) -> FloatArray:
        log_ratio = np.log(np.asarray(form.time(values_of(x), samples, peaks))) - measured
        return np.concatenate([log_ratio, pull * (x - centre) / width])

    exponents = _EXPONENT_STARTS if any(c.name == "norm_exponent" for c in free) else (None,)
    found = []
    for exponent in exponents:
        begin = centre.copy()
        for i, c in enumerate(free):
            if c.name == "norm_exponent" and exponent is not None:
                begin[i] = np.log(exponent)
        begin = np.clip(begin, low + 1e-6, high - 1e-6)
        found.append(
            least_squares(errors, begin, bounds=(low, high), loss="soft_l1", f_scale=_LOSS_SCALE, xtol=1e-10)
        )
    best = min(found, key=lambda solution: float(solution.cost))
    return values_of(best.x)


def _insensitive(
    form: Form,
    samples: Samples,
    peaks: Peaks,
    free: Sequence[Coefficient],
    values: Mapping[str, float],
    start: Mapping[str, float],
) -> tuple[str, ...]:
    """Coefficients whose doubling, or return to their start, moves hardly any time: the samples are silent.

    One that the fit drove to almost nothing moves no time when doubled, but is known to be small.
    """
    base = np.asarray(form.time(values, samples, peaks))
    unknown = []
    for c in free:
        others = (values[c.name] / 2, values[c.name] * 2, start[c.name])
        times = [np.asarray(form.time({**values, c.name: other}, samples, peaks)) for other in others]
        if max(float(np.max(np.abs(np.log(time / base)))) for time in times) < _INSENSITIVE:
            unknown.append(c.name)
    return tuple(unknown)


def _at_bound(c: Coefficient, value: float) -> bool:
    return value <= c.low * 1.001 or value >= c.high / 1.001


def _residuals(
    form: Form, samples: Samples, peaks: Peaks, values: Mapping[str, float], left_out: int
) -> Residuals:
    ratio = np.asarray(form.time(values, samples, peaks)) / samples.time
    known = samples.spread[np.isfinite(samples.spread)]
    return Residuals(
        points=len(samples),
        left_out=left_out,
        median_abs_error=float(np.median(np.abs(ratio - 1))),
        p90_abs_error=float(np.percentile(np.abs(ratio - 1), 0.9 * PERCENT)),
        bias=float(np.median(ratio) - 1),
        log_sd=max(robust_sd(np.log(ratio)), _LEAST_LOG_SD),
        ranges={
            axis: (float(samples.axes[axis].min()), float(samples.axes[axis].max()))
            for axis in ALL_AXES
            if axis in samples.axes
        },
        repeatability=float(np.median(known)) if len(known) else np.nan,
        regimes=_by_regime(ratio, regimes_of(form, samples, peaks, values)),
    )


REGIMES = ("latency", "memory", "compute")


def regimes_of(form: Form, samples: Samples, peaks: Peaks, values: Mapping[str, float]) -> NDArray[np.str_]:
    """What decides each sample's time: one of :data:`REGIMES`, latency where fixed times are half of it."""
    unbound = 1.0 / np.finfo(np.float64).eps
    rates = [name for name in values if name.endswith("_efficiency")]
    fast = dict.fromkeys(rates, unbound)
    total = np.asarray(form.time(values, samples, peaks))
    fixed = np.asarray(form.time({**values, **fast}, samples, peaks))
    kept = {name: values[name] for name in rates if name == "compute_efficiency"}
    arithmetic = np.asarray(form.time({**values, **fast, **kept}, samples, peaks)) - fixed
    traffic = np.asarray(form.time({**values, **dict.fromkeys(kept, unbound)}, samples, peaks)) - fixed
    busy = np.where(arithmetic > traffic, "compute", "memory")
    return np.asarray(np.where(fixed > total / 2, "latency", busy))


def _by_regime(ratio: FloatArray, regimes: NDArray[np.str_]) -> dict[str, RegimeResiduals]:
    found = {}
    for name in REGIMES:
        part = ratio[regimes == name]
        if len(part):
            found[name] = RegimeResiduals(
                points=len(part),
                median_abs_error=float(np.median(np.abs(part - 1))),
                bias=float(np.median(part) - 1),
                log_sd=max(robust_sd(np.log(part)), _LEAST_LOG_SD),
            )
    return found


def robust_sd(values: FloatArray, centre: float | None = None) -> float:
    """1.4826 times the median distance from the median: the standard deviation, of normal values."""
    middle = float(np.median(values)) if centre is None else centre
    return float(_MAD_TO_SD * np.median(np.abs(values - middle)))
