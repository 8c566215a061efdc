"""What commands share: JSON on stdout, a progress line on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

DEFAULT_WIDTH = 100  # of tables in a pipe, where there is no terminal to ask


def echo_json(document: Any) -> None:
    """One JSON document; numbers without a finite value become null."""
    click.echo(json.dumps(finite(document), indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """`value` with infinite and undefined numbers replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def width() -> int:
    """Columns to print in: COLUMNS where it is set, else the terminal's, else those of a pipe."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    if sys.stdout is not None and sys.stdout.isatty():
        import shutil  # only a terminal needs it

        return shutil.get_terminal_size().columns
    return DEFAULT_WIDTH


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; silent where stderr is no terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _stage: None
        return
    from rich.console import Console  # 60 ms that a pipe does not pay

    with Console(stderr=True).status(f"{first} ...") as status:
        yield lambda stage: status.update(f"{stage} ...")
