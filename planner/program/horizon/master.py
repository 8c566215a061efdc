"""The relaxed horizon as a linear program over covers of pools: prices, and shares of covers.

Rows and prices as in :mod:`planner.program.horizon.prices`. Columns, beside u, r, d and a there:

cover[pool, t, k] : share of a pool's period that cover k serves (Dantzig and Wolfe, 1960)
front[s, f, t] : share of a stream that a front serves; over all fronts of a mode it is mode[s, m] in each t
short[g, t] : GPUs missing, at a price that no plan would pay; likewise replicas beyond scaling limits
"""

from __future__ import annotations

import math

import numpy as np

from planner.program.horizon.lp import Floats, GrowingLp, LpPoint
from planner.program.horizon.pools import Ints, Pool, Reduced
from planner.program.horizon.prices import PHASES, Market, Prices
from planner.program.horizon.problem import Horizon

MISSING = 20.0
"""Price of a missing GPU, in those of the dearest for the period. [1]"""


class Master:
    """The linear program, growing by covers."""

    def __init__(self, horizon: Horizon, reduced: Reduced, shop: Market) -> None:
        self._lp = GrowingLp()
        self._horizon, self._reduced, self._shop = horizon, reduced, shop
        self._periods = len(horizon.periods)
        self._before = {after: before for before, after in horizon.transitions}
        self._served: dict[tuple[int, int], int] = {}  # rows, by pool and period
        self._use: dict[tuple[int, int], int] = {}  # rows, by GPU type and period
        self._paid: dict[tuple[int, int], int] = {}
        self._start: dict[tuple[int, int, int, int], int] = {}  # by stream, phase, GPU type and period
        self._grow: dict[tuple[int, int, int], int] = {}  # rows, by stream, phase and period
        self._shrink: dict[tuple[int, int, int], int] = {}
        self._modes: dict[tuple[int, bool], int] = {}  # columns
        self._reserved: list[int] = []
        self._known: set[tuple[int, int, bytes]] = set()
        self._columns: list[tuple[int, int, bytes, int]] = []  # pool, period, cover, column
        self._missing = MISSING * float(shop.rent.max(initial=0.0)) or 1.0
        self._gpu_part()
        for s in range(len(horizon.streams)):
            self._stream_part(s)

    def add(self, pool: Pool, period: int, counts: Ints) -> bool:
        """Offer a cover; False if it is known."""
        key = counts.astype(np.int64).tobytes()
        if (pool.index, period, key) in self._known:
            return False
        self._known.add((pool.index, period, key))
        entries = [(self._served[pool.index, period], 1.0)]
        per_type = np.bincount(pool.gpu_types, counts * pool.gpus)
        entries += [(self._use[int(g), period], float(per_type[g])) for g in np.flatnonzero(per_type)]
        for g in np.flatnonzero(per_type):
            entries += self._starts(pool, period, int(g), float(per_type[g]))
        entries += self._ramps(pool, period, float(counts.sum()))
        self._columns.append((pool.index, period, key, self._lp.column(0.0, entries)))
        return True

    def solve(self) -> LpPoint:
        """The optimum over the covers offered."""
        return self._lp.solve()

    def prices(self, point: LpPoint) -> Prices:
        """What the rows are worth at `point`."""
        duals = point.duals
        types, periods, streams = len(self._horizon.gpu_types), self._periods, len(self._horizon.streams)

        def table(rows: dict[tuple[int, int], int], sign: float) -> Floats:
            result = np.zeros((types, periods))
            for key, row in rows.items():
                result[key] = sign * duals[row]
            return result

        start = np.zeros((streams, len(PHASES), types, periods))
        for key, row in self._start.items():
            start[key] = -duals[row]

        def ramps(rows: dict[tuple[int, int, int], int]) -> Floats:
            result = np.zeros((streams, len(PHASES), periods))
            for key, row in rows.items():
                result[key] = -duals[row]
            return result

        return Prices(
            gpu=table(self._use, -1.0),
            paid=table(self._paid, -1.0),
            start=start,
            grow=ramps(self._grow),
            shrink=ramps(self._shrink),
        )

    def shares(self, point: LpPoint) -> dict[tuple[int, int], list[tuple[float, Ints]]]:
        """Covers in use at `point`, with their shares, by pool and period."""
        found: dict[tuple[int, int], list[tuple[float, Ints]]] = {}
        for pool, period, key, column in self._columns:
            share = float(point.values[column])
            if share > 1e-6:
                found.setdefault((pool, period), []).append((share, np.frombuffer(key, np.int64)))
        return found

    def modes(self, point: LpPoint) -> dict[tuple[int, bool], float]:
        """Share of each mode, by stream and whether it is disaggregated."""
        return {key: float(point.values[column]) for key, column in self._modes.items()}

    def reserved(self, point: LpPoint) -> Floats:
        """GPUs reserved per type."""
        return np.array([point.values[column] for column in self._reserved])

    def _gpu_part(self) -> None:
        lp, shop = self._lp, self._shop
        types = range(len(self._horizon.gpu_types))
        for g in types:
            for t in range(self._periods):
                self._use[g, t] = lp.row(0.0, 0.0)
                self._paid[g, t] = lp.row(-math.inf, float(shop.owned[g]))
        for g in types:
            offered = float(shop.most_reserved[g])
            entries = [(self._paid[g, t], -1.0) for t in range(self._periods)]
            price = float(shop.reserved_price[g]) if offered else 0.0
            self._reserved.append(lp.column(price, entries, offered))
            for t in range(self._periods):
                lp.column(0.0, [(self._use[g, t], -1.0), (self._paid[g, t], 1.0)], float(shop.stock[g]))
                lp.column(self._missing, [(self._use[g, t], -1.0)])
                lp.column(float(shop.rent[g, t]), [(self._paid[g, t], -1.0)])

    def _stream_part(self, s: int) -> None:
        """One mode; under it, in each period, one front; under that, each pool served."""
        lp, fronts = self._lp, self._reduced.fronts[s]
        if not fronts:
            return
        one = lp.row(1.0, 1.0)
        for disaggregated in sorted({front.disaggregated for front in fronts}):
            chosen = [front for front in fronts if front.disaggregated is disaggregated]
            mode_entries = [(one, 1.0)]
            for t in range(self._periods):
                which = lp.row(0.0, 0.0)
                mode_entries.append((which, -1.0))
                for front in chosen:
                    entries = [(which, 1.0)]
                    for pool in front.pools:
                        self._served[pool.index, t] = lp.row(0.0, math.inf)
                        entries.append((self._served[pool.index, t], -1.0))
                    lp.column(0.0, entries)
            for pool in chosen[0].pools:
                mode_entries += self._ramp_rows(s, PHASES.index(pool.phase))
            self._modes[s, disaggregated] = lp.column(0.0, mode_entries)

    def _ramp_rows(self, s: int, phase: int) -> list[tuple[int, float]]:
        """Rows of scaling limits of a pool, and how its mode enters them."""
        entries = []
        for rows, limit in (
            (self._grow, self._horizon.max_added),
            (self._shrink, self._horizon.max_removed),
        ):
            if limit is not None:
                for t in self._before:
                    rows[s, phase, t] = self._lp.row(-math.inf, 0.0)
                    self._lp.column(self._missing, [(rows[s, phase, t], -1.0)])
                    entries.append((rows[s, phase, t], -float(limit)))
        return entries

    def _starts(self, pool: Pool, period: int, g: int, gpus: float) -> list[tuple[int, float]]:
        """How `gpus` of a cover enter the rows of start-ups, which are made when first needed."""
        s, phase = pool.stream, PHASES.index(pool.phase)
        if self._shop.startup[g] <= 0:
            return []
        if self._before and (s, phase, g, next(iter(self._before))) not in self._start:
            for t in self._before:
                self._start[s, phase, g, t] = self._lp.row(-math.inf, 0.0)
                self._lp.column(float(self._shop.startup[g]), [(self._start[s, phase, g, t], -1.0)])
        return [(self._start[s, phase, g, t], sign * gpus) for t, sign in self._changes(period)]

    def _ramps(self, pool: Pool, period: int, replicas: float) -> list[tuple[int, float]]:
        """How `replicas` of a cover enter the rows of scaling limits."""
        s, phase = pool.stream, PHASES.index(pool.phase)
        return [
            (rows[s, phase, t], way * sign * replicas)
            for rows, way in ((self._grow, 1.0), (self._shrink, -1.0))
            for t, sign in self._changes(period)
            if (s, phase, t) in rows
        ]

    def _changes(self, period: int) -> list[tuple[int, float]]:
        """Changes that a period takes part in, by the period after: up into it, down out of it."""
        after = [(after, -1.0) for after, before in self._before.items() if before == period]
        return [(period, 1.0), *after] if period in self._before else after
