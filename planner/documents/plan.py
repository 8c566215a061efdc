"""The plan file: what the planner answers, with what it was asked and how sure it is.

Floats are written with six significant digits, so that files differ where plans do. A number that is
not finite (no bound was proven, a queue without end) is written as null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from planner import __version__
from planner.documents.source import DocumentModel, Tree, dump_yaml, parse_tree, read_text, validate
from planner.errors import Problem, SpecError
from planner.plan import (
    Alternative,
    Binding,
    Group,
    LatencySummary,
    MemoryBudget,
    NodeUse,
    Plan,
    PlanStatus,
    PredictedLatency,
    ServicePrediction,
    Verification,
)
from planner.specs import Dtype, Metric, Objective, Parallelism, Phase, Precision, SloTarget, Statistic
from planner.units import GIB, MILLI

SCHEMA_VERSION = 1
_DIGITS = 6

# --------------------------------------------------------------------------------------------
# The schema

NonNegative = Annotated[float, Field(ge=0)]
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
    parallelism: ParallelismDocument = Field(description="GPUs of one replica.")
    replicas: Count = Field(description="Number of replicas.")
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
    alternatives: list[AlternativeDocument] = Field(description="Best plans under restrictions.")
    verification: VerificationDocument | None = Field(description="null: not simulated.")
    notes: list[str] = Field(description="What a reader has to know.")
    provenance: ProvenanceDocument = Field(description="Where the plan comes from.")
    scenario: dict[str, Any] = Field(description="The scenario that this answers, as read.")

    @classmethod
    def check(cls, tree: Tree) -> list[Problem]:
        """GPU counts that were edited must still multiply every parallel dimension."""
        groups = tree.get("groups")
        problems = []
        for i in range(len(groups) if isinstance(groups, list) else 0):
            path = ("groups", i, "num_gpus")
            sizes = [tree.get("groups", i, "parallelism", key) for key in ("tp", "pp", "dp")]
            factors = [tree.get("groups", i, "replicas"), *sizes]
            if tree.get(*path) is None or not all(type(f) is int for f in factors):
                continue
            expected = math.prod(factors)
            if tree.get(*path) != expected:
                problems.append(tree.problem(path, f"must be replicas x tp x pp x dp = {expected}"))
        return problems


# --------------------------------------------------------------------------------------------
# Out


def dump_plan(plan: Plan, reproducible: bool = False) -> str:
    """A plan as YAML; `reproducible` leaves out when it was written.

    The same plan gives the same text, and :func:`plan_from_text` reads it back up to rounding.
    """
    return dump_yaml(plan_to_document(plan, reproducible))


def plan_to_document(plan: Plan, reproducible: bool = False) -> dict[str, Any]:
    """A plan as plain dicts, lists and scalars, in the order of the file; also the JSON of ``solve``."""
    created = {} if reproducible else {"created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    first = plan.predictions[0] if plan.predictions else None
    return {
        "schema_version": SCHEMA_VERSION,
        "status": plan.status.value,
        "objective": plan.objective.value,
        "value": _number(plan.value),
        "bound": _number(plan.bound),
        "gap": _number(plan.gap),
        "cost_per_hour": _number(plan.cost),
        "cost_per_hour_at_half_confidence": _number(plan.cost_at_half_confidence),
        "power_w": _number(plan.power),
        "engine": {"name": plan.engine, "version": plan.engine_version},
        "routing": plan.routing,
        "groups": [_group_out(group) for group in plan.groups],
        "nodes": [_nodes_out(use) for use in plan.nodes],
        "predicted": first
        and {"ttft_ms": _summary_out(first.ttft.expected), "tpot_ms": _summary_out(first.tpot.expected)},
        "services": [_service_out(prediction) for prediction in plan.predictions],
        "alternatives": [_alternative_out(alternative) for alternative in plan.alternatives],
        "verification": plan.verification and _verification_out(plan.verification),
        "notes": list(plan.notes),
        "provenance": {
            "planner_version": __version__,
            **created,
            "sources": list(plan.provenance),
        },
        "scenario": dict(plan.scenario),
    }


def _group_out(group: Group) -> dict[str, Any]:
    rate, capacity = _number(group.request_rate), _number(group.capacity)
    return {
        "name": group.name,
        "service": group.service,
        "phase": group.phase.value,
        "gpu": group.gpu,
        **_zone_out(group.zone),
        "parallelism": {key: getattr(group.parallelism, key) for key in ("tp", "pp", "ep", "dp")},
        "replicas": group.replicas,
        "num_gpus": group.num_gpus,
        "precision": {
            "weights": group.precision.weights.value,
            "kv_cache": group.precision.kv_cache.value,
        },
        "max_num_seqs": group.max_num_seqs,
        "max_num_batched_tokens": group.max_num_batched_tokens,
        "max_model_len": group.max_model_len,
        "kv_capacity_tokens": group.kv_capacity,
        "memory_gib": {
            key: _number(getattr(group.memory, key) / GIB)
            for key in ("weights", "activations", "reserved", "kv_cache", "usable")
        },
        "request_rate": rate,
        "capacity_request_rate": capacity,
        # From the rounded numbers, so that reading and writing again changes nothing.
        "utilization": _number(rate / capacity) if rate is not None and capacity else 0.0,
        "mean_batch": _number(group.mean_batch),
        "busy": _number(group.busy),
        "binds": group.binds.value,
        "compute_utilization": _number(group.compute_utilization),
        "bandwidth_utilization": _number(group.bandwidth_utilization),
        "network_utilization": _number(group.network_utilization),
        "cost_per_hour": _number(group.cost),
        "calibration": group.calibration,
    }


def _nodes_out(use: NodeUse) -> dict[str, Any]:
    return {
        "gpu": use.gpu,
        **_zone_out(use.zone),
        "gpus_used": use.gpus_used,
        "gpus_paid": use.gpus_paid,
        "nodes": use.nodes,
        "price_per_gpu_hour": _number(use.price),
    }


def _service_out(prediction: ServicePrediction) -> dict[str, Any]:
    return {
        "service": prediction.service,
        "request_rate": _number(prediction.request_rate),
        "slo": _slo_out(prediction.slo),
        "ttft_ms": _latency_out(prediction.ttft),
        "tpot_ms": _latency_out(prediction.tpot),
        "usd_per_million_input_tokens": _number(prediction.cost_per_million_input_tokens),
        "usd_per_million_output_tokens": _number(prediction.cost_per_million_output_tokens),
        "usd_per_million_tokens": _number(prediction.cost_per_million_tokens),
    }


def _slo_out(targets: tuple[SloTarget, ...]) -> dict[str, Any]:
    slo: dict[str, Any] = {}
    for target in targets:
        limits = slo.setdefault(f"{target.metric.value}_ms", {})
        limits[target.statistic.value] = float(f"{target.limit / MILLI:.12g}")  # as the user gave it
    return slo


def _latency_out(latency: PredictedLatency) -> dict[str, Any]:
    return {key: _summary_out(getattr(latency, key)) for key in ("expected", "planned", "low", "high")}


def _summary_out(summary: LatencySummary) -> dict[str, Any]:
    return {s.value: _number(getattr(summary, s.value) / MILLI) for s in Statistic}


def _alternative_out(alternative: Alternative) -> dict[str, Any]:
    return {
        "name": alternative.name,
        "cost_per_hour": _number(alternative.cost),
        "value": _number(alternative.value),
        "summary": alternative.summary,
        "reason": alternative.reason,
    }


def _verification_out(verification: Verification) -> dict[str, Any]:
    details = {key: value for key, value in verification.details.items() if key != "passed"}
    return {"passed": verification.passed, **_plain(details)}


def _zone_out(zone: str) -> dict[str, str]:
    return {"zone": zone} if zone else {}


def _number(value: float | None) -> float | None:
    """Six significant digits; None for what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


