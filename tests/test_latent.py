"""Latent attention, indexers and recurrent states."""

import numpy as np
import pytest

from planner.catalog import load_gpu
from planner.latent import (
    LatentDecodeKernel,
    indexer_prefill_time,
    indexer_time,
    latent_decode_time,
    latent_prefill_kernel,
    latent_prefill_time,
    state_decode_time,
    state_prefill_time,
)
from planner.roofline import PrefillAttentionKernel
from planner.specs import Dtype, Indexer, LatentAttention, StateMixer

V3 = LatentAttention(heads=128, query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
STATE = StateMixer(
    kind="gated_delta_net",
    heads=32,
    groups=16,
    input_width=12_352,
    output_width=4096,
    conv_channels=8192,
    conv_kernel=4,
    state_elements=32 * 128 * 128,
)


def test_decode_by_hand():
    """576 numbers per token are read once for all heads; each head computes 2,176 FLOP a token."""
    kernel = LatentDecodeKernel(
        compute_rate=800e12,
        memory_rate=3e12,
        overhead=13e-6,
        exponent=2.0,
        block_time=4e-6,
        sm_count=132.0,
        kv_bytes=2.0,
        log_sd=0.1,
    )
    batch, context, heads = 64.0, 4096.0, 16.0
    read = batch * context * 576 * 2 + 2176 * batch * heads
    flop = 2176 * batch * heads * context
    expected = 13e-6 + np.hypot(read / 3e12, flop / 800e12) + 4e-6 * batch / 132
    found = float(latent_decode_time(kernel, V3, batch, context, heads))
    assert found == pytest.approx(expected, rel=1e-12)
    assert float(latent_decode_time(kernel, V3, 0.0, context, heads)) == 0.0


def test_prefill_by_hand():
    """320 wide heads: 2 x 320 FLOP per query-key pair, 1,280 bytes per token and head."""
    kernel = PrefillAttentionKernel(
        compute_rate=500e12, memory_rate=2e12, overhead=18e-6, softmax_time=1e-12, sm_count=132.0, log_sd=0.1
    )
    length, heads = 2048.0, 16.0
    area = length**2 / 2
    expected = 18e-6 + 640 * heads * area / 500e12 + 1280 * length * heads / 2e12 + heads * area / 132 * 1e-12
    found = float(latent_prefill_time(kernel, V3, area, length, length, 1.0, heads))
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP8])
@pytest.mark.parametrize("name", ["h100-sxm", "l40s", "b200-sxm"])
def test_every_gpu_has_some_kernel(name, dtype):
    gpu = load_gpu(name)
    kernel = LatentDecodeKernel.of(gpu, dtype)
    assert 0 < kernel.memory_rate <= 1.02 * gpu.hbm_bandwidth
    assert 0 < latent_prefill_kernel(gpu).compute_rate <= 1.02 * gpu.peak_flops[Dtype.BF16]


def test_an_indexer_reads_its_keys():
    indexer = Indexer(heads=64, head_dim=128, top_k=2048)
    near, far = (float(indexer_time(indexer, 32.0, context, 3e12, 1e15)) for context in (1000.0, 100_000.0))
    assert far - near == pytest.approx(32 * 99_000 * 132 / (0.75 * 3e12), rel=1e-9)
    near, far = (float(indexer_time(indexer, 32.0, context, 3e12, 1e14)) for context in (1000.0, 100_000.0))
    assert far - near == pytest.approx(32 * 99_000 * 16_384 / (0.8 * 1e14), rel=1e-9)


def test_an_indexer_scores_prompts_by_arithmetic():
    """64 heads of 128: 16,384 FLOP a pair."""
    indexer = Indexer(heads=64, head_dim=128, top_k=2048)
    area = 32_000.0**2 / 2
    expected = 10e-6 + 16_384 * area / (0.8 * 2.25e15)
    assert float(indexer_prefill_time(indexer, area, 1.0, 2.25e15)) == pytest.approx(expected, rel=1e-12)


def test_a_state_costs_the_same_whatever_the_context():
    one, two = (float(state_decode_time(STATE, batch, 1.0, 3e12)) for batch in (1.0, 2.0))
    moved = 2 * (STATE.state_elements * 4 + 8192 * 3 * 2)
    assert two - one == pytest.approx(moved / (0.75 * 3e12), rel=1e-9)
    assert float(state_prefill_time(STATE, 1000.0, 1.0, 1.0, 1.0, 3e12, 1e15)) > 0
