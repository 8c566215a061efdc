"""``simulate`` and ``evaluate`` as users meet them: what is printed, what is refused, and with which code."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Result, Runner

from planner.documents.plan import dump_plan, load_plan, rebased
from planner.documents.scenario import scenario_from_text
from planner.documents.yaml_text import dump_yaml, parse_tree
from planner.errors import SpecError
from planner.evaluation import simulate
from planner.plan import Plan
from planner.search import SolveOptions
from planner.workflow import solve

ROOT = Path(__file__).parents[1]
RATE = 20.0  # of the plan [req/s]
SCENARIO = f"""\
model: meta-llama/Llama-3.1-8B
workload: {{request_rate: {RATE:g}, input_tokens: {{mean: 1000, cv: 0.5}}, output_tokens: 200}}
slo: {{ttft_ms: {{p99: 900}}, tpot_ms: {{p99: 25}}}}
fleet:
  - {{gpu: h100-sxm, price_per_gpu_hour: 3.0, max_gpus: 64, node_size: 8}}
options: {{max_tp: 1, max_pp: 1, whole_nodes: false, colocated: forbidden}}
"""
PREFILL, DECODE = "prefill-h100-sxm-tp1", "decode-h100-sxm-tp1"
COLOCATED = """\
model: meta-llama/Llama-3.1-8B
workload: {request_rate: 10, input_tokens: 1000, output_tokens: 50}
slo: {ttft_ms: {p99: 900}, tpot_ms: {p99: 40}}
groups:
  - {name: all, phase: colocated, gpu: h100-sxm, replicas: 2}
"""


@pytest.fixture(scope="module")
def solved() -> Plan:
    return solve(scenario_from_text(SCENARIO), SolveOptions(alternatives=False, verify=False))


@pytest.fixture(scope="module")
def plan(solved: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("plan") / "plan.yaml", dump_plan(solved))


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def edited(plan: Path, target: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The plan after an edit by hand."""
    document = parse_tree(plan.read_text(encoding="utf-8"), "plan")[0].raw
    change(document)
    return written(target, dump_yaml(document))


def trace_file(path: Path, rows: list[tuple[float, int, int]]) -> Path:
    lines = ["arrived_at,num_prefill_tokens,num_decode_tokens", *(",".join(map(str, row)) for row in rows)]
    return written(path, "\n".join(lines) + "\n")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """600 requests at 5 a second, of 500 and 20 tokens."""
    return trace_file(tmp_path / "even.csv", [(i / 5, 500 + i % 7, 20) for i in range(600)])


def refused(result: Result, *words: str) -> None:
    """Bad input: one message, nothing else."""
    assert (result.code, result.out) == (2, "")
    assert "Traceback" not in result.err
    assert "Warning" not in result.err
    for word in words:
        assert word in result.err


# --------------------------------------------------------------------------------------------
# What is said

KEYS = {
    "source", "replayed", "requests", "measured", "unserved", "rejected", "request_rate",
    "offered_request_rate", "planned_request_rate", "confidence", "ttft_ms", "tpot_ms", "itl_ms", "e2e_ms",
    "half_width_ms", "goodput", "attainment", "passed", "decided", "filled", "failures", "overload", "slo",
    "growth",
    "ttft_parts_ms", "stall_ms", "stall_share", "preemptions", "prefix_hit_rate", "duration_s", "groups",
    "replicas", "classes", "notes", "cpu_seconds",
}  # fmt: skip


def test_json_has_stable_keys(planner: Runner, plan: Path) -> None:
    result = planner("simulate", plan, "--requests", 5000, "--json")
    facts = result.facts
    assert (result.code, result.err) == (0, "")
    assert set(facts) == KEYS
    for metric in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        assert list(facts[metric]) == ["mean", "p50", "p90", "p95", "p99"]
    assert facts["passed"]
    assert facts["failures"] == []
    assert facts["offered_request_rate"] == facts["planned_request_rate"] == RATE
    assert 0.97 * RATE < facts["goodput"] <= facts["request_rate"] < 1.05 * RATE


def test_series_come_on_demand(planner: Runner, plan: Path) -> None:
    facts = planner("simulate", plan, "--requests", 300, "--json", "--series").facts
    assert {one["name"] for one in facts["series"]} == {PREFILL, DECODE}
    assert all(len(one["queue"]) == len(one["time_s"]) for one in facts["series"])


