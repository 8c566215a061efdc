"""Write ``gpu_profiles/*.yaml`` from fitted roofline coefficients and a table of vendor figures.

    python tools/build_gpu_profiles.py gpus.csv [--coefficients tools/data/operator_coefficients.json]
        [--output gpu_profiles]

The coefficients are those that ``fit_operator_tables.py`` fitted to the per-operator tables of
aiconfigurator-core, together with the peaks they are relative to; `gpus.csv` holds the vendors' dense
figures.
Efficiencies are rescaled so that efficiency x peak does not change when the two disagree on the peak.
GPUs without tables get the coefficients of their neighbours and say so. The output depends on nothing
but the two files, the tables below, and ``gpu_devices.py`` beside this file.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpu_devices import DEVICES, FAR_LOG_SD, INFERENCEX, OOM, SMI, Device, Estimate

GB_PER_S_TO_GBPS = 8
EFFICIENCY_LIMIT = 1.02
BORROWED_LOG_SD = 0.2
PCIE_LOG_SD = 0.7
"""Hosts differ in what lies between their cards: public serving rows of four and eight cards of L40S, RTX
A6000 and RTX 4090 attain two to ten times the bandwidth of these tables for large messages."""
PCIE4_GB_PER_S, PCIE5_GB_PER_S = 31.5, 63.0  # in the table of vendor figures
DATE = "2026-11"
COEFFICIENTS = Path(__file__).parent / "data" / "operator_coefficients.json"

FITTED_METHOD = (
    "Least squares on log residuals over the per-operator silicon tables of aiconfigurator-core (vLLM "
    "kernels; fp8_block from the engine whose table is not bound by host launches), with bounds on every "
    "coefficient; never on end-to-end measurements."
)
SOFTWARE = {"aiconfigurator-core": "0.12.0 (Apache-2.0)"}

OVERHEAD_FLOOR, PER_RANK_FLOOR = 2.001e-7, 3.4e-9  # bounds of the fit [s]
AT_FLOOR = "The fixed time is at the fit's lower bound of 0.2 us: the table shows none."
AT_CEILING = (
    "The compute efficiency is at the fit's upper bound of 1: the time that grows with the area of the "
    "causal mask is split between it and the softmax term, and only their sum is determined."
)
RANKS_FLAT = "The time per rank is at the fit's lower bound: world sizes of the table show no growth."
COLD_ONLY = (
    "Fitted to caches above three times the last-level cache and to tiny ones: those between were measured "
    "in it, at up to twice the memory's bandwidth."
)
NO_TRAFFIC = "The table shows no time of moving activations; it is counted at the full bandwidth."
NO_PASS = "The table shows no time of quantising activations; it is counted at the full bandwidth."
BEYOND = "The table goes beyond the memory's bandwidth: part of it was measured in the last-level cache."
ALONE = {
    "sglang": "vLLM's table is bound by host launches, or there is none: that of SGLang's kernel.",
    "trtllm": "vLLM's table is bound by host launches and SGLang has none: that of TensorRT-LLM's kernel.",
}
NO_TABLE = {
    "sglang": "There is no table of vLLM's kernel: that of SGLang's.",
    "trtllm": "There is no table of vLLM's kernel nor of SGLang's: that of TensorRT-LLM's.",
}
LATENT_CEILING = (
    "The compute efficiency is at the fit's upper bound of the 16-bit peak. The table goes beyond that "
    "peak: long contexts are faster than this says."
)
WORST_FIT = 0.25
"""Median error above which a form does not describe a kernel: its coefficients are not used."""

PCIE_FITTED = (
    "One latency and one bandwidth per world size, fitted on the same package's all-reduce tables of "
    "{name}: over PCIe the ring law does not hold. Hosts differ in what lies between their cards: the spread "
    "is not that of the fit."
)
PCIE_BORROWED = "Those of {name}, which has the same PCIe link; nobody measured them here."
PCIE_SCALED = (
    "Those of {name}, with bandwidths scaled by {factor:g}, the ratio of the PCIe links; nobody measured "
    "them here."
)


# --------------------------------------------------------------------------------------------
# Coefficients


@dataclass(frozen=True)
class Row:
    """Coefficients of one operator in the keys of a profile, with their residual and a note."""

    values: dict[str, float]
    residual: dict[str, float]
    note: str = ""

    def borrowed(self, note: str, log_sd: float = BORROWED_LOG_SD, **values: float) -> Row:
        """The same coefficients for another GPU or format, with no points of its own."""
        spread = max(log_sd, self.residual["log_sd"])
        return Row({**self.values, **values}, {"points": 0, "log_sd": spread}, note)


@dataclass(frozen=True)
class Coefficients:
    """Everything below ``calibration:`` that holds numbers."""

    gemm: dict[str, Row]
    decode_attention: dict[str, Row]
    prefill_attention: Row
    all_reduce: Row | None
    moe: dict[str, Row] = field(default_factory=dict)
    mla_decode: dict[str, Row] = field(default_factory=dict)
    mla_prefill: Row | None = None


@dataclass(frozen=True)
class Scale:
    """Factors from the fit's peaks to the profile's: compute by format, memory, link."""

    compute: Mapping[str, float]
    memory: float
    link: float


_PEAK_OF = {"bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "bf16", "int4": "bf16"}
"""Whose peak a format's compute efficiency is a share of; weight-only formats are multiplied in 16 bits."""
_MICRO, _PICO = 1e6, 1e12
_TIMES = {
    "overhead": ("overhead_us", _MICRO),
    "per_rank": ("per_rank_us", _MICRO),
    "cta_time": ("cta_time_us", _MICRO),
    "block_time": ("block_time_us", _MICRO),
    "sqrt_time": ("sqrt_time_us", _MICRO),
    "softmax_time": ("softmax_time_ps", _PICO),
}
"""Keys of a profile and their units, by coefficient [s]."""
_ORDER = {
    "decode_attention": ("memory_efficiency", "overhead", "cta_time"),
    "mla_decode": ("memory_efficiency", "compute_efficiency", "overhead", "norm_exponent", "block_time"),
    "all_reduce": ("overhead", "per_rank", "bandwidth_efficiency", "sqrt_time"),
}
"""Order of coefficients in a profile, where it is not that of the fit."""
_SHARES = {"quantization_efficiency": NO_PASS, "activation_efficiency": NO_TRAFFIC}
"""Shares of the bandwidth that a table need not show, and what is said where it does not."""

