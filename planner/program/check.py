"""The post-check: a solver's "optimal" is not believed.

Every constraint is evaluated on the problem itself, from replica counts alone: nothing here reads
the rows that the solver saw. Names are those of the rows, so that a message can be looked up in a
saved program.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.errors import SolverError
from planner.program.fleet import Fleet, build_fleet, distribute, pool_capacity
from planner.program.problem import Problem, Solution
from planner.specs import Phase

RATE_TOLERANCE = 1e-6
"""Relative shortfall of capacity that is rounding: a solver's own feasibility tolerance. [1]"""
MONEY_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A constraint that does not hold, by the name of its row, and by how much."""

    constraint: str
    detail: str

    def __str__(self) -> str:
        return f"{self.constraint}: {self.detail}"


def violations(problem: Problem, replicas: Sequence[int]) -> tuple[Violation, ...]:
    """Every constraint that the decision breaks; empty for a valid plan."""
    return broken(problem, build_fleet(problem, replicas))


def broken(problem: Problem, fleet: Fleet) -> tuple[Violation, ...]:
    """As :func:`violations`, of a fleet already built."""
    found = [
        *_counts(problem, fleet),
        *_modes(problem, fleet),
        *_demand(problem, fleet),
        *_pairs(problem, fleet),
        *_minimum(problem, fleet),
        *_stock(problem, fleet),
        *_budget(problem, fleet),
        *_gpu_types(problem, fleet),
    ]
    return tuple(Violation(constraint=name, detail=detail) for name, detail in found)


def verify(problem: Problem, solution: Solution) -> None:
    """Raise SolverError, naming each violated constraint, unless `solution` is what it claims to be."""
    if len(solution.replicas) != len(problem.candidates):
        raise SolverError("the plan and the problem differ in their number of candidates")
    fleet = build_fleet(problem, solution.replicas)
    found = [str(v) for v in broken(problem, fleet)]
    found += _claims(problem, fleet, solution)
    if found:
        raise SolverError("the solver's plan does not hold: " + "; ".join(found))


def _claims(problem: Problem, fleet: Fleet, solution: Solution) -> Iterator[str]:
    """What the solution says of itself, against what its replicas come to."""
    for name in ("gpus_used", "gpus_paid", "nodes"):
        if getattr(solution, name) != getattr(fleet, name):
            yield f"{name}: claimed {getattr(solution, name)}, recomputed {getattr(fleet, name)}"
    rate = problem.demand if problem.demand is not None else fleet.carried
    for name, claimed, actual in (
        ("value", solution.value, fleet.value),
        ("cost", solution.cost, fleet.cost),
        ("rate", solution.rate, rate),
    ):
        if not _same(claimed, actual):
            yield f"{name}: claimed {claimed}, recomputed {actual}"
    flows = distribute(problem, fleet, rate)
    pairs = zip(problem.candidates, solution.flows, flows, strict=True)
    for candidate, claimed, actual in pairs:
        if not _same(claimed, actual):
            yield f"flow[{candidate.name}]: claimed {claimed} req/s, recomputed {actual}"


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


def _counts(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """0 <= replicas <= limit, and a group in use carries something with its spares down."""
    for candidate, n, usable in zip(problem.candidates, fleet.replicas, fleet.usable, strict=True):
        if n != int(n) or not 0 <= n <= candidate.max_replicas:
            yield f"limit[{candidate.name}]", f"{n} replicas, at most {candidate.max_replicas}"
        elif n > 0 and usable <= 0:
            yield f"spare[{candidate.name}]", f"{n} replicas carry nothing with {problem.spare_replicas} down"


def _modes(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Either colocated groups or prefill and decode pools, as the problem allows."""
    pairs = zip(problem.candidates, fleet.replicas, strict=True)
    modes = {candidate.phase is not Phase.COLOCATED for candidate, n in pairs if n > 0}
    if len(modes) > 1:
        yield "mode", "colocated groups beside prefill and decode pools"
    elif not modes <= set(problem.modes):
        yield "mode", f"colocated use is {problem.colocated}"


def _demand(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Capacity of each pool >= demand, flows being proportional to capacity."""
    if problem.demand is None:
        if fleet.carried <= 0:
            yield "demand", "the plan carries nothing"
        return
    if fleet.carried >= problem.demand * (1 - RATE_TOLERANCE):
        return
    for phase in Phase:
        capacity = pool_capacity(problem, fleet.usable, phase)
        if capacity < problem.demand * (1 - RATE_TOLERANCE):
            yield f"demand[{phase}]", f"{capacity:g} of {problem.demand:g} req/s"


def _pairs(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Every prefill group in use is legal with every decode group in use."""
    for i, j in sorted(problem.illegal_pairs):
        if fleet.replicas[i] > 0 and fleet.replicas[j] > 0:
            names = f"{problem.candidates[i].name},{problem.candidates[j].name}"
            yield f"pair[{names}]", "both are in use"


def _minimum(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Replicas of each pool in use >= the minimum."""
    for phase in Phase:
        count = sum(fleet.replicas[i] for i in problem.indices(phase))
        if 0 < count < problem.min_replicas_per_pool:
            yield f"minimum[{phase}]", f"{count} of {problem.min_replicas_per_pool} replicas"


def _stock(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """GPUs paid for <= stock; GPUs used by a pool <= its cap."""
    for g, kind in enumerate(problem.gpu_types):
        if kind.max_gpus is not None and fleet.gpus_paid[g] > kind.max_gpus:
            yield f"stock[{kind.name}]", f"{fleet.gpus_paid[g]} GPUs of {kind.max_gpus}"
        for phase, cap in kind.max_gpus_by_phase.items():
            used = sum(
                fleet.replicas[i] * problem.candidates[i].gpus
                for i in problem.indices(phase)
                if problem.candidates[i].gpu_type == g
            )
            if used > cap:
                yield f"stock[{kind.name},{phase}]", f"{used} GPUs of {cap}"


def _budget(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Cost of everything paid for <= budget."""
    if problem.budget is None:
        return
    if fleet.cost is None:
        yield "budget", "a price in use is unknown"
    elif fleet.cost > problem.budget * (1 + MONEY_TOLERANCE) + MONEY_TOLERANCE:
        yield "budget", f"{fleet.cost:g} of {problem.budget:g} USD/h"


def _gpu_types(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """GPU types in use <= the most that may be mixed."""
    count = sum(used > 0 for used in fleet.gpus_used)
    if problem.max_gpu_types is not None and count > problem.max_gpu_types:
        yield "gpu_types", f"{count} types, at most {problem.max_gpu_types}"
