"""What a plan costs, and for what: by hour and month, pool, GPU type and group, per million tokens.

Amounts are USD. A month has 730 hours. Amounts that are shown rounded still add up: see :func:`apportioned`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.catalog import gpu_name
from planner.documents.names import did_you_mean
from planner.documents.scenario import LoadedScenario
from planner.errors import SpecError
from planner.plan import Group, NodeUse, Plan
from planner.units import HOURS_PER_MONTH, KILO, MEGA, SECONDS_PER_HOUR
from planner.whatif.asked import Asked, asked_of, read_asked_plan
from planner.whatif.frames import csv_text, frame

if TYPE_CHECKING:
    from pandas import DataFrame

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
        "group" or "unused".
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

    @property
    def cost(self) -> float:
        """[USD/h]"""
        return self.gpus * self.price


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
class MoneyReport:
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
        weights = [line.cost for line in self.lines]
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
        return self._shares([f"{x.gpu} in {x.zone}" if x.zone else x.gpu for x in self.lines])

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
                "usd_per_gpu_hour": line.price,
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

    def to_frame(self) -> DataFrame:
        """The rows as a data frame.

        Raises
        ------
        SpecError
            If pandas is not installed.
        """
        return frame(self.rows(), COLUMNS)


def _pool(line: Line, several: bool) -> str:
    if line.kind == "unused":
        return "unused"
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


# --------------------------------------------------------------------------------------------
# From a plan


def money_report(
    plan: Plan | str | Path | Asked,
    *,
    prices: Mapping[str, float] | None = None,
    reserved_prices: Mapping[str, float] | None = None,
    power_price: float | None = None,
    pue: float = NO_OVERHEAD,
) -> MoneyReport:
    """The bill of a plan.

    Parameters
    ----------
    plan : Plan, str or Path
        A path is that of a plan file.
    prices : mapping, optional
        Of one GPU by type, instead of the plan's. [USD/h]
    reserved_prices : mapping, optional
        Of one reserved GPU by type, for the break-even. [USD/h]
    power_price : float, optional
        [USD/kWh]
    pue : float
        Power usage effectiveness. [1]

    Raises
    ------
    SpecError
        A price is unknown, or is given for a GPU that the plan does not use; a number is out of range.
    """
    if isinstance(plan, Asked):
        asked = plan
    else:
        asked = asked_of(plan) if isinstance(plan, Plan) else read_asked_plan(plan)
    if asked.plan is None:
        raise SpecError(f"{asked.name}: is no plan")
    if power_price is not None:
        _check("power price", power_price, least=0.0)
    _check("pue", pue, least=1.0)
    answered = asked.plan
    given = _by_gpu("price", prices or {}, answered)
    reserved = _by_gpu("reserved price", reserved_prices or {}, answered)
    lines = _lines(answered, asked.loaded, given)
    draw = math.fsum(line.power for line in lines)
    return MoneyReport(
        name=asked.name,
        lines=lines,
        tokens=tuple(_tokens(answered, asked.loaded, lines)),
        break_even=_break_even(answered, given, reserved),
        power=None if power_price is None else Power(price=power_price, pue=pue, draw=draw),
        notes=_notes(answered, given),
    )


def _check(what: str, value: float, *, least: float) -> None:
    if not least <= value < math.inf:
        raise SpecError(f"{what} must be a finite number >= {least:g}, got {value!r}")


def _by_gpu(what: str, prices: Mapping[str, float], plan: Plan) -> dict[str, float]:
    """Prices by the names that the plan has; aliases of the catalogue count."""
    known = list(dict.fromkeys(use.gpu for use in plan.nodes))
    found: dict[str, float] = {}
    for name, price in prices.items():
        _check(f"{what} of {name}", price, least=0.0)
        canonical = name if name in known else _canonical(name)
        if canonical not in known:
            hint = did_you_mean(name, known) or f"it uses {', '.join(known)}"
            raise SpecError(f"{what}: the plan uses no GPU {name!r} ({hint})")
        found[canonical] = price
    return found


def _canonical(name: str) -> str:
    try:
        return gpu_name(name)
    except SpecError:
        return name


def _price(use: NodeUse, given: Mapping[str, float]) -> float:
    price = given.get(use.gpu, use.price)
    if price is None:
        raise SpecError(
            f"the price of {use.gpu} is not known: give --price {use.gpu}=USD, "
            "or price_per_gpu_hour in the scenario"
        )
    return price


def _lines(plan: Plan, loaded: LoadedScenario, given: Mapping[str, float]) -> tuple[Line, ...]:
    """Groups first, then what is paid for beside them."""
    uses = {(use.gpu, use.zone): use for use in plan.nodes}
    powers = {item.gpu.name: item.gpu.power for item in loaded.scenario.fleet}
    lines = [_group_line(g, uses, powers, given) for g in plan.groups]
    for use in plan.nodes:
        unused = use.gpus_paid - use.gpus_used
        if unused:
            lines.append(
                Line(
                    kind="unused",
                    name=f"unused {use.gpu}",
                    gpu=use.gpu,
                    zone=use.zone,
                    gpus=unused,
                    price=_price(use, given),
                    power=unused * powers.get(use.gpu, 0.0),
                )
            )
    return tuple(lines)


def _group_line(
    group: Group,
    uses: Mapping[tuple[str, str], NodeUse],
    powers: Mapping[str, float],
    given: Mapping[str, float],
) -> Line:
    use = uses.get((group.gpu, group.zone))
    if use is None or group.gpu not in powers:
        missing = "nodes" if use is None else "scenario's fleet"
        raise SpecError(f"group {group.name}: the plan's {missing} has no GPU {group.gpu!r}")
    return Line(
        kind="group",
        name=group.name,
        gpu=group.gpu,
        zone=group.zone,
        gpus=group.num_gpus,
        price=_price(use, given),
        power=group.num_gpus * powers[group.gpu],
        service=group.service,
        phase=group.phase.value,
        parallelism=str(group.parallelism),
        replicas=group.replicas,
        utilization=group.utilization,
    )


def _tokens(plan: Plan, loaded: LoadedScenario, lines: Sequence[Line]) -> list[TokenPrice]:
    """Each service with its share of the bill; none where it gets no request or its tokens are unknown."""
    lengths = {s.model.name: s.workload.lengths for s in loaded.scenario.services}
    prices = []
    for prediction in plan.predictions:
        own = lengths.get(prediction.service)
        if own is None or prediction.request_rate <= 0:
            continue
        requests = prediction.request_rate * SECONDS_PER_HOUR
        prices.append(
            TokenPrice(
                service=prediction.service,
                request_rate=prediction.request_rate,
                cost=_cost_of(prediction.service, lines),
                input_tokens=requests * own.isl.mean,
                output_tokens=requests * own.osl.mean,
            )
        )
    return prices


def _cost_of(service: str, lines: Sequence[Line]) -> float:
    """A service's groups, and unused GPUs as far as its GPUs are the cause. [USD/h]"""
    own = [line for line in lines if line.service == service]
    cost = [line.cost for line in own]
    for unused in (line for line in lines if line.kind == "unused"):
        kind = unused.gpu, unused.zone
        mine = sum(line.gpus for line in own if (line.gpu, line.zone) == kind)
        everyone = sum(x.gpus for x in lines if x.kind == "group" and (x.gpu, x.zone) == kind)
        cost.append(unused.cost * mine / everyone if everyone else 0.0)
    return math.fsum(cost)


def _break_even(
    plan: Plan, given: Mapping[str, float], reserved: Mapping[str, float]
) -> tuple[BreakEven, ...]:
    found = []
    for gpu in reserved:
        uses = [use for use in plan.nodes if use.gpu == gpu]
        on_demand = max(_price(use, given) for use in uses)
        if on_demand <= 0:
            raise SpecError(
                f"{gpu} is owned: it has no price on demand to compare with; give --price {gpu}=USD"
            )
        gpus = sum(use.gpus_paid for use in uses)
        found.append(BreakEven(gpu=gpu, on_demand=on_demand, reserved=reserved[gpu], gpus=gpus))
    return tuple(found)


def _notes(plan: Plan, given: Mapping[str, float]) -> tuple[str, ...]:
    notes = [f"price of {gpu} as given here, not the plan's" for gpu in given]
    owned = [use.gpu for use in plan.nodes if use.price == 0 and use.gpu not in given]
    if owned:
        notes.append(f"{', '.join(owned)} owned: counted as free of charge")
    if plan.verification is not None and not plan.verification.passed:
        notes.append("the plan does not hold in simulation")
    return tuple(notes)
