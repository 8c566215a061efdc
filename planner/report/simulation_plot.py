"""A simulated run on one page: latencies against their limits, and every group over time."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.arrays import FloatArray
from planner.report.figures import COLOCATED, DECODE, DIM, GREY, INK, PALE, PREFILL, TRANSFER, save_figure
from planner.report.tables import figure as digits
from planner.simulator.cluster import Outcome
from planner.simulator.metrics import (
    Measured,
    SimulationResult,
    SloCheck,
    TimeSeries,
    measured_latencies,
    measured_window,
)
from planner.specs import Metric, Phase
from planner.units import MILLI, PERCENT, SECONDS_PER_HOUR
from planner.verification import failures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _LEFT, _RIGHT, _GUTTER = 11.0, 0.7, 0.3, 0.75  # page, margins, between columns [inch]
_TALL, _LOW = 2.5, 1.55  # panels of latencies, and over time [inch]
_UNDER_TALL, _UNDER_LOW = 0.88, 0.62  # below them [inch]
_TOP, _LINE, _HEAD_GAP = 0.36, 0.21, 0.42  # to the title's baseline, lines below it, down to the first panel
_ENTRY, _LETTER = 0.78, 0.072  # of the legend: an entry without text, and a letter, about [inch]
_FOOT, _ROW = 0.3, 0.19  # around the legend; of its rows [inch]
_LINE_POINTS = 1100  # characters of a line of the head, times their size

_STYLES: tuple[Any, ...] = ("solid", (0, (4.5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.4, 1.2, 1.4)))
_SHADES = {
    Phase.PREFILL: (PREFILL, "#9a4b08", "#d9a23d"),
    Phase.DECODE: (DECODE, "#14335c", "#69a6dd"),
    Phase.COLOCATED: (COLOCATED, "#3d2166", "#b391d6"),
}
"""Three shades and four styles of lines: the first twelve groups of a phase all differ."""

_PAPER = {"boxstyle": "square,pad=0.15", "facecolor": "white", "edgecolor": "none"}
"""Behind text that lines may cross."""
_MET, _MISSED = "#2b7a4b", "#c0392b"
_LIMIT_LABELS = 0.29  # share of a panel's width that the label of a limit needs
_LOWEST, _HIGHEST = 0.008, 0.9994  # shares of requests that are shown
_SHARES = (0.01, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999)
_CURVE = 500  # points
_SHORTEST = 1e-6  # latency that is drawn; a logarithm has no zero [s]
_SMOOTH_SHARE = 0.05  # of the run, over which thick lines are means
_FEW = 4  # groups of which single samples are shown
_QUEUE = "Queue length [requests]"
_UNDER_WAY, _NOT_MEASURED, _DOWN = "KV caches under way", "not measured", "a replica is down"
_TIME_UNITS = ((1200.0, 1.0, "s"), (4 * SECONDS_PER_HOUR, 60.0, "min"), (math.inf, SECONDS_PER_HOUR, "h"))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Panel:
    """What a panel shows of each group over time."""

    title: str
    values: Callable[[TimeSeries, int], FloatArray | None]
    """Of a group with so many replicas; None: nothing."""
    whole: bool = False  # counts things
    share: bool = False  # up to 100 %
    on_off: bool = False  # single samples say little


def save_simulation(result: SimulationResult, outcome: Outcome, path: Path) -> None:
    """Write a page on a run: PNG or SVG, by the suffix of `path`.

    Parameters
    ----------
    result : SimulationResult
        What was measured of `outcome`.

    Raises
    ------
    SpecError
        The suffix is neither .png nor .svg, matplotlib is missing, or the file cannot be written.
    """
    save_figure(path, lambda figure: _draw(figure, result, outcome))


def _draw(figure: Figure, result: SimulationResult, outcome: Outcome) -> None:
    head = _head(result)
    below = _TOP + _LINE * (len(head) - 1) + _HEAD_GAP
    placed: list[tuple[Axes, tuple[float, float, float, float]]] = []

    def place(column: int, of: int, tall: float) -> Axes:
        width = (_WIDTH - _LEFT - _RIGHT - _GUTTER * (of - 1)) / of
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        placed.append((axes, (_LEFT + column * (width + _GUTTER), below + tall, width, tall)))
        return axes

    latencies = measured_latencies(outcome)
    _draw_latency(place(0, 2, _TALL), result, Metric.TTFT, latencies.ttft)
    _draw_latency(place(1, 2, _TALL), result, Metric.TPOT, latencies.tpot)
    below += _TALL + _UNDER_TALL
    legend: dict[str, Any] = {}
    for row in (rows := _rows(result.series)):
        for column, panel in enumerate(row):
            axes = place(column, len(row), _LOW)
            _draw_over_time(axes, panel, result, outcome, legend)
            if row is rows[-1] and outcome.sample_times.size:
                axes.set_xlabel(f"time [{_time_unit(outcome)[1]}]")
        below += _LOW + _UNDER_LOW
    columns = _legend_columns(list(legend))
    height = below + _FOOT + _ROW * math.ceil(len(legend) / columns)
    figure.set_size_inches(_WIDTH, height)
    for axes, (left, bottom, width, tall) in placed:
        axes.set_position((left / _WIDTH, 1 - bottom / height, width / _WIDTH, tall / height))
    for line, (text, style) in enumerate(head):
        figure.text(_LEFT / _WIDTH, 1 - (_TOP + _LINE * line) / height, text, **style)
    if legend:
        figure.legend(
            list(legend.values()),
            list(legend),
            loc="lower center",
            bbox_to_anchor=(0.5, 0.5 * _FOOT / height),
            ncols=columns,
            frameon=False,
            borderaxespad=0,
            handlelength=2.6,
            columnspacing=2.0,
        )


def _legend_columns(labels: Sequence[str]) -> int:
    """As many as fit; entries run down each."""
    for columns in range(len(labels), 1, -1):
        tall = math.ceil(len(labels) / columns)
        widest = (max(map(len, labels[k : k + tall])) for k in range(0, len(labels), tall))
        if sum(_ENTRY + _LETTER * letters for letters in widest) <= _WIDTH - _LEFT - _RIGHT:
            return columns
    return 1


def _labels(result: SimulationResult) -> list[str]:
    """What the legend calls the groups."""
    return [f"{use.replicas} x {use.name}" for use in result.groups]


# --------------------------------------------------------------------------------------------
# Head


def _head(result: SimulationResult) -> list[tuple[str, dict[str, Any]]]:
    """Lines: what came, what was measured, and whether it holds."""
    lines: list[tuple[str, dict[str, Any]]] = []

    def say(text: str, lines_at_most: int = 2, **style: Any) -> None:
        width = int(_LINE_POINTS / style.get("fontsize", 9))
        kept = textwrap.wrap(text, width, max_lines=lines_at_most, placeholder=" ...") or [""]
        lines.extend((line, style) for line in kept)

    say(result.source or "simulated requests", fontsize=13, fontweight="bold")
    offered = f" at {digits(result.request_rate)} req/s" if result.request_rate else ""
    count = "1 request" if result.requests == 1 else f"{result.requests:,} requests"
    good = f"; goodput {digits(result.goodput)} req/s" if result.checks and result.request_rate else ""
    say(f"{count}, {result.measured:,} measured{offered}{good}", color=DIM)
    verdict: dict[str, Any] = {"fontweight": "bold", "color": _MET if result.passed else _MISSED}
    if result.passed:
        met = f"holds: {result.attainment:.2%} of requests meet every SLO" if result.checks else ""
        say(met or "no SLO to meet; there is a steady state", **verdict)
    if missed := "; ".join(failures(result)):
        if result.passed:
            say(missed)
        else:
            say(f"does not hold: {missed}", 4, **verdict)
    return lines


# --------------------------------------------------------------------------------------------
# Latencies


def _draw_latency(axes: Axes, result: SimulationResult, metric: Metric, values: FloatArray) -> None:
    """Distribution of a latency on a logistic scale, on which tails are seen, with limits. [s]"""
    measured = result.ttft if metric is Metric.TTFT else result.tpot
    checks = [check for check in result.checks if check.target.metric is metric]
    name = "time to first token" if metric is Metric.TTFT else "time per output token"
    values = np.sort(values[~np.isnan(values)])
    _frame(axes, metric.upper(), _found(measured, checks) if values.size else "")
    axes.set_xlabel(f"{name} [ms]")
    axes.set_ylabel("share of requests [%]")
    axes.set_xscale("log")
    axes.set_yscale("logit")
    axes.set_ylim(_LOWEST, _HIGHEST)
    axes.set_yticks(_SHARES, [f"{share * PERCENT:g}" for share in _SHARES])
    low_odds, high_odds = (math.log(share / (1 - share)) for share in (_LOWEST, _HIGHEST))
    shares = 1 / (1 + np.exp(-np.linspace(low_odds, high_odds, _CURVE)))
    curve = _quantiles(values, shares) if values.size else np.zeros(0)
    served = np.isfinite(curve)
    low, high = _extent(np.maximum(curve[served], _SHORTEST), checks)
    axes.set_xlim(low / MILLI, high / MILLI)
    ticks = _log_ticks(low / MILLI, high / MILLI)
    axes.set_xticks(ticks, [f"{tick:,.6g}" for tick in ticks])
    axes.minorticks_off()
    beside: dict[str, Any] = {"transform": axes.transAxes, "bbox": _PAPER}
    if served.any():
        axes.plot(np.maximum(curve[served], _SHORTEST) / MILLI, shares[served], color=INK, linewidth=1.8)
    else:
        none = "no request was served" if values.size else "no request has a second token"
        axes.text(0.5, 0.5, none, ha="center", va="center", color=DIM, **beside)
    lost = np.count_nonzero(np.isinf(values))
    if lost and served.any():
        text = f"{_percent(lost / values.size)} never served"
        axes.text(0.98, 0.05, text, ha="right", color=_MISSED, **beside)
    for check in checks:
        _draw_limit(axes, check, values, high)


def _found(measured: Measured, checks: Sequence[SloCheck]) -> str:
    """What SLOs ask for, else median and tail; one figure with half of its confidence interval."""
    names = dict.fromkeys(check.target.statistic.value for check in checks) or ("p50", "p99")
    said = ", ".join(f"{name} {_milliseconds(getattr(measured.value, name))}" for name in names)
    half = getattr(measured.half_width, next(iter(names)))
    known = f" ±{digits(half / MILLI, 2)}" if len(names) == 1 and 0 < half < math.inf else ""
    return f"{said}{known} ms"


def _draw_limit(axes: Axes, check: SloCheck, values: FloatArray, high: float) -> None:
    """The limit as a line, and what was measured as a mark on the curve."""
    target = check.target
    colour = _MET if check.met else _MISSED
    axes.axvline(target.limit / MILLI, color=colour, linewidth=1.1, linestyle=(0, (4, 2.5)), zorder=1.5)
    share = target.statistic.probability
    if share is None:
        share = float(np.searchsorted(values, check.value)) / values.size if values.size else 0.5
        share = min(max(share, 0.02), 0.995)
    within = check.value <= target.limit
    axes.annotate(
        f"{target.statistic} ≤ {_milliseconds(target.limit)} ms",
        (target.limit / MILLI, share),
        (5 if within else -5, 0),
        textcoords="offset points",
        ha="left" if within else "right",  # where the curve is not
        va="center",
        color=colour,
        bbox=_PAPER,
        zorder=3,
    )
    if not values.size:
        return
    finite = math.isfinite(check.value)
    axes.plot(
        [(max(check.value, _SHORTEST) if finite else high) / MILLI],
        [share],
        marker=("o" if check.met else "D") if finite else ">",
        markersize=6.5,
        color=colour,
        markeredgecolor="white",
        markeredgewidth=0.9,
        clip_on=False,
        zorder=4,
    )


def _quantiles(values: FloatArray, shares: FloatArray) -> FloatArray:
    """Of sorted values, none interpolated: the same that is measured."""
    return values[np.ceil(shares * (values.size - 1) - 1e-9).astype(np.int64)]


def _extent(curve: FloatArray, checks: Sequence[SloCheck]) -> tuple[float, float]:
    """Ends of the axis, with room for the labels of limits. [s]"""
    limits = [check.target.limit for check in checks]
    shown = [*limits, *(check.value for check in checks if _SHORTEST < check.value < math.inf)]
    ends = [*shown, *((float(curve[0]), float(curve[-1])) if curve.size else ())]
    low, high = math.log(min(ends, default=1.0)), math.log(max(ends, default=1.0))
    margin = max(0.05 * (high - low), 0.05) if curve.size else math.log(2)
    low, high = low - margin, high + margin
    for _ in range(2):  # the second corrects the first
        for check in checks:
            at = math.log(check.target.limit)
            if check.value <= check.target.limit:
                high = max(high, low + (at - low) / (1 - _LIMIT_LABELS))
            else:
                low = min(low, high - (high - at) / (1 - _LIMIT_LABELS))
    return math.exp(low), math.exp(high)


def _log_ticks(low: float, high: float) -> list[float]:
    """Round numbers within a logarithmic axis, about seven."""
    decades = math.log10(high / low)
    if decades < 0.8:
        step = _round_step((high - low) / 6)
        return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    digits_of = (1, 2, 5) if decades < 2.6 else (1,)
    every = math.ceil(decades / 7)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = (digit * 10.0**power for power in powers if power % every == 0 for digit in digits_of)
    return [tick for tick in ticks if low <= tick <= high]


def _round_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= least * (1 - 1e-9))


def _milliseconds(seconds: float) -> str:
    """Of a latency in s."""
    return digits(seconds / MILLI, 3) if math.isfinite(seconds) else "∞"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 5e-4 else "under 0.1%"


# --------------------------------------------------------------------------------------------
# Groups over time


def _rows(series: Sequence[TimeSeries]) -> tuple[tuple[_Panel, ...], ...]:
    """Panels from top to bottom; without hand-overs there is no link to show."""
    queue = _Panel(title=_QUEUE, values=lambda s, _: s.queue, whole=True)
    tokens = _Panel(
        title="Output [tokens per second]",
        values=lambda s, _: s.token_rate if s.phase is not Phase.PREFILL or s.token_rate.any() else None,
    )
    batch = _Panel(
        title="Decode batch [sequences per replica]",
        values=lambda s, replicas: None if s.phase is Phase.PREFILL else s.batch / replicas,
    )
    kv = _Panel(title="KV cache in use [%]", values=lambda s, _: s.kv * PERCENT, share=True)
    busy = _Panel(title="Busy [%]", values=lambda s, _: s.busy * PERCENT, share=True, on_off=True)
    link = _Panel(title="NIC load [%]", values=lambda s, _: s.link * PERCENT)
    if any(s.phase is Phase.COLOCATED for s in series):
        return (queue,), (batch, kv), (busy, tokens)
    return (queue, tokens), (batch, kv), (busy, link)


def _draw_over_time(
    axes: Axes, panel: _Panel, result: SimulationResult, outcome: Outcome, legend: dict[str, Any]
) -> None:
    _frame(axes, panel.title)
    if not outcome.sample_times.size:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no samples", transform=axes.transAxes, ha="center", va="center", color=DIM)
        return
    time = outcome.sample_times / _time_unit(outcome)[0]
    axes.set_xlim(0, time[-1])
    few = len(result.series) <= _FEW
    most = 0.0

    def draw(values: FloatArray, label: str, samples: bool, **look: Any) -> None:
        nonlocal most
        smooth = _smoothed(values)
        most = max(most, float(smooth.max()))
        if few and samples:
            axes.plot(time, values, color=look["color"], linewidth=0.6, alpha=0.35)
            most = max(most, float(values.max()))
        width = 1.7 if few else 1.25
        (line,) = axes.plot(time, smooth, linewidth=width, clip_on=False, zorder=3, **look)
        legend.setdefault(label, line)

    looks = _looks(result.series)
    for series, use, label, look in zip(result.series, result.groups, _labels(result), looks, strict=True):
        values = panel.values(series, use.replicas)
        if values is not None:
            draw(values, label, not panel.on_off, **look)
    if panel.title == _QUEUE:
        kind = "thick: means" if few else "means"
        _frame(axes, panel.title, f"{kind} over {_SMOOTH_SHARE:.0%} of the run")
        under_way = np.sum([series.transfers for series in result.series], axis=0)
        if under_way.any():
            draw(under_way, _UNDER_WAY, False, color=TRANSFER, linestyle="solid")
    axes.set_ylim(0, PERCENT if panel.share else max(1.06 * most, 1.0))
    axes.locator_params(axis="y", nbins=5, integer=panel.whole)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    _draw_spans(axes, outcome, legend)


def _time_unit(outcome: Outcome) -> tuple[float, str]:
    """In which a run is drawn. [s]"""
    end = float(outcome.sample_times[-1])
    return next((scale, unit) for most, scale, unit in _TIME_UNITS if end < most)


def _draw_spans(axes: Axes, outcome: Outcome, legend: dict[str, Any]) -> None:
    """Times that are not measured, and those at which a replica is down."""
    end, scale = float(outcome.sample_times[-1]), _time_unit(outcome)[0]
    arrival, window = outcome.request["arrival"], measured_window(outcome)
    spans = []
    if window.start > 0:
        spans.append((0.0, min(arrival[window.start], end)))
    if window.stop < len(arrival):
        spans.append((min(arrival[window.stop], end), end))
    for start, stop in spans:
        span = axes.axvspan(start / scale, stop / scale, color="#f0f0f0", linewidth=0, zorder=0)
        legend.setdefault(_NOT_MEASURED, span)
    for failure in outcome.cluster.failures:
        if failure.time < end:
            down: dict[str, Any] = {"color": _MISSED, "alpha": 0.14, "linewidth": 0, "zorder": 0.5}
            span = axes.axvspan(failure.time / scale, min(failure.until, end) / scale, **down)
            legend.setdefault(_DOWN, span)


def _looks(series: Sequence[TimeSeries]) -> list[dict[str, Any]]:
    """Colour and style of each group's line: the phase by its colour, groups by shade and style."""
    seen = dict.fromkeys(Phase, 0)
    looks = []
    for one in series:
        number = seen[one.phase]
        seen[one.phase] += 1
        shades = _SHADES[one.phase]
        style = _STYLES[number % len(_STYLES)]
        looks.append({"color": shades[number % len(shades)], "linestyle": style})
    return looks


def _smoothed(values: FloatArray) -> FloatArray:
    """Mean over the neighbours of each sample: at the ends over fewer, so that a trend is kept."""
    half = int(_SMOOTH_SHARE * values.size) // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(values.size)
    reach = np.minimum(half, np.maximum(np.minimum(index, index[::-1]), half // 2))
    before, after = np.minimum(reach, index), np.minimum(reach, index[::-1])
    return np.asarray((sums[index + after + 1] - sums[index - before]) / (before + after + 1))


def _frame(axes: Axes, title: str, beside: str = "") -> None:
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=7)
    axes.set_title(beside, loc="right", fontsize=9, color=DIM, pad=7)
    axes.spines[["right", "top"]].set_visible(False)
    axes.grid(color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(color=GREY, length=3)
