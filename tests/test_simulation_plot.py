"""The page on a simulated run: what it shows, from small runs of the example fleets."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from planner.documents.fleet import load_fleet
from planner.errors import SpecError
from planner.evaluation import standing_fleet
from planner.report import simulation_plot
from planner.report.figures import COLOCATED, DECODE, PREFILL, TRANSFER
from planner.report.simulation_plot import save_simulation
from planner.simulator import kernel
from planner.simulator.build import Setup
from planner.simulator.cluster import Failure
from planner.simulator.metrics import measure, measured_latencies
from planner.simulator.run import run_fleet
from planner.specs import Metric, Slo, SloTarget, Statistic

FLEETS = Path(__file__).parents[1] / "examples" / "fleets"
SVG = "{http://www.w3.org/2000/svg}"
NO_SLO = Slo(targets=())


def run_of(name, number=3000, rate=None, setup=None, **changes):
    """Outcome and SLOs; `changes` are to the fleet."""
    standing = standing_fleet(load_fleet(FLEETS / name))
    fleet = replace(standing.fleet, **changes)
    names = standing.names if len(fleet.groups) == len(standing.names) else ()
    setup = setup or Setup(input_ranges=standing.input_ranges if names else ())
    source = replace(standing.source, rate=rate or standing.source.rate)
    return run_fleet(fleet, source, number, setup, names=names), fleet.service.slo


def target(metric, statistic, limit):
    return SloTarget(metric=metric, statistic=Statistic(statistic), limit=limit)


@pytest.fixture(scope="module")
def disaggregated():
    return run_of("llama-70b-running.yaml")


@pytest.fixture(scope="module")
def overloaded():
    return run_of("llama-70b-running.yaml", rate=40)


@pytest.fixture(scope="module")
def colocated():
    return run_of("llama-8b-colocated.yaml", rate=20)


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib", reason="figures need matplotlib")


@pytest.fixture
def drawn(monkeypatch, matplotlib):
    """Draws a run and gives the figure instead of a file."""
    from matplotlib.figure import Figure

    def draw(outcome, slo):
        figure = Figure()
        with monkeypatch.context() as patch:
            patch.setattr(simulation_plot, "save_figure", lambda path, paint: paint(figure))
            save_simulation(measure(outcome, slo), outcome, Path("page.png"))
        return figure

    return draw


def panel(figure, start):
    return next(axes for axes in figure.axes if axes.get_title(loc="left").startswith(start))


def lines(axes, width):
    """Lines that are wider than `width`, as (x, y)."""
    return [line.get_data() for line in axes.lines if line.get_linewidth() > width]


def marks(axes):
    return {
        (line.get_marker(), float(line.get_xdata()[0]), float(line.get_ydata()[0]))
        for line in axes.lines
        if line.get_marker() != "None"
    }


def legend(figure):
    (box,) = figure.legends
    return [text.get_text() for text in box.get_texts()]


def svg_texts(path):
    return [element.text for element in ElementTree.parse(path).iter(f"{SVG}text")]


# Files


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pages_are_the_same_bytes_each_time(tmp_path, disaggregated, suffix):
    outcome, slo = disaggregated
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    for path in (first, second):
        save_simulation(measure(outcome, slo), outcome, path)
    data = first.read_bytes()
    assert data == second.read_bytes()
    assert sorted(os.listdir(tmp_path)) == [first.name, second.name]
    if suffix == ".png":
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert data.endswith(b"IEND\xaeB`\x82")
        assert int.from_bytes(data[16:20], "big") == 1760
        assert b"Software" not in data


@pytest.mark.usefixtures("matplotlib")
def test_svg_says_what_it_shows(tmp_path, disaggregated):
    outcome, slo = disaggregated
    save_simulation(measure(outcome, slo), outcome, tmp_path / "page.svg")
    texts = svg_texts(tmp_path / "page.svg")
    assert {
        "Poisson arrivals at 15 req/s", "TTFT", "TPOT", "time to first token [ms]", "p99 ≤ 1,000 ms",
        "p99 ≤ 50 ms", "Queue length [requests]", "Output [tokens per second]", "KV cache in use [%]",
        "Decode batch [sequences per replica]", "Busy [%]", "NIC load [%]", "time [s]",
        "3 x prefill-h100-sxm-tp2", "1 x decode", "KV caches under way", "not measured",
    } <= set(texts)  # fmt: skip


@pytest.mark.usefixtures("matplotlib")
def test_names_are_no_formulas_and_need_no_glyphs(tmp_path, disaggregated):
    outcome, slo = disaggregated
    name = "$x_1$ 取引 <trace> & " + "long " * 60
    outcome = replace(outcome, requests=replace(outcome.requests, name=name))
    for suffix in (".png", ".svg"):  # warnings would be errors here
        save_simulation(measure(outcome, slo), outcome, tmp_path / f"page{suffix}")
    title = svg_texts(tmp_path / "page.svg")
    assert any(text.startswith("$x_1$ 取引 <trace> & long") for text in title)
    assert any(text.endswith("long ...") for text in title)


def test_pages_follow_no_settings_and_leave_none(tmp_path, matplotlib, colocated):
    outcome, slo = colocated
    result = measure(outcome, slo)
    save_simulation(result, outcome, tmp_path / "before.svg")
    with matplotlib.rc_context({"font.size": 30.0, "lines.linewidth": 9.0, "axes.grid": True}):
        save_simulation(result, outcome, tmp_path / "after.svg")
        assert matplotlib.rcParams["font.size"] == 30
    assert (tmp_path / "before.svg").read_bytes() == (tmp_path / "after.svg").read_bytes()


@pytest.mark.parametrize("name", ["page", "page.pdf", ".png"])
def test_other_formats_are_refused(tmp_path, monkeypatch, disaggregated, name):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # found out without it
    outcome, slo = disaggregated
    with pytest.raises(SpecError, match=r"is no plot \(the name has to end in \.png or \.svg\)"):
        save_simulation(measure(outcome, slo), outcome, tmp_path / name)


def test_missing_matplotlib_is_said_with_the_remedy(tmp_path, monkeypatch, disaggregated):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome, slo = disaggregated
    with pytest.raises(SpecError, match=r"plots need matplotlib: pip install 'pd-planner\[report\]'"):
        save_simulation(measure(outcome, slo), outcome, tmp_path / "page.png")
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("matplotlib")
def test_pages_that_cannot_be_written(tmp_path, disaggregated):
    outcome, slo = disaggregated
    with pytest.raises(SpecError, match="cannot be written: there is no folder"):
        save_simulation(measure(outcome, slo), outcome, tmp_path / "nowhere" / "page.svg")


# Latencies


@pytest.mark.parametrize("metric", [Metric.TTFT, Metric.TPOT])
def test_curve_is_the_distribution(drawn, disaggregated, metric):
    outcome, _ = disaggregated
    slo = Slo(targets=tuple(target(metric, s, 10.0) for s in ("p50", "p90", "p95", "p99")))
    values = getattr(measured_latencies(outcome), metric.value)
    axes = panel(drawn(outcome, slo), metric.upper())
    ((x, share),) = lines(axes, 1.5)
    values = values[~np.isnan(values)] * 1000
    assert x == pytest.approx(np.quantile(values, share, method="higher"))
    assert axes.get_xscale() == "log"
    assert (share[0], share[-1]) == pytest.approx((0.008, 0.9994))
    found = {(m, round(y, 9)): x for m, x, y in marks(axes)}
    for p in (0.5, 0.9, 0.95, 0.99):
        assert found["o", p] == pytest.approx(np.quantile(values, p, method="higher"))


def test_verdict_and_marks_of_limits(drawn, disaggregated):
    outcome, _ = disaggregated
    slo = Slo(
        targets=(
            target(Metric.TTFT, "p50", 0.05),
            target(Metric.TTFT, "mean", 9.0),
            target(Metric.TPOT, "p99", 1),
        )
    )
    result = measure(outcome, slo)
    figure = drawn(outcome, slo)
    head = [text.get_text() for text in figure.texts]
    assert head[2].startswith("does not hold: p50 TTFT <= 50 ms")
    axes = panel(figure, "TTFT")
    assert sorted(marker for marker, _, _ in marks(axes)) == ["D", "o"]
    labels = {text.get_text(): text.get_ha() for text in axes.texts}
    assert labels == {"p50 ≤ 50 ms": "right", "mean ≤ 9,000 ms": "left"}  # on the side without the curve
    beside = axes.get_title(loc="right")
    assert beside == f"p50 {result.ttft.value.p50 * 1000:.0f}, mean {result.ttft.value.mean * 1000:.0f} ms"
    assert "±" in panel(figure, "TPOT").get_title(loc="right")
    low, high = axes.get_xlim()
    assert low < 50 < 9000 < high


def test_a_run_without_slo(drawn, disaggregated):
    figure = drawn(disaggregated[0], NO_SLO)
    assert figure.texts[2].get_text() == "no SLO to meet; there is a steady state"
    assert panel(figure, "TTFT").get_title(loc="right").startswith("p50 ")
    assert marks(panel(figure, "TTFT")) == set()


def test_an_overloaded_fleet(drawn, overloaded):
    outcome, slo = overloaded
    figure = drawn(outcome, slo)
    head = " ".join(text.get_text() for text in figure.texts)
    assert "does not hold" in head
    assert "queues grow" in head
    queue = max((y for _, y in lines(panel(figure, "Queue"), 1.5)), key=lambda y: y[-1])
    assert queue[-1] > 100
    assert max(queue) <= panel(figure, "Queue").get_ylim()[1]


def lost(outcome, where):
    """The outcome without the answers of some requests."""
    request = outcome.request.copy()
    request["state"][where] = kernel.REJECTED
    for name in ("first", "last"):
        request[name][where] = np.nan
    return replace(outcome, request=request)


def test_requests_without_an_answer(drawn, disaggregated):
    outcome, slo = disaggregated
    figure = drawn(lost(outcome, slice(None, None, 20)), slo)
    axes = panel(figure, "TTFT")
    ((_, share),) = lines(axes, 1.5)
    assert 0.94 < share[-1] < 0.96
    assert "5.0% never served" in [text.get_text() for text in axes.texts]
    assert axes.get_title(loc="right") == "p99 ∞ ms"
    assert marks(axes) == {(">", axes.get_xlim()[1], 0.99)}


def test_no_answer_at_all(drawn, disaggregated):
    outcome, slo = disaggregated
    figure = drawn(lost(outcome, slice(None)), slo)
    assert "no request was served" in [text.get_text() for text in panel(figure, "TTFT").texts]


def test_no_request_with_a_second_token(drawn, disaggregated):
    outcome, slo = disaggregated
    request = outcome.request.copy()
    request["osl"] = 1
    figure = drawn(replace(outcome, request=request), slo)
    axes = panel(figure, "TPOT")
    assert {text.get_text() for text in axes.texts} == {"no request has a second token", "p99 ≤ 50 ms"}


@pytest.mark.parametrize("value", [0.0, 1e-9, 3.0, 1e6])
def test_all_requests_alike(drawn, disaggregated, value):
    outcome, _ = disaggregated
    request = outcome.request.copy()
    request["first"] = request["arrival"] + value
    axes = panel(drawn(replace(outcome, request=request), NO_SLO), "TTFT")
    low, high = axes.get_xlim()
    assert 0 < low < max(value, 1e-6) * 1000 < high
    assert len(axes.get_xticks()) >= 2


@pytest.mark.parametrize("spread", [1.02, 1.5, 4, 30, 1e3, 1e6, 1e12])
def test_ticks_of_any_range(drawn, disaggregated, spread):
    outcome, _ = disaggregated
    request = outcome.request.copy()
    request["first"] = request["arrival"] + 0.1 * np.geomspace(1, spread, len(request))
    axes = panel(drawn(replace(outcome, request=request), NO_SLO), "TTFT")
    ticks, labels = axes.get_xticks(), [text.get_text() for text in axes.get_xticklabels()]
    assert 3 <= len(ticks) <= 11
    assert len(set(labels)) == len(labels)


# Groups


def test_phases_have_their_colours(drawn, disaggregated, colocated):
    figure = drawn(*disaggregated)
    colours = {line.get_color() for line in panel(figure, "Queue").lines}
    assert colours == {PREFILL, DECODE, TRANSFER}
    assert {line.get_color() for line in panel(figure, "Decode batch").lines} == {DECODE}
    figure = drawn(*colocated)
    assert COLOCATED in {line.get_color() for line in panel(figure, "Queue").lines}
    assert legend(figure) == ["4 x short", "2 x long", "not measured"]


def test_colocated_fleets_have_no_link(drawn, colocated):
    titles = [axes.get_title(loc="left") for axes in drawn(*colocated).axes]
    assert len(titles) == 7
    assert not any(title.startswith("NIC") for title in titles)


def test_series_over_time(drawn, disaggregated):
    outcome, slo = disaggregated
    result = measure(outcome, slo)
    axes = panel(drawn(outcome, slo), "Decode batch")
    (raw,) = [line.get_data() for line in axes.lines if line.get_linewidth() < 1]
    assert raw[0] == pytest.approx(outcome.sample_times)
    assert raw[1] == pytest.approx(result.series[1].batch)
    ((_, smooth),) = lines(axes, 1.5)
    assert smooth[100] == pytest.approx(raw[1][94:107].mean())
    assert smooth[0] == pytest.approx(raw[1][:4].mean())
    assert smooth[-1] == pytest.approx(raw[1][-4:].mean())


@pytest.mark.parametrize("pools", [(6, 6), (1, 11)])
def test_twelve_groups_all_differ(drawn, pools):
    standing = standing_fleet(load_fleet(FLEETS / "llama-70b-running.yaml"))
    prefill, decode = standing.fleet.groups
    groups = (replace(prefill, replicas=2),) * pools[0] + (replace(decode, replicas=1),) * pools[1]
    figure = drawn(*run_of("llama-70b-running.yaml", number=500, groups=groups))
    shown = [line for line in panel(figure, "Queue").lines if line.get_color() != TRANSFER]
    assert len(shown) == 12  # no single samples
    assert (
        len({(line.get_color(), str(line.get_linestyle()), str(line._dash_pattern)) for line in shown}) == 12
    )
    assert legend(figure)[:12] == [f"{2 if k < pools[0] else 1} x {k}" for k in range(12)]


def test_one_group(drawn):
    standing = standing_fleet(load_fleet(FLEETS / "llama-8b-colocated.yaml"))
    groups = (replace(standing.fleet.groups[0], replicas=1),)
    figure = drawn(*run_of("llama-8b-colocated.yaml", number=300, rate=2, groups=groups))
    assert legend(figure)[0] == "1 x 0"


@pytest.mark.usefixtures("matplotlib")
@pytest.mark.parametrize("name", ["llama-70b-running.yaml", "llama-8b-colocated.yaml"])
def test_one_request(tmp_path, name):
    outcome, slo = run_of(name, number=1, rate=1)
    save_simulation(measure(outcome, slo), outcome, tmp_path / "page.svg")
    texts = svg_texts(tmp_path / "page.svg")
    assert "1 request, 1 measured" in texts
    assert "not measured" not in texts


def test_no_samples(drawn, disaggregated):
    outcome, slo = disaggregated
    outcome = replace(outcome, samples=outcome.samples[:0], sample_times=outcome.sample_times[:0])
    figure = drawn(outcome, slo)
    assert [text.get_text() for text in panel(figure, "Busy").texts] == ["no samples"]
    assert figure.legends == []


def test_replicas_that_are_down(drawn):
    failures = (
        Failure(group=0, replica=0, time=20.0, until=40.0),
        Failure(group=0, replica=1, time=60.0),
        Failure(group=0, replica=2, time=1e9),
    )
    figure = drawn(*run_of("llama-70b-running.yaml", number=2000, setup=Setup(failures=failures)))
    assert "a replica is down" in legend(figure)
    spans = [(p.get_x(), p.get_x() + p.get_width()) for p in panel(figure, "Busy").patches if p.get_alpha()]
    assert spans == [(20.0, 40.0), (60.0, pytest.approx(panel(figure, "Busy").get_xlim()[1]))]


@pytest.mark.parametrize(("factor", "unit"), [(1, "s"), (10, "min"), (1000, "h")])
def test_unit_of_the_time_axis(drawn, disaggregated, factor, unit):
    outcome, slo = disaggregated
    figure = drawn(replace(outcome, sample_times=outcome.sample_times * factor), slo)
    assert panel(figure, "Busy").get_xlabel() == f"time [{unit}]"


@pytest.mark.usefixtures("matplotlib")
def test_a_million_requests_make_no_larger_file(tmp_path, disaggregated):
    outcome, slo = disaggregated
    result = measure(outcome, slo)
    number = 1_000_000
    request = np.tile(outcome.request, number // len(outcome.request) + 1)[:number]
    request["arrival"] = np.sort(request["arrival"])
    request["first"] = request["arrival"] + np.linspace(0.1, 2.0, number)
    many = replace(outcome, request=request, requests=replace(outcome.requests, arrival=request["arrival"]))
    save_simulation(result, many, tmp_path / "page.svg")
    assert (tmp_path / "page.svg").stat().st_size < 400_000
