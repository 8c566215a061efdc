"""What a simulation says, in the units people quote: the JSON of ``simulate`` and ``evaluate``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from planner.evaluation import Evaluation, Standing
from planner.plan import LatencySummary
from planner.simulator.metrics import ClassResult, GroupUse, Measured, SimulationResult, TimeSeries
from planner.units import MILLI
from planner.verification import failures, milliseconds, slo_check


def simulation_facts(
    result: SimulationResult, standing: Standing, confidence: float, cpu_seconds: float, series: bool = False
) -> dict[str, Any]:
    """One run. Times in ms where the key says so, rates in req/s."""
    facts = {
        "source": result.source,
        "requests": result.requests,
        "measured": result.measured,
        "unserved": result.unserved,
        "request_rate": result.request_rate,
        "planned_request_rate": standing.fleet.service.workload.request_rate,
        "confidence": confidence,
        "ttft_ms": _latency(result.ttft),
        "tpot_ms": _latency(result.tpot),
        "itl_ms": milliseconds(result.itl.value),
        "e2e_ms": _latency(result.e2e),
        "half_width_ms": {
            "ttft": milliseconds(result.ttft.half_width),
            "tpot": milliseconds(result.tpot.half_width),
            "e2e": milliseconds(result.e2e.half_width),
        },
        "goodput": result.goodput,
        "attainment": result.attainment,
        "passed": result.passed,
        "failures": list(failures(result)),
        "slo": [slo_check(check) for check in result.checks],
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
        "notes": list(result.notes),
        "cpu_seconds": cpu_seconds,
    }
    if series:
        facts["series"] = [_series(one) for one in result.series]
    return facts


def evaluation_facts(
    evaluation: Evaluation, standing: Standing, confidence: float, cpu_seconds: float
) -> dict[str, Any]:
    """What a fleet carries."""

    def of(result: SimulationResult | None) -> dict[str, Any] | None:
        return None if result is None else simulation_facts(result, standing, confidence, cpu_seconds)

    offered = evaluation.at_offered
    return {
        "max_request_rate": evaluation.request_rate,
        "max_request_rate_per_gpu": evaluation.request_rate / evaluation.gpus,
        "gpus": evaluation.gpus,
        "cost_per_hour": evaluation.cost,
        "usd_per_million_tokens": evaluation.cost_per_million_tokens(standing.fleet.service),
        "passed": None if offered is None else offered.passed,
        "breaks_first": {
            "pools": [phase.value for phase in evaluation.breaks],
            "request_rate": evaluation.beyond.request_rate,
            "failures": list(failures(evaluation.beyond)),
        },
        "at_offered": of(offered),
        "at_most": of(evaluation.at_most),
        "confidence": confidence,
        "cpu_seconds": cpu_seconds,
    }


def _latency(measured: Measured) -> dict[str, float]:
    return milliseconds(measured.value)


def _use(use: GroupUse) -> dict[str, Any]:
    return {**asdict(use), "phase": use.phase.value}


def _class(one: ClassResult) -> dict[str, Any]:
    return {
        "input_tokens": {"min": one.least, "max": one.most},
        "requests": one.requests,
        "ttft_ms": _summary(one.ttft),
        "tpot_ms": _summary(one.tpot),
        "attainment": one.attainment,
    }


def _summary(summary: LatencySummary) -> dict[str, float]:
    return milliseconds(summary)


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
