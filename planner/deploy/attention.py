"""The attention backend that all engines which exchange KV caches are pinned to.

Engines refuse at the first request to hand a KV cache to one with another backend, and GPUs of different
generations choose different ones by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.deploy.engine_facts import Backend, EngineFacts
from planner.errors import SpecError
from planner.specs import GPU, Attention, Dtype, LatentAttention, Model


@dataclass(frozen=True, slots=True)
class Pinned:
    """A backend with the size of KV blocks that it runs. [tok]"""

    name: str
    block_size: int


def kind_of(model: Model) -> str:
    """Which backends can run the model's attention: heads, latent or sparse."""
    latents = [m for run in model.layers if isinstance(m := run.layer.attention, LatentAttention)]
    if not latents:
        return "heads"
    return "sparse" if any(mixer.indexer is not None for mixer in latents) else "latent"


def pinned_backend(
    facts: EngineFacts, model: Model, gpus: Sequence[GPU], kv_cache: Dtype, block_size: int
) -> Pinned:
    """The first backend, in the order in which the engine itself chooses, that all of `gpus` can run.

    Where GPUs have different orders, the one whose worst place is best.

    Raises
    ------
    SpecError
        There is none.
    """
    kind = kind_of(model)
    names = sorted({gpu.architecture for gpu in gpus})
    orders = [facts.order[kind].get(name, ()) for name in names]
    common = [b for b in dict.fromkeys(b for order in orders for b in order) if all(b in o for o in orders)]
    able = [b for b in common if all(_runs(facts.backends[b], model, name, kv_cache) for name in names)]
    if not able:
        rule = (
            f"no attention backend of {facts.engine} {facts.version} runs {model.name} on {', '.join(names)}"
        )
        hint = "choose other GPUs or another KV cache format, or give attention_backend in the site file"
        raise SpecError(f"{rule} with a KV cache in {kv_cache} ({hint})")
    chosen = min(able, key=lambda b: (max(o.index(b) for o in orders), sum(o.index(b) for o in orders)))
    return Pinned(chosen, block_size_of(facts.backends[chosen], block_size))


def block_size_of(backend: Backend, wanted: int) -> int:
    """The smallest size of blocks from `wanted` on that the backend runs. [tok]"""
    larger = [size for size in sorted(backend.block_sizes) if size >= wanted]
    return larger[0] if larger else max(backend.block_sizes, default=wanted)


def _runs(backend: Backend, model: Model, architecture: str, kv_cache: Dtype) -> bool:
    if kv_cache is Dtype.FP8 and architecture not in backend.fp8:
        return False
    heads = [m for run in model.layers if isinstance(m := run.layer.attention, Attention)]
    if any(mixer.sinks for mixer in heads) and architecture not in backend.sinks:
        return False
    return not backend.head_sizes or all(mixer.head_dim in backend.head_sizes for mixer in heads)
