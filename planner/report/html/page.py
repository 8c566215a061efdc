"""Sections as one HTML file that needs nothing else: no network, no fonts, no other file."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files

from planner import __version__
from planner.errors import SpecError
from planner.report.html.blocks import Block, Cards, Figure, Section, Table, Text, script_json
from planner.report.html.facts import ReportFacts
from planner.report.html.sections import sections

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:; form-action 'none'; base-uri 'none'"
)
"""What a browser may load for the page: nothing that is not in it."""


def report_page(facts: ReportFacts) -> str:
    """The report as HTML; the same facts give the same text.

    Raises
    ------
    SpecError
        If plotly is not installed.
    """
    return _page(facts, sections(facts), plotly_script())


def plotly_script() -> str:
    """Plotly's own script, which the page carries.

    Raises
    ------
    SpecError
        If plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs  # in the extra [report] only
    except ImportError as error:
        raise SpecError(f"a report needs plotly: pip install 'pd-planner[report]' ({error})") from None
    text: str = get_plotlyjs()
    return text


def _page(facts: ReportFacts, parts: Sequence[Section], plotly: str) -> str:
    folder = files(__package__)
    css = (folder / "page.css").read_text(encoding="utf-8")
    js = (folder / "page.js").read_text(encoding="utf-8")
    name = ", ".join(facts.services)
    title = html.escape(f"Capacity plan for {name}")
    date = f" {html.escape(facts.date)}." if facts.date else ""
    links = "".join(f'<li><a href="#{s.key}">{html.escape(s.title)}</a></li>' for s in parts)
    body = "\n".join(_section(s) for s in parts)
    figures = [b for s in parts for b in s.blocks if isinstance(b, Figure)]
    data = "\n".join(_figure_data(f) for f in figures)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="generator" content="planner {__version__}">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header>
<h1>{title}</h1>
<p>Written by planner {__version__}.{date} Predictions are a model's, with its known error.</p>
</header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main id="main" tabindex="-1">
<noscript><p class="note">Charts need JavaScript; their figures stand in the tables below them.</p></noscript>
{body}
</main>
<footer>One file, no network: it can be kept and sent as it is.</footer>
{data}
<script>{plotly}</script>
<script>
{js}</script>
</body>
</html>
"""


def _section(section: Section) -> str:
    blocks = "\n".join(_block(block) for block in section.blocks)
    title = html.escape(section.title)
    return (
        f'<section id="{section.key}" aria-labelledby="{section.key}-title">\n'
        f'<h2 id="{section.key}-title">{title}</h2>\n{blocks}\n</section>'
    )


def _block(block: Block) -> str:
    if isinstance(block, Text):
        kind = f' class="{block.kind}"' if block.kind else ""
        return f"<p{kind}>{html.escape(block.text)}</p>"
    if isinstance(block, Cards):
        return f'<ul class="cards">{"".join(_card(*card) for card in block.cards)}</ul>'
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Figure):
        return _figure(block)
    return _details(block.caption, f'<pre tabindex="0">{html.escape(block.text)}</pre>')


def _card(value: str, what: str, kind: str) -> str:
    return f'<li class="{kind}"><strong>{html.escape(value)}</strong> <span>{html.escape(what)}</span></li>'


def _details(caption: str, inner: str) -> str:
    return f"<details><summary>{html.escape(caption)}</summary>{inner}</details>"


def _table(table: Table) -> str:
    def cells(tag: Callable[[int], str], texts: Sequence[str]) -> Iterator[str]:
        for i, text in enumerate(texts):
            number = ' class="n"' if i in table.numbers else ""
            name = tag(i)
            scope = {"th": ' scope="col"'}.get(name, "")
            yield f"<{name}{number}{scope}>{html.escape(text)}</{name}>"

    head = ""
    if any(table.head):
        head = f"<thead><tr>{''.join(cells(lambda _i: 'th', table.head))}</tr></thead>"
    rows = "\n".join(f"<tr>{''.join(cells(lambda _i: 'td', row))}</tr>" for row in table.rows)
    inner = f'<div class="scroll" tabindex="0"><table>{head}<tbody>\n{rows}\n</tbody></table></div>'
    return _details(table.caption, inner) if table.folded else inner


def _figure(figure: Figure) -> str:
    caption = html.escape(figure.caption)
    place = f'<div class="plot" id="plot-{figure.key}" role="img" aria-label="{caption}"'
    style = f'style="min-height:{figure.height}px"'
    return f"<figure><figcaption>{caption}</figcaption>{place} {style}></div></figure>"


def _figure_data(figure: Figure) -> str:
    content = script_json({"data": figure.data, "layout": figure.layout, "height": figure.height})
    return f'<script type="application/json" id="plot-{figure.key}-data">{content}</script>'
