"""Which replicas are legal, run the formats, and fit into memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.candidates.context import Context, ReplicaChoice
from planner.collectives import supports_world_size
from planner.engines.legality import legal_tp
from planner.memory import kv_capacity, memory_budgets, sequence_limit, tightest
from planner.roofline import dtype_of_rows
from planner.specs import FleetItem, LatentAttention, MixtureOfExperts, Parallelism, Phase
from planner.transformer import equivalent_tokens
from planner.units import GIB


def parallelisms(context: Context, item: FleetItem, phase: Phase) -> list[Parallelism]:
    """Legal layouts inside one node of `item`, smallest first; whole numbers of them fill a node."""
    options = context.scenario.options
    model = context.service.model
    most = 1 if phase is Phase.DECODE else options.max_pp
    stages = [2**k for k in range(12) if 2**k <= min(most, item.node_size, model.num_layers)]
    layouts = [
        Parallelism(tp=tp, pp=pp)
        for tp in _tp_sizes(context, item, expert_parallel=False)
        for pp in stages
        if item.node_size % (tp * pp) == 0
    ]
    return sorted({*layouts, *_expert_layouts(context, item, phase, stages)})


def _tp_sizes(context: Context, item: FleetItem, *, expert_parallel: bool) -> list[int]:
    options, service = context.scenario.options, context.service
    legal = legal_tp(service.model, item.node_size, service.precision, expert_parallel=expert_parallel)
    return [
        tp
        for tp in legal
        if item.node_size % tp == 0
        and tp <= (options.max_tp or tp)
        and (options.allowed_tp is None or tp in options.allowed_tp)
        and supports_world_size(item.gpu, tp)
    ]


def _expert_layouts(
    context: Context, item: FleetItem, phase: Phase, stages: Sequence[int]
) -> list[Parallelism]:
    """Layouts that spread experts over ranks; for a latent cache also attention data parallelism, which
    does not repeat it. Colocated replicas keep their ranks in step, which no model here covers."""
    model = context.service.model
    routed = [b for run in model.layers if isinstance(b := run.layer.feed_forward, MixtureOfExperts)]
    if not routed:
        return []
    spread = [
        Parallelism(tp=tp, pp=pp, ep=tp)
        for tp in _tp_sizes(context, item, expert_parallel=True)
        for pp in stages
        if tp > 1 and item.node_size % (tp * pp) == 0
    ]
    latent = any(isinstance(run.layer.attention, LatentAttention) for run in model.layers)
    if latent and phase is not Phase.COLOCATED:
        ranks = [n for n in range(2, item.node_size + 1) if item.node_size % n == 0]
        spread += [Parallelism(tp=1, dp=n, ep=n) for n in ranks if supports_world_size(item.gpu, n)]
    return [p for p in spread if all(block.experts % p.ep == 0 for block in routed)]


def fitting_replicas(context: Context, phase: Phase, budgets: Sequence[int]) -> list[ReplicaChoice]:
    """Every way to build a replica of `phase` that fits; the others are noted with the reason."""
    return [
        choice
        for index, item in enumerate(context.fleet)
        if _available(context, item, phase) and _runs(context, item, phase)
        for layout in parallelisms(context, item, phase)
        for budget in budgets
        if (choice := _choice(context, phase, index, item, layout, budget)) is not None
    ]


def _available(context: Context, item: FleetItem, phase: Phase) -> bool:
    """Whether the scenario leaves any of these GPUs to the pool."""
    if item.max_gpus == 0:
        reason = "max_gpus is 0"
    elif item.max_gpus_by_phase.get(phase) == 0:
        reason = f"max_{phase}_gpus is 0"
    else:
        return True
    context.reject(item, phase, Parallelism(), reason)
    return False


def _runs(context: Context, item: FleetItem, phase: Phase) -> bool:
    """Whether the GPU has kernels for the weights, natively or as stored weights in 16-bit arithmetic."""
    precision = context.service.precision
    formats = {precision.weights, precision.of_attention, precision.of_experts}
    stored = context.engine.weight_only_dtypes
    missing = sorted(d for d in formats if dtype_of_rows(d, item.gpu) is None and d not in stored)
    if not missing:
        return True
    reason = f"no kernel for {', '.join(missing)} weights"
    context.reject(item, phase, Parallelism(), reason)
    return False


def _choice(
    context: Context, phase: Phase, index: int, item: FleetItem, layout: Parallelism, budget: int
) -> ReplicaChoice | None:
    service, engine = context.service, context.engine
    sequences = sequence_limit(engine, item.gpu, phase)  # of one attention rank
    budgets = memory_budgets(service.model, service.precision, engine, item.gpu, layout, budget, sequences)
    tokens = kv_capacity(service.model, service.precision, engine, layout, budgets)
    memory = tightest(budgets)
    longest = context.traffic.longest_isl if phase is Phase.PREFILL else context.traffic.longest
    room = min(item.max_gpus or layout.num_gpus, item.max_gpus_by_phase.get(phase, layout.num_gpus))
    if layout.num_gpus > room:
        context.reject(item, phase, layout, f"needs {layout.num_gpus} GPUs, the scenario allows {room}")
        return None
    needed = float(equivalent_tokens(service.model, service.precision.kv_cache, longest))
    if memory.kv_cache <= 0 or tokens < needed * layout.dp:
        reason = (
            f"weights, activations and reserves exceed memory by {-memory.kv_cache / GIB:.1f} GiB per GPU"
            if memory.kv_cache <= 0
            else f"KV cache holds {tokens:,} tokens, the longest sequence needs {math.ceil(needed):,}"
        )
        context.reject(item, phase, layout, reason)
        return None
    return ReplicaChoice(
        phase=phase,
        item=index,
        parallelism=layout,
        token_budget=budget,
        max_num_seqs=sequences * layout.dp,
        kv_tokens=tokens,
        memory=memory,
    )
