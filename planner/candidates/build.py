"""All candidates of a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.candidates import colocated as of_colocated
from planner.candidates import disaggregated as of_disaggregated
from planner.candidates.colocated import colocated
from planner.candidates.context import CandidateSet, Context, merge
from planner.candidates.disaggregated import disaggregated
from planner.capacity import admission_miss, limits
from planner.engines.formats import format_labels
from planner.queueing import normal_quantile
from planner.specs import ColocatedUse, Dtype, Engine, Metric, Phase, Precision, Scenario, Service
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
    z = float(normal_quantile(scenario.options.confidence)) if z is None else z
    labels = format_labels(service.formats)
    sets = [
        _of_context(_context(scenario, service, engine, z, {p: labels[p] for p in formats}))
        for formats in _by_kv_cache(service.formats)
    ]
    merged = merge(sets)
    return replace(
        merged,
        illegal_pairs=merged.illegal_pairs | _strangers(merged),
        rejections=tuple(r for found in sets for r in found.rejections),
    )


def forget() -> None:
    """Drop tables and curves that are kept between calls; only to measure or to compare with."""
    for module in (of_colocated, of_disaggregated):
        module.forget()


def _by_kv_cache(formats: Sequence[Precision]) -> list[list[Precision]]:
    """The formats with each KV cache."""
    families: dict[Dtype, list[Precision]] = {}
    for precision in formats:
        families.setdefault(precision.kv_cache, []).append(precision)
    return list(families.values())


def _context(
    scenario: Scenario, service: Service, engine: Engine, z: float, formats: Mapping[Precision, str]
) -> Context:
    """What candidates of one KV cache format share."""
    service = replace(service, precision=next(iter(formats)))
    traffic = Traffic.of_service(service)
    ttft = limits(service.slo, Metric.TTFT)
    return Context(
        service=service,
        scenario=scenario,
        engine=engine,
        traffic=traffic,
        z=z,
        ttft=ttft,
        tpot=limits(service.slo, Metric.TPOT) if traffic.has_tpot else (),
        miss=admission_miss(ttft),
        formats=formats,
    )


def _of_context(context: Context) -> CandidateSet:
    parts: list[CandidateSet] = []
    if context.scenario.options.colocated is not ColocatedUse.ONLY:
        parts.append(disaggregated(context))
    if context.scenario.options.colocated is not ColocatedUse.FORBIDDEN:
        parts.append(colocated(context))
    return replace(merge(parts), rejections=tuple(context.rejections))


def _strangers(found: CandidateSet) -> frozenset[tuple[int, int]]:
    """Prefill and decode candidates whose KV caches have different formats: none can be handed over."""
    return frozenset(
        (i, j)
        for i in found.of(Phase.PREFILL)
        for j in found.of(Phase.DECODE)
        if found.choices[i].precision.kv_cache is not found.choices[j].precision.kv_cache
    )
