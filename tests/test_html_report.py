"""The report page: whole, the same each time, safe against any text, and right in its figures."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import Runner
from report_plans import HOSTILE, disaggregated, solved, two_services, written

from planner.errors import InfeasibleError
from planner.plan import LengthBucket, LengthSplit, Move, Plan, Verification
from planner.report.html import gather as gathering
from planner.report.html.blocks import Cards, Figure, Source, Table, Text, label, rounded, script_json
from planner.report.html.facts import Curve, ReportFacts
from planner.report.html.gather import FAST, Parts, gather, steps
from planner.report.html.page import report_page
from planner.report.html.sections import holds, sections
from planner.side_by_side import SideBySide
from planner.simulator.timeline import Activity, Segment, Timeline
from planner.specs import Metric, Objective, Phase
from planner.units import MEGA
from planner.whatif.asked import asked_of
from planner.whatif.pareto import Pareto, Point
from planner.whatif.resolve import Resolved
from planner.whatif.sensitivity import Lever, Sensitivity

pytest.importorskip("plotly")
QUICK = Parts(without_solves=FAST, without_simulation=FAST)
KEYS = (
    "summary", "pools", "latency", "roofline", "cost", "pareto", "sensitivity", "timeline", "alternatives",
    "provenance", "scenario",
)  # fmt: skip


def quick(plan: Plan) -> ReportFacts:
    """Facts without solves and simulation."""
    return gather(asked_of(plan), QUICK)


def full(plan: Plan) -> ReportFacts:
    """Facts of every kind, those of solves and simulation made up."""
    base = Resolved(value=10.0, cost=10.0, description="a fleet")
    none = Resolved(reason="no fleet")
    curve = Curve(requests=5, shares=(0.1, 0.5, 0.99), ttft=(0.1, 0.2, float("inf")), tpot=(0.01, 0.02, 0.03))
    levers = (
        Lever(what="request rate", factor=1.2, low=replace(base, value=8.0), high=none),
        Lever(what="price of h100", factor=1.2, low=base, high=replace(base, value=12.0)),
    )
    target = plan.predictions[0].slo[0]
    points = (Point(x=0.1, factor=0.5, result=none), Point(x=0.2, factor=1.0, result=base))
    panel = Timeline(
        title="one fleet",
        unit="s",
        horizon=2.0,
        arrivals=(0.0, 0.5),
        segments=(
            Segment(request=0, activity=Activity.PREFILL, start=0.0, end=0.5),
            Segment(request=0, activity=Activity.STALL, start=0.5, end=0.7),
            Segment(request=1, activity=Activity.DECODE, start=0.6, end=3.0),
        ),
        tokens=(1, 2),
    )
    return replace(
        quick(plan),
        curves={p.service: curve for p in plan.predictions},
        sensitivity=Sensitivity(name="", objective=Objective.COST, base=base, levers=levers),
        paretos=(
            Pareto(
                name="", objective=Objective.COST, varied="ttft", statistic=target.statistic, asked=0.2,
                points=points,
            ),
        ),
        timelines={p.service: SideBySide(panels=(panel, panel), notes=("empty",)) for p in plan.predictions},
        absent={},
    )  # fmt: skip


class Page(HTMLParser):
    """Elements, attributes, texts of scripts of kind JSON, and visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data: dict[str, str] = {}
        self.words: list[str] = []
        self._json = ""
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.elements.append((tag, values))
        self._within = tag
        self._json = values["id"] or "" if values.get("type") == "application/json" else ""

    def handle_endtag(self, tag: str) -> None:
        self._within = self._json = ""

    def handle_data(self, data: str) -> None:
        if self._json:
            self.data[self._json] = self.data.get(self._json, "") + data
        elif self._within not in ("script", "style"):
            self.words.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [values for name, values in self.elements if name == tag]


def texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [t for k, v in value.items() for t in (k, *texts_in(v))]
    return [t for v in value for t in texts_in(v)] if isinstance(value, list) else []


def hostile(value: Any) -> Any:
    """Every text within dataclasses, tuples and mappings replaced by an attack; enumerations stay."""
    if type(value) is str:
        return HOSTILE
    if is_dataclass(value) and not isinstance(value, type):
        names = [
            f.name
            for f in fields(value)
            if f.init and f.name not in ("loaded", "scenario", "statistic", "varied")
        ]
        return replace(value, **{name: hostile(getattr(value, name)) for name in names})
    if isinstance(value, tuple):
        return tuple(map(hostile, value))
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    return value


# --------------------------------------------------------------------------------------------
# The page


@pytest.fixture(scope="module")
def page() -> str:
    return report_page(full(disaggregated()))