def test_a_run_prints_latencies_verdicts_and_groups(planner: Runner, plan: Path) -> None:
    result = planner("simulate", plan, "--requests", 5000)
    assert (result.code, result.err) == (0, "")
    assert "5,000 requests, Poisson arrivals at 20 req/s; 80% quantile of the model error" in result.out
    assert re.search(r"meets  p99 TTFT <= 900 ms: \d+ ms simulated \(\+/- [\d.]+\), \d+% below", result.out)
    assert "the fleet holds under these requests" in result.out
    assert re.search(rf"^{DECODE} +1 ", result.out, re.MULTILINE)
    assert "the plan is for" not in result.out  # it is the plan's rate


def test_another_rate_than_the_planned_one_is_said(planner: Runner, plan: Path) -> None:
    assert "the plan is for 20 req/s\n" in planner("simulate", plan, "--rate", 10, "--requests", 300).out


@pytest.mark.parametrize(
    ("options", "rate", "source"),
    [
        ((), 600 / 119.8, "even at its own 5.01 req/s"),
        (("--rate-scale", "match"), 20.0, "even scaled x3.99 to 20 req/s"),
        (("--rate-scale", "2"), 2 * 600 / 119.8, "even scaled x2 to 10 req/s"),
        (("--rate", "15"), 15.0, "even scaled x2.99 to 15 req/s"),
        (("--requests", "100"), 100 / 19.8, "even at its own 5.05 req/s"),
    ],
)
def test_a_trace_keeps_its_rate_unless_told(
    planner: Runner, plan: Path, trace: Path, options: tuple[str, ...], rate: float, source: str
) -> None:
    facts = planner("simulate", plan, "--trace", trace, "--json", *options).facts
    assert facts["source"] == source
    assert facts["offered_request_rate"] == pytest.approx(rate)
    assert facts["replayed"]
    assert facts["requests"] == (100 if "--requests" in options else 600)


def test_the_rate_of_a_trace_is_told_with_the_plans(planner: Runner, plan: Path, trace: Path) -> None:
    result = planner("simulate", plan, "--trace", trace)
    assert "even at its own 5.01 req/s" in result.out
    assert "the plan is for 20 req/s; --rate-scale match plays the trace at that" in result.out
    assert "95 % interval" not in result.out  # of a trace, latencies are what they are


def test_overload_fails_and_says_that_queues_grow(planner: Runner, plan: Path) -> None:
    result = planner("simulate", plan, "--rate-scale", 3, "--requests", 20_000)
    assert result.code == 5
    assert result.err.startswith("planner: the fleet does not hold: p99 TTFT <= 900 ms: ")
    assert result.err.count("\n") == 1
    for text in ("MISSES p99 TTFT", "times that", "FAILS  queues grow by", "THE FLEET DOES NOT HOLD"):
        assert text in result.out


def test_a_run_too_short_to_tell_says_so(planner: Runner, plan: Path) -> None:
    result = planner("simulate", plan, "--requests", 1)
    assert result.code == 5
    assert "may not hold, the run is too short to tell" in result.err
    assert "from too few requests to be sure" in result.err
    assert "UNSURE p99 TTFT" in result.out
    assert "1 request, Poisson" in result.out
    assert "inf" not in result.out


def test_a_fleet_that_fills_has_no_growing_queues(planner: Runner, plan: Path) -> None:
    """Ten seconds in which requests stay for one or two: their number grows, and the queues do not."""
    facts = planner("simulate", plan, "--requests", 200, "--json").facts
    assert facts["growth"] == 0
    assert planner("simulate", plan, "--requests", 60, "--json").facts["growth"] == 0


def test_a_run_that_ends_before_the_fleet_is_full_is_noted(planner: Runner, plan: Path) -> None:
    result = planner("simulate", plan, "--requests", 100)
    assert "too short a run to fill queues and batches" in " ".join(result.out.split())
    assert not planner("simulate", plan, "--requests", 100, "--json").facts["filled"]


