"""What a scenario costs when things are worse than asked, and when the fleet of its plan first breaks.

Plans are found by prediction alone; the fleet is judged by simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.evaluation import Standing, evaluate, setup_of, standing_plan
from planner.plan import Plan
from planner.queueing import normal_quantile
from planner.results import Result
from planner.specs import Objective, Phase
from planner.units import PERCENT
from planner.whatif import changes
from planner.whatif.asked import Asked, Source, asked_of
from planner.whatif.corrections import capacity_factors
from planner.whatif.resolve import Resolved, ResolveOptions, Resolver, resolved_of
from planner.whatif.values import INTERRUPTED, compared_with_note, kept_from_harder
from planner.whatif.words import UNITS, described

WORSE = (1.25, 1.5)  # times the load, and times the latency [1]
CONFIDENCES = (0.5, 0.8, 0.9, 0.95, 0.99)  # quantiles of the model error [1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stress:
    """A harder scenario, and what it comes to.

    Attributes
    ----------
    kind : str
        "load", "latency" or "confidence".
    level : float
        Multiple of the load or of every time, or the quantile of the model error. [1]
    asked : bool
        Whether this is the scenario as it is.
    """

    kind: str
    level: float
    result: Resolved
    asked: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetLimit:
    """The load at which a plan's fleet first breaks, by simulation.

    Attributes
    ----------
    confidence : float
        Quantile of the model error at which the fleet is simulated. [1]
    asked, carried : float
        The plan's rate, and the most that the fleet carries within its SLOs, to about 1 %. [req/s]
    breaks : tuple of Phase
        Pools that fail just above that.
    """

    confidence: float
    asked: float
    carried: float
    breaks: tuple[Phase, ...]

    @property
    def multiple(self) -> float:
        """`carried / asked`. [1]"""
        return self.carried / self.asked


@dataclass(frozen=True, kw_only=True, slots=True)
class Robustness(Result):
    """How a plan and its cost stand up to more load, slower replicas, and less trust in the model.

    Attributes
    ----------
    confidence : float
        That the scenario asks for. [1]
    stresses : tuple of Stress
        The scenario as it is first; a plan for a harder scenario of one kind also does for an easier one.
    fleet : str
        What was simulated, in words.
    limits : tuple of FleetLimit
        At the error planned for, and at expected latencies; empty where nothing was simulated.
    """

    name: str
    objective: Objective
    confidence: float
    base: Resolved
    stresses: tuple[Stress, ...]
    fleet: str
    limits: tuple[FleetLimit, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def unit(self) -> str:
        return UNITS[self.objective]

    def of(self, kind: str) -> tuple[Stress, ...]:
        """Stresses of one kind, mildest first."""
        return tuple(sorted((s for s in self.stresses if s.kind == kind), key=lambda s: s.level))


def robustness(source: Source, options: ResolveOptions | None = None, *, simulate: bool = True) -> Robustness:
    """Stress a scenario and the fleet of its plan.

    Parameters
    ----------
    source : Plan, Scenario, LoadedScenario, str or Path
        A path is that of a plan file or of a scenario; of a plan its own fleet is simulated.
    simulate : bool
        Whether to look for the load at which the fleet breaks.

    Returns
    -------
    Robustness
        After an interrupt, what was found until then.

    Raises
    ------
    SpecError
    InfeasibleError
        If no plan meets the scenario as it is.
    SolverError
    """
    asked = asked_of(source)
    options = options or ResolveOptions()
    resolver = Resolver(asked.loaded, options, capacity_factors(asked.plan))
    options.on_stage("solving the scenario")
    plan = resolver.plan()
    base = resolved_of(plan)
    scenario = asked.loaded.scenario
    stresses: list[Stress] = []
    limits: list[FleetLimit] = []
    notes = list(compared_with_note(asked, base))
    interrupted = False
    try:
        for kind in ("load", "latency", "confidence"):
            stresses.extend(_stressed(resolver, base, kind))
        if simulate:
            _break(asked, asked.plan or plan, options, limits, notes)
    except KeyboardInterrupt:
        interrupted = True
        notes.append(INTERRUPTED)
    return Robustness(
        name=asked.name,
        objective=scenario.objective,
        confidence=scenario.options.confidence,
        base=base,
        stresses=tuple(stresses),
        fleet=described((asked.plan or plan).groups),
        limits=tuple(limits),
        notes=tuple(notes),
        interrupted=interrupted,
    )


def _stressed(resolver: Resolver, base: Resolved, kind: str) -> list[Stress]:
    """The scenario at each level of one kind of stress."""
    scenario = resolver.loaded.scenario
    objective, own = scenario.objective, scenario.options.confidence
    levels = sorted({*CONFIDENCES, own}) if kind == "confidence" else [1.0, *WORSE]
    if kind == "load" and objective is Objective.THROUGHPUT:
        return []  # the load is what is looked for
    results = []
    for level in levels:
        resolver.options.on_stage(f"{kind} {level:g}")
        if (kind == "confidence" and level == own) or (kind != "confidence" and level == 1.0):
            results.append(base)
        elif kind == "confidence":
            results.append(resolver.resolve(changes.with_confidence(scenario, level)))
        elif kind == "load":
            results.append(resolver.resolve(changes.busier(scenario, level)))
        else:
            results.append(_slower(resolver, level))
    asked = own if kind == "confidence" else 1.0
    return [
        Stress(kind=kind, level=level, result=result, asked=level == asked)
        for level, result in zip(levels, kept_from_harder(objective, results), strict=True)
    ]


def _slower(resolver: Resolver, factor: float) -> Resolved:
    """The scenario with every time stretched; rates found in the stretched unit of time are turned back."""
    scenario = resolver.loaded.scenario
    result = resolver.resolve(changes.slower(scenario, factor))
    if scenario.objective is not Objective.THROUGHPUT or result.value is None:
        return result
    return replace(result, value=result.value / factor)


def _break(
    asked: Asked,
    plan: Plan,
    options: ResolveOptions,
    limits: list[FleetLimit],
    notes: list[str],
) -> None:
    """Simulate the plan's fleet at rising loads; what cannot be simulated is noted."""
    scenario = asked.loaded.scenario
    if len(scenario.services) > 1:
        notes.append("the fleet was not simulated: it has several services")
        return
    if not plan.scenario:
        notes.append("the fleet was not simulated: the scenario was not read from a file")
        return
    standing = standing_plan(plan, asked.folder, asked.name)
    if scenario.options.spare_replicas:
        standing = _without_spares(standing, scenario.options.spare_replicas)
        notes.append("simulated without the spare replicas of each group")
    for confidence in dict.fromkeys((scenario.options.confidence, 0.5)):
        options.on_stage(
            f"looking for the load at which the fleet breaks, at the {confidence * PERCENT:g} % quantile"
        )
        limits.append(_limit(standing, confidence, options))


def _limit(standing: Standing, confidence: float, options: ResolveOptions) -> FleetLimit:
    offered = standing.offered or standing.source.mean_rate
    setup = setup_of(standing, float(normal_quantile(confidence)))
    found = evaluate(standing, setup, offered=offered, on_stage=options.on_stage)
    return FleetLimit(confidence=confidence, asked=offered, carried=found.request_rate, breaks=found.breaks)


def _without_spares(standing: Standing, spare: int) -> Standing:
    groups = tuple(replace(g, replicas=max(g.replicas - spare, 1)) for g in standing.fleet.groups)
    return replace(standing, fleet=replace(standing.fleet, groups=groups))
