"""Write ``gpu_profiles/*.yaml`` from fitted roofline coefficients and a table of vendor figures.

    python tools/build_gpu_profiles.py coefficients.json gpus.csv [--output gpu_profiles]

`coefficients.json` holds, per system, coefficients fitted on the per-operator tables of
aiconfigurator-core together with the peaks they are relative to; `gpus.csv` the vendors' dense figures.
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
DATE = "2026-11"

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
L2_HOT = "The table's smaller caches were measured in L2: the memory efficiency is optimistic."
NO_TRAFFIC = "The table shows no time of moving activations; it is counted at the full bandwidth."
LATENT_CEILING = (
    "The compute efficiency is at the fit's upper bound of the 16-bit peak. The table reaches 1.3 times that "
    "peak: long contexts are faster than this says."
)

L40S_PCIE = (
    "One latency and one bandwidth per world size, fitted on the same package's all-reduce tables of "
    "PCIe-attached L40S: without peer access the ring law does not hold. No residual was recorded, and "
    "public serving rows attain two to ten times the bandwidth: hosts differ."
)
PCIE_AS_L40S = "Those of L40S, which has the same PCIe 4.0 x16 link; nobody measured them here."
PCIE_SCALED = (
    "Those of L40S, with bandwidths scaled by {factor:g}, the ratio of the PCIe links; nobody measured them "
    "here."
)
PCIE4_GB_PER_S = 31.5  # of L40S in the table of vendor figures


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


_FIT_FORMATS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
_PEAK_OF = {"bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "bf16", "int4": "bf16"}
"""Whose peak a format's compute efficiency is a share of; weight-only formats are multiplied in 16 bits."""
_MICRO, _PICO = 1e6, 1e12


def _residual(raw: Mapping[str, float]) -> dict[str, float]:
    return {
        "points": raw["n"],
        "median_abs_error": raw["med"],
        "p90_abs_error": raw["p90"],
        "bias": raw["bias"],
        "log_sd": raw["logstd"],
    }


def _gemm(raw: Mapping[str, float], residual: Mapping[str, float], compute: float, memory: float) -> Row:
    values = {
        "compute_efficiency": raw["ec"] * compute,
        "memory_efficiency": raw["em"] * memory,
        "overhead_us": raw["t0"] * _MICRO,
        "norm_exponent": raw["p"],
    }
    if raw["emq"] < 1e6:  # 16-bit rows carry a huge number for "no such pass"
        values["quantization_efficiency"] = raw["emq"] * memory
    return Row(values, _residual(residual), AT_FLOOR if raw["t0"] <= OVERHEAD_FLOOR else "")


def _decode(raw: Mapping[str, float], residual: Mapping[str, float], memory: float) -> Row:
    values = {
        "memory_efficiency": raw["em"] * memory,
        "overhead_us": raw["t0"] * _MICRO,
        "cta_time_us": raw["tcta"] * _MICRO,
    }
    return Row(values, _residual(residual))


def _prefill(raw: Mapping[str, float], residual: Mapping[str, float], scale: Scale) -> Row:
    values = {
        "compute_efficiency": raw["ec"] * scale.compute["bf16"],
        "memory_efficiency": raw["em"] * scale.memory,
        "overhead_us": raw["t0"] * _MICRO,
        "softmax_time_ps": raw["texp"] * _PICO,
    }
    return Row(values, _residual(residual), AT_CEILING if raw["ec"] >= 1.0 else "")


def _all_reduce(raw: Mapping[str, float], residual: Mapping[str, float], link: float) -> Row:
    values = {
        "overhead_us": raw["t0"] * _MICRO,
        "per_rank_us": raw["tn"] * _MICRO,
        "bandwidth_efficiency": raw["ebw"] * link,
        "sqrt_time_us": raw["tsq"] * _MICRO,
    }
    return Row(values, _residual(residual), RANKS_FLAT if raw["tn"] <= PER_RANK_FLOOR else "")


_MOE_TABLES = {
    "bf16": ("vllm|bfloat16",),
    "fp8": ("vllm|fp8",),
    "fp8_block": ("vllm|fp8_block",),
    "nvfp4": ("vllm|nvfp4",),
    "mxfp4": ("vllm|w4a16_mxfp4",),
    "int4": ("vllm|int4_wo", "sglang|int4_wo"),
}
"""Tables of routed experts by weight format, the preferred one first."""

_MOE_BORROWED = {
    ("h100_sxm", "fp8"): ("fp8_block", "The fit of per-tensor FP8 is degenerate; those of FP8 in blocks."),
    ("h200_sxm", "fp8"): ("fp8_block", "The fit of per-tensor FP8 is degenerate; those of FP8 in blocks."),
    ("l40s", "mxfp4"): ("int4", "The fit of MXFP4 is not to be relied on; those of INT4 weights."),
}
"""Fits that are not used, by system and format, and the format whose row stands in."""


_MOE_LAUNCH_BOUND = {
    (system, "mxfp4"): (
        "sglang|w4a16_mxfp4",
        "The fixed time of vLLM's table is bound by host launches: 63 us on H100 and H200 alike, half as "
        "much again as of other formats. That of SGLang's table of the same kernels.",
    )
    for system in ("h100_sxm", "h200_sxm")
}
"""Rows whose fixed time is that of another table, by system and format."""


