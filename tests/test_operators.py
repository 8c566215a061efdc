"""Small kernels of layers, and errors of predictions from those of kernels."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.catalog import gpu_names, load_gpu, load_model
from planner.collectives import NETWORK_LOG_SD, all_reduce_time, all_to_all_time
from planner.engines import estimated_engine, load_engine
from planner.latency import decode_breakdown, decode_step_time
from planner.operators import (
    REFERENCE_BATCH,
    REFERENCE_CONTEXT,
    SPANNING_NORM_BYTES,
    SPANNING_NORM_KERNELS,
    STATE_KERNELS,
    WIDE_COMPUTE,
    ReplicaSet,
    decode_mixing,
    layer_operators,
    model_errors,
)
from planner.roofline import ELEMENTWISE_LOG_SD, FALLBACK_LOG_SD, elementwise_time, gemm_time
from planner.specs import (
    Attention,
    CalibrationStatus,
    Dtype,
    ElementwiseCoefficients,
    Layer,
    MixtureOfExperts,
    Model,
    Parallelism,
    Precision,
    StateMixer,
)

SMALL = ElementwiseCoefficients()
BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
BARE = replace(estimated_engine("vllm"), step_overhead=0.0, sequence_overhead=0.0, log_sd=0.0)
MINIMAX = load_model("MiniMaxAI/MiniMax-M2.5")
LLAMA = load_model("meta-llama/Llama-3.1-8B")


def replicas(model: Model, tp: int = 4, gpu: str = "h100-sxm", engine=BARE) -> ReplicaSet:
    return ReplicaSet.of(model, BF16, engine, [(load_gpu(gpu), Parallelism(tp=tp))])


def changed(model: Model, part: str, **changes: object) -> Model:
    """`model` with other mixers or blocks in all layers that have this kind."""
    layers = tuple(
        replace(run, layer=replace(run.layer, **{part: replace(getattr(run.layer, part), **changes)}))
        if all(hasattr(getattr(run.layer, part), name) for name in changes)
        else run
        for run in model.layers
    )
    return replace(model, layers=layers)


def operators(model: Model, tokens: float = 64.0, tp: int = 4) -> dict[str, float]:
    """Times of the operators of the model's most frequent layer, by name."""
    r = replicas(model, tp)
    layer = max(r.kinds, key=lambda run: run.count).layer
    found: dict[str, float] = {}
    for operator in layer_operators(r, layer, tokens):
        found[operator.name] = found.get(operator.name, 0.0) + float(np.sum(operator.time))
    return found


# --------------------------------------------------------------------------------------------
# Norms


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("tokens", [1.0, 64.0, 4096.0])
def test_a_norm_over_all_heads_adds_an_all_reduce_and_kernels(tp, tokens):
    """Of one sum of squares each for queries and keys, against no norm at all."""
    plain = operators(changed(MINIMAX, "attention", spanning_norm=False, qk_norm=False), tokens, tp)
    spanning = operators(changed(MINIMAX, "attention", spanning_norm=True), tokens, tp)
    r = replicas(MINIMAX, tp)
    reduced = float(all_reduce_time(r.all_reduce, tokens * SPANNING_NORM_BYTES)[0])
    more = {name: spanning[name] - plain[name] for name in plain}
    assert more.pop("all-reduce") == pytest.approx(reduced, rel=1e-6, abs=1e-15)
    assert (reduced > 0) == (tp > 1)
    assert more.pop("elementwise") == pytest.approx(SPANNING_NORM_KERNELS * SMALL.overhead, rel=1e-6)
    assert more == dict.fromkeys(more, 0.0)


def test_a_norm_of_single_heads_adds_a_kernel_and_no_all_reduce():
    plain = operators(changed(LLAMA, "attention", qk_norm=False))
    normed = operators(changed(LLAMA, "attention", qk_norm=True))
    assert normed["elementwise"] - plain["elementwise"] == pytest.approx(SMALL.overhead, rel=1e-6)
    assert normed["all-reduce"] == plain["all-reduce"]


