"""Traffic divided by prompt length: where it may be cut, what a part is, which parts are cheapest together.

Pure functions of workloads; what a part costs comes from outside. A bucket is ``low <= isl < high``, the
router sends it to pools of its own, and these meet the service's SLOs: where every bucket meets a percentile,
so do all requests together. (The reverse does not hold, so a split asks no less than the whole.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from planner.errors import SpecError
from planner.lengths import marginal_from_histogram
from planner.specs import Lengths, Marginal, Service
from planner.traces import Trace
from planner.traffic import thinned_scv

MOST_EDGES = 4
"""Each further one adds as many parts to price as there are edges."""

REQUEST_QUANTILES = (0.9, 0.75, 0.97, 0.5)
"""Shares of the requests at which prompts may be cut, in the order in which they are considered. [1]"""

TOKEN_QUANTILE = 0.5  # share of the prompt tokens at which they may be cut [1]
VALLEY = 2.0  # ratio of neighbouring lengths from which the widest gap is a place to cut [1]
APART = 1.5  # least ratio of the mean lengths on the two sides of a cut [1]
DISTINCT = 1.25  # least ratio of two cuts [1]
INDEPENDENT = 1e-9  # share of the mean prompt by which E[isl osl] / E[osl] may differ by rounding [1]
OUTPUT_CHANGE = 2.0  # most by which a bucket's outputs are taken to differ from all outputs [1]
MAX_NAME = 63  # of a part of a host name [characters]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Prompts with ``low <= isl < high`` as a service of their own.

    Attributes
    ----------
    low, high : float
        [tok]
    share : float
        Of the requests of the whole service. [1]
    """

    low: float
    high: float
    share: float
    service: Service


# --------------------------------------------------------------------------------------------
# Where prompts may be cut


def prompts_of(service: Service, trace: Trace | None) -> Marginal:
    """Prompt lengths of a service: those of its trace, where there is one; of a table of quantiles there may
    be lengths that no request has."""
    if trace is None:
        return service.workload.lengths.isl
    return marginal_from_histogram(np.maximum(trace.isl, 1).tolist(), [1.0] * trace.requests)


def edges_of(isl: Marginal, most: int = MOST_EDGES) -> tuple[int, ...]:
    """Lengths at which prompts may be divided, ascending; each is the first of the longer side. [tok]

    The candidates are the widest gap between neighbouring lengths, the length up to which half of the tokens
    are, and quantiles of the requests. A cut lies at the geometric mean of the two points beside it; those
    whose sides hardly differ, or that lie close to one that was taken before, are left out.
    """
    taken: list[int] = []
    for k in _places(isl):
        edge = _edge_between(isl.points[k], isl.points[k + 1])
        if edge is None or len(taken) == most or not _sides_differ(isl, k):
            continue
        if all(max(edge, other) >= DISTINCT * min(edge, other) for other in taken):
            taken.append(edge)
    return tuple(sorted(taken))


def _places(isl: Marginal) -> Iterator[int]:
    """Indices of the last point below a cut, without repetition."""
    points, weights = np.array(isl.points), np.array(isl.weights)
    if points.size < 2:
        return
    requests, tokens = np.cumsum(weights), np.cumsum(weights * points)
    gaps = points[1:] / points[:-1]
    places = [int(np.argmax(gaps))] if gaps.max() >= VALLEY else []
    places.append(int(np.searchsorted(tokens, TOKEN_QUANTILE * tokens[-1])))
    # Sums of weights miss a quantile that they should reach by rounding.
    places += [int(np.searchsorted(requests, q * (1 - 1e-12) * requests[-1])) for q in REQUEST_QUANTILES]
    yield from (k for k in dict.fromkeys(places) if k < points.size - 1)


def _edge_between(below: float, above: float) -> int | None:
    """A whole length with ``below < edge <= above``; None where there is none. [tok]"""
    edge = max(math.floor(math.sqrt(below * above)), math.floor(below)) + 1
    return edge if edge <= above else None


