"""Values for the chart of llm-d's router: which pods, and how it picks one for each phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.deploy.command_text import comment
from planner.deploy.description import Deployment, Front, checked_for
from planner.deploy.findings import Finding, of_error, of_problem
from planner.deploy.kubernetes.llmd_pods import GUIDE
from planner.deploy.kubernetes.reading import ReadPod
from planner.deploy.reading import Manifest
from planner.documents.files import read_text
from planner.documents.names import did_you_mean, one_of
from planner.documents.tree import KeyPath, Tree
from planner.documents.yaml_text import dump_yaml, parse_tree
from planner.errors import SpecError
from planner.specs import Phase

CHART = "oci://ghcr.io/llm-d/charts/llm-d-router-standalone"

_FILE = "planner-config.yaml"
_VERSION, _KIND = "llm-d.ai/v1alpha1", "EndpointPickerConfig"
_DECIDER, _HANDLER = "always-disagg-pd-decider", "disagg-profile-handler"
_SCORER, _PICKER = "active-request-scorer", "max-score-picker"
_PLUGINS = (
    _DECIDER, "always-disagg-multimodal-decider", "prefix-based-pd-decider", _HANDLER,
    "single-profile-handler",
    "disagg-headers-handler", "prefill-filter", "decode-filter", "label-selector-filter",
    "context-length-aware", "prefix-cache-affinity-filter", "topology-affinity-filter",
    "slo-headroom-tier-filter", "approx-prefix-cache-producer", "precise-prefix-cache-producer",
    "inflight-load-producer", "token-producer", "token-load-scorer", _SCORER, "queue-scorer",
    "kv-cache-utilization-scorer", "prefix-cache-scorer", "no-hit-lru-scorer", "load-aware-scorer",
    "latency-scorer", "session-affinity-scorer", "lora-affinity-scorer", "running-requests-scorer",
    "topology-affinity-scorer", _PICKER, "random-picker", "weighted-random-picker", "metrics-data-source",
    "core-metrics-extractor", "openai-parser", "passthrough-parser", "vllmgrpc-parser",
)  # fmt: skip
"""Those that guides and sources of the router name."""

_PEAK = "peakPrefillThroughput"
_KEYS: Mapping[str, Sequence[str]] = {
    "": ("router",),
    "router": (
        "epp", "modelServers", "extraServicePorts", "inferencePool", "inferenceObjectives", "proxy",
        "monitoring", "tracing", "tokenizer", "clusterDomain", "imagePullSecrets", "latencyPredictor",
    ),
    "router.epp": (
        "replicas", "pluginsConfig", "pluginsConfigFile", "pluginsCustomConfig", "image", "flags", "env",
        "resources", "tolerations", "affinity", "nodeSelector", "monitoring", "tracing", "extProcPort",
        "grpcHealthPort", "parsers", "metricsDataSource", "extraContainerPorts", "podAnnotations",
        "podSecurityContext", "securityContext", "deploymentStrategy",
    ),
    "router.modelServers": ("matchLabels", "targetPorts", "type", "protocol"),
}  # fmt: skip
"""Keys of the values: the chart takes any, so that a misspelt one does nothing."""


def values_text(deployment: Deployment, front: Front, version: str) -> str:
    """Values with the router's version and its whole configuration."""
    told = f"plan {deployment.plan_id}; for {checked_for(deployment)}"
    config = dump_yaml(picker_config(front))
    values = {
        "router": {
            "extraServicePorts": [
                {"name": "http", "port": front.router.port, "protocol": "TCP", "targetPort": 8081}
            ],
            "modelServers": {"matchLabels": {GUIDE: front.door}},
            "epp": {"replicas": 1, "image": {"tag": f"v{version}"}, "pluginsConfigFile": _FILE},
        }
    }
    lines = [
        comment(f"Values of {CHART}, for {front.service}"),
        comment(told),
        dump_yaml(values).rstrip("\n"),
        "    pluginsCustomConfig:",
        f"      {_FILE}: |",
        *(f"        {line}" for line in config.splitlines()),
    ]
    return "\n".join(lines) + "\n"


