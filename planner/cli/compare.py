"""``planner compare``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from planner.cli.output import check_picture, echo_json, width
from planner.cli.whatif_facts import milliseconds
from planner.documents.plan_extras import rounded
from planner.errors import SpecError
from planner.whatif.compare import Comparison, GroupKey, StepKind
from planner.whatif.compare import compare as compared


@click.command()
@click.argument("before", metavar="A", type=click.Path(path_type=Path))
@click.argument("after", metavar="B", type=click.Path(path_type=Path))
@click.option("--plot", type=click.Path(path_type=Path), help="Draw GPUs and cost here (PNG or SVG).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(before: Path, after: Path, plot: Path | None, as_json: bool) -> None:
    """What leads from plan A to plan B: replicas to add, move and remove; cost, SLOs and predictions.

    A and B are files of `planner solve -o`; - is standard input. Replicas are alike if service, pool, GPU,
    zone, layout, formats, engine and its limits are. GPUs of one type and zone move from replica to replica
    where both have equally many.
    """
    if str(before) == str(after) == "-":
        raise SpecError("standard input is one of the plans, not both")
    check_picture(plot, (before, after))
    result = compared(before, after)
    if plot is not None:
        from planner.report.compare_plot import save_comparison  # matplotlib: only for pictures

        save_comparison(result, plot, (before.name, after.name))
    if as_json:
        echo_json(comparison_facts(result))
        return
    from planner.report.compare import print_comparison  # rich: only where tables are printed

    print_comparison(result, (str(before), str(after)), width())
    if plot is not None:
        click.echo(f"\npicture written to {plot}")


def comparison_facts(c: Comparison) -> dict[str, Any]:
    """The JSON of ``planner compare``."""
    return {
        "same": c.same,
        "steps": [
            {
                "kind": s.kind.value,
                "replicas": s.replicas,
                "gpus": s.gpus,
                "before": _key(s.before),
                "after": _key(s.after),
            }
            for s in c.steps
        ],
        "replicas": {kind.value: c.replicas(kind) for kind in StepKind},
        "groups": [
            {
                "service": g.service,
                "phase": g.phase.value,
                "label": g.label,
                "replicas": {"before": g.replicas[0], "after": g.replicas[1]},
                "gpus": {"before": g.gpus[0], "after": g.gpus[1]},
                "cost_per_hour": _pair(g.cost),
            }
            for g in c.groups
        ],
        "gpus": [
            {
                "gpu": g.gpu,
                "zone": g.zone,
                "used": {"before": g.used[0], "after": g.used[1]},
                "paid": {"before": g.paid[0], "after": g.paid[1]},
            }
            for g in c.gpus
        ],
        "cost_per_hour": _pair(c.cost),
        "value": _pair(c.value),
        "latencies": [
            {
                "service": x.service,
                "metric": x.metric,
                "statistic": x.statistic,
                "expected_ms": dict(zip(("before", "after"), map(milliseconds, x.expected), strict=True)),
                "planned_ms": dict(zip(("before", "after"), map(milliseconds, x.planned), strict=True)),
            }
            for x in c.latencies
        ],
        "differences": [asdict(d) for d in c.differences],
    }


def _key(key: GroupKey | None) -> dict[str, Any] | None:
    return None if key is None else {**asdict(key), "phase": key.phase.value}


def _pair(values: tuple[float | None, float | None]) -> dict[str, float | None]:
    return {"before": rounded(values[0]), "after": rounded(values[1])}
