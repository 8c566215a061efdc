"""The schema of the scenario file: every key with its kind, unit, default and description."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Discriminator, Field, Tag

from planner.documents.scenario_rules import (
    DEMAND_KEYS,
    LENGTH_SPLIT,
    SERVED_KEYS,
    SURVIVE_NODE,
    SURVIVE_ZONE,
    check_models,
    check_options,
    check_slo,
    check_speculative,
    check_workload,
    demand_trees,
)
from planner.documents.schedule_schema import (
    RATE_TEXT,
    PeriodsDocument,
    RequestRate,
    check_rates,
    rate_of,
)
from planner.documents.schema_base import (
    Choice,
    DocumentModel,
    Label,
    Money,
    Positive,
    Reserved,
    Text,
    kind_of,
    refused,
)
from planner.documents.supply_rules import check_fleet, check_supply
from planner.documents.supply_schema import MAX_GPUS, FleetItemDocument, PowerDocument, ZoneDocument
from planner.documents.tree import Tree
from planner.engines import DEFAULT_ENGINE, engine_names
from planner.errors import Problem
from planner.specs import ColocatedUse, Dtype, Objective, Routing, SpareScope
from planner.specs.speculation import MAX_DRAFT, MAX_DRAFT_COST, MAX_DRAFT_GB, MAX_DRAFT_MS

MAX_TOKENS = 10_000_000
MAX_HISTOGRAM = 30_000
MAX_PARALLEL = 1024
MAX_NODES = 16  # of one replica
MAX_CV = 100
MAX_CLIENTS = 100_000
CHECKPOINT = "checkpoint"
AUTO = "auto"
TRACE = "trace"
_RATE_OF_USERS = "give request_rate = users / (seconds per request + think time)"
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

Tokens = Annotated[float, Field(ge=1, le=MAX_TOKENS)]
Parallel = Annotated[int, Field(ge=1, le=MAX_PARALLEL)]
Confidence = Annotated[float, Field(ge=0.5, le=0.99)]
RoutingName = Annotated[str, Choice(tuple(Routing), reserved=("length_split",))]
Weight = Annotated[float, Field(ge=0, le=1e15)]

_KV_ALIASES = {alias: name for alias, name in _DTYPE_ALIASES.items() if name in _KV_DTYPES}
_NO_KV_DTYPES = tuple(d.value for d in Dtype if d.value not in _KV_DTYPES)

FixedWeightDtype = Annotated[str, Choice((*(d.value for d in Dtype), CHECKPOINT), aliases=_DTYPE_ALIASES)]
FixedKvDtype = Annotated[str, Choice((*_KV_DTYPES, CHECKPOINT), reserved=_NO_KV_DTYPES, aliases=_KV_ALIASES)]
WeightDtype = Annotated[str, Choice((*(d.value for d in Dtype), CHECKPOINT, AUTO), aliases=_DTYPE_ALIASES)]
KvDtype = Annotated[str, Choice((*_KV_DTYPES, CHECKPOINT, AUTO), reserved=_NO_KV_DTYPES, aliases=_KV_ALIASES)]


# --------------------------------------------------------------------------------------------
# The schema


class PrecisionDocument(DocumentModel):
    """Number formats."""

    weights: WeightDtype = Field(
        default=CHECKPOINT,
        description="Format of the weights; checkpoint: as the model was published; auto: each group's is "
        "chosen between that and fp8 made of 16-bit weights as they are loaded. fp8 changes what the model "
        "answers, if little: a plan that chose it says so.",
    )
    kv_cache: KvDtype = Field(
        default=CHECKPOINT,
        description="Format of the KV cache; checkpoint: the model's 16-bit format, whatever its weights; "
        "auto: that or fp8 is chosen, prefill and decode alike, where the engine keeps it on the GPU. fp8 "
        "changes what the model answers, if little: a plan that chose it says so.",
    )


class SpeculativeDocument(DocumentModel):
    """Speculative decoding, in numbers that were measured; nothing of it is guessed."""

    synonyms: ClassVar = {
        "num_speculative_tokens": "draft_tokens",
        "k": "draft_tokens",
        "acceptance_length": "accepted_tokens",
        "mean_acceptance_length": "accepted_tokens",
        "acceptance_rate": "give accepted_tokens, the mean tokens emitted per step, the model's own included",
        "draft_time_ms": "draft_ms",
    }

    draft_tokens: Annotated[int, Field(ge=1, le=MAX_DRAFT)] = Field(
        description="Tokens that the draft proposes per step and sequence, k. [tok]"
    )
    accepted_tokens: Annotated[float, Field(ge=1)] = Field(
        description="Mean tokens that a step emits per sequence, the model's own included, 1 to "
        "draft_tokens + 1. [tok]"
    )
    draft_cost: Annotated[float, Field(ge=0, le=MAX_DRAFT_COST)] | None = Field(
        default=None,
        description="Time of drafting draft_tokens tokens, as a share of the model's own step without a "
        "draft at the same batch; or give draft_ms. [1]",
    )
    draft_ms: Annotated[float, Field(ge=0, le=MAX_DRAFT_MS)] | None = Field(
        default=None, description="The same as a time, whatever the batch. [ms]"
    )
    draft_weights_gb: Annotated[float, Field(ge=0, le=MAX_DRAFT_GB)] = Field(
        default=0.0, description="Memory that the draft takes of each GPU of a replica. [GB]"
    )


class MeasuredPrecisionDocument(DocumentModel):
    """Number formats of what was measured."""

    weights: FixedWeightDtype | None = Field(
        default=None, description="Format of the weights; default: that of the model's precision."
    )
    kv_cache: FixedKvDtype | None = Field(
        default=None, description="Format of the KV cache; default: that of the model's precision."
    )


class MeasuredDocument(DocumentModel):
    """A closed loop that was measured on one colocated replica, without a draft."""

    synonyms: ClassVar = {
        "clients": "concurrency",
        "batch_size": "concurrency",
        "input_tokens": "isl",
        "output_tokens": "osl",
        "itl_ms": "tpot_ms",
        "tpot": "tpot_ms",
        "ttft_ms": "leave it out: only TPOT is used",
        "engine": "the point is of the model's engine",
        "version": "the point is of the model's engine, at the version that this planner has",
    }

    gpu: Text = Field(description="Name of a GPU profile, or path to one relative to this file.")
    tp: Parallel = Field(default=1, description="Tensor parallel size.")
    pp: Parallel = Field(default=1, description="Pipeline parallel size.")
    ep: Parallel = Field(default=1, description="Expert parallel size, 1 or all ranks of tp and dp.")
    dp: Parallel = Field(default=1, description="Attention data parallel size within the replica.")
    precision: MeasuredPrecisionDocument = Field(
        default=MeasuredPrecisionDocument(), description="Number formats."
    )
    concurrency: Annotated[float, Field(ge=1, le=MAX_CLIENTS)] = Field(
        description="Clients that send their next request when the last one has ended."
    )
    isl: Tokens = Field(description="Length of the prompts. [tok]")
    osl: Annotated[float, Field(ge=2, le=MAX_TOKENS)] = Field(description="Length of the answers. [tok]")
    tpot_ms: Positive = Field(description="Mean time per output token that was measured. [ms]")


class ArrivalSpread(DocumentModel):
    """Arrivals that are burstier, or more even, than Poisson."""

    cv: Annotated[float, Field(ge=0, le=MAX_CV)] = Field(
        description="Coefficient of variation of the times between arrivals; 1 is Poisson. [1]"
    )


Arrivals = Annotated[
    Annotated[str, Choice(("poisson", TRACE)), Tag("(short)")] | Annotated[ArrivalSpread, Tag("(mapping)")],
    Discriminator(kind_of),
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
    Annotated[Tokens, Tag("(short)")] | Annotated[LengthDocument, Tag("(mapping)")], Discriminator(kind_of)
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
        "prefix_bandwidth": "prefix_load_gb_per_s",
    }

    request_rate: RequestRate | None = Field(default=None, description=RATE_TEXT)
    arrivals: Arrivals | None = Field(
        default=None,
        description=(
            "poisson, {cv: ...}, or trace: the variation of the trace or preset. Default: that too, unless "
            "it is so large that it comes from busy and idle minutes, which are planned as poisson and said."
        ),
    )
    preset: Text | None = Field(
        default=None,
        description="Real traffic with lengths and burstiness: a name, or a file of `planner workload -o`.",
    )
    trace: Text | None = Field(
        default=None,
        description=(
            "Request trace to take rate, lengths and burstiness from: CSV or JSON lines, as `planner "
            "workload` reads them; a path relative to this file."
        ),
    )
    input_tokens: Length | None = Field(
        default=None, description="Prompt length: a number or a distribution; wins over the preset's. [tok]"
    )
    output_tokens: Length | None = Field(
        default=None, description="Output length: a number or a distribution; wins over the preset's. [tok]"
    )
    prefix_cache_hit_rate: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="Share of input tokens found cached on the prefill side. [1]"
    )
    prefix_load_gb_per_s: Positive | None = Field(
        default=None,
        description="Rate at which the KV cache of these comes to a replica from where it is kept (host "
        "memory, SSD, another store), on average over all; left out: it lies in HBM. [GB/s]",
    )
    users: Annotated[
        Any,
        Reserved(f"users are not supported by this version; {_RATE_OF_USERS}"),
    ] = None

    @property
    def busiest_rate(self) -> float | None:
        """The rate, or the largest of a schedule. [req/s]"""
        rate = self.request_rate
        return max(rate_of(entry) for entry in rate) if isinstance(rate, list) else rate


class LatencyLimits(DocumentModel):
    """Bounds on one latency; each must hold."""

    mean: Positive | None = Field(default=None, description="Bound on the mean. [ms]")
    p50: Positive | None = Field(default=None, description="Bound on the median. [ms]")
    p90: Positive | None = Field(default=None, description="Bound on the 90th percentile. [ms]")
    p95: Positive | None = Field(default=None, description="Bound on the 95th percentile. [ms]")
    p99: Positive | None = Field(default=None, description="Bound on the 99th percentile. [ms]")


Limits = Annotated[
    LatencyLimits, refused((int, float), "say which statistic the limit is for", "e.g. {p99: 1000}")
]


class SloDocument(DocumentModel):
    """Service level objectives; at least one bound."""

    synonyms: ClassVar = {"itl_ms": "tpot_ms", "itl": "tpot_ms", "ttft": "ttft_ms", "tpot": "tpot_ms"}

    ttft_ms: Limits | None = Field(default=None, description="Time to first token. [ms]")
    tpot_ms: Limits | None = Field(default=None, description="Mean time per output token of a request. [ms]")
    e2e_ms: Annotated[Any, Reserved("end-to-end SLOs are not supported by this version")] = None
    attainment: Annotated[Any, Reserved("joint attainment is not supported by this version")] = None


class OptionsDocument(DocumentModel):
    """How a plan is searched."""

    synonyms: ClassVar = {"surge": "rolling_upgrade_surge", "max_surge": "rolling_upgrade_surge"}

    colocated: Annotated[str, Choice(tuple(ColocatedUse))] = Field(
        default="allowed", description="Whether replicas that do both phases may, must not, or must serve."
    )
    routing: Annotated[str, Choice((*Routing, LENGTH_SPLIT))] = Field(
        default="least_loaded",
        description="How the front door picks a replica; length_split: by the length of the prompt, among "
        "pools for each bucket of lengths, and the least loaded of a pool.",
    )
    max_length_buckets: Annotated[int, Field(ge=2, le=8)] | None = Field(
        default=None, description="Most buckets of routing length_split; default: 4."
    )
    min_replicas_per_pool: Annotated[int, Field(ge=1, le=MAX_GPUS)] = Field(
        default=1, description="Replicas that a pool in use has at least."
    )
    spare_replicas: Annotated[int, Field(ge=0, le=MAX_GPUS)] = Field(
        default=0, description="Replicas of each pool that may fail while the rest still meets the SLOs."
    )
    spare_scope: Annotated[str, Choice(tuple(SpareScope))] = Field(
        default="group",
        description="What spare_replicas counts: group: so many of every group may fail at once; pool: so "
        "many of any one group.",
    )
    survive: list[Annotated[str, Choice((SURVIVE_NODE, SURVIVE_ZONE))]] = Field(
        default=[],
        description="What may fail as a whole while the rest still meets the SLOs: node, zone, or both.",
    )
    rolling_upgrade_surge: Annotated[int, Field(ge=0, le=MAX_GPUS)] = Field(
        default=0, description="Replicas of each group that there is room to start before old ones stop."
    )
    on_demand_floor: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="Share of the demand that each pool carries without its spot GPUs. [1]"
    )
    spot_recovery_minutes: Annotated[float, Field(ge=0, le=10_000)] = Field(
        default=0.0, description="From the loss of a spot replica until another serves. [min]"
    )
    whole_nodes: bool = Field(default=True, description="Whether nodes are paid for whole.")
    headroom: Annotated[float, Field(ge=0, le=10)] = Field(
        default=0.0, description="Traffic to be ready for beyond request_rate, as a share of it. [1]"
    )
    confidence: Confidence = Field(
        default=0.8, description="Probability that the plan holds, given what the model may be wrong by. [1]"
    )
    max_tp: Parallel | None = Field(default=None, description="Largest tensor parallel size.")
    max_pp: Parallel = Field(default=4, description="Largest pipeline parallel size.")
    max_nodes_per_replica: Annotated[int, Field(ge=1, le=MAX_NODES)] = Field(
        default=1, description="Most whole nodes that one replica may lie on; beyond one they need RDMA."
    )
    cross_vendor: bool = Field(
        default=False,
        description="Experimental, for vLLM: prefill may hand over to decode on GPUs of another vendor; KV "
        "caches of a fleet of several then take host memory and TCP.",
    )
    allowed_tp: Annotated[list[Parallel], Field(min_length=1)] | None = Field(
        default=None, description="Tensor parallel sizes to choose from, e.g. [1, 2, 4]; default: all."
    )


ModelSource = Annotated[
    Annotated[Text, Tag("(short)")] | Annotated[dict[str, Any], Tag("(mapping)")], Discriminator(kind_of)
]


DEMAND_SYNONYMS = {
    "model_path": "model",
    "backend": "engine",
    "sla": "slo",
    "slos": "slo",
    "traffic": "workload",
    "speculative_config": "speculative",
    "speculative_decoding": "speculative",
    "speculation": "speculative",
    "measurement": "measured",
    "measured_point": "measured",
    "anchor": "measured",
    "engine_file": "engine_profile",
    "calibration": "engine_profile",
}


_MODEL = (
    "Catalogue name, path to a Hugging Face config.json or model directory, or the keys of a config.json "
    "themselves."
)
_TRAFFIC = "Traffic."
_SLO = "Service level objectives."
_SPECULATIVE = "What a draft does; left out: each step makes one token of a sequence."
_PROFILE = (
    "File of `planner calibrate engine`, relative to this file: its constants take the place of the engine's."
)
_MEASURED = (
    "One measured point of the model on its engine, which removes the bias that predictions of it share: "
    "kernels of all replicas are as fast as it says."
)


class ServedDocument(DocumentModel):
    """What is to be served, where a file may also say it elsewhere."""

    model: ModelSource | None = Field(default=None, description=_MODEL)
    precision: PrecisionDocument = Field(default=PrecisionDocument(), description="Number formats.")
    engine: Annotated[str, Choice(engine_names())] = Field(
        default=DEFAULT_ENGINE, description="Serving engine."
    )
    engine_profile: Text | None = Field(default=None, description=_PROFILE)
    speculative: SpeculativeDocument | None = Field(default=None, description=_SPECULATIVE)
    measured: MeasuredDocument | None = Field(default=None, description=_MEASURED)
    workload: WorkloadDocument | None = Field(default=None, description=_TRAFFIC)
    slo: SloDocument | None = Field(default=None, description=_SLO)


class DemandDocument(ServedDocument):
    """What is to be served: the keys that the files of scenarios and fleets share."""

    model: ModelSource = Field(description=_MODEL)
    workload: WorkloadDocument = Field(description=_TRAFFIC)
    slo: SloDocument = Field(description=_SLO)


class ServedModelDocument(DemandDocument):
    """One of several models that share a fleet."""

    synonyms: ClassVar = {**DEMAND_SYNONYMS, "label": "name", "service": "name"}

    name: Label | None = Field(
        default=None, description="What the plan calls it; default: the last part of the model's name."
    )


class ScenarioDocument(ServedDocument):
    """A question to the planner: model, traffic, SLOs, and the GPUs to choose from."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": [*DEMAND_KEYS], "properties": {"models": False}},
                {"required": ["models"], "properties": dict.fromkeys(SERVED_KEYS, False)},
            ]
        }
    )
    empty_values = False  # an empty max_gpus must not pass for "unlimited"
    synonyms: ClassVar = {
        **DEMAND_SYNONYMS,
        "gpus": "fleet",
        "inventory": "fleet",
        "hardware": "fleet",
        "budget": "budget_per_hour",
        "constraints": "options",
        "services": "models",
        "schedule": "periods",
        "regions": "zones",
        "electricity": "power",
        "egress": "egress_per_gb",
    }

    models: Annotated[list[ServedModelDocument], Field(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="Several models that share the fleet, each with traffic and SLOs of its own; instead of "
        "model, precision, engine, engine_profile, speculative, measured, workload and slo.",
    )
    periods: PeriodsDocument | None = Field(
        default=None, description="How the fleet follows a schedule of rates."
    )
    fleet: list[FleetItemDocument] = Field(
        description="GPU types to choose from, each once in a zone and price class.",
        json_schema_extra={"minItems": 1},
    )
    zones: Annotated[dict[Label, ZoneDocument], Field(min_length=1)] | None = Field(
        default=None, description="Zones of the fleet that have a limit, by name."
    )
    egress_per_gb: Money | None = Field(
        default=None,
        description="Of KV caches sent from one zone to another; left out: prefill and decode stay in one "
        "zone. [USD/GB]",
    )
    power: PowerDocument | None = Field(default=None, description="Electricity, where it is paid for apart.")
    objective: Annotated[str, Choice(tuple(Objective))] = Field(
        default="cost", description="What is made small; throughput: the rate, made large."
    )
    budget_per_hour: Positive | None = Field(default=None, description="Most that a plan may cost. [USD/h]")
    options: OptionsDocument = Field(default=OptionsDocument(), description="How a plan is searched.")
    owned: Annotated[
        Any, Reserved("is a key of the fleet's lines: write owned: true beside the GPUs that are paid for")
    ] = None

    @property
    def demands(self) -> tuple[DemandDocument, ...]:
        """What each service asks for, whether there are several or one; empty where nothing is said."""
        if self.models is not None:
            return tuple(self.models)
        if self.model is None or self.workload is None or self.slo is None:
            return ()
        own = {key: getattr(self, key) for key in SERVED_KEYS}
        return (DemandDocument.model_construct(**own),)

    @classmethod
    def check(cls, tree: Tree) -> list[Problem]:
        several = len(tree.entries("models")) > 1  # what is made large is then their common factor
        rate_needed = several or tree.get("objective") != Objective.THROUGHPUT
        demands = [
            problem
            for demand in demand_trees(tree)
            for problem in (
                *check_workload(demand, rate_needed),
                *check_rates(demand),
                *check_slo(demand),
                *check_speculative(demand),
            )
        ]
        return [*check_models(tree), *demands, *check_fleet(tree), *check_supply(tree), *check_options(tree)]
