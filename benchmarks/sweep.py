"""Time of ``planner sweep`` over 1,000 points of the 70B example, as a whole process with its workers.

python -m benchmarks.sweep [--jobs 2]
"""

from __future__ import annotations

import argparse
import csv
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks import heading, verdict

SCENARIO = Path(__file__).parents[1] / "examples" / "llama-70b-chat.yaml"
WALL_TARGET = 60.0  # of 1,000 points on two cores that do nothing else [s]
CORES = 2
LIMITS = ("slo.tpot_ms.p99=20:110:10", "slo.ttft_ms.p99=400:2200:200")
RATES = "workload.request_rate=5:50:5"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=CORES)
    arguments = parser.parse_args()
    heading(f"planner sweep of {SCENARIO.stem}, {arguments.jobs} processes")
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.csv"
        vary = [part for text in (*LIMITS, RATES) for part in ("--vary", text)]
        command = [sys.executable, "-m", "planner", "sweep", str(SCENARIO), *vary]
        command += ["--jobs", str(arguments.jobs), "-o", str(table)]
        started, before = time.perf_counter(), _cpu()
        subprocess.run(command, check=True, capture_output=True)
        wall, cpu = time.perf_counter() - started, _cpu() - before
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    found = ", ".join(f"{count} {status}" for status, count in Counter(r["status"] for r in rows).items())
    print(f"{len(rows):,} points: {found}")
    print(f"wall {wall:6.1f} s   {verdict(wall, WALL_TARGET)}")
    print(f"CPU  {cpu:6.1f} s   {verdict(cpu, CORES * WALL_TARGET)}   {cpu / len(rows):.3f} s a point")


def _cpu() -> float:
    """Of all processes that have ended. [s]"""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
