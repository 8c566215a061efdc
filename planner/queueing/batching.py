"""Queues whose server takes all that wait at once: how many that is, and what it does to a wait."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from planner.queueing.numeric import Floats
from planner.queueing.waiting import WaitDistribution

TAIL_PROMPTS = 2.0  # companions beyond the mean number, in steps that the tail of a wait consists of [1]


def prompts_per_step(load: ArrayLike, servers: ArrayLike, scv: ArrayLike) -> Floats:
    r"""Mean number of customers that a server takes at once.

    Parameters
    ----------
    load : float or ndarray
        Work offered over what the servers can do, below 1. [1]
    servers : float or ndarray
        Of one common queue. [1]
    scv : float or ndarray
        Squared coefficient of variation of the services. [1]

    Notes
    -----
    For one server and constant service x the steps of length L satisfy :math:`E[L^2]/E[L] = x/(1-\rho^2)`:
    the work that an arrival finds is the rest R of a step and the :math:`\rho R` that came during its
    age, so that :math:`E[W] = (1+\rho)\,E[R]` with the mean wait of M/D/1. A customer therefore shares
    its step with :math:`\rho^2/(1-\rho^2)` others. More servers take fewer at once, longer services let more
    gather; :math:`1 + (1 + \min(c^2, 1))\,\rho^2 / (n (1-\rho^2))` is ours, compared with simulation in
    `tests/test_capacity_simulation.py`.
    """
    rho = np.clip(np.asarray(load, dtype=float), 0.0, 1 - 1e-9)
    spread = 1 + np.minimum(scv, 1.0)
    return np.asarray(1 + spread * rho**2 / ((1 - rho**2) * np.asarray(servers, dtype=float)))


def tail_prompts(mean: ArrayLike) -> Floats:
    """As :func:`prompts_per_step`, of the steps in which waits are long; ours, fitted to simulation."""
    return np.asarray(1 + TAIL_PROMPTS * (np.asarray(mean, dtype=float) - 1))


def later_arrivals(load: ArrayLike, servers: ArrayLike, scv: ArrayLike) -> Floats:
    r"""Work of those that join a customer's step after it, over the wait that it would have without them.

    Notes
    -----
    All that is in a step ends together. Whoever waits through the rest R of a step is joined by those that
    come in the meantime, :math:`\rho R` of work; as :math:`E[W] = (1+\rho)\,E[R]`, see
    :func:`prompts_per_step`, this adds :math:`\rho/(1+\rho)` of a wait for one server. Before n servers the
    wait ends at the one that is free first, and later customers go to others, unless services differ: the
    factor :math:`1/n + (1 - 1/n) \min(c^2, 1)` is ours. Mean times of simulated prompts are met within 2 %,
    99th percentiles within 10 %, for n up to 8 and loads up to 0.85.
    """
    rho = np.clip(np.asarray(load, dtype=float), 0.0, 1.0)
    alone = 1 / np.asarray(servers, dtype=float)
    return np.asarray(rho / (1 + rho) * (alone + (1 - alone) * np.minimum(scv, 1.0)))


def lengthened(wait: WaitDistribution, tail: WaitDistribution, share: ArrayLike) -> WaitDistribution:
    """A wait longer by `share` of itself, with the decay of `tail`. [1]"""
    factor = 1 + np.asarray(share, dtype=float)
    return WaitDistribution.fitted(wait.probability_of_wait, wait.mean * factor, tail.delta / factor)
