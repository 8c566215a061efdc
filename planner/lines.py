"""Lines of a fleet that are physically alike: they differ in zone and in how they are paid for.

Candidates are evaluated once for such lines, and then stand in the program once per line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from planner.candidates import CandidateSet, replicas_in_stock
from planner.specs import FleetItem, Scenario


@dataclass(frozen=True, slots=True)
class Line:
    """Lines that are alike, by their index in the fleet, as one with the stock of the largest."""

    item: FleetItem
    members: tuple[int, ...]


def merged_lines(fleet: Sequence[FleetItem]) -> tuple[Line, ...]:
    """The fleet's lines, those that are alike together."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, item in enumerate(fleet):
        key = (item.gpu.name, item.node_size, item.network_bandwidth, item.rdma)
        groups.setdefault(key, []).append(i)
    return tuple(Line(_roomiest([fleet[i] for i in found]), tuple(found)) for found in groups.values())


def _roomiest(items: Sequence[FleetItem]) -> FleetItem:
    """The first of `items`, with what any of them allows."""
    first = items[0]
    stocks = [item.max_gpus for item in items]
    most = None if None in stocks else max(stock for stock in stocks if stock is not None)
    capped = set.intersection(*(set(item.max_gpus_by_phase) for item in items))
    caps = {phase: max(item.max_gpus_by_phase[phase] for item in items) for phase in capped}
    return replace(first, max_gpus=most, max_gpus_by_phase=caps)


def expanded(found: CandidateSet, scenario: Scenario, lines: Sequence[Line]) -> CandidateSet:
    """Candidates of merged lines as those of every line that has room for one replica."""
    if all(len(line.members) == 1 for line in lines):
        return found
    copies = [
        (i, member)
        for i, choice in enumerate(found.choices)
        for member in lines[choice.item].members
        if replicas_in_stock(scenario.fleet[member], choice) > 0
    ]
    candidates = []
    for i, member in copies:
        candidate, choice = found.candidates[i], found.choices[i]
        item, first = scenario.fleet[member], lines[choice.item].item
        name = candidate.name.replace(first.gpu.name, item.name, 1)
        most = min(candidate.max_replicas, replicas_in_stock(item, choice))
        candidates.append(replace(candidate, name=name, gpu_type=member, max_replicas=most))
    where: dict[int, list[int]] = {}
    for new, (old, _) in enumerate(copies):
        where.setdefault(old, []).append(new)
    return replace(
        found,
        candidates=tuple(candidates),
        choices=tuple(replace(found.choices[i], item=member) for i, member in copies),
        operating=tuple(found.operating[i] for i, _ in copies),
        binds=tuple(found.binds[i] for i, _ in copies),
        illegal_pairs=frozenset(
            pair for i, j in found.illegal_pairs for pair in product(where.get(i, ()), where.get(j, ()))
        ),
    )
