"""What moves a plan's cost most: one thing changed at a time, down and up, and the scenario solved again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from planner.errors import SpecError
from planner.results import Result
from planner.specs import ColocatedUse, Metric, Objective, Scenario
from planner.whatif import changes
from planner.whatif.asked import Source, asked_of
from planner.whatif.corrections import capacity_factors
from planner.whatif.resolve import Resolved, ResolveOptions, Resolver, resolved_of
from planner.whatif.values import INTERRUPTED, compared_with_note
from planner.whatif.words import UNITS

BY = 1.2  # times, and that part of it, that most things are changed by [1]
NETWORK_BY = 2.0  # the same of NICs [1]
TIMES_BY = 1.1  # the same of all predicted times: about one standard deviation of the model error [1]
MOST_PRICES = 4  # GPU types whose prices are changed, dearest part of the fleet's list first


@dataclass(frozen=True, kw_only=True, slots=True)
class Lever:
    """One thing that is changed.

    Attributes
    ----------
    factor : float
        It is divided by this, and multiplied. [1]
    low, high : Resolved
        The plans then.
    """

    what: str
    factor: float
    low: Resolved
    high: Resolved

    def swing(self, base: float) -> float:
        """Between the smallest and the largest value of the two and the plan's own; infinite where one of the
        changed scenarios has no plan."""
        values = [self.low.value, self.high.value]
        known = [base, *(v for v in values if v is not None)]
        return max(known) - min(known) if None not in values else float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity(Result):
    """A plan's value under changes, by prediction alone.

    Attributes
    ----------
    base : Resolved
        The scenario as it is, solved the same way.
    levers : tuple of Lever
        By swing, largest first.
    """

    name: str
    objective: Objective
    base: Resolved
    levers: tuple[Lever, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def unit(self) -> str:
        return UNITS[self.objective]

    def rows(self) -> tuple[dict[str, Any], ...]:
        """The levers as flat rows."""
        base = self.base.value or 0.0
        return tuple(
            {
                "what": lever.what,
                "low": 1.0 / lever.factor,
                "high": lever.factor,
                "value_low": lever.low.value,
                "value_high": lever.high.value,
                "objective": self.objective.value,
                "unit": self.unit,
                "swing": lever.swing(base),
                "fleet_low": lever.low.description or lever.low.reason,
                "fleet_high": lever.high.description or lever.high.reason,
            }
            for lever in self.levers
        )


@dataclass(frozen=True, slots=True)
class Knob:
    """Something to change, before it is."""

    what: str
    factor: float
    changed: Callable[[Scenario, float], Scenario] = field(repr=False)


def knobs(scenario: Scenario) -> tuple[Knob, ...]:
    """What can be changed of a scenario."""
    return tuple(_knobs(scenario))


def _knobs(scenario: Scenario) -> Iterator[Knob]:
    if scenario.objective is not Objective.THROUGHPUT:  # whose value is the rate
        yield Knob("request rate", BY, changes.busier)
    yield Knob("prompt length", BY, changes.longer_prompts)
    yield Knob("answer length", BY, changes.longer_answers)
    for metric in (Metric.TTFT, Metric.TPOT):
        if any(service.slo.of(metric) for service in scenario.services):
            yield Knob(f"{metric.upper()} limit", BY, _looser(metric))
    if scenario.objective is Objective.COST:
        priced = {i.gpu.name for i in scenario.fleet if i.price and not i.owned}
        for gpu in list(dict.fromkeys(i.gpu.name for i in scenario.fleet if i.gpu.name in priced))[
            :MOST_PRICES
        ]:
            yield Knob(f"price of {gpu}", BY, _price(gpu))
    if scenario.options.colocated is not ColocatedUse.ONLY:
        yield Knob("network bandwidth", NETWORK_BY, changes.faster_network)
    yield Knob("all predicted times", TIMES_BY, changes.slower)


def _looser(metric: Metric) -> Callable[[Scenario, float], Scenario]:
    return lambda scenario, factor: changes.looser(scenario, metric, factor)


def _price(gpu: str) -> Callable[[Scenario, float], Scenario]:
    return lambda scenario, factor: changes.other_prices(scenario, gpu, factor)


def solves(scenario: Scenario) -> int:
    """Programs that :func:`sensitivity` solves."""
    return 1 + 2 * len(knobs(scenario))


def sensitivity(
    source: Source,
    *,
    options: ResolveOptions | None = None,
    on_solve: Callable[[], None] = lambda: None,
) -> Sensitivity:
    """Solve a scenario again with each of :func:`knobs` down and up.

    Returns
    -------
    Sensitivity
        After an interrupt, the levers that were done until then.

    Raises
    ------
    SpecError
        If the file breaks a rule.
    InfeasibleError
        If the scenario itself has no plan.
    SolverError
        If the solver failed or ran out of time before it had one.
    """
    asked = asked_of(source)
    options = options or ResolveOptions()
    resolver = Resolver(asked.loaded, options, capacity_factors(asked.plan))
    scenario = asked.loaded.scenario
    options.on_stage("solving the scenario")
    base = resolved_of(resolver.plan())
    on_solve()
    levers: list[Lever] = []
    interrupted = False
    try:
        for knob in knobs(scenario):
            ends = []
            for factor in (1.0 / knob.factor, knob.factor):
                options.on_stage(f"{knob.what} x {factor:.3g}")
                ends.append(_resolved(resolver, knob.changed, factor))
                on_solve()
            levers.append(Lever(what=knob.what, factor=knob.factor, low=ends[0], high=ends[1]))
    except KeyboardInterrupt:
        interrupted = True
    value = base.value or 0.0
    return Sensitivity(
        name=asked.name,
        objective=scenario.objective,
        base=base,
        levers=tuple(sorted(levers, key=lambda lever: -lever.swing(value))),
        notes=(*compared_with_note(asked, base), *((INTERRUPTED,) if interrupted else ())),
        interrupted=interrupted,
    )


def _resolved(resolver: Resolver, changed: Callable[[Scenario, float], Scenario], factor: float) -> Resolved:
    """A changed scenario's plan; one that breaks a rule has none."""
    scenario = changed(resolver.loaded.scenario, factor)
    for service in scenario.services:
        longest, most = service.workload.lengths.longest, service.model.max_context
        if longest > most:
            return Resolved(reason=f"{longest:,.0f} tokens exceed the {most:,} that {service.name} takes")
    try:
        return resolver.resolve(scenario)
    except SpecError as error:
        return Resolved(reason=str(error).splitlines()[0])
