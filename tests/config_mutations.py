"""Valid configurations of many shapes, and seeded ways to break them."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

DENSE: dict[str, Any] = {
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
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
}
LATENT: dict[str, Any] = {
    "model_type": "deepseek_v32",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "topk_method": "noaux_tc",
    "num_nextn_predict_layers": 1,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"],
    },
}
WINDOWED: dict[str, Any] = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 6,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "sliding_window": 128,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    },
}
LINEAR: dict[str, Any] = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "head_dim": 256,
        "num_hidden_layers": 8,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "mamba_ssm_dtype": "float32",
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
    },
    "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32},
            }
        },
        "ignore": ["lm_head", "re:.*self_attn.*", r"re:.*mlp\.(gate|up|down)_proj.*"],
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    },
}
MAMBA: dict[str, Any] = {
    "model_type": "nemotron_h",
    "hidden_size": 2688,
    "hybrid_override_pattern": "MEM*-E",
    "num_hidden_layers": 6,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 1856,
    "n_routed_experts": 128,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1856,
    "n_shared_experts": 1,
    "moe_shared_expert_intermediate_size": 3712,
    "vocab_size": 131072,
    "max_position_embeddings": 262144,
    "quantization_config": {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"backbone.layers.0.mixer.in_proj": {"quant_algo": "FP8"}},
        "exclude_modules": ["lm_head", "*.mixer.conv1d"],
    },
}
SHARED: dict[str, Any] = {
    "model_type": "gemma4_text",
    "hidden_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "global_head_dim": 512,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 4,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
    "enable_moe_block": True,
    "num_experts": 128,
    "top_k_experts": 8,
    "moe_intermediate_size": 704,
    "intermediate_size": 2112,
    "vocab_size": 262144,
    "max_position_embeddings": 262144,
}
SEARCHED: dict[str, Any] = {
    "model_type": "nemotron-nas",
    "hidden_size": 8192,
    "num_hidden_layers": 2,
    "num_attention_heads": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "block_configs": [
        {"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 5.25, "no_op": False}},
        {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 2.625}},
    ],
}
KIMI: dict[str, Any] = {
    "model_type": "kimi_linear",
    "hidden_size": 2304,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "linear_attn_config": {
        "full_attn_layers": [4],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "intermediate_size": 9216,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "moe_intermediate_size": 1024,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "vocab_size": 163840,
    "max_position_embeddings": 1048576,
}
OLD: dict[str, Any] = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "n_inner": None,
    "n_positions": 1024,
    "vocab_size": 50257,
}
VALID = (DENSE, LATENT, WINDOWED, LINEAR, MAMBA, SHARED, SEARCHED, KIMI, OLD)

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 7, 0.5, 1e308, float("nan"), float("inf"), 10**12, 10**400, "", "x",
    "llama", "128", "\ud800", "full_attention", [], [1], ["x"], [None], {}, {"a": 1}, [[[[]]]], [{}], "re:((",
    ["re:(a+)+$"], ["*" * 50], ["re:" + "a" * 500], 2**31, 131072,
)  # fmt: skip


def mutated(rng: random.Random) -> str:
    """A configuration with one to four changes, as text; now and then the text itself is cut or bent."""
    config = copy.deepcopy(rng.choice(VALID))
    other = rng.choice(VALID)
    for _ in range(rng.randint(1, 4)):
        _change(config, other, rng)
    text = json.dumps(config, indent=rng.choice((None, 1)))
    match rng.randrange(20):
        case 0:
            return text[: rng.randrange(len(text))]
        case 1:
            at = rng.randrange(len(text))
            return text[:at] + rng.choice('{}[],:"\\\t\n\r\x00\ufeffé0-') + text[at + rng.randint(0, 3) :]
        case 2:
            return text.replace('"hidden_size"', '"vocab_size"')
        case 3:
            return "\ufeff" + text.replace("\n", "\r\n")
    return text


def _change(config: dict[str, Any], other: dict[str, Any], rng: random.Random) -> None:
    """Drop, replace, scale or add a value somewhere in the configuration."""
    place: Any = config
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.7:
            place = place[key]
            continue
        break
    match rng.randrange(5):
        case 0:
            del place[key]
        case 1 if isinstance(place[key], int):
            place[key] = int(place[key] * rng.choice((-1, 2, 3, 1000, 10**6)) + rng.randint(-1, 1))
        case 2 if isinstance(place, dict):
            name = rng.choice(list(other))
            place[name] = copy.deepcopy(other[name])
        case _:
            place[key] = copy.deepcopy(rng.choice(_VALUES))
