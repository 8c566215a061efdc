"""``planner solve``."""

from __future__ import annotations

from pathlib import Path

import click

from planner.cli.options import Number, engine_profile_option
from planner.cli.output import check_outputs, echo_json, progress, width
from planner.documents.files import read_text, write_text_atomic
from planner.documents.plan import dump_plan, load_plan, plan_to_document, rebased
from planner.documents.scenario import LoadedScenario, read_scenario, scenario_from_text
from planner.errors import VerificationError
from planner.plan import Plan
from planner.search import DEFAULT_GAP, MOVE_COST, MOVE_HOURS, SolveOptions
from planner.units import GIGA, MEGA, MILLI, SECONDS_PER_HOUR
from planner.workflow import solve as solve_scenario

_WEEK = 7 * 24 * SECONDS_PER_HOUR


def _seconds(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """A time limit above 0 and below a week; also refuses what is no number."""
    if value is not None and not 0 < value <= _WEEK:
        raise click.BadParameter(f"must be > 0 and at most {_WEEK:,.0f} s (a week), got {value}")
    return value


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the plan here (YAML).")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON instead of tables.")
@click.option("--no-verify", is_flag=True, help="Do not simulate the plan, nor correct capacities by it.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, help="Of the simulated requests.")
@click.option("--solver", type=click.Choice(["highs", "cbc"]), default="highs", show_default=True)
@click.option("--time-limit", type=float, callback=_seconds, metavar="S", help="Of one program. [s]")
@click.option(
    "--gap",
    type=Number(0, 1, max_open=True),
    default=DEFAULT_GAP,
    show_default=True,
    help="Relative distance from the proven bound at which the search may stop.",
)
@click.option("--save-lp", type=click.Path(path_type=Path), metavar="FILE", help="Write the integer program.")
@click.option("--no-alternatives", is_flag=True, help="Only the plan: skip what it is compared with.")
@click.option(
    "--from",
    "current",
    type=click.Path(path_type=Path),
    metavar="PLAN",
    help="Plan from this fleet: a replica that has to be started costs --move-cost.",
)
@click.option(
    "--move-cost",
    type=Number(0, GIGA),
    default=MOVE_COST,
    show_default=True,
    metavar="USD",
    help="Of each replica that is started, with --from.",
)
@click.option(
    "--move-hours",
    type=Number(MILLI, MEGA),
    default=MOVE_HOURS,
    show_default=True,
    metavar="H",
    help="Time in which a change has to earn its cost, with --from. [h]",
)
@engine_profile_option
@click.option("--reproducible", is_flag=True, help="Leave the time out of the plan file.")
def solve(
    scenario: Path,
    output: Path | None,
    as_json: bool,
    no_verify: bool,
    seed: int,
    solver: str,
    time_limit: float | None,
    gap: float,
    save_lp: Path | None,
    no_alternatives: bool,
    current: Path | None,
    move_cost: float,
    move_hours: float,
    engine_profile: Path | None,
    reproducible: bool,
) -> None:
    """Find the cheapest fleet that meets SCENARIO (a YAML file, - for standard input).

    Prints the pools, TTFT and TPOT against the SLOs, cost, and the best colocated and single-GPU-type
    plans beside it. The plan is simulated, and solved again with corrected capacities where it does not
    hold; exit code 5: the plan that is printed still misses an SLO.
    """
    check_outputs(tuple(filter(None, (scenario, current, engine_profile))), (output, save_lp))
    loaded = _read(scenario, engine_profile)
    with progress("reading") as on_stage:
        options = SolveOptions(
            solver=solver,
            time_limit=time_limit,
            gap=gap,
            save_lp=save_lp,
            alternatives=not no_alternatives,
            verify=not no_verify,
            seed=seed,
            current=None if current is None else load_plan(current),
            move_cost=move_cost,
            move_hours=move_hours,
            on_stage=on_stage,
        )
        plan = solve_scenario(loaded, options)
    if output is not None:
        written = rebased(plan, _folder(scenario), output.resolve().parent)
        write_text_atomic(output, dump_plan(written, reproducible=reproducible))
    _print(plan, as_json, output, reproducible)
    if plan.verification is not None and not plan.verification.passed:
        missed = "; ".join(plan.verification.details["failures"])
        marked = "" if output is None else f"; {output} has it with verification.passed: false"
        raise VerificationError(f"the plan does not hold in simulation: {missed}{marked}")


def _folder(scenario: Path) -> Path:
    return Path() if str(scenario) == "-" else scenario.parent


def _read(scenario: Path, engine_profile: Path | None) -> LoadedScenario:
    if str(scenario) != "-":
        return read_scenario(scenario, engine_profile)
    text, folder = read_text("/dev/stdin"), _folder(scenario)
    return scenario_from_text(text, "standard input", folder=folder, engine_profile=engine_profile)


def _print(plan: Plan, as_json: bool, output: Path | None, reproducible: bool) -> None:
    if as_json:
        echo_json(plan_to_document(plan, reproducible=reproducible))
        return
    from planner.report.terminal import print_plan  # rich: only where tables are printed

    print_plan(plan, width())
    if output is not None:
        click.echo(f"\nplan written to {output}")
