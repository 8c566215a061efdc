"""Text files in and out: YAML with line numbers, validation that reports every problem, atomic writing.

YAML 1.1, which PyYAML reads, turns ``12:30`` into 750, ``010`` into 8, ``no`` into False, keeps
``1e3`` as text and lets the last of two equal keys win. Values are therefore built here from parser
events, by the rules of YAML 1.2, and every value keeps its line. Schemas are pydantic models that
derive from :class:`DocumentModel`; their errors are put into plain sentences.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from planner.errors import Problem, SpecError
from planner.units import MEGA

MAX_BYTES = int(5 * MEGA)
MAX_NODES = 100_000
MAX_DEPTH = 64
_MAX_SHOWN = 60
_MAX_LISTED = 12
_MAX_DIGITS = 300  # of an integer; longer ones overflow a float anyway

KeyPath = tuple[str | int, ...]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


# --------------------------------------------------------------------------------------------
# Scalars


_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|(0|[1-9][0-9]*)(?=[eE]))([eE][-+]?[0-9]+)?")
_SPECIAL_FLOATS = re.compile(r"([-+]?)\.(inf|Inf|INF|nan|NaN|NAN)")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE_WORDS = frozenset({"true", "yes", "on"})
_FALSE_WORDS = frozenset({"false", "no", "off"})


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


def _number_hint(text: str) -> str:
    """What to write instead of `text` where a number is expected."""
    bare = text.strip()
    if isinstance(plain_scalar(bare), int | float) and not isinstance(plain_scalar(bare), bool):
        return "remove the quotes"
    if re.fullmatch(r"[-+]?0[0-9]+", bare):
        return "leave out the leading zero: some YAML readers take it for octal"
    if re.fullmatch(r"[-+]?[0-9]+(:[0-9]+)+(\.[0-9]*)?", bare):
        return "some YAML readers take a colon for base 60: write one plain number"
    if re.fullmatch(r"[-+]?[0-9]{1,3}([,_][0-9]{3})+(\.[0-9]*)?", bare):
        return f"write {re.sub('[,_]', '', bare)}"
    if re.fullmatch(r"0[xXoObB][0-9a-fA-F]+", bare):
        return "write it in decimal"
    if re.search(r"[0-9]", bare):
        return "write the number alone: the unit is in the key's name"
    return ""


# --------------------------------------------------------------------------------------------
# The tree


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
    """

    source: str
    root: Node
    folder: Path | None = None

    @property
    def raw(self) -> dict[str, Any]:
        """The file as plain dicts, lists and scalars."""
        value: dict[str, Any] = self.root.value
        return value

    def get(self, *path: str | int) -> Any:
        """Value at a key path; None where the file has no such key."""
        node = self._node(path)
        return None if node is None else node.value

    def has(self, *path: str | int) -> bool:
        """Whether the file has this key path."""
        return self._node(path) is not None

    def line(self, path: KeyPath) -> int:
        """Line of a key path, or of the closest enclosing key where it is absent; counts from 1."""
        node, line = self.root, self.root.line
        for part in path:
            child = _child(node, part)
            if child is None:
                break
            line = node.key_lines.get(str(part), child.line)
            node = child
        return line

    def problem(self, path: KeyPath, rule: str, suggestion: str = "", *, show_value: bool = True) -> Problem:
        """A broken rule at a key path, with its line and its value."""
        node = self._node(path)
        return Problem(
            key=dotted(path),
            rule=rule,
            value=_show(node) if show_value and node is not None else "",
            line=self.line(path),
            suggestion=suggestion,
        )

    def _node(self, path: KeyPath) -> Node | None:
        node: Node | None = self.root
        for part in path:
            if node is None:
                return None
            node = _child(node, part)
        return node


def _child(node: Node, part: str | int) -> Node | None:
    # Keys of mappings are text, also where a schema reads them as numbers.
    return node.children.get(str(part) if isinstance(node.value, dict) else part)


