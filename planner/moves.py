"""A fleet that stands, and what it takes to turn it into another one.

Replicas are of a kind: the service, phase, line of the fleet, layout and formats. Limits of engines may
change without a move; a replica of another kind has to be started.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.plan import Group, Move, Plan
from planner.program.problem import Moves
from planner.question import Question
from planner.specs import Parallelism, Phase, Precision, line_name


@dataclass(frozen=True, order=True, slots=True)
class Kind:
    """What tells replicas apart for those who start them."""

    service: str
    phase: Phase
    line: str
    parallelism: Parallelism
    formats: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.service} {self.phase} {self.line} {self.parallelism} {self.formats[0]}"


def kind_of_group(group: Group) -> Kind:
    """Of a plan's group."""
    line = line_name(group.gpu, group.zone, group.price_class)
    return Kind(group.service, group.phase, line, group.parallelism, _formats(group.precision))


def _formats(precision: Precision) -> tuple[str, str]:
    return precision.weights.value, precision.kv_cache.value


def standing(groups: Iterable[Group]) -> Counter[Kind]:
    """Replicas of each kind."""
    found: Counter[Kind] = Counter()
    for group in groups:
        found[kind_of_group(group)] += group.replicas
    return found


def moves_of(questions: Sequence[Question], current: Plan, cost: float) -> tuple[Moves, ...]:
    """What stands for the program, `cost` being that of a replica that is started. [USD/h]"""
    stand = standing(current.groups)
    members: dict[Kind, list[int]] = {}
    offset = 0
    for q in questions:
        for i, choice in enumerate(q.candidates.choices):
            kind = Kind(
                q.service.name,
                choice.phase,
                q.item(choice).name,
                choice.parallelism,
                _formats(choice.precision),
            )
            members.setdefault(kind, []).append(offset + i)
        offset += len(q.candidates.choices)
    return tuple(
        Moves(name=str(kind), candidates=tuple(found), current=stand[kind], cost=cost)
        for kind, found in members.items()
    )


def changes(before: Iterable[Group], after: Iterable[Group]) -> tuple[Move, ...]:
    """Kinds whose number of replicas changes, those that start first."""
    old, new = standing(before), standing(after)
    kinds = sorted(old.keys() | new.keys(), key=lambda kind: (old[kind] - new[kind], str(kind)))
    return tuple(
        Move(group=str(kind), before=old[kind], after=new[kind]) for kind in kinds if old[kind] != new[kind]
    )


def replicas_started(moves: Iterable[Move]) -> int:
    """Replicas that have to be started."""
    return sum(max(move.change, 0) for move in moves)
