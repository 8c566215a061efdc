"""A scenario with one tier of KV caches after the other: the rows of the answer."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import InfeasibleError
from planner.plan import LatencySummary
from planner.reuse import ReuseCurve
from planner.specs import Objective
from planner.whatif.resolve import NO_FLEET, Resolved
from planner.whatif.tier_loads import Offer
from planner.whatif.tier_specs import Pool
from planner.whatif.words import UNITS

NO_CACHE, HBM = "no cache", "HBM"


@dataclass(frozen=True, kw_only=True, slots=True)
class TierRow:
    """The scenario with one more tier.

    Attributes
    ----------
    used : bool
        Whether it makes the plan no worse, its price included; a tier that does is left out of the rows after
        it.
    capacity : float or None
        Of all tiers together; None where hit rates are given. [tok]
    load : float
        Read from this tier. [B/s]
    computed : float
        Prompt tokens that are computed. [tok/s]
    pool : Pool or None
        That computes prompts; None: there is no plan.
    ttft : LatencySummary or None
        Expected. [s]
    price : float
        Of the tiers in use. [USD/h]
    """

    name: str
    used: bool
    capacity: float | None
    offer: Offer
    load: float
    computed: float
    pool: Pool | None
    ttft: LatencySummary | None
    result: Resolved
    price: float = 0.0

    @property
    def loaded(self) -> float:
        """Share of the prompt tokens that is loaded from a slower tier than HBM. [1]"""
        return sum(load.used for load in self.offer.loads)

    @property
    def total(self) -> float | None:
        """Of the plan and its tiers. [USD/h]"""
        return None if self.result.cost is None else self.result.cost + self.price


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEven:
    """Where loading beats computing, on a line of the fleet. [B/s]"""

    gpu: str
    layout: str
    bandwidth: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiers:
    """What tiers of KV caches do to a scenario's plan.

    Attributes
    ----------
    curve : ReuseCurve or None
        Of the trace; None where hit rates were given.
    """

    name: str
    objective: Objective
    rows: tuple[TierRow, ...]
    break_even: tuple[BreakEven, ...]
    curve: ReuseCurve | None
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def unit(self) -> str:
        return UNITS[self.objective]


def no_plan(name: str, error: Exception) -> TierRow:
    """A row without a plan."""
    reason = NO_FLEET if isinstance(error, InfeasibleError) else str(error).splitlines()[0]
    return TierRow(
        name=name,
        used=name == NO_CACHE,
        capacity=None,
        offer=Offer(0.0),
        load=0.0,
        computed=0.0,
        pool=None,
        ttft=None,
        result=Resolved(reason=reason, proven=isinstance(error, InfeasibleError)),
    )
