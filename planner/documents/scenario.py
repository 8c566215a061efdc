"""The scenario file: what a user asks of the planner.

A scenario is read in three steps that all report into one error: the schema, rules that span several
keys, and names that are looked up here (model, GPUs, traffic presets).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner import catalog, lengths
from planner.anchoring import measured_point
from planner.documents.files import read_text
from planner.documents.look_ups import Named, look_up_demand
from planner.documents.profile_override import with_engine_profile
from planner.documents.scenario_rules import LENGTH_SPLIT, SURVIVE_NODE, SURVIVE_ZONE, demand_trees
from planner.documents.scenario_schema import (
    AUTO,
    CHECKPOINT,
    MAX_CV,
    MAX_PARALLEL,
    TRACE,
    ArrivalSpread,
    DemandDocument,
    LengthDocument,
    MeasuredDocument,
    OptionsDocument,
    PrecisionDocument,
    ScenarioDocument,
    SloDocument,
    SpeculativeDocument,
    WorkloadDocument,
)
from planner.documents.schedule import check_schedule, periods_of, scaling_of
from planner.documents.schema_base import MAX_LABEL, label_of
from planner.documents.source import validate
from planner.documents.supply import fleet_item, look_up_fleet, power_of
from planner.documents.tree import Tree
from planner.documents.yaml_text import parse_tree
from planner.engines import load_engine, profiled_engine
from planner.engines.formats import kv_choices, weight_choices
from planner.engines.legality import legal_tp, tp_violation
from planner.errors import Problem, SpecError
from planner.specs import (
    ColocatedUse,
    Dtype,
    Engine,
    Lengths,
    Marginal,
    MeasuredPoint,
    Metric,
    Model,
    Objective,
    Options,
    Parallelism,
    Period,
    Precision,
    Routing,
    Scenario,
    Service,
    Slo,
    SloTarget,
    SpareScope,
    Speculation,
    Statistic,
    Workload,
)
from planner.traces import Trace
from planner.units import GIGA, MILLI, MINUTES_PER_HOUR

MAX_RENEWAL_CV = 2.0  # of a preset; beyond, the spread is between minutes, not between requests

# --------------------------------------------------------------------------------------------
# What the traffic of models may break


def _check_tp(tree: Tree, models: Sequence[Model]) -> list[Problem]:
    """Each size that is allowed is legal for a model of the scenario."""
    problems = []
    for i, tp in enumerate(tree.entries("options", "allowed_tp")):
        if type(tp) is not int or not 1 <= tp <= MAX_PARALLEL:
            continue  # reported by the schema
        violations = [tp_violation(model, tp) for model in models]
        if violations and violations[0] is not None and all(violations):
            near = {size for model in models for size in legal_tp(model, min(2 * tp, MAX_PARALLEL))}
            sizes = sorted(near, key=lambda size: (abs(size - tp), size))
            hint = f"nearest: {', '.join(str(size) for size in sorted(sizes[:2]))}"
            problems.append(tree.problem(("options", "allowed_tp", i), violations[0].reason, hint))
    return problems


def check_demand(tree: Tree, model: Model, workload: Workload, trace: Trace | None) -> list[Problem]:
    """What the traffic of a model may still break once it is known."""
    return [*_check_context(tree, model, workload, trace), *_check_variation(tree, workload)]


def _check_context(tree: Tree, model: Model, workload: Workload, trace: Trace | None) -> list[Problem]:
    """The longest request must fit into the model's context."""
    lengths = workload.lengths
    longest = [lengths.isl.maximum, lengths.osl.maximum]
    room = model.max_context
    if lengths.longest <= room:
        return []
    key = next((k for k in ("trace", "preset") if tree.has("workload", k)), "input_tokens")
    if trace is not None and lengths.longest_request is not None:
        beyond = trace.beyond(room)
        i = int(beyond[0])
        where = f"the first on line {trace.lines[i]}: {trace.isl[i]:,} + {trace.osl[i]:,}"
        rule = (
            f"{beyond.size:,} of {trace.requests:,} requests need more than the {room:,} tokens that the "
            f"model takes, {where}"
        )
    else:
        tokens = f"{longest[0]:,.0f} + {longest[1]:,.0f} tokens"
        rule = f"longest prompt and output are {tokens}, the model takes {room:,}"
    hint = f"cut them: input_tokens: {{max: {max(room - longest[1], 1):.0f}}}"
    return [tree.problem(("workload", key), rule, hint)]


