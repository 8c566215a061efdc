"""Config files of engines: their settings, each with its line, and keys and types against a list."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.deploy.command_line import Flag, FlagList, value_faults
from planner.deploy.description import PLACEHOLDER
from planner.deploy.findings import Finding, of_error, of_problem
from planner.documents.files import read_text
from planner.documents.names import did_you_mean
from planner.documents.tree import KeyPath, Tree
from planner.documents.yaml_text import parse_tree
from planner.errors import SpecError

Settings = Mapping[str, tuple[tuple[str, ...], int]]
"""Texts of settings by their dotted names, as flags have them, each with its line."""

_KINDS = {"bool": bool, "list": list, "map": dict, "str": str}
_CALLED = {"bool": "true or false", "list": "a list", "map": "a mapping", "str": "text"}


def read_config(folder: Path, file: str) -> tuple[Tree | None, list[Finding]]:
    """A YAML file of a folder; None where it is not there or cannot be read, and what is wrong with it."""
    if not (folder / file).is_file():
        return None, []
    try:
        tree, problems = parse_tree(read_text(folder / file), file)
    except SpecError as error:
        return None, of_error(file, error)
    return tree, [of_problem(file, problem) for problem in problems]


def settings_of(tree: Tree) -> Settings:
    """All scalars and lists of a file; a mapping only by what it holds."""
    return dict(_settings(tree, tree.raw, ()))


def _settings(
    tree: Tree, section: Mapping[str, Any], path: KeyPath
) -> Iterator[tuple[str, tuple[tuple[str, ...], int]]]:
    for key, value in section.items():
        here = (*path, key)
        if isinstance(value, dict):
            yield from _settings(tree, value, here)
        else:
            yield ".".join(map(str, here)), ((_text(value),), tree.line(here))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def config_findings(file: str, tree: Tree, keys: FlagList, path: KeyPath = ()) -> Iterator[Finding]:
    """Keys of a file that the engine does not know, and values that it does not take.

    What a list of keys does not go into is not looked at.
    """
    prefix = ".".join((*map(str, path), "")) if path else ""
    known = [name.removeprefix(prefix) for name in keys.flags if name.startswith(prefix)]
    section = tree.get(*path) if path else tree.raw
    for key, value in section.items():
        here = (*path, key)
        flag, line = keys.flags.get(f"{prefix}{key}"), tree.line(here)
        if flag is None:
            yield unknown_key(file, line, key, [name for name in known if "." not in name], keys)
        elif isinstance(value, str) and value.startswith(PLACEHOLDER):
            continue  # told by itself
        elif isinstance(value, dict) and any(name.startswith(f"{flag.name}.") for name in keys.flags):
            yield from config_findings(file, tree, keys, here)
        else:
            yield from _value_findings(file, line, flag, value)


def unknown_key(file: str, line: int, key: str, known: list[str], keys: FlagList) -> Finding:
    """A key that a tool does not know."""
    rule = f"{keys.tool} {keys.version} has no such key"
    return Finding(file=file, line=line, rule=rule, value=key, suggestion=did_you_mean(key, known))


def _value_findings(file: str, line: int, flag: Flag, value: Any) -> Iterator[Finding]:
    text = _text(value)
    if text in flag.words and value is None:
        return
    kind = _KINDS.get(flag.type)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is not None and not isinstance(value, kind):
        yield Finding(file=file, line=line, rule=f"{flag.name} must be {_CALLED[flag.type]}", value=text)
    elif kind is None and not number:
        yield Finding(file=file, line=line, rule=f"{flag.name} must be a number", value=text)
    elif not isinstance(value, list | dict):
        for fault in value_faults(flag, text, 0):
            yield Finding(
                file=file, line=line, rule=fault.rule, value=fault.value, suggestion=fault.suggestion
            )
