"""The optimum by enumeration of all replica counts. Shares no code with the program's encoding or check."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from planner.program.problem import Problem
from planner.specs import ColocatedUse, Objective, Phase, SpareScope

Counts = tuple[int, ...]
Pools = dict[tuple[str, Phase], float]


def best_value(problem: Problem) -> float | None:
    """The best objective over all decisions; None if none is feasible."""
    values = list(feasible_values(problem))
    if not values:
        return None
    return max(values) if problem.objective is Objective.THROUGHPUT else min(values)


def feasible_values(problem: Problem) -> Iterator[float]:
    """The objective of every feasible decision."""
    for counts in product(*(range(c.max_replicas + 1) for c in problem.candidates)):
        value = value_of(problem, counts)
        if value is not None:
            yield value


def value_of(problem: Problem, counts: Counts) -> float | None:
    """The objective of a decision; None where it breaks a rule."""
    paid = _paid(problem, counts)
    if paid is None or not _groups_are_sound(problem, counts):
        return None
    rate, egress = math.inf, 0.0
    for stream in range(len(problem.streams)):
        found = _stream(problem, counts, stream)
        if found is None:
            return None
        rate, egress = min(rate, found[0]), egress + found[1]
    if problem.objective is Objective.THROUGHPUT:
        if not _within_budget(problem, paid, 0.0):
            return None
        return rate * sum(s.share for s in problem.streams) if rate > 0 else None
    if not _within_budget(problem, paid, egress):
        return None
    weights = {
        Objective.COST: [kind.price or 0.0 for kind in problem.gpu_types],
        Objective.GPUS: [1.0] * len(paid),
        Objective.POWER: [kind.power for kind in problem.gpu_types],
    }[problem.objective]
    value = sum(gpus * weight for gpus, weight in zip(paid, weights, strict=True))
    if problem.objective is Objective.COST:
        value += egress
        for kind in problem.moves:
            value += kind.cost * max(sum(counts[i] for i in kind.candidates) - kind.current, 0)
    return value


def _rate(problem: Problem, index: int, replicas: int) -> float:
    """What so many replicas carry."""
    curve, rate = problem.candidates[index].curve, 0.0
    for start, per_replica in zip(curve.starts, curve.per_replica, strict=True):
        if replicas >= start:
            rate = replicas * per_replica
    return rate


def _spares(problem: Problem) -> int:
    return problem.spare_replicas if problem.spare_scope is SpareScope.GROUP else 0


def _groups_are_sound(problem: Problem, counts: Counts) -> bool:
    """Each group carries something without its spares; groups that meet are legal."""
    groups = [i for i, n in enumerate(counts) if n]
    if any(_rate(problem, i, counts[i] - _spares(problem)) <= 0 for i in groups):
        return False
    for i, j in problem.illegal_pairs:
        kinds = [problem.gpu_types[problem.candidates[k].gpu_type] for k in (i, j)]
        meet = problem.across_zones or kinds[0].zone == kinds[1].zone
        if counts[i] and counts[j] and meet:
            return False
    return True


def _stream(problem: Problem, counts: Counts, stream: int) -> tuple[float, float] | None:
    """Load carried at a share of 1, and what its traffic between zones costs; None where a rule is broken."""
    mine = {i for i, c in enumerate(problem.candidates) if c.stream == stream and counts[i]}
    phases = {problem.candidates[i].phase for i in mine}
    if phases == {Phase.COLOCATED}:
        allowed = problem.colocated is not ColocatedUse.FORBIDDEN
    else:
        # In several zones a pool without a partner is allowed, if useless.
        several = len({problem.gpu_types[c.gpu_type].zone for c in problem.candidates}) > 1
        whole = phases == {Phase.PREFILL, Phase.DECODE}
        allowed = problem.colocated is not ColocatedUse.ONLY and (whole or (several and not phases))
    if not allowed:
        return None
    for phase in phases:
        members = [i for i in mine if problem.candidates[i].phase is phase]
        if sum(counts[i] for i in members) < problem.min_replicas_per_pool:
            return None
    share = problem.streams[stream].share
    carried = min(load / wanted for load, wanted in _events(problem, counts, mine)) / share
    if problem.demand is None:
        return carried, 0.0
    if carried < problem.demand * (1 - 1e-9):
        return None
    return carried, _egress(problem, counts, mine, problem.demand * share) * problem.streams[
        stream
    ].egress_cost


def _events(problem: Problem, counts: Counts, mine: set[int]) -> Iterator[tuple[float, float]]:
    """Load carried and share of the demand that is wanted, for everything that may happen."""
    yield _through(problem, counts, mine, usual=True), 1.0
    if problem.survive_zone:
        for zone in {problem.gpu_types[c.gpu_type].zone for c in problem.candidates}:
            left = {i for i in mine if problem.gpu_types[problem.candidates[i].gpu_type].zone != zone}
            yield _through(problem, counts, left, usual=False), 1.0
    if problem.on_demand_floor > 0:
        left = {i for i in mine if not problem.gpu_types[problem.candidates[i].gpu_type].spot}
        yield _through(problem, counts, left, usual=False), problem.on_demand_floor


def _pools(
    problem: Problem, counts: Counts, mine: set[int], *, usual: bool
) -> dict[tuple[str, Phase], float]:
    """Load of each pool by zone and phase: usually with spares down, or any one group short of what it may
    lose."""
    pools: dict[tuple[str, Phase], list[int]] = {}
    for i in mine:
        candidate = problem.candidates[i]
        pools.setdefault((problem.gpu_types[candidate.gpu_type].zone, candidate.phase), []).append(i)
    found = {}
    for key, members in pools.items():
        full = {i: _rate(problem, i, counts[i]) for i in members}
        loads = [sum(full.values())]
        if usual:
            loads = [sum(_rate(problem, i, counts[i] - _spares(problem)) for i in members)]
            for i in members:
                lost = _lost(problem, i)
                if lost:
                    loads.append(sum(full.values()) - full[i] + _rate(problem, i, counts[i] - lost))
        found[key] = min(loads)
    return found


def _lost(problem: Problem, index: int) -> int:
    lost = problem.spare_replicas if problem.spare_scope is SpareScope.POOL else 0
    if problem.survive_node:
        candidate = problem.candidates[index]
        per_node = problem.gpu_types[candidate.gpu_type].node_size // candidate.gpus
        lost = max(lost, 1, per_node)
    return lost


def _through(problem: Problem, counts: Counts, mine: set[int], *, usual: bool) -> float:
    pools = _pools(problem, counts, mine, usual=usual)
    zones = {zone for zone, _ in pools}
    if problem.across_zones:
        total = {p: sum(load for (_, phase), load in pools.items() if phase is p) for p in Phase}
        return min(total[Phase.PREFILL], total[Phase.DECODE]) + total[Phase.COLOCATED]
    return sum(_within(pools, zone) for zone in zones)


def _within(pools: Pools, zone: str) -> float:
    prefill, decode, colocated = (pools.get((zone, p), 0.0) for p in Phase)
    return min(prefill, decode) + colocated


def _egress(problem: Problem, counts: Counts, mine: set[int], rate: float) -> float:
    """Load that has to change zones."""
    if not problem.across_zones:
        return 0.0
    pools = _pools(problem, counts, mine, usual=True)
    return max(rate - sum(_within(pools, zone) for zone in {zone for zone, _ in pools}), 0.0)


def _paid(problem: Problem, counts: Counts) -> list[int] | None:
    """GPUs paid for per type; None where stock, caps or the number of types forbid it."""
    paid = []
    for g, kind in enumerate(problem.gpu_types):
        members = [(c, n) for c, n in zip(problem.candidates, counts, strict=True) if c.gpu_type == g and n]
        for phase, cap in kind.max_gpus_by_phase.items():
            if sum(n * c.gpus for c, n in members if c.phase is phase) > cap:
                return None
        used = sum(n * c.gpus for c, n in members)
        size = kind.node_size if problem.whole_nodes else 1
        gpus = math.ceil(used / size) * size
        if kind.max_gpus is not None:
            room = kind.max_gpus // size * size
            surge = max((problem.surge_replicas * c.gpus for c, _ in members), default=0)
            if gpus > kind.max_gpus or used + surge > room:
                return None
        paid.append(gpus)
    for zone, cap in problem.zone_caps.items():
        if sum(gpus for gpus, kind in zip(paid, problem.gpu_types, strict=True) if kind.zone == zone) > cap:
            return None
    watts = sum(gpus * kind.power for gpus, kind in zip(paid, problem.gpu_types, strict=True))
    if problem.power_cap is not None and watts > problem.power_cap:
        return None
    if problem.max_gpu_types is not None and sum(gpus > 0 for gpus in paid) > problem.max_gpu_types:
        return None
    return paid


def _within_budget(problem: Problem, paid: list[int], egress: float) -> bool:
    cost = sum(gpus * (kind.price or 0) for gpus, kind in zip(paid, problem.gpu_types, strict=True))
    return problem.budget is None or cost + egress <= problem.budget
