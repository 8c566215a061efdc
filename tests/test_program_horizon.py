"""Plans over several periods: against enumeration, against single periods, and what the check refuses."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from horizon_instances import best_value, tiny
from program_instances import curve, realistic

from planner.errors import InfeasibleError, SolverError, SpecError
from planner.plan import PlanStatus
from planner.program import horizon as api
from planner.program import solve as solve_single
from planner.program.horizon import search
from planner.program.horizon.bill import bill
from planner.program.horizon.check import verify, violations
from planner.program.horizon.cover import cover, lower_bound, refined
from planner.program.horizon.cover_sets import within_limits
from planner.program.horizon.paths import cheapest_path
from planner.program.horizon.pools import reduce
from planner.program.horizon.problem import Horizon, HorizonSolution, Offer, Period, Stream
from planner.program.problem import Candidate, GpuType, Problem
from planner.specs import ColocatedUse, Phase

FEATURES = ("stock", "reserved", "owned", "nodes", "limits", "cyclic", "start-up")


def features(horizon: Horizon) -> dict[str, bool]:
    """Which features may matter in an instance."""
    return {
        "stock": any(kind.max_gpus is not None for kind in horizon.gpu_types),
        "reserved": any(offer.reserved_price is not None for offer in horizon.offers),
        "owned": any(offer.owned for offer in horizon.offers),
        "nodes": horizon.whole_nodes and any(kind.node_size > 1 for kind in horizon.gpu_types),
        "limits": horizon.limited and bool(horizon.transitions),
        "cyclic": horizon.cyclic and len(horizon.periods) > 1,
        "start-up": horizon.startup_hours > 0 and bool(horizon.transitions),
    }


@pytest.mark.parametrize("block", range(5))
def test_value_equals_enumeration(block: int) -> None:
    for seed in range(30 * block, 30 * (block + 1)):
        horizon = tiny(seed)
        expected, found = best_value(horizon), search.solve(horizon)
        assert (found is None) == (expected is None), seed
        if found is not None:
            assert expected is not None
            assert found.value == pytest.approx(expected, rel=1e-6, abs=1e-9), seed
            assert found.bound <= expected * (1 + 1e-6) + 1e-9, seed
            assert found.status is PlanStatus.OPTIMAL, seed


def test_every_feature_is_on_in_many_of_the_enumerated_instances() -> None:
    on: Counter[str] = Counter()
    for seed in range(150):
        horizon = tiny(seed)
        if best_value(horizon) is not None:
            on.update(name for name, present in features(horizon).items() if present)
    assert set(on) == set(FEATURES)
    assert min(on.values()) >= 20, on


def test_every_feature_changes_optima() -> None:
    """A feature whose absence changes nothing would not be tested above."""
    changed: Counter[str] = Counter()
    for seed in range(60):
        horizon = tiny(seed)
        expected = best_value(horizon)
        endless = tuple(replace(kind, max_gpus=None) for kind in horizon.gpu_types)
        unreserved = tuple(replace(offer, reserved_price=None) for offer in horizon.offers)
        bought = tuple(replace(offer, owned=0) for offer in horizon.offers)
        for name, other in (
            ("stock", replace(horizon, gpu_types=endless)),
            ("reserved", replace(horizon, offers=unreserved)),
            ("owned", replace(horizon, offers=bought)),
            ("nodes", replace(horizon, whole_nodes=False)),
            ("limits", replace(horizon, max_added=None, max_removed=None)),
            ("cyclic", replace(horizon, cyclic=False)),
            ("start-up", replace(horizon, startup_hours=0.0)),
        ):
            changed[name] += other != horizon and best_value(other) != expected
    assert min(changed[name] for name in FEATURES) >= 3, changed


def test_decomposition_alone_brackets_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the whole program: bounds are valid and most plans are good."""
    monkeypatch.setattr(search, "SMALL", 0)
    gaps = []
    for seed in range(60):
        horizon = tiny(seed)
        expected = best_value(horizon)
        found = search.search(horizon, time.monotonic() + 60)
        if expected is None:
            assert found.replicas is None, seed
        else:
            assert found.bound <= expected * (1 + 1e-6) + 1e-9, seed
            assert found.value >= expected * (1 - 1e-6) - 1e-9, seed
            if expected > 0 and found.replicas is not None:
                gaps.append(found.value / expected - 1)
    assert len(gaps) > 25
    assert float(np.median(gaps)) < 0.01


# --------------------------------------------------------------------------------------------
# Uncoupled


