"""Plan files: written, read back, and refused."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest

from planner import __version__
from planner.documents.plan import dump_plan, load_plan, plan_from_text, plan_to_document, rebased
from planner.documents.yaml_text import parse_tree
from planner.errors import SpecError
from planner.plan import (
    Alternative,
    Binding,
    Group,
    HorizonSummary,
    LatencySummary,
    LengthBucket,
    LengthSplit,
    MemoryBudget,
    Move,
    NodeUse,
    PeriodPlan,
    Plan,
    PlanStatus,
    PredictedLatency,
    ServicePrediction,
    Verification,
)
from planner.specs import (
    Dtype,
    Metric,
    Objective,
    Parallelism,
    Phase,
    Precision,
    PriceClass,
    SloTarget,
    Statistic,
)
from planner.units import GIB


def latency(metric: Metric, scale: float) -> PredictedLatency:
    def summary(factor: float) -> LatencySummary:
        values = (scale * factor * x for x in (1.1, 1, 2 / 3 + 1, 2, math.pi))
        return LatencySummary(**dict(zip(("mean", "p50", "p90", "p95", "p99"), values, strict=True)))

    return PredictedLatency(
        metric=metric, expected=summary(1), planned=summary(1.1), low=summary(0.8), high=summary(1.3)
    )


def group(name: str, phase: Phase, gpu: str, tp: int, replicas: int) -> Group:
    return Group(
        name=name,
        service="workload",
        phase=phase,
        gpu=gpu,
        parallelism=Parallelism(tp=tp, pp=2),
        replicas=replicas,
        precision=Precision(weights=Dtype.FP8, kv_cache=Dtype.BF16),
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        max_model_len=16384,
        kv_capacity=1_234_567,
        memory=MemoryBudget(weights=GIB * 35 / 3, activations=GIB, reserved=GIB, kv_cache=1e10, usable=7e10),
        request_rate=20 / 3,
        capacity=22 / 3,
        mean_batch=100 / 7,
        busy=0.7,
        binds=Binding.TTFT,
        compute_utilization=0.5,
        bandwidth_utilization=0.25,
        network_utilization=1 / 30,
        cost=2.99 * tp * replicas,
        calibration="estimated",
    )


SLO = (
    SloTarget(metric=Metric.TTFT, statistic=Statistic.P99, limit=1.5),
    SloTarget(metric=Metric.TPOT, statistic=Statistic.MEAN, limit=0.015),
)

PLAN = Plan(
    status=PlanStatus.FEASIBLE,
    objective=Objective.COST,
    value=53.82123456789,
    bound=53.5,
    gap=0.00597,
    cost=53.82123456789,
    power=11200.0,
    groups=(
        group("prefill-1", Phase.PREFILL, "h100-sxm", 2, 3),
        group("decode-1", Phase.DECODE, "l40s", 4, 5),
    ),
    nodes=(NodeUse(gpu="h100-sxm", gpus_used=12, gpus_paid=16, nodes=2, price=2.99),),
    predictions=(
        ServicePrediction(
            service="workload",
            request_rate=20.0,
            ttft=latency(Metric.TTFT, 0.3),
            tpot=latency(Metric.TPOT, 0.01),
            slo=SLO,
            cost_per_million_input_tokens=0.123456789,
            cost_per_million_output_tokens=None,
            cost_per_million_tokens=1 / 3,
        ),
    ),
    alternatives=(
        Alternative(name="colocated", value=61.7, cost=61.7, summary="21 x h100-sxm TP1"),
        Alternative(name="single GPU type", value=None, cost=None, summary="", reason="no l40s fits"),
    ),
    engine="vllm",
    engine_version="0.19",
    routing="least_loaded",
    scenario={"model": "m", "slo": {"ttft_ms": {"p99": 1500}}, "note": "1e3", "rate": 1 / 3},
    provenance=("h100-sxm: estimated", "a long line " * 20),
    notes=("no",),
    verification=Verification(passed=True, details={"requests": 1000, "goodput": 19.8, "seeds": [1, 2]}),
    cost_at_half_confidence=48.0,
)


def edited(**changes: object) -> Plan:
    return dataclasses.replace(PLAN, **changes)


def period(name: str, hours: float, scale: int) -> PeriodPlan:
    return PeriodPlan(
        name=name,
        hours=hours,
        cost=7.25 * scale,
        replicas={"prefill-1": 3 * scale, "decode-1": 5 * scale},
        request_rates={"workload": 10.0 * scale},
    )


SCHEDULED = edited(
    groups=(dataclasses.replace(PLAN.groups[0], price_class=PriceClass.SPOT, zone="east"), PLAN.groups[1]),
    nodes=(dataclasses.replace(PLAN.nodes[0], price_class=PriceClass.RESERVED),),
    periods=(period("night", 16.0, 0), period("day", 8.0, 1)),
    horizon=HorizonSummary(hours=24.0, cost=58.0, static_cost=174.0, saving=2 / 3, reserved={"h100-sxm": 8}),
)
MOVED = edited(moves=(Move(group="prefill-1", before=5, after=3),), move_cost=1.25)
SPLIT = edited(
    split=LengthSplit(
        buckets=(
            LengthBucket(service="workload", shortest=0, longest=4095, share=0.9),
            LengthBucket(service="workload", shortest=4096, longest=None, share=0.1),
        ),
        cost_unsplit=60.0,
        costs={1: 60.0, 2: 53.5, 3: None},
        front_door="route by prompt length at 4,096 tokens",
    )
)


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        SCHEDULED,
        MOVED,
        SPLIT,
        edited(move_cost=0.0),
        edited(verification=None, groups=(), predictions=(), alternatives=(), nodes=()),
        edited(bound=-math.inf, gap=math.inf, cost=None, cost_at_half_confidence=None),
        edited(objective=Objective.THROUGHPUT, bound=math.inf, gap=math.inf),
    ],
)
def test_plans_survive_writing_and_reading(plan):
    text = dump_plan(plan, reproducible=True)
    again = plan_from_text(text)
    assert dump_plan(again, reproducible=True) == text
    assert plan_from_text(dump_plan(again)) == again


def test_reading_gives_the_plan_up_to_rounding():
    again = plan_from_text(dump_plan(PLAN))
    assert again.value == pytest.approx(PLAN.value, rel=1e-5)
    assert again.predictions[0].slo == SLO
    assert again.predictions[0].ttft.high.p99 == pytest.approx(PLAN.predictions[0].ttft.high.p99, rel=1e-5)
    assert again.groups[0].memory.weights == pytest.approx(GIB * 35 / 3, rel=1e-5)
    assert again.groups[0].parallelism == Parallelism(tp=2, pp=2)
    assert again.groups[0].num_gpus == 12
    assert again.scenario == PLAN.scenario
    assert again.verification == PLAN.verification
    assert again.alternatives == PLAN.alternatives
    assert (again.provenance, again.notes) == (PLAN.provenance, PLAN.notes)


@pytest.mark.parametrize("plan", [SCHEDULED, MOVED, SPLIT])
def test_what_only_some_plans_have_is_read_back(plan):
    again = plan_from_text(dump_plan(plan))
    assert (again.periods, again.moves, again.move_cost) == (plan.periods, plan.moves, plan.move_cost)
    assert again.split == plan.split
    assert again.horizon == (plan.horizon and dataclasses.replace(plan.horizon, saving=0.666667))
    assert [(g.zone, g.price_class) for g in again.groups] == [(g.zone, g.price_class) for g in plan.groups]
    assert [use.price_class for use in again.nodes] == [use.price_class for use in plan.nodes]


def test_what_only_some_plans_have_is_written_in_the_words_of_the_file():
    document = plan_to_document(SCHEDULED)
    assert document["periods"][1] == {
        "name": "day",
        "hours": 8.0,
        "cost_per_hour": 7.25,
        "replicas": {"prefill-1": 3, "decode-1": 5},
        "request_rates": {"workload": 10.0},
    }
    assert document["horizon"]["reserved_gpus"] == {"h100-sxm": 8}
    assert document["groups"][0]["price_class"] == "spot"
    assert plan_to_document(MOVED)["moves"] == [{"group": "prefill-1", "change": -2, "from": 5, "to": 3}]
    assert plan_to_document(SPLIT)["split"]["buckets"][1]["to_tokens"] is None
    for made in (SCHEDULED, MOVED, SPLIT):
        assert list(plan_to_document(made))[-1] == "scenario"


def test_plans_without_them_have_none_of_their_keys():
    seldom = {"periods", "horizon", "split", "moves", "move_cost"}
    assert not seldom & set(plan_to_document(PLAN))
    assert not any("price_class" in part for part in (*plan_to_document(PLAN)["groups"],))
    assert "periods" not in plan_to_document(edited(periods=SCHEDULED.periods[:1]))


def test_files_of_every_model_are_named_as_seen_from_the_plan(tmp_path):
    old, new = tmp_path / "scenarios", tmp_path / "plans"
    old.mkdir()
    new.mkdir()
    for name in ("m.json", "t.csv"):
        (old / name).write_text("")
    models = [{"model": "./m.json", "workload": {"trace": "t.csv"}}, {"model": "openai/gpt-oss-120b"}]
    seen = rebased(edited(scenario={"models": models, "fleet": [{"gpu": "h100-sxm"}]}), old, new).scenario
    assert seen["models"][0]["model"] == "../scenarios/m.json"
    assert seen["models"][0]["workload"]["trace"] == "../scenarios/t.csv"
    assert seen["models"][1]["model"] == "openai/gpt-oss-120b"


def test_random_plans_survive_writing_and_reading():
    rng = np.random.default_rng(3)
    for _ in range(50):
        x = 10.0 ** rng.uniform(-8, 12, 4)
        noisy = dataclasses.replace(PLAN.groups[0], request_rate=x[0], capacity=x[1], mean_batch=x[2])
        text = dump_plan(edited(value=x[3], groups=(noisy,)), reproducible=True)
        assert dump_plan(plan_from_text(text), reproducible=True) == text


def test_the_document_has_the_contracted_fields():
    document = plan_to_document(PLAN)
    assert document["status"] == "feasible"
    assert document["cost_per_hour"] == 53.8212
    assert document["gap"] == 0.00597
    first = document["groups"][0]
    assert {key: first[key] for key in ("phase", "gpu", "parallelism", "replicas", "num_gpus")} == {
        "phase": "prefill",
        "gpu": "h100-sxm",
        "parallelism": {"tp": 2, "pp": 2, "ep": 1, "dp": 1},
        "replicas": 3,
        "num_gpus": 12,
    }
    assert document["predicted"]["ttft_ms"] == {
        "mean": 330.0,
        "p50": 300.0,
        "p90": 500.0,
        "p95": 600.0,
        "p99": 942.478,
    }
    assert set(document["predicted"]) == {"ttft_ms", "tpot_ms"}
    assert [(a["name"], a["cost_per_hour"]) for a in document["alternatives"]] == [
        ("colocated", 61.7),
        ("single GPU type", None),
    ]
    assert document["verification"] == {"passed": True, "requests": 1000, "goodput": 19.8, "seeds": [1, 2]}
    assert plan_to_document(edited(verification=None))["verification"] is None
    assert list(document)[-1] == "scenario"
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_the_slo_is_written_as_it_was_given():
    service = plan_to_document(PLAN)["services"][0]
    assert service["slo"] == {"ttft_ms": {"p99": 1500.0}, "tpot_ms": {"mean": 15.0}}


def test_results_of_numpy_are_written_as_numbers():
    details = {"goodput": np.float64(1 / 3), "n": np.int64(3), "list": np.array([1.5]), "bad": math.nan}
    text = dump_plan(edited(verification=Verification(passed=False, details=details)))
    assert "goodput: 0.333333\n" in text
    assert dict(plan_from_text(text).verification.details) == {
        "goodput": 0.333333,
        "n": 3,
        "list": [1.5],
        "bad": None,
    }


def test_the_time_is_left_out_of_reproducible_files():
    assert dump_plan(PLAN, reproducible=True) == dump_plan(PLAN, reproducible=True)
    dated, plain = (parse_tree(dump_plan(PLAN, flag), "p")[0].raw for flag in (False, True))
    created = dated["provenance"].pop("created")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created)
    assert dated == plain
    assert plain["provenance"]["planner_version"] == __version__


def test_long_lines_are_not_wrapped():
    assert f"- '{'a long line ' * 20}'\n" in dump_plan(PLAN)


# Bad ones


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        plan_from_text(text, "p.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_newer_files_are_refused():
    text = dump_plan(PLAN).replace("schema_version: 1", "schema_version: 2\nnovelty: 3")
    assert problems(text) == [
        "line 1: schema_version: is newer than this program reads, which is up to 1, got 2 (update planner)"
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema_version: 1\n", "", "schema_version: is required"),
        ("num_gpus: 12", "num_gpus: 6", "num_gpus: must be replicas x tp x pp x dp = 12, got 6"),
        ("replicas: 3", "replicas: -3", "replicas: must be >= 1, got -3"),
        (
            "phase: prefill",
            "phase: prefil",
            "must be one of prefill, decode, colocated, got 'prefil' (did you mean",
        ),
        ("status: feasible", "status: good", "line 2: status: must be one of optimal, feasible, got 'good'"),
        ("power_w: 11200.0", "power_kw: 11.2", "power_kw: unknown key (did you mean power_w?)"),
        (
            "gap: 0.00597",
            "gap: '0.6 %'",
            "line 6: gap: must be a number, got '0.6 %' (write the number alone",
        ),
        ("passed: true", "passed: 1", "verification.passed: must be true or false, got 1"),
    ],
)
def test_broken_plans_are_refused(old, new, message):
    text = dump_plan(PLAN)
    assert old in text
    assert any(message in problem for problem in problems(text.replace(old, new, 1)))


def test_changes_are_what_lies_between_before_and_after():
    text = dump_plan(MOVED)
    assert "change: -2" in text
    (problem,) = problems(text.replace("change: -2", "change: 2"))
    assert "moves[0].change: must be to - from = -2, got 2 (or leave it out)" in problem
    assert plan_from_text(text.replace("  change: -2\n", "")).moves == MOVED.moves


def test_hand_written_plans_may_leave_derived_numbers_out():
    text = "".join(
        line
        for line in dump_plan(PLAN, reproducible=True).splitlines(keepends=True)
        if not re.match(r" +(num_gpus|utilization|cost_per_hour):", line)
    )
    assert [g.num_gpus for g in plan_from_text(text).groups] == [12, 40]


def test_plans_are_read_from_files(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(PLAN))
    assert load_plan(path).status is PlanStatus.FEASIBLE
    with pytest.raises(SpecError, match=r"no such file \(did you mean .*plan\.yaml\?\)"):
        load_plan(tmp_path / "plna.yaml")
