"""The post-check of a plan over a horizon: every constraint again, from replica counts alone.

Nothing here reads columns, prices or rows of the search. Names are like those of
:mod:`planner.program.check`, with stream and period.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from planner.errors import SolverError
from planner.program.check import MONEY_TOLERANCE, RATE_TOLERANCE, Violation
from planner.program.horizon.bill import bill, most_reserved
from planner.program.horizon.problem import Horizon, HorizonSolution, Replicas, StaticPlan
from planner.program.problem import POOLS_OF_MODE
from planner.specs import ColocatedUse, Phase


def violations(horizon: Horizon, replicas: Replicas, reserved: Sequence[int]) -> tuple[Violation, ...]:
    """Every constraint that the decision breaks; empty for a valid plan."""
    shape = _shape(horizon, replicas, reserved)
    found = shape or [
        violation
        for family in (_counts, _modes, _demand, _minimum, _pairs, _scaling, _stock)
        for violation in family(horizon, replicas)
    ]
    if not shape:
        found += _reserved(horizon, reserved)
    return tuple(Violation(constraint=name, detail=detail) for name, detail in found)


def verify(horizon: Horizon, solution: HorizonSolution) -> None:
    """Raise SolverError, naming each violated constraint, unless `solution` is what it claims to be."""
    found = [str(v) for v in violations(horizon, solution.replicas, solution.reserved)]
    if not found:
        found += _claims(horizon, solution)
    if not found and solution.static is not None:
        found += _static(horizon, solution.static)
    if found:
        raise SolverError("the plan of the horizon does not hold: " + "; ".join(found))


def _claims(horizon: Horizon, solution: HorizonSolution) -> Iterator[str]:
    """What the solution says of itself, against what its replicas come to."""
    actual = bill(horizon, solution.replicas, solution.reserved)
    if solution.on_demand != actual.on_demand:
        yield f"on_demand: claimed {solution.on_demand}, recomputed {actual.on_demand}"
    for name in ("reserved_cost", "on_demand_cost", "startup_cost", "value"):
        claimed, real = getattr(solution, name), getattr(actual, name)
        if not _same(claimed, real):
            yield f"{name}: claimed {claimed}, recomputed {real}"
    if solution.bound > solution.value * (1 + MONEY_TOLERANCE) + MONEY_TOLERANCE:
        yield f"bound: {solution.bound} is above the value {solution.value}"
    gap = (solution.value - solution.bound) / solution.value if solution.value else 0.0
    if not _same(solution.gap, gap):
        yield f"gap: claimed {solution.gap}, recomputed {gap}"


def _static(horizon: Horizon, static: StaticPlan) -> Iterator[str]:
    """The static plan holds in every period and costs what it says."""
    replicas = tuple((counts,) * len(horizon.periods) for counts in static.replicas)
    for violation in violations(horizon, replicas, static.reserved):
        yield f"static plan: {violation}"
    actual = bill(horizon, replicas, static.reserved).value
    if not _same(static.value, actual):
        yield f"static value: claimed {static.value}, recomputed {actual}"


def _same(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=MONEY_TOLERANCE, abs_tol=MONEY_TOLERANCE)


Found = Iterator[tuple[str, str]]


def _shape(horizon: Horizon, replicas: Replicas, reserved: Sequence[int]) -> list[tuple[str, str]]:
    """One count per stream, period and candidate; one reservation per GPU type."""
    periods = len(horizon.periods)
    expected = [[len(s.candidates)] * periods for s in horizon.streams]
    if [[len(counts) for counts in by_period] for by_period in replicas] != expected:
        return [("shape", "replicas: one count per stream, period and candidate")]
    if len(reserved) != len(horizon.gpu_types):
        return [("shape", "reserved: one count per GPU type")]
    return []


def _counts(horizon: Horizon, replicas: Replicas) -> Found:
    """0 <= replicas <= limit; under demand a group carries something with its spares down."""
    for s, t, where in _cells(horizon):
        stream = horizon.streams[s]
        for candidate, n in zip(stream.candidates, replicas[s][t], strict=True):
            if n != int(n) or not 0 <= n <= candidate.max_replicas:
                yield f"limit[{where},{candidate.name}]", f"{n} replicas, at most {candidate.max_replicas}"
            elif n and horizon.demands[s][t] and candidate.curve.capacity(n - stream.spare_replicas) <= 0:
                yield f"spare[{where},{candidate.name}]", f"{n} replicas carry nothing without spares"


def _modes(horizon: Horizon, replicas: Replicas) -> Found:
    """One front door for all periods, of a kind that is allowed."""
    allowed = {
        ColocatedUse.ALLOWED: {True, False},
        ColocatedUse.ONLY: {True},
        ColocatedUse.FORBIDDEN: {False},
    }
    for stream, by_period in zip(horizon.streams, replicas, strict=True):
        modes = {
            candidate.phase is Phase.COLOCATED
            for counts in by_period
            for candidate, n in zip(stream.candidates, counts, strict=True)
            if n
        }
        if len(modes) > 1:
            yield f"mode[{stream.name}]", "colocated groups and prefill or decode pools"
        elif not modes <= allowed[stream.colocated]:
            yield f"mode[{stream.name}]", f"colocated use is {stream.colocated}"


def _demand(horizon: Horizon, replicas: Replicas) -> Found:
    """Capacity of each pool >= demand."""
    for s, t, where in _cells(horizon):
        demand, stream = horizon.demands[s][t], horizon.streams[s]
        for phase in _pools(horizon, replicas, s, t):
            capacity = math.fsum(
                candidate.curve.capacity(n - stream.spare_replicas)
                for candidate, n in zip(stream.candidates, replicas[s][t], strict=True)
                if candidate.phase is phase
            )
            if capacity < demand * (1 - RATE_TOLERANCE):
                yield f"demand[{where},{phase}]", f"{capacity:g} of {demand:g} req/s"


def _minimum(horizon: Horizon, replicas: Replicas) -> Found:
    """Replicas of each pool under demand >= the minimum."""
    for s, t, where in _cells(horizon):
        least = horizon.streams[s].min_replicas_per_pool
        for phase in _pools(horizon, replicas, s, t):
            count = sum(_pool(horizon, replicas, s, t, phase))
            if count < least:
                yield f"minimum[{where},{phase}]", f"{count} replicas, at least {least}"


def _pairs(horizon: Horizon, replicas: Replicas) -> Found:
    """Under demand, every prefill group is legal with every decode group."""
    for s, t, where in _cells(horizon):
        if horizon.demands[s][t]:
            candidates, counts = horizon.streams[s].candidates, replicas[s][t]
            for i, j in sorted(horizon.streams[s].illegal_pairs):
                if counts[i] and counts[j]:
                    yield f"pair[{where},{candidates[i].name},{candidates[j].name}]", "both are in use"


def _scaling(horizon: Horizon, replicas: Replicas) -> Found:
    """Replicas of a pool that start, and that stop, between periods <= their limits."""
    for s, stream in enumerate(horizon.streams):
        for before, after in horizon.transitions:
            where = f"{stream.name},{horizon.periods[before].name}>{horizon.periods[after].name}"
            for phase in Phase:
                old = _pool(horizon, replicas, s, before, phase)
                new = _pool(horizon, replicas, s, after, phase)
                changes = [b - a for a, b in zip(old, new, strict=True)]
                added, removed = sum(max(c, 0) for c in changes), sum(max(-c, 0) for c in changes)
                if horizon.max_added is not None and added > horizon.max_added:
                    yield f"added[{where},{phase}]", f"{added} replicas, at most {horizon.max_added}"
                if horizon.max_removed is not None and removed > horizon.max_removed:
                    yield f"removed[{where},{phase}]", f"{removed} replicas, at most {horizon.max_removed}"


def _stock(horizon: Horizon, replicas: Replicas) -> Found:
    """GPUs in blocks in use <= stock."""
    for g, kind in enumerate(horizon.gpu_types):
        if kind.max_gpus is None:
            continue
        for t, period in enumerate(horizon.periods):
            used = sum(
                candidate.gpus * n
                for stream, by_period in zip(horizon.streams, replicas, strict=True)
                for candidate, n in zip(stream.candidates, by_period[t], strict=True)
                if candidate.gpu_type == g
            )
            gpus = math.ceil(used / horizon.block(g)) * horizon.block(g)
            if gpus > kind.max_gpus:
                yield f"stock[{kind.name},{period.name}]", f"{gpus} GPUs of {kind.max_gpus}"


def _reserved(horizon: Horizon, reserved: Sequence[int]) -> Found:
    """Whole blocks, no more than are offered."""
    for g, n in enumerate(reserved):
        most = most_reserved(horizon, g) * horizon.block(g)
        if n < 0 or n % horizon.block(g) or n > most:
            name = horizon.gpu_types[g].name
            yield f"reserved[{name}]", f"{n} GPUs, at most {most} in blocks of {horizon.block(g)}"


def _cells(horizon: Horizon) -> Iterator[tuple[int, int, str]]:
    """Each stream and period with a label."""
    for s, stream in enumerate(horizon.streams):
        for t, period in enumerate(horizon.periods):
            yield s, t, f"{stream.name},{period.name}"


def _pool(horizon: Horizon, replicas: Replicas, s: int, t: int, phase: Phase) -> list[int]:
    """Counts of the candidates of one phase."""
    pairs = zip(horizon.streams[s].candidates, replicas[s][t], strict=True)
    return [n for candidate, n in pairs if candidate.phase is phase]


def _pools(horizon: Horizon, replicas: Replicas, s: int, t: int) -> tuple[Phase, ...]:
    """Pools that have to carry the demand: those of the front door in use, all if there is none."""
    if not horizon.demands[s][t]:
        return ()
    colocated = any(_pool(horizon, replicas, s, t, Phase.COLOCATED))
    return POOLS_OF_MODE[not colocated]
