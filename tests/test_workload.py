"""Traffic from a trace: ``planner workload``, its preset, and scenarios that name either."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planner.catalog import load_traffic, traffic_of
from planner.cli import main
from planner.documents.scenario import read_scenario
from planner.documents.trace_file import read_trace
from planner.errors import SpecError
from planner.specs import Workload

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
MOONCAKE = """\
{"timestamp": 0, "input_length": 512, "output_length": 32, "hash_ids": [0]}
{"timestamp": 200, "input_length": 1024, "output_length": 16, "hash_ids": [0, 1]}
{"timestamp": 400, "input_length": 512, "output_length": 8, "hash_ids": [2]}
"""
SCENARIO = """\
model: meta-llama/Llama-3.1-8B-Instruct
workload:
  {traffic}
slo: {{ttft_ms: {{p99: 5000}}}}
fleet: [{{gpu: h100-sxm, price_per_gpu_hour: 3}}]
"""

Runner = Callable[..., tuple[int, str, str]]


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """Runs the command line: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["planner", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        caught = capsys.readouterr()
        return int(ended.value.code or 0), caught.out, caught.err

    monkeypatch.setenv("COLUMNS", "100")
    return run


@pytest.fixture
def poisson(tmp_path: Path) -> Path:
    """About 2 req/s for ten minutes; prompts and outputs tied together."""
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(0.5, 1200))
    isl = rng.integers(100, 2000, 1200)
    osl = isl // 10 + rng.integers(1, 50, 1200)
    path = tmp_path / "chat.csv"
    rows = zip(times, isl, osl, strict=True)
    path.write_text(HEADER + "".join(f"{t:.6f},{i},{o}\n" for t, i, o in rows))
    return path


def scenario(folder: Path, traffic: str) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO.format(traffic=traffic))
    return path


def planned(folder: Path, traffic: str) -> Workload:
    (service,) = read_scenario(scenario(folder, traffic)).scenario.services
    return service.workload


