"""Operator times: hand-computed values, and laws that no coefficients may break."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import catalog
from planner.errors import SpecError
from planner.roofline import (
    DecodeAttentionKernel,
    ElementwiseKernel,
    GemmKernel,
    PrefillAttentionKernel,
    decode_attention_time,
    elementwise_time,
    gemm_time,
    prefill_attention_time,
    smooth_maximum,
    stack,
)
from planner.specs import GPU, Dtype

GPUS = catalog.gpu_names()
SIZES = st.integers(1, 16384)
GEMM = GemmKernel(
    compute_rate=800e12,
    memory_rate=3e12,
    overhead=4e-6,
    exponent=2.0,
    quantization_rate=1e12,
    weight_bytes=1.0,
    activation_bytes=1.0,
    log_sd=0.1,
)
DECODE = DecodeAttentionKernel(
    memory_rate=3e12, overhead=10e-6, cta_time=3e-6, sm_count=100.0, kv_bytes=2.0, log_sd=0.1
)
PREFILL = PrefillAttentionKernel(
    compute_rate=500e12, memory_rate=1e12, overhead=12e-6, softmax_time=20e-12, sm_count=100.0, log_sd=0.1
)


# --------------------------------------------------------------------------------------------
# By hand


def test_gemm_by_hand():
    m, n, k = 256, 8192, 4096
    compute = 2 * m * n * k / 800e12  # 21.47 us
    memory = (m * k + n * k + 2 * m * n) / 3e12  # 12.93 us
    quantization = m * k * 3 / 1e12  # 3.15 us
    assert compute == pytest.approx(21.47e-6, rel=1e-3)
    assert memory == pytest.approx(12.93e-6, rel=1e-3)
    expected = 4e-6 + math.hypot(compute, memory) + quantization
    assert float(gemm_time(GEMM, m, n, k)) == pytest.approx(expected, rel=1e-12)
    assert float(gemm_time(GEMM, m, n, k)) == pytest.approx(32.21e-6, rel=1e-3)


def test_gemm_of_the_h100_profile_by_hand():
    """Coefficients of the published fit, written out: 0.8118 of 989 TFLOP/s, 0.8748 of 3,350 GB/s."""
    m, n, k = 512, 4096, 4096
    compute = 2 * m * n * k / (989e12 * 0.8118)
    memory = 2 * (m * k + n * k + m * n) / (3350e9 * 0.8748)
    expected = 3.771e-6 + (compute**3.132 + memory**3.132) ** (1 / 3.132)
    kernel = GemmKernel.of(catalog.load_gpu("h100-sxm"), Dtype.BF16)
    assert float(gemm_time(kernel, m, n, k)) == pytest.approx(expected, rel=1e-3)  # figures as rounded there


def test_decode_attention_by_hand():
    batch, context, heads, kv_heads, dim = 64, 2000, 32, 8, 128
    traffic = 2 * 64 * 8 * 128 * 2000 * 2 + 4 * 64 * 32 * 128  # 524.3 MB of cache, 1 MB of queries
    expected = 10e-6 + traffic / 3e12 + 3e-6 * 64 * 8 / 100
    found = float(decode_attention_time(DECODE, batch, context, heads, kv_heads, dim))
    assert found == pytest.approx(expected, rel=1e-12)
    assert found == pytest.approx(200.5e-6, rel=1e-3)


def test_prefill_attention_by_hand():
    query, past, heads, kv_heads, dim = 2048, 1024, 32, 8, 128
    area = query * past + query**2 / 2
    flop = 4 * heads * dim * area  # 68.7 GFLOP
    traffic = 2 * dim * (2 * heads * query + 2 * kv_heads * (query + past))
    softmax = heads * area / 100 * 20e-12
    expected = 12e-6 + flop / 500e12 + traffic / 1e12 + softmax
    found = prefill_attention_time(PREFILL, area, query, query + past, 1, heads, kv_heads, dim)
    assert found == pytest.approx(expected, rel=1e-12)
    assert flop == pytest.approx(68.7e9, rel=1e-3)


def test_elementwise_by_hand():
    kernel = ElementwiseKernel.of(dataclasses.replace(catalog.load_gpu("h100-sxm"), hbm_bandwidth=1e12))
    assert elementwise_time(kernel, 7.5e9, 4) == pytest.approx(4 * 2e-6 + 7.5e9 / (0.75 * 1e12))


@pytest.mark.parametrize("gpu", GPUS)
def test_nothing_to_do_costs_nothing(gpu):
    g = catalog.load_gpu(gpu)
    assert float(gemm_time(GemmKernel.of(g, Dtype.BF16), 0, 4096, 4096)) == 0.0
    kernel = DecodeAttentionKernel.of(g, Dtype.BF16)
    assert float(decode_attention_time(kernel, 0, 1000, 32, 8, 128)) == 0.0


# --------------------------------------------------------------------------------------------
# Laws


def sixteen_bit(gpu: GPU) -> Dtype:
    """bf16, or fp16 on GPUs before Ampere."""
    return Dtype.BF16 if Dtype.BF16 in gpu.peak_flops else Dtype.FP16


@given(st.sampled_from(GPUS), st.sampled_from([Dtype.BF16, Dtype.FP8]), SIZES, SIZES, SIZES)
@settings(max_examples=200, deadline=None)
def test_gemm_is_never_faster_than_the_datasheet(gpu, dtype, m, n, k):
    g = catalog.load_gpu(gpu)
    dtype = dtype if dtype in g.peak_flops else sixteen_bit(g)
    kernel = GemmKernel.of(g, dtype)
    traffic = kernel.activation_bytes * m * k + dtype.bytes * n * k
    roofline = max(2 * m * n * k / g.peak_flops[dtype], traffic / g.hbm_bandwidth)
    assert float(gemm_time(kernel, m, n, k)) >= roofline / 1.02


@given(st.sampled_from(GPUS), st.integers(1, 512), st.integers(1, 131072), st.sampled_from([1, 2, 8]))
@settings(max_examples=100, deadline=None)
def test_decode_attention_reads_the_cache_no_faster_than_the_datasheet(gpu, batch, context, kv_heads):
    g = catalog.load_gpu(gpu)
    cache = 2.0 * batch * context * kv_heads * 128 * 2
    time = float(
        decode_attention_time(DecodeAttentionKernel.of(g, Dtype.BF16), batch, context, 32, kv_heads, 128)
    )
    assert time >= cache / g.hbm_bandwidth / 1.02


@given(st.sampled_from(GPUS), SIZES, SIZES)
@settings(max_examples=100, deadline=None)
def test_prefill_attention_computes_no_faster_than_the_datasheet(gpu, query, past):
    g = catalog.load_gpu(gpu)
    area = query * past + query**2 / 2
    time = prefill_attention_time(PrefillAttentionKernel.of(g), area, query, query + past, 1, 32, 8, 128)
    assert time >= 4 * 32 * 128 * area / g.peak_flops[sixteen_bit(g)] / 1.02


@given(SIZES, SIZES, SIZES, st.integers(0, 2))
@settings(max_examples=100, deadline=None)
def test_gemm_grows_with_every_size(m, n, k, which):
    kernel = GemmKernel.of(catalog.load_gpu("h100-sxm"), Dtype.FP8)
    larger = [m, n, k]
    larger[which] += 1
    assert float(gemm_time(kernel, *larger)) > float(gemm_time(kernel, m, n, k))


@given(
    st.floats(1, 500),
    st.floats(1, 1e5),
    st.sampled_from([1.0, 2.0, 8.0]),
    st.floats(1.01, 3),
    st.integers(0, 2),
)
@settings(max_examples=100, deadline=None)
def test_decode_attention_grows_with_every_size(batch, context, kv_heads, factor, which):
    sizes = [batch, context, kv_heads]
    larger = list(sizes)
    larger[which] *= factor

    def time(b: float, length: float, kv: float) -> float:
        return float(decode_attention_time(DECODE, b, length, 32, kv, 128))

    assert time(*larger) > time(*sizes)


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(1, 12))
@settings(deadline=None)
def test_smooth_maximum_lies_between_maximum_and_sum(a, b, exponent):
    value = float(smooth_maximum(a, b, exponent))
    assert max(a, b) * (1 - 1e-12) <= value <= (a + b) * (1 + 1e-12) + 1e-29


def test_smooth_maximum_of_extremes_does_not_overflow():
    assert float(smooth_maximum(1e300, 1e300, 12.0)) == pytest.approx(1e300 * 2 ** (1 / 12))
    assert float(smooth_maximum(0.0, 0.0, 2.0)) < 1e-20


def test_stacked_kernels_equal_single_ones():
    gpus = [catalog.load_gpu(name) for name in ("h100-sxm", "a100-80gb-sxm", "l40s")]
    kernels = [GemmKernel.of(g, Dtype.BF16) for g in gpus]
    m = np.array([[1.0], [100.0], [3000.0]])
    together = gemm_time(stack(kernels), m, 4096.0, 1024.0)
    assert together.shape == (3, 3)
    for j, kernel in enumerate(kernels):
        for i in range(3):
            assert together[i, j] == pytest.approx(
                float(gemm_time(kernel, m[i, 0], 4096.0, 1024.0)), rel=1e-14
            )


# --------------------------------------------------------------------------------------------
# Formats that a GPU lacks


def test_fp8_weights_on_a100_run_in_16_bit_arithmetic(a100):
    """Weight-only: bytes of fp8, arithmetic of bf16, no quantisation of activations."""
    stored, plain = GemmKernel.of(a100, Dtype.FP8), GemmKernel.of(a100, Dtype.BF16)
    assert (stored.weight_bytes, stored.activation_bytes) == (1.0, 2.0)
    assert stored.compute_rate == plain.compute_rate
    assert stored.quantization_rate == math.inf
    assert stored.log_sd >= 0.2


def test_a100_has_no_fp8_speed_up_where_compute_binds(a100):
    stored, plain = (gemm_time(GemmKernel.of(a100, d), 8192, 8192, 8192) for d in (Dtype.FP8, Dtype.BF16))
    assert float(stored) == pytest.approx(float(plain), rel=0.02)
    one = [float(gemm_time(GemmKernel.of(a100, d), 1, 8192, 8192)) for d in (Dtype.FP8, Dtype.BF16)]
    assert 0.5 < one[0] / one[1] < 0.62  # half the bytes and a fixed cost


def test_fp8_is_faster_where_the_gpu_has_it(h100):
    fp8, bf16 = (float(gemm_time(GemmKernel.of(h100, d), 8192, 8192, 8192)) for d in (Dtype.FP8, Dtype.BF16))
    assert fp8 < 0.85 * bf16


def test_int4_weights_run_in_16_bit_arithmetic_everywhere(h100):
    kernel = GemmKernel.of(h100, Dtype.INT4)
    assert kernel.compute_rate == GemmKernel.of(h100, Dtype.BF16).compute_rate
    assert kernel.weight_bytes == pytest.approx(0.53125)


def test_a_kv_format_nobody_measured_borrows_the_16_bit_kernel(a100):
    borrowed, own = DecodeAttentionKernel.of(a100, Dtype.FP8), DecodeAttentionKernel.of(a100, Dtype.BF16)
    assert borrowed.memory_rate == own.memory_rate
    assert (borrowed.kv_bytes, own.kv_bytes) == (1.0, 2.0)
    assert borrowed.log_sd >= max(own.log_sd, 0.2)


def test_block_fp8_borrows_fp8_where_there_is_no_own_row(h100):
    gemm = {d: c for d, c in h100.calibration.gemm.items() if d is not Dtype.FP8_BLOCK}
    calibration = dataclasses.replace(h100.calibration, gemm=gemm)
    kernel = GemmKernel.of(dataclasses.replace(h100, calibration=calibration), Dtype.FP8_BLOCK)
    assert kernel.compute_rate == GemmKernel.of(h100, Dtype.FP8).compute_rate
    assert kernel.weight_bytes == Dtype.FP8_BLOCK.bytes


def test_a_gpu_without_any_matrix_kernel_is_refused(h100):
    bare = dataclasses.replace(h100, calibration=dataclasses.replace(h100.calibration, gemm={}))
    with pytest.raises(SpecError, match="has no matrix kernel for fp8"):
        GemmKernel.of(bare, Dtype.FP8)
    blind = dataclasses.replace(h100, calibration=dataclasses.replace(h100.calibration, decode_attention={}))
    with pytest.raises(SpecError, match="no decode attention kernel for a fp8 KV cache"):
        DecodeAttentionKernel.of(blind, Dtype.FP8)