def _check_variation(tree: Tree, workload: Workload) -> list[Problem]:
    """A variation taken from a trace is within what may be given."""
    cv = workload.arrival_scv**0.5
    if cv <= MAX_CV:
        return []
    rule = f"have a coefficient of variation of {cv:,.3g}, at most {MAX_CV} is planned for"
    return [tree.problem(("workload", "arrivals"), rule, "leave it out: minutes differ, not requests")]


# --------------------------------------------------------------------------------------------
# Into SI units


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedScenario:
    """A scenario with the document it was read from, which a plan echoes.

    Attributes
    ----------
    traces : tuple of Trace or None
        For each service the requests that lengths are drawn from; None where the scenario gives lengths
        of its own. Empty: for no service.
    replays : tuple of bool
        For each service whether a simulation plays them as they came: the scenario asks for no other
        arrivals and lengths.
    """

    scenario: Scenario
    document: Mapping[str, Any]
    traces: tuple[Trace | None, ...] = ()
    replays: tuple[bool, ...] = ()

    @property
    def trace(self) -> Trace | None:
        """That of the first service."""
        return self.traces[0] if self.traces else None

    @property
    def replay(self) -> bool:
        """Whether that of the first service is played as it came."""
        return bool(self.replays) and self.replays[0]


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario file.

    Raises
    ------
    SpecError
        With every problem of the file.
    """
    return read_scenario(path).scenario


def loaded_of(scenario: Scenario) -> LoadedScenario:
    """A scenario with its document, where the file that it was read from still says it; else with none."""
    path = Path(scenario.source)
    try:
        loaded = read_scenario(path) if scenario.source and path.is_file() else None
    except (SpecError, OSError, ValueError):
        loaded = None
    if loaded is not None and loaded.scenario == scenario:
        return loaded
    return LoadedScenario(scenario=scenario, document={})


def read_scenario(path: str | Path, engine_profile: Path | None = None) -> LoadedScenario:
    """Read a scenario file and keep its document. See :func:`load_scenario`."""
    path = Path(path)
    return scenario_from_text(read_text(path), str(path), folder=path.parent, engine_profile=engine_profile)


def scenario_from_text(
    text: str,
    source_name: str = "scenario",
    *,
    folder: Path | None = None,
    engine_profile: Path | None = None,
) -> LoadedScenario:
    """Read a scenario from YAML or JSON; `folder` is where its relative paths start.

    `engine_profile` takes the place of its engine.
    """
    tree, problems = parse_tree(text, source_name, folder)
    return scenario_from_tree(with_engine_profile(tree, engine_profile), problems)


def scenario_from_tree(tree: Tree, problems: Sequence[Problem] = ()) -> LoadedScenario:
    """Read a scenario from a parsed file, in which some `problems` may be known already."""
    problems, source_name = list(problems), tree.source
    if tree.has("schema_version") and tree.has("groups"):
        rule, hint = "this is a plan, not a scenario", "its scenario is under the key scenario"
        raise SpecError.of_file(source_name, [Problem(key="", rule=rule, suggestion=hint)])
    document, found = validate(tree, ScenarioDocument)
    named = [look_up_demand(demand) for demand in demand_trees(tree)]
    supply = look_up_fleet(tree)
    models = [one.model for one in named if one.model is not None]
    problems += [*found, *supply.problems, *(problem for one in named for problem in one.problems)]
    problems += [
        *_check_tp(tree, models),
        *_check_vendors(tree, document),
        *(check_schedule(tree, document) if document is not None else ()),
    ]
    if problems or document is None:
        raise SpecError.of_file(source_name, problems)
    demands = document.demands
    services = _services(document, named)
    points = []
    for demand, given, service, one in zip(demand_trees(tree), demands, services, named, strict=True):
        problems += check_demand(demand, service.model, service.workload, one.trace)
        engine = profiled_engine(service.engine, service.profile)
        points.append(measured_of(demand, given.measured, one, engine, service.precision, problems))
    services = tuple(replace(s, measured=point) for s, point in zip(services, points, strict=True))
    if problems:
        raise SpecError.of_file(source_name, problems)
    return LoadedScenario(
        scenario=_scenario(document, services, supply, source_name),
        document=tree.raw,
        traces=tuple(
            one.trace if own_lengths(demand.workload) else None
            for demand, one in zip(demands, named, strict=True)
        ),
        replays=tuple(replays(demand.workload) for demand in demands),
    )


def _services(document: ScenarioDocument, named: Sequence[Named]) -> tuple[Service, ...]:
    """What is to be served, in periods that all services share, with labels where there are several."""
    labels = _labels(document, named)
    shared = periods_of(document)
    services = []
    for demand, one, label in zip(document.demands, named, labels, strict=True):
        assert one.model is not None  # a model that is not found is a problem
        service = service_of(demand, one.model, one.preset)
        service = replace(service, label=label, profile=one.profile)
        if shared is not None:
            workload = service.workload
            periods = shared.with_rates(demand.workload.request_rate or workload.request_rate)
            service = replace(service, workload=replace(workload, periods=periods))
        services.append(service)
    return tuple(services)


def _labels(document: ScenarioDocument, named: Sequence[Named]) -> list[str]:
    """Names as given, else the last part of the model's, told apart by numbers; none for a single model."""
    if document.models is None:
        return [""]
    taken = {entry.name for entry in document.models}
    labels = []
    for entry, one in zip(document.models, named, strict=True):
        label = entry.name
        if label is None:
            plain = label_of(one.model.name.rpartition("/")[2] if one.model else "") or "model"
            numbered = (f"{plain[: MAX_LABEL - 4]}-{k}" for k in itertools.count(2))
            label = next(name for name in itertools.chain([plain], numbered) if name not in taken)
        taken.add(label)
        labels.append(label)
    return labels


