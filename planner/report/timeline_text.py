"""The interference picture in characters: a row per request, a column per slice of time."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.text import Text

from planner.report.tables import NARROWEST
from planner.simulator.timeline import Activity, Segment, Timeline

MAX_ROWS = 60  # requests of a panel
LABELS = {
    Activity.PREFILL: "prefill",
    Activity.DECODE: "decode",
    Activity.STALL: "decode stall",
    Activity.TRANSFER: "KV transfer",
    Activity.QUEUED: "queued",
}
"""What legends call activities, in their order there."""

_MARKS = {
    Activity.PREFILL: ("P", "black on dark_orange"),
    Activity.DECODE: ("D", "bright_white on dodger_blue3"),
    Activity.STALL: (".", "bright_white"),
    Activity.TRANSFER: (">", "black on green3"),
    Activity.QUEUED: ("-", "grey62"),
}
_NOTHING = (" ", "")
_ARRIVAL = "|"
_TOKENS = "tokens"
_GAP = "  "
_LABEL_STEPS = {
    1.0: (5, 10, 20, 50),
    1.25: (8, 16, 40),
    1.5: (10, 20, 40),
    2.0: (5, 10, 25, 50),
    2.5: (8, 20, 40),
    3.0: (5, 10, 20, 50),
    4.0: (5, 10, 25, 50),
    5.0: (10, 20, 40),
    6.0: (5, 10, 20, 50),
    8.0: (5, 10, 25, 50),
}
"""Times of a column, to be multiplied by a power of ten, and columns from one label to the next."""

_MAX_LABELS = 12
_NOISE = 1e-9  # of a column: less is the error of a difference


@dataclass(frozen=True, kw_only=True, slots=True)
class _Grid:
    """What all panels share.

    Attributes
    ----------
    columns : int
    step : float
        Time of a column. [s or ticks]
    names, tokens : int
        Characters for the names of requests on the left and for their tokens on the right.
    """

    columns: int
    step: float
    names: int
    tokens: int


def timeline_text(timelines: Sequence[Timeline], width: int, colour: bool = False) -> str:
    """:func:`timeline_rich` as plain text or, with `colour`, with ANSI escape sequences."""
    text = timeline_rich(timelines, width)
    if not colour:
        return text.plain
    written = io.StringIO()
    console = Console(
        file=written, force_terminal=True, color_system="256", no_color=False, legacy_windows=False
    )
    console.print(text, soft_wrap=True, end="")
    return written.getvalue()


def timeline_rich(timelines: Sequence[Timeline], width: int) -> Text:
    """Timelines of one unit as panels on one scale, in the order given, with the first requests of each.

    A column shows the activity that takes most of its time, and is blank where there is none at all. A
    request arrives within the column that follows its mark of arrival. Columns of ticks hold whole ticks.
    """
    if not timelines:
        return Text()
    width = max(width, NARROWEST)
    grid = _grid(timelines, width)
    lines: list[Text] = []
    for timeline in timelines:
        lines += [*_panel(timeline, grid, width), Text()]
    return Text("\n").join([*lines, *_legend(timelines, grid, width)])


def unit_name(unit: str) -> str:
    """Unit of a time axis."""
    return "ticks" if unit == "tick" else unit


def segments_of_first(timeline: Timeline, count: int) -> list[list[Segment]]:
    """Segments of each of the first `count` requests within the window."""
    segments: list[list[Segment]] = [[] for _ in timeline.arrivals[:count]]
    for segment in timeline.segments:
        if segment.request < len(segments) and segment.start < timeline.horizon:
            segments[segment.request].append(segment)
    return segments


def _grid(timelines: Sequence[Timeline], width: int) -> _Grid:
    requests = max(len(t.arrivals[:MAX_ROWS]) for t in timelines)
    tokens = max((len(f"{n:,}") for t in timelines for n in t.tokens[:MAX_ROWS]), default=0)
    names, tokens = len(f"R{requests}"), max(tokens, len(_TOKENS))
    room = width - names - len(" |") - len(_GAP) - tokens
    horizon = max(t.horizon for t in timelines)
    step = _column_time(horizon / room, whole=timelines[0].unit == "tick")
    return _Grid(columns=math.ceil(horizon / step - _NOISE), step=step, names=names, tokens=tokens)


def _column_time(least: float, whole: bool) -> float:
    """A time of at least `least` with few digits; `whole`: without a fraction."""
    if whole:
        least = max(least, 1.0)
    if least == 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    times = [digits * power for digits in _LABEL_STEPS if not whole or (digits * power).is_integer()]
    return next((time for time in times if time >= least * (1 - _NOISE)), 10.0 * power)


def _panel(timeline: Timeline, grid: _Grid, width: int) -> Iterator[Text]:
    yield from (Text(line, style="bold") for line in textwrap.wrap(timeline.title, width))
    if not timeline.arrivals:
        yield Text("no requests")
        return
    yield from _axis(grid)
    for request, segments in enumerate(segments_of_first(timeline, MAX_ROWS)):
        cells = [_NOTHING, *_cells(segments, timeline.horizon, grid)]
        mark = math.floor(timeline.arrivals[request] / grid.step + _NOISE)
        if mark < len(cells) and cells[mark] == _NOTHING:
            cells[mark] = (_ARRIVAL, "bold")
        row = Text(f"{f'R{request + 1}':>{grid.names}} ")
        for style, run in groupby(cells, key=lambda cell: cell[1]):
            row.append("".join(mark for mark, _ in run), style=style)
        yield row.append(f"{_GAP}{timeline.tokens[request]:>{grid.tokens},}")
    if left_out := len(timeline.arrivals[MAX_ROWS:]):
        yield Text(f"and {left_out:,} more {'request' if left_out == 1 else 'requests'}")


def _axis(grid: _Grid) -> Iterator[Text]:
    """Times above the columns that begin at them."""

    def label(column: int) -> str:
        return f"{column * grid.step:.10g}"

    longest = max(len(label(column)) for column in range(grid.columns + 1))
    steps = _LABEL_STEPS[float(f"{grid.step:.2e}".partition("e")[0])]
    step = next((s for s in steps if s > longest and grid.columns <= s * _MAX_LABELS), steps[-1])
    labels = ruler = ""
    for column in range(0, grid.columns, step):
        if column + len(label(column)) <= grid.columns:
            labels = labels.ljust(column) + label(column)
        ruler += "+".ljust(min(step, grid.columns - column), "-")
    margin = " " * (grid.names + len(" |"))
    yield Text(f"{margin}{labels:<{grid.columns + len(_GAP)}}{_TOKENS:>{grid.tokens}}")
    yield Text(margin + ruler)


def _cells(segments: Sequence[Segment], horizon: float, grid: _Grid) -> list[tuple[str, str]]:
    """Mark and style of each column."""
    times: list[dict[Activity, float]] = [{} for _ in range(grid.columns)]
    for segment in segments:
        end = min(segment.end, horizon)
        last = min(math.ceil(end / grid.step), grid.columns)
        for column in range(math.floor(segment.start / grid.step), last):
            left = column * grid.step
            within = min(end, left + grid.step) - max(segment.start, left)
            if within > _NOISE * grid.step:
                times[column][segment.activity] = times[column].get(segment.activity, 0.0) + within
    return [_MARKS[max(by, key=by.__getitem__)] if by else _NOTHING for by in times]


def _legend(timelines: Sequence[Timeline], grid: _Grid, width: int) -> Iterator[Text]:
    present = {segment.activity for t in timelines for segment in t.segments}
    marks = [(*_MARKS[activity], label) for activity, label in LABELS.items() if activity in present]
    line = Text()
    for mark, style, label in [*marks, (_ARRIVAL, "bold", "arrival")]:
        entry = Text.assemble((mark, style), f" {label}")
        if line and len(line) + len(_GAP) + len(entry) > width:
            yield line
            line = Text()
        line.append_text(Text(_GAP if line else "")).append_text(entry)
    yield line
    unit = timelines[0].unit
    column = unit if grid.step == 1 else unit_name(unit)
    yield Text(f"time in {unit_name(unit)}; one column is {grid.step:.10g} {column}")
