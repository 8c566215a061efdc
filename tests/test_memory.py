"""What fits: the splits that vLLM printed, and refusals that say by how much."""

from __future__ import annotations

import dataclasses

import pytest

from planner import catalog
from planner.configuration import Configuration, Load, Replicas, predict
from planner.errors import InfeasibleError
from planner.memory import activation_bytes, fewest_gpus, kv_capacity, memory_budgets, tightest
from planner.plan import MemoryBudget
from planner.specs import Dtype, Parallelism, Precision
from planner.transformer import kv_bytes_per_token, stage_weight_bytes
from planner.units import GIB

BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
FP8 = Precision(weights=Dtype.FP8, kv_cache=Dtype.FP8)
ONE = Parallelism(tp=1)


# --------------------------------------------------------------------------------------------
# llm-d-planner, accuracy report v0.19.0: vLLM on one H100 of 79.19 GiB, 0.95 of it used


@pytest.fixture
def measured_engine(vllm):
    return dataclasses.replace(vllm, memory_utilization=0.95, non_torch_single=0.25 * GIB)


def test_kv_tokens_of_the_measured_split(llama_8b, measured_engine):
    """Weights 14.99, activations 1.89 and 0.25 outside torch leave 58.10 GiB: 475,959 tokens."""
    budget = MemoryBudget(
        weights=14.99 * GIB,
        activations=1.89 * GIB,
        reserved=0.25 * GIB,
        kv_cache=(0.95 * 79.19 - 14.99 - 1.89 - 0.25) * GIB,
        usable=0.95 * 79.19 * GIB,
    )
    tokens = kv_capacity(llama_8b, BF16, measured_engine, ONE, (budget,))
    assert tokens == pytest.approx(475_959, abs=measured_engine.block_size)
    assert tokens == pytest.approx(476_016, rel=1e-3)  # what vLLM printed


def test_kv_tokens_from_shapes_alone(llama_8b, h100, measured_engine):
    budgets = memory_budgets(llama_8b, BF16, measured_engine, h100, ONE, 8192, 1024)
    assert budgets[0].weights / GIB == pytest.approx(14.99, rel=5e-3)
    tokens = kv_capacity(llama_8b, BF16, measured_engine, ONE, budgets)
    assert tokens == pytest.approx(475_959, rel=2e-3)


@pytest.mark.parametrize(("name", "gib"), [("meta-llama/Llama-3.1-8B", 1.89), ("Qwen/Qwen2.5-7B", 2.21)])
def test_activations_of_the_measured_models(name, gib, vllm):
    assert activation_bytes(catalog.load_model(name), vllm, 1, 8192, 1024) / GIB == pytest.approx(
        gib, rel=0.02
    )


def test_kv_format_scales_tokens_only(h100, measured_engine):
    """Qwen2.5-7B: 1,096,000 tokens in 16 bits, 2,192,000 in fp8."""
    model = catalog.load_model("Qwen/Qwen2.5-7B")
    budgets = memory_budgets(model, BF16, measured_engine, h100, ONE, 8192, 1024)
    wide = kv_capacity(model, BF16, measured_engine, ONE, budgets)
    half = Precision(weights=Dtype.BF16, kv_cache=Dtype.FP8)
    narrow = kv_capacity(model, half, measured_engine, ONE, budgets)
    assert wide == pytest.approx(1_096_000, rel=5e-3)
    assert narrow / wide == pytest.approx(2.0, rel=1e-4)


def test_parallel_replicas_reserve_more(llama_8b, h100, vllm):
    one, two = (
        memory_budgets(llama_8b, BF16, vllm, h100, Parallelism(tp=tp), 8192, 1024)[0] for tp in (1, 2)
    )
    assert one.reserved / GIB == pytest.approx(0.25)
    assert two.reserved / GIB == pytest.approx(2.1, abs=0.1)  # 2.07 and 2.13 measured
    assert two.usable == one.usable == h100.memory * vllm.memory_utilization


# --------------------------------------------------------------------------------------------
# By hand


def test_activations_are_the_larger_of_two_moments(llama_8b, vllm):
    tokens, sequences = 8192, 1
    feed_forward = 2 * tokens * 4096 * 2 + tokens * 3 * 14336 * 2
    assert activation_bytes(llama_8b, vllm, 1, tokens, sequences) == feed_forward
    sampler = tokens * 4096 * 2 + 1024 * 128256 * vllm.logits_bytes_per_entry
    assert activation_bytes(llama_8b, vllm, 1, tokens, 1024) == sampler
    assert activation_bytes(llama_8b, vllm, 4, tokens, 1024) == sampler  # every rank samples


