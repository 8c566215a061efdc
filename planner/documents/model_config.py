"""A model's shape from the ``config.json`` of a checkpoint, as Hugging Face publishes it.

Dense decoders with one kind of layer. Whatever else a configuration asks for is refused with the key
that asks for it: a shape that is nearly right is worse than none. No number has a default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.documents.files import file_error, read_text
from planner.documents.names import unknown_name
from planner.documents.yaml_text import parse_tree
from planner.errors import Problem, SpecError
from planner.specs import Attention, Dtype, FeedForward, Layer, LayerRun, Model

Config = Mapping[str, Any]

NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where models of several modalities keep the language model's configuration."""

NAMES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads"),
    "intermediate_size": ("intermediate_size", "ffn_dim", "n_inner"),
    "vocab_size": ("vocab_size",),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "n_ctx"),
    "head_dim": ("head_dim", "attention_head_dim"),
}
"""Names of each number, the usual one first."""


@dataclass(frozen=True, slots=True)
class Family:
    """What the code of a model type adds to its configuration.

    Attributes
    ----------
    gated : bool
        Three feed-forward matrices instead of two.
    attention_bias, mlp_bias : bool
        Where the configuration does not say.
    tied : bool
        Whether the head shares the embeddings where the configuration does not say.
    norms : int
        Norm vectors of a layer; a LayerNorm has two, weight and bias.
    window_flag : bool
        A sliding window counts only with ``use_sliding_window``.
    four_times_hidden : bool
        An absent feed-forward size is four times the hidden size.
    """

    gated: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    norms: int = 2
    window_flag: bool = False
    four_times_hidden: bool = False


_LAYER_NORM = Family(gated=False, attention_bias=True, mlp_bias=True, tied=True, norms=4)

FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "phi3": Family(),
    "granite": Family(),
    "qwen2": Family(attention_bias=True, window_flag=True),
    "qwen3": Family(qk_norm=True, window_flag=True),
    "opt": _LAYER_NORM,
    "gpt2": replace(_LAYER_NORM, four_times_hidden=True),
}

UNSUPPORTED = {
    "experts": (
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "moe_topk",
    ),
    "latent attention": ("kv_lora_rank",),
    "sparse attention": ("index_topk",),
    "layers without attention": (
        "full_attention_interval",
        "linear_num_value_heads",
        "mamba_d_state",
        "mamba_num_heads",
        "ssm_state_size",
        "state_size",
        "hybrid_override_pattern",
        "layers_block_type",
        "attn_layer_period",
    ),
    "a pattern of sliding windows": ("sliding_window_pattern", "attention_chunk_size"),
    "KV caches shared between layers": ("use_cla", "num_kv_shared_layers"),
    "an encoder": ("is_encoder_decoder",),
}
"""Keys that mark what this version does not model, when they are neither null nor 0 nor false."""


def load_model_config(path: str | Path) -> Model:
    """Read a ``config.json``, or that of a model directory.

    Raises
    ------
    SpecError
        With every problem of the file; unsupported shapes name the key that makes them so.
    """
    path = Path(path)
    if path.is_dir():
        path /= "config.json"
    text = read_text(path)
    name = path.resolve().parent.name if path.name == "config.json" else path.stem
    return parse_model_config(text, str(path), name)


