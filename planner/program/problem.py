"""What the integer program is asked and what it answers. Frozen; rates in req/s, money in USD/h.

The program knows nothing of latency: how much load a group carries comes in as a
:class:`CapacityCurve`, and the curve's piecewise form is the definition. Program, post-check
and brute force therefore agree exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from planner.errors import SpecError
from planner.plan import PlanStatus
from planner.specs import ColocatedUse, Objective, Phase

POOLS_OF_MODE = {True: (Phase.PREFILL, Phase.DECODE), False: (Phase.COLOCATED,)}
"""Pools behind the front door of a disaggregated (True) and of a colocated (False) plan."""


class Family(StrEnum):
    """Requirements that a user can give way on; see :mod:`planner.program.infeasible`."""

    STOCK = "GPU stock"
    POOL_CAPS = "GPU caps per pool"
    BUDGET = "budget"
    PAIRS = "legal prefill and decode pairs"
    MINIMUM = "minimum replicas per pool"
    SPARE = "spare replicas"
    WHOLE_NODES = "whole nodes"
    GPU_TYPES = "number of GPU types"
    COLOCATED = "colocated use"
    REPLICAS = "most replicas of a group"


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A stretch of a usable capacity: ``capacity + slope * (n - first)`` for ``first <= n <= last``.

    `capacity` and `slope` [req/s].
    """

    first: int
    last: int
    capacity: float
    slope: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityCurve:
    """Load that n equal replicas carry together within the SLOs.

    Attributes
    ----------
    starts : tuple of int
        First n of each range, ascending from 1; the last range is open.
    per_replica : tuple of float
        Rate of one replica when n lies in the range; never falls, because queues pool. [req/s]
    """

    starts: tuple[int, ...]
    per_replica: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.starts or len(self.starts) != len(self.per_replica):
            raise SpecError("capacity curve: as many rates as ranges, at least one")
        if self.starts[0] != 1 or any(a >= b for a, b in zip(self.starts, self.starts[1:], strict=False)):
            raise SpecError(f"capacity curve: ranges must ascend from 1, got {self.starts}")
        if not all(0 <= rate < math.inf for rate in self.per_replica):
            raise SpecError(f"capacity curve: rates must be finite and >= 0, got {self.per_replica}")
        if any(a > b for a, b in zip(self.per_replica, self.per_replica[1:], strict=False)):
            raise SpecError(
                f"capacity curve: the rate of a replica never falls with n, got {self.per_replica}"
            )

    def capacity(self, replicas: int) -> float:
        """Load that `replicas` carry; 0 for none or fewer. [req/s]"""
        if replicas < 1:
            return 0.0
        return replicas * self.per_replica[bisect_right(self.starts, replicas) - 1]

    def pieces(self, *, spare: int, limit: int) -> Iterator[Piece]:
        """Affine pieces of ``capacity(n - spare)`` for n up to `limit`, without those that carry nothing."""
        ends = (*(start - 1 for start in self.starts[1:]), limit)
        for start, end, rate in zip(self.starts, ends, self.per_replica, strict=True):
            last = min(end + spare, limit)
            if rate > 0 and start + spare <= last:
                yield Piece(first=start + spare, last=last, capacity=start * rate, slope=rate)


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A replica that may serve.

    Attributes
    ----------
    gpu_type : int
        Index into :attr:`Problem.gpu_types`.
    gpus : int
        GPUs of one replica.
    max_replicas : int
        Most replicas that a plan may have; 0 takes the candidate out.
    """

    name: str
    phase: Phase
    gpu_type: int
    gpus: int
    curve: CapacityCurve
    max_replicas: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuType:
    """GPUs of one kind that may be used.

    Attributes
    ----------
    price : float or None
        Of one GPU; 0 where it is owned, None where it is unknown. [USD/h]
    power : float
        Of one GPU. [W]
    max_gpus : int or None
        Stock; None is unlimited.
    max_gpus_by_phase : mapping of Phase
        Caps per pool.
    """

    name: str
    price: float | None
    power: float
    node_size: int
    max_gpus: int | None = None
    max_gpus_by_phase: Mapping[Phase, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Which replicas may serve what load under which limits.

    Attributes
    ----------
    demand : float or None
        Load to carry; None where the objective is throughput. [req/s]
    budget : float or None
        Most that everything paid for may cost. [USD/h]
    illegal_pairs : frozenset of (int, int)
        Prefill and decode candidates that must not stand behind one router.
    min_replicas_per_pool : int
        Of each pool in use.
    spare_replicas : int
        Replicas that every group may lose and still carry its share.
    whole_nodes : bool
        Nodes are paid for whole, and stock is counted in whole nodes.
    max_gpu_types : int or None
        Most types a plan may mix.
    gap : float
        Relative distance from the proven bound at which the search may stop. [1]
    """

    candidates: tuple[Candidate, ...]
    gpu_types: tuple[GpuType, ...]
    demand: float | None
    objective: Objective
    budget: float | None = None
    illegal_pairs: frozenset[tuple[int, int]] = frozenset()
    min_replicas_per_pool: int = 1
    spare_replicas: int = 0
    whole_nodes: bool = True
    colocated: ColocatedUse = ColocatedUse.ALLOWED
    max_gpu_types: int | None = None
    gap: float = 0.005

    def __post_init__(self) -> None:
        problems = list(_faults(self))
        if problems:
            raise SpecError("program: " + "; ".join(problems))

    @property
    def modes(self) -> tuple[bool, ...]:
        """Front doors that a plan may have: True is disaggregated, False is colocated."""
        return {
            ColocatedUse.ALLOWED: (True, False),
            ColocatedUse.FORBIDDEN: (True,),
            ColocatedUse.ONLY: (False,),
        }[self.colocated]

    def usable(self, index: int, replicas: int) -> float:
        """Load that a group still carries with its spares down. [req/s]"""
        return self.candidates[index].curve.capacity(replicas - self.spare_replicas)

    def indices(self, phase: Phase) -> tuple[int, ...]:
        """Candidates of one phase."""
        return tuple(i for i, c in enumerate(self.candidates) if c.phase is phase)

    def weight(self, gpu_type: int) -> float:
        """What one GPU paid for adds to the objective; 0 for throughput. [USD/h, 1, W]"""
        kind = self.gpu_types[gpu_type]
        if self.objective is Objective.COST:
            return _known(kind.price)
        if self.objective is Objective.POWER:
            return kind.power
        return 1.0 if self.objective is Objective.GPUS else 0.0

    def price(self, gpu_type: int) -> float:
        """Of one GPU; only where a price is needed, and then it is known. [USD/h]"""
        return _known(self.gpu_types[gpu_type].price)

    def gpu_block(self, gpu_type: int) -> int:
        """GPUs that are paid for together: a node, or one."""
        return self.gpu_types[gpu_type].node_size if self.whole_nodes else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Solution:
    """A plan's decision, re-checked against the problem.

    Attributes
    ----------
    replicas : tuple of int
        Per candidate.
    flows : tuple of float
        Load sent to each candidate's group: within a pool proportional to its capacity. [req/s]
    gpus_used, gpus_paid, nodes : tuple of int
        Per GPU type; without whole nodes, `nodes` is the fewest that could hold the GPUs used.
    cost : float or None
        Of the GPUs paid for; None where a price in use is unknown. [USD/h]
    value, bound, gap : float
        Objective reached [USD/h, GPUs, W or req/s], proven bound, their relative difference.
    rate : float
        Load served: the demand, or the most that the plan carries for throughput. [req/s]
    interrupted : bool
        The search was stopped by the user.
    """

    replicas: tuple[int, ...]
    flows: tuple[float, ...]
    gpus_used: tuple[int, ...]
    gpus_paid: tuple[int, ...]
    nodes: tuple[int, ...]
    cost: float | None
    value: float
    bound: float
    gap: float
    rate: float
    status: PlanStatus
    interrupted: bool = False

    @property
    def used(self) -> tuple[int, ...]:
        """Candidates with replicas."""
        return tuple(i for i, n in enumerate(self.replicas) if n)


