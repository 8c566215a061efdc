"""Graphs for NVIDIA Dynamo: what they say, that checks find one fault anywhere, and the way back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from conftest import Runner
from deploy_plans import SCENARIOS
from deploy_servers import run_cluster_check
from deploy_tools import CLUSTER_SITE, emit_folder


@pytest.fixture
def emitted(planner: Runner, tmp_path: Path):
    def emit(kind: str, name: str = "out", site: str = CLUSTER_SITE, engine: str = "vllm") -> Path:
        return emit_folder(planner, tmp_path, kind, name, site, "dynamo", engine)

    return emit


def components(folder: Path, file: str = "graph.yaml") -> list[dict]:
    return yaml.safe_load((folder / file).read_text(encoding="utf-8"))["spec"]["components"]


def main_of(component: dict) -> dict:
    return component["podTemplate"]["spec"]["containers"][0]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("kind", SCENARIOS)
def test_what_emit_writes_passes(planner: Runner, emitted, kind, engine):
    folder = emitted(kind, engine=engine)
    result = planner("check", folder)
    assert (result.code, result.err) == (0, ""), result.out


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("url", [False, True])
@pytest.mark.parametrize("remote", [True, False])
def test_the_smoke_check_sees_decode_only_engines(emitted, remote, url):
    metric = 'dynamo_component_requests_total{dynamo_component="x",dynamo_endpoint="generate"}'
    done = run_cluster_check(
        emitted("different-tp") / "smoke-check.sh", metric=metric, metrics_port="9090", remote=remote, url=url
    )
    assert (done.returncode == 0) == remote, done.stdout + done.stderr
    said = (
        "passed" if remote else "prefill engines finished 0 of 4 requests: decode engines compute the prompts"
    )
    assert said in done.stdout + done.stderr
