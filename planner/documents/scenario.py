"""The scenario file: what a user asks of the planner.

A scenario is read in three steps that all report into one error: the schema below, names that are
looked up (model, GPUs, traffic presets), and rules that span several keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Discriminator, Field, Tag

from planner import catalog, lengths
from planner.documents.source import (
    Choice,
    DocumentModel,
    KeyPath,
    Reserved,
    Tree,
    parse_tree,
    read_text,
    rule_error,
    validate,
)
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
from planner.units import BITS_PER_BYTE, GIGA, MILLI

MAX_TOKENS = 10_000_000
MAX_GPUS = 10_000_000
MAX_HISTOGRAM = 30_000
MAX_RENEWAL_CV = 2.0  # of a preset; beyond, the spread is between minutes, not between requests
MAX_PARALLEL = 1024
_RATE_OF_USERS = "give request_rate = users / (seconds per request + think time)"
_CHECKPOINT = "checkpoint"
_DTYPE_ALIASES = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float8": "fp8",
    "e4m3": "fp8",
    "fp8_e4m3": "fp8",
    "float8_e4m3fn": "fp8",
}
_KV_DTYPES = ("bf16", "fp16", "fp8")

# --------------------------------------------------------------------------------------------
# Kinds of values

Positive = Annotated[float, Field(gt=0)]
Tokens = Annotated[float, Field(ge=1, le=MAX_TOKENS)]
GpuCount = Annotated[int, Field(ge=0, le=MAX_GPUS)]
Parallel = Annotated[int, Field(ge=1, le=MAX_PARALLEL)]
Weight = Annotated[float, Field(ge=0, le=1e15)]
Text = Annotated[str, Field(min_length=1)]

WeightDtype = Annotated[
    str, Choice((*(d.value for d in Dtype), _CHECKPOINT), reserved=("auto",), aliases=_DTYPE_ALIASES)
]
KvDtype = Annotated[
    str,
    Choice(
        (*_KV_DTYPES, _CHECKPOINT),
        reserved=("auto", *(d.value for d in Dtype if d.value not in _KV_DTYPES)),
        aliases={alias: name for alias, name in _DTYPE_ALIASES.items() if name in _KV_DTYPES},
    ),
]


def _kind(value: Any) -> str:
    """Tag of a value that may be short or a mapping; parentheses keep it out of messages."""
    return "(mapping)" if isinstance(value, dict) else "(short)"


def _refuse(kinds: tuple[type, ...], rule: str, suggestion: str) -> BeforeValidator:
    """Refuses values of some Python types with a rule of its own."""

    def check(value: Any) -> Any:
        if isinstance(value, kinds) and not isinstance(value, bool):
            raise rule_error(rule, suggestion)
        return value

    return BeforeValidator(check)


# --------------------------------------------------------------------------------------------
# The schema


class PrecisionDocument(DocumentModel):
    """Number formats."""

    weights: WeightDtype = Field(
        default=_CHECKPOINT, description="Format of the weights; checkpoint: as the model was published."
    )
    kv_cache: KvDtype = Field(
        default=_CHECKPOINT,
        description="Format of the KV cache; checkpoint: the model's 16-bit format, whatever its weights.",
    )


class ArrivalSpread(DocumentModel):
    """Arrivals that are burstier, or more even, than Poisson."""

    cv: Annotated[float, Field(ge=0, le=100)] = Field(
        description="Coefficient of variation of the times between arrivals; 1 is Poisson. [1]"
    )


Arrivals = Annotated[
    Annotated[str, Choice(("poisson",), reserved=("trace",)), Tag("(short)")]
    | Annotated[ArrivalSpread, Tag("(mapping)")],
    Discriminator(_kind),
]


class LengthDocument(DocumentModel):
    """A length distribution: {mean, cv}, or two or more of {p50, p90, p99}, or {histogram}."""

    mean: Tokens | None = Field(default=None, description="Mean; with cv. [tok]")
    cv: Annotated[float, Field(ge=0, le=20)] | None = Field(
        default=None, description="Standard deviation over mean, of a lognormal. [1]"
    )
    p50: Tokens | None = Field(default=None, description="Median. [tok]")
    p90: Tokens | None = Field(default=None, description="90th percentile. [tok]")
    p99: Tokens | None = Field(default=None, description="99th percentile. [tok]")
    histogram: (
        Annotated[list[tuple[Tokens, Weight]], Field(min_length=1, max_length=MAX_HISTOGRAM)] | None
    ) = Field(default=None, description="Pairs [tokens, weight]; weights need not add up to 1. [tok, 1]")
    max: Tokens | None = Field(
        default=None, description="Longer requests are cut to this; alone, it cuts a preset's. [tok]"
    )

    @property
    def only_max(self) -> bool:
        return self.model_fields_set == {"max"}


Length = Annotated[
    Annotated[Tokens, Tag("(short)")] | Annotated[LengthDocument, Tag("(mapping)")], Discriminator(_kind)
]


class WorkloadDocument(DocumentModel):
    """Traffic: how many requests, how bursty, how long."""

    synonyms: ClassVar = {
        "isl": "input_tokens",
        "osl": "output_tokens",
        "rate": "request_rate",
        "qps": "request_rate",
        "rps": "request_rate",
        "concurrency": _RATE_OF_USERS,
        "concurrent_users": _RATE_OF_USERS,
        "prefix_hit_rate": "prefix_cache_hit_rate",
    }

    request_rate: (
        Annotated[
            Annotated[float, Field(gt=0, le=1e9)],
            _refuse((list, dict), "a schedule of rates is not supported by this version", "give one number"),
        ]
        | None
    ) = Field(
        default=None,
        description="Arrivals; may be left out with a preset (its own rate) or objective throughput. [req/s]",
    )
    arrivals: Arrivals | None = Field(
        default=None, description="poisson or {cv: ...}; default: the preset's burstiness, else poisson."
    )
    preset: Text | None = Field(default=None, description="Named real traffic with lengths and burstiness.")
    input_tokens: Length | None = Field(
        default=None, description="Prompt length: a number or a distribution; wins over the preset's. [tok]"
    )
    output_tokens: Length | None = Field(
        default=None, description="Output length: a number or a distribution; wins over the preset's. [tok]"
    )
    prefix_cache_hit_rate: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="Share of input tokens found cached on the prefill side. [1]"
    )
    trace: Annotated[Any, Reserved("traces are not supported by this version")] = None
    users: Annotated[
        Any,
        Reserved(f"users are not supported by this version; {_RATE_OF_USERS}"),
    ] = None


class LatencyLimits(DocumentModel):
    """Bounds on one latency; each must hold."""

    mean: Positive | None = Field(default=None, description="Bound on the mean. [ms]")
    p50: Positive | None = Field(default=None, description="Bound on the median. [ms]")
    p90: Positive | None = Field(default=None, description="Bound on the 90th percentile. [ms]")
    p95: Positive | None = Field(default=None, description="Bound on the 95th percentile. [ms]")
    p99: Positive | None = Field(default=None, description="Bound on the 99th percentile. [ms]")


Limits = Annotated[
    LatencyLimits, _refuse((int, float), "say which statistic the limit is for", "e.g. {p99: 1000}")
]


class SloDocument(DocumentModel):
    """Service level objectives; at least one bound."""

    synonyms: ClassVar = {"itl_ms": "tpot_ms", "itl": "tpot_ms", "ttft": "ttft_ms", "tpot": "tpot_ms"}

    ttft_ms: Limits | None = Field(default=None, description="Time to first token. [ms]")
    tpot_ms: Limits | None = Field(default=None, description="Mean time per output token of a request. [ms]")
    e2e_ms: Annotated[Any, Reserved("end-to-end SLOs are not supported by this version")] = None
    attainment: Annotated[Any, Reserved("joint attainment is not supported by this version")] = None


class FleetItemDocument(DocumentModel):
    """GPUs of one type that may be used."""

    synonyms: ClassVar = {
        "count": "max_gpus",
        "stock": "max_gpus",
        "price": "price_per_gpu_hour",
        "name": "gpu",
        "type": "gpu",
        "gpus_per_node": "node_size",
    }

    gpu: Text = Field(description="Name of a GPU profile, or path to one relative to this file.")
    price_per_gpu_hour: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="Price of one GPU; needed where cost or a budget counts. [USD/h]"
    )
    max_gpus: GpuCount | None = Field(
        default=None, description="GPUs that can be had; 0: none; left out: unlimited."
    )
    node_size: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="GPUs of a node; default: the profile's."
    )
    network_gbps_per_gpu: Positive | None = Field(
        default=None, description="NIC share of one GPU, one direction; default: the profile's. [Gbit/s]"
    )
    rdma: bool = Field(default=True, description="false where the network is plain TCP.")
    owned: bool = Field(default=False, description="Already paid for: the price may be 0 or left out.")
    max_prefill_gpus: GpuCount | None = Field(default=None, description="Cap of the prefill pool.")
    max_decode_gpus: GpuCount | None = Field(default=None, description="Cap of the decode pool.")
    max_colocated_gpus: GpuCount | None = Field(default=None, description="Cap of the colocated pool.")
    zone: Annotated[Any, Reserved("zones are not supported by this version")] = None


class OptionsDocument(DocumentModel):
    """How a plan is searched."""

    colocated: Annotated[str, Choice(tuple(ColocatedUse))] = Field(
        default="allowed", description="Whether replicas that do both phases may, must not, or must serve."
    )
    routing: Annotated[str, Choice(tuple(Routing), reserved=("length_split",))] = Field(
        default="least_loaded", description="How the front door picks a replica."
    )
    min_replicas_per_pool: Annotated[int, Field(ge=1, le=MAX_GPUS)] = Field(
        default=1, description="Replicas that a pool in use has at least."
    )
    spare_replicas: Annotated[int, Field(ge=0, le=MAX_GPUS)] = Field(
        default=0, description="Replicas of each pool that may fail while the rest still meets the SLOs."
    )
    whole_nodes: bool = Field(default=True, description="Whether nodes are paid for whole.")
    headroom: Annotated[float, Field(ge=0, le=10)] = Field(
        default=0.0, description="Traffic to be ready for beyond request_rate, as a share of it. [1]"
    )
    confidence: Annotated[float, Field(ge=0.5, le=0.99)] = Field(
        default=0.8, description="Probability that the plan holds, given what the model may be wrong by. [1]"
    )
    max_tp: Parallel | None = Field(default=None, description="Largest tensor parallel size.")
    max_pp: Parallel = Field(default=4, description="Largest pipeline parallel size, within a node.")
    allowed_tp: Annotated[list[Parallel], Field(min_length=1)] | None = Field(
        default=None, description="Tensor parallel sizes to choose from, e.g. [1, 2, 4]; default: all."
    )


class ScenarioDocument(DocumentModel):
    """A question to the planner: model, traffic, SLOs, and the GPUs to choose from."""

    empty_values = False  # an empty max_gpus must not pass for "unlimited"
    synonyms: ClassVar = {
        "model_path": "model",
        "backend": "engine",
        "sla": "slo",
        "slos": "slo",
        "gpus": "fleet",
        "inventory": "fleet",
        "hardware": "fleet",
        "budget": "budget_per_hour",
        "traffic": "workload",
        "constraints": "options",
    }

    model: Text = Field(
        description="Catalogue name, or path to a Hugging Face config.json or model directory."
    )
    precision: PrecisionDocument = Field(default=PrecisionDocument(), description="Number formats.")
    engine: Annotated[str, Choice(("vllm",), reserved=("sglang", "trtllm"))] = Field(
        default="vllm", description="Serving engine."
    )
    workload: WorkloadDocument = Field(description="Traffic.")
    slo: SloDocument = Field(description="Service level objectives.")
    fleet: list[FleetItemDocument] = Field(
        description="GPU types to choose from, each once.", json_schema_extra={"minItems": 1}
    )
    objective: Annotated[str, Choice(tuple(Objective))] = Field(
        default="cost", description="What is made small; throughput: the rate, made large."
    )
    budget_per_hour: Positive | None = Field(default=None, description="Most that a plan may cost. [USD/h]")
    options: OptionsDocument = Field(default=OptionsDocument(), description="How a plan is searched.")
    models: Annotated[Any, Reserved()] = None
    periods: Annotated[Any, Reserved()] = None
    zones: Annotated[Any, Reserved()] = None
    owned: Annotated[Any, Reserved()] = None
    egress_per_gb: Annotated[Any, Reserved()] = None

    @classmethod
    def check(cls, tree: Tree) -> list[Problem]:
        return [*_check_workload(tree), *_check_slo(tree), *_check_fleet(tree)]


# --------------------------------------------------------------------------------------------
# Rules that span several keys


def _check_workload(tree: Tree) -> list[Problem]:
    if not isinstance(tree.get("workload"), dict):
        return []  # reported by the schema
    problems = []
    sides = ("input_tokens", "output_tokens")
    needed = () if tree.has("workload", "preset") else sides
    if not tree.has("workload", "preset") and tree.get("objective") != Objective.THROUGHPUT:
        needed = ("request_rate", *needed)
    for key in needed:
        if not any(tree.has("workload", k) for k in (key, "users", "trace")):
            hint = "" if key == "request_rate" else "or name a preset"
            problems.append(tree.problem(("workload", key), "is required", hint))
    for side in sides:
        if isinstance(tree.get("workload", side), dict):
            problems += _check_length(tree, ("workload", side))
    return problems


def _check_length(tree: Tree, path: KeyPath) -> list[Problem]:
    given = set(tree.get(*path))
    families = [{"mean", "cv"}, {"p50", "p90", "p99"}, {"histogram"}]
    used = [family for family in families if family & given]
    forms = "use {mean, cv}, {p50, p90, p99} or {histogram: [[tokens, weight], ...]}"
    if not used and given == {"max"} and tree.has("workload", "preset"):
        return []  # cuts the preset's own lengths
    if len(used) != 1:
        rule = "mixes several kinds of distribution" if used else "says nothing of the distribution"
        return [tree.problem(path, rule, forms, show_value=False)]
    if used == [families[0]] and not families[0] <= given:
        (absent,) = families[0] - given
        return [tree.problem((*path, absent), "is required", forms)]
    if used == [families[1]]:
        return _check_percentiles(tree, path)
    return _check_histogram(tree, path)


def _check_percentiles(tree: Tree, path: KeyPath) -> list[Problem]:
    known = [(name, tree.get(*path, name)) for name in ("p50", "p90", "p99") if tree.has(*path, name)]
    if len(known) < 2:
        return [tree.problem(path, "needs at least two of p50, p90, p99", show_value=False)]
    return [
        tree.problem((*path, name), f"must be >= {before_name}")
        for (before_name, before), (name, value) in pairwise(known)
        if _is_number(before) and _is_number(value) and value < before
    ]


def _check_histogram(tree: Tree, path: KeyPath) -> list[Problem]:
    pairs = tree.get(*path, "histogram")
    if not isinstance(pairs, list):
        return []
    weights = [pair[1] for pair in pairs if isinstance(pair, list) and len(pair) == 2]
    if weights and len(weights) == len(pairs) and all(_is_number(w) and w == 0 for w in weights):
        return [tree.problem((*path, "histogram"), "needs a weight > 0")]
    return []


def _check_slo(tree: Tree) -> list[Problem]:
    slo = tree.get("slo")
    if not isinstance(slo, dict):
        return []
    problems = [
        tree.problem(("slo", key), "gives no limit", "e.g. {p99: 1000}", show_value=False)
        for key in ("ttft_ms", "tpot_ms")
        if slo.get(key) == {}
    ]
    if not slo:
        problems.append(tree.problem(("slo",), "at least one SLO is needed", "e.g. ttft_ms: {p99: 1000}"))
    return problems


def _check_fleet(tree: Tree) -> list[Problem]:
    fleet = tree.get("fleet")
    if not isinstance(fleet, list):
        return []
    if not fleet:
        return [tree.problem(("fleet",), "the fleet is empty", "list at least one GPU type")]
    items = [(i, item) for i, item in enumerate(fleet) if isinstance(item, dict)]
    return [problem for i, item in items for problem in _check_price(tree, i, item)]


def _check_price(tree: Tree, i: int, item: Mapping[str, Any]) -> list[Problem]:
    path: KeyPath = ("fleet", i, "price_per_gpu_hour")
    if item.get("owned") is True:
        return []
    if tree.has(*path):
        free = _is_number(tree.get(*path)) and tree.get(*path) == 0
        return [tree.problem(path, "must be > 0", "or say owned: true")] if free else []
    if tree.get("objective") in (None, Objective.COST):
        return [tree.problem(path, "missing price: objective is cost", "give it, or owned: true")]
    if tree.has("budget_per_hour"):
        return [tree.problem(path, "missing price: there is a budget", "give it, or owned: true")]
    return []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --------------------------------------------------------------------------------------------
# Names that are looked up


@dataclass(slots=True)
class _Named:
    """What the names of a scenario stand for."""

    model: Model | None = None
    preset: catalog.TrafficPreset | None = None
    gpus: dict[int, GPU] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def _look_up(tree: Tree) -> _Named:
    """Resolve every name that is text, whatever else is wrong with the file."""
    named = _Named()
    if name := _text(tree, "model"):
        with _reporting(named, tree, ("model",)):
            named.model = catalog.load_model(name, tree.folder)
    if name := _text(tree, "workload", "preset"):
        with _reporting(named, tree, ("workload", "preset")):
            named.preset = catalog.load_traffic(name)
    fleet = tree.get("fleet")
    first: dict[str, KeyPath] = {}
    for i in range(len(fleet) if isinstance(fleet, list) else 0):
        path: KeyPath = ("fleet", i, "gpu")
        if name := _text(tree, *path):
            with _reporting(named, tree, path):
                named.gpus[i] = catalog.load_gpu(name, tree.folder)
                name = named.gpus[i].name  # the same GPU may go by several names
            if name in first:
                rule = f"is listed twice, first on line {tree.line(first[name])}"
                named.problems.append(tree.problem(path, rule, "give each GPU type once"))
            first.setdefault(name, path)
    if named.model is not None:
        named.problems += _check_tp(tree, named.model)
    return named


def _text(tree: Tree, *path: str | int) -> str:
    value = tree.get(*path)
    return value if isinstance(value, str) else ""


@contextmanager
def _reporting(named: _Named, tree: Tree, path: KeyPath) -> Iterator[None]:
    """Turn a failed look-up into problems at the line of the name."""
    try:
        yield
    except SpecError as error:
        said = [f"{error.source}: {problem}" for problem in error.problems] or [str(error)]
        named.problems += [tree.problem(path, rule, show_value=False) for rule in said]


def _check_tp(tree: Tree, model: Model) -> list[Problem]:
    allowed = tree.get("options", "allowed_tp") if isinstance(tree.get("options"), dict) else None
    problems = []
    for i, tp in enumerate(allowed if isinstance(allowed, list) else []):
        if type(tp) is not int or not 1 <= tp <= MAX_PARALLEL:
            continue  # reported by the schema
        violation = tp_violation(model, tp)
        if violation is not None:
            sizes = sorted(legal_tp(model, min(2 * tp, MAX_PARALLEL)), key=lambda size: abs(size - tp))
            hint = f"nearest: {', '.join(str(size) for size in sorted(sizes[:2]))}"
            problems.append(tree.problem(("options", "allowed_tp", i), violation.reason, hint))
    return problems


def _check_context(tree: Tree, service: Service) -> list[Problem]:
    """The longest request must fit into the model's context."""
    longest = [service.workload.lengths.isl.maximum, service.workload.lengths.osl.maximum]
    room = service.model.max_context
    if sum(longest) <= room:
        return []
    key = "preset" if tree.has("workload", "preset") else "input_tokens"
    tokens = f"{longest[0]:,.0f} + {longest[1]:,.0f} tokens"
    rule = f"longest prompt and output are {tokens}, the model takes {room:,}"
    hint = f"cut them: input_tokens: {{max: {max(room - longest[1], 1):.0f}}}"
    return [tree.problem(("workload", key), rule, hint)]


