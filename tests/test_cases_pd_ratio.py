"""Cases of people who ask for the ratio of prefill to decode; each names its public thread."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Runner, ScenarioBuilder

from planner import catalog
from planner.documents.fleet import LoadedFleet, fleet_from_text
from planner.errors import InfeasibleError
from planner.evaluation import standing_fleet
from planner.plan import Plan
from planner.prediction import PoolLoad, overloaded, pool_loads, predict_fleet
from planner.program import Candidate, CapacityCurve, GpuType, Problem, Solution, diagnose, solve
from planner.program.problem import Family
from planner.queueing import mean_batch
from planner.search import SolveOptions
from planner.simulator.run import run_fleet
from planner.specs import ColocatedUse, Dtype, LatentAttention, Objective, Phase
from planner.transformer import kv_bytes
from planner.workflow import solve as solve_scenario

QUICK = SolveOptions(alternatives=False, verify=False)
COMPARED = SolveOptions(verify=False)
SOLVERS = ("highs", "cbc")


def steady(per_replica: float) -> CapacityCurve:
    """A capacity that was profiled on one replica: n carry n times as much. [req/s]"""
    return CapacityCurve(starts=(1,), per_replica=(per_replica,))


def program(
    prefill: tuple[int, float],
    decode: tuple[int, float],
    *,
    demand: float | None,
    max_gpus: int | None = None,
    caps: dict[Phase, int] | None = None,
    objective: Objective = Objective.GPUS,
) -> Problem:
    """One prefill and one decode candidate as (GPUs, req/s) of a replica, on one GPU type."""
    members = ((Phase.PREFILL, *prefill), (Phase.DECODE, *decode))
    return Problem(
        candidates=tuple(
            Candidate(
                name=str(phase), phase=phase, gpu_type=0, gpus=gpus, curve=steady(rate), max_replicas=200
            )
            for phase, gpus, rate in members
        ),
        gpu_types=(
            GpuType(
                name="gpu",
                price=None,
                power=0.0,
                node_size=1,
                max_gpus=max_gpus,
                max_gpus_by_phase=caps or {},
            ),
        ),
        demand=demand,
        objective=objective,
        whole_nodes=False,
        colocated=ColocatedUse.FORBIDDEN,
        gap=0.0,
    )


def kinds(plan: Plan) -> set[Phase]:
    return {group.phase for group in plan.groups}


# --------------------------------------------------------------------------------------------
# U42: https://github.com/sgl-project/sglang/issues/6411

PROMPT, ANSWER, OFFERED = 4096, 1300, 3.2  # [tok, tok, req/s]
PREFILL_TOKENS = 5240.0  # of one prefill node of eight H20, as delivered there [tok/s]
OVERLOADED = """\
model: meta-llama/Llama-3.1-8B
workload: {request_rate: RATE, input_tokens: 4096, output_tokens: 130}
slo: {ttft_ms: {p99: 20000}, tpot_ms: {p99: 100}}
groups:
  - {name: prompts, phase: prefill, gpu: h20, replicas: 2, network_gbps_per_gpu: 400}
  - {name: answers, phase: decode, gpu: h20, replicas: 4, network_gbps_per_gpu: 400}
