"""What is asked of one service, with the candidates that may answer it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.candidates import CandidateSet, ReplicaChoice
from planner.fleet import Deployed, Fleet
from planner.program import Solution
from planner.queueing import normal_quantile
from planner.specs import Engine, FleetItem, Objective, Scenario, Service, SpareScope


@dataclass(frozen=True, slots=True)
class Cell:
    """Groups behind one router, with their candidates; named where a plan has several."""

    name: str
    fleet: Fleet
    members: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A service of a scenario, its engine and its candidates; `document` is the scenario as read.

    Attributes
    ----------
    asked : int
        Index of the scenario's service that this is, or is a part of.
    alone : bool
        Whether a plan answers nothing else.
    """

    scenario: Scenario
    document: Mapping[str, Any]
    service: Service
    engine: Engine
    candidates: CandidateSet
    asked: int = 0
    alone: bool = True

    @property
    def planned_z(self) -> float:
        """Normal quantile of the model error that is planned for."""
        return float(normal_quantile(self.scenario.options.confidence))

    def item(self, choice: ReplicaChoice) -> FleetItem:
        """The line of the fleet that `choice` takes its GPUs from."""
        return self.scenario.fleet[choice.item]

    def cells(self, solution: Solution) -> tuple[Cell, ...]:
        """The groups of `solution` by router: one, or one per zone where KV caches stay in theirs."""
        whole = self.served(solution)
        zones: dict[str, list[int]] = {}
        for i in solution.used:
            zone = self.item(self.candidates.choices[i]).zone if self.scenario.egress_price is None else ""
            zones.setdefault(zone, []).append(i)
        return tuple(
            Cell(
                name=", ".join([self.service.name, *([zone] if len(zones) > 1 else [])]),
                fleet=self._fleet(solution, members, whole),
                members=tuple(members),
            )
            for zone, members in zones.items()
        )

    def _fleet(self, solution: Solution, members: Sequence[int], whole: Service) -> Fleet:
        groups = tuple(self._deployed(i, solution) for i in members)
        first = groups[0].phase
        rate = sum(g.rate for g in groups if g.phase is first)
        service = whole if len(members) == len(solution.used) else part_of(whole, rate)
        return Fleet(
            service=service, engine=self.engine, groups=groups, routing=self.scenario.options.routing
        )

    def fleet(self, solution: Solution) -> Fleet:
        """The groups of `solution` as they stand behind their only router."""
        (cell,) = self.cells(solution)
        return cell.fleet

    def without_spares(self, fleet: Fleet) -> Fleet:
        """A fleet without what may be lost: the spare replicas of each group or, where they are spares of a
        pool, of the group whose replicas carry most."""
        options = self.scenario.options
        spare = options.spare_replicas
        if spare == 0:
            return fleet
        down = set(range(len(fleet.groups)))
        if options.spare_scope is SpareScope.POOL:
            by_load = sorted(down, key=lambda k: fleet.groups[k].rate / fleet.groups[k].replicas)
            down = set({fleet.groups[k].phase: k for k in by_load}.values())
        groups = tuple(
            replace(g, replicas=max(g.replicas - spare, 1)) if k in down else g
            for k, g in enumerate(fleet.groups)
        )
        return replace(fleet, groups=groups)

    def served(self, solution: Solution) -> Service:
        """The service at the rate that the plan carries; differs from the asked only for throughput."""
        if self.scenario.objective is not Objective.THROUGHPUT:
            return self.service
        return at_rate(self.service, solution.rate / (1 + self.scenario.options.headroom))

    def _deployed(self, index: int, solution: Solution) -> Deployed:
        choice = self.candidates.choices[index]
        headroom = 1 + self.scenario.options.headroom
        return Deployed(
            phase=choice.phase,
            item=self.item(choice),
            parallelism=choice.parallelism,
            replicas=solution.replicas[index],
            rate=solution.flows[index] / headroom,
            token_budget=choice.token_budget,
            kv_tokens=choice.kv_tokens,
            max_num_seqs=choice.max_num_seqs,
            precision=choice.precision,
        )


def at_rate(service: Service, rate: float) -> Service:
    """`service` at one constant rate. [req/s]"""
    workload = service.workload
    periods = tuple(replace(p, request_rate=rate) for p in workload.periods)
    return replace(service, workload=replace(workload, periods=periods))


def part_of(service: Service, rate: float) -> Service:
    """A random part of the requests of `service`, at `rate` [req/s].

    A share q of a renewal stream has a squared coefficient of variation of ``1 + q (c^2 - 1)``.
    """
    workload = service.workload
    share = min(rate / workload.request_rate, 1.0) if workload.request_rate > 0 else 1.0
    scv = 1 + share * (workload.arrival_scv - 1)
    thinner = replace(service, workload=replace(workload, arrival_scv=scv))
    return at_rate(thinner, rate)
