"""Planning from a fleet that stands: it is not reshuffled for pennies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.documents.plan import dump_plan, load_plan
from planner.documents.scenario import LoadedScenario, scenario_from_text
from planner.errors import SpecError
from planner.moves import changes, replicas_started, standing
from planner.plan import Plan
from planner.search import SolveOptions
from planner.workflow import solve

SCENARIO = """
model: meta-llama/Llama-3.1-8B-Instruct
workload: {request_rate: 20, input_tokens: 800, output_tokens: 150}
slo: {ttft_ms: {p99: 2000}, tpot_ms: {p99: 80}}
fleet:
  - {gpu: h100-sxm, price_per_gpu_hour: PRICE, node_size: 1}
  - {gpu: l40s, price_per_gpu_hour: 1.9, node_size: 1}
options: {colocated: only}
objective: OBJECTIVE
"""


def scenario(price: float, objective: str = "cost") -> LoadedScenario:
    return scenario_from_text(SCENARIO.replace("PRICE", f"{price}").replace("OBJECTIVE", objective))


def planned(price: float, current: Plan | None = None, **more: float) -> Plan:
    """At the usual gap, which is larger than what a move is worth."""
    options = SolveOptions(verify=False, alternatives=False, current=current)
    return solve(scenario(price), replace(options, **more))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def on_l40s() -> Plan:
    plan = planned(9.0)
    assert {g.gpu for g in plan.groups} == {"l40s"}
    return plan


def break_even(on_l40s: Plan) -> float:
    """Price of an H100 at which both fleets cost the same. [USD/h]"""
    other = planned(0.01)
    assert {g.gpu for g in other.groups} == {"h100-sxm"}
    assert on_l40s.cost is not None
    return on_l40s.cost / other.num_gpus


def test_moves_have_to_earn_their_cost(on_l40s: Plan) -> None:
    price = break_even(on_l40s)
    slightly = 0.98 * price
    assert {g.gpu for g in planned(slightly).groups} == {"h100-sxm"}
    started = planned(slightly).num_gpus
    saving = on_l40s.cost - slightly * started  # type: ignore[operator]
    worth = saving * 730 / started  # of a replica, over a month
    kept = planned(slightly, on_l40s, move_cost=1.01 * worth)
    assert (kept.moves, kept.move_cost, kept.cost) == ((), 0.0, on_l40s.cost)
    moved = planned(slightly, on_l40s, move_cost=0.98 * worth)
    assert {g.gpu for g in moved.groups} == {"h100-sxm"}
    assert moved.move_cost == pytest.approx(0.98 * worth * started)
    assert {(m.before > 0, m.after > 0) for m in moved.moves} == {(True, False), (False, True)}
    assert moved.value == pytest.approx(moved.cost + moved.move_cost / 730)
    for_longer = planned(slightly, on_l40s, move_cost=1.01 * worth, move_hours=2 * 730.0)
    assert {g.gpu for g in for_longer.groups} == {"h100-sxm"}


def test_changes_turn_one_fleet_into_the_other(on_l40s: Plan) -> None:
    other = planned(0.01)
    moves = changes(on_l40s.groups, other.groups)
    counts = {str(kind): n for kind, n in standing(on_l40s.groups).items()}
    for move in moves:
        assert counts.get(move.group, 0) == move.before
        counts[move.group] = move.after
    assert {k: n for k, n in counts.items() if n} == {str(k): n for k, n in standing(other.groups).items()}
    assert replicas_started(moves) == sum(g.replicas for g in other.groups)
    assert changes(other.groups, other.groups) == ()


def test_a_plan_file_keeps_its_moves(on_l40s: Plan, tmp_path: Path) -> None:
    moved = planned(0.01, on_l40s)
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(moved))
    read = load_plan(path)
    assert (read.moves, read.move_cost) == (moved.moves, pytest.approx(moved.move_cost))


def test_moves_need_prices(on_l40s: Plan) -> None:
    with pytest.raises(SpecError, match="objective cost"):
        solve(scenario(1.0, "gpus"), SolveOptions(verify=False, current=on_l40s))


def test_a_scenario_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO)
    with pytest.raises(SpecError, match="is a scenario, not a plan"):
        load_plan(path)
