"""Names to data: GPUs and models, aliases, suggestions, paths."""

import csv
import json
from pathlib import Path

import pytest

from planner.catalog import gpu_name, gpu_names, load_gpu, load_model, model_names
from planner.documents.catalogue import ModelsDocument
from planner.documents.source import load_document
from planner.errors import SpecError
from planner.specs import Dtype
from planner.transformer import kv_bytes_per_token, parameters

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "golden"

# --------------------------------------------------------------------------------------------
# GPUs


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("h100-sxm", "h100-sxm"),
        ("H100-SXM", "h100-sxm"),
        ("h100", "h100-sxm"),
        (" H100-SXM5 ", "h100-sxm"),
        ("a100", "a100-80gb-sxm"),
        ("B200", "b200-sxm"),
        ("l40s", "l40s"),
    ],
)
def test_gpu_by_name_or_alias(name, canonical):
    assert gpu_name(name) == canonical
    assert load_gpu(name).name == canonical


def test_no_alias_stands_for_two_gpus():
    names = list(gpu_names())
    for name in gpu_names():
        text = (ROOT / "gpu_profiles" / f"{name}.yaml").read_text(encoding="utf-8")
        line = next(line for line in text.splitlines() if line.startswith("aliases: ["))
        names += line.removeprefix("aliases: [").removesuffix("]").split(", ")
    assert len(names) == len(set(names))


def test_unknown_gpu_suggests_the_nearest():
    with pytest.raises(SpecError, match=r"unknown GPU 'h200-sx'.*did you mean h200-sxm"):
        load_gpu("h200-sx")


def test_unknown_gpu_lists_all_where_none_is_near():
    with pytest.raises(SpecError, match=r"known: a10, a100-40gb-pcie, .*, and \d+ more"):
        load_gpu("tpu-v5e")


def test_gpu_by_path(tmp_path):
    text = (ROOT / "gpu_profiles" / "l4.yaml").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(text.replace("name: l4\n", "name: mine\n"), encoding="utf-8")
    assert load_gpu(tmp_path / "mine.yaml").name == "mine"
    assert load_gpu("./mine.yaml", base=tmp_path).name == "mine"
    assert load_gpu("mine.yaml", base=tmp_path).name == "mine"


def test_missing_profile_is_an_error(tmp_path):
    with pytest.raises(SpecError, match="no such file"):
        load_gpu(tmp_path / "none.yaml")


# --------------------------------------------------------------------------------------------
# Models


def test_every_model_loads():
    assert len(model_names()) >= 60
    for name in model_names():
        assert load_model(name).name == name


def test_every_id_of_the_catalogue_loads():
    document = load_document(ROOT / "planner/catalog/models.yaml", ModelsDocument).model
    for entry in document.models:
        for name in (*entry.ids, *entry.aliases, *entry.variants):
            assert load_model(name).source.startswith(entry.source)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B"),
        ("Llama-3.1-70B", "meta-llama/Llama-3.1-70B"),
        ("llama-3.1-70b-instruct", "meta-llama/Llama-3.1-70B-Instruct"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        ("Llama-3.3-70B", "meta-llama/Llama-3.3-70B"),
        ("llama-2-7b", "meta-llama/Llama-2-7b-hf"),
        ("qwen3-32b-fp8", "Qwen/Qwen3-32B-FP8"),
        ("mistral-7b", "mistralai/Mistral-7B-v0.3"),
        ("phi-4", "microsoft/phi-4"),
        ("deepseek-v3.1", "deepseek-ai/DeepSeek-V3.1"),
        ("gpt-oss-120b", "openai/gpt-oss-120b"),
        ("Llama-4-Scout", "meta-llama/Llama-4-Scout-17B-16E-Instruct"),
        ("kimi-k2", "moonshotai/Kimi-K2-Instruct"),
        ("GLM-5-FP8", "zai-org/GLM-5-FP8"),
    ],
)
def test_the_name_asked_for_is_the_name_deployed(name, model):
    # Engines download what the model is called: an -Instruct model must stay one.
    assert load_model(name).name == model


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Llama-3.1-70B", Dtype.BF16),
        ("Llama-2-70b-hf", Dtype.FP16),
        ("Qwen3-32B-FP8", Dtype.FP8_BLOCK),
        ("Meta-Llama-3.1-70B-Instruct-FP8", Dtype.FP8),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", Dtype.FP8),
        ("Llama-3.1-405B-Instruct-FP8", Dtype.FP8),
        ("DeepSeek-R1", Dtype.FP8_BLOCK),
        ("gpt-oss-20b", Dtype.MXFP4),
        ("nvidia/DeepSeek-V3.1-NVFP4", Dtype.NVFP4),
        ("GLM-4.5-Air-FP8", Dtype.FP8),
    ],
)
def test_checkpoint_dtype(name, dtype):
    assert load_model(name).checkpoint_dtype is dtype


