"""Errors of pydantic in plain sentences, with the nearest key, choice or way to write a number."""

from __future__ import annotations

import re
from typing import Any, get_args

from pydantic_core import ErrorDetails

from planner.documents.names import did_you_mean, one_of
from planner.documents.schema_base import DocumentModel, Reserved
from planner.documents.tree import KeyPath, Tree
from planner.documents.yaml_text import plain_scalar
from planner.errors import Problem

NO_VALUE = ("has no value", "give one, or leave the key out")

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


def schema_problem(tree: Tree, schema: type[DocumentModel], error: ErrorDetails) -> Problem:
    """One error of pydantic as a problem of the file."""
    # Tags of unions are written in parentheses, so that they can be left out here.
    path = tuple(p for p in error["loc"] if not str(p).startswith("(") and p != "[key]")
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return tree.problem(path, "unknown key", _known_key(schema, path), show_value=False)
    if kind == "missing":
        return tree.problem(path, "is required", show_value=False)
    if kind != "reserved" and tree.has(*path) and tree.get(*path) is None:
        return tree.problem(path, *NO_VALUE, show_value=False)
    if kind in ("enum", "literal_error"):
        choices = re.findall(r"'([^']*)'", context["expected"])
        return tree.problem(path, one_of(choices), did_you_mean(str(tree.get(*path)), choices))
    if kind in ("reserved", "rule"):
        return tree.problem(path, context["rule"], context.get("suggestion", ""))
    if kind == "value_error":
        return tree.problem(path, str(context["error"]))
    if kind in _RULES:
        return tree.problem(path, _RULES[kind].format(**context), _type_hint(tree, path, kind))
    return tree.problem(path, error["msg"][0].lower() + error["msg"][1:])


def _type_hint(tree: Tree, path: KeyPath, kind: str) -> str:
    value = tree.get(*path)
    if isinstance(value, str) and kind in ("float_type", "int_type", "float_parsing", "int_parsing"):
        return _number_hint(value)
    if isinstance(value, float) and kind in ("int_type", "int_from_float") and value.is_integer():
        return f"write {value:.0f}"
    if kind == "string_type" and not isinstance(value, dict | list):
        return "put it in quotes if it is a name"
    return ""


def _number_hint(text: str) -> str:
    """What to write instead of `text` where a number is expected."""
    bare = text.strip()
    if type(plain_scalar(bare)) in (int, float):  # a bool is an int
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
