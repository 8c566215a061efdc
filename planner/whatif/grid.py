"""Grids of values for keys of a scenario file: read from text, checked, and put into the file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice, product
from typing import Any

from planner.documents.names import unknown_name
from planner.documents.scenario import LoadedScenario, scenario_from_tree
from planner.documents.tree import KeyPath, Tree, changed, dotted
from planner.documents.yaml_text import parse_tree
from planner.errors import Problem, SpecError

MOST_POINTS = 100_000
_MOST_TRIED = 200  # points at which a value is tried before it is left to them
_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*:\s*({_NUMBER})(?:\s*:\s*(x?)\s*({_NUMBER}))?\s*")
_FORMS = "values are 20,30 or start:stop:step or, each a multiple of the one before, start:stop:x2"
_ENTRY_NAMES = ("gpu", "instance", "name", "model")
"""Keys whose text stands for an entry of a list."""
_CHEAP = frozenset(
    {
        "price_per_gpu_hour",
        "max_gpus",
        "max_prefill_gpus",
        "max_decode_gpus",
        "max_colocated_gpus",
        "owned",
        "request_rate",
        "budget_per_hour",
        "objective",
        "headroom",
        "spare_replicas",
        "min_replicas_per_pool",
        "whole_nodes",
    }
)
"""Keys that leave the latencies of replicas as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A key of the scenario file with the values that it takes.

    Attributes
    ----------
    key : str
        As it was given.
    values : tuple
        Plain values of a file; None: the key is left out.
    """

    key: str
    path: KeyPath
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """All combinations of the values of some keys; the last key changes fastest."""

    axes: tuple[Axis, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(axis.key for axis in self.axes)

    def points(self) -> tuple[tuple[Any, ...], ...]:
        """The values of every point, in the order of the axes."""
        return tuple(product(*(axis.values for axis in self.axes)))

    def order(self) -> list[int]:
        """Points by the order in which they are solved: what needs new latencies changes slowest."""
        slow = [not isinstance(a.path[-1], str) or a.path[-1] not in _CHEAP for a in self.axes]
        places = list(product(*(range(len(axis.values)) for axis in self.axes)))

        def rank(index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
            place = places[index]
            dear = tuple(k for k, is_slow in zip(place, slow, strict=True) if is_slow)
            return dear, place

        return sorted(range(len(places)), key=rank)

    def tree(self, base: Tree, values: Sequence[Any]) -> Tree:
        """The file with the values of one point."""
        root = base.root
        for axis, value in zip(self.axes, values, strict=True):
            root = changed(root, axis.path, value)
        return replace(base, root=root)


def grid_of(base: Tree, vary: Mapping[str, Any]) -> Grid:
    """The grid of `vary`: keys with values, or with the text of values.

    Raises
    ------
    SpecError
        If a key or value is none, a value cannot be read at any point, or there are too many points.
    """
    if not vary:
        raise SpecError("nothing is varied: give a key and its values, e.g. slo.tpot_ms.p99=20:100:10")
    axes = tuple(
        Axis(key=key, path=path_of(base, key), values=_values(key, given)) for key, given in vary.items()
    )
    for i, axis in enumerate(axes):
        for other in axes[:i]:
            short = min(len(axis.path), len(other.path))
            if axis.path[:short] == other.path[:short]:
                raise SpecError(f"{axis.key} is, or lies within, {other.key}, which is varied too")
    points = math.prod(len(axis.values) for axis in axes)
    if points > MOST_POINTS:
        raise SpecError(f"the grid has {points:,} points, at most {MOST_POINTS:,} are solved (vary less)")
    grid = Grid(axes=axes)
    _check_values(base, grid)
    return grid


# --------------------------------------------------------------------------------------------
# Keys


def path_of(base: Tree, key: str) -> KeyPath:
    """The key path of ``fleet.h100-sxm.max_gpus`` or ``fleet[0].max_gpus``: entries of a list go by their
    number, or by their GPU or name.

    Raises
    ------
    SpecError
        If there is no such entry, or several.
    """
    path: KeyPath = ()
    for part in re.sub(r"\[([0-9]+)\]", r".\1", key).strip().split("."):
        if not part:
            raise SpecError(f"{key!r} is no key: parts are separated by single dots, e.g. slo.tpot_ms.p99")
        path = (*path, _entry(base, path, part, key) if isinstance(base.get(*path), list) else part)
    return path


def _entry(base: Tree, path: KeyPath, part: str, key: str) -> int:
    """Number of an entry of a list."""
    entries = base.entries(*path)
    if part.isdecimal():
        if int(part) < len(entries):
            return int(part)
        raise SpecError(f"{key}: {dotted(path)} has {len(entries)} entries, and the first is 0")
    names = [
        [str(entry[k]) for k in _ENTRY_NAMES if k in entry] if isinstance(entry, dict) else []
        for entry in entries
    ]
    found = [i for i, own in enumerate(names) if part in own]
    if len(found) == 1:
        return found[0]
    if found:
        numbers = " or ".join(f"{dotted(path)}[{i}]" for i in found)
        raise SpecError(f"{key}: {dotted(path)} has {len(found)} entries called {part} (write {numbers})")
    rule, hint = unknown_name(f"entry of {dotted(path)}", part, [name for own in names for name in own])
    raise SpecError(f"{key}: {rule} {part!r} ({hint})")


# --------------------------------------------------------------------------------------------
# Values


def _values(key: str, given: Any) -> tuple[Any, ...]:
    """Plain values of what was given for a key."""
    values = values_of(key, given) if isinstance(given, str) else tuple(_plain(v) for v in _listed(given))
    if not values:
        raise SpecError(f"{key}: no value is given ({_FORMS})")
    seen: dict[str, Any] = {}
    for value in values:
        text = value_key(value)
        if text in seen:
            raise SpecError(f"{key}: {text} is given twice")
        seen[text] = value
    return values


def _listed(given: Any) -> list[Any]:
    listed = given.tolist() if hasattr(given, "tolist") else given
    return list(listed) if isinstance(listed, Sequence | range) else [listed]


def _plain(value: Any) -> Any:
    """A value of Python as files have it."""
    if hasattr(value, "tolist"):  # numpy's
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def value_key(value: Any) -> str:
    """A value as text that tells it from others: 5 and 5.0 are one, 5 and "5" are two."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)


