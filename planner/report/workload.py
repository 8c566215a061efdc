"""Statistics of a request trace as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.tables import NARROWEST


def print_workload(facts: dict[str, Any], width: int) -> None:
    """What a trace says: arrivals, lengths, prefixes, notes."""
    console = Console(width=max(width, NARROWEST), highlight=False, markup=False, emoji=False)
    times = facts["timestamps"]
    console.print(Text(facts["name"], style="bold"))
    console.print(
        f"{facts['requests']:,} requests in {facts['duration_s']:,.5g} s; {facts['layout']}; "
        f"timestamps: {times['unit']}, {times['reason']}\n"
    )
    windows = list(facts["peak_request_rate"])
    arrivals = _table("arrivals", "mean", *(f"in {w[:-1]} s" for w in windows))
    arrivals.add_row(
        "rate, busiest [req/s]",
        _number(facts["request_rate"]),
        *(_number(facts["peak_request_rate"][w]) for w in windows),
    )
    arrivals.add_row("variance / mean", "", *(_number(facts["dispersion"][w]) for w in windows))
    console.print(arrivals)
    console.print(f"CV of times between arrivals {_number(facts['interarrival_cv'])} (Poisson: 1)\n")
    names = list(facts["input_tokens"])
    lengths = _table("tokens", *names)
    for label, key in (("input", "input_tokens"), ("output", "output_tokens")):
        lengths.add_row(label, *(f"{facts[key][name]:,.0f}" for name in names))
    console.print(lengths)
    console.print(
        f"longest request {facts['longest_request_tokens']:,}; correlation of input and output "
        f"{_number(facts['correlation'])}; without output {facts['requests_without_output']:,}"
    )
    if prefix := facts["ideal_prefix_hits"]:
        console.print(
            f"an infinite prefix cache would hit {prefix['tokens']:.1%} of the input tokens, "
            f"{prefix['blocks']:.1%} of the blocks of {prefix['block_tokens']}"
        )
    if facts["max_context"] is not None:
        console.print(_over_context(facts))
    for note in facts["notes"]:
        console.print(Text(f"note: {note}", style="yellow"))


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _over_context(facts: dict[str, Any]) -> Text:
    count, most = facts["requests_over_context"], facts["max_context"]
    if not count:
        return Text(f"no request exceeds {most:,} tokens")
    where = f"the first on line {facts['first_line_over_context']:,}"
    return Text(f"{count:,} of {facts['requests']:,} requests exceed {most:,} tokens, {where}", style="red")


def _number(value: float | None) -> str:
    """Three digits; a dash for what the trace is too short to say."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
