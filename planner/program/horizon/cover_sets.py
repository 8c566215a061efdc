"""Covers that the pools of a stream may take in any period, and what changing from one to another costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.program.horizon.pools import Floats, Ints, Pool, Reduced
from planner.program.horizon.problem import Horizon
from planner.program.horizon.relaxation import Relaxed
from planner.program.limits import ROUNDING
from planner.specs import Phase

Bools = NDArray[np.bool_]

MOST = 200
"""Covers of a pool that are looked at."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CoverSet:
    """Covers of one phase of one stream.

    Attributes
    ----------
    members : ints [I]
        Candidates of the stream, over all fronts.
    counts : ints [K, I]
        Replicas.
    gpus : ints [K, G]
        GPUs per type.
    fits : bools [T, K]
        Whether the cover may serve in a period.
    shares : floats [T, K]
        Of the cover in the relaxation's optimum.
    startup : floats [K, K] or None
        Start-ups from one cover to another; None where periods are not tied. [USD]
    excess : ints [K, K] or None
        Replicas by which such a change is beyond the scaling limits.
    """

    stream: int
    phase: Phase
    members: Ints
    counts: Ints
    gpus: Ints
    fits: Bools
    shares: Floats
    startup: Floats | None
    excess: Ints | None

    def change(self, penalty: float) -> Floats | None:
        """Cost of a change with `penalty` per replica beyond the limits. [USD]"""
        if self.startup is None or self.excess is None:
            return None
        if np.isinf(penalty):
            return np.where(self.excess > 0, np.inf, self.startup)
        result: Floats = self.startup + penalty * self.excess
        return result

    def uses(self, candidates: int) -> Bools:
        """Candidates of the stream in each cover. [K, candidates]"""
        result = np.zeros((len(self.counts), candidates), bool)
        result[:, self.members] = self.counts > 0
        return result


def build_cover_set(
    horizon: Horizon, reduced: Reduced, relaxed: Relaxed, s: int, phase: Phase, disaggregated: bool
) -> CoverSet:
    """The covers of one phase: what the relaxation uses, what is cheapest, and ways up and down."""
    pools = _pools(reduced, s, phase, disaggregated)
    members = np.concatenate([pool.members for pool in pools])
    ranked = _ranked(pools, members, relaxed)
    rows = list(dict.fromkeys(row.tobytes() for _, _, row in ranked))[:MOST]
    number = {row: k for k, row in enumerate(rows)}
    shares = np.zeros((len(horizon.periods), len(rows)))
    for share, t, row in ranked:
        if share > 0 and row.tobytes() in number:
            shares[t, number[row.tobytes()]] += share
    counts = np.stack([np.frombuffer(row, np.int64) for row in rows])
    return _cover_set(horizon, pools, members, counts, shares)


def enriched(horizon: Horizon, reduced: Reduced, cover_set: CoverSet, counts: Ints) -> CoverSet:
    """The set with further covers, after those that it has."""
    known = {row.tobytes() for row in cover_set.counts}
    new = [row for row in counts if row.tobytes() not in known]
    if not new:
        return cover_set
    unique = list({row.tobytes(): row for row in new}.values())
    stream = horizon.streams[cover_set.stream]
    disaggregated = stream.candidates[int(cover_set.members[0])].phase is not Phase.COLOCATED
    pools = _pools(reduced, cover_set.stream, cover_set.phase, disaggregated)
    shares = np.pad(cover_set.shares, ((0, 0), (0, len(unique))))
    return _cover_set(horizon, pools, cover_set.members, np.vstack([cover_set.counts, *unique]), shares)


def within_limits(horizon: Horizon, counts: Ints) -> Ints:
    """Replicas [T, I] that cover `counts` and neither start nor stop faster than allowed.

    What starts too late starts a period earlier, what stops too early a period later.
    """
    counts = counts.copy()
    changed = True
    while changed:
        changed = False
        for before, after in horizon.transitions:
            for low, high, most in (
                (before, after, horizon.max_added),
                (after, before, horizon.max_removed),
            ):
                missing = np.maximum(counts[high] - counts[low], 0)
                if most is not None and missing.sum() > most:
                    counts[low] += _first(missing, int(missing.sum()) - most)
                    changed = True
    return counts