def _moe(name: str, system: Mapping[str, Any], scale: Scale) -> dict[str, Row]:
    rows = {}
    for dtype, tables in _MOE_TABLES.items():
        table = next((t for t in tables if t in system["moe"]), None)
        if table is None or (name, dtype) in _MOE_BORROWED:
            continue
        raw = system["moe"][table]
        values = {
            "compute_efficiency": raw["ec"] * scale.compute[_PEAK_OF[dtype]],
            "memory_efficiency": raw["em"] * scale.memory,
            "overhead_us": raw["t0"] * _MICRO,
            "norm_exponent": raw["p"],
            "activation_efficiency": raw["ea"] * scale.memory,
        }
        notes = []
        other, note = _MOE_LAUNCH_BOUND.get((name, dtype), ("", ""))
        if other in system["moe"]:
            values["overhead_us"] = system["moe"][other]["t0"] * _MICRO
            notes.append(note)
        if not table.startswith("vllm|"):
            notes.append("There is no table of vLLM's kernel: that of SGLang's.")
        if values["activation_efficiency"] > EFFICIENCY_LIMIT:
            values["activation_efficiency"] = 1.0
            notes.append(NO_TRAFFIC)
        residual = _residual(system["resid"]["moe_" + table.replace("|", "_")])
        rows[dtype] = Row(values, residual, " ".join(notes))
    for (owner, dtype), (other, note) in _MOE_BORROWED.items():
        if owner == name:
            rows[dtype] = rows[other].borrowed(note)
    return {dtype: rows[dtype] for dtype in _MOE_TABLES if dtype in rows}


_LATENT_RESIDUALS = {
    "h100_sxm": {
        "bfloat16": {"n": 1448, "med": 0.060, "p90": 0.227, "bias": 0.015, "logstd": 0.086},
        "fp8": {"n": 1448, "med": 0.082, "p90": 0.276, "bias": 0.015, "logstd": 0.112},
        "pre": {"n": 880, "med": 0.134, "p90": 0.343, "bias": 0.054, "logstd": 0.146},
    },
    "h200_sxm": {
        "bfloat16": {"n": 1448, "med": 0.074, "p90": 0.244, "bias": 0.021, "logstd": 0.106},
        "fp8": {"n": 1448, "med": 0.073, "p90": 0.271, "bias": 0.018, "logstd": 0.108},
        "pre": {"n": 880, "med": 0.127, "p90": 0.359, "bias": 0.053, "logstd": 0.143},
    },
    "b200_sxm": {
        "bfloat16": {"n": 1448, "med": 0.083, "p90": 0.295, "bias": 0.021, "logstd": 0.120},
        "fp8": {"n": 1448, "med": 0.118, "p90": 0.333, "bias": 0.033, "logstd": 0.191},
        "pre": {"n": 880, "med": 0.151, "p90": 0.413, "bias": 0.074, "logstd": 0.139},
    },
    "gb200": {
        "bfloat16": {"n": 1448, "med": 0.078, "p90": 0.296, "bias": 0.021, "logstd": 0.109},
        "fp8": {"n": 1448, "med": 0.128, "p90": 0.313, "bias": 0.019, "logstd": 0.174},
        "pre": {"n": 880, "med": 0.186, "p90": 0.416, "bias": 0.067, "logstd": 0.192},
    },
}
"""Of latent attention, which the JSON file leaves out: TRT-LLM 1.3.0rc20 tables of the same package against
the fitted forms, both formats of the cache relative to the 16-bit peak."""


def _latent_decode(raw: Mapping[str, float], residual: Mapping[str, float], scale: Scale, note: str) -> Row:
    values = {
        "memory_efficiency": raw["em"] * scale.memory,
        "compute_efficiency": raw["ec"] * scale.compute["bf16"],
        "overhead_us": raw["t0"] * _MICRO,
        "norm_exponent": raw["p"],
        "block_time_us": raw["tb"] * _MICRO,
    }
    return Row(values, _residual(residual), note)


def _latent(name: str, system: Mapping[str, Any], scale: Scale) -> tuple[dict[str, Row], Row | None]:
    """Rows of TRT-LLM's kernels, which have a table on every GPU that has any."""
    if "mla" not in system:
        return {}, None
    raw, residual = system["mla"], _LATENT_RESIDUALS[name]
    decode = {}
    for dtype, key in (("bf16", "bfloat16"), ("fp8", "fp8")):
        row = raw[f"trtllm|dec|{key}"]
        note = LATENT_CEILING if dtype == "fp8" and row["ec"] >= 1.0 else ""
        decode[dtype] = _latent_decode(row, residual[key], scale, note)
    pre = raw["trtllm|pre"]
    values = {
        "compute_efficiency": pre["ec"] * scale.compute["bf16"],
        "memory_efficiency": pre["em"] * scale.memory,
        "overhead_us": pre["t0"] * _MICRO,
        "softmax_time_ps": pre["texp"] * _PICO,
    }
    return decode, Row(values, _residual(residual["pre"]))


