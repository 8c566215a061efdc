"""The whole horizon as one integer program: exact, and fast enough for small ones only.

Columns, per stream s, period t and candidate i (see :mod:`planner.program.encoding` for the ranges):

use[s,t,i,first..last] : binary;  extra[s,t,i,first..last] : integer
    Under demand: the group has a number of replicas in the range, and so many above its first.
idle[s,t,i] : integer
    Without demand: replicas that stand by.
disaggregated[s] : binary
    The front door, once for all periods.
added[s,t,i], removed[s,t,i] : continuous
    Replicas that start before period t, and that stop; only where something depends on it.
blocks[g,t], rented[g,t], reserved[g] : integer
    Blocks in use, rented on demand, reserved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.program.horizon.bill import bill, most_reserved, reserved_price
from planner.program.horizon.problem import Horizon, Replicas
from planner.program.problem import POOLS_OF_MODE, Piece
from planner.program.rows import Draft, LinearProgram, Terms
from planner.specs import ColocatedUse, Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Columns of one candidate in one period: (piece, use, extra) per range, or `idle` without demand."""

    ranges: tuple[tuple[Piece, int, int | None], ...] = ()
    idle: int | None = None
    spares: int = 0

    def used(self) -> Terms:
        """Terms of "group exists"."""
        return [(use, 1.0) for _, use, _ in self.ranges]

    def count(self, factor: float = 1.0) -> Iterator[tuple[int, float]]:
        """Terms of ``factor * n``."""
        if self.idle is not None:
            yield self.idle, factor
        for piece, use, extra in self.ranges:
            yield use, factor * piece.first
            if extra is not None:
                yield extra, factor

    def capacity(self, unit: float) -> Iterator[tuple[int, float]]:
        """Terms of the capacity as a share of `unit`."""
        for piece, use, extra in self.ranges:
            yield use, piece.capacity[self.spares] / unit
            if extra is not None:
                yield extra, piece.slope[self.spares] / unit

    def set(self, values: list[float], n: int) -> None:
        """Enter `n` replicas into the columns' values."""
        if self.idle is not None:
            values[self.idle] = float(n)
        for piece, use, extra in self.ranges:
            if piece.first <= n <= piece.last:
                values[use] = 1.0
                if extra is not None:
                    values[extra] = float(n - piece.first)

    def read(self, values: Sequence[float]) -> int:
        """Replicas in the columns' values."""
        return sum(round(factor) * round(values[column]) for column, factor in self.count())


@dataclass(frozen=True, kw_only=True, slots=True)
class Monolith:
    """The program with the way from replica counts and back.

    `groups` per stream, period and candidate; `changes` are (column, s, before, after, i, sign).
    """

    horizon: Horizon
    lp: LinearProgram
    groups: tuple[tuple[tuple[Group, ...], ...], ...]
    modes: tuple[int, ...]
    changes: tuple[tuple[int, int, int, int, int, int], ...]
    blocks: tuple[tuple[int, ...], ...]
    rented: tuple[tuple[int, ...], ...]
    reserved: tuple[int, ...]

    def replicas(self, values: Sequence[float]) -> Replicas:
        """Replica counts of a solver's `values`, rounded."""
        return tuple(
            tuple(tuple(group.read(values) for group in groups) for groups in by_period)
            for by_period in self.groups
        )

    def values(self, replicas: Replicas) -> list[float]:
        """Column values of a decision."""
        values = [0.0] * len(self.lp.columns)
        for by_period, counts in zip(self.groups, replicas, strict=True):
            for groups, row in zip(by_period, counts, strict=True):
                for group, n in zip(groups, row, strict=True):
                    group.set(values, n)
        for s, column in enumerate(self.modes):
            values[column] = float(not _colocated(self.horizon, s, replicas))
        for column, s, before, after, i, sign in self.changes:
            values[column] = float(max(sign * (replicas[s][after][i] - replicas[s][before][i]), 0))
        spent = bill(self.horizon, replicas)
        for g, column in enumerate(self.reserved):
            values[column] = spent.reserved[g] / self.horizon.block(g)
            for t in range(len(self.horizon.periods)):
                values[self.blocks[g][t]] = float(spent.blocks[g][t])
                values[self.rented[g][t]] = spent.on_demand[g][t] / self.horizon.block(g)
        return values


