"""Rows about load: every pool carries what is sent to it, whatever the plan has to bear.

Within one zone a pool carries a stream's whole demand, and there are no flows. With several zones, each event
has flows of its own: the front door may send a zone another share once a zone is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from planner.program.fleet import Cell, cells, through
from planner.program.layout import FlowKey, Layout
from planner.program.problem import POOLS_OF_MODE, Event, Family, Problem
from planner.program.rows import Draft
from planner.specs import Phase

Term = tuple[int, float]


def flow_columns(draft: Draft, problem: Problem) -> dict[FlowKey, int]:
    """A column per event, stream and path through the zones; none where there is one zone."""
    if len(problem.zones) == 1:
        return {}
    keys = [
        (e, s, mode, a, b)
        for e, s, mode in product(range(len(problem.events)), range(len(problem.streams)), problem.modes)
        for a, b in product(problem.zones, problem.zones)
        if a == b or (mode and problem.across_zones)
    ]
    most = 1.0 if problem.demand is not None else float(len(problem.candidates))
    return {key: draft.column(f"flow[{_flow_name(problem, key)}]", 0, most, integer=False) for key in keys}


def _flow_name(problem: Problem, key: FlowKey) -> str:
    e, s, mode, a, b = key
    parts = [problem.streams[s].name, "disaggregated" if mode else "colocated", a, b if b != a else ""]
    return ",".join(filter(None, [*parts, problem.events[e].name]))


def load_rows(draft: Draft, problem: Problem, layout: Layout) -> None:
    """Capacity of a pool >= the load sent to it; loads of a stream >= its demand (for throughput: rate)."""
    for s, (e, event) in product(range(len(problem.streams)), enumerate(problem.events)):
        if layout.flows:
            _zoned(draft, problem, layout, s, e, event)
        else:
            _whole(draft, problem, layout, s, event)


def _whole(draft: Draft, problem: Problem, layout: Layout, s: int, event: Event) -> None:
    """Capacity of each pool of the mode in use >= the stream's demand."""
    for mode in problem.modes:
        for phase in POOLS_OF_MODE[mode]:
            for name, terms in _carried(problem, layout, s, problem.zones[0], phase, event):
                row = _name("demand", problem, s, phase, "", event, name)
                if layout.rate is None:
                    sign = -event.share if mode else event.share
                    switch = (layout.disaggregated[s], sign)
                    draft.row(row, [*terms, switch], lower=max(sign, 0.0), family=_family(event, name))
                    continue
                # The other mode's pools are empty, so its capacity makes this row slack and no more.
                for other in problem.modes:
                    if other is not mode:
                        first = POOLS_OF_MODE[other][0]
                        terms = [*terms, *_full(problem, layout, s, problem.zones[0], first, event)]
                rate = (layout.rate, -event.share * problem.streams[s].share)
                draft.row(row, [*terms, rate], lower=0, family=_family(event, name))


def _zoned(draft: Draft, problem: Problem, layout: Layout, s: int, e: int, event: Event) -> None:
    flows = {key: column for key, column in layout.flows.items() if key[:2] == (e, s)}
    for mode, zone in product(problem.modes, problem.zones):
        for phase in POOLS_OF_MODE[mode]:
            end = 4 if phase is Phase.DECODE else 3
            sent = [(c, -1.0) for key, c in flows.items() if key[2] is mode and key[end] == zone]
            for name, terms in _carried(problem, layout, s, zone, phase, event):
                row = _name("carried", problem, s, phase, zone, event, name)
                draft.row(row, [*terms, *sent], lower=0, family=_family(event, name))
    total: list[Term] = [(column, 1.0) for column in flows.values()]
    row = _name("demand", problem, s, None, "", event, "")
    if layout.rate is None:
        draft.row(row, total, lower=event.share)
    else:
        draft.row(row, [*total, (layout.rate, -event.share * problem.streams[s].share)], lower=0)


def _name(
    what: str, problem: Problem, s: int, phase: Phase | None, zone: str, event: Event, group: str
) -> str:
    parts = [problem.streams[s].name, phase or "", zone, event.name, group and f"part of {group} lost"]
    given = ",".join(filter(None, parts))
    return f"{what}[{given}]" if given else what


def _family(event: Event, group: str) -> Family | None:
    """The requirement that a row states; None where it is the demand itself."""
    if event.name:
        return Family.SURVIVAL if event.spares or event.share == 1.0 else Family.SPOT
    return Family.SURVIVAL if group else None


def _members(problem: Problem, layout: Layout, s: int, zone: str, phase: Phase, event: Event) -> list[int]:
    return [
        i
        for i in problem.indices(phase, s)
        if layout.ranges[i] and problem.zone(i) == zone and problem.candidates[i].gpu_type not in event.lost
    ]


def _full(problem: Problem, layout: Layout, s: int, zone: str, phase: Phase, event: Event) -> list[Term]:
    """Terms of what a pool carries at an event."""
    lost = problem.spares if event.spares else 0
    return [t for i in _members(problem, layout, s, zone, phase, event) for t in layout.capacity(i, lost)]


def _carried(
    problem: Problem, layout: Layout, s: int, zone: str, phase: Phase, event: Event
) -> Iterator[tuple[str, list[Term]]]:
    """What a pool carries at an event, and at the first also where any one group loses replicas."""
    yield "", _full(problem, layout, s, zone, phase, event)
    if not event.spares:
        return
    members = _members(problem, layout, s, zone, phase, event)
    for i in members:
        lost = problem.lost(i)
        if lost > problem.spares:
            rest = [t for j in members if j != i for t in layout.capacity(j, 0)]
            yield problem.candidates[i].name, [*rest, *layout.capacity(i, lost)]


def egress_terms(problem: Problem, layout: Layout) -> Iterator[Term]:
    """Terms of the cost of KV caches that change zones. [USD/h]"""
    for (e, s, _, a, b), column in layout.flows.items():
        if e == 0 and a != b:
            yield column, problem.streams[s].egress_cost * layout.references[s]


def flow_values(
    problem: Problem, layout: Layout, replicas: Sequence[int], carried: float
) -> Mapping[int, float]:
    """Values of the flow columns for a decision that carries `carried` [req/s] in all."""
    values: dict[int, float] = {}
    if not layout.flows:
        return values
    total = sum(stream.share for stream in problem.streams)
    for s, (e, event) in product(range(len(problem.streams)), enumerate(problem.events)):
        parts = cells(problem, replicas, s, event)
        load = carried * problem.streams[s].share / total if problem.demand is None else problem.rate(s)
        served = min(load * event.share, through(problem, parts))
        for key, amount in _paths(parts, served):
            column = layout.flows.get((e, s, *key))
            if column is not None:
                values[column] = values.get(column, 0.0) + amount / layout.references[s]
    return values


def _paths(parts: Mapping[str, Cell], served: float) -> Iterator[tuple[tuple[bool, str, str], float]]:
    """How `served` passes through the zones: within them first, then from one to another. [req/s]"""
    spare_prefill, spare_decode = {}, {}
    for zone, cell in parts.items():
        pair = min(cell.prefill, cell.decode)
        for mode, room in ((False, cell.colocated), (True, pair)):
            amount = min(room, served)
            served -= amount
            if amount > 0:
                yield (mode, zone, zone), amount
        spare_prefill[zone], spare_decode[zone] = cell.prefill - pair, cell.decode - pair
    for a, b in product(parts, parts):
        amount = min(spare_prefill[a], spare_decode[b], served)
        if a != b and amount > 0:
            spare_prefill[a] -= amount
            spare_decode[b] -= amount
            served -= amount
            yield (True, a, b), amount
