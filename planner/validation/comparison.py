"""A file of measurements beside its predictions: chosen rows, groups, errors.

Two forms of files are read: one row per configuration and load (TTFT and TPOT in columns of their own), and
published values in long format (one value per row, of any metric).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.documents.measured_file import is_measured, measured_columns, read_measured
from planner.documents.names import did_you_mean
from planner.documents.published_file import PublishedRow, is_published, read_published
from planner.errors import SpecError
from planner.specs import EngineProfile
from planner.units import MILLI
from planner.validation.evaluate import ConstantsKind, Split, Validation, validate
from planner.validation.published import FittedHost, predict_published
from planner.validation.published.names import model_of
from planner.validation.resolve import Target
from planner.validation.scores import Errors, errors_of

TPOT, TTFT, E2E, THROUGHPUT = "tpot", "ttft", "e2e", "throughput"
KINDS = (TPOT, TTFT, E2E, THROUGHPUT)
DENSE, MOE = "dense", "moe"

_KIND_OF = {
    "ttft": TTFT,
    "tpot": TPOT,
    "itl": TPOT,
    "e2e": E2E,
    "output_tok_s": THROUGHPUT,
    "total_tok_s": THROUGHPUT,
    "req_s": THROUGHPUT,
}
"""Kinds of metrics in long format, by how their names begin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Predictions of one kind.

    Attributes
    ----------
    rows : ndarray of int
        Which row each entry belongs to.
    predicted, measured : ndarray
        In one unit; nan where absent.
    log_sd : ndarray
        Spread of the prediction, natural log.
    """

    rows: NDArray[np.intp]
    predicted: FloatArray
    measured: FloatArray
    log_sd: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Rows of a file with what is predicted for them.

    Attributes
    ----------
    columns : tuple of str
        Of the file.
    cells : tuple of mapping
        The rows as they stand in it.
    kinds : tuple of str
        ``dense`` or ``moe`` by row; empty where the model is not known.
    series : mapping of Series
        By kind of latency.
    reasons : tuple of str
        Why a row is not scored; empty for the others.
    chosen : ndarray of bool
        Rows that were asked for.
    assumed : tuple of mapping
        What each row was taken for, by the name of a column; empty for a row that is not understood.
    rules : tuple of tuple of str
        What was put right in each row.
    fitted_rows : ndarray of bool
        Rows that the constants were fitted to.
    in_seconds : bool
        Whether latencies are in seconds; else in the file's own units.
    notes : tuple of str
    """

    columns: tuple[str, ...]
    cells: tuple[Mapping[str, str], ...]
    kinds: tuple[str, ...]
    series: Mapping[str, Series]
    reasons: tuple[str, ...]
    chosen: NDArray[np.bool_]
    assumed: tuple[Mapping[str, str], ...]
    rules: tuple[tuple[str, ...], ...]
    fitted_rows: NDArray[np.bool_]
    in_seconds: bool = True
    notes: tuple[str, ...] = ()

    def errors(self, index: NDArray[np.bool_] | None = None) -> dict[str, Errors]:
        """Errors by kind over chosen rows, of those in `index`."""
        kept = self.chosen & np.array([not reason for reason in self.reasons])
        if index is not None:
            kept = kept & index
        found = {}
        for kind, s in self.series.items():
            own = kept[s.rows]
            errors = errors_of(s.predicted[own], s.measured[own], s.log_sd[own])
            if errors is not None:
                found[kind] = errors
        return found

    def groups(self, by: Sequence[str]) -> list[tuple[dict[str, str], dict[str, Errors]]]:
        """Errors by the values of some columns, in sorted order."""
        for name in by:
            if name not in (*self.columns, FAMILY):
                raise SpecError(f"--by: no column {name!r}: {_nearest(name, (*self.columns, FAMILY))}")
        keys = [tuple(self._value(i, name) for name in by) for i in range(len(self.cells))]
        found = []
        for key in sorted({key for key, taken in zip(keys, self.chosen, strict=True) if taken}):
            errors = self.errors(np.array([k == key for k in keys]))
            if errors:
                found.append((dict(zip(by, key, strict=True)), errors))
        return found

    def _value(self, row: int, column: str) -> str:
        return self.kinds[row] if column == FAMILY else self.cells[row].get(column, "")

    @property
    def fitted_to(self) -> int:
        """Chosen rows that the constants were fitted to."""
        return int((self.fitted_rows & self.chosen).sum())

    @property
    def repairs(self) -> dict[str, int]:
        """Chosen rows by what was put right in them."""
        rules = (rule for own, taken in zip(self.rules, self.chosen, strict=True) if taken for rule in own)
        return dict(Counter(rules).most_common())

    @property
    def hints(self) -> tuple[str, ...]:
        """What figures that are off by orders of magnitude may mean."""
        found = []
        for kind, errors in self.errors().items():
            ratio = 1.0 + errors.bias
            if self.in_seconds and not 1 / _ABSURD < ratio < _ABSURD:
                found.append(
                    f"{kind.upper()} is predicted {ratio:.3g} times what was measured: the columns "
                    "silicon_..._ms hold milliseconds"
                )
        return tuple(found)

    @property
    def unpredicted(self) -> dict[str, int]:
        """Chosen rows by the reason why they are not scored."""
        pairs = zip(self.reasons, self.chosen, strict=True)
        return dict(Counter(reason for reason, taken in pairs if reason and taken).most_common())


