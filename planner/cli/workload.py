"""``planner workload``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from planner.cli.output import echo_json, width
from planner.documents.files import check_writable, write_text_atomic
from planner.documents.trace_columns import ALIASES, REQUIRED
from planner.documents.trace_file import read_trace
from planner.documents.trace_times import SCALES
from planner.documents.traffic_preset import described, preset_text
from planner.traces import LengthSummary, Trace, TraceStatistics, measure

_EPILOG = "\n\n".join(
    ["Columns, by these names in any case, with spaces, dots and dashes or without:"]
    + [f"{role}: {', '.join(ALIASES[role])}" for role in REQUIRED]
    + ["The name of an arrival may end in its unit, as in timestamp_ms."]
)


@click.command(epilog=_EPILOG)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write a traffic preset here (YAML).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--unit", type=click.Choice(list(SCALES)), help="Of numeric timestamps; default: worked out.")
@click.option(
    "--max-context", type=click.IntRange(1), metavar="TOKENS", help="Count requests that exceed it."
)
@click.option("--block-size", type=click.IntRange(1, 2**16), help="Tokens of a hashed block; default: 512.")
@click.option("--name", help="Of the preset; default: the file's.")
def workload(
    trace: Path,
    output: Path | None,
    as_json: bool,
    unit: str | None,
    max_context: int | None,
    block_size: int | None,
    name: str | None,
) -> None:
    """Rate, burstiness, lengths and prefix reuse of a request TRACE.

    Reads CSV, TSV and JSON lines, plain or gzip: the Azure, Mooncake, BurstGPT, Qwen-Bailian, Vidur and
    Splitwise traces, and tables with usual names. A scenario takes its traffic from TRACE by
    "workload: {trace: FILE}", or from the preset by "workload: {preset: FILE.yaml}".
    """
    if output is not None:
        check_writable(output)
    read = read_trace(trace, unit=unit, block_size=block_size, name=name)
    statistics = measure(read)
    if output is not None:
        write_text_atomic(output, preset_text(read, statistics, described(read, statistics)))
    facts = workload_facts(read, statistics, max_context)
    if as_json:
        echo_json(facts)
        return
    from planner.report.workload import print_workload  # rich: only where tables are printed

    print_workload(facts, width())
    if output is not None:
        click.echo(f"\npreset written to {output}")


def workload_facts(trace: Trace, s: TraceStatistics, max_context: int | None) -> dict[str, Any]:
    """What a trace says, in the units people quote."""
    beyond = None if max_context is None else trace.beyond(max_context)
    prefix = None
    if s.prefix is not None:
        prefix = {
            "blocks": s.prefix.blocks,
            "tokens": s.prefix.tokens,
            "found_tokens": s.prefix.found_tokens,
            "unique_blocks": s.prefix.unique_blocks,
            "block_tokens": s.prefix.block_size,
        }
    return {
        "name": trace.name,
        "source": trace.source,
        "layout": trace.layout,
        "timestamps": {
            "unit": trace.unit,
            "reason": trace.unit_reason,
            "step_s": s.timestamp_step,
        },
        "requests": s.requests,
        "duration_s": s.duration,
        "request_rate": s.request_rate,
        "peak_request_rate": {f"{w:g}s": rate for w, rate in s.peak_rates.items()},
        "interarrival_cv": s.interarrival_cv,
        "dispersion": {f"{w:g}s": value for w, value in s.dispersion.items()},
        "input_tokens": _lengths(s.isl),
        "output_tokens": _lengths(s.osl),
        "total_tokens": {"input": int(trace.isl.sum()), "output": int(trace.osl.sum())},
        "correlation": s.correlation,
        "requests_without_output": s.without_output,
        "isl_per_output_token": s.isl_per_output_token,
        "longest_request_tokens": s.longest,
        "ideal_prefix_hits": prefix,
        "max_context": max_context,
        "requests_over_context": None if beyond is None else len(beyond),
        "first_line_over_context": None if beyond is None or not len(beyond) else int(trace.lines[beyond[0]]),
        "notes": [*trace.notes, *s.notes],
    }


def _lengths(summary: LengthSummary) -> dict[str, float]:
    return {name: getattr(summary, name) for name in ("mean", "p50", "p90", "p95", "p99", "max")}