def test_models_whose_norms_span_all_heads():
    assert all(run.layer.attention.spanning_norm for run in MINIMAX.kinds)
    assert not any(run.layer.attention.spanning_norm for run in LLAMA.kinds)


def test_a_step_pays_for_the_norms_of_every_layer():
    plain = changed(MINIMAX, "attention", spanning_norm=False, qk_norm=False)
    step = [float(decode_step_time(replicas(m), 16.0, 1000.0)[0]) for m in (plain, MINIMAX)]
    reduced = float(all_reduce_time(replicas(MINIMAX).all_reduce, 16.0 * SPANNING_NORM_BYTES)[0])
    layer = reduced + SPANNING_NORM_KERNELS * SMALL.overhead
    assert step[1] - step[0] == pytest.approx(MINIMAX.num_layers * layer, rel=1e-6)


def test_layers_with_a_state_launch_more_kernels_than_those_with_attention():
    model = load_model("Qwen/Qwen3.5-397B-A17B")
    r = replicas(model)
    run = next(run for run in r.kinds if isinstance(run.layer.attention, StateMixer))
    mixer = run.layer.attention
    times = {o.name: o.time for o in layer_operators(r, Layer(attention=mixer, feed_forward=None), 16.0)}
    traffic = 16.0 * 2.0 * (3.0 * model.hidden + 2.0 * mixer.input_width / 4)
    expected = elementwise_time(r.elementwise, traffic, 2 + STATE_KERNELS)
    np.testing.assert_allclose(times["elementwise"], expected, rtol=1e-12)


# --------------------------------------------------------------------------------------------
# Routers


@pytest.mark.parametrize("tokens", [1.0, 256.0, 8192.0])
def test_a_router_in_32_bits_costs_more(tokens):
    plain = operators(changed(MINIMAX, "feed_forward", wide_router=False), tokens)
    wide = operators(changed(MINIMAX, "feed_forward", wide_router=True), tokens)
    assert {n for n in plain if wide[n] != plain[n]} == {"router"}
    assert wide["router"] > plain["router"]


def test_a_router_by_hand():
    r = replicas(MINIMAX)
    block = next(
        run.layer.feed_forward for run in r.kinds if isinstance(run.layer.feed_forward, MixtureOfExperts)
    )
    tokens, hidden = 256.0, MINIMAX.hidden
    plain = operators(changed(MINIMAX, "feed_forward", wide_router=False), tokens)["router"]
    assert plain == pytest.approx(float(gemm_time(r.head, tokens, block.experts, hidden)[0]), rel=1e-12)
    kernel = replace(
        r.head, compute_rate=r.head.compute_rate * WIDE_COMPUTE, weight_bytes=4.0, activation_bytes=4.0
    )
    widened = elementwise_time(r.elementwise, tokens * 2.0 * 3.0 * hidden, 1)  # reads 16 bits, writes 32
    expected = float((gemm_time(kernel, tokens, block.experts, hidden) + widened)[0])
    assert operators(MINIMAX, tokens)["router"] == pytest.approx(expected, rel=1e-12)


def test_models_with_routers_in_32_bits():
    def wide(name: str) -> bool:
        blocks = [run.layer.feed_forward for run in load_model(name).kinds]
        return any(isinstance(b, MixtureOfExperts) and b.wide_router for b in blocks)

    assert wide("MiniMaxAI/MiniMax-M2.5")
    assert wide("zai-org/GLM-4.5")
    assert not wide("Qwen/Qwen3-235B-A22B")


# --------------------------------------------------------------------------------------------
# Errors of predictions


def reference(r: ReplicaSet) -> dict[str, float]:
    """Time of a decode step's kernels by the fit that they belong to, written out for one kind of layer."""
    ((layer, count),) = [(run.layer, run.count) for run in r.kinds]
    assert isinstance(layer.attention, Attention)
    named: dict[str, float] = {}
    for o in layer_operators(r, layer, REFERENCE_BATCH):
        named[o.name] = named.get(o.name, 0.0) + count * float(np.sum(o.time))
    return {
        "attention": named["qkv projection"] + named["output projection"],
        "body": named["feed-forward up"] + named["feed-forward down"],
        "links": named["all-reduce"],
        "elementwise": named["elementwise"],
        "mixing": count * float(decode_mixing(r, layer, REFERENCE_BATCH, REFERENCE_CONTEXT)[0]),
    }


