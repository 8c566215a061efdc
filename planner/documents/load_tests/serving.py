"""Results of ``vllm bench serve --save-result`` and of SGLang's ``bench_serving --output-file``.

Both are flat, and share most of their keys. [vllm/benchmarks/serve.py of vLLM, python/sglang/bench_serving.py
of SGLang]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.documents.load_tests.record import NO_REQUEST, Arrivals, Fields, LoadTest
from planner.specs import Metric, Statistic
from planner.units import MILLI

VLLM = "vllm bench serve --save-result"
SGLANG = "SGLang's bench_serving --output-file"

_NAMES = {Metric.TTFT: ("ttft",), Metric.TPOT: ("tpot",), Metric.E2E: ("e2el", "e2e_latency")}
_SGLANG_ONLY = ("dataset_name", "sharegpt_output_len", "mean_e2e_latency_ms", "accept_length")


def is_serving(data: Mapping[str, Any]) -> bool:
    """Whether a run is of this form."""
    return "total_input_tokens" in data


def serving_run(fields: Fields, name: str) -> LoadTest:
    """One run."""
    data = fields.data
    completed = int(fields.needed("completed"))
    rate = _rate(fields)
    burstiness = fields.number("burstiness")
    arrivals = Arrivals.POISSON if burstiness in (None, 1.0) else Arrivals.OTHER
    run = LoadTest(
        path=fields.path,
        name=name,
        tool=SGLANG if any(key in data for key in _SGLANG_ONLY) else VLLM,
        model=fields.text("model_id"),
        concurrency=fields.finite("max_concurrency") or None,
        request_rate=rate,
        arrivals=arrivals,
        completed=completed,
        failed=int(fields.finite("failed") or 0),
        latencies={},
        empty="" if completed else NO_REQUEST,
        odd=_odd(fields),
    )
    return run if run.empty else _measured(fields, run)


def _measured(fields: Fields, run: LoadTest) -> LoadTest:
    return replace(
        run,
        throughput=fields.needed("request_throughput"),
        prompt=fields.needed("total_input_tokens") / run.completed,
        output=fields.needed("total_output_tokens") / run.completed,
        latencies=dict(_latencies(fields)),
    )


def _rate(fields: Fields) -> float | None:
    """The offered rate; the tools write inf where nothing but the limit holds requests back."""
    value = fields.data.get("request_rate")
    if value == "inf" or not isinstance(value, int | float | str) or value == "trace":
        return None
    if isinstance(value, float) and math.isinf(value):
        return None
    return fields.number("request_rate")


def _odd(fields: Fields) -> str:
    accepted = fields.number("spec_decode_acceptance_length") or fields.number("accept_length")
    if accepted is not None and accepted > 0:
        return f"speculative decoding, {accepted:.3g} tokens per step: measure without a draft"
    if fields.data.get("ramp_up_strategy"):
        return "the rate was ramped up: measure at one rate"
    if fields.data.get("request_rate") == "trace":
        return "a trace was replayed: measure at one rate or concurrency"
    return ""


def _latencies(fields: Fields) -> Iterator[tuple[tuple[Metric, Statistic], float]]:
    for metric, names in _NAMES.items():
        for statistic in Statistic:
            words = [str(statistic), *(["median"] if statistic is Statistic.P50 else [])]
            keys = [f"{word}_{name}_ms" for name in names for word in words]
            found = next((value for key in keys if (value := fields.finite(key)) is not None), None)
            if found is not None:
                yield (metric, statistic), found * MILLI