def _sides_differ(isl: Marginal, last: int) -> bool:
    points, weights = np.array(isl.points), np.array(isl.weights)
    below, above = weights[: last + 1], weights[last + 1 :]
    if not (below.sum() > 0 and above.sum() > 0):
        return False
    short, long = points[: last + 1] @ below / below.sum(), points[last + 1 :] @ above / above.sum()
    return bool(long >= APART * short)


# --------------------------------------------------------------------------------------------
# What a part is


def conditioned(marginal: Marginal, low: float, high: float) -> tuple[Marginal, float]:
    """The lengths with ``low <= x < high``, and their share. [tok, 1]

    The longest of them is the last whole length below `high`: routers send all up to it.

    Raises
    ------
    SpecError
        If there are none.
    """
    pairs = zip(marginal.points, marginal.weights, strict=True)
    inside = [(x, w) for x, w in pairs if low <= x < high and w > 0]
    share = math.fsum(w for _, w in inside)
    if not share > 0:
        raise SpecError(f"length distribution: nothing from {low:g} to below {high:g} tokens")
    longest = max(
        min(marginal.maximum, math.ceil(high) - 1 if math.isfinite(high) else math.inf), inside[-1][0]
    )
    part = Marginal(
        points=tuple(x for x, _ in inside), weights=tuple(w / share for _, w in inside), longest=longest
    )
    return part, share


def bucket_of(service: Service, low: float, high: float, name: str, trace: Trace | None = None) -> Bucket:
    """The requests of `service` with ``low <= isl < high``, as a service with its SLOs.

    Parameters
    ----------
    low, high : float
        [tok]
    name : str
        What the service is called in names of its parts; empty: not at all.
    trace : Trace, optional
        Requests of the service: share and lengths of the bucket are those that it has.

    Raises
    ------
    SpecError
        If there are no such requests.
    """
    workload = service.workload
    whole = workload.lengths
    lengths, share = _by_trend(whole, low, high) if trace is None else _seen(whole, trace, low, high)
    thinner = replace(
        workload,
        lengths=lengths,
        periods=tuple(replace(p, request_rate=share * p.request_rate) for p in workload.periods),
        arrival_scv=thinned_scv(workload.arrival_scv, share),
    )
    named = replace(service, label=label_of(name, low, high), workload=thinner)
    return Bucket(low=low, high=high, share=share, service=named)


def label_of(name: str, low: float, high: float) -> str:
    """Name of a bucket that may stand in host names, e.g. "chat-gt500-le4000"."""
    bounds = [f"gt{math.ceil(low) - 1}"] if low > 1 else []
    bounds += [f"le{math.ceil(high) - 1}"] if math.isfinite(high) else []
    room = MAX_NAME - len("-".join(["", *bounds]))
    return "-".join(filter(None, [name[:room].rstrip("-"), *(bounds or ["all"])]))


def _by_trend(whole: Lengths, low: float, high: float) -> tuple[Lengths, float]:
    """Lengths of a bucket where only the whole's dependence is known, and its share.

    The mean output is taken to be linear in the prompt length, of the slope that the whole's
    ``E[isl osl] / E[osl]`` says: with independent lengths all buckets have the same outputs. Requests, tokens
    and ``E[isl osl]`` of all buckets together are then those of the whole.
    """
    isl, share = conditioned(whole.isl, low, high)
    variance = _variance(whole.isl)
    shift = whole.isl_per_output_token - whole.isl.mean
    if abs(shift) <= INDEPENDENT * whole.isl.mean or variance <= 0:
        return replace(whole, isl=isl, isl_per_output_token=isl.mean), share
    slope = shift / variance  # of the mean output, over the mean output of all [1/tok]
    change = 1 + slope * (isl.mean - whole.isl.mean)
    change = min(max(change, 1 / OUTPUT_CHANGE), OUTPUT_CHANGE)
    seen = isl.mean + slope * _variance(isl) / change
    osl = _stretched(whole.osl, change)
    seen = min(max(seen, isl.points[0]), isl.points[-1])
    return replace(whole, isl=isl, osl=osl, isl_per_output_token=seen), share


