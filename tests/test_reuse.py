"""The reuse curve: caches of given sizes, worked by hand and run block by block."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_traces import hashed

from planner.documents.trace_file import read_trace
from planner.reuse import reuse_curve, smaller_before
from planner.traces import PromptBlocks, measure

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
TRACES = Path(os.environ.get("PLANNER_TRACES") or "/nonexistent")


def full(blocks: PromptBlocks) -> np.ndarray:
    """Lengths of prompts whose blocks are all full."""
    return np.diff(blocks.offsets) * blocks.size


def test_a_curve_worked_by_hand():
    """Prompts AB, CD, AB, AE, C: blocks of 10 tokens, 9 in all.

    Used in the order B A, D C, B A, E A, C. The third prompt finds A where two blocks were used since and B
    where three were: distances 3 and 4. The fourth finds A, used last: distance 1. The fifth finds C, after
    which B, A and E were used: distance 4.
    """
    blocks = hashed([1, 2], [3, 4], [1, 2], [1, 5], [3], size=10)
    curve = reuse_curve(blocks, full(blocks))
    assert curve.distances.tolist() == [1, 3, 4]
    assert curve.found.tolist() == [10, 20, 40]
    assert (curve.tokens, curve.distinct, curve.largest) == (90, 5, 40)
    shares = [curve.share(10 * size) for size in range(6)]
    assert shares == pytest.approx([0, 1 / 9, 1 / 9, 2 / 9, 4 / 9, 4 / 9])
    assert curve.share(9.99) == 0
    assert curve.most == pytest.approx(4 / 9)


def test_a_prompt_that_ends_within_a_block_gives_what_it_had():
    blocks = hashed([1], [1, 2], [1, 2], size=512)
    curve = reuse_curve(blocks, np.array([256, 700, 700]))
    assert curve.share(512) == pytest.approx((256 + 512) / 1656)  # the first block is used last
    assert curve.share(1024) == pytest.approx((256 + 700) / 1656)


def test_nothing_is_found_without_a_cache_or_without_blocks():
    blocks = hashed([1], [1], size=4)
    assert reuse_curve(blocks, full(blocks)).share(0) == 0
    none = hashed([], [], size=4)
    curve = reuse_curve(none, np.array([2, 3]))
    assert (curve.share(1e9), curve.most, curve.largest) == (0, 0, 0)
    fresh = hashed([1], [2], size=4)
    assert reuse_curve(fresh, full(fresh)).most == 0


def by_blocks(rows: list[list[int]], size: int) -> int:
    """Blocks that a cache of so many finds, prompt by prompt."""
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    hits = 0
    for row in rows:
        chains = [tuple(row[: k + 1]) for k in range(len(row))]
        for chain in chains:
            if chain not in cache:
                break
            hits += 1
        for chain in reversed(chains):
            cache[chain] = None
            cache.move_to_end(chain)
        while len(cache) > size:
            cache.popitem(last=False)
    return hits


prompts = st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=25)


@PATIENT
@given(prompts)
def test_against_a_cache_run_block_by_block(rows: list[list[int]]):
    blocks = hashed(*rows, size=8)
    curve = reuse_curve(blocks, full(blocks))
    last = 0.0
    for size in range(blocks.ids.size + 2):
        share = curve.share(8 * size)
        assert share * max(curve.tokens, 1) == pytest.approx(8 * by_blocks(rows, size))
        assert share >= last
        last = share


@pytest.mark.parametrize("seed", range(4))
def test_long_traces_against_a_cache_run_block_by_block(seed: int):
    rng = np.random.default_rng(seed)
    rows: list[list[int]] = []
    for _ in range(300):
        old = rows[rng.integers(len(rows))] if rows and rng.random() < 0.7 else []
        rows.append(old[: rng.integers(0, len(old) + 1)] + rng.integers(0, 50, rng.integers(1, 8)).tolist())
    blocks = hashed(*rows, size=16)
    curve = reuse_curve(blocks, full(blocks))
    for size in (0, 1, 2, 5, 13, 40, 100, 400, 10_000):
        assert round(curve.share(16 * size) * curve.tokens) == 16 * by_blocks(rows, size)


@PATIENT
@given(st.lists(st.integers(0, 40), max_size=60))
def test_smaller_ones_before(values: list[int]):
    found = smaller_before(np.array(values, dtype=np.int64))
    assert found.tolist() == [sum(x < y for x in values[:k]) for k, y in enumerate(values)]


needs_traces = pytest.mark.skipif(
    not TRACES.is_dir(), reason="PLANNER_TRACES names no folder: data beside the checkout"
)


@pytest.mark.shared
@needs_traces
@pytest.mark.parametrize("name", ["mooncake_conversation", "mooncake_synthetic"])
def test_a_cache_without_limit_finds_what_the_trace_is_said_to_share(name: str):
    trace = read_trace(TRACES / f"{name}.csv")
    assert trace.blocks is not None
    curve = reuse_curve(trace.blocks, trace.isl)
    prefix = measure(trace).prefix
    assert prefix is not None
    assert curve.most == curve.share(curve.largest) == prefix.tokens
    assert curve.share(curve.largest - 1) < curve.most
    shares = [curve.share(x) for x in np.geomspace(1, 1e9, 50)]
    assert shares == sorted(shares)
