"""A plan and the settings of a site as a deployment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from planner import catalog
from planner.deploy.cluster import cluster_of
from planner.deploy.description import (
    PLACEHOLDER,
    Deployment,
    EngineGroup,
    Front,
    Host,
    Platform,
    Stage,
)
from planner.deploy.engine_facts import EngineFacts, load_engine_facts
from planner.deploy.fronts import alone, load_test_of, own_front, platform_front, policy_of, prompts_of
from planner.deploy.groups import groups_of, precision_of
from planner.deploy.placement import Wanted, check_ports, place
from planner.deploy.platform_facts import PlatformFacts
from planner.deploy.words import MAX_GROUP_NAME, dns_name, safe_text, short_name
from planner.documents.names import did_you_mean
from planner.documents.plan import plan_to_document
from planner.documents.site_schema import SiteDocument
from planner.errors import SpecError
from planner.plan import Plan
from planner.specs import (
    Phase,
    Precision,
    Speculation,
)
from planner.standing import Standing

_ID = 16
_MOUNTED = "/models"  # where pods have the weights


def plan_id(plan: Plan) -> str:
    """A hash of what the plan holds: not of when, by which version and in which folder it was written."""
    document = plan_to_document(plan, reproducible=True)
    document["provenance"] = document["provenance"]["sources"]
    document["scenario"] = _without_folders(document["scenario"])
    text = json.dumps(document, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:_ID]


def _without_folders(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    return PurePosixPath(value).name if isinstance(value, str) else value


def require_verified(plan: Plan) -> None:
    """Refuse a plan that did not hold in simulation.

    Raises
    ------
    SpecError
    """
    if plan.verification is not None and not plan.verification.passed:
        failures = plan.verification.details.get("failures") or ["no reason is given"]
        missed = "; ".join(str(failure) for failure in failures)
        raise SpecError(f"the plan did not hold in simulation: {missed} (--force writes it all the same)")


def deployment_of(
    plan: Plan, standings: Sequence[Standing], site: SiteDocument, platform: PlatformFacts | None = None
) -> Deployment:
    """What is deployed of a plan.

    Parameters
    ----------
    standings : sequence of Standing
        Of its routers, as :func:`planner.standing.standing_plans` gives them.
    platform : PlatformFacts or None
        What starts engines and routes requests; None: scripts, and the engine's own router.

    Raises
    ------
    SpecError
        The engine's version is not known, a pair of groups cannot work together, the router cannot share
        requests as planned, or a setting of the site contradicts the plan.
    """
    versions = {(s.fleet.engine.name, s.fleet.engine.version) for s in standings}
    if len(versions) > 1:
        raise SpecError("services of the plan run on different engines, which are deployed one by one")
    processors = sorted(
        {g.item.gpu.name for s in standings for g in s.fleet.groups if g.item.gpu.architecture == "cpu"}
    )
    if processors:
        raise SpecError(f"no files are emitted for CPUs, the plan has {', '.join(processors)}")
    facts = load_engine_facts(plan.engine, plan.engine_version)
    _require_known_services(site, [s.fleet.service.name for s in standings])
    names = _names([name for s in standings for name in s.names])
    wanted = [
        Wanted(
            group=names[name],
            service=s.name,
            role=group.phase,
            item=group.item,
            replicas=group.replicas,
            gpus=group.parallelism.num_gpus,
        )
        for s in standings
        for name, group in zip(s.names, s.fleet.groups, strict=True)
    ]
    survives = (plan.scenario.get("options") or {}).get("survive") or ()
    hosts, engines = place(wanted, site.hosts, site.ports, apart="node" in survives)
    check_ports(
        site.ports, len(standings), max(max(host.gpus for host in hosts), *(e.num_gpus for e in engines))
    )
    notes = [
        *_plan_notes(plan, standings, hosts),
        *_platform_notes(facts, platform),
        *_vendor_notes(standings),
    ]
    cluster = cluster_of(site.kubernetes)
    vendors = list(dict.fromkeys(g.item.gpu.vendor for s in standings for g in s.fleet.groups))
    images = _images(facts, platform, vendors, site)
    if platform is not None and len(vendors) > 1:
        rule = f"{platform.name} starts engines of one vendor only, the plan has {' and '.join(vendors)}"
        raise SpecError(f"{rule} (emit for {facts.engine}, or for each service by itself)")
    router = facts.router if platform is None else platform.router
    fronts = []
    for k, standing in enumerate(standings):
        name = dns_name(standing.name, MAX_GROUP_NAME)
        prompts, served_name = prompts_of(plan, standing), _served_name(standing, site)
        door = short_name(name if prompts is None else dns_name(served_name))
        groups = groups_of(standing, names, facts, site, images)
        own = {group.name for group in groups}
        if router.colocated or any(group.role is not Phase.COLOCATED for group in groups):
            policy, said = policy_of(plan, standing, router, site)
            front = (
                own_front(site, site.ports.router + k)
                if platform is None
                else platform_front(platform, site, cluster, door)
            )
        else:
            policy, said = "", ()
            front = alone(router, standing, hosts, [engine for engine in engines if engine.group in own])
        notes += said
        fronts.append(
            Front(
                name=name,
                service=standing.name,
                door=door,
                prompts=prompts,
                model=_model(standing, site),
                served_name=served_name,
                draft=_draft(standing.fleet.service.speculation, site),
                groups=groups,
                engines=tuple(engine for engine in engines if engine.group in own),
                router=replace(front, policy=policy),
                load_test=load_test_of(standing),
                slo=standing.fleet.service.slo.targets,
            )
        )
        notes += _format_notes(standing, groups)
        if facts.different_tp and any(group.contiguous_heads for group in groups):
            notes.append(facts.different_tp)
    return Deployment(
        plan_id=plan_id(plan),
        engine=facts.engine,
        engine_version=facts.version,
        router=router.tool,
        router_version=router.version,
        load_test_version=facts.load_test_version,
        image=images[next(iter(images))],
        router_image="" if site.router_image is None else safe_text("router_image", site.router_image),
        model_cache=_model_cache(site, platform),
        environment=_environment(site),
        hosts=hosts,
        fronts=tuple(fronts),
        cluster=cluster,
        platform=None if platform is None else _platform(platform, facts),
        stages=_stages(plan, names),
        notes=tuple(dict.fromkeys(notes)),
    )


# --------------------------------------------------------------------------------------------
# Names and settings


def _names(planned: Sequence[str]) -> dict[str, str]:
    """Names of groups in the deployment by those of the plan."""
    if twice := next((name for name in planned if planned.count(name) > 1), None):
        raise SpecError(f"two groups of the plan are called {twice!r}")
    return {name: dns_name(name, MAX_GROUP_NAME) for name in planned}


def _require_known_services(site: SiteDocument, services: Sequence[str]) -> None:
    for key, given in (("models", site.models), ("served_names", site.served_names)):
        if unknown := next((name for name in given if name not in services), None):
            hint = did_you_mean(unknown, services) or f"it has {'; '.join(dict.fromkeys(services))}"
            raise SpecError(f"{key}: the plan has no service {unknown!r} ({hint})")


def _model(standing: Standing, site: SiteDocument) -> str:
    """What engines load: the plan's model, or the checkpoint that the site names."""
    service, engine = standing.fleet.service, standing.fleet.engine
    if service.name in site.models:
        return safe_text(f"models: {service.name}", site.models[service.name])
    own = Precision.of(service.model).weights
    made = engine.load_time_dtypes if own.is_16_bit else ()
    formats = {precision_of(service, group).weights for group in standing.fleet.groups}
    other = any(weights is not own and weights not in made for weights in formats)
    if other or catalog.names_file("model", service.model.name):  # a checkpoint that nobody named
        return f"{PLACEHOLDER}models-{dns_name(service.name)}"
    return safe_text("model", service.model.name)


