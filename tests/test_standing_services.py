"""Plans of several services, zones and periods, as ``simulate``, ``evaluate`` and ``timeline`` read them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Result, Runner

from planner.documents.plan import dump_plan
from planner.documents.scenario import scenario_from_text
from planner.documents.yaml_text import dump_yaml, parse_tree
from planner.errors import SpecError
from planner.evaluation import Standing, evaluate, simulate, standing_plan, standing_plans
from planner.plan import PeriodPlan, Plan
from planner.report.terminal import print_plan
from planner.search import SolveOptions
from planner.specs import Phase
from planner.workflow import solve

SEVERAL = """\
models:
  - name: chat
    model: meta-llama/Llama-3.1-8B
    workload: {request_rate: 20, arrivals: {cv: 2}, input_tokens: {mean: 600, cv: 0.5}, output_tokens: 100}
    slo: {ttft_ms: {p99: 900}, tpot_ms: {p99: 30}}
  - name: digest
    model: meta-llama/Llama-3.1-8B
    workload: {request_rate: 4, input_tokens: 3000, output_tokens: 50}
    slo: {ttft_ms: {p99: 2000}}
fleet:
  - {gpu: h100-sxm, zone: east, price_per_gpu_hour: 3.0, max_gpus: 64, node_size: 8}
"""
ZONES = """\
  - {gpu: h100-sxm, zone: west, price_per_gpu_hour: 2.0, price_class: spot, interruptions_per_hour: 0.01}
"""
OPTIONS = "options: {max_tp: 1, max_pp: 1, whole_nodes: false, colocated: COLOCATED, SURVIVE}\n"
CHAT, DIGEST = ("chat, east", "chat, west"), ("digest, east", "digest, west")


def solved(text: str) -> Plan:
    return solve(scenario_from_text(text), SolveOptions(alternatives=False, verify=False))


@pytest.fixture(scope="module")
def two() -> Plan:
    """Two services behind a router each."""
    return solved(SEVERAL + OPTIONS.replace("COLOCATED", "forbidden").replace(", SURVIVE", ""))


@pytest.fixture(scope="module")
def zoned() -> Plan:
    """The same in two zones, each with a router of its own."""
    options = OPTIONS.replace("COLOCATED", "only").replace("SURVIVE", "survive: [zone]")
    return solved(SEVERAL + ZONES + options)


@pytest.fixture(scope="module")
def scheduled(two: Plan) -> Plan:
    """Two services in two periods: at night chat gets a quarter, and digest nothing."""
    chat = [group for group in two.groups if group.service == "chat"]
    more = [replace(group, replicas=2 * group.replicas, cost=2 * (group.cost or 0.0)) for group in chat]
    rest = [group for group in two.groups if group.service != "chat"]
    night = {group.name: group.replicas // 2 for group in more}
    periods = (
        PeriodPlan(name="day", hours=16, cost=60.0, replicas={}, request_rates={"chat": 20.0, "digest": 4.0}),
        PeriodPlan(
            name="night", hours=8, cost=20.0, replicas=night, request_rates={"chat": 5.0, "digest": 0.0}
        ),
    )
    return replace(two, groups=(*more, *rest), periods=periods)


def written(plan: Plan, path: Path, change: Callable[[dict[str, Any]], object] = lambda _d: None) -> Path:
    """The plan's file, after an edit by hand."""
    document = parse_tree(dump_plan(plan), "plan")[0].raw
    change(document)
    path.write_text(dump_yaml(document), encoding="utf-8")
    return path


def refused(result: Result, *words: str) -> None:
    assert (result.code, result.out) == (2, "")
    for word in words:
        assert word in result.err


def names(standings: tuple[Standing, ...]) -> tuple[str, ...]:
    return tuple(standing.name for standing in standings)


# --------------------------------------------------------------------------------------------
# As planned


def test_every_service_stands_with_its_own_groups_and_traffic(two: Plan) -> None:
    standings = standing_plans(two)
    assert names(standings) == ("chat", "digest")
    chat, digest = standings
    assert (chat.offered, digest.offered) == (20.0, 4.0)
    assert chat.fleet.service.workload.arrival_scv == 4.0
    assert digest.fleet.service.workload.lengths.isl.mean == pytest.approx(3000)
    assert set(chat.names) | set(digest.names) == {group.name for group in two.groups}
    assert not set(chat.names) & set(digest.names)
    assert two.cost == pytest.approx(sum(standing.cost or math.nan for standing in standings))


