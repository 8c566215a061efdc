"""TTFT of colocated replicas: prompts that wait for steps, and for the prompts of others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.capacity.prompts import merged_lengths
from planner.latency import PromptTime
from planner.operators import ReplicaSet
from planner.queueing import (
    FlightSojourn,
    Pipelines,
    ServiceShape,
    Sojourn,
    WaitDistribution,
    erlang_c,
    later_arrivals,
    pooled_wait,
)
from planner.specs import Routing, SchedulerPolicy
from planner.traffic import Traffic

RESIDUAL = np.array([0.1127, 0.5, 0.8873])  # of a running step, Gauss and Legendre's nodes [1]
RESIDUAL_WEIGHTS = np.array([5, 8, 5]) / 18
_WITH_STEPS = 1.5  # steps from a prompt's arrival to the end of its own, beside what it adds itself [1]
_RANDOM = 0.6  # part of what longer steps cost that is random [1]
_RANDOM_ALONE = 0.25  # and more of it for one replica
_SLOTS = 2.0  # decode steps that a prompt costs a pipeline which starts steps at set times [1]
_SHAPE_STRIDE = 4  # of the grid points at which a distribution is evaluated
_FULLEST = 0.999
_TINY = 1e-30


@dataclass(frozen=True, slots=True)
class ColocatedPrompts:
    r"""Prompts of C kinds of replicas, all pipelined or none, over a grid of batches.

    Attributes
    ----------
    own : ndarray, shape (grid, C, lengths)
        Time of a prompt's own steps, decode tokens included. [s]
    taken : ndarray, shape (grid, C, lengths)
        Of these, what nobody else can use. [s]
    shape : ServiceShape, (grid, C)
        Of `taken`.
    rate, decode_step : ndarray, shape (grid, C)
        Of a replica; without prompts. [req/s, s]
    running : ndarray, shape (grid, C)
        Probability that a step runs when a prompt comes. [1]
    full : ndarray, shape (grid, C)
        Share of the steps' room for prompts that is used. [1]
    room : ndarray, shape (grid, C)
        Tokens of a step, those of sequences left out, over those of a mean prompt. [1]
    weights : ndarray, shape (lengths,)
    stages : ndarray, shape (C,)

    Notes
    -----
    A prompt joins the step after the one that runs. If steps have room for all that came, a step of
    length L is followed by :math:`L' = t + \Delta_1 + \dots + \Delta_k` with k Poisson of mean
    :math:`\lambda L`, t without prompts. Hence :math:`E[L] = t/(1-\rho)` and
    :math:`Var[L] = \lambda E[L] E[\Delta^2]/(1-\rho^2)` with :math:`\rho = \lambda E[\Delta]`. Arrivals see
    L in proportion to its length, wait for its uniform rest and share their step with the other prompts
    of all of L:

    .. math:: E[TTFT] = \left(\tfrac12 + \rho\right)
       \left[\frac{t}{1-\rho} + \frac{\lambda E[\Delta^2]}{1-\rho^2}\right] + t + E[\Delta] .

    The term in :math:`\Delta^2` is the wait of M/G/1, lengthened by later arrivals
    (:func:`planner.queueing.later_arrivals`); the one in t beyond the rest of one step,
    :math:`t\,(\tfrac12+\rho)/(1-\rho) - t/2`, is due to steps that prompts have made longer. Where steps
    are full, others cannot use them, so that the decode part of a prompt's full chunks belongs to what it
    takes: `taken` is :math:`\Delta + t` per full chunk, and the last chunk's share as far as steps are
    full, which leaves the other term to the rest. Of n replicas the router finds one without prompts unless
    all have some: Erlang's delay probability :math:`C_n(\rho_s)`, :math:`\rho_s` the share of
    time with prompts, in place of :math:`\rho_s`. The derivation is ours; what part of the longer steps
    is random, and what part their mean, was fitted to simulations of fixed and mixed lengths.

    On a pipeline a prompt is held up by those in flight (:class:`planner.queueing.Pipelines`).
    """

    own: FloatArray
    taken: FloatArray
    shape: ServiceShape
    rate: FloatArray
    decode_step: FloatArray
    running: FloatArray
    full: FloatArray
    room: FloatArray
    weights: FloatArray
    stages: FloatArray

    @property
    def load(self) -> FloatArray:
        """Time that prompts take of a replica's, shape (grid, C). [1]"""
        steps = np.where(self.stages > 1, _SLOTS * (1 - self.full) * self.decode_step, 0.0)
        return self.rate * (self.shape.mean + steps) / self.stages

    def at(self, kinds: NDArray[np.int64]) -> ColocatedPrompts:
        """Some of the kinds, all pipelined or none."""
        shape = {name: getattr(self.shape, name)[:, kinds] for name in ServiceShape.__slots__}
        fields = ("own", "taken", "rate", "decode_step", "running", "full", "room")
        return replace(
            self,
            shape=ServiceShape(**shape),
            stages=self.stages[kinds],
            **{name: getattr(self, name)[:, kinds] for name in fields},
        )

    def sojourn(self, replicas: FloatArray, routing: Routing, arrival_scv: float) -> Sojourn | FlightSojourn:
        """TTFT in pools of `replicas`, shape (N,): distributions of shape (grid, C, N)."""
        pooled = replicas if routing is Routing.LEAST_LOADED else np.ones_like(replicas)
        weights = np.outer(RESIDUAL_WEIGHTS, self.weights).ravel()
        if self.stages[0] > 1:
            return self._in_flight(pooled, arrival_scv, weights)
        load = np.minimum(self.load, _FULLEST)[..., None]
        step = self.decode_step[..., None]
        occupied = -np.expm1(-self.rate * (self.shape.mean + _WITH_STEPS * self.decode_step))[..., None]
        all_busy = np.minimum(erlang_c(pooled, np.minimum(occupied, _FULLEST) * pooled), 1.0)
        met = (1 - self.full)[..., None] * all_busy / np.maximum(occupied, _TINY)
        longer = met * load / (1 - load) * step
        random = _RANDOM + _RANDOM_ALONE / pooled
        rest = step + (1 - random) * longer
        others = (1 - random) * longer
        wait = self._wait(replicas, routing, arrival_scv, pooled)
        wait = _with_steps(wait, 1.5 * random * longer, all_busy)
        rest = (rest * self.running[..., None])[..., None, None] * RESIDUAL[:, None]
        points = self.own[:, :, None, None, :] + others[..., None, None] + rest
        return wait.plus(points.reshape(*points.shape[:3], -1), weights)

    def _wait(
        self, replicas: FloatArray, routing: Routing, arrival_scv: float, pooled: FloatArray
    ) -> WaitDistribution:
        """Wait for the work of others, that of later arrivals in the same step included."""
        shape = self.shape.expanded()
        wait = pooled_wait(routing, shape, self.rate[..., None] * replicas, replicas, arrival_scv)
        factor = 1 + later_arrivals(self.load[..., None], pooled, shape.scv)
        return WaitDistribution.fitted(wait.probability_of_wait, wait.mean * factor, wait.delta / factor)

    def _in_flight(self, pooled: FloatArray, arrival_scv: float, weights: FloatArray) -> FlightSojourn:
        grid, kinds = self.rate.shape
        rows = grid * kinds
        stages = np.broadcast_to(self.stages, (grid, kinds)).ravel()
        pipelines = Pipelines.of(stages, self.shape.scv.ravel(), self.room.ravel())
        load = np.broadcast_to(self.load.reshape(rows, 1), (rows, len(pooled)))
        counts = np.broadcast_to(pooled, load.shape)
        unit = self.shape.mean.reshape(rows, 1) * (1 + arrival_scv) / 2
        flight = pipelines.flight(load, counts, unit).reshaped(grid, kinds)
        rest = (self.running * self.decode_step / self.stages)[..., None, None] * RESIDUAL[:, None]
        total = (self.own[:, :, None, :] + rest).reshape(grid, kinds, 1, -1)
        hidden = (self.taken * (1 - 1 / self.stages[:, None]))[:, :, None, :]
        hidden = np.broadcast_to(hidden, (grid, kinds, len(RESIDUAL), hidden.shape[-1]))
        return FlightSojourn(flight, total, total - hidden.reshape(total.shape), weights)


