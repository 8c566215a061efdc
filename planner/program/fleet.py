"""What a decision comes to: GPUs, nodes, cost, load. Computed from replica counts alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress

from planner.program.problem import Event, Problem
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
        Of the GPUs paid for and of traffic between zones; None where a price in use is unknown. [USD/h]
    carried : float
        Load of all streams in their shares that the weakest pool lets through at the worst event. [req/s]
    value : float
        Of the objective. [USD/h, GPUs, W or req/s]
    stopped : int
        Replicas that stand and are not in it.
    """

    replicas: tuple[int, ...]
    usable: tuple[float, ...]
    gpus_used: tuple[int, ...]
    gpus_paid: tuple[int, ...]
    nodes: tuple[int, ...]
    cost: float | None
    carried: float
    value: float
    stopped: int = 0

    @property
    def groups(self) -> int:
        return sum(n > 0 for n in self.replicas)

    def rank(self, objective: Objective) -> tuple[float, int, int, int]:
        """Sort key, least first: the objective, then what stops, then fewest groups, then fewest GPUs."""
        return loss(objective, self.value), self.stopped, self.groups, sum(self.gpus_used)


def loss(objective: Objective, value: float) -> float:
    """What is minimised: `value`, or minus the rate for throughput; its own inverse."""
    return -value if objective is Objective.THROUGHPUT else value


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Capacities of the pools of one stream in one zone. [req/s]"""

    prefill: float
    decode: float
    colocated: float

    def of(self, phase: Phase) -> float:
        """Of the pool of one phase. [req/s]"""
        return {Phase.PREFILL: self.prefill, Phase.DECODE: self.decode, Phase.COLOCATED: self.colocated}[
            phase
        ]

    @property
    def through(self) -> float:
        """Load that passes without leaving the zone."""
        return min(self.prefill, self.decode) + self.colocated


def cells(problem: Problem, replicas: Sequence[int], stream: int, event: Event) -> dict[str, Cell]:
    """Per zone, what the pools of a stream carry at an event."""
    used = compress(range(len(replicas)), replicas)
    mine = [i for i in used if replicas[i] > 0 and problem.candidates[i].stream == stream]
    left = [i for i in mine if problem.candidates[i].gpu_type not in event.lost]
    pools: dict[tuple[str, Phase], list[int]] = {}
    for i in left:
        pools.setdefault((problem.zone(i), problem.candidates[i].phase), []).append(i)
    return {
        zone: Cell(
            **{phase.value: _pool(problem, replicas, pools.get((zone, phase), []), event) for phase in Phase}
        )
        for zone in problem.zones
    }


def _pool(problem: Problem, replicas: Sequence[int], groups: Sequence[int], event: Event) -> float:
    """Load that a pool carries; at the first event also with any one group without what it may lose."""
    curves = {i: problem.candidates[i].curve for i in groups}
    if not event.spares:
        return sum(curves[i].capacity(replicas[i]) for i in groups)
    carried = [sum(problem.usable(i, replicas[i]) for i in groups)]
    for i in groups:
        if lost := problem.lost(i):
            rest = sum(curves[j].capacity(replicas[j]) for j in groups if j != i)
            carried.append(rest + curves[i].capacity(replicas[i] - lost))
    return min(carried)


def pool_capacity(parts: dict[str, Cell], phase: Phase) -> float:
    """Load that the pools of a phase carry in all zones. [req/s]"""
    return sum(cell.of(phase) for cell in parts.values())


def through(problem: Problem, parts: dict[str, Cell]) -> float:
    """Load that a stream's cells let through together. [req/s]"""
    if not problem.across_zones:
        return sum(cell.through for cell in parts.values())
    return Cell(**{phase.value: pool_capacity(parts, phase) for phase in Phase}).through


def crossing(problem: Problem, parts: dict[str, Cell], rate: float) -> float:
    """Load whose KV caches have to change zones where `rate` is served. [req/s]"""
    if not problem.across_zones:
        return 0.0
    return max(rate - sum(cell.through for cell in parts.values()), 0.0)


