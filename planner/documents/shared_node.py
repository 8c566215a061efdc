"""Groups that share one node, so that KV caches take the link within it: what that asks of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.collectives import links_node
from planner.documents.tree import Tree
from planner.errors import Problem
from planner.specs import Engine, FleetItem


@dataclass(frozen=True, slots=True)
class Stand:
    """A group by its number in a file, where it stands, and the GPUs that all its replicas take."""

    index: int
    item: FleetItem
    gpus: int


def node_problems(tree: Tree, engine: Engine, stands: Sequence[Stand]) -> Iterator[Problem]:
    """Where one group shares a node, all groups behind its router do: GPUs of one type, with a link that the
    engine moves KV caches over, and no more of them than it reaches."""
    inside = [stand for stand in stands if stand.item.same_node]
    if not inside:
        return
    first = inside[0]
    gpu, most = first.item.gpu, first.item.max_gpus
    path = ("groups", first.index, "same_node")
    for stand in stands:
        if not stand.item.same_node:
            rule = f"does not share the node of groups[{first.index}]"
            hint = "same_node: true in all groups, or in none"
            yield tree.problem(("groups", stand.index), rule, hint, show_value=False)
        elif (stand.item.gpu, stand.item.zone) != (gpu, first.item.zone):
            rule = f"shares a node with {gpu.name} of groups[{first.index}]: a node has GPUs of one type"
            yield tree.problem(("groups", stand.index, "gpu"), rule)
    if not links_node(first.item, engine):
        known = ", ".join(engine.transfer.peer_links)
        rule = f"{engine.name} does not move KV caches over the {gpu.scale_up_kind} of a node of {gpu.name}"
        yield tree.problem(path, rule, f"known links: {known}; leave same_node out")
        return
    used = sum(stand.gpus for stand in inside)
    if most is not None and used > most:
        rule = f"groups within one node need {used} GPUs of {gpu.name}, the node's link reaches {most}"
        yield tree.problem(path, rule, "fewer replicas, or leave same_node out", show_value=False)
