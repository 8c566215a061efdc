"""What can go wrong, one class per answer a caller gives to it."""

from __future__ import annotations

from dataclasses import dataclass


class PlannerError(Exception):
    """Base of every error that this package raises on purpose.

    ``exit_code`` is what the command line ends with.
    """

    exit_code = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One thing wrong in an input file.

    ``line`` counts from 1 (0: no line); ``key`` is a dotted path; ``suggestion`` is the nearest valid
    alternative, or empty.
    """

    key: str
    rule: str
    value: str = ""
    line: int = 0
    suggestion: str = ""

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        key = f"{self.key}: " if self.key else ""
        value = f", got {self.value}" if self.value else ""
        hint = f" ({self.suggestion})" if self.suggestion else ""
        return f"{where}{key}{self.rule}{value}{hint}"


class SpecError(PlannerError, ValueError):
    """An input that breaks a rule; carries every problem of its file."""

    exit_code = 2

    def __init__(self, message: str, problems: tuple[Problem, ...] = (), source: str = "") -> None:
        self.problems = problems
        self.source = source
        super().__init__(message)

    @classmethod
    def of_file(cls, source: str, problems: list[Problem]) -> SpecError:
        """One error for all `problems` of the file `source`, in the order of their lines."""
        ordered = tuple(sorted(problems, key=lambda p: (p.line, p.key)))
        count = f"{len(ordered)} problem" + ("s" if len(ordered) != 1 else "")
        lines = "\n".join(f"  - {p}" for p in ordered)
        return cls(f"{source}: {count}\n{lines}", ordered, source)


class InfeasibleError(PlannerError):
    """No plan meets what was asked. Infeasible is an answer: it says what binds and what would help.

    Attributes
    ----------
    binding : str
        The requirement that cannot be met.
    shortfall : str
        By how much, in the unit of the requirement; empty when that has no number.
    suggestions : tuple of str
        The nearest changes that make a plan possible.
    """

    exit_code = 3

    def __init__(self, binding: str, shortfall: str = "", suggestions: tuple[str, ...] = ()) -> None:
        self.binding = binding
        self.shortfall = shortfall
        self.suggestions = suggestions
        lines = [f"no plan meets the scenario; binding: {binding}"]
        if shortfall:
            lines.append(f"  short by: {shortfall}")
        lines += [f"  - {s}" for s in suggestions]
        super().__init__("\n".join(lines))

    def of(self, subject: str) -> InfeasibleError:
        """The same, said of one of several subjects."""
        return InfeasibleError(f"{subject}: {self.binding}", self.shortfall, self.suggestions)


class SolverError(PlannerError):
    """The solver failed, or ran out of time before it had a plan."""

    exit_code = 4


class StoppedError(PlannerError):
    """The user stopped long work of which something is kept."""

    exit_code = 130


class VerificationError(PlannerError):
    """A simulated fleet does not hold; what was asked for has been printed and written all the same."""

    exit_code = 5
