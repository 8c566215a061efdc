"""What the latencies of replicas depend on: the key under which tables and curves are kept.

Scenarios that differ in prices, rates, SLOs, or stock beyond one replica have the same basis. What is kept is
the value of a pure function of it, so that keeping never changes a result, only when it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.specs import (
    Engine,
    FleetItem,
    Objective,
    Options,
    Phase,
    Precision,
    PriceClass,
    Scenario,
    Service,
)
from planner.traffic import timeless

FEW, MANY = 8, 256
"""Results kept of functions whose values take megabytes, and kilobytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Basis:
    """A scenario of one service without limits, at a rate of 1, and how its replicas are to be looked at.

    Attributes
    ----------
    z : float
        Normal quantile of the model error that is planned for.
    formats : tuple of (Precision, str)
        What replicas may have, and how their names tell them apart.
    """

    scenario: Scenario
    engine: Engine
    z: float
    formats: tuple[tuple[Precision, str], ...]

    @property
    def service(self) -> Service:
        (service,) = self.scenario.services
        return service

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        service: Service,
        engine: Engine,
        z: float,
        formats: tuple[tuple[Precision, str], ...],
    ) -> Basis:
        """Of one service of a scenario."""
        options = scenario.options
        bare = Scenario(
            services=(timeless(service),),
            fleet=tuple(_item(item, options.max_nodes_per_replica) for item in scenario.fleet),
            objective=Objective.COST,
            options=Options(
                routing=options.routing,
                max_tp=options.max_tp,
                max_pp=options.max_pp,
                max_nodes_per_replica=options.max_nodes_per_replica,
                allowed_tp=options.allowed_tp,
            ),
        )
        return cls(scenario=bare, engine=engine, z=z, formats=formats)


def _item(item: FleetItem, nodes: int) -> FleetItem:
    """A line without prices, and with stock and caps only where they are less than the largest replica."""
    largest = item.node_size * nodes
    caps: dict[Phase, int] = {phase: cap for phase, cap in item.max_gpus_by_phase.items() if cap < largest}
    return replace(
        item,
        price=None,
        owned=False,
        zone="",
        price_source="",
        price_class=PriceClass.ON_DEMAND,
        interruptions=0.0,
        max_gpus=None if item.max_gpus is None or item.max_gpus >= largest else item.max_gpus,
        max_gpus_by_phase=caps,
    )
