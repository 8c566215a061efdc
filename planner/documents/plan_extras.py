"""What only some plans have: periods, moves, prompts divided by length. Plans without write none of it."""

from __future__ import annotations

import math
from typing import Any

from planner.documents.plan_schema import HorizonDocument, PlanDocument, SplitDocument
from planner.plan import HorizonSummary, LengthBucket, LengthSplit, Move, PeriodPlan, Plan

_DIGITS = 6


def rounded(value: float | None) -> float | None:
    """Six significant digits; None for what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


def extras_out(plan: Plan) -> dict[str, Any]:
    """The keys of the file for what this plan has."""
    out: dict[str, Any] = {}
    if len(plan.periods) > 1:
        out["periods"] = [_period_out(period) for period in plan.periods]
    if plan.horizon is not None:
        out["horizon"] = _horizon_out(plan.horizon)
    if plan.split is not None:
        out["split"] = _split_out(plan.split)
    if plan.moves or plan.move_cost is not None:
        out["moves"] = [_move_out(move) for move in plan.moves]
        out["move_cost"] = rounded(plan.move_cost)
    return out


def _period_out(period: PeriodPlan) -> dict[str, Any]:
    return {
        "name": period.name,
        "hours": rounded(period.hours),
        "cost_per_hour": rounded(period.cost),
        "replicas": dict(period.replicas),
        "request_rates": {service: rounded(rate) for service, rate in period.request_rates.items()},
    }


def _horizon_out(horizon: HorizonSummary) -> dict[str, Any]:
    return {
        "hours": rounded(horizon.hours),
        "cost": rounded(horizon.cost),
        "static_cost": rounded(horizon.static_cost),
        "saving": rounded(horizon.saving),
        "reserved_gpus": dict(horizon.reserved),
    }


def _move_out(move: Move) -> dict[str, Any]:
    return {"group": move.group, "change": move.change, "from": move.before, "to": move.after}


def _split_out(split: LengthSplit) -> dict[str, Any]:
    return {
        "buckets": [
            {
                "service": bucket.service,
                "from_tokens": bucket.shortest,
                "to_tokens": bucket.longest,
                "share": rounded(bucket.share),
            }
            for bucket in split.buckets
        ],
        "cost_per_hour_unsplit": rounded(split.cost_unsplit),
        "cost_by_buckets": [
            {"buckets": count, "cost_per_hour": rounded(cost)} for count, cost in split.costs.items()
        ],
        "front_door": split.front_door,
    }


def extras_in(document: PlanDocument) -> dict[str, Any]:
    """Fields of :class:`planner.plan.Plan` that :func:`extras_out` writes."""
    return {
        "periods": tuple(
            PeriodPlan(
                name=period.name,
                hours=period.hours,
                cost=period.cost_per_hour,
                replicas=period.replicas,
                request_rates=period.request_rates,
            )
            for period in document.periods
        ),
        "horizon": document.horizon and _horizon_in(document.horizon),
        "split": document.split and _split_in(document.split),
        "moves": tuple(
            Move(group=move.group, before=move.before, after=move.after) for move in document.moves
        ),
        "move_cost": document.move_cost,
    }


def _horizon_in(document: HorizonDocument) -> HorizonSummary:
    return HorizonSummary(
        hours=document.hours,
        cost=document.cost,
        static_cost=document.static_cost,
        saving=document.saving,
        reserved=document.reserved_gpus,
    )


def _split_in(document: SplitDocument) -> LengthSplit:
    return LengthSplit(
        buckets=tuple(
            LengthBucket(
                service=bucket.service,
                shortest=bucket.from_tokens,
                longest=bucket.to_tokens,
                share=bucket.share,
            )
            for bucket in document.buckets
        ),
        cost_unsplit=document.cost_per_hour_unsplit,
        costs={cost.buckets: cost.cost_per_hour for cost in document.cost_by_buckets},
        front_door=document.front_door,
    )
