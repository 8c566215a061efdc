"""Serving engines: one data file per engine, and the rules of what each can run."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from planner.documents.engine import load_engine_file
from planner.documents.names import did_you_mean
from planner.errors import SpecError
from planner.specs import Engine

_FOLDER = Path(str(files(__name__)))


def engine_names() -> tuple[str, ...]:
    """Names of the engines that have a data file, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


@cache
def load_engine(name: str) -> Engine:
    """Data of an engine by its name, in any case.

    Raises
    ------
    SpecError
        Unknown name.
    """
    for known in engine_names():
        if known == name.lower():
            return load_engine_file(_FOLDER / f"{known}.yaml")
    meant = did_you_mean(name, engine_names())
    known = f"known: {', '.join(engine_names())}"
    raise SpecError(f"unknown engine {name!r}: {f'{meant} {known}' if meant else known}")
