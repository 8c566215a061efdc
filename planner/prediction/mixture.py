"""Latencies as mixtures over groups, and their percentiles by inversion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from planner.fleet import Deployed, Fleet
from planner.operators import ReplicaSet
from planner.plan import LatencySummary
from planner.specs import GPU, Engine, Parallelism, Service
from planner.traffic import Traffic, timeless

_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_TOLERANCE = 1e-4
KEPT = 256  # tables of replicas, a few kilobytes each
_ROUNDING = 1e-9  # of a sum of probabilities [1]


@dataclass(frozen=True, slots=True)
class Component:
    """Part of a mixture: its share, mean, and P(X > t). [1, s]"""

    share: float
    mean: float
    exceeds: Callable[[float], float]
    longest: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Distributions of TTFT and TPOT over all requests, as mixtures."""

    ttft: tuple[Component, ...]
    tpot: tuple[Component, ...]

    def summaries(self) -> tuple[LatencySummary, LatencySummary]:
        return summary(self.ttft), summary(self.tpot)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full a group is.

    Attributes
    ----------
    busy : share of time in prefill, or mean batch over its limit. [1]
    mean_batch : prompts per step (prefill), sequences per step (decode, colocated).
    batch_p99 : batch that 99 % of steps do not exceed.
    """

    busy: float
    mean_batch: float
    batch_p99: float


def exceedance(components: Sequence[Component], time: float) -> float:
    """P(X > time) of a mixture."""
    return sum(c.share * c.exceeds(time) for c in components)


def summary(components: Sequence[Component]) -> LatencySummary:
    """Mean and percentiles of a mixture; infinite where a part has no steady state."""
    if any(not math.isfinite(c.mean) for c in components):
        return LatencySummary(mean=math.inf, p50=math.inf, p90=math.inf, p95=math.inf, p99=math.inf)
    mean = sum(c.share * c.mean for c in components)
    longest = max(c.longest for c in components)

    @cache  # the first halves of all bisections are the same
    def exceeds(time: float) -> float:
        return exceedance(components, time)

    return LatencySummary(mean=mean, **{n: _quantile(exceeds, longest, p) for n, p in _PERCENTILES.items()})


def _quantile(exceeds: Callable[[float], float], longest: float, probability: float) -> float:
    low, high = 0.0, longest
    miss = 1 - probability + _ROUNDING
    while exceeds(high) > miss:
        low, high = high, 2 * high
    while high - low > _TOLERANCE * high:
        middle = 0.5 * (low + high)
        if exceeds(middle) > miss:
            low = middle
        else:
            high = middle
    return high


def no_tpot(share: float) -> Component:
    """Requests of one output token have no TPOT, and meet every limit on it."""
    return Component(share, 0.0, lambda _t: 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Replica:
    """What the times of a group's replicas depend on: the key under which tables of them are kept."""

    service: Service
    engine: Engine
    gpu: GPU
    parallelism: Parallelism
    z: float

    @classmethod
    def of(cls, fleet: Fleet, group: Deployed, z: float) -> Replica:
        return cls(timeless(fleet.service_of(group)), fleet.engine, group.item.gpu, group.parallelism, z)

    @property
    def kernels(self) -> ReplicaSet:
        service, pair = self.service, (self.gpu, self.parallelism)
        return ReplicaSet.of(
            service.model, service.precision, self.engine, [pair], self.z, service.speculation
        )


def replica_set(fleet: Fleet, group: Deployed, z: float) -> ReplicaSet:
    """The group's replica, alone."""
    return Replica.of(fleet, group, z).kernels


def traffic_of(fleet: Fleet, group: Deployed) -> Traffic:
    """The fleet's traffic as the KV cache of one group keeps it."""
    return Traffic.of_service(fleet.service_of(group))


def share_of(fleet: Fleet, group: Deployed) -> float:
    total = sum(g.rate for g in fleet.pool(group.phase))
    return group.rate / total
