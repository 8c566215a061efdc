"""What is asked of one service, with the candidates that may answer it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.candidates import CandidateSet, ReplicaChoice
from planner.collectives import beneath
from planner.fleet import Deployed, Fleet
from planner.program import Solution
from planner.queueing import normal_quantile
from planner.specs import Engine, FleetItem, Objective, Scenario, Service, SpareScope
from planner.traffic import thinned_scv


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
    prompts : tuple of (low, high) or None
        Prompts of the scenario's service that it is asked for, ``low <= isl < high``; None: all. [tok]
    """

    scenario: Scenario
    document: Mapping[str, Any]
    service: Service
    engine: Engine
    candidates: CandidateSet
    asked: int = 0
    alone: bool = True
    prompts: tuple[float, float] | None = None

    @property
    def planned_z(self) -> float:
        """Normal quantile of the model error that is planned for."""
        return float(normal_quantile(self.scenario.options.confidence))

    @property
    def may_lose(self) -> bool:
        """Whether much of the fleet may be lost while the rest carries its load."""
        options = self.scenario.options
        return options.survive_node or options.survive_zone or options.on_demand_floor > 0

    def item(self, choice: ReplicaChoice) -> FleetItem:
        """The line of the fleet that `choice` takes its GPUs from, as its replicas lie on it."""
        return beneath(self.scenario.fleet[choice.item], choice.parallelism)

    def cells(self, solution: Solution, *, idle: bool = False) -> tuple[Cell, ...]:
        """The groups of `solution` by router: one, or one per zone where KV caches stay in theirs.

        `idle`: also those that get no requests, and stand by for the loss of another zone.
        """
        whole = self.served(solution)
        if solution.rate and self.scenario.objective is not Objective.THROUGHPUT:
            asked = solution.rate / (1 + self.scenario.options.headroom)
            whole = whole if math.isclose(asked, whole.workload.request_rate) else at_rate(whole, asked)
        zones: dict[str, list[int]] = {}
        for i in solution.used:
            zone = self.item(self.candidates.choices[i]).zone if self.scenario.egress_price is None else ""
            zones.setdefault(zone, []).append(i)
        used = {zone: members for zone, members in zones.items() if any(solution.flows[i] for i in members)}
        return tuple(
            Cell(
                name=", ".join([self.service.name, *([zone] if len(zones) > 1 else [])]),
                fleet=self._fleet(solution, members, whole),
                members=tuple(members),
            )
            for zone, members in (zones if idle else used).items()
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

    def at_worst(self, fleet: Fleet) -> Fleet:
        """A fleet without what it may lose and still has to hold: the spare replicas of every group or, where
        one group at a time may lose replicas, those of the group in each pool whose loss weighs most."""
        options = self.scenario.options
        every = options.spare_replicas if options.spare_scope is SpareScope.GROUP else 0
        lost = [every] * len(fleet.groups)
        one = [_lost_alone(self.scenario, g) for g in fleet.groups]
        for phase in {g.phase for g in fleet.groups}:
            weights = {
                k: g.rate * min(one[k] / g.replicas, 1.0)
                for k, g in enumerate(fleet.groups)
                if g.phase is phase
            }
            worst = max(weights, key=lambda k: weights[k])
            lost[worst] = max(lost[worst], one[worst])
        if not any(lost):
            return fleet
        left = [replace(g, replicas=g.replicas - k) for g, k in zip(fleet.groups, lost, strict=True)]
        return replace(fleet, groups=tuple(g for g in left if g.replicas > 0))

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


def _lost_alone(scenario: Scenario, group: Deployed) -> int:
    """Replicas that a group may lose while all others stand."""
    options = scenario.options
    lost = options.spare_replicas if options.spare_scope is SpareScope.POOL else 0
    if options.survive_node:
        lost = max(lost, group.item.node_size // group.parallelism.num_gpus, 1)
    return lost


def at_rate(service: Service, rate: float) -> Service:
    """`service` at one constant rate. [req/s]"""
    workload = service.workload
    periods = tuple(replace(p, request_rate=rate) for p in workload.periods)
    return replace(service, workload=replace(workload, periods=periods))


def part_of(service: Service, rate: float) -> Service:
    """A random part of the requests of `service`, at `rate` [req/s]."""
    workload = service.workload
    share = min(rate / workload.request_rate, 1.0) if workload.request_rate > 0 else 1.0
    scv = thinned_scv(workload.arrival_scv, share)
    thinner = replace(service, workload=replace(workload, arrival_scv=scv))
    return at_rate(thinner, rate)
