"""Words of shell scripts, quoted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def quoted(text: str) -> str:
    """One word of a shell, whatever it holds."""
    return shlex.quote(text)


def comment(text: str) -> str:
    """A line that shells and YAML skip; what is not printable is written as an escape."""
    return "# " + "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def command(parts: Sequence[str]) -> str:
    """One command over several lines."""
    return " \\\n  ".join(parts)
