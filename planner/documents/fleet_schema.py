"""The schema of the fleet file: every key with its kind, unit, default and description, and the rules that
span several keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from planner.documents.plan_schema import Count, PlanPrecisionDocument, Size
from planner.documents.scenario_rules import check_slo, check_speculative, check_workload, repeated
from planner.documents.scenario_schema import (
    CHECKPOINT,
    DEMAND_SYNONYMS,
    MAX_TOKENS,
    Confidence,
    DemandDocument,
    FixedKvDtype,
    FixedWeightDtype,
    Parallel,
    PrecisionDocument,
    RoutingName,
    WorkloadDocument,
)
from planner.documents.schedule_schema import Rate
from planner.documents.schema_base import DocumentModel, Positive, Text, refused
from planner.documents.tree import KeyPath, Tree
from planner.errors import Problem
from planner.specs import Phase

MAX_GROUPS = 256
MAX_REPLICAS = 10_000
MAX_SEQUENCES = 100_000
LAYOUT_KEYS = ("tp", "pp", "ep", "dp")

_AT_THE_TOP = "routing and confidence stand at the top of a fleet file"
_BY_SIZES = "write tp, pp, ep and dp, or parallelism"
_ONE_RATE = "groups share workload.request_rate by their replicas"
_RESULT = "What a plan says of its group: accepted and ignored."

Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
PlanResult = Annotated[Any, Field(description=_RESULT)]

# --------------------------------------------------------------------------------------------
# The schema


class FleetPrecisionDocument(PrecisionDocument):
    """Number formats of groups that do not give their own."""

    weights: FixedWeightDtype = Field(
        default=CHECKPOINT, description="Format of the weights; checkpoint: as the model was published."
    )
    kv_cache: FixedKvDtype = Field(
        default=CHECKPOINT,
        description="Format of the KV cache; checkpoint: the model's 16-bit format, whatever its weights.",
    )


class LayoutDocument(DocumentModel):
    """How one replica is spread over its GPUs, as a plan writes it."""

    tp: Parallel = Field(default=1, description="Tensor parallel size.")
    pp: Parallel = Field(default=1, description="Pipeline parallel size.")
    ep: Parallel = Field(default=1, description="Expert parallel size.")
    dp: Parallel = Field(default=1, description="Attention data parallel size within the replica.")


class PromptRangeDocument(DocumentModel):
    """Prompt lengths that a router by length sends to a group; both ends belong to it."""

    min: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = Field(
        default=None, description="Shortest prompt; default: any. [tok]"
    )
    max: Tokens | None = Field(default=None, description="Longest prompt; default: any. [tok]")


class FleetGroupDocument(DocumentModel):
    """Equal replicas of one phase, as they run or would run. A group of a plan is one, too."""

    synonyms: ClassVar = {
        "type": "gpu",
        "count": "replicas",
        "num_replicas": "replicas",
        "role": "phase",
        "price": "price_per_gpu_hour",
        "gpus_per_node": "node_size",
        "tensor_parallel_size": "tp",
        "pipeline_parallel_size": "pp",
        "data_parallel_size": "dp",
        "tp_size": "tp",
        "isl": "input_tokens",
        "layout": _BY_SIZES,
        "rate": _ONE_RATE,
    }

    name: Text | None = Field(default=None, description="Unique name; default: phase, GPU and layout.")
    phase: Phase = Field(description="What its replicas do.")
    gpu: Text = Field(description="Name of a GPU profile, or path to one relative to this file.")
    tp: Parallel | None = Field(default=None, description="Tensor parallel size; default: 1.")
    pp: Parallel | None = Field(default=None, description="Pipeline parallel size; default: 1.")
    ep: Parallel | None = Field(
        default=None, description="Expert parallel size, 1 or all ranks of tp and dp; default: 1."
    )
    dp: Parallel | None = Field(
        default=None, description="Attention data parallel size within a replica; default: 1."
    )
    parallelism: LayoutDocument | None = Field(
        default=None, description="The four sizes in one key, as a plan has them; instead of tp, pp, ep, dp."
    )
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = Field(description="Number of replicas.")
    network_gbps_per_gpu: Positive | None = Field(
        default=None,
        description="NIC share of one GPU, one direction; default: the profile's. [Gbit/s]",
    )
    rdma: bool = Field(default=True, description="false where the network is plain TCP.")
    same_node: bool = Field(
        default=False,
        description="true where all groups share one node and KV caches take the NVLink within it; the "
        "network does not count then.",
    )
    node_size: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        default=None, description="GPUs of a node; default: the profile's."
    )
    price_per_gpu_hour: Positive | None = Field(
        default=None, description="Price of one GPU; left out: unknown, and no cost is told. [USD/h]"
    )
    max_num_seqs: Annotated[int, Field(ge=1, le=MAX_SEQUENCES)] | None = Field(
        default=None,
        description="Limit of sequences in a step of one replica, over all its dp ranks; default: the "
        "engine's for this GPU and phase.",
    )
    max_num_batched_tokens: Tokens | None = Field(
        default=None, description="Limit of tokens in a step; default: the engine's. [tok]"
    )
    kv_capacity_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="KV cache of one replica, all its dp ranks together, as the engine reports it at its "
        "start; default: what the memory model leaves. [tok]",
    )
    input_tokens: PromptRangeDocument | None = Field(
        default=None,
        description="Prompt lengths that a router by length sends here; default: all. [tok]",
    )
    max_model_len: Size | None = Field(
        default=None, description="Limit of a sequence; default: what the model takes. [tok]"
    )
    precision: PlanPrecisionDocument | None = Field(
        default=None, description="Number formats of this group; default: those of the file."
    )
    num_gpus: Count | None = Field(default=None, description="As a plan repeats it: replicas x tp x pp x dp.")
    zone: Text | None = Field(
        default=None,
        description="Where it runs, as a plan repeats it; transfers are computed as those within one zone.",
    )
    service: PlanResult = None
    price_class: PlanResult = None
    memory_gib: PlanResult = None
    request_rate: PlanResult = None
    capacity_request_rate: PlanResult = None
    utilization: PlanResult = None
    mean_batch: PlanResult = None
    busy: PlanResult = None
    binds: PlanResult = None
    compute_utilization: PlanResult = None
    bandwidth_utilization: PlanResult = None
    network_utilization: PlanResult = None
    cost_per_hour: PlanResult = None
    calibration: PlanResult = None


PLAN_RESULTS = tuple(
    key for key, info in FleetGroupDocument.model_fields.items() if info.description == _RESULT
)
"""Keys of a plan's group that may hold anything, nothing included."""


