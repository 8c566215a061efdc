"""Collectives and KV transfers by hand, and what no link may break."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import catalog
from planner.collectives import (
    AllReduce,
    all_reduce_time,
    kv_transfer_time,
    network_rate,
    supports_world_size,
)
from planner.errors import SpecError
from planner.specs import FleetItem

KIB = 2**10


def item(gpu, gbps: float, rdma: bool = True) -> FleetItem:
    return FleetItem(
        gpu=gpu, price=None, max_gpus=None, node_size=8, network_bandwidth=gbps * 1e9 / 8, rdma=rdma
    )


def test_ring_all_reduce_by_hand(h100):
    """Coefficients of the published H100 fit: 3.876 us, 0.2344 us per rank beyond two, 0.7299 of 450 GB/s."""
    message, ranks = 4 * 2**20, 8
    wire = 2 * message * 7 / 8 / (450e9 * 0.7299)
    expected = 3.876e-6 + 6 * 0.2344e-6 + wire + (wire * 1.846e-6) ** 0.5
    assert float(all_reduce_time(AllReduce.of([h100], [ranks]), message)[0]) == pytest.approx(
        expected, rel=1e-9
    )


@pytest.mark.parametrize(
    ("ranks", "alpha", "bandwidth"), [(2, 5.4e-6, 19.104e9), (4, 11.7e-6, 3.808e9), (8, 19.8e-6, 2.016e9)]
)
def test_pcie_has_one_law_per_world_size(ranks, alpha, bandwidth):
    l40s = catalog.load_gpu("l40s")
    expected = alpha + 2 * 256 * KIB * (ranks - 1) / ranks / bandwidth
    found = float(all_reduce_time(AllReduce.of([l40s], [ranks]), 256 * KIB)[0])
    assert found == pytest.approx(expected, rel=1e-9)


def test_pcie_gets_slower_with_every_gpu():
    l40s = catalog.load_gpu("l40s")
    times = all_reduce_time(AllReduce.of([l40s] * 4, [1, 2, 4, 8]), float(2**20))
    assert times[0] == 0.0
    assert np.all(np.diff(times) > 0)


def test_a_world_of_one_and_an_empty_message_cost_nothing(h100):
    rows = AllReduce.of([h100, h100], [1, 4])
    assert float(all_reduce_time(rows, 1e6)[0]) == 0.0
    assert all_reduce_time(rows, 0.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("gpu", "ranks"), [("l40s", 3), ("l40s", 16), ("h100-sxm", 16)])
def test_unknown_world_sizes_are_refused(gpu, ranks):
    profile = catalog.load_gpu(gpu)
    assert not supports_world_size(profile, ranks)
    with pytest.raises(SpecError, match=f"{gpu}.*no all-reduce over {ranks} GPUs"):
        AllReduce.of([profile], [ranks])


@given(
    st.sampled_from(["h100-sxm", "a100-80gb-sxm", "l40s", "b200-sxm"]),
    st.sampled_from([2, 4, 8]),
    st.floats(1, 1e9),
)
@settings(max_examples=100, deadline=None)
def test_all_reduce_is_never_faster_than_the_link_and_grows(gpu, ranks, message):
    profile = catalog.load_gpu(gpu)
    rows = AllReduce.of([profile], [ranks])
    time = float(all_reduce_time(rows, message)[0])
    assert time >= 2 * message * (ranks - 1) / ranks / profile.scale_up_bandwidth / 1.02
    assert float(all_reduce_time(rows, 1.01 * message)[0]) > time


# --------------------------------------------------------------------------------------------
# KV transfer


@pytest.mark.parametrize(
    ("per_token", "tokens", "gbps", "milliseconds"),
    [
        # common questions about TCP and RDMA, at line rate: Llama-70B and Qwen3-32B in 16 bits
        (327_680, 4096, 10, 1074),
        (327_680, 4096, 25, 429),
        (327_680, 4096, 100, 107),
        (327_680, 4096, 400, 26.8),
        (262_144, 4000, 10, 839),
        (262_144, 4000, 25, 336),
        (262_144, 4000, 100, 84),
        (262_144, 4000, 400, 21),
    ],
)
def test_transfer_at_line_rate(vllm, per_token, tokens, gbps, milliseconds):
    """https://github.com/kvcache-ai/Mooncake/issues/602 and others ask for these."""
    costs = dataclasses.replace(vllm.transfer, fixed=0.0, per_block=0.0, overlap=0.0)
    engine = dataclasses.replace(vllm, transfer=costs)
    time = float(kv_transfer_time(tokens, tokens * per_token, gbps * 1e9 / 8, 1, engine))
    assert time == pytest.approx(milliseconds * 1e-3, rel=6e-3)


def test_transfer_adds_handshake_and_descriptors(vllm):
    costs = dataclasses.replace(vllm.transfer, fixed=27e-3, per_block=4e-6, overlap=0.25)
    engine = dataclasses.replace(vllm, transfer=costs, block_size=16)
    time = float(kv_transfer_time(1001, 1001 * 1e5, 1e10, 32, engine))
    assert time == pytest.approx(27e-3 + (1001 * 1e5 / 1e10 + 63 * 32 * 4e-6) * 0.75, rel=1e-12)


def test_transfer_reproduces_the_measurement_its_constants_come_from(vllm):
    """https://github.com/vllm-project/vllm/issues/50913: 167 MiB, 1,785 descriptors, 50 GB/s, 38.7 ms."""
    layers = 32
    tokens = 1785 / layers * vllm.block_size
    per_token = 167 * 2**20 / tokens
    rate = 50e9 * vllm.transfer.rdma_efficiency
    assert float(kv_transfer_time(tokens, tokens * per_token, rate, layers, vllm)) == pytest.approx(
        38.7e-3, rel=0.02
    )


def test_the_attained_rate_stays_below_the_line_rate(h100, vllm):
    fast, slow = network_rate(item(h100, 400), vllm), network_rate(item(h100, 400, rdma=False), vllm)
    assert 0 < slow < fast < 400e9 / 8
