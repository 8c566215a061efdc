"""Solve a scenario again and again, each time a little changed; the one door to the search.

Candidates depend on the fleet's stock only in how many replicas there may be. They are built once for a
fleet without stock or caps, kept, and cut down to what each question allows; only a change of latency,
traffic, network or layouts builds anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.assembly import INTERRUPTED
from planner.candidates import (
    CandidateSet,
    Rejection,
    ReplicaChoice,
    build_candidates,
    replicas_in_stock,
)
from planner.documents.scenario import LoadedScenario
from planner.engines import engine_of
from planner.errors import InfeasibleError, SolverError
from planner.plan import Group, Plan, PlanStatus
from planner.program import Candidate
from planner.search import SolveOptions
from planner.specs import ColocatedUse, Engine, FleetItem, Objective, Phase, Scenario, Service
from planner.whatif.words import described
from planner.workflow import solve

FINE_GAP = 1e-4
"""Distance from the proven bound at which a re-solve may stop: differences of plans are what is asked. [1]"""
MOST_KEPT = 64  # candidate sets
NO_FLEET = "no fleet meets the scenario then"


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolveOptions:
    """How to solve again.

    Attributes
    ----------
    gap : float
        Relative distance from the proven bound at which a search may stop. [1]
    time_limit : float or None
        Of one program. [s]
    on_stage : callable
        Told what is being done.
    """

    solver: str = "highs"
    gap: float = FINE_GAP
    time_limit: float | None = 60.0
    on_stage: Callable[[str], None] = lambda _stage: None


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """What a changed scenario comes to.

    Attributes
    ----------
    value : float or None
        Of the objective [USD/h, GPUs, W or req/s]; None: there is no plan, and `reason` says why.
    cost : float or None
        Of everything paid for; None where a price is unknown, or where there is no plan. [USD/h]
    description : str
        The groups in words.
    proven : bool
        Whether the plan is proven within the gap, or nothing within it was found in the time given.
    """

    value: float | None = None
    cost: float | None = None
    description: str = ""
    groups: tuple[Group, ...] | None = None
    reason: str = ""
    proven: bool = True

    @property
    def feasible(self) -> bool:
        return self.value is not None


def resolved_of(plan: Plan) -> Resolved:
    """A plan as the answer to its scenario."""
    return Resolved(
        value=plan.value,
        cost=plan.cost,
        description=described(plan.groups),
        groups=plan.groups,
        proven=plan.status is PlanStatus.OPTIMAL,
    )


def table_of(result: Resolved) -> dict[str, Any]:
    """One plan, or why there is none, as columns of a table."""
    return {
        "value": result.value,
        "usd_per_hour": result.cost,
        "feasible": result.feasible,
        "fleet": result.description,
        "reason": result.reason,
    }


def resolve(loaded: LoadedScenario, scenario: Scenario, options: ResolveOptions | None = None) -> Resolved:
    """Solve `scenario`, a changed form of the one that was loaded. See :class:`Resolver` for many."""
    return Resolver(loaded, options or ResolveOptions()).resolve(scenario)


@dataclass(slots=True)
class Resolver:
    """Solves changed forms of one scenario, and keeps the candidates that they share.

    Attributes
    ----------
    factors : mapping
        On the capacity of replicas, by "phase GPU layout", as a simulated plan learned them. [1]
    """

    loaded: LoadedScenario
    options: ResolveOptions = field(default_factory=ResolveOptions)
    factors: Mapping[str, float] = field(default_factory=dict)
    _kept: list[tuple[Scenario, CandidateSet]] = field(default_factory=list)

    def plan(self, scenario: Scenario | None = None) -> Plan:
        """The plan of the scenario as it is, or of a changed one.

        Raises
        ------
        InfeasibleError
            Of the scenario as it is, with what binds and what would help.
        SolverError
        """
        return self._solved(scenario or self.loaded.scenario, explain=scenario is None)

    def resolve(self, scenario: Scenario) -> Resolved:
        """The plan of `scenario`, or why there is none.

        Raises
        ------
        KeyboardInterrupt
            If the user stopped the search.
        """
        try:
            return resolved_of(self._solved(scenario, explain=False))
        except InfeasibleError:
            return Resolved(reason=NO_FLEET)
        except SolverError as error:
            return Resolved(reason=str(error).splitlines()[0], proven=False)

    def _solved(self, scenario: Scenario, *, explain: bool) -> Plan:
        options = SolveOptions(
            solver=self.options.solver,
            time_limit=self.options.time_limit,
            gap=self.options.gap,
            alternatives=False,
            verify=False,
            build=self._candidates,
            explain=explain,
        )
        plan = solve(replace(self.loaded, scenario=scenario), options)
        if INTERRUPTED in plan.notes:
            raise KeyboardInterrupt
        return plan

    def rejections(self) -> tuple[Rejection, ...]:
        """Why replicas of the scenario's fleet cannot serve, its stock and caps apart."""
        scenario = self.loaded.scenario
        return tuple(
            rejection
            for service in scenario.services
            for rejection in self._built(scenario, service, engine_of(service)).rejections
        )

    def serves(self, item: int, phase: Phase) -> bool:
        """Whether a replica of this line of the fleet may serve in a pool, its stock and caps apart."""
        scenario = self.loaded.scenario
        return any(
            choice.item == item and choice.phase is phase
            for service in scenario.services
            for choice in self._built(scenario, service, engine_of(service)).choices
        )

    def choices(self, phase: Phase) -> tuple[ReplicaChoice, ...]:
        """Replicas of a phase that may serve the scenario's first service, its stock and caps apart."""
        scenario = self.loaded.scenario
        service = scenario.services[0]
        built = self._built(scenario, service, engine_of(service))
        return tuple(choice for choice in built.choices if choice.phase is phase)

    # ---------------------------------------------------------------------------------------
    # Candidates

    def _candidates(self, scenario: Scenario, service: Service, engine: Engine) -> CandidateSet:
        """What :func:`build_candidates` gives, from what is kept, with the factors on capacities."""
        built = self._built(scenario, service, engine)
        pairs = zip(built.candidates, built.choices, strict=True)
        cut = []
        for candidate, choice in pairs:
            item = scenario.fleet[choice.item]
            key = f"{choice.phase} {item.gpu.name} {choice.parallelism}"
            factor = self.factors.get(f"{service.name} {key}", self.factors.get(key, 1.0))
            cut.append(_cut(candidate, replicas_in_stock(item, choice), factor))
        return replace(built, candidates=tuple(cut))

    def _built(self, scenario: Scenario, service: Service, engine: Engine) -> CandidateSet:
        """Candidates without regard to stock and caps, of every kind that the scenario may use."""
        wanted = _roomy(scenario, service)
        both = replace(wanted, options=replace(wanted.options, colocated=ColocatedUse.ALLOWED))
        for kept, built in self._kept:
            if kept in (wanted, both):
                return built
        self.options.on_stage("evaluating candidates")
        built = build_candidates(wanted, service, engine)
        self._kept.append((wanted, built))
        del self._kept[1:-MOST_KEPT]  # the first is of the scenario as it is
        return built


def _roomy(scenario: Scenario, service: Service) -> Scenario:
    """What the candidates of one service depend on, but for their number.

    The largest rate has no demand that bounds a group, so there its stock has to.
    """
    options = replace(scenario.options, whole_nodes=True)
    fleet = scenario.fleet
    if scenario.objective is not Objective.THROUGHPUT:
        fleet = tuple(_unlimited(item) for item in fleet)
    return replace(scenario, services=(service,), fleet=fleet, options=options, budget=None, source="")


def _unlimited(item: FleetItem) -> FleetItem:
    return replace(item, max_gpus=None, max_gpus_by_phase={})


def _cut(candidate: Candidate, stock: int, factor: float) -> Candidate:
    """A candidate with no more replicas than there is stock for, its capacity times `factor`.

    Where capacity falls, the demand can use more replicas.
    """
    most = candidate.max_replicas
    if factor == 1.0:
        return replace(candidate, max_replicas=min(most, stock))
    rates = tuple(factor * rate for rate in candidate.curve.per_replica)
    most = math.ceil(most / factor) if 0 < factor < 1 else most
    return replace(
        candidate, curve=replace(candidate.curve, per_replica=rates), max_replicas=min(most, stock)
    )
