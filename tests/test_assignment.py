"""Streams that share replicas: against enumeration, against a formulation written for the test, and on
published throughputs."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pulp
import pytest

from planner.errors import InfeasibleError, SolverError, SpecError
from planner.plan import PlanStatus
from planner.program import (
    Assignment,
    AssignmentProblem,
    Candidate,
    CapacityCurve,
    GpuType,
    Problem,
    Server,
    Stream,
    solve,
    solve_assignment,
)
from planner.program import assignment as module
from planner.program.assignment import assignment_program, assignment_violations
from planner.program.backends import LpResult, LpStatus
from planner.specs import ColocatedUse, Objective, Phase

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests/golden/aibrix_throughput.csv"
DATA = os.environ.get("PLANNER_ANCHORS")
SLICES = (1, 2, 4, 8)
SOLVERS = ("highs", "cbc")

Rates = Sequence[float] | np.ndarray
"""Of each bucket. [req/s]"""

Table = Mapping[str, tuple[float, np.ndarray]]
"""Cost of a GPU, and requests per second that it carries of each bucket alone."""


def golden() -> Table:
    """Four ranges of answers by three of prompts on two GPUs."""
    lines = [text for text in GOLDEN.read_text(encoding="utf-8").splitlines() if not text.startswith("#")]
    rows = list(csv.DictReader(lines))
    return {
        gpu: (
            float(next(r["cost"] for r in rows if r["gpu"] == gpu)),
            np.array([float(r["request_rate"]) for r in rows if r["gpu"] == gpu]),
        )
        for gpu in dict.fromkeys(r["gpu"] for r in rows)
    }


def published() -> Table:
    """The whole matrices, eight ranges of answers by five of prompts."""
    found = {}
    for path in sorted((Path(str(DATA)) / "aibrix").glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        found[document["gpu"]] = (float(document["cost"]), np.array(document["tputs"]).ravel())
    return found


def priced(table: Table, gpu: str, price: float | None) -> Table:
    """The table with another price of one GPU; None: the published one."""
    return table if price is None else {**table, gpu: (price, table[gpu][1])}


def problem_of(table: Table, rates: Rates, slice_factor: int | None) -> AssignmentProblem:
    with np.errstate(divide="ignore"):
        servers = tuple(
            Server(name=gpu, cost=cost, work=tuple((1 / carried).tolist()))
            for gpu, (cost, carried) in table.items()
        )
    streams = tuple(Stream(name=f"bucket {s}", rate=float(rate)) for s, rate in enumerate(rates))
    return AssignmentProblem(streams=streams, servers=servers, slice_factor=slice_factor)


def distributions(buckets: int) -> dict[str, np.ndarray]:
    """Synthetic workloads: shares of the buckets, short requests first."""
    rng = np.random.default_rng(7)
    place = np.arange(buckets)
    shapes = {
        "uniform": np.ones(buckets),
        "short": np.exp(-place / 3),
        "long": np.exp((place - buckets) / 4),
        "two kinds": np.where((place == 1) | (place == buckets - 3), 1.0, 0.0),
        "random": rng.dirichlet(np.full(buckets, 0.4)),
    }
    return {name: shape / shape.sum() for name, shape in shapes.items()}


# --------------------------------------------------------------------------------------------
# The known formulation, written apart: a binary for every slice and GPU type


def reference_cost(table: Table, rates: Rates, slice_factor: int) -> float:
    """Least cost when each slice of each bucket is served by one GPU type (Melange; AIBrix)."""
    model = pulp.LpProblem("melange", pulp.LpMinimize)
    gpus = list(table)
    new = getattr(model, "add_variable", pulp.LpVariable)  # the latter warns from 3.3.2 on
    count = {g: new(f"y_{k}", 0, cat="Integer") for k, g in enumerate(gpus)}
    loads: dict[str, list[object]] = {g: [] for g in gpus}
    for bucket, rate in enumerate(rates):
        for piece in range(slice_factor if rate > 0 else 0):
            chosen = []
            for k, g in enumerate(gpus):
                if table[g][1][bucket] > 0:
                    x = new(f"x_{bucket}_{piece}_{k}", cat="Binary")
                    chosen.append(x)
                    loads[g].append(rate / slice_factor / table[g][1][bucket] * x)
            model += pulp.lpSum(chosen) == 1
    for g in gpus:
        model += pulp.lpSum(loads[g]) <= count[g]
    model.setObjective(pulp.lpSum(table[g][0] * count[g] for g in gpus))
    path = pulp.PULP_CBC_CMD.pulp_cbc_path
    model.solve(pulp.COIN_CMD(path=path, msg=False, timeLimit=60, gapRel=0.0))
    assert pulp.LpStatus[model.status] == "Optimal"
    return float(pulp.value(model.objective))


def enumerated_cost(table: Table, rates: Rates, slice_factor: int) -> float:
    """Every way to give every slice to a GPU type."""
    gpus = list(table)
    ways = [
        [g for g in range(len(gpus)) if table[gpus[g]][1][bucket] > 0]
        for bucket, rate in enumerate(rates)
        for _ in range(slice_factor if rate > 0 else 0)
    ]
    buckets = [b for b, rate in enumerate(rates) for _ in range(slice_factor if rate > 0 else 0)]
    best = math.inf
    for way in itertools.product(*ways):
        load = [0.0] * len(gpus)
        for bucket, g in zip(buckets, way, strict=True):
            load[g] += rates[bucket] / slice_factor / table[gpus[g]][1][bucket]
        cost = sum(table[g][0] * math.ceil(x - 1e-9) for g, x in zip(gpus, load, strict=True))
        best = min(best, cost)
    return best


def checked(problem: AssignmentProblem, solver: str) -> Assignment:
    found = solve_assignment(problem, solver=solver)
    assert not assignment_violations(problem, found.replicas, found.shares)
    assert found.status is PlanStatus.OPTIMAL
    assert found.bound <= found.cost * (1 + 1e-9)
    return found


# --------------------------------------------------------------------------------------------
# Optimal


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("slice_factor", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_small_ones_by_enumeration(seed: int, slice_factor: int, solver: str) -> None:
    rng = np.random.default_rng(seed)
    buckets = 4 if slice_factor < 3 else 3
    gpus = 2 if slice_factor > 1 else 3
    table = {
        f"g{k}": (round(float(rng.uniform(0.3, 4)), 2), rng.uniform(0.5, 9, size=buckets))
        for k in range(gpus)
    }
    for bucket in range(buckets):  # some GPUs cannot serve some buckets
        if rng.random() < 0.3:
            table[f"g{rng.integers(gpus)}"][1][bucket] = 0.0
    rates = rng.uniform(0, 8, size=buckets)
    found = checked(problem_of(table, rates, slice_factor), solver)
    assert found.cost == pytest.approx(enumerated_cost(table, rates, slice_factor))


@pytest.mark.parametrize("slice_factor", SLICES)
@pytest.mark.parametrize("shape", list(distributions(12)))
def test_published_throughputs(shape: str, slice_factor: int) -> None:
    """AIBrix's A100 and A40 on part of its buckets: the optimum of the known formulation, by both solvers."""
    for rate, price in ((6.0, None), (60.0, None), (6.0, 0.75), (60.0, 0.75)):
        table = priced(golden(), "a40", price)
        rates = rate * distributions(12)[shape]
        problem = problem_of(table, rates, slice_factor)
        expected = reference_cost(table, rates, slice_factor)
        for solver in SOLVERS:
            assert checked(problem, solver).cost == pytest.approx(expected)


