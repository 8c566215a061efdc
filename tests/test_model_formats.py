"""Number formats of checkpoints: quantisations of every tool, what they leave out, KV caches."""

import json
import time
from typing import Any

import pytest
from config_mutations import DENSE, LATENT, LINEAR, MAMBA, WINDOWED

from planner.documents.model_config import load_model_config, model_from_config
from planner.errors import SpecError
from planner.specs import Dtype, Model, Precision
from planner.transformer import weight_bytes
from planner.units import GIGA


def with_quantization(config: dict[str, Any], quantization: object) -> Model:
    return model_from_config({**config, "quantization_config": quantization}, "m", "config.json")


def formats(model: Model) -> tuple[Dtype, Dtype, Dtype]:
    """Of dense blocks, mixers and experts."""
    precision = Precision.of(model)
    return precision.weights, precision.of_attention, precision.of_experts


def compressed(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "config_groups": groups, **more}


def modelopt(algorithm: str, **more: Any) -> dict[str, Any]:
    return {"quant_method": "modelopt", "quant_algo": algorithm, **more}


# --------------------------------------------------------------------------------------------
# One format for all


@pytest.mark.parametrize(
    ("quantization", "dtype"),
    [
        ({"quant_method": "fp8"}, Dtype.FP8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, Dtype.FP8_BLOCK),
        ({"quant_method": "fbgemm_fp8"}, Dtype.FP8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, Dtype.INT4),
        ({"quant_method": "awq", "w_bit": 4}, Dtype.INT4),
        ({"quant_method": "gptq", "bits": 8}, Dtype.INT8),
        ({"quant_method": "auto-round", "bits": 4}, Dtype.INT4),
        ({"quant_method": "mxfp4"}, Dtype.MXFP4),
        ({"quant_algo": "FP8"}, Dtype.FP8),
        (modelopt("NVFP4"), Dtype.NVFP4),
        (modelopt("FP8"), Dtype.FP8),
        (modelopt("FP8_PB_WO"), Dtype.FP8_BLOCK),
        (modelopt("W4A16_AWQ"), Dtype.INT4),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, Dtype.FP8),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, Dtype.MXFP4),
        (compressed({"num_bits": 8, "type": "float", "strategy": "tensor"}), Dtype.FP8),
        (compressed({"num_bits": 8, "type": "float", "strategy": "block"}), Dtype.FP8_BLOCK),
        (compressed({"num_bits": 8, "type": "int"}), Dtype.INT8),
        (compressed({"num_bits": 4, "type": "int"}), Dtype.INT4),
        (compressed({"num_bits": 4, "type": "float", "group_size": 16}), Dtype.NVFP4),
        (compressed({"num_bits": 4, "type": "float", "group_size": 32}), Dtype.MXFP4),
    ],
)
def test_quantised_checkpoints(quantization, dtype):
    assert formats(with_quantization(DENSE, quantization)) == (dtype, dtype, dtype)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float32", Dtype.BF16), ("torch.float16", Dtype.FP16), ("half", Dtype.FP16), (None, Dtype.BF16)],
)
def test_plain_checkpoints(name, dtype):
    assert model_from_config({**DENSE, "torch_dtype": name}, "m", "c").checkpoint_dtype is dtype