def test_page_has_every_section_and_its_charts(page):
    found = Page(page)
    assert tuple(s["id"] for s in found.named("section")) == KEYS
    assert [a["href"] for a in found.named("a")][1:] == [f"#{key}" for key in KEYS]
    plots = [d["id"] for d in found.named("div") if d.get("class") == "plot"]
    assert {f"{p}-data" for p in plots} == set(found.data)
    wanted = {
        "load",
        "latency-0",
        "roofline-0",
        "cost",
        "pareto-ttft",
        "tornado",
        "timeline-0",
        "alternatives",
    }
    assert wanted <= {p.removeprefix("plot-") for p in plots if p}
    assert all(
        d.get("role") == "img" and d.get("aria-label") for d in found.named("div") if d.get("class") == "plot"
    )


def test_page_is_one_file_that_asks_for_nothing(page):
    found = Page(page)
    assert len(page.encode()) <= 6 * MEGA
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"@import|url\(|src=|https?://[^ ]*\.(js|css|woff)", own)
    assert found.named("link") == [{"rel": "icon", "href": "data:,"}]
    (policy,) = [m["content"] for m in found.named("meta") if m.get("http-equiv")]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy
    assert page.count("plotly.js v") == 1


def test_page_can_be_used_by_keyboard_and_printed(page):
    found = Page(page)
    assert found.named("a")[0] == {"class": "skip", "href": "#main"}
    assert [m["id"] for m in found.named("main")] == ["main"]
    assert len(found.named("details")) == len(found.named("summary")) > 4
    for words in ("@media print", "prefers-color-scheme: dark", ":focus-visible"):
        assert words in page
    ids = [v["id"] for _, v in found.elements if v.get("id")]
    assert len(ids) == len(set(ids))


def test_the_same_plan_gives_the_same_bytes(page):
    assert report_page(full(disaggregated())) == page
    dated = report_page(replace(full(disaggregated()), date="1 May"))
    assert (
        dated.replace(" 1 May.", "").replace("<tr><td>date of this report</td><td>1 May</td></tr>\n", "")
        != ""
    )
    assert "1 May" in dated
    assert "1 May" not in page


def test_any_text_stays_text():
    facts = full(disaggregated())
    page = Page(report_page(hostile(facts)))
    assert {"img", "b", "iframe", "object"} & {tag for tag, _ in page.elements} == set()
    assert not any(name.startswith("on") for _, values in page.elements for name in values)
    assert len(page.named("script")) == 2 + len(page.data)
    assert "".join(page.words).count(HOSTILE) > 20
    for text in page.data.values():
        for value in texts_in(json.loads(text)):
            assert "<img" not in value
            assert "<b>bold" not in value
            assert "</script" not in value


def test_texts_within_scripts_end_no_script():
    text = script_json({"a": HOSTILE, "b": [1.23456789, float("inf")]})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": HOSTILE, "b": [1.23457, None]}


def test_labels_are_short_and_no_markup():
    assert label("<b>x</b> & y") == "&lt;b&gt;x&lt;/b&gt; &amp; y"
    assert len(label("x" * 200)) == 60
    assert rounded((1, True, None, 0.1234567)) == [1, True, None, 0.123457]


COLOURS = {
    "@paper", "@ink", "@dim", "@pale", "@prefill", "@decode", "@colocated", "@transfer", "@limit", "@band",
    "@grid",
}  # fmt: skip


@pytest.mark.slow
def test_charts_are_plotly_figures():
    from plotly.graph_objects import Figure as PlotlyFigure

    js = (Path(gathering.__file__).parent / "page.js").read_text(encoding="utf-8")
    for colour in COLOURS:
        assert js.count(f'"{colour}": ') == 2, colour  # light and dark
    figures = [b for s in sections(full(two_services())) for b in s.blocks if isinstance(b, Figure)]
    assert len({f.key for f in figures}) == len(figures) >= 9
    for figure in figures:
        text = script_json({"data": figure.data, "layout": figure.layout})
        assert set(re.findall(r"@\w+", text)) <= COLOURS
        PlotlyFigure(json.loads(re.sub(r'"@\w+"', '"#123456"', text)))  # refuses what plotly does not know


# --------------------------------------------------------------------------------------------
# What it says


def blocks(facts: ReportFacts, key: str) -> list[Any]:
    (section,) = (s for s in sections(facts) if s.key == key)
    return list(section.blocks)


