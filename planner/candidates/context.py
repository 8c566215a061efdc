"""What a replica that may serve is, and what looking for them shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.arrays import FloatArray
from planner.candidates.basis import Basis
from planner.capacity import Limit
from planner.collectives import beneath
from planner.operators import ReplicaSet
from planner.plan import Binding, MemoryBudget
from planner.program import Candidate
from planner.specs import Dtype, Engine, FleetItem, Parallelism, Phase, Precision, Scenario, Service
from planner.traffic import Traffic

FASTEST_STEP = 0.0125  # first of the levels of the first decode step, each twice the one before [s]
SHORT_STEP_SHARE = 0.05  # of the TTFT limit; shorter first steps are not told apart [1]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaChoice:
    """One way to build a replica that fits in memory.

    Attributes
    ----------
    item : int
        Index into the scenario's fleet.
    kv_tokens : int
        Tokens that its KV cache holds.
    path_rate : float
        Prefill: slowest path its KV caches may take. [B/s]
    first_step : float
        Prefill: longest decode step its TTFT leaves room for; decode: longest step it may run. [s]
    """

    phase: Phase
    item: int
    parallelism: Parallelism
    precision: Precision
    token_budget: int
    max_num_seqs: int
    kv_tokens: int
    memory: MemoryBudget
    path_rate: float = math.inf
    first_step: float = math.inf

    @property
    def replica(self) -> tuple[int, Parallelism, Precision]:
        """What tells replicas of one phase and token budget apart."""
        return self.item, self.parallelism, self.precision


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """Why a replica is no candidate."""

    gpu: str
    phase: Phase
    parallelism: Parallelism
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateSet:
    """Candidates of one service with all that a plan needs to say about them.

    `candidates`, `choices`, `operating` and `binds` run in parallel; `operating` and `binds` are arrays
    over `candidates[i].curve.starts`.
    """

    candidates: tuple[Candidate, ...] = ()
    choices: tuple[ReplicaChoice, ...] = ()
    operating: tuple[FloatArray, ...] = ()
    binds: tuple[tuple[Binding, ...], ...] = ()
    illegal_pairs: frozenset[tuple[int, int]] = frozenset()
    rejections: tuple[Rejection, ...] = ()
    evaluated: int = 0

    def of(self, phase: Phase) -> list[int]:
        return [i for i, c in enumerate(self.choices) if c.phase is phase]


@dataclass(frozen=True, slots=True)
class Context:
    """What all steps below share; the KV cache has one format, in which the traffic is counted.

    Attributes
    ----------
    formats : mapping of Precision to str
        What replicas may have, and how their names tell them apart.
    """

    service: Service
    scenario: Scenario
    engine: Engine
    traffic: Traffic
    z: float
    ttft: tuple[Limit, ...]
    tpot: tuple[Limit, ...]
    miss: float
    formats: Mapping[Precision, str]
    rejections: list[Rejection] = field(default_factory=list)

    @classmethod
    def of_basis(
        cls, basis: Basis, *, ttft: tuple[Limit, ...] = (), tpot: tuple[Limit, ...] = (), miss: float = 0.0
    ) -> Context:
        """Of what is kept, with the limits that count for it."""
        return cls(
            service=basis.service,
            scenario=basis.scenario,
            engine=basis.engine,
            traffic=Traffic.of_service(basis.service),
            z=basis.z,
            ttft=ttft,
            tpot=tpot,
            miss=miss,
            formats=dict(basis.formats),
        )

    @property
    def basis(self) -> Basis:
        """What latencies depend on."""
        return Basis.of(self.scenario, self.service, self.engine, self.z, tuple(self.formats.items()))

    @property
    def fleet(self) -> tuple[FleetItem, ...]:
        return self.scenario.fleet

    @property
    def kv_cache(self) -> Dtype:
        """Format of the KV cache."""
        return self.service.precision.kv_cache

    def replicas(self, choices: Sequence[ReplicaChoice]) -> ReplicaSet:
        pairs = [(beneath(self.fleet[c.item], c.parallelism).gpu, c.parallelism) for c in choices]
        formats = [c.precision for c in choices]
        service = self.service
        return ReplicaSet.of(service.model, formats, self.engine, pairs, self.z, service.speculation)

    def reject(
        self,
        item: FleetItem,
        phase: Phase,
        layout: Parallelism,
        reason: str,
        precision: Precision | None = None,
    ) -> None:
        """Note why a replica is no candidate; with its formats where they were to be chosen."""
        if precision is not None and self.formats[precision]:
            reason = f"{reason} ({self.formats[precision]})"
        self.rejections.append(Rejection(gpu=item.gpu.name, phase=phase, parallelism=layout, reason=reason))

    @property
    def tightest_ttft(self) -> float:
        return min((limit.time for limit in self.ttft), default=math.inf)

    @property
    def first_steps(self) -> tuple[float, ...]:
        """Decode steps that a first token may wait for, as levels to choose from. [s]

        A fixed grid, from one that hardly takes from the TTFT up to one that leaves the TPOT limit to
        bind. Where no decode step precedes the first token there is nothing to choose.
        """
        if not math.isfinite(self.tightest_ttft) or self.engine.first_token_phase is not Phase.DECODE:
            return (math.inf,)
        steps = (limit.time * self.traffic.tokens_per_step for limit in self.tpot)
        slowest = min([self.tightest_ttft, *steps])
        levels = [FASTEST_STEP]
        while levels[-1] < slowest:
            levels.append(2 * levels[-1])
        shortest = max(SHORT_STEP_SHARE * self.tightest_ttft, FASTEST_STEP)
        return tuple(s for s in levels if 2 * s > shortest) or (levels[-1],)

    @property
    def demand(self) -> float:
        rate = self.service.workload.request_rate
        return rate * (1 + self.scenario.options.headroom)


def merge(parts: Sequence[CandidateSet]) -> CandidateSet:
    """Concatenate; pair indices of later parts shift."""
    pairs: set[tuple[int, int]] = set()
    offset = 0
    for part in parts:
        pairs |= {(i + offset, j + offset) for i, j in part.illegal_pairs}
        offset += len(part.candidates)
    return CandidateSet(
        candidates=tuple(c for p in parts for c in p.candidates),
        choices=tuple(c for p in parts for c in p.choices),
        operating=tuple(o for p in parts for o in p.operating),
        binds=tuple(b for p in parts for b in p.binds),
        illegal_pairs=frozenset(pairs),
        evaluated=sum(p.evaluated for p in parts),
    )