_ABSURD = 20.0
"""A ratio of predicted to measured beyond which a unit is more likely wrong than the model."""
FAMILY = "kind"
"""A column that every file has: dense or moe."""


def compare(
    path: str | Path,
    *,
    constants: ConstantsKind | None = None,
    split: Split = Split.DEPLOYMENT,
    leave_out: str | None = None,
    anchored: bool = False,
    profile: EngineProfile | None = None,
    where: Sequence[str] = (),
) -> Comparison:
    """Predict the rows of a file.

    Parameters
    ----------
    where : sequence of str
        ``dense``, ``moe``, or ``COLUMN=VALUE,VALUE``; rows have to meet all of them.

    Raises
    ------
    SpecError
        A file of neither form, a bad cell, an unknown column, or options that do not belong to the form.
    """
    columns = measured_columns(path)
    if is_published(columns):
        if profile is not None:
            raise SpecError("--engine-profile: not for published values in long format")
        if leave_out is not None or anchored or split is not Split.DEPLOYMENT:
            raise SpecError("--leave-out, --anchor, --split: not for published values in long format")
        found = _published(path, columns, constants)
    elif is_measured(columns) or not columns:
        file = read_measured(path)
        kind = ConstantsKind.SHIPPED if constants is None else constants
        found = _measured(
            file.columns,
            validate(
                file, constants=kind, split=split, leave_out=leave_out, anchored=anchored, profile=profile
            ),
        )
    else:
        read_measured(path)  # says which columns are missing
        raise AssertionError("a file without columns of latencies was read")
    return _chosen(found, where)


def _measured(columns: tuple[str, ...], v: Validation) -> Comparison:
    rows = np.arange(len(v.rows))
    return Comparison(
        columns=columns,
        cells=tuple(row.cells for row in v.rows),
        kinds=tuple(_family(v, i) for i in range(len(v.rows))),
        series={
            TPOT: Series(
                rows=rows,
                predicted=v.tpot,
                measured=np.array([row.tpot for row in v.rows]),
                log_sd=v.tpot_log_sd,
            ),
            TTFT: Series(
                rows=rows,
                predicted=v.ttft,
                measured=np.array([row.ttft for row in v.rows]),
                log_sd=v.ttft_log_sd,
            ),
        },
        reasons=v.reasons,
        chosen=np.ones(len(v.rows), dtype=bool),
        assumed=tuple({} if target is None else _taken_for(target) for target in v.targets),
        rules=tuple(() if target is None else target.repairs for target in v.targets),
        fitted_rows=v.fitted_rows,
    )


ASSUMED = ("weights", "attention", "experts", "kv_cache", "layout", "repairs")
"""Names of the columns that say what a row was taken for."""


def _taken_for(target: Target) -> dict[str, str]:
    """Formats and layouts of a row, and what was put right."""
    formats = target.precision
    layouts = [f"{count} x {layout}" if count > 1 else str(layout) for count, layout in target.pools]
    return {
        "weights": str(formats.weights),
        "attention": str(formats.of_attention),
        "experts": str(formats.of_experts) if target.model.routed else "",
        "kv_cache": str(formats.kv_cache),
        "layout": " > ".join(layouts),
        "repairs": "; ".join(target.repairs),
    }


def _family(v: Validation, row: int) -> str:
    if math.isnan(v.tpot[row]):
        return ""
    return MOE if v.moe[row] else DENSE


