"""The documentation: its commands are run, its links lead somewhere, its reference is that of the code."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import planner
from planner.cli import group
from planner.documents.scenario import scenario_from_text
from planner.documents.schemas import json_schemas, schema_names

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
KOREAN = ROOT / "README.ko.md"
ENGLISH = ROOT / "README.md"
EXECUTED = ("docs/tutorial.md", "docs/concepts/latency.md", "README.ko.md")
SIMULATED = ("solve", "simulate", "evaluate")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@cache
def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look for it
    path = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = path
    return module


@cache
def reference() -> dict[str, str]:
    pages: dict[str, str] = tool("build_docs_reference").pages()
    return pages


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


# --------------------------------------------------------------------------------------------
# Commands of pages


def parts(text: str) -> tuple[list[str], list[float]]:
    """Words and numbers of a text, spaces and lines apart."""
    numbers = [float(number.replace(",", "")) for number in _NUMBER.findall(text)]
    return _NUMBER.sub("#", text).split(), numbers


@pytest.mark.slow
@pytest.mark.parametrize("page", EXECUTED)
def test_commands_of_the_page(page: str) -> None:
    """Each is run as it stands; figures of simulations may differ a little from machine to machine."""
    ran = tool("docs_pages").run_page(text_of(page))
    assert len(ran) == text_of(page).count("\n$ ") + hidden(text_of(page))
    for one in ran:
        assert one.code == 0, f"{one.command}\n{one.printed}"
        if one.shown is None or page == "README.ko.md":  # which shows what README.md does
            continue
        words, numbers = parts(one.printed)
        shown_words, shown_numbers = parts(one.shown)
        hint = f"{one.command}: run tools/docs_pages.py {page}"
        assert words == shown_words, hint
        simulated = any(f"planner {name} " in one.command for name in SIMULATED)
        assert numbers == pytest.approx(shown_numbers, rel=0.1 if simulated else 1e-9, abs=0.02), hint


def hidden(text: str) -> int:
    """Commands that show no output."""
    shell = "".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    commands = [line for line in shell.splitlines() if "pip install" not in line]
    return len(commands) + text.count("```python\n")


def test_a_page_runs_in_one_folder_from_top_to_end() -> None:
    page = (
        'Text.\n\n```yaml title="a.yaml"\nkey: 1\n```\n\n```yaml\nnot: written\n```\n\n'
        "```console\n$ cat a.yaml; ls\nold\n$ exit 3\n```\n\n"
        "```sh\npip install nothing\ncp a.yaml b.yaml\n```\n\n```python\nimport planner\n```\n\n"
        "```console\n$ cat b.yaml\n```\n"
    )
    pages = tool("docs_pages")
    ran = pages.run_page(page)
    assert [(one.shown, one.printed, one.code) for one in ran] == [
        ("old\n", "key: 1\na.yaml\nexamples\n", 0), ("", "", 3),
        (None, "", 0), (None, "", 0), ("", "key: 1\n", 0),
    ]  # fmt: skip
    updated = pages.updated(page, ran)
    assert "$ cat a.yaml; ls\nkey: 1\na.yaml\nexamples\n$ exit 3\n```" in updated
    assert updated.endswith("```console\n$ cat b.yaml\nkey: 1\n```\n")
    assert "pip install nothing\ncp a.yaml b.yaml\n```" in updated


def test_the_tutorial_installs_as_the_readme_does() -> None:
    """That command of the README is run by the whole check."""
    (install,) = re.findall(r"^.*pip install.*$", text_of("docs/tutorial.md"), re.MULTILINE)
    assert f"\n{install} && .venv/bin/planner solve " in text_of("README.md")


def own_pages() -> list[Path]:
    written = ("index", "tutorial", "how-to", "benchmarks", "limits")
    return [*(DOCS / f"{name}.md" for name in written), *(DOCS / "concepts").glob("*.md"), KOREAN]


def command_of(words: list[str]) -> tuple[click.Command, list[str]] | None:
    """The command that the words name, and the words after its name."""
    command: click.Command = group
    while isinstance(command, click.Group):
        context = click.Context(command)
        inner = command.get_command(context, words[0]) if words else None
        if inner is None:
            return None if command is group else (command, words)
        command, words = inner, words[1:]
    return command, words


def mentioned(page: Path) -> list[str]:
    return re.findall(r"`planner ([^`\n]+)`", page.read_text(encoding="utf-8"))


def test_commands_within_lines_exist_and_have_these_options() -> None:
    said = [(page.name, text) for page in own_pages() for text in mentioned(page)]
    assert len(said) > 30
    for page, text in said:
        if text.startswith(("COMMAND", "--help")):
            continue
        found = command_of(text.split())
        assert found is not None, f"{page}: planner {text}"
        command, rest = found
        known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)} | {"--help"}
        options = [word for word in rest if word.startswith("-")]
        assert [option for option in options if option not in known] == [], f"{page}: planner {text}"


def test_each_benchmark_has_its_command_and_the_command_is_there() -> None:
    text = text_of("docs/benchmarks.md")
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    figures = [row for row in rows if re.search(r"\d", row)]
    assert len(figures) > 10
    pattern = r"`(?:python -m benchmarks\.\w+|pytest |planner |du )"
    assert [row for row in figures if not re.search(pattern, row)] == []
    modules = set(re.findall(r"python -m benchmarks\.(\w+)", text))
    assert {m for m in modules if not (ROOT / "benchmarks" / f"{m}.py").is_file()} == set()


def bars() -> dict[str, list[str]]:
    """Rows of the first table of the model card, by what they are of."""
    rows = [
        line.strip("| ").split(" | ")
        for line in text_of("docs/model-card.md").splitlines()
        if " met |" in line
    ]
    return {row[0]: row for row in rows}


def said_in(pages: tuple[str, ...], words: str) -> list[str]:
    """Pages that do not say so."""
    return [page for page in pages if words not in " ".join(text_of(page).split())]


def test_quoted_figures_are_those_of_their_pages() -> None:
    study = text_of("docs/disaggregation.md")
    found = re.search(r"carries more in (\d+), colocated serving in (\d+);", study)
    assert found is not None
    apart, together = found.groups()
    assert (
        said_in(("docs/concepts/serving.md",), f"won in {apart} of 100 cells and colocated in {together}")
        == []
    )
    assert said_in(("docs/benchmarks.md",), f"more in {apart} of 100 cells, colocated in {together}") == []
    assert (
        said_in(("README.ko.md",), f"분리가 나은 경우가 {apart}, 함께 두는 편이 나은 경우가 {together}") == []
    )

    row = next(line for line in text_of("docs/accuracy.md").splitlines() if line.startswith("| all |"))
    (ttft, most_ttft), (tpot, most_tpot) = (
        re.findall(r"[\d.]+", row.strip("|").split("|")[k]) for k in (4, 7)
    )
    pages = ("docs/concepts/queueing.md", "docs/limits.md")
    assert said_in(pages, f"{ttft} % for TTFT and {tpot} % for TPOT") == []
    assert said_in(("README.ko.md",), f"TTFT {ttft} %, TPOT {tpot} %") == []
    for median, most in ((ttft, most_ttft), (tpot, most_tpot)):
        assert said_in(("docs/benchmarks.md",), f"median {median} %, nine in ten below {most} %") == []

    card = bars()
    plain, other, ttft_row = (
        card[name]
        for name in (
            "all, TPOT, nothing fitted",
            "all, TPOT, from the other half",
            "all, TTFT, from the other half",
        )
    )
    for found_row in (plain, other, ttft_row):
        assert said_in(("docs/benchmarks.md",), f"median {found_row[2]}, {found_row[6]} within") == []
    assert (
        said_in(("docs/limits.md",), f"median error of TPOT is {plain[2]} with nothing fitted to them") == []
    )
    assert (
        said_in(("docs/limits.md",), f"benchmark's TTFT {ttft_row[2]} with constants from other rows") == []
    )
    assert said_in(("README.ko.md",), f"TPOT 오차의 중앙값은 {plain[2]}입니다") == []


# --------------------------------------------------------------------------------------------
# Links


def links(text: str) -> list[str]:
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", without_code)


def anchors(text: str) -> set[str]:
    """Names of headings as GitHub and MkDocs make them: those of plain headings are the same."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize(
    "page", sorted(p.relative_to(ROOT).as_posix() for p in [*DOCS.rglob("*.md"), KOREAN])
)
def test_links_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for link in links(text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (folder / path).resolve() if path else ROOT / page
        made = target.relative_to(DOCS).as_posix() if target.is_relative_to(DOCS) else ""
        assert target.exists() or made in reference(), f"{page}: {link}"
        if anchor:
            text = target.read_text(encoding="utf-8") if target.exists() else reference()[made]
            assert anchor in anchors(text), link


# --------------------------------------------------------------------------------------------
# README in Korean


def test_the_readmes_lead_to_one_another() -> None:
    assert "[한국어](README.ko.md)" in text_of("README.md")
    assert "[English](README.md)" in text_of("README.ko.md")


def test_both_readmes_begin_with_the_same_two_commands() -> None:
    first, second = (
        re.findall(r"^```sh\n(.*?)^```$", text_of(p), re.M | re.S)[:2] for p in ("README.md", "README.ko.md")
    )
    assert first == second
    assert len(first) == 2


def test_the_korean_readme_shows_the_same_output() -> None:
    (shown,) = re.findall(r"^```console\n.*?^```$", text_of("README.ko.md"), re.MULTILINE | re.DOTALL)
    assert shown in text_of("README.md"), "run tools/update_readme.py"


def test_the_korean_readme_takes_its_output_from_the_english_one() -> None:
    text = "글\n\n```console\n$ planner a\nold\n```\n\n```console\n$ planner b\nkept\n```\n"
    new = tool("update_readme").with_outputs(text, {"planner a": "new\n", "planner c": "other\n"})
    assert new == text.replace("old", "new")


def test_the_scenario_of_the_korean_readme_is_the_example() -> None:
    (explained,) = re.findall(r"^```yaml\n(.*?)^```$", text_of("README.ko.md"), re.MULTILINE | re.DOTALL)
    example = text_of("examples/llama-70b-chat.yaml")
    assert scenario_from_text(explained).document == scenario_from_text(example).document


@pytest.mark.parametrize("readme", [ENGLISH, KOREAN], ids=["en", "ko"])
def test_a_readme_has_a_picture_near_its_top(readme: Path) -> None:
    text = readme.read_text(encoding="utf-8")
    found = re.search(r"!\[[^\]]+\]\((docs/[\w.-]+\.png)\)", text)
    assert found is not None
    assert (ROOT / found[1]).is_file()
    assert text[: found.start()].count("\n") < 40


# --------------------------------------------------------------------------------------------
# Reference


def test_every_command_has_its_help_in_the_reference() -> None:
    page = reference()["reference/cli.md"]
    for name in group.list_commands(click.Context(group)):
        assert f"## `planner {name}`\n" in page
        assert f"Usage: planner {name} " in page
    assert "## `planner models show`" in page
    assert "--save-lp" in page


@pytest.mark.parametrize("name", schema_names())
def test_every_key_of_a_file_is_in_its_table(name: str) -> None:
    page = reference()[f"reference/{name}.md"]
    schema = json_schemas()[name]
    for part in [schema, *schema.get("$defs", {}).values()]:
        for key in part.get("properties", {}):
            assert f"| `{key}` | " in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {5}


def test_every_name_of_the_package_is_in_the_reference() -> None:
    page = reference()["reference/api.md"]
    assert [
        name for name in planner.__all__ if name != "__version__" and f"### `planner.{name}`\n" not in page
    ] == []
    assert "### `SimulationResult`" in page
    assert " at 0x" not in page
    assert ":math:" not in page
    assert "----" not in page


def test_the_reference_is_the_same_twice() -> None:
    assert tool("build_docs_reference").pages() == reference()


def test_docstrings_become_markdown() -> None:
    def example() -> None:
        r"""A sum of ``a`` and :func:`~planner.solve`, as :math:`a^2`.

        Parameters
        ----------
        a : float
            First. [s]
        b, c : ndarray
            Others,
            of any shape.

        Notes
        -----
        As in [1]_

        .. math:: a + b
        """

    assert tool("docs_api").markdown(example) == (
        "A sum of `a` and `solve`, as $`a^2`$.\n\n**Parameters**\n\n- `a` (float): First. [s]\n"
        "- `b, c` (ndarray): Others, of any shape.\n\n**Notes**\n\nAs in [1]\n\n\n```math\na + b\n```"
    )


# --------------------------------------------------------------------------------------------
# Site


class _Page(HTMLParser):
    """What a page loads, and what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.tags: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if tag == "link" and found.get("rel") in ("canonical", "prev", "next"):
            return
        for key in ("src", "href", "data", "srcset") if tag != "a" else ():
            self.loaded += [value] if (value := found.get(key)) else []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("mkdocs", "material", "latex2mathml"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(
                "mkdocs is not installed" if module == "mkdocs" else f"mkdocs needs {module}, not installed"
            )
    folder = tmp_path_factory.mktemp("site")
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "WARNING" not in run.stderr
    return folder


def parsed(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


@pytest.mark.docs
def test_the_site_loads_nothing_from_a_network(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    away = [(p.name, x) for p in pages for x in parsed(p).loaded if re.match(r"(?:[a-z]+:)?//", x)]
    assert away == []
    styles = "".join(p.read_text(encoding="utf-8") for p in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']+", styles) == []


@pytest.mark.docs
def test_formulas_are_mathml(site: Path) -> None:
    for name in ("serving", "latency", "queueing", "program"):
        page = site / "concepts" / f"{name}.html"
        source = text_of(f"docs/concepts/{name}.md")
        assert parsed(page).tags["math"] == source.count("$`") + source.count("```math"), name
        assert "$`" not in page.read_text(encoding="utf-8")
        assert "merror" not in page.read_text(encoding="utf-8")


@pytest.mark.docs
def test_every_page_of_the_folder_can_be_reached(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    names = [p.relative_to(DOCS).with_suffix(".html").as_posix() for p in DOCS.rglob("*.md")]
    names += [Path(path).with_suffix(".html").as_posix() for path in reference()]
    names += ["ko.html", "architecture.html", "changelog.html"]
    assert [name for name in names if f'href="{name}"' not in home and name != "index.html"] == []
    assert (site / "source" / "examples" / "cpu.samples.csv").is_file()
    guides = (site / "how-to.html").read_text(encoding="utf-8")
    assert "From a plan to running vLLM pools</a>" in guides


@pytest.mark.docs
def test_every_benchmark_is_listed(site: Path) -> None:
    page = (site / "benchmarks.html").read_text(encoding="utf-8")
    modules = [p for p in (ROOT / "benchmarks").glob("*.py") if '"__main__"' in p.read_text(encoding="utf-8")]
    assert len(modules) > 10
    assert [p.stem for p in modules if f"<code>python -m benchmarks.{p.stem}</code>" not in page] == []


@pytest.mark.docs
def test_the_navigation_leaves_out_what_is_not_there(site: Path) -> None:
    hooks = tool("docs_site")
    nav: list[Any] = ["a.md", {"B": ["b.md", {"Title": "c.md"}]}, {"D": ["d.md"]}]
    listed: set[str] = set()
    assert hooks._existing(nav, {"a.md", "c.md"}, listed) == ["a.md", {"B": [{"Title": "c.md"}]}]
    assert listed == {"a.md", "c.md"}
