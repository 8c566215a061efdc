r"""Streams of requests that share replicas: which replica serves what part of which stream at least cost.

The program of :mod:`planner.program.encoding` knows one stream, and what a group carries as a curve. Here
requests come in classes, such as ranges of prompt and answer lengths; a replica has work to do for each that
differs from class to class, and the classes on a group share its time:

.. math::

    \min \sum_g c_g n_g \quad \text{subject to} \quad
    \sum_s \lambda_s w_{sg} \frac{x_{sg}}{k} \le n_g, \quad \sum_g x_{sg} = k, \quad
    x_{sg}, n_g \in \mathbb{N}_0

with k slices of each stream, all of a slice on one group; without slices the shares are continuous. With the
reciprocal of a measured throughput as work this is the problem of Melange [1]_ and of the GPU optimizer of
AIBrix, which give each slice a binary of its own: slices of a stream are alike, so that it is enough to count
them. With one stream, and continuous shares, it is the colocated part of the other program.

.. [1] T. Griggs et al., "Melange: Cost efficient large language model serving by exploiting GPU
   heterogeneity", arXiv:2404.14527, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.errors import InfeasibleError, SolverError, SpecError
from planner.plan import PlanStatus
from planner.program.backends import LpResult, LpStatus, solve_lp
from planner.program.check import RATE_TOLERANCE, Violation
from planner.program.rows import Draft, LinearProgram
from planner.units import PERCENT

LOAD_TOLERANCE = 1e-5
"""Of a load, and of one replica: what solvers take for feasible, and what shares are rounded by. [1]"""

_SAME = 1e-9  # relative difference that is rounding [1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Requests of one class; `rate` [req/s]."""

    name: str
    rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A replica that may serve.

    Attributes
    ----------
    cost : float
        Of one replica. [USD/h]
    work : tuple of float
        Per stream: time of one replica that a request takes, the reciprocal of the rate that it carries of
        that stream alone; infinite where it cannot serve it. [s]
    max_replicas : int or None
        None is unlimited.
    """

    name: str
    cost: float
    work: tuple[float, ...]
    max_replicas: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AssignmentProblem:
    """Streams and the replicas that may serve them.

    Attributes
    ----------
    slice_factor : int or None
        Equal slices of each stream, each of which stays together; None: streams are cut at will.
    utilization : float
        Of a group, at most. [1]
    gap : float
        Relative distance from the proven bound at which the search may stop. [1]
    """

    streams: tuple[Stream, ...]
    servers: tuple[Server, ...]
    slice_factor: int | None = None
    utilization: float = 1.0
    gap: float = 0.0

    def __post_init__(self) -> None:
        if problems := list(_faults(self)):
            raise SpecError("assignment: " + "; ".join(problems))

    @property
    def slices(self) -> int:
        """What the counts of the program are parts of; 1 where shares are continuous."""
        return self.slice_factor or 1

    def load(self, stream: int, server: int) -> float:
        """Replicas that a whole stream keeps busy; infinite where they cannot serve it. [1]"""
        return self.streams[stream].rate * self.servers[server].work[stream]

    def able(self, stream: int) -> tuple[int, ...]:
        """Servers that can serve a stream."""
        return tuple(g for g, server in enumerate(self.servers) if math.isfinite(server.work[stream]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """An answer, re-checked against the problem.

    Attributes
    ----------
    replicas : tuple of int
        Per server.
    shares : tuple of tuple of float
        Per stream, the part of it that each server gets. [1]
    cost, bound : float
        Reached, and proven. [USD/h]
    """

    replicas: tuple[int, ...]
    shares: tuple[tuple[float, ...], ...]
    cost: float
    bound: float
    status: PlanStatus


def solve_assignment(
    problem: AssignmentProblem, *, solver: str = "highs", time_limit: float | None = None
) -> Assignment:
    """The cheapest replicas, and who serves what.

    Parameters
    ----------
    solver : str
        "highs" or "cbc".
    time_limit : float, optional
        [s]

    Raises
    ------
    InfeasibleError
        If a stream has no server, or there are too few replicas: says how much of the rates they carry.
    SolverError
        If the solver failed, ran out of time before it had an answer, or its answer does not hold.
    """
    for s, stream in enumerate(problem.streams):
        if stream.rate > 0 and not problem.able(s):
            raise InfeasibleError(f"no replica serves stream {stream.name}")
    encoding = _encode(problem)
    result = solve_lp(encoding.lp, solver=solver, time_limit=time_limit, gap=problem.gap)
    if result.status is LpStatus.INFEASIBLE:
        raise _too_few(problem, solver)
    if result.values is None:
        if result.interrupted:
            raise KeyboardInterrupt
        raise SolverError(f"{solver} found no assignment" + _within(time_limit))
    return _answer(problem, encoding, result)


def assignment_program(problem: AssignmentProblem) -> LinearProgram:
    """The integer program, as named rows."""
    return _encode(problem).lp


def assignment_violations(
    problem: AssignmentProblem, replicas: Sequence[int], shares: Sequence[Sequence[float]]
) -> tuple[Violation, ...]:
    """Every constraint that an answer breaks, from counts and shares alone; empty for a valid one."""
    found = [*_broken_shares(problem, shares), *_broken_groups(problem, replicas, shares)]
    return tuple(Violation(constraint=name, detail=detail) for name, detail in found)


# --------------------------------------------------------------------------------------------
# The program


@dataclass(frozen=True, kw_only=True, slots=True)
class _Encoding:
    """The program, and where its columns stand: of replicas per server, of parts per (stream, server)."""

    lp: LinearProgram
    replicas: tuple[int, ...]
    parts: dict[tuple[int, int], int]


def _encode(problem: AssignmentProblem) -> _Encoding:
    draft, k = Draft("assignment"), float(problem.slices)
    whole = problem.slice_factor is not None
    replicas = tuple(
        draft.column(f"replicas[{server.name}]", 0, _most(problem, g))
        for g, server in enumerate(problem.servers)
    )
    parts = {
        (s, g): draft.column(f"part[{stream.name},{problem.servers[g].name}]", 0, k, integer=whole)
        for s, stream in enumerate(problem.streams)
        if stream.rate > 0
        for g in problem.able(s)
    }
    for s, stream in enumerate(problem.streams):
        if stream.rate > 0:
            terms = [(parts[s, g], 1.0) for g in problem.able(s)]
            draft.row(f"served[{stream.name}]", terms, lower=k, upper=k)
    for g, server in enumerate(problem.servers):
        busy = [(column, problem.load(s, h) / k) for (s, h), column in parts.items() if h == g]
        draft.row(f"busy[{server.name}]", [*busy, (replicas[g], -problem.utilization)], upper=0)
    draft.minimise((replicas[g], server.cost) for g, server in enumerate(problem.servers))
    return _Encoding(lp=draft.finish(), replicas=replicas, parts=parts)


def _most(problem: AssignmentProblem, server: int) -> int:
    """Replicas that all streams together would keep busy, or as many as there are."""
    loads = (problem.load(s, server) for s, stream in enumerate(problem.streams) if stream.rate > 0)
    needed = _replicas_for(problem, math.fsum(load for load in loads if math.isfinite(load)))
    limit = problem.servers[server].max_replicas
    return needed if limit is None else min(needed, limit)


def _replicas_for(problem: AssignmentProblem, load: float) -> int:
    return math.ceil(load / problem.utilization * (1 - _SAME))


def _answer(problem: AssignmentProblem, encoding: _Encoding, result: LpResult) -> Assignment:
    """What the solver's values stand for; only its parts are believed, replicas follow from them."""
    values = result.values
    assert values is not None
    shares = tuple(_shares(problem, encoding, values, s) for s in range(len(problem.streams)))
    loads = [_load(problem, shares, g) for g in range(len(problem.servers))]
    claimed = [round(values[column]) for column in encoding.replicas]
    fewest = [math.ceil(load / problem.utilization * (1 - LOAD_TOLERANCE)) for load in loads]
    replicas = tuple(min(n, least) for n, least in zip(claimed, fewest, strict=True))
    if broken := assignment_violations(problem, replicas, shares):
        raise SolverError("the solver's assignment does not hold: " + "; ".join(map(str, broken)))
    cost = math.fsum(n * server.cost for n, server in zip(replicas, problem.servers, strict=True))
    bound = min(result.bound, cost)
    proven = result.status is LpStatus.OPTIMAL
    status = PlanStatus.OPTIMAL if proven else PlanStatus.FEASIBLE
    return Assignment(replicas=replicas, shares=shares, cost=cost, bound=bound, status=status)


