"""Timelines of simulated requests: a small example in ticks, and any fleet in seconds.

Colocated, a prompt holds up the answers of others; disaggregated, it does not. One replica of each kind and
a handful of requests show it, in whole ticks that can be worked out by hand; the same picture can be had of
every run of the simulator that notes activities.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import SpecError
from planner.fleet import Deployed, Fleet
from planner.simulator import kernel
from planner.simulator.build import Setup, cluster_of, holdings
from planner.simulator.cluster import Cluster, Holdings, Outcome, SimulatedGroup, run_cluster
from planner.simulator.compiled import COMPILING, is_compiled
from planner.simulator.requests import Requests
from planner.simulator.tables import Grids, StepTables
from planner.simulator.timeline import Activity, Segment, Timeline
from planner.specs import Phase, SchedulerPolicy
from planner.transformer import equivalent_tokens

MOST_REQUESTS = 40  # rows of a picture
MOST_TICKS = 500  # of a prompt, a step, a transfer
MOST_HORIZON = 5000  # ticks

_SHOWN = 6  # tokens of the last request that an example shows, where nobody says until when
_ROOM = 0.25  # of a fleet's picture, after the last first token
_NOISE = 1e-9  # less is rounding [s or ticks]
_TITLE = 80  # characters that fit above a picture
_KINDS = {
    kernel.PREFILL_KIND: Activity.PREFILL,
    kernel.TRANSFER_KIND: Activity.TRANSFER,
    kernel.DECODE_KIND: Activity.DECODE,
    kernel.STALL_KIND: Activity.STALL,
}
_WAITING = (kernel.PENDING, kernel.WAITING, kernel.HANDED, kernel.SWAPPED)
_Spans = list[tuple[Activity, float, float]]


def stage() -> str:
    """What the next simulation does first, for a progress line."""
    if is_compiled(kernel.run):
        return "simulating"
    return COMPILING


# --------------------------------------------------------------------------------------------
# Any run


def fleet_timeline(outcome: Outcome, title: str, first: int | None = None, unit: str = "s") -> Timeline:
    """What happened to the first requests of a run, until the last of them was served.

    The log has no activity that was under way when the run was stopped: let it go further than the picture.

    Parameters
    ----------
    outcome : Outcome
        Of a run with a log.
    first : int, optional
        Requests that are shown; None: all.
    unit : str
        Of the run's times.

    Raises
    ------
    SpecError
        The log was too short for the run.

    Notes
    -----
    Whatever is not in the log is time in a queue, with one exception: on a colocated replica, a sequence
    that has its prompt and no token yet is held up by the prompts of others.
    """
    if outcome.control["logged"][0] > len(outcome.log):
        raise SpecError(
            f"the timeline needs {int(outcome.control['logged'][0]):,} activities, and the run kept "
            f"{len(outcome.log):,}"
        )
    number = outcome.requests.number if first is None else min(first, outcome.requests.number)
    noted: list[_Spans] = [[] for _ in range(number)]
    for start, end, request, kind in outcome.log.tolist():
        if request < number:
            _note(noted[request], _KINDS[kind], start, end)
    arrivals = outcome.requests.arrival[:number].tolist()
    states = outcome.request["state"][:number].tolist()
    horizon = max([spans[-1][2] for spans in noted if spans] + arrivals)
    horizon = max(horizon, outcome.end) if set(states) & set(_WAITING) else horizon
    colocated = all(group.phase is Phase.COLOCATED for group in outcome.cluster.groups)
    return Timeline(
        title=title,
        unit=unit,
        horizon=horizon,
        arrivals=tuple(arrivals),
        segments=tuple(
            Segment(request=request, activity=activity, start=start, end=end)
            for request, spans in enumerate(noted)
            for activity, start, end in _with_waits(
                spans, arrivals[request], horizon if states[request] in _WAITING else 0.0, colocated
            )
        ),
        tokens=tuple(outcome.tokens[:number].tolist()),
    )


def _note(spans: _Spans, activity: Activity, start: float, end: float) -> None:
    """Add an activity to those of its request, which come by their ends.

    A stall is noted from the last token on, whatever was done for the request since.
    """
    if spans:
        start = max(start, spans[-1][2])
    if end - start <= _NOISE:
        return
    if spans and spans[-1][0] is activity and start - spans[-1][2] <= _NOISE:
        start = spans.pop()[1]
    spans.append((activity, start, end))


def _with_waits(spans: _Spans, arrival: float, end: float, colocated: bool) -> _Spans:
    """Activities with the time between them; `end`: until when the request waits after the last one."""
    found: _Spans = []
    before, reached = None, arrival
    for activity, start, stop in spans:
        if start - reached > _NOISE:
            held_up = colocated and before is Activity.PREFILL and activity is not Activity.PREFILL
            _note(found, Activity.STALL if held_up else Activity.QUEUED, reached, start)
        _note(found, activity, start, stop)
        before, reached = activity, stop
    _note(found, Activity.QUEUED, reached, end)
    return found


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Run:
    """Requests on one cluster; `activities`: at least as many as there are to log."""

    cluster: Cluster
    requests: Requests
    held: Holdings
    activities: int
    title: str
    unit: str = "s"
    seed: int = 0

    def outcome(self, until: float = math.inf, log_capacity: int = 0) -> Outcome:
        return run_cluster(
            self.cluster,
            self.requests,
            self.held,
            seed=self.seed,
            until=until,
            samples=0,
            log_capacity=log_capacity,
        )

    def timeline(self, horizon: float = math.inf) -> Timeline:
        """All requests up to a time, or to the end of the last one.

        Steps are noted when they end. So the run that is drawn goes on to the end of all requests, and
        another one, stopped at the horizon, says how many tokens there were.
        """
        timeline = fleet_timeline(self.outcome(log_capacity=self.activities), self.title, unit=self.unit)
        if math.isinf(horizon):
            return timeline
        return replace(
            timeline,
            horizon=horizon,
            segments=tuple(
                replace(s, end=min(s.end, horizon)) for s in timeline.segments if s.start < horizon
            ),
            tokens=tuple(self.outcome(until=horizon).tokens.tolist()),
        )


# --------------------------------------------------------------------------------------------
# An example in ticks


def toy_timeline(
    arrivals: Sequence[int],
    prefill: Sequence[int],
    *,
    horizon: int,
    colocated: bool,
    decode: int = 1,
    transfer: int = 0,
    chunk: int | None = None,
) -> Timeline:
    """Requests on one colocated replica, or on one for prompts and one that decodes.

    Answers do not end within the window. Only decode steps make tokens.

    Parameters
    ----------
    arrivals : sequence of int
        Not falling. [tick]
    prefill : sequence of int
        Time of each request's prompt. [tick]
    horizon : int
        End of the window. [tick]
    decode : int
        Time of a decode step, whatever its batch. [tick]
    transfer : int
        Time of a KV transfer, where there is one. [tick]
    chunk : int, optional
        Most prompt time in one step of the colocated replica, which decodes in it, too; None: prompts come
        first, one after the other, and stop the decoding. [tick]

    Raises
    ------
    SpecError
        Times that make no picture: negative, not in order, too large, nothing before the horizon.
    """
    _check(arrivals, prefill, horizon, decode, transfer, chunk)
    number = len(arrivals)
    chunk = chunk if colocated else None  # nothing else is in the steps of a prefill replica
    per_tick, places = _tick_in_tokens(prefill, chunk)
    budget = per_tick * (chunk or 1)
    isl = np.array([ticks * per_tick - spare for ticks, spare in zip(prefill, places, strict=True)])
    requests = Requests(
        arrival=np.array(arrivals, dtype=np.float64),
        isl=isl.astype(np.int32),
        osl=np.full(number, horizon // decode + 2, np.int32),
        cached=np.zeros(number, np.int32),
    )
    tables = _constant_tables(decode, number, per_tick, budget)

    def replica(phase: Phase) -> SimulatedGroup:
        return SimulatedGroup(
            name=str(phase),
            phase=phase,
            replicas=1,
            tables=tables,
            budget=budget,
            limit=number,
            blocks=number * (horizon + 2),
            fixed=float(transfer),
            prefill_first=phase is Phase.COLOCATED and chunk is None,
            emits=False,
        )

    phases = (Phase.COLOCATED,) if colocated else (Phase.PREFILL, Phase.DECODE)
    if not colocated:
        title = "disaggregated: one replica for prefill, one for decode"
    elif chunk is None:
        title = "colocated: one replica, prompts first"
    else:
        title = f"colocated: one replica, prompts in chunks of {chunk} tick" + ("s" if chunk > 1 else "")
    run = _Run(
        cluster=Cluster(
            groups=tuple(replica(phase) for phase in phases),
            grids=_GRIDS,
            pair_rates=np.full((len(phases), len(phases)), np.inf),
        ),
        requests=requests,
        held=Holdings.plain(np.ones(number, np.int32)),
        activities=2 * (int(requests.osl.sum()) + sum(prefill) + number),
        title=title,
        unit="tick",
    )
    return run.timeline(float(horizon))


def toy_horizon(arrivals: Sequence[int], prefill: Sequence[int], decode: int, transfer: int) -> int:
    """When the disaggregated replicas have made a few tokens of the last request. [tick]"""
    ready = 0
    for arrival, ticks in zip(arrivals, prefill, strict=True):
        ready = max(arrival, ready) + ticks
    return min(ready + transfer + _SHOWN * decode, MOST_HORIZON)


def _check(
    arrivals: Sequence[int],
    prefill: Sequence[int],
    horizon: int,
    decode: int,
    transfer: int,
    chunk: int | None,
) -> None:
    if not arrivals:
        raise SpecError("there are no requests: give arrivals")
    if len(arrivals) > MOST_REQUESTS:
        raise SpecError(f"{len(arrivals):,} requests are too many for a picture; at most {MOST_REQUESTS}")
    if len(prefill) != len(arrivals):
        raise SpecError(f"{len(arrivals)} requests arrive, and there are {len(prefill)} times of prefill")
    if list(arrivals) != sorted(arrivals):
        raise SpecError(f"arrivals must be in order, got {', '.join(map(str, arrivals))}")
    bounds = [("arrivals", tick, 0, MOST_HORIZON - 1) for tick in arrivals]
    bounds += [("prefill", ticks, 1, MOST_TICKS) for ticks in prefill]
    bounds += [("decode", decode, 1, MOST_TICKS), ("transfer", transfer, 0, MOST_TICKS)]
    bounds += [("chunk", 1 if chunk is None else chunk, 1, MOST_TICKS), ("horizon", horizon, 1, MOST_HORIZON)]
    for name, ticks, least, most in bounds:
        if not least <= ticks <= most:
            raise SpecError(f"{name} must be from {least} to {most:,} ticks, got {ticks:,}")
    if horizon <= arrivals[0]:
        raise SpecError(f"horizon {horizon:,} is not after the first arrival, at {arrivals[0]:,}")


def _tick_in_tokens(prefill: Sequence[int], chunk: int | None) -> tuple[int, list[int]]:
    r"""Prompt tokens that a tick stands for, and how many fewer each prompt has. [tok]

    Notes
    -----
    Without chunks a step is one tick of one prompt. With chunks of c ticks, an engine's step has room for
    :math:`c S` tokens, S a tick's, of which the d sequences that decode take d: so a prompt that lasts p
    ticks would fall behind :math:`\lceil p / c \rceil` chunks by a few tokens. It therefore has
    :math:`p S - s` tokens, with s at least the places that others take in its steps, and a step lasts
    :math:`\lceil tokens / S \rceil` ticks. As long as all the s together are less than S, prompts end at
    the ticks where they would if decoding took no places.
    """
    if chunk is None:
        return 1, [0] * len(prefill)
    others = len(prefill) - 1
    places = [others * (math.ceil(ticks / chunk) + 1) for ticks in prefill]
    return 1 + sum(places), places


_GRIDS = Grids(contexts=np.array([0.0, 1.0]), queries=np.array([1.0, 2.0]), pasts=np.array([0.0, 1.0]))


def _constant_tables(decode: int, sequences: int, per_tick: int, budget: int) -> StepTables:
    """Steps that last as long whatever their batch and context, and prompts in ticks of their tokens."""
    nothing = np.zeros((sequences + 1, 2))
    steps = np.concatenate([np.zeros((1, 2)), np.full((sequences, 2), float(decode))])
    return StepTables(
        decode=steps,
        beside=steps,
        tokens=np.ceil(np.arange(budget + sequences + 1) / per_tick),
        head=nothing[:, 0],
        attention=np.zeros((2, 2)),
        launch=0.0,
        host=0.0,
        host_decode=0.0,
        host_sequence=0.0,
        decode_scale=1.0,
        prefill_scale=1.0,
    )


# --------------------------------------------------------------------------------------------
# Fleets


def fleet_timelines(
    fleets: Sequence[Fleet],
    requests: Requests,
    setups: Sequence[Setup],
    *,
    horizon: float | None = None,
    seed: int = 0,
) -> tuple[Timeline, ...]:
    """The same requests on several fleets, each empty at first, over one window.

    Parameters
    ----------
    requests : Requests
        All are shown, at most 40.
    setups : sequence of Setup
        One per fleet.
    horizon : float, optional
        End of the window; default: a little after the last request has its first token everywhere. [s]
    seed : int
        Of routers that draw lots.

    Raises
    ------
    SpecError
        Too many requests, a horizon before the first of them, a fleet outside what is modelled.
    """
    if requests.number > MOST_REQUESTS:
        raise SpecError(f"{requests.number:,} requests are too many for a picture; at most {MOST_REQUESTS}")
    first = float(requests.arrival[0])
    if horizon is not None and not first < horizon < math.inf:
        raise SpecError(f"horizon {horizon:g} s is not after the first arrival, at {first:.3g} s")
    runs = [
        _Run(
            cluster=cluster_of(fleet, setup),
            requests=requests,
            held=holdings(fleet, requests),
            activities=4 * int(requests.isl.sum(dtype=np.int64) + requests.osl.sum(dtype=np.int64)),
            title=fleet_title(fleet, setup),
            seed=seed,
        )
        for fleet, setup in zip(fleets, setups, strict=True)
    ]
    window = _window([run.timeline() for run in runs]) if horizon is None else horizon
    return tuple(run.timeline(window) for run in runs)


def _window(timelines: Sequence[Timeline]) -> float:
    """A time by which every request has decoded for a while, or is done. [s]"""
    last = max(
        segment.end
        for timeline in timelines
        for segment in timeline.segments
        if segment.activity in (Activity.PREFILL, Activity.TRANSFER)
    )
    return min((1 + _ROOM) * last, max(timeline.horizon for timeline in timelines))


def colocated_fleet(fleet: Fleet) -> Fleet:
    """The GPUs of a disaggregated fleet in the same replicas, each of which does both phases.

    Raises
    ------
    SpecError
        A replica cannot: attention ranks, or its KV cache holds prompts but not whole sequences.
    """
    service = fleet.service
    longest = service.workload.lengths.longest
    total = sum(group.replicas for group in fleet.groups)
    for group in fleet.groups:
        name = f"{group.item.gpu.name} {group.parallelism}"
        kv_cache = fleet.service_of(group).precision.kv_cache
        needed = math.ceil(equivalent_tokens(service.model, kv_cache, longest))
        if group.parallelism.dp > 1:
            raise SpecError(f"{name}: colocated replicas with several attention ranks are not modelled")
        if group.kv_tokens < needed:
            raise SpecError(
                f"{name}: the KV cache holds {group.kv_tokens:,} tokens, and the longest sequence needs "
                f"{needed:,}"
            )
    rate = service.workload.request_rate
    groups = (
        replace(group, phase=Phase.COLOCATED, rate=rate * group.replicas / total) for group in fleet.groups
    )
    return replace(fleet, groups=tuple(groups))


def fleet_title(fleet: Fleet, setup: Setup) -> str:
    """A fleet in one line."""
    if fleet.pool(Phase.COLOCATED):
        chunked = (setup.policy or fleet.engine.scheduler) is not SchedulerPolicy.PREFILL_FIRST
        head, tail = "colocated: ", ", chunked prefill" if chunked else ", prompts first"
        pools = [("prefill and decode on", fleet.groups)]
    else:
        head, tail = "disaggregated: ", ""
        pools = [("prefill on", fleet.pool(Phase.PREFILL)), ("decode on", fleet.pool(Phase.DECODE))]
    for name in (_gpus, _gpu_count):
        title = head + ", ".join(f"{what} {name(groups)}" for what, groups in pools) + tail
        if len(title) <= _TITLE:
            break
    return title


def _gpus(groups: Sequence[Deployed]) -> str:
    counts: dict[str, int] = {}
    for name, number in _sizes(groups):
        counts[name] = counts.get(name, 0) + number
    return " + ".join(f"{number} {name}" for name, number in counts.items())


def _gpu_count(groups: Sequence[Deployed]) -> str:
    number = sum(number for _, number in _sizes(groups))
    return f"{number:,} GPU" + ("s" if number != 1 else "")


def _sizes(groups: Sequence[Deployed]) -> Iterator[tuple[str, int]]:
    for group in groups:
        yield group.item.gpu.name, group.replicas * group.parallelism.num_gpus
