"""Constants of engines: their file, what engines get of them, and how far predictions are off with them."""

from __future__ import annotations

import importlib.util
import math
import os
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import yaml

from planner.catalog import load_gpu, load_model
from planner.documents.engine_constants import ROWS_SUFFIX, constants_text, load_engine_constants
from planner.documents.files import read_lines
from planner.documents.measured_file import MeasuredFile, read_measured
from planner.engines import (
    CONSTANTS_FILE,
    VERSION_LOG_SD,
    engine_names,
    estimated_engine,
    load_engine,
    shipped_constants,
    with_constants,
)
from planner.errors import SpecError
from planner.operators import ReplicaSet, for_model
from planner.specs import ClassKey, Constants, Dtype, FittedConstants, Parallelism, Precision
from planner.validation.evaluate import ConstantsKind, Validation, fit_all, validate
from planner.validation.points import points_of
from planner.validation.scores import Errors

GOLDEN = read_measured(Path(__file__).parent / "golden" / "measured_rows.csv")
TOOL = Path(__file__).parents[1] / "tools" / "fit_engine_constants.py"
SHIPPED = shipped_constants()

FITTED = FittedConstants(
    classes={
        (): Constants(step=1.234e-3, sequence=5.5e-6, decode_scale=0.9, prefill_scale=1.1),
        ("vllm",): Constants(fixed=0.0123, services=1.5, steps=3.25, first_wave=0.07),
        ("vllm", "1.10", "a: b # c"): Constants(step=0.0, sequence=1e-5),
        ("vllm", "unstated", "a: b # c"): Constants(decode_scale=1.001),
    },
    factors={("vllm", "8192 wide, 80 layers, 128256 tokens"): 1.035, ("vllm", "1 wide"): 0.79},
    names={"8192 wide, 80 layers, 128256 tokens": "meta-llama/Llama-3.1-70B", "1 wide": "tiny"},
    counts={(): 12, ("vllm",): 12, ("vllm", "1.10", "a: b # c"): 5, ("vllm", "unstated", "a: b # c"): 7},
    log_sd=0.04,
    family_log_sd=0.1,
    ttft_log_sd=0.25,
    source="made up",
)


def written(folder: Path, text: str) -> Path:
    path = folder / "fitted.yaml"
    path.write_text(text)
    return path


def same(found: FittedConstants, expected: FittedConstants, rel: float = 1e-12) -> None:
    assert set(found.classes) == set(expected.classes)
    for key, constants in expected.classes.items():
        for field in fields(Constants):
            value = getattr(constants, field.name)
            assert getattr(found.classes[key], field.name) == pytest.approx(value, rel=rel, abs=1e-12), key
    assert dict(found.factors) == pytest.approx(dict(expected.factors), rel=rel)
    assert dict(found.counts) == dict(expected.counts)


# --------------------------------------------------------------------------------------------
# Files


def test_what_is_written_is_read_back(tmp_path):
    path = written(tmp_path, constants_text(FITTED, "one\ntwo"))
    assert path.read_text().startswith("# one\n# two\nsource: made up\n")
    found = load_engine_constants(path)
    same(found, FITTED)
    assert found.names == FITTED.names
    assert (found.log_sd, found.family_log_sd, found.ttft_log_sd) == (0.04, 0.1, 0.25)
    assert found.source == "made up"
    assert found.rows == frozenset()


def test_rows_are_listed_beside_the_file(tmp_path):
    path = written(tmp_path, constants_text(FITTED, ""))
    path.with_suffix(ROWS_SUFFIX).write_text("# a comment\none\n\n two \n")
    assert load_engine_constants(path).rows == {"one", "two"}


def test_numbers_are_written_to_four_digits(tmp_path):
    exact = replace(FITTED, classes={(): Constants(step=1.23456789e-3, decode_scale=math.pi)}, factors={})
    text = constants_text(exact, "")
    assert "step_ms: 1.235\n" in text
    assert "decode_scale: 3.142\n" in text
    same(load_engine_constants(written(tmp_path, text)), replace(exact, counts={(): 12}), rel=5e-4)


