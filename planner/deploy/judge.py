"""A load test against the plan: which SLOs hold, which predictions are off, and what to measure again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.documents.load_tests import LoadTest
from planner.documents.names import did_you_mean
from planner.errors import SpecError
from planner.plan import Group, Plan, PredictedLatency, ServicePrediction
from planner.specs import Metric, Phase, SloTarget, Statistic, Workload

_CLOSE = 0.1
"""Relative difference of loads, and of predictions, that counts as none. [1]"""
_KEPT_UP = 0.95
"""Share of the offered rate that an unsaturated fleet serves; the last requests of a test end late. [1]"""
_TAIL = 1.3
"""How much more a tail may be off than its median before the wait is at fault. [1]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class SloVerdict:
    """One bound against what was measured; None: it was not measured. [s]"""

    target: SloTarget
    measured: float | None

    @property
    def passed(self) -> bool | None:
        return None if self.measured is None else self.measured <= self.target.limit


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionVerdict:
    """One predicted statistic, with its 80 % interval, against what was measured. [s]"""

    metric: Metric
    statistic: Statistic
    measured: float
    expected: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """Measured over expected. [1]"""
        return self.measured / self.expected if self.expected > 0 else math.inf

    @property
    def within(self) -> bool:
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The verdict on a plan.

    Attributes
    ----------
    unlike : tuple of str
        How the test's load is not the plan's: predictions are then of something else.
    failures : tuple of str
        What fails beside SLOs: failed requests, a rate that was not kept up with.
    advice : tuple of str
        What to measure or correct.
    """

    service: str
    slo: tuple[SloVerdict, ...]
    predictions: tuple[PredictionVerdict, ...]
    unlike: tuple[str, ...]
    failures: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Every SLO was measured and holds, and nothing else failed."""
        return all(verdict.passed for verdict in self.slo) and not self.failures


def prediction_of(plan: Plan, service: str | None) -> ServicePrediction:
    """The service that a load test is of.

    Raises
    ------
    SpecError
        There is no such service, or several and none is named.
    """
    names = [prediction.service for prediction in plan.predictions]
    if service is None and len(names) == 1:
        return plan.predictions[0]
    if service is None:
        raise SpecError(
            f"the plan has {len(names)} services, of which one has to be named: {'; '.join(names)}"
        )
    if service not in names:
        hint = did_you_mean(service, names) or f"there is: {'; '.join(names)}"
        raise SpecError(f"there is no service {service!r} ({hint})")
    return plan.predictions[names.index(service)]


def judge(
    measured: LoadTest, prediction: ServicePrediction, workload: Workload, groups: Sequence[Group]
) -> Judgement:
    """A load test against what the plan predicts for a service with this workload on these groups."""
    slo = tuple(
        SloVerdict(target=target, measured=measured.latencies.get((target.metric, target.statistic)))
        for target in prediction.slo
    )
    predictions = tuple(_compared(measured, prediction))
    unlike = tuple(_unlike(measured, prediction, workload))
    failures = tuple(_failures(measured))
    return Judgement(
        service=prediction.service,
        slo=slo,
        predictions=predictions,
        unlike=unlike,
        failures=failures,
        advice=tuple(_advice(slo, predictions, unlike, failures, groups, workload)),
    )


def _compared(measured: LoadTest, prediction: ServicePrediction) -> Iterator[PredictionVerdict]:
    latencies: tuple[PredictedLatency, ...] = (prediction.ttft, prediction.tpot)
    for latency in latencies:
        for statistic in Statistic:
            found = measured.latencies.get((latency.metric, statistic))
            if found is not None:
                yield PredictionVerdict(
                    metric=latency.metric,
                    statistic=statistic,
                    measured=found,
                    expected=getattr(latency.expected, statistic),
                    low=getattr(latency.low, statistic),
                    high=getattr(latency.high, statistic),
                )


