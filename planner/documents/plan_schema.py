"""The schema of the plan file: every key with its kind, unit and description."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from planner.documents.schema_base import DocumentModel, NonNegative
from planner.documents.tree import Tree
from planner.errors import Problem
from planner.plan import Binding, PlanStatus
from planner.specs import Dtype, Objective, Phase, PriceClass

SCHEMA_VERSION = 1

Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]


class ParallelismDocument(DocumentModel):
    """How one replica is spread over its GPUs."""

    tp: Size = Field(description="Tensor parallel size.")
    pp: Size = Field(description="Pipeline parallel size.")
    ep: Size = Field(description="Expert parallel size.")
    dp: Size = Field(description="Data parallel size within the replica.")


class PlanPrecisionDocument(DocumentModel):
    """Number formats of a group."""

    weights: Dtype = Field(description="Format of the weights.")
    kv_cache: Dtype = Field(description="Format of the KV cache.")


class MemoryDocument(DocumentModel):
    """Memory of the fullest GPU of a replica."""

    weights: float = Field(description="Weights. [GiB]")
    activations: float = Field(description="Activations at their peak. [GiB]")
    reserved: float = Field(description="Held by the engine and the driver. [GiB]")
    kv_cache: float = Field(description="Left for KV cache. [GiB]")
    usable: float = Field(description="What the engine takes in all. [GiB]")


class GroupDocument(DocumentModel):
    """Equal replicas of one phase."""

    name: str = Field(description="Unique name.")
    service: str = Field(description="Service that it belongs to.")
    phase: Phase = Field(description="What its replicas do.")
    gpu: str = Field(description="GPU type.")
    zone: str = Field(default="", description="Where it runs.")
    price_class: PriceClass = Field(
        default=PriceClass.ON_DEMAND, description="How its GPUs are paid for; left out: on demand."
    )
    same_node: bool = Field(
        default=False,
        description="Whether KV caches take the link within a node, which all groups then share.",
    )
    parallelism: ParallelismDocument = Field(description="GPUs of one replica.")
    replicas: Size = Field(description="Number of replicas.")
    num_gpus: Count | None = Field(default=None, description="replicas x tp x pp x dp.")
    precision: PlanPrecisionDocument = Field(description="Number formats.")
    max_num_seqs: Size = Field(description="Limit of sequences in a step.")
    max_num_batched_tokens: Size = Field(description="Limit of tokens in a step. [tok]")
    max_model_len: Size = Field(description="Limit of a sequence. [tok]")
    kv_capacity_tokens: Count = Field(description="KV cache of one replica. [tok]")
    memory_gib: MemoryDocument = Field(description="Memory of the fullest GPU. [GiB]")
    request_rate: NonNegative = Field(description="What the plan sends here. [req/s]")
    capacity_request_rate: NonNegative | None = Field(
        description="What it could carry within the SLOs. [req/s]"
    )
    utilization: float | None = Field(default=None, description="request_rate / capacity_request_rate. [1]")
    mean_batch: NonNegative = Field(description="Sequences in a step, on average.")
    busy: NonNegative = Field(description="Prefill: share of time; decode: mean batch over its limit. [1]")
    binds: Binding = Field(description="What its capacity ends at.")
    compute_utilization: NonNegative = Field(description="Of peak FLOP/s, least possible. [1]")
    bandwidth_utilization: NonNegative = Field(description="Of peak HBM bandwidth, least possible. [1]")
    network_utilization: NonNegative = Field(description="Of its NICs, by KV transfer. [1]")
    cost_per_hour: float | None = Field(
        default=None, description="Of its GPUs, without idle ones of whole nodes. [USD/h]"
    )
    calibration: str = Field(description="Where the efficiencies of its GPU come from.")


class NodesDocument(DocumentModel):
    """GPUs of one type: used, and paid for."""

    gpu: str = Field(description="GPU type.")
    zone: str = Field(default="", description="Where they are.")
    price_class: PriceClass = Field(
        default=PriceClass.ON_DEMAND, description="How they are paid for; left out: on demand."
    )
    gpus_used: Count = Field(description="GPUs with a replica.")
    gpus_paid: Count = Field(description="GPUs paid for, in whole nodes where nodes are whole.")
    nodes: Count = Field(description="Nodes paid for.")
    price_per_gpu_hour: float | None = Field(default=None, description="Of one GPU. [USD/h]")


class SummaryDocument(DocumentModel):
    """Mean and percentiles of one latency; null: without bound."""

    mean: NonNegative | None = Field(description="Mean. [ms]")
    p50: NonNegative | None = Field(description="Median. [ms]")
    p90: NonNegative | None = Field(description="90th percentile. [ms]")
    p95: NonNegative | None = Field(description="95th percentile. [ms]")
    p99: NonNegative | None = Field(description="99th percentile. [ms]")


class PredictedDocument(DocumentModel):
    """Expected latencies of the first service."""

    ttft_ms: SummaryDocument = Field(description="Time to first token. [ms]")
    tpot_ms: SummaryDocument = Field(description="Time per output token. [ms]")


class IntervalDocument(DocumentModel):
    """A latency, and the 80 % interval of what the model may be wrong by."""

    expected: SummaryDocument = Field(description="Best estimate. [ms]")
    planned: SummaryDocument = Field(description="At the model error that confidence plans for. [ms]")
    low: SummaryDocument = Field(description="Lower end of the interval. [ms]")
    high: SummaryDocument = Field(description="Upper end of the interval. [ms]")


class PlanLimitsDocument(DocumentModel):
    """Bounds on one latency."""

    mean: float | None = Field(default=None, description="Bound on the mean. [ms]")
    p50: float | None = Field(default=None, description="Bound on the median. [ms]")
    p90: float | None = Field(default=None, description="Bound on the 90th percentile. [ms]")
    p95: float | None = Field(default=None, description="Bound on the 95th percentile. [ms]")
    p99: float | None = Field(default=None, description="Bound on the 99th percentile. [ms]")


class PlanSloDocument(DocumentModel):
    """The service level objectives that the plan was made for."""

    ttft_ms: PlanLimitsDocument | None = Field(default=None, description="Time to first token. [ms]")
    tpot_ms: PlanLimitsDocument | None = Field(default=None, description="Time per output token. [ms]")
    e2e_ms: PlanLimitsDocument | None = Field(default=None, description="End-to-end latency. [ms]")


class ServiceDocument(DocumentModel):
    """What one service gets, beside what it asked for."""

    service: str = Field(description="Name.")
    request_rate: NonNegative = Field(description="Requests served. [req/s]")
    slo: PlanSloDocument = Field(description="As given in the scenario.")
    ttft_ms: IntervalDocument = Field(description="Time to first token. [ms]")
    tpot_ms: IntervalDocument = Field(description="Time per output token. [ms]")
    usd_per_million_input_tokens: float | None = Field(default=None, description="[USD]")
    usd_per_million_output_tokens: float | None = Field(default=None, description="[USD]")
    usd_per_million_tokens: float | None = Field(default=None, description="Input and output. [USD]")


class AlternativeDocument(DocumentModel):
    """The best plan under a restriction."""

    name: str = Field(description="The restriction.")
    cost_per_hour: float | None = Field(
        default=None, description="null: infeasible or without price. [USD/h]"
    )
    value: float | None = Field(default=None, description="In the unit of the objective; null: infeasible.")
    summary: str = Field(description="What it consists of.")
    reason: str = Field(default="", description="Why it is infeasible.")
    verified: bool | None = Field(
        default=None, description="Whether it holds in simulation; null: not simulated."
    )


class VerificationDocument(DocumentModel):
    """Result of simulating the plan; beside `passed` whatever the simulation reports."""

    model_config = ConfigDict(extra="allow")

    passed: bool = Field(description="Whether every SLO held.")


class EngineUseDocument(DocumentModel):
    """The serving engine."""

    name: str = Field(description="Its name.")
    version: str = Field(description="The version whose overheads were used.")


class ProvenanceDocument(DocumentModel):
    """Where the plan comes from."""

    planner_version: str = Field(description="Version that wrote the file.")
    created: str | None = Field(default=None, description="When; left out of reproducible files.")
    sources: list[str] = Field(description="Origin of every profile used.")


class PeriodPlanDocument(DocumentModel):
    """What runs in one period."""

    name: str = Field(description="Its name.")
    hours: Annotated[float, Field(gt=0)] = Field(description="How long it lasts. [h]")
    cost_per_hour: float | None = Field(description="Of everything paid for meanwhile. [USD/h]")
    replicas: dict[str, Count] = Field(description="By name of group.")
    request_rates: dict[str, NonNegative] = Field(description="By name of service. [req/s]")


class HorizonDocument(DocumentModel):
    """What all periods cost together."""

    hours: Annotated[float, Field(gt=0)] = Field(description="Of all periods. [h]")
    cost: float | None = Field(description="Of the plan over those hours. [USD]")
    static_cost: float | None = Field(description="Of the cheapest fleet that stays as it is. [USD]")
    saving: float | None = Field(description="Share of static_cost that is saved. [1]")
    reserved_gpus: dict[str, Count] = Field(description="Reserved for all hours, by GPU type.")


class MoveDocument(DocumentModel):
    """Replicas of one group before and after."""

    group: str = Field(description="Name of the group.")
    change: int | None = Field(default=None, description="to - from.")
    before: Count = Field(alias="from", description="Replicas before.")
    after: Count = Field(alias="to", description="Replicas after.")


class BucketDocument(DocumentModel):
    """Prompts that have pools of their own; both ends belong to it."""

    service: str = Field(description="Name of the service whose groups take them.")
    from_tokens: Count = Field(description="Shortest prompt. [tok]")
    to_tokens: Count | None = Field(description="Longest prompt; null: no bound. [tok]")
    share: NonNegative = Field(description="Of all requests. [1]")


class SplitCostDocument(DocumentModel):
    """What a number of buckets costs."""

    buckets: Size = Field(description="Number of buckets.")
    cost_per_hour: float | None = Field(description="Of the best plan; null: infeasible. [USD/h]")


class SplitDocument(DocumentModel):
    """Traffic that the front door divides by prompt length."""

    buckets: list[BucketDocument] = Field(description="From short to long prompts.")
    cost_per_hour_unsplit: float | None = Field(description="Of the best plan without the split. [USD/h]")
    cost_by_buckets: list[SplitCostDocument] = Field(description="Best plans by number of buckets.")
    front_door: str = Field(description="How a router is told where prompts go.")


class PlanDocument(DocumentModel):
    """A fleet that meets a scenario."""

    schema_version: Annotated[int, Field(ge=1, le=SCHEMA_VERSION)] = Field(description="Format of this file.")
    status: PlanStatus = Field(description="How far the search went.")
    objective: Objective = Field(description="What was made small (throughput: large).")
    value: float = Field(description="Objective reached. [USD/h, GPUs, W or req/s]")
    bound: float | None = Field(description="Proven bound, in the same unit; null: none.")
    gap: NonNegative | None = Field(description="Relative difference of the two; null: unknown. [1]")
    cost_per_hour: float | None = Field(description="Of everything paid for. [USD/h]")
    cost_per_hour_at_half_confidence: float | None = Field(
        default=None, description="Without margin for what the model may be wrong by. [USD/h]"
    )
    power_w: NonNegative = Field(description="Thermal design power of the GPUs used. [W]")
    engine: EngineUseDocument = Field(description="Serving engine.")
    routing: str = Field(description="How the front door picks a replica.")
    groups: list[GroupDocument] = Field(description="Equal replicas, by phase.")
    nodes: list[NodesDocument] = Field(description="GPUs used and paid for.")
    predicted: PredictedDocument | None = Field(description="Expected latencies of the first service.")
    services: list[ServiceDocument] = Field(description="Every service with its SLOs and predictions.")
    periods: list[PeriodPlanDocument] = Field(
        default=[], description="What runs when; groups have the replicas of the busiest period."
    )
    horizon: HorizonDocument | None = Field(default=None, description="All periods together.")
    split: SplitDocument | None = Field(default=None, description="How prompts are divided by length.")
    moves: list[MoveDocument] = Field(
        default=[], description="What changes against the fleet that was planned from."
    )
    move_cost: float | None = Field(default=None, description="Of those changes. [USD]")
    alternatives: list[AlternativeDocument] = Field(description="Best plans under restrictions.")
    verification: VerificationDocument | None = Field(description="null: not simulated.")
    notes: list[str] = Field(description="What a reader has to know.")
    provenance: ProvenanceDocument = Field(description="Where the plan comes from.")
    scenario: dict[str, Any] = Field(description="The scenario that this answers, as read.")

    @classmethod
    def check(cls, tree: Tree) -> list[Problem]:
        """Numbers that follow from others still do, also where the others were edited."""
        return [*_check_counts(tree), *_check_moves(tree)]


def _check_counts(tree: Tree) -> Iterator[Problem]:
    """GPU counts multiply every parallel dimension."""
    for i in range(len(tree.entries("groups"))):
        path = ("groups", i, "num_gpus")
        sizes = [tree.get("groups", i, "parallelism", key) for key in ("tp", "pp", "dp")]
        factors = [tree.get("groups", i, "replicas"), *sizes]
        if tree.get(*path) is None or not all(type(f) is int and f > 0 for f in factors):
            continue  # the second is reported by the schema
        expected = math.prod(factors)
        if tree.get(*path) != expected:
            rule = f"must be replicas x tp x pp x dp = {expected}"
            yield tree.problem(path, rule, "or leave it out")


def _check_moves(tree: Tree) -> Iterator[Problem]:
    """Changes are what lies between before and after."""
    for i in range(len(tree.entries("moves"))):
        path = ("moves", i, "change")
        before, after = (tree.get("moves", i, key) for key in ("from", "to"))
        if tree.get(*path) is None or type(before) is not int or type(after) is not int:
            continue
        if tree.get(*path) != after - before:
            yield tree.problem(path, f"must be to - from = {after - before}", "or leave it out")