def _scenario(
    document: ScenarioDocument, services: tuple[Service, ...], supply: Named, source_name: str
) -> Scenario:
    """The scenario of a file in which nothing is wrong."""
    fleet = [
        fleet_item(item, supply.gpus[i], supply.instances.get(i)) for i, item in enumerate(document.fleet)
    ]
    if document.options.cross_vendor:
        services = tuple(replace(service, cross_vendor=True) for service in services)
        if len({item.gpu.vendor for item in fleet}) > 1:
            fleet = [replace(item, rdma=False) for item in fleet]  # through host memory
    zones, egress, power = document.zones or {}, document.egress_per_gb, document.power
    return Scenario(
        services=services,
        fleet=tuple(fleet),
        objective=Objective(document.objective),
        options=_options(document.options),
        budget=document.budget_per_hour,
        source=source_name,
        zones={name: zone.max_gpus for name, zone in zones.items()},
        egress_price=None if egress is None else egress / GIGA,
        power=None if power is None else power_of(power),
        scaling=scaling_of(document),
    )


def _check_vendors(tree: Tree, document: ScenarioDocument | None) -> Iterator[Problem]:
    """Hand-overs between vendors are those that vLLM can be told to try."""
    if document is None or not document.options.cross_vendor:
        return
    if other := next((demand.engine for demand in document.demands if demand.engine != "vllm"), None):
        rule = f"only vLLM can be told to hand over between vendors, not {other}"
        yield tree.problem(("options", "cross_vendor"), rule)


def service_of(document: DemandDocument, model: Model, preset: catalog.TrafficPreset | None) -> Service:
    """What is to be served, with the model and the recorded traffic that it names."""
    return Service(
        model=model,
        precision=precision_of(document.precision, model),
        workload=workload_of(document.workload, preset),
        slo=_slo(document.slo),
        engine=document.engine,
        choices=precision_choices(document.precision, model, document.engine),
        speculation=speculation_of(document.speculative),
    )


def speculation_of(document: SpeculativeDocument | None) -> Speculation | None:
    """What the draft does, as the file says."""
    if document is None:
        return None
    return Speculation(
        draft_tokens=document.draft_tokens,
        accepted_tokens=document.accepted_tokens,
        draft_share=document.draft_cost,
        draft_time=None if document.draft_ms is None else document.draft_ms * MILLI,
        draft_weights=document.draft_weights_gb * GIGA,
    )