def from_problems(problems: list[Problem], shares: tuple[float, ...], **changes: object) -> Horizon:
    """A horizon of streams like `problems`, on the GPU types of the first."""
    first = problems[0]
    assert first.demand is not None
    kinds = tuple(replace(kind, max_gpus=None, max_gpus_by_phase={}) for kind in first.gpu_types)
    streams = tuple(
        Stream(
            name=f"s{s}",
            candidates=problem.candidates,
            min_replicas_per_pool=problem.min_replicas_per_pool,
            spare_replicas=problem.spare_replicas,
        )
        for s, problem in enumerate(problems)
    )
    return Horizon(
        streams=streams,
        periods=tuple(Period(name=f"t{t}", hours=1.0 + t) for t in range(len(shares))),
        gpu_types=kinds,
        demands=tuple(tuple(first.demand * share / (s + 1) for share in shares) for s in range(len(streams))),
        whole_nodes=False,
        **changes,  # type: ignore[arg-type]
    )


def test_uncoupled_equals_the_sum_of_single_solves() -> None:
    problems = [realistic(seed, types=3, demand=30.0) for seed in (3, 4)]
    horizon = from_problems(problems, (0.2, 0.0, 1.0, 1.0), gap=0.002)
    solution = api.solve(horizon)
    for mode in (True, False):
        assert mode in horizon.single(0, 1.0).modes
    by_stream = []
    for s, row in enumerate(horizon.demands):
        singles = [solve_single(horizon.single(s, rate)) for rate in row if rate]
        hours = [p.hours for p, rate in zip(horizon.periods, row, strict=True) if rate]
        by_stream.append(sum(h * single.value for h, single in zip(hours, singles, strict=True)))
    # A stream may not change its front door between periods, so the sum is a bound, and here it is met.
    assert solution.value == pytest.approx(sum(by_stream), rel=0.005)
    assert solution.gap <= 0.002 + 1e-5
    assert all(n == 0 for counts in solution.replicas for n in counts[1])


def test_equal_demands_get_equal_fleets() -> None:
    horizon = from_problems([realistic(3, types=3, demand=30.0)], (0.5, 1.0, 0.5))
    (first, _, third) = api.solve(horizon).replicas[0]
    assert first == third


# --------------------------------------------------------------------------------------------
# Covers and paths


def test_covers_are_bracketed_by_their_bound() -> None:
    for seed in range(8):
        horizon = from_problems([realistic(seed, types=2, demand=15.0)], (0.1, 0.45, 1.0))
        rng = np.random.default_rng(seed)
        for pool in reduce(horizon).pools:
            weights = rng.uniform(0.2, 3, (3, len(pool.members))) * pool.gpus
            found = cover(pool, weights)
            better = refined(pool, weights, found, 1_000)
            bound = lower_bound(pool, weights, better.costs, 20_000)
            assert (better.costs <= found.costs).all()
            assert (bound <= better.costs).all()
            assert (bound >= better.costs * 0.99).all()
            for covers in (found, better):
                carried = sum(table[covers.counts[:, i]] for i, table in enumerate(pool.tables))
                assert (carried >= pool.demand * (1 - 1e-9)).all()
                assert covers.costs == pytest.approx((weights * covers.counts).sum(axis=1))


def test_negative_weights_put_groups_at_their_limits() -> None:
    horizon = from_problems([realistic(3, types=2, demand=15.0)], (0.1, 1.0))
    pool = reduce(horizon).pools[0]
    weights = np.ones((2, len(pool.members)))
    weights[:, 0] = -1.0
    assert (cover(pool, weights).counts[:, 0] == pool.limits[0]).all()


