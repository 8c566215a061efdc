"""The Python API in one import: docs/python-api.md, data frames, and results in terminals and notebooks."""

from __future__ import annotations

import html
import io
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import planner as api
from planner.documents.scenario import scenario_from_text
from planner.documents.yaml_text import dump_yaml
from planner.errors import SpecError
from planner.plan import Plan
from planner.report.shown import show
from planner.results import Result
from planner.search import SolveOptions

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "python-api.md"
SMALL: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "precision": {"weights": "bf16", "kv_cache": "bf16"},
    "workload": {"request_rate": 20, "input_tokens": 1000, "output_tokens": 200},
    "slo": {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 40}},
    "fleet": [{"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 64, "network_gbps_per_gpu": 400}],
    "options": {"whole_nodes": False, "max_tp": 1, "max_pp": 1},
}


@pytest.fixture(scope="module")
def scenario_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("api") / "scenario.yaml"
    path.write_text(dump_yaml(SMALL))
    return path


@pytest.fixture(scope="module")
def plan(scenario_file: Path) -> Plan:
    return api.solve(api.load_scenario(scenario_file), verify=False)


@pytest.fixture(scope="module")
def results(scenario_file: Path, plan: Plan) -> dict[str, Result]:
    """One of every kind."""
    model = api.load_model("meta-llama/Llama-3.1-8B-Instruct")
    configuration = api.Configuration(
        model=model,
        precision=api.Precision.of(model),
        engine=api.load_engine("vllm"),
        colocated=api.Replicas(count=1, gpu=api.load_gpu("h100-sxm"), parallelism=api.Parallelism()),
    )
    busier = api.solve(api.with_values(scenario_file, {"workload.request_rate": 90}), verify=False)
    return {
        "plan": plan,
        "prediction": api.predict(configuration, api.Load(isl=1000, osl=200, concurrency=8)),
        "simulation": api.simulate(plan, requests=500),
        "sweep": api.sweep(scenario_file, {"slo.tpot_ms.p99": [30, 1]}, workers=api.Workers(jobs=1)),
        "pareto": api.pareto(scenario_file, "tpot", points=2),
        "comparison": api.compare(plan, busier),
        "same": api.compare(plan, plan),
        "money": api.money_report(plan),
        "roofline": api.roofline_of(
            api.load_gpu("h100-sxm"), model, api.Precision.of(model), api.load_engine("vllm"),
            api.Parallelism(), api.Operating(isl=1000, context=1100),
        ),
    }  # fmt: skip


KINDS = ("plan", "prediction", "simulation", "sweep", "pareto", "comparison", "same", "money", "roofline")
COLUMNS = {
    "plan": {"phase", "gpu", "replicas", "gpus", "tp", "capacity_requests_per_second", "cost_per_hour"},
    "prediction": {"what", "part", "ms", "low_ms", "high_ms"},
    "simulation": {"latency", "mean_ms", "p99_ms", "p99_ms_half_width", "limits", "met"},
    "sweep": {"slo.tpot_ms.p99", "status", "reason", "cost_per_hour", "fleet", "ttft_p99_ms"},
    "pareto": {"tpot_p99_ms", "usd_per_hour", "fleet"},
    "comparison": {"step", "replicas", "gpus", "before", "after"},
    "same": {"step", "replicas", "gpus", "before", "after"},
    "money": {"name", "usd_per_hour", "usd_per_month"},
    "roofline": {"operator", "batch", "flop_per_byte", "share_of_roof"},
}
WORDS = {
    "plan": "predicted [ms]",
    "prediction": "80 % interval",
    "simulation": "requests measured",
    "sweep": "p99 TPOT <= 1 ms",
    "pareto": "p99 TPOT [ms]",
    "comparison": "to add",
    "same": "the plans are the same",
    "money": "month",
    "roofline": "whole step",
}


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_data_frames(results: dict[str, Result], kind: str) -> None:
    pytest.importorskip("pandas")
    frame = results[kind].to_frame()
    assert COLUMNS[kind] <= set(frame.columns)
    assert len(frame) == 0 if kind == "same" else len(frame) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_html(results: dict[str, Result], kind: str) -> None:
    text = results[kind]._repr_html_()
    assert text.startswith("<pre")
    assert text.endswith("</pre>")
    assert WORDS[kind] in html.unescape(re.sub(r"<[^>]*>", "", text))
    assert set(re.findall(r"</?(\w+)", text)) <= {"pre", "span"}  # whatever names hold is escaped


@pytest.mark.parametrize("kind", KINDS)
def test_rich_prints_results(results: dict[str, Result], kind: str) -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(results[kind])
    text = console.file.getvalue()
    assert WORDS[kind] in text
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text  # no styles where the console has none


def test_rich_prints_what_the_command_prints(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(file=io.StringIO(), width=90)
    console.print(plan)
    show(plan, 90)
    printed = capsys.readouterr().out
    assert [line.rstrip() for line in console.file.getvalue().splitlines()] == [
        line.rstrip() for line in printed.splitlines()
    ]


def test_a_kernel_shows_a_result_once(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich shows what is printed in a notebook's kernel: not what is only recorded."""
    shown: list[object] = []
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *parts: shown.append(parts))
    Console().print("seen")
    assert len(shown) == 1
    assert "predicted [ms]" in plan._repr_html_()
    assert len(shown) == 1


def test_names_are_escaped_in_html(scenario_file: Path) -> None:
    document = SMALL | {"models": None}
    shared = {key: document.pop(key) for key in ("model", "precision", "workload", "slo")}
    document["models"] = [{**shared, "name": "a"}, {**shared, "name": "b"}]
    plan = api.solve(scenario_from_text(dump_yaml(document)), verify=False, alternatives=False)
    from dataclasses import replace

    told = replace(plan, notes=("<script>alert(1)</script> & more",))
    text = told._repr_html_()
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in text


def test_frames_have_what_results_say(results: dict[str, Result]) -> None:
    pytest.importorskip("pandas")
    plan: Any = results["plan"]
    frame = plan.to_frame()
    assert frame["gpus"].sum() == plan.num_gpus
    assert list(frame["group"]) == [g.name for g in plan.groups]
    simulation: Any = results["simulation"]
    ttft = simulation.to_frame().set_index("latency").loc["ttft"]
    assert ttft["p99_ms"] == pytest.approx(1e3 * simulation.ttft.value.p99)
    prediction: Any = results["prediction"]
    parts = prediction.to_frame()
    step = parts[parts["what"] == "decode step"]["ms"].sum()
    assert step == pytest.approx(1e3 * sum(o.time for o in prediction.decode))


@pytest.mark.parametrize("kind", KINDS)
def test_without_pandas_frames_are_refused(
    results: dict[str, Result], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SpecError, match=r"a data frame needs pandas: pip install 'pd-planner\[notebook\]'"):
        results[kind].to_frame()


def test_results_stay_frozen_and_without_a_dictionary(results: dict[str, Result]) -> None:
    for result in results.values():
        assert isinstance(result, Result)
        assert not hasattr(result, "__dict__")
        with pytest.raises((AttributeError, TypeError)):
            result.other = 1  # type: ignore[attr-defined]


def test_every_name_of_the_api_is_there() -> None:
    for name in api.__all__:
        assert getattr(api, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'solv'"):
        _ = api.solv


def test_keywords_of_solve_go_before_options(scenario_file: Path) -> None:
    options = SolveOptions(verify=True, alternatives=True)
    plan = api.solve(scenario_file, options, verify=False, alternatives=False)
    assert plan.verification is None
    assert plan.alternatives == ()
    assert api.solve(scenario_file, SolveOptions(verify=False)).alternatives


def test_other_values_of_a_scenario(scenario_file: Path) -> None:
    moved = api.with_values(scenario_file, {"workload.request_rate": 33, "fleet.h100-sxm.max_gpus": None})
    assert moved.scenario.services[0].workload.request_rate == 33
    assert moved.scenario.fleet[0].max_gpus is None
    with pytest.raises(SpecError, match="did you mean p99"):
        api.with_values(scenario_file, {"slo.tpot_ms.p9": 30})


def test_results_load_neither_rich_nor_pandas() -> None:
    code = (
        "import sys, planner; planner.solve, planner.sweep, planner.pareto, planner.compare\n"
        "assert not {'pandas', 'rich', 'joblib', 'distributed'} & set(sys.modules), 'loaded'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    shutil.copy(ROOT / "examples" / "llama-70b-chat.yaml", tmp_path / "scenario.yaml")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 8
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["plan"].cost == pytest.approx(49.24)