class FleetWorkloadDocument(WorkloadDocument):
    """Traffic with one rate."""

    request_rate: (
        Annotated[Rate, refused((list, dict), "must be one rate: a fleet file has no schedule", _ONE_RATE)]
        | None
    ) = Field(default=None, description="Arrivals; left out: the largest rate is looked for. [req/s]")


class FleetDocument(DemandDocument):
    """A running or hand-written fleet: its groups, and the model, traffic and SLOs that they serve."""

    empty_values = False  # an empty max_num_seqs must not pass for the engine's
    synonyms: ClassVar = {
        **DEMAND_SYNONYMS,
        "fleet": "groups",
        "pools": "groups",
        "options": _AT_THE_TOP,
    }

    precision: FleetPrecisionDocument = Field(default=FleetPrecisionDocument(), description="Number formats.")
    workload: FleetWorkloadDocument = Field(description="Traffic.")
    routing: RoutingName = Field(default="least_loaded", description="How the front door picks a replica.")
    confidence: Confidence = Field(
        default=0.5,
        description="Probability that what is said holds, given what the model may be wrong by; 0.5: what to "
        "expect. [1]",
    )
    groups: Annotated[list[FleetGroupDocument], Field(max_length=MAX_GROUPS)] = Field(
        description="Prefill and decode groups, or colocated groups.", json_schema_extra={"minItems": 1}
    )

    @classmethod
    def check(cls, tree: Tree) -> list[Problem]:
        demand = [*check_workload(tree, rate_needed=False), *check_slo(tree), *check_speculative(tree)]
        return [*demand, *check_groups(tree)]