def parse_model_config(text: str, source: str, name: str) -> Model:
    """Shape from the text of a ``config.json``; `source` names it in messages. See `load_model_config`."""
    try:
        config = json.loads(text.removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        problem = Problem(key="", rule=f"is not valid JSON: {error.msg}", line=error.lineno)
        raise SpecError.of_file(source, [problem]) from None
    except RecursionError:
        raise file_error(source, "is not valid JSON: nested too deeply") from None
    if not isinstance(config, dict):
        raise file_error(source, "must be a mapping of keys at top level")
    try:
        return model_from_config(config, name, source)
    except SpecError as error:
        raise SpecError.of_file(source, _with_lines(error.problems, text, source)) from None


def _with_lines(problems: tuple[Problem, ...], text: str, source: str) -> list[Problem]:
    tree, duplicates = parse_tree(text, source)
    return [replace(p, line=tree.line(tuple(p.key.split(".")))) for p in problems] + duplicates


# --------------------------------------------------------------------------------------------
# Reading


@dataclass(slots=True)
class _Reader:
    """Looks keys up in the language model's section, and collects what is wrong.

    ``section`` is its path, empty at top level; ``outer`` the file's top level.
    """

    section: str
    config: Config
    outer: Config
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def of(cls, config: Config) -> _Reader:
        section, inner = _language_section(config)
        return cls(section, inner, config)

    def get(self, key: str) -> Any:
        """Value of a key; null is absent."""
        return self.config.get(key)

    def either(self, key: str) -> Any:
        """Value of a key that may also stand at top level."""
        return self.config[key] if self.config.get(key) is not None else self.outer.get(key)

    def number(self, key: str, *, required: bool = True) -> int | None:
        """A whole number > 0 under one of its names."""
        for name in NAMES[key]:
            value = self.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                self.problem(name, "must be a whole number > 0", value)
                return None
            return value
        if required:
            self.problem(
                key,
                f"is missing under the names {', '.join(NAMES[key])}; looked at top level and in "
                f"{', '.join(NESTED)}",
            )
        return None

    def flag(self, keys: tuple[str, ...], default: bool) -> bool:
        for key in keys:
            value = self.get(key)
            if value is not None:
                if not isinstance(value, bool):
                    self.problem(key, "must be true or false", value)
                return bool(value)
        return default

    def problem(self, key: str, rule: str, value: object = None, suggestion: str = "") -> None:
        path = f"{self.section}.{key}" if self.section else key
        shown = "" if value is None else json.dumps(value, default=str)[:60]
        self.problems.append(Problem(key=path, rule=rule, value=shown, suggestion=suggestion))


def _language_section(config: Config) -> tuple[str, Config]:
    """Path and content of the section that holds the language model; top level where it has the numbers."""
    if any(config.get(name) is not None for name in NAMES["num_hidden_layers"]):
        return "", config
    for key in NESTED:
        inner = config.get(key)
        if isinstance(inner, dict):
            path, found = _language_section(inner)
            return f"{key}.{path}" if path else key, found
    return "", config


def model_from_config(config: Config, name: str, source: str) -> Model:
    """Shape from a parsed configuration.

    Raises
    ------
    SpecError
        Its `problems` hold everything wrong, by key.
    """
    reader = _Reader.of(config)
    family = _family(reader)
    reader.problems += _unsupported(reader)
    shape = _shape(reader, family)
    dtype = _checkpoint_dtype(reader)
    tied = reader.either("tie_word_embeddings")
    if reader.problems or shape is None:
        raise SpecError.of_file(source, reader.problems)
    return Model(
        name=name,
        hidden=shape.hidden,
        layers=(LayerRun(count=shape.layers, layer=shape.layer),),
        vocab=shape.vocab,
        tied_embeddings=family.tied if tied is None else bool(tied),
        max_context=shape.max_context,
        checkpoint_dtype=dtype,
        norms_per_layer=family.norms,
        source=source,
    )


def _family(reader: _Reader) -> Family:
    kind = reader.get("model_type")
    if isinstance(kind, str) and kind in FAMILIES:
        return FAMILIES[kind]
    if not isinstance(kind, str):
        reader.problem("model_type", "is missing: it says which shape the numbers belong to")
    else:
        rule, suggestion = unknown_name("model_type", kind, tuple(FAMILIES))
        reader.problem("model_type", f"{rule}; this version knows some dense decoders", kind, suggestion)
    return Family()


def _unsupported(reader: _Reader) -> Iterator[Problem]:
    for what, keys in UNSUPPORTED.items():
        for key in keys:
            value = reader.either(key)
            if value and not (key.endswith("experts") and value == 1):
                path = f"{reader.section}.{key}" if reader.section and key in reader.config else key
                yield Problem(key=path, rule=f"means {what}, which this version does not model")


@dataclass(frozen=True, slots=True)
class _Shape:
    hidden: int
    layers: int
    layer: Layer
    vocab: int
    max_context: int


def _shape(reader: _Reader, family: Family) -> _Shape | None:
    hidden = reader.number("hidden_size")
    layers = reader.number("num_hidden_layers")
    heads = reader.number("num_attention_heads")
    vocab = reader.number("vocab_size")
    context = reader.number("max_position_embeddings")
    intermediate = reader.number("intermediate_size", required=not family.four_times_hidden)
    kv_heads = reader.number("num_key_value_heads", required=False) or heads
    head_dim = reader.number("head_dim", required=False)
    projected = reader.get("word_embed_proj_dim")
    if projected is not None and projected != hidden:
        reader.problem("word_embed_proj_dim", "differs from hidden_size, which this version does not model")
    if hidden is None or layers is None or heads is None or kv_heads is None:
        return None
    if heads % kv_heads:
        reader.problem("num_key_value_heads", f"must divide the {heads} attention heads", kv_heads)
    if head_dim is None:
        if hidden % heads:
            reader.problem("head_dim", f"is missing, and {heads} heads do not divide hidden_size {hidden}")
        head_dim = hidden // heads
    window = _window(reader, family, layers, context)
    if reader.problems or vocab is None or context is None:
        return None
    layer = Layer(
        attention=Attention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            bias=reader.flag(("attention_bias", "qkv_bias"), family.attention_bias),
            qk_norm=family.qk_norm,
            window=window,
        ),
        feed_forward=FeedForward(
            intermediate=intermediate or 4 * hidden,
            gated=family.gated,
            bias=reader.flag(("mlp_bias",), family.mlp_bias),
        ),
    )
    return _Shape(hidden, layers, layer, vocab, context)


