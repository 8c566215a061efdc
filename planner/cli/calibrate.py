"""``planner calibrate``: what a user's own measurements say."""

from __future__ import annotations

import click

from planner.cli.lazy import LazyGroup

_COMMANDS = {
    "engine": ("planner.cli.calibrate_engine", "Constants of an engine from files of load tests."),
    "ops": ("planner.cli.calibrate_ops", "A GPU profile from samples of its operators."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def calibrate() -> None:
    """Close the gap between predictions and your own measurements."""