def _seen(whole: Lengths, trace: Trace, low: float, high: float) -> tuple[Lengths, float]:
    """Lengths of a bucket and its share as a trace has them; engines take the longest that may be sent."""
    part = trace.between(low, high)
    if not part.requests:
        raise SpecError(f"{trace.name}: no prompt has from {low:g} to below {high:g} tokens")
    prompts, outputs = (np.maximum(x, 1).astype(np.float64) for x in (part.isl, part.osl))
    once = [1.0] * part.requests
    isl, osl = (marginal_from_histogram(x.tolist(), once) for x in (prompts, outputs))
    lengths = replace(
        whole,
        isl=replace(isl, longest=max(_longest(whole.isl, high), isl.maximum)),
        osl=replace(osl, longest=max(whole.osl.maximum, osl.maximum)),
        isl_per_output_token=float(prompts @ outputs / outputs.sum()),
    )
    return lengths, part.requests / trace.requests


def _longest(marginal: Marginal, high: float) -> float:
    """The last whole length below `high`, or the longest of all. [tok]"""
    return min(marginal.maximum, math.ceil(high) - 1 if math.isfinite(high) else math.inf)


def _variance(marginal: Marginal) -> float:
    return marginal.moment(2) - marginal.mean**2


def _stretched(osl: Marginal, factor: float) -> Marginal:
    """Outputs times a factor, none longer than the longest of all."""
    points = tuple(min(max(x * factor, min(x, 1.0)), osl.maximum) for x in osl.points)
    return Marginal(points=points, weights=osl.weights, longest=osl.maximum)


# --------------------------------------------------------------------------------------------
# Which parts are cheapest together


@dataclass(frozen=True, slots=True)
class Partition:
    """Consecutive parts, as (first, end) of the stretches between edges, and what they cost together."""

    cost: float
    parts: tuple[tuple[int, int], ...]


def cheapest_partitions(
    cost: Callable[[int, int], float], stretches: int, most: int, worth: float
) -> tuple[Partition, ...]:
    """The cheapest division of consecutive stretches into 1, 2, ... parts, at most `most`.

    Parameters
    ----------
    cost : callable
        Of the stretches from `first` to before `end` as one part; inf: impossible. Called once for each, and
        only for parts that may be in the answer.
    worth : float
        Share of the cost that one more part has to save; where one saves less, more are not tried. [1]

    Notes
    -----
    Dynamic programming over the end of the last part, as for optimal histograms (Jagadish et al., "Optimal
    Histograms with Quality Guarantees," VLDB 1998): the best k parts up to an end are a last part and the
    best k - 1 parts up to where it starts.
    """
    known: dict[tuple[int, int], float] = {}
    best: dict[tuple[int, int], Partition] = {}

    def priced(first: int, end: int) -> float:
        if (first, end) not in known:
            known[first, end] = cost(first, end)
        return known[first, end]

    def up_to(end: int, parts: int) -> Partition:
        if (end, parts) not in best:
            best[end, parts] = last_part(end, parts)
        return best[end, parts]

    def last_part(end: int, parts: int) -> Partition:
        if parts == 1:
            return Partition(priced(0, end), ((0, end),))
        ways = []
        for start in range(parts - 1, end):
            before = up_to(start, parts - 1)
            total = before.cost + (priced(start, end) if math.isfinite(before.cost) else math.inf)
            ways.append(Partition(total, (*before.parts, (start, end))))
        return min(ways, key=lambda way: way.cost)

    found = [up_to(stretches, 1)]
    for parts in range(2, min(most, stretches) + 1):
        found.append(up_to(stretches, parts))
        if math.isfinite(found[-2].cost) and found[-1].cost > (1 - worth) * found[-2].cost:
            break
    return tuple(found)


def fewest_within(costs: dict[int, float], tolerance: float) -> int:
    """The smallest key whose cost is within `tolerance` of the least. [1]"""
    least = min(costs.values())
    return min(k for k, cost in costs.items() if cost <= least * (1 + tolerance))


def ranges_of(edges: tuple[int, ...]) -> tuple[tuple[float, float], ...]:
    """The stretches between edges: from 0 to the first, to beyond the last. [tok]"""
    return tuple(pairwise([0.0, *map(float, edges), math.inf]))
