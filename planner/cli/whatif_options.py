"""Options of the commands that solve a scenario again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from planner.cli.options import Number
from planner.units import SECONDS_PER_HOUR
from planner.whatif.resolve import FINE_GAP, ResolveOptions

Command = TypeVar("Command", bound=Callable[..., Any])
MINUTE, DAY = 60.0, 24 * SECONDS_PER_HOUR


def resolve_options(command: Command) -> Command:
    """How to solve: solver, gap, time limit; and whether to print JSON."""
    options = (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option("--solver", type=click.Choice(["highs", "cbc"]), default="highs", show_default=True),
        click.option(
            "--gap",
            type=Number(0, 1, max_open=True),
            default=FINE_GAP,
            show_default=True,
            help="Relative distance from the proven bound at which each search may stop.",
        ),
        click.option(
            "--time-limit",
            type=Number(0, DAY, min_open=True),
            default=MINUTE,
            show_default=True,
            metavar="S",
            help="Of one program. [s]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def options_of(solver: str, gap: float, time_limit: float, on_stage: Callable[[str], None]) -> ResolveOptions:
    """What the options come to."""
    return ResolveOptions(solver=solver, gap=gap, time_limit=time_limit, on_stage=on_stage)
