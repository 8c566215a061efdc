"""Grids of what-if solves: keys and values, points, the journal, workers, tables."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SCENARIO, Runner

from planner.candidates import forget
from planner.documents.plan import plan_to_document
from planner.documents.scenario import scenario_from_tree
from planner.documents.tree import changed
from planner.documents.yaml_text import dump_yaml, parse_tree
from planner.errors import SolverError, SpecError, StoppedError
from planner.search import SolveOptions
from planner.whatif import frames
from planner.whatif import sweep as sweeping
from planner.whatif.grid import grid_of, path_of, read_point, value_key, values_of
from planner.whatif.journal import Journal, journal_of
from planner.whatif.sweep import Sweep, point_key, sweep
from planner.whatif.workers import Workers
from planner.workflow import solve

ROOT = Path(__file__).parents[1]
CHAT = ROOT / "examples" / "llama-70b-chat.yaml"
SMALL: dict[str, Any] = SCENARIO | {
    "workload": {"request_rate": 60, "input_tokens": 1000, "output_tokens": 200},
    "options": {"whole_nodes": False, "max_tp": 1, "max_pp": 1},
}
HERE = Workers(jobs=1)
LIMITS = {"slo.tpot_ms.p99": [20, 40], "workload.request_rate": [20, 60]}
VARY = ("--vary", "slo.tpot_ms.p99=20,40", "--vary", "workload.request_rate=20,60")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(dump_yaml(SMALL))
    return path


def tree_of(document: dict[str, Any]) -> Any:
    return parse_tree(dump_yaml(document), "s.yaml")[0]


# --------------------------------------------------------------------------------------------
# Values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("20,30", (20, 30)),
        ("20:50:10", (20, 30, 40, 50)),
        ("20:55:10", (20, 30, 40, 50)),
        ("0.1:0.4:0.1", (0.1, 0.2, 0.3, 0.4)),
        ("1:2:0.5", (1.0, 1.5, 2.0)),
        ("40:20:-10", (40, 30, 20)),
        ("5:80:x2", (5, 10, 20, 40, 80)),
        ("5:79:x2", (5, 10, 20, 40)),
        ("80:20:x0.5", (80.0, 40.0, 20.0)),
        ("0.1:1:x1.5", (0.1, 0.15, 0.225, 0.3375, 0.50625, 0.759375)),
        ("7:7:1", (7,)),
        ("5,10:20:5,1e2", (5, 10, 15, 20, 100.0)),
        ("true,false,null", (True, False, None)),
        ("a100-80gb-sxm", ("a100-80gb-sxm",)),
        ("'12',\"a,b\"", ("12", "a,b")),
        ("[1, 2],[1, 2, 4]", ([1, 2], [1, 2, 4])),
        ("{mean: 500, cv: 1}", ({"mean": 500, "cv": 1},)),
    ],
)
def test_values_as_they_are_typed(text: str, values: tuple[Any, ...]) -> None:
    found = values_of("k", text)
    assert found == values
    assert [type(v) for v in found] == [type(v) for v in values]


def test_decimal_ranges_have_no_noise() -> None:
    assert [repr(v) for v in values_of("k", "0.05:0.35:0.1")] == ["0.05", "0.15", "0.25", "0.35"]
    assert len(values_of("k", "0:1:0.001")) == 1001


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("20:100", "the range 20:100 has no step"),
        ("20:10:1", "never gets from 20 to 10"),
        ("10:20:0", "never gets from 10 to 20"),
        ("5:80:x1", "never gets from 5 to 80"),
        ("80:5:x2", "never gets from 80 to 5"),
        ("0:80:x2", "never gets from 0 to 80"),
        ("1:1e9:1", "has more than 100,000 values"),
        ("[1", "is no list of values"),
        ("1: 2, {", "is no list of values"),
    ],
)
def test_values_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        values_of("k", text)


def test_values_are_told_apart_as_files_do() -> None:
    assert value_key(5) == value_key(5.0)
    assert len({value_key(v) for v in (1, "1", True, None, [1], {"a": 1})}) == 6
    assert point_key((5, "x", None)) == '[5, "x", null]'


# --------------------------------------------------------------------------------------------
# Keys


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("slo.tpot_ms.p99", ("slo", "tpot_ms", "p99")),
        ("fleet.a100-80gb-sxm.max_gpus", ("fleet", 1, "max_gpus")),
        ("fleet.0.max_gpus", ("fleet", 0, "max_gpus")),
        ("fleet[1].max_gpus", ("fleet", 1, "max_gpus")),
        ("options.headroom", ("options", "headroom")),
    ],
)
def test_keys_are_paths(key: str, path: tuple[str | int, ...]) -> None:
    assert path_of(tree_of(SMALL), key) == path


def test_entries_with_one_name_go_by_number() -> None:
    twice = SMALL | {"fleet": [{**SMALL["fleet"][0], "zone": zone} for zone in ("a", "b")]}
    with pytest.raises(SpecError, match=r"has 2 entries called h100-sxm \(write fleet\[0\] or fleet\[1\]\)"):
        path_of(tree_of(twice), "fleet.h100-sxm.max_gpus")


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({}, "nothing is varied"),
        ({"slo.tpot_ms.p9": [20]}, r"slo.tpot_ms.p9=20: unknown key \(did you mean p99\?\)"),
        ({"sloo.tpot_ms.p99": [20]}, r"sloo: unknown key \(did you mean slo\?\)"),
        ({"slo..p99": [20]}, "is no key"),
        ({"fleet.h100.max_gpus": [8]}, r"unknown entry of fleet 'h100' \(did you mean h100-sxm\?\)"),
        ({"fleet.2.max_gpus": [8]}, "fleet has 2 entries, and the first is 0"),
        ({"workload.input_tokens.mean": [8]}, "is no key: what it lies in is one value"),
        ({"slo.tpot_ms.p99": []}, "no value is given"),
        ({"slo.tpot_ms.p99": [20, 20.0]}, "20 is given twice"),
        ({"slo.tpot_ms.p99": [20, "x"]}, "slo.tpot_ms.p99=x: must be a number, got 'x'"),
        ({"slo.tpot_ms.p99": [20, 0]}, "slo.tpot_ms.p99=0: must be > 0, got 0"),
        ({"options.max_tp": [1, 2.5]}, "options.max_tp=2.5: must be a whole number"),
        ({"engine": ["vlm"]}, r"must be one of .* \(did you mean vllm\?\)"),
        ({"fleet.0.gpu": ["h100-sx"]}, "unknown GPU 'h100-sx': did you mean h100-sxm"),
        ({"slo": [{}], "slo.tpot_ms.p99": [20]}, "lies within, slo, which is varied too"),
        ({"fleet.0.max_gpus": [8], "fleet.h100-sxm.max_gpus": [8]}, "which is varied too"),
        ({"slo.tpot_ms.p99": range(1, 1001), "workload.request_rate": range(1, 1001)}, "1,000,000 points"),
    ],
)
def test_keys_and_values_that_are_none_are_refused_before_anything_is_solved(
    vary: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        grid_of(tree_of(SMALL), vary)


def test_a_file_that_is_wrong_itself_is_refused_with_its_problems() -> None:
    with pytest.raises(SpecError, match=r"line \d+: objective: must be one of"):
        grid_of(tree_of(SMALL | {"objective": "profit"}), {"slo.tpot_ms.p99": [20]})


def test_a_value_that_some_point_can_use_is_left_to_the_points() -> None:
    grid = grid_of(
        tree_of(SMALL),
        {"options.routing": ["least_loaded", "length_split"], "options.max_length_buckets": [3]},
    )
    assert len(grid.points()) == 2


def test_points_are_in_the_order_of_keys_and_solved_by_what_is_dear() -> None:
    grid = grid_of(tree_of(SMALL), {"workload.request_rate": "10,20", "slo.tpot_ms.p99": "30,40"})
    assert grid.points() == ((10, 30), (10, 40), (20, 30), (20, 40))
    assert [grid.points()[i] for i in grid.order()] == [(10, 30), (20, 30), (10, 40), (20, 40)]


def test_numbers_of_numpy_are_values() -> None:
    numpy = pytest.importorskip("numpy")
    grid = grid_of(tree_of(SMALL), {"slo.tpot_ms.p99": numpy.array([30, 40])})
    assert grid.axes[0].values == (30, 40)
    assert type(grid.axes[0].values[0]) is int


def test_trees_with_another_value_keep_the_rest_and_their_lines() -> None:
    base = tree_of(SMALL)
    root = changed(base.root, ("slo", "tpot_ms", "p99"), 30)
    root = changed(root, ("options", "confidence"), 0.9)
    root = changed(root, ("fleet", 1, "max_gpus"), None)
    assert root.value["slo"] == {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 30}}
    assert root.value["options"]["confidence"] == 0.9
    assert "max_gpus" not in root.value["fleet"][1]
    assert root.value["fleet"][0] == SMALL["fleet"][0]
    assert root.children["slo"].children["tpot_ms"].children["p99"].line == base.line(
        ("slo", "tpot_ms", "p99")
    )
    assert base.raw == SMALL  # the original is as it was
    for path in (("model", "x"), ("fleet", 2, "gpu"), ("slo", 0)):
        with pytest.raises(KeyError):
            changed(base.root, path, 1)


def test_a_point_is_the_file_with_its_values() -> None:
    base = tree_of(SMALL)
    grid = grid_of(base, {"slo.tpot_ms.p99": [30], "fleet.h100-sxm.max_gpus": [None]})
    document = json.loads(json.dumps(SMALL))
    document["slo"]["tpot_ms"]["p99"] = 30
    del document["fleet"][0]["max_gpus"]
    assert read_point(base, grid, (30, None)).scenario == scenario_from_tree(tree_of(document)).scenario


# --------------------------------------------------------------------------------------------
# Points


def test_every_point_is_what_solve_says(small: Path) -> None:
    found = sweep(small, LIMITS, workers=HERE)
    base = parse_tree(small.read_text(), str(small), small.parent)[0]
    grid = grid_of(base, LIMITS)
    assert [(r["slo.tpot_ms.p99"], r["workload.request_rate"]) for r in found.points] == list(grid.points())
    for row, values in zip(found.rows(), grid.points(), strict=True):
        plan = solve(read_point(base, grid, values), SolveOptions(verify=False))
        colocated = next(a.cost for a in plan.alternatives if a.name == "best colocated")
        assert row["cost_per_hour"] == pytest.approx(plan.cost, rel=1e-9)
        assert row["colocated_cost_per_hour"] == pytest.approx(colocated, rel=1e-9)
        assert row["gpus"] == plan.num_gpus
        assert row["gap"] == pytest.approx(plan.gap, abs=1e-9)
        assert row["ttft_p99_planned_ms"] == pytest.approx(1e3 * plan.predictions[0].ttft.planned.p99)
        assert row["tpot_p99_ms"] == pytest.approx(1e3 * plan.predictions[0].tpot.expected.p99)
        assert row["status"] == "optimal"
        assert row["verified"] is None


def test_plans_are_the_same_whatever_was_kept_before() -> None:
    base = tree_of(SMALL | {"options": SMALL["options"] | {"max_pp": 2}})
    vary = {"slo.ttft_ms.p99": [500, 1000], "slo.tpot_ms.p99": [40, 30], "workload.request_rate": [20, 90]}
    grid = grid_of(base, vary)

    def plan(values: tuple[Any, ...]) -> dict[str, Any]:
        solved = solve(read_point(base, grid, values), SolveOptions(verify=False, alternatives=False))
        return plan_to_document(solved, reproducible=True)

    points = [grid.points()[i] for i in (7, 1)]
    forget()
    kept = [plan(values) for values in (*grid.points(), *points)][-len(points) :]
    fresh = []
    for values in points:
        forget()
        fresh.append(plan(values))
    assert kept == fresh


def test_fleets_are_told_by_phase() -> None:
    rows = sweep(CHAT, {"slo.tpot_ms.p99": [20], "workload.request_rate": [10]}, workers=HERE).rows()
    assert rows[0]["fleet"].startswith("prefill 3xh100-sxm TP2; decode ")
    assert rows[0]["disaggregated"] is True


def test_points_without_a_plan_say_why(small: Path) -> None:
    vary = {"workload.request_rate": [20, 9000], "slo.tpot_ms.p99": [40, 2]}
    found = sweep(small, vary, workers=HERE)
    told = {(r["workload.request_rate"], r["slo.tpot_ms.p99"]): r for r in found.points}
    assert told[20, 40]["status"] == "optimal"
    assert set(told[9000, 40]) == {"workload.request_rate", "slo.tpot_ms.p99", "status", "reason"}
    assert told[9000, 40]["status"] == "infeasible"
    assert told[9000, 40]["reason"].startswith("GPU stock")
    assert told[20, 2]["reason"] == "p99 TPOT <= 2 ms"
    assert found.counts == {"optimal": 1, "infeasible": 3}
    assert found.rows()[1]["cost_per_hour"] is None


def test_values_that_do_not_go_together_are_noted_at_their_points(small: Path) -> None:
    vary = {"options.routing": ["least_loaded", "length_split"], "options.max_length_buckets": [2]}
    found = sweep(small, vary, workers=HERE)
    assert found.points[0]["status"] == "invalid"
    assert found.points[0]["reason"] == (
        "options.max_length_buckets: counts only with routing length_split, got 2 "
        "(add routing: length_split, or leave it out)"
    )
    assert found.points[1]["status"] == "optimal"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SolverError("highs failed on the program\nmore"), "highs failed on the program"),
        (ZeroDivisionError("division by zero"), "internal error: ZeroDivisionError: division by zero"),
    ],
)
def test_a_point_that_fails_does_not_end_the_sweep(
    small: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def failing(loaded: Any, options: Any) -> Any:
        if loaded.scenario.services[0].workload.request_rate == 20:
            raise error
        return solve(loaded, options)

    monkeypatch.setattr(sweeping, "solve", failing)
    found = sweep(small, {"workload.request_rate": [20, 60]}, workers=HERE)
    assert [r["status"] for r in found.points] == ["failed", "optimal"]
    assert found.points[0]["reason"] == reason


@pytest.mark.parametrize("form", ["path", "text path", "scenario", "loaded", "plan"])
def test_a_sweep_of_any_form_of_a_scenario_is_the_same(
    small: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.documents.scenario import load_scenario, read_scenario

    vary = {"slo.tpot_ms.p99": [40]}
    sources: dict[str, Callable[[], Any]] = {
        "path": lambda: small,
        "text path": lambda: str(small),
        "scenario": lambda: load_scenario(small),
        "loaded": lambda: read_scenario(small),
        "plan": lambda: solve(small, SolveOptions(verify=False, alternatives=False)),
    }
    assert sweep(sources[form](), vary, workers=HERE).points == sweep(small, vary, workers=HERE).points


def test_a_scenario_that_no_file_says_is_refused(small: Path) -> None:
    from dataclasses import replace

    from planner.documents.scenario import load_scenario

    with pytest.raises(SpecError, match=r"not as a file says it.*\(give its path\)"):
        sweep(replace(load_scenario(small), budget=100.0), LIMITS, workers=HERE)


def test_a_key_that_is_a_column_is_refused(small: Path) -> None:
    with pytest.raises(SpecError, match="fleet is a column of the table"):
        sweep(small, {"fleet": [SMALL["fleet"]]}, workers=HERE)


# --------------------------------------------------------------------------------------------
# The journal


class Stopped:
    """Stands for the search, and is interrupted after some points."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, loaded: Any, options: Any) -> Any:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return solve(loaded, options)


