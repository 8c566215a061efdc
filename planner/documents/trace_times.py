"""Timestamps of traces: dates with any fraction, numbers in any unit, and which unit that is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from planner.arrays import FloatArray
from planner.units import GIGA, KILO, MICRO, MILLI, NANO, SECONDS_PER_HOUR

SCALES = {"s": 1.0, "ms": MILLI, "us": MICRO, "ns": NANO}
"""Seconds of each unit."""

NO_TIMESTAMP = "must be a number or a date and time, as 2024-05-10 09:15:00.0981234"

# Instants between 1998 and 2106, as seconds since 1970: no count from the start of a recording gets there.
_EPOCH = (0.9 * GIGA, 4.3 * GIGA)
# Mean gap beyond which numbers are milliseconds: fewer requests than that nobody plans for.
_SLOWEST = {True: 5.0, False: 100.0}  # whole numbers, numbers with fractions [s]

_NUMBER = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?\s*", re.ASCII)
_DATE = re.compile(
    r"\s*(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,12}))?)?"
    r"\s?(Z|z|UTC|[+-]\d\d(?::?\d\d)?)?\s*",
    re.ASCII,
)
_NANOSECONDS = int(GIGA)
_HOUR, _MINUTE = int(SECONDS_PER_HOUR), 60


def is_number(value: Any) -> bool:
    """Whether a value is a number, or reads as one."""
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: Any) -> float:
    """A numeric timestamp; ValueError with the broken rule."""
    if not is_number(value):
        absent = value is None or value == ""
        raise ValueError("has no value" if absent else "must be a number, as the timestamps before it are")
    try:
        result = float(value)
    except OverflowError:
        result = np.inf
    if not abs(result) < GIGA * GIGA * KILO:
        raise ValueError("must be a finite number of a sensible size")
    return result


def numbers(values: Sequence[Any]) -> FloatArray | None:
    """Timestamps at once; None where one of them needs a closer look."""
    kinds = set(map(type, values))
    if kinds == {str}:
        if not plain("".join(values)):
            return None
    elif not kinds <= {int, float}:
        return None
    try:
        result = np.array(list(map(float, values)))
    except (ValueError, OverflowError):
        return None
    return result if bool(np.all(np.abs(result) < GIGA * GIGA * KILO)) else None


def plain(text: str) -> bool:
    """Whether no character of `text` makes Python read a number where people would not."""
    return text.isascii() and "_" not in text


class Dates:
    """Reads dates with times, as nanoseconds since 1970; without a zone they are UTC."""

    def __init__(self) -> None:
        self._midnights: dict[str, int] = {}

    def nanoseconds(self, value: Any) -> int:
        """One of them; ValueError with the broken rule."""
        match = _DATE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(NO_TIMESTAMP if value not in (None, "") else "has no value")
        day, hour, minute, second, fraction, zone = match.groups()
        midnight = self._midnights.get(day)
        if midnight is None:
            midnight = self._midnights[day] = _midnight(day)
        h, m, s = int(hour), int(minute), int(second or 0)
        if h > 23 or m > 59 or s > 59:
            raise ValueError(NO_TIMESTAMP)
        seconds = midnight + h * _HOUR + m * _MINUTE + s
        if zone and zone not in ("Z", "z", "UTC", "+00:00"):
            seconds -= _offset(zone)
        return seconds * _NANOSECONDS + (int(fraction.ljust(9, "0")[:9]) if fraction else 0)


def _midnight(day: str) -> int:
    try:
        parsed = date.fromisoformat(day)
    except ValueError:
        raise ValueError("must be a date that exists") from None
    if not 1970 <= parsed.year <= 2200:
        raise ValueError("must be a date between 1970 and 2200")
    return (parsed - date(1970, 1, 1)).days * 24 * _HOUR


def _offset(zone: str) -> int:
    digits = zone[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    if hours > 15 or minutes > 59:
        raise ValueError("must have a zone between -15:59 and +15:59")
    return (hours * _HOUR + minutes * _MINUTE) * (-1 if zone[0] == "-" else 1)


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of numeric timestamps, how it is known, and whether it was guessed."""

    name: str
    reason: str
    guessed: bool = False


def unit_of(times: FloatArray, given: str | None, in_name: str, layout: str, of_layout: str) -> Unit:
    """The unit that is asked for, else said by the column, the size of the numbers, or the layout."""
    if given is not None:
        return Unit(given, "as asked for")
    if in_name:
        return Unit(in_name, "by the column's name")
    low, high = float(times.min()), float(times.max())
    for name, scale in SCALES.items():
        if _EPOCH[0] <= low * scale and high * scale <= _EPOCH[1]:
            return Unit(name, "counted from 1970")
    whole = bool(np.all(times == np.floor(times)))
    if of_layout and (of_layout == "s" or whole):
        return Unit(of_layout, f"as {layout} traces have it")
    mean_gap = (high - low) / max(times.size - 1, 1)
    kind = "whole numbers" if whole else "numbers with fractions"
    return Unit(
        "ms" if mean_gap > _SLOWEST[whole] else "s", f"guessed: {kind}, {mean_gap:.3g} apart on average", True
    )
