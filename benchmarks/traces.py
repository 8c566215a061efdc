"""Time and memory of reading and measuring request traces of every kind.

    python -m benchmarks.traces [--rows 1000000] [--seed 0]

Traces are drawn at random; each is read in a process of its own, so that memory is its own too.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from benchmarks import heading, verdict
from planner.documents.trace_file import read_trace
from planner.errors import SpecError
from planner.traces import measure
from planner.units import KILO, MEGA, MILLI

SMALL, SMALL_TARGET = 19_366, 0.2  # rows of the Azure conversation trace, CPU-s
ROWS, TARGET = 1_000_000, 5.0  # CPU-s
HASHES = 2.0  # what block hashes, 8 a prompt, may take in addition, as a multiple
RATE = 50.0  # [req/s]

Row = tuple[float, int, int]


def rows(count: int, seed: int) -> Iterator[Row]:
    """Arrival [s], input and output tokens."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / RATE, count))
    return zip(arrivals, rng.integers(1, 8000, count), rng.integers(0, 900, count), strict=True)


def dates(values: Iterator[Row]) -> Iterator[str]:
    start = datetime(2024, 5, 10, tzinfo=UTC)
    yield "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for t, isl, osl in values:
        yield f"{(start + timedelta(seconds=float(t))).strftime('%Y-%m-%d %H:%M:%S.%f')}0,{isl},{osl}\n"


def numbers(values: Iterator[Row]) -> Iterator[str]:
    yield "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    for t, isl, osl in values:
        yield f"{t:.6f},{isl},{osl}\n"


def floats(values: Iterator[Row]) -> Iterator[str]:
    yield "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    for t, isl, osl in values:
        yield f"{t:.6f},{isl}.0,{osl}.0\n"


def objects(values: Iterator[Row]) -> Iterator[str]:
    for i, (t, isl, osl) in enumerate(values):
        ids = list(range(i, i + -(-isl // 512)))
        yield (
            f'{{"timestamp": {t / MILLI:.0f}, "input_length": {isl}, "output_length": {osl}, '
            f'"hash_ids": {ids}}}\n'
        )


def broken(values: Iterator[Row]) -> Iterator[str]:
    yield "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    for t, isl, osl in values:
        yield f"{t:.6f}x,{isl}.5,{osl}\n"


KINDS: dict[str, Callable[[Iterator[Row]], Iterator[str]]] = {
    "CSV, dates": dates,
    "CSV, numbers": numbers,
    "CSV, float tokens": floats,
    "JSON lines with block hashes": objects,
    "CSV, every row broken": broken,
}


def child(path: str) -> None:
    """Read and measure one trace; print CPU seconds of both, and the largest memory [MB]."""
    started = time.process_time()
    try:
        trace = read_trace(path)
        read = time.process_time()
        measure(trace)
    except SpecError:
        read = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KILO / MEGA
    print(read - started, time.process_time() - read, peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for count, target in ((SMALL, SMALL_TARGET), (arguments.rows, TARGET * arguments.rows / ROWS)):
        heading(f"{count:,} rows, CPU time")
        with tempfile.TemporaryDirectory() as folder:
            for name, form in KINDS.items():
                path = Path(folder) / "trace.txt"
                with path.open("w", encoding="utf-8") as file:
                    file.writelines(form(rows(count, arguments.seed)))
                code = f"from benchmarks.traces import child; child({str(path)!r})"
                run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
                read, measured, peak = map(float, run.stdout.split())
                limit = target * HASHES if form is objects else target
                size = path.stat().st_size / MEGA
                print(
                    f"{name:29} {size:6.1f} MB  read {read:6.3f} s  measure {measured:6.3f} s  "
                    f"memory {peak:5.0f} MB   {verdict(read, limit)}"
                )


if __name__ == "__main__":
    main()
