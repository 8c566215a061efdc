"""Facts of a plan as the sections of its report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.plan import Plan, PlanStatus
from planner.report.html.blocks import Block, Cards, Figure, Section, Source, Table, Text, numeric, rows_of
from planner.report.html.facts import ReportFacts
from planner.report.html.latency_figures import latency_figure, timeline_figure
from planner.report.html.plan_figures import (
    alternatives_figure,
    cost_figure,
    load_figure,
    pareto_figure,
    periods_figure,
    side_text,
    tornado_figure,
)
from planner.report.html.provenance import provenance
from planner.report.html.roofline_figure import roofline_figure
from planner.report.plan_words import formats, kind_of_pools, simulation_of, unit_of, verdict
from planner.report.split_text import split_lines
from planner.report.tables import figure
from planner.units import GIB, HOURS_PER_MONTH, MILLI, PERCENT, TERA
from planner.whatif.pareto import Pareto
from planner.whatif.resolve import Resolved
from planner.whatif.words import described

MOST_CARDS = 4  # services whose limits are among the first figures
_STATISTICS = ("mean", "p50", "p90", "p95", "p99")


def sections(f: ReportFacts) -> tuple[Section, ...]:
    """All parts of the page, in their order."""
    return (
        Section(key="summary", title="Summary", blocks=tuple(_summary(f))),
        Section(key="pools", title="Pools", blocks=tuple(_pools(f))),
        Section(key="latency", title="Latency", blocks=tuple(_latency(f))),
        Section(key="roofline", title="Roofline", blocks=tuple(_roofline(f))),
        Section(key="cost", title="Cost", blocks=tuple(_cost(f))),
        Section(key="pareto", title="Cost against SLO", blocks=tuple(_pareto(f))),
        Section(key="sensitivity", title="Sensitivity", blocks=tuple(_sensitivity(f))),
        Section(key="timeline", title="Timeline", blocks=tuple(_timeline(f))),
        Section(key="alternatives", title="Alternatives", blocks=tuple(_alternatives(f))),
        Section(key="provenance", title="Provenance", blocks=tuple(provenance(f))),
        Section(
            key="scenario",
            title="Scenario",
            blocks=(Source(caption="The scenario that the plan answers", text=f.scenario_text),),
        ),
    )


def _left_out(f: ReportFacts, key: str) -> Iterator[Block]:
    if key in f.absent:
        yield Text(text=f"Not shown: {f.absent[key]}.", kind="note")


# --------------------------------------------------------------------------------------------
# What to run, and whether it holds


def _summary(f: ReportFacts) -> Iterator[Block]:
    plan = f.plan
    yield holds(plan)
    yield Cards(cards=tuple(_cards(plan)))
    for line in verdict(plan):
        yield Text(text=f"{line[0].upper()}{line[1:]}.")
    yield Table(head=("", ""), rows=rows_of(list(_key_figures(f))))
    for note in plan.notes:
        yield Text(text=note, kind="note")


def holds(plan: Plan) -> Text:
    """Whether the plan was simulated, and held."""
    if plan.verification is None:
        return Text(text="Predicted, not simulated.", kind="note")
    if plan.verification.passed:
        return Text(text="Holds in simulation: every SLO is met.", kind="good")
    failures = "; ".join(map(str, plan.verification.details.get("failures", ()))) or "an SLO is missed"
    return Text(text=f"DOES NOT HOLD in simulation: {failures}.", kind="bad")


def _cards(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Cost, GPUs, and each limit with what was simulated or predicted."""
    if plan.cost is not None:
        yield f"${plan.cost:,.2f}", "an hour", ""
    yield f"{plan.num_gpus:,}", "GPU" if plan.num_gpus == 1 else "GPUs", ""
    several = len(plan.predictions) > 1
    for p in plan.predictions[:MOST_CARDS]:
        facts = simulation_of(plan, p.service)
        for target in p.slo:
            predicted = p.ttft if target.metric is p.ttft.metric else p.tpot
            value = getattr(predicted.planned, target.statistic.value) / MILLI
            known = None if facts is None else facts.get(f"{target.metric.value}_ms")
            if known is not None:
                value = known.get(target.statistic.value, value)
            limit = target.limit / MILLI
            how = "predicted" if known is None else "simulated"
            name = f"{target.statistic} {target.metric.upper()} {how}, limit {limit:,g} ms"
            shown = "unbounded" if value is None else f"{figure(float(value), 3)} ms"
            good = value is not None and float(value) <= limit
            yield shown, f"{name}, {p.service}" if several else name, "good" if good else "bad"


