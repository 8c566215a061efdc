"""Operator tables of aiconfigurator-core: the traps in them, the samples, and the committed coefficients."""

import builtins
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.calibration.fitting import fit
from planner.calibration.forms import Peaks, form_of
from planner.calibration.held_out import held_out
from planner.calibration.tables import board_of, label, peaks_of, read_tables
from planner.documents.operator_tables import (
    package_version,
    read_columns,
    read_figures,
    tables_folder,
    version_key,
)
from planner.errors import SpecError
from planner.samples import Operator, Samples
from planner.specs import Dtype
from planner.units import MICRO, MILLI

ROOT = Path(__file__).parents[1]
PACKAGE_VARIABLE = "AICONFIGURATOR_CORE"  # the package's folder, where the whole run has one

Write = Callable[..., Path]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with the figures of two GPUs and no table yet."""
    systems = tmp_path / "aiconfigurator_core" / "systems"
    (tmp_path / "aiconfigurator_core-9.8.7.dist-info").mkdir()
    for system in ("h100_sxm", "l40s"):
        (systems / "data" / system).mkdir(parents=True)
        (systems / f"{system}.yaml").write_text(
            "gpu:\n  mem_bw: 1000000000000\n  bfloat16_tc_flops: 100000000000000\n"
            "  fp8_tc_flops: 200000000000000\nnode:\n  intra_node_bw: 100000000000\n"
        )
    return tmp_path / "aiconfigurator_core"


@pytest.fixture
def write(package: Path) -> Write:
    """Write a table: family, engine, version, name, rows; all rows get the columns that a table has."""
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")

    def table(where: str, rows: Sequence[Mapping[str, Any]], system: str = "h100_sxm") -> Path:
        path = package / "systems" / "data" / system / f"{where}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist([{"kernel_source": "k", **row} for row in rows]), path)
        return path

    return table


def samples_of(
    package: Path, operator: Operator, dtype: Dtype | None = None, system: str = "h100_sxm"
) -> Samples:
    found = read_tables(tables_folder(package), system).get(operator, dtype)
    assert found is not None
    return found


def message(**changes: Any) -> dict[str, Any]:
    return {
        "allreduce_dtype": "bfloat16", "num_gpus": 4, "message_size": 4096, "latency": 0.01,
        "kernel_source": "vLLM_custom_graph", **changes,
    }  # fmt: skip


def product(**changes: Any) -> dict[str, Any]:
    return {"gemm_dtype": "bfloat16", "m": 16, "n": 4096, "k": 8192, "latency": 0.05, **changes}


def attention(**changes: Any) -> dict[str, Any]:
    return {
        "kv_cache_dtype": "bfloat16", "batch_size": 8, "isl": 1, "step": 1023, "num_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "window_size": 0, "latency": 0.02, **changes,
    }  # fmt: skip


def experts(**changes: Any) -> dict[str, Any]:
    return {
        "moe_dtype": "bfloat16", "num_tokens": 8, "hidden_size": 4096, "inter_size": 1536, "topk": 8,
        "num_experts": 128, "moe_tp_size": 4, "moe_ep_size": 2, "distribution": "balanced", "latency": 0.1,
        **changes,
    }  # fmt: skip


REDUCE = "comm/vllm/1.0/custom_allreduce_perf"
GEMM = "gemm/vllm/1.0/gemm_perf"
DECODE = "attention/vllm/1.0/generation_attention_perf"
PREFILL = "attention/vllm/1.0/context_attention_perf"
MOE = "moe/vllm/1.0/moe_perf"

# --------------------------------------------------------------------------------------------
# Traps


def test_messages_are_counted_in_elements_and_times_in_milliseconds(package, write):
    write(REDUCE, [message(message_size=4096, latency=0.01)])
    found = samples_of(package, Operator.ALL_REDUCE)
    assert found.axes["bytes"] == [8192]
    assert found.axes["ranks"] == [4]
    assert found.time == pytest.approx([10 * MICRO])


def test_reduces_launched_by_the_host_do_not_count(package, write):
    write(
        REDUCE,
        [
            message(kernel_source="vLLM_custom_eager", latency=0.05),
            message(),
            message(message_size=1),
            message(num_gpus=16),
        ],
    )
    assert samples_of(package, Operator.ALL_REDUCE).time == pytest.approx([10 * MICRO])


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("0.5.6.post2", "0.5.14"),
        ("0.9.0", "0.24.0"),
        ("1.3.0rc9", "1.3.0rc20"),
        ("1.3.0rc20", "1.3.0"),
        ("0.5.6", "0.5.6.post2"),
        ("0.1.dev19262", "0.1"),
    ],
)
def test_versions_are_sorted_by_their_numbers(older, newer):
    assert version_key(older) < version_key(newer)


def test_the_newest_version_that_has_a_format_counts(package, write):
    for version, dtype, latency in (("0.9.0", "fp8", 0.3), ("0.24.0", "bfloat16", 0.2), ("0.5", "fp8", 0.9)):
        write(f"gemm/vllm/{version}/gemm_perf", [product(gemm_dtype=dtype, latency=latency)])
    found = read_tables(tables_folder(package), "h100_sxm")
    assert found.tables[Operator.GEMM, Dtype.BF16].time == pytest.approx([0.2 * MILLI])
    assert found.tables[Operator.GEMM, Dtype.FP8].time == pytest.approx([0.3 * MILLI])
    assert found.facts["gemm.fp8"] == "vllm 0.9.0"
    assert found.facts["package"] == "aiconfigurator-core 9.8.7"


def test_tables_that_the_host_binds_are_left_to_another_engine(package, write):
    write(GEMM, [product(gemm_dtype="fp8_block", latency=0.2)])
    assert read_tables(tables_folder(package), "h100_sxm").get(Operator.GEMM, Dtype.FP8_BLOCK) is None
    write("gemm/sglang/1.0/gemm_perf", [product(gemm_dtype="fp8_block", latency=0.04)])
    found = samples_of(package, Operator.GEMM, Dtype.FP8_BLOCK)
    assert found.time == pytest.approx([40 * MICRO])
    assert found.axes["quantize"] == [1]
    asked = read_tables(tables_folder(package), "h100_sxm", "vllm")
    assert asked.tables[Operator.GEMM, Dtype.FP8_BLOCK].time == pytest.approx([0.2 * MILLI])


def test_narrow_products_and_huge_batches_are_no_serving(package, write):
    rows = [product(), product(n=512), product(k=512), product(m=32768)]
    write(GEMM, rows)
    found = samples_of(package, Operator.GEMM, Dtype.BF16)
    assert {axis: list(values) for axis, values in found.axes.items()} == {
        "m": [16], "n": [4096], "k": [8192], "quantize": [0],
    }  # fmt: skip


def test_attention_counts_the_token_that_is_written(package, write):
    rows = [
        attention(),
        attention(window_size=128),
        attention(num_key_value_heads=32),
        attention(head_dim=256),
    ]
    write(DECODE, rows)
    assert samples_of(package, Operator.DECODE_ATTENTION, Dtype.BF16).axes["context"] == [1024]


def test_older_tables_have_no_windows(package, write):
    row = attention()
    del row["window_size"]
    write(DECODE, [row])
    assert len(samples_of(package, Operator.DECODE_ATTENTION, Dtype.BF16)) == 1


def test_prompts_of_a_few_tokens_do_not_count(package, write):
    prompt = {"step": 0, "isl": 512}
    write(PREFILL, [attention(**prompt), attention(step=0, isl=1), attention(**prompt, kv_cache_dtype="fp8")])
    found = samples_of(package, Operator.PREFILL_ATTENTION)
    assert (found.axes["query"], found.axes["past"]) == ([512], [0])


def test_caches_that_were_measured_in_l2_do_not_count(package, write):
    rows = [attention(batch_size=b, step=4095, latency=b / 100) for b in (1, 8, 64, 512)]
    write(DECODE, rows, system="l40s")  # 16.8 MB a sequence; a cache of 96 MB
    write(DECODE, rows)
    cold = samples_of(package, Operator.DECODE_ATTENTION, Dtype.BF16, "l40s")
    assert list(cold.axes["batch"]) == [64, 512]
    assert len(samples_of(package, Operator.DECODE_ATTENTION, Dtype.BF16)) == 4


def test_experts_are_those_of_a_rank_under_every_distribution(package, write):
    rows = [
        experts(),
        experts(distribution="power_law_1.2", latency=0.3),
        experts(moe_ep_size=32),
        experts(moe_tp_size=32),
        experts(num_experts=8),
        experts(hidden_size=2688, inter_size=1856),  # without a gate
    ]
    write(MOE, rows)
    found = samples_of(package, Operator.EXPERTS, Dtype.BF16)
    assert list(found.axes["intermediate"]) == [384, 384]
    assert list(found.axes["ep"]) == [2, 2]
    assert sorted(found.time) == pytest.approx([0.1 * MILLI, 0.3 * MILLI])


def test_kernels_that_round_activations_to_four_bits_are_another_lane(package, write):
    lanes = ("vllm_gptossmxfp4moe_triton", "vllm_compressedtensorsw4a4mxfp4moe_marlin")
    write(MOE, [experts(moe_dtype="w4a16_mxfp4", kernel_source=lane) for lane in lanes])
    assert samples_of(package, Operator.EXPERTS, Dtype.MXFP4).kernels == lanes[:1]


def test_rows_that_stand_twice_count_once(package, write):
    write(GEMM, [product(latency=x) for x in (0.9, 0.1, 0.2)] + [product(m=1, latency=0.05)])
    found = samples_of(package, Operator.GEMM, Dtype.BF16)
    assert (list(found.axes["m"]), list(found.time)) == ([16, 1], pytest.approx([0.2 * MILLI, 0.05 * MILLI]))


def test_kernels_side_by_side_are_two_samples(package, write):
    write(GEMM, [product(kernel_source="a", latency=0.1), product(kernel_source="b", latency=0.2)])
    assert len(samples_of(package, Operator.GEMM, Dtype.BF16)) == 2


# --------------------------------------------------------------------------------------------
# Figures and files


def test_figures_are_those_of_the_package(package):
    systems = tables_folder(package)
    figures = read_figures(systems, "h100_sxm")
    assert (figures.peaks, figures.bandwidth, figures.link) == ({"bf16": 1e14, "fp8": 2e14}, 1e12, 1e11)
    block = peaks_of(figures, "h100_sxm", (Operator.GEMM, Dtype.FP8_BLOCK))
    assert (block.compute, block.sm_count) == (2e14, 132)
    assert peaks_of(figures, "h100_sxm", (Operator.LATENT_DECODE, Dtype.FP8)).compute == 1e14
    assert package_version(systems) == "9.8.7"


def test_the_folder_may_be_the_package_its_systems_or_what_holds_it(package):
    assert tables_folder(package) == tables_folder(package.parent) == tables_folder(package / "systems")


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(SpecError) as caught:
        call()
    return str(caught.value)


def test_a_folder_without_tables_is_refused(tmp_path):
    text = refused(lambda: tables_folder(tmp_path))
    assert "holds no operator tables" in text
    assert "aiconfigurator-core" in text


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("planner.documents.operator_tables.find_spec", lambda name: None)
    assert "pip install 'pd-planner[tables]' aiconfigurator-core" in refused(tables_folder)


def test_the_extra_is_named_where_pyarrow_is_absent(monkeypatch, tmp_path):
    imported = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError("No module named 'pyarrow'")
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install 'pd-planner[tables]'" in refused(lambda: read_columns(tmp_path / "x.parquet", ["m"]))


def test_a_damaged_table_is_refused_with_its_name(package, write):
    path = write(GEMM, [product()])
    path.write_bytes(b"PAR1 and no more")
    text = refused(lambda: read_tables(tables_folder(package), "h100_sxm"))
    assert "gemm_perf.parquet" in text
    assert "is not readable as Parquet" in text


def test_a_table_without_a_column_is_refused_with_its_name(package, write):
    row = product()
    del row["k"]
    write(GEMM, [row])
    text = refused(lambda: read_tables(tables_folder(package), "h100_sxm"))
    assert "gemm_perf.parquet" in text
    assert "has no column k" in text


def test_unknown_systems_and_engines_are_refused(package):
    systems = tables_folder(package)
    assert "must be one of h100_sxm, l40s, got 'h900'" in refused(lambda: read_figures(systems, "h900"))
    assert "must be one of h100_sxm" in refused(lambda: board_of("h900"))
    assert "engine: must be one of vllm, sglang, trtllm, got 'tgi'" in refused(
        lambda: read_tables(systems, "h100_sxm", "tgi")
    )


def test_a_figure_that_is_no_number_is_refused(package):
    path = package / "systems" / "h100_sxm.yaml"
    path.write_text(path.read_text().replace("1000000000000\n", "fast\n", 1))
    text = refused(lambda: read_figures(tables_folder(package), "h100_sxm"))
    assert "gpu.mem_bw must be a number above 0, got 'fast'" in text


# --------------------------------------------------------------------------------------------
# Fits

TRUTH = {"compute_efficiency": 0.7, "memory_efficiency": 0.8, "overhead": 4e-6, "norm_exponent": 2.0}
PEAKS = Peaks(compute=1e14, bandwidth=1e12, sm_count=132, link=1e11)


def products(noise: float = 0.0) -> Samples:
    """Times of the form itself, with noise."""
    sizes = (1024, 4096, 16384)
    rows = [
        {"m": m, "n": n, "k": k, "quantize": 0}
        for m in (1, 16, 128, 2048, 8192)
        for n in sizes
        for k in sizes
    ]
    bare = Samples.of_rows(Operator.GEMM, Dtype.BF16, rows, [1.0] * len(rows))
    times = np.asarray(form_of(Operator.GEMM).time(TRUTH, bare, PEAKS))
    times = times * np.exp(noise * np.random.default_rng(1).standard_normal(len(rows)))
    return Samples.of_rows(Operator.GEMM, Dtype.BF16, rows, list(times))


def test_closer_bounds_and_fixed_coefficients_are_kept():
    found = fit(products(), PEAKS, highest={"compute_efficiency": 0.5}, fixed={"norm_exponent": 2.0})
    assert found.values["compute_efficiency"] == pytest.approx(0.5, rel=1e-4)
    assert found.values["norm_exponent"] == 2.0
    assert "compute_efficiency" in found.at_bounds
    free = fit(products(), PEAKS)
    assert {name: free.values[name] for name in TRUTH} == pytest.approx(TRUTH, rel=1e-3)


def test_unchecked_samples_may_beat_the_peaks():
    slow = Peaks(compute=2e13, bandwidth=2e11, sm_count=132)
    with pytest.raises(SpecError, match="beat the stated peaks"):
        fit(products(), slow)
    assert fit(products(), slow, checked=False).values["compute_efficiency"] == pytest.approx(1.02, rel=1e-3)


def test_a_coefficient_that_the_fit_drives_to_nothing_is_known_to_be_small():
    rows = [{"bytes": 2**p, "ranks": n} for p in range(12, 28) for n in (2, 4, 8)]
    truth = {"overhead": 4e-6, "per_rank": 1e-12, "bandwidth_efficiency": 0.5, "sqrt_time": 2e-6}
    bare = Samples.of_rows(Operator.ALL_REDUCE, None, rows, [1.0] * len(rows))
    times = np.asarray(form_of(Operator.ALL_REDUCE).time(truth, bare, PEAKS))
    found = fit(Samples.of_rows(Operator.ALL_REDUCE, None, rows, list(times)), PEAKS)
    assert found.unidentified == ()
    assert found.values["per_rank"] < 2e-8
    assert found.residuals.median_abs_error < 0.01


def test_errors_on_shapes_held_out_are_those_of_the_noise():
    found = held_out(products(noise=0.1), PEAKS, lambda part: fit(part, PEAKS))
    assert found is not None
    assert found.groups == 9
    assert found.median_abs_error == pytest.approx(
        0.0674 * 1.1, rel=0.5
    )  # of normal noise, and a little more
    one = products().part(products().axes["n"] + products().axes["k"] == 2048)
    assert held_out(one, PEAKS, lambda part: fit(part, PEAKS)) is None


def test_held_out_shapes_are_not_seen_by_their_fit():
    seen: list[Samples] = []

    def fit_to(part: Samples) -> Any:
        seen.append(part)
        return fit(part, PEAKS)

    held_out(products(), PEAKS, fit_to)
    first, second = ({*zip(p.axes["n"], p.axes["k"], strict=True)} for p in seen)
    assert first.isdisjoint(second)
    assert len(first | second) == 9


# --------------------------------------------------------------------------------------------
# The tool


@pytest.fixture
def tool(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("fit_operator_tables")


def whole(write: Write) -> None:
    """Tables of every operator that a profile cannot do without, from known coefficients."""
    made = products()
    times = made.time / MILLI
    rows = [
        product(m=int(m), n=int(n), k=int(k), latency=t)
        for m, n, k, t in zip(*(made.axes[a] for a in "mnk"), times, strict=True)
    ]
    write(GEMM, rows)
    sizes = [(b, s) for b in (1, 8, 64, 256) for s in (127, 1023, 4095)]
    caches = [
        attention(batch_size=b, step=s, latency=0.01 + b * (s + 1) * 4096e-9 / 0.9 + 2e-4 * b)
        for b, s in sizes
    ]
    write(DECODE, caches)
    prompts = [
        attention(batch_size=b, isl=s, step=0, latency=0.01 + b * s * s * 1e-7) for b, s in sizes if s > 127
    ]
    write(PREFILL, prompts)
    write(
        REDUCE,
        [message(message_size=2**p, latency=0.004 + 2**p * 3e-8) for p in range(11, 27)],
    )


def test_the_tool_writes_the_same_twice(package, write, tool, monkeypatch, tmp_path, capsys):
    whole(write)
    written = []
    for name in ("a.json", "b.json"):
        monkeypatch.setattr(sys, "argv", ["fit", str(package), "-o", str(tmp_path / name)])
        tool.main()
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    data = json.loads(written[0])
    assert data["package"] == "aiconfigurator-core 9.8.7"
    assert list(data["systems"]) == ["h100_sxm", "l40s"]
    fits = data["systems"]["h100_sxm"]["fits"]
    assert list(fits) == ["gemm.bf16", "decode_attention.bf16", "prefill_attention", "all_reduce"]
    assert fits["gemm.bf16"]["values"] == pytest.approx(TRUTH, rel=1e-3)
    assert fits["gemm.bf16"]["table"] == "vllm 1.0"
    assert fits["gemm.bf16"]["residual"]["points"] == 45
    assert fits["gemm.bf16"]["held_out"]["median_abs_error"] < 0.01
    assert fits["gemm.bf16"]["ranges"]["m"] == [1, 8192]
    assert "| gemm.bf16 | 0.0 |" in capsys.readouterr().out


def test_the_tool_writes_nothing_where_tables_are_missing(tmp_path):
    out = tmp_path / "x.json"
    command = [sys.executable, str(ROOT / "tools" / "fit_operator_tables.py"), str(tmp_path), "-o", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, out.exists()) == (2, False)
    assert "holds no operator tables" in done.stderr


def test_reduces_over_pcie_go_by_world_size(package, write, tool):
    rows = [
        message(message_size=2**p, num_gpus=n, latency=(5e-3 * n + 2 * 2**p * 2 * (n - 1) / n / b * 1e3))
        for p in range(11, 27)
        for n, b in ((2, 20e9), (8, 6e9))
    ]
    write(REDUCE, rows, system="l40s")
    systems = tables_folder(package)
    samples = read_tables(systems, "l40s").tables[Operator.ALL_REDUCE, None]
    peaks = peaks_of(read_figures(systems, "l40s"), "l40s", (Operator.ALL_REDUCE, None))
    found = tool.over_pcie(samples, peaks, board_of("l40s"))["by_world_size"]
    assert found["2"] == pytest.approx({"alpha": 10e-6, "bandwidth": 20e9}, rel=1e-2)
    assert found["8"] == pytest.approx({"alpha": 40e-6, "bandwidth": 6e9}, rel=1e-2)


COMMITTED = json.loads((ROOT / "tools" / "data" / "operator_coefficients.json").read_text("utf-8"))


def test_committed_coefficients_say_where_they_come_from():
    assert COMMITTED["package"] == "aiconfigurator-core 0.12.0"
    assert set(COMMITTED["rows"]) == {
        *("gemm", "decode_attention", "prefill_attention", "moe", "mla_decode", "mla_prefill", "all_reduce")
    }
    h100 = COMMITTED["systems"]["h100_sxm"]["fits"]
    assert h100["gemm.fp8_block"]["table"] == "sglang 0.5.14"
    points = {name: fit["residual"]["points"] for name, fit in h100.items()}
    assert (points["gemm.bf16"], points["decode_attention.fp8"]) == (18615, 11507)
    assert (points["prefill_attention"], points["all_reduce"], points["moe.fp8_block"]) == (7920, 48, 9147)


def test_committed_fits_hold_on_shapes_that_they_did_not_see():
    for system, found in COMMITTED["systems"].items():
        for name, row in found["fits"].items():
            if name.startswith(("gemm", "decode", "prefill")):
                assert row["held_out"]["median_abs_error"] < 0.15, (system, name)
                fitted = row["residual"]["median_abs_error"]
                assert row["held_out"]["median_abs_error"] < 1.15 * fitted + 0.005, (system, name)


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.skipif(PACKAGE_VARIABLE not in os.environ, reason=f"{PACKAGE_VARIABLE} names no package")
@pytest.mark.parametrize("system", ["a100_sxm", "h100_sxm", "rtx_pro_6000_server"])
def test_committed_coefficients_are_those_of_the_tables(tool, system):
    pytest.importorskip("pyarrow")
    found = tool.system_entry(tables_folder(os.environ[PACKAGE_VARIABLE]), system)
    committed = COMMITTED["systems"][system]
    assert list(found["fits"]) == list(committed["fits"])
    for name, row in found["fits"].items():
        assert row["residual"]["points"] == committed["fits"][name]["residual"]["points"]
        expected = pytest.approx(committed["fits"][name]["residual"]["median_abs_error"], rel=0.02)
        assert row["residual"]["median_abs_error"] == expected, name
        if "softmax_time" not in row["values"]:  # trades against the compute efficiency in a flat valley
            assert row["values"] == pytest.approx(committed["fits"][name]["values"], rel=0.02), name


def test_labels_are_those_of_messages():
    assert label((Operator.GEMM, Dtype.FP8)) == "gemm.fp8"
    assert label((Operator.ALL_REDUCE, None)) == "all_reduce"
