"""Which sizes and pairs an engine accepts, from cases of people who tried."""

import dataclasses

import pytest

from planner import catalog
from planner.engines import engine_names, load_engine
from planner.engines.legality import (
    EndPoint,
    Use,
    expert_violations,
    legal_tp,
    nearest_legal_tp,
    pair_violation,
    pair_violations,
    parallelism_violations,
    pp_violation,
    tp_violation,
    tp_violations,
    uneven_stages,
    uses,
)
from planner.specs import (
    Attention,
    Dtype,
    FeedForward,
    Layer,
    LayerRun,
    Model,
    PairCheck,
    Parallelism,
    Precision,
)


def model(heads: int, kv_heads: int, intermediate: int, vocab: int = 32000, head_dim: int = 128) -> Model:
    layer = Layer(
        attention=Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim),
        feed_forward=FeedForward(intermediate=intermediate),
    )
    return Model(
        name="m",
        hidden=heads * head_dim,
        layers=(LayerRun(count=32, layer=layer),),
        vocab=vocab,
        tied_embeddings=False,
        max_context=4096,
    )


LLAMA_8B = model(32, 8, 14336, 128256)
QWEN_05B = model(14, 2, 4864, 151936, 64)
R1_DISTILL_7B = model(28, 4, 18944, 152064)
LLAMA_33B = model(52, 52, 17920)
LLAMA2_13B = model(40, 40, 13824)
PHI_4 = model(40, 10, 17920, 100352)


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        # https://github.com/llm-d-incubation/llm-d-planner/pull/280
        (QWEN_05B, (1, 2)),
        # https://github.com/THU-KEG/AdaptThink/issues/1, which wrongly lists 7, 14 and 28
        (R1_DISTILL_7B, (1, 2, 4)),
        # https://github.com/vllm-project/vllm/issues/596
        (LLAMA_33B, (1, 2, 4)),
        (LLAMA2_13B, (1, 2, 4, 8)),
        (LLAMA_8B, (1, 2, 4, 8)),
        # 5 divides heads, KV heads and feed-forward, but not the padded vocabulary
        (PHI_4, (1, 2)),
    ],
)
def test_legal_tensor_parallel_sizes(shape, sizes):
    assert legal_tp(shape) == sizes


@pytest.mark.parametrize(("tp", "nearest"), [(3, 2), (8, 4), (7, 4), (1, 1)])
def test_nearest_legal_size(tp, nearest):
    assert nearest_legal_tp(LLAMA_33B, tp) == nearest


def test_kv_heads_may_be_replicated():
    assert tp_violation(LLAMA_8B, 16) is None
    assert legal_tp(LLAMA_8B, up_to=16) == (1, 2, 4, 8, 16)


@pytest.mark.parametrize(
    ("shape", "tp", "rule", "said"),
    [
        (LLAMA_33B, 8, "tp.heads", "TP 8 does not divide the 52 attention heads"),
        (R1_DISTILL_7B, 7, "tp.kv_heads", "TP 7 and the 4 KV heads do not divide one another"),
        (LLAMA2_13B, 5, "tp.feed_forward", "TP 5 does not divide the feed-forward size 13824"),
        (PHI_4, 5, "tp.vocabulary", "TP 5 does not divide the padded vocabulary 100352"),
    ],
)
def test_refusals_say_why(shape, tp, rule, said):
    violation = tp_violation(shape, tp)
    assert violation is not None
    assert violation.rule == rule
    assert said in violation.reason
    assert violation.source
    assert rule in str(violation)


def test_blocks_of_quantised_weights_are_not_cut():
    shape = model(32, 8, 2816)  # 2,816 / 8 is 352, no multiple of 128
    assert tp_violation(shape, 8) is None
    violation = tp_violation(shape, 8, Dtype.FP8_BLOCK)
    assert violation is not None
    assert violation.rule == "tp.weight_block"


def test_stages_hold_a_layer():
    assert pp_violation(LLAMA_8B, 32) is None
    violation = pp_violation(LLAMA_8B, 33)
    assert violation is not None
    assert "PP 33 exceeds the 32 layers" in violation.reason


