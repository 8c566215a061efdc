"""What plans are called in words, in terminals and on pages alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from planner.plan import Group, Plan
from planner.report.tables import figure
from planner.specs import Objective, Phase
from planner.units import MILLI


def simulation_of(plan: Plan, service: str) -> Mapping[str, Any] | None:
    """What simulation said of one service; None where the plan was not simulated."""
    if plan.verification is None:
        return None
    details = plan.verification.details
    several: Mapping[str, Mapping[str, Any]] = details.get("services", {})
    return several.get(service) if several else details


def verdict(plan: Plan) -> list[str]:
    """Whether to disaggregate, with the numbers of both; not where services differ in that."""
    kinds = {(g.service, g.phase is Phase.COLOCATED) for g in plan.groups}
    if len({colocated for _, colocated in kinds}) > 1 or plan.move_cost is not None:
        return []
    by_name = {a.name: a for a in plan.alternatives}
    other_name = "best disaggregated" if plan.pool(Phase.COLOCATED) else "best colocated"
    other = by_name.get(other_name)
    if other is None:
        return []
    mine = f"{figure(plan.value)} {unit_of(plan.objective)}"
    word = "colocated serving" if plan.pool(Phase.COLOCATED) else "disaggregation"
    rival = other_name.removeprefix("best ")
    if other.value is None:
        return [f"{word} is the only way here: no {rival} fleet meets the SLOs ({other.reason})"]
    if math.isclose(other.value, plan.value, rel_tol=MILLI / 2):
        return [f"{word} and {rival} serving come to the same {mine}"]
    advice = "do not disaggregate: " if plan.pool(Phase.COLOCATED) else ""
    if other.verified is False:
        found = f"the best {rival} fleet found, {figure(other.value)}, does not hold in simulation"
        return [f"{advice}{word} wins, {mine}; {found}"]
    return [f"{advice}{word} wins, {mine} against {figure(other.value)} {rival}"]


def kind_of_pools(groups: Sequence[Group]) -> str:
    return "colocated" if any(g.phase is Phase.COLOCATED for g in groups) else "disaggregated"


def formats(groups: Sequence[Group]) -> str:
    """Number formats, by GPU and pool where they differ."""
    weights = {g.precision.weights for g in groups}
    caches = {g.precision.kv_cache for g in groups}
    if len(weights) == len(caches) == 1:
        return f"{weights.pop()} weights, {caches.pop()} KV cache"
    members: dict[str, list[str]] = {}
    for g in groups:
        own = f"{g.precision.weights} weights"
        own += f", {g.precision.kv_cache} KV cache" if len(caches) > 1 else ""
        members.setdefault(own, []).append(f"{g.phase} on {g.gpu}")
    parts = [f"{own} ({', '.join(dict.fromkeys(names))})" for own, names in members.items()]
    return ", ".join([*parts, *([f"{caches.pop()} KV cache"] if len(caches) == 1 else [])])


def unit_of(objective: Objective) -> str:
    return {
        Objective.COST: "$/h",
        Objective.GPUS: "GPUs",
        Objective.POWER: "W",
        Objective.THROUGHPUT: "req/s",
    }[objective]
