"""README: what it shows is what the commands print."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from planner.catalog import traffic_names
from planner.documents.scenario import scenario_from_text
from planner.documents.schemas import json_schemas

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def _tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "tools" / "update_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _tool()
BLOCKS = TOOL.blocks(TEXT)


def test_readme_shows_commands() -> None:
    assert len(BLOCKS) >= 6
    assert len(BLOCKS) == TEXT.count("```console")


SIMULATED = ("solve", "simulate", "evaluate")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


def parts(text: str) -> tuple[list[str], list[float]]:
    """Words and numbers of a text, spaces and lines apart."""
    numbers = [float(number.replace(",", "")) for number in _NUMBER.findall(text)]
    return _NUMBER.sub("#", text).split(), numbers


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_shown_output_is_the_real_one(command: str, shown: str) -> None:
    """Figures of a simulation may differ a little: other processors round otherwise, queues remember."""
    real = TOOL.output_of(command)
    if command.split()[1] not in SIMULATED:
        assert real == shown, "run tools/update_readme.py"
        return
    words, numbers = parts(real)
    shown_words, shown_numbers = parts(shown)
    assert words == shown_words, "run tools/update_readme.py"
    assert numbers == pytest.approx(shown_numbers, rel=0.1, abs=0.02), "run tools/update_readme.py"


def test_the_first_two_commands_are_one_line_each() -> None:
    commands = re.findall(r"^```sh\n((?:.*\n)*?)```$", TEXT, re.MULTILINE)[:2]
    assert all(command.count("\n") == 1 for command in commands)
    solve, tests = commands
    assert "pip install . && .venv/bin/planner solve examples/llama-70b-chat.yaml -o plan.yaml" in solve
    assert "pytest" in tests


def test_the_scenario_explained_is_the_example() -> None:
    (explained,) = re.findall(r"^```yaml\n((?:.*\n)*?)```$", TEXT, re.MULTILINE)
    example = (ROOT / "examples" / "llama-70b-chat.yaml").read_text(encoding="utf-8")
    assert scenario_from_text(explained).document == scenario_from_text(example).document


def test_every_traffic_preset_is_named() -> None:
    assert [name for name in traffic_names() if f"`{name}`" not in TEXT] == []


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", TEXT)
    assert targets
    assert [t for t in targets if not (ROOT / t).exists()] == []


def test_every_option_is_named() -> None:
    properties = json_schemas()["scenario"]["$defs"]["OptionsDocument"]["properties"]
    assert [name for name in properties if f"`{name}`" not in TEXT and f"options.{name}" not in TEXT] == []


def test_accuracy_is_that_of_the_table() -> None:
    """Medians and 90th percentiles of p99 over all drawn fleets."""
    table = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    row = next(line for line in table.splitlines() if line.startswith("| all |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    (ttft, most_ttft), (tpot, most_tpot) = (re.findall(r"[\d.]+", cells[k]) for k in (4, 7))
    said = " ".join(TEXT.split())
    assert f"of p99 is {ttft} % for TTFT and {tpot} % for TPOT" in said
    assert f"nine in ten are below {most_ttft} % and {most_tpot} %" in said
