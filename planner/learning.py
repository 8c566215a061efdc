"""What simulation teaches of the capacities of replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.assembly import limited_cells
from planner.fleet import Fleet
from planner.program import Solution
from planner.search import Search
from planner.specs import Parallelism, Phase, Precision

if TYPE_CHECKING:
    from planner.simulator.metrics import SimulationResult
    from planner.simulator.source import RequestSource

COMMON_MISS = 0.8
"""Factor on a capacity below which the traffic, not the replica, is taken for the cause of a miss: all of the
pool get it. [1]"""

WORTH = 1.05  # factor from which more capacity is tried [1]
LATE_SAFETY = 0.85  # on what is learned when few rounds are left: pools were measured one by one [1]
NEAR, NEAR_SAFETY = 1.2, 0.96  # times a limit that is nearly met, and the factor that is tried then [1]
SURELY = 0.98  # multiple of its rate below which a pool is at fault for a miss [1]


Key = tuple[int, Phase, int, Parallelism, Precision]
"""A replica: the question it answers, its phase, its line of the fleet, its layout and formats."""

Pool = tuple[int, Phase]
"""All replicas of one phase that answer one question."""


def pool_of(key: Key) -> Pool:
    return key[:2]


@dataclass(frozen=True, slots=True)
class Factors:
    """What simulation says of capacities: of replicas that were seen, and of all others of their pool. [1]"""

    seen: Mapping[Key, float] = field(default_factory=dict)
    pool: Mapping[Pool, float] = field(default_factory=dict)

    def of(self, key: Key) -> float:
        return self.seen.get(key, self.pool.get(pool_of(key), 1.0))

    def lowered(self, keys: list[Key], factor: float, common: bool, everywhere: bool) -> Factors:
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
        return Factors(seen, pool)

    def raised(self, keys: list[Key], factor: float) -> Factors:
        """After a plan that held with room to spare: what was measured on it counts, for the pool too where
        all of it had been lowered."""
        known = {pool_of(key) for key in keys} & set(self.pool)
        pool = {**self.pool, **{one: max(self.pool[one], min(factor, 1.0)) for one in known}}
        return Factors({**self.seen, **dict.fromkeys(keys, factor)}, pool)

    @classmethod
    def merged(cls, several: Sequence[Factors]) -> Factors:
        """Those of several programs; where two speak of one replica, the first counts."""
        seen: dict[Key, float] = {}
        pool: dict[Pool, float] = {}
        for one in reversed(several):
            seen |= one.seen
            pool |= one.pool
        return cls(seen, pool)


@dataclass(frozen=True, slots=True)
class Run:
    """What was simulated behind one router; `unlimited` is its fleet with all the sequences that fit."""

    question: int
    name: str
    solution: Solution
    fleet: Fleet
    unlimited: Fleet
    source: RequestSource
    result: SimulationResult


@dataclass(frozen=True, slots=True)
class Learner:
    """Simulates fleets of a search, and learns; factors are on the capacities of `search`."""

    search: Search

    def runs(
        self, solution: Solution, parts: Sequence[Solution], name: str, *, worst: bool, sure: bool
    ) -> Iterator[Run]:
        """Simulate each router's groups as the plan will have them.

        `parts` are what `solution` says of each question. `name` tells what happens to the fleet, if
        anything; `worst`: it is without what it may lose; `sure`: until percentiles are known well, else
        until it is clear on which side of its limits it is.
        """
        from planner.verification import simulate_plan, source_of  # numba: only where plans are simulated

        search, on_stage = self.search, self.search.options.on_stage
        for k, (question, part) in enumerate(zip(search.questions, parts, strict=True)):
            for free, cell in zip(question.cells(part), limited_cells(question, part), strict=True):
                label = ", ".join(filter(None, [cell.name, name]))
                on_stage("simulating the plan" + ("" if question.alone and not name else f" of {label}"))
                fleet, unlimited = (question.at_worst(x.fleet) if worst else x.fleet for x in (cell, free))
                source = source_of(
                    search.loaded,
                    question.asked,
                    fleet.service.workload,
                    search.options.seed,
                    question.prompts,
                )
                result = simulate_plan(fleet, source, question.planned_z, on_stage, sure=sure)
                yield Run(k, label, solution, fleet, unlimited, source, result)

    def learned_from(self, run: Run, factors: Factors, *, late: bool) -> Factors:
        """Factors with what one run says; the same object where it says nothing new."""
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

    def key(self, index: int) -> Key:
        choice, stream = self.search.choices[index], self.search.problem.candidates[index].stream
        return stream, choice.phase, *choice.replica

    def _keys(self, solution: Solution, question: int, phase: Phase) -> list[Key]:
        """Those of a pool's groups."""
        return [key for key in map(self.key, solution.used) if pool_of(key) == (question, phase)]

    def _load(self, solution: Solution, question: int, phase: Phase) -> float:
        """Load of a pool over what the uncorrected program takes for its capacity. [1]"""
        problem = self.search.problem
        headroom = 1 + self.search.scenario.options.headroom
        used = [i for i in solution.used if pool_of(self.key(i)) == (question, phase)]
        capacity = sum(problem.usable(i, solution.replicas[i]) for i in used)
        return sum(solution.flows[i] for i in used) / headroom / capacity if capacity else 1.0

    def corrected(self, factors: Factors) -> Search:
        return self.search.with_factors([factors.of(self.key(i)) for i in range(len(self.search.choices))])

    def named(self, key: Key) -> str:
        stream, phase, item, parallelism, _ = key
        question = self.search.questions[stream]
        service = "" if question.alone else f"{question.service.name} "
        return f"{service}{phase} {question.scenario.fleet[item].name} {parallelism}"

    def failures(self, run: Run) -> tuple[str, ...]:
        """What a run missed, in words."""
        from planner.verification import failures

        alone = (
            self.search.questions[run.question].service.name == run.name and len(self.search.questions) == 1
        )
        return failures(run.result) if alone else tuple(f"{run.name}: {m}" for m in failures(run.result))