def _known(price: float | None) -> float:
    if price is None:
        raise SpecError("program: a price is needed but unknown")
    return price


def _faults(problem: Problem) -> Iterator[str]:
    """Each rule that `problem` breaks, in words."""
    throughput = problem.objective is Objective.THROUGHPUT
    if throughput != (problem.demand is None):
        yield "a demand is given exactly when the objective is not throughput"
    if problem.demand is not None and not 0 < problem.demand < math.inf:
        yield f"demand must be a finite rate > 0, got {problem.demand!r}"
    if not 0 <= problem.gap < 1:
        yield f"gap must lie in [0, 1), got {problem.gap!r}"
    if problem.min_replicas_per_pool < 1 or problem.spare_replicas < 0:
        yield "min_replicas_per_pool must be >= 1 and spare_replicas >= 0"
    yield from _type_faults(problem)
    yield from _candidate_faults(problem)


def _type_faults(problem: Problem) -> Iterator[str]:
    in_use = {c.gpu_type for c in problem.candidates if c.max_replicas > 0}
    priced = problem.objective is Objective.COST or problem.budget is not None
    for index, kind in enumerate(problem.gpu_types):
        if kind.node_size < 1:
            yield f"GPU type {kind.name!r}: node_size must be >= 1, got {kind.node_size}"
        if index in in_use and priced and kind.price is None:
            yield f"GPU type {kind.name!r}: its price is needed"


def _candidate_faults(problem: Problem) -> Iterator[str]:
    names = [c.name for c in problem.candidates]
    if len(set(names)) < len(names):
        yield "candidates must have different names"
    for c in problem.candidates:
        if not 0 <= c.gpu_type < len(problem.gpu_types):
            yield f"candidate {c.name!r}: no GPU type number {c.gpu_type}"
        if c.gpus < 1 or c.max_replicas < 0:
            yield f"candidate {c.name!r}: gpus must be >= 1 and max_replicas >= 0"
    for pair in problem.illegal_pairs:
        if not all(0 <= i < len(names) for i in pair):
            yield f"illegal pair {pair}: no such candidate"
        elif [problem.candidates[i].phase for i in pair] != [Phase.PREFILL, Phase.DECODE]:
            yield f"illegal pair {pair}: a prefill candidate, then a decode candidate"
