"""Names of modules as quantisation tools write them: exact, with wildcards, or as expressions.

A configuration is not trusted: expressions that could take long to match are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from planner.documents.tree import shorten

_EXPRESSION = "re:"
_SAFE = re.compile(r"(?:[\w\-:|^$]|\\[.dw\-_/]|\.|\(\?:|[()]|\[\w(?:\w|-(?=\w))*\]|(?<!\))[*+?])*", re.ASCII)
_MAX_LENGTH = 200
_MAX_REPEATS = 4
_MAX_EXPRESSIONS = 64
_MAX_NAMES = 50_000
_CLASSES = frozenset({"Linear", "FusedMoE", "LinearBase"})
_LAYERS = "layers."


class Patterns:
    """A set of module names.

    Within the layers a name counts from ``layers.`` on, whatever stands before it; a name of some parts
    of a module's name stands for the module (``self_attn``, ``layers.0.mlp``).

    Raises
    ------
    ValueError
        On expressions that are not understood.
    """

    def __init__(self, names: Sequence[str], *, everything: bool = False) -> None:
        if len(names) > _MAX_NAMES:
            raise ValueError(f"more than {_MAX_NAMES:,} names of modules")
        self.everything = everything or not _CLASSES.isdisjoint(names)
        self._exact: set[str] = set()
        self._prefixes: tuple[str, ...] = ()
        self._expressions: list[re.Pattern[str]] = []
        prefixes: list[str] = []
        for name in dict.fromkeys(names):
            if name.startswith(_EXPRESSION):
                self._expressions.append(_expression(name.removeprefix(_EXPRESSION)))
                continue
            short = _from_layers(name)
            if "*" not in short:
                self._exact.add(short)
            elif short.endswith("*") and "*" not in short[:-1] and short.startswith(_LAYERS):
                prefixes.append(short[:-1])
            else:
                self._expressions.append(_wildcards(short))
            if len(self._expressions) > _MAX_EXPRESSIONS:
                raise ValueError(f"more than {_MAX_EXPRESSIONS} expressions for names of modules")
        self._prefixes = tuple(prefixes)

    def matches(self, name: str) -> bool:
        """Whether the module ``layers.N...`` is one of the set."""
        if self.everything:
            return True
        if not self._exact.isdisjoint(_stretches(name)) or name.startswith(self._prefixes):
            return True
        return any(e.match(f"model.{name}") or e.match(name) for e in self._expressions)


ALL = Patterns((), everything=True)


def _from_layers(name: str) -> str:
    at = name.rfind(f".{_LAYERS}")
    return name if at < 0 else name[at + 1 :]


def _stretches(name: str) -> Iterator[str]:
    """Every run of neighbouring parts of a dotted name."""
    parts = name.split(".")
    for start in range(len(parts)):
        for stop in range(start + 1, len(parts) + 1):
            yield ".".join(parts[start:stop])


def _expression(text: str) -> re.Pattern[str]:
    repeats = sum(text.count(sign) for sign in "*+")
    if len(text) > _MAX_LENGTH or repeats > _MAX_REPEATS or not _SAFE.fullmatch(text):
        raise ValueError(f"the expression {shorten(repr(text[:_MAX_LENGTH]))} is not understood")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError):
        raise ValueError(f"the expression {shorten(repr(text))} is not understood") from None


def _wildcards(text: str) -> re.Pattern[str]:
    if len(text) > _MAX_LENGTH or text.count("*") > _MAX_REPEATS:
        raise ValueError(f"the name {shorten(repr(text[:_MAX_LENGTH]))} has too many wildcards")
    inner = ".*".join(re.escape(part) for part in text.split("*"))
    # A name without a final wildcard stands for what lies below it too.
    return re.compile(rf"(?:model\.)?{inner}(?:\.|$)" if not text.endswith("*") else rf"(?:model\.)?{inner}")