"""


def overloaded_fleet(times: float) -> tuple[str, LoadedFleet]:
    """Two prefill replicas at a multiple of what they can do at all."""
    (prefill, _) = pool_loads(fleet_from_text(OVERLOADED.replace("RATE", "1")).fleet, 1.0)
    text = OVERLOADED.replace("RATE", f"{times * prefill.most:.9g}")
    return text, fleet_from_text(text)


def test_demand_of_prefill_tokens_against_what_two_nodes_deliver() -> None:
    """13,107 tok/s on 2 x 5,240: utilization 1.25; three nodes for a steady state, four for 80 %."""
    assert pytest.approx(13_107, abs=1) == OFFERED * PROMPT
    pool = PoolLoad(phase=Phase.PREFILL, replicas=2, offered=OFFERED, most=2 * PREFILL_TOKENS / PROMPT)
    assert pool.utilization == pytest.approx(1.25, abs=0.002)
    assert (pool.missing, pool.replicas_for(), pool.replicas_for(0.8)) == (1, 3, 4)


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_program_asks_for_the_third_and_the_fourth_node(solver: str) -> None:
    given = ((8, PREFILL_TOKENS / PROMPT), (8, 100.0))
    assert solve(program(*given, demand=OFFERED), solver=solver).replicas == (3, 1)
    assert solve(program(*given, demand=OFFERED / 0.8), solver=solver).replicas == (4, 1)
    two = program(*given, demand=OFFERED, caps={Phase.PREFILL: 16})
    with pytest.raises(InfeasibleError) as refused:
        solve(two, solver=solver)
    assert "for prefill" in refused.value.shortfall
    found = diagnose(two, solver=solver)
    assert found.families == (Family.POOL_CAPS,)
    assert found.shortfall.startswith("8 GPUs")
    assert found.max_rate == pytest.approx(2 * PREFILL_TOKENS / PROMPT, rel=2e-3)  # 2.56 req/s, as served


def test_concurrency_is_rate_times_stay() -> None:
    """Little's law as the thread reports it: 2.559 req/s x 219.5 s; and 499 sequences in decode at 150 ms."""
    assert pytest.approx(561.7, abs=0.1) == 2.559 * 219.5
    operating = 2.56 * ANSWER * 0.150
    assert float(mean_batch(operating, 0.0)) == pytest.approx(499, abs=0.5)


def test_an_overloaded_pool_is_named_with_what_it_lacks(planner: Runner, tmp_path: Path) -> None:
    text, _ = overloaded_fleet(1.25)
    path = tmp_path / "fleet.yaml"
    path.write_text(text, encoding="utf-8")
    result = planner("simulate", path, "--requests", 12_000, "--json")
    assert result.code == 5
    (pool,) = result.facts["overload"]
    assert (pool["phase"], pool["replicas"], pool["missing_replicas"]) == ("prefill", 2, 1)
    assert pool["utilization"] == pytest.approx(1.25)
    for words in (
        "prefill pool: utilization 1.25",
        "no steady state, TTFT has no value",
        "short of 1 replica",
        "3 would do, 4 for a utilization of 0.8",
    ):
        assert words in result.err
    assert "decode pool" not in result.err


def test_of_rates_that_change_nothing_is_said(planner: Runner, tmp_path: Path) -> None:
    """A pool that is short for ten minutes of a schedule is not short of replicas for ever."""
    text, loaded = overloaded_fleet(1.25)
    path = tmp_path / "fleet.yaml"
    path.write_text(text, encoding="utf-8")
    result = planner("simulate", path, "--schedule", f"600:{loaded.request_rate}", "--json")
    assert result.code == 5
    assert result.facts["growth"] > 0
    assert result.facts["overload"] == []


def test_what_is_short_is_what_it_takes() -> None:
    """With the replicas that were missing there is a steady state, and a TTFT; without them there is none."""
    _, loaded = overloaded_fleet(1.25)
    fleet = loaded.fleet
    assert math.isinf(predict_fleet(fleet).summaries()[0].mean)
    (pool,) = overloaded(pool_loads(fleet, loaded.request_rate or 0.0))
    assert pool.missing == 1
    prompts, answers = fleet.groups
    mended = replace(fleet, groups=(replace(prompts, replicas=prompts.replicas + pool.missing), answers))
    assert not overloaded(pool_loads(mended, loaded.request_rate or 0.0))
    assert math.isfinite(predict_fleet(mended).summaries()[0].p99)


@pytest.mark.parametrize("phase", [Phase.DECODE, Phase.COLOCATED])
def test_other_pools_overload_too(phase: Phase) -> None:
    text = OVERLOADED.replace("RATE", "1")
    if phase is Phase.COLOCATED:
        text = "\n".join(text.splitlines()[:-1]).replace("phase: prefill", "phase: colocated")
    fleet = fleet_from_text(text).fleet
    (one,) = (pool for pool in pool_loads(fleet, 1.0) if pool.phase is phase)
    assert one.utilization < 1
    (twice,) = (pool for pool in pool_loads(fleet, 2.5 * one.most) if pool.phase is phase)
    assert twice.utilization == pytest.approx(2.5)
    assert twice.missing == math.ceil(1.5 * twice.replicas)
    assert twice.replicas_for() == twice.missing + twice.replicas


