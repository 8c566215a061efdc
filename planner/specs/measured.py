"""A measured point of a model on an engine, which removes the bias that all predictions for it share."""

from __future__ import annotations

from dataclasses import dataclass

from planner.specs.gpus import Parallelism
from planner.specs.models import Precision
from planner.units import MILLI


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPoint:
    """A closed loop on one colocated replica without a draft, as somebody measured it.

    Attributes
    ----------
    gpu : str
        Name of the GPU.
    concurrency : float
        Clients.
    isl, osl : float
        [tok]
    tpot : float
        Mean. [s]
    factor : float
        On all kernels of the model on the engine: with it the point is predicted as it was measured. [1]
    """

    gpu: str
    parallelism: Parallelism
    precision: Precision
    concurrency: float
    isl: float
    osl: float
    tpot: float
    factor: float

    def __str__(self) -> str:
        load = f"concurrency {self.concurrency:g}, {self.isl:g} + {self.osl:g} tokens"
        measured = f"TPOT {self.tpot / MILLI:.4g} ms on {self.gpu} {self.parallelism}, {load}"
        return f"{measured}: factor {self.factor:.3f} on kernels"
