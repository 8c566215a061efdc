"""The study of mixed fleets: its page against plans computed again, and against itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mixed_fleet import NAMES, money, price
from benchmarks.mixed_fleet_plans import (
    COLOCATED,
    INSTANCES,
    MARKETS,
    MIXED,
    RATES,
    TPOT,
    Cell,
    cells,
    cost_of,
    predict,
    scenario,
)

PAGE = Path(__file__).parents[1] / "docs" / "mixed-fleets.md"
EVERYTHING, SCARCE = MARKETS


def rows() -> dict[Cell, list[str]]:
    """Cells of the tables by the question that they answer."""
    found: dict[Cell, list[str]] = {}
    market = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            market = next((m for m in MARKETS if m.lower() == line[3:].lower()), "")
        entries = [entry.strip() for entry in line.strip("|").split("|")]
        if market and line.startswith("| ") and entries[0].endswith(" ms"):
            found[Cell(market, int(entries[0].split()[0]), int(entries[1]))] = entries[2:]
    return found


def number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


@pytest.mark.parametrize(
    ("cell", "kinds"),
    [(Cell(EVERYTHING, 30, 10), (MIXED, "h100", COLOCATED)), (Cell(SCARCE, 30, 40), (MIXED, "a100"))],
)
def test_predictions_come_out_as_on_the_page(cell: Cell, kinds: tuple[str, ...]) -> None:
    found = predict(cell, kinds)
    assert [money(found[kind]) for kind in kinds] == rows()[cell][: len(kinds)]
    assert cost_of(found[MIXED]) == min(map(cost_of, found.values()))
    assert len(found[kinds[1]].used) == 1


def test_the_page_has_every_cell_and_adds_up() -> None:
    table = rows()
    assert list(table) == list(cells())
    assert len(table) == len(MARKETS) * len(TPOT) * len(RATES)
    for entries in table.values():
        mixed = number(entries[3])
        for other, saved in zip(entries[4:6], entries[6:8], strict=True):
            if other == "none":
                assert saved == "-"
                continue
            assert mixed <= number(other)
            assert number(saved) == pytest.approx(100 * (1 - mixed / number(other)), abs=0.51)


def test_less_stock_costs_no_less() -> None:
    table = rows()
    for tpot in TPOT:
        for rate in RATES:
            free, short = (table[Cell(market, tpot, rate)] for market in (EVERYTHING, SCARCE))
            assert number(free[0]) <= number(short[0]) * 1.005
            assert number(free[1]) <= number(short[1]) * 1.005


def test_prices_are_those_of_the_catalogue() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for gpu, instance in INSTANCES.items():
        assert f"| {NAMES[gpu]} | {instance} | {price(gpu):.3f} |" in text


def test_a_scenario_is_limited_to_what_is_left_and_to_its_kind() -> None:
    cell = Cell(SCARCE, 60, 40)
    stock = {line["instance"]: line.get("max_gpus") for line in scenario(cell)["fleet"]}
    assert stock[INSTANCES["h100"]] == 16
    assert stock[INSTANCES["a100"]] is None
    assert [line["instance"] for line in scenario(cell, "b200")["fleet"]] == [INSTANCES["b200"]]
    assert scenario(cell, COLOCATED)["options"]["colocated"] == "only"


def test_pictures_are_there() -> None:
    for name in ("cost", "value"):
        assert (PAGE.parent / f"mixed-fleets-{name}.png").read_bytes().startswith(b"\x89PNG")
