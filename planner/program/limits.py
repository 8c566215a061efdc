"""Bounds that follow from the problem: most replicas worth having, least a plan can cost."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from planner.program.check import MONEY_TOLERANCE, RATE_TOLERANCE
from planner.program.problem import POOLS_OF_MODE, Piece, Problem
from planner.specs import ColocatedUse, Objective, Phase

ROUNDING = 1e-12
"""Relative rounding of a product of two floats. [1]"""


def restrict(problem: Problem, mode: bool) -> Problem:
    """`problem` with one front door only: True is disaggregated."""
    return replace(problem, colocated=ColocatedUse.FORBIDDEN if mode else ColocatedUse.ONLY)


def with_limits(problem: Problem, limits: list[int]) -> Problem:
    """`problem` with other ``max_replicas``; 0 takes a candidate out and keeps all indices."""
    candidates = tuple(
        c if n == c.max_replicas else replace(c, max_replicas=n)
        for c, n in zip(problem.candidates, limits, strict=True)
    )
    return replace(problem, candidates=candidates)


def tighten(problem: Problem) -> Problem:
    """`problem` with each ``max_replicas`` as low as it goes without losing an optimal plan.

    Stock and budget bound a group. So does the demand: a group that carries all of it alone needs no
    further replica, because every other constraint but the pool minimum is the easier to meet
    the fewer there are.
    """
    limits = [int(min(c.max_replicas, replica_limit(problem, i))) for i, c in enumerate(problem.candidates)]
    limits = [n if problem.usable(i, n) > 0 else 0 for i, n in enumerate(limits)]
    return with_limits(problem, _with_partners(problem, limits))


def replica_limit(problem: Problem, index: int) -> float:
    """Most replicas of a candidate that stock, budget and demand leave sensible; infinite without any.

    The candidate's own ``max_replicas`` does not count.
    """
    candidate = problem.candidates[index]
    if candidate.phase not in {phase for mode in problem.modes for phase in POOLS_OF_MODE[mode]}:
        return 0
    gpus = min(_gpus_in_stock(problem, index), _gpus_in_budget(problem, candidate.gpu_type))
    limit = gpus if math.isinf(gpus) else int(gpus) // candidate.gpus
    if problem.demand is None:
        return limit
    rate = problem.rate(candidate.stream)
    return min(limit, max(replicas_for(problem, index, rate), problem.min_replicas_per_pool))


def replicas_for(problem: Problem, index: int, rate: float) -> float:
    """Fewest replicas that carry `rate` alone, whatever they may lose; infinite if no number does."""
    curve = problem.candidates[index].curve
    if curve.per_replica[-1] <= 0:
        return math.inf
    enough = rate * (1 - ROUNDING)
    lost = max(problem.spares, problem.lost(index))
    most = max(curve.starts[-1], math.ceil(rate / curve.per_replica[-1])) + lost
    return bisect_left(range(most), enough, key=lambda n: problem.least(index, n))


def _gpus_in_stock(problem: Problem, index: int) -> float:
    """GPUs that one group may use by stock; infinite where there is none."""
    candidate = problem.candidates[index]
    kind = problem.gpu_types[candidate.gpu_type]
    stock = problem.stock(candidate.gpu_type)
    caps = [
        math.inf if stock is None else stock - problem.surge_replicas * candidate.gpus,
        kind.max_gpus_by_phase.get(candidate.phase, math.inf),
        problem.zone_caps.get(kind.zone, math.inf),
    ]
    return max(min(caps), 0)


def _gpus_in_budget(problem: Problem, gpu_type: int) -> float:
    """GPUs of one type that the whole budget buys."""
    if problem.budget is None or problem.price(gpu_type) <= 0:
        return math.inf
    block = problem.gpu_block(gpu_type)
    money = problem.budget * (1 + MONEY_TOLERANCE) + MONEY_TOLERANCE
    return math.floor(money / (problem.price(gpu_type) * block)) * block


def _with_partners(problem: Problem, limits: list[int]) -> list[int]:
    """`limits` with 0 for prefill and decode candidates that are left without a legal partner."""
    alive = {i for i, n in enumerate(limits) if n > 0}
    prefill, decode = (set(problem.indices(p)) for p in POOLS_OF_MODE[True])
    while True:
        lonely = {i for i in alive & prefill if not any(_legal(problem, i, j) for j in alive & decode)}
        lonely |= {j for j in alive & decode if not any(_legal(problem, i, j) for i in alive & prefill)}
        if not lonely:
            return [n if i in alive else 0 for i, n in enumerate(limits)]
        alive -= lonely


def _legal(problem: Problem, i: int, j: int) -> bool:
    """Whether a prefill and a decode candidate may serve together."""
    return (i, j) not in problem.illegal_pairs and problem.may_meet(i, j)


def legal_islands(problem: Problem) -> list[set[int]]:
    """Connected parts of the graph of legal prefill and decode pairs, among candidates still in.

    Colocated candidates are one part: any may stand beside any other. Asked only of one stream in one zone.
    """
    alive = [i for i, c in enumerate(problem.candidates) if c.max_replicas > 0]
    prefill = {i for i in alive if problem.candidates[i].phase is Phase.PREFILL}
    decode = {i for i in alive if problem.candidates[i].phase is Phase.DECODE}
    colocated = set(alive) - prefill - decode
    islands = [colocated] if colocated else []
    while prefill:
        island, edge = set(), {min(prefill)}
        while edge:
            island |= edge
            edge = {
                j for j in decode - island if any((i, j) not in problem.illegal_pairs for i in edge & prefill)
            } | {
                i for i in prefill - island if any((i, j) not in problem.illegal_pairs for j in edge & decode)
            }
        islands.append(island)
        prefill -= island
    return islands


def loss_bound(problem: Problem) -> float:
    """A lower bound on the loss of any plan; infinite, or 0 for throughput, where a pool is empty.

    A pool that carries the demand uses at least ``demand * gpus / rate`` GPUs of its best candidate,
    at the best rate that a replica reaches within its limit. For throughput the weaker pool with all
    candidates at their limits bounds the rate.
    """
    bounds = [_stream_bound(problem, s) for s in range(len(problem.streams))]
    if problem.objective is not Objective.THROUGHPUT:
        return sum(bounds)
    total = sum(stream.share for stream in problem.streams)
    return max(bound / stream.share for bound, stream in zip(bounds, problem.streams, strict=True)) * total


def fits_in_stock(problem: Problem) -> bool:
    """Whether a plan on a fleet of one line may have GPUs enough: False is proof that it has not."""
    (kind,) = problem.gpu_types
    if kind.max_gpus is None or problem.demand is None:
        return True
    return loss_bound(replace(problem, objective=Objective.GPUS, moves=())) <= kind.max_gpus


def _stream_bound(problem: Problem, stream: int) -> float:
    return min(_mode_bound(problem, stream, mode) for mode in problem.modes)


def _mode_bound(problem: Problem, stream: int, mode: bool) -> float:
    pools = [_pool_bound(problem, stream, phase) for phase in POOLS_OF_MODE[mode]]
    return -min(pools) if problem.objective is Objective.THROUGHPUT else sum(pools)


def _pool_bound(problem: Problem, stream: int, phase: Phase) -> float:
    alive = [i for i in problem.indices(phase, stream) if problem.candidates[i].max_replicas > 0]
    usable = {i: problem.usable(i, problem.candidates[i].max_replicas) for i in alive}
    if problem.demand is None:
        return sum(usable.values())
    per_rate = (
        problem.weight(c.gpu_type) * c.gpus * c.max_replicas / usable[i]
        for i, c in ((i, problem.candidates[i]) for i in alive)
        if usable[i] > 0
    )
    return problem.rate(stream) * (1 - RATE_TOLERANCE) * min(per_rate, default=math.inf)


def worthwhile(problem: Problem, worth: float) -> Callable[[int, Piece], bool]:
    """Tells whether a plan with a loss up to `worth` can have a group in a range of replicas.

    The group costs its own GPUs; the rest of its pool's demand, the other pool and the other streams cost at
    least their share of the bounds. All are affine over a range, so that its ends decide.
    """
    if math.isinf(worth) or problem.demand is None:
        return lambda index, piece: True
    streams = range(len(problem.streams))
    pools = {(s, phase): _pool_bound(problem, s, phase) for s in streams for phase in Phase}
    least = [_stream_bound(problem, s) for s in streams]

    def least_loss(index: int, n: int) -> float:
        candidate = problem.candidates[index]
        s, phase = candidate.stream, candidate.phase
        own = problem.weight(candidate.gpu_type) * candidate.gpus * n
        share = min(problem.usable(index, n) / problem.rate(s), 1.0)
        with_it = sum(pools[s, p] for p in POOLS_OF_MODE[phase is not Phase.COLOCATED])
        others = sum(least) - least[s]
        return (own + others + with_it - share * pools[s, phase]) * (1 - 2 * RATE_TOLERANCE)

    return lambda index, piece: min(least_loss(index, piece.first), least_loss(index, piece.last)) <= worth
