"""The scenario file: what a user asks of the planner.

A scenario is read in three steps that all report into one error: the schema, rules that span several
keys, and names that are looked up here (model, GPUs, traffic presets).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from planner import catalog, lengths
from planner.documents.files import read_text, resolved_path
from planner.documents.model_config import model_from_config
from planner.documents.scenario_rules import price_reason
from planner.documents.scenario_schema import (
    AUTO,
    CHECKPOINT,
    MAX_CV,
    MAX_PARALLEL,
    TRACE,
    ArrivalSpread,
    DemandDocument,
    FleetItemDocument,
    LengthDocument,
    OptionsDocument,
    PrecisionDocument,
    ScenarioDocument,
    SloDocument,
    WorkloadDocument,
)
from planner.documents.source import validate
from planner.documents.trace_file import read_trace
from planner.documents.tree import KeyPath, Tree
from planner.documents.yaml_text import parse_tree
from planner.engines import load_engine
from planner.engines.formats import kv_choices, weight_choices
from planner.engines.legality import legal_tp, tp_violation
from planner.errors import Problem, SpecError
from planner.specs import (
    GPU,
    ColocatedUse,
    Dtype,
    FleetItem,
    Lengths,
    Marginal,
    Metric,
    Model,
    Objective,
    Options,
    Period,
    Phase,
    Precision,
    Routing,
    Scenario,
    Service,
    Slo,
    SloTarget,
    Statistic,
    Workload,
)
from planner.traces import Trace
from planner.units import BITS_PER_BYTE, GIGA, MILLI

MAX_RENEWAL_CV = 2.0  # of a preset; beyond, the spread is between minutes, not between requests
_SLIP = 0.9  # similarity from which a key of an inline model is taken for another

# --------------------------------------------------------------------------------------------
# Names that are looked up


@dataclass(slots=True)
class Named:
    """What the names of a file stand for, and what is wrong with them."""

    model: Model | None = None
    preset: catalog.TrafficPreset | None = None
    trace: Trace | None = None
    gpus: dict[int, GPU] = field(default_factory=dict)
    instances: dict[int, catalog.CloudInstance] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def look_up_demand(tree: Tree) -> Named:
    """Model and traffic by every name that is text, whatever else is wrong with the file."""
    named = Named()
    if name := text_at(tree, "model"):
        with reporting(named, tree, ("model",)):
            named.model = catalog.load_model(name, tree.folder)
    elif isinstance(tree.get("model"), dict):
        named.model = _inline_model(tree, named.problems)
    if name := text_at(tree, "workload", "preset"):
        with reporting(named, tree, ("workload", "preset")):
            named.preset = catalog.load_traffic(name, tree.folder)
    if name := text_at(tree, "workload", "trace"):
        with reporting(named, tree, ("workload", "trace")):
            named.trace = read_trace(resolved_path(name, tree.folder))
            named.preset = catalog.traffic_of(named.trace)
    return named


def _look_up(tree: Tree) -> Named:
    """Resolve every name of a scenario."""
    named = look_up_demand(tree)
    _look_up_fleet(tree, named)
    if named.model is not None:
        named.problems += _check_tp(tree, named.model)
    return named


def _look_up_fleet(tree: Tree, named: Named) -> None:
    """GPUs and instances of the fleet; each type of GPU is listed once."""
    first: dict[str, KeyPath] = {}
    for i in range(len(tree.entries("fleet"))):
        path: KeyPath = ("fleet", i, "gpu")
        name = text_at(tree, *path)
        if name:
            with reporting(named, tree, path):
                named.gpus[i] = catalog.load_gpu(name, tree.folder)
        if instance := text_at(tree, "fleet", i, "instance"):
            with reporting(named, tree, ("fleet", i, "instance")):
                named.instances[i] = catalog.load_instance(instance)
                named.problems += _check_instance(tree, i, named.instances[i], named.gpus.get(i))
                if not tree.has(*path):
                    path = ("fleet", i, "instance")
                    named.gpus[i] = catalog.load_gpu(named.instances[i].gpu)
        name = named.gpus[i].name if i in named.gpus else name  # the same GPU may go by several names
        if name and name in first:
            rule = f"is listed twice, first on line {tree.line(first[name])}"
            named.problems.append(tree.problem(path, rule, "give each GPU type once"))
        first.setdefault(name, path)


def _check_instance(tree: Tree, i: int, instance: catalog.CloudInstance, gpu: GPU | None) -> list[Problem]:
    """An instance has the GPU that is named beside it, and a price where one is needed."""
    problems = []
    if gpu is not None and gpu.name in catalog.gpu_names() and gpu.name != instance.gpu:
        rule = f"contradicts {instance.name}, which has {instance.gpu}"
        problems.append(tree.problem(("fleet", i, "gpu"), rule, "leave it out"))
    given = tree.has("fleet", i, "price_per_gpu_hour") or tree.get("fleet", i, "owned") is True
    if instance.on_demand is None and not given and price_reason(tree):
        rule = f"price of {instance.name} is not known: give price_per_gpu_hour"
        problems.append(tree.problem(("fleet", i, "instance"), rule, show_value=False))
    return problems


def _inline_model(tree: Tree, problems: list[Problem]) -> Model | None:
    """A model whose configuration the scenario holds itself; its ``name`` is free."""
    config = _Recorded(tree.get("model"))
    name = text_at(tree, "model", "name") or "model"
    model = None
    try:
        model = model_from_config(config, name, f"model of {tree.source}")
    except SpecError as error:
        for problem in error.problems:
            path: KeyPath = ("model", *problem.key.split("."))
            problems.append(replace(problem, key=f"model.{problem.key}", line=tree.line(path)))
    for key, meant in config.mistyped():
        problems.append(tree.problem(("model", key), "unknown key", f"did you mean {meant}?"))
    return model


class _Recorded(dict[str, Any]):
    """A model's keys, and which of them were asked for.

    A configuration copied from a model's page has many keys that shapes do not need; what is refused is a
    key that was never asked for, so close to one that was asked for in vain that it must be a slip.
    """

    def __init__(self, keys: Mapping[str, Any]) -> None:
        super().__init__(keys)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def mistyped(self) -> list[tuple[str, str]]:
        """(key, key that was probably meant)."""
        in_vain = sorted(self.asked - set(self))
        unread = [key for key in self if isinstance(key, str) and key not in self.asked]
        near = ((key, get_close_matches(key, in_vain, n=1, cutoff=_SLIP)) for key in unread)
        return [(key, found[0]) for key, found in near if found]


def text_at(tree: Tree, *path: str | int) -> str:
    """The text at a key path; empty where there is none."""
    value = tree.get(*path)
    return value if isinstance(value, str) else ""


@contextmanager
def reporting(named: Named, tree: Tree, path: KeyPath) -> Iterator[None]:
    """Turn a failed look-up into problems at the line of the name."""
    try:
        yield
    except SpecError as error:
        said = [f"{error.source}: {problem}" for problem in error.problems] or [str(error)]
        named.problems += [tree.problem(path, rule, show_value=False) for rule in said]


def _check_tp(tree: Tree, model: Model) -> list[Problem]:
    problems = []
    for i, tp in enumerate(tree.entries("options", "allowed_tp")):
        if type(tp) is not int or not 1 <= tp <= MAX_PARALLEL:
            continue  # reported by the schema
        violation = tp_violation(model, tp)
        if violation is not None:
            sizes = sorted(legal_tp(model, min(2 * tp, MAX_PARALLEL)), key=lambda size: abs(size - tp))
            hint = f"nearest: {', '.join(str(size) for size in sorted(sizes[:2]))}"
            problems.append(tree.problem(("options", "allowed_tp", i), violation.reason, hint))
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
    trace : Trace or None
        Requests that lengths are drawn from; None where the scenario gives lengths of its own.
    replay : bool
        Whether a simulation plays them as they came: the scenario asks for no other arrivals and lengths.
    """

    scenario: Scenario
    document: Mapping[str, Any]
    trace: Trace | None = None
    replay: bool = False


