"""The disaggregated server of TensorRT-LLM: the file that names its engines, written and checked.

It is not refused upstream where a key is misspelt: what the server does not know is handed on to the engines
that it might start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.deploy.command_line import ConfigKeys, FlagList, load_flags
from planner.deploy.command_text import comment
from planner.deploy.config_files import read_config, unknown_key
from planner.deploy.description import Deployment, Engine, Front
from planner.deploy.findings import Finding
from planner.deploy.manifest import suffixes
from planner.deploy.reading import Manifest, compose_services
from planner.deploy.rendering import provenance
from planner.documents.names import did_you_mean, one_of
from planner.documents.tree import Tree
from planner.documents.yaml_text import dump_yaml
from planner.errors import SpecError
from planner.specs import Phase

_SECTIONS = {Phase.PREFILL: "context_servers", Phase.DECODE: "generation_servers"}
_ROUTERS = ("round_robin", "load_balancing", "kv_cache_aware")
_START, _ANSWER = "3600", "1800"
"""How long it waits for engines to load, and for an answer. [s]"""


# --------------------------------------------------------------------------------------------
# Writing


def server_name(suffix: str) -> str:
    """Its file, by what tells files of several services apart."""
    return f"disagg{suffix}.yml"


def server_arguments(deployment: Deployment, front: Front) -> Iterator[tuple[str, ...]]:
    """Flags of ``trtllm-serve disaggregated``, each with its value."""
    suffix = suffixes(deployment)[deployment.fronts.index(front)]
    yield "--config_file", server_name(suffix)
    yield "--server_start_timeout", _START
    yield "--request_timeout", _ANSWER


def server_files(deployment: Deployment) -> dict[str, str]:
    """A file for every service of which prefill and decode are apart.

    Raises
    ------
    SpecError
        A host has an address that the server does not read.
    """
    found = {}
    for front, suffix in zip(deployment.fronts, suffixes(deployment), strict=True):
        _require_ipv4(front.router.address)
        urls = {role: [_url(deployment, e) for e in front.engines_of(role)] for role in Phase}
        if front.disaggregated:
            config: dict[str, Any] = {"hostname": "0.0.0.0", "port": front.router.port}
            for role, section in _SECTIONS.items():
                config[section] = {
                    "num_instances": len(urls[role]),
                    "router": {"type": front.router.policy},
                    "urls": urls[role],
                }
            lines = [
                comment(f"Engines of {front.service}, for trtllm-serve disaggregated"),
                comment(provenance(deployment)),
                dump_yaml(config),
            ]
            found[server_name(suffix)] = "\n".join(lines)
    return found


def _url(deployment: Deployment, engine: Engine) -> str:
    address = deployment.host(engine.host).address
    _require_ipv4(address)
    return f"{address}:{engine.port}"


def _require_ipv4(address: str) -> None:
    if address.startswith("["):
        rule = "TensorRT-LLM 1.2.1 listens on IPv4 only, and splits addresses of engines at the colon"
        raise SpecError(f"hosts: {rule}, got {address} (give names or IPv4 addresses)")


# --------------------------------------------------------------------------------------------
# Checking


def server_findings(
    folder: Path, manifest: Manifest, flags: FlagList, engine_keys: FlagList
) -> Iterator[Finding]:
    """Keys that the server does not know, and engines that it should."""
    server = load_flags("trtllm-disaggregated", manifest.router_version)
    assert server.config is not None
    known = _known(folder, manifest, flags)
    for service, suffix in manifest.suffixes.items():
        file = server_name(suffix)
        tree, found = read_config(folder, file)
        yield from found
        if tree is not None:
            yield from _top_findings(file, tree, server, server.config, engine_keys)
            for role, section in _SECTIONS.items():
                yield from _section_findings(
                    file, tree.within(section), section, server, engine_keys, known[service, role]
                )


def _known(folder: Path, manifest: Manifest, flags: FlagList) -> dict[tuple[str, Phase], list[str]]:
    """Addresses of the engines in compose files, by service and role."""
    groups = {group.name: group for group in manifest.groups}
    found: dict[tuple[str, Phase], list[str]] = {
        (service, role): [] for service in manifest.suffixes for role in Phase
    }
    for file in manifest.files:
        host = file.removeprefix("hosts/").removesuffix(".compose.yaml")
        tree, _ = read_config(folder, file) if host in manifest.addresses else (None, [])
        for _, engine, _ in () if tree is None else compose_services(tree, file):
            if engine is not None and engine.group in groups:
                group = groups[engine.group]
                url = f"{manifest.addresses[host]}:{engine.value(flags, '--port')}"
                found[group.service, group.role].append(url)
    return found


def _top_findings(
    file: str, tree: Tree, server: FlagList, keys: ConfigKeys, engine_keys: FlagList
) -> Iterator[Finding]:
    inherited = _own_keys(engine_keys)
    for key in tree.raw:
        if key not in keys.top and key not in inherited:
            yield unknown_key(file, tree.line((key,)), key, [*keys.top, *inherited], server)
    if tree.get("hostname") != "0.0.0.0":
        rule = "hostname must be 0.0.0.0; otherwise no other host reaches the server"
        yield _finding(file, tree, "hostname", rule)
    port = tree.get("port")
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65_536:
        yield _finding(file, tree, "port", "port must be a number up to 65535")
    if tree.get("disagg_cluster"):
        rule = "disagg_cluster and servers with urls exclude one another"
        yield _finding(file, tree, "disagg_cluster", rule)
    styles = ("context_first", "generation_first")
    if tree.has("schedule_style") and tree.get("schedule_style") not in styles:
        yield _finding(file, tree, "schedule_style", f"schedule_style {one_of(styles)}")


def _own_keys(engine_keys: FlagList) -> list[str]:
    """Settings of engines that hold no others within a mapping."""
    return [name for name in engine_keys.flags if "." not in name]


def _section_findings(
    file: str, tree: Tree, section: str, server: FlagList, engine_keys: FlagList, known: list[str]
) -> Iterator[Finding]:
    """What is wrong with the servers of one phase."""
    assert server.config is not None
    servers = tree.get()
    if not isinstance(servers, dict):
        yield Finding(file=file, line=0, rule=f"{section} is missing: nobody serves that phase")
        return
    own = (*server.config.servers, *_own_keys(engine_keys))
    for key in servers:
        if key not in own:
            yield unknown_key(file, tree.line((key,)), key, list(own), server)
    policy = tree.get("router", "type")
    if policy not in _ROUTERS:
        hint = did_you_mean(str(policy), _ROUTERS)
        yield _finding(file, tree, "router", f"{section}: router.type {one_of(_ROUTERS)}", policy, hint)
    urls = [str(url) for url in tree.entries("urls")]
    count = tree.get("num_instances")
    if count != len(urls):
        rule = f"{section}: num_instances must be the number of urls, {len(urls)}"
        yield _finding(file, tree, "num_instances", rule)
    yield from _url_findings(file, tree, section, urls, known)


def _url_findings(
    file: str, tree: Tree, section: str, urls: list[str], known: list[str]
) -> Iterator[Finding]:
    left = list(known)
    for i, url in enumerate(urls):
        line = tree.line(("urls", i))
        if "://" in url:
            rule, hint = f"{section}: urls have no scheme", url.partition("://")[2]
            yield Finding(file=file, line=line, rule=rule, value=url, suggestion=hint)
            left = [one for one in left if one != hint]
        elif url in left:
            left.remove(url)
        else:
            rule = f"{section}: no engine of that phase listens there"
            yield Finding(file=file, line=line, rule=rule, value=url, suggestion=did_you_mean(url, left))
    for url in left:
        yield Finding(file=file, line=tree.line(("urls",)), rule=f"{section} lacks an engine", value=url)


def _finding(file: str, tree: Tree, key: str, rule: str, value: Any = None, suggestion: str = "") -> Finding:
    said = tree.get(key) if value is None else value
    shown = "nothing" if said is None or isinstance(said, Mapping) else str(said)
    return Finding(file=file, line=tree.line((key,)), rule=rule, value=shown, suggestion=suggestion)