def test_a_sweep_goes_on_where_it_was(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.journal"
    whole = sweep(small, LIMITS, workers=HERE)
    monkeypatch.setattr(sweeping, "solve", Stopped(3))
    with pytest.raises(StoppedError, match=r"interrupted after 3 of 4 points; .*t\.journal keeps them"):
        sweep(small, LIMITS, workers=HERE, journal=path)
    again = Stopped(1)
    monkeypatch.setattr(sweeping, "solve", again)
    started: list[tuple[int, int]] = []
    found = sweep(
        small, LIMITS, workers=HERE, journal=path, on_start=lambda known, all_: started.append((known, all_))
    )
    assert started == [(3, 4)]
    assert again.left == 0
    assert found == whole
    assert len(path.read_bytes().splitlines()) == 1 + 4  # a head, and no point twice


@pytest.mark.parametrize("torn", [1, 7, 60])
def test_a_torn_last_line_is_cut_off(small: Path, tmp_path: Path, torn: int) -> None:
    path = tmp_path / "t.journal"
    whole = sweep(small, LIMITS, workers=HERE, journal=path)
    kept = path.read_bytes()
    path.write_bytes(kept[:-torn])
    started: list[int] = []
    found = sweep(
        small, LIMITS, workers=HERE, journal=path, on_start=lambda known, _all: started.append(known)
    )
    assert started == [3]
    assert found == whole
    assert sorted(path.read_bytes().splitlines()) == sorted(kept.splitlines())


def test_a_journal_of_another_sweep_is_refused(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.journal"
    vary = {"slo.tpot_ms.p99": [40]}
    sweep(small, vary, workers=HERE, journal=path)
    before = path.read_bytes()
    with pytest.raises(
        SpecError, match=r"is of another sweep: another keys and values \(--fresh starts anew"
    ):
        sweep(small, {"slo.tpot_ms.p99": [50]}, workers=HERE, journal=path)
    verify = sweeping.SweepOptions(gap=0.01)
    with pytest.raises(SpecError, match="another options"):
        sweep(small, vary, workers=HERE, journal=path, options=verify)
    small.write_text(dump_yaml(SMALL | {"budget_per_hour": 1000}))
    with pytest.raises(SpecError, match="another scenario"):
        sweep(small, vary, workers=HERE, journal=path)
    assert path.read_bytes() == before
    found = sweep(small, vary, workers=HERE, journal=path, fresh=True)
    assert found.counts == {"optimal": 1}
    assert path.read_bytes() != before


def test_a_journal_of_another_version_is_refused(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.journal"
    sweep(small, {"slo.tpot_ms.p99": [40]}, workers=HERE, journal=path)
    monkeypatch.setattr(sweeping, "__version__", "99")
    with pytest.raises(SpecError, match="another planner"):
        sweep(small, {"slo.tpot_ms.p99": [40]}, workers=HERE, journal=path)


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"point": 1}\n', b"[]\n"])
def test_a_damaged_journal_is_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "t.journal"
    with Journal.opened(path, {"a": 1}) as journal:
        journal.add("[1]", {"status": "optimal"})
    path.write_bytes(path.read_bytes() + line + b'{"point": "[2]", "row": {}}\n')
    with pytest.raises(
        SpecError, match=r"is damaged: line 3 is no line of a journal \(--fresh starts anew\)"
    ):
        Journal.opened(path, {"a": 1})


def test_a_journal_in_use_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    path = tmp_path / "t.journal"
    with (
        Journal.opened(path, {"a": 1}),
        pytest.raises(SpecError, match="is being written by another sweep"),
    ):
        Journal.opened(path, {"a": 1}, fresh=True)
    Journal.opened(path, {"a": 1}).close()


def test_a_journal_is_forced_to_the_disk_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[int] = []
    monkeypatch.setattr(os, "fsync", forced.append)
    with Journal.opened(tmp_path / "t.journal", {"a": 1}) as journal:
        for i in range(200):
            journal.add(f"[{i}]", {"status": "optimal"})
        assert 3 <= len(forced) < 20
        on_disk = (tmp_path / "t.journal").read_bytes()
        assert len(on_disk.splitlines()) == 201  # a killed process loses nothing
    assert forced


# --------------------------------------------------------------------------------------------
# The command


def test_tables_are_written_as_csv(small: Path, tmp_path: Path, planner: Runner) -> None:
    table = tmp_path / "t.csv"
    result = planner("sweep", small, *VARY, "--jobs", 1, "-o", table)
    assert result.code == 0
    assert result.err == ""
    assert "4 points: 4 optimal" in " ".join(result.out.split())
    assert f"table written to {table}" in result.out
    rows = list(csv.DictReader(io.StringIO(table.read_text(), newline="")))
    assert [(r["slo.tpot_ms.p99"], r["workload.request_rate"]) for r in rows] == [
        ("20", "20"),
        ("20", "60"),
        ("40", "20"),
        ("40", "60"),
    ]
    expected = sweep(small, LIMITS, workers=HERE)
    assert [float(r["cost_per_hour"]) for r in rows] == [r["cost_per_hour"] for r in expected.points]
    assert tuple(rows[0]) == expected.columns
    assert sorted(os.listdir(tmp_path)) == ["small.yaml", "t.csv"]  # the journal is gone


def test_tables_are_written_as_parquet(small: Path, tmp_path: Path, planner: Runner) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = tmp_path / "t.parquet"
    vary = ("--vary", "fleet.h100-sxm.max_gpus=8,null", "--vary", "options.confidence=0.8,0.9")
    assert planner("sweep", small, *vary, "--jobs", 1, "-o", table).code == 0
    frame = pandas.read_parquet(table)
    assert list(frame["options.confidence"]) == [0.8, 0.9, 0.8, 0.9]
    assert frame["fleet.h100-sxm.max_gpus"].isna().tolist() == [False, False, True, True]
    assert frame["cost_per_hour"].dtype.kind == "f"
    assert sorted(os.listdir(tmp_path)) == ["small.yaml", "t.parquet"]


def test_columns_of_several_kinds_become_text() -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    data = frames.parquet_bytes([{"k": 1, "n": 1}, {"k": "a", "n": 2.5}, {"k": True}], ("k", "n"))
    frame = pandas.read_parquet(io.BytesIO(data))
    assert frame["k"].tolist() == ["1", "a", "true"]
    assert frame["n"].tolist()[:2] == [1.0, 2.5]


@pytest.mark.parametrize("absent", ["pandas", "pyarrow"])
def test_parquet_without_its_packages_is_refused_at_once(
    small: Path, tmp_path: Path, planner: Runner, monkeypatch: pytest.MonkeyPatch, absent: str
) -> None:
    monkeypatch.setattr(frames, "find_spec", lambda name: None if name == absent else name)
    result = planner("sweep", small, *VARY, "-o", tmp_path / "t.parquet")
    assert result.code == 2
    assert f"a Parquet file needs {absent}: pip install 'pd-planner[parquet]' (or write a .csv)" in result.err


def test_json_has_the_same_rows(small: Path, planner: Runner) -> None:
    facts = planner("sweep", small, *VARY, "--jobs", 1, "--json").facts
    expected = sweep(small, LIMITS, workers=HERE)
    assert facts.pop("seconds") > 0
    assert facts == {
        "name": str(small),
        "keys": list(expected.keys),
        "columns": list(expected.columns),
        "counts": {"optimal": 4},
        "points": list(expected.rows()),
    }


def test_tables_are_printed_where_no_file_is_asked_for(small: Path, planner: Runner) -> None:
    vary = ("--vary", "workload.request_rate=20,9000")
    result = planner("sweep", small, *vary, "--jobs", 1)
    assert result.code == 0
    assert "infeasible: GPU" in result.out
    assert "1 optimal, 1 infeasible" in " ".join(result.out.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--vary", "slo.tpot_ms.p99"), "has no values (write KEY=VALUES"),
        (("--vary", "slo.tpot_ms.p99=1", "--vary", "slo.tpot_ms.p99=2"), "is given twice"),
        (("--vary", "slo.tpot_ms.p9=1"), "unknown key (did you mean p99?)"),
        ((), "Missing option '--vary'"),
        ((*VARY, "-o", "t.xlsx"), "is no table (the name has to end in .csv or .parquet)"),
        ((*VARY, "--engine", "dask"), "the address of a scheduler and engine dask belong together"),
        ((*VARY, "--address", "h:1"), "the address of a scheduler and engine dask belong together"),
        ((*VARY, "--jobs", "0"), "0 is not in the range"),
        ((*VARY, "--engine", "dask", "--address", "h:1", "--jobs", "2"), "jobs is for this machine"),
    ],
)
def test_bad_input_of_the_command(
    small: Path, planner: Runner, arguments: tuple[str, ...], message: str
) -> None:
    result = planner("sweep", small, *arguments)
    assert result.code == 2
    assert message in result.err


def test_an_interrupt_says_how_to_go_on(
    small: Path, tmp_path: Path, planner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, table = tmp_path / "whole.csv", tmp_path / "t.csv"
    assert planner("sweep", small, *VARY, "--jobs", 1, "-o", whole).code == 0
    command = ("sweep", small, *VARY, "--jobs", 1, "-o", table)
    monkeypatch.setattr(sweeping, "solve", Stopped(2))
    result = planner(*command)
    assert result.code == 130
    assert "interrupted after 2 of 4 points" in result.err
    assert "the same command goes on from there" in result.err
    assert not table.exists()
    assert journal_of(table).exists()
    monkeypatch.setattr(sweeping, "solve", solve)
    assert planner(*command).code == 0
    assert table.read_bytes() == whole.read_bytes()
    assert not journal_of(table).exists()


def test_an_interrupt_without_a_journal_writes_nothing(
    small: Path, planner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "solve", Stopped(1))
    result = planner("sweep", small, *VARY, "--jobs", 1)
    assert result.code == 130
    assert "interrupted; nothing was written" in result.err


def test_fresh_starts_anew(small: Path, tmp_path: Path, planner: Runner) -> None:
    table = tmp_path / "t.csv"
    journal_of(table).write_text('{"journal": 1}\n')
    command = ("sweep", small, "--vary", "slo.tpot_ms.p99=40", "--jobs", 1, "-o", table)
    refused = planner(*command)
    assert refused.code == 2
    assert "is of another sweep" in refused.err
    assert planner(*command, "--fresh").code == 0


# --------------------------------------------------------------------------------------------
# Other processes

SIXTY = (
    "--vary", "slo.tpot_ms.p99=20:60:10", "--vary", "workload.request_rate=5:40:x2",
    "--vary", "slo.ttft_ms.p99=500:2000:x2",
)  # fmt: skip
ONE_AFTER_ANOTHER = ("--jobs", "1")


def command_of(table: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "planner", "sweep", str(CHAT), *SIXTY, "-o", str(table), *more]


def swept(table: Path, *more: str, timeout: float = 300) -> bytes:
    subprocess.run(command_of(table, *more), check=True, cwd=ROOT, capture_output=True, timeout=timeout)
    assert not journal_of(table).exists()
    return table.read_bytes()


@pytest.fixture(scope="session")
def sixty(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The table of 60 points of the 70B example, solved one after another."""
    return swept(tmp_path_factory.mktemp("sixty") / "t.csv", *ONE_AFTER_ANOTHER)


@pytest.mark.slow
def test_processes_give_the_same_table(sixty: bytes, tmp_path: Path) -> None:
    assert swept(tmp_path / "t.csv", "--jobs", "2") == sixty


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_killed_sweep_goes_on_with_nothing_lost_or_doubled(sixty: bytes, tmp_path: Path, jobs: str) -> None:
    table = tmp_path / "t.csv"
    journal = journal_of(table)
    running = subprocess.Popen(command_of(table, "--jobs", jobs), cwd=ROOT, start_new_session=True)
    try:
        wait_for(lambda: journal.exists() and len(journal.read_bytes().splitlines()) > 8, running)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    assert not table.exists()
    noted = len(journal.read_bytes().splitlines()) - 1
    assert 0 < noted < 60
    assert swept(table, "--jobs", jobs) == sixty


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_all_processes_and_keeps_the_journal(sixty: bytes, tmp_path: Path, jobs: str) -> None:
    table = tmp_path / "t.csv"
    journal = journal_of(table)
    running = subprocess.Popen(
        command_of(table, "--jobs", jobs), cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_for(lambda: journal.exists() and len(journal.read_bytes().splitlines()) > 4, running)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, said = running.communicate(timeout=60)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == 130
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
    assert not table.exists()
    assert swept(table, "--jobs", jobs) == sixty


def wait_for(condition: Callable[[], bool], running: subprocess.Popen[Any], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert running.poll() is None, "it ended before it was to be stopped"
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.dask
@pytest.mark.parametrize("workers", [2])
def test_a_dask_cluster_gives_the_same_table(sixty: bytes, tmp_path: Path, workers: int) -> None:
    pytest.importorskip("distributed", reason="a Dask cluster needs distributed")
    contact = tmp_path / "scheduler.json"
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1", "--no-dashboard"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    file = ["--scheduler-file", str(contact)]
    started = []
    try:
        for command in ([*scheduler, *file], *[[*worker, *file] for _ in range(workers)]):
            started.append(
                subprocess.Popen(
                    command,
                    cwd=tmp_path,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            wait_for(contact.exists, started[0])
        address = json.loads(contact.read_text())["address"]
        wait_for(lambda: workers_at(address) == workers, started[0])
        assert swept(tmp_path / "t.csv", "--engine", "dask", "--address", address) == sixty
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=30)


def workers_at(address: str) -> int:
    from distributed import Client

    with Client(address, timeout=10, set_as_default=False) as client:
        return len(client.scheduler_info()["workers"])


@pytest.mark.slow
@pytest.mark.dask
def test_a_cluster_that_does_not_answer_is_told(small: Path, planner: Runner) -> None:
    pytest.importorskip("distributed", reason="a Dask cluster needs distributed")
    result = planner("sweep", small, *VARY, "--engine", "dask", "--address", "127.0.0.1:9")
    assert result.code == 2
    assert "no Dask scheduler answers at 127.0.0.1:9" in result.err


def test_a_cluster_without_its_package_is_told(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(SpecError, match=r"engine dask needs distributed: pip install 'pd-planner\[dask\]'"):
        sweep(small, LIMITS, workers=Workers(engine="dask", address="127.0.0.1:9"))


def test_frames_have_the_columns(small: Path) -> None:
    pytest.importorskip("pandas")
    found = Sweep(name="s", keys=("k",), points=({"k": 1, "status": "optimal", "ttft_p99_ms": 3.0},))
    frame = found.to_frame()
    assert list(frame.columns)[:2] == ["k", "status"]
    assert list(frame.columns)[-1] == "ttft_p99_ms"


def test_a_sweep_without_any_plan_ends_as_infeasible(small: Path, planner: Runner, tmp_path: Path) -> None:
    """The table is written all the same: that there is no plan is what was found."""
    table = tmp_path / "t.csv"
    result = planner("sweep", small, "--vary", "slo.tpot_ms.p99=0.01,0.02", "-o", table)
    assert result.code == 3
    assert table.read_text(encoding="utf-8").count("infeasible") == 2


@pytest.mark.parametrize("address", ["foo", "host:", ":8786", "host:port"])
def test_addresses_of_schedulers_have_a_port(small: Path, planner: Runner, address: str) -> None:
    refused = planner("sweep", small, *VARY, "--engine", "dask", "--address", address)
    assert refused.code == 2
    assert f"the address of a scheduler must be HOST:PORT, got '{address}'" in refused.err
