"""The same scenario under other networks: what KV transfers cost, and whether handing over still pays.

Every row is the best disaggregated plan under one network, with KV transfers hidden or not and with the KV
cache as asked for or in fp8. All NICs of the fleet are changed alike. Colocated plans need no network between
replicas; the best of them is what handing over has to beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.collectives import kv_transfer_time, links_node, network_rate, within_node
from planner.documents.plan_extras import rounded
from planner.engines import engine_of
from planner.errors import InfeasibleError, SolverError, SpecError
from planner.fleet import Deployed, Fleet, path_rate
from planner.plan import Binding, LatencySummary, Plan
from planner.results import Result
from planner.specs import ColocatedUse, Dtype, Objective, Phase, Precision, Scenario, Service
from planner.traffic import Traffic
from planner.transformer import kv_bytes
from planner.units import BITS_PER_BYTE, GIGA, MILLI
from planner.whatif import changes
from planner.whatif.asked import Asked, Source, asked_of
from planner.whatif.corrections import capacity_factors
from planner.whatif.resolve import NO_FLEET, Resolved, ResolveOptions, Resolver, resolved_of, table_of
from planner.whatif.tier_specs import fleet_of
from planner.whatif.values import INTERRUPTED, better_by
from planner.whatif.words import UNITS

AS_ASKED, FP8 = "as asked", "fp8"
SAME_NODE = "within one node"
COLUMNS = (
    "network", "gbps_per_gpu", "rdma", "overlap", "kv_cache", "exposed_transfer_ms",
    "exposed_transfer_p99_ms", "ttft_mean_ms", "ttft_p99_ms", "link", "link_load", "network_binds", "pays",
    "value", "usd_per_hour", "feasible", "fleet", "reason",
)  # fmt: skip
"""Of the table."""
_LONG = 0.99  # quantile of prompt lengths whose transfer is told beside the mean [1]


@dataclass(frozen=True, slots=True)
class Network:
    """What connects the GPUs of a fleet.

    Attributes
    ----------
    bandwidth : float or None
        Of one GPU's NIC, one direction; None: the link within a node instead. [B/s]
    """

    name: str
    bandwidth: float | None = None
    rdma: bool = True


def _gbps(kind: str, rate: float) -> Network:
    return Network(f"{kind} {rate:g}G", rate * GIGA / BITS_PER_BYTE, kind == "RDMA")


LADDER = (
    _gbps("TCP", 25), _gbps("TCP", 100), _gbps("RDMA", 100), _gbps("RDMA", 200), _gbps("RDMA", 400),
    Network(SAME_NODE),
)  # fmt: skip
"""From the slowest to the fastest, per GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkRow:
    """The best disaggregated plan under one network.

    Attributes
    ----------
    overlap : float
        Share of KV transfers that is hidden. [1]
    kv_cache : str
        "as asked" or "fp8".
    exposed, exposed_long : float or None
        Part of a KV transfer that adds to TTFT: mean, and of a prompt at the 99th percentile of lengths; None
        where there is no plan. [s]
    ttft : LatencySummary or None
        Expected. [s]
    link : str
        The narrower end of most transfers, e.g. "decode l40s".
    link_load : float
        Share of the fullest NIC that transfers take. [1]
    binds : bool
        Whether the network ends the capacity of a group.
    pays : bool or None
        Whether the plan is better than the best colocated one; None where there is none to compare with.
    """

    network: Network
    overlap: float
    kv_cache: str
    exposed: float | None
    exposed_long: float | None
    ttft: LatencySummary | None
    link: str
    link_load: float
    binds: bool
    pays: bool | None
    result: Resolved

    def figures(self) -> dict[str, Any]:
        """What there is to say beside the plan, in the units of the names."""
        rate = self.network.bandwidth
        ttft = (None, None) if self.ttft is None else (self.ttft.mean, self.ttft.p99)
        times = (self.exposed, self.exposed_long, *ttft)
        exposed, exposed_long, mean, p99 = (None if t is None else rounded(t / MILLI) for t in times)
        return {
            "network": self.network.name,
            "gbps_per_gpu": None if rate is None else rounded(rate * BITS_PER_BYTE / GIGA),
            "rdma": self.network.rdma,
            "overlap": rounded(self.overlap),
            "kv_cache": self.kv_cache,
            "exposed_transfer_ms": exposed,
            "exposed_transfer_p99_ms": exposed_long,
            "ttft_mean_ms": mean,
            "ttft_p99_ms": p99,
            "link": self.link,
            "link_load": rounded(self.link_load),
            "network_binds": self.binds,
            "pays": self.pays,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Networks(Result):
    """A scenario under a ladder of networks.

    Attributes
    ----------
    colocated : mapping of str to Resolved
        The best plan without hand-overs, by format of the KV cache; empty where it is forbidden.
    own_overlap : float
        Of the engine as its file has it. [1]
    """

    name: str
    objective: Objective
    points: tuple[NetworkRow, ...]
    colocated: dict[str, Resolved]
    own_overlap: float
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def unit(self) -> str:
        return UNITS[self.objective]

    def rows(self) -> tuple[dict[str, Any], ...]:
        """A flat row for each network and variant, with the columns of :data:`COLUMNS`."""
        return tuple({**point.figures(), **table_of(point.result)} for point in self.points)


@dataclass(frozen=True, slots=True)
class Variant:
    """One row to be solved."""

    network: Network
    overlap: float
    kv_cache: str


def variants(scenario: Scenario, ladder: tuple[Network, ...] = LADDER) -> tuple[Variant, ...]:
    """Rows of a scenario: each network without and with overlap, and with each format of the KV cache."""
    (service,) = scenario.services
    hidden = 1.0 - 1.0 / service.model.num_layers
    formats = (AS_ASKED,) if _is_fp8(service) else (AS_ASKED, FP8)
    return tuple(
        Variant(network, overlap, kv) for kv in formats for overlap in (0.0, hidden) for network in ladder
    )


def networks(
    source: Source, options: ResolveOptions | None = None, *, on_row: Callable[[], None] = lambda: None
) -> Networks:
    """Solve a scenario under a ladder of networks.

    Overlap hides all but the last layer of a transfer: each layer is sent while the next one is computed.

    Parameters
    ----------
    source : Plan, Scenario, LoadedScenario, str or Path
        A path is that of a plan file or of a scenario.
    on_row : callable
        Told after each row.

    Returns
    -------
    Networks
        After an interrupt, what was found until then.

    Raises
    ------
    SpecError
        Several services, or a scenario that allows no hand-over.
    InfeasibleError
        If no network has a plan, and colocated serving has none either.
    """
    asked = asked_of(source)
    options = options or ResolveOptions()
    scenario = asked.loaded.scenario
    check(scenario)
    work = _Work(asked, Resolver(asked.loaded, options, capacity_factors(asked.plan)))
    rows: list[NetworkRow] = []
    colocated: dict[str, Resolved] = {}
    interrupted = False
    try:
        for variant in variants(scenario):
            if variant.kv_cache not in colocated and scenario.options.colocated is ColocatedUse.ALLOWED:
                colocated[variant.kv_cache] = work.colocated(variant.kv_cache)
            rows.append(work.row(variant, colocated.get(variant.kv_cache)))
            on_row()
    except KeyboardInterrupt:
        interrupted = True
    found = (*(row.result for row in rows), *colocated.values())
    if not interrupted and not any(result.feasible for result in found):
        work.resolver.plan()  # says why
        raise InfeasibleError("no network helps")
    return Networks(
        name=asked.name,
        objective=scenario.objective,
        points=tuple(rows),
        colocated=colocated,
        own_overlap=engine_of(scenario.services[0]).transfer.overlap,
        notes=(INTERRUPTED,) if interrupted else (),
        interrupted=interrupted,
    )


def check(scenario: Scenario) -> None:
    """There is one service, and it may be handed over.

    Raises
    ------
    SpecError
    """
    if len(scenario.services) > 1:
        raise SpecError(f"networks are looked at for one model, the scenario has {len(scenario.services)}")
    if scenario.options.colocated is ColocatedUse.ONLY:
        raise SpecError("options.colocated: is only, so nothing is handed over (allow or forbid it)")


def _is_fp8(service: Service) -> bool:
    return not service.choices and service.precision.kv_cache is Dtype.FP8


@dataclass(frozen=True, slots=True)
class _Work:
    """One question in the making."""

    asked: Asked
    resolver: Resolver

    @property
    def scenario(self) -> Scenario:
        return self.asked.loaded.scenario

    def colocated(self, kv_cache: str) -> Resolved:
        """The best plan without hand-overs."""
        self.resolver.options.on_stage(f"colocated, KV cache {kv_cache}")
        return self.resolver.resolve(_use(self._served(kv_cache, None), ColocatedUse.ONLY))

    def row(self, variant: Variant, colocated: Resolved | None) -> NetworkRow:
        self.resolver.options.on_stage(f"{variant.network.name}, KV cache {variant.kv_cache}")
        served = _use(self._served(variant.kv_cache, variant.overlap), ColocatedUse.FORBIDDEN)
        reason, best = "", None
        for scenario in self._fleets(served, variant.network):
            try:
                plan = self.resolver.plan(scenario)
            except InfeasibleError:
                reason = NO_FLEET
            except SolverError as error:
                reason = str(error).splitlines()[0]
            else:
                if best is None or (better_by(plan.objective, best[0].value, plan.value) or 0.0) > 0:
                    best = plan, scenario
        if best is None:
            where = (
                reason
                or f"{engine_of(served.services[0]).name} moves no KV cache over the links of this fleet"
            )
            return _without(variant, where)
        return _told(variant, *best, colocated)

    def _served(self, kv_cache: str, overlap: float | None) -> Scenario:
        """The scenario with a format of the KV cache, and with so much of its transfers hidden."""
        (service,) = self.scenario.services
        if kv_cache == FP8:
            precision = Precision.of(service.model, service.precision.weights, Dtype.FP8)
            service = replace(service, precision=precision, choices=())
        return changes.with_services(self.scenario, (replace(service, overlap=overlap),))

    def _fleets(self, scenario: Scenario, network: Network) -> Iterator[Scenario]:
        """The scenario with its fleet on a network; for the link within a node, one node of each line."""
        if network.bandwidth is not None:
            yield changes.on_network(scenario, network.bandwidth, rdma=network.rdma)
            return
        engine = engine_of(scenario.services[0])
        for item in scenario.fleet:
            if links_node(item, engine):
                yield replace(scenario, fleet=(within_node(item),))


def _use(scenario: Scenario, use: ColocatedUse) -> Scenario:
    return replace(scenario, options=replace(scenario.options, colocated=use))


def _without(variant: Variant, reason: str) -> NetworkRow:
    return NetworkRow(
        network=variant.network,
        overlap=variant.overlap,
        kv_cache=variant.kv_cache,
        exposed=None,
        exposed_long=None,
        ttft=None,
        link="",
        link_load=0.0,
        binds=False,
        pays=False,
        result=Resolved(reason=reason),
    )


def _told(variant: Variant, plan: Plan, scenario: Scenario, colocated: Resolved | None) -> NetworkRow:
    fleet = fleet_of(plan, scenario, scenario.services[0])
    mean, long = exposed_transfer(fleet)
    result = resolved_of(plan)
    pays = None
    if colocated is not None:
        gain = better_by(plan.objective, colocated.value, result.value)
        pays = colocated.value is None or (gain is not None and gain > 0)
    return NetworkRow(
        network=variant.network,
        overlap=variant.overlap,
        kv_cache=variant.kv_cache,
        exposed=mean,
        exposed_long=long,
        ttft=plan.predictions[0].ttft.expected,
        link=narrower_end(fleet),
        link_load=max(g.network_utilization for g in plan.groups),
        binds=any(g.binds is Binding.NETWORK for g in plan.groups),
        pays=pays,
        result=result,
    )


# --------------------------------------------------------------------------------------------
# Transfers of a fleet


def exposed_transfer(fleet: Fleet) -> tuple[float, float]:
    """Exposed time of a KV transfer: mean over prompts and pairs of groups, and that of a long prompt on the
    slowest pair. [s]"""
    total = mean = longest = 0.0
    for p, d in _pairs(fleet):
        service = fleet.service_of(p)
        traffic = Traffic.of_service(service)
        long = float(np.interp(_LONG, np.cumsum(traffic.isl_weights), traffic.isl))
        isl = np.append(traffic.isl, long)
        size = kv_bytes(service.model, service.precision.kv_cache, isl)
        layers = service.model.num_layers / p.parallelism.pp
        times = kv_transfer_time(isl, size, path_rate(fleet, p, d), layers, fleet.engine)
        mean += p.rate * d.rate * float(traffic.isl_weights @ times[:-1])
        total += p.rate * d.rate
        longest = max(longest, float(times[-1]))
    return (mean / total if total else math.nan), longest


def narrower_end(fleet: Fleet) -> str:
    """The group whose NICs end the rate of the slowest path, in words."""
    p, d = min(_pairs(fleet), key=lambda pair: path_rate(fleet, *pair))
    end = min(
        (d, p),
        key=lambda g: network_rate(g.item, fleet.engine) * g.parallelism.num_gpus / g.parallelism.dp,
    )
    return f"{end.phase} {end.item.gpu.name}"


def _pairs(fleet: Fleet) -> list[tuple[Deployed, Deployed]]:
    return [(p, d) for p in fleet.pool(Phase.PREFILL) for d in fleet.pool(Phase.DECODE)]
