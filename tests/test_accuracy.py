"""Predictions against simulations of drawn fleets: part of what `benchmarks.accuracy` compares."""

from __future__ import annotations

import pytest

from benchmarks.accuracy import KINDS, TPOT_TARGET, TTFT_TARGET, compared_all, document, draw, sizes

PART = range(0, 50, 4)


def test_a_seed_draws_one_fleet():
    assert draw(7).text == draw(7).text
    assert draw(7).fleet.groups == draw(7).fleet.groups
    assert len({draw(seed).text for seed in range(20)}) == 20


def test_the_seeds_draw_all_kinds_of_fleets():
    drawn = [draw(seed) for seed in range(50)]
    for belongs in KINDS.values():
        assert sum(belongs(d) for d in drawn) >= 5
    assert all(0.2 <= d.load <= 0.85 for d in drawn)
    assert min(d.fleet.service.workload.lengths.osl.points[0] for d in drawn) >= 32


@pytest.mark.oracle
@pytest.mark.slow
def test_medians_of_the_differences():
    """Half the targets for TTFT, the targets for TPOT; a quarter of the seeds."""
    rows = compared_all(PART, 1)
    assert [row.drawn.seed for row in rows] == list(PART)
    for metric, target in (("ttft", TTFT_TARGET / 2), ("tpot", TPOT_TARGET)):
        for median, _ in sizes(rows, metric):
            assert median <= target
    text = document(rows)
    assert text.count("\n| ") == len(rows) + len(KINDS) + 2 * 2
