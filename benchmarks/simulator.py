"""Speed and memory of the simulator at iteration level, on one core.

    python -m benchmarks.simulator [--requests 1000000] [--long 5000000] [--repeats 3]

Llama-3.1-8B, about 1,000 tokens in and 200 out, Poisson arrivals: 4 prefill replicas (H100) and 8 decode
replicas (A100) near 80 % load, and 8 colocated replicas (H100). The machine code is loaded before the clock
starts; requests are drawn before it starts, too, and latencies are evaluated after it has stopped.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

from benchmarks import heading, spread
from planner import catalog
from planner.engines import load_engine
from planner.fleet import Deployed, Fleet
from planner.lengths import independent, marginal_lognormal
from planner.simulator.build import cluster_of, holdings
from planner.simulator.cluster import Outcome, run_cluster
from planner.simulator.metrics import measure
from planner.simulator.requests import Requests
from planner.simulator.source import RequestSource
from planner.specs import (
    Dtype,
    FleetItem,
    Parallelism,
    Period,
    Phase,
    Precision,
    Routing,
    Service,
    Slo,
    Workload,
)
from planner.units import GIGA, KILO

MODEL = "meta-llama/Llama-3.1-8B"
DISAGGREGATED_TARGET, COLOCATED_TARGET = 1_000_000, 300_000  # requests per CPU-second
MEMORY_TARGET = 2.0  # of five million requests [GB]
LEAST_BATCH = 64
WARM_UP = 2_000
KINDS = {"disaggregated": (145.0, DISAGGREGATED_TARGET), "colocated": (150.0, COLOCATED_TARGET)}


def group(phase: Phase, gpu: str, replicas: int, rate: float, budget: int, kv_tokens: int) -> Deployed:
    profile = catalog.load_gpu(gpu)
    item = FleetItem(
        gpu=profile, price=None, max_gpus=None, node_size=8, network_bandwidth=profile.network_bandwidth
    )
    return Deployed(
        phase=phase,
        item=item,
        parallelism=Parallelism(tp=1),
        replicas=replicas,
        rate=rate,
        token_budget=budget,
        kv_tokens=kv_tokens,
        max_num_seqs=256,
    )


def fleet(kind: str) -> Fleet:
    rate, _ = KINDS[kind]
    if kind == "disaggregated":
        groups = (
            group(Phase.PREFILL, "h100-sxm", 4, rate, 8192, 400_000),
            group(Phase.DECODE, "a100-80gb-sxm", 8, rate, 2048, 400_000),
        )
    else:
        groups = (group(Phase.COLOCATED, "h100-sxm", 8, rate, 2048, 400_000),)
    workload = Workload(
        name="benchmark",
        periods=(Period(name="", hours=1.0, request_rate=rate),),
        lengths=independent(
            marginal_lognormal(1000.0, 0.5, maximum=6000.0), marginal_lognormal(200.0, 0.5, maximum=1000.0)
        ),
    )
    service = Service(
        model=catalog.load_model(MODEL),
        precision=Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16),
        workload=workload,
        slo=Slo(targets=()),
        engine="vllm",
    )
    engine = load_engine("vllm")
    return Fleet(service=service, engine=engine, groups=groups, routing=Routing.LEAST_LOADED)


def timed(standing: Fleet, requests: Requests) -> tuple[float, Outcome]:
    """CPU time of the event loop, its arrays included, and what came of it. [s]"""
    cluster, held = cluster_of(standing), holdings(standing, requests)
    started = time.process_time()
    outcome = run_cluster(cluster, requests, held)
    return time.process_time() - started, outcome


def report(kind: str, number: int, repeats: int) -> None:
    standing = fleet(kind)
    source = RequestSource(workload=standing.service.workload)
    timed(standing, source.draw(WARM_UP))
    requests = source.draw(number)
    runs = [timed(standing, requests) for _ in range(repeats)]
    speeds = [number / seconds / KILO for seconds, _ in runs]
    outcome = runs[-1][1]
    started = time.process_time()
    result = measure(outcome, standing.service.slo)
    evaluated = time.process_time() - started
    _, target = KINDS[kind]
    met = "met" if max(speeds) * KILO >= target else "MISSED"
    print(f"{kind:14s} {spread(speeds, 'thousand requests per CPU-second', 0)}; target >= {target:,}: {met}")
    for use in result.groups:
        print(f"  {use.phase:10s} {use.replicas} replicas, busy {use.busy:.0%}, batch {use.mean_batch:.0f}")
    tokens = int(outcome.control["tokens"][0])
    steps = int(outcome.replica["steps"].sum())
    print(
        f"  {tokens:,} tokens, {steps:,} engine steps; percentiles and intervals take {evaluated:.2f} s more"
    )
    if (
        kind == "disaggregated"
        and min(u.mean_batch for u in result.groups if u.phase is Phase.DECODE) < LEAST_BATCH
    ):
        print(f"  decode batch below {LEAST_BATCH}: the target does not apply")


def memory(number: int) -> None:
    """Peak memory of a process that draws, simulates and measures `number` requests."""
    standing = fleet("disaggregated")
    requests = RequestSource(workload=standing.service.workload).draw(number)
    seconds, outcome = timed(standing, requests)
    measure(outcome, standing.service.slo)
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIGA
    met = "met" if gigabytes <= MEMORY_TARGET else "MISSED"
    peak = f"peak {gigabytes:.2f} GB; target <= {MEMORY_TARGET:g}: {met}"
    print(f"{number:,} requests: {seconds:.2f} CPU-s, {peak}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--long", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only-memory", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only_memory:
        memory(arguments.long)
        return
    heading("Simulator")
    for kind in KINDS:
        report(kind, arguments.requests, arguments.repeats)
    command = [sys.executable, "-m", "benchmarks.simulator", "--only-memory", "--long", str(arguments.long)]
    sys.stdout.flush()
    subprocess.run(command, check=True)  # a process of its own, so that its memory is its own too


if __name__ == "__main__":
    main()
