"""The commands of docs/deploy-*.md, from solve to a checked folder."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from conftest import Runner

from planner.documents.plan import load_plan
from planner.specs import Statistic

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (
    "deploy-vllm.md",
    "deploy-sglang.md",
    "deploy-trtllm.md",
    "deploy-dynamo.md",
    "deploy-llm-d.md",
    "deploy-kserve.md",
)


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def write_result(folder: Path) -> None:
    """A load test that comes out as predicted."""
    (prediction,) = load_plan(folder / "plan.yaml").predictions
    found = {
        "completed": 3000, "failed": 0, "request_rate": 10, "request_throughput": 9.9,
        "total_input_tokens": 3000 * 2000, "total_output_tokens": 3000 * 200,
    }  # fmt: skip
    for name, latency in (("ttft", prediction.ttft), ("tpot", prediction.tpot)):
        found |= {f"{s}_{name}_ms": 1e3 * getattr(latency.expected, s) for s in Statistic}
    (folder / "result.json").write_text(json.dumps(found), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_commands_of_the_page(planner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    scenario, site = blocks(text, "yaml")
    Path("scenario.yaml").write_text(scenario, encoding="utf-8")
    Path("site.yaml").write_text(site, encoding="utf-8")
    commands = [line for block in blocks(text, "sh") for line in block.splitlines()]
    assert [shlex.split(line)[1] for line in commands] == [
        "solve", "emit", "check", "judge", "import", "simulate",
    ]  # fmt: skip
    for line in commands:
        program, *words = shlex.split(line)
        assert program == "planner"
        if words[0] == "judge":
            write_result(tmp_path)
        result = planner(*words)
        assert result.code == 0, f"{line}\n{result.out}\n{result.err}"
    assert Path("imported.yaml").read_text(encoding="utf-8") == Path("deploy/plan.yaml").read_text(
        encoding="utf-8"
    )
    (tree,) = re.findall(r"^```\ndeploy/\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    listed = re.findall(r"^  ([\w./-]+)", tree, re.MULTILINE)
    assert len(listed) > 6
    assert [path for path in listed if not Path("deploy", path.rstrip(",")).is_file()] == []
