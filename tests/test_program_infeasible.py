"""What is said of a problem without a plan is true."""

from __future__ import annotations

from dataclasses import replace

import pytest
from program_brute_force import best_value
from program_golden import BASE, WITH_COLOCATED
from program_instances import realistic, tiny

from planner.errors import InfeasibleError
from planner.program import Problem, diagnose, solve
from planner.program.infeasible import relax, relax_all
from planner.program.problem import Family
from planner.specs import ColocatedUse, Objective, Phase

ENUMERABLE = tuple(family for family in Family if family is not Family.REPLICAS)


def infeasible(count: int) -> list[tuple[int, Problem]]:
    """Tiny problems without a plan, whose candidates' own limits are not to blame."""
    found = []
    for seed in range(10 * count):
        problem = tiny(seed)
        if best_value(problem) is None and best_value(relax_all(problem, ENUMERABLE)) is not None:
            found.append((seed, problem))
    return found[:count]


@pytest.mark.slow
def test_the_named_families_contradict_and_each_is_needed() -> None:
    """Minimal: all others relaxed there is no plan; one more relaxed there is."""
    checked = 0
    for seed, problem in infeasible(40):
        families = diagnose(problem).families
        if Family.REPLICAS in families:
            continue
        assert families, seed
        others = tuple(f for f in ENUMERABLE if f not in families)
        core = relax_all(problem, others)
        assert best_value(core) is None, seed
        for family in families:
            assert best_value(relax(core, family)) is not None or _needs_more_replicas(core, family), seed
        checked += 1
    assert checked > 10


def _needs_more_replicas(problem: Problem, family: Family) -> bool:
    """Whether a plan without `family` has more replicas than enumeration looks at."""
    return solve(relax(relax(problem, family), Family.REPLICAS)).value > 0


def test_stock_shortfall_is_the_smallest() -> None:
    """Stock of 4 for a prefill group of 8 and a decode group of 4 GPUs (2 on the other type are free)."""
    problem = replace(BASE, gpu_types=(replace(BASE.gpu_types[0], max_gpus=4), BASE.gpu_types[1]))
    diagnosis = diagnose(problem)
    assert diagnosis.families == (Family.STOCK,)
    assert diagnosis.binding == "GPU stock"
    assert diagnosis.shortfall == "4 GPUs (4 h100-sxm)"
    assert diagnosis.max_rate == 1.0
    assert diagnosis.suggestions == ("add 4 GPUs (4 h100-sxm)", "serve at most 1 req/s")


def test_stock_counts_whole_nodes() -> None:
    problem = replace(
        BASE, whole_nodes=True, gpu_types=(replace(BASE.gpu_types[0], max_gpus=7), BASE.gpu_types[1])
    )
    diagnosis = diagnose(problem)
    assert diagnosis.shortfall == "1 GPU (1 h100-sxm)"
    assert diagnosis.max_rate == 0.0


def test_budget_shortfall() -> None:
    diagnosis = diagnose(replace(BASE, budget=20.5))
    assert diagnosis.families == (Family.BUDGET,)
    assert diagnosis.shortfall == "7.50 USD/h of budget"  # 24 for prefill, 4 for decode on L40S
    solve(replace(BASE, budget=28.0))


def test_pool_caps_shortfall() -> None:
    kinds = (
        replace(BASE.gpu_types[0], max_gpus_by_phase={Phase.PREFILL: 5, Phase.DECODE: 0}),
        BASE.gpu_types[1],
    )
    diagnosis = diagnose(replace(BASE, gpu_types=kinds))
    assert diagnosis.families == (Family.POOL_CAPS,)
    assert diagnosis.shortfall == "3 GPUs of pool caps (3 h100-sxm for prefill)"


def test_pairs_without_numbers() -> None:
    problem = replace(BASE, illegal_pairs=frozenset({(0, 1), (0, 2)}))
    diagnosis = diagnose(problem)
    assert diagnosis.families == (Family.PAIRS,)
    assert diagnosis.shortfall == ""
    assert diagnosis.suggestions == ("give way on legal prefill and decode pairs",)


def test_spares_and_stock_together() -> None:
    kinds = (replace(BASE.gpu_types[0], max_gpus=8), BASE.gpu_types[1])
    wide = tuple(replace(c, max_replicas=9) for c in BASE.candidates)
    diagnosis = diagnose(replace(BASE, candidates=wide, gpu_types=kinds, spare_replicas=1))
    assert diagnosis.binding == "GPU stock with spare replicas"
    assert diagnosis.shortfall == "4 GPUs (4 h100-sxm)"
    assert "give way on spare replicas" in diagnosis.suggestions


def test_two_conflicts_are_both_named() -> None:
    kinds = (replace(BASE.gpu_types[0], max_gpus=4), BASE.gpu_types[1])
    diagnosis = diagnose(replace(BASE, gpu_types=kinds, illegal_pairs=frozenset({(0, 1), (0, 2)})))
    assert diagnosis.binding == "GPU stock; and apart from that legal prefill and decode pairs"
    assert diagnosis.shortfall == "4 GPUs (4 h100-sxm)"
    assert diagnosis.suggestions == ()


@pytest.mark.parametrize(
    ("phases", "colocated", "missing"),
    [
        ({Phase.PREFILL}, ColocatedUse.FORBIDDEN, "can do decode"),
        ({Phase.PREFILL}, ColocatedUse.ALLOWED, "can do decode, nor colocated"),
        (set(), ColocatedUse.FORBIDDEN, "can do prefill and decode"),
        ({Phase.PREFILL, Phase.DECODE}, ColocatedUse.ONLY, "can do colocated"),
    ],
)
def test_missing_pools(phases: set[Phase], colocated: ColocatedUse, missing: str) -> None:
    candidates = tuple(c for c in BASE.candidates if c.phase in phases)
    diagnosis = diagnose(replace(BASE, candidates=candidates, colocated=colocated))
    assert diagnosis.binding.endswith(missing)


def test_throughput_without_any_plan() -> None:
    kinds = (replace(BASE.gpu_types[0], max_gpus=3), replace(BASE.gpu_types[1], max_gpus=8))
    problem = replace(BASE, objective=Objective.THROUGHPUT, demand=None, gpu_types=kinds)
    with pytest.raises(InfeasibleError, match=r"GPU stock\n  short by: 1 GPU \(1 h100-sxm\)"):
        solve(problem)


def test_the_largest_rate_can_be_served() -> None:
    """On realistic instances with a quarter of the stock."""
    for seed in (1, 4, 5):
        problem = realistic(seed, types=3)
        kinds = tuple(replace(k, max_gpus=(k.max_gpus or 96) // 4) for k in problem.gpu_types)
        problem = replace(problem, gpu_types=kinds)
        diagnosis = diagnose(problem)
        assert Family.STOCK in diagnosis.families
        assert problem.demand is not None
        assert 0 < diagnosis.max_rate < problem.demand
        solve(replace(problem, demand=diagnosis.max_rate * (1 - 1e-6)))


def test_relaxing_is_weaker() -> None:
    for family in Family:
        assert relax(relax(WITH_COLOCATED, family), family) == relax(WITH_COLOCATED, family)


def test_a_brief_diagnosis_has_the_same_binding_and_no_numbers() -> None:
    checked = 0
    for _, problem in infeasible(6):
        whole, brief = diagnose(problem), diagnose(problem, briefly=True)
        assert (brief.binding, brief.families) == (whole.binding, whole.families)
        assert (brief.shortfall, brief.suggestions) == ("", ())
        checked += 1
    assert checked > 2
