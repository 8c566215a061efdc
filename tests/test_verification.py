"""Solve, simulate, correct: plans that hold, plans that do not, and what is said of either."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import planner
from planner.documents.fleet import fleet_from_text, load_fleet
from planner.documents.plan import dump_plan, plan_from_text
from planner.documents.scenario import LoadedScenario, scenario_from_text
from planner.documents.trace_file import read_trace
from planner.documents.yaml_text import dump_yaml
from planner.evaluation import evaluate, setup_of, simulate, standing_fleet, standing_plan
from planner.plan import Plan
from planner.search import SolveOptions
from planner.simulator.build import Setup
from planner.simulator.cluster import Failure
from planner.simulator.metrics import SURE, SimulationResult
from planner.simulator.run import simulate_fleet
from planner.specs import Phase
from planner.traces import prefix_hits
from planner.workflow import solve

FLEETS = Path(__file__).parents[1] / "examples" / "fleets"
RUNNING = FLEETS / "llama-70b-running.yaml"
EXAMPLE_TRACE = FLEETS.parent / "traces" / "synthetic-chat.jsonl"
H100 = {"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 64, "node_size": 8}
SMALL = {
    "model": "meta-llama/Llama-3.1-8B",
    "workload": {"request_rate": 30, "input_tokens": {"mean": 1000, "cv": 0.5}, "output_tokens": 200},
    "slo": {"ttft_ms": {"p99": 900}, "tpot_ms": {"p99": 25}},
    "fleet": [H100],
    "options": {"max_tp": 1, "max_pp": 1, "whole_nodes": False, "colocated": "forbidden"},
}
PLAIN = SolveOptions(alternatives=False)


def load(document: dict[str, object], folder: Path | None = None) -> LoadedScenario:
    return scenario_from_text(dump_yaml(document), folder=folder)


@pytest.fixture(scope="module")
def small() -> Plan:
    return solve(load(SMALL), PLAIN)


def bursts(path: Path, seed: int = 0) -> Path:
    """Requests that come in crowds: 40 a second for 5 of every 60 seconds, else one every two seconds."""
    rng = np.random.default_rng(seed)
    times = [
        start + x
        for start in range(0, 1800, 60)
        for x in (*np.sort(rng.random(200)) * 5, *(5 + np.sort(rng.random(27)) * 55))
    ]
    lines = [f"{t:.6f},{rng.integers(200, 2000)},{rng.integers(50, 300)}" for t in times]
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "\n".join(lines), encoding="utf-8")
    return path


# --------------------------------------------------------------------------------------------
# Plans that hold


def test_plans_are_simulated_by_default(small: Plan) -> None:
    assert small.verification is not None
    assert small.verification.passed
    facts = small.verification.details
    for check in facts["slo"]:
        assert check["met"]
        assert check["value_ms"] <= check["limit_ms"]
        assert check["half_width_ms"] <= SURE * check["value_ms"] or facts["requests"] >= 1_000_000
    assert facts["confidence"] == 0.8
    assert facts["goodput"] <= facts["request_rate"] <= 30 * 1.02


def test_a_plan_can_be_left_unsimulated() -> None:
    assert solve(load(SMALL), SolveOptions(alternatives=False, verify=False)).verification is None


def test_simulation_agrees_with_prediction(small: Plan) -> None:
    """At the error planned for; the accuracy of both is tested elsewhere."""
    (prediction,) = small.predictions
    assert small.verification is not None
    for name, latency in (("ttft", prediction.ttft), ("tpot", prediction.tpot)):
        seen = small.verification.details[f"{name}_ms"]["p50"] / 1000
        assert latency.planned.p50 == pytest.approx(seen, rel=0.15)


def test_the_same_scenario_gives_the_same_bytes() -> None:
    first, second = (dump_plan(solve(load(SMALL), PLAIN), reproducible=True) for _ in range(2))
    assert first == second


def test_verification_survives_the_file(small: Plan) -> None:
    again = plan_from_text(dump_plan(small, reproducible=True))
    assert again.verification is not None
    assert again.verification.passed
    assert dump_plan(again, reproducible=True) == dump_plan(small, reproducible=True)


def test_the_plan_that_was_simulated_is_the_one_that_is_written(small: Plan) -> None:
    """Limits of the engines included: the same requests on the file's fleet give the same percentiles."""
    assert small.verification is not None
    seen = small.verification.details
    again = simulate(plan_from_text(dump_plan(small)), requests=seen["requests"])
    for name, measured in (("ttft_ms", again.ttft), ("tpot_ms", again.tpot)):
        for statistic in ("mean", "p50", "p99"):
            assert getattr(measured.value, statistic) * 1e3 == pytest.approx(seen[name][statistic], rel=0.01)


