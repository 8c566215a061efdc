"""TTFT and TPOT of given groups at a given load: mixtures over groups, percentiles by inversion.

Percentiles of a sum come from the distribution of the sum (wait, own service, exposed transfer and
first decode step together), never from adding percentiles; the mixture over groups weighs each by
its share of the requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import FloatArray
from planner.capacity import (
    FIRST_STEP_SPREAD,
    ColocatedState,
    PromptQueues,
    Spread,
    batch_for_tokens,
    colocated_state,
    elasticity,
    prompt_queues,
    prompts_of,
    tpot_moments,
)
from planner.collectives import kv_transfer_time
from planner.fleet import Deployed, Fleet, path_rate
from planner.latency import decode_step_time, prompt_time
from planner.operators import ReplicaSet
from planner.plan import LatencySummary
from planner.queueing import (
    FlightSojourn,
    Sojourn,
    decode_occupancy,
    gamma_tail,
    shared_servers,
    shares_by_speed,
)
from planner.specs import Phase, Routing, SchedulerPolicy
from planner.traffic import Traffic
from planner.transformer import kv_bytes

INTERVAL_Z = 1.2816  # normal quantile of 0.9: the interval covers 80 % of the model error [1]
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_TOLERANCE = 1e-4
_ROUNDING = 1e-9  # of a sum of probabilities [1]
_BATCHES, _BATCHES_SPAN = 96, 512.0  # grid of batches, and its largest over its smallest [1]
_FINE_BATCHES = 24
_ONLY = np.array([0])
_BISECTIONS = 40
_LEAST_RATE = 1e-6  # share of a group that the router avoids; it must have some [1]
_STEP_PARTS = 3  # that the distribution of first decode steps is cut into


@dataclass(frozen=True, slots=True)
class Component:
    """Part of a mixture: its share, mean, and P(X > t). [1, s]"""

    share: float
    mean: float
    exceeds: Callable[[float], float]
    longest: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Distributions of TTFT and TPOT over all requests, as mixtures."""

    ttft: tuple[Component, ...]
    tpot: tuple[Component, ...]

    def summaries(self) -> tuple[LatencySummary, LatencySummary]:
        return summary(self.ttft), summary(self.tpot)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full a group is.

    Attributes
    ----------
    busy : share of time in prefill, or mean batch over its limit. [1]
    mean_batch : prompts per step (prefill), sequences per step (decode, colocated).
    batch_p99 : batch that 99 % of steps do not exceed.
    """

    busy: float
    mean_batch: float
    batch_p99: float


def exceedance(components: Sequence[Component], time: float) -> float:
    """P(X > time) of a mixture."""
    return sum(c.share * c.exceeds(time) for c in components)


def summary(components: Sequence[Component]) -> LatencySummary:
    """Mean and percentiles of a mixture; infinite where a part has no steady state."""
    if any(not math.isfinite(c.mean) for c in components):
        return LatencySummary(mean=math.inf, p50=math.inf, p90=math.inf, p95=math.inf, p99=math.inf)
    mean = sum(c.share * c.mean for c in components)
    return LatencySummary(mean=mean, **{name: _quantile(components, p) for name, p in _PERCENTILES.items()})


def _quantile(components: Sequence[Component], probability: float) -> float:
    low, high = 0.0, max(c.longest for c in components)
    miss = 1 - probability + _ROUNDING
    while exceedance(components, high) > miss:
        low, high = high, 2 * high
    while high - low > _TOLERANCE * high:
        middle = 0.5 * (low + high)
        if exceedance(components, middle) > miss:
            low = middle
        else:
            high = middle
    return high


def predict_fleet(fleet: Fleet, z: float = 0.0) -> Latencies:
    """Latencies of all requests; `z` is the normal quantile of the model error assumed."""
    traffic = Traffic.of_service(fleet.service)
    if fleet.pool(Phase.COLOCATED):
        rate = sum(g.rate for g in fleet.pool(Phase.COLOCATED))
        pool = _colocated_pool(fleet, traffic, z)
        parts = [_colocated(fleet, g, g.rate / rate, traffic, z) for g in pool]
        return Latencies(tuple(p[0] for p in parts), tuple(p[1] for p in parts))
    decode = [_Decode.of(fleet, g, traffic, z) for g in fleet.pool(Phase.DECODE)]
    ttft = tuple(_prefill(fleet, g, decode, traffic) for g in _prompt_pool(fleet, traffic, z))
    if not traffic.has_tpot:
        return Latencies(ttft, tuple(_no_tpot(d.share) for d in decode))
    return Latencies(ttft, tuple(d.component() for d in decode))


def _no_tpot(share: float) -> Component:
    """Requests of one output token have no TPOT, and meet every limit on it."""
    return Component(share, 0.0, lambda _t: 0.0, 0.0)


def replica_set(fleet: Fleet, group: Deployed, z: float) -> ReplicaSet:
    """The group's replica, alone."""
    return ReplicaSet.of(
        fleet.service.model,
        fleet.service.precision,
        fleet.engine,
        [(group.item.gpu, group.parallelism)],
        z,
    )


