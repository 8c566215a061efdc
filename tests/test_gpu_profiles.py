"""The GPU profiles: every one loads, none exceeds physics, figures are those of their sources."""

import csv
import dataclasses
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from planner.catalog import gpu_names, load_gpu
from planner.collectives import AllReduce, all_reduce_time, supports_world_size
from planner.documents.gpu_profile import EFFICIENCY_LIMIT, GpuProfileDocument, gpu_from_document
from planner.documents.source import load_document, parse_document
from planner.errors import SpecError
from planner.experts import ExpertsKernel
from planner.latent import LatentDecodeKernel
from planner.roofline import DecodeAttentionKernel, GemmKernel, PrefillAttentionKernel, gemm_time
from planner.specs import GPU, CalibrationStatus, Dtype
from planner.units import GIB, GIGA, MIB, TERA

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"
PROFILES = sorted((Path(__file__).parent.parent / "gpu_profiles").glob("*.yaml"))
FITTED = {
    "a100-80gb-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300", "h100-sxm", "h200-sxm", "l40s",
    "rtx-pro-6000-server",
}  # fmt: skip
COEFFICIENTS = json.loads((ROOT / "tools" / "data" / "operator_coefficients.json").read_text("utf-8"))
SCALES = {"TFLOP/s": TERA, "GB/s": GIGA, "GiB": GIB, "MiB": MIB, "W": 1.0, "1": 1.0}
ASKED_FOR = [
    "t4", "v100-16gb-sxm", "v100-32gb-sxm", "a10", "a10g", "l4", "l40", "l40s", "a40", "rtx-a6000",
    "rtx-4090", "rtx-5090", "rtx-6000-ada", "rtx-pro-6000-server", "rtx-pro-6000-workstation",
    "a100-40gb-sxm", "a100-80gb-sxm", "a100-40gb-pcie", "a100-80gb-pcie", "h100-sxm", "h100-pcie",
    "h100-nvl", "h800-sxm", "h20", "h200-sxm", "h200-nvl", "gh200", "b200-sxm", "b300-sxm", "gb200",
    "gb300", "mi210", "mi250x", "mi300x", "mi325x", "mi355x", "gaudi2", "gaudi3",
]  # fmt: skip
WITHOUT_BF16 = {"t4", "v100-16gb-sxm", "v100-32gb-sxm"}
FAR = {
    "t4",
    "v100-16gb-sxm",
    "v100-32gb-sxm",
    "mi210",
    "mi250",
    "mi250x",
    "mi350x",
    "mi355x",
    "gaudi2",
    "gaudi3",
}


