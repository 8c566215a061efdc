"""The Python API as a page: signatures, docstrings, and the types that functions take and return."""

from __future__ import annotations

import inspect
import re
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

import planner
import planner.plan

_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|meth|mod|data|attr):`~?([\w.]+)`")
_DIRECTIVE = re.compile(r"^\.\. math::(.*\n(?:(?: .*)?\n)*)", re.MULTILINE)
_SIMPLE = (bool, int, float, str, type(None))


def api_page() -> str:
    """All names of ``import planner``."""
    names = [name for name in planner.__all__ if not name.startswith("_")]
    found = [(name, getattr(planner, name)) for name in names]
    functions = [(name, value) for name, value in found if not isinstance(value, type)]
    types = {value for _, value in found if isinstance(value, type)}
    errors = [(name, value) for name, value in found if value in types and issubclass(value, Exception)]
    exported = types - {value for _, value in errors}
    parts = [
        "# Python API",
        "`import planner` loads nothing until a name is used. All numbers are in SI base units: s, B, FLOP, "
        "tok, req/s; money in USD/h.",
        "## Functions",
    ]
    parts += [
        f"### `planner.{name}`\n\n```python\n{_signature(name, value)}\n```\n\n{markdown(value)}"
        for name, value in functions
    ]
    parts.append("## Errors")
    parts += [f"### `planner.{name}`\n\n{markdown(value)}" for name, value in errors]
    parts.append(
        "## Types\n\nWhat functions take and return, and the parts of a plan: frozen, made by keyword."
    )
    for kind in sorted(exported | _types(value for _, value in functions), key=lambda kind: kind.__name__):
        parts.append(_type_section(kind, "planner." if kind in exported else ""))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _signature(name: str, function: Any) -> str:
    parameters = [_parameter(p) for p in inspect.signature(function).parameters.values()]
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        parameters.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returned = inspect.signature(function).return_annotation
    arrow = "" if returned is inspect.Signature.empty else f" -> {_annotation(returned)}"
    return f"{name}(\n" + "".join(f"    {p},\n" for p in parameters) + f"){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    text = f"{parameter.name}: {_annotation(parameter.annotation)}"
    if parameter.default is inspect.Parameter.empty:
        return text
    return f"{text} = {_value(parameter.default)}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _value(value: Any) -> str:
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    return repr(value) if isinstance(value, _SIMPLE) or value == () else "..."


def _types(functions: Iterator[Any]) -> set[type]:
    """Dataclasses of this package that the functions name, and those of plans."""
    found = {
        kind
        for kind in vars(planner.plan).values()
        if isinstance(kind, type) and is_dataclass(kind) and kind.__module__ == "planner.plan"
    }
    for function in functions:
        for hint in typing.get_type_hints(function).values():
            found |= {kind for kind in _within(hint) if kind.__module__.startswith("planner.")}
    return found


def _within(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for inner in typing.get_args(hint):
        yield from _within(inner)


def _type_section(kind: type, prefix: str) -> str:
    head = f"### `{prefix}{kind.__name__}`\n\nOf `{kind.__module__}`.\n\n{markdown(kind)}"
    if not is_dataclass(kind):
        return head
    rows = ["| Field | Type | Default |", "| --- | --- | --- |"]
    for field in fields(kind):
        default = (
            "" if field.default is MISSING and field.default_factory is MISSING else f"`{_default(field)}`"
        )
        rows.append(f"| `{field.name}` | `{str(field.type).replace('|', chr(92) + '|')}` | {default} |")
    return f"{head}\n\n" + "\n".join(rows)


def _default(field: Any) -> str:
    return "..." if field.default is MISSING else _value(field.default)


def markdown(value: Any) -> str:
    """A numpydoc docstring as Markdown."""
    text = inspect.getdoc(value) or ""
    if text.startswith(f"{getattr(value, '__name__', '')}("):
        return ""  # what dataclasses write where nobody else did
    text = text.replace("``", "`").replace("]_", "]")
    text = _DIRECTIVE.sub(lambda m: f"\n```math\n{textwrap.dedent(m[1]).strip()}\n```\n", text + "\n")
    text = re.sub(r":math:`([^`]+)`", r"$`\1`$", text)
    text = _ROLE.sub(lambda m: f"`{m[1].rsplit('.', 1)[-1]}`", text)
    pieces = _SECTION.split(text)
    parts = [pieces[0].strip()]
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        parts.append(f"**{title}**\n\n{_section(title, body.strip())}")
    return "\n\n".join(part for part in parts if part)


def _section(title: str, body: str) -> str:
    if title in ("Notes", "References", "Examples"):
        return re.sub(r"^\.\. ", "", body, flags=re.MULTILINE)
    entries = re.findall(r"^(\S.*)\n?((?:(?: +.*)?(?:\n|$))*)", body, re.MULTILINE)
    lines = []
    for head, rest in entries:
        names, _, kind = head.partition(" : ")
        said = " ".join(rest.split())
        shown = f"`{names}`" if re.fullmatch(r"[\w ,.\[\]]+", names) else names
        lines.append(f"- {shown}" + (f" ({kind})" if kind and said else f": {kind}" if kind else "")
                     + (f": {said}" if said else ""))  # fmt: skip
    return "\n".join(lines)
