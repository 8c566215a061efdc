"""From a scenario to a plan that holds: search, simulate, correct, search again.

The one place where program and simulator meet. :func:`solve` is what ``planner solve`` and the notebooks
call; everything it returns is a :class:`~planner.plan.Plan`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.documents.scenario import LoadedScenario, loaded_of, read_scenario
from planner.errors import InfeasibleError, SolverError
from planner.learning import Factors, Learner, Run
from planner.length_split import KEPT_WHOLE, Division, by_length, holds, worth_it
from planner.plan import Alternative, Plan
from planner.program import Problem, Solution
from planner.same_node import best_within_node, better
from planner.schedule import solve_schedule
from planner.search import COLOCATED, DISAGGREGATED, Beside, Compared, Search, SolveOptions
from planner.specs import ColocatedUse, Objective, Phase, Scenario
from planner.units import PERCENT

if TYPE_CHECKING:
    from planner.verification import Round

MOST_ROUNDS = 4
"""Corrections of capacities by simulation."""

SAME_RATE = 1e-3  # relative difference of rates below which a fleet is not simulated again [1]
OTHER_ROUNDS = 2  # corrections of the best plan of the other kind
RIVAL = 1.6  # times the value of the plan, up to which the other kind may turn out to be better [1]


def solve(
    scenario: Scenario | LoadedScenario | str | Path,
    options: SolveOptions | None = None,
    *,
    verify: bool | None = None,
    alternatives: bool | None = None,
) -> Plan:
    """The best fleet for `scenario`.

    Parameters
    ----------
    scenario : Scenario, LoadedScenario, str or Path
        A path is read first.
    verify, alternatives : bool, optional
        In place of what the options say.

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
    options = replace(
        options,
        verify=options.verify if verify is None else verify,
        alternatives=options.alternatives if alternatives is None else alternatives,
    )
    loaded = _loaded(scenario)
    if loaded.scenario.scaling is not None:
        return solve_schedule(loaded, options)
    search = whole = Search.of(loaded, options)
    division = None
    if whole.scenario.options.length_split:
        search, division = by_length(whole)
    if options.save_lp is not None:
        search.save_program(options.save_lp)
    return _best_of(search) if division is None else _divided(search, whole, division)


def _best_of(first: Search) -> Plan:
    """The plan of a scenario; one within a node, whose KV caches do without NICs, where that is better.

    Where plans are simulated, so are both if they are close: corrections may turn the order of the two.
    """
    try:
        search, solution = first.holding()
    except InfeasibleError:
        within = best_within_node(first, None)
        if within is None:
            raise
        return _told(*within)
    if solution.interrupted:
        return search.assembled(solution)
    compared = search.compared(solution)
    try:
        within = best_within_node(first, compared.disaggregated)
    except KeyboardInterrupt:  # the plan itself is complete
        return compared.plan(("interrupted before a plan within one node was looked for",))
    plan = _verified(compared)
    if within is None:
        return plan
    beside, other = within
    if first.problem.demand is not None and other.value > RIVAL * solution.value:
        beside = replace(beside, options=replace(beside.options, verify=False, alternatives=False))
    return better(plan, _told(beside, other))


def _told(search: Search, solution: Solution) -> Plan:
    """A solution as the plan that people get, simulated and corrected where that is asked for."""
    return search.assembled(solution) if solution.interrupted else _verified(search.compared(solution))


def _verified(compared: Compared) -> Plan:
    """A plan with what it is compared with, simulated and corrected where that is asked for."""
    if not compared.search.options.verify:
        return compared.plan()
    try:
        return _Verifying(compared.search).plan(compared)
    except KeyboardInterrupt:  # the plan itself is complete
        return compared.plan(("interrupted before the plan was simulated",))


def _divided(search: Search, whole: Search, division: Division) -> Plan:
    """The plan of buckets of prompts, or that of all prompts together where it proves as good.

    Where plans are simulated, so are both: corrections may change the one more than the other. All prompts
    together may have a plan within one node, which their program does not know of.
    """
    options = search.options
    if division.split is None:
        return division.told(_best_of(search))
    unsplit = None if division.unsplit is None else division.unsplit.value
    try:
        plan = _best_of(search)
    except (InfeasibleError, SolverError):
        if unsplit is None:
            raise
        return Division(notes=(KEPT_WHOLE,)).told(_best_of(whole))
    clear = unsplit is None or (not options.verify and worth_it(plan, unsplit))
    try:
        if clear and best_within_node(whole, division.together) is None:
            return division.told(plan)
        options.on_stage("planning for all prompts together")
        other = _best_of(whole)
    except (InfeasibleError, SolverError, KeyboardInterrupt):  # the first plan is complete
        return division.told(plan)
    if worth_it(plan, other.value) or (holds(plan) and not holds(other)):
        return division.against(other).told(plan)
    return Division(notes=(KEPT_WHOLE,)).told(other)


