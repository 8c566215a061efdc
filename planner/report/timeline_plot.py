"""The interference picture as a figure: PNG or SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.report.figures import (
    DECODE,
    DIM,
    INK,
    PALE,
    POINTS,
    PREFILL,
    TRANSFER,
    Picture,
    picture_of,
    save_figure,
)
from planner.report.timeline_text import LABELS, segments_of_first, unit_name
from planner.simulator.timeline import Activity, Segment, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _LEFT, _PANEL = 9.0, 0.6, 7.6  # figure, left margin and panel [inch]
_HEAD, _BETWEEN, _FOOT = 0.45, 0.55, 0.95  # above, between and below panels [inch]
_LEGEND = 0.15  # from the bottom [inch]
_PAD, _TOKENS = 7.0, 42.0  # from a panel up to its title, and right to the end of token counts [points]
_ROW_HEIGHTS = ((12, 0.32), (24, 0.25), (math.inf, 0.19))  # of a row, in panels of up to so many [inch]
_BAR = 0.7  # share of a row
_MAX_CELLS = 80  # ticks of a window that are drawn as a cell each
_THIN = 3.0  # bars below this width have no outlines, which would cover them [points]
_ARRIVAL = 1.6  # width of its mark [points]
_FACES = {
    Activity.PREFILL: PREFILL,
    Activity.DECODE: DECODE,
    Activity.STALL: "#ffffff",
    Activity.TRANSFER: TRANSFER,
    Activity.QUEUED: "#d4d4d4",
}


def save_timeline(timelines: Sequence[Timeline], path: Path, *, max_requests: int = 40) -> None:
    """Write timelines of one unit as panels on one time axis, in the order given.

    A panel shows its first `max_requests` requests and the tokens that each has got by the horizon.

    Raises
    ------
    SpecError
        The suffix is neither .png nor .svg, matplotlib is missing, or the file cannot be written.
    """
    save_figure(path, lambda figure: _draw(figure, timelines, max_requests))


def timeline_picture(timelines: Sequence[Timeline], *, max_requests: int = 40) -> Picture:
    """The same for a notebook, which shows it.

    Raises
    ------
    SpecError
        Matplotlib is missing.
    """
    return picture_of(lambda figure: _draw(figure, timelines, max_requests))


def _draw(figure: Figure, timelines: Sequence[Timeline], max_requests: int) -> None:
    rows = [max(len(t.arrivals[:max_requests]), 1) for t in timelines]
    row_height = next(height for most, height in _ROW_HEIGHTS if max(rows, default=0) <= most)
    height = _HEAD + row_height * sum(rows) + _BETWEEN * (len(rows) - 1) + _FOOT
    figure.set_size_inches(_WIDTH, height)
    bottom, axes = height - _HEAD + _BETWEEN, None
    for timeline, count in zip(timelines, rows, strict=True):
        bottom -= _BETWEEN + row_height * count
        box = (_LEFT / _WIDTH, bottom / height, _PANEL / _WIDTH, row_height * count / height)
        axes = figure.add_axes(box, sharex=axes)
        axes.set_xlim(0, max(t.horizon for t in timelines) or 1)
        axes.set_ylim(count - 0.5, -0.5)  # the latest request at the bottom
        axes.tick_params(axis="x", labelbottom=timeline is timelines[-1])
        _draw_frame(axes, timeline)
        if number := len(timeline.arrivals[:max_requests]):
            _draw_bars(axes, timeline, number)
            _draw_labels(axes, timeline, number, size=min(9.0, 0.55 * row_height * POINTS))
        else:
            axes.set_yticks([])
            axes.text(0.5, 0.5, "no requests", transform=axes.transAxes, ha="center", va="center")
    if axes is not None:
        axes.set_xlabel(f"time [{unit_name(timelines[-1].unit)}]")
        _draw_legend(figure, {s.activity for t in timelines for s in t.segments}, below=_LEGEND / height)


def _draw_frame(axes: Axes, timeline: Timeline) -> None:
    axes.set_title(timeline.title, loc="left", pad=_PAD, fontsize=10.5, fontweight="bold")
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.grid(axis="x", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.locator_params(axis="x", integer=timeline.unit == "tick")


def _draw_bars(axes: Axes, timeline: Timeline, number: int) -> None:
    points = _PANEL * POINTS / axes.get_xlim()[1]  # of a tick or second
    for row, segments in enumerate(segments_of_first(timeline, number)):
        spans: dict[tuple[Activity, bool], list[tuple[float, float]]] = {}
        for bar in (cell for segment in segments for cell in _cells(segment, timeline)):
            width = bar.end - bar.start
            spans.setdefault((bar.activity, width * points < _THIN), []).append((bar.start, width))
        for (activity, thin), those in spans.items():
            axes.broken_barh(those, (row - _BAR / 2, _BAR), **_bar_style(activity, thin))
    for row, arrival in enumerate(timeline.arrivals[:number]):
        if arrival <= timeline.horizon:
            left = arrival - _ARRIVAL / 2 / points  # covers nothing of short bars
            axes.vlines(left, row - 0.5, row + 0.5, color=INK, linewidth=_ARRIVAL, clip_on=False, zorder=4)


def _cells(segment: Segment, timeline: Timeline) -> Iterator[Segment]:
    """The segment up to the horizon; decoding in ticks as a bar per token where there is room."""
    end = min(segment.end, timeline.horizon)
    cuts = [segment.start, end]
    if timeline.unit == "tick" and segment.activity is Activity.DECODE and timeline.horizon <= _MAX_CELLS:
        cuts[1:1] = range(math.floor(segment.start) + 1, math.ceil(end))
    for left, right in pairwise(cuts):
        yield replace(segment, start=left, end=right)


def _bar_style(activity: Activity, thin: bool) -> dict[str, Any]:
    face: dict[str, Any] = {"facecolor": _FACES[activity]}
    if thin:
        return {**face, "linewidth": 0.0, "zorder": 3}  # above the outlines of others
    if activity is Activity.STALL:
        return {**face, "edgecolor": DIM, "linewidth": 0.9, "linestyle": (0, (1, 1.6)), "zorder": 2.5}
    return {**face, "edgecolor": "white", "linewidth": 0.8, "zorder": 2}


def _draw_labels(axes: Axes, timeline: Timeline, number: int, size: float) -> None:
    """Names on the left and tokens on the right, in letters of `size` points."""
    axes.set_yticks(range(number), [f"R{row + 1}" for row in range(number)], fontsize=size)
    axes.tick_params(axis="y", length=0)
    place: dict[str, Any] = {"textcoords": "offset points", "ha": "right"}
    axes.annotate("tokens", (1, 1), (_TOKENS, _PAD), xycoords="axes fraction", **place)
    for row, tokens in enumerate(timeline.tokens[:number]):
        axes.annotate(
            f"{tokens:,}",
            (1, row),
            (_TOKENS, 0),
            xycoords=("axes fraction", "data"),
            va="center_baseline",
            fontsize=size,
            **place,
        )
    if number < len(timeline.arrivals):
        shown = f"first {number:,} of {len(timeline.arrivals):,} requests"
        axes.set_title(shown, loc="right", pad=_PAD, fontsize=9, color=DIM)


def _draw_legend(figure: Figure, present: set[Activity], below: float) -> None:
    from matplotlib import lines, patches  # see above

    handles: list[Any] = [
        patches.Patch(label=label, **_bar_style(activity, thin=False))
        for activity, label in LABELS.items()
        if activity in present
    ]
    mark: dict[str, Any] = {"marker": "|", "markersize": 11, "markeredgewidth": _ARRIVAL, "linestyle": "none"}
    handles.append(lines.Line2D([], [], color=INK, label="arrival", **mark))
    figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=((_LEFT + _PANEL / 2) / _WIDTH, below),
        ncols=len(handles),
        frameon=False,
        borderaxespad=0,
        handlelength=1.6,
        columnspacing=1.8,
    )
