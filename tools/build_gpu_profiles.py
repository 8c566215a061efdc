"""Write ``gpu_profiles/*.yaml`` from fitted roofline coefficients and a table of vendor figures.

    python tools/build_gpu_profiles.py coefficients.json gpus.csv [--output gpu_profiles]

`coefficients.json` holds, per system, coefficients fitted on the per-operator tables of
aiconfigurator-core together with the peaks they are relative to; `gpus.csv` the vendors' dense figures.
Efficiencies are rescaled so that efficiency x peak does not change when the two disagree on the peak.
GPUs without tables get the coefficients of their neighbours and say so. The output depends on nothing
but the two files and the tables below.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

GB_PER_S_TO_GBPS = 8
EFFICIENCY_LIMIT = 1.02
BORROWED_LOG_SD = 0.2
DATE = "2026-11"

FITTED_METHOD = (
    "Least squares on log residuals over the per-operator silicon tables of aiconfigurator-core (vLLM "
    "kernels; fp8_block from the engine whose table is not bound by host launches), with bounds on every "
    "coefficient; never on end-to-end measurements."
)
SOFTWARE = {"aiconfigurator-core": "0.12.0 (Apache-2.0)"}

AIC = "aiconfigurator-core 0.12.0, systems/{system}.yaml (Apache-2.0)"
INFERENCEX = "SemiAnalysis InferenceX-app, packages/app/src/lib/gpu-specs.ts at 39a9911"
OOM = "total capacity in PyTorch's out-of-memory messages on this GPU; drivers differ by 0.2 %"
PCIE4 = "PCI Express 4.0 x16: 16 GT/s x 16 lanes x 128/130 / 8 bits"
PCIE5 = "PCI Express 5.0 x16: 32 GT/s x 16 lanes x 128/130 / 8 bits"
L40S_PCIE = (
    "One latency and one bandwidth per world size, fitted on the same package's all-reduce tables of "
    "PCIe-attached L40S: without peer access the ring law does not hold. No residual was recorded; the "
    "spread is an estimate."
)

OVERHEAD_FLOOR, PER_RANK_FLOOR = 2.001e-7, 3.4e-9  # bounds of the fit [s]
AT_FLOOR = "The fixed time is at the fit's lower bound of 0.2 us: the table shows none."
AT_CEILING = (
    "The compute efficiency is at the fit's upper bound of 1: the time that grows with the area of the "
    "causal mask is split between it and the softmax term, and only their sum is determined."
)
RANKS_FLAT = "The time per rank is at the fit's lower bound: world sizes of the table show no growth."
L2_HOT = "The table's smaller caches were measured in L2: the memory efficiency is optimistic."


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


@dataclass(frozen=True)
class Scale:
    """Factors from the fit's peaks to the profile's: compute by format, memory, link."""

    compute: Mapping[str, float]
    memory: float
    link: float


_FORMATS = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
_PEAK_OF = {"bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4"}
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


def fitted(system: Mapping[str, Any], scale: Scale, *, pcie: bool = False) -> Coefficients:
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
    return Coefficients(
        gemm={
            _FORMATS[name]: _gemm(
                raw, residual[f"gemm_{name}"], scale.compute[_PEAK_OF[_FORMATS[name]]], scale.memory
            )
            for name, raw in system["gemm"].items()
        },
        decode_attention=decode,
        prefill_attention=_prefill(system["pre"], residual["pre"], scale),
        all_reduce=None if pcie else _all_reduce(system["ar_vllm"], residual["ar_vllm"], scale.link),
    )


def _geometric_mean(rows: Iterable[Row], note: str, log_sd: float) -> Row:
    rows = list(rows)
    keys = [key for key in rows[0].values if all(key in row.values for row in rows)]
    mean = {key: math.prod(row.values[key] for row in rows) ** (1 / len(rows)) for key in keys}
    spread = max(log_sd, *(row.residual["log_sd"] for row in rows))
    return Row(mean, {"points": 0, "log_sd": spread}, note)


def estimated(
    neighbours: list[Coefficients], formats: Mapping[str, float], prefill: float, log_sd: float
) -> Coefficients:
    """Geometric mean of `neighbours`.

    `formats` gives the weight formats to keep and a factor on the compute efficiency of each, `prefill`
    that of attention.
    """

    def mean(rows: list[Row], compute: float = 1.0) -> Row:
        row = _geometric_mean(rows, rows[0].note if len(rows) == 1 else "", log_sd)
        if compute != 1.0:
            row = replace(
                row,
                values={**row.values, "compute_efficiency": row.values["compute_efficiency"] * compute},
            )
        return row

    links = [n.all_reduce for n in neighbours if n.all_reduce is not None]
    caches = [f for f in ("bf16", "fp8") if f in formats and all(f in n.decode_attention for n in neighbours)]
    return Coefficients(
        gemm={f: mean([n.gemm[f] for n in neighbours], factor) for f, factor in formats.items()},
        decode_attention={f: mean([n.decode_attention[f] for n in neighbours]) for f in caches},
        prefill_attention=mean([n.prefill_attention for n in neighbours], prefill),
        all_reduce=mean(links) if len(links) == len(neighbours) else None,
    )


# --------------------------------------------------------------------------------------------
# Devices


@dataclass(frozen=True)
class Device:
    """What the two input files do not say about a GPU.

    `trusted` names the columns whose figures were read in `spec_source`, `cross_read` those read in the
    InferenceX table; the others are the vendor's as remembered, and flagged.
    """

    name: str
    row: str
    aliases: tuple[str, ...]
    architecture: str
    memory_gib: float
    memory_note: str
    spec_source: str
    trusted: frozenset[str]
    scale_up_kind: str
    host_source: str
    network_source: str
    system: str = ""
    memory_source: str = OOM
    memory_verified: bool = True
    scale_up_domain: int | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    network_verified: bool = True
    pcie: str = ""
    status: str = "fitted"
    method: str = FITTED_METHOD
    cross_read: frozenset[str] = frozenset()


_AIC_COLUMNS = frozenset(
    {"bf16_tflops", "fp16_tflops", "fp8_tflops", "int8_tops", "fp4_tflops", "mem_bw_gbs", "tdp_w"}
    | {"scaleup_gbs_per_dir", "gpus_per_node"}
)
_NIC_400 = "one 400 Gbit/s NIC per GPU; " + INFERENCEX
_PEAK_NOTE = "The vendor prints twice this figure, with sparsity."

DEVICES = (
    Device(
        name="h100-sxm",
        row="H100-SXM5",
        aliases=("h100", "h100-sxm5", "h100-80gb", "h100-sxm-80gb", "h100_sxm"),
        architecture="hopper",
        system="h100_sxm",
        cross_read=frozenset({"scaleup_domain"}),
        memory_gib=79.19,
        memory_note="nvidia-smi shows 81,559 MiB.",
        memory_source="vLLM's own memory report on this GPU (llm-d-planner, accuracy report v0.19.0)",
        spec_source=AIC,
        trusted=_AIC_COLUMNS,
        scale_up_kind="nvlink",
        host_source=PCIE5,
        network_source=_NIC_400,
        notes={"bf16": _PEAK_NOTE, "fp8": _PEAK_NOTE},
    ),
    Device(
        name="h200-sxm",
        row="H200-SXM",
        aliases=("h200", "h200-sxm5", "h200-141gb", "h200_sxm"),
        architecture="hopper",
        system="h200_sxm",
        cross_read=frozenset({"scaleup_domain"}),
        memory_gib=139.80,
        memory_note="nvidia-smi shows 143,771 MiB.",
        spec_source=AIC,
        trusted=_AIC_COLUMNS,
        scale_up_kind="nvlink",
        host_source=PCIE5,
        network_source=_NIC_400,
        notes={"bf16": _PEAK_NOTE, "fp8": _PEAK_NOTE},
    ),
    Device(
        name="a100-80gb-sxm",
        row="A100-SXM4-80GB",
        aliases=("a100", "a100-80gb", "a100-sxm", "a100-sxm4-80gb", "a100-sxm-80gb", "a100_sxm"),
        architecture="ampere",
        system="a100_sxm",
        memory_gib=79.14,
        memory_note="nvidia-smi shows 81,920 MiB.",
        spec_source=AIC,
        trusted=_AIC_COLUMNS,
        scale_up_kind="nvlink",
        host_source=PCIE4,
        network_source="200 Gbit/s per GPU: Azure ND A100 v4 (1,600 Gbit/s for 8 GPUs)",
    ),
    Device(
        name="l40s",
        row="L40S",
        aliases=("l40s-48gb", "l40s-pcie"),
        architecture="ada",
        system="l40s",
        memory_gib=44.40,
        memory_note="nvidia-smi shows 46,068 MiB.",
        spec_source=AIC,
        trusted=_AIC_COLUMNS,
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE4,
        network_source="AWS g6e.48xlarge: 400 Gbit/s for 8 GPUs",
        notes={"bf16": _PEAK_NOTE, "fp8": _PEAK_NOTE, "domain": "The node; there is no peer-to-peer link."},
        pcie=L40S_PCIE,
    ),
    Device(
        name="b200-sxm",
        row="B200-SXM",
        aliases=("b200", "b200-180gb", "b200_sxm"),
        architecture="blackwell",
        system="b200_sxm",
        cross_read=frozenset({"scaleup_domain", "mem_bw_gbs"}),
        memory_gib=178.35,
        memory_note="nvidia-smi shows 183,359 MiB.",
        spec_source=AIC,
        trusted=_AIC_COLUMNS - {"mem_bw_gbs"},
        scale_up_kind="nvlink",
        host_source=PCIE5,
        network_source=_NIC_400,
        notes={
            "hbm": "aiconfigurator-core uses 7,700; efficiencies are rescaled to this figure.",
            "host": "The device is capable of PCIe 6.0; hosts of the day are not.",
            "network": "Newer systems have 800 Gbit/s.",
        },
    ),
    Device(
        name="gb200",
        row="GB200",
        aliases=("gb200-nvl72", "gb200-186gb"),
        architecture="blackwell",
        system="gb200",
        cross_read=frozenset({"scaleup_domain"}),
        memory_gib=184.31,
        memory_note="nvidia-smi shows 189,471 MiB.",
        spec_source=AIC,
        trusted=_AIC_COLUMNS,
        scale_up_kind="nvlink",
        host_source="NVLink-C2C to Grace, 450 GB/s per direction shared by two GPUs",
        network_source="Azure ND GB200 v6: 400 Gbit/s per GPU",
        network_verified=False,
    ),
    Device(
        name="l4",
        row="L4",
        aliases=("l4-24gb", "l4-pcie"),
        architecture="ada",
        memory_gib=22.03,
        memory_note="nvidia-smi shows 23,034 MiB.",
        spec_source=AIC,
        trusted=_AIC_COLUMNS,
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE4,
        network_source="AWS g6.xlarge: up to 10 Gbit/s for one GPU; 12.5 per GPU on 8-GPU instances",
        notes={
            "bf16": _PEAK_NOTE + " Power-capped at 72 W: sustained products stay far below it.",
            "fp8": _PEAK_NOTE,
            "domain": "The node; there is no peer-to-peer link.",
        },
        pcie="Those of L40S, which has the same PCIe 4.0 x16 link; nobody measured them here.",
        status="estimated",
        method=(
            "Dimensionless efficiencies and fixed times of L40S, of the same architecture. Compute "
            "efficiencies are multiplied by 0.78, the geometric mean of 1 (no power limit) and 0.61 "
            "(power per peak FLOP/s against L40S: 72 W / 121 TFLOP/s over 350 W / 362 TFLOP/s): ours, to "
            "be replaced by `planner profile` on the device."
        ),
    ),
    Device(
        name="a10g",
        row="A10G",
        aliases=("a10g-24gb", "a10g-pcie"),
        architecture="ampere",
        memory_gib=22.06,
        memory_note="nvidia-smi shows 23,028 MiB.",
        memory_verified=False,
        spec_source="NVIDIA A10G datasheet",
        trusted=frozenset(),
        scale_up_kind="pcie",
        scale_up_domain=8,
        host_source=PCIE4,
        network_source="AWS g5.xlarge: up to 10 Gbit/s for one GPU; 12.5 per GPU on 8-GPU instances",
        notes={
            "bf16": "Half the tensor peak of the A10.",
            "domain": "The node; there is no peer-to-peer link.",
        },
        pcie="Those of L40S, which has the same PCIe 4.0 x16 link; nobody measured them here.",
        status="estimated",
        method=(
            "Geometric mean of the dimensionless efficiencies and fixed times of A100 (same architecture) "
            "and L40S (same class of board); to be replaced by `planner profile` on the device."
        ),
    ),
    Device(
        name="mi300x",
        row="MI300X",
        aliases=("mi300x-192gb", "mi300x-oam"),
        architecture="cdna3",
        memory_gib=191.69,
        memory_note="Some driver versions show 191.98.",
        spec_source=INFERENCEX,
        trusted=frozenset(
            {"bf16_tflops", "fp16_tflops", "fp8_tflops", "mem_bw_gbs", "scaleup_gbs_per_dir"}
            | {"scaleup_domain", "gpus_per_node"}
        ),
        scale_up_kind="infinity-fabric",
        host_source=PCIE5,
        network_source=_NIC_400,
        notes={
            "l2": "256 MB of Infinity Cache come on top.",
            "link": "To all seven peers; a single peer gets 64 GB/s.",
        },
        status="estimated",
        method=(
            "Geometric mean of the dimensionless efficiencies and fixed times of H100 and H200. Compute "
            "efficiencies are multiplied by the ratio of matrix throughput to peak that one public "
            "benchmark found for MI300X (620 of 1,307 TFLOP/s in BF16, 990 of 2,615 in FP8) over what it "
            "found for H100 (720 of 989, 1,280 of 1,979): SemiAnalysis, 'MI300X vs H100 vs H200 Benchmark "
            "Part 1: Training', 2024-12-22. To be replaced by `planner profile` on the device."
        ),
    ),
)

L4_COMPUTE = math.sqrt((72 / 121) / (350 / 362))
MI300X_BF16 = (620 / 1307.4) / (720 / 989.4)
MI300X_FP8 = (990 / 2614.9) / (1280 / 1978.9)


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

    def given(column: str, note: str = "") -> str:
        source = "spec" if column in device.trusted else "datasheet"
        if column in device.cross_read:
            source = "inferencex"
        note = device.notes.get(note, "")
        return figure(float(row[column]), source, verified=source != "datasheet", note=note)

    columns = {"bf16": "bf16_tflops", "fp16": "fp16_tflops", "fp8": "fp8_tflops", "int8": "int8_tops"}
    columns["fp4"] = "fp4_tflops"
    domain = device.scale_up_domain
    lines = ["# The vendor's figures: dense, one direction.", "spec:", "  peak_tflops:"]
    lines += [f"    {key}: {given(column, key)}" for key, column in columns.items() if row[column]]
    network = float(row["default_nic_gbs_per_gpu"]) * GB_PER_S_TO_GBPS
    return [
        *lines,
        f"  hbm_gb_per_s: {given('mem_bw_gbs', 'hbm')}",
        "  memory_gib: "
        + figure(device.memory_gib, "memory", verified=device.memory_verified, note=device.memory_note),
        f"  l2_mb: {given('l2_mb', 'l2')}",
        f"  sm_count: {given('sm_or_cu')}",
        "  scale_up:",
        f"    kind: {device.scale_up_kind}",
        f"    gb_per_s: {given('scaleup_gbs_per_dir', 'link')}",
        "    domain: "
        + (
            given("scaleup_domain")
            if domain is None
            else figure(domain, "spec", note=device.notes.get("domain", ""))
        ),
        "  host_gb_per_s: "
        + figure(float(row["pcie_gbs_per_dir"]), "host", note=device.notes.get("host", "")),
        "  network_gbps: "
        + figure(network, "network", verified=device.network_verified, note=device.notes.get("network", "")),
        f"  power_w: {given('tdp_w')}",
        f"  node_size: {given('gpus_per_node')}",
    ]


def calibration_lines(
    device: Device, coefficients: Coefficients, pcie: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """The ``calibration:`` section."""
    lines = [
        "# How much of the figures above kernels reach; efficiencies are shares of them.",
        "calibration:",
        f"  status: {device.status}",
        f"  method: {quoted(device.method)}",
        f"  date: {quoted(DATE)}",
        "  software:",
        *(f"    {name}: {quoted(version)}" for name, version in SOFTWARE.items()),
        "  gemm:",
    ]
    for name, row in coefficients.gemm.items():
        lines += [f"    {name}:", *_row_lines(row, " " * 6)]
    lines.append("  decode_attention:")
    for name, row in coefficients.decode_attention.items():
        lines += [f"    {name}:", *_row_lines(row, " " * 6)]
    lines += ["  prefill_attention:", *_row_lines(coefficients.prefill_attention, " " * 4)]
    if coefficients.all_reduce is not None:
        lines += ["  all_reduce:", *_row_lines(coefficients.all_reduce, " " * 4)]
    if device.pcie:
        lines += _pcie_lines(device, pcie)
    return lines


PCIE_LINK_GB_PER_S = 32.0
"""What the efficiencies of the PCIe fit are shares of."""


def _pcie_lines(device: Device, pcie: Mapping[str, Mapping[str, float]]) -> list[str]:
    spread = BORROWED_LOG_SD if device.system else 0.3
    return [
        "  pcie_all_reduce:",
        "    by_world_size:",
        *(
            f"      {size}: {{alpha_us: {number(c['alpha'] * _MICRO)}, "
            f"gb_per_s: {number(c['eff'] * PCIE_LINK_GB_PER_S)}}}"
            for size, c in sorted(pcie.items(), key=lambda item: int(item[0]))
        ),
        f"    residual: {{points: 0, log_sd: {number(spread)}, note: {quoted(device.pcie)}}}",
    ]


def profile_text(
    device: Device,
    row: Mapping[str, str],
    coefficients: Coefficients,
    pcie: Mapping[str, Mapping[str, float]],
) -> str:
    """One profile."""
    system = device.system or device.name
    sources = {
        "spec": device.spec_source.format(system=system),
        "memory": device.memory_source,
        "host": device.host_source,
        "network": device.network_source,
    }
    spec = spec_lines(device, row)
    if any("source: inferencex" in line for line in spec):
        sources["inferencex"] = INFERENCEX
    if any("source: datasheet" in line for line in spec):
        sources["datasheet"] = f"{row['vendor']} datasheet of {row['name']}, as remembered"
    lines = [
        "# Written by tools/build_gpu_profiles.py: change that and run it again.",
        f"name: {device.name}",
        f"aliases: [{', '.join(device.aliases)}]",
        f"vendor: {row['vendor'].lower()}",
        f"architecture: {device.architecture}",
        "sources:",
        *(f"  {key}: {quoted(text)}" for key, text in sources.items()),
        "",
        *spec,
        "",
        *calibration_lines(device, coefficients, pcie),
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
        d.name: fitted(systems[d.system], scale_of(systems[d.system], rows[d.row]), pcie=bool(d.pcie))
        for d in DEVICES
        if d.system
    }
    h100, h200, a100, l40s = (found[n] for n in ("h100-sxm", "h200-sxm", "a100-80gb-sxm", "l40s"))
    found["l4"] = estimated([l40s], {"bf16": L4_COMPUTE, "fp8": L4_COMPUTE}, L4_COMPUTE, 0.3)
    found["a10g"] = estimated([a100, l40s], {"bf16": 1.0}, 1.0, 0.25)
    found["mi300x"] = estimated([h100, h200], {"bf16": MI300X_BF16, "fp8": MI300X_FP8}, MI300X_BF16, 0.3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("coefficients", type=Path, help="JSON file of fitted coefficients")
    parser.add_argument("gpus", type=Path, help="CSV file of vendor figures")
    parser.add_argument("--output", type=Path, default=Path("gpu_profiles"), help="folder to write to")
    arguments = parser.parse_args()
    data = json.loads(arguments.coefficients.read_text(encoding="utf-8"))
    with arguments.gpus.open(encoding="utf-8", newline="") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    coefficients = all_coefficients(data["systems"], rows)
    for device in DEVICES:
        text = profile_text(device, rows[device.row], coefficients[device.name], data["allreduce_pcie_l40s"])
        (arguments.output / f"{device.name}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
