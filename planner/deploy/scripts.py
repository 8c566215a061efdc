"""Reading shell scripts that :mod:`planner.deploy.rendering` writes, line by line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

OWN = "$@"
"""Word of a command that stands for what only one part of an engine is told."""

_CASE = re.compile(r"""\s+(?:(\d+)|"(\d+) (\d+)")\) (.*?)(?:; set -- (.*))? ;;""")
_STRUCTURE = re.compile(
    r'set -eu|cd "\$\(dirname "\$0"\)(/\.\.)?"|'
    r'case "\$\{1:-\}( \$\{2:-\})?" in|esac|\s+\*\)|\s+echo "usage: \$0 NUMBER .*" >&2|'
    r"\s+exit 2|\s+;;"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """Words of a command, and the line of each."""

    words: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()

    def after(self, count: int) -> Command:
        """Without the first words."""
        return Command(words=self.words[count:], lines=self.lines[count:])

    def shared(self) -> Command:
        """Without what only one part of an engine is told."""
        kept = [(word, line) for word, line in zip(self.words, self.lines, strict=True) if word != OWN]
        return Command(words=tuple(word for word, _ in kept), lines=tuple(line for _, line in kept))

    def filled(self, case: Case) -> Command:
        """With the variables and words of one part in their places."""
        pairs: list[tuple[str, int]] = []
        for word, line in zip(self.words, self.lines, strict=True):
            pairs += [(own, case.line) for own in case.words] if word == OWN else [(word, line)]
        words = tuple(case.variables.get(w[1:], w) if w.startswith("$") else w for w, _ in pairs)
        return Command(words=words, lines=tuple(line for _, line in pairs))


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What a script says of one part of an engine: variables, and words that only it is told."""

    variables: Mapping[str, str]
    words: tuple[str, ...]
    line: int

    @property
    def own(self) -> Command:
        """Its own words."""
        return Command(words=self.words, lines=(self.line,) * len(self.words))


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A script as read.

    Attributes
    ----------
    cases : mapping
        Of each part of an engine, by the engine's number and its own rank.
    exports : mapping
        Value of each variable of the environment, and its line.
    unread : tuple of (int, str)
        Lines that are not as they were written, and why.
    settings : mapping
        Of the config file beside it, by their dotted names; empty where there is none.
    """

    cases: Mapping[tuple[int, int], Case]
    exports: Mapping[str, tuple[str, int]]
    command: Command
    unread: tuple[tuple[int, str], ...] = field(default=())
    settings: Mapping[str, tuple[tuple[str, ...], int]] = field(default_factory=dict)

    @property
    def engines(self) -> int:
        """How many it starts."""
        return len({number for number, _ in self.cases})


def read_script(text: str) -> Script:
    """The engines, environment and command of a script."""
    cases: dict[tuple[int, int], Case] = {}
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
                part = int(case[1] or case[2]), int(case[3] or 0)
                if part in cases:
                    unread.append((number, f"is never reached: line {cases[part].line} is the same case"))
                    continue
                cases[part] = Case(
                    variables=dict(_pair(word) for word in shlex.split(case[4])),
                    words=tuple(shlex.split(case[5] or "")),
                    line=number,
                )
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
