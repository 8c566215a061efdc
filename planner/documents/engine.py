"""The file of one serving engine at one version: overheads, scheduler, memory reserves."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import Field

from planner.documents.schema_base import DocumentModel, Fraction, NonNegative, Positive, PositiveInt, Text
from planner.documents.source import load_document
from planner.documents.sourced import Sourced
from planner.documents.tree import Tree
from planner.errors import Problem
from planner.specs import (
    Admission,
    Dtype,
    Engine,
    MemoryTier,
    PairCheck,
    PairRule,
    Phase,
    SchedulerPolicy,
    StepReserve,
    TransferCosts,
)
from planner.units import GIB, MIB, MICRO, MILLI

Sizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
Architectures = Annotated[tuple[Text, ...], Field(min_length=1)]


class TierDocument(DocumentModel):
    """Limits on GPUs with less memory."""

    below_gib: Positive = Field(description="GPUs with less memory than this. [GiB]")
    max_num_seqs: PositiveInt = Field(description="Sequences in a step, by default.")
    prefill_token_budget: PositiveInt = Field(description="Tokens in a step of a prefill replica. [tok]")


class SchedulerSection(DocumentModel):
    """How the engine forms its steps."""

    policy: Sourced[SchedulerPolicy] = Field(description="chunked_prefill or prefill_first.")
    admission: Sourced[Admission] = Field(
        description="What a request asks of the KV cache before it starts: paged, blocks for its prompt; "
        "reserve, for its prompt and its longest output."
    )
    max_num_seqs: Sourced[PositiveInt] = Field(description="Sequences in a step, by default.")
    token_budgets: Sourced[Sizes] = Field(
        description="Limits on the tokens of a step worth trying for colocated replicas. [tok]"
    )
    prefill_token_budget: Sourced[PositiveInt] = Field(description="That of a prefill replica. [tok]")
    memory_tiers: Sourced[tuple[TierDocument, ...]] = Field(
        description="Other defaults on GPUs with less memory, ascending; the first that fits counts."
    )
    block_size: Sourced[PositiveInt] = Field(description="Tokens of a KV block. [tok]")
    graph_batch_sizes: Sourced[Sizes] = Field(description="Captured decode batch sizes, ascending.")


class OverheadSection(DocumentModel):
    """Time that is not in the kernels' own."""

    step_ms: Sourced[NonNegative] = Field(description="Host time of a step. [ms]")
    sequence_us: Sourced[NonNegative] = Field(description="Host time per sequence of a step. [us]")
    eager_us_per_layer: Sourced[NonNegative] = Field(
        description="Added per layer where a step runs without a graph. [us]"
    )
    decode_scale: Sourced[Positive] = Field(description="Multiplier on kernel time of decode steps.")
    prefill_scale: Sourced[Positive] = Field(description="Multiplier on kernel time of prompts.")


class StepReserveSection(DocumentModel):
    """What the engine sets aside for its steps by a rule of thumb."""

    fixed_mib: Sourced[NonNegative] = Field(description="For metadata and captured graphs. [MiB]")
    per_token_mib: Sourced[NonNegative] = Field(description="Per token of the largest step. [MiB]")
    per_gpu_mib: Sourced[NonNegative] = Field(description="Per GPU of the replica. [MiB]")
    least_gib: Sourced[NonNegative] = Field(description="At least this much on large GPUs. [GiB]")
    least_above_gib: Sourced[NonNegative] = Field(description="Memory of GPUs that are large. [GiB]")


class MemorySection(DocumentModel):
    """What the engine takes and reserves on each GPU."""

    utilization: Sourced[Fraction] = Field(description="Share of the GPU's memory that the engine takes.")
    free_share: Sourced[Fraction] = Field(
        description="Share of what weights, activations and reserves leave of it that becomes KV cache."
    )
    step_reserve: StepReserveSection | None = Field(
        default=None,
        description="Memory for steps, where the engine does not measure one but follows a rule.",
    )
    non_torch_single_gib: Sourced[NonNegative] = Field(description="Outside the allocator at TP 1. [GiB]")
    non_torch_parallel_gib: Sourced[NonNegative] = Field(description="The same at TP 2 and above. [GiB]")
    logits_bytes_per_entry: Sourced[NonNegative] = Field(
        description="Peak of the sampler per sequence and vocabulary entry. [B]"
    )


class TransferSection(DocumentModel):
    """Moving a KV cache between replicas."""

    connector: Sourced[Text] = Field(description="The engine's name of the connector.")
    first_token_phase: Sourced[Phase] = Field(description="Which side emits the first token.")
    rdma_efficiency: Sourced[Fraction] = Field(description="Share of line rate reached with RDMA.")
    tcp_efficiency: Sourced[Fraction] = Field(description="Share of line rate reached with TCP.")
    peer_efficiency: Sourced[Fraction] = Field(
        description="Share of the link between two GPUs of one node that is reached."
    )
    peer_links: Sourced[tuple[Text, ...]] = Field(
        description="Kinds of links within a node that carry KV caches; over others they take the network."
    )
    fixed_ms: Sourced[NonNegative] = Field(description="Per request. [ms]")
    per_block_us: Sourced[NonNegative] = Field(description="Per block descriptor. [us]")
    overlap: Sourced[Annotated[float, Field(ge=0, le=1)]] = Field(
        description="Share of a transfer hidden behind the rest of the prefill."
    )


