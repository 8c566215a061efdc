"""From a scenario to a plan: candidates, program, alternatives, prediction, answer.

The one place where the layers below meet. :func:`solve` is what ``planner solve`` and the notebooks
call; everything it returns is a :class:`~planner.plan.Plan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planner.candidates import CandidateSet, ReplicaChoice, build_candidates
from planner.documents.files import write_text_atomic
from planner.documents.scenario import LoadedScenario, read_scenario
from planner.engines import load_engine
from planner.errors import InfeasibleError, SolverError
from planner.infeasibility import explain
from planner.physics import needed
from planner.plan import (
    Alternative,
    Binding,
    Group,
    NodeUse,
    Plan,
    PredictedLatency,
    ServicePrediction,
)
from planner.prediction import (
    INTERVAL_Z,
    Deployed,
    Fleet,
    Occupancy,
    colocated_group_occupancy,
    decode_group_occupancy,
    path_rate,
    predict_fleet,
    prefill_occupancy,
)
from planner.program import CapacityCurve, GpuType, Problem, Solution, save_lp
from planner.program import solve as solve_program
from planner.queueing import normal_quantile
from planner.specs import (
    ColocatedUse,
    Engine,
    FleetItem,
    Metric,
    Objective,
    Phase,
    Scenario,
    Service,
)
from planner.traffic import Traffic
from planner.transformer import kv_bytes
from planner.units import MEGA, SECONDS_PER_HOUR

DEFAULT_GAP = 0.005
MOST_CORRECTIONS = 6
CORRECTION = 0.95  # of the capacity of groups that together miss an SLO [1]
NO_SUCH_FLEET = "no such fleet meets the scenario"
BATCH_MARGIN = 1.1  # of max_num_seqs over the batch that 99.9 % of steps stay below [1]


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
    on_stage : callable
        Told what is being done; for a progress line.
    """

    solver: str = "highs"
    time_limit: float | None = None
    gap: float = DEFAULT_GAP
    save_lp: Path | None = None
    alternatives: bool = True
    on_stage: Callable[[str], None] = lambda _stage: None


def solve(scenario: Scenario | LoadedScenario | str | Path, options: SolveOptions = SolveOptions()) -> Plan:
    """The best fleet for `scenario`.

    Parameters
    ----------
    scenario : Scenario, LoadedScenario, str or Path
        A path is read first.

    Raises
    ------
    SpecError
        If the scenario breaks a rule.
    InfeasibleError
        If no plan meets it; says what binds and what would help.
    SolverError
        If the solver failed or ran out of time before it had a plan.
    """
    loaded = _loaded(scenario)
    return _Search.of(loaded, options).plan()


