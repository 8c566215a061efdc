"""Waits behind routers that do not act as one common queue: approximations, corrected by simulation.

`tools/build_router_tables.py` writes the table with the event loop of the simulator.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from planner.queueing.numeric import Floats, erlang_c
from planner.queueing.service import ServiceShape
from planner.queueing.waiting import WaitDistribution
from planner.specs import Routing

_MOST_LOAD = 1 - 1e-9
_SERVICE_POINTS = 200  # of the gamma services that approximations are compared for
_LONGEST_SERVICE = 60.0  # in the table, in mean services
_SMALL = 0.5  # mean services, added to percentiles before they are compared
_LEAST, _MOST = 0.5, 2.0  # of a correction


def routed_wait(
    routing: Routing, shape: ServiceShape, rate: Floats, replicas: Floats, arrival: Floats
) -> WaitDistribution:
    r"""Wait behind round robin or power of two.

    Parameters
    ----------
    rate, replicas, arrival : ndarray
        Arrivals at the router [req/s], replicas, squared variation of the times between arrivals. [1]

    Notes
    -----
    - *Round robin* gives each replica every n-th arrival, :math:`c^2 = c_a^2/n`; its mean is no
      shorter than least loaded's, which it equals for constant service.
    - *Power of two* takes the less loaded of two different drawn replicas. It is least loaded at
      n = 2. From there the probability of waiting goes to its limit :math:`\rho^2` as 2/n, and the
      mean exceeds least loaded's by a share of that of infinitely many replicas, for exponential service
      :math:`I = [-\log(1-\rho^2) - \rho^2]/\rho^2` from [1]_. The share
      :math:`1 - \exp[-(n-2)\sqrt{1-\rho}/(1.7\rho)]`, the factor :math:`2/3 + c_s^2/4` on I and the
      decay :math:`\delta^{-2} = \delta_{LL}^{-2} + (0.22 + 0.38 c_s^2)^2 E[S]^2` are ours, fitted to
      simulation of n = 3 ... 64, loads of 0.5 ... 0.95 and :math:`c_s^2` of 0 ... 3.

    A table of simulations says by which factors these are off in the mean and at the 99th percentile, for
    gamma services: both are multiplied by that. Whatever else a service distribution does to the wait stays
    with the approximations.

    References
    ----------
    .. [1] T. Hellemans, B. Van Houdt, "On the power-of-d-choices with least loaded server
       selection," Proc. ACM Meas. Anal. Comput. Syst., vol. 2, no. 2, 2018.
    """
    wait = _approximated(routing, shape, rate, replicas, arrival)
    load = np.clip(rate * shape.mean / replicas, 1e-9, _MOST_LOAD)
    mean, tail = _corrections(routing).at(np.maximum(replicas, 2.0), load, shape.scv)
    several = replicas >= 2
    mean, tail = np.where(several, mean, 1.0), np.where(several, tail, 1.0)
    return WaitDistribution(
        alpha=wait.alpha,
        beta=wait.beta / tail,
        gamma=wait.gamma,
        delta=wait.delta / tail,
        probability_of_wait=wait.probability_of_wait,
        mean=wait.mean * mean,
    )


def _approximated(
    routing: Routing, shape: ServiceShape, rate: Floats, replicas: Floats, arrival: Floats
) -> WaitDistribution:
    formula = _round_robin if routing is Routing.ROUND_ROBIN else _power_of_two
    return formula(shape, rate, replicas, arrival)


def _round_robin(shape: ServiceShape, rate: Floats, replicas: Floats, arrival: Floats) -> WaitDistribution:
    own = shape.wait(rate / replicas, 1, arrival / replicas)
    common = shape.wait(rate, replicas, arrival)
    probability = np.maximum(own.probability_of_wait, common.probability_of_wait)
    amplitude = own.gamma / np.maximum(own.probability_of_wait, 1e-300)
    return WaitDistribution.fitted(probability, np.maximum(own.mean, common.mean), own.delta, amplitude)


def _power_of_two(shape: ServiceShape, rate: Floats, replicas: Floats, arrival: Floats) -> WaitDistribution:
    common = shape.wait(rate, replicas, arrival)
    utilization = rate * shape.mean / replicas
    rho = np.clip(utilization, 1e-9, 1 - 1e-9)
    more = np.maximum(replicas - 2, 0.0)
    imbalance = (-np.log1p(-(rho**2)) - rho**2) / rho**2 * (2 / 3 + shape.scv / 4)
    share = -np.expm1(-more * np.sqrt(1 - rho) / (1.7 * rho))
    settled = rho**2 + (erlang_c(2, 2 * rho) - rho**2) * 2 / np.maximum(replicas, 2.0)
    several = replicas > 2
    probability = np.where(several, settled, common.probability_of_wait)
    longest = np.where(several, (0.22 + 0.38 * shape.scv) * shape.mean, 0.0)
    decay = common.delta / np.sqrt(1 + (common.delta * longest) ** 2)
    fitted = WaitDistribution.fitted(probability, common.mean + share * imbalance * shape.mean, decay)
    plain = np.broadcast_to(several, fitted.shape)
    return WaitDistribution(
        *(np.where(plain, getattr(fitted, f), getattr(common, f)) for f in WaitDistribution.__slots__)
    )


# --------------------------------------------------------------------------------------------
# Corrections


@dataclass(frozen=True, slots=True, eq=False)
class _Corrections:
    """Factors over (log2 of replicas, load, squared variation of services), shape (2, ...): mean, tail."""

    axes: tuple[Floats, Floats, Floats]
    factors: Floats

    def at(self, replicas: Floats, load: Floats, scv: Floats) -> Floats:
        """Trilinear between the points of the table, the nearest beyond its ends."""
        result: Floats = np.zeros(())
        ends = [_between(axis, x) for axis, x in zip(self.axes, (np.log2(replicas), load, scv), strict=True)]
        for corner in range(8):
            index, weight = [], np.ones(())
            for bit, (low, share) in enumerate(ends):
                upper = corner >> bit & 1
                index.append(low + upper)
                weight = weight * (share if upper else 1 - share)
            result = result + weight * self.factors[:, index[0], index[1], index[2]]
        return result


def _between(axis: Floats, x: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Interval of an axis, and the place within it, for each value."""
    low = np.clip(np.searchsorted(axis, x, side="right") - 1, 0, len(axis) - 2)
    return np.asarray(low), np.clip((x - axis[low]) / (axis[low + 1] - axis[low]), 0.0, 1.0)


