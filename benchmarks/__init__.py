"""Speed and size, printed beside the targets of the design. Not tests: figures depend on the machine."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

WIDTH = 100


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def spread(values: Sequence[float], unit: str = "s", digits: int = 2) -> str:
    """Least, median and most of `values`."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"min {low:.{digits}f}  median {middle:.{digits}f}  max {high:.{digits}f} {unit}"


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def verdict(value: float, target: float) -> str:
    """Whether a figure is within its target."""
    return f"target <= {target:g}: {'met' if value <= target else 'MISSED'}"
