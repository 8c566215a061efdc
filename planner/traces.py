"""Request traces: when requests came, how long they were, and what that says of a traffic.

Rates are those of arrivals: requests over the time from the first arrival to the last. What was completed
says nothing of demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray

IntArray = NDArray[np.int64]

WINDOWS = (1.0, 10.0, 60.0)
"""Widths in which arrivals are counted. [s]"""

FEW_REQUESTS = 100  # below, percentiles and variations are hardly more than chance
SEED = 0

_STEP_SHARE = 0.95  # of the gaps between timestamps that must fit a step
_STEP_TOLERANCE = 0.02  # of the step


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PromptBlocks:
    """Hashes of the blocks of every prompt, as a ragged array.

    Attributes
    ----------
    offsets : ndarray, shape (requests + 1,)
        Where the blocks of each request begin in `ids`.
    ids : ndarray
        Equal ids are equal blocks.
    size : int
        Tokens of a block; a prompt's last one may have fewer. [tok]
    """

    offsets: IntArray
    ids: IntArray
    size: int

    def ordered(self, order: IntArray) -> PromptBlocks:
        """Blocks of the requests in another order."""
        counts = np.diff(self.offsets)[order]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        return PromptBlocks(
            offsets=offsets,
            ids=self.ids[np.repeat(self.offsets[:-1][order], counts) + within],
            size=self.size,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trace:
    """Requests by arrival.

    Attributes
    ----------
    arrival : ndarray
        Since the first request, not falling. [s]
    isl, osl : ndarray
        Input and output tokens; a request without output has 0. [tok]
    lines : ndarray
        Line of each request in its file; counts from 1.
    blocks : PromptBlocks or None
        Hashes of the prompts' blocks, where the file has them.
    layout : str
        Which file format it was, e.g. "Mooncake JSONL".
    unit, unit_reason : str
        Unit of the file's timestamps, and how it is known.
    notes : tuple of str
        What was decided while reading.
    """

    name: str
    source: str
    arrival: FloatArray
    isl: IntArray
    osl: IntArray
    lines: IntArray
    blocks: PromptBlocks | None = None
    layout: str = ""
    unit: str = ""
    unit_reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def requests(self) -> int:
        return self.arrival.size

    @property
    def duration(self) -> float:
        """Last minus first arrival. [s]"""
        return float(self.arrival[-1] - self.arrival[0])

    def first(self, number: int) -> Trace:
        """Its first requests."""
        blocks = None if self.blocks is None else self.blocks.ordered(np.arange(min(number, self.requests)))
        parts = {name: getattr(self, name)[:number] for name in ("arrival", "isl", "osl", "lines")}
        return replace(self, **parts, blocks=blocks)

    def between(self, low: float, high: float) -> Trace:
        """The requests with ``low <= isl < high``, the first of them at time 0; may be empty. [tok]"""
        index = np.flatnonzero((self.isl >= low) & (self.isl < high))
        parts = {name: getattr(self, name)[index] for name in ("arrival", "isl", "osl", "lines")}
        parts["arrival"] = parts["arrival"] - (parts["arrival"][0] if index.size else 0.0)
        blocks = None if self.blocks is None else self.blocks.ordered(index)
        return replace(self, **parts, blocks=blocks)

    def beyond(self, max_context: int) -> IntArray:
        """Indices of the requests whose prompt and output exceed a context. [tok]"""
        return np.flatnonzero(self.isl + self.osl > max_context)


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthSummary:
    """Lengths of one side. [tok]"""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixHits:
    """What an infinite prefix cache would find, starting empty.

    ``blocks`` and ``tokens`` are shares of all prompt blocks and tokens; a block counts where it and all
    blocks before it were in an earlier prompt.
    """

    blocks: float
    tokens: float
    found_tokens: int
    unique_blocks: int
    block_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceStatistics:
    """What a trace says of its traffic. None: too short, or too few requests, to say it.

    Attributes
    ----------
    request_rate : float or None
        Requests over duration. [req/s]
    peak_rates : mapping
        By width [s] of the window: rate of the busiest. [req/s]
    dispersion : mapping
        By width [s]: variance over mean of the arrivals in windows; 1 is Poisson. [1]
    interarrival_cv : float or None
        Coefficient of variation of the times between arrivals; 1 is Poisson. [1]
    correlation : float or None
        Of input and output tokens. [1]
    without_output : int
        Requests with no output token.
    isl_per_output_token : float or None
        Mean prompt length seen by an output token, ``E[isl osl] / E[osl]``. [tok]
    longest : int
        Longest prompt plus output of one request. [tok]
    timestamp_step : float or None
        Step that timestamps are multiples of, where it is too coarse for times between arrivals. [s]
    """

    requests: int
    duration: float
    request_rate: float | None
    peak_rates: Mapping[float, float | None]
    dispersion: Mapping[float, float | None]
    interarrival_cv: float | None
    isl: LengthSummary
    osl: LengthSummary
    correlation: float | None
    without_output: int
    isl_per_output_token: float | None
    longest: int
    prefix: PrefixHits | None
    timestamp_step: float | None
    notes: tuple[str, ...]


def measure(trace: Trace) -> TraceStatistics:
    """Statistics of a trace."""
    step = timestamp_step(trace.arrival)
    smooth = trace.arrival if step is None else spread(trace.arrival, np.random.default_rng(SEED))
    counted = {w: _window_counts(smooth if step and w < 2 * step else trace.arrival, w) for w in WINDOWS}
    peaks = {w: None if c is None else c.most / w for w, c in counted.items()}
    dispersion = {w: None if c is None else c.dispersion for w, c in counted.items()}
    without = int(np.count_nonzero(trace.osl == 0))
    outputs = float(trace.osl.sum())
    product = float(trace.isl.astype(np.float64) @ trace.osl.astype(np.float64))
    return TraceStatistics(
        requests=trace.requests,
        duration=trace.duration,
        request_rate=trace.requests / trace.duration if trace.duration > 0 else None,
        peak_rates=MappingProxyType(peaks),
        dispersion=MappingProxyType(dispersion),
        interarrival_cv=_variation(np.diff(smooth)),
        isl=_summary(trace.isl),
        osl=_summary(trace.osl),
        correlation=_correlation(trace.isl, trace.osl),
        without_output=without,
        isl_per_output_token=product / outputs if outputs > 0 else None,
        longest=int((trace.isl + trace.osl).max()),
        prefix=None if trace.blocks is None else prefix_hits(trace.blocks, trace.isl),
        timestamp_step=step,
        notes=tuple(_notes(trace, step, without)),
    )


def _notes(trace: Trace, step: float | None, without: int) -> list[str]:
    notes = []
    if step is not None:
        notes.append(
            f"timestamps are multiples of about {step:.3g} s: times between arrivals were computed after "
            "spreading equal ones at random over the gap that follows"
        )
    if without:
        have = "1 request has" if without == 1 else f"{without:,} requests have"
        notes.append(
            f"{have} no output token (failed or cancelled, perhaps): counted as demand, planned as one "
            "token, without TPOT"
        )
    if trace.requests < FEW_REQUESTS:
        notes.append(f"only {trace.requests} requests: percentiles and variation are rough")
    return notes


def _summary(tokens: IntArray) -> LengthSummary:
    p50, p90, p95, p99 = (float(q) for q in np.quantile(tokens, (0.5, 0.9, 0.95, 0.99)))
    return LengthSummary(mean=float(tokens.mean()), p50=p50, p90=p90, p95=p95, p99=p99, max=int(tokens.max()))


def _variation(gaps: FloatArray) -> float | None:
    """Coefficient of variation; None for less than two gaps, or where all are 0."""
    if gaps.size < 2 or gaps.mean() <= 0:
        return None
    return float(gaps.std() / gaps.mean())


def _correlation(a: IntArray, b: IntArray) -> float | None:
    if a.size < 2 or a.min() == a.max() or b.min() == b.max():
        return None
    return float(np.corrcoef(a, b)[0, 1])


# --------------------------------------------------------------------------------------------
# Arrivals


@dataclass(frozen=True, slots=True, eq=False)
class _Counts:
    """Arrivals in `windows` whole windows, of which `counts` leaves out the empty ones.

    ``most`` is the largest count; that of the last window, which is cut short, is one of them.
    """

    counts: FloatArray
    windows: int
    most: float

    @property
    def dispersion(self) -> float:
        mean = float(self.counts.sum()) / self.windows
        # Empty windows are not stored: a trace may be years long.
        squares = float(((self.counts - mean) ** 2).sum()) + (self.windows - self.counts.size) * mean**2
        return squares / self.windows / mean


def _window_counts(times: FloatArray, width: float) -> _Counts | None:
    """Arrivals in windows from the first arrival on; None where not one whole window fits."""
    since = times - times[0]
    windows = int(since[-1] // width)
    if windows == 0:
        return None
    index, counts = np.unique(np.floor(since / width), return_counts=True)
    return _Counts(counts[index < windows].astype(np.float64), windows, float(counts.max()))


def spread(times: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Equal timestamps, uniformly over the time up to the next one. [s]"""
    distinct, index = np.unique(times, return_inverse=True)
    gaps = np.diff(distinct, append=distinct[-1] + np.median(np.diff(distinct)))
    return np.sort(times + gaps[index] * rng.random(times.size))


