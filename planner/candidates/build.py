"""All candidates of a service."""

from __future__ import annotations

from dataclasses import replace

from planner.candidates.colocated import colocated
from planner.candidates.context import CandidateSet, Context, merge
from planner.candidates.disaggregated import disaggregated
from planner.capacity import admission_miss, limits
from planner.queueing import normal_quantile
from planner.specs import ColocatedUse, Engine, Metric, Scenario, Service
from planner.traffic import Traffic


def build_candidates(
    scenario: Scenario, service: Service, engine: Engine, z: float | None = None
) -> CandidateSet:
    """All candidates of `service` on the scenario's fleet.

    Parameters
    ----------
    z : float, optional
        Normal quantile of the model error to plan for; by default that of ``options.confidence``.
    """
    options = scenario.options
    traffic = Traffic.of_service(service)
    ttft = limits(service.slo, Metric.TTFT)
    tpot = limits(service.slo, Metric.TPOT) if traffic.has_tpot else ()
    context = Context(
        service=service,
        scenario=scenario,
        engine=engine,
        traffic=traffic,
        z=float(normal_quantile(options.confidence)) if z is None else z,
        ttft=ttft,
        tpot=tpot,
        miss=admission_miss(ttft),
    )
    parts: list[CandidateSet] = []
    if options.colocated is not ColocatedUse.ONLY:
        parts.append(disaggregated(context))
    if options.colocated is not ColocatedUse.FORBIDDEN:
        parts.append(colocated(context))
    merged = merge(parts)
    return replace(merged, rejections=tuple(context.rejections))
