"""What a simulation says, in the units people quote: the JSON of ``simulate`` and ``evaluate``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from planner.evaluation import Evaluation
from planner.plan import LatencySummary
from planner.prediction import PoolLoad, overloaded, pool_loads
from planner.queueing import normal_quantile
from planner.simulator.metrics import (
    SURE,
    ClassResult,
    GroupUse,
    Measured,
    SimulationResult,
    SloCheck,
    TimeSeries,
)
from planner.simulator.source import RequestSource
from planner.specs import Statistic
from planner.standing import Standing
from planner.traces import FEW_REQUESTS
from planner.units import MILLI
from planner.verification import failures, milliseconds, slo_check, unserved

_FILLED = 6.0  # times that a long request stays, which a run has to last until queues and batches are full
_BEHIND, _BEHIND_SHARE = 60.0, 0.1  # time to serve what is left of a trace that is worth a note [s, 1]
_COMFORTABLE = 0.8  # utilization that leaves a queue room to breathe [1]
_NOTHING = dict.fromkeys(s.value for s in Statistic)


def simulation_facts(
    result: SimulationResult,
    standing: Standing,
    source: RequestSource,
    confidence: float,
    cpu_seconds: float,
    *,
    notes: tuple[str, ...] = (),
    series: bool = False,
) -> dict[str, Any]:
    """One run. Times in ms where the key says so, rates in req/s."""
    pools = _overloaded(standing, source, confidence) if result.growing else ()
    facts = {
        "source": result.source,
        "replayed": source.replay,
        "requests": result.requests,
        "measured": result.measured,
        "unserved": result.unserved,
        "rejected": result.rejected,
        "request_rate": result.request_rate,
        "offered_request_rate": offered_rate(source),
        "planned_request_rate": standing.offered,
        "confidence": confidence,
        "ttft_ms": _latency(result.ttft),
        "tpot_ms": _latency(result.tpot),
        "itl_ms": _latency(result.itl),
        "e2e_ms": _latency(result.e2e),
        "half_width_ms": {
            "ttft": milliseconds(result.ttft.half_width),
            "tpot": milliseconds(result.tpot.half_width),
            "e2e": milliseconds(result.e2e.half_width),
        },
        "goodput": result.goodput,
        "attainment": result.attainment,
        "passed": result.passed,
        "decided": decided(result),
        "filled": filled(result),
        "failures": [*failures(result), *map(_overload, pools)],
        "overload": [_pool(pool) for pool in pools],
        "slo": [{**slo_check(check), "sure": check.sure, "exact": check.exact} for check in result.checks],
        "growth": result.growth,
        "ttft_parts_ms": {
            "wait": result.wait_mean / MILLI,
            "prefill": result.prefill_mean / MILLI,
            "transfer": result.transfer_mean / MILLI,
        },
        "stall_ms": result.stall_mean / MILLI,
        "stall_share": result.stall_share,
        "preemptions": result.preemptions,
        "prefix_hit_rate": result.prefix_hit_rate,
        "duration_s": result.duration,
        "groups": [_use(use) for use in result.groups],
        "replicas": [_use(use) for use in result.replicas],
        "classes": [_class(one) for one in result.classes],
        "notes": [*notes, *result.notes, *_notes(result)],
        "cpu_seconds": cpu_seconds,
    }
    if series:
        facts["series"] = [_series(one) for one in result.series]
    return facts


def evaluation_facts(
    evaluation: Evaluation, standing: Standing, offered: float | None, confidence: float, cpu_seconds: float
) -> dict[str, Any]:
    """What a fleet carries; `offered` is the rate that was looked at beside it. [req/s]"""

    def of(result: SimulationResult | None, rate: float | None) -> dict[str, Any] | None:
        if result is None:
            return None
        source = RequestSource(workload=standing.source.workload, rate=rate)
        return simulation_facts(result, standing, source, confidence, cpu_seconds)

    at_offered = evaluation.at_offered
    return {
        "max_request_rate": evaluation.request_rate,
        "max_request_rate_per_gpu": evaluation.request_rate / evaluation.gpus,
        "gpus": evaluation.gpus,
        "cost_per_hour": evaluation.cost,
        "usd_per_million_tokens": evaluation.cost_per_million_tokens(standing.fleet.service),
        "request_rate": offered,
        "passed": None if at_offered is None else at_offered.passed,
        "breaks_first": {
            "pools": [phase.value for phase in evaluation.breaks],
            "request_rate": evaluation.beyond.request_rate,
            "failures": list(failures(evaluation.beyond)),
        },
        "at_offered": of(at_offered, offered),
        "at_most": of(evaluation.at_most, evaluation.request_rate),
        "confidence": confidence,
        "cpu_seconds": cpu_seconds,
    }


def plan_facts(by_service: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What is said of a whole plan: of its only service as that is, of several by their names."""
    if len(by_service) == 1:
        return next(iter(by_service.values()))
    return {"services": by_service, "passed": all(one["passed"] for one in by_service.values())}


def offered_rate(source: RequestSource) -> float:
    """Requests over the time in which they come. [req/s]"""
    if source.schedule:
        return math.fsum(d * rate for d, rate in source.schedule) / math.fsum(d for d, _ in source.schedule)
    return source.mean_rate


