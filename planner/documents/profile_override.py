"""An engine profile of the command line, laid over the file of a scenario or fleet."""

from __future__ import annotations

import os
from pathlib import Path

from planner.documents.engine_profile import load_engine_profile
from planner.documents.look_ups import text_at
from planner.documents.scenario_rules import demand_trees
from planner.documents.tree import Tree
from planner.engines import DEFAULT_ENGINE
from planner.errors import SpecError


def with_engine_profile(tree: Tree, path: Path | None) -> Tree:
    """A scenario or fleet whose engine is that of a profile; of several models, those on this engine.

    Raises
    ------
    SpecError
        A bad profile, one of another engine, or none of several models is on its engine.
    """
    if path is None or not isinstance(tree.root.value, dict):
        return tree
    profile = load_engine_profile(path)
    name = _seen_from(path, tree.folder)
    places = [demand.at for demand in demand_trees(tree) if isinstance(demand.get(), dict)]
    if tree.has("models"):
        own = [at for at in places if (text_at(tree, *at, "engine") or DEFAULT_ENGINE) == profile.engine]
        if not own:
            raise SpecError(f"{path}: is a profile of {profile.engine}, on which no model of the file is")
        places = own
    for at in places:
        named = text_at(tree, *at, "engine")
        if named and named != profile.engine:
            raise SpecError(
                f"{path}: the engine profile is of {profile.engine}, the file's engine is {named} "
                "(give a profile of that engine, or change engine: in the file)"
            )
    for at in places:
        tree = tree.with_text((*at, "engine"), profile.engine)
        tree = tree.with_text((*at, "engine_profile"), name)
    return tree


def _seen_from(path: Path, folder: Path | None) -> str:
    """A path relative to the working directory, relative to the folder of a file."""
    if path.is_absolute():
        return str(path)
    seen = os.path.relpath(path.resolve(), (folder or Path()).resolve())
    return seen if seen.startswith("..") else os.path.join(".", seen)
