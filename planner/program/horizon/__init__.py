"""Several streams over several periods: what to run when, what to reserve, at least cost.

problem -> pools (reduced, as arrays) -> covers and prices (bound) -> plans -> check

Given prices of GPUs, pools fall apart into covering problems (`cover`), solved in bulk; column generation
(`master`, `relaxation`) finds prices that prove a good bound, and covers. Plans are made of these covers
(`cover_sets`, `plans`): paths through the periods, and periods repacked for all streams together. Small
horizons that are left with a gap are solved whole (`monolith`).
"""

from __future__ import annotations

from planner.errors import InfeasibleError
from planner.program.horizon.problem import (
    Horizon,
    HorizonSolution,
    Offer,
    Period,
    StaticPlan,
    Stream,
)
from planner.program.horizon.search import solve as _solve

__all__ = ["Horizon", "HorizonSolution", "Offer", "Period", "StaticPlan", "Stream", "solve"]


def solve(horizon: Horizon, *, time_limit: float | None = None, thorough: bool = True) -> HorizonSolution:
    """The best plan found for `horizon`, checked against every constraint, with the bound that is proven.

    Parameters
    ----------
    time_limit : float, optional
        [s]
    thorough : bool
        Whether a small horizon that is left with a gap is solved whole, which takes longer.

    Raises
    ------
    InfeasibleError
        If there is no plan.
    SolverError
        If no plan was found in time.
    KeyboardInterrupt
        If the user stopped the search before there was a plan; with a plan it is returned, interrupted.
    """
    solution = _solve(horizon, time_limit=time_limit, thorough=thorough)
    if solution is None:
        raise InfeasibleError("no fleet of this kind carries all streams in all periods")
    return solution
