"""The file of one GPU: the vendor's figures, and apart from them how much of each kernels reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from planner.documents.schema_base import DocumentModel, NonNegative, Positive, PositiveInt, Text
from planner.documents.source import load_document
from planner.documents.sourced import Sourced
from planner.documents.tree import Tree
from planner.errors import Problem
from planner.roofline import EFFICIENCY_LIMIT
from planner.specs import (
    GPU,
    AllReduceCoefficients,
    Calibration,
    CalibrationStatus,
    DecodeAttentionCoefficients,
    Dtype,
    ElementwiseCoefficients,
    GemmCoefficients,
    LatentDecodeCoefficients,
    LatentPrefillCoefficients,
    MoeCoefficients,
    PcieAllReduce,
    PrefillAttentionCoefficients,
)
from planner.units import BITS_PER_BYTE, GIB, GIGA, MEGA, MIB, MICRO, TERA

Efficiency = Annotated[float, Field(gt=0, le=EFFICIENCY_LIMIT)]
NormExponent = Annotated[float, Field(ge=1, le=12)]

# --------------------------------------------------------------------------------------------
# What the vendor says


class PeakTflops(DocumentModel):
    """Dense tensor throughput; a format without tensor cores is left out."""

    bf16: Sourced[Positive] | None = Field(default=None, description="Dense BF16. [TFLOP/s]")
    fp16: Sourced[Positive] | None = Field(default=None, description="Dense FP16. [TFLOP/s]")
    fp8: Sourced[Positive] | None = Field(default=None, description="Dense FP8. [TFLOP/s]")
    int8: Sourced[Positive] | None = Field(default=None, description="Dense INT8. [TOP/s]")
    fp4: Sourced[Positive] | None = Field(default=None, description="Dense FP4. [TFLOP/s]")


class ScaleUp(DocumentModel):
    """The link to the other GPUs of a node or rack."""

    kind: Text = Field(description="nvlink, pcie, infinity-fabric, ...")
    gb_per_s: Sourced[Positive] = Field(description="Of one GPU, one direction. [GB/s]")
    domain: Sourced[PositiveInt] = Field(description="GPUs within its reach.")


class Spec(DocumentModel):
    """The vendor's figures: dense, one direction."""

    peak_tflops: PeakTflops = Field(description="Dense tensor throughput by number format.")
    hbm_gb_per_s: Sourced[Positive] = Field(description="Peak memory bandwidth. [GB/s]")
    memory_gib: Sourced[Positive] = Field(
        description="Memory that a framework sees, less than the name of the product says. [GiB]"
    )
    driver_memory_mib: Sourced[Positive] | None = Field(
        default=None, description="Memory that nvidia-smi, rocm-smi or hl-smi shows. [MiB]"
    )
    l2_mb: Sourced[Positive] = Field(description="Last-level cache. [MB]")
    sm_count: Sourced[PositiveInt] = Field(
        description="Streaming multiprocessors, compute units, or what else runs one block of threads."
    )
    scale_up: ScaleUp = Field(description="Link within the node or rack.")
    host_gb_per_s: Sourced[Positive] = Field(description="To host memory, one direction. [GB/s]")
    network_gbps: Sourced[Positive] = Field(description="Usual NIC share of one GPU, one direction. [Gbit/s]")
    power_w: Sourced[Positive] = Field(description="Thermal design power. [W]")
    node_size: Sourced[PositiveInt] = Field(description="GPUs of the usual node.")


# --------------------------------------------------------------------------------------------
# What kernels reach


class RegimeResidual(DocumentModel):
    """How well a form fits those of its points that one of its terms decides."""

    points: PositiveInt = Field(description="Measurements.")
    median_abs_error: NonNegative = Field(description="Median of |predicted/measured - 1|.")
    bias: float = Field(description="Median of predicted/measured - 1.")
    log_sd: Positive = Field(description="Robust standard deviation of ln(predicted/measured).")