def values_of(key: str, text: str) -> tuple[Any, ...]:
    """Values as they are typed: ``20,30``, ``20:100:10``, ``5:80:x2``, ``a100-80gb-sxm``, ``true``, ``null``,
    ``[1, 2],[1, 2, 4]``; several separated by commas.

    Raises
    ------
    SpecError
    """
    try:
        tree, problems = parse_tree(f"values: [{text}]", key)
    except SpecError:
        problems, tree = [Problem(key="", rule="")], None
    if tree is None or problems:
        raise SpecError(f"{key}: {text!r} is no list of values ({_FORMS})")
    return tuple(
        one
        for value in tree.entries("values")
        for one in (_range(key, value) if isinstance(value, str) else (value,))
    )


def _range(key: str, text: str) -> Iterator[Any]:
    """The values of a range, computed in decimals; or the text itself where it is none."""
    found = _RANGE.fullmatch(text)
    if found is None:
        yield text
        return
    start, stop = Decimal(found[1]), Decimal(found[2])
    if found[4] is None:
        raise SpecError(f"{key}: the range {text} has no step ({_FORMS})")
    step = Decimal(found[4])
    whole = not any(re.search(r"[.eE]", found[i]) for i in (1, 2, 4))
    if found[3]:
        if not (start > 0 and stop > 0 and step > 0 and step != 1) or (step > 1) != (stop >= start):
            raise SpecError(f"{key}: the range {text} never gets from {start} to {stop}")
    elif step == 0 or (step > 0) != (stop >= start):
        raise SpecError(f"{key}: the range {text} never gets from {start} to {stop}")
    value, count = start, 0
    while value <= stop if stop >= start else value >= stop:
        count += 1
        if count > MOST_POINTS:
            raise SpecError(f"{key}: the range {text} has more than {MOST_POINTS:,} values")
        yield int(value) if whole and value == value.to_integral_value() else float(value)
        value = value * step if found[3] else start + count * step


# --------------------------------------------------------------------------------------------
# Before anything is solved


def _check_values(base: Tree, grid: Grid) -> None:
    """Each value can be read at some point at least; what is wrong with one alone is bad input.

    Raises
    ------
    SpecError
    """
    problems = _problems(base, grid, tuple(axis.values[0] for axis in grid.axes))
    if problems and not any(_under(problem, axis.path) for problem in problems for axis in grid.axes):
        scenario_from_tree(base)  # what is wrong with the file itself
    for number, axis in enumerate(grid.axes):
        for value in axis.values:
            problem = _unreadable(base, grid, number, value)
            if problem is not None:
                raise SpecError(f"{axis.key}={_shown(value)}: {_told(problem, axis.path)}")


def _unreadable(base: Tree, grid: Grid, number: int, value: Any) -> Problem | None:
    """What is wrong with a value wherever it is tried; None where it can be read at some point."""
    others = [axis.values if k != number else (value,) for k, axis in enumerate(grid.axes)]
    path, first = grid.axes[number].path, None
    for values in islice(product(*others), _MOST_TRIED):
        own = [p for p in _problems(base, grid, values) if _under(p, path)]
        if not own:
            return None
        first = first or own[0]
        if _plainly_wrong(own[0]):
            return first
    return first if math.prod(map(len, others)) <= _MOST_TRIED else None


def _plainly_wrong(problem: Problem) -> bool:
    """Whether no other value could put it right."""
    wrong = ("unknown ", "must be a ", "must be text", "must be true", "must be one of", "is no key")
    return problem.rule.startswith(wrong)


def _problems(base: Tree, grid: Grid, values: Sequence[Any]) -> tuple[Problem, ...]:
    """What is wrong with one point as a file."""
    try:
        scenario_from_tree(grid.tree(base, values))
    except SpecError as error:
        return error.problems or (Problem(key="", rule=str(error)),)
    except KeyError:
        for axis, value in zip(grid.axes, values, strict=True):
            if not _fits(base, axis, value):
                return (Problem(key=dotted(axis.path), rule="is no key: what it lies in is one value"),)
    return ()


def _fits(base: Tree, axis: Axis, value: Any) -> bool:
    try:
        changed(base.root, axis.path, value)
    except KeyError:
        return False
    return True


def _under(problem: Problem, path: KeyPath) -> bool:
    """Whether a problem is with the value at a path: there, within it, or an unknown key on the way."""
    at, key = dotted(path), problem.key
    if key == at or key.startswith((f"{at}.", f"{at}[")):
        return True
    return bool(key) and problem.rule == "unknown key" and at.startswith(f"{key}.")


def _told(problem: Problem, path: KeyPath) -> str:
    """A problem without the line, which the value has none of."""
    return str(replace(problem, line=0, key="" if problem.key == dotted(path) else problem.key))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def read_point(base: Tree, grid: Grid, values: Sequence[Any]) -> LoadedScenario:
    """The scenario at one point.

    Raises
    ------
    SpecError
        If the values do not go together.
    """
    return scenario_from_tree(grid.tree(base, values))