def test_zones_share_the_requests_of_a_service(zoned: Plan) -> None:
    standings = standing_plans(zoned)
    assert set(names(standings)) == {*CHAT, *DIGEST}
    chat = [standing for standing in standings if standing.name in CHAT]
    assert sum(standing.offered or math.nan for standing in chat) == pytest.approx(20.0)
    for standing in chat:
        share = (standing.offered or math.nan) / 20.0
        assert standing.fleet.service.workload.arrival_scv == pytest.approx(1 + share * 3)
        assert standing.source.rate == standing.offered
        (zone,) = {group.item.zone for group in standing.fleet.groups}
        assert standing.name == f"chat, {zone}"
    assert zoned.cost == pytest.approx(sum(standing.cost or math.nan for standing in standings))


def test_every_service_replays_its_own_trace(two: Plan, tmp_path: Path) -> None:
    rows = ["arrived_at,num_prefill_tokens,num_decode_tokens", *(f"{i},{700 + i},20" for i in range(60))]
    (tmp_path / "digest.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    chat, digest = two.scenario["models"]
    models = [chat, digest | {"workload": {"trace": "digest.csv", "request_rate": 4}}]
    drawn, played = standing_plans(replace(two, scenario=two.scenario | {"models": models}), tmp_path)
    assert drawn.source.trace is None
    assert played.source.trace is not None
    assert played.source.replay
    result = simulate(played)
    assert (result.requests, result.request_rate) == (60, pytest.approx(4.0, rel=0.05))


def test_one_of_several_has_to_be_named(two: Plan, zoned: Plan) -> None:
    assert standing_plan(two, service="digest").offered == 4.0
    with pytest.raises(SpecError, match=r"2 services, of which one has to be named: chat; digest"):
        standing_plan(two)
    with pytest.raises(SpecError, match=r"no service 'digset' \(did you mean digest\?\)"):
        simulate(two, service="digset")
    with pytest.raises(SpecError, match=r"2 services, .*: chat, .*; chat, "):
        standing_plan(zoned, service="chat")


def test_python_functions_take_a_service(two: Plan) -> None:
    result = simulate(two, service="digest", requests=300)
    assert result.requests == 300
    assert result.passed
    found = evaluate(two, service="digest", offered=4.0, number=2000)
    assert found.request_rate > 4.0
    with pytest.raises(SpecError, match="has to be named"):
        evaluate(two)


# --------------------------------------------------------------------------------------------
# Periods


def test_the_busiest_period_is_the_plan_itself(scheduled: Plan) -> None:
    for plain, day in zip(standing_plans(scheduled), standing_plans(scheduled, period="day"), strict=True):
        assert plain.names == day.names
        assert plain.offered == day.offered
        assert [g.replicas for g in plain.fleet.groups] == [g.replicas for g in day.fleet.groups]
        assert [g.rate for g in day.fleet.groups] == pytest.approx([g.rate for g in plain.fleet.groups])


def test_a_period_has_its_own_replicas_and_rates(scheduled: Plan) -> None:
    (night,) = standing_plans(scheduled, period="night")
    day = standing_plan(scheduled, service="chat")
    assert (night.name, night.offered) == ("chat", 5.0)
    assert [2 * g.replicas for g in night.fleet.groups] == [g.replicas for g in day.fleet.groups]
    for phase in (Phase.PREFILL, Phase.DECODE):
        assert sum(g.rate for g in night.fleet.pool(phase)) == pytest.approx(5.0)
    result = simulate(scheduled, period="night", requests=400)
    assert result.request_rate == pytest.approx(5.0, rel=0.3)


def test_zones_of_a_period_take_what_they_carry(zoned: Plan) -> None:
    east = [g.name for g in zoned.groups if (g.service, g.zone) == ("chat", "east")]
    west = [g.name for g in zoned.groups if (g.service, g.zone) == ("chat", "west")]
    rates = {"chat": 8.0, "digest": 0.0}

    def of(replicas: dict[str, int]) -> dict[str, float]:
        one = PeriodPlan(name="one", hours=1, cost=None, replicas=replicas, request_rates=rates)
        plan = replace(zoned, periods=(one,))
        return {s.name: s.offered or math.nan for s in standing_plans(plan, period="one")}

    both = of({})
    assert sum(both.values()) == pytest.approx(8.0)
    more = of(dict.fromkeys(east, 30))
    assert more["chat, east"] > both["chat, east"]
    assert sum(more.values()) == pytest.approx(8.0)
    assert of(dict.fromkeys(west, 0)) == {"chat, east": 8.0}


def test_periods_that_cannot_be_are_refused(
    planner: Runner, two: Plan, scheduled: Plan, tmp_path: Path
) -> None:
    path = written(scheduled, tmp_path / "plan.yaml")
    refused(planner("simulate", path, "--period", "nigt"), "unknown period 'nigt' (did you mean night?)")
    plain = written(two, tmp_path / "plain.yaml")
    refused(planner("simulate", plain, "--period", "day"), "no period 'day': the plan is for one constant")

    def stop(document: dict[str, Any]) -> None:
        document["periods"][1]["replicas"] = {g["name"]: 0 for g in document["groups"] if "pre" in g["name"]}

    stopped = written(scheduled, tmp_path / "stopped.yaml", stop)
    message = "periods[1].replicas: no prefill replica of 'chat' runs, and 5 req/s come"
    refused(planner("simulate", stopped, "--period", "night"), message, "line ")
    assert planner("simulate", stopped, "--period", "day", "--requests", 300, "--json").facts["passed"]
    silent = written(
        scheduled, tmp_path / "silent.yaml", lambda d: d["periods"][1]["request_rates"].update(chat=0)
    )
    refused(planner("evaluate", silent, "--period", "night"), "no requests come")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["periods"][1]["replicas"].update(abc=1), "periods[1].replicas.abc: unknown group"),
        (lambda d: d["periods"][0]["request_rates"].update(chta=1), "unknown service (did you mean chat?)"),
        (lambda d: d["periods"][0]["request_rates"].pop("chat"), "request_rates: gives no rate of 'chat'"),
        (lambda d: d["periods"][1].update(name="day"), "periods[1].name: is the name of another period"),
    ],
)
def test_periods_fit_the_plan(
    planner: Runner,
    scheduled: Plan,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
    message: str,
) -> None:
    path = written(scheduled, tmp_path / "edited.yaml", change)
    refused(planner("simulate", path), str(path), "1 problem", "line ", message)