def test_what_it_takes_to_be_sure_is_noted(planner: Runner, plan: Path) -> None:
    out = planner("simulate", plan, "--requests", 2000).out
    assert re.search(r"note: p99 TTFT is known to \d+\.\d% \(95 % interval\): 2% would take about", out)


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("rate", [20, 100])
def test_output_fits_the_width(
    planner: Runner, plan: Path, monkeypatch: pytest.MonkeyPatch, columns: int, rate: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = planner("simulate", plan, "--rate", rate, "--requests", 3000).out
    assert max(map(len, out.splitlines())) <= columns
    header = next(line for line in out.splitlines() if line.startswith("simulated"))
    assert "p99" in header


# --------------------------------------------------------------------------------------------
# Options that contradict one another, or change nothing


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rate", "5", "--rate-scale", "2"], "--rate and --rate-scale: give one of them"),
        (["--schedule", "9:9", "--rate", "5"], "--schedule and --rate: the schedule gives the rates"),
        (["--schedule", "9:9", "--requests", "5"], "--schedule and --requests: as many requests come"),
        (["--schedule", "9:9", "--trace", "TRACE"], "--schedule and --trace: a replayed trace keeps"),
        (["--trace", "TRACE", "--cv", "2"], "--cv: a replayed trace keeps its own arrivals"),
        (["--trace", "TRACE", "--requests", "601"], "--requests: the trace has 600 requests, got 601"),
        (["--trace", "TRACE", "--prefix-cache"], "--prefix-cache: only a replayed trace with block hashes"),
        (["--prefix-cache"], "--prefix-cache: only a replayed trace with block hashes"),
        (["--unit", "s"], "--unit: of the timestamps of --trace"),
        (["--series"], "--series: belongs to --json"),
        (["--policy", "prefill_first"], "--policy: the fleet has no colocated replicas"),
        (["--router", "random", "--measure", "work"], "--measure: random compares nothing"),
        (["--rate-scale", "match"], "--rate-scale match: only a replayed trace"),
        (["--rate-scale", "matsch"], "got 'matsch' (did you mean match?)"),
        (["--rate-scale", "0"], "--rate-scale: give a number > 0 or \"match\", got '0'"),
        (["--rate-scale", "nan"], "got 'nan'"),
        (["--rate-scale", "1e9"], "--rate-scale: must come to 1e-06 to 1,000,000 req/s, got 2e+10 req/s"),
        (["--schedule", "600"], "--schedule: give seconds and rates, e.g. 600:10,300:40, got '600'"),
        (["--schedule", "9:9,x:1"], "got 'x:1'"),
        (["--schedule", "9:-1"], "seconds are > 0, and rates 0 to 1,000,000 req/s, got '9:-1'"),
        (["--schedule", "0:1"], "got '0:1'"),
        (["--schedule", "nan:1"], "got 'nan:1'"),
        (["--schedule", "1e9:1000"], "--schedule: 1e+12 requests would come, 1 to 10,000,000 can be"),
        (["--schedule", "9:0"], "--schedule: 0 requests would come"),
    ],
)
def test_options_without_sense_are_refused(
    planner: Runner, plan: Path, trace: Path, options: list[str], message: str
) -> None:
    refused(planner("simulate", plan, *(str(trace) if o == "TRACE" else o for o in options)), message)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((option, value) for option in ("--rate", "--cv", "--confidence") for value in ("nan", "inf", "-1")),
        ("--rate", "0"), ("--rate", "1e300"), ("--rate", "1e-300"), ("--confidence", "1"), ("--cv", "1e9"),
        ("--requests", "0"), ("--requests", "1000000000"), ("--seed", "-1"), ("--router", "fastest"),
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(planner: Runner, plan: Path, option: str, value: str) -> None:
    refused(planner("simulate", plan, option, value), f"Invalid value for '{option}'")


def test_a_schedule_is_scaled_as_a_whole(planner: Runner, plan: Path) -> None:
    arguments = ("simulate", plan, "--schedule", "60:10,20:30", "--json")
    facts, twice = (planner(*arguments, *more).facts for more in ((), ("--rate-scale", 2)))
    assert facts["offered_request_rate"] == pytest.approx(15)
    assert twice["offered_request_rate"] == pytest.approx(30)
    assert twice["requests"] == pytest.approx(2 * facts["requests"], rel=0.15)


# --------------------------------------------------------------------------------------------
# Traces at the edge


def test_one_request(planner: Runner, plan: Path, tmp_path: Path) -> None:
    one = trace_file(tmp_path / "one.csv", [(0, 100, 10)])
    result = planner("simulate", plan, "--trace", one)
    assert (result.code, result.err) == (0, "")
    assert "1 request, one;" in result.out
    assert "1 requests are few" in result.out
    assert "\n100.00% of requests meet every SLO" in result.out  # no rate, so no goodput
    refused(
        planner("simulate", plan, "--trace", one, "--rate", 3), "has no rate to change: it is one request"
    )


def test_requests_at_once_have_no_rate(planner: Runner, plan: Path, tmp_path: Path) -> None:
    together = trace_file(tmp_path / "crowd.csv", [(5, 100, 10)] * 3)
    assert planner("simulate", plan, "--trace", together, "--json").code == 0
    for scale in ("match", "2"):
        result = planner("simulate", plan, "--trace", together, "--rate-scale", scale)
        refused(result, "--rate-scale: crowd has no rate to change: it is 3 requests at once")


