"""Prefill and decode within one node: KV caches over NVLink, where that is possible and where it pays."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner import catalog
from planner.collectives import kv_transfer_time, links_node, network_rate, within_node
from planner.documents.fleet import fleet_from_text
from planner.documents.plan import dump_plan, plan_from_text
from planner.documents.scenario import LoadedScenario, read_scenario, scenario_from_text
from planner.documents.yaml_text import dump_yaml
from planner.engines import load_engine
from planner.errors import InfeasibleError, SpecError
from planner.evaluation import simulate, standing_fleet, standing_plan
from planner.plan import Plan
from planner.program import fits_in_stock
from planner.same_node import best_within_node
from planner.search import DISAGGREGATED, Search, SolveOptions
from planner.specs import FleetItem, Phase
from planner.units import GIGA, MILLI
from planner.workflow import solve

EXAMPLES = Path(__file__).parents[1] / "examples"
QUICK = SolveOptions(verify=False, alternatives=False, explain=False)
SLOW_NETWORK = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "precision": {"weights": "fp8", "kv_cache": "bf16"},
    "workload": {"request_rate": 30, "input_tokens": 4000, "output_tokens": 200},
    "slo": {"ttft_ms": {"p99": 600}, "tpot_ms": {"p99": 10}},
    "fleet": [
        {
            "gpu": "h100-sxm",
            "price_per_gpu_hour": 6.0,
            "max_gpus": 64,
            "node_size": 8,
            "network_gbps_per_gpu": 10,
            "rdma": False,
        }
    ],
    "options": {"whole_nodes": False},
}
PROMPT = 4000
PROMPT_BYTES = PROMPT * 2 * 32 * 8 * 128 * 2.0  # keys and values of 32 layers, 8 heads of 128 in bf16
KV_BLOCKS = PROMPT / 16


def scenario(line: dict[str, Any] | None = None, **changes: Any) -> LoadedScenario:
    """The scenario above, with keys of its only line and sections of its own replaced."""
    document = copy.deepcopy(SLOW_NETWORK) | changes
    document["fleet"] = [document["fleet"][0] | (line or {}), *document["fleet"][1:]]
    return scenario_from_text(dump_yaml(document), "test")


@cache
def quick_plan() -> Plan:
    return solve(scenario(), SolveOptions(verify=False))


def without(loaded: LoadedScenario) -> float | None:
    """Value of the plan whose KV caches go over NICs, if there is one."""
    try:
        return Search.of(loaded, QUICK).holding()[1].value
    except InfeasibleError:
        return None


def line_of(gpu: str, **changes: Any) -> FleetItem:
    profile = catalog.load_gpu(gpu)
    item = FleetItem(
        gpu=profile, price=1.0, max_gpus=None, node_size=profile.node_size, network_bandwidth=1.25 * GIGA
    )
    return replace(item, **changes)


# --------------------------------------------------------------------------------------------
# The link


def test_a_node_is_a_line_with_its_link_for_a_network() -> None:
    engine = load_engine("vllm")
    item = within_node(line_of("h100-sxm", rdma=False, max_gpus=64))
    assert item.same_node
    assert item.max_gpus == 8
    assert network_rate(item, engine) == pytest.approx(450 * GIGA * engine.transfer.peer_efficiency)
    assert within_node(item) == item


def test_stock_and_reach_of_the_link_bound_a_node() -> None:
    assert within_node(line_of("h100-sxm", max_gpus=4)).max_gpus == 4
    assert within_node(line_of("h100-sxm", node_size=4)).max_gpus == 4
    assert within_node(line_of("h100-nvl")).max_gpus == 2  # a bridge joins two cards
    assert within_node(line_of("gb200")).max_gpus == 4  # a node, not the rack


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "a100-80gb-sxm", "b200-sxm", "h100-nvl"])
def test_nvlink_moves_kv_caches(gpu: str) -> None:
    assert links_node(line_of(gpu), load_engine("vllm"))


@pytest.mark.parametrize("gpu", ["l40s", "rtx-4090", "mi300x", "v100-32gb-sxm", "gh200", "gaudi3"])
def test_other_links_do_not(gpu: str) -> None:
    """PCIe, Infinity Fabric, a mesh without a link for every pair, and a node of one GPU."""
    assert not links_node(line_of(gpu), load_engine("vllm"))


# --------------------------------------------------------------------------------------------
# The plan


def test_a_slow_network_makes_the_plan_stand_in_one_node() -> None:
    plan, nics = quick_plan(), without(scenario())
    assert nics is not None
    assert plan.value < 0.8 * nics
    assert {g.phase for g in plan.groups} == {Phase.PREFILL, Phase.DECODE}
    assert all(g.same_node for g in plan.groups)
    assert plan.num_gpus <= 8
    assert any("NVLink within one node" in note for note in plan.notes)


def test_the_plan_is_itself_the_best_disaggregated_one() -> None:
    plan = quick_plan()
    kinds = {a.name: a for a in plan.alternatives}
    assert kinds[DISAGGREGATED].value == plan.value
    assert kinds["best colocated"].value == without(scenario())
    assert "one node" in kinds[DISAGGREGATED].summary


def test_beside_a_colocated_plan_stands_the_node() -> None:
    """The best disaggregated plan over 10 Gbit/s takes 8 GPUs; within a node it takes 2."""
    loaded = scenario(workload=SLOW_NETWORK["workload"] | {"request_rate": 3})
    plan = solve(loaded, SolveOptions(verify=False))
    other = next(a for a in plan.alternatives if a.name == DISAGGREGATED)
    assert plan.groups[0].phase is Phase.COLOCATED
    assert not plan.groups[0].same_node
    assert other.value is not None
    assert plan.value <= other.value <= 24.0
    assert "one node" in other.summary


def test_where_nics_allow_no_plan_the_node_may() -> None:
    options = SLOW_NETWORK["options"] | {"colocated": "forbidden"}
    loaded = scenario({"network_gbps_per_gpu": 1}, options=options)
    assert without(loaded) is None
    assert all(g.same_node for g in solve(loaded, QUICK).groups)


def test_ttft_has_the_transfer_over_the_link() -> None:
    """At a negligible rate nothing waits: what the two networks differ in is the time on the wire."""
    engine = load_engine("vllm")
    costs = engine.transfer
    by_hand = {
        False: PROMPT_BYTES / (1.25 * GIGA * costs.tcp_efficiency),
        True: PROMPT_BYTES / (450 * GIGA * costs.peer_efficiency),
    }
    posts = costs.fixed + KV_BLOCKS * 32 * costs.per_block
    for same_node, wire in by_hand.items():
        rate = PROMPT_BYTES / wire
        assert float(kv_transfer_time(PROMPT, PROMPT_BYTES, rate, 32, engine)) == pytest.approx(posts + wire)
        fleet = standing_fleet(fleet_from_text(fleet_file(same_node=same_node)))
        result = simulate(fleet, rate=0.01, requests=200)
        assert result.transfer_mean == pytest.approx(posts + wire, rel=0.02)
    assert by_hand[True] < 0.002 < 0.8 < by_hand[False]


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": SLOW_NETWORK["workload"] | {"request_rate": 200}},  # more than a node carries
        {"options": {"whole_nodes": False, "survive": ["node"]}},
        {"options": {"whole_nodes": False, "colocated": "only"}},
        {"objective": "throughput"},  # of 64 GPUs
    ],
)
def test_there_is_no_plan_within_a_node(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first = Search.of(scenario(**changes), QUICK)

    def refused(*_args: Any) -> Search:
        raise AssertionError("nothing is searched for")

    monkeypatch.setattr(Search, "of", refused)
    assert best_within_node(first, None) is None


def test_lines_of_two_zones_share_no_node() -> None:
    lines = [SLOW_NETWORK["fleet"][0] | {"zone": zone} for zone in ("east", "west")]
    document = copy.deepcopy(SLOW_NETWORK) | {"fleet": lines}
    assert best_within_node(Search.of(scenario_from_text(dump_yaml(document)), QUICK), None) is None


def test_a_node_that_is_paid_whole_cannot_cost_less_than_a_node() -> None:
    plan = solve(read_scenario(EXAMPLES / "llama-70b-chat.yaml"), QUICK)
    assert plan.num_gpus <= 8
    assert not any(g.same_node for g in plan.groups)


def test_the_largest_rate_of_one_node() -> None:
    loaded = scenario({"max_gpus": 8}, objective="throughput")
    nics, plan = without(loaded), solve(loaded, QUICK)
    assert nics is not None
    assert plan.value > 1.2 * nics
    assert all(g.same_node for g in plan.groups)


@pytest.mark.parametrize("network", [1, 25, 400])
@pytest.mark.parametrize(("rate", "tpot"), [(4, 12), (20, 10), (45, 30)])
def test_a_plan_is_never_dearer_for_it(network: int, rate: float, tpot: float) -> None:
    loaded = scenario(
        {"network_gbps_per_gpu": network},
        workload=SLOW_NETWORK["workload"] | {"request_rate": rate},
        slo={"ttft_ms": {"p99": 800}, "tpot_ms": {"p99": tpot}},
    )
    nics = without(loaded)
    value = solve(loaded, QUICK).value
    assert value <= (math.inf if nics is None else nics)


# --------------------------------------------------------------------------------------------
# Files


def fleet_file(*, same_node: bool = True, gpu: str = "h100-sxm", prefill: int = 1, only: bool = False) -> str:
    base = {"gpu": gpu, "replicas": 1, "network_gbps_per_gpu": 10, "rdma": False}
    shared = {"same_node": True} if same_node else {}
    groups = [
        base | {"phase": "prefill", "replicas": prefill} | shared,
        base | {"phase": "decode"} | ({} if only else shared),
    ]
    document = {key: SLOW_NETWORK[key] for key in ("model", "precision", "workload", "slo")}
    return dump_yaml(document | {"groups": groups})


def test_a_plan_file_says_which_groups_share_a_node() -> None:
    text = dump_plan(quick_plan(), reproducible=True)
    again = plan_from_text(text)
    assert [g.same_node for g in again.groups] == [True] * len(again.groups)
    assert dump_plan(again, reproducible=True) == text
    other = solve(scenario({"network_gbps_per_gpu": 400, "rdma": True}), QUICK)
    assert "same_node" not in dump_plan(other)


def test_a_standing_plan_has_the_link() -> None:
    standing = standing_plan(plan_from_text(dump_plan(quick_plan())), None)
    items = [group.item for group in standing.fleet.groups]
    assert all(item == within_node(item) and item.network_bandwidth == 450 * GIGA for item in items)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (fleet_file(only=True), r"groups\[1\]: does not share the node of groups\[0\]"),
        (fleet_file(gpu="l40s"), "does not move KV caches over the pcie"),
        (fleet_file(prefill=8), "need 9 GPUs of h100-sxm, the node's link reaches 8"),
    ],
)
def test_fleets_that_cannot_share_a_node_are_refused(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        fleet_from_text(text)


def test_an_edited_plan_is_refused_in_the_same_words(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(quick_plan()).replace("  same_node: true\n", "", 1), encoding="utf-8")
    with pytest.raises(SpecError, match=r"groups\[0\]: does not share the node"):
        simulate(path)


def test_simulating_the_plan_gives_what_its_verification_gave(tmp_path: Path) -> None:
    options = SLOW_NETWORK["options"] | {"colocated": "forbidden"}
    loaded = scenario(
        {"network_gbps_per_gpu": 1},
        options=options,
        workload=SLOW_NETWORK["workload"] | {"request_rate": 10},
        slo={"ttft_ms": {"mean": 400}, "tpot_ms": {"mean": 14}},
    )
    plan = solve(loaded, SolveOptions(alternatives=False, explain=False))
    assert plan.verification is not None
    assert plan.verification.passed
    assert all(g.same_node for g in plan.groups)
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(plan), encoding="utf-8")
    result = simulate(path, requests=plan.verification.details["requests"])
    for metric, measured in (("ttft_ms", result.ttft), ("tpot_ms", result.tpot)):
        assert measured.value.mean / MILLI == pytest.approx(
            plan.verification.details[metric]["mean"], rel=1e-4
        )


def test_a_fleet_within_a_node_carries_more() -> None:
    """What the NICs cannot carry, the link can: ten prompts of 0.5 GB per second are 5 GB/s."""
    results = [
        simulate(fleet_from_text(fleet_file(same_node=same_node)), rate=10, requests=4000)
        for same_node in (False, True)
    ]
    assert [result.growing for result in results] == [True, False]


def test_too_few_gpus_by_a_bound_is_proof() -> None:
    """What the bound rules out has no plan, and what has a plan passes."""
    proven = 0
    for rate in (1, 5, 20, 60, 200, 800):
        loaded = scenario({"max_gpus": 8}, workload={**SLOW_NETWORK["workload"], "request_rate": rate})
        search = Search.of(loaded, QUICK)
        if fits_in_stock(search.problem):
            continue
        proven += 1
        with pytest.raises(InfeasibleError):
            search.best()
    assert proven > 0
    assert fits_in_stock(Search.of(scenario({"max_gpus": 100_000}), QUICK).problem)
