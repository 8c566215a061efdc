"""What a model costs in parameters, bytes and FLOP, sharded over a replica's GPUs.

Everything here is arithmetic on shapes: no GPU, no time. KV heads per rank are
``max(1, kv_heads / tp)``, so bytes stop shrinking beyond ``tp == kv_heads``; a latent (MLA) is held
whole by every rank.
"""

from planner.transformer.cache import (
    equivalent_tokens,
    kv_bytes,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    kv_copies,
    kv_heads_per_rank,
    kv_read_bytes,
    layer_kv_bytes_per_token,
    layer_kv_read_bytes,
    seen_context,
    stage_kv_bytes,
    stage_kv_bytes_per_token,
)
from planner.transformer.weights import (
    SIXTEEN_BIT,
    Shards,
    active_parameters,
    active_weight_bytes,
    layer_weights,
    padded_vocabulary,
    parameters,
    stage_layers,
    stage_weight_bytes,
    stages,
    weight_bytes,
)
from planner.transformer.work import (
    attention_area,
    attention_flop,
    decode_flop,
    head_flop,
    matrix_flop_per_token,
    mixing_flop_per_pair,
    prefill_flop,
    state_flop,
    windowed_area,
)

__all__ = [
    "SIXTEEN_BIT",
    "Shards",
    "active_parameters",
    "active_weight_bytes",
    "attention_area",
    "attention_flop",
    "decode_flop",
    "equivalent_tokens",
    "head_flop",
    "kv_bytes",
    "kv_bytes_per_sequence",
    "kv_bytes_per_token",
    "kv_copies",
    "kv_heads_per_rank",
    "kv_read_bytes",
    "layer_kv_bytes_per_token",
    "layer_kv_read_bytes",
    "layer_weights",
    "matrix_flop_per_token",
    "mixing_flop_per_pair",
    "padded_vocabulary",
    "parameters",
    "prefill_flop",
    "seen_context",
    "stage_kv_bytes",
    "stage_kv_bytes_per_token",
    "stage_layers",
    "stage_weight_bytes",
    "stages",
    "state_flop",
    "weight_bytes",
    "windowed_area",
]
