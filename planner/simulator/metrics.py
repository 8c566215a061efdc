"""What a run says: latencies with their confidence, goodput, and how full everything was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.plan import LatencySummary
from planner.results import Result
from planner.simulator import kernel
from planner.simulator.cluster import Outcome
from planner.specs import Metric, Phase, Slo, SloTarget

BATCHES = 20
T_QUANTILE = 2.093  # Student's t, 19 degrees of freedom, 97.5 % [1]
SURE = 0.02  # half-width over estimate at which a percentile is known [1]
WARM_SHARE, COOL_SHARE = 0.1, 0.02  # of the arrivals, at least
MOST_WARM, MOST_COOL = 0.5, 0.25
WARM_RESIDENCES = 3.0  # times that a long request stays, before anything is measured
GROWING_SHARE = 0.01  # of the arrivals by which the backlog grows: no steady state
GROWING_T = 4.0  # and t statistic of that trend
CLASS_EDGES = (0.5, 0.9, 0.99)  # quantiles of the prompt length at which classes are cut
_PERCENTILES = (0.5, 0.9, 0.95, 0.99)
_NAMES = ("mean", "p50", "p90", "p95", "p99")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A latency over the measured requests, and half of its 95 % confidence interval. [s]

    ``requests`` is how many have it. Requests that were not served count as infinite.
    """

    requests: int
    value: LatencySummary
    half_width: LatencySummary


@dataclass(frozen=True, kw_only=True, slots=True)
class SloCheck:
    """One SLO against what was measured. [s]

    ``exact``: the requests are those of a trace, and the value is theirs, whatever another day may bring.
    """

    target: SloTarget
    value: float
    half_width: float
    exact: bool = False

    @property
    def met(self) -> bool:
        """Whether the estimate is within the limit; where it is not known well, its whole interval."""
        return self.value + (0.0 if self.sure else self.half_width) <= self.target.limit

    @property
    def sure(self) -> bool:
        """Whether the estimate is known well enough, see :data:`SURE`."""
        return self.exact or self.half_width <= SURE * self.value or self.value == 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupUse:
    """A group over the whole run; of prefill replicas the batch is that of prompts per step.

    Attributes
    ----------
    busy : share of time in steps. [1]
    mean_batch : sequences per decoding step.
    kv_mean, kv_most : share of the KV cache in use; the second of the fullest replica. [1]
    egress, ingress : load of the NICs. [1]
    request_rate : requests completed here (prefill: handed over). [req/s]
    token_rate : tokens emitted. [tok/s]
    """

    name: str
    phase: Phase
    replicas: int
    busy: float
    mean_batch: float
    kv_mean: float
    kv_most: float
    egress: float
    ingress: float
    request_rate: float
    token_rate: float
    preemptions: int
    swaps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassResult:
    """Requests whose prompt has at most `most` tokens, and more than the class before."""

    least: int
    most: int
    requests: int
    ttft: LatencySummary
    tpot: LatencySummary
    attainment: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TimeSeries:
    """Figures of one group at the instants `time`; arrays of shape (times,).

    Attributes
    ----------
    time : [s]
    queue : requests that wait, for their prompt or for room to decode.
    batch : sequences that decode.
    transfers : KV caches under way.
    kv : share of the KV cache in use. [1]
    busy : share of lanes in a step. [1]
    link : load of the NICs since the instant before. [1]
    token_rate : emitted since the instant before. [tok/s]
    """

    name: str
    phase: Phase
    time: FloatArray
    queue: FloatArray
    batch: FloatArray
    transfers: FloatArray
    kv: FloatArray
    busy: FloatArray
    link: FloatArray
    token_rate: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SimulationResult(Result):
    """What a simulated fleet did.

    Attributes
    ----------
    source : str
        What the requests were.
    requests, measured : int
        In all, and those that count: after warm-up, before the end.
    unserved, rejected : int
        Of the measured: not ended, and among these those that fit into no replica's KV cache.
    request_rate : float
        Offered, over the measured window. [req/s]
    ttft, tpot, itl, e2e : Measured
        ITL is over all gaps between tokens of the run, in bins 1 % wide. Where a draft's tokens are verified
        it is over the gaps between steps, each of which emits several at once.
    attainment, goodput : float
        Share of requests, and requests per second, that meet every SLO. A request meets a latency's SLOs
        if it is within the limit of the highest percentile asked for. [1, req/s]
    stall_mean, stall_share : float
        Time that a request's decoding was held up by prompts of others or for want of memory, and its
        share of the decoding. [s, 1]
    wait_mean, prefill_mean, transfer_mean : float
        Parts of TTFT: until the first chunk of the prompt starts, until its last ends, until the KV
        cache has arrived. [s]
    growth : float
        Trend of the number of requests that wait for a first token; 0 where it is not significant. [req/s]
    prefix_hit_rate : float or None
        Share of prompt tokens found in a simulated prefix cache. [1]
    duration : float
        Until the last event. [s]
    checks : tuple of SloCheck
    """

    source: str
    requests: int
    measured: int
    unserved: int
    rejected: int
    request_rate: float
    ttft: Measured
    tpot: Measured
    itl: Measured
    e2e: Measured
    attainment: float
    goodput: float
    stall_mean: float
    stall_share: float
    wait_mean: float
    prefill_mean: float
    transfer_mean: float
    growth: float
    prefix_hit_rate: float | None
    preemptions: int
    duration: float
    checks: tuple[SloCheck, ...]
    groups: tuple[GroupUse, ...]
    replicas: tuple[GroupUse, ...]
    classes: tuple[ClassResult, ...]
    series: tuple[TimeSeries, ...]
    notes: tuple[str, ...] = ()

    @property
    def growing(self) -> bool:
        """Whether queues grow without end."""
        return self.growth > 0

    @property
    def passed(self) -> bool:
        """Whether every SLO is met and a steady state was seen."""
        return not self.growing and all(check.met for check in self.checks)

    @property
    def sure(self) -> bool:
        """Whether more requests would not change the verdict: every SLO's statistic is known to 2 %, or one
        is missed beyond doubt."""
        missed = any(c.value - c.half_width > c.target.limit for c in self.checks)
        return missed or self.growing or all(c.sure for c in self.checks)


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """Of each measured request; nan where it has none, inf where it was not served. [s]"""

    ttft: FloatArray
    tpot: FloatArray
    e2e: FloatArray