def golden(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def efficiencies(value: object) -> dict[str, float]:
    """Every attribute below a dataclass whose name ends in efficiency."""
    found = {}
    if isinstance(value, dict):
        for key, child in value.items():
            found |= {f"{key}.{k}": v for k, v in efficiencies(child).items()}
    elif dataclasses.is_dataclass(value):
        for f in dataclasses.fields(value):
            child = getattr(value, f.name)
            if f.name.endswith("efficiency") and child is not None:
                found[f.name] = child
            found |= {f"{f.name}.{k}": v for k, v in efficiencies(child).items()}
    return found


def attained(gpu: GPU, quantity: str) -> float:
    """Efficiency times peak of a quantity named as in the golden file."""
    operator, *rest = quantity.split(".")
    c = gpu.calibration
    if operator == "gemm":
        dtype, kind = Dtype(rest[0]), rest[1]
        row = c.gemm[dtype]
        if kind == "compute":
            return row.compute_efficiency * gpu.peak_flops[dtype]
        share = row.memory_efficiency if kind == "memory" else row.quantization_efficiency
        assert share is not None
        return share * gpu.hbm_bandwidth
    if operator == "decode_attention":
        return c.decode_attention[Dtype(rest[0])].memory_efficiency * gpu.hbm_bandwidth
    if operator in ("moe", "latent_decode"):
        dtype, kind = Dtype(rest[0]), rest[1]
        row = c.moe[dtype] if operator == "moe" else c.latent_decode[dtype]
        if kind == "memory":
            return row.memory_efficiency * gpu.hbm_bandwidth
        # Weight-only formats, and latents of any format, are shares of the 16-bit peak.
        sixteen = operator == "latent_decode" or dtype in (Dtype.MXFP4, Dtype.INT4)
        return row.compute_efficiency * gpu.peak_flops[Dtype.BF16 if sixteen else dtype]
    if operator in ("prefill_attention", "latent_prefill"):
        row = getattr(c, operator)
        if rest[0] == "compute":
            return row.compute_efficiency * gpu.peak_flops[Dtype.BF16]
        return row.memory_efficiency * gpu.hbm_bandwidth
    assert c.all_reduce is not None
    return c.all_reduce.bandwidth_efficiency * gpu.scale_up_bandwidth


def test_the_gpus_people_serve_on_are_there():
    assert len(ASKED_FOR) >= 30
    assert set(gpu_names()) >= {*ASKED_FOR, *FITTED}


@pytest.mark.parametrize("name", gpu_names())
def test_profile_is_complete(name):
    gpu = load_gpu(name)
    assert gpu.name == name
    assert gpu.calibration.gemm
    assert (Dtype.BF16 in gpu.peak_flops) == (name not in WITHOUT_BF16)
    assert gpu.sources
    assert all(gpu.sources)
    assert gpu.calibration.method
    assert gpu.calibration.software


@pytest.mark.parametrize("name", gpu_names())
def test_no_efficiency_exceeds_physics(name):
    found = efficiencies(load_gpu(name).calibration)
    assert len(found) >= 5
    assert {k: v for k, v in found.items() if not 0 < v <= EFFICIENCY_LIMIT} == {}


@pytest.mark.parametrize("name", gpu_names())
def test_matrix_rows_only_for_formats_the_device_has(name):
    gpu = load_gpu(name)
    calibration = gpu.calibration
    assert set(calibration.gemm) <= set(gpu.peak_flops)
    # Weights in four bits may be stored anywhere; 16-bit arithmetic runs them.
    assert set(calibration.moe) <= {*gpu.peak_flops, Dtype.MXFP4, Dtype.INT4}
    assert set(calibration.latent_decode) <= set(gpu.peak_flops)


@pytest.mark.parametrize("name", gpu_names())
def test_routed_experts_and_latents_have_rows(name):
    calibration = load_gpu(name).calibration
    sixteen = Dtype.FP16 if name in WITHOUT_BF16 else Dtype.BF16
    assert sixteen in calibration.moe
    assert sixteen in calibration.latent_decode
    assert calibration.latent_prefill is not None
    for key in (f"moe.{sixteen}", f"latent_decode.{sixteen}", "latent_prefill"):
        assert calibration.log_sd[key] > 0


SHARED_PEAKS = {
    "compute_efficiency": "compute", "memory_efficiency": "memory", "quantization_efficiency": "quantization",
}  # fmt: skip
OPERATORS = {"mla_decode": "latent_decode", "mla_prefill": "latent_prefill"}
UNUSED = {
    ("h100-sxm", "moe.fp8"), ("h200-sxm", "moe.fp8"), ("l40s", "moe.mxfp4"),  # degenerate
    *(
        (name, f"mla_decode.{dtype}")  # the form misses the kernel by more than a quarter
        for name in ("a100-80gb-sxm", "l40s", "rtx-pro-6000-server")
        for dtype in ("bf16", "fp8")
    ),
}  # fmt: skip


def committed_rates() -> list[tuple[str, str, float]]:
    """GPU, quantity and rate of every fitted efficiency in the committed coefficients."""
    systems = {
        "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm", "a100_sxm": "a100-80gb-sxm", "l40s": "l40s",
        "b200_sxm": "b200-sxm", "b300_sxm": "b300-sxm", "gb200": "gb200", "gb300": "gb300",
        "rtx_pro_6000_server": "rtx-pro-6000-server",
    }  # fmt: skip
    found = []
    for system, name in systems.items():
        peaks = COEFFICIENTS["systems"][system]["peaks"]
        for label, fit in COEFFICIENTS["systems"][system]["fits"].items():
            operator, _, dtype = label.partition(".")
            if "@" in label or operator == "all_reduce" or (name, label) in UNUSED:
                continue
            kind = {"nvfp4": "fp4", "fp8": "fp8", "fp8_block": "fp8"}.get(dtype, "bf16")
            kind = "bf16" if operator.startswith("mla") else kind
            for key, value in fit["values"].items():
                if key not in SHARED_PEAKS or (key != "compute_efficiency" and value >= 1.0):
                    continue
                peak = peaks[kind] if key == "compute_efficiency" else peaks["bandwidth"]
                parts = (OPERATORS.get(operator, operator), dtype, SHARED_PEAKS[key])
                found.append((name, ".".join(part for part in parts if part), value * peak))
    return found


@pytest.mark.parametrize(("name", "quantity", "rate"), committed_rates())
def test_attained_rates_are_those_of_the_fit(name, quantity, rate):
    # Efficiency x peak must survive a profile that states another peak than the fit used.
    if (name, quantity) == ("rtx-pro-6000-server", "moe.fp8_block.memory"):
        assert attained(load_gpu(name), quantity) == load_gpu(name).hbm_bandwidth < rate
        return
    assert attained(load_gpu(name), quantity) == pytest.approx(rate, rel=1e-4)


def moved(gpu: str, quantity: str) -> float:
    """How far the fit may be from an earlier one of the same tables, and why."""
    operator, *rest = quantity.split(".")
    if operator == "moe" and rest[0] in ("bf16", "fp8", "nvfp4"):
        return 0.16  # it counted a gate for models that have none
    if operator.startswith("latent"):
        return 0.17  # to the form that predictions use, not to a simpler one
    if gpu == "l40s" and operator == "decode_attention":
        return 0.16  # it took caches in L2 for memory
    if gpu == "a100-80gb-sxm":
        return 0.06  # a flat valley: arithmetic against softmax, and against the exponent
    return 0.04


@pytest.mark.parametrize("row", golden("gpu_attained_rates.csv"), ids=lambda r: f"{r['gpu']}-{r['quantity']}")
def test_another_fit_of_the_same_tables_found_the_same_rates(row):
    gpu, quantity = row["gpu"], row["quantity"]
    expected = pytest.approx(float(row["value"]), rel=moved(gpu, quantity))
    assert attained(load_gpu(gpu), quantity) == expected


@pytest.mark.parametrize("row", golden("gpu_specs.csv"), ids=lambda r: f"{r['gpu']}-{r['quantity']}")
def test_vendor_figures(row):
    gpu, quantity = load_gpu(row["gpu"]), row["quantity"]
    known = {str(d): v for d, v in gpu.peak_flops.items()}
    value = known[quantity] if quantity in known else getattr(gpu, quantity)
    # Sources round: 989 for 989.4 TFLOP/s, 32 for 31.5 GB/s of PCIe 4.0 after its encoding.
    tolerance = 0.016 if row["value"] == "32" else 0.001
    assert value == pytest.approx(float(row["value"]) * SCALES[row["unit"]], rel=tolerance)


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("a100-80gb-sxm", {Dtype.FP8, Dtype.FP8_BLOCK, Dtype.NVFP4}),
        ("a10g", {Dtype.FP8, Dtype.NVFP4}),
        ("h100-sxm", {Dtype.NVFP4, Dtype.MXFP4}),
        ("h200-sxm", {Dtype.NVFP4, Dtype.MXFP4}),
        ("l40s", {Dtype.NVFP4}),
        ("mi300x", {Dtype.NVFP4}),
        ("t4", {Dtype.BF16, Dtype.FP8}),
        ("v100-32gb-sxm", {Dtype.BF16, Dtype.FP8, Dtype.INT8}),
        ("a10", {Dtype.FP8, Dtype.NVFP4}),
        ("a40", {Dtype.FP8, Dtype.NVFP4}),
        ("rtx-a6000", {Dtype.FP8, Dtype.NVFP4}),
        ("rtx-4090", {Dtype.NVFP4}),
        ("h20", {Dtype.NVFP4}),
        ("gh200", {Dtype.NVFP4}),
        ("mi250x", {Dtype.FP8, Dtype.NVFP4}),
        ("gaudi2", {Dtype.NVFP4}),
    ],
)
def test_fallbacks_are_no_capability(name, absent):
    gpu = load_gpu(name)
    assert not absent & set(gpu.peak_flops)
    assert not absent & set(gpu.calibration.gemm)