def _plain(value: Any) -> Any:
    """Nested results of a simulation as plain Python, rounded."""
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return _plain(value.value)
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _number(value) if isinstance(value, float) else value


# --------------------------------------------------------------------------------------------
# In


def load_plan(path: str | Path) -> Plan:
    """Read a plan file.

    Raises
    ------
    SpecError
        With every problem of the file, or a schema version that is newer than this program.
    """
    path = Path(path)
    return plan_from_text(read_text(path), str(path), folder=path.parent)


def plan_from_text(text: str, source_name: str = "plan", *, folder: Path | None = None) -> Plan:
    """Read a plan from YAML or JSON. See :func:`load_plan`."""
    tree, problems = parse_tree(text, source_name, folder)
    version = tree.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        rule = f"is newer than this program reads, which is up to {SCHEMA_VERSION}"
        raise SpecError.of_file(source_name, [tree.problem(("schema_version",), rule, "update planner")])
    document, found = validate(tree, PlanDocument)
    problems += found
    if problems or document is None:
        raise SpecError.of_file(source_name, problems)
    return _plan_in(document, tree)


def _plan_in(document: PlanDocument, tree: Tree) -> Plan:
    unbounded = math.inf if document.objective is Objective.THROUGHPUT else -math.inf
    return Plan(
        status=document.status,
        objective=document.objective,
        value=document.value,
        bound=unbounded if document.bound is None else document.bound,
        gap=_finite_or_inf(document.gap),
        cost=document.cost_per_hour,
        power=document.power_w,
        groups=tuple(_group_in(group) for group in document.groups),
        nodes=tuple(_nodes_in(use) for use in document.nodes),
        predictions=tuple(_service_in(service) for service in document.services),
        alternatives=tuple(_alternative_in(alternative) for alternative in document.alternatives),
        engine=document.engine.name,
        engine_version=document.engine.version,
        routing=document.routing,
        scenario=tree.raw["scenario"],
        provenance=tuple(document.provenance.sources),
        notes=tuple(document.notes),
        verification=_verification_in(tree.raw["verification"]),
        cost_at_half_confidence=document.cost_per_hour_at_half_confidence,
    )


