"""Models, traffic and GPUs that a file names, looked up; what is not found becomes problems of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner import catalog
from planner.documents.engine_profile import load_engine_profile
from planner.documents.files import resolved_path
from planner.documents.model_config import model_from_config
from planner.documents.trace_file import read_trace
from planner.documents.tree import KeyPath, Tree, dotted
from planner.engines import DEFAULT_ENGINE
from planner.errors import Problem, SpecError
from planner.specs import GPU, EngineProfile, Model
from planner.traces import Trace

_SLIP = 0.9  # similarity from which a key of an inline model is taken for another


@dataclass(slots=True)
class Named:
    """What the names of a file stand for, and what is wrong with them."""

    model: Model | None = None
    preset: catalog.TrafficPreset | None = None
    trace: Trace | None = None
    measured_gpu: GPU | None = None
    profile: EngineProfile | None = None
    gpus: dict[int, GPU] = field(default_factory=dict)
    instances: dict[int, catalog.CloudInstance] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def look_up_demand(tree: Tree) -> Named:
    """Model, traffic and the GPU of a measured point by every name that is text, whatever else is wrong."""
    named = Named()
    if name := text_at(tree, "model"):
        with reporting(named, tree, ("model",)):
            named.model = catalog.load_model(name, tree.folder)
    elif isinstance(tree.get("model"), dict):
        named.model = _inline_model(tree, named.problems)
    if name := text_at(tree, "workload", "preset"):
        with reporting(named, tree, ("workload", "preset")):
            named.preset = catalog.load_traffic(name, tree.folder)
    if name := text_at(tree, "workload", "trace"):
        with reporting(named, tree, ("workload", "trace")):
            named.trace, named.preset = _traffic(resolved_path(name, tree.folder))
    if name := text_at(tree, "measured", "gpu"):
        with reporting(named, tree, ("measured", "gpu")):
            named.measured_gpu = catalog.load_gpu(name, tree.folder)
    if name := text_at(tree, "engine_profile"):
        with reporting(named, tree, ("engine_profile",)):
            named.profile = _engine_profile(tree, resolved_path(name, tree.folder))
    return named


def _engine_profile(tree: Tree, path: Path) -> EngineProfile:
    """The profile at a path, of the engine that the file names."""
    profile = load_engine_profile(path)
    engine = text_at(tree, "engine") or DEFAULT_ENGINE
    if engine != profile.engine:
        raise SpecError(f"is of {profile.engine}, the engine here is {engine}")
    return profile


def _traffic(path: Path) -> tuple[Trace, catalog.TrafficPreset]:
    """A trace with what a preset says of it; kept while the file stays as it is."""
    try:
        state = path.stat()
    except (OSError, ValueError):
        return _read_traffic(path, 0, 0)  # raises what is wrong with it
    return _read_traffic(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=2)
def _read_traffic(path: Path, _changed: int, _size: int) -> tuple[Trace, catalog.TrafficPreset]:
    trace = read_trace(path)
    return trace, catalog.traffic_of(trace)


def _inline_model(tree: Tree, problems: list[Problem]) -> Model | None:
    """A model whose configuration the scenario holds itself; its ``name`` is free."""
    config = _Recorded(tree.get("model"))
    name = text_at(tree, "model", "name") or "model"
    model = None
    try:
        model = model_from_config(config, name, f"model of {tree.source}")
    except SpecError as error:
        for problem in error.problems:
            path: KeyPath = ("model", *problem.key.split("."))
            key = f"{dotted((*tree.at, 'model'))}.{problem.key}"
            problems.append(replace(problem, key=key, line=tree.line(path)))
    for key, meant in config.mistyped():
        problems.append(tree.problem(("model", key), "unknown key", f"did you mean {meant}?"))
    return model


class _Recorded(dict[str, Any]):
    """A model's keys, and which of them were asked for.

    A configuration copied from a model's page has many keys that shapes do not need; what is refused is a
    key that was never asked for, so close to one that was asked for in vain that it must be a slip.
    """

    def __init__(self, keys: Mapping[str, Any]) -> None:
        super().__init__(keys)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def mistyped(self) -> list[tuple[str, str]]:
        """(key, key that was probably meant)."""
        in_vain = sorted(self.asked - set(self))
        unread = [key for key in self if isinstance(key, str) and key not in self.asked]
        near = ((key, get_close_matches(key, in_vain, n=1, cutoff=_SLIP)) for key in unread)
        return [(key, found[0]) for key, found in near if found]


def text_at(tree: Tree, *path: str | int) -> str:
    """The text at a key path; empty where there is none."""
    value = tree.get(*path)
    return value if isinstance(value, str) else ""


@contextmanager
def reporting(named: Named, tree: Tree, path: KeyPath) -> Iterator[None]:
    """Turn a failed look-up into problems at the line of the name."""
    try:
        yield
    except SpecError as error:
        said = [f"{error.source}: {problem}" for problem in error.problems] or [str(error)]
        named.problems += [tree.problem(path, rule, show_value=False) for rule in said]