def test_status_says_what_was_fitted():
    for name in gpu_names():
        expected = CalibrationStatus.FITTED if name in FITTED else CalibrationStatus.ESTIMATED
        assert load_gpu(name).calibration.status is expected, name


def test_estimates_are_no_surer_than_their_neighbours():
    for name in set(gpu_names()) - FITTED:
        assert min(load_gpu(name).calibration.log_sd.values()) >= (0.3 if name in FAR else 0.2), name


def test_estimates_name_their_relatives():
    assert "H100 and H200" in load_gpu("h20").calibration.method
    assert "of the same family" in load_gpu("rtx-4090").calibration.method
    assert "of the same chip" in load_gpu("rtx-5090").calibration.method
    assert "none of them of this family" in load_gpu("gaudi3").calibration.method


def test_an_estimate_is_the_geometric_mean_of_its_relatives():
    h100, h200, h20 = (load_gpu(name).calibration for name in ("h100-sxm", "h200-sxm", "h20"))
    mean = (h100.gemm[Dtype.BF16].memory_efficiency * h200.gemm[Dtype.BF16].memory_efficiency) ** 0.5
    assert h20.gemm[Dtype.BF16].memory_efficiency == pytest.approx(mean, rel=1e-4)
    assert load_gpu("a100-40gb-sxm").calibration.gemm == load_gpu("a100-80gb-sxm").calibration.gemm


