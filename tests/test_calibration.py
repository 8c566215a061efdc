"""Fits of operators: known coefficients found again, refusals, and profiles made of samples."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import Runner
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.calibration.fitting import Fit, fit, predicted
from planner.calibration.forms import FORMS, Peaks, area_of, coefficients_of
from planner.calibration.links import fits_by_world
from planner.calibration.peaks import peaks_of
from planner.calibration.profile import build_profile, merged
from planner.cases import FULL_GPU, QUICK_GPU, cases_of
from planner.catalog import load_gpu, load_gpu_document
from planner.cli.calibrate_ops import ops
from planner.device_facts import DeviceFacts, catalogue_name, facts_of, head_of
from planner.documents.samples_file import read_samples, samples_text
from planner.errors import SpecError
from planner.samples import AXES, Operator, Samples, SampleSet
from planner.specs import CalibrationStatus, Dtype

H100 = load_gpu("h100-sxm")
MESSAGES = [4096 * 4**i for i in range(9)]


def shapes(operator: Operator, dtype: Dtype | None) -> list[dict[str, float]]:
    """Axes of the cases that a profile times of an operator, or of the published tables."""
    if operator is Operator.ALL_REDUCE:
        return [{"bytes": s, "ranks": n} for s in MESSAGES for n in (2, 4, 8)]
    if operator is Operator.LATENT_DECODE:
        return [
            {"batch": b, "context": c, "heads": h}
            for b in (1, 16, 128)
            for c in (128, 2048, 32768)
            for h in (16, 128)
        ]
    if operator is Operator.LATENT_PREFILL:
        return [
            {"batch": b, "query": q, "heads": h}
            for b in (1, 8)
            for q in (64, 512, 2048, 8192)
            for h in (16, 64, 128)
        ]
    cases = cases_of(FULL_GPU, (Dtype.BF16, Dtype.FP8), (Dtype.BF16, Dtype.FP8), (Dtype.BF16,))
    return [dict(c.axes) for c in cases if (c.operator, c.dtype) == (operator, dtype)]


def made(
    operator: Operator, dtype: Dtype | None, rng: np.random.Generator | None = None, repeats: int = 1
) -> tuple[Samples, dict[str, float], Peaks]:
    """Samples by the coefficients of H100, with 5 % noise and 3 % of outliers where there is `rng`."""
    values = coefficients_of(H100, operator, dtype)
    assert values is not None
    peaks = peaks_of(H100, operator, dtype)
    rows = shapes(operator, dtype) * repeats
    bare = Samples.of_rows(operator, dtype, rows, [1.0] * len(rows))
    time = predicted(bare, peaks, values)
    if rng is not None:
        time = time * np.exp(0.05 * rng.standard_normal(len(time)))
        glitches = rng.random(len(time)) < 0.03
        time = np.where(glitches, time * rng.uniform(1.5, 5.0, len(time)), time)
    return replace(bare, time=time), values, peaks


FITTED = [
    (Operator.GEMM, Dtype.BF16),
    (Operator.GEMM, Dtype.FP8),
    (Operator.DECODE_ATTENTION, Dtype.BF16),
    (Operator.DECODE_ATTENTION, Dtype.FP8),
    (Operator.PREFILL_ATTENTION, None),
    (Operator.EXPERTS, Dtype.BF16),
    (Operator.LATENT_DECODE, Dtype.BF16),
    (Operator.LATENT_PREFILL, None),
    (Operator.ALL_REDUCE, None),
    (Operator.ELEMENTWISE, None),
]


@pytest.mark.parametrize(("operator", "dtype"), FITTED)
def test_exact_samples_give_exact_times(operator: Operator, dtype: Dtype | None) -> None:
    samples, _, peaks = made(operator, dtype)
    found = fit(samples, peaks)
    error = np.abs(predicted(samples, peaks, found.values) / samples.time - 1)
    assert error.max() < 0.03  # few samples are drawn to other GPUs a little


@pytest.mark.parametrize(("operator", "dtype"), FITTED)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=5, deadline=None)
def test_known_coefficients_are_found_in_noise(operator: Operator, dtype: Dtype | None, seed: int) -> None:
    """Times of all shapes within 5 % of the truth, from samples with 5 % noise and 3 % outliers."""
    rng = np.random.default_rng(seed)
    samples, truth, peaks = made(operator, dtype, rng, repeats=3)
    found = fit(samples, peaks)
    error = np.abs(predicted(samples, peaks, found.values) / predicted(samples, peaks, truth) - 1)
    assert np.median(error) < 0.05
    assert np.percentile(error, 90) < 0.15


# --------------------------------------------------------------------------------------------
# What cannot be fitted


def gemm(times: list[float], m: float = 1.0) -> Samples:
    rows = [{"m": m, "n": 4096.0, "k": 4096.0, "quantize": 0.0}] * len(times)
    return Samples.of_rows(Operator.GEMM, Dtype.BF16, rows, times)


BF16_PEAKS = peaks_of(H100, Operator.GEMM, Dtype.BF16)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ([1e-4], "gemm.bf16: a fit needs at least 2 times above 0, got 1 of 1 (measure more cases)"),
        ([0.0, 0.0, -1.0], "got 0 of 3"),
        ([math.nan, math.inf, 1e-4], "got 1 of 3"),
    ],
)
def test_too_few_times_are_refused(times: list[float], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        fit(gemm(times), BF16_PEAKS)
    assert said in str(caught.value)


def test_entries_that_are_no_times_are_counted() -> None:
    samples, truth, peaks = made(Operator.GEMM, Dtype.BF16)
    broken = samples.time.copy()
    broken[:3] = (math.nan, 0.0, -1.0)
    found = fit(replace(samples, time=broken), peaks)
    assert found.residuals.left_out == 3
    assert found.residuals.points == len(samples) - 3
    np.testing.assert_allclose(
        predicted(samples, peaks, found.values), predicted(samples, peaks, truth), rtol=0.03
    )


def test_what_only_memory_bound_samples_tell() -> None:
    """Products of one row say nothing of arithmetic: that is marked, and borrowed."""
    samples, truth, peaks = made(Operator.GEMM, Dtype.BF16)
    few = samples.part(samples.axes["m"] == 1)
    found = fit(few, peaks)
    assert "compute_efficiency" in found.unidentified
    typical = next(c for c in FORMS[Operator.GEMM].coefficients if c.name == "compute_efficiency")
    assert found.values["compute_efficiency"] == typical.typical
    assert found.values["memory_efficiency"] == pytest.approx(truth["memory_efficiency"], rel=0.05)


def test_equal_samples_are_a_marked_partial_fit() -> None:
    found = fit(gemm([2e-5] * 4), BF16_PEAKS)
    assert any("Only 4 samples" in note for note in found.notes)
    assert predicted(gemm([2e-5]), BF16_PEAKS, found.values) == pytest.approx(2e-5, rel=0.02)


def test_samples_beyond_the_peak_are_refused() -> None:
    """Efficiencies above 1.02 are errors of the peak or of the benchmark, and the message says so."""
    samples, _, peaks = made(Operator.GEMM, Dtype.BF16)
    with pytest.raises(SpecError) as caught:
        fit(replace(samples, time=samples.time / 2), peaks)
    said = str(caught.value)
    assert "beat the stated peaks" in said
    assert "the peak is too low" in said
    assert "inputs left in the cache" in said
    with pytest.raises(SpecError, match="beat the stated peaks"):
        fit(samples, replace(peaks, compute=peaks.compute / 2))


def test_small_cases_in_the_cache_do_not_refuse_a_table() -> None:
    """What fits into the cache may have been read from it: such samples are left out, and counted."""
    samples, _, peaks = made(Operator.DECODE_ATTENTION, Dtype.BF16)
    small = samples.axes["batch"] * samples.axes["context"] * samples.axes["kv_heads"] <= 4096
    hot = replace(samples, time=np.where(small, 1e-8, samples.time))
    with pytest.raises(SpecError, match="beat the stated peaks"):
        fit(hot, peaks)
    found = fit(hot, peaks, cache_bytes=H100.l2_bytes)
    assert found.residuals.points == len(samples) - small.sum()
    assert any("beat the peaks were left out" in note for note in found.notes)


def test_no_efficiency_leaves_its_bounds() -> None:
    samples, _, peaks = made(Operator.GEMM, Dtype.BF16)
    found = fit(replace(samples, time=samples.time * 0.97), peaks)
    assert all(0 < v <= 1.02 for name, v in found.values.items() if name.endswith("efficiency"))


@pytest.mark.parametrize("operator", [Operator.COPY, Operator.LAUNCH, Operator.HOST_COPY])
def test_what_has_no_form(operator: Operator) -> None:
    rows = [dict.fromkeys(AXES[operator], 1.0)] * 3
    with pytest.raises(SpecError, match="has no coefficients; those with: gemm"):
        fit(Samples.of_rows(operator, None, rows, [1.0, 2.0, 3.0]), BF16_PEAKS)


def test_residuals_by_regime_count_every_sample() -> None:
    samples, _, peaks = made(Operator.GEMM, Dtype.BF16, np.random.default_rng(1))
    r = fit(samples, peaks).residuals
    assert set(r.regimes) == {"latency", "memory", "compute"}
    assert sum(part.points for part in r.regimes.values()) == r.points
    assert r.ranges["m"] == (1.0, 8192.0)


@pytest.mark.parametrize(
    ("query", "past", "window", "area"),
    [(4, 0, 0, 8.0), (4, 10, 0, 48.0), (4, 0, 2, 2.0 + 4.0), (4, 10, 2, 8.0), (1, 0, 0, 0.5)],
)
def test_query_key_pairs(query: float, past: float, window: float, area: float) -> None:
    assert area_of(np.array([query]), np.array([past]), np.array([window])).tolist() == [area]


# --------------------------------------------------------------------------------------------
# All-reduce over PCIe


def test_worlds_over_pcie_have_a_latency_and_a_bandwidth_each() -> None:
    """Two world sizes on no common law: 20 us and 4 GB/s of 2, 60 us and 1 GB/s of 4."""
    rows = [{"bytes": s, "ranks": n} for n in (2, 4) for s in MESSAGES]
    time = [2e-5 + s / 4e9 for s in MESSAGES] + [6e-5 + 1.5 * s / 1e9 for s in MESSAGES]
    reduce = Samples.of_rows(Operator.ALL_REDUCE, None, rows, time)
    samples = sample_set(0, (Operator.GEMM, Dtype.BF16))
    built = build_profile(
        replace(samples, tables={**samples.tables, reduce.key: reduce}),
        facts(name="Some Board"),
        name="x",
        date="2026-11-30",
    )
    worlds = built.gpu.calibration.pcie_all_reduce
    assert worlds[2].alpha == pytest.approx(2e-5, rel=0.05)
    assert worlds[2].bandwidth == pytest.approx(4e9, rel=0.05)
    assert worlds[4].alpha == pytest.approx(6e-5, rel=0.05)
    assert worlds[4].bandwidth == pytest.approx(1e9, rel=0.05)


def test_one_message_size_is_no_world() -> None:
    one = Samples.of_rows(Operator.ALL_REDUCE, None, [{"bytes": 4096.0, "ranks": 2}] * 3, [1e-5] * 3)
    assert fits_by_world(one, lambda part: fit(part, peaks_of(H100, Operator.ALL_REDUCE, None))) == {}


# --------------------------------------------------------------------------------------------
# Profiles


def facts(**changes: object) -> DeviceFacts:
    known = DeviceFacts(
        name="NVIDIA H100 80GB HBM3",
        kind="cuda",
        vendor="nvidia",
        architecture="hopper",
        sm_count=132,
        memory=85e9,
        cache=50e6,
        count=8,
        power=700.0,
        driver_memory=None,
        software={"torch": "2.13.0", "driver": "580"},
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def sample_set(seed: int = 0, *keys: tuple[Operator, Dtype | None]) -> SampleSet:
    rng = np.random.default_rng(seed)
    tables = {key: made(*key, rng)[0] for key in keys or FITTED if key[0] is not Operator.LATENT_DECODE}
    copy = Samples.of_rows(Operator.COPY, None, [{"bytes": 2.0**31}], [2.0**31 / 3.0e12])
    return SampleSet(
        device=facts().name, tables={**tables, (Operator.COPY, None): copy}, facts=head_of(facts())
    )


def test_profile_of_a_known_gpu_keeps_the_vendors_figures() -> None:
    built = build_profile(
        sample_set(), facts(), name="mine", date="2026-11-30", base=load_gpu_document("h100-sxm")
    )
    gpu = built.gpu
    assert (gpu.name, gpu.peak_flops, gpu.hbm_bandwidth) == ("mine", H100.peak_flops, H100.hbm_bandwidth)
    assert gpu.calibration.status is CalibrationStatus.MEASURED
    assert gpu.calibration.software == "torch 2.13.0, driver 580"
    for operator, dtype in FITTED:
        if operator is Operator.LATENT_DECODE:
            continue
        samples, truth, peaks = made(operator, dtype)
        own = coefficients_of(gpu, operator, dtype)
        assert own is not None
        error = np.abs(predicted(samples, peaks, own) / predicted(samples, peaks, truth) - 1)
        assert np.median(error) < 0.05
    assert gpu.calibration.latent_decode[Dtype.BF16] == H100.calibration.latent_decode[Dtype.BF16]
    assert gpu.calibration.log_sd["latent_decode.bf16"] >= 0.2  # not measured on this board
    assert "mla_decode.bf16: not measured, that of the catalogue" in built.notes


def test_profile_of_an_unknown_device_says_what_it_attains() -> None:
    samples = sample_set()
    built = build_profile(samples, facts(name="Some Board"), name="mine", date="2026-11-30")
    gpu = built.gpu
    best = samples.tables[(Operator.GEMM, Dtype.BF16)]
    rate = (2 * best.axes["m"] * best.axes["n"] * best.axes["k"] / best.time).max()
    assert gpu.peak_flops[Dtype.BF16] == pytest.approx(rate, rel=1e-4)
    assert gpu.hbm_bandwidth >= 3.0e12 * 0.999  # what the copy attained, or a kernel more
    assert "Attained, not the vendor's figure." in " ".join(gpu.notes)
    assert "network_gbps" in gpu.unverified
    assert all(
        0 < v <= 1.02 for f in built.fits.values() for n, v in f.values.items() if n.endswith("efficiency")
    )


def test_a_profile_needs_products_in_16_bits() -> None:
    samples = sample_set(0, (Operator.DECODE_ATTENTION, Dtype.BF16))
    with pytest.raises(SpecError, match="no matrix product in 16 bits was measured"):
        build_profile(samples, facts(name="Some Board"), name="x", date="2026-11-30")


def test_what_an_unknown_device_did_not_time_is_marked() -> None:
    samples = sample_set(0, (Operator.GEMM, Dtype.BF16))
    built = build_profile(samples, facts(name="Some Board"), name="x", date="2026-11-30")
    assert built.gpu.calibration.log_sd["prefill_attention"] == 0.5
    assert "prefill_attention: not measured; typical of data-centre GPUs" in built.notes


# --------------------------------------------------------------------------------------------
# Files


def test_samples_survive_their_file(tmp_path: Path) -> None:
    samples = sample_set()
    path = tmp_path / "s.csv"
    path.write_text(samples_text(samples), encoding="utf-8")
    again = read_samples(path)
    assert again.device == samples.device
    assert facts_of(again.device, again.facts) == facts()
    assert again.tables.keys() == samples.tables.keys()
    for key, found in samples.tables.items():
        np.testing.assert_allclose(again.tables[key].time, found.time, rtol=1e-5)
        for axis, values in found.axes.items():
            np.testing.assert_array_equal(again.tables[key].axes[axis], values)


HEAD = "operator,dtype,m,n,k,quantize,time_us\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("operator,time_us\ngemm,1\n", "no column dtype in the first line of the table"),
        (HEAD + "gem,bf16,1,2,3,0,5\n", "line 2: operator: must be one of gemm"),
        (HEAD + "gem,bf16,1,2,3,0,5\n", "did you mean gemm?"),
        (HEAD + "gemm,bf17,1,2,3,0,5\n", "line 2: dtype"),
        (HEAD + "gemm,,1,2,3,0,5\n", "dtype: must name the format of weights or KV cache"),
        (HEAD + "gemm,bf16,0,2,3,0,5\n", "line 2: m: must be a number > 0 for gemm, got 0"),
        (HEAD + "gemm,bf16,1,2,,0,5\n", "line 2: k: must be a number > 0"),
        (HEAD, "has no rows"),
        ("", "no column operator"),
        (HEAD + "gemm,bf16,1,2,3,0,abc\n", "line 2: time_us: must be a number, got abc"),
        ("operator,dtype,time_us,time_us\ngemm,bf16,1,2\n", "column 'time_us' occurs twice"),
    ],
)
def test_faults_in_a_file_of_samples(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "s.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        read_samples(path)
    assert said in str(caught.value)


def test_times_that_are_none_are_left_to_the_fit(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_text(HEAD + "gemm,bf16,1,2,3,0,\ngemm,bf16,1,2,3,0,-4\ngemm,bf16,1,2,3,,7\n", encoding="utf-8")
    found = read_samples(path).tables[(Operator.GEMM, Dtype.BF16)]
    assert math.isnan(found.time[0])
    assert found.time[2] == pytest.approx(7e-6)
    assert found.axes["quantize"].tolist() == [0.0, 0.0, 0.0]


def test_of_several_libraries_the_fastest_counts() -> None:
    rows = [{"m": 1, "n": 2, "k": 3, "quantize": 0}] * 3 + [{"m": 2, "n": 2, "k": 3, "quantize": 0}]
    samples = Samples.of_rows(
        Operator.GEMM, Dtype.BF16, rows, [3.0, 1.0, math.nan, 5.0], None, ["a", "b", "c", "a"]
    )
    found = SampleSet(device="", tables={samples.key: samples}).fastest().tables[samples.key]
    assert found.time.tolist() == [1.0, 5.0]
    assert found.kernels == ("b", "a")


def test_samples_of_two_devices_do_not_mix() -> None:
    one, other = sample_set(), replace(sample_set(), device="Another")
    with pytest.raises(SpecError, match=r"several devices cannot be fitted together: Another, NVIDIA H100"):
        merged([one, other])
    both = merged([one, sample_set(1)])
    assert len(both) == 2 * len(one)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-32GB", "v100-32gb-sxm"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-workstation"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD EPYC 9654", None),
        ("Intel(R) Xeon(R) Platinum 8480C", None),
    ],
)
def test_names_of_drivers(device: str, name: str | None) -> None:
    assert catalogue_name(device) == name


# --------------------------------------------------------------------------------------------
# Command


def test_calibrate_ops_makes_the_profile_again(tmp_path: Path) -> None:
    source, target = tmp_path / "s.csv", tmp_path / "mine.yaml"
    source.write_text(samples_text(sample_set()), encoding="utf-8")
    done = CliRunner().invoke(ops, [str(source), "-o", str(target)])
    assert done.exit_code == 0, done.output
    gpu = load_gpu(target)
    assert gpu.name == "mine"
    assert gpu.calibration.status is CalibrationStatus.MEASURED
    first = target.read_bytes()
    CliRunner().invoke(ops, [str(source), "-o", str(target)])
    assert target.read_bytes() == first


def test_calibrate_ops_refuses_before_it_writes(tmp_path: Path) -> None:
    source, target = tmp_path / "s.csv", tmp_path / "mine.yaml"
    samples = sample_set()
    halved = {key: replace(found, time=found.time / 3) for key, found in samples.tables.items()}
    source.write_text(samples_text(replace(samples, tables=halved)), encoding="utf-8")
    done = CliRunner().invoke(ops, [str(source), "-o", str(target)])
    assert isinstance(done.exception, SpecError)
    assert "beat the stated peaks" in str(done.exception)
    assert not target.exists()


def test_a_table_without_a_head_needs_a_gpu(tmp_path: Path) -> None:
    source, target = tmp_path / "s.csv", tmp_path / "mine.yaml"
    text = samples_text(sample_set())
    source.write_text("".join(line for line in text.splitlines(True) if line[0] != "#"), encoding="utf-8")
    refused = CliRunner().invoke(ops, [str(source), "-o", str(target)])
    assert "name a GPU of the catalogue with --gpu" in str(refused.exception)
    done = CliRunner().invoke(ops, [str(source), "--gpu", "h100-sxm", "-o", str(target)])
    assert done.exit_code == 0, done.output


def test_quick_shapes_are_among_the_full_ones() -> None:
    formats = ((Dtype.BF16,), (Dtype.BF16,), (Dtype.BF16,))
    full = {str(case) for case in cases_of(FULL_GPU, *formats)}
    assert {str(case) for case in cases_of(QUICK_GPU, *formats)} <= full


def test_any_first_part_of_the_cases_covers_all_operators() -> None:
    cases = cases_of(FULL_GPU, (Dtype.BF16, Dtype.FP8), (Dtype.BF16,), (Dtype.BF16,))
    first = {(case.operator, case.dtype) for case in cases[:20]}
    assert first == {(case.operator, case.dtype) for case in cases}
    assert len({str(case) for case in cases}) == len(cases)


def test_fit_is_a_value() -> None:
    samples, _, peaks = made(Operator.ELEMENTWISE, None)
    assert isinstance(fit(samples, peaks), Fit)
    assert fit(samples, peaks) == fit(samples, peaks)


EXAMPLE = Path(__file__).parents[1] / "examples" / "cpu.samples.csv"
SCENARIO = """\
model: meta-llama/Llama-3.2-1B-Instruct
workload: {request_rate: 0.2, input_tokens: 128, output_tokens: 16}
slo: {ttft_ms: {p90: 30000}, tpot_ms: {p90: 5000}}
fleet: [{gpu: ./cpu.yaml, price_per_gpu_hour: 0.1, max_gpus: 8}]
"""


def test_a_processor_is_planned_with_but_not_deployed(planner: Runner, tmp_path: Path) -> None:
    """The samples of the examples make a profile that solve takes; files are emitted for GPUs only."""
    assert planner("calibrate", "ops", EXAMPLE, "-o", tmp_path / "cpu.yaml").code == 0
    (tmp_path / "scenario.yaml").write_text(SCENARIO, encoding="utf-8")
    plan = tmp_path / "plan.yaml"
    assert planner("solve", tmp_path / "scenario.yaml", "--no-verify", "-o", plan).code == 0
    refused = planner("emit", plan, "--target", "vllm", "-o", tmp_path / "out", "--force")
    assert refused.code == 2
    assert "no files are emitted for CPUs, the plan has cpu" in refused.err
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_profile_without_torch_says_what_to_install(planner: Runner, tmp_path: Path) -> None:
    refused = planner("profile", "-o", tmp_path / "x.yaml")
    assert refused.code == 2
    assert 'planner profile needs torch: pip install "pd-planner[profile]"' in refused.err
    assert list(tmp_path.iterdir()) == []


def test_tables_or_samples(planner: Runner, tmp_path: Path) -> None:
    for arguments, said in (
        ((), "give SAMPLES or --tables, one of both"),
        ((EXAMPLE, "--tables", "h100_sxm"), "give SAMPLES or --tables, one of both"),
        ((EXAMPLE, "--engine", "vllm"), "--engine and --package go with --tables"),
        (("--tables", "h100_sxm", "--package", tmp_path), str(tmp_path)),
    ):
        refused = planner("calibrate", "ops", *arguments, "-o", tmp_path / "x.yaml")
        assert refused.code == 2
        assert said in refused.err
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("# sm_count: 132\n", "# sm_count: 0\n", "# sm_count: must be a number > 0, got '0'"),
        ("# sm_count: 132\n", "", "the lines before the table have no # sm_count:"),
        ("# kind: cuda\n", "# kind: toaster\n", "# kind: must be cpu or cuda, got 'toaster'"),
    ],
)
def test_faults_in_the_head_of_samples(
    tmp_path: Path, planner: Runner, old: str, new: str, said: str
) -> None:
    text = samples_text(sample_set())
    assert old in text
    source = tmp_path / "s.csv"
    source.write_text(text.replace(old, new), encoding="utf-8")
    refused = planner("calibrate", "ops", source, "-o", tmp_path / "x.yaml")
    assert refused.code == 2
    assert str(source) in refused.err
    assert said in refused.err
    assert not (tmp_path / "x.yaml").exists()


def test_samples_of_a_processor_are_not_those_of_a_gpu(tmp_path: Path, planner: Runner) -> None:
    refused = planner("calibrate", "ops", EXAMPLE, "--gpu", "h100-sxm", "-o", tmp_path / "x.yaml")
    assert refused.code == 2
    assert "was measured on a processor, not on h100-sxm (leave --gpu out)" in refused.err


def test_an_unknown_device_needs_a_copy() -> None:
    samples = sample_set()
    tables = {key: found for key, found in samples.tables.items() if key[0] is not Operator.COPY}
    with pytest.raises(SpecError, match="no copy was timed: nothing tells the memory bandwidth"):
        build_profile(replace(samples, tables=tables), facts(name="Some Board"), name="x", date="2026-11-30")


@pytest.mark.parametrize("name", ["x", "x.csv", ".yaml", "x.samples.csv"])
def test_profiles_are_yaml(tmp_path: Path, planner: Runner, name: str) -> None:
    refused = planner("calibrate", "ops", EXAMPLE, "-o", tmp_path / name)
    assert refused.code == 2
    assert "is no name of a profile (it has to end in .yaml)" in refused.err


def test_what_others_measured_is_fitted_not_measured() -> None:
    """A profile of published tables does not say that planner measured this GPU."""
    base = load_gpu_document("h100-sxm")
    built = build_profile(
        sample_set(), facts(), name="x", date="2026-11-30", base=base, status=CalibrationStatus.FITTED
    )
    assert built.gpu.calibration.status is CalibrationStatus.FITTED