@pytest.mark.parametrize("cyclic", [True, False])
def test_cheapest_path_equals_enumeration(cyclic: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        cost, change = rng.uniform(0, 1, (4, 3)), rng.uniform(0, 1, (3, 3))
        cost[rng.random((4, 3)) < 0.1] = math.inf
        change[rng.random((3, 3)) < 0.1] = math.inf
        np.fill_diagonal(change, 0.0)
        best = min(_length(cost, change, path, cyclic) for path in np.ndindex(3, 3, 3, 3))
        value, path = cheapest_path(cost, change, cyclic=cyclic)
        assert value == pytest.approx(best)
        if np.isfinite(value):
            assert _length(cost, change, tuple(path), cyclic) == pytest.approx(value)


def _length(cost: np.ndarray, change: np.ndarray, path: tuple[int, ...], cyclic: bool) -> float:
    steps = [*pairwise(path), *([(path[-1], path[0])] if cyclic else [])]
    return float(sum(cost[t, k] for t, k in enumerate(path)) + sum(change[a, b] for a, b in steps))


def test_within_limits_holds_all_limits() -> None:
    horizon = replace(
        tiny(0),
        periods=tuple(Period(name=str(t), hours=1) for t in range(6)),
        demands=((1.0,) * 6,) * len(tiny(0).streams),
        max_added=2,
        max_removed=1,
        cyclic=True,
    )
    counts = np.random.default_rng(1).integers(0, 9, (6, 3))
    raised = within_limits(horizon, counts)
    change = np.roll(raised, -1, axis=0) - raised
    assert (raised >= counts).all()
    assert np.maximum(change, 0).sum(axis=1).max() <= 2
    assert np.maximum(-change, 0).sum(axis=1).max() <= 1


# --------------------------------------------------------------------------------------------
# Laws


def crowded(seed: int) -> Horizon:
    """One pool of candidates that may replace one another, over three periods."""
    rng = np.random.default_rng(seed)
    rate, price = float(rng.uniform(0.9, 1.6)), float(rng.uniform(1, 3))
    starts = (1, 2, 3)
    candidates = tuple(
        Candidate(
            name=f"c{i}",
            phase=Phase.COLOCATED,
            gpu_type=0,
            gpus=gpus,
            curve=curve(rate * gpus * float(rng.uniform(0.8, 1.1)), float(rng.uniform(0, 0.3)), starts),
            max_replicas=4,
        )
        for i, gpus in enumerate((1, 1, 2))
    )
    return Horizon(
        streams=(Stream(name="s", candidates=candidates, colocated=ColocatedUse.ONLY),),
        periods=tuple(Period(name=f"t{t}", hours=float(rng.integers(1, 5))) for t in range(3)),
        gpu_types=(GpuType(name="g", price=price, power=500.0, node_size=2),),
        demands=(tuple(float(x) for x in rng.uniform(0.3, 3.4, 3)),),
        offers=(Offer(),),
        whole_nodes=bool(rng.random() < 0.5),
        max_added=int(rng.integers(1, 3)) if rng.random() < 0.5 else None,
        max_removed=int(rng.integers(1, 3)) if rng.random() < 0.5 else None,
        startup_hours=float(rng.uniform(0, 1)) if rng.random() < 0.5 else 0.0,
        gap=0.0,
    )


def test_dominated_candidates_are_removed_safely() -> None:
    removed = limited = 0
    for seed in range(30):
        horizon = crowded(seed)
        found = search.solve(horizon)
        gone = sum(n == 0 for n in reduce(horizon).limits[0])
        removed += gone > 0
        limited += gone > 0 and horizon.limited
        assert found is not None
        assert found.value == pytest.approx(best_value(horizon), rel=1e-6), seed
    assert removed >= 10
    assert limited >= 5


def test_twins_change_no_optimum() -> None:
    for seed in range(10):
        horizon = crowded(seed)
        (stream,) = horizon.streams
        twins = tuple(replace(c, name=f"{c.name}t") for c in stream.candidates)
        doubled = replace(stream, candidates=(*stream.candidates, *twins))
        found, other = search.solve(horizon), search.solve(replace(horizon, streams=(doubled,)))
        assert found is not None
        assert other is not None
        assert other.value == pytest.approx(found.value, rel=1e-6), seed


def test_static_plan_costs_no_less() -> None:
    for seed in range(40):
        solution = search.solve(tiny(seed))
        if solution is not None and solution.static is not None:
            assert solution.static.value >= solution.value * (1 - 1e-9), seed
            assert solution.saving is not None
            assert 0 <= solution.saving + 1e-9 <= 1, seed


# --------------------------------------------------------------------------------------------
# The check


@pytest.fixture(scope="module")
def solved() -> tuple[Horizon, HorizonSolution]:
    problems = [realistic(seed, types=3, demand=30.0) for seed in (3, 4)]
    horizon = from_problems(
        problems,
        (0.3, 1.0, 0.7),
        offers=(Offer(reserved_price=0.1, max_reserved=4), Offer(owned=1), Offer()),
        max_added=5,
        max_removed=5,
        startup_hours=0.1,
        gap=0.05,
    )
    return horizon, api.solve(horizon, time_limit=20)


def test_a_plan_passes_its_check(solved: tuple[Horizon, HorizonSolution]) -> None:
    horizon, solution = solved
    verify(horizon, solution)
    assert solution.value == pytest.approx(
        solution.reserved_cost + solution.on_demand_cost + solution.startup_cost
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"value": 1.0},
        {"bound": 1e9},
        {"gap": 0.9},
        {"reserved_cost": 1e4},
        {"startup_cost": -1.0},
        {"reserved": (5, 0, 0)},
        {"reserved": (0, 0, 1)},
        {"on_demand": ((0, 0, 0),) * 3},
        {"replicas": ()},
    ],
)
def test_a_tampered_answer_is_refused(
    solved: tuple[Horizon, HorizonSolution], changes: dict[str, object]
) -> None:
    horizon, solution = solved
    with pytest.raises(SolverError, match="does not hold"):
        verify(horizon, replace(solution, **changes))  # type: ignore[arg-type]


