"""GPUs side by side: figures, ridge points, coefficients, times of reference operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Runner

from planner.catalog import gpu_names, load_gpu
from planner.reference_operators import reference_times

ROOT = Path(__file__).parents[1]


def by_name(gpu: str) -> dict[str, float | None]:
    return {r.operator: r.time for r in reference_times(load_gpu(gpu))}


def test_reference_times_of_a_known_gpu(h100):
    times = by_name("h100")
    small, large = 2 * 16 * 8192**2, 2 * 4096 * 8192**2  # FLOP
    weights = 2 * 8192**2  # bytes
    assert (
        weights / h100.hbm_bandwidth < times["16-bit product, small M"] < 1.5 * weights / h100.hbm_bandwidth
    )
    assert large / 989.4e12 < times["16-bit product, large M"] < 1.4 * large / 989.4e12
    assert small / 989.4e12 < times["16-bit product, small M"]
    cache = 2 * 64 * 4096 * 8 * 128 * 2
    assert cache / h100.hbm_bandwidth < times["decode attention"] < 1.4 * cache / h100.hbm_bandwidth
    assert times["fp8 product, small M"] < times["16-bit product, small M"]
    assert times["all-reduce, decode step"] < times["all-reduce, prompt"]


def test_what_a_gpu_cannot_do_has_no_time():
    assert by_name("a100")["fp8 product, large M"] is None
    assert by_name("v100-32gb-sxm")["16-bit product, large M"] is not None  # in fp16


@pytest.mark.parametrize("gpu", gpu_names())
def test_every_profile_can_be_compared(gpu):
    times = reference_times(load_gpu(gpu))
    assert [t.operator for t in times] == [t.operator for t in reference_times(load_gpu("h100"))]
    assert all(t.time is None or t.time > 0 for t in times)


def test_comparison_as_json(planner: Runner):
    facts = planner("gpus", "--compare", "h100", "a100", "--json").facts
    first, second = facts["gpus"]
    assert (first["label"], second["label"]) == ("h100-sxm", "a100-80gb-sxm")
    assert first["ridge_flop_per_byte"]["bf16"] == pytest.approx(989.4 / 3.35, rel=1e-6)
    assert second["ridge_flop_per_byte"]["bf16"] == pytest.approx(312 / 2.039, rel=1e-6)
    assert first["coefficients"]["gemm.bf16.overhead_us"] == pytest.approx(3.771)
    assert first["coefficients"]["prefill_attention.softmax_time_ns"] == pytest.approx(0.03122)
    assert first["calibration"] == "fitted"
    for row in facts["reference_operators"]:
        assert row["ratio"][0] == 1
        if row["time_us"][1] is not None:
            assert row["ratio"][1] == pytest.approx(row["time_us"][1] / row["time_us"][0])
    fp8 = next(r for r in facts["reference_operators"] if r["operator"] == "fp8 product, large M")
    assert fp8["time_us"][1] is None
    assert fp8["ratio"][1] is None


def test_the_option_and_the_command_are_one(planner: Runner):
    table = planner("gpus", "compare", "h100", "l40s", "mi300x")
    assert table.code == 0
    assert planner("gpus", "--compare", "h100", "l40s", "mi300x").out == table.out
    for words in (
        "memory bandwidth [GB/s]",
        "ridge point [FLOP/B]",
        "decode attention",
        "x1.00",
        "estimated",
    ):
        assert words in table.out
    as_json = planner("gpus", "--json", "--compare", "h100", "l40s").out
    assert as_json == planner("gpus", "compare", "h100", "l40s", "--json").out


def test_a_profile_file_stands_beside_its_namesake(planner: Runner, tmp_path: Path):
    text = (ROOT / "gpu_profiles" / "h100-sxm.yaml").read_text()
    assert "memory_efficiency: 0.8748" in text
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace("memory_efficiency: 0.8748", "memory_efficiency: 0.7"))
    facts = planner("gpus", "--compare", "h100", mine, "--json").facts
    assert [g["label"] for g in facts["gpus"]] == ["h100", "mine.yaml"]
    small = next(r for r in facts["reference_operators"] if r["operator"] == "16-bit product, small M")
    assert small["ratio"][1] > 1.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--compare", "h100", "h10O-sxm"), "unknown GPU 'h10O-sxm': did you mean h100-sxm?"),
        (("--compare", "h100"), "a comparison needs two GPUs or more, got 'h100' alone"),
        (("--compare",), "Missing argument"),
        (("--compare", "h100", "nowhere.yaml"), "nowhere.yaml: 1 problem\n  - no such file"),
    ],
)
def test_refusals(planner: Runner, arguments, message):
    result = planner("gpus", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
