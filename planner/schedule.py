"""Plans that follow their traffic: replicas for every period, against a fleet that stays as it is.

The same steps as for one rate: candidates, program (here of all periods), simulation, corrected capacities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.assembly import INTERRUPTED, Assembly, groups_of
from planner.documents.scenario import LoadedScenario
from planner.errors import InfeasibleError, SolverError, SpecError
from planner.fleet import distinct_names, group_label
from planner.learning import Factors, Learner, Run
from planner.plan import Alternative, Group, HorizonSummary, NodeUse, PeriodPlan, Plan
from planner.program import Solution
from planner.program.horizon import Horizon, HorizonSolution, Period, Stream
from planner.program.horizon import solve as solve_horizon
from planner.question import Question
from planner.search import COLOCATED, DISAGGREGATED, NO_SUCH_FLEET, Search, SolveOptions, described
from planner.specs import ColocatedUse, Objective, Phase, PriceClass, Scaling, Scenario, SpareScope
from planner.specs import Period as TrafficPeriod
from planner.supply import Supply, supplies, with_supplies

MOST_ROUNDS = 4
STATIC = "fleet that stays as it is"


def solve_schedule(loaded: LoadedScenario, options: SolveOptions) -> Plan:
    """The cheapest fleet for every period of a scenario with a schedule of rates.

    Raises
    ------
    SpecError
        If the scenario asks for something that plans over periods do not have.
    InfeasibleError, SolverError
        As :func:`planner.workflow.solve`.
    """
    _require_supported(loaded.scenario, options)
    found = supplies(loaded.scenario.fleet)
    whole = replace(loaded, scenario=with_supplies(loaded.scenario, found))
    schedule = Schedule(Search.of(whole, options), found)
    timetable = schedule.solved(schedule.search.problem.colocated)
    if timetable.answer.interrupted or not options.verify:
        return schedule.plan(timetable)
    try:
        return _corrected(schedule, timetable)
    except KeyboardInterrupt:  # the plan itself is complete
        return schedule.plan(timetable, notes=("interrupted before the plan was simulated",))


def _require_supported(scenario: Scenario, options: SolveOptions) -> None:
    asked = scenario.options
    refused = {
        "an objective other than cost": scenario.objective is not Objective.COST,
        "budget_per_hour": scenario.budget is not None,
        "fleet: several zones": len({item.zone for item in scenario.fleet}) > 1,
        "zones": bool(scenario.zones),
        "power": scenario.power is not None,
        "fleet: max_prefill_gpus, max_decode_gpus, max_colocated_gpus": any(
            item.max_gpus_by_phase for item in scenario.fleet
        ),
        "options.spare_scope: pool": asked.spare_scope is SpareScope.POOL and asked.spare_replicas > 0,
        "options.survive": asked.survive_node or asked.survive_zone,
        "options.rolling_upgrade_surge": asked.surge_replicas > 0,
        "options.on_demand_floor": asked.on_demand_floor > 0,
        "--from": options.current is not None,
        "--save-lp": options.save_lp is not None,
    }
    named = [what for what, given in refused.items() if given]
    if named:
        where = f"{scenario.source}: " if scenario.source else ""
        rule = "not supported together with a schedule of rates"
        hint = "give one request_rate, the peak, to plan with it"
        raise SpecError(f"{where}{', '.join(named)}: {rule} ({hint})")


@dataclass(frozen=True, slots=True)
class Timetable:
    """What the program of all periods found, and the load of each stream in each period."""

    answer: HorizonSolution
    solutions: tuple[Solution, ...]

    @property
    def busiest(self) -> int:
        """The period with most requests."""
        return max(range(len(self.solutions)), key=lambda t: self.solutions[t].rate)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A search over all periods; `supplies` are the lines of its fleet."""

    search: Search
    supplies: tuple[Supply, ...]

    @property
    def questions(self) -> tuple[Question, ...]:
        return self.search.questions

    def horizon(self, colocated: ColocatedUse) -> Horizon:
        """The program of all periods."""
        problem, scenario = self.search.problem, self.search.scenario
        options = scenario.options
        scaling = scenario.scaling or Scaling()
        periods = self.questions[0].service.workload.periods
        return Horizon(
            streams=tuple(
                Stream(
                    name=q.service.name,
                    candidates=q.candidates.candidates,
                    illegal_pairs=q.candidates.illegal_pairs,
                    min_replicas_per_pool=options.min_replicas_per_pool,
                    spare_replicas=options.spare_replicas,
                    colocated=colocated,
                )
                for q in self.questions
            ),
            periods=tuple(Period(name=p.name, hours=p.hours) for p in periods),
            gpu_types=problem.gpu_types,
            demands=tuple(
                tuple(p.request_rate * (1 + options.headroom) for p in q.service.workload.periods)
                for q in self.questions
            ),
            offers=tuple(supply.offer for supply in self.supplies),
            whole_nodes=options.whole_nodes,
            max_added=scaling.max_added,
            max_removed=scaling.max_removed,
            cyclic=scaling.cyclic,
            startup_hours=scaling.startup,
            gap=problem.gap,
        )

    def solved(self, colocated: ColocatedUse) -> Timetable:
        """The best timetable, or why there is none."""
        self.search.options.on_stage("solving the program of all periods")
        horizon = self.horizon(colocated)
        try:
            answer = solve_horizon(horizon, time_limit=self.search.options.time_limit)
        except InfeasibleError as error:
            self.search.best()  # says why, if one period alone is too much
            hint = "max_added_replicas, max_removed_replicas or the stock leave no way from period to period"
            raise InfeasibleError(error.binding, error.shortfall, (*error.suggestions, hint)) from None
        periods = range(len(horizon.periods))
        return Timetable(answer, tuple(self._solution(horizon, answer, t) for t in periods))

    def _solution(self, horizon: Horizon, answer: HorizonSolution, t: int) -> Solution:
        """One period as a solution of the program of one."""
        problem = self.search.problem
        replicas: list[int] = []
        flows: list[float] = []
        for s, q in enumerate(self.questions):
            counts, rate = answer.replicas[s][t], horizon.demands[s][t]
            usable = [
                c.curve.capacity(n - problem.spare_replicas)
                for c, n in zip(q.candidates.candidates, counts, strict=True)
            ]
            replicas += counts
            flows += _shares(q, usable, rate)
        used = [0] * len(problem.gpu_types)
        for c, n in zip(problem.candidates, replicas, strict=True):
            used[c.gpu_type] += n * c.gpus
        blocks = [problem.gpu_block(g) for g in range(len(used))]
        paid = [-(-u // b) * b for u, b in zip(used, blocks, strict=True)]
        return Solution(
            replicas=tuple(replicas),
            flows=tuple(flows),
            gpus_used=tuple(used),
            gpus_paid=tuple(paid),
            nodes=tuple(-(-u // k.node_size) for u, k in zip(used, problem.gpu_types, strict=True)),
            cost=self._hourly(answer, t),
            value=answer.value / horizon.hours,
            bound=answer.bound / horizon.hours,
            gap=answer.gap,
            rate=sum(row[t] for row in horizon.demands),
            status=answer.status,
            interrupted=answer.interrupted,
        )

    def _hourly(self, answer: HorizonSolution, t: int) -> float:
        """What is paid for while a period lasts. [USD/h]"""
        kinds = self.search.problem.gpu_types
        reserved = sum(
            n * (supply.offer.reserved_price or 0.0)
            for n, supply in zip(answer.reserved, self.supplies, strict=True)
        )
        on_demand = sum(
            row[t] * (kind.price or 0.0) for row, kind in zip(answer.on_demand, kinds, strict=True)
        )
        return reserved + on_demand

    def _price(self, timetable: Timetable, g: int, t: int) -> float:
        """What a GPU of one type costs in a period, however it is paid for, on average. [USD/h]"""
        answer, supply = timetable.answer, self.supplies[g]
        reserved = answer.reserved[g] * (supply.offer.reserved_price or 0.0)
        on_demand = answer.on_demand[g][t] * (self.search.problem.gpu_types[g].price or 0.0)
        return (reserved + on_demand) / max(timetable.solutions[t].gpus_paid[g], answer.reserved[g], 1)

    def parts(self, solution: Solution, t: int) -> tuple[Solution, ...]:
        """One period's solution by question; a question without requests has none."""
        found, start = [], 0
        headroom = 1 + self.search.scenario.options.headroom
        for q in self.questions:
            end = start + len(q.candidates.choices)
            rate = q.service.workload.periods[t].request_rate * headroom
            counts = solution.replicas[start:end] if rate else (0,) * (end - start)
            part = replace(solution, replicas=counts, flows=solution.flows[start:end], rate=rate)
            found.append(part)
            start = end
        return tuple(found)

    # ---------------------------------------------------------------------------------------
    # The answer

    def plan(self, timetable: Timetable, notes: Sequence[str] = ()) -> Plan:
        """A timetable as the plan that people get: each service's groups as in its busiest period."""
        answer, hours = timetable.answer, sum(p.hours for p in self._periods())
        names = self._names(timetable)
        busiest = replace(timetable.solutions[timetable.busiest], interrupted=False)
        plan = Assembly(self.questions).plan(busiest, self._busiest_parts(timetable), (), None)
        mean = answer.value / hours
        static = answer.static
        said = [INTERRUPTED] if answer.interrupted else []
        groups = tuple(self._groups(timetable, names))
        idle = (
            "; groups at 0 req/s stand in other periods only"
            if not all(g.request_rate for g in groups)
            else ""
        )
        said.append(
            f"groups, latencies and cost per token are those of a service's busiest period{idle}; cost is "
            "the mean of all periods"
        )
        return replace(
            plan,
            value=mean,
            bound=answer.bound / hours,
            gap=answer.gap,
            cost=mean,
            groups=groups,
            nodes=tuple(self._nodes(timetable)),
            alternatives=self._alternatives(timetable, hours),
            periods=tuple(self._period(timetable, k, names) for k in range(len(timetable.solutions))),
            horizon=HorizonSummary(
                hours=hours,
                cost=answer.value,
                static_cost=None if static is None else static.value,
                saving=answer.saving,
                reserved={
                    supply.item.gpu.name: count
                    for supply, count in zip(self.supplies, answer.reserved, strict=True)
                    if count
                },
            ),
            notes=(*notes, *said, *plan.notes),
        )

    def _peak(self, stream: int) -> int:
        """The busiest period of one service."""
        rates = [p.request_rate for p in self.questions[stream].service.workload.periods]
        return rates.index(max(rates))

    def _busiest_parts(self, timetable: Timetable) -> tuple[Solution, ...]:
        """What each question gets in its busiest period."""
        peaks = [self._peak(k) for k in range(len(self.questions))]
        return tuple(self.parts(timetable.solutions[t], t)[k] for k, t in enumerate(peaks))

    def _groups(self, timetable: Timetable, names: Mapping[int, str]) -> Iterator[Group]:
        """All groups of all periods, as in the service's busiest, or as where they get most requests."""
        rows = [self.parts(solution, t) for t, solution in enumerate(timetable.solutions)]
        start = 0
        for k, q in enumerate(self.questions):
            mine = [row[k] for row in rows]
            usual = groups_of(q, mine[self._peak(k)])
            used = sorted({i for part in mine for i in part.used})
            for i in used:
                t = self._peak(k)
                if i not in usual:
                    t = max(
                        range(len(mine)),
                        key=lambda t: (mine[t].flows[i] * mine[t].replicas[i], mine[t].replicas[i]),
                    )
                group = usual.get(i) or replace(
                    groups_of(q, mine[t])[i], request_rate=0.0, busy=0.0, mean_batch=0.0
                )
                price = self._price(timetable, q.candidates.choices[i].item, t)
                yield replace(group, name=names[start + i], cost=group.num_gpus * price)
            start += len(q.candidates.choices)

    def _periods(self) -> Sequence[TrafficPeriod]:
        return self.questions[0].service.workload.periods

    def _names(self, timetable: Timetable) -> dict[int, str]:
        """Names of all groups of all periods, by candidate."""
        used = [i for i in range(len(self.search.choices)) if any(s.replicas[i] for s in timetable.solutions)]
        candidates = self.search.problem.candidates
        labels = []
        for i in used:
            q, choice = self.questions[candidates[i].stream], self.search.choices[i]
            label = group_label(choice.phase, q.item(choice), choice.parallelism)
            labels.append(label if q.alone else f"{q.service.name}-{label}")
        return dict(zip(used, distinct_names(labels), strict=True))

    def _period(self, timetable: Timetable, t: int, names: dict[int, str]) -> PeriodPlan:
        period, solution = self._periods()[t], timetable.solutions[t]
        return PeriodPlan(
            name=period.name,
            hours=period.hours,
            cost=solution.cost,
            replicas={name: solution.replicas[i] for i, name in names.items()},
            request_rates={
                q.service.name: q.service.workload.periods[t].request_rate for q in self.questions
            },
        )

    def _nodes(self, timetable: Timetable) -> Iterator[NodeUse]:
        """GPUs of the busiest period: owned and reserved ones first, then those on demand."""
        t, answer = timetable.busiest, timetable.answer
        solution = timetable.solutions[t]
        for g, supply in enumerate(self.supplies):
            left, item = solution.gpus_used[g], supply.item
            size = item.node_size
            on_demand = answer.on_demand[g][t]
            owned = solution.gpus_paid[g] - answer.reserved[g] - on_demand
            for paid, price, kind in (
                (max(owned, 0), 0.0, item.price_class),
                (answer.reserved[g], supply.offer.reserved_price, PriceClass.RESERVED),
                (on_demand, item.price, item.price_class),
            ):
                used = min(left, paid)
                left -= used
                if paid:
                    yield NodeUse(
                        gpu=item.gpu.name,
                        gpus_used=used,
                        gpus_paid=paid,
                        nodes=-(-paid // size),
                        price=price,
                        zone=item.zone,
                        price_class=kind,
                    )

    def _alternatives(self, timetable: Timetable, hours: float) -> tuple[Alternative, ...]:
        """A fleet that stays as it is, and the best timetable of each kind."""
        static = timetable.answer.static
        if static is None:
            found = [Alternative(name=STATIC, value=None, cost=None, summary="none", reason=NO_SUCH_FLEET)]
        else:
            cost = static.value / hours
            text = "; ".join(
                described(q, replace(timetable.solutions[0], replicas=counts))
                for q, counts in zip(self.questions, static.replicas, strict=True)
            )
            found = [Alternative(name=STATIC, value=cost, cost=cost, summary=text)]
        if self.search.options.alternatives and self.search.problem.colocated is ColocatedUse.ALLOWED:
            found += self._kinds(timetable, hours)
        return tuple(found)

    def _kinds(self, timetable: Timetable, hours: float) -> Iterator[Alternative]:
        """The best colocated and the best disaggregated timetable; one of them may be the plan."""
        counts = zip(*(solution.replicas for solution in timetable.solutions), strict=True)
        used = {c.phase for c, n in zip(self.search.choices, counts, strict=True) if any(n)}
        mean = timetable.answer.value / hours
        for name, use, own in (
            (COLOCATED, ColocatedUse.ONLY, used == {Phase.COLOCATED}),
            (DISAGGREGATED, ColocatedUse.FORBIDDEN, Phase.COLOCATED not in used),
        ):
            if own:
                yield Alternative(name=name, value=mean, cost=mean, summary="this plan")
            else:
                yield self._of_kind(name, use, hours)

    def _of_kind(self, name: str, use: ColocatedUse, hours: float) -> Alternative:
        self.search.options.on_stage("looking for alternatives")
        try:
            limit = self.search.options.time_limit
            answer = solve_horizon(self.horizon(use), time_limit=limit, thorough=False)
        except InfeasibleError:
            return Alternative(name=name, value=None, cost=None, summary="none", reason=NO_SUCH_FLEET)
        except SolverError as error:
            reason = str(error).splitlines()[0]
            return Alternative(name=name, value=None, cost=None, summary="none", reason=reason)
        cost = answer.value / hours
        said = f"follows the traffic as well; within {answer.gap:.1%} of the best of its kind"
        return Alternative(name=name, value=cost, cost=cost, summary=said)


def _shares(question: Question, usable: Sequence[float], rate: float) -> Iterator[float]:
    """Load of each group: pools carry all of it, their groups equally busy. [req/s]"""
    totals = dict.fromkeys(Phase, 0.0)
    for choice, carried in zip(question.candidates.choices, usable, strict=True):
        totals[choice.phase] += carried
    for choice, carried in zip(question.candidates.choices, usable, strict=True):
        yield rate * carried / totals[choice.phase] if carried > 0 else 0.0


# --------------------------------------------------------------------------------------------
# Simulation


def _corrected(schedule: Schedule, timetable: Timetable) -> Plan:
    """The timetable, simulated period by period, capacities corrected until it holds in all of them."""
    from planner.verification import Round, verification

    asked = schedule
    rounds: list[Round] = []
    factors = Factors()
    while True:
        runs = tuple(_runs(schedule, timetable))
        learner = Learner(asked.search)
        missed = [f"{miss}" for run in runs for miss in schedule_misses(schedule, run)]
        learned = factors
        if len(rounds) < MOST_ROUNDS:
            for run in (run for run in runs if not run.result.passed):
                learned = learner.learned_from(run, learned, late=len(rounds) >= MOST_ROUNDS // 2)
        busiest = timetable.solutions[timetable.busiest]
        rounds.append(
            Round(
                fleet=schedule.search.described(busiest),
                replicas=sum(busiest.replicas),
                value=busiest.value,
                cost=busiest.cost,
                failed=tuple(missed),
                corrections={
                    learner.named(key): f for key, f in learned.seen.items() if factors.seen.get(key) != f
                },
            )
        )
        if learned is factors:
            break
        factors = learned
        schedule = replace(asked, search=learner.corrected(factors))
        try:
            timetable = schedule.solved(asked.search.problem.colocated)
        except InfeasibleError:
            break
    results = {run.name: run.result for run in runs}
    options = asked.search.scenario.options
    checked = verification(results, missed, options.confidence, rounds, asked.search.options.seed)
    notes = [] if not missed else ["this plan does not hold in simulation: " + "; ".join(missed)]
    return replace(schedule.plan(timetable, notes), verification=checked)


def schedule_misses(schedule: Schedule, run: Run) -> tuple[str, ...]:
    """What a run missed, in words, with its period."""
    from planner.verification import failures

    return tuple(f"{run.name}: {miss}" for miss in failures(run.result))


def _runs(schedule: Schedule, timetable: Timetable) -> Iterator[Run]:
    """Each fleet of each question at the highest rate that it meets."""
    learner = Learner(schedule.search)
    worst: dict[tuple[int, tuple[int, ...]], tuple[float, int]] = {}
    parts = [schedule.parts(s, t) for t, s in enumerate(timetable.solutions)]
    for t, row in enumerate(parts):
        for k, part in enumerate(row):
            if part.used:
                key = (k, part.replicas)
                worst[key] = max(worst.get(key, (0.0, t)), (part.rate, t))
    for (k, _), (_, t) in sorted(worst.items(), key=lambda entry: (entry[1][1], entry[0][0])):
        only = tuple(
            part if j == k else replace(part, replicas=(0,) * len(part.replicas))
            for j, part in enumerate(parts[t])
        )
        name = schedule.questions[0].service.workload.periods[t].name
        yield from learner.runs(timetable.solutions[t], only, name, worst=True, sure=False)
