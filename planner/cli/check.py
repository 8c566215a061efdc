"""``planner check``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from planner.cli.output import echo_json
from planner.deploy.targets import target_of
from planner.errors import SpecError


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(folder: Path, as_json: bool) -> None:
    """Prove that the files of FOLDER, written by `planner emit`, are well formed.

    Needs neither a GPU nor a network: every flag exists in the version's list and has a value of its type,
    both sides of a hand-over carry a connector and fitting roles, every pair of groups may work together, and
    nothing is left to be set. One line for each finding; exit code 2 if there are any.
    """
    found = target_of(folder).check(folder)
    if as_json:
        echo_json([asdict(finding) for finding in found])
    else:
        for finding in found:
            click.echo(str(finding))
    if found:
        raise SpecError(f"{folder}: {len(found)} finding" + ("s" if len(found) != 1 else ""))
    if not as_json:
        click.echo(f"{folder}: nothing to object to")