def _with_steps(wait: WaitDistribution, longer: FloatArray, probability: FloatArray) -> WaitDistribution:
    """A wait to which steps add a mean time `longer`, with some probability. [s, 1]"""
    mean = wait.mean + longer
    share = longer / np.where(np.isfinite(mean), np.maximum(mean, _TINY), 1.0)
    return WaitDistribution.fitted(
        np.maximum(wait.probability_of_wait, probability), mean, wait.delta / (1 + 0.5 * share)
    )


def colocated_prompts(
    r: ReplicaSet,
    traffic: Traffic,
    policy: SchedulerPolicy,
    token_budget: FloatArray,
    time: PromptTime,
    *,
    batch: FloatArray,
    rate: FloatArray,
    step: FloatArray,
    decode_step: FloatArray,
    added: FloatArray,
    merge: bool = True,
) -> ColocatedPrompts:
    """Prompts of replicas in the states given, arrays of shape (grid, C).

    Parameters
    ----------
    time : PromptTime
        Of each prompt length by itself, shape (points, grid, C).
    added : ndarray
        Mean time that a prompt adds to its own steps. [s]
    merge : bool
        Whether few lengths are to stand for many.
    """
    micro = batch / r.lanes
    room = np.maximum(token_budget - r.rows * micro, 1.0)
    query = traffic.query[:, None, None]
    if policy is SchedulerPolicy.PREFILL_FIRST:  # decoding stops, whatever is in a step
        full = np.ones_like(rate)
        taken = time.service
    else:
        full = np.minimum(rate * traffic.mean_query * step / (room * r.lanes), 1.0)
        chunks = np.floor(query / room)
        alone = np.tensordot(traffic.isl_weights, time.stolen, axes=1)
        adds = time.stolen * (added / np.maximum(alone, _TINY))
        taken = adds + decode_step * (chunks + full * (query / room - chunks))
    own, weights = np.moveaxis(time.service, 0, -1), traffic.isl_weights
    taken = np.moveaxis(taken, 0, -1)
    if merge:
        matrix, weights = merged_lengths(weights)
        own, taken = own @ matrix, taken @ matrix
    return ColocatedPrompts(
        own=own,
        taken=taken,
        shape=_shapes(taken, weights),
        rate=rate,
        decode_step=decode_step,
        running=-np.expm1(-micro),
        full=full,
        room=room / traffic.mean_query,
        weights=weights,
        stages=r.pp,
    )


def _shapes(taken: FloatArray, weights: FloatArray) -> ServiceShape:
    """The shape of a distribution changes slowly with the batch, its mean does not."""
    points = len(taken)
    if points <= _SHAPE_STRIDE:
        return ServiceShape.of(taken, weights)
    coarse = ServiceShape.of(taken[::_SHAPE_STRIDE], weights)
    shape = coarse.at(np.minimum(np.arange(points) / _SHAPE_STRIDE, (points - 1) // _SHAPE_STRIDE))
    return replace(shape, mean=taken @ weights)