@pytest.mark.parametrize("tp", [1, 4])
def test_the_error_of_a_step_by_hand(tp):
    """Residuals of each fit, weighed with its share of the time; different fits err independently."""
    gpu = load_gpu("h100-sxm")
    r = replicas(LLAMA, tp)
    time = reference(r)
    total = sum(time.values())
    spreads = {
        "attention": gpu.calibration.log_sd["gemm.bf16"],
        "body": gpu.calibration.log_sd["gemm.bf16"],
        "links": gpu.calibration.log_sd["all_reduce"],
        "elementwise": ELEMENTWISE_LOG_SD,
        "mixing": gpu.calibration.log_sd["decode_attention.bf16"],
    }
    expected = math.sqrt(sum((time[fit] / total * spreads[fit]) ** 2 for fit in time))
    decode, _ = model_errors(r, [gpu])
    assert float(decode[0]) == pytest.approx(expected, rel=1e-9)
    assert float(r.log_sd[0]) == pytest.approx(expected, rel=1e-9)
    assert min(spreads.values()) / 3 < expected < max(spreads.values())


def test_links_between_nodes_are_less_certain():
    """Of TP 16 the all-reduces cross nodes; of two stages only the hand-over does."""
    gpu = load_gpu("h100-sxm")
    assert gpu.calibration.log_sd["all_reduce"] < NETWORK_LOG_SD
    certain = replace(
        gpu, calibration=replace(gpu.calibration, log_sd=gpu.calibration.log_sd | {"all_reduce": 0.0})
    )

    def spreads(layout: Parallelism) -> tuple[float, float]:
        return tuple(float(ReplicaSet.of(LLAMA, BF16, BARE, [(g, layout)]).log_sd[0]) for g in (gpu, certain))

    within, without = spreads(Parallelism(tp=8))
    assert without < within
    across, same = spreads(Parallelism(tp=16))
    assert across == same > within


# --------------------------------------------------------------------------------------------
# Experts of several attention ranks

DEEPSEEK = load_model("deepseek-ai/DeepSeek-V3")


def exchange(model: Model, layout: Parallelism, tokens: float, precision: Precision = BF16) -> float:
    """Between ranks that share the experts of a layer; an attention rank of one GPU reduces nothing. [s]"""
    r = ReplicaSet.of(model, precision, BARE, [(load_gpu("h100-sxm"), layout)])
    layer = next(run.layer for run in r.kinds if isinstance(run.layer.feed_forward, MixtureOfExperts))
    return sum(float(np.sum(o.time)) for o in layer_operators(r, layer, tokens) if o.name == "all-reduce")


def test_the_exchange_is_the_cheaper_of_two():
    """One node: few tokens go to all ranks (7168 values, 8 ranks), many only to the experts they visit."""
    layout, fp8 = Parallelism(dp=8, ep=8), Precision(weights=Dtype.FP8_BLOCK, kv_cache=Dtype.BF16)
    r = ReplicaSet.of(DEEPSEEK, fp8, BARE, [(load_gpu("h100-sxm"), layout)])
    few = float(np.sum(all_reduce_time(r.exchange, 8 * 8 * 7168 * 2.0)))
    assert exchange(DEEPSEEK, layout, 8.0, fp8) == pytest.approx(few, rel=1e-12)
    many = float(np.sum(all_to_all_time(r.all_to_all, 4096.0, 8.0, 7168 * (1 + 4 / 128 + 2))))
    assert exchange(DEEPSEEK, layout, 4096.0, fp8) == pytest.approx(many, rel=1e-12)
    sixteen = exchange(DEEPSEEK, layout, 4096.0)
    assert sixteen > many  # what goes to experts of 16 bits has 16 bits