def test_requests_without_output_have_no_tpot(planner: Runner, plan: Path, tmp_path: Path) -> None:
    silent = trace_file(tmp_path / "silent.csv", [(0, 100, 0), (1, 100, 0), (2, 300, 1)])
    result = planner("simulate", plan, "--trace", silent)
    assert result.code == 0
    assert re.search(r"^TPOT( +-){5}", result.out, re.MULTILINE)
    assert "meets  p99 TPOT <= 25 ms: no request has a second token" in result.out
    facts = planner("simulate", plan, "--trace", silent, "--json").facts
    assert facts["tpot_ms"] == dict.fromkeys(("mean", "p50", "p90", "p95", "p99"))
    assert facts["ttft_ms"]["mean"] > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n", "a header and no rows"),
        ("arrived_at,num_prefill_tokens,num_decode_tokens\n0,0,1\n", "line 2: input tokens: must be >= 1"),
        ("a,b\n1,2\n", "the header has no column of arrival"),
    ],
)
def test_traces_that_are_none(planner: Runner, plan: Path, tmp_path: Path, text: str, message: str) -> None:
    refused(planner("simulate", plan, "--trace", written(tmp_path / "t.csv", text)), "t.csv", message)


def test_a_trace_beyond_the_model_is_refused_with_its_line(
    planner: Runner, plan: Path, tmp_path: Path
) -> None:
    long = trace_file(tmp_path / "long.csv", [(0, 4096, 100), (1, 140_000, 100)])
    refused(planner("simulate", plan, "--trace", long), "1 of 2 requests", "131,072", "line 3: 140,000 + 100")


def test_requests_that_the_engines_would_refuse_are_noted(
    planner: Runner, plan: Path, solved: Plan, tmp_path: Path
) -> None:
    limit = solved.groups[0].max_model_len
    long = trace_file(tmp_path / "long.csv", [(i, limit if i % 2 else 500, 20) for i in range(10)])
    out = planner("simulate", plan, "--trace", long).out
    assert f"5 of 10 requests need more than the plan's max_model_len of {limit:,}" in " ".join(out.split())


def test_what_was_decided_while_reading_a_trace_is_noted(planner: Runner, plan: Path, tmp_path: Path) -> None:
    mixed = trace_file(tmp_path / "mixed.csv", [(3, 100, 10), (1, 200, 20), (2, 300, 30)])
    assert any(
        "sorted by arrival" in note
        for note in planner("simulate", plan, "--trace", mixed, "--json").facts["notes"]
    )


def test_a_fleet_that_falls_behind_a_trace_is_told(planner: Runner, plan: Path, tmp_path: Path) -> None:
    burst = trace_file(tmp_path / "burst.csv", [(i / 200, 4000, 100) for i in range(2000)])
    result = planner("simulate", plan, "--trace", burst)
    assert result.code == 5
    assert re.search(r"requests came for 10 s, and it took \d+ s to serve them", " ".join(result.out.split()))


def test_hashes_are_left_alone_where_no_cache_is_simulated(planner: Runner, tmp_path: Path) -> None:
    """Windows do not keep every token: by default without cache, and a refusal where it is asked for."""
    text = COLOCATED.replace("meta-llama/Llama-3.1-8B", "openai/gpt-oss-120b")
    fleet = written(tmp_path / "fleet.yaml", text.replace("replicas: 2", "replicas: 1, tp: 2"))
    hashed = ROOT / "examples" / "traces" / "synthetic-chat.jsonl"
    facts = planner("simulate", fleet, "--trace", hashed, "--json").facts
    assert facts["prefix_hit_rate"] is None
    assert any(note.startswith("without prefix cache") for note in facts["notes"])
    refused(planner("simulate", fleet, "--trace", hashed, "--prefix-cache"), "--prefix-cache: openai/gpt-oss")


def test_a_prefix_cache_is_simulated_where_the_trace_has_hashes(planner: Runner, plan: Path) -> None:
    hashed = ROOT / "examples" / "traces" / "synthetic-chat.jsonl"
    hits, without = (
        planner("simulate", plan, "--trace", hashed, "--json", *more).facts["prefix_hit_rate"]
        for more in ((), ("--no-prefix-cache",))
    )
    assert 0.2 < hits < 0.593  # what an infinite cache finds
    assert without is None


# --------------------------------------------------------------------------------------------
# Failures


