"""Random instances of the integer program: realistic ones for speed, tiny ones for enumeration."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from benchmarks.streams import drawn
from planner.program.problem import Candidate, CapacityCurve, GpuType, Moves, Problem, Stream
from planner.specs import ColocatedUse, Objective, Phase, SpareScope

STARTS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 160, 200, 256, 320, 400)
NAMES = (
    "h100-sxm",
    "h200",
    "a100-80",
    "l40s",
    "b200",
    "mi300x",
    "l4",
    "a10g",
    "h20",
    "gh200",
    "mi325x",
    "b300",
)


def curve(rate: float, bend: float, starts: tuple[int, ...] = STARTS) -> CapacityCurve:
    """``rate * (1 - bend / sqrt(n))`` per replica, at the first n of each range. [req/s]"""
    rates = tuple(max(rate * (1 - bend / math.sqrt(n)), 0.0) for n in starts)
    return CapacityCurve(starts=starts, per_replica=rates)


def realistic(
    seed: int, *, types: int = 6, tensor_parallel: tuple[int, ...] = (1, 2, 4, 8), demand: float | None = None
) -> Problem:
    """All types x TP x phases, with stock, caps, pairs and spares on in a share of the seeds."""
    rng = np.random.default_rng(seed)
    scarce = bool(rng.random() < 0.5)
    kinds = tuple(_gpu_type(rng, NAMES[g], scarce=scarce) for g in range(types))
    candidates = tuple(
        candidate
        for g in range(types)
        for phase in Phase
        for candidate in _candidates(rng, g, kinds[g], phase, tensor_parallel)
    )
    return Problem(
        candidates=candidates,
        gpu_types=kinds,
        demand=float(np.exp(rng.uniform(np.log(20), np.log(300)))) if demand is None else demand,
        objective=Objective.COST,
        illegal_pairs=_illegal_pairs(rng, candidates),
        min_replicas_per_pool=int(rng.integers(1, 3)),
        spare_replicas=int(rng.random() < 0.3),
        whole_nodes=bool(rng.random() < 0.7),
        gap=0.005,
    )


def _gpu_type(rng: np.random.Generator, name: str, *, scarce: bool) -> GpuType:
    stocked = rng.random() < (0.9 if scarce else 0.4)
    return GpuType(
        name=name,
        price=round(float(np.exp(rng.uniform(np.log(0.6), np.log(8)))), 2),
        power=float(rng.integers(72, 1000)),
        node_size=int(rng.choice([4, 8, 8, 8])),
        max_gpus=int(rng.integers(1, 8 if scarce else 40)) * 8 if stocked else None,
        max_gpus_by_phase={Phase.PREFILL: int(rng.integers(4, 100))} if rng.random() < 0.15 else {},
    )


def _candidates(
    rng: np.random.Generator, gpu_type: int, kind: GpuType, phase: Phase, sizes: tuple[int, ...]
) -> list[Candidate]:
    """Replicas of one type and phase: rate per GPU falls with TP, except that small ones lack memory.

    Rates are near proportional to prices, as they are on a market: the types compete.
    """
    base = (kind.price or 1.0) * float(np.exp(rng.uniform(np.log(0.35), np.log(0.7))))
    base *= 0.5 if phase is Phase.COLOCATED else 1.0
    memory = float(rng.uniform(0.2, 1.5))
    found = []
    for tp in sizes:
        share = max(1 - memory / tp, 0.0) if phase is not Phase.PREFILL else 1.0
        rate = base * tp ** float(rng.uniform(0.8, 0.97)) * share
        if rate > 0:
            label = f"{phase.value[0]}_{kind.name}_tp{tp}"
            bend = float(rng.uniform(0.05, 0.6))
            found.append(
                Candidate(
                    name=label,
                    phase=phase,
                    gpu_type=gpu_type,
                    gpus=tp,
                    curve=curve(rate, bend),
                    max_replicas=4000,
                )
            )
    return found


def _illegal_pairs(rng: np.random.Generator, candidates: tuple[Candidate, ...]) -> frozenset[tuple[int, int]]:
    """None, two vendors that must not meet, or some pairs of types that must not."""
    kind = rng.random()
    types = max(c.gpu_type for c in candidates) + 1
    vendor = rng.integers(0, 2, size=types)
    odd = rng.random((types, types)) < 0.3
    return frozenset(
        (i, j)
        for i, p in enumerate(candidates)
        for j, d in enumerate(candidates)
        if p.phase is Phase.PREFILL and d.phase is Phase.DECODE
        if (kind < 0.25 and vendor[p.gpu_type] != vendor[d.gpu_type])
        or (0.25 < kind < 0.5 and odd[p.gpu_type, d.gpu_type])
    )


def tiny(seed: int) -> Problem:
    """Few candidates and replicas, each constraint family on in a good share of the seeds."""
    rng = np.random.default_rng(seed)
    types = int(rng.integers(1, 4))
    objective = list(Objective)[int(rng.integers(0, 4))]
    kinds = tuple(_tiny_type(rng, NAMES[g], stocked=objective is Objective.THROUGHPUT) for g in range(types))
    count = int(rng.integers(3, 6))
    phases = [*Phase, *(list(Phase)[int(p)] for p in rng.integers(0, 3, size=3))]
    candidates = tuple(_tiny_candidate(rng, f"c{i}", phases[i], types) for i in range(count))
    return Problem(
        candidates=candidates,
        gpu_types=kinds,
        demand=None if objective is Objective.THROUGHPUT else float(rng.uniform(0.5, 9)),
        objective=objective,
        budget=float(rng.uniform(8, 50)) if rng.random() < 0.3 else None,
        illegal_pairs=frozenset(
            (i, j)
            for i, p in enumerate(candidates)
            for j, d in enumerate(candidates)
            if p.phase is Phase.PREFILL and d.phase is Phase.DECODE and rng.random() < 0.25
        ),
        min_replicas_per_pool=int(rng.integers(1, 4)),
        spare_replicas=int(rng.random() < 0.4),
        whole_nodes=bool(rng.random() < 0.5),
        colocated=list(ColocatedUse)[int(rng.choice(3, p=[0.6, 0.25, 0.15]))],
        max_gpu_types=int(rng.choice([1, 1, 2])) if rng.random() < 0.5 else None,
        gap=0.0,
    )


def rich(seed: int) -> Problem:
    """Up to three lines of a fleet, two sizes, two streams, n <= 4; each optional feature in many seeds."""
    rng = np.random.default_rng(10_000 + seed)

    def chance(share: float) -> bool:
        return bool(rng.random() < share)

    objective = list(Objective)[int(rng.choice(4, p=[0.55, 0.15, 0.15, 0.15]))]
    throughput = objective is Objective.THROUGHPUT
    zoned, streams = chance(0.5), int(rng.integers(1, 3))
    kinds = [_tiny_type(rng, NAMES[g], stocked=throughput) for g in range(int(rng.integers(2, 4)))]
    kinds = [replace(k, max_gpus=k.max_gpus and min(k.max_gpus + 2, 12), max_gpus_by_phase={}) for k in kinds]
    if zoned:
        kinds = [replace(kind, zone="ab"[g % 2]) for g, kind in enumerate(kinds)]
    spot = chance(0.4)
    kinds = [replace(kind, spot=spot and chance(0.5)) for kind in kinds]
    candidates = _rich_candidates(rng, len(kinds), streams)
    across = zoned and not throughput and chance(0.6)
    one_group = chance(0.45)
    return Problem(
        candidates=candidates,
        gpu_types=tuple(kinds),
        demand=None if throughput else float(rng.uniform(0.3, 2.5)) * streams,
        objective=objective,
        streams=_rich_streams(rng, streams, across),
        budget=float(rng.uniform(4, 30)) if chance(0.2) else None,
        illegal_pairs=frozenset(
            (i, j)
            for i, p in enumerate(candidates)
            for j, d in enumerate(candidates)
            if p.phase is Phase.PREFILL and d.phase is Phase.DECODE and p.stream == d.stream and chance(0.2)
        ),
        min_replicas_per_pool=2 if chance(0.2) else 1,
        spare_replicas=int(chance(0.5)),
        spare_scope=SpareScope.POOL if one_group else SpareScope.GROUP,
        survive_node=chance(0.3),
        survive_zone=zoned and chance(0.4),
        surge_replicas=int(chance(0.4)),
        on_demand_floor=float(rng.choice([0.3, 0.5, 1.0])) if spot and chance(0.7) else 0.0,
        across_zones=across,
        zone_caps={"a": int(rng.integers(1, 9))} if zoned and chance(0.5) else {},
        power_cap=float(rng.uniform(2000, 20000)) if chance(0.25) else None,
        moves=_rich_moves(rng, candidates) if objective is Objective.COST and chance(0.5) else (),
        whole_nodes=chance(0.5),
        colocated=list(ColocatedUse)[int(rng.choice(3, p=[0.7, 0.15, 0.15]))],
        max_gpu_types=int(rng.integers(1, 3)) if chance(0.3) else None,
        gap=0.0,
    )


def _rich_candidates(rng: np.random.Generator, kinds: int, streams: int) -> tuple[Candidate, ...]:
    """Both pools or colocated groups for each stream, and some more."""
    found = []
    for stream in range(streams):
        disaggregated = bool(rng.random() < 0.6)
        phases = [Phase.PREFILL, Phase.DECODE] if disaggregated else [Phase.COLOCATED]
        phases *= 2 if streams == 1 or not disaggregated else 1
        phases += [list(Phase)[int(rng.integers(0, 3))]] if streams == 1 or rng.random() < 0.5 else []
        for phase in phases:
            drawn = _tiny_candidate(rng, f"c{len(found)}", phase, kinds)
            most = int(rng.integers(2, 5)) if streams == 1 else int(rng.integers(2, 4))
            gpus = int(rng.choice([1, 2]))
            rate = float(rng.uniform(0.8, 2)) * gpus
            curve_of = curve(rate, float(rng.uniform(0, 0.8)), (1, 2, 3))
            found.append(replace(drawn, stream=stream, gpus=gpus, max_replicas=most, curve=curve_of))
    return tuple(found)


def _rich_streams(rng: np.random.Generator, count: int, across: bool) -> tuple[Stream, ...]:
    share = float(rng.uniform(0.2, 0.8))
    shares = [1.0] if count == 1 else [share, 1 - share]
    costs = [float(rng.uniform(0, 1)) if across else 0.0 for _ in shares]
    return tuple(
        Stream(name=f"s{k}", share=part, egress_cost=cost)
        for k, (part, cost) in enumerate(zip(shares, costs, strict=True))
    )


def _rich_moves(rng: np.random.Generator, candidates: tuple[Candidate, ...]) -> tuple[Moves, ...]:
    """One kind per candidate, except that the first two are the same."""
    groups = [(0, 1), *((i,) for i in range(2, len(candidates)))]
    return tuple(
        Moves(name=f"k{k}", candidates=group, current=int(rng.integers(0, 3)), cost=float(rng.uniform(0, 3)))
        for k, group in enumerate(groups)
    )


def _tiny_type(rng: np.random.Generator, name: str, *, stocked: bool) -> GpuType:
    return GpuType(
        name=name,
        price=0.0 if rng.random() < 0.1 else round(float(rng.uniform(0.5, 4)), 2),
        power=float(rng.integers(100, 1000)),
        node_size=int(rng.choice([1, 2, 4])),
        max_gpus=int(rng.integers(0, 25)) if stocked or rng.random() < 0.5 else None,
        max_gpus_by_phase={Phase.DECODE: int(rng.integers(0, 13))} if rng.random() < 0.6 else {},
    )


def _tiny_candidate(rng: np.random.Generator, name: str, phase: Phase, types: int) -> Candidate:
    gpus = int(rng.choice([1, 2, 4]))
    return Candidate(
        name=name,
        phase=phase,
        gpu_type=int(rng.integers(0, types)),
        gpus=gpus,
        curve=curve(float(rng.uniform(0.8, 3)) * gpus, float(rng.uniform(0, 1.1)), (1, 2, 3, 5)),
        max_replicas=int(rng.integers(2, 7)),
    )


def hard() -> Problem:
    """An instance that keeps HiGHS busy for several seconds, with an incumbent in the first."""
    problem = realistic(13, types=12)
    kinds = tuple(replace(kind, max_gpus=kind.max_gpus or 100) for kind in problem.gpu_types)
    return replace(
        problem, gpu_types=kinds, gap=0.0, objective=Objective.THROUGHPUT, demand=None, spare_replicas=0
    )


def small_streams(seed: int, *, streams: int = 1, gap: float = 0.0) -> Problem:
    """A few replicas per stream, with stock in half of the seeds, so that all can be counted."""
    problem = drawn(seed, streams=streams, types=3, gap=gap)
    rng = np.random.default_rng(seed)
    candidates = tuple(
        replace(
            c,
            curve=curve(c.gpus * float(rng.uniform(0.6, 1.6)), float(rng.uniform(0, 0.6)), (1, 2, 3, 5)),
            max_replicas=4,
        )
        if c.gpus <= 2
        else replace(c, max_replicas=0)
        for c in problem.candidates
    )
    kinds = tuple(
        replace(k, node_size=4, max_gpus=None if k.max_gpus is None else int(rng.integers(2, 5)) * 4)
        for k in problem.gpu_types
    )
    return replace(
        problem, candidates=candidates, gpu_types=kinds, demand=streams * float(rng.uniform(1.5, 5))
    )
