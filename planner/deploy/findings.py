"""What checks find in emitted files."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST = 120


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Finding:
    """One thing wrong: `file` within the folder, `line` from 1 (0: all of it), rule, value, way out."""

    file: str
    line: int
    rule: str
    value: str = ""
    suggestion: str = ""

    def __str__(self) -> str:
        shown = self.value if len(self.value) <= _LONGEST else f"{self.value[: _LONGEST - 3]}..."
        value = f", got {shown!r}" if self.value else ""
        hint = f" ({self.suggestion})" if self.suggestion else ""
        return f"{self.file}:{self.line}: {self.rule}{value}{hint}"
