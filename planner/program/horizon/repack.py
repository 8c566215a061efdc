"""One period of a plan chosen anew for all streams together, the other periods as they are.

A small integer program: one cover per pool, among those that can follow the period before and precede
the one after, and the blocks to rent beyond those at hand. What turns (:mod:`plans`) cannot find are swaps of
several streams that together fill or empty a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.program.backends import solve_lp
from planner.program.horizon.cover_sets import CoverSet
from planner.program.horizon.pools import Floats, Ints
from planner.program.horizon.prices import Market
from planner.program.horizon.problem import Horizon
from planner.program.rows import Draft


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Choice:
    """Covers that a pool may take: `covers` [K] of its set, and their `costs` [K] beside GPUs."""

    cover_set: CoverSet
    covers: Ints
    costs: Floats
    current: int


def repack(
    horizon: Horizon,
    shop: Market,
    choices: Sequence[Choice],
    reserved: Ints,
    period: int,
    *,
    gap: float,
    time_limit: float,
) -> list[int] | None:
    """The best covers found, one per choice; None where nothing was. `reserved` [G] blocks."""
    draft = Draft("repack")
    costs: list[tuple[int, float]] = []
    use: dict[int, list[tuple[int, float]]] = {}
    columns = []
    for c, choice in enumerate(choices):
        mine = [draft.column(f"cover[{c},{k}]", 0, 1) for k in choice.covers]
        columns.append(mine)
        draft.row(f"one[{c}]", [(column, 1.0) for column in mine], lower=1, upper=1)
        costs += zip(mine, choice.costs.tolist(), strict=True)
        for column, cover in zip(mine, choice.covers, strict=True):
            for kind in np.flatnonzero(choice.cover_set.gpus[cover]):
                use.setdefault(int(kind), []).append((column, -float(choice.cover_set.gpus[cover, kind])))
    start = [0.0] * len(draft.columns)
    for choice, mine in zip(choices, columns, strict=True):
        start[mine[int(np.flatnonzero(choice.covers == choice.current)[0])]] = 1.0
    for g, terms in sorted(use.items()):
        block, hand = horizon.block(g), int(reserved[g]) + horizon.owned(g)
        most = int(shop.stock[g]) // block
        blocks = draft.column(f"blocks[{g}]", 0, most)
        rented = draft.column(f"rented[{g}]", 0, most)
        draft.row(f"blocks[{g}]", [*terms, (blocks, float(block))], lower=0)
        draft.row(f"rented[{g}]", [(rented, 1.0), (blocks, -1.0)], lower=-hand)
        costs.append((rented, float(shop.rent[g, period]) * block))
        used = -sum(value * start[column] for column, value in terms)
        start += [-(-used // block), max(-(-used // block) - hand, 0.0)]
    _pairs(draft, horizon, choices, columns, period)
    draft.minimise(costs)
    result = solve_lp(draft.finish(), gap=gap, time_limit=time_limit, start=start)
    if result.interrupted:
        raise KeyboardInterrupt
    if result.values is None:
        return None
    values = np.array(result.values)
    return [
        int(choice.covers[int(values[mine].argmax())]) for choice, mine in zip(choices, columns, strict=True)
    ]


def _pairs(
    draft: Draft, horizon: Horizon, choices: Sequence[Choice], columns: Sequence[list[int]], period: int
) -> None:
    """No cover beside one that it must not stand beside: a row per illegal pair of candidates in use."""
    members: dict[tuple[int, int], list[tuple[int, float]]] = {}
    for choice, mine in zip(choices, columns, strict=True):
        cover_set = choice.cover_set
        for column, cover in zip(mine, choice.covers, strict=True):
            for member in cover_set.members[cover_set.counts[cover] > 0].tolist():
                members.setdefault((cover_set.stream, member), []).append((column, 1.0))
    for s, stream in enumerate(horizon.streams):
        if horizon.demands[s][period]:
            for i, j in sorted(stream.illegal_pairs):
                if (s, i) in members and (s, j) in members:
                    draft.row(f"pair[{s},{i},{j}]", [*members[s, i], *members[s, j]], upper=1)
