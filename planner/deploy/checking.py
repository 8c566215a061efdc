"""Proof, without a GPU or a network, that a folder is well formed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from planner.deploy.build import plan_id
from planner.deploy.check_engines import (
    clashes,
    compose_findings,
    counts,
    script_findings,
)
from planner.deploy.check_fronts import front_findings, pair_findings
from planner.deploy.description import PLACEHOLDER
from planner.deploy.dialect import Dialect
from planner.deploy.engine_facts import load_engine_facts
from planner.deploy.findings import Finding, of_error
from planner.deploy.manifest import NAME as MANIFEST
from planner.deploy.reading import (
    Manifest,
    engine_flags,
    engine_of_script,
    read_manifest,
    read_scripts,
)
from planner.documents.files import read_text
from planner.documents.plan import load_plan
from planner.errors import SpecError
from planner.plan import Plan

_BARE = re.compile(r"(?:^\s*(?:- +)*|: +|[\[,] *)([yYnN])\s*(?=$|#|[,\]}])")


def folder_findings(folder: Path, dialect: Dialect) -> tuple[Finding, ...]:
    """Everything that is wrong with a folder that was written in a dialect.

    Raises
    ------
    SpecError
        It has no manifest, or one of versions whose flags are not known.
    """
    manifest = read_manifest(folder)
    flags, facts = engine_flags(manifest), load_engine_facts(manifest.engine, manifest.version)
    found = [
        *_missing_files(folder, manifest),
        *_placeholders(folder, manifest),
        *_bare_words(folder, manifest),
    ]
    plan, problems = _plan(folder, manifest)
    scripts = read_scripts(folder, manifest)
    for group in manifest.groups:
        if group.name in scripts:
            found += script_findings(dialect, group, scripts[group.name], flags, facts)
    services, more = compose_findings(dialect, folder, manifest, scripts, flags, facts)
    found += [*problems, *more, *counts(manifest, scripts, services), *clashes(manifest, scripts)]
    shared = {name: engine_of_script(name, script, dialect.program) for name, script in scripts.items()}
    if plan is not None:
        found += pair_findings(dialect, plan, folder, manifest, shared, flags)
    found += front_findings(dialect, folder, manifest, scripts, facts)
    return tuple(sorted(set(found)))


# --------------------------------------------------------------------------------------------
# Texts


def _missing_files(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    for name in manifest.files:
        if not (folder / name).is_file():
            yield Finding(file=name, line=0, rule="is missing", suggestion="planner emit writes it again")


def _lines_of(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, int, str]]:
    for name in names:
        if (folder / name).is_file():
            for number, line in enumerate(read_text(folder / name).splitlines(), start=1):
                yield name, number, line


def _placeholders(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    """Settings that nobody gave."""
    for name, number, line in _lines_of(folder, manifest.files):
        if name not in ("README.md", "plan.yaml"):
            for word in dict.fromkeys(re.findall(rf"{PLACEHOLDER}[\w-]*", line)):
                hint = f"give {_setting(word)} in the site file and emit again"
                yield Finding(file=name, line=number, rule="is a placeholder", value=word, suggestion=hint)


_SETTINGS = {
    "router-host": "router_host",
    "host-": "hosts",
    "model-cache": "model_cache",
    "models-": "models",
    "draft": "draft",
    "image": "image",
}
"""Of the site file, by how their placeholders begin."""


def _setting(placeholder: str) -> str:
    name = placeholder.removeprefix(PLACEHOLDER)
    return next((key for start, key in _SETTINGS.items() if name.startswith(start)), name)


def _bare_words(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    """y and n, which readers of YAML 1.1 take for booleans."""
    names = [name for name in [*manifest.files, MANIFEST] if name.endswith(".yaml") and name != "plan.yaml"]
    for name, number, line in _lines_of(folder, names):
        if not line.lstrip().startswith("#"):
            for match in _BARE.finditer(line):
                rule = "a bare y or n is a boolean to readers of YAML 1.1"
                yield Finding(
                    file=name, line=number, rule=rule, value=match[1], suggestion=f"write '{match[1]}'"
                )


def _plan(folder: Path, manifest: Manifest) -> tuple[Plan | None, list[Finding]]:
    """The plan that the files were written for."""
    file = "plan.yaml"
    try:
        plan = load_plan(folder / file)
    except SpecError as error:
        return None, of_error(file, error)
    if plan_id(plan) == manifest.plan:
        return plan, []
    rule = "is not the plan that the files were written for"
    hint = f"they are for {manifest.plan}; planner emit writes them again"
    return plan, [Finding(file=file, line=0, rule=rule, value=plan_id(plan), suggestion=hint)]
