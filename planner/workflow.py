"""From a scenario to a plan that holds: search, simulate, correct, search again.

The one place where program and simulator meet. :func:`solve` is what ``planner solve`` and the notebooks
call; everything it returns is a :class:`~planner.plan.Plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.assembly import Assembly
from planner.documents.scenario import LoadedScenario, read_scenario
from planner.errors import InfeasibleError, SolverError
from planner.plan import Plan
from planner.program import Solution
from planner.search import Compared, Search, SolveOptions
from planner.specs import Objective, Parallelism, Phase, Scenario
from planner.units import PERCENT

if TYPE_CHECKING:
    from planner.simulator.metrics import SimulationResult
    from planner.verification import Round

MOST_ROUNDS = 4
"""Corrections of capacities by simulation."""

COMMON_MISS = 0.8
"""Factor on a capacity below which the traffic, not the replica, is taken for the cause of a miss: all of the
pool get it. [1]"""

WORTH = 1.05  # factor from which more capacity is tried [1]


def solve(scenario: Scenario | LoadedScenario | str | Path, options: SolveOptions | None = None) -> Plan:
    """The best fleet for `scenario`.

    Parameters
    ----------
    scenario : Scenario, LoadedScenario, str or Path
        A path is read first.

    Returns
    -------
    Plan
        Simulated, unless ``options.verify`` says otherwise: ``plan.verification.passed`` tells whether it
        holds.

    Raises
    ------
    SpecError
        If the scenario breaks a rule.
    InfeasibleError
        If no plan meets it; says what binds and what would help.
    SolverError
        If the solver failed or ran out of time before it had a plan.
    """
    options = options or SolveOptions()
    first = Search.of(_loaded(scenario), options)
    if options.save_lp is not None:
        first.save_program(options.save_lp)
    search, solution = first.holding()
    if solution.interrupted:
        return Assembly(search.question).plan(solution, (), None)
    compared = search.compared(solution)
    if not options.verify:
        return compared.plan()
    try:
        return _Verifying(search).plan(compared)
    except KeyboardInterrupt:  # the plan itself is complete
        return compared.plan(("interrupted before the plan was simulated",))


def _loaded(scenario: Scenario | LoadedScenario | str | Path) -> LoadedScenario:
    if isinstance(scenario, Scenario):
        return LoadedScenario(scenario=scenario, document={})
    if isinstance(scenario, LoadedScenario):
        return scenario
    return read_scenario(Path(scenario))


Key = tuple[Phase, int, Parallelism]
"""A replica: its phase, its line of the fleet, its layout."""


@dataclass(frozen=True, slots=True)
class _Factors:
    """What simulation says of capacities: of replicas that were seen, and of all others of their pool. [1]"""

    seen: Mapping[Key, float] = field(default_factory=dict)
    pool: Mapping[Phase, float] = field(default_factory=dict)

    def of(self, key: Key) -> float:
        return self.seen.get(key, self.pool.get(key[0], 1.0))

    def lowered(self, keys: list[Key], factor: float, common: bool) -> _Factors:
        """After a miss the lower factor counts, so that no plan is tried twice."""
        seen = {**self.seen, **{key: min(self.seen.get(key, 1.0), factor) for key in keys}}
        pool = dict(self.pool)
        if common:
            for phase in {key[0] for key in keys}:
                pool[phase] = min(pool.get(phase, 1.0), factor)
        return _Factors(seen, pool)

    def raised(self, keys: list[Key], factor: float) -> _Factors:
        """After a plan that held with room to spare: what was measured on it counts, for the pool too where
        all of it had been lowered."""
        phases = {key[0] for key in keys} & set(self.pool)
        pool = {**self.pool, **{phase: max(self.pool[phase], min(factor, 1.0)) for phase in phases}}
        return _Factors({**self.seen, **dict.fromkeys(keys, factor)}, pool)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A plan that was simulated."""

    compared: Compared
    result: SimulationResult

    @property
    def loss(self) -> float:
        """What the objective makes small."""
        value = self.compared.solution.value
        throughput = self.compared.search.question.scenario.objective is Objective.THROUGHPUT
        return -value if throughput else value


