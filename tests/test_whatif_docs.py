"""The commands of docs/what-if.md, on the files that it shows."""

from __future__ import annotations

import csv
import shlex
from pathlib import Path

import pytest
from conftest import Runner
from test_deploy_docs import DOCS, blocks

from planner.documents.trace_file import read_trace
from planner.reuse import reuse_curve


@pytest.mark.slow
def test_commands_of_the_page(planner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / "what-if.md").read_text(encoding="utf-8")
    (scenario,), (trace,) = blocks(text, "yaml"), blocks(text, "json")
    Path("scenario.yaml").write_text(scenario, encoding="utf-8")
    Path("requests.jsonl").write_text(trace, encoding="utf-8")
    commands = [line for block in blocks(text, "sh") for line in block.splitlines()]
    assert [shlex.split(line)[1] for line in commands] == ["workload", "tiers", "tiers", "network"]
    for line in commands:
        program, *words = shlex.split(line)
        assert program == "planner"
        result = planner(*words)
        assert result.code == 0, f"{line}\n{result.out}\n{result.err}"
    for name, rows in (("tiers.csv", 4), ("networks.csv", 24)):
        with Path(name).open(newline="") as file:
            assert len(list(csv.DictReader(file))) == rows
    assert Path("networks.svg").stat().st_size > 1000


def test_prompts_of_the_page_share_blocks(tmp_path: Path):
    (text,) = blocks((DOCS / "what-if.md").read_text(encoding="utf-8"), "json")
    path = tmp_path / "requests.jsonl"
    path.write_text(text, encoding="utf-8")
    read = read_trace(path)
    assert read.blocks is not None
    curve = reuse_curve(read.blocks, read.isl)
    assert curve.most == pytest.approx((3 + 12 + 12) * 512 / read.isl.sum())
