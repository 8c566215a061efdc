"""Collectives and KV transfers by hand, and what no link may break."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import catalog
from planner.collectives import (
    ALL_TO_ALL_LATENCY,
    FORWARDING_LATENCY,
    NETWORK_LATENCY,
    PIPELINE_OVERHEAD,
    AllReduce,
    AllToAll,
    HandOver,
    all_reduce_time,
    all_to_all_time,
    kv_transfer_time,
    network_rate,
    nodes_of,
    over_nodes,
    spread,
    supports_world_size,
)
from planner.errors import SpecError
from planner.specs import FleetItem, Parallelism

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
    ("ranks", "alpha", "bandwidth"), [(2, 5.395e-6, 19.1e9), (4, 11.71e-6, 3.824e9), (8, 19.72e-6, 2.014e9)]
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


@pytest.mark.parametrize(
    ("gpu", "ranks", "message"),
    [
        ("l40s", 3, "GPU 'l40s' has no all-reduce over 3 GPUs"),
        ("l40s", 12, "GPU 'l40s' has no all-reduce over the 6 GPUs of each of 2 nodes"),
        ("h100-sxm", 17, "17 GPUs of 'h100-sxm' cannot be spread evenly over 3 nodes of 8"),
    ],
)
def test_unknown_world_sizes_are_refused(gpu, ranks, message):
    profile = catalog.load_gpu(gpu)
    assert not supports_world_size(profile, ranks)
    with pytest.raises(SpecError, match=message):
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
# Several nodes


@pytest.mark.parametrize(
    ("gpu", "ranks", "expected"),
    [("h100-sxm", 8, (8, 1)), ("h100-sxm", 16, (8, 2)), ("h100-sxm", 72, (8, 9)), ("h100-sxm", 12, (6, 2)),
     ("gb200", 16, (16, 1)), ("gb200", 144, (72, 2)), ("gb200", 128, (64, 2)), ("gh200", 2, (1, 2)),
     ("l40s", 32, (8, 4)), ("a10g", 8, (8, 1))],
)  # fmt: skip
def test_ranks_are_spread_over_as_few_nodes_as_hold_them(gpu, ranks, expected):
    assert spread(catalog.load_gpu(gpu), ranks) == expected


@pytest.mark.parametrize(
    ("layout", "nodes"),
    [(Parallelism(tp=8), 1), (Parallelism(tp=8, pp=2), 2), (Parallelism(tp=4, pp=2), 1),
     (Parallelism(tp=16), 2), (Parallelism(tp=4, pp=3), 2), (Parallelism(tp=2, dp=2, pp=4), 2),
     (Parallelism(tp=16, pp=2), 4)],
    ids=str,
)  # fmt: skip
def test_stages_share_a_node_while_they_fit(h100, layout, nodes):
    assert nodes_of(h100, layout) == nodes


def test_all_reduce_over_two_nodes_by_hand(h100):
    """That of eight, two rounds of 12 us, and an eighth of the bytes over 0.9 of 50 GB/s."""
    message = 4 * 2**20
    one = float(all_reduce_time(AllReduce.of([h100], [8]), message)[0])
    two = float(all_reduce_time(AllReduce.of([h100], [16]), message)[0])
    assert two == pytest.approx(one + 2 * 12e-6 + 2 / 2 * message / 8 / (50e9 * 0.9), rel=1e-12)


def test_all_reduce_between_nodes_of_one_gpu_by_hand():
    """No link within: six rounds among eight nodes, and all bytes over the NIC."""
    gh200, message = catalog.load_gpu("gh200"), 2**20
    found = float(all_reduce_time(AllReduce.of([gh200], [8]), message)[0])
    assert found == pytest.approx(6 * 12e-6 + 2 * 7 / 8 * message / (50e9 * 0.9), rel=1e-12)


def test_48_kb_over_four_nodes_take_what_was_measured():
    """https://github.com/local-inference-lab/vllm/pull/295: 54 to 64 us, on NICs of 200 Gbit/s."""
    node = dataclasses.replace(catalog.load_gpu("gh200"), network_bandwidth=25e9)
    assert 50e-6 < float(all_reduce_time(AllReduce.of([node], [4]), 48e3)[0]) < 64e-6


@given(st.sampled_from(["h100-sxm", "l40s", "gb200", "gh200"]), st.integers(1, 5), st.floats(1, 1e9))
@settings(max_examples=100, deadline=None)
def test_more_nodes_are_never_faster(gpu, doublings, message):
    profile = catalog.load_gpu(gpu)
    local = spread(profile, 1)[0] * {"gb200": 72, "gh200": 1}.get(gpu, 8)
    few, many = (
        float(all_reduce_time(AllReduce.of([profile], [local * 2**n]), message)[0])
        for n in (doublings - 1, doublings)
    )
    assert many > few


