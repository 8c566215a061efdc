"""Clusters whose step times can be worked out by hand, for tests of the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.simulator.cluster import Cluster, Holdings, Outcome, SimulatedGroup, run_cluster
from planner.simulator.requests import Requests
from planner.simulator.tables import Grids, StepTables
from planner.specs import Phase

FAR = 1e7
GRIDS = Grids(contexts=np.array([0.0, FAR]), queries=np.array([1.0, FAR]), pasts=np.array([0.0, FAR]))


def linear_tables(
    *,
    per_token: float = 0.0,
    per_pair: float = 0.0,
    step: float = 0.0,
    per_sequence: float = 0.0,
    per_context: float = 0.0,
    host: float = 0.0,
    sequences: int = 64,
    budget: int = 1024,
    grids: Grids = GRIDS,
) -> StepTables:
    """D sequences of mean context x take ``step + D (per_sequence + x per_context)``; prompts of Q tokens
    beside them another ``Q per_token``, and ``per_pair`` for each token before a chunk; `host` on top. [s]"""
    batch, context = np.arange(sequences + 1.0)[:, None], grids.contexts[None, :]
    decode = np.where(batch > 0, step + batch * (per_sequence + context * per_context), 0.0)
    return StepTables(
        decode=decode,
        beside=decode - batch * per_token,
        tokens=np.arange(budget + sequences + 1.0) * per_token,
        head=np.zeros(sequences + 1),
        attention=np.broadcast_to(per_pair * grids.pasts[None, :], (grids.queries.size, grids.pasts.size)),
        launch=0.0,
        host=host,
        host_decode=0.0,
        host_sequence=0.0,
        decode_scale=1.0,
        prefill_scale=1.0,
    )


def group(phase: Phase, tables: StepTables, **changes: Any) -> SimulatedGroup:
    """One replica with room for everything; its limits are those of the tables."""
    limit = len(tables.decode) - 1
    given: dict[str, Any] = {
        "name": phase.value,
        "phase": phase,
        "replicas": 1,
        "tables": tables,
        "limit": limit,
        "budget": len(tables.tokens) - 1 - limit,
        "blocks": 10**6,
    }
    return SimulatedGroup(**(given | changes))


def cluster_of_groups(*groups: SimulatedGroup, pair_rate: float = math.inf, **changes: Any) -> Cluster:
    """Groups behind one door; every prefill group reaches every decode group at `pair_rate`. [B/s]"""
    rates = np.zeros((len(groups), len(groups)))
    for i, p in enumerate(groups):
        for j, d in enumerate(groups):
            if p.phase is Phase.PREFILL and d.phase is Phase.DECODE:
                rates[i, j] = pair_rate
    given: dict[str, Any] = {"groups": groups, "grids": GRIDS, "pair_rates": rates, "block_size": 1}
    return Cluster(**(given | changes))


def requests_of(
    arrival: Sequence[float] | np.ndarray,
    isl: int | Sequence[int] | np.ndarray,
    osl: int | Sequence[int] | np.ndarray = 1,
    **changes: Any,
) -> Requests:
    times = np.asarray(arrival, dtype=np.float64)

    def whole(values: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(values, dtype=np.int32), times.shape)

    given: dict[str, Any] = {"arrival": times, "isl": whole(isl), "osl": whole(osl), "cached": whole(0)}
    return Requests(**(given | changes))


def simulate(cluster: Cluster, requests: Requests, bytes_per_token: float = 0.0, **options: Any) -> Outcome:
    holdings = Holdings.plain(requests.isl, bytes_per_token)
    return run_cluster(cluster, requests, holdings, **({"samples": 0} | options))
