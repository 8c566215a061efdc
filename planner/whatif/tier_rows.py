"""A scenario with one tier of KV caches after the other: the rows of the answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from planner.documents.plan_extras import rounded
from planner.errors import InfeasibleError
from planner.plan import LatencySummary
from planner.results import Result
from planner.reuse import ReuseCurve
from planner.specs import Objective
from planner.units import GIGA, MILLI
from planner.whatif.resolve import NO_FLEET, Resolved, table_of
from planner.whatif.tier_loads import Offer
from planner.whatif.tier_specs import Pool
from planner.whatif.words import UNITS

NO_CACHE, HBM = "no cache", "HBM"
COLUMNS = (
    "tier", "used", "capacity_tokens", "hit_rate", "loaded_share", "read_gb_per_s", "prefix_load_gb_per_s",
    "computed_tokens_per_s", "prefill_gpus", "busy_prefill_gpus", "ttft_mean_ms", "ttft_p99_ms", "value",
    "usd_per_hour", "tiers_usd_per_hour", "total_usd_per_hour", "feasible", "fleet", "reason",
)  # fmt: skip
"""Of the table."""


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

    def figures(self) -> dict[str, Any]:
        """What there is to say beside the plan, in the units of the names."""
        pool, ttft, bandwidth = self.pool, self.ttft, self.offer.bandwidth
        busy = math.nan if pool is None else pool.busy_gpus
        return {
            "tier": self.name,
            "used": self.used,
            "capacity_tokens": None if self.capacity is None else round(self.capacity),
            "hit_rate": rounded(self.offer.hit_rate),
            "loaded_share": rounded(self.loaded),
            "read_gb_per_s": rounded(self.load / GIGA),
            "prefix_load_gb_per_s": None if math.isinf(bandwidth) else rounded(bandwidth / GIGA),
            "computed_tokens_per_s": rounded(self.computed),
            "prefill_gpus": None if pool is None else pool.gpus,
            "busy_prefill_gpus": None if math.isnan(busy) else rounded(busy),
            "ttft_mean_ms": None if ttft is None else rounded(ttft.mean / MILLI),
            "ttft_p99_ms": None if ttft is None else rounded(ttft.p99 / MILLI),
            "tiers_usd_per_hour": rounded(self.price),
            "total_usd_per_hour": rounded(self.total),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class BreakEven:
    """Where loading beats computing, on a line of the fleet. [B/s]"""

    gpu: str
    layout: str
    bandwidth: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiers(Result):
    """What tiers of KV caches do to a scenario's plan.

    Attributes
    ----------
    curve : ReuseCurve or None
        Of the trace; None where hit rates were given.
    """

    name: str
    objective: Objective
    steps: tuple[TierRow, ...]
    break_even: tuple[BreakEven, ...]
    curve: ReuseCurve | None
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def unit(self) -> str:
        return UNITS[self.objective]

    def rows(self) -> tuple[dict[str, Any], ...]:
        """A flat row for each step, with the columns of :data:`COLUMNS`."""
        return tuple({**step.figures(), **table_of(step.result)} for step in self.steps)


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
