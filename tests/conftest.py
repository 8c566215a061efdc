"""Shared fixtures: two GPUs, a model, a workload, scenarios from a few lines of text, the command line."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from planner import catalog
from planner.cli import main
from planner.documents.scenario import LoadedScenario, scenario_from_text
from planner.engines import load_engine
from planner.specs import GPU, Engine, Lengths, Marginal, Model, Period, Workload

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under nohup; children would ignore it as well
    signal.signal(signal.SIGINT, signal.default_int_handler)

SCENARIO = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "precision": {"weights": "bf16", "kv_cache": "bf16"},
    "engine": "vllm",
    "workload": {"request_rate": 20, "input_tokens": 1000, "output_tokens": 200},
    "slo": {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 40}},
    "fleet": [
        {"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 64, "network_gbps_per_gpu": 400},
        {"gpu": "a100-80gb-sxm", "price_per_gpu_hour": 1.5, "max_gpus": 64, "network_gbps_per_gpu": 200},
    ],
    "objective": "cost",
}

ScenarioBuilder = Callable[..., LoadedScenario]


@pytest.fixture(scope="session")
def h100() -> GPU:
    return catalog.load_gpu("h100-sxm")


@pytest.fixture(scope="session")
def a100() -> GPU:
    return catalog.load_gpu("a100-80gb-sxm")


@pytest.fixture(scope="session")
def llama_8b() -> Model:
    return catalog.load_model("meta-llama/Llama-3.1-8B")


@pytest.fixture(scope="session")
def llama_70b() -> Model:
    return catalog.load_model("meta-llama/Llama-3.1-70B")


@pytest.fixture(scope="session")
def vllm() -> Engine:
    return load_engine("vllm")


@pytest.fixture(scope="session")
def workload() -> Workload:
    """Two prompt lengths and two output lengths, independent of one another."""
    isl = Marginal(points=(500.0, 2500.0), weights=(0.75, 0.25))
    osl = Marginal(points=(100.0, 400.0), weights=(0.5, 0.5))
    return Workload(
        name="two lengths",
        periods=(Period(name="", hours=1.0, request_rate=20.0),),
        lengths=Lengths(isl=isl, osl=osl, isl_per_output_token=isl.mean),
    )


@pytest.fixture(scope="session")
def scenario() -> ScenarioBuilder:
    """Builds a scenario: the one above with the given top-level keys replaced."""

    def build(**changes: Any) -> LoadedScenario:
        return scenario_from_text(json.dumps(SCENARIO | changes))

    return build


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def facts(self) -> dict[str, Any]:
        """Its JSON, which has no number that JSON does not know."""

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is no JSON")

        facts: dict[str, Any] = json.loads(self.out, parse_constant=refuse)
        return facts


Runner = Callable[..., Result]


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Runner]:
    """Runs the command line in this process; output is caught at the file descriptors."""
    handler = signal.getsignal(signal.SIGINT)

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["planner", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        caught = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, caught.out, caught.err)

    monkeypatch.delenv("COLUMNS", raising=False)
    yield run
    signal.signal(signal.SIGINT, handler)