def test_a_replica_less_is_refused(solved: tuple[Horizon, HorizonSolution]) -> None:
    """The first period's replicas one by one, with all money recomputed: demand, limits or claims fail."""
    horizon, solution = solved
    peak = [list(counts) for counts in solution.replicas[0]]
    i = next(i for i, n in enumerate(peak[1]) if n)
    peak[1][i] = 0
    replicas = (tuple(tuple(counts) for counts in peak), *solution.replicas[1:])
    found = {v.constraint.split("[")[0] for v in violations(horizon, replicas, solution.reserved)}
    assert "demand" in found


def test_every_constraint_is_checked() -> None:
    """Random decisions: the check finds fault with exactly those that enumeration would not count."""
    seen: set[str] = set()
    rng = np.random.default_rng(0)
    for seed in range(60):
        horizon = tiny(seed)
        for _ in range(6):
            replicas = tuple(
                tuple(tuple(int(n) for n in rng.integers(0, 5, len(s.candidates))) for _ in horizon.periods)
                for s in horizon.streams
            )
            reserved = [int(n) for n in rng.integers(0, 9, len(horizon.gpu_types))]
            seen |= {v.constraint.split("[")[0] for v in violations(horizon, replicas, reserved)}
    assert seen == {
        "limit", "spare", "mode", "demand", "minimum", "pair", "added", "removed", "stock", "reserved",
    }  # fmt: skip


def test_reserving_is_optimal() -> None:
    for seed in range(30):
        horizon, rng = tiny(seed), np.random.default_rng(seed)
        replicas = tuple(
            tuple(tuple(int(n) for n in rng.integers(0, 4, len(s.candidates))) for _ in horizon.periods)
            for s in horizon.streams
        )
        chosen = bill(horizon, replicas)
        for g, offer in enumerate(horizon.offers):
            if offer.reserved_price is None:
                assert chosen.reserved[g] == 0
                continue
            most = 40 if offer.max_reserved is None else offer.max_reserved
            for n in range(0, most + 1, horizon.block(g)):
                other = [*chosen.reserved[:g], n, *chosen.reserved[g + 1 :]]
                assert chosen.value <= bill(horizon, replicas, other).value + 1e-9


# --------------------------------------------------------------------------------------------
# Time, interrupts, bad input


def test_a_time_limit_returns_the_plan_so_far(solved: tuple[Horizon, HorizonSolution]) -> None:
    horizon, _ = solved
    solution = api.solve(replace(horizon, gap=0.0), time_limit=0.5)
    assert solution.status is PlanStatus.FEASIBLE
    assert 0 < solution.gap < 1
    assert not solution.interrupted


def test_an_interrupt_returns_the_plan_so_far(
    solved: tuple[Horizon, HorizonSolution], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    horizon, _ = solved
    monkeypatch.setattr(search, "relax", stop)
    solution = api.solve(replace(horizon, gap=0.0))
    assert solution.interrupted
    assert solution.status is PlanStatus.FEASIBLE


def test_an_interrupt_before_any_plan_is_passed_on(
    solved: tuple[Horizon, HorizonSolution], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search, "first_look", stop)
    with pytest.raises(KeyboardInterrupt):
        api.solve(solved[0])


def test_infeasible_is_an_answer() -> None:
    horizon = from_problems([realistic(3, types=2, demand=30.0)], (1.0,))
    kinds = tuple(replace(kind, max_gpus=1) for kind in horizon.gpu_types)
    with pytest.raises(InfeasibleError):
        api.solve(replace(horizon, gpu_types=kinds))


def test_no_demand_needs_nothing() -> None:
    solution = api.solve(from_problems([realistic(3, types=2, demand=30.0)], (0.0, 0.0)))
    assert (solution.value, solution.gap, solution.status) == (0.0, 0.0, PlanStatus.OPTIMAL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"periods": (Period(name="a", hours=0.0),)}, "hours must be finite and > 0"),
        ({"demands": ((1.0,),)}, "one row per stream, in each one rate per period"),
        ({"demands": ((1.0, -1.0, 1.0), (1.0, 1.0, 1.0))}, "demand must be a finite rate >= 0"),
        ({"offers": (Offer(),)}, "one per GPU type"),
        ({"max_added": -1}, "max_added must be >= 0"),
        ({"startup_hours": -1.0}, "startup_hours must be finite and >= 0"),
        ({"gap": 1.0}, r"gap must lie in \[0, 1\)"),
        ({"streams": ()}, "at least one stream"),
    ],
)
def test_bad_horizons_are_refused(
    solved: tuple[Horizon, HorizonSolution], changes: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        replace(solved[0], **changes)  # type: ignore[arg-type]
