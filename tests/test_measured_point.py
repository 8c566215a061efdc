"""One measured point of a model: the factor it gives, where it is used, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from planner import catalog
from planner.anchoring import LEAST_FACTOR, MOST_FACTOR, measured_point, solved_factor
from planner.configuration import Configuration, Load, Replicas, default_precision, predict
from planner.documents.fleet import fleet_from_text
from planner.documents.plan import dump_plan, plan_from_text
from planner.documents.scenario import scenario_from_text
from planner.engines import engine_of, load_engine
from planner.errors import SpecError
from planner.formulation import questions_of
from planner.operators import ReplicaSet
from planner.specs import Dtype, MeasuredPoint, Parallelism, Precision
from planner.standing import standing_plan
from planner.units import MILLI
from planner.whatif.compare import compare
from planner.workflow import SolveOptions, solve

H100 = catalog.load_gpu("h100-sxm")
MODEL = catalog.load_model("Qwen/Qwen2.5-14B")
ENGINE = replace(load_engine("vllm"), model_factors=(), family_log_sd=0.1)  # nobody measured the model
TP2 = Parallelism(tp=2)
LOAD = {"concurrency": 64.0, "isl": 1024.0, "osl": 1024.0}


def configuration(engine=ENGINE, layout: Parallelism = TP2, precision: Precision | None = None):
    return Configuration(
        model=MODEL,
        precision=precision or default_precision(MODEL),
        engine=engine,
        colocated=Replicas(count=1, gpu=H100, parallelism=layout),
    )


def point(tpot: float, **changes: Any) -> MeasuredPoint:
    given = LOAD | changes
    return measured_point(MODEL, ENGINE, H100, TP2, default_precision(MODEL), tpot=tpot, **given)


# --------------------------------------------------------------------------------------------
# The factor


def test_solved_factor():
    assert solved_factor(lambda f: 0.003 + 0.010 * f, 0.015) == pytest.approx(1.2, rel=1e-9)
    assert solved_factor(lambda f: 0.010 * f, 1.0) == pytest.approx(4.0)
    assert solved_factor(lambda f: 0.010 * f, 1e-6) == pytest.approx(0.25)


@pytest.mark.parametrize("of_predicted", [0.77, 0.93, 1.0, 1.2, 1.7])
def test_the_point_is_predicted_as_measured(of_predicted):
    plain = predict(configuration(), Load(**LOAD))
    found = point(of_predicted * plain.tpot)
    engine = ENGINE.with_factor(MODEL.shape, found.factor)
    anchored = predict(configuration(engine), Load(**LOAD))
    assert anchored.tpot == pytest.approx(of_predicted * plain.tpot, rel=1e-4)
    assert (found.factor > 1) == (of_predicted > 1) or found.factor == pytest.approx(1.0, abs=1e-4)
    spread, narrow = (p.tpot_range[1] / p.tpot_range[0] for p in (plain, anchored))
    assert narrow < spread  # the spread between models is gone


def test_other_loads_and_layouts_move_with_it():
    plain = predict(configuration(), Load(**LOAD))
    engine = ENGINE.with_factor(MODEL.shape, point(1.2 * plain.tpot).factor)
    for layout, load in ((TP2, LOAD | {"concurrency": 4.0}), (Parallelism(tp=4), LOAD)):
        before, after = (predict(configuration(e, layout), Load(**load)) for e in (ENGINE, engine))
        assert 1.1 < after.tpot / before.tpot < 1.3
    stream = {"isl": 1024.0, "osl": 256.0, "rate": 1.0}
    before, after = (predict(configuration(e), Load(**stream)) for e in (ENGINE, engine))
    assert after.tpot > 1.1 * before.tpot


def test_a_factor_that_is_there_already_gives_way():
    """The point says how fast kernels are, whatever was fitted to others' rows before."""
    fitted = ENGINE.with_factor(MODEL.shape, 1.15)
    precision, tpot = default_precision(MODEL), predict(configuration(), Load(**LOAD)).tpot
    both = [measured_point(MODEL, e, H100, TP2, precision, tpot=tpot, **LOAD) for e in (ENGINE, fitted)]
    assert both[0].factor == pytest.approx(both[1].factor, rel=1e-6) == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize(("times", "side"), [(0.2, "below 0.5"), (3.0, "above 2")])
