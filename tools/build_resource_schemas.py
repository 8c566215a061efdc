"""Compact schemas of Kubernetes resources, from custom resource definitions and Kubernetes' own definitions.

    python tools/build_resource_schemas.py CRDS_FOLDER [DEFINITIONS]

CRDS_FOLDER holds CRD files and SOURCES.json (where each is from). DEFINITIONS is the _definitions.json of a
release's JSON schemas, as the package kubernetes-validate carries it; by default that of the installed package,
and without one the kinds of Kubernetes itself stay as they are. Written are planner/deploy/kubernetes/schemas/*.json:
types, enums, patterns, bounds, required fields and keys of lists, without descriptions. Pods stand in pod.json alone.

Schema words are those of JSON Schema, but: `properties` means that other fields are refused; `ref` names a
definition of the file or (`pod:`) of pod.json; `keys` are fields that tell entries of a list apart, with their
defaults; types int64, int-or-string, quantity, any, labels, annotations; formats are checked by the planner.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Schema = dict[str, Any]

OUT = Path(__file__).parents[1] / "planner" / "deploy" / "kubernetes" / "schemas"

CUSTOM = {
    "DynamoGraphDeployment": ("nvidia.com/v1beta1", "nvidia.com_dynamographdeployments.v1beta1.reconstructed.yaml"),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", "leaderworkerset.x-k8s.io_leaderworkersets.yaml"),
    "DisaggregatedSet": ("disaggregatedset.x-k8s.io/v1", "disaggregatedset.x-k8s.io_disaggregatedsets.yaml"),
    "InferencePool": ("inference.networking.k8s.io/v1", "inference.networking.k8s.io_inferencepools.yaml"),
    "LLMInferenceService": ("serving.kserve.io/v1alpha2", "serving.kserve.io_llminferenceservices.yaml"),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", "gateway.networking.k8s.io_httproute_v1.jsonschema.json"),
}  # fmt: skip
"""Version and file of facts by kind."""

CORE = {
    "ConfigMap": ("v1", "io.k8s.api.core.v1.ConfigMap"),
    "Service": ("v1", "io.k8s.api.core.v1.Service"),
    "ServiceAccount": ("v1", "io.k8s.api.core.v1.ServiceAccount"),
    "PersistentVolumeClaim": ("v1", "io.k8s.api.core.v1.PersistentVolumeClaim"),
    "Deployment": ("apps/v1", "io.k8s.api.apps.v1.Deployment"),
}

KUBERNETES = "kubernetes/kubernetes API definitions v1.37, as in kubernetes-validate 1.37.0"
LICENCES = {"HTTPRoute": "MIT"}  # the catalogue that it is from
POD_FROM = CUSTOM["LeaderWorkerSet"]

DROPPED_OF_PODS = {"ephemeralContainers", "windowsOptions", "schedulingGroup", "restartPolicyRules"}
VOLUMES = {
    "name", "persistentVolumeClaim", "emptyDir", "configMap", "secret", "hostPath", "csi", "projected",
    "downwardAPI", "nfs", "image", "ephemeral",
}  # fmt: skip
"""Kinds of volumes that are kept: the others are out of use or serve single clouds."""

LEFT_OPEN = {"ephemeral", "providerOverride", "podCertificate", "clusterTrustBundle"}
"""Fields whose contents are not looked into."""

LEFT_OPEN_OF_KSERVE = {"keda", "wva", "http"}

ENUMS: dict[str, list[str]] = {
    "imagePullPolicy": ["Always", "IfNotPresent", "Never"],
    "terminationMessagePolicy": ["File", "FallbackToLogsOnError"],
    "dnsPolicy": ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    "preemptionPolicy": ["PreemptLowerPriority", "Never"],
    "whenUnsatisfiable": ["DoNotSchedule", "ScheduleAnyway"],
    "sessionAffinity": ["None", "ClientIP"],
    "ipFamilyPolicy": ["SingleStack", "PreferDualStack", "RequireDualStack"],
    "externalTrafficPolicy": ["Cluster", "Local"],
    "internalTrafficPolicy": ["Cluster", "Local"],
    "volumeMode": ["Filesystem", "Block"],
}
"""Values that an API server takes of fields whose definitions name none (Kubernetes API reference)."""

FIELDS: dict[tuple[str, str], Schema] = {
    ("spec", "restartPolicy"): {"enum": ["Always", "OnFailure", "Never"]},
    ("initContainers", "restartPolicy"): {"enum": ["Always", "OnFailure", "Never"]},
    ("containers", "name"): {"format": "label"},
    ("initContainers", "name"): {"format": "label"},
    ("volumes", "name"): {"format": "label"},
    ("env", "name"): {"format": "variable"},
    ("tolerations", "operator"): {"enum": ["Exists", "Equal", "Lt", "Gt"]},
    ("tolerations", "effect"): {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
    ("tolerations", "key"): {"format": "key"},
    ("ports", "protocol"): {"enum": ["TCP", "UDP", "SCTP"]},
    ("ports", "containerPort"): {"minimum": 1, "maximum": 65535},
    ("ports", "hostPort"): {"minimum": 0, "maximum": 65535},
    ("ports", "port"): {"minimum": 1, "maximum": 65535},
    ("ports", "nodePort"): {"minimum": 0, "maximum": 65535},
    ("ports", "name"): {"format": "label"},
    ("matchExpressions", "key"): {"format": "key"},
    ("emptyDir", "medium"): {"format": "medium"},
    ("persistentVolumeClaim", "claimName"): {"format": "subdomain"},
    ("imagePullSecrets", "name"): {"format": "subdomain"},
    ("spec", "type"): {"enum": ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]},
    ("hostPath", "type"): {
        "enum": ["", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"]
    },
}  # fmt: skip
"""What is true of a field below a field, beside its definition (Kubernetes API reference)."""

PORT_NAMES = {"format": "port"}  # of containers, which are stricter than those of services
PROBES = {"livenessProbe", "readinessProbe", "startupProbe"}
POSITIVE = {"periodSeconds", "timeoutSeconds", "successThreshold", "failureThreshold"}
LABELS = {"labels", "matchLabels", "nodeSelector", "selector"}
NODE_OPERATORS = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]

KEPT = ("enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "required")
SHARED_FROM = 90  # characters; shorter parts are not worth a name


def compact(schema: Schema, above: str, name: str, places: frozenset[str] = frozenset()) -> Schema:
    """A schema without words, in the words of the compact form.

    Parameters
    ----------
    above, name : str
        Field that the schema is of, and the one around it.
    places : set of str
        All fields around it.
    """
    if name in LEFT_OPEN or (name in LEFT_OPEN_OF_KSERVE and "kserve" in places):
        return {}
    properties = schema.get("properties") or {}
    if "pod" not in places and {"containers", "nodeSelector", "volumes"} <= set(properties):
        return {"ref": "pod:spec"}
    kind = schema.get("type")
    kind = next((k for k in kind if k != "null"), None) if isinstance(kind, list) else kind
    found: Schema = {}
    if name == "metadata" and kind == "object":
        return {"ref": "pod:metadata"}
    if schema.get("x-kubernetes-preserve-unknown-fields") and not properties:
        return {}
    if schema.get("x-kubernetes-int-or-string"):
        kind = "quantity" if "numkMGTPE" in schema.get("pattern", "") else "int-or-string"
    elif kind == "integer" and schema.get("format") == "int64":
        kind = "int64"
    below = places | {name}
    if kind == "object" and name == "annotations":
        return {"type": "annotations"}
    texts = schema.get("additionalProperties")
    if kind == "object" and name in LABELS and isinstance(texts, dict) and "string" in str(texts.get("type")):
        return {"type": "labels"}
    if kind is not None:
        found["type"] = kind
    for word in KEPT:
        if schema.get(word) and (word != "pattern" or kind == "string"):
            found[word] = schema[word]
        elif word == "minimum" and schema.get(word) == 0:
            found[word] = 0
    if properties:
        found["properties"] = {
            key: compact(part, name, key, below)
            for key, part in sorted(properties.items())
            if keeps(name, key, places)
        }
        if schema.get("x-kubernetes-preserve-unknown-fields"):
            found["open"] = True
    elif isinstance(texts, dict):
        found["values"] = compact(texts, name, "", below)
    elif kind == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found["properties"] = {}
    if "items" in schema:
        found["items"] = compact(schema["items"], above, name, below)
    if keys := schema.get("x-kubernetes-list-map-keys"):
        entries = schema["items"].get("properties") or {}
        defaults = {"protocol": "TCP", **{key: entries[key].get("default") for key in keys if key in entries}}
        found["keys"] = {key: defaults.get(key) or ("TCP" if key == "protocol" else None) for key in keys}
    if name in ENUMS and kind == "string":
        found["enum"] = ENUMS[name]
    if name in POSITIVE and PROBES & places:
        found["minimum"] = 1
    found |= extra(above, name, kind, places)
    return found


def extra(above: str, name: str, kind: str | None, places: frozenset[str]) -> Schema:
    """What is true of a field beside its definition."""
    if kind in ("object", "array"):
        return {}
    if (above, name) == ("ports", "name") and "pod" in places:
        return PORT_NAMES
    if name == "operator" and "nodeAffinity" in places:
        return {"enum": NODE_OPERATORS}
    if name == "operator" and "matchExpressions" in places:
        return {"enum": NODE_OPERATORS[:4]}
    if not places & {"pod", "core"}:
        return {}
    return FIELDS.get((above, name), {})


def keeps(above: str, name: str, places: frozenset[str]) -> bool:
    """Whether a field stays."""
    if name in ("apiVersion", "kind", "status") and not above:
        return False
    if above == "volumes" and "pod" in places:
        return name in VOLUMES
    return name not in DROPPED_OF_PODS


# --------------------------------------------------------------------------------------------
# Parts that occur more than once


def share(schema: Schema, prefix: str = "") -> dict[str, Schema]:
    """Definitions of parts that a schema has more than once; the schema refers to them."""
    seen: Counter[str] = Counter()
    names: dict[str, str] = {}
    for name, part in parts(schema, ""):
        text = json.dumps(part, sort_keys=True)
        seen[text] += 1
        names.setdefault(text, name)
    taken: Counter[str] = Counter()
    called: dict[str, str] = {}
    for text, count in seen.items():
        if count > 1 and len(text) >= SHARED_FROM:
            taken[names[text]] += 1
            number = taken[names[text]]
            called[text] = names[text] + (str(number) if number > 1 else "")
    definitions: dict[str, Schema] = {}
    texts = {name: text for text, name in called.items()}

    def refer(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        name = called.get(json.dumps(part, sort_keys=True))
        if name is None:
            return inner(part)
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = inner(json.loads(texts[name]))
        return {"ref": prefix + name}

    def inner(part: Schema) -> Schema:
        found = dict(part)
        if "properties" in part:
            found["properties"] = {key: refer(value) for key, value in part["properties"].items()}
        for word in ("items", "values"):
            if word in part:
                found[word] = refer(part[word])
        return found

    made = inner(schema)
    schema.clear()
    schema.update(made)
    return definitions


def parts(schema: Schema, name: str) -> Iterator[tuple[str, Schema]]:
    """All schemas within one, each with the field that it is of."""
    for key, part in (schema.get("properties") or {}).items():
        yield key, part
        yield from parts(part, key)
    for word in ("items", "values"):
        if word in schema:
            yield name, schema[word]
            yield from parts(schema[word], name)


# --------------------------------------------------------------------------------------------
# Files


def custom(folder: Path, kind: str) -> Schema:
    """The schema of a kind, as its file has it."""
    api_version, file = CUSTOM[kind]
    text = (folder / file).read_text(encoding="utf-8")
    if file.endswith(".json"):
        return dict(json.loads(text))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    versions = yaml.load(text, Loader=loader)["spec"]["versions"]
    wanted = api_version.rpartition("/")[2]
    found = next(version for version in versions if version["name"] == wanted)
    return dict(found["schema"]["openAPIV3Schema"])


def pod(folder: Path) -> dict[str, Any]:
    """Definitions of pods."""
    spec = custom(folder, "LeaderWorkerSet")["properties"]["spec"]
    template = spec["properties"]["leaderWorkerTemplate"]["properties"]["workerTemplate"]["properties"]["spec"]
    made = compact(template, "", "spec", frozenset({"pod"}))
    definitions = share(made)
    text = {"type": "string"}
    metadata = {
        "type": "object",
        "properties": {
            "annotations": {"type": "annotations"},
            "finalizers": {"type": "array", "items": text},
            "generateName": text,
            "labels": {"type": "labels"},
            "name": text,
            "namespace": {"type": "string", "format": "label"},
            "ownerReferences": {"type": "array", "items": {}},
        },
    }
    return {"definitions": {"spec": made, "metadata": metadata, **definitions}}


def of_kind(raw: Schema, kind: str, api_version: str, places: frozenset[str]) -> dict[str, Any]:
    """File of a kind."""
    made = compact({**raw, "type": "object"}, "", "", places)
    made["properties"]["metadata"] = {"ref": "pod:metadata"}
    made["required"] = sorted({*made.get("required", ()), "metadata"} - {"apiVersion", "kind"})
    if kind == "DynamoGraphDeployment":
        made["required"].append("spec")
    definitions = share(made)
    return {"apiVersion": api_version, "kind": kind, "schema": made, "definitions": definitions}


def resolved(definitions: dict[str, Any], name: str) -> Schema:
    """A definition of Kubernetes with all that it refers to, in the words of custom resources."""

    def walk(part: Any) -> Any:
        if isinstance(part, list):
            return [walk(item) for item in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            target = part["$ref"].rpartition("/")[2]
            if target.endswith("Quantity"):
                return {"x-kubernetes-int-or-string": True, "pattern": "numkMGTPE"}
            if target.endswith("IntOrString"):
                return {"x-kubernetes-int-or-string": True}
            if target.endswith("ObjectMeta"):
                return {"type": "object"}
            if target.endswith("JSONSchemaProps"):
                return {"x-kubernetes-preserve-unknown-fields": True}
            return walk(definitions[target])
        return {key: walk(value) for key, value in part.items() if key != "additionalProperties" or value}

    return dict(walk(definitions[name]))


def kustomization() -> dict[str, Any]:
    """Fields of a kustomization that people write (kubectl's reference of the file)."""
    text = {"type": "string"}
    texts = {"type": "array", "items": text}
    parts = {"type": "array", "items": {}}
    image = {"type": "object", "properties": {key: text for key in ("name", "newName", "newTag", "digest")}}
    patch = {
        "type": "object",
        "properties": {"path": text, "patch": text, "target": {}, "options": {}},
    }
    fields: dict[str, Any] = {
        "commonAnnotations": {"type": "annotations"},
        "commonLabels": {"type": "labels"},
        **{key: parts for key in ("configMapGenerator", "secretGenerator", "helmCharts", "replacements")},
        **{key: texts for key in ("components", "configurations", "crds", "generators", "transformers")},
        "generatorOptions": {},
        "images": {"type": "array", "items": {**image, "required": ["name"]}, "keys": {"name": None}},
        "labels": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "pairs": {"type": "labels"},
                    "includeSelectors": {"type": "boolean"},
                    "includeTemplates": {"type": "boolean"},
                    "fields": {},
                },
            },
        },
        "metadata": {"ref": "pod:metadata"},
        "namePrefix": text,
        "nameSuffix": text,
        "namespace": {"type": "string", "format": "label"},
        "openapi": {},
        "patches": {"type": "array", "items": patch},
        "replicas": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": text, "count": {"type": "integer", "minimum": 0}},
                "required": ["name", "count"],
            },
        },
        "resources": texts,
        "sortOptions": {},
        "validators": texts,
    }
    schema = {"type": "object", "properties": dict(sorted(fields.items()))}
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "schema": schema,
        "definitions": {},
    }