def _first(counts: Ints, total: int) -> Ints:
    """The first `total` of `counts`, in the order of members."""
    before = np.cumsum(counts) - counts
    result: Ints = np.clip(total - before, 0, counts)
    return result


def _pools(reduced: Reduced, s: int, phase: Phase, disaggregated: bool) -> list[Pool]:
    fronts = [front for front in reduced.fronts[s] if front.disaggregated is disaggregated]
    return [pool for front in fronts for pool in front.pools if pool.phase is phase]


def _ranked(pools: list[Pool], members: Ints, relaxed: Relaxed) -> list[tuple[float, int, Ints]]:
    """Covers in the order of their merit: none at all, then by share and by price, then single groups."""
    found: list[tuple[float, int, Ints]] = []
    weight = np.zeros(len(members))
    offset = 0
    for pool in pools:
        for t in range(len(pool.demand)):
            entries = relaxed.shares.get((pool.index, t), [])
            for share, counts in [*entries, (0.0, relaxed.covers[pool.index].counts[t])]:
                row = np.zeros(len(members), np.int64)
                row[offset : offset + len(counts)] = counts
                found.append((share, t, row))
                weight += row * (share + ROUNDING)
        offset += len(pool.members)
    found.sort(key=lambda entry: -entry[0])
    limits = np.concatenate([pool.limits for pool in pools])
    singles = []
    for i in np.argsort(-weight, kind="stable"):
        if weight[i] > 0:
            for n in range(1, int(limits[i]) + 1):
                row = np.zeros(len(members), np.int64)
                row[i] = n
                singles.append((0.0, 0, row))
    return [(0.0, 0, np.zeros(len(members), np.int64)), *found, *singles]


def _cover_set(horizon: Horizon, pools: list[Pool], members: Ints, counts: Ints, shares: Floats) -> CoverSet:
    stream = pools[0].stream
    kinds = np.concatenate([pool.gpu_types for pool in pools])
    sizes = np.concatenate([pool.gpus for pool in pools])
    tables = [table for pool in pools for table in pool.tables]
    gpus = np.zeros((len(counts), len(horizon.gpu_types)), np.int64)
    np.add.at(gpus.T, kinds, (counts * sizes).T)
    usable = np.stack([table[counts[:, i]] for i, table in enumerate(tables)], axis=1)
    sound = ((counts == 0) | (usable > 0)).all(axis=1) & (counts.sum(axis=1) >= pools[0].minimum)
    demand = pools[0].demand[:, None]
    carried = usable.sum(axis=1)
    fits = (demand == 0) | (sound & (carried >= demand * (1 - ROUNDING)))
    changes = _changes(horizon, counts, kinds, sizes) if horizon.tied else (None, None)
    return CoverSet(
        stream=stream,
        phase=pools[0].phase,
        members=members,
        counts=counts,
        gpus=gpus,
        fits=fits,
        shares=shares,
        startup=changes[0],
        excess=changes[1],
    )


def _changes(horizon: Horizon, counts: Ints, kinds: Ints, sizes: Ints) -> tuple[Floats, Ints]:
    """Cost of start-ups, and replicas beyond the scaling limits, from one cover to another. [K, K]"""
    price = np.array([horizon.price(int(g)) for g in kinds]) * sizes * horizon.startup_hours
    cost = np.zeros((len(counts), len(counts)))
    added = np.zeros((len(counts), len(counts)), np.int64)
    removed = np.zeros_like(added)
    for i in range(counts.shape[1]):
        difference = counts[None, :, i] - counts[:, None, i]
        more = np.maximum(difference, 0)
        cost += price[i] * more
        added += more
        removed += more - difference
    excess = np.zeros_like(added)
    if horizon.max_added is not None:
        excess += np.maximum(added - horizon.max_added, 0)
    if horizon.max_removed is not None:
        excess += np.maximum(removed - horizon.max_removed, 0)
    return cost, excess