def test_what_kernels_cannot_be_off_by_is_refused(times, side):
    tpot = times * predict(configuration(), Load(**LOAD)).tpot
    with pytest.raises(SpecError, match=side) as refused:
        point(tpot)
    said = str(refused.value)
    assert f"measured TPOT {tpot / MILLI:.4g} ms" in said
    assert "predicted" in said
    for cause in ("format", "version", "speculative", "concurrency"):
        assert cause in said
    assert (LEAST_FACTOR, MOST_FACTOR) == (0.5, 2.0)


def test_a_point_faster_than_the_data_sheet_is_refused():
    """14 billion weights of 16 bits, in the HBM of two GPUs: no kernel is faster, whatever its factor."""
    peak = 14e9 * 2 / (2 * H100.hbm_bandwidth)
    with pytest.raises(SpecError, match=r"below 0\.5 \(with 0\.5, within the GPU's peaks, [\d.]+ ms\)"):
        point(0.9 * peak, concurrency=1.0, isl=16.0)


def test_points_that_cannot_run_are_refused():
    precision = default_precision(MODEL)
    with pytest.raises(SpecError, match=r"cannot have been measured: memory of l4 TP1"):
        measured_point(MODEL, ENGINE, catalog.load_gpu("l4"), Parallelism(), precision, tpot=0.02, **LOAD)
    with pytest.raises(SpecError, match=r"TP 3"):
        measured_point(MODEL, ENGINE, H100, Parallelism(tp=3), precision, tpot=0.02, **LOAD)
    with pytest.raises(SpecError, match=r"exceed the"):
        point(0.02, isl=1e7)
    with pytest.raises(SpecError, match=r"tpot_ms must be a finite number > 0"):
        point(float("nan"))


def test_more_clients_than_fit_are_told():
    fits = predict(configuration(), Load(**LOAD)).max_concurrency
    with pytest.raises(SpecError, match=f"{fits:,} sequences fit"):
        point(1.0, concurrency=10.0 * fits)


# --------------------------------------------------------------------------------------------
# Scenarios

