"""How a router pools the queues of equal replicas, and DistServe's closed forms."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from planner.queueing.numeric import Floats
from planner.queueing.routers import routed_wait
from planner.queueing.service import ServiceShape
from planner.queueing.waiting import WaitDistribution
from planner.specs import Routing


def pooled_wait(
    routing: Routing,
    shape: ServiceShape,
    rate: ArrayLike,
    replicas: ArrayLike,
    arrival_scv: ArrayLike = 1.0,
) -> WaitDistribution:
    r"""Wait of a request before `replicas` equal replicas behind a router.

    Parameters
    ----------
    routing : Routing
    shape : ServiceShape
        Occupancy of a replica per request.
    rate : float or ndarray
        Arrivals at the router. [req/s]
    replicas : float or ndarray
        [1]
    arrival_scv : float or ndarray
        Squared coefficient of variation of inter-arrival times at the router. [1]

    Returns
    -------
    WaitDistribution

    Notes
    -----
    - *Least loaded* (least unfinished work) serves in the order of one common queue: M/G/n.
    - *Random* gives each replica a Poisson stream of rate/n; a thinned stream has
      :math:`c^2 = 1 + (c_a^2 - 1)/n`.
    - *Round robin* and *power of two* (the less loaded of two different drawn replicas) are approximated, and
      corrected by a table of simulations: :func:`~planner.queueing.routers.routed_wait`.
    """
    total = np.asarray(rate, dtype=float)
    n = np.asarray(replicas, dtype=float)
    arrival = np.asarray(arrival_scv, dtype=float)
    match routing:
        case Routing.LEAST_LOADED:
            return shape.wait(total, n, arrival)
        case Routing.RANDOM:
            return shape.wait(total / n, 1, 1 + (arrival - 1) / n)
        case Routing.ROUND_ROBIN | Routing.POWER_OF_TWO:
            return routed_wait(routing, shape, total, n, arrival)


def md1_mean_ttft(rate: ArrayLike, time: ArrayLike) -> Floats:
    r"""Mean TTFT of one replica with equal prompts, :math:`D + R D^2 / (2 (1 - R D))`.

    Parameters
    ----------
    rate : float or ndarray
        Requests, R. [req/s]
    time : float or ndarray
        Prefill of a prompt, D. [s]

    Returns
    -------
    ndarray
        inf where ``rate * time >= 1``. [s]

    References
    ----------
    .. [1] Y. Zhong et al., "DistServe: Disaggregating prefill and decoding for goodput-optimized
       large language model serving," OSDI 2024, section 3.1, equation 1.
    """
    return _latency_and_wait(rate, time, time)


def md1_mean_ttft_pipeline(rate: ArrayLike, time: ArrayLike, stages: ArrayLike = 2) -> Floats:
    r"""As :func:`md1_mean_ttft` on a pipeline: a prompt occupies the slowest stage D/p only.

    Parameters
    ----------
    rate, time : float or ndarray
        [req/s, s]
    stages : float or ndarray
        Equal stages p; 2 gives equation 2 of the paper, :math:`D + R D^2 / (4 (2 - R D))`. [1]

    Returns
    -------
    ndarray
        [s]
    """
    duration = np.asarray(time, dtype=float)
    return _latency_and_wait(rate, duration, duration / np.asarray(stages, dtype=float))


def md1_mean_ttft_tensor_parallel(rate: ArrayLike, time: ArrayLike, speedup: ArrayLike) -> Floats:
    r"""As :func:`md1_mean_ttft` with tensor parallelism, :math:`D/K + R D^2 / (2 K (K - R D))`.

    Parameters
    ----------
    rate, time : float or ndarray
        [req/s, s]
    speedup : float or ndarray
        K, between 1 and the number of GPUs; equation 3 of the paper. [1]

    Returns
    -------
    ndarray
        [s]
    """
    duration = np.asarray(time, dtype=float) / np.asarray(speedup, dtype=float)
    return _latency_and_wait(rate, duration, duration)


def _latency_and_wait(rate: ArrayLike, latency: ArrayLike, occupancy: ArrayLike) -> Floats:
    r, d = np.asarray(rate, dtype=float), np.asarray(occupancy, dtype=float)
    idle = 1 - r * d
    wait = np.where(idle > 0, r * d**2 / (2 * np.where(idle > 0, idle, 1.0)), np.inf)
    result: Floats = np.asarray(latency, dtype=float) + wait
    return result
