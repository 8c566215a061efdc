"""Whether a plan holds under traffic, and by how much its groups' capacities were wrong.

The simulator judges what the program found; what it says of a pool's capacity goes back into the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.documents.scenario import LoadedScenario
from planner.fleet import Fleet, distinct_names
from planner.plan import LatencySummary, Verification
from planner.simulator.build import Setup
from planner.simulator.metrics import SimulationResult, SloCheck
from planner.simulator.run import Stage, carried_scale, simulate_fleet
from planner.simulator.source import RequestSource
from planner.specs import Metric, Phase, Statistic, Workload
from planner.units import MILLI

WASTED = 0.85  # of every limit, below which a plan may carry less than it could [1]
MOST_MORE = 2.0  # times the planned rate that is tried for a pool that is wasted
SAFETY = 0.99  # of a rate that was seen to hold [1]
OTHER_POOL = 8  # times its replicas, so that only one pool of a fleet is measured
LINK_NOTED = 0.5  # load of NICs from which transfers are held up by others [1]


def source_of(
    loaded: LoadedScenario,
    asked: int,
    workload: Workload,
    seed: int = 0,
    prompts: tuple[float, float] | None = None,
) -> RequestSource:
    """The requests that verify a plan for one service of a scenario: its trace at the planned rate, or
    drawn ones. Of a trace those with ``low <= isl < high``, where `prompts` gives the two. [tok]"""
    trace = loaded.traces[asked] if loaded.traces else None
    return RequestSource(
        workload=workload,
        rate=workload.request_rate,
        trace=trace if trace is None or prompts is None else trace.between(*prompts),
        replay=bool(loaded.replays) and loaded.replays[asked],
        seed=seed,
    )


def simulate_plan(
    fleet: Fleet, source: RequestSource, z: float, on_stage: Stage, *, sure: bool
) -> SimulationResult:
    """The fleet of a plan under its traffic, at the model error `z` that it was planned for.

    `sure`: until every SLO's statistic is known well; else until it is clear on which side of its limit
    it is.
    """
    names = distinct_names([group.label for group in fleet.groups])
    enough = _known if sure else _decided
    return simulate_fleet(fleet, source, Setup(z=z), names=names, enough=enough, on_stage=on_stage)


def _known(result: SimulationResult) -> bool:
    return result.sure


def _decided(result: SimulationResult) -> bool:
    """Whether every SLO is met or missed by more than twice the half-width of its confidence interval."""
    clear = all(c.sure or abs(c.value - c.target.limit) > 2 * c.half_width for c in result.checks)
    return result.sure or clear


# --------------------------------------------------------------------------------------------
# Corrections


def blamed(fleet: Fleet, result: SimulationResult) -> frozenset[Phase]:
    """Pools that keep a result from meeting the SLOs."""
    if fleet.pool(Phase.COLOCATED):
        return frozenset({Phase.COLOCATED})
    missed = {c.target.metric for c in result.checks if not c.met}
    phases = set()
    if Metric.TTFT in missed or result.growing:
        phases.add(_slow_to_first_token(result))
    if Metric.TPOT in missed:
        phases.add(Phase.DECODE)
    return frozenset(phases)


def _slow_to_first_token(result: SimulationResult) -> Phase:
    """The pool whose queue, or whose NICs, take most of what TTFT has beside the prompt itself."""
    waiting = sum(float(s.queue.mean()) for s in result.series if s.phase is Phase.DECODE and s.time.size)
    admission = waiting / result.request_rate if result.request_rate > 0 else 0.0
    if admission > result.wait_mean:
        return Phase.DECODE
    if result.transfer_mean > result.wait_mean:
        out = max((g.egress for g in result.groups if g.phase is Phase.PREFILL), default=0.0)
        into = max((g.ingress for g in result.groups if g.phase is Phase.DECODE), default=0.0)
        if max(out, into) > LINK_NOTED:
            return Phase.DECODE if into > out else Phase.PREFILL
    return Phase.PREFILL


def wasted(fleet: Fleet, result: SimulationResult) -> frozenset[Phase]:
    """Pools whose SLOs are met with much to spare."""
    share: dict[Metric, float] = {}
    for check in result.checks:
        share[check.target.metric] = max(
            share.get(check.target.metric, 0.0), check.value / check.target.limit
        )
    if fleet.pool(Phase.COLOCATED):
        return frozenset({Phase.COLOCATED} if max(share.values(), default=1.0) < WASTED else ())
    pools = {Metric.TTFT: Phase.PREFILL, Metric.TPOT: Phase.DECODE}
    return frozenset(pools[metric] for metric, value in share.items() if value < WASTED and metric in pools)


def pool_scale(
    fleet: Fleet, phase: Phase, source: RequestSource, z: float, *, most: float, on_stage: Stage
) -> float:
    """Multiple of the planned rate, at most `most`, that one pool of a fleet carries.

    The other pool is made so large that it does not matter.
    """
    groups = tuple(
        g if g.phase is phase else replace(g, replicas=g.replicas * OTHER_POOL, rate=g.rate * OTHER_POOL)
        for g in fleet.groups
    )
    alone = replace(fleet, groups=groups)
    return SAFETY * carried_scale(alone, source, Setup(z=z), most=most, on_stage=on_stage)


# --------------------------------------------------------------------------------------------
# What a plan says of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One plan on the way to the last.

    Attributes
    ----------
    fleet : str
        Its groups in words.
    value, cost : float
        In the unit of the objective, and in USD/h where prices are known.
    failed : tuple of str
        What it missed; empty: it held.
    corrections : mapping
        By pool: factor on the capacity of its groups that was learned from this plan. [1]
    """

    fleet: str
    replicas: int
    value: float
    cost: float | None
    failed: tuple[str, ...]
    corrections: Mapping[str, float]


