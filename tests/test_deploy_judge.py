"""planner judge: results of a load test against the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Result, Runner
from deploy_plans import plan_of

from planner.documents.plan import dump_plan
from planner.specs import Statistic

KIND = "one-group-per-pool"


def results(ttft: float = 1.0, tpot: float = 1.0, **changes: Any) -> dict[str, Any]:
    """What the plan expects, times factors, as vllm bench serve writes it."""
    (prediction,) = plan_of(KIND).predictions
    found: dict[str, Any] = {
        "backend": "openai", "completed": 3000, "failed": 0, "request_rate": 10, "request_throughput": 9.9,
        "total_input_tokens": 3000 * 2000, "total_output_tokens": 3000 * 200, "duration": 303.0,
    }  # fmt: skip
    for name, latency, factor in (("ttft", prediction.ttft, ttft), ("tpot", prediction.tpot, tpot)):
        for statistic in Statistic:
            found[f"{statistic}_{name}_ms"] = 1e3 * factor * getattr(latency.expected, statistic)
        found[f"median_{name}_ms"] = found[f"p50_{name}_ms"]
    return found | changes


@pytest.fixture
def judged(planner: Runner, tmp_path: Path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(dump_plan(plan_of(KIND)), encoding="utf-8")

    def run(found: Any, *options: str) -> Result:
        path = tmp_path / "result.json"
        path.write_text(found if isinstance(found, str) else json.dumps(found), encoding="utf-8")
        return planner("judge", path, plan, *options)

    return run


def test_what_was_predicted_passes(judged):
    result = judged(results(), "--json")
    assert result.code == 0, result.err
    facts = result.facts
    assert facts["passed"]
    assert [verdict["passed"] for verdict in facts["slo"]] == [True, True]
    assert all(v["within"] and v["ratio"] == pytest.approx(1, rel=1e-4) for v in facts["predictions"])
    assert facts["advice"] == facts["another_load"] == facts["failures"] == []
    assert "passes" in judged(results()).out


def test_a_missed_slo_fails_and_slow_steps_are_named(judged):
    result = judged(results(tpot=4.0), "--json")
    assert result.code == 5
    assert "p99 TPOT <= 50 ms is missed" in result.err
    facts = result.facts
    assert [(v["metric"], v["passed"]) for v in facts["slo"]] == [("ttft", True), ("tpot", False)]
    off = [v for v in facts["predictions"] if not v["within"]]
    assert {v["metric"] for v in off} == {"tpot"}
    assert off[0]["ratio"] == pytest.approx(4, rel=1e-4)
    assert "decode steps take 4.00 times" in facts["advice"][0]
    assert "--max-concurrency" in facts["advice"][0]
    assert "outside" in judged(results(tpot=4.0)).out


def test_slow_prompts_and_waits_are_told_apart(judged):
    (advice,) = judged(results(ttft=2.5), "--json").facts["advice"]
    assert "prompts take 2.50 times" in advice
    (prediction,) = plan_of(KIND).predictions
    tail = {"p99_ttft_ms": 3e3 * prediction.ttft.expected.p99}
    (advice,) = judged(results(**tail), "--json").facts["advice"]
    assert "only the tail of TTFT is off, 3.00 times" in advice
    both = judged(results(ttft=3, tpot=3), "--json").facts["advice"]
    assert "by the same factor" in both[1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"total_input_tokens": 3000 * 500}, "prompts: 500 tokens in the test, 2000 in the plan"),
        ({"total_output_tokens": 3000 * 50}, "answers: 50 tokens"),
        (
            {"request_rate": 2, "request_throughput": 2},
            "the offered rate: 2 req/s in the test, 10 in the plan",
        ),
        ({"request_rate": "inf"}, "all requests came at once"),
        (
            {"request_rate": "inf", "max_concurrency": 8},
            "from 8 clients in a closed loop; the plan is for 10",
        ),
    ],
)
def test_another_load_is_said(judged, changes, said):
    facts = judged(results(**changes), "--json").facts
    assert any(said in line for line in facts["another_load"])
    assert any("cannot be judged" in line for line in facts["advice"])


def test_failed_requests_and_lost_throughput_fail(judged):
    result = judged(results(failed=7, request_throughput=6.0), "--json")
    assert result.code == 5
    assert "7 of 3,007 requests failed" in result.err
    assert any("queues grew" in line for line in result.facts["advice"])


def test_an_slo_that_was_not_measured_does_not_pass(judged):
    found = {key: value for key, value in results().items() if not key.startswith("p99_tpot")}
    result = judged(found, "--json")
    assert result.code == 5
    assert "p99 TPOT <= 50 ms is not measured" in result.err
    assert "--metric-percentiles" in result.facts["advice"][0]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is no result of a load test"),
        ({"a": 1}, "is no result of a load test"),
        (results(completed=0), "no request was completed"),
        (results(completed=-1), "must be a number >= 0"),
        (results(request_throughput="fast"), "request_throughput must be a number"),
        (results(p99_ttft_ms="slow"), "p99_ttft_ms must be a number"),
    ],
)
def test_other_files_are_refused(judged, found, said):
    result = judged(found)
    assert result.code == 2
    assert said in result.err


def test_services_are_named(judged):
    assert judged(results(), "--service", plan_of(KIND).predictions[0].service).code == 0
    refused = judged(results(), "--service", "meta-llama/Llama-3.1-70B")
    assert refused.code == 2
    assert "did you mean" in refused.err
