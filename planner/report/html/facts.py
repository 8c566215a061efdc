"""What a report tells of a plan, before it is words and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.documents.scenario import LoadedScenario
from planner.plan import Plan
from planner.rooflines import Roofline
from planner.side_by_side import SideBySide
from planner.specs import GPU, Engine
from planner.whatif.money import MoneyReport
from planner.whatif.pareto import Pareto
from planner.whatif.period_bill import PeriodBill
from planner.whatif.sensitivity import Sensitivity


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """Latencies of one service as simulated for the report.

    Attributes
    ----------
    shares : tuple of float
        Of requests. [1]
    ttft, tpot : tuple of float
        That so many requests stay within; infinite where some never ended. [s]
    """

    requests: int
    shares: tuple[float, ...]
    ttft: tuple[float, ...]
    tpot: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatingPoints:
    """A GPU type's roofs, and what the plan's groups do under them; `groups` names one for each point."""

    roofline: Roofline
    groups: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportFacts:
    """Everything that a report shows.

    Attributes
    ----------
    gpus, engines : tuple
        That the plan uses, with the constants that its predictions rest on.
    bill, period_bill : MoneyReport or None, PeriodBill or None
        At most one of them; None of both where a price is unknown.
    curves : mapping of str to Curve
        By service.
    absent : mapping of str to str
        Sections that are left out, or empty, with the reason.
    date : str
        As given; empty: the page has none.
    """

    plan: Plan
    loaded: LoadedScenario
    scenario_text: str
    gpus: tuple[GPU, ...]
    engines: tuple[Engine, ...]
    rooflines: tuple[OperatingPoints, ...]
    bill: MoneyReport | None = None
    period_bill: PeriodBill | None = None
    curves: Mapping[str, Curve] = field(default_factory=dict)
    paretos: tuple[Pareto, ...] = ()
    sensitivity: Sensitivity | None = None
    timelines: Mapping[str, SideBySide] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    date: str = ""

    @property
    def services(self) -> tuple[str, ...]:
        return tuple(p.service for p in self.plan.predictions)
