"""Reading shell scripts that :mod:`planner.deploy.rendering` writes, line by line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

_CASE = re.compile(r"\s+(\d+)\) (.*) ;;")
_STRUCTURE = re.compile(
    r'set -eu|cd "\$\(dirname "\$0"\)(/\.\.)?"|'
    r'case "\$\{1:-\}" in|esac|\s+\*\)|\s+echo "usage: \$0 NUMBER .*" >&2|\s+exit 2|\s+;;'
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """Words of a command, and the line of each."""

    words: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()

    def after(self, count: int) -> Command:
        """Without the first words."""
        return Command(words=self.words[count:], lines=self.lines[count:])

    def filled(self, variables: Mapping[str, str]) -> Command:
        """With the variables of one engine in their places."""
        words = tuple(variables.get(w[1:], w) if w.startswith("$") else w for w in self.words)
        return Command(words=words, lines=self.lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A script as read.

    Attributes
    ----------
    cases : mapping
        Variables of each engine by its number, and their line.
    exports : mapping
        Value of each variable of the environment, and its line.
    unread : tuple of (int, str)
        Lines that are not as they were written, and why.
    settings : mapping
        Of the config file beside it, by their dotted names; empty where there is none.
    """

    cases: Mapping[int, tuple[Mapping[str, str], int]]
    exports: Mapping[str, tuple[str, int]]
    command: Command
    unread: tuple[tuple[int, str], ...] = field(default=())
    settings: Mapping[str, tuple[tuple[str, ...], int]] = field(default_factory=dict)


def read_script(text: str) -> Script:
    """The engines, environment and command of a script."""
    cases: dict[int, tuple[Mapping[str, str], int]] = {}
    exports: dict[str, tuple[str, int]] = {}
    words: list[str] = []
    lines: list[int] = []
    unread: list[tuple[int, str]] = []
    running = False
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if running or line.startswith("exec "):
                body = line.removeprefix("exec ") if not running else line
                running = body.endswith("\\")
                found = shlex.split(body.removesuffix("\\"))
                words += found
                lines += [number] * len(found)
            elif case := _CASE.fullmatch(line):
                cases[int(case[1])] = (dict(_pair(word) for word in shlex.split(case[2])), number)
            elif line.startswith("export "):
                for word in shlex.split(line)[1:]:
                    name, value = _pair(word)
                    exports[name] = (value, number)
            elif line and not line.startswith("#") and not _STRUCTURE.fullmatch(line):
                unread.append((number, "is not a line that planner emit writes"))
        except ValueError as error:
            unread.append((number, f"cannot be read as shell words: {error}"))
    command = Command(words=tuple(words), lines=tuple(lines))
    return Script(cases=cases, exports=exports, command=command, unread=tuple(unread))


def _pair(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise ValueError(f"{word!r} sets no variable")
    return name, value
