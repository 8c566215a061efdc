"""Whether a pool can serve what is sent to it at all, whatever the SLOs.

Where it cannot, queues grow for ever, and latencies have no value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.capacity import colocated_state, prompt_queues
from planner.fleet import Deployed, Fleet
from planner.latency import decode_step_time
from planner.operators import ReplicaSet
from planner.prediction.disaggregated import decode_slots
from planner.prediction.mixture import replica_set
from planner.specs import Phase
from planner.traffic import Traffic

_BATCHES = 64  # of the grid on which the largest rate of a colocated replica is looked for
_ONLY = np.array([0])


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolLoad:
    """What is sent to a pool, over the most that it serves with every queue full.

    Attributes
    ----------
    offered, most : float
        [req/s]
    """

    phase: Phase
    replicas: int
    offered: float
    most: float

    @property
    def utilization(self) -> float:
        """Work that is sent over work that can be done; from 1 on there is no steady state. [1]"""
        return self.offered / self.most if self.most > 0 else math.inf

    def replicas_for(self, utilization: float = 1.0) -> int | None:
        """Replicas, equal in the mean to those there are, that bring the pool to `utilization`; None where
        no number does."""
        if self.most <= 0:
            return None
        needed = self.offered / (utilization * self.most / self.replicas)
        return max(math.ceil(needed * (1 - 1e-12)), 1)

    @property
    def missing(self) -> int | None:
        """Replicas short of a steady state; 0 where there is one, None where no number of them helps."""
        needed = self.replicas_for()
        return None if needed is None else max(needed - self.replicas, 0)


def pool_loads(fleet: Fleet, rate: float, z: float = 0.0) -> tuple[PoolLoad, ...]:
    """Load of every pool of `fleet` at a `rate` of all requests [req/s].

    `z` is the normal quantile of the model error. Network and the room that a KV cache hands over to are left
    out: they bind before a pool is full, or not at all.
    """
    traffic = Traffic.of_service(fleet.service)
    pools = {phase: fleet.pool(phase) for phase in Phase}
    return tuple(
        PoolLoad(
            phase=phase,
            replicas=sum(g.replicas for g in groups),
            offered=rate,
            most=math.fsum(g.replicas * _most(fleet, g, traffic, z) for g in groups),
        )
        for phase, groups in pools.items()
        if groups
    )


def overloaded(loads: Sequence[PoolLoad]) -> tuple[PoolLoad, ...]:
    """Pools that have no steady state, the worst first."""
    return tuple(sorted((p for p in loads if p.utilization >= 1), key=lambda p: -p.utilization))


def _most(fleet: Fleet, group: Deployed, traffic: Traffic, z: float) -> float:
    """Rate that one replica of a group serves with its queue never empty. [req/s]"""
    r = replica_set(fleet, group, z)
    if group.phase is Phase.PREFILL:
        return _prompts(fleet, group, traffic, r)
    slots = decode_slots(group, traffic)
    if slots < 1:
        return 0.0
    if group.phase is Phase.DECODE:
        step = float(decode_step_time(r, np.array([[slots]]), traffic.decode_context)[0, 0])
        return slots / (traffic.decode_steps * step)
    budget = np.array([float(group.token_budget)])
    most = min(slots, group.token_budget / (2 * r.rows))
    batch = np.geomspace(min(1.0, slots) / _BATCHES, most, _BATCHES)
    state, _ = colocated_state(r, traffic, fleet.engine.scheduler, budget, batch[:, None])
    return float(state.rate.max())


def _prompts(fleet: Fleet, group: Deployed, traffic: Traffic, r: ReplicaSet) -> float:
    """Prompts that a prefill replica computes, as many in a step as find room. [req/s]"""
    queues = prompt_queues(r, traffic, float(group.token_budget)).at(_ONLY)
    return float(queues.rate(np.ones((1, 1)), np.array([float(group.replicas)]), fleet.routing)[0, 0])
