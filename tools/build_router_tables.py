"""Write `planner/queueing/routers.csv`: waits behind routers that are not one common queue, by simulation.

    python tools/build_router_tables.py [--arrivals 300000] [--workers 2]

For round robin and power of two, replica counts, loads and squared coefficients of variation of the
service, the event loop of the planner serves prompts one at a time (Poisson arrivals, gamma services, least
unfinished work where two are compared). A row has the probability of waiting, the mean wait, its 99th
percentile and the slope of its logarithmic tail beyond it, in mean services. The first tenth of the arrivals
is left out.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from planner.documents.files import write_text_atomic
from planner.simulator.cluster import Cluster, Holdings, Router, SimulatedGroup, run_cluster
from planner.simulator.requests import Requests
from planner.simulator.tables import Grids, StepTables
from planner.specs import Phase

TARGET = Path(__file__).parents[1] / "planner" / "queueing" / "routers.csv"
ROUTERS = (Router.ROUND_ROBIN, Router.POWER_OF_TWO)
REPLICAS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
LOADS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
SCV = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
TICKS = 4000  # of a mean service
LONGEST = 60  # mean services of the longest
WARM = 0.1

Case = tuple[str, int, float, float, int]


def services(scv: float, number: int, rng: np.random.Generator) -> np.ndarray:
    """Gamma services in ticks."""
    if scv == 0:
        return np.full(number, TICKS)
    drawn = rng.gamma(1 / scv, scv * TICKS, number)
    return np.clip(np.round(drawn), 1, LONGEST * TICKS).astype(np.int64)


def servers(replicas: int, router: Router) -> Cluster:
    """Replicas that take one request at a time, for as many seconds as it has tokens over TICKS."""
    budget = LONGEST * TICKS
    flat = np.zeros((2, 2))
    tables = StepTables(
        decode=flat,
        beside=flat,
        tokens=np.arange(budget + 2) / TICKS,
        head=np.zeros(2),
        attention=flat,
        launch=0.0,
        host=0.0,
        host_decode=0.0,
        host_sequence=0.0,
        decode_scale=1.0,
        prefill_scale=1.0,
    )
    ends = np.array([0.0, float(budget)])
    group = SimulatedGroup(
        name="servers",
        phase=Phase.COLOCATED,
        replicas=replicas,
        tables=tables,
        budget=budget,
        limit=1,
        blocks=2 * budget,
    )
    return Cluster(
        groups=(group,),
        grids=Grids(contexts=ends, queries=ends + 1, pasts=ends),
        pair_rates=np.zeros((1, 1)),
        router=router,
    )


def measured(case: Case) -> str:
    """One row of the table."""
    router, replicas, load, scv, arrivals = case
    rng = np.random.default_rng([replicas, int(100 * load), int(100 * scv)])
    number = int(arrivals * (1 + scv) / (1 - load) ** 0.5)
    isl = services(scv, number, rng)
    mean = float(isl.mean()) / TICKS
    requests = Requests(
        arrival=np.cumsum(rng.exponential(mean / (load * replicas), number)),
        isl=isl.astype(np.int32),
        osl=np.ones(number, np.int32),
        cached=np.zeros(number, np.int32),
    )
    outcome = run_cluster(
        servers(replicas, Router(router)), requests, Holdings.plain(requests.isl), samples=0
    )
    kept = outcome.request[int(WARM * number) :]
    wait = np.sort(np.maximum(kept["begun"] - kept["arrival"], 0.0)) / mean
    p99, p999 = wait[int(0.99 * wait.size)], wait[int(0.999 * wait.size)]
    slope = math.log(10) / (p999 - p99) if p999 > p99 else 0.0
    probability = float(np.count_nonzero(wait > 1e-9)) / wait.size
    return f"{router},{replicas},{load},{scv},{probability:.5f},{wait.mean():.5g},{p99:.5g},{slope:.5g}"


def cases(arrivals: int) -> Iterator[Case]:
    for router in ROUTERS:
        for replicas in REPLICAS:
            for load in LOADS:
                for scv in SCV:
                    yield router.value, replicas, load, scv, arrivals


def main() -> None:
    parser = argparse.ArgumentParser(description="Waits behind routers, by simulation.")
    parser.add_argument("--arrivals", type=int, default=300_000)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.workers) as pool:
        rows = list(pool.map(measured, cases(arguments.arrivals), chunksize=8))
    head = "# Written by tools/build_router_tables.py; waits in mean services.\n"
    columns = "router,replicas,load,scv,probability_of_wait,mean,p99,slope\n"
    write_text_atomic(TARGET, head + columns + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
