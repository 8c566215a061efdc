"""Parameters, bytes and FLOP of published models."""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import catalog
from planner.specs import Attention, Dtype, FeedForward, Layer, LayerRun, Model, Precision
from planner.transformer import (
    attention_flop,
    decode_flop,
    head_flop,
    kv_bytes_per_token,
    kv_heads_per_rank,
    layer_kv_bytes_per_token,
    matrix_flop_per_token,
    padded_vocabulary,
    parameters,
    prefill_flop,
    stage_kv_bytes_per_token,
    stage_layers,
    stage_weight_bytes,
    stages,
    weight_bytes,
)
from planner.units import GIB

GOLDEN = Path(__file__).parent / "golden"
BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
FP8 = Precision(weights=Dtype.FP8, kv_cache=Dtype.FP8)


def shape(
    name: str,
    layers: int,
    hidden: int,
    attention: Attention,
    feed_forward: FeedForward,
    vocab: int,
    tied: bool = False,
) -> Model:
    return Model(
        name=name,
        hidden=hidden,
        layers=(LayerRun(count=layers, layer=Layer(attention=attention, feed_forward=feed_forward)),),
        vocab=vocab,
        tied_embeddings=tied,
        max_context=32768,
    )


QWEN3_4B = shape(
    "Qwen3-4B",
    36,
    2560,
    Attention(heads=32, kv_heads=8, head_dim=128, qk_norm=True),
    FeedForward(intermediate=9728),
    151936,
    tied=True,
)
QWEN25_05B = shape(
    "Qwen2.5-0.5B",
    24,
    896,
    Attention(heads=14, kv_heads=2, head_dim=64, bias=True),
    FeedForward(intermediate=4864),
    151936,
    tied=True,
)
R1_DISTILL_15B = shape(
    "R1-Distill-Qwen-1.5B",
    28,
    1536,
    Attention(heads=12, kv_heads=2, head_dim=128, bias=True),
    FeedForward(intermediate=8960),
    151936,
)
GPT2 = shape(
    "gpt2",
    12,
    768,
    Attention(heads=12, kv_heads=12, head_dim=64, bias=True),
    FeedForward(intermediate=3072, gated=False, bias=True),
    50257,
    tied=True,
)


# --------------------------------------------------------------------------------------------
# Parameters


def published() -> list[tuple[str, int]]:
    with (GOLDEN / "model_parameters.csv").open(newline="") as file:
        return [(row["model"], int(row["parameters"])) for row in csv.DictReader(file)]


@pytest.mark.parametrize(("name", "count"), published())
def test_parameters_of_the_catalogue_are_the_published_ones(name, count):
    assert parameters(catalog.load_model(name)) == count


@pytest.mark.parametrize(("name", "billions"), [("8B", 8.03), ("70B", 70.6), ("405B", 405.9)])
def test_parameters_of_llama(name, billions):
    found = parameters(catalog.load_model(f"meta-llama/Llama-3.1-{name}"))
    assert found / 1e9 == pytest.approx(billions, rel=1e-3)


def test_tied_embeddings_count_once():
    """https://github.com/huggingface/transformers/pull/43455 and others."""
    assert parameters(QWEN3_4B) == 4_022_468_096
    assert parameters(QWEN25_05B) == 494_032_768
    untied = 630_167_424
    assert untied - parameters(QWEN25_05B) == QWEN25_05B.vocab * QWEN25_05B.hidden


def test_a_tied_head_still_computes():
    assert head_flop(QWEN3_4B) == 2 * 2560 * 151936
    assert decode_flop(QWEN3_4B, 0) == matrix_flop_per_token(QWEN3_4B) + head_flop(QWEN3_4B)


def test_biases_and_plain_feed_forward_by_hand():
    attention = 4 * 768 * 768 + 3 * 768
    feed_forward = 2 * 768 * 3072 + 3072 + 768
    # two norms of one vector each per layer: gpt2's own have a bias too, and positions are not counted
    body = 12 * (attention + feed_forward + 2 * 768)
    assert parameters(GPT2) == body + 50257 * 768 + 768


# --------------------------------------------------------------------------------------------
# KV cache


@pytest.mark.parametrize(
    ("model", "expected", "wrong"),
    [
        # https://github.com/LMCache/LMCache/issues/688: head_dim is not hidden / heads
        (QWEN3_4B, 147_456, 92_160),
        (catalog.load_model("Qwen/Qwen3-32B"), 262_144, 163_840),
        # https://github.com/vllm-project/vllm/issues/14350: KV heads, not the hidden size
        (R1_DISTILL_15B, 28_672, 172_032),
        # https://github.com/ai-dynamo/aiconfigurator/pull/1523: as many KV heads as heads
        (GPT2, 36_864, 0),
        (catalog.load_model("meta-llama/Llama-3.1-70B"), 327_680, 0),
    ],
    ids=lambda value: value.name if isinstance(value, Model) else "",
)
def test_kv_bytes_per_token(model, expected, wrong):
    assert kv_bytes_per_token(model, Dtype.BF16) == expected != wrong
    assert kv_bytes_per_token(model, Dtype.FP8) == expected / 2


def test_a_sequence_of_4096_tokens_by_hand():
    assert 4096 * kv_bytes_per_token(R1_DISTILL_15B, Dtype.FP16) == pytest.approx(117.4e6, rel=1e-3)


def test_kv_heads_are_replicated_beyond_their_number():
    attention = Attention(heads=32, kv_heads=2, head_dim=128)
    assert [kv_heads_per_rank(attention, tp) for tp in (1, 2, 4, 8)] == [2, 1, 1, 1]
    layer = Layer(attention=attention, feed_forward=FeedForward(intermediate=8))
    per_rank = [layer_kv_bytes_per_token(layer, Dtype.BF16, tp) for tp in (1, 2, 4, 8)]
    assert per_rank == [1024.0, 512.0, 512.0, 512.0]


