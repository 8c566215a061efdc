"""The commands of docs/calibrate-engine.md."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from conftest import Runner

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "calibrate-engine.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_commands_of_the_page(planner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples" / "load-tests", tmp_path / "examples" / "load-tests")
    (scenario,) = blocks("yaml")
    Path("scenario.yaml").write_text(scenario, encoding="utf-8")
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert [shlex.split(line)[1] for line in commands] == ["calibrate", "solve", "evaluate", "predict"]
    for line in commands:
        program, *words = shlex.split(line)
        assert program == "planner"
        result = planner(*words)
        assert result.code == 0, f"{line}\n{result.out}\n{result.err}"
        if words[0] == "calibrate":
            table = blocks("")[1]
            for row in table.splitlines():
                assert " ".join(row.split()) in " ".join(result.out.split())
    plan = yaml.safe_load(Path("plan.yaml").read_text(encoding="utf-8"))
    assert plan["scenario"]["engine_profile"] == "./engine.yaml"
    assert any("engine.yaml: calibrated on" in source for source in plan["provenance"]["sources"])


def test_every_form_of_the_page_is_read():
    from planner.documents.load_tests import KNOWN

    for word in ("vllm bench serve", "bench_serving", "GuideLLM", "profile_export_aiperf.json"):
        assert word in PAGE
        assert any(word in tool for tool in KNOWN)


def test_the_page_shows_what_its_command_prints(planner: Runner, tmp_path: Path) -> None:
    """Errors before and after, digit by digit."""
    page = (Path(__file__).parents[1] / "docs" / "calibrate-engine.md").read_text(encoding="utf-8")
    runs = Path(__file__).parents[1] / "examples" / "load-tests" / "llama-8b-h100.jsonl"
    found = planner(
        "calibrate", "engine", runs, "-m", "meta-llama/Llama-3.1-8B-Instruct", "-g", "h100-sxm", "--engine",
        "vllm", "--engine-version", "0.33.0", "-o", tmp_path / "engine.yaml",
    )  # fmt: skip
    assert found.code == 0
    shown = [line for line in found.out.splitlines() if re.match(r"(TPOT|TTFT|error, held out) ", line)]
    assert len(shown) == 3
    for line in shown:
        assert line.rstrip() in page
