"""The optimum by enumeration of all replica counts. Shares no code with the program's encoding or check."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from planner.program.problem import Problem
from planner.specs import ColocatedUse, Objective, Phase


def best_value(problem: Problem) -> float | None:
    """The best objective over all decisions; None if none is feasible."""
    values = list(feasible_values(problem))
    if not values:
        return None
    return max(values) if problem.objective is Objective.THROUGHPUT else min(values)


def feasible_values(problem: Problem) -> Iterator[float]:
    """The objective of every feasible decision."""
    tables = [_capacities(problem, i) for i in range(len(problem.candidates))]
    for counts in product(*(range(c.max_replicas + 1) for c in problem.candidates)):
        value = _value(problem, counts, tables)
        if value is not None:
            yield value


def _capacities(problem: Problem, index: int) -> list[float]:
    """Capacity of 0, 1, 2, ... replicas with the spares down."""
    candidate = problem.candidates[index]
    table = []
    for n in range(candidate.max_replicas + 1):
        serving = n - problem.spare_replicas
        rate = 0.0
        for start, per_replica in zip(candidate.curve.starts, candidate.curve.per_replica, strict=True):
            if serving >= start:
                rate = per_replica
        table.append(max(serving, 0) * rate)
    return table


def _value(problem: Problem, counts: tuple[int, ...], tables: list[list[float]]) -> float | None:
    groups = [i for i, n in enumerate(counts) if n]
    phases = {problem.candidates[i].phase for i in groups}
    if not _legal_phases(problem, phases):
        return None
    if any(tables[i][counts[i]] <= 0 for i in groups):
        return None
    if any((i, j) in problem.illegal_pairs for i in groups for j in groups):
        return None
    for phase in phases:
        if (
            sum(counts[i] for i in groups if problem.candidates[i].phase is phase)
            < problem.min_replicas_per_pool
        ):
            return None
    rates = [
        sum(tables[i][counts[i]] for i in groups if problem.candidates[i].phase is phase) for phase in phases
    ]
    if problem.demand is not None and min(rates) < problem.demand:
        return None
    paid = _paid(problem, counts)
    if paid is None:
        return None
    return min(rates) if problem.objective is Objective.THROUGHPUT else _objective(problem, paid)


def _legal_phases(problem: Problem, phases: set[Phase]) -> bool:
    if phases == {Phase.COLOCATED}:
        return problem.colocated is not ColocatedUse.FORBIDDEN
    if phases == {Phase.PREFILL, Phase.DECODE}:
        return problem.colocated is not ColocatedUse.ONLY
    return False


def _paid(problem: Problem, counts: tuple[int, ...]) -> list[int] | None:
    """GPUs paid for per type; None where stock, caps, budget or the number of types forbid it."""
    paid = []
    for g, kind in enumerate(problem.gpu_types):
        by_phase = {
            phase: sum(
                n * c.gpus
                for c, n in zip(problem.candidates, counts, strict=True)
                if c.gpu_type == g and c.phase is phase
            )
            for phase in Phase
        }
        if any(by_phase[phase] > cap for phase, cap in kind.max_gpus_by_phase.items()):
            return None
        used = sum(by_phase.values())
        gpus = math.ceil(used / kind.node_size) * kind.node_size if problem.whole_nodes else used
        if kind.max_gpus is not None and gpus > kind.max_gpus:
            return None
        paid.append(gpus)
    cost = sum(gpus * (kind.price or 0) for gpus, kind in zip(paid, problem.gpu_types, strict=True))
    if problem.budget is not None and cost > problem.budget:
        return None
    if problem.max_gpu_types is not None and sum(gpus > 0 for gpus in paid) > problem.max_gpu_types:
        return None
    return paid


def _objective(problem: Problem, paid: list[int]) -> float:
    weights = {
        Objective.COST: [kind.price or 0.0 for kind in problem.gpu_types],
        Objective.GPUS: [1.0] * len(paid),
        Objective.POWER: [kind.power for kind in problem.gpu_types],
    }[problem.objective]
    return sum(gpus * weight for gpus, weight in zip(paid, weights, strict=True))
