"""Shapes from config.json: what people's files look like, and what must be refused."""

import json
from typing import Any

import pytest

from planner.documents.model_config import NESTED, load_model_config, model_from_config, parse_model_config
from planner.errors import SpecError
from planner.specs import Dtype, Model

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-05,
}
QWEN3_4B: dict[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 2560,
    "head_dim": 128,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 36,
}
QWEN25_05B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "sliding_window": 32768,
    "max_window_layers": 21,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "n_positions": 1024,
    "n_ctx": 1024,
    "vocab_size": 50257,
}
OPT_1B: dict[str, Any] = {
    "model_type": "opt",
    "hidden_size": 2048,
    "ffn_dim": 8192,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "vocab_size": 50272,
    "word_embed_proj_dim": 2048,
    "torch_dtype": "float16",
}


def model_of(config: dict[str, Any], **changes: Any) -> Model:
    return model_from_config({**config, **changes}, "m", "config.json")


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k not in keys}


def kv_bytes(model: Model) -> int:
    """Of one token in 16 bits. [B]"""
    return sum(
        run.count * 2 * run.layer.attention.kv_heads * run.layer.attention.head_dim * 2
        for run in model.layers
    )


def refused(config: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        model_from_config(config, "m", "config.json")
    return str(caught.value)


# --------------------------------------------------------------------------------------------
# Shapes


def test_llama():
    model = model_of(LLAMA_8B)
    layer = model.layers[0].layer
    assert (model.hidden, model.num_layers, model.vocab, model.max_context) == (4096, 32, 128256, 131072)
    assert (layer.attention.heads, layer.attention.kv_heads, layer.attention.head_dim) == (32, 8, 128)
    assert (layer.feed_forward.intermediate, layer.feed_forward.gated) == (14336, True)
    assert not layer.attention.bias
    assert not layer.attention.qk_norm
    assert layer.attention.window is None
    assert model.norms_per_layer == 2
    assert not model.tied_embeddings
    assert model.checkpoint_dtype is Dtype.BF16


def test_explicit_head_dim_wins():
    # https://github.com/LMCache/LMCache/issues/2132: hidden / heads gives 92,160 bytes per token.
    model = model_of(QWEN3_4B)
    assert kv_bytes(model) == 147_456
    assert model.layers[0].layer.attention.qk_norm
    assert model.tied_embeddings


def test_null_head_dim_is_absent():
    assert kv_bytes(model_of(LLAMA_8B, head_dim=None)) == 131_072


def test_absent_kv_heads_are_multi_head():
    model = model_of(without(LLAMA_8B, "num_key_value_heads"), intermediate_size=11008, vocab_size=32000)
    assert kv_bytes(model) == 524_288


def test_grouped_heads_not_hidden_size():
    # https://github.com/vllm-project/vllm/issues/14350: 28,672 bytes per token, not 172,032.
    model = model_of(
        QWEN25_05B,
        hidden_size=1536,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        intermediate_size=8960,
    )
    assert kv_bytes(model) == 28_672


def test_qwen2_has_biases_its_config_does_not_mention():
    attention = model_of(QWEN25_05B).layers[0].layer.attention
    assert attention.bias
    assert attention.window is None  # use_sliding_window is false


@pytest.mark.parametrize("section", NESTED)
def test_nested_configurations(section):
    config = {"model_type": "wrapper", section: LLAMA_8B, "vision_config": {"hidden_size": 1024}}
    assert model_of(config).num_layers == 32


def test_deeper_nesting():
    assert model_of({"thinker_config": {"text_config": QWEN3_4B}}).num_layers == 36


def test_outer_flags_of_nested_configurations_count():
    inner = without(QWEN3_4B, "tie_word_embeddings", "torch_dtype")
    model = model_of(
        {"model_type": "w", "text_config": inner, "tie_word_embeddings": True, "dtype": "float16"}
    )
    assert model.tied_embeddings
    assert model.checkpoint_dtype is Dtype.FP16


def test_gpt2_names():
    model = model_of(GPT2)
    feed_forward = model.layers[0].layer.feed_forward
    assert kv_bytes(model) == 36_864
    assert model.max_context == 1024
    assert model.tied_embeddings
    assert (feed_forward.intermediate, feed_forward.gated, feed_forward.bias) == (3072, False, True)


def test_opt_names():
    model = model_of(OPT_1B)
    assert kv_bytes(model) == 196_608
    assert model.layers[0].layer.feed_forward.intermediate == 8192
    assert model.checkpoint_dtype is Dtype.FP16


def test_uniform_window_is_kept():
    config = {**LLAMA_8B, "model_type": "mistral", "max_position_embeddings": 32768}
    assert model_of(config, sliding_window=4096).layers[0].layer.attention.window == 4096
    assert model_of(config, sliding_window=None).layers[0].layer.attention.window is None
    assert model_of(config, sliding_window=32768).layers[0].layer.attention.window is None


@pytest.mark.parametrize(
    ("positions", "scaling", "context"),
    [
        (131072, None, 131072),
        (131072, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        (32768, {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        (163840, {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, 163840),
        (4096, {"type": "linear", "factor": 4}, 16384),
        (131072, {"rope_type": "llama3", "factor": 8, "original_max_position_embeddings": 8192}, 131072),
        (131072, {"type": "longrope", "long_factor": [1.0]}, 131072),
        (202752, {"rope_type": "default", "rope_theta": 1e6}, 202752),
    ],
)
def test_contexts_are_what_an_engine_admits(positions, scaling, context):
    assert model_of(LLAMA_8B, max_position_embeddings=positions, rope_scaling=scaling).max_context == context


def test_other_keys_of_the_context():
    assert model_of(LLAMA_8B, max_position_embeddings=8192, model_max_length=131072).max_context == 131072
    scaling = {"rope_type": "yarn", "factor": "x"}
    assert "rope_scaling: must have a factor > 0" in refused({**LLAMA_8B, "rope_scaling": scaling})


def test_long_windows_are_none():
    config = {**QWEN3_4B, "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 10}
    runs = model_of(config).layers
    assert [(run.count, run.layer.attention.window) for run in runs] == [(10, None), (26, 4096)]
    assert model_of({**config, "sliding_window": 40960}).layers[0].count == 36


# --------------------------------------------------------------------------------------------
# What is refused


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    ],
)
def test_no_number_has_a_default(key):
    message = refused(without(LLAMA_8B, key))
    assert f"{key}: is missing" in message
    for place in ("text_config", "llm_config", "language_config", "thinker_config"):
        assert place in message


def test_an_unknown_shape_names_everything_missing():
    message = refused({"model_type": "mystery", "blocks": 32, "width": 4096})
    assert "num_hidden_layers: is missing" in message
    assert "hidden_size: is missing" in message
    assert "unknown model_type" in message


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("num_local_experts", 8, "experts"),
        ("n_routed_experts", 256, "experts"),
        ("moe_intermediate_size", 2048, "experts"),
        ("kv_lora_rank", 512, "latent attention"),
        ("index_topk", 2048, "sparse attention"),
        ("full_attention_interval", 4, "layers of linear attention"),
        ("mamba_d_state", 128, "another kind of state-space layer"),
        ("hybrid_override_pattern", "M*", "state-space layers"),
        ("linear_attn_config", {"num_heads": 4}, "layers of Kimi delta attention"),
        ("compress_ratios", [4, 128], "compressed attention"),
        ("sparse_attention_config", {"x": 1}, "attention to blocks of tokens that an index picks"),
        ("hc_mult", 4, "streams beside the residual"),
        ("hidden_size_per_layer_input", 256, "embeddings of every layer"),
        ("is_encoder_decoder", True, "an encoder"),
    ],
)
def test_what_a_family_does_not_have_is_refused_by_its_key(key, value, what):
    assert f"{key}: means {what}, which this version does not model" in refused({**LLAMA_8B, key: value})


def test_switched_off_keys_do_not_count():
    model_of(LLAMA_8B, num_local_experts=1, kv_lora_rank=None, use_cla=False, is_encoder_decoder=False)


def test_an_unknown_type_says_what_it_would_need():
    message = refused({**QWEN3_4B, "model_type": "deepseek_v9", "compress_ratios": [4], "num_hash_layers": 3})
    assert "its layers have to be those of a known one" in message
    assert "did you mean deepseek_v" in message
    assert "compress_ratios: means compressed attention" in message
    assert "num_hash_layers: means hash-routed layers" in message


def test_the_architecture_names_the_family_where_the_type_does_not():
    config = {**LLAMA_8B, "model_type": "mine"}
    assert model_of(config).num_layers == 32
    assert "unknown model_type" in refused({**config, "architectures": ["MineForCausalLM"]})
    # What is around an unknown language model says nothing of it.
    inner = {**QWEN3_4B, "model_type": "mine"}
    assert "unknown model_type" in refused({"model_type": "llama", "text_config": inner})


@pytest.mark.parametrize("value", ["4096", 0, -1, 4096.0, True, [4096]])
def test_numbers_are_whole_and_positive(value):
    assert "hidden_size: must be a whole number > 0" in refused({**LLAMA_8B, "hidden_size": value})


def test_kv_heads_must_divide_heads():
    assert "must divide the 32 attention heads, got 5" in refused({**LLAMA_8B, "num_key_value_heads": 5})


# --------------------------------------------------------------------------------------------
# Files


def test_problems_have_lines():
    text = json.dumps({**LLAMA_8B, "hidden_size": "4096", "kv_lora_rank": 512}, indent=1)
    with pytest.raises(SpecError) as caught:
        parse_model_config(text, "config.json", "m")
    lines = {p.key: p.line for p in caught.value.problems}
    assert text.splitlines()[lines["hidden_size"] - 1].strip().startswith('"hidden_size"')
    assert text.splitlines()[lines["kv_lora_rank"] - 1].strip().startswith('"kv_lora_rank"')


def test_broken_json_has_a_line():
    with pytest.raises(SpecError, match="line 3: is not valid JSON"):
        parse_model_config('{\n "a": 1,\n "b" 2\n}', "config.json", "m")


def test_byte_order_mark_and_crlf(tmp_path):
    text = "\ufeff" + json.dumps(LLAMA_8B, indent=1).replace("\n", "\r\n")
    (tmp_path / "config.json").write_bytes(text.encode())
    model = load_model_config(tmp_path)
    assert kv_bytes(model) == 131_072
    assert model.name == tmp_path.name


def test_keys_that_are_given_twice_are_refused():
    text = '{"hidden_size": 4096,\n"hidden_size": 8192}'
    with pytest.raises(SpecError, match=r"line 2: hidden_size: duplicate key, first given on line 1"):
        parse_model_config(text, "config.json", "m")


@pytest.mark.parametrize(
    "text",
    ["", "null", "3", '"x"', "{", '{"a": 1e999}', '{"hidden_size": ' + "9" * 5000 + "}", "[" * 100_000],
)
def test_other_text_is_refused(text):
    with pytest.raises(SpecError):
        parse_model_config(text, "config.json", "m")


def test_tabs_are_json_too():
    text = json.dumps({**LLAMA_8B, "hidden_size": "x"}, indent="\t")
    with pytest.raises(SpecError, match="hidden_size: must be a whole number > 0"):
        parse_model_config(text, "config.json", "m")
    text = json.dumps(LLAMA_8B, indent="\t")
    assert parse_model_config(text, "config.json", "m").num_layers == 32


def test_a_list_is_no_configuration():
    with pytest.raises(SpecError, match="must be a mapping"):
        parse_model_config("[1, 2]", "config.json", "m")