# --------------------------------------------------------------------------------------------
# The command line


def test_simulate_goes_through_every_service(planner: Runner, two: Plan, tmp_path: Path) -> None:
    path = written(two, tmp_path / "plan.yaml")
    result = planner("simulate", path, "--requests", 2000)
    assert result.code == 0
    assert "chat: meta-llama/Llama-3.1-8B: " in result.out
    assert "digest: meta-llama/Llama-3.1-8B: " in result.out
    assert result.out.endswith("the plan holds: all 2 services meet their SLOs\n")
    facts = planner("simulate", path, "--requests", 2000, "--json").facts
    assert list(facts) == ["services", "passed"]
    assert list(facts["services"]) == ["chat", "digest"]
    one = planner("simulate", path, "--requests", 2000, "--service", "chat", "--json").facts
    assert {**one, "cpu_seconds": 0} == {**facts["services"]["chat"], "cpu_seconds": 0}


def test_a_plan_fails_where_one_service_does(planner: Runner, two: Plan, tmp_path: Path) -> None:
    path = written(two, tmp_path / "plan.yaml", lambda d: d["services"][1].update(request_rate=60.0))
    result = planner("simulate", path, "--requests", 2000)
    assert result.code == 5
    assert "THE PLAN DOES NOT HOLD: digest\n" in result.out
    assert "planner: the plan does not hold: digest: p99 TTFT" in result.err
    assert planner("simulate", path, "--requests", 2000, "--service", "chat").code == 0
    facts = planner("simulate", path, "--requests", 2000, "--json").facts
    assert not facts["passed"]
    assert [one["passed"] for one in facts["services"].values()] == [True, False]


def test_a_service_with_zones_is_all_of_them(planner: Runner, zoned: Plan, tmp_path: Path) -> None:
    path = written(zoned, tmp_path / "plan.yaml")
    facts = planner("simulate", path, "--service", "chat", "--requests", 300, "--json").facts
    assert set(facts["services"]) == set(CHAT)
    one = planner("simulate", path, "--service", CHAT[0], "--requests", 300, "--json").facts
    assert one["planned_request_rate"] == facts["services"][CHAT[0]]["planned_request_rate"]