def test_a_file_without_models(tmp_path):
    found = load_engine_constants(written(tmp_path, constants_text(replace(FITTED, factors={}), "")))
    assert found.factors == {}


LEVEL = "needs a version and a benchmark beside the engine, or neither, or nothing at all"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("step_ms: 1.234", "step_ms: -1", "line 11: classes[0].step_ms: must be >= 0, got -1"),
        ("decode_scale: 0.9", "decode_scale: 0", "line 13: classes[0].decode_scale: must be > 0, got 0"),
        ("services: 1.5", "services: .nan", "line 30: classes[1].ttft.services: must be a finite number"),
        ("rows: 5", "rows: 0", "line 36: classes[2].rows: must be > 0, got 0"),
        ("rows: 5", "rows: 5.5", "line 36: classes[2].rows: must be a whole number, got 5.5"),
        ("first_wave: 0.07", "first_wave: 0.07\n    x: 1", "line 33: classes[1].ttft.x: unknown key"),
        ("factor: 1.035", "factor: none", "line 67: models[1].factor: must be a number, got 'none'"),
        ("log_sd: 0.04", "log_sd: 0", "line 3: log_sd: must be > 0, got 0"),
        ("source: made up", "source: ''", "line 2: source: must"),
        ("version: '1.10'", "version: ''", f"line 33: classes[2].engine: {LEVEL}"),
        ("version: '1.10'\n  benchmark: 'a: b # c'", "version: '1.10'\n  benchmark: ''",
         f"line 33: classes[2].engine: {LEVEL}"),
        ("engine: vllm\n  version: '1.10'", "engine: ''\n  version: '1.10'",
         f"line 33: classes[2].engine: {LEVEL}"),
        ("version: '1.10'", "version: unstated", "line 46: classes[3].engine: must be unique: line 33 has"),
        ("shape: 8192 wide, 80 layers, 128256 tokens", "shape: 1 wide",
         "line 66: models[1].shape: must be unique: line 62 has"),
        ("log_sd: 0.04\n", "", "log_sd: is required"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_line_key_and_rule(tmp_path, old, new, said):
    text = constants_text(FITTED, "head")
    assert text.count(old) >= 1
    path = written(tmp_path, text.replace(old, new, 1))
    with pytest.raises(SpecError) as caught:
        load_engine_constants(path)
    assert str(caught.value).startswith(f"{path}: 1 problem\n")
    assert said in str(caught.value)


def test_all_problems_come_at_once(tmp_path):
    text = constants_text(FITTED, "").replace("rows: 5", "rows: 0").replace("factor: 0.79", "factor: -1")
    with pytest.raises(SpecError) as caught:
        load_engine_constants(written(tmp_path, text))
    assert [p.key for p in caught.value.problems] == ["classes[2].rows", "models[0].factor"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match="no such file"):
        load_engine_constants(tmp_path / "none.yaml")


# --------------------------------------------------------------------------------------------
# What is shipped


def test_the_shipped_rows_are_listed_and_counted():
    assert len(SHIPPED.rows) == SHIPPED.counts[()] > 500
    engines = [key for key in SHIPPED.classes if len(key) == 1]
    assert sum(SHIPPED.counts[key] for key in engines) == SHIPPED.counts[()]
    for engine in engines:
        below = [key for key in SHIPPED.classes if len(key) == 3 and key[:1] == engine]
        assert sum(SHIPPED.counts[key] for key in below) == SHIPPED.counts[engine]
    assert {engine for (engine,) in engines} == {engine for engine, _ in SHIPPED.factors}
    assert all("\n" not in row and row == row.strip() for row in SHIPPED.rows)
    assert {row.id for row in GOLDEN.rows} <= SHIPPED.rows


def test_shipped_constants_are_near_those_of_kernels_alone():
    for key, constants in SHIPPED.classes.items():
        assert 0.85 < constants.decode_scale < 1.15, key
        assert 0.85 < constants.prefill_scale < 1.4, key
        assert 0.0 <= constants.step < 3e-3, key
        assert 0.0 <= constants.sequence < 60e-6, key
    assert all(0.7 < factor < 1.4 for factor in SHIPPED.factors.values())
    assert set(SHIPPED.names) == {shape for _, shape in SHIPPED.factors}
    for (_, shape), name in ((key, SHIPPED.names[key[1]]) for key in SHIPPED.factors):
        assert load_model(name).shape == shape


@pytest.mark.parametrize("name", engine_names())
def test_every_measured_engine_carries_its_constants(name):
    bare, engine = estimated_engine(name), load_engine(name)
    level = SHIPPED.level((name, bare.version))
    constants = SHIPPED.classes[level]
    assert level[:1] == (name,)
    assert engine.fitted
    assert not bare.fitted
    assert (engine.step_overhead, engine.sequence_overhead) == (constants.step, constants.sequence)
    assert (engine.decode_scale, engine.prefill_scale) == (constants.decode_scale, constants.prefill_scale)
    assert dict(engine.model_factors) == {s: f for (e, s), f in SHIPPED.factors.items() if e == name}
    assert engine.family_log_sd == SHIPPED.family_log_sd
    assert engine.provenance.startswith(f"{name} {bare.version}: constants fitted to ")
    assert f" {SHIPPED.counts[level]} measured rows of " in engine.provenance
    untouched = {f.name for f in fields(engine)} - {
        "step_overhead", "sequence_overhead", "decode_scale", "prefill_scale", "model_factors", "log_sd",
        "family_log_sd", "fitted", "provenance",
    }  # fmt: skip
    assert all(getattr(engine, field) == getattr(bare, field) for field in untouched)


VERSIONED = FittedConstants(
    classes={(): Constants(), ("vllm",): Constants(step=1e-3), ("vllm", "0.5.9", "a"): Constants(step=2e-3)},
    counts={(): 30, ("vllm",): 30, ("vllm", "0.5.9", "a"): 20},
    log_sd=0.04,
    family_log_sd=0.1,
)


@pytest.mark.parametrize(
    ("version", "step", "measured", "of"),
    [
        ("0.5.9", 2e-3, True, "20 measured rows of version 0.5.9"),
        ("0.5.10", 2e-3, False, "20 measured rows of version 0.5.9"),
        ("0.6.0", 1e-3, False, "30 measured rows of other versions"),
    ],
)
def test_a_version_that_nobody_measured_is_less_certain(version, step, measured, of):
    engine = with_constants(replace(estimated_engine("vllm"), version=version), VERSIONED)
    assert engine.step_overhead == step
    assert engine.log_sd == (0.04 if measured else pytest.approx(math.hypot(0.04, VERSION_LOG_SD)))
    assert engine.provenance == f"vllm {version}: constants fitted to {of}"


def test_an_engine_that_nobody_measured_stays_as_its_file_says():
    other = replace(estimated_engine("vllm"), name="another")
    assert with_constants(other, VERSIONED) == other
    assert with_constants(other, FittedConstants()) == other


FP8 = Precision(weights=Dtype.FP8, kv_cache=Dtype.FP8)
LLAMA = load_model("meta-llama/Llama-3.1-70B")


def replicas(engine, model=LLAMA) -> ReplicaSet:
    return ReplicaSet.of(model, FP8, engine, [(load_gpu("h100-sxm"), Parallelism(tp=4))])


def test_the_spread_between_models_counts_for_those_without_a_factor():
    engine = with_constants(estimated_engine("vllm"), VERSIONED)
    known = replace(engine, model_factors=((LLAMA.shape, 1.0),))
    for name in ("log_sd", "prompt_log_sd"):
        one, other = (float(getattr(replicas(e), name)[0]) for e in (known, engine))
        assert other**2 - one**2 == pytest.approx(0.1**2, rel=1e-9)


def test_a_factor_multiplies_the_kernels_of_its_model_alone():
    engine = replace(estimated_engine("vllm"), decode_scale=0.9, prefill_scale=1.1)
    engine = replace(engine, model_factors=((LLAMA.shape, 1.2),))
    slower = for_model(engine, LLAMA)
    assert (slower.decode_scale, slower.prefill_scale) == (pytest.approx(1.08), pytest.approx(1.32))
    assert slower.step_overhead == engine.step_overhead
    assert for_model(engine, load_model("Qwen/Qwen3-32B")) is engine
    assert replicas(engine).engine == slower


# --------------------------------------------------------------------------------------------
# Accuracy


def tpot(found: Validation, chosen: np.ndarray | None = None) -> Errors:
    return found.errors(chosen)[0]


def within(errors: Errors, median: float, mean: float) -> None:
    """Errors in percent."""
    assert 100 * errors.median_ape <= median
    assert 100 * errors.mape <= mean


def test_golden_rows_without_constants():
    found = validate(GOLDEN, constants=ConstantsKind.NONE)
    within(tpot(found), 13, 18)
    within(tpot(found, ~found.moe), 14, 20)
    assert abs(tpot(found).bias) < 0.06
    assert 0.65 < tpot(found).covered < 0.95


def test_golden_rows_with_shipped_constants():
    found = validate(GOLDEN)
    within(tpot(found), 8, 13)
    within(found.errors()[1], 22, 32)
    assert all(abs(errors.bias) < 0.05 for errors in found.errors())
    assert all(0.65 < errors.covered < 0.95 for errors in found.errors())


def test_golden_rows_with_constants_of_the_other_half():
    """Half of so few rows says little of 16 classes: TTFTs most of all."""
    found = validate(GOLDEN, constants=ConstantsKind.CROSSFIT)
    within(tpot(found), 12, 17)
    within(tpot(found, ~found.moe), 14, 19)
    within(found.errors()[1], 50, 65)
    assert found.fitted_to == 0


MEASURED = pytest.mark.skipif(
    "PLANNER_MEASURED" not in os.environ, reason="PLANNER_MEASURED names no file of end-to-end measurements"
)


@pytest.fixture(scope="module")
def measured() -> MeasuredFile:
    return read_measured(os.environ["PLANNER_MEASURED"])


@pytest.fixture(scope="module")
def crossfit(measured) -> Validation:
    return validate(measured, constants=ConstantsKind.CROSSFIT)


@pytest.mark.shared
@MEASURED
def test_all_rows_are_predicted(measured):
    assert len(measured.rows) == 602
    assert validate(measured, constants=ConstantsKind.NONE).unpredicted == {}


@pytest.mark.shared
@MEASURED
def test_all_rows_without_constants(measured):
    found = validate(measured, constants=ConstantsKind.NONE)
    within(tpot(found), 10, 15)
    within(tpot(found, ~found.moe), 8, 11)
    assert 0.75 <= tpot(found).covered <= 0.90


@pytest.mark.shared
@MEASURED
def test_all_rows_with_constants_of_the_other_half(crossfit):
    within(tpot(crossfit), 7, 10)
    within(tpot(crossfit, ~crossfit.moe), 5, 7.5)
    within(crossfit.errors()[1], 18, 28)
    assert all(0.75 <= errors.covered <= 0.90 for errors in crossfit.errors())


@pytest.mark.shared
@MEASURED
@pytest.mark.parametrize("family", ["MiniMax", "gpt-oss", "Qwen3-235B"])
def test_a_family_with_constants_of_the_others(measured, family):
    within(tpot(validate(measured, leave_out=family)), 12, 16)


def loaded_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fit_engine_constants", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_tool(rows: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tool = loaded_tool()
    monkeypatch.setattr(tool, "CONSTANTS_FILE", folder / "fitted.yaml")
    monkeypatch.setattr("sys.argv", ["fit_engine_constants.py", rows])
    tool.main()
    return folder / "fitted.yaml"


def test_the_tool_writes_a_file_that_is_read(tmp_path, monkeypatch, capsys):
    few = [row for row in GOLDEN.rows if "gpt-oss" in row.model]
    lines = (Path(__file__).parent / "golden" / "measured_rows.csv").read_text().splitlines()
    rows = tmp_path / "rows.csv"
    rows.write_text("\n".join([lines[0], *(line for line in lines if "gpt-oss" in line)]) + "\n")
    found = load_engine_constants(run_tool(str(rows), tmp_path, monkeypatch))
    assert found.rows == {row.id for row in few}
    assert found.counts[()] == found.counts[("vllm",)] == len(few)
    assert capsys.readouterr().out == f"{len(few)} rows, 4 classes, 1 models\n"
    same(found, fit_all(points_of(read_measured(rows).rows), ""), rel=1e-3)


@pytest.mark.shared
@MEASURED
def test_the_shipped_file_is_what_the_tool_writes(tmp_path, monkeypatch):
    """Rows, classes and counts exactly; numbers as near as they have to be for predictions to be the same."""
    path = run_tool(os.environ["PLANNER_MEASURED"], tmp_path, monkeypatch)
    assert list(read_lines(path.with_suffix(ROWS_SUFFIX))) == list(
        read_lines(CONSTANTS_FILE.with_suffix(ROWS_SUFFIX))
    )
    new, old = (yaml.safe_load(p.read_text()) for p in (path, CONSTANTS_FILE))
    for kind in ("classes", "models"):
        assert len(new[kind]) == len(old[kind])
    for a, b in zip(new["classes"], old["classes"], strict=True):
        assert {k: a[k] for k in ("engine", "version", "benchmark", "rows")} == {
            k: b[k] for k in ("engine", "version", "benchmark", "rows")
        }
        assert a["decode_scale"] == pytest.approx(b["decode_scale"], rel=0.01)
        assert a["prefill_scale"] == pytest.approx(b["prefill_scale"], rel=0.01)
        assert a["step_ms"] == pytest.approx(b["step_ms"], abs=0.1)
        assert a["sequence_us"] == pytest.approx(b["sequence_us"], abs=2)
        assert a["ttft"] == pytest.approx(b["ttft"], rel=0.1, abs=0.5)
    for a, b in zip(new["models"], old["models"], strict=True):
        assert {**a, "factor": None} == {**b, "factor": None}
        assert a["factor"] == pytest.approx(b["factor"], rel=0.01)
    assert {k: v for k, v in new.items() if not isinstance(v, list)} == {
        k: v for k, v in old.items() if not isinstance(v, list)
    }


def test_keys_of_classes_stand_for_levels():
    keys: list[ClassKey] = list(SHIPPED.classes)
    assert () in keys
    assert {len(key) for key in keys} == {0, 1, 3}


def test_predict_takes_the_constants_of_a_version(planner):
    words = "predict --model meta-llama/Llama-3.1-70B --precision fp8 --gpu h100-sxm --tp 4"
    words += " --isl 1024 --osl 1024 --concurrency 64 --json"
    plain = planner(*words.split()).facts
    other = planner(*words.split(), "--engine-version", "0.16.0").facts
    assert other["tpot_ms"] != plain["tpot_ms"]
    known = load_engine("vllm", "0.16.0")
    assert known.log_sd < load_engine("vllm").log_sd  # a version that was measured
    assert known.step_overhead == shipped_constants().constants(("vllm", "0.16.0")).step
    refused = planner(*words.split(), "--engine-version", "0.17")
    assert (refused.code, refused.out) == (2, "")
    assert "unknown version '0.17' of vllm" in refused.err
    assert "0.16.0" in refused.err
