"""Two plans compared, and the bill of one: counts and cents add up."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from copy import deepcopy
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from conftest import SCENARIO, Runner

import planner as api
from planner.documents.plan import dump_plan
from planner.documents.scenario import scenario_from_text
from planner.errors import SpecError
from planner.plan import Plan, Verification
from planner.search import SolveOptions
from planner.specs import Parallelism, Phase
from planner.units import HOURS_PER_MONTH
from planner.whatif.compare import GroupKey, StepKind, applied, compare, counted, steps_between
from planner.whatif.money import COLUMNS, BreakEven, apportioned
from planner.whatif.money_report import money_report

LIMITED: dict[str, Any] = {"max_tp": 2, "max_pp": 1}


def solved(rate: float = 20, **changed: Any) -> Plan:
    workload = {"request_rate": rate, "input_tokens": 1000, "output_tokens": 200}
    document = deepcopy(SCENARIO) | {"workload": workload, "options": LIMITED} | changed
    options = SolveOptions(verify=False, alternatives=False)
    return api.solve(scenario_from_text(json.dumps(document)), options)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Prefill and decode apart, on nodes of which GPUs are left over."""
    return solved(40, options=LIMITED | {"colocated": "forbidden"})


@pytest.fixture(scope="module")
def larger() -> Plan:
    return solved(120, options=LIMITED | {"colocated": "forbidden"})


@pytest.fixture(scope="module")
def colocated() -> Plan:
    return solved(40, options=LIMITED | {"colocated": "only"}, slo={"ttft_ms": {"p99": 800}})


def written(plan: Plan, path: Path) -> Path:
    path.write_text(dump_plan(plan), encoding="utf-8")
    return path


# --------------------------------------------------------------------------------------------
# Compare


def test_plan_equals_itself(plan: Plan, tmp_path: Path) -> None:
    for other in (plan, written(plan, tmp_path / "plan.yaml")):
        found = compare(other, other)
        assert found.same
        assert found.same_fleet
        assert found.steps == ()
        assert found.differences == ()
        assert found.gpus == ()


def test_steps_lead_from_one_plan_to_the_other(plan: Plan, larger: Plan, colocated: Plan) -> None:
    for a in (plan, larger, colocated):
        for b in (plan, larger, colocated):
            found = compare(a, b)
            assert applied(counted(a), found.steps) == counted(b)
            assert found.same == (a is b)


def _key(phase: Phase, gpu: str, tp: int, limit: int = 256, service: str = "m") -> GroupKey:
    return GroupKey(
        service=service, phase=phase, gpu=gpu, zone="", parallelism=Parallelism(tp=tp), engine="vllm 1",
        weights="fp8", kv_cache="fp8", max_num_seqs=limit, max_num_batched_tokens=2048, max_model_len=4096,
    )  # fmt: skip


KEYS = [
    _key(phase, gpu, tp, limit, service)
    for phase in Phase
    for gpu in ("h100", "a100")
    for tp in (1, 2)
    for limit in (128, 256)
    for service in ("m", "n")
]


@pytest.mark.parametrize("seed", range(50))
def test_steps_of_drawn_fleets(seed: int) -> None:
    """They lead to the other fleet, touch each replica once, and leave no pair that could have moved."""
    draw = random.Random(seed)
    before, after = ({k: draw.randint(1, 5) for k in draw.sample(KEYS, draw.randint(0, 6))} for _ in "ab")
    steps = tuple(steps_between(before, after))
    assert applied(before, steps) == after
    assert all(step.replicas > 0 for step in steps)
    for key in KEYS:
        surplus = before.get(key, 0) - after.get(key, 0)
        assert sum(s.replicas for s in steps if s.before == key) == max(surplus, 0)
        assert sum(s.replicas for s in steps if s.after == key) == max(-surplus, 0)
    added = {(s.after.gpu, s.after.parallelism.num_gpus) for s in steps if s.kind is StepKind.ADD and s.after}
    gone = {(s.before.gpu, s.before.parallelism.num_gpus) for s in steps if s.before and not s.after}
    assert not added & gone


