"""What is asked of one service, with the candidates that may answer it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from planner.candidates import CandidateSet, ReplicaChoice
from planner.fleet import Deployed, Fleet
from planner.program import Solution
from planner.queueing import normal_quantile
from planner.specs import Engine, FleetItem, Objective, Scenario, Service


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """A scenario's service, its engine and its candidates; `document` is the scenario as read."""

    scenario: Scenario
    document: Mapping[str, Any]
    service: Service
    engine: Engine
    candidates: CandidateSet

    @property
    def planned_z(self) -> float:
        """Normal quantile of the model error that is planned for."""
        return float(normal_quantile(self.scenario.options.confidence))

    def item(self, choice: ReplicaChoice) -> FleetItem:
        """The line of the fleet that `choice` takes its GPUs from."""
        return self.scenario.fleet[choice.item]

    def fleet(self, solution: Solution) -> Fleet:
        """The groups of `solution` as they stand behind the router."""
        return Fleet(
            service=self.served(solution),
            engine=self.engine,
            groups=tuple(self._deployed(i, solution) for i in solution.used),
            routing=self.scenario.options.routing,
        )

    def without_spares(self, fleet: Fleet) -> Fleet:
        """A fleet without the spare replicas of each group: what must hold when these are lost."""
        spare = self.scenario.options.spare_replicas
        if spare == 0:
            return fleet
        groups = tuple(replace(g, replicas=max(g.replicas - spare, 1)) for g in fleet.groups)
        return replace(fleet, groups=groups)

    def served(self, solution: Solution) -> Service:
        """The service at the rate that the plan carries; differs from the asked only for throughput."""
        workload = self.service.workload
        if self.scenario.objective is not Objective.THROUGHPUT:
            return self.service
        rate = solution.rate / (1 + self.scenario.options.headroom)
        periods = tuple(replace(p, request_rate=rate) for p in workload.periods)
        return replace(self.service, workload=replace(workload, periods=periods))

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
