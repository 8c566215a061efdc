"""A horizon as arrays: what each pool may consist of, without what no optimal plan needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.program.dominance import without_dominated_in_line
from planner.program.horizon.problem import Horizon
from planner.program.limits import ROUNDING, legal_islands, tighten
from planner.program.problem import POOLS_OF_MODE, Problem
from planner.specs import Phase

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pool:
    """Candidates of one phase behind one front of one stream.

    Attributes
    ----------
    index : int
        Among all pools of the horizon.
    members : ints [I]
        Candidates, by their index in the stream.
    gpu_types, gpus, limits : ints [I]
        Type, GPUs of a replica, most replicas.
    tables : tuple of floats
        Per member, usable capacity of 0, 1, ... replicas. [req/s]
    demand : floats [T]
        [req/s]
    minimum : int
        Fewest replicas under demand.
    """

    index: int
    stream: int
    phase: Phase
    members: Ints
    gpu_types: Ints
    gpus: Ints
    limits: Ints
    tables: tuple[Floats, ...]
    demand: Floats
    minimum: int

    def fewest(self, member: int, rates: Floats) -> Ints:
        """Fewest replicas that carry `rates` alone; above the limit where none do."""
        found = np.searchsorted(self.tables[member], rates * (1 - ROUNDING))
        return np.where(rates > 0, found, 0).astype(np.int64)


@dataclass(frozen=True, kw_only=True, slots=True)
class Front:
    """A way to serve a stream: pools that may stand behind one router, but for pairs that are illegal."""

    disaggregated: bool
    pools: tuple[Pool, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduced:
    """What is left of a horizon.

    `limits` per stream and candidate; `fronts` per stream, empty where a stream cannot be served.
    """

    limits: tuple[tuple[int, ...], ...]
    fronts: tuple[tuple[Front, ...], ...]

    @property
    def pools(self) -> tuple[Pool, ...]:
        """All pools in the order of their index."""
        return tuple(p for fronts in self.fronts for front in fronts for p in front.pools)


def reduce(horizon: Horizon) -> Reduced:
    """`horizon` without candidates and replicas that no optimal plan needs.

    At its peak a group that carries a stream alone needs no further replica, and having fewer in one period
    makes nothing harder in the others: what is started and stopped between two periods does not grow when
    both counts are cut at the same limit. Streams without any demand need nothing.
    """
    limits: list[tuple[int, ...]] = []
    fronts: list[tuple[Front, ...]] = []
    count = 0
    for s in range(len(horizon.streams)):
        peak = max(horizon.demands[s])
        if not peak:
            limits.append((0,) * len(horizon.streams[s].candidates))
            fronts.append(())
            continue
        kept = tuple(c.max_replicas for c in _reduced(horizon, s, peak).candidates)
        found = []
        for front in _fronts(horizon, s, kept, count):
            found.append(front)
            count += len(front.pools)
        limits.append(kept)
        fronts.append(tuple(found))
    return Reduced(limits=tuple(limits), fronts=tuple(fronts))


def _reduced(horizon: Horizon, s: int, peak: float) -> Problem:
    """The stream at its peak, tightened and without dominated candidates.

    Where the number of replicas that come or go is limited, one replica must not be replaced by several
    smaller ones: sizes are told apart as if they were of different GPU types.
    """
    problem = tighten(horizon.single(s, peak))
    if not (horizon.limited and horizon.transitions):
        return without_dominated_in_line(problem)
    sizes = sorted({(c.gpu_type, c.gpus) for c in problem.candidates})
    apart = replace(
        problem,
        gpu_types=tuple(problem.gpu_types[g] for g, _ in sizes),
        candidates=tuple(replace(c, gpu_type=sizes.index((c.gpu_type, c.gpus))) for c in problem.candidates),
    )
    limits = [c.max_replicas for c in without_dominated_in_line(apart).candidates]
    kept = tuple(replace(c, max_replicas=n) for c, n in zip(problem.candidates, limits, strict=True))
    return replace(problem, candidates=kept)


def _fronts(horizon: Horizon, s: int, limits: tuple[int, ...], first: int) -> Iterator[Front]:
    """Fronts of one stream; `first` is the index of its first pool."""
    problem = horizon.single(s, 1.0)
    cut = tuple(replace(c, max_replicas=n) for c, n in zip(problem.candidates, limits, strict=True))
    for island in legal_islands(replace(problem, candidates=cut)):
        disaggregated = any(cut[i].phase is not Phase.COLOCATED for i in island)
        if disaggregated not in problem.modes:
            continue
        members = [
            sorted(i for i in island if cut[i].phase is phase) for phase in POOLS_OF_MODE[disaggregated]
        ]
        if all(members):
            pools = tuple(
                _pool(horizon, s, phase, pool, limits, first + k)
                for k, (phase, pool) in enumerate(zip(POOLS_OF_MODE[disaggregated], members, strict=True))
            )
            first += len(pools)
            yield Front(disaggregated=disaggregated, pools=pools)


def _pool(
    horizon: Horizon, s: int, phase: Phase, members: list[int], limits: tuple[int, ...], index: int
) -> Pool:
    stream = horizon.streams[s]
    chosen = [stream.candidates[i] for i in members]
    most = [limits[i] for i in members]
    tables = (
        np.array([c.curve.capacity(n - stream.spare_replicas) for n in range(limit + 1)])
        for c, limit in zip(chosen, most, strict=True)
    )
    return Pool(
        index=index,
        stream=s,
        phase=phase,
        members=np.array(members),
        gpu_types=np.array([c.gpu_type for c in chosen]),
        gpus=np.array([c.gpus for c in chosen]),
        limits=np.array(most),
        tables=tuple(tables),
        demand=np.array(horizon.demands[s]),
        minimum=stream.min_replicas_per_pool,
    )