NO_FAILURE = ("prefill", "prefill@soon", "prefill@-5", "prefill@nan", "@5", "prefill@1-2-3")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, f"give GROUP@T, GROUP@T-T2 or GROUP#N@T, times in seconds, got {text!r}")
            for text in NO_FAILURE
        ),
        ("prefill@5-3", "it has to fail before it is back, got 'prefill@5-3'"),
        ("prefil-h100@5", f"there is no group 'prefil-h100' (did you mean {PREFILL}?)"),
        ("nothing@5", f"there is no group 'nothing' (groups: {PREFILL}, {DECODE})"),
        ("prefill#0@5", f"{PREFILL} has "),
        ("prefill#99@5", f"{PREFILL} has "),
        ("decode#2@5", f"{DECODE} has one replica, got #2"),
    ],
)
def test_failures_that_cannot_be(planner: Runner, plan: Path, text: str, message: str) -> None:
    refused(planner("simulate", plan, "--fail", text), f"--fail: {message}")


def test_the_start_of_several_names_is_refused(planner: Runner, tmp_path: Path) -> None:
    text = COLOCATED.replace("name: all", "name: all-a") + COLOCATED.splitlines()[-1].replace("all", "all-b")
    fleet = written(tmp_path / "fleet.yaml", text)
    refused(
        planner("simulate", fleet, "--fail", "all@5"), "'all' is the start of several groups: all-a, all-b"
    )


def test_overlapping_failures_are_one(planner: Runner, plan: Path) -> None:
    def latencies(*failures: str) -> object:
        options = [word for failure in failures for word in ("--fail", failure)]
        facts = planner("simulate", plan, "--requests", 4000, "--json", *options).facts
        return facts["ttft_ms"], facts["e2e_ms"]

    whole = latencies("prefill#1@20-60")
    assert latencies("prefill#1@2e1-40", "prefill#1@30-60") == whole
    assert latencies("prefill#1@20-60", "prefill#1@25-30") == whole
    assert latencies("prefill#1@20-60", "prefill#1@25-70") != whole


def test_an_early_failure_is_measured(planner: Runner, plan: Path) -> None:
    """Also where it falls into what would be left out as warm-up."""
    well, ill = (
        planner("simulate", plan, "--requests", 20_000, "--json", *more).facts
        for more in ((), ("--fail", "decode@20-30"))
    )
    assert ill["ttft_ms"]["p99"] > 5 * well["ttft_ms"]["p99"]


def test_the_last_replica_fails_for_good(planner: Runner, plan: Path) -> None:
    result = planner("simulate", plan, "--requests", 3000, "--fail", "decode@50", "--json")
    assert result.code == 5
    assert result.facts["ttft_ms"]["p99"] is None
    assert "requests found no replica to serve them" in result.err
    out = planner("simulate", plan, "--requests", 3000, "--fail", "decode@50").out
    assert "MISSES p99 TTFT <= 900 ms: too many requests were not served" in out


def test_a_failure_after_the_end_is_noted(planner: Runner, plan: Path) -> None:
    facts = planner("simulate", plan, "--requests", 300, "--fail", "decode@1e6", "--json").facts
    assert facts["passed"]
    assert any("fails at 1,000,000 s, when no request comes any more" in note for note in facts["notes"])


# --------------------------------------------------------------------------------------------
# Plans edited by hand


