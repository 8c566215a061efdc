"""Which of two answers is better, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.specs import Objective
from planner.whatif.asked import Asked
from planner.whatif.corrections import capacity_factors
from planner.whatif.resolve import Resolved
from planner.whatif.words import UNITS

INTERRUPTED = "interrupted: what was not looked at yet is missing"
CORRECTED = "with the capacities that the simulation of the plan corrected"
SAME = 1e-4  # relative difference of values that are told as one [1]


def better_by(objective: Objective, before: float | None, after: float | None) -> float | None:
    """How much better `after` is: less of what costs, more of what is carried."""
    if before is None or after is None:
        return None
    return after - before if objective is Objective.THROUGHPUT else before - after


def kept_from_harder(objective: Objective, results: Sequence[Resolved]) -> list[Resolved]:
    """Results of scenarios that get harder, each with the plan of a harder one where that is better.

    A plan that meets a harder scenario meets an easier one as well.
    """
    kept: list[Resolved] = []
    best = Resolved()
    for result in reversed(results):
        gain = better_by(objective, best.value, result.value)
        if best.value is None or (gain is not None and gain >= 0):
            best = result
        kept.append(best)
    return kept[::-1]


def compared_with_note(asked: Asked, base: Resolved) -> Iterator[str]:
    """What the plan that all is compared with owes to simulation, and where it is not the one asked about."""
    plan = asked.plan
    if capacity_factors(plan):
        yield f"solved again {CORRECTED}"
    if plan is None or base.value is None or abs(base.value - plan.value) <= SAME * abs(plan.value):
        return
    unit = UNITS[plan.objective]
    yield (
        f"the plan has {plan.value:,.6g} {unit}; solved again, without simulation, the scenario has "
        f"{base.value:,.6g} ({base.description}), and that is what is compared with"
    )
