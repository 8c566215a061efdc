"""Discrete length distributions from what people know of their traffic: pure functions.

Each distribution is cut into buckets of probability, narrow in the tail, and a bucket becomes one
point at its mean: mean and total are exact, and the longest requests keep points of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from planner.errors import SpecError
from planner.specs import Lengths, Marginal

BUCKET_EDGES: NDArray[np.float64] = np.array(
    [i / 20 for i in range(18)] + [i / 100 for i in range(90, 99)] + [i / 1000 for i in range(990, 1001)]
)
"""Probabilities at which a distribution is cut: every 5 % up to 90 %, 1 % up to 99 %, then 0.1 %."""

TAIL_CUT = 0.9999
"""Probability beyond which an extrapolated tail is flat."""

_NORMAL = NormalDist()


def marginal_fixed(tokens: float) -> Marginal:
    """Every request has the same length. [tok]"""
    _require(tokens >= 1, "a length must be at least 1 token")
    return Marginal(points=(float(tokens),), weights=(1.0,))


def marginal_lognormal(mean: float, cv: float, maximum: float | None = None) -> Marginal:
    """Lognormal lengths.

    Parameters
    ----------
    mean : float
        [tok]
    cv : float
        Standard deviation over mean; 0 is a fixed length. [1]
    maximum : float, optional
        Longer requests are cut to this. [tok]
    """
    _require(mean >= 1 and cv >= 0, "a length needs mean >= 1 and cv >= 0")
    if cv == 0:
        return clamped(marginal_fixed(mean), maximum)
    variance = math.log1p(cv**2)
    intercept = math.log(mean) - variance / 2
    points = _lognormal_bucket_means([(-math.inf, intercept, math.sqrt(variance))])
    return clamped(_from_bucket_means(points), maximum)


def marginal_from_percentiles(percentiles: Mapping[float, float], maximum: float | None = None) -> Marginal:
    """Lengths of which a few percentiles are known, e.g. ``{0.5: 900, 0.9: 3000, 0.99: 8000}``.

    The logarithm of the quantile function is interpolated linearly in the normal quantile, which is
    monotone and exact for a lognormal. The first and the last piece go on beyond the outermost
    percentiles; below, no length is under 1 token, above, the tail is flat from :data:`TAIL_CUT` on
    (as "p100"). Two equal percentiles give a constant piece.

    Parameters
    ----------
    percentiles : mapping
        At least two probabilities in (0, 1) with their lengths. [tok]
    maximum : float, optional
        Longer requests are cut to this. [tok]
    """
    probabilities = sorted(percentiles)
    values = [percentiles[p] for p in probabilities]
    _require(len(values) >= 2, "a length needs at least two percentiles")
    _require(probabilities[0] > 0 and probabilities[-1] < 1, "percentiles must lie between 0 and 100")
    _require(values[0] >= 1, "a length must be at least 1 token")
    _require(_ascends(values), "percentiles must not fall: p50 <= p90 <= p99")
    z = [_NORMAL.inv_cdf(p) for p in probabilities]
    pieces: list[tuple[float, float, float]] = []
    for i in range(len(z) - 1):
        slope = math.log(values[i + 1] / values[i]) / (z[i + 1] - z[i])
        start = -math.inf if i == 0 else z[i]
        pieces.append((start, math.log(values[i]) - slope * z[i], slope))
    _, intercept, slope = pieces[-1]
    cut = max(_NORMAL.inv_cdf(TAIL_CUT), z[-1])
    pieces.append((cut, intercept + slope * cut, 0.0))
    return clamped(_from_bucket_means(_lognormal_bucket_means(pieces)), maximum)


def marginal_from_quantiles(probabilities: Sequence[float], values: Sequence[float]) -> Marginal:
    """Lengths with a tabulated quantile function, linear between the entries.

    Parameters
    ----------
    probabilities : sequence of float
        Strictly ascending, from 0 to 1. [1]
    values : sequence of float
        Lengths at these, not falling. [tok]
    """
    p, q = np.asarray(probabilities, float), np.asarray(values, float)
    _require(p.size >= 2 and p.shape == q.shape, "a quantile table needs as many values as probabilities")
    _require(
        p[0] == 0 and p[-1] == 1 and bool(np.all(np.diff(p) > 0)), "probabilities must ascend from 0 to 1"
    )
    _require(q[0] >= 0 and _ascends(q), "quantiles must be >= 0 and must not fall")
    # The trapezoid rule is exact on a grid that holds every kink.
    grid = np.union1d(p, BUCKET_EDGES)
    on_grid = np.interp(grid, p, q)
    area = np.concatenate([[0.0], np.cumsum(np.diff(grid) * (on_grid[1:] + on_grid[:-1]) / 2)])
    marginal = _from_areas(area[np.searchsorted(grid, BUCKET_EDGES)])
    return _with_longest(marginal, max(float(q[-1]), 1.0))


def marginal_from_histogram(tokens: Sequence[float], weights: Sequence[float]) -> Marginal:
    """Lengths counted by the user; `weights` need not add up to 1. [tok, 1]

    More values than there are buckets are gathered into the buckets.
    """
    x, w = np.asarray(tokens, float), np.asarray(weights, float)
    _require(x.size >= 1 and x.shape == w.shape, "a histogram needs as many weights as lengths")
    _require(bool(np.all(w >= 0)) and 0 < w.sum() < math.inf, "weights must be >= 0, and not all 0")
    _require(bool(np.all(x >= 1)), "a length must be at least 1 token")
    x, index = np.unique(x, return_inverse=True)
    w = np.bincount(index, w / w.sum())
    x, w = x[w > 0], w[w > 0]
    if x.size < BUCKET_EDGES.size:
        return Marginal(points=tuple(x.tolist()), weights=tuple(w.tolist()))
    # The quantile function is a staircase, so its integral is linear between the cumulated weights.
    share = np.concatenate([[0.0], np.cumsum(w)])
    area = np.concatenate([[0.0], np.cumsum(w * x)])
    return _with_longest(_from_areas(np.interp(BUCKET_EDGES, share / share[-1], area)), float(x[-1]))


def clamped(marginal: Marginal, maximum: float | None) -> Marginal:
    """`marginal` with longer requests cut to `maximum`. [tok]"""
    if maximum is None or marginal.maximum <= maximum:
        return marginal
    _require(maximum >= 1, "a length must be at least 1 token")
    return _with_longest(marginal, float(maximum))


def _with_longest(marginal: Marginal, longest: float) -> Marginal:
    """Points cut to the longest length, which is kept beside them. [tok]"""
    points = tuple(min(x, longest) for x in marginal.points)
    return Marginal(points=points, weights=marginal.weights, longest=longest)


def independent(isl: Marginal, osl: Marginal) -> Lengths:
    """Prompt and output lengths that know nothing of each other."""
    return Lengths(isl=isl, osl=osl, isl_per_output_token=isl.mean)


def _lognormal_bucket_means(pieces: Sequence[tuple[float, float, float]]) -> NDArray[np.float64]:
    """Bucket means of ``exp(intercept + slope z)``, z standard normal. [tok]

    `pieces` are (first z, intercept, slope), ascending; each holds up to the next. A piece's share of
    the mean is :math:`e^{a + b^2/2} (\\Phi(z_2 - b) - \\Phi(z_1 - b))`, the partial expectation of a
    lognormal.
    """
    edges = [-math.inf, *(_NORMAL.inv_cdf(p) for p in BUCKET_EDGES[1:-1].tolist()), math.inf]
    ends = [*(start for start, _, _ in pieces[1:]), math.inf]
    sums = np.zeros(len(edges) - 1)
    for (start, intercept, slope), end in zip(pieces, ends, strict=True):
        scale = math.exp(intercept + slope**2 / 2)
        for i, (low, high) in enumerate(pairwise(edges)):
            low, high = max(low, start), min(high, end)
            if low < high:
                sums[i] += scale * (_normal_cdf(high - slope) - _normal_cdf(low - slope))
    return sums / np.diff(BUCKET_EDGES)


def _normal_cdf(z: float) -> float:
    # erfc keeps its relative precision far below the mean, where 1 + erf has none left.
    return math.erfc(-z / math.sqrt(2)) / 2


def _from_areas(area: NDArray[np.float64]) -> Marginal:
    """From the integral of the quantile function at the bucket edges. [tok]"""
    return _from_bucket_means(np.diff(area) / np.diff(BUCKET_EDGES))


def _from_bucket_means(means: NDArray[np.float64]) -> Marginal:
    # Rounding can leave neighbours out of order by one unit in the last place.
    points = np.maximum.accumulate(np.maximum(means, 1.0))
    return Marginal(points=tuple(points.tolist()), weights=tuple(np.diff(BUCKET_EDGES).tolist()))


def _ascends(values: Sequence[float] | NDArray[np.float64]) -> bool:
    return bool(np.all(np.diff(values) >= 0))


def _require(condition: bool, rule: str) -> None:
    if not condition:  # also where a comparison with NaN was made
        raise SpecError(rule)
