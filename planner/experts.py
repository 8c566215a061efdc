"""Time of routed experts: grouped matrix products and what brings tokens to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from planner.arrays import FloatArray, Numbers
from planner.errors import SpecError
from planner.roofline import FALLBACK_LOG_SD, SIXTEEN_BITS, GemmKernel, dtype_of_rows, smooth_maximum
from planner.specs import GPU, Dtype
from planner.units import MICRO

BORROWED_OVERHEAD = 45 * MICRO  # of grouped products nobody measured: the middle of those measured [s]
BORROWED_ACTIVATION_EFFICIENCY = 0.35  # likewise [1]
TILE_ROWS = 64.0
"""Rows of the smallest product of a warp group of Hopper's tensor cores (PTX ISA, ``wgmma.mma_async``,
m64nNk32), and of the default tile of FP8 in blocks in vLLM and SGLang (``BLOCK_SIZE_M`` 64)."""
TILED_ARCHITECTURES = ("hopper",)
_MOST_EXCESS = {1: 0.0, 2: 0.56, 4: 1.03, 8: 1.42, 16: 1.77, 32: 2.07, 64: 2.34}
"""Expected maximum of n standard normal variables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertsKernel:
    """Grouped products of one weight format on one GPU. Units as in :class:`~planner.roofline.GemmKernel`.

    ``activation_rate`` is the traffic attained in gathering, activating and scattering tokens. [B/s]
    """

    compute_rate: Numbers
    memory_rate: Numbers
    activation_rate: Numbers
    overhead: Numbers
    exponent: Numbers
    weight_bytes: Numbers
    log_sd: Numbers
    compute_peak: Numbers = np.inf
    memory_peak: Numbers = np.inf
    row_tile: Numbers = 1.0

    @classmethod
    def of(cls, gpu: GPU, dtype: Dtype) -> ExpertsKernel:
        """Kernel for experts stored as `dtype`.

        What is stored small and multiplied in 16 bits is multiplied no faster than experts of 16 bits, and
        takes their coefficients where it has none; else one nobody measured is built from the dense kernel.

        Raises
        ------
        SpecError
            If `gpu` can run neither.
        """
        known = gpu.calibration.moe
        compute = dtype_of_rows(dtype, gpu) or dtype_of_rows(Dtype.BF16, gpu)
        if compute is None:
            raise SpecError(f"GPU {gpu.name!r} has no matrix kernel for {dtype}")
        sixteen = next((d for d in SIXTEEN_BITS if d in known), None) if compute.is_16_bit else None
        own = dtype if dtype in known else sixteen
        if own is None:
            dense = GemmKernel.of(gpu, dtype)
            return cls(
                compute_rate=dense.compute_rate,
                memory_rate=dense.memory_rate,
                activation_rate=gpu.hbm_bandwidth * BORROWED_ACTIVATION_EFFICIENCY,
                overhead=BORROWED_OVERHEAD,
                exponent=dense.exponent,
                weight_bytes=dtype.bytes,
                log_sd=FALLBACK_LOG_SD,
                row_tile=_row_tile(gpu, dtype),
                compute_peak=dense.compute_peak,
                memory_peak=dense.memory_peak,
            )
        rows = known[own]
        efficiency = min(rows.compute_efficiency, known[sixteen or own].compute_efficiency)
        log_sd = gpu.calibration.log_sd.get(f"moe.{own}", FALLBACK_LOG_SD)
        borrowed = own is not dtype and not dtype.is_16_bit
        return cls(
            compute_rate=gpu.peak_flops[compute] * efficiency,
            memory_rate=gpu.hbm_bandwidth * rows.memory_efficiency,
            activation_rate=gpu.hbm_bandwidth * rows.activation_efficiency,
            overhead=rows.overhead,
            exponent=rows.norm_exponent,
            weight_bytes=dtype.bytes,
            log_sd=max(log_sd, FALLBACK_LOG_SD) if borrowed else log_sd,
            row_tile=_row_tile(gpu, dtype),
            compute_peak=gpu.peak_flops[compute],
            memory_peak=gpu.hbm_bandwidth,
        )