def measure(outcome: Outcome, slo: Slo) -> SimulationResult:
    """Evaluate a run; a replayed trace is measured from its first request to its last."""
    window = measured_window(outcome)
    records = outcome.request[window]
    latencies = _latencies(records)
    good = meets(latencies.ttft, latencies.tpot, slo)
    span = float(records["arrival"][-1] - records["arrival"][0]) if len(records) > 1 else 0.0
    rate = (len(records) - 1) / span if span > 0 else 0.0
    attainment = float(good.mean())
    ttft, tpot = _measured(latencies.ttft), _measured(latencies.tpot)
    groups = tuple(_group_use(outcome, n) for n in range(len(outcome.cluster.groups)))
    done = records["state"] == kernel.DONE  # columns one by one: a copy of all records takes too much room
    decoding = float((records["last"][done] - records["first"][done]).sum())
    control = outcome.control
    asked = int(control["asked"][0])
    return SimulationResult(
        source=outcome.requests.name,
        requests=outcome.requests.number,
        measured=len(records),
        unserved=int(np.count_nonzero(records["state"] != kernel.DONE)),
        rejected=int(np.count_nonzero(records["state"] == kernel.REJECTED)),
        request_rate=rate,
        ttft=ttft,
        tpot=tpot,
        itl=_gaps(outcome.gaps),
        e2e=_measured(latencies.e2e),
        attainment=attainment,
        goodput=attainment * rate,
        stall_mean=_mean(records["stall"][done]),
        stall_share=float(records["stall"][done].sum()) / decoding if decoding > 0 else 0.0,
        wait_mean=_mean(records["begun"][done] - records["arrival"][done]),
        prefill_mean=_mean(records["prompted"][done] - records["begun"][done]),
        transfer_mean=_mean(np.nan_to_num(records["joined"][done] - records["prompted"][done])),
        growth=_growth(outcome),
        prefix_hit_rate=int(control["hits"][0]) / asked if asked else None,
        preemptions=sum(g.preemptions for g in groups),
        duration=outcome.end,
        checks=tuple(
            _check(t, ttft if t.metric is Metric.TTFT else tpot, outcome.requests.replayed)
            for t in slo.targets
        ),
        groups=groups,
        replicas=tuple(_replica_use(outcome, r) for r in range(len(outcome.replica))),
        classes=_classes(records, latencies, good),
        series=_series(outcome),
        notes=(*outcome.requests.notes, *_bursts(outcome)),
    )


def _bursts(outcome: Outcome) -> tuple[str, ...]:
    """What to say of ITL where steps emit several tokens."""
    emitted = outcome.cluster.tokens_per_step
    if emitted == 1.0:
        return ()
    return (f"ITL is the time between steps, each of which emits {emitted:.4g} tokens at once on average",)


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else 0.0


# --------------------------------------------------------------------------------------------
# Requests


