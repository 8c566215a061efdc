"""Cost against a limit or a confidence as a figure: PNG or SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from planner.report.figures import DECODE, DIM, INK, PALE, PREFILL, save_figure
from planner.report.tables import figure as figure_of
from planner.whatif.pareto import Pareto

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SIZE = (7.0, 4.2)  # [inch]
_ABOVE = 1.08  # times the largest value: top of the panel [1]
_MOST_LABELS = 9
_BELOW = 0.04  # of the panel, where crosses of infeasible points stand [1]


def save_pareto(pareto: Pareto, path: Path) -> None:
    """Write a curve: a step for each point, crosses where there is no plan, a line where the scenario lies.

    Raises
    ------
    SpecError
        The suffix is neither .png nor .svg, matplotlib is missing, or the file cannot be written.
    """
    save_figure(path, lambda figure: _draw(figure, pareto))


def _draw(figure: Figure, p: Pareto) -> None:
    figure.set_size_inches(*_SIZE)
    axes = figure.add_subplot()
    found = [(p.shown(x.x), x.result.value) for x in p.points if x.result.value is not None]
    x, y = [place for place, _ in found], [value for _, value in found]
    # A plan also does for what asks less.
    style = "steps-pre" if p.statistic is None else "steps-post"
    axes.plot(x, y, drawstyle=style, color=DECODE, linewidth=1.4)
    axes.plot(x, y, "o", color=DECODE, markersize=5, label="a plan")
    _draw_infeasible(axes, p)
    axes.axvline(p.shown(p.asked), color=DIM, linewidth=0.9, linestyle=(0, (4, 3)), label="asked for")
    if p.statistic is not None:
        axes.set_xscale("log")
        _label_limits(axes, p)
        axes.set_xlabel(f"{p.statistic} {p.varied.upper()} limit [ms]")
    else:
        axes.set_xlabel("confidence: quantile of the model error that is withstood")
    if y:
        axes.set_ylim(0, _ABOVE * max(y))
    axes.set_ylabel(f"{p.objective.value} [{p.unit}]")
    axes.set_title(p.name, loc="left", color=INK)
    axes.grid(color=PALE, linewidth=0.7)
    axes.spines[["right", "top"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()


def _label_limits(axes: Axes, p: Pareto) -> None:
    """Ticks where points are, in plain numbers; of many points some."""
    every = -(-len(p.points) // _MOST_LABELS)
    places = [p.shown(point.x) for point in p.points[::every]]
    axes.set_xticks(places, [figure_of(place, 3) for place in places])
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)


def _draw_infeasible(axes: Axes, p: Pareto) -> None:
    none = [p.shown(point.x) for point in p.points if not point.result.feasible]
    if none:
        place = axes.get_xaxis_transform()  # x as data, y as a share of the panel
        axes.plot(
            none, [_BELOW] * len(none), "x", color=PREFILL, markersize=6, transform=place, label="no plan"
        )
