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
from planner.program.fleet import Fleet, build_fleet, cells, distribute, pool_capacity, through
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
        *_surge(problem, fleet),
        *_budget(problem, fleet),
        *_power(problem, fleet),
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
    """Behind each front door either colocated groups or prefill and decode pools, as the problem allows."""
    found: list[set[bool]] = [set() for _ in problem.streams]
    for candidate, n in zip(problem.candidates, fleet.replicas, strict=True):
        if n > 0:
            found[candidate.stream].add(candidate.phase is not Phase.COLOCATED)
    for modes, stream in zip(found, problem.streams, strict=True):
        name = _of("mode", stream.name)
        if len(modes) > 1:
            yield name, "colocated groups beside prefill and decode pools"
        elif not modes <= set(problem.modes):
            yield name, f"colocated use is {problem.colocated}"


def _of(name: str, *subjects: str) -> str:
    """A constraint by what it is about."""
    given = ",".join(filter(None, subjects))
    return f"{name}[{given}]" if given else name


def _demand(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Load that each stream's pools let through >= its demand, at every event."""
    if problem.demand is None:
        if fleet.carried <= 0:
            yield "demand", "the plan carries nothing"
        return
    for s, stream in enumerate(problem.streams):
        for event in problem.events:
            parts = cells(problem, fleet.replicas, s, event)
            needed = event.share * problem.rate(s)
            carried = through(problem, parts)
            if carried >= needed * (1 - RATE_TOLERANCE):
                continue
            for phase in Phase if len(parts) == 1 else ():
                capacity = pool_capacity(parts, phase)
                if capacity < needed * (1 - RATE_TOLERANCE):
                    name = _of("demand", stream.name, phase, event.name)
                    yield name, f"{capacity:g} of {needed:g} req/s"
            if len(parts) > 1:
                yield _of("demand", stream.name, event.name), f"{carried:g} of {needed:g} req/s"


def _pairs(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Every prefill group in use is legal with every decode group that stands behind the same router."""
    for i, j in sorted(problem.illegal_pairs):
        if fleet.replicas[i] > 0 and fleet.replicas[j] > 0 and problem.may_meet(i, j):
            names = f"{problem.candidates[i].name},{problem.candidates[j].name}"
            yield f"pair[{names}]", "both are in use"


def _minimum(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Replicas of each pool in use >= the minimum."""
    if problem.min_replicas_per_pool <= 1:
        return
    for s, stream in enumerate(problem.streams):
        for phase in Phase:
            count = sum(fleet.replicas[i] for i in problem.indices(phase, s))
            if 0 < count < problem.min_replicas_per_pool:
                name = _of("minimum", stream.name, phase)
                yield name, f"{count} of {problem.min_replicas_per_pool} replicas"


def _stock(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """GPUs paid for <= stock, of a type and of a zone; GPUs used by a pool <= its cap."""
    for zone, most in problem.zone_caps.items():
        paid = sum(n for n, kind in zip(fleet.gpus_paid, problem.gpu_types, strict=True) if kind.zone == zone)
        if paid > most:
            yield f"stock[{zone}]", f"{paid} GPUs of {most}"
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


def _surge(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """There are GPUs for the replicas that start beside a group while it is upgraded."""
    for candidate, n in zip(problem.candidates, fleet.replicas, strict=True):
        stock = problem.stock(candidate.gpu_type)
        if n > 0 and stock is not None and problem.surge_replicas:
            needed = fleet.gpus_used[candidate.gpu_type] + problem.surge_replicas * candidate.gpus
            if needed > stock:
                yield f"surge[{candidate.name}]", f"{needed} GPUs of {stock}"


def _power(problem: Problem, fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Power of everything paid for <= its cap."""
    drawn = sum(n * kind.power for n, kind in zip(fleet.gpus_paid, problem.gpu_types, strict=True))
    if problem.power_cap is not None and drawn > problem.power_cap * (1 + RATE_TOLERANCE):
        yield "power", f"{drawn:g} of {problem.power_cap:g} W"


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
    count = len({kind for kind, used in zip(problem.kinds, fleet.gpus_used, strict=True) if used})
    if problem.max_gpu_types is not None and count > problem.max_gpu_types:
        yield "gpu_types", f"{count} types, at most {problem.max_gpu_types}"
