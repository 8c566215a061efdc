"""Which replicas are legal, run the formats, and fit into memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from planner.candidates.context import Context, ReplicaChoice
from planner.collectives import beneath, placement_problem, supports_world_size
from planner.engines.formats import gpu_obstacle, kv_obstacle, weights_obstacle
from planner.engines.legality import legal_tp
from planner.memory import (
    kv_capacity,
    memory_budgets,
    prefill_budget,
    sequence_limit,
    tightest,
    verified_sequences,
)
from planner.specs import FleetItem, LatentAttention, MixtureOfExperts, Parallelism, Phase, Precision
from planner.transformer import equivalent_tokens
from planner.units import GIB


def parallelisms(context: Context, item: FleetItem, phase: Phase, precision: Precision) -> list[Parallelism]:
    """Legal layouts on `item`, smallest first: inside one node, which whole numbers of them fill, or on as
    many whole nodes as the options allow."""
    options = context.scenario.options
    model = context.service.model
    most = 1 if phase is Phase.DECODE else options.max_pp
    stages = [2**k for k in range(12) if 2**k <= min(most, item.node_size, model.num_layers)]
    layouts = [
        Parallelism(tp=tp, pp=pp)
        for tp in _tp_sizes(context, item, precision, expert_parallel=False)
        for pp in stages
        if item.node_size % (tp * pp) == 0
    ]
    experts = _expert_layouts(context, item, phase, precision, stages)
    return sorted({*layouts, *experts, *_over_nodes(context, item, phase, precision)})


def _tp_sizes(context: Context, item: FleetItem, precision: Precision, *, expert_parallel: bool) -> list[int]:
    options, model = context.scenario.options, context.service.model
    legal = legal_tp(model, item.node_size, precision, expert_parallel=expert_parallel)
    return [
        tp
        for tp in legal
        if item.node_size % tp == 0
        and tp <= (options.max_tp or tp)
        and (options.allowed_tp is None or tp in options.allowed_tp)
        and supports_world_size(item.gpu, tp)
    ]


def _expert_layouts(
    context: Context, item: FleetItem, phase: Phase, precision: Precision, stages: Sequence[int]
) -> list[Parallelism]:
    """Layouts that spread experts over ranks; for a latent cache also attention data parallelism, which
    does not repeat it. Colocated replicas keep their ranks in step, which no model here covers."""
    model = context.service.model
    routed = [b for run in model.layers if isinstance(b := run.layer.feed_forward, MixtureOfExperts)]
    if not routed:
        return []
    spread = [
        Parallelism(tp=tp, pp=pp, ep=tp)
        for tp in _tp_sizes(context, item, precision, expert_parallel=True)
        for pp in stages
        if tp > 1 and item.node_size % (tp * pp) == 0
    ]
    latent = any(isinstance(run.layer.attention, LatentAttention) for run in model.layers)
    if latent and phase is not Phase.COLOCATED:
        ranks = [n for n in range(2, item.node_size + 1) if item.node_size % n == 0]
        spread += [Parallelism(tp=1, dp=n, ep=n) for n in ranks if supports_world_size(item.gpu, n)]
    return [p for p in spread if all(block.experts % p.ep == 0 for block in routed)]


def _over_nodes(context: Context, item: FleetItem, phase: Phase, precision: Precision) -> list[Parallelism]:
    """Layouts of several whole nodes, which hold whole pipeline stages, or stages whole nodes."""
    most = context.scenario.options.max_nodes_per_replica
    if most == 1 or item.same_node:
        return []
    counts = {2**k for k in range(1, 12) if 2**k <= most} | {most}
    layouts = {
        layout
        for gpus in (nodes * item.node_size for nodes in counts)
        for layout in _of_size(context, item, phase, precision, gpus)
        if not max(size := layout.tp * layout.dp, item.node_size) % min(size, item.node_size)
    }
    return [layout for layout in layouts if not placement_problem(beneath(item, layout), layout)]


def _of_size(
    context: Context, item: FleetItem, phase: Phase, precision: Precision, gpus: int
) -> Iterator[Parallelism]:
    """Layouts of so many GPUs that model, engine and options allow, wherever the GPUs are."""
    options, model = context.scenario.options, context.service.model
    routed = [b for run in model.layers if isinstance(b := run.layer.feed_forward, MixtureOfExperts)]
    stages = min(1 if phase is Phase.DECODE else options.max_pp, model.num_layers)
    for spread in (False, True) if routed else (False,):
        for tp in legal_tp(model, gpus, precision, expert_parallel=spread):
            pp = gpus // tp
            named = options.allowed_tp is None or tp in options.allowed_tp
            whole = not gpus % tp and pp <= stages and all(b.experts % tp == 0 for b in routed if spread)
            if named and whole and tp <= (options.max_tp or tp) and (tp > 1 or not spread):
                yield Parallelism(tp=tp, pp=pp, ep=tp if spread else 1)
    latent = any(isinstance(run.layer.attention, LatentAttention) for run in model.layers)
    if latent and phase is not Phase.COLOCATED and all(b.experts % gpus == 0 for b in routed):
        yield from [Parallelism(tp=1, dp=gpus, ep=gpus)] if routed else []


def fitting_replicas(
    context: Context, phase: Phase, budgets: Sequence[int] | None = None
) -> list[ReplicaChoice]:
    """Every way to build a replica of `phase` that fits; the others are noted with the reason.

    `budgets` are limits on the tokens of a step; None: what the engine takes on each GPU.
    """
    return [
        choice
        for index, item in enumerate(context.fleet)
        if _available(context, item, phase)
        for precision in context.formats
        if _runs(context, item, phase, precision)
        for layout in parallelisms(context, item, phase, precision)
        for budget in budgets or (prefill_budget(context.engine, item.gpu),)
        if (choice := _choice(context, phase, index, precision, layout, budget)) is not None
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


def _runs(context: Context, item: FleetItem, phase: Phase, precision: Precision) -> bool:
    """Whether the engine runs on the GPU, has kernels for the weights and, where it is not the user who says
    so, keeps the KV cache."""
    model, engine = context.service.model, context.engine
    reason = gpu_obstacle(item.gpu, engine) or weights_obstacle(precision, item.gpu, engine)
    if not reason and context.service.choices:
        reason = kv_obstacle(model, precision.kv_cache, item.gpu, engine)
    if reason:
        context.reject(item, phase, Parallelism(), reason, precision)
    return not reason


def _choice(
    context: Context, phase: Phase, index: int, precision: Precision, layout: Parallelism, budget: int
) -> ReplicaChoice | None:
    model, engine, item = context.service.model, context.engine, context.fleet[index]
    sequences = sequence_limit(engine, item.gpu, phase)  # of one attention rank
    speculation = context.service.speculation
    if phase is not Phase.PREFILL:
        sequences = verified_sequences(sequences, budget, speculation)
    budgets = memory_budgets(model, precision, engine, item.gpu, layout, budget, sequences, speculation)
    tokens = kv_capacity(model, precision, engine, layout, budgets)
    memory = tightest(budgets)
    longest = context.traffic.longest_isl if phase is Phase.PREFILL else context.traffic.longest
    room = min(item.max_gpus or layout.num_gpus, item.max_gpus_by_phase.get(phase, layout.num_gpus))
    if layout.num_gpus > room:
        context.reject(item, phase, layout, f"needs {layout.num_gpus} GPUs, the scenario allows {room}")
        return None
    needed = float(equivalent_tokens(model, precision.kv_cache, longest))
    needed += 0.0 if phase is Phase.PREFILL else context.traffic.unaccepted
    if memory.kv_cache <= 0 or tokens < needed * layout.dp:
        reason = (
            f"weights, activations and reserves exceed memory by {-memory.kv_cache / GIB:.1f} GiB per GPU"
            if memory.kv_cache <= 0
            else f"KV cache holds {tokens:,} tokens, the longest sequence needs {math.ceil(needed):,}"
        )
        context.reject(item, phase, layout, reason, precision)
        return None
    return ReplicaChoice(
        phase=phase,
        item=index,
        parallelism=layout,
        precision=precision,
        token_budget=budget,
        max_num_seqs=sequences * layout.dp,
        kv_tokens=tokens,
        memory=memory,
    )
