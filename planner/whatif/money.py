"""What a plan costs, and for what: by hour and month, pool, GPU type and group, per million tokens.

Amounts are USD. A month has 730 hours. Amounts that are shown rounded still add up: see :func:`apportioned`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from planner.results import Result
from planner.units import HOURS_PER_MONTH, KILO, MEGA
from planner.whatif.frames import csv_text

COLUMNS = (
    "kind",
    "name",
    "service",
    "phase",
    "gpu",
    "zone",
    "parallelism",
    "replicas",
    "gpus",
    "utilization",
    "usd_per_gpu_hour",
    "usd_per_hour",
    "usd_per_month",
    "power_kw",
    "power_usd_per_month",
)
"""Of the CSV, in its order."""
HOUR_DIGITS, MONTH_DIGITS = 4, 2  # after the point
NO_OVERHEAD = 1.0  # power usage effectiveness of a site that uses nothing beside its servers [1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One group, or the GPUs of one type that are paid for and not used.

    Attributes
    ----------
    kind : str
        "group", "unused", "electricity" or "traffic" between zones.
    fixed : float
        What is no price of GPUs. [USD/h]
    utilization : float
        Load over what the group could carry; 0 where nothing runs. [1]
    price : float
        Of one GPU. [USD/h]
    power : float
        Thermal design power of its GPUs. [W]
    """

    kind: str
    name: str
    gpu: str
    zone: str
    gpus: int
    price: float
    power: float
    service: str = ""
    phase: str = ""
    parallelism: str = ""
    replicas: int = 0
    utilization: float = 0.0
    fixed: float = 0.0

    @property
    def cost(self) -> float:
        """[USD/h]"""
        return self.gpus * self.price + self.fixed


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What goes to one pool or one GPU type. [USD/h, 1]"""

    name: str
    gpus: int
    cost: float
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenPrice:
    """What a service's tokens cost when its share of the fleet serves the plan's rate all the time.

    Attributes
    ----------
    request_rate : float
        [req/s]
    cost : float
        Its groups, and unused GPUs in proportion to the GPUs that it uses of their type. [USD/h]
    input_tokens, output_tokens : float
        Served in an hour: the denominators. [tok]
    per_million_input, per_million_output, per_million : float
        The whole cost over the input tokens, over the output tokens, and over both. [USD]
    """

    service: str
    request_rate: float
    cost: float
    input_tokens: float
    output_tokens: float

    @property
    def per_million_input(self) -> float:
        return self.cost / self.input_tokens * MEGA

    @property
    def per_million_output(self) -> float:
        return self.cost / self.output_tokens * MEGA

    @property
    def per_million(self) -> float:
        return self.cost / (self.input_tokens + self.output_tokens) * MEGA


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEven:
    """When reserving GPUs of one type pays.

    Attributes
    ----------
    on_demand, reserved : float
        Price of one GPU: of every hour used, and of every hour whether used or not. [USD/h]
    gpus : int
        That the plan pays for.
    """

    gpu: str
    on_demand: float
    reserved: float
    gpus: int

    @property
    def duty(self) -> float:
        """Share of the time in use from which reserving is cheaper; 1 or more: never. [1]"""
        return self.reserved / self.on_demand

    @property
    def hours_per_month(self) -> float:
        """The same as hours of a month. [h]"""
        return self.duty * HOURS_PER_MONTH

    @property
    def saving(self) -> float:
        """By which the plan gets cheaper, in use all the time. [USD/h]"""
        return self.gpus * (self.on_demand - self.reserved)


@dataclass(frozen=True, kw_only=True, slots=True)
class Power:
    """Cost of energy, at the thermal design power of everything paid for: an upper bound.

    Attributes
    ----------
    price : float
        [USD/kWh]
    pue : float
        Power usage effectiveness: energy of the site over that of its servers. [1]
    draw : float
        Of the GPUs. [W]
    """

    price: float
    pue: float
    draw: float

    @property
    def cost(self) -> float:
        """[USD/h]"""
        return power_cost(self.draw, self.price, self.pue)


def power_cost(draw: float, price: float, pue: float) -> float:
    """Energy of an hour at `draw` [W], for `price` [USD/kWh]. [USD/h]"""
    return draw / KILO * pue * price


@dataclass(frozen=True, kw_only=True, slots=True)
class MoneyReport(Result):
    """A plan's bill.

    Attributes
    ----------
    lines : tuple of Line
        Groups, then unused GPUs by type; they add up to the cost.
    pools, gpu_types : tuple of Share
        The same money by pool (unused GPUs are one of their own) and by GPU type (with its unused ones).
    """

    name: str
    lines: tuple[Line, ...]
    tokens: tuple[TokenPrice, ...]
    break_even: tuple[BreakEven, ...]
    power: Power | None
    notes: tuple[str, ...] = ()

    @property
    def cost(self) -> float:
        """Of everything paid for, energy apart. [USD/h]"""
        return math.fsum(line.cost for line in self.lines)

    @property
    def gpus_paid(self) -> int:
        return sum(line.gpus for line in self.lines)

    @property
    def gpus_used(self) -> int:
        return sum(line.gpus for line in self.lines if line.kind == "group")

    @property
    def unused_cost(self) -> float:
        """Of GPUs that are paid for and not used. [USD/h]"""
        return math.fsum(line.cost for line in self.lines if line.kind == "unused")

    @property
    def utilization(self) -> float:
        """Load over capacity, weighted by what each line costs (its GPUs, where nothing costs); unused GPUs
        carry nothing. [1]"""
        weights = [line.cost - line.fixed for line in self.lines]
        if not any(weights):
            weights = [float(line.gpus) for line in self.lines]
        loads = [line.utilization for line in self.lines]
        total = math.fsum(weights)
        return math.fsum(w * u for w, u in zip(weights, loads, strict=True)) / total if total else 0.0

    @property
    def pools(self) -> tuple[Share, ...]:
        several = len({line.service for line in self.lines if line.service}) > 1
        return self._shares([_pool(line, several) for line in self.lines])

    @property
    def gpu_types(self) -> tuple[Share, ...]:
        return self._shares(
            [f"{x.gpu or x.name} in {x.zone}" if x.zone else x.gpu or x.name for x in self.lines]
        )

    def _shares(self, names: Sequence[str]) -> tuple[Share, ...]:
        """Lines summed by their names, in the order of first use."""
        total = self.cost
        shares = []
        for name in dict.fromkeys(names):
            lines = [line for line, own in zip(self.lines, names, strict=True) if own == name]
            cost = math.fsum(line.cost for line in lines)
            gpus = sum(line.gpus for line in lines)
            shares.append(Share(name=name, gpus=gpus, cost=cost, share=cost / total if total else 0.0))
        return tuple(shares)

    def rows(self) -> tuple[dict[str, Any], ...]:
        """A row for each line and one for the total; rounded amounts of the lines add up to the total's."""
        hourly = apportioned([line.cost for line in self.lines], HOUR_DIGITS)
        monthly = apportioned([line.cost * HOURS_PER_MONTH for line in self.lines], MONTH_DIGITS)
        energy = self._energy()
        rows = [
            {
                "kind": line.kind,
                "name": line.name,
                "service": line.service,
                "phase": line.phase,
                "gpu": line.gpu,
                "zone": line.zone,
                "parallelism": line.parallelism,
                "replicas": line.replicas if line.kind == "group" else None,
                "gpus": line.gpus,
                "utilization": float(f"{line.utilization:.4g}"),
                "usd_per_gpu_hour": line.price if line.gpus else None,
                "usd_per_hour": hourly[i],
                "usd_per_month": monthly[i],
                "power_kw": float(f"{line.power / KILO:.6g}"),
                "power_usd_per_month": energy[i],
            }
            for i, line in enumerate(self.lines)
        ]
        zero = Decimal(0)
        total = {
            "kind": "total",
            "name": "total",
            "replicas": sum(line.replicas for line in self.lines),
            "gpus": self.gpus_paid,
            "utilization": float(f"{self.utilization:.4g}"),
            "usd_per_hour": sum(hourly, zero),
            "usd_per_month": sum(monthly, zero),
            "power_kw": float(f"{sum(line.power for line in self.lines) / KILO:.6g}"),
            "power_usd_per_month": None if self.power is None else sum((e for e in energy if e), zero),
        }
        return (*rows, {column: total.get(column) for column in COLUMNS})

    def _energy(self) -> list[Decimal] | list[None]:
        """Of each line in a month; None where no price of energy is given. [USD]"""
        if self.power is None:
            return [None] * len(self.lines)
        price, pue = self.power.price, self.power.pue
        costs = [power_cost(line.power, price, pue) * HOURS_PER_MONTH for line in self.lines]
        return apportioned(costs, MONTH_DIGITS)

    def to_csv(self) -> str:
        """The rows as CSV, as RFC 4180 has it."""
        return csv_text(self.rows(), COLUMNS)


def _pool(line: Line, several: bool) -> str:
    if line.kind != "group":
        return line.kind
    return f"{line.phase} of {line.service}" if several else line.phase


def apportioned(amounts: Sequence[float], digits: int) -> list[Decimal]:
    """Amounts rounded to `digits` after the point so that they add up to the rounded total.

    Each is rounded down; the units that are missing then go to those with the largest remainders.
    """
    unit = Decimal(1).scaleb(-digits)
    exact = [Decimal(repr(amount)) for amount in amounts]
    down = [amount.quantize(unit, rounding=ROUND_FLOOR) for amount in exact]
    total = sum(exact, Decimal(0)).quantize(unit)
    missing = int((total - sum(down, Decimal(0))) / unit)
    largest = sorted(range(len(exact)), key=lambda i: (down[i] - exact[i], i))
    for i in largest[:missing]:
        down[i] += unit
    return down
