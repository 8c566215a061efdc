"""Requests for a simulated fleet: drawn from a workload, on a schedule of rates, or as a trace has them.

The same arguments and the same state of the random generator give the same requests, byte by byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import FloatArray
from planner.errors import SpecError
from planner.queueing.numeric import normal_quantile
from planner.simulator.requests import Int32Array, Requests
from planner.specs import Lengths, Marginal, Workload
from planner.traces import IntArray, Trace, spread, timestamp_step

TOLERANCE = 0.01
"""Share by which a mean of drawn lengths may miss that of its workload before a note says so."""

_DEPENDENCE = 1e-3  # share by which E[isl osl] / E[osl] differs from E[isl] where lengths are dependent
_NODES = 32  # of the quadrature over the angle of a copula
_BISECTIONS = 24


def generated(
    workload: Workload,
    number: int,
    rng: np.random.Generator,
    *,
    rate: float | None = None,
    arrival_cv: float | None = None,
) -> Requests:
    """Requests of a workload, arriving as a gamma renewal process; time 0 is that of an arrival before.

    Parameters
    ----------
    workload : Workload
    number : int
        Requests, at least 1. [1]
    rng : Generator
    rate : float, optional
        Mean rate of arrivals; None: that of the workload's busiest period. [req/s]
    arrival_cv : float, optional
        Coefficient of variation of the times between arrivals, 0 for even ones and 1 for a Poisson
        process; None: the workload's. [1]

    Raises
    ------
    SpecError
        No requests, a rate that is not positive, a negative variation.
    """
    arrival, name = _renewal_arrivals(workload, number, rng, rate, arrival_cv)
    return _with_lengths(arrival, workload, rng, name)


def scheduled(workload: Workload, rates: Sequence[tuple[float, float]], rng: np.random.Generator) -> Requests:
    """Requests of a workload whose rate is constant in pieces; how many come is chance.

    Parameters
    ----------
    workload : Workload
    rates : sequence of (duration, rate)
        In their order; the rate may be 0. [s, req/s]
    rng : Generator

    Raises
    ------
    SpecError
        A negative duration or rate, or no request within the schedule.

    Notes
    -----
    A stationary renewal process of unit rate in stretched time, the integral of the rate: with exponential
    times between arrivals the Poisson process of this rate (Cinlar, "Introduction to Stochastic Processes,"
    1975, section 4.7).
    """
    pieces = np.array(rates, dtype=np.float64).reshape(-1, 2)
    if not np.all(np.isfinite(pieces) & (pieces >= 0)):
        raise SpecError("a schedule of rates needs durations and rates >= 0")
    starts = np.concatenate([[0.0], np.cumsum(pieces[:, 0])])
    expected = np.concatenate([[0.0], np.cumsum(pieces[:, 0] * pieces[:, 1])])
    times = _stationary_until(float(expected[-1]), workload.arrival_scv, rng)
    if not times.size:
        raise SpecError(f"no request within the schedule of rates, where {expected[-1]:.3g} are expected")
    piece = np.searchsorted(expected, times) - 1  # the first by whose end so many come: its rate is not 0
    arrival = np.minimum(starts[piece] + (times - expected[piece]) / pieces[piece, 1], starts[piece + 1])
    mean = _figure(float(expected[-1] / starts[-1]))
    rates_said = "1 rate" if len(pieces) == 1 else f"{len(pieces)} rates"
    scheme = f"{_process(workload.arrival_scv)} on a schedule of {rates_said}"
    return _with_lengths(arrival, workload, rng, f"{scheme}, {mean} req/s on average")


def replayed(
    trace: Trace,
    rng: np.random.Generator,
    *,
    rate: float | None = None,
    rate_scale: float | None = None,
    prefix_hit_rate: float = 0.0,
    with_blocks: bool = True,
    spread_ties: bool = True,
) -> Requests:
    """The requests of a trace, in its order.

    Parameters
    ----------
    trace : Trace
    rng : Generator
        Spreads coarse timestamps.
    rate : float, optional
        All times are scaled so that requests over the time from first to last arrival is this. [req/s]
    rate_scale : float, optional
        All times are divided by this. [1]
    prefix_hit_rate : float
        Share of prompt tokens in the prefix cache, where the hashes of blocks are not there or not
        used. [1]
    with_blocks : bool
        Whether the hashes of the trace, if any, are kept.
    spread_ties : bool
        Whether timestamps that are coarse by their recording are spread as in ``planner.traces.spread``.

    Raises
    ------
    SpecError
        Both `rate` and `rate_scale`, or a rate for requests that all arrive at once.
    """
    _require_some(trace.requests)
    if not 0 <= prefix_hit_rate <= 1:
        raise SpecError(f"prefix_hit_rate must be from 0 to 1, got {prefix_hit_rate!r}")
    blocks = trace.blocks if with_blocks else None
    isl = _whole(trace.isl)
    arrival, notes = _replayed_times(trace, rng, spread_ties)
    requests = Requests(
        arrival=arrival,
        isl=isl,
        osl=_whole(trace.osl),
        cached=_cached(isl, prefix_hit_rate if blocks is None else 0.0),
        blocks=blocks,
        name=trace.name,
        replayed=True,
        notes=notes,
    )
    return _scaled(requests, rate, rate_scale)


def resampled(
    trace: Trace, workload: Workload, number: int, rng: np.random.Generator, *, rate: float | None = None
) -> Requests:
    """Arrivals as in :func:`generated`, each with both lengths of a request of the trace, drawn with
    replacement."""
    _require_some(trace.requests)
    arrival, name = _renewal_arrivals(workload, number, rng, rate)
    drawn = rng.integers(0, trace.requests, number)
    isl, osl = _whole(trace.isl)[drawn], _whole(trace.osl)[drawn]
    cached = _cached(isl, workload.prefix_hit_rate)
    return Requests(
        arrival=arrival, isl=isl, osl=osl, cached=cached, name=f"{name}, with lengths drawn from {trace.name}"
    )


def cut(requests: Requests, start: int, stop: int) -> Requests:
    """Requests from index `start` to before `stop`; time 0 is the arrival of the one before `start`."""
    if not 0 <= start < stop <= requests.number:
        raise SpecError(f"requests {start} to {stop} are not within 0 to {requests.number}")
    since = requests.arrival[start - 1] if start else 0.0
    arrival = requests.arrival[start:stop] - since
    name = f"{requests.name}, requests {start:,} to {stop:,}"
    return _picked(requests, np.arange(start, stop), arrival, name)


def repeated(requests: Requests, times: int) -> Requests:
    """All requests `times` times, one round after the other; prompts repeat with their hashes.

    A round begins one mean gap after the last arrival of the round before.
    """
    if times < 1:
        raise SpecError(f"requests are repeated at least 1 time, got {times!r}")
    span = float(requests.arrival[-1] - requests.arrival[0])
    period = span + span / max(requests.number - 1, 1)
    arrival = np.add.outer(np.arange(times) * period, requests.arrival).ravel()
    name = f"{requests.name}, {times:,} times" if times > 1 else requests.name
    return _picked(requests, np.tile(np.arange(requests.number), times), arrival, name)


def _picked(requests: Requests, indices: IntArray, arrival: FloatArray, name: str) -> Requests:
    """Some of the requests, or more of the same, at other times."""
    return replace(
        requests,
        arrival=arrival,
        isl=requests.isl[indices],
        osl=requests.osl[indices],
        cached=requests.cached[indices],
        blocks=None if requests.blocks is None else requests.blocks.ordered(indices),
        name=name,
    )


# --------------------------------------------------------------------------------------------
# Arrivals


def _renewal_arrivals(
    workload: Workload,
    number: int,
    rng: np.random.Generator,
    rate: float | None,
    arrival_cv: float | None = None,
) -> tuple[FloatArray, str]:
    """Times [s], and what they are."""
    _require_some(number)
    rate = _positive("rate", workload.request_rate if rate is None else rate)
    if arrival_cv is not None and not 0 <= arrival_cv < math.inf:
        raise SpecError(f"arrival_cv must be >= 0, got {arrival_cv!r}")
    scv = workload.arrival_scv if arrival_cv is None else arrival_cv**2
    times = _gaps(number, scv, rng)
    np.cumsum(times, out=times)
    times /= rate
    return times, f"{_process(scv)} at {_figure(rate)} req/s"


def _gaps(number: int, scv: float, rng: np.random.Generator) -> FloatArray:
    """Times between arrivals at unit rate, gamma distributed with a squared coefficient of variation. [1]"""
    if scv == 0:
        return np.ones(number)
    if scv == 1:
        return rng.standard_exponential(number)
    gaps = rng.standard_gamma(1 / scv, number)
    gaps *= scv
    return gaps


def _stationary_until(end: float, scv: float, rng: np.random.Generator) -> FloatArray:
    """Arrivals of a stationary renewal process of unit rate in (0, end]. [1]

    Seen from any time, the next arrival is a uniform share of a gap away that is drawn in proportion to its
    length, and such gaps of a gamma distribution of shape k are gamma of shape k + 1 (Cox, "Renewal
    Theory," 1962, section 5.2). So as many arrive as the rate says on average, however bursty they are.
    """
    gap = scv * rng.standard_gamma(1 / scv + 1) if scv > 0 else 1.0
    times = np.array([gap * (1 - rng.random())])
    while times[-1] <= end:
        left = end - times[-1]
        further = times[-1] + np.cumsum(_gaps(math.ceil(left + 4 * math.sqrt(scv * left)) + 16, scv, rng))
        times = np.concatenate([times, further])
    return times[times <= end]


def _replayed_times(
    trace: Trace, rng: np.random.Generator, spread_ties: bool
) -> tuple[FloatArray, tuple[str, ...]]:
    """Times of a trace [s], and notes; spreading leaves the requests in their order."""
    step = timestamp_step(trace.arrival)
    if step is None:
        return trace.arrival, ()
    coarse = f"timestamps are multiples of about {step:.3g} s"
    if not spread_ties:
        return trace.arrival, (f"{coarse}: requests with the same one arrive at once",)
    note = f"{coarse}: equal ones were spread at random over the gap that follows"
    return spread(trace.arrival, rng), (note,)


def _scaled(requests: Requests, rate: float | None, rate_scale: float | None) -> Requests:
    """A replay at a rate, or at a multiple of its own."""
    if rate is not None and rate_scale is not None:
        raise SpecError("a trace is replayed at a rate or at a multiple of its own rate, not both")
    scale = 1.0 if rate_scale is None else _positive("rate_scale", rate_scale)
    own, number = requests.request_rate, requests.number
    if rate is not None:
        _positive("rate", rate)
        if own == 0 and number > 1:
            raise SpecError(
                f"{requests.name}: its {number:,} requests arrive at once, so no scale brings them to "
                f"{_figure(rate)} req/s"
            )
        scale = rate / own if own > 0 else 1.0
    if own == 0:
        return replace(requests, name=f"{requests.name}, {number:,} at once" if number > 1 else requests.name)
    if scale == 1:
        return replace(requests, name=f"{requests.name} at its own {_figure(own)} req/s")
    name = f"{requests.name} scaled x{_figure(scale)} to {_figure(own * scale)} req/s"
    return replace(requests, arrival=requests.arrival / scale, name=name)


def _process(scv: float) -> str:
    if scv in (0, 1):
        return "Poisson arrivals" if scv else "even arrivals"
    return f"gamma arrivals (cv {math.sqrt(scv):.3g})"


# --------------------------------------------------------------------------------------------
# Lengths


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """Both lengths of a request, as a distribution over pairs; arrays of shape (pairs,). [tok, tok, 1]"""

    isl: Int32Array
    osl: Int32Array
    shares: FloatArray

    @property
    def means(self) -> tuple[float, float, float]:
        """``E[isl]``, ``E[osl]`` and ``E[isl osl] / E[osl]``. [tok]"""
        outputs = self.shares * self.osl
        return float(self.shares @ self.isl), float(outputs.sum()), float(outputs @ self.isl / outputs.sum())


def _with_lengths(arrival: FloatArray, workload: Workload, rng: np.random.Generator, name: str) -> Requests:
    pairs = _pairs(workload.lengths)
    counts = rng.multinomial(arrival.size, pairs.shares)
    drawn = np.repeat(np.arange(counts.size, dtype=np.int32), counts)
    rng.shuffle(drawn)
    return Requests(
        arrival=arrival,
        isl=pairs.isl[drawn],
        osl=pairs.osl[drawn],
        cached=_cached(pairs.isl, workload.prefix_hit_rate)[drawn],
        name=name,
        notes=_missed(pairs, workload.lengths),
    )


def _pairs(lengths: Lengths) -> _Pairs:
    """Whole lengths of both sides, as dependent as the prompt that an output token sees says.

    They have the ranks of a normal pair (a Gaussian copula: Nelsen, "An Introduction to Copulas," 2006,
    section 2.3). The angle of its correlation is bisected until ``E[isl osl] / E[osl]`` is met, or as near as
    it gets. An output is cut where prompt and output exceed the longest request, a prompt where it leaves no
    room for one token.
    """
    isl, isl_weights = _whole_marginal(lengths.isl)
    osl, osl_weights = _whole_marginal(lengths.osl)
    longest = isl[-1] + osl[-1] if lengths.longest_request is None else max(lengths.longest_request, 2.0)
    prompts = np.repeat(_whole(np.minimum(isl, longest - 1)), osl.size)
    outputs = np.minimum(np.tile(_whole(osl), isl.size), int(longest) - prompts)

    def pairs(theta: float) -> _Pairs:
        return _Pairs(prompts, outputs, _normal_pairs(isl_weights, osl_weights, theta).ravel())

    target = lengths.isl_per_output_token
    best = pairs(0.0)
    if math.isclose(target, lengths.isl.mean, rel_tol=_DEPENDENCE) or min(isl.size, osl.size) == 1:
        return best
    low, high = (0.0, math.pi / 2) if target > best.means[2] else (-math.pi / 2, 0.0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        best = pairs(middle)
        low, high = (middle, high) if best.means[2] < target else (low, middle)
    return best


def _whole_marginal(marginal: Marginal) -> tuple[FloatArray, FloatArray]:
    """Whole lengths and their probabilities: a point between two is shared among them, which keeps the mean,
    where rounding would lose a large part of a short one. [tok, 1]"""
    points, weights = np.maximum(marginal.points, 1.0), np.array(marginal.weights)
    below = np.floor(points)
    above = points - below
    values, index = np.unique(np.concatenate([below, below + 1]), return_inverse=True)
    shares = np.bincount(index, np.concatenate([weights * (1 - above), weights * above])).astype(np.float64)
    occurs = shares > 0
    return values[occurs], shares[occurs]


def _normal_pairs(first: FloatArray, second: FloatArray, theta: float) -> FloatArray:
    r"""Joint probabilities, shape (m, n), of two discrete distributions over the ranks of a normal pair. [1]

    `first` and `second`, shapes (m,) and (n,), are the probabilities of each [1]; `theta` is the arc sine of
    the pair's correlation [rad]. As :math:`\partial\Phi_2/\partial\rho = \varphi_2` (Plackett, Biometrika,
    vol. 41, 1954), and with :math:`\rho = \sin t` (Drezner and Wesolowsky, J. Stat. Comput. Simul., vol. 35,
    1990),

    .. math:: \Phi_2(a, b; \sin\theta) = \Phi(a)\Phi(b) + \frac1{2\pi} \int_0^\theta
              \exp\left(-\frac{a^2 - 2 a b \sin t + b^2}{2 \cos^2 t}\right) dt ,

    by Gauss and Legendre's rule; probabilities are its differences.
    """
    below_one = 1 - 2**-53
    a = normal_quantile(np.minimum(np.cumsum(first)[:-1], below_one))[:, None]
    b = normal_quantile(np.minimum(np.cumsum(second)[:-1], below_one))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    excess = np.zeros((first.size + 1, second.size + 1))
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        t = theta * (1 + node) / 2
        exponent = (a**2 - 2 * math.sin(t) * a * b + b**2) / (2 * math.cos(t) ** 2)
        excess[1:-1, 1:-1] += weight * theta / (4 * math.pi) * np.exp(-exponent)
    joint = np.outer(first, second) + np.diff(np.diff(excess, axis=0), axis=1)
    joint = np.maximum(joint, 0.0)  # not below it by the error of the quadrature
    return joint / float(joint.sum())


def _missed(pairs: _Pairs, lengths: Lengths) -> tuple[str, ...]:
    """Notes on the means that the pairs do not have."""
    labels = ("input tokens", "output tokens", "input tokens per output token")
    asked = (lengths.isl.mean, lengths.osl.mean, lengths.isl_per_output_token)
    return tuple(
        f"mean {label}: {_figure(mean)} drawn for {_figure(target)}; pairs of these lengths come no nearer"
        for label, mean, target in zip(labels, pairs.means, asked, strict=True)
        if abs(mean - target) > TOLERANCE * target
    )


def _cached(isl: Int32Array, prefix_hit_rate: float) -> Int32Array:
    """Prompt tokens in the prefix cache, which never holds the last one. [tok]"""
    cached = np.minimum(np.round(prefix_hit_rate * isl), isl - 1)
    return np.maximum(cached, 0).astype(np.int32)


def _whole(tokens: IntArray | FloatArray) -> Int32Array:
    if tokens.max() > np.iinfo(np.int32).max:
        raise SpecError(f"a length of {tokens.max():,.0f} tokens is longer than a simulation can hold")
    return tokens.astype(np.int32)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:  # also refuses NaN
        raise SpecError(f"{name} must be > 0, got {value!r}")
    return value


def _require_some(number: int) -> None:
    if number < 1:
        raise SpecError(f"at least 1 request is needed, got {number!r}")
