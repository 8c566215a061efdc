"""Facts of a model as ``planner models`` prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from planner.engines.legality import MAX_TP, legal_tp
from planner.specs import (
    Attention,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    MixtureOfExperts,
    Model,
    Precision,
)
from planner.transformer import (
    active_parameters,
    kv_bytes_per_sequence,
    kv_bytes_per_token,
    parameters,
    weight_bytes,
)

MAX_NODES_TP = 64
"""Upper end of the tensor-parallel sizes across nodes that are listed."""


def model_facts(model: Model) -> dict[str, Any]:
    """Fields of the contract for model facts, and what else a reader asks for.

    Bytes are in the checkpoint's own formats. A window or a state counts per sequence, not per token.
    """
    precision = Precision.of(model)
    sizes = legal_tp(model, MAX_NODES_TP, precision)
    spread = legal_tp(model, MAX_NODES_TP, precision, expert_parallel=True)
    return {
        "name": model.name,
        "parameters": parameters(model),
        "active_parameters": active_parameters(model),
        "weight_dtype": precision.weights.value,
        "attention_dtype": precision.of_attention.value,
        "expert_dtype": precision.of_experts.value if _has_experts(model) else None,
        "kv_cache_dtype": precision.kv_cache.value,
        "weight_bytes": round(weight_bytes(model, precision)),
        "kv_bytes_per_token": round(kv_bytes_per_token(model, precision.kv_cache)),
        "kv_bytes_per_sequence": round(kv_bytes_per_sequence(model, precision.kv_cache)),
        "layers": model.num_layers,
        "attention_kinds": _counted(_mixer(layer.attention) for layer in _layers(model)),
        "feed_forward_kinds": _counted(_block(layer.feed_forward) for layer in _layers(model)),
        "max_context": model.max_context,
        "legal_tp": [n for n in sizes if n <= MAX_TP],
        "legal_tp_across_nodes": [n for n in sizes if n > MAX_TP],
        "legal_tp_with_ep": [n for n in spread if n not in sizes],
        "notes": list(model.notes),
        "source": model.source,
    }


def _has_experts(model: Model) -> bool:
    return any(isinstance(run.layer.feed_forward, MixtureOfExperts) for run in model.layers)


def _layers(model: Model) -> Iterator[Layer]:
    for run in model.layers:
        yield from [run.layer] * run.count


def _counted(texts: Iterable[str]) -> list[str]:
    """How many layers there are of each kind, in the order of their first."""
    return [f"{count} x {text}" for text, count in Counter(t for t in texts if t).items()]


def _mixer(mixer: Mixer | None) -> str:
    if mixer is None:
        return ""
    if isinstance(mixer, LatentAttention):
        text = f"latent attention, {mixer.heads} heads, latent of {mixer.kv_rank} + {mixer.rope_dim}"
        indexer = mixer.indexer
        if indexer is None:
            return text
        own = "an indexer" if indexer.heads else "an earlier layer's indexer"
        return f"{text}, sparse: {own} picks {indexer.top_k:,} tokens"
    if not isinstance(mixer, Attention):
        return f"{mixer.kind.replace('_', ' ')}, {mixer.heads} heads, a state instead of a cache"
    kind = "full attention" if mixer.window is None else f"attention within {mixer.window:,} tokens"
    heads = f"{mixer.heads} heads, {mixer.kv_heads} KV heads of {mixer.head_dim}"
    return f"{kind}, {heads}" + ("" if mixer.owns_kv else ", cache of an earlier layer")


def _block(block: FeedForward | MixtureOfExperts | None) -> str:
    if block is None:
        return ""
    if isinstance(block, FeedForward):
        return f"dense {block.intermediate:,}"
    shared = f", shared {block.shared_intermediate:,}" if block.shared_intermediate else ""
    return f"{block.experts} experts of {block.intermediate:,}, {block.top_k} per token{shared}"
