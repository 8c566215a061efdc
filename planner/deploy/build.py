"""A plan and the settings of a site as a deployment."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from planner import catalog
from planner.deploy.attention import Pinned, block_size_of, kind_of, pinned_backend
from planner.deploy.cluster import cluster_of
from planner.deploy.description import (
    PLACEHOLDER,
    Cluster,
    Deployment,
    EngineGroup,
    Front,
    Host,
    LoadTest,
    NodeLabel,
    Platform,
    RouterSettings,
    Stage,
    Transfer,
    TransferSide,
)
from planner.deploy.description import Engine as EngineOnHost
from planner.deploy.engine_facts import EngineFacts, RouterFacts, load_engine_facts, node_label
from planner.deploy.pairs import require_equal_heads, require_pairs
from planner.deploy.placement import Wanted, check_ports, place
from planner.deploy.platform_facts import PlatformFacts
from planner.deploy.routing import router_policy
from planner.deploy.words import MAX_GROUP_NAME, dns_name, host_address, safe_text, short_name
from planner.documents.names import did_you_mean
from planner.documents.plan import plan_to_document
from planner.documents.site_schema import SiteDocument
from planner.engines.legality import EndPoint
from planner.errors import SpecError
from planner.fleet import Deployed
from planner.memory import memory_budgets, step_bytes, tightest
from planner.plan import Plan
from planner.specs import (
    Dtype,
    Engine,
    Metric,
    Model,
    Phase,
    Precision,
    Service,
    SloTarget,
    Speculation,
    StateMixer,
    Statistic,
    rows_per_sequence,
)
from planner.standing import Standing
from planner.units import MILLI, MINUTES_PER_HOUR

_TEST_SECONDS = 5 * MINUTES_PER_HOUR  # of a load test; a minute has as many seconds as an hour minutes
_FEWEST_REQUESTS, _MOST_REQUESTS = 200, 100_000
_WIDEST = 0.99
_STEADIEST = 100.0  # burstiness of arrivals that hardly vary
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
    notes = [*_plan_notes(plan, standings, hosts), *_platform_notes(facts, platform)]
    cluster = cluster_of(site.kubernetes)
    router = facts.router if platform is None else platform.router
    fronts = []
    for k, standing in enumerate(standings):
        name = dns_name(standing.name, MAX_GROUP_NAME)
        prompts, served_name = _prompts(plan, standing), _served_name(standing, site)
        door = short_name(name if prompts is None else dns_name(served_name))
        groups = _groups(standing, names, facts, site)
        own = {group.name for group in groups}
        if router.colocated or any(group.role is not Phase.COLOCATED for group in groups):
            policy, said = _policy(plan, standing, router, site)
            front = (
                _own_front(site, site.ports.router + k)
                if platform is None
                else _front(platform, site, cluster, door)
            )
        else:
            policy, said = "", ()
            front = _alone(router, standing, hosts, [engine for engine in engines if engine.group in own])
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
                load_test=_load_test(standing),
                slo=standing.fleet.service.slo.targets,
            )
        )
        notes += _format_notes(standing, groups)
        if facts.different_tp and any(group.contiguous_heads for group in groups):
            notes.append(facts.different_tp)
    vendors = {group.item.gpu.vendor for s in standings for group in s.fleet.groups}
    return Deployment(
        plan_id=plan_id(plan),
        engine=facts.engine,
        engine_version=facts.version,
        router=router.tool,
        router_version=router.version,
        load_test_version=facts.load_test_version,
        image=_image(facts, platform, vendors, site),
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
    formats = {_precision(service, group).weights for group in standing.fleet.groups}
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


def _image(facts: EngineFacts, platform: PlatformFacts | None, vendors: set[str], site: SiteDocument) -> str:
    if site.image is not None:
        return safe_text("image", site.image)
    images = facts.images if platform is None else platform.images.get(facts.engine, facts.images)
    if len(vendors) == 1:
        return images.get(next(iter(vendors)), f"{PLACEHOLDER}image")
    return f"{PLACEHOLDER}image"


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


# --------------------------------------------------------------------------------------------
# Engines


def _precision(service: Service, group: Deployed) -> Precision:
    return group.precision or service.precision


def _activations(standing: Standing) -> Dtype:
    """The 16-bit format that all GPUs of a front compute in; both sides of a hand-over have to agree."""
    everywhere = all(Dtype.BF16 in group.item.gpu.peak_flops for group in standing.fleet.groups)
    own = standing.fleet.service.model.checkpoint_dtype
    return Dtype.FP16 if own is Dtype.FP16 or not everywhere else Dtype.BF16


def _pinned(standing: Standing, facts: EngineFacts, site: SiteDocument) -> dict[int, Pinned]:
    """Backend of every group: one where KV caches are exchanged, each its own where they are not."""
    service, engine, groups = standing.fleet.service, standing.fleet.engine, standing.fleet.groups
    if site.attention_backend is not None:
        name = safe_text("attention_backend", site.attention_backend)
        known = facts.backends.get(name)
        size = engine.block_size if known is None else block_size_of(known, engine.block_size)
        return dict.fromkeys(range(len(groups)), Pinned(name, size))
    exchanged = any(group.phase is Phase.PREFILL for group in groups)
    together = [list(range(len(groups)))] if exchanged else [[i] for i in range(len(groups))]
    pinned: dict[int, Pinned] = {}
    for members in together:
        gpus = [groups[i].item.gpu for i in members]
        kv_cache = _precision(service, groups[members[0]]).kv_cache
        backend = pinned_backend(facts, service.model, gpus, kv_cache, engine.block_size)
        pinned |= dict.fromkeys(members, backend)
    return pinned


def _groups(
    standing: Standing, names: Mapping[str, str], facts: EngineFacts, site: SiteDocument
) -> tuple[EngineGroup, ...]:
    service, engine, groups = standing.fleet.service, standing.fleet.engine, standing.fleet.groups
    ends = [
        (name, group.phase, _end(standing, group)) for name, group in zip(standing.names, groups, strict=True)
    ]
    require_pairs(
        [(name, end) for name, phase, end in ends if phase is Phase.PREFILL],
        [(name, end) for name, phase, end in ends if phase is Phase.DECODE],
        service.model,
        engine,
    )
    if facts.equal_heads and any(phase is not Phase.COLOCATED for _, phase, _ in ends):
        require_equal_heads(service.model, f"{facts.engine} {facts.version}")
    pinned = _pinned(standing, facts, site)
    has_state = _has_state(service.model)
    activations = _activations(standing)
    different = len({group.parallelism.tp for group in groups if group.phase is not Phase.COLOCATED}) > 1
    out = []
    for i, (name, group) in enumerate(zip(standing.names, groups, strict=True)):
        precision = _precision(service, group)
        pool = math.fsum(other.rate for other in groups if other.phase is group.phase)
        out.append(
            EngineGroup(
                name=names[name],
                planned_name=name,
                role=group.phase,
                gpu=group.item.gpu.name,
                vendor=group.item.gpu.vendor,
                node_label=_label(group.item.gpu.name, site),
                zone=group.item.zone,
                replicas=group.replicas,
                parallelism=group.parallelism,
                nodes=math.ceil(group.parallelism.num_gpus / group.item.node_size),
                max_num_seqs=math.ceil(group.max_num_seqs / group.parallelism.dp),
                max_num_batched_tokens=group.token_budget,
                max_model_len=standing.longest[i],
                memory_fraction=_memory_fraction(standing, group),
                weights=precision.weights,
                kv_cache=precision.kv_cache,
                activations=activations,
                quantize=_quantized_at_load(service, precision, engine, site),
                block_size=pinned[i].block_size,
                prefix_caching=not has_state or service.workload.prefix_hit_rate > 0,
                attention_backend=pinned[i].name,
                contiguous_heads=different,
                has_state=has_state,
                latent=kind_of(service.model) != "heads",
                transfer=_transfer(group.phase, engine.connector),
                share=group.rate / pool if pool else 0.0,
            )
        )
    return tuple(out)


def _memory_fraction(standing: Standing, group: Deployed) -> float:
    """Share of a GPU that the engine takes, as its flag counts it. [1]

    An engine with a rule for steps counts weights and KV cache only, of what is free once it stands. One that
    leaves some memory free (`free_share`) counts the KV cache only, of what weights and a step leave of the
    whole GPU: the share that the plan's own budget gives it, on the stage with the least.
    """
    service, engine = standing.fleet.service, standing.fleet.engine
    gpu, layout = group.item.gpu, group.parallelism
    if engine.free_share < 1:
        return _share_of_free(standing, group)
    if engine.step_reserve is None:
        return engine.memory_utilization
    outside = engine.non_torch_single if layout.num_gpus == 1 else engine.non_torch_parallel
    sampled = math.ceil(group.max_num_seqs / layout.dp) * rows_per_sequence(service.speculation)
    step = step_bytes(service.model, engine, gpu, layout, group.token_budget, sampled)
    free = gpu.memory * engine.memory_utilization - outside
    return math.floor((1 - step / free) / MILLI) * MILLI  # three digits, as SGLang rounds its own


def _share_of_free(standing: Standing, group: Deployed) -> float:
    """Share for the KV cache of what weights, steps, and what lies outside the allocator leave. [1]"""
    service, engine = standing.fleet.service, standing.fleet.engine
    gpu, layout = group.item.gpu, group.parallelism
    ranks = math.ceil(group.max_num_seqs / layout.dp)
    budget = tightest(
        memory_budgets(
            service.model, _precision(service, group), engine, gpu, layout, group.token_budget, ranks,
            service.speculation,
        )
    )  # fmt: skip
    outside = engine.non_torch_single if layout.num_gpus == 1 else engine.non_torch_parallel
    free = gpu.memory - budget.weights - budget.activations - outside
    return round(budget.kv_cache / free / MILLI) * MILLI


def _end(standing: Standing, group: Deployed) -> EndPoint:
    return EndPoint(
        parallelism=group.parallelism,
        gpu=group.item.gpu.name,
        vendor=group.item.gpu.vendor,
        kv_cache=_precision(standing.fleet.service, group).kv_cache,
        block_size=standing.fleet.engine.block_size,
    )


def _transfer(role: Phase, connector: str) -> Transfer | None:
    if role is Phase.COLOCATED:
        return None
    side = TransferSide.SENDS if role is Phase.PREFILL else TransferSide.RECEIVES
    return Transfer(connector=connector, side=side)


def _quantized_at_load(service: Service, precision: Precision, engine: Engine, site: SiteDocument) -> bool:
    """Whether the engine makes the weights' format; a checkpoint that the site names has it already."""
    own = Precision.of(service.model).weights
    makes = own.is_16_bit and precision.weights in engine.load_time_dtypes
    return precision.weights is not own and makes and service.name not in site.models


