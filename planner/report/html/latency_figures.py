"""Latencies of a service as shares of requests, and the first requests over time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from planner.plan import LatencySummary, PredictedLatency, ServicePrediction
from planner.report.html.blocks import ABOVE, Figure, label
from planner.report.html.facts import Curve
from planner.report.timeline_text import LABELS
from planner.side_by_side import SideBySide
from planner.simulator.timeline import Activity, Timeline
from planner.specs import Metric
from planner.units import MILLI, PERCENT

_SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_TICKS = (0.1, 0.5, 0.9, 0.95, 0.99, 0.999)
_HIGHEST = 0.9992  # share that is shown
_HEIGHT, _ROW, _AROUND = 400, 17, 120  # [px]
_TITLE = 26  # of a panel [px]
_LONGEST_TITLE = 110  # characters


def latency_figure(
    key: str, prediction: ServicePrediction, simulated: Mapping[str, Any] | None, curve: Curve | None
) -> Figure:
    """TTFT and TPOT: predicted, with what the model may be wrong by, simulated, and their limits."""
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"legend": dict(ABOVE), "margin": {"t": 70}}
    metrics = ((Metric.TTFT, prediction.ttft, (0.0, 0.44)), (Metric.TPOT, prediction.tpot, (0.56, 1.0)))
    for number, (metric, predicted, domain) in enumerate(metrics, start=1):
        axes = {"xaxis": _axis("x", number), "yaxis": _axis("y", number)}
        own = [*_predicted(predicted), *_simulated(metric, simulated, curve), *_limits(metric, prediction)]
        for trace in own:
            data.append({**trace, **axes, "legendgroup": trace["name"], "showlegend": number == 1})
        suffix = "" if number == 1 else str(number)
        title = f"{metric.upper()} [ms]"
        layout[f"xaxis{suffix}"] = {
            "domain": domain,
            "title": {"text": title},
            "rangemode": "tozero",
            "tickformat": ",",
        }
        layout[f"yaxis{suffix}"] = {
            "anchor": _axis("x", number),
            "tickvals": [_nines(s) for s in _TICKS],
            "ticktext": [f"{s * PERCENT:g} %" for s in _TICKS],
            "range": [0.0, _nines(_HIGHEST)],
            "title": {"text": "requests within" if number == 1 else ""},
        }
    return Figure(
        key=key, caption=f"TTFT and TPOT of {prediction.service}", height=_HEIGHT, data=data, layout=layout
    )


def _axis(letter: str, number: int) -> str:
    return letter if number == 1 else f"{letter}{number}"


def _nines(share: float) -> float:
    """Where a share stands: 90 % at 1, 99 % at 2."""
    return -math.log10(1.0 - share)


def _line(s: LatencySummary) -> tuple[list[float], list[float]]:
    return [getattr(s, name) / MILLI for name in _SHARES], [_nines(share) for share in _SHARES.values()]


def _predicted(p: PredictedLatency) -> list[dict[str, Any]]:
    low, y = _line(p.low)
    high, _ = _line(p.high)
    band: dict[str, Any] = {
        "name": "80 % interval of the model error",
        "x": [*low, *reversed(high)],
        "y": [*y, *reversed(y)],
        "mode": "none",
        "fill": "toself",
        "fillcolor": "@band",
        "hoverinfo": "skip",
    }
    lines = (
        ("predicted", p.expected, "solid", "circle"),
        ("predicted, at the error planned for", p.planned, "dash", "square"),
    )
    found = [band]
    for name, summary, dash, symbol in lines:
        x, y = _line(summary)
        found.append(
            {
                "name": name,
                "x": x,
                "y": y,
                "mode": "lines+markers",
                "line": {"color": "@decode", "dash": dash},
                "marker": {"symbol": symbol, "size": 7},
                "customdata": list(_SHARES),
                "hovertemplate": "%{customdata} %{x:.4g} ms",
            }
        )
    return found


def _simulated(metric: Metric, facts: Mapping[str, Any] | None, curve: Curve | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    values = () if curve is None else getattr(curve, metric.value)
    if curve is not None and values:
        pairs = [(v, s) for v, s in zip(values, curve.shares, strict=True) if math.isfinite(v)]
        found.append(
            {
                "name": "simulated for this report",
                "x": [v / MILLI for v, _ in pairs],
                "y": [_nines(s) for _, s in pairs],
                "mode": "lines",
                "line": {"color": "@prefill", "width": 2},
                "hovertemplate": "%{x:.4g} ms",
            }
        )
    known = {} if facts is None else facts.get(f"{metric.value}_ms") or {}
    pairs = [(known[name], share) for name, share in _SHARES.items() if known.get(name) is not None]
    if pairs:
        found.append(
            {
                "name": "simulated when planned",
                "x": [float(v) for v, _ in pairs],
                "y": [_nines(s) for _, s in pairs],
                "mode": "markers",
                "marker": {"symbol": "diamond-open", "size": 10, "color": "@prefill", "line": {"width": 2}},
                "hovertemplate": "%{x:.4g} ms",
            }
        )
    return found


def _limits(metric: Metric, prediction: ServicePrediction) -> list[dict[str, Any]]:
    targets = [t for t in prediction.slo if t.metric is metric]
    x: list[float | None] = []
    y: list[float | None] = []
    text: list[str] = []
    for target in targets:
        share = target.statistic.probability
        limit = target.limit / MILLI
        x += [limit, limit, None]
        y += [0.0, _nines(_HIGHEST) if share is None else _nines(min(share, _HIGHEST)), None]
        text += ["", f"{target.statistic} {limit:,g} ms", ""]
    if not targets:
        return []
    return [
        {
            "name": "SLO",
            "x": x,
            "y": y,
            "text": text,
            "mode": "lines+markers+text",
            "textposition": "top left",
            "line": {"color": "@limit", "dash": "dot", "width": 2},
            "marker": {"symbol": "line-ew-open", "size": 14, "color": "@limit", "line": {"width": 3}},
            "hovertemplate": "limit %{x:.4g} ms",
            "cliponaxis": False,
        }
    ]


# --------------------------------------------------------------------------------------------
# First requests

_COLOURS = {
    Activity.PREFILL: "@prefill",
    Activity.DECODE: "@decode",
    Activity.STALL: "@paper",
    Activity.TRANSFER: "@transfer",
    Activity.QUEUED: "@pale",
}


def timeline_figure(key: str, name: str, found: SideBySide) -> Figure:
    """A row for each request, a bar for each thing that happens to it; fleets one above the other."""
    panels = found.panels
    rows = [max(len(p.arrivals), 1) for p in panels]
    data: list[dict[str, Any]] = []
    annotations = []
    layout: dict[str, Any] = {
        "barmode": "overlay",
        "legend": {**ABOVE, "y": 1.0 + _TITLE / (_ROW * sum(rows))},
        "bargap": 0.25,
    }
    gap, top = 0.1, 1.0
    share = (1.0 - gap * (len(panels) - 1)) / sum(rows)
    shown: set[Activity] = set()
    for number, (panel, count) in enumerate(zip(panels, rows, strict=True), start=1):
        suffix = "" if number == 1 else str(number)
        bottom = max(top - share * count, 0.0)
        layout[f"yaxis{suffix}"] = {
            "domain": [bottom, top],
            "autorange": "reversed",
            "type": "category",
            "categoryarray": [f"R{i + 1}" for i in range(count)],
            "showgrid": False,
            "anchor": _axis("x", number),
        }
        layout[f"xaxis{suffix}"] = {
            "anchor": _axis("y", number),
            "range": [0.0, panel.horizon],
            "title": {"text": "time [s]" if number == len(panels) else ""},
            **({} if number == 1 else {"matches": "x"}),
        }
        title = {
            "text": f"<b>{label(panel.title, _LONGEST_TITLE)}</b>",
            "x": 0,
            "y": top,
            "xref": "paper",
            "yref": "paper",
        }
        annotations.append({**title, "xanchor": "left", "yanchor": "bottom", "showarrow": False})
        data += _bars(panel, number, shown)
        top = bottom - gap
    layout["annotations"] = annotations
    layout["margin"] = {"t": 75, "l": 45}
    caption = f"First requests of {name}" if name else "First requests"
    height = _AROUND + _ROW * sum(rows) + 40 * len(panels)
    return Figure(key=key, caption=caption, height=height, data=data, layout=layout)


def _bars(panel: Timeline, number: int, shown: set[Activity]) -> list[dict[str, Any]]:
    found = []
    for activity, text in LABELS.items():
        own = [s for s in panel.segments if s.activity is activity and s.start < panel.horizon]
        if not own:
            continue
        stall = activity is Activity.STALL
        found.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": text,
                "legendgroup": text,
                "showlegend": activity not in shown,
                "y": [f"R{s.request + 1}" for s in own],
                "base": [s.start for s in own],
                "x": [min(s.end, panel.horizon) - s.start for s in own],
                "marker": {
                    "color": _COLOURS[activity],
                    "line": {"color": "@dim" if stall else "@paper", "width": 0.6 if stall else 0.3},
                    **({"pattern": {"shape": "/", "fgcolor": "@dim", "size": 5}} if stall else {}),
                },
                "xaxis": _axis("x", number),
                "yaxis": _axis("y", number),
                "hovertemplate": f"%{{y}} {text} %{{base:.4g}} s, for %{{x:.4g}} s<extra></extra>",
            }
        )
        shown.add(activity)
    return found
