"""Why a plan is what it is: what binds, what a little more of anything is worth, why other GPUs lost.

Each figure is the difference between two plans: that of the scenario, and that of the scenario with one
thing changed, both found by prediction alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from planner.assembly import speculation_note
from planner.documents.scenario import LoadedScenario
from planner.infeasibility import rejection_reasons
from planner.plan import Group, Plan
from planner.results import Result
from planner.specs import (
    ColocatedUse,
    FleetItem,
    Metric,
    Objective,
    Options,
    Phase,
    Scenario,
)
from planner.units import KILO, MILLI, PERCENT
from planner.whatif import changes
from planner.whatif.asked import Asked, Source, asked_of
from planner.whatif.corrections import capacity_factors
from planner.whatif.resolve import Resolved, ResolveOptions, Resolver, resolved_of
from planner.whatif.values import INTERRUPTED, better_by, compared_with_note
from planner.whatif.words import UNITS, count, item_name, of_service

RELAXED = 10.0  # times an SLO's limit, or the network, that stands for lifting it [1]
MORE = 1.1  # times an SLO's limit, the network or the budget, for a marginal value [1]
MORE_STOCK = 2  # times the stock or budget, where a rate without either would have no end
SURE = 2.0  # times the gap of the programs, from which two values differ [1]


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """One thing changed, and what the plan comes to then.

    Attributes
    ----------
    kind : str
        "stock", "cap", "budget", "zones", "power", "egress", "slo", "network", "minimum", "spare", "survive",
        "spot", "surge", "whole_nodes", "headroom", "confidence", "colocated", "layouts".
    subject : str
        GPU type, SLO or option that is changed.
    change : str
        In words, e.g. "8 -> 16 GPUs".
    after : Resolved
        Never worse than before: the plan at hand still meets a scenario that asks less.
    saving : float or None
        By which the value gets better [USD/h, GPUs, W or req/s]; None where there is no plan to compare with.
    saving_cost : float or None
        By which the cost falls. [USD/h]
    binds : bool
        Whether the saving is more than what the gap of the programs leaves open.
    """

    kind: str
    subject: str
    change: str
    after: Resolved
    saving: float | None
    saving_cost: float | None
    binds: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Forced:
    """The best plan in which one GPU type serves all of one pool."""

    phase: Phase
    result: Resolved


@dataclass(frozen=True, kw_only=True, slots=True)
class UnusedGpu:
    """A GPU type that the plan has none of, and why.

    Attributes
    ----------
    forced : tuple of Forced
        By pool, where the type can serve at all.
    best : Forced or None
        The best of these; None where there is no such plan, and `reasons` say why.
    extra : float or None
        By which its value is worse than the plan's. [USD/h, GPUs, W or req/s]
    """

    gpu: str
    zone: str
    forced: tuple[Forced, ...]
    best: Forced | None
    extra: float | None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation(Result):
    """What decides a plan.

    Attributes
    ----------
    base : Resolved
        The plan that all is compared with: by prediction alone, with the capacities that simulation
        corrected where a plan has them.
    groups : tuple of Group
        Of the plan that was asked about; each says what binds it.
    requirements : tuple of WhatIf
        Every requirement lifted alone, those that bind and those that do not.
    marginal : tuple of WhatIf
        A little more of everything.
    """

    name: str
    objective: Objective
    base: Resolved
    groups: tuple[Group, ...]
    requirements: tuple[WhatIf, ...]
    marginal: tuple[WhatIf, ...]
    unused: tuple[UnusedGpu, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def binding(self) -> tuple[WhatIf, ...]:
        """Requirements that cost something, dearest first."""
        found = [w for w in self.requirements if w.binds]
        return tuple(sorted(found, key=lambda w: -(w.saving or 0.0)))

    @property
    def unit(self) -> str:
        return UNITS[self.objective]


@dataclass(frozen=True, slots=True)
class Question:
    """One changed scenario to solve."""

    kind: str
    subject: str
    change: str
    scenario: Scenario


def explain(source: Source, options: ResolveOptions | None = None) -> Explanation:
    """What decides the plan of a scenario.

    Parameters
    ----------
    source : Plan, Scenario, LoadedScenario, str or Path
        A path is that of a plan file or of a scenario.

    Returns
    -------
    Explanation
        After an interrupt, what was found until then.

    Raises
    ------
    SpecError
        If the file breaks a rule.
    InfeasibleError
        If no plan meets the scenario.
    SolverError
        If the solver failed or ran out of time before it had a plan.
    """
    asked = asked_of(source)
    options = options or ResolveOptions()
    resolver = Resolver(asked.loaded, options, capacity_factors(asked.plan))
    options.on_stage("solving the scenario")
    plan = resolver.plan()
    work = _Work(asked, resolver, resolved_of(plan), asked.plan or plan)
    return work.explanation()


@dataclass(frozen=True, slots=True)
class _Work:
    """One explanation in the making."""

    asked: Asked
    resolver: Resolver
    base: Resolved
    plan: Plan

    @property
    def loaded(self) -> LoadedScenario:
        return self.asked.loaded

    @property
    def objective(self) -> Objective:
        return self.loaded.scenario.objective

    def explanation(self) -> Explanation:
        """All parts; an interrupt leaves out what was not reached."""
        scenario = self.loaded.scenario
        requirements: list[WhatIf] = []
        marginal: list[WhatIf] = []
        unused: list[UnusedGpu] = []
        interrupted = False
        try:
            requirements.extend(map(self._answered, lifted(scenario)))
            marginal.extend(map(self._answered, a_little_more(scenario)))
            unused.extend(self._unused())
        except KeyboardInterrupt:
            interrupted = True
        return Explanation(
            name=self.asked.name,
            objective=self.objective,
            base=self.base,
            groups=self.plan.groups,
            requirements=tuple(requirements),
            marginal=tuple(marginal),
            unused=tuple(unused),
            notes=(*self._notes(), *((INTERRUPTED,) if interrupted else ())),
            interrupted=interrupted,
        )

    def _answered(self, question: Question) -> WhatIf:
        """The plan of a scenario that asks less, or has more, than the one at hand."""
        self.resolver.options.on_stage(f"{question.subject}: {question.change}")
        after = self.resolver.resolve(question.scenario)
        saving = better_by(self.objective, self.base.value, after.value)
        if saving is None or saving < 0:  # the plan at hand is still one
            after, saving = self.base, 0.0
        costs = self.base.cost, after.cost
        return WhatIf(
            kind=question.kind,
            subject=question.subject,
            change=question.change,
            after=after,
            saving=saving,
            saving_cost=None if None in costs else float(costs[0] or 0.0) - float(costs[1] or 0.0),
            binds=saving > self._unsure,
        )

    @property
    def _unsure(self) -> float:
        """Difference of values that the gap of the programs leaves open."""
        return SURE * self.resolver.options.gap * abs(self.base.value or 0.0) + 1e-9

    def _unused(self) -> Iterator[UnusedGpu]:
        """GPU types of one model's plan; a pool of several models has no single owner to force them on."""
        if len(self.loaded.scenario.services) > 1:
            return
        used = {(g.gpu, g.zone, g.price_class) for g in self.plan.groups}
        for index, item in enumerate(self.loaded.scenario.fleet):
            if (item.gpu.name, item.zone, item.price_class) not in used:
                yield self._lost(index, item)

    def _lost(self, index: int, item: FleetItem) -> UnusedGpu:
        scenario = self.loaded.scenario
        self.resolver.options.on_stage(f"{item_name(item)} in use")
        forced = tuple(
            Forced(phase=phase, result=self.resolver.resolve(asked))
            for phase in changes.POOLS
            if (asked := changes.all_of_pool(scenario, index, phase)) is not None
            and self.resolver.serves(index, phase)
        )
        plans = [f for f in forced if f.result.value is not None]
        sign = -1.0 if self.objective is Objective.THROUGHPUT else 1.0
        best = min(plans, key=lambda f: sign * float(f.result.value or 0.0), default=None)
        lead = None if best is None else better_by(self.objective, best.result.value, self.base.value)
        return UnusedGpu(
            gpu=item.gpu.name,
            zone=item.zone,
            forced=forced,
            best=best,
            extra=None if lead is None else max(lead, 0.0),
            reasons=() if best is not None else self._reasons(item, forced),
        )

    def _reasons(self, item: FleetItem, forced: tuple[Forced, ...]) -> tuple[str, ...]:
        """Why no plan has a pool of this type."""
        if item.max_gpus == 0:
            return ("max_gpus is 0",)
        rejected = rejection_reasons(r for r in self.resolver.rejections() if r.gpu == item.gpu.name)
        without = {f.phase for f in forced}
        asked = {p for p in changes.POOLS if self._has_pool(p)} - without
        told = tuple(r for r in rejected if any(f", {p}: " in r for p in asked))
        return (*told, *(f"all of {f.phase} on it: {f.result.reason}" for f in forced))

    def _has_pool(self, phase: Phase) -> bool:
        return changes.all_of_pool(self.loaded.scenario, 0, phase) is not None

    def _notes(self) -> Iterator[str]:
        yield from compared_with_note(self.asked, self.base)
        services = self.loaded.scenario.services
        for service in services:
            if service.speculation is not None:
                yield speculation_note(service, len(services) == 1)
        if len(self.loaded.scenario.services) > 1:
            yield "why GPU types are not used is told of scenarios with one model"
        if not self.base.proven:
            yield "the plan compared with is not proven to be the best: time ran out"


