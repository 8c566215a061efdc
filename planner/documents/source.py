"""From a text file to a validated schema, with every problem of the file in one error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from planner.documents.files import read_text
from planner.documents.messages import NO_VALUE, schema_problem
from planner.documents.schema_base import DocumentModel
from planner.documents.tree import KeyPath, Node, Tree
from planner.documents.yaml_text import parse_tree
from planner.errors import Problem, SpecError

S = TypeVar("S", bound=DocumentModel)


@dataclass(frozen=True, slots=True)
class Document(Generic[S]):
    """A file that fits its schema: the validated `model`, and the `tree` with raw values and lines."""

    model: S
    tree: Tree

    @property
    def raw(self) -> dict[str, Any]:
        """The file as plain dicts, lists and scalars."""
        return self.tree.raw


def load_document(path: str | Path, schema: type[S]) -> Document[S]:
    """Read a YAML or JSON file and validate it.

    Raises
    ------
    SpecError
        With every problem of the file.
    """
    path = Path(path)
    return parse_document(read_text(path), str(path), schema, folder=path.parent)


def parse_document(
    text: str, source_name: str, schema: type[S], *, folder: Path | None = None
) -> Document[S]:
    """Validate YAML or JSON text; `source_name` names it in messages. See :func:`load_document`."""
    tree, problems = parse_tree(text, source_name, folder)
    model, found = validate(tree, schema)
    problems += found
    if problems or model is None:
        raise SpecError.of_file(source_name, problems)
    return Document(model, tree)


def validate(tree: Tree, schema: type[S]) -> tuple[S | None, list[Problem]]:
    """The validated model, or None with what is wrong."""
    problems: list[Problem] = []
    model = None
    try:
        # JSON mode: strict, yet enums, tuples and keys that are numbers are read from text.
        model = schema.model_validate_json(json.dumps(tree.raw), strict=True)
    except ValidationError as error:
        problems += [schema_problem(tree, schema, e) for e in error.errors(include_url=False)]
    if not schema.empty_values:
        known = {p.key for p in problems}
        problems += [p for p in _empty_values(tree, tree.root, ()) if p.key not in known]
    problems += schema.check(tree)
    return model, problems


def _empty_values(tree: Tree, node: Node, path: KeyPath) -> Iterator[Problem]:
    if node.value is None:
        yield tree.problem(path, *NO_VALUE, show_value=False)
    for key, child in node.children.items():
        yield from _empty_values(tree, child, (*path, key))