class Residual(DocumentModel):
    """How well a form fits the points it was fitted on."""

    points: Annotated[int, Field(ge=0)] = Field(description="Measurements; 0 where borrowed or estimated.")
    median_abs_error: NonNegative | None = Field(
        default=None, description="Median of |predicted/measured - 1|."
    )
    p90_abs_error: NonNegative | None = Field(default=None, description="Its 90th percentile.")
    bias: float | None = Field(default=None, description="Median of predicted/measured - 1.")
    log_sd: Positive = Field(description="Robust standard deviation of ln(predicted/measured).")
    axis_ranges: dict[str, tuple[float, float]] = Field(
        default_factory=dict, description="Smallest and largest value measured along each axis."
    )
    repeatability: NonNegative | None = Field(
        default=None,
        description="Median over the measurements of half their quartiles' distance over their median.",
    )
    regimes: dict[str, RegimeResidual] = Field(
        default_factory=dict, description="By what decides the time: latency, memory or compute."
    )
    note: str = Field(default="", description="What was changed or borrowed, and why.")


class GemmRow(DocumentModel):
    """Matrix product of one weight format."""

    compute_efficiency: Efficiency = Field(description="Share of the dense peak.")
    memory_efficiency: Efficiency = Field(description="Share of the memory bandwidth.")
    overhead_us: NonNegative = Field(description="Fixed time of a launch. [us]")
    norm_exponent: NormExponent = Field(
        description="Exponent p of the smooth maximum of compute and memory time."
    )
    quantization_efficiency: Efficiency | None = Field(
        default=None,
        description="Share of the memory bandwidth that the pass quantising activations reaches; absent "
        "where activations stay in 16 bits.",
    )
    residual: Residual = Field(description="Fit quality.")


class DecodeAttentionRow(DocumentModel):
    """Attention of decode steps at one KV cache format."""

    memory_efficiency: Efficiency = Field(description="Share of the memory bandwidth.")
    overhead_us: NonNegative = Field(description="Fixed time of a launch. [us]")
    cta_time_us: NonNegative = Field(
        description="Time of one sequence and KV head on one multiprocessor. [us]"
    )
    residual: Residual = Field(description="Fit quality.")


class PrefillAttentionRow(DocumentModel):
    """Attention of prompts, in 16 bits."""

    compute_efficiency: Efficiency = Field(description="Share of the dense 16-bit peak.")
    memory_efficiency: Efficiency = Field(description="Share of the memory bandwidth.")
    overhead_us: NonNegative = Field(description="Fixed time of a launch. [us]")
    softmax_time_ps: NonNegative = Field(
        description="Time of one query-key pair's exponential on one multiprocessor. [ps]"
    )
    residual: Residual = Field(description="Fit quality.")


class AllReduceRow(DocumentModel):
    """Ring all-reduce over the scale-up link."""

    overhead_us: NonNegative = Field(description="Fixed time at two ranks. [us]")
    per_rank_us: NonNegative = Field(description="Added by each further rank. [us]")
    bandwidth_efficiency: Efficiency = Field(description="Share of the scale-up bandwidth.")
    sqrt_time_us: NonNegative = Field(description="Time t of the term sqrt(t x transfer time). [us]")
    residual: Residual = Field(description="Fit quality.")


class MoeRow(DocumentModel):
    """Grouped products of routed experts of one weight format."""

    compute_efficiency: Efficiency = Field(
        description="Share of the dense peak of what is multiplied: 16 bits for bf16, mxfp4 and int4, "
        "the format itself for fp8, fp8_block and nvfp4."
    )
    memory_efficiency: Efficiency = Field(description="Share of the memory bandwidth, reading weights.")
    overhead_us: NonNegative = Field(description="Fixed time of a layer's experts. [us]")
    norm_exponent: NormExponent = Field(
        description="Exponent p of the smooth maximum of compute and memory time."
    )
    activation_efficiency: Efficiency = Field(
        description="Share of the memory bandwidth, gathering and scattering activations."
    )
    residual: Residual = Field(description="Fit quality.")


class LatentDecodeRow(DocumentModel):
    """Latent attention (MLA) of decode steps at one format of the latent cache."""

    memory_efficiency: Efficiency = Field(description="Share of the memory bandwidth.")
    compute_efficiency: Efficiency = Field(
        description="Share of the dense 16-bit peak, also where the cache holds fewer bits."
    )
    overhead_us: NonNegative = Field(description="Fixed time of a launch. [us]")
    norm_exponent: NormExponent = Field(
        description="Exponent p of the smooth maximum of compute and memory time."
    )
    block_time_us: NonNegative = Field(description="Time of one sequence on one multiprocessor. [us]")
    residual: Residual = Field(description="Fit quality.")