def _published(path: str | Path, columns: tuple[str, ...], constants: ConstantsKind | None) -> Comparison:
    if constants is ConstantsKind.SHIPPED:
        raise SpecError("--constants shipped: none are shipped for published values in long format")
    rows = read_published(path).rows
    kind = ConstantsKind.NONE if constants is None else constants
    p = predict_published(rows, constants="crossfit" if kind is ConstantsKind.CROSSFIT else "none")
    kinds = [_kind_of(row.metric) for row in rows]
    series = {}
    for name in KINDS:
        index = np.flatnonzero([k == name for k in kinds])
        predicted, measured = p.predicted[index], np.array([rows[i].value for i in index])
        spread = p.log_sd[index]
        if name == E2E:
            extra = _added(rows, p.predicted, p.log_sd)
            index = np.concatenate([index, extra.rows])
            predicted = np.concatenate([predicted, extra.predicted])
            measured = np.concatenate([measured, extra.measured])
            spread = np.concatenate([spread, extra.log_sd])
        if len(index):
            series[name] = Series(rows=index, predicted=predicted, measured=measured, log_sd=spread)
    return Comparison(
        columns=columns,
        cells=tuple({f.name: str(getattr(row, f.name)) for f in fields(PublishedRow)} for row in rows),
        kinds=tuple(_published_family(row) for row in rows),
        series=series,
        reasons=p.reasons,
        chosen=np.ones(len(rows), dtype=bool),
        assumed=({},) * len(rows),
        rules=((),) * len(rows),
        fitted_rows=np.zeros(len(rows), dtype=bool),
        in_seconds=False,
        notes=tuple(_said(host) for host in p.hosts),
    )


def _said(host: FittedHost) -> str:
    how = "overlapped" if host.overlapped else "added"
    return (
        f"{host.group}, {host.software}, {host.vendor}: {host.per_layer / MILLI:.3g} ms of host time per "
        f"layer, {how}, from {host.rows:,} rows of half {host.side + 1}"
    )


def _kind_of(metric: str) -> str:
    return next((kind for start, kind in _KIND_OF.items() if metric.startswith(start)), "")


def _published_family(row: PublishedRow) -> str:
    model = model_of(row.model)
    if model is None:
        return ""
    return MOE if model.routed else DENSE


def _added(rows: Sequence[PublishedRow], predicted: FloatArray, log_sd: FloatArray) -> Series:
    """End-to-end times of static batches whose prefill and decode step are separate rows of mean times."""
    names = ("ttft_mean_ms", "tpot_mean_ms")
    skipped = {"line", "id", "metric", "value", "convention", "source", "date", "status", "notes", "unit"}
    pairs: dict[tuple[str, ...], dict[str, int]] = {}
    for i, row in enumerate(rows):
        if row.metric in names and row.load_kind == "batch":
            key = tuple(str(getattr(row, f.name)) for f in fields(PublishedRow) if f.name not in skipped)
            pairs.setdefault(key, {})[row.metric] = i
    whole = [
        (p[names[0]], p[names[1]]) for p in pairs.values() if len(p) == 2 and _number(rows[p[names[1]]].osl)
    ]
    first = np.array([a for a, _ in whole], dtype=np.intp)
    second = np.array([b for _, b in whole], dtype=np.intp)
    steps = np.array([_number(rows[b].osl) - 1.0 for _, b in whole])
    values = np.array([row.value for row in rows])
    return Series(
        rows=second,
        predicted=predicted[first] + steps * predicted[second],
        measured=values[first] + steps * values[second],
        log_sd=np.maximum(log_sd[first], log_sd[second]),
    )


def _number(text: str) -> float:
    """A length; 0 where it is none."""
    try:
        return float(text)
    except ValueError:
        return 0.0


# --------------------------------------------------------------------------------------------
# Which rows


def _chosen(c: Comparison, where: Sequence[str]) -> Comparison:
    kept = np.ones(len(c.cells), dtype=bool)
    for condition in where:
        kept &= _meets(c, condition)
    if not kept.any():
        raise SpecError(f"--where: no row has {' and '.join(where)}")
    chosen = replace(c, chosen=kept)
    if where and not chosen.errors():
        counted = "; ".join(f"{reason} ({count})" for reason, count in chosen.unpredicted.items())
        raise SpecError(f"--where: no row with {' and '.join(where)} is scored: {counted}")
    return chosen


def _meets(c: Comparison, condition: str) -> NDArray[np.bool_]:
    name, equals, text = condition.partition("=")
    name = name.strip()
    if not equals and name in (DENSE, MOE):
        return np.array([kind == name for kind in c.kinds])
    if not equals:
        raise SpecError(f"--where: dense, moe or COLUMN=VALUE,VALUE, got {condition!r}")
    if name not in (*c.columns, FAMILY):
        raise SpecError(f"--where: no column {name!r}: {_nearest(name, (*c.columns, FAMILY))}")
    values = {_plain(value) for value in text.split(",")}
    held = [
        kind if name == FAMILY else cells.get(name, "") for kind, cells in zip(c.kinds, c.cells, strict=True)
    ]
    met = np.array([_plain(value) in values for value in held])
    if not met.any():
        known = sorted({value or "(empty)" for value in held})
        raise SpecError(f"--where: no row has {name} {text!r}: {_nearest(text, known)}")
    return met


def _plain(text: str) -> str:
    """A cell as it is compared: 4.0 is 4."""
    try:
        return f"{float(text):g}"
    except ValueError:
        return text.strip()


def _nearest(name: str, known: Sequence[str]) -> str:
    return did_you_mean(name, known) or f"known: {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}"
