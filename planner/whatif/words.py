"""Fleets, and what is asked of them, in words."""

from __future__ import annotations

from collections.abc import Sequence

from planner.plan import Group
from planner.specs import FleetItem, Objective, PriceClass, Service

UNITS = {
    Objective.COST: "USD/h",
    Objective.GPUS: "GPUs",
    Objective.POWER: "W",
    Objective.THROUGHPUT: "req/s",
}
"""Unit of each objective's value."""


def described(groups: Sequence[Group]) -> str:
    """Groups in words, e.g. "3 x h100-sxm TP2 prefill, 1 x h100-sxm TP2 decode"."""
    several = len({g.service for g in groups}) > 1
    return ", ".join(
        f"{g.replicas} x {placed(g.gpu, g.zone, g.price_class)} {g.parallelism} {g.phase}"
        + (f" of {g.service}" if several else "")
        for g in groups
    )


def placed(gpu: str, zone: str, price_class: PriceClass = PriceClass.ON_DEMAND) -> str:
    """A GPU type, with its zone where there is one, and how it is paid for where that is not on demand."""
    named = gpu if price_class is PriceClass.ON_DEMAND else f"{price_class} {gpu}"
    return f"{named} in {zone}" if zone else named


def item_name(item: FleetItem) -> str:
    """A line of the fleet."""
    return placed(item.gpu.name, item.zone, item.price_class)


def of_service(text: str, service: Service, services: Sequence[Service]) -> str:
    """`text`, with whose it is where there are several services."""
    return f"{text} of {service.name}" if len(services) > 1 else text


def count(number: int, noun: str) -> str:
    """ "1 GPU", "2 GPUs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