@pytest.mark.parametrize(
    ("name", "dtype", "other"),
    [
        ("h100-sxm", Dtype.FP8, Dtype.FP8_BLOCK),
        ("h200-sxm", Dtype.FP8, Dtype.FP8_BLOCK),
        ("l40s", Dtype.MXFP4, Dtype.INT4),
    ],
)
def test_degenerate_fits_of_experts_are_borrowed(name, dtype, other):
    calibration = load_gpu(name).calibration
    assert calibration.moe[dtype] == calibration.moe[other]
    assert calibration.log_sd[f"moe.{dtype}"] >= 0.2


def test_activations_of_experts_do_not_outrun_memory():
    # The fit of A100 gave 50 times the bandwidth: the table shows no such time.
    assert load_gpu("a100-80gb-sxm").calibration.moe[Dtype.BF16].activation_efficiency == 1.0


def test_caches_that_were_measured_in_l2_do_not_count_for_memory():
    # With them the fits gave 0.98 of the bandwidth for bf16 and 1.10 for fp8, of the same memory.
    rows = load_gpu("l40s").calibration.decode_attention
    assert rows[Dtype.BF16].memory_efficiency == pytest.approx(rows[Dtype.FP8].memory_efficiency, rel=0.02)
    assert rows[Dtype.FP8].memory_efficiency < 0.9


def test_peers_over_pcie_5_have_their_own_rows():
    server, workstation = (load_gpu(f"rtx-pro-6000-{x}").calibration for x in ("server", "workstation"))
    l40s = load_gpu("l40s").calibration
    assert server.pcie_all_reduce == workstation.pcie_all_reduce
    assert server.pcie_all_reduce[8].bandwidth > 5 * l40s.pcie_all_reduce[8].bandwidth
    assert min(server.log_sd["all_reduce"], workstation.log_sd["all_reduce"]) >= 0.3