def picker_config(front: Front) -> dict[str, Any]:
    """How requests are shared: each phase by what its engines have under way."""
    scored = [{"pluginRef": _SCORER}, {"pluginRef": _PICKER}]
    if not front.disaggregated:
        return {
            "apiVersion": _VERSION,
            "kind": _KIND,
            "plugins": [{"type": name} for name in ("single-profile-handler", _SCORER, _PICKER)],
            "schedulingProfiles": [{"name": "default", "plugins": scored}],
        }
    return {
        "apiVersion": _VERSION,
        "kind": _KIND,
        "plugins": [
            {"type": _DECIDER},
            {"type": _HANDLER, "parameters": {"deciders": {"prefill": _DECIDER}}},
            {"type": "prefill-filter"},
            {"type": "decode-filter"},
            {"type": "disagg-headers-handler"},
            {"type": _SCORER},
            {"type": _PICKER},
        ],
        "schedulingProfiles": [
            {"name": phase, "plugins": [{"pluginRef": f"{phase}-filter"}, *scored]}
            for phase in ("prefill", "decode")
        ],
    }


# --------------------------------------------------------------------------------------------
# Checking


def router_faults(folder: Path, manifest: Manifest, pods: Sequence[ReadPod]) -> Iterator[Finding]:
    """What is wrong with the values of routers."""
    for service, suffix in manifest.suffixes.items():
        file = f"router{suffix}.values.yaml"
        if not (folder / file).is_file():
            continue  # told by itself
        try:
            tree, problems = parse_tree(read_text(folder / file), file)
        except SpecError as error:
            yield from of_error(file, error)
            continue
        yield from (of_problem(file, problem) for problem in problems)
        names = {group.name: group.role for group in manifest.groups if group.service == service}
        own = [pod for pod in pods if pod.group in names]
        yield from _key_findings(tree, file)
        yield from _label_findings(tree, file, own)
        replicas = tree.get("router", "epp", "replicas")
        if replicas not in (None, 1):
            rule = "replicas of the router must be 1: each counts only its own requests"
            line = tree.line(("router", "epp", "replicas"))
            yield Finding(file=file, line=line, rule=rule, value=str(replicas))
        yield from _config_findings(tree, file, apart=Phase.PREFILL in names.values())


def _key_findings(tree: Tree, file: str) -> Iterator[Finding]:
    for dotted, known in _KEYS.items():
        path: KeyPath = tuple(part for part in dotted.split(".") if part)
        section = tree.get(*path) if path else tree.raw
        for key in section if isinstance(section, dict) else ():
            if key not in known:
                rule = f"{dotted or 'the chart'} has no such value"
                hint = did_you_mean(str(key), known)
                yield Finding(
                    file=file, line=tree.line((*path, key)), rule=rule, value=str(key), suggestion=hint
                )


def _label_findings(tree: Tree, file: str, pods: Sequence[ReadPod]) -> Iterator[Finding]:
    path = ("router", "modelServers", "matchLabels")
    wanted = tree.get(*path)
    if not isinstance(wanted, dict) or not wanted:
        rule = "router.modelServers.matchLabels is required: the router finds engines by it"
        yield Finding(file=file, line=tree.line(path), rule=rule)
        return
    for pod in pods:
        labels = pod.file.tree.get(*pod.template, "metadata", "labels")
        given = labels if isinstance(labels, dict) else {}
        for key, value in wanted.items():
            if given.get(key) != value:
                rule = f"pods of {pod.group} lack the label {key}={value} that the router finds engines by"
                line = pod.file.tree.line((*pod.template, "metadata", "labels", key))
                yield Finding(file=pod.file.name, line=line, rule=rule, value=str(given.get(key, "nothing")))


