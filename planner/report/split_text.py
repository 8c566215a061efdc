"""Prompts divided by length, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from planner.plan import LengthBucket, LengthSplit
from planner.units import PERCENT


def split_lines(split: LengthSplit) -> Iterator[str]:
    """Who takes which prompts, what other numbers of buckets cost, and what the front door has to do."""
    yield "split by prompt length"
    width = max(len(bucket.service) for bucket in split.buckets)
    for bucket in split.buckets:
        yield f"  {bucket.service:<{width}}  {_range(bucket)}, {bucket.share * PERCENT:.3g} % of the requests"
    costs = [f"{count}: {_money(cost)}" for count, cost in sorted(split.costs.items())]
    yield f"  by number of buckets: {', '.join(costs)}"
    yield f"  front door: {split.front_door}"


def _range(bucket: LengthBucket) -> str:
    if bucket.longest is None:
        return f"prompts from {bucket.shortest:,} tokens"
    return f"prompts of {bucket.shortest:,} to {bucket.longest:,} tokens"


def _money(cost: float | None) -> str:
    return "no plan, or no price" if cost is None else f"${cost:,.2f}/h"
