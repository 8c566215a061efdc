"""Two plans side by side as a figure: GPUs and cost of each group, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.report.figures import COLOCATED, DECODE, DIM, INK, PALE, PREFILL, save_figure
from planner.report.tables import figure as figure_of
from planner.specs import Phase
from planner.whatif.compare import Comparison, GroupChange

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT, _ROW = 8.4, 4.0, 0.2  # page, panels, row of the legend [inch]
_COLOURS = {Phase.PREFILL: PREFILL, Phase.DECODE: DECODE, Phase.COLOCATED: COLOCATED}
_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "++")
"""Groups of one pool differ in these, in print too."""
_BAR = 0.55  # of the place of a bar [1]
_ABOVE = 1.12  # times the taller bar: top of the panel [1]


def save_comparison(c: Comparison, path: Path, names: tuple[str, str]) -> None:
    """Write stacked bars of GPUs and, where prices are known, of cost.

    Raises
    ------
    SpecError
        The suffix is neither .png nor .svg, matplotlib is missing, or the file cannot be written.
    """
    save_figure(path, lambda figure: _draw(figure, c, names))


def _draw(figure: Figure, c: Comparison, names: tuple[str, str]) -> None:
    figure.set_size_inches(_WIDTH, _HEIGHT + _ROW * len(c.groups))
    priced = all(cost is not None for g in c.groups for cost in g.cost) and None not in c.cost
    panels = list(figure.subplots(1, 2 if priced else 1, squeeze=False).flat)
    _stack(panels[0], c.groups, [[float(n) for n in g.gpus] for g in c.groups], names, "GPUs in use")
    if priced:
        costs = [[float(x or 0.0) for x in g.cost] for g in c.groups]
        beside = [float(total or 0.0) - sum(row[i] for row in costs) for i, total in enumerate(c.cost)]
        _stack(panels[1], c.groups, costs, names, "cost [USD/h]", beside)
    several = len({g.service for g in c.groups}) > 1
    bars, _ = panels[-1].get_legend_handles_labels()
    labels = [f"{g.label} ({g.service})" if several else g.label for g in c.groups]
    labels += ["idle GPUs, and what is paid beside GPUs"] if len(bars) > len(labels) else []
    space = (_ROW * (len(labels) + 1.5)) / figure.get_figheight()
    figure.tight_layout(rect=(0, space, 1, 1))
    figure.legend(bars, labels, loc="lower left", bbox_to_anchor=(0.06, 0.01), frameon=False)


def _stack(
    axes: Axes,
    groups: Sequence[GroupChange],
    values: Sequence[Sequence[float]],
    names: tuple[str, str],
    title: str,
    beside: Sequence[float] = (0.0, 0.0),
) -> None:
    """Bars of both plans; `beside` is what belongs to no group."""
    bottom = [0.0, 0.0]
    seen: dict[Phase, int] = {}
    for group, pair in zip(groups, values, strict=True):
        number = seen.get(group.phase, 0)
        seen[group.phase] = number + 1
        hatch = _HATCHES[number % len(_HATCHES)]
        style: dict[str, Any] = {"facecolor": _COLOURS[group.phase], "edgecolor": "white", "hatch": hatch}
        axes.bar((0, 1), pair, _BAR, bottom=bottom, label=group.label, linewidth=0.8, **style)
        bottom = [b + v for b, v in zip(bottom, pair, strict=True)]
    if max(beside) > 1e-6 * max(*bottom, 1e-9):
        axes.bar((0, 1), beside, _BAR, bottom=bottom, label="", facecolor=PALE, edgecolor=DIM, linewidth=0.8)
        bottom = [b + v for b, v in zip(bottom, beside, strict=True)]
    for x, total in enumerate(bottom):
        axes.annotate(
            figure_of(total), (x, total), (0, 3), textcoords="offset points", ha="center", fontweight="bold"
        )
    axes.set_xticks((0, 1), [f"before\n{names[0]}", f"after\n{names[1]}"])
    axes.set_xlim(-0.6, 1.6)
    axes.set_ylim(0, _ABOVE * max(*bottom, 1e-9))
    axes.set_title(title, loc="left", color=INK)
    axes.grid(axis="y", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["right", "top"]].set_visible(False)