def _shares(
    problem: AssignmentProblem, encoding: _Encoding, values: Sequence[float], stream: int
) -> tuple[float, ...]:
    """Parts of one stream as shares that add up to 1; none where nothing is sent."""
    parts = [0.0] * len(problem.servers)
    for g in problem.able(stream):
        column = encoding.parts.get((stream, g))
        if column is not None:
            value = values[column]
            parts[g] = float(round(value)) if problem.slice_factor else max(value, 0.0)
    total = math.fsum(parts)
    return tuple(part / total for part in parts) if total > 0 else tuple(parts)


def _within(time_limit: float | None) -> str:
    return "" if time_limit is None else f" within {time_limit:g} s"


def _too_few(problem: AssignmentProblem, solver: str) -> InfeasibleError:
    """How much of all rates the replicas that there are carry, if streams may be cut at will."""
    draft = Draft("carried")
    scale = draft.column("scale", 0, 1, integer=False)
    parts = {
        (s, g): draft.column(f"part[{s},{g}]", 0, 1, integer=False)
        for s, stream in enumerate(problem.streams)
        if stream.rate > 0
        for g in problem.able(s)
    }
    for s in {s for s, _ in parts}:
        draft.row(f"served[{s}]", [(scale, -1.0), *((parts[s, g], 1.0) for g in problem.able(s))], lower=0)
    for g in range(len(problem.servers)):
        busy = [(column, problem.load(s, h)) for (s, h), column in parts.items() if h == g]
        draft.row(f"busy[{g}]", busy, upper=_most(problem, g) * problem.utilization)
    draft.minimise([(scale, -1.0)])
    values = solve_lp(draft.finish(), solver=solver).values
    carried = 0.0 if values is None else values[scale]
    if carried >= 1 - RATE_TOLERANCE:
        return InfeasibleError(
            "number of replicas, with slices that stay whole", "", ("cut streams into more slices",)
        )
    share = f"{math.floor(carried * PERCENT * 10) / 10:g} % of the rates can be served"
    return InfeasibleError("number of replicas", share)