def dotted(path: KeyPath) -> str:
    """A key path as people write it: ``fleet[0].gpu``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            written = part if part.isprintable() and part else repr(part)
            text += f".{written}" if text else written
    return text if len(text) <= 2 * _MAX_SHOWN else f"{text[: 2 * _MAX_SHOWN - 3]}..."


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."


def _show(node: Node) -> str:
    if isinstance(node.value, dict):
        return "a mapping of keys" if node.value else "an empty mapping"
    if isinstance(node.value, list):
        return "a list" if node.value else "an empty list"
    if isinstance(node.value, str):
        return _shorten(repr(node.value[: 2 * _MAX_SHOWN]))
    return _shorten(node.text) or "nothing"


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
            raise _Unreadable(f"must be a mapping of keys at top level, got {_show(root)}", root.line)
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
            raise _Unreadable(f"alias *{_shorten(event.anchor)} has no anchor before it", _line(event))
        node = self._anchors[event.anchor]
        if node is None:
            raise _Unreadable(f"alias *{_shorten(event.anchor)} lies within its own anchor", _line(event))
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
        raise _Unreadable(f"the tag {_shorten(str(event.tag))} is not supported", _line(event))


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
        raise SpecError.of_file(source, [error.problem]) from None
    except yaml.MarkedYAMLError as error:
        raise SpecError.of_file(source, [_syntax_problem(error, text)]) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        problem = Problem(key="", rule=f"is not valid YAML: {_shorten(str(error))}")
        raise SpecError.of_file(source, [problem]) from None
    return Tree(source, root, folder), builder.problems


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
    if written[: len(written) - len(written.lstrip())].count("\t"):
        return Problem(key="", rule="is indented with a tab; YAML wants spaces", line=line)
    return Problem(key="", rule=f"is not valid YAML: {said}", value=written.strip()[:_MAX_SHOWN], line=line)


# --------------------------------------------------------------------------------------------
# Schemas


class DocumentModel(BaseModel):
    """Base of every schema of a file: no unknown keys, no silent conversion, no infinities."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    synonyms: ClassVar[Mapping[str, str]] = {}
    """Keys that people know from elsewhere, and what they are called here, or a sentence about it."""

    empty_values: ClassVar[bool] = True
    """Whether a key may be left without a value. Read from the schema of the whole file."""

    @classmethod
    def check(cls, tree: Tree) -> list[Problem]:
        """Rules that span several keys. Runs on the raw tree, also when a field is wrong."""
        return []


@dataclass(frozen=True, slots=True)
class Reserved:
    """Marks a key, or a choice, that the schema knows and this version refuses."""

    rule: str = "is reserved and not supported by this version"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def refuse(value: Any) -> Any:
            raise PydanticCustomError("reserved", "{rule}", {"rule": self.rule})

        return core_schema.no_info_plain_validator_function(refuse)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"not": {}, "description": f"Refused: {self.rule}."}


@dataclass(frozen=True, slots=True)
class Choice:
    """Makes a text field one of `known`; others are refused with the nearest.

    `aliases` are other spellings of known ones, `reserved` those that this version refuses.
    """

    known: tuple[str, ...]
    reserved: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._choose)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "enum": [*self.known, *self.aliases]}

    def _choose(self, value: Any) -> str:
        name = self.aliases.get(value, value) if isinstance(value, str) else None
        if name in self.known:
            return str(name)
        if name in self.reserved:
            raise rule_error("is not supported by this version", f"choose {_either(self.known)}")
        hint = did_you_mean(str(name), [*self.known, *self.aliases]) if name else ""
        raise rule_error(_one_of(self.known), hint)


