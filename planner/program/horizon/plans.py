"""Plans: streams take turns in choosing their cheapest path, given what the others use.

The first plan follows the relaxation's shares. Then two moves alternate: all streams choose one period
anew together (:mod:`planner.program.horizon.repack`), which fills nodes, and each stream chooses all
its periods anew (:mod:`planner.program.horizon.paths`), which ties periods. Going beyond a
scaling limit has a price that rises from little to infinity, so that streams first find out which
GPU types suit them over the day. Being short of GPUs is dear, too, never forbidden.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.program.horizon.bill import reserve
from planner.program.horizon.cover_sets import CoverSet, build_cover_set, enriched, within_limits
from planner.program.horizon.master import MISSING
from planner.program.horizon.paths import cheapest_path
from planner.program.horizon.pools import Floats, Ints, Reduced
from planner.program.horizon.prices import Market
from planner.program.horizon.problem import Horizon, Replicas
from planner.program.horizon.relaxation import Relaxed
from planner.program.horizon.repack import Choice, repack
from planner.program.problem import POOLS_OF_MODE

PENALTIES = (
    (0.05, 0.7, 1.5, 3.0, 6.0),
    (0.02, 0.1, 0.3, 1.0, 4.0),
    (0.1, 0.5, 1.0, 2.0, 4.0, 8.0),
)
"""Prices of a replica beyond a scaling limit, in those of a median GPU for a period, of each start. [1]"""
MIXTURES = (0.3, 0.6, 0.8, 0.9, 1.0, 1.0)
"""Share of the bill in what GPUs cost, round by round; the rest is the relaxation's price. [1]"""
FOLLOW = 100.0
"""How much the first round prefers the relaxation's covers, in prices of the dearest GPU. [1]"""
REPACK_GAP, REPACK_TIME = 0.002, 1.0  # [1], [s]
COVERS = 16
"""Covers per pool in a repacked period."""