def _loaded(scenario: Scenario | LoadedScenario | str | Path) -> LoadedScenario:
    if isinstance(scenario, Scenario):
        return LoadedScenario(scenario=scenario, document={})
    if isinstance(scenario, LoadedScenario):
        return scenario
    return read_scenario(Path(scenario))


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
class _Search:
    """One solve: what is asked, its candidates, and its program."""

    scenario: Scenario
    document: Mapping[str, Any]
    service: Service
    engine: Engine
    candidates: CandidateSet
    problem: Problem
    options: SolveOptions

    @classmethod
    def of(cls, loaded: LoadedScenario, options: SolveOptions) -> _Search:
        scenario = loaded.scenario
        (service,) = scenario.services
        engine = load_engine(service.engine)
        options.on_stage("evaluating candidates")
        candidates = build_candidates(scenario, service, engine)
        problem = build_problem(scenario, service, candidates, options.gap)
        return cls(scenario, loaded.document, service, engine, candidates, problem, options)

    def plan(self) -> Plan:
        if self.options.save_lp is not None:
            self._save_program(self.options.save_lp)
        search, solution = self, self._best()
        for _ in range(MOST_CORRECTIONS):
            missed = search._missed(solution)
            if not missed or solution.interrupted:
                break
            search = search._corrected(solution, missed)
            solution = search._best()
        return search._compared(solution)

    def _best(self) -> Solution:
        """The program's plan, or why there is none."""
        self.options.on_stage("solving the integer program")
        try:
            return self._solve(self.problem)
        except InfeasibleError as error:
            self.options.on_stage("explaining why there is no plan")
            raise explain(
                self.scenario, self.service, self.engine, self.candidates, self.problem, error
            ) from None

    def _missed(self, solution: Solution) -> set[Phase]:
        """Pools that, put together, miss an SLO at the error planned for.

        Capacities are computed group by group and by closed forms; this is the check of the whole.
        """
        fleet = self._fleet(solution)
        planned = predict_fleet(fleet, self._planned_z).summaries()
        pools: set[Phase] = set()
        for target in self.service.slo.targets:
            summary = planned[0] if target.metric is Metric.TTFT else planned[1]
            if getattr(summary, target.statistic) > target.limit:
                apart = Phase.PREFILL if target.metric is Metric.TTFT else Phase.DECODE
                pools |= {g.phase for g in fleet.groups if g.phase in (apart, Phase.COLOCATED)}
        return pools

    def _corrected(self, solution: Solution, pools: set[Phase]) -> _Search:
        """The same search with less capacity for the groups of `pools` that `solution` uses."""
        used = {i for i, n in enumerate(solution.replicas) if n}
        corrected = tuple(
            replace(c, curve=_scaled(c.curve, CORRECTION)) if i in used and c.phase in pools else c
            for i, c in enumerate(self.candidates.candidates)
        )
        return replace(
            self,
            candidates=replace(self.candidates, candidates=corrected),
            problem=replace(self.problem, candidates=corrected),
        )

    def _compared(self, solution: Solution) -> Plan:
        """The plan with what it is compared with."""
        missed = self._missed(solution)
        if missed and not solution.interrupted:
            pools = " and ".join(sorted(missed))
            raise SolverError(f"no plan was found that holds as a whole: {pools} keeps missing an SLO")
        alternatives: tuple[Alternative, ...] = ()
        at_half = None
        if self.options.alternatives and not solution.interrupted:
            self.options.on_stage("looking for alternatives")
            try:
                alternatives = self._alternatives(solution)
                at_half = self._cost_at_half_confidence(solution)
            except KeyboardInterrupt:  # the plan itself is complete
                return self._assemble(solution, (), None, ("interrupted before alternatives were found",))
        self.options.on_stage("predicting latencies")
        return self._assemble(solution, alternatives, at_half)

    def _save_program(self, path: Path) -> None:
        """Write the program whole or not at all; the solver's writer knows only files."""
        with TemporaryDirectory() as folder:
            draft = Path(folder) / "program.lp"
            save_lp(self.problem, draft)
            write_text_atomic(path, draft.read_text(encoding="utf-8"))

    def _solve(self, problem: Problem, explain: bool = True) -> Solution:
        options = self.options
        return solve_program(problem, solver=options.solver, time_limit=options.time_limit, explain=explain)

    def _solve_beside(self, problem: Problem) -> Solution:
        """Solve something that the plan is compared with; an interrupt ends the comparing."""
        solution = self._solve(problem, explain=False)
        if solution.interrupted:
            raise KeyboardInterrupt
        return solution

    # ---------------------------------------------------------------------------------------
    # Alternatives

    def _alternatives(self, solution: Solution) -> tuple[Alternative, ...]:
        """The best plan of each kind that a reader would ask for."""
        asked = self.problem
        kinds = [("best single GPU type", replace(asked, max_gpu_types=1))]
        if asked.colocated is ColocatedUse.ALLOWED:
            kinds += [
                ("best colocated", replace(asked, colocated=ColocatedUse.ONLY)),
                ("best disaggregated", replace(asked, colocated=ColocatedUse.FORBIDDEN)),
            ]
        return tuple(self._alternative(name, problem, solution) for name, problem in kinds)

    def _alternative(self, name: str, problem: Problem, solution: Solution) -> Alternative:
        if self._satisfies(problem, solution):
            return self._described(name, solution)
        try:
            return self._described(name, self._solve_beside(problem))
        except InfeasibleError:
            return Alternative(name=name, value=None, cost=None, summary="none", reason=NO_SUCH_FLEET)
        except SolverError as error:
            return Alternative(name=name, value=None, cost=None, summary="none", reason=_first_line(error))

    def _satisfies(self, problem: Problem, solution: Solution) -> bool:
        used = [i for i, n in enumerate(solution.replicas) if n]
        colocated = any(self.candidates.choices[i].phase is Phase.COLOCATED for i in used)
        if problem.colocated is ColocatedUse.ONLY and not colocated:
            return False
        if problem.colocated is ColocatedUse.FORBIDDEN and colocated:
            return False
        types = {self.candidates.choices[i].item for i in used}
        return problem.max_gpu_types is None or len(types) <= problem.max_gpu_types

    def _described(self, name: str, solution: Solution) -> Alternative:
        parts = [
            f"{n} x {self._gpu(choice).gpu.name} {choice.parallelism} {choice.phase}"
            for choice, n in zip(self.candidates.choices, solution.replicas, strict=True)
            if n
        ]
        return Alternative(name=name, value=solution.value, cost=solution.cost, summary=", ".join(parts))

    def _cost_at_half_confidence(self, solution: Solution) -> float | None:
        """Cost of the same scenario without margin for model error."""
        if self.scenario.objective is not Objective.COST:
            return None
        candidates = build_candidates(self.scenario, self.service, self.engine, z=0.0)
        problem = build_problem(self.scenario, self.service, candidates, self.options.gap)
        try:
            return self._solve_beside(problem).cost
        except (InfeasibleError, SolverError):
            return solution.cost

    # ---------------------------------------------------------------------------------------
    # The plan

    def _gpu(self, choice: ReplicaChoice) -> FleetItem:
        return self.scenario.fleet[choice.item]

    def _assemble(
        self,
        solution: Solution,
        alternatives: tuple[Alternative, ...],
        at_half: float | None,
        notes: tuple[str, ...] = (),
    ) -> Plan:
        used = [i for i, n in enumerate(solution.replicas) if n]
        fleet = self._fleet(solution)
        members = zip(used, fleet.groups, strict=True)
        groups = _named_apart(tuple(self._group(i, solution, fleet, group) for i, group in members))
        prediction = self._prediction(fleet.service, fleet, solution)
        return Plan(
            status=solution.status,
            objective=self.scenario.objective,
            value=solution.value,
            bound=solution.bound,
            gap=solution.gap,
            cost=solution.cost,
            power=sum(
                paid * item.gpu.power
                for paid, item in zip(solution.gpus_paid, self.scenario.fleet, strict=True)
            ),
            groups=groups,
            nodes=self._nodes(solution),
            predictions=(prediction,),
            alternatives=alternatives,
            engine=self.engine.name,
            engine_version=self.engine.version,
            routing=self.scenario.options.routing.value,
            scenario=self.document,
            provenance=self._provenance(used),
            notes=(*notes, *self._notes(solution, groups)),
            cost_at_half_confidence=at_half,
        )

    @property
    def _planned_z(self) -> float:
        """Normal quantile of the model error that is planned for."""
        return float(normal_quantile(self.scenario.options.confidence))

    def _fleet(self, solution: Solution) -> Fleet:
        """The groups of `solution` as they stand behind the router."""
        used = [i for i, n in enumerate(solution.replicas) if n]
        return Fleet(
            service=self._served(solution),
            engine=self.engine,
            groups=tuple(self._deployed(i, solution) for i in used),
            routing=self.scenario.options.routing,
        )

    def _served(self, solution: Solution) -> Service:
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
            item=self._gpu(choice),
            parallelism=choice.parallelism,
            replicas=solution.replicas[index],
            rate=solution.flows[index] / headroom,
            token_budget=choice.token_budget,
            kv_tokens=choice.kv_tokens,
            max_num_seqs=choice.max_num_seqs,
        )

    def _occupancy(self, fleet: Fleet, group: Deployed) -> Occupancy:
        z = self._planned_z
        if group.phase is Phase.PREFILL:
            return prefill_occupancy(fleet, group, z)
        if group.phase is Phase.DECODE:
            return decode_group_occupancy(fleet, group, z)
        return colocated_group_occupancy(fleet, group, z)

    def _group(self, index: int, solution: Solution, fleet: Fleet, group: Deployed) -> Group:
        choice, candidate = self.candidates.choices[index], self.candidates.candidates[index]
        occupancy = self._occupancy(fleet, group)
        item = group.item
        price = 0.0 if item.owned else item.price
        gpus = group.replicas * choice.parallelism.num_gpus
        physical = needed(fleet.service, group, occupancy.mean_batch)
        if max(physical.compute, physical.bandwidth) > 1.0:
            raise SolverError(
                f"{candidate.name}: the plan needs {physical.compute:.0%} of peak FLOP/s and "
                f"{physical.bandwidth:.0%} of memory bandwidth; please report this"
            )
        point = max(k for k, n in enumerate(candidate.curve.starts) if n <= group.replicas)
        return Group(
            name=f"{choice.phase}-{item.gpu.name}-" + str(choice.parallelism).lower().replace(" ", "-"),
            service=self.service.model.name,
            phase=choice.phase,
            gpu=item.gpu.name,
            parallelism=choice.parallelism,
            replicas=group.replicas,
            precision=self.service.precision,
            max_num_seqs=self._max_num_seqs(choice, occupancy),
            max_num_batched_tokens=choice.token_budget,
            max_model_len=self._max_model_len(),
            kv_capacity=choice.kv_tokens,
            memory=choice.memory,
            request_rate=group.rate,
            capacity=candidate.curve.capacity(group.replicas),
            mean_batch=occupancy.mean_batch,
            busy=occupancy.busy,
            binds=self.candidates.binds[index][point],
            compute_utilization=physical.compute,
            bandwidth_utilization=physical.bandwidth,
            network_utilization=self._network(fleet, group),
            cost=None if price is None else gpus * price,
            calibration=str(item.gpu.calibration.status),
            zone=item.zone,
        )

    def _max_num_seqs(self, choice: ReplicaChoice, occupancy: Occupancy) -> int:
        """Limit that 99 % of steps stay well below; never above what memory was planned for."""
        if choice.phase is Phase.PREFILL or not math.isfinite(occupancy.batch_p99):
            return choice.max_num_seqs
        wanted = 8 * math.ceil((BATCH_MARGIN * occupancy.batch_p99 + 4) / 8)
        return min(choice.max_num_seqs, wanted)

    def _max_model_len(self) -> int:
        """Longest sequence of the traffic, rounded up, within what the model supports."""
        longest = Traffic.of_service(self.service).longest
        return min(self.service.model.max_context, 256 * math.ceil(longest / 256))

    def _network(self, fleet: Fleet, group: Deployed) -> float:
        """Load of the group's NICs by KV transfer. [1]"""
        if group.phase is Phase.COLOCATED:
            return 0.0
        traffic = Traffic.of_service(self.service)
        sizes = kv_bytes(self.service.model, self.service.precision.kv_cache, traffic.isl)
        moved = group.rate * float(traffic.isl_weights @ sizes)
        own = path_rate(fleet, group, group) * group.parallelism.dp * group.replicas
        return moved / own

    def _prediction(self, service: Service, fleet: Fleet, solution: Solution) -> ServicePrediction:
        planned_z = self._planned_z
        expected, planned, low, high = (
            predict_fleet(fleet, z).summaries() for z in (0.0, planned_z, -INTERVAL_Z, INTERVAL_Z)
        )
        traffic = Traffic.of_service(service)
        rate = service.workload.request_rate

        def per_million(tokens_per_request: float) -> float | None:
            if solution.cost is None:
                return None
            return solution.cost / (rate * tokens_per_request * SECONDS_PER_HOUR) * MEGA

        return ServicePrediction(
            service=service.model.name,
            request_rate=rate,
            ttft=PredictedLatency(
                metric=Metric.TTFT, expected=expected[0], planned=planned[0], low=low[0], high=high[0]
            ),
            tpot=PredictedLatency(
                metric=Metric.TPOT, expected=expected[1], planned=planned[1], low=low[1], high=high[1]
            ),
            slo=service.slo.targets,
            cost_per_million_input_tokens=per_million(traffic.mean_isl),
            cost_per_million_output_tokens=per_million(traffic.mean_osl),
            cost_per_million_tokens=per_million(traffic.mean_isl + traffic.mean_osl),
        )

    def _nodes(self, solution: Solution) -> tuple[NodeUse, ...]:
        return tuple(
            NodeUse(
                gpu=item.gpu.name,
                gpus_used=used,
                gpus_paid=paid,
                nodes=nodes,
                price=0.0 if item.owned else item.price,
                zone=item.zone,
            )
            for item, used, paid, nodes in zip(
                self.scenario.fleet, solution.gpus_used, solution.gpus_paid, solution.nodes, strict=True
            )
            if used
        )

    def _provenance(self, used: list[int]) -> tuple[str, ...]:
        items = {self.candidates.choices[i].item for i in used}
        lines = []
        for index in sorted(items):
            gpu = self.scenario.fleet[index].gpu
            c = gpu.calibration
            lines.append(f"GPU {gpu.name}: {c.status} ({c.date}); {c.method}")
            if source := self.scenario.fleet[index].price_source:
                lines.append(f"price of {gpu.name}: {source}")
        lines.append(f"engine {self.engine.name} {self.engine.version}: {self.engine.provenance}")
        lines.append(f"model {self.service.model.name}: {self.service.model.source}")
        workload = self.service.workload
        if workload.citation:
            lines.append(f"traffic {workload.name}: {workload.citation}")
        return tuple(lines)

    def _notes(self, solution: Solution, groups: tuple[Group, ...]) -> tuple[str, ...]:
        notes = [self.service.workload.note] if self.service.workload.note else []
        asked = self.document.get("workload")
        if self.scenario.objective is Objective.THROUGHPUT and "request_rate" in (asked or {}):
            notes.append("request_rate is not used: objective throughput looks for the largest rate")
        if solution.interrupted:
            notes.append("search interrupted: this is the best plan found so far")
        types = {g.gpu for g in groups if g.phase is not Phase.COLOCATED}
        assumed = [i.gpu.name for i in self.scenario.fleet if i.gpu.name in types and not i.network_given]
        if assumed:
            notes.append(f"network of {', '.join(assumed)} not given: the profile's usual share is assumed")
        used = {g.gpu for g in groups}
        notes += [
            f"price of {item.gpu.name}: {item.price_source}"
            for item in self.scenario.fleet
            if item.gpu.name in used and item.price_source
        ]
        estimated = sorted({g.gpu for g in groups if g.calibration == "estimated"})
        if estimated:
            notes.append(f"calibration of {', '.join(estimated)} is estimated, not measured")
        if any(g.binds is Binding.NETWORK for g in groups):
            notes.append("the network binds: a faster one carries more load on the same GPUs")
        return tuple(notes)


def _scaled(curve: CapacityCurve, factor: float) -> CapacityCurve:
    return replace(curve, per_replica=tuple(factor * rate for rate in curve.per_replica))


def _named_apart(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Groups whose names are alike get a number."""
    names = [g.name for g in groups]
    return tuple(
        replace(g, name=f"{g.name}-{names[: i + 1].count(g.name)}") if names.count(g.name) > 1 else g
        for i, g in enumerate(groups)
    )


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
