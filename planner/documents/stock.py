"""GPUs that the groups of a plan file need, against those that its own scenario has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from planner.collectives import links_node
from planner.documents.tree import Tree
from planner.errors import Problem
from planner.fleet import Deployed
from planner.specs import Engine, Phase


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
                where = "one node of it" if item.same_node else "the plan's scenario"
                rule = f"need {used} GPUs of {name}{pool}, {where} has {most}"
                hint = f"fewer replicas, or a larger {key} in scenario.fleet"
                yield tree.problem(("groups",), rule, hint, show_value=False)


def node_problems(tree: Tree, groups: Sequence[Deployed], engine: Engine) -> Iterator[Problem]:
    """Groups within one node: all of them are, of one line, with a link that the engine uses."""
    inside = [i for i, group in enumerate(groups) if group.item.same_node]
    if not inside:
        return
    first = groups[inside[0]].item
    for i, group in enumerate(groups):
        if group.item != first:
            rule = "all groups share the node, or none does: same_node and GPU must be the same in all"
            yield tree.problem(("groups", i), rule, show_value=False)
    if not links_node(first, engine):
        kind, known = first.gpu.scale_up_kind, ", ".join(engine.transfer.peer_links)
        rule = f"{first.gpu.name} has no link within a node that {engine.name} moves KV caches over"
        hint = f"it has {kind}, known: {known}"
        yield tree.problem(("groups", inside[0], "same_node"), rule, hint)


def gpus_of(groups: Iterable[Deployed]) -> int:
    """GPUs in use."""
    return sum(group.replicas * group.parallelism.num_gpus for group in groups)