def load_scenario(path: str | Path) -> Scenario:
    """Read a scenario file.

    Raises
    ------
    SpecError
        With every problem of the file.
    """
    return read_scenario(path).scenario


def read_scenario(path: str | Path) -> LoadedScenario:
    """Read a scenario file and keep its document. See :func:`load_scenario`."""
    path = Path(path)
    return scenario_from_text(read_text(path), str(path), folder=path.parent)


def scenario_from_text(
    text: str, source_name: str = "scenario", *, folder: Path | None = None
) -> LoadedScenario:
    """Read a scenario from YAML or JSON; `folder` is where its relative paths start."""
    tree, problems = parse_tree(text, source_name, folder)
    document, found = validate(tree, ScenarioDocument)
    named = _look_up(tree)
    problems += found + named.problems
    if problems or document is None or named.model is None:
        raise SpecError.of_file(source_name, problems)
    service = service_of(document, named.model, named.preset)
    problems = check_demand(tree, named.model, service.workload, named.trace)
    if problems:
        raise SpecError.of_file(source_name, problems)
    scenario = Scenario(
        services=(service,),
        fleet=tuple(
            _fleet_item(item, named.gpus[i], named.instances.get(i)) for i, item in enumerate(document.fleet)
        ),
        objective=Objective(document.objective),
        options=_options(document.options),
        budget=document.budget_per_hour,
        source=source_name,
    )
    return LoadedScenario(
        scenario=scenario,
        document=tree.raw,
        trace=named.trace if own_lengths(document.workload) else None,
        replay=replays(document.workload),
    )