def build_fleet(problem: Problem, replicas: Sequence[int]) -> Fleet:
    """What `replicas` of each candidate come to; nothing is checked here."""
    replicas = tuple(replicas)
    usable = tuple(problem.usable(i, n) if n else 0.0 for i, n in enumerate(replicas))
    used = [0] * len(problem.gpu_types)
    for candidate, n in zip(problem.candidates, replicas, strict=True):
        used[candidate.gpu_type] += n * candidate.gpus
    nodes = tuple(-(-u // kind.node_size) for u, kind in zip(used, problem.gpu_types, strict=True))
    paid = tuple(-(-u // problem.gpu_block(g)) * problem.gpu_block(g) for g, u in enumerate(used))
    carried = min(_scales(problem, replicas)) * sum(s.share for s in problem.streams)
    cost = _cost(problem, replicas, paid)
    return Fleet(
        replicas=replicas,
        usable=usable,
        gpus_used=tuple(used),
        gpus_paid=paid,
        nodes=nodes,
        cost=cost,
        carried=carried,
        value=_value(problem, replicas, paid, carried),
        stopped=sum(
            max(kind.current - sum(replicas[i] for i in kind.candidates), 0) for kind in problem.moves
        ),
    )


def _scales(problem: Problem, replicas: Sequence[int]) -> Iterator[float]:
    """Per stream and event, what is carried over what must be, at a demand of 1."""
    for s, stream in enumerate(problem.streams):
        for event in problem.events:
            yield through(problem, cells(problem, replicas, s, event)) / (stream.share * event.share)


def started(problem: Problem, replicas: Sequence[int]) -> tuple[int, ...]:
    """Per kind of replica, how many more are needed than stand."""
    return tuple(max(sum(replicas[i] for i in kind.candidates) - kind.current, 0) for kind in problem.moves)


def distribute(problem: Problem, fleet: Fleet, rate: float, event: Event | None = None) -> tuple[float, ...]:
    """Load of each candidate's group, `rate` being that of all streams together. [req/s]

    At an event, by default the first, that is what its groups carry. Zones get load in proportion to what
    passes through them, and so do the groups of a pool, so that they are equally busy. What has to change
    zones goes from prefill pools with room to decode pools with room.
    """
    event = event or problem.events[0]
    carries = [carried_at(problem, i, n, event) for i, n in enumerate(fleet.replicas)]
    flows = [0.0] * len(problem.candidates)
    total = sum(s.share for s in problem.streams)
    for s, stream in enumerate(problem.streams):
        parts = cells(problem, fleet.replicas, s, event)
        served = rate * stream.share / total
        for phase in Phase:
            loads = _pool_loads(problem, parts, phase, served)
            members = [i for i in problem.indices(phase, s) if carries[i] > 0]
            for zone in problem.zones:
                groups = [i for i in members if problem.zone(i) == zone]
                capacity = sum(carries[i] for i in groups)
                for i in groups:
                    flows[i] = loads[zone] * carries[i] / capacity
    return tuple(flows)


def carried_at(problem: Problem, index: int, replicas: int, event: Event) -> float:
    """Load that a group carries at an event. [req/s]"""
    candidate = problem.candidates[index]
    if candidate.gpu_type in event.lost:
        return 0.0
    return candidate.curve.capacity(replicas - (problem.spares if event.spares else 0))


def _pool_loads(problem: Problem, parts: dict[str, Cell], phase: Phase, served: float) -> dict[str, float]:
    """Load of the pools of one phase, per zone. [req/s]"""
    within = {zone: cell.colocated or min(cell.prefill, cell.decode) for zone, cell in parts.items()}
    inside = sum(within.values())
    local = min(served, inside) if problem.across_zones else served
    loads = {zone: local * w / inside if inside else 0.0 for zone, w in within.items()}
    beyond = served - local
    if beyond > 0:
        room = {zone: max(cell.of(phase) - within[zone], 0.0) for zone, cell in parts.items()}
        rest = sum(room.values())
        loads = {zone: load + (beyond * room[zone] / rest if rest else 0.0) for zone, load in loads.items()}
    return loads


def _cost(problem: Problem, replicas: Sequence[int], paid: Sequence[int]) -> float | None:
    total = _egress(problem, replicas)
    for kind, gpus in zip(problem.gpu_types, paid, strict=True):
        if gpus and kind.price is None:
            return None
        total += gpus * (kind.price or 0.0)
    return total


def _egress(problem: Problem, replicas: Sequence[int]) -> float:
    """Cost of traffic between zones at the demand; nothing for throughput. [USD/h]"""
    if not problem.across_zones or problem.demand is None:
        return 0.0
    base = problem.events[0]
    return sum(
        stream.egress_cost * crossing(problem, cells(problem, replicas, s, base), problem.rate(s))
        for s, stream in enumerate(problem.streams)
    )


def _value(problem: Problem, replicas: Sequence[int], paid: Sequence[int], carried: float) -> float:
    if problem.objective is Objective.THROUGHPUT:
        return carried
    value = sum(gpus * problem.weight(g) for g, gpus in enumerate(paid) if gpus)
    if problem.objective is Objective.COST:
        moved = zip(problem.moves, started(problem, replicas), strict=True)
        value += _egress(problem, replicas) + sum(kind.cost * count for kind, count in moved)
    return value
