"""Plans of several models, zones and price classes, from the scenario to the plan."""

from __future__ import annotations

from functools import cache

import pytest

from planner.documents.scenario import scenario_from_text
from planner.errors import InfeasibleError, SpecError
from planner.plan import Plan
from planner.search import Search, SolveOptions
from planner.specs import PriceClass
from planner.whatif.money_report import money_report
from planner.workflow import solve

TWO = """
models:
  - name: chat
    model: meta-llama/Llama-3.1-8B-Instruct
    workload: {request_rate: 100, input_tokens: 800, output_tokens: 150}
    slo: {ttft_ms: {p99: 1500}, tpot_ms: {p99: 50}}
  - name: batch
    model: meta-llama/Llama-3.1-8B-Instruct
    workload: {request_rate: 40, input_tokens: 3000, output_tokens: 50}
    slo: {ttft_ms: {p99: 4000}}
fleet:
FLEET
options: {max_tp: 2, max_pp: 1, OPTIONS}
"""
EAST = "  - {gpu: h100-sxm, zone: east, price_per_gpu_hour: 3.0, max_gpus: 16}\n"
WEST = "  - {gpu: h100-sxm, zone: west, price_per_gpu_hour: 2.8, max_gpus: 16}\n"
SPOT = (
    "  - {gpu: h100-sxm, zone: west, price_class: spot, price_per_gpu_hour: 1.0, "
    "interruptions_per_hour: 0.1, max_gpus: 16}\n"
)


@cache
def planned(fleet: str, options: str = "whole_nodes: false", more: str = "", *, verify: bool = False) -> Plan:
    text = TWO.replace("FLEET\n", fleet).replace("OPTIONS", options) + more
    return solve(scenario_from_text(text), SolveOptions(verify=verify, alternatives=False, gap=0.0))


def used(plan: Plan) -> dict[tuple[str, str, PriceClass], int]:
    found: dict[tuple[str, str, PriceClass], int] = {}
    for g in plan.groups:
        key = (g.service, g.zone, g.price_class)
        found[key] = found.get(key, 0) + g.num_gpus
    return found


def test_each_service_has_pools_and_a_prediction_of_its_own() -> None:
    plan = planned(EAST)
    assert {g.service for g in plan.groups} == {"chat", "batch"}
    assert [(p.service, p.request_rate) for p in plan.predictions] == [("chat", 100), ("batch", 40)]
    assert plan.cost == pytest.approx(3.0 * plan.num_gpus)
    for service, rate in (("chat", 100), ("batch", 40)):
        pools: dict[str, float] = {}
        for g in plan.groups:
            if g.service == service:
                assert g.name.startswith(f"{service}-")
                pools[g.phase] = pools.get(g.phase, 0.0) + g.request_rate
        assert list(pools.values()) == pytest.approx([rate] * len(pools))


def test_services_share_nodes_and_stock() -> None:
    apart = planned(EAST)
    together = planned(EAST, "whole_nodes: true")
    assert [use.gpus_paid for use in together.nodes] == [8]
    assert together.num_gpus <= 8
    with pytest.raises(InfeasibleError):
        planned(EAST.replace("16", f"{apart.num_gpus - 1}"))


def test_the_cheapest_zone_serves_and_the_spot_floor_holds() -> None:
    assert {g.zone for g in planned(EAST + WEST).groups} == {"west"}
    free = planned(EAST + WEST + SPOT)
    assert {g.price_class for g in free.groups} == {PriceClass.SPOT}
    half = planned(EAST + WEST + SPOT, "whole_nodes: false, on_demand_floor: 0.5")
    counts = used(half)
    for service in ("chat", "batch"):
        assert counts[service, "west", PriceClass.ON_DEMAND] > 0
    assert free.cost < half.cost < planned(EAST + WEST).cost  # type: ignore[operator]