def test_nearest_role_moves_first() -> None:
    prefill, decode = _key(Phase.PREFILL, "h100", 2), _key(Phase.DECODE, "h100", 2)
    tighter = replace(decode, max_num_seqs=128)
    steps = tuple(steps_between({prefill: 2, decode: 1}, {tighter: 2, _key(Phase.DECODE, "a100", 2): 1}))
    assert [(s.kind, s.replicas, s.gpus) for s in steps] == [
        (StepKind.RECONFIGURE, 1, 2),
        (StepKind.MOVE, 1, 2),
        (StepKind.ADD, 1, 2),
        (StepKind.REMOVE, 1, 2),
    ]


def test_differences_are_named(plan: Plan, colocated: Plan) -> None:
    found = compare(plan, replace(colocated, engine_version="9.9"))
    said = {d.what: (d.before, d.after) for d in found.differences}
    assert said["engine"] == (f"vllm {plan.engine_version}", "vllm 9.9")
    assert said["SLO p99 TTFT"] == ("<= 1000 ms", "<= 800 ms")
    assert said["SLO p99 TPOT"] == ("<= 40 ms", "none")
    assert "models" not in said
    assert found.cost == (plan.cost, colocated.cost)
    ttft = next(x for x in found.latencies if x.metric == "ttft")
    assert ttft.expected == (
        plan.predictions[0].ttft.expected.p99,
        colocated.predictions[0].ttft.expected.p99,
    )


def test_gpus_are_counted_by_type(plan: Plan, larger: Plan) -> None:
    found = compare(plan, larger)
    for change in found.gpus:
        for i, one in enumerate((plan, larger)):
            use = [u for u in one.nodes if u.gpu == change.gpu]
            assert change.used[i] == sum(u.gpus_used for u in use)
            assert change.paid[i] == sum(u.gpus_paid for u in use)
    assert found.gpus


def test_other_models_are_said(plan: Plan) -> None:
    groups = tuple(replace(g, service="other/model") for g in plan.groups)
    other = replace(
        plan,
        groups=groups,
        predictions=tuple(replace(p, service="other/model") for p in plan.predictions),
        verification=Verification(passed=False),
    )
    found = compare(plan, other)
    said = {d.what: d.after for d in found.differences}
    assert said["models"] == "other/model"
    assert said["simulation"] == "does not hold"
    assert {s.kind for s in found.steps} == {StepKind.MOVE}


def test_compare_command(planner: Runner, plan: Plan, larger: Plan, tmp_path: Path) -> None:
    a, b = written(plan, tmp_path / "a.yaml"), written(larger, tmp_path / "b.yaml")
    result = planner("compare", a, b)
    assert result.code == 0
    for word in ("replicas:", "cost $", "/month", "p99 TTFT", "request rate", "40 req/s", "120 req/s"):
        assert word in result.out
    facts = planner("compare", a, b, "--json").facts
    assert facts["same"] is False
    assert sum(s["replicas"] for s in facts["steps"]) == sum(facts["replicas"].values())
    assert facts["cost_per_hour"] == {"before": pytest.approx(plan.cost), "after": pytest.approx(larger.cost)}
    same = planner("compare", a, a)
    assert (same.code, "the plans are the same" in same.out) == (0, True)


def test_compare_refuses(planner: Runner, plan: Plan, tmp_path: Path) -> None:
    a, scenario = written(plan, tmp_path / "a.yaml"), tmp_path / "scenario.yaml"
    scenario.write_text(json.dumps(SCENARIO), encoding="utf-8")
    for other, message in (
        (scenario, "is a scenario, not a plan"),
        (tmp_path / "none.yaml", "no such file"),
    ):
        result = planner("compare", a, other)
        assert result.code == 2
        assert message in result.err
        assert result.out == ""
    assert planner("compare", "-", "-").code == 2


# --------------------------------------------------------------------------------------------
# Money


@pytest.mark.parametrize("seed", range(30))
def test_rounded_amounts_add_up(seed: int) -> None:
    draw = random.Random(seed)
    amounts = [draw.uniform(0, 1e4) for _ in range(draw.randint(0, 12))]
    rounded = apportioned(amounts, 2)
    total = sum((Decimal(repr(a)) for a in amounts), Decimal(0)).quantize(Decimal("0.01"))
    assert sum(rounded, Decimal(0)) == total
    assert all(abs(r - Decimal(repr(a))) < Decimal("0.01") for r, a in zip(rounded, amounts, strict=True))