def refused(folder: Path, traffic: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read_scenario(scenario(folder, traffic))
    return [str(problem).replace(str(folder), "") for problem in caught.value.problems]


# The command


def test_the_command_prints_what_a_trace_says(planner, poisson):
    code, out, err = planner("workload", poisson, "--max-context", 2000)
    assert (code, err) == (0, "")
    for words in (
        "1,200 requests in",
        "timestamps: s, as Vidur traces have it",
        "in 60 s",
        "(Poisson: 1)",
        "p95",
        "requests exceed 2,000 tokens, the first on line",
    ):
        assert words in out


def test_json_is_one_document(planner, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(MOONCAKE)
    code, out, _ = planner("workload", path, "--json", "--max-context", 1030, "--name", "mine")
    facts = json.loads(out)
    assert code == 0
    assert (facts["name"], facts["requests"], facts["duration_s"]) == ("mine", 3, 0.4)
    assert facts["request_rate"] == 7.5
    assert facts["timestamps"] == {"unit": "ms", "reason": "as Mooncake traces have it", "step_s": None}
    assert facts["peak_request_rate"] == {"1s": None, "10s": None, "60s": None}
    assert facts["input_tokens"]["p50"] == 512
    assert facts["ideal_prefix_hits"] == {
        "blocks": 0.25,
        "tokens": 0.25,
        "found_tokens": 512,
        "unique_blocks": 3,
        "block_tokens": 512,
    }
    assert (facts["requests_over_context"], facts["first_line_over_context"]) == (1, 2)


def test_the_unit_can_be_given(planner, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(MOONCAKE)
    _, out, _ = planner("workload", path, "--json", "--unit", "s")
    assert json.loads(out)["duration_s"] == 400


@pytest.mark.parametrize("width", [60, 100, 200])
def test_tables_fit(planner, monkeypatch, tmp_path, width):
    path = tmp_path / "t.jsonl"
    path.write_text(MOONCAKE)
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = planner("workload", path)
    assert max(map(len, out.splitlines())) <= width
    assert "an infinite prefix cache would hit 25.0%" in " ".join(out.split())


def test_broken_traces_are_refused_and_nothing_is_written(planner, tmp_path):
    (tmp_path / "t.jsonl").write_text(MOONCAKE.replace("16,", "1 6,"))
    target = tmp_path / "preset.yaml"
    code, out, err = planner("workload", tmp_path / "t.jsonl", "-o", target)
    assert (code, out) == (2, "")
    assert "line 2: is not JSON" in err
    assert not target.exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,5,6\n0,7,8\n", "has no rate: all requests arrive at the same time"),
        ("0,5,0\n1,7,0\n", "has no output tokens at all"),
    ],
)
def test_traces_without_a_rate_or_output_have_no_preset(planner, tmp_path, rows, message):
    (tmp_path / "t.csv").write_text(HEADER + rows)
    code, _, _ = planner("workload", tmp_path / "t.csv")
    assert code == 0
    code, _, err = planner("workload", tmp_path / "t.csv", "-o", tmp_path / "p.yaml")
    assert code == 2
    assert message in err
    assert not (tmp_path / "p.yaml").exists()
    assert message in refused(tmp_path, "trace: t.csv")[0]


# The preset


def test_a_preset_says_what_its_trace_says(planner, poisson, tmp_path):
    target = tmp_path / "mine.yaml"
    code, out, _ = planner("workload", poisson, "-o", target)
    assert code == 0
    assert out.endswith(f"preset written to {target}\n")
    by_file, by_trace = load_traffic(target), traffic_of(read_trace(poisson))
    assert by_file == by_trace
    assert by_file.name == "chat"
    assert by_file.request_rate == pytest.approx(1200 / read_trace(poisson).duration, rel=1e-3)
    assert len(by_file.lengths.isl.points) == 37
    assert by_file.lengths.isl_per_output_token > by_file.lengths.isl.mean
    for kind in ("trace: chat.csv", "preset: ./mine.yaml", "preset: mine.yaml"):
        assert planned(tmp_path, kind).lengths == by_file.lengths


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("requests: 1200", "requests: 0", "requests: must be > 0, got 0"),
        ("[0, 0.005", "[0.005, 0", "probabilities must ascend from 0 to 1"),
        ("request_rate: ", "rate: ", "request_rate: is required"),
    ],
)
def test_bad_presets(planner, poisson, tmp_path, old, new, message):
    target = tmp_path / "mine.yaml"
    planner("workload", poisson, "-o", target)
    target.write_text(target.read_text().replace(old, new, 1))
    assert message in refused(tmp_path, "preset: mine.yaml")[0]


def test_no_such_preset(tmp_path):
    (problem,) = refused(tmp_path, "preset: ./nowhere.yaml")
    assert problem.startswith("line 3: workload.preset: /nowhere.yaml: no such file")


# Scenarios


def test_a_scenario_takes_rate_lengths_and_burstiness(poisson, tmp_path):
    workload = planned(tmp_path, "trace: chat.csv")
    trace = read_trace(poisson)
    assert workload.name == "chat"
    assert workload.request_rate == pytest.approx(trace.requests / trace.duration, rel=1e-4)
    assert workload.lengths.isl.mean == pytest.approx(trace.isl.mean(), rel=0.01)
    tied = float(np.dot(trace.isl, trace.osl)) / trace.osl.sum()
    assert workload.lengths.isl_per_output_token == pytest.approx(tied, rel=1e-4)
    assert workload.lengths.longest == (trace.isl + trace.osl).max()
    assert workload.arrival_scv == pytest.approx(1, abs=0.15)
    assert workload.arrival_scv != 1
    assert workload.prefix_hit_rate == 0
    assert workload.note == ""


def test_what_is_given_wins(poisson, tmp_path):
    text = (
        "{trace: chat.csv, request_rate: 30, arrivals: poisson, output_tokens: 64, input_tokens: {max: 500}}"
    )
    workload = planned(tmp_path, text)
    assert (workload.request_rate, workload.arrival_scv) == (30, 1)
    assert (workload.lengths.osl.points, workload.lengths.isl.maximum) == ((64,), 500)
    assert workload.lengths.longest == 564


@pytest.fixture
def bursts(tmp_path: Path) -> Path:
    """Twenty minutes of which every fifth is busy."""
    times = [60.0 * minute + i / 10 for minute in range(0, 20, 5) for i in range(500)]
    path = tmp_path / "bursts.csv"
    path.write_text(HEADER + "".join(f"{t},100,10\n" for t in times))
    return path


