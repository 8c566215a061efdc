"""Names in messages: lists of them, and the one that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_MAX_COMPARED = 120  # characters; the time of a comparison grows with their square
_MAX_LISTED = 12


def one_of(choices: Sequence[str]) -> str:
    """The rule for a value that has to be one of `choices`."""
    return f"must be one of {', '.join(choices)}" if len(choices) > 1 else f"must be {choices[0]}"


def either(choices: Sequence[str]) -> str:
    """Choices as a sentence lists them: ``a, b or c``."""
    return " or ".join([", ".join(choices[:-1]), choices[-1]] if len(choices) > 1 else choices)


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that `name` was probably meant to be."""
    folded = {k.lower(): k for k in known}
    found = difflib.get_close_matches(name.lower()[:_MAX_COMPARED], list(folded), n=1, cutoff=0.65)
    return folded[found[0]] if found else None


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A suggestion: the nearest known name, or nothing."""
    match = nearest(name, known)
    return f"did you mean {match}?" if match else ""


def unknown_name(kind: str, name: str, known: Sequence[str]) -> tuple[str, str]:
    """Rule and suggestion for a `name` that is none of `known`; a list of them where none is near."""
    more = f", and {len(known) - _MAX_LISTED} more" if len(known) > _MAX_LISTED else ""
    return f"unknown {kind}", did_you_mean(name, known) or f"known: {', '.join(known[:_MAX_LISTED])}{more}"