def rule_error(rule: str, suggestion: str = "") -> PydanticCustomError:
    """What a validator of a schema raises: `rule` and `suggestion` reach the user as they are."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule, "suggestion": suggestion})


S = TypeVar("S", bound=DocumentModel)


@dataclass(frozen=True, slots=True)
class Document(Generic[S]):
    """A file that fits its schema: the validated `model`, and the `tree` with raw values and lines."""

    model: S
    tree: Tree

    @property
    def raw(self) -> dict[str, Any]:
        """The file as plain dicts, lists and scalars."""
        return self.tree.raw

    @property
    def source(self) -> str:
        return self.tree.source


def load_document(path: str | Path, schema: type[S]) -> Document[S]:
    """Read a YAML or JSON file and validate it.

    Raises
    ------
    SpecError
        With every problem of the file.
    """
    path = Path(path)
    return parse_document(read_text(path), str(path), schema, folder=path.parent)


def parse_document(
    text: str, source_name: str, schema: type[S], *, folder: Path | None = None
) -> Document[S]:
    """Validate YAML or JSON text; `source_name` names it in messages. See :func:`load_document`."""
    tree, problems = parse_tree(text, source_name, folder)
    model, found = validate(tree, schema)
    problems += found
    if problems or model is None:
        raise SpecError.of_file(source_name, problems)
    return Document(model, tree)


def validate(tree: Tree, schema: type[S]) -> tuple[S | None, list[Problem]]:
    """The validated model, or None with what is wrong."""
    problems: list[Problem] = []
    model = None
    try:
        # JSON mode: strict, yet enums, tuples and keys that are numbers are read from text.
        model = schema.model_validate_json(json.dumps(tree.raw), strict=True)
    except ValidationError as error:
        problems += [_schema_problem(tree, schema, e) for e in error.errors(include_url=False)]
    if not schema.empty_values:
        known = {p.key for p in problems}
        problems += [p for p in _empty_values(tree, tree.root, ()) if p.key not in known]
    problems += schema.check(tree)
    return model, problems


def _empty_values(tree: Tree, node: Node, path: KeyPath) -> Iterator[Problem]:
    if node.value is None:
        yield tree.problem(path, *_NO_VALUE, show_value=False)
    for key, child in node.children.items():
        yield from _empty_values(tree, child, (*path, key))


def _schema_problem(tree: Tree, schema: type[DocumentModel], error: ErrorDetails) -> Problem:
    # Tags of unions are written in parentheses, so that they can be left out here.
    path = tuple(p for p in error["loc"] if not str(p).startswith("(") and p != "[key]")
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return tree.problem(path, "unknown key", _known_key(schema, path), show_value=False)
    if kind == "missing":
        return tree.problem(path, "is required", show_value=False)
    if kind != "reserved" and tree.has(*path) and tree.get(*path) is None:
        return tree.problem(path, *_NO_VALUE, show_value=False)
    if kind in ("enum", "literal_error"):
        choices = re.findall(r"'([^']*)'", context["expected"])
        return tree.problem(path, _one_of(choices), did_you_mean(str(tree.get(*path)), choices))
    if kind in ("reserved", "rule"):
        return tree.problem(path, context["rule"], context.get("suggestion", ""))
    if kind == "value_error":
        return tree.problem(path, str(context["error"]))
    if kind in _RULES:
        return tree.problem(path, _RULES[kind].format(**context), _type_hint(tree, path, kind))
    return tree.problem(path, error["msg"][0].lower() + error["msg"][1:])


_NO_VALUE = ("has no value", "give one, or leave the key out")

_RULES = {
    "greater_than": "must be > {gt:.10g}",
    "greater_than_equal": "must be >= {ge:.10g}",
    "less_than": "must be < {lt:.10g}",
    "less_than_equal": "must be <= {le:.10g}",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of a sensible size",
    "int_from_float": "must be a whole number",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping of keys",
    "model_type": "must be a mapping of keys",
    "model_attributes_type": "must be a mapping of keys",
    "too_short": "must have {min_length} or more entries, has {actual_length}",
    "too_long": "must have {max_length} or fewer entries, has {actual_length}",
}


def _type_hint(tree: Tree, path: KeyPath, kind: str) -> str:
    value = tree.get(*path)
    if isinstance(value, str) and kind in ("float_type", "int_type", "float_parsing", "int_parsing"):
        return _number_hint(value)
    if isinstance(value, float) and kind in ("int_type", "int_from_float") and value.is_integer():
        return f"write {value:.0f}"
    if kind == "string_type" and not isinstance(value, dict | list):
        return "put it in quotes if it is a name"
    return ""


def _one_of(choices: Sequence[str]) -> str:
    return f"must be one of {', '.join(choices)}" if len(choices) > 1 else f"must be {choices[0]}"


def _either(choices: Sequence[str]) -> str:
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that `name` was probably meant to be."""
    folded = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower()[: 2 * _MAX_SHOWN], list(folded), n=1, cutoff=0.65)
    return folded[found[0]] if found else None


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A suggestion: the nearest known name, or nothing."""
    match = nearest(name, known)
    return f"did you mean {match}?" if match else ""


def unknown_name(kind: str, name: str, known: Sequence[str]) -> tuple[str, str]:
    """Rule and suggestion for a `name` that is none of `known`; a list of them where none is near."""
    more = f", and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    return f"unknown {kind}", did_you_mean(name, known) or f"known: {', '.join(known[:_MAX_LISTED])}{more}"


def _known_key(schema: type[DocumentModel], path: KeyPath) -> str:
    """Suggestion for the unknown last key of `path`."""
    models = _models_at(schema, path[:-1])
    name = str(path[-1])
    for model in models:
        if meant := model.synonyms.get(name):
            return meant if " " in meant else f"did you mean {meant}?"
    fields = {key: info for model in models for key, info in model.model_fields.items()}
    reserved = [k for k, info in fields.items() if any(isinstance(m, Reserved) for m in info.metadata)]
    keys = [key for key in fields if key not in reserved]
    return did_you_mean(name, keys) or f"known keys: {', '.join(keys)}"


def _models_at(schema: type[DocumentModel], path: KeyPath) -> list[type[DocumentModel]]:
    """Schemas that apply at a key path: follows fields, looks through lists, mappings and unions."""
    models = [schema]
    for part in path:
        fields = [m.model_fields[str(part)] for m in models if str(part) in m.model_fields]
        if fields:
            models = [m for f in fields for m in _models_in(f.annotation)]
    return models


def _models_in(annotation: Any) -> list[type[DocumentModel]]:
    if isinstance(annotation, type) and issubclass(annotation, DocumentModel):
        return [annotation]
    return [m for a in get_args(annotation) for m in _models_in(a)]


# --------------------------------------------------------------------------------------------
# Files


def file_error(path: str | Path, rule: str, suggestion: str = "") -> SpecError:
    """An error about a file as a whole."""
    return SpecError.of_file(str(path), [Problem(key="", rule=rule, suggestion=suggestion)])


def read_text(path: str | Path) -> str:
    """Content of a UTF-8 file of at most 5 MB, without its byte order mark.

    Raises
    ------
    SpecError
        Missing, a folder, unreadable, too large, not UTF-8.
    """
    path = Path(path)
    try:
        state = path.stat()
        if stat.S_ISDIR(state.st_mode):
            raise file_error(path, "is a folder, not a file")
        if state.st_size > MAX_BYTES:
            raise _too_large(path)
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # devices and pipes have no size
    except SpecError:  # is a ValueError too
        raise
    except FileNotFoundError:
        raise file_error(path, "no such file", _nearest_file(path)) from None
    except OSError as error:
        raise file_error(path, f"cannot be read: {error.strerror}") from None
    except ValueError:
        raise file_error(repr(str(path)), "is not a file name") from None
    if len(data) > MAX_BYTES:
        raise _too_large(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = Problem(key="", rule="is not a text file in UTF-8", line=line)
        raise SpecError.of_file(str(path), [problem]) from None


def _too_large(path: Path) -> SpecError:
    return file_error(path, f"is larger than {MAX_BYTES / MEGA:g} MB")


def _nearest_file(path: Path) -> str:
    try:
        names = sorted(os.listdir(path.parent))
    except OSError:
        return "the folder does not exist either"
    match = nearest(path.name, names)
    return f"did you mean {path.parent / match}?" if match else ""


def check_writable(path: str | Path) -> None:
    """Refuse a file that could not be written, before long work for it begins.

    Raises
    ------
    SpecError
        It is a folder, its own folder is missing, or permissions forbid it.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise file_error(path, "is a folder, not a file")
        if not path.parent.is_dir():
            raise file_error(path, f"cannot be written: there is no folder {path.parent}")
        special = path.exists() and not path.is_file()
        # Files are replaced, so it is their folder that has to let us.
        target = path if special else Path(os.path.realpath(path)).parent
        if not os.access(target, os.W_OK):
            raise file_error(path, "cannot be written: Permission denied")
    except SpecError:  # is a ValueError too
        raise
    except (OSError, ValueError) as error:
        raise file_error(repr(str(path)), f"cannot be written: {error}") from None


def write_text_atomic(path: str | Path, text: str) -> None:
    """Write a UTF-8 file whole or not at all; an existing file keeps its permissions.

    Raises
    ------
    SpecError
        As :func:`check_writable`, or the disk is full.
    """
    path = Path(path)
    check_writable(path)
    try:
        if path.exists() and not path.is_file():  # /dev/null and pipes
            path.write_text(text, encoding="utf-8")
        else:
            _replace(Path(os.path.realpath(path)), text)  # through symbolic links
    except OSError as error:
        raise file_error(path, f"cannot be written: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    data = text.encode("utf-8")
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    except BaseException:  # also an interrupt from the keyboard
        temporary.unlink(missing_ok=True)
        raise


# --------------------------------------------------------------------------------------------
# YAML out


class _Dumper(yaml.SafeDumper):
    """Quotes whatever :func:`plain_scalar` would not read back as text; writes no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if plain_scalar(text) == text else "'"
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
