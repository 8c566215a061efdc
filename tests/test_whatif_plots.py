"""Pictures of comparisons and explanations."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from conftest import Runner
from report_plans import LIMITED, disaggregated, solved, written

from planner.errors import SpecError
from planner.report.compare_plot import save_comparison
from planner.report.explain_plot import save_explanation
from planner.specs import Objective, Phase
from planner.whatif.compare import compare
from planner.whatif.explain import Explanation, WhatIf
from planner.whatif.resolve import Resolved

pytest.importorskip("matplotlib")


def texts(path: Path) -> list[str]:
    return ["".join(e.itertext()).strip() for e in ElementTree.parse(path).iter() if e.tag.endswith("text")]


def colocated() -> Any:
    workload = {"request_rate": 80, "input_tokens": 1000, "output_tokens": 200}
    return solved(workload=workload, options=LIMITED | {"colocated": "only", "whole_nodes": False})


def test_groups_of_both_plans_add_up():
    before, after = disaggregated(), colocated()
    found = compare(before, after)
    for i, plan in enumerate((before, after)):
        assert sum(g.gpus[i] for g in found.groups) == plan.num_gpus
        assert sum(g.cost[i] for g in found.groups) == pytest.approx(sum(g.cost for g in plan.groups))
    phases = {g.phase for g in found.groups}
    assert phases == {Phase.PREFILL, Phase.DECODE, Phase.COLOCATED}
    gone = next(g for g in found.groups if g.phase is Phase.PREFILL)
    assert (gone.replicas[1], gone.cost[1]) == (0, 0.0)


@pytest.mark.slow
def test_comparison_shows_both_plans(tmp_path):
    path = tmp_path / "c.svg"
    before, after = disaggregated(), colocated()
    save_comparison(compare(before, after), path, ("a $x$.yaml", "b<c>.yaml"))
    found = texts(path)
    assert {"GPUs in use", "cost [USD/h]", "a $x$.yaml", "b<c>.yaml"} <= set(found)
    assert f"{before.cost:.4g}" in found
    assert any(t.startswith("colocated ") for t in found)
    first = path.read_bytes()
    save_comparison(compare(before, after), path, ("a $x$.yaml", "b<c>.yaml"))
    assert path.read_bytes() == first


def test_without_prices_there_are_gpus_alone(tmp_path):
    fleet = [{"gpu": "h100-sxm", "max_gpus": 64, "network_gbps_per_gpu": 400}]
    plan = solved(objective="gpus", fleet=fleet)
    path = tmp_path / "c.svg"
    save_comparison(compare(plan, plan), path, ("a", "b"))
    assert "cost [USD/h]" not in texts(path)
    assert "GPUs in use" in texts(path)


def what_if(subject, saving, binds):
    after = Resolved(value=100.0 - saving)
    return WhatIf(
        kind="stock",
        subject=subject,
        change="8 -> 16",
        after=after,
        saving=saving,
        saving_cost=saving,
        binds=binds,
    )


def explanation(requirements, marginal):
    return Explanation(
        name="x", objective=Objective.COST, base=Resolved(value=100.0, description="a fleet"), groups=(),
        requirements=requirements, marginal=marginal, unused=(),
    )  # fmt: skip


def test_explanation_shows_what_binds(tmp_path):
    path = tmp_path / "e.svg"
    bars = (what_if("stock of a", 0.0, False), what_if("stock of b", 25.0, True))
    save_explanation(explanation(bars, (what_if("network", 5.0, True),)), path)
    found = texts(path)
    assert "25 USD/h (25%)" in found
    assert "5 USD/h (5%)" in found
    assert found.count("nothing") == 1
    assert found.index("stock of b: 8 -> 16") < found.index("stock of a: 8 -> 16")


def test_an_explanation_without_requirements_is_still_a_picture(tmp_path):
    path = tmp_path / "e.png"
    save_explanation(explanation((), ()), path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("save", [lambda p: save_explanation(explanation((), ()), p)])
def test_other_suffixes_are_refused(tmp_path, save):
    with pytest.raises(SpecError, match=r"is no plot \(the name has to end in .png or .svg\)"):
        save(tmp_path / "e.pdf")
    assert os.listdir(tmp_path) == []


def test_commands_draw(planner: Runner, tmp_path: Path):
    a = written(disaggregated(), tmp_path / "a.yaml")
    picture = tmp_path / "c.png"
    result = planner("compare", a, a, "--plot", picture)
    assert result.code == 0, result.err
    assert f"picture written to {picture}" in result.out
    assert picture.read_bytes().startswith(b"\x89PNG")
    facts = planner("compare", a, a, "--json").facts
    assert facts["groups"][0]["gpus"]["before"] == facts["groups"][0]["gpus"]["after"] > 0


@pytest.mark.slow
def test_explain_draws(planner: Runner, tmp_path: Path):
    a, picture = written(disaggregated(), tmp_path / "a.yaml"), tmp_path / "e.svg"
    result = planner("explain", a, "--plot", picture)
    assert result.code == 0, result.err
    assert "lifted alone: saves [USD/h]" in texts(picture)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("compare", "a.yaml", "a.yaml", "--plot", "x.gif"),
            "is no picture (the name has to end in .png or .svg)",
        ),
        (("explain", "a.yaml", "--plot", "x.gif"), "is no picture (the name has to end in .png or .svg)"),
        (("explain", "a.yaml", "--plot", "no/x.png"), "there is no folder no"),
        (("compare", "a.yaml", "b.yaml", "--plot", "link.png"), "would replace another file"),
    ],
)
def test_refusals(planner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    written(disaggregated(), tmp_path / "a.yaml")
    (tmp_path / "link.png").symlink_to("a.yaml")
    result = planner(*arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert sorted(os.listdir(tmp_path)) == ["a.yaml", "link.png"]
