"""GPUs that the groups of a plan file need, against those that its own scenario has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from planner.documents.tree import Tree
from planner.errors import Problem
from planner.fleet import Deployed
from planner.specs import Phase


def stock_problems(tree: Tree, groups: Sequence[Deployed]) -> Iterator[Problem]:
    """No more GPUs of a type, in all and in each pool, than the plan's own scenario has."""
    for name in dict.fromkeys(group.item.gpu.name for group in groups):
        mine = [group for group in groups if group.item.gpu.name == name]
        item = mine[0].item
        needed = {phase: gpus_of(g for g in mine if g.phase is phase) for phase in Phase}
        limits = [("max_gpus", "", item.max_gpus, gpus_of(mine))]
        limits += [
            (f"max_{phase}_gpus", f" for {phase}", cap, needed[phase])
            for phase, cap in item.max_gpus_by_phase.items()
        ]
        for key, pool, most, used in limits:
            if most is not None and used > most:
                rule = f"need {used} GPUs of {name}{pool}, the plan's scenario has {most}"
                hint = f"fewer replicas, or a larger {key} in scenario.fleet"
                yield tree.problem(("groups",), rule, hint, show_value=False)


def gpus_of(groups: Iterable[Deployed]) -> int:
    """GPUs in use."""
    return sum(group.replicas * group.parallelism.num_gpus for group in groups)
