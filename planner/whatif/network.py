"""The same scenario under other networks: what KV transfers cost, and whether handing over still pays.

Every row is the best disaggregated plan under one network, with KV transfers hidden or not and with the KV
cache as asked for or in fp8. All NICs of the fleet are changed alike. Colocated plans need no network between
replicas; the best of them is what handing over has to beat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from planner.collectives import links_node, within_node
from planner.engines import engine_of
from planner.errors import InfeasibleError, SolverError, SpecError
from planner.plan import Binding, Plan
from planner.specs import ColocatedUse, Dtype, Precision, Scenario, Service
from planner.whatif import changes
from planner.whatif.asked import Asked, Source, asked_of
from planner.whatif.corrections import capacity_factors
from planner.whatif.network_rows import (
    AS_ASKED,
    FP8,
    LADDER,
    Network,
    NetworkRow,
    Networks,
    exposed_transfer,
    narrower_end,
)
from planner.whatif.resolve import NO_FLEET, Resolved, ResolveOptions, Resolver, resolved_of
from planner.whatif.tier_specs import fleet_of
from planner.whatif.values import INTERRUPTED, better_by


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