def group(number: int, **changes: object) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        document["groups"][number] |= changes
        document["groups"][number].pop("num_gpus")

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (group(0, replicas=0), "groups[0].replicas: must be >= 1, got 0"),
        (group(0, replicas=10**9), "groups[0].replicas: must be <= 10000"),
        (group(0, replicas="two"), "groups[0].replicas: must be a whole number, got 'two'"),
        (group(0, gpu="h100-smx"), "no GPU 'h100-smx' (did you mean h100-sxm?)"),
        (group(0, zone="east"), "no GPU 'h100-sxm' in zone east, on_demand (it has h100-sxm)"),
        (group(0, price_class="spot"), "no GPU 'h100-sxm' in zone none, spot (it has h100-sxm)"),
        (group(1, max_num_seqs=10**12), "groups[1].max_num_seqs: must be <= 100000"),
        (group(0, max_num_batched_tokens=10**12), "groups[0].max_num_batched_tokens: must be <="),
        (group(1, kv_capacity_tokens=10**9), "groups[1].kv_capacity_tokens: exceeds the"),
        (group(1, kv_capacity_tokens=32), "KV cache holds 32 tokens, the longest sequence needs"),
        (group(1, parallelism={"tp": 3, "pp": 1, "ep": 1, "dp": 1}), "the nearest legal TP is"),
        (group(0, parallelism={"tp": 4, "pp": 1, "ep": 1, "dp": 1}), "cannot take KV caches from groups[0]"),
        (group(1, name=PREFILL), "is the name of another group"),
        (group(1, phase="prefill"), "there are prefill groups, but no decode group"),
        (lambda d: d.update(groups=[]), "the plan has no groups"),
        (lambda d: d.update(services=[]), "the plan has no services"),
        (lambda d: d.pop("scenario"), "scenario: is required"),
        (lambda d: d["scenario"].pop("model"), "scenario.model: is required"),
        (lambda d: d["scenario"]["workload"].update(prest=1), "scenario.workload.prest: unknown key"),
        (lambda d: d["services"][0].update(request_rate=0), "services[0].request_rate: must be 1e-06 to"),
        (lambda d: d["services"][0].update(request_rate=1e308), "services[0].request_rate: must be 1e-06 to"),
        (lambda d: d.update(schema_version=99), "is newer than this program reads"),
    ],
)
def test_edited_plans_are_refused(
    planner: Runner, plan: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    result = planner("simulate", edited(plan, tmp_path / "edited.yaml", change), "--requests", 100)
    refused(result, str(tmp_path / "edited.yaml"), message)


def test_problems_of_the_scenario_have_lines_of_the_plan(planner: Runner, plan: Path, tmp_path: Path) -> None:
    path = edited(plan, tmp_path / "edited.yaml", lambda d: d["scenario"]["fleet"][0].update(gpu="h100"))
    path.write_text(path.read_text(encoding="utf-8").replace("gpu: h100\n", "gpu: h1000\n"), encoding="utf-8")
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "h1000" in text)
    refused(planner("simulate", path), f"line {line}: scenario.fleet[0].gpu: unknown GPU 'h1000'")


def test_an_edit_that_can_run_is_simulated(planner: Runner, plan: Path, tmp_path: Path) -> None:
    more = edited(plan, tmp_path / "more.yaml", group(0, replicas=6))
    facts = planner("simulate", more, "--requests", 300, "--json").facts
    assert [use["replicas"] for use in facts["groups"]] == [6, 1]


def test_other_files_are_named_for_what_they_are(planner: Runner, plan: Path, tmp_path: Path) -> None:
    scenario = written(tmp_path / "scenario.yaml", SCENARIO)
    for command in ("simulate", "evaluate"):
        refused(planner(command, scenario), "is a scenario, not a plan", "planner solve makes a plan of it")
    refused(planner("simulate", tmp_path / "scenario.yml"), "no such file", "did you mean")
    refused(planner("simulate", tmp_path), "is a folder, not a file")
    refused(planner("simulate", written(tmp_path / "list.yaml", "[1, 2]")), "must be a mapping of keys")


# --------------------------------------------------------------------------------------------
# Files beside the plan


def test_a_plan_elsewhere_finds_its_files(planner: Runner, trace: Path, tmp_path: Path) -> None:
    """Its scenario names a trace relative to its own folder."""
    home, other = tmp_path / "home", tmp_path / "deep" / "other"
    home.mkdir()
    other.mkdir(parents=True)
    trace.rename(home / "even.csv")
    lengths = "input_tokens: {mean: 1000, cv: 0.5}, output_tokens: 200"
    scenario = written(home / "scenario.yaml", SCENARIO.replace(lengths, "trace: even.csv"))
    target = other / "plan.yaml"
    assert planner("solve", scenario, "-o", target, "--no-verify", "--no-alternatives").code == 0
    assert "trace: ../../home/even.csv\n" in target.read_text(encoding="utf-8")
    facts = planner("simulate", target, "--json").facts
    assert facts["source"] == "even scaled x3.99 to 20 req/s"
    (home / "even.csv").unlink()
    refused(planner("simulate", target), "scenario.workload.trace: ", "no such file")


def scenario_with(solved: Plan, **changes: object) -> Plan:
    return replace(solved, scenario={**solved.scenario, **changes})


def test_names_of_the_catalogue_and_absolute_paths_stay(solved: Plan, tmp_path: Path) -> None:
    """Also where a folder has the name of a model: the catalogue wins."""
    name = "meta-llama/Llama-3.1-8B"
    (tmp_path / "old" / name).mkdir(parents=True)
    (tmp_path / "old" / "h100-sxm").mkdir()
    (tmp_path / "new").mkdir()
    absolute = written(tmp_path / "old" / "t.csv", "")
    before = scenario_with(solved, model=name, workload={"trace": str(absolute)}, fleet=[{"gpu": "h100-sxm"}])
    assert rebased(before, tmp_path / "old", tmp_path / "new").scenario == before.scenario


