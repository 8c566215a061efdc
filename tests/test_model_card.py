"""The model card: what the README says of accuracy stands in it, and one command writes it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from benchmarks.model_card import BARS, page

ROOT = Path(__file__).parents[1]
CARD = ROOT / "docs" / "model-card.md"
FILES = ("PLANNER_MEASURED", "PLANNER_PUBLISHED", "PLANNER_PEER")


def bars() -> dict[str, list[str]]:
    """Cells of the first table by the name of the row."""
    lines = [line for line in CARD.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]
    return {row[0]: row for row in rows if row[-1].startswith("`planner validate")}


def test_every_bar_stands_in_the_card_with_its_command():
    rows = bars()
    assert set(rows) == {bar.what for bar in BARS}
    for bar in BARS:
        assert rows[bar.what][-1] == f"`{bar.command}`"


def test_a_bar_is_met_as_it_says():
    for bar in BARS:
        row = bars()[bar.what]
        median, mean = (float(cell.removesuffix(" %")) / 100 for cell in row[2:4])
        limit, most = bar.limits
        met = median <= limit + 5e-4 and (most is None or mean <= most + 5e-4)
        assert row[7].endswith(": met") == met


def test_the_readme_says_what_the_card_says():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    said = re.search(r"- \*\*End to end\.\*\*(.*?)\n- \*\*", readme, re.DOTALL)
    assert said is not None
    figures = re.findall(r"(\d+(?:\.\d+)?) %", said[1])
    rows = bars()
    none, crossed = rows["all, TPOT, nothing fitted"], rows["all, TPOT, from the other half"]
    first = rows["all, TTFT, from the other half"]
    families = [rows[f"{name} left out, TPOT"][2] for name in ("MiniMax", "gpt-oss", "Qwen3-235B")]
    peers = re.findall(r"\| aiconfigurator[^|]*\| \d+ \| ([\d.]+) %", CARD.read_text("utf-8"))
    cells = [none[2], crossed[2], first[2], "80 %", none[6], crossed[6], first[6]]
    expected = [cell.removesuffix(" %") for cell in cells] + peers
    expected += [cell.removesuffix(" %") for cell in families]
    assert figures == expected


@pytest.mark.shared
@pytest.mark.skipif(
    not all(name in os.environ for name in FILES), reason=f"{', '.join(FILES)} name no files of measurements"
)
def test_the_card_is_what_its_command_writes():
    assert page(*(os.environ[name] for name in FILES)) == CARD.read_text(encoding="utf-8")
