"""What the integer program is asked and what it answers. Frozen; rates in req/s, money in USD/h.

The program knows nothing of latency: how much load a group carries comes in as a
:class:`CapacityCurve`, and the curve's piecewise form is the definition. Program, post-check
and brute force therefore agree exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from planner.errors import SpecError
from planner.plan import PlanStatus
from planner.specs import ColocatedUse, Objective, Phase, SpareScope

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
    SURVIVAL = "surviving the loss of a node or zone"
    SPOT = "share of the demand to be carried without spot"
    SURGE = "room for replicas that are upgraded"
    WHOLE_NODES = "whole nodes"
    GPU_TYPES = "number of GPU types"
    COLOCATED = "colocated use"
    REPLICAS = "most replicas of a group"
    ZONES = "GPU caps per zone"
    POWER = "power cap"


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A stretch of replica counts, ``first <= n <= last``, on which capacity is affine.

    Attributes
    ----------
    capacity, slope : mapping of int
        By the number of replicas lost: what `first` replicas carry without these, and what each further one
        adds. [req/s]
    """

    first: int
    last: int
    capacity: Mapping[int, float]
    slope: Mapping[int, float]


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
        return replicas * self._rate(replicas)

    def pieces(self, *, losses: Sequence[int], limit: int) -> Iterator[Piece]:
        """Stretches of n up to `limit` on which the capacity without any of `losses` replicas is affine.

        Those on which nothing is carried without the first of `losses` are left out.
        """
        breaks = sorted({start + loss for start in self.starts for loss in losses if start + loss <= limit})
        for first, end in pairwise([*breaks, limit + 1]):
            if self.capacity(first - losses[0]) > 0:
                yield Piece(
                    first=first,
                    last=end - 1,
                    capacity={loss: self.capacity(first - loss) for loss in losses},
                    slope={loss: self._rate(first - loss) for loss in losses},
                )

    def _rate(self, replicas: int) -> float:
        """Load of one of so many replicas. [req/s]"""
        return self.per_replica[bisect_right(self.starts, replicas) - 1] if replicas >= 1 else 0.0


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
    stream : int
        Index into :attr:`Problem.streams`: whose requests it serves.
    """

    name: str
    phase: Phase
    gpu_type: int
    gpus: int
    curve: CapacityCurve
    max_replicas: int
    stream: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Requests behind one front door: those of a model, or its prompts of some lengths.

    Attributes
    ----------
    share : float
        Of the problem's demand; for throughput, of the load that is made large. [1]
    egress_cost : float
        Of a load whose KV caches change zones. [USD/h per req/s]
    """

    name: str = ""
    share: float = 1.0
    egress_cost: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Moves:
    """Replicas of one kind that stand already, whatever candidates describe them.

    Attributes
    ----------
    candidates : tuple of int
        Candidates that are replicas of this kind; each is of one kind at most.
    current : int
        Replicas that stand.
    cost : float
        Of each replica that has to be started beyond them. [USD/h]
    """

    name: str
    candidates: tuple[int, ...]
    current: int
    cost: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that the plan has to bear.

    Attributes
    ----------
    share : float
        Of the demand that must then still be carried. [1]
    lost : frozenset of int
        GPU types that are gone.
    spares : bool
        Whether every group is without its spare replicas as well.
    """

    name: str
    share: float
    lost: frozenset[int]
    spares: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuType:
    """GPUs of one kind that may be used: a line of the fleet.

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
    zone : str
        Where they stand; pools of different zones are pools of their own.
    spot : bool
        Whether they may be taken away at once.
    kind : str
        What counts as a type where the number of types is limited; empty: the name.
    """

    name: str
    price: float | None
    power: float
    node_size: int
    max_gpus: int | None = None
    max_gpus_by_phase: Mapping[Phase, int] = field(default_factory=dict)
    zone: str = ""
    spot: bool = False
    kind: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Which replicas may serve what load under which limits.

    Attributes
    ----------
    demand : float or None
        Load to carry, of all streams together; None where the objective is throughput. [req/s]
    streams : tuple of Stream
        Each with candidates, pools and a front door of its own.
    budget : float or None
        Most that everything paid for may cost. [USD/h]
    illegal_pairs : frozenset of (int, int)
        Prefill and decode candidates of a stream that must not stand behind one router.
    min_replicas_per_pool : int
        Of each pool in use.
    spare_replicas : int
        Replicas that may be lost while the rest still carries the demand.
    spare_scope : SpareScope
        Whether every group loses them at once, or one group at a time.
    survive_node : bool
        Whether any group may lose as many replicas as stand on one node. A node is taken to hold replicas of
        one group of a pool.
    survive_zone : bool
        Whether every zone may be lost.
    surge_replicas : int
        Replicas of a group that start beside it while it is upgraded, one group at a time: they must be in
        stock, and are not paid for.
    on_demand_floor : float
        Share of the demand that is carried without spot GPUs. [1]
    across_zones : bool
        Whether KV caches may go from zone to zone, at each stream's `egress_cost`.
    zone_caps : mapping of str
        Most GPUs paid for in a zone.
    power_cap : float or None
        Of everything paid for. [W]
    moves : tuple of Moves
        What stands already; only where the objective is cost.
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
    streams: tuple[Stream, ...] = (Stream(),)
    spare_scope: SpareScope = SpareScope.GROUP
    survive_node: bool = False
    survive_zone: bool = False
    surge_replicas: int = 0
    on_demand_floor: float = 0.0
    across_zones: bool = False
    zone_caps: Mapping[str, int] = field(default_factory=dict)
    power_cap: float | None = None
    moves: tuple[Moves, ...] = ()

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

    @property
    def spares(self) -> int:
        """Replicas that every group is without at once."""
        return self.spare_replicas if self.spare_scope is SpareScope.GROUP else 0

    def lost(self, index: int) -> int:
        """Replicas that a group may lose while all others stand; 0 where that is not asked for."""
        lost = self.spare_replicas if self.spare_scope is SpareScope.POOL else 0
        if self.survive_node:
            candidate = self.candidates[index]
            lost = max(lost, self.gpu_types[candidate.gpu_type].node_size // candidate.gpus, 1)
        return lost

    def losses(self, index: int) -> tuple[int, ...]:
        """Numbers of replicas without which a group's load counts: first the spares of every group."""
        lost = self.lost(index)
        one_group = self.survive_node or (self.spare_scope is SpareScope.POOL and self.spare_replicas > 0)
        full = (0,) if one_group or self.survive_zone or self.on_demand_floor > 0 else ()
        return tuple(dict.fromkeys([self.spares, *full, *([lost] if lost > self.spares else [])]))

    def usable(self, index: int, replicas: int) -> float:
        """Load that a group still carries with its spares down. [req/s]"""
        return self.candidates[index].curve.capacity(replicas - self.spares)

    def least(self, index: int, replicas: int) -> float:
        """Load that a group carries at the worst that may happen to it alone. [req/s]"""
        return self.candidates[index].curve.capacity(replicas - max(self.spares, self.lost(index)))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Per line of the fleet, which type of GPU it is."""
        return tuple(kind.kind or kind.name for kind in self.gpu_types)

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones in which GPUs may be used."""
        named = {kind.zone for kind in self.gpu_types}
        if len(named) == 1:
            return tuple(named)
        used = {c.gpu_type for c in self.candidates if c.max_replicas > 0}
        return tuple(sorted({self.gpu_types[g].zone for g in used})) or ("",)

    @property
    def events(self) -> tuple[Event, ...]:
        """What the plan has to bear: first that nothing but spares is lost."""
        kinds = range(len(self.gpu_types))
        found = [Event(name="", share=1.0, lost=frozenset(), spares=True)]
        if self.survive_zone:
            for zone in self.zones:
                gone = frozenset(g for g in kinds if self.gpu_types[g].zone == zone)
                found.append(Event(name=f"without {zone}", share=1.0, lost=gone, spares=False))
        if self.on_demand_floor > 0:
            gone = frozenset(g for g in kinds if self.gpu_types[g].spot)
            found.append(Event(name="without spot", share=self.on_demand_floor, lost=gone, spares=False))
        return tuple(found)

    def rate(self, stream: int) -> float:
        """Demand of one stream; needs a demand. [req/s]"""
        assert self.demand is not None
        return self.demand * self.streams[stream].share

    def zone(self, index: int) -> str:
        """Where a candidate's GPUs stand."""
        return self.gpu_types[self.candidates[index].gpu_type].zone

    def indices(self, phase: Phase, stream: int | None = None) -> tuple[int, ...]:
        """Candidates of one phase, of one stream or of all."""
        return tuple(
            i for i, c in enumerate(self.candidates) if c.phase is phase and stream in (None, c.stream)
        )

    def may_meet(self, i: int, j: int) -> bool:
        """Whether a prefill and a decode candidate would stand behind one router."""
        same = self.candidates[i].stream == self.candidates[j].stream
        return same and (self.across_zones or self.zone(i) == self.zone(j))

    def pairs_that_meet(self) -> frozenset[tuple[int, int]]:
        """Illegal pairs that a plan could bring together."""
        return frozenset((i, j) for i, j in self.illegal_pairs if self.may_meet(i, j))

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

    def stock(self, gpu_type: int) -> int | None:
        """GPUs of one type that can be used: whole nodes of them where nodes are paid whole."""
        most = self.gpu_types[gpu_type].max_gpus
        block = self.gpu_block(gpu_type)
        return None if most is None else most // block * block

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
        Of the GPUs paid for and of traffic between zones; None where a price in use is unknown. [USD/h]
    value, bound, gap : float
        Objective reached [USD/h, GPUs, W or req/s], proven bound, their relative difference.
    rate : float
        Load served, of all streams: the demand, or the most that the plan carries for throughput. [req/s]
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
    if problem.surge_replicas < 0 or not 0 <= problem.on_demand_floor <= 1:
        yield "surge_replicas must be >= 0 and on_demand_floor must lie in [0, 1]"
    if problem.across_zones and problem.demand is None:
        yield "traffic between zones has a price per request, so there must be a demand"
    if problem.moves and problem.objective is not Objective.COST:
        yield "moves have a price, so the objective must be cost"
    moved = [i for kind in problem.moves for i in kind.candidates]
    if len(set(moved)) < len(moved):
        yield "a candidate is in two kinds of moves"
    yield from _stream_faults(problem)
    yield from _type_faults(problem)
    yield from _candidate_faults(problem)


def _stream_faults(problem: Problem) -> Iterator[str]:
    if not problem.streams or not all(0 < s.share < math.inf for s in problem.streams):
        yield "streams: at least one, each with a finite share > 0"
    if len({s.name for s in problem.streams}) < len(problem.streams):
        yield "streams must have different names"
    if any(not 0 <= c.stream < len(problem.streams) for c in problem.candidates):
        yield "a candidate serves a stream that does not exist"


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
    before, after = (set(problem.indices(phase)) for phase in POOLS_OF_MODE[True])
    for i, j in problem.illegal_pairs:
        if i in before and j in after:
            continue
        if not all(0 <= k < len(names) for k in (i, j)):
            yield f"illegal pair {(i, j)}: no such candidate"
        else:
            yield f"illegal pair {(i, j)}: a prefill candidate, then a decode candidate"
