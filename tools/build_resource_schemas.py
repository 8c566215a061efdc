"""Compact schemas of Kubernetes resources, from files of their custom resource definitions.

    python tools/build_resource_schemas.py FOLDER

FOLDER holds the definitions as YAML, and SOURCES.json with where each was read. Written is
planner/deploy/kubernetes/schemas/<kind>.json: what a field may hold, without descriptions; pods, which many
kinds have, stand once in pod.json. Kinds of Kubernetes itself are written out below, as far as files of
deployments need them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

OUT = Path(__file__).parents[1] / "planner" / "deploy" / "kubernetes" / "schemas"

Schema = dict[str, Any]

DEFINITIONS = {
    "DynamoGraphDeployment": ("nvidia.com_dynamographdeployments.v1beta1.reconstructed.yaml", "v1beta1"),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io_leaderworkersets.yaml", "v1"),
    "DisaggregatedSet": ("disaggregatedset.x-k8s.io_disaggregatedsets.yaml", "v1"),
    "InferencePool": ("inference.networking.k8s.io_inferencepools.yaml", "v1"),
    "LLMInferenceService": ("serving.kserve.io_llminferenceservices.yaml", "v1alpha2"),
}
"""File and version of each kind."""

KEPT = (
    "type", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems",
    "minProperties", "maxProperties", "required",
)  # fmt: skip

VOLUMES = {
    "name", "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "hostPath", "image", "nfs",
    "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
"""Volumes that are not of one provider."""

LEFT_OUT = {"ephemeralContainers", "windowsOptions"}

LABEL = {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
PORT_NAME = {"type": "string", "maxLength": 15, "pattern": "^[a-z0-9-]*[a-z][a-z0-9-]*$"}
VARIABLE = {"type": "string", "pattern": "^[-._a-zA-Z][-._a-zA-Z0-9]*$"}
INT32 = {"minimum": -(2**31), "maximum": 2**31 - 1}
NUMBER: Schema = {"type": "integer", **INT32}
COUNT: Schema = {**NUMBER, "minimum": 0}

CHOICES = {
    "dnsPolicy": ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
    "effect": ["NoSchedule", "PreferNoSchedule", "NoExecute"],
    "imagePullPolicy": ["Always", "IfNotPresent", "Never"],
    "protocol": ["TCP", "UDP", "SCTP"],
    "restartPolicy": ["Always", "OnFailure", "Never"],
    "whenUnsatisfiable": ["DoNotSchedule", "ScheduleAnyway"],
}
"""Values of fields of pods that definitions leave to the API server, by the reference of the Pod API."""

OPERATORS = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
TOLERATED = ["Exists", "Equal", "Gt", "Lt"]

TEXT: Schema = {"type": "string"}
TEXTS: Schema = {"type": "object", "values": TEXT}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}


def fields(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """An object with these fields and no others."""
    found: Schema = {"type": "object", "fields": properties}
    return found | ({"required": list(required)} if required else {})


def many(item: Schema, *keys: str, **usual: str) -> Schema:
    """A list; `keys` tell its items apart, `usual` are their values where an item has none."""
    found: Schema = {"type": "array", "items": item}
    return found | ({"keys": list(keys)} if keys else {}) | ({"usual": usual} if usual else {})


METADATA = fields(name=TEXT, namespace=TEXT, labels=TEXTS, annotations=TEXTS, finalizers=many(TEXT))
POD_TEMPLATE: Schema = fields(("spec",), metadata=METADATA, spec={"pod": True})
SELECTOR = fields(
    matchLabels=TEXTS,
    matchExpressions=many(
        fields(
            ("key", "operator"),
            key=TEXT,
            operator={"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
            values=many(TEXT),
        )
    ),
)
STRATEGY = fields(
    type={"type": "string", "enum": ["Recreate", "RollingUpdate"]},
    rollingUpdate=fields(maxSurge={"intOrString": True}, maxUnavailable={"intOrString": True}),
)
SERVICE_PORT = fields(
    ("port",), name=TEXT, port=PORT, targetPort={"intOrString": True}, nodePort=PORT, appProtocol=TEXT,
    protocol={"type": "string", "enum": ["TCP", "UDP", "SCTP"]},
)  # fmt: skip
BACKEND = fields(
    ("name",), group=TEXT, kind=TEXT, name=TEXT, namespace=TEXT, port=PORT,
    weight={"type": "integer", "minimum": 0, "maximum": 1_000_000},
)  # fmt: skip
PARENT = fields(
    ("name",), group=TEXT, kind=TEXT, name=TEXT, namespace=TEXT, sectionName=TEXT, port=PORT
)  # fmt: skip
MATCH = fields(
    path=fields(type={"type": "string", "enum": ["Exact", "PathPrefix", "RegularExpression"]}, value=TEXT),
    method=TEXT,
    headers=many(fields(("name", "value"), name=TEXT, value=TEXT, type=TEXT)),
)
FILTER = fields(
    ("type",),
    type=TEXT,
    urlRewrite=fields(
        hostname=TEXT,
        path=fields(("type",), type=TEXT, replacePrefixMatch=TEXT, replaceFullPath=TEXT),
    ),
    requestHeaderModifier={"open": True},
    responseHeaderModifier={"open": True},
    requestMirror={"open": True},
    requestRedirect={"open": True},
    extensionRef={"open": True},
)

CORE: dict[str, tuple[str, Schema]] = {
    "ConfigMap": ("v1", fields(data=TEXTS, binaryData=TEXTS, immutable={"type": "boolean"})),
    "ServiceAccount": (
        "v1",
        fields(
            secrets=many(fields(name=TEXT)),
            imagePullSecrets=many(fields(name=TEXT)),
            automountServiceAccountToken={"type": "boolean"},
        ),
    ),
    "Service": (
        "v1",
        fields(
            spec=fields(
                selector=TEXTS,
                ports=many(SERVICE_PORT, "port", "protocol", protocol="TCP"),
                type={"type": "string", "enum": ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]},
                clusterIP=TEXT,
                externalTrafficPolicy={"type": "string", "enum": ["Cluster", "Local"]},
                internalTrafficPolicy={"type": "string", "enum": ["Cluster", "Local"]},
                ipFamilyPolicy={
                    "type": "string",
                    "enum": ["SingleStack", "PreferDualStack", "RequireDualStack"],
                },
                loadBalancerClass=TEXT,
                loadBalancerSourceRanges=many(TEXT),
                publishNotReadyAddresses={"type": "boolean"},
                sessionAffinity={"type": "string", "enum": ["ClientIP", "None"]},
            )
        ),
    ),
    "Role": (
        "rbac.authorization.k8s.io/v1",
        fields(
            rules=many(
                fields(
                    ("verbs",),
                    apiGroups=many(TEXT),
                    resources=many(TEXT),
                    resourceNames=many(TEXT),
                    verbs=many(TEXT),
                )
            )
        ),
    ),
    "RoleBinding": (
        "rbac.authorization.k8s.io/v1",
        fields(
            ("roleRef",),
            roleRef=fields(("apiGroup", "kind", "name"), apiGroup=TEXT, kind=TEXT, name=TEXT),
            subjects=many(
                fields(("kind", "name"), apiGroup=TEXT, kind=TEXT, name=TEXT, namespace=TEXT),
            ),
        ),
    ),
    "PersistentVolumeClaim": (
        "v1",
        fields(
            spec=fields(
                accessModes=many(
                    {
                        "type": "string",
                        "enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"],
                    }
                ),
                storageClassName=TEXT,
                volumeMode=TEXT,
                volumeName=TEXT,
                resources=fields(
                    requests={"type": "object", "values": {"quantity": True}},
                    limits={"type": "object", "values": {"quantity": True}},
                ),
            )
        ),
    ),
    "Deployment": (
        "apps/v1",
        fields(
            ("spec",),
            spec=fields(
                ("selector", "template"),
                replicas=COUNT,
                selector=SELECTOR,
                template=POD_TEMPLATE,
                strategy=STRATEGY,
                minReadySeconds=NUMBER,
                progressDeadlineSeconds=NUMBER,
                revisionHistoryLimit=NUMBER,
                paused={"type": "boolean"},
            ),
        ),
    ),
    "HTTPRoute": (
        "gateway.networking.k8s.io/v1",
        fields(
            ("spec",),
            spec=fields(
                parentRefs=many(
                    fields(
                        ("name",),
                        group=TEXT,
                        kind=TEXT,
                        name=TEXT,
                        namespace=TEXT,
                        sectionName=TEXT,
                        port=PORT,
                    )
                ),
                hostnames=many(TEXT),
                rules=many(
                    fields(
                        name=TEXT,
                        matches=many(MATCH),
                        filters=many(FILTER),
                        backendRefs=many(BACKEND),
                        timeouts=fields(request=TEXT, backendRequest=TEXT),
                    )
                ),
            ),
        ),
    ),
    "Kustomization": (
        "kustomize.config.k8s.io/v1beta1",
        fields(
            resources=many(TEXT),
            namespace=TEXT,
            namePrefix=TEXT,
            nameSuffix=TEXT,
            components=many(TEXT),
            commonAnnotations=TEXTS,
            labels=many({"open": True}),
            images=many(fields(("name",), name=TEXT, newName=TEXT, newTag=TEXT, digest=TEXT)),
            patches=many({"open": True}),
            replicas=many(fields(("name", "count"), name=TEXT, count=NUMBER)),
            configMapGenerator=many({"open": True}),
        ),
    ),
}
"""Version and schema of kinds of Kubernetes itself, of the Gateway API and of kustomize."""


def compact(schema: Any) -> Schema:
    """What a field may hold; descriptions, defaults and rules in other languages are left out."""
    if schema.get("x-kubernetes-int-or-string") or schema.get("format") == "int-or-string":
        quantity = "pattern" in schema  # only quantities have one
        return {"quantity": True} if quantity else {"intOrString": True}
    found: Schema = {key: schema[key] for key in KEPT if key in schema}
    if schema.get("format") == "int32":
        found = INT32 | found
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return {"open": True}
    if "properties" in schema:
        if {"containers", "nodeSelector", "tolerations"} <= schema["properties"].keys():
            whole = "containers" in schema.get("required", ())
            return {"pod": True} if whole else {"pod": True, "partial": True}
        found["fields"] = {
            name: compact(part) for name, part in schema["properties"].items() if name not in LEFT_OUT
        }
        if found["fields"].get("spec") == {"pod": True} and "metadata" in found["fields"]:
            found["fields"]["metadata"] = METADATA
    elif isinstance(schema.get("additionalProperties"), dict):
        found["values"] = compact(schema["additionalProperties"])
    elif found.get("type") == "object":
        return {"open": True}
    if "items" in schema:
        found["items"] = compact(schema["items"])
    if schema.get("x-kubernetes-list-type") == "map":
        found["keys"] = list(schema["x-kubernetes-list-map-keys"])
        parts = schema["items"]["properties"]
        if usual := {key: parts[key]["default"] for key in found["keys"] if "default" in parts[key]}:
            found["usual"] = usual
    if schema.get("nullable"):
        found["nullable"] = True
    if "enum" in found:
        found["enum"] = [value for value in found["enum"] if value != ""] or found.pop("enum")
    return found or {"open": True}


def pod_of(schema: Any) -> Any:
    """The first schema of a pod within another."""
    if isinstance(schema, dict):
        properties = schema.get("properties", {})
        if {"containers", "nodeSelector", "tolerations"} <= properties.keys():
            return schema
        for part in schema.values():
            if (found := pod_of(part)) is not None:
                return found
    return None


def pod_schema(definition: Any) -> Schema:
    """Fields of a pod's spec."""
    pod = pod_of(definition)
    found: Schema = {
        "type": "object",
        "fields": {name: compact(part) for name, part in pod["properties"].items() if name not in LEFT_OUT},
        "required": ["containers"],
    }
    volume = found["fields"]["volumes"]["items"]["fields"]
    found["fields"]["volumes"]["items"]["fields"] = {
        name: part for name, part in volume.items() if name in VOLUMES
    }
    found["fields"]["volumes"]["items"]["fields"]["name"] = LABEL
    for kind in ("containers", "initContainers"):
        container = found["fields"][kind]["items"]["fields"]
        container["name"] = LABEL
        container["ports"]["items"]["fields"]["name"] = PORT_NAME
        container["env"]["items"]["fields"]["name"] = VARIABLE
    tighten(found)
    return found