# --------------------------------------------------------------------------------------------
# Weights and stages


def test_weights_of_70b_on_two_gpus(llama_70b):
    """https://github.com/vllm-project/vllm/issues/10517: 65.7 GiB each; 131,072 tokens take 20 GiB each."""
    assert stage_weight_bytes(llama_70b, BF16, 2, 1)[0] / GIB == pytest.approx(65.7, abs=0.06)
    per_token = stage_kv_bytes_per_token(llama_70b, Dtype.BF16, 2, 1)[0]
    assert 131_072 * per_token / GIB == pytest.approx(20.0, abs=0.01)
    assert 20_000 * per_token / GIB == pytest.approx(3.05, abs=0.01)
    four = stage_weight_bytes(llama_70b, BF16, 4, 1)[0]
    assert four / GIB == pytest.approx(32.9, abs=0.06)


def test_fp8_weights_of_70b():
    """https://github.com/vllm-project/vllm/issues/12400: 67.7 GiB; five long contexts take 200 or 100."""
    model = catalog.load_model("meta-llama/Llama-3.3-70B-Instruct")
    assert weight_bytes(model, FP8) / GIB == pytest.approx(67.7, abs=0.05)
    contexts = 5 * 131_072
    assert contexts * kv_bytes_per_token(model, Dtype.BF16) / GIB == 200
    assert contexts * kv_bytes_per_token(model, Dtype.FP8) / GIB == 100


@pytest.mark.parametrize(("precision", "gigabytes"), [(BF16, 811.7), (FP8, 410.1)])
def test_weights_of_405b(precision, gigabytes):
    """https://github.com/ai-dynamo/aiconfigurator/pull/509."""
    model = catalog.load_model("meta-llama/Llama-3.1-405B")
    assert weight_bytes(model, precision) / 1e9 == pytest.approx(gigabytes, rel=1e-3)


def test_the_heaviest_pipeline_stage_of_8b(llama_8b):
    """llm-d-planner, accuracy report: 4.26 GiB measured; eight layers and a table are 4.23, the mean 3.74."""
    sizes = [size / GIB for size in stage_weight_bytes(llama_8b, BF16, 1, 4)]
    assert max(sizes) == pytest.approx(4.23, abs=0.01)
    assert sum(sizes) / 4 == pytest.approx(3.74, abs=0.01)
    assert sizes[0] == pytest.approx(sizes[3], rel=1e-4)
    assert sizes[1] == sizes[2] < sizes[0]


def test_stages_hold_every_weight_once(llama_8b):
    whole = weight_bytes(llama_8b, BF16)
    for pp in (2, 4, 8):
        assert sum(stage_weight_bytes(llama_8b, BF16, 1, pp)) == pytest.approx(whole, rel=1e-12)


def test_a_tied_table_is_held_by_both_ends_of_a_pipeline():
    table = padded_vocabulary(QWEN3_4B, 1) * QWEN3_4B.hidden * 2
    together, apart = (sum(stage_weight_bytes(QWEN3_4B, BF16, 1, pp)) for pp in (1, 2))
    assert apart - together == table


@given(st.integers(1, 130), st.integers(1, 16))
@settings(deadline=None)
def test_stage_layers_add_up_and_differ_by_one(layers, pp):
    if pp > layers:
        return
    sizes = stage_layers(layers, pp)
    assert sum(sizes) == layers
    assert len(sizes) == pp
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes) or len(set(sizes)) == 1


def test_stages_cut_runs_of_different_layers():
    narrow, wide = (
        Layer(
            attention=Attention(heads=4, kv_heads=kv, head_dim=64), feed_forward=FeedForward(intermediate=512)
        )
        for kv in (1, 4)
    )
    model = Model(
        name="two kinds",
        hidden=256,
        layers=(LayerRun(count=3, layer=narrow), LayerRun(count=5, layer=wide)),
        vocab=1000,
        tied_embeddings=False,
        max_context=4096,
    )
    assert [[(count, layer is narrow) for count, layer in stage] for stage in stages(model, 2)] == [
        [(3, True), (1, False)],
        [(4, False)],
    ]


def test_tensor_parallel_weights_shrink_but_vectors_do_not(llama_8b):
    sizes = [stage_weight_bytes(llama_8b, BF16, tp, 1)[0] for tp in (1, 2, 4, 8)]
    for one, two in pairwise(sizes):
        assert one / 2 < two < one / 2 * 1.01


# --------------------------------------------------------------------------------------------
# Work


def test_prefill_of_70b_at_100_requests_needs_23_pflops(llama_70b, h100):
    """Two FLOP per weight, 1,450 tokens, 100 times a second: never one H100."""
    per_second = 100 * float(prefill_flop(llama_70b, 1450))
    assert per_second / 1e15 == pytest.approx(20.2, rel=0.02)
    assert per_second > 10 * max(h100.peak_flops.values())


def test_cached_tokens_are_not_computed_but_attended(llama_8b):
    whole, cached = float(prefill_flop(llama_8b, 4000)), float(prefill_flop(llama_8b, 4000, 1024))
    saved = 1024 * matrix_flop_per_token(llama_8b) + attention_flop(llama_8b, 1024**2 / 2)
    assert whole - cached == pytest.approx(saved, rel=1e-9)


def test_matrix_flop_is_two_per_weight(llama_8b):
    body = parameters(llama_8b) - 2 * 128256 * 4096 - 65 * 4096
    assert matrix_flop_per_token(llama_8b) == 2 * body