def _row_tile(gpu: GPU, dtype: Dtype) -> float:
    """Rows that grouped products of this format compute at least per expert."""
    native = dtype in (Dtype.FP8, Dtype.FP8_BLOCK) and not (dtype_of_rows(dtype, gpu) or dtype).is_16_bit
    return TILE_ROWS if native and gpu.architecture in TILED_ARCHITECTURES else 1.0


class ExpertShapes(Protocol):
    """What times depend on of experts: those of a model's block, or arrays of them."""

    @property
    def experts(self) -> Numbers: ...
    @property
    def top_k(self) -> Numbers: ...
    @property
    def intermediate(self) -> Numbers: ...
    @property
    def matrices(self) -> Numbers: ...


def distinct_experts(block: ExpertShapes, tokens: Numbers) -> Numbers:
    """Experts that at least one of `tokens` visits, on average, when they choose independently.

    ``E (1 - (1 - k/E)^T)``.
    """
    return block.experts * (1.0 - (1.0 - block.top_k / block.experts) ** tokens)


def largest_of(ranks: Numbers) -> FloatArray:
    """Expected maximum of `ranks` standard normal variables: how far the busiest rank is above the mean."""
    known = np.array(list(_MOST_EXCESS), dtype=np.float64)
    values = np.array(list(_MOST_EXCESS.values()))
    return np.asarray(np.interp(np.log2(np.maximum(ranks, 1.0)), np.log2(known), values))


def experts_time(
    kernel: ExpertsKernel,
    block: ExpertShapes,
    tokens: Numbers,
    hidden: Numbers,
    ep: Numbers,
    moe_tp: Numbers,
) -> Numbers:
    r"""Time of the routed experts of one layer on one GPU.

    Parameters
    ----------
    tokens : number or ndarray
        All tokens of the step, of all ranks together; rows of padding are none, they visit nobody. [tok]
    hidden : number or ndarray
        Width that the experts work in.
    ep, moe_tp : number or ndarray
        Ranks over which experts are spread, and ranks that share each expert.

    Notes
    -----
    :math:`t_0 + \lVert F/\pi,\; W/\beta \rVert_p + A/\beta_a` with
    :math:`F = 2mTkhi/ep` (m matrices), the weights of the distinct experts that are hit
    :math:`W`, and :math:`A = (Tk/ep)(4h + 6i) + 4Th`. Under expert parallelism the busiest rank decides:
    visits are taken as independent, so that it has :math:`\mu + c_{ep}\sqrt{\mu}` of them (ours). Kernels
    that multiply whole tiles compute at least one tile for every expert that is hit, and half a tile in vain
    on average where an expert has many rows.
    """
    inner = block.intermediate / moe_tp
    visits = tokens * block.top_k / ep
    busiest = visits + np.where(np.asarray(ep) > 1, largest_of(ep) * np.sqrt(visits), 0.0)
    hit = distinct_experts(block, tokens) / ep
    in_vain = hit * (np.asarray(kernel.row_tile) - 1.0) / 2
    rows = np.maximum(busiest + in_vain, np.where(in_vain > 0, hit * kernel.row_tile, 0.0))
    flop = 2.0 * block.matrices * rows * hidden * inner
    weights = hit * block.matrices * hidden * inner * kernel.weight_bytes
    moved = busiest * (4.0 * hidden + 6.0 * inner) + 4.0 * tokens * hidden
    busy = smooth_maximum(flop / kernel.compute_rate, weights / kernel.memory_rate, kernel.exponent)
    time = kernel.overhead + busy + moved / kernel.activation_rate
    return np.where(np.asarray(tokens) > 0, time, 0.0)