def test_seed_changes_the_requests_only(small: Plan) -> None:
    other = solve(load(SMALL), SolveOptions(alternatives=False, seed=7))
    assert other.verification is not None
    assert small.verification is not None
    assert other.verification.details["ttft_ms"] != small.verification.details["ttft_ms"]
    assert other.groups == small.groups


def test_a_plan_of_a_file_is_simulated_as_it_stands(small: Plan) -> None:
    """Half the prefill replicas do not carry what all of them did."""
    text = dump_plan(small)
    assert simulate(plan_from_text(text), requests=20_000).passed
    tripled = tuple(replace(g, replicas=3 * g.replicas) for g in small.groups)
    more = plan_from_text(dump_plan(replace(small, groups=tripled)))
    assert simulate(more, rate=75.0, requests=20_000).passed
    assert not simulate(small, rate=75.0, requests=20_000).passed


# --------------------------------------------------------------------------------------------
# Overload


@pytest.fixture(scope="module")
def overloaded(small: Plan) -> SimulationResult:
    capacity = min(sum(g.capacity for g in small.pool(p)) for p in (Phase.PREFILL, Phase.DECODE))
    return simulate(small, rate=1.3 * capacity, requests=60_000)


def test_a_plan_offered_more_than_it_carries_fails(overloaded: SimulationResult) -> None:
    assert not overloaded.passed


@pytest.mark.parametrize("load_factor", [1.05, 1.3])
def test_above_capacity_the_p99_grows_with_the_window(load_factor: float) -> None:
    """A replica that is always busy has no steady state, however stable a short window looks."""
    standing = standing_fleet(load_fleet(RUNNING))
    flooded = simulate_fleet(standing.fleet, standing.source.scaled(5.0), Setup(), number=20_000)
    most = flooded.groups[0].request_rate  # what prefill hands over when it never waits
    source = replace(standing.source, rate=load_factor * most)
    results = [simulate_fleet(standing.fleet, source, Setup(), number=n) for n in (20_000, 40_000, 80_000)]
    p99 = [r.ttft.value.p99 for r in results]
    assert p99[0] * 1.4 < p99[1]
    assert p99[1] * 1.4 < p99[2]
    assert all(r.growing for r in results[1:])
    assert not any(r.passed for r in results)


# --------------------------------------------------------------------------------------------
# Corrections


def test_bursts_break_a_plan_for_poisson_and_correction_mends_it(tmp_path: Path) -> None:
    bursts(tmp_path / "bursts.csv")
    document = SMALL | {
        "workload": {"trace": "bursts.csv", "request_rate": 12},
        "slo": {"ttft_ms": {"p99": 1500}, "tpot_ms": {"p99": 40}},
        "options": {"max_tp": 1, "max_pp": 1, "whole_nodes": False},
    }
    plain = solve(load(document, tmp_path), SolveOptions(alternatives=False, verify=False))
    plan = solve(load(document, tmp_path), PLAIN)
    assert plan.verification is not None
    assert plan.verification.passed
    first, *later = plan.verification.details["rounds"]
    assert first["missed"]
    assert later
    assert first["cost_per_hour"] == pytest.approx(plain.cost)
    assert plan.cost is not None
    assert plain.cost is not None
    assert plan.cost > plain.cost
    (note,) = (n for n in plan.notes if n.startswith("corrected by simulation"))
    assert "USD/h" in note
    assert "replicas" in note
    assert f"{plain.cost:,.2f} -> {plan.cost:,.2f} USD/h" in note
    assert "gap is that of the corrected program" in note


def test_where_nothing_helps_the_plan_is_marked(tmp_path: Path) -> None:
    bursts(tmp_path / "bursts.csv")
    document = SMALL | {
        "workload": {"trace": "bursts.csv", "request_rate": 12},
        "slo": {"ttft_ms": {"p99": 1500}, "tpot_ms": {"p99": 40}},
        "fleet": [H100 | {"max_gpus": 2}],
        "options": {"max_tp": 1, "max_pp": 1, "whole_nodes": False},
    }
    plan = solve(load(document, tmp_path), PLAIN)
    assert plan.verification is not None
    assert not plan.verification.passed
    assert plan.verification.details["failures"]
    assert any(note.startswith("this plan does not hold in simulation: ") for note in plan.notes)


