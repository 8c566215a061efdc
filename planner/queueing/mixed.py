"""Groups of unequal servers behind a router that sends everyone where it ends first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_SLOW = 2.0  # times as long as on the next faster servers: nobody changes over while these are free soon [1]


def shares_by_speed(rate: float, times: Sequence[float], servers: Sequence[float]) -> list[float]:
    r"""Share of the customers that each group of servers takes.

    Parameters
    ----------
    rate : float
        Customers. [1/s]
    times : sequence of float
        Mean service in each group. [s]
    servers : sequence of float
        In each group. [1]

    Notes
    -----
    The fastest group takes all whom it does not lose to the next: one with a ratio r between the services
    is better off waiting up to :math:`(r-1)` fast services. The loss is that of M/M/n with
    :math:`n(r-1)` places to wait, Erlang's for equal services. At high load each group is as busy as the
    others, which is the least that a faster one takes.
    """
    order = np.argsort(times, kind="stable").tolist()
    taken = [0.0] * len(order)
    left = rate
    for place, k in enumerate(order):
        rest = order[place:]
        even = left * (servers[k] / times[k]) / sum(servers[j] / times[j] for j in rest)
        if len(rest) == 1:
            taken[k] = left
            break
        ratio = times[rest[1]] / times[k]
        lost = _loss(left * times[k], servers[k], servers[k] * (ratio - 1))
        taken[k] = max(even, left * (1 - lost))
        left -= taken[k]
    return [x / rate for x in taken]


def shared_servers(times: Sequence[float], servers: Sequence[float], group: int) -> float:
    """Servers of the queue that a group's customers see: slower ones stand in the less for its own. [1]"""
    return sum(
        n * float(np.clip((_SLOW - t / times[group]) / (_SLOW - 1), 0.0, 1.0))
        for t, n in zip(times, servers, strict=True)
    )


def _loss(offered: float, servers: float, places: float) -> float:
    """Probability that M/M/n with some places to wait is full. [1]"""
    erlang = 1.0
    for n in range(1, max(round(servers), 1) + 1):
        erlang = offered * erlang / (n + offered * erlang)
    rho = offered / servers
    power = rho**places
    waiting = places if abs(rho - 1) < 1e-6 else rho * (1 - power) / (1 - rho)
    return float(erlang * power / (1 + erlang * waiting))
