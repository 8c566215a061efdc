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
    node = item.node_size
    stages = [2**k for k in range(12) if 2**k <= node]
    within = {
        layout
        for layout in _dividing(context, phase, precision, node, stages)
        if supports_world_size(item.gpu, layout.tp * layout.dp)
    }
    return sorted(within | _over_nodes(context, item, phase, precision))


def _over_nodes(context: Context, item: FleetItem, phase: Phase, precision: Precision) -> set[Parallelism]:
    """Layouts of several whole nodes, each of which holds whole pipeline stages or a share of one."""
    node, most = item.node_size, context.scenario.options.max_nodes_per_replica
    if most == 1 or item.same_node:
        return set()
    return {
        layout
        for nodes in {2**k for k in range(1, 12) if 2**k <= most} | {most}
        for layout in _dividing(context, phase, precision, nodes * node, range(1, nodes * node + 1))
        if layout.num_gpus == nodes * node
        and (node % (width := layout.tp * layout.dp) == 0 or width % node == 0)
        and not placement_problem(beneath(item, layout), layout)
    }


def _dividing(
    context: Context, phase: Phase, precision: Precision, gpus: int, stages: Sequence[int]
) -> Iterator[Parallelism]:
    """Layouts that model, engine and options allow, whose replicas fill `gpus`; wherever these are.

    Experts are cut by the ranks, or spread over them; for a latent cache also with attention data
    parallelism, which does not repeat it. Colocated replicas keep their ranks in step, which no model here
    covers.
    """
    options, model = context.scenario.options, context.service.model
    most = min(1 if phase is Phase.DECODE else options.max_pp, model.num_layers)
    routed = [b for run in model.layers if isinstance(b := run.layer.feed_forward, MixtureOfExperts)]

    def spreads(ranks: int) -> bool:
        return bool(routed) and ranks > 1 and all(block.experts % ranks == 0 for block in routed)

    for spread in (False, True):
        for tp in _tp_sizes(context, gpus, precision, expert_parallel=spread):
            for pp in stages:
                if pp <= most and gpus % (tp * pp) == 0 and (not spread or spreads(tp)):
                    yield Parallelism(tp=tp, pp=pp, ep=tp if spread else 1)
    latent = any(isinstance(run.layer.attention, LatentAttention) for run in model.layers)
    if latent and phase is not Phase.COLOCATED:
        ranks = (n for n in range(2, gpus + 1) if gpus % n == 0 and spreads(n))
        yield from (Parallelism(tp=1, dp=n, ep=n) for n in ranks)


def _tp_sizes(context: Context, gpus: int, precision: Precision, *, expert_parallel: bool) -> list[int]:
    options, model = context.scenario.options, context.service.model
    return [
        tp
        for tp in legal_tp(model, gpus, precision, expert_parallel=expert_parallel)
        if gpus % tp == 0
        and tp <= (options.max_tp or tp)
        and (options.allowed_tp is None or tp in options.allowed_tp)
    ]


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