def _has_state(model: Model) -> bool:
    return any(isinstance(run.layer.attention, StateMixer) for run in model.layers)


def _label(gpu: str, site: SiteDocument) -> NodeLabel:
    if gpu not in site.node_labels:
        return node_label(gpu)
    given = site.node_labels[gpu]
    return NodeLabel(
        key=safe_text(f"node_labels: {gpu}", given.key), value=safe_text(f"node_labels: {gpu}", given.value)
    )


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


# --------------------------------------------------------------------------------------------
# Router and load test


def _policy(
    plan: Plan, standing: Standing, router: RouterFacts, site: SiteDocument
) -> tuple[str, tuple[str, ...]]:
    groups = standing.fleet.groups
    pools = [
        [(group.replicas, group.rate / group.replicas) for group in groups if group.phase is phase]
        for phase in Phase
    ]
    return router_policy(plan, pools, router, site.router_policy)


def _prompts(plan: Plan, standing: Standing) -> tuple[int, int | None] | None:
    """Lengths of the prompts that come to a service, where the plan divides them. [tok]"""
    buckets = () if plan.split is None else plan.split.buckets
    return next(((b.shortest, b.longest) for b in buckets if b.service == standing.name), None)


def _own_front(site: SiteDocument, port: int) -> RouterSettings:
    """Where the router runs that an operator starts."""
    if site.router_host is None:
        return RouterSettings(address=f"{PLACEHOLDER}router-host", port=port, policy="")
    return RouterSettings(address=host_address("router_host", site.router_host), port=port, policy="")


