"""Model types that are known, and what their code adds to their configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from planner.documents.model_config.reader import Reader
from planner.documents.names import unknown_name


class Hybrid(StrEnum):
    """Layers that keep a state instead of keys and values."""

    GATED_DELTA = "gated_delta_net"
    MAMBA2 = "mamba2"
    KIMI_DELTA = "kda"
    LIGHTNING = "lightning"


class Shared(StrEnum):
    """How wide the experts are that every token visits."""

    NONE = "none"
    COUNT = "count"  # their number times the width of a routed expert
    WIDTH = "width"  # a key of their own
    ONE = "one"  # as wide as a routed expert
    MIXED = "mixed"  # their number, where a switch asks for them
    DENSE = "dense"  # the dense block that stands beside the experts


class Window(StrEnum):
    """When a sliding window counts."""

    GIVEN = "given"
    FLAG = "flag"  # only with use_sliding_window


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of a family.

    Attributes
    ----------
    width : str
        Key of a routed expert's width.
    dense_width : str
        Key of the width of layers without experts.
    leading : bool
        The number of leading dense layers has to be given.
    step : str
        Key of how many layers there are for one with experts, where it has to be given.
    optional : str
        Switch without which the layers are dense.
    """

    width: str = "moe_intermediate_size"
    dense_width: str = "intermediate_size"
    shared: Shared = Shared.NONE
    shared_gate: bool = False
    router_bias: bool = False
    wide_router: bool = False
    expert_bias: bool = False
    leading: bool = False
    step: str = ""
    optional: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """What the code of a model type adds to its configuration.

    Attributes
    ----------
    gated : bool
        Three feed-forward matrices instead of two.
    attention_bias, mlp_bias : bool
        Where the configuration does not say.
    bias_keys, mlp_bias_keys : tuple of str
        Switches of the configuration that say it.
    output_bias : bool
        The output projection has a bias where the queries have one.
    qk_norm : bool
        Where ``qk_norm_key``, if there is one, does not say.
    spanning_norm : bool
        Such a norm spans all heads, not one.
    tied : bool
        Whether the head shares the embeddings where the configuration does not say.
    norms, embedding_norms : int
        Norm vectors of a layer and outside of them; a LayerNorm has two, weight and bias.
    window : Window
        When a sliding window counts.
    pattern : int
        One layer in so many attends to everything, where the configuration does not say; 0: no pattern.
    pattern_key : str
        The number of that pattern.
    positions : int or None
        Rows of a learned position table beyond ``max_position_embeddings``; None without a table.
    four_times_hidden : bool
        An absent feed-forward size is four times the hidden size.
    head_bias : bool
        The head has one bias per token of the vocabulary.
    latent, indexer : bool
        Latent attention; with an indexer that makes it sparse.
    defaults : mapping of int
        Numbers that published files leave to the class.
    """

    gated: bool = True
    attention_bias: bool = False
    bias_keys: tuple[str, ...] = ("attention_bias", "qkv_bias")
    output_bias: bool = True
    mlp_bias: bool = False
    mlp_bias_keys: tuple[str, ...] = ("mlp_bias",)
    qk_norm: bool = False
    qk_norm_key: str = ""
    spanning_norm: bool = False
    sinks: bool = False
    attention_gate: bool = False
    tied: bool = False
    norms: int = 2
    embedding_norms: int = 1
    window: Window = Window.GIVEN
    pattern: int = 0
    pattern_key: str = "sliding_window_pattern"
    positions: int | None = None
    four_times_hidden: bool = False
    head_bias: bool = False
    latent: bool = False
    indexer: bool = False
    hybrid: Hybrid | None = None
    experts: Experts | None = None
    defaults: Mapping[str, int] = field(default_factory=dict)


# --------------------------------------------------------------------------------------------
# Kinds of families