def test_a_lines_own_nics_and_nodes_count(h100):
    smaller = over_nodes(dataclasses.replace(item(h100, 100), node_size=4))
    assert spread(smaller.gpu, 8) == (4, 2)
    assert smaller.gpu.network_bandwidth == 12.5e9
    assert spread(
        over_nodes(dataclasses.replace(item(catalog.load_gpu("gb200"), 400), node_size=4)).gpu, 16
    ) == (
        16,
        1,
    )


# --------------------------------------------------------------------------------------------
# Experts

DEEP_EP = [(8, 77, 114), (16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360)]
"""Ranks, dispatch and combine [us]: github.com/deepseek-ai/DeepEP, docs/legacy.md, low-latency, H800."""


@pytest.mark.parametrize(("ranks", "dispatch", "combine"), DEEP_EP)
def test_all_to_all_reproduces_the_published_table(ranks, dispatch, combine):
    """128 tokens of 7168 values to 8 experts in 8 bits with scales, back in 16."""
    row = AllToAll.of([catalog.load_gpu("h800-sxm")], [Parallelism(dp=ranks, ep=ranks)])

    def phase(size: float) -> float:
        return float(all_to_all_time(row, 128.0, 8.0, size)[0]) - ALL_TO_ALL_LATENCY

    assert phase(7168 * (1 + 4 / 128)) == pytest.approx(dispatch * 1e-6, rel=0.08)
    assert phase(7168 * 2.0) == pytest.approx(combine * 1e-6, rel=0.08)


def test_all_to_all_by_hand(h100):
    """32 ranks on four nodes: 3/4 of the copies cross NICs, 7/32 the link; of many tokens one per node."""
    row = AllToAll.of([h100], [Parallelism(dp=32, ep=32)])
    link, nic = 450e9 * 0.8, 50e9 * 0.9
    few = float(all_to_all_time(row, 16.0, 8.0, 30e3)[0])
    assert few == pytest.approx(70e-6 + 16 * 30e3 * max(8 * 7 / 32 / link, 8 * 3 / 4 / nic), rel=1e-12)
    many = float(all_to_all_time(row, 4096.0, 8.0, 30e3)[0])
    visited = 3 * (1 - 0.75**8)
    assert many == pytest.approx(
        2 * FORWARDING_LATENCY + 4096 * 30e3 * max(8 * 7 / 8 / link, visited / nic), rel=1e-12
    )


def test_within_a_node_only_the_link_counts(h100):
    row = AllToAll.of([h100], [Parallelism(dp=8, ep=8)])
    time = float(all_to_all_time(row, 1000.0, 8.0, 30e3)[0])
    assert time == pytest.approx(2 * ALL_TO_ALL_LATENCY + 1000 * 30e3 * 8 * 7 / 8 / (450e9 * 0.8), rel=1e-12)
    assert float(all_to_all_time(row, 0.0, 8.0, 30e3)[0]) == 0.0


@pytest.mark.parametrize(
    ("gpu", "layout"),
    [
        ("h100-sxm", Parallelism(tp=8, ep=8)),
        ("h100-sxm", Parallelism(dp=8)),
        ("l40s", Parallelism(dp=8, ep=8)),
    ],
    ids=str,
)
def test_where_ranks_hold_the_same_or_have_no_link_there_is_no_all_to_all(gpu, layout):
    row = AllToAll.of([catalog.load_gpu(gpu)], [layout])
    assert np.isinf(all_to_all_time(row, 16.0, 8.0, 30e3)[0])


# --------------------------------------------------------------------------------------------
# Pipelines


@pytest.mark.parametrize(
    ("gpu", "layout", "rounds", "per_byte"),
    [
        ("h100-sxm", Parallelism(tp=4, pp=2), 0, 1 / (450e9 * 0.7299) / 4),
        ("h100-sxm", Parallelism(tp=8, pp=2), 1, 1 / 45e9 / 8),
        ("h100-sxm", Parallelism(tp=4, pp=4), 1, (2 / (450e9 * 0.7299) + 1 / 45e9) / 4),
        ("h100-sxm", Parallelism(tp=16, pp=3), 2, 2 / 45e9 / 16),
        ("l40s", Parallelism(pp=2), 0, 1 / 19.1e9),
        ("l40s", Parallelism(tp=4, pp=2), 0, 1 / 2.016e9 / 4),
        ("gh200", Parallelism(pp=2), 1, 1 / 45e9),
        ("h100-sxm", Parallelism(tp=8), -1, 0.0),
    ],
    ids=str,
)
def test_hand_overs_by_hand(gpu, layout, rounds, per_byte):
    """Stages lie in order: a hand-over crosses nodes only where the next stage no longer fits."""
    row = HandOver.of([catalog.load_gpu(gpu)], [layout])
    overhead = (layout.pp - 1) * PIPELINE_OVERHEAD + max(rounds, 0) * NETWORK_LATENCY
    assert float(row.overhead[0]) == pytest.approx(overhead, rel=1e-12)
    assert float(row.time_per_byte[0]) == pytest.approx(per_byte, rel=1e-4)


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
