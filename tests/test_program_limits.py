"""What is left out before solving must not be missed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from program_brute_force import best_value, feasible_values
from program_golden import BASE, candidate
from program_instances import curve, realistic, tiny

from planner.program import Candidate, CapacityCurve, Problem
from planner.program.dominance import without_dominated
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
