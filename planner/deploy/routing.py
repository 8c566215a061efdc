"""How a plan shares requests, and what a router without weights makes of it.

No router read so far has weights per engine: it balances what is under way, or draws, or takes turns. A plan
whose shares come out otherwise is refused, with what the router can do.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.deploy.engine_facts import EngineFacts
from planner.errors import SpecError
from planner.plan import Plan
from planner.specs import Routing

_EQUAL = 0.02
"""Relative difference of loads of two replicas that counts as none. [1]"""

_ALIKE = {
    Routing.POWER_OF_TWO: "power_of_two",
    Routing.ROUND_ROBIN: "round_robin",
    Routing.RANDOM: "random",
}


def router_policy(
    plan: Plan, pools: Sequence[Sequence[tuple[int, float]]], facts: EngineFacts, asked: str | None
) -> tuple[str, tuple[str, ...]]:
    """The router's policy for a front, and what is to be said of it.

    Parameters
    ----------
    pools : sequence
        For each pool, of every group its replicas and the load that the plan gives each. [1, req/s]
    asked : str or None
        A policy that the user chose, knowing that the plan assumes another.

    Raises
    ------
    SpecError
        The router cannot share requests as the plan does.
    """
    tool = f"{facts.router} {facts.router_version}"
    if plan.split is not None:
        rule = "the plan divides prompts by length, which no policy of it does"
        able = f"it can: {', '.join(facts.policies)}"
        raise SpecError(f"{tool}: {rule} ({able}; solve without routing: length_split)")
    mixed = any(not _equal(pool) for pool in pools)
    policy = asked or _policy(plan, pools, facts)
    notes = []
    if policy != _ALIKE.get(Routing(plan.routing)) and asked:
        notes.append(f"The plan assumes {plan.routing} routing; the router was told to use {policy}.")
    if mixed and policy in ("round_robin", "random"):
        rule = f"{policy} gives every engine of a pool the same load, the plan does not"
        raise SpecError(f"{tool}: {rule} (it can: power_of_two, by router_policy in the site file)")
    if mixed:
        notes.append(
            "Engines of a pool are not equally fast. The router has no weights: it balances the number of "
            "requests under way, which only comes near the plan's shares. Judge the load test."
        )
    return policy, tuple(notes)


def _policy(plan: Plan, pools: Sequence[Sequence[tuple[int, float]]], facts: EngineFacts) -> str:
    if (routing := Routing(plan.routing)) in _ALIKE:
        return _ALIKE[routing]
    if all(sum(replicas for replicas, _ in pool) <= 2 for pool in pools):
        return "power_of_two"  # looks at all there are
    rule = f"it has no policy that the plan's {routing} is, once a pool has more than two engines"
    hint = f"{facts.router_note}; solve with options: {{routing: power_of_two}}"
    tool = f"{facts.router} {facts.router_version}"
    raise SpecError(f"{tool}: {rule} ({hint}, or accept it by router_policy: power_of_two in the site file)")


def _equal(pool: Sequence[tuple[int, float]]) -> bool:
    loads = [load for _, load in pool]
    return not loads or max(loads) - min(loads) <= _EQUAL * max(loads)
