"""What a configuration may ask for that a family's shape does not have: refused by the key that asks."""

from __future__ import annotations

from planner.documents.model_config.families import Family, Hybrid
from planner.documents.model_config.reader import Reader

_EXPERTS = (
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "moe_topk",
)
_DELTA = ("full_attention_interval", "linear_num_value_heads")
_MAMBA = ("mamba_num_heads", "ssm_state_size", "hybrid_override_pattern", "layers_block_type")
_ALWAYS = {
    "an encoder": ("is_encoder_decoder",),
    "another kind of state-space layer": ("mamba_d_state", "state_size", "attn_layer_period", "ssm_cfg"),
    "compressed attention": ("compress_ratios", "compress_rope_theta"),
    "attention to blocks of tokens that an index picks": ("sparse_attention_config",),
    "hash-routed layers": ("num_hash_layers",),
    "streams beside the residual": ("hc_mult", "attn_res_block_size", "altup_num_inputs"),
    "embeddings of every layer": ("hidden_size_per_layer_input",),
    "values of another width than keys": ("swa_v_head_dim",),
    "a gate on latent attention": ("mla_use_output_gate",),
    "adapters between layers": ("laurel_rank",),
}
_OTHER_WIDTH = "word_embed_proj_dim"


def check_supported(reader: Reader, family: Family | None) -> None:
    """Add a problem for every key that means something this family's shape does not have.

    Without a family, for those that no family has.
    """
    for what, keys in {**_ALWAYS, **(_beyond(family) if family else {})}.items():
        for key in keys:
            if _asked_for(key, reader.either(key)):
                reader.problem(key, f"means {what}, which this version does not model for this model_type")
    width, hidden = reader.get(_OTHER_WIDTH), reader.given("hidden_size")
    if width is not None and hidden is not None and width != hidden[1]:
        reader.problem(_OTHER_WIDTH, "differs from hidden_size, which this version does not model", width)


def _beyond(family: Family) -> dict[str, tuple[str, ...]]:
    """Keys of shapes that other families have."""
    found: dict[str, tuple[str, ...]] = {}
    if family.experts is None:
        found["experts"] = _EXPERTS
    if not family.latent:
        found["latent attention"] = ("kv_lora_rank",)
    if not family.indexer:
        found["sparse attention"] = ("index_topk",)
    if family.hybrid is not Hybrid.GATED_DELTA:
        found["layers of linear attention"] = _DELTA
    if family.hybrid is not Hybrid.MAMBA2:
        found["state-space layers"] = _MAMBA
    if family.hybrid is not Hybrid.KIMI_DELTA:
        found["layers of Kimi delta attention"] = ("linear_attn_config",)
    return found


def _asked_for(key: str, value: object) -> bool:
    """Whether a key is neither null nor off; one expert is none."""
    return bool(value) and not (key.endswith("experts") and value == 1)
