"""What a plan over a horizon comes to: GPUs, nodes, money. Computed from replica counts alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner.program.horizon.problem import Horizon, Replicas


@dataclass(frozen=True, kw_only=True, slots=True)
class Bill:
    """Consequences of one decision; money in USD per horizon.

    Attributes
    ----------
    used, blocks, on_demand : tuple of tuple of int
        Per GPU type and period: GPUs with replicas, blocks in use, GPUs rented on demand.
    reserved : tuple of int
        GPUs per type.
    """

    used: tuple[tuple[int, ...], ...]
    blocks: tuple[tuple[int, ...], ...]
    on_demand: tuple[tuple[int, ...], ...]
    reserved: tuple[int, ...]
    reserved_cost: float
    on_demand_cost: float
    startup_cost: float

    @property
    def value(self) -> float:
        return self.reserved_cost + self.on_demand_cost + self.startup_cost


def bill(horizon: Horizon, replicas: Replicas, reserved: Sequence[int] | None = None) -> Bill:
    """What `replicas` come to with `reserved` GPUs per type; None reserves what is cheapest."""
    used = gpus_used(horizon, replicas)
    types = range(len(horizon.gpu_types))
    blocks = tuple(tuple(-(-u // horizon.block(g)) for u in used[g]) for g in types)
    if reserved is None:
        reserved = [reserve(horizon, g, blocks[g]) * horizon.block(g) for g in types]
    on_demand = tuple(
        tuple(max(b * horizon.block(g) - _at_hand(horizon, g, reserved[g]), 0) for b in blocks[g])
        for g in types
    )
    hours = [period.hours for period in horizon.periods]
    return Bill(
        used=used,
        blocks=blocks,
        on_demand=on_demand,
        reserved=tuple(reserved),
        reserved_cost=math.fsum(reserved_price(horizon, g) * n for g, n in enumerate(reserved) if n),
        on_demand_cost=math.fsum(
            horizon.price(g) * h * n for g in types for h, n in zip(hours, on_demand[g], strict=True)
        ),
        startup_cost=startup_cost(horizon, replicas),
    )


def gpus_used(horizon: Horizon, replicas: Replicas) -> tuple[tuple[int, ...], ...]:
    """GPUs with replicas, per type and period."""
    used = [[0] * len(horizon.periods) for _ in horizon.gpu_types]
    for stream, by_period in zip(horizon.streams, replicas, strict=True):
        for t, counts in enumerate(by_period):
            for candidate, n in zip(stream.candidates, counts, strict=True):
                used[candidate.gpu_type][t] += n * candidate.gpus
    return tuple(tuple(row) for row in used)


def reserved_price(horizon: Horizon, gpu_type: int) -> float:
    """Of one GPU for the whole horizon; infinite where none can be reserved. [USD]"""
    price = horizon.offer(gpu_type).reserved_price
    return math.inf if price is None else price * horizon.hours


def most_reserved(horizon: Horizon, gpu_type: int) -> float:
    """Blocks that can be reserved; 0 where there is no offer, infinite where it has no limit."""
    offer = horizon.offer(gpu_type)
    if offer.reserved_price is None:
        return 0
    return math.inf if offer.max_reserved is None else offer.max_reserved // horizon.block(gpu_type)


def reserve(horizon: Horizon, gpu_type: int, blocks: Sequence[int]) -> int:
    """Blocks of a type that it is cheapest to reserve when `blocks` are in use in each period.

    The n-th block is worth reserving while the hours for which n blocks are in use cost more on demand.
    """
    owned, most = horizon.owned(gpu_type), most_reserved(horizon, gpu_type)
    if not most:
        return 0
    price, each = horizon.price(gpu_type), reserved_price(horizon, gpu_type)
    hours = [period.hours for period in horizon.periods]
    chosen = 0
    for n in sorted({b - owned for b in blocks if b > owned}):
        n = int(min(n, most))
        saved = price * math.fsum(h for h, b in zip(hours, blocks, strict=True) if b - owned >= n)
        if saved > each and n > chosen:
            chosen = n
    return chosen


def startup_cost(horizon: Horizon, replicas: Replicas) -> float:
    """Of all replicas that start. [USD]"""
    if not horizon.startup_hours:
        return 0.0
    return math.fsum(
        horizon.startup_cost(s, i) * (after - before)
        for s, by_period in enumerate(replicas)
        for a, b in horizon.transitions
        for i, (before, after) in enumerate(zip(by_period[a], by_period[b], strict=True))
        if after > before
    )


def _at_hand(horizon: Horizon, gpu_type: int, reserved: int) -> int:
    """GPUs that are paid for already."""
    return reserved + horizon.owned(gpu_type) * horizon.block(gpu_type)
