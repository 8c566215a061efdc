"""What-ifs as JSON: stable names, times in ms, money in USD."""

from __future__ import annotations

from typing import Any

from planner.documents.plan_extras import rounded
from planner.units import MILLI
from planner.whatif.explain import Explanation, UnusedGpu, WhatIf
from planner.whatif.pareto import Pareto
from planner.whatif.resolve import Resolved
from planner.whatif.sweep import Sweep


def resolved_facts(result: Resolved) -> dict[str, Any]:
    """One plan, or why there is none."""
    return {
        "value": rounded(result.value),
        "cost_per_hour": rounded(result.cost),
        "feasible": result.feasible,
        "proven": result.proven,
        "fleet": result.description,
        "reason": result.reason,
    }


def explanation_facts(e: Explanation) -> dict[str, Any]:
    """The JSON of ``planner explain``."""
    return {
        "name": e.name,
        "objective": e.objective.value,
        "unit": e.unit,
        "base": resolved_facts(e.base),
        "binding": [_what_if(w) for w in e.binding],
        "requirements": [_what_if(w) for w in e.requirements],
        "marginal_values": [_what_if(w) for w in e.marginal],
        "unused_gpus": [_unused(u) for u in e.unused],
        "groups": [
            {
                "name": g.name,
                "service": g.service,
                "phase": g.phase.value,
                "gpu": g.gpu,
                "binds": g.binds.value,
                "utilization": rounded(g.utilization),
            }
            for g in e.groups
        ],
        "notes": list(e.notes),
        "interrupted": e.interrupted,
    }


def _what_if(w: WhatIf) -> dict[str, Any]:
    return {
        "kind": w.kind,
        "subject": w.subject,
        "change": w.change,
        "binds": w.binds,
        "saving": rounded(w.saving),
        "saving_cost_per_hour": rounded(w.saving_cost),
        "after": resolved_facts(w.after),
    }


def _unused(u: UnusedGpu) -> dict[str, Any]:
    return {
        "gpu": u.gpu,
        "zone": u.zone,
        "best": None
        if u.best is None
        else {"all_of_pool": u.best.phase.value, **resolved_facts(u.best.result)},
        "worse_by": rounded(u.extra),
        "by_pool": [{"all_of_pool": f.phase.value, **resolved_facts(f.result)} for f in u.forced],
        "reasons": list(u.reasons),
    }


def pareto_facts(p: Pareto) -> dict[str, Any]:
    """The JSON of ``planner pareto``."""
    return {
        "name": p.name,
        "objective": p.objective.value,
        "unit": p.unit,
        "varied": p.varied,
        "axis": p.axis,
        "asked": rounded(p.shown(p.asked)),
        "points": [{p.axis: rounded(p.shown(x.x)), **resolved_facts(x.result)} for x in p.points],
        "notes": list(p.notes),
        "interrupted": p.interrupted,
    }


def sweep_facts(s: Sweep) -> dict[str, Any]:
    """The JSON of ``planner sweep``, without the time that it took."""
    return {
        "name": s.name,
        "keys": list(s.keys),
        "columns": list(s.columns),
        "counts": s.counts,
        "points": list(s.rows()),
    }


def milliseconds(seconds: float | None) -> float | None:
    """A time in ms with the digits of a plan file."""
    return None if seconds is None else rounded(seconds / MILLI)
