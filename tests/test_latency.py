"""Time of steps: sums of their operators, monotone in what is asked, equal one by one and together."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import catalog
from planner.collectives import PIPELINE_OVERHEAD
from planner.configuration import Configuration, Load, Replicas, predict
from planner.engines import estimated_engine, load_engine
from planner.latency import (
    Companions,
    decode_breakdown,
    decode_step_time,
    padded_batch,
    prefill_breakdown,
    prompt_time,
)
from planner.operators import ReplicaSet
from planner.roofline import GemmKernel, gemm_time, within_peaks
from planner.specs import Dtype, Parallelism, Precision
from planner.transformer import kv_bytes_per_token, prefill_flop, weight_bytes

BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
FP8 = Precision(weights=Dtype.FP8, kv_cache=Dtype.FP8)
LAYOUTS = (
    ("h100-sxm", Parallelism(tp=1)),
    ("h100-sxm", Parallelism(tp=4)),
    ("a100-80gb-sxm", Parallelism(tp=2, pp=2)),
    ("l40s", Parallelism(tp=2)),
    ("b200-sxm", Parallelism(tp=1, pp=4)),
)
LLAMA_8B = catalog.load_model("meta-llama/Llama-3.1-8B")
VLLM = load_engine("vllm")


def replicas(*layouts: tuple[str, Parallelism], model=LLAMA_8B, engine=VLLM, z: float = 0.0) -> ReplicaSet:
    return ReplicaSet.of(model, BF16, engine, [(catalog.load_gpu(gpu), p) for gpu, p in layouts], z)


ALL = replicas(*LAYOUTS)
ONE = replicas(LAYOUTS[0])


def host(layout: Parallelism, sequences: float) -> float:
    """Host time of a step: every stage of a pipeline prepares it, once and for each sequence. [s]"""
    return layout.pp * VLLM.step_overhead + sequences * VLLM.sequence_overhead


def step(batch: float, context: float = 1000.0, r: ReplicaSet = ONE) -> float:
    return float(decode_step_time(r, batch, context)[0])


def prompt(query: float, cached: float = 0.0, budget: float = 8192.0, **kwargs: float) -> float:
    return float(prompt_time(ONE, query, cached, budget, **kwargs).service[0])


# --------------------------------------------------------------------------------------------
# Sums


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("batch", [1.0, 37.0, 256.0])
def test_decode_breakdown_adds_up_to_the_step(layout, batch):
    r = replicas(layout)
    lines = decode_breakdown(r, batch, 1500.0)
    assert sum(line.time for line in lines) == pytest.approx(step(batch, 1500.0, r), rel=1e-12)
    assert all(line.time >= 0 for line in lines)
    assert lines[-1].name == "host"
    assert lines[-1].time == pytest.approx(host(layout[1], batch), rel=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("query", [100.0, 2048.0, 9000.0])
def test_prefill_breakdown_adds_up_to_the_prompt(layout, query):
    r = replicas(layout)
    lines = prefill_breakdown(r, query, 500.0, 2048.0)
    time = prompt_time(r, query, 500.0, 2048.0)
    assert sum(line.time for line in lines) == pytest.approx(float(time.service[0]), rel=1e-12)
    assert lines[-1].time == pytest.approx(float(time.steps[0]) * host(layout[1], 1.0), rel=1e-6)


def test_decode_step_of_one_gpu_by_its_parts():
    """The four matrix products of a layer on 64 tokens are what the break-down says they are."""
    kernel = GemmKernel.of(catalog.load_gpu("h100-sxm"), Dtype.BF16)
    lines = {line.name: line.time for line in decode_breakdown(ONE, 64.0, 1000.0)}
    scale = ONE.engine.decode_scale

    def product(n: int, k: int) -> float:
        return scale * float(gemm_time(within_peaks(kernel, scale), 64, n, k))

    assert lines["qkv projection"] == pytest.approx(32 * product(6144, 4096), rel=1e-9)
    assert lines["output projection"] == pytest.approx(32 * product(4096, 4096), rel=1e-9)
    assert lines["feed-forward up"] == pytest.approx(32 * product(28672, 4096), rel=1e-9)
    assert lines["feed-forward down"] == pytest.approx(32 * product(4096, 14336), rel=1e-9)
    assert lines["head"] == pytest.approx(product(128256, 4096), rel=1e-9)
    assert "all-reduce" not in lines


def test_many_replicas_at_once_equal_one_by_one():
    batch = np.array([[1.0], [40.0], [300.0], [700.0]])
    together = decode_step_time(ALL, batch, 1234.0)
    query = np.array([[10.0], [3000.0], [20000.0]])
    prompts = prompt_time(ALL, query, 200.0, 2048.0, Companions(2.0, 500.0, 1e5), 30.0, 900.0)
    for j, layout in enumerate(LAYOUTS):
        r = replicas(layout)
        for i in range(len(batch)):
            assert together[i, j] == pytest.approx(step(float(batch[i, 0]), 1234.0, r), rel=1e-13)
        for i in range(len(query)):
            one = prompt_time(r, float(query[i, 0]), 200.0, 2048.0, Companions(2.0, 500.0, 1e5), 30.0, 900.0)
            assert prompts.service[i, j] == pytest.approx(float(one.service[0]), rel=1e-13)
            assert prompts.stolen[i, j] == pytest.approx(float(one.stolen[0]), rel=1e-13)


# --------------------------------------------------------------------------------------------
# Decode


@given(st.integers(1, 900), st.integers(1, 900), st.floats(1, 1e5), st.floats(1, 1e5))
@settings(max_examples=60, deadline=None)
def test_decode_step_grows_with_batch_and_context(b0, b1, c0, c1):
    small, large = sorted((b0, b1))
    short, long = sorted((c0, c1))
    low, high = decode_step_time(ALL, float(small), short), decode_step_time(ALL, float(large), long)
    assert np.all(low <= high * (1 + 1e-12))


@given(st.integers(1, 512), st.floats(100, 8000))
@settings(max_examples=60, deadline=None)
def test_decode_step_reads_weights_and_cache_no_faster_than_the_datasheet(batch, context):
    needed = weight_bytes(LLAMA_8B, BF16) - 128256 * 4096 * 2  # the input table is not read whole
    needed += batch * context * kv_bytes_per_token(LLAMA_8B, Dtype.BF16)
    bandwidth = np.array([catalog.load_gpu(g).hbm_bandwidth * p.tp for g, p in LAYOUTS])
    pp = np.array([p.pp for _, p in LAYOUTS])
    # a pipeline's step reads one micro-batch's cache on every stage, one stage after the other
    cache = batch * context * kv_bytes_per_token(LLAMA_8B, Dtype.BF16)
    floor = (needed - cache + cache / pp) / bandwidth
    assert np.all(decode_step_time(ALL, float(batch), context) >= floor / 1.02)


def test_batches_are_padded_to_the_captured_sizes():
    assert padded_batch(VLLM, np.array([0, 0.5, 1, 2, 3, 9, 16, 17, 257, 512, 513, 700])).tolist() == [
        0, 1, 1, 2, 4, 16, 16, 24, 272, 512, 513, 700,
    ]  # fmt: skip


def test_a_padded_step_pays_for_the_matrices_but_not_for_the_attention():
    lines = [{x.name: x.time for x in decode_breakdown(ONE, b, 4000.0)} for b in (17.0, 24.0)]
    assert lines[0]["feed-forward up"] == lines[1]["feed-forward up"]
    assert lines[0]["decode attention"] < lines[1]["decode attention"]


def test_beyond_the_largest_graph_a_step_runs_eagerly():
    beyond = step(513.0) - step(512.0)
    assert beyond > 32 * VLLM.eager_overhead
    assert beyond == pytest.approx(32 * VLLM.eager_overhead, rel=0.2)  # and one more sequence


def test_slowdown_multiplies_everything():
    slow = replicas(LAYOUTS[0], z=1.0)
    factor = float(np.exp(max(slow.log_sd[0], slow.prompt_log_sd[0])))
    assert step(64.0, r=slow) == pytest.approx(factor * step(64.0), rel=1e-12)
    assert float(prompt_time(slow, 1000.0, 0.0, 8192.0).service[0]) == pytest.approx(factor * prompt(1000.0))


def test_estimated_profiles_are_less_certain():
    assert VLLM.log_sd < float(replicas(LAYOUTS[0]).log_sd[0]) < 0.2
    for name in ("mi300x", "l4", "a10g"):
        assert float(replicas((name, Parallelism())).log_sd[0]) >= 0.2


def test_tensor_parallel_helps_more_on_nvlink_than_on_pcie():
    def gain(gpu: str) -> float:
        one, two = (replicas((gpu, Parallelism(tp=tp))) for tp in (1, 2))
        return float(prompt_time(one, 4000.0, 0.0, 8192.0).service[0]) / float(
            prompt_time(two, 4000.0, 0.0, 8192.0).service[0]
        )

    assert 1.5 < gain("h100-sxm") < 2.0
    assert gain("l40s") < gain("h100-sxm")


# --------------------------------------------------------------------------------------------
# Pipelines


def test_a_pipeline_adds_hand_overs_and_shares_the_batch():
    """Every stage runs the micro-batch B / pp, and prepares it; a step passes all of them."""
    one = replicas(("h100-sxm", Parallelism(pp=1)))
    four = replicas(("h100-sxm", Parallelism(pp=4)))
    # hidden state and residual of a token, thrice over 450 GB/s of which 0.7299 are attained
    byte = 3 * 4096 * 4 / (450e9 * 0.7299)
    hand_overs = 3 * PIPELINE_OVERHEAD + 16 * byte
    decode = one.engine.decode_scale * hand_overs + host(Parallelism(pp=4), 64.0)
    decode -= host(Parallelism(), 16.0)
    assert step(64.0, r=four) == pytest.approx(step(16.0, r=one) + decode, rel=1e-12)
    hand_overs = 3 * PIPELINE_OVERHEAD + 1000 * byte
    more = one.engine.prefill_scale * hand_overs + 3 * VLLM.step_overhead
    whole = float(prompt_time(one, 1000.0, 0.0, 8192.0).service[0])
    assert float(prompt_time(four, 1000.0, 0.0, 8192.0).service[0]) == pytest.approx(whole + more, rel=1e-12)


# --------------------------------------------------------------------------------------------
# Prompts


def test_a_prompt_computes_no_faster_than_the_datasheet():
    for isl in (100.0, 1450.0, 30000.0):
        flop = float(prefill_flop(LLAMA_8B, isl))
        peak = np.array([catalog.load_gpu(g).peak_flops[Dtype.BF16] * p.tp for g, p in LAYOUTS])
        assert np.all(prompt_time(ALL, isl, 0.0, 8192.0).service >= flop / peak / 1.02)


@given(st.floats(1, 30000), st.floats(1, 30000))
@settings(max_examples=60, deadline=None)
def test_prompt_time_grows_with_the_prompt(a, b):
    short, long = sorted((a, b))
    assert np.all(
        prompt_time(ALL, short, 0.0, 2048.0).service
        <= prompt_time(ALL, long, 0.0, 2048.0).service * (1 + 1e-9)
    )


@given(st.floats(1, 30000), st.floats(0, 30000))
@settings(max_examples=60, deadline=None)
def test_cached_tokens_ahead_cost_attention_only(query, cached):
    assert prompt(query, cached) >= prompt(query, 0.0) * (1 - 1e-12)


@pytest.mark.parametrize("isl", [500.0, 4000.0, 20000.0])
@pytest.mark.parametrize("hit", [0.1, 0.5, 0.9])
def test_a_prefix_hit_saves_time(isl, hit):
    assert prompt(isl - hit * isl, hit * isl) < prompt(isl)


def test_steps_of_a_prompt():
    queries = np.array([[1.0], [2047.0], [2048.0], [2049.0], [4096.0], [5000.0]])
    assert prompt_time(ONE, queries, 0.0, 2048.0).steps.ravel().tolist() == [1, 1, 1, 2, 2, 3]
    with_decodes = prompt_time(ONE, 2048.0, 0.0, 2048.0, decode_batch=48.0, context=500.0)
    assert with_decodes.steps.item() == 2  # decode tokens take their share of the budget first


@pytest.mark.parametrize("multiple", [1, 2, 4])
def test_a_chunk_more_costs_its_launches_only(multiple):
    """Beyond a multiple of the chunk comes one more pass over the weights, not a jump of the whole."""
    at, after = (prompt(multiple * 2048.0 + extra, budget=2048.0) for extra in (0.0, 1.0))
    pass_over_weights = prompt(1.0, multiple * 2048.0, budget=2048.0)
    assert 0 < after - at <= 1.05 * pass_over_weights


@given(st.floats(1, 20000), st.floats(0, 400), st.sampled_from([512.0, 2048.0, 8192.0]))
@settings(max_examples=100, deadline=None)
def test_a_prompt_never_speeds_up_decoding(query, batch, budget):
    time = prompt_time(ALL, query, 0.0, budget, decode_batch=batch, context=1000.0)
    assert np.all(time.stolen >= 0)
    assert np.all(time.stolen <= time.service * (1 + 1e-12))


def test_a_prompt_beside_decodes_takes_the_steps_of_both():
    batch, context = 48.0, 1000.0
    time = prompt_time(ONE, 1000.0, 0.0, 2048.0, decode_batch=batch, context=context)
    alone, decode = prompt(1000.0), step(batch, context)
    assert max(alone, decode) < float(time.service[0]) < alone + decode
    assert float(time.service[0]) == pytest.approx(decode + float(time.stolen[0]), rel=0.01)


def test_companions_share_a_step():
    """Four prompts of 100 tokens in one step: far less than four steps, no less than one."""
    one = prompt(100.0)
    four = float(prompt_time(ONE, 100.0, 0.0, 8192.0, Companions(3.0, 100.0, 5000.0)).service[0])
    assert one < four < 2 * one


# --------------------------------------------------------------------------------------------
# Measured


def measured_rows() -> list[dict[str, str]]:
    """vLLM rows of Llama-3.1-70B in FP8 on H100, colocated, each configuration once."""
    with Path(os.environ["PLANNER_MEASURED"]).open(newline="") as file:
        return [
            row
            for row in csv.DictReader(file)
            if (row["backend"], row["model_path"], row["system"], row["precision"], row["mode"])
            == ("vllm", "meta-llama/Llama-3.1-70B", "h100_sxm", "fp8", "agg")
        ]


@pytest.mark.shared
@pytest.mark.skipif(
    "PLANNER_MEASURED" not in os.environ, reason="PLANNER_MEASURED names no file of end-to-end measurements"
)
def test_tpot_of_measured_configurations(h100):
    """Closed loop; random lengths are 0.8 to 1.0 of the nominal ones. No constant is fitted to these rows."""
    model = catalog.load_model("meta-llama/Llama-3.1-70B")
    errors = []
    for row in measured_rows():
        configuration = Configuration(
            model=model,
            precision=FP8,
            engine=estimated_engine("vllm"),
            colocated=Replicas(count=1, gpu=h100, parallelism=Parallelism(tp=int(float(row["tp_size"])))),
        )
        load = Load(
            isl=0.9 * float(row["isl"]), osl=0.9 * float(row["osl"]), concurrency=float(row["concurrency"])
        )
        errors.append(predict(configuration, load).tpot / (float(row["silicon_tpot_ms"]) * 1e-3) - 1)
    assert len(errors) >= 20
    assert float(np.median(np.abs(errors))) < 0.08