# --------------------------------------------------------------------------------------------
# Questions


def lifted(scenario: Scenario) -> Iterator[Question]:
    """Each requirement of a scenario lifted alone."""
    endless = scenario.objective is Objective.THROUGHPUT
    for index, item in enumerate(scenario.fleet):
        yield from _lifted_stock(scenario, index, item, endless)
    if scenario.budget is not None:
        most = scenario.budget * MORE_STOCK if endless else None
        change = f"{scenario.budget:g} -> {'none' if most is None else f'{most:g}'} USD/h"
        yield Question("budget", "budget", change, replace(scenario, budget=most))
    if scenario.zones:
        caps = ", ".join(f"{zone} {cap}" for zone, cap in scenario.zones.items())
        yield Question("zones", "zones", f"{caps} -> any number of GPUs", replace(scenario, zones={}))
    if scenario.power is not None and scenario.power.cap is not None:
        free = replace(scenario, power=replace(scenario.power, cap=None))
        yield Question("power", "max_kw", f"{scenario.power.cap / KILO:g} -> none", free)
    if scenario.egress_price:
        yield Question("egress", "egress_per_gb", "-> 0", replace(scenario, egress_price=0.0))
    for i, service in enumerate(scenario.services):
        for target in service.slo.targets:
            subject = of_service(f"{target.statistic} {target.metric.upper()}", service, scenario.services)
            limit = target.limit / MILLI
            asked = changes.looser_target(scenario, i, target, RELAXED)
            yield Question("slo", subject, f"{limit:g} -> {limit * RELAXED:g} ms", asked)
    if scenario.options.colocated is not ColocatedUse.ONLY:
        asked = changes.faster_network(scenario, RELAXED)
        yield Question("network", "network", f"{RELAXED:g} times as fast", asked)
    yield from _lifted_options(scenario)


