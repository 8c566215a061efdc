"""Cases of people with fewer GPUs than they asked for; each names its public thread."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SCENARIO, Runner, ScenarioBuilder

from planner.documents.plan import dump_plan
from planner.documents.yaml_text import dump_yaml
from planner.errors import InfeasibleError, SpecError
from planner.plan import Plan
from planner.program import Candidate, CapacityCurve, GpuType, Problem, solve
from planner.program.check import violations
from planner.search import SolveOptions
from planner.specs import ColocatedUse, Objective, Phase
from planner.workflow import solve as solve_scenario

QUICK = SolveOptions(alternatives=False, verify=False)
SOLVERS = ("highs", "cbc")
SMALL = {"max_tp": 1, "max_pp": 1, "whole_nodes": False}
APART = SMALL | {"colocated": "forbidden"}


def line(**changes: Any) -> dict[str, Any]:
    given = {"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 40, "network_gbps_per_gpu": 400}
    return given | changes


def workload(rate: float) -> dict[str, Any]:
    return {"request_rate": rate, "input_tokens": 1000, "output_tokens": 200}


def pools(
    prefill: tuple[int, float], decode: tuple[int, float], ceiling: int, demand: float | None
) -> Problem:
    """(GPUs, req/s) of a prefill and of a decode replica, under a ceiling of GPUs."""
    members = ((Phase.PREFILL, *prefill), (Phase.DECODE, *decode))
    return Problem(
        candidates=tuple(
            Candidate(
                name=str(phase),
                phase=phase,
                gpu_type=0,
                gpus=gpus,
                curve=CapacityCurve(starts=(1,), per_replica=(rate,)),
                max_replicas=64,
            )
            for phase, gpus, rate in members
        ),
        gpu_types=(GpuType(name="h100", price=1.0, power=700.0, node_size=8, max_gpus=ceiling),),
        demand=demand,
        objective=Objective.THROUGHPUT if demand is None else Objective.GPUS,
        whole_nodes=False,
        colocated=ColocatedUse.FORBIDDEN,
        gap=0.0,
    )


# --------------------------------------------------------------------------------------------
# U58: https://github.com/ai-dynamo/dynamo/issues/8583


def test_50_gpus_do_not_fit_into_32() -> None:
    """5 prefill replicas of 8 GPUs and 5 decode replicas of 2: the check names the stock, by how much."""
    problem = pools((8, 1.0), (2, 1.0), ceiling=32, demand=5.0)
    (broken,) = violations(problem, (5, 5))
    assert str(broken) == "stock[h100]: 50 GPUs of 32"
    assert not violations(pools((8, 1.0), (2, 1.0), ceiling=50, demand=5.0), (5, 5))


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_plan_for_more_than_there_is_is_refused(solver: str) -> None:
    with pytest.raises(InfeasibleError) as refused:
        solve(pools((8, 1.0), (2, 1.0), ceiling=32, demand=5.0), solver=solver)
    assert refused.value.binding == "GPU stock"
    assert refused.value.shortfall == "18 GPUs (18 h100)"
    assert "serve at most 3 req/s" in refused.value.suggestions  # 3 x (8 + 2) = 30 of 32


ROW = """\
model: openai/gpt-oss-120b
workload: {request_rate: 1, input_tokens: 4000, output_tokens: 200}
slo: {ttft_ms: {p99: 4000}, tpot_ms: {p99: 100}}
groups:
  - {phase: prefill, gpu: h100-sxm, LAYOUT, replicas: 5, num_gpus: 40, network_gbps_per_gpu: 400}
  - {phase: decode, gpu: h100-sxm, tp: 2, replicas: 5, num_gpus: 10, network_gbps_per_gpu: 400}
