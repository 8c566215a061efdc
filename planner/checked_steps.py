"""Whole steps of a model on a device, beside what a profile says of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedStep:
    """One kind of step: what it took, and what the profile says. [s]"""

    name: str
    measured: float
    predicted: float
    spread: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1.0


def median_error(steps: Sequence[CheckedStep]) -> float:
    """Median of the sizes of errors."""
    return statistics.median(abs(step.error) for step in steps)
