"""Write ``planner/queueing/pipeline.csv``: what prompts find in flight on pipelines, by simulation.

    python tools/build_pipeline_waits.py [--output planner/queueing/pipeline.csv] [--workers 2]

Each row is one queue of prompts: their time is proportional to their tokens, which are log-normal, and the
replica with the least work takes the next. `planner.queueing.pipeline` says what the columns mean.
"""

from __future__ import annotations

import argparse
import itertools
import math
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.lengths import independent, marginal_fixed, marginal_lognormal
from planner.queueing.pipeline import BUDGETS, LEVELS, LOADS, REPLICAS, STAGES, VARIATIONS
from planner.simulator.arrivals import generated
from planner.simulator.cluster import Cluster, Holdings, SimulatedGroup, run_cluster
from planner.simulator.tables import Grids, StepTables
from planner.specs import Period, Phase, Workload

OUTPUT = Path(__file__).parents[1] / "planner" / "queueing" / "pipeline.csv"
MEAN = 200  # tokens of a prompt, which takes one second
PROMPTS = 200_000
LONG = 8  # times as many where a run has not settled
SETTLED = 0.2  # share of the prompts before which nothing is measured [1]
LIMIT = 1024  # sequences
HUGE = 2**40  # blocks
DRIFT = 1.25  # ratio of the medians of both halves from which a run has not settled [1]
HEADER = """\
# Written by tools/build_pipeline_waits.py: change that and run it again.
# stages, replicas, squared variation, token budget / mean prompt, load: prompts per step; then the time in
# flight that a share of prompts exceeds: {levels}; inf where the queue grows without end
"""

Queue = tuple[int, int, float, float, float]


def simulated(queue: Queue, prompts: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Time of each prompt from arrival to end, its own service [s], and mean prompts per step."""
    stages, replicas, scv, budget, load = queue
    lengths = marginal_lognormal(MEAN, math.sqrt(scv), 64 * MEAN) if scv else marginal_fixed(MEAN)
    rate = load * stages * replicas / lengths.mean * MEAN
    workload = Workload(
        name="",
        periods=(Period(name="", hours=1.0, request_rate=rate),),
        lengths=independent(lengths, marginal_fixed(1)),
    )
    requests = generated(workload, prompts, np.random.default_rng(0))
    outcome = run_cluster(
        _cluster(stages, replicas, round(budget * MEAN)), requests, Holdings.plain(requests.isl), samples=0
    )
    record = outcome.request[int(SETTLED * prompts) :]
    _, number = np.unique(np.stack([record["prefill"], record["prompted"]]), axis=1, return_counts=True)
    return record["prompted"] - record["arrival"], record["isl"] / MEAN, float(number.mean())


def _cluster(stages: int, replicas: int, budget: int) -> Cluster:
    grids = Grids.up_to(64.0 * MEAN, 64.0 * MEAN)
    none = np.zeros((LIMIT + 1, grids.contexts.size))
    tables = StepTables(
        decode=none,
        beside=none,
        tokens=np.arange(budget + LIMIT + 1.0) / MEAN,
        head=np.zeros(LIMIT + 1),
        attention=np.zeros((grids.queries.size, grids.pasts.size)),
        launch=0.0,
        host=0.0,
        host_decode=0.0,
        host_sequence=0.0,
        decode_scale=1.0,
        prefill_scale=1.0,
    )
    prefill = SimulatedGroup(
        name="prefill",
        phase=Phase.PREFILL,
        replicas=replicas,
        tables=tables,
        budget=budget,
        limit=LIMIT,
        blocks=HUGE,
        lanes=stages,
        stages=stages,
    )
    decode = SimulatedGroup(
        name="decode", phase=Phase.DECODE, replicas=1, tables=tables, budget=budget, limit=LIMIT, blocks=HUGE
    )
    pairs = np.array([[0.0, 1e30], [0.0, 0.0]])
    return Cluster(groups=(prefill, decode), grids=grids, pair_rates=pairs, first_token_from_prefill=True)


def in_flight(sojourn: NDArray[np.float64], own: NDArray[np.float64], stages: int) -> NDArray[np.float64]:
    """The time U in flight that a share :data:`LEVELS` exceeds, from sojourns max(s, U + s/stages).

    Where the sojourn is s, U is known to be at most s (1 - 1/stages): the product-limit estimator, from
    above (E. L. Kaplan, P. Meier, J. Am. Stat. Assoc., vol. 53, 1958).
    """
    known = sojourn > own * (1 + 1e-6)
    value = np.where(known, sojourn - own / stages, own * (1 - 1 / stages))
    order = np.lexsort((known, -value))
    value, known = value[order], known[order]
    left = np.arange(value.size, 0, -1.0)  # those at most as long, or not known to be longer
    below = np.cumsum(
        np.log1p(-np.where(known, 1 / np.maximum(left, 2.0), 0.0))
    )  # log P(U <= value), reversed
    exceeds = 1 - np.exp(below)
    index = np.searchsorted(exceeds, LEVELS)
    longest = np.append(value, 0.0)
    return np.where(np.asarray(LEVELS) > exceeds[-1], 0.0, longest[np.minimum(index, value.size)])


def row(queue: Queue) -> list[float]:
    """The values of one queue; where a run has not settled, those of a longer one."""
    for prompts in (PROMPTS, LONG * PROMPTS):
        sojourn, own, number = simulated(queue, prompts)
        half = sojourn.size // 2
        if np.median(sojourn[half:]) <= DRIFT * np.median(sojourn[:half]):
            return [*queue, number, *in_flight(sojourn, own, queue[0]).tolist()]
    return [*queue, number, *(math.inf for _ in LEVELS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    queues = list(itertools.product(STAGES, REPLICAS, VARIATIONS, BUDGETS, LOADS))
    with ProcessPoolExecutor(arguments.workers) as pool:
        rows = list(pool.map(row, queues, chunksize=8))
    text = "\n".join(",".join(f"{x:.3g}" for x in values) for values in rows)
    header = HEADER.format(levels=", ".join(f"{x:g}" for x in LEVELS))
    arguments.output.write_text(f"{header}{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