_LLAMA = Family()
_QWEN2 = Family(attention_bias=True, output_bias=False, window=Window.FLAG)
_QWEN3 = Family(qk_norm=True, window=Window.FLAG)
_LAYER_NORM = Family(gated=False, attention_bias=True, mlp_bias=True, tied=True, norms=4, embedding_norms=2)
_GEMMA = Family(tied=True)
_GEMMA2 = Family(tied=True, norms=4, pattern=2)
_FALCON = Family(
    gated=False, bias_keys=("bias",), mlp_bias_keys=("bias",), tied=True, embedding_norms=2,
    four_times_hidden=True, defaults={"max_position_embeddings": 2048},
)  # fmt: skip

_WIDTH = "intermediate_size"
_QWEN_SHARED = Experts(shared=Shared.WIDTH, shared_gate=True)
_DEEPSEEK = Family(latent=True, experts=Experts(shared=Shared.COUNT, router_bias=True, leading=True))
_SPARSE = replace(_DEEPSEEK, indexer=True)
_QWEN3_HYBRID = replace(_QWEN3, attention_gate=True, hybrid=Hybrid.GATED_DELTA)
_GLM_MOE = Family(
    output_bias=False, qk_norm_key="use_qk_norm",
    experts=Experts(shared=Shared.COUNT, router_bias=True, wide_router=True, leading=True),
)  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    # Dense decoders
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "ministral3": _LLAMA,
    "phi3": _LLAMA,
    "granite": _LLAMA,
    "internlm2": replace(_LLAMA, bias_keys=("bias",)),
    "internlm3": replace(_LLAMA, bias_keys=("qkv_bias",), output_bias=False),
    "seed_oss": replace(_LLAMA, attention_bias=True, output_bias=False),
    "smollm3": replace(_LLAMA, tied=True),
    "olmo2": replace(_LLAMA, qk_norm=True, spanning_norm=True),
    "glm": replace(_LLAMA, output_bias=False),
    "glm4": replace(_LLAMA, output_bias=False, norms=4),
    "chatglm": replace(_LLAMA, attention_bias=True, bias_keys=("add_qkv_bias",), output_bias=False),
    "mimo": replace(_QWEN2, attention_bias=True),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_vl_text": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": replace(
        _GEMMA2, qk_norm=True, pattern=6,
        defaults={
            "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
        },
    ),
    "cohere": replace(_LLAMA, tied=True, norms=1, qk_norm_key="use_qk_norm"),
    "cohere2": replace(_LLAMA, tied=True, norms=1, pattern=4),
    "stablelm": Family(bias_keys=("use_qkv_bias",), output_bias=False, norms=4, embedding_norms=2),
    "nemotron": Family(gated=False, norms=4, embedding_norms=2),
    "nemotron-nas": _LLAMA,
    "starcoder2": replace(_LAYER_NORM, bias_keys=("use_bias",), mlp_bias_keys=("use_bias",)),
    "gpt2": replace(_LAYER_NORM, positions=0, four_times_hidden=True),
    "gpt_bigcode": replace(_LAYER_NORM, positions=0, four_times_hidden=True),
    "gpt_neox": replace(_LAYER_NORM, tied=False),
    "gptj": replace(
        _LAYER_NORM, attention_bias=False, tied=False, norms=2, four_times_hidden=True, head_bias=True
    ),
    "opt": replace(_LAYER_NORM, positions=2, bias_keys=("enable_bias",), mlp_bias_keys=("enable_bias",)),
    "bloom": replace(_LAYER_NORM, embedding_norms=4, four_times_hidden=True),
    "falcon": _FALCON,
    # Experts
    "mixtral": Family(experts=Experts(width=_WIDTH)),
    "olmoe": Family(qk_norm=True, spanning_norm=True, experts=Experts(width=_WIDTH)),
    "qwen2_moe": replace(_QWEN2, experts=_QWEN_SHARED),
    "qwen3_moe": replace(_QWEN3, experts=Experts()),
    "qwen3_vl_moe_text": replace(_QWEN3, experts=Experts()),
    "glm4_moe": _GLM_MOE,
    "glm4v_moe_text": _GLM_MOE,
    "minimax_m2": Family(
        qk_norm_key="use_qk_norm", spanning_norm=True,
        experts=Experts(width=_WIDTH, shared=Shared.WIDTH, router_bias=True, wide_router=True),
    ),
    "gpt_oss": Family(
        attention_bias=True, sinks=True, pattern=2,
        experts=Experts(width=_WIDTH, router_bias=True, expert_bias=True),
    ),
    "llama4_text": Family(
        pattern=4, pattern_key="no_rope_layer_interval",
        experts=Experts(
            width=_WIDTH, dense_width="intermediate_size_mlp", shared=Shared.ONE,
            step="interleave_moe_layer_step",
        ),
    ),
    "gemma4_text": replace(
        _GEMMA2, qk_norm=True, pattern=6,
        experts=Experts(shared=Shared.DENSE, optional="enable_moe_block"),
    ),
    "hunyuan": Family(
        tied=True, qk_norm_key="use_qk_norm",
        experts=Experts(width=_WIDTH, shared=Shared.MIXED),
    ),
    # Latent attention
    "deepseek_v2": replace(_DEEPSEEK, experts=Experts(shared=Shared.COUNT, leading=True)),
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "kimi_k25": _DEEPSEEK,
    "glm4_moe_lite": _DEEPSEEK,
    "deepseek_v32": _SPARSE,
    "glm_moe_dsa": _SPARSE,
    # States
    "qwen3_next": replace(_QWEN3_HYBRID, experts=_QWEN_SHARED),
    "qwen3_5_text": _QWEN3_HYBRID,
    "qwen3_5_moe_text": replace(_QWEN3_HYBRID, experts=_QWEN_SHARED),
    "nemotron_h": Family(
        gated=False, norms=1, hybrid=Hybrid.MAMBA2,
        experts=Experts(shared=Shared.COUNT, router_bias=True),
    ),
    "kimi_linear": replace(_DEEPSEEK, hybrid=Hybrid.KIMI_DELTA),
    "minimax_text_01": Family(hybrid=Hybrid.LIGHTNING, experts=Experts(width=_WIDTH)),
}  # fmt: skip
"""By ``model_type``."""

