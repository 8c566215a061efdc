"""Options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from planner.cli.completions import complete_engines, complete_gpus, complete_models
from planner.errors import SpecError

Command = TypeVar("Command", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A number in a range; refuses nan, which is in every range, and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


def replica_options(command: Command) -> Command:
    """Which replica: model, GPU, parallel sizes, engine and formats."""
    options = (
        click.option(
            "--model",
            "-m",
            required=True,
            shell_complete=complete_models,
            help="Catalogue name, config.json or model directory.",
        ),
        click.option(
            "--gpu", "-g", required=True, shell_complete=complete_gpus, help="GPU profile name or path."
        ),
        click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="Tensor parallel."),
        click.option("--pp", type=click.IntRange(1), default=1, show_default=True, help="Pipeline parallel."),
        click.option("--ep", type=click.IntRange(1), default=1, show_default=True, help="Expert parallel."),
        click.option("--dp", type=click.IntRange(1), default=1, show_default=True, help="Attention ranks."),
        click.option("--engine", default="vllm", show_default=True, shell_complete=complete_engines),
        click.option("--precision", help="Of the weights; default: the checkpoint's."),
        click.option("--kv-cache-dtype", help="Default: the checkpoint's, else 16-bit."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def engine_profile_option(command: Command) -> Command:
    """Constants of the engine from a user's own measurements."""
    return click.option(
        "--engine-profile",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Of `planner calibrate engine`: in place of the file's engine.",
    )(command)


def router_options(command: Command) -> Command:
    """Which part of a plan: one of its services, one of its periods."""
    options = (
        click.option(
            "--service", metavar="NAME", help="Of a plan with several services: this one. Default: all."
        ),
        click.option(
            "--period", metavar="NAME", help="Of a plan with a schedule of rates. Default: the busiest."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def refuse_for_several(names: Sequence[str], given: Mapping[str, object]) -> None:
    """Options that make sense for one of several services only.

    Parameters
    ----------
    given : mapping
        Options with their values; None, False and empty ones were not given.

    Raises
    ------
    SpecError
    """
    asked = [option for option, value in given.items() if value is not None and value not in (False, ())]
    if len(names) > 1 and asked:
        raise SpecError(
            f"{asked[0]}: is for one service, and the plan has {len(names)}: add --service with one of "
            + "; ".join(names)
        )
