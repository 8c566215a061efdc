"""What fits on a replica's GPUs: weights, activations, reserves, and the KV cache that remains."""

from __future__ import annotations

import math

from planner.plan import MemoryBudget
from planner.specs import (
    GPU,
    Engine,
    FeedForward,
    MemoryTier,
    MixtureOfExperts,
    Model,
    Parallelism,
    Phase,
    Precision,
    Speculation,
    rows_per_sequence,
)
from planner.transformer import (
    SIXTEEN_BIT,
    equivalent_tokens,
    stage_kv_bytes,
    stage_weight_bytes,
)

PREFILL_SEQUENCES = 256  # most that a prefill replica starts with: few prompts fit into a step
_REFERENCE_CONTEXT = 8192.0  # at which stages of a model with windows are compared [tok]


def sequence_limit(engine: Engine, gpu: GPU, phase: Phase) -> int:
    """Sequences in a step of one attention rank, where nobody says how many."""
    tier = _tier(engine, gpu)
    limit = engine.max_num_seqs if tier is None else tier.max_num_seqs
    return min(limit, PREFILL_SEQUENCES) if phase is Phase.PREFILL else limit


def verified_sequences(limit: int, token_budget: int, speculation: Speculation | None) -> int:
    """Sequences whose drafted tokens fit into a step of `token_budget` tokens, at most `limit`. [1]"""
    return max(min(limit, token_budget // rows_per_sequence(speculation)), 1) if speculation else limit


def prefill_budget(engine: Engine, gpu: GPU) -> int:
    """Tokens in a step of a prefill replica, where nobody says how many. [tok]"""
    tier = _tier(engine, gpu)
    return engine.prefill_token_budget if tier is None else tier.prefill_token_budget


def _tier(engine: Engine, gpu: GPU) -> MemoryTier | None:
    """Defaults for a GPU of this memory; None where they are those of the largest GPUs."""
    return next((tier for tier in engine.memory_tiers if gpu.memory < tier.below), None)


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


def step_bytes(
    model: Model,
    engine: Engine,
    gpu: GPU,
    parallelism: Parallelism,
    max_num_batched_tokens: int,
    max_num_seqs: int,
) -> float:
    """What one step takes on one GPU, as the engine allows for it. [B]

    An engine that measures a step leaves room for just that. One with a `step_reserve` follows its rule,
    ``fixed + tokens per_token + GPUs per_gpu``, and where a step takes more it does not run.
    """
    needed = activation_bytes(model, engine, parallelism.tp, max_num_batched_tokens, max_num_seqs)
    rule = engine.step_reserve
    if rule is None:
        return needed
    reserve = rule.fixed + max_num_batched_tokens * rule.per_token + parallelism.num_gpus * rule.per_gpu
    if gpu.memory > rule.least_above:
        reserve = max(reserve, rule.least)
    return max(needed, reserve)


def memory_budgets(
    model: Model,
    precision: Precision,
    engine: Engine,
    gpu: GPU,
    parallelism: Parallelism,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    speculation: Speculation | None = None,
) -> tuple[MemoryBudget, ...]:
    """Memory of one GPU of each pipeline stage.

    A draft's weights count as weights, on replicas of every phase; the sampler sees all tokens that it
    proposes.

    Notes
    -----
    The parts add up to `usable`: what an engine does not take of the memory that is left beside weights
    and steps (`free_share`) counts as reserved. Where nothing is left, `kv_cache` is what is missing.
    """
    tp, pp = parallelism.tp, parallelism.pp
    usable = gpu.memory * engine.memory_utilization
    sampled = max_num_seqs * rows_per_sequence(speculation)
    activations = step_bytes(model, engine, gpu, parallelism, max_num_batched_tokens, sampled)
    draft = 0.0 if speculation is None else speculation.draft_weights
    outside = engine.non_torch_single if parallelism.num_gpus == 1 else engine.non_torch_parallel
    budgets = []
    for own in stage_weight_bytes(model, precision, tp, pp, parallelism.ep, parallelism.dp):
        weights = own + draft
        free = usable - weights - activations - outside
        left = max(free, 0.0) * (1 - engine.free_share)
        budgets.append(
            MemoryBudget(
                weights=weights,
                activations=activations,
                reserved=outside + left,
                kv_cache=free - left,
                usable=usable,
            )
        )
    return tuple(budgets)


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
            model, precision, engine, gpu, Parallelism(tp=tp), prefill_budget(engine, gpu), 1
        )
        if tightest(budgets).fits:
            return tp
    return None
