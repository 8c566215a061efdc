"""The verdict of a load test as tables."""

from __future__ import annotations

from rich.text import Text

from planner.deploy.judge import Judgement
from planner.report.tables import figure, plain_console, plain_table
from planner.units import MILLI

_WORDS = {True: "passes", False: "fails", None: "not measured"}
_STYLES = {True: "green", False: "bold red", None: "yellow"}


def print_judgement(found: Judgement, width: int) -> None:
    """SLOs, predictions beside what was measured, and what to do."""
    console = plain_console(width)
    table = plain_table("SLO", "limit", "measured", "", right=("limit", "measured"))
    for verdict in found.slo:
        target, measured = verdict.target, verdict.measured
        table.add_row(
            f"{target.statistic} {target.metric.upper()} [ms]",
            figure(target.limit / MILLI),
            "" if measured is None else figure(measured / MILLI),
            Text(_WORDS[verdict.passed], style=_STYLES[verdict.passed]),
        )
    console.print(table)
    console.print()
    right = ("measured", "predicted", "80 % interval", "ratio")
    table = plain_table("prediction", *right, "", right=right)
    for one in found.predictions:
        interval = f"{figure(one.low / MILLI)}-{figure(one.high / MILLI)}"
        table.add_row(
            f"{one.statistic} {one.metric.upper()} [ms]",
            figure(one.measured / MILLI),
            figure(one.expected / MILLI),
            interval,
            f"{one.ratio:.2f}",
            "" if one.within else "outside",
        )
    console.print(table)
    for kind, lines in (("fails", found.failures), ("another load", found.unlike), ("advice", found.advice)):
        for line in lines:
            console.print(Text(f"{kind}: {line}"))