def test_bursts_of_minutes_are_planned_as_poisson_and_said(bursts, tmp_path):
    workload = planned(tmp_path, "trace: bursts.csv")
    assert workload.arrival_scv == 1
    assert "comes in bursts (inter-arrival CV " in workload.note
    assert "its busiest minute is at " in workload.note
    own = planned(tmp_path, "{trace: bursts.csv, arrivals: trace}")
    assert own.arrival_scv == pytest.approx(traffic_of(read_trace(bursts)).arrival_scv)
    assert own.arrival_scv > 4
    assert own.note == ""


def test_arrivals_of_a_preset(tmp_path):
    assert planned(tmp_path, "{preset: azure-2023-code, arrivals: trace}").arrival_scv == pytest.approx(
        13.15**2, rel=0.01
    )


def test_extreme_variation_is_refused(tmp_path):
    times = [i * 1e-5 for i in range(30_000)] + [1e6]
    (tmp_path / "t.csv").write_text(HEADER + "".join(f"{t:.5f},100,10\n" for t in times))
    (problem,) = refused(tmp_path, "{trace: t.csv, arrivals: trace}")
    assert problem.startswith(
        "line 3: workload.arrivals: have a coefficient of variation of 173, at most 100"
    )
    assert planned(tmp_path, "{trace: t.csv}").arrival_scv == 1


def test_prefix_hits_are_said_and_not_assumed(tmp_path):
    (tmp_path / "t.jsonl").write_text(MOONCAKE)
    workload = planned(tmp_path, "{trace: t.jsonl, prefix_cache_hit_rate: 0.1}")
    assert workload.prefix_hit_rate == 0.1
    assert "an infinite prefix cache would hit 25% of the prompt tokens of t; planned with " in workload.note
    assert "prefix_cache_hit_rate 0.1" in workload.note
    assert "only 3 requests" in workload.note


def test_problems_of_a_trace_are_problems_of_the_scenario(tmp_path):
    (tmp_path / "t.csv").write_text(HEADER + "0,5,6\n1,5.5,6\n2,5,-6\n")
    first, second = refused(tmp_path, "trace: t.csv")
    assert first.startswith("line 3: workload.trace: /t.csv: line 3: input tokens: must be a whole number")
    assert second.startswith("line 3: workload.trace: /t.csv: line 4: output tokens: must be >= 0, got '-6'")


def test_requests_beyond_the_models_context_are_counted(tmp_path):
    (tmp_path / "t.csv").write_text(HEADER + "0,4096,100\n1,140000,100\n2,4096,100\n")
    (problem,) = refused(tmp_path, "trace: t.csv")
    assert problem == (
        "line 3: workload.trace: 1 of 3 requests need more than the 131,072 tokens that the model takes, the "
        "first on line 3: 140,000 + 100, got 't.csv' (cut them: input_tokens: {max: 130972})"
    )
    cut = planned(tmp_path, "{trace: t.csv, input_tokens: {max: 130972}}")
    assert cut.lengths.longest == 131_072


def test_the_longest_prompt_and_output_need_not_meet(tmp_path):
    (tmp_path / "t.csv").write_text(HEADER + "0,131000,10\n1,10,131000\n")
    assert planned(tmp_path, "trace: t.csv").lengths.longest == 131_010


def test_a_trace_and_a_preset_exclude_each_other(poisson, tmp_path):
    (problem,) = refused(tmp_path, "{trace: chat.csv, preset: azure-2023-code}")
    assert problem.startswith("line 3: workload.trace: is given beside a preset")


def test_requests_without_output_are_demand(tmp_path):
    (tmp_path / "t.csv").write_text(HEADER + "".join(f"{i},100,{i % 2 * 20}\n" for i in range(200)))
    workload = planned(tmp_path, "trace: t.csv")
    assert workload.request_rate == pytest.approx(200 / 199, rel=1e-4)
    assert workload.lengths.osl.points[0] == 1
    assert workload.lengths.isl_per_output_token == 100
    assert "100 requests have no output token" in workload.note
