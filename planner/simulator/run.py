"""Simulating a fleet: once, until percentiles are known, or to find what it carries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from planner.fleet import Fleet
from planner.simulator import kernel
from planner.simulator.build import PLAIN, Setup, cluster_of, holdings
from planner.simulator.cluster import Outcome, run_cluster
from planner.simulator.compiled import COMPILING, is_compiled
from planner.simulator.metrics import SURE, SimulationResult, measure
from planner.simulator.source import RequestSource
from planner.units import MEGA

FEWEST_REQUESTS = 60_000
MOST_REQUESTS = int(MEGA)
WINDOWS = 25.0  # stays of a request that a run lasts, at least
_STEP_GROWTH = 1.3  # more requests than the square law asks for: the next run should be the last
_MOST_GROWTH = 12.0
_SCALE_STEPS = 7
LEAST_SCALE = 1 / 64
Stage = Callable[[str], None]


def _quiet(_stage: str) -> None:
    return None


def run_fleet(
    fleet: Fleet,
    source: RequestSource,
    number: int,
    setup: Setup = PLAIN,
    *,
    names: Sequence[str] = (),
    samples: int = 240,
    log_capacity: int = 0,
    on_stage: Stage = _quiet,
) -> Outcome:
    """Send about `number` requests of `source` through `fleet`.

    Raises
    ------
    SpecError
        If the fleet or the requests are outside what is modelled.
    """
    if not is_compiled(kernel.run):
        on_stage(COMPILING)
    requests = source.draw(number)
    return run_cluster(
        cluster_of(fleet, setup, longest=source.longest, names=names),
        requests,
        holdings(fleet, requests),
        seed=source.seed,
        samples=samples,
        log_capacity=log_capacity,
    )


def simulate_fleet(
    fleet: Fleet,
    source: RequestSource,
    setup: Setup = PLAIN,
    *,
    number: int | None = None,
    names: Sequence[str] = (),
    enough: Callable[[SimulationResult], bool] = lambda result: result.sure,
    on_stage: Stage = _quiet,
) -> SimulationResult:
    """Simulate a fleet and measure it against its service's SLOs.

    Parameters
    ----------
    number : int, optional
        Requests. Default: as many as it takes to know every SLO's statistic to 2 % (half of the 95 %
        confidence interval), or to see one missed beyond doubt, and at most a million.
    enough : callable
        Another rule for when to stop.
    """
    slo = fleet.service.slo
    wanted = number or FEWEST_REQUESTS
    while True:
        outcome = run_fleet(fleet, source, wanted, setup, names=names, on_stage=on_stage)
        result = measure(outcome, slo)
        if number is not None or not source.endless or enough(result) or wanted >= MOST_REQUESTS:
            return result
        wanted = min(max(_next_number(result, wanted), _long_enough(result)), MOST_REQUESTS)
        on_stage(f"simulating {wanted:,} requests")


def _long_enough(result: SimulationResult) -> int:
    """Requests that come while a long one stays, several times over."""
    stay = result.e2e.value.p90
    return int(WINDOWS * stay * result.request_rate) if math.isfinite(stay) else FEWEST_REQUESTS


def _next_number(result: SimulationResult, number: int) -> int:
    """Requests after which the worst half-width should be small enough: it falls with their root."""
    worst = max((c.half_width / c.value for c in result.checks if c.value > 0), default=0.0)
    factor = _STEP_GROWTH * (worst / SURE) ** 2 if math.isfinite(worst) else _MOST_GROWTH
    return int(number * min(max(factor, 1.5), _MOST_GROWTH))


def carried_scale(
    fleet: Fleet,
    source: RequestSource,
    setup: Setup = PLAIN,
    *,
    most: float = 1.0,
    on_stage: Stage = _quiet,
) -> float:
    """Largest multiple of the source's rate that the fleet carries within its SLOs, up to `most`.

    Found by bisection with runs of equal length, to about 1 % of `most`; 0 where it carries hardly
    anything.
    """

    def holds(scale: float) -> bool:
        return simulate_fleet(
            fleet, source.scaled(scale), setup, number=FEWEST_REQUESTS, on_stage=on_stage
        ).passed

    if holds(most):
        return most
    low, high = most / 2, most
    while not holds(low):
        low, high = low / 2, low
        if low < LEAST_SCALE * most:
            return 0.0
    for _ in range(_SCALE_STEPS - 1):
        middle = math.sqrt(low * high)
        if holds(middle):
            low = middle
        else:
            high = middle
        if high / low < 1.01:
            break
    return low
