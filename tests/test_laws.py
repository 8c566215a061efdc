"""Laws that no step may break, whatever the model, the GPU, the formats and the multipliers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from planner import catalog
from planner.arrays import FloatArray
from planner.engines import load_engine
from planner.errors import SpecError
from planner.experts import ExpertsKernel, distinct_experts, experts_time
from planner.latency import (
    Companions,
    PromptTime,
    decode_breakdown,
    decode_kernels_time,
    decode_step_time,
    head_time,
    padded_batch,
    prefill_breakdown,
    prompt_time,
)
from planner.latent import LatentDecodeKernel, latent_decode_time
from planner.operators import ReplicaSet, attainable
from planner.physics import Work, decode_work, least_time, peak_flops, prompt_work
from planner.roofline import DecodeAttentionKernel, GemmKernel, decode_attention_time, gemm_time
from planner.simulator.tables import Grids, step_tables
from planner.specs import (
    GPU,
    Attention,
    Dtype,
    Engine,
    LatentAttention,
    MixtureOfExperts,
    Model,
    Parallelism,
    Precision,
)
from planner.transformer import weight_bytes

MODELS = catalog.model_names()
GPUS = tuple(catalog.load_gpu(name) for name in catalog.gpu_names())
VLLM = load_engine("vllm")
# One of each kind: dense, windows, experts, latents with and without an indexer, states.
KINDS = (
    "meta-llama/Llama-3.1-70B",
    "google/gemma-3-27b-pt",
    "openai/gpt-oss-120b",
    "mistralai/Mixtral-8x7B-v0.1",
    "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
)
ROUTED = tuple(
    name
    for name in MODELS
    if any(isinstance(run.layer.feed_forward, MixtureOfExperts) for run in catalog.load_model(name).kinds)
)
LAYOUTS = (
    Parallelism(tp=8),
    Parallelism(tp=2, pp=4),
    Parallelism(tp=4, ep=4),
    Parallelism(dp=8, ep=8),
    Parallelism(tp=2, pp=2, dp=4, ep=8),
    Parallelism(dp=16, ep=16, pp=2),
)
ONE = Parallelism()
LOWEST_Z = -3.0
BATCHES = (0.3, 1.0, 2.0, 2.5, 7.0, 64.0, 300.0, 1024.0)
CONTEXTS = (1.0, 128.0, 4096.0, 32768.0)
PROMPTS = (1.0, 17.0, 512.0, 4096.0, 32768.0)
ROUNDING = 1e-9


def bare(decode: float = 0.6, prefill: float = 0.6) -> Engine:
    """An engine without host time whose kernels, by default, take far less than calibrated."""
    return replace(
        VLLM,
        decode_scale=decode,
        prefill_scale=prefill,
        step_overhead=0.0,
        sequence_overhead=0.0,
        eager_overhead=0.0,
        model_factors=(),
    )


def replicas(
    model: Model,
    precision: Precision,
    parallelism: Parallelism = ONE,
    engine: Engine = VLLM,
    z: float = 0.0,
) -> tuple[ReplicaSet, tuple[GPU, ...]]:
    """A replica on each GPU that has an all-reduce of the size; every GPU has kernels of every format."""
    able = []
    for gpu in GPUS:
        try:
            ReplicaSet.of(model, precision, engine, [(gpu, parallelism)])
        except SpecError:
            assert parallelism.num_gpus > 1
            continue
        able.append(gpu)
    return ReplicaSet.of(model, precision, engine, [(gpu, parallelism) for gpu in able], z), tuple(able)


def everywhere(name: str, engine: Engine = VLLM, z: float = 0.0) -> ReplicaSet:
    """The model as its checkpoint is, on one GPU of each type."""
    model = catalog.load_model(name)
    return ReplicaSet.of(model, Precision.of(model), engine, [(gpu, ONE) for gpu in GPUS], z)


def least(work: Work, gpus: Sequence[GPU] = GPUS) -> np.ndarray:
    """Least times on GPUs, which lie on the last axis. [s]"""
    return np.stack([least_time(work, gpu) for gpu in gpus], axis=-1)


def least_prompt(
    model: Model,
    precision: Precision,
    parallelism: Parallelism,
    query: float,
    cached: float,
    budget: float,
    gpus: Sequence[GPU] = GPUS,
) -> np.ndarray:
    """Of a prompt's steps, one after the other. [s]"""
    total = np.zeros(len(gpus))
    for start in np.arange(0.0, query, budget):
        chunk = min(budget, query - start)
        rows = 1.0 if start + chunk == query else 0.0
        total += least(prompt_work(model, precision, parallelism, chunk, cached + start, rows), gpus)
    return total