def decided(result: SimulationResult) -> bool:
    """Whether it is clear that the fleet holds, or that it does not; else the run is too short."""
    missed = [check for check in result.checks if not check.met]
    beyond = any(check.value > check.target.limit for check in missed)
    return result.passed or result.growing or beyond


def filled(result: SimulationResult) -> bool:
    """Whether drawn requests came for long enough to fill queues and batches; those of a trace count as
    they are."""
    exact = any(check.exact for check in result.checks)
    stay = result.e2e.value.p90
    return exact or result.growing or not math.isfinite(stay) or _last_arrival(result) >= _FILLED * stay


def _last_arrival(result: SimulationResult) -> float:
    """[s]"""
    return max((float(s.time[-1]) for s in result.series if s.time.size), default=0.0)


# --------------------------------------------------------------------------------------------
# What a reader has to know


def _notes(result: SimulationResult) -> Iterator[str]:
    if result.passed and result.unserved:
        yield unserved(result)
    exact = any(check.exact for check in result.checks)
    if result.measured < FEW_REQUESTS:
        yield f"{result.measured:,} requests are few: the high percentiles are those of single ones"
    elif not exact and (unsure := [check for check in result.checks if not check.sure]):
        yield _unsure(result, max(unsure, key=lambda check: check.half_width / check.value))
    last = _last_arrival(result)
    if exact and result.duration - last > max(_BEHIND, _BEHIND_SHARE * last):
        yield (
            f"requests came for {last:,.0f} s, and it took {result.duration:,.0f} s to serve them: the fleet "
            "fell behind"
        )
    if not filled(result):
        yield (
            f"requests came for {last:,.3g} s, and one in ten stays {result.e2e.value.p90:,.3g} s or longer: "
            "too short a run to fill queues and batches"
        )


def _unsure(result: SimulationResult, check: SloCheck) -> str:
    """How well the worst known statistic is known, and what it would take."""
    name = f"{check.target.statistic.value} {check.target.metric.value.upper()}"
    error = check.half_width / check.value
    if not math.isfinite(error):
        return f"too few requests to know {name}: give more --requests"
    wanted = float(f"{result.requests * (error / SURE) ** 2:.2g}")
    return (
        f"{name} is known to {error:.1%} (95 % interval): {SURE:.0%} would take about {wanted:,.0f} requests"
    )


# --------------------------------------------------------------------------------------------


def _latency(measured: Measured) -> dict[str, float] | dict[str, None]:
    """Mean and percentiles; None where no request has this latency."""
    return milliseconds(measured.value) if measured.requests else dict(_NOTHING)


def _overloaded(standing: Standing, source: RequestSource, confidence: float) -> tuple[PoolLoad, ...]:
    """Pools that cannot serve requests at a constant rate whatever the SLOs, the worst first.

    Nothing is said of replayed traces and of schedules, nor of groups that take prompts by their length:
    these have a traffic of their own.
    """
    apart = any(low > 0 or math.isfinite(high) for low, high in standing.input_ranges)
    if apart or not (source.endless and standing.source.endless):
        return ()
    return overloaded(pool_loads(standing.fleet, source.mean_rate, float(normal_quantile(confidence))))


def _overload(pool: PoolLoad) -> str:
    """What a pool without a steady state lacks."""
    said = f"{pool.phase} pool: utilization {pool.utilization:.3g}: no steady state, TTFT has no value"
    if pool.missing is None:
        return f"{said}; no number of its replicas has one"
    return (
        f"{said}; short of {pool.missing} replica{'' if pool.missing == 1 else 's'} "
        f"({pool.replicas_for()} would do, {pool.replicas_for(_COMFORTABLE)} for a utilization of "
        f"{_COMFORTABLE:g})"
    )


def _pool(pool: PoolLoad) -> dict[str, Any]:
    utilization = pool.utilization if math.isfinite(pool.utilization) else None
    return {
        "phase": pool.phase.value,
        "replicas": pool.replicas,
        "utilization": utilization,
        "most_request_rate": pool.most,
        "missing_replicas": pool.missing,
    }


def _use(use: GroupUse) -> dict[str, Any]:
    return {**asdict(use), "phase": use.phase.value}


def _class(one: ClassResult) -> dict[str, Any]:
    return {
        "input_tokens": {"min": one.least, "max": one.most},
        "requests": one.requests,
        "ttft_ms": milliseconds(one.ttft),
        "tpot_ms": _summary(one.tpot),
        "attainment": one.attainment,
    }


def _summary(summary: LatencySummary) -> dict[str, float] | dict[str, None]:
    """A class in which no request has a second token has no TPOT."""
    return milliseconds(summary) if summary.mean > 0 else dict(_NOTHING)


def _series(one: TimeSeries) -> dict[str, Any]:
    return {
        "name": one.name,
        "phase": one.phase.value,
        "time_s": one.time.tolist(),
        "queue": one.queue.tolist(),
        "batch": one.batch.tolist(),
        "transfers": one.transfers.tolist(),
        "kv": one.kv.tolist(),
        "busy": one.busy.tolist(),
        "link": one.link.tolist(),
        "token_rate": one.token_rate.tolist(),
    }