def test_a_replica_of_one_attention_rank_exchanges_as_before():
    r = ReplicaSet.of(DEEPSEEK, BF16, BARE, [(load_gpu("h100-sxm"), Parallelism(tp=8, ep=8))])
    one = float(np.sum(all_reduce_time(r.all_reduce, 64 * 7168 * 2.0)))
    assert exchange(DEEPSEEK, Parallelism(tp=8, ep=8), 64.0) == pytest.approx(2 * one, rel=1e-12)


def test_a_large_published_decode_pool():
    """SGLang on 72 H100 (https://lmsys.org/blog/2025-05-05-large-scale-ep): 22,300 tokens/s per node at 256
    sequences per GPU of 2,000 tokens and more, 92 ms a step, with half of the batch computed while the other
    half is exchanged. Without that overlap a step takes the sum, with all of it what is left."""
    layout, engine = Parallelism(dp=72, ep=72), load_engine("sglang")
    r = ReplicaSet.of(DEEPSEEK, Precision.of(DEEPSEEK), engine, [(load_gpu("h100-sxm"), layout)])
    lines = {x.name: x.time for x in decode_breakdown(r, 72 * 256.0, 2050.0)}
    step = sum(lines.values())
    assert step - lines["all-reduce"] < 8 * 256 / 22_300 < step
    assert 0.3 < lines["all-reduce"] / step < 0.45


def test_every_attention_rank_has_a_scheduler_of_its_own():
    engine = replace(BARE, sequence_overhead=20e-6)
    for layout, ranks in ((Parallelism(tp=8, ep=8), 1), (Parallelism(dp=8, ep=8), 8)):
        lines = [
            decode_breakdown(
                ReplicaSet.of(DEEPSEEK, BF16, e, [(load_gpu("h200-sxm"), layout)]), 64.0, 1000.0
            )[-1]
            for e in (BARE, engine)
        ]
        assert lines[1].time - lines[0].time == pytest.approx(64 / ranks * 20e-6, rel=1e-6)


def test_the_engines_error_adds_to_that_of_kernels():
    kernels = float(replicas(LLAMA).log_sd[0])
    engine = replace(BARE, log_sd=0.1, family_log_sd=0.2)
    assert float(replicas(LLAMA, engine=engine).log_sd[0]) == pytest.approx(math.hypot(kernels, 0.1, 0.2))
    known = replace(engine, model_factors=((LLAMA.shape, 1.0),))
    assert float(replicas(LLAMA, engine=known).log_sd[0]) == pytest.approx(math.hypot(kernels, 0.1))
    other = replace(engine, model_factors=((MINIMAX.shape, 1.0),))
    assert float(replicas(LLAMA, engine=other).log_sd[0]) == pytest.approx(math.hypot(kernels, 0.1, 0.2))


ESTIMATED = [n for n in gpu_names() if load_gpu(n).calibration.status is CalibrationStatus.ESTIMATED]


@pytest.mark.parametrize("name", ESTIMATED)
def test_an_estimated_gpu_keeps_at_least_its_own_spread(name):
    """Coefficients that nobody measured are wrong together: sharing the time does not average them out."""
    gpu = load_gpu(name)
    dtype = Dtype.BF16 if Dtype.BF16 in gpu.peak_flops else Dtype.FP16
    formats = Precision(weights=dtype, kv_cache=dtype)
    r = ReplicaSet.of(LLAMA, formats, BARE, [(gpu, Parallelism())])
    least = min(gpu.calibration.log_sd.values(), default=FALLBACK_LOG_SD)
    assert least >= 0.2
    assert float(r.log_sd[0]) >= least
    assert float(r.prompt_log_sd[0]) >= least
    measured = replace(gpu, calibration=replace(gpu.calibration, status=CalibrationStatus.FITTED))
    without = ReplicaSet.of(LLAMA, formats, BARE, [(measured, Parallelism())])
    assert float(r.log_sd[0]) == max(float(without.log_sd[0]), least)


def test_the_larger_error_is_planned_with():
    r = ReplicaSet.of(LLAMA, BF16, BARE, [(load_gpu("h100-sxm"), Parallelism(tp=4))], z=0.84)
    larger = max(float(r.log_sd[0]), float(r.prompt_log_sd[0]))
    assert float(r.slowdown[0]) == pytest.approx(math.exp(0.84 * larger))
