"""Queues of prompts before prefill replicas: what one load makes of waits and steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.capacity.latency_model import LatencyModel, latency_of
from planner.latency import Companions
from planner.operators import ReplicaSet
from planner.queueing import (
    FlightSojourn,
    Pipelines,
    ServiceShape,
    Sojourn,
    WaitDistribution,
    later_arrivals,
    lengthened,
    pooled_wait,
    prompts_per_step,
    tail_prompts,
)
from planner.specs import Routing
from planner.traffic import Traffic

PROMPTS_PER_STEP = (1, 2, 4, 8, 16, 32)
PIPELINE_PROMPTS = 2.0  # prompts in the steps that others wait behind on a pipeline, over the mean [1]
_JOINING = 1.5  # share of later arrivals that find room, over the free share of a step; at most all [1]
_LOADS = 257  # of the grid on which the load of a rate is looked up
_EDGES = np.append(
    [0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985],
    [0.99, 0.992, 0.994, 0.996, 0.998, 0.999, 1.0],
)  # probabilities at which what a prompt takes is cut


@dataclass(frozen=True, slots=True)
class PromptQueues:
    r"""R prefill replicas of one kind, all pipelined or none.

    Attributes
    ----------
    alone : ndarray, shape (R, points)
        Time of each prompt length by itself. [s]
    saved : ndarray, shape (R, numbers)
        Mean time that a prompt takes from a replica when :data:`PROMPTS_PER_STEP` share a step, over that of
        one by itself. [1]
    shape : ServiceShape, (R,)
        Of the time that a prompt by itself occupies one of its servers.
    stages, ranks : ndarray, shape (R,)
        Of the pipeline; and attention ranks, each of which takes prompts of its own.
    room : float
        Tokens of a step over those of a mean prompt. [1]

    Notes
    -----
    A load is the work offered over what the replicas can do, at the prompts per step that it leads to: a
    replica that is busier computes more of them at once, and what a step costs whatever is in it is paid
    once. So all follows from the load, which the rate is a growing function of.
    """

    alone: FloatArray
    saved: FloatArray
    shape: ServiceShape
    stages: FloatArray
    ranks: FloatArray
    room: float
    pipelines: Pipelines | None

    def at(self, index: NDArray[np.int64]) -> PromptQueues:
        """Replicas at `index`, all pipelined or none."""
        stages = self.stages[index]
        pipelined = bool(np.any(stages > 1))
        shape = self.shape.at(index)
        room = np.full(len(stages), self.room)
        return PromptQueues(
            alone=self.alone[index],
            saved=self.saved[index],
            shape=shape,
            stages=stages,
            ranks=self.ranks[index],
            room=self.room,
            pipelines=Pipelines.of(stages, shape.scv, room) if pipelined else None,
        )

    def prompts(self, load: FloatArray, replicas: FloatArray, routing: Routing) -> FloatArray:
        """Mean prompts per step, shape (R, N), at loads (R, N) of pools of `replicas` (N,). [1]"""
        servers = self._servers(replicas, routing)
        if self.pipelines is not None:
            found = self.pipelines.mean_prompts(load, servers)
        else:
            found = prompts_per_step(load, servers, self.shape.scv[:, None])
        return np.minimum(found, self._most)

    def rate(self, load: FloatArray, replicas: FloatArray, routing: Routing) -> FloatArray:
        """Rate of one replica that leads to a load, shape (R, N). [req/s]"""
        return np.asarray(load * self.ranks[:, None] / self._taken(load, replicas, routing))

    def load(self, rate: float, replicas: int, routing: Routing) -> FloatArray:
        """Load of a pool of `replicas` at the `rate` of all of them, shape (R, 1); 1 where it is too much."""
        grid = np.linspace(0.0, 1.0, _LOADS)
        counts = np.full(_LOADS, float(replicas))
        rates = self.rate(np.broadcast_to(grid, (len(self.alone), _LOADS)), counts, routing)
        found = [np.interp(rate / replicas, row, grid, right=1.0) for row in rates]
        return np.array(found)[:, None]

    def sojourn(
        self,
        load: FloatArray,
        replicas: FloatArray,
        routing: Routing,
        arrival_scv: float,
        after: Spread,
    ) -> Sojourn | FlightSojourn:
        """Time from arrival to the end of what follows a prompt, shape (R, N)."""
        if self.pipelines is not None:
            unit = self.stages[:, None] * self._taken(load, replicas, routing) * (1 + arrival_scv) / 2
            flight = self.pipelines.flight(load, self._servers(replicas, routing), unit)
            return FlightSojourn(flight, after.total[:, None, :], after.part[:, None, :], after.weights)
        servers = self._servers(replicas, routing)
        scv = self.shape.scv[:, None]
        prompts = self.prompts(load, replicas, routing)
        rate = self.rate(load, replicas, routing) * replicas
        free = np.maximum(self.room - prompts, 0.0) / self.room * np.clip(self.room - 1, 0.0, 1.0)
        joined = later_arrivals(load, servers, scv) * np.minimum(_JOINING * free, 1.0)

        def wait(number: FloatArray) -> WaitDistribution:
            shape = self.shape.expanded().scaled(self._saved(number))
            if routing is Routing.LEAST_LOADED:
                return pooled_wait(routing, shape, rate, replicas * self.ranks[:, None], arrival_scv)
            faster = shape.scaled(1 / self.ranks[:, None])
            return pooled_wait(routing, faster, rate, replicas, arrival_scv)

        tail = wait(np.minimum(tail_prompts(prompts), self._most))
        return lengthened(wait(prompts), tail, joined).plus(after.total[:, None, :], after.weights)

    @property
    def _most(self) -> float:
        return float(PROMPTS_PER_STEP[self.saved.shape[1] - 1])

    def _taken(self, load: FloatArray, replicas: FloatArray, routing: Routing) -> FloatArray:
        """Mean time that a prompt takes from one of its servers. [s]"""
        prompts = self.prompts(load, replicas, routing)
        if self.pipelines is not None:  # the steps that count are the longer ones
            prompts = np.minimum(PIPELINE_PROMPTS * prompts, self._most)
        return np.asarray(self.shape.mean[:, None] * self._saved(prompts))

    def _saved(self, prompts: FloatArray) -> FloatArray:
        """`saved` at numbers of prompts of shape (R, N), interpolated over their logarithm."""
        last = self.saved.shape[1] - 1
        position = np.clip(np.log2(np.maximum(prompts, 1.0)), 0.0, last)
        left = np.minimum(position.astype(np.intp), max(last - 1, 0))
        low = np.take_along_axis(self.saved, left, axis=1)
        high = np.take_along_axis(self.saved, np.minimum(left + 1, last), axis=1)
        return np.asarray(low + (position - left) * (high - low))

    def _servers(self, replicas: FloatArray, routing: Routing) -> FloatArray:
        """Servers of what amounts to one common queue, shape (R, N)."""
        pooled = {Routing.LEAST_LOADED: replicas, Routing.POWER_OF_TWO: np.minimum(replicas, 2.0)}
        return np.asarray(pooled.get(routing, np.ones_like(replicas)) * self.ranks[:, None])


@dataclass(frozen=True, slots=True)
class Spread:
    """Points of the time that a prompt and what follows it take, and their probabilities.

    Attributes
    ----------
    total : ndarray, shape (R, points)
        Of a prompt that nothing is before. [s]
    part : ndarray, shape (R, points)
        Of a prompt from the end of the one before it: less, on a pipeline. [s]
    weights : ndarray, shape (points,)
    """

    total: FloatArray
    part: FloatArray
    weights: FloatArray

    def condensed(self) -> Spread:
        """The same mean on few points, narrow in the tail; none where there are few already."""
        if len(self.weights) <= len(_EDGES):
            return self
        order = np.argsort(self.total, axis=1, kind="stable")
        below = np.cumsum(self.weights[order], axis=1)
        merged = []
        for values in (self.total, self.part):
            sums = np.cumsum(self.weights[order] * np.take_along_axis(values, order, axis=1), axis=1)
            at = [np.interp(_EDGES, [0.0, *b], [0.0, *x]) for b, x in zip(below, sums, strict=True)]
            merged.append(np.diff(np.array(at), axis=1) / np.diff(_EDGES))
        return Spread(merged[0], merged[1], np.diff(_EDGES))


def merged_lengths(weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Matrix (points, lengths) that merges ascending points into few, by conditional means, and the
    probabilities of these. [1]"""
    if len(weights) <= len(_EDGES):
        return np.eye(len(weights)), weights
    ends = np.cumsum(weights) / np.sum(weights)
    starts = np.append(0.0, ends[:-1])
    overlap = np.minimum(ends[:, None], _EDGES[1:]) - np.maximum(starts[:, None], _EDGES[:-1])
    return np.maximum(overlap, 0.0) / np.diff(_EDGES), np.diff(_EDGES)


def prompt_queues(r: ReplicaSet | LatencyModel, traffic: Traffic, token_budget: float) -> PromptQueues:
    """Queues of R prefill replicas; see :meth:`PromptQueues.at` for the kinds."""
    services, model = [], latency_of(r)
    for number in PROMPTS_PER_STEP:
        if number > 1 and number * traffic.mean_query > token_budget:
            break
        beside = Companions(number - 1.0, traffic.mean_query, traffic.mean_area, traffic.mean_cached)
        time = model.prompt(traffic.query[:, None], traffic.cached[:, None], token_budget, beside)
        services.append(np.ascontiguousarray(time.T))
    alone = services[0]
    means = np.stack(
        [s @ traffic.isl_weights / n for n, s in zip(PROMPTS_PER_STEP, services, strict=False)], axis=1
    )
    saved = np.minimum.accumulate(means / means[:, :1], axis=1)
    return PromptQueues(
        alone=alone,
        saved=saved,
        shape=ServiceShape.of(alone / model.pp[:, None], traffic.isl_weights),
        stages=model.pp,
        ranks=model.dp,
        room=token_budget / traffic.mean_query,
        pipelines=None,
    )
