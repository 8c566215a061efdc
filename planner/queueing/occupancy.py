"""How many requests a decode replica holds: product form, its quantile, and the inverse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from planner.queueing.numeric import Floats, normal_quantile


@dataclass(frozen=True, slots=True, eq=False)
class Occupancy:
    """Distribution of the number of requests in a pool, truncated at its slots.

    Attributes
    ----------
    pmf : ndarray
        Probability of 0, 1, ... requests on the last axis. [1]
    replicas : int
        Over which they are balanced.
    """

    pmf: Floats
    replicas: int = 1

    @property
    def mean(self) -> Floats:
        """Of one replica's batch. [req]"""
        result: Floats = self.pmf @ np.arange(self.pmf.shape[-1]) / self.replicas
        return result

    @property
    def variance(self) -> Floats:
        """Of the pool's batch per replica. [req^2]"""
        second = self.pmf @ (np.arange(self.pmf.shape[-1]) / self.replicas) ** 2
        result: Floats = second - self.mean**2
        return result

    @property
    def blocking(self) -> Floats:
        """Probability that an arrival finds every slot taken. [1]"""
        result: Floats = self.pmf[..., -1]
        return result

    def quantile(self, probability: ArrayLike) -> Floats:
        """Smallest batch per replica not exceeded with `probability` (one, or per distribution).

        [1 -> req]
        """
        p = np.asarray(probability, dtype=float)[..., None]
        below = np.cumsum(self.pmf, axis=-1) < p - 1e-12
        result: Floats = np.minimum(below.sum(axis=-1), self.pmf.shape[-1] - 1) / self.replicas
        return result


def decode_occupancy(rate: ArrayLike, osl: ArrayLike, step_time: ArrayLike, replicas: int = 1) -> Occupancy:
    r"""Exact distribution of the batch of a pool whose router keeps the replicas balanced.

    Parameters
    ----------
    rate : float or ndarray, shape (...)
        Requests per replica. [req/s]
    osl : float or ndarray, shape (...)
        Mean decode steps of a request. [1]
    step_time : ndarray, shape (..., slots)
        Time of a step with 1, 2, ... requests. [s]
    replicas : int
        [1]

    Returns
    -------
    Occupancy
        Of ``replicas * slots + 1`` states.

    Notes
    -----
    In a step of time t(B) each of the B requests gains one token: a processor-sharing queue whose
    speed depends on its state. With Poisson arrivals it has the product form [1]_

    .. math:: \pi(N) \propto \prod_{k=1}^{N} \frac{n\lambda L \, t(k/n)}{k}

    for every distribution of output lengths of mean L, with t interpolated linearly (a replica that
    runs holds one request at least). Arrivals at full slots are lost here; in the truth they wait.
    For t = a + c B it is negative binomial with variance/mean 1/(1 - r), r = rate L c.

    References
    ----------
    .. [1] F. P. Kelly, Reversibility and Stochastic Networks, Wiley, 1979, section 3.3 (symmetric
       queues, insensitivity).
    """
    times = np.asarray(step_time, dtype=float)
    slots = times.shape[-1]
    number = np.arange(1, slots * replicas + 1)
    if replicas > 1:
        batch = np.maximum(number / replicas, 1.0)
        lower = np.minimum(batch.astype(np.intp), max(slots - 1, 1))
        upper = np.minimum(lower, slots - 1)  # index of lower + 1
        times = times[..., lower - 1] + (batch - lower) * (times[..., upper] - times[..., lower - 1])
    work = np.asarray(rate, dtype=float) * np.asarray(osl, dtype=float) * replicas
    log_weight = np.cumsum(np.log(np.maximum(work[..., None] * times / number, 1e-300)), axis=-1)
    log_weight = np.concatenate([np.zeros_like(log_weight[..., :1]), log_weight], axis=-1)
    weight = np.exp(log_weight - log_weight.max(axis=-1, keepdims=True))
    return Occupancy(weight / weight.sum(axis=-1, keepdims=True), replicas)


def mean_batch(operating_batch: ArrayLike, elasticity: ArrayLike, replicas: ArrayLike = 1) -> Floats:
    r"""Mean batch of a replica, a little above the batch at which it would run steadily.

    Parameters
    ----------
    operating_batch : float or ndarray
        Batch b at which arrivals and departures balance: ``b = rate * osl * t(b)``. [req]
    elasticity : float or ndarray
        :math:`r = b \, t'(b) / t(b)`, below 1. [1]
    replicas : float or ndarray
        Balanced replicas n. [1]

    Returns
    -------
    ndarray
        :math:`b + r / (n (1-r))`, exact for t = a + c B. [req]
    """
    r = np.asarray(elasticity, dtype=float)
    result: Floats = np.asarray(operating_batch, dtype=float) + r / (np.asarray(replicas) * (1 - r))
    return result


