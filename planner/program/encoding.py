"""The problem as rows: one small function per family of constraints.

Sets: candidates i, ranges r of a candidate's capacity curve, GPU types g, pools p (stream, zone, phase),
events e.

Columns
-------
use[i,first..last] : binary
    Group i exists with a number of replicas in the range.
extra[i,first..last] : integer
    Replicas above the first of the range, so n_i = sum of first * use + extra.
nodes[g] : integer
    Nodes paid for; only with whole nodes.
disaggregated[s] : binary
    1: prefill and decode pools behind the front door of stream s; 0: colocated groups. Never both.
rate : continuous
    Load served, as a share of a reference rate; only for throughput.
mixes[g] : binary
    Type g is in use; only where the number of types is limited.
flow[e,s,phase,zone..] : continuous
    Load of a stream's pools by zone, as a share of the stream's demand; only with several zones.
started[k] : continuous
    Replicas of kind k beyond those that stand; only where moves have a price.

Within a zone no flows are needed: the router keeps the groups of a pool equally busy, hence a pool carries
what its groups carry together. On a range the capacity is affine, hence exact:
``capacity * use + slope * extra``. Capacities enter as shares of the demand, so that a solver's absolute
tolerance is a relative one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from planner.program.fleet import build_fleet, started
from planner.program.layout import Layout, RangeColumns
from planner.program.limits import worthwhile
from planner.program.loads import egress_terms, flow_columns, flow_values, load_rows
from planner.program.problem import POOLS_OF_MODE, Family, Piece, Problem
from planner.program.rows import Draft, LinearProgram
from planner.specs import Objective, Phase


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """A program with the way back to replica counts."""

    problem: Problem
    lp: LinearProgram
    layout: Layout

    @property
    def unit(self) -> float:
        """What 1 of the program's objective stands for. [USD/h, 1, W or req/s]"""
        return 1.0 if self.layout.rate is None else self.layout.references[0]

    def replicas(self, values: Sequence[float]) -> tuple[int, ...]:
        """Replica counts of a solver's `values`, rounded."""
        return tuple(
            sum(
                r.piece.first * round(values[r.use]) + (0 if r.extra is None else round(values[r.extra]))
                for r in ranges
            )
            for ranges in self.layout.ranges
        )

    def values(self, replicas: Sequence[int]) -> list[float]:
        """Column values of a decision that the ranges can express."""
        layout, fleet = self.layout, build_fleet(self.problem, replicas)
        values = [0.0] * len(self.lp.columns)
        for n, ranges in zip(replicas, layout.ranges, strict=True):
            for r in ranges:
                if r.piece.first <= n <= r.piece.last:
                    values[r.use] = 1.0
                    if r.extra is not None:
                        values[r.extra] = float(n - r.piece.first)
        pairs = list(zip(self.problem.candidates, replicas, strict=True))
        for stream, column in enumerate(layout.disaggregated):
            phases = {c.phase for c, n in pairs if n and c.stream == stream}
            values[column] = float(Phase.COLOCATED not in phases)
        for column, nodes in zip(layout.nodes, fleet.nodes, strict=False):
            values[column] = float(nodes)
        for kind, used in zip(self.problem.kinds, fleet.gpus_used, strict=True):
            if used and kind in layout.mixes:
                values[layout.mixes[kind]] = 1.0
        for column, count in zip(layout.started, started(self.problem, replicas), strict=True):
            values[column] = float(count)
        if layout.rate is not None:
            total = sum(stream.share for stream in self.problem.streams)
            values[layout.rate] = fleet.carried / total / layout.references[0]
        for column, flow in flow_values(self.problem, layout, replicas, fleet.carried).items():
            values[column] = flow
        return values


def encode(problem: Problem, worth: float = math.inf) -> Encoding:
    """The integer program of `problem`.

    Candidates with ``max_replicas`` 0 have no columns, nor have ranges that only plans with a loss above
    `worth` can use.
    """
    draft = Draft("planner")
    layout = _columns(draft, problem, worth)
    for family in (
        _one_range,
        _range_widths,
        load_rows,
        _minimum,
        _pairs,
        _nodes,
        _stock,
        _phase_stock,
        _zone_caps,
        _surge,
        _budget,
        _power_cap,
        _gpu_types,
        _moves,
    ):
        family(draft, problem, layout)
    _objective(draft, problem, layout)
    return Encoding(problem=problem, lp=draft.finish(), layout=layout)


