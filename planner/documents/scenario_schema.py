"""The schema of the scenario file: every key with its kind, unit, default and description."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Discriminator, Field, Tag

from planner.documents.scenario_rules import check_fleet, check_slo, check_workload
from planner.documents.schema_base import Choice, DocumentModel, Positive, Reserved, Text, rule_error
from planner.documents.tree import Tree
from planner.errors import Problem
from planner.specs import ColocatedUse, Dtype, Objective, Routing

MAX_TOKENS = 10_000_000
MAX_GPUS = 10_000_000
MAX_HISTOGRAM = 30_000
MAX_PARALLEL = 1024
MAX_CV = 100
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
GpuCount = Annotated[int, Field(ge=0, le=MAX_GPUS)]
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


class ArrivalSpread(DocumentModel):
    """Arrivals that are burstier, or more even, than Poisson."""

    cv: Annotated[float, Field(ge=0, le=MAX_CV)] = Field(
        description="Coefficient of variation of the times between arrivals; 1 is Poisson. [1]"
    )


Arrivals = Annotated[
    Annotated[str, Choice(("poisson", TRACE)), Tag("(short)")] | Annotated[ArrivalSpread, Tag("(mapping)")],
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
            Annotated[float, Field(ge=1e-6, le=1e9)],
            _refuse((list, dict), "a schedule of rates is not supported by this version", "give one number"),
        ]
        | None
    ) = Field(
        default=None,
        description=(
            "Arrivals; may be left out with a trace or a preset (its own rate), and where the largest rate "
            "is looked for: objective throughput, and fleet files. [req/s]"
        ),
    )
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
        "instance_type": "instance",
    }

    gpu: Text | None = Field(
        default=None,
        description="Name of a GPU profile, or path to one relative to this file; default: the instance's.",
    )
    instance: Text | None = Field(
        default=None,
        description="A cloud's server, e.g. aws/p5.48xlarge (see `planner gpus prices`): gives GPU, price on "
        "demand, node size and network, each of which a key of this item replaces.",
    )
    price_per_gpu_hour: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="Price of one GPU, needed where cost or a budget counts; default: the instance's. "
        "[USD/h]",
    )
    max_gpus: GpuCount | None = Field(
        default=None, description="GPUs that can be had; 0: none; left out: unlimited."
    )
    node_size: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="GPUs of a node; default: the instance's, else the profile's."
    )
    network_gbps_per_gpu: Positive | None = Field(
        default=None,
        description="NIC share of one GPU, one direction; default: the instance's, else the profile's. "
        "[Gbit/s]",
    )
    rdma: bool = Field(
        default=True,
        description="false where the network is plain TCP; default: as the instance's, else true.",
    )
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
    routing: RoutingName = Field(default="least_loaded", description="How the front door picks a replica.")
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
    confidence: Confidence = Field(
        default=0.8, description="Probability that the plan holds, given what the model may be wrong by. [1]"
    )
    max_tp: Parallel | None = Field(default=None, description="Largest tensor parallel size.")
    max_pp: Parallel = Field(default=4, description="Largest pipeline parallel size, within a node.")
    allowed_tp: Annotated[list[Parallel], Field(min_length=1)] | None = Field(
        default=None, description="Tensor parallel sizes to choose from, e.g. [1, 2, 4]; default: all."
    )


ModelSource = Annotated[
    Annotated[Text, Tag("(short)")] | Annotated[dict[str, Any], Tag("(mapping)")], Discriminator(_kind)
]


DEMAND_SYNONYMS = {
    "model_path": "model",
    "backend": "engine",
    "sla": "slo",
    "slos": "slo",
    "traffic": "workload",
}


class DemandDocument(DocumentModel):
    """What is to be served: the keys that the files of scenarios and fleets share."""

    model: ModelSource = Field(
        description="Catalogue name, path to a Hugging Face config.json or model directory, or the keys of a "
        "config.json themselves."
    )
    precision: PrecisionDocument = Field(default=PrecisionDocument(), description="Number formats.")
    engine: Annotated[str, Choice(("vllm",), reserved=("sglang", "trtllm"))] = Field(
        default="vllm", description="Serving engine."
    )
    workload: WorkloadDocument = Field(description="Traffic.")
    slo: SloDocument = Field(description="Service level objectives.")


class ScenarioDocument(DemandDocument):
    """A question to the planner: model, traffic, SLOs, and the GPUs to choose from."""

    empty_values = False  # an empty max_gpus must not pass for "unlimited"
    synonyms: ClassVar = {
        **DEMAND_SYNONYMS,
        "gpus": "fleet",
        "inventory": "fleet",
        "hardware": "fleet",
        "budget": "budget_per_hour",
        "constraints": "options",
    }

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
        rate_needed = tree.get("objective") != Objective.THROUGHPUT
        return [*check_workload(tree, rate_needed), *check_slo(tree), *check_fleet(tree)]
