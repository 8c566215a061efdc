"""Which sizes and pairs an engine accepts, from cases of people who tried."""

import dataclasses

import pytest

from planner.engines.legality import (
    EndPoint,
    legal_tp,
    nearest_legal_tp,
    pair_violation,
    pair_violations,
    pp_violation,
    tp_violation,
)
from planner.specs import Attention, Dtype, FeedForward, Layer, LayerRun, Model, Parallelism


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


# --------------------------------------------------------------------------------------------
# Pairs


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
    violation = pair_violation(prefill, decode, LLAMA_8B)
    return None if violation is None else violation.rule


@pytest.mark.parametrize(
    ("prefill", "decode", "rule"),
    [
        # https://github.com/llm-d/llm-d/pull/2187, https://github.com/vllm-project/vllm/pull/18833
        (end(8), end(4), "nixl.tp_fan_out"),
        (end(1), end(4), None),
        (end(4), end(4), None),
        (end(4), end(6), "nixl.tp_divides"),
        (end(2), end(2, pp=2), "nixl.decode_pp"),
        (end(2, pp=2), end(2), None),
        (end(2, kv_cache=Dtype.BF16), end(2), "nixl.kv_dtype"),
        (end(2, vendor="amd", gpu="mi300x"), end(2), "nixl.vendor"),
        (end(2, gpu="l40s"), end(2), None),
        (end(2, block_size=16), end(2, block_size=64), None),
        (end(2, block_size=64), end(2, block_size=16), "nixl.block_size"),
    ],
)
def test_pairs(prefill, decode, rule):
    assert rule_of(prefill, decode) == rule


def test_all_reasons_are_given():
    found = list(pair_violations(end(8, kv_cache=Dtype.BF16), end(4, pp=2), LLAMA_8B))
    assert [v.rule for v in found] == ["nixl.kv_dtype", "nixl.decode_pp", "nixl.tp_fan_out"]
    assert all(v.reason and v.source for v in found)