def _group_in(document: GroupDocument) -> Group:
    return Group(
        name=document.name,
        service=document.service,
        phase=document.phase,
        gpu=document.gpu,
        zone=document.zone,
        parallelism=Parallelism(**document.parallelism.model_dump()),
        replicas=document.replicas,
        precision=Precision(weights=document.precision.weights, kv_cache=document.precision.kv_cache),
        max_num_seqs=document.max_num_seqs,
        max_num_batched_tokens=document.max_num_batched_tokens,
        max_model_len=document.max_model_len,
        kv_capacity=document.kv_capacity_tokens,
        memory=MemoryBudget(**{key: size * GIB for key, size in document.memory_gib.model_dump().items()}),
        request_rate=document.request_rate,
        capacity=_finite_or_inf(document.capacity_request_rate),
        mean_batch=document.mean_batch,
        busy=document.busy,
        binds=document.binds,
        compute_utilization=document.compute_utilization,
        bandwidth_utilization=document.bandwidth_utilization,
        network_utilization=document.network_utilization,
        cost=document.cost_per_hour,
        calibration=document.calibration,
    )


def _nodes_in(document: NodesDocument) -> NodeUse:
    return NodeUse(
        gpu=document.gpu,
        zone=document.zone,
        gpus_used=document.gpus_used,
        gpus_paid=document.gpus_paid,
        nodes=document.nodes,
        price=document.price_per_gpu_hour,
    )


def _service_in(document: ServiceDocument) -> ServicePrediction:
    return ServicePrediction(
        service=document.service,
        request_rate=document.request_rate,
        ttft=_latency_in(Metric.TTFT, document.ttft_ms),
        tpot=_latency_in(Metric.TPOT, document.tpot_ms),
        slo=_slo_in(document.slo),
        cost_per_million_input_tokens=document.usd_per_million_input_tokens,
        cost_per_million_output_tokens=document.usd_per_million_output_tokens,
        cost_per_million_tokens=document.usd_per_million_tokens,
    )


def _slo_in(document: PlanSloDocument) -> tuple[SloTarget, ...]:
    return tuple(
        SloTarget(metric=Metric(key.removesuffix("_ms")), statistic=Statistic(statistic), limit=limit * MILLI)
        for key, limits in document.model_dump(exclude_none=True).items()
        for statistic, limit in limits.items()
    )


def _latency_in(metric: Metric, document: IntervalDocument) -> PredictedLatency:
    return PredictedLatency(
        metric=metric,
        expected=_summary_in(document.expected),
        planned=_summary_in(document.planned),
        low=_summary_in(document.low),
        high=_summary_in(document.high),
    )


def _summary_in(document: SummaryDocument) -> LatencySummary:
    values = document.model_dump().items()
    return LatencySummary(**{key: _finite_or_inf(value) * MILLI for key, value in values})


def _alternative_in(document: AlternativeDocument) -> Alternative:
    return Alternative(
        name=document.name,
        value=document.value,
        cost=document.cost_per_hour,
        summary=document.summary,
        reason=document.reason,
    )


def _verification_in(raw: Mapping[str, Any] | None) -> Verification | None:
    if raw is None:
        return None
    details = {key: value for key, value in raw.items() if key != "passed"}
    return Verification(passed=raw["passed"], details=details)


def _finite_or_inf(value: float | None) -> float:
    return math.inf if value is None else value
