"""GPUs with their calibration, and how a replica is spread over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.specs.kinds import CalibrationStatus, Dtype, require_positive
from planner.units import MICRO


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
class ElementwiseCoefficients:
    """Norms, rope, activations and other small kernels. [1, s]

    The defaults are those of data-centre GPUs: launch and drain of a kernel, and the bandwidth they reach.
    """

    memory_efficiency: float = 0.75
    overhead: float = 2 * MICRO


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
    elementwise : ElementwiseCoefficients
        Small kernels.
    """

    status: CalibrationStatus
    gemm: Mapping[Dtype, GemmCoefficients] = field(hash=False)
    decode_attention: Mapping[Dtype, DecodeAttentionCoefficients] = field(hash=False)
    prefill_attention: PrefillAttentionCoefficients
    all_reduce: AllReduceCoefficients | None
    pcie_all_reduce: Mapping[int, PcieAllReduce] = field(hash=False)
    log_sd: Mapping[str, float] = field(hash=False)
    method: str
    date: str
    software: str
    moe: Mapping[Dtype, MoeCoefficients] = field(default_factory=dict, hash=False)
    latent_decode: Mapping[Dtype, LatentDecodeCoefficients] = field(default_factory=dict, hash=False)
    latent_prefill: LatentPrefillCoefficients | None = None
    elementwise: ElementwiseCoefficients = field(default_factory=ElementwiseCoefficients)


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
    peak_flops: Mapping[Dtype, float] = field(hash=False)
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
        require_positive(
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
        require_positive("parallelism", tp=self.tp, pp=self.pp, ep=self.ep, dp=self.dp)

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
