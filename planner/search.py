"""From a scenario to a plan by prediction alone: candidates, program, check of the whole, alternatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from planner.assembly import Assembly
from planner.candidates import CandidateSet, build_candidates, replicas_in_stock
from planner.documents.files import write_text_atomic
from planner.documents.scenario import LoadedScenario
from planner.engines import load_engine
from planner.errors import InfeasibleError, SolverError
from planner.infeasibility import explain
from planner.plan import Alternative, Plan
from planner.prediction import predict_fleet
from planner.program import Candidate, GpuType, Problem, Solution, save_lp
from planner.program import solve as solve_program
from planner.question import Question
from planner.specs import ColocatedUse, Engine, FleetItem, Metric, Objective, Phase, Scenario, Service

DEFAULT_GAP = 0.005
MOST_CORRECTIONS = 6
CORRECTION = 0.95  # of the capacity of groups that together miss an SLO [1]
SAME_VALUE = 1e-9  # relative difference below which two plans are equally good [1]
COLOCATED, DISAGGREGATED = "best colocated", "best disaggregated"
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
    on_stage : callable
        Told what is being done; for a progress line.
    build : callable or None
        Gives the candidates of a service in place of :func:`build_candidates`; what asks many questions of
        one scenario keeps them.
    explain : bool
        Whether what is in the way of a plan is looked for where there is none, which takes seconds.
    """

    solver: str = "highs"
    time_limit: float | None = None
    gap: float = DEFAULT_GAP
    save_lp: Path | None = None
    alternatives: bool = True
    verify: bool = True
    seed: int = 0
    on_stage: Callable[[str], None] = lambda _stage: None
    build: Callable[[Scenario, Service, Engine], CandidateSet] | None = None
    explain: bool = True


def gpu_type(item: FleetItem) -> GpuType:
    """What the program knows of one line of the fleet; owned GPUs cost nothing more."""
    return GpuType(
        name=item.gpu.name,
        price=0.0 if item.owned else item.price,
        power=item.gpu.power,
        node_size=item.node_size,
        max_gpus=item.max_gpus,
        max_gpus_by_phase=item.max_gpus_by_phase,
    )


def build_problem(scenario: Scenario, service: Service, candidates: CandidateSet, gap: float) -> Problem:
    """The program of one service."""
    options = scenario.options
    throughput = scenario.objective is Objective.THROUGHPUT
    return Problem(
        candidates=candidates.candidates,
        gpu_types=tuple(gpu_type(item) for item in scenario.fleet),
        demand=None if throughput else service.workload.request_rate * (1 + options.headroom),
        objective=scenario.objective,
        budget=scenario.budget,
        illegal_pairs=candidates.illegal_pairs,
        min_replicas_per_pool=options.min_replicas_per_pool,
        spare_replicas=options.spare_replicas,
        whole_nodes=options.whole_nodes,
        colocated=options.colocated,
        gap=gap,
    )


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

    def plan(self, notes: tuple[str, ...] = ()) -> Plan:
        alternatives = tuple(self.search.described_beside(b) for b in self.beside)
        assembly = Assembly(self.search.question)
        return assembly.plan(self.solution, alternatives, self.at_half, (*self.notes, *notes))


