"""Enumerations, and the check that they share with the types beside them."""

from __future__ import annotations

import math
from enum import StrEnum

from planner.errors import SpecError


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


class PriceClass(StrEnum):
    """How GPUs are paid for. Reserved ones are bought once for all hours, spot ones may be taken away."""

    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    SPOT = "spot"


class SpareScope(StrEnum):
    """Which replicas may fail at a time: as many of every group, or as many of any one group."""

    GROUP = "group"
    POOL = "pool"


class SchedulerPolicy(StrEnum):
    """How a colocated engine mixes prompts into its steps."""

    CHUNKED_PREFILL = "chunked_prefill"
    PREFILL_FIRST = "prefill_first"


class Admission(StrEnum):
    """What an engine asks of the KV cache before it starts a request.

    Paged: blocks for the prompt; what grows beyond the cache is preempted. Reserve: blocks for the prompt and
    the longest output the request may have, so that nothing is preempted.
    """

    PAGED = "paged"
    RESERVE = "reserve"


class PairCheck(StrEnum):
    """What an engine may ask of a prefill and a decode replica before they exchange KV caches."""

    VENDOR = "vendor"
    KV_DTYPE = "kv_dtype"
    BLOCK_SIZE = "block_size"
    EQUAL_BLOCK_SIZE = "equal_block_size"
    HYBRID_BLOCK_SIZE = "hybrid_block_size"
    DECODE_PP = "decode_pp"
    DECODE_PP_MATCHES = "decode_pp_matches"
    TP_DIVIDES = "tp_divides"
    TP_FAN_OUT = "tp_fan_out"


class CalibrationStatus(StrEnum):
    """Where the efficiencies of a GPU profile come from."""

    MEASURED = "measured"
    FITTED = "fitted"
    ESTIMATED = "estimated"


def require_positive(owner: str, **values: float | None) -> None:
    """Refuse what is neither None nor a finite number above 0.

    Raises
    ------
    SpecError
    """
    for name, value in values.items():
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise SpecError(f"{owner}: {name} must be a finite number > 0, got {value!r}")
