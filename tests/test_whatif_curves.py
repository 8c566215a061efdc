"""Robustness and Pareto curves: scenarios that ask more, or less, solved again."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import SCENARIO, Runner

import planner as api
from planner.candidates import build_candidates
from planner.documents.scenario import LoadedScenario, scenario_from_text
from planner.engines import load_engine
from planner.errors import InfeasibleError, SpecError
from planner.operators import ReplicaSet
from planner.search import SolveOptions
from planner.specs import ColocatedUse, Objective, Parallelism, Phase
from planner.units import MILLI
from planner.whatif import changes
from planner.whatif import robustness as stressing
from planner.whatif.frames import csv_text
from planner.whatif.pareto import Pareto, pareto
from planner.whatif.resolve import FINE_GAP, Resolved, Resolver
from planner.whatif.robustness import Robustness, robustness
from planner.whatif.values import kept_from_harder

SMALL: dict[str, Any] = SCENARIO | {
    "workload": {"request_rate": 60, "input_tokens": 1000, "output_tokens": 200},
    "options": {"whole_nodes": False, "max_tp": 1, "max_pp": 1, "colocated": "forbidden"},
}


def loaded(**changed: Any) -> LoadedScenario:
    return scenario_from_text(json.dumps(deepcopy(SMALL) | changed))


def cost(**changed: Any) -> float:
    options = SolveOptions(verify=False, alternatives=False, gap=FINE_GAP)
    return api.solve(loaded(**changed), options).value


# --------------------------------------------------------------------------------------------
# Pareto


@pytest.fixture(scope="module")
def curve() -> Pareto:
    return pareto(loaded(), "ttft", points=7, low=10 * MILLI, high=4000 * MILLI)


def test_curve_never_rises_as_less_is_asked(curve: Pareto) -> None:
    limits = [p.x for p in curve.points]
    assert limits == sorted(limits)
    assert limits[0] == pytest.approx(0.01)
    assert limits[-1] == pytest.approx(4.0)
    values = [math.inf if p.result.value is None else p.result.value for p in curve.points]
    assert values == sorted(values, reverse=True)
    assert values[0] > values[-1]


def test_infeasible_points_say_so(curve: Pareto) -> None:
    tightest = curve.points[0]
    assert not tightest.result.feasible
    assert tightest.result.reason
    assert curve.points[-1].result.feasible


@pytest.mark.parametrize("index", [3, 5])
def test_point_is_the_cost_of_the_edited_scenario(curve: Pareto, index: int) -> None:
    point = curve.points[index]
    slo = {"ttft_ms": {"p99": point.x / MILLI}, "tpot_ms": {"p99": 40}}
    assert point.result.value == pytest.approx(cost(slo=slo), rel=2 * FINE_GAP)
    assert point.factor == pytest.approx(point.x)  # one second is asked for


def test_confidence_costs() -> None:
    curve = pareto(loaded(), "confidence", points=3, low=0.5, high=0.99)
    assert [p.x for p in curve.points] == pytest.approx([0.5, 0.745, 0.99])
    values = [p.result.value or math.inf for p in curve.points]
    assert values == sorted(values)
    assert curve.axis == "confidence"
    assert curve.asked == 0.8


def test_default_range_has_what_is_asked_in_its_middle() -> None:
    curve = pareto(loaded(), "tpot", points=3)
    assert [p.x / MILLI for p in curve.points] == pytest.approx([10, 40, 160])
    assert curve.axis == "tpot_p99_ms"
    assert curve.points[1].result.value == pytest.approx(cost(), rel=2 * FINE_GAP)


def test_limits_on_one_latency_move_together() -> None:
    scenario = loaded(slo={"ttft_ms": {"p50": 400, "p99": 1000}}).scenario
    limits = [t.limit for t in changes.looser(scenario, scenario.services[0].slo.targets[0].metric, 2.0)
              .services[0].slo.targets]  # fmt: skip
    assert limits == pytest.approx([0.8, 2.0])


def test_plan_of_a_harder_scenario_is_kept() -> None:
    easy, hard, none = Resolved(value=11.0), Resolved(value=10.0), Resolved(reason="none")
    assert kept_from_harder(Objective.COST, [easy, hard, none]) == [hard, hard, none]
    assert kept_from_harder(Objective.COST, [none, hard]) == [hard, hard]
    assert kept_from_harder(Objective.THROUGHPUT, [easy, hard]) == [easy, hard]
    assert kept_from_harder(Objective.COST, []) == []


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"vary": "e2e"}, "one of ttft, tpot, confidence"),
        ({"vary": "ttft", "points": 0}, "points must be 1 to"),
        ({"vary": "ttft", "low": 2.0, "high": 1.0}, "limits must be > 0 and ascend"),
        ({"vary": "confidence", "high": 1.0}, "between 0 and 1"),
    ],
)
def test_bad_questions_are_refused(how: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        pareto(loaded(), **how)


def test_latency_without_an_slo_is_refused() -> None:
    with pytest.raises(SpecError, match="no TPOT SLO to vary"):
        pareto(loaded(slo={"ttft_ms": {"p99": 1000}}), "tpot")


def test_curve_without_a_plan_is_infeasible() -> None:
    with pytest.raises(InfeasibleError, match="one request alone exceeds an SLO"):
        pareto(loaded(slo={"ttft_ms": {"p99": 1}}), "ttft", points=2)


def test_interrupted_curve_keeps_its_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    curve = pareto(loaded(), "ttft", points=3, on_point=interrupt)
    assert curve.interrupted
    assert len(curve.points) == 1
    assert any("interrupted" in note for note in curve.notes)


def test_rows_as_csv(curve: Pareto) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(curve.rows(), tuple(curve.rows()[0])))))
    assert len(rows) == len(curve.points)
    assert [r["feasible"] == "true" for r in rows] == [p.result.feasible for p in curve.points]
    assert rows[0]["value"] == ""
    assert float(rows[-1]["value"]) == curve.points[-1].result.value
    assert float(rows[-1]["ttft_p99_ms"]) == pytest.approx(4000)


def test_frame_without_pandas_says_what_to_install(curve: Pareto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SpecError, match="pip install"):
        curve.to_frame()


def test_frame_has_the_rows(curve: Pareto) -> None:
    pytest.importorskip("pandas")
    frame = curve.to_frame()
    assert list(frame.columns) == list(curve.rows()[0])
    assert len(frame) == len(curve.points)


# --------------------------------------------------------------------------------------------
# Robustness


@pytest.fixture(scope="module")
def stressed() -> Robustness:
    return robustness(loaded(), simulate=False)


@pytest.mark.parametrize("factor", [1.25, 1.5])
def test_more_load_is_the_edited_scenario(stressed: Robustness, factor: float) -> None:
    (stress,) = (s for s in stressed.of("load") if s.level == factor)
    workload = SMALL["workload"] | {"request_rate": 60 * factor}
    assert stress.result.value == pytest.approx(cost(workload=workload), rel=2 * FINE_GAP)


def test_worse_never_costs_less(stressed: Robustness) -> None:
    for kind, count in (("load", 3), ("latency", 3), ("confidence", 5)):
        values = [math.inf if s.result.value is None else s.result.value for s in stressed.of(kind)]
        assert len(values) == count
        assert values == sorted(values)
        (asked,) = (s for s in stressed.of(kind) if s.asked)
        assert asked.result.value == stressed.base.value
    latency, load = (stressed.of(kind)[-1].result.value for kind in ("latency", "load"))
    assert (latency or math.inf) >= (load or math.inf)  # longer times are also more load


def test_slower_is_another_unit_of_time() -> None:
    """Stretched times as a changed scenario, against the model's own factor on every step.

    Colocated: no network is involved, whose times the model error leaves as they are.
    """
    scenario = loaded(options={"max_tp": 1, "max_pp": 1, "colocated": "only"}).scenario
    (service,) = scenario.services
    engine = load_engine(service.engine)
    pair = (scenario.fleet[0].gpu, Parallelism())
    one_sd = ReplicaSet.of(service.model, service.precision, engine, [pair], 1.0).slowdown
    log_sd = math.log(float(one_sd.ravel()[0]))
    factor = 1.3
    changed = changes.slower(scenario, factor)
    by_limits = build_candidates(changed, changed.services[0], engine, z=0.0)
    by_error = build_candidates(scenario, service, engine, z=math.log(factor) / log_sd)
    rates = [
        {c.name: c.curve.per_replica[0] for c in found.candidates if "h100" in c.name}
        for found in (by_limits, by_error)
    ]
    assert rates[0].keys() == rates[1].keys()
    assert rates[0]
    for name, rate in rates[0].items():
        assert rate / factor == pytest.approx(rates[1][name], rel=2e-3), name


def test_slower_rate_is_turned_back_for_throughput() -> None:
    fleet = [SMALL["fleet"][0] | {"max_gpus": 3}]
    options = {"max_tp": 1, "max_pp": 1, "colocated": "only", "whole_nodes": False}
    resolver = Resolver(loaded(objective="throughput", fleet=fleet, options=options))
    assert resolver.loaded.scenario.options.colocated is ColocatedUse.ONLY
    base = resolver.resolve(resolver.loaded.scenario).value
    slower = stressing._slower(resolver, 1.5).value
    assert base is not None
    assert slower is not None
    assert slower < base / 1.5 * 1.001  # at most in proportion: limits bind earlier, too


def test_fleet_is_judged_by_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop around the simulator: what is asked of it, and what is made of the answer."""
    asked = []

    def evaluated(standing: Any, setup: Any, *, offered: float, on_stage: Any) -> Any:
        asked.append((len(standing.fleet.groups), round(setup.z, 2), offered))
        return SimpleNamespace(request_rate=72.0, breaks=(Phase.DECODE,))

    monkeypatch.setattr(stressing, "evaluate", evaluated)
    monkeypatch.setattr(stressing, "_stressed", lambda *_: [])
    found = robustness(loaded())
    assert asked == [(len(found.base.groups or ()), 0.84, 60.0), (len(found.base.groups or ()), 0.0, 60.0)]
    assert [x.confidence for x in found.limits] == [0.8, 0.5]
    assert [x.multiple for x in found.limits] == pytest.approx([1.2, 1.2])