def test_relative_paths_stay_paths(solved: Plan, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for file in ("config.json", "gpu.yaml", "mine.yaml"):
        written(tmp_path / "old" / file, "")
    before = scenario_with(
        solved, model="config.json", workload={"preset": "mine.yaml"}, fleet=[{"gpu": "gpu.yaml"}]
    )
    after = rebased(before, tmp_path / "old", tmp_path).scenario
    assert after["model"] == "./old/config.json"
    assert after["workload"] == {"preset": "./old/mine.yaml"}
    assert after["fleet"] == [{"gpu": "./old/gpu.yaml"}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--plot", "run.jpg"],
            "run.jpg: 1 problem\n  - is no picture (the name has to end in .png or .svg)",
        ),
        (["--timeline", "run"], "is no picture"),
        (["--plot", "no/run.png"], "there is no folder"),
        (["--plot", "run.png", "--timeline", "run.png"], "would replace another file of this command"),
        (["--plot", "{folder}.svg"], "is a folder"),
    ],
)
def test_pictures_are_checked_first(
    planner: Runner,
    plan: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.svg").mkdir()
    names = [option.format(folder="folder") for option in options]
    refused(planner("simulate", plan, *names), message)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.svg"]


def test_pictures_of_a_trace_are_written(planner: Runner, plan: Path, trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run, requests = tmp_path / "run.svg", tmp_path / "requests.svg"
    result = planner("simulate", plan, "--trace", trace, "--plot", run, "--timeline", requests)
    assert (result.code, result.err) == (0, "")
    for path in (run, requests):
        assert f"picture written to {path}" in result.out
        assert path.read_text(encoding="utf-8").startswith("<?xml")


# --------------------------------------------------------------------------------------------
# evaluate


def test_what_a_fleet_carries(planner: Runner, tmp_path: Path) -> None:
    fleet = written(tmp_path / "fleet.yaml", COLOCATED)
    result = planner("evaluate", fleet, "--requests", 5000, "--json")
    facts = result.facts
    assert (result.code, result.err) == (0, "")
    assert set(facts) == {
        "max_request_rate", "max_request_rate_per_gpu", "gpus", "cost_per_hour", "usd_per_million_tokens",
        "request_rate", "passed", "breaks_first", "at_offered", "at_most", "confidence", "cpu_seconds",
    }  # fmt: skip
    assert facts["passed"]
    assert facts["max_request_rate"] > 10 == facts["request_rate"]
    assert set(facts["at_offered"]) == set(facts["at_most"]) == KEYS
    assert facts["breaks_first"]["pools"] == ["colocated"]
    assert facts["cost_per_hour"] is facts["usd_per_million_tokens"] is None  # nobody gave a price


def test_a_rate_that_is_too_much_fails(planner: Runner, tmp_path: Path) -> None:
    fleet = written(tmp_path / "fleet.yaml", COLOCATED)
    result = planner("evaluate", fleet, "--requests", 3000, "--rate", 500)
    assert result.code == 5
    assert "the fleet does not carry 500 req/s within its SLOs: p99 T" in result.err
    assert "NIC" not in result.out  # colocated replicas hand nothing over
    assert "hand-over" not in result.out


@pytest.mark.parametrize("rated", [True, False])
def test_a_fleet_that_carries_nothing(planner: Runner, tmp_path: Path, rated: bool) -> None:
    text = COLOCATED.replace("p99: 900", "p99: 1")
    fleet = written(tmp_path / "fleet.yaml", text if rated else text.replace("request_rate: 10, ", ""))
    result = planner("evaluate", fleet, "--requests", 2000)
    assert result.code == 5
    assert "carries nothing within its SLOs" in result.out
    assert "where requests hardly meet: colocated" in result.out
    assert ("does not carry 10 req/s" if rated else "carries nothing within its SLOs") in result.err
    assert planner("evaluate", fleet, "--requests", 2000, "--json").facts["at_most"] is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("slo: {ttft_ms: {p99: 900}, tpot_ms: {p99: 40}}\n", "", "slo: is required"),
        ("replicas: 2", "replicsa: 2", "groups[0].replicsa: unknown key (did you mean replicas?)"),
        ("h100-sxm", "h100-smx", "did you mean h100-sxm?"),
    ],
)
def test_broken_fleets(planner: Runner, tmp_path: Path, old: str, new: str, message: str) -> None:
    fleet = written(tmp_path / "fleet.yaml", COLOCATED.replace(old, new))
    refused(planner("evaluate", fleet), "fleet.yaml", message)


