"""Published measurements in long format: reading, reasons, and how far predictions are off."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from planner.catalog import load_model
from planner.documents.published_file import COLUMNS, PublishedRow, is_published, read_published
from planner.errors import SpecError
from planner.specs import Dtype, Parallelism
from planner.validation.published import errors_by_group, predict_published, steady_rows
from planner.validation.published.hosts import Kernels, fit_host, fitted_times
from planner.validation.published.names import lengths_of, model_of, parallelism_of, precision_of
from planner.validation.published.software import software_of
from planner.validation.scores import errors_of

GOLDEN = Path(__file__).parent / "golden" / "published_rows.csv"
ROWS = read_published(GOLDEN).rows
NONE = predict_published(ROWS, constants="none")


def row(**changes: object) -> PublishedRow:
    """The first golden row with other values."""
    first = ROWS[0]
    return PublishedRow(**{name: getattr(first, name) for name in first.__dataclass_fields__} | changes)


def prediction(**changes: object) -> tuple[float, str]:
    found = predict_published([row(**changes)], constants="none")
    return float(found.predicted[0]), found.reasons[0]


# --------------------------------------------------------------------------------------------
# Reading


def written(folder: Path, *, header: str = ",".join(COLUMNS), **cells: str) -> Path:
    """A file of one row: the first golden one with other cells."""
    with GOLDEN.open(newline="") as file:
        first = next(csv.DictReader(file)) | cells
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        file.write(header + "\n")
        csv.DictWriter(file, COLUMNS).writerow(first)
    return path


def test_rows_are_read_in_order():
    assert len(ROWS) > 40
    assert ROWS[0].line == 2
    assert {r.group for r in ROWS} >= {"accelmark", "splitwise", "argonne-llm-bench", "nim"}
    assert all(r.source.startswith("https://") for r in ROWS)
    assert any(r.load_value == np.inf for r in ROWS)
    assert any(r.load_value is None for r in ROWS)


def test_format_is_told_by_its_columns():
    assert is_published(COLUMNS)
    assert not is_published(("model_path", "system", "silicon_tpot_ms"))


@pytest.mark.parametrize(
    ("column", "cell", "rule"),
    [
        ("value", "fast", "line 2: value: must be a finite number > 0, got fast"),
        ("value", "inf", "line 2: value: must be a finite number > 0, got inf"),
        ("value", "1_000", "line 2: value: must be a finite number > 0, got 1_000"),
        ("load_value", "-1", "line 2: load_value: must be a number > 0, got -1"),
        ("n_gpus", "1.5", "line 2: n_gpus: must be a whole number, got 1.5"),
        ("n_gpus", "", "line 2: n_gpus: must be a finite number > 0"),
        ("model", "", "line 2: model: must not be empty"),
        ("unit", "s", "line 2: unit: must be ms for ttft_p50_ms, got s"),
        ("disagg", "aggr", "line 2: disagg: must be one of agg, disagg, got aggr (did you mean agg?)"),
    ],
)
def test_bad_cells(tmp_path, column, cell, rule):
    with pytest.raises(SpecError) as raised:
        read_published(written(tmp_path, **{column: cell}))
    assert rule in str(raised.value)


def test_bad_columns(tmp_path):
    header = ",".join(COLUMNS).replace("precision", "precison")
    with pytest.raises(SpecError, match=r"line 1: precison: unknown column \(did you mean precision\?\)"):
        read_published(written(tmp_path, header=header))
    with pytest.raises(SpecError, match="line 1: id: column occurs twice"):
        read_published(written(tmp_path, header="id," + ",".join(COLUMNS)))


def test_rows_that_cannot_be_right(tmp_path):
    path = written(tmp_path)
    text = path.read_text()
    path.write_text(text + text.splitlines()[1] + "\n")
    with pytest.raises(SpecError, match="line 3: id: must be unique: line 2 has it too"):
        read_published(path)
    path.write_text(text + "m1,accelmark\n")
    with pytest.raises(SpecError, match="line 3: has fewer cells than the first line"):
        read_published(path)
    path.write_text(text.splitlines()[0] + "\n")
    with pytest.raises(SpecError, match="has no rows"):
        read_published(path)


# --------------------------------------------------------------------------------------------
# Names


def test_every_row_has_a_value_or_a_reason():
    for value, log_sd, reason in zip(NONE.predicted, NONE.log_sd, NONE.reasons, strict=True):
        assert np.isfinite(value) == np.isfinite(log_sd) == (not reason)
    assert sum(NONE.counted().values()) == int(np.isnan(NONE.predicted).sum())
    assert NONE.counted() == {
        "engine is not modelled": 3,
        "lengths of single requests are not stated": 2,
        "power-capped GPU": 1,
        "GPU not in the catalogue": 1,
        "does not fit in memory": 1,
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "GPT-5"}, "model not in the catalogue"),
        ({"gpu": "TPU v5e"}, "GPU not in the catalogue"),
        ({"framework": "llama.cpp"}, "engine is not modelled"),
        ({"isl": "online mix"}, "lengths are not numbers"),
        ({"parallelism": "TP2"}, "layout is not understood"),
        ({"precision": "w8a8"}, "format is not understood"),
        ({"metric": "e2e_mean_ms"}, "metric is not predicted"),
        ({"load_kind": "production"}, "lengths are not numbers"),
        ({"load_kind": "production", "isl": "1", "osl": "1"}, "metric under a protocol that is not stated"),
        ({"load_kind": "max", "isl": "9", "osl": "9"}, "metric under a protocol that is not stated"),
        ({"disaggregated": True}, "pools of several replicas"),
        ({"gpu": "NVIDIA L4", "precision": "fp4"}, ""),
    ],
)
def test_reasons(changes, reason):
    value, found = prediction(**changes)
    assert found == reason
    assert np.isnan(value) == bool(reason)


def test_lengths_in_words():
    lengths = lengths_of(row(isl="p50 28650 (dataset)", osl="cap 256"))
    assert lengths is not None
    assert (lengths.isl, lengths.osl, lengths.exact) == (28650.0, 256.0, False)
    assert lengths_of(row(isl="p50 edge set (dataset)")) is not None
    assert lengths_of(row(isl="p50 some set (dataset)")) is None
    exact = lengths_of(row(isl="128", osl="1"))
    assert exact is not None
    assert exact.exact


def test_layouts_and_formats():
    assert parallelism_of(row(parallelism="DEP2PP2", n_gpus=4)) == Parallelism(tp=1, dp=2, ep=2, pp=2)
    assert parallelism_of(row(parallelism="EP32")) is None
    model = model_of("gpt-oss-120b")
    assert model is not None
    quantised = precision_of("fp4", model, small_cache=True)
    assert quantised is not None
    assert (quantised.of_experts, quantised.of_attention) == (Dtype.MXFP4, Dtype.BF16)
    llama = precision_of("fp8", load_model("meta-llama/Llama-2-7b-hf"), small_cache=False)
    assert llama is not None
    assert (llama.weights, llama.kv_cache.is_16_bit) == (Dtype.FP8, True)


def test_software_by_the_longest_prefix():
    names = {
        f: (software_of(f) or software_of("vllm")).name  # type: ignore[union-attr]
        for f in (
            "vLLM",
            "vLLM 0.7.3",
            "vLLM-era (2023, Splitwise authors)",
            "TensorRT-LLM 0.17",
            "TensorRT-LLM",
        )
    }
    assert len(set(names.values())) == 5
    assert software_of("sambaflow") is None


# --------------------------------------------------------------------------------------------
# Values


def test_prompts_beyond_captured_graphs_decode_eagerly():
    """vLLM 0.7 captures graphs for contexts up to 8,192 tokens."""
    tpot = [
        prediction(metric="tpot_p50_ms", gpu="NVIDIA H100 80GB HBM3", isl=isl)[0] for isl in ("8000", "8100")
    ]
    assert tpot[1] > 1.5 * tpot[0]


def test_what_does_not_fit_at_once_runs_one_after_another():
    base = {"group": "argonne-llm-bench", "framework": "vLLM", "load_kind": "batch", "metric": "e2e_mean_ms"}
    base |= {"gpu": "A100-SXM-40?", "isl": "2048", "osl": "2048", "unit": "ms"}
    sixteen, once, twice = (prediction(**base, load_value=b)[0] for b in (16.0, 32.0, 64.0))
    assert once < 1.6 * sixteen  # both fit: steps of more sequences take little longer
    assert twice > 1.6 * once
    phase = {"metric": "tpot_mean_ms", "load_value": 64.0}
    assert prediction(**(base | phase))[1] == ""


def test_throughput_of_a_static_batch():
    base = {
        "framework": "TensorRT-LLM 0.9.0",
        "load_kind": "batch",
        "load_value": 8.0,
        "isl": "128",
        "osl": "64",
    }
    whole, _ = prediction(**base, metric="e2e_mean_ms")
    rate, _ = prediction(**base, metric="output_tok_s_per_gpu")
    assert rate == pytest.approx(8 * 64 / (whole / 1000))


def test_closed_and_open_loops():
    base = {"framework": "TensorRT-LLM 0.14", "isl": "500", "osl": "100", "metric": "output_tok_s"}
    one, _ = prediction(**base, load_kind="concurrency", load_value=1.0)
    full, _ = prediction(**base, load_kind="max", load_value=np.inf)
    assert one < full
    assert prediction(**base, load_kind="rate", load_value=2.0)[0] == pytest.approx(200.0)
    assert prediction(**base, load_kind="rate", load_value=1e4)[1] == "the rate has no steady state"


@pytest.mark.parametrize("overlapped", [False, True])
def test_host_constant_is_recovered(overlapped):
    n = 40
    kernels = Kernels(
        prompt=np.full(n, 0.02),
        steps=np.ones(n),
        decode=np.geomspace(0.004, 0.04, n),
        count=np.full(n, 100.0),
        waves=np.ones(n),
        layers=np.full(n, 32.0),
        context=np.full(n, 1000.0),
    )
    measured = fitted_times(kernels, 4e-4, overlapped).whole
    measured[::10] *= 5  # outliers
    per_layer, form = fit_host(kernels, lambda times: times.whole, measured)
    assert per_layer == pytest.approx(4e-4, rel=0.06)
    assert form is overlapped


def test_few_rows_teach_no_constant():
    crossed = predict_published(ROWS, constants="crossfit")
    assert not crossed.hosts
    assert np.array_equal(crossed.predicted, NONE.predicted, equal_nan=True)


@pytest.mark.parametrize(
    ("group", "kind", "metric", "bound"),
    [
        ("accelmark", "serial", "ttft_p50_ms", 0.25),
        ("accelmark", "serial", "tpot_p50_ms", 0.12),
        ("trtllm-perf-overview", "batch", "ttft_ms", 0.27),
        ("trtllm-perf-overview", "batch", "output_tok_s_per_gpu", 0.18),
        ("trtllm-perf-overview", "max", "output_tok_s", 0.3),
        ("splitwise", "batch", "ttft_mean_ms", 0.25),
        ("splitwise", "batch", "tpot_mean_ms", 0.25),
        ("argonne-llm-bench", "batch", "e2e_mean_ms", 0.2),
        ("oracle-mi300x", "batch", "e2e_mean_ms", 0.35),
        ("nim", "concurrency", "itl_mean_ms", 0.2),
    ],
)
def test_errors_of_golden_rows(group, kind, metric, bound):
    """Nothing is fitted; single rows are further off than medians of all."""
    errors = errors_by_group(ROWS, NONE)[group, kind, metric]
    assert errors.median_ape < bound


# --------------------------------------------------------------------------------------------
# All published rows


@pytest.mark.shared
@pytest.mark.skipif(
    "PLANNER_PUBLISHED" not in os.environ, reason="PLANNER_PUBLISHED names no file: data beside the checkout"
)
def test_all_published_rows():
    rows = read_published(os.environ["PLANNER_PUBLISHED"]).rows
    none = predict_published(rows, constants="none")
    crossed = predict_published(rows, constants="crossfit")
    measured = np.array([r.value for r in rows])
    steady = steady_rows(rows)

    def median(predictions, *groups: str, metrics: tuple[str, ...]) -> float:
        kept = [r.group in groups and r.metric in metrics for r in rows] & steady
        errors = errors_of(predictions.predicted[kept], measured[kept])
        assert errors is not None
        return errors.median_ape

    both = ("accelmark", "trtllm-perf-overview")
    assert median(none, *both, metrics=("ttft_p50_ms", "ttft_ms")) < 0.2
    assert median(none, *both, metrics=("tpot_p50_ms", "output_tok_s_per_gpu")) < 0.2
    assert median(none, "accelmark", metrics=("tpot_p50_ms",)) < 0.15
    assert median(none, "accelmark", metrics=("ttft_p50_ms",)) < 0.3  # all-reduce over PCIe, small models
    assert median(crossed, "argonne-llm-bench", metrics=("e2e_mean_ms",)) < 0.2
    assert median(crossed, "splitwise", metrics=("ttft_mean_ms",)) < 0.25
    assert median(crossed, "splitwise", metrics=("tpot_mean_ms",)) < 0.25
    assert {h.group for h in crossed.hosts} >= {"argonne-llm-bench", "splitwise"}

    values = {}
    for r, value in zip(rows, crossed.predicted, strict=True):
        if r.group == "splitwise" and np.isfinite(value):
            key = (r.model, r.gpu, r.parallelism, r.isl, r.osl, r.load_value)
            values.setdefault(key, {})[r.metric] = (value, r.value)
    whole = [
        [v["ttft_mean_ms"][i] + (float(key[4]) - 1) * v["tpot_mean_ms"][i] for i in (0, 1)]
        for key, v in values.items()
        if len(v) == 2
    ]
    predicted, published = np.array(whole).T
    assert float(np.median(np.abs(predicted / published - 1))) < 0.25
