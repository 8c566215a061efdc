"""``planner emit``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from planner.cli.completions import complete_targets
from planner.deploy.build import deployment_of, require_verified
from planner.deploy.description import PLACEHOLDER
from planner.deploy.folder import write_folder
from planner.deploy.manifest import NAME as MANIFEST
from planner.deploy.targets import TARGETS, target_for
from planner.documents.plan import dump_plan, load_plan, rebased
from planner.documents.site import load_site
from planner.standing import standing_files, standing_plans


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option(
    "--target",
    required=True,
    metavar="T",
    shell_complete=complete_targets,
    help=f"What to write for: {', '.join(TARGETS)}.",
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--site", type=click.Path(path_type=Path), help="Settings of the site; `planner schema site`.")
@click.option("--force", is_flag=True, help="Also a plan that did not hold in simulation.")
def emit(plan: Path, target: str, output: Path, site: Path | None, force: bool) -> None:
    """Write files that start the pools of PLAN.

    PLAN is a file of `planner solve -o`. Engines, the router, a check that prefill really happens remotely,
    and a load test are written whole or not at all. What only the site knows (addresses, folders) comes from
    --site; what it leaves out is marked SET-ME, which `planner check` refuses.
    """
    planned = load_plan(plan)
    writer = target_for(target, planned.engine)
    if not force:
        require_verified(planned)
    settings = load_site(site)
    standings = standing_plans(planned, plan.parent, str(plan))
    made = deployment_of(planned, standings, settings, writer.platform())
    deployment = replace(made, notes=(*made.notes, *writer.notes(made)))
    standing_files(plan)  # what else somebody may have broken in it
    text = dump_plan(rebased(planned, plan.parent, output), reproducible=True)
    files = writer.render(deployment, text)
    write_folder(output, files, MANIFEST)
    for note in deployment.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{len(files)} files written to {output}")
    if any(PLACEHOLDER in content for content in files.values()):
        click.echo(f"some settings are missing: planner check {output} names them")