def measured_window(outcome: Outcome) -> slice:
    """Requests that count: neither those that find an empty fleet, nor those that end in one.

    Where replicas fail, all from the first failure on count.
    """
    arrival, number = outcome.request["arrival"], outcome.requests.number
    if outcome.requests.replayed or number < 2 * BATCHES:
        return slice(0, number)
    span = float(arrival[-1] - arrival[0])
    stay = outcome.request["last"] - arrival
    stay = stay[np.isfinite(stay)]
    long = float(np.quantile(stay, 0.9)) if stay.size else 0.0
    warm = min(max(WARM_SHARE * span, WARM_RESIDENCES * long), MOST_WARM * span)
    cool = min(max(COOL_SHARE * span, long), MOST_COOL * span)
    warm = min([warm, *(f.time - float(arrival[0]) for f in outcome.cluster.failures)])
    start, stop = np.searchsorted(arrival, (arrival[0] + warm, arrival[-1] - cool))
    return slice(int(start), max(int(stop), int(start) + BATCHES))


def measured_latencies(outcome: Outcome) -> Latencies:
    """Latencies of the requests that count, by arrival."""
    return _latencies(outcome.request[measured_window(outcome)])


def _latencies(records: NDArray[Any]) -> Latencies:
    lost = records["state"] != kernel.DONE
    ttft = np.where(np.isnan(records["first"]), math.inf, records["first"] - records["arrival"])
    several = np.maximum(records["osl"] - 1, 1)
    tpot = np.where(lost, math.inf, (records["last"] - records["first"]) / several)
    tpot = np.where(records["osl"] > 1, tpot, math.nan)
    e2e = np.where(lost, math.inf, records["last"] - records["arrival"])
    return Latencies(ttft, tpot, e2e)


def meets(ttft: FloatArray, tpot: FloatArray, slo: Slo) -> NDArray[np.bool_]:
    """Which requests are within the limits; without a TPOT, any limit on it is met. [s]"""
    good = np.isfinite(ttft)
    for metric, values in ((Metric.TTFT, ttft), (Metric.TPOT, tpot)):
        targets = slo.of(metric)
        if targets:
            highest = max(targets, key=lambda t: t.statistic.probability or 0.0)
            good &= np.isnan(values) | (values <= highest.limit)
    return np.asarray(good)


def _measured(values: FloatArray) -> Measured:
    """Estimates by sectioning: the spread over consecutive batches is that of the estimate."""
    values = values[~np.isnan(values)]
    if values.size == 0:
        nothing = LatencySummary(mean=0.0, p50=0.0, p90=0.0, p95=0.0, p99=0.0)
        return Measured(requests=0, value=nothing, half_width=nothing)
    whole = _statistics(values[None, :])[0]
    half = np.full(len(_NAMES), math.inf)
    if values.size >= 2 * BATCHES:
        size = values.size // BATCHES
        parts = _statistics(values[: BATCHES * size].reshape(BATCHES, size))
        with np.errstate(invalid="ignore"):
            half = T_QUANTILE * parts.std(axis=0, ddof=1) / math.sqrt(BATCHES)
    half = np.where(np.isfinite(half), half, math.inf)
    return Measured(requests=int(values.size), value=_summary(whole), half_width=_summary(half))


def _statistics(rows: FloatArray) -> FloatArray:
    """Mean and percentiles of each row, shape (rows, 5); nothing is interpolated, so that inf may occur."""
    with np.errstate(invalid="ignore"):
        quantiles = np.quantile(rows, _PERCENTILES, axis=1, method="higher")
    return np.column_stack([rows.mean(axis=1), *quantiles])


def _summary(values: Sequence[float] | FloatArray) -> LatencySummary:
    return LatencySummary(**{name: float(v) for name, v in zip(_NAMES, values, strict=True)})


def _gaps(counts: NDArray[np.int64]) -> Measured:
    """Times between tokens from their histogram; the middle of a bin stands for it."""
    total = int(counts.sum())
    if total == 0:
        return _measured(np.zeros(0))
    middle = kernel.GAP_SMALLEST * np.exp((np.arange(counts.size) + 0.5) / kernel.GAP_BINS_PER_E)
    share = np.cumsum(counts) / total
    quantiles = [float(middle[np.searchsorted(share, p)]) for p in _PERCENTILES]
    value = _summary([float(middle @ counts) / total, *quantiles])
    return Measured(requests=total, value=value, half_width=_summary([0.0] * len(_NAMES)))


def _check(target: SloTarget, measured: Measured, exact: bool) -> SloCheck:
    name = target.statistic.value
    return SloCheck(
        target=target,
        value=getattr(measured.value, name),
        half_width=getattr(measured.half_width, name),
        exact=exact,
    )


