"""Plans that follow a schedule of rates: the whole way from the file to the plan."""

from __future__ import annotations

import csv
from decimal import Decimal
from pathlib import Path

import pytest

from planner.documents.plan import dump_plan, load_plan
from planner.documents.scenario import scenario_from_text
from planner.errors import InfeasibleError, SpecError
from planner.plan import Plan
from planner.search import SolveOptions
from planner.specs import PriceClass
from planner.standing import standing_files
from planner.supply import supplies
from planner.whatif.asked import read_asked_plan
from planner.whatif.period_bill import period_bill
from planner.workflow import solve

HEAD = """
model: meta-llama/Llama-3.1-8B-Instruct
workload: {request_rate: RATES, input_tokens: 1000, output_tokens: 200}
slo: {ttft_ms: {p99: 2000}, tpot_ms: {p99: 60}}
options: {whole_nodes: false, colocated: only, allowed_tp: [1], max_pp: 1}
"""
FLEET = "fleet:\n  - {gpu: h100-sxm, price_per_gpu_hour: 3.0}\n"
RESERVED = "  - {gpu: h100-sxm, price_class: reserved, price_per_gpu_hour: 1.8}\n"
DAY = "[2, 2, 30, 90, 60, 10]"


def planned(rates: str = DAY, fleet: str = FLEET, more: str = "", *, verify: bool = False) -> Plan:
    text = HEAD.replace("RATES", rates) + fleet + more
    return solve(scenario_from_text(text), SolveOptions(verify=verify, alternatives=False))


def alone(rate: float, fleet: str = FLEET) -> Plan:
    return planned(f"{rate}", fleet)


def gpus(plan: Plan) -> list[int]:
    """Replicas of every period; each is one GPU here."""
    return [sum(period.replicas.values()) for period in plan.periods]


def test_without_ties_every_period_is_planned_by_itself() -> None:
    plan = planned()
    expected = [alone(rate) for rate in (2, 2, 30, 90, 60, 10)]
    assert gpus(plan) == [p.num_gpus for p in expected]
    costs = [p.cost for p in expected]
    assert [period.cost for period in plan.periods] == pytest.approx(costs)
    assert plan.horizon is not None
    assert plan.horizon.cost == pytest.approx(4 * sum(costs))  # type: ignore[arg-type]
    assert plan.cost == pytest.approx(plan.horizon.cost / 24)
    assert plan.horizon.static_cost == pytest.approx(24 * max(costs))  # type: ignore[type-var]
    assert plan.horizon.saving == pytest.approx(1 - plan.horizon.cost / plan.horizon.static_cost)
    assert plan.num_gpus == max(gpus(plan))


def test_gpus_are_reserved_where_they_are_used_long_enough() -> None:
    """At 1.8 against 3.0 USD/h a GPU has to be in use for 60 % of the hours."""
    plan = planned(fleet=FLEET + RESERVED)
    assert plan.horizon is not None
    needed = sorted(gpus(planned()))
    worth = needed[2]  # in use in four of six periods, 67 %; the next is in three
    assert plan.horizon.reserved == {"h100-sxm": worth}
    counts = gpus(plan)
    expected = 24 * 1.8 * worth + 4 * 3.0 * sum(max(n - worth, 0) for n in counts)
    assert plan.horizon.cost == pytest.approx(expected)
    assert sum(g.cost for g in plan.groups if g.request_rate) == pytest.approx(plan.periods[3].cost)  # type: ignore[misc]
    assert {(use.price_class, use.gpus_paid) for use in plan.nodes} == {
        (PriceClass.RESERVED, worth),
        (PriceClass.ON_DEMAND, max(counts) - worth),
    }


def test_owned_gpus_come_first_and_cost_nothing() -> None:
    owned = "fleet:\n  - {gpu: h100-sxm, owned: true, max_gpus: 1}\n  - {gpu: h100-sxm, PRICE}\n"
    fleet = owned.replace("PRICE", "price_class: reserved, price_per_gpu_hour: 1.8")
    plan = planned(fleet=fleet)
    counts = gpus(plan)
    assert plan.horizon is not None
    assert plan.horizon.reserved == {"h100-sxm": max(counts) - 1}
    assert plan.horizon.cost == pytest.approx(24 * 1.8 * (max(counts) - 1))


def test_replicas_come_and_go_only_so_fast() -> None:
    free = gpus(planned())
    steps = [abs(a - b) for a, b in zip(free, [*free[1:], free[0]], strict=True)]
    assert max(steps) > 1
    plan = planned(more="periods: {max_added_replicas: 1, max_removed_replicas: 1}\n")
    slow = gpus(plan)
    assert all(abs(a - b) <= 1 for a, b in zip(slow, [*slow[1:], slow[0]], strict=True))
    assert plan.cost > planned().cost  # type: ignore[operator]


def test_starting_is_paid_for() -> None:
    plan, free = planned(more="periods: {startup_minutes: 60}\n"), planned()
    counts = gpus(plan)
    started = sum(max(b - a, 0) for a, b in zip([counts[-1], *counts[:-1]], counts, strict=True))
    assert plan.horizon is not None
    assert free.horizon is not None
    assert plan.horizon.cost == pytest.approx(4 * 3.0 * sum(counts) + 3.0 * started)
    assert plan.horizon.cost > free.horizon.cost  # type: ignore[operator]


