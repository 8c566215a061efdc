"""The README of an emitted folder: what stands where, and in which order to start it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.deploy.command_text import comment
from planner.deploy.description import Deployment, EngineGroup, Front, checked_for
from planner.deploy.manifest import suffixes


def readme_text(deployment: Deployment, start: Sequence[str] = ()) -> str:
    """Markdown for the operator; `start` says how a platform starts its objects."""
    return "\n".join(_lines(deployment, start)) + "\n"


def _lines(deployment: Deployment, start: Sequence[str]) -> Iterator[str]:
    d = deployment
    yield f"# Deployment of plan {d.plan_id}"
    yield ""
    yield (
        f"Written by `planner emit`. Flags were checked for {checked_for(d)} and {d.router} "
        f"{d.router_version}; engines run `{d.image}`."
    )
    yield "`planner check .` proves that the files are well formed, and names what still has to be set."
    for front in d.fronts:
        yield from _front(deployment, front)
    if d.platform is None:
        yield from _hosts(d)
    yield ""
    yield "## Start"
    yield ""
    yield from start or _BY_HAND
    if not start and any(e.followers for f in d.fronts for e in f.engines):
        yield from _PARTS
    for suffix, front in zip(suffixes(deployment), d.fronts, strict=True):
        if d.platform is None and front.router.policy:
            yield f"2. On the router's host: `sh router{suffix}.sh`."
        yield f"3. `sh smoke-check{suffix}.sh`: fails where requests are answered but prefill does nothing."
        yield f"4. `sh load-test{suffix}.sh`, then `planner judge result{suffix}.json plan.yaml`."
    if d.stages:
        yield from _schedule(d)
    if d.notes:
        yield ""
        yield "## To know"
        yield ""
        yield from (f"- {note}" for note in d.notes)


_BY_HAND = (
    "1. On every host: `docker compose -f hosts/HOST.compose.yaml up -d`,",
    "   or without containers one `sh groups/GROUP.sh NUMBER` for each of its engines.",
)
_PARTS = (
    "   An engine over several hosts has a part on each: `sh groups/GROUP.sh NUMBER RANK`, RANK from 0. Part",
    "   0 serves requests, once all others have found it; where one ends, start all of them again.",
)


def _hosts(d: Deployment) -> Iterator[str]:
    yield ""
    yield "## Hosts"
    yield ""
    yield "| host | address | GPUs | engines |"
    yield "| --- | --- | --- | --- |"
    for host in d.hosts:
        engines = [engine.part_name(rank) for _, engine, rank in d.parts_on(host)]
        yield f"| {host.name} | {host.address} | {host.gpus} x {host.gpu} | {', '.join(engines)} |"


def _schedule(d: Deployment) -> Iterator[str]:
    yield ""
    yield "## Schedule"
    yield ""
    if d.platform is None:
        yield "Engines of each group that run, by their numbers from 1; stop the highest numbers first:"
    else:
        yield "Replicas of each group; `sh scale.sh PERIOD` sets them:"
    yield ""
    yield "| period | hours | " + " | ".join(d.stages[0].replicas) + " |"
    yield "| --- | --- |" + " --- |" * len(d.stages[0].replicas)
    for stage in d.stages:
        counts = " | ".join(map(str, stage.replicas.values()))
        yield f"| {comment(stage.name)[2:]} | {stage.hours:g} | {counts} |"


def _front(deployment: Deployment, front: Front) -> Iterator[str]:
    yield ""
    yield f"## {front.service}"
    yield ""
    yield f"Requests for `{front.served_name}` go to {front.router.url}"
    alone = deployment.platform is None and not front.router.policy
    yield "(no router: the only engine answers them)." if alone else f"(policy {front.router.policy})."
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
