"""Candidates that another one makes superfluous.

Among replicas of one GPU type and phase, i is dominated by k if k carries at least as much on the
same GPUs whatever the count: ``usable_k(n * gpus_i / gpus_k) >= usable_i(n)`` for every n, ``gpus_i``
being a multiple of ``gpus_k``. Any plan with n replicas of i may then have ``n * gpus_i / gpus_k``
more of k instead. That is safe because

- the rate of a replica never falls with n, so joining k's group carries at least the sum, spares included;
- GPUs, nodes, cost, GPU types and pools stay as they are, replicas and groups do not get worse;
- k is checked to have no illegal partner that i does not have, and no limit of its own;
- where replicas have a price to start, both are of one kind and size.

Where one group at a time may lose several replicas, two groups of few replicas lose fewer than one of many:
joining is safe if i may lose one at most, because its n are no fewer then.

Dominance across GPU types would be unsafe: stock may bind, and nodes are paid for whole. Across lines of
the fleet that are alike and have no stock it is safe for a whole line at once: two lines' GPUs in one fill no
more nodes than apart. Of one candidate alone that is not so: the rest of its line may need as many nodes as
before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.program.limits import replica_limit, with_limits
from planner.program.problem import Problem


def without_dominated(problem: Problem) -> Problem:
    """`problem` with ``max_replicas`` 0 for dominated candidates, and for those of superfluous lines."""
    return without_dominated_in_line(without_twins(problem))


def without_dominated_in_line(problem: Problem) -> Problem:
    """`problem` with ``max_replicas`` 0 for candidates that others of their line dominate.

    One at a time, each against those still there: every step keeps an optimal plan, so all do, and of
    two equal candidates one stays.
    """
    alive = [c.max_replicas for c in problem.candidates]
    illegal = _illegal_partners(problem)
    free = _unlimited(problem)
    for family in _families(problem):
        for i in sorted(family, reverse=True):
            if any(
                k != i and alive[k] > 0 and k in free and _dominates(problem, illegal, k, i) for k in family
            ):
                alive[i] = 0
    return with_limits(problem, alive)


def without_twins(problem: Problem) -> Problem:
    """`problem` with ``max_replicas`` 0 for a whole line that another like it makes superfluous."""
    alive = [c.max_replicas for c in problem.candidates]
    of_line: list[list[int]] = [[] for _ in problem.gpu_types]
    for i, c in enumerate(problem.candidates):
        if c.max_replicas > 0:
            of_line[c.gpu_type].append(i)
    twins = [(a, b) for b in range(len(of_line)) for a in range(b) if _twins(problem, a, b)]
    if not twins:
        return problem
    illegal, kinds, free = _illegal_partners(problem), _kinds(problem), _unlimited(problem)
    for a, b in twins:
        rivals = [k for k in of_line[a] if k in free]
        if all(any(_replaces(problem, illegal, kinds, k, i) for k in rivals) for i in of_line[b]):
            for i in of_line[b]:
                alive[i] = 0
            of_line[b] = []
    return with_limits(problem, alive)


def _twins(problem: Problem, a: int, b: int) -> bool:
    """Whether two lines of the fleet differ in their names alone, and have no limit."""
    one, other = (problem.gpu_types[g] for g in (a, b))
    free = one.max_gpus is None and not one.max_gpus_by_phase
    return free and replace(one, name="", kind="") == replace(other, name="", kind="")


def _replaces(problem: Problem, illegal: list[set[int]], kinds: dict[int, int], k: int, i: int) -> bool:
    """Whether k of a line makes i of another superfluous, were the lines one."""
    c, other = problem.candidates[k], problem.candidates[i]
    if (c.phase, c.stream) != (other.phase, other.stream):
        return False
    if problem.moves and (kinds.get(k, -1), c.gpus) != (kinds.get(i, -1), other.gpus):
        return False
    return _dominates(problem, illegal, k, i)


def _kinds(problem: Problem) -> dict[int, int]:
    """By candidate: which kind of replicas it is, where starting them has a price."""
    return {i: k for k, kind in enumerate(problem.moves) for i in kind.candidates}


def _families(problem: Problem) -> Iterator[list[int]]:
    """Candidates of one GPU type, phase and stream; where starting has a price, of one kind and size."""
    kinds = _kinds(problem)
    families: dict[tuple[int, str, int, int, int], list[int]] = {}
    for i, c in enumerate(problem.candidates):
        if c.max_replicas > 0:
            kind = (kinds.get(i, -1), c.gpus) if problem.moves else (0, 0)
            families.setdefault((c.gpu_type, c.phase, c.stream, *kind), []).append(i)
    yield from families.values()


def _unlimited(problem: Problem) -> set[int]:
    """Candidates that have no limit of their own."""
    return {
        i
        for i, c in enumerate(problem.candidates)
        if c.max_replicas > 0 and c.max_replicas >= replica_limit(problem, i)
    }


def _dominates(problem: Problem, illegal: list[set[int]], k: int, i: int) -> bool:
    """Whether k, which has no limit of its own, makes i superfluous."""
    better, worse = problem.candidates[k], problem.candidates[i]
    if worse.gpus % better.gpus:
        return False
    if not illegal[k] <= illegal[i] or problem.lost(i) > max(problem.spares, 1):
        return False
    factor = worse.gpus // better.gpus
    enough = float("inf") if problem.demand is None else problem.rate(worse.stream)
    alike = problem.spares == max(problem.spares, problem.lost(i)) == max(problem.spares, problem.lost(k))
    measures = (problem.usable,) if alike else (problem.usable, problem.least)
    for n in (worse.max_replicas, 1):  # which tell most pairs
        if problem.usable(k, n * factor) < min(problem.usable(i, n), enough):
            return False
    return all(
        carried(k, n * factor) >= min(carried(i, n), enough)
        for n in _corners(problem, i, factor, k)
        for carried in measures
    )


def _corners(problem: Problem, i: int, factor: int, k: int) -> Iterator[int]:
    """Counts of i at which the comparison can change sign.

    Both capacities are affine between the breaks of either curve, so it is enough to look at both ends of
    every stretch.
    """
    limit = problem.candidates[i].max_replicas
    breaks = {1, limit}
    for index, replicas in ((i, 1), (k, factor)):
        for lost in {problem.spares, problem.lost(index)}:
            for start in problem.candidates[index].curve.starts:
                reached = -(-(start + lost) // replicas)
                breaks |= {reached - 1, reached}
    yield from sorted(n for n in breaks if 1 <= n <= limit)


def _illegal_partners(problem: Problem) -> list[set[int]]:
    """Illegal partners of each candidate, among those still in."""
    partners: list[set[int]] = [set() for _ in problem.candidates]
    for i, j in problem.pairs_that_meet():
        if problem.candidates[i].max_replicas > 0 and problem.candidates[j].max_replicas > 0:
            partners[i].add(j)
            partners[j].add(i)
    return partners
