"""Roofs of a GPU, and operators under them: arithmetic intensity against the rate that they attain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.arrays import Numbers
from planner.results import Result
from planner.roofline import GemmKernel, dtype_of_rows, smooth_maximum
from planner.specs import GPU, Dtype, Phase

COLUMNS = (
    "gpu", "phase", "operator", "dtype", "batch", "context", "flop", "bytes", "seconds",
    "flop_per_byte", "flop_per_second", "ridge_flop_per_byte", "bound", "share_of_roof",
)  # fmt: skip
"""Of :meth:`Roofline.rows`, in base units."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roof:
    """What matrix products of one format can attain on one GPU.

    Attributes
    ----------
    peak, bandwidth : the vendor's figures. [FLOP/s, B/s]
    compute_rate, memory_rate, exponent : those of the calibrated kernel. [FLOP/s, B/s, 1]
    """

    dtype: Dtype
    peak: float
    bandwidth: float
    compute_rate: float
    memory_rate: float
    exponent: float

    @classmethod
    def of(cls, gpu: GPU, dtype: Dtype) -> Roof:
        """Raises SpecError where the GPU has no such kernel."""
        kernel = GemmKernel.of(gpu, dtype)
        return cls(
            dtype=dtype,
            peak=float(kernel.compute_peak),
            bandwidth=float(kernel.memory_peak),
            compute_rate=float(kernel.compute_rate),
            memory_rate=float(kernel.memory_rate),
            exponent=float(kernel.exponent),
        )

    @property
    def ridge(self) -> float:
        """Arithmetic intensity at which the vendor's peaks take equally long. [FLOP/B]"""
        return self.peak / self.bandwidth

    @property
    def calibrated_ridge(self) -> float:
        """The same of the rates that kernels attain. [FLOP/B]"""
        return self.compute_rate / self.memory_rate

    def datasheet(self, intensity: Numbers) -> Numbers:
        """Rate that no kernel beats: ``min(peak, intensity * bandwidth)``. [FLOP/s]"""
        return np.minimum(self.peak, intensity * self.bandwidth)

    def calibrated(self, intensity: Numbers) -> Numbers:
        r"""Rate that large products attain, fixed costs and quantising left out. [FLOP/s]

        Notes
        -----
        :math:`1 / \lVert 1/\pi,\; 1/(I\beta) \rVert_p`: :func:`planner.roofline.gemm_time` without what does
        not grow with the product.
        """
        memory = 1.0 / (np.asarray(intensity) * self.memory_rate)
        return 1.0 / smooth_maximum(1.0 / self.compute_rate, memory, self.exponent)


@dataclass(frozen=True, kw_only=True, slots=True)
class RooflinePoint:
    """One operator of a step, over all layers, on one GPU of a replica.

    Attributes
    ----------
    dtype : Dtype
        That its arithmetic is done in: whose roof counts.
    batch : float
        Sequences that decode on the replica; 1 for a prompt.
    context : float
        Tokens of each sequence, or of the prompt. [tok]
    flop, traffic : float
        Padding of batches included. [FLOP, B]
    time : float
        Of the kernels; for the whole step also what engine, host and links take. [s]
    """

    phase: Phase
    operator: str
    dtype: Dtype
    batch: float
    context: float
    flop: float
    traffic: float
    time: float

    @property
    def intensity(self) -> float:
        """FLOP per byte of HBM traffic. [FLOP/B]"""
        return self.flop / self.traffic

    @property
    def rate(self) -> float:
        """What it attains. [FLOP/s]"""
        return self.flop / self.time


@dataclass(frozen=True, kw_only=True, slots=True)
class Roofline(Result):
    """A GPU's roofs and the operators of a model under them; no model: no points."""

    gpu: str
    calibration: str
    roofs: tuple[Roof, ...]
    points: tuple[RooflinePoint, ...] = ()

    def roof(self, dtype: Dtype) -> Roof:
        """That of one format."""
        return next(roof for roof in self.roofs if roof.dtype is dtype)

    def compute_bound(self, point: RooflinePoint) -> bool:
        """Whether a point lies at or right of the ridge of its format, by the vendor's figures."""
        return point.intensity >= self.roof(point.dtype).ridge

    def rows(self) -> tuple[dict[str, Any], ...]:
        """The points as flat rows of :data:`COLUMNS`, in base units."""
        return tuple(self._row(p) for p in self.points)

    def _row(self, p: RooflinePoint) -> dict[str, Any]:
        roof = self.roof(p.dtype)
        values = (
            self.gpu, p.phase.value, p.operator, p.dtype.value, p.batch, p.context, p.flop, p.traffic, p.time,
            p.intensity, p.rate, roof.ridge, "compute" if self.compute_bound(p) else "memory",
            p.rate / float(roof.datasheet(p.intensity)),
        )  # fmt: skip
        return dict(zip(COLUMNS, values, strict=True))


def roofs_of(gpu: GPU) -> tuple[Roof, ...]:
    """Roofs of every format that the GPU multiplies in and that has coefficients, lowest first; one for
    formats that share both."""
    own = [d for d in gpu.calibration.gemm if dtype_of_rows(d, gpu) is d]
    kept: dict[tuple[float, float, float], Roof] = {}
    for roof in (Roof.of(gpu, d) for d in own):
        kept.setdefault((roof.peak, roof.compute_rate, roof.memory_rate), roof)
    return tuple(sorted(kept.values(), key=lambda roof: (roof.peak, roof.compute_rate)))


def bare_roofline(gpu: GPU) -> Roofline:
    """The roofs of a GPU without any model under them."""
    return Roofline(gpu=gpu.name, calibration=gpu.calibration.status.value, roofs=roofs_of(gpu))
