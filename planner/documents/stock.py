"""GPUs that the groups of a plan file need, against those that its own scenario has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from planner.documents.tree import Tree
from planner.errors import Problem
from planner.fleet import Deployed
from planner.specs import FleetItem, Phase


def stock_problems(tree: Tree, groups: Sequence[Deployed], fleet: Sequence[FleetItem]) -> Iterator[Problem]:
    """No more GPUs of a type in a zone, in all and in each pool, than the plan's own scenario has.

    However they are paid for: a plan over periods lists reserved GPUs and those on demand as one group.
    """
    for name, zone in dict.fromkeys((group.item.gpu.name, group.item.zone) for group in groups):
        mine = [g for g in groups if (g.item.gpu.name, g.item.zone) == (name, zone)]
        lines = [item for item in fleet if (item.gpu.name, item.zone) == (name, zone)]
        limits = [("max_gpus", "", _total([item.max_gpus for item in lines]), gpus_of(mine))]
        for phase in Phase:
            cap = _total([item.max_gpus_by_phase.get(phase) for item in lines])
            used = gpus_of(g for g in mine if g.phase is phase)
            limits.append((f"max_{phase}_gpus", f" for {phase}", cap, used))
        where = f"{name} in {zone}" if zone else name
        for key, pool, most, used in limits:
            if most is not None and used > most:
                rule = f"need {used} GPUs of {where}{pool}, the plan's scenario has {most}"
                hint = f"fewer replicas, or a larger {key} in scenario.fleet"
                yield tree.problem(("groups",), rule, hint, show_value=False)


def _total(limits: Sequence[int | None]) -> int | None:
    """Of several lines together; None where one is unlimited."""
    return None if None in limits else sum(limit for limit in limits if limit is not None)


def gpus_of(groups: Iterable[Deployed]) -> int:
    """GPUs in use."""
    return sum(group.replicas * group.parallelism.num_gpus for group in groups)
