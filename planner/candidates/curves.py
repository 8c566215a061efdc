"""From capacity curves to candidates of the program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from planner.candidates.context import CandidateSet, Context, ReplicaChoice
from planner.capacity import Curves, pooled
from planner.plan import Binding
from planner.program import Candidate, CapacityCurve
from planner.specs import FleetItem, Objective, Phase
from planner.units import GIGA, MILLI

MOST_REPLICAS = 2**20
_EXACT = 6  # replica counts evaluated one by one before ranges grow
_GROWTH = 1.25
_SEGMENT = 6  # ranges that are evaluated together


def replica_counts(most: int) -> tuple[int, ...]:
    """First replica count of each range that `most` reaches: one by one, then growing by a quarter.

    The counts do not depend on `most` but for their end, so that curves of different scenarios compare.
    """
    starts = list(range(1, min(most, _EXACT) + 1))
    while starts[-1] < most:
        starts.append(math.ceil(starts[-1] * _GROWTH))
    return tuple(starts)


def collect(
    context: Context, choices: Sequence[ReplicaChoice], curves: Callable[[tuple[int, ...]], Curves]
) -> CandidateSet:
    """Evaluate `curves` on as many replica counts as the demand can use, and keep who carries load.

    They are evaluated segment by segment of the counts, so that no result depends on how many are asked for.
    """
    single = curves(_RANGES[:_SEGMENT]).per_replica[:, 0]
    useful = [i for i, rate in enumerate(single) if rate > 0]
    for i in set(range(len(choices))) - set(useful):
        choice = choices[i]
        item = context.fleet[choice.item]
        reason = "one request alone exceeds an SLO"
        context.reject(item, choice.phase, choice.parallelism, reason, choice.precision)
    if not useful:
        return CandidateSet(evaluated=len(choices))
    most = [_most_replicas(context, choices[i], float(single[i])) for i in useful]
    table = _joined(curves, len(replica_counts(max(1, *most))))
    starts = tuple(int(n) for n in table.starts)
    return CandidateSet(
        candidates=tuple(
            Candidate(
                name=candidate_name(context, choices[i]),
                phase=choices[i].phase,
                gpu_type=choices[i].item,
                gpus=choices[i].parallelism.num_gpus,
                curve=CapacityCurve(starts=starts, per_replica=tuple(table.per_replica[i].tolist())),
                max_replicas=most[k],
            )
            for k, i in enumerate(useful)
        ),
        choices=tuple(choices[i] for i in useful),
        operating=tuple(table.operating[i] for i in useful),
        binds=tuple(tuple(Binding(str(b)) for b in table.binds[i]) for i in useful),
        evaluated=len(choices),
    )


_RANGES = replica_counts(MOST_REPLICAS)


def _joined(curves: Callable[[tuple[int, ...]], Curves], count: int) -> Curves:
    """Curves on the first `count` ranges of replica counts."""
    parts = [curves(_RANGES[k : k + _SEGMENT]) for k in range(0, count, _SEGMENT)]
    columns = (
        np.concatenate([getattr(part, name) for part in parts], axis=-1)[..., :count]
        for name in ("starts", "per_replica", "operating", "binds")
    )
    return pooled(Curves(*columns))


def _most_replicas(context: Context, choice: ReplicaChoice, single: float) -> int:
    """Replicas that the stock holds, and that the demand can use with spares and minimum."""
    options = context.scenario.options
    stock = replicas_in_stock(context.fleet[choice.item], choice)
    if context.scenario.objective is Objective.THROUGHPUT:
        return stock
    needed = math.ceil(context.demand / single) + _lost(context, choice)
    return min(stock, max(needed, options.min_replicas_per_pool))


def _lost(context: Context, choice: ReplicaChoice) -> int:
    """Replicas that a group may lose at once."""
    options = context.scenario.options
    node = context.fleet[choice.item].node_size // choice.parallelism.num_gpus
    return max(options.spare_replicas, max(node, 1) if options.survive_node else 0)


def replicas_in_stock(item: FleetItem, choice: ReplicaChoice) -> int:
    """Replicas that the GPUs to be had, and the cap of their pool, are enough for."""
    caps = [MOST_REPLICAS]
    if item.max_gpus is not None:
        caps.append(item.max_gpus // choice.parallelism.num_gpus)
    if choice.phase in item.max_gpus_by_phase:
        caps.append(item.max_gpus_by_phase[choice.phase] // choice.parallelism.num_gpus)
    return min(caps)


def candidate_name(context: Context, choice: ReplicaChoice) -> str:
    """Unique and readable: phase, GPU, layout, and what else tells candidates apart."""
    item = context.fleet[choice.item]
    parts = [choice.phase.value, item.gpu.name, f"tp{choice.parallelism.tp}"]
    sizes = {"pp": choice.parallelism.pp, "ep": choice.parallelism.ep, "dp": choice.parallelism.dp}
    parts += [f"{name}{size}" for name, size in sizes.items() if size > 1]
    parts += [label] if (label := context.formats[choice.precision]) else []
    if choice.phase is Phase.COLOCATED:
        parts.append(f"chunk{choice.token_budget}")
    if math.isfinite(choice.path_rate):
        parts.append(f"path{choice.path_rate / GIGA:.4g}")
    if math.isfinite(choice.first_step):
        parts.append(f"step{choice.first_step / MILLI:g}")
    return "-".join(parts)