def service_of(document: DemandDocument, model: Model, preset: catalog.TrafficPreset | None) -> Service:
    """What is to be served, with the model and the recorded traffic that it names."""
    return Service(
        model=model,
        precision=precision_of(document.precision, model),
        workload=workload_of(document.workload, preset),
        slo=_slo(document.slo),
        engine=document.engine,
        choices=precision_choices(document.precision, model, document.engine),
    )


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
    rate = document.request_rate
    if rate is None:
        # Without a preset only what looks for the rate itself gets here.
        rate = preset.request_rate if preset else 1.0
    scv, burstiness = _burstiness(document.arrivals, preset)
    notes = [burstiness, _prefix_note(document, preset), preset.note if preset and document.trace else ""]
    return Workload(
        name=preset.name if preset else "workload",
        periods=(Period(name="constant", hours=1.0, request_rate=rate),),
        lengths=_lengths(document, preset),
        arrival_scv=scv,
        prefix_hit_rate=document.prefix_cache_hit_rate,
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


def _fleet_item(document: FleetItemDocument, gpu: GPU, instance: catalog.CloudInstance | None) -> FleetItem:
    """GPUs as the item says, else as its instance does, else as their profile does."""
    price, price_source = document.price_per_gpu_hour, ""
    if price is None and document.owned:
        price = 0.0
    elif price is None and instance is not None and instance.price_per_gpu is not None:
        price, price_source = instance.price_per_gpu, instance.price_source
    network = bytes_per_second(document.network_gbps_per_gpu)
    rdma, node_size = document.rdma, document.node_size
    if instance is not None:
        network = instance.network_per_gpu if network is None else network
        node_size = node_size or instance.gpus
        if "rdma" not in document.model_fields_set and instance.rdma is not None:
            rdma = instance.rdma
    caps = {
        Phase.PREFILL: document.max_prefill_gpus,
        Phase.DECODE: document.max_decode_gpus,
        Phase.COLOCATED: document.max_colocated_gpus,
    }
    return FleetItem(
        gpu=gpu,
        price=price,
        max_gpus=document.max_gpus,
        node_size=node_size or gpu.node_size,
        network_bandwidth=gpu.network_bandwidth if network is None else network,
        network_given=network is not None,
        rdma=rdma,
        owned=document.owned,
        price_source=price_source,
        max_gpus_by_phase={phase: cap for phase, cap in caps.items() if cap is not None},
    )


def bytes_per_second(gbps: float | None) -> float | None:
    """A network rate in SI units, where one is given. [B/s]"""
    return None if gbps is None else gbps * GIGA / BITS_PER_BYTE


def _options(document: OptionsDocument) -> Options:
    return Options(
        colocated=ColocatedUse(document.colocated),
        routing=Routing(document.routing),
        min_replicas_per_pool=document.min_replicas_per_pool,
        spare_replicas=document.spare_replicas,
        whole_nodes=document.whole_nodes,
        headroom=document.headroom,
        confidence=document.confidence,
        max_tp=document.max_tp,
        max_pp=document.max_pp,
        allowed_tp=None if document.allowed_tp is None else tuple(sorted(set(document.allowed_tp))),
    )