def _served_name(standing: Standing, site: SiteDocument) -> str:
    service = standing.fleet.service
    given = site.served_names.get(service.name)
    return safe_text(f"served_names: {service.name}", service.model.name if given is None else given)


def _draft(speculation: Speculation | None, site: SiteDocument) -> str:
    if speculation is None:
        return ""
    return f"{PLACEHOLDER}draft" if site.draft is None else json.dumps(site.draft, sort_keys=True)


def _images(
    facts: EngineFacts, platform: PlatformFacts | None, vendors: Sequence[str], site: SiteDocument
) -> dict[str, str]:
    """Image of the engines on GPUs of each vendor."""
    known = facts.images if platform is None else platform.images.get(facts.engine, facts.images)
    found = {}
    for vendor in vendors:
        if vendor in site.images:
            found[vendor] = safe_text(f"images: {vendor}", site.images[vendor])
        elif site.image is not None and len(vendors) == 1:
            found[vendor] = safe_text("image", site.image)
        else:
            several = f"s-{vendor}" if len(vendors) > 1 else ""
            found[vendor] = known.get(vendor, f"{PLACEHOLDER}image{several}")
    return found


def _platform(platform: PlatformFacts, facts: EngineFacts) -> Platform:
    inside = platform.engines[facts.engine] or facts.version
    return Platform(name=platform.name, version=platform.version, engine_version=inside)


