"""Routed experts: how many are hit, and what they cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import load_gpu
from planner.experts import ExpertsKernel, distinct_experts, experts_time, largest_of
from planner.specs import Dtype, MixtureOfExperts

BLOCK = MixtureOfExperts(experts=256, top_k=8, intermediate=2048)
KERNEL = ExpertsKernel(
    compute_rate=500e12,
    memory_rate=3e12,
    activation_rate=1e12,
    overhead=40e-6,
    exponent=2.0,
    weight_bytes=1.0,
    log_sd=0.1,
)


def test_one_token_hits_top_k_experts_and_many_hit_all():
    assert float(distinct_experts(BLOCK, 1.0)) == pytest.approx(8.0)
    assert float(distinct_experts(BLOCK, 1e5)) == pytest.approx(256.0)


def test_distinct_experts_of_random_choices():
    """Against a draw: 64 tokens choose 8 of 256 experts each."""
    rng = np.random.default_rng(7)
    hit = [
        len(set(np.concatenate([rng.choice(256, 8, replace=False) for _ in range(64)]))) for _ in range(200)
    ]
    assert float(distinct_experts(BLOCK, 64.0)) == pytest.approx(np.mean(hit), rel=0.01)


def test_time_by_hand():
    """16 tokens: the formula of the operator, written out."""
    tokens, hidden = 16.0, 7168.0
    flop = 6 * tokens * 8 * hidden * 2048
    weights = 256 * (1 - (1 - 8 / 256) ** 16) * 3 * hidden * 2048
    moved = tokens * 8 * (4 * hidden + 6 * 2048) + 4 * tokens * hidden
    busy = np.hypot(flop / 500e12, weights / 3e12)
    expected = 40e-6 + busy + moved / 1e12
    assert float(experts_time(KERNEL, BLOCK, tokens, hidden, 1.0, 1.0)) == pytest.approx(expected, rel=1e-12)


def test_no_tokens_cost_nothing():
    assert float(experts_time(KERNEL, BLOCK, 0.0, 7168.0, 1.0, 1.0)) == 0.0


def test_spreading_experts_shares_weights_and_waits_for_the_busiest():
    alone = float(experts_time(KERNEL, BLOCK, 512.0, 7168.0, 1.0, 1.0))
    cut = float(experts_time(KERNEL, BLOCK, 512.0, 7168.0, 1.0, 8.0))
    spread = float(experts_time(KERNEL, BLOCK, 512.0, 7168.0, 8.0, 1.0))
    assert alone / 8 < cut < alone
    assert alone / 8 < spread < alone


def test_the_busiest_of_eight_is_above_the_mean_by_what_order_statistics_say():
    draws = np.random.default_rng(3).standard_normal((200_000, 8)).max(axis=1)
    assert float(largest_of(8.0)) == pytest.approx(draws.mean(), abs=0.01)
    assert float(largest_of(1.0)) == 0.0


@given(st.floats(1, 8192), st.floats(1, 8192))
def test_more_tokens_never_take_less(a, b):
    few, many = sorted((a, b))
    times = [float(experts_time(KERNEL, BLOCK, t, 7168.0, 1.0, 1.0)) for t in (few, many)]
    assert times[0] <= times[1] * (1 + 1e-9)


def test_a_format_nobody_measured_is_built_from_the_dense_kernel():
    gpu = load_gpu("a100-80gb-sxm")
    kernel = ExpertsKernel.of(gpu, Dtype.NVFP4)
    assert kernel.weight_bytes == Dtype.NVFP4.bytes
    assert kernel.log_sd >= 0.2


# --------------------------------------------------------------------------------------------
# Whole tiles

HOPPER, BLACKWELL, AMPERE = (load_gpu(name) for name in ("h200-sxm", "b200-sxm", "a100-80gb-sxm"))


@pytest.mark.parametrize("gpu", [HOPPER, load_gpu("h100-sxm"), load_gpu("h20")])
@pytest.mark.parametrize("dtype", [Dtype.FP8, Dtype.FP8_BLOCK])
def test_hopper_multiplies_eight_bits_in_tiles_of_64_rows(gpu, dtype):
    assert ExpertsKernel.of(gpu, dtype).row_tile == 64


@pytest.mark.parametrize(
    ("gpu", "dtype"),
    [
        (HOPPER, Dtype.BF16),
        (HOPPER, Dtype.INT4),
        (HOPPER, Dtype.MXFP4),
        (BLACKWELL, Dtype.FP8_BLOCK),
        (BLACKWELL, Dtype.NVFP4),
        (AMPERE, Dtype.FP8_BLOCK),  # stored so, multiplied in 16 bits
    ],
)
def test_others_compute_no_more_rows_than_there_are(gpu, dtype):
    assert ExpertsKernel.of(gpu, dtype).row_tile == 1


@pytest.mark.parametrize(("tokens", "rows_per_expert"), [(16.0, 64.0), (64.0, 64.0), (4096.0, 128.0 + 31.5)])
def test_every_expert_that_is_hit_computes_at_least_a_tile(tokens, rows_per_expert):
    """16 tokens hit 102 experts with 1.3 rows each, which take as long as 64; where each of 256 experts has
    128 rows, half a tile comes on top: 31.5 rows."""
    hidden = 7168.0
    kernel = ExpertsKernel(
        compute_rate=1e12, memory_rate=1e30, activation_rate=1e30, overhead=0.0, exponent=2.0,
        weight_bytes=1.0, log_sd=0.1, row_tile=64.0,
    )  # fmt: skip
    hit = 256 * (1 - (1 - 8 / 256) ** tokens)
    flop = 6 * hit * rows_per_expert * hidden * 2048
    assert float(experts_time(kernel, BLOCK, tokens, hidden, 1.0, 1.0)) == pytest.approx(
        flop / 1e12, rel=1e-3
    )


def test_tiles_of_one_row_change_nothing():
    tokens = np.array([1.0, 100.0, 5000.0])
    plain = experts_time(KERNEL, BLOCK, tokens, 7168.0, 4.0, 1.0)
    np.testing.assert_array_equal(
        experts_time(replace(KERNEL, row_tile=1.0), BLOCK, tokens, 7168.0, 4.0, 1.0), plain
    )
    assert (experts_time(replace(KERNEL, row_tile=64.0), BLOCK, tokens, 7168.0, 4.0, 1.0) > plain).all()


@given(st.floats(1, 8192), st.floats(1, 8192))
def test_more_tokens_never_take_less_in_whole_tiles(a, b):
    kernel = ExpertsKernel.of(HOPPER, Dtype.FP8_BLOCK)
    times = [float(experts_time(kernel, BLOCK, t, 7168.0, 1.0, 1.0)) for t in sorted((a, b))]
    assert times[0] <= times[1] * (1 + 1e-9)