def made_files(folder: Path, definitions: Path | None) -> dict[str, str]:
    """Texts of all schemas by file name."""
    sources = json.loads((folder / "SOURCES.json").read_text(encoding="utf-8"))
    files = {"pod": _headed(pod(folder), sources[POD_FROM[1]], "Apache-2.0")}
    for kind, (api_version, file) in CUSTOM.items():
        places = frozenset({"kserve"} if kind == "LLMInferenceService" else ())
        body = of_kind(custom(folder, kind), kind, api_version, places)
        files[kind.lower()] = _headed(body, sources[file], LICENCES.get(kind, "Apache-2.0"))
    files["kustomization"] = _headed(kustomization(), "kubectl reference of kustomization.yaml", "facts")
    if definitions is not None:
        known = json.loads(definitions.read_text(encoding="utf-8"))["$defs"]
        for kind, (api_version, name) in CORE.items():
            body = of_kind(resolved(known, name), kind, api_version, frozenset({"core"}))
            files[kind.lower()] = _headed(body, KUBERNETES, "Apache-2.0")
    return {f"{name}.json": _text(body) for name, body in files.items()}


def _headed(body: dict[str, Any], source: str, licence: str) -> dict[str, Any]:
    return {"source": re.sub(r"\s+", " ", source), "licence": licence, **body}


def _text(body: dict[str, Any]) -> str:
    """One definition a line."""
    short = {"separators": (",", ":"), "sort_keys": True}
    lines = []
    for key, value in body.items():
        if key == "definitions":
            inner = ",\n".join(f'  "{name}": {json.dumps(part, **short)}' for name, part in value.items())
            lines.append(f' "definitions": {{\n{inner}\n }}')
        else:
            lines.append(f' "{key}": {json.dumps(value, **short)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def installed_definitions() -> Path | None:
    """Kubernetes' definitions within the installed package kubernetes-validate; None where there is none."""
    spec = importlib.util.find_spec("kubernetes_validate")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    paths = (Path(at) / "kubernetes-json-schema/v1.37.0-local-strict/_definitions.json" for at in folders)
    return next((path for path in paths if path.is_file()), None)


def main() -> None:
    folder = Path(sys.argv[1])
    definitions = Path(sys.argv[2]) if len(sys.argv) > 2 else installed_definitions()
    OUT.mkdir(exist_ok=True)
    for name, text in made_files(folder, definitions).items():
        (OUT / name).write_text(text, encoding="utf-8")
        print(f"{name}: {len(text)} bytes")


if __name__ == "__main__":
    main()