_SAME = {
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "glm4v_moe": "glm4v_moe_text",
    "minimax": "minimax_text_01",
    "minimax_m1": "minimax_text_01",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
}
"""Model types that are known under another name: flat files of what is nested elsewhere, old names."""

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "Glm4MoeForCausalLM": "glm4_moe",
    "GptOssForCausalLM": "gpt_oss",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "NemotronHForCausalLM": "nemotron_h",
    "HunYuanForCausalLM": "hunyuan",
    "HunYuanMoEV1ForCausalLM": "hunyuan",
}
"""Model types by architecture, for files without a model type that is known."""


def find_family(reader: Reader) -> Family | None:
    """The family of the section, or of the whole file where the section names none; None with a problem."""
    for config in (reader.config, reader.outer):
        names = config.get("architectures")
        listed = names if isinstance(names, list) else []
        for name in (config.get("model_type"), *(ARCHITECTURES.get(n) for n in listed if isinstance(n, str))):
            if isinstance(name, str) and (known := _SAME.get(name, name)) in FAMILIES:
                reader.defaults = FAMILIES[known].defaults
                return FAMILIES[known]
        if config.get("model_type") is not None:
            break
    kind = reader.either("model_type")
    if kind is None:
        reader.problem("model_type", "is missing: it says which shape the numbers belong to")
    elif not isinstance(kind, str):
        reader.problem("model_type", "must be a name", kind)
    else:
        rule, suggestion = unknown_name("model_type", kind, tuple(FAMILIES))
        needed = (
            "its layers have to be those of a known one, which a scenario can say: model: {model_type: ...}"
        )
        reader.problem("model_type", f"{rule}; {needed}", kind, suggestion)
    return None
