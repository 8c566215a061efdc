"""What commands share: JSON on stdout, a progress line on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from planner.documents.files import check_writable, file_error

Result = TypeVar("Result")
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


def check_outputs(inputs: tuple[Path | None, ...], outputs: tuple[Path | None, ...]) -> None:
    """Refuse outputs that could not be written, or that would replace an input or one another."""
    taken = {path.resolve() for path in inputs if path is not None}
    for path in outputs:
        if path is None:
            continue
        check_writable(path)
        if path.resolve() in taken and not path.is_char_device():
            rule = "would replace another file of this command"
            raise file_error(path, rule, "give each its own name")
        taken.add(path.resolve())


_PICTURES = (".png", ".svg")


def check_picture(
    path: Path | None, inputs: tuple[Path | None, ...], suffixes: tuple[str, ...] = _PICTURES
) -> None:
    """Refuse a picture that could not be written, before anything is computed; None: there is none."""
    if path is not None and path.suffix.lower() not in suffixes:
        known = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise file_error(path, "is no picture", f"the name has to end in {known}")
    check_outputs(inputs, (path,))


def interruptible(work: Callable[[], Result]) -> Result:
    """Do `work` in a thread of its own: Ctrl-C ends the command at once, also within compiled code."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # to be raised again where it is waited for
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; silent where stderr is no terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _stage: None
        return
    from rich.console import Console  # 60 ms that a pipe does not pay

    with Console(stderr=True).status(f"{first} ...") as status:
        yield lambda stage: status.update(f"{stage} ...")


@contextmanager
def point_bar(first: str) -> Iterator[tuple[Callable[[int, int], None], Callable[[], None]]]:
    """A bar on stderr with the time that is left: told how many points are done, and of how many, when work
    starts, and when one more is; silent in a pipe."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield (lambda _done, _total: None), (lambda: None)
        return
    from rich.console import Console  # 60 ms that a pipe does not pay
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=None)
        yield (
            lambda done, total: bar.reset(task, total=total, completed=done),
            lambda: bar.advance(task),
        )


@contextmanager
def progress_bar(first: str, total: int) -> Iterator[tuple[Callable[[str], None], Callable[[], None]]]:
    """A bar on stderr: told what is being done, and when one of `total` steps is done; silent in a pipe."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield (lambda _stage: None), (lambda: None)
        return
    from rich.console import Console  # 60 ms that a pipe does not pay
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(first, total=total)
        yield (lambda stage: bar.update(task, description=stage)), (lambda: bar.advance(task))
