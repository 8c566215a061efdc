"""How much a standing fleet carries, and what a simulation says of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from planner.documents.fleet import LoadedFleet
from planner.documents.stock import gpus_of
from planner.documents.trace_file import read_trace
from planner.errors import SpecError
from planner.money import token_cost
from planner.plan import Plan
from planner.queueing import normal_quantile
from planner.results import Result
from planner.simulator.build import PLAIN, Setup
from planner.simulator.metrics import SimulationResult
from planner.simulator.run import Stage, carried_scale, simulate_fleet
from planner.simulator.source import RequestSource
from planner.specs import Phase, Service
from planner.standing import (
    LEAST_RATE,
    MOST_RATE,
    Standing,
    of_service,
    only_one,
    standing_file,
    standing_files,
    standing_fleet,
    standing_plan,
    standing_plans,
)
from planner.traces import Trace
from planner.verification import blamed

__all__ = [
    "LEAST_RATE",
    "MOST_RATE",
    "Evaluation",
    "Standing",
    "evaluate",
    "setup_of",
    "simulate",
    "standing_file",
    "standing_files",
    "standing_fleet",
    "standing_plan",
    "standing_plans",
]
"""What callers need beside the fleets themselves comes from here, too."""

FIRST_RATE = 1.0  # tried where nobody says how many requests come [req/s]
BEYOND = 1.05  # times the largest rate, at which is looked what breaks [1]
_CONFIRM_STEPS = (0.98, 0.98, 0.98, 0.98, 0.95, 0.9, 0.85, 0.8, 0.7, 0.5)  # few requests are rarely sure [1]
_RATIO = 2.0
_SHORT = 30_000  # requests of a run that only brackets


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evaluation(Result):
    """The most that a fleet carries within its SLOs, and what stops it.

    Attributes
    ----------
    request_rate : float
        The most; 0: not even a hundredth of a request per second. [req/s]
    at_most : SimulationResult or None
        The fleet at that rate; None where it carries nothing.
    at_offered : SimulationResult or None
        At the rate that the file gives; None where it gives none.
    beyond : SimulationResult
        At 5 % more than the most.
    breaks : tuple of Phase
        Pools that fail there first.
    gpus : int
        In use.
    cost : float or None
        Of these. [USD/h]
    """

    request_rate: float
    at_most: SimulationResult | None
    at_offered: SimulationResult | None
    beyond: SimulationResult
    breaks: tuple[Phase, ...]
    gpus: int
    cost: float | None

    def cost_per_million_tokens(self, service: Service) -> float | None:
        """Input and output tokens together, at the largest rate. [USD]"""
        lengths = service.workload.lengths
        if self.cost is None or self.request_rate <= 0:
            return None
        return token_cost(self.cost, self.request_rate, lengths.isl.mean, lengths.osl.mean).both


def setup_of(standing: Standing, z: float) -> Setup:
    """How a standing fleet is simulated by default."""
    return Setup(z=z, input_ranges=standing.input_ranges)


def evaluate(
    fleet: Standing | LoadedFleet | Plan | str | Path,
    setup: Setup = PLAIN,
    *,
    service: str | None = None,
    period: str | None = None,
    offered: float | None = None,
    number: int | None = None,
    on_stage: Stage = lambda _s: None,
) -> Evaluation:
    """Find the largest rate at which the fleet meets every SLO, by simulation.

    Parameters
    ----------
    service : str, optional
        Of a plan that has several: the entry of its `services` to look at.
    period : str, optional
        Of a plan that has several; default: the busiest.
    offered : float, optional
        Rate that the fleet is meant for, looked at too. [req/s]
    number : int, optional
        Requests of a run; default: until percentiles are known to 2 %.

    Raises
    ------
    SpecError
        If there is no SLO to meet.
    """
    standing = _standing(fleet, service, period)
    source = standing.source
    if not standing.fleet.service.slo.targets:
        raise SpecError("evaluate needs an SLO: without one there is no largest rate")

    def at(rate: float, number: int | None) -> SimulationResult:
        on_stage(f"simulating {rate:.4g} req/s")
        source_at = replace(source, rate=rate)
        names = standing.names
        return simulate_fleet(standing.fleet, source_at, setup, number=number, names=names, on_stage=on_stage)

    start = replace(source, rate=_checked_rate(offered or FIRST_RATE))
    most = _bracketed(standing, start, setup, on_stage)
    rate = most * carried_scale(standing.fleet, replace(source, rate=most), setup, on_stage=on_stage)
    confirmed = None
    for step in _CONFIRM_STEPS if rate > 0 else ():
        confirmed = at(rate, number)
        if confirmed.passed:
            break
        rate *= step
    else:
        rate, confirmed = 0.0, None
    beyond = at(max(rate * BEYOND, FIRST_RATE / 64), confirmed.requests if confirmed else number)
    return Evaluation(
        request_rate=rate,
        at_most=confirmed,
        at_offered=confirmed if offered == rate else at(offered, number) if offered else None,
        beyond=beyond,
        breaks=tuple(sorted(blamed(standing.fleet, beyond))),
        gpus=gpus_of(standing.fleet.groups),
        cost=standing.cost,
    )


def _checked_rate(rate: float) -> float:
    """A rate at which times keep their digits. [req/s]"""
    if not LEAST_RATE <= rate <= MOST_RATE:  # also refuses NaN
        raise SpecError(f"rate must be {LEAST_RATE:g} to {MOST_RATE:,.0f} req/s, got {rate!r}")
    return rate


def _bracketed(standing: Standing, source: RequestSource, setup: Setup, on_stage: Stage) -> float:
    """A rate that the fleet does not carry, at most twice one that it does. [req/s]"""
    rate = source.mean_rate
    while rate < MOST_RATE:
        on_stage(f"simulating {rate:.4g} req/s")
        result = simulate_fleet(
            standing.fleet, replace(source, rate=rate), setup, number=_SHORT, on_stage=on_stage
        )
        if not result.passed:
            return rate
        rate *= _RATIO
    raise SpecError(f"the fleet carries more than {MOST_RATE:,.0f} req/s: is an SLO missing?")


def simulate(
    plan: Plan | Standing | LoadedFleet | str | Path,
    *,
    service: str | None = None,
    period: str | None = None,
    trace: Trace | str | Path | None = None,
    rate: float | None = None,
    requests: int | None = None,
    seed: int = 0,
    confidence: float | None = None,
    setup: Setup = PLAIN,
) -> SimulationResult:
    """Send requests through a fleet.

    Parameters
    ----------
    plan : Plan, Standing, LoadedFleet, str or Path
        A path is that of a plan.
    service : str, optional
        Of a plan that has several: the entry of its `services` to simulate. All of them:
        ``{s.name: simulate(s) for s in standing_plans(plan)}``.
    period : str, optional
        Of a plan that has several; default: the busiest.
    trace : Trace, str or Path, optional
        Requests to replay; default: those that the fleet is meant for.
    rate : float, optional
        Default: the trace's own, else the fleet's. [req/s]
    requests : int, optional
        How many; default: until percentiles are known to 2 %.
    confidence : float, optional
        Quantile of the model error; default: the fleet's. [1]
    setup : Setup
        Router, failures and the like; its `z` and input ranges are set here.

    Raises
    ------
    SpecError
    """
    if requests is not None and requests < 1:
        raise SpecError(f"requests: must be at least 1, got {requests}")
    standing = _standing(plan, service, period)
    source = replace(standing.source, seed=seed)
    if trace is not None:
        read = trace if isinstance(trace, Trace) else read_trace(Path(trace))
        source = replace(source, trace=read, replay=True, rate=None, prefix_cache=read.blocks is not None)
    if rate is not None:
        source = replace(source, rate=_checked_rate(rate))
    z = float(normal_quantile(confidence or standing.confidence))
    how = replace(setup, z=z, input_ranges=standing.input_ranges)
    return simulate_fleet(standing.fleet, source, how, number=requests, names=standing.names)


def _standing(
    plan: Plan | Standing | LoadedFleet | str | Path, service: str | None, period: str | None
) -> Standing:
    if isinstance(plan, Plan):
        return standing_plan(plan, service=service, period=period)
    if isinstance(plan, str | Path):
        return standing_file(Path(plan), service=service, period=period)
    if period is not None:
        raise SpecError(f"there is no period {period!r}: this is one fleet at one rate")
    standing = standing_fleet(plan) if isinstance(plan, LoadedFleet) else plan
    return only_one(of_service([standing], service))