class LatentPrefillRow(DocumentModel):
    """Latent attention (MLA) of prompts, in 16 bits."""

    compute_efficiency: Efficiency = Field(description="Share of the dense 16-bit peak.")
    memory_efficiency: Efficiency = Field(description="Share of the memory bandwidth.")
    overhead_us: NonNegative = Field(description="Fixed time of a launch. [us]")
    softmax_time_ps: NonNegative = Field(
        description="Time of one query-key pair's exponential on one multiprocessor. [ps]"
    )
    residual: Residual = Field(description="Fit quality.")


class ElementwiseRow(DocumentModel):
    """Norms, activations and other small kernels."""

    memory_efficiency: Efficiency = Field(description="Share of the memory bandwidth.")
    overhead_us: NonNegative = Field(description="Fixed time of a launch. [us]")
    residual: Residual = Field(description="Fit quality.")


class PcieWorld(DocumentModel):
    """All-reduce over PCIe at one world size."""

    alpha_us: NonNegative = Field(description="Fixed time. [us]")
    gb_per_s: Positive = Field(description="Bus bandwidth reached. [GB/s]")


class PcieAllReduceRow(DocumentModel):
    """All-reduce over PCIe: no smooth law in the world size, hence one row for each."""

    by_world_size: dict[PositiveInt, PcieWorld] = Field(description="Coefficients by number of ranks.")
    residual: Residual = Field(description="Fit quality.")


class CalibrationSection(DocumentModel):
    """Efficiencies of kernels relative to this file's own spec."""

    status: CalibrationStatus = Field(
        description="measured on this GPU by planner; fitted on published measurements of this GPU; "
        "estimated from other GPUs."
    )
    method: Text = Field(description="How the numbers came about.")
    date: Annotated[str, Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")] = Field(
        description="YYYY-MM or YYYY-MM-DD."
    )
    software: dict[str, Text] = Field(description="Versions of what was measured or read.")
    gemm: dict[Dtype, GemmRow] = Field(description="Matrix product by weight format.")
    decode_attention: dict[Dtype, DecodeAttentionRow] = Field(description="By KV cache format.")
    prefill_attention: PrefillAttentionRow = Field(description="Attention of prompts.")
    moe: dict[Dtype, MoeRow] = Field(default_factory=dict, description="Routed experts by weight format.")
    mla_decode: dict[Dtype, LatentDecodeRow] = Field(
        default_factory=dict, description="Latent attention by format of the latent cache."
    )
    mla_prefill: LatentPrefillRow | None = Field(default=None, description="Latent attention of prompts.")
    elementwise: ElementwiseRow | None = Field(
        default=None, description="Small kernels; absent: 2 us and 0.75 of the memory bandwidth."
    )
    all_reduce: AllReduceRow | None = Field(default=None, description="Over the scale-up link.")
    pcie_all_reduce: PcieAllReduceRow | None = Field(default=None, description="Over PCIe.")


_WithResidual = GemmRow | DecodeAttentionRow | MoeRow | LatentDecodeRow

# --------------------------------------------------------------------------------------------
# The file


class GpuProfileDocument(DocumentModel):
    """A GPU profile: `spec` holds what the vendor says, `calibration` what kernels reach of it."""

    name: Text = Field(description="Canonical name, equal to the file's stem.")
    aliases: tuple[Text, ...] = Field(default=(), description="Other names people use.")
    vendor: Text = Field(description="nvidia, amd, ...")
    architecture: Text = Field(description="hopper, ada, cdna3, ...")
    note: str = Field(
        default="", description="What a reader has to know of the whole profile, e.g. what counts as one GPU."
    )
    sources: dict[str, Text] = Field(min_length=1, description="What the figures' source keys stand for.")
    spec: Spec = Field(description="The vendor's figures: dense, one direction, each with its source.")
    calibration: CalibrationSection = Field(description="Efficiencies with method, date and residuals.")

    @classmethod
    def check(cls, tree: Tree) -> list[Problem]:
        """Every figure names one of the file's sources; a 16-bit peak exists."""
        known = tree.get("sources")
        sources = list(known) if isinstance(known, dict) else []
        problems = [
            tree.problem((*path, "source"), "is no key of sources", f"known: {', '.join(sources)}")
            for path, source in _figure_sources(tree.get("spec"), ("spec",))
            if source not in sources
        ]
        peaks = tree.get("spec", "peak_tflops")
        if isinstance(peaks, dict) and not {"bf16", "fp16"} & peaks.keys():
            problems.append(tree.problem(("spec", "peak_tflops"), "needs bf16 or fp16", show_value=False))
        return problems


