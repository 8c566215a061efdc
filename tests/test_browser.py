"""The report in a browser: no error, no request, charts that can be used, light, dark and printed.

Needs plotly, playwright and a Chromium in the PATH (or its path in PLANNER_CHROMIUM).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_plans import disaggregated

pytest.importorskip("plotly", reason="the report needs plotly")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from planner.report.html.gather import FAST, Parts, gather  # noqa: E402
from planner.report.html.page import report_page  # noqa: E402
from planner.whatif.asked import asked_of  # noqa: E402

pytestmark = pytest.mark.browser
CHROMIUM = os.environ.get("PLANNER_CHROMIUM") or next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    facts = gather(asked_of(disaggregated()), Parts(without_solves=FAST))
    path.write_text(report_page(facts), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium in the PATH")
    with sync_api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Visit:
    """An open page, with what it complained of and asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector(".plot svg.main-svg")

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def until(self, script: str) -> None:
        """Wait for an expression to be true; the page forbids playwright's own way, which is eval."""
        for _ in range(50):
            if self.page.evaluate(script):
                return
            self.page.wait_for_timeout(100)
        raise AssertionError(f"never true: {script}")

    def colour(self, selector: str, style: str) -> str:
        script = f"e => getComputedStyle(e).getPropertyValue('{style}')"
        return str(self.page.eval_on_selector(selector, script))


def brightness(rgb: str) -> float:
    """Of a colour as a browser tells it, between 0 and 255."""
    numbers = rgb[rgb.index("(") + 1 : -1].split(",")
    return sum(float(n) for n in numbers[:3]) / 3


@pytest.fixture
def visit(browser: Any, page_file: Path) -> Iterator[Visit]:
    found = Visit(browser, page_file)
    yield found
    found.context.close()
    assert found.errors == []
    own = [url for url in found.requests if url.startswith("file:")]
    assert own == [page_file.as_uri()]
    assert all(url.startswith(("file:", "data:", "blob:")) for url in found.requests)


def test_every_chart_is_drawn(visit: Visit) -> None:
    plots = visit.page.locator(".plot").count()
    assert plots >= 6
    drawn = visit.page.eval_on_selector_all(
        ".plot", "ps => ps.map(p => p.querySelectorAll('.main-svg').length)"
    )
    assert len(drawn) == plots
    assert min(drawn) >= 1
    sizes = visit.page.eval_on_selector_all(
        ".plot .main-svg", "ss => ss.map(s => s.getBoundingClientRect().width)"
    )
    assert min(sizes) > 600
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_hovering_tells_figures(visit: Visit) -> None:
    plot = visit.page.locator("#plot-cost")
    plot.scroll_into_view_if_needed()
    box = plot.locator(".bars .point path").first.bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    visit.page.wait_for_selector("#plot-cost .hoverlayer .hovertext")
    assert "a month" in visit.page.locator("#plot-cost .hoverlayer .hovertext").first.text_content()


def test_a_click_in_a_legend_hides_what_it_names(visit: Visit) -> None:
    hidden = "document.getElementById('plot-load').data.filter(t => t.visible === 'legendonly').length"
    bars = "document.querySelectorAll('#plot-load .barlayer .trace').length"
    visit.page.locator("#plot-load").scroll_into_view_if_needed()
    assert visit.page.evaluate(hidden) == 0
    before = visit.page.evaluate(bars)
    visit.page.locator("#plot-load .legendtoggle").first.click()
    visit.until(f"{hidden} === 1")
    visit.until(f"{bars} === {before} - 1")


def test_links_and_tables_are_within_reach_of_the_keyboard(visit: Visit) -> None:
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.className") == "skip"
    visit.page.keyboard.press("Enter")
    assert visit.page.evaluate("location.hash") == "#main"
    summary = visit.page.locator("#latency summary").first
    summary.focus()
    visit.page.keyboard.press("Enter")
    assert visit.page.locator("#latency details[open]").count() == 1
    visit.page.locator('nav a[href="#cost"]').focus()
    visit.page.keyboard.press("Enter")
    assert visit.page.evaluate("location.hash") == "#cost"


def test_dark_pages_are_dark_in_their_charts_too(browser: Any, page_file: Path) -> None:
    dark = Visit(browser, page_file, color_scheme="dark")
    light = Visit(browser, page_file, color_scheme="light")
    label = "#plot-cost .xtick text"
    assert brightness(dark.colour("body", "background-color")) < 40
    assert brightness(dark.colour(label, "fill")) > 180
    assert brightness(light.colour("body", "background-color")) > 240
    assert brightness(light.colour(label, "fill")) < 60
    light.page.emulate_media(color_scheme="dark")  # charts follow
    light.until(f"parseInt(getComputedStyle(document.querySelector('{label}')).fill.slice(4)) > 180")
    assert dark.errors == light.errors == []
    for found in (dark, light):
        found.context.close()


def test_printing_is_light_whole_and_opens_tables(browser: Any, page_file: Path, tmp_path: Path) -> None:
    found = Visit(browser, page_file, color_scheme="dark")
    found.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert found.page.locator("details:not([open])").count() == 0
    assert brightness(found.colour("#plot-cost .xtick text", "fill")) < 60
    found.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert found.page.locator("details[open]").count() == 0
    assert brightness(found.colour("#plot-cost .xtick text", "fill")) > 180
    found.page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    assert found.errors == []
    found.context.close()


def test_narrow_screens_do_not_scroll_sideways(browser: Any, page_file: Path) -> None:
    found = Visit(browser, page_file, viewport={"width": 390, "height": 800})
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert found.errors == []
    found.context.close()


def test_without_scripts_the_tables_remain(browser: Any, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(page_file.as_uri())
    assert page.locator("noscript").count() == 1
    assert page.locator("#latency table").count() >= 1
    context.close()