@pytest.mark.shared
@pytest.mark.skipif(DATA is None, reason="PLANNER_ANCHORS names no folder: data beside the checkout")
@pytest.mark.parametrize("slice_factor", SLICES)
@pytest.mark.parametrize("price", [None, 0.75])
@pytest.mark.parametrize("shape", list(distributions(40)))
def test_whole_published_matrices(shape: str, price: float | None, slice_factor: int) -> None:
    """All 40 buckets; those that no GPU serves get no requests."""
    table = priced(published(), "simulator-llama2-7b-a40", price)
    assert len(table) == 2
    served = np.any([carried > 0 for _, carried in table.values()], axis=0)
    shares = distributions(40)[shape] * served
    rates = 50 * shares / shares.sum()
    expected = reference_cost(table, rates, slice_factor)
    for solver in SOLVERS:
        assert checked(problem_of(table, rates, slice_factor), solver).cost == pytest.approx(expected)


def test_finer_slices_are_never_dearer() -> None:
    """Slices in halves can do what whole ones do, and streams cut at will what all of them do."""
    table = golden()
    for rates in (30 * shares for shares in distributions(12).values()):
        costs = [checked(problem_of(table, rates, k), "highs").cost for k in (*SLICES, None)]
        assert all(finer <= coarser + 1e-9 for coarser, finer in itertools.pairwise(costs))