def encode(horizon: Horizon, limits: Sequence[Sequence[int]]) -> Monolith:
    """The program of `horizon` with at most ``limits[stream][candidate]`` replicas."""
    draft = Draft("horizon")
    costs: list[tuple[int, float]] = []
    groups = tuple(
        tuple(tuple(_groups(draft, horizon, s, t, limits[s])) for t in range(len(horizon.periods)))
        for s in range(len(horizon.streams))
    )
    modes = tuple(_mode(draft, horizon, s) for s in range(len(horizon.streams)))
    for s in range(len(horizon.streams)):
        for t in range(len(horizon.periods)):
            _period_rows(draft, horizon, s, t, groups[s][t], modes[s], limits[s])
    changes = tuple(_changes(draft, horizon, groups, limits, costs))
    blocks, rented, reserved = _gpu_rows(draft, horizon, groups, limits, costs)
    draft.minimise(costs)
    return Monolith(
        horizon=horizon,
        lp=draft.finish(),
        groups=groups,
        modes=modes,
        changes=changes,
        blocks=blocks,
        rented=rented,
        reserved=reserved,
    )


def size(horizon: Horizon, limits: Sequence[Sequence[int]]) -> int:
    """Columns of groups that :func:`encode` would make."""
    return sum(
        len(candidate.curve.starts) * len(horizon.periods)
        for s, stream in enumerate(horizon.streams)
        for candidate, n in zip(stream.candidates, limits[s], strict=True)
        if n
    )


def _colocated(horizon: Horizon, s: int, replicas: Replicas) -> bool:
    pairs = [
        pair for counts in replicas[s] for pair in zip(horizon.streams[s].candidates, counts, strict=True)
    ]
    return any(n and candidate.phase is Phase.COLOCATED for candidate, n in pairs)


def _label(horizon: Horizon, s: int, t: int) -> str:
    return f"{horizon.streams[s].name},{horizon.periods[t].name}"


def _groups(draft: Draft, horizon: Horizon, s: int, t: int, limits: Sequence[int]) -> Iterator[Group]:
    stream = horizon.streams[s]
    for candidate, limit in zip(stream.candidates, limits, strict=True):
        label = f"{_label(horizon, s, t)},{candidate.name}"
        if not limit:
            yield Group()
        elif not horizon.demands[s][t]:
            yield Group(idle=draft.column(f"idle[{label}]", 0, limit))
        else:
            ranges = []
            for piece in candidate.curve.pieces(losses=(stream.spare_replicas,), limit=limit):
                name, width = f"{label},{piece.first}..{piece.last}", piece.last - piece.first
                use = draft.column(f"use[{name}]", 0, 1)
                ranges.append((piece, use, draft.column(f"extra[{name}]", 0, width) if width else None))
            yield Group(ranges=tuple(ranges), spares=stream.spare_replicas)


def _mode(draft: Draft, horizon: Horizon, s: int) -> int:
    use = horizon.streams[s].colocated
    lower, upper = float(use is ColocatedUse.FORBIDDEN), float(use is not ColocatedUse.ONLY)
    return draft.column(f"disaggregated[{horizon.streams[s].name}]", lower, upper)


def _period_rows(
    draft: Draft,
    horizon: Horizon,
    s: int,
    t: int,
    groups: Sequence[Group],
    mode: int,
    limits: Sequence[int],
) -> None:
    """One range per group, of the front door in use; demand, minimum and pairs."""
    stream, label = horizon.streams[s], _label(horizon, s, t)
    for candidate, group, limit in zip(stream.candidates, groups, limits, strict=True):
        sign = 1.0 if candidate.phase is Phase.COLOCATED else -1.0
        most = max(sign, 0.0)
        name = f"{label},{candidate.name}"
        draft.row(
            f"one_range[{name}]", [*group.used(), *([(mode, sign)] if group.ranges else [])], upper=most
        )
        for piece, use, extra in group.ranges:
            if extra is not None:
                width = float(piece.last - piece.first)
                draft.row(f"width[{name},{piece.first}]", [(extra, 1.0), (use, -width)], upper=0)
        if group.idle is not None:
            draft.row(f"idle[{name}]", [(group.idle, 1.0), (mode, sign * limit)], upper=most * limit)
    demand = horizon.demands[s][t]
    if not demand:
        return
    for disaggregated, phases in POOLS_OF_MODE.items():
        sign = -1.0 if disaggregated else 1.0
        for phase in phases:
            pool = [g for c, g in zip(stream.candidates, groups, strict=True) if c.phase is phase]
            carried = [term for group in pool for term in group.capacity(demand)]
            draft.row(f"demand[{label},{phase}]", [*carried, (mode, sign)], lower=max(sign, 0.0))
            least = float(stream.min_replicas_per_pool)
            count = [term for group in pool for term in group.count()]
            draft.row(
                f"minimum[{label},{phase}]", [*count, (mode, sign * least)], lower=max(sign, 0.0) * least
            )
    for i, j in sorted(stream.illegal_pairs):
        if groups[i].ranges and groups[j].ranges:
            names = f"{stream.candidates[i].name},{stream.candidates[j].name}"
            terms = [*groups[i].used(), *groups[j].used(), (mode, -1.0)]
            draft.row(f"pair[{label},{names}]", terms, upper=0)


