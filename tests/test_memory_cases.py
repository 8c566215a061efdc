"""Memory of real deployments: figures from public threads and reports, cited with each test."""

from dataclasses import replace

import pytest

from planner.candidates import build_candidates
from planner.catalog import load_gpu, load_model
from planner.documents.scenario import scenario_from_text
from planner.engines import load_engine
from planner.memory import fewest_gpus, kv_capacity, memory_budgets, tightest
from planner.specs import Dtype, Parallelism, Phase, Precision
from planner.transformer import kv_bytes, stage_weight_bytes, weight_bytes
from planner.units import GIB

BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
FP8 = Precision(weights=Dtype.FP8, kv_cache=Dtype.BF16)
BLOCK = Precision(weights=Dtype.FP8_BLOCK, kv_cache=Dtype.BF16)
POWERS = (1, 2, 4, 8, 16, 32)


@pytest.fixture
def engine():
    return load_engine("vllm")


@pytest.mark.parametrize(("tp", "gib"), [(1, 58.11), (2, 61.4), (4, 64.0)])
def test_kv_cache_of_llama_8b_at_each_tp(engine, tp, gib):
    """vLLM 0.19 on H100, utilisation 0.95: llm-d-planner's accuracy report v0.19.0. [GiB per GPU]"""
    measured = replace(engine, memory_utilization=0.95)
    model, gpu = load_model("Llama-3.1-8B"), load_gpu("h100-sxm")
    (budget,) = memory_budgets(model, BF16, measured, gpu, Parallelism(tp=tp), 8192, 1024)
    assert budget.kv_cache / GIB == pytest.approx(gib, rel=0.06)


def test_70b_on_two_h100_with_the_default_context(engine):
    """vllm#10517: 131,072 tokens do not fit at TP2, 20,000 do; the full context needs TP4."""
    model, gpu = load_model("Llama-3.1-70B"), load_gpu("h100-sxm")
    for tp, weights, whole, fits in ((2, 65.7, 20.0, False), (4, 32.9, 10.0, True)):
        budget = tightest(memory_budgets(model, BF16, engine, gpu, Parallelism(tp=tp), 2048, 256))
        assert budget.weights / GIB == pytest.approx(weights, rel=0.005)
        per_gpu = float(kv_bytes(model, Dtype.BF16, 131_072)) / tp
        assert per_gpu / GIB == pytest.approx(whole, rel=0.005)
        assert (per_gpu <= budget.kv_cache) is fits
    short = float(kv_bytes(model, Dtype.BF16, 20_000)) / 2
    assert short / GIB == pytest.approx(3.05, rel=0.005)


def test_five_people_with_128k_each(engine):
    """vllm#12400: the KV cache outweighs 8-bit weights."""
    model = load_model("Llama-3.3-70B-Instruct")
    assert weight_bytes(model, FP8) / GIB == pytest.approx(67.7, rel=0.02)
    people = 5 * float(kv_bytes(model, Dtype.BF16, 131_072))
    assert people / GIB == pytest.approx(200, rel=0.02)
    assert 5 * float(kv_bytes(model, Dtype.FP8, 131_072)) / GIB == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize(
    ("name", "mib"),
    [("h100-sxm", 81_559), ("a100-80gb-sxm", 81_920), ("l40s", 46_068), ("l4", 23_034)],
)
def test_usable_memory_is_what_the_driver_shows_and_a_little_less(name, mib):
    """nvidia-smi's totals, from modal-client#2797 and brevdev/cloud#140; torch sees up to 5 % less."""
    gpu = load_gpu(name)
    assert 0.95 * mib / 1024 < gpu.memory / GIB <= mib / 1024