SERVED = {
    "model": "Qwen/Qwen2.5-14B",
    "workload": {"request_rate": 20, "input_tokens": 1000, "output_tokens": 200},
    "slo": {"ttft_ms": {"p99": 2000}, "tpot_ms": {"p99": 60}},
}
FLEET = [{"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "network_gbps_per_gpu": 400}]
GROUPS = [{"phase": "colocated", "gpu": "h100-sxm", "replicas": 2, "max_num_batched_tokens": 2048}]
GIVEN = {"gpu": "h100-sxm", "tp": 2, "concurrency": 64, "isl": 1024, "osl": 1024, "tpot_ms": 13.0}


def loaded(**changes: Any):
    return scenario_from_text(json.dumps(SERVED | {"fleet": FLEET} | changes))


def test_a_scenario_has_it():
    (service,) = loaded(measured=GIVEN).scenario.services
    assert service.measured is not None
    assert service.measured.parallelism == TP2
    assert service.measured.tpot == pytest.approx(0.013)
    engine = engine_of(service)
    assert engine.factor(service.model.shape) == service.measured.factor != 1.0
    (question,) = questions_of(loaded(measured=GIVEN))
    assert question.engine == engine
    (plain,) = loaded().scenario.services
    assert plain.measured is None
    assert engine_of(plain) == load_engine("vllm")


def test_formats_are_those_asked_for_or_its_own():
    asked = {"precision": {"weights": "fp8", "kv_cache": "fp8"}}
    (service,) = loaded(measured=GIVEN, **asked).scenario.services
    assert service.measured.precision == service.precision
    own = GIVEN | {"precision": {"weights": "checkpoint"}}
    (service,) = loaded(measured=own, **asked).scenario.services
    assert service.measured.precision == Precision(weights=Dtype.BF16, kv_cache=Dtype.FP8)


def test_slow_kernels_cost_more_and_the_plan_says_why():
    more = {
        "workload": {"request_rate": 60, "input_tokens": 1000, "output_tokens": 200},
        "options": {"whole_nodes": False},
    }
    slow, fast = (loaded(measured=GIVEN | {"tpot_ms": tpot}, **more) for tpot in (20.0, 10.0))
    plans = [solve(one, SolveOptions(verify=False)) for one in (slow, fast)]
    assert plans[0].cost > plans[1].cost
    factor = slow.scenario.services[0].measured.factor
    (line,) = [text for text in plans[0].provenance if text.startswith("measured point")]
    assert f"factor {factor:.3f} on kernels" in line
    assert line.endswith("given by the user")
    assert plans[0].scenario["measured"]["tpot_ms"] == 20.0
    told = {d.what: (d.before, d.after) for d in compare(*plans).differences}
    assert "tpot_ms 20" in told["measured point"][0]


def test_a_plan_is_read_back_with_it():
    asked = loaded(measured=GIVEN)
    plan = solve(asked, SolveOptions(verify=False))
    standing = standing_plan(plan_from_text(dump_plan(plan)))
    (service,) = asked.scenario.services
    assert standing.fleet.engine == engine_of(service)
    assert standing.fleet.service.measured == service.measured
    plain = solve(loaded(), SolveOptions(verify=False))
    assert not any("measured point" in text for text in plain.provenance)


def test_a_verified_plan_holds():
    plan = solve(loaded(measured=GIVEN))
    assert plan.verification is not None
    assert plan.verification.passed


def test_models_of_one_scenario_have_their_own():
    models = [SERVED | {"name": "a", "measured": GIVEN}, SERVED | {"name": "b"}]
    first, second = scenario_from_text(json.dumps({"models": models, "fleet": FLEET})).scenario.services
    assert first.measured is not None
    assert second.measured is None
    with pytest.raises(SpecError, match="measured"):
        scenario_from_text(json.dumps({"models": models, "fleet": FLEET, "measured": GIVEN}))


def test_fleet_files_have_it():
    text = json.dumps(SERVED | {"groups": GROUPS, "measured": GIVEN})
    fleet = fleet_from_text(text).fleet
    assert fleet.service.measured is not None
    assert fleet.engine == engine_of(fleet.service)
    r = ReplicaSet.of(fleet.service.model, fleet.service.precision, fleet.engine, [(H100, Parallelism())])
    scale = load_engine("vllm").decode_scale
    assert r.engine.decode_scale == pytest.approx(scale * fleet.service.measured.factor)


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        ({"tpot_ms": 1.0}, "measured", "below 0.5"),
        ({"tpot_ms": 500.0}, "measured", "above 2"),
        ({"tpot_ms": 0}, "measured.tpot_ms", "must be > 0"),
        ({"tpot_ms": None}, "measured.tpot_ms", "is required"),
        ({"gpu": "h100-sx"}, "measured.gpu", "did you mean h100-sxm?"),
        ({"tp": 3}, "measured", "TP 3"),
        ({"tp": 0}, "measured.tp", "must be >= 1"),
        ({"gpu": "t4", "tp": 1}, "measured", "cannot have been measured"),
        ({"osl": 1}, "measured.osl", "must be >= 2"),
        ({"concurrency": 0}, "measured.concurrency", "must be >= 1"),
        ({"concurency": 4}, "measured.concurency", "did you mean concurrency?"),
        ({"ttft_ms": 200}, "measured.ttft_ms", "only TPOT is used"),
        ({"precision": {"weights": "fp7"}}, "measured.precision.weights", "fp8"),
    ],
)
@pytest.mark.parametrize("kind", ["scenario", "fleet"])
def test_bad_points(kind, change, key, said):
    """One problem, at its key and its line."""
    entry = {k: v for k, v in (GIVEN | change).items() if v is not None}
    more = {"fleet": FLEET} if kind == "scenario" else {"groups": GROUPS}
    lines = [f"{k}: {json.dumps(v)}" for k, v in (SERVED | more).items()]
    text = "\n".join([*lines, f"measured: {json.dumps(entry)}"])
    with pytest.raises(SpecError) as refused:
        (scenario_from_text if kind == "scenario" else fleet_from_text)(text)
    (problem,) = refused.value.problems
    assert problem.key == key
    assert problem.line == len(lines) + 1
    assert said in str(problem)


