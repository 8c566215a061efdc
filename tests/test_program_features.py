"""Streams, zones, spot, resilience, moves: the program against enumeration, another solver, and tampering."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
from program_brute_force import best_value, value_of
from program_golden import BASE, candidate
from program_instances import rich

from planner.errors import SolverError
from planner.plan import PlanStatus
from planner.program import Candidate, GpuType, Problem, diagnose, solve
from planner.program.check import verify, violations
from planner.program.fleet import build_fleet
from planner.program.problem import Family, Moves, Stream
from planner.program.search import solve as solve_or_none
from planner.specs import ColocatedUse, Objective, Phase, SpareScope

SEEDS = 600

FEATURES: dict[str, Callable[[Problem], Problem]] = {
    "stock": lambda p: replace(p, gpu_types=tuple(replace(k, max_gpus=1000) for k in p.gpu_types)),
    "budget": lambda p: replace(p, budget=None),
    "pairs": lambda p: replace(p, illegal_pairs=frozenset()),
    "minimum": lambda p: replace(p, min_replicas_per_pool=1),
    "spare": lambda p: replace(p, spare_replicas=0),
    "spare scope": lambda p: replace(p, spare_scope=SpareScope.GROUP),
    "node": lambda p: replace(p, survive_node=False),
    "zone": lambda p: replace(p, survive_zone=False),
    "surge": lambda p: replace(p, surge_replicas=0),
    "on-demand floor": lambda p: replace(p, on_demand_floor=0.0),
    "across zones": lambda p: replace(p, across_zones=False),
    "zone caps": lambda p: replace(p, zone_caps={}),
    "power": lambda p: replace(p, power_cap=None),
    "moves": lambda p: replace(p, moves=()),
    "whole nodes": lambda p: replace(p, whole_nodes=False),
    "colocated": lambda p: replace(p, colocated=ColocatedUse.ALLOWED),
    "types": lambda p: replace(p, max_gpu_types=None),
}
"""Each optional feature, as what takes it away."""


@cache
def optimum(seed: int) -> float | None:
    return best_value(rich(seed))


@pytest.mark.parametrize("block", range(6))
def test_value_equals_enumeration(block: int) -> None:
    size = SEEDS // 6
    for seed in range(size * block, size * (block + 1)):
        expected, found = optimum(seed), solve_or_none(rich(seed))
        assert (found is None) == (expected is None), seed
        if found is not None:
            assert found.value == pytest.approx(expected, rel=1e-6), seed
            assert found.gap <= 1e-5, seed
            assert found.status is PlanStatus.OPTIMAL, seed


def test_every_feature_is_on_often_and_decides_something() -> None:
    on, decides = dict.fromkeys(FEATURES, 0), dict.fromkeys(FEATURES, 0)
    streams = throughput = 0
    for seed in range(SEEDS):
        problem, expected = rich(seed), optimum(seed)
        streams += len(problem.streams) > 1
        throughput += problem.demand is None
        for name, without in FEATURES.items():
            other = without(problem)
            if other != problem:
                on[name] += 1
                decides[name] += decides[name] < 3 and best_value(other) != expected
    assert min(on.values()) >= 100, on
    assert min(decides.values()) == 3, decides
    assert min(streams, throughput) >= 60


def test_highs_and_cbc_agree() -> None:
    for seed in range(60):
        found = [solve_or_none(rich(seed), solver=solver) for solver in ("highs", "cbc")]
        values = [None if s is None else pytest.approx(s.value, rel=1e-6) for s in found]
        assert values[0] == (None if found[1] is None else found[1].value), seed


def test_tampered_answers_are_rejected() -> None:
    """One replica less of any group, or another claim, and the answer does not pass."""
    tampered = 0
    for seed in range(120):
        problem = rich(seed)
        solution = solve_or_none(problem)
        if solution is None:
            continue
        verify(problem, solution)
        for i in solution.used:
            counts = list(solution.replicas)
            counts[i] -= 1
            with pytest.raises(SolverError):
                verify(problem, replace(solution, replicas=tuple(counts)))
            tampered += 1
        with pytest.raises(SolverError, match="value"):
            verify(problem, replace(solution, value=solution.value + 0.1))
    assert tampered > 50


# ---------------------------------------------------------------------------------------------
# Hand-worked


def line(name: str, price: float, **more: object) -> GpuType:
    return GpuType(name=name, price=price, power=300.0, node_size=1, **more)  # type: ignore[arg-type]


def serves(name: str, gpu_type: int, **more: object) -> Candidate:
    """A colocated replica on one GPU: one carries 1 req/s, two carry 3 together, at most ten."""
    return replace(candidate(name, Phase.COLOCATED, gpu_type, 1, max_replicas=10), **more)  # type: ignore[arg-type]


def problem(*kinds: GpuType, candidates: tuple[Candidate, ...] = (), **more: object) -> Problem:
    made = candidates or tuple(serves(f"c_{kind.name}", g) for g, kind in enumerate(kinds))
    chosen: dict[str, object] = {"demand": 1.0, "colocated": ColocatedUse.ONLY, **more}
    return replace(BASE, candidates=made, gpu_types=kinds, **chosen)  # type: ignore[arg-type]


def counts(p: Problem) -> tuple[int, ...]:
    return solve(p).replicas


def test_half_on_demand_and_half_spot() -> None:
    """Public case: a card at 0.491 USD/h, 0.232 as spot; one of each costs 0.723, 26.4 % less than two."""
    cards = (line("a6000", 0.491), line("a6000@spot", 0.232, spot=True))
    one_by_one = tuple(
        replace(serves(name, g), curve=replace(BASE.candidates[0].curve, starts=(1,), per_replica=(1.0,)))
        for g, name in enumerate(("on demand", "spot"))
    )
    asked = problem(*cards, candidates=one_by_one, demand=2.0, on_demand_floor=0.5)
    solution = solve(asked)
    assert solution.replicas == (1, 1)
    assert solution.cost == pytest.approx(0.723)
    assert 1 - solution.cost / (2 * 0.491) == pytest.approx(0.264, abs=5e-4)
    assert pytest.approx(0.527, abs=5e-4) == 1 - 0.232 / 0.491
    assert counts(replace(asked, on_demand_floor=0.0)) == (0, 2)
    assert counts(replace(asked, on_demand_floor=1.0)) == (2, 0)
    quota = replace(cards[1], max_gpus=0)
    assert counts(replace(asked, gpu_types=(cards[0], quota))) == (2, 0)


def test_pool_spares_are_fewer_than_spares_of_every_group() -> None:
    """Demand 4: three of one kind carry 4.5; with one down, four are needed; two groups of two carry 6,
    5 - whichever is short - 4 with one of a group down."""
    asked = problem(line("a", 1.0, max_gpus=2), line("b", 1.0, max_gpus=2), demand=4.0, spare_replicas=1)
    assert solve_or_none(asked) is None
    assert counts(replace(asked, spare_scope=SpareScope.POOL)) == (2, 2)
    assert solve_or_none(replace(asked, demand=4.01, spare_scope=SpareScope.POOL)) is None


def test_a_lost_node_takes_all_its_replicas() -> None:
    asked = problem(replace(line("a", 1.0), node_size=4), demand=3.0)
    assert counts(asked) == (2,)
    assert counts(replace(asked, survive_node=True)) == (6,)  # four are lost, two are left
    big = replace(asked, candidates=(serves("c", 0, gpus=4),), survive_node=True)
    assert counts(big) == (3,)  # a replica is a node


def test_a_lost_zone_is_borne_by_the_others() -> None:
    zones = (line("a", 1.0, zone="x"), line("b", 1.1, zone="y"), line("c", 1.2, zone="z"))
    asked = problem(*zones, demand=3.0)
    assert counts(asked) == (2, 0, 0)
    assert counts(replace(asked, survive_zone=True)) == (2, 2, 0)
    capped = replace(asked, survive_zone=True, zone_caps={"y": 1})
    assert counts(capped) == (2, 0, 2)


def test_kv_caches_stay_in_their_zone_unless_egress_is_priced() -> None:
    zones = (line("a", 1.0, zone="x"), line("b", 1.0, zone="y"), line("b2", 9.0, zone="x"))
    pools = (
        candidate("p", Phase.PREFILL, 0, 1),
        candidate("d", Phase.DECODE, 1, 1),
        candidate("d2", Phase.DECODE, 2, 1),
    )
    asked = problem(*zones, candidates=pools, colocated=ColocatedUse.FORBIDDEN)
    assert counts(asked) == (1, 0, 1)
    priced = replace(asked, across_zones=True, streams=(Stream(egress_cost=2.0),))
    solution = solve(priced)
    assert solution.replicas == (1, 1, 0)
    assert solution.cost == pytest.approx(2.0 + 2.0)  # two GPUs, and 1 req/s from x to y
    dear = replace(priced, streams=(Stream(egress_cost=8.5),))
    assert counts(dear) == (1, 0, 1)


def test_surge_needs_stock_but_no_money() -> None:
    asked = problem(line("a", 1.0, max_gpus=2), line("b", 5.0), demand=3.0)
    assert counts(asked) == (2, 0)
    assert counts(replace(asked, surge_replicas=1)) == (0, 2)
    roomy = replace(asked, gpu_types=(line("a", 1.0, max_gpus=3), line("b", 5.0)), surge_replicas=1)
    assert solve(roomy).cost == pytest.approx(2.0)


def test_a_fleet_is_not_reshuffled_for_pennies() -> None:
    """Two of b stand at 1.05 USD/h each; a would save 0.10 in all."""
    asked = problem(line("a", 1.0), line("b", 1.05), demand=3.0)
    stand = (
        Moves(name="a", candidates=(0,), current=0, cost=0.06),
        Moves(name="b", candidates=(1,), current=2, cost=0.06),
    )
    assert counts(asked) == (2, 0)
    kept = solve(replace(asked, moves=stand))
    assert kept.replicas == (0, 2)
    assert kept.cost == kept.value == pytest.approx(2.10)
    cheap = tuple(replace(kind, cost=0.04) for kind in stand)
    moved = solve(replace(asked, moves=cheap))
    assert moved.replicas == (2, 0)
    assert (moved.cost, moved.value) == (pytest.approx(2.0), pytest.approx(2.08))


def test_what_stands_is_kept_where_stopping_it_saves_nothing() -> None:
    """A node of four is paid for whole: three replicas stand, two would do."""
    asked = problem(replace(line("a", 1.0), node_size=4), demand=3.0, whole_nodes=True)
    assert counts(asked) == (2,)
    stand = (Moves(name="a", candidates=(0,), current=3, cost=0.1),)
    assert counts(replace(asked, moves=stand)) == (3,)
    assert counts(replace(asked, moves=stand, whole_nodes=False)) == (2,)


def test_power_cap_and_streams_share_one_inventory() -> None:
    two = (Stream(name="chat", share=0.5), Stream(name="code", share=0.5))
    kinds = (line("a", 1.0, max_gpus=3), line("b", 3.0))
    pairs = [("chat", 0, 0), ("chat2", 1, 0), ("code", 0, 1), ("code2", 1, 1)]
    made = tuple(serves(name, g, stream=s) for name, g, s in pairs)
    asked = problem(*kinds, candidates=made, streams=two, demand=6.0)
    solution = solve(asked)
    assert sorted(solution.replicas) == [0, 0, 2, 2]
    assert solution.cost == pytest.approx(8.0)  # one stream gets two of a; the third of a is of no use
    assert sum(solution.flows) == pytest.approx(6.0)
    with_cap = replace(asked, power_cap=1199.0)
    assert solve_or_none(with_cap) is None
    assert solve(replace(asked, power_cap=1200.0)).cost == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("change", "replicas", "name"),
    [
        ({"survive_node": True}, (2,), "demand[colocated]"),
        ({"power_cap": 500.0}, (2,), "power"),
        ({"zone_caps": {"": 1}}, (2,), "stock[]"),
        ({"surge_replicas": 9, "gpu_types": (line("a", 1.0, max_gpus=4),)}, (2,), "surge[c_a]"),
        ({"on_demand_floor": 0.5, "gpu_types": (line("a", 1.0, spot=True),)}, (2,), "without spot"),
    ],
)
def test_violations_name_what_is_broken(
    change: dict[str, object], replicas: tuple[int, ...], name: str
) -> None:
    asked = replace(problem(line("a", 1.0), demand=3.0), **change)  # type: ignore[arg-type]
    assert name in " ".join(v.constraint for v in violations(asked, replicas))


def test_throughput_of_two_streams_keeps_their_shares() -> None:
    two = (Stream(name="chat", share=0.75), Stream(name="code", share=0.25))
    made = (serves("chat", 0, stream=0), serves("code", 0, stream=1))
    asked = problem(
        line("a", 1.0, max_gpus=4), candidates=made, streams=two, demand=None, objective=Objective.THROUGHPUT
    )
    solution = solve(asked)
    assert solution.replicas == (2, 1)  # 3 and 1
    assert solution.value == solution.rate == pytest.approx(4.0)
    assert solution.flows == (pytest.approx(3.0), pytest.approx(1.0))
    assert build_fleet(asked, (2, 2)).carried == pytest.approx(4.0)


def test_of_equal_plans_the_one_with_fewest_groups() -> None:
    for seed in range(200):
        asked, best = rich(seed), optimum(seed)
        if best is None or asked.moves:
            continue
        sign = -1 if asked.demand is None else 1
        tables = product(*(range(c.max_replicas + 1) for c in asked.candidates))
        groups = [
            sum(n > 0 for n in chosen)
            for chosen in tables
            if (value := value_of(asked, chosen)) is not None
            and sign * value <= sign * best + 1e-9 * abs(best)
        ]
        assert len(solve(asked).used) == min(groups), seed


@pytest.mark.parametrize(
    ("change", "family", "shortfall"),
    [
        ({"power_cap": 500.0}, Family.POWER, "100 W of power"),
        ({"zone_caps": {"x": 1}}, Family.ZONES, "1 GPU of zone caps (1 x)"),
        ({"survive_zone": True}, Family.SURVIVAL, ""),
        ({"on_demand_floor": 0.5}, Family.SPOT, ""),
        ({"surge_replicas": 5}, Family.SURGE, ""),
    ],
)
def test_what_is_in_the_way_is_named(change: dict[str, object], family: Family, shortfall: str) -> None:
    """Two of one kind in one zone, all of them spot, carry the demand of 3; four are in stock."""
    asked = problem(line("a", 1.0, zone="x", max_gpus=4, spot=True), demand=3.0)
    assert counts(asked) == (2,)
    diagnosis = diagnose(replace(asked, **change))  # type: ignore[arg-type]
    assert set(diagnosis.families) - {Family.STOCK} == {family}
    assert (Family.STOCK in diagnosis.families) == (family is Family.SURGE)
    assert diagnosis.shortfall.startswith(shortfall)
    assert any(str(family) in hint or shortfall in hint for hint in diagnosis.suggestions)
