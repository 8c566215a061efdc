"""planner import: emit, import, emit again gives the same bytes; changes of scripts reach the plan."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Runner
from deploy_plans import OTHERS, SCENARIOS, plan_of
from deploy_tools import emit_folder

from planner.documents.plan import load_plan
from planner.specs import Dtype, Parallelism


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def imported(planner: Runner, folder: Path) -> Path:
    path = folder.parent / "imported.yaml"
    result = planner("import", folder, "-o", path)
    assert result.code == 0, result.err
    return path


def edit(folder: Path, group: str, old: str, new: str) -> None:
    path = next((folder / "groups").glob(f"{group}-*"))
    text = path.read_text(encoding="utf-8")
    changed = re.sub(old, new, text)
    assert changed != text
    path.write_text(changed, encoding="utf-8")


@pytest.mark.parametrize("kind", SCENARIOS)
def test_emit_import_emit_is_the_identity(planner: Runner, tmp_path: Path, kind: str):
    folder = emit_folder(planner, tmp_path, kind)
    path = imported(planner, folder)
    assert path.read_bytes() == (tmp_path / f"{kind}.yaml").read_bytes()
    again = tmp_path / "again"
    assert planner("emit", path, "--target", "vllm", "-o", again, "--site", tmp_path / "site.yaml").code == 0
    assert contents(again) == contents(folder)


@pytest.mark.parametrize("kind", OTHERS)
def test_of_other_plans_only_settings_are_missing(planner: Runner, tmp_path: Path, kind: str):
    folder = emit_folder(planner, tmp_path, kind, site="")
    found = planner("check", folder).out.splitlines()
    assert found
    assert [line for line in found if "is a placeholder" not in line] == []
    assert imported(planner, folder).read_bytes() == (tmp_path / f"{kind}.yaml").read_bytes()


def test_what_was_imported_can_be_simulated(planner: Runner, tmp_path: Path):
    path = imported(planner, emit_folder(planner, tmp_path, "one-group-per-pool"))
    result = planner("simulate", path, "--requests", 2000, "--json")
    assert result.code in (0, 5), result.err
    assert result.out


def test_changes_of_scripts_reach_the_plan(planner: Runner, tmp_path: Path):
    folder = emit_folder(planner, tmp_path, "different-tp")
    edit(folder, "decode", "--max-num-seqs \\d+", "--max-num-seqs 64")
    edit(folder, "prefill", r"\n  3\) .*", "")
    edit(folder, "prefill", "--max-num-batched-tokens \\d+", "--max-num-batched-tokens 4096")
    before = plan_of("different-tp")
    plan = load_plan(imported(planner, folder))
    prefill, decode = plan.groups
    assert (prefill.replicas, prefill.max_num_batched_tokens, decode.max_num_seqs) == (2, 4096, 64)
    assert decode.kv_capacity >= before.groups[1].kv_capacity  # fewer sequences leave more
    assert plan.verification is None
    assert any("changed since it was planned" in note for note in plan.notes)
    assert plan.cost is not None
    assert before.cost is not None
    assert plan.cost < before.cost
    assert planner("simulate", tmp_path / "imported.yaml", "--requests", 2000).code in (0, 5)


def test_layouts_and_formats_are_read(planner: Runner, tmp_path: Path):
    folder = emit_folder(planner, tmp_path, "different-tp")
    edit(folder, "decode", "--tensor-parallel-size 4", "--tensor-parallel-size 8")
    for group in ("decode", "prefill"):
        edit(folder, group, "--kv-cache-dtype fp8", "--kv-cache-dtype bfloat16")
    plan = load_plan(imported(planner, folder))
    assert plan.groups[1].parallelism == Parallelism(tp=8)
    assert {group.precision.kv_cache for group in plan.groups} == {Dtype.BF16}
    assert {group.precision.weights for group in plan.groups} == {Dtype.FP8}


def test_another_plan_in_the_folder_is_refused(planner: Runner, tmp_path: Path):
    folder = emit_folder(planner, tmp_path, "colocated")
    path = folder / "plan.yaml"
    path.write_text(
        re.sub(r"max_num_seqs: \d+", "max_num_seqs: 7", path.read_text(encoding="utf-8")), encoding="utf-8"
    )
    result = planner("import", folder)
    assert result.code == 2
    assert "is not the plan" in result.err


@pytest.mark.parametrize("old", ["--max-num-seqs \\d+", "--tensor-parallel-size \\d+"])
def test_scripts_that_cannot_be_read_are_refused(planner: Runner, tmp_path: Path, old: str):
    folder = emit_folder(planner, tmp_path, "colocated")
    edit(folder, "colocated", old, old.replace("\\d+", "many"))
    result = planner("import", folder)
    assert result.code == 2
    assert "groups/colocated" in result.err