def test_the_schema_has_it(planner):
    for name in ("scenario", "fleet"):
        schema = planner("schema", name).facts
        assert "measured" in schema["properties"]
        fields = schema["$defs"]["MeasuredDocument"]
        assert sorted(fields["required"]) == ["concurrency", "gpu", "isl", "osl", "tpot_ms"]


# --------------------------------------------------------------------------------------------
# The command line

BASE = ("predict", "-m", "Qwen/Qwen2.5-14B", "-g", "h100-sxm", "--tp", 2, "--isl", 1024, "--osl", 1024)


def test_predict_goes_through_the_point(planner):
    plain = planner(*BASE, "-c", 64, "--json").facts
    tpot = 1.1 * plain["tpot_ms"]
    text = f"concurrency=64, isl=1024, osl=1024, tpot_ms={tpot}"
    found = planner(*BASE, "-c", 64, "--measured", text, "--json").facts
    assert found["tpot_ms"] == pytest.approx(tpot, rel=1e-4)
    assert found["kernel_factor"] > 1
    assert "kernel_factor" not in plain
    assert any("measured point" in note for note in found["notes"])
    other = planner(*BASE, "-c", 8, "--measured", f"{text},tp=2,gpu=h100-sxm,ttft_ms=80", "--json").facts
    assert other["kernel_factor"] == pytest.approx(found["kernel_factor"])
    assert any("TTFT is not used" in note for note in other["notes"])
    table = planner(*BASE, "-c", 64, "--measured", text)
    assert "measured point" in table.out


def test_the_point_may_be_of_another_replica(planner):
    text = "concurrency=16,isl=1000,osl=500,tpot_ms=14,gpu=a100-80gb-sxm,tp=2,pp=1,ep=1,dp=1,precision=bf16"
    found = planner(*BASE, "--rate", 2, "--measured", f"{text},kv_cache_dtype=bf16", "--json").facts
    assert 0.5 <= found["kernel_factor"] <= 2
    note = next(note for note in found["notes"] if "measured point" in note)
    assert "TPOT 14 ms on a100-80gb-sxm TP2" in note


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("concurrency=64,isl=1024,osl=1024", "tpot_ms is missing"),
        ("concurency=64", "unknown key 'concurency'; did you mean concurrency?"),
        ("speed=64", "unknown key 'speed'; known: concurrency"),
        ("concurrency", "'concurrency' is not KEY=VALUE"),
        ("", "is not KEY=VALUE"),
        ("isl=4,isl=5", "isl is given twice"),
        ("concurrency=x,isl=1024,osl=1024,tpot_ms=20", "concurrency must be a finite number > 0, got 'x'"),
        ("concurrency=inf,isl=1024,osl=1024,tpot_ms=20", "concurrency must be a finite number > 0"),
        ("concurrency=64,isl=1024,osl=1,tpot_ms=20", "osl must be at least 2"),
        ("concurrency=64,isl=1024,osl=1024,tpot_ms=20,tp=1.5", "tp must be a whole number >= 1, got '1.5'"),
        ("concurrency=64,isl=1024,osl=1024,tpot_ms=20,tp=3", "TP 3"),
        ("concurrency=64,isl=1024,osl=1024,tpot_ms=20,gpu=h100-sx", "did you mean h100-sxm?"),
        ("concurrency=64,isl=1024,osl=1024,tpot_ms=20,precision=fp7", "unknown precision 'fp7'"),
        ("concurrency=64,isl=1024,osl=1024,tpot_ms=400", "above 2; likely another format"),
    ],
)
def test_bad_points_of_the_command_line(text, said, planner):
    found = planner(*BASE, "-c", 64, "--measured", text)
    assert found.code == 2
    assert said in found.err
    assert found.err.startswith("planner: --measured")
    assert "Traceback" not in found.err