def test_mixing_types_pays_off() -> None:
    """What the formulation is for. At AIBrix's costs its A40 wins everywhere; at another price for it both
    together are cheaper than either alone."""
    table = priced(golden(), "a40", 0.75)
    gains = []
    for rates in (60 * shares for shares in distributions(12).values()):
        both = checked(problem_of(table, rates, 8), "highs").cost
        alone = []
        for gpu in table:
            try:
                alone.append(checked(problem_of({gpu: table[gpu]}, rates, 8), "highs").cost)
            except InfeasibleError:
                continue
        assert both <= min(alone) + 1e-9
        gains.append(min(alone) - both)
    assert max(gains) > 0


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("seed", range(5))
def test_one_stream_is_the_colocated_program(seed: int, solver: str) -> None:
    """Given throughputs, one stream cut at will: the planner's program, colocated, single GPUs paid for."""
    rng = np.random.default_rng(seed)
    rates, costs = rng.uniform(0.5, 9, size=4), np.round(rng.uniform(0.3, 4, size=4), 2)
    demand = float(rng.uniform(5, 60))
    table = {f"g{k}": (float(costs[k]), rates[k : k + 1]) for k in range(4)}
    found = checked(problem_of(table, [demand], None), solver)
    planned = solve(
        Problem(
            candidates=tuple(
                Candidate(
                    name=f"g{k}",
                    phase=Phase.COLOCATED,
                    gpu_type=k,
                    gpus=1,
                    curve=CapacityCurve(starts=(1,), per_replica=(float(rates[k]),)),
                    max_replicas=500,
                )
                for k in range(4)
            ),
            gpu_types=tuple(
                GpuType(name=f"g{k}", price=float(costs[k]), power=0.0, node_size=1) for k in range(4)
            ),
            demand=demand,
            objective=Objective.COST,
            colocated=ColocatedUse.ONLY,
            gap=0.0,
        ),
        solver=solver,
    )
    assert found.cost == pytest.approx(planned.value)


def test_utilization_is_kept_below_its_limit() -> None:
    table = {"g": (1.0, np.array([10.0, 5.0]))}
    problem = problem_of(table, [20.0, 10.0], 4)
    assert checked(problem, "highs").replicas == (4,)  # exactly four at full load
    assert checked(replace(problem, utilization=0.8), "highs").replicas == (5,)


# --------------------------------------------------------------------------------------------
# No answer


def test_a_stream_that_nobody_serves_is_named() -> None:
    with pytest.raises(InfeasibleError, match="no replica serves stream bucket 1"):
        solve_assignment(problem_of({"g": (1.0, np.array([1.0, 0.0]))}, [1.0, 1.0], 2))
    silent = problem_of({"g": (1.0, np.array([1.0, 0.0]))}, [1.0, 0.0], 2)
    assert checked(silent, "highs").shares == ((1.0,), (0.0,))