def test_thirds_get_the_missing_cent() -> None:
    assert apportioned([100 / 3] * 3, 2) == [Decimal("33.34"), Decimal("33.33"), Decimal("33.33")]


def test_bill_is_the_plan_s_cost(plan: Plan, larger: Plan, colocated: Plan) -> None:
    for one in (plan, larger, colocated):
        bill = money_report(one)
        assert bill.cost == pytest.approx(one.cost, abs=1e-9)
        assert bill.gpus_paid == sum(u.gpus_paid for u in one.nodes)
        assert bill.gpus_used == one.num_gpus
        for shares in (bill.pools, bill.gpu_types):
            assert math.fsum(s.cost for s in shares) == pytest.approx(one.cost)
            assert math.fsum(s.share for s in shares) == pytest.approx(1.0)
            assert sum(s.gpus for s in shares) == bill.gpus_paid


def test_unused_gpus_are_a_line_of_their_own(plan: Plan) -> None:
    bill = money_report(plan)
    unused = sum(u.gpus_paid - u.gpus_used for u in plan.nodes)
    assert unused > 0
    assert sum(line.gpus for line in bill.lines if line.kind == "unused") == unused
    assert bill.unused_cost == pytest.approx(sum((u.gpus_paid - u.gpus_used) * u.price for u in plan.nodes))  # type: ignore[operator]
    assert bill.utilization < max(g.utilization for g in plan.groups)


@pytest.mark.parametrize("price", [3.0, 2.34567, 1 / 3])
def test_csv_adds_up_to_the_cent(plan: Plan, price: float) -> None:
    bill = money_report(plan, prices={plan.nodes[0].gpu: price}, power_price=0.137, pue=1.29)
    text = bill.to_csv()
    assert text.count("\r\n") == text.count("\n") == len(bill.lines) + 2
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert tuple(rows[0]) == COLUMNS
    *lines, total = rows
    assert total["kind"] == "total"
    for column in ("usd_per_hour", "usd_per_month", "power_usd_per_month"):
        assert sum(Decimal(row[column]) for row in lines) == Decimal(total[column])
    assert float(total["usd_per_month"]) == pytest.approx(bill.cost * HOURS_PER_MONTH, abs=0.005)
    assert bill.power is not None
    assert float(total["power_usd_per_month"]) == pytest.approx(bill.power.cost * HOURS_PER_MONTH, abs=0.005)
    assert sum(int(row["gpus"]) for row in lines) == int(total["gpus"])


def test_tokens_cost_what_the_plan_says(plan: Plan) -> None:
    (tokens,) = money_report(plan).tokens
    (prediction,) = plan.predictions
    assert tokens.per_million_input == pytest.approx(prediction.cost_per_million_input_tokens)
    assert tokens.per_million_output == pytest.approx(prediction.cost_per_million_output_tokens)
    assert tokens.per_million == pytest.approx(prediction.cost_per_million_tokens)
    assert tokens.input_tokens == pytest.approx(40 * 3600 * 1000)
    assert tokens.output_tokens == pytest.approx(40 * 3600 * 200)


def test_services_share_the_bill(plan: Plan) -> None:
    """Each pays its groups, and unused GPUs by the GPUs that it uses."""
    first, *rest = plan.groups
    names = ("meta-llama/Llama-3.1-8B-Instruct", "other")
    groups = (replace(first, service=names[1]), *rest)
    twice = (*plan.predictions, replace(plan.predictions[0], service=names[1]))
    bill = money_report(replace(plan, groups=groups, predictions=twice))
    (known,) = bill.tokens  # nothing is known of the lengths of the other
    own = sum(line.cost for line in bill.lines if line.service == names[0])
    assert own < known.cost < bill.cost
    assert {share.name for share in bill.pools} >= {f"{first.phase} of other"}


