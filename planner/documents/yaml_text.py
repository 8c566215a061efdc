"""YAML in and out, with the line of every value.

YAML 1.1, which PyYAML reads, turns ``12:30`` into 750, ``010`` into 8, ``no`` into False, keeps
``1e3`` as text and lets the last of two equal keys win. Values are therefore built here from parser
events, by the rules of YAML 1.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from planner.documents.tree import MAX_SHOWN, KeyPath, Node, Tree, dotted, shorten, shown
from planner.errors import Problem, SpecError

MAX_NODES = 100_000
MAX_DEPTH = 64
_MAX_DIGITS = 300  # of an integer; longer ones overflow a float anyway

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


# --------------------------------------------------------------------------------------------
# Scalars

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|(0|[1-9][0-9]*)(?=[eE]))([eE][-+]?[0-9]+)?")
_SPECIAL_FLOATS = re.compile(r"([-+]?)\.(inf|Inf|INF|nan|NaN|NAN)")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE_WORDS = frozenset({"true", "yes", "on"})
_FALSE_WORDS = frozenset({"false", "no", "off"})
_YAML_1_1_WORDS = frozenset({"y", "Y", "n", "N"})
"""Text here, booleans to readers of YAML 1.1: quoted on the way out."""


def plain_scalar(text: str) -> str | int | float | bool | None:
    """Value of an unquoted scalar.

    As in YAML 1.2, with one word of 1.1 kept: unquoted yes/no/on/off are booleans. Where text is
    expected, the reader asks for quotes instead of guessing.
    """
    if text in _NULLS:
        return None
    if text.lower() in _TRUE_WORDS:
        return True
    if text.lower() in _FALSE_WORDS:
        return False
    if _INTEGER.fullmatch(text) and len(text) <= _MAX_DIGITS:
        return int(text)
    if _FLOAT.fullmatch(text) or _INTEGER.fullmatch(text):
        return float(text)
    if special := _SPECIAL_FLOATS.fullmatch(text):
        return float(special[1] + special[2])
    return text


# --------------------------------------------------------------------------------------------
# The tree


class _Unreadable(Exception):
    """The file breaks off here; there is no tree to report more problems from."""

    def __init__(self, rule: str, line: int = 0, suggestion: str = "") -> None:
        self.problem = Problem(key="", rule=rule, line=line, suggestion=suggestion)
        super().__init__(rule)


class _Builder:
    """Builds nodes from parser events, with bounds on depth and on the expanded size.

    Composing with PyYAML would recurse without a bound and drop what tells ``!!str 12`` from ``12``.
    """

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))
        self._anchors: dict[str, Node | None] = {}
        self._size = 0
        self.problems: list[Problem] = []

    def root(self) -> Node:
        next(self._events)  # start of the stream
        event = next(self._events)
        if isinstance(event, yaml.StreamEndEvent):
            raise _Unreadable("the file is empty")
        root = self._node(next(self._events), (), 0)
        next(self._events)  # end of the document
        event = next(self._events)
        if not isinstance(event, yaml.StreamEndEvent):
            raise _Unreadable("holds more than one YAML document; give one per file", _line(event))
        if root.value is None:
            raise _Unreadable("the file is empty")
        if not isinstance(root.value, dict):
            raise _Unreadable(f"must be a mapping of keys at top level, got {shown(root)}", root.line)
        return root

    def _node(self, event: Any, path: KeyPath, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _Unreadable(f"is nested deeper than {MAX_DEPTH} levels", _line(event))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        self._count(1, event)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._sequence(event, path, depth)
        else:
            node = self._mapping(event, path, depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _count(self, nodes: int, event: Any) -> None:
        self._size += nodes
        if self._size > MAX_NODES:
            raise _Unreadable(
                f"holds more than {MAX_NODES:,} values once its aliases are expanded", _line(event)
            )

    def _alias(self, event: Any) -> Node:
        if event.anchor not in self._anchors:
            raise _Unreadable(f"alias *{shorten(event.anchor)} has no anchor before it", _line(event))
        node = self._anchors[event.anchor]
        if node is None:
            raise _Unreadable(f"alias *{shorten(event.anchor)} lies within its own anchor", _line(event))
        self._count(node.size, event)
        return node

    def _scalar(self, event: Any) -> Node:
        plain, quoted = event.implicit
        value: Any = event.value
        if plain:
            value = plain_scalar(event.value)
        elif not quoted and event.tag not in ("tag:yaml.org,2002:str", "!"):
            self._refuse_tag(event)
        return Node(value, _line(event), event.value)

    def _sequence(self, event: Any, path: KeyPath, depth: int) -> Node:
        if not event.implicit and event.tag not in ("tag:yaml.org,2002:seq", "!"):
            self._refuse_tag(event)
        children: dict[str | int, Node] = {}
        while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
            index = len(children)
            children[index] = self._node(item, (*path, index), depth + 1)
        values = [child.value for child in children.values()]
        return Node(values, _line(event), "", children, size=_size(children))

    def _mapping(self, event: Any, path: KeyPath, depth: int) -> Node:
        if not event.implicit and event.tag not in ("tag:yaml.org,2002:map", "!"):
            self._refuse_tag(event)
        children: dict[str | int, Node] = {}
        lines: dict[str, int] = {}
        merged: list[Node] = []
        while not isinstance(key_event := next(self._events), yaml.MappingEndEvent):
            key = self._key(key_event)
            child = self._node(next(self._events), (*path, key), depth + 1)
            if key == "<<" and key_event.implicit[0]:
                merged.append(child)
            elif key in children:
                self.problems.append(_duplicate((*path, key), lines[key], _line(key_event)))
            else:
                children[key], lines[key] = child, _line(key_event)
        for base in merged:
            if not isinstance(base.value, dict):
                raise _Unreadable("<<: must be followed by a mapping of keys", base.line)
            children = {**base.children, **children}
            lines = {**base.key_lines, **lines}
        value = {key: child.value for key, child in children.items()}
        return Node(value, _line(event), "", children, lines, _size(children))

    def _key(self, event: Any) -> str:
        if not isinstance(event, yaml.ScalarEvent):
            raise _Unreadable("a key must be plain text", _line(event), "quote keys that start with { [ or *")
        return str(event.value)

    def _refuse_tag(self, event: Any) -> None:
        raise _Unreadable(f"the tag {shorten(str(event.tag))} is not supported", _line(event))


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _size(children: Mapping[str | int, Node]) -> int:
    return 1 + sum(child.size for child in children.values())


def _duplicate(path: KeyPath, first: int, second: int) -> Problem:
    return Problem(key=dotted(path), rule=f"duplicate key, first given on line {first}", line=second)


def parse_tree(text: str, source: str, folder: Path | None = None) -> tuple[Tree, list[Problem]]:
    """Parse YAML or JSON text, without a schema.

    Returns
    -------
    Tree, list of Problem
        Duplicate keys are problems that leave a tree.

    Raises
    ------
    SpecError
        Where there is no tree: syntax, several documents, anything but a mapping at top level.
    """
    text = text.removeprefix("\ufeff")
    try:
        _require_text(text)
        builder = _Builder(text)
        root = builder.root()
    except _Unreadable as error:
        problem = error.problem
    except yaml.MarkedYAMLError as error:
        problem = _syntax_problem(error, text)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        problem = Problem(key="", rule=f"is not valid YAML: {shorten(str(error))}")
    else:
        return Tree(source, root, folder), builder.problems
    raise SpecError.of_file(source, [problem])


def _require_text(text: str) -> None:
    if found := yaml.reader.Reader.NON_PRINTABLE.search(text):
        raise _Unreadable(
            f"is not a text file: it holds the character U+{ord(found[0]):04X}",
            text.count("\n", 0, found.start()) + 1,
        )


def _syntax_problem(error: yaml.MarkedYAMLError, text: str) -> Problem:
    mark = error.problem_mark or error.context_mark
    lines = text.splitlines()
    line = min(mark.line + 1, len(lines)) if mark else 0  # the end of the text is a line of its own
    said = error.problem or error.context or "unknown error"
    written = lines[line - 1] if 0 < line <= len(lines) else ""
    if "\t" in written[: len(written) - len(written.lstrip())]:
        return Problem(key="", rule="is indented with a tab; YAML wants spaces", line=line)
    return Problem(key="", rule=f"is not valid YAML: {said}", value=written.strip()[:MAX_SHOWN], line=line)


# --------------------------------------------------------------------------------------------
# YAML out


class _Dumper(yaml.SafeDumper):
    """Quotes whatever :func:`plain_scalar` would not read back as text; writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    bare = plain_scalar(text) == text and text not in _YAML_1_1_WORDS
    style = None if bare else "'"
    if any(end in text for end in "\n\r\x85\u2028\u2029"):
        style = '"'  # the only style that keeps every kind of line end
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def dump_yaml(data: Mapping[str, Any]) -> str:
    """YAML text in the order of `data`, which :func:`parse_tree` reads back as it was."""
    return yaml.dump(
        dict(data),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=2**31 - 1,  # never wrap: wrapped text makes poor diffs
    )
