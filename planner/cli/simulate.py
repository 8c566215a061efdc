"""``planner simulate`` and ``planner evaluate``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from planner.cli.output import echo_json, progress, width
from planner.cli.simulation_facts import evaluation_facts, simulation_facts
from planner.documents.files import check_writable
from planner.documents.trace_file import read_trace
from planner.documents.trace_times import SCALES
from planner.errors import SpecError, VerificationError
from planner.evaluation import Standing, standing_file
from planner.evaluation import evaluate as evaluate_standing
from planner.queueing import normal_quantile
from planner.simulator.build import Preemption, Setup
from planner.simulator.cluster import Failure, LoadMeasure, Router
from planner.simulator.metrics import measure
from planner.simulator.run import run_fleet, simulate_fleet
from planner.simulator.source import RequestSource
from planner.specs import SchedulerPolicy
from planner.traces import Trace

MATCH = "match"
_SHOWN, _DRAWN, _LOGGED = 24, 200, 500_000  # requests of a timeline, of its run, and its activities
MOST_REQUESTS = 50_000_000
Command = TypeVar("Command", bound=Callable[..., Any])


def _setup_options(command: Command) -> Command:
    """How a fleet is simulated."""
    options = (
        click.option(
            "--confidence",
            type=click.FloatRange(0, 1, min_open=True, max_open=True),
            help="Quantile of the model error to simulate at; 0.5: expected step times. Default: the file's.",
        ),
        click.option(
            "--router",
            type=click.Choice([r.value for r in Router]),
            help="How the front door picks a replica; default: the file's routing.",
        ),
        click.option(
            "--measure",
            "load_measure",
            type=click.Choice([m.value for m in LoadMeasure]),
            default=LoadMeasure.WORK.value,
            show_default=True,
            help="What least_loaded and power_of_two compare.",
        ),
        click.option(
            "--policy",
            type=click.Choice([p.value for p in SchedulerPolicy]),
            help="Of colocated replicas; default: the engine's.",
        ),
        click.option(
            "--preemption",
            type=click.Choice([p.value for p in Preemption]),
            default=Preemption.RECOMPUTE.value,
            show_default=True,
            help="Of sequences whose KV blocks older ones need.",
        ),
        click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--trace", type=click.Path(path_type=Path), help="Replay it; see `planner workload`.")
@click.option("--unit", type=click.Choice(list(SCALES)), help="Of the trace's timestamps.")
@click.option(
    "--rate-scale",
    metavar="X",
    help="Times the rate: that of the trace, else the plan's. \"match\": play the trace at the plan's rate.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Requests per second, instead of that.")
@click.option("--cv", type=click.FloatRange(0, 100), help="Of the times between drawn arrivals; 1: Poisson.")
@click.option(
    "--schedule",
    metavar="S:RATE,...",
    help="Rates one after the other: seconds and requests per second, e.g. 600:10,300:40.",
)
@click.option("--requests", type=click.IntRange(1, MOST_REQUESTS), help="Default: until it is sure.")
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
@_setup_options
def simulate(
    plan: Path,
    trace: Path | None,
    unit: str | None,
    rate_scale: str | None,
    rate: float | None,
    cv: float | None,
    schedule: str | None,
    requests: int | None,
    failures: tuple[str, ...],
    prefix_cache: bool | None,
    plot: Path | None,
    timeline: Path | None,
    series: bool,
    as_json: bool,
    seed: int,
    **how: Any,
) -> None:
    """Will it hold? Send requests through the fleet of PLAN (a file of `planner solve -o`, or a fleet file).

    Without options the requests are those that the plan was made for. A trace keeps its own rate unless
    --rate-scale or --rate says otherwise. Exit code 5: an SLO is missed, or queues grow without end.
    """
    for path in (plot, timeline):
        if path is not None:
            check_writable(path)
    started = time.process_time()
    standing = standing_file(plan)
    source = _source(standing, trace, unit, prefix_cache, schedule, seed)
    source = replace(source, rate=_rate(standing, source, trace is not None, rate_scale, rate))
    if cv is not None:
        if source.replay:
            raise SpecError("--cv: a replayed trace keeps its own arrivals")
        source = replace(source, workload=replace(source.workload, arrival_scv=cv**2))
    setup, confidence = _setup(standing, how)
    setup = replace(setup, failures=tuple(_failure(standing, text) for text in failures))
    with progress("simulating") as on_stage:
        result = simulate_fleet(
            standing.fleet, source, setup, number=requests, names=standing.names, on_stage=on_stage
        )
        if plot is not None or timeline is not None:
            _pictures(standing, source, setup, result.requests, plot, timeline)
    facts = simulation_facts(result, standing, confidence, time.process_time() - started, series)
    if as_json:
        echo_json(facts)
    else:
        from planner.report.simulation import print_simulation  # rich: only where tables are printed

        print_simulation(facts, _title(standing), width())
        for path in (plot, timeline):
            if path is not None:
                click.echo(f"\npicture written to {path}")
    if not result.passed:
        raise VerificationError("the fleet does not hold: " + "; ".join(facts["failures"]))


@click.command()
@click.argument("fleet", type=click.Path(path_type=Path))
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Also look at this rate. [req/s]")
@click.option(
    "--requests", type=click.IntRange(1, MOST_REQUESTS), help="Of a run. Default: until it is sure."
)
@_setup_options
def evaluate(
    fleet: Path, rate: float | None, requests: int | None, as_json: bool, seed: int, **how: Any
) -> None:
    """Score a hand-written or running FLEET: the most it carries within the SLOs, and what breaks first.

    FLEET is a fleet file (groups, model, workload, SLOs; `planner schema fleet`), or a plan. Exit code 5:
    the fleet does not carry the rate that its file, or --rate, gives.
    """
    started = time.process_time()
    standing = standing_file(fleet)
    standing = replace(standing, source=replace(standing.source, seed=seed))
    setup, confidence = _setup(standing, how)
    with progress("simulating") as on_stage:
        found = evaluate_standing(
            standing, setup, offered=rate or standing.offered, number=requests, on_stage=on_stage
        )
    facts = evaluation_facts(found, standing, confidence, time.process_time() - started)
    if as_json:
        echo_json(facts)
    else:
        from planner.report.simulation import print_evaluation  # rich: only where tables are printed

        print_evaluation(facts, _title(standing), width())
    if found.at_offered is not None and not found.at_offered.passed:
        raise VerificationError("the fleet does not carry the given rate within its SLOs")


# --------------------------------------------------------------------------------------------


def _title(standing: Standing) -> str:
    groups = ", ".join(
        f"{g.replicas} x {g.item.gpu.name} {g.parallelism} {g.phase}" for g in standing.fleet.groups
    )
    return f"{standing.fleet.service.model.name}: {groups}"


def _setup(standing: Standing, how: dict[str, Any]) -> tuple[Setup, float]:
    confidence = how["confidence"] or standing.confidence
    setup = Setup(
        z=float(normal_quantile(confidence)),
        router=Router(how["router"]) if how["router"] else None,
        measure=LoadMeasure(how["load_measure"]),
        policy=SchedulerPolicy(how["policy"]) if how["policy"] else None,
        preemption=Preemption(how["preemption"]),
        input_ranges=standing.input_ranges,
    )
    return setup, confidence


def _source(
    standing: Standing,
    trace: Path | None,
    unit: str | None,
    prefix_cache: bool | None,
    schedule: str | None,
    seed: int,
) -> RequestSource:
    source = replace(standing.source, seed=seed)
    if trace is not None:
        read = read_trace(trace, unit=unit)
        _check_lengths(read, standing)
        source = replace(source, trace=read, replay=True, rate=None)
    if schedule is not None:
        if trace is not None:
            raise SpecError("--schedule: a replayed trace keeps its own arrivals")
        source = replace(source, schedule=_schedule(schedule), replay=False)
    hashes = source.replay and source.trace is not None and source.trace.blocks is not None
    if prefix_cache and not hashes:
        raise SpecError("--prefix-cache: only a replayed trace with block hashes has one")
    asked = trace is not None if prefix_cache is None else prefix_cache
    return replace(source, prefix_cache=hashes and asked)


def _check_lengths(trace: Trace, standing: Standing) -> None:
    room = standing.fleet.service.model.max_context
    beyond = trace.beyond(room)
    if beyond.size:
        i = int(beyond[0])
        raise SpecError(
            f"{trace.source}: {beyond.size:,} of {trace.requests:,} requests need more than the {room:,} "
            f"tokens that {standing.fleet.service.model.name} takes, the first on line {trace.lines[i]}: "
            f"{trace.isl[i]:,} + {trace.osl[i]:,}"
        )


def _rate(
    standing: Standing, source: RequestSource, traced: bool, scale: str | None, rate: float | None
) -> float | None:
    """The rate to play at; None: the trace's own. [req/s]"""
    if rate is not None and scale is not None:
        raise SpecError("--rate and --rate-scale: give one of them")
    if rate is not None:
        return rate
    if scale is None:
        return None if traced else source.rate
    if scale == MATCH:
        if not source.replay:
            raise SpecError("--rate-scale match: only a trace is brought to the plan's rate; give a number")
        return standing.fleet.service.workload.request_rate
    try:
        factor = float(scale)
    except ValueError:
        factor = 0.0
    if not 0 < factor < float("inf"):
        raise SpecError(f'--rate-scale: give a number > 0 or "match", got {scale!r}')
    return source.mean_rate * factor


