"""Reports of GuideLLM (JSON): one run for each strategy of ``benchmarks``.

Time per token is what it calls inter-token latency, the mean of a request over its tokens after the first;
its "time per output token" counts the first token too. [src/guidellm/benchmark/schemas and
src/guidellm/schemas/request_stats.py of vllm-project/guidellm]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from planner.documents.files import file_error
from planner.documents.load_tests.record import NO_REQUEST, Arrivals, Fields, LoadTest
from planner.specs import Metric, Statistic
from planner.units import MILLI

GUIDELLM = "GuideLLM's JSON report"

_METRICS = {
    Metric.TTFT: ("time_to_first_token_ms", MILLI),
    Metric.TPOT: ("inter_token_latency_ms", MILLI),
    Metric.E2E: ("request_latency", 1.0),
}
_ARRIVALS = {"poisson": Arrivals.POISSON, "constant": Arrivals.CONSTANT}
_TRACE = "trace"


def is_guidellm(data: Mapping[str, Any]) -> bool:
    """Whether a document is of this form."""
    runs = data.get("benchmarks")
    return isinstance(runs, list) and all(isinstance(run, Mapping) and "metrics" in run for run in runs)


def guidellm_runs(report: Fields, name: str) -> Iterator[LoadTest]:
    """Every run of a report."""
    runs = report.data["benchmarks"]
    if not runs:
        raise file_error(report.path, "benchmarks is empty")
    for number, run in enumerate(runs):
        fields = Fields(report.path, run, f"{report.where}benchmarks[{number}].")
        yield _run(fields, name if len(runs) == 1 else f"{name}, benchmark {number + 1}")


def _run(fields: Fields, name: str) -> LoadTest:
    metrics = fields.section("metrics")
    totals = (metrics and metrics.section("request_totals")) or fields.section("request_totals")
    strategy = fields.section("config", "strategy") or fields.section("args", "strategy")
    if metrics is None or totals is None or strategy is None:
        raise file_error(fields.path, f"{fields.where}: needs metrics, request_totals and a strategy")
    completed = int(totals.needed("successful"))
    kind = strategy.text("type_")
    rate = strategy.finite("rate") if kind in _ARRIVALS else None
    streams = 1.0 if kind == "synchronous" else strategy.finite("streams")
    prompt, output = (_mean(metrics, key) for key in ("prompt_token_count", "output_token_count"))
    backend = fields.section("config", "backend")
    return LoadTest(
        path=fields.path,
        name=name,
        tool=GUIDELLM,
        model="" if backend is None else backend.text("model"),
        concurrency=streams or strategy.finite("max_concurrency") or None,
        request_rate=rate,
        arrivals=_ARRIVALS.get(kind, Arrivals.OTHER),
        completed=completed,
        failed=int(totals.finite("errored") or 0),
        throughput=_mean(metrics, "requests_per_second"),
        prompt=prompt or math.nan,
        output=output or math.nan,
        latencies=dict(_latencies(metrics)) if completed else {},
        empty="" if completed else NO_REQUEST,
        odd="a trace was replayed: measure at one rate or concurrency" if kind == _TRACE else "",
    )


def _summary(metrics: Fields, key: str) -> Fields | None:
    """Statistics of the requests that succeeded."""
    return metrics.section(key, "successful")


def _mean(metrics: Fields, key: str) -> float | None:
    summary = _summary(metrics, key)
    return None if summary is None else summary.finite("mean")


def _latencies(metrics: Fields) -> Iterator[tuple[tuple[Metric, Statistic], float]]:
    for metric, (key, unit) in _METRICS.items():
        summary = _summary(metrics, key)
        if summary is None or not summary.finite("count"):
            continue
        percentiles = summary.section("percentiles")
        for statistic in Statistic:
            owner = summary if statistic is Statistic.MEAN else percentiles
            value = None if owner is None else owner.finite(statistic.value)
            if value is not None:
                yield (metric, statistic), value * unit