# --------------------------------------------------------------------------------------------
# Into SI units


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedScenario:
    """A scenario with the document it was read from, which a plan echoes."""

    scenario: Scenario
    document: Mapping[str, Any]


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
    service = _service(document, named.model, named.preset)
    problems = _check_context(tree, service)
    if problems:
        raise SpecError.of_file(source_name, problems)
    scenario = Scenario(
        services=(service,),
        fleet=tuple(_fleet_item(item, named.gpus[i]) for i, item in enumerate(document.fleet)),
        objective=Objective(document.objective),
        options=_options(document.options),
        budget=document.budget_per_hour,
        source=source_name,
    )
    return LoadedScenario(scenario=scenario, document=tree.raw)


def _service(document: ScenarioDocument, model: Model, preset: catalog.TrafficPreset | None) -> Service:
    return Service(
        model=model,
        precision=_precision(document.precision, model),
        workload=_workload(document.workload, preset),
        slo=_slo(document.slo),
        engine=document.engine,
    )


def _precision(document: PrecisionDocument, model: Model) -> Precision:
    weights = model.checkpoint_dtype if document.weights == _CHECKPOINT else Dtype(document.weights)
    if document.kv_cache != _CHECKPOINT:
        return Precision(weights=weights, kv_cache=Dtype(document.kv_cache))
    # As vLLM's "auto": the model's 16-bit format, also for checkpoints with smaller weights.
    sixteen = model.checkpoint_dtype if model.checkpoint_dtype.is_16_bit else Dtype.BF16
    return Precision(weights=weights, kv_cache=sixteen)