def _changes(
    draft: Draft,
    horizon: Horizon,
    groups: Sequence[Sequence[Sequence[Group]]],
    limits: Sequence[Sequence[int]],
    costs: list[tuple[int, float]],
) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Columns and rows of replicas that start and stop."""
    for name, sign, most, priced in (
        ("added", 1, horizon.max_added, horizon.startup_hours > 0),
        ("removed", -1, horizon.max_removed, False),
    ):
        if most is None and not priced:
            continue
        for s, stream in enumerate(horizon.streams):
            for before, after in horizon.transitions:
                pools: dict[Phase, list[tuple[int, float]]] = {}
                for i, candidate in enumerate(stream.candidates):
                    if not limits[s][i]:
                        continue
                    label = f"{name}[{_label(horizon, s, after)},{candidate.name}]"
                    column = draft.column(label, 0, limits[s][i], integer=False)
                    terms = [*groups[s][after][i].count(sign), *groups[s][before][i].count(-sign)]
                    draft.row(label, [*terms, (column, -1.0)], upper=0)
                    pools.setdefault(candidate.phase, []).append((column, 1.0))
                    if priced:
                        costs.append((column, horizon.startup_cost(s, i)))
                    yield column, s, before, after, i, sign
                for phase, terms in pools.items():
                    if most is not None:
                        draft.row(f"{name}[{_label(horizon, s, after)},{phase}]", terms, upper=most)


def _gpu_rows(
    draft: Draft,
    horizon: Horizon,
    groups: Sequence[Sequence[Sequence[Group]]],
    limits: Sequence[Sequence[int]],
    costs: list[tuple[int, float]],
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """GPUs used <= blocks; blocks <= owned + reserved + rented."""
    all_blocks, all_rented, all_reserved = [], [], []
    for g, kind in enumerate(horizon.gpu_types):
        members = [
            (s, i, candidate.gpus)
            for s, stream in enumerate(horizon.streams)
            for i, candidate in enumerate(stream.candidates)
            if candidate.gpu_type == g
        ]
        block = horizon.block(g)
        most = -(-sum(limits[s][i] * gpus for s, i, gpus in members) // block)
        stock = horizon.stock(g)
        most = most if stock is None else min(most, stock)
        reserved = draft.column(f"reserved[{kind.name}]", 0, min(most, most_reserved(horizon, g)))
        if most_reserved(horizon, g):
            costs.append((reserved, reserved_price(horizon, g) * block))
        blocks, rented = [], []
        for t, period in enumerate(horizon.periods):
            label = f"{kind.name},{period.name}"
            used = [term for s, i, gpus in members for term in groups[s][t][i].count(-gpus)]
            blocks.append(draft.column(f"blocks[{label}]", 0, most))
            rented.append(draft.column(f"rented[{label}]", 0, most))
            draft.row(f"blocks[{label}]", [(blocks[t], float(block)), *used], lower=0)
            paid = [(rented[t], 1.0), (reserved, 1.0), (blocks[t], -1.0)]
            draft.row(f"rented[{label}]", paid, lower=-horizon.owned(g))
            costs.append((rented[t], horizon.price(g) * period.hours * block))
        all_blocks.append(tuple(blocks))
        all_rented.append(tuple(rented))
        all_reserved.append(reserved)
    return tuple(all_blocks), tuple(all_rented), tuple(all_reserved)