class EngineDocument(DocumentModel):
    """A serving engine: what it adds to the kernels' time and takes from the memory."""

    name: Text = Field(description="Name that scenarios use, equal to the file's stem.")
    version: Text = Field(description="Version that the figures are for.")
    architectures: Sourced[Architectures] = Field(description="Architectures of GPUs that it runs on.")
    weight_only_dtypes: Sourced[tuple[Dtype, ...]] = Field(
        description="Weight formats that run with 16-bit arithmetic where a GPU lacks their tensor cores."
    )
    load_time_dtypes: Sourced[tuple[Dtype, ...]] = Field(
        description="Formats that the engine makes of 16-bit weights as it loads them."
    )
    fp8_kv_architectures: Sourced[tuple[Text, ...]] = Field(
        description="Architectures of GPUs on which the engine keeps an fp8 cache of keys and values."
    )
    fp8_latent_architectures: Sourced[tuple[Text, ...]] = Field(
        description="The same of latents (multi-head latent attention)."
    )
    scheduler: SchedulerSection = Field(description="How the engine forms its steps.")
    overheads: OverheadSection = Field(description="Time that is not in the kernels' own.")
    memory: MemorySection = Field(description="What the engine takes and reserves on each GPU.")
    transfer: TransferSection = Field(description="Moving a KV cache between replicas.")
    pair_rules: tuple[Sourced[PairCheck], ...] = Field(
        description="Conditions on prefill and decode replicas that exchange KV caches, in the order checked."
    )
    log_sd: Sourced[Positive] = Field(
        description="Spread of the end-to-end model error with these constants, in natural log."
    )

    @classmethod
    def check(cls, tree: Tree) -> list[Problem]:
        """Lists of sizes ascend."""
        tiers = tree.entries("scheduler", "memory_tiers", "value")
        below = [tier.get("below_gib") for tier in tiers if isinstance(tier, dict)]
        lists = {key: tree.get("scheduler", key, "value") for key in ("token_budgets", "graph_batch_sizes")}
        return [
            tree.problem(("scheduler", key, "value"), "must ascend", show_value=False)
            for key, values in (*lists.items(), ("memory_tiers", below))
            if not _ascends(values)
        ]


def _ascends(values: object) -> bool:
    if not isinstance(values, list) or not all(isinstance(v, int | float) for v in values):
        return True  # the schema says what is wrong with it
    return all(a < b for a, b in pairwise(values))


def load_engine_file(path: str | Path) -> Engine:
    """Read an engine file.

    Raises
    ------
    SpecError
        With every problem of the file.
    """
    return engine_from_document(load_document(path, EngineDocument).model)


def engine_from_document(document: EngineDocument) -> Engine:
    """The engine in SI units."""
    scheduler, overheads, memory = document.scheduler, document.overheads, document.memory
    return Engine(
        name=document.name,
        version=document.version,
        scheduler=scheduler.policy.value,
        admission=scheduler.admission.value,
        step_overhead=overheads.step_ms.value * MILLI,
        sequence_overhead=overheads.sequence_us.value * MICRO,
        decode_scale=overheads.decode_scale.value,
        prefill_scale=overheads.prefill_scale.value,
        memory_utilization=memory.utilization.value,
        free_share=memory.free_share.value,
        step_reserve=_step_reserve(memory.step_reserve),
        non_torch_single=memory.non_torch_single_gib.value * GIB,
        non_torch_parallel=memory.non_torch_parallel_gib.value * GIB,
        logits_bytes_per_entry=memory.logits_bytes_per_entry.value,
        max_num_seqs=scheduler.max_num_seqs.value,
        memory_tiers=tuple(
            MemoryTier(
                below=tier.below_gib * GIB,
                max_num_seqs=tier.max_num_seqs,
                prefill_token_budget=tier.prefill_token_budget,
            )
            for tier in scheduler.memory_tiers.value
        ),
        token_budgets=scheduler.token_budgets.value,
        prefill_token_budget=scheduler.prefill_token_budget.value,
        graph_batch_sizes=scheduler.graph_batch_sizes.value,
        eager_overhead=overheads.eager_us_per_layer.value * MICRO,
        block_size=scheduler.block_size.value,
        first_token_phase=document.transfer.first_token_phase.value,
        architectures=document.architectures.value,
        weight_only_dtypes=document.weight_only_dtypes.value,
        load_time_dtypes=document.load_time_dtypes.value,
        fp8_kv_architectures=document.fp8_kv_architectures.value,
        fp8_latent_architectures=document.fp8_latent_architectures.value,
        transfer=_transfer(document.transfer),
        connector=document.transfer.connector.value,
        pair_rules=tuple(PairRule(check=rule.value, source=rule.source) for rule in document.pair_rules),
        log_sd=document.log_sd.value,
        provenance=f"{document.name} {document.version}: {document.log_sd.source}",
    )


def _step_reserve(section: StepReserveSection | None) -> StepReserve | None:
    if section is None:
        return None
    return StepReserve(
        fixed=section.fixed_mib.value * MIB,
        per_token=section.per_token_mib.value * MIB,
        per_gpu=section.per_gpu_mib.value * MIB,
        least=section.least_gib.value * GIB,
        least_above=section.least_above_gib.value * GIB,
    )


def _transfer(section: TransferSection) -> TransferCosts:
    return TransferCosts(
        rdma_efficiency=section.rdma_efficiency.value,
        tcp_efficiency=section.tcp_efficiency.value,
        peer_efficiency=section.peer_efficiency.value,
        peer_links=section.peer_links.value,
        fixed=section.fixed_ms.value * MILLI,
        per_block=section.per_block_us.value * MICRO,
        overlap=section.overlap.value,
    )
