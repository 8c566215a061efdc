"""The examples: each solves, and shows what its comments say."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import planner
from planner.plan import Plan, PlanStatus
from planner.report.terminal import print_plan
from planner.specs import Metric, Phase

FOLDER = Path(__file__).parents[1] / "examples"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


@cache
def solved(name: str) -> Plan:
    plan: Plan = planner.solve(FOLDER / f"{name}.yaml")
    return plan


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    print_plan(solved(name), 100)
    return capsys.readouterr().out


def alternative(plan: Plan, name: str) -> float:
    (value,) = (a.value for a in plan.alternatives if a.name == name)
    assert value is not None
    return value


def test_there_are_examples() -> None:
    assert {"llama-70b-chat", "llama-70b-mixed", "llama-8b-budget"} <= set(NAMES)


def test_every_example_and_notebook_is_in_the_index() -> None:
    index = FOLDER / "README.md"
    listed = {(FOLDER / link).resolve() for link in re.findall(r"\]\(([^)]+)\)", index.read_text())}
    assert all(path.exists() for path in listed)
    files = {path for path in FOLDER.rglob("*") if path.is_file() and path.suffix != ".md"}
    files |= set((FOLDER.parent / "notebooks").glob("*.ipynb"))
    files.discard(FOLDER / "traces" / "synthetic-chat.jsonl")  # has a page of its own
    assert {path.resolve() for path in files} <= listed


@pytest.mark.parametrize("name", NAMES)
def test_solves_within_the_gap_and_meets_every_slo(name: str) -> None:
    plan = solved(name)
    assert plan.status is PlanStatus.OPTIMAL
    assert plan.gap <= 0.005 + 1e-6
    for prediction in plan.predictions:
        for target in prediction.slo:
            latency = prediction.ttft if target.metric is Metric.TTFT else prediction.tpot
            assert getattr(latency.planned, target.statistic) <= target.limit


@pytest.mark.parametrize("name", NAMES)
def test_no_alternative_is_cheaper_than_the_plan(name: str) -> None:
    plan = solved(name)
    for other in plan.alternatives:
        assert other.value is None or other.value >= plan.value * (1 - plan.gap) - 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_prices_are_cited_with_a_date_or_said_to_be_unverified(name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comment = "\n".join(line for line in lines if line.startswith("#"))
    assert "Prices: " in comment
    assert re.search(r"\b20\d\d\b", comment)
    assert re.search("checked|second-hand|unverified", comment)


def test_mixed_example_mixes_types_and_beats_every_single_type_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = solved("llama-70b-mixed")
    assert {g.gpu for g in plan.pool(Phase.PREFILL)} == {"h100-sxm"}
    assert {g.gpu for g in plan.pool(Phase.DECODE)} == {"a100-80gb-sxm"}
    single = alternative(plan, "best single GPU type")
    assert single * (1 - 0.005) > plan.value  # even if the single-type plan could be better by its gap
    assert single / plan.value == pytest.approx(1.04, abs=0.005)  # as the example's comment says
    text = printed("llama-70b-mixed", capsys)
    assert re.search(rf"best single GPU type +{single:,.4g} +\+4\.\d %", text)
    assert f"cost ${plan.cost:,.2f}/h" in text


def test_each_type_alone_costs_more_than_the_mixed_plan() -> None:
    """The claim of the example without the program's own restriction: fleets of one line."""
    document = (FOLDER / "llama-70b-mixed.yaml").read_text(encoding="utf-8")
    lines = document.splitlines()
    fleet = [line for line in lines if line.startswith("  - {gpu:")]
    from planner.documents.scenario import scenario_from_text
    from planner.search import SolveOptions
    from planner.workflow import solve

    for own in fleet:
        text = "\n".join(line for line in lines if line not in fleet or line == own)
        try:
            plan = solve(scenario_from_text(text), SolveOptions(alternatives=False, verify=False))
        except planner.InfeasibleError:
            continue
        assert plan.bound > solved("llama-70b-mixed").value


def test_budget_example_serves_colocated_and_says_so_with_both_costs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = solved("llama-8b-budget")
    assert {g.phase for g in plan.groups} == {Phase.COLOCATED}
    other = alternative(plan, "best disaggregated")
    assert other > plan.value * 1.1
    expected = (
        f"do not disaggregate: colocated serving wins, {plan.value:,.4g} $/h "
        f"against {other:,.4g} disaggregated"
    )
    assert expected in printed("llama-8b-budget", capsys)


def test_chat_example_disaggregates_and_says_so_with_both_costs(capsys: pytest.CaptureFixture[str]) -> None:
    plan = solved("llama-70b-chat")
    assert {g.phase for g in plan.groups} == {Phase.PREFILL, Phase.DECODE}
    other = alternative(plan, "best colocated")
    expected = f"disaggregation wins, {plan.value:,.4g} $/h against {other:,.4g} colocated"
    assert expected in printed("llama-70b-chat", capsys)


@pytest.mark.parametrize("name", NAMES)
def test_printed_plan_fits_the_width(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for width in (80, 100, 140):
        print_plan(solved(name), width)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= width
        start = "service " if len({g.service for g in solved(name).groups}) > 1 else "pool "
        header = next(line for line in lines if line.startswith(start) and "replicas" in line)
        assert header.split()[-1] == "binds"
        assert "replicas" in header
        assert "GPUs" in header