_MOE_BORROWED = {
    ("h100_sxm", "fp8"): ("fp8_block", "The fit of per-tensor FP8 is degenerate; those of FP8 in blocks."),
    ("h200_sxm", "fp8"): ("fp8_block", "The fit of per-tensor FP8 is degenerate; those of FP8 in blocks."),
    ("l40s", "mxfp4"): ("int4", "The fit of MXFP4 is not to be relied on; those of INT4 weights."),
}
"""Fits that are not used, by system and format, and the format whose row stands in."""

_MOE_LAUNCH_BOUND = {
    (system, "mxfp4"): (
        "moe.mxfp4@sglang",
        "The fixed time of vLLM's table is bound by host launches: 63 us on H100 and H200 alike, half as "
        "much again as of other formats. That of SGLang's table of the same kernels.",
    )
    for system in ("h100_sxm", "h200_sxm")
}
"""Rows whose fixed time is that of another table, by system and format."""


def _row(operator: str, fit: Mapping[str, Any], scale: Scale, peak: str = "bf16") -> Row:
    """A fit in the keys of a profile, relative to the profile's peaks."""
    factors = {
        "compute_efficiency": scale.compute.get(peak, 1.0),
        "memory_efficiency": scale.memory,
        "quantization_efficiency": scale.memory,
        "activation_efficiency": scale.memory,
        "bandwidth_efficiency": scale.link,
    }
    raw: Mapping[str, float] = fit["values"]
    values, notes = {}, []
    for name in _ORDER.get(operator, tuple(raw)):
        key, factor = _TIMES.get(name, (name, factors.get(name, 1.0)))
        values[key] = raw[name] * factor
        if name in _SHARES and raw[name] >= 1.0:
            values[key] = 1.0
            notes.append(_SHARES[name])
    if values.get("memory_efficiency", 0.0) > 1.0:
        values["memory_efficiency"] = 1.0
        notes.append(BEYOND)
    if operator == "gemm" and raw["overhead"] <= OVERHEAD_FLOOR:
        notes.append(AT_FLOOR)
    if operator == "all_reduce" and raw["per_rank"] <= PER_RANK_FLOOR:
        notes.append(RANKS_FLAT)
    if operator == "prefill_attention" and raw["compute_efficiency"] >= 1.0:
        notes.append(AT_CEILING)
    return Row(values, dict(fit["residual"]), " ".join(notes))


