"""What a newcomer's tests of the whole program found; each finding with its right value."""

from __future__ import annotations

from typing import Any

import pytest

from planner.documents.scenario import scenario_from_text
from planner.documents.yaml_text import dump_yaml
from planner.errors import InfeasibleError, SpecError
from planner.plan import Plan
from planner.report.terminal import print_plan
from planner.search import SolveOptions
from planner.specs import Metric, Phase
from planner.workflow import solve

L40S = {"gpu": "l40s", "price_per_gpu_hour": 2.25, "max_gpus": 64, "node_size": 8, "network_gbps_per_gpu": 50}
H100 = {"gpu": "h100-sxm", "price_per_gpu_hour": 6.155, "max_gpus": 64, "network_gbps_per_gpu": 400}


def scenario(**changes: Any) -> dict[str, Any]:
    base = {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "precision": {"weights": "fp8", "kv_cache": "fp8"},
        "workload": {"request_rate": 3, "arrivals": "poisson", "preset": "azure-2023-conversation"},
        "slo": {"ttft_ms": {"p99": 3000}, "tpot_ms": {"p99": 50}},
        "fleet": [L40S],
    }
    return base | changes


def plan_of(**changes: Any) -> Plan:
    return solve(
        scenario_from_text(dump_yaml(scenario(**changes))), SolveOptions(alternatives=False, verify=False)
    )


def holds(plan: Plan) -> bool:
    (prediction,) = plan.predictions
    latency = {Metric.TTFT: prediction.ttft, Metric.TPOT: prediction.tpot}
    return all(getattr(latency[t.metric].planned, t.statistic) <= t.limit for t in prediction.slo)


@pytest.mark.parametrize("rate", [1, 3, 6])
def test_a_staircase_of_captured_batches_does_not_hide_a_miss(rate):
    """Decode steps of L40S at TP4 jump by several ms from one captured batch to the next."""
    workload = {"request_rate": rate, "arrivals": "poisson", "preset": "azure-2023-conversation"}
    slo = {"ttft_ms": {"p99": 3000}, "tpot_ms": {"p99": 65}}
    plan = plan_of(workload=workload, slo=slo, fleet=[L40S | {"max_gpus": 512}])
    assert {g.parallelism.tp for g in plan.pool(Phase.DECODE)} == {4}
    assert holds(plan)


def test_a_throughput_plan_holds_as_a_whole():
    workload = {"preset": "azure-2023-conversation", "arrivals": "poisson"}
    slo = {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 50}}
    assert holds(plan_of(workload=workload, slo=slo, fleet=[H100, L40S], objective="throughput"))


@pytest.mark.parametrize("node_size", [3, 5, 6, 7])
def test_replicas_fill_nodes_without_waste(node_size):
    """What is paid for has room for every replica: none is cut by the end of a node."""
    plan = plan_of(
        fleet=[H100 | {"node_size": node_size, "max_gpus": 84}],
        workload={"request_rate": 5, "arrivals": "poisson", "preset": "azure-2023-conversation"},
    )
    for group in plan.groups:
        assert node_size % group.parallelism.num_gpus == 0


def test_requests_of_one_token_have_no_tpot_and_may_be_colocated():
    workload = {"request_rate": 10, "input_tokens": 1000, "output_tokens": 1}
    plan = plan_of(workload=workload, fleet=[H100], options={"colocated": "only"})
    assert plan.predictions[0].tpot.expected.p99 == 0.0
    assert {g.phase for g in plan.groups} == {Phase.COLOCATED}


def test_a_large_fleet_is_no_patchwork_of_capped_groups():
    workload = {"request_rate": 100_000, "arrivals": "poisson", "preset": "azure-2023-conversation"}
    plan = plan_of(workload=workload, fleet=[{k: v for k, v in H100.items() if k != "max_gpus"}])
    assert len(plan.groups) <= 4


def test_what_keeps_gpus_out_is_named():
    fleet = [H100 | {"max_prefill_gpus": 0}, L40S | {"max_prefill_gpus": 0}]
    with pytest.raises(InfeasibleError) as refused:
        plan_of(fleet=fleet, options={"colocated": "forbidden"})
    assert "h100-sxm, prefill: max_prefill_gpus is 0" in refused.value.suggestions
    assert "decode" not in refused.value.binding


def test_a_slow_network_is_named():
    slow = H100 | {"network_gbps_per_gpu": 1, "rdma": False}
    slo = {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 50}}
    with pytest.raises(InfeasibleError) as refused:
        plan_of(fleet=[slow], slo=slo, options={"colocated": "forbidden", "survive": ["node"]})
    assert any("a network" in hint and "Gbit/s per h100-sxm" in hint for hint in refused.value.suggestions)


def test_a_rate_that_throughput_does_not_use_is_said():
    plan = plan_of(fleet=[H100], objective="throughput")
    assert any("request_rate is not used" in note for note in plan.notes)


def test_a_slip_in_an_inline_model_is_refused():
    model = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_head": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "initializer_range": 0.02,
    }
    with pytest.raises(SpecError) as refused:
        plan_of(model=model, precision={"weights": "bf16"}, fleet=[H100])
    (problem,) = refused.value.problems
    assert problem.key == "model.num_key_value_head"
    assert problem.suggestion == "did you mean num_key_value_heads?"


def test_owned_gpus_at_no_price_make_a_plan_that_prints(capsys):
    owned = {"gpu": "h100-sxm", "owned": True, "max_gpus": 16}
    plan = solve(scenario_from_text(dump_yaml(scenario(fleet=[owned, L40S]))))
    print_plan(plan, 100)
    assert plan.value == 0.0
    assert "come to the same 0 $/h" in capsys.readouterr().out


def test_experts_spread_over_ranks_where_tensor_parallelism_would_cut_blocks():
    """MiniMax-M2.5 in block FP8: TP8 cuts its experts into 192 wide pieces, TP8 with EP8 does not."""
    workload = {"request_rate": 5, "arrivals": "poisson", "preset": "azure-2023-conversation"}
    precision = {"weights": "checkpoint"}
    options = {"allowed_tp": [8], "colocated": "only"}
    plan = plan_of(
        model="MiniMaxAI/MiniMax-M2.5", precision=precision, workload=workload, fleet=[H100], options=options
    )
    assert {(g.parallelism.tp, g.parallelism.ep) for g in plan.groups} == {(8, 8)}
