"""Groups of replicas behind one front door: what is predicted, simulated and deployed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.collectives import network_rate
from planner.specs import Engine, FleetItem, Parallelism, Phase, Precision, Routing, Service
from planner.transformer import kv_copies


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployed:
    """One group as it stands: what serves, how many, at what load.

    Attributes
    ----------
    rate : float
        Requests sent to the whole group. [req/s]
    precision : Precision or None
        None: that of the service.
    """

    phase: Phase
    item: FleetItem
    parallelism: Parallelism
    replicas: int
    rate: float
    token_budget: int
    kv_tokens: int
    max_num_seqs: int
    precision: Precision | None = None

    @property
    def label(self) -> str:
        """What the group is, e.g. "prefill-h100-sxm-tp2-pp2"."""
        return group_label(self.phase, self.item, self.parallelism)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """Groups behind one front door, and how it routes."""

    service: Service
    engine: Engine
    groups: tuple[Deployed, ...]
    routing: Routing

    def pool(self, phase: Phase) -> tuple[Deployed, ...]:
        return tuple(g for g in self.groups if g.phase is phase)

    def service_of(self, group: Deployed) -> Service:
        """The service in the formats of one group."""
        return in_formats(self.service, group)


def group_label(phase: Phase, item: FleetItem, parallelism: Parallelism) -> str:
    """What a group is, e.g. "prefill-h100-sxm-tp2-pp2"."""
    where = item.name.replace("@", "-")
    return f"{phase}-{where}-" + str(parallelism).lower().replace(" ", "-")


def in_formats(service: Service, group: Deployed) -> Service:
    """`service` in the formats of `group`."""
    return service if group.precision is None else replace(service, precision=group.precision)


def distinct_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Labels of groups as names: those that are alike get a number."""
    return tuple(
        f"{label}-{labels[: i + 1].count(label)}" if labels.count(label) > 1 else label
        for i, label in enumerate(labels)
    )


def path_rate(fleet: Fleet, prefill: Deployed, decode: Deployed) -> float:
    """Rate at which unique KV bytes get from one replica to the other. [B/s]"""
    ends = [
        network_rate(g.item, fleet.engine) * g.parallelism.num_gpus / g.parallelism.dp
        for g in (prefill, decode)
    ]
    return min(ends) / kv_copies(fleet.service.model, decode.parallelism.tp)
