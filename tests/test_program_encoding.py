"""Rows against the decision they stand for, and their text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from program_golden import BASE, FOLDER, PROBLEMS
from program_instances import curve, realistic, tiny

from planner.errors import SpecError
from planner.program import Candidate, CapacityCurve, GpuType
from planner.program.backends import write_lp
from planner.program.check import violations
from planner.program.encoding import encode
from planner.program.fleet import build_fleet, loss
from planner.program.problem import Piece
from planner.program.rows import Draft
from planner.specs import Objective, Phase


@pytest.mark.parametrize("family", PROBLEMS)
def test_golden_program(family: str, tmp_path: Path) -> None:
    """Rewritten by ``python tests/program_golden.py``; review the difference as mathematics."""
    write_lp(encode(PROBLEMS[family]).lp, tmp_path / "a.lp")
    assert (tmp_path / "a.lp").read_text() == (FOLDER / f"{family}.lp").read_text()


def test_every_golden_file_has_its_program() -> None:
    assert {path.stem for path in FOLDER.glob("*.lp")} == set(PROBLEMS)


def test_rows_hold_exactly_where_the_check_finds_nothing() -> None:
    """Rows and post-check are written apart; over random decisions they agree."""
    rng = np.random.default_rng(0)
    valid = 0
    for seed in range(150):
        problem = tiny(seed)
        encoding = encode(problem)
        for _ in range(60):
            on = rng.random(len(problem.candidates)) < 0.6
            replicas = [
                int(rng.integers(0, c.max_replicas + 1)) * int(u)
                for c, u in zip(problem.candidates, on, strict=True)
            ]
            if any(v.constraint.startswith(("spare", "mode")) for v in violations(problem, replicas)):
                continue  # not expressible in columns
            rows_hold = not encoding.lp.violated(encoding.values(replicas), tolerance=1e-9)
            carries = build_fleet(problem, replicas).carried > 0
            assert rows_hold == (not violations(problem, replicas)) or not carries, (seed, replicas)
            valid += rows_hold and carries
    assert valid > 300


def test_a_decision_survives_its_columns() -> None:
    rng = np.random.default_rng(1)
    for seed in range(20):
        problem = replace(realistic(seed), spare_replicas=seed % 3)
        encoding = encode(problem)
        replicas = [int(rng.integers(5, 600)) for _ in problem.candidates]
        replicas = [n if problem.usable(i, n) > 0 else 0 for i, n in enumerate(replicas)]
        assert encoding.replicas(encoding.values(replicas)) == tuple(replicas)


def test_the_objective_of_the_columns_is_that_of_the_fleet() -> None:
    rng = np.random.default_rng(2)
    for seed in range(60):
        problem = tiny(seed)
        if problem.objective is Objective.THROUGHPUT:
            continue
        encoding = encode(problem)
        replicas = [int(rng.integers(0, c.max_replicas + 1)) for c in problem.candidates]
        replicas = [n if problem.usable(i, n) > 0 else 0 for i, n in enumerate(replicas)]
        value = encoding.lp.objective(encoding.values(replicas)) * encoding.unit
        fleet = build_fleet(problem, replicas)
        assert value == pytest.approx(loss(problem.objective, fleet.value))


def test_all_rows_are_named_once() -> None:
    lp = encode(replace(realistic(17), budget=1e4, max_gpu_types=3, min_replicas_per_pool=2)).lp
    names = [row.name for row in lp.rows]
    assert len(set(names)) == len(names)
    columns = [column.name for column in lp.columns]
    assert len(set(columns)) == len(columns)


def test_violated_names_rows_and_columns() -> None:
    draft = Draft("small")
    x = draft.column("x", 0, 3)
    draft.row("twice", [(x, 1.0), (x, 1.0)], upper=4)
    lp = draft.finish()
    assert lp.rows[0].terms == ((x, 2.0),)
    assert lp.violated([2.0]) == ()
    assert lp.violated([3.0]) == ("twice",)
    assert lp.violated([4.0]) == ("x", "twice")
    assert lp.violated([1.5]) == ("x",)


# Curves


def test_capacity_is_the_rate_of_the_range_times_n() -> None:
    steps = CapacityCurve(starts=(1, 2, 5), per_replica=(0.0, 1.5, 2.0))
    assert [steps.capacity(n) for n in (-1, 0, 1, 2, 4, 5, 7)] == [0, 0, 0, 3.0, 6.0, 10.0, 14.0]


def test_pieces_leave_out_what_carries_nothing_and_shift_by_the_spares() -> None:
    steps = CapacityCurve(starts=(1, 2, 5), per_replica=(0.0, 1.5, 2.0))
    assert list(steps.pieces(losses=(0,), limit=9)) == [
        Piece(first=2, last=4, capacity={0: 3.0}, slope={0: 1.5}),
        Piece(first=5, last=9, capacity={0: 10.0}, slope={0: 2.0}),
    ]
    assert list(steps.pieces(losses=(1,), limit=5)) == [
        Piece(first=3, last=5, capacity={1: 3.0}, slope={1: 1.5})
    ]
    assert list(steps.pieces(losses=(0, 2), limit=5)) == [
        Piece(first=2, last=2, capacity={0: 3.0, 2: 0.0}, slope={0: 1.5, 2: 0.0}),
        Piece(first=3, last=3, capacity={0: 4.5, 2: 0.0}, slope={0: 1.5, 2: 0.0}),
        Piece(first=4, last=4, capacity={0: 6.0, 2: 3.0}, slope={0: 1.5, 2: 1.5}),
        Piece(first=5, last=5, capacity={0: 10.0, 2: 4.5}, slope={0: 2.0, 2: 1.5}),
    ]


@pytest.mark.parametrize("losses", [(0,), (1,), (3,), (0, 1), (1, 0, 4)])
def test_pieces_are_the_capacity_whatever_is_lost(losses: tuple[int, ...]) -> None:
    steps = curve(1.3, 0.7)
    pieces = list(steps.pieces(losses=losses, limit=60))
    for n in range(61):
        found = [p for p in pieces if p.first <= n <= p.last]
        assert len(found) == (steps.capacity(n - losses[0]) > 0)
        for p in found:
            for lost in losses:
                value = p.capacity[lost] + p.slope[lost] * (n - p.first)
                assert value == pytest.approx(steps.capacity(n - lost))


@pytest.mark.parametrize(
    ("starts", "rates", "message"),
    [
        ((), (), "at least one"),
        ((1, 2), (1.0,), "as many rates as ranges"),
        ((2,), (1.0,), "ascend from 1"),
        ((1, 3, 3), (1.0, 1.0, 1.0), "ascend from 1"),
        ((1,), (float("nan"),), "finite"),
        ((1, 2), (1.0, 0.9), "never falls"),
    ],
)
def test_bad_curves(starts: tuple[int, ...], rates: tuple[float, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        CapacityCurve(starts=starts, per_replica=rates)


def _with_candidate(**changes: object) -> dict[str, object]:
    first: Candidate = replace(BASE.candidates[0], **changes)  # type: ignore[arg-type]
    return {"candidates": (first, *BASE.candidates[1:])}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"demand": None}, "exactly when the objective is not throughput"),
        ({"objective": Objective.THROUGHPUT}, "exactly when the objective is not throughput"),
        ({"demand": float("inf")}, "demand must be a finite rate"),
        ({"gap": 1.0}, "gap must lie in"),
        ({"min_replicas_per_pool": 0}, "min_replicas_per_pool must be >= 1"),
        ({"illegal_pairs": frozenset({(1, 0)})}, "a prefill candidate, then a decode candidate"),
        ({"illegal_pairs": frozenset({(0, 9)})}, "no such candidate"),
        (_with_candidate(name="d_h100_tp2"), "different names"),
        (_with_candidate(gpu_type=7), "no GPU type number 7"),
        (_with_candidate(gpus=0), "gpus must be >= 1"),
        (
            {"gpu_types": (replace(BASE.gpu_types[0], node_size=0), BASE.gpu_types[1])},
            "node_size must be >= 1",
        ),
    ],
)
def test_bad_problems(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        replace(BASE, **changes)  # type: ignore[arg-type]


def test_all_faults_of_a_problem_come_in_one_error() -> None:
    with pytest.raises(SpecError, match=r"demand must be.*gap must lie"):
        replace(BASE, demand=-1.0, gap=2.0)


def test_phases_and_types_are_found_by_index() -> None:
    assert BASE.indices(Phase.DECODE) == (1, 2)
    assert isinstance(BASE.gpu_types[0], GpuType)
    assert (BASE.gpu_block(0), replace(BASE, whole_nodes=True).gpu_block(0)) == (1, 8)
