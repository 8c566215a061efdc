"""``planner simulate`` and ``planner evaluate``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from planner.cli.options import Number, engine_profile_option, refuse_for_several, router_options
from planner.cli.output import check_outputs, echo_json, interruptible, progress, width
from planner.cli.simulation_facts import evaluation_facts, plan_facts, simulation_facts
from planner.cli.simulation_options import (
    MOST_REQUESTS,
    failed_too_late,
    failures_of,
    requests_with,
    setup_of,
    setup_options,
    source_of,
)
from planner.documents.files import file_error
from planner.documents.trace_times import SCALES
from planner.errors import SpecError, VerificationError
from planner.evaluation import evaluate as evaluate_standing
from planner.simulator.build import Setup
from planner.simulator.metrics import SimulationResult, measure
from planner.simulator.run import Stage, run_fleet, simulate_fleet
from planner.simulator.source import RequestSource
from planner.standing import LEAST_RATE, MOST_RATE, Standing, of_service, standing_files
from planner.units import KILO

_SHOWN, _DRAWN = 24, 200  # requests of a timeline, and of its run
_NOTED_PER_TOKEN, _LOGGED, _MOST_LOGGED = 2, 100_000, 20_000_000  # activities of its run
_FEWEST = int(KILO)  # requests of a run that is to tell whether a fleet holds
_PICTURES = (".png", ".svg")


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--trace", type=click.Path(path_type=Path), help="Replay it; see `planner workload`.")
@click.option("--unit", type=click.Choice(list(SCALES)), help="Of the trace's timestamps.")
@click.option(
    "--rate-scale",
    metavar="X",
    help="Times the rate: that of the trace, else the plan's. \"match\": play the trace at the plan's rate.",
)
@click.option("--rate", type=Number(LEAST_RATE, MOST_RATE), help="Requests per second, instead of that.")
@click.option("--cv", type=Number(0, 100), help="Of the times between drawn arrivals; 1: Poisson.")
@click.option(
    "--schedule",
    metavar="S:RATE,...",
    help="Rates one after the other: seconds and requests per second, e.g. 600:10,300:40.",
)
@click.option(
    "--requests",
    type=click.IntRange(1, MOST_REQUESTS),
    help="How many; of a trace the first. Default: until it is sure, or the whole trace.",
)
@click.option(
    "--fail",
    "failures",
    multiple=True,
    metavar="GROUP@T[-T2]",
    help="A replica of GROUP fails T seconds after the start, and is back at T2. GROUP#N: its N-th replica.",
)
@click.option(
    "--prefix-cache/--no-prefix-cache",
    default=None,
    help="Simulate the prefix cache with a trace's block hashes. Default: where the trace has them.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Picture of the run over time (PNG or SVG).")
@click.option("--timeline", type=click.Path(path_type=Path), help="Picture of its first requests.")
@click.option("--series", is_flag=True, help="With --json: figures of every group over time.")
@engine_profile_option
@router_options
@setup_options
def simulate(
    plan: Path,
    engine_profile: Path | None,
    service: str | None,
    period: str | None,
    plot: Path | None,
    timeline: Path | None,
    series: bool,
    as_json: bool,
    **asked: Any,
) -> None:
    """Will it hold? Send requests through the fleet of PLAN.

    PLAN is a file of `planner solve -o`, or a fleet file; - is standing input. Without options the requests
    are those that the plan was made for, and every service is simulated: the plan holds if each of them
    does. A trace keeps its own rate unless --rate-scale or --rate says otherwise. Exit code 5: an SLO is
    missed, or queues grow without end, or the run is too short to tell.
    """
    _check_pictures((plan, asked["trace"]), (plot, timeline))
    if series and not as_json:
        raise SpecError("--series: belongs to --json")
    if str(plan) == str(asked["trace"]) == "-":
        raise SpecError("standard input is the plan or the trace, not both")
    started = time.process_time()
    with progress("reading") as on_stage:
        standings = of_service(standing_files(plan, period=period, engine_profile=engine_profile), service)
        own = ("trace", "unit", "rate", "schedule", "prefix_cache")
        given = {f"--{name.replace('_', '-')}": asked[name] for name in own}
        pictures = {"--plot": plot, "--timeline": timeline}
        refuse_for_several([s.name for s in standings], given | {"--fail": asked["failures"]} | pictures)
        runs = []
        for standing in standings:
            with _named(standing, standings, on_stage) as stage:
                runs.append(_run(standing, asked, plot, timeline, stage))
    cpu = _shares([run.result.requests for run in runs], time.process_time() - started)
    facts = {run.standing.name: run.facts(seconds, series) for run, seconds in zip(runs, cpu, strict=True)}
    if as_json:
        echo_json(plan_facts(facts))
    else:
        _print_runs(runs, facts)
        for path in (plot, timeline):
            if path is not None:
                click.echo(f"\npicture written to {path}")
    _raise_failures(facts)


@click.command()
@click.argument("fleet", type=click.Path(path_type=Path))
@click.option("--rate", type=Number(LEAST_RATE, MOST_RATE), help="Also look at this rate. [req/s]")
@click.option(
    "--requests", type=click.IntRange(_FEWEST, MOST_REQUESTS), help="Of a run. Default: until it is sure."
)
@engine_profile_option
@router_options
@setup_options
def evaluate(
    fleet: Path,
    rate: float | None,
    requests: int | None,
    engine_profile: Path | None,
    service: str | None,
    period: str | None,
    as_json: bool,
    seed: int,
    **how: Any,
) -> None:
    """Score a hand-written or running FLEET: the most it carries within the SLOs, and what breaks first.

    FLEET is a fleet file (groups, model, workload, SLOs; `planner schema fleet`), or a plan, of which every
    service is looked at; - is standard input. Exit code 5: the fleet carries nothing, or not the rate that
    its file, or --rate, gives.
    """
    facts: dict[str, dict[str, Any]] = {}
    titles = []
    with progress("reading") as on_stage:
        standings = of_service(standing_files(fleet, period=period, engine_profile=engine_profile), service)
        refuse_for_several([s.name for s in standings], {"--rate": rate})
        for standing in standings:
            started = time.process_time()
            with _named(standing, standings, on_stage) as stage:
                source = replace(standing.source, seed=seed)
                facts[standing.name] = _evaluated(
                    replace(standing, source=source), how, rate, requests, started, stage
                )
            titles.append(_title(standing))
    if as_json:
        echo_json(plan_facts(facts))
    else:
        from planner.report.simulation import print_evaluations  # rich: only where tables are printed

        print_evaluations(list(facts.values()), titles, width())
    _raise_not_carried(facts)


# --------------------------------------------------------------------------------------------


def _check_pictures(inputs: tuple[Path | None, ...], pictures: tuple[Path | None, ...]) -> None:
    """Refuse before long work what could not be drawn or written after it."""
    for path in pictures:
        if path is not None and path.suffix.lower() not in _PICTURES:
            raise file_error(path, "is no picture", "the name has to end in .png or .svg")
    check_outputs(inputs, pictures)


@contextmanager
def _named(standing: Standing, among: Sequence[Standing], on_stage: Stage) -> Iterator[Stage]:
    """Say of which of several services something is done, or is wrong."""
    try:
        yield on_stage if len(among) == 1 else lambda stage: on_stage(f"{standing.name}: {stage}")
    except SpecError as error:
        if len(among) == 1:
            raise
        raise SpecError(f"{standing.name}: {error}") from None


def _title(standing: Standing) -> str:
    """Service, model and groups."""
    groups = ", ".join(
        f"{g.replicas} x {g.item.name} {g.parallelism} {g.phase}" for g in standing.fleet.groups
    )
    return ": ".join(dict.fromkeys([standing.name, standing.fleet.service.model.name, groups]))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """One service that was simulated."""

    standing: Standing
    source: RequestSource
    confidence: float
    result: SimulationResult
    notes: tuple[str, ...]

    def facts(self, cpu_seconds: float, series: bool) -> dict[str, Any]:
        return simulation_facts(
            self.result,
            self.standing,
            self.source,
            self.confidence,
            cpu_seconds,
            notes=self.notes,
            series=series,
        )


def _run(
    standing: Standing, asked: dict[str, Any], plot: Path | None, timeline: Path | None, on_stage: Stage
) -> _Run:
    source, notes = source_of(standing, asked)
    setup, confidence = setup_of(standing, asked)
    setup = replace(setup, failures=failures_of(standing, asked["failures"]))
    on_stage("simulating")
    result = interruptible(lambda: _simulated(standing, source, setup, asked["requests"], on_stage))
    if plot is not None or timeline is not None:
        on_stage("drawing")
        interruptible(lambda: _draw(standing, source, setup, result.requests, plot, timeline))
    notes = (*notes, *_late_failures(standing, setup, result))
    return _Run(standing=standing, source=source, confidence=confidence, result=result, notes=notes)


def _shares(parts: Sequence[int], whole: float) -> list[float]:
    """`whole` divided as `parts` are to one another."""
    return [whole * part / sum(parts) for part in parts]


def _print_runs(runs: Sequence[_Run], facts: dict[str, dict[str, Any]]) -> None:
    from planner.report.simulation import print_simulations  # rich: only where tables are printed

    print_simulations(facts, [_title(run.standing) for run in runs], width())


def _raise_failures(facts: dict[str, dict[str, Any]]) -> None:
    """What was simulated has to hold."""
    failing = {name: one for name, one in facts.items() if not one["passed"]}
    if not failing:
        return
    decided = any(one["decided"] for one in failing.values())
    verdict = "does not hold" if decided else "may not hold, the run is too short to tell"
    raise VerificationError(f"the {_whole(facts)} {verdict}: " + _told(facts, failing))


def _whole(facts: dict[str, dict[str, Any]]) -> str:
    return "plan" if len(facts) > 1 else "fleet"


def _told(facts: dict[str, dict[str, Any]], failing: dict[str, dict[str, Any]]) -> str:
    """What was missed, and where there are several services by which."""
    alone = len(facts) == 1
    return "; ".join(
        miss if alone else f"{name}: {miss}" for name, one in failing.items() for miss in one["failures"]
    )


def _evaluated(
    standing: Standing,
    how: dict[str, Any],
    rate: float | None,
    number: int | None,
    started: float,
    on_stage: Stage,
) -> dict[str, Any]:
    setup, confidence = setup_of(standing, how)
    offered = rate or standing.offered
    found = interruptible(
        lambda: evaluate_standing(standing, setup, offered=offered, number=number, on_stage=on_stage)
    )
    return evaluation_facts(found, standing, offered, confidence, time.process_time() - started)


def _raise_not_carried(facts: dict[str, dict[str, Any]]) -> None:
    """Fleets have to carry what they are meant for, and something."""
    failing = {name: one["at_offered"] for name, one in facts.items() if one["passed"] is False}
    if failing and len(facts) > 1:
        raise VerificationError(
            "the plan does not carry its requests within the SLOs: " + _told(facts, failing)
        )
    for name, at in failing.items():
        rate = facts[name]["request_rate"]
        raise VerificationError(
            f"the fleet does not carry {rate:,.4g} req/s within its SLOs: " + _told(facts, {name: at})
        )
    nothing = [name for name, one in facts.items() if one["at_most"] is None]
    if nothing:
        of = f": {'; '.join(nothing)}" if len(facts) > 1 else ""
        raise VerificationError(f"the {_whole(facts)} carries nothing within its SLOs{of}")


def _simulated(
    standing: Standing, source: RequestSource, setup: Setup, number: int | None, on_stage: Stage
) -> SimulationResult:
    """One run; where replicas fail, percentiles depend on how long it is, and it is not made longer."""
    if number is None and setup.failures and source.endless:
        number = requests_with(setup.failures, source)
    return simulate_fleet(
        standing.fleet, source, setup, number=number, names=standing.names, on_stage=on_stage
    )


def _late_failures(standing: Standing, setup: Setup, result: SimulationResult) -> tuple[str, ...]:
    last = max((float(s.time[-1]) for s in result.series if s.time.size), default=0.0)
    return failed_too_late(standing, setup.failures, last)


def _draw(
    standing: Standing,
    source: RequestSource,
    setup: Setup,
    number: int,
    plot: Path | None,
    timeline: Path | None,
) -> None:
    """Run once more, with everything kept that a picture shows."""
    if plot is not None:
        from planner.report.simulation_plot import save_simulation  # matplotlib: only for pictures

        outcome = run_fleet(standing.fleet, source, number, setup, names=standing.names)
        save_simulation(measure(outcome, standing.fleet.service.slo), outcome, plot)
    if timeline is not None:
        from planner.report.timeline_plot import save_timeline  # matplotlib: only for pictures
        from planner.simulator.interference import fleet_timeline

        few = _few(source)
        tokens = int(few.draw(_DRAWN).osl.sum(dtype="int64"))
        log = min(_NOTED_PER_TOKEN * tokens + _LOGGED, _MOST_LOGGED)
        short = run_fleet(standing.fleet, few, _DRAWN, setup, names=standing.names, log_capacity=log)
        save_timeline([fleet_timeline(short, _title(standing), _SHOWN)], timeline)


def _few(source: RequestSource) -> RequestSource:
    """The first requests, as far apart as they are among the others."""
    trace = source.trace
    if not source.replay or trace is None or trace.requests <= _DRAWN:
        return source
    few = replace(source, trace=trace.first(_DRAWN))
    if source.rate is None:
        return few
    own = replace(source, rate=None).mean_rate
    return replace(few, rate=replace(few, rate=None).mean_rate * source.rate / own)