# --------------------------------------------------------------------------------------------
# Rules that span several keys


def check_groups(tree: Tree) -> list[Problem]:
    """There is a whole front door, and no group contradicts itself or has the name of another."""
    if tree.get("groups") == []:
        return [tree.problem(("groups",), "the fleet has no group", "list what runs")]
    return [*check_pools(tree, range(len(tree.entries("groups")))), *check_each_group(tree)]


def check_each_group(tree: Tree) -> list[Problem]:
    """No group contradicts itself or has the name of another."""
    problems = list(_check_names(tree))
    for i, group in enumerate(tree.entries("groups")):
        if isinstance(group, dict):
            problems += [*_check_layout(tree, i), *_check_count(tree, i), *_check_range(tree, i)]
    return problems


def check_pools(tree: Tree, members: Sequence[int]) -> Iterator[Problem]:
    """The groups `members` of one front door are prefill and decode, or colocated."""
    phases = [tree.get("groups", i, "phase") for i in members]
    if not phases or any(phase not in tuple(Phase) for phase in phases):
        return  # reported by the schema
    if Phase.COLOCATED in phases:
        if set(phases) != {Phase.COLOCATED}:
            rule = "cannot stand beside prefill and decode groups"
            path = ("groups", members[phases.index(Phase.COLOCATED)], "phase")
            yield tree.problem(path, rule, "a front door has one or the other: evaluate them apart")
        return
    for phase, other in ((Phase.PREFILL, Phase.DECODE), (Phase.DECODE, Phase.PREFILL)):
        if phase not in phases:
            rule = f"there are {other} groups, but no {phase} group"
            whole = len(members) == len(tree.entries("groups"))
            where: KeyPath = ("groups",) if whole else ("groups", members[0])
            yield tree.problem(where, rule, "add one, or make them colocated", show_value=False)


def _check_names(tree: Tree) -> Iterator[Problem]:
    paths: list[KeyPath] = [("groups", i, "name") for i in range(len(tree.entries("groups")))]
    return repeated(tree, paths, "is the name of another group", "give each group its own, or none")


def _check_layout(tree: Tree, i: int) -> Iterator[Problem]:
    if tree.has("groups", i, "parallelism"):
        for key in LAYOUT_KEYS:
            if tree.has("groups", i, key):
                yield tree.problem(("groups", i, key), "is given beside parallelism", "give one of them")


def _check_count(tree: Tree, i: int) -> Iterator[Problem]:
    """GPU counts that were edited still multiply every parallel dimension."""
    path = ("groups", i, "num_gpus")
    sizes = [tree.get(*layout_path(tree, i, key)) for key in ("tp", "pp", "dp")]
    factors = [tree.get("groups", i, "replicas"), *(1 if size is None else size for size in sizes)]
    if tree.get(*path) is None or not all(type(factor) is int for factor in factors):
        return
    expected = math.prod(factors)
    if tree.get(*path) != expected:
        rule = f"must be replicas x tp x pp x dp = {expected}"
        yield tree.problem(path, rule, "or leave it out")


def _check_range(tree: Tree, i: int) -> Iterator[Problem]:
    path = ("groups", i, "input_tokens")
    if tree.get(*path) == {}:
        yield tree.problem(path, "gives no bound", "e.g. {max: 4096}", show_value=False)
    low, high = (tree.get(*path, key) for key in ("min", "max"))
    if type(low) is int and type(high) is int and low > high:
        yield tree.problem((*path, "max"), f"must be >= min, which is {low:,}")


def layout_path(tree: Tree, i: int, key: str) -> KeyPath:
    """Where a group gives one of its parallel sizes."""
    inside: KeyPath = ("groups", i, "parallelism", key)
    return inside if tree.has("groups", i, "parallelism") else ("groups", i, key)
