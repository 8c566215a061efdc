"""TTFT and TPOT of given groups at a given load: mixtures over groups, percentiles by inversion.

Percentiles of a sum come from the distribution of the sum (wait, own service, exposed transfer and
first decode step together), never from adding percentiles; the mixture over groups weighs each by
its share of the requests.
"""

from functools import lru_cache

from planner.fleet import Fleet
from planner.plan import LatencySummary
from planner.prediction.colocated import colocated_group_occupancy, colocated_latencies, colocated_pool
from planner.prediction.disaggregated import (
    DecodeGroup,
    decode_group_occupancy,
    decode_slots,
    first_tokens,
    prefill_occupancy,
    prefill_sojourn,
    prompt_pool,
)
from planner.prediction.mixture import (
    KEPT,
    Component,
    Latencies,
    Occupancy,
    exceedance,
    no_tpot,
    replica_set,
    summary,
    traffic_of,
)
from planner.prediction.saturation import PoolLoad, overloaded, pool_loads
from planner.specs import Phase
from planner.traffic import Traffic

__all__ = [
    "INTERVAL_Z",
    "Component",
    "Latencies",
    "Occupancy",
    "PoolLoad",
    "colocated_group_occupancy",
    "decode_group_occupancy",
    "decode_slots",
    "exceedance",
    "overloaded",
    "pool_loads",
    "predict_fleet",
    "prefill_occupancy",
    "prefill_sojourn",
    "replica_set",
    "summaries",
    "summary",
]

INTERVAL_Z = 1.2816  # normal quantile of 0.9: the interval covers 80 % of the model error [1]


@lru_cache(maxsize=KEPT)
def summaries(fleet: Fleet, z: float = 0.0) -> tuple[LatencySummary, LatencySummary]:
    """TTFT and TPOT of all requests; see :func:`predict_fleet`."""
    return predict_fleet(fleet, z).summaries()


def predict_fleet(fleet: Fleet, z: float = 0.0) -> Latencies:
    """Latencies of all requests; `z` is the normal quantile of the model error assumed."""
    traffic = Traffic.of_service(fleet.service)
    if fleet.pool(Phase.COLOCATED):
        parts = [colocated_latencies(fleet, served, z) for served in colocated_pool(fleet, traffic, z)]
        return Latencies(tuple(p[0] for p in parts), tuple(p[1] for p in parts))
    decode = [DecodeGroup.of(fleet, g, traffic_of(fleet, g), z) for g in fleet.pool(Phase.DECODE)]
    ttft = tuple(first_tokens(fleet, g, decode, traffic) for g in prompt_pool(fleet, traffic, z))
    if not traffic.has_tpot:
        return Latencies(ttft, tuple(no_tpot(d.share) for d in decode))
    return Latencies(ttft, tuple(d.component() for d in decode))