def _share(fleet: Fleet, group: Deployed) -> float:
    total = sum(g.rate for g in fleet.pool(group.phase))
    return group.rate / total


# --------------------------------------------------------------------------------------------
# Prefill


@dataclass(frozen=True, slots=True)
class _Prompts:
    """A prefill group within its pool.

    Attributes
    ----------
    share : of the prompts that it takes. [1]
    load : of its replicas, shape (1, 1). [1]
    met : load that makes its prompts wait, shape (1, 1). [1]
    pooled : replicas that stand in for one another, shape (1,). [1]
    """

    group: Deployed
    queues: PromptQueues
    share: float
    load: FloatArray
    met: FloatArray
    pooled: FloatArray

    def sojourn(self, fleet: Fleet, traffic: Traffic, after: Spread) -> Sojourn | FlightSojourn:
        return self.queues.sojourn(self.met, self.pooled, fleet.routing, traffic.arrival_scv, after)


def _prompt_pool(fleet: Fleet, traffic: Traffic, z: float) -> list[_Prompts]:
    """Prefill groups behind one router: the least work is found where a prompt ends first."""
    groups = fleet.pool(Phase.PREFILL)
    queues = [prompt_queues(replica_set(fleet, g, z), traffic, g.token_budget).at(_ONLY) for g in groups]
    rate = sum(g.rate for g in groups)
    counts = [float(g.replicas) for g in groups]
    if len(groups) == 1 or fleet.routing is not Routing.LEAST_LOADED:
        shares, pooled = [g.rate / rate for g in groups], counts
    else:
        times = [float(q.alone[0] @ traffic.isl_weights) for q in queues]
        servers = [n * float(q.stages[0] * q.ranks[0]) for n, q in zip(counts, queues, strict=True)]
        shares = shares_by_speed(rate, times, servers)
        pooled = [shared_servers(times, counts, k) for k in range(len(groups))]
    loads = [
        q.load(share * rate, g.replicas, fleet.routing)
        for g, q, share in zip(groups, queues, shares, strict=True)
    ]
    # nobody waits longer at a busier group than for another one
    even = sum(n * load for n, load in zip(counts, loads, strict=True)) / sum(counts)
    return [
        _Prompts(g, q, share, load, np.minimum(load, even), np.array([n]))
        for g, q, share, load, n in zip(groups, queues, shares, loads, pooled, strict=True)
    ]


def _prefill(fleet: Fleet, prompts: _Prompts, decode: Sequence[_Decode], traffic: Traffic) -> Component:
    """TTFT of the requests that one prefill group takes."""
    queues = prompts.queues
    points, weights = [], []
    for d in decode:
        transfer = _transfer(fleet, prompts.group, d.group, traffic)
        for share, step in d.first_steps:
            points.append(transfer + step)
            weights.append(d.share * share * traffic.isl_weights)
    after = np.concatenate(points)
    alone = np.tile(queues.alone[0], len(points))
    spread = Spread((alone + after)[None], (alone / queues.stages[0] + after)[None], np.concatenate(weights))
    sojourn = prompts.sojourn(fleet, traffic, spread)
    return Component(
        prompts.share,
        float(sojourn.mean[0, 0]),
        lambda t: float(sojourn.exceeds(np.array([[t]]))[0, 0]),
        float(spread.total.max()),
    )


