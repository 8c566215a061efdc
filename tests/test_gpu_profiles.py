"""The GPU profiles: every one loads, none exceeds physics, figures are those of their sources."""

import csv
import dataclasses
from pathlib import Path

import pytest

from planner.catalog import gpu_names, load_gpu
from planner.documents.gpu_profile import EFFICIENCY_LIMIT, GpuProfileDocument, gpu_from_document
from planner.documents.source import load_document, parse_document
from planner.errors import SpecError
from planner.specs import GPU, CalibrationStatus, Dtype
from planner.units import GIB, GIGA, TERA

GOLDEN = Path(__file__).parent / "golden"
PROFILES = sorted((Path(__file__).parent.parent / "gpu_profiles").glob("*.yaml"))
FITTED = {"a100-80gb-sxm", "b200-sxm", "gb200", "h100-sxm", "h200-sxm", "l40s"}
SCALES = {"TFLOP/s": TERA, "GB/s": GIGA, "GiB": GIB, "W": 1.0, "1": 1.0, "B/s": 1.0, "FLOP/s": 1.0}


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
    if operator == "prefill_attention":
        row = c.prefill_attention
        if rest[0] == "compute":
            return row.compute_efficiency * gpu.peak_flops[Dtype.BF16]
        return row.memory_efficiency * gpu.hbm_bandwidth
    assert c.all_reduce is not None
    return c.all_reduce.bandwidth_efficiency * gpu.scale_up_bandwidth


def test_the_first_fleet_is_there():
    assert set(gpu_names()) >= FITTED | {"l4", "a10g", "mi300x"}


@pytest.mark.parametrize("name", gpu_names())
def test_profile_is_complete(name):
    gpu = load_gpu(name)
    assert gpu.name == name
    assert gpu.calibration.gemm
    assert Dtype.BF16 in gpu.peak_flops
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
    assert set(gpu.calibration.gemm) <= set(gpu.peak_flops)


@pytest.mark.parametrize("row", golden("gpu_attained_rates.csv"), ids=lambda r: f"{r['gpu']}-{r['quantity']}")
def test_attained_rates_are_those_of_the_fit(row):
    # Efficiency x peak must survive a profile that states another peak than the fit used.
    assert attained(load_gpu(row["gpu"]), row["quantity"]) == pytest.approx(float(row["value"]), rel=1e-4)


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
    for name in ("l4", "a10g", "mi300x"):
        assert min(load_gpu(name).calibration.log_sd.values()) >= 0.2


def test_a_fit_outside_physics_falls_back_to_its_neighbour():
    calibration = load_gpu("l40s").calibration
    assert calibration.decode_attention[Dtype.FP8] == calibration.decode_attention[Dtype.BF16]
    assert calibration.log_sd["decode_attention.fp8"] >= 0.2


@pytest.mark.parametrize("name", ["l40s", "l4", "a10g"])
def test_all_reduce_over_pcie_goes_by_world_size(name):
    calibration = load_gpu(name).calibration
    assert calibration.all_reduce is None
    assert calibration.pcie_all_reduce[2].bandwidth == pytest.approx(0.597 * 32 * GIGA)
    assert calibration.pcie_all_reduce[8].alpha == pytest.approx(19.8e-6)
    assert "all_reduce" in calibration.log_sd


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
    message = problems_of(h100(a=("memory_efficiency: 0.8749", "memory_efficiency: 1.03")))
    assert "calibration.gemm.bf16.memory_efficiency: must be <= 1.02, got 1.03" in message
    assert "line " in message


def test_an_unknown_source_is_refused():
    assert "spec.hbm_gb_per_s.source: is no key of sources" in problems_of(
        h100(a=("hbm_gb_per_s: {value: 3350, source: spec}", "hbm_gb_per_s: {value: 3350, source: web}"))
    )


def test_every_problem_is_reported_at_once():
    message = problems_of(
        h100(a=("vendor: nvidia", "vendr: nvidia"), b=("norm_exponent: 3.184", "norm_exponent: 99"))
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
