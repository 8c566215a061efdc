"""Cases of users who measured: what a profile may claim, and what plans say of GPUs that nobody measured."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from conftest import Runner

from planner.calibration.fitting import fit
from planner.calibration.forms import FORMS, coefficients_of, form_of
from planner.calibration.peaks import peaks_of
from planner.catalog import gpu_names, load_gpu
from planner.documents.scenario import scenario_from_text
from planner.errors import SpecError
from planner.roofline import EFFICIENCY_LIMIT
from planner.samples import Operator, Samples
from planner.search import SolveOptions
from planner.specs import Dtype
from planner.workflow import solve


def products(factor: float) -> Samples:
    """Products on an H100 as its profile says, so many times faster."""
    gpu = load_gpu("h100-sxm")
    rows = [
        {"m": m, "n": n, "k": 4096.0, "quantize": 0.0}
        for m in (1.0, 16.0, 128.0, 1024.0, 8192.0)
        for n in (1024.0, 4096.0, 16384.0, 28672.0, 65536.0)
    ]
    bare = Samples.of_rows(Operator.GEMM, Dtype.BF16, rows, [1.0] * len(rows))
    values = coefficients_of(gpu, Operator.GEMM, Dtype.BF16)
    assert values is not None
    time = form_of(Operator.GEMM).time(values, bare, peaks_of(gpu, Operator.GEMM, Dtype.BF16))
    return replace(bare, time=np.asarray(time) / factor)


def test_u88_benchmarks_above_the_physical_peak_are_refused() -> None:
    """Inputs left in the cache, a wrong peak, short runs: MFU 1.25 and the like (DeepGEMM#68,
    rocm-amdgpu-bench#4, rocprofiler-compute#691, accelerator-microbenchmarks#115)."""
    peaks = peaks_of(load_gpu("h100-sxm"), Operator.GEMM, Dtype.BF16)
    honest = fit(products(1.0), peaks)
    assert all(0 < v <= EFFICIENCY_LIMIT for n, v in honest.values.items() if n.endswith("efficiency"))
    for factor in (1.6, 2.0, 10.0):
        with pytest.raises(SpecError, match="beat the stated peaks"):
            fit(products(factor), peaks)


@pytest.mark.parametrize("name", gpu_names())
def test_u88_no_profile_claims_more_than_its_peaks(name: str) -> None:
    gpu = load_gpu(name)
    for operator in FORMS:
        for dtype in (None, *Dtype):
            values = coefficients_of(gpu, operator, dtype) or {}
            shares = [value for key, value in values.items() if key.endswith("efficiency")]
            assert all(0 < share <= EFFICIENCY_LIMIT for share in shares), (operator, dtype)


def test_u90_time_per_token_rises_gradually_with_load(planner: Runner) -> None:
    """Four A10 over PCIe: another tool said 5.7 ms a token up to 128 clients and 105 ms at 256
    (aiconfigurator#1205)."""
    found = []
    for clients in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        result = planner(
            "predict", "--model", "meta-llama/Llama-3.1-8B", "--gpu", "a10", "--tp", 4, "--mode", "colocated",
            "--concurrency", clients, "--isl", 512, "--osl", 128, "--json",
        )  # fmt: skip
        assert result.code == 0, result.err
        found.append(json.loads(result.out)["tpot_ms"])
    steps = np.array(found[1:]) / np.array(found[:-1])
    assert (steps >= 0.999).all()
    assert (steps < 2.5).all(), found
    assert found[-1] > 1.5 * found[0]


def test_u90_a_plan_says_that_nobody_measured_its_gpu() -> None:
    loaded = scenario_from_text(
        """
        model: meta-llama/Llama-3.1-8B-Instruct
        workload: {request_rate: 2, input_tokens: 512, output_tokens: 128}
        slo: {ttft_ms: {p99: 4000}, tpot_ms: {p99: 200}}
        fleet: [{gpu: a10, price_per_gpu_hour: 1.0, max_gpus: 16}]
        """
    )
    plan = solve(loaded, SolveOptions(verify=False))
    assert any(line.startswith("GPU a10: estimated") for line in plan.provenance), plan.provenance
    (prediction,) = plan.predictions
    width = prediction.tpot.high.p99 / prediction.tpot.low.p99
    assert width > 1.5  # the band of a spec sheet with borrowed coefficients
