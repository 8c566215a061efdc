"""A scenario under a ladder of networks: the points of the answer, and what transfers of a fleet take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.collectives import kv_transfer_time, network_rate
from planner.documents.plan_extras import rounded
from planner.fleet import Deployed, Fleet, path_rate
from planner.plan import LatencySummary
from planner.results import Result
from planner.specs import Objective, Phase
from planner.traffic import Traffic
from planner.transformer import kv_bytes
from planner.units import BITS_PER_BYTE, GIGA, MILLI
from planner.whatif.resolve import Resolved, table_of
from planner.whatif.words import UNITS

AS_ASKED, FP8 = "as asked", "fp8"
SAME_NODE = "within one node"
COLUMNS = (
    "network", "gbps_per_gpu", "rdma", "overlap", "kv_cache", "exposed_transfer_ms",
    "exposed_transfer_p99_ms", "ttft_mean_ms", "ttft_p99_ms", "link", "link_load", "network_binds", "pays",
    "value", "usd_per_hour", "feasible", "fleet", "reason",
)  # fmt: skip
"""Of the table."""
_LONG = 0.99  # quantile of prompt lengths whose transfer is told beside the mean [1]


@dataclass(frozen=True, slots=True)
class Network:
    """What connects the GPUs of a fleet.

    Attributes
    ----------
    bandwidth : float or None
        Of one GPU's NIC, one direction; None: the link within a node instead. [B/s]
    """

    name: str
    bandwidth: float | None = None
    rdma: bool = True


def _gbps(kind: str, rate: float) -> Network:
    return Network(f"{kind} {rate:g}G", rate * GIGA / BITS_PER_BYTE, kind == "RDMA")


LADDER = (
    _gbps("TCP", 25), _gbps("TCP", 100), _gbps("RDMA", 100), _gbps("RDMA", 200), _gbps("RDMA", 400),
    Network(SAME_NODE),
)  # fmt: skip
"""From the slowest to the fastest, per GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkRow:
    """The best disaggregated plan under one network.

    Attributes
    ----------
    overlap : float
        Share of KV transfers that is hidden. [1]
    kv_cache : str
        "as asked" or "fp8".
    exposed, exposed_long : float or None
        Part of a KV transfer that adds to TTFT: mean, and of a prompt at the 99th percentile of lengths; None
        where there is no plan. [s]
    ttft : LatencySummary or None
        Expected. [s]
    link : str
        The narrower end of most transfers, e.g. "decode l40s".
    link_load : float
        Share of the fullest NIC that transfers take. [1]
    binds : bool
        Whether the network ends the capacity of a group.
    pays : bool or None
        Whether the plan is better than the best colocated one; None where there is none to compare with.
    """

    network: Network
    overlap: float
    kv_cache: str
    exposed: float | None
    exposed_long: float | None
    ttft: LatencySummary | None
    link: str
    link_load: float
    binds: bool
    pays: bool | None
    result: Resolved

    def figures(self) -> dict[str, Any]:
        """What there is to say beside the plan, in the units of the names."""
        rate = self.network.bandwidth
        ttft = (None, None) if self.ttft is None else (self.ttft.mean, self.ttft.p99)
        times = (self.exposed, self.exposed_long, *ttft)
        exposed, exposed_long, mean, p99 = (None if t is None else rounded(t / MILLI) for t in times)
        return {
            "network": self.network.name,
            "gbps_per_gpu": None if rate is None else rounded(rate * BITS_PER_BYTE / GIGA),
            "rdma": self.network.rdma,
            "overlap": rounded(self.overlap),
            "kv_cache": self.kv_cache,
            "exposed_transfer_ms": exposed,
            "exposed_transfer_p99_ms": exposed_long,
            "ttft_mean_ms": mean,
            "ttft_p99_ms": p99,
            "link": self.link,
            "link_load": rounded(self.link_load),
            "network_binds": self.binds,
            "pays": self.pays,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Networks(Result):
    """A scenario under a ladder of networks.

    Attributes
    ----------
    colocated : mapping of str to Resolved
        The best plan without hand-overs, by format of the KV cache; empty where it is forbidden.
    own_overlap : float
        Of the engine as its file has it. [1]
    """

    name: str
    objective: Objective
    points: tuple[NetworkRow, ...]
    colocated: dict[str, Resolved]
    own_overlap: float
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def unit(self) -> str:
        return UNITS[self.objective]

    def rows(self) -> tuple[dict[str, Any], ...]:
        """A flat row for each network and variant, with the columns of :data:`COLUMNS`."""
        return tuple({**point.figures(), **table_of(point.result)} for point in self.points)


# --------------------------------------------------------------------------------------------
# Transfers of a fleet


def exposed_transfer(fleet: Fleet) -> tuple[float, float]:
    """Exposed time of a KV transfer: mean over prompts and pairs of groups, and that of a long prompt on the
    slowest pair. [s]"""
    total = mean = longest = 0.0
    for p, d in _pairs(fleet):
        service = fleet.service_of(p)
        traffic = Traffic.of_service(service)
        long = float(np.interp(_LONG, np.cumsum(traffic.isl_weights), traffic.isl))
        isl = np.append(traffic.isl, long)
        size = kv_bytes(service.model, service.precision.kv_cache, isl)
        layers = service.model.num_layers / p.parallelism.pp
        times = kv_transfer_time(isl, size, path_rate(fleet, p, d), layers, fleet.engine)
        mean += p.rate * d.rate * float(traffic.isl_weights @ times[:-1])
        total += p.rate * d.rate
        longest = max(longest, float(times[-1]))
    return (mean / total if total else math.nan), longest


def narrower_end(fleet: Fleet) -> str:
    """The group whose NICs end the rate of the slowest path, in words."""
    p, d = min(_pairs(fleet), key=lambda pair: path_rate(fleet, *pair))
    end = min(
        (d, p),
        key=lambda g: network_rate(g.item, fleet.engine) * g.parallelism.num_gpus / g.parallelism.dp,
    )
    return f"{end.phase} {end.item.gpu.name}"


def _pairs(fleet: Fleet) -> list[tuple[Deployed, Deployed]]:
    return [(p, d) for p in fleet.pool(Phase.PREFILL) for d in fleet.pool(Phase.DECODE)]
