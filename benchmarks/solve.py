"""CPU time of ``planner solve --no-verify`` on the examples, as whole processes with a warm page cache.

python -m benchmarks.solve [--runs 7] [SCENARIO ...]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import heading, spread, verdict
from planner.candidates import CandidateSet, build_candidates, forget
from planner.documents.scenario import load_scenario
from planner.engines import load_engine

EXAMPLES = Path(__file__).parents[1] / "examples"
CPU_TARGET = 2.0  # of one solve [CPU-s]
GAP_TARGET = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("scenarios", nargs="*", type=Path, default=sorted(EXAMPLES.glob("*.yaml")))
    parser.add_argument("--runs", type=int, default=7, help="processes per scenario, after one that warms up")
    arguments = parser.parse_args()
    heading("planner solve --no-verify, whole process")
    for path in arguments.scenarios:
        _solve(path, arguments.runs)
    heading("candidates, within a process")
    for path in arguments.scenarios:
        _candidates(path, arguments.runs)


def _solve(path: Path, runs: int) -> None:
    times = [_process(path) for _ in range(runs + 1)][1:]
    cpu = [c for c, _, _ in times]
    gap = times[0][2]
    print(f"{path.stem:18} CPU  {spread(cpu)}   {verdict(statistics.median(cpu), CPU_TARGET)}")
    print(
        f"{'':18} wall {spread([w for _, w, _ in times])}   gap {gap:.2%}, {verdict(gap, GAP_TARGET + 1e-6)}"
    )


def _process(path: Path) -> tuple[float, float, float]:
    """CPU time, wall time and gap of one solve. [s, s, 1]"""
    before, started = _children(), time.perf_counter()
    command = [sys.executable, "-m", "planner", "solve", str(path), "--no-verify", "--json"]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    return _children() - before, time.perf_counter() - started, json.loads(run.stdout)["gap"]


def _children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _candidates(path: Path, runs: int) -> None:
    scenario = load_scenario(path)
    (service,) = scenario.services
    engine = load_engine(service.engine)

    def build() -> CandidateSet:
        forget()
        return build_candidates(scenario, service, engine)

    found = build()
    seconds = statistics.median(_timed(build) for _ in range(runs))
    counts = sum(len(c.curve.starts) for c in found.candidates)
    print(
        f"{path.stem:18} {found.evaluated} replicas evaluated, {len(found.candidates)} useful, with "
        f"{counts} capacities, in {seconds:.3f} s: {found.evaluated / seconds:,.0f} replicas/s, "
        f"{counts / seconds:,.0f} capacities/s"
    )


def _timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
