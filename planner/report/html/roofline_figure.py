"""Where a plan's groups work under the roofs of their GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.operating_points import WHOLE_STEP
from planner.report.html.blocks import Figure, label
from planner.report.html.facts import OperatingPoints
from planner.rooflines import Roof, RooflinePoint
from planner.specs import Phase
from planner.units import PERCENT, TERA

_SYMBOLS = {
    "qkv projection": "square",
    "output projection": "diamond",
    "feed-forward up": "triangle-up",
    "feed-forward down": "triangle-down",
    "experts": "hexagon",
    "router": "x",
    "attention": "circle",
    "head": "cross",
    WHOLE_STEP: "star",
}
_CURVE = 80  # points of a roof
_LEAST, _MOST, _AROUND, _RIGHT = 0.5, 4e3, 2.0, 5.0  # arithmetic intensities that are shown [FLOP/B, 1]


def roofline_figure(number: int, found: OperatingPoints) -> Figure:
    """Roofs as lines, prompts filled, decode steps open, whole steps as stars."""
    roofline = found.roofline
    intensities = [p.intensity for p in roofline.points]
    low = min([_LEAST, *(x / _AROUND for x in intensities)])
    high = max([_MOST, *(10 * r.ridge for r in roofline.roofs), *(x * _RIGHT for x in intensities)])
    x = np.geomspace(low, high, _CURVE)
    data: list[dict[str, Any]] = []
    peaks: set[float] = set()
    for roof in sorted(roofline.roofs, key=lambda r: (-r.peak, r.dtype)):
        data += _roof_lines(roof, x, datasheet=roof.peak not in peaks)
        peaks.add(roof.peak)
    data += [_symbol(name) for name in _SYMBOLS if any(p.operator == name for p in roofline.points)]
    for group in dict.fromkeys(found.groups):
        own = [p for p, name in zip(roofline.points, found.groups, strict=True) if name == group]
        data += _points(found, group, own)
    rates = [p.rate / TERA for p in roofline.points]
    bottom = min([float(r.calibrated(low)) / TERA for r in roofline.roofs] + [r / _AROUND for r in rates])
    top = _AROUND * max(r.peak for r in roofline.roofs) / TERA
    layout = {
        "xaxis": {
            "type": "log",
            "range": [float(np.log10(low)), float(np.log10(high))],
            "title": {"text": "arithmetic intensity [FLOP/B of memory traffic]"},
            "dtick": 1,
        },
        "yaxis": {
            "type": "log",
            "range": [float(np.log10(bottom)), float(np.log10(top))],
            "title": {"text": "rate of one GPU [TFLOP/s]"},
            "dtick": 1,
        },
        "shapes": [_ridge_line(r) for r in roofline.roofs],
        "annotations": [
            {
                "x": float(np.log10(r.ridge)),
                "y": 0,
                "yref": "paper",
                "text": f"ridge {r.ridge:,.0f}",
                "textangle": -90,
                "showarrow": False,
                "xanchor": "left",
                "yanchor": "bottom",
            }
            for r in {r.peak: r for r in roofline.roofs}.values()
        ],
        "legend": {"orientation": "v", "x": 1.02, "y": 1},
        "margin": {"t": 20},
    }
    caption = f"Roofline of {roofline.gpu} (calibration: {roofline.calibration})"
    return Figure(key=f"roofline-{number}", caption=caption, height=460, data=data, layout=layout)


def _roof_lines(roof: Roof, x: Any, *, datasheet: bool) -> list[dict[str, Any]]:
    corners = np.array([x[0], roof.ridge, x[-1]])
    found = []
    if datasheet:
        found.append(
            {
                "name": f"{roof.dtype.value} datasheet",
                "x": corners.tolist(),
                "y": (np.asarray(roof.datasheet(corners)) / TERA).tolist(),
                "mode": "lines",
                "line": {"color": "@dim", "dash": "dash", "width": 1.5},
                "hovertemplate": f"peak {roof.peak / TERA:,.4g} TFLOP/s, ridge {roof.ridge:,.0f} FLOP/B",
            }
        )
    found.append(
        {
            "name": f"{roof.dtype.value} calibrated",
            "x": x.tolist(),
            "y": (np.asarray(roof.calibrated(x)) / TERA).tolist(),
            "mode": "lines",
            "line": {"color": "@ink", "width": 1.5},
            "hovertemplate": "%{x:.3g} FLOP/B: %{y:.4g} TFLOP/s",
        }
    )
    return found


def _ridge_line(roof: Roof) -> dict[str, Any]:
    line = {"color": "@dim", "dash": "dot", "width": 1}
    return {
        "type": "line",
        "x0": roof.ridge,
        "x1": roof.ridge,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": line,
    }


def _symbol(operator: str) -> dict[str, Any]:
    """An entry of the legend that says what a shape means."""
    marker = {
        "symbol": _SYMBOLS[operator],
        "size": 9,
        "color": "@pale",
        "line": {"width": 1, "color": "@ink"},
    }
    return {
        "name": operator,
        "x": [None],
        "y": [None],
        "mode": "markers",
        "marker": marker,
        "hoverinfo": "skip",
    }


def _points(found: OperatingPoints, group: str, own: list[RooflinePoint]) -> list[dict[str, Any]]:
    traces = []
    for phase in (Phase.PREFILL, Phase.DECODE):
        points = [p for p in own if p.phase is phase]
        if not points:
            continue
        prompts = phase is Phase.PREFILL
        colour = "@prefill" if prompts else "@decode"
        short = "prompt" if prompts else f"batch {points[0].batch:,.0f}"
        step = f"prompt of {points[0].context:,.0f}" if prompts else f"decode, batch {points[0].batch:,.3g}"
        traces.append(
            {
                "name": f"{label(group)}: {step}",
                "x": [p.intensity for p in points],
                "y": [p.rate / TERA for p in points],
                "mode": "markers+text",
                "text": [short if p.operator == WHOLE_STEP else "" for p in points],
                "textposition": "bottom right",
                "marker": {
                    "symbol": [
                        _SYMBOLS.get(p.operator, "circle") + ("" if prompts else "-open") for p in points
                    ],
                    "opacity": 1,
                    "size": [15 if p.operator == WHOLE_STEP else 9 for p in points],
                    "color": colour,
                    "line": {"width": 1.0 if prompts else 1.8, "color": "@ink" if prompts else colour},
                },
                "customdata": [_words(found, p) for p in points],
                "hovertemplate": "%{customdata}: %{x:.3g} FLOP/B, %{y:.4g} TFLOP/s<extra></extra>",
            }
        )
    return traces


def _words(found: OperatingPoints, p: RooflinePoint) -> str:
    side = "compute" if found.roofline.compute_bound(p) else "memory"
    roof = float(found.roofline.roof(p.dtype).datasheet(p.intensity))
    share = f"{p.rate / roof * PERCENT:.0f} % of the datasheet's roof"
    return f"{label(p.operator)} ({p.dtype.value}, {side}-bound, {share})"