def verification(
    results: Mapping[str, SimulationResult],
    missed: Sequence[str],
    confidence: float,
    rounds: Sequence[Round],
    seed: int,
) -> Verification:
    """The results by router as a plan keeps them; times in ms, rates in req/s."""
    common = {
        "confidence": confidence,
        "seed": seed,
        "failures": list(missed),
        "rounds": [
            {
                "fleet": r.fleet,
                "replicas": r.replicas,
                "value": r.value,
                "cost_per_hour": r.cost,
                "missed": list(r.failed),
                "capacity_factors": dict(r.corrections),
            }
            for r in rounds
        ],
    }
    facts = {name: _facts(result) for name, result in results.items()}
    details = {"services": facts} if len(facts) > 1 else next(iter(facts.values()))
    return Verification(passed=all(r.passed for r in results.values()), details={**details, **common})


def _facts(result: SimulationResult) -> dict[str, Any]:
    """What one simulation gave."""
    return {
        "source": result.source,
        "requests": result.requests,
        "measured": result.measured,
        "request_rate": result.request_rate,
        "ttft_ms": milliseconds(result.ttft.value),
        "tpot_ms": milliseconds(result.tpot.value),
        "itl_ms": milliseconds(result.itl.value),
        "slo": [slo_check(check) for check in result.checks],
        "attainment": result.attainment,
        "goodput": result.goodput,
        "unserved": result.unserved,
        "growth": result.growth,
        "stall_mean_ms": result.stall_mean / MILLI,
        "stall_share": result.stall_share,
        "preemptions": result.preemptions,
    }


def milliseconds(summary: LatencySummary) -> dict[str, float]:
    """Mean and percentiles by name. [ms]"""
    return {s.value: getattr(summary, s.value) / MILLI for s in Statistic}


def slo_check(check: SloCheck) -> dict[str, Any]:
    """One SLO and what came of it. [ms]"""
    return {
        "metric": check.target.metric.value,
        "statistic": check.target.statistic.value,
        "limit_ms": check.target.limit / MILLI,
        "value_ms": check.value / MILLI,
        "half_width_ms": check.half_width / MILLI,
        "met": check.met,
    }


def failures(result: SimulationResult) -> tuple[str, ...]:
    """What a fleet missed, in words; empty where it passed."""
    if result.passed:
        return ()
    said = [_miss(check) for check in result.checks if not check.met]
    if result.growing:
        of = f" of the {result.request_rate:.4g} that arrive" if result.request_rate > 0 else ""
        said.append(f"queues grow by {result.growth:.3g} requests per second{of}: there is no steady state")
    if result.unserved:
        said.append(unserved(result))
    return tuple(said)


def _miss(check: SloCheck) -> str:
    value = f"{check.target}: {_shown(check.value)} ms"
    if check.exact or not math.isfinite(check.value):
        return value
    if check.value > check.target.limit:
        return value if math.isinf(check.half_width) else f"{value} (+/- {_shown(check.half_width)})"
    if math.isinf(check.half_width):
        return f"{value}, from too few requests to be sure"
    return f"{value}, which is not sure (+/- {_shown(check.half_width)})"


def unserved(result: SimulationResult) -> str:
    """How many requests were not served, and why; empty where all were."""
    waiting = result.unserved - result.rejected
    reasons = [
        (result.rejected, "fit into no replica's KV cache"),
        (waiting, "found no replica to serve them"),
    ]
    return " and ".join(f"{n:,} of {result.measured:,} requests {why}" for n, why in reasons if n)


def _shown(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "inf"
    time = seconds / MILLI
    return f"{time:,.0f}" if time >= 100 else f"{time:.3g}"