def prefill_sojourn(fleet: Fleet, group: Deployed, traffic: Traffic, z: float) -> Sojourn | FlightSojourn:
    """Wait plus own time of a prompt, shape (1, 1)."""
    (prompts,) = (p for p in _prompt_pool(fleet, traffic, z) if p.group is group)
    alone, stages = prompts.queues.alone, prompts.queues.stages
    return prompts.sojourn(fleet, traffic, Spread(alone, alone / stages[:, None], traffic.isl_weights))


def prefill_occupancy(fleet: Fleet, group: Deployed, z: float = 0.0) -> Occupancy:
    """Share of time that replicas of the group compute, and their prompts per step."""
    traffic = Traffic.of_service(fleet.service)
    (prompts,) = (p for p in _prompt_pool(fleet, traffic, z) if p.group is group)
    number = float(prompts.queues.prompts(prompts.load, prompts.pooled, fleet.routing)[0, 0])
    return Occupancy(float(prompts.load[0, 0]), number, number)


def _transfer(fleet: Fleet, prefill: Deployed, decode: Deployed, traffic: Traffic) -> FloatArray:
    """Exposed KV transfer of each prompt length between two groups. [s]"""
    size = kv_bytes(fleet.service.model, fleet.service.precision.kv_cache, traffic.isl)
    rate = path_rate(fleet, prefill, decode)
    layers = fleet.service.model.num_layers / prefill.parallelism.pp
    return kv_transfer_time(traffic.isl, size, rate, layers, fleet.engine)


# --------------------------------------------------------------------------------------------
# Decode


@dataclass(frozen=True, slots=True)
class _Decode:
    """A decode group's distribution of batches and step times."""

    group: Deployed
    share: float
    probability: FloatArray
    batch: FloatArray
    step: FloatArray

    @classmethod
    def of(cls, fleet: Fleet, group: Deployed, traffic: Traffic, z: float) -> _Decode:
        slots = max(int(decode_slots(group, traffic)), 1)
        r = replica_set(fleet, group, z)
        times = decode_step_time(r, np.arange(1.0, slots + 1)[:, None], traffic.decode_context)[:, 0]
        replicas = group.replicas
        occupancy = decode_occupancy(group.rate / replicas, traffic.mean_osl, times, replicas)
        number = np.arange(len(occupancy.pmf))
        batch = number / replicas
        step = np.interp(np.maximum(batch, 1.0), np.arange(1, slots + 1), times)
        return cls(group, _share(fleet, group), occupancy.pmf, batch, step)

    @property
    def first_steps(self) -> list[tuple[float, float]]:
        """Time until a new sequence's first token, as shares and points: the rest of a running step, then its
        own. [1, s]"""
        below = np.cumsum(self.probability)
        sums = np.cumsum(self.probability * self.step)
        edges = np.linspace(0.0, 1.0, _STEP_PARTS + 1)
        steps = np.diff(np.interp(edges, np.append(0.0, below), np.append(0.0, sums))) * _STEP_PARTS
        running = float(self.probability @ np.minimum(self.batch, 1.0))
        points = [((1 - running) / _STEP_PARTS, float(step)) for step in steps]
        share = running / (_STEP_PARTS * len(FIRST_STEP_SPREAD))
        return points + [(share, float(step * rest)) for step in steps for rest in FIRST_STEP_SPREAD]

    def component(self) -> Component:
        """TPOT: the step at the batch that a request meets, weighted by the tokens made there."""
        weights = self.probability * self.batch / self.step
        weights = weights / weights.sum()
        mean = float(weights @ self.step)
        order = np.argsort(self.step, kind="stable")
        step = self.step[order]
        above = 1.0 - np.cumsum(self.probability[order])

        def exceeds(t: float) -> float:
            index = int(np.searchsorted(step, t, side="right"))
            return 1.0 if index == 0 else float(max(above[index - 1], 0.0))

        return Component(self.share, mean, exceeds, float(step[-1]))

    def occupancy(self) -> Occupancy:
        cumulative = np.cumsum(self.probability)
        index = min(int(np.searchsorted(cumulative, 0.99)), len(self.batch) - 1)
        mean = float(self.probability @ self.batch)
        return Occupancy(mean / float(self.batch[-1]), mean, float(self.batch[index]))


