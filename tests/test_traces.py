"""Statistics of request traces, on traces whose statistics are known."""

from __future__ import annotations

import csv
import os
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from planner.documents.trace_file import read_trace
from planner.traces import PromptBlocks, Trace, measure, prefix_hits, spread, timestamp_step


def trace(arrival, isl=None, osl=None, blocks=None) -> Trace:
    arrival = np.asarray(arrival, float)
    n = arrival.size
    return Trace(
        name="t",
        source="t.csv",
        arrival=arrival,
        isl=np.full(n, 100) if isl is None else np.asarray(isl),
        osl=np.full(n, 10) if osl is None else np.asarray(osl),
        lines=np.arange(2, n + 2),
        blocks=blocks,
    )


def hashed(*rows: list[int], size: int = 512) -> PromptBlocks:
    offsets = np.cumsum([0, *map(len, rows)])
    return PromptBlocks(offsets=offsets, ids=np.array(list(chain(*rows)), dtype=np.int64), size=size)


# Rates


def test_rate_is_that_of_arrivals_over_first_to_last():
    # U52: demand is what arrives; requests without output, as those that failed, count like others.
    found = measure(trace([0, 1, 2, 4], osl=[5, 0, 0, 7]))
    assert found.request_rate == 4 / 4
    assert found.without_output == 2
    assert "2 requests have no output token" in " ".join(found.notes)


def test_requests_at_one_time_have_no_rate():
    found = measure(trace([0, 0, 0]))
    assert (found.duration, found.request_rate, found.interarrival_cv) == (0, None, None)
    assert set(found.peak_rates.values()) == set(found.dispersion.values()) == {None}


def test_busiest_windows():
    times = np.concatenate([np.arange(0, 120, 1.0), 65 + np.arange(30) / 100])
    found = measure(trace(np.sort(times)))
    assert found.peak_rates == {1.0: 31, 10.0: 4, 60.0: 1.5}


def test_windows_longer_than_the_trace_say_nothing():
    found = measure(trace(np.arange(0, 12, 0.5)))
    assert found.peak_rates == {1.0: 2, 10.0: 2, 60.0: None}
    assert found.dispersion[60.0] is None


def test_even_arrivals_and_poisson_arrivals():
    even = measure(trace(np.arange(0, 1000, 0.5)))
    assert even.interarrival_cv == pytest.approx(0, abs=1e-9)
    assert even.dispersion[10.0] == 0
    rng = np.random.default_rng(0)
    poisson = measure(trace(np.cumsum(rng.exponential(0.1, 60_000))))
    assert poisson.interarrival_cv == pytest.approx(1, abs=0.02)
    assert poisson.dispersion == {w: pytest.approx(1, abs=0.25) for w in (1.0, 10.0, 60.0)}
    assert poisson.request_rate == pytest.approx(10, rel=0.02)


def test_empty_windows_count_for_the_dispersion():
    # 10 requests in the first of 10 windows of 1 s: mean 1, variance 9.
    found = measure(trace([*np.linspace(0, 0.9, 10), 10.5]))
    assert found.dispersion[1.0] == pytest.approx(9)


def test_years_of_idle_time_take_no_memory():
    assert measure(trace([0, 1, 3e8])).dispersion[1.0] == pytest.approx(1, rel=1e-3)


# Timestamps in steps


def test_coarse_timestamps_are_spread():
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(0.3, 5000))
    coarse = np.floor(times / 3) * 3
    found = measure(trace(coarse))
    assert found.timestamp_step == pytest.approx(3)
    assert found.interarrival_cv == pytest.approx(1, abs=0.1)  # 3.0 as recorded
    assert found.peak_rates[1.0] < 15  # 20 and more as recorded
    assert "multiples of about 3 s" in found.notes[0]
    assert np.all(np.diff(spread(coarse, rng)) >= 0)


def test_fine_timestamps_and_bursts_are_left_alone():
    rng = np.random.default_rng(4)
    times = np.cumsum(rng.exponential(0.3, 5000))
    assert timestamp_step(np.round(times, 3)) is None
    assert timestamp_step(np.sort(np.repeat(times[:500], 10))) is None
    assert timestamp_step(np.arange(100.0)) is None  # no two share a time
    assert timestamp_step(np.zeros(50)) is None


# Lengths


def test_lengths_and_what_ties_them():
    found = measure(trace(range(5), isl=[10, 20, 30, 40, 100], osl=[1, 2, 3, 4, 10]))
    assert (found.isl.mean, found.isl.p50, found.isl.max) == (40, 30, 100)
    assert found.isl.p90 == pytest.approx(76)
    assert found.correlation == pytest.approx(1)
    assert found.isl_per_output_token == pytest.approx((10 + 40 + 90 + 160 + 1000) / 20)
    assert found.longest == 110


def test_lengths_that_do_not_vary_have_no_correlation():
    assert measure(trace(range(5))).correlation is None


