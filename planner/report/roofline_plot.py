"""Rooflines with operators under them as a figure: PNG, SVG or PDF.

Readable in print: phases differ in how markers are filled, operators in their shape, the vendor's roofs from
the calibrated ones in how lines are drawn; colour only repeats it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.operating_points import WHOLE_STEP
from planner.report.figures import DECODE, DIM, GREY, INK, PALE, PREFILL, PRINTED_FORMATS, save_figure
from planner.report.tables import figure as figure_of
from planner.rooflines import Roof, Roofline, RooflinePoint
from planner.specs import Phase
from planner.units import TERA

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL, _LEGEND, _HEIGHT = 6.4, 1.8, 5.0  # widths and height [inch]
MOST_PANELS = 4
_IN_A_ROW = 2
_AROUND = 1.8  # ratio between the outermost point and the edge of a panel [1]
_LEAST, _MOST = 0.5, 4e3  # arithmetic intensities that a panel shows in any case [FLOP/B]
_CURVE = 200  # points of a calibrated roof
_NAME_GAP = 0.027  # between the names of two roofs, as a share of the panel's height [1]
_PEAK_LINE: dict[str, Any] = {"linewidth": 1.2, "linestyle": (0, (5, 3))}
_ROOF_LINE: dict[str, Any] = {"linewidth": 1.4}
_SHAPES = {
    "qkv projection": "s",
    "output projection": "D",
    "feed-forward up": "^",
    "feed-forward down": "v",
    "experts": "h",
    "router": "X",
    "attention": "o",
    "head": "P",
    WHOLE_STEP: "*",
}
_SHADES = (INK, "#5a5a5a", GREY, "#a8a8a8")
"""Of roofs, highest first."""


def save_rooflines(rooflines: Sequence[Roofline], path: Path, title: str = "") -> None:
    """Write one panel per GPU, all on the same axes.

    Raises
    ------
    SpecError
        The suffix is none of .png, .svg and .pdf, matplotlib is missing, or the file cannot be written.
    """
    save_figure(path, lambda figure: _draw(figure, rooflines, title), PRINTED_FORMATS)


def _draw(figure: Figure, rooflines: Sequence[Roofline], title: str) -> None:
    columns = min(len(rooflines), _IN_A_ROW)
    rows = -(-len(rooflines) // columns)
    with_points = any(r.points for r in rooflines)
    width = _PANEL * columns + (_LEGEND if with_points else 0.0)
    figure.set_size_inches(width, _HEIGHT * rows)
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    x_range, y_range = _ranges(rooflines)
    alone = len(rooflines) == 1
    for axes, roofline in zip(panels, rooflines, strict=False):
        axes.set(xscale="log", yscale="log", xlim=x_range, ylim=y_range)
        _draw_frame(axes, roofline, title if alone else "")
        axes.tick_params(labelbottom=True)
        _draw_roofs(axes, roofline)
        _draw_points(axes, roofline.points)
    for axes in panels[len(rooflines) :]:
        axes.set_visible(False)
    if not alone and title:
        figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    right = _PANEL * columns / width
    figure.tight_layout(rect=(0, 0, right, 1))
    for axes, roofline in zip(panels, rooflines, strict=False):
        _draw_bandwidth(axes, max(roofline.roofs, key=lambda r: r.bandwidth))
    if with_points:
        _draw_legend(figure, rooflines, right)


def _ranges(rooflines: Sequence[Roofline]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Intensities [FLOP/B] and rates [TFLOP/s] that all panels show."""
    points = [p for r in rooflines for p in r.points]
    roofs = [roof for r in rooflines for roof in r.roofs]
    x = (
        min([_LEAST, *(p.intensity / _AROUND for p in points)]),
        max([_MOST, *(12 * r.ridge for r in roofs), *(2 * _AROUND * p.intensity for p in points)]),
    )
    lowest = min([float(roof.calibrated(x[0])) for roof in roofs])
    y = (
        min([lowest, *(p.rate / _AROUND for p in points)]) / TERA,
        max(roof.peak for roof in roofs) * _AROUND / TERA,
    )
    return x, y


def _draw_frame(axes: Axes, roofline: Roofline, title: str) -> None:
    name = f"{title} on {roofline.gpu}" if title else roofline.gpu
    axes.set_title(name, loc="left", color=INK)
    axes.set_title(f"calibration: {roofline.calibration}", loc="right", fontsize=8, color=DIM)
    axes.set_xlabel("arithmetic intensity [FLOP/B of HBM traffic]")
    axes.set_ylabel("rate of one GPU [TFLOP/s]")
    axes.grid(color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["right", "top"]].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _position: figure_of(value, 3))


# --------------------------------------------------------------------------------------------
# Roofs


def _draw_roofs(axes: Axes, roofline: Roofline) -> None:
    low, high = axes.get_xlim()
    x = np.geomspace(low, high, _CURVE)
    by_peak: dict[float, list[Roof]] = {}
    for roof in sorted(roofline.roofs, key=lambda r: (-r.peak, r.dtype)):
        by_peak.setdefault(roof.peak, []).append(roof)
    names: list[tuple[float, str]] = []
    for shade, (peak, roofs) in zip(_shades(len(by_peak)), by_peak.items(), strict=True):
        corners = np.array([low, roofs[0].ridge, high])
        axes.plot(corners, roofs[0].datasheet(corners) / TERA, color=shade, zorder=2, **_PEAK_LINE)
        names.append((peak, ", ".join(roof.dtype.value for roof in roofs) + f" peak {_whole(peak / TERA)}"))
        for roof in roofs:
            axes.plot(x, np.asarray(roof.calibrated(x)) / TERA, color=shade, zorder=2, **_ROOF_LINE)
            end = float(roof.calibrated(high))
            names.append((end, f"{roof.dtype.value} {_whole(end / TERA)}"))
        _draw_ridge(axes, roofs[0], shade)
    _draw_names(axes, names)
    _draw_sides(axes, [roof.ridge for roof in roofline.roofs])


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _draw_names(axes: Axes, names: Sequence[tuple[float, str]]) -> None:
    """Roofs by name at their right ends, none over another."""
    bottom, top = (math.log(y) for y in axes.get_ylim())
    place = -math.inf
    for rate, text in sorted(names):
        share = (math.log(rate / TERA) - bottom) / (top - bottom)
        place = max(share, place + _NAME_GAP)
        axes.annotate(
            text, (1, place), (3, 0), xycoords="axes fraction", textcoords="offset points",
            va="center", fontsize=7.5, color=INK,
        )  # fmt: skip


