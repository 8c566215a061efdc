"""Changed scenarios: pure functions from one to another."""

from __future__ import annotations

from dataclasses import replace

from planner.specs import (
    ColocatedUse,
    FleetItem,
    Lengths,
    Marginal,
    Metric,
    Phase,
    Scenario,
    Service,
    SloTarget,
)

POOLS = (Phase.PREFILL, Phase.DECODE, Phase.COLOCATED)


def with_item(scenario: Scenario, index: int, item: FleetItem) -> Scenario:
    """One line of the fleet replaced."""
    fleet = tuple(item if i == index else old for i, old in enumerate(scenario.fleet))
    return replace(scenario, fleet=fleet)


def with_stock(scenario: Scenario, index: int, gpus: int | None) -> Scenario:
    """Another number of GPUs to be had; None: no limit."""
    return with_item(scenario, index, replace(scenario.fleet[index], max_gpus=gpus))


def without_cap(scenario: Scenario, index: int, phase: Phase) -> Scenario:
    """One pool's cap on a GPU type lifted."""
    item = scenario.fleet[index]
    caps = {p: cap for p, cap in item.max_gpus_by_phase.items() if p is not phase}
    return with_item(scenario, index, replace(item, max_gpus_by_phase=caps))


def faster_network(scenario: Scenario, factor: float) -> Scenario:
    """Every NIC's rate times `factor`. [1]"""
    fleet = tuple(replace(i, network_bandwidth=i.network_bandwidth * factor) for i in scenario.fleet)
    return replace(scenario, fleet=fleet)


def on_network(scenario: Scenario, bandwidth: float, *, rdma: bool) -> Scenario:
    """Every NIC with so much per GPU [B/s], and hand-overs over no other link."""
    fleet = tuple(
        replace(item, network_bandwidth=bandwidth, network_given=True, rdma=rdma) for item in scenario.fleet
    )
    services = tuple(replace(service, node_links=False) for service in scenario.services)
    return replace(scenario, fleet=fleet, services=services)


def with_services(scenario: Scenario, services: tuple[Service, ...]) -> Scenario:
    return replace(scenario, services=services)


def scaled_limits(service: Service, targets: tuple[SloTarget, ...], factor: float) -> Service:
    """Some SLOs of a service with `factor` times the limit. [1]"""
    changed = tuple(replace(t, limit=t.limit * factor) if t in targets else t for t in service.slo.targets)
    return replace(service, slo=replace(service.slo, targets=changed))


def looser(scenario: Scenario, metric: Metric, factor: float, *, service: int | None = None) -> Scenario:
    """Every limit on `metric` times `factor`, of all services or of one. [1]"""
    services = tuple(
        scaled_limits(s, s.slo.of(metric), factor) if service in (None, i) else s
        for i, s in enumerate(scenario.services)
    )
    return with_services(scenario, services)


def looser_target(scenario: Scenario, service: int, target: SloTarget, factor: float) -> Scenario:
    """One SLO's limit times `factor`. [1]"""
    services = tuple(
        scaled_limits(s, (target,), factor) if i == service else s for i, s in enumerate(scenario.services)
    )
    return with_services(scenario, services)


def busier(scenario: Scenario, factor: float) -> Scenario:
    """Request rates of all services, at all times, times `factor`. [1]"""
    services = []
    for service in scenario.services:
        workload = service.workload
        periods = tuple(replace(p, request_rate=p.request_rate * factor) for p in workload.periods)
        services.append(replace(service, workload=replace(workload, periods=periods)))
    return with_services(scenario, tuple(services))


def other_prices(scenario: Scenario, gpu: str, factor: float) -> Scenario:
    """Prices of one GPU type, wherever and however it is paid for, times `factor`. [1]"""
    fleet = tuple(
        replace(i, price=i.price * factor) if i.gpu.name == gpu and i.price is not None else i
        for i in scenario.fleet
    )
    return replace(scenario, fleet=fleet)


def longer_prompts(scenario: Scenario, factor: float) -> Scenario:
    """Prompts of all services times `factor`. [1]"""
    return _with_lengths(scenario, factor, 1.0)


def longer_answers(scenario: Scenario, factor: float) -> Scenario:
    """Answers of all services times `factor`, at least one token each. [1]"""
    return _with_lengths(scenario, 1.0, factor)


def _with_lengths(scenario: Scenario, isl: float, osl: float) -> Scenario:
    services = []
    for service in scenario.services:
        old = service.workload.lengths
        grown = old.isl.maximum * (isl - 1.0) + old.osl.maximum * (osl - 1.0)
        longest = None if old.longest_request is None else old.longest_request + grown
        lengths = Lengths(
            isl=_scaled(old.isl, isl),
            osl=_scaled(old.osl, osl),
            isl_per_output_token=old.isl_per_output_token * isl,
            longest_request=longest,
        )
        services.append(replace(service, workload=replace(service.workload, lengths=lengths)))
    return with_services(scenario, tuple(services))


def _scaled(lengths: Marginal, factor: float) -> Marginal:
    if factor == 1.0:
        return lengths
    longest = None if lengths.longest is None else max(lengths.longest * factor, 1.0)
    return Marginal(
        points=tuple(max(x * factor, 1.0) for x in lengths.points), weights=lengths.weights, longest=longest
    )


def slower(scenario: Scenario, factor: float) -> Scenario:
    """Every step, transfer and overhead `factor` times as long. [1]

    Stretching all service times while arrivals and limits stay is, in another unit of time, the same as
    `factor` times the arrivals within limits divided by it.
    """
    changed = busier(scenario, factor)
    for metric in Metric:
        changed = looser(changed, metric, 1 / factor)
    return changed


def with_confidence(scenario: Scenario, confidence: float) -> Scenario:
    """Another quantile of the model error to withstand. [1]"""
    return replace(scenario, options=replace(scenario.options, confidence=confidence))


def all_of_pool(scenario: Scenario, index: int, phase: Phase) -> Scenario | None:
    """Only this line of the fleet may serve in a pool; None where the scenario has no such pool."""
    use = ColocatedUse.ONLY if phase is Phase.COLOCATED else ColocatedUse.FORBIDDEN
    if scenario.options.colocated not in (ColocatedUse.ALLOWED, use):
        return None
    fleet = tuple(
        item if i == index else replace(item, max_gpus_by_phase={**item.max_gpus_by_phase, phase: 0})
        for i, item in enumerate(scenario.fleet)
    )
    return replace(scenario, fleet=fleet, options=replace(scenario.options, colocated=use))
