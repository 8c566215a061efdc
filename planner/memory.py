"""What fits on a replica's GPUs: weights, activations, reserves, and the KV cache that remains."""

from __future__ import annotations

import math

from planner.plan import MemoryBudget
from planner.specs import (
    GPU,
    Engine,
    FeedForward,
    MixtureOfExperts,
    Model,
    Parallelism,
    Phase,
    Precision,
)
from planner.transformer import (
    SIXTEEN_BIT,
    equivalent_tokens,
    stage_kv_bytes,
    stage_weight_bytes,
)
from planner.units import GIB

SMALL_GPU_MEMORY = 70 * GIB  # engines default to fewer sequences below it [B]
SMALL_GPU_SEQUENCES = 256
_REFERENCE_CONTEXT = 8192.0  # at which stages of a model with windows are compared [tok]


def sequence_limit(engine: Engine, gpu: GPU, phase: Phase) -> int:
    """Sequences in a step of one attention rank, where nobody says how many."""
    if phase is Phase.PREFILL or gpu.memory < SMALL_GPU_MEMORY:
        return min(engine.max_num_seqs, SMALL_GPU_SEQUENCES)
    return engine.max_num_seqs


def _widest(block: FeedForward | MixtureOfExperts | None) -> int:
    """Values that a block's inner activations hold per token."""
    if block is None:
        return 0
    if isinstance(block, FeedForward):
        return block.matrices * block.intermediate
    return block.matrices * (block.top_k * block.intermediate + block.shared_intermediate)


def activation_bytes(
    model: Model, engine: Engine, tp: int, max_num_batched_tokens: int, max_num_seqs: int
) -> float:
    """Peak memory of one step beside weights and KV cache, on one GPU. [B]

    The larger of two moments: the feed-forward block (input, gate and up, product of the two) and the
    sampler, whose logits cover the whole vocabulary on every rank.

    Notes
    -----
    The sampler's bytes per entry are an engine constant, fitted on two measured models; see the engine
    file.
    """
    tokens = max_num_batched_tokens
    hidden = tokens * model.hidden * SIXTEEN_BIT
    widest = max(_widest(run.layer.feed_forward) for run in model.kinds)
    feed_forward = 2 * hidden + tokens * widest / tp * SIXTEEN_BIT
    sampler = hidden + min(max_num_seqs, tokens) * model.vocab * engine.logits_bytes_per_entry
    return max(feed_forward, sampler)


def memory_budgets(
    model: Model,
    precision: Precision,
    engine: Engine,
    gpu: GPU,
    parallelism: Parallelism,
    max_num_batched_tokens: int,
    max_num_seqs: int,
) -> tuple[MemoryBudget, ...]:
    """Memory of one GPU of each pipeline stage."""
    tp, pp = parallelism.tp, parallelism.pp
    usable = gpu.memory * engine.memory_utilization
    activations = activation_bytes(model, engine, tp, max_num_batched_tokens, max_num_seqs)
    reserved = engine.non_torch_single if parallelism.num_gpus == 1 else engine.non_torch_parallel
    return tuple(
        MemoryBudget(
            weights=weights,
            activations=activations,
            reserved=reserved,
            kv_cache=usable - weights - activations - reserved,
            usable=usable,
        )
        for weights in stage_weight_bytes(model, precision, tp, pp, parallelism.ep, parallelism.dp)
    )


def kv_capacity(
    model: Model,
    precision: Precision,
    engine: Engine,
    parallelism: Parallelism,
    budgets: tuple[MemoryBudget, ...],
) -> int:
    """Tokens that fit into the KV cache of a replica, in whole blocks; 0 if the weights do not fit.

    Every stage holds its own layers of every token, so the tightest stage decides. Attention ranks hold
    different sequences. A model with windows or recurrent states counts tokens of its full attention: see
    :func:`~planner.transformer.equivalent_tokens`.
    """
    held = stage_kv_bytes(model, precision.kv_cache, parallelism.tp, parallelism.pp, _REFERENCE_CONTEXT)
    unit = float(equivalent_tokens(model, precision.kv_cache, _REFERENCE_CONTEXT))
    tokens = min(b.kv_cache * unit / h for b, h in zip(budgets, held, strict=True) if h > 0)
    return parallelism.dp * max(0, math.floor(tokens / engine.block_size) * engine.block_size)


def tightest(budgets: tuple[MemoryBudget, ...]) -> MemoryBudget:
    """Budget of the stage with the least memory left."""
    return min(budgets, key=lambda b: b.kv_cache)


def fewest_gpus(
    model: Model, precision: Precision, engine: Engine, gpu: GPU, sizes: tuple[int, ...]
) -> int | None:
    """Smallest tensor-parallel size of `sizes` at which the weights fit, None if none."""
    for tp in sorted(sizes):
        budgets = memory_budgets(
            model, precision, engine, gpu, Parallelism(tp=tp), engine.prefill_token_budget, 1
        )
        if tightest(budgets).fits:
            return tp
    return None