def measured_of(
    tree: Tree,
    document: MeasuredDocument | None,
    named: Named,
    engine: Engine,
    precision: Precision,
    problems: list[Problem],
) -> MeasuredPoint | None:
    """The measured point of a file, with the factor that it gives; what is wrong with it joins `problems`."""
    if document is None or named.model is None or named.measured_gpu is None:
        return None
    try:
        return measured_point(
            named.model,
            engine,
            named.measured_gpu,
            Parallelism(tp=document.tp, pp=document.pp, ep=document.ep, dp=document.dp),
            measured_formats(document, named.model, precision),
            concurrency=document.concurrency,
            isl=document.isl,
            osl=document.osl,
            tpot=document.tpot_ms * MILLI,
        )
    except SpecError as error:
        problems.append(tree.problem(("measured",), str(error), show_value=False))
        return None


def measured_formats(document: MeasuredDocument, model: Model, asked: Precision) -> Precision:
    """Formats of a measured point: as it says, else those asked for."""

    def named(name: str | None, default: Dtype) -> Dtype | None:
        return default if name is None else None if name == CHECKPOINT else Dtype(name)

    own = document.precision
    return Precision.of(model, named(own.weights, asked.weights), named(own.kv_cache, asked.kv_cache))


def precision_of(document: PrecisionDocument, model: Model) -> Precision:
    """Formats as the file says, else as the checkpoint has them."""
    weights, kv_cache = (
        None if name in (CHECKPOINT, AUTO) else Dtype(name) for name in (document.weights, document.kv_cache)
    )
    return Precision.of(model, weights, kv_cache)


def precision_choices(document: PrecisionDocument, model: Model, engine: str) -> tuple[Precision, ...]:
    """Formats that the file leaves to choose from, preferred ones first; empty where it leaves none."""
    free = AUTO in (document.weights, document.kv_cache)
    asked = precision_of(document, model)
    weights = (asked.weights,) if document.weights != AUTO else weight_choices(model, load_engine(engine))
    caches = (asked.kv_cache,) if document.kv_cache != AUTO else kv_choices(model)
    return tuple(Precision.of(model, w, k) for k in caches for w in weights) if free else ()


def workload_of(document: WorkloadDocument, preset: catalog.TrafficPreset | None) -> Workload:
    """Traffic as the file says, else as recorded."""
    rate = document.busiest_rate
    if rate is None:
        # Without a preset only what looks for the rate itself gets here.
        rate = preset.request_rate if preset else 1.0
    scv, burstiness = _burstiness(document.arrivals, preset)
    load = document.prefix_load_gb_per_s
    notes = [
        burstiness,
        _prefix_note(document, preset),
        "" if load is None else f"prefixes that are found come to their replica at {load:g} GB/s",
        preset.note if preset and document.trace else "",
    ]
    return Workload(
        name=preset.name if preset else "workload",
        periods=(Period(name="constant", hours=1.0, request_rate=rate),),
        lengths=_lengths(document, preset),
        arrival_scv=scv,
        prefix_hit_rate=document.prefix_cache_hit_rate,
        prefix_bandwidth=math.inf if load is None else load * GIGA,
        citation=preset.citation if preset else "",
        note="; ".join(note for note in notes if note),
    )


def replays(document: WorkloadDocument) -> bool:
    """Whether a trace's requests are served as they came: neither arrivals nor lengths are given anew."""
    return document.arrivals in (None, TRACE) and own_lengths(document)


def own_lengths(document: WorkloadDocument) -> bool:
    """Whether lengths are those of the trace itself."""
    given = document.input_tokens is not None or document.output_tokens is not None
    return document.trace is not None and not given


def _prefix_note(document: WorkloadDocument, preset: catalog.TrafficPreset | None) -> str:
    """What the prompts of a trace share, beside the hit rate that is planned with."""
    if preset is None or preset.ideal_prefix_hit_rate is None:
        return ""
    given = document.prefix_cache_hit_rate
    return (
        f"an infinite prefix cache would hit {preset.ideal_prefix_hit_rate:.0%} of the prompt tokens of "
        f"{preset.name}; planned with prefix_cache_hit_rate {given:g}"
    )


