"""Streams that share GPUs: plans enumerated against brute force, and picked against the whole program."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from program_instances import small_streams

from benchmarks.streams import drawn
from planner.program import Problem, solve
from planner.program.backends import LpResult, LpStatus
from planner.program.columns import TooManyError, least, pool_plans
from planner.program.fleet import build_fleet
from planner.program.packing import Packing, packed, simple
from planner.program.rows import LinearProgram
from planner.program.search import _search_joint, reduced
from planner.program.stream_pools import stream_pools
from planner.specs import Phase


def undominated(usages: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    def below(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return a != b and all(x <= y for x, y in zip(a, b, strict=True))

    return {u for u in usages if not any(below(v, u) for v in usages)}


def counted(problem: Problem, phases: tuple[Phase, ...]) -> set[tuple[int, ...]]:
    """GPUs used by every choice of replicas that carries the demand in each phase; pairs are minded."""
    members = [i for i, c in enumerate(problem.candidates) if c.phase in phases and c.max_replicas]
    found = set()
    for counts in product(*(range(problem.candidates[i].max_replicas + 1) for i in members)):
        used = [i for i, n in zip(members, counts, strict=True) if n]
        load = dict.fromkeys(phases, 0.0)
        gpus = [0] * len(problem.gpu_types)
        for i, n in zip(members, counts, strict=True):
            c = problem.candidates[i]
            load[c.phase] += problem.usable(i, n)
            gpus[c.gpu_type] += n * c.gpus
        pairs = ((i, j) for i in used for j in used if (i, j) in problem.illegal_pairs)
        if min(load.values()) >= problem.rate(0) and next(pairs, None) is None:
            found.add(tuple(gpus))
    return found


def test_a_pool_has_the_plans_that_counting_finds() -> None:
    seen = 0
    for seed in range(60):
        problem = reduced(small_streams(seed))
        prices = np.array([k.price or 0.0 for k in problem.gpu_types])
        phase = list(Phase)[seed % 3]
        if math.prod(c.max_replicas + 1 for c in problem.candidates if c.phase is phase) > 4000:
            continue
        pool = stream_pools(problem)[0].pools[phase].pool
        expected = counted(problem, (phase,))
        if not expected:
            continue
        costs = sorted(float(np.dot(u, prices)) for u in expected)
        assert least(pool, prices)[0] == pytest.approx(costs[0], rel=1e-9)
        most = 1.3 * costs[0]
        plans = pool_plans(phase, pool, prices, most)
        found = {tuple(u) for u in plans.usage.tolist()}
        assert found <= expected
        cheap = {u for u in expected if np.dot(u, prices) <= most * (1 - 1e-9)}
        assert undominated(cheap) <= found
        seen += len(cheap)
    assert seen > 100


def test_plans_name_replicas_that_use_these_gpus_and_carry_the_demand() -> None:
    for seed in range(10):
        problem = reduced(drawn(seed, streams=2))
        packing = Packing(problem)
        floors = packing.best_bound()
        for s, (stream, plans) in enumerate(zip(packing.streams, packing.near(floors), strict=False)):
            for k in (0, plans.cost.size // 2, plans.cost.size - 1):
                replicas = dict(stream.replicas(plans, k))
                counts = [replicas.get(i, 0) for i in range(len(problem.candidates))]
                fleet = build_fleet(problem, counts)
                assert fleet.gpus_used == tuple(plans.usage[k].tolist())
                assert plans.cost[k] == pytest.approx(float(plans.usage[k] @ floors.prices))
                for phase in {problem.candidates[i].phase for i in replicas}:
                    load = sum(fleet.usable[i] for i in problem.indices(phase, s))
                    assert load >= problem.rate(s) * (1 - 1e-9)
                used = {(i, j) for i in replicas for j in replicas}
                assert not used & problem.illegal_pairs


@pytest.mark.parametrize("spares", [0, 1])
def test_picking_plans_finds_what_the_whole_program_finds(spares: int) -> None:
    settled = 0
    for seed in range(12):
        problem = replace(small_streams(seed, streams=3), spare_replicas=spares)
        assert simple(problem)
        whole = _search_joint(problem, None, "highs", None)
        found = packed(reduced(problem), solver="highs", time_left=lambda: None)
        if whole.fleet is None:
            assert found.replicas is None
            continue
        assert found.floors.value <= whole.fleet.value * (1 + 1e-6)
        assert found.bound <= whole.fleet.value * (1 + 1e-6)
        if found.settled(problem.gap):
            settled += 1
            assert found.value == pytest.approx(whole.fleet.value, rel=1e-6)
        assert solve(problem).value == pytest.approx(whole.fleet.value, rel=1e-6)
    assert settled >= 4


def test_within_the_gap_of_the_whole_program_at_eight_streams() -> None:
    for seed in (0, 1, 9):
        solution = solve(drawn(seed))
        assert solution.gap <= 0.005 + 1e-6


def test_an_interrupt_leaves_the_plan_found_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(lp: LinearProgram, **_options: object) -> LpResult:
        return LpResult(status=LpStatus.UNKNOWN, values=None, bound=-math.inf, interrupted=True)

    monkeypatch.setattr("planner.program.packing.solve_lp", interrupted)
    monkeypatch.setattr("planner.program.branching.MOST_COUNTS", 0)
    solution = solve(drawn(6))  # exchanges alone do not settle it
    assert solution.interrupted
    assert solution.gap > 0.005
    assert solution.bound <= solution.value


def test_too_many_plans_are_given_up() -> None:
    problem = reduced(drawn(4))
    pool = stream_pools(problem)[4].pools[Phase.PREFILL].pool
    prices = np.array([problem.weight(g) for g in range(len(problem.gpu_types))])
    with pytest.raises(TooManyError):
        pool_plans(Phase.PREFILL, pool, prices, 3 * least(pool, prices)[0], effort=100)


@pytest.mark.parametrize(
    "change",
    [{"budget": 50.0}, {"min_replicas_per_pool": 2}, {"max_gpu_types": 1}, {"survive_node": True}],
)
def test_what_ties_streams_together_otherwise_is_left_to_the_whole_program(change: dict[str, object]) -> None:
    assert not simple(replace(small_streams(0, streams=2), **change))  # type: ignore[arg-type]