@pytest.mark.parametrize(("reserved", "duty"), [(1.5, 0.5), (3.0, 1.0), (2.49 * 0.599, 0.49717)])
def test_break_even(reserved: float, duty: float) -> None:
    b = BreakEven(gpu="h100", on_demand=3.0, reserved=reserved, gpus=8)
    assert b.duty == pytest.approx(duty)
    assert b.hours_per_month == pytest.approx(duty * 730)
    # At the break-even both cost the same.
    assert b.duty * b.on_demand == pytest.approx(b.reserved)
    assert b.saving == pytest.approx(8 * (3.0 - reserved))


def test_energy_by_hand(plan: Plan) -> None:
    power = money_report(plan, power_price=0.1, pue=1.2).power
    assert power is not None
    assert power.draw == pytest.approx(plan.power)
    assert power.cost == pytest.approx(plan.power / 1000 * 1.2 * 0.1)


def test_unknown_prices_are_asked_for(plan: Plan) -> None:
    unknown = replace(plan, nodes=tuple(replace(u, price=None) for u in plan.nodes))
    with pytest.raises(SpecError, match="give --price a100-80gb-sxm=USD"):
        money_report(unknown)
    prices = {u.gpu: 2.0 for u in plan.nodes}
    assert money_report(unknown, prices=prices).cost == pytest.approx(
        2.0 * sum(u.gpus_paid for u in plan.nodes)
    )
    with pytest.raises(SpecError, match="uses no GPU 't4'"):
        money_report(plan, reserved_prices={"t4": 1.0})
    free = replace(plan, nodes=tuple(replace(u, price=0.0) for u in plan.nodes))
    with pytest.raises(SpecError, match="is owned"):
        money_report(free, reserved_prices={plan.nodes[0].gpu: 1.0})
    assert any("free of charge" in note for note in money_report(free).notes)
    for wrong in ({"power_price": -1.0}, {"pue": 0.5}, {"prices": {plan.nodes[0].gpu: math.nan}}):
        with pytest.raises(SpecError, match="finite number"):
            money_report(plan, **wrong)  # type: ignore[arg-type]


def test_money_command(planner: Runner, plan: Plan, tmp_path: Path) -> None:
    file, table = written(plan, tmp_path / "plan.yaml"), tmp_path / "bill.csv"
    result = planner(
        "money",
        file,
        "--csv",
        table,
        "--reserved-price",
        "a100-sxm=0.75",
        "--power-price",
        "0.1",
        "--pue",
        "1.3",
    )
    assert result.code == 0
    assert result.err == ""
    for word in (
        "by pool",
        "by GPU type",
        "per million input tokens",
        "req/s all the time",
        "unused GPUs cost",
    ):
        assert word in " ".join(result.out.split())
    assert "a duty of 50.0% (365 of 730 h a month)" in " ".join(result.out.split())
    assert table.read_bytes().startswith(b"kind,name,service,phase,gpu,zone,")
    facts = planner("money", file, "--json").facts
    assert facts["usd_per_hour"] == pytest.approx(plan.cost)
    *lines, total = facts["lines"]
    assert sum(line["usd_per_month"] for line in lines) == pytest.approx(total["usd_per_month"])
    assert facts["power"] is None
    assert facts["break_even"] == []


def test_money_refuses(planner: Runner, plan: Plan, tmp_path: Path) -> None:
    file, scenario = written(plan, tmp_path / "plan.yaml"), tmp_path / "scenario.yaml"
    scenario.write_text(json.dumps(SCENARIO), encoding="utf-8")
    for arguments, message in (
        ((scenario,), "is a scenario, not a plan"),
        ((tmp_path / "none.yaml",), "no such file"),
        ((file, "--price", "h100"), "is not GPU=USD"),
        ((file, "--price", "h100=nan"), "is not GPU=USD"),
        ((file, "--price", "h100=1", "--price", "h100=2"), "is given twice"),
        ((file, "--price", "h20=1"), "uses no GPU 'h20'"),
        ((file, "--pue", "1.2"), "--pue: belongs to --power-price"),
        ((file, "--pue", "0.5", "--power-price", "1"), "--pue"),
        ((file, "--csv", file), "would replace another file"),
    ):
        result = planner("money", *arguments)
        assert result.code == 2
        assert message in result.err
        assert result.out == ""
