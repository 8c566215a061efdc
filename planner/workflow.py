"""From a scenario to a plan that holds: search, simulate, correct, search again.

The one place where program and simulator meet. :func:`solve` is what ``planner solve`` and the notebooks
call; everything it returns is a :class:`~planner.plan.Plan`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from planner.assembly import limited_cells
from planner.documents.scenario import LoadedScenario, read_scenario
from planner.errors import InfeasibleError, SolverError
from planner.fleet import Fleet
from planner.length_split import KEPT_WHOLE, Division, by_length, holds, worth_it
from planner.plan import Alternative, Plan
from planner.program import Problem, Solution
from planner.search import COLOCATED, DISAGGREGATED, Beside, Compared, Search, SolveOptions
from planner.specs import ColocatedUse, Objective, Parallelism, Phase, Precision, Scenario
from planner.units import PERCENT

if TYPE_CHECKING:
    from planner.simulator.metrics import SimulationResult
    from planner.simulator.source import RequestSource
    from planner.verification import Round

MOST_ROUNDS = 4
"""Corrections of capacities by simulation."""

COMMON_MISS = 0.8
"""Factor on a capacity below which the traffic, not the replica, is taken for the cause of a miss: all of the
pool get it. [1]"""

WORTH = 1.05  # factor from which more capacity is tried [1]
LATE_SAFETY = 0.85  # on what is learned when few rounds are left: pools were measured one by one [1]
NEAR, NEAR_SAFETY = 1.2, 0.96  # times a limit that is nearly met, and the factor that is tried then [1]
SURELY = 0.98  # multiple of its rate below which a pool is at fault for a miss [1]
SAME_RATE = 1e-3  # relative difference of rates below which a fleet is not simulated again [1]
OTHER_ROUNDS = 2  # corrections of the best plan of the other kind
RIVAL = 1.6  # times the value of the plan, up to which the other kind may turn out to be better [1]


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
    search = whole = Search.of(_loaded(scenario), options)
    division = None
    if whole.scenario.options.length_split:
        search, division = by_length(whole)
    if options.save_lp is not None:
        search.save_program(options.save_lp)
    return _planned(search) if division is None else _divided(search, whole, division)


def _planned(search: Search) -> Plan:
    """The plan of a search, simulated and corrected where that is asked for."""
    search, solution = search.holding()
    if solution.interrupted:
        return search.assembled(solution)
    compared = search.compared(solution)
    if not search.options.verify:
        return compared.plan()
    try:
        return _Verifying(search).plan(compared)
    except KeyboardInterrupt:  # the plan itself is complete
        return compared.plan(("interrupted before the plan was simulated",))


def _divided(search: Search, whole: Search, division: Division) -> Plan:
    """The plan of buckets of prompts, or that of all prompts together where it proves as good.

    Where plans are simulated, so are both: corrections may change the one more than the other.
    """
    options = search.options
    unsplit = None if division.unsplit is None else division.unsplit.value
    try:
        plan = _planned(search)
    except (InfeasibleError, SolverError):
        if unsplit is None:
            raise
        return Division(notes=(KEPT_WHOLE,)).told(_planned(whole))
    if unsplit is None or (not options.verify and worth_it(plan, unsplit)):
        return division.told(plan)
    try:
        options.on_stage("planning for all prompts together")
        other = _planned(whole)
    except (InfeasibleError, SolverError, KeyboardInterrupt):  # the first plan is complete
        return division.told(plan)
    if worth_it(plan, other.value) or (holds(plan) and not holds(other)):
        return division.against(other).told(plan)
    return Division(notes=(KEPT_WHOLE,)).told(other)


def _loaded(scenario: Scenario | LoadedScenario | str | Path) -> LoadedScenario:
    if isinstance(scenario, Scenario):
        return LoadedScenario(scenario=scenario, document={})
    if isinstance(scenario, LoadedScenario):
        return scenario
    return read_scenario(Path(scenario))


Key = tuple[int, Phase, int, Parallelism, Precision]
"""A replica: the question it answers, its phase, its line of the fleet, its layout and formats."""

Pool = tuple[int, Phase]
"""All replicas of one phase that answer one question."""


def pool_of(key: Key) -> Pool:
    return key[:2]


@dataclass(frozen=True, slots=True)
class _Factors:
    """What simulation says of capacities: of replicas that were seen, and of all others of their pool. [1]"""

    seen: Mapping[Key, float] = field(default_factory=dict)
    pool: Mapping[Pool, float] = field(default_factory=dict)

    def of(self, key: Key) -> float:
        return self.seen.get(key, self.pool.get(pool_of(key), 1.0))

    def lowered(self, keys: list[Key], factor: float, common: bool, everywhere: bool) -> _Factors:
        """After a miss the lower factor counts, so that no plan is tried twice.

        `common`: for the whole pool. `everywhere`: for pools of which nothing is known, too; bursts of a
        trace come to whatever serves it.
        """
        seen = {**self.seen, **{key: min(self.seen.get(key, 1.0), factor) for key in keys}}
        pool = dict(self.pool)
        if common:
            for one in {pool_of(key) for key in keys}:
                pool[one] = min(pool.get(one, 1.0), factor)
                seen |= {key: min(f, factor) for key, f in seen.items() if pool_of(key) == one}
        if everywhere:
            pool = {(key[0], phase): factor for key in keys for phase in Phase} | pool
        return _Factors(seen, pool)

    def raised(self, keys: list[Key], factor: float) -> _Factors:
        """After a plan that held with room to spare: what was measured on it counts, for the pool too where
        all of it had been lowered."""
        known = {pool_of(key) for key in keys} & set(self.pool)
        pool = {**self.pool, **{one: max(self.pool[one], min(factor, 1.0)) for one in known}}
        return _Factors({**self.seen, **dict.fromkeys(keys, factor)}, pool)

    @classmethod
    def merged(cls, tried: Sequence[_Tried]) -> _Factors:
        """Those of several programs; where two speak of one replica, the first counts."""
        seen: dict[Key, float] = {}
        pool: dict[Pool, float] = {}
        for one in reversed(tried):
            seen |= one.factors.seen
            pool |= one.factors.pool
        return cls(seen, pool)


@dataclass(frozen=True, slots=True)
class _Run:
    """What was simulated behind one router; `unlimited` is its fleet with all the sequences that fit."""

    question: int
    name: str
    solution: Solution
    fleet: Fleet
    unlimited: Fleet
    source: RequestSource
    result: SimulationResult


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A plan that was simulated, router by router."""

    solution: Solution
    runs: tuple[_Run, ...]

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
    factors: _Factors
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class _Verifying:
    """The loop of simulation and correction; factors are on the capacities of `search`."""

    search: Search

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
        factors = _Factors()
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
        from planner.verification import simulate_plan, source_of  # numba: only where plans are simulated

        search = self.search
        z, seed, on_stage = search.questions[0].planned_z, search.options.seed, search.options.on_stage
        runs = []
        for event in search.problem.events:
            left = search.after(solution, event) if event.name else solution
            for k, (question, part) in enumerate(zip(search.questions, search.parts(left), strict=True)):
                for free, cell in zip(question.cells(part), limited_cells(question, part), strict=True):
                    name = ", ".join(filter(None, [cell.name, event.name]))
                    on_stage("simulating the plan" + ("" if question.alone else f" of {name}"))
                    fleet, unlimited = (
                        question.at_worst(x.fleet) if event.spares else x.fleet for x in (cell, free)
                    )
                    source = source_of(
                        search.loaded, question.asked, fleet.service.workload, seed, question.prompts
                    )
                    result = simulate_plan(fleet, source, z, on_stage, sure=sure)
                    runs.append(_Run(k, name, left, fleet, unlimited, source, result))
        return _Attempt(solution, tuple(runs))

    def _learned(self, attempt: _Attempt, factors: _Factors, *, late: bool) -> _Factors:
        """Factors with what an attempt says; the same object where it says nothing new."""
        for run in attempt.runs:
            factors = self._learned_from(run, factors, late=late)
        return factors

    def _learned_from(self, run: _Run, factors: _Factors, *, late: bool) -> _Factors:
        from planner.verification import MOST_MORE, blamed, pool_scale, wasted

        question, options = self.search.questions[run.question], self.search.options
        solution, result, fleet = run.solution, run.result, run.fleet
        phases = {g.phase for g in fleet.groups}
        if result.passed:  # what was only taken over from others may be too low
            taken_over = {phase for k, phase in factors.pool if k == run.question}
            phases &= taken_over | wasted(fleet, result)
        if not phases:
            return factors
        if result.passed:  # a plan for a higher rate would have higher limits
            fleet = run.unlimited
        options.on_stage("measuring what the plan carries")
        most = MOST_MORE if result.passed else 1.0
        learned = factors
        for phase in sorted(phases):
            keys = self._keys(solution, run.question, phase)
            z = question.planned_z
            scale = pool_scale(fleet, phase, run.source, z, most=most, on_stage=options.on_stage)
            factor = scale * self._load(solution, run.question, phase)
            if result.passed and factor > WORTH * max(factors.of(key) for key in keys):
                learned = learned.raised(keys, factor)
            elif not result.passed and scale < SURELY:
                factor *= LATE_SAFETY if late else 1.0
                common = late or factor < COMMON_MISS
                learned = learned.lowered(keys, factor, common, everywhere=common and run.source.replay)
        if learned is factors and not result.passed:  # each pool by itself would do, or nearly
            excess = max((c.value / c.target.limit for c in result.checks), default=1.0)
            safety = NEAR_SAFETY if excess < NEAR else LATE_SAFETY
            for phase in blamed(fleet, result):
                keys = self._keys(solution, run.question, phase)
                load = self._load(solution, run.question, phase)
                learned = learned.lowered(keys, safety * load, True, False)
        return learned

    def _key(self, index: int) -> Key:
        choice, stream = self.search.choices[index], self.search.problem.candidates[index].stream
        return stream, choice.phase, *choice.replica

    def _keys(self, solution: Solution, question: int, phase: Phase) -> list[Key]:
        """Those of a pool's groups."""
        return [key for key in map(self._key, solution.used) if pool_of(key) == (question, phase)]

    def _load(self, solution: Solution, question: int, phase: Phase) -> float:
        """Load of a pool over what the uncorrected program takes for its capacity. [1]"""
        problem = self.search.problem
        headroom = 1 + self.search.scenario.options.headroom
        used = [i for i in solution.used if pool_of(self._key(i)) == (question, phase)]
        capacity = sum(problem.usable(i, solution.replicas[i]) for i in used)
        return sum(solution.flows[i] for i in used) / headroom / capacity if capacity else 1.0

    def _corrected(self, factors: _Factors) -> Search:
        return self.search.with_factors([factors.of(self._key(i)) for i in range(len(self.search.choices))])

    def _solved(self, problem: Problem, factors: _Factors) -> Solution | None:
        """The plan with corrected capacities; None where there is none."""
        self.search.options.on_stage("solving again with corrected capacities")
        corrected = self._corrected(factors).problem.candidates
        try:
            solution = self.search.solve_quietly(replace(problem, candidates=corrected))
        except (InfeasibleError, SolverError):
            return None
        if solution.interrupted:
            raise KeyboardInterrupt
        return solution

    # ---------------------------------------------------------------------------------------
    # The answer

    def _round(self, attempt: _Attempt, before: _Factors, after: _Factors) -> Round:
        from planner.verification import Round

        solution = attempt.solution
        learned = {
            self._named(key): factor for key, factor in after.seen.items() if before.seen.get(key) != factor
        }
        return Round(
            fleet=self.search.described(solution),
            replicas=sum(solution.replicas),
            value=solution.value,
            cost=solution.cost,
            failed=tuple(miss for run in attempt.runs for miss in self._failures(run)),
            corrections=learned,
        )

    def _named(self, key: Key) -> str:
        stream, phase, item, parallelism, _ = key
        question = self.search.questions[stream]
        service = "" if question.alone else f"{question.service.name} "
        return f"{service}{phase} {question.scenario.fleet[item].name} {parallelism}"

    def _failures(self, run: _Run) -> tuple[str, ...]:
        """What a run missed, in words."""
        from planner.verification import failures

        alone = (
            self.search.questions[run.question].service.name == run.name and len(self.search.questions) == 1
        )
        return failures(run.result) if alone else tuple(f"{run.name}: {m}" for m in failures(run.result))

    def _answer(self, winner: _Tried, first: _Tried, others: dict[str, _Tried], compared: Compared) -> Plan:
        from planner.verification import verification

        scenario, solution = self.search.scenario, winner.best.solution
        if solution is not compared.solution:
            search = self._corrected(_Factors.merged([winner, first, *others.values()]))
            compared = replace(search.compared_as_is(solution), at_half=compared.at_half)
        simulated = {name: tried.best for name, tried in others.items() if not self._is(winner, tried)}
        if not self._is(winner, first):  # what was the plan is now the best of its kind
            simulated |= {name: first.best for name in others if self._is(winner, others[name])}
        plan = compared.plan(tuple(self._notes(winner, first)))
        alternatives = tuple(self._told(a, solution, winner, simulated) for a in plan.alternatives)
        rounds = first.rounds if self._is(winner, first) else (*first.rounds, *winner.rounds)
        results = {run.name: run.result for run in winner.best.runs}
        missed = [miss for run in winner.best.runs for miss in self._failures(run)]
        seed = self.search.options.seed
        checked = verification(results, missed, scenario.options.confidence, rounds, seed)
        return replace(plan, verification=checked, alternatives=alternatives)

    @staticmethod
    def _is(winner: _Tried, tried: _Tried) -> bool:
        """Whether the winner comes from these attempts; its last simulation is longer."""
        return winner.rounds is tried.rounds

    def _told(
        self, alternative: Alternative, plan: Solution, winner: _Tried, simulated: dict[str, _Attempt]
    ) -> Alternative:
        """An alternative with what simulation says of it."""
        kind = DISAGGREGATED if self._colocated(plan) else COLOCATED
        attempt = next(iter(simulated.values()), None)
        if alternative.name == kind and attempt is not None:
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
        return notes


def _same(one: Solution, other: Solution) -> bool:
    """The same fleet at the same rate, which only objective throughput leaves open."""
    return one.replicas == other.replicas and math.isclose(one.rate, other.rate, rel_tol=SAME_RATE)


def _money(before: Round, after: Solution) -> str:
    if before.cost is None or after.cost is None:
        return f"objective {before.value:.6g} -> {after.value:.6g}"
    change = f" ({(after.cost / before.cost - 1) * PERCENT:+.0f} %)" if before.cost else ""
    return f"{before.cost:,.2f} -> {after.cost:,.2f} USD/h{change}"
