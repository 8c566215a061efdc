"""A GPU profile from operator samples: fits become rows, and what was not measured is borrowed and said.

The vendor's figures of a known GPU are kept as the catalogue has them; those of an unknown device are what it
says of itself and what it attained at best, and are marked as measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.calibration.fitting import Fit, Residuals, fit, label_of
from planner.calibration.forms import FORMS, Peaks
from planner.calibration.links import LINEAR, fits_by_world
from planner.calibration.peaks import peaks_of
from planner.calibration.spec import measured_spec
from planner.device_facts import DeviceFacts, software_of
from planner.documents.gpu_profile import GpuProfileDocument, gpu_from_document
from planner.documents.source import parse_document
from planner.documents.yaml_text import dump_yaml
from planner.errors import SpecError
from planner.roofline import FALLBACK_LOG_SD, SIXTEEN_BITS
from planner.samples import Operator, Samples, SampleSet
from planner.specs import GPU, CalibrationStatus, Dtype
from planner.units import GIGA, MICRO

UNKNOWN_LOG_SD = 0.5
"""Of an operator that was not measured on a device of unknown make: ours, natural log. [1]"""
Row = dict[str, Any]

_UNITS = {
    "overhead": ("overhead_us", MICRO),
    "cta_time": ("cta_time_us", MICRO),
    "block_time": ("block_time_us", MICRO),
    "per_rank": ("per_rank_us", MICRO),
    "sqrt_time": ("sqrt_time_us", MICRO),
    "softmax_time": ("softmax_time_ps", MICRO * MICRO),
}
"""Keys of a profile's file for coefficients with a unit; the others keep their names."""
_SECTIONS = {
    Operator.GEMM: "gemm",
    Operator.DECODE_ATTENTION: "decode_attention",
    Operator.PREFILL_ATTENTION: "prefill_attention",
    Operator.EXPERTS: "moe",
    Operator.LATENT_DECODE: "mla_decode",
    Operator.LATENT_PREFILL: "mla_prefill",
    Operator.ELEMENTWISE: "elementwise",
    Operator.ALL_REDUCE: "all_reduce",
}
_TYPED = ("gemm", "decode_attention", "moe", "mla_decode")
_METHOD = (
    "Measured on this device by `planner profile`: medians of repetitions on rotating data; least squares on "
    "log residuals with bounds on every coefficient."
)
_HEAD = "# Written by planner; `planner calibrate ops` makes it anew from the samples.\n"
_KEPT = "Not measured here: that of the catalogue's profile."
_UNMEASURED = "Not measured: typical of data-centre GPUs."


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltProfile:
    """A profile as a file's text, as a GPU, and what its reader has to know.

    Attributes
    ----------
    fits : mapping of str to Fit
        By operator and format, e.g. "gemm.bf16".
    notes : tuple of str
        What could not be measured or told, and what stands in for it.
    """

    text: str
    gpu: GPU
    fits: Mapping[str, Fit]
    notes: tuple[str, ...]


def build_profile(
    samples: SampleSet,
    facts: DeviceFacts,
    *,
    name: str,
    date: str,
    base: GpuProfileDocument | None = None,
    method: str = _METHOD,
    status: CalibrationStatus = CalibrationStatus.MEASURED,
    fit_with: Callable[[Samples, Peaks], Fit] | None = None,
) -> BuiltProfile:
    """A profile from samples of one device, one of each case.

    Parameters
    ----------
    samples : SampleSet
    facts : DeviceFacts
        What the device says of itself.
    name : str
        Of the profile, and of its file without the ending.
    date : str
        YYYY-MM-DD.
    base : GpuProfileDocument, optional
        The catalogue's profile of this make: its ``spec`` is kept, and its rows where nothing was measured.
    status : CalibrationStatus
        "fitted" for samples that somebody else took.
    fit_with : callable, optional
        How samples become coefficients; default: :func:`planner.calibration.fitting.fit`.

    Raises
    ------
    SpecError
        Samples that beat the peaks, or none of matrix products in 16 bits.
    """
    fitter = fit_with or (lambda found, peaks: fit(found, peaks, cache_bytes=facts.cache))
    head, spec = measured_spec(samples, facts, base, date)
    bare = _parsed(name, facts, head, spec, _placeholder(facts, base), base)
    fits: dict[str, Fit] = {}
    notes: list[str] = []
    section: dict[str, Any] = {}
    for key, found in samples.tables.items():
        if found.operator not in FORMS:
            continue
        fitted = _try_fit(bare, found, fitter, notes)
        if fitted is None:
            continue
        fits[label_of(found)] = fitted
        _put(section, found.operator, key[1], row_of(fitted))
    if not any(str(d) in section.get("gemm", {}) for d in SIXTEEN_BITS):
        raise SpecError("no matrix product in 16 bits was measured: a profile needs that at least")
    _links(section, bare, samples, notes)
    _fill(section, base, notes)
    calibration = {
        "status": status.value,
        "method": method,
        "date": date,
        "software": software_of(samples.facts) or {"unknown": "unknown"},
        **{key: section[key] for key in (*_SECTIONS.values(), "pcie_all_reduce") if key in section},
    }
    text = _text(name, facts, head, spec, calibration, base)
    document = parse_document(text, name, GpuProfileDocument).model
    return BuiltProfile(text=text, gpu=gpu_from_document(document), fits=fits, notes=tuple(notes))