def decode_slots(group: Deployed, traffic: Traffic, miss: float = 0.001) -> float:
    """Sequences that a replica's KV cache and limit admit."""
    fits = batch_for_tokens(np.array([float(group.kv_tokens)]), traffic, miss)
    return min(float(fits[0]), float(group.max_num_seqs))


def decode_group_occupancy(fleet: Fleet, group: Deployed, z: float = 0.0) -> Occupancy:
    """How full the batches of a decode group are."""
    return _Decode.of(fleet, group, Traffic.of_service(fleet.service), z).occupancy()


# --------------------------------------------------------------------------------------------
# Colocated


def _operating_batch(r: ReplicaSet, traffic: Traffic, policy: SchedulerPolicy, group: Deployed) -> float:
    """Smallest batch at which a colocated replica serves the group's rate; inf if there is none.

    The rate may fall again with the batch, where prompts cost more beside more sequences: a first batch is
    looked for on a grid, then on a finer one, and interpolated.
    """
    target = group.rate / group.replicas
    budget = np.array([float(group.token_budget)])

    def rates(batches: FloatArray) -> FloatArray:
        state, _ = colocated_state(r, traffic, policy, budget, batches[:, None])
        return state.rate[:, 0]

    largest = float(min(group.max_num_seqs, group.token_budget / 2))
    grid = np.geomspace(largest / _BATCHES_SPAN, largest, _BATCHES)
    enough = np.flatnonzero(rates(grid) >= target)
    if not len(enough):
        return math.inf
    first = int(enough[0])
    low = float(grid[first - 1]) if first else 1e-3 * float(grid[0])
    fine = np.geomspace(low, float(grid[first]), _FINE_BATCHES)
    served = rates(fine)
    last = int(np.flatnonzero(served >= target)[0])
    if last == 0:
        return float(fine[0])
    share = (target - served[last - 1]) / (served[last] - served[last - 1])
    return float(fine[last - 1] + share * (fine[last] - fine[last - 1]))


def colocated_group_occupancy(fleet: Fleet, group: Deployed, z: float = 0.0) -> Occupancy:
    """How full the batches of a colocated group are."""
    traffic = Traffic.of_service(fleet.service)
    r = replica_set(fleet, group, z)
    batch = _operating_batch(r, traffic, fleet.engine.scheduler, group)
    slots = decode_slots(group, traffic)
    deviation = math.sqrt(batch / group.replicas) if math.isfinite(batch) else math.inf
    return Occupancy(min(batch / slots, 1.0), batch, batch + 2.33 * deviation)


def _colocated_pool(fleet: Fleet, traffic: Traffic, z: float) -> list[Deployed]:
    """Groups at the rates that a router by work gives them.

    It compares what a prompt takes on a replica, with what the sequences there will still take: batches are
    such that this level is the same everywhere, and a group whose prompts alone exceed it gets none.
    """
    groups = list(fleet.pool(Phase.COLOCATED))
    if len(groups) == 1 or fleet.routing is not Routing.LEAST_LOADED:
        return groups
    curves = [_by_level(fleet, g, traffic, z) for g in groups]
    total = sum(g.rate for g in groups)

    def rates(level: float) -> list[float]:
        return [
            g.replicas * float(np.interp(level, levels, served, left=0.0))
            for g, (levels, served) in zip(groups, curves, strict=True)
        ]

    low, high = 0.0, max(float(levels[-1]) for levels, _ in curves)
    if sum(rates(high)) < total:
        return groups
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if sum(rates(middle)) >= total else (middle, high)
    shared = rates(high)
    return [
        replace(g, rate=total * max(rate, _LEAST_RATE * total) / sum(shared))
        for g, rate in zip(groups, shared, strict=True)
    ]


