"""Calibration with a user's rows: known constants found, nothing moved without evidence, honest spreads."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from calibration_rows import FACTOR, LOADS, PRIOR, TRUE, made, prior_of, run, setup

from planner.arrays import FloatArray
from planner.configuration import Configuration, Load, Replicas, predict
from planner.documents.load_tests import Arrivals
from planner.engines import load_engine
from planner.errors import SpecError
from planner.specs import Constants, Metric, Parallelism, Statistic
from planner.validation.calibration import Calibration, calibrate, fits_of
from planner.validation.evidence import (
    ALL_AT_ONCE,
    NO_LENGTHS,
    NO_LOAD,
    NO_TPOT,
    OVERLOADED,
    TOO_FAST,
    gathered,
    with_load,
)
from planner.validation.holdout import ALL, UNFITTED, Rows, folds

UNSEEN = [(1024, 128, 2.0), (1024, 512, 32.0), (6000, 256, 8.0), (300, 300, 64.0)]


def off(found: Calibration, constants: Constants = TRUE, factor: float = FACTOR) -> FloatArray:
    """Errors of TPOT at loads that no row is of."""
    truth = made(UNSEEN, constants, factor, noise=0.0)
    return np.abs(np.expm1(Rows.of(truth, PRIOR).errors(found.shift).tpot))


@pytest.fixture(scope="module")
def calibrated() -> Calibration:
    return calibrate(made(), PRIOR)


# --------------------------------------------------------------------------------------------
# Truth


def test_true_constants_are_found(calibrated):
    assert calibrated.chosen is ALL
    assert calibrated.before["tpot"].median_ape > 0.15
    assert calibrated.after["tpot"].median_ape < 0.03
    assert calibrated.after["ttft"].median_ape < 0.08
    assert np.max(off(calibrated)) < 0.05
    found = calibrated.constants("vllm", "0.33.0")
    assert found.step == pytest.approx(TRUE.step, abs=0.25e-3)
    together = found.decode_scale * next(iter(calibrated.factors.values()))
    assert together == pytest.approx(TRUE.decode_scale * FACTOR, rel=0.03)


def test_rows_as_predicted_move_nothing():
    rows = made()
    constants, factor = prior_of(rows)
    found = calibrate(made(LOADS, constants, factor, noise=0.03), PRIOR)
    assert found.chosen is UNFITTED
    assert found.constants("vllm", "0.33.0") == PRIOR.constants(("vllm", "0.33.0"))
    assert list(found.factors.values()) == [factor]
    assert any("not predicted better" in note for note in found.notes)


@pytest.mark.parametrize("seed", range(4))
def test_noise_moves_predictions_little(seed):
    rows = made()
    constants, factor = prior_of(rows)
    found = calibrate(made(LOADS[:5], constants, factor, noise=0.08, seed=seed), PRIOR)
    assert np.max(off(found, constants, factor)) < 0.08


def test_one_wild_row_does_not_decide():
    rows = made()
    rows[3] = replace(rows[3], tpot=3 * rows[3].tpot)
    assert np.max(off(calibrate(rows, PRIOR))) < 0.1


def test_calibration_depends_on_the_rows_alone(calibrated):
    again = calibrate(made(), PRIOR)
    assert np.array_equal(again.shift.by, calibrated.shift.by)
    assert again.log_sd == calibrated.log_sd


# --------------------------------------------------------------------------------------------
# What rows do not say


@pytest.mark.parametrize("count", [1, 2])
def test_few_loads_move_nothing(count):
    found = calibrate(made(LOADS[:count] * 4), PRIOR)
    assert found.chosen is UNFITTED
    assert found.loads == count
    assert found.folds == 0
    assert any(f"{count} different load" in note and "at least 3" in note for note in found.notes)


@pytest.mark.slow
def test_rows_at_one_concurrency_are_told_so(calibrated):
    loads = [(isl, osl, 16.0) for isl in (256, 1024, 2048, 4096) for osl in (128, 512)]
    found = calibrate(made(loads), PRIOR)
    assert any("concurrency of 16: host time per step cannot be told" in note for note in found.notes)
    assert not any("cannot be told" in note for note in calibrated.notes)
    assert found.unidentified["step"] > calibrated.identified["step"] + 0.1
    crowded = calibrate(made([(1024, 128.0 + 16 * i, 256.0) for i in range(6)]), PRIOR)
    assert crowded.unidentified["step"] > 0.95  # little beside kernels of 256 sequences


def test_what_is_identified_and_what_is_not(calibrated):
    assert "step" in calibrated.identified
    assert f"factor of {calibrated.evidence[0].case.target.model.name}" in calibrated.identified
    assert "decode_scale" in calibrated.unidentified  # one model: its factor says the same
    assert all(0 < share <= 1.01 for share in (calibrated.identified | calibrated.unidentified).values())


def test_without_ttft_nothing_is_said_of_prompts():
    found = calibrate(made(LOADS[::2], ttft=False), PRIOR)
    assert set(found.after) == {"tpot"}
    assert {"fixed", "services", "steps", "first_wave"} <= set(found.unidentified)
    assert any("no TTFT was measured" in note for note in found.notes)


@pytest.mark.slow
def test_gpus_that_differ_are_told():
    both = made(LOADS[::3], where=setup("h100-sxm")) + made(
        LOADS[::3], TRUE, 1.5 * FACTOR, where=setup("a100-80gb-sxm")
    )
    assert any("GPUs differ in TPOT" in note for note in calibrate(both, PRIOR).notes)


# --------------------------------------------------------------------------------------------
# Held-out rows and spreads


def test_rows_of_one_load_are_held_out_together():
    rows = Rows.of(made(LOADS[:4] * 3), PRIOR)
    parts = folds(rows)
    assert len(parts) == 4
    for part in parts:
        inside = {e.load for e, kept in zip(rows.evidence, part, strict=True) if kept}
        assert len(inside) == 1
        assert inside.isdisjoint(e.load for e, kept in zip(rows.evidence, part, strict=True) if not kept)
    assert np.array_equal(np.sum(parts, axis=0), np.ones(12))


def test_many_loads_are_held_out_in_five_parts():
    loads = [(isl, 128, float(c)) for isl in (256, 512, 1024, 2048) for c in (1, 2, 4, 8)]
    rows = made(loads)
    assert len(folds(Rows.of(rows, PRIOR))) == 5
    ticks: list[int] = []
    calibrate(rows, PRIOR, lambda: ticks.append(1))
    assert len(ticks) == fits_of(rows) == 16


def test_the_spread_is_never_below_that_of_many_rows():
    assert calibrate(made(LOADS[::2] * 8, noise=0.001), PRIOR).log_sd == PRIOR.log_sd


@pytest.mark.slow
def test_few_rows_are_planned_with_a_wider_spread():
    few, many = (calibrate(made(LOADS * n, noise=0.02), PRIOR).log_sd for n in (1, 4))
    assert PRIOR.log_sd < few < math.hypot(PRIOR.log_sd, PRIOR.family_log_sd)
    assert many < few


@pytest.mark.slow
def test_the_spread_contains_four_fifths_of_other_rows():
    other = Rows.of(made(LOADS * 10, noise=0.12, seed=100), PRIOR)
    shares = []
    for seed in range(3):
        found = calibrate(made(LOADS * 3, noise=0.12, seed=seed), PRIOR)
        shares.append(np.mean(np.abs(other.errors(found.shift).tpot) <= 1.2816 * found.log_sd))
    assert 0.72 < np.mean(shares) < 0.9


# --------------------------------------------------------------------------------------------
# Load tests as evidence


def reason_of(**changes) -> str:
    (skipped,) = gathered([run(**changes)], setup(), ()).skipped
    return skipped[1]


def test_times_that_no_gpu_reaches_are_no_evidence():
    """16 GB of weights cross the memory of an H100 in 4.8 ms: 3 ms a token are of another precision."""
    fast = {(Metric.TTFT, Statistic.MEAN): 0.05, (Metric.TPOT, Statistic.MEAN): 0.003}
    assert reason_of(latencies=fast) == TOO_FAST


NO_MEAN = {(Metric.TTFT, Statistic.MEAN): 0.1, (Metric.TPOT, Statistic.P50): 0.01}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"empty": "no request was completed"}, "no request was completed"),
        ({"odd": "a trace was replayed"}, "a trace was replayed"),
        ({"failed": 8}, "more than 5% of its requests failed"),
        ({"prompt": math.nan}, NO_LENGTHS),
        ({"latencies": NO_MEAN}, NO_TPOT),
        ({"osl": 1}, NO_TPOT),
        ({"concurrency": None}, ALL_AT_ONCE),
        ({"concurrency": None, "load_known": False}, NO_LOAD),
        ({"completed": 15}, "fewer than 2 requests per client: little but a first wave"),
        ({"concurrency": None, "request_rate": 4.0, "throughput": 3.0}, OVERLOADED),
        ({"isl": 100_000}, "weights and one sequence do not fit in memory"),
    ],
)
def test_what_is_no_evidence(changes, reason):
    if reason.startswith("weights"):
        (skipped,) = gathered([run(**changes)], setup("l4"), ()).skipped
        assert skipped[1] == reason
        return
    assert reason_of(**changes) == reason


def test_a_run_given_twice_counts_once():
    found = gathered([run(), run(name="copy.json")], setup(), ())
    assert len(found.evidence) == 1
    assert found.reasons == {"repeats another row: the same configuration with the same figures": 1}


def test_results_of_another_model_are_refused():
    with pytest.raises(SpecError, match="was measured with Qwen/Qwen3-32B, which is not --model"):
        gathered([run(model="Qwen/Qwen3-32B")], setup(), ())
    assert gathered([run(model="my-model")], setup(), ()).evidence


def evidence_of(**changes):
    (found,) = gathered([run(**changes)], setup(), ()).evidence
    return found


def test_a_closed_loop_has_a_first_wave_by_its_rounds():
    assert evidence_of(completed=80).start == 1.0
    assert evidence_of(completed=800).start == pytest.approx(0.1)
    assert evidence_of().case.target.clients == 8.0
    assert evidence_of().queue == 0.0


def test_a_stream_is_the_loop_with_as_many_requests_under_way():
    found = evidence_of(concurrency=None, request_rate=4.0, throughput=3.95, completed=4000)
    assert found.case.target.clients == pytest.approx(4.0 * (0.1 + 255 * 0.01))
    assert (found.start, found.queue) == (0.0, 1.0)
    given = {(Metric.TTFT, Statistic.MEAN): 0.1, (Metric.TPOT, Statistic.MEAN): 0.01}
    stay = given | {(Metric.E2E, Statistic.MEAN): 3.0}
    same = evidence_of(concurrency=None, request_rate=4.0, throughput=3.95, completed=4000, latencies=stay)
    assert same.case.target.clients == pytest.approx(12.0)


def test_even_arrivals_do_not_queue_and_odd_ones_say_nothing_of_ttft():
    stream = {"concurrency": None, "request_rate": 4.0, "throughput": 4.0}
    even = evidence_of(**stream, arrivals=Arrivals.CONSTANT)
    assert (even.queue, even.ttft) == (0.0, 0.1)
    assert math.isnan(evidence_of(**stream, arrivals=Arrivals.OTHER).ttft)


def test_a_rate_with_a_limit_is_what_binds():
    stream = evidence_of(request_rate=1.0, concurrency=64.0, throughput=1.0, completed=1000)
    assert stream.case.target.clients == pytest.approx(2.65)
    loop = evidence_of(request_rate=50.0, concurrency=8.0)
    assert loop.case.target.clients == 8.0
    assert math.isnan(loop.ttft)  # waits for the limit are not in it


def test_the_tail_of_a_short_run_is_no_overload():
    """1,000 requests at 4 req/s with 10.6 under way: served are 4 / (1 + 10.6 / 1000)."""
    assert evidence_of(concurrency=None, request_rate=4.0, throughput=3.9, completed=1000)
    assert evidence_of(concurrency=None, request_rate=4.0, throughput=3.2, completed=50)


def test_load_of_files_that_do_not_say_it():
    unknown = run(concurrency=None, load_known=False)
    assert with_load(unknown, 16.0, None).concurrency == 16.0
    assert with_load(unknown, None, 2.0).request_rate == 2.0
    assert with_load(unknown, None, None).load_known is False
    assert with_load(run(), 16.0, None).concurrency == 8.0


@pytest.mark.parametrize("rate", [2.0, 8.0, 14.0])
def test_a_stream_is_predicted_as_predict_does(rate):
    """The loop that stands for an open stream, beside the open stream itself."""
    engine = load_engine("vllm")
    where = setup()
    replicas = Replicas(count=1, gpu=where.gpu, parallelism=Parallelism())
    c = Configuration(model=where.model, precision=where.precision, engine=engine, colocated=replicas)
    asked = predict(c, Load(isl=1024, osl=256, rate=rate))
    latencies = {(Metric.TTFT, Statistic.MEAN): asked.ttft, (Metric.TPOT, Statistic.MEAN): asked.tpot}
    stream = run(concurrency=None, request_rate=rate, throughput=rate, completed=10_000, latencies=latencies)
    rows = Rows.of(gathered([stream], where, ()).evidence, PRIOR)
    constants = Constants(
        step=engine.step_overhead,
        sequence=engine.sequence_overhead,
        decode_scale=engine.decode_scale,
        prefill_scale=engine.prefill_scale,
        first_wave=0.0,
    )
    state = rows.sample.predicted([constants])
    assert float(state.tpot[0]) == pytest.approx(asked.tpot, rel=0.05)
    assert float(state.ttft[0]) == pytest.approx(asked.ttft, rel=0.25)