def test_first_figures_are_the_plans():
    plan = disaggregated()
    (cards,) = [b for b in blocks(quick(plan), "summary") if isinstance(b, Cards)]
    cost, gpus, ttft, tpot = cards.cards
    assert cost == (f"${plan.cost:,.2f}", "an hour", "")
    assert gpus[0] == str(plan.num_gpus)
    assert ttft[1:] == ("p99 TTFT predicted, limit 1,000 ms", "good")
    assert tpot[0] == f"{plan.predictions[0].tpot.planned.p99 * 1000:.3g} ms"


def test_simulated_latencies_count_where_there_are_any():
    plan = disaggregated()
    details: dict[str, Any] = {
        "ttft_ms": {"p50": 100.0, "p99": 1200.0},
        "tpot_ms": {"p50": 10.0, "p99": None},
    }
    failed = replace(
        plan, verification=Verification(passed=False, details={**details, "failures": ["TTFT missed"]})
    )
    (cards,) = [b for b in blocks(quick(failed), "summary") if isinstance(b, Cards)]
    assert cards.cards[2][0] == "1,200 ms"
    assert cards.cards[2][2] == "bad"
    assert cards.cards[3][0] == "unbounded"
    assert holds(failed) == Text(text="DOES NOT HOLD in simulation: TTFT missed.", kind="bad")
    assert holds(plan).text == "Predicted, not simulated."
    assert holds(replace(plan, verification=Verification(passed=True))).kind == "good"
    (figure,) = [b for b in blocks(quick(failed), "latency") if isinstance(b, Figure)]
    marks = [t for t in figure.data if t["name"] == "simulated when planned"]
    assert marks[0]["x"] == [100.0, 1200.0]
    assert marks[1]["x"] == [10.0]


def test_moves_and_divided_prompts_are_told():
    plan = disaggregated()
    group = plan.groups[0].name
    bucket = LengthBucket(service="x", shortest=1, longest=512, share=0.25)
    split = LengthSplit(buckets=(bucket,), cost_unsplit=5.0, costs={1: 5.0}, front_door="by length")
    moved = replace(plan, moves=(Move(group=group, before=3, after=1),), move_cost=20.0, split=split)
    found = blocks(quick(moved), "pools")
    assert any(b.rows == ((group, "stop 2", "3", "1"),) for b in found if isinstance(b, Table))
    assert Text(text="Moves cost $20.00, once.") in found
    assert any("prompts of 1 to 512 tokens, 25 %" in b.text for b in found if isinstance(b, Source))
    kept = blocks(quick(replace(plan, move_cost=0.0)), "pools")
    assert Text(text="The fleet that stands is kept as it is.") in kept


def test_limits_stand_at_their_percentile():
    (figure,) = [b for b in blocks(quick(disaggregated()), "latency") if isinstance(b, Figure)]
    ttft, tpot = [t for t in figure.data if t["name"] == "SLO"]
    assert ttft["x"][:2] == [1000.0, 1000.0]
    assert tpot["x"][:2] == [40.0, 40.0]
    assert ttft["y"][1] == pytest.approx(2.0)  # 99 %


def test_operating_points_are_those_of_the_groups():
    plan = disaggregated()
    facts = quick(plan)
    by_group = {
        group: p for o in facts.rooflines for p, group in zip(o.roofline.points, o.groups, strict=True)
    }
    for group in plan.groups:
        assert by_group[group.name].phase is group.phase
        if group.phase is Phase.DECODE:
            assert by_group[group.name].batch == pytest.approx(group.mean_batch)
            assert by_group[group.name].context == pytest.approx(1100)  # the prompt and half the answer
        else:
            assert by_group[group.name].context == pytest.approx(1000)


def test_the_bill_adds_up():
    plan = disaggregated()
    table = next(b for b in blocks(quick(plan), "cost") if isinstance(b, Table))
    assert table.rows[-1][3] == f"{plan.cost:,.2f}"
    figure = next(b for b in blocks(quick(plan), "cost") if isinstance(b, Figure))
    assert sum(figure.data[0]["x"]) == pytest.approx(plan.cost * 730)


def test_bars_of_the_tornado_start_at_the_plan():
    facts = full(disaggregated())
    figure = next(b for b in blocks(facts, "sensitivity") if isinstance(b, Figure))
    low, high = figure.data
    assert low["x"] == [-2.0, 0.0]
    assert high["x"] == [None, 2.0]
    assert low["base"] == 10.0
    assert figure.layout["annotations"][0]["text"] == "no plan with more of it"


