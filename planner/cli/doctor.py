"""``planner doctor``."""

from __future__ import annotations

import click

from planner.cli.output import echo_json
from planner.doctor import SOLVERS, Check, Health, examine

_NOT_SOLVED, _NOT_RUN = 4, 1  # exit codes: no solver; something else that `solve` needs


@click.command()
@click.option("--full", is_flag=True, help="Also ask torch, if it is there, which devices it sees.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(full: bool, as_json: bool) -> None:
    """What is installed, which solvers answer, and what to install for what is missing.

    Ends with 0 if `planner solve` has all that it needs, with 4 if its solver does not answer, else with 1.
    """
    checks = list(examine(full=full))
    if as_json:
        echo_json(
            {
                "healthy": not any(c.health is Health.BROKEN for c in checks),
                "checks": [
                    {
                        "group": c.group,
                        "name": c.name,
                        "status": c.health.value,
                        "detail": c.detail,
                        "remedy": c.remedy,
                    }
                    for c in checks
                ],
            }
        )
    else:
        _print(checks)
    if code := _exit_code(checks):
        click.get_current_context().exit(code)


def _exit_code(checks: list[Check]) -> int:
    broken = {c.group for c in checks if c.health is Health.BROKEN}
    if not broken:
        return 0
    return _NOT_SOLVED if broken == {SOLVERS} else _NOT_RUN


def _print(checks: list[Check]) -> None:
    name_width = max(len(c.name) for c in checks)
    for c in checks:
        mark = {Health.OK: "ok     ", Health.MISSING: "missing", Health.BROKEN: "BROKEN "}[c.health]
        remedy = f"  ({c.remedy})" if c.remedy else ""
        click.echo(f"{mark}  {c.name:<{name_width}}  {c.detail}{remedy}")
    broken = [c.name for c in checks if c.health is Health.BROKEN]
    click.echo(f"\nplanner solve cannot run: {', '.join(broken)}" if broken else "\nplanner solve can run")