def timestamp_step(times: FloatArray) -> float | None:
    """The step whose multiples the timestamps are, where it is more than half the mean gap. [s]

    Requests that share a timestamp at irregular times are a burst; at regular times, they are an artefact
    of the recording.
    """
    gaps = np.diff(np.unique(times))
    if gaps.size < 10 or np.median(gaps) <= 0:
        return None
    step = float(np.quantile(gaps, 1 - _STEP_SHARE))
    multiples = gaps / step
    fits = np.abs(multiples - np.round(multiples)) <= _STEP_TOLERANCE * np.maximum(np.round(multiples), 1)
    mean_gap = (times[-1] - times[0]) / (times.size - 1)
    single = gaps[np.round(multiples) == 1]
    regular = fits.mean() >= _STEP_SHARE and single.size > 0
    shared = gaps.size + 1 < times.size
    return float(np.median(single)) if regular and shared and 2 * step > mean_gap else None


# --------------------------------------------------------------------------------------------
# Prefix cache


@dataclass(frozen=True, slots=True, eq=False)
class FoundBlocks:
    """What an infinite cache of prompt prefixes that starts empty finds; arrays over all blocks.

    Attributes
    ----------
    tokens : ndarray
        Of each block; 0 where it, or a block before it, is new. [tok]
    chain : ndarray
        Equal numbers are equal blocks behind equal prefixes.
    row : ndarray
        Request of each block.
    """

    tokens: IntArray
    chain: NDArray[np.uint64]
    row: IntArray


