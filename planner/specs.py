"""What a planner is asked: models, GPUs, traffic, objectives. Frozen, in SI units.

Every number is in a base unit: s, B, FLOP, FLOP/s, B/s, tok, req/s, W; money is USD/h. Files are
read into these types by :mod:`planner.documents`, the only place that converts units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from planner.errors import SpecError
from planner.units import MILLI


class Phase(StrEnum):
    """What a replica does. Colocated replicas run prefill and decode of the same request."""

    PREFILL = "prefill"
    DECODE = "decode"
    COLOCATED = "colocated"


class Dtype(StrEnum):
    """A number format of weights, activations or KV cache."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    FP8_BLOCK = "fp8_block"
    INT8 = "int8"
    NVFP4 = "nvfp4"
    MXFP4 = "mxfp4"
    INT4 = "int4"

    @property
    def bytes(self) -> float:
        """Storage of one element, block scales included. [B]"""
        return _DTYPE_BYTES[self]

    @property
    def is_16_bit(self) -> bool:
        return self in (Dtype.BF16, Dtype.FP16)


_DTYPE_BYTES = {
    Dtype.FP32: 4.0,
    Dtype.BF16: 2.0,
    Dtype.FP16: 2.0,
    Dtype.FP8: 1.0,
    Dtype.FP8_BLOCK: 1.0 + 4 / 128**2,  # one fp32 scale per 128 x 128 block
    Dtype.INT8: 1.0,
    Dtype.NVFP4: 0.5 + 1 / 16,  # one fp8 scale per 16 elements
    Dtype.MXFP4: 0.5 + 1 / 32,  # one 8-bit exponent per 32 elements
    Dtype.INT4: 0.5 + 4 / 128,  # fp16 scale and zero point per group of 128
}


class Metric(StrEnum):
    """A latency of one request."""

    TTFT = "ttft"
    TPOT = "tpot"
    E2E = "e2e"


class Statistic(StrEnum):
    """What of a latency's distribution an SLO bounds."""

    MEAN = "mean"
    P50 = "p50"
    P90 = "p90"
    P95 = "p95"
    P99 = "p99"

    @property
    def probability(self) -> float | None:
        """The quantile's probability; None for the mean."""
        return None if self is Statistic.MEAN else int(self.value[1:]) / 100


class Objective(StrEnum):
    """What a plan makes small (or, throughput, large)."""

    COST = "cost"
    GPUS = "gpus"
    POWER = "power"
    THROUGHPUT = "throughput"


class Routing(StrEnum):
    """How the front door picks a replica; decides how far the queues of a pool act as one."""

    LEAST_LOADED = "least_loaded"
    POWER_OF_TWO = "power_of_two"
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"


class ColocatedUse(StrEnum):
    """Whether colocated replicas may, may not, or must serve."""

    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"
    ONLY = "only"


class SchedulerPolicy(StrEnum):
    """How a colocated engine mixes prompts into its steps."""

    CHUNKED_PREFILL = "chunked_prefill"
    PREFILL_FIRST = "prefill_first"


class CalibrationStatus(StrEnum):
    """Where the efficiencies of a GPU profile come from."""

    MEASURED = "measured"
    FITTED = "fitted"
    ESTIMATED = "estimated"


