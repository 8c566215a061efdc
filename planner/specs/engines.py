"""Serving engines at a version."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from planner.specs.kinds import Admission, Dtype, PairCheck, Phase, SchedulerPolicy


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferCosts:
    """What moving a KV cache between replicas costs an engine, beside the bytes.

    Attributes
    ----------
    rdma_efficiency, tcp_efficiency : float
        Share of line rate reached. [1]
    peer_efficiency : float
        Share of the link between two GPUs of a node that is reached. [1]
    peer_links : tuple of str
        Kinds of links within a node over which the connector moves KV caches at all.
    fixed : float
        Per request: handshake and scheduling. [s]
    per_block : float
        Per KV block descriptor. [s]
    overlap : float
        Share of the transfer hidden behind the rest of the prefill. [1]
    """

    rdma_efficiency: float
    tcp_efficiency: float
    peer_efficiency: float
    peer_links: tuple[str, ...]
    fixed: float
    per_block: float
    overlap: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryTier:
    """Limits that an engine starts with on GPUs of less memory than `below` [B].

    `max_num_seqs` sequences in a step; `prefill_token_budget` tokens in a step. [tok]
    """

    below: float
    max_num_seqs: int
    prefill_token_budget: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReserve:
    """What an engine sets aside on each GPU for its steps, by a rule of thumb instead of a measurement.

    Attributes
    ----------
    fixed : float
        For metadata and captured graphs. [B]
    per_token : float
        Per token of the largest step. [B/tok]
    per_gpu : float
        Per GPU of the replica. [B]
    least : float
        At least this much on GPUs with more memory than `least_above`. [B]
    """

    fixed: float
    per_token: float
    per_gpu: float
    least: float
    least_above: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PairRule:
    """A condition on prefill and decode replicas that one version of an engine sets, and who says so."""

    check: PairCheck
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """A serving engine at one version: overheads, scheduler, memory reserves.

    Attributes
    ----------
    step_overhead, sequence_overhead : float
        Host time of a step, and per sequence of a step. [s]
    decode_scale, prefill_scale : float
        Multipliers on kernel time of decode steps and prompts. [1]
    memory_utilization : float
        Share of a GPU's memory that the engine takes.
    free_share : float
        Share of what weights, activations and reserves leave of it that becomes KV cache. [1]
    step_reserve : StepReserve or None
        Where the engine sets memory for its steps aside by a rule; None where it measures a step.
    non_torch_single, non_torch_parallel : float
        Memory outside the allocator (context, NCCL buffers) at TP 1 and above. [B]
    logits_bytes_per_entry : float
        Peak sampler memory per sequence and vocabulary entry. [B]
    admission : Admission
        What a request asks of the KV cache before it starts. The capacity model counts whole lengths,
        prompt and output, for every engine (``Traffic.reserved``), so that a plan's KV caches hold what
        is under way without preemption; the simulator starts prompts and grows sequences block by
        block, as paged engines do.
    max_num_seqs : int
        Default limit of sequences in a step.
    memory_tiers : tuple of MemoryTier
        Other defaults on GPUs with less memory, ascending.
    token_budgets : tuple of int
        Values of max_num_batched_tokens worth trying for colocated replicas. [tok]
    prefill_token_budget : int
        max_num_batched_tokens of a prefill replica. [tok]
    graph_batch_sizes : tuple of int
        Captured decode batch sizes, ascending; a step is padded to the next, and runs without a
        graph beyond the last.
    eager_overhead : float
        Extra host time per layer of a step without a graph. [s]
    block_size : int
        Tokens of a KV block.
    first_token_phase : Phase
        Which side emits the first token under disaggregation.
    architectures : tuple of str
        GPUs that the engine runs on.
    weight_only_dtypes : tuple of Dtype
        Weight formats that run with 16-bit arithmetic where a GPU has no such tensor cores.
    load_time_dtypes : tuple of Dtype
        Formats that the engine makes of 16-bit weights as it loads them, without a checkpoint of its own.
    fp8_kv_architectures, fp8_latent_architectures : tuple of str
        GPUs on which the engine keeps an fp8 KV cache, of keys and values and of latents.
    pair_rules : tuple of PairRule
        Conditions on prefill and decode replicas that exchange KV caches.
    prefix_bandwidth : float
        Rate at which the KV cache of a found prefix comes to a replica; infinite where it lies in HBM. [B/s]
    model_factors : tuple of (str, float)
        Factor on all kernels of a model that was measured on this engine, by :attr:`Model.shape`. [1]
    log_sd : float
        Spread of the end-to-end error of steps with these constants, of a model with a factor; that of the
        kernels comes on top. Natural logarithm. [1]
    family_log_sd : float
        Spread between models, which counts for one without a factor. [1]
    fitted : bool
        Whether the constants were fitted to measured rows.
    """

    name: str
    version: str
    scheduler: SchedulerPolicy
    admission: Admission
    step_overhead: float
    sequence_overhead: float
    decode_scale: float
    prefill_scale: float
    memory_utilization: float
    free_share: float
    step_reserve: StepReserve | None
    non_torch_single: float
    non_torch_parallel: float
    logits_bytes_per_entry: float
    max_num_seqs: int
    memory_tiers: tuple[MemoryTier, ...]
    token_budgets: tuple[int, ...]
    prefill_token_budget: int
    graph_batch_sizes: tuple[int, ...]
    eager_overhead: float
    block_size: int
    first_token_phase: Phase
    architectures: tuple[str, ...]
    weight_only_dtypes: tuple[Dtype, ...]
    load_time_dtypes: tuple[Dtype, ...]
    fp8_kv_architectures: tuple[str, ...]
    fp8_latent_architectures: tuple[str, ...]
    transfer: TransferCosts
    connector: str
    pair_rules: tuple[PairRule, ...]
    log_sd: float
    prefix_bandwidth: float = math.inf
    model_factors: tuple[tuple[str, float], ...] = ()
    family_log_sd: float = 0.0
    fitted: bool = False
    provenance: str = ""

    def factor(self, shape: str) -> float | None:
        """Factor on kernels of a model of this shape; None where nobody measured it."""
        return next((factor for known, factor in self.model_factors if known == shape), None)

    def with_factor(self, shape: str, factor: float) -> Engine:
        """This engine with another factor for a model."""
        others = tuple(pair for pair in self.model_factors if pair[0] != shape)
        return replace(self, model_factors=(*others, (shape, factor)))
