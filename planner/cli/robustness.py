"""``planner robustness``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.cli.output import echo_json, progress, width
from planner.cli.whatif_facts import resolved_facts
from planner.cli.whatif_options import options_of, resolve_options
from planner.documents.plan_extras import rounded
from planner.whatif.asked import asked_of
from planner.whatif.robustness import Robustness
from planner.whatif.robustness import robustness as stressed


@click.command()
@click.argument("source", metavar="PLAN|SCENARIO", type=click.Path(path_type=Path))
@click.option("--no-simulate", is_flag=True, help="Do not look for the load at which the fleet breaks.")
@resolve_options
def robustness(
    source: Path, no_simulate: bool, as_json: bool, solver: str, gap: float, time_limit: float
) -> None:
    """What a plan costs when things get worse, and when its fleet first breaks.

    The argument is a file of `planner solve -o` or a scenario; - is standard input. Solves it again at 1.25
    and 1.5 times the load, with every step and transfer as much longer, and at several confidences; and looks
    by simulation for the most load that the fleet of the plan carries within its SLOs.
    """
    asked = asked_of(source)
    with progress("reading") as on_stage:
        options = options_of(solver, gap, time_limit, on_stage)
        result = stressed(asked, options, simulate=not no_simulate)
    if as_json:
        echo_json(robustness_facts(result))
        return
    from planner.report.whatif import print_robustness  # rich: only where tables are printed

    print_robustness(result, width())


def robustness_facts(r: Robustness) -> dict[str, Any]:
    """The JSON of ``planner robustness``."""
    return {
        "name": r.name,
        "objective": r.objective.value,
        "unit": r.unit,
        "confidence": r.confidence,
        "base": resolved_facts(r.base),
        "stresses": [
            {"kind": s.kind, "level": s.level, "asked": s.asked, **resolved_facts(s.result)}
            for s in r.stresses
        ],
        "fleet": r.fleet,
        "breaks": [
            {
                "confidence": x.confidence,
                "asked_request_rate": rounded(x.asked),
                "carried_request_rate": rounded(x.carried),
                "multiple": rounded(x.multiple),
                "first": [phase.value for phase in x.breaks],
            }
            for x in r.limits
        ],
        "notes": list(r.notes),
        "interrupted": r.interrupted,
    }