@pytest.mark.slow
def test_fleet_breaks_above_what_it_is_planned_for() -> None:
    found = robustness(loaded())
    planned, expected = found.limits
    assert 0.9 < planned.multiple <= expected.multiple < 4
    assert planned.breaks


# --------------------------------------------------------------------------------------------
# Commands


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(json.dumps(SMALL), encoding="utf-8")
    return path


def test_pareto_command(planner: Runner, file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table, picture = tmp_path / "points.csv", tmp_path / "curve.svg"
    result = planner("pareto", file, "--vary", "ttft", "--points", 3, "-o", table, "--plot", picture)
    assert result.code == 0
    assert result.err == ""
    assert "p99 TTFT [ms]" in result.out
    assert f"points written to {table}" in result.out
    text = table.read_bytes().decode()
    assert text.count("\r\n") == 4
    assert text.startswith("ttft_p99_ms,value,objective,unit,usd_per_hour,feasible,proven,fleet,reason\r\n")
    assert "p99 TTFT limit [ms]" in picture.read_text(encoding="utf-8")


def test_pareto_json(planner: Runner, file: Path) -> None:
    facts = planner("pareto", file, "--vary", "tpot", "--points", 2, "--from", 2, "--to", 40, "--json").facts
    assert [p["tpot_p99_ms"] for p in facts["points"]] == [2, 40]
    assert [p["feasible"] for p in facts["points"]] == [False, True]
    assert facts["points"][0]["value"] is None
    assert facts["asked"] == 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--vary", "tftt"), "'tftt' is not one of"),
        ((), "--vary"),
        (("--vary", "ttft", "--points", "0"), "--points"),
        (("--vary", "ttft", "--plot", "curve.pdf"), "has to end in .png or .svg"),
        (("--vary", "ttft", "-o", "no/such/folder.csv"), "there is no folder"),
        (("--vary", "ttft", "--from", "300", "--to", "100"), "limits must be > 0 and ascend"),
    ],
)
def test_pareto_refuses(planner: Runner, file: Path, arguments: tuple[str, ...], message: str) -> None:
    result = planner("pareto", file, *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.out == ""


def test_robustness_command(
    planner: Runner, file: Path, stressed: Robustness, monkeypatch: pytest.MonkeyPatch
) -> None:
    import planner.cli.robustness as command

    monkeypatch.setattr(command, "stressed", lambda *_, **__: stressed)
    out = planner("robustness", file, "--no-simulate").out
    for word in ("every time", "x 1.25", "confidence", "0.99", "same"):
        assert word in out
    facts = planner("robustness", file, "--json").facts
    assert facts["base"]["value"] == pytest.approx(stressed.base.value)
    assert len(facts["stresses"]) == len(stressed.stresses)
    assert facts["breaks"] == []


def test_robustness_refuses(planner: Runner, file: Path, tmp_path: Path) -> None:
    assert planner("robustness", tmp_path / "none.yaml").code == 2
    file.write_text(json.dumps(SMALL | {"slo": {"ttft_ms": {"p99": 1}}}), encoding="utf-8")
    result = planner("robustness", file)
    assert result.code == 3
    assert result.out == ""
