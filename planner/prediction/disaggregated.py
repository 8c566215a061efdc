"""TTFT behind prefill groups, and TPOT of decode groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.arrays import FloatArray
from planner.capacity import FIRST_STEP_SPREAD, PromptQueues, Spread, batch_for_tokens, prompt_queues
from planner.collectives import kv_transfer_time
from planner.fleet import Deployed, Fleet, path_rate
from planner.latency import decode_step_time
from planner.prediction.mixture import KEPT, Component, Occupancy, Replica, share_of, traffic_of
from planner.queueing import FlightSojourn, Sojourn, decode_occupancy, shared_servers, shares_by_speed
from planner.specs import Phase, Routing
from planner.traffic import Traffic
from planner.transformer import kv_bytes

_ONLY = np.array([0])
_SPREAD = (0.35, 0.55)  # loads of pipelines between which groups become equally busy [1]
_STEP_PARTS = 3  # that the distribution of first decode steps is cut into


@lru_cache(maxsize=KEPT)
def _queues(replica: Replica, token_budget: int) -> PromptQueues:
    traffic = Traffic.of_service(replica.service)
    return prompt_queues(replica.kernels, traffic, token_budget).at(_ONLY)


@lru_cache(maxsize=KEPT)
def _steps(replica: Replica, context: float, slots: int) -> FloatArray:
    """Decode steps of 1 to `slots` sequences. [s]"""
    times = decode_step_time(replica.kernels, np.arange(1.0, slots + 1)[:, None], context)[:, 0]
    times.flags.writeable = False
    return times


# --------------------------------------------------------------------------------------------
# Prefill


@dataclass(frozen=True, slots=True)
class PromptGroup:
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


def prompt_pool(fleet: Fleet, traffic: Traffic, z: float) -> list[PromptGroup]:
    """Prefill groups behind one router: the least work is found where a prompt ends first.

    On pipelines steps fill up from a load of a half on, so that the fast ones lose their advantage.
    """
    groups = fleet.pool(Phase.PREFILL)
    queues = [_queues(Replica.of(fleet, g, z), g.token_budget) for g in groups]
    rate = sum(g.rate for g in groups)
    counts = [float(g.replicas) for g in groups]
    shares, pooled = [g.rate / rate for g in groups], counts
    if len(groups) > 1 and fleet.routing is Routing.LEAST_LOADED:
        times = [float(q.alone[0] @ traffic.isl_weights) for q in queues]
        stages = [float(q.stages[0]) for q in queues]
        servers = [n * m * float(q.ranks[0]) for n, m, q in zip(counts, stages, queues, strict=True)]
        evenly = np.array(servers) / times / sum(n / t for n, t in zip(servers, times, strict=True))
        busy = rate * max(t * share / n for t, share, n in zip(times, evenly, servers, strict=True))
        even = float(np.clip((busy - _SPREAD[0]) / (_SPREAD[1] - _SPREAD[0]), 0.0, 1.0)) * (max(stages) > 1)
        fast = np.array(shares_by_speed(rate, times, servers))
        shares = (even * evenly + (1 - even) * fast).tolist()
        pooled = [shared_servers(times, counts, k) for k in range(len(groups))]
    loads = [
        q.load(share * rate, g.replicas, fleet.routing)
        for g, q, share in zip(groups, queues, shares, strict=True)
    ]
    # nobody waits longer at a busier group than for another one
    mean = sum(n * load for n, load in zip(counts, loads, strict=True)) / sum(counts)
    return [
        PromptGroup(g, q, share, load, np.minimum(load, mean), np.array([n]))
        for g, q, share, load, n in zip(groups, queues, shares, loads, pooled, strict=True)
    ]


def first_tokens(
    fleet: Fleet, prompts: PromptGroup, decode: Sequence[DecodeGroup], traffic: Traffic
) -> Component:
    """TTFT of the requests that one prefill group takes.

    A first token that the prefill side makes comes with the hand-over, and waits for no decode step.
    """
    queues = prompts.queues
    steps = fleet.engine.first_token_phase is Phase.DECODE
    points, weights = [], []
    for d in decode:
        transfer = _transfer(fleet, prompts.group, d.group, traffic)
        for share, step in d.first_steps if steps else [(1.0, 0.0)]:
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
    (prompts,) = (p for p in prompt_pool(fleet, traffic, z) if p.group is group)
    alone, stages = prompts.queues.alone, prompts.queues.stages
    return prompts.sojourn(fleet, traffic, Spread(alone, alone / stages[:, None], traffic.isl_weights))


def prefill_occupancy(fleet: Fleet, group: Deployed, z: float = 0.0) -> Occupancy:
    """Share of time that replicas of the group compute, and their prompts per step."""
    traffic = traffic_of(fleet, group)
    (prompts,) = (p for p in prompt_pool(fleet, traffic, z) if p.group is group)
    number = float(prompts.queues.prompts(prompts.load, prompts.pooled, fleet.routing)[0, 0])
    return Occupancy(float(prompts.load[0, 0]), number, number)


def _transfer(fleet: Fleet, prefill: Deployed, decode: Deployed, traffic: Traffic) -> FloatArray:
    """Exposed KV transfer of each prompt length between two groups. [s]"""
    size = kv_bytes(fleet.service.model, fleet.service_of(prefill).precision.kv_cache, traffic.isl)
    rate = path_rate(fleet, prefill, decode)
    layers = fleet.service.model.num_layers / prefill.parallelism.pp
    return kv_transfer_time(traffic.isl, size, rate, layers, fleet.engine)


# --------------------------------------------------------------------------------------------
# Decode


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """A decode group's distribution of batches and step times, and the tokens that a step emits."""

    group: Deployed
    share: float
    probability: FloatArray
    batch: FloatArray
    step: FloatArray
    tokens_per_step: float = 1.0

    @classmethod
    def of(cls, fleet: Fleet, group: Deployed, traffic: Traffic, z: float) -> DecodeGroup:
        slots = max(int(decode_slots(group, traffic)), 1)
        times = _steps(Replica.of(fleet, group, z), traffic.decode_context, slots)
        replicas = group.replicas
        occupancy = decode_occupancy(group.rate / replicas, traffic.decode_steps, times, replicas)
        number = np.arange(len(occupancy.pmf))
        batch = number / replicas
        step = np.interp(np.maximum(batch, 1.0), np.arange(1, slots + 1), times)
        share = share_of(fleet, group)
        return cls(group, share, occupancy.pmf, batch, step, traffic.tokens_per_step)

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
        """TPOT: the step at the batch that a request meets over the tokens that it emits, weighted by the
        tokens made there."""
        a = self.tokens_per_step
        weights = self.probability * self.batch / self.step
        weights = weights / weights.sum()
        mean = float(weights @ self.step)
        order = np.argsort(self.step, kind="stable")
        step = self.step[order]
        above = 1.0 - np.cumsum(self.probability[order])

        def exceeds(t: float) -> float:
            index = int(np.searchsorted(step, t * a, side="right"))
            return 1.0 if index == 0 else float(max(above[index - 1], 0.0))

        return Component(self.share, mean / a, exceeds, float(step[-1]) / a)

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
    return DecodeGroup.of(fleet, group, traffic_of(fleet, group), z).occupancy()
