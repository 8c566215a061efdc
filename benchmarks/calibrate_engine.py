"""Held-out errors of engines that are calibrated with a few rows, for every group with enough of them.

    python -m benchmarks.calibrate_engine MEASURED [--rows 3 20] [--seeds 5] [--jobs 2]

MEASURED is a CSV of measured latencies as `planner validate` reads it. A group is one engine, GPU and model
with at least 40 rows. Nothing of a group's rows is in what its calibration starts from: constants are fitted
anew to all *other* groups ("unfitted"; the constants that are shipped know the very rows, and are not used).
Then some rows of the group, whole loads of it drawn by seed, calibrate the engine, and the rest are
predicted: rows of one configuration and load are never on both sides. Given are medians of
|predicted / measured - 1| over those rows, the median and the worst over seeds, how often calibration was
worse than none, and the share of rows in the 80 % interval of the spread that is planned with.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

from planner.documents.measured_file import read_measured
from planner.specs import FittedConstants
from planner.validation.calibration import calibrate
from planner.validation.evidence import Evidence, gathered
from planner.validation.fitting import NO_SHIFT, fit
from planner.validation.holdout import Rows

FEWEST = 40
TARGET = 0.06
"""Median error of TPOT from 20 rows."""

Group = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """One draw of calibrating rows: median held-out errors of TPOT and TTFT without and with them. [1]"""

    group: Group
    rows: int
    seed: int
    chosen: str
    before: tuple[float, float]
    after: tuple[float, float]
    covered: float


def group_of(evidence: Evidence) -> Group:
    """Engine, GPU and model of a row."""
    target = evidence.case.target
    return (target.engine.name, target.gpu.name, target.model.name)


def groups_of(evidence: Sequence[Evidence], fewest: int = FEWEST) -> list[Group]:
    """Groups with enough rows."""
    names = [group_of(e) for e in evidence]
    return sorted(name for name in set(names) if names.count(name) >= fewest)


def prior_without(evidence: Sequence[Evidence], group: Group) -> FittedConstants:
    """Constants that all rows of other groups give."""
    others = [e for e in evidence if group_of(e) != group]
    return fit(Rows.of(others, FittedConstants()).sample)


def drawn(own: Sequence[Evidence], count: int, seed: int) -> tuple[list[Evidence], list[Evidence]]:
    """About `count` rows in whole loads, never more, and the rest."""
    loads = sorted({e.load for e in own})
    taken: set[tuple[str, ...]] = set()
    room = count
    for i in np.random.default_rng(seed).permutation(len(loads)):
        size = sum(e.load == loads[i] for e in own)
        if size <= room:
            taken.add(loads[i])
            room -= size
    return [e for e in own if e.load in taken], [e for e in own if e.load not in taken]


def compared(group: Group, evidence: Sequence[Evidence], counts: Sequence[int], seeds: int) -> list[Drawn]:
    """All draws of one group."""
    prior = prior_without(evidence, group)
    own = [e for e in evidence if group_of(e) == group]
    found = []
    for count in counts:
        for seed in range(seeds):
            rows, rest = drawn(own, count, seed)
            calibration = calibrate(rows, prior)
            held = Rows.of(rest, prior)
            before, after = held.errors(NO_SHIFT), held.errors(calibration.shift)
            found.append(
                Drawn(
                    group=group,
                    rows=count,
                    seed=seed,
                    chosen=calibration.chosen.name,
                    before=(_median(before.tpot), _median(before.ttft)),
                    after=(_median(after.tpot), _median(after.ttft)),
                    covered=float(np.mean(np.abs(after.tpot) <= 1.2816 * calibration.log_sd)),
                )
            )
    return found


def _median(errors: np.ndarray) -> float:
    return float(np.nanmedian(np.abs(np.expm1(errors))))


def lines(found: Sequence[Drawn]) -> Iterator[str]:
    """The table, one line per group and number of rows."""
    yield (
        f"{'engine, GPU, model':52} {'rows':>4}  {'TPOT unfitted':>13} {'calibrated':>10} {'worst':>6} "
        f"{'worse in':>8} {'in 80 %':>7}   {'TTFT unfitted':>13} {'calibrated':>10}"
    )
    for group in dict.fromkeys(d.group for d in found):
        for count in sorted({d.rows for d in found}):
            own = [d for d in found if d.group == group and d.rows == count]
            before, after = (np.array([getattr(d, name) for d in own]) for name in ("before", "after"))
            worse = int(np.sum(after[:, 0] > before[:, 0] + 1e-9))
            ends = [np.median(values[:, k]) for values in (before, after) for k in (0, 1)]
            covered = np.mean([d.covered for d in own])
            yield (
                f"{', '.join(group):52} {count:4}  {ends[0]:13.1%} {ends[2]:10.1%} "
                f"{np.max(after[:, 0]):6.1%} {worse:>4}/{len(own):<3} {covered:7.0%}   "
                f"{ends[1]:13.1%} {ends[3]:10.1%}"
            )


def run(path: Path, counts: Sequence[int], seeds: int, jobs: int = 1) -> list[Drawn]:
    """All groups of a file."""
    evidence = gathered((), None, read_measured(path).rows).evidence
    groups = groups_of(evidence)
    arguments = (groups, repeat(evidence), repeat(counts), repeat(seeds))
    if jobs == 1:
        return [d for group in map(compared, *arguments) for d in group]
    with ProcessPoolExecutor(jobs) as pool:
        return [d for group in pool.map(compared, *arguments) for d in group]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("measured", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[3, 20])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    found = run(arguments.measured, arguments.rows, arguments.seeds, arguments.jobs)
    print("\n".join(lines(found)))
    for group in dict.fromkeys(d.group for d in found):
        last = [d.after[0] for d in found if d.group == group and d.rows == max(arguments.rows)]
        verdict = "met" if float(np.median(last)) <= TARGET else "MISSED"
        print(f"{', '.join(group)}: target <= {TARGET:.0%} from {max(arguments.rows)} rows: {verdict}")


if __name__ == "__main__":
    main()
