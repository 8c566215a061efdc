"""GPUs of one type under one roof: lines of a fleet that differ only in how they are paid for, as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.errors import SpecError
from planner.program.horizon import Offer
from planner.specs import FleetItem, PriceClass, Scenario
from planner.units import KILO

PROHIBITIVE = KILO  # times the reserved price: on demand where only reserved GPUs are to be had [1]


@dataclass(frozen=True, slots=True)
class Supply:
    """One GPU type: a line that stands for all of it, at the price on demand, and its other offers."""

    item: FleetItem
    offer: Offer


def supplies(fleet: Sequence[FleetItem]) -> tuple[Supply, ...]:
    """Lines of a fleet by GPU; spot GPUs are a type of their own."""
    groups: dict[tuple[object, ...], list[FleetItem]] = {}
    for item in fleet:
        spot = item.price_class is PriceClass.SPOT
        key = (item.gpu.name, item.node_size, item.network_bandwidth, item.rdma, spot)
        groups.setdefault(key, []).append(item)
    return tuple(_supply(items) for items in groups.values())


def _supply(items: Sequence[FleetItem]) -> Supply:
    owned = [item for item in items if item.owned]
    reserved = [i for i in items if i.price_class is PriceClass.RESERVED and not i.owned]
    bought = [i for i in items if i.price_class is not PriceClass.RESERVED and not i.owned]
    if len(reserved) > 1 or len(bought) > 1:
        raise SpecError(f"{items[0].gpu.name}: one line per price class, where there are periods")
    if any(item.max_gpus is None for item in owned):
        raise SpecError(f"{items[0].gpu.name}: owned GPUs need max_gpus where there are periods")
    offer = Offer(
        reserved_price=reserved[0].price if reserved else None,
        max_reserved=reserved[0].max_gpus if reserved else None,
        owned=sum(item.max_gpus or 0 for item in owned),
    )
    limits = [item.max_gpus for item in items]
    most = None if None in limits else sum(limit for limit in limits if limit is not None)
    first = (bought or reserved or owned)[0]
    price = bought[0].price if bought else PROHIBITIVE * (reserved[0].price or 1.0) if reserved else 0.0
    kind = first.price_class if first.price_class is PriceClass.SPOT else PriceClass.ON_DEMAND
    item = replace(first, price=price, max_gpus=most, owned=False, price_class=kind)
    return Supply(item, offer)


def with_supplies(scenario: Scenario, found: Sequence[Supply]) -> Scenario:
    """`scenario` with one line per GPU type."""
    return replace(scenario, fleet=tuple(supply.item for supply in found))
