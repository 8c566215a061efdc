"""Pools, money and what-ifs of a plan as charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.plan import Alternative, Group, Plan
from planner.report.html.blocks import ABOVE, Figure, hatched, label
from planner.report.tables import figure
from planner.specs import Phase
from planner.units import HOURS_PER_MONTH, PERCENT
from planner.whatif.money import MoneyReport
from planner.whatif.pareto import Pareto
from planner.whatif.sensitivity import Lever, Sensitivity

_BAR, _AROUND = 34, 110  # [px]
_PHASES = {
    Phase.PREFILL.value: "@prefill",
    Phase.DECODE.value: "@decode",
    Phase.COLOCATED.value: "@colocated",
}
_LEFT = {"automargin": True, "autorange": "reversed", "type": "category"}


def load_figure(groups: Sequence[Group]) -> Figure:
    """How busy each group is, by what it could run out of."""
    measures = (
        ("load / capacity within SLOs", "@ink", "", "utilization"),
        ("compute", "@prefill", "/", "compute_utilization"),
        ("memory bandwidth", "@decode", "\\", "bandwidth_utilization"),
        ("network", "@transfer", "x", "network_utilization"),
    )
    names = [label(g.name) for g in groups]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": names,
            "x": [getattr(g, read) * PERCENT for g in groups],
            "marker": hatched(colour, pattern),
            "hovertemplate": f"{name} %{{x:.3g}} %<extra></extra>",
        }
        for name, colour, pattern, read in measures
    ]
    layout = {
        "barmode": "group",
        "yaxis": dict(_LEFT),
        "xaxis": {"title": {"text": "share [%]"}, "range": [0, 105]},
        "legend": dict(ABOVE),
    }
    height = _AROUND + 2 * _BAR * len(groups)
    return Figure(key="load", caption="Load of each group", height=height, data=data, layout=layout)


def cost_figure(bill: MoneyReport) -> Figure:
    """Each line of the bill, by month."""
    lines = bill.lines
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [label(line.name or f"{line.kind} {line.gpu}") for line in lines],
            "x": [line.cost * HOURS_PER_MONTH for line in lines],
            "marker": {"color": [_PHASES.get(line.phase, "@dim") for line in lines]},
            "text": [f"${line.cost * HOURS_PER_MONTH:,.0f}" for line in lines],
            "textposition": "auto",
            "hovertemplate": "%{y} $%{x:,.0f} a month<extra></extra>",
            "showlegend": False,
        }
    ]
    layout = {
        "yaxis": dict(_LEFT),
        "xaxis": {"title": {"text": "USD per month"}, "rangemode": "tozero", "tickformat": ","},
    }
    height = _AROUND + _BAR * len(lines)
    return Figure(key="cost", caption="Cost of each group", height=height, data=data, layout=layout)


def periods_figure(plan: Plan) -> Figure:
    """Replicas of each group, and the rate, over the periods."""
    names = [label(p.name) for p in plan.periods]
    by_name = {g.name: g for g in plan.groups}
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": label(name),
            "x": names,
            "y": [p.replicas.get(name, group.replicas) for p in plan.periods],
            "marker": {"color": _PHASES[group.phase.value]},
            "hovertemplate": "%{x}: %{y} replicas",
        }
        for name, group in by_name.items()
    ]
    data.append(
        {
            "name": "requests per second",
            "x": names,
            "y": [sum(p.request_rates.values()) for p in plan.periods],
            "yaxis": "y2",
            "mode": "lines+markers",
            "line": {"color": "@ink", "dash": "dot"},
            "hovertemplate": "%{x}: %{y:.4g} req/s",
        }
    )
    layout = {
        "barmode": "stack",
        "xaxis": {"type": "category"},
        "yaxis": {"title": {"text": "replicas"}, "rangemode": "tozero"},
        "yaxis2": {
            "title": {"text": "req/s"}, "overlaying": "y", "side": "right", "rangemode": "tozero",
            "showgrid": False, "tickmode": "auto",
        },
        "margin": {"r": 65},
        "legend": dict(ABOVE),
    }  # fmt: skip
    return Figure(key="periods", caption="Replicas over the periods", height=380, data=data, layout=layout)


def alternatives_figure(plan: Plan, unit: str) -> Figure | None:
    """The plan beside the best under restrictions; None where none of them has a plan."""
    found: list[Alternative] = [a for a in plan.alternatives if a.value is not None]
    if not found:
        return None
    names = ["this plan", *(label(a.name) for a in found)]
    values = [plan.value, *(float(a.value or 0.0) for a in found)]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "y": names,
            "x": values,
            "marker": {"color": ["@ink", *("@decode" for _ in found)]},
            "text": [f"{v:,.4g}" for v in values],
            "textposition": "auto",
            "showlegend": False,
            "hovertemplate": f"%{{y}} %{{x:,.5g}} {unit}<extra></extra>",
        }
    ]
    layout = {"yaxis": dict(_LEFT), "xaxis": {"title": {"text": unit}, "rangemode": "tozero"}}
    height = _AROUND + _BAR * len(names)
    return Figure(key="alternatives", caption="Alternatives", height=height, data=data, layout=layout)


def pareto_figure(p: Pareto) -> Figure:
    """Cost against a limit; crosses where there is no plan."""
    found = [(p.shown(x.x), x.result) for x in p.points if x.result.value is not None]
    none = [p.shown(x.x) for x in p.points if not x.result.feasible]
    values = [float(r.value or 0.0) for _, r in found]
    name = f"{p.statistic} {p.varied.upper()}"
    data: list[dict[str, Any]] = [
        {
            "name": "best plan",
            "x": [x for x, _ in found],
            "y": values,
            "mode": "lines+markers",
            "line": {"shape": "hv", "color": "@decode"},
            "marker": {"size": 8},
            "customdata": [label(r.description) for _, r in found],
            "hovertemplate": f"{name} %{{x:.4g}} ms: %{{y:,.5g}} {p.unit}<br>%{{customdata}}<extra></extra>",
        },
        {
            "name": "asked for",
            "x": [p.shown(p.asked)] * 2,
            "y": [0.0, 1.08 * max(values, default=1.0)],
            "mode": "lines",
            "line": {"color": "@limit", "dash": "dot", "width": 2},
            "hovertemplate": f"asked for: {name} %{{x:.4g}} ms<extra></extra>",
        },
    ]
    if none:
        data.append(
            {
                "name": "no plan",
                "x": none,
                "y": [0.0] * len(none),
                "mode": "markers",
                "marker": {"symbol": "x", "size": 9, "color": "@limit"},
                "cliponaxis": False,
                "hovertemplate": "no plan at %{x:.4g} ms<extra></extra>",
            }
        )
    places = [p.shown(x.x) for x in p.points]
    layout = {
        "xaxis": {
            "type": "log",
            "title": {"text": f"{name} limit [ms]"},
            "tickvals": places,
            "ticktext": [figure(x, 3) for x in places],
        },
        "yaxis": {"title": {"text": f"{p.objective.value} [{p.unit}]"}, "rangemode": "tozero"},
        "legend": dict(ABOVE),
    }
    key = f"pareto-{p.varied}"
    return Figure(key=key, caption=f"Cost against {name}", height=360, data=data, layout=layout)


def tornado_figure(s: Sensitivity) -> Figure:
    """How far the value moves when each thing is less, and more, than asked."""
    base = float(s.base.value or 0.0)
    names = [lever_name(lever) for lever in s.levers]
    data = []
    for side, colour, pattern in (("low", "@decode", ""), ("high", "@prefill", "/")):
        results = [getattr(lever, side) for lever in s.levers]
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": "less" if side == "low" else "more",
                "y": names,
                "x": [None if r.value is None else r.value - base for r in results],
                "base": base,
                "marker": hatched(colour, pattern),
                "customdata": [
                    [side_text(lever, side), label(r.description), base if r.value is None else r.value]
                    for lever, r in zip(s.levers, results, strict=True)
                ],
                "hovertemplate": f"%{{customdata[0]}}: %{{customdata[2]:,.5g}} {s.unit}<br>%{{customdata[1]}}"
                "<extra></extra>",
            }
        )
    missing = [
        {"x": base, "y": name, "text": _missing(lever), "showarrow": False, "xanchor": "left", "xshift": 6}
        for name, lever in zip(names, s.levers, strict=True)
        if _missing(lever)
    ]
    layout = {
        "barmode": "overlay",
        "yaxis": dict(_LEFT),
        "xaxis": {"title": {"text": f"{s.objective.value} [{s.unit}]"}},
        "shapes": [
            {
                "type": "line", "x0": base, "x1": base, "y0": 0, "y1": 1, "yref": "paper",
                "line": {"color": "@ink", "width": 1},
            }
        ],
        "annotations": missing,
        "legend": dict(ABOVE),
    }  # fmt: skip
    height = _AROUND + _BAR * len(names)
    return Figure(key="tornado", caption="What moves the cost most", height=height, data=data, layout=layout)


def lever_name(lever: Lever) -> str:
    return label(f"{lever.what} \N{DIVISION SIGN}/\N{MULTIPLICATION SIGN} {lever.factor:g}")


def side_text(lever: Lever, side: str) -> str:
    """What is changed, and how, in words."""
    sign = "\N{DIVISION SIGN}" if side == "low" else "\N{MULTIPLICATION SIGN}"
    return label(f"{lever.what} {sign} {lever.factor:g}")


def _missing(lever: Lever) -> str:
    ends = [word for word, r in (("less", lever.low), ("more", lever.high)) if r.value is None]
    return f"no plan with {' or '.join(ends)} of it" if ends else ""