def found_blocks(blocks: PromptBlocks, isl: IntArray) -> FoundBlocks:
    """Tokens of every block that were in an earlier prompt.

    A block is identified by its own hash and all before it, whether or not the file's hashes are chained.
    Where an earlier prompt ended within a block, only the tokens it had can be found.
    """
    counts = np.diff(blocks.offsets)
    row = np.repeat(np.arange(counts.size), counts)
    position = np.arange(blocks.ids.size) - np.repeat(blocks.offsets[:-1], counts)
    held = np.minimum(blocks.size, isl[row] - position * blocks.size)
    chain = _chained(blocks, position, counts)
    order = np.argsort(chain, kind="stable")
    first = np.concatenate([[True], chain[order][1:] != chain[order][:-1]])
    group = np.cumsum(first) - 1
    # Tokens of the same block in earlier prompts: a running maximum that starts anew with each group.
    base = group * (blocks.size + 1)
    most = np.maximum.accumulate(base + held[order])
    earlier = np.where(first, 0, np.concatenate([[0], most[:-1]]) - base)
    known = np.empty_like(held)
    known[order] = np.minimum(earlier, held[order])
    # A prefix ends at the first block that was not found whole.
    whole = known == held
    broken = np.cumsum(~whole)
    before = broken - ~whole
    reached = before == np.repeat(np.concatenate([[0], broken])[blocks.offsets[:-1]], counts)
    return FoundBlocks(np.where(reached, known, 0), chain, row)


def prefix_hits(blocks: PromptBlocks, isl: IntArray) -> PrefixHits:
    """Hits of an infinite cache of prompt prefixes; see :func:`found_blocks`."""
    if blocks.ids.size == 0:
        return PrefixHits(blocks=0.0, tokens=0.0, found_tokens=0, unique_blocks=0, block_size=blocks.size)
    tokens = found_blocks(blocks, isl).tokens
    found = int(tokens.sum())
    return PrefixHits(
        blocks=float(np.count_nonzero(tokens > 0) / blocks.ids.size),
        tokens=found / float(isl.sum()),
        found_tokens=found,
        unique_blocks=int(np.unique(blocks.ids).size),
        block_size=blocks.size,
    )


def _chained(blocks: PromptBlocks, position: IntArray, counts: IntArray) -> NDArray[np.uint64]:
    """A hash of each block together with all blocks before it in its prompt.

    The sum of a scrambled id times a power of an odd number, modulo 2^64: sums of whole prompts are cut
    out of one running sum.
    """
    factor = np.full(int(counts.max()), np.uint64(0x9E3779B97F4A7C15))
    factor[0] = 1
    powers = np.multiply.accumulate(factor)
    running = np.cumsum(_scrambled(blocks.ids) * powers[position], dtype=np.uint64)
    start = np.concatenate([np.zeros(1, np.uint64), running])[blocks.offsets[:-1]]
    result: NDArray[np.uint64] = _scrambled((running - np.repeat(start, counts)).view(np.int64))
    return result


def _scrambled(ids: IntArray) -> NDArray[np.uint64]:
    """Finaliser of SplitMix64: neighbouring ids become unrelated numbers."""
    x = ids.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))
