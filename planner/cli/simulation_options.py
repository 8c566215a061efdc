"""What ``simulate`` and ``evaluate`` are told about traffic, failures and schedulers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from planner.cli.options import Number
from planner.documents.names import did_you_mean
from planner.documents.trace_file import read_trace
from planner.errors import SpecError
from planner.queueing import normal_quantile
from planner.simulator.build import Preemption, Setup
from planner.simulator.cluster import Failure, LoadMeasure, Router
from planner.simulator.run import FEWEST_REQUESTS
from planner.simulator.run import MOST_REQUESTS as MOST_BY_DEFAULT
from planner.simulator.source import RequestSource
from planner.specs import Phase, SchedulerPolicy
from planner.standing import LEAST_RATE, MOST_RATE, Standing
from planner.traces import Trace
from planner.transformer import equivalent_tokens

MATCH = "match"
MOST_REQUESTS = 10_000_000  # of a run: 3.5 GB
_AFTER_FAILURES = 1.5  # times the last failure or recovery that a run lasts, at least
_NUMBER = r"(\d+\.?\d*(?:e[-+]?\d+)?)"
_FAILURE = re.compile(rf"(.+)@{_NUMBER}(?:-{_NUMBER})?", re.IGNORECASE)
Command = TypeVar("Command", bound=Callable[..., Any])


def setup_options(command: Command) -> Command:
    """How a fleet is simulated."""
    options = (
        click.option(
            "--confidence",
            type=Number(0.01, 0.99),
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
            help="What least_loaded and power_of_two compare; default: work.",
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


def setup_of(standing: Standing, how: dict[str, Any]) -> tuple[Setup, float]:
    """The setup, and the quantile of the model error that it stands for."""
    router = Router(how["router"]) if how["router"] else Router.of(standing.fleet.routing)
    if how["load_measure"] and router in (Router.ROUND_ROBIN, Router.RANDOM):
        raise SpecError(f"--measure: {router} compares nothing; least_loaded and power_of_two do")
    if how["policy"] and not standing.fleet.pool(Phase.COLOCATED):
        raise SpecError("--policy: the fleet has no colocated replicas")
    confidence = how["confidence"] or standing.confidence
    setup = Setup(
        z=float(normal_quantile(confidence)),
        router=router,
        measure=LoadMeasure(how["load_measure"] or LoadMeasure.WORK),
        policy=SchedulerPolicy(how["policy"]) if how["policy"] else None,
        preemption=Preemption(how["preemption"]),
        input_ranges=standing.input_ranges,
    )
    return setup, confidence


# --------------------------------------------------------------------------------------------
# Traffic


def source_of(standing: Standing, asked: dict[str, Any]) -> tuple[RequestSource, tuple[str, ...]]:
    """The requests that the options ask for, and notes on them.

    Raises
    ------
    SpecError
        For options that contradict one another, or that would change nothing.
    """
    _refuse_idle(asked)
    source = replace(standing.source, seed=asked["seed"])
    notes: tuple[str, ...] = ()
    if asked["trace"] is not None:
        trace = _trace(standing, asked["trace"], asked["unit"])
        source = replace(source, trace=trace, replay=True, rate=None)
        notes = (*trace.notes, *_beyond_engines(standing, trace))
    if asked["schedule"] is not None:
        source = replace(source, schedule=_schedule(asked["schedule"]), replay=False)
    if asked["requests"] is not None and source.replay:
        source = _first(source, asked["requests"])
    source = _at_rate(standing, source, asked["rate_scale"], asked["rate"])
    if asked["cv"] is not None:
        if source.replay:
            raise SpecError("--cv: a replayed trace keeps its own arrivals, and the traffic here is one")
        source = replace(source, workload=replace(source.workload, arrival_scv=asked["cv"] ** 2))
    source, more = _with_cache(standing, source, asked["prefix_cache"], asked["trace"] is not None)
    return source, (*notes, *more)


def _refuse_idle(asked: dict[str, Any]) -> None:
    """Options that contradict one another, or that need another one."""
    given = {name for name, value in asked.items() if value is not None}
    for one, other, why in (
        ("rate", "rate_scale", "give one of them"),
        ("schedule", "trace", "a replayed trace keeps its own arrivals"),
        ("schedule", "rate", "the schedule gives the rates; --rate-scale changes all of them"),
        ("schedule", "requests", "as many requests come as the schedule says"),
    ):
        if {one, other} <= given:
            options = " and ".join(f"--{name.replace('_', '-')}" for name in (one, other))
            raise SpecError(f"{options}: {why}")
    if "unit" in given and "trace" not in given:
        raise SpecError("--unit: of the timestamps of --trace, which is not given")


def _trace(standing: Standing, path: Path, unit: str | None) -> Trace:
    trace = read_trace("/dev/stdin" if str(path) == "-" else path, unit=unit)
    model = standing.fleet.service.model
    beyond = trace.beyond(model.max_context)
    if beyond.size:
        i = int(beyond[0])
        raise SpecError(
            f"{path}: {beyond.size:,} of {trace.requests:,} requests need more than the "
            f"{model.max_context:,} tokens that {model.name} takes, the first on line {trace.lines[i]}: "
            f"{trace.isl[i]:,} + {trace.osl[i]:,}; take them out of the trace"
        )
    return trace


def _beyond_engines(standing: Standing, trace: Trace) -> tuple[str, ...]:
    """A note on requests that the engines of a plan would refuse as the plan sets them."""
    if not standing.longest:
        return ()
    ranges = standing.input_ranges or ((0.0, math.inf),) * len(standing.longest)
    limits = np.full(trace.requests, math.inf)
    for (low, high), longest in zip(ranges, standing.longest, strict=True):
        served = (trace.isl >= low) & (trace.isl < high)
        limits[served] = np.minimum(limits[served], longest)
    beyond = limits[trace.isl + trace.osl > limits]
    if not beyond.size:
        return ()
    return (
        f"{beyond.size:,} of {trace.requests:,} requests need more than the plan's max_model_len of "
        f"{beyond.min():,.0f} tokens: engines that are set so refuse them, which the simulation does not",
    )


def _first(source: RequestSource, number: int) -> RequestSource:
    """The first requests of a replayed trace."""
    trace = source.trace
    assert trace is not None  # it is replayed
    if number > trace.requests:
        raise SpecError(f"--requests: the trace has {trace.requests:,} requests, got {number:,}")
    return replace(source, trace=trace.first(number))


def _at_rate(
    standing: Standing, source: RequestSource, scale: str | None, rate: float | None
) -> RequestSource:
    """The requests at the rate that is asked for; a trace that is given keeps its own otherwise."""
    if scale is None and rate is None:
        return source
    option = "--rate" if scale is None else "--rate-scale"
    trace = source.trace if source.replay else None
    if trace is not None and trace.duration == 0:
        number = f"{trace.requests:,} requests at once" if trace.requests > 1 else "one request"
        raise SpecError(f"{option}: {trace.name} has no rate to change: it is {number}")
    if scale is None:
        wanted = float(rate or 0.0)
    elif scale == MATCH:
        if trace is None:
            raise SpecError("--rate-scale match: only a replayed trace is brought to the plan's rate")
        if standing.offered is None:
            raise SpecError("--rate-scale match: the fleet file gives no request_rate; --rate does")
        wanted = standing.offered
    else:
        factor = _factor(scale)
        if source.schedule:
            return _checked_schedule(source, factor)
        wanted = source.mean_rate * factor
    if not LEAST_RATE <= wanted <= MOST_RATE:
        raise SpecError(
            f"{option}: must come to {LEAST_RATE:g} to {MOST_RATE:,.0f} req/s, got {wanted:.4g} req/s"
        )
    return replace(source, rate=wanted)


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < math.inf:
        hint = f" ({near})" if (near := did_you_mean(text, [MATCH])) else ""
        raise SpecError(f'--rate-scale: give a number > 0 or "match", got {text!r}{hint}')
    return factor


def _schedule(text: str) -> tuple[tuple[float, float], ...]:
    """Seconds and rates."""
    pieces = []
    for piece in text.split(","):
        try:
            duration, rate = (float(x) for x in piece.split(":"))
        except ValueError:
            rule = "give seconds and rates, e.g. 600:10,300:40"
            raise _bad_schedule(rule, piece or text) from None
        if not (0 < duration < math.inf and 0 <= rate <= MOST_RATE):
            raise _bad_schedule(f"seconds are > 0, and rates 0 to {MOST_RATE:,.0f} req/s", piece)
        pieces.append((duration, rate))
    expected = math.fsum(duration * rate for duration, rate in pieces)
    if not 1 <= expected <= MOST_REQUESTS:
        raise _bad_schedule(
            f"{expected:,.4g} requests would come, 1 to {MOST_REQUESTS:,} can be simulated", text
        )
    return tuple(pieces)


def _checked_schedule(source: RequestSource, factor: float) -> RequestSource:
    text = ",".join(f"{duration!r}:{rate * factor!r}" for duration, rate in source.schedule)
    return replace(source, schedule=_schedule(text))


def _bad_schedule(rule: str, value: str) -> SpecError:
    return SpecError(f"--schedule: {rule}, got {value!r}")


def _with_cache(
    standing: Standing, source: RequestSource, asked: bool | None, traced: bool
) -> tuple[RequestSource, tuple[str, ...]]:
    """With a simulated prefix cache where one is asked for, or where a given trace has block hashes."""
    trace = source.trace
    if not source.replay or trace is None or trace.blocks is None:
        if asked:
            raise SpecError("--prefix-cache: only a replayed trace with block hashes has one")
        return replace(source, prefix_cache=False), ()
    wanted = traced if asked is None else asked
    service = standing.fleet.service
    plain = np.array_equal(
        np.ceil(equivalent_tokens(service.model, service.precision.kv_cache, trace.isl.astype(np.float64))),
        trace.isl,
    )
    if wanted and not plain:
        why = f"{service.model.name} has layers that do not keep every token, for which no cache is simulated"
        if asked:
            raise SpecError(f"--prefix-cache: {why}")
        return replace(source, prefix_cache=False), (f"without prefix cache: {why}",)
    return replace(source, prefix_cache=wanted), ()


# --------------------------------------------------------------------------------------------
# Failures


def failures_of(standing: Standing, texts: Sequence[str]) -> tuple[Failure, ...]:
    """Failures of replicas; those of one replica that overlap are one."""
    times: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for text in texts:
        failure = _failure(standing, text)
        times.setdefault((failure.group, failure.replica), []).append((failure.time, failure.until))
    return tuple(
        Failure(group=group, replica=replica, time=start, until=until)
        for (group, replica), spans in times.items()
        for start, until in _united(spans)
    )


def _united(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    united: list[tuple[float, float]] = []
    for start, until in sorted(spans):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], until))
        else:
            united.append((start, until))
    return united


def _failure(standing: Standing, text: str) -> Failure:
    """GROUP[#N]@T[-T2], with GROUP the name of a group or the start of one that only one has."""
    match = _FAILURE.fullmatch(text)
    if match is None:
        raise SpecError(f"--fail: give GROUP@T, GROUP@T-T2 or GROUP#N@T, times in seconds, got {text!r}")
    place, at, back = match[1], float(match[2]), float(match[3] or "inf")
    if not at < back:
        raise SpecError(f"--fail: it has to fail before it is back, got {text!r}")
    name, numbered, number = place.rpartition("#")
    if place in standing.names or not numbered or not number.isdecimal():
        name, number = place, "1"
    group = _group(standing, name)
    replicas = standing.fleet.groups[group].replicas
    if not 1 <= int(number) <= replicas:
        has = f"replicas 1 to {replicas}" if replicas > 1 else "one replica"
        raise SpecError(f"--fail: {standing.names[group]} has {has}, got #{number}")
    return Failure(group=group, replica=int(number) - 1, time=at, until=back)


def _group(standing: Standing, name: str) -> int:
    starts = (name, f"{standing.fleet.service.name}-{name}")  # which groups of several services begin with
    near = [full for full in standing.names if full.startswith(starts)]
    if name not in standing.names and len(near) > 1:
        raise SpecError(f"--fail: {name!r} is the start of several groups: {', '.join(near)}")
    try:
        return standing.group(near[0] if name not in standing.names and near else name)
    except SpecError as error:
        raise SpecError(f"--fail: {error}") from None


def requests_with(failures: Sequence[Failure], source: RequestSource) -> int:
    """Requests of a run in which replicas fail: enough to see all of it."""
    times = [t for f in failures for t in (f.time, f.until) if math.isfinite(t)]
    lasting = math.ceil(_AFTER_FAILURES * max(times) * source.mean_rate)
    return min(max(FEWEST_REQUESTS, lasting), MOST_BY_DEFAULT)


def failed_too_late(standing: Standing, failures: Sequence[Failure], last: float) -> tuple[str, ...]:
    """Notes on failures after the last arrival. [s]"""
    return tuple(
        f"{standing.names[f.group]} fails at {_seconds(f.time)}, when no request comes any more (the last: "
        f"{_seconds(last)})"
        for f in failures
        if f.time > last
    )


def _seconds(time: float) -> str:
    return f"{time:,.0f} s" if time >= 100 else f"{time:.3g} s"
