"""What an API server would refuse of an object: unknown fields, wrong types and values, names.

Schemas are data (``schemas/<kind>.json``, made by ``tools/build_resource_schemas.py``): objects have `fields`
or arbitrary keys with `values`, lists `items` that `keys` tell apart; a `pod` is what ``pod.json`` says,
a `partial` one may leave containers to what it is merged with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from planner.deploy.description import PLACEHOLDER
from planner.deploy.findings import Finding
from planner.deploy.kubernetes.rules import rule_findings
from planner.documents.names import did_you_mean, one_of
from planner.documents.schema_base import MAX_LABEL
from planner.documents.tree import KeyPath, Tree, dotted

Schema = Mapping[str, Any]

_FOLDER = Path(str(files(__package__))) / "schemas"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_KEY = re.compile(rf"({_SUBDOMAIN.pattern}/)?[A-Za-z0-9]([A-Za-z0-9._-]{{0,61}}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")
_HOST = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_HOSTS = ("Service", "LeaderWorkerSet")
"""Kinds whose names are names of hosts within the cluster: no dots, a letter first."""
_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_LONGEST = 253
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "array": (list,),
    "object": (dict,),
}  # fmt: skip
_CALLED = {
    "string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
    "array": "a list", "object": "a mapping",
}  # fmt: skip
_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "object", "values": _TEXT}
_METADATA: Schema = {
    "type": "object",
    "fields": {
        "name": {}, "namespace": {}, "generateName": _TEXT, "labels": _TEXTS, "annotations": _TEXTS,
        "finalizers": {"type": "array", "items": _TEXT},
    },
}  # fmt: skip
_OLDER = {
    ("nvidia.com/v1alpha1", "DynamoGraphDeployment"): "nvidia.com/v1beta1",
    ("serving.kserve.io/v1alpha1", "LLMInferenceService"): "serving.kserve.io/v1alpha2",
    ("inference.networking.x-k8s.io/v1alpha2", "InferencePool"): "inference.networking.k8s.io/v1",
}


@cache
def _schemas() -> Mapping[str, Schema]:
    found = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(_FOLDER.glob("*.json")))
    return {one["kind"]: one for one in found}


def known_kinds() -> tuple[str, ...]:
    """Kinds of objects that are known."""
    return tuple(kind for kind, one in _schemas().items() if one["apiVersion"])


def resource_findings(tree: Tree, file: str) -> Iterator[Finding]:
    """What is wrong with one object, each with its line and the nearest alternative."""
    kind, version = str(tree.get("kind")), str(tree.get("apiVersion"))
    known = _schemas().get(kind)
    if known is None or not known["apiVersion"]:
        hint = did_you_mean(kind, known_kinds()) or f"known: {', '.join(known_kinds())}"
        yield Finding(
            file=file, line=tree.line(("kind",)), rule="is no known kind", value=kind, suggestion=hint
        )
        return
    if version != known["apiVersion"]:
        old = _OLDER.get((version, kind))
        rule = f"apiVersion of {kind} {one_of((known['apiVersion'],))}"
        hint = "an older version, which its fields do not have" if old else ""
        yield Finding(file=file, line=tree.line(("apiVersion",)), rule=rule, value=version, suggestion=hint)
        return
    body: dict[str, Any] = {**known["schema"]["fields"], "apiVersion": {}, "kind": {}, "metadata": _METADATA}
    problems = list(_findings(tree, (), {**known["schema"], "fields": body}, file))
    if kind != "Kustomization":
        yield from _name_findings(tree, file, kind)
    if kind == "ConfigMap":
        problems += _data_findings(tree, file)
    yield from problems
    if not problems:
        yield from rule_findings(tree, file)


def _name_findings(tree: Tree, file: str, kind: str) -> Iterator[Finding]:
    """Names of an object and of its namespace."""
    metadata = tree.get("metadata")
    if not isinstance(metadata, dict):
        yield Finding(file=file, line=1, rule="metadata is required")
        return
    named = (_HOST, MAX_LABEL) if kind in _HOSTS else (_SUBDOMAIN, _LONGEST)
    for key, pattern, longest in (("name", *named), ("namespace", _LABEL, MAX_LABEL)):
        value = tree.get("metadata", key)
        line = tree.line(("metadata", key))
        if value is None:
            if key == "name":
                yield Finding(file=file, line=line, rule="metadata.name is required")
        elif not _named(value, pattern, longest):
            first = ", a letter first" if pattern is _HOST else ""
            rule = f"metadata.{key} must be up to {longest} small letters, digits and dashes{first}"
            yield Finding(file=file, line=line, rule=rule, value=str(value))


def _data_findings(tree: Tree, file: str) -> Iterator[Finding]:
    """Keys of a ConfigMap, which become names of files."""
    for part in ("data", "binaryData"):
        given = tree.get(part)
        for key in given if isinstance(given, dict) else ():
            if not _DATA_KEY.fullmatch(key):
                rule = (
                    f"a key of {part} must be up to {_LONGEST} letters, digits, dashes, dots and underscores"
                )
                yield Finding(file=file, line=tree.line((part, key)), rule=rule, value=key)


def _named(value: Any, pattern: re.Pattern[str], longest: int) -> bool:
    """Whether a name can be one, or is still to be given."""
    if not isinstance(value, str):
        return False
    return value.startswith(PLACEHOLDER) or (pattern.fullmatch(value) is not None and len(value) <= longest)


def _label_findings(tree: Tree, path: KeyPath, file: str) -> Iterator[Finding]:
    """Keys and values of labels; keys of annotations."""
    for part in ("labels", "annotations"):
        given = tree.get(*path, part)
        for key, value in given.items() if isinstance(given, dict) else ():
            line = tree.line((*path, part, key))
            if not _KEY.fullmatch(str(key)) or len(str(key).rpartition("/")[0]) > _LONGEST:
                yield Finding(file=file, line=line, rule=f"is no key of {part}", value=str(key))
            told = not isinstance(value, str) or value.startswith(PLACEHOLDER)
            if part == "labels" and not told and not _VALUE.fullmatch(value):
                rule = f"a label must be up to {MAX_LABEL} letters, digits, dashes, dots and underscores"
                yield Finding(file=file, line=line, rule=rule, value=value)


# --------------------------------------------------------------------------------------------
# Schemas


def _findings(tree: Tree, path: KeyPath, schema: Schema, file: str) -> Iterator[Finding]:
    if schema.get("pod"):
        pod = _schemas()["pod"]["schema"]
        schema = {**pod, "required": ()} if schema.get("partial") else pod
    value = tree.get(*path)
    if not schema or schema.get("open") or (isinstance(value, str) and value.startswith(PLACEHOLDER)):
        return
    problem, hint = _problem(value, schema)
    if problem:
        where = dotted(path) or "it"
        shown = "nothing" if value is None else str(value)
        yield Finding(
            file=file, line=tree.line(path), rule=f"{where} {problem}", value=shown, suggestion=hint
        )
        return
    if isinstance(value, dict):
        yield from _object_findings(tree, path, schema, file, value)
    elif isinstance(value, list):
        yield from _list_findings(tree, path, schema, file, len(value))


def _problem(value: Any, schema: Schema) -> tuple[str, str]:
    """What is wrong with a value by itself, and a suggestion; empty where nothing is."""
    if value is None and schema.get("nullable"):
        return "", ""
    if schema.get("intOrString"):
        fits = isinstance(value, int | str) and not isinstance(value, bool)
        return ("" if fits else "must be a whole number or text"), ""
    if schema.get("quantity"):
        whole = isinstance(value, int) and not isinstance(value, bool)
        fits = whole or (isinstance(value, str) and _QUANTITY.fullmatch(value) is not None)
        hint = f"write '{value}'" if isinstance(value, float) else ""
        return ("" if fits else "must be a quantity such as 4, 500m or 32Gi"), hint
    kind = str(schema.get("type", "object" if "fields" in schema or "values" in schema else ""))
    if kind and (not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        hint = f"write '{value}'" if kind == "string" and isinstance(value, int | float) else ""
        return f"must be {_CALLED[kind]}", hint
    if "enum" in schema and value not in schema["enum"]:
        return one_of(tuple(map(str, schema["enum"]))), did_you_mean(str(value), schema["enum"])
    return _bound(value, schema), ""


def _bound(value: Any, schema: Schema) -> str:
    size: float
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            return f"must match {schema['pattern']}"
        size, least, most, what = len(value), "minLength", "maxLength", " characters"
    elif isinstance(value, list):
        size, least, most, what = len(value), "minItems", "maxItems", " items"
    elif isinstance(value, dict):
        size, least, most, what = len(value), "minProperties", "maxProperties", " keys"
    elif isinstance(value, int | float):
        size, least, most, what = value, "minimum", "maximum", ""
    else:
        return ""
    if size < schema.get(least, size):
        return f"must be at least {schema[least]}{what}"
    if size > schema.get(most, size):
        return f"must be at most {schema[most]}{what}"
    return ""


def _object_findings(
    tree: Tree, path: KeyPath, schema: Schema, file: str, value: Mapping[str, Any]
) -> Iterator[Finding]:
    fields = schema.get("fields")
    for name in schema.get("required", ()):
        if name not in value:
            rule = f"{dotted((*path, name))} is required"
            yield Finding(file=file, line=tree.line(path), rule=rule)
    for key in value:
        here = (*path, key)
        if fields is None:
            yield from _findings(tree, here, schema.get("values", {}), file)
        elif key in fields:
            yield from _findings(tree, here, fields[key], file)
        else:
            rule, hint = f"{dotted(path) or 'the object'} has no such field", did_you_mean(key, list(fields))
            yield Finding(file=file, line=tree.line(here), rule=rule, value=str(key), suggestion=hint)
    if path and path[-1] == "metadata":
        yield from _label_findings(tree, path, file)


def _list_findings(tree: Tree, path: KeyPath, schema: Schema, file: str, count: int) -> Iterator[Finding]:
    keys, usual, seen = schema.get("keys", ()), schema.get("usual", {}), set[tuple[str, ...]]()
    for i in range(count):
        here = (*path, i)
        yield from _findings(tree, here, schema.get("items", {}), file)
        told = tuple(str(tree.get(*here, key) or usual.get(key)) for key in keys)
        if keys and told in seen:
            rule = f"{dotted(path)} has two items with this {' and '.join(keys)}"
            yield Finding(file=file, line=tree.line(here), rule=rule, value=", ".join(told))
        seen.add(told)
