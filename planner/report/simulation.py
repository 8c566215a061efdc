"""Simulated fleets as tables."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.terminal import figure, plain_console, plain_table, print_fitting
from planner.units import PERCENT

_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
_NOTHING = 1e-4  # below, a time is rounding [ms]
_SHOWN = ("ttft", "tpot", "itl", "e2e")


def print_simulation(facts: dict[str, Any], title: str, width: int) -> None:
    """Latencies, the verdict on each SLO, and how full every group was."""
    console = plain_console(width)
    console.print(Text(title, style="bold"))
    console.print(Text(_offered(facts)))
    console.print()
    _print_result(console, facts)
    console.print()
    print_fitting(console, lambda without: _groups_table(facts, without), ("NIC", "tok/s", "KV most"))
    _print_classes(console, facts)
    for note in facts["notes"]:
        console.print(Text(f"note: {note}", style="yellow"))


def print_evaluation(facts: dict[str, Any], title: str, width: int) -> None:
    """The most that a fleet carries, and what breaks first."""
    console = plain_console(width)
    console.print(Text(title, style="bold"))
    most = facts["max_request_rate"]
    per_gpu = f"{facts['max_request_rate_per_gpu']:.3g} per GPU"
    console.print(f"carries at most {figure(most)} req/s within its SLOs ({per_gpu})")
    if facts["cost_per_hour"] is not None:
        per_million = facts["usd_per_million_tokens"]
        tokens = "" if per_million is None else f", ${per_million:.3g} per million tokens at that rate"
        console.print(f"costs ${facts['cost_per_hour']:,.2f}/h{tokens}")
    breaks = facts["breaks_first"]
    pools = " and ".join(breaks["pools"]) or "nothing in particular"
    console.print(f"what breaks first, at {figure(breaks['request_rate'])} req/s: {pools}")
    for failure in breaks["failures"]:
        console.print(Text(f"  {failure}"))
    for name, at in (("at the rate given", facts["at_offered"]), ("at the most", facts["at_most"])):
        if at is None:
            continue
        console.print()
        console.print(Text(f"{name}: {_offered(at)}", style="bold"))
        _print_result(console, at)
        print_fitting(
            console,
            lambda without, at=at: _groups_table(at, without),  # type: ignore[misc]
            ("NIC", "tok/s", "KV most"),
        )


def _offered(facts: dict[str, Any]) -> str:
    error = f"{facts['confidence']:.0%} quantile of the model error"
    if facts["confidence"] == 0.5:
        error = "expected step times"
    return f"{facts['requests']:,} requests, {facts['source']}; {error}"


def _print_result(console: Console, facts: dict[str, Any]) -> None:
    console.print(latencies_table("simulated [ms]", facts))
    for check in facts["slo"]:
        console.print(verdict(check))
    if facts["growth"] > 0 or facts["unserved"]:
        for failure in facts["failures"]:
            if "SLO" not in failure and "<=" not in failure:
                console.print(Text(f"FAILS {failure}", style="red"))
    parts = facts["ttft_parts_ms"]
    console.print(
        f"goodput {figure(facts['goodput'])} req/s: {facts['attainment']:.2%} of requests meet every SLO"
    )
    console.print(
        f"mean TTFT: {ms(parts['wait'])} ms wait, {ms(parts['prefill'])} ms prefill, "
        f"{ms(parts['transfer'])} ms hand-over, the rest first decode step"
    )
    held = f"decoding held up for {ms(facts['stall_ms'])} ms per request ({facts['stall_share']:.1%})"
    cache = facts["prefix_hit_rate"]
    hits = "" if cache is None else f"; prefix cache hits {cache:.1%} of the input tokens"
    console.print(f"{held}; {facts['preemptions']:,} preemptions{hits}")


def latencies_table(title: str, facts: dict[str, Any]) -> Table:
    """Mean and percentiles with half of their confidence intervals."""
    table = plain_table(title, *_STATISTICS, right=_STATISTICS)
    for name in _SHOWN:
        values = facts[f"{name}_ms"]
        table.add_row(name.upper(), *(ms(values[s]) for s in _STATISTICS))
        half = facts["half_width_ms"].get(name)
        if half is not None:
            cells = (Text(f"+/-{ms(half[s])}", style="dim") for s in _STATISTICS)
            table.add_row(Text("  95 % interval", style="dim"), *cells)
    return table


def verdict(check: dict[str, Any]) -> Text:
    """One SLO in a line."""
    value, half = check["value_ms"], check["half_width_ms"]
    met = check["met"]
    target = f"{check['statistic']} {check['metric'].upper()} <= {check['limit_ms']:g} ms"
    known = math.isfinite(value if value is not None else math.inf)
    seen = f"{ms(value)} +/- {ms(half)} ms simulated" if known else "no steady state"
    return Text(f"{'meets ' if met else 'MISSES'} {target}: {seen}", style="green" if met else "red")


def _groups_table(facts: dict[str, Any], without: frozenset[str]) -> Table:
    numbers = [n for n in ("busy", "batch", "KV", "KV most", "NIC", "req/s", "tok/s") if n not in without]
    table = plain_table("group", "replicas", *numbers, right=("replicas", *numbers))
    for use in facts["groups"]:
        nic = max(use["egress"], use["ingress"])
        cells = {
            "busy": f"{use['busy']:.0%}",
            "batch": figure(use["mean_batch"], 3) if use["mean_batch"] else "",
            "KV": f"{use['kv_mean']:.0%}",
            "KV most": f"{use['kv_most']:.0%}",
            "NIC": f"{nic:.1%}",
            "req/s": figure(use["request_rate"], 3),
            "tok/s": f"{use['token_rate']:,.0f}",
        }
        table.add_row(use["name"], str(use["replicas"]), *(cells[n] for n in numbers))
    return table


def _print_classes(console: Console, facts: dict[str, Any]) -> None:
    if len(facts["classes"]) < 2:
        return
    numbers = ("requests", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "within SLOs")
    table = plain_table("input tokens", *numbers, right=numbers)
    for one in facts["classes"]:
        tokens = one["input_tokens"]
        table.add_row(
            f"{tokens['min']:,} to {tokens['max']:,}",
            f"{one['requests']:,}",
            *(ms(one[key][s]) for key in ("ttft_ms", "tpot_ms") for s in ("p50", "p99")),
            f"{one['attainment'] * PERCENT:.2f} %",
        )
    console.print()
    console.print(table)


def ms(value: float | None) -> str:
    """A time in ms with three digits; inf where there is none."""
    if value is None or not math.isfinite(value):
        return "inf"
    if abs(value) < _NOTHING:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