def _alone(
    router: RouterFacts, standing: Standing, hosts: Sequence[Host], engines: Sequence[EngineOnHost]
) -> RouterSettings:
    """Where the only engine of a colocated front answers requests itself.

    Raises
    ------
    SpecError
        There are several, among which the router shares nothing.
    """
    if len(engines) > 1:
        rule = f"shares no requests among colocated engines, the plan has {len(engines)} for {standing.name}"
        hint = "put a load balancer in front of plans of one engine each, or plan with colocated: forbidden"
        raise SpecError(f"{router}: {rule} ({hint}, or for another engine)")
    (engine,) = engines
    address = next(host.address for host in hosts if host.name == engine.host)
    return RouterSettings(address=address, port=engine.port, policy="")


def _front(platform: PlatformFacts, site: SiteDocument, cluster: Cluster, door: str) -> RouterSettings:
    """Where the platform takes requests, or where the site says that they can be sent."""
    names = {"name": door, "namespace": cluster.namespace}
    if site.router_host is None:
        address = platform.front.format(**names)
    else:
        address = host_address("router_host", site.router_host)
    return RouterSettings(address=address, port=platform.port, path=platform.path.format(**names), policy="")


def _load_test(standing: Standing) -> LoadTest:
    """The plan's traffic by mean lengths, their spread, rate and shared prefix."""
    workload = standing.fleet.service.workload
    isl, osl = workload.lengths.isl, workload.lengths.osl
    variance = max(isl.moment(2) - isl.mean**2, 0.0)
    spread = math.sqrt(3 * variance) / isl.mean  # of a uniform distribution with the same standard deviation
    longest = min(standing.longest)
    room = longest / (isl.mean + osl.mean) - 1
    prompt, output = round(isl.mean), max(round(osl.mean), 1)
    shared = min(round(workload.prefix_hit_rate * isl.mean), prompt - 1)
    rate = workload.request_rate
    requests = min(max(math.ceil(rate * _TEST_SECONDS), _FEWEST_REQUESTS), _MOST_REQUESTS)
    burstiness = 1 / workload.arrival_scv if workload.arrival_scv > 1 / _STEADIEST else _STEADIEST
    return LoadTest(
        request_rate=float(f"{rate:.6g}"),
        burstiness=float(f"{burstiness:.6g}"),
        prompt=max(prompt - shared, 1),
        shared_prefix=shared,
        output=output,
        spread=math.floor(100 * max(min(spread, room, _WIDEST), 0.0)) / 100,
        requests=requests,
    )


def strictest(slo: Sequence[SloTarget]) -> dict[Metric, SloTarget]:
    """Of each latency the bound on its highest percentile, which a request is judged by."""
    order = [Statistic.MEAN, Statistic.P50, Statistic.P90, Statistic.P95, Statistic.P99]
    found: dict[Metric, SloTarget] = {}
    for target in sorted(slo, key=lambda t: order.index(t.statistic)):
        found[target.metric] = target
    return found