def _try_fit(
    gpu: GPU, samples: Samples, fitter: Callable[[Samples, Peaks], Fit], notes: list[str]
) -> Fit | None:
    """A fit, or None with a note where the samples are too few or the GPU has no such peak."""
    try:
        peaks = peaks_of(gpu, samples.operator, samples.dtype)
    except SpecError as error:
        notes.append(f"{label_of(samples)}: left out: {error}")
        return None
    usable = int(((samples.time > 0) & ~(samples.time == math.inf)).sum())
    if usable < 2:
        notes.append(f"{label_of(samples)}: left out: only {usable} times above 0")
        return None
    if samples.operator is Operator.ALL_REDUCE and gpu.scale_up_kind == "pcie":
        return None  # one row for each world size instead
    found = fitter(samples, peaks)
    notes += [f"{label_of(samples)}: {note}" for note in notes_of(found)]
    return found


def notes_of(found: Fit) -> tuple[str, ...]:
    """What a reader of a fit has to know, in sentences."""
    said = list(found.notes)
    if found.unidentified:
        names = ", ".join(found.unidentified)
        said.append(f"The samples do not tell {names}: typical of data-centre GPUs.")
    if found.at_bounds:
        said.append(f"At a bound of the fit: {', '.join(found.at_bounds)}.")
    if found.residuals.left_out and not any("left out" in note for note in found.notes):
        said.append(f"{found.residuals.left_out} samples were left out.")
    return tuple(said)


def row_of(found: Fit) -> Row:
    """A fit in the keys and units of a profile's file."""
    row: Row = {}
    for name, value in found.values.items():
        key, unit = _UNITS.get(name, (name, 1.0))
        row[key] = rounded(value / unit)
    row["residual"] = _residual(found.residuals, " ".join(notes_of(found)))
    return row


def rounded(value: float, digits: int = 5) -> float:
    """A number with so many digits that count."""
    return float(f"{value:.{digits}g}")


def _residual(r: Residuals, note: str) -> Row:
    out: Row = {
        "points": r.points,
        "median_abs_error": rounded(r.median_abs_error, 4),
        "p90_abs_error": rounded(r.p90_abs_error, 4),
        "bias": rounded(r.bias, 4),
        "log_sd": rounded(r.log_sd, 4),
        "axis_ranges": {
            axis: [rounded(low, 10), rounded(high, 10)] for axis, (low, high) in r.ranges.items()
        },
    }
    if math.isfinite(r.repeatability):
        out["repeatability"] = rounded(r.repeatability, 3)
    out["regimes"] = {
        regime: {
            "points": part.points,
            "median_abs_error": rounded(part.median_abs_error, 4),
            "bias": rounded(part.bias, 4),
            "log_sd": rounded(part.log_sd, 4),
        }
        for regime, part in r.regimes.items()
    }
    if note:
        out["note"] = note
    return out


def _put(section: dict[str, Any], operator: Operator, dtype: Dtype | None, row: Row) -> None:
    key = _SECTIONS[operator]
    if key in _TYPED:
        section.setdefault(key, {})[str(dtype)] = row
    else:
        section[key] = row


def _links(section: dict[str, Any], gpu: GPU, samples: SampleSet, notes: list[str]) -> None:
    """All-reduce over PCIe, one row for each world size."""
    found = samples.get(Operator.ALL_REDUCE)
    if found is None or gpu.scale_up_kind != "pcie":
        return
    peaks = peaks_of(gpu, Operator.ALL_REDUCE, None)
    # Not checked: cards of a bridge beat the slot that the peak is of.
    worlds = fits_by_world(found, lambda part: fit(part, peaks, fixed=LINEAR, checked=False))
    if not worlds:
        notes.append("all_reduce: left out: fewer than two message sizes of every world size")
        return
    notes += [
        f"all_reduce over {ranks}: {note}"
        for ranks, one in worlds.items()
        if one.at_bounds
        for note in notes_of(one)
    ]
    section["pcie_all_reduce"] = {
        "by_world_size": {
            str(ranks): {
                "alpha_us": rounded(one.values["overhead"] / MICRO),
                "gb_per_s": rounded(one.values["bandwidth_efficiency"] * peaks.link / GIGA),
            }
            for ranks, one in worlds.items()
        },
        "residual": {
            "points": sum(one.residuals.points for one in worlds.values()),
            "median_abs_error": rounded(max(one.residuals.median_abs_error for one in worlds.values()), 4),
            "log_sd": rounded(max(one.residuals.log_sd for one in worlds.values()), 4),
        },
    }


