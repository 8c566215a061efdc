"""Constants of an engine, moved as far as a user's own measurements have evidence.

The prior is what is known of the engine without these rows. Candidates move nothing, what a benchmark's TTFT
counts, a factor on all kernels of each model, or all constants; the one that predicts held-out rows best is
taken, and a gain counts only beyond its own standard error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import FloatArray
from planner.specs import Constants, FamilyKey, FittedConstants
from planner.validation.evidence import Evidence
from planner.validation.fitting import NAMES, NO_SHIFT, Shift
from planner.validation.holdout import (
    ALL,
    BENCHMARK,
    CANDIDATES,
    FACTOR,
    FEWEST_LOADS,
    KERNELS_AND_HOST,
    PROTOCOL,
    UNFITTED,
    Candidate,
    Held,
    Rows,
    Tick,
    folds,
    parts_of,
)
from planner.validation.scores import INTERVAL_Z, Errors

SURE = 0.6
"""Share of the prior's standard deviation that is left beyond which rows did not identify a constant."""

_LOSS_SD = 0.06  # log errors beyond which a row counts less, as in the fit
_TTFT_LOSS_SD = 0.25
_WILD = 3.0  # spreads beyond which an error counts no more
_PRIOR_ROWS = 5.0  # weight of the spread without calibration in that of held-out rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """What measurements say of an engine.

    Attributes
    ----------
    evidence : tuple of Evidence
        Rows that count, in the order of `ids`.
    chosen : Candidate
    shift : Shift
    factors : mapping
        Of models, by engine and shape. [1]
    before, after : dict
        Errors of rows that were held out, by latency: with the prior, and as calibrated. One latency that
        nobody measured has none.
    identified, unidentified : dict
        Of constants that were free, by name: share of the prior's standard deviation that is left. [1]
    log_sd, ttft_log_sd : float
        Spreads to plan with, natural log. [1]
    notes : tuple of str
    """

    evidence: tuple[Evidence, ...]
    prior: FittedConstants
    chosen: Candidate
    shift: Shift
    factors: dict[FamilyKey, float]
    before: dict[str, Errors]
    after: dict[str, Errors]
    identified: dict[str, float]
    unidentified: dict[str, float]
    loads: int
    folds: int
    log_sd: float
    ttft_log_sd: float
    notes: tuple[str, ...]

    def constants(self, engine: str, version: str) -> Constants:
        """Those of an engine at a version."""
        return self.shift.moved(self.prior.constants((engine, version)))


def calibrate(
    evidence: Sequence[Evidence], prior: FittedConstants, on_fit: Tick = lambda: None
) -> Calibration:
    """Move constants of `prior` as far as `evidence` goes.

    Parameters
    ----------
    prior : FittedConstants
        What is known without the rows.
    on_fit : callable
        Called after each of :func:`fits_of` fits.
    """
    rows = Rows.of(evidence, prior)
    parts = folds(rows)
    held = {UNFITTED: rows.errors(NO_SHIFT)}
    if parts:
        for candidate in CANDIDATES[1:]:
            held[candidate] = rows.held_out(candidate, parts, on_fit)
    chosen = _choice(held, rows)
    shift = rows.fit(chosen)
    on_fit()
    names = [name for name in (*KERNELS_AND_HOST, *PROTOCOL) if name not in chosen.fixed]
    left = dict(zip(NAMES, shift.left, strict=False))
    factors = list(shift.left[len(NAMES) :])
    sure = {name: float(left[name]) for name in names} | {
        f"factor of {rows.names[family]}": float(value)
        for family, value in zip(sorted(shift.factors), factors, strict=True)
    }
    unfitted = math.hypot(prior.log_sd, prior.family_log_sd)
    return Calibration(
        evidence=rows.evidence,
        prior=prior,
        chosen=chosen,
        shift=shift,
        factors={f: rows.known[f] * math.exp(shift.factors.get(f, 0.0)) for f in rows.families},
        before=rows.scores(held[UNFITTED]),
        after=rows.scores(held[chosen]),
        identified={name: value for name, value in sure.items() if value <= SURE},
        unidentified={name: value for name, value in sure.items() if value > SURE},
        loads=len(rows.loads),
        folds=len(parts),
        log_sd=_spread(held[chosen].tpot, prior.log_sd, unfitted),
        ttft_log_sd=_spread(held[chosen].ttft, prior.ttft_log_sd, prior.ttft_log_sd),
        notes=tuple(_notes(rows, chosen, held)),
    )


def fits_of(evidence: Sequence[Evidence]) -> int:
    """Fits that :func:`calibrate` does."""
    return 1 + (len(CANDIDATES) - 1) * parts_of(len({e.load for e in evidence}))


def _choice(held: dict[Candidate, Held], rows: Rows) -> Candidate:
    """The candidate that predicts held-out rows best, if it does so beyond doubt.

    TPOT decides on what engines take; where that stays, TTFT decides on what the benchmark adds, and TPOT,
    which it changes a little (requests that wait do not decode), must not get worse.
    """
    if len(held) == 1:
        return UNFITTED
    losses = {c: _loss(h.tpot, _LOSS_SD) for c, h in held.items()}
    best = min((ALL, FACTOR), key=lambda c: float(np.mean(rows.by_load(losses[c]))))
    if _gains(rows.by_load(losses[UNFITTED] - losses[best])):
        return best
    gain = _loss(held[UNFITTED].ttft, _TTFT_LOSS_SD) - _loss(held[BENCHMARK].ttft, _TTFT_LOSS_SD)
    kept = float(np.mean(rows.by_load(losses[BENCHMARK] - losses[UNFITTED]))) <= 0
    return BENCHMARK if kept and _gains(rows.by_load(gain)) else UNFITTED


def _loss(errors: FloatArray, sd: float) -> FloatArray:
    """That of the fit: square for small errors, linear for large ones."""
    return np.asarray(2 * (np.sqrt(1 + (errors / sd) ** 2) - 1))


def _gains(gain: FloatArray) -> bool:
    """Whether a mean gain over loads is larger than its standard error."""
    if len(gain) < FEWEST_LOADS:
        return False
    return float(np.mean(gain)) > float(np.std(gain, ddof=1)) / math.sqrt(len(gain))


def _spread(errors: FloatArray, least: float, unfitted: float) -> float:
    """Spread that contains four fifths of the held-out errors, and no less than their root mean square.

    Wild errors count as three spreads; few errors are joined by the spread without calibration where that
    is wider.

    Never below `least`, the spread of engines that many rows were fitted to.
    """
    known = np.abs(errors[np.isfinite(errors)])
    if not len(known):
        return unfitted
    middle = float(np.quantile(known, 0.8, method="higher")) / INTERVAL_Z
    own = max(middle, math.sqrt(float(np.mean(np.minimum(known, _WILD * middle) ** 2))))
    mean = (len(known) * own**2 + _PRIOR_ROWS * max(own, unfitted) ** 2) / (len(known) + _PRIOR_ROWS)
    return max(math.sqrt(mean), least)


def _notes(rows: Rows, chosen: Candidate, held: dict[Candidate, Held]) -> list[str]:
    notes = []
    loads = len(rows.loads)
    if loads < FEWEST_LOADS:
        notes.append(
            f"{loads} different load{'' if loads == 1 else 's'}: at least {FEWEST_LOADS} are needed to hold "
            "rows out, and constants stay as they were"
        )
    elif chosen in (UNFITTED, BENCHMARK):
        notes.append("held-out TPOT is not predicted better: constants of the engine stay as they were")
    clients = {e.case.target.clients for e in rows.evidence}
    if len(clients) == 1 and loads >= FEWEST_LOADS:
        notes.append(
            f"all rows are at a concurrency of {clients.pop():g}: host time per step cannot be told from a "
            "factor on kernels; measure at 1, and at several more"
        )
    if not np.isfinite(rows.sample.ttft).any():
        notes.append("no TTFT was measured: nothing is said of prompts")
    gpus = sorted({e.case.target.gpu.name for e in rows.evidence})
    if len(gpus) > 1:
        of = np.array([e.case.target.gpu.name for e in rows.evidence])
        biases = {gpu: float(np.nanmedian(held[chosen].tpot[of == gpu])) for gpu in gpus}
        if max(biases.values()) - min(biases.values()) > _LOSS_SD:
            off = ", ".join(f"{gpu} {math.expm1(bias):+.1%}" for gpu, bias in biases.items())
            notes.append(f"GPUs differ in TPOT predicted over measured ({off}): calibrate one at a time")
    return notes
