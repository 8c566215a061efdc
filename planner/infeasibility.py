"""Why there is no plan: what binds, by how much, and the nearest change that helps.

Stock, budget and nodes are the program's business (:func:`planner.program.diagnose`). Here the SLOs
are loosened, candidates regenerated, until a plan exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from planner.candidates import CandidateSet, Rejection, build_candidates
from planner.errors import InfeasibleError
from planner.specs import Engine, Metric, Phase, Scenario, Service, Slo
from planner.units import BITS_PER_BYTE, GIGA, MILLI

_LOOSENED = 64.0  # SLOs further from reach than this factor are not explored
_STEPS = 9
_FASTER_NETWORK = 1000.0  # multiple of the given network that is tried
_MOST_LISTED = 8
_MORE_NODES = (2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class _Reach:
    """Tightest reachable value of one metric: factor on its limits, and on what."""

    metric: Metric
    factor: float
    where: str


def explain(
    scenario: Scenario,
    service: Service,
    engine: Engine,
    candidates: CandidateSet,
    error: InfeasibleError,
    *,
    briefly: bool = False,
) -> InfeasibleError:
    """The error to show: the program's diagnosis, or the SLO that no replica meets; `briefly`: no more than
    what binds, without the nearest change that helps."""
    missing = _missing_phases(scenario, candidates)
    if not missing:
        return error
    if briefly:
        return _briefly(scenario, service, engine, missing)
    reaches = [r for m in _metrics(service.slo) if (r := _reach(scenario, service, engine, m)) is not None]
    network = _network_hint(scenario, service, engine)
    nodes = _nodes_hint(scenario, service, engine)
    if reaches:
        nearest = min(reaches, key=lambda r: r.factor)
        hints = tuple(_suggestion(service.slo, r) for r in sorted(reaches, key=lambda r: r.factor))
        return InfeasibleError(_binding(service.slo, nearest.metric), "", network + nodes + hints)
    if network:
        return InfeasibleError(
            "network: KV caches take too long, or too much of it, to move", "", network + nodes
        )
    return _without_candidates(service, candidates, missing, nodes)


def _briefly(scenario: Scenario, service: Service, engine: Engine, missing: list[Phase]) -> InfeasibleError:
    """Which latency's limits are in the way, or that nothing fits."""
    metrics = _metrics(service.slo)
    in_the_way = [m for m in metrics if _candidates_at(scenario, service, engine, m, _LOOSENED) is not None]
    if in_the_way:
        return InfeasibleError(" or ".join(_limits(service.slo, metric) for metric in in_the_way))
    if len(metrics) > 1:
        apart = service
        for metric in metrics:
            apart = loosened(apart, metric, _LOOSENED)
        if not _missing_phases(scenario, build_candidates(scenario, apart, engine)):
            return InfeasibleError(" and ".join(_limits(service.slo, metric) for metric in metrics))
    return InfeasibleError(f"no replica for {' and '.join(missing)}")


def _missing_phases(scenario: Scenario, candidates: CandidateSet) -> list[Phase]:
    """Phases without candidates such that no mode is left; empty if some mode has all it needs."""
    present = {c.phase for c in candidates.choices}
    wanted = _wanted(scenario)
    if any(set(mode) <= present for mode in wanted):
        return []
    return sorted({phase for mode in wanted for phase in mode if phase not in present})


def _wanted(scenario: Scenario) -> list[tuple[Phase, ...]]:
    use = scenario.options.colocated
    modes: list[tuple[Phase, ...]] = []
    if use != "only":
        modes.append((Phase.PREFILL, Phase.DECODE))
    if use != "forbidden":
        modes.append((Phase.COLOCATED,))
    return modes


def _metrics(slo: Slo) -> list[Metric]:
    return [m for m in (Metric.TTFT, Metric.TPOT) if slo.of(m)]


def loosened(service: Service, metric: Metric, factor: float) -> Service:
    """The service with every limit of `metric` multiplied by `factor`."""
    targets = tuple(
        replace(t, limit=t.limit * factor) if t.metric is metric else t for t in service.slo.targets
    )
    return replace(service, slo=replace(service.slo, targets=targets))


def _reach(scenario: Scenario, service: Service, engine: Engine, metric: Metric) -> _Reach | None:
    """Smallest factor on the limits of `metric` at which some mode has candidates, by bisection."""
    best = _candidates_at(scenario, service, engine, metric, _LOOSENED)
    if best is None:
        return None
    low, high = 1.0, _LOOSENED
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        found = _candidates_at(scenario, service, engine, metric, middle)
        if found is None:
            low = middle
        else:
            high, best = middle, found
    return _Reach(metric, high, best)