@pytest.mark.parametrize("solver", SOLVERS)
def test_too_few_replicas_say_how_much_they_carry(solver: str) -> None:
    problem = problem_of({"g": (1.0, np.array([10.0, 5.0]))}, [20.0, 10.0], None)
    scarce = replace(problem, servers=(replace(problem.servers[0], max_replicas=3),))
    with pytest.raises(InfeasibleError) as refused:
        solve_assignment(scarce, solver=solver)
    assert refused.value.shortfall.startswith("75 %") or refused.value.shortfall.startswith("74.9 %")


def test_slices_may_be_in_the_way() -> None:
    """Two replicas of different types, each for half of a stream that may not be cut."""
    servers = tuple(Server(name=n, cost=1.0, work=(1.0,), max_replicas=1) for n in "ab")
    whole = AssignmentProblem(streams=(Stream(name="s", rate=2.0),), servers=servers, slice_factor=1)
    with pytest.raises(InfeasibleError, match="slices that stay whole"):
        solve_assignment(whole)
    assert checked(replace(whole, slice_factor=2), "highs").replicas == (1, 1)


def test_answers_of_a_solver_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of({"a": (1.0, np.array([4.0])), "b": (1.0, np.array([5.0]))}, [10.0], 2)
    program = assignment_program(problem)
    names = [c.name for c in program.columns]

    def wrong(*_args: object, **_more: object) -> LpResult:
        values = [0.0] * len(names)
        values[names.index("part[bucket 0,a]")] = 2.0  # 2.5 replicas busy, and one paid for
        values[names.index("replicas[a]")] = 1.0
        return LpResult(status=LpStatus.OPTIMAL, values=tuple(values), bound=1.0)

    monkeypatch.setattr(module, "solve_lp", wrong)
    with pytest.raises(SolverError, match=r"busy\[a\]: load 2.5 on 1 replicas"):
        solve_assignment(problem)


@pytest.mark.parametrize(
    ("replicas", "shares", "broken"),
    [
        ((3, 0), ((1.0, 0.0),), ()),
        ((2, 0), ((1.0, 0.0),), ("busy[a]",)),
        ((3, 1), ((0.5, 0.4),), ("served[bucket 0]", "part[bucket 0,b]")),
        ((3, 9), ((0.5, 0.5),), ("replicas[b]",)),
        ((3, 1), ((0.75, 0.25),), ("part[bucket 0,a]", "part[bucket 0,b]")),
    ],
)
def test_the_check_names_what_is_broken(
    replicas: tuple[int, ...], shares: tuple[tuple[float, ...], ...], broken: tuple[str, ...]
) -> None:
    problem = problem_of({"a": (1.0, np.array([4.0])), "b": (1.0, np.array([5.0]))}, [10.0], 2)
    problem = replace(problem, servers=(problem.servers[0], replace(problem.servers[1], max_replicas=8)))
    assert tuple(v.constraint for v in assignment_violations(problem, replicas, shares)) == broken


@pytest.mark.parametrize(
    "changes",
    [
        {"slice_factor": 0},
        {"utilization": 1.5},
        {"gap": 1.0},
        {"streams": (Stream(name="s", rate=-1.0),)},
        {"streams": (Stream(name="s", rate=1.0), Stream(name="s", rate=1.0))},
        {"servers": (Server(name="g", cost=-1.0, work=(1.0,)),)},
        {"servers": (Server(name="g", cost=1.0, work=(0.0,)),)},
        {"servers": (Server(name="g", cost=1.0, work=(1.0,), max_replicas=-1),)},
    ],
)
def test_problems_that_make_no_sense_are_refused(changes: dict[str, object]) -> None:
    sound = problem_of({"g": (1.0, np.array([1.0]))}, [1.0], 2)
    with pytest.raises(SpecError, match="assignment: "):
        replace(sound, **changes)  # type: ignore[arg-type]