def _loaded(scenario: Scenario | LoadedScenario | str | Path) -> LoadedScenario:
    if isinstance(scenario, Scenario):
        return loaded_of(scenario)
    if isinstance(scenario, LoadedScenario):
        return scenario
    return read_scenario(Path(scenario))


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A plan that was simulated, router by router."""

    solution: Solution
    runs: tuple[Run, ...]

    @property
    def passed(self) -> bool:
        return all(run.result.passed for run in self.runs)

    @property
    def sure(self) -> bool:
        """Whether all percentiles are known well."""
        return all(run.result.sure for run in self.runs)


@dataclass(frozen=True, slots=True)
class _Tried:
    """What came of simulating and correcting the plans of one program.

    ``best`` is the best that holds or, where none does, the last.
    """

    attempts: tuple[_Attempt, ...]
    best: _Attempt
    factors: Factors
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class _Verifying:
    """The loop of simulation and correction; factors are on the capacities of `search`."""

    search: Search

    @property
    def learner(self) -> Learner:
        return Learner(self.search)

    def plan(self, compared: Compared) -> Plan:
        """The cheapest plan that holds, or the last that does not, marked so."""
        asked = self.search.problem
        tried = self._tried(asked, compared.solution, MOST_ROUNDS)
        others = {
            beside.name: self._tried(kind, beside.solution, OTHER_ROUNDS)
            for beside, kind in self._rivals(compared)
            if beside.solution is not None and beside.solution is not compared.solution
        }
        winner = self._confirmed([tried, *others.values()])
        return self._answer(winner, tried, others, compared)

    def _loss(self, attempt: _Attempt) -> float:
        """What the objective makes small."""
        throughput = self.search.scenario.objective is Objective.THROUGHPUT
        return -attempt.solution.value if throughput else attempt.solution.value

    def _confirmed(self, tried: Sequence[_Tried]) -> _Tried:
        """The best attempt that still holds when percentiles are known well; else the last of the first."""
        held = [(a, t) for t in tried for a in t.attempts if a.passed]
        # Rounded: of plans that are equally good the first counts.
        for attempt, one in sorted(held, key=lambda pair: float(f"{self._loss(pair[0]):.9g}")):
            sure = attempt if attempt.sure else self._attempt(attempt.solution, sure=True)
            if sure.passed:
                return replace(one, best=sure)
        last = tried[0].attempts[-1]
        failing = last if not last.passed else self._attempt(last.solution, sure=True)
        return replace(tried[0], best=failing)

    def _rivals(self, compared: Compared) -> list[tuple[Beside, Problem]]:
        """The best plan of the other kind, where corrections may turn the order of the two."""
        kinds = {COLOCATED: ColocatedUse.ONLY, DISAGGREGATED: ColocatedUse.FORBIDDEN}
        value = compared.solution.value
        return [
            (beside, replace(self.search.problem, colocated=kinds[beside.name]))
            for beside in compared.beside
            if beside.name in kinds
            and beside.solution is not None
            and max(beside.solution.value, value) <= RIVAL * min(beside.solution.value, value)
        ]

    def _tried(self, problem: Problem, solution: Solution, most: int) -> _Tried:
        """Simulate a plan and, up to `most` times, the plan that corrected capacities give."""
        factors = Factors()
        rounds: list[Round] = []
        attempts = [self._attempt(solution)]
        while True:
            attempt, before = attempts[-1], factors
            if len(rounds) < most:
                factors = self._learned(attempt, factors, late=len(rounds) >= 2)
            if factors is before and attempt.passed and not attempt.sure:
                attempt = attempts[-1] = self._attempt(attempt.solution, sure=True)
                if len(rounds) < most and not attempt.passed:
                    factors = self._learned(attempt, factors, late=len(rounds) >= 2)
            rounds.append(self._round(attempt, before, factors))
            if factors is before:
                break
            found = self._solved(problem, factors)
            if found is None or any(_same(found, a.solution) for a in attempts):
                break
            attempts.append(self._attempt(found))
        held = [a for a in attempts if a.passed]
        best = min(held, key=self._loss, default=attempts[-1])
        return _Tried(tuple(attempts), best, factors, tuple(rounds))

    def _attempt(self, solution: Solution, *, sure: bool = False) -> _Attempt:
        """Simulate a plan until it is clear whether it holds; `sure`: until percentiles are known well.

        Each router's groups are simulated as the plan will have them, less what may be lost; and again after
        every event that the plan has to bear.
        """
        runs: list[Run] = []
        for event in self.search.problem.events:
            left = self.search.after(solution, event) if event.name else solution
            parts = self.search.parts(left)
            runs += self.learner.runs(left, parts, event.name, worst=event.spares, sure=sure)
        return _Attempt(solution, tuple(runs))

    def _learned(self, attempt: _Attempt, factors: Factors, *, late: bool) -> Factors:
        """Factors with what an attempt says; the same object where it says nothing new."""
        for run in attempt.runs:
            factors = self.learner.learned_from(run, factors, late=late)
        return factors

    def _solved(self, problem: Problem, factors: Factors) -> Solution | None:
        """The plan with corrected capacities; None where there is none."""
        self.search.options.on_stage("solving again with corrected capacities")
        corrected = self.learner.corrected(factors).problem.candidates
        try:
            solution = self.search.solve_quietly(replace(problem, candidates=corrected))
        except (InfeasibleError, SolverError):
            return None
        if solution.interrupted:
            raise KeyboardInterrupt
        return solution

    # ---------------------------------------------------------------------------------------
    # The answer

    def _round(self, attempt: _Attempt, before: Factors, after: Factors) -> Round:
        from planner.verification import Round

        solution = attempt.solution
        learned = {
            self.learner.named(key): factor
            for key, factor in after.seen.items()
            if before.seen.get(key) != factor
        }
        return Round(
            fleet=self.search.described(solution),
            replicas=sum(solution.replicas),
            value=solution.value,
            cost=solution.cost,
            failed=tuple(miss for run in attempt.runs for miss in self.learner.failures(run)),
            corrections=learned,
        )

    def _answer(self, winner: _Tried, first: _Tried, others: dict[str, _Tried], compared: Compared) -> Plan:
        from planner.verification import verification

        scenario, solution = self.search.scenario, winner.best.solution
        if solution is not compared.solution:
            search = self.learner.corrected(
                Factors.merged([one.factors for one in (winner, first, *others.values())])
            )
            compared = replace(search.compared_as_is(solution), at_half=compared.at_half)
        attempts = [a for tried in (first, *others.values()) for a in tried.attempts]
        plan = compared.plan(tuple(self._notes(winner, first)))
        alternatives = tuple(self._told(a, solution, winner, attempts) for a in plan.alternatives)
        rounds = first.rounds if self._is(winner, first) else (*first.rounds, *winner.rounds)
        results = {run.name: run.result for run in winner.best.runs}
        missed = [miss for run in winner.best.runs for miss in self.learner.failures(run)]
        seed = self.search.options.seed
        checked = verification(results, missed, scenario.options.confidence, rounds, seed)
        return replace(plan, verification=checked, alternatives=alternatives)

    @staticmethod
    def _is(winner: _Tried, tried: _Tried) -> bool:
        """Whether the winner comes from these attempts; its last simulation is longer."""
        return winner.rounds is tried.rounds

    def _told(
        self, alternative: Alternative, plan: Solution, winner: _Tried, attempts: Sequence[_Attempt]
    ) -> Alternative:
        """An alternative with what simulation says of it: of the other kind the best that holds, else the
        last that was simulated."""
        other = not self._colocated(plan)
        kind = COLOCATED if other else DISAGGREGATED
        theirs = [a for a in attempts if self._colocated(a.solution) is other]
        if alternative.name == kind and theirs:
            attempt = min((a for a in theirs if a.passed), key=self._loss, default=theirs[-1])
            solution = attempt.solution
            return replace(
                alternative,
                value=solution.value,
                cost=solution.cost,
                summary=self.search.described(solution),
                reason="",
                verified=attempt.passed,
            )
        same = alternative.summary == self.search.described(plan)
        return replace(alternative, verified=winner.best.passed) if same else alternative

    def _colocated(self, solution: Solution) -> bool:
        return any(self.search.choices[i].phase is Phase.COLOCATED for i in solution.used)

    def _notes(self, winner: _Tried, first: _Tried) -> list[str]:
        notes = []
        solution, start = winner.best.solution, first.rounds[0]
        fleet = self.search.described(solution)
        if fleet != start.fleet:
            change = sum(solution.replicas) - start.replicas
            missed = f"missed {start.failed[0]}" if start.failed else "is dearer than what simulation allows"
            notes.append(
                f"corrected by simulation: the first plan ({start.fleet}) {missed}; {change:+d} replicas, "
                f"{_money(start, solution)}; the gap is that of the corrected program"
            )
        if not winner.best.passed:
            notes.append("this plan does not hold in simulation: " + "; ".join(winner.rounds[-1].failed))
        if self.search.scenario.options.spare_replicas:
            notes.append("simulated without the spare replicas of each group")
        if self.search.scenario.options.survive_node:
            notes.append("simulated with a node's replicas of the group that weighs most lost in each pool")
        return notes


def _same(one: Solution, other: Solution) -> bool:
    """The same fleet at the same rate, which only objective throughput leaves open."""
    return one.replicas == other.replicas and math.isclose(one.rate, other.rate, rel_tol=SAME_RATE)


def _money(before: Round, after: Solution) -> str:
    if before.cost is None or after.cost is None:
        return f"objective {before.value:.6g} -> {after.value:.6g}"
    change = f" ({(after.cost / before.cost - 1) * PERCENT:+.0f} %)" if before.cost else ""
    return f"{before.cost:,.2f} -> {after.cost:,.2f} USD/h{change}"
