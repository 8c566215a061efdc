"""Exports of AIPerf: ``profile_export_aiperf.json``, and the CSV beside it, which does not hold the load.

Inter-token latency is the mean of a request over its tokens after the first. [aiperf/exporters and
aiperf/metrics/types of ai-dynamo/aiperf]
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.documents.files import file_error
from planner.documents.load_tests.record import NO_REQUEST, Arrivals, Fields, LoadTest
from planner.specs import Metric, Statistic
from planner.units import MILLI

AIPERF_JSON = "AIPerf's profile_export_aiperf.json"
AIPERF_CSV = "AIPerf's profile_export_aiperf.csv"

_METRICS = {
    Metric.TTFT: "time_to_first_token",
    Metric.TPOT: "inter_token_latency",
    Metric.E2E: "request_latency",
}
_UNITS = {"ms": MILLI, "s": 1.0, "sec": 1.0}
_TITLES = {
    "Time to First Token (ms)": "time_to_first_token",
    "Inter Token Latency (ms)": "inter_token_latency",
    "Request Latency (ms)": "request_latency",
    "Input Sequence Length (tokens)": "input_sequence_length",
    "Output Sequence Length (tokens)": "output_sequence_length",
    "Request Throughput (requests/sec)": "request_throughput",
    "Request Count": "request_count",
    "Error Request Count": "error_request_count",
}
_FIRST_COLUMNS = ("Metric", "avg")


def is_aiperf(data: Mapping[str, Any]) -> bool:
    """Whether a document is of this form."""
    parts = [data.get(name) for name in (*_METRICS.values(), "request_count")]
    return any(isinstance(part, Mapping) and "avg" in part for part in parts)


def is_aiperf_table(line: str) -> bool:
    """Whether a table with this first line is of this form."""
    names = [cell.strip() for cell in line.split(",")]
    return tuple(names[:2]) == _FIRST_COLUMNS


def aiperf_run(fields: Fields, name: str) -> LoadTest:
    """The run of a JSON export."""
    load = fields.section("input_config", "loadgen")
    endpoint = fields.section("input_config", "endpoint")
    models = [] if endpoint is None else endpoint.data.get("model_names") or []
    mode = "" if load is None else load.text("request_rate_mode")
    return _run(
        fields,
        name,
        AIPERF_JSON,
        model=models[0] if models and isinstance(models[0], str) else "",
        concurrency=None if load is None else load.finite("concurrency") or None,
        request_rate=None if load is None else load.finite("request_rate") or None,
        load_known=load is not None,
        arrivals={"poisson": Arrivals.POISSON, "constant": Arrivals.CONSTANT}.get(mode, Arrivals.OTHER)
        if mode
        else Arrivals.POISSON,
    )


def aiperf_table(path: Path, lines: Sequence[str], name: str) -> LoadTest:
    """The run of a CSV export: metrics with statistics, a blank line, metrics of one value."""
    data: dict[str, dict[str, float]] = {}
    names: list[str] = []
    try:
        for row in csv.reader(lines):
            if row and row[0] == _FIRST_COLUMNS[0]:
                names = ["avg" if cell == "Value" else cell for cell in row]
            elif row and row[0] in _TITLES:
                data[_TITLES[row[0]]] = dict(_cells(names, row))
    except csv.Error as error:
        raise file_error(path, f"is no CSV: {error}") from None
    return _run(Fields(path, data), name, AIPERF_CSV, load_known=False)


def _cells(names: Sequence[str], row: Sequence[str]) -> Iterator[tuple[str, float]]:
    for name, cell in zip(names[1:], row[1:], strict=False):
        try:
            yield name, float(cell)
        except ValueError:  # left empty where a metric has no such statistic
            yield name, math.nan


def _run(fields: Fields, name: str, tool: str, **load: Any) -> LoadTest:
    completed = int(_average(fields, "request_count") or 0)
    return LoadTest(
        path=fields.path,
        name=name,
        tool=tool,
        completed=completed,
        failed=int(_average(fields, "error_request_count") or 0),
        throughput=_average(fields, "request_throughput"),
        prompt=_average(fields, "input_sequence_length") or math.nan,
        output=_average(fields, "output_sequence_length") or math.nan,
        latencies=dict(_latencies(fields)) if completed else {},
        empty="" if completed else NO_REQUEST,
        odd="the run was cancelled" if fields.data.get("was_cancelled") else "",
        **load,
    )


def _average(fields: Fields, key: str) -> float | None:
    section = fields.section(key)
    return None if section is None else section.finite("avg")


def _latencies(fields: Fields) -> Iterator[tuple[tuple[Metric, Statistic], float]]:
    for metric, key in _METRICS.items():
        section = fields.section(key)
        if section is None:
            continue
        unit = section.text("unit") or "ms"
        if unit not in _UNITS:
            raise section.error("unit", f"must be {' or '.join(_UNITS)}, got {unit!r}")
        for statistic in Statistic:
            value = section.finite("avg" if statistic is Statistic.MEAN else statistic.value)
            if value is not None:
                yield (metric, statistic), value * _UNITS[unit]
