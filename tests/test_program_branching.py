"""Node counts of streams that share GPUs: listed, struck off and filled, against counting by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain, combinations, product

import numpy as np
import pytest
from program_instances import small_streams

from planner.program import Problem
from planner.program.branching import Counted, Cut, Menu, counted, node_counts
from planner.program.columns import TooManyError
from planner.program.packing import Packing, packed
from planner.program.search import _search_joint, reduced
from planner.program.stream_pools import legal_sets
from planner.specs import Phase


def usages(problem: Problem, stream: int) -> set[tuple[int, ...]]:
    """GPUs used by every choice of colocated replicas that carries a stream's demand."""
    members = [i for i in problem.indices(Phase.COLOCATED, stream) if problem.candidates[i].max_replicas]
    found = set()
    for counts in product(*(range(problem.candidates[i].max_replicas + 1) for i in members)):
        chosen = list(zip(members, counts, strict=True))
        if sum(problem.usable(i, n) for i, n in chosen) >= problem.rate(stream):
            gpus = [0] * len(problem.gpu_types)
            for i, n in chosen:
                gpus[problem.candidates[i].gpu_type] += n * problem.candidates[i].gpus
            found.add(tuple(gpus))
    return found


def colocated(seed: int) -> Problem:
    """Two streams of colocated replicas only, few enough to count."""
    problem = small_streams(seed, streams=2)
    candidates = tuple(
        c if c.phase is Phase.COLOCATED else replace(c, max_replicas=0) for c in problem.candidates
    )
    return reduced(replace(problem, candidates=candidates))


def cheapest(packing: Packing) -> float:
    """Cost of whole nodes of the best two plans, by every pair of them; infinite where none is in stock."""
    first, second = (np.array(sorted(usages(packing.problem, s))) for s in (0, 1))
    if not (first.size and second.size):
        return math.inf
    return float(packing.paid(first[:, None] + second[None]).min())


def by_counts(packing: Packing, most: float, *, listed: bool) -> Counted:
    """The search, with the streams' plans listed in full or found one by one."""
    floors = packing.best_bound()
    some = packing.near(floors)
    full = packing.known_within(floors, most - floors.value)
    return counted(
        Menu(packing.streams, full if listed else [None] * len(full), some),
        costs=packing.weights * packing.blocks,
        sizes=packing.blocks,
        limits=np.where(packing.in_use, np.floor(packing.stock / packing.blocks), 0.0),
        least=floors.value,
        most=most,
        cuts=[Cut(prices=floors.prices, least=np.array(floors.floors), floors={})],
        go_on=lambda: True,
    )


@pytest.mark.parametrize("listed", [True, False])
def test_the_first_node_count_that_fits_is_that_of_counting(listed: bool) -> None:
    above = 0
    for seed in range(40):
        packing = Packing(colocated(seed))
        best = cheapest(packing)
        if math.isinf(best):
            continue
        found = by_counts(packing, 1.2 * best, listed=listed)
        assert found.bound == pytest.approx(best)
        assert found.picks is not None
        usage = sum(p.usage[k] for p, k in zip(found.lists, found.picks, strict=True))
        assert packing.paid(np.asarray(usage)) == pytest.approx(best)
        above += best > packing.best_bound().value * 1.001
    assert above >= 10


@pytest.mark.parametrize("listed", [True, False])
def test_where_nothing_is_so_cheap_all_counts_are_struck_off(listed: bool) -> None:
    seen = 0
    for seed in range(40):
        packing = Packing(colocated(seed))
        most = 0.999 * cheapest(packing)
        if math.isinf(most) or most <= packing.best_bound().value:
            continue
        found = by_counts(packing, most, listed=listed)
        assert found.picks is None
        assert found.bound == most
        seen += 1
    assert seen >= 10


def test_with_pools_and_pairs_it_is_the_best_of_the_whole_program() -> None:
    settled = 0
    for seed in range(16):
        problem = small_streams(seed, streams=3)
        whole = _search_joint(problem, None, "highs", None)
        if whole.fleet is None:
            continue
        packing = Packing(reduced(problem))
        found = by_counts(packing, whole.fleet.value * 1.05, listed=seed % 2 == 0)
        assert found.bound <= whole.fleet.value * (1 + 1e-6)
        settled += found.picks is not None
        if found.picks is not None:
            assert found.bound == pytest.approx(whole.fleet.value, rel=1e-6)
    assert settled >= 6


def test_node_counts_are_those_within_the_costs_that_hold_by_all_cuts() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        costs, sizes = rng.uniform(2, 9, size=4), np.array([4, 8, 8, 4])
        limits = np.array([math.inf, 3, 0, 2])
        cuts = [
            Cut(prices=rng.uniform(0, 2, size=4), least=rng.uniform(5, 15, size=2), floors={})
            for _ in range(2)
        ]
        found = node_counts(costs, limits, sizes, 14.0, 30.0, cuts)
        expected = {
            n
            for n in product(range(16), range(4), range(1), range(3))
            if 14 <= np.dot(n, costs) <= 30 and all(cut.spare(np.array(n) * sizes) >= 0 for cut in cuts)
        }
        assert {tuple(n) for n in found.tolist()} == expected
        spent = found @ costs
        assert np.all(np.diff(spent) >= -1e-9)


def test_too_many_node_counts_are_given_up_and_the_bound_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.program.branching.MOST_COUNTS", 0)
    packing = Packing(colocated(3))
    with pytest.raises(TooManyError):
        by_counts(packing, 2 * packing.best_bound().value, listed=True)


@pytest.mark.parametrize("name", ["branching.MOST_TRIED", "branching.MOST_PAIRS"])
def test_given_up_early_the_bound_still_holds(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(f"planner.program.{name}", 1)
    early = 0
    for seed in range(20):
        packing = Packing(colocated(seed))
        best = cheapest(packing)
        if math.isfinite(best):
            found = by_counts(packing, 1.2 * best, listed=True)
            assert found.bound <= best * (1 + 1e-9)
            early += found.picks is None
    assert early >= 3


def test_legal_sets_are_the_maximal_ones() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        illegal = rng.random((4, 5)) < rng.uniform(0.1, 0.7)
        sets = legal_sets(illegal)
        for rows in chain.from_iterable(combinations(range(4), k) for k in range(1, 5)):
            columns = set(np.nonzero(~illegal[list(rows)].any(axis=0))[0].tolist())
            if columns:
                assert any(set(rows) <= a and columns <= b for a, b in sets)
        for a, b in sets:
            assert not illegal[np.ix_(sorted(a), sorted(b))].any()
            assert not any(a <= c and b <= d for c, d in sets if (c, d) != (a, b))


def test_too_many_legal_sets_are_left_to_the_whole_program(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TooManyError):
        legal_sets(np.eye(12, dtype=np.bool_))  # every subset is one
    monkeypatch.setattr("planner.program.stream_pools.MOST_SETS", 0)
    problem = small_streams(1, streams=2)
    found = packed(reduced(problem), solver="highs", time_left=lambda: None)
    assert found.replicas is None
    assert found.bound == 0.0