def _key_figures(f: ReportFacts) -> Iterator[tuple[str, str]]:
    plan = f.plan
    yield "Run", described(plan.groups)
    rates = ", ".join(
        f"{figure(p.request_rate)} req/s" + (f" of {p.service}" if len(plan.predictions) > 1 else "")
        for p in plan.predictions
    )
    yield "For", rates if len(plan.predictions) > 1 else f"{plan.predictions[0].service}, {rates}"
    yield "With", f"{plan.engine} {plan.engine_version}, {kind_of_pools(plan.groups)}, {formats(plan.groups)}"
    if plan.cost is not None:
        yield "Cost", f"${plan.cost:,.2f} an hour, ${plan.cost * HOURS_PER_MONTH:,.0f} a month"
    if len(plan.predictions) == 1 and plan.predictions[0].cost_per_million_tokens is not None:
        yield "Per million tokens", f"${plan.predictions[0].cost_per_million_tokens:,.4g}"
    paid = sum(n.gpus_paid for n in plan.nodes)
    yield "GPUs", f"{plan.num_gpus:,} in use" + ("" if paid == plan.num_gpus else f", {paid:,} paid for")
    if str(plan.objective) != "cost":
        yield "Objective", f"{plan.objective.value}: {figure(plan.value)} {unit_of(plan.objective)}"
    proven = "proven" if plan.status is PlanStatus.OPTIMAL else "search stopped early; at most"
    yield "Optimality", f"{proven} within {plan.gap:.2%} of the best"
    if plan.horizon is not None and plan.horizon.saving is not None:
        yield "Following the traffic saves", f"{plan.horizon.saving:.1%} against a fleet that stays as it is"


def _pools(f: ReportFacts) -> Iterator[Block]:
    plan = f.plan
    several = len({g.service for g in plan.groups}) > 1
    head = ("group", *(("service",) if several else ()), "GPU", "layout", "replicas", "GPUs", "req/s", "load")
    rows = [
        (
            g.name,
            *((g.service,) if several else ()),
            f"{g.gpu} in {g.zone}" if g.zone else g.gpu,
            str(g.parallelism),
            f"{g.replicas:,}",
            f"{g.num_gpus:,}",
            figure(g.request_rate),
            f"{g.utilization:.0%}",
            figure(g.mean_batch, 3),
            f"{g.memory.kv_cache / GIB:.1f}",
            g.binds.value.replace("_", " "),
        )
        for g in plan.groups
    ]
    first = 4 if several else 3
    full = (*head, "batch", "KV [GiB/GPU]", "binds")
    yield Table(head=full, rows=rows_of(rows), numbers=numeric(*range(first, first + 6)))
    yield load_figure(plan.groups)
    if plan.split is not None:
        yield Source(caption="Prompts divided by length", text="\n".join(split_lines(plan.split)))
    yield from _moves(plan)
    if plan.periods:
        yield Text(text="Groups and loads are those of the busiest period.")
        yield periods_figure(plan)
        yield _period_table(plan)


def _moves(plan: Plan) -> Iterator[Block]:
    """What changes against the fleet that the plan was made from."""
    if plan.move_cost is None:
        return
    if not plan.moves:
        yield Text(text="The fleet that stands is kept as it is.")
        return
    rows = [
        (m.group, f"{'start' if m.change > 0 else 'stop'} {abs(m.change):,}", f"{m.before:,}", f"{m.after:,}")
        for m in plan.moves
    ]
    yield Table(head=("move", "", "before", "after"), rows=rows_of(rows), numbers=numeric(2, 3))
    yield Text(text=f"Moves cost ${plan.move_cost:,.2f}, once.")


def _period_table(plan: Plan) -> Table:
    rows = [
        (
            p.name,
            f"{p.hours:g}",
            figure(sum(p.request_rates.values())),
            f"{sum(p.replicas.values()):,}",
            "" if p.cost is None else f"{p.cost:,.2f}",
        )
        for p in plan.periods
    ]
    return Table(
        head=("period", "hours", "req/s", "replicas", "USD/h"),
        rows=rows_of(rows),
        numbers=numeric(1, 2, 3, 4),
        caption="Periods as a table",
        folded=True,
    )


