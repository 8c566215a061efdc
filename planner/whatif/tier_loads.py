"""What prompts find in tiers of KV caches, and how fast it comes to the replicas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.collectives import LINK_LOAD_LIMIT
from planner.engines import engine_of
from planner.latency import prompt_time
from planner.operators import ReplicaSet
from planner.reuse import ReuseCurve
from planner.specs import GPU, Parallelism, Precision, Service
from planner.traffic import Traffic
from planner.transformer import kv_bytes_per_token, kv_copies
from planner.whatif.tier_specs import Per, Pool, Tier

MOST_FOUND = 0.999  # of all prompt tokens: the last one of a prompt is always computed [1]
_HALF = 0.5  # of a prompt, found or not, where nothing says how much is [1]


@dataclass(frozen=True, slots=True)
class Load:
    """What one tier gives the prompts.

    Attributes
    ----------
    found : float
        Share of the prompt tokens that is there. [1]
    used : float
        Share that is read: less, where the tier could not keep up. [1]
    demand : float
        Of reading. [B/s]
    bandwidth : float
        That a prompt sees. [B/s]
    """

    found: float
    used: float
    demand: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Offer:
    """What HBM and some tiers give the prompts together.

    Attributes
    ----------
    hbm : float
        Share of the prompt tokens that lies in HBM. [1]
    loads : tuple of Load
        Of each tier.
    """

    hbm: float
    loads: tuple[Load, ...] = ()

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that need not be computed. [1]"""
        return min(self.hbm + sum(load.used for load in self.loads), MOST_FOUND)

    @property
    def bandwidth(self) -> float:
        """Rate at which they come, on average over all; infinite where all lie in HBM. [B/s]"""
        time = sum(load.used / load.bandwidth for load in self.loads if load.used)
        return self.hit_rate / time if time else math.inf

    def at_most(self, other: Offer) -> Offer:
        """The poorer of two offers of the same tiers, part by part."""
        loads = (
            Load(min(a.found, b.found), min(a.used, b.used), a.demand, min(a.bandwidth, b.bandwidth))
            for a, b in zip(self.loads, other.loads, strict=True)
        )
        return Offer(min(self.hbm, other.hbm), tuple(loads))

    def covers(self, other: Offer, tolerance: float) -> bool:
        """Whether this gives as much as another, but for a relative `tolerance`."""
        least = 1 - tolerance
        enough = self.hit_rate >= least * other.hit_rate
        return enough and (self.bandwidth >= least * other.bandwidth or math.isinf(self.bandwidth))


def offer_of(
    tiers: Sequence[Tier], pool: Pool, service: Service, rate: float, curve: ReuseCurve | None
) -> Offer:
    r"""What prompts at `rate` [req/s] find in the HBM of a pool and in tiers, fastest first.

    Notes
    -----
    Each tier holds what the faster ones dropped (no block is kept twice), least recently used ones go first,
    and all replicas of a pool count as one cache: a router that sends a prompt where its prefix lies. So tier
    i finds :math:`h(C_0 + \dots + C_i) - h(C_0 + \dots + C_{i-1})`, with h the reuse curve.

    A tier that several replicas read from is a processor-sharing queue: with :math:`\rho` the share of its
    bandwidth that is asked for, a prompt sees :math:`1 - \rho` of it, and never less than its part among all
    replicas. No more is read than loads it to :data:`LINK_LOAD_LIMIT`; the rest is computed. What each GPU
    has of its own nobody else reads from: prompts of one replica come one after the other.
    """
    model, dtype = service.model, service.precision.kv_cache
    token = kv_bytes_per_token(model, dtype)
    asked = rate * service.workload.lengths.isl.mean * token * pool.copies  # [B/s] if all was read
    capacity = pool.tokens
    hbm = found = service.workload.prefix_hit_rate if curve is None else curve.share(capacity)
    loads = []
    for tier in tiers:
        if tier.hit_rate is not None:
            share = tier.hit_rate
        else:
            assert tier.capacity is not None
            assert curve is not None
            capacity += tier.capacity.of(pool) / token
            share = max(curve.share(capacity) - found, 0.0)
        found += share
        loads.append(_load(tier, pool, share, asked))
    return Offer(hbm, tuple(loads))


def _load(tier: Tier, pool: Pool, share: float, asked: float) -> Load:
    if tier.bandwidth.per is Per.GPU:
        return Load(share, share, share * asked, tier.bandwidth.value * pool.replica_gpus)
    units = max(tier.bandwidth.units(pool), 1)
    whole = tier.bandwidth.value * units
    used = min(share, LINK_LOAD_LIMIT * whole / asked) if asked else share
    load = used * asked / whole
    readers = max(pool.replicas / units, 1.0)
    return Load(share, used, used * asked, tier.bandwidth.value * max(1 - load, 1 / readers))


def break_even(
    service: Service, gpu: GPU, layout: Parallelism, precision: Precision, hit_rate: float
) -> float:
    """Bandwidth above which loading a found prefix beats computing it on a replica that is idle. [B/s]

    Parameters
    ----------
    hit_rate : float
        Share of each prompt that is found; 0: half of it is assumed. [1]
    """
    traffic = Traffic.of_service(service)
    engine = engine_of(service)
    r = ReplicaSet.of(service.model, precision, engine, [(gpu, layout)], 0.0, service.speculation)
    cached = np.minimum(np.round((hit_rate or _HALF) * traffic.isl), traffic.isl - 1)
    budget = float(max(engine.prefill_token_budget, 1))
    whole = prompt_time(r, traffic.isl[:, None], 0.0, budget).service[:, 0]
    rest = prompt_time(r, (traffic.isl - cached)[:, None], cached[:, None], budget).service[:, 0]
    saved = float(traffic.isl_weights @ (whole - rest))
    size = kv_bytes_per_token(service.model, precision.kv_cache) * kv_copies(service.model, layout.tp)
    return float(traffic.isl_weights @ cached) * size / saved if saved > 0 else math.inf
