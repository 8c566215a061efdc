"""Cases of people who ask what moving a KV cache costs; each names its public thread.

The measurement that vLLM's constants come from is tested in test_collectives.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import ScenarioBuilder

from planner import catalog
from planner.collectives import kv_transfer_time, network_rate
from planner.errors import InfeasibleError
from planner.plan import Binding, Plan
from planner.search import SolveOptions
from planner.specs import GPU, Dtype, Engine, FleetItem, Phase
from planner.transformer import kv_bytes
from planner.workflow import solve

QUICK = SolveOptions(alternatives=False, verify=False)


# --------------------------------------------------------------------------------------------
# U53: https://github.com/vllm-project/vllm/issues/50913

SIZE, SECONDS, DESCRIPTORS = 167e6, 38.7e-3, 1785  # of a transfer, as measured [B, s, 1]
LINE = 50e9  # of the NIC there [B/s]


def test_the_rate_that_was_seen_and_that_of_the_line() -> None:
    """4.32 GB/s of 50: whoever plans with the line's 3.3 ms plans for a tenth of the time that it took."""
    assert pytest.approx(4.319e9, rel=2e-3) == SIZE / SECONDS
    assert pytest.approx(3.3e-3, abs=0.05e-3) == SIZE / LINE


def test_a_small_transfer_takes_what_was_measured(vllm: Engine) -> None:
    """The thread's MB are MiB by its connector's own sum; with 10^6 B the time is the same to 2 %."""
    tokens = DESCRIPTORS / 32 * vllm.block_size
    rate = LINE * vllm.transfer.rdma_efficiency
    for size in (SIZE, 167 * 2**20):
        assert float(kv_transfer_time(tokens, size, rate, 32, vllm)) == pytest.approx(SECONDS, rel=0.02)


@pytest.mark.parametrize("rdma", [True, False])
def test_no_transfer_is_faster_than_the_line(h100: GPU, vllm: Engine, rdma: bool) -> None:
    """ "More than 100 GB/s" on a NIC of 50 is an artefact of whoever measured it (sglang, pull 31993)."""
    item = FleetItem(
        gpu=h100,
        price=None,
        max_gpus=None,
        node_size=8,
        network_bandwidth=LINE,
        network_given=True,
        rdma=rdma,
    )
    tokens = np.array([1.0, 100.0, 10_000.0, 1e6])
    size = 327_680 * tokens
    seen = size / kv_transfer_time(tokens, size, network_rate(item, vllm), 80, vllm)
    assert (np.diff(seen) > 0).all()  # what a transfer costs by itself is paid once
    assert (seen < network_rate(item, vllm)).all()
    assert network_rate(item, vllm) < LINE


# --------------------------------------------------------------------------------------------
# U55: https://github.com/kvcache-ai/Mooncake/issues/602, /1169; ai-dynamo/dynamo/issues/10863


@pytest.mark.parametrize(
    ("model", "tokens", "size", "milliseconds"),
    [
        ("meta-llama/Llama-3.1-70B", 4096, 1.342e9, (1074, 429, 107, 26.8)),
        ("Qwen/Qwen3-32B", 4000, 1.049e9, (839, 336, 84, 21)),
        ("deepseek-ai/DeepSeek-V3", 4096, 0.288e9, (230, 92, 23, 5.8)),
    ],
)
def test_transfers_of_catalogued_models(
    vllm: Engine, model: str, tokens: float, size: float, milliseconds: tuple[float, ...]
) -> None:
    """At line rate, over 10, 25, 100 and 400 Gbit/s."""
    found = float(kv_bytes(catalog.load_model(model), Dtype.BF16, tokens))
    assert found == pytest.approx(size, rel=1e-3)
    engine = replace(vllm, transfer=replace(vllm.transfer, fixed=0.0, per_block=0.0, overlap=0.0))
    for gbit, expected in zip((10, 25, 100, 400), milliseconds, strict=True):
        time = float(kv_transfer_time(tokens, found, gbit * 1e9 / 8, 1, engine))
        assert time == pytest.approx(expected * 1e-3, rel=8e-3)


def planned(scenario: ScenarioBuilder, gbit: float, rdma: bool, **changes: Any) -> Plan:
    """20 prompts of 4,096 tokens per second, 10.7 GB/s, disaggregated; no node has room for two replicas."""
    given: dict[str, Any] = {
        "workload": {"request_rate": 20, "input_tokens": 4096, "output_tokens": 200},
        "slo": {"ttft_ms": {"p99": 4000}, "tpot_ms": {"p99": 40}},
        "options": {"max_tp": 1, "max_pp": 1, "whole_nodes": False, "colocated": "forbidden"},
        "fleet": [
            {
                "gpu": "h100-sxm",
                "price_per_gpu_hour": 3.0,
                "network_gbps_per_gpu": gbit,
                "rdma": rdma,
                "node_size": 1,
            }
        ],
    }
    return solve(scenario(**(given | changes)), QUICK)


@pytest.mark.parametrize(("gbit", "rdma"), [(10, False), (25, False), (25, True), (400, True)])
def test_links_stay_below_one_at_the_planned_rate(scenario: ScenarioBuilder, gbit: float, rdma: bool) -> None:
    plan = planned(scenario, gbit, rdma)
    moved = 20 * 4096 * 131_072
    for phase in (Phase.PREFILL, Phase.DECODE):
        groups = plan.pool(phase)
        attained = sum(g.num_gpus for g in groups) * gbit * 1e9 / 8 * (0.77 if rdma else 0.5)
        for group in groups:
            assert group.network_utilization == pytest.approx(moved / attained)
            assert group.network_utilization <= 0.8


def test_a_slow_network_is_paid_for_in_gpus(scenario: ScenarioBuilder) -> None:
    """Plain TCP over 10 Gbit/s: the NICs set the number of replicas, and the plan says so."""
    slow, fast = planned(scenario, 10, False), planned(scenario, 400, True)
    assert slow.num_gpus > 5 * fast.num_gpus
    assert {g.binds for g in slow.groups} == {Binding.NETWORK}
    assert any("the network binds" in note for note in slow.notes)
    assert Binding.NETWORK not in {g.binds for g in fast.groups}


def test_a_network_that_leaves_no_time_is_named(scenario: ScenarioBuilder) -> None:
    """859 ms on the wire of a 10 Gbit/s network that attains half: a TTFT of 700 ms is out of reach."""
    slo = {"ttft_ms": {"p99": 700}, "tpot_ms": {"p99": 40}}
    with pytest.raises(InfeasibleError) as refused:
        planned(scenario, 10, False, slo=slo)
    assert "p99 TTFT <= 700 ms" in refused.value.binding
    (faster, _) = refused.value.suggestions
    assert faster.startswith("a network ")
    enough = float(faster.split(" Gbit/s")[0].split()[-1])
    assert planned(scenario, 1.02 * enough, False, slo=slo).groups