def _figure_sources(value: object, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], object]]:
    """(path, source) of every figure below a mapping."""
    if not isinstance(value, dict):
        return []
    if "value" in value:
        return [(path, value["source"])] if "source" in value else []
    return [found for key, child in value.items() for found in _figure_sources(child, (*path, key))]


def load_gpu_profile(path: str | Path) -> GPU:
    """Read a GPU profile.

    Raises
    ------
    SpecError
        With every problem of the file.
    """
    return gpu_from_document(load_document(path, GpuProfileDocument).model)


def gpu_from_document(document: GpuProfileDocument) -> GPU:
    """The profile in SI units."""
    spec = document.spec
    figures = tuple(_figures(spec))
    return GPU(
        name=document.name,
        vendor=document.vendor,
        architecture=document.architecture,
        peak_flops=_peak_flops(spec.peak_tflops),
        hbm_bandwidth=spec.hbm_gb_per_s.value * GIGA,
        memory=spec.memory_gib.value * GIB,
        l2_bytes=spec.l2_mb.value * MEGA,
        sm_count=spec.sm_count.value,
        scale_up_bandwidth=spec.scale_up.gb_per_s.value * GIGA,
        scale_up_kind=spec.scale_up.kind,
        scale_up_domain=spec.scale_up.domain.value,
        host_bandwidth=spec.host_gb_per_s.value * GIGA,
        network_bandwidth=spec.network_gbps.value * GIGA / BITS_PER_BYTE,
        power=spec.power_w.value,
        node_size=spec.node_size.value,
        calibration=_calibration(document.calibration),
        sources=tuple(document.sources.values()),
        driver_memory=None if spec.driver_memory_mib is None else spec.driver_memory_mib.value * MIB,
        unverified=tuple(name for name, figure in figures if figure.unverified),
        notes=(
            *_stated(document.note),
            *(f"{name}: {figure.note}" for name, figure in figures if figure.note),
        ),
    )


def _stated(text: str) -> tuple[str, ...]:
    return (text,) if text else ()


def _figures(section: DocumentModel) -> Iterator[tuple[str, Sourced[Any]]]:
    """Every figure below a section with its key there, e.g. ``peak_tflops.fp8``."""
    for key in type(section).model_fields:
        value = getattr(section, key)
        if isinstance(value, Sourced):
            yield key, value
        elif isinstance(value, DocumentModel):
            yield from ((f"{key}.{inner}", figure) for inner, figure in _figures(value))


def _peak_flops(peaks: PeakTflops) -> dict[Dtype, float]:
    # Formats that share tensor cores share a peak: scales per block cost no multiplications.
    figures = {
        Dtype.BF16: peaks.bf16,
        Dtype.FP16: peaks.fp16,
        Dtype.FP8: peaks.fp8,
        Dtype.FP8_BLOCK: peaks.fp8,
        Dtype.INT8: peaks.int8,
        Dtype.NVFP4: peaks.fp4,
        Dtype.MXFP4: peaks.fp4,
    }
    return {dtype: figure.value * TERA for dtype, figure in figures.items() if figure is not None}