def tighten(schema: Any) -> None:
    """Adds to the fields of a pod which values there are."""
    if not isinstance(schema, dict):
        return
    parts = schema.get("fields", {})
    for name, part in parts.items():
        if name in CHOICES and part.get("type") == "string":
            part["enum"] = CHOICES[name]
        elif name == "operator":
            part["enum"] = OPERATORS if "values" in parts else TOLERATED
        elif name in ("containerPort", "hostPort"):
            parts[name] = PORT
        else:
            tighten(part)
    for inner in ("items", "values"):
        tighten(schema.get(inner))


def definition_of(folder: Path, file: str, version: str) -> tuple[str, Any]:
    """The API version and the schema of a custom resource definition."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    documents = yaml.load_all((folder / file).read_text(encoding="utf-8"), Loader=loader)
    spec = next(d for d in documents if d and d.get("kind") == "CustomResourceDefinition")["spec"]
    schema = next(v for v in spec["versions"] if v["name"] == version)["schema"]["openAPIV3Schema"]
    return f"{spec['group']}/{version}", schema


def texts(folder: Path) -> dict[str, str]:
    """Text of every file, by its name."""
    sources = json.loads((folder / "SOURCES.json").read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for kind, (file, version) in DEFINITIONS.items():
        api, schema = definition_of(folder, file, version)
        body = {name: part for name, part in schema["properties"].items() if name in ("spec",)}
        compacted = compact({"type": "object", "properties": body, "required": ["spec"]})
        source = f"{source_of(sources, file)}; Apache-2.0; descriptions left out"
        found[f"{kind}.json"] = text_of(kind, api, source, compacted)
    _, workers = definition_of(folder, *DEFINITIONS["LeaderWorkerSet"])
    source = f"pods within {source_of(sources, DEFINITIONS['LeaderWorkerSet'][0])}; Apache-2.0"
    found["pod.json"] = text_of("pod", "", source, pod_schema(workers))
    for kind, (api, schema) in CORE.items():
        source = "written out from the API's reference, as far as files of deployments need it"
        found[f"{kind}.json"] = text_of(kind, api, source, schema)
    return found


def source_of(sources: Any, file: str) -> str:
    """Where a definition was read."""
    entry = sources.get(file, file)
    if isinstance(entry, dict):
        return " ".join(str(value) for value in entry.values())
    return str(entry)


def text_of(kind: str, api: str, source: str, schema: Schema) -> str:
    head = {"kind": kind, "apiVersion": api, "source": source, "schema": schema}
    return json.dumps(head, separators=(",", ":"), sort_keys=False) + "\n"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    OUT.mkdir(parents=True, exist_ok=True)
    for name, text in texts(Path(sys.argv[1])).items():
        (OUT / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