def _fill(section: dict[str, Any], base: GpuProfileDocument | None, notes: list[str]) -> None:
    """Rows that were not measured: the catalogue's, or typical ones for what no profile may lack."""
    kept = {} if base is None else _dumped(base)["calibration"]
    for key in _SECTIONS.values():
        if key in _TYPED:
            for dtype, row in kept.get(key, {}).items():
                if dtype not in section.setdefault(key, {}):
                    section[key][dtype] = _kept(row)
                    notes.append(f"{key}.{dtype}: not measured, that of the catalogue")
        elif key not in section and key in kept:
            section[key] = _kept(kept[key])
            notes.append(f"{key}: not measured, that of the catalogue")
    if "pcie_all_reduce" in kept and "pcie_all_reduce" not in section:
        section["pcie_all_reduce"] = _kept(kept["pcie_all_reduce"])
    for operator in (Operator.DECODE_ATTENTION, Operator.PREFILL_ATTENTION):
        key = _SECTIONS[operator]
        if not section.get(key):
            _put(section, operator, Dtype.BF16, _typical(operator))
            notes.append(f"{key}: not measured; typical of data-centre GPUs")
    for key in [key for key in _TYPED if key in section and not section[key]]:
        del section[key]


def _kept(row: Row) -> Row:
    residual = row["residual"]
    note = f"{_KEPT} {residual.get('note', '')}".strip()
    return {
        **row,
        "residual": {"points": 0, "log_sd": max(residual["log_sd"], FALLBACK_LOG_SD), "note": note},
    }


def _typical(operator: Operator) -> Row:
    row: Row = {}
    for c in FORMS[operator].coefficients:
        key, unit = _UNITS.get(c.name, (c.name, 1.0))
        row[key] = rounded(c.typical / unit)
    return {**row, "residual": {"points": 0, "log_sd": UNKNOWN_LOG_SD, "note": _UNMEASURED}}


# --------------------------------------------------------------------------------------------
# Text


def _dumped(document: GpuProfileDocument) -> dict[str, Any]:
    return document.model_dump(mode="json", exclude_none=True, exclude_defaults=True)


def _text(
    name: str,
    facts: DeviceFacts,
    head: Mapping[str, str],
    spec: Mapping[str, Any],
    calibration: Mapping[str, Any],
    base: GpuProfileDocument | None,
) -> str:
    made = f"Measured on {facts.name}." if base is None else f"{base.name} as measured on {facts.name}."
    data: dict[str, Any] = {
        "name": name,
        "vendor": facts.vendor if base is None else base.vendor,
        "architecture": facts.architecture if base is None else base.architecture,
        "note": made if base is None or not base.note else f"{made} {base.note}",
        "sources": dict(head),
        "spec": dict(spec),
        "calibration": dict(calibration),
    }
    return _HEAD + dump_yaml(data)


def _placeholder(facts: DeviceFacts, base: GpuProfileDocument | None) -> dict[str, Any]:
    """A calibration that only serves to read the spec."""
    dtype = "fp16" if base is not None and base.spec.peak_tflops.bf16 is None else "bf16"
    return {
        "status": "estimated",
        "method": "none",
        "date": "2000-01",
        "software": {"planner": "none"},
        "gemm": {dtype: {k: v for k, v in _typical(Operator.GEMM).items() if k != "quantization_efficiency"}},
        "decode_attention": {dtype: _typical(Operator.DECODE_ATTENTION)},
        "prefill_attention": _typical(Operator.PREFILL_ATTENTION),
    }


def _parsed(
    name: str,
    facts: DeviceFacts,
    head: Mapping[str, str],
    spec: Mapping[str, Any],
    calibration: Mapping[str, Any],
    base: GpuProfileDocument | None,
) -> GPU:
    text = _text(name, facts, head, spec, calibration, base)
    return gpu_from_document(parse_document(text, name, GpuProfileDocument).model)


def merged(sets: Sequence[SampleSet]) -> SampleSet:
    """Samples of several files of one device as one set; the facts of the first count.

    Raises
    ------
    SpecError
        If they name several devices.
    """
    names = {s.device for s in sets if s.device}
    if len(names) > 1:
        raise SpecError(f"samples of several devices cannot be fitted together: {', '.join(sorted(names))}")
    tables = dict(sets[0].tables)
    for other in sets[1:]:
        for key, found in other.tables.items():
            tables[key] = found if key not in tables else _joined(tables[key], found)
    return replace(sets[0], tables=tables, device=next(iter(names), ""))


def _joined(a: Samples, b: Samples) -> Samples:
    return Samples(
        operator=a.operator,
        dtype=a.dtype,
        axes={axis: np.concatenate([a.axes[axis], b.axes[axis]]) for axis in a.axes},
        time=np.concatenate([a.time, b.time]),
        spread=np.concatenate([a.spread, b.spread]),
    )