def rises(times: np.ndarray, axis: int = 0) -> bool:
    """Whether finite times grow, or stay as they are, along an axis; rounding is allowed for."""
    before = np.take(times, range(times.shape[axis] - 1), axis=axis)
    return bool(np.all(np.isfinite(times)) and np.all(np.diff(times, axis=axis) >= -ROUNDING * before))


def column(*values: float) -> np.ndarray:
    """Values on the first of three axes; replicas lie on the last."""
    return np.array(values, dtype=np.float64)[:, None, None]


# --------------------------------------------------------------------------------------------
# No step beats the data sheet


def eight_bits(model: Model) -> tuple[Precision, ...]:
    own = Precision.of(model)
    return (replace(own, kv_cache=Dtype.FP8), Precision(weights=Dtype.FP8, kv_cache=Dtype.FP8))


@pytest.mark.parametrize("name", MODELS)
def test_no_decode_step_beats_the_data_sheet(name):
    model = catalog.load_model(name)
    batch, context = np.array(BATCHES)[:, None], np.array(CONTEXTS)
    for precision in (Precision.of(model), *eight_bits(model)):
        r = ReplicaSet.of(model, precision, bare(), [(gpu, ONE) for gpu in GPUS], LOWEST_Z)
        bound = least(decode_work(model, precision, ONE, batch, context))
        assert np.all(decode_step_time(r, batch[..., None], context[:, None]) >= bound * (1 - ROUNDING))


def prompts_within_the_data_sheet(model: Model, precision: Precision, budgets: Sequence[float]) -> bool:
    r = ReplicaSet.of(model, precision, bare(), [(gpu, ONE) for gpu in GPUS], LOWEST_Z)
    for budget in budgets:
        for query in PROMPTS:
            for cached in (0.0, 128.0, 32768.0):
                bound = least_prompt(model, precision, ONE, query, cached, budget)
                if np.any(prompt_time(r, query, cached, budget).service < bound * (1 - ROUNDING)):
                    return False
    return True


@pytest.mark.parametrize("name", MODELS)
def test_no_prompt_beats_the_data_sheet(name):
    model = catalog.load_model(name)
    assert prompts_within_the_data_sheet(model, Precision.of(model), (2048.0,))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_no_prompt_of_any_budget_and_format_beats_the_data_sheet(name):
    model = catalog.load_model(name)
    for precision in (Precision.of(model), *eight_bits(model)):
        assert prompts_within_the_data_sheet(model, precision, (512.0, 8192.0))