def _by_level(fleet: Fleet, group: Deployed, traffic: Traffic, z: float) -> tuple[FloatArray, FloatArray]:
    """Work that a router sees on a replica, and the replica's rate, over a grid of batches. [s, req/s]"""
    r = replica_set(fleet, group, z)
    lanes = float(r.lanes[0])
    largest = min(group.max_num_seqs, group.token_budget / 2)
    batch = np.geomspace(largest / _BATCHES_SPAN, largest, _BATCHES)
    budget = np.array([float(group.token_budget)])
    state, _ = colocated_state(r, traffic, fleet.engine.scheduler, budget, batch[:, None])
    rate = np.maximum.accumulate(state.rate[:, 0])
    own = prompt_time(r, traffic.query[:, None], traffic.cached[:, None], budget).service[:, 0]
    ends = decode_step_time(r, np.array([[1.0], [float(group.max_num_seqs)]]) * lanes, 1.0)[:, 0]
    sequence = float(ends[1] - ends[0]) / (group.max_num_seqs - 1) * traffic.mean_osl / 2
    waiting = rate * state.added[:, 0] ** 2 / 2
    return float(own @ traffic.isl_weights) + (batch * sequence + waiting) / lanes, rate


def _colocated(
    fleet: Fleet, group: Deployed, share: float, traffic: Traffic, z: float
) -> tuple[Component, Component]:
    """TTFT and TPOT of the requests that one colocated group takes."""
    r = replica_set(fleet, group, z)
    batch = _operating_batch(r, traffic, fleet.engine.scheduler, group)
    if not math.isfinite(batch):
        never = Component(share, math.inf, lambda _t: 1.0, math.inf)
        return never, never
    width = min(max(batch**-0.5, 0.02), 0.5)  # as far as the batch moves
    around = batch * np.array([[1 - width], [1.0], [1 + width]])
    budget = np.array([float(group.token_budget)])
    policy = fleet.engine.scheduler
    state, time = colocated_state(r, traffic, policy, budget, around)
    floor = float(decode_step_time(r, np.array([[1.0]]), traffic.decode_context)[0, 0])
    counts = np.array([float(group.replicas)])
    prompts = prompts_of(state, r, traffic, policy, budget, time, merge=False)
    ttft = _first_token(share, prompts.sojourn(counts, fleet.routing, traffic.arrival_scv))

    at = ColocatedState(*(getattr(state, name)[1] for name in ColocatedState.__slots__))
    if not traffic.has_tpot:
        return ttft, _no_tpot(share)
    osl, weights = traffic.timed
    mean, variance = tpot_moments(
        at, elasticity(state)[1], osl, traffic.colocated_steps, traffic.osl_scv, counts
    )
    tpot = float(mean[0])
    floor, ceiling = min(floor, tpot), max(float(at.longest[0]), tpot)

    def exceeds(t: float) -> float:
        if t >= ceiling:
            return 0.0
        tail = gamma_tail(tpot - floor, variance[0], t - floor)
        return float(np.sum(weights * tail))

    return ttft, Component(share, tpot, exceeds, 2 * tpot)


def _first_token(share: float, sojourn: Sojourn | FlightSojourn) -> Component:
    """TTFT at the middle point of a grid of batches."""
    mean = float(np.broadcast_to(sojourn.mean, (3, 1, 1))[1, 0, 0])
    if not math.isfinite(mean):
        return Component(share, math.inf, lambda _t: 1.0, math.inf)
    return Component(share, mean, lambda t: float(sojourn.exceeds(np.array([[[t]]]))[1, 0, 0]), 2 * mean)
