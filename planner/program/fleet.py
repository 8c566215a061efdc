"""What a decision comes to: GPUs, nodes, cost, load. Computed from replica counts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.program.problem import POOLS_OF_MODE, Problem
from planner.specs import Objective, Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """Consequences of one decision.

    Attributes
    ----------
    usable : tuple of float
        Per candidate, load carried with the spares down. [req/s]
    gpus_used, gpus_paid, nodes : tuple of int
        Per GPU type.
    cost : float or None
        Of the GPUs paid for; None where a price in use is unknown. [USD/h]
    carried : float
        Load that the weakest pool lets through. [req/s]
    value : float
        Of the objective. [USD/h, GPUs, W or req/s]
    """

    replicas: tuple[int, ...]
    usable: tuple[float, ...]
    gpus_used: tuple[int, ...]
    gpus_paid: tuple[int, ...]
    nodes: tuple[int, ...]
    cost: float | None
    carried: float
    value: float

    @property
    def groups(self) -> int:
        return sum(n > 0 for n in self.replicas)

    def rank(self, objective: Objective) -> tuple[float, int, int]:
        """Sort key, least first: the objective, then fewest groups, then fewest GPUs."""
        return loss(objective, self.value), self.groups, sum(self.gpus_used)


def loss(objective: Objective, value: float) -> float:
    """What is minimised: `value`, or minus the rate for throughput; its own inverse."""
    return -value if objective is Objective.THROUGHPUT else value


def pool_capacity(problem: Problem, usable: Sequence[float], phase: Phase) -> float:
    """Load that all groups of `phase` carry together. [req/s]"""
    return sum(u for c, u in zip(problem.candidates, usable, strict=True) if c.phase is phase)


def build_fleet(problem: Problem, replicas: Sequence[int]) -> Fleet:
    """What `replicas` of each candidate come to; nothing is checked here."""
    usable = tuple(problem.usable(i, n) for i, n in enumerate(replicas))
    used = [0] * len(problem.gpu_types)
    for candidate, n in zip(problem.candidates, replicas, strict=True):
        used[candidate.gpu_type] += n * candidate.gpus
    nodes = tuple(-(-u // kind.node_size) for u, kind in zip(used, problem.gpu_types, strict=True))
    paid = tuple(-(-u // problem.gpu_block(g)) * problem.gpu_block(g) for g, u in enumerate(used))
    carried = max(min(pool_capacity(problem, usable, p) for p in POOLS_OF_MODE[m]) for m in problem.modes)
    return Fleet(
        replicas=tuple(replicas),
        usable=usable,
        gpus_used=tuple(used),
        gpus_paid=paid,
        nodes=nodes,
        cost=_cost(problem, paid),
        carried=carried,
        value=_value(problem, paid, carried),
    )


def distribute(problem: Problem, fleet: Fleet, rate: float) -> tuple[float, ...]:
    """Load of each candidate's group when the router keeps all groups of a pool equally busy. [req/s]"""
    totals = {phase: pool_capacity(problem, fleet.usable, phase) for phase in Phase}
    return tuple(
        rate * usable / totals[candidate.phase] if usable > 0 else 0.0
        for candidate, usable in zip(problem.candidates, fleet.usable, strict=True)
    )


def _cost(problem: Problem, paid: Sequence[int]) -> float | None:
    total = 0.0
    for kind, gpus in zip(problem.gpu_types, paid, strict=True):
        if gpus and kind.price is None:
            return None
        total += gpus * (kind.price or 0.0)
    return total


def _value(problem: Problem, paid: Sequence[int], carried: float) -> float:
    if problem.objective is Objective.THROUGHPUT:
        return carried
    return sum(gpus * problem.weight(g) for g, gpus in enumerate(paid) if gpus)
