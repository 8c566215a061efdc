"""What decides a plan as a figure: what each requirement costs, and what a little more is worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.report.figures import DECODE, DIM, INK, PALE, PREFILL, save_figure
from planner.report.tables import figure as figure_of
from planner.specs import Objective
from planner.whatif.explain import Explanation, WhatIf

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _ROW, _HEAD = 9.0, 0.27, 1.0  # page, of a bar, of a panel beside its bars [inch]
_LONGEST = 46  # characters of a name
_BAR = 0.65  # of the place of a bar [1]
_RIGHT = 1.3  # times the longest bar: room for its figure [1]


def save_explanation(e: Explanation, path: Path) -> None:
    """Write bars of what is saved: each requirement lifted alone, and a little more of everything.

    Raises
    ------
    SpecError
        The suffix is neither .png nor .svg, matplotlib is missing, or the file cannot be written.
    """
    save_figure(path, lambda figure: _draw(figure, e))


def _draw(figure: Figure, e: Explanation) -> None:
    panels = [
        (title, sorted(rows, key=lambda w: -(w.saving or 0.0)))
        for title, rows in (("lifted alone", e.requirements), ("a little more", e.marginal))
        if rows
    ] or [("nothing to lift", [])]
    heights = [_HEAD + _ROW * max(len(rows), 1) for _, rows in panels]
    figure.set_size_inches(_WIDTH, sum(heights) + 0.4)
    axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights}).flat
    most = max((w.saving or 0.0 for _, rows in panels for w in rows), default=0.0) or 1.0
    for place, (title, rows) in zip(axes, panels, strict=True):
        _bars(place, e, title, rows, most)
    value = f"{figure_of(e.base.value or 0.0)} {e.unit}: {e.base.description}"
    figure.suptitle(value if len(value) < 2 * _LONGEST else f"{value[: 2 * _LONGEST]}...", x=0.01, ha="left")
    figure.tight_layout()


def _bars(axes: Axes, e: Explanation, title: str, rows: Sequence[WhatIf], most: float) -> None:
    """Those that bind are dark and hatched; the others cost nothing."""
    for y, w in enumerate(rows):
        saving = w.saving or 0.0
        style: dict[str, Any] = {"facecolor": PREFILL, "hatch": "///"} if w.binds else {"facecolor": DECODE}
        axes.barh(y, saving, _BAR, edgecolor="white", linewidth=0.8, **style)
        share = f" ({saving / e.base.value:.0%})" if e.base.value and w.binds else ""
        text = f"{figure_of(saving, 3)} {e.unit}{share}" if w.binds else "nothing"
        axes.annotate(
            text, (saving, y), (4, 0), textcoords="offset points", va="center", color=INK if w.binds else DIM
        )
    axes.set_yticks(range(len(rows)), [_name(w) for w in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, _RIGHT * most)
    if not any(w.saving for w in rows):
        axes.set_xticks([])
    gain = "carries more" if e.objective is Objective.THROUGHPUT else "saves"
    axes.set_title(f"{title}: {gain} [{e.unit}]", loc="left", color=INK)
    axes.grid(axis="x", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["right", "top", "left"]].set_visible(False)


def _name(w: WhatIf) -> str:
    text = f"{w.subject}: {w.change}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}\N{HORIZONTAL ELLIPSIS}"