def test_no_output_at_all():
    found = measure(trace(range(5), osl=[0] * 5))
    assert found.isl_per_output_token is None
    assert found.osl.mean == 0


def test_requests_beyond_a_context():
    found = trace([0, 1, 2], isl=[4096, 140_000, 4096], osl=[100, 100, 100])
    assert found.beyond(131_072).tolist() == [1]
    assert found.beyond(140_100).tolist() == []


# Prefixes


def hits_by_hand(rows: list[list[int]], lengths: list[int], size: int) -> tuple[int, int]:
    """Blocks and tokens that a cache of prefixes finds: prompts as lists, compared one by one."""
    known: dict[tuple[int, ...], int] = {}
    blocks = tokens = 0
    for row, length in zip(rows, lengths, strict=True):
        held = [min(size, length - i * size) for i in range(len(row))]
        for i in range(len(row)):
            found = min(known.get(tuple(row[: i + 1]), 0), held[i])
            blocks += found > 0
            tokens += found
            if found < held[i]:
                break
        for i in range(len(row)):
            key = tuple(row[: i + 1])
            known[key] = max(known.get(key, 0), held[i])
    return blocks, tokens


def test_a_partial_block_holds_only_its_tokens():
    # Request 1 has 256 tokens of block 0, so request 2 finds no more than these.
    found = prefix_hits(hashed([0], [0, 1], [2]), np.array([256, 700, 512]))
    assert found.found_tokens == 256
    assert found.blocks == 1 / 4
    assert found.tokens == 256 / 1468
    assert found.unique_blocks == 3


def test_a_block_counts_only_behind_the_same_prefix():
    found = prefix_hits(hashed([1, 2], [3, 2], [1, 2]), np.array([1024, 1024, 1024]))
    assert found.found_tokens == 1024
    assert found.blocks == 2 / 6


def test_a_block_twice_in_one_prompt_is_no_hit():
    assert prefix_hits(hashed([7, 7]), np.array([1024])).found_tokens == 0


def test_prompts_without_blocks():
    assert prefix_hits(hashed([], []), np.array([3, 4])).blocks == 0
    found = prefix_hits(hashed([], [5], [], [5], size=16), np.array([3, 16, 3, 20]))
    assert found.found_tokens == 16


@pytest.mark.parametrize("seed", range(20))
def test_prefixes_against_prompts_compared_one_by_one(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.choice([4, 16]))
    lengths = rng.integers(1, 12 * size, 60)
    rows = [rng.integers(0, 2 + seed % 3, -(-n // size)).tolist() for n in lengths]
    found = prefix_hits(hashed(*rows, size=size), lengths)
    blocks, tokens = hits_by_hand(rows, lengths.tolist(), size)
    assert found.found_tokens == tokens
    assert round(found.blocks * sum(map(len, rows))) == blocks


# Published traces


TRACES = os.environ.get("PLANNER_TRACES")
HIT_RATIOS = {"mooncake_conversation": (0.366, 182_790), "mooncake_synthetic": (0.640, 43_924)}


@pytest.mark.shared
@pytest.mark.skipif(TRACES is None, reason="PLANNER_TRACES names no folder: data beside the checkout")
@pytest.mark.parametrize(
    "name",
    ["azure2023_code", "azure2023_conv", "mooncake_conversation", "mooncake_synthetic", "servegen_m_large"],
)
def test_published_traces(name):
    folder = Path(str(TRACES))
    with (folder / "trace_stats.csv").open(newline="", encoding="utf-8") as file:
        (expected,) = (row for row in csv.DictReader(file) if row["trace"] == name)
    found = measure(read_trace(folder / f"{name}.csv"))
    assert found.requests == int(expected["rows"])
    assert found.request_rate == pytest.approx(float(expected["mean_rate_rps"]), rel=1e-3)
    assert found.dispersion[10.0] == pytest.approx(float(expected["iod_10s"]), rel=0.02)
    assert found.dispersion[60.0] == pytest.approx(float(expected["iod_60s"]), rel=0.02)
    assert found.peak_rates[60.0] == pytest.approx(float(expected["peak_60s_rps"]), rel=1e-3)
    if found.timestamp_step is None:
        assert found.interarrival_cv == pytest.approx(float(expected["cv_interarrival"]), rel=1e-3)
    for side, column in ((found.isl, "in"), (found.osl, "out")):
        for statistic in ("mean", "p50", "p90", "p99", "max"):
            value = float(expected[f"{column}_{statistic}"])
            assert getattr(side, statistic) == pytest.approx(value, rel=2e-3)
    assert found.correlation == pytest.approx(float(expected["corr_in_out"]), abs=1e-3)
    if name in HIT_RATIOS:
        ratio, unique = HIT_RATIOS[name]
        assert found.prefix is not None
        assert found.prefix.blocks == pytest.approx(ratio, abs=5e-4)
        assert found.prefix.unique_blocks == unique