def test_options_of_one_service_ask_for_it(planner: Runner, two: Plan, tmp_path: Path) -> None:
    path, trace = written(two, tmp_path / "plan.yaml"), tmp_path / "trace.csv"
    rows = ["arrived_at,num_prefill_tokens,num_decode_tokens", *(f"{i},500,20" for i in range(50))]
    trace.write_text("\n".join(rows) + "\n", encoding="utf-8")
    hint = "is for one service, and the plan has 2: add --service with one of chat; digest"
    for option, value in (
        ("--trace", trace),
        ("--rate", 3),
        ("--schedule", "10:3"),
        ("--fail", f"{two.groups[0].name}@1"),
        ("--plot", tmp_path / "a.png"),
        ("--timeline", tmp_path / "a.png"),
    ):
        refused(planner("simulate", path, option, value), f"{option}: {hint}")
    refused(planner("evaluate", path, "--rate", 3), f"--rate: {hint}")
    refused(planner("timeline", path, "--output", tmp_path / "a.png"), f"--output: {hint}")
    assert not (tmp_path / "a.png").exists()
    replayed = planner("simulate", path, "--service", "digest", "--trace", trace, "--json")
    assert replayed.facts["requests"] == 50
    failing = planner(
        "simulate", path, "--service", "chat", "--fail", "decode@1-2", "--requests", 500, "--json"
    )
    assert failing.facts["requests"] == 500


def test_errors_say_which_service_they_are_of(planner: Runner, two: Plan, tmp_path: Path) -> None:
    path = written(two, tmp_path / "plan.yaml")
    refused(
        planner("simulate", path, "--policy", "prefill_first"), "chat: --policy: the fleet has no colocated"
    )
    for command in ("simulate", "evaluate", "timeline"):
        message = "there is no service 'chatt' (did you mean chat?)"
        refused(planner(command, path, "--service", "chatt"), message)
        refused(planner(command, path, "--service", "xyz"), "'xyz' (there is: chat; digest)")


def test_evaluate_goes_through_every_service(planner: Runner, two: Plan, tmp_path: Path) -> None:
    result = planner("evaluate", written(two, tmp_path / "plan.yaml"), "--requests", 2000)
    assert result.code == 0
    assert "chat: meta-llama/Llama-3.1-8B: " in result.out
    most = [float(rate) for rate in re.findall(r"carries at most ([\d.]+) req/s", result.out)]
    (least,) = re.findall(r"\nthe plan carries ([\d.]+) times its requests within the SLOs\n$", result.out)
    assert float(least) == pytest.approx(min(most[0] / 20.0, most[1] / 4.0), rel=0.01)


def test_evaluate_tells_which_service_is_not_carried(planner: Runner, two: Plan, tmp_path: Path) -> None:
    path = written(two, tmp_path / "plan.yaml", lambda d: d["services"][1].update(request_rate=60.0))
    result = planner("evaluate", path, "--requests", 2000, "--json")
    assert result.code == 5
    assert "the plan does not carry its requests within the SLOs: digest: p99 TTFT" in result.err
    assert list(result.facts) == ["services", "passed"]
    assert [one["passed"] for one in result.facts["services"].values()] == [True, False]


def test_timeline_draws_every_service(planner: Runner, two: Plan, tmp_path: Path) -> None:
    path = written(two, tmp_path / "plan.yaml")
    result = planner("timeline", path, "--requests", 3)
    assert result.out.startswith("chat\n")
    assert "\ndigest\n" in result.out
    facts = planner("timeline", path, "--requests", 3, "--json").facts
    assert list(facts["services"]) == ["chat", "digest"]
    one = planner("timeline", path, "--requests", 3, "--json", "--service", "digest").facts
    assert one == facts["services"]["digest"]
    assert planner("timeline", "--service", "chat").code == 2


def test_a_fleet_file_has_no_period(planner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "model: meta-llama/Llama-3.1-8B\n"
        "workload: {request_rate: 2, input_tokens: 1000, output_tokens: 50}\n"
        "slo: {ttft_ms: {p99: 900}}\n"
        "groups: [{phase: colocated, gpu: h100-sxm, replicas: 2}]\n",
        encoding="utf-8",
    )
    refused(planner("simulate", path, "--period", "day"), "no period 'day': a fleet file has one rate")
    refused(planner("simulate", path, "--service", "chat"), "there is no service 'chat'")


# --------------------------------------------------------------------------------------------
# Plans edited by hand


