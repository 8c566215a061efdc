"""How a plan shares requests, and what a router without weights makes of it.

No router read so far has weights per engine: it balances what is under way, or draws, or takes turns. A plan
whose shares come out otherwise is refused, with what the router can do.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.deploy.engine_facts import RouterFacts
from planner.errors import SpecError
from planner.plan import Plan
from planner.specs import Routing

_EQUAL = 0.02
"""Relative difference of loads of two replicas that counts as none. [1]"""


def router_policy(
    plan: Plan, pools: Sequence[Sequence[tuple[int, float]]], router: RouterFacts, asked: str | None
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
    able = f"it can: {', '.join(router.policies)}"
    if plan.split is not None and not router.splits_lengths:
        rule = "the plan divides prompts by length, which no policy of it does"
        raise SpecError(f"{router}: {rule} ({able}; solve without routing: length_split)")
    mixed = any(not _equal(pool) for pool in pools)
    planned = Routing(plan.routing)
    routing = _nearest(planned, pools, router) if asked is None else Routing(asked)
    if routing not in router.policies:
        raise SpecError(f"router_policy: {router} has no {routing} ({able})")
    notes = []
    if routing is not planned:
        told = "the router was told to use" if asked else "this router has none: it has"
        notes.append(f"The plan assumes {planned} routing; {told} {routing}.")
    if mixed and routing in (Routing.ROUND_ROBIN, Routing.RANDOM):
        rule = f"{routing} gives every engine of a pool the same load, the plan does not"
        better = [r for r in router.policies if r not in (Routing.ROUND_ROBIN, Routing.RANDOM)]
        raise SpecError(f"{router}: {rule} (it can: {', '.join(better)}, by router_policy in the site file)")
    if mixed:
        notes.append(
            "Engines of a pool are not equally fast. The router has no weights: it balances the number of "
            "requests under way, which only comes near the plan's shares. Judge the load test."
        )
    return router.policies[routing], tuple(notes)


def _nearest(planned: Routing, pools: Sequence[Sequence[tuple[int, float]]], router: RouterFacts) -> Routing:
    """What the plan assumes, or what is no worse."""
    if planned in router.policies:
        return planned
    if planned is Routing.POWER_OF_TWO and Routing.LEAST_LOADED in router.policies:
        return Routing.LEAST_LOADED  # looks at all, not at two
    small = all(sum(replicas for replicas, _ in pool) <= 2 for pool in pools)
    if planned is Routing.LEAST_LOADED and Routing.POWER_OF_TWO in router.policies and small:
        return Routing.POWER_OF_TWO  # looks at all there are
    other = next(iter(router.policies))
    rule = f"it has no policy that the plan's {planned} is"
    if planned is Routing.LEAST_LOADED:
        rule += ", once a pool has more than two engines"
    note = f"{router.note}; " if router.note else ""
    hint = f"{note}solve with options: {{routing: {other}}}"
    raise SpecError(f"{router}: {rule} ({hint}, or accept it by router_policy: {other} in the site file)")


def _equal(pool: Sequence[tuple[int, float]]) -> bool:
    loads = [load for _, load in pool]
    return not loads or max(loads) - min(loads) <= _EQUAL * max(loads)