@dataclass(frozen=True, slots=True)
class Search:
    """One solve: the question, and its program."""

    loaded: LoadedScenario
    question: Question
    problem: Problem
    options: SolveOptions

    @classmethod
    def of(cls, loaded: LoadedScenario, options: SolveOptions) -> Search:
        scenario = loaded.scenario
        (service,) = scenario.services
        engine = load_engine(service.engine)
        options.on_stage("evaluating candidates")
        candidates = (options.build or build_candidates)(scenario, service, engine)
        question = Question(
            scenario=scenario, document=loaded.document, service=service, engine=engine, candidates=candidates
        )
        problem = build_problem(scenario, service, candidates, options.gap)
        return cls(loaded, question, problem, options)

    def holding(self) -> tuple[Search, Solution]:
        """The program's plan, with capacities lowered until it holds as a whole by prediction."""
        search, solution = self, self.best()
        missed = search._missed(solution)
        for _ in range(MOST_CORRECTIONS):
            if not missed or solution.interrupted:
                return search, solution
            search = search._lowered(solution, missed)
            solution = search.best()
            missed = search._missed(solution)
        pools = " and ".join(sorted(missed))
        raise SolverError(f"no plan was found that holds as a whole: {pools} keeps missing an SLO")

    def save_program(self, path: Path) -> None:
        """Write the program whole or not at all; the solver's writer knows only files."""
        with TemporaryDirectory() as folder:
            draft = Path(folder) / "program.lp"
            save_lp(self.problem, draft)
            write_text_atomic(path, draft.read_text(encoding="utf-8"))

    def _solve(self, problem: Problem, explain: bool = True) -> Solution:
        options = self.options
        return solve_program(problem, solver=options.solver, time_limit=options.time_limit, explain=explain)

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
            q = self.question
            raise explain(q.scenario, q.service, q.engine, q.candidates, error) from None

    # ---------------------------------------------------------------------------------------
    # The plan as a whole

    def _missed(self, solution: Solution) -> set[Phase]:
        """Pools that, put together, miss an SLO at the error planned for.

        Capacities are computed group by group and by closed forms; this is the check of the whole.
        """
        fleet = self.question.fleet(solution)
        planned = predict_fleet(fleet, self.question.planned_z).summaries()
        pools: set[Phase] = set()
        for target in self.question.service.slo.targets:
            summary = planned[0] if target.metric is Metric.TTFT else planned[1]
            if getattr(summary, target.statistic) > target.limit:
                apart = Phase.PREFILL if target.metric is Metric.TTFT else Phase.DECODE
                pools |= {g.phase for g in fleet.groups if g.phase in (apart, Phase.COLOCATED)}
        return pools

    def with_factors(self, factors: Sequence[float]) -> Search:
        """The same search with the capacity of each candidate times its factor. [1]

        Where it falls, the demand can use more replicas than before, as far as the stock goes.
        """
        candidates = self.question.candidates
        corrected = tuple(
            c if factor == 1.0 else self._scaled(i, factor)
            for i, (c, factor) in enumerate(zip(candidates.candidates, factors, strict=True))
        )
        return replace(
            self,
            question=replace(self.question, candidates=replace(candidates, candidates=corrected)),
            problem=replace(self.problem, candidates=corrected),
        )

    def _scaled(self, index: int, factor: float) -> Candidate:
        candidate, choice = (
            self.question.candidates.candidates[index],
            self.question.candidates.choices[index],
        )
        rates = tuple(factor * rate for rate in candidate.curve.per_replica)
        most = candidate.max_replicas
        if 0 < factor < 1:
            stock = replicas_in_stock(self.question.item(choice), choice)
            most = max(most, min(stock, math.ceil(most / factor)))
        return replace(candidate, curve=replace(candidate.curve, per_replica=rates), max_replicas=most)

    def _lowered(self, solution: Solution, pools: set[Phase]) -> Search:
        """Less capacity for the groups of `pools` that `solution` uses."""
        used = set(solution.used)
        return self.with_factors(
            [
                CORRECTION if i in used and c.phase in pools else 1.0
                for i, c in enumerate(self.question.candidates.candidates)
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
            at_half = self._cost_at_half_confidence(solution)
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
        choices = [self.question.candidates.choices[i] for i in solution.used]
        colocated = any(c.phase is Phase.COLOCATED for c in choices)
        if problem.colocated is ColocatedUse.ONLY and not colocated:
            return False
        if problem.colocated is ColocatedUse.FORBIDDEN and colocated:
            return False
        return problem.max_gpu_types is None or len({c.item for c in choices}) <= problem.max_gpu_types

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
        parts = []
        for i in solution.used:
            choice = self.question.candidates.choices[i]
            gpu = self.question.item(choice).gpu.name
            parts.append(f"{solution.replicas[i]} x {gpu} {choice.parallelism} {choice.phase}")
        return ", ".join(parts)

    def _cost_at_half_confidence(self, solution: Solution) -> float | None:
        """Cost of the same scenario without margin for model error."""
        q = self.question
        if q.scenario.objective is not Objective.COST:
            return None
        candidates = build_candidates(q.scenario, q.service, q.engine, z=0.0)
        try:
            return self._solve_beside(build_problem(q.scenario, q.service, candidates, self.options.gap)).cost
        except (InfeasibleError, SolverError):
            return solution.cost


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
