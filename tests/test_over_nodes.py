"""Replicas over several nodes: found by solve, simulated, read back, and never without being asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from planner.candidates import build_candidates
from planner.collectives import beneath, placement_problem
from planner.documents.plan import dump_plan
from planner.documents.scenario import scenario_from_text
from planner.engines import engine_of
from planner.errors import InfeasibleError, SpecError
from planner.plan import Plan
from planner.search import SolveOptions
from planner.specs import Parallelism, Phase
from planner.standing import standing_files, standing_plan
from planner.workflow import solve

GPU = {
    "gpu": "h200-sxm", "price_per_gpu_hour": 4.0, "node_size": 4, "network_gbps_per_gpu": 400,
}  # fmt: skip
SCENARIO: dict[str, Any] = {
    "model": "deepseek-ai/DeepSeek-V3",
    "precision": {"weights": "fp8", "kv_cache": "bf16"},
    "workload": {"request_rate": 10, "input_tokens": 2000, "output_tokens": {"mean": 200, "cv": 1}},
    "slo": {"ttft_ms": {"p99": 2000}, "tpot_ms": {"p99": 50}},
    "fleet": [GPU],
}
"""A model that no node of four GPUs holds."""


def loaded(gpu: dict[str, Any] | None = None, **options: Any):
    scenario = SCENARIO | {"options": options, "fleet": [GPU | (gpu or {})]}
    return scenario_from_text(json.dumps(scenario))


def planned(gpu: dict[str, Any] | None = None, *, verify: bool = False, **options: Any) -> Plan:
    return solve(loaded(gpu, **options), SolveOptions(verify=verify, alternatives=False))


def layouts(gpu: dict[str, Any] | None = None, **options: Any) -> dict[Phase, set[Parallelism]]:
    read = loaded(gpu, **options)
    service = read.scenario.services[0]
    found = build_candidates(read.scenario, service, engine_of(service))
    return {p: {c.parallelism for c in found.choices if c.phase is p} for p in Phase}


def test_one_node_is_the_default_and_the_way_out_is_said():
    with pytest.raises(InfeasibleError, match=r"options.max_nodes_per_replica: 2, replicas over 2 nodes"):
        planned()


@pytest.mark.parametrize("gpu", [{"rdma": False}, {"max_gpus": 7}])
def test_what_would_not_help_is_not_suggested(gpu):
    with pytest.raises(InfeasibleError) as caught:
        planned(gpu)
    assert "max_nodes_per_replica" not in str(caught.value)


def test_two_nodes_hold_what_one_does_not():
    plan = planned(max_nodes_per_replica=2)
    assert {g.parallelism for g in plan.groups} == {Parallelism(dp=8, ep=8)}
    (use,) = plan.nodes
    assert use.gpus_paid == use.gpus_used == plan.num_gpus == 4 * use.nodes
    assert plan.cost == pytest.approx(4.0 * plan.num_gpus)
    assert any(note.startswith("replicas over several nodes (h200-sxm TP1 EP8 DP8)") for note in plan.notes)


def test_layouts_are_whole_nodes_that_hold_whole_stages():
    found = layouts(max_nodes_per_replica=4)
    assert found[Phase.DECODE] >= {
        Parallelism(dp=8, ep=8),
        Parallelism(dp=16, ep=16),
        Parallelism(tp=8, ep=8),
    }
    assert Parallelism(tp=4, pp=2) in found[Phase.PREFILL]
    assert not any(layout.dp > 1 for layout in found[Phase.COLOCATED])
    for layout in set().union(*found.values()):
        assert layout.num_gpus in (8, 16)
        assert layout.tp * layout.dp % 4 == 0 or 4 % (layout.tp * layout.dp) == 0
    assert all(layout.pp == 1 for layout in found[Phase.DECODE])


@pytest.mark.parametrize(
    ("options", "broken"),
    [
        ({"max_tp": 4}, lambda layout: layout.tp > 4),
        ({"max_pp": 1}, lambda layout: layout.pp > 1),
        ({"allowed_tp": [1, 8]}, lambda layout: layout.tp == 4),
    ],
)
def test_other_limits_hold_over_nodes(options, broken):
    free, limited = layouts(max_nodes_per_replica=2), layouts(max_nodes_per_replica=2, **options)
    assert any(broken(layout) for found in free.values() for layout in found)
    assert not any(broken(layout) for found in limited.values() for layout in found)


def test_nothing_crosses_nodes_without_rdma():
    assert not any(layouts({"rdma": False}, max_nodes_per_replica=4).values())


def test_one_domain_of_links_needs_no_rdma():
    """GB200: eight GPUs on two hosts share NVLink."""
    found = layouts({"gpu": "gb200", "rdma": False}, max_nodes_per_replica=2)
    assert Parallelism(dp=8, ep=8) in found[Phase.DECODE]


def test_a_larger_node_is_faster_than_two():
    """Capacity over two nodes is that of the same ranks within one, less what the network costs."""

    def capacity(gpu: dict[str, Any], **options: Any) -> float:
        read = loaded(gpu, **options)
        service = read.scenario.services[0]
        found = build_candidates(read.scenario, service, engine_of(service))
        return max(
            c.curve.per_replica[0]
            for c, choice in zip(found.candidates, found.choices, strict=True)
            if choice.phase is Phase.DECODE and choice.parallelism == Parallelism(dp=8, ep=8)
        )

    one, two = capacity({"node_size": 8}), capacity({}, max_nodes_per_replica=2)
    slow = capacity({"network_gbps_per_gpu": 25}, max_nodes_per_replica=2)
    assert slow < two < one


def test_the_plan_holds_in_simulation_and_reads_back(tmp_path):
    plan = planned(max_nodes_per_replica=2, verify=True)
    assert plan.verification is not None
    assert plan.verification.passed
    file = tmp_path / "plan.yaml"
    file.write_text(dump_plan(plan), encoding="utf-8")
    (read,) = standing_files(file)
    made = standing_plan(plan)
    for group in (*read.fleet.groups, *made.fleet.groups):
        assert group.item.gpu.node_size == 4
        assert group.item.gpu.scale_up_domain == 4  # as the candidates had it
    assert read.fleet.groups == made.fleet.groups


def test_an_edited_plan_still_needs_rdma(tmp_path):
    text = dump_plan(planned(max_nodes_per_replica=2))
    file = tmp_path / "plan.yaml"
    file.write_text(text.replace("node_size: 4", "node_size: 4\n    rdma: false"), encoding="utf-8")
    with pytest.raises(SpecError, match="what plain TCP takes between ranks is not modelled"):
        standing_files(file)


def test_the_loss_of_a_node_is_the_loss_of_a_replica():
    plain = {g.phase: g.replicas for g in planned(max_nodes_per_replica=2).groups}
    safe = {g.phase: g.replicas for g in planned(max_nodes_per_replica=2, survive=["node"]).groups}
    assert safe == {phase: count + 1 for phase, count in plain.items()}


def test_the_option_of_one_changes_nothing():
    assert layouts({"node_size": 8}) == layouts({"node_size": 8}, max_nodes_per_replica=1)
    wider = layouts({"node_size": 8}, max_nodes_per_replica=2)
    assert all(found < wider[phase] for phase, found in layouts({"node_size": 8}).items())


def test_replicas_within_one_node_are_not_spread():
    item = replace(loaded().scenario.fleet[0], same_node=True)
    wide = Parallelism(dp=8, ep=8)
    assert "same_node keeps it within one" in placement_problem(beneath(item, wide), wide)


def test_lines_that_differ_in_price_share_candidates():
    """Reserved nodes first, others on demand; two nodes of one line for each replica."""
    scenario = SCENARIO | {
        "workload": SCENARIO["workload"] | {"request_rate": [10, 20]},
        "fleet": [GPU | {"price_class": "reserved", "price_per_gpu_hour": 2.5, "max_gpus": 16}, GPU],
        "options": {"max_nodes_per_replica": 2, "colocated": "forbidden"},
    }
    options = SolveOptions(verify=False, alternatives=False)
    plan = solve(scenario_from_text(json.dumps(scenario)), options)
    assert {g.parallelism for g in plan.groups} == {Parallelism(dp=8, ep=8)}
    paid = {use.price_class: use.gpus_paid for use in plan.nodes}
    assert paid == {"reserved": 16, "on_demand": plan.num_gpus - 16}
    assert plan.horizon is not None
    assert plan.horizon.reserved == {"h200-sxm": 16}


def test_stock_counts_whole_replicas():
    with pytest.raises(InfeasibleError, match=r"short by: 4 GPUs \(4 h200-sxm\)"):
        planned({"max_gpus": 12}, max_nodes_per_replica=2)
    plan = planned({"max_gpus": 16}, max_nodes_per_replica=2)
    assert plan.num_gpus == 16


def test_dense_models_take_tensor_and_pipeline_ranks_over_nodes():
    scenario = SCENARIO | {
        "model": "meta-llama/Llama-3.1-70B-Instruct",
        "precision": {},
        "workload": {"request_rate": 0.2, "input_tokens": 2000, "output_tokens": 200},
        "fleet": [GPU | {"gpu": "a10g", "network_gbps_per_gpu": 25}],
        "slo": {"ttft_ms": {"p99": 60_000}, "tpot_ms": {"p99": 500}},
        "options": {"max_nodes_per_replica": 4},
    }
    options = SolveOptions(verify=False, alternatives=False)
    plan = solve(scenario_from_text(json.dumps(scenario)), options)
    assert all(g.parallelism.num_gpus in (8, 16) for g in plan.groups)
    assert sum(use.nodes for use in plan.nodes) == plan.num_gpus // 4