def _require_positive(owner: str, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise SpecError(f"{owner}: {name} must be a finite number > 0, got {value!r}")


# --------------------------------------------------------------------------------------------
# Models


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    """Grouped-query attention of one layer (multi-head when ``kv_heads == heads``).

    Attributes
    ----------
    head_dim : int
        Independent of ``hidden / heads``.
    bias, output_bias : bool
        Of the query, key and value projections; of the output projection.
    window : int or None
        Sliding window, or length of an attention chunk; None for full attention. [tok]
    gated : bool
        The query projection also makes a gate of the output's width.
    sinks : bool
        One learned logit per head.
    owns_kv : bool
        False where the layer reads the cache of an earlier one: it projects and keeps no keys and values.
    values_are_keys : bool
        One projection serves as keys and values; the cache keeps both.
    """

    heads: int
    kv_heads: int
    head_dim: int
    bias: bool = False
    qk_norm: bool = False
    window: int | None = None
    output_bias: bool = False
    gated: bool = False
    sinks: bool = False
    owns_kv: bool = True
    values_are_keys: bool = False

    def __post_init__(self) -> None:
        _require_positive("attention", heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim)
        if self.heads % self.kv_heads:
            raise SpecError(f"attention: {self.heads} heads are no multiple of {self.kv_heads} KV heads")


@dataclass(frozen=True, kw_only=True, slots=True)
class Indexer:
    """Picks the tokens that sparse attention reads; keeps one key per token beside the KV cache.

    ``top_k`` [tok] bounds the context that attention reads.
    """

    heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one latent and one rotary key per token for all heads.

    ``query_rank`` is None where queries are projected directly.
    """

    heads: int
    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    indexer: Indexer | None = None

    def __post_init__(self) -> None:
        _require_positive(
            "latent attention",
            heads=self.heads,
            query_rank=self.query_rank,
            kv_rank=self.kv_rank,
            nope_dim=self.nope_dim,
            value_dim=self.value_dim,
        )

    @property
    def query_dim(self) -> int:
        """Width of one query head."""
        return self.nope_dim + self.rope_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class StateMixer:
    """Linear attention or a state-space layer: a constant state per sequence instead of a KV cache.

    Attributes
    ----------
    kind : str
        "gated_delta_net", "mamba2", "lightning", "kda", ...
    heads, groups : int
        Heads of the state, and groups (key heads) that share their inputs; tensor parallelism cuts both.
    input_width, output_width : int
        Columns of the input projections together, rows of the output projection.
    conv_channels, conv_kernel : int
        Short convolution; its window is part of the state.
    state_elements : int
        Elements of the recurrent state. [1]
    vector_parameters : int
        Parameters beside projections and convolution.
    state_dtype : Dtype
        Of the recurrent state; the convolution's window has 16 bits.
    """

    kind: str
    heads: int
    groups: int
    input_width: int
    output_width: int
    conv_channels: int
    conv_kernel: int
    state_elements: int
    vector_parameters: int = 0
    state_dtype: Dtype = Dtype.FP32


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedForward:
    """Dense feed-forward block; ``gated`` has three matrices (SwiGLU), otherwise two."""

    intermediate: int
    gated: bool = True
    bias: bool = False

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureOfExperts:
    """Routed experts with, optionally, experts that every token visits.

    Attributes
    ----------
    intermediate : int
        Of one routed expert.
    shared_intermediate : int
        Of all shared experts together; 0 for none.
    shared_gate : bool
        A learned gate of one column on the shared experts' output.
    router_bias, expert_bias : bool
        One bias per expert in the router; biases in the experts' matrices.
    latent : int or None
        Width that routed experts work in, reached by projections of their own; None: the model's.
    """

    experts: int
    top_k: int
    intermediate: int
    gated: bool = True
    shared_intermediate: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    latent: int | None = None

    def __post_init__(self) -> None:
        _require_positive("experts", experts=self.experts, top_k=self.top_k, intermediate=self.intermediate)
        if self.top_k > self.experts:
            raise SpecError(f"experts: a token visits {self.top_k} of only {self.experts}")

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2


Mixer = Attention | LatentAttention | StateMixer


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One decoder layer; a hybrid's layer may lack one of the two parts.

    ``norms`` counts norm weights of size hidden; None: the model's usual number.
    """

    attention: Mixer | None
    feed_forward: FeedForward | MixtureOfExperts | None
    norms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerRun:
    """``count`` equal layers that follow one another."""

    count: int
    layer: Layer


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A decoder-only transformer's shape.

    Attributes
    ----------
    layers : tuple of LayerRun
        In order, so that pipeline stages can be cut.
    norms_per_layer : int
        Norm weights of a layer, each of size ``hidden``.
    checkpoint_dtype : Dtype
        Weight format of the checkpoint's own configuration.
    checkpoint_attention, checkpoint_experts : Dtype or None
        Format of mixers and of routed experts where it differs (modules that a quantisation leaves out).
    checkpoint_kv_cache : Dtype or None
        KV cache format that the checkpoint asks for.
    extra_parameters : int
        Weights that no layer holds, replicated on every rank: position tables.
    embedding_norms : int
        Norms of size hidden outside the layers, the final one included.
    notes : tuple of str
        What of the configuration is left out (vision towers, multi-token prediction).
    kinds : tuple of LayerRun
        `layers` by kind, wherever they stand: what time, bytes and FLOP depend on.
    max_context : int
        Longest sequence the model supports. [tok]
    source : str
        Where the shape comes from.
    """

    name: str
    hidden: int
    layers: tuple[LayerRun, ...]
    vocab: int
    tied_embeddings: bool
    max_context: int
    checkpoint_dtype: Dtype = Dtype.BF16
    norms_per_layer: int = 2
    source: str = ""
    checkpoint_attention: Dtype | None = None
    checkpoint_experts: Dtype | None = None
    checkpoint_kv_cache: Dtype | None = None
    extra_parameters: int = 0
    embedding_norms: int = 1
    notes: tuple[str, ...] = ()
    kinds: tuple[LayerRun, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _require_positive(
            f"model {self.name!r}", hidden=self.hidden, vocab=self.vocab, max_context=self.max_context
        )
        if not self.layers:
            raise SpecError(f"model {self.name!r}: no layers")
        counts: dict[Layer, int] = {}
        for run in self.layers:
            counts[run.layer] = counts.get(run.layer, 0) + run.count
        kinds = tuple(LayerRun(count=count, layer=layer) for layer, count in counts.items())
        object.__setattr__(self, "kinds", kinds)

    @property
    def num_layers(self) -> int:
        return sum(run.count for run in self.layers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Formats of weights and KV cache, independent of one another.

    ``attention`` and ``experts`` are those of mixers and routed experts where they differ from ``weights``.
    """

    weights: Dtype
    kv_cache: Dtype
    attention: Dtype | None = None
    experts: Dtype | None = None

    @property
    def of_attention(self) -> Dtype:
        return self.attention or self.weights

    @property
    def of_experts(self) -> Dtype:
        return self.experts or self.weights

    @classmethod
    def of(cls, model: Model, weights: Dtype | None = None, kv_cache: Dtype | None = None) -> Precision:
        """What is asked for, where None stands for the checkpoint's own.

        Modules that the checkpoint keeps in another format keep it as long as its weights do. Without a word
        of the checkpoint the KV cache has 16 bits, also where weights are smaller, as vLLM's "auto".
        """
        own = model.checkpoint_dtype
        if weights is None or {weights, own} == {Dtype.FP8, Dtype.FP8_BLOCK}:
            weights = own  # "fp8" of a checkpoint with block scales is that
        sixteen = own if own.is_16_bit else Dtype.BF16
        return cls(
            weights=weights,
            kv_cache=kv_cache or model.checkpoint_kv_cache or sixteen,
            attention=model.checkpoint_attention if weights is own else None,
            experts=model.checkpoint_experts if weights is own else None,
        )


# --------------------------------------------------------------------------------------------
# GPUs


@dataclass(frozen=True, kw_only=True, slots=True)
class GemmCoefficients:
    """Matrix product of one dtype, see :func:`planner.roofline.gemm_time`.

    Efficiencies are shares of the profile's dense peak and HBM bandwidth. ``overhead`` [s].
    ``quantization_efficiency`` is None where activations are not quantised on the fly.
    """

    compute_efficiency: float
    memory_efficiency: float
    overhead: float
    norm_exponent: float
    quantization_efficiency: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeAttentionCoefficients:
    """Attention of decode steps, see :func:`planner.roofline.decode_attention_time`. [1, s, s]"""

    memory_efficiency: float
    overhead: float
    cta_time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefillAttentionCoefficients:
    """Attention of prompts, see :func:`planner.roofline.prefill_attention_time`. [1, 1, s, s]"""

    compute_efficiency: float
    memory_efficiency: float
    overhead: float
    softmax_time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MoeCoefficients:
    r"""Grouped products of the routed experts of one weight format.

    Notes
    -----
    :math:`t_0 + \lVert F/(P e_c),\; W/(\beta e_m) \rVert_p + A/(\beta e_a)` with the FLOP count
    :math:`F`, weights of the experts that are hit :math:`W` and activation traffic :math:`A`.
    ``overhead`` is :math:`t_0` [s], ``norm_exponent`` :math:`p`. The peak :math:`P` is that of what is
    multiplied: 16 bits for bf16 and the weight-only formats mxfp4 and int4, else the format's own.
    """

    compute_efficiency: float
    memory_efficiency: float
    overhead: float
    norm_exponent: float
    activation_efficiency: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentDecodeCoefficients:
    """Decode steps of multi-head latent attention, by the dtype of the latent cache.

    ``compute_efficiency`` is a share of the 16-bit peak for every cache. ``overhead`` [s];
    ``block_time`` per sequence over the multiprocessors [s].
    """

    memory_efficiency: float
    compute_efficiency: float
    overhead: float
    norm_exponent: float
    block_time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentPrefillCoefficients:
    """Prompts of multi-head latent attention, 16-bit arithmetic. [1, 1, s, s]"""

    compute_efficiency: float
    memory_efficiency: float
    overhead: float
    softmax_time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AllReduceCoefficients:
    """Ring all-reduce, see :func:`planner.collectives.all_reduce_time`. [s, s, 1, s]"""

    overhead: float
    per_rank: float
    bandwidth_efficiency: float
    sqrt_time: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PcieAllReduce:
    """All-reduce over PCIe at one world size: ``alpha + bytes / bandwidth``. [s, B/s]"""

    alpha: float
    bandwidth: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Efficiencies of a GPU's kernels with their provenance.

    Attributes
    ----------
    gemm, decode_attention : mapping of Dtype
        By weight dtype, by KV cache dtype.
    all_reduce : AllReduceCoefficients or None
        Over the scale-up link; None where only `pcie_all_reduce` exists.
    pcie_all_reduce : mapping of int
        By world size.
    log_sd : mapping of str
        Residual spread per operator ("gemm.bf16", "decode_attention.fp8", "moe.fp8_block",
        "latent_decode.bf16", "latent_prefill", ...), in natural log. [1]
    moe : mapping of Dtype
        Routed experts by weight dtype; empty where nobody measured or estimated them.
    latent_decode, latent_prefill : mapping of Dtype, LatentPrefillCoefficients or None
        Multi-head latent attention, by the dtype of the cache; empty and None where unknown.
    """

    status: CalibrationStatus
    gemm: Mapping[Dtype, GemmCoefficients]
    decode_attention: Mapping[Dtype, DecodeAttentionCoefficients]
    prefill_attention: PrefillAttentionCoefficients
    all_reduce: AllReduceCoefficients | None
    pcie_all_reduce: Mapping[int, PcieAllReduce]
    log_sd: Mapping[str, float]
    method: str
    date: str
    software: str
    moe: Mapping[Dtype, MoeCoefficients] = field(default_factory=dict)
    latent_decode: Mapping[Dtype, LatentDecodeCoefficients] = field(default_factory=dict)
    latent_prefill: LatentPrefillCoefficients | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GPU:
    """One accelerator: the vendor's dense figures, and its calibration kept apart from them.

    Attributes
    ----------
    peak_flops : mapping of Dtype
        Dense tensor throughput; a dtype the device lacks is absent. [FLOP/s]
    hbm_bandwidth : float
        Peak memory bandwidth. [B/s]
    memory : float
        Memory that a framework sees. [B]
    sm_count : int
        Streaming multiprocessors, compute units, or what else runs one block of threads.
    scale_up_bandwidth : float
        Link to the other GPUs of the node, per GPU, one direction. [B/s]
    scale_up_kind : str
        "nvlink", "pcie", "infinity-fabric", ...
    scale_up_domain : int
        GPUs within reach of that link.
    host_bandwidth : float
        Between GPU and host memory, one direction. [B/s]
    network_bandwidth : float
        Usual NIC share of one GPU, one direction; a scenario overrides it. [B/s]
    power : float
        Thermal design power. [W]
    driver_memory : float or None
        Memory that the vendor's tool (nvidia-smi) shows, somewhat more than `memory`. [B]
    unverified : tuple of str
        Figures of the profile's ``spec`` whose source could not be read again.
    notes : tuple of str
        What a reader of the figures has to know.
    """

    name: str
    vendor: str
    architecture: str
    peak_flops: Mapping[Dtype, float]
    hbm_bandwidth: float
    memory: float
    l2_bytes: float
    sm_count: int
    scale_up_bandwidth: float
    scale_up_kind: str
    scale_up_domain: int
    host_bandwidth: float
    network_bandwidth: float
    power: float
    node_size: int
    calibration: Calibration
    sources: tuple[str, ...] = ()
    driver_memory: float | None = None
    unverified: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require_positive(
            f"GPU {self.name!r}",
            hbm_bandwidth=self.hbm_bandwidth,
            memory=self.memory,
            sm_count=self.sm_count,
            scale_up_bandwidth=self.scale_up_bandwidth,
            network_bandwidth=self.network_bandwidth,
            power=self.power,
            node_size=self.node_size,
        )


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Parallelism:
    """How one replica is spread over its GPUs. Every dimension counts, always."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        _require_positive("parallelism", tp=self.tp, pp=self.pp, ep=self.ep, dp=self.dp)

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica; experts spread over the GPUs of tp and dp, so ep adds none."""
        return self.tp * self.pp * self.dp

    @property
    def lanes(self) -> int:
        """Streams of work side by side: pipeline stages times attention ranks."""
        return self.pp * self.dp

    def __str__(self) -> str:
        sizes = [f"TP{self.tp}"] + [
            f"{label}{size}"
            for label, size in (("PP", self.pp), ("EP", self.ep), ("DP", self.dp))
            if size > 1
        ]
        return " ".join(sizes)


# --------------------------------------------------------------------------------------------
# Engines


@dataclass(frozen=True, kw_only=True, slots=True)
class TransferCosts:
    """What moving a KV cache between replicas costs an engine, beside the bytes.

    Attributes
    ----------
    rdma_efficiency, tcp_efficiency : float
        Share of line rate reached. [1]
    fixed : float
        Per request: handshake and scheduling. [s]
    per_block : float
        Per KV block descriptor. [s]
    overlap : float
        Share of the transfer hidden behind the rest of the prefill. [1]
    """

    rdma_efficiency: float
    tcp_efficiency: float
    fixed: float
    per_block: float
    overlap: float


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
    non_torch_single, non_torch_parallel : float
        Memory outside the allocator (context, NCCL buffers) at TP 1 and above. [B]
    logits_bytes_per_entry : float
        Peak sampler memory per sequence and vocabulary entry. [B]
    max_num_seqs : int
        Default limit of sequences in a step.
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
    weight_only_dtypes : tuple of Dtype
        Weight formats that run with 16-bit arithmetic where a GPU has no such tensor cores.
    log_sd : float
        Spread of the end-to-end model error with these constants, in natural log. [1]
    """

    name: str
    version: str
    scheduler: SchedulerPolicy
    step_overhead: float
    sequence_overhead: float
    decode_scale: float
    prefill_scale: float
    memory_utilization: float
    non_torch_single: float
    non_torch_parallel: float
    logits_bytes_per_entry: float
    max_num_seqs: int
    token_budgets: tuple[int, ...]
    prefill_token_budget: int
    graph_batch_sizes: tuple[int, ...]
    eager_overhead: float
    block_size: int
    first_token_phase: Phase
    weight_only_dtypes: tuple[Dtype, ...]
    transfer: TransferCosts
    connector: str
    log_sd: float
    provenance: str = ""


# --------------------------------------------------------------------------------------------
# Traffic and objectives


@dataclass(frozen=True, kw_only=True, slots=True)
class Marginal:
    """A discrete distribution of lengths.

    Attributes
    ----------
    points, weights : tuple of float
        Ascending means of buckets, and their probabilities. [tok, 1]
    longest : float or None
        Longest length that occurs, which the last bucket's mean does not show; None: the last point.
        [tok]
    """

    points: tuple[float, ...]
    weights: tuple[float, ...]
    longest: float | None = None

    def __post_init__(self) -> None:
        if not self.points or len(self.points) != len(self.weights):
            raise SpecError("length distribution: as many weights as points, at least one")
        if abs(sum(self.weights) - 1) > 1e-9 or min(self.weights) < 0:
            raise SpecError("length distribution: weights must be >= 0 and add up to 1")
        if any(b < a for a, b in zip(self.points, self.points[1:], strict=False)):
            raise SpecError("length distribution: points must ascend")

    @property
    def mean(self) -> float:
        return self.moment(1)

    def moment(self, order: int) -> float:
        """Raw moment. [tok^order]"""
        return math.fsum(w * x**order for x, w in zip(self.points, self.weights, strict=True))

    @property
    def maximum(self) -> float:
        """Longest length. [tok]"""
        return self.points[-1] if self.longest is None else self.longest


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Prompt and output lengths of a traffic, with what ties the two together.

    Attributes
    ----------
    isl, osl : Marginal
        Input and output tokens.
    isl_per_output_token : float
        Mean prompt length seen by an output token, ``E[isl osl] / E[osl]``; equals ``E[isl]`` when
        the two are independent. [tok]
    longest_request : float or None
        Longest prompt plus output of one request; None: the longest of each may meet. [tok]
    """

    isl: Marginal
    osl: Marginal
    isl_per_output_token: float
    longest_request: float | None = None

    @property
    def longest(self) -> float:
        """Tokens of the longest request, prompt and output. [tok]"""
        both = self.isl.maximum + self.osl.maximum
        return both if self.longest_request is None else min(self.longest_request, both)


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """A stretch of time with its own request rate. [h, req/s]"""

    name: str
    hours: float
    request_rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Offered traffic of one model.

    Attributes
    ----------
    periods : tuple of Period
        One for a constant rate.
    arrival_scv : float
        Squared coefficient of variation of inter-arrival times; 1 is Poisson. [1]
    prefix_hit_rate : float
        Share of input tokens found in the prefill side's cache. [1]
    note : str
        What a reader of the plan should know of this traffic.
    """

    name: str
    periods: tuple[Period, ...]
    lengths: Lengths
    arrival_scv: float = 1.0
    prefix_hit_rate: float = 0.0
    citation: str = ""
    note: str = ""

    @property
    def request_rate(self) -> float:
        """Rate of the busiest period. [req/s]"""
        return max(p.request_rate for p in self.periods)


@dataclass(frozen=True, kw_only=True, slots=True)
class SloTarget:
    """One bound: `statistic` of `metric` at most `limit`. [s]"""

    metric: Metric
    statistic: Statistic
    limit: float

    def __str__(self) -> str:
        return f"{self.statistic} {self.metric.upper()} <= {self.limit / MILLI:g} ms"


@dataclass(frozen=True, kw_only=True, slots=True)
class Slo:
    """All bounds of a service; `attainment` is the share of requests that must meet every one of them."""

    targets: tuple[SloTarget, ...]
    attainment: float | None = None

    def of(self, metric: Metric) -> tuple[SloTarget, ...]:
        return tuple(t for t in self.targets if t.metric is metric)


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """One model with its traffic and objectives."""

    model: Model
    precision: Precision
    workload: Workload
    slo: Slo
    engine: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetItem:
    """GPUs of one type that may be used.

    Attributes
    ----------
    price : float or None
        Of one GPU; None where no price is used. [USD/h]
    max_gpus : int or None
        Stock; None is unlimited, 0 is none.
    network_bandwidth : float
        NIC share of one GPU, one direction. [B/s]
    rdma : bool
        False where the network is plain TCP.
    price_source : str
        Where the price comes from, with its date and status; empty where the user gave it.
    max_gpus_by_phase : mapping of Phase
        Caps per pool.
    """

    gpu: GPU
    price: float | None
    max_gpus: int | None
    node_size: int
    network_bandwidth: float
    network_given: bool = True
    rdma: bool = True
    owned: bool = False
    zone: str = ""
    price_source: str = ""
    max_gpus_by_phase: Mapping[Phase, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How a plan is searched; see the scenario schema for the meaning of each."""

    colocated: ColocatedUse = ColocatedUse.ALLOWED
    routing: Routing = Routing.LEAST_LOADED
    min_replicas_per_pool: int = 1
    spare_replicas: int = 0
    whole_nodes: bool = True
    headroom: float = 0.0
    confidence: float = 0.8
    max_tp: int | None = None
    max_pp: int = 4
    allowed_tp: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Everything a plan answers."""

    services: tuple[Service, ...]
    fleet: tuple[FleetItem, ...]
    objective: Objective
    options: Options
    budget: float | None = None
    source: str = ""