# --------------------------------------------------------------------------------------------
# Latency and operators


def _latency(f: ReportFacts) -> Iterator[Block]:
    yield Text(
        text="Share of requests that are served within a time. Predicted: expected, with the 80 % interval "
        "of the model error, and at the error that the plan withstands; simulated at that error. Dotted: "
        "limits."
    )
    if f.curves:
        longest = max(c.requests for c in f.curves.values())
        yield Text(text=f"Curves simulated for this report are of up to {longest:,} requests.")
    yield from _left_out(f, "curves")
    for i, p in enumerate(f.plan.predictions):
        facts = simulation_of(f.plan, p.service)
        yield latency_figure(f"latency-{i}", p, facts, f.curves.get(p.service))
        rows = []
        for predicted in (p.ttft, p.tpot):
            name = predicted.metric.value
            known = {} if facts is None else facts.get(f"{name}_ms") or {}
            limits = {t.statistic.value: t.limit for t in p.slo if t.metric is predicted.metric}
            for s in _STATISTICS:
                simulated = known.get(s)
                limit = limits.get(s)
                rows.append(
                    (
                        f"{s} {name.upper()}",
                        _ms(getattr(predicted.expected, s)),
                        f"{_ms(getattr(predicted.low, s))} to {_ms(getattr(predicted.high, s))}",
                        _ms(getattr(predicted.planned, s)),
                        "" if simulated is None else figure(float(simulated)),
                        "" if limit is None else figure(limit / MILLI),
                    )
                )
        head = ("[ms]", "expected", "80 % interval", "planned for", "simulated", "limit")
        caption = f"Latencies of {p.service} as a table"
        yield Table(
            head=head, rows=rows_of(rows), numbers=numeric(1, 2, 3, 4, 5), caption=caption, folded=True
        )


def _ms(seconds: float) -> str:
    return figure(seconds / MILLI)


def _roofline(f: ReportFacts) -> Iterator[Block]:
    yield Text(
        text="Each operator of a mean prompt and of a decode step at the group's mean batch, on one GPU. "
        "Left of a roof's corner memory bandwidth bounds, right of it compute. Stars: whole steps, host and "
        "links included."
    )
    for i, found in enumerate(f.rooflines):
        yield roofline_figure(i, found)
        rows = [
            (
                group,
                row["operator"],
                row["phase"],
                row["dtype"],
                figure(row["flop_per_byte"], 3),
                figure(row["ridge_flop_per_byte"], 3),
                row["bound"],
                figure(row["flop_per_second"] / TERA, 3),
                f"{row['share_of_roof'] * PERCENT:.0f} %",
                figure(row["seconds"] / MILLI, 3),
            )
            for row, group in zip(found.roofline.rows(), found.groups, strict=True)
        ]
        head = (
            "group", "operator", "step", "format", "FLOP/B", "ridge", "bound", "TFLOP/s", "of roof", "ms",
        )  # fmt: skip
        caption = f"Operators on {found.roofline.gpu} as a table"
        yield Table(
            head=head, rows=rows_of(rows), numbers=numeric(4, 5, 7, 8, 9), caption=caption, folded=True
        )


# --------------------------------------------------------------------------------------------
# Money and what-ifs