@dataclass(frozen=True, slots=True)
class _Verifying:
    """The loop of simulation and correction; factors are on the capacities of `search`."""

    search: Search

    def plan(self, compared: Compared) -> Plan:
        """The cheapest plan that holds, or the last that does not, marked so."""
        factors = _Factors()
        rounds: list[Round] = []
        held: list[_Attempt] = []
        attempt = self._attempt(compared)
        for last in (*(False,) * MOST_ROUNDS, True):
            if attempt.result.passed:
                held.append(attempt)
            before = factors
            if not last:
                factors = self._learned(attempt, factors, late=len(rounds) >= 2)
            rounds.append(self._round(attempt, before, factors))
            if factors is before:
                break
            solution = self._solved(factors)
            if solution is None or solution.replicas == attempt.compared.solution.replicas:
                break
            attempt = self._attempt(Compared(self._corrected(factors), solution))
        best = min(held, key=lambda a: a.loss, default=attempt)
        return self._answer(best, rounds, compared)

    def _attempt(self, compared: Compared) -> _Attempt:
        from planner.verification import simulate_plan, source_of  # numba: only where plans are simulated

        options, question = self.search.options, self.search.question
        options.on_stage("simulating the plan")
        fleet = question.simulated(compared.solution)
        source = source_of(self.search.loaded, fleet.service.workload, options.seed)
        return _Attempt(compared, simulate_plan(fleet, source, question.planned_z, options.on_stage))

    def _learned(self, attempt: _Attempt, factors: _Factors, *, late: bool) -> _Factors:
        """Factors with what an attempt says; the same object where it says nothing new."""
        from planner.verification import blamed, corrected_scale, source_of, wasted

        question, options = self.search.question, self.search.options
        solution, result = attempt.compared.solution, attempt.result
        fleet = question.simulated(solution)
        phases = wasted(fleet, result) if result.passed else blamed(fleet, result)
        if not phases:
            return factors
        options.on_stage("measuring what the plan carries")
        source = source_of(self.search.loaded, fleet.service.workload, options.seed)
        scale = corrected_scale(fleet, source, result, question.planned_z, options.on_stage)
        for phase in phases:
            keys = [self._key(i) for i in solution.used if self._key(i)[0] is phase]
            factor = scale * self._load(solution, phase)
            if result.passed and factor > WORTH * max(factors.of(key) for key in keys):
                factors = factors.raised(keys, factor)
            elif not result.passed:
                factors = factors.lowered(keys, factor, common=late or factor < COMMON_MISS)
        return factors

    def _key(self, index: int) -> Key:
        choice = self.search.question.candidates.choices[index]
        return choice.phase, choice.item, choice.parallelism

    def _load(self, solution: Solution, phase: Phase) -> float:
        """Load of a pool over what the uncorrected program takes for its capacity. [1]"""
        question = self.search.question
        headroom = 1 + question.scenario.options.headroom
        spare = question.scenario.options.spare_replicas
        used = [i for i in solution.used if question.candidates.choices[i].phase is phase]
        curves = [question.candidates.candidates[i].curve for i in used]
        capacity = sum(
            curve.capacity(solution.replicas[i] - spare) for i, curve in zip(used, curves, strict=True)
        )
        return sum(solution.flows[i] for i in used) / headroom / capacity if capacity else 1.0

    def _corrected(self, factors: _Factors) -> Search:
        count = len(self.search.question.candidates.choices)
        return self.search.with_factors([factors.of(self._key(i)) for i in range(count)])

    def _solved(self, factors: _Factors) -> Solution | None:
        """The plan with corrected capacities; None where there is none."""
        self.search.options.on_stage("solving again with corrected capacities")
        try:
            solution = self._corrected(factors).solve_quietly()
        except (InfeasibleError, SolverError):
            return None
        if solution.interrupted:
            raise KeyboardInterrupt
        return solution

    # ---------------------------------------------------------------------------------------
    # The answer

    def _round(self, attempt: _Attempt, before: _Factors, after: _Factors) -> Round:
        from planner.verification import Round, failures

        solution = attempt.compared.solution
        learned = {
            f"{key[0]} {self.search.question.scenario.fleet[key[1]].gpu.name} {key[2]}": factor
            for key, factor in after.seen.items()
            if before.seen.get(key) != factor
        }
        return Round(
            fleet=self.search.described(solution),
            replicas=sum(solution.replicas),
            value=solution.value,
            cost=solution.cost,
            failed=failures(attempt.result),
            corrections=learned,
        )

    def _answer(self, best: _Attempt, rounds: list[Round], first: Compared) -> Plan:
        from planner.verification import verification

        scenario = self.search.question.scenario
        compared = best.compared
        if compared is not first:
            compared = compared.search.compared_as_is(compared.solution)
        plan = compared.plan(tuple(self._notes(best, rounds, first)))
        checked = verification(
            best.result, scenario.options.confidence, tuple(rounds), self.search.options.seed
        )
        return replace(plan, verification=checked)

    def _notes(self, best: _Attempt, rounds: list[Round], first: Compared) -> list[str]:
        notes = []
        solution, original = best.compared.solution, first.solution
        if best.compared is not first:
            change = sum(solution.replicas) - sum(original.replicas)
            before = f"{rounds[0].fleet}"
            missed = (
                f" missed {rounds[0].failed[0]}"
                if rounds[0].failed
                else " carried more than it was taken for"
            )
            notes.append(
                f"corrected by simulation: the first plan ({before}){missed}; {change:+d} replicas, "
                f"{_money(original, solution)}; the gap is that of the corrected program"
            )
        if not best.result.passed:
            notes.append("this plan does not hold in simulation: " + "; ".join(rounds[-1].failed))
        if self.search.question.scenario.options.spare_replicas:
            notes.append("simulated without the spare replicas of each group")
        return notes


def _money(before: Solution, after: Solution) -> str:
    if before.cost is None or after.cost is None:
        return f"objective {before.value:.6g} -> {after.value:.6g}"
    change = f" ({(after.cost / before.cost - 1) * PERCENT:+.0f} %)" if before.cost else ""
    return f"{before.cost:,.2f} -> {after.cost:,.2f} USD/h{change}"
