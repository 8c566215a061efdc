"""The plan file: what the planner answers, with what it was asked and how sure it is.

Floats are written with six significant digits, so that files differ where plans do. A number that is
not finite (no bound was proven, a queue without end) is written as null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any

from planner import __version__, catalog
from planner.documents.files import path_seen_from, read_text
from planner.documents.plan_extras import extras_in, extras_out, rounded
from planner.documents.plan_schema import (
    SCHEMA_VERSION,
    AlternativeDocument,
    GroupDocument,
    IntervalDocument,
    NodesDocument,
    PlanDocument,
    PlanSloDocument,
    ServiceDocument,
    SummaryDocument,
)
from planner.documents.source import validate
from planner.documents.tree import Tree
from planner.documents.yaml_text import dump_yaml, parse_tree
from planner.errors import Problem, SpecError
from planner.plan import (
    Alternative,
    Group,
    LatencySummary,
    MemoryBudget,
    NodeUse,
    Plan,
    PredictedLatency,
    ServicePrediction,
    Verification,
)
from planner.specs import Metric, Objective, Parallelism, Precision, PriceClass, SloTarget, Statistic
from planner.units import GIB, MILLI

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
        "value": rounded(plan.value),
        "bound": rounded(plan.bound),
        "gap": rounded(plan.gap),
        "cost_per_hour": rounded(plan.cost),
        "cost_per_hour_at_half_confidence": rounded(plan.cost_at_half_confidence),
        "power_w": rounded(plan.power),
        "engine": {"name": plan.engine, "version": plan.engine_version},
        "routing": plan.routing,
        "groups": [_group_out(group) for group in plan.groups],
        "nodes": [_nodes_out(use) for use in plan.nodes],
        "predicted": first
        and {"ttft_ms": _summary_out(first.ttft.expected), "tpot_ms": _summary_out(first.tpot.expected)},
        "services": [_service_out(prediction) for prediction in plan.predictions],
        **extras_out(plan),
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


def rebased(plan: Plan, old: Path, new: Path) -> Plan:
    """The plan with the files of its scenario named as seen from the folder `new` instead of `old`.

    Names that mean the same from everywhere stay: absolute ones, those that begin at a home folder, and
    those of the catalogue.
    """
    if old.resolve() == new.resolve() or not plan.scenario:
        return plan
    scenario = deepcopy(dict(plan.scenario))
    places = [(item, "gpu") for item in scenario.get("fleet", [])]
    for served in (scenario, *scenario.get("models", [])):
        workload = served.get("workload", {})
        places += [(served, "model"), (served, "engine_profile"), (workload, "trace"), (workload, "preset")]
    for owner, key in places:
        name = owner.get(key)
        if isinstance(name, str) and (key in ("trace", "engine_profile") or catalog.names_file(key, name)):
            owner[key] = path_seen_from(name, old, new)
    return replace(plan, scenario=scenario)


def _group_out(group: Group) -> dict[str, Any]:
    rate, capacity = rounded(group.request_rate), rounded(group.capacity)
    return {
        "name": group.name,
        "service": group.service,
        "phase": group.phase.value,
        "gpu": group.gpu,
        **_place_out(group),
        **({"same_node": True} if group.same_node else {}),
        "parallelism": asdict(group.parallelism),
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
        "memory_gib": {key: rounded(size / GIB) for key, size in asdict(group.memory).items()},
        "request_rate": rate,
        "capacity_request_rate": capacity,
        # From the rounded numbers, so that reading and writing again changes nothing.
        "utilization": rounded(rate / capacity) if rate is not None and capacity else 0.0,
        "mean_batch": rounded(group.mean_batch),
        "busy": rounded(group.busy),
        "binds": group.binds.value,
        "compute_utilization": rounded(group.compute_utilization),
        "bandwidth_utilization": rounded(group.bandwidth_utilization),
        "network_utilization": rounded(group.network_utilization),
        "cost_per_hour": rounded(group.cost),
        "calibration": group.calibration,
    }


def _nodes_out(use: NodeUse) -> dict[str, Any]:
    return {
        "gpu": use.gpu,
        **_place_out(use),
        "gpus_used": use.gpus_used,
        "gpus_paid": use.gpus_paid,
        "nodes": use.nodes,
        "price_per_gpu_hour": rounded(use.price),
    }


def _service_out(prediction: ServicePrediction) -> dict[str, Any]:
    return {
        "service": prediction.service,
        "request_rate": rounded(prediction.request_rate),
        "slo": _slo_out(prediction.slo),
        "ttft_ms": _latency_out(prediction.ttft),
        "tpot_ms": _latency_out(prediction.tpot),
        "usd_per_million_input_tokens": rounded(prediction.cost_per_million_input_tokens),
        "usd_per_million_output_tokens": rounded(prediction.cost_per_million_output_tokens),
        "usd_per_million_tokens": rounded(prediction.cost_per_million_tokens),
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
    return {s.value: rounded(getattr(summary, s.value) / MILLI) for s in Statistic}


def _alternative_out(alternative: Alternative) -> dict[str, Any]:
    return {
        "name": alternative.name,
        "cost_per_hour": rounded(alternative.cost),
        "value": rounded(alternative.value),
        "summary": alternative.summary,
        "reason": alternative.reason,
        "verified": alternative.verified,
    }


def _verification_out(verification: Verification) -> dict[str, Any]:
    details = {key: value for key, value in verification.details.items() if key != "passed"}
    return {"passed": verification.passed, **_plain(details)}


def _place_out(owner: Group | NodeUse) -> dict[str, str]:
    """Zone and price class, where they are not the usual ones."""
    usual = owner.price_class is PriceClass.ON_DEMAND
    zone = {"zone": owner.zone} if owner.zone else {}
    return zone | ({} if usual else {"price_class": owner.price_class.value})


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
    return rounded(value) if isinstance(value, float) else value


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
    if (tree.has("fleet") and tree.has("slo")) or tree.has("models"):
        rule = "this is a scenario, not a plan"
        hint = "planner solve SCENARIO -o PLAN makes one"
        raise SpecError.of_file(source_name, [Problem(key="", rule=rule, suggestion=hint)])
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
        **extras_in(document),
    )


def _group_in(document: GroupDocument) -> Group:
    return Group(
        name=document.name,
        service=document.service,
        phase=document.phase,
        gpu=document.gpu,
        zone=document.zone,
        price_class=document.price_class,
        same_node=document.same_node,
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
        price_class=document.price_class,
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
        verified=document.verified,
    )


def _verification_in(raw: Mapping[str, Any] | None) -> Verification | None:
    if raw is None:
        return None
    details = {key: value for key, value in raw.items() if key != "passed"}
    return Verification(passed=raw["passed"], details=details)


def _finite_or_inf(value: float | None) -> float:
    return math.inf if value is None else value
