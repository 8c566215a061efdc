"""What is left out before solving must not be missed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from program_brute_force import best_value, feasible_values
from program_golden import BASE, candidate
from program_instances import curve, realistic, rich, tiny

from planner.program import Candidate, CapacityCurve, Problem, solve
from planner.program.dominance import without_dominated, without_twins
from planner.program.limits import legal_islands, loss_bound, replicas_for, restrict, tighten, worthwhile
from planner.program.problem import Piece
from planner.program.search import reduced
from planner.specs import ColocatedUse, Objective, Phase


def family(seed: int) -> Problem:
    """As `tiny`, with many candidates that may dominate one another."""
    rng = np.random.default_rng(seed)
    problem = tiny(seed)
    candidates = tuple(
        replace(
            c,
            gpu_type=0,
            phase=[Phase.PREFILL, Phase.DECODE][i % 2],
            gpus=int(rng.choice([1, 2])),
            curve=curve(float(rng.choice([1.0, 1.5, 2.0])), float(rng.choice([0.0, 0.3, 0.6])), (1, 2, 3, 5)),
            max_replicas=int(rng.choice([3, 7])),
        )
        for i, c in enumerate(problem.candidates)
    )
    pairs = frozenset(
        (i, j)
        for i, p in enumerate(candidates)
        for j, d in enumerate(candidates)
        if p.phase is Phase.PREFILL and d.phase is Phase.DECODE and rng.random() < 0.15
    )
    return replace(
        problem,
        candidates=candidates,
        illegal_pairs=pairs,
        colocated=ColocatedUse.ALLOWED,
        max_gpu_types=None,
    )


def removed(problem: Problem) -> int:
    return sum(c.max_replicas == 0 for c in problem.candidates)


@pytest.mark.parametrize("make", [tiny, family])
def test_the_optimum_survives(make: Callable[[int], Problem]) -> None:
    """Enumeration with and without tightening and dominance."""
    gone = 0
    for seed in range(80):
        problem = make(seed)
        kept = reduced(problem)
        gone += removed(kept)
        expected, found = best_value(problem), best_value(kept)
        assert (expected is None) == (found is None), seed
        if expected is not None:
            assert found == pytest.approx(expected, rel=1e-9), seed
    assert gone > 40


def test_dominance_finds_most_of_what_is_superfluous_in_realistic_instances() -> None:
    problem = tighten(realistic(4))
    assert removed(without_dominated(problem)) > removed(problem)


def two_decodes(first: Candidate, second: Candidate, **changes: object) -> Problem:
    problem = replace(BASE, candidates=(BASE.candidates[0], first, second), **changes)  # type: ignore[arg-type]
    return without_dominated(tighten(problem))


SMALL = replace(
    candidate("small", Phase.DECODE, 0, 1, max_replicas=9),
    curve=CapacityCurve(starts=(1,), per_replica=(1.0,)),
)
LARGE = replace(SMALL, name="large", gpus=2, curve=CapacityCurve(starts=(1,), per_replica=(1.9,)))


def test_smaller_replicas_that_carry_more_per_gpu_dominate() -> None:
    assert [c.max_replicas > 0 for c in two_decodes(SMALL, LARGE).candidates] == [True, True, False]


def test_of_two_equal_candidates_one_stays() -> None:
    twin = replace(SMALL, name="twin")
    assert [c.max_replicas > 0 for c in two_decodes(SMALL, twin).candidates] == [True, True, False]


def doubled(seed: int) -> Problem:
    """As `rich`, with a further candidate like the first, and the first line of the fleet there twice."""
    problem = rich(seed)
    kinds = [replace(kind, max_gpus=None) if g == 0 else kind for g, kind in enumerate(problem.gpu_types)]
    kinds.append(replace(kinds[0], name="twin"))
    size = len(problem.candidates)
    copies = {size: 0}
    copies |= {
        size + 1 + k: i for k, i in enumerate(i for i, c in enumerate(problem.candidates) if c.gpu_type == 0)
    }
    added = [
        replace(
            problem.candidates[i],
            name=f"copy{n}",
            gpu_type=problem.candidates[i].gpu_type if n == size else len(kinds) - 1,
        )
        for n, i in copies.items()
    ]
    pairs = set(problem.illegal_pairs)
    alike = {i: [i, *(n for n, j in copies.items() if i == j)] for i in range(size)}
    pairs |= {(a, b) for i, j in problem.illegal_pairs for a in alike[i] for b in alike[j]}
    moves = tuple(
        replace(kind, candidates=tuple(a for i in kind.candidates for a in alike[i]))
        for kind in problem.moves
    )
    limits = [min(c.max_replicas, 2) for c in (*problem.candidates, *added)]
    candidates = tuple(
        replace(c, max_replicas=n) for c, n in zip((*problem.candidates, *added), limits, strict=True)
    )
    return replace(
        problem, candidates=candidates, gpu_types=tuple(kinds), illegal_pairs=frozenset(pairs), moves=moves
    )


def choices(problem: Problem) -> int:
    return math.prod(c.max_replicas + 1 for c in problem.candidates)


@pytest.mark.parametrize("make", [rich, doubled])
def test_the_optimum_survives_with_streams_zones_losses_and_moves(make: Callable[[int], Problem]) -> None:
    """Enumeration with and without what dominance alone removes."""
    gone = tried = 0
    for seed in range(250):
        problem = make(seed)
        kept = without_dominated(problem)
        if removed(kept) == removed(problem) or choices(problem) > 3000 or problem.demand is None:
            continue
        tried += 1
        gone += removed(kept) - removed(problem)
        expected, found = best_value(problem), best_value(kept)
        assert (expected is None) == (found is None), seed
        if expected is not None:
            assert found == pytest.approx(expected, rel=1e-9), seed
    assert tried >= 12
    assert gone >= tried


def twins(**changes: object) -> Problem:
    """The fleet of BASE with its first line there twice, under another name."""
    base = replace(BASE, gpu_types=tuple(replace(k, max_gpus=None) for k in BASE.gpu_types))
    on_first = [c for c in base.candidates if c.gpu_type == 0]
    twin = replace(base.gpu_types[0], name="twin", **changes)  # type: ignore[arg-type]
    copies = tuple(replace(c, name=f"{c.name} twin", gpu_type=len(base.gpu_types)) for c in on_first)
    wide = tuple(replace(c, max_replicas=99) for c in (*base.candidates, *copies))
    return replace(base, candidates=wide, gpu_types=(*base.gpu_types, twin))


def test_of_two_lines_that_are_alike_one_stays() -> None:
    problem = twins()
    kept = without_dominated(tighten(problem))
    assert all(c.max_replicas == 0 for c in kept.candidates if c.gpu_type == len(BASE.gpu_types))
    assert any(c.max_replicas > 0 for c in kept.candidates if c.gpu_type == 0)
    assert solve(kept).value == solve(replace(kept, candidates=tighten(problem).candidates)).value


@pytest.mark.parametrize("change", [{"price": 9.0}, {"zone": "b"}, {"max_gpus": 8}, {"spot": True}])
def test_lines_that_differ_both_stay(change: dict[str, object]) -> None:
    problem = tighten(twins(**change))
    assert removed(without_twins(problem)) == removed(problem)


def test_a_line_with_a_candidate_of_its_own_stays_whole() -> None:
    """One candidate alone must not change lines: the rest may need as many nodes as before."""
    problem = tighten(twins())
    better = tuple(
        replace(c, curve=curve(9.0, 0.0)) if c.name.endswith("twin") and c.phase is Phase.DECODE else c
        for c in problem.candidates
    )
    problem = replace(problem, candidates=better)
    assert removed(without_twins(problem)) == removed(problem)


@pytest.mark.parametrize(
    ("better", "changes"),
    [
        (replace(SMALL, max_replicas=1), {}),  # its own limit binds
        (replace(SMALL, gpu_type=1), {}),  # another stock
        (SMALL, {"illegal_pairs": frozenset({(0, 1)})}),  # fewer legal partners
        (
            replace(SMALL, curve=CapacityCurve(starts=(1, 4), per_replica=(0.9, 1.0))),
            {},
        ),  # less at small counts
    ],
)
def test_no_dominance_where_it_would_be_unsafe(better: Candidate, changes: dict[str, object]) -> None:
    problem = replace(BASE, candidates=(BASE.candidates[0], better, LARGE), **changes)  # type: ignore[arg-type]
    assert without_dominated(problem).candidates[2].max_replicas > 0


def test_limits_by_demand_stock_and_budget() -> None:
    """Decode on H100 carries 1 alone and 3 as a pair: two serve a demand of 2."""
    wide = replace(BASE, candidates=tuple(replace(c, max_replicas=99) for c in BASE.candidates))
    limits = [c.max_replicas for c in tighten(wide).candidates]
    assert limits == [2, 2, 2]
    assert [c.max_replicas for c in tighten(replace(wide, min_replicas_per_pool=3)).candidates] == [3, 3, 3]
    assert [c.max_replicas for c in tighten(replace(wide, spare_replicas=1)).candidates] == [3, 3, 3]
    stocked = replace(wide, gpu_types=(replace(BASE.gpu_types[0], max_gpus=7), BASE.gpu_types[1]))
    assert [c.max_replicas for c in tighten(stocked).candidates] == [1, 2, 2]
    assert [c.max_replicas for c in tighten(replace(stocked, whole_nodes=True)).candidates] == [0, 0, 0]
    assert [c.max_replicas for c in tighten(replace(wide, budget=12.0)).candidates] == [1, 2, 2]


def test_replicas_for_is_the_smallest_count() -> None:
    problem = replace(realistic(3), spare_replicas=1)
    for i in range(len(problem.candidates)):
        n = replicas_for(problem, i, 37.0)
        assert not math.isinf(n)
        assert problem.usable(i, int(n)) >= 37.0 * (1 - 1e-9) > problem.usable(i, int(n) - 1)


def test_the_trivial_bound_is_a_bound() -> None:
    for seed in range(200):
        problem = tiny(seed)
        best = best_value(problem)
        if best is not None:
            reached = -best if problem.objective is Objective.THROUGHPUT else best
            assert loss_bound(tighten(problem)) <= reached + 1e-9 * abs(reached), seed


def test_ranges_that_are_left_out_cost_more_than_what_is_worth() -> None:
    """Every plan as good as the worst one kept uses ranges that are kept."""
    for seed in range(60):
        for mode in (True, False):
            problem = tighten(restrict(replace(tiny(seed), illegal_pairs=frozenset()), mode))
            if problem.objective is Objective.THROUGHPUT:
                continue
            keep = worthwhile(problem, worth := 1.05 * (best_value(problem) or 0.0))
            for i, c in enumerate(problem.candidates):
                for n in range(1, c.max_replicas + 1):
                    point = Piece(first=n, last=n, capacity=problem.usable(i, n), slope=0.0)
                    if problem.usable(i, n) > 0 and not keep(i, point):
                        only = replace(
                            problem,
                            candidates=tuple(
                                replace(other, max_replicas=n) if k == i else other
                                for k, other in enumerate(problem.candidates)
                            ),
                        )
                        fixed = [v for v in feasible_values(only) if v <= worth]
                        fewer = [v for v in feasible_values(_below(only, i)) if v <= worth]
                        assert sorted(fixed) == sorted(fewer), (seed, i, n)


def _below(problem: Problem, index: int) -> Problem:
    limits = [c.max_replicas - (i == index) for i, c in enumerate(problem.candidates)]
    return replace(
        problem,
        candidates=tuple(replace(c, max_replicas=n) for c, n in zip(problem.candidates, limits, strict=True)),
    )


def test_islands_are_the_connected_parts_of_legal_pairs() -> None:
    names = ("p0", "p1", "p2")
    prefill = tuple(candidate(name, Phase.PREFILL, 0, 1) for name in names)
    decode = tuple(candidate(name.replace("p", "d"), Phase.DECODE, 0, 1) for name in names)
    illegal = frozenset({(0, 4), (0, 5), (1, 3), (2, 3)})
    problem = replace(BASE, candidates=(*prefill, *decode), illegal_pairs=illegal)
    assert legal_islands(problem) == [{0, 3}, {1, 2, 4, 5}]
    assert legal_islands(replace(problem, illegal_pairs=frozenset())) == [{0, 1, 2, 3, 4, 5}]
