"""Reference pages of the documentation, from the code: commands, files, Python API.

    python tools/build_docs_reference.py -o FOLDER

The site makes them whenever it is built (`tools/docs_site.py`), so that they are not kept in the repository.
The same code gives the same pages.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from docs_api import api_page  # noqa: E402

from planner.cli import group  # noqa: E402
from planner.documents.schemas import json_schemas  # noqa: E402

_WIDTH = 100
_FILES = {
    "scenario": "What is asked: model, traffic, objectives, GPUs and prices.",
    "plan": "What is answered: groups, latencies, cost, and the scenario that it answers.",
    "fleet": "Groups that somebody wrote down or runs, for `planner simulate` and `planner evaluate`.",
    "gpu-profile": "A GPU: the vendor's figures, and efficiencies.",
    "engine": "A serving engine: overheads, scheduler, memory, which pairs may work together.",
    "engine-profile": "An engine's constants, moved to what load tests of yours say.",
    "site": "What only the site knows, for `planner emit`.",
}


def pages() -> dict[str, str]:
    """Text of every page, by its path within the documentation."""
    if str(ROOT) not in sys.path:  # MkDocs takes it out again; commands are imported late
        sys.path.insert(0, str(ROOT))
    schemas = json_schemas()
    made = {"reference/cli.md": cli_page(), "reference/api.md": api_page()}
    made |= {f"reference/{name}.md": schema_page(name, schema) for name, schema in schemas.items()}
    return made


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Every command with its help, those of groups within groups after their own."""
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from commands(inner, _context(inner, name, context))


def _context(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    return click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=_WIDTH,
        max_content_width=_WIDTH,
        help_option_names=["-h", "--help"],
    )


def cli_page() -> str:
    """What ``--help`` says of each command."""
    os.environ["COLUMNS"] = str(_WIDTH)
    parts = [
        "# Commands",
        "What `planner --help` and `planner COMMAND --help` print.",
    ]
    for path, text in commands(group, _context(group, "planner")):
        lines = "\n".join(line.rstrip() for line in text.splitlines())
        parts.append(f"## `{path}`\n\n```text\n{lines}\n```")
    return "\n\n".join(parts) + "\n"


def schema_page(name: str, schema: dict[str, Any]) -> str:
    """Keys of a file, and of each part of it, as tables."""
    parts = [f"# File: {name}", _FILES.get(name, ""), _said(schema.get("description", ""))]
    parts.append(f"`planner schema {name}` prints the JSON Schema, which editors complete and check with.")
    if "properties" in schema:
        parts.append("## Keys of the file\n\n" + _table(schema))
    for part, definition in schema.get("$defs", {}).items():
        parts.append(f"## {part}\n\n{_said(definition.get('description', ''))}")
        if "properties" in definition:
            parts.append(_table(definition))
        elif "enum" in definition:
            parts.append("One of " + ", ".join(f"`{value}`" for value in definition["enum"]) + ".")
        else:
            parts.append(_type(definition) + ".")
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    rows = ["| Key | Value | Default | Meaning |", "| --- | --- | --- | --- |"]
    for key, value in schema["properties"].items():
        default = "**needed**" if key in required else _default(value)
        meaning = value.get("description", "")
        rows.append(f"| `{key}` | {_type(value)} | {default} | {_cell(_said(meaning))} |")
    return "\n".join(rows)


def _default(value: dict[str, Any]) -> str:
    if "default" not in value or ("$ref" in value and isinstance(value["default"], dict)):
        return ""  # a part has its own table, with the defaults of its keys
    text = json.dumps(value["default"], ensure_ascii=False)
    return f"`{_cell(text)}`"


def _type(value: dict[str, Any]) -> str:
    """A value's kind and bounds in words."""
    if "$ref" in value:
        part = value["$ref"].rsplit("/", 1)[1]
        return f"[{part}](#{part.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in value:
            return " or ".join(_type(choice) for choice in value[key])
    if "enum" in value:
        return ", ".join(f"`{choice}`" for choice in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    kind = value.get("type", "any")
    if kind == "array":
        inner = [_type(item) for item in value.get("prefixItems", [])] or [_type(value.get("items", {}))]
        return "list of " + ", ".join(inner)
    if kind == "object":
        inner = value.get("additionalProperties")
        patterns = list(value.get("patternProperties", {}).values())
        held = inner if isinstance(inner, dict) and inner else patterns[0] if patterns else None
        return f"mapping to {_type(held)}" if held else "mapping"
    return " ".join([str(kind), *_bounds(value)])


def _bounds(value: dict[str, Any]) -> Iterator[str]:
    for key, sign in (
        ("minimum", "≥"),
        ("exclusiveMinimum", ">"),
        ("maximum", "≤"),
        ("exclusiveMaximum", "<"),
    ):
        if key in value:
            yield f"{sign} {value[key]:,}"


def _said(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True, help="Folder for the pages.")
    folder = parser.parse_args().output
    for path, text in pages().items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