def _classes(records: NDArray[Any], latencies: Latencies, good: NDArray[np.bool_]) -> tuple[ClassResult, ...]:
    isl = records["isl"]
    edges = np.unique([*np.quantile(isl, CLASS_EDGES, method="higher"), isl.max()])
    results, least = [], int(isl.min())
    for edge in edges:
        inside = (isl >= least) & (isl <= edge)
        if inside.any():
            results.append(
                ClassResult(
                    least=least,
                    most=int(edge),
                    requests=int(inside.sum()),
                    ttft=_measured(latencies.ttft[inside]).value,
                    tpot=_measured(latencies.tpot[inside]).value,
                    attainment=float(good[inside].mean()),
                )
            )
        least = int(edge) + 1
    return tuple(results)


def _growth(outcome: Outcome) -> float:
    """Trend of the number of requests without a first token while they arrive. [req/s]

    Those that decode are left out: their number rises until a fleet is full, which is no queue. Least
    squares over the ends of 20 windows; what comes before the fleet is full is left out, at most half of the
    run. A trend counts where it is a hundredth of the arrivals or more, and beyond chance. Counts are alike
    for about as long as a request waits, so that so many windows tell no more than one.
    """
    arrival, first = outcome.request["arrival"], outcome.request["first"]
    span = float(arrival[-1] - arrival[0])
    if outcome.requests.replayed or len(arrival) < 10 * BATCHES or span <= 0:
        return 0.0
    answered = ~np.isnan(first)
    stay = (outcome.request["last"] - first)[outcome.request["state"] == kernel.DONE]
    filling = WARM_RESIDENCES * float(np.quantile(stay, 0.9)) if stay.size else 0.0
    start = min(max(WARM_SHARE * span, filling), MOST_WARM * span)
    times = arrival[0] + np.linspace(start, span, BATCHES + 1)
    answers = np.sort(np.where(answered, first, math.inf))
    waiting = np.searchsorted(arrival, times, side="right") - np.searchsorted(answers, times, side="right")
    x = times - times.mean()
    slope = float(x @ waiting) / float(x @ x)
    rest = waiting - waiting.mean() - slope * x
    alike = 1 + 2 * max(_mean((first - arrival)[answered]), 0.0) / float(times[1] - times[0])
    error = math.sqrt(alike * float(rest @ rest) / (BATCHES - 1) / float(x @ x))
    significant = slope > GROWING_T * error and slope > GROWING_SHARE * len(arrival) / span
    return slope if significant else 0.0


# --------------------------------------------------------------------------------------------
# Groups


def _group_use(outcome: Outcome, n: int) -> GroupUse:
    return _use(outcome, n, outcome.replica[outcome.replica["group"] == n])


def _replica_use(outcome: Outcome, r: int) -> GroupUse:
    return _use(outcome, int(outcome.replica["group"][r]), outcome.replica[r : r + 1])


def _use(outcome: Outcome, n: int, replicas: NDArray[Any]) -> GroupUse:
    group = outcome.cluster.groups[n]
    time = max(outcome.end, 1e-12) * len(replicas)
    steps = int(replicas["decode_steps"].sum())
    blocks = max(group.blocks, 1)
    return GroupUse(
        name=group.name,
        phase=group.phase,
        replicas=len(replicas),
        busy=float(replicas["busy"].sum()) / time / group.lanes,
        mean_batch=int(replicas["step_decodes"].sum()) / steps if steps else 0.0,
        kv_mean=float(replicas["used_time"].sum()) / time / blocks,
        kv_most=int(replicas["most_used"].max()) / blocks,
        egress=float(replicas["egress_busy"].sum()) / time,
        ingress=float(replicas["ingress_busy"].sum()) / time,
        request_rate=int(replicas["completed"].sum()) / max(outcome.end, 1e-12),
        token_rate=int(replicas["tokens"].sum()) / max(outcome.end, 1e-12),
        preemptions=int(replicas["preemptions"].sum()),
        swaps=int(replicas["swaps"].sum()),
    )


def _series(outcome: Outcome) -> tuple[TimeSeries, ...]:
    time = outcome.sample_times
    step = np.diff(time, prepend=0.0)
    series = []
    for n, group in enumerate(outcome.cluster.groups):
        figures = outcome.samples[:, n, :]
        queued, waiting, moving, batch, used, busy, _, out, into, tokens = figures.T
        link = np.maximum(*(np.diff(x, prepend=0.0) for x in (out, into))) / group.replicas
        series.append(
            TimeSeries(
                name=group.name,
                phase=group.phase,
                time=time,
                queue=queued + waiting,
                batch=batch,
                transfers=moving,
                kv=used / max(group.blocks * group.replicas, 1),
                busy=busy / (group.replicas * group.lanes),
                link=link / np.maximum(step, 1e-12),
                token_rate=np.diff(tokens, prepend=0.0) / np.maximum(step, 1e-12),
            )
        )
    return tuple(series)
