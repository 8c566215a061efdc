"""What the simulation of a plan said of capacities, for solving its scenario again."""

from __future__ import annotations

from collections.abc import Mapping

from planner.plan import Plan


def capacity_factors(plan: Plan | None) -> Mapping[str, float]:
    """Factors on capacities by "phase GPU layout"; empty where no plan, or no simulation of it, is known. [1]

    The last round that speaks of a replica counts.
    """
    if plan is None or plan.verification is None:
        return {}
    factors: dict[str, float] = {}
    for entry in plan.verification.details.get("rounds", ()):
        learned = entry.get("capacity_factors", {})
        factors |= {key: float(f) for key, f in learned.items() if f and f > 0}
    return factors