@pytest.mark.parametrize(
    ("quantization", "said"),
    [
        ({"quant_method": "aqlm"}, 'is not a format this version knows, got "aqlm"'),
        ({"quant_method": "gptq", "bits": 3}, "bits must be 4 or 8"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quantises while loading"),
        ({"quant_method": "compressed-tensors"}, "config_groups is missing"),
        (compressed({"num_bits": 2, "type": "int"}), "weights of a group must have 4 or 8 bits"),
        (compressed({"num_bits": 8, "type": "float"}, ignore="lm_head"), "ignore must be a list of names"),
        (compressed({"num_bits": 8, "type": "float"}, kv_cache_scheme={"num_bits": 3}), "KV cache"),
        (modelopt("MIXED_PRECISION"), "MIXED_PRECISION needs quantized_layers"),
        (modelopt("FP3"), "is not a format this version knows"),
        ([1], "must be a mapping of keys, got [1]"),
    ],
)
def test_what_is_not_known_is_refused(quantization, said):
    with pytest.raises(SpecError, match="quantization_config") as caught:
        with_quantization(DENSE, quantization)
    assert said in str(caught.value)


def test_groups_that_differ_without_saying_where_are_refused():
    groups = {
        "a": {"weights": {"num_bits": 8, "type": "float"}},
        "b": {"weights": {"num_bits": 4, "type": "int"}},
    }
    quantization = {"quant_method": "compressed-tensors", "config_groups": groups}
    with pytest.raises(SpecError, match="its groups differ in format and name no modules"):
        with_quantization(DENSE, quantization)


# --------------------------------------------------------------------------------------------
# What a quantisation leaves out


def test_mxfp4_of_gpt_oss_is_for_experts():
    assert formats(model_from_config(WINDOWED, "m", "c")) == (Dtype.MXFP4, Dtype.BF16, Dtype.MXFP4)


def test_expressions_that_leave_all_but_routed_experts():
    # As Kimi-K2.5 and its int4 experts.
    assert formats(model_from_config(LINEAR, "m", "c"))[2] is Dtype.INT4
    ignore = [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
    ]
    quantization = compressed({"num_bits": 4, "type": "int", "group_size": 32}, ignore=ignore)
    model = with_quantization({**LATENT, "quantization_config": None}, quantization)
    assert formats(model) == (Dtype.BF16, Dtype.BF16, Dtype.INT4)


@pytest.mark.parametrize(
    "names",
    [
        [f"model.layers.{i}.self_attn*" for i in range(61)],
        [f"language_model.model.layers.{i}.self_attn*" for i in range(61)],
        [f"model.layers.{i}.self_attn" for i in range(61)],
        ["model.layers.*.self_attn"],
        ["self_attn", "lm_head"],
        ["re:.*self_attn.*"],
    ],
    ids=lambda names: names[0],
)
def test_attention_that_is_left_out(names):
    quantization = modelopt("NVFP4", exclude_modules=names)
    assert formats(with_quantization(LATENT, quantization)) == (Dtype.NVFP4, Dtype.BF16, Dtype.NVFP4)


def test_routers_and_norms_are_no_matrices_of_their_kind():
    names = [f"model.layers.{i}.{m}" for i in range(61) for m in ("mlp.gate", "input_layernorm")]
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": names}
    assert set(formats(with_quantization(LATENT, quantization))) == {Dtype.FP8_BLOCK}
    assert set(
        formats(with_quantization(DENSE, {"quant_method": "fp8", "modules_to_not_convert": ["gate"]}))
    ) == {Dtype.FP8}


def test_the_greater_part_of_the_weights_decides():
    # ModelOpt's DeepSeek files leave out all projections of attention but the output, which is the largest.
    small = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"]
    names = [f"model.layers.{i}.self_attn.{m}" for i in range(61) for m in small]
    quantization = modelopt("NVFP4", exclude_modules=names)
    assert formats(with_quantization(LATENT, quantization))[1] is Dtype.NVFP4


def test_layers_with_a_format_each():
    layers = {
        f"model.language_model.layers.{i}.{module}": {"quant_algo": algorithm}
        for i in range(8)
        for module, algorithm in (
            ("linear_attn.in_proj_qkv", "FP8"),
            ("linear_attn.out_proj", "FP8"),
            ("mlp.experts", "W4A16_NVFP4"),
        )
    }
    model = with_quantization(LINEAR, modelopt("MIXED_PRECISION", quantized_layers=layers))
    assert formats(model) == (Dtype.BF16, Dtype.FP8, Dtype.NVFP4)
    # One of two projections of one of three mixers: the smaller part.
    assert set(formats(model_from_config(MAMBA, "m", "c"))) == {Dtype.BF16}


def test_groups_for_named_modules():
    groups = {
        "a": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "float"}},
        "b": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}},
    }
    quantization = {"quant_method": "compressed-tensors", "config_groups": groups}
    assert formats(with_quantization(DENSE, quantization))[:2] == (Dtype.NVFP4, Dtype.FP8)


@pytest.mark.parametrize(
    "pattern", ["re:(a+)+$", "re:((", "re:" + ".*" * 9, "re:" + "x" * 500, "*a" * 9, "re:[[a]"]
)
def test_expressions_that_could_take_long_are_refused(pattern):
    begin = time.perf_counter()
    with pytest.raises(SpecError, match="quantization_config"):
        with_quantization(DENSE, compressed({"num_bits": 8, "type": "float"}, ignore=[pattern]))
    assert time.perf_counter() - begin < 1


# --------------------------------------------------------------------------------------------
# KV caches, and the second file


@pytest.mark.parametrize(
    ("quantization", "kv_cache"),
    [
        (modelopt("FP8", kv_cache_quant_algo="FP8"), Dtype.FP8),
        (modelopt("FP8", kv_cache_scheme="FP8"), Dtype.FP8),
        (modelopt("NVFP4", kv_cache_scheme={"num_bits": 8, "type": "float"}), Dtype.FP8),
        (modelopt("FP8", kv_cache_quant_algo=None), None),
        (
            compressed({"num_bits": 8, "type": "float"}, kv_cache_scheme={"num_bits": 8, "type": "float"}),
            Dtype.FP8,
        ),
        (compressed({"num_bits": 8, "type": "float"}, kv_cache_scheme=None), None),
        ({"quant_method": "fp8"}, None),  # small weights say nothing of the cache
    ],
)
def test_kv_cache_of_the_checkpoint(quantization, kv_cache):
    assert with_quantization(DENSE, quantization).checkpoint_kv_cache is kv_cache


def test_second_file_of_modelopt(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(DENSE), encoding="utf-8")
    second = {
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    }
    beside = tmp_path / "hf_quant_config.json"
    beside.write_text(json.dumps(second), encoding="utf-8")
    for path in (tmp_path, tmp_path / "config.json"):
        model = load_model_config(path)
        assert (model.checkpoint_dtype, model.checkpoint_kv_cache) == (Dtype.FP8, Dtype.FP8)
    # The configuration's own section wins.
    own = {**DENSE, "quantization_config": {"quant_method": "mxfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(own), encoding="utf-8")
    assert load_model_config(tmp_path).checkpoint_dtype is Dtype.MXFP4
    (tmp_path / "config.json").write_text(json.dumps(DENSE), encoding="utf-8")
    for text, said in (("[]", "must be a mapping"), ("{}", "must hold a mapping named quantization")):
        beside.write_text(text, encoding="utf-8")
        with pytest.raises(SpecError, match=said):
            load_model_config(tmp_path)


def test_fp8_checkpoint_of_deepseek_v3_is_not_counted_as_bf16():
    # https://github.com/inference-sim/inference-sim/issues/1161: 1,313 GiB instead of 626.9
    config = {**LATENT, "model_type": "deepseek_v3", "index_topk": None}
    model = model_from_config(config, "m", "c")
    assert weight_bytes(model, Precision.of(model)) / GIGA == pytest.approx(673.1, rel=0.005)
    sixteen = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
    assert weight_bytes(model, sixteen) / 2**30 == pytest.approx(1249.9, rel=0.005)