def _cost(f: ReportFacts) -> Iterator[Block]:
    yield from _left_out(f, "cost")
    if f.bill is not None:
        bill = f.bill
        yield cost_figure(bill)
        rows = [
            (
                x.name or x.kind, f"{x.gpus:,}", f"{x.price:,.2f}" if x.gpus else "", f"{x.cost:,.2f}",
                f"{x.cost * HOURS_PER_MONTH:,.0f}", f"{x.utilization:.0%}" if x.kind == "group" else "",
            )
            for x in bill.lines
        ]  # fmt: skip
        total = (
            "total",
            f"{bill.gpus_paid:,}",
            "",
            f"{bill.cost:,.2f}",
            f"{bill.cost * HOURS_PER_MONTH:,.0f}",
        )
        rows.append((*total, f"{bill.utilization:.0%}"))
        head = ("", "GPUs", "USD/GPU/h", "USD/h", "USD/month", "load")
        yield Table(head=head, rows=rows_of(rows), numbers=numeric(1, 2, 3, 4, 5))
        for t in bill.tokens:
            yield Text(
                text=f"{t.service}: ${t.per_million:,.4g} per million tokens (${t.per_million_input:,.4g} "
                f"over input tokens, ${t.per_million_output:,.4g} over output tokens)."
            )
    if f.period_bill is not None:
        bill_rows = [
            (
                x.name,
                f"{x.hours:g}",
                figure(x.request_rate),
                f"{x.replicas:,}",
                f"{x.cost:,.2f}",
                f"{x.total:,.2f}",
            )
            for x in f.period_bill.lines
        ]
        bill_rows.append(("start-ups", "", "", "", "", f"{f.period_bill.starts:,.2f}"))
        hours = f.period_bill.horizon.hours
        mean = f"{f.period_bill.cost / hours:,.2f}"
        bill_rows.append(("total", f"{hours:g}", "", "", mean, f"{f.period_bill.cost:,.2f}"))
        head = ("period", "hours", "req/s", "replicas", "USD/h", "USD")
        yield Table(head=head, rows=rows_of(bill_rows), numbers=numeric(1, 2, 3, 4, 5))
        yield Text(
            text=f"${f.period_bill.per_month:,.0f} a month; ${f.period_bill.per_million:,.4g} per million "
            "tokens."
        )


def _pareto(f: ReportFacts) -> Iterator[Block]:
    yield from _left_out(f, "pareto")
    for p in f.paretos:
        yield pareto_figure(p)
        yield _pareto_table(p)
    yield from _notes(dict.fromkeys(note for p in f.paretos for note in p.notes))


def _pareto_table(p: Pareto) -> Table:
    rows = [(figure(p.shown(x.x)), *_result(x.result)) for x in p.points]
    name = f"{p.statistic} {p.varied.upper()}"
    caption = f"Cost against {name} as a table"
    head = (f"{name} [ms]", p.unit, "fleet")
    return Table(head=head, rows=rows_of(rows), numbers=numeric(0, 1), caption=caption, folded=True)


def _result(result: Resolved) -> tuple[str, str]:
    """A plan's value and fleet, or why there is none."""
    if result.value is None:
        return "none", result.reason
    return figure(result.value), result.description


def _sensitivity(f: ReportFacts) -> Iterator[Block]:
    yield from _left_out(f, "sensitivity")
    s = f.sensitivity
    if s is None:
        return
    yield Text(
        text=f"One thing changed at a time, and the scenario solved again by prediction; as it is: "
        f"{figure(s.base.value or 0.0)} {s.unit}. GPUs come in whole replicas and nodes, so that small "
        "changes often cost nothing."
    )
    yield tornado_figure(s)
    rows = [
        (side_text(lever, side), *_result(getattr(lever, side)))
        for lever in s.levers
        for side in ("low", "high")
    ]
    yield Table(
        head=("change", s.unit, "fleet"),
        rows=rows_of(rows),
        numbers=numeric(1),
        caption="Changes as a table",
        folded=True,
    )
    yield from _notes(s.notes)


def _timeline(f: ReportFacts) -> Iterator[Block]:
    yield from _left_out(f, "timeline")
    several = len(f.timelines) > 1
    for i, (name, found) in enumerate(f.timelines.items()):
        yield timeline_figure(f"timeline-{i}", name if several else "", found)
        yield from _notes(found.notes)


def _alternatives(f: ReportFacts) -> Iterator[Block]:
    plan, unit = f.plan, unit_of(f.plan.objective)
    shown: Figure | None = alternatives_figure(plan, unit)
    if shown is not None:
        yield shown
    words = {True: "holds", False: "does not hold", None: "not simulated"}
    rows = [
        (
            a.name,
            "none" if a.value is None else figure(a.value),
            "" if a.value is None or not plan.value else f"{(a.value / plan.value - 1) * PERCENT:+.1f} %",
            a.summary if a.value is not None else a.reason,
            "" if a.value is None else words[a.verified],
        )
        for a in plan.alternatives
    ]
    if rows:
        head = ("alternative", unit, "against the plan", "fleet", "simulation")
        yield Table(head=head, rows=rows_of(rows), numbers=numeric(1, 2))
    else:
        yield Text(text="The plan holds no alternatives.", kind="note")


def _notes(notes: Sequence[str] | dict[str, None]) -> Iterator[Block]:
    for note in notes:
        yield Text(text=note, kind="note")
