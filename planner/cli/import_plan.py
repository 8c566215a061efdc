"""``planner import``."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.output import check_outputs
from planner.deploy.targets import target_of
from planner.documents.files import write_text_atomic
from planner.documents.plan import dump_plan, rebased


@click.command(name="import")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write the plan here. Default: print it."
)
def import_plan(folder: Path, output: Path | None) -> None:
    """Read FOLDER, written by `planner emit`, back into a plan that can be simulated.

    It is the plan that the files were written for, with replicas, layouts, limits and formats as the scripts
    have them now. Where somebody changed these, predictions are those from before, and a note says so.
    """
    check_outputs((folder / "plan.yaml",), (output,))
    plan = target_of(folder).read_back(folder)
    if output is None:
        click.echo(dump_plan(rebased(plan, folder, Path()), reproducible=True), nl=False)
        return
    text = dump_plan(rebased(plan, folder, output.resolve().parent), reproducible=True)
    write_text_atomic(output, text)
    click.echo(f"plan written to {output}")
