"""Simulated fleets as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.report.tables import figure, plain_console, plain_table, print_fitting
from planner.specs import Phase
from planner.units import PERCENT

_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
_NOTHING = 1e-4  # below, a time is rounding [ms]
_SHOWN = ("ttft", "tpot", "itl", "e2e")
_SAME_RATE = 0.01  # by which the rate may differ from the planned one before it is said [1]


def print_simulations(by_service: Mapping[str, dict[str, Any]], titles: Sequence[str], width: int) -> None:
    """Every service of a plan, each under its title; of several, whether all hold."""
    console = plain_console(width)
    for k, (facts, title) in enumerate(zip(by_service.values(), titles, strict=True)):
        if k:
            console.print()
        print_simulation(facts, title, width)
    if len(by_service) > 1:
        console.print()
        console.print(_whole(by_service))


def _whole(by_service: Mapping[str, dict[str, Any]]) -> Text:
    """Whether a plan of several services holds."""
    failing = [name for name, facts in by_service.items() if not facts["passed"]]
    if not failing:
        return Text(f"the plan holds: all {len(by_service)} services meet their SLOs", style="bold green")
    verdict = "THE PLAN DOES NOT HOLD"
    if not any(by_service[name]["decided"] for name in failing):
        verdict = "the runs are too short to tell whether the plan holds"
    return Text(f"{verdict}: {'; '.join(failing)}", style="bold red")


def print_simulation(facts: dict[str, Any], title: str, width: int) -> None:
    """Latencies, the verdict on each SLO, and how full every group was."""
    console = plain_console(width)
    console.print(Text(title, style="bold"))
    console.print(Text(_offered(facts)))
    planned = facts["planned_request_rate"]
    if planned is not None and abs(facts["offered_request_rate"] / planned - 1) > _SAME_RATE:
        how = "; --rate-scale match plays the trace at that" if facts["replayed"] else ""
        console.print(Text(f"the plan is for {figure(planned)} req/s{how}", style="yellow"))
    console.print()
    _print_result(console, facts)
    console.print()
    _print_groups(console, facts)
    _print_classes(console, facts)
    for note in facts["notes"]:
        console.print(Text(f"note: {note}", style="yellow"))


def print_evaluations(each: Sequence[dict[str, Any]], titles: Sequence[str], width: int) -> None:
    """Every service of a plan, each under its title; of several, how much more traffic the plan carries."""
    console = plain_console(width)
    for k, (facts, title) in enumerate(zip(each, titles, strict=True)):
        if k:
            console.print()
        print_evaluation(facts, title, width)
    if len(each) > 1:
        least = min(facts["max_request_rate"] / facts["request_rate"] for facts in each)
        style = "bold green" if all(facts["passed"] for facts in each) else "bold red"
        console.print()
        console.print(
            Text(f"the plan carries {figure(least, 3)} times its requests within the SLOs", style=style)
        )


def print_evaluation(facts: dict[str, Any], title: str, width: int) -> None:
    """The most that a fleet carries, and what breaks first."""
    console = plain_console(width)
    console.print(Text(title, style="bold"))
    most, breaks = facts["max_request_rate"], facts["breaks_first"]
    if most > 0:
        per_gpu = f"{facts['max_request_rate_per_gpu']:.3g} per GPU"
        console.print(f"carries at most {figure(most)} req/s within its SLOs ({per_gpu})")
    else:
        console.print(Text("carries nothing within its SLOs", style="red"))
    if facts["cost_per_hour"] is not None:
        per_million = facts["usd_per_million_tokens"]
        tokens = "" if per_million is None else f", ${per_million:.3g} per million tokens at that rate"
        console.print(f"costs ${facts['cost_per_hour']:,.2f}/h{tokens}")
    pools = " and ".join(breaks["pools"]) or "nothing in particular"
    where = f"at {figure(breaks['request_rate'])} req/s"
    alone = "" if most > 0 else ", where requests hardly meet"
    console.print(f"what breaks first, {where}{alone}: {pools}")
    for failure in breaks["failures"]:
        console.print(Text(f"  {failure}"))
    for name, at in _rates_shown(facts):
        console.print()
        console.print(Text(f"{name}: {_offered(at)}", style="bold"))
        _print_result(console, at)
        console.print()
        _print_groups(console, at)
        for note in at["notes"]:
            console.print(Text(f"note: {note}", style="yellow"))


def _rates_shown(facts: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    offered, most = facts["at_offered"], facts["at_most"]
    if offered is not None and most is not None and facts["request_rate"] == facts["max_request_rate"]:
        return [("at the rate given, which is the most", offered)]
    named = (("at the rate given", offered), ("at the most", most))
    return [(name, at) for name, at in named if at is not None]


def _offered(facts: dict[str, Any]) -> str:
    error = f"{facts['confidence'] * PERCENT:.3g}% quantile of the model error"
    if facts["confidence"] == 0.5:
        error = "expected step times"
    return f"{_counted(facts['requests'])}, {facts['source']}; {error}"


def _counted(requests: int) -> str:
    return f"{requests:,} request" + ("" if requests == 1 else "s")


def _print_result(console: Console, facts: dict[str, Any]) -> None:
    asked = {check["statistic"] for check in facts["slo"]}
    optional = [name for name in ("p95", "p50", "mean", "p90", "p99") if name not in asked]
    print_fitting(console, lambda without: latencies_table("simulated [ms]", facts, without), optional)
    for check in facts["slo"]:
        console.print(verdict(check))
    for failure in facts["failures"]:
        if "<=" not in failure:  # said by the verdicts
            console.print(Text(f"FAILS  {failure}", style="red"))
    console.print(_conclusion(facts))
    rate = f"goodput {figure(facts['goodput'])} req/s: " if facts["request_rate"] > 0 else ""
    console.print(f"{rate}{_share(facts['attainment'])} of requests meet every SLO")
    if facts["measured"] == facts["unserved"]:
        return
    console.print(_ttft_parts(facts))
    held = f"decoding held up for {ms(facts['stall_ms'])} ms per request ({facts['stall_share']:.1%})"
    console.print(f"{held}; {facts['preemptions']:,} preemptions")
    if facts["prefix_hit_rate"] is not None:
        console.print(f"prefix cache hits {facts['prefix_hit_rate']:.1%} of the input tokens")


def _conclusion(facts: dict[str, Any]) -> Text:
    if facts["passed"]:
        fuller = "" if facts["filled"] else "; more of them may show otherwise"
        return Text(f"the fleet holds under these requests{fuller}", style="bold green")
    if facts["decided"]:
        return Text("THE FLEET DOES NOT HOLD under these requests", style="bold red")
    return Text("the run is too short to tell whether the fleet holds", style="bold red")


def _share(share: float) -> str:
    """A share; one that is less than all does not look like all."""
    return "more than 99.99%" if 0.99995 <= share < 1 else f"{share:.2%}"


def _ttft_parts(facts: dict[str, Any]) -> str:
    parts = facts["ttft_parts_ms"]
    told = [f"{ms(parts['wait'])} ms wait", f"{ms(parts['prefill'])} prefill"]
    if not _colocated(facts):
        told.append(f"{ms(parts['transfer'])} hand-over")
        rest = facts["ttft_ms"]["mean"] - math.fsum(parts.values())
        if math.isfinite(rest) and rest >= 0.1:
            told.append(f"{ms(rest)} first decode step")
    return f"mean TTFT: {' + '.join(told)}"


def _colocated(facts: dict[str, Any]) -> bool:
    return all(use["phase"] == Phase.COLOCATED for use in facts["groups"])


def latencies_table(title: str, facts: dict[str, Any], without: frozenset[str] = frozenset()) -> Table:
    """Mean and percentiles, with half of their confidence intervals where these say anything."""
    shown = [name for name in _STATISTICS if name not in without]
    table = plain_table(title, *shown, right=shown)
    exact = any(check["exact"] for check in facts["slo"])
    for name in _SHOWN:
        values = facts[f"{name}_ms"]
        table.add_row(name.upper(), *(ms(values[s]) for s in shown))
        half: Mapping[str, float] = facts["half_width_ms"].get(name, {})
        if not exact and half and values["mean"] is not None and any(map(math.isfinite, half.values())):
            cells = (Text(f"+/-{ms(half[s])}" if math.isfinite(half[s]) else "", style="dim") for s in shown)
            table.add_row(Text("  95 % interval", style="dim"), *cells)
    return table


def verdict(check: dict[str, Any]) -> Text:
    """One SLO in a line."""
    value, half, limit = check["value_ms"], check["half_width_ms"], check["limit_ms"]
    target = f"{check['statistic']} {check['metric'].upper()} <= {limit:g} ms"
    if value == 0:
        return Text(f"meets  {target}: no request has a second token", style="green")
    if not math.isfinite(value):
        return Text(f"MISSES {target}: too many requests were not served", style="red")
    word = "meets " if check["met"] else "MISSES" if value > limit else "UNSURE"
    known = not check["exact"] and math.isfinite(half)
    seen = f"{ms(value)} ms simulated" + (f" (+/- {ms(half)})" if known else "")
    share = value / limit - 1
    far = f"{abs(share):.0%} {'below' if share <= 0 else 'above'}"
    seen += f", {far if share < 1 else f'{figure(value / limit, 3)} times that'}"
    if word == "UNSURE":
        seen += "; more requests may show it above"
    style = {"meets ": "green", "MISSES": "red", "UNSURE": "yellow"}[word]
    return Text(f"{word} {target}: {seen}", style=style)


def _print_groups(console: Console, facts: dict[str, Any]) -> None:
    print_fitting(console, lambda without: _groups_table(facts, without), ("NIC", "tok/s", "KV most"))


def _groups_table(facts: dict[str, Any], without: frozenset[str]) -> Table:
    idle = {"NIC"} if _colocated(facts) else set()
    names = ("busy", "batch", "KV", "KV most", "NIC", "req/s", "tok/s")
    numbers = [n for n in names if n not in without | idle]
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
            "tok/s": f"{use['token_rate']:,.0f}" if use["phase"] != Phase.PREFILL else "",
        }
        table.add_row(use["name"], str(use["replicas"]), *(cells[n] for n in numbers))
    return table


def _print_classes(console: Console, facts: dict[str, Any]) -> None:
    if len(facts["classes"]) < 2:
        return
    console.print()
    optional = ("TTFT p50", "TPOT p50", "requests")
    print_fitting(console, lambda without: _classes_table(facts, without), optional)


def _classes_table(facts: dict[str, Any], without: frozenset[str]) -> Table:
    names = ("requests", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "within SLOs")
    numbers = [n for n in names if n not in without]
    table = plain_table("input tokens", *numbers, right=numbers)
    for one in facts["classes"]:
        least, most = one["input_tokens"]["min"], one["input_tokens"]["max"]
        cells = {
            "requests": f"{one['requests']:,}",
            "within SLOs": _share(one["attainment"]),
            **{
                f"{metric.upper()} {s}": ms(one[f"{metric}_ms"][s])
                for metric in ("ttft", "tpot")
                for s in ("p50", "p99")
            },
        }
        tokens = f"{least:,} to {most:,}" if least < most else f"{most:,}"
        table.add_row(tokens, *(cells[n] for n in numbers))
    return table


def ms(value: float | None) -> str:
    """A time in ms with three digits; "inf" where it has no end, "-" where there is none."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return "inf"
    if abs(value) < _NOTHING:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