def _candidates_at(
    scenario: Scenario, service: Service, engine: Engine, metric: Metric, factor: float
) -> str | None:
    """On what the loosened SLO is met, None where no mode has candidates."""
    service = loosened(service, metric, factor)
    found = build_candidates(scenario, service, engine)
    if _missing_phases(scenario, found):
        return None
    relevant = (Phase.DECODE, Phase.COLOCATED) if metric is Metric.TPOT else (Phase.PREFILL, Phase.COLOCATED)
    names = [
        f"{scenario.fleet[c.item].gpu.name} {c.parallelism}" for c in found.choices if c.phase in relevant
    ]
    return ", ".join(dict.fromkeys(names[:3]))


def _network_hint(scenario: Scenario, service: Service, engine: Engine) -> tuple[str, ...]:
    """The slowest network of every GPU type, as a multiple of its own, at which a plan may exist."""

    def missing(factor: float) -> bool:
        fleet = tuple(
            replace(item, network_bandwidth=item.network_bandwidth * factor) for item in scenario.fleet
        )
        faster = replace(scenario, fleet=fleet)
        return bool(_missing_phases(faster, build_candidates(faster, service, engine)))

    if missing(_FASTER_NETWORK):
        return ()
    low, high = 1.0, _FASTER_NETWORK
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if missing(middle) else (low, middle)
    rates = {item.gpu.name: item.network_bandwidth * high * BITS_PER_BYTE / GIGA for item in scenario.fleet}
    listed = ", ".join(f"{rate:.3g} Gbit/s per {name}" for name, rate in rates.items())
    return (f"a network {high:.2g} times as fast would do: {listed}",)


def _nodes_hint(scenario: Scenario, service: Service, engine: Engine) -> tuple[str, ...]:
    """The fewest nodes of a replica, beyond those allowed, with which a plan may exist."""
    options, most = scenario.options, max(_MORE_NODES)
    if options.max_nodes_per_replica >= most:
        return ()
    wider = replace(scenario, options=replace(options, max_nodes_per_replica=most))
    found = build_candidates(wider, service, engine)
    for nodes in _MORE_NODES:
        within = (
            c for c in found.choices if c.parallelism.num_gpus <= nodes * scenario.fleet[c.item].node_size
        )
        if not _missing_phases(scenario, replace(found, choices=tuple(within))):
            return (
                f"options.max_nodes_per_replica: {nodes}, replicas over {nodes} nodes with RDMA, would do",
            )
    return ()


def _binding(slo: Slo, metric: Metric) -> str:
    return f"{_limits(slo, metric)}: no replica of the fleet meets it even with one request"


def _limits(slo: Slo, metric: Metric) -> str:
    return " and ".join(str(t) for t in slo.of(metric))


def _suggestion(slo: Slo, reach: _Reach) -> str:
    target = min(slo.of(reach.metric), key=lambda t: t.limit)
    value = reach.factor * target.limit / MILLI
    return (
        f"the tightest {target.statistic} {reach.metric.upper()} reachable is about {value:.3g} ms, "
        f"on {reach.where}"
    )


def _without_candidates(
    service: Service, candidates: CandidateSet, missing: list[Phase], hints: tuple[str, ...]
) -> InfeasibleError:
    """Nothing fits at all: say why, GPU by GPU."""
    phases = " and ".join(missing)
    lines = rejection_reasons(r for r in candidates.rejections if r.phase in missing)
    more = (f"and {len(lines) - _MOST_LISTED} more",) if len(lines) > _MOST_LISTED else ()
    return InfeasibleError(
        f"no GPU of the fleet can run {service.model.name} for {phases}",
        "",
        (*hints, *lines[:_MOST_LISTED], *more),
    )


def rejection_reasons(rejections: Iterable[Rejection]) -> tuple[str, ...]:
    """Why GPUs cannot serve, a line for each type and phase."""
    nearest: dict[tuple[str, Phase], Rejection] = {}
    for r in rejections:
        key = (r.gpu, r.phase)
        nearest[key] = max(nearest.get(key, r), r, key=lambda x: x.parallelism.num_gpus)
    return tuple(dict.fromkeys(_reason(r) for r in nearest.values()))


def _reason(rejection: Rejection) -> str:
    """One line; of several layouts the largest is told, as the nearest to fit."""
    layout = "" if rejection.reason.startswith("max_") else f" {rejection.parallelism}"
    return f"{rejection.gpu}{layout}, {rejection.phase}: {rejection.reason}"
