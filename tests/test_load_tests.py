"""Files of load tests: the same run as four tools write it, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from load_test_files import (
    EXAMPLE,
    aiperf_csv,
    aiperf_export,
    e2e,
    examples,
    guidellm_report,
    sglang_run,
    vllm_run,
)

from planner.documents.load_tests import KNOWN, Arrivals, LoadTest, read_load_test, read_load_tests
from planner.errors import SpecError
from planner.specs import Metric, Statistic

RUN = vllm_run()


def written(tmp_path: Path, content: Any, name: str = "results.json") -> Path:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def one(tmp_path: Path, content: Any) -> LoadTest:
    return read_load_test(written(tmp_path, content))


FORMS = {
    "vllm": RUN,
    "sglang": sglang_run(RUN),
    "guidellm": guidellm_report([RUN]),
    "aiperf json": aiperf_export(RUN),
    "aiperf csv": aiperf_csv(RUN),
}


@pytest.mark.parametrize(("form", "tool"), list(zip(FORMS, KNOWN, strict=True)))
def test_every_tool_says_the_same_of_a_run(tmp_path, form, tool):
    found = one(tmp_path, FORMS[form])
    assert found.tool == tool
    assert (found.completed, found.failed) == (RUN["completed"], 0)
    assert found.prompt == pytest.approx(RUN["total_input_tokens"] / RUN["completed"])
    assert found.output == pytest.approx(RUN["total_output_tokens"] / RUN["completed"])
    assert found.throughput == pytest.approx(RUN["request_throughput"], rel=5e-3)
    assert found.mean(Metric.TPOT) == pytest.approx(RUN["mean_tpot_ms"] / 1e3, rel=1e-3)
    assert found.mean(Metric.TTFT) == pytest.approx(RUN["mean_ttft_ms"] / 1e3, rel=1e-3)
    assert (Metric.TPOT, Statistic.P99) in found.latencies
    assert found.load_known == (form != "aiperf csv")
    assert found.concurrency == (None if form == "aiperf csv" else RUN["max_concurrency"])
    assert found.request_rate is None
    assert found.empty == found.odd == ""


@pytest.mark.parametrize("form", [name for name in FORMS if name != "vllm"])
def test_time_of_a_request_is_read(tmp_path, form):
    assert one(tmp_path, FORMS[form]).mean(Metric.E2E) == pytest.approx(e2e(RUN) / 1e3, rel=1e-3)


def test_runs_appended_to_one_another():
    found = read_load_tests(EXAMPLE)
    assert [test.concurrency for test in found] == [run["max_concurrency"] for run in examples()]
    assert found[3].name == f"{EXAMPLE.name}, line 4"


def test_blank_lines_between_runs_do_not_count(tmp_path):
    text = "\n\n".join(json.dumps(run) for run in examples()[:3]) + "\n\n"
    assert [t.name for t in read_load_tests(written(tmp_path, text))] == [
        f"results.json, line {line}" for line in (1, 3, 5)
    ]


def test_every_strategy_of_a_report_is_a_run(tmp_path):
    strategies = [
        {"type_": "synchronous"},
        {"type_": "concurrent", "streams": 8},
        {"type_": "throughput", "max_concurrency": 64},
        {"type_": "throughput", "max_concurrency": None},
        {"type_": "constant", "rate": 2.5, "max_concurrency": None},
        {"type_": "poisson", "rate": 3.0, "random_seed": 42},
    ]
    found = read_load_tests(written(tmp_path, guidellm_report([RUN] * 6, strategies)))
    assert [t.concurrency for t in found] == [1, 8, 64, None, None, None]
    assert [t.request_rate for t in found] == [None, None, None, None, 2.5, 3.0]
    assert [t.arrivals for t in found[4:]] == [Arrivals.CONSTANT, Arrivals.POISSON]
    assert found[1].name == "results.json, benchmark 2"


def test_older_reports_keep_strategy_and_totals_elsewhere(tmp_path):
    report = guidellm_report([RUN])
    run = report["benchmarks"][0]
    run["args"] = {"strategy": run.pop("config")["strategy"]}
    run["request_totals"] = run["metrics"].pop("request_totals")
    assert one(tmp_path, report).concurrency == RUN["max_concurrency"]


@pytest.mark.parametrize(
    ("loadgen", "concurrency", "rate", "arrivals"),
    [
        ({"concurrency": 32}, 32, None, Arrivals.POISSON),
        ({"request_rate": 4.0, "request_rate_mode": "poisson"}, None, 4.0, Arrivals.POISSON),
        ({"request_rate": 4.0, "request_rate_mode": "constant"}, None, 4.0, Arrivals.CONSTANT),
        ({"request_rate": 4.0, "request_rate_mode": "concurrency_burst"}, None, 4.0, Arrivals.OTHER),
    ],
)
def test_the_load_of_aiperf(tmp_path, loadgen, concurrency, rate, arrivals):
    found = one(tmp_path, aiperf_export(RUN, **loadgen))
    assert (found.concurrency, found.request_rate, found.arrivals) == (concurrency, rate, arrivals)


@pytest.mark.parametrize(
    ("changes", "rate", "limit"),
    [
        ({"request_rate": "inf", "max_concurrency": None}, None, None),
        ({"request_rate": 3.5, "max_concurrency": None}, 3.5, None),
        ({"request_rate": 3.5}, 3.5, RUN["max_concurrency"]),
    ],
)
def test_rates_and_limits(tmp_path, changes, rate, limit):
    for run in (RUN | changes, sglang_run(RUN, **changes)):
        found = one(tmp_path, run)
        assert (found.request_rate, found.concurrency) == (rate, limit)


def test_infinity_and_nan_as_python_writes_them(tmp_path):
    text = json.dumps(sglang_run(RUN, request_rate=math.inf, mean_tpot_ms=math.nan))
    assert "Infinity" in text
    assert "NaN" in text
    found = one(tmp_path, text)
    assert found.request_rate is None
    assert math.isnan(found.mean(Metric.TPOT))
    assert found.latencies[Metric.TPOT, Statistic.P50] > 0


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (RUN | {"spec_decode_acceptance_length": 2.31}, "speculative decoding, 2.31 tokens per step"),
        (sglang_run(RUN, accept_length=1.8), "speculative decoding, 1.8 tokens per step"),
        (RUN | {"ramp_up_strategy": "linear"}, "the rate was ramped up"),
        (sglang_run(RUN, request_rate="trace"), "a trace was replayed"),
        (guidellm_report([RUN], [{"type_": "trace", "time_scale": 1.0}]), "a trace was replayed"),
        (aiperf_export(RUN) | {"was_cancelled": True}, "the run was cancelled"),
    ],
)
def test_runs_of_another_kind_are_told(tmp_path, run, said):
    assert said in one(tmp_path, run).odd


@pytest.mark.parametrize(
    "run",
    [
        RUN | {"completed": 0, "mean_tpot_ms": math.nan, "mean_ttft_ms": math.nan},
        guidellm_report([RUN | {"completed": 0}]),
        aiperf_export(RUN | {"completed": 0}),
    ],
)
def test_a_run_without_a_completed_request_holds_nothing(tmp_path, run):
    path = written(tmp_path, run)
    assert read_load_tests(path)[0].empty == "no request was completed"
    with pytest.raises(SpecError, match="no request was completed"):
        read_load_test(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("{", "is not valid JSON"),
        ("[1, 2]", "is no result of a load test"),
        ({"a": 1}, "is no result of a load test"),
        ("a,b\n1,2\n", "is no result of a load test"),
        (f"{json.dumps(RUN)}\n{{", "line 2: is not valid JSON"),
        (
            f"{json.dumps(RUN)}\n{json.dumps(RUN | {'mean_tpot_ms': -1})}",
            "line 2: mean_tpot_ms must be",
        ),
        (RUN | {"completed": "many"}, "completed must be a number >= 0, got 'many'"),
        (RUN | {"completed": True}, "completed must be a number >= 0, got True"),
        (RUN | {"total_output_tokens": None}, "total_output_tokens must be a number >= 0, got None"),
        (RUN | {"mean_ttft_ms": math.inf}, "mean_ttft_ms must be a finite number"),
        ({"benchmarks": []}, "benchmarks is empty"),
        (
            {"benchmarks": [{"metrics": {}}]},
            r"benchmarks\[0\].: needs metrics, request_totals and",
        ),
        (
            aiperf_export(RUN) | {"time_to_first_token": {"unit": "ns", "avg": 1.0}},
            "time_to_first_token.unit must be ms or s or sec, got 'ns'",
        ),
    ],
)
def test_what_is_refused(tmp_path, content, said):
    with pytest.raises(SpecError, match=said) as raised:
        read_load_tests(written(tmp_path, content))
    assert "results.json" in str(raised.value)


def test_unknown_files_are_told_what_is_known(tmp_path):
    with pytest.raises(SpecError) as raised:
        read_load_tests(written(tmp_path, {"a": 1}))
    assert all(tool in str(raised.value) for tool in KNOWN)


def test_one_run_is_not_several(tmp_path):
    with pytest.raises(SpecError, match="holds 12 load tests"):
        read_load_test(EXAMPLE)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SpecError, match="no such file"):
        read_load_tests(tmp_path / "nothing.json")
