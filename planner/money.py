"""What tokens cost, and from when on renting pays. USD; every denominator is stated.

A price per million tokens says nothing until it says which tokens (input, output, or both), and how busy the
GPUs are that are paid for: an hour costs the same whether its tokens are asked for or not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.errors import SpecError
from planner.units import HOURS_PER_MONTH, MEGA, SECONDS_PER_HOUR


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenCost:
    """Cost per million tokens, three ways to divide the same bill. [USD]

    Attributes
    ----------
    input, output : float
        The whole bill over input tokens alone, and over output tokens alone; infinite where there are none.
    both : float
        Over input and output tokens together.
    """

    input: float
    output: float
    both: float


def cost_per_million(cost: float, token_rate: float, utilization: float = 1.0) -> float:
    """Cost of a million tokens of the kind that `token_rate` counts. [USD]

    Parameters
    ----------
    cost : float
        Of everything paid for. [USD/h]
    token_rate : float
        Tokens of that kind when all is busy. [tok/s]
    utilization : float
        Share of them that is asked for. [1]

    Raises
    ------
    SpecError
    """
    _require(0 <= cost < math.inf, f"cost must be finite and >= 0 USD/h, got {cost!r}")
    _require(0 <= token_rate < math.inf, f"token rate must be finite and >= 0 tok/s, got {token_rate!r}")
    _require(0 < utilization <= 1, f"utilization must lie in (0, 1], got {utilization!r}")
    if cost == 0:
        return 0.0
    sold = token_rate * utilization * SECONDS_PER_HOUR
    return cost / sold * MEGA if sold > 0 else math.inf


def token_cost(
    cost: float, request_rate: float, mean_isl: float, mean_osl: float, utilization: float = 1.0
) -> TokenCost:
    """Cost per million tokens of a service of `request_rate` [req/s] at mean lengths [tok].

    `cost` [USD/h] and `utilization` [1] as in :func:`cost_per_million`.

    Raises
    ------
    SpecError
    """
    return TokenCost(
        input=cost_per_million(cost, request_rate * mean_isl, utilization),
        output=cost_per_million(cost, request_rate * mean_osl, utilization),
        both=cost_per_million(cost, request_rate * (mean_isl + mean_osl), utilization),
    )


def break_even_utilization(cost: float, token_rate: float, price_per_million: float) -> float:
    """Share of the time that rented GPUs must be busy to be no dearer than tokens bought at a price. [1]

    Above 1 renting never pays at this price. The price and `token_rate` have to count the same tokens.

    Parameters
    ----------
    cost : float
        Of the GPUs, busy or not. [USD/h]
    token_rate : float
        When busy. [tok/s]
    price_per_million : float
        Of bought tokens. [USD per million]

    Raises
    ------
    SpecError
    """
    _require(0 < price_per_million < math.inf, f"price must be finite and > 0, got {price_per_million!r}")
    return cost_per_million(cost, token_rate) / price_per_million


def break_even_reservation(reserved: float, on_demand: float) -> float:
    """Share of all hours that a GPU must be needed for a reservation to be no dearer than demand. [1]

    A reservation is paid for every hour, and demand for hours of use; prices in USD/h.

    Raises
    ------
    SpecError
    """
    _require(0 <= reserved < math.inf, f"reserved price must be finite and >= 0, got {reserved!r}")
    _require(0 < on_demand < math.inf, f"on-demand price must be finite and > 0, got {on_demand!r}")
    return reserved / on_demand


def cost_per_month(cost: float) -> float:
    """Of 730 hours, a twelfth of a year, at `cost` [USD/h]. [USD]"""
    return cost * HOURS_PER_MONTH


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise SpecError(message)
