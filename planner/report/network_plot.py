"""Cost against the network as a figure: PNG or SVG."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from planner.report.figures import COLOCATED, DECODE, INK, PALE, PREFILL, save_figure
from planner.whatif.network_rows import AS_ASKED, Networks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZE = (7.4, 4.2)  # [inch]
_ABOVE = 1.08  # times the largest value: top of the panel [1]


def save_networks(networks: Networks, path: Path) -> None:
    """Write a line for each kind of transfer and format of the KV cache, and one for colocated plans.

    Raises
    ------
    SpecError
        The suffix is neither .png nor .svg, matplotlib is missing, or the file cannot be written.
    """
    save_figure(path, lambda figure: _draw(figure, networks))


def _draw(figure: Figure, n: Networks) -> None:
    figure.set_size_inches(*_SIZE)
    axes = figure.add_subplot()
    names = list(dict.fromkeys(row.network.name for row in n.points))
    values = []
    for (kv_cache, overlap), group in groupby(n.points, key=lambda row: (row.kv_cache, row.overlap)):
        found = [(names.index(r.network.name), r.result.value) for r in group if r.result.value is not None]
        values += [value for _, value in found]
        axes.plot(
            [x for x, _ in found],
            [y for _, y in found],
            marker="o",
            markersize=4,
            color=DECODE if kv_cache == AS_ASKED else PREFILL,
            linestyle="-" if overlap else (0, (4, 3)),
            label=f"KV cache {kv_cache}, {'overlapped' if overlap else 'after the prompt'}",
        )
    for kv_cache, best in n.colocated.items():
        if best.value is not None:
            values.append(best.value)
            style = "-" if kv_cache == AS_ASKED else ":"
            axes.axhline(
                best.value, color=COLOCATED, linestyle=style, label=f"colocated, KV cache {kv_cache}"
            )
    axes.set_xticks(range(len(names)), names)
    if values:
        axes.set_ylim(0, _ABOVE * max(values))
    axes.set_ylabel(f"{n.objective.value} [{n.unit}]")
    axes.set_title(n.name, loc="left", color=INK)
    axes.grid(color=PALE, linewidth=0.7)
    axes.spines[["right", "top"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, handlelength=3.5)
    figure.tight_layout()