def test_evaluations_need_runs_that_tell(planner: Runner, tmp_path: Path) -> None:
    fleet = written(tmp_path / "fleet.yaml", COLOCATED)
    refused(planner("evaluate", fleet, "--requests", 50), "Invalid value for '--requests'")
    for rate in ("nan", "1e300", "0"):
        refused(planner("evaluate", fleet, "--rate", rate), "Invalid value for '--rate'")


def test_a_fleet_without_rate_has_none_to_match(planner: Runner, trace: Path, tmp_path: Path) -> None:
    fleet = written(tmp_path / "fleet.yaml", COLOCATED.replace("request_rate: 10, ", ""))
    result = planner("simulate", fleet, "--trace", trace, "--rate-scale", "match")
    refused(result, "--rate-scale match: the fleet file gives no request_rate; --rate does")
    assert planner("simulate", fleet, "--trace", trace, "--json").facts["planned_request_rate"] is None


@pytest.mark.parametrize("rate", [math.nan, math.inf, 0.0, 1e300, 1e-300])
def test_rates_from_python_have_the_same_bounds(plan: Path, rate: float) -> None:
    with pytest.raises(SpecError, match="rate must be 1e-06 to 1,000,000 req/s, got"):
        simulate(plan, rate=rate)


# --------------------------------------------------------------------------------------------
# solve, where its plan does not hold


def test_a_plan_that_does_not_hold_is_written_and_marked(planner: Runner, tmp_path: Path) -> None:
    """All at once every minute: more than the stock can answer in time."""
    rows = [(60.0 * (i // 300) + (i % 300) / 300, 3000, 20) for i in range(3000)]
    trace_file(tmp_path / "crowds.csv", rows)
    lengths = "input_tokens: {mean: 1000, cv: 0.5}, output_tokens: 200"
    text = SCENARIO.replace(lengths, "trace: crowds.csv").replace("max_gpus: 64", "max_gpus: 8")
    text = text.replace("request_rate: 20", "request_rate: 5")
    scenario, target = written(tmp_path / "scenario.yaml", text), tmp_path / "plan.yaml"
    result = planner("solve", scenario, "-o", target, "--no-alternatives")
    assert result.code == 5
    assert "planner: the plan does not hold in simulation: p99 TTFT <= 900 ms" in result.err
    assert f"{target} has it with verification.passed: false" in result.err
    assert "DOES NOT HOLD in simulation" in result.out
    verification = load_plan(target).verification
    assert verification is not None
    assert not verification.passed


# --------------------------------------------------------------------------------------------
# Processes: pipes, Ctrl-C, terminals

INTERRUPTED = """\
import os, signal, sys, time
import planner.cli.simulate
from planner.cli import main

def endless(*arguments, **options):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)

planner.cli.simulate.simulate_fleet = endless
sys.argv = ["planner", "simulate", {plan!r}, "--plot", {picture!r}]
main()
"""


def test_ctrl_c_ends_a_long_run_at_once(plan: Path, tmp_path: Path) -> None:
    picture = tmp_path / "run.svg"
    code = INTERRUPTED.format(plan=str(plan), picture=str(picture))
    started = time.monotonic()
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 130
    assert time.monotonic() - started < 30
    assert (run.stdout, run.stderr.strip()) == ("", "planner: interrupted; nothing was written")
    assert not picture.exists()


def test_a_plan_may_come_through_a_pipe_whose_reader_leaves(plan: Path) -> None:
    if not Path("/dev/stdin").exists():
        pytest.skip("this system has no /dev/stdin")
    command = [sys.executable, "-m", "planner", "simulate", "-", "--requests", "300"]
    read, write = os.pipe()
    os.close(read)
    try:
        with plan.open() as text:
            run = subprocess.run(
                command, stdin=text, stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False
            )
    finally:
        os.close(write)
    assert (run.returncode, run.stderr) == (0, "")


def test_standard_input_is_one_file(planner: Runner) -> None:
    refused(planner("simulate", "-", "--trace", "-"), "standard input is the plan or the trace, not both")


def test_progress_is_shown_on_a_terminal_alone(plan: Path, tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "planner", "simulate", str(plan), "--json", "--requests", "200000"]
    with (tmp_path / "out.json").open("w") as out:
        run = subprocess.Popen(
            command, stdout=out, stderr=follower, cwd=ROOT, env=os.environ | {"TERM": "xterm-256color"}
        )
        os.close(follower)
        said = b""
        while True:
            try:
                chunk = os.read(leader, 65536)
            except OSError:  # the other end has closed
                break
            if not chunk:
                break
            said += chunk
        run.wait()
    os.close(leader)
    assert run.returncode == 0
    assert b"simulating ..." in said
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["passed"]