def _lifted_stock(scenario: Scenario, index: int, item: FleetItem, endless: bool) -> Iterator[Question]:
    name = item_name(item)
    if item.max_gpus is not None:
        more = max(MORE_STOCK * item.max_gpus, item.node_size) if endless else None
        change = f"{item.max_gpus} -> {'any number of' if more is None else more} GPUs"
        yield Question("stock", f"stock of {name}", change, changes.with_stock(scenario, index, more))
    for phase, cap in item.max_gpus_by_phase.items():
        asked = changes.without_cap(scenario, index, phase)
        yield Question("cap", f"{phase} cap of {name}", f"{cap} GPUs -> none", asked)


def _lifted_options(scenario: Scenario) -> Iterator[Question]:
    free = Options()
    given = scenario.options
    options: tuple[tuple[str, str, str, Options], ...] = (
        ("minimum", "min_replicas_per_pool", "1", replace(given, min_replicas_per_pool=1)),
        ("spare", "spare_replicas", "0", replace(given, spare_replicas=0)),
        ("survive", "survive_node", "false", replace(given, survive_node=False)),
        ("survive", "survive_zone", "false", replace(given, survive_zone=False)),
        ("spot", "on_demand_floor", "0", replace(given, on_demand_floor=0.0)),
        ("surge", "surge_replicas", "0", replace(given, surge_replicas=0)),
        ("whole_nodes", "whole_nodes", "false", replace(given, whole_nodes=False)),
        ("headroom", "headroom", "0", replace(given, headroom=0.0)),
        ("confidence", "confidence", "0.5", replace(given, confidence=min(given.confidence, 0.5))),
        ("colocated", "colocated", "allowed", replace(given, colocated=ColocatedUse.ALLOWED)),
        ("layouts", "max_tp", "none", replace(given, max_tp=None)),
        ("layouts", "max_pp", str(free.max_pp), replace(given, max_pp=max(given.max_pp, free.max_pp))),
        ("layouts", "allowed_tp", "any", replace(given, allowed_tp=None)),
    )
    for kind, name, after, changed in options:
        if changed != given:
            change = f"{_option(getattr(given, name))} -> {after}"
            said = _KEYS.get(name, name)
            yield Question(kind, said, change, replace(scenario, options=changed))


_KEYS = {
    "survive_node": "survive: [node]",
    "survive_zone": "survive: [zone]",
    "surge_replicas": "rolling_upgrade_surge",
}
"""Options whose keys in a scenario have other names."""


def _option(value: object) -> str:
    """An option's value as a scenario has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def a_little_more(scenario: Scenario) -> Iterator[Question]:
    """One more GPU or node of each type with a stock; 10 % more network, time and budget."""
    whole = scenario.options.whole_nodes
    for index, item in enumerate(scenario.fleet):
        if item.max_gpus is None:
            continue
        block = item.node_size if whole else 1
        what = f"one more node of {count(block, 'GPU')}" if whole else "one more GPU"
        asked = changes.with_stock(scenario, index, item.max_gpus + block)
        change = f"{what}, {item.max_gpus} -> {item.max_gpus + block}"
        yield Question("stock", item_name(item), change, asked)
    percent = f"{(MORE - 1) * PERCENT:.0f} %"
    if scenario.budget is not None:
        asked = replace(scenario, budget=scenario.budget * MORE)
        yield Question("budget", "budget", f"{percent} more", asked)
    if scenario.options.colocated is not ColocatedUse.ONLY:
        yield Question("network", "network", f"{percent} faster", changes.faster_network(scenario, MORE))
    for i, service in enumerate(scenario.services):
        for metric in Metric:
            if service.slo.of(metric):
                subject = of_service(f"{metric.upper()} SLOs", service, scenario.services)
                asked = changes.looser(scenario, metric, MORE, service=i)
                yield Question("slo", subject, f"{percent} looser", asked)
