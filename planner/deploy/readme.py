"""The README of an emitted folder: what stands where, and in which order to start it."""

from __future__ import annotations

from collections.abc import Iterator

from planner.deploy.description import Deployment, EngineGroup, Front
from planner.deploy.manifest import suffixes


def readme_text(deployment: Deployment) -> str:
    """Markdown for the operator."""
    return "\n".join(_lines(deployment)) + "\n"


def _lines(deployment: Deployment) -> Iterator[str]:
    d = deployment
    yield f"# Deployment of plan {d.plan_id}"
    yield ""
    yield (
        f"Written by `planner emit`. Flags were checked for {d.engine} {d.engine_version} and {d.router} "
        f"{d.router_version}; engines run `{d.image}`."
    )
    yield "`planner check .` proves that the files are well formed, and names what still has to be set."
    for front in d.fronts:
        yield from _front(deployment, front)
    yield ""
    yield "## Hosts"
    yield ""
    yield "| host | address | GPUs | engines |"
    yield "| --- | --- | --- | --- |"
    for host in d.hosts:
        engines = [f"{e.group}-{e.number}" for f in d.fronts for e in f.engines if e.host == host.name]
        yield f"| {host.name} | {host.address} | {host.gpus} x {host.gpu} | {', '.join(engines)} |"
    yield ""
    yield "## Start"
    yield ""
    yield "1. On every host: `docker compose -f hosts/HOST.compose.yaml up -d`,"
    yield "   or without containers one `sh groups/GROUP.sh NUMBER` for each of its engines."
    for suffix in suffixes(deployment):
        yield f"2. On the router's host: `sh router{suffix}.sh`."
        yield f"3. `sh smoke-check{suffix}.sh`: fails where requests are answered but prefill does nothing."
        yield f"4. `sh load-test{suffix}.sh`, then `planner judge result{suffix}.json plan.yaml`."
    if d.notes:
        yield ""
        yield "## To know"
        yield ""
        yield from (f"- {note}" for note in d.notes)


def _front(deployment: Deployment, front: Front) -> Iterator[str]:
    yield ""
    yield f"## {front.service}"
    yield ""
    yield f"Requests for `{front.served_name}` go to {front.router.url}"
    yield f"(policy {front.router.policy})."
    yield ""
    yield "| group | role | engines | GPUs of each | nodes | share of its pool |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for group in front.groups:
        yield _group(group)


def _group(group: EngineGroup) -> str:
    label = group.node_label
    nodes = f"{label.key}={label.value}" if label.key else group.gpu
    return (
        f"| {group.name} | {group.role} | {group.replicas} | {group.parallelism} {group.gpu} | {nodes} "
        f"| {group.share:.0%} |"
    )
