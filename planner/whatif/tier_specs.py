"""Where KV caches of prompts may be kept beside HBM, and what a plan's prompts find room in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from planner.engines import engine_of
from planner.fleet import Deployed, Fleet
from planner.plan import Group, Plan
from planner.prediction import prefill_occupancy
from planner.routers import item_of
from planner.specs import Phase, Scenario, Service
from planner.traffic import Traffic
from planner.transformer import kv_copies


class Per(StrEnum):
    """What an amount is of."""

    ALL = "all"
    """Of the tier as a whole, however many share it."""
    NODE = "node"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class Pool:
    """The groups that compute prompts.

    Attributes
    ----------
    gpus, nodes, replicas : int
    replica_gpus : int
        Of the smallest replica.
    tokens : float
        Room for prefixes in all KV caches, beside the sequences under way. [tok]
    copies : float
        Most times that a replica holds each byte of a KV cache. [1]
    busy_gpus : float
        GPUs that compute prompts, on average; nan where they decode beside that.
    """

    gpus: int
    nodes: int
    replicas: int
    replica_gpus: int
    tokens: float
    copies: float
    busy_gpus: float = math.nan

    @classmethod
    def of(cls, plan: Plan, scenario: Scenario) -> Pool:
        """That of a plan's prompts.

        A prefill replica keeps room for one step and one long prompt, a colocated one also for the whole
        lengths of the sequences that decode.
        """
        service = scenario.services[0]
        traffic = Traffic.of_service(service)
        groups = plan.pool(Phase.PREFILL) or plan.pool(Phase.COLOCATED)
        return cls(
            gpus=sum(g.num_gpus for g in groups),
            nodes=_nodes(groups, scenario),
            replicas=sum(g.replicas for g in groups),
            replica_gpus=min(g.parallelism.num_gpus for g in groups),
            tokens=sum(g.replicas * _room(g, traffic) for g in groups),
            copies=max(kv_copies(service.model, g.parallelism.tp) for g in groups),
        )


def _room(group: Group, traffic: Traffic) -> float:
    """Tokens of a replica's KV cache that prefixes may take. [tok]"""
    running = 0.0 if group.phase is Phase.PREFILL else group.mean_batch * traffic.reserved
    taken = running + group.max_num_batched_tokens + traffic.longest_isl
    return max(group.kv_capacity - taken, 0.0)


def _nodes(groups: Sequence[Group], scenario: Scenario) -> int:
    """Nodes that the groups fill, each line of the fleet apart."""
    lines: dict[tuple[str, str, str], int] = {}
    sizes: dict[tuple[str, str, str], int] = {}
    for group in groups:
        item = item_of(scenario, group)
        key = (group.gpu, group.zone, group.price_class)
        lines[key] = lines.get(key, 0) + group.num_gpus
        sizes[key] = item.node_size if item is not None else 1
    return sum(-(-gpus // sizes[key]) for key, gpus in lines.items())


@dataclass(frozen=True, slots=True)
class Amount:
    """So much of something, of all of a tier, or for each node or GPU of the pool."""

    value: float
    per: Per = Per.ALL

    def units(self, pool: Pool) -> int:
        """How many have as much."""
        return {Per.ALL: 1, Per.NODE: pool.nodes, Per.GPU: pool.gpus}[self.per]

    def of(self, pool: Pool) -> float:
        """The whole amount."""
        return self.value * self.units(pool)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tier:
    """A place for KV caches that is slower than HBM.

    Attributes
    ----------
    capacity : Amount or None
        [B]; None where `hit_rate` is given.
    hit_rate : float or None
        Share of the prompt tokens that is found here and in no faster tier. [1]
    bandwidth : Amount
        Of reading. [B/s]
    price : Amount or None
        None: paid for already. [USD/h]
    """

    name: str
    bandwidth: Amount
    capacity: Amount | None = None
    hit_rate: float | None = None
    price: Amount | None = None


def fleet_of(plan: Plan, scenario: Scenario, service: Service) -> Fleet:
    """The groups of a plan, as one front door serves `service` with them."""
    return Fleet(
        service=service,
        engine=engine_of(service),
        groups=tuple(_deployed(group, scenario) for group in plan.groups),
        routing=scenario.options.routing,
    )


def _deployed(group: Group, scenario: Scenario) -> Deployed:
    item = item_of(scenario, group)
    assert item is not None  # the plan is of the scenario
    return Deployed(
        phase=group.phase,
        item=item,
        parallelism=group.parallelism,
        replicas=group.replicas,
        rate=group.request_rate,
        token_budget=group.max_num_batched_tokens,
        kv_tokens=group.kv_capacity,
        max_num_seqs=group.max_num_seqs,
        precision=group.precision,
    )


def busy_gpus(fleet: Fleet) -> float:
    """GPUs that compute prompts, on average; nan where they decode beside that."""
    groups = fleet.pool(Phase.PREFILL)
    if not groups:
        return math.nan
    return sum(prefill_occupancy(fleet, g).busy * g.replicas * g.parallelism.num_gpus for g in groups)