def _unlike(measured: LoadTest, prediction: ServicePrediction, workload: Workload) -> Iterator[str]:
    """What of the test's load is not the plan's."""
    lengths = workload.lengths
    pairs = (
        ("prompts", measured.prompt, lengths.isl.mean, "tokens"),
        ("answers", measured.output, lengths.osl.mean, "tokens"),
        ("the offered rate", measured.request_rate, prediction.request_rate, "req/s"),
    )
    for name, found, planned, unit in pairs:
        if found is None:
            yield f"{_sent(measured)}; the plan is for {planned:.4g} {unit}"
        elif abs(found - planned) > _CLOSE * planned:
            yield f"{name}: {found:.4g} {unit} in the test, {planned:.4g} in the plan"


def _sent(measured: LoadTest) -> str:
    """How requests were sent, where not at a rate."""
    if not measured.load_known:
        return "the file does not say how requests were sent"
    if measured.concurrency is not None:
        return f"requests came from {measured.concurrency:g} clients in a closed loop"
    return "all requests came at once"


def _failures(measured: LoadTest) -> Iterator[str]:
    if measured.failed:
        yield f"{measured.failed:,} of {measured.failed + measured.completed:,} requests failed"
    offered, served_rate = measured.request_rate, measured.throughput
    if offered is not None and served_rate is not None and served_rate < _KEPT_UP * offered:
        served = f"{served_rate:.4g} of {offered:.4g} req/s"
        yield f"served {served}: the fleet, or the client, does not keep up"


def _advice(
    slo: tuple[SloVerdict, ...],
    predictions: tuple[PredictionVerdict, ...],
    unlike: tuple[str, ...],
    failures: tuple[str, ...],
    groups: Sequence[Group],
    workload: Workload,
) -> Iterator[str]:
    if any(verdict.passed is None for verdict in slo):
        yield "not every SLO was measured: run the load test with --metric-percentiles 50,90,95,99"
    if unlike:
        yield "the test was of another load: predictions cannot be judged; run the plan's load-test script"
        return
    if any("keep up" in failure for failure in failures):
        yield "queues grew: look at latencies at a lower rate first, then at which engines are busy"
    off = {(v.metric, v.statistic): v for v in predictions if not v.within and abs(v.ratio - 1) > _CLOSE}
    tpot = _typical(off, Metric.TPOT)
    ttft = _typical(off, Metric.TTFT)
    tail = off.get((Metric.TTFT, Statistic.P99))
    if tpot is not None:
        yield f"decode steps take {tpot.ratio:.2f} times what is predicted: {_point(groups, workload)}"
    if ttft is not None and tpot is not None and abs(ttft.ratio / tpot.ratio - 1) <= _CLOSE:
        yield f"TTFT is off by the same factor, {ttft.ratio:.2f}: the point corrects both"
    elif ttft is not None:
        yield (
            f"prompts take {ttft.ratio:.2f} times what is predicted, at the median: compare one prefill "
            "engine alone (planner predict --concurrency 1), then the transfer of KV caches and the network"
        )
    elif tail is not None and tail.ratio > _TAIL:
        yield (
            f"only the tail of TTFT is off, {tail.ratio:.2f} times: waits, not kernels; look at the router's "
            "policy, bursts (workload: arrivals) and engines that get more than their share"
        )


def _typical(
    off: Mapping[tuple[Metric, Statistic], PredictionVerdict], metric: Metric
) -> PredictionVerdict | None:
    """The verdict that says most of kernels: on the median, else the mean."""
    return off.get((metric, Statistic.P50)) or off.get((metric, Statistic.MEAN))


def _point(groups: Sequence[Group], workload: Workload) -> str:
    """How to measure what corrects predictions of a model on an engine."""
    decode = [group for group in groups if group.phase is not Phase.PREFILL]
    batch = max(round(decode[0].mean_batch), 1) if decode else 1
    isl, osl = round(workload.lengths.isl.mean), round(workload.lengths.osl.mean)
    how = f"vllm bench serve --max-concurrency {batch}, {isl} and {osl} tokens"
    return (
        f"measure one engine in a closed loop ({how}) "
        "and give it as measured: in the scenario, then solve again"
    )