def _config_findings(tree: Tree, file: str, *, apart: bool) -> Iterator[Finding]:
    """The configuration of plugins within the values."""
    name = tree.get("router", "epp", "pluginsConfigFile")
    path: KeyPath = ("router", "epp", "pluginsCustomConfig", str(name))
    line, text = tree.line(path), tree.get(*path)
    if not isinstance(text, str):
        rule = "pluginsConfigFile names no file of pluginsCustomConfig"
        yield Finding(
            file=file, line=tree.line(("router", "epp", "pluginsConfigFile")), rule=rule, value=str(name)
        )
        return
    try:
        config, problems = parse_tree(text, file)
    except SpecError as error:
        yield from (Finding(file=file, line=line, rule=one.rule) for one in of_error(file, error))
        return
    yield from (Finding(file=file, line=line + one.line, rule=one.rule, value=one.value) for one in problems)
    yield from picker_findings(config, (), file, line, apart=apart)


def picker_findings(
    tree: Tree, path: KeyPath, file: str, before: int = 0, *, apart: bool
) -> Iterator[Finding]:
    """What is wrong with a configuration of plugins.

    Parameters
    ----------
    before : int
        Lines of the file before the tree's.
    apart : bool
        Whether prefill and decode have engines of their own.
    """
    config, line = tree.within(*path), before
    if config.get("kind") != _KIND or config.get("apiVersion") != _VERSION:
        rule = f"the plugins' file must be a {_KIND} of {_VERSION}"
        yield Finding(file=file, line=line + config.line(()), rule=rule, value=str(config.get("apiVersion")))
    types = [str(config.get("plugins", i, "type")) for i in range(len(config.entries("plugins")))]
    for i, kind in enumerate(types):
        if kind not in _PLUGINS:
            at = line + config.line(("plugins", i, "type"))
            hint = did_you_mean(kind, _PLUGINS)
            yield Finding(file=file, line=at, rule="is no plugin", value=kind, suggestion=hint)
        if config.has("plugins", i, "parameters", _PEAK):
            at = line + config.line(("plugins", i, "parameters", _PEAK))
            rule = f"{_PEAK} is one number for all engines; the plan counts on none"
            yield Finding(file=file, line=at, rule=rule)
    names = {str(config.get("plugins", i, "name") or kind) for i, kind in enumerate(types)}
    profiles = range(len(config.entries("schedulingProfiles")))
    for i in profiles:
        for k in range(len(config.entries("schedulingProfiles", i, "plugins"))):
            where = ("schedulingProfiles", i, "plugins", k, "pluginRef")
            reference = str(config.get(*where))
            if reference not in names:
                rule, hint = "pluginRef names no plugin above", did_you_mean(reference, sorted(names))
                at = line + config.line(where)
                yield Finding(file=file, line=at, rule=rule, value=reference, suggestion=hint)
    found = tuple(str(config.get("schedulingProfiles", i, "name")) for i in profiles)
    wanted = ("prefill", "decode") if apart else ("default",)
    if sorted(found) != sorted(wanted):
        rule = f"schedulingProfiles must be {' and '.join(wanted)}"
        at = line + config.line(("schedulingProfiles",))
        yield Finding(file=file, line=at, rule=rule, value=", ".join(found) or "nothing")
    if apart and _HANDLER not in types:
        rule = f"plugins must have {_HANDLER}; without it decode engines compute the prompts"
        yield Finding(file=file, line=line + config.line(("plugins",)), rule=rule)
    elif apart:
        at_handler = types.index(_HANDLER)
        decider = config.get("plugins", at_handler, "parameters", "deciders", "prefill")
        if decider != _DECIDER:
            rule = f"the decider of prefill {one_of((_DECIDER,))}: the plan hands every prompt over"
            at = line + config.line(("plugins", at_handler))
            yield Finding(file=file, line=at, rule=rule, value=str(decider or "nothing"))