@pytest.mark.parametrize("name", ["l40s", "l4", "a10g", "a10", "l40", "rtx-4090", "rtx-6000-ada"])
def test_all_reduce_over_pcie_goes_by_world_size(name):
    calibration = load_gpu(name).calibration
    assert calibration.all_reduce is None
    assert calibration.pcie_all_reduce[2].bandwidth == pytest.approx(0.597 * 32 * GIGA, rel=1e-3)
    assert calibration.pcie_all_reduce[8].alpha == pytest.approx(19.8e-6, rel=0.01)
    assert "all_reduce" in calibration.log_sd


@pytest.mark.parametrize(("name", "factor"), [("t4", 0.5), ("rtx-5090", 2.0)])
def test_all_reduce_over_another_pcie_is_scaled_to_it(name, factor):
    l40s, other = load_gpu("l40s").calibration, load_gpu(name).calibration
    for ranks in (2, 4, 8):
        assert other.pcie_all_reduce[ranks].alpha == l40s.pcie_all_reduce[ranks].alpha
        expected = factor * l40s.pcie_all_reduce[ranks].bandwidth
        assert other.pcie_all_reduce[ranks].bandwidth == pytest.approx(expected, rel=1e-4)
    assert other.log_sd["all_reduce"] >= 0.3


@pytest.mark.parametrize(
    ("name", "bridged"),
    [("a40", 2), ("rtx-a6000", 2), ("a100-80gb-pcie", 2), ("h100-pcie", 2), ("h100-nvl", 2), ("h200-nvl", 4)],
)
def test_bridges_join_a_few_cards_and_pcie_the_others(name, bridged):
    gpu = load_gpu(name)
    assert gpu.scale_up_domain == bridged
    calibration = gpu.calibration
    assert calibration.all_reduce is not None
    assert set(calibration.pcie_all_reduce) == {n for n in (4, 8) if n > bridged}
    times = all_reduce_time(AllReduce.of([gpu] * 3, [2, 4, 8]), 2**24)
    assert all(supports_world_size(gpu, ranks) for ranks in (2, 4, 8))
    assert list(times) == sorted(times)
    assert times[2] > 5 * times[0]


def test_a_superchip_of_one_gpu_has_no_partner():
    gpu = load_gpu("gh200")
    assert supports_world_size(gpu, 1)
    assert not supports_world_size(gpu, 2)
    assert gpu.host_bandwidth == 450 * GIGA


def test_a_package_of_two_dies_counts_as_two_gpus():
    gpu = load_gpu("mi250x")
    assert gpu.peak_flops[Dtype.BF16] == pytest.approx(383e12 / 2)
    assert gpu.hbm_bandwidth == pytest.approx(3277e9 / 2)
    assert (gpu.sm_count, gpu.node_size, gpu.scale_up_domain) == (110, 8, 8)
    assert "one of the package's two dies" in gpu.notes[0]


def test_conflicts_between_sources_are_said():
    notes = " ".join(load_gpu("b300-sxm").notes)
    assert "14,000" in notes
    assert "1,792" in " ".join(load_gpu("rtx-pro-6000-server").notes)
    assert "576" in " ".join(load_gpu("mi355x").notes)
    assert "835" in " ".join(load_gpu("gaudi2").notes)
    assert load_gpu("gaudi3").peak_flops[Dtype.FP8] == load_gpu("gaudi3").peak_flops[Dtype.BF16]
    assert load_gpu("b300-sxm").peak_flops[Dtype.INT8] < 0.05 * load_gpu("b200-sxm").peak_flops[Dtype.INT8]


def test_unverified_figures_are_known():
    assert load_gpu("h100-sxm").unverified == ("l2_mb", "sm_count")
    assert "peak_tflops.bf16" in load_gpu("h100-nvl").unverified
    assert "scale_up.gb_per_s" in load_gpu("rtx-a6000").unverified


