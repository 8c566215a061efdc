"""Pools by prompt length: whether dividing a service's prompts saves anything, and where to divide them.

Each bucket becomes a stream of requests with groups of its own. What a bucket costs alone is the value of its
own program; from that the best division into each number of buckets follows, and the program of all of them
together, with one stock and shared nodes, says what it really costs. The fewest buckets win whose plan is
within :data:`WORTH` of the best. Nothing here is simulated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from planner.buckets import (
    Bucket,
    Partition,
    bucket_of,
    cheapest_partitions,
    edges_of,
    fewest_within,
    prompts_of,
    ranges_of,
)
from planner.errors import InfeasibleError, SolverError, SpecError
from planner.formulation import build_problem, question_of
from planner.plan import Alternative, LengthBucket, LengthSplit, Plan
from planner.program import Problem, Solution
from planner.question import Question
from planner.search import NO_SUCH_FLEET, Search
from planner.specs import Objective
from planner.traces import Trace
from planner.units import PERCENT

WORTH = 0.01
"""Share of the cost that one more bucket has to save. [1]"""

UNSPLIT = "without length split"

KEPT_WHOLE = "pools by prompt length proved no better than one pool for all prompts, which is this plan"

FRONT_DOOR = (
    "each bucket has pools of its own, and what stands before them has to count the tokens of a prompt: "
    "llm-d's router does with its plugin context-length-aware (enableFiltering: true, and the label "
    "llm-d.ai/context-length-range on the pods of a bucket), Dynamo with dynamo.global_router, whose grid "
    "picks a pool by input length (not validated for TensorRT-LLM); vllm-router has no policy by length, and "
    "the SGLang router's prefill policy bucket moves its bounds by itself: run one for each bucket behind a "
    "gateway that counts"
)

_UNITS = {
    Objective.COST: "USD/h",
    Objective.GPUS: "GPUs",
    Objective.POWER: "W",
    Objective.THROUGHPUT: "req/s",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """What came of looking for a split; no `split`: one pool serves all prompts, and a note says why.

    Attributes
    ----------
    count : int
        Buckets of a service, at most; what `split.costs` counts.
    unsplit : Alternative or None
        The best plan without the split, by prediction.
    together : Solution or None
        That plan as its program has it: plans within one node are not looked at.
    """

    split: LengthSplit | None = None
    count: int = 1
    unsplit: Alternative | None = None
    together: Solution | None = None
    notes: tuple[str, ...] = ()

    def told(self, plan: Plan) -> Plan:
        """A plan with its split, the plan that it is compared with, and notes."""
        beside = () if self.unsplit is None else (self.unsplit,)
        split, others, at_half = self.split, plan.alternatives, plan.cost_at_half_confidence
        if split is not None:  # what it was compared with was divided as it is
            costs = {**split.costs, 1: split.cost_unsplit, self.count: plan.cost}
            split, at_half = replace(split, costs=costs), None
            others = tuple(replace(a, name=f"{a.name}, so split") for a in others)
        return replace(
            plan,
            split=split,
            cost_at_half_confidence=at_half,
            alternatives=(*others, *beside),
            notes=(*self._saving(plan), *self.notes, *plan.notes),
        )

    def against(self, other: Plan) -> Division:
        """Compared with the plan of all prompts as it was simulated and corrected."""
        groups = (f"{g.replicas} x {g.gpu} {g.parallelism} {g.phase}" for g in other.groups)
        unsplit = Alternative(
            name=UNSPLIT,
            value=other.value,
            cost=other.cost,
            summary=", ".join(groups),
            verified=None if other.verification is None else other.verification.passed,
        )
        split = None if self.split is None else replace(self.split, cost_unsplit=other.cost)
        return replace(self, unsplit=unsplit, split=split)

    def _saving(self, plan: Plan) -> tuple[str, ...]:
        if self.split is None or self.unsplit is None:
            return ()
        parts = [b.service for b in self.split.buckets if b.shortest > 1 or b.longest is not None]
        said = f"prompts are divided by length ({', '.join(parts)}), and each part meets the SLOs: "
        if self.unsplit.value is None:
            return (f"{said}no plan without the split does",)
        change = plan.value / self.unsplit.value - 1
        unit = _UNITS[plan.objective]
        return (
            f"{said}{plan.value:,.6g} {unit} against {self.unsplit.value:,.6g} {unit} without the split "
            f"({change * PERCENT:+.1f} %)",
        )


def holds(plan: Plan) -> bool:
    """Whether simulation does not say that a plan fails."""
    return plan.verification is None or plan.verification.passed


def worth_it(plan: Plan, value: float) -> bool:
    """Whether a divided plan holds and is better enough than a `value` of the objective without a split."""
    if not holds(plan):
        return False
    if plan.objective is Objective.THROUGHPUT:
        return plan.value * (1 - WORTH) > value
    return plan.value < value * (1 - WORTH)


def by_length(search: Search) -> tuple[Search, Division]:
    """The search for a plan whose prompts are divided by length, where that saves something, and what to say
    of it; else `search` itself.

    Raises
    ------
    KeyboardInterrupt
        If the user stopped a program.
    """
    priced = [_Priced(search, k) for k in range(len(search.questions))]
    if all(len(one.ranges) == 1 for one in priced):
        return _undivided(search, "prompts hardly differ in length")
    found = [one.partitions() for one in priced]
    divided = [_useful(partitions) for partitions in found]
    counts = max(len(partitions) for partitions in divided)
    if counts == 1:
        return _undivided(search, _dearer_apart(found))
    tried = {}
    for count in range(1, counts + 1):
        search.options.on_stage(f"planning for {count} bucket{'s' if count > 1 else ''} of prompt lengths")
        chosen = [partitions[min(count, len(partitions)) - 1] for partitions in divided]
        tried[count] = _joint(search, priced, chosen)
    count = fewest_within({count: one.loss for count, one in tried.items()}, WORTH)
    if count == 1:
        return _undivided(search, _dearer_together(tried))
    return _with_split(tried, count)


def _useful(partitions: tuple[Partition, ...]) -> tuple[Partition, ...]:
    """Divisions of a service, one alone where more parts save nothing."""
    costs = {k: one.cost for k, one in enumerate(partitions, 1)}
    return partitions if fewest_within(costs, WORTH) > 1 else partitions[:1]


@dataclass(frozen=True, slots=True)
class _Priced:
    """Parts of one service of a search and what they cost alone; remembers what it has computed."""

    search: Search
    asked: int
    buckets: dict[tuple[int, int], Bucket] = field(default_factory=dict)
    questions: dict[tuple[int, int], Question] = field(default_factory=dict)

    @property
    def whole(self) -> Question:
        return self.search.questions[self.asked]

    @property
    def ranges(self) -> tuple[tuple[float, float], ...]:
        """The stretches that parts are made of. [tok]"""
        return ranges_of(edges_of(prompts_of(self.whole.service, self.trace)))

    @property
    def trace(self) -> Trace | None:
        """Requests of the service, where they are known."""
        return self.search.loaded.traces[self.asked] if self.search.loaded.traces else None

    def partitions(self) -> tuple[Partition, ...]:
        most = self.search.scenario.options.max_length_buckets
        return cheapest_partitions(self._cost, len(self.ranges), most, WORTH)

    def part(self, first: int, end: int) -> Question:
        """What is asked of one part; the whole service is the search's own question."""
        if (first, end) not in self.questions:
            self.questions[first, end] = self._asked(first, end)
        return self.questions[first, end]

    def share(self, first: int, end: int) -> float:
        """Of the requests of the service. [1]"""
        return self.buckets[first, end].share if (first, end) in self.buckets else 1.0

    def _asked(self, first: int, end: int) -> Question:
        ranges = self.ranges
        if (first, end) == (0, len(ranges)):
            return self.whole
        service = self.whole.service
        low, high = ranges[first][0], ranges[end - 1][1]
        bucket = self.buckets[first, end] = bucket_of(service, low, high, service.label, self.trace)
        self.search.options.on_stage(f"pricing the prompts of {bucket.service.label}")
        return question_of(
            self.search.loaded, bucket.service, asked=self.asked, alone=False, prompts=(low, high)
        )

    def _cost(self, first: int, end: int) -> float:
        """What the objective makes small, for one part; nodes may be shared with others, so GPUs count.

        With objective throughput: of all that there is, the share that a request per second to the service
        takes for this part.
        """
        try:
            question = self.part(first, end)
        except SpecError:  # a trace without such prompts
            return math.inf
        problem = replace(build_problem([question], self.search.options.gap), whole_nodes=False)
        solution = _solved(self.search, problem)
        if solution is None:
            return math.inf
        return _loss(self.search, solution) * (self.share(first, end) if _open_rate(self.search) else 1.0)


