"""Sensitivity: each bar is what the scenario costs when it is edited by hand and solved."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from conftest import SCENARIO
from report_plans import LIMITED

import planner as api
from planner.documents.scenario import LoadedScenario, scenario_from_text
from planner.errors import InfeasibleError
from planner.search import SolveOptions
from planner.specs import Lengths, Marginal
from planner.whatif import changes
from planner.whatif import sensitivity as module
from planner.whatif.resolve import FINE_GAP, Resolved
from planner.whatif.sensitivity import BY, Lever, Sensitivity, knobs, sensitivity, solves

DOCUMENT: dict[str, Any] = deepcopy(SCENARIO) | {
    "workload": {"request_rate": 60, "input_tokens": 1000, "output_tokens": 200},
    "options": LIMITED | {"colocated": "forbidden", "whole_nodes": False},
}


def loaded(**changed: Any) -> LoadedScenario:
    return scenario_from_text(json.dumps(DOCUMENT | changed))


def cost(**changed: Any) -> float:
    options = SolveOptions(verify=False, alternatives=False, gap=FINE_GAP)
    return api.solve(loaded(**changed), options).value


@pytest.fixture(scope="module")
def found() -> Sensitivity:
    return sensitivity(loaded())


def lever(found: Sensitivity, what: str) -> Lever:
    return next(x for x in found.levers if x.what == what)


def workload(**changed: Any) -> dict[str, Any]:
    return {"workload": DOCUMENT["workload"] | changed}


EDITED = {
    "request rate": lambda f: workload(request_rate=60 * f),
    "prompt length": lambda f: workload(input_tokens=1000 * f),
    "answer length": lambda f: workload(output_tokens=200 * f),
    "TTFT limit": lambda f: {"slo": {"ttft_ms": {"p99": 1000 * f}, "tpot_ms": {"p99": 40}}},
    "TPOT limit": lambda f: {"slo": {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 40 * f}}},
    "price of a100-80gb-sxm": lambda f: {
        "fleet": [DOCUMENT["fleet"][0], DOCUMENT["fleet"][1] | {"price_per_gpu_hour": 1.5 * f}]
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("what", EDITED)
def test_bars_are_what_an_edited_scenario_costs(found: Sensitivity, what: str) -> None:
    bar = lever(found, what)
    assert bar.factor == BY
    for result, factor in ((bar.low, 1 / BY), (bar.high, BY)):
        edited = EDITED[what](round(factor, 12))
        if what in ("prompt length", "answer length"):  # a file has whole tokens
            edited = {"workload": {k: round(v) for k, v in edited["workload"].items()}}
        assert result.value == pytest.approx(cost(**edited), rel=1e-3)


@pytest.mark.slow
def test_the_scenario_as_it_is_comes_first(found: Sensitivity) -> None:
    assert found.base.value == pytest.approx(cost())
    assert len(found.levers) == 9
    assert solves(loaded().scenario) == 1 + 2 * len(found.levers)
    assert lever(found, "network bandwidth").factor == 2
    assert lever(found, "all predicted times").high.value >= found.base.value


@pytest.mark.slow
def test_levers_are_sorted_by_how_much_they_move(found: Sensitivity) -> None:
    base = found.base.value
    assert base is not None
    swings = [x.swing(base) for x in found.levers]
    assert swings == sorted(swings, reverse=True)
    assert swings[0] > 0
    rate = lever(found, "request rate")
    assert rate.low.value < base < rate.high.value


@pytest.mark.slow
def test_rows_are_flat(found: Sensitivity) -> None:
    rows = found.rows()
    assert rows[0].keys() >= {"what", "low", "high", "value_low", "value_high", "unit", "swing"}
    assert rows[0]["unit"] == "USD/h"
    frame = pytest.importorskip("pandas") and found.to_frame()
    assert list(frame.columns) == list(rows[0])
    assert "request rate" in found._repr_html_()


def test_a_change_without_a_plan_moves_most() -> None:
    base, none = Resolved(value=10.0), Resolved(reason="none")
    assert Lever(what="", factor=2.0, low=base, high=none).swing(10.0) == float("inf")
    assert Lever(what="", factor=2.0, low=Resolved(value=8.0), high=Resolved(value=9.0)).swing(10.0) == 2.0


def test_what_makes_no_sense_is_not_changed() -> None:
    throughput = loaded(objective="throughput").scenario
    names = [k.what for k in knobs(throughput)]
    assert "request rate" not in names
    assert not any(n.startswith("price") for n in names)
    only = loaded(options=LIMITED | {"colocated": "only"}, slo={"ttft_ms": {"p99": 1000}}).scenario
    names = [k.what for k in knobs(only)]
    assert "network bandwidth" not in names
    assert "TPOT limit" not in names


@pytest.mark.slow
def test_a_changed_scenario_that_breaks_a_rule_has_no_plan() -> None:
    slow = {"slo": {"ttft_ms": {"p99": 60_000}}}
    long = workload(input_tokens=120_000, output_tokens=2_000, request_rate=0.01)
    found = sensitivity(loaded(**long, **slow))
    longer = lever(found, "prompt length").high
    assert longer.value is None
    assert longer.reason == "146,000 tokens exceed the 131,072 that meta-llama/Llama-3.1-8B-Instruct takes"


def test_an_infeasible_scenario_says_so() -> None:
    with pytest.raises(InfeasibleError):
        sensitivity(loaded(slo={"ttft_ms": {"p99": 1}, "tpot_ms": {"p99": 1}}))


def test_an_interrupt_leaves_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def stopped(*_args: Any) -> Resolved:
        if len(done) >= 3:
            raise KeyboardInterrupt
        return Resolved(value=1.0)

    monkeypatch.setattr(module, "_resolved", stopped)
    found = sensitivity(loaded(), on_solve=lambda: done.append(1))
    assert found.interrupted
    assert len(found.levers) == 1
    assert any("interrupted" in note for note in found.notes)


def test_lengths_scale_with_everything_that_goes_with_them() -> None:
    scenario = loaded().scenario
    old = scenario.services[0].workload.lengths
    prompts = changes.longer_prompts(scenario, 1.5).services[0].workload.lengths
    assert prompts.isl.mean == pytest.approx(1.5 * old.isl.mean)
    assert prompts.isl_per_output_token == pytest.approx(1.5 * old.isl_per_output_token)
    assert prompts.osl == old.osl
    answers = changes.longer_answers(scenario, 0.001).services[0].workload.lengths
    assert answers.osl.points == (1.0,)  # an answer has a token
    own = Marginal(points=(10.0, 20.0), weights=(0.5, 0.5), longest=30.0)
    lengths = Lengths(isl=own, osl=own, isl_per_output_token=15.0, longest_request=40.0)
    grown = changes._with_lengths(
        changes.with_services(scenario, (_with(scenario.services[0], lengths),)), 2.0, 1.0
    )
    found = grown.services[0].workload.lengths
    assert (found.isl.longest, found.longest_request) == (60.0, 70.0)


def _with(service: Any, lengths: Lengths) -> Any:
    return replace(service, workload=replace(service.workload, lengths=lengths))


def test_prices_change_in_all_lines_of_a_type() -> None:
    scenario = changes.other_prices(loaded().scenario, "h100-sxm", 2.0)
    assert [i.price for i in scenario.fleet] == [6.0, 1.5]