class Planner:
    """A plan under construction."""

    def __init__(self, horizon: Horizon, reduced: Reduced, shop: Market, relaxed: Relaxed) -> None:
        self._horizon, self._reduced, self._shop, self._relaxed = horizon, reduced, shop, relaxed
        self._linear = relaxed.prices.gpu
        self._blocks = np.array([horizon.block(g) for g in range(len(horizon.gpu_types))])
        self._unit = float(np.median(shop.rent)) or 1.0
        self._penalty = np.inf
        self._mode: dict[int, bool] = {}
        self._cover_sets: dict[tuple[int, bool], list[CoverSet]] = {}
        for s, fronts in enumerate(reduced.fronts):
            modes = {front.disaggregated for front in fronts}
            if modes:
                self._mode[s] = max(sorted(modes), key=lambda m: relaxed.modes.get((s, m), 0.0))
        self._begin()

    def rounds(self, until: float) -> Iterator[Replicas]:
        """Plans, one per round, until the monotonic clock shows `until`; not all of them hold.

        Begins anew where a start has come to rest, with other penalties.
        """
        while True:
            for penalties in PENALTIES:
                self._begin()
                self._round(0.0, follow=True)
                yield self.replicas()
                if self._horizon.limited and self._horizon.transitions:
                    yield from self._softly(penalties, until)
                yield from self._settling(until)

    def _begin(self) -> None:
        """No plan yet; cover sets stay."""
        self._paths: dict[tuple[int, bool], list[Ints]] = {}
        self._used = np.zeros((len(self._blocks), len(self._horizon.periods)), np.int64)
        self._reserved = np.round(self._relaxed.reserved / self._blocks).astype(np.int64)  # blocks

    def _softly(self, penalties: Sequence[float], until: float) -> Iterator[Replicas]:
        """Rounds in which going beyond a scaling limit has a price, that rises to infinity."""
        for factor in penalties:
            self._penalty = factor * self._unit
            self._repack_all(until)
            self._enrich()
            self._round(1.0)
            self._enrich()
            yield self.replicas()
        self._penalty = np.inf

    def _settling(self, until: float) -> Iterator[Replicas]:
        """Rounds within the limits, in which reservations follow the plan."""
        for _ in range(2):
            for share in MIXTURES:
                self._round(share, swap=share == 1.0)
                yield self.replicas()
            for _ in range(2):
                self._repack_all(until)
                yield self.replicas()
                self._settle()
                self._round(1.0)
                yield self.replicas()

    def quick(self) -> Iterator[Replicas]:
        """A few plans without repacking."""
        for share in (0.0, *MIXTURES):
            self._round(share)
            yield self.replicas()
            self._settle()

    def replicas(self) -> Replicas:
        """The plan as it stands."""
        periods = len(self._horizon.periods)
        result = []
        for s, stream in enumerate(self._horizon.streams):
            counts = np.zeros((periods, len(stream.candidates)), np.int64)
            key = s, self._mode.get(s, False)
            if key in self._paths:
                for cover_set, path in zip(self._cover_sets[key], self._paths[key], strict=True):
                    counts[:, cover_set.members] += cover_set.counts[path]
            result.append(tuple(tuple(row) for row in counts.tolist()))
        return tuple(result)

    # ----------------------------------------------------------------------------------------
    # Moves

    def _round(self, share: float, *, follow: bool = False, swap: bool = False) -> None:
        """Every stream chooses its periods anew, with `swap` its mode as well."""
        for s, current in list(self._mode.items()):
            modes = sorted({front.disaggregated for front in self._reduced.fronts[s]}) if swap else [current]
            if (s, current) in self._paths:
                self._used -= self._gpus(s, current, self._paths[s, current])
            offers = {mode: self._respond(s, mode, share, follow=follow) for mode in modes}
            best = min(offers, key=lambda mode: (offers[mode][0], mode is not current))
            self._mode[s], self._paths[s, best] = best, offers[best][1]
            self._used += self._gpus(s, best, self._paths[s, best])

    def _settle(self) -> None:
        """Reserve what is cheapest for what is in use."""
        blocks = -(-self._used // self._blocks[:, None])
        self._reserved = np.array([reserve(self._horizon, g, row) for g, row in enumerate(blocks.tolist())])

    def _repack_all(self, until: float) -> None:
        """All streams choose each period anew, together."""
        for period in range(len(self._horizon.periods)):
            if time.monotonic() < until:
                self._repack(period)

    def _repack(self, period: int) -> None:
        keys = [(s, mode, k) for s, mode in self._mode.items() for k in range(len(POOLS_OF_MODE[mode]))]
        choices = [self._choice(s, mode, k, period) for s, mode, k in keys]
        found = repack(
            self._horizon,
            self._shop,
            choices,
            self._reserved,
            period,
            gap=REPACK_GAP,
            time_limit=REPACK_TIME,
        )
        if found is None:
            return
        for (s, mode, k), cover in zip(keys, found, strict=True):
            path, cover_set = self._paths[s, mode][k], self._cover_sets[s, mode][k]
            self._used[:, period] += cover_set.gpus[cover] - cover_set.gpus[path[period]]
            path[period] = cover

    def _choice(self, s: int, mode: bool, k: int, period: int) -> Choice:
        """Covers that fit between those before and after, most promising first."""
        cover_set, path = self._cover_sets[s, mode][k], self._paths[s, mode][k]
        costs = np.where(cover_set.fits[period], 0.0, np.inf)
        change = cover_set.change(self._penalty)
        if change is not None:
            for before, after in self._horizon.transitions:
                if after == period:
                    costs = costs + change[path[before]]
                if before == period:
                    costs = costs + change[:, path[after]]
        current = int(path[period])
        if not np.isfinite(costs[current]):  # the path is broken: nothing to choose from
            return Choice(
                cover_set=cover_set, covers=path[period : period + 1], costs=np.zeros(1), current=current
            )
        merit = costs + cover_set.gpus @ self._linear[:, period]
        merit[current] = -np.inf
        covers = np.argsort(merit, kind="stable")[:COVERS]
        covers = covers[np.isfinite(costs[covers])]
        return Choice(cover_set=cover_set, covers=covers, costs=costs[covers], current=current)

    def _enrich(self) -> None:
        """Add to the cover sets what brings the paths within the scaling limits."""
        for s, mode in self._mode.items():
            for k, path in enumerate(self._paths[s, mode]):
                cover_set = self._cover_sets[s, mode][k]
                counts = within_limits(self._horizon, cover_set.counts[path])
                self._cover_sets[s, mode][k] = enriched(self._horizon, self._reduced, cover_set, counts)

    # ----------------------------------------------------------------------------------------
    # A stream's choice

    def _respond(self, s: int, mode: bool, share: float, *, follow: bool) -> tuple[float, list[Ints]]:
        """The cheapest paths of a stream's pools, one after the other, and their cost."""
        cover_sets = self._sets_of(s, mode)
        paths = list(self._paths.get((s, mode), []))
        known = bool(paths)
        used = self._used + self._gpus(s, mode, paths) if known else self._used.copy()
        total = 0.0
        for k, cover_set in enumerate(cover_sets):
            if known:
                used -= cover_set.gpus[paths[k]].T
            cost = self._cost(cover_set, used, share)
            if follow:
                cost = cost - FOLLOW * self._linear.max() * cover_set.shares
            cost[~cover_set.fits] = np.inf
            if known or k > 0:
                cost[self._conflicts(cover_sets, paths, k)] = np.inf
            value, path = cheapest_path(cost, cover_set.change(self._penalty), cyclic=self._horizon.cyclic)
            if known:
                paths[k] = path if np.isfinite(value) else paths[k]
            else:
                paths.append(path)
            total += value
            used += cover_set.gpus[paths[k]].T
        return total, paths

    def _sets_of(self, s: int, mode: bool) -> list[CoverSet]:
        if (s, mode) not in self._cover_sets:
            self._cover_sets[s, mode] = [
                build_cover_set(self._horizon, self._reduced, self._relaxed, s, phase, mode)
                for phase in POOLS_OF_MODE[mode]
            ]
        return self._cover_sets[s, mode]

    def _gpus(self, s: int, mode: bool, paths: Sequence[Ints]) -> Ints:
        """GPUs per type and period."""
        total = np.zeros_like(self._used)
        for cover_set, path in zip(self._sets_of(s, mode), paths, strict=True):
            total += cover_set.gpus[path].T
        return total

    def _conflicts(self, cover_sets: Sequence[CoverSet], paths: Sequence[Ints], k: int) -> NDArray[np.bool_]:
        """Covers that must not stand beside the other pool's, under demand. [T, K]"""
        cover_set = cover_sets[k]
        stream = self._horizon.streams[cover_set.stream]
        if not stream.illegal_pairs or len(cover_sets) < 2:
            return np.zeros(cover_set.fits.shape, bool)
        count = len(stream.candidates)
        illegal = np.zeros((count, count), np.int64)
        for i, j in stream.illegal_pairs:
            illegal[i, j] = illegal[j, i] = 1
        other = cover_sets[1 - k].uses(count)[paths[1 - k]].astype(np.int64)
        clash = other @ illegal @ cover_set.uses(count).T.astype(np.int64) > 0
        demand = np.array(self._horizon.demands[cover_set.stream])
        result: NDArray[np.bool_] = clash & (demand > 0)[:, None]
        return result

    def _cost(self, cover_set: CoverSet, used: Ints, share: float) -> Floats:
        """What each cover adds in each period: `share` of the bill, the rest by linear prices. [T, K]"""
        shop = self._shop
        total = np.zeros(cover_set.fits.shape)
        for g in np.flatnonzero(cover_set.gpus.any(axis=0)):
            more = np.arange(int(cover_set.gpus[:, g].max()) + 1)
            gpus = -(-(used[g][:, None] + more) // self._blocks[g]) * self._blocks[g]
            paid = self._reserved[g] * self._blocks[g] + shop.owned[g]
            billed = np.maximum(gpus - paid, 0.0) * shop.rent[g][:, None]
            short = np.maximum(gpus - shop.stock[g], 0.0) * MISSING * (float(shop.rent.max()) or 1.0)
            table = (1 - share) * self._linear[g][:, None] * more + share * billed + short
            total += (table - table[:, :1])[:, cover_set.gpus[:, g]]
        return total
