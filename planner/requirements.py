"""Libraries that the planner needs, and those that are installed: by metadata, without importing any."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

DISTRIBUTION = "pd-planner"
DEVELOPMENT = ("test", "dev", "browser", "docs")
"""Extras for those who change the planner."""

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:.*?>=\s*(?P<least>[\w.]+))?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")


def required(project: Path = Path(__file__).parents[1] / "pyproject.toml") -> dict[str, dict[str, str]]:
    """Libraries by extra, those of the base installation under an empty name, with the least version of each.

    Of a checkout as its project file has them, else as the installed package says.
    """
    found: dict[str, dict[str, str]] = {"": {}}
    for extra, line in _requirements(project):
        match = _REQUIREMENT.match(line)
        if match and match["name"] != DISTRIBUTION and extra not in DEVELOPMENT:
            found.setdefault(extra, {})[match["name"].lower()] = match["least"] or ""
    return found


def _requirements(project: Path) -> Iterator[tuple[str, str]]:
    """Every requirement with its extra."""
    if project.is_file():
        document = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        yield from (("", line) for line in document["dependencies"])
        for extra, lines in document["optional-dependencies"].items():
            yield from ((extra, line) for line in lines)
        return
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        marked = _EXTRA.search(line)
        yield (marked[1] if marked else ""), line


def installed(name: str) -> str:
    """Version of a library by its metadata, without importing it; empty where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def older(version: str, least: str) -> bool:
    """Whether a version comes before another; of both only the leading numbers count."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in re.match(r"[\d.]*", text)[0].split(".") if part]  # type: ignore[index]

    return numbers(version) < numbers(least)
