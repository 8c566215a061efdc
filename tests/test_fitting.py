"""Constants fitted to measurements that are made from known ones: found again, level by level."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from planner.arrays import FloatArray
from planner.closed_loop import joined
from planner.documents.measured_file import read_measured
from planner.specs import NO_CONSTANTS, ClassKey, Constants, FittedConstants
from planner.validation.classes import class_of, is_wave, levels, predict_loops
from planner.validation.fitting import Sample, fit
from planner.validation.points import points_of

POINTS = points_of(read_measured(Path(__file__).parent / "golden" / "measured_rows.csv").rows)
ROWS = [POINTS.rows[i] for i in POINTS.index]
WAVE = np.array([is_wave(row) for row in ROWS])
TRUE = Constants(
    step=1.2e-3,
    sequence=12e-6,
    decode_scale=0.93,
    prefill_scale=1.12,
    fixed=0.03,
    services=1.2,
    steps=2.0,
    first_wave=0.06,
)
SLOW = ("vllm", "2880 wide, 36 layers, 201088 tokens")
"""The one family whose kernels take longer than those of the others."""
FACTOR = 1.12
FACTORS = np.array([FACTOR if family == SLOW else 1.0 for family in POINTS.families])
TRUTH = predict_loops(POINTS.table, [TRUE] * len(ROWS), WAVE, FACTORS)


def noisy(values: FloatArray, rng: np.random.Generator, noise: float, outliers: float) -> FloatArray:
    off = np.exp(noise * rng.standard_normal(len(values)))
    return values * off * np.where(rng.random(len(values)) < outliers, 3.0, 1.0)


def sample_of(
    index: np.ndarray, *, seed: int = 0, noise: float = 0.05, outliers: float = 0.03, by: float = 1.0
) -> Sample:
    """Measurements of some golden rows, some of them several times, made from the true constants."""
    rng = np.random.default_rng(seed)
    return Sample(
        ids=tuple(f"{ROWS[i].id} {n}" for n, i in enumerate(index)),
        table=POINTS.table.part(index),
        keys=tuple(class_of(ROWS[i]) for i in index),
        families=tuple(POINTS.families[i] for i in index),
        wave=WAVE[index],
        ttft=by * noisy(TRUTH.ttft[index], rng, noise, outliers),
        tpot=by * noisy(TRUTH.tpot[index], rng, noise, outliers),
    )


def both(one: Sample, other: Sample) -> Sample:
    together = {
        f.name: (
            np.concatenate([getattr(one, f.name), getattr(other, f.name)])
            if isinstance(getattr(one, f.name), np.ndarray)
            else getattr(one, f.name) + getattr(other, f.name)
        )
        for f in fields(Sample)
        if f.name not in ("table", "start", "queue")
    }
    return Sample(table=joined([one.table, other.table]), **together)


def predicted(
    fitted: FittedConstants, keys: tuple[ClassKey, ...] | None = None
) -> tuple[FloatArray, FloatArray]:
    """TTFT and TPOT of the golden rows with fitted constants."""
    keys = tuple(class_of(row) for row in ROWS) if keys is None else keys
    constants = [fitted.constants(key) for key in keys]
    factors = np.array([fitted.factor(family) or 1.0 for family in POINTS.families])
    state = predict_loops(POINTS.table, constants, WAVE, factors)
    return state.ttft, state.tpot


def off(values: FloatArray, truth: FloatArray) -> FloatArray:
    return np.abs(values / truth - 1.0)


ALL = np.arange(len(ROWS))
OFTEN = np.tile(ALL, 4)


@pytest.fixture(scope="module", params=[0, 1])
def fitted(request) -> FittedConstants:
    return fit(sample_of(OFTEN, seed=request.param))


# --------------------------------------------------------------------------------------------
# Truth


def test_predictions_are_those_of_the_true_constants(fitted):
    ttft, tpot = predicted(fitted)
    assert np.median(off(tpot, TRUTH.tpot)) < 0.02
    assert np.median(off(ttft, TRUTH.ttft)) < 0.03
    assert np.max(off(tpot, TRUTH.tpot)) < 0.10


def test_one_measurement_of_each_row_is_enough_for_three_percent():
    ttft, tpot = predicted(fit(sample_of(ALL, seed=2)))
    assert np.median(off(tpot, TRUTH.tpot)) < 0.03
    assert np.median(off(ttft, TRUTH.ttft)) < 0.03


@pytest.mark.parametrize("name", ["decode_scale", "prefill_scale"])
def test_scales_are_found(fitted, name):
    for level in ((), ("vllm",), ("sglang",), ("trtllm",)):
        assert getattr(fitted.classes[level], name) == pytest.approx(getattr(TRUE, name), rel=0.05)


def test_factors_of_models_are_found(fitted):
    for family, factor in fitted.factors.items():
        together = factor * fitted.classes[family[:1]].decode_scale
        assert together == pytest.approx(TRUE.decode_scale * (FACTOR if family == SLOW else 1.0), rel=0.05)
    assert max(fitted.factors, key=fitted.factors.__getitem__) == SLOW


def test_host_times_and_the_protocol_are_found(fitted):
    for level in ((), ("vllm",)):
        found = fitted.classes[level]
        assert found.step == pytest.approx(TRUE.step, abs=0.3e-3)
        assert found.sequence == pytest.approx(TRUE.sequence, abs=6e-6)
        assert found.fixed == pytest.approx(TRUE.fixed, abs=0.01)
        assert found.services == pytest.approx(TRUE.services, rel=0.1)
        assert found.steps == pytest.approx(TRUE.steps, rel=0.25)
        assert found.first_wave == pytest.approx(TRUE.first_wave, rel=0.1)


def test_outliers_hardly_matter():
    plain, wild = (predicted(fit(sample_of(OFTEN, outliers=share)))[1] for share in (0.0, 0.06))
    assert np.median(off(wild, plain)) < 0.02  # their mean is 12 % higher


def test_a_fit_depends_on_the_rows_alone():
    assert fit(sample_of(ALL)) == fit(sample_of(ALL))


# --------------------------------------------------------------------------------------------
# Levels


def test_every_level_has_constants_and_counts(fitted):
    keys = [class_of(ROWS[i]) for i in OFTEN]
    assert set(fitted.classes) == {level for key in keys for level in levels(key)}
    assert fitted.counts == Counter(level for key in keys for level in levels(key))
    assert fitted.counts[()] == len(OFTEN) == len(fitted.rows)
    assert set(fitted.factors) == set(POINTS.families)


VLLM = np.flatnonzero([row.engine == "vllm" and not row.version for row in ROWS])
NEW: ClassKey = ("vllm", "9.9", "another benchmark")


def with_new(count: int, by: float) -> FittedConstants:
    """Fit with `count` rows of a new version that measures `by` times as much."""
    some = np.resize(VLLM, count)
    new = replace(sample_of(some, seed=7, noise=0.02, outliers=0.0, by=by), keys=(NEW,) * count)
    return fit(both(sample_of(np.tile(VLLM, 3), outliers=0.0), new))


def tpot_of(fitted: FittedConstants, level: ClassKey) -> FloatArray:
    """TPOT of the rows that `with_new` draws from, with the constants of a level."""
    factors = np.array([fitted.factor(POINTS.families[i]) for i in VLLM])
    return predict_loops(
        POINTS.table.part(VLLM), [fitted.classes[level]] * len(VLLM), WAVE[VLLM], factors
    ).tpot


@pytest.mark.parametrize(("count", "most"), [(1, 0.05), (3, 0.10)])
def test_few_rows_move_little(count, most):
    """Rows of a new version, 15 % above all others, against priors: kernels hardly move, host times do."""
    found = with_new(count, 1.15)
    moved = tpot_of(found, NEW) / tpot_of(found, NEW[:1]) - 1.0
    assert 0.0 < np.median(moved) < most
    own, above = found.classes[NEW], found.classes[NEW[:1]]
    assert above.decode_scale < own.decode_scale < 1.02 * above.decode_scale


def test_many_rows_are_followed():
    found = with_new(4 * len(VLLM), 1.15)
    assert np.median(off(tpot_of(found, NEW), 1.15 * TRUTH.tpot[VLLM])) < 0.02
    old = class_of(ROWS[VLLM[0]])
    assert np.median(off(tpot_of(found, old), TRUTH.tpot[VLLM])) < 0.03


def test_three_rows_of_the_same_kind_stay_close_to_the_level_above():
    found = with_new(3, 1.0)
    own, above = found.classes[NEW], found.classes[NEW[:1]]
    assert np.median(off(tpot_of(found, NEW), tpot_of(found, NEW[:1]))) < 0.025
    assert own.decode_scale == pytest.approx(above.decode_scale, rel=0.01)
    assert own.prefill_scale == pytest.approx(above.prefill_scale, rel=0.04)


def test_host_times_are_never_negative():
    """Measured is less than kernels alone take."""
    bare = predict_loops(POINTS.table, [NO_CONSTANTS] * len(ROWS), WAVE)
    sample = replace(sample_of(ALL), tpot=0.7 * bare.tpot, ttft=0.3 * bare.ttft)
    for constants in fit(sample).classes.values():
        assert min(constants.step, constants.sequence, constants.fixed) >= 0.0
        assert min(constants.decode_scale, constants.prefill_scale, constants.services, constants.steps) > 0


@pytest.mark.parametrize("name", ["ttft", "tpot"])
def test_a_latency_that_was_not_measured_is_no_evidence(name):
    sample = sample_of(OFTEN)
    empty = replace(sample, **{name: np.full(len(OFTEN), np.nan)})
    found = predicted(fit(empty))
    assert np.isfinite(found).all()
    other = 1 if name == "ttft" else 0
    assert np.median(off(found[other], (TRUTH.ttft, TRUTH.tpot)[other])) < 0.03
    half = replace(sample, ttft=np.where(np.arange(len(OFTEN)) % 2, np.nan, sample.ttft))
    ttft, tpot = predicted(fit(half))
    assert np.median(off(tpot, TRUTH.tpot)) < 0.03
    assert np.median(off(ttft, TRUTH.ttft)) < 0.03


def test_without_any_measurement_nothing_moves():
    nothing = np.full(len(VLLM), np.nan)
    found = fit(replace(sample_of(VLLM), ttft=nothing, tpot=nothing))
    for constants in found.classes.values():
        for field in fields(Constants):
            expected = getattr(NO_CONSTANTS, field.name)
            assert getattr(constants, field.name) == pytest.approx(expected, abs=1e-6)
    assert set(np.round(list(found.factors.values()), 6)) == {1.0}


# --------------------------------------------------------------------------------------------
# Which level a class has

KNOWN: dict[ClassKey, int] = {
    (): 100,
    ("sglang",): 60,
    ("sglang", "0.5.1.post1", "a"): 34,
    ("sglang", "0.5.9", "a"): 22,
    ("sglang", "0.5.9", "b"): 25,
    ("sglang", "0.5.14", "a"): 20,
    ("sglang", "glm5-hopper", "a"): 24,
    ("vllm",): 40,
    ("vllm", "unstated", "a"): 40,
}
GIVEN = FittedConstants(
    classes={key: Constants(step=1e-3 * n) for n, key in enumerate(KNOWN)}, counts=KNOWN, factors={SLOW: 1.1}
)


def test_a_class_of_few_rows_does_not_speak_for_other_versions():
    few = replace(GIVEN, counts={**KNOWN, ("sglang", "0.5.14", "a"): 19})
    assert few.level(("sglang", "0.5.23", "")) == ("sglang", "0.5.9", "b")
    assert few.level(("sglang", "0.5.14", "")) == ("sglang", "0.5.14", "a")  # for its own it does


@pytest.mark.parametrize(
    ("key", "level"),
    [
        (("sglang", "0.5.9", "a"), ("sglang", "0.5.9", "a")),
        (("sglang", "0.5.9", "c"), ("sglang", "0.5.9", "b")),  # the benchmark with the most rows
        (("sglang", "0.5.9"), ("sglang", "0.5.9", "b")),
        (("sglang", "0.5.10", "a"), ("sglang", "0.5.9", "b")),  # the last one before it
        (("sglang", "0.5.13", "a"), ("sglang", "0.5.9", "b")),
        (("sglang", "0.5.23", ""), ("sglang", "0.5.14", "a")),
        (("sglang", "0.5.6.post2", "a"), ("sglang", "0.5.1.post1", "a")),
        (("sglang", "0.5.0", "a"), ("sglang", "0.5.1.post1", "a")),  # or the first after it
        (("sglang", "0.6.0", "a"), ("sglang",)),  # another release
        (("sglang", "glm5-hopper", "b"), ("sglang", "glm5-hopper", "a")),
        (("sglang", "glm6-hopper", "a"), ("sglang",)),
        (("sglang", "", ""), ("sglang",)),
        (("sglang",), ("sglang",)),
        (("vllm", "0.33.0", "a"), ("vllm",)),
        (("vllm", "unstated", "b"), ("vllm", "unstated", "a")),
        (("lmdeploy", "0.5.9", "a"), ()),
        ((), ()),
    ],
)
def test_what_nobody_measured_has_the_constants_of_the_nearest_level(key, level):
    assert GIVEN.level(key) == level
    assert GIVEN.constants(key) == GIVEN.classes[level]


def test_nothing_fitted_has_no_level():
    empty = FittedConstants()
    assert empty.level(("vllm", "0.5.9", "a")) is None
    assert empty.constants(("vllm", "0.5.9", "a")) == NO_CONSTANTS
    assert empty.factor(SLOW) is None
    assert GIVEN.factor(SLOW) == 1.1
    assert GIVEN.factor(("trtllm", SLOW[1])) is None


def test_levels_from_all_rows_to_one_class():
    assert levels(("vllm", "0.16.0", "a")) == ((), ("vllm",), ("vllm", "0.16.0", "a"))
