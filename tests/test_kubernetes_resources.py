"""Objects of Kubernetes as an API server reads them: one fault anywhere is told, with its line."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from deploy_tools import FACTS

from planner.deploy.kubernetes.resources import known_kinds, resource_findings
from planner.documents.yaml_text import parse_tree

POD = """\
nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}
tolerations:
- {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}
containers:
- name: main
  image: registry.example/engine:1.6.1
  args: [--port, '8000']
  env:
  - {name: UCX_TLS, value: 'rc'}
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
  ports:
  - {name: http, containerPort: 8000}
  resources:
    limits: {nvidia.com/gpu: '4', memory: 64Gi, cpu: 500m}
    requests: {nvidia.com/gpu: '4', memory: 64Gi}
  readinessProbe:
    httpGet: {path: /health, port: 8000}
  volumeMounts:
  - {name: weights, mountPath: /models}
volumes:
- name: weights
  persistentVolumeClaim: {claimName: weights}
"""


def indented(text: str, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


def head(api: str, kind: str) -> str:
    return f"apiVersion: {api}\nkind: {kind}\nmetadata:\n  name: one\n  labels: {{a.b/c: d}}\n"


GOOD = {
    "ConfigMap": head("v1", "ConfigMap") + "data: {a.json: '{}'}\n",
    "Service": head("v1", "Service")
    + "spec:\n  selector: {a: b}\n  ports:\n  - {port: 80, targetPort: http}\n",
    "ServiceAccount": head("v1", "ServiceAccount"),
    "Role": head("rbac.authorization.k8s.io/v1", "Role")
    + "rules:\n- {apiGroups: [''], resources: [pods], verbs: [get, list, watch]}\n",
    "RoleBinding": head("rbac.authorization.k8s.io/v1", "RoleBinding")
    + "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: one}\n"
    + "subjects: [{kind: ServiceAccount, name: one, namespace: a}]\n",
    "PersistentVolumeClaim": head("v1", "PersistentVolumeClaim")
    + "spec:\n  accessModes: [ReadWriteMany]\n  resources: {requests: {storage: 500Gi}}\n",
    "Deployment": head("apps/v1", "Deployment")
    + "spec:\n  replicas: 2\n  selector: {matchLabels: {a: b}}\n  template:\n"
    + "    metadata:\n      labels: {a: b}\n    spec:\n"
    + indented(POD, 6),
    "HTTPRoute": head("gateway.networking.k8s.io/v1", "HTTPRoute")
    + "spec:\n  parentRefs: [{name: gate}]\n  rules:\n  - backendRefs: [{name: a, port: 80, weight: 3}]\n",
    "Kustomization": "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    "resources: [a.yaml]\n",
    "InferencePool": head("inference.networking.k8s.io/v1", "InferencePool")
    + "spec:\n  selector: {matchLabels: {a: b}}\n  targetPorts: [{number: 8000}]\n"
    + "  endpointPickerRef: {name: epp, port: {number: 9002}}\n",
    "LeaderWorkerSet": head("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
    + "spec:\n  replicas: 2\n  leaderWorkerTemplate:\n    size: 2\n"
    + "    restartPolicy: RecreateGroupOnPodRestart\n"
    + "    workerTemplate:\n      spec:\n"
    + indented(POD, 8),
    "DisaggregatedSet": head("disaggregatedset.x-k8s.io/v1", "DisaggregatedSet")
    + "spec:\n  roles:\n"
    + "".join(
        f"  - name: {role}\n    spec:\n      replicas: 1\n      leaderWorkerTemplate:\n        size: 1\n"
        f"        workerTemplate:\n          spec:\n{indented(POD, 12)}"
        for role in ("prefill", "decode")
    ),
    "LLMInferenceService": head("serving.kserve.io/v1alpha2", "LLMInferenceService")
    + "spec:\n  model: {uri: 'hf://a/b', name: a}\n  replicas: 1\n  parallelism: {tensor: 4}\n  template:\n"
    + indented(POD, 4)
    + "  prefill:\n    replicas: 2\n    template:\n"
    + indented(POD, 6),
    "DynamoGraphDeployment": head("nvidia.com/v1beta1", "DynamoGraphDeployment")
    + "spec:\n  backendFramework: vllm\n  components:\n"
    + "".join(
        f"  - name: {name}\n    type: {name}\n    replicas: 2\n    multinode: {{nodeCount: 2}}\n"
        f"    sharedMemorySize: 32Gi\n    podTemplate:\n      spec:\n{indented(POD, 8)}"
        for name in ("prefill", "decode")
    ),
}


def found(text: str) -> list[str]:
    tree, problems = parse_tree(text, "x.yaml")
    return [*map(str, problems), *map(str, resource_findings(tree, "x.yaml"))]


@pytest.mark.parametrize("kind", GOOD)
def test_good_objects_pass(kind: str):
    assert found(GOOD[kind]) == []


def test_every_kind_has_an_example():
    assert set(GOOD) == set(known_kinds())


BREAKS: dict[str, tuple[str, str, str, str]] = {
    "kind": ("Deployment", "kind: Deployment", "kind: Deploymnt", "did you mean Deployment"),
    "version": ("Deployment", "apps/v1", "apps/v2", "apiVersion of Deployment must be apps/v1"),
    "older graph": ("DynamoGraphDeployment", "v1beta1", "v1alpha1", "must be nvidia.com/v1beta1.*older"),
    "older service": ("LLMInferenceService", "v1alpha2", "v1alpha1", "must be serving.kserve.io/v1alpha2"),
    "field": ("Deployment", "replicas: 2", "replicass: 2", "did you mean replicas"),
    "field of a pod": ("Deployment", "nodeSelector:", "nodeSelectors:", "did you mean nodeSelector"),
    "field of a container": ("Deployment", "  image:", "  imag:", "did you mean image"),
    "field of metadata": ("ConfigMap", "  labels:", "  label:", "did you mean labels"),
    "older pool": ("InferencePool", "targetPorts: [{number: 8000}]", "targetPortNumber: 8000", "targetPorts"),
    "services of a graph": ("DynamoGraphDeployment", "  components:", "  services:", "no such field"),
    "selector beside a template": (
        "LLMInferenceService",
        "  prefill:\n",
        "  prefill:\n    nodeSelector: {a: b}\n",
        "no such field",
    ),
    "number for text": ("Deployment", "value: 'rc'", "value: 8000", "must be text.*write '8000'"),
    "boolean for text": ("Deployment", "value: 'rc'", "value: yes", "must be text"),
    "number among words": ("Deployment", "'8000'", "8000", r"args\[1\] must be text"),
    "text for a number": ("Deployment", "replicas: 2", "replicas: two", "must be a whole number"),
    "boolean for a number": ("Deployment", "replicas: 2", "replicas: true", "must be a whole number"),
    "quantity": ("Deployment", "memory: 64Gi, cpu", "memory: 64Gx, cpu", "must be a quantity"),
    "large suffix": ("Deployment", "memory: 64Gi, cpu", "memory: 64K, cpu", "must be a quantity"),
    "broken quantity": ("Deployment", "cpu: 500m", "cpu: 0.5", "must be a quantity.*write '0.5'"),
    "too large": ("LeaderWorkerSet", "size: 2", "size: 3000000000", "must be at most 2147483647"),
    "no labels": ("InferencePool", "matchLabels: {a: b}", "matchLabels: {}", "must be at least 1 keys"),
    "effect": ("Deployment", "effect: NoSchedule", "effect: NoScedule", "did you mean NoSchedule"),
    "operator": ("Deployment", "operator: Exists", "operator: Exist", "did you mean Exists"),
    "pull": ("Deployment", "  image:", "  imagePullPolicy: always\n        image:", "did you mean Always"),
    "restarts": (
        "Deployment", "  nodeSelector:", "  restartPolicy: Ever\n      nodeSelector:",
        "must be one of A",
    ),
    "container's name": ("Deployment", "name: main", "name: Main", "containers.0..name must match"),
    "variable's name": ("Deployment", "name: UCX_TLS", "name: UCX TLS", "env.0..name must match"),
    "volume's name": ("Deployment", "- name: weights", "- name: Weights", "volumes.0..name must match"),
    "port's name": ("Deployment", "name: http,", "name: a-name-of-a-port,", "must be at most 15 characters"),
    "port of a container": ("Deployment", "containerPort: 8000", "containerPort: 80000", "at most 65535"),
    "verbs": ("Role", ", verbs: [get, list, watch]", "", "rules.0..verbs is required"),
    "role": ("RoleBinding", "roleRef: [^\n]*\n", "", "roleRef is required"),
    "choice": ("Service", "  selector:", "  type: ClusterIp\n  selector:", "did you mean ClusterIP"),
    "policy": ("LeaderWorkerSet", "RecreateGroupOnPodRestart", "Sometimes", "must be one of"),
    "bound": ("HTTPRoute", "weight: 3", "weight: -1", "must be at least 0"),
    "port": ("Service", "port: 80,", "port: 80000,", "must be at most 65535"),
    "required": ("Deployment", "  selector: {matchLabels: {a: b}}\n", "", "spec.selector is required"),
    "no metadata": (
        "ServiceAccount", r"metadata:\n  name: one\n  labels: \{a.b/c: d\}\n", "",
        "metadata is req",
    ),
    "no name": ("ServiceAccount", "  name: one\n", "", "metadata.name is required"),
    "name": ("ConfigMap", "name: one", "name: One_1", "metadata.name must be up to 253"),
    "namespace": (
        "ConfigMap", "name: one", "name: one\n  namespace: a.b",
        "metadata.namespace must be up to 63",
    ),
    "label's key": ("ConfigMap", "a.b/c: d", "a b: d", "is no key of labels"),
    "label's value": ("ConfigMap", "a.b/c: d", "a.b/c: 'x y'", "a label must be"),
    "label of no text": ("ConfigMap", "a.b/c: d", "a.b/c: 1", "labels.a.b/c must be text.*write '1'"),
    "labels that are a list": (
        "ConfigMap", "labels: {a.b/c: d}", "labels: [a]",
        "metadata.labels must be a map",
    ),
    "labels of a graph's pod": (
        "DynamoGraphDeployment", "podTemplate:\n", "podTemplate:\n      metadata: {labels: [a]}\n",
        "podTemplate.metadata.labels must be a mapping",
    ),
    "annotations": (
        "ConfigMap", "labels: {a.b/c: d}", "annotations: x",
        "metadata.annotations must be a map",
    ),
    "long key": ("ConfigMap", "a.b/c: d", f"{'a' * 254}/c: d", "is no key of labels"),
    "key of data": ("ConfigMap", "a.json", "a/b.json", "a key of data must be up to 253"),
    "name of a service": ("Service", "name: one", "name: a.b", "up to 63 small letters.*a letter first"),
    "name of a set": ("LeaderWorkerSet", "name: one", "name: 1one", "a letter first"),
    "label of a pod": ("Deployment", "      labels: {a: b}", "      labels: {a: 'b/c'}", "a label must be"),
    "variable twice": ("Deployment", "name: POD_IP", "name: UCX_TLS", "two items with this name"),
    "port twice": (
        "Deployment",
        "  - {name: http, containerPort: 8000}",
        "  - {name: http, containerPort: 8000}\n        - {name: x, containerPort: 8000}",
        "two items with this containerPort",
    ),
    "port twice, once by default": (
        "Deployment",
        "  - {name: http, containerPort: 8000}",
        "  - {name: http, containerPort: 8000}\n        - {containerPort: 8000, protocol: TCP}",
        "two items with this containerPort and protocol.*8000, TCP",
    ),
    "part of a GPU": (
        "Deployment", "'4', memory: 64Gi, cpu: 500m}\n *requests: {nvidia.com/gpu: '4'",
        "'1.5'}\n          requests: {nvidia.com/gpu: '1.5'",
        "nvidia.com/gpu must be a whole number",
    ),
    "picker's port": ("InferencePool", ", port: {number: 9002}", "", "port is required where the picker"),
    "ports of a pool": (
        "InferencePool", r"\[{number: 8000}\]", "[{number: 8000}, {number: 8000}]",
        "two target ports are the same",
    ),
    "mount": ("Deployment", "name: weights, mount", "name: weight, mount", "a volume that the pod has not"),
    "toleration": ("Deployment", "key: nvidia.com/gpu", "key: amd.com/gpu", "needs a toleration"),
    "requests": (
        "Deployment", "requests: {nvidia.com/gpu: '4'", "requests: {nvidia.com/gpu: '2'",
        "must be the same",
    ),
    "both scalings": (
        "LLMInferenceService",
        "  replicas: 1\n",
        "  replicas: 1\n  scaling: {minReplicas: 1, maxReplicas: 2}\n",
        "replicas and scaling exclude one another",
    ),
    "roles": ("DisaggregatedSet", "name: decode", "name: prefill", "one name|two items with this name"),
    "components": ("DynamoGraphDeployment", "name: decode", "name: Prefill", "differ in more than capitals"),
    "long names": ("DynamoGraphDeployment", "name: one", "name: " + "a" * 35, "up to 45 characters together"),
    "nodes": ("DynamoGraphDeployment", "nodeCount: 2", "nodeCount: 1", "at least 2"),
    "type": ("DynamoGraphDeployment", "type: prefill", "type: prefil", "did you mean prefill"),
    "framework": (
        "DynamoGraphDeployment", "framework: vllm|Framework: vllm", "Framework: vlm",
        "backendFramework",
    ),
    "main": ("DynamoGraphDeployment", "name: main", "name: engine", "needs a container main"),
    "tag": ("DynamoGraphDeployment", "engine:1.6.1", "engine:mine", "runtimeVersionOverride is required"),
    "available": (
        "DynamoGraphDeployment", "replicas: 2", "replicas: 2\n    minAvailable: 3",
        "minAvailable must be at most",
    ),
    "restart": (
        "DynamoGraphDeployment", "  components:", "  restart: {id: a}\n  components:",
        "restart must be",
    ),
    "policies": (
        "DynamoGraphDeployment", "  components:",
        "  experimental: {kvTransferPolicy: {domain: rack}}\n  components:",
        "needs one of labelKey and clusterTopologyName",
    ),
    "picker of a worker": (
        "DynamoGraphDeployment", "type: prefill", "type: prefill\n    eppConfig: {config: {}}",
        "belongs to a component of type epp",
    ),
    "no component": (
        "DynamoGraphDeployment", r"components:\n(.*\n)*", "components: []\n",
        "needs a component",
    ),
    "doors": ("DynamoGraphDeployment", "type: prefill", "type: epp", "at most one component of type epp"),
}  # fmt: skip


def broken(kind: str, old: str, new: str) -> str:
    text = re.sub(old, lambda _: new, GOOD[kind], count=1)
    if text == GOOD[kind]:
        text = GOOD[kind].replace(old, new, 1)
    assert text != GOOD[kind], old
    return text


@pytest.mark.parametrize("fault", BREAKS)
def test_one_fault_is_told(fault: str):
    kind, old, new, said = BREAKS[fault]
    lines = found(broken(kind, old, new))
    assert any(re.search(said, line) for line in lines), lines
    assert all(re.match(r"x\.yaml:[1-9]\d*: ", line) for line in lines)


@pytest.mark.parametrize("quantity", ["100n", "100u", "2k", "1E", "'1e3'", "64Mi", "1.5Gi", "'0.5'", "4"])
def test_quantities_of_every_suffix_pass(quantity: str):
    assert found(GOOD["Deployment"].replace("cpu: 500m", f"cpu: {quantity}")) == []


def test_the_line_is_that_of_the_fault():
    text = broken("Deployment", "value: 'rc'", "value: 8000")
    number = next(i for i, line in enumerate(text.splitlines(), start=1) if "value: 8000" in line)
    assert found(text)[0].startswith(f"x.yaml:{number}: ")


def test_a_service_may_leave_containers_to_its_base():
    good = head("serving.kserve.io/v1alpha2", "LLMInferenceService")
    spec = (
        "spec:\n  model: {uri: 'hf://a/b'}\n  baseRefs: [{name: base}]\n  template: {nodeSelector: {a: b}}\n"
    )
    assert found(good + spec) == []


def test_placeholders_are_told_elsewhere():
    assert found(GOOD["ConfigMap"].replace("name: one", "name: one\n  namespace: SET-ME-namespace")) == []


# --------------------------------------------------------------------------------------------
# Other checkers


def other(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    beside = Path(FACTS).parent
    command = [sys.executable, str(beside / "tools" / "crdcheck.py"), "--crds", str(beside / "crds")]
    return subprocess.run([*command, str(tmp_path / "x.yaml")], capture_output=True, text=True, check=False)


CUSTOM = (
    "InferencePool",
    "LeaderWorkerSet",
    "DisaggregatedSet",
    "LLMInferenceService",
    "DynamoGraphDeployment",
)
CEL = ("available", "policies", "picker of a worker", "picker's port", "ports of a pool")
OURS = (
    "toleration", "requests", "mount", "long names", "main", "tag", "label of a pod", "framework", "doors",
    "older service", "labels of a graph's pod", "no component", "name of a set", "restart",
    *(() if importlib.util.find_spec("cel") else ("both scalings", "components", *CEL)),
)  # fmt: skip
"""Faults that the other checker does not tell; some it tells by rules in CEL, where that is installed."""


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
@pytest.mark.parametrize("kind", CUSTOM)
def test_another_checker_passes_the_same(tmp_path: Path, kind: str):
    done = other(tmp_path, GOOD[kind])
    assert done.returncode == 0, done.stdout


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
@pytest.mark.parametrize("fault", [f for f, (kind, *_) in BREAKS.items() if kind in CUSTOM and f not in OURS])
def test_another_checker_refuses_the_same(tmp_path: Path, fault: str):
    kind, old, new, _ = BREAKS[fault]
    done = other(tmp_path, broken(kind, old, new))
    assert done.returncode == 1 or "SKIP" in done.stdout or "deprecated" in done.stdout, done.stdout


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
def test_examples_of_others_pass():
    path = Path(FACTS).parent / "examples" / "dgd-hetero-ours.yaml"
    lines = found(path.read_text(encoding="utf-8"))
    assert all("toleration" in line for line in lines), lines  # ours: GPU nodes are tainted


@pytest.mark.shared
@pytest.mark.skipif(not FACTS, reason="PLANNER_DEPLOY_FACTS names no folder: data beside the checkout")
def test_schemas_are_what_the_tool_makes():
    tool = Path(__file__).parents[1] / "tools" / "build_resource_schemas.py"
    spec = importlib.util.spec_from_file_location("build_resource_schemas", tool)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    for name, text in made.texts(Path(FACTS).parent / "crds").items():
        assert (made.OUT / name).read_text(encoding="utf-8") == text, name
        assert json.loads(text)["source"]


@pytest.mark.tools
@pytest.mark.parametrize(
    "kind",
    ["ConfigMap", "Service", "ServiceAccount", "PersistentVolumeClaim", "Deployment", "Role", "RoleBinding"],
)
def test_kubernetes_validate_agrees(tmp_path: Path, kind: str):
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    tree, _ = parse_tree(GOOD[kind], "x.yaml")
    validate.validate(tree.raw, "1.37", strict=True)
    for fault, (of, old, new, _) in BREAKS.items():
        if of == kind and fault in (
            "field",
            "field of a pod",
            "text for a number",
            "number for text",
            "required",
            "verbs",
            "role",
            "labels that are a list",
        ):
            wrong, _ = parse_tree(broken(of, old, new), "x.yaml")
            with pytest.raises(validate.ValidationError):
                validate.validate(wrong.raw, "1.37", strict=True)