def _draw_sides(axes: Axes, ridges: Sequence[float]) -> None:
    """What the parts of the panel left and right of all ridges mean."""
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": DIM, "va": "bottom"}
    bottom = axes.get_ylim()[0]
    axes.annotate("memory-bound \N{LEFTWARDS ARROW}", (min(ridges), bottom), (-4, 4), ha="right", **style)
    axes.annotate("\N{RIGHTWARDS ARROW} compute-bound", (max(ridges), bottom), (14, 4), ha="left", **style)


def _shades(number: int) -> tuple[str, ...]:
    return tuple(_SHADES[min(i, len(_SHADES) - 1)] for i in range(number))


def _draw_ridge(axes: Axes, roof: Roof, shade: str) -> None:
    """Where compute and memory take equally long, down to the axis."""
    bottom = axes.get_ylim()[0]
    axes.plot([roof.ridge] * 2, [bottom, roof.peak / TERA], color=shade, linewidth=0.9, linestyle=(0, (1, 2)))
    axes.annotate(
        f"ridge {_whole(roof.ridge)}",
        (roof.ridge, bottom),
        (3, 4),
        textcoords="offset points",
        fontsize=7.5,
        color=DIM,
        rotation=90,
        va="bottom",
    )


def _draw_bandwidth(axes: Axes, roof: Roof) -> None:
    """The memory's roof in words, along its slope; once the layout is fixed."""
    low = axes.get_xlim()[0]
    place = low * (roof.ridge / low) ** 0.3
    y = place * roof.bandwidth / TERA
    (x0, y0), (x1, y1) = axes.transData.transform([(place, y), (2 * place, 2 * y)])
    axes.annotate(
        f"peak {figure_of(roof.bandwidth / TERA, 3)} TB/s",
        (place, y),
        (-3, 3),
        textcoords="offset points",
        rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)),
        rotation_mode="anchor",
        ha="center",
        va="bottom",
        fontsize=8,
        color=INK,
    )


# --------------------------------------------------------------------------------------------
# Points


def _draw_points(axes: Axes, points: Sequence[RooflinePoint]) -> None:
    for point in points:
        axes.plot(point.intensity, point.rate / TERA, **_marker(point.phase, point.operator))
    steps = [p for p in points if p.operator == WHOLE_STEP and p.phase is Phase.DECODE]
    if len(steps) > 1:
        x, y = [p.intensity for p in steps], [p.rate / TERA for p in steps]
        axes.plot(x, y, color=DECODE, linewidth=0.9, zorder=3.5)
    for point in (p for p in points if p.operator == WHOLE_STEP):
        name = (
            f"prompt {_whole(point.context)}"
            if point.phase is Phase.PREFILL
            else f"batch {figure_of(point.batch, 3)}"
        )
        axes.annotate(
            name,
            (point.intensity, point.rate / TERA),
            (8, -9),
            textcoords="offset points",
            fontsize=8,
            fontweight="bold",
            color=INK,
            zorder=6,
            bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6},
        )


def _marker(phase: Phase, operator: str) -> dict[str, Any]:
    """Prompts are filled, decode steps open; whole steps are larger."""
    whole = operator == WHOLE_STEP
    colour = PREFILL if phase is Phase.PREFILL else DECODE
    filled = phase is Phase.PREFILL
    return {
        "marker": _SHAPES.get(operator, "."),
        "linestyle": "none",
        "markersize": 13 if whole else 6.5,
        "markerfacecolor": colour if filled else "white",
        "markeredgecolor": INK if filled else colour,
        "markeredgewidth": 0.8 if filled else 1.2,
        "zorder": 5 if whole else 4,
    }


def _draw_legend(figure: Figure, rooflines: Sequence[Roofline], left: float) -> None:
    from matplotlib.lines import Line2D  # slow to load

    shown = {p.operator for r in rooflines for p in r.points}
    phases = {p.phase for r in rooflines for p in r.points}
    handles = [
        Line2D([], [], color=INK, label="datasheet peak", **_PEAK_LINE),
        Line2D([], [], color=INK, label="calibrated", **_ROOF_LINE),
    ]
    for phase, text in ((Phase.PREFILL, "prefill (filled)"), (Phase.DECODE, "decode (open)")):
        if phase in phases:
            handles.append(Line2D([], [], label=text, **_marker(phase, "attention")))
    style: dict[str, Any] = {"linestyle": "none", "markerfacecolor": PALE, "markeredgecolor": INK}
    for operator, shape in _SHAPES.items():
        if operator in shown:
            size = 9 if operator == WHOLE_STEP else 6.5
            handles.append(Line2D([], [], marker=shape, markersize=size, label=operator, **style))
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(left, 0.95), frameon=False, labelspacing=0.7
    )
