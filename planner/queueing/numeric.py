"""Special functions as vectorised numpy: normal and gamma distribution, Erlang's delay formula.

scipy has all of them but costs more to import than a plan to solve, so only the tests use it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

_LOG_FLOAT_MAX = 700.0
_SQRT_2PI = math.sqrt(2 * math.pi)

# Hart's rational approximation of the normal tail, highest power first (West 2005).
_HART_NUMERATOR = (
    3.52624965998911e-02,
    0.700383064443688,
    6.37396220353165,
    33.912866078383,
    112.079291497871,
    221.213596169931,
    220.206867912376,
)
_HART_DENOMINATOR = (
    8.83883476483184e-02,
    1.75566716318264,
    16.064177579207,
    86.7807322029461,
    296.564248779674,
    637.333633378831,
    793.826512519948,
    440.413735824752,
)
_HART_LIMIT = 7.07106781186547  # a continued fraction beyond

# Acklam's rational approximation of the normal quantile, highest power first.
_ACKLAM_CENTRE_NUMERATOR = (
    -3.969683028665376e01,
    2.209460984245205e02,
    -2.759285104469687e02,
    1.383577518672690e02,
    -3.066479806614716e01,
    2.506628277459239e00,
)
_ACKLAM_CENTRE_DENOMINATOR = (
    -5.447609879822406e01,
    1.615858368580409e02,
    -1.556989798598866e02,
    6.680131188771972e01,
    -1.328068155288572e01,
    1.0,
)
_ACKLAM_TAIL_NUMERATOR = (
    -7.784894002430293e-03,
    -3.223964580411365e-01,
    -2.400758277161838e00,
    -2.549732539343734e00,
    4.374664141464968e00,
    2.938163982698783e00,
)
_ACKLAM_TAIL_DENOMINATOR = (
    7.784695709041462e-03,
    3.224671290700398e-01,
    2.445134137142996e00,
    3.754408661907416e00,
    1.0,
)
_ACKLAM_TAIL = 0.02425

# Lanczos, g = 7, nine terms.
_LANCZOS_G = 7.0
_LANCZOS = (
    0.99999999999980993,
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)

_RECURSION_LIMIT = 24  # servers; Temme's expansion beyond
_GAMMA_SHIFT = 3


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    total = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        total *= x
        total += c
    return total


def normal_cdf(x: ArrayLike) -> Floats:
    """Distribution function of the standard normal.

    Parameters
    ----------
    x : float or ndarray
        [1]

    Returns
    -------
    ndarray, shape of `x`
        Probability; absolute error below 1e-14, relative below 1e-7 far out. [1]

    References
    ----------
    .. [1] G. West, "Better approximations to cumulative normal functions," Wilmott, May 2005,
       pp. 70-76 (after J. F. Hart, Computer Approximations, Wiley, 1968).
    """
    x = np.asarray(x, dtype=float)
    distance = np.minimum(np.abs(x), 37.5)  # beyond, exp underflows
    near = np.minimum(distance, _HART_LIMIT)
    ratio = _polynomial(_HART_NUMERATOR, near) / _polynomial(_HART_DENOMINATOR, near)
    if np.any(distance > _HART_LIMIT):
        fraction = distance + 0.65
        for term in (4.0, 3.0, 2.0, 1.0):
            fraction = distance + term / fraction
        ratio = np.where(distance > _HART_LIMIT, 1 / (fraction * _SQRT_2PI), ratio)
    tail = np.exp(-0.5 * distance**2) * ratio
    result: Floats = np.where(x > 0, 1 - tail, tail)
    return result


def normal_quantile(probability: ArrayLike) -> Floats:
    """Inverse of :func:`normal_cdf`; -inf at 0, inf at 1.

    Parameters
    ----------
    probability : float or ndarray
        In [0, 1]. [1]

    Returns
    -------
    ndarray, shape of `probability`
        Relative error below 1e-9. [1]

    References
    ----------
    .. [1] P. J. Acklam, "An algorithm for computing the inverse normal cumulative distribution
       function," 2003; one step of Halley's method follows.
    """
    p = np.asarray(probability, dtype=float)
    inside = np.clip(p, 1e-300, 1 - 2**-53)
    tail = np.minimum(inside, 1 - inside)
    q = np.sqrt(-2 * np.log(np.minimum(tail, _ACKLAM_TAIL)))
    outer = _polynomial(_ACKLAM_TAIL_NUMERATOR, q) / _polynomial(_ACKLAM_TAIL_DENOMINATOR, q)
    centred = np.clip(inside - 0.5, _ACKLAM_TAIL - 0.5, 0.5 - _ACKLAM_TAIL)
    r = centred**2
    inner = centred * _polynomial(_ACKLAM_CENTRE_NUMERATOR, r) / _polynomial(_ACKLAM_CENTRE_DENOMINATOR, r)
    # The lower tail is where 1 - p loses no digits, so both tails are refined there.
    z = np.where(tail < _ACKLAM_TAIL, outer, -np.abs(inner))
    error = (normal_cdf(z) - tail) * _SQRT_2PI * np.exp(np.minimum(0.5 * z**2, _LOG_FLOAT_MAX))
    z = z - error / (1 + 0.5 * z * error)
    z = np.where(inside > 0.5, -z, z)
    return np.where(p <= 0, -np.inf, np.where(p >= 1, np.inf, z))


def log_gamma(x: ArrayLike) -> Floats:
    """Logarithm of the gamma function for ``x > 0``, by Lanczos' approximation.

    Parameters
    ----------
    x : float or ndarray
        Positive. [1]

    Returns
    -------
    ndarray, shape of `x`
        Relative error below 1e-13, absolute near the zeros at 1 and 2. [1]

    References
    ----------
    .. [1] C. Lanczos, "A precision approximation of the gamma function," SIAM J. Numer. Anal. B,
       vol. 1, pp. 86-96, 1964. Coefficients of P. Godfrey.
    """
    z = np.asarray(x, dtype=float) - 1
    series = np.full_like(z, _LANCZOS[0])
    for i, c in enumerate(_LANCZOS[1:], start=1):
        series += c / (z + i)
    t = z + _LANCZOS_G + 0.5
    result: Floats = 0.5 * math.log(2 * math.pi) + (z + 0.5) * np.log(t) - t + np.log(series)
    return result


def gamma_tail(mean: ArrayLike, variance: ArrayLike, x: ArrayLike) -> Floats:
    r"""Probability that a gamma-distributed quantity exceeds `x`.

    Parameters
    ----------
    mean : float or ndarray
        Not negative; 0 is a quantity that is always 0. [u]
    variance : float or ndarray
        Not negative; 0 is a constant. [u^2]
    x : float or ndarray
        Threshold, in the unit u of the mean. [u]

    Returns
    -------
    ndarray, broadcast shape
        :math:`P(X > x)`; absolute error below 0.003. [1]

    Notes
    -----
    With shape :math:`k = \mu^2/\sigma^2` and :math:`y = k x / \mu`, Wilson and Hilferty [1]_ take
    :math:`(X/\mu)^{1/3}` as normal with mean :math:`1 - 1/(9k)` and variance :math:`1/(9k)`, which
    is poor for small k. The recurrence
    :math:`Q(k, y) = Q(k+m, y) - \sum_{j<m} y^{k+j} e^{-y}/\Gamma(k+j+1)` moves it to :math:`k + 3`.

    References
    ----------
    .. [1] E. B. Wilson, M. M. Hilferty, "The distribution of chi-square," Proc. Natl. Acad. Sci.,
       vol. 17, no. 12, pp. 684-688, 1931.
    """
    mean, variance, x = np.broadcast_arrays(
        np.asarray(mean, dtype=float), np.asarray(variance, dtype=float), np.asarray(x, dtype=float)
    )
    spread = (variance > 0) & (mean > 0)
    safe_mean = np.where(spread, mean, 1.0)
    shape = np.where(spread, safe_mean**2 / np.where(spread, variance, 1.0), 1.0)
    y = np.maximum(x, 0.0) * shape / safe_mean
    shifted = shape + _GAMMA_SHIFT
    z = 3 * np.sqrt(shifted) * (np.cbrt(y / shifted) - 1 + 1 / (9 * shifted))
    tail = normal_cdf(-z)
    log_term = shape * np.log(np.maximum(y, 1e-300)) - y - log_gamma(shape + 1)
    term = np.exp(np.minimum(log_term, 0.0))
    for j in range(_GAMMA_SHIFT):
        tail = tail - term
        term = term * y / (shape + j + 1)
    tail = np.where(y > 0, np.clip(tail, 0.0, 1.0), 1.0)
    constant = np.where(x < mean, 1.0, 0.0)
    return np.where(spread, tail, constant)


def _inverse_blocking_recursive(servers: Floats, load: Floats) -> Floats:
    """1 / Erlang B by the recursion from the fractional part of `servers` on."""
    whole = np.floor(servers)
    fraction = servers - whole
    inverse = np.ones_like(load)
    if np.any(fraction > 0):
        nodes, weights = np.polynomial.laguerre.laggauss(8)
        moments = ((1 + nodes / load[..., None]) ** fraction[..., None]) @ weights
        inverse = np.where(fraction > 0, moments, inverse)
    for k in range(1, int(whole.max(initial=0)) + 1):
        inverse = np.where(k <= whole, 1 + (fraction + k) / load * inverse, inverse)
    return inverse


def _inverse_blocking_asymptotic(servers: Floats, load: Floats) -> Floats:
    """1 / Erlang B for many servers, from Temme's expansion of the incomplete gamma function."""
    mu = load / servers - 1
    half_square = mu - np.log1p(mu)
    eta = np.copysign(np.sqrt(2 * np.maximum(half_square, 0.0)), mu)
    small = np.abs(eta) < 0.05
    safe_eta, safe_mu = np.where(small, 1.0, eta), np.where(small, 1.0, mu)
    c0 = np.where(small, -1 / 3 + eta * (1 / 12 - eta * 2 / 135), 1 / safe_mu - 1 / safe_eta)
    c1 = np.where(
        small,
        -1 / 540 - eta / 288,
        1 / safe_eta**3 - 1 / safe_mu**3 - 1 / safe_mu**2 - 1 / (12 * safe_mu),
    )
    stirling = 1 + 1 / (12 * servers) + 1 / (288 * servers**2)
    growth = np.exp(np.minimum(servers * half_square, _LOG_FLOAT_MAX))
    body = np.sqrt(2 * math.pi * servers) * normal_cdf(-eta * np.sqrt(servers)) * growth
    return 1 + stirling * (body + c0 + c1 / servers)


