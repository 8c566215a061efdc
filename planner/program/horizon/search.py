"""From a horizon to a checked plan with a proven bound."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from planner.errors import SolverError
from planner.plan import PlanStatus
from planner.program.backends import LpStatus, solve_lp
from planner.program.horizon.bill import bill
from planner.program.horizon.check import verify, violations
from planner.program.horizon.monolith import encode, size
from planner.program.horizon.plans import Planner
from planner.program.horizon.pools import Reduced, reduce
from planner.program.horizon.prices import Market, market
from planner.program.horizon.problem import Horizon, HorizonSolution, Period, Replicas, StaticPlan
from planner.program.horizon.relaxation import Relaxed, bound, first_look, relax

SMALL = 6000
"""Columns of groups up to which the whole program is solved where decomposition leaves a gap: one model over
24 hours. Its fleets are of few nodes, which the bound of decomposition, in GPUs, cannot see."""
MOST_NODES = 2000
"""Of its search tree: a limit that is the same on every machine, as a time is not."""
PATIENCE = 60
"""Rounds without a better plan after which no more are tried."""
STATIC_SHARE, RELAX_SHARE = 0.15, 0.4
"""Of the time limit: for the static plan, and of the rest for prices. [1]"""
SLACK = 1e-6
"""Relative distance between values that a solver cannot tell apart. [1]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Where a search stands; `bound` and `value` are infinite where there is no plan. [USD]"""

    replicas: Replicas | None = None
    value: float = math.inf
    bound: float = 0.0
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """Relative distance of the plan from the bound; infinite without a plan."""
        if self.replicas is None:
            return math.inf
        return max((self.value - self.bound) / self.value, 0.0) if self.value > 0 else 0.0


def solve(
    horizon: Horizon, *, time_limit: float | None = None, thorough: bool = True
) -> HorizonSolution | None:
    """The best plan found, checked; None if there is none. Not `thorough`: by decomposition alone.

    Raises
    ------
    SolverError
        If no plan was found in time, or the plan does not hold.
    KeyboardInterrupt
        If the user stopped the search before there was a plan; with a plan it is returned, interrupted.
    """
    started = time.monotonic()
    limit = math.inf if time_limit is None else time_limit
    flat = static_horizon(horizon)
    static = search(flat, started + STATIC_SHARE * limit, thorough=thorough)
    start = None
    if static.replicas is not None:
        start = tuple((counts[0],) * len(horizon.periods) for counts in static.replicas)
    if static.interrupted:
        found = Found(interrupted=True)
        if start is not None:
            found = _better(horizon, found, start)
    else:
        found = search(horizon, started + limit, start, thorough=thorough)
    if found.replicas is None:
        if found.interrupted:
            raise KeyboardInterrupt
        if math.isinf(found.bound):
            return None
        raise SolverError("no plan of the horizon was found in time; there may be one")
    solution = _solution(horizon, found, _static_plan(horizon, flat, static))
    verify(horizon, solution)
    return solution


def static_horizon(horizon: Horizon) -> Horizon:
    """`horizon` with all its hours in one period, in which each stream is at its peak."""
    return replace(
        horizon,
        periods=(Period(name="all", hours=horizon.hours),),
        demands=tuple((max(row),) for row in horizon.demands),
    )


def search(
    horizon: Horizon, deadline: float, start: Replicas | None = None, *, thorough: bool = True
) -> Found:
    """Look for plans until the gap is proven, time is over, or nothing better turns up."""
    reduced = reduce(horizon)
    shop = market(horizon, reduced)
    found = Found()
    try:
        if start is not None:
            found = _better(horizon, found, start)
        look = first_look(horizon, reduced, shop)
        if look is None:
            return replace(found, bound=math.inf)
        found = replace(found, bound=bound(horizon, reduced, shop, look))
        for replicas in Planner(horizon, reduced, shop, look).quick():
            found = _better(horizon, found, replicas)
            if _done(horizon, found, deadline):
                return found
        found = _decomposed(horizon, reduced, shop, found, deadline)
        small = thorough and size(horizon, reduced.limits) <= SMALL
        if small and found.gap > _target(horizon):
            found = _whole(horizon, reduced, found, deadline)
    except KeyboardInterrupt:
        found = replace(found, interrupted=True)
    return found


def _decomposed(horizon: Horizon, reduced: Reduced, shop: Market, found: Found, deadline: float) -> Found:
    """Better prices, then better plans."""
    now = time.monotonic()
    until = now + RELAX_SHARE * (deadline - now)
    relaxed = relax(horizon, reduced, shop, until, found.replicas)
    if relaxed is None:
        return replace(found, bound=math.inf)
    found = replace(found, bound=max(found.bound, bound(horizon, reduced, shop, relaxed)))
    return _improved(horizon, reduced, shop, relaxed, found, deadline)


def _improved(
    horizon: Horizon, reduced: Reduced, shop: Market, relaxed: Relaxed, found: Found, deadline: float
) -> Found:
    idle = 0
    try:
        for replicas in Planner(horizon, reduced, shop, relaxed).rounds(deadline):
            better = _better(horizon, found, replicas)
            idle = 0 if better.value < found.value * (1 - SLACK) else idle + 1
            found = better
            if idle > PATIENCE or _done(horizon, found, deadline):
                break
    except KeyboardInterrupt:
        found = replace(found, interrupted=True)
    return found


def _whole(horizon: Horizon, reduced: Reduced, found: Found, deadline: float) -> Found:
    """The horizon as one program."""
    left = deadline - time.monotonic()
    if found.interrupted or left <= 0:
        return found
    monolith = encode(horizon, reduced.limits)
    result = solve_lp(
        monolith.lp,
        time_limit=None if math.isinf(left) else left,
        gap=horizon.gap,
        start=None if found.replicas is None else monolith.values(found.replicas),
        max_nodes=MOST_NODES,
    )
    found = replace(found, interrupted=result.interrupted)
    if result.status is LpStatus.INFEASIBLE and found.replicas is None:
        return replace(found, bound=math.inf)
    if result.status is LpStatus.INFEASIBLE or result.status is LpStatus.FAILED:
        return found
    if result.values is not None:
        found = _better(horizon, found, monolith.replicas(result.values))
    return replace(found, bound=max(found.bound, result.bound))


def _better(horizon: Horizon, found: Found, replicas: Replicas) -> Found:
    """The better of two plans; `replicas` only if they hold."""
    spent = bill(horizon, replicas)
    if spent.value >= found.value or violations(horizon, replicas, spent.reserved):
        return found
    return replace(found, replicas=replicas, value=spent.value)


def _target(horizon: Horizon) -> float:
    return max(horizon.gap, SLACK)


def _done(horizon: Horizon, found: Found, deadline: float) -> bool:
    return found.gap <= _target(horizon) or time.monotonic() >= deadline


def _static_plan(horizon: Horizon, flat: Horizon, static: Found) -> StaticPlan | None:
    if static.replicas is None:
        return None
    counts = tuple(by_period[0] for by_period in static.replicas)
    spent = bill(flat, static.replicas)
    return StaticPlan(
        replicas=counts,
        reserved=spent.reserved,
        value=spent.value,
        bound=min(static.bound, spent.value),
    )


def _solution(horizon: Horizon, found: Found, static: StaticPlan | None) -> HorizonSolution:
    """The plan with what was proven of it."""
    assert found.replicas is not None
    spent = bill(horizon, found.replicas)
    proven = min(found.bound, spent.value)
    gap = (spent.value - proven) / spent.value if spent.value else 0.0
    return HorizonSolution(
        replicas=found.replicas,
        reserved=spent.reserved,
        on_demand=spent.on_demand,
        reserved_cost=spent.reserved_cost,
        on_demand_cost=spent.on_demand_cost,
        startup_cost=spent.startup_cost,
        value=spent.value,
        bound=proven,
        gap=gap,
        status=PlanStatus.OPTIMAL if gap <= horizon.gap + 2 * SLACK else PlanStatus.FEASIBLE,
        interrupted=found.interrupted,
        static=static,
    )