def test_what_three_gpus_are_good_for():
    # https://github.com/vllm-project/vllm/issues/596: TP2 with one to spare, or three of TP1
    assert uses(LLAMA_33B, 3) == (Use(tp=2, replicas=1, spare=1), Use(tp=1, replicas=3, spare=0))


def test_stages_that_differ_are_stated():
    assert uneven_stages(LLAMA_8B, 4) == ""
    assert uneven_stages(DEEPSEEK_V3, 4) == "61 layers over 4 pipeline stages: 15 + 15 + 16 + 15"
    assert "61 layers over 3 pipeline stages" in uneven_stages(DEEPSEEK_V3, 3)


# --------------------------------------------------------------------------------------------
# Experts, latents, states

DEEPSEEK_V3 = catalog.load_model("DeepSeek-V3")
QWEN3_235B = catalog.load_model("Qwen3-235B-A22B")
GPT_OSS = catalog.load_model("gpt-oss-120b")
NANO = catalog.load_model("Nemotron-3-Nano-30B-A3B")


def test_latent_attention_is_cut_by_heads():
    assert legal_tp(DEEPSEEK_V3, 32, Dtype.FP8_BLOCK) == (1, 2, 4, 8, 16)  # 2,048 / 32 lies within a block
    assert legal_tp(DEEPSEEK_V3, 32) == (1, 2, 4, 8, 16, 32)
    # https://github.com/sgl-project/sglang/issues/3640
    violation = tp_violation(DEEPSEEK_V3, 24)
    assert violation is not None
    assert violation.reason == "TP 24 does not divide the 128 attention heads"
    assert not parallelism_violations(DEEPSEEK_V3, Parallelism(tp=8, pp=3))


@pytest.mark.parametrize(
    ("tp", "weights", "expert_parallel", "legal"),
    [
        (4, Dtype.FP8_BLOCK, False, True),
        (8, Dtype.FP8_BLOCK, False, False),  # 1,536 / 8 = 192
        (16, Dtype.FP8_BLOCK, False, False),  # 1,536 / 16 = 96
        (16, Dtype.FP8_BLOCK, True, True),  # experts stay whole
        (16, Dtype.BF16, False, True),
        (16, Precision(weights=Dtype.FP8_BLOCK, kv_cache=Dtype.BF16, experts=Dtype.NVFP4), False, True),
        (16, Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16, experts=Dtype.FP8_BLOCK), False, False),
    ],
)
def test_blocks_within_experts(tp, weights, expert_parallel, legal):
    violation = tp_violation(QWEN3_235B, tp, weights, expert_parallel=expert_parallel)
    assert (violation is None) is legal
    if violation is not None:
        assert violation.rule == "tp.weight_block"
        assert f"1536 into {1536 // tp}, within a block of 128" in violation.reason


def test_kernels_of_mxfp4_pad():
    assert legal_tp(GPT_OSS, weights=Dtype.MXFP4) == (1, 2, 4, 8)  # 2,880 / 8 is no multiple of 32


def test_states_are_cut_by_heads_and_groups():
    assert [v.rule for v in tp_violations(NANO, 16)] == ["tp.state_groups"]
    assert legal_tp(NANO) == (1, 2, 4, 8)
    assert {v.rule for v in tp_violations(NANO, 3)} >= {"tp.state_heads", "tp.state_groups", "tp.heads"}


def test_expert_parallelism_says_both_reasons():
    # https://github.com/vllm-project/vllm/issues/52435: 256 experts over 3 ranks, then the heads
    found = parallelism_violations(DEEPSEEK_V3, Parallelism(tp=3, ep=3))
    assert found[0].rule == "tp.heads"
    assert "EP 3 does not divide the 256 experts; 2 redundant would do" in [v.reason for v in found]
    found = parallelism_violations(DEEPSEEK_V3, Parallelism(tp=3, ep=3), redundant_experts=2)
    rules = {v.rule for v in found}
    assert "ep.experts" not in rules
    assert "tp.heads" in rules


def test_legal_expert_parallel_sizes():
    sizes = [n for n in range(1, 33) if not parallelism_violations(DEEPSEEK_V3, Parallelism(tp=n, ep=n))]
    assert sizes == [1, 2, 4, 8, 16, 32]
    assert [v.rule for v in expert_violations(DEEPSEEK_V3, Parallelism(tp=2, ep=4))] == ["ep.ranks"]
    assert not list(expert_violations(DEEPSEEK_V3, Parallelism(tp=2, dp=4, ep=8)))


