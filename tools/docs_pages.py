"""Run the commands of a page of the documentation, and put what they print below them.

    python tools/docs_pages.py docs/tutorial.md [--check]

Everything happens in one empty folder, from the top of the page to its end. A fence ``yaml title="FILE"`` is
written to that file. In a fence ``console`` each line that begins with ``$`` is a command, followed by its
output. Lines of a fence ``sh`` and the text of a fence ``python`` are run; what they print is not shown.
Lines with ``pip install`` are left out.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH = 100
_FENCE = re.compile(
    r'^```(yaml|sh|console|python)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ran:
    """A command of a page: what the page shows, None where it shows nothing, and what was printed."""

    command: str
    shown: str | None
    printed: str
    code: int


def environment(folder: Path) -> dict[str, str]:
    """One in which ``planner`` is this checkout, and nothing depends on the terminal."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name, arguments in (("planner", "-m planner "), ("python", "")):
        program = bin_folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n', encoding="utf-8")
        program.chmod(0o755)
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "PLANNER_DEBUG")}
    path = f"{bin_folder}{os.pathsep}{kept.get('PATH', '')}"
    return kept | {"COLUMNS": str(WIDTH), "PYTHONPATH": str(ROOT), "PATH": path}


def run(command: str, folder: Path, variables: dict[str, str]) -> tuple[str, int]:
    """What a command prints, errors included, without trailing spaces; and its exit code."""
    done = subprocess.run(
        ["bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=variables,
        check=False,
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines()), done.returncode


def blocks(text: str) -> Iterator[re.Match[str]]:
    """Fences that do something; their groups are kind, file and text."""
    return (found for found in _FENCE.finditer(text) if found[1] != "yaml" or found[2])


def shown_commands(body: str) -> list[tuple[str, str]]:
    """Commands of a fence ``console`` with the output that stands below each."""
    _, *rest = re.split(r"^\$ ", body, flags=re.MULTILINE)
    pairs = [part.partition("\n") for part in rest]
    return [(command, shown) for command, _, shown in pairs]


def hidden_commands(kind: str, body: str) -> list[tuple[str, None]]:
    """Commands of a fence that shows no output."""
    if kind == "python":
        return [(f"python -c {shlex.quote(body)}", None)]
    return [(line, None) for line in body.splitlines() if "pip install" not in line]


def run_page(text: str) -> list[Ran]:
    """All commands of a page, in its order."""
    ran: list[Ran] = []
    with tempfile.TemporaryDirectory() as outer:
        variables = environment(Path(outer))
        folder = Path(outer) / "work"
        folder.mkdir()
        (folder / "examples").symlink_to(ROOT / "examples")
        for found in blocks(text):
            kind, file, body = found.groups()
            if kind == "yaml":
                (folder / file).write_text(body, encoding="utf-8")
                continue
            commands = shown_commands(body) if kind == "console" else hidden_commands(kind, body)
            for command, shown in commands:
                printed, code = run(command, folder, variables)
                ran.append(Ran(command=command, shown=shown, printed=printed, code=code))
    return ran


def updated(text: str, ran: list[Ran]) -> str:
    """The page with what was printed in place of what it showed."""
    results = iter([one for one in ran if one.shown is not None])

    def fence(found: re.Match[str]) -> str:
        if found[1] != "console":
            return found[0]
        commands = [(command, next(results)) for command, _ in shown_commands(found[3])]
        return "```console\n" + "".join(f"$ {command}\n{one.printed}" for command, one in commands) + "```"

    return _FENCE.sub(fence, text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", type=Path, nargs="+", metavar="PAGE")
    parser.add_argument("--check", action="store_true", help="Only say whether the pages are up to date.")
    arguments = parser.parse_args()
    for page in arguments.pages:
        text = page.read_text(encoding="utf-8")
        new = updated(text, run_page(text))
        if not arguments.check:
            page.write_text(new, encoding="utf-8")
        elif new != text:
            sys.exit(f"{page} is out of date: run tools/docs_pages.py {page}")


if __name__ == "__main__":
    main()