def test_spot_replicas_count_for_the_time_that_they_serve() -> None:
    """0.1 interruptions per hour, each of an hour: 10 / 11 of the time."""
    text = TWO.replace("FLEET\n", WEST + SPOT).replace("OPTIONS", "spot_recovery_minutes: 60")
    search = Search.of(scenario_from_text(text), SolveOptions())
    by_line: dict[tuple[int, str], dict[str, float]] = {}
    for candidate, choice in zip(search.problem.candidates, search.choices, strict=True):
        line = search.scenario.fleet[choice.item].price_class
        name = candidate.name.replace("@west@spot", "@west")
        by_line.setdefault((candidate.stream, name), {})[line] = candidate.curve.per_replica[0]
    pairs = [rates for rates in by_line.values() if len(rates) == 2]
    assert pairs
    for rates in pairs:
        assert rates["spot"] == pytest.approx(rates["on_demand"] / 1.1)


def test_a_lost_zone_is_survived_and_what_stands_by_is_listed() -> None:
    plan = planned(EAST + WEST, "whole_nodes: false, survive: [zone]")
    zones = used(plan)
    for service in ("chat", "batch"):
        for zone in ("east", "west"):
            assert zones[service, zone, PriceClass.ON_DEMAND] > 0
    both = planned(EAST + WEST, "whole_nodes: false, survive: [zone, node]")
    assert sum(p.request_rate for p in both.predictions) == pytest.approx(140)
    assert both.cost >= plan.cost  # type: ignore[operator]
    assert all(g.max_num_seqs >= 64 for g in both.groups if g.phase != "prefill")


def test_power_is_part_of_the_price() -> None:
    """700 W at 0.5 of it, PUE 1.2: 0.42 kW at 0.25 USD/kWh on top of 3 USD/h."""
    power = "power: {price_per_kwh: 0.25, utilization: 0.5, pue: 1.2}\n"
    plan, plain = planned(EAST, more=power), planned(EAST)
    assert plan.cost == pytest.approx((3.0 + 0.105) * plan.num_gpus)
    assert plan.power == pytest.approx(420 * plan.num_gpus)
    assert plan.num_gpus == plain.num_gpus
    cap = power.replace("pue: 1.2", f"pue: 1.2, max_kw: {0.42 * plan.num_gpus - 0.01}")
    with pytest.raises(InfeasibleError, match="power cap"):
        planned(EAST, more=cap)


def test_all_of_it_holds_in_simulation() -> None:
    plan = planned(EAST + WEST, "whole_nodes: false, survive: [zone]", verify=True)
    assert plan.verification is not None
    assert plan.verification.passed
    names = set(plan.verification.details["services"])
    assert {"chat, without east", "chat, without west", "batch, without east", "batch, without west"} <= names


def test_the_bill_has_power_and_traffic_between_zones_in_it() -> None:
    """The bill of a plan comes to the plan's cost, whatever that is made of."""
    far = (
        "  - {gpu: h100-sxm, zone: east, price_per_gpu_hour: 3.0, max_decode_gpus: 0}\n"
        "  - {gpu: h100-sxm, zone: west, price_per_gpu_hour: 2.0, max_prefill_gpus: 0}\n"
    )
    power = "power: {price_per_kwh: 0.25, utilization: 0.5, pue: 1.2}\negress_per_gb: 0.001\n"
    plan = planned(far, "whole_nodes: false, colocated: forbidden", power)
    gpus = sum(use.gpus_paid * (use.price or 0.0) for use in plan.nodes)
    moved = 131_072 * (100 * 800 + 40 * 3000) * 3600 / 1e9  # all KV caches, in bf16 [GB/h]
    assert plan.cost == pytest.approx(gpus + 0.105 * plan.num_gpus + 0.001 * moved, rel=1e-6)
    bill = money_report(plan)
    assert bill.cost == pytest.approx(plan.cost)
    by_kind = {line.kind: line.cost for line in bill.lines if line.kind != "group"}
    assert by_kind == {
        "electricity": pytest.approx(0.105 * plan.num_gpus),
        "traffic": pytest.approx(0.001 * moved, rel=1e-4),
    }
    assert sum(t.cost for t in bill.tokens) == pytest.approx(plan.cost)
    assert {t.service for t in bill.tokens} == {"chat", "batch"}
    with pytest.raises(SpecError, match="already"):
        money_report(plan, power_price=0.1)
