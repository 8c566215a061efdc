"""Cells of traces as numbers: tokens and hashes of blocks, many at once where all are in order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.arrays import FloatArray
from planner.documents.trace_times import plain
from planner.traces import IntArray

MAX_TOKENS = 10_000_000

_LONGEST = 60  # characters of a number
_NUMBER = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,2})?\s*", re.ASCII)


def tokens(value: Any, least: int) -> int:
    """A number of tokens; ValueError with the broken rule."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise ValueError("has no value")
    if isinstance(value, str) and len(value) <= _LONGEST and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, float) and value.is_integer():
        result = int(value)
    elif type(value) is int:
        result = value
    else:
        raise ValueError("must be a whole number")
    if result < least:
        raise ValueError(f"must be >= {least}")
    if result > MAX_TOKENS:
        raise ValueError(f"must be <= {MAX_TOKENS:,}")
    return result


def many_tokens(values: Sequence[Any], least: int) -> IntArray | None:
    """Numbers of tokens at once; None where one of them needs a closer look."""
    kinds = set(map(type, values))
    result: FloatArray | IntArray
    try:
        if kinds == {int}:
            result = np.array(values, dtype=np.int64)
        elif kinds == {str}:
            if not plain("".join(values)):
                return None
            result = _text_tokens(values)
        else:
            return None
    except (ValueError, OverflowError):
        return None
    fits = bool(np.all((result >= least) & (result <= MAX_TOKENS)))  # not where one is no number
    if not fits or (result.dtype.kind == "f" and bool(np.any(result != np.floor(result)))):
        return None
    return result.astype(np.int64)


def _text_tokens(values: Sequence[str]) -> FloatArray | IntArray:
    try:
        return np.array(list(map(int, values)), dtype=np.int64)
    except ValueError:
        return np.array(list(map(float, values)))


def block_ids(value: Any) -> Sequence[int]:
    """Hashes of one prompt's blocks; ValueError with the broken rule."""
    if isinstance(value, str):
        words = value.strip("[] \t").replace(",", " ").split()
        try:
            value = [int(word) for word in words] if plain(value) else None
        except ValueError:
            value = None
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise ValueError("must be a list of whole numbers")
    return value


def signed(values: Sequence[int]) -> list[int]:
    """Unsigned 64-bit hashes as signed ones."""
    if any(not -(1 << 63) <= value < 1 << 64 for value in values):
        raise ValueError("must be hashes of at most 64 bits")
    return [value - (1 << 64) if value >= 1 << 63 else value for value in values]