def _burstiness(
    arrivals: str | ArrivalSpread | None, preset: catalog.TrafficPreset | None
) -> tuple[float, str]:
    """Squared coefficient of variation of inter-arrival times, and what to say of it.

    A trace whose variation comes from minutes with and without traffic is no renewal stream: its
    coefficient says nothing of queues. It is planned as Poisson, and the reader is told.
    """
    if isinstance(arrivals, ArrivalSpread):
        return arrivals.cv**2, ""
    if arrivals == TRACE and preset is not None:
        return preset.arrival_scv, ""
    if arrivals is not None or preset is None:
        return 1.0, ""
    if preset.interarrival_cv <= MAX_RENEWAL_CV:
        return preset.arrival_scv, ""
    peak = preset.peak_request_rate / preset.request_rate
    note = (
        f"{preset.name} comes in bursts (inter-arrival CV {preset.interarrival_cv:.3g}) and is planned as "
        f"Poisson: its busiest minute is at {peak:.2g} times the mean rate, so give request_rate for the peak"
    )
    return 1.0, note


def _lengths(document: WorkloadDocument, preset: catalog.TrafficPreset | None) -> Lengths:
    given = (document.input_tokens, document.output_tokens)
    if preset is not None and given == (None, None):
        return preset.lengths
    own = (None, None) if preset is None else (preset.lengths.isl, preset.lengths.osl)
    # What ties a preset's lengths together is not known for others: they count as independent.
    return lengths.independent(*(_side(g, o) for g, o in zip(given, own, strict=True)))


def _side(given: float | LengthDocument | None, own: Marginal | None) -> Marginal:
    """Lengths of one side: what is given, else the preset's own, cut where only a maximum is given."""
    if own is not None and (given is None or (isinstance(given, LengthDocument) and given.only_max)):
        return lengths.clamped(own, None if given is None else given.max)
    assert given is not None
    return _marginal(given)


def _marginal(document: float | LengthDocument) -> Marginal:
    if not isinstance(document, LengthDocument):
        return lengths.marginal_fixed(document)
    if document.mean is not None and document.cv is not None:
        return lengths.marginal_lognormal(document.mean, document.cv, document.max)
    if document.histogram is not None:
        tokens, weights = zip(*document.histogram, strict=True)
        return lengths.clamped(lengths.marginal_from_histogram(tokens, weights), document.max)
    percentiles = {0.5: document.p50, 0.9: document.p90, 0.99: document.p99}
    given = {p: value for p, value in percentiles.items() if value is not None}
    return lengths.marginal_from_percentiles(given, document.max)


def _slo(document: SloDocument) -> Slo:
    targets = []
    for metric, limits in ((Metric.TTFT, document.ttft_ms), (Metric.TPOT, document.tpot_ms)):
        for statistic in Statistic if limits is not None else ():
            limit = getattr(limits, statistic.value)
            if limit is not None:
                targets.append(SloTarget(metric=metric, statistic=statistic, limit=limit * MILLI))
    return Slo(targets=tuple(targets))


def _options(document: OptionsDocument) -> Options:
    split = document.routing == LENGTH_SPLIT
    return Options(
        colocated=ColocatedUse(document.colocated),
        routing=Routing.LEAST_LOADED if split else Routing(document.routing),
        min_replicas_per_pool=document.min_replicas_per_pool,
        spare_replicas=document.spare_replicas,
        whole_nodes=document.whole_nodes,
        headroom=document.headroom,
        confidence=document.confidence,
        max_tp=document.max_tp,
        max_pp=document.max_pp,
        max_nodes_per_replica=document.max_nodes_per_replica,
        allowed_tp=None if document.allowed_tp is None else tuple(sorted(set(document.allowed_tp))),
        spare_scope=SpareScope(document.spare_scope),
        survive_node=SURVIVE_NODE in document.survive,
        survive_zone=SURVIVE_ZONE in document.survive,
        surge_replicas=document.rolling_upgrade_surge,
        on_demand_floor=document.on_demand_floor,
        spot_recovery=document.spot_recovery_minutes / MINUTES_PER_HOUR,
        length_split=split,
        max_length_buckets=document.max_length_buckets or Options().max_length_buckets,
    )
