"""Measured rows predicted: with no constants, those that are shipped, or such as other rows give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from planner.anchoring import solved_factor
from planner.arrays import FloatArray
from planner.documents.measured_file import MeasuredFile, MeasuredRow
from planner.engines import VERSION_LOG_SD, shipped_constants
from planner.errors import SpecError
from planner.specs import NO_CONSTANTS, UNFITTED, Constants, EngineProfile, FamilyKey, FittedConstants
from planner.validation.classes import class_of, halves, is_wave, predict_loops
from planner.validation.points import Points, points_of
from planner.validation.resolve import Target
from planner.validation.scores import Errors, errors_of


class ConstantsKind(StrEnum):
    """Where constants of engines come from."""

    NONE = "none"
    SHIPPED = "shipped"
    CROSSFIT = "crossfit"


class Split(StrEnum):
    """What stays together when rows are halved."""

    DEPLOYMENT = "deployment"
    LOAD = "load"


NO_PROTOCOL_LOG_SD = 0.8
"""Spread of a TTFT whose benchmark adds what nobody fitted: ours, natural log. [1]"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """Predictions for the rows of a file, in its order.

    Attributes
    ----------
    rows : tuple of MeasuredRow
    ttft, tpot : ndarray
        Predicted means; nan where a row cannot be predicted. [s]
    ttft_log_sd, tpot_log_sd : ndarray
        Spread of each, natural log. [1]
    reasons : tuple of str
        Why a row has no prediction, or no part in the scores; empty for the others.
    targets : tuple of Target or None
        What each row was taken for; None for a row that cannot be predicted.
    fitted_rows : ndarray of bool
        Rows that the constants were fitted to: their errors say nothing of accuracy.
    moe : ndarray of bool
        Whether the row's model has routed experts.
    """

    rows: tuple[MeasuredRow, ...]
    ttft: FloatArray
    tpot: FloatArray
    ttft_log_sd: FloatArray
    tpot_log_sd: FloatArray
    reasons: tuple[str, ...]
    targets: tuple[Target | None, ...]
    fitted_rows: NDArray[np.bool_]
    moe: NDArray[np.bool_]

    def errors(self, chosen: NDArray[np.bool_] | None = None) -> tuple[Errors | None, Errors | None]:
        """Errors of TPOT and of TTFT over chosen rows."""
        scored = np.array([not reason for reason in self.reasons])
        kept = scored if chosen is None else scored & chosen
        measured = {name: np.array([getattr(row, name) for row in self.rows]) for name in ("tpot", "ttft")}
        return (
            errors_of(self.tpot[kept], measured["tpot"][kept], self.tpot_log_sd[kept]),
            errors_of(self.ttft[kept], measured["ttft"][kept], self.ttft_log_sd[kept]),
        )

    @property
    def fitted_to(self) -> int:
        """Rows that the constants were fitted to."""
        return int(self.fitted_rows.sum())

    @property
    def repairs(self) -> dict[str, int]:
        """Rows by what was put right in them."""
        rules = (rule for target in self.targets if target is not None for rule in target.repairs)
        return dict(Counter(rules).most_common())

    @property
    def unpredicted(self) -> dict[str, int]:
        """Rows by the reason why they are not scored."""
        return dict(Counter(reason for reason in self.reasons if reason).most_common())


Fit = Callable[[NDArray[np.bool_]], FittedConstants]


def validate(
    file: MeasuredFile,
    *,
    constants: ConstantsKind = ConstantsKind.SHIPPED,
    split: Split = Split.DEPLOYMENT,
    leave_out: str | None = None,
    anchored: bool = False,
    profile: EngineProfile | None = None,
) -> Validation:
    """Predict the rows of a file.

    Parameters
    ----------
    constants : ConstantsKind
        ``crossfit``: each half of the rows is predicted with constants that the other half gives.
    split : Split
        What rows share for them to be in one half.
    leave_out : str, optional
        Part of model names: constants are fitted to all other rows, and these rows are predicted alone.
    anchored : bool
        One row of each model and engine is given, which removes the bias of its family, and is not scored.
    profile : EngineProfile, optional
        In place of the constants of rows on its engine.

    Raises
    ------
    SpecError
        If no row can be predicted, or the family to leave out is in none or in all of them.
    """
    points = points_of(file.rows)
    rows = [file.rows[i] for i in points.index]
    keys = [class_of(row) for row in rows]
    families = points.families
    wave = np.array([is_wave(row) for row in rows])
    count = len(rows)
    unscored = np.full(count, "", dtype=object)
    chosen: list[FittedConstants] = [UNFITTED] * count
    fitted_rows = np.zeros(len(file.rows), dtype=bool)
    if leave_out is not None:
        away = _left_out(rows, leave_out)
        chosen = [_fitter(points, keys, wave)(~away)] * count
        unscored[~away] = LEFT_IN
    elif constants is ConstantsKind.SHIPPED:
        shipped = shipped_constants()
        chosen = [shipped] * count
        fitted_rows[points.index] = [row.id in shipped.rows for row in rows]
    elif constants is ConstantsKind.CROSSFIT:
        sides = halves(rows, by_load=split is Split.LOAD)
        fit = _fitter(points, keys, wave)
        of_side = {
            side: fit(sides != side) for side in (0, 1) if (sides == side).any() and (sides != side).any()
        }
        chosen = [of_side.get(int(side), UNFITTED) for side in sides]
    if profile is not None:
        chosen = [_profiled(c, profile, key) for c, key in zip(chosen, keys, strict=True)]
    each = [c.constants(key) if c.classes else NO_CONSTANTS for c, key in zip(chosen, keys, strict=True)]
    known = np.array([c.factor(f) is not None for c, f in zip(chosen, families, strict=True)])
    factor = np.array([c.factor(f) or 1.0 for c, f in zip(chosen, families, strict=True)])
    if anchored:
        anchors, factor = _anchored(points, families, each, wave, factor, known)
        unscored[anchors] = ANCHOR
    state = predict_loops(points.table, each, wave, factor)
    tpot_sd, ttft_sd = _spreads(points, chosen, keys, known)
    return _validation(file, points, state.ttft, state.tpot, ttft_sd, tpot_sd, unscored, fitted_rows)


def _profiled(constants: FittedConstants, profile: EngineProfile, key: tuple[str, ...]) -> FittedConstants:
    """What counts for a row of a class."""
    if key[0] != profile.engine:
        return constants
    return replace(
        constants,
        classes={key: profile.constants},
        factors={**constants.factors, **{(profile.engine, shape): f for shape, f in profile.factors}},
        log_sd=profile.log_sd,
        ttft_log_sd=profile.ttft_log_sd,
    )


LEFT_IN = "of another family than the one left out"
ANCHOR = "given as the measured point of its model and engine"


def _left_out(rows: Sequence[MeasuredRow], family: str) -> NDArray[np.bool_]:
    away = np.array([family.lower() in row.model.lower() for row in rows])
    if not away.any():
        models = ", ".join(sorted({row.model for row in rows}))
        raise SpecError(f"--leave-out: no row has a model with {family!r} in its name; models: {models}")
    if away.all():
        raise SpecError(f"--leave-out: all rows have a model with {family!r} in its name: nothing to fit to")
    return away


def _fitter(points: Points, keys: Sequence[tuple[str, ...]], wave: NDArray[np.bool_]) -> Fit:
    """A function that fits constants to some of the points."""
    from planner.validation.fitting import Sample, fit  # scipy's optimiser: only where constants are fitted

    sample = Sample(
        ids=tuple(points.rows[i].id for i in points.index),
        table=points.table,
        keys=tuple(keys),
        families=points.families,
        wave=wave,
        ttft=points.ttft,
        tpot=points.tpot,
    )
    names = {t.model.shape: t.model.name for t in points.targets}
    return lambda index: fit(sample.part(index), names)


def fit_all(points: Points, source: str) -> FittedConstants:
    """Constants from all points: what a file of constants holds."""
    rows = [points.rows[i] for i in points.index]
    wave = np.array([is_wave(row) for row in rows])
    fitted = _fitter(points, [class_of(row) for row in rows], wave)(np.ones(len(rows), dtype=bool))
    return replace(fitted, source=source)


def _anchored(
    points: Points,
    families: Sequence[FamilyKey],
    each: Sequence[Constants],
    wave: NDArray[np.bool_],
    factor: FloatArray,
    known: NDArray[np.bool_],
) -> tuple[NDArray[np.intp], FloatArray]:
    """One row of each family, that of the middle concurrency, and the factors that make it right.

    Rows of families with such a row become `known`; a family without a measured TPOT has none.
    """
    anchors = []
    changed = factor.copy()
    for family in sorted(set(families)):
        members = np.flatnonzero([f == family for f in families])
        measured = members[np.isfinite(points.tpot[members])]
        if not len(measured):
            continue
        known[members] = True
        order = measured[np.argsort(points.table.loops.clients[measured], kind="stable")]
        anchor = int(order[len(order) // 2])
        anchors.append(anchor)
        changed[members] = solved_factor(
            _tpot_of(points, each[anchor], wave, anchor), float(points.tpot[anchor])
        )
    return np.array(anchors, dtype=np.intp), changed


def _tpot_of(
    points: Points, constants: Constants, wave: NDArray[np.bool_], anchor: int
) -> Callable[[float], float]:
    """TPOT of one point by the factor on its kernels. [s]"""
    part = np.arange(len(points.index)) == anchor
    table = points.table.part(part)
    return lambda factor: float(predict_loops(table, [constants], wave[part], factor).tpot[0])


def _spreads(
    points: Points,
    chosen: Sequence[FittedConstants],
    keys: Sequence[tuple[str, ...]],
    known: NDArray[np.bool_],
) -> tuple[FloatArray, FloatArray]:
    """Spread of each TPOT and TTFT: of the form, between models and versions, and of kernels."""
    form = np.array([c.log_sd**2 for c in chosen])
    family = np.where(known, 0.0, np.array([c.family_log_sd**2 for c in chosen]))
    version = np.array([
        0.0 if not c.classes or ((found := c.level(key)) is not None and found[:2] == key[:2])
        else VERSION_LOG_SD**2
        for c, key in zip(chosen, keys, strict=True)
    ])  # fmt: skip
    protocol = np.array([c.ttft_log_sd**2 if c.classes else NO_PROTOCOL_LOG_SD**2 for c in chosen])
    tpot = np.sqrt(form + family + version + points.kernel_log_sd**2)
    ttft = np.sqrt(protocol + family + version + points.prompt_kernel_log_sd**2)
    return tpot, ttft


def _validation(
    file: MeasuredFile,
    points: Points,
    ttft: FloatArray,
    tpot: FloatArray,
    ttft_sd: FloatArray,
    tpot_sd: FloatArray,
    unscored: NDArray[np.object_],
    fitted_rows: NDArray[np.bool_],
) -> Validation:
    """Points spread over the rows of the file."""
    count = len(file.rows)

    def spread(values: FloatArray) -> FloatArray:
        full = np.full(count, np.nan)
        full[points.index] = values
        return full

    reasons = [points.reasons.get(i, "") for i in range(count)]
    moe = np.zeros(count, dtype=bool)
    for position, i in enumerate(points.index):
        reasons[i] = str(unscored[position])
        moe[i] = points.targets[position].model.routed
    targets: list[Target | None] = [None] * count
    for position, i in enumerate(points.index):
        targets[i] = points.targets[position]
    return Validation(
        rows=file.rows,
        ttft=spread(ttft),
        tpot=spread(tpot),
        ttft_log_sd=spread(ttft_sd),
        tpot_log_sd=spread(tpot_sd),
        reasons=tuple(reasons),
        targets=tuple(targets),
        fitted_rows=fitted_rows,
        moe=moe,
    )
