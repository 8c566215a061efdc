"""What a planner answers. Frozen, in SI units; :mod:`planner.documents.plan` reads and writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from planner.results import Result
from planner.specs import Metric, Objective, Parallelism, Phase, Precision, PriceClass, SloTarget


class PlanStatus(StrEnum):
    """How far the search went."""

    OPTIMAL = "optimal"
    """Proven within the asked gap."""
    FEASIBLE = "feasible"
    """Stopped by time or by the user with an incumbent; the gap says how far it may be from the best."""


class Binding(StrEnum):
    """What stops a replica from carrying more."""

    TTFT = "ttft"
    TPOT = "tpot"
    COMPUTE = "compute"
    MEMORY_BANDWIDTH = "memory_bandwidth"
    KV_CAPACITY = "kv_capacity"
    MAX_NUM_SEQS = "max_num_seqs"
    NETWORK = "network"


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryBudget:
    """Memory of the fullest GPU of a replica. [B]

    ``usable`` is what the engine takes; ``kv_cache`` is what remains for KV.
    """

    weights: float
    activations: float
    reserved: float
    kv_cache: float
    usable: float

    @property
    def fits(self) -> bool:
        return self.kv_cache > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencySummary:
    """Mean and percentiles of one latency over all requests. [s]"""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictedLatency:
    """A predicted distribution with what the model may be wrong by.

    ``low`` and ``high`` are the 80 % interval of the model error, around ``expected``; ``planned`` is at
    the error that the scenario's ``confidence`` plans for, where the SLOs are met.
    """

    metric: Metric
    expected: LatencySummary
    planned: LatencySummary
    low: LatencySummary
    high: LatencySummary


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Equal replicas of one phase.

    Attributes
    ----------
    request_rate, capacity : float
        What the plan sends here, and what it could carry within the SLOs. [req/s]
    utilization : float
        `request_rate / capacity`. [1]
    busy : float
        Share of time (prefill) or mean batch over the batch limit (decode). [1]
    mean_batch : float
        Sequences in a step, average.
    max_num_seqs, max_num_batched_tokens, max_model_len, kv_capacity : int
        Engine limits; KV capacity of one replica in tokens.
    binds : Binding
        What the capacity ends at.
    compute_utilization, bandwidth_utilization : float
        Share of the GPUs' peak FLOP/s and HBM bandwidth that the load cannot do without. [1]
    network_utilization : float
        Of this group's NICs, for KV transfer. [1]
    cost : float or None
        Of its GPUs, without idle GPUs of whole nodes. [USD/h]
    same_node : bool
        Whether it has to share a node with the groups that it exchanges KV caches with.
    """

    name: str
    service: str
    phase: Phase
    gpu: str
    parallelism: Parallelism
    replicas: int
    precision: Precision
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_capacity: int
    memory: MemoryBudget
    request_rate: float
    capacity: float
    mean_batch: float
    busy: float
    binds: Binding
    compute_utilization: float
    bandwidth_utilization: float
    network_utilization: float
    cost: float | None
    calibration: str
    zone: str = ""
    price_class: PriceClass = PriceClass.ON_DEMAND
    same_node: bool = False

    @property
    def num_gpus(self) -> int:
        return self.replicas * self.parallelism.num_gpus

    @property
    def utilization(self) -> float:
        return self.request_rate / self.capacity if self.capacity else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeUse:
    """GPUs used of one type in one zone and price class, and whole nodes paid for. [USD/h]"""

    gpu: str
    gpus_used: int
    gpus_paid: int
    nodes: int
    price: float | None
    zone: str = ""
    price_class: PriceClass = PriceClass.ON_DEMAND


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """The best plan under a restriction ("colocated", "single GPU type", ...).

    ``value`` is in the unit of the objective, ``cost`` in USD/h; both None when infeasible, and then
    `reason` says why. ``verified`` says whether it holds in simulation, None where it was not simulated.
    """

    name: str
    value: float | None
    cost: float | None
    summary: str
    reason: str = ""
    verified: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ServicePrediction:
    """What one service gets from the plan, beside what it asked for."""

    service: str
    request_rate: float
    ttft: PredictedLatency
    tpot: PredictedLatency
    slo: tuple[SloTarget, ...]
    cost_per_million_input_tokens: float | None
    cost_per_million_output_tokens: float | None
    cost_per_million_tokens: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """Result of simulating the plan."""

    passed: bool
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodPlan:
    """What runs in one period.

    Attributes
    ----------
    hours : float
        How long it lasts. [h]
    cost : float or None
        Of everything paid for while it lasts. [USD/h]
    replicas : mapping of str to int
        By name of group; groups that stand still may be left out.
    request_rates : mapping of str to float
        By name of service. [req/s]
    """

    name: str
    hours: float
    cost: float | None
    replicas: Mapping[str, int]
    request_rates: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class HorizonSummary:
    """What all periods cost together.

    Attributes
    ----------
    hours : float
        Of all periods. [h]
    cost : float or None
        Of the plan over those hours. [USD]
    static_cost : float or None
        Of the cheapest fleet that stays as it is over the same hours. [USD]
    saving : float or None
        Share of `static_cost` that following the traffic saves. [1]
    reserved : mapping of str to int
        GPUs reserved for all hours, by GPU type.
    """

    hours: float
    cost: float | None
    static_cost: float | None
    saving: float | None
    reserved: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """Replicas of one group before and after a fleet was planned again."""

    group: str
    before: int
    after: int

    @property
    def change(self) -> int:
        """Replicas that start (> 0) or stop (< 0)."""
        return self.after - self.before


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthBucket:
    """Prompts that have pools of their own.

    Attributes
    ----------
    service : str
        Name of the service whose groups take them.
    shortest, longest : int or None
        Both belong to the bucket; `longest` None: no bound. [tok]
    share : float
        Of all requests. [1]
    """

    service: str
    shortest: int
    longest: int | None
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthSplit:
    """Traffic that the front door divides by prompt length.

    Attributes
    ----------
    cost_unsplit : float or None
        Of the best plan without the split. [USD/h]
    costs : mapping of int to float or None
        Of the best plan with so many buckets; None: infeasible. [USD/h]
    front_door : str
        How a router is told where prompts go.
    """

    buckets: tuple[LengthBucket, ...]
    cost_unsplit: float | None
    costs: Mapping[int, float | None]
    front_door: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan(Result):
    """A fleet that meets a scenario, and how sure we are of it.

    Attributes
    ----------
    value, bound, gap : float
        Objective reached, proven bound, and their relative difference. Planned from a fleet that stands, the
        value has the hourly share of what the moves cost.
    cost : float or None
        Of everything paid for. [USD/h]
    cost_at_half_confidence : float or None
        What the same scenario costs without margin for model error. [USD/h]
    scenario : mapping
        The scenario document this answers, as read.
    periods : tuple of PeriodPlan
        In their order; groups have the replicas of the busiest. Empty where the rate is constant.
    horizon : HorizonSummary or None
        All periods together.
    moves : tuple of Move
        What changes against the fleet that was planned from.
    move_cost : float or None
        Of those changes; None: not planned from a fleet. [USD]
    split : LengthSplit or None
        Where the front door divides prompts by length.
    """

    status: PlanStatus
    objective: Objective
    value: float
    bound: float
    gap: float
    cost: float | None
    power: float
    groups: tuple[Group, ...]
    nodes: tuple[NodeUse, ...]
    predictions: tuple[ServicePrediction, ...]
    alternatives: tuple[Alternative, ...]
    engine: str
    engine_version: str
    routing: str
    scenario: Mapping[str, Any]
    provenance: tuple[str, ...]
    notes: tuple[str, ...] = ()
    verification: Verification | None = None
    cost_at_half_confidence: float | None = None
    periods: tuple[PeriodPlan, ...] = ()
    horizon: HorizonSummary | None = None
    moves: tuple[Move, ...] = ()
    move_cost: float | None = None
    split: LengthSplit | None = None

    @property
    def num_gpus(self) -> int:
        return sum(g.num_gpus for g in self.groups)

    def pool(self, phase: Phase) -> tuple[Group, ...]:
        """All groups of one phase."""
        return tuple(g for g in self.groups if g.phase is phase)
