"""Distribution of a wait, alone and with the service that follows it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.queueing.numeric import Floats

_EQUAL = 1e-9
_FASTEST = 1e6  # the mean may be off by its inverse
_QUANTILE_STEPS = 10
_BLOCK = 16_384  # elements worked on at once where a service axis is added: keeps them in cache


@dataclass(frozen=True, slots=True, eq=False)
class WaitDistribution:
    r"""Wait before service: :math:`P(W > t) = \alpha e^{-\beta t} + \gamma e^{-\delta t}`.

    Attributes
    ----------
    alpha, gamma : ndarray
        Amplitudes; `alpha` may be negative. [1]
    beta, delta : ndarray
        Decay rates, ``beta >= delta``; 0 where the queue is unstable. [1/s]
    probability_of_wait : ndarray
        [1]
    mean : ndarray
        Over all customers; inf where the queue is unstable. [s]
    """

    alpha: Floats
    beta: Floats
    gamma: Floats
    delta: Floats
    probability_of_wait: Floats
    mean: Floats

    @classmethod
    def fitted(
        cls,
        probability_of_wait: ArrayLike,
        mean: ArrayLike,
        decay: ArrayLike,
        amplitude: ArrayLike | None = None,
    ) -> WaitDistribution:
        r"""Two exponentials of given probability of waiting, mean and slow decay.

        Parameters
        ----------
        probability_of_wait, mean, decay : float or ndarray
            A mean of inf makes an unstable queue. [1, s, 1/s]
        amplitude : float or ndarray, optional
            Of the slow term, as a share of the probability of waiting. By default the least that
            mean and decay allow where the wait varies less than an exponential. [1]

        Notes
        -----
        With :math:`m = \delta E[W | W>0]`, the conditional tail
        :math:`(1-g)e^{-\beta t} + g e^{-\delta t}` falls from 1 with :math:`\beta \ge \delta`
        if :math:`g \le m` where m < 1 and :math:`g \ge 1/(2-m)` where m > 1. The amplitude is
        clipped to that; mean and decay stay. At g = m < 1 the fast term is over at once; beyond
        m = 1.9 the decay gives way to the mean. All borders are continuous, so that a bisection
        over the rate meets no jump.
        """
        probability, average, slow_decay = np.broadcast_arrays(
            np.asarray(probability_of_wait, dtype=float),
            np.asarray(mean, dtype=float),
            np.asarray(decay, dtype=float),
        )
        stable = np.isfinite(average)
        waits = stable & (average > 0) & (probability > 0) & (slow_decay > 0)
        conditional = np.where(waits, average, 1.0) / np.where(waits, probability, 1.0)
        product = np.minimum(conditional * np.where(waits, slow_decay, 1.0), 1.9)
        delta = product / conditional
        least = 1 / (2 - product)
        wanted = np.where(product < 1, product**2, least) if amplitude is None else amplitude
        slow = np.where(product < 1, np.minimum(wanted, product), np.maximum(wanted, least))
        slow = np.where(np.abs(product - 1) < _EQUAL, 1.0, slow)
        fast = 1 - slow
        remainder = product - slow
        fastest = _FASTEST / np.clip(product, 1e-100, 1.0)
        still = np.abs(remainder) * fastest <= np.abs(fast)
        speed = np.where(still, fastest, fast / np.where(still, 1.0, remainder))
        speed = np.where(fast == 0, 1.0, np.maximum(speed, 1.0))
        idle = np.where(stable, 0.0, 1.0)
        return cls(
            alpha=np.where(waits, fast * probability, 0.0),
            beta=np.where(waits, speed * delta, 1 - idle),
            gamma=np.where(waits, slow * probability, idle),
            delta=np.where(waits, delta, 1 - idle),
            probability_of_wait=np.where(waits, probability, idle),
            mean=np.where(waits, average, np.where(stable, 0.0, np.inf)),
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.mean.shape

    def exceeds(self, time: ArrayLike) -> Floats:
        """``P(W > time)``; 1 for a negative time. [s -> 1]"""
        t = np.asarray(time, dtype=float)
        late = np.clip(t, 0.0, 1e300)  # inf times a decay of 0 has no value
        tail = self.alpha * np.exp(-self.beta * late)
        tail += self.gamma * np.exp(-self.delta * late)
        return np.where(t < 0, 1.0, np.clip(tail, 0.0, 1.0))

    def quantile(self, probability: ArrayLike) -> Floats:
        """Smallest t with ``P(W <= t) >= probability``. [1 -> s]

        Newton's method on the logarithm of the tail. It is convex for ``alpha > 0`` and concave
        otherwise; the root of the slow term alone lies on the side from which the steps approach
        the solution without passing it.
        """
        excess = 1 - np.asarray(probability, dtype=float)
        waits = (excess < self.alpha + self.gamma) & (self.delta > 0) & (excess > 0)
        delta = np.where(waits, self.delta, 1.0)
        beta = np.where(waits, self.beta, 1.0)
        gamma = np.where(waits, self.gamma, 1.0)
        alpha = np.where(waits, self.alpha, 0.0)
        log_excess = np.log(np.where(waits, excess, 0.5))
        t = np.maximum((np.log(np.maximum(gamma, 1e-300)) - log_excess) / delta, 0.0)
        for _ in range(_QUANTILE_STEPS):
            fast = alpha * np.exp(-beta * t)
            slow = gamma * np.exp(-delta * t)
            tail = np.maximum(fast + slow, 1e-300)
            step = (np.log(tail) - log_excess) * tail / np.maximum(beta * fast + delta * slow, 1e-300)
            t = np.maximum(t + step, 0.0)
        unbounded = (self.delta <= 0) & (excess < 1) | (excess <= 0) & (self.probability_of_wait > 0)
        return np.where(waits, t, np.where(unbounded, np.inf, 0.0))

    def expanded(self) -> WaitDistribution:
        """The same with an axis of length 1 added at the end."""
        return WaitDistribution(*(getattr(self, name)[..., None] for name in self.__slots__))

    def plus(self, service: ArrayLike, weights: ArrayLike) -> Sojourn:
        """Wait plus an independent service of the given points on the last axis. [s, 1]"""
        points, probabilities = np.broadcast_arrays(
            np.asarray(service, dtype=float), np.asarray(weights, dtype=float)
        )
        return Sojourn(self, points, probabilities)


@dataclass(frozen=True, slots=True, eq=False)
class Sojourn:
    """Wait plus an independent discrete service.

    Attributes
    ----------
    wait : WaitDistribution
    service, weights : ndarray
        Points and probabilities on the last axis; the other axes broadcast with the wait's. [s, 1]
    """

    wait: WaitDistribution
    service: Floats
    weights: Floats

    @property
    def mean(self) -> Floats:
        """[s]"""
        result: Floats = self.wait.mean + (self.service * self.weights).sum(axis=-1)
        return result

    def exceeds(self, time: ArrayLike) -> Floats:
        r"""``P(W + S > time)``. [s -> 1]

        Notes
        -----
        :math:`\sum_k w_k P(W > t - s_k)`, where :math:`P(W > \cdot) = 1` for negative times.
        """
        t = np.asarray(time, dtype=float)
        shape = np.broadcast_shapes(t.shape, self.wait.shape, self.service.shape[:-1])
        if t.size == 0 or np.prod(shape) <= _BLOCK or len(shape) == 0 or shape[0] == 1:
            return self._exceeds(t)
        result = np.empty(shape)
        rows = max(1, _BLOCK * shape[0] // int(np.prod(shape)))
        for start in range(0, shape[0], rows):
            part = slice(start, start + rows)
            result[part] = self._part(part, len(shape))._exceeds(_rows(t, part, len(shape)))
        return result

    def _part(self, part: slice, ndim: int) -> Sojourn:
        wait = WaitDistribution(
            *(_rows(getattr(self.wait, name), part, ndim) for name in WaitDistribution.__slots__)
        )
        return Sojourn(wait, _rows(self.service, part, ndim + 1), _rows(self.weights, part, ndim + 1))

    def _exceeds(self, t: Floats) -> Floats:
        tails = self.wait.expanded().exceeds(t[..., None] - self.service)
        tails *= self.weights
        result: Floats = np.minimum(tails.sum(axis=-1), 1.0)  # weights add up to 1 but for rounding
        return result

    def quantile(self, probability: ArrayLike, tolerance: float = 1e-4) -> Floats:
        """Smallest t with ``P(W + S <= t) >= probability``, by bisection. [1 -> s]

        Parameters
        ----------
        probability : float or ndarray
            [1]
        tolerance : float
            Relative accuracy of t. Where a limit on the quantile is to be checked,
            ``exceeds(limit) <= 1 - probability`` is a dozen times faster. [1]
        """
        p = np.asarray(probability, dtype=float)
        longest = np.where(self.weights > 0, self.service, -np.inf).max(axis=-1)
        wait = self.wait.quantile(p)
        high = np.broadcast_to(
            wait + longest, np.broadcast_shapes(p.shape, self.wait.shape, longest.shape)
        ).copy()
        unbounded = ~np.isfinite(high)
        high[unbounded] = 0.0
        low = np.zeros_like(high)
        for _ in range(int(np.ceil(-np.log2(tolerance))) + 4):
            middle = 0.5 * (low + high)
            above = self.exceeds(middle) > 1 - p
            low = np.where(above, middle, low)
            high = np.where(above, high, middle)
        return np.where(unbounded, np.inf, high)


def _rows(array: Floats, part: slice, ndim: int) -> Floats:
    """Rows `part` of the first of `ndim` broadcast axes."""
    return array[part] if array.ndim == ndim and array.shape[0] > 1 else array


def exceedance_of_sum(
    wait: WaitDistribution, service: ArrayLike, weights: ArrayLike, limit: ArrayLike
) -> Floats:
    """``P(W + S > limit)`` with an independent discrete S, see :meth:`Sojourn.exceeds`. [s, 1, s]"""
    return wait.plus(service, weights).exceeds(limit)


def quantile_of_sum(
    wait: WaitDistribution, service: ArrayLike, weights: ArrayLike, probability: ArrayLike
) -> Floats:
    """Quantile of W + S with an independent discrete S, see :meth:`Sojourn.quantile`. [s, 1, 1 -> s]"""
    return wait.plus(service, weights).quantile(probability)
