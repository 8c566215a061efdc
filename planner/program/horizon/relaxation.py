"""Column generation: prices that prove a good bound, and covers that plans are made of."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from planner.program.horizon.cover import Covers, cover, lower_bound, refined
from planner.program.horizon.master import Master
from planner.program.horizon.pools import Floats, Ints, Pool, Reduced
from planner.program.horizon.prices import Market, Prices, clipped, first_prices, proven, weights
from planner.program.horizon.problem import Horizon, Replicas

COARSE, CLOSE = 1e-2, 4e-4
"""Relative distance of the linear program from the bound at which covers are refined, and prices good. [1]"""
STEP = 0.5
"""How far prices move from the best known to those of the linear program. [1]"""
CELLS, REFINED_CELLS = 12_000, 3_000
"""Steps of capacity in proofs, and in looking for covers."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Relaxed:
    """Where column generation stands.

    Attributes
    ----------
    prices : Prices
        Those with the best bound so far, clipped.
    covers : list of Covers
        Cheapest ones per pool at these prices.
    estimate, objective : float
        Bound if these covers are the cheapest there are, and the linear program's optimum. [USD]
    shares : dict
        Covers in the linear program's optimum with their shares, by pool and period.
    modes : dict
        Share of each mode, by stream and whether it is disaggregated.
    reserved : floats [G]
        GPUs.
    """

    prices: Prices
    covers: list[Covers]
    estimate: float
    objective: float
    shares: dict[tuple[int, int], list[tuple[float, Ints]]]
    modes: dict[tuple[int, bool], float]
    reserved: Floats


def first_look(horizon: Horizon, reduced: Reduced, shop: Market) -> Relaxed | None:
    """Covers at what GPUs cost to rent or to reserve, without a linear program; None as for :func:`relax`."""
    prices = clipped(shop, first_prices(horizon, shop))
    covers = [cover(pool, weights(pool, prices)) for pool in reduced.pools]
    estimate = proven(horizon, reduced, shop, prices, [c.costs for c in covers])
    if not np.isfinite(estimate):
        return None
    modes: dict[tuple[int, bool], float] = {}
    for s, fronts in enumerate(reduced.fronts):
        for front in fronts:
            cost = sum(float(covers[pool.index].costs.sum()) for pool in front.pools)
            modes[s, front.disaggregated] = max(modes.get((s, front.disaggregated), -np.inf), -cost)
    return Relaxed(
        prices=prices,
        covers=covers,
        estimate=estimate,
        objective=np.inf,
        shares={},
        modes=modes,
        reserved=np.zeros(len(horizon.gpu_types)),
    )


def relax(
    horizon: Horizon, reduced: Reduced, shop: Market, until: float, start: Replicas | None = None
) -> Relaxed | None:
    """Generate covers until the bound is close, or the monotonic clock shows `until`; at least once.

    `start` is a plan to begin with: its covers keep the first prices sane. Returns None where some pool
    cannot carry its demand at all: then there is no plan.
    """
    master = Master(horizon, reduced, shop)
    if start is not None:
        _offer_plan(master, reduced, start)
    prices = clipped(shop, first_prices(horizon, shop))
    best: tuple[float, Prices, list[Covers]] | None = None
    share, relaxed, refine = STEP, None, False
    while True:
        covers = [_covers(pool, weights(pool, prices), refine) for pool in reduced.pools]
        estimate = proven(horizon, reduced, shop, prices, [c.costs for c in covers])
        if not np.isfinite(estimate):
            return None
        if best is None or estimate > best[0]:
            best = (estimate, prices, covers)
        added = sum(_offer(master, pool, c) for pool, c in zip(reduced.pools, covers, strict=True))
        if relaxed is not None and time.monotonic() >= until:
            return _with_best(relaxed, best)
        relaxed, dual = _solved(master, best)
        stuck = not added and share >= 1
        if stuck or relaxed.objective - best[0] <= (CLOSE if refine else COARSE) * abs(relaxed.objective):
            if refine:
                return relaxed
            # Estimates without refinement are too high: begin with the best prices once more.
            refine, prices, best = True, best[1], None
            continue
        share = STEP if added else 1.0
        prices = clipped(shop, relaxed.prices.mixed(dual, share))


def _covers(pool: Pool, weight: Floats, refine: bool) -> Covers:
    found = cover(pool, weight)
    return refined(pool, weight, found, REFINED_CELLS) if refine else found


def _solved(master: Master, best: tuple[float, Prices, list[Covers]]) -> tuple[Relaxed, Prices]:
    """The linear program's optimum beside the best prices, and its own."""
    point = master.solve()
    relaxed = Relaxed(
        prices=best[1],
        covers=best[2],
        estimate=best[0],
        objective=point.objective,
        shares=master.shares(point),
        modes=master.modes(point),
        reserved=master.reserved(point),
    )
    return relaxed, master.prices(point)


def bound(horizon: Horizon, reduced: Reduced, shop: Market, relaxed: Relaxed) -> float:
    """The lower bound that the prices prove. [USD]"""
    covers = [
        lower_bound(pool, weights(pool, relaxed.prices), found.costs, CELLS)
        for pool, found in zip(reduced.pools, relaxed.covers, strict=True)
    ]
    return proven(horizon, reduced, shop, relaxed.prices, covers)


def _offer(master: Master, pool: Pool, covers: Covers) -> int:
    """New covers for the master."""
    finite = np.flatnonzero(np.isfinite(covers.costs))
    return sum(master.add(pool, int(t), covers.counts[t]) for t in finite)


def _offer_plan(master: Master, reduced: Reduced, plan: Replicas) -> None:
    """The covers of a plan for the master, where a pool's demand is met by the pool alone."""
    for pool in reduced.pools:
        for t, demand in enumerate(pool.demand):
            counts = np.array(plan[pool.stream][t])[pool.members]
            carried = sum(table[n] for table, n in zip(pool.tables, counts, strict=True) if n < len(table))
            if (counts <= pool.limits).all() and carried >= demand:
                master.add(pool, t, counts)


def _with_best(relaxed: Relaxed, best: tuple[float, Prices, list[Covers]]) -> Relaxed:
    return replace(relaxed, estimate=best[0], prices=best[1], covers=best[2])
