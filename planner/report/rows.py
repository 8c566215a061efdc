"""Results as flat rows, for data frames. Latencies are in ms, as in files: a column's name has the unit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from planner.configuration import Prediction
from planner.evaluation import Evaluation
from planner.plan import Group, LatencySummary, Plan
from planner.results import Result
from planner.simulator.metrics import Measured, SimulationResult, SloCheck
from planner.specs import Statistic
from planner.units import MILLI
from planner.whatif.compare import Comparison, GroupKey
from planner.whatif.explain import Explanation
from planner.whatif.frames import frame
from planner.whatif.robustness import Robustness

if TYPE_CHECKING:
    from pandas import DataFrame

Row = dict[str, Any]
COMPARED = ("step", "replicas", "gpus", "before", "after")
"""Columns of a comparison, of which plans that are the same have no row."""
_STATISTICS = tuple(statistic.value for statistic in Statistic)


def frame_of(result: Result) -> DataFrame:
    """A result as a data frame.

    Raises
    ------
    SpecError
        If pandas is not installed.
    """
    rows = rows_of(result)
    columns = dict.fromkeys(column for row in rows for column in row)
    return frame(rows, tuple(columns) or COMPARED)


@singledispatch
def rows_of(result: Result) -> Sequence[Row]:
    """The rows of a result; those of tables that are rows already."""
    rows: Sequence[Row] = result.rows()  # type: ignore[attr-defined]
    return rows


@rows_of.register
def _plan(plan: Plan) -> Sequence[Row]:
    """A row per group."""
    return [_group(group) for group in plan.groups]


def _group(g: Group) -> Row:
    return {
        "group": g.name,
        "service": g.service,
        "phase": g.phase.value,
        "gpu": g.gpu,
        "zone": g.zone,
        "price_class": g.price_class.value,
        "replicas": g.replicas,
        "gpus": g.num_gpus,
        "tp": g.parallelism.tp,
        "pp": g.parallelism.pp,
        "ep": g.parallelism.ep,
        "dp": g.parallelism.dp,
        "weights": g.precision.weights.value,
        "kv_cache": g.precision.kv_cache.value,
        "requests_per_second": g.request_rate,
        "capacity_requests_per_second": g.capacity,
        "utilization": g.utilization,
        "mean_batch": g.mean_batch,
        "binds": g.binds.value,
        "max_num_seqs": g.max_num_seqs,
        "max_num_batched_tokens": g.max_num_batched_tokens,
        "max_model_len": g.max_model_len,
        "kv_cache_tokens": g.kv_capacity,
        "cost_per_hour": g.cost,
    }


@rows_of.register
def _simulation(result: SimulationResult) -> Sequence[Row]:
    """A row per latency."""
    latencies = {"ttft": result.ttft, "tpot": result.tpot, "itl": result.itl, "e2e": result.e2e}
    limits: dict[str, list[SloCheck]] = {check.target.metric.value: [] for check in result.checks}
    for check in result.checks:
        limits[check.target.metric.value].append(check)
    return [
        {
            "latency": name,
            **_latency(measured),
            "limits": "; ".join(str(c.target) for c in limits.get(name, ())),
            "met": all(c.met for c in limits[name]) if name in limits else None,
        }
        for name, measured in latencies.items()
    ]


def _latency(measured: Measured) -> Row:
    return {
        "requests": measured.requests,
        **_milliseconds(measured.value),
        **{f"{name}_ms_half_width": getattr(measured.half_width, name) / MILLI for name in _STATISTICS},
    }


def _milliseconds(summary: LatencySummary) -> Row:
    return {f"{name}_ms": getattr(summary, name) / MILLI for name in _STATISTICS}


@rows_of.register
def _evaluation(evaluation: Evaluation) -> Sequence[Row]:
    """A row per rate that was simulated."""
    runs = {"most": evaluation.at_most, "offered": evaluation.at_offered, "beyond": evaluation.beyond}
    return [
        {
            "rate": name,
            "requests_per_second": run.request_rate,
            "passed": run.passed,
            "attainment": run.attainment,
            "goodput": run.goodput,
            **{f"ttft_{key}": value for key, value in _milliseconds(run.ttft.value).items()},
            **{f"tpot_{key}": value for key, value in _milliseconds(run.tpot.value).items()},
        }
        for name, run in runs.items()
        if run is not None
    ]


@rows_of.register
def _prediction(p: Prediction) -> Sequence[Row]:
    """A row per latency, then one per operator of a prompt and of a decode step."""
    latencies = [
        {"what": name, "part": "mean", "ms": value / MILLI, "low_ms": low / MILLI, "high_ms": high / MILLI}
        for name, value, (low, high) in (("ttft", p.ttft, p.ttft_range), ("tpot", p.tpot, p.tpot_range))
    ]
    operators = [
        {"what": what, "part": operator.name, "ms": operator.time / MILLI, "low_ms": None, "high_ms": None}
        for what, parts in (("prompt", p.prefill), ("decode step", p.decode))
        for operator in parts
    ]
    return [*latencies, *operators]


@rows_of.register
def _comparison(c: Comparison) -> Sequence[Row]:
    """A row per step from the one plan to the other."""
    return [
        dict(
            zip(COMPARED, (s.kind.value, s.replicas, s.gpus, _label(s.before), _label(s.after)), strict=True)
        )
        for s in c.steps
    ]


def _label(key: GroupKey | None) -> str | None:
    return None if key is None else key.label


@rows_of.register
def _explanation(e: Explanation) -> Sequence[Row]:
    """A row per requirement that was lifted, and per thing of which there was a little more."""
    return [
        {
            "asked": asked,
            "subject": w.subject,
            "change": w.change,
            "binds": w.binds,
            "saving": w.saving,
            "value": w.after.value,
            "cost_per_hour": w.after.cost,
            "fleet": w.after.description,
        }
        for asked, found in (("lifted", e.requirements), ("a little more", e.marginal))
        for w in found
    ]


@rows_of.register
def _robustness(r: Robustness) -> Sequence[Row]:
    """A row per harder scenario."""
    return [
        {
            "kind": s.kind,
            "level": s.level,
            "value": s.result.value,
            "cost_per_hour": s.result.cost,
            "feasible": s.result.feasible,
            "fleet": s.result.description,
        }
        for s in r.stresses
    ]
