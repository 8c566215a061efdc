"""``planner.calibrate_engine``: files of load tests, one configuration, a profile."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from load_test_files import EXAMPLE, MODEL

import planner
from planner import Configuration, Load, Parallelism, Precision, Replicas, predict
from planner.documents.engine_profile import load_engine_profile
from planner.engines import profiled_engine
from planner.errors import SpecError
from planner.validation.engine import EngineCalibration, calibrate_engine


def configuration(**changes: object) -> Configuration:
    model = planner.load_model(MODEL)
    one = Replicas(count=1, gpu=planner.load_gpu("h100-sxm"), parallelism=Parallelism())
    plain = Configuration(
        model=model, precision=Precision.of(model), engine=planner.load_engine("vllm"), colocated=one
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def some_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Four runs, and two more in another file, of the twelve."""
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines(keepends=True)
    folder = tmp_path_factory.mktemp("runs")
    first, second = folder / "first.jsonl", folder / "second.jsonl"
    first.write_text("".join(lines[i] for i in (0, 3, 5, 7)))
    second.write_text("".join(lines[i] for i in (8, 11)))
    return first, second


@pytest.fixture(scope="module")
def found(some_runs: tuple[Path, Path]) -> EngineCalibration:
    return calibrate_engine(some_runs, configuration(), engine_version="0.33.0")


def test_runs_of_several_files_count(found: EngineCalibration) -> None:
    assert [(file.file, file.rows) for file in found.profile.calibration.results] == [
        ("first.jsonl", 4),
        ("second.jsonl", 2),
    ]
    assert (found.profile.engine, found.profile.version) == ("vllm", "0.33.0")
    assert found.setup.pools == ((1, Parallelism()),)


def test_the_engine_predicts_the_runs(found: EngineCalibration) -> None:
    runs = found.calibration.evidence
    seen = np.array([run.tpot for run in runs])

    def off(engine: planner.specs.Engine) -> float:
        loads = [Load(isl=r.case.isl, osl=r.case.osl, concurrency=r.case.target.clients) for r in runs]
        tpot = np.array([predict(configuration(engine=engine), load).tpot for load in loads])
        return float(np.median(np.abs(tpot / seen - 1)))

    assert off(configuration().engine) > 0.1
    assert off(found.engine) < 0.05


def test_errors_of_held_out_runs_are_a_table(found: EngineCalibration) -> None:
    pytest.importorskip("pandas")
    frame = found.to_frame().set_index("latency")
    assert list(frame.index) == ["tpot", "ttft"] or list(frame.index) == ["ttft", "tpot"]
    after = found.calibration.after["tpot"]
    assert frame.loc["tpot", "median_percent"] == pytest.approx(100 * after.median_ape)
    assert frame.loc["tpot", "before_median_percent"] > frame.loc["tpot", "median_percent"]


def test_it_shows_what_the_command_prints(found: EngineCalibration) -> None:
    text = html.unescape(re.sub(r"<[^>]*>", "", found._repr_html_()))
    assert "6 rows, 6 different loads, on h100-sxm" in text
    assert "held out in 6 parts" in text


def test_a_saved_profile_is_that_of_a_scenario(found: EngineCalibration, tmp_path: Path) -> None:
    path = tmp_path / "engine.yaml"
    found.save(path)
    assert path.read_text(encoding="utf-8") == found.text
    read = profiled_engine("vllm", load_engine_profile(path))
    assert replace(read, provenance="") == replace(found.engine, provenance="")


def test_constants_that_come_with_the_engine_do_not_count(some_runs: tuple[Path, Path]) -> None:
    slow = configuration(engine=replace(planner.load_engine("vllm"), step_overhead=1.0))
    assert (
        calibrate_engine(some_runs[1], slow).setup
        == calibrate_engine(str(some_runs[1]), configuration()).setup
    )


def test_pools_on_two_gpu_types_are_refused(some_runs: tuple[Path, Path]) -> None:
    prefill, decode = (
        Replicas(count=1, gpu=planner.load_gpu(gpu), parallelism=Parallelism())
        for gpu in ("h100-sxm", "a100-80gb-sxm")
    )
    two = configuration(colocated=None, prefill=prefill, decode=decode)
    with pytest.raises(SpecError, match="have to be on one GPU type \\(measure each type by itself\\)"):
        calibrate_engine(some_runs, two)


def test_results_of_another_model_are_refused(some_runs: tuple[Path, Path]) -> None:
    other = planner.load_model("meta-llama/Llama-3.2-1B-Instruct")
    with pytest.raises(SpecError, match=f"was measured with {re.escape(MODEL)}, which is not"):
        calibrate_engine(some_runs, configuration(model=other, precision=Precision.of(other)))


def test_runs_that_say_nothing_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "few.json"
    text = EXAMPLE.read_text(encoding="utf-8").splitlines()[3]
    path.write_text(text.replace('"max_concurrency": 48', '"max_concurrency": 400'))
    with pytest.raises(
        SpecError, match="none of the 1 rows can be used: 1 x fewer than 2 requests per client"
    ):
        calibrate_engine(path, configuration())