def test_deepseek_v3_needs_sixteen_h100(engine):
    """inference-sim#1161: 626.9 GiB in FP8, 78.4 GiB per GPU at TP8 and 39.2 at TP16; bf16 needs 32."""
    model, gpu = load_model("deepseek-ai/DeepSeek-V3"), load_gpu("h100-sxm")
    assert weight_bytes(model, BLOCK) / GIB == pytest.approx(626.9, rel=0.005)
    assert weight_bytes(model, BF16) / GIB == pytest.approx(1249.9, rel=0.005)
    for tp, gib in ((8, 78.4), (16, 39.2)):
        assert weight_bytes(model, BLOCK) / tp / GIB == pytest.approx(gib, rel=0.02)
        # latents are projected on every rank, so that a rank holds a little more than its share
        assert gib < stage_weight_bytes(model, BLOCK, tp, 1)[0] / GIB < 1.03 * gib
    assert fewest_gpus(model, BLOCK, engine, gpu, POWERS) == 16
    assert fewest_gpus(model, BF16, engine, gpu, POWERS) == 32


def test_r1_on_three_a100_nodes_only_with_pipelines():
    """sglang#3640: 24 GPUs hold it as TP8 x PP3, the heaviest stage at 53.8 GiB per GPU; 39.1 at TP32."""
    model = load_model("deepseek-ai/DeepSeek-R1")
    stages = stage_weight_bytes(model, BF16, 8, 3, split=(21, 20, 20))
    assert max(stages) / GIB == pytest.approx(53.8, rel=0.02)
    assert sum(stages) / 3 / GIB == pytest.approx(52.1, rel=0.02)
    assert weight_bytes(model, BF16) / 32 / GIB == pytest.approx(39.1, rel=0.02)
    assert 39.1 < stage_weight_bytes(model, BF16, 32, 1)[0] / GIB < 1.05 * 39.1


def test_a_latent_cache_is_whole_on_every_rank_and_attention_ranks_multiply_it(engine):
    """tpu-inference#1847 and others: 70,272 B per token on each of 8 GPUs; DP8 holds eight times as many."""
    model, gpu = load_model("deepseek-ai/DeepSeek-V3"), load_gpu("b200-sxm")
    tokens = {}
    for layout in (Parallelism(tp=8, ep=8), Parallelism(tp=1, dp=8, ep=8)):
        budgets = memory_budgets(model, BLOCK, engine, gpu, layout, 2048, 256)
        tokens[layout.dp] = kv_capacity(model, BLOCK, engine, layout, budgets)
        assert tokens[layout.dp] / layout.dp == pytest.approx(tightest(budgets).kv_cache / 70_272, rel=1e-3)
    assert 6 < tokens[8] / tokens[1] < 8  # attention is repeated on every rank, and takes some of it


def test_405b_in_8_bits_needs_eight_h100_and_16_bits_sixteen(engine):
    """aiconfigurator#509: 811.7 GB in bf16, 410.1 GB in fp8."""
    model, gpu = load_model("Llama-3.1-405B"), load_gpu("h100-sxm")
    assert weight_bytes(model, BF16) / 1e9 == pytest.approx(811.7, rel=0.005)
    assert weight_bytes(model, FP8) / 1e9 == pytest.approx(410.1, rel=0.005)
    assert fewest_gpus(model, FP8, engine, gpu, POWERS) == 8
    assert fewest_gpus(model, BF16, engine, gpu, POWERS) == 16


def test_prefill_reserves_prompts_and_decode_whole_sequences():
    """sglang#6860 and #29615: output tokens need room on the decode side only."""
    text = """\
model: meta-llama/Llama-3.1-70B-Instruct
precision: {weights: fp8, kv_cache: fp8}
workload: {request_rate: 1, input_tokens: 1000, output_tokens: 40000}
slo: {ttft_ms: {p99: 5000}, tpot_ms: {p99: 100}}
fleet: [{gpu: h100-sxm, price_per_gpu_hour: 3, max_gpus: 64}]
options: {allowed_tp: [1], max_pp: 1}
"""
    loaded = scenario_from_text(text).scenario
    found = build_candidates(loaded, loaded.services[0], load_engine("vllm"))
    reasons = {r.phase: r.reason for r in found.rejections}
    assert Phase.PREFILL not in reasons
    assert reasons[Phase.DECODE].startswith("KV cache holds")
    assert "the longest sequence needs 41,000" in reasons[Phase.DECODE]