# --------------------------------------------------------------------------------------------
# U44: https://github.com/sgl-project/sglang/issues/24488

GLM = "zai-org/GLM-5.1"
LONG: dict[str, Any] = {
    "model": GLM,
    "precision": {"weights": "fp8_block", "kv_cache": "bf16"},
    "workload": {"request_rate": 0.1, "input_tokens": 32768, "output_tokens": 512},
    "slo": {"ttft_ms": {"p99": 30000}, "tpot_ms": {"p99": 100}},
    "fleet": [
        {"gpu": "h200-sxm", "price_per_gpu_hour": 3.8, "node_size": 8, "network_gbps_per_gpu": 400 / 8}
    ],
}


def test_kv_cache_of_a_long_prompt_and_the_nic() -> None:
    """2.94 GB per request: 59 ms at 50 GB/s, 70 ms at 42, and 14 to 17 requests per second through one NIC.

    The thread counts the latents only. Our catalogue adds the indexer's keys, 132 B per token and layer,
    which move too: 3.28 GB.
    """
    model = catalog.load_model(GLM)
    latent = 0.0
    for run in model.kinds:
        assert isinstance(run.layer.attention, LatentAttention)
        latent += run.count * (run.layer.attention.kv_rank + run.layer.attention.rope_dim) * Dtype.BF16.bytes
    size = 32768 * latent
    assert size == pytest.approx(2.94e9, rel=2e-3)
    assert size / 50e9 == pytest.approx(59e-3, rel=5e-3)
    assert size / 42e9 == pytest.approx(70e-3, rel=5e-3)
    assert 14 < 42e9 / size < 50e9 / size < 17.1
    assert float(kv_bytes(model, Dtype.BF16, 32768.0)) == pytest.approx(size + 32768 * model.num_layers * 132)


def test_long_prompts_on_few_nodes_stay_colocated(scenario: ScenarioBuilder) -> None:
    """One node does what a pair of nodes would: the plan is colocated, and both costs are told.

    From some load on our model finds a disaggregated fleet cheaper per GPU, with attention ranks that each
    prefill on their own; the thread's engine ran tensor parallel ones.
    """
    plan = solve_scenario(scenario(**LONG), COMPARED)
    assert kinds(plan) == {Phase.COLOCATED}
    costs = {a.name: a.cost for a in plan.alternatives}
    assert costs["best colocated"] == plan.cost == pytest.approx(8 * 3.8)
    assert costs["best disaggregated"] == pytest.approx(2 * 8 * 3.8)


def test_equal_numbers_of_gpus_are_compared(scenario: ScenarioBuilder) -> None:
    """On one node there is no disaggregated fleet of whole replicas; the refusal says how many are short."""
    fleet = [LONG["fleet"][0] | {"max_gpus": 8}]
    workload = {"input_tokens": 32768, "output_tokens": 512}
    changes: dict[str, Any] = LONG | {"fleet": fleet, "workload": workload, "objective": "throughput"}
    only = solve_scenario(scenario(**changes, options={"colocated": "only"}), QUICK)
    assert only.value > 0.1
    with pytest.raises(InfeasibleError, match="GPU stock") as refused:
        solve_scenario(scenario(**changes, options={"colocated": "forbidden", "allowed_tp": [8]}), QUICK)
    assert "8 GPUs" in refused.value.shortfall


# --------------------------------------------------------------------------------------------
# U46: https://github.com/sgl-project/sglang-omni/pull/1599

PREFILL_TIME, DECODE_TIME = 0.058, 2.2  # GPU time of a request [s]


def test_share_of_prefill_in_the_work_of_a_request() -> None:
    assert pytest.approx(0.0257, abs=5e-5) == PREFILL_TIME / (PREFILL_TIME + DECODE_TIME)