def _window(reader: _Reader, family: Family, layers: int, context: int | None) -> int | None:
    """Sliding window that all layers share; None where attention is full."""
    kinds = reader.get("layer_types")
    if isinstance(kinds, list) and set(kinds) - {"full_attention"}:
        if set(kinds) != {"sliding_attention"}:
            reader.problem("layer_types", "mixes kinds of layers, which this version does not model")
            return None
    elif isinstance(kinds, list) and kinds:
        return None
    if family.window_flag and not reader.get("use_sliding_window"):
        return None
    window = reader.get("sliding_window")
    if window is None or reader.get("use_sliding_window") is False:
        return None
    if isinstance(window, bool) or not isinstance(window, int) or window <= 0:
        reader.problem("sliding_window", "must be a whole number > 0", window)
        return None
    if context is not None and window >= context:
        return None
    first = reader.get("max_window_layers") if family.window_flag else None
    if isinstance(first, int) and first >= layers:
        return None
    if first:
        reader.problem(
            "max_window_layers", "mixes full and sliding layers, which this version does not model"
        )
    return window


# --------------------------------------------------------------------------------------------
# Number formats

_DTYPES = {
    "float32": Dtype.BF16,  # engines load 32-bit checkpoints in 16 bits
    "bfloat16": Dtype.BF16,
    "float16": Dtype.FP16,
    "half": Dtype.FP16,
    None: Dtype.BF16,
}


def _checkpoint_dtype(reader: _Reader) -> Dtype:
    """Format of the weights: that of the quantisation, else the checkpoint's own 16 bits."""
    quantization = reader.either("quantization_config") or reader.either("compression_config")
    if isinstance(quantization, dict):
        dtype = _quantized_dtype(quantization)
        if dtype is None:
            method = quantization.get("quant_method", quantization.get("quant_algo"))
            reader.problem("quantization_config", "is not a format this version knows", method)
        return dtype or Dtype.BF16
    name = reader.either("dtype") or reader.either("torch_dtype")
    plain = name.removeprefix("torch.") if isinstance(name, str) else name
    if not isinstance(plain, str | None) or plain not in _DTYPES:
        reader.problem("torch_dtype", f"must be one of {', '.join(k for k in _DTYPES if k)}", name)
        return Dtype.BF16
    return _DTYPES[plain]


def _quantized_dtype(config: Config) -> Dtype | None:
    method = str(config.get("quant_method", "")).lower()
    if method == "compressed-tensors":
        return _compressed_dtype(config)
    if method in ("fp8", "fbgemm_fp8"):
        return Dtype.FP8_BLOCK if config.get("weight_block_size") else Dtype.FP8
    if method in ("awq", "gptq", "awq_marlin", "gptq_marlin"):
        return {4: Dtype.INT4, 8: Dtype.INT8}.get(config.get("bits", config.get("w_bit")))
    if method == "mxfp4":
        return Dtype.MXFP4
    algorithm = str(config.get("quant_algo", "")).upper()  # ModelOpt
    return {"FP8": Dtype.FP8, "FP8_PB_WO": Dtype.FP8_BLOCK, "NVFP4": Dtype.NVFP4}.get(algorithm)


def _compressed_dtype(config: Config) -> Dtype | None:
    """Format of compressed-tensors, where all groups of weights agree on one."""
    groups = config.get("config_groups")
    if not isinstance(groups, dict):
        return None
    found = {_group_dtype(g.get("weights")) for g in groups.values() if isinstance(g, dict)}
    return found.pop() if len(found) == 1 else None


def _group_dtype(weights: object) -> Dtype | None:
    if not isinstance(weights, dict):
        return None
    match weights.get("num_bits"), weights.get("type"):
        case 8, "float":
            return Dtype.FP8_BLOCK if weights.get("strategy") == "block" else Dtype.FP8
        case 8, "int":
            return Dtype.INT8
        case 4, "float":
            return Dtype.MXFP4 if weights.get("group_size") == 32 else Dtype.NVFP4
        case 4, "int":
            return Dtype.INT4
    return None