def test_spare_replicas_are_left_out_of_the_simulation() -> None:
    options = SMALL["options"] | {"spare_replicas": 1}  # type: ignore[operator]
    plan = solve(load(SMALL | {"options": options}), PLAIN)
    assert "simulated without the spare replicas of each group" in plan.notes
    assert plan.verification is not None
    assert plan.verification.passed


def test_throughput_is_corrected_to_a_rate_that_holds() -> None:
    document = SMALL | {
        "objective": "throughput",
        "fleet": [H100 | {"max_gpus": 4}],
        "workload": {"input_tokens": {"mean": 1000, "cv": 0.5}, "output_tokens": 200},
        "options": {"max_tp": 1, "max_pp": 1, "whole_nodes": False},
    }
    plan = solve(load(document), PLAIN)
    assert plan.verification is not None
    assert plan.verification.passed
    assert plan.verification.details["request_rate"] == pytest.approx(plan.value, rel=0.02)


def test_both_kinds_of_serving_are_simulated_where_they_are_close() -> None:
    options = {"max_tp": 1, "max_pp": 1, "whole_nodes": False}
    plan = solve(load(SMALL | {"options": options}), SolveOptions())
    by_name = {a.name: a for a in plan.alternatives}
    rival = by_name["best disaggregated" if plan.pool(Phase.COLOCATED) else "best colocated"]
    assert rival.value is None or rival.value > 1.6 * plan.value or rival.verified is not None


# --------------------------------------------------------------------------------------------
# Fleets that stand


def test_evaluate_finds_the_most_that_a_fleet_carries() -> None:
    standing = standing_fleet(load_fleet(RUNNING))
    found = evaluate(standing, setup_of(standing, 0.84), offered=10.0, number=40_000)
    assert found.at_most is not None
    assert found.at_most.passed
    assert not found.beyond.passed
    assert found.breaks == (Phase.PREFILL,)
    assert found.at_offered is not None
    assert found.at_offered.passed
    assert 15 < found.request_rate < 25
    above = simulate_fleet(
        standing.fleet, standing.source.scaled(1.1 * found.request_rate / 15), Setup(z=0.84)
    )
    assert not above.passed


def test_more_replicas_carry_more() -> None:
    text = RUNNING.read_text(encoding="utf-8")
    rates = []
    for replicas in (2, 4):
        loaded = fleet_from_text(text.replace("replicas: 3", f"replicas: {replicas}"))
        rates.append(evaluate(standing_fleet(loaded), number=20_000).request_rate)
    assert rates[0] < rates[1]


def test_a_failing_replica_shows(small: Plan) -> None:
    standing = standing_plan(small, None)
    steady = simulate_fleet(standing.fleet, standing.source, Setup(), number=20_000)
    setup = Setup(failures=(Failure(group=0, replica=0, time=60.0, until=180.0),))
    failing = simulate_fleet(standing.fleet, standing.source, setup, number=20_000)
    assert failing.ttft.value.p99 > 2 * steady.ttft.value.p99
    assert failing.unserved == 0


def test_api_names_are_there() -> None:
    for name in ("simulate", "evaluate", "load_fleet", "predict", "VerificationError"):
        assert getattr(planner, name)


def test_facts_are_json(small: Plan) -> None:
    assert small.verification is not None
    json.dumps(dict(small.verification.details))


def test_a_large_prefix_cache_hits_what_an_infinite_one_would() -> None:
    """Prompts one after the other on one replica: the simulated cache finds what the trace's hashes allow."""
    standing = standing_fleet(load_fleet(RUNNING))
    one = tuple(
        replace(g, replicas=1, kv_tokens=10**8) if g.phase is Phase.PREFILL else g
        for g in standing.fleet.groups
    )
    trace = read_trace(EXAMPLE_TRACE)
    assert trace.blocks is not None
    source = replace(standing.source, trace=trace, replay=True, rate=0.1, prefix_cache=True)
    result = simulate_fleet(replace(standing.fleet, groups=one), source, Setup(), number=1)
    ideal = prefix_hits(trace.blocks, trace.isl)
    assert result.prefix_hit_rate == pytest.approx(ideal.tokens, rel=0.02)