@pytest.mark.parametrize(
    ("gpus", "replicas"), [(2, (1, 1)), (3, (1, 2)), (20, (1, 19)), (39, (1, 38)), (78, (2, 76))]
)
def test_work_sets_the_ratio(gpus: int, replicas: tuple[int, int]) -> None:
    """Of so many GPUs, those that carry most: decode gets all that prefill can feed."""
    rates = (1, 1 / PREFILL_TIME), (1, 1 / DECODE_TIME)
    found = solve(program(*rates, demand=None, max_gpus=gpus, objective=Objective.THROUGHPUT))
    best = max(min(p / PREFILL_TIME, (gpus - p) / DECODE_TIME) for p in range(1, gpus))
    assert found.value == pytest.approx(best)
    assert found.replicas == replicas


def test_short_prompts_are_served_colocated(scenario: ScenarioBuilder) -> None:
    """256 tokens in: one GPU colocated, two disaggregated. The ratio's fall with the prompt's length is
    tested in test_workflow.py."""
    plan = solve_scenario(
        scenario(
            workload={"request_rate": 20, "input_tokens": 256, "output_tokens": 500},
            slo={"ttft_ms": {"p99": 2000}, "tpot_ms": {"p99": 30}},
            fleet=[{"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "network_gbps_per_gpu": 400}],
            options={"max_tp": 1, "max_pp": 1, "whole_nodes": False},
        ),
        COMPARED,
    )
    assert kinds(plan) == {Phase.COLOCATED}
    costs = {a.name: a.cost for a in plan.alternatives}
    assert (costs["best colocated"], costs["best disaggregated"]) == (3.0, 6.0)


# --------------------------------------------------------------------------------------------
# U48: https://github.com/ai-dynamo/dynamo/pull/2557


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("rate", "replicas"), [(20, 1), (33, 1), (34, 2), (66, 2), (67, 3), (80, 3), (100, 3)]
)
def test_staircase_of_a_profiled_rate(rate: float, replicas: int, solver: str) -> None:
    """10,009.88 output tok/s per GPU and 300 tokens per answer: 33.37 req/s, and replicas to match.

    The thread has no rate of its prefill; that of its outcome, 1P1D at 20 and 3P3D at 80 req/s, lies between
    26.7 and 40 req/s. The same is taken.
    """
    per_replica = 10_009.88 / 300
    assert per_replica == pytest.approx(33.37, abs=5e-3)
    found: Solution = solve(program((1, per_replica), (1, per_replica), demand=rate), solver=solver)
    assert found.replicas == (replicas, replicas)


# --------------------------------------------------------------------------------------------
# U51: https://github.com/sgl-project/sglang/issues/7141 (what is recommended: test_workflow.py)


@pytest.mark.parametrize("gpus", range(2, 8))
def test_decode_beyond_what_prefill_feeds_adds_nothing(gpus: int) -> None:
    """One prefill replica, slower than a decode replica: more of these carry no more, and none is used."""
    given = (1, 25.0), (1, 60.0)
    caps = {Phase.PREFILL: 1}
    found = solve(program(*given, demand=None, max_gpus=gpus, caps=caps, objective=Objective.THROUGHPUT))
    assert found.value == pytest.approx(25.0)
    assert found.replicas == (1, 1)


def test_a_prompt_is_computed_once() -> None:
    """Every step of a decode replica decodes; its prompts' tokens were all computed before the transfer."""
    text = OVERLOADED.replace("RATE", "4").replace("4096", "{mean: 1500, cv: 1, max: 8000}")
    standing = standing_fleet(fleet_from_text(text))
    outcome = run_fleet(standing.fleet, standing.source, 4000, names=standing.names)
    phases = np.array([g.phase is Phase.DECODE for g in standing.fleet.groups])
    decode = outcome.replica[phases[outcome.replica["group"]]]
    assert decode["preemptions"].sum() == 0
    assert decode["steps"].sum() > 1000
    assert (decode["steps"] == decode["decode_steps"]).all()
    prefill = outcome.replica[~phases[outcome.replica["group"]]]
    assert prefill["decode_steps"].sum() == 0
    assert (outcome.request["done"] + outcome.request["cached"] == outcome.request["isl"]).all()
    assert (prefill["completed"] > 0).all()