def test_sections_that_are_left_out_say_why():
    facts = quick(disaggregated())
    for key in ("pareto", "sensitivity", "timeline"):
        assert Text(text=f"Not shown: {FAST}.", kind="note") in blocks(facts, key)
    unpriced = solved(
        objective="gpus", fleet=[{"gpu": "h100-sxm", "max_gpus": 64, "network_gbps_per_gpu": 400}]
    )
    facts = quick(unpriced)
    assert "the price of h100-sxm is not known" in facts.absent["cost"]
    assert any("is not known" in b.text for b in blocks(facts, "cost") if isinstance(b, Text))
    assert "GPUs" in report_page(facts)


def test_the_scenario_is_there_as_it_was_asked():
    (source,) = blocks(quick(disaggregated()), "scenario")
    assert isinstance(source, Source)
    assert "meta-llama/Llama-3.1-8B-Instruct" in source.text


def test_parts_that_fail_are_left_out_with_the_reason(monkeypatch):
    def fails(*_args, **_options):
        raise InfeasibleError("stock of h100-sxm", "2 GPUs")

    monkeypatch.setattr(gathering, "pareto", fails)
    monkeypatch.setattr(gathering, "sensitivity", fails)
    facts = gather(asked_of(disaggregated()), Parts(without_simulation=FAST))
    assert "stock of h100-sxm" in facts.absent["pareto"]
    assert facts.sensitivity is None
    assert facts.paretos == ()


def test_interrupted_searches_interrupt_the_report(monkeypatch):
    result = replace(full(disaggregated()).sensitivity, interrupted=True)
    monkeypatch.setattr(gathering, "pareto", lambda *_a, **_o: replace(full(disaggregated()).paretos[0]))
    monkeypatch.setattr(gathering, "sensitivity", lambda *_a, **_o: result)
    with pytest.raises(KeyboardInterrupt):
        gather(asked_of(disaggregated()), Parts(without_simulation=FAST))


@pytest.mark.slow
def test_everything_is_gathered_and_told_of():
    asked = asked_of(disaggregated())
    done = []
    facts = gather(asked, on_step=lambda: done.append(1))
    assert len(done) == steps(asked, gathering.FULL)
    assert facts.absent == {}
    (curve,) = facts.curves.values()
    predicted = facts.plan.predictions[0].tpot.planned.p90
    simulated = curve.tpot[min(range(len(curve.shares)), key=lambda i: abs(curve.shares[i] - 0.9))]
    assert simulated == pytest.approx(predicted, rel=0.25)
    assert [p.varied for p in facts.paretos] == ["ttft", "tpot"]
    assert facts.sensitivity.base.value == pytest.approx(facts.plan.value, rel=0.01)
    (found,) = facts.timelines.values()
    assert len(found.panels) == 2
    again = gather(asked)
    assert report_page(again) == report_page(facts)
    assert {m.value for m in Metric} >= {p.varied for p in facts.paretos}


# --------------------------------------------------------------------------------------------
# Command


def test_command_writes_a_page(planner: Runner, tmp_path: Path):
    plan, page = written(two_services(), tmp_path / "plan.yaml"), tmp_path / "report.html"
    result = planner("report", plan, "--fast", "-o", page)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"report written to {page}\n"
    text = page.read_text(encoding="utf-8")
    assert "Capacity plan for chat, code" in text
    first = page.read_bytes()
    assert planner("report", plan, "--fast", "-o", page).code == 0
    assert page.read_bytes() == first
    assert sorted(os.listdir(tmp_path)) == ["plan.yaml", "report.html"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan.yaml",), "Missing option '-o'"),
        (("plan.yaml", "-o", "report.pdf"), "is no page (the name has to end in .html)"),
        (("plan.yaml", "-o", "no/report.html"), "there is no folder no"),
        (("plam.yaml", "-o", "report.html"), "no such file (did you mean plan.yaml?)"),
        (("scenario.yaml", "-o", "report.html"), "is a scenario, not a plan"),
        (("plan.yaml", "-o", "report.html", "--date", "x" * 61), "a line of at most 60 characters"),
        (("plan.yaml", "-o", "report.html", "--date", "a\nb"), "a line of at most 60 characters"),
    ],
)
def test_refusals(planner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    written(disaggregated(), tmp_path / "plan.yaml")
    (tmp_path / "scenario.yaml").write_text("model: x\nfleet: []\n", encoding="utf-8")
    result = planner("report", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert sorted(os.listdir(tmp_path)) == ["plan.yaml", "scenario.yaml"]


def test_without_plotly_the_extra_is_named(planner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    plan = written(disaggregated(), tmp_path / "plan.yaml")
    result = planner("report", plan, "--fast", "-o", tmp_path / "r.html")
    assert result.code == 2
    assert "a report needs plotly: pip install 'pd-planner[report]'" in result.err
    assert sorted(os.listdir(tmp_path)) == ["plan.yaml"]
