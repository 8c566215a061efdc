"""The bill of a plan over periods: every period has another, and what is reserved is paid for in all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from planner.documents.scenario import LoadedScenario
from planner.errors import SpecError
from planner.money import break_even_reservation, cost_per_month, token_cost
from planner.plan import HorizonSummary, Plan
from planner.results import Result
from planner.specs import PriceClass, Scenario
from planner.whatif.frames import csv_text
from planner.whatif.money import apportioned

COLUMNS = ("period", "hours", "requests_per_second", "replicas", "usd_per_hour", "usd")
"""Of the CSV, in its order; its last row is the sum."""
CENTS = 2  # digits after the point


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodLine:
    """One period. `cost` [USD/h]"""

    name: str
    hours: float
    request_rate: float
    replicas: int
    cost: float

    @property
    def total(self) -> float:
        """Over all its hours. [USD]"""
        return self.cost * self.hours


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodBill(Result):
    """What a plan over periods costs.

    Attributes
    ----------
    starts : float
        What replicas cost while they start, in all periods together. [USD]
    per_million_input, per_million_output, per_million : float
        All of it over the input tokens of all periods, over the output tokens, and over both. [USD]
    duties : mapping of str to float
        By GPU type that may be reserved: share of all hours from which a reservation pays. [1]
    """

    name: str
    lines: tuple[PeriodLine, ...]
    horizon: HorizonSummary
    starts: float
    per_million_input: float
    per_million_output: float
    per_million: float
    duties: dict[str, float]

    @property
    def cost(self) -> float:
        """Of all periods. [USD]"""
        return math.fsum(line.total for line in self.lines) + self.starts

    @property
    def per_month(self) -> float:
        """Of 730 hours like these. [USD]"""
        return cost_per_month(self.cost / self.horizon.hours)

    def rows(self) -> list[dict[str, Any]]:
        """Periods, start-ups, and their sum to the cent."""
        *totals, starts = apportioned([*(line.total for line in self.lines), self.starts], CENTS)
        rows: list[dict[str, Any]] = [
            {
                "period": line.name,
                "hours": line.hours,
                "requests_per_second": line.request_rate,
                "replicas": line.replicas,
                "usd_per_hour": round(line.cost, 2 * CENTS),
                "usd": total,
            }
            for line, total in zip(self.lines, totals, strict=True)
        ]
        rows.append({"period": "start-ups", "usd": starts})
        hours, mean = self.horizon.hours, round(self.cost / self.horizon.hours, 2 * CENTS)
        rows.append({"period": "total", "hours": hours, "usd_per_hour": mean, "usd": sum([*totals, starts])})
        return rows

    def to_csv(self) -> str:
        return csv_text(self.rows(), COLUMNS)


def period_bill(name: str, plan: Plan, loaded: LoadedScenario) -> PeriodBill:
    """The bill of a plan over periods.

    Raises
    ------
    SpecError
        If the plan has no periods, or does not say what they cost.
    """
    costs = [period.cost for period in plan.periods]
    horizon = plan.horizon
    if horizon is None or horizon.cost is None or not costs or None in costs:
        raise SpecError(f"{name}: the plan does not say what its periods cost")
    lines = tuple(
        PeriodLine(
            name=period.name,
            hours=period.hours,
            request_rate=math.fsum(period.request_rates.values()),
            replicas=sum(period.replicas.values()),
            cost=period.cost or 0.0,
        )
        for period in plan.periods
    )
    starts = max(horizon.cost - math.fsum(line.total for line in lines), 0.0)
    tokens = _tokens(plan, loaded.scenario)
    return PeriodBill(
        name=name,
        lines=lines,
        horizon=horizon,
        starts=starts,
        per_million_input=token_cost(horizon.cost / horizon.hours, 1.0, tokens[0], 0.0).input,
        per_million_output=token_cost(horizon.cost / horizon.hours, 1.0, 0.0, tokens[1]).output,
        per_million=token_cost(horizon.cost / horizon.hours, 1.0, *tokens).both,
        duties=_duties(loaded.scenario),
    )


def _tokens(plan: Plan, scenario: Scenario) -> tuple[float, float]:
    """Input and output tokens per second, on average over all periods. [tok/s]"""
    lengths = {service.name: service.workload.lengths for service in scenario.services}
    hours = math.fsum(period.hours for period in plan.periods)
    rates = {
        name: math.fsum(p.hours * p.request_rates.get(name, 0.0) for p in plan.periods) / hours
        for name in lengths
    }
    served = math.fsum(rate * lengths[name].isl.mean for name, rate in rates.items())
    made = math.fsum(rate * lengths[name].osl.mean for name, rate in rates.items())
    return served, made


def _duties(scenario: Scenario) -> dict[str, float]:
    prices = {(item.gpu.name, item.price_class): item.price for item in scenario.fleet if not item.owned}
    found = {}
    for (gpu, kind), reserved in prices.items():
        on_demand = prices.get((gpu, PriceClass.ON_DEMAND))
        if kind is PriceClass.RESERVED and reserved is not None and on_demand:
            found[gpu] = break_even_reservation(reserved, on_demand)
    return found
