"""What `benchmarks.calibrate_engine` measures: calibration with a few rows of a group."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks.calibrate_engine import (
    FEWEST,
    TARGET,
    drawn,
    group_of,
    groups_of,
    lines,
    prior_without,
    run,
)
from planner.documents.measured_file import read_measured
from planner.validation.evidence import gathered

GOLDEN = Path(__file__).parent / "golden" / "measured_rows.csv"


@pytest.fixture(scope="module")
def evidence():
    return gathered((), None, read_measured(GOLDEN).rows).evidence


def test_groups_have_rows_enough(evidence):
    names = [group_of(e) for e in evidence]
    groups = groups_of(evidence, 4)
    assert groups
    assert all(names.count(group) >= 4 for group in groups)
    assert groups_of(evidence, FEWEST) == []


def test_a_draw_splits_no_load_and_takes_no_more_than_asked(evidence):
    own = [*evidence[:9], *evidence[:3]]
    for seed in range(5):
        rows, rest = drawn(own, 4, seed)
        assert 0 < len(rows) <= 4
        assert len(rows) + len(rest) == len(own)
        assert {e.load for e in rows}.isdisjoint({e.load for e in rest})
    assert drawn(own, 4, 0)[0] == drawn(own, 4, 0)[0]


@pytest.mark.slow
def test_the_prior_knows_nothing_of_the_group(evidence):
    group = groups_of(evidence, 4)[0]
    own = {e.id for e in evidence if group_of(e) == group}
    prior = prior_without(evidence, group)
    assert own.isdisjoint(prior.rows)
    assert prior.rows == {e.id for e in evidence} - own


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.skipif(
    "PLANNER_MEASURED" not in os.environ, reason="PLANNER_MEASURED names no file of end-to-end measurements"
)
def test_twenty_rows_are_enough_and_three_do_no_harm():
    found = run(Path(os.environ["PLANNER_MEASURED"]), (3, 20), seeds=4)
    groups = sorted({d.group for d in found})
    assert len(groups) == 6
    for group in groups:
        twenty = [d for d in found if d.group == group and d.rows == 20]
        assert np.median([d.after[0] for d in twenty]) < TARGET
        assert np.median([d.after[1] for d in twenty]) < 0.2
        three = [d for d in found if d.group == group and d.rows == 3]
        assert np.median([d.after[0] - d.before[0] for d in three]) <= 1e-9
    assert 0.75 < np.mean([d.covered for d in found]) < 0.95
    assert len(list(lines(found))) == 1 + 2 * len(groups)
