"""TTFT and TPOT of colocated groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from planner.arrays import FloatArray
from planner.capacity import ColocatedState, colocated_state, elasticity, prompts_of, tpot_moments
from planner.fleet import Deployed, Fleet
from planner.latency import decode_step_time, prompt_time
from planner.prediction.disaggregated import decode_slots
from planner.prediction.mixture import KEPT, Component, Occupancy, Replica, no_tpot, replica_set, traffic_of
from planner.queueing import FlightSojourn, Sojourn, gamma_tail
from planner.specs import Phase, Routing
from planner.traffic import Traffic

_BATCHES, _BATCHES_SPAN = 96, 512.0  # grid of batches, and its largest over its smallest [1]
_FINE_BATCHES = 24
_ROUNDS, _FIRST_TURN = 200, 5  # of the fixed point of a pool of unequal groups
_BLUR = 0.1  # of the work that routers compare, in mean prompts of the fastest group [1]
_LEAST_SHARE = 1e-6  # of a group that the router avoids; it must have some [1]
_STEEP, _MOST_BUSY = 8, 0.95  # of the work beyond what a group can do; and where it stops growing [1]


@dataclass(frozen=True, slots=True)
class _Batches:
    """Rates of a colocated replica over its batches, on a grid and on a finer one between two of its points.

    `weights`: shares of the prompt lengths that it gets, as bytes; empty: those of all requests.
    """

    replica: Replica
    token_budget: int
    max_num_seqs: int
    weights: bytes = b""

    @property
    def traffic(self) -> Traffic:
        traffic = Traffic.of_service(self.replica.service)
        return traffic.of_lengths(np.frombuffer(self.weights)) if self.weights else traffic

    def grid(self) -> tuple[FloatArray, FloatArray]:
        """Batches, and the rates that they serve. [1, req/s]"""
        rows = self.replica.kernels.rows
        largest = float(min(self.max_num_seqs, self.token_budget / (2 * rows)))
        grid = np.geomspace(largest / _BATCHES_SPAN, largest, _BATCHES)
        return grid, self._rates(grid)

    def below(self, grid: FloatArray, index: int) -> tuple[FloatArray, FloatArray]:
        """As :meth:`grid`, up to one of its points from the one before."""
        low = float(grid[index - 1]) if index else 1e-3 * float(grid[0])
        fine = np.geomspace(low, float(grid[index]), _FINE_BATCHES)
        return fine, self._rates(fine)

    def _rates(self, batches: FloatArray) -> FloatArray:
        policy, budget = self.replica.engine.scheduler, np.array([float(self.token_budget)])
        state, _ = colocated_state(self.replica.kernels, self.traffic, policy, budget, batches[:, None])
        return state.rate[:, 0]


@lru_cache(maxsize=KEPT)
def _grid(batches: _Batches) -> tuple[FloatArray, FloatArray]:
    return batches.grid()


@lru_cache(maxsize=KEPT)
def _below(batches: _Batches, index: int) -> tuple[FloatArray, FloatArray]:
    return batches.below(_grid(batches)[0], index)


def _operating_batch(fleet: Fleet, group: Deployed, z: float, weights: bytes = b"") -> float:
    """Smallest batch at which a colocated replica serves the group's rate; inf if there is none.

    The rate may fall again with the batch, where prompts cost more beside more sequences: a first batch is
    looked for on a grid, then on a finer one, and interpolated.
    """
    target = group.rate / group.replicas
    batches = _Batches(Replica.of(fleet, group, z), group.token_budget, group.max_num_seqs, weights)
    _, rates = _grid(batches)
    enough = np.flatnonzero(rates >= target)
    if not len(enough):
        return math.inf
    fine, served = _below(batches, int(enough[0]))
    last = int(np.flatnonzero(served >= target)[0])
    if last == 0:
        return float(fine[0])
    share = (target - served[last - 1]) / (served[last] - served[last - 1])
    return float(fine[last - 1] + share * (fine[last] - fine[last - 1]))


def colocated_group_occupancy(fleet: Fleet, group: Deployed, z: float = 0.0) -> Occupancy:
    """How full the batches of a colocated group are."""
    traffic = traffic_of(fleet, group)
    batch = _operating_batch(fleet, group, z)
    slots = decode_slots(group, traffic)
    deviation = math.sqrt(batch / group.replicas) if math.isfinite(batch) else math.inf
    return Occupancy(min(batch / slots, 1.0), batch, batch + 2.33 * deviation)


@dataclass(frozen=True, slots=True)
class Served:
    """A colocated group with the requests that it gets, and their share of all. [1]

    `whole`: these have the lengths of all requests.
    """

    group: Deployed
    traffic: Traffic
    share: float
    whole: bool = True


@dataclass(frozen=True, slots=True)
class _Level:
    """What a router by work sees of a replica over a grid of batches.

    Attributes
    ----------
    own : ndarray, shape (points,)
        Time of each prompt length there. [s]
    sequence : work that a decoding sequence stands for. [s]
    batch, decode, stolen : ndarray, shape (grid,)
        Sequences, decode step, and what a mean prompt takes from it. [1, s, s]
    """

    own: FloatArray
    sequence: float
    batch: FloatArray
    decode: FloatArray
    stolen: FloatArray

    @classmethod
    def of(cls, fleet: Fleet, group: Deployed, traffic: Traffic, z: float) -> _Level:
        r = replica_set(fleet, group, z)
        lanes = float(r.lanes[0])
        largest = min(group.max_num_seqs, group.token_budget / (2 * r.rows))
        batch = np.geomspace(largest / _BATCHES_SPAN, largest, _BATCHES)
        budget = np.array([float(group.token_budget)])
        state, _ = colocated_state(r, traffic, fleet.engine.scheduler, budget, batch[:, None])
        own = prompt_time(r, traffic.query[:, None], traffic.cached[:, None], budget).service[:, 0]
        ends = decode_step_time(r, np.array([[1.0], [float(group.max_num_seqs)]]) * lanes, 1.0)[:, 0]
        steps = traffic.mean_osl / traffic.tokens_per_step
        sequence = float(ends[1] - ends[0]) / (group.max_num_seqs - 1) * steps / 2
        return cls(own, sequence / lanes, batch, state.decode_step[:, 0], state.stolen[:, 0])

    def at(self, rate: float, size: float, steps: float) -> float:
        """Mean work at a rate of prompts `size` times as long as the mean; `steps` decode steps each. [s]"""
        stolen = size * self.stolen
        rates = np.maximum.accumulate(self.batch / (steps * self.decode + self.batch * stolen))
        batch = float(np.interp(rate, rates, self.batch)) * max(rate / float(rates[-1]), 1.0) ** _STEEP
        taken = float(np.interp(batch, self.batch, stolen))
        return batch * self.sequence + rate * taken**2 / 2 / max(1 - rate * taken, 1 - _MOST_BUSY)


def colocated_pool(fleet: Fleet, traffic: Traffic, z: float) -> list[Served]:
    """Colocated groups, with what a router by work gives them.

    A request goes where the work that is there and its own prompt are least: the longer a prompt, the more a
    fast group is worth waiting for. Work is taken at its mean, and blurred; the fixed point is found by
    successive averages.
    """
    groups = fleet.pool(Phase.COLOCATED)
    total = sum(g.rate for g in groups)
    if len(groups) == 1 or fleet.routing is not Routing.LEAST_LOADED:
        return [Served(g, traffic, g.rate / total) for g in groups]
    levels = [_Level.of(fleet, g, traffic, z) for g in groups]
    own = np.array([level.own for level in levels])
    blur = _BLUR * float(np.min(own @ traffic.isl_weights))
    chosen = traffic.isl_weights * np.array([[g.rate / total] for g in groups])
    for turn in range(_ROUNDS):
        shares = np.maximum(chosen.sum(axis=1), _LEAST_SHARE)
        sizes = chosen @ traffic.query / shares / traffic.mean_query
        work = [
            level.at(share * total / g.replicas, float(size), traffic.colocated_steps)
            for level, share, size, g in zip(levels, shares, sizes, groups, strict=True)
        ]
        cost = np.array(work)[:, None] + own
        better = np.exp(-(cost - cost.min(axis=0)) / blur)
        better *= traffic.isl_weights / better.sum(axis=0)
        chosen += (better - chosen) / (turn + _FIRST_TURN)
    shares = np.maximum(chosen.sum(axis=1), _LEAST_SHARE)
    return [
        Served(replace(g, rate=share * total), traffic.of_lengths(weights / weights.sum()), share, False)
        for g, share, weights in zip(groups, shares.tolist(), chosen, strict=True)
    ]


def colocated_latencies(fleet: Fleet, served: Served, z: float) -> tuple[Component, Component]:
    """TTFT and TPOT of the requests that one colocated group takes."""
    group, traffic, share = served.group, served.traffic, served.share
    r = replica_set(fleet, group, z)
    batch = _operating_batch(fleet, group, z, b"" if served.whole else traffic.isl_weights.tobytes())
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
        return ttft, no_tpot(share)
    osl, weights = traffic.timed
    a = traffic.tokens_per_step
    mean, variance = tpot_moments(
        at, elasticity(state)[1], osl / a, traffic.colocated_steps, traffic.osl_scv, counts
    )
    step = float(mean[0])
    floor, ceiling = min(floor, step), max(float(at.longest[0]), step)

    def exceeds(t: float) -> float:
        if t * a >= ceiling:
            return 0.0
        tail = gamma_tail(step - floor, variance[0], t * a - floor)
        return float(np.sum(weights * tail))

    return ttft, Component(share, step / a, exceeds, 2 * step / a)


def _first_token(share: float, sojourn: Sojourn | FlightSojourn) -> Component:
    """TTFT at the middle point of a grid of batches."""
    mean = float(np.broadcast_to(sojourn.mean, (3, 1, 1))[1, 0, 0])
    if not math.isfinite(mean):
        return Component(share, math.inf, lambda _t: 1.0, math.inf)
    return Component(share, mean, lambda t: float(sojourn.exceeds(np.array([[[t]]]))[1, 0, 0]), 2 * mean)
