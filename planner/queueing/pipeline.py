"""Prompts on pipelined replicas: what is in flight before them, tabulated from simulation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import ArrayLike

from planner.queueing.numeric import Floats

STAGES = (2, 4)
REPLICAS = (1, 2, 4, 10)
VARIATIONS = (0.0, 0.5, 1.5, 4.0)
BUDGETS = (0.75, 2.0, 5.0, 12.0, 30.0)
LOADS = (0.15, 0.25, 0.32, 0.38, 0.44, 0.5, 0.57, 0.65, 0.75, 0.85, 0.93)
LEVELS = (0.95, 0.8, 0.6, 0.4, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002)
"""Axes of the table, and the exceedance probabilities whose times it holds: see :class:`Pipelines`."""

_KEYS = 5  # columns before the values: one per axis
_LOG_LEVELS = np.log(LEVELS)
_LEAST_TIME = 1e-9  # between neighbouring levels, in mean services [1]


@dataclass(frozen=True, slots=True, eq=False)
class Pipelines:
    r"""Pipelined replicas of given kinds, over the table's grids of replicas and loads.

    Attributes
    ----------
    prompts : ndarray, shape (C, replicas, loads)
        Mean prompts per step. [1]
    times : ndarray, shape (C, replicas, loads, levels)
        Time U in flight that a share :data:`LEVELS` of prompts exceeds, in mean services. [1]

    Notes
    -----
    A prompt of service s takes s/m on each of m stages, and overtakes none. If U is the time until the
    last step before its own leaves the pipeline, it is there for

    .. math:: T = \max(s,\; U + s/m) ,

    since behind a longer step it waits at every stage (tandem queues with one service time per customer:
    Avi-Itzhak [1]_, and Boxma [2]_, where the longest service of the busy period governs U). An engine
    adds two things that no closed form covers. It has m steps in flight at most, so that behind a long
    step the stages run empty; and a step takes all prompts that wait, up to its token budget, so that
    from a load of about a half on steps grow to the size of the budget. Therefore the distribution of U
    is tabulated by `tools/build_pipeline_waits.py`, from simulations of log-normal prompts behind a
    least-work router. Taken as independent of s, it gives the simulated percentiles of T back to a few
    percent. With one stage, U is the wait of a common queue.

    References
    ----------
    .. [1] B. Avi-Itzhak, "A sequence of service stations with arbitrary input and regular service
       times," Management Science, vol. 11, no. 5, pp. 565-571, 1965.
    .. [2] O. J. Boxma, "On a tandem queueing model with identical service times at both counters,"
       Adv. Appl. Probab., vol. 11, pp. 616-659, 1979.
    """

    prompts: Floats
    times: Floats

    @classmethod
    def of(cls, stages: Floats, scv: Floats, budget: Floats) -> Pipelines:
        """Interpolate the table for C kinds.

        Parameters
        ----------
        stages : ndarray, shape (C,)
            At least 2; more than 4 count as 4. [1]
        scv : ndarray, shape (C,)
            Squared coefficient of variation of the services. [1]
        budget : ndarray, shape (C,)
            Tokens of a step over those of a mean prompt. [1]
        """
        part = _table()[(stages > STAGES[0]).astype(np.intp)]
        i, u = _position(np.sqrt(scv), np.sqrt(VARIATIONS))
        j, v = _position(np.log(budget), np.log(BUDGETS))
        rows = np.arange(len(part))
        corners = (
            (share * other)[:, None, None, None] * part[rows, :, i + di, j + dj]
            for di, share in ((0, 1 - u), (1, u))
            for dj, other in ((0, 1 - v), (1, v))
        )
        values = np.asarray(sum(corners))
        return cls(prompts=values[..., 0], times=values[..., 1:])

    def mean_prompts(self, load: Floats, replicas: Floats) -> Floats:
        """Prompts per step at loads and replica counts of shape (C, N). [1]"""
        return self._read(self.prompts[..., None], 1.0, load, replicas)[..., 0]

    def flight(self, load: Floats, replicas: Floats, unit: Floats) -> Flight:
        """Distribution of U at loads and replica counts of shape (C, N); `unit` is the mean service. [s]

        From the heaviest load of the table on, times grow as in a queue; at a load of 1 they are infinite.
        """
        heaviest = LOADS[-1]
        left = np.maximum(1 - load, 0.0)
        with np.errstate(divide="ignore"):
            beyond = np.where(load > heaviest, (1 - heaviest) / left, 1.0)
        times = self._read(self.times, 0.0, load, replicas) * (beyond * unit)[..., None]
        return Flight(times)

    def _read(self, table: Floats, at_rest: float, load: Floats, replicas: Floats) -> Floats:
        """Values at loads and replica counts; `at_rest` is that of no load."""
        k, u = _position(np.log(replicas), np.log(REPLICAS))
        loads = np.array([0.0, *LOADS])
        n, v = _position(load, loads)
        rest = np.full_like(table[:, :, :1], at_rest)
        table = np.concatenate([rest, table], axis=2)
        rows = np.arange(len(table))[:, None]
        u, v = u[..., None], v[..., None]
        low = (1 - v) * table[rows, k, n] + v * table[rows, k, n + 1]
        high = (1 - v) * table[rows, k + 1, n] + v * table[rows, k + 1, n + 1]
        return np.asarray((1 - u) * low + u * high)


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """Distribution of the time in flight before a prompt.

    Attributes
    ----------
    times : ndarray, shape (..., levels)
        What a share :data:`LEVELS` of prompts exceeds. [s]
    """

    times: Floats

    def reshaped(self, *first: int) -> Flight:
        """The same with other axes in place of the first."""
        return Flight(self.times.reshape(*first, *self.times.shape[1:]))

    def exceeds(self, time: Floats) -> Floats:
        """``P(U > time)`` for times of shape (..., points); 1 for negative ones. [s -> 1]

        The logarithm is interpolated, and goes on with its last slope.
        """
        knots = np.concatenate([np.zeros_like(self.times[..., :1]), self.times], axis=-1)
        logs = np.array([0.0, *_LOG_LEVELS])
        shape = np.broadcast_shapes(knots.shape[:-1], time.shape[:-1])
        late = np.broadcast_to(np.maximum(time, 0.0), (*shape, time.shape[-1]))
        knots = np.broadcast_to(knots, (*shape, knots.shape[-1]))
        below = np.full(late.shape, -1, dtype=np.int8)
        for level in range(knots.shape[-1]):  # few: six times faster than an axis to sum over
            below += knots[..., level, None] <= late
        left = np.minimum(below.astype(np.intp), len(logs) - 2)
        x0 = np.take_along_axis(knots, left, axis=-1)
        x1 = np.take_along_axis(knots, left + 1, axis=-1)
        with np.errstate(invalid="ignore"):
            share = (late - x0) / np.maximum(x1 - x0, _LEAST_TIME)
        share = np.where(np.isfinite(x1), share, 0.0)
        level = logs[left] + share * (logs[left + 1] - logs[left])
        return np.where(time < 0, 1.0, np.exp(np.maximum(level, -700.0)))

    def mean_longest(self, least: Floats, part: Floats) -> Floats:
        """``E[max(least, U + part)]`` for times of shape (..., points); levels count by their middles. [s]"""
        ends = np.concatenate([np.zeros_like(self.times[..., :1]), self.times, self.times[..., -1:]], axis=-1)
        middle = 0.5 * (ends[..., 1:] + ends[..., :-1])
        shares = -np.diff([1.0, *LEVELS, 0.0])
        longest = np.maximum(least[..., None], middle[..., None, :] + part[..., None])
        return np.asarray(longest @ shares)


@dataclass(frozen=True, slots=True, eq=False)
class FlightSojourn:
    """Time of prompts on a pipeline, ``max(total, U + part)``, and of what follows.

    Attributes
    ----------
    flight : Flight
    total, part, weights : ndarray
        Points and probabilities on the last axis; the other axes broadcast with the flight's. [s, s, 1]
    """

    flight: Flight
    total: Floats
    part: Floats
    weights: Floats

    @property
    def mean(self) -> Floats:
        """[s]"""
        longest = self.flight.mean_longest(self.total, self.part)
        known = np.where(self.weights > 0, longest, 0.0)  # what never comes may take for ever
        return np.asarray(known @ self.weights)

    def exceeds(self, time: ArrayLike) -> Floats:
        """``P(T > time)``, at one time or one per distribution. [s -> 1]"""
        t = np.asarray(time, dtype=float)[..., None]
        tails = np.where(t < self.total, 1.0, self.flight.exceeds(t - self.part))
        return np.minimum(tails @ self.weights, 1.0)


def _position(value: Floats, grid: ArrayLike) -> tuple[np.ndarray, Floats]:
    """Interval of each value in an ascending grid, and where in it; values beyond the ends count as these."""
    nodes = np.asarray(grid, dtype=float)
    x = np.clip(value, nodes[0], nodes[-1])
    left = np.clip(np.searchsorted(nodes, x, side="right") - 1, 0, len(nodes) - 2)
    return left, (x - nodes[left]) / (nodes[left + 1] - nodes[left])


@cache
def _table() -> Floats:
    """Shape (stages, replicas, variations, budgets, loads, 1 + levels); more load and fewer replicas never
    shorten a time."""
    with (files("planner.queueing") / "pipeline.csv").open(encoding="utf-8") as lines:
        rows = np.loadtxt(lines, delimiter=",", comments="#")
    axes = (len(STAGES), len(REPLICAS), len(VARIATIONS), len(BUDGETS), len(LOADS))
    table = rows[:, _KEYS:].reshape(*axes, -1)
    table = np.maximum.accumulate(table, axis=4)
    return np.asarray(np.maximum.accumulate(table[:, ::-1], axis=1)[:, ::-1])