def test_what_the_driver_shows_is_more_than_a_framework_sees():
    # GB and GiB: 80 GB on the box, 81,559 MiB = 79.65 GiB in nvidia-smi, 79.19 GiB in PyTorch.
    h100 = load_gpu("h100-sxm")
    assert h100.driver_memory == 81559 * MIB
    assert h100.driver_memory / GIB == pytest.approx(79.65, abs=0.005)
    assert h100.memory / GIB == pytest.approx(79.19)
    for name in gpu_names():
        gpu = load_gpu(name)
        if gpu.driver_memory is not None:
            assert 0.94 < gpu.memory / gpu.driver_memory <= 1.0, name


# --------------------------------------------------------------------------------------------
# GPUs that lack a format


@pytest.mark.parametrize("name", sorted(WITHOUT_BF16))
@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP16, Dtype.FP8, Dtype.INT4])
def test_without_bf16_everything_runs_in_fp16(name, dtype):
    gpu = load_gpu(name)
    kernel = GemmKernel.of(gpu, dtype)
    own = gpu.calibration.gemm[Dtype.FP16]
    assert kernel.compute_rate == gpu.peak_flops[Dtype.FP16] * own.compute_efficiency
    assert (kernel.weight_bytes, kernel.activation_bytes) == (dtype.bytes, 2.0)
    assert PrefillAttentionKernel.of(gpu).compute_rate > 0
    for cache in (Dtype.BF16, Dtype.FP16, Dtype.FP8):
        assert DecodeAttentionKernel.of(gpu, cache).kv_bytes == cache.bytes
        latent = LatentDecodeKernel.of(gpu, cache)
        row = gpu.calibration.latent_decode[Dtype.FP16]
        assert latent.compute_rate == gpu.peak_flops[Dtype.FP16] * row.compute_efficiency


@pytest.mark.parametrize(("name", "own"), [("t4", Dtype.FP16), ("h100-sxm", Dtype.BF16)])
@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP16])
def test_experts_in_either_16_bit_format_use_the_same_row(name, own, dtype):
    gpu = load_gpu(name)
    kernel, row = ExpertsKernel.of(gpu, dtype), gpu.calibration.moe[own]
    assert kernel.compute_rate == gpu.peak_flops[own] * row.compute_efficiency
    assert kernel.overhead == row.overhead
    assert kernel.log_sd == gpu.calibration.log_sd[f"moe.{own}"]


@pytest.mark.parametrize("name", ["h100-sxm", "b200-sxm", "mi300x"])
@pytest.mark.parametrize("dtype", [Dtype.MXFP4, Dtype.INT4])
def test_experts_in_four_bits_are_multiplied_in_16(name, dtype):
    gpu = load_gpu(name)
    row = gpu.calibration.moe[dtype]
    assert ExpertsKernel.of(gpu, dtype).compute_rate == gpu.peak_flops[Dtype.BF16] * row.compute_efficiency


@pytest.mark.parametrize("name", ["t4", "a100-80gb-sxm", "a40", "mi210"])
def test_narrow_weights_are_no_faster_where_they_are_only_stored(name):
    gpu = load_gpu(name)
    sixteen = Dtype.FP16 if name in WITHOUT_BF16 else Dtype.BF16
    wide, narrow = GemmKernel.of(gpu, sixteen), GemmKernel.of(gpu, Dtype.FP8)
    assert narrow.compute_rate == wide.compute_rate
    assert narrow.quantization_rate == float("inf")
    assert narrow.log_sd >= 0.2
    assert gemm_time(narrow, 8192, 8192, 8192) == pytest.approx(gemm_time(wide, 8192, 8192, 8192), rel=0.1)
    assert gemm_time(narrow, 1, 8192, 8192) < 0.8 * gemm_time(wide, 1, 8192, 8192)


# --------------------------------------------------------------------------------------------
# The tool that writes them