def _schedule(text: str) -> tuple[tuple[float, float], ...]:
    try:
        pieces = [tuple(float(x) for x in piece.split(":")) for piece in text.split(",")]
    except ValueError:
        pieces = []
    if not pieces or any(len(piece) != 2 for piece in pieces):
        raise SpecError(f"--schedule: give seconds and rates, e.g. 600:10,300:40, got {text!r}")
    return tuple((piece[0], piece[1]) for piece in pieces)


def _failure(standing: Standing, text: str) -> Failure:
    """GROUP[#N]@T[-T2], with GROUP the name of a group or the start of one that only one has."""
    place, _, times = text.rpartition("@")
    name, _, number = place.partition("#")
    start, _, until = times.partition("-")
    try:
        at, back = float(start), float(until) if until else float("inf")
        replica = int(number) if number else 1
    except ValueError:
        raise SpecError(f"--fail: give GROUP@T, GROUP@T-T2 or GROUP#N@T, got {text!r}") from None
    if not place or not 0 <= at < back:
        raise SpecError(f"--fail: give GROUP@T or GROUP@T-T2 with 0 <= T < T2, got {text!r}")
    near = [n for n in standing.names if n.startswith(name)]
    group = standing.group(near[0] if len(near) == 1 else name)
    replicas = standing.fleet.groups[group].replicas
    if not 1 <= replica <= replicas:
        raise SpecError(f"--fail: {standing.names[group]} has replicas 1 to {replicas}, got {replica}")
    return Failure(group=group, replica=replica - 1, time=at, until=back)


def _pictures(
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

        short = run_fleet(standing.fleet, source, _DRAWN, setup, names=standing.names, log_capacity=_LOGGED)
        save_timeline([fleet_timeline(short, _title(standing), _SHOWN)], timeline)
