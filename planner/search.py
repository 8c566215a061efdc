"""From a scenario to a plan by prediction alone: candidates, program, check of the whole, alternatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from planner.assembly import Assembly
from planner.candidates import ReplicaChoice, build_candidates
from planner.documents.files import write_text_atomic
from planner.documents.scenario import LoadedScenario
from planner.errors import InfeasibleError, SolverError, SpecError
from planner.fleet import Fleet
from planner.formulation import (
    Build,
    build_problem,
    program_candidates,
    questions_of,
    scaled,
    with_candidates,
)
from planner.infeasibility import explain
from planner.moves import changes, moves_of, replicas_started
from planner.plan import Alternative, Plan
from planner.prediction import summaries
from planner.program import Problem, Solution, save_lp
from planner.program import solve as solve_program
from planner.program.fleet import build_fleet, distribute
from planner.program.problem import Event
from planner.question import Question
from planner.specs import ColocatedUse, Metric, Objective, Phase, Scenario

DEFAULT_GAP = 0.005
MOST_CORRECTIONS = 12
CORRECTION = 0.95  # of the capacity of groups that together miss an SLO [1]
COMMON_FROM = 6  # corrections after which it is taken off the whole pool: others like them would come instead
MOVE_COST = 10.0  # of starting a replica: draining, loading weights, warming up, somebody's attention [USD]
MOVE_HOURS = 730.0  # a month [h]
MOVE_GAP = 1e-6  # of a search that weighs moves: one is a small part of what a fleet costs [1]
SAME_VALUE = 1e-9  # relative difference below which two plans are equally good [1]
COLOCATED, DISAGGREGATED = "best colocated", "best disaggregated"
ONE_TYPE = (
    "of one GPU type only: no mix was found that holds as a whole by prediction, and the gap is that of the "
    "program without mixes"
)
NO_SUCH_FLEET = "no such fleet meets the scenario"


@dataclass(frozen=True, kw_only=True, slots=True)
class SolveOptions:
    """How to search.

    Attributes
    ----------
    solver : str
        "highs" or "cbc".
    time_limit : float or None
        Of one program. [s]
    gap : float
        Relative distance from the proven bound at which the search may stop. [1]
    save_lp : Path or None
        Where the program is written.
    alternatives : bool
        Whether the best restricted plans are found as well.
    verify : bool
        Whether the plan is simulated, and capacities that prove wrong are corrected.
    seed : int
        Of the simulated requests.
    current : Plan or None
        The fleet that stands, which a plan for cost leaves as it is where changes save too little.
    move_cost : float
        Of each replica that has to be started then. [USD]
    move_hours : float
        Time over which a change has to earn its cost. [h]
    on_stage : callable
        Told what is being done; for a progress line.
    build : callable or None
        Gives the candidates of a service in place of :func:`build_candidates`; what asks many questions of
        one scenario keeps them.
    explain : bool
        Whether what is in the way of a plan is looked for where there is none, which takes seconds.
    briefly : bool
        Whether that ends with what binds, and leaves out by how much and what would help.
    beside : tuple of str or None
        Which alternatives are found, by name; None: all, and the cost at half confidence.
    """

    solver: str = "highs"
    time_limit: float | None = None
    gap: float = DEFAULT_GAP
    save_lp: Path | None = None
    alternatives: bool = True
    verify: bool = True
    seed: int = 0
    current: Plan | None = None
    move_cost: float = MOVE_COST
    move_hours: float = MOVE_HOURS
    on_stage: Callable[[str], None] = lambda _stage: None
    build: Build | None = None
    explain: bool = True
    briefly: bool = False
    beside: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Beside:
    """The best plan under a restriction, or why there is none."""

    name: str
    solution: Solution | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Compared:
    """A plan with what it is compared with."""

    search: Search
    solution: Solution
    beside: tuple[Beside, ...] = ()
    at_half: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def disaggregated(self) -> Solution | None:
        """The best disaggregated plan that is told; the plan itself where none is told beside it."""
        return next((b.solution for b in self.beside if b.name == DISAGGREGATED), self.solution)

    def plan(self, notes: tuple[str, ...] = ()) -> Plan:
        alternatives = tuple(self.search.described_beside(b) for b in self.beside)
        said = () if self.search.problem.max_gpu_types is None else (ONE_TYPE,)
        return self.search.assembled(self.solution, alternatives, self.at_half, (*said, *self.notes, *notes))


@dataclass(frozen=True, slots=True)
class Search:
    """One solve: what is asked of each stream of requests, and the program of all."""

    loaded: LoadedScenario
    questions: tuple[Question, ...]
    problem: Problem
    options: SolveOptions

    @classmethod
    def of(cls, loaded: LoadedScenario, options: SolveOptions) -> Search:
        """The search for a plan of a scenario as it is; nothing is solved yet."""
        options.on_stage("evaluating candidates")
        questions = questions_of(loaded, options.build or build_candidates)
        problem = build_problem(questions, options.gap)
        if options.current is not None:
            if problem.objective is not Objective.COST:
                raise SpecError("planning from a fleet that stands needs objective cost: moves have a price")
            hourly = options.move_cost / options.move_hours
            moves = moves_of(questions, options.current, hourly)
            problem = replace(problem, moves=moves, gap=min(problem.gap, MOVE_GAP))
        return cls(loaded, questions, problem, options)

    @property
    def scenario(self) -> Scenario:
        return self.loaded.scenario

    @property
    def question(self) -> Question:
        """The only question."""
        (question,) = self.questions
        return question

    @property
    def choices(self) -> tuple[ReplicaChoice, ...]:
        """What each candidate of the program is."""
        return tuple(choice for q in self.questions for choice in q.candidates.choices)

    def part(self, solution: Solution, stream: int) -> Solution:
        """What a solution says of one question, with that question's candidates."""
        if len(self.questions) == 1:
            return solution
        start = sum(len(q.candidates.choices) for q in self.questions[:stream])
        end = start + len(self.questions[stream].candidates.choices)
        total = sum(s.share for s in self.problem.streams)
        share = self.problem.streams[stream].share / total
        return replace(
            solution,
            replicas=solution.replicas[start:end],
            flows=solution.flows[start:end],
            rate=solution.rate * share,
        )

    def parts(self, solution: Solution) -> tuple[Solution, ...]:
        """Of every question."""
        return tuple(self.part(solution, k) for k in range(len(self.questions)))

    def after(self, solution: Solution, event: Event) -> Solution:
        """What is left of a solution at an event, and the load that it then gets."""
        problem = self.problem
        left = tuple(
            0 if c.gpu_type in event.lost else n
            for c, n in zip(problem.candidates, solution.replicas, strict=True)
        )
        rate = solution.rate * event.share
        flows = distribute(problem, build_fleet(problem, left), rate, event)
        return replace(solution, replicas=left, flows=flows, rate=rate)

    def assembled(
        self,
        solution: Solution,
        alternatives: tuple[Alternative, ...] = (),
        at_half: float | None = None,
        notes: tuple[str, ...] = (),
    ) -> Plan:
        """A solution as the plan that people get."""
        plan = Assembly(self.questions).plan(solution, self.parts(solution), alternatives, at_half, notes)
        if self.options.current is None:
            return plan
        moves = changes(self.options.current.groups, plan.groups)
        return replace(plan, moves=moves, move_cost=self.options.move_cost * replicas_started(moves))

    def holding(self) -> tuple[Search, Solution]:
        """The program's plan, with capacities lowered until it holds as a whole by prediction."""
        search, solution = self, self.best()
        for done in range(MOST_CORRECTIONS + 1):
            missed = search._missed(solution)
            if not missed or solution.interrupted:
                return search, solution
            if done < MOST_CORRECTIONS:
                search = search._lowered(solution, missed, common=done >= COMMON_FROM)
                solution = search.best()
        if self.problem.max_gpu_types is None:  # unequal groups are what the closed forms know least of
            return replace(self, problem=replace(self.problem, max_gpu_types=1)).holding()
        pools = " and ".join(sorted({phase for _, phase in missed}))
        raise SolverError(f"no plan was found that holds as a whole: {pools} keeps missing an SLO")

    def save_program(self, path: Path) -> None:
        """Write the program whole or not at all; the solver's writer knows only files."""
        with TemporaryDirectory() as folder:
            draft = Path(folder) / "program.lp"
            save_lp(self.problem, draft)
            write_text_atomic(path, draft.read_text(encoding="utf-8"))

    def _solve(self, problem: Problem, explain: bool = True) -> Solution:
        options = self.options
        return solve_program(
            problem,
            solver=options.solver,
            time_limit=options.time_limit,
            explain=explain,
            briefly=options.briefly,
        )

    def solve_quietly(self, problem: Problem) -> Solution:
        """The plan of a program like this one; what is in the way of one is not looked for."""
        return self._solve(problem, explain=False)

    def best(self) -> Solution:
        """The program's plan, or why there is none."""
        self.options.on_stage("solving the integer program")
        try:
            return self._solve(self.problem, explain=self.options.explain)
        except InfeasibleError as error:
            if not self.options.explain:
                raise
            self.options.on_stage("explaining why there is no plan")
            for q in self.questions:
                briefly = self.options.briefly
                found = explain(q.scenario, q.service, q.engine, q.candidates, error, briefly=briefly)
                if found is not error:
                    raise (found if q.alone else found.of(q.service.name)) from None
            raise

    # ---------------------------------------------------------------------------------------
    # The plan as a whole

    def _missed(self, solution: Solution) -> set[tuple[int, Phase]]:
        """Pools (question, phase) that, put together, miss an SLO at the error planned for.

        Capacities are computed group by group and by closed forms; this is the check of the whole.
        """
        return {
            (k, phase)
            for k, (q, part) in enumerate(zip(self.questions, self.parts(solution), strict=True))
            for cell in q.cells(part)
            for phase in _pools_that_miss(cell.fleet, q.planned_z)
        }

    def with_factors(self, factors: Sequence[float]) -> Search:
        """The same search with the capacity of each candidate times its factor. [1]

        Where it falls, the demand can use more replicas than before, as far as the stock goes.
        """
        left = iter(factors)
        questions = tuple(scaled(q, [next(left) for _ in q.candidates.choices]) for q in self.questions)
        candidates = program_candidates(questions)
        return replace(self, questions=questions, problem=replace(self.problem, candidates=candidates))

    def _lowered(self, solution: Solution, pools: set[tuple[int, Phase]], *, common: bool) -> Search:
        """Less capacity for the groups of `pools` that `solution` uses, or in `common` for all candidates."""
        used = set(solution.used)
        return self.with_factors(
            [
                CORRECTION if (common or i in used) and (c.stream, c.phase) in pools else 1.0
                for i, c in enumerate(self.problem.candidates)
            ]
        )

    def compared(self, solution: Solution) -> Compared:
        """The plan, or the simplest that is as good, with what it is compared with."""
        compared = self.compared_as_is(solution)
        return replace(compared, solution=self._simplest(solution, compared.beside))

    def compared_as_is(self, solution: Solution) -> Compared:
        """The plan with what it is compared with."""
        if not self.options.alternatives:
            return Compared(self, solution)
        self.options.on_stage("looking for alternatives")
        try:
            beside = self._beside(solution)
            at_half = None if self.options.beside is not None else self._cost_at_half_confidence(solution)
        except KeyboardInterrupt:  # the plan itself is complete
            return Compared(self, solution, notes=("interrupted before alternatives were found",))
        return Compared(self, solution, tuple(beside), at_half)

    # ---------------------------------------------------------------------------------------
    # Alternatives

    def _beside(self, solution: Solution) -> list[Beside]:
        """The best plan of each kind that a reader would ask for."""
        asked = self.problem
        kinds = [("best single GPU type", replace(asked, max_gpu_types=1))]
        if asked.colocated is ColocatedUse.ALLOWED:
            kinds += [
                (COLOCATED, replace(asked, colocated=ColocatedUse.ONLY)),
                (DISAGGREGATED, replace(asked, colocated=ColocatedUse.FORBIDDEN)),
            ]
        wanted = self.options.beside
        kinds = [kind for kind in kinds if wanted is None or kind[0] in wanted]
        return [self._one_beside(name, problem, solution) for name, problem in kinds]

    def _one_beside(self, name: str, problem: Problem, solution: Solution) -> Beside:
        if self._satisfies(problem, solution):
            return Beside(name, solution)
        try:
            return Beside(name, self._solve_beside(problem))
        except InfeasibleError:
            return Beside(name, None, NO_SUCH_FLEET)
        except SolverError as error:
            return Beside(name, None, _first_line(error))

    def _solve_beside(self, problem: Problem) -> Solution:
        """Solve something that the plan is compared with; an interrupt ends the comparing."""
        solution = self._solve(problem, explain=False)
        if solution.interrupted:
            raise KeyboardInterrupt
        return solution

    def _satisfies(self, problem: Problem, solution: Solution) -> bool:
        choices = [self.choices[i] for i in solution.used]
        colocated = {c.phase is Phase.COLOCATED for c in choices}
        if problem.colocated is ColocatedUse.ONLY and False in colocated:
            return False
        if problem.colocated is ColocatedUse.FORBIDDEN and True in colocated:
            return False
        kinds = {self.scenario.fleet[c.item].gpu.name for c in choices}
        return problem.max_gpu_types is None or len(kinds) <= problem.max_gpu_types

    def _simplest(self, solution: Solution, beside: Sequence[Beside]) -> Solution:
        """Of plans that are equally good, the one with fewest groups, then fewest GPUs."""
        equal = [
            b.solution
            for b in beside
            if b.solution is not None
            and b.solution is not solution
            and len(b.solution.used) <= len(solution.used)
            and math.isclose(b.solution.value, solution.value, rel_tol=SAME_VALUE)
            and not self._missed(b.solution)
        ]
        return min([solution, *equal], key=lambda s: (len(s.used), sum(s.gpus_used)))

    def described_beside(self, beside: Beside) -> Alternative:
        solution = beside.solution
        if solution is None:
            return Alternative(name=beside.name, value=None, cost=None, summary="none", reason=beside.reason)
        return Alternative(
            name=beside.name, value=solution.value, cost=solution.cost, summary=self.described(solution)
        )

    def described(self, solution: Solution) -> str:
        """The groups of a solution in words."""
        return "; ".join(
            described(q, part) for q, part in zip(self.questions, self.parts(solution), strict=True)
        )

    def _cost_at_half_confidence(self, solution: Solution) -> float | None:
        """Cost of the same scenario without margin for model error."""
        if self.scenario.objective is not Objective.COST or self.options.current is not None:
            return None
        questions = [with_candidates(q, partial(build_candidates, z=0.0)) for q in self.questions]
        try:
            return self._solve_beside(build_problem(questions, self.options.gap)).cost
        except (InfeasibleError, SolverError):
            return solution.cost


def _pools_that_miss(fleet: Fleet, z: float) -> set[Phase]:
    """Pools of a fleet that miss an SLO by prediction."""
    planned = summaries(fleet, z)
    pools: set[Phase] = set()
    for target in fleet.service.slo.targets:
        summary = planned[0] if target.metric is Metric.TTFT else planned[1]
        if getattr(summary, target.statistic) > target.limit:
            apart = Phase.PREFILL if target.metric is Metric.TTFT else Phase.DECODE
            pools |= {g.phase for g in fleet.groups if g.phase in (apart, Phase.COLOCATED)}
    return pools


def described(question: Question, solution: Solution) -> str:
    """The groups of one question in words."""
    parts = []
    for i in solution.used:
        choice = question.candidates.choices[i]
        gpu = question.item(choice).name
        parts.append(f"{solution.replicas[i]} x {gpu} {choice.parallelism} {choice.phase}")
    named = "" if question.alone else f"{question.service.name}: "
    return named + ", ".join(parts)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
