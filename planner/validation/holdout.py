"""Rows that are held out and predicted with constants from the others, for each way to move constants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.specs import Constants, FamilyKey, FittedConstants
from planner.validation.evidence import Evidence, column
from planner.validation.fitting import NO_SHIFT, Sample, Shift, fit_shift
from planner.validation.points import kernels_of
from planner.validation.scores import Errors, errors_of

FEWEST_LOADS = 3
"""Different loads below which rows cannot be held out and predicted."""
MOST_SINGLE = 12
"""Different loads up to which each is held out by itself; beyond, they are held out in five parts."""
FOLDS = 5

KERNELS_AND_HOST = ("step", "sequence", "decode_scale", "prefill_scale")
PROTOCOL = ("fixed", "services", "steps", "first_wave")


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """One way to move constants: those that stay, and whether models have factors."""

    name: str
    fixed: tuple[str, ...]
    factors: bool


UNFITTED = Candidate(name="unfitted", fixed=(*KERNELS_AND_HOST, *PROTOCOL), factors=False)
BENCHMARK = Candidate(name="benchmark", fixed=KERNELS_AND_HOST, factors=False)
FACTOR = Candidate(name="factor", fixed=KERNELS_AND_HOST, factors=True)
ALL = Candidate(name="all", fixed=(), factors=True)
CANDIDATES = (UNFITTED, BENCHMARK, FACTOR, ALL)


Tick = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Held:
    """Log errors of predictions, in the order of the rows; nan where nothing was measured."""

    ttft: FloatArray
    tpot: FloatArray


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows with their kernels, and what the prior says of each."""

    evidence: tuple[Evidence, ...]
    sample: Sample
    above: tuple[Constants, ...]
    known: dict[FamilyKey, float]
    names: dict[FamilyKey, str]
    loads: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, evidence: Sequence[Evidence], prior: FittedConstants) -> Rows:
        kernels = kernels_of([e.case for e in evidence], [e.slots for e in evidence])
        ordered = tuple(evidence[i] for i in kernels.order)
        families = tuple((e.case.target.engine.name, e.case.target.model.shape) for e in ordered)
        sample = Sample(
            ids=tuple(e.id for e in ordered),
            table=kernels.table,
            keys=tuple(e.key for e in ordered),
            families=families,
            wave=np.array([e.wave for e in ordered]),
            ttft=column(ordered, "ttft"),
            tpot=column(ordered, "tpot"),
            start=column(ordered, "start"),
            queue=column(ordered, "queue"),
        )
        return cls(
            evidence=ordered,
            sample=sample,
            above=tuple(prior.constants(e.key) for e in ordered),
            known={family: prior.factor(family) or 1.0 for family in families},
            names={family: e.case.target.model.name for family, e in zip(families, ordered, strict=True)},
            loads=tuple(sorted({e.load for e in ordered})),
        )

    @property
    def families(self) -> list[FamilyKey]:
        return sorted(self.known)

    def fit(self, candidate: Candidate, index: NDArray[np.bool_] | None = None) -> Shift:
        """What some of the rows move constants by."""
        if candidate is UNFITTED:
            return NO_SHIFT
        index = np.ones(len(self.above), dtype=bool) if index is None else index
        part = self.sample.part(index)
        above = [constants for constants, kept in zip(self.above, index, strict=True) if kept]
        free = sorted(set(part.families)) if candidate.factors else []
        known = {family: math.log(factor) for family, factor in self.known.items()}
        return fit_shift(part, above, free, known, candidate.fixed)

    def errors(self, shift: Shift, index: NDArray[np.bool_] | None = None) -> Held:
        """Log errors of some of the rows with constants that are moved so."""
        index = np.ones(len(self.above), dtype=bool) if index is None else index
        part = self.sample.part(index)
        each = [shift.moved(a) for a, kept in zip(self.above, index, strict=True) if kept]
        factor = np.array([self.known[f] * math.exp(shift.factors.get(f, 0.0)) for f in part.families])
        state = part.predicted(each, factor)
        return Held(np.log(state.ttft / part.ttft), np.log(state.tpot / part.tpot))

    def held_out(self, candidate: Candidate, parts: Sequence[NDArray[np.bool_]], on_fit: Tick) -> Held:
        """Log errors of all rows, each with constants that its own part had no share in."""
        ttft, tpot = (np.full(len(self.above), np.nan) for _ in range(2))
        for part in parts:
            found = self.errors(self.fit(candidate, ~part), part)
            ttft[part], tpot[part] = found.ttft, found.tpot
            on_fit()
        return Held(ttft, tpot)

    def scores(self, held: Held) -> dict[str, Errors]:
        """Errors by latency."""
        found = {}
        for name, values in (("tpot", held.tpot), ("ttft", held.ttft)):
            errors = errors_of(np.exp(values), np.ones(len(values)))
            if errors is not None:
                found[name] = errors
        return found

    def by_load(self, values: FloatArray) -> FloatArray:
        """Mean of the rows of each load; rows without a value do not count."""
        own = np.array([self.loads.index(e.load) for e in self.evidence])
        known = np.isfinite(values)
        counted = [np.mean(values[known & (own == i)]) for i in sorted(set(own[known].tolist()))]
        return np.array(counted)


def parts_of(loads: int) -> int:
    """Parts in which so many loads are held out."""
    return 0 if loads < FEWEST_LOADS else loads if loads <= MOST_SINGLE else FOLDS


def folds(rows: Rows) -> list[NDArray[np.bool_]]:
    """Which rows are held out together: those of one load always."""
    count = parts_of(len(rows.loads))
    own = np.array([rows.loads.index(e.load) for e in rows.evidence])
    return [own % count == k for k in range(count)]
