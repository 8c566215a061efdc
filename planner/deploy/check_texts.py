"""What is wrong with the files of a folder as texts: missing, not set, misread; and with its plan."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from planner.deploy.build import plan_id
from planner.deploy.description import PLACEHOLDER
from planner.deploy.findings import Finding, of_error
from planner.deploy.manifest import NAME as MANIFEST
from planner.deploy.reading import Manifest
from planner.documents.files import read_text
from planner.documents.plan import load_plan
from planner.errors import SpecError
from planner.plan import Plan

_BARE = re.compile(r"(?:^\s*(?:- +)*|: +|[\[,] *)([yYnN])\s*(?=$|#|[,\]}])")


def text_findings(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    """Files that are missing, settings that nobody gave, words that readers of YAML misread."""
    yield from _missing_files(folder, manifest)
    yield from _placeholders(folder, manifest)
    yield from _bare_words(folder, manifest)


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
    "node-label": "node_labels",
    "namespace": "kubernetes.namespace",
    "token-secret": "kubernetes.token_secret",
    "model-claim": "kubernetes.model_claim",
    "rdma-resource": "kubernetes.rdma_resource",
    "router-host": "router_host",
    "host-": "hosts",
    "model-cache": "model_cache",
    "models-": "models",
    "draft": "draft",
    "images-": "images",
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


def plan_findings(folder: Path, manifest: Manifest) -> tuple[Plan | None, list[Finding]]:
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
