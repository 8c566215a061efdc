"""SLO limits as planned, and the curves of rates that meet them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.plan import Binding
from planner.specs import Metric, Slo

SLO_MARGIN = 0.97  # share of an SLO's limit that is planned to [1]
ADMISSION_SHARE = 0.1  # share of the TTFT miss budget left to waits for a decode slot [1]
DEFAULT_ADMISSION_MISS = 0.01  # where no TTFT percentile bounds it [1]


@dataclass(frozen=True, slots=True)
class Limit:
    """One bound on a latency: its `probability` (None: the mean) within `time`. [1, s]"""

    probability: float | None
    time: float

    @property
    def miss(self) -> float:
        """Share of requests that may exceed it. [1]"""
        return 1.0 if self.probability is None else 1.0 - self.probability


def limits(slo: Slo, metric: Metric) -> tuple[Limit, ...]:
    """Planned bounds of one metric: the SLO's, times :data:`SLO_MARGIN`."""
    return tuple(Limit(t.statistic.probability, SLO_MARGIN * t.limit) for t in slo.of(metric))


def admission_miss(ttft: Sequence[Limit]) -> float:
    """Share of requests that may have to wait for a decode slot. [1]"""
    shares = [ADMISSION_SHARE * limit.miss for limit in ttft if limit.probability is not None]
    return min([DEFAULT_ADMISSION_MISS, *shares])


@dataclass(frozen=True, slots=True)
class Curves:
    """Rates of C replicas over N replica counts.

    Attributes
    ----------
    starts : ndarray of int, shape (N,)
        Replica counts.
    per_replica : ndarray, shape (C, N)
        Rate of one of n replicas. [req/s]
    operating : ndarray, shape (C, N)
        At that rate: prompts per step (prefill), or the operating batch (decode, colocated).
    binds : ndarray of str, shape (C, N)
        What ends the rate, a :class:`~planner.plan.Binding`.
    """

    starts: NDArray[np.int64]
    per_replica: FloatArray
    operating: FloatArray
    binds: NDArray[np.str_]

    def at_most(self, rate: FloatArray, binding: Binding) -> Curves:
        """Cut the rates of replica c at ``rate[c]``, an effect that does not pool. [req/s]"""
        cut = rate[:, None] < self.per_replica
        share = np.where(cut, rate[:, None] / np.maximum(self.per_replica, 1e-100), 1.0)
        return Curves(
            self.starts,
            np.where(cut, rate[:, None], self.per_replica),
            np.where(cut, self.operating * share, self.operating),
            np.where(cut, binding.value, self.binds),
        )


def pooled(curves: Curves) -> Curves:
    """Rates per replica never fall with the number of replicas: a larger pool can act as two."""
    rates = np.maximum.accumulate(curves.per_replica, axis=1)
    return Curves(curves.starts, rates, curves.operating, curves.binds)