@dataclass(frozen=True, slots=True)
class _Joint:
    """A program of all buckets and its plan; None: infeasible."""

    search: Search
    solution: Solution | None
    buckets: tuple[LengthBucket, ...]

    @property
    def loss(self) -> float:
        return math.inf if self.solution is None else _loss(self.search, self.solution)

    @property
    def cost(self) -> float | None:
        """[USD/h]"""
        return None if self.solution is None else self.solution.cost


def _open_rate(search: Search) -> bool:
    return search.scenario.objective is Objective.THROUGHPUT


def _loss(search: Search, solution: Solution) -> float:
    """What is to be small."""
    if not _open_rate(search):
        return solution.value
    return 1 / solution.value if solution.value > 0 else math.inf


def _solved(search: Search, problem: Problem) -> Solution | None:
    """The plan of a program; None where there is none."""
    try:
        solution = search.solve_quietly(problem)
    except (InfeasibleError, SolverError):
        return None
    if solution.interrupted:
        raise KeyboardInterrupt
    return solution


def _joint(search: Search, priced: list[_Priced], chosen: list[Partition]) -> _Joint:
    """One program for the parts of all services."""
    if all(len(partition.parts) == 1 for partition in chosen):
        return _Joint(search, _solved(search, search.problem), ())
    if not all(math.isfinite(partition.cost) for partition in chosen):
        return _Joint(search, None, ())  # one of the parts has no plan, or no requests
    parts = [(one, part) for one, partition in zip(priced, chosen, strict=True) for part in partition.parts]
    questions = tuple(one.part(*part) for one, part in parts)
    problem = build_problem(questions, search.options.gap)
    joint = replace(search, questions=questions, problem=problem)
    total = sum(q.service.workload.request_rate for q in questions)
    buckets = tuple(_bucket(q, q.service.workload.request_rate / total) for q in questions)
    return _Joint(joint, _solved(joint, problem), buckets)


