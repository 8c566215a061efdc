"""What MkDocs does beyond its settings (`hooks:` of mkdocs.yml): reference, pages from elsewhere, links."""

from __future__ import annotations

import ast
import functools
import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))

from build_docs_reference import pages  # noqa: E402
from docs_math import MathExtension  # noqa: E402

FROM_ROOT = {"README.ko.md": "ko.md", "ARCHITECTURE.md": "architecture.md", "CHANGELOG.md": "changelog.md"}
"""Pages that stand beside the folder of the documentation, and where the site has them."""
REFERENCE = "reference/"
INDEX = "README.md"  # links to it lead to the first page
SOURCES = "source"  # folder of the site for files that pages link to
reference_pages = functools.cache(pages)
LISTED = "<!-- pages of this section -->"  # is replaced by a list
BENCHMARKS = "<!-- all benchmarks -->"  # and so is this
_FENCES = re.compile(r"(^ *```.*?^ *```[^\n]*$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Navigation of what there is; formulas."""
    there = {*_of_folder(Path(config.docs_dir)), *reference_pages(), *FROM_ROOT.values()}
    listed: set[str] = set()
    nav = _existing(config.nav or [], there, listed)
    rest = sorted(there - listed)
    for section in (s for entry in nav if isinstance(entry, dict) for s in entry.values()):
        if any(str(page).startswith(REFERENCE) for page in section):
            section += [page for page in rest if page.startswith(REFERENCE)]
            rest = [page for page in rest if not page.startswith(REFERENCE)]
    config.nav = [*nav, *([{"More": rest}] if rest else [])]
    config.markdown_extensions.append(MathExtension())  # type: ignore[arg-type]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Reference, pages from the root of the repository, and the files that pages link to."""
    for path, text in reference_pages().items():
        files.append(File.generated(config, path, content=text))
    for name, path in FROM_ROOT.items():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / name)))
    for path in sorted(_linked(Path(config.docs_dir))):
        source = File.generated(
            config, _copied(path), abs_src_path=str(ROOT / path), inclusion=InclusionLevel.NOT_IN_NAV
        )
        files.append(source)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site has them; lists of pages."""
    here = page.file.src_uri
    if LISTED in markdown:
        markdown = markdown.replace(LISTED, _list_of(here, config.nav or [], Path(config.docs_dir)))
    if BENCHMARKS in markdown:
        markdown = markdown.replace(BENCHMARKS, _benchmarks())
    return _with_links(markdown, _source_of(here), lambda path: _relative(path, here))


def _of_folder(docs: Path) -> set[str]:
    return {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}


def _existing(nav: list[Any], there: set[str], listed: set[str]) -> list[Any]:
    """Entries whose pages are there; notes in `listed` which those are."""
    kept: list[Any] = []
    for entry in nav:
        title, target = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(target, list):
            inner = _existing(target, there, listed)
            kept += [{title: inner}] if inner else []
        elif target in there:
            listed.add(target)
            kept.append(entry)
    return kept


def _source_of(page: str) -> str:
    """A page's path in the repository."""
    return next((name for name, path in FROM_ROOT.items() if path == page), f"docs/{page}")


def _relative(path: str, page: str) -> str:
    """A link from a page to what stands at `path` of the repository."""
    if path == INDEX:
        target = "index.md"
    elif path in FROM_ROOT:
        target = FROM_ROOT[path]
    elif path.startswith("docs/"):
        target = path.removeprefix("docs/")
    else:
        target = _copied(path)
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def _copied(path: str) -> str:
    """Where the site has a file of the repository; Markdown as text, since it is no page."""
    return f"{SOURCES}/{path}.txt" if path.endswith(".md") else f"{SOURCES}/{path}"


def _with_links(markdown: str, source: str, rewritten: Callable[[str], str]) -> str:
    """Relative links of a page at `source`, each given as a path of the repository, outside of code."""

    def link(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        return rewritten(path)

    parts = _FENCES.split(markdown)
    return "".join(part if k % 2 else _LINK.sub(link, part) for k, part in enumerate(parts))


def _linked(docs: Path) -> Iterator[str]:
    """Files of the repository outside the documentation that some page links to."""
    found: set[str] = set()

    def note(path: str) -> str:
        if not path.startswith("docs/") and path not in (*FROM_ROOT, INDEX) and (ROOT / path).is_file():
            found.add(path)
        return path

    sources = [*(f"docs/{path}" for path in _of_folder(docs)), *FROM_ROOT]
    for source in sources:
        _with_links((ROOT / source).read_text(encoding="utf-8"), source, note)
    return iter(found)


def _list_of(page: str, nav: list[Any], docs: Path) -> str:
    """Titles and first sentences of the other pages in a page's section."""
    sections = (next(iter(entry.values())) for entry in nav if isinstance(entry, dict))
    section = next(s for s in sections if isinstance(s, list) and page in s)
    lines = []
    for path in section:
        if path != page:
            text = (docs / path).read_text(encoding="utf-8")
            title, _, rest = text.partition("\n")
            lines.append(f"- [{title.lstrip('# ')}]({path}): {_first_sentence(rest)}")
    return "\n".join(lines)


def _benchmarks() -> str:
    """What can be run, and what it says of itself."""
    lines = []
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        said = ast.get_docstring(module) or ""
        if f"-m benchmarks.{path.stem}" in said:
            lines.append(f"- `python -m benchmarks.{path.stem}`: {said.splitlines()[0]}")
    return "\n".join(lines)


def _first_sentence(text: str) -> str:
    """Of a page's first paragraph, up to a colon, without links."""
    paragraph = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(text.strip().split("\n\n")[0].split()))
    return re.split(r"[.:](?:\s|$)", paragraph, maxsplit=1)[0]