def _calibration(section: CalibrationSection) -> Calibration:
    prefill, pcie = section.prefill_attention, section.pcie_all_reduce
    return Calibration(
        status=section.status,
        gemm={dtype: _gemm(row) for dtype, row in section.gemm.items()},
        decode_attention={dtype: _decode_attention(row) for dtype, row in section.decode_attention.items()},
        prefill_attention=PrefillAttentionCoefficients(
            compute_efficiency=prefill.compute_efficiency,
            memory_efficiency=prefill.memory_efficiency,
            overhead=prefill.overhead_us * MICRO,
            softmax_time=prefill.softmax_time_ps * MICRO * MICRO,
        ),
        all_reduce=None if section.all_reduce is None else _all_reduce(section.all_reduce),
        pcie_all_reduce={} if pcie is None else _pcie(pcie),
        log_sd=_log_sd(section),
        method=section.method,
        date=section.date,
        software=", ".join(f"{name} {version}" for name, version in section.software.items()),
        moe={dtype: _moe(row) for dtype, row in section.moe.items()},
        latent_decode={dtype: _latent_decode(row) for dtype, row in section.mla_decode.items()},
        latent_prefill=None if section.mla_prefill is None else _latent_prefill(section.mla_prefill),
        elementwise=ElementwiseCoefficients()
        if section.elementwise is None
        else ElementwiseCoefficients(
            memory_efficiency=section.elementwise.memory_efficiency,
            overhead=section.elementwise.overhead_us * MICRO,
        ),
    )


def _gemm(row: GemmRow) -> GemmCoefficients:
    return GemmCoefficients(
        compute_efficiency=row.compute_efficiency,
        memory_efficiency=row.memory_efficiency,
        overhead=row.overhead_us * MICRO,
        norm_exponent=row.norm_exponent,
        quantization_efficiency=row.quantization_efficiency,
    )


def _decode_attention(row: DecodeAttentionRow) -> DecodeAttentionCoefficients:
    return DecodeAttentionCoefficients(
        memory_efficiency=row.memory_efficiency,
        overhead=row.overhead_us * MICRO,
        cta_time=row.cta_time_us * MICRO,
    )


def _moe(row: MoeRow) -> MoeCoefficients:
    return MoeCoefficients(
        compute_efficiency=row.compute_efficiency,
        memory_efficiency=row.memory_efficiency,
        overhead=row.overhead_us * MICRO,
        norm_exponent=row.norm_exponent,
        activation_efficiency=row.activation_efficiency,
    )


def _latent_decode(row: LatentDecodeRow) -> LatentDecodeCoefficients:
    return LatentDecodeCoefficients(
        memory_efficiency=row.memory_efficiency,
        compute_efficiency=row.compute_efficiency,
        overhead=row.overhead_us * MICRO,
        norm_exponent=row.norm_exponent,
        block_time=row.block_time_us * MICRO,
    )


def _latent_prefill(row: LatentPrefillRow) -> LatentPrefillCoefficients:
    return LatentPrefillCoefficients(
        compute_efficiency=row.compute_efficiency,
        memory_efficiency=row.memory_efficiency,
        overhead=row.overhead_us * MICRO,
        softmax_time=row.softmax_time_ps * MICRO * MICRO,
    )


def _all_reduce(row: AllReduceRow) -> AllReduceCoefficients:
    return AllReduceCoefficients(
        overhead=row.overhead_us * MICRO,
        per_rank=row.per_rank_us * MICRO,
        bandwidth_efficiency=row.bandwidth_efficiency,
        sqrt_time=row.sqrt_time_us * MICRO,
    )


def _pcie(row: PcieAllReduceRow) -> dict[int, PcieAllReduce]:
    return {
        size: PcieAllReduce(alpha=world.alpha_us * MICRO, bandwidth=world.gb_per_s * GIGA)
        for size, world in row.by_world_size.items()
    }


def _log_sd(section: CalibrationSection) -> Mapping[str, float]:
    families: tuple[tuple[str, Mapping[Dtype, _WithResidual]], ...] = (
        ("gemm", section.gemm),
        ("decode_attention", section.decode_attention),
        ("moe", section.moe),
        ("latent_decode", section.mla_decode),
    )
    spreads = {
        f"{name}.{dtype}": row.residual.log_sd for name, rows in families for dtype, row in rows.items()
    }
    spreads["prefill_attention"] = section.prefill_attention.residual.log_sd
    if section.mla_prefill is not None:
        spreads["latent_prefill"] = section.mla_prefill.residual.log_sd
    if section.elementwise is not None:
        spreads["elementwise"] = section.elementwise.residual.log_sd
    links = [row for row in (section.all_reduce, section.pcie_all_reduce) if row is not None]
    if links:
        spreads["all_reduce"] = max(row.residual.log_sd for row in links)
    return spreads