def _bucket(question: Question, share: float) -> LengthBucket:
    low, high = question.prompts or (0.0, math.inf)
    longest = math.ceil(high) - 1 if math.isfinite(high) else None
    return LengthBucket(
        service=question.service.name, shortest=max(math.ceil(low), 1), longest=longest, share=share
    )


# --------------------------------------------------------------------------------------------
# What is said of it


def _with_split(tried: dict[int, _Joint], count: int) -> tuple[Search, Division]:
    """The search of the chosen division, with what it is compared with."""
    chosen, whole = tried[count], tried[1]
    split = LengthSplit(
        buckets=chosen.buckets,
        cost_unsplit=whole.cost,
        costs={k: one.cost for k, one in tried.items()},
        front_door=FRONT_DOOR,
    )
    if whole.solution is None:
        unsplit = Alternative(name=UNSPLIT, value=None, cost=None, summary="none", reason=NO_SUCH_FLEET)
    else:
        unsplit = Alternative(
            name=UNSPLIT,
            value=whole.solution.value,
            cost=whole.cost,
            summary=whole.search.described(whole.solution),
        )
    return chosen.search, Division(split=split, count=count, unsplit=unsplit, together=whole.solution)


def _undivided(search: Search, why: str) -> tuple[Search, Division]:
    return search, Division(notes=(f"splitting by length saves nothing here: {why}",))


def _dearer_apart(found: list[tuple[Partition, ...]]) -> str:
    """Of services whose parts cost about as much, or more, alone."""
    changes = [
        partitions[1].cost / partitions[0].cost - 1
        for partitions in found
        if len(partitions) > 1 and math.isfinite(partitions[0].cost)
    ]
    if not changes or not math.isfinite(min(changes)):
        return "no division has a plan"
    return f"pools for two buckets of prompt lengths cost {_change(min(changes))}"


def _dearer_together(tried: dict[int, _Joint]) -> str:
    whole, best = tried[1].loss, min(one.loss for count, one in tried.items() if count > 1)
    if not math.isfinite(best):
        return "the best division has no plan within what all buckets share"
    return f"with whole nodes and all that buckets share, the best division costs {_change(best / whole - 1)}"


def _change(share: float) -> str:
    """Against one pool for all prompts."""
    if abs(share) < 5e-4:
        return "the same as one for all"
    return f"{abs(share) * PERCENT:.1f} % {'more' if share > 0 else 'less'} than one for all"
