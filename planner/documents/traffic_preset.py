"""Traffic presets as files: what a trace says of its traffic, as YAML; no row of the trace."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.documents.files import file_error
from planner.traces import IntArray, Trace, TraceStatistics

PROBABILITIES = (
    *(0.0, 0.005, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7),
    *(0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.96, 0.97, 0.975, 0.98, 0.985, 0.99, 0.9925, 0.995, 0.9965),
    *(0.998, 0.999, 0.9995, 0.9998, 1.0),
)
"""Dense in the tail: a straight line between quantiles lies above a convex quantile function."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a trace does not say about itself; empty: unknown."""

    name: str
    description: str
    source: str
    citation: str = ""
    licence: str = ""
    note: str = ""


def described(trace: Trace, statistics: TraceStatistics) -> Facts:
    """What can be said of any trace."""
    return Facts(
        name=trace.name,
        description=f"{trace.requests:,} requests, {trace.layout}.",
        source=trace.source,
        note="; ".join((*trace.notes, *statistics.notes)),
    )


def preset_text(
    trace: Trace,
    statistics: TraceStatistics,
    facts: Facts,
    comment: str = "Statistics of a request trace, written by planner workload.",
) -> str:
    """A preset's file.

    Raises
    ------
    SpecError
        The trace has no rate, or no output.
    """
    lines = [f"# {comment}"]
    for key in ("name", "description", "citation", "source", "licence", "note"):
        if value := getattr(facts, key):
            lines.append(f"{key}: {json.dumps(value, ensure_ascii=not value.isprintable())}")
    for key, value in _numbers(trace, statistics).items():
        if not isinstance(value, dict):
            lines.append(f"{key}: {value}")
            continue
        lines += [f"{key}:", f"  mean: {value['mean']}"]
        lines += [f"  {k}: [{', '.join(f'{x:.10g}' for x in value[k])}]" for k in ("probabilities", "values")]
    return "\n".join(lines) + "\n"


def _numbers(trace: Trace, s: TraceStatistics) -> dict[str, Any]:
    """The preset's numbers, in the keys and units of its file."""
    if s.request_rate is None:
        raise file_error(trace.source, "has no rate: all requests arrive at the same time")
    if s.isl_per_output_token is None:
        raise file_error(trace.source, "has no output tokens at all")
    numbers = {
        "requests": s.requests,
        "duration_s": _rounded(s.duration, 1),
        "request_rate": _rounded(s.request_rate, 4),
        "interarrival_cv": 1.0 if s.interarrival_cv is None else _rounded(s.interarrival_cv, 3),
        "dispersion_10s": _rounded(s.dispersion[10.0], 2),
        "dispersion_60s": _rounded(s.dispersion[60.0], 2),
        "peak_60s_request_rate": _rounded(s.peak_rates[60.0], 3),
        "input_tokens": _table(trace.isl),
        "output_tokens": _table(trace.osl),
        "isl_per_output_token": _rounded(s.isl_per_output_token, 1),
        "longest_request_tokens": s.longest,
        "ideal_prefix_hit_rate": None if s.prefix is None else round(s.prefix.tokens, 3),
    }
    return {key: value for key, value in numbers.items() if value is not None}


def _rounded(value: float | None, decimals: int) -> float | None:
    """To so many decimals, or to four digits where that says more."""
    if value is None or value == 0:
        return value
    return round(value, max(decimals, 3 - math.floor(math.log10(abs(value)))))


def _table(lengths: IntArray) -> dict[str, Any]:
    """Mean and quantiles. [tok]"""
    quantiles = np.quantile(lengths, PROBABILITIES)
    return {
        "mean": _rounded(float(lengths.mean()), 2),
        "probabilities": list(PROBABILITIES),
        "values": [round(float(v), 1) for v in quantiles],
    }
