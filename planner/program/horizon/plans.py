"""Plans: streams take turns in choosing their cheapest path, given what the others use.

What GPUs cost a stream goes from the relaxation's prices to what the bill says: at first a share of
nodes and of reserved GPUs, at last only nodes that are not there yet. So early turns settle what
is scarce, later ones fill nodes. A plan short of GPUs is dear, not forbidden, on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from planner.program.horizon.bill import reserve
from planner.program.horizon.library import Library, build_library
from planner.program.horizon.master import MISSING
from planner.program.horizon.paths import cheapest_path
from planner.program.horizon.pools import Floats, Ints, Reduced
from planner.program.horizon.prices import Market, ahead
from planner.program.horizon.problem import Horizon, Replicas
from planner.program.horizon.relaxation import Relaxed
from planner.program.horizon.repack import Choice, repack
from planner.program.problem import POOLS_OF_MODE

SCHEDULE = (-1.0, 0.3, 0.6, 0.8, 0.9, 1.0, 1.0)
"""Share of the bill in what GPUs cost, turn by turn. [1]"""
SETTLE = False
AGAIN = (0.7, 0.9, 1.0, 1.0)


class Planner:
    """A plan under construction."""

    def __init__(self, horizon: Horizon, reduced: Reduced, shop: Market, relaxed: Relaxed) -> None:
        self._horizon, self._reduced, self._shop = horizon, reduced, shop
        self._linear = relaxed.prices.gpu - ahead(relaxed.prices.start)
        blocks = [horizon.block(g) for g in range(len(horizon.gpu_types))]
        self._blocks = np.array(blocks)
        self._reserved = np.round(relaxed.reserved / self._blocks).astype(np.int64)  # blocks
        self._used = np.zeros((len(blocks), len(horizon.periods)), np.int64)
        self._mode: dict[int, bool] = {}
        self._paths: dict[tuple[int, bool], list[Ints]] = {}
        self._libraries: dict[tuple[int, bool], list[Library]] = {}
        self._relaxed = relaxed
        for s, fronts in enumerate(reduced.fronts):
            modes = {front.disaggregated for front in fronts}
            if modes:
                self._mode[s] = max(sorted(modes), key=lambda m: relaxed.modes.get((s, m), 0.0))

    def turns(self) -> Iterator[Replicas]:
        """Plans, one per round of turns; without end."""
        for share in SCHEDULE:
            yield self._round(share, swap=share == 1.0)
        while True:
            for share in AGAIN:
                yield self._round(share, swap=share == 1.0, settle=share==1.0)

    def _round(self, share: float, *, swap: bool, settle: bool = False) -> Replicas:
        for s in self._mode:
            self._turn(s, share, swap=swap)
        replicas = self.replicas()
        blocks = -(-self._used // self._blocks[:, None])
        if settle or SETTLE:
            self._reserved = np.array([reserve(self._horizon, g, list(row)) for g, row in enumerate(blocks)])
        return replicas

    def replicas(self) -> Replicas:
        """The plan as it stands."""
        periods = len(self._horizon.periods)
        result = []
        for s, stream in enumerate(self._horizon.streams):
            counts = np.zeros((periods, len(stream.candidates)), np.int64)
            if s in self._mode and (s, self._mode[s]) in self._paths:
                key = s, self._mode[s]
                for library, path in zip(self._libraries[key], self._paths[key], strict=True):
                    counts[:, library.members] += library.counts[path]
            result.append(tuple(tuple(int(n) for n in row) for row in counts))
        return tuple(result)

    def _turn(self, s: int, share: float, *, swap: bool) -> None:
        """Let a stream choose anew; with `swap` its mode as well."""
        modes = sorted({front.disaggregated for front in self._reduced.fronts[s]})
        current = self._mode[s]
        if (s, current) in self._paths:
            self._used -= self._gpus(s, current, self._paths[s, current])
        offers = {
            mode: self._respond(s, mode, share) for mode in (modes if swap else [current])
        }
        self._mode[s] = min(offers, key=lambda mode: (offers[mode][0], mode is not current))
        self._paths[s, self._mode[s]] = offers[self._mode[s]][1]
        self._used += self._gpus(s, self._mode[s], self._paths[s, self._mode[s]])

    def _gpus(self, s: int, mode: bool, paths: Sequence[Ints]) -> Ints:
        """GPUs per type and period."""
        libraries = self._library(s, mode)
        total: Ints = sum(lib.gpus[path] for lib, path in zip(libraries, paths, strict=True)).T  # type: ignore[union-attr]
        return total

    def _library(self, s: int, mode: bool) -> list[Library]:
        if (s, mode) not in self._libraries:
            self._libraries[s, mode] = [
                build_library(self._horizon, self._reduced, self._relaxed, s, phase, mode)
                for phase in POOLS_OF_MODE[mode]
            ]
        return self._libraries[s, mode]

    def _respond(self, s: int, mode: bool, share: float) -> tuple[float, list[Ints]]:
        """The cheapest paths of a stream's pools, one after the other, and their cost."""
        libraries = self._library(s, mode)
        paths = list(self._paths.get((s, mode), []))
        known = len(paths) == len(libraries)
        used = self._used.copy()
        if known:
            used += self._gpus(s, mode, paths)
        costs = [0.0] * len(libraries)
        for k, library in enumerate(libraries):
            if known:
                used -= library.gpus[paths[k]].T
            cost = np.where(library.fits, self._cost(library, used, share), np.inf)
            if known or k > 0:
                cost = np.where(self._conflicts(libraries, paths, k), np.inf, cost)
            value, path = cheapest_path(cost, library.change, cyclic=self._horizon.cyclic)
            if not np.isfinite(value) and known:
                path = paths[k]
            costs[k] = value
            if known:
                paths[k] = path
            else:
                paths.append(path)
            used += library.gpus[path].T
        return sum(costs), paths

    def repack(self, period: int, *, most: int = 16, gap: float = 0.002, time_limit: float = 2.0) -> None:
        """Choose one period anew for all streams together."""
        keys = [(s, mode, k) for s, mode in self._mode.items() for k in range(len(POOLS_OF_MODE[mode]))]
        choices = [self._choice(s, mode, k, period, most) for s, mode, k in keys]
        found = repack(
            self._horizon, self._shop, choices, self._reserved, period, gap=gap, time_limit=time_limit
        )
        if found is None:
            return
        for (s, mode, k), cover in zip(keys, found, strict=True):
            path, library = self._paths[s, mode][k], self._libraries[s, mode][k]
            self._used[:, period] += library.gpus[cover] - library.gpus[path[period]]
            path[period] = cover

    def _choice(self, s: int, mode: bool, k: int, period: int, most: int) -> Choice:
        """Covers that fit between those before and after, most promising first."""
        library, path = self._libraries[s, mode][k], self._paths[s, mode][k]
        costs = np.where(library.fits[period], 0.0, np.inf)
        if library.change is not None:
            for before, after in self._horizon.transitions:
                if after == period:
                    costs = costs + library.change[path[before]]
                if before == period:
                    costs = costs + library.change[:, path[after]]
        merit = costs + library.gpus @ self._linear[:, period]
        merit[path[period]] = -np.inf
        covers = np.argsort(merit, kind="stable")[:most]
        covers = covers[np.isfinite(costs[covers])]
        return Choice(library=library, covers=covers, costs=costs[covers], current=int(path[period]))

    def _conflicts(self, libraries: Sequence[Library], paths: Sequence[Ints], k: int) -> np.ndarray:
        """Covers that must not stand beside the other pool's, under demand. [T, K]"""
        library = libraries[k]
        stream = self._horizon.streams[library.stream]
        if not stream.illegal_pairs or len(libraries) < 2:
            return np.zeros(library.fits.shape, bool)
        illegal = np.zeros((len(stream.candidates),) * 2, bool)
        for i, j in stream.illegal_pairs:
            illegal[i, j] = illegal[j, i] = True
        other = libraries[1 - k].uses(len(stream.candidates))[paths[1 - k]]
        clash = (other.astype(int) @ illegal @ library.uses(len(stream.candidates)).T.astype(int)) > 0
        demand = np.array(self._horizon.demands[library.stream])
        return clash & (demand > 0)[:, None]

    def _cost(self, library: Library, used: Ints, share: float) -> Floats:
        """What each cover adds in each period. [T, K]"""
        shop, hours = self._shop, range(used.shape[1])
        total = np.zeros(library.fits.shape)
        if share < 0:
            total -= library.shares * self._linear.max() * 100
            share = 0.0
        for g in np.flatnonzero(library.gpus.any(axis=0)):
            more = np.arange(int(library.gpus[:, g].max()) + 1)
            gpus = -(-(used[g][:, None] + more) // self._blocks[g]) * self._blocks[g]
            paid = self._reserved[g] * self._blocks[g] + shop.owned[g]
            billed = np.maximum(gpus - paid, 0.0) * shop.rent[g][:, None]
            short = np.maximum(gpus - shop.stock[g], 0.0) * MISSING * float(shop.rent.max())
            table = (1 - share) * self._linear[g][:, None] * more + share * billed + short
            table -= table[:, :1]
            total += table[np.ix_(hours, library.gpus[:, g])]
        return total