def _stages(plan: Plan, names: Mapping[str, str]) -> tuple[Stage, ...]:
    """What runs in every period, by names in the deployment."""
    return tuple(
        Stage(
            name=period.name,
            hours=period.hours,
            replicas={names[group.name]: period.replicas.get(group.name, 0) for group in plan.groups},
        )
        for period in plan.periods
    )


def _vendor_notes(standings: Sequence[Standing]) -> Iterator[str]:
    for standing in standings:
        handed = [group for group in standing.fleet.groups if group.phase is not Phase.COLOCATED]
        vendors = dict.fromkeys(group.item.gpu.vendor for group in handed)
        if len(vendors) > 1:
            yield (
                f"Experimental: {standing.name} hands over between GPUs of {' and '.join(vendors)}, through "
                "memory of the hosts and TCP. No public recipe pairs them: try one pair before the rest."
            )


def _platform_notes(facts: EngineFacts, platform: PlatformFacts | None) -> Iterator[str]:
    inside = "" if platform is None else platform.engines[facts.engine]
    if platform is not None and inside not in ("", facts.version):
        yield (
            f"Images of {platform.name} {platform.version} run {facts.engine} {inside}, which the flags were "
            f"checked for; the plan was made for {facts.version}."
        )


def _model_cache(site: SiteDocument, platform: PlatformFacts | None) -> str:
    if site.model_cache is None and platform is not None:
        return _MOUNTED
    if site.model_cache is None:
        return f"/{PLACEHOLDER}model-cache"
    folder = safe_text("model_cache", site.model_cache)
    if not folder.startswith("/") or ":" in folder:
        raise SpecError(f"model_cache: must be an absolute path without a colon, got {folder!r}")
    return folder


def _environment(site: SiteDocument) -> tuple[tuple[str, str], ...]:
    for name, value in site.environment.items():
        if not (name.isidentifier() and name.isascii()):
            raise SpecError(f"environment: {name!r} is not the name of a variable")
        safe_text(f"environment: {name}", value)
    return tuple(sorted(site.environment.items()))


def _plan_notes(plan: Plan, standings: Sequence[Standing], hosts: Sequence[Host]) -> Iterator[str]:
    """What of a plan the files of one moment do not show."""
    if plan.periods:
        names = ", ".join(period.name for period in plan.periods)
        yield f"The plan follows its traffic over {names}; these files start what its busiest period needs."
    if any(group.same_node for group in plan.groups):
        yield "KV caches take the link within the node: all engines have to stay on one host."
    if any(group.parallelism.num_gpus > group.item.node_size for s in standings for group in s.fleet.groups):
        yield (
            "Engines over several hosts need RDMA between them, in containers too (the hosts' RDMA devices, "
            "IPC_LOCK): over plain sockets they answer, much slower than planned."
        )
    for gpu in dict.fromkeys(host.gpu for host in hosts):
        count = sum(host.gpu == gpu for host in hosts)
        paid = sum(use.nodes for use in plan.nodes if use.gpu == gpu)
        if 0 < paid < count:
            yield f"{count} hosts of {gpu} are needed, the plan pays for {paid}: replicas pack no tighter."


def _format_notes(standing: Standing, groups: Sequence[EngineGroup]) -> list[str]:
    notes = []
    planned = standing.fleet.engine.block_size
    for group in groups:
        if group.block_size != planned:
            notes.append(
                f"{group.attention_backend} takes KV blocks of {group.block_size} tokens; the plan was "
                f"simulated with {planned}."
            )
    return notes