def inputs(devices: Any) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Coefficients and vendor figures of no GPU: the same for every one."""
    residual = {"points": 9, "median_abs_error": 0.05, "p90_abs_error": 0.2, "bias": 0.0, "log_sd": 0.1}
    time = {"overhead": 1e-5}
    dense = {**time, "compute_efficiency": 0.8, "memory_efficiency": 0.8, "norm_exponent": 2.0}
    prompt = {**time, "compute_efficiency": 0.9, "memory_efficiency": 0.4, "softmax_time": 3e-11}
    values = {
        "prefill_attention": prompt,
        "mla_prefill": prompt,
        "all_reduce": {**time, "per_rank": 2e-7, "bandwidth_efficiency": 0.7, "sqrt_time": 2e-6},
        "moe.mxfp4@sglang": {**dense, "activation_efficiency": 0.4},
        **{f"gemm.{f}": dense for f in ("bf16", "fp8", "fp8_block", "nvfp4")},
        **{
            f"moe.{f}": {**dense, "activation_efficiency": 0.4}
            for f in ("bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4")
        },
        **{
            f"decode_attention.{f}": {**time, "memory_efficiency": 0.9, "cta_time": 3e-6}
            for f in ("bf16", "fp8")
        },
        **{f"mla_decode.{f}": {**dense, "block_time": 4e-6} for f in ("bf16", "fp8")},
    }
    fits = {k: {"table": "vllm 1.0", "values": v, "residual": residual} for k, v in values.items()}
    peaks = {"bandwidth": 1e12, "bf16": 1e14, "fp8": 2e14, "fp4": 4e14, "link": 1e11}
    worlds = {str(n): {"alpha": 1e-5, "bandwidth": 3e9} for n in (2, 4, 8)}
    system = {
        "peaks": peaks,
        "fits": fits,
        "pcie_all_reduce": {"by_world_size": worlds, "residual": {"points": 9}},
    }
    rows = {
        d.row: {
            "name": d.row, "vendor": "NVIDIA", "bf16_tflops": "100", "fp16_tflops": "100",
            "fp8_tflops": "200", "int8_tops": "200", "fp4_tflops": "400", "mem_bw_gbs": "1000",
            "l2_mb": "50", "sm_or_cu": "100", "scaleup_gbs_per_dir": "100", "scaleup_domain": "8",
            "pcie_gbs_per_dir": "31.5", "tdp_w": "300", "gpus_per_node": "8",
            "default_nic_gbs_per_gpu": "50",
        }
        for d in devices
    }  # fmt: skip
    return {"systems": {d.system: system for d in devices if d.system}}, rows


def vendor_row(device: Any) -> dict[str, str]:
    """The row of vendor figures that a profile was written from, read back from it."""
    spec = load_document(ROOT / "gpu_profiles" / f"{device.name}.yaml", GpuProfileDocument).model.spec

    def text(figure: Any) -> str:
        return "" if figure is None else repr(figure.value * device.parts)

    peaks = spec.peak_tflops
    return {
        "name": device.row,
        "vendor": "",
        "bf16_tflops": text(peaks.bf16),
        "fp16_tflops": text(peaks.fp16),
        "fp8_tflops": text(peaks.fp8),
        "fp4_tflops": text(peaks.fp4),
        "mem_bw_gbs": text(spec.hbm_gb_per_s),
        "scaleup_gbs_per_dir": text(spec.scale_up.gb_per_s),
        "scaleup_domain": str(spec.scale_up.domain.value),
        "pcie_gbs_per_dir": text(spec.host_gb_per_s),
    }


def test_profiles_are_what_the_tool_makes_of_the_committed_coefficients(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    module = importlib.import_module("build_gpu_profiles")
    rows = {}
    for device in module.DEVICES:
        vendor = load_gpu(device.name).vendor
        rows[device.row] = vendor_row(device) | {"vendor": "NVIDIA" if vendor == "nvidia" else vendor}
    coefficients = module.all_coefficients(COEFFICIENTS["systems"], rows)
    pcie = module.pcie_rows(COEFFICIENTS)
    for device in module.DEVICES:
        lines = module.calibration_lines(device, rows[device.row], coefficients[device.name], pcie)
        text = (ROOT / "gpu_profiles" / f"{device.name}.yaml").read_text(encoding="utf-8")
        assert text.endswith("\n" + "\n".join(lines) + "\n"), device.name


def test_the_tool_writes_the_same_twice_and_what_loads(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    module = importlib.import_module("build_gpu_profiles")
    data, rows = inputs(module.DEVICES)
    first, second = module.profiles(data, rows), module.profiles(data, rows)
    assert first == second
    assert tuple(sorted(first)) == gpu_names()
    shares = {d.name: d.estimate.factors.get("memory", 1.0) for d in module.DEVICES if d.estimate}
    for name, text in first.items():
        gpu = gpu_from_document(parse_document(text, f"{name}.yaml", GpuProfileDocument).model)
        assert gpu.name == name
        # Efficiency x bandwidth is the fit's whatever the profile's own bandwidth.
        row = gpu.calibration.decode_attention[Dtype.BF16]
        rate = 0.9e12 * shares.get(name, 1.0) / (2 if "mi250" in name else 1)
        assert row.memory_efficiency * gpu.hbm_bandwidth == pytest.approx(rate, rel=1e-4)


@pytest.mark.parametrize("path", PROFILES, ids=lambda p: p.stem)
def test_every_figure_names_a_source(path):
    document = load_document(path, GpuProfileDocument)
    spec = document.model.spec
    figures = [f for f in vars(spec.peak_tflops).values() if f is not None]
    figures += [spec.hbm_gb_per_s, spec.memory_gib, spec.l2_mb, spec.sm_count, spec.power_w]
    assert {f.source for f in figures} <= set(document.model.sources)
    assert document.model.name == path.stem


# --------------------------------------------------------------------------------------------
# Bad input


def h100(**changes: str) -> str:
    text = (PROFILES[0].parent / "h100-sxm.yaml").read_text(encoding="utf-8")
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new, 1)
    return text


def problems_of(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_document(text, "x.yaml", GpuProfileDocument)
    return str(caught.value)


def test_an_efficiency_above_its_limit_is_refused_with_its_line():
    message = problems_of(h100(a=("memory_efficiency: 0.8748", "memory_efficiency: 1.03")))
    assert "calibration.gemm.bf16.memory_efficiency: must be <= 1.02, got 1.03" in message
    assert "line " in message


def test_an_unknown_source_is_refused():
    assert "spec.hbm_gb_per_s.source: is no key of sources" in problems_of(
        h100(a=("hbm_gb_per_s: {value: 3350, source: spec}", "hbm_gb_per_s: {value: 3350, source: web}"))
    )


def test_every_problem_is_reported_at_once():
    message = problems_of(
        h100(a=("vendor: nvidia", "vendr: nvidia"), b=("norm_exponent: 3.132", "norm_exponent: 99"))
    )
    assert "did you mean vendor?" in message
    assert "norm_exponent: must be <= 12" in message


def test_a_profile_without_a_16_bit_peak_is_refused():
    lines = [line for line in h100().splitlines() if not line.startswith(("    bf16: {", "    fp16: {"))]
    assert "needs bf16 or fp16" in problems_of("\n".join(lines))


def test_units_are_converted_once():
    document = parse_document(h100(), "x.yaml", GpuProfileDocument).model
    gpu = gpu_from_document(document)
    assert gpu.network_bandwidth == 50 * GIGA
    assert gpu.memory == pytest.approx(79.19 * GIB)
    assert gpu.calibration.prefill_attention.softmax_time == pytest.approx(31.22e-12)
    assert gpu.calibration.decode_attention[Dtype.BF16].cta_time == pytest.approx(2.792e-6)