def occupancy_quantile(
    operating_batch: ArrayLike, elasticity: ArrayLike, replicas: ArrayLike, probability: ArrayLike
) -> Floats:
    r"""Quantile of a replica's batch, without summing the distribution.

    Parameters
    ----------
    operating_batch, elasticity, replicas : float or ndarray
        As in :func:`mean_batch`. [req, 1, 1]
    probability : float or ndarray
        [1]

    Returns
    -------
    ndarray
        The x with :math:`P(N/n \le x) = p`, the distribution function being interpolated between
        whole N; inf where ``elasticity >= 1``. [req]

    Notes
    -----
    For t = a + c B, N is negative binomial with mean :math:`n b + r/(1-r)`, variance mean/(1-r) and
    skewness :math:`s = (1+r)/\sqrt{\mathrm{mean}\,(1-r)}`. Its quantile is taken from the gamma
    distribution, shifted, of the same three moments (Wilson-Hilferty),

    .. math:: N_p = \mu + \sigma \tfrac2s\left[(1 + s z_p/6 - s^2/36)^3 - 1\right] - \tfrac12 ,

    a Cornish-Fisher expansion that stays monotone. Other t enter by their elasticity at b.
    """
    r = np.asarray(elasticity, dtype=float)
    finite = r < 1
    r = np.clip(r, 0.0, 1 - 1e-6)
    n = np.asarray(replicas, dtype=float)
    mean = np.maximum(n * mean_batch(operating_batch, r, n), 1e-12)
    deviation = np.sqrt(mean / (1 - r))
    skew = (1 + r) / np.sqrt(mean * (1 - r))
    z = normal_quantile(probability)
    cube = np.maximum(1 + skew * z / 6 - skew**2 / 36, 0.0) ** 3
    number = mean + deviation * 2 / skew * (cube - 1) - 0.5
    return np.where(finite, np.maximum(number, 0.0) / n, np.inf)


def operating_batch_for_quantile(
    limit: ArrayLike,
    batches: ArrayLike,
    step_time: ArrayLike,
    replicas: ArrayLike,
    probability: ArrayLike,
) -> Floats:
    r"""Largest operating batch at which the batch's quantile stays within `limit`.

    Parameters
    ----------
    limit : float or ndarray, shape (...)
        Largest batch allowed, for example the one whose step time meets the TPOT limit. [req]
    batches : ndarray, shape (..., points)
        Ascending grid. [req]
    step_time : ndarray, shape (..., points)
        Non-decreasing. [s]
    replicas, probability : float or ndarray, shape (...)
        [1, 1]

    Returns
    -------
    ndarray, shape (...)
        b, at most `limit` and the end of the grid; the rate of a replica is ``b / (osl * t(b))``.
        0 where even the first batches do not fit. [req]

    Notes
    -----
    At each batch b of the grid the elasticity is that of the chord from b to the limit: the
    fluctuations that matter lie between the two, and a local derivative would see only the flat
    stretches of a step time that is padded to captured batch sizes. Where t(b)/b rises again, more
    load serves less; such batches are left out, as no rate holds them.
    """
    grid, times = np.broadcast_arrays(np.asarray(batches, dtype=float), np.asarray(step_time, dtype=float))
    bound = np.asarray(limit, dtype=float)[..., None]
    at_limit = _interpolate_rows(bound, grid, times)
    rise = (at_limit - times) / np.where(bound > grid, bound - grid, 1.0)
    elasticity = np.where(bound > grid, grid * rise / times, 0.0)
    quantile = occupancy_quantile(
        grid,
        elasticity,
        np.asarray(replicas, dtype=float)[..., None],
        np.asarray(probability, dtype=float)[..., None],
    )
    bound, quantile, grid = np.broadcast_arrays(bound, quantile, grid)
    fits = (quantile <= bound) & (grid <= bound)
    count = np.logical_and.accumulate(fits, axis=-1).sum(axis=-1)
    last = np.clip(count - 1, 0, None)[..., None]
    following = np.minimum(count, grid.shape[-1] - 1)[..., None]
    x0, x1 = np.take_along_axis(grid, last, -1), np.take_along_axis(grid, following, -1)
    q0, q1 = np.take_along_axis(quantile, last, -1), np.take_along_axis(quantile, following, -1)
    x0, q0 = np.where(count[..., None] > 0, x0, 0.0), np.where(count[..., None] > 0, q0, 0.0)
    rising = np.isfinite(q1) & (q1 > q0)
    share = np.where(rising, (bound[..., :1] - q0) / np.where(rising, q1 - q0, 1.0), 0.0)
    largest = (x0 + np.clip(share, 0.0, 1.0) * (x1 - x0))[..., 0]
    result: Floats = np.minimum(largest, bound[..., 0])
    return result


def _interpolate_rows(x: Floats, grid: Floats, values: Floats) -> Floats:
    """Linear interpolation of each row of `values` over its own `grid`, flat beyond the ends."""
    shape = np.broadcast_shapes(x.shape[:-1], grid.shape[:-1])
    grid = np.broadcast_to(grid, shape + grid.shape[-1:])
    values = np.broadcast_to(values, shape + values.shape[-1:])
    x = np.broadcast_to(x, shape + x.shape[-1:])
    after = np.clip((grid <= x).sum(axis=-1, keepdims=True), 1, grid.shape[-1] - 1)
    x0, x1 = np.take_along_axis(grid, after - 1, -1), np.take_along_axis(grid, after, -1)
    y0, y1 = np.take_along_axis(values, after - 1, -1), np.take_along_axis(values, after, -1)
    result: Floats = y0 + np.clip((x - x0) / (x1 - x0), 0.0, 1.0) * (y1 - y0)
    return result