def _workload(document: WorkloadDocument, preset: catalog.TrafficPreset | None) -> Workload:
    rate = document.request_rate
    if rate is None:
        # Without a preset only objective throughput gets here, which looks for the rate itself.
        rate = preset.request_rate if preset else 1.0
    scv, note = _burstiness(document.arrivals, preset)
    return Workload(
        name=preset.name if preset else "workload",
        periods=(Period(name="constant", hours=1.0, request_rate=rate),),
        lengths=_lengths(document, preset),
        arrival_scv=scv,
        prefix_hit_rate=document.prefix_cache_hit_rate,
        citation=preset.citation if preset else "",
        note=note,
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


def _fleet_item(document: FleetItemDocument, gpu: GPU) -> FleetItem:
    price = document.price_per_gpu_hour
    if price is None and document.owned:
        price = 0.0
    network = document.network_gbps_per_gpu
    caps = {
        Phase.PREFILL: document.max_prefill_gpus,
        Phase.DECODE: document.max_decode_gpus,
        Phase.COLOCATED: document.max_colocated_gpus,
    }
    return FleetItem(
        gpu=gpu,
        price=price,
        max_gpus=document.max_gpus,
        node_size=document.node_size or gpu.node_size,
        network_bandwidth=gpu.network_bandwidth if network is None else network * GIGA / BITS_PER_BYTE,
        network_given=network is not None,
        rdma=document.rdma,
        owned=document.owned,
        max_gpus_by_phase={phase: cap for phase, cap in caps.items() if cap is not None},
    )


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