@pytest.mark.parametrize(
    ("name", "tokens"), [("Qwen2.5-72B", 131072), ("Qwen2.5-72B-Instruct", 32768), ("Llama-2-7B", 4096)]
)
def test_variants_differ_in_what_they_say(name, tokens):
    assert load_model(name).max_context == tokens


@pytest.mark.parametrize(
    ("name", "weights", "attention", "experts", "kv_cache"),
    [
        ("gpt-oss-120b", Dtype.MXFP4, Dtype.BF16, None, None),
        ("Kimi-K2.5", Dtype.BF16, None, Dtype.INT4, None),
        ("nvidia/Kimi-K2.5-NVFP4", Dtype.NVFP4, Dtype.BF16, None, Dtype.FP8),
        ("nvidia/Qwen3.5-397B-A17B-NVFP4", Dtype.BF16, None, Dtype.NVFP4, Dtype.FP8),
        ("Llama-4-Maverick-17B-128E-Instruct-FP8", Dtype.BF16, None, Dtype.FP8, None),
        ("nvidia/Qwen3-235B-A22B-NVFP4", Dtype.NVFP4, None, None, Dtype.FP8),
    ],
)
def test_mixed_checkpoints(name, weights, attention, experts, kv_cache):
    model = load_model(name)
    found = (model.checkpoint_dtype, model.checkpoint_attention, model.checkpoint_experts)
    assert found == (weights, attention, experts)
    assert model.checkpoint_kv_cache is kv_cache


def test_parameters_of_the_catalogue():
    with (GOLDEN / "model_parameters.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            assert parameters(load_model(row["model"])) == int(row["parameters"]), row["model"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # https://github.com/LMCache/LMCache/issues/2132
        ("Qwen3-32B", 262144),
        # vLLM on H100: 58.11 GiB hold 476,016 tokens of Llama-3.1-8B, 58.53 GiB 1,096,000 of Qwen2.5-7B
        ("Llama-3.1-8B", 131072),
        ("Qwen2.5-7B", 57344),
        # https://github.com/vllm-project/vllm/issues/10517: 131,072 tokens take 2 x 20.0 GiB
        ("Llama-3.1-70B", 327680),
    ],
)
def test_kv_bytes_per_token(name, expected):
    assert kv_bytes_per_token(load_model(name), Dtype.BF16) == expected


def test_unknown_model_suggests_the_nearest():
    with pytest.raises(SpecError, match=r"unknown model.*did you mean .*Llama-3.1-70B"):
        load_model("meta-llama/Llama-31-70B")


def test_model_by_path(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 256,
        "max_position_embeddings": 128,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for path in (folder, folder / "config.json", str(folder / "config.json"), f"{folder}"):
        assert load_model(path).name == "my-model"
    assert load_model("my-model", base=tmp_path).hidden == 64
    assert load_model("./my-model", base=tmp_path).hidden == 64


@pytest.mark.parametrize("name", ["DeepSeek-V4-Pro", "Kimi-K3", "MiniMax-M3"])
def test_models_that_cannot_be_represented_are_not_there(name):
    with pytest.raises(SpecError, match="unknown model"):
        load_model(name)


def test_missing_model_directory_is_an_error(tmp_path):
    with pytest.raises(SpecError, match="no such file"):
        load_model("./none", base=tmp_path)
