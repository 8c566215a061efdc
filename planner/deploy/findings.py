"""What checks find in emitted files."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import PlannerError, Problem, SpecError

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


def of_problem(file: str, problem: Problem) -> Finding:
    """A problem of a file as a finding."""
    key = f"{problem.key}: " if problem.key else ""
    return Finding(
        file=file,
        line=problem.line,
        rule=key + problem.rule,
        value=problem.value,
        suggestion=problem.suggestion,
    )


def of_error(file: str, error: PlannerError) -> list[Finding]:
    """All problems of an error, or the error itself."""
    if isinstance(error, SpecError) and error.problems:
        return [of_problem(file, problem) for problem in error.problems]
    return [Finding(file=file, line=0, rule=" ".join(str(error).split()))]
