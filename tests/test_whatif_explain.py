"""Explanations: every figure is what the scenario costs when it is edited by hand and solved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import SCENARIO, Runner

import planner as api
import planner.cli.explain as command
from planner.candidates import CandidateSet, build_candidates
from planner.documents.plan import dump_plan
from planner.documents.scenario import LoadedScenario, scenario_from_text
from planner.engines import load_engine
from planner.errors import InfeasibleError, SpecError
from planner.plan import Plan, Verification
from planner.program import Candidate
from planner.search import SolveOptions
from planner.specs import Metric, Phase, Scenario
from planner.whatif import changes, resolve
from planner.whatif.asked import asked_of
from planner.whatif.corrections import capacity_factors
from planner.whatif.explain import Explanation, WhatIf, a_little_more, explain, lifted
from planner.whatif.resolve import FINE_GAP, Resolver, resolved_of
from planner.whatif.values import compared_with_note

BOUND: dict[str, Any] = SCENARIO | {
    "workload": {"request_rate": 150, "input_tokens": 1000, "output_tokens": 200},
    "fleet": [
        {"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 16, "network_gbps_per_gpu": 400},
        {"gpu": "a100-80gb-sxm", "price_per_gpu_hour": 0.8, "max_gpus": 5, "network_gbps_per_gpu": 200},
    ],
    "options": {
        "whole_nodes": False,
        "max_tp": 1,
        "max_pp": 1,
        "colocated": "forbidden",
        "spare_replicas": 1,
    },
}
"""Cheap A100s are scarce; a spare and the TPOT cost something, too."""


def loaded(document: dict[str, Any]) -> LoadedScenario:
    return scenario_from_text(json.dumps(document))


def solved(document: dict[str, Any]) -> Plan:
    options = SolveOptions(verify=False, alternatives=False, gap=FINE_GAP)
    return api.solve(loaded(document), options)


@pytest.fixture(scope="module")
def bound() -> Explanation:
    return explain(loaded(BOUND))


def found(rows: tuple[WhatIf, ...], subject: str) -> WhatIf:
    (row,) = (r for r in rows if r.subject == subject)
    return row


def edited(*path_and_value: Any) -> dict[str, Any]:
    """The scenario with one key changed; a value of None takes it out."""
    *path, key, value = path_and_value
    document = deepcopy(BOUND)
    owner: Any = document
    for part in path:
        owner = owner[part]
    if value is None:
        del owner[key]
    else:
        owner[key] = value
    return document


# --------------------------------------------------------------------------------------------
# Figures


@pytest.mark.parametrize(
    ("part", "subject", "document"),
    [
        ("marginal", "a100-80gb-sxm", edited("fleet", 1, "max_gpus", 6)),
        ("marginal", "h100-sxm", edited("fleet", 0, "max_gpus", 17)),
        ("marginal", "TPOT SLOs", edited("slo", "tpot_ms", "p99", 44)),
        ("marginal", "TTFT SLOs", edited("slo", "ttft_ms", "p99", 1100)),
        ("requirements", "stock of a100-80gb-sxm", edited("fleet", 1, "max_gpus", None)),
        ("requirements", "p99 TPOT", edited("slo", "tpot_ms", "p99", 400)),
        ("requirements", "spare_replicas", edited("options", "spare_replicas", 0)),
        ("requirements", "confidence", edited("options", "confidence", 0.5)),
    ],
)
def test_figure_is_the_cost_of_the_edited_scenario(
    bound: Explanation, part: str, subject: str, document: dict[str, Any]
) -> None:
    by_hand = solved(document)
    what_if = found(getattr(bound, part), subject)
    assert what_if.after.value == pytest.approx(by_hand.value, rel=2 * FINE_GAP)
    assert bound.base.value is not None
    assert what_if.saving == pytest.approx(bound.base.value - by_hand.value, abs=2e-3)


def test_base_is_the_plan(bound: Explanation) -> None:
    plan = solved(BOUND)
    assert bound.base.value == pytest.approx(plan.value, rel=2 * FINE_GAP)
    assert [(g.name, g.binds) for g in bound.groups] == [(g.name, g.binds) for g in plan.groups]


def test_what_costs_something_binds(bound: Explanation) -> None:
    names = [w.subject for w in bound.binding]
    assert {"stock of a100-80gb-sxm", "spare_replicas", "p99 TPOT"} <= set(names)
    savings = [w.saving for w in bound.binding]
    assert savings == sorted(savings, key=lambda s: -(s or 0.0))
    assert min(s or 0.0 for s in savings) > 0
    assert "stock of h100-sxm" not in names


def test_asking_less_never_costs_more(bound: Explanation) -> None:
    rows = (*bound.requirements, *bound.marginal)
    assert len(rows) >= 10
    assert all((w.saving or 0.0) >= 0 for w in rows)


def test_no_network_among_colocated() -> None:
    scenario = loaded(edited("options", "colocated", "only")).scenario
    assert "network" not in {q.kind for q in (*lifted(scenario), *a_little_more(scenario))}
    assert {"colocated", "stock", "slo"} <= {q.kind for q in lifted(scenario)}


def test_throughput_carries_more_of_what_is_scarce() -> None:
    document = edited("fleet", 0, "max_gpus", 4) | {"objective": "throughput"}
    e = explain(loaded(document))
    document["fleet"][1]["max_gpus"] = 6
    by_hand = solved(document)
    more = found(e.marginal, "a100-80gb-sxm")
    assert more.after.value == pytest.approx(by_hand.value, rel=2 * FINE_GAP)
    assert more.saving == pytest.approx(by_hand.value - (e.base.value or 0.0), rel=0.02)
    stock = found(e.requirements, "stock of h100-sxm")
    assert stock.change == "4 -> 8 GPUs"
    assert stock.binds


def test_budget_and_whole_nodes_are_looked_at() -> None:
    options = {"colocated": "forbidden", "max_tp": 1, "max_pp": 1}
    document = SCENARIO | {"objective": "gpus", "budget_per_hour": 48.0, "options": options}
    e = explain(loaded(document))
    rows = {w.kind: w for w in e.requirements}
    assert rows["budget"].change == "48 -> none USD/h"
    assert rows["whole_nodes"].binds  # two GPUs would do
    assert {w.subject for w in e.marginal} >= {"budget", "network", "h100-sxm"}
    assert found(e.marginal, "h100-sxm").change == "one more node of 8 GPUs, 64 -> 72"


# --------------------------------------------------------------------------------------------
# GPUs that lost

UNUSED = SCENARIO | {
    "fleet": [
        SCENARIO["fleet"][1],  # type: ignore[index]
        {"gpu": "l40s", "price_per_gpu_hour": 2.5, "max_gpus": 32, "network_gbps_per_gpu": 100},
        {"gpu": "v100-16gb-sxm", "price_per_gpu_hour": 0.5, "max_gpus": 8, "network_gbps_per_gpu": 25},
        {"gpu": "h200-sxm", "price_per_gpu_hour": 9.0, "max_gpus": 0, "network_gbps_per_gpu": 400},
    ],
    "options": {"whole_nodes": False, "max_tp": 1, "max_pp": 1, "colocated": "forbidden"},
}


@pytest.fixture(scope="module")
def lost() -> Explanation:
    return explain(loaded(UNUSED))


def test_forced_gpu_never_beats_the_plan(lost: Explanation) -> None:
    forced = [f for u in lost.unused for f in u.forced]
    assert any(f.result.feasible for f in forced)
    assert lost.base.value is not None
    for f in forced:
        assert f.result.value is None or f.result.value >= lost.base.value * (1 - FINE_GAP)


def test_forced_gpu_serves_all_of_its_pool(lost: Explanation) -> None:
    for gpu in lost.unused:
        for forced in gpu.forced:
            pool = [g for g in forced.result.groups or () if g.phase is forced.phase]
            assert {g.gpu for g in pool} <= {gpu.gpu}
            assert bool(pool) == forced.result.feasible


def test_best_forced_plan_is_the_best(lost: Explanation) -> None:
    for gpu in lost.unused:
        values = [f.result.value for f in gpu.forced if f.result.value is not None]
        assert (gpu.best is None) == (not values)
        if gpu.best is not None and gpu.extra is not None:
            assert gpu.best.result.value == min(values)
            assert gpu.extra >= 0


def test_gpu_that_cannot_serve_says_why(lost: Explanation) -> None:
    reasons = {u.gpu: " ".join(u.reasons) for u in lost.unused}
    assert reasons["h200-sxm"] == "max_gpus is 0"
    assert "v100-16gb-sxm" in reasons
    assert "exceed" in reasons["v100-16gb-sxm"]


# --------------------------------------------------------------------------------------------
# Candidates that are kept


def _changed(scenario: Scenario) -> list[Scenario]:
    capped = changes.with_item(
        scenario, 0, replace(scenario.fleet[0], max_gpus_by_phase={Phase.COLOCATED: 1})
    )
    forced = changes.all_of_pool(scenario, 1, Phase.PREFILL)
    assert forced is not None
    return [
        scenario,
        changes.with_stock(scenario, 1, 3),
        changes.with_stock(scenario, 0, 0),
        changes.with_stock(scenario, 0, None),
        capped,
        forced,
    ]


def test_cut_candidates_are_those_built_anew() -> None:
    resolver = Resolver(loaded(SCENARIO | {"options": {"max_tp": 2, "max_pp": 1}}))
    for scenario in _changed(resolver.loaded.scenario):
        (service,) = scenario.services
        engine = load_engine(service.engine)
        kept = resolver._candidates(scenario, service, engine)
        fresh = build_candidates(scenario, service, engine)
        assert _usable(kept.candidates, fresh) == _usable(fresh.candidates, fresh)
        assert len(resolver._kept) == 1


def _usable(candidates: Sequence[Candidate], of: CandidateSet) -> set[tuple[str, int, float]]:
    """Load of each count of replicas, of the phases that `of` has."""
    phases = {c.phase for c in of.candidates}
    return {
        (c.name, n, round(c.curve.capacity(n), 9))
        for c in candidates
        if c.phase in phases
        for n in range(1, min(c.max_replicas, 12) + 1)
    }


def test_stock_and_budget_build_no_new_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    def counted(*arguments: Any) -> Any:
        built.append(arguments)
        return build_candidates(*arguments)

    monkeypatch.setattr(resolve, "build_candidates", counted)
    monkeypatch.setattr("planner.workflow.best_within_node", lambda *_: None)  # has candidates of its own
    resolver = Resolver(loaded(SCENARIO | {"options": {"max_tp": 1, "max_pp": 1}}))
    scenario = resolver.loaded.scenario
    for changed in (*_changed(scenario), replace(scenario, budget=100.0)):
        resolver.resolve(changed)
    colocated = changes.all_of_pool(scenario, 1, Phase.COLOCATED)
    assert colocated is not None
    groups = resolver.resolve(colocated).groups
    assert {(g.phase, g.gpu) for g in groups or ()} == {(Phase.COLOCATED, "a100-80gb-sxm")}
    assert len(built) == 1
    resolver.resolve(changes.looser(scenario, Metric.TTFT, 1.1))
    assert len(built) == 2


def test_nothing_to_find_is_said_quickly() -> None:
    resolver = Resolver(loaded(SCENARIO))
    none = resolver.resolve(changes.looser(resolver.loaded.scenario, Metric.TTFT, 1e-4))
    assert not none.feasible
    assert none.reason == resolve.NO_FLEET
    assert none.groups is None


def test_changes_leave_the_scenario_alone() -> None:
    scenario = loaded(SCENARIO).scenario
    assert changes.slower(scenario, 1.0) == scenario
    assert changes.busier(scenario, 1.0) == scenario
    twice = changes.busier(scenario, 2.0)
    assert twice.services[0].workload.request_rate == 40
    assert scenario.services[0].workload.request_rate == 20
    assert changes.all_of_pool(loaded(BOUND).scenario, 0, Phase.COLOCATED) is None  # forbidden


# --------------------------------------------------------------------------------------------
# Plans, interrupts


def test_plan_brings_its_corrections() -> None:
    """Capacities that simulation halved stay so when its scenario is solved again; the last round counts."""
    plan = solved(edited("options", "spare_replicas", 0))
    keys = {f"{g.phase} {g.gpu} {g.parallelism}" for g in plan.groups}
    rounds = [{"capacity_factors": dict.fromkeys(keys, f)} for f in (0.9, 0.5)]
    verified = replace(plan, verification=Verification(passed=True, details={"rounds": rounds}))
    asked = asked_of(verified)
    factors = capacity_factors(verified)
    assert factors == dict.fromkeys(keys, 0.5)
    plain, corrected = (resolved_of(Resolver(asked.loaded, factors=f).plan()) for f in ({}, factors))
    assert plain.value == pytest.approx(plan.value, rel=2 * FINE_GAP)
    assert corrected.value is not None
    assert corrected.value > 1.1 * plan.value
    (first, second) = compared_with_note(asked, corrected)
    assert "corrected" in first
    assert "is what is compared with" in second


def test_plan_without_corrections_has_no_notes() -> None:
    plan = solved(SCENARIO)
    assert capacity_factors(plan) == {}
    assert list(compared_with_note(asked_of(plan), resolved_of(plan))) == []


def test_interrupt_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = Resolver.resolve

    def interrupted(self: Resolver, scenario: Scenario) -> Any:
        calls.append(scenario)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return original(self, scenario)

    monkeypatch.setattr(Resolver, "resolve", interrupted)
    e = explain(loaded(BOUND))
    assert e.interrupted
    assert len(e.requirements) == 3
    assert e.marginal == ()
    assert e.base.feasible
    assert any("interrupted" in note for note in e.notes)


def test_infeasible_scenario_says_why() -> None:
    with pytest.raises(InfeasibleError, match="GPU stock"):
        explain(loaded(edited("fleet", 0, "max_gpus", 1)))


def test_plan_without_its_scenario_is_refused() -> None:
    with pytest.raises(SpecError, match="does not hold the scenario"):
        explain(replace(solved(SCENARIO), scenario={}))


# --------------------------------------------------------------------------------------------
# The command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(BOUND), encoding="utf-8")
    return path


def test_command_prints_tables(
    planner: Runner, file: Path, bound: Explanation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "explained", lambda *_: bound)
    result = planner("explain", file)
    assert result.code == 0
    assert result.err == ""
    for word in ("binds", "stock of a100-80gb-sxm", "a little more", "one more GPU, 5 -> 6", "saves"):
        assert word in result.out


def test_tables_say_why_gpus_lost(
    planner: Runner, file: Path, lost: Explanation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "explained", lambda *_: lost)
    out = planner("explain", file).out
    assert "h200-sxm: max_gpus is 0" in out
    assert "the best fleet in which the GPU serves all of one pool" in out


def test_command_prints_json(
    planner: Runner, file: Path, bound: Explanation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "explained", lambda *_: bound)
    facts = planner("explain", file, "--json").facts
    assert facts["base"]["value"] == pytest.approx(bound.base.value)
    assert [w["subject"] for w in facts["binding"]] == [w.subject for w in bound.binding]
    assert set(facts["requirements"][0]) == {
        "kind", "subject", "change", "binds", "saving", "saving_cost_per_hour", "after",
    }  # fmt: skip
    assert facts["unit"] == "USD/h"
    assert facts["interrupted"] is False


def test_command_reads_plans(planner: Runner, tmp_path: Path) -> None:
    plan = solved(SCENARIO | {"options": UNUSED["options"], "fleet": SCENARIO["fleet"][:1]})  # type: ignore[index]
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(plan), encoding="utf-8")
    facts = planner("explain", path, "--json").facts
    assert facts["base"]["value"] == pytest.approx(plan.value)
    assert [g["name"] for g in facts["groups"]] == [g.name for g in plan.groups]


def test_command_refuses_bad_input(planner: Runner, tmp_path: Path, file: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("groups: []\n", encoding="utf-8")
    for arguments, message in (
        ((tmp_path / "none.yaml",), "no such file"),
        ((fleet,), "is a fleet of groups"),
        ((file, "--gap", "2"), "--gap"),
        ((file, "--time-limit", "0"), "--time-limit"),
    ):
        result = planner("explain", *arguments)
        assert result.code == 2
        assert message in result.err
        assert result.out == ""


def test_command_on_an_infeasible_scenario(planner: Runner, file: Path) -> None:
    file.write_text(json.dumps(edited("fleet", 0, "max_gpus", 1)), encoding="utf-8")
    result = planner("explain", file)
    assert result.code == 3
    assert "no plan meets the scenario" in result.err
    assert result.out == ""
