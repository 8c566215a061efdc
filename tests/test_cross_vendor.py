"""Hand-overs between GPUs of two vendors: only where a scenario asks for them, and through host memory."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Runner

from planner.documents.plan import dump_plan
from planner.documents.scenario import scenario_from_text
from planner.engines import engine_of, load_engine
from planner.engines.legality import EndPoint, pair_violations
from planner.errors import InfeasibleError, SpecError
from planner.plan import Plan
from planner.search import SolveOptions
from planner.specs import Dtype, PairCheck, Parallelism
from planner.workflow import solve

SCENARIO: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-70B-Instruct",
    "precision": {"weights": "fp8", "kv_cache": "bf16"},
    "engine": "vllm",
    "workload": {"request_rate": 20, "input_tokens": 1500, "output_tokens": 300},
    "slo": {"ttft_ms": {"p99": 3000}, "tpot_ms": {"p99": 60}},
    "fleet": [
        {"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "network_gbps_per_gpu": 100, "max_decode_gpus": 0},
        {"gpu": "mi300x", "price_per_gpu_hour": 2.0, "network_gbps_per_gpu": 100, "max_prefill_gpus": 0},
    ],
    "options": {"routing": "power_of_two", "colocated": "forbidden", "cross_vendor": True},
}
SITE = """\
hosts: {h100-sxm: [10.0.0.1, 10.0.0.2], mi300x: [10.0.1.1, 10.0.1.2]}
router_host: front.example
model_cache: /data
images: {amd: 'registry.example/vllm-rocm:0.33.0'}
"""


def asked(**options: Any) -> str:
    scenario = copy.deepcopy(SCENARIO)
    scenario["options"] |= options
    return json.dumps(scenario)


@cache
def plan() -> Plan:
    return solve(scenario_from_text(asked()), SolveOptions(verify=False, alternatives=False))


@pytest.fixture
def folder(planner: Runner, tmp_path: Path) -> Path:
    (tmp_path / "plan.yaml").write_text(dump_plan(plan(), reproducible=True), encoding="utf-8")
    (tmp_path / "site.yaml").write_text(SITE, encoding="utf-8")
    result = planner(
        "emit",
        tmp_path / "plan.yaml",
        "--target",
        "vllm",
        "-o",
        tmp_path / "out",
        "--site",
        tmp_path / "site.yaml",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "note: Experimental: " in result.err
    return tmp_path / "out"


def test_pairs_of_two_vendors_need_the_switch():
    with pytest.raises(InfeasibleError):
        solve(scenario_from_text(asked(cross_vendor=False)), SolveOptions(verify=False, alternatives=False))
    assert {(group.phase, group.gpu) for group in plan().groups} == {
        ("prefill", "h100-sxm"),
        ("decode", "mi300x"),
    }


def test_the_switch_drops_one_rule_and_takes_the_slow_way():
    loaded = scenario_from_text(asked()).scenario
    (service,) = loaded.services
    kept = {rule.check for rule in engine_of(service).pair_rules}
    assert kept == {rule.check for rule in load_engine("vllm").pair_rules} - {PairCheck.VENDOR}
    assert not any(item.rdma for item in loaded.fleet)
    one = copy.deepcopy(SCENARIO)
    one["fleet"] = one["fleet"][:1]
    assert all(item.rdma for item in scenario_from_text(json.dumps(one)).scenario.fleet)


def test_other_engines_are_refused_with_the_line():
    text = yaml.safe_dump(SCENARIO | {"engine": "sglang"}, sort_keys=False)
    with pytest.raises(SpecError, match="only vLLM can be told") as caught:
        scenario_from_text(text)
    line = next(i for i, line in enumerate(text.splitlines(), 1) if "cross_vendor" in line)
    assert caught.value.problems[0].line == line


def test_fp8_caches_of_two_vendors_never_pair():
    ends = [
        EndPoint(parallelism=Parallelism(tp=1), gpu=gpu, vendor=vendor, kv_cache=Dtype.FP8, block_size=16)
        for gpu, vendor in (("h100-sxm", "nvidia"), ("mi300x", "amd"))
    ]
    (service,) = scenario_from_text(asked()).scenario.services
    found = list(pair_violations(*ends, service.model, engine_of(service).pair_rules))
    assert [violation.rule for violation in found] == ["pair.kv_dtype"]
    assert "e4m3fnuz" in found[0].reason


def test_both_sides_take_host_memory_and_their_own_image(planner: Runner, folder: Path):
    assert planner("check", folder).code == 0
    images = set()
    for path in (folder / "hosts").iterdir():
        for service in yaml.safe_load(path.read_text("utf-8"))["services"].values():
            images.add(service["image"])
            words = service["command"]
            config = json.loads(words[words.index("--kv-transfer-config") + 1])
            assert config["kv_buffer_device"] == "cpu"
            assert config["kv_connector_extra_config"] == {"enforce_handshake_compat": False}
            assert words[words.index("--attention-backend") + 1] == "TRITON_ATTN"  # that both have
            assert service["environment"]["UCX_TLS"] == "tcp"
            assert service["environment"]["VLLM_KV_CACHE_LAYOUT"] in ("HND", "NHD")
    assert images == {"vllm/vllm-openai:v0.33.0", "registry.example/vllm-rocm:0.33.0"}
    back = folder.parent / "back.yaml"
    assert planner("import", folder, "-o", back).code == 0
    assert back.read_bytes() == (folder.parent / "plan.yaml").read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"kv_buffer_device":"cpu"',
            '"kv_buffer_device":"cuda"',
            "kv_buffer_device of engines on",
        ),
        (
            ',"kv_connector_extra_config":{"enforce_handshake_compat":false}',
            "",
            "kv_connector_extra_config",
        ),
        ("export VLLM_KV_CACHE_LAYOUT=", "export VLLM_KV_CACHE_LAYOUT=X", "must be the same on GPUs of two"),
    ],
)
def test_one_side_that_differs_is_found(planner: Runner, folder: Path, old: str, new: str, said: str):
    path = next((folder / "groups").glob("decode-*"))
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    result = planner("check", folder)
    assert result.code == 2
    assert said in result.out


@pytest.mark.parametrize("target", ["dynamo", "llm-d", "kserve"])
def test_clusters_refuse_two_vendors(planner: Runner, tmp_path: Path, target: str):
    (tmp_path / "plan.yaml").write_text(dump_plan(plan()), encoding="utf-8")
    refused = planner("emit", tmp_path / "plan.yaml", "--target", target, "-o", tmp_path / "out")
    assert refused.code == 2
    assert "starts engines of one vendor only, the plan has nvidia and amd" in refused.err


def test_an_image_that_nobody_gave_is_named(planner: Runner, tmp_path: Path):
    (tmp_path / "plan.yaml").write_text(dump_plan(plan()), encoding="utf-8")
    assert planner("emit", tmp_path / "plan.yaml", "--target", "vllm", "-o", tmp_path / "out").code == 0
    assert "SET-ME-images-amd' (give images in the site file" in planner("check", tmp_path / "out").out
