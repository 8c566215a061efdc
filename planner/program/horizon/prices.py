"""Prices of GPUs and of scaling, and the lower bound that any prices prove.

The program is relaxed: of what a replica adds to the rows that tie streams and periods together, each
unit is paid for at a price instead. The rows, with the blocks of a type counted in GPUs, are

- use[g, t]:    GPUs of all replicas = u[g, t], at most the stock;
- paid[g, t]:   u[g, t] <= owned[g] + r[g] + d[g, t], reserved and on demand;   price `paid` >= 0
- start:        GPUs of a pool and type in t, less those in t - 1, are at most those that start; price >= 0
- grow, shrink: replicas of a pool in t, less those in t - 1, are within the limits;            prices >= 0

The last two say less than the rules they stand for, which count each candidate: a sum of positive
parts is at least the positive part of the sum. So the bound is valid, and it needs no row per candidate.
Given prices, pools fall apart into one covering problem per period.

Source: Lagrangian relaxation, e.g. Geoffrion, "Lagrangean relaxation for integer programming" (1974).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.program.horizon.bill import most_reserved, reserved_price
from planner.program.horizon.pools import Floats, Pool, Reduced
from planner.program.horizon.problem import Horizon
from planner.specs import Phase

PHASES = tuple(Phase)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Market:
    """A horizon's GPUs as arrays, counted in GPUs of whole blocks; [G] and [G, T].

    Attributes
    ----------
    rent : floats [G, T]
        Of a GPU on demand for a period. [USD]
    reserved_price : floats [G]
        For all periods, infinite without an offer. [USD]
    most_reserved, owned, stock : floats [G]
        Finite: nobody needs more than all replicas at their limits.
    startup : floats [G]
        Of a GPU of a replica that starts. [USD]
    """

    rent: Floats
    reserved_price: Floats
    most_reserved: Floats
    owned: Floats
    stock: Floats
    startup: Floats


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prices:
    """Multipliers: `gpu`, `paid` [G, T], `start` [S, phase, G, T], `grow`, `shrink` [S, phase, T]. [USD]

    The last three are those of the change before t.
    """

    gpu: Floats
    paid: Floats
    start: Floats
    grow: Floats
    shrink: Floats

    def mixed(self, other: Prices, share: float) -> Prices:
        """`share` of the other's, the rest of these."""
        return Prices(
            **{
                name: (1 - share) * getattr(self, name) + share * getattr(other, name)
                for name in ("gpu", "paid", "start", "grow", "shrink")
            }
        )


def market(horizon: Horizon, reduced: Reduced) -> Market:
    """The market of `horizon`."""
    types = range(len(horizon.gpu_types))
    blocks = np.array([float(horizon.block(g)) for g in types])
    needed = np.zeros(len(types))
    for pool in reduced.pools:
        np.add.at(needed, pool.gpu_types, pool.limits * pool.gpus)
    needed = np.ceil(needed / blocks) * blocks
    stock = [horizon.stock(g) for g in types]
    limits = np.array([np.inf if n is None else n for n in stock]) * blocks
    hours = np.array([period.hours for period in horizon.periods])
    return Market(
        rent=np.array([horizon.price(g) for g in types])[:, None] * hours,
        reserved_price=np.array([reserved_price(horizon, g) for g in types]),
        most_reserved=np.minimum(
            np.array([float(most_reserved(horizon, g)) for g in types]) * blocks, needed
        ),
        owned=np.array([float(horizon.owned(g)) for g in types]) * blocks,
        stock=np.minimum(limits, needed),
        startup=np.array([horizon.startup_hours * horizon.price(g) for g in types]),
    )


def first_prices(horizon: Horizon, shop: Market) -> Prices:
    """What GPUs cost on demand, or reserved for all periods where that is less."""
    hours = np.array([period.hours for period in horizon.periods])
    spread = np.where(np.isfinite(shop.reserved_price), shop.reserved_price, np.inf)[:, None]
    rent = np.minimum(shop.rent, spread * hours / hours.sum())
    streams = len(horizon.streams), len(PHASES)
    ramp = np.zeros((*streams, len(hours)))
    return Prices(gpu=rent, paid=rent, start=np.zeros((*streams, *rent.shape)), grow=ramp, shrink=ramp)


def clipped(shop: Market, prices: Prices) -> Prices:
    """The nearest prices at which nothing that is unlimited pays for itself."""
    return Prices(
        gpu=prices.gpu,
        paid=np.clip(prices.paid, 0.0, shop.rent),
        start=np.clip(prices.start, 0.0, shop.startup[:, None]),
        grow=np.maximum(prices.grow, 0.0),
        shrink=np.maximum(prices.shrink, 0.0),
    )


def weights(pool: Pool, prices: Prices) -> Floats:
    """Weight of one replica of each member in each period. [T, I]"""
    phase = PHASES.index(pool.phase)
    ramp = prices.grow[pool.stream, phase] - prices.shrink[pool.stream, phase]
    gpu = prices.gpu + ahead(prices.start[pool.stream, phase])
    result: Floats = (gpu[pool.gpu_types] * pool.gpus[:, None]).T + ahead(ramp)[:, None]
    return result


def ahead(price: Floats) -> Floats:
    """What a unit in t is worth to "t less t - 1" rows: its own, less that of the next period."""
    result: Floats = price - np.roll(price, -1, axis=-1)
    return result


def proven(
    horizon: Horizon, reduced: Reduced, shop: Market, prices: Prices, covers: Sequence[Floats]
) -> float:
    """The lower bound that clipped `prices` prove, given least costs [T] of each pool at them. [USD]"""
    total = _gpu_terms(shop, prices)
    for s, fronts in enumerate(reduced.fronts):
        if not fronts:
            continue
        options = []
        for disaggregated in {front.disaggregated for front in fronts}:
            chosen = [front for front in fronts if front.disaggregated is disaggregated]
            least = np.min(
                [np.sum([covers[p.index] for p in front.pools], axis=0) for front in chosen], axis=0
            )
            phases = [PHASES.index(pool.phase) for pool in chosen[0].pools]
            ramps = (horizon.max_added or 0) * prices.grow[s, phases].sum()
            ramps += (horizon.max_removed or 0) * prices.shrink[s, phases].sum()
            options.append(float(least.sum()) - float(ramps))
        total += min(options)
    return total


def _gpu_terms(shop: Market, prices: Prices) -> float:
    """Least of what is left of u, r and d once their rows are priced."""
    with np.errstate(invalid="ignore"):
        reserving = np.where(shop.most_reserved > 0, (shop.reserved_price - prices.paid.sum(axis=1)), 0.0)
    reserved = np.minimum(reserving, 0.0) * shop.most_reserved
    use = prices.paid - prices.gpu
    used = np.minimum(use, 0.0) * shop.stock[:, None]
    return float(reserved.sum() + used.sum() - (prices.paid * shop.owned[:, None]).sum())