def _engine_note(row: Row, fit: Mapping[str, Any], notes: Mapping[str, str]) -> Row:
    note = notes.get(fit["table"].split()[0], "")
    return replace(row, note=" ".join(text for text in (note, row.note) if text))


def _formats_of(operator: str, fits: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Fits of an operator by format."""
    found = {name.partition(".")[2]: fit for name, fit in fits.items() if name.startswith(f"{operator}.")}
    return {dtype: fit for dtype, fit in found.items() if "@" not in dtype}


def _gemm(fits: Mapping[str, Any], scale: Scale) -> dict[str, Row]:
    return {
        dtype: _engine_note(_row("gemm", fit, scale, _PEAK_OF[dtype]), fit, ALONE)
        for dtype, fit in _formats_of("gemm", fits).items()
    }


def _decode(fits: Mapping[str, Any], scale: Scale, note: str) -> dict[str, Row]:
    rows = {
        dtype: _row("decode_attention", fit, scale)
        for dtype, fit in _formats_of("decode_attention", fits).items()
    }
    return {dtype: replace(row, note=note) if note else row for dtype, row in rows.items()}


def _moe(name: str, fits: Mapping[str, Any], scale: Scale) -> dict[str, Row]:
    rows = {}
    for dtype, fit in _formats_of("moe", fits).items():
        if (name, dtype) in _MOE_BORROWED:
            continue
        row = _row("moe", fit, scale, _PEAK_OF[dtype])
        row = _engine_note(row, fit, NO_TABLE)
        other, note = _MOE_LAUNCH_BOUND.get((name, dtype), ("", ""))
        if other in fits:
            overhead = fits[other]["values"]["overhead"] * _MICRO
            row = Row({**row.values, "overhead_us": overhead}, row.residual, note)
        rows[dtype] = row
    for (owner, dtype), (stand_in, note) in _MOE_BORROWED.items():
        if owner == name:
            rows[dtype] = rows[stand_in].borrowed(note)
    return {dtype: rows[dtype] for dtype in _PEAK_OF if dtype in rows}


def _latent(fits: Mapping[str, Any], scale: Scale) -> tuple[dict[str, Row], Row | None]:
    """Rows of TensorRT-LLM's kernels, which have a table on every GPU that has any."""

    def usable(fit: Mapping[str, Any]) -> bool:
        return bool(fit["residual"]["median_abs_error"] <= WORST_FIT)

    decode = {
        dtype: replace(
            _row("mla_decode", fit, scale),
            note=LATENT_CEILING if dtype == "fp8" and fit["values"]["compute_efficiency"] >= 1.0 else "",
        )
        for dtype, fit in _formats_of("mla_decode", fits).items()
        if usable(fit)
    }
    prefill = fits.get("mla_prefill")
    return decode, _row("mla_prefill", prefill, scale) if prefill and usable(prefill) else None


def fitted(name: str, system: Mapping[str, Any], scale: Scale, *, pcie: bool = False) -> Coefficients:
    """Coefficients of a system that has tables, relative to the profile's peaks."""
    fits: Mapping[str, Any] = system["fits"]
    latent_decode, latent_prefill = _latent(fits, scale)
    return Coefficients(
        gemm=_gemm(fits, scale),
        decode_attention=_decode(fits, scale, COLD_ONLY if pcie else ""),
        prefill_attention=_row("prefill_attention", fits["prefill_attention"], scale),
        all_reduce=None if pcie else _row("all_reduce", fits["all_reduce"], scale),
        moe=_moe(name, fits, scale),
        mla_decode=latent_decode,
        mla_prefill=latent_prefill,
    )


def _geometric_mean(rows: Iterable[Row], note: str, log_sd: float) -> Row:
    rows = list(rows)
    keys = [key for key in rows[0].values if all(key in row.values for row in rows)]
    mean = {key: math.prod(row.values[key] for row in rows) ** (1 / len(rows)) for key in keys}
    spread = max(log_sd, *(row.residual["log_sd"] for row in rows))
    return Row(mean, {"points": 0, "log_sd": spread}, note)


def _formats(row: Mapping[str, str]) -> tuple[str, ...]:
    """Formats of weights that a GPU multiplies, 16 bits first: bf16, or fp16 where there is no bf16."""
    sixteen = "bf16" if row["bf16_tflops"] else "fp16"
    eight = ("fp8", "fp8_block") if row["fp8_tflops"] else ()
    # Other vendors have MXFP4, of which there are no tables.
    four = ("nvfp4",) if row["fp4_tflops"] and row["vendor"] == "NVIDIA" else ()
    return (sixteen, *eight, *four)


_OF_MEMORY = ("memory_efficiency", "quantization_efficiency", "activation_efficiency")
"""Shares of the memory's bandwidth."""


def estimated(neighbours: Sequence[Coefficients], estimate: Estimate, row: Mapping[str, str]) -> Coefficients:
    """Geometric means over those `neighbours` that have a row, for the formats the GPU of `row` has."""
    sixteen, *narrow = _formats(row)

    def mean(rows: Iterable[Row | None], multiplied: str | None = None) -> Row | None:
        """`multiplied` is the format that the compute efficiency belongs to."""
        known = [r for r in rows if r is not None]
        own = [r for r in known if r.residual["points"]] or known
        if not own:
            return None
        found = _geometric_mean(own, own[0].note if len(own) == 1 else "", estimate.log_sd)
        factors = dict.fromkeys(_OF_MEMORY, estimate.factors.get("memory", 1.0))
        factors["compute_efficiency"] = estimate.factors.get(multiplied, 1.0) if multiplied else 1.0
        return replace(
            found, values={key: value * factors.get(key, 1.0) for key, value in found.values.items()}
        )

    def by_format(
        tables: Sequence[Mapping[str, Row]], formats: Iterable[str], peaks: Mapping[str, str]
    ) -> dict[str, Row]:
        found = {f: mean((table.get(f) for table in tables), peaks.get(f)) for f in formats}
        return {sixteen if f == "bf16" else f: row for f, row in found.items() if row is not None}

    caches = ["bf16", *(f for f in narrow if f == "fp8")]
    prefill = mean((n.prefill_attention for n in neighbours), "bf16")
    assert prefill is not None
    return Coefficients(
        gemm=by_format([n.gemm for n in neighbours], ["bf16", *narrow], _PEAK_OF),
        decode_attention=by_format([n.decode_attention for n in neighbours], caches, {}),
        prefill_attention=prefill,
        all_reduce=mean(n.all_reduce for n in neighbours),
        moe=by_format([n.moe for n in neighbours], ["bf16", *narrow, "mxfp4", "int4"], _PEAK_OF),
        mla_decode=by_format([n.mla_decode for n in neighbours], caches, dict.fromkeys(caches, "bf16")),
        mla_prefill=mean((n.mla_prefill for n in neighbours), "bf16"),
    )


# --------------------------------------------------------------------------------------------
# Text


def number(value: float) -> str:
    """At most five significant digits, no trailing zeros; whole numbers without a point."""
    return f"{value:.5g}" if abs(value) < 1e5 else f"{value:.0f}"


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def figure(value: float, source: str, *, verified: bool = True, note: str = "") -> str:
    """A figure of the spec as one line."""
    parts = [f"value: {number(value)}", f"source: {source}"]
    if not verified:
        parts.append("unverified: true")
    if note:
        parts.append(f"note: {quoted(note)}")
    return "{" + ", ".join(parts) + "}"


def _row_lines(row: Row, indent: str) -> list[str]:
    lines = [f"{indent}{key}: {number(value)}" for key, value in row.values.items()]
    residual = [f"{key}: {number(value)}" for key, value in row.residual.items()]
    if row.note:
        residual.append(f"note: {quoted(row.note)}")
    return [*lines, f"{indent}residual: {{{', '.join(residual)}}}"]


def spec_lines(device: Device, row: Mapping[str, str]) -> list[str]:
    """The ``spec:`` section."""

    def given(column: str, note: str = "", *, shared: bool = True) -> str:
        """The CSV's figure; `shared` ones are those of all parts of a package."""
        source = "spec" if column in device.trusted else "datasheet"
        if column in device.cross_read:
            source = "inferencex"
        value = float(row[column]) / (device.parts if shared else 1)
        return figure(value, source, verified=source != "datasheet", note=device.notes.get(note, ""))

    columns = {"bf16": "bf16_tflops", "fp16": "fp16_tflops", "fp8": "fp8_tflops", "int8": "int8_tops"}
    columns["fp4"] = "fp4_tflops"
    lines = ["# The vendor's figures: dense, one direction.", "spec:", "  peak_tflops:"]
    lines += [f"    {key}: {given(column, key)}" for key, column in columns.items() if row[column]]
    memory = figure(device.memory_gib, "memory", verified=device.memory_verified, note=device.memory_note)
    lines += [f"  hbm_gb_per_s: {given('mem_bw_gbs', 'hbm')}", f"  memory_gib: {memory}"]
    if device.driver_mib is not None:
        shown = figure(device.driver_mib, "driver", verified=device.driver_verified, note=device.driver_note)
        lines.append(f"  driver_memory_mib: {shown}")
    host = float(row["pcie_gbs_per_dir"]) if device.host_gb_per_s is None else device.host_gb_per_s
    network = float(row["default_nic_gbs_per_gpu"]) * GB_PER_S_TO_GBPS
    return [
        *lines,
        f"  l2_mb: {given('l2_mb', 'l2')}",
        f"  sm_count: {given('sm_or_cu', 'sm')}",
        "  scale_up:",
        f"    kind: {device.scale_up_kind}",
        f"    gb_per_s: {given('scaleup_gbs_per_dir', 'link')}",
        f"    domain: {_domain(device, given)}",
        "  host_gb_per_s: "
        + figure(
            host / device.parts, "host", verified=device.host_verified, note=device.notes.get("host", "")
        ),
        "  network_gbps: "
        + figure(
            network / device.parts,
            "network",
            verified=device.network_verified,
            note=device.notes.get("network", ""),
        ),
        f"  power_w: {given('tdp_w', 'power')}",
        "  node_size: " + _node_size(device, row, given),
    ]


def _domain(device: Device, given: Callable[..., str]) -> str:
    if device.scale_up_domain is None:
        return given("scaleup_domain", "domain", shared=False)
    return figure(device.scale_up_domain, "node", note=device.notes.get("domain", ""))


def _node_size(device: Device, row: Mapping[str, str], given: Callable[..., str]) -> str:
    if device.parts == 1:
        return given("gpus_per_node")
    return figure(int(row["gpus_per_node"]) * device.parts, "node", note=f"{row['gpus_per_node']} packages.")


def calibration_lines(
    device: Device,
    row: Mapping[str, str],
    coefficients: Coefficients,
    pcie: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    """The ``calibration:`` section."""
    reach = device.scale_up_domain or int(row["scaleup_domain"])
    lines = [
        "# How much of the figures above kernels reach; efficiencies are shares of them.",
        "calibration:",
        f"  status: {'fitted' if device.estimate is None else 'estimated'}",
        f"  method: {quoted(FITTED_METHOD if device.estimate is None else device.estimate.method)}",
        f"  date: {quoted(DATE)}",
        "  software:",
        *(f"    {name}: {quoted(version)}" for name, version in SOFTWARE.items()),
        "  gemm:",
    ]
    for name, found in coefficients.gemm.items():
        lines += [f"    {name}:", *_row_lines(found, " " * 6)]
    lines.append("  decode_attention:")
    for name, found in coefficients.decode_attention.items():
        lines += [f"    {name}:", *_row_lines(found, " " * 6)]
    lines += ["  prefill_attention:", *_row_lines(coefficients.prefill_attention, " " * 4)]
    for section, rows in (("moe", coefficients.moe), ("mla_decode", coefficients.mla_decode)):
        if rows:
            lines.append(f"  {section}:")
        for name, found in rows.items():
            lines += [f"    {name}:", *_row_lines(found, " " * 6)]
    if coefficients.mla_prefill is not None:
        lines += ["  mla_prefill:", *_row_lines(coefficients.mla_prefill, " " * 4)]
    if coefficients.all_reduce is not None and device.scale_up_kind != "pcie" and reach > 1:
        lines += ["  all_reduce:", *_row_lines(coefficients.all_reduce, " " * 4)]
    if device.pcie:
        lines += _pcie_lines(device, row, pcie)
    return lines


def _pcie_lines(device: Device, row: Mapping[str, str], pcie: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Rows at the GPU's world sizes: its own, or those of a relative times the ratio of the links."""
    owner, links = (
        device.pcie_of or device.name,
        {"l40s": PCIE4_GB_PER_S, "rtx-pro-6000-server": PCIE5_GB_PER_S},
    )
    factor = float(row["pcie_gbs_per_dir"]) / links[owner]
    found = pcie[owner]
    residual = {"points": 0, "log_sd": PCIE_LOG_SD}
    note = PCIE_BORROWED if factor == 1.0 else PCIE_SCALED
    if device.name == owner:
        note, residual = PCIE_FITTED, {**found["residual"], "log_sd": PCIE_LOG_SD}
    shown = [f"{key}: {number(value)}" for key, value in residual.items()]
    name = {"l40s": "L40S", "rtx-pro-6000-server": "RTX PRO 6000 Server Edition"}[owner]
    return [
        "  pcie_all_reduce:",
        "    by_world_size:",
        *(
            f"      {size}: {{alpha_us: {number(world['alpha'] * _MICRO)}, "
            f"gb_per_s: {number(world['bandwidth'] / 1e9 * factor)}}}"
            for size, world in ((n, found["by_world_size"][str(n)]) for n in device.pcie)
        ),
        f"    residual: {{{', '.join(shown)}, note: {quoted(note.format(name=name, factor=factor))}}}",
    ]


def profile_text(
    device: Device,
    row: Mapping[str, str],
    coefficients: Coefficients,
    pcie: Mapping[str, Mapping[str, Any]],
) -> str:
    """One profile."""
    system = device.system or device.name
    known = {
        "spec": device.spec_source.format(system=system),
        "memory": device.memory_source or OOM,
        "driver": SMI.get(row["vendor"], ""),
        "node": "Size of the usual server: there is no link beyond it",
        "host": device.host_source,
        "network": device.network_source,
        "inferencex": INFERENCEX,
        "datasheet": f"{row['vendor']} datasheet of {row['name']}, as remembered",
    }
    spec = spec_lines(device, row)
    sources = {key: text for key, text in known.items() if any(f"source: {key}" in line for line in spec)}
    lines = [
        "# Written by tools/build_gpu_profiles.py: change that and run it again.",
        f"name: {device.name}",
        f"aliases: [{', '.join(quoted(a) if a.isdigit() else a for a in device.aliases)}]",
        f"vendor: {row['vendor'].lower()}",
        f"architecture: {device.architecture}",
        *([f"note: {quoted(device.note)}"] if device.note else []),
        "sources:",
        *(f"  {key}: {quoted(text)}" for key, text in sources.items()),
        "",
        *spec,
        "",
        *calibration_lines(device, row, coefficients, pcie),
    ]
    return "\n".join(lines) + "\n"


# --------------------------------------------------------------------------------------------
# Command


def scale_of(system: Mapping[str, Any], row: Mapping[str, str]) -> Scale:
    """Fit's peak over the profile's peak, so that their products stay the same."""
    fit = system["peaks"]
    columns = {"bf16": "bf16_tflops", "fp8": "fp8_tflops", "fp4": "fp4_tflops"}
    return Scale(
        compute={
            key: fit[key] / (float(row[column]) * 1e12)
            for key, column in columns.items()
            if row[column] and key in fit
        },
        memory=fit["bandwidth"] / (float(row["mem_bw_gbs"]) * 1e9),
        link=fit["link"] / (float(row["scaleup_gbs_per_dir"]) * 1e9),
    )


def all_coefficients(
    systems: Mapping[str, Any], rows: Mapping[str, Mapping[str, str]]
) -> dict[str, Coefficients]:
    """Coefficients of every device by its name: the fitted ones, then those estimated from them."""
    found = {
        d.name: fitted(
            d.system, systems[d.system], scale_of(systems[d.system], rows[d.row]), pcie=bool(d.pcie)
        )
        for d in DEVICES
        if d.system
    }
    found = _with_latents(found)
    for device in DEVICES:
        if device.estimate is not None:
            neighbours = [found[name] for name in device.estimate.of]
            found[device.name] = estimated(neighbours, device.estimate, rows[device.row])
    return found


def _with_latents(found: Mapping[str, Coefficients]) -> dict[str, Coefficients]:
    """Latent attention for GPUs without tables of it: that of Hopper, whose kernels are the closest."""
    hopper = [found[name] for name in ("h100-sxm", "h200-sxm")]
    note = "No table of this GPU that the form describes: the mean of H100 and H200."
    lent = {
        dtype: _geometric_mean([h.mla_decode[dtype] for h in hopper], note, FAR_LOG_SD)
        for dtype in hopper[0].mla_decode
    }
    prompts = _geometric_mean([h.mla_prefill for h in hopper if h.mla_prefill], note, FAR_LOG_SD)
    return {
        name: replace(
            own,
            mla_decode={
                d: own.mla_decode.get(d, row) for d, row in lent.items() if d in own.decode_attention
            },
            mla_prefill=own.mla_prefill or prompts,
        )
        for name, own in found.items()
    }


def profiles(data: Mapping[str, Any], rows: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Text of every profile by its name."""
    coefficients = all_coefficients(data["systems"], rows)
    pcie = pcie_rows(data)
    return {d.name: profile_text(d, rows[d.row], coefficients[d.name], pcie) for d in DEVICES}


def pcie_rows(data: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """All-reduces over PCIe by the profile that has tables of them."""
    systems = data["systems"]
    own = {d.name: systems[d.system].get("pcie_all_reduce") for d in DEVICES if d.system}
    return {name: rows for name, rows in own.items() if rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("gpus", type=Path, help="CSV file of vendor figures")
    parser.add_argument("--coefficients", type=Path, default=COEFFICIENTS, help="JSON file of fits")
    parser.add_argument("--output", type=Path, default=Path("gpu_profiles"), help="folder to write to")
    arguments = parser.parse_args()
    data = json.loads(arguments.coefficients.read_text(encoding="utf-8"))
    with arguments.gpus.open(encoding="utf-8", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    for name, text in profiles(data, rows).items():
        (arguments.output / f"{name}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