def test_two_models_share_the_stock_of_each_hour() -> None:
    text = """
models:
  - name: day
    model: meta-llama/Llama-3.1-8B-Instruct
    workload: {request_rate: [90, 2], input_tokens: 1000, output_tokens: 200}
    slo: {ttft_ms: {p99: 2000}, tpot_ms: {p99: 60}}
  - name: night
    model: meta-llama/Llama-3.1-8B-Instruct
    workload: {request_rate: [2, 90], input_tokens: 1000, output_tokens: 200}
    slo: {ttft_ms: {p99: 2000}, tpot_ms: {p99: 60}}
options: {whole_nodes: false, colocated: only, allowed_tp: [1], max_pp: 1}
fleet: [{gpu: h100-sxm, price_per_gpu_hour: 3.0, max_gpus: STOCK}]
"""
    most = alone(90).num_gpus + alone(2).num_gpus
    options = SolveOptions(verify=False, alternatives=False)
    plan = solve(scenario_from_text(text.replace("STOCK", f"{most}")), options)
    assert gpus(plan) == [most, most]
    assert [p.request_rates for p in plan.periods] == [{"day": 90, "night": 2}, {"day": 2, "night": 90}]
    assert plan.horizon is not None
    assert plan.horizon.static_cost is None  # both peaks at once are more than the stock
    with pytest.raises(InfeasibleError):
        solve(scenario_from_text(text.replace("STOCK", f"{most - 1}")), options)


def test_a_plan_of_a_day_holds_in_simulation_and_in_its_file(tmp_path: Path) -> None:
    plan = planned("[20, 60]", verify=True)
    assert plan.verification is not None
    assert plan.verification.passed
    assert len(plan.verification.details["services"]) == 2
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(plan))
    read = load_plan(path)
    assert [p.replicas for p in read.periods] == [p.replicas for p in plan.periods]
    assert read.horizon is not None
    assert plan.horizon is not None
    assert read.horizon.saving == pytest.approx(plan.horizon.saving, rel=1e-5)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("budget_per_hour: 100\n", "budget_per_hour: not supported together with a schedule"),
        ("power: {price_per_kwh: 0.1}\n", "power: not supported together with a schedule"),
    ],
)
def test_what_periods_do_not_have_is_refused(more: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        planned(more=more)


def test_spot_gpus_are_a_type_of_their_own() -> None:
    spot = "  - {gpu: h100-sxm, price_class: spot, price_per_gpu_hour: 1.0, interruptions_per_hour: 0.1}\n"
    loaded = scenario_from_text(HEAD.replace("RATES", DAY) + FLEET + RESERVED + spot)
    found = supplies(loaded.scenario.fleet)
    assert [(s.item.price_class, s.item.price, s.offer.reserved_price) for s in found] == [
        (PriceClass.ON_DEMAND, 3.0, 1.8),
        (PriceClass.SPOT, 1.0, None),
    ]


def test_the_bill_of_a_day_adds_up_to_the_cent(tmp_path: Path) -> None:
    plan = planned(fleet=FLEET + RESERVED, more="periods: {startup_minutes: 20}\n")
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(plan))
    asked = read_asked_plan(path)
    assert asked.plan is not None
    bill = period_bill("day", asked.plan, asked.loaded)
    assert plan.horizon is not None
    assert bill.cost == pytest.approx(plan.horizon.cost, rel=1e-5)
    assert bill.per_month == pytest.approx(bill.cost / 24 * 730)
    assert bill.duties == {"h100-sxm": pytest.approx(0.6)}
    *parts, total = [Decimal(row["usd"]) for row in csv.DictReader(bill.to_csv().splitlines())]
    assert sum(parts) == total
    assert float(total) == pytest.approx(bill.cost, abs=0.006)
    requests = 4 * 3600 * sum((2, 2, 30, 90, 60, 10))
    assert bill.per_million_output == pytest.approx(bill.cost / (requests * 200) * 1e6)
    assert bill.per_million == pytest.approx(bill.cost / (requests * 1200) * 1e6)


def test_groups_of_all_periods_are_in_the_plan_which_can_be_read_back(tmp_path: Path) -> None:
    """Two services whose peaks do not meet: each is told at its own, and what stands elsewhere is listed."""
    service = """
  - name: NAME
    model: meta-llama/Llama-3.1-8B-Instruct
    workload: {request_rate: RATES, input_tokens: 1000, output_tokens: 200}
    slo: {ttft_ms: {p99: 2000}, tpot_ms: {p99: 60}}
"""
    both = [service.replace("NAME", n).replace("RATES", r) for n, r in (("a", "[4, 90]"), ("b", "[90, 4]"))]
    text = f"models:{''.join(both)}options: {{whole_nodes: false, max_tp: 2}}\n" + FLEET
    plan = solve(scenario_from_text(text), SolveOptions(verify=False, alternatives=False))
    assert [(p.service, p.request_rate) for p in plan.predictions] == [("a", 90), ("b", 90)]
    names = {group.name for group in plan.groups}
    used = {name for period in plan.periods for name, count in period.replicas.items() if count}
    assert used == names
    for service_name, at in (("a", 1), ("b", 0)):
        mine = [g for g in plan.groups if g.service == service_name and g.request_rate > 0]
        assert {g.name: g.replicas for g in mine} == {
            name: count
            for name, count in plan.periods[at].replicas.items()
            if count and name.startswith(f"{service_name}-")
        }
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(plan))
    for period, rates in ((None, [90, 90]), ("00:00", [4, 90]), ("12:00", [90, 4])):
        assert [s.offered for s in standing_files(path, period=period)] == pytest.approx(rates)