def test_experts_that_are_not_spread_are_cut_over_all_attention_ranks():
    oss = catalog.load_model("openai/gpt-oss-120b")  # experts of 2,880
    sizes = [n for n in range(1, 17) if not parallelism_violations(oss, Parallelism(dp=n))]
    assert sizes == [n for n in range(1, 17) if 2880 % n == 0]
    broken = parallelism_violations(oss, Parallelism(tp=2, dp=7))
    assert [(v.rule, v.reason) for v in broken] == [
        ("dp.experts", "TP 2 x DP 7 does not divide the experts' size 2880")
    ]
    assert not parallelism_violations(oss, Parallelism(dp=16, ep=16))


def test_dense_models_have_no_ranks_of_experts():
    rules = [v.rule for v in expert_violations(LLAMA_8B, Parallelism(tp=2, ep=2, dp=2))]
    assert rules == ["ep.dense", "dp.dense"]


# --------------------------------------------------------------------------------------------
# Pairs

RULES = load_engine("vllm").pair_rules


def end(tp: int = 1, pp: int = 1, **changes: object) -> EndPoint:
    point = EndPoint(
        parallelism=Parallelism(tp=tp, pp=pp),
        gpu="h100-sxm",
        vendor="nvidia",
        kv_cache=Dtype.FP8,
        block_size=16,
    )
    return dataclasses.replace(point, **changes)


def rule_of(prefill: EndPoint, decode: EndPoint) -> str | None:
    violation = pair_violation(prefill, decode, LLAMA_8B, RULES)
    return None if violation is None else violation.rule


@pytest.mark.parametrize(
    ("prefill", "decode", "rule"),
    [
        # https://github.com/llm-d/llm-d/pull/2187, https://github.com/vllm-project/vllm/pull/18833
        (end(8), end(4), "pair.tp_fan_out"),
        (end(1), end(4), None),
        (end(4), end(4), None),
        (end(4), end(6), "pair.tp_divides"),
        (end(2), end(2, pp=2), "pair.decode_pp"),
        (end(2, pp=2), end(2), None),
        (end(2, kv_cache=Dtype.BF16), end(2), "pair.kv_dtype"),
        (end(2, vendor="amd", gpu="mi300x"), end(2), "pair.vendor"),
        (end(2, gpu="l40s"), end(2), None),
        (end(2, block_size=16), end(2, block_size=64), None),
        (end(2, block_size=64), end(2, block_size=16), "pair.block_size"),
    ],
)
def test_pairs(prefill, decode, rule):
    assert rule_of(prefill, decode) == rule


def test_all_reasons_are_given():
    found = list(pair_violations(end(8, kv_cache=Dtype.BF16), end(4, pp=2), LLAMA_8B, RULES))
    assert [v.rule for v in found] == ["pair.kv_dtype", "pair.decode_pp", "pair.tp_fan_out"]
    assert all(v.reason and v.source for v in found)


def test_rules_are_data_of_the_engine():
    used = {name: {rule.check for rule in load_engine(name).pair_rules} for name in engine_names()}
    assert set().union(*used.values()) == set(PairCheck)
    assert set(PairCheck) - used["vllm"] == {PairCheck.EQUAL_BLOCK_SIZE, PairCheck.DECODE_PP_MATCHES}
    lenient = [rule for rule in RULES if rule.check is not PairCheck.TP_FAN_OUT]
    assert pair_violation(end(8), end(4), LLAMA_8B, lenient) is None
    assert pair_violation(end(8), end(4), LLAMA_8B, ()) is None


def test_latent_attention_goes_either_way():
    # https://github.com/llm-d/llm-d/pull/2187
    for p, d in ((8, 4), (4, 8)):
        assert pair_violation(end(p), end(d), DEEPSEEK_V3, RULES) is None


def test_hybrids_need_equal_blocks():
    prefill, decode = end(2, block_size=16), end(2, block_size=64)
    violation = pair_violation(prefill, decode, NANO, RULES)
    assert violation is not None
    assert violation.rule == "pair.hybrid_block_size"
    assert pair_violation(decode, decode, NANO, RULES) is None
