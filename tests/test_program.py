"""The program against enumeration, another solver, and laws of its optimum."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from program_brute_force import best_value
from program_golden import BASE, WITH_COLOCATED
from program_instances import realistic, tiny

from planner.errors import InfeasibleError, SolverError, SpecError
from planner.plan import PlanStatus
from planner.program import Problem, Solution, save_lp, solve
from planner.program.check import verify, violations
from planner.program.fleet import build_fleet
from planner.program.heuristic import tidy
from planner.program.search import solve as solve_or_none
from planner.specs import ColocatedUse, Objective, Phase


def loss(problem: Problem, solver: str = "highs") -> float:
    """What is minimised, at the optimum; infinite if there is no plan."""
    solution = solve_or_none(problem, solver=solver)
    if solution is None:
        return math.inf
    return -solution.value if problem.objective is Objective.THROUGHPUT else solution.value


def at_most(a: float, b: float) -> bool:
    """``a <= b``, but for rounding."""
    return a <= b or a - b <= 1e-6 * abs(b) + 1e-9


@pytest.mark.parametrize("block", range(6))
def test_value_equals_enumeration(block: int) -> None:
    for seed in range(100 * block, 100 * (block + 1)):
        problem = tiny(seed)
        expected, found = best_value(problem), solve_or_none(problem)
        assert (found is None) == (expected is None), seed
        if found is not None:
            assert found.value == pytest.approx(expected, rel=1e-6), seed
            assert found.gap <= 1e-5, seed
            assert found.status is PlanStatus.OPTIMAL, seed


def test_every_family_of_constraints_bites_in_the_enumerated_instances() -> None:
    """A family whose absence changes no optimum would not be tested above."""
    changed = dict.fromkeys(
        ("stock", "caps", "budget", "pairs", "minimum", "spare", "nodes", "types", "colocated"), 0
    )
    for seed in range(160):
        problem = tiny(seed)
        expected = best_value(problem)
        unlimited = tuple(replace(kind, max_gpus=1000) for kind in problem.gpu_types)
        uncapped = tuple(replace(kind, max_gpus_by_phase={}) for kind in problem.gpu_types)
        for family, other in (
            ("stock", replace(problem, gpu_types=unlimited)),
            ("caps", replace(problem, gpu_types=uncapped)),
            ("budget", replace(problem, budget=None)),
            ("pairs", replace(problem, illegal_pairs=frozenset())),
            ("minimum", replace(problem, min_replicas_per_pool=1)),
            ("spare", replace(problem, spare_replicas=0)),
            ("nodes", replace(problem, whole_nodes=False)),
            ("types", replace(problem, max_gpu_types=None)),
            ("colocated", replace(problem, colocated=ColocatedUse.ALLOWED)),
        ):
            if other != problem:
                changed[family] += best_value(other) != expected
    assert min(changed.values()) >= 3, changed


def test_highs_and_cbc_agree() -> None:
    for seed in range(40):
        problem = tiny(seed)
        assert loss(problem, "cbc") == pytest.approx(loss(problem), rel=1e-6), seed


@pytest.mark.oracle
def test_highs_and_cbc_agree_on_realistic_instances() -> None:
    for seed in range(8):
        problem = replace(realistic(seed, types=3, demand=20), gap=0.0)
        assert loss(problem, "cbc") == pytest.approx(loss(problem), rel=1e-6), seed


def feasible_seeds(count: int) -> list[int]:
    return [seed for seed in range(3 * count) if best_value(tiny(seed)) is not None][:count]


def easier(problem: Problem, change: str) -> Problem:
    """`problem` with more of one thing that can only help."""
    match change:
        case "stock":
            kinds = tuple(
                replace(k, max_gpus=None if k.max_gpus is None else k.max_gpus + 4) for k in problem.gpu_types
            )
            return replace(problem, gpu_types=kinds)
        case "price":
            kinds = tuple(replace(k, price=(k.price or 0.0) * 0.8) for k in problem.gpu_types)
            return replace(problem, gpu_types=kinds)
        case "capacity":
            faster = tuple(
                replace(c, curve=replace(c.curve, per_replica=tuple(1.1 * r for r in c.curve.per_replica)))
                for c in problem.candidates
            )
            return replace(problem, candidates=faster)
    raise AssertionError(change)


@pytest.mark.parametrize("change", ["stock", "price", "capacity"])
def test_more_never_hurts(change: str) -> None:
    for seed in feasible_seeds(50):
        problem = tiny(seed)
        assert at_most(loss(easier(problem, change)), loss(problem)), seed


def test_another_gpu_type_never_hurts() -> None:
    for seed in feasible_seeds(50):
        problem = tiny(seed)
        kept = tuple(i for i, c in enumerate(problem.candidates) if c.gpu_type != len(problem.gpu_types) - 1)
        without = replace(
            problem,
            candidates=tuple(problem.candidates[i] for i in kept),
            illegal_pairs=frozenset(
                (kept.index(i), kept.index(j)) for i, j in problem.illegal_pairs if i in kept and j in kept
            ),
        )
        assert at_most(loss(problem), loss(without)), seed


def test_gap_and_bound_hold_on_realistic_instances() -> None:
    for seed in range(4):
        problem = realistic(seed, types=4, demand=40)
        solution = solve(problem)
        exact = solve(replace(problem, gap=0.0))
        assert solution.status is PlanStatus.OPTIMAL
        assert solution.gap <= problem.gap + 1e-5
        assert solution.bound <= exact.value * (1 + 1e-6)
        assert exact.value * (1 - 1e-6) <= solution.value <= exact.value * (1 + problem.gap + 1e-5)


def test_same_problem_gives_the_same_plan() -> None:
    problem = realistic(5)
    assert solve(problem) == solve(problem)


def test_flows_keep_the_groups_of_a_pool_equally_busy() -> None:
    for seed in range(4):
        problem = realistic(seed)
        solution = solve(problem)
        fleet = build_fleet(problem, solution.replicas)
        for phase in Phase:
            groups = [i for i in problem.indices(phase) if solution.replicas[i]]
            busy = [solution.flows[i] / fleet.usable[i] for i in groups]
            assert max(busy, default=0) <= 1 + 1e-6
            assert busy == pytest.approx(busy[:1] * len(busy))
            if groups:
                assert sum(solution.flows[i] for i in groups) == pytest.approx(problem.demand)


def test_no_replica_of_a_plan_is_superfluous() -> None:
    for seed in range(8):
        problem = realistic(seed, types=4)
        solution = solve_or_none(problem)
        if solution is None:
            continue
        fleet = build_fleet(problem, solution.replicas)
        assert tidy(problem, fleet) == fleet
        for i, n in enumerate(solution.replicas):
            if n:
                fewer = [*solution.replicas[:i], n - 1, *solution.replicas[i + 1 :]]
                assert violations(problem, fewer), problem.candidates[i].name


def test_tidy_takes_off_what_whole_nodes_hide() -> None:
    """A node of eight is paid for: the second decode replica costs nothing, and is not needed."""
    problem = replace(BASE, whole_nodes=True, demand=1.0)
    assert tidy(problem, build_fleet(problem, (1, 2, 0))).replicas == (1, 1, 0)


def tampered(solution: Solution, **changes: object) -> Solution:
    return replace(solution, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"replicas": (1, 0, 2)}, r"demand\[prefill\]"),
        ({"replicas": (2, 0, 3)}, r"limit\[d_l40s_tp2\]"),
        ({"value": 1.0}, "value: claimed 1.0"),
        ({"cost": None}, "cost: claimed None"),
        ({"gpus_paid": (0, 0)}, "gpus_paid"),
        ({"nodes": (9, 9)}, "nodes"),
        ({"flows": (2.0, 2.0, 0.0)}, r"flow\[d_h100_tp2\]"),
        ({"rate": 3.0}, "rate"),
        ({"replicas": (2, 2)}, "number of candidates"),
    ],
)
def test_tampered_answers_are_rejected(changes: dict[str, object], named: str) -> None:
    solution = solve(BASE)
    verify(BASE, solution)
    with pytest.raises(SolverError, match=named):
        verify(BASE, tampered(solution, **changes))


def _limited(**stock: int) -> Problem:
    kinds = (replace(BASE.gpu_types[0], **stock), BASE.gpu_types[1])  # type: ignore[arg-type]
    return replace(BASE, gpu_types=kinds)


@pytest.mark.parametrize(
    ("problem", "replicas", "named"),
    [
        (BASE, (2, 0, 1), "demand[decode]"),
        (BASE, (3, 0, 2), "limit[p_h100_tp4]"),
        (replace(BASE, illegal_pairs=frozenset({(0, 2)})), (2, 0, 2), "pair[p_h100_tp4,d_l40s_tp2]"),
        (_limited(max_gpus=4), (2, 0, 2), "stock[h100-sxm]"),
        (replace(_limited(max_gpus=10), whole_nodes=True), (2, 2, 0), "stock[h100-sxm]"),
        (_limited(max_gpus_by_phase={Phase.PREFILL: 4}), (2, 0, 2), "stock[h100-sxm,prefill]"),
        (replace(BASE, budget=10.0), (2, 0, 2), "budget"),
        (replace(BASE, min_replicas_per_pool=3), (2, 0, 2), "minimum[decode]"),
        (replace(BASE, spare_replicas=1), (2, 0, 1), "spare[d_l40s_tp2]"),
        (replace(BASE, max_gpu_types=1), (2, 0, 2), "gpu_types"),
        (WITH_COLOCATED, (2, 0, 2, 1), "mode"),
        (replace(WITH_COLOCATED, colocated=ColocatedUse.ONLY), (2, 0, 2, 0), "mode"),
    ],
)
def test_the_check_names_what_is_violated(problem: Problem, replicas: tuple[int, ...], named: str) -> None:
    assert named in [violation.constraint for violation in violations(problem, replicas)]


def test_the_check_accepts_a_valid_plan() -> None:
    assert violations(BASE, (2, 0, 2)) == ()


def test_owned_gpus_cost_nothing() -> None:
    owned = replace(BASE, gpu_types=(replace(BASE.gpu_types[0], price=0.0), BASE.gpu_types[1]))
    solution = solve(owned)
    assert (solution.cost, solution.value, solution.gap) == (0.0, 0.0, 0.0)


def test_unknown_prices_matter_only_where_one_is_used() -> None:
    kinds = (replace(BASE.gpu_types[0], price=None), BASE.gpu_types[1])
    solution = solve(replace(BASE, gpu_types=kinds, objective=Objective.GPUS))
    assert solution.cost is None
    with pytest.raises(SpecError, match="'h100-sxm': its price is needed"):
        replace(BASE, gpu_types=kinds)
    with pytest.raises(SpecError, match="'h100-sxm': its price is needed"):
        replace(BASE, gpu_types=kinds, objective=Objective.POWER, budget=10.0)


def test_power_and_gpus_count_what_is_paid_for() -> None:
    problem = replace(BASE, whole_nodes=True)
    gpus = solve(replace(problem, objective=Objective.GPUS))
    assert gpus.value == sum(gpus.gpus_paid) == 12  # a node of 8 for prefill, a node of 4 for decode
    power = solve(replace(problem, objective=Objective.POWER))
    assert power.value == 8 * 700 + 4 * 350


def test_throughput_needs_a_limit() -> None:
    problem = replace(BASE, objective=Objective.THROUGHPUT, demand=None)
    with pytest.raises(SpecError, match="throughput needs a stock"):
        solve(problem)
    solution = solve(replace(problem, budget=30.0))
    assert solution.rate == solution.value == 3.0  # two replicas of prefill and of decode on L40S
    assert solution.cost == 28.0


def test_no_time_without_a_plan_is_an_error() -> None:
    stocked = tuple(replace(kind, max_gpus=64) for kind in realistic(0).gpu_types)
    problem = replace(realistic(0), gpu_types=stocked, objective=Objective.THROUGHPUT, demand=None)
    with pytest.raises(SolverError, match="no plan found within the time limit of 0 s"):
        solve(problem, time_limit=0.0)


def test_no_time_with_a_plan_is_a_feasible_plan() -> None:
    solution = solve(replace(realistic(4), gap=0.0), time_limit=0.0)
    assert solution.status is PlanStatus.FEASIBLE
    assert not solution.interrupted
    assert 0 < solution.gap < 1
    assert solution.bound < solution.value


def test_infeasible_raises() -> None:
    with pytest.raises(InfeasibleError, match="budget"):
        solve(replace(BASE, budget=1.0))


def test_save_lp_writes_the_whole_program(tmp_path: Path) -> None:
    save_lp(WITH_COLOCATED, tmp_path / "a.lp")
    text = (tmp_path / "a.lp").read_text()
    assert "demand(colocated)" in text
    assert "demand(prefill)" in text


def test_unknown_solver() -> None:
    with pytest.raises(SpecError, match="solver must be 'highs' or 'cbc', got 'gurobi'"):
        solve(BASE, solver="gurobi")