def test_budget_adds_up(llama_70b, h100, vllm):
    for budget in memory_budgets(llama_70b, FP8, vllm, h100, Parallelism(tp=2, pp=2), 8192, 256):
        used = budget.weights + budget.activations + budget.reserved + budget.kv_cache
        assert used == pytest.approx(budget.usable, rel=1e-12)
        assert budget.fits


def test_the_tightest_stage_decides(llama_8b, h100, vllm):
    layout = Parallelism(pp=4)
    budgets = memory_budgets(llama_8b, BF16, vllm, h100, layout, 8192, 256)
    heaviest = max(stage_weight_bytes(llama_8b, BF16, 1, 4))
    assert tightest(budgets).weights == heaviest
    tokens = kv_capacity(llama_8b, BF16, vllm, layout, budgets)
    per_stage = kv_bytes_per_token(llama_8b, Dtype.BF16) / 4
    assert tokens == tightest(budgets).kv_cache // per_stage // 16 * 16


def test_kv_cache_stops_growing_beyond_the_kv_heads(h100, vllm):
    """28 heads but four KV heads: with TP 8 each is held twice."""
    model = catalog.load_model("Qwen/Qwen2.5-7B")
    four, eight = (
        kv_capacity(
            model,
            BF16,
            vllm,
            Parallelism(tp=tp),
            memory_budgets(model, BF16, vllm, h100, Parallelism(tp=tp), 8192, 256),
        )
        for tp in (4, 8)
    )
    assert four < eight < 1.15 * four


# --------------------------------------------------------------------------------------------
# What does not fit


def test_405b_on_one_h100_is_refused_with_the_shortfall(h100, vllm):
    """https://github.com/ai-dynamo/aiconfigurator/pull/509 printed latencies for it."""
    model = catalog.load_model("meta-llama/Llama-3.1-405B")
    c = Configuration(
        model=model,
        precision=FP8,
        engine=vllm,
        colocated=Replicas(count=1, gpu=h100, parallelism=ONE),
    )
    with pytest.raises(InfeasibleError, match="405B") as refused:
        predict(c, Load(isl=1000, osl=100, concurrency=128))
    budget = memory_budgets(model, FP8, vllm, h100, ONE, vllm.prefill_token_budget, vllm.max_num_seqs)[0]
    assert refused.value.shortfall == f"{-budget.kv_cache / GIB:.1f} GiB per GPU"
    assert -budget.kv_cache / GIB > 300
    assert any("smallest layout that fits is TP8" in hint for hint in refused.value.suggestions)


@pytest.mark.parametrize(("precision", "fewest"), [(FP8, 8), (BF16, 16)])
def test_fewest_gpus_of_405b(h100, vllm, precision, fewest):
    """51.3 GB per GPU at TP 8 in fp8; in 16 bits it takes 16 GPUs."""
    model = catalog.load_model("meta-llama/Llama-3.1-405B")
    assert fewest_gpus(model, precision, vllm, h100, (1, 2, 4, 8, 16)) == fewest
    if precision is FP8:
        assert stage_weight_bytes(model, FP8, 8, 1)[0] / 1e9 == pytest.approx(51.3, abs=0.3)
        assert fewest_gpus(model, precision, vllm, h100, (1, 2, 4)) is None


def test_fp8_weights_of_405b_fit_eight_a100(a100, vllm):
    model = catalog.load_model("meta-llama/Llama-3.1-405B")
    precision = Precision(weights=Dtype.FP8, kv_cache=Dtype.BF16)
    assert fewest_gpus(model, precision, vllm, a100, (1, 2, 4, 8)) == 8


def test_weights_that_do_not_fit_leave_no_tokens(llama_70b, h100, vllm):
    budgets = memory_budgets(llama_70b, BF16, vllm, h100, ONE, 8192, 256)
    assert not tightest(budgets).fits
    assert kv_capacity(llama_70b, BF16, vllm, ONE, budgets) == 0


def test_70b_fp8_on_one_h100_holds_a_few_thousand_tokens(llama_70b, h100, vllm):
    """At 0.90 of memory about 1.5 GiB are left beside 67.7 of weights: no batch of 16 x 300 tokens."""
    engine = dataclasses.replace(vllm, memory_utilization=0.90)
    precision = Precision(weights=Dtype.FP8, kv_cache=Dtype.BF16)
    budgets = memory_budgets(llama_70b, precision, engine, h100, ONE, 2048, 16)
    assert kv_capacity(llama_70b, precision, engine, ONE, budgets) < 16 * 1000
