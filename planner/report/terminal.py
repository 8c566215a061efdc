"""Plans and look-ups as tables that fit a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.configuration import Configuration, Load, Prediction
from planner.latency import OperatorTime
from planner.plan import (
    Alternative,
    Group,
    LatencySummary,
    Plan,
    PlanStatus,
    ServicePrediction,
)
from planner.specs import Metric, Objective, Phase, SloTarget
from planner.units import GIB, GIGA, HOURS_PER_MONTH, KILO, MILLI, PERCENT

NARROWEST = 60
_UNBOUNDED = 10_000  # columns: wider than any table
_PHASE_STYLE = {Phase.PREFILL: "dark_orange", Phase.DECODE: "blue", Phase.COLOCATED: "magenta"}
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")
_BINDS = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "compute": "compute",
    "memory_bandwidth": "bandwidth",
    "kv_capacity": "KV cache",
    "max_num_seqs": "sequences",
    "network": "network",
}


def _console(width: int) -> Console:
    # no markup: names and reasons may hold square brackets
    return Console(width=max(width, NARROWEST), highlight=False, markup=False, emoji=False)


def _print_fitting(
    console: Console, build: Callable[[frozenset[str]], Table], optional: Sequence[str]
) -> None:
    """Print the table that `build` makes, leaving out `optional` columns, first ones first, until it fits."""
    for count in range(len(optional) + 1):
        table = build(frozenset(optional[:count]))
        needed = console.measure(table, options=console.options.update(width=_UNBOUNDED)).maximum
        if needed <= console.width or count == len(optional):
            console.print(table)
            return


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def print_plan(plan: Plan, width: int) -> None:
    """The plan in sections: pools, latencies against SLOs, cost, alternatives, notes."""
    console = _console(width)
    for prediction in plan.predictions:
        _print_head(console, plan, prediction)
    _print_fitting(console, lambda without: _groups_table(plan.groups, without), ("busy", "batch", "req/s"))
    for prediction in plan.predictions:
        console.print()
        _print_latencies(console, prediction)
        _print_slos(console, prediction)
    console.print()
    _print_cost(console, plan)
    if plan.alternatives:
        console.print()
        console.print(_alternatives_table(plan))
        for line in _verdict(plan):
            console.print(line)
    _print_search(console, plan)
    for note in plan.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _print_head(console: Console, plan: Plan, prediction: ServicePrediction) -> None:
    first = plan.groups[0]
    precision = f"{first.precision.weights} weights, {first.precision.kv_cache} KV cache"
    console.print(Text(prediction.service, style="bold"))
    engine = f"{plan.engine} {plan.engine_version}"
    console.print(f"{precision}; {engine}; {prediction.request_rate:g} req/s; {_pools(plan)}\n")


def _pools(plan: Plan) -> str:
    return "colocated" if plan.pool(Phase.COLOCATED) else "disaggregated"


def _groups_table(groups: Sequence[Group], without: frozenset[str]) -> Table:
    numbers = [n for n in ("GPUs", "req/s", "load", "busy", "batch", "$/h") if n not in without]
    table = _table("pool", "GPU", "replicas", *numbers, "binds", right=numbers)
    for g in groups:
        cells = {
            "GPUs": str(g.num_gpus),
            "req/s": f"{g.request_rate:.3g}",
            "load": f"{g.utilization:.0%}",
            "busy": f"{g.busy:.0%}",
            "batch": f"{g.mean_batch:.3g}",
            "$/h": _money(g.cost),
        }
        table.add_row(
            Text(g.phase, style=_PHASE_STYLE[g.phase]),
            g.gpu,
            f"{g.replicas} x {g.parallelism}",
            *(cells[n] for n in numbers),
            _BINDS[g.binds],
        )
    return table


def _print_latencies(console: Console, prediction: ServicePrediction) -> None:
    asked = {str(t.statistic) for t in prediction.slo}
    optional = [name for name in ("p95", "p50", "mean", "p90", "p99") if name not in asked]
    _print_fitting(console, lambda without: _latency_table(prediction, without), optional)


def _latency_table(prediction: ServicePrediction, without: frozenset[str]) -> Table:
    names = [name for name in _STATISTICS if name not in without]
    table = _table("predicted [ms]", *names, right=names)
    for latency in (prediction.ttft, prediction.tpot):
        expected, low, high = (_values(x, names) for x in (latency.expected, latency.low, latency.high))
        table.add_row(latency.metric.upper(), *(_milliseconds(v) for v in expected))
        pairs = zip(low, high, strict=True)
        table.add_row(
            Text("  80 % interval", style="dim"),
            *(Text(f"{_milliseconds(a)}-{_milliseconds(b)}", style="dim") for a, b in pairs),
        )
    return table


def _values(summary: LatencySummary, names: Sequence[str]) -> list[float]:
    return [getattr(summary, name) for name in names]


def _print_slos(console: Console, prediction: ServicePrediction) -> None:
    for target in prediction.slo:
        latency = prediction.ttft if target.metric is Metric.TTFT else prediction.tpot
        value = getattr(latency.expected, target.statistic)
        planned = getattr(latency.planned, target.statistic)
        met = planned <= target.limit
        text = (
            f"{target}: {_milliseconds(value)} ms expected, {_milliseconds(planned)} ms "
            f"at the error planned for, {_margin(planned, target)}"
        )
        console.print(Text(f"{'meets ' if met else 'MISSES'} {text}", style="green" if met else "red"))


def _margin(value: float, target: SloTarget) -> str:
    if not math.isfinite(value):
        return "no steady state"
    share = value / target.limit - 1
    return f"{abs(share):.0%} {'below' if share <= 0 else 'above'}"


def _print_cost(console: Console, plan: Plan) -> None:
    for use in plan.nodes:
        paid = (
            f"{use.gpus_paid} {use.gpu} paid for"
            if use.gpus_paid != use.gpus_used
            else f"{use.gpus_used} {use.gpu}"
        )
        used = f", {use.gpus_used} used" if use.gpus_paid != use.gpus_used else ""
        price = "price unknown" if use.price is None else f"${use.price:g} per GPU and hour"
        console.print(f"{paid}{used} ({use.nodes} node{'s' if use.nodes != 1 else ''}, {price})")
    if plan.cost is not None:
        month = plan.cost * HOURS_PER_MONTH
        console.print(Text(f"cost ${plan.cost:,.2f}/h, ${month:,.0f}/month", style="bold"), end="")
        if plan.cost_at_half_confidence is not None:
            console.print(f" (${plan.cost_at_half_confidence:,.2f}/h without margin for model error)", end="")
        console.print()
        for p in plan.predictions:
            parts = (
                (p.cost_per_million_input_tokens, "all on input"),
                (p.cost_per_million_output_tokens, "all on output"),
                (p.cost_per_million_tokens, "on both"),
            )
            priced = [f"${value:.3g} {name}" for value, name in parts if value is not None]
            console.print("per million tokens: " + ", or ".join(priced))
    console.print(f"power {plan.power / KILO:.3g} kW (TDP of what is paid for)")


def _alternatives_table(plan: Plan) -> Table:
    unit = _unit(plan.objective)
    table = _table("beside it", unit, "against plan", "fleet", right=(unit, "against plan"))
    for a in plan.alternatives:
        value = "none" if a.value is None else f"{a.value:,.4g}"
        table.add_row(a.name, value, _against(plan, a), a.summary if not a.reason else a.reason)
    return table


def _unit(objective: Objective) -> str:
    return {
        Objective.COST: "$/h",
        Objective.GPUS: "GPUs",
        Objective.POWER: "W",
        Objective.THROUGHPUT: "req/s",
    }[objective]


def _against(plan: Plan, alternative: Alternative) -> str:
    if alternative.value is None or not plan.value:
        return ""
    change = alternative.value / plan.value - 1
    return "same" if abs(change) < MILLI / 2 else f"{change * PERCENT:+.1f} %"


def _verdict(plan: Plan) -> list[str]:
    """Whether to disaggregate, with the numbers of both."""
    by_name = {a.name: a for a in plan.alternatives}
    other_name = "best disaggregated" if plan.pool(Phase.COLOCATED) else "best colocated"
    other = by_name.get(other_name)
    if other is None:
        return []
    mine = f"{plan.value:,.4g} {_unit(plan.objective)}"
    word = "colocated serving" if plan.pool(Phase.COLOCATED) else "disaggregation"
    rival = other_name.removeprefix("best ")
    if other.value is None:
        return [f"{word} is the only way here: no {rival} fleet meets the SLOs ({other.reason})"]
    if abs(other.value / plan.value - 1) < MILLI / 2:
        return [f"{word} and {rival} serving come to the same {mine}"]
    advice = "do not disaggregate: " if plan.pool(Phase.COLOCATED) else ""
    return [f"{advice}{word} wins, {mine} against {other.value:,.4g} {rival}"]


def _print_search(console: Console, plan: Plan) -> None:
    proven = "proven" if plan.status is PlanStatus.OPTIMAL else "stopped early, at most"
    verified = "not simulated" if plan.verification is None else (
        "passed in simulation" if plan.verification.passed else "FAILED in simulation"
    )  # fmt: skip
    console.print(f"\n{proven} within {plan.gap:.2%} of the best; {verified}")


def _milliseconds(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "inf"
    value = seconds / MILLI
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _money(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"


# --------------------------------------------------------------------------------------------
# One configuration


def print_prediction(configuration: Configuration, load: Load, p: Prediction, width: int) -> None:
    """Latencies, memory and the time of each operator."""
    console = _console(width)
    console.print(Text(_title(configuration), style="bold"))
    offered = f"{load.concurrency:g} clients" if load.concurrency is not None else f"{load.rate:g} req/s"
    console.print(f"{load.isl:g} tokens in, {load.osl:g} out; {offered}; {configuration.engine.name}\n")
    table = _table("", "mean [ms]", "80 % interval", right=("mean [ms]", "80 % interval"))
    for name, value, (low, high) in (("TTFT", p.ttft, p.ttft_range), ("TPOT", p.tpot, p.tpot_range)):
        table.add_row(name, _milliseconds(value), f"{_milliseconds(low)}-{_milliseconds(high)}")
    console.print(table)
    console.print(
        f"{p.rate:.3g} req/s, {p.rate * load.osl:,.0f} output tok/s, {p.batch:.3g} sequences per decode step"
    )
    m = p.memory
    console.print(
        f"memory per GPU: weights {m.weights / GIB:.1f}, activations {m.activations / GIB:.1f}, "
        f"reserved {m.reserved / GIB:.1f}, KV cache {m.kv_cache / GIB:.1f} of {m.usable / GIB:.1f} GiB"
    )
    console.print(
        f"KV cache {p.kv_bytes_per_token:,.0f} B per token: {p.kv_tokens:,} tokens per replica, "
        f"{p.max_concurrency:,} sequences in all\n"
    )
    console.print(_operators_table("a decode step", p.decode))
    console.print()
    console.print(_operators_table("a prompt alone", p.prefill))
    for note in p.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _title(c: Configuration) -> str:
    pools = (("colocated", c.colocated), ("prefill", c.prefill), ("decode", c.decode))
    text = ", ".join(f"{r.count} x {r.gpu.name} {r.parallelism} {name}" for name, r in pools if r is not None)
    return f"{c.model.name} ({c.precision.weights}): {text}"


def _operators_table(title: str, operators: Sequence[OperatorTime]) -> Table:
    total = math.fsum(o.time for o in operators)
    table = _table(title, "ms", "share", right=("ms", "share"))
    for o in sorted(operators, key=lambda o: -o.time):
        table.add_row(o.name, f"{o.time / MILLI:.3f}", f"{o.time / total:.0%}")
    table.add_row(Text("in all", style="bold"), f"{total / MILLI:.3f}", "")
    return table


# --------------------------------------------------------------------------------------------
# Look-ups


def print_models(facts: Sequence[dict[str, Any]], width: int) -> None:
    numbers = ("parameters", "KV B/token", "context")
    table = _table("model", *numbers, "TP", right=numbers)
    for f in facts:
        tp = ", ".join(str(n) for n in f["legal_tp"])
        table.add_row(
            f["name"],
            f"{f['parameters'] / GIGA:.2f} B",
            f"{f['kv_bytes_per_token']:,}",
            f"{f['max_context']:,}",
            tp,
        )
    _console(width).print(table)


def print_gpus(facts: Sequence[dict[str, Any]], width: int) -> None:
    numbers = ("bf16 TFLOP/s", "fp8", "HBM GB/s", "GiB", "W")
    table = _table("GPU", *numbers, "link", "calibration", right=numbers)
    for f in facts:
        peak = f["peak_tflops"]
        table.add_row(
            f["name"],
            f"{peak.get('bf16', peak.get('fp16', 0)):,.0f}",
            f"{peak['fp8']:,.0f}" if "fp8" in peak else "-",
            f"{f['hbm_gb_per_s']:,.0f}",
            f"{f['memory_gib']:.1f}",
            f"{f['power_w']:g}",
            f["scale_up"],
            f["calibration"],
        )
    _console(width).print(table)
