"""Files of load tests: which tool wrote one is told from its content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.documents.files import file_error, read_text
from planner.documents.load_tests.aiperf import (
    AIPERF_CSV,
    AIPERF_JSON,
    aiperf_run,
    aiperf_table,
    is_aiperf,
    is_aiperf_table,
)
from planner.documents.load_tests.guidellm import GUIDELLM, guidellm_runs, is_guidellm
from planner.documents.load_tests.record import Arrivals, Fields, LoadTest
from planner.documents.load_tests.serving import SGLANG, VLLM, is_serving, serving_run
from planner.errors import SpecError
from planner.units import MEGA

__all__ = ["KNOWN", "Arrivals", "LoadTest", "read_load_test", "read_load_tests"]

KNOWN = (VLLM, SGLANG, GUIDELLM, AIPERF_JSON, AIPERF_CSV)
"""What is read."""

_MAX_BYTES = int(500 * MEGA)  # reports with every request in them are large


def read_load_tests(path: Path) -> tuple[LoadTest, ...]:
    """Every run of a file: JSON, runs appended to one another, or a CSV.

    Raises
    ------
    SpecError
        Unreadable, of no known tool, or a value that cannot be right.
    """
    text = read_text(path, _MAX_BYTES)
    if not text.strip():
        raise file_error(path, "is empty")
    lines = text.splitlines()
    if is_aiperf_table(lines[0]):
        return (aiperf_table(path, lines, path.name),)
    documents = list(_documents(path, text, lines))
    several = len(documents) > 1
    found: list[LoadTest] = []
    for line, document in documents:
        name = f"{path.name}, line {line}" if several else path.name
        found += _runs(Fields(path, document, f"line {line}: " if several else ""), name)
    return tuple(found)


def read_load_test(path: Path) -> LoadTest:
    """The run of a file that holds one, with a measurement.

    Raises
    ------
    SpecError
        As :func:`read_load_tests`, or there are several, or nothing was measured.
    """
    runs = read_load_tests(path)
    if len(runs) > 1:
        raise file_error(path, f"holds {len(runs)} load tests", "give a file with the one to look at")
    if runs[0].empty:
        raise file_error(path, runs[0].empty)
    return runs[0]


def _documents(path: Path, text: str, lines: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Mappings of a file with the lines that they begin on: one, or one per line."""
    try:
        yield 1, _mapping(path, json.loads(text))
        return
    except SpecError:  # is a ValueError too
        raise
    except (ValueError, RecursionError) as error:
        whole = error
    filled = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    for number, line in filled:
        try:
            yield number, _mapping(path, json.loads(line))
        except SpecError:
            raise
        except (ValueError, RecursionError):
            if number != filled[0][0]:  # the lines before it were sound
                raise file_error(path, f"line {number}: is not valid JSON") from None
            if line.lstrip()[:1] in "{[":
                raise file_error(path, f"is not valid JSON: {whole}") from None
            raise _unknown(path) from None


def _mapping(path: Path, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unknown(path)
    return value


def _runs(fields: Fields, name: str) -> Iterator[LoadTest]:
    if is_guidellm(fields.data):
        yield from guidellm_runs(fields, name)
    elif is_serving(fields.data):
        yield serving_run(fields, name)
    elif is_aiperf(fields.data):
        yield aiperf_run(fields, name)
    else:
        raise _unknown(fields.path)


def _unknown(path: Path) -> SpecError:
    return file_error(path, "is no result of a load test", f"read are: {'; '.join(KNOWN)}")