def node_limit(problem: Problem, gpu_type: int) -> int:
    """Nodes that all candidates at their limits fill."""
    most = sum(c.max_replicas * c.gpus for c in problem.candidates if c.gpu_type == gpu_type)
    return -(-most // problem.gpu_types[gpu_type].node_size)


def reference_rates(problem: Problem) -> tuple[float, ...]:
    """Per stream, what rows call 1: its demand, or for throughput the most that a group carries. [req/s]"""
    if problem.demand is not None:
        return tuple(problem.rate(s) for s in range(len(problem.streams)))
    largest = max((problem.usable(i, c.max_replicas) for i, c in enumerate(problem.candidates)), default=0.0)
    return (largest or 1.0,) * len(problem.streams)


def _columns(draft: Draft, problem: Problem, worth: float) -> Layout:
    keep = worthwhile(problem, worth)
    ranges = tuple(tuple(_range_columns(draft, problem, i, keep)) for i in range(len(problem.candidates)))
    modes = problem.modes
    disaggregated = tuple(
        draft.column(_of_stream("disaggregated", s.name), float(modes == (True,)), float(True in modes))
        for s in problem.streams
    )
    kinds = range(len(problem.gpu_types))
    throughput = problem.objective is Objective.THROUGHPUT
    return Layout(
        ranges=ranges,
        streams=tuple(c.stream for c in problem.candidates),
        disaggregated=disaggregated,
        nodes=tuple(
            draft.column(f"nodes[{problem.gpu_types[g].name}]", 0, node_limit(problem, g))
            for g in kinds
            if problem.whole_nodes
        ),
        mixes={
            kind: draft.column(f"mixes[{kind}]", 0, 1)
            for kind in (dict.fromkeys(problem.kinds) if problem.max_gpu_types is not None else ())
        },
        rate=draft.column("rate", 0, _most_rate(problem), integer=False) if throughput else None,
        references=reference_rates(problem),
        flows=flow_columns(draft, problem),
        started=tuple(
            draft.column(f"started[{kind.name}]", 0, math.inf, integer=False) for kind in problem.moves
        ),
    )


def _of_stream(name: str, stream: str) -> str:
    return f"{name}[{stream}]" if stream else name


def _most_rate(problem: Problem) -> float:
    """More than any plan carries, in reference rates of the stream with the least share."""
    return len(problem.candidates) / min(stream.share for stream in problem.streams)


def _range_columns(
    draft: Draft, problem: Problem, index: int, keep: Callable[[int, Piece], bool]
) -> Iterator[RangeColumns]:
    candidate = problem.candidates[index]
    for piece in candidate.curve.pieces(losses=problem.losses(index), limit=candidate.max_replicas):
        if not keep(index, piece):
            continue
        label = f"{candidate.name},{piece.first}"
        if piece.last > piece.first:
            label += f"..{piece.last}"
        use = draft.column(f"use[{label}]", 0, 1)
        width = piece.last - piece.first
        extra = draft.column(f"extra[{label}]", 0, width) if width else None
        yield RangeColumns(piece=piece, use=use, extra=extra)


def _one_range(draft: Draft, problem: Problem, layout: Layout) -> None:
    """A group lies in one range, and exists only in its own mode.

    Prefill and decode: sum of its ranges <= disaggregated; colocated: <= 1 - disaggregated.
    """
    for i, candidate in enumerate(problem.candidates):
        if not layout.ranges[i]:
            continue
        sign = 1.0 if candidate.phase is Phase.COLOCATED else -1.0
        draft.row(
            f"one_range[{candidate.name}]",
            [*layout.used(i), (layout.disaggregated[candidate.stream], sign)],
            upper=max(sign, 0.0),
        )


def _range_widths(draft: Draft, problem: Problem, layout: Layout) -> None:
    """Replicas above the first of a range <= its width, and none unless the range is used."""
    for candidate, ranges in zip(problem.candidates, layout.ranges, strict=True):
        for r in ranges:
            if r.extra is not None:
                width = r.piece.last - r.piece.first
                draft.row(
                    f"width[{candidate.name},{r.piece.first}..{r.piece.last}]",
                    [(r.extra, 1.0), (r.use, -float(width))],
                    upper=0,
                )


def _minimum(draft: Draft, problem: Problem, layout: Layout) -> None:
    """Replicas of each pool of the mode in use >= the minimum."""
    least = float(problem.min_replicas_per_pool)
    if least <= 1:
        return  # a pool that carries load has a replica
    for s, stream in enumerate(problem.streams):
        for mode in problem.modes:
            for phase in POOLS_OF_MODE[mode]:
                terms = [term for i in problem.indices(phase, s) for term in layout.count(i)]
                sign = -1.0 if mode else 1.0
                draft.row(
                    f"minimum[{','.join(filter(None, [stream.name, phase]))}]",
                    [*terms, (layout.disaggregated[s], sign * least)],
                    lower=max(sign, 0.0) * least,
                )


def _pairs(draft: Draft, problem: Problem, layout: Layout) -> None:
    """A prefill and a decode group that must not meet: not both exist."""
    for i, j in sorted(problem.pairs_that_meet()):
        if layout.ranges[i] and layout.ranges[j]:
            names = f"{problem.candidates[i].name},{problem.candidates[j].name}"
            switch = layout.disaggregated[problem.candidates[i].stream]
            draft.row(f"pair[{names}]", [*layout.used(i), *layout.used(j), (switch, -1.0)], upper=0)


def gpus_used(
    problem: Problem, layout: Layout, gpu_type: int, phase: Phase | None = None
) -> Iterator[tuple[int, float]]:
    """Terms of the GPUs used of one type, by one pool or by all."""
    for i, candidate in enumerate(problem.candidates):
        if candidate.gpu_type == gpu_type and phase in (None, candidate.phase):
            yield from layout.count(i, candidate.gpus)


def gpus_paid(problem: Problem, layout: Layout, gpu_type: int) -> Iterator[tuple[int, float]]:
    """Terms of the GPUs paid for of one type."""
    if layout.nodes:
        return iter([(layout.nodes[gpu_type], float(problem.gpu_types[gpu_type].node_size))])
    return gpus_used(problem, layout, gpu_type)


def _nodes(draft: Draft, problem: Problem, layout: Layout) -> None:
    """GPUs in the nodes paid for >= GPUs used.

    That replicas pack into nodes without a rest is taken for granted: it holds where of any two sizes,
    the node's among them, one divides the other.
    """
    for g, column in enumerate(layout.nodes):
        kind = problem.gpu_types[g]
        terms = ((c, -count) for c, count in gpus_used(problem, layout, g))
        draft.row(f"nodes[{kind.name}]", [(column, float(kind.node_size)), *terms], lower=0)


def _stock(draft: Draft, problem: Problem, layout: Layout) -> None:
    """GPUs paid for <= stock."""
    for g, kind in enumerate(problem.gpu_types):
        if kind.max_gpus is not None:
            terms = gpus_paid(problem, layout, g)
            draft.requirement(f"stock[{kind.name}]", terms, kind.max_gpus, Family.STOCK, kind.name)


def _phase_stock(draft: Draft, problem: Problem, layout: Layout) -> None:
    """GPUs used by a pool <= its cap."""
    for g, kind in enumerate(problem.gpu_types):
        for phase, cap in sorted(kind.max_gpus_by_phase.items()):
            terms = gpus_used(problem, layout, g, phase)
            name, subject = f"stock[{kind.name},{phase}]", f"{kind.name} for {phase}"
            draft.requirement(name, terms, cap, Family.POOL_CAPS, subject)


def _zone_caps(draft: Draft, problem: Problem, layout: Layout) -> None:
    """GPUs paid for in a zone <= its cap."""
    for zone, cap in sorted(problem.zone_caps.items()):
        kinds = [g for g, kind in enumerate(problem.gpu_types) if kind.zone == zone]
        terms = [term for g in kinds for term in gpus_paid(problem, layout, g)]
        draft.requirement(f"stock[{zone}]", terms, cap, Family.ZONES, zone)


def _surge(draft: Draft, problem: Problem, layout: Layout) -> None:
    """GPUs used, and those of the replicas that start beside a group while it is upgraded, <= stock."""
    if not problem.surge_replicas:
        return
    for i, candidate in enumerate(problem.candidates):
        stock = problem.stock(candidate.gpu_type)
        if layout.ranges[i] and stock is not None:
            more = problem.surge_replicas * candidate.gpus
            used = gpus_used(problem, layout, candidate.gpu_type)
            terms = [*used, *((column, more) for column, _ in layout.used(i))]
            draft.requirement(f"surge[{candidate.name}]", terms, stock, Family.SURGE, candidate.name)


def _types_in_use(problem: Problem, layout: Layout) -> list[int]:
    """GPU types with a candidate left; others may have no price."""
    pairs = zip(problem.candidates, layout.ranges, strict=True)
    return sorted({candidate.gpu_type for candidate, ranges in pairs if ranges})


def cost_terms(problem: Problem, layout: Layout) -> Iterator[tuple[int, float]]:
    """Terms of the cost of everything paid for, and of traffic between zones. [USD/h]"""
    yield from egress_terms(problem, layout)
    for g in _types_in_use(problem, layout):
        for column, gpus in gpus_paid(problem, layout, g):
            yield column, gpus * problem.price(g)


def _budget(draft: Draft, problem: Problem, layout: Layout) -> None:
    """Cost of everything paid for <= budget."""
    if problem.budget is not None:
        draft.requirement("budget", cost_terms(problem, layout), problem.budget, Family.BUDGET)


def _power_cap(draft: Draft, problem: Problem, layout: Layout) -> None:
    """Power of everything paid for <= its cap."""
    if problem.power_cap is not None:
        terms = [
            (column, gpus * problem.gpu_types[g].power)
            for g in _types_in_use(problem, layout)
            for column, gpus in gpus_paid(problem, layout, g)
        ]
        draft.requirement("power", terms, problem.power_cap, Family.POWER)


def _moves(draft: Draft, problem: Problem, layout: Layout) -> None:
    """Replicas of a kind that are started >= replicas - those that stand."""
    for kind, column in zip(problem.moves, layout.started, strict=True):
        terms = [(c, -n) for i in kind.candidates for c, n in layout.count(i)]
        if terms:
            draft.row(f"started[{kind.name}]", [(column, 1.0), *terms], lower=-float(kind.current))


def _gpu_types(draft: Draft, problem: Problem, layout: Layout) -> None:
    """A group exists only where its type is mixed in; types mixed in <= their limit."""
    if problem.max_gpu_types is None:
        return
    for i, candidate in enumerate(problem.candidates):
        if layout.ranges[i]:
            terms = [*layout.used(i), (layout.mixes[problem.kinds[candidate.gpu_type]], -1.0)]
            draft.row(f"mixes[{candidate.name}]", terms, upper=0)
    draft.row("gpu_types", [(column, 1.0) for column in layout.mixes.values()], upper=problem.max_gpu_types)


def objective_terms(problem: Problem, layout: Layout) -> Iterator[tuple[int, float]]:
    """What is minimised: cost, GPUs or power of everything paid for; for throughput, minus the rate share."""
    if layout.rate is not None:
        yield layout.rate, -1.0
        return
    if problem.objective is Objective.COST:
        yield from egress_terms(problem, layout)
        yield from zip(layout.started, (kind.cost for kind in problem.moves), strict=True)
    for g in _types_in_use(problem, layout):
        for column, gpus in gpus_paid(problem, layout, g):
            yield column, gpus * problem.weight(g)


def _objective(draft: Draft, problem: Problem, layout: Layout) -> None:
    draft.minimise(objective_terms(problem, layout))
