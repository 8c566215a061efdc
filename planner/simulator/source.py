"""Where the requests of a simulation come from, and more of them where more are wanted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.simulator.arrivals import generated, replayed, resampled, scheduled
from planner.simulator.requests import Requests
from planner.specs import Workload
from planner.traces import Trace


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RequestSource:
    """Requests of a workload, or of a trace.

    Attributes
    ----------
    rate : float or None
        Mean rate; None: the trace's own where it is replayed, else the workload's. [req/s]
    trace : Trace or None
        Lengths are drawn from its requests; with `replay` it is played as it is, at `rate`.
    prefix_cache : bool
        Whether the hashes of a replayed trace meet a simulated prefix cache, which takes the place of the
        workload's hit rate.
    schedule : tuple of (duration, rate)
        Takes the place of a constant rate. [s, req/s]
    """

    workload: Workload
    rate: float | None = None
    trace: Trace | None = None
    replay: bool = False
    prefix_cache: bool = False
    schedule: tuple[tuple[float, float], ...] = ()
    seed: int = 0

    @property
    def endless(self) -> bool:
        """Whether more requests can be drawn."""
        return not self.replay and not self.schedule

    @property
    def mean_rate(self) -> float:
        """[req/s]"""
        if self.rate is not None:
            return self.rate
        if self.replay and self.trace is not None and self.trace.duration > 0:
            return self.trace.requests / self.trace.duration
        return self.workload.request_rate

    @property
    def longest(self) -> float:
        """Longest prompt plus output that may come. [tok]"""
        drawn = self.workload.lengths.longest
        if self.trace is None:
            return drawn
        return max(drawn, float((self.trace.isl + self.trace.osl).max()))

    def scaled(self, factor: float) -> RequestSource:
        """The same requests at `factor` times the rate."""
        schedule = tuple((duration, rate * factor) for duration, rate in self.schedule)
        return replace(self, rate=self.mean_rate * factor, schedule=schedule)

    def draw(self, number: int) -> Requests:
        """About `number` requests; a trace or a schedule has as many as it has."""
        rng = np.random.default_rng(self.seed)
        if self.replay and self.trace is not None:
            return replayed(
                self.trace,
                rng,
                rate=self.rate,
                prefix_hit_rate=self.workload.prefix_hit_rate,
                with_blocks=self.prefix_cache,
            )
        if self.schedule:
            return scheduled(self.workload, self.schedule, rng)
        if self.trace is not None:
            return resampled(self.trace, self.workload, number, rng, rate=self.rate)
        return generated(self.workload, number, rng, rate=self.rate)