def erlang_c(servers: ArrayLike, load: ArrayLike) -> Floats:
    r"""Erlang's delay formula: probability that a customer of M/M/n waits.

    Parameters
    ----------
    servers : float or ndarray
        Number of servers n >= 1; fractions interpolate analytically. [1]
    load : float or ndarray
        Offered load :math:`a = \lambda E[S]`. [erlang]

    Returns
    -------
    ndarray, broadcast shape
        1 where ``load >= servers``. Relative error below 1e-6 for whole n, 1e-3 for fractions. [1]

    Notes
    -----
    :math:`1/C = \rho + (1-\rho)/B`, with Erlang's loss formula B, of which

    .. math:: \frac1{B(n, a)} = 1 + \frac{n}{a}\frac1{B(n-1, a)}
              = a \int_0^\infty e^{-a t} (1+t)^n \, dt .

    Up to 24 servers the recursion is used, started at the fractional part of n with the integral.
    Beyond, :math:`1/B = 1 + n! \, e^a a^{-n} Q(n, a)` with Temme's uniform expansion of the
    incomplete gamma function Q to second order [2]_.

    References
    ----------
    .. [1] A. A. Jagers, E. A. van Doorn, "On the continued Erlang loss function," Oper. Res. Lett.,
       vol. 5, no. 1, pp. 43-46, 1986.
    .. [2] N. M. Temme, "The asymptotic expansion of the incomplete gamma functions," SIAM J. Math.
       Anal., vol. 10, no. 4, pp. 757-766, 1979.
    """
    n, a = np.broadcast_arrays(np.asarray(servers, dtype=float), np.asarray(load, dtype=float))
    utilization = a / n
    waits = (utilization > 1e-12) & (utilization < 1)
    a = np.where(waits, a, 0.5 * n)
    inverse = np.empty(n.shape)
    few = n <= _RECURSION_LIMIT
    if np.any(few):
        inverse[few] = _inverse_blocking_recursive(n[few], a[few])
    if not np.all(few):
        many = ~few
        inverse[many] = _inverse_blocking_asymptotic(n[many], a[many])
    probability = 1 / (utilization + (1 - utilization) * inverse)
    return np.where(waits, probability, np.where(utilization >= 1, 1.0, 0.0))
