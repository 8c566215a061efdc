"""``--tier NAME:CAPACITY:BANDWIDTH[:PRICE]``: a place for KV caches, in the units that people quote."""

from __future__ import annotations

import math
import re

import click

from planner.units import BITS_PER_BYTE, GIB, GIGA, MEGA, PETA, TERA, TIB
from planner.whatif.tier_specs import Amount, Per, Tier

FORM = "NAME:CAPACITY:BANDWIDTH[:PRICE]"
DEFAULTS = ("host:1TB/node:25GB/s/gpu", "ssd:15TB/node:12GB/s/node", "store:200TB:25GB/s")
"""What is looked at where no tier is given: sizes that are usual, and rates that one may hope for."""

_HITS = "hits="
_SIZES = {"GB": GIGA, "MB": MEGA, "TB": TERA, "PB": PETA, "GiB": GIB, "TiB": TIB}
_RATES = {
    "GB/s": GIGA, "MB/s": MEGA, "TB/s": TERA, "GiB/s": GIB, "Gb/s": GIGA / BITS_PER_BYTE,
    "Gbit/s": GIGA / BITS_PER_BYTE,
}  # fmt: skip
_PRICES = {"": 1.0, "USD/h": 1.0}
_AMOUNT = re.compile(r"(?P<number>[\d.]+(?:e[+-]?\d+)?)\s*(?P<unit>.*?)(?:/(?P<per>node|gpu))?")


def tier_of(text: str) -> Tier:
    """A tier as the option says it.

    Raises
    ------
    click.BadParameter
        What is wrong, and the form.
    """
    name, *parts = (part.strip() for part in text.split(":"))
    if not name or len(parts) not in (2, 3) or not all(parts):
        raise click.BadParameter(f"{text!r} is not {FORM}, e.g. {DEFAULTS[0]}")
    hits = parts[0].startswith(_HITS)
    capacity, bandwidth, *price = parts
    hits = capacity.startswith(_HITS)
    return Tier(
        name=name,
        capacity=None if hits else _amount(text, "capacity", capacity, _SIZES),
        hit_rate=_share(text, capacity.removeprefix(_HITS)) if hits else None,
        bandwidth=_amount(text, "bandwidth", bandwidth, _RATES),
        price=_amount(text, "price", price[0], _PRICES) if price else None,
    )


def _amount(text: str, what: str, value: str, units: dict[str, float]) -> Amount:
    """A number with a unit, of the whole tier or per node or GPU; only a bandwidth may not be 0."""
    found = _AMOUNT.fullmatch(value)
    try:
        number = math.nan if found is None else float(found["number"])
    except ValueError:
        number = math.nan
    if found is None or not math.isfinite(number) or found["unit"] not in units:
        known = ", ".join(unit for unit in units if unit)
        raise click.BadParameter(
            f"{text!r}: {what} {value!r} is not a number with one of {known}, of all or per /node or /gpu"
        )
    if number == 0 and units is _RATES:
        raise click.BadParameter(f"{text!r}: bandwidth must be > 0")
    return Amount(number * units[found["unit"]], Per(found["per"] or Per.ALL))


def _share(text: str, value: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise click.BadParameter(f"{text!r}: {_HITS}{value} is not a share from 0 to 1")
    return share
