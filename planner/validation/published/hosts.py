"""What the host adds to kernels: known beforehand, or one constant per software fitted on other rows.

Two forms. The host launches a step's kernels while earlier ones run, and the longer of the two decides; or
it works between steps, and both add up. Steps of decoding that Python launches kernel by kernel follow the
first, captured graphs the second. Prompts follow the second always: before its first kernel a prompt is
tokenised, scheduled and given memory, and nothing runs meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.units import MICRO, MILLI
from planner.validation.published.software import EAGER_LAYER, Software

_LOWEST, _HIGHEST = 1 * MICRO, 10 * MILLI  # of a host constant [s]
_GRID, _ROUNDS = 41, 3  # points of each refinement of the search
_SCALE = 0.2  # log errors beyond which a row counts less


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedHost:
    """Host time per layer and step of a software on one publisher's machines with GPUs of one vendor.

    Attributes
    ----------
    group : str
        The publisher's rows.
    per_layer : float
        [s]
    overlapped : bool
        Whether the longer of host and kernels decides a decode step; else they add up.
    rows : int
        It was fitted on.
    side : int
        Half of the configurations that it was fitted on: 0 or 1.
    """

    group: str
    software: str
    vendor: str
    side: int
    per_layer: float
    overlapped: bool
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """Kernels of static batches, one entry per row.

    Attributes
    ----------
    prompt, steps : ndarray
        All prompts of a batch [s], and engine steps that they take.
    decode : ndarray
        A decode step at the mean context. [s]
    count : ndarray
        Decode steps of a request.
    waves : ndarray
        Batches that run one after another because they do not fit at once.
    layers, context : ndarray
        Layers of the model; mean context. [1, tok]
    """

    prompt: FloatArray
    steps: FloatArray
    decode: FloatArray
    count: FloatArray
    waves: FloatArray
    layers: FloatArray
    context: FloatArray

    def part(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Kernels:
        return Kernels(**{name: getattr(self, name)[index] for name in self.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class Times:
    """All prompts of a batch, one decode step, and the whole batch. [s]"""

    prompt: FloatArray
    step: FloatArray
    whole: FloatArray


def known_times(k: Kernels, software: Software) -> Times:
    """Times with nothing fitted."""
    eager = k.layers * EAGER_LAYER
    eager_decode = software.eager_decode | (k.context > software.graph_context)
    step = np.where(eager_decode, np.maximum(k.decode, eager), k.decode + software.step)
    prompt = k.prompt + k.steps * (eager if software.eager_prompts else software.step)
    return Times(prompt, step, k.waves * (prompt + k.count * step))


def fitted_times(k: Kernels, per_layer: float, overlapped: bool) -> Times:
    """Times with `per_layer` seconds of host time for every layer of a step."""
    host = k.layers * per_layer
    step = np.maximum(k.decode, host) if overlapped else k.decode + host
    prompt = k.prompt + k.steps * host
    return Times(prompt, step, k.waves * (prompt + k.count * step))


def fit_host(k: Kernels, value: Callable[[Times], FloatArray], measured: FloatArray) -> tuple[float, bool]:
    """Constant and form with the least robust squares of log errors."""
    best = (np.inf, _LOWEST, False)
    for overlapped in (False, True):

        def loss(logarithm: float, overlapped: bool = overlapped) -> float:
            predicted = value(fitted_times(k, float(np.exp(logarithm)), overlapped))
            error = np.log(predicted / measured) / _SCALE
            return float(np.sum(np.sqrt(1 + error**2) - 1))

        low, high = float(np.log(_LOWEST)), float(np.log(_HIGHEST))
        for _ in range(_ROUNDS):
            grid = np.linspace(low, high, _GRID)
            losses = [loss(x) for x in grid]
            middle, width = float(grid[int(np.argmin(losses))]), float(grid[1] - grid[0])
            low, high = middle - width, middle + width
        best = min(best, (min(losses), float(np.exp(middle)), overlapped))
    return best[1], best[2]