@pytest.mark.parametrize("scales", [(0.6, 0.6), (1.0, 0.6), (0.6, 1.0)], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_no_step_of_prompts_and_decodes_beats_the_data_sheet(name, scales):
    """Weights are read once for both."""
    model = catalog.load_model(name)
    precision = Precision.of(model)
    r = everywhere(name, bare(*scales), LOWEST_Z)
    batch, context = np.array([0.5, 17.0, 64.0, 1000.0])[:, None], np.array([1.0, 32768.0])
    decodes = decode_work(model, precision, ONE, batch, context)
    weights = decode_work(model, precision, ONE, batch, 0.0)
    for query in (1.0, 128.0, 7000.0):
        prompt = prompt_work(model, precision, ONE, query, 4096.0)
        alone = prompt_work(model, precision, ONE, query, 0.0)
        both = Work(
            {dtype: prompt.flop.get(dtype, 0.0) + flop for dtype, flop in decodes.flop.items()},
            np.maximum(alone.traffic, weights.traffic)
            + (prompt.traffic - alone.traffic)
            + (decodes.traffic - weights.traffic),
        )
        time = prompt_time(r, query, 4096.0, 8192.0, decode_batch=batch[..., None], context=context[:, None])
        assert np.all(time.steps == 1)
        assert np.all(time.service >= least(both) * (1 - ROUNDING))


@pytest.mark.parametrize(
    ("name", "layout"),
    [(name, layout) for name in KINDS for layout in LAYOUTS if layout.ep == 1 or name in ROUTED],
    ids=str,
)
def test_no_replica_of_several_gpus_beats_the_data_sheet(name, layout):
    model = catalog.load_model(name)
    precision = Precision.of(model)
    r, able = replicas(model, precision, layout, bare(), LOWEST_Z)
    batch, context = np.array(BATCHES)[:, None] * layout.lanes, np.array(CONTEXTS)
    bound = least(decode_work(model, precision, layout, batch, context), able)
    assert np.all(decode_step_time(r, batch[..., None], context[:, None]) >= bound * (1 - ROUNDING))
    for query in PROMPTS:
        bound = least_prompt(model, precision, layout, query, 4096.0, 2048.0, able)
        assert np.all(prompt_time(r, query, 4096.0, 2048.0).service >= bound * (1 - ROUNDING))


@pytest.mark.parametrize("name", KINDS)
def test_rates_are_held_to_the_peaks_only_where_they_would_exceed_them(name):
    """A factor below 1 shortens a step by that factor at most, and lengthens none."""
    plain = everywhere(name, bare(1.0, 1.0))
    whole = decode_step_time(plain, column(1.0, 64.0, 500.0), 4096.0)
    assert attainable(plain, 1.0) is plain
    fast = decode_step_time(everywhere(name, bare(0.8)), column(1.0, 64.0, 500.0), 4096.0)
    assert np.all(fast >= 0.8 * whole * (1 - ROUNDING))
    assert np.all(fast <= whole * (1 + ROUNDING))


@pytest.mark.parametrize("name", KINDS)
def test_time_rises_with_the_error_planned_for(name):
    quantiles = np.linspace(-3.0, 3.0, 13)
    engine = bare(0.9, 1.1)
    sets = [everywhere(name, engine, z) for z in quantiles]
    assert rises(np.stack([decode_step_time(r, column(1.0, 100.0), 4096.0) for r in sets]))
    shared = [
        prompt_time(r, column(1.0, 5000.0), 100.0, 2048.0, decode_batch=40.0, context=500.0) for r in sets
    ]
    assert rises(np.stack([time.service for time in shared]))


# --------------------------------------------------------------------------------------------
# More work takes longer

MANY_BATCHES = column(
    *np.unique(
        [*np.arange(0, 40), *np.linspace(0.2, 20, 34), *np.arange(505, 520), *np.geomspace(40, 1500, 40)]
    )
)
AROUND = (1.0, 2.0, 127.0, 128.0, 129.0, 1023.0, 1024.0, 1025.0, 4095.0, 4096.0, 4097.0, 8193.0, 1e5)
MANY_PROMPTS = column(
    *np.unique(
        [*np.arange(0, 20), *np.arange(500, 530), *np.arange(1020, 1030), *np.geomspace(40, 3e4, 40).round()]
    )
)
SETTINGS = ((VLLM, 0.0), (bare(), LOWEST_Z))


@pytest.mark.parametrize("name", MODELS)
def test_decode_steps_never_get_shorter(name):
    for engine, z in SETTINGS:
        r = everywhere(name, engine, z)
        assert rises(decode_step_time(r, MANY_BATCHES, np.array([[1.0], [4000.0]])))
        assert rises(decode_step_time(r, np.array([[1.0], [64.0]]), column(0.0, *AROUND)))


def without_two_scales(r: ReplicaSet, time: PromptTime, batch: FloatArray | float) -> FloatArray:
    """Service of prompts beside `batch` sequences, with what two scales take off.

    What a pure decode step has too runs at its scale. Where that is the smaller one, a decode step that gets
    longer takes this much off, and so does each step more that a prompt is computed in.
    """
    less = max(r.engine.prefill_scale - r.engine.decode_scale, 0.0) * r.slowdown * time.steps
    decode = np.where(np.asarray(batch) > 0, decode_kernels_time(r, batch, 1e3), 0.0)
    return time.service + less * decode


@pytest.mark.parametrize("name", MODELS)
def test_prompts_never_get_shorter(name):
    for engine, z in SETTINGS:
        r = everywhere(name, engine, z)
        for batch in (0.0, 17.0, 100.0):
            beside = {"decode_batch": batch, "context": 1000.0}
            cached = np.array([[0.0], [5000.0]])
            assert rises(prompt_time(r, MANY_PROMPTS, cached, 512.0, **beside).service)
            query = np.array([[1.0], [500.0], [3000.0]])
            assert rises(prompt_time(r, query, column(0.0, *AROUND), 512.0, **beside).service)
            chunked = prompt_time(r, query, 0.0, column(4096.0, 1024.0, 512.0, 128.0), **beside)
            assert rises(without_two_scales(r, chunked, batch))
        query = np.array([[1.0], [300.0], [3000.0]])
        among = prompt_time(r, query, 0.0, 2048.0, decode_batch=MANY_BATCHES, context=1e3)
        assert rises(without_two_scales(r, among, MANY_BATCHES))
        assert rises(prompt_time(r, query, 0.0, 512.0, decode_batch=40.0, context=column(*AROUND)).service)


@pytest.mark.parametrize("beside", [0.0, 12.0])
@pytest.mark.parametrize("name", MODELS)
def test_a_token_beyond_a_full_step_costs_a_step_of_one_token(name, beside):
    """And no more: k full steps and a token are these and a step of one token, with one head for all."""
    cached, room = np.array([[0.0], [100.0], [20000.0]]), 512.0 - beside
    full = column(1.0, 2.0, 7.0, 40.0) * room
    together = {"decode_batch": beside, "context": 1000.0}
    for engine, z in SETTINGS:
        r = everywhere(name, engine, z)
        at, after = (prompt_time(r, full + more, cached, 512.0, **together).service for more in (0.0, 1.0))
        step = prompt_time(r, 1.0, cached + full, 512.0, **together).service
        scale = r.engine.prefill_scale
        head = r.slowdown * scale * head_time(attainable(r, scale), 1.0)
        assert np.all(after - at <= (step - head) * (1 + ROUNDING))
        before = at - prompt_time(r, full - 1.0, cached, 512.0, **together).service
        assert np.all(after - at >= before * (1 - ROUNDING))  # a launch more, never a launch less
        assert np.all(after - at >= 0.99 * (step - head))  # all weights are read again


@pytest.mark.parametrize("name", MODELS)
def test_each_full_step_of_a_prompt_takes_longer_than_the_one_before(name):
    """It attends to more: time per token, too, rises from one multiple of the token budget to the next."""
    for engine, z in SETTINGS:
        r = everywhere(name, engine, z)
        time = prompt_time(r, column(*range(30)) * 512.0, np.array([[0.0], [3000.0]]), 512.0).service
        assert rises(np.diff(time, axis=0)[1:])


# --------------------------------------------------------------------------------------------
# Formats without hardware


def unsupported(gpu: GPU) -> list[Dtype]:
    """Formats that `gpu` can store but not compute in."""
    return [d for d in Dtype if d not in gpu.peak_flops and not d.is_16_bit and d is not Dtype.FP32]


ROWS = np.geomspace(1, 1e6, 40)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_products_of_stored_formats_gain_only_the_bytes_they_save(gpu):
    sixteen = GemmKernel.of(gpu, Dtype.BF16)
    n, k = 8192, 4096
    for dtype in unsupported(gpu):
        kernel = GemmKernel.of(gpu, dtype)
        saved = (Dtype.BF16.bytes - dtype.bytes) * n * k / sixteen.memory_rate
        time = gemm_time(kernel, ROWS, n, k)
        assert np.all(time >= gemm_time(sixteen, ROWS, n, k) - saved - 1e-15)
        assert np.all(time >= 2 * ROWS * n * k / sixteen.compute_rate)


@pytest.mark.parametrize("name", ROUTED)
def test_experts_of_stored_formats_multiply_no_faster_than_16_bits(name):
    model = catalog.load_model(name)
    block = next(b for run in model.kinds if isinstance(b := run.layer.feed_forward, MixtureOfExperts))
    width = float(block.latent or model.hidden)
    flop = 2 * block.matrices * ROWS * block.top_k * width * block.intermediate
    for gpu in GPUS:
        sixteen = ExpertsKernel.of(gpu, Dtype.BF16)
        for dtype in unsupported(gpu):
            time = experts_time(ExpertsKernel.of(gpu, dtype), block, ROWS, width, 1.0, 1.0)
            assert np.all(time >= flop / sixteen.compute_rate)


@pytest.mark.parametrize("name", MODELS)
def test_a_stored_kv_cache_gains_only_the_bytes_it_saves(name):
    """On GPUs without fp8: neither attention nor its arithmetic is faster than 16 bits allow."""
    batch, context = ROWS[:, None], np.array(CONTEXTS)
    for gpu in GPUS:
        if Dtype.FP8 in gpu.peak_flops:
            continue
        peak = peak_flops(gpu, Dtype.BF16)
        for run in catalog.load_model(name).kinds:
            a = run.layer.attention
            if isinstance(a, Attention):
                eight, sixteen = (DecodeAttentionKernel.of(gpu, d) for d in (Dtype.FP8, Dtype.BF16))
                shape = (float(a.heads), float(a.kv_heads), a.head_dim)
                times = [decode_attention_time(k, batch, context, *shape) for k in (eight, sixteen)]
                flop, element = 4.0 * a.heads * a.head_dim, 2.0 * a.kv_heads * a.head_dim
            elif isinstance(a, LatentAttention):
                eight, sixteen = (LatentDecodeKernel.of(gpu, d) for d in (Dtype.FP8, Dtype.BF16))
                times = [latent_decode_time(k, a, batch, context, float(a.heads)) for k in (eight, sixteen)]
                flop = 2.0 * a.heads * (2 * a.kv_rank + a.rope_dim)
                element = float(a.kv_rank + a.rope_dim)
            else:
                continue
            saved = batch * context * element * (Dtype.BF16.bytes - Dtype.FP8.bytes) / sixteen.memory_rate
            assert np.all(times[0] >= (times[1] - saved) * (1 - ROUNDING))
            assert np.all(times[0] >= batch * context * flop / peak)


@pytest.mark.parametrize("name", MODELS)
def test_prompts_in_stored_formats_are_no_faster_than_16_bits(name):
    """But for the bytes of weights, which every step reads, and never faster than 16 bits multiply."""
    model = catalog.load_model(name)
    base = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
    parts = Precision(weights=Dtype.FP8, attention=Dtype.INT8, experts=Dtype.INT4, kv_cache=Dtype.BF16)
    query, budget = 65536.0, 8192.0
    steps = query / budget
    flop = {dtype: float(np.sum(f)) for dtype, f in prompt_work(model, parts, ONE, budget, 0.0).flop.items()}
    for dtype in (Dtype.FP8, Dtype.FP8_BLOCK, Dtype.INT8, Dtype.NVFP4, Dtype.MXFP4, Dtype.INT4):
        gpus = [(gpu, ONE) for gpu in GPUS if dtype in unsupported(gpu)]
        stored = replace(base, weights=dtype)
        sixteen, less = (ReplicaSet.of(model, p, VLLM, gpus) for p in (base, stored))
        slow, fast = (prompt_time(r, query, 0.0, budget).service for r in (sixteen, less))
        busy = (flop[parts.weights] + flop[parts.of_attention]) / sixteen.body.compute_rate
        if sixteen.experts is None:
            saved = weight_bytes(model, base) - weight_bytes(model, stored)
            assert np.all(fast >= slow - steps * saved / sixteen.body.memory_rate)
        else:
            busy = busy + flop[parts.of_experts] / sixteen.experts.compute_rate
        assert np.all(fast >= steps * busy)


# --------------------------------------------------------------------------------------------
# Padding


def line(r: ReplicaSet, batch: float, name: str) -> float:
    return next(x.time for x in decode_breakdown(r, batch, 2000.0) if x.name == name)


@pytest.mark.parametrize("name", ROUTED)
def test_padding_visits_no_experts(name):
    """17 sequences run as 24: matrix products pay for 24 rows, experts for 17 tokens."""
    model = catalog.load_model(name)
    r, _ = replicas(model, Precision.of(model), engine=bare(1.0, 1.0))
    assert r.experts is not None
    assert float(padded_batch(VLLM, 17.0)) == 24.0
    expected = 0.0
    for run in model.kinds:
        block = run.layer.feed_forward
        if isinstance(block, MixtureOfExperts):
            width = float(block.latent or model.hidden)
            expected = expected + run.count * experts_time(r.experts, block, 17.0, width, r.ep, r.moe_tp)
            if block.latent is not None:
                for n, k in ((width, model.hidden), (model.hidden, width)):
                    expected = expected + run.count * gemm_time(r.body, 24.0, n, k)
    assert line(r, 17.0, "experts") == pytest.approx(float(expected[0]), rel=1e-12)
    assert line(r, 17.0, "experts") < line(r, 24.0, "experts")
    assert line(r, 17.0, "qkv projection") == line(r, 24.0, "qkv projection")
    assert line(r, 17.0, "router") == line(r, 24.0, "router")


@pytest.mark.parametrize("layout", [Parallelism(), Parallelism(dp=8, ep=8), Parallelism(pp=2)], ids=str)
@pytest.mark.parametrize("engine", [VLLM, bare(0.7, 0.9)], ids=["plain", "fast"])
def test_break_downs_add_up(layout, engine):
    for name in ("deepseek-ai/DeepSeek-V3", "openai/gpt-oss-20b"):
        model = catalog.load_model(name)
        r, _ = replicas(model, Precision.of(model), layout, engine, -2.0)
        for batch in (0.4, 3.0, 17.0, 700.0):
            lines = decode_breakdown(r, batch, 2000.0)
            assert sum(x.time for x in lines) == pytest.approx(
                float(decode_step_time(r, batch, 2000.0)[0]), rel=1e-12
            )
            host = lines[-1].time
            expected = layout.pp * engine.step_overhead + engine.sequence_overhead * batch / layout.dp
            expected *= r.slowdown[0]
            if batch < 512 * layout.lanes:
                assert host == pytest.approx(float(expected), rel=1e-6, abs=1e-12)
        lines = prefill_breakdown(r, 5000.0, 300.0, 2048.0)
        service = float(prompt_time(r, 5000.0, 300.0, 2048.0).service[0])
        assert sum(x.time for x in lines) == pytest.approx(service, rel=1e-12)
        host = 3 * (layout.pp * engine.step_overhead + engine.sequence_overhead)
        assert lines[-1].time == pytest.approx(float(host * r.slowdown[0]), rel=1e-6, abs=1e-12)


def test_experts_of_attention_ranks_see_the_tokens_of_all():
    """A replica's one sequence visits one token's experts, though every rank runs a row."""
    model = catalog.load_model("deepseek-ai/DeepSeek-V3")
    r, _ = replicas(model, Precision.of(model), Parallelism(dp=8, ep=8), bare(1.0, 1.0))
    block = next(b for run in model.kinds if isinstance(b := run.layer.feed_forward, MixtureOfExperts))
    layers = sum(run.count for run in model.kinds if isinstance(run.layer.feed_forward, MixtureOfExperts))
    assert r.experts is not None
    for batch, tokens in ((0.2, 1.0), (1.0, 1.0), (20.0, 20.0), (64.0, 64.0)):
        expected = layers * experts_time(r.experts, block, tokens, float(model.hidden), r.ep, r.moe_tp)
        assert line(r, batch, "experts") == pytest.approx(float(expected[0]), rel=1e-12)
    assert float(distinct_experts(block, 1.0)) == pytest.approx(block.top_k)


# --------------------------------------------------------------------------------------------
# Odd inputs, and the simulator


@pytest.mark.parametrize("name", KINDS)
def test_nothing_to_do_takes_no_kernels(name):
    r = everywhere(name)
    idle = decode_step_time(r, 0.0, 1000.0)
    assert idle == pytest.approx(VLLM.step_overhead)
    assert np.all(decode_step_time(r, 1.0, 0.0) > idle)
    assert np.all(np.isfinite(decode_step_time(r, column(0.0, 1e-9, 1e6), np.array([[0.0], [1e7]]))))
    none = prompt_time(r, 0.0, 1000.0, 512.0)
    assert np.all(none.steps == 0)
    assert np.all((none.service >= 0) & (none.service <= prompt_time(r, 1.0, 1000.0, 512.0).service))
    crowded = prompt_time(r, 10.0, 0.0, 512.0, decode_batch=2000.0, context=10.0)
    assert np.all(crowded.steps == 10)  # decode tokens fill the budget: one token per step is left
    assert np.all(np.isfinite(crowded.service) & (crowded.stolen >= 0))
    alone = prompt_time(r, 10.0, 0.0, 512.0, Companions(0.0, 100.0, 1e4))
    assert np.all(alone.service == prompt_time(r, 10.0, 0.0, 512.0).service)


@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.6, 0.6), (0.6, 1.0), (1.0, 0.6)], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_the_simulator_holds_steps_to_the_same_peaks(name, scales):
    model = catalog.load_model(name)
    gpu = catalog.load_gpu("h200-sxm")
    r = ReplicaSet.of(model, Precision.of(model), bare(*scales), [(gpu, ONE)], -2.0)
    points = (np.array(p) for p in ([1.0, 900.0], [1.0, 300.0], [0.0, 500.0]))
    grids = Grids(**dict(zip(("contexts", "queries", "pasts"), points, strict=True)))
    t = step_tables(r, grids, 40, 512, 1)
    for batch in (1, 17, 40):
        decode = t.decode_scale * t.decode[batch, 1]
        assert decode == pytest.approx(float(decode_step_time(r, batch, 900.0)[0]), rel=1e-9)
        kernels = t.tokens[300 + batch] + t.launch + 300 * t.attention[1, 1] + t.head[1]
        more = t.prefill_scale * max(kernels + t.beside[batch, 1] - t.decode[batch, 1], 0.0)
        shared = prompt_time(r, 300.0, 500.0, 512.0, decode_batch=batch, context=900.0)
        assert decode + more == pytest.approx(float(shared.service[0]), rel=1e-9)