@cache
def _corrections(routing: Routing) -> _Corrections:
    """What simulations were, over what is approximated for the same queues."""
    text = (files("planner.queueing") / "routers.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    mine = [row for row in rows if row["router"] == routing.value]
    replicas, loads, variations = (
        np.unique([float(row[key]) for row in mine]) for key in ("replicas", "load", "scv")
    )
    seen = np.array([[float(row[key]) for row in mine] for key in ("mean", "p99")])
    seen = seen.reshape(2, replicas.size, loads.size, variations.size)
    factors = np.ones_like(seen)
    for k, scv in enumerate(variations):
        shape = ServiceShape.of(*_gamma_services(float(scv)))
        n = replicas[:, None] + 0.0 * loads
        wait = _approximated(routing, shape, loads * n / shape.mean, n, np.asarray(1.0))
        mean, p99 = wait.mean / shape.mean, wait.quantile(0.99) / shape.mean
        factors[0, :, :, k] = (seen[0, :, :, k] + 1e-3) / (mean + 1e-3)
        factors[1, :, :, k] = (seen[1, :, :, k] + _SMALL) / (p99 + _SMALL)
    return _Corrections((np.log2(replicas), loads, variations), np.clip(factors, _LEAST, _MOST))


def _gamma_services(scv: float) -> tuple[Floats, Floats]:
    """Points and weights of a gamma distribution of mean 1, long services apart."""
    if scv == 0:
        return np.ones(1), np.ones(1)
    # The density on a grid that is fine at both ends; scipy's quantiles would cost half a second to import.
    edges = np.concatenate([[0.0], np.geomspace(1e-6, _LONGEST_SERVICE, _SERVICE_POINTS)])
    points = 0.5 * (edges[1:] + edges[:-1])
    density = points ** (1 / scv - 1) * np.exp(-points / scv)
    weights = density * np.diff(edges)
    weights = weights / weights.sum()
    return points / float(weights @ points), weights