def fitted(name: str, system: Mapping[str, Any], scale: Scale, *, pcie: bool = False) -> Coefficients:
    """Coefficients of a system that has tables, relative to the profile's peaks."""
    residual = system["resid"]
    decode = {"bf16": _decode(system["dec_bf16"], residual["dec_bfloat16"], scale.memory)}
    if pcie:  # the one system whose last-level cache holds a good part of the table
        decode["bf16"] = replace(decode["bf16"], note=L2_HOT)
    if "dec_fp8" in system:
        decode["fp8"] = _decode(system["dec_fp8"], residual["dec_fp8"], scale.memory)
    if decode.get("fp8", decode["bf16"]).values["memory_efficiency"] > EFFICIENCY_LIMIT:
        raw = system["dec_fp8"]["em"]
        decode["fp8"] = decode["bf16"].borrowed(
            f"The fit gave {raw:g} of the memory bandwidth: its caches were hot. The bf16 row is used."
        )
    latent_decode, latent_prefill = _latent(name, system, scale)
    return Coefficients(
        gemm={
            _FIT_FORMATS[key]: _gemm(
                raw, residual[f"gemm_{key}"], scale.compute[_PEAK_OF[_FIT_FORMATS[key]]], scale.memory
            )
            for key, raw in system["gemm"].items()
        },
        decode_attention=decode,
        prefill_attention=_prefill(system["pre"], residual["pre"], scale),
        all_reduce=None if pcie else _all_reduce(system["ar_vllm"], residual["ar_vllm"], scale.link),
        moe=_moe(name, system, scale),
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
        factor = estimate.factors.get(multiplied, 1.0) if multiplied else 1.0
        if factor == 1.0:
            return found
        return replace(
            found,
            values={**found.values, "compute_efficiency": found.values["compute_efficiency"] * factor},
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
    pcie: Mapping[str, Mapping[str, float]],
) -> list[str]:
    """The ``calibration:`` section."""
    reach = device.scale_up_domain or int(row["scaleup_domain"])
    link = float(row["pcie_gbs_per_dir"]) / PCIE4_GB_PER_S
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
        lines += _pcie_lines(device, pcie, link)
    return lines


PCIE_LINK_GB_PER_S = 32.0
"""What the efficiencies of the PCIe fit are shares of."""


def _pcie_lines(device: Device, pcie: Mapping[str, Mapping[str, float]], link: float) -> list[str]:
    """Rows of L40S at the GPU's world sizes, their bandwidths times `link`."""
    note = L40S_PCIE if device.system else PCIE_AS_L40S if link == 1.0 else PCIE_SCALED.format(factor=link)
    return [
        "  pcie_all_reduce:",
        "    by_world_size:",
        *(
            f"      {size}: {{alpha_us: {number(pcie[str(size)]['alpha'] * _MICRO)}, "
            f"gb_per_s: {number(pcie[str(size)]['eff'] * PCIE_LINK_GB_PER_S * link)}}}"
            for size in device.pcie
        ),
        f"    residual: {{points: 0, log_sd: {number(PCIE_LOG_SD)}, note: {quoted(note)}}}",
    ]


def profile_text(
    device: Device,
    row: Mapping[str, str],
    coefficients: Coefficients,
    pcie: Mapping[str, Mapping[str, float]],
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
    fit = system["spec"]
    columns = {"bf16": "bf16_tflops", "fp8": "fp8_tflops", "fp4": "fp4_tflops"}
    compute = {key: fit[key] / (float(row[column]) * 1e12) for key, column in columns.items() if row[column]}
    return Scale(
        compute=compute,
        memory=fit["bw"] / (float(row["mem_bw_gbs"]) * 1e9),
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
    note = "There is no table of this GPU: the mean of H100 and H200."
    lent = {
        dtype: _geometric_mean([h.mla_decode[dtype] for h in hopper], note, FAR_LOG_SD)
        for dtype in hopper[0].mla_decode
    }
    prompts = _geometric_mean([h.mla_prefill for h in hopper if h.mla_prefill], note, FAR_LOG_SD)
    return {
        name: own
        if own.mla_decode
        else replace(
            own,
            mla_decode={d: row for d, row in lent.items() if d in own.gemm},
            mla_prefill=prompts,
        )
        for name, own in found.items()
    }


def profiles(data: Mapping[str, Any], rows: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Text of every profile by its name."""
    coefficients = all_coefficients(data["systems"], rows)
    return {
        d.name: profile_text(d, rows[d.row], coefficients[d.name], data["allreduce_pcie_l40s"])
        for d in DEVICES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("coefficients", type=Path, help="JSON file of fitted coefficients")
    parser.add_argument("gpus", type=Path, help="CSV file of vendor figures")
    parser.add_argument("--output", type=Path, default=Path("gpu_profiles"), help="folder to write to")
    arguments = parser.parse_args()
    data = json.loads(arguments.coefficients.read_text(encoding="utf-8"))
    with arguments.gpus.open(encoding="utf-8", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    for name, text in profiles(data, rows).items():
        (arguments.output / f"{name}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
