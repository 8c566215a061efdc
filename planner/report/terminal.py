"""Plans and look-ups as tables that fit a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import fill, wrap
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner.configuration import Configuration, Load, Prediction
from planner.latency import OperatorTime
from planner.money import cost_per_month
from planner.plan import (
    Alternative,
    Group,
    LatencySummary,
    Plan,
    PlanStatus,
    ServicePrediction,
)
from planner.report.over_time import print_moves, print_periods
from planner.report.plan_words import formats, kind_of_pools, simulation_of, unit_of, verdict
from planner.report.split_text import split_lines
from planner.report.tables import UNBOUNDED, figure, plain_console, plain_table, print_fitting
from planner.specs import Metric, Phase, SloTarget, line_name
from planner.units import GIB, GIGA, KILO, MEGA, MILLI, PERCENT

_FLEET_LINES = 2  # that a fleet may take in a column
_NO_BREAK = "\N{NO-BREAK SPACE}"
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


def print_plan(plan: Plan, width: int) -> None:
    """The plan in sections: pools, latencies against SLOs, cost, alternatives, notes."""
    console = plain_console(width)
    if len(plan.predictions) > 1:
        _print_heads(console, plan)
    for prediction in plan.predictions[: len(plan.predictions) == 1]:
        _print_head(console, plan, prediction)
    print_fitting(console, lambda without: _groups_table(plan.groups, without), ("busy", "batch", "req/s"))
    if plan.split is not None:
        console.print()
        for line in split_lines(plan.split):
            console.print(line)
    for prediction in plan.predictions:
        console.print()
        if len(plan.predictions) > 1:
            console.print(Text(prediction.service, style="bold"))
        facts = simulation_of(plan, prediction.service)
        _print_latencies(console, prediction)
        _print_simulated(console, plan, facts, _STATISTICS)
        _print_slos(console, facts, prediction)
    _print_events(console, plan)
    console.print()
    _print_cost(console, plan)
    print_periods(console, plan)
    print_moves(console, plan)
    if plan.alternatives:
        console.print()
        _print_alternatives(console, plan)
        for line in verdict(plan):
            console.print(line)
    _print_search(console, plan)
    for note in plan.notes:
        console.print(Text(f"note: {note}", style="yellow"))


def _print_head(console: Console, plan: Plan, prediction: ServicePrediction) -> None:
    console.print(Text(prediction.service, style="bold"))
    engine = f"{plan.engine} {plan.engine_version}"
    rate = f"{figure(prediction.request_rate)} req/s"
    console.print(f"{formats(plan.groups)}; {engine}; {rate}; {kind_of_pools(plan.groups)}\n")


def _print_heads(console: Console, plan: Plan) -> None:
    """What each of several services gets, in a line of its own."""
    title = f"{len(plan.predictions)} services; {plan.engine} {plan.engine_version}\n"
    console.print(Text(title, style="bold"))
    print_fitting(console, lambda without: _services_table(plan, without), ("pools",))
    console.print()


def _services_table(plan: Plan, without: frozenset[str]) -> Table:
    columns = [name for name in ("req/s", "pools", "formats") if name not in without]
    table = plain_table("service", *columns, right=("req/s",))
    for p in plan.predictions:
        groups = _groups_of(plan, p.service)
        cells = {"req/s": figure(p.request_rate), "pools": kind_of_pools(groups), "formats": formats(groups)}
        table.add_row(p.service, *(cells[name] for name in columns))
    return table


def _groups_of(plan: Plan, name: str) -> Sequence[Group]:
    """Groups of a service, or of one zone of it."""
    if name in {g.service for g in plan.groups}:
        return [g for g in plan.groups if g.service == name]
    service, _, zone = name.rpartition(", ")
    return [g for g in plan.groups if (g.service, g.zone) == (service, zone)] or plan.groups


def _groups_table(groups: Sequence[Group], without: frozenset[str]) -> Table:
    numbers = [n for n in ("GPUs", "req/s", "load", "busy", "batch", "$/h") if n not in without]
    named = ["service"] if len({g.service for g in groups}) > 1 else []
    table = plain_table(*named, "pool", "GPU", "replicas", *numbers, "binds", right=numbers)
    for g in groups:
        cells = {
            "GPUs": str(g.num_gpus),
            "req/s": figure(g.request_rate, 3),
            "load": f"{g.utilization:.0%}",
            "busy": f"{g.busy:.0%}",
            "batch": figure(g.mean_batch, 3),
            "$/h": _money(g.cost),
        }
        table.add_row(
            *([g.service] if named else []),
            Text(g.phase, style=_PHASE_STYLE[g.phase]),
            line_name(g.gpu, g.zone, g.price_class),
            f"{g.replicas} x {g.parallelism}",
            *(cells[n] for n in numbers),
            _BINDS[g.binds],
        )
    return table


def _print_latencies(console: Console, prediction: ServicePrediction) -> None:
    asked = {str(t.statistic) for t in prediction.slo}
    optional = [name for name in ("p95", "p50", "mean", "p90", "p99") if name not in asked]
    print_fitting(console, lambda without: _latency_table(prediction, without), optional)


def _latency_table(prediction: ServicePrediction, without: frozenset[str]) -> Table:
    names = [name for name in _STATISTICS if name not in without]
    table = plain_table("predicted [ms]", *names, right=names)
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


def _print_events(console: Console, plan: Plan) -> None:
    """What simulation said of everything else that the plan has to bear."""
    if plan.verification is None:
        return
    known = {prediction.service for prediction in plan.predictions}
    events = {n: f for n, f in plan.verification.details.get("services", {}).items() if n not in known}
    if events:
        console.print()
    for name, facts in events.items():
        for check in facts["slo"]:
            value = math.inf if check["value_ms"] is None else check["value_ms"]
            text = f"{name}: {check['statistic']} {check['metric'].upper()} {value:,.4g} ms simulated"
            limit = f"limit {check['limit_ms']:g} ms"
            style = "green" if check["met"] else "red"
            console.print(Text(f"{'meets ' if check['met'] else 'MISSES'} {text}, {limit}", style=style))


def _print_slos(console: Console, facts: Mapping[str, Any] | None, prediction: ServicePrediction) -> None:
    """What each SLO comes to: as simulated where the plan was, else as predicted."""
    checks = () if facts is None else facts.get("slo", ())
    simulated = {(check["metric"], check["statistic"]): check for check in checks}
    for target in prediction.slo:
        latency = prediction.ttft if target.metric is Metric.TTFT else prediction.tpot
        planned = getattr(latency.planned, target.statistic)
        expected = _milliseconds(getattr(latency.expected, target.statistic))
        seen = simulated.get((target.metric.value, target.statistic.value))
        if seen is None:
            met = planned <= target.limit
            found = f"{_milliseconds(planned)} ms at the error planned for, {_margin(planned, target)}"
        else:
            value = math.inf if seen["value_ms"] is None else seen["value_ms"] * MILLI
            met = seen["met"]
            found = f"{_milliseconds(value)} ms simulated at the error planned for, {_margin(value, target)}"
        text = f"{target}: {expected} ms expected, {found}"
        console.print(Text(f"{'meets ' if met else 'MISSES'} {text}", style="green" if met else "red"))


def _print_simulated(
    console: Console, plan: Plan, facts: Mapping[str, Any] | None, shown: Sequence[str]
) -> None:
    """Latencies of the simulated plan, under the predicted ones."""
    if plan.verification is None or facts is None:
        return
    table = plain_table("simulated [ms]", *shown, right=shown)
    for name in ("ttft", "tpot"):
        values = facts[f"{name}_ms"]
        table.add_row(name.upper(), *(_thousandths(values[s]) for s in shown))
    console.print(table)
    error = f"{plan.verification.details['confidence']:.0%} quantile of the model error"
    console.print(Text(f"{facts['requests']:,} requests, {facts['source']}; {error}", style="dim"))


def _thousandths(value: float | None) -> str:
    return _milliseconds(math.inf if value is None else value * MILLI)


def _margin(value: float, target: SloTarget) -> str:
    if not math.isfinite(value):
        return "no steady state"
    share = value / target.limit - 1
    if share > 10:
        return f"{share + 1:,.0f} times that"
    return f"{abs(share):.0%} {'below' if share <= 0 else 'above'}"


def _print_cost(console: Console, plan: Plan) -> None:
    for use in plan.nodes:
        name, idle = line_name(use.gpu, use.zone, use.price_class), use.gpus_paid != use.gpus_used
        paid = f"{use.gpus_paid} {name} paid for" if idle else f"{use.gpus_used} {name}"
        used = f", {use.gpus_used} used" if idle else ""
        price = "price unknown" if use.price is None else f"${use.price:g} per GPU and hour"
        console.print(f"{paid}{used} ({use.nodes} node{'s' if use.nodes != 1 else ''}, {price})")
    gpus = [None if use.price is None else use.gpus_paid * use.price for use in plan.nodes]
    if plan.cost is not None and plan.scenario.get("egress_per_gb") and None not in gpus:
        terms = plan.scenario.get("power") or {}
        power = float(terms.get("price_per_kwh", 0.0)) * plan.power / KILO
        traffic = plan.cost - sum(cost for cost in gpus if cost is not None) - power
        console.print(f"traffic between zones ${traffic:,.2f}/h")
    if plan.cost is not None:
        month = cost_per_month(plan.cost)
        console.print(Text(f"cost ${plan.cost:,.2f}/h, ${month:,.0f}/month", style="bold"), end="")
        if plan.cost_at_half_confidence is not None:
            console.print(f" (${plan.cost_at_half_confidence:,.2f}/h without margin for model error)", end="")
        console.print()
        _print_tokens(console, plan.predictions)
    _print_power(console, plan)


def _print_tokens(console: Console, predictions: Sequence[ServicePrediction]) -> None:
    """Cost per million tokens: of one service in a line, of several in a table."""
    ways = {
        "all on input": [p.cost_per_million_input_tokens for p in predictions],
        "all on output": [p.cost_per_million_output_tokens for p in predictions],
        "on both": [p.cost_per_million_tokens for p in predictions],
    }
    if len(predictions) == 1:
        priced = [f"${value:.3g} {way}" for way, (value,) in ways.items() if value is not None]
        console.print("per million tokens: " + ", or ".join(priced))
        return
    table = plain_table("$ per million tokens", *ways, right=list(ways))
    for k, p in enumerate(predictions):
        costs = [values[k] for values in ways.values()]
        table.add_row(p.service, *("unknown" if cost is None else f"{cost:.3g}" for cost in costs))
    console.print()
    console.print(table)
    console.print()


def _print_power(console: Console, plan: Plan) -> None:
    terms = plan.scenario.get("power")
    if not isinstance(terms, Mapping):
        console.print(f"power {figure(plan.power / KILO, 3)} kW (TDP of what is paid for)")
        return
    price = float(terms.get("price_per_kwh", 0.0))
    money = f", ${price * plan.power / KILO:,.2f}/h of the cost" if price else ""
    share = f"{float(terms.get('utilization', 1.0)):.0%} of TDP, PUE {float(terms.get('pue', 1.0)):g}"
    console.print(f"power {figure(plan.power / KILO, 3)} kW ({share}{money})")


def _print_alternatives(console: Console, plan: Plan) -> None:
    """What the plan is compared with; fleets too long for a column stand below the table."""
    alone = _alternatives_table(plan, fleets=False)
    taken = console.measure(alone, options=console.options.update(width=UNBOUNDED)).maximum
    room = max(console.width - taken, 1)
    if all(len(wrap(_fleet(a), room)) <= _FLEET_LINES for a in plan.alternatives):
        console.print(_alternatives_table(plan, fleets=True))
        return
    console.print(alone)
    console.print()
    told: dict[str, str] = {}
    for a in plan.alternatives:
        fleet = _fleet(a)
        if fleet in told:
            console.print(Text(f"{a.name}: as {told[fleet]}"))
            continue
        told[fleet] = a.name
        console.print(Text(f"{a.name}:"))
        for service in fleet.split("; "):
            console.print(Text(_indented(service, console.width)))
    console.print()


def _indented(text: str, width: int) -> str:
    """Wrapped, without breaks between a number of replicas and what they are."""
    kept = text.replace(" x ", f"{_NO_BREAK}x{_NO_BREAK}")
    return fill(kept, width, initial_indent="  ", subsequent_indent="    ").replace(_NO_BREAK, " ")


def _fleet(alternative: Alternative) -> str:
    return alternative.reason or alternative.summary


def _alternatives_table(plan: Plan, *, fleets: bool) -> Table:
    unit = unit_of(plan.objective)
    simulated = any(a.verified is not None for a in plan.alternatives)
    columns = (*(("simulated",) if simulated else ()), *(("fleet",) if fleets else ()))
    table = plain_table("beside it", unit, "against plan", *columns, right=(unit, "against plan"))
    for a in plan.alternatives:
        shown = _shown(plan, a.value, a.cost)
        value = "none" if shown is None else figure(shown)
        cells = {"simulated": {True: "holds", False: "fails", None: "no"}[a.verified], "fleet": _fleet(a)}
        table.add_row(a.name, value, _against(plan, a), *(cells[name] for name in columns))
    return table


def _against(plan: Plan, alternative: Alternative) -> str:
    value, mine = _shown(plan, alternative.value, alternative.cost), _shown(plan, plan.value, plan.cost)
    if value is None:
        return ""
    if not mine:
        return "same" if not value else ""
    change = value / mine - 1
    return "same" if abs(change) < MILLI / 2 else f"{change * PERCENT:+.1f} %"


def _shown(plan: Plan, value: float | None, cost: float | None) -> float | None:
    """What is compared: the objective; planned from a fleet that stands, the cost without what moves cost."""
    return value if plan.move_cost is None else cost


def _print_search(console: Console, plan: Plan) -> None:
    proven = "proven" if plan.status is PlanStatus.OPTIMAL else "stopped early, at most"
    verified = "not simulated"
    if plan.verification is not None:
        verified = "holds in simulation" if plan.verification.passed else "DOES NOT HOLD in simulation"
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
    console = plain_console(width)
    console.print(Text(_title(configuration), style="bold"))
    offered = f"{load.concurrency:g} clients" if load.concurrency is not None else f"{load.rate:g} req/s"
    console.print(f"{load.isl:,.6g} tokens in, {load.osl:,.6g} out; {offered}; {configuration.engine.name}\n")
    _print_predicted(console, p, load.osl)


def print_predicted(p: Prediction, width: int) -> None:
    """As :func:`print_prediction`, where what was predicted is not known any more."""
    _print_predicted(plain_console(width), p, None)


def _print_predicted(console: Console, p: Prediction, osl: float | None) -> None:
    table = plain_table("", "mean [ms]", "80 % interval", right=("mean [ms]", "80 % interval"))
    for name, value, (low, high) in (("TTFT", p.ttft, p.ttft_range), ("TPOT", p.tpot, p.tpot_range)):
        table.add_row(name, _milliseconds(value), f"{_milliseconds(low)}-{_milliseconds(high)}")
    console.print(table)
    console.print(
        f"{figure(p.rate, 3)} req/s, "
        + ("" if osl is None else f"{p.rate * osl:,.0f} output tok/s, ")
        + f"{figure(p.batch, 3)} sequences per decode step"
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
    table = plain_table(title, "ms", "share", right=("ms", "share"))
    for o in sorted(operators, key=lambda o: -o.time):
        table.add_row(o.name, f"{o.time / MILLI:.3f}", f"{o.time / total:.0%}")
    table.add_row(Text("in all", style="bold"), f"{total / MILLI:.3f}", "")
    return table


# --------------------------------------------------------------------------------------------
# Look-ups


def print_models(facts: Sequence[dict[str, Any]], width: int) -> None:
    """One row per model; columns that do not fit are left out."""
    print_fitting(
        plain_console(width), lambda without: _models_table(facts, without), ("format", "MB/seq", "active")
    )


def _models_table(facts: Sequence[dict[str, Any]], without: frozenset[str]) -> Table:
    names = ("parameters", "active", "format", "KV B/token", "MB/seq", "context")
    columns = [n for n in names if n not in without]
    table = plain_table("model", *columns, "TP", right=[n for n in columns if n != "format"])
    for f in facts:
        sparse = f["active_parameters"] < f["parameters"]
        kept = f["kv_bytes_per_sequence"]
        cells = {
            "parameters": f"{f['parameters'] / GIGA:.4g} B",
            "active": f"{f['active_parameters'] / GIGA:.3g} B" if sparse else "",
            "format": f["expert_dtype"] or f["weight_dtype"],
            "KV B/token": f"{f['kv_bytes_per_token']:,}",
            "MB/seq": f"{kept / MEGA:.3g}" if kept else "",
            "context": f"{f['max_context']:,}",
        }
        tp = ", ".join(str(n) for n in f["legal_tp"])
        table.add_row(f["name"], *(cells[n] for n in columns), tp)
    return table


def print_gpus(facts: Sequence[dict[str, Any]], width: int) -> None:
    """One line per GPU, under its vendor and architecture."""
    ordered = sorted(facts, key=lambda f: (f["vendor"], f["architecture"], f["name"]))
    console = plain_console(width)
    print_fitting(console, lambda without: _gpus_table(ordered, without), ("W", "fp4", "fp8", "link [GB/s]"))
    console.print("\n16 bit, fp8, fp4: dense TFLOP/s")
    if any("bf16" not in f["peak_tflops"] for f in facts):
        console.print("* no bf16: models run in fp16")


def _gpus_table(facts: Sequence[dict[str, Any]], without: frozenset[str]) -> Table:
    numbers = ("16 bit", "fp8", "fp4", "GB/s", "GiB", "W")
    kept = [c for c in (*numbers, "link [GB/s]", "calibration") if c not in without]
    table = plain_table("GPU", *kept, right=numbers)
    group = ""
    for f in facts:
        peak, before = f["peak_tflops"], group
        group = f"{f['vendor']} {f['architecture']}"
        if group != before:
            table.add_row(Text(group, style="bold"))
        cells = {
            "16 bit": f"{peak.get('bf16', peak.get('fp16', 0)):,.0f}" + ("" if "bf16" in peak else "*"),
            "fp8": f"{peak['fp8']:,.0f}" if "fp8" in peak else "-",
            "fp4": f"{peak['nvfp4']:,.0f}" if "nvfp4" in peak else "-",
            "GB/s": f"{f['hbm_gb_per_s']:,.0f}",
            "GiB": f"{f['memory_gib']:.1f}",
            "W": f"{f['power_w']:g}",
            "link [GB/s]": _rounded_link(f["scale_up"]),
            "calibration": f["calibration"],
        }
        table.add_row(f["name"], *(cells[c] for c in kept))
    return table


def _rounded_link(text: str) -> str:
    """``nvlink-bridge 56 x 2`` of ``nvlink-bridge 56.25 GB/s x 2``."""
    kind, rate, _, _, domain = text.rsplit(" ", 4)
    return f"{kind} {float(rate):.0f} x {domain}"


def print_instances(facts: Sequence[dict[str, Any]], width: int) -> None:
    """Rented servers, prices per GPU."""
    optional = ("vCPU", "network", "region", "spot", "Gbit/s", "date")
    print_fitting(plain_console(width), lambda without: _instances_table(facts, without), optional)


def _instances_table(facts: Sequence[dict[str, Any]], without: frozenset[str]) -> Table:
    columns = ("instance", "GPU", "GPUs", "$/GPU/h", "spot", "Gbit/s", "network", "vCPU", "region")
    kept = [c for c in (*columns, "date", "status") if c not in without]
    table = plain_table(*kept, right=("GPUs", "$/GPU/h", "spot", "Gbit/s", "vCPU"))
    for f in facts:
        cells = {
            "instance": f["instance"],
            "GPU": f["gpu"],
            "GPUs": str(f["gpus"]),
            "$/GPU/h": _known(f["usd_per_gpu_hour"], ".3f"),
            "spot": _known(f["spot_usd_per_gpu_hour"], ".3f"),
            "Gbit/s": _known(f["network_gbps"], ",.0f"),
            "network": f["network_kind"],
            "vCPU": _known(f["vcpus"], "d"),
            "region": f["region"],
            "date": f["date"] or "-",
            "status": f["status"],
        }
        table.add_row(*(cells[c] for c in kept))
    return table


def _known(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def print_memory(document: dict[str, Any], width: int) -> None:
    """The memory of a replica's GPUs, stage by stage and line by line."""
    console = plain_console(width)
    sizes = document["parallelism"]
    layout = " ".join(f"{name.upper()}{n}" for name, n in sizes.items() if n > 1 or name == "tp")
    formats = document["precision"]
    share = document["free_share"]
    console.print(Text(f"{document['model']} on {document['gpu']} {layout}", style="bold"))
    console.print(
        Text(
            f"weights {formats['weights']}, attention {formats['attention']}, experts {formats['experts']}, "
            f"KV cache {formats['kv_cache']}; {document['driver_memory_gib']:.2f} GiB per GPU, "
            f"{document['memory_utilization']:.0%} of it for the engine"
            f"{f', {share:.0%} of what is left for KV cache' if share < 1 else ''}\n"
        )
    )
    stages = document["stages"]
    names = [f"stage {i + 1}" if len(stages) > 1 else "GiB per GPU" for i in range(len(stages))]
    table = plain_table("", *names, right=names)
    table.add_row("layers", *(str(stage["layers"]) for stage in stages))
    for key in ("usable", "weights", "activations", "reserved", "kv_cache"):
        label = {"kv_cache": "left for KV cache"}.get(key, key)
        table.add_row(label, *(f"{stage[f'{key}_gib']:.2f}" for stage in stages))
    console.print(table)
    if not document["fits"]:
        console.print(Text("does not fit", style="red"))
        return
    per_sequence = document["kv_bytes_per_sequence"]
    more = f" and {per_sequence:,.0f} B per sequence" if per_sequence else ""
    per_token = f"{document['kv_bytes_per_token']:,.0f} B per token"
    console.print(f"\nKV cache: {per_token}{more}; {document['kv_tokens']:,} tokens")
    console.print(f"{document['sequences']:,} sequences of {document['context']:,} tokens")
