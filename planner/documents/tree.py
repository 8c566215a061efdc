"""A parsed file before validation: values that keep their line, and problems that point at them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.errors import Problem

MAX_SHOWN = 60
"""Characters of a value in a message."""

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One value of a file: its plain Python `value`, its line, its text where it is a scalar."""

    value: Any
    line: int
    text: str = ""
    children: Mapping[str | int, Node] = field(default_factory=dict)
    key_lines: Mapping[str, int] = field(default_factory=dict)
    size: int = 1


@dataclass(frozen=True, slots=True)
class Tree:
    """A parsed file, not yet validated.

    Attributes
    ----------
    source : str
        Name of the file in messages.
    folder : Path or None
        Where relative paths within the file start; None for text from elsewhere.
    at : KeyPath
        The part of the file that key paths start from; messages name whole paths.
    """

    source: str
    root: Node
    folder: Path | None = None
    at: KeyPath = ()

    def within(self, *path: str | int) -> Tree:
        """The part at a key path, which need not exist; `raw` and `root` are still those of the file."""
        return replace(self, at=(*self.at, *path))

    @property
    def whole(self) -> Tree:
        """The file from its top."""
        return replace(self, at=())

    @property
    def raw(self) -> dict[str, Any]:
        """The file as plain dicts, lists and scalars."""
        value: dict[str, Any] = self.root.value
        return value

    def get(self, *path: str | int) -> Any:
        """Value at a key path; None where the file has no such key."""
        node = self._node(path)
        return None if node is None else node.value

    def entries(self, *path: str | int) -> list[Any]:
        """The list at a key path; empty where there is none."""
        value = self.get(*path)
        return value if isinstance(value, list) else []

    def has(self, *path: str | int) -> bool:
        """Whether the file has this key path."""
        return self._node(path) is not None

    def line(self, path: KeyPath) -> int:
        """Line of a key path, or of the closest enclosing key where it is absent; counts from 1."""
        node, line = self.root, self.root.line
        for part in (*self.at, *path):
            child = _child(node, part)
            if child is None:
                break
            line = node.key_lines.get(str(part), child.line)
            node = child
        return line

    def with_text(self, path: KeyPath, text: str) -> Tree:
        """The file with a text at the key path of a mapping, which need not be there; `at` does not count."""
        return replace(self, root=_with_text(self.root, path, text))

    def problem(self, path: KeyPath, rule: str, suggestion: str = "", *, show_value: bool = True) -> Problem:
        """A broken rule at a key path, with its line and its value."""
        node = self._node(path)
        return Problem(
            key=dotted((*self.at, *path)),
            rule=rule,
            value=shown(node) if show_value and node is not None else "",
            line=self.line(path),
            suggestion=suggestion,
        )

    def _node(self, path: KeyPath) -> Node | None:
        node: Node | None = self.root
        for part in (*self.at, *path):
            if node is None:
                return None
            node = _child(node, part)
        return node


def _child(node: Node, part: str | int) -> Node | None:
    # Keys of mappings are text, also where a schema reads them as numbers.
    return node.children.get(str(part) if isinstance(node.value, dict) else part)


def _with_text(node: Node, path: KeyPath, text: str) -> Node:
    if not path:
        return Node(value=text, line=node.line, text=text)
    part, rest = path[0], path[1:]
    child = _with_text(_child(node, part) or Node(value=None, line=node.line), rest, text)
    if isinstance(node.value, dict):
        return replace(
            node, value={**node.value, part: child.value}, children={**node.children, str(part): child}
        )
    value = [child.value if i == part else item for i, item in enumerate(node.value)]
    return replace(node, value=value, children={**node.children, part: child})


def changed(node: Node, path: KeyPath, value: Any) -> Node:
    """`node` with another plain value at a key path; None: without that key.

    Mappings on the way are made where they are absent. Lines of other values stay; the new one has that of
    what it lies in.

    Raises
    ------
    KeyError
        If something on the way is neither a mapping nor a list that goes so far; names the path to it.
    """
    part, rest = path[0], path[1:]
    inside = isinstance(node.value, list) if isinstance(part, int) else isinstance(node.value, dict)
    old = node.children.get(part)
    if not inside or (old is None and isinstance(part, int)):
        raise KeyError(part)
    if not rest and value is None and isinstance(part, str):
        return _with_children(node, {k: child for k, child in node.children.items() if k != part})
    if rest:
        new = changed(old or Node({}, node.line), rest, value)
    else:
        new = plain_node(value, node.line if old is None else old.line)
    return _with_children(node, {**node.children, part: new})


def _with_children(node: Node, children: Mapping[str | int, Node]) -> Node:
    plain = {key: child.value for key, child in children.items()}
    value = list(plain.values()) if isinstance(node.value, list) else plain
    return replace(node, value=value, children=children, size=1 + sum(c.size for c in children.values()))


def plain_node(value: Any, line: int) -> Node:
    """A plain value as if it stood on this line of a file."""
    children: dict[str | int, Node] = {}
    if isinstance(value, dict):
        children = {str(key): plain_node(item, line) for key, item in value.items()}
    elif isinstance(value, list):
        children = {i: plain_node(item, line) for i, item in enumerate(value)}
    return _with_children(Node(value, line), children) if children else Node(value, line, _written(value))


def _written(value: Any) -> str:
    """A scalar as files have it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return str(value) if isinstance(value, str | int | float) else ""


def only(node: Node, key: str) -> Node:
    """A mapping with one of its keys alone."""
    return replace(
        node,
        value={key: node.value[key]} if key in node.value else {},
        children={k: child for k, child in node.children.items() if k == key},
    )


def dotted(path: KeyPath) -> str:
    """A key path as people write it: ``fleet[0].gpu``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            written = part if part.isprintable() and part else repr(part)
            text += f".{written}" if text else written
    return text if len(text) <= 2 * MAX_SHOWN else f"{text[: 2 * MAX_SHOWN - 3]}..."


def shorten(text: str) -> str:
    """The start of a text, as much as fits into a message."""
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def shown(node: Node) -> str:
    """A value as a message quotes it."""
    if isinstance(node.value, dict):
        return "a mapping of keys" if node.value else "an empty mapping"
    if isinstance(node.value, list):
        return "a list" if node.value else "an empty list"
    if isinstance(node.value, str):
        return shorten(repr(node.value[: 2 * MAX_SHOWN]))
    return shorten(node.text) or "nothing"