"""


def test_parallel_sizes_have_to_make_the_gpus_of_a_replica(planner: Runner, tmp_path: Path) -> None:
    """The row of 8 GPUs per replica that says TP 4, PP 1, EP 1."""
    path = tmp_path / "fleet.yaml"
    path.write_text(ROW.replace("LAYOUT", "tp: 4, pp: 1, ep: 1"), encoding="utf-8")
    result = planner("evaluate", path)
    assert (result.code, result.out) == (2, "")
    assert "line 5: groups[0].num_gpus: must be replicas x tp x pp x dp = 20, got 40" in result.err
    assert "groups[1].num_gpus" not in result.err
    assert "prefill TP 4 exceeds decode TP 2" in result.err  # and the row could not hand over either


@pytest.fixture(scope="module")
def planned() -> Plan:
    from planner.documents.scenario import scenario_from_text

    asked = SCENARIO | {"options": APART, "workload": workload(60), "fleet": [line(max_decode_gpus=8)]}
    return solve_scenario(scenario_from_text(json.dumps(asked)), QUICK)


def with_replicas(plan: Plan, phase: Phase, replicas: int) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        for group, made in zip(document["groups"], plan.groups, strict=True):
            if made.phase is phase:
                group["replicas"] = replicas
                del group["num_gpus"]

    return change


@pytest.mark.parametrize(
    ("phase", "replicas", "message"),
    [
        (Phase.PREFILL, 39, "groups: need 41 GPUs of h100-sxm, the plan's scenario has 40"),
        (Phase.DECODE, 9, "groups: need 9 GPUs of h100-sxm for decode, the plan's scenario has 8"),
    ],
)
def test_an_edited_plan_keeps_to_its_scenario(
    planner: Runner, planned: Plan, tmp_path: Path, phase: Phase, replicas: int, message: str
) -> None:
    import yaml

    document = yaml.safe_load(dump_plan(planned))
    with_replicas(planned, phase, replicas)(document)
    path = tmp_path / "plan.yaml"
    path.write_text(dump_yaml(document), encoding="utf-8")
    result = planner("simulate", path, "--requests", 200)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert "in scenario.fleet" in result.err


# --------------------------------------------------------------------------------------------
# U61: https://github.com/ai-dynamo/dynamo/pull/13064, /13144


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("wanted", "ceiling", "kept", "gpus"), [((10, 1), 20, (2, 1), 17), ((12, 1), 32, (3, 1), 25)]
)
def test_shrinking_to_a_ceiling_never_grows_a_pool(
    wanted: tuple[int, int], ceiling: int, kept: tuple[int, int], gpus: int, solver: str
) -> None:
    """Prefill on 8 GPUs, decode on 1, one decode replica enough for all: what is over stays unused."""
    share = 1.0 / wanted[0]
    wish = pools((8, share), (1, 1.0), ceiling=999, demand=1.0)
    assert solve(wish, solver=solver).replicas == wanted
    with pytest.raises(InfeasibleError, match="GPU stock"):
        solve(pools((8, share), (1, 1.0), ceiling=ceiling, demand=1.0), solver=solver)
    most = solve(pools((8, share), (1, 1.0), ceiling=ceiling, demand=None), solver=solver)
    assert most.replicas == kept
    assert most.gpus_used == (gpus,)
    assert most.value == pytest.approx(kept[0] * share)


@pytest.mark.parametrize("solver", SOLVERS)
def test_odd_budgets_leave_spares(solver: str) -> None:
    """Engines of 2 GPUs within 5: two of them, 4 GPUs, and one to spare."""
    engine = Candidate(
        name="engine",
        phase=Phase.COLOCATED,
        gpu_type=0,
        gpus=2,
        curve=CapacityCurve(starts=(1,), per_replica=(1.0,)),
        max_replicas=64,
    )
    problem = Problem(
        candidates=(engine,),
        gpu_types=(GpuType(name="h100", price=1.0, power=700.0, node_size=8, max_gpus=5),),
        demand=None,
        objective=Objective.THROUGHPUT,
        whole_nodes=False,
        colocated=ColocatedUse.ONLY,
        gap=0.0,
    )
    found = solve(problem, solver=solver)
    assert (found.replicas, found.gpus_used) == ((2,), (4,))


# --------------------------------------------------------------------------------------------
# U63: https://github.com/ai-dynamo/dynamo/pull/12774, llm-d/llm-d-autoscaling/issues/260


@pytest.mark.parametrize(
    ("changes", "binding", "short"),
    [
        ({"fleet": [line(max_gpus=4)]}, "GPU stock", "GPUs (MORE h100-sxm)"),
        ({"budget_per_hour": 9}, "budget", "USD/h of budget"),
        (
            {"fleet": [line(max_prefill_gpus=1, max_decode_gpus=12)], "options": APART},
            "GPU caps per pool",
            "GPUs of pool caps",
        ),
    ],
)
def test_no_plan_says_what_binds_and_by_how_much(
    planner: Runner,
    scenario: ScenarioBuilder,
    tmp_path: Path,
    changes: dict[str, Any],
    binding: str,
    short: str,
) -> None:
    """Exit code 3, nothing written, and the change that is suggested is enough."""
    enough = solve_scenario(scenario(options=SMALL, workload=workload(200), fleet=[line()]), QUICK).num_gpus
    short = short.replace("MORE", str(enough - 4))
    asked: dict[str, Any] = (
        SCENARIO | {"options": SMALL, "workload": workload(200), "fleet": [line()]} | changes
    )
    path, plan = tmp_path / "scenario.yaml", tmp_path / "plan.yaml"
    path.write_text(json.dumps(asked), encoding="utf-8")
    result = planner("solve", path, "-o", plan, "--no-verify")
    assert (result.code, result.out) == (3, "")
    assert not plan.exists()
    assert f"binding: {binding}" in result.err
    (said,) = [text for text in result.err.splitlines() if text.strip().startswith("short by: ")]
    assert short in said
    rate = float(result.err.split("serve at most ")[1].split()[0])
    path.write_text(json.dumps(asked | {"workload": workload(rate)}), encoding="utf-8")
    assert planner("solve", path, "-o", plan, "--no-verify").code == 0
    assert plan.exists()


def test_gpus_that_were_short_are_enough(scenario: ScenarioBuilder) -> None:
    given: dict[str, Any] = {"options": SMALL, "workload": workload(200)}
    with pytest.raises(InfeasibleError) as refused:
        solve_scenario(scenario(**given, fleet=[line(max_gpus=4)]), QUICK)
    short = int(refused.value.shortfall.split()[0])
    assert solve_scenario(scenario(**given, fleet=[line(max_gpus=4 + short)]), QUICK).groups
    with pytest.raises(InfeasibleError):
        solve_scenario(scenario(**given, fleet=[line(max_gpus=4 + short - 1)]), QUICK)


# --------------------------------------------------------------------------------------------
# U65: https://github.com/ai-dynamo/aiconfigurator/pull/709, ai-dynamo/dynamo/pull/13038, /issues/11220


def test_caps_of_pools_hold_and_are_told(scenario: ScenarioBuilder) -> None:
    """At most 4 GPUs for prefill and 12 for decode, at least two replicas of each."""
    fleet = [line(max_prefill_gpus=4, max_decode_gpus=12)]
    options = APART | {"min_replicas_per_pool": 2}
    plan = solve_scenario(scenario(fleet=fleet, options=options, workload=workload(20)), QUICK)
    for phase, cap in ((Phase.PREFILL, 4), (Phase.DECODE, 12)):
        assert sum(g.num_gpus for g in plan.pool(phase)) <= cap
        assert sum(g.replicas for g in plan.pool(phase)) >= 2
    (told,) = plan.scenario["fleet"]
    assert (told["max_prefill_gpus"], told["max_decode_gpus"]) == (4, 12)
    assert "max_decode_gpus: 12" in dump_plan(plan)


@pytest.mark.parametrize(
    ("key", "meant"),
    [("max_gpu", "max_gpus"), ("max_prefil_gpus", "max_prefill_gpus"), ("max_decode_gpu", "max_decode_gpus")],
)
def test_a_cap_of_a_mistyped_key_is_no_missing_cap(scenario: ScenarioBuilder, key: str, meant: str) -> None:
    with pytest.raises(SpecError, match=rf"fleet\[0\].{key}: unknown key \(did you mean {meant}\?\)"):
        scenario(fleet=[line() | {key: 3}])


def test_none_is_none(scenario: ScenarioBuilder) -> None:
    """A stock of 0 leaves a type out, however cheap it is; a pool cap of 0 keeps it out of that pool."""
    cheap = {"gpu": "a100-80gb-sxm", "price_per_gpu_hour": 0.1, "max_gpus": 0, "network_gbps_per_gpu": 200}
    given: dict[str, Any] = {"options": APART, "workload": workload(20)}
    plan = solve_scenario(scenario(fleet=[line(), cheap], **given), QUICK)
    assert {g.gpu for g in plan.groups} == {"h100-sxm"}
    some = cheap | {"max_gpus": 64, "max_prefill_gpus": 0}
    plan = solve_scenario(scenario(fleet=[line(), some], **given), QUICK)
    assert {g.gpu for g in plan.pool(Phase.PREFILL)} == {"h100-sxm"}
    assert {g.gpu for g in plan.pool(Phase.DECODE)} == {"a100-80gb-sxm"}