def group(number: int, **changes: object) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["groups"][number].update(changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (group(0, service="chta"), "groups[0].service: unknown service, got 'chta' (did you mean chat?)"),
        (group(1, zone="wset"), "groups[1].zone: the scenario's fleet has no GPU 'h100-sxm' in zone wset"),
        (group(1, gpu="h100-smx"), "groups[1].gpu: the scenario's fleet has no GPU 'h100-smx'"),
        (group(1, price_class="reserved"), "groups[1].price_class: the scenario's fleet has no GPU"),
        (
            lambda d: d["services"][0].update(service="chatt"),
            "services[0].service: unknown service, got 'chatt'",
        ),
        (
            lambda d: d["services"].append(dict(d["services"][0])),
            "services[4].service: is listed twice",
        ),
        (
            lambda d: d["services"].append({**d["services"][0], "service": "chat"}),
            "is a part of 'chat', which is listed too",
        ),
        (lambda d: d["services"].pop(0), "zone: services has no entry for 'chat' there"),
        (lambda d: d["groups"].pop(0), "has no group that serves it, got 'chat, east'"),
        (lambda d: d["services"][3].update(request_rate=0), "services[3].request_rate: must be 1e-06 to"),
        (group(2, phase="prefill"), "there are prefill groups, but no decode group"),
        (group(3, kv_capacity_tokens=32), "KV cache holds 32 tokens, the longest sequence needs"),
    ],
)
def test_edited_plans_are_refused(
    planner: Runner,
    zoned: Plan,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], object],
    message: str,
) -> None:
    path = written(zoned, tmp_path / "edited.yaml", change)
    result = planner("simulate", path)
    refused(result, str(path), "line ", message)


def test_lines_are_those_of_the_file(planner: Runner, zoned: Plan, tmp_path: Path) -> None:
    path = written(zoned, tmp_path / "edited.yaml", group(2, service="degist"))
    line = next(i for i, text in enumerate(path.read_text().splitlines(), 1) if "service: degist" in text)
    refused(planner("simulate", path), f"line {line}: groups[2].service", "did you mean digest?")


def test_services_may_be_served_in_different_ways(planner: Runner, two: Plan, tmp_path: Path) -> None:
    """Colocated replicas of one service stand beside prefill and decode of another, not of the same."""

    def colocate(document: dict[str, Any]) -> None:
        first = next(g for g in document["groups"] if g["service"] == "digest")
        document["groups"] = [g for g in document["groups"] if g["service"] == "chat"]
        document["groups"].append({**first, "phase": "colocated", "replicas": 4, "num_gpus": 4})

    apart = written(two, tmp_path / "apart.yaml", colocate)
    facts = planner("simulate", apart, "--requests", 300, "--json").facts
    assert [use["phase"] for use in facts["services"]["digest"]["groups"]] == ["colocated"]
    mixed = written(two, tmp_path / "mixed.yaml", group(0, phase="colocated"))
    refused(planner("simulate", mixed), "groups[0].phase: cannot stand beside prefill and decode groups")


# --------------------------------------------------------------------------------------------
# As printed


def test_a_plan_of_several_services_is_printed_in_tables(
    zoned: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    print_plan(zoned, 100)
    text = capsys.readouterr().out
    assert text.startswith("4 services; vllm")
    lines = text.splitlines()
    assert sum(line.strip() == "chat, east" for line in lines) == 1  # heads its latencies
    start = next(i for i, line in enumerate(lines) if line.startswith("$ per million tokens"))
    costs = lines[start + 1 : start + 5]
    assert [line.split("  ")[0] for line in costs] == [p.service for p in zoned.predictions]
    assert len({len(line.rstrip()) for line in costs}) == 1


def test_long_fleets_stand_below_the_alternatives(zoned: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    from planner.plan import Alternative

    long = "; ".join(
        f"{name}: " + ", ".join(["2 x h100-sxm@east TP2 prefill"] * 4) for name in ("chat", "digest")
    )
    beside = tuple(
        Alternative(name=name, value=9.0, cost=9.0, summary=long) for name in ("best colocated", "other")
    )
    print_plan(replace(zoned, alternatives=beside), 80)
    lines = capsys.readouterr().out.splitlines()
    assert "best colocated:" in lines
    assert "other: as best colocated" in lines
    first = lines.index("best colocated:") + 1
    assert lines[first].startswith("  chat: 2 x h100-sxm@east TP2 prefill, 2 x h100-sxm@east")
    assert all(len(line) <= 80 for line in lines)
    short = tuple(replace(a, summary="2 x h100-sxm TP1 colocated") for a in beside)
    print_plan(replace(zoned, alternatives=short), 100)
    assert "best colocated:" not in capsys.readouterr().out.splitlines()