# --------------------------------------------------------------------------------------------
# The check


def _load(problem: AssignmentProblem, shares: Sequence[Sequence[float]], server: int) -> float:
    """Replicas that a group's parts keep busy. [1]"""
    return math.fsum(
        problem.load(s, server) * own[server]
        for s, own in enumerate(shares)
        if own[server] > 0 and problem.streams[s].rate > 0
    )


def _broken_shares(
    problem: AssignmentProblem, shares: Sequence[Sequence[float]]
) -> Iterator[tuple[str, str]]:
    """Every stream is served whole, by those who can, in whole slices."""
    for s, (stream, own) in enumerate(zip(problem.streams, shares, strict=True)):
        if stream.rate <= 0:
            continue
        if abs(math.fsum(own) - 1) > RATE_TOLERANCE or min(own) < 0:
            yield f"served[{stream.name}]", f"shares {own}"
        able = problem.able(s)
        for g, share in enumerate(own):
            name = f"part[{stream.name},{problem.servers[g].name}]"
            if share > 0 and g not in able:
                yield name, "cannot serve it"
            elif problem.slice_factor and abs(share * problem.slices - round(share * problem.slices)) > 1e-6:
                yield name, f"{share:g} is no multiple of 1/{problem.slice_factor}"


def _broken_groups(
    problem: AssignmentProblem, replicas: Sequence[int], shares: Sequence[Sequence[float]]
) -> Iterator[tuple[str, str]]:
    """No group is busier than it may be, and none has more replicas than there are."""
    for g, (server, n) in enumerate(zip(problem.servers, replicas, strict=True)):
        limit = server.max_replicas
        if n != int(n) or n < 0 or (limit is not None and n > limit):
            yield (
                f"replicas[{server.name}]",
                f"{n} replicas" + ("" if limit is None else f", at most {limit}"),
            )
        load, room = _load(problem, shares, g), n * problem.utilization
        if load > room + LOAD_TOLERANCE * max(room, 1.0):
            yield f"busy[{server.name}]", f"load {load:g} on {n} replicas"


def _faults(problem: AssignmentProblem) -> Iterator[str]:
    """Each rule that `problem` breaks, in words."""
    for names in ([s.name for s in problem.streams], [g.name for g in problem.servers]):
        if len(set(names)) < len(names):
            yield f"names must differ, got {names}"
    for stream in problem.streams:
        if not 0 <= stream.rate < math.inf:
            yield f"stream {stream.name!r}: rate must be finite and >= 0, got {stream.rate!r}"
    for server in problem.servers:
        if len(server.work) != len(problem.streams):
            yield f"server {server.name!r}: work for {len(server.work)} of {len(problem.streams)} streams"
        if not all(w > 0 for w in server.work):  # also refuses NaN
            yield f"server {server.name!r}: work must be > 0, got {min(server.work)!r}"
        if not 0 <= server.cost < math.inf:
            yield f"server {server.name!r}: cost must be finite and >= 0, got {server.cost!r}"
        if server.max_replicas is not None and server.max_replicas < 0:
            yield f"server {server.name!r}: max_replicas must be >= 0, got {server.max_replicas}"
    if problem.slice_factor is not None and problem.slice_factor < 1:
        yield f"slice_factor must be >= 1, got {problem.slice_factor}"
    if not 0 < problem.utilization <= 1 or not 0 <= problem.gap < 1:
        yield f"utilization must lie in (0, 1] and gap in [0, 1), got {problem.utilization}, {problem.gap}"
