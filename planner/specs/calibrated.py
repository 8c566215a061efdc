"""An engine as a user's own measurements have calibrated it."""

from __future__ import annotations

from dataclasses import dataclass

from planner.specs.constants import Constants


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineProfile:
    """Constants that replace those of an engine.

    Attributes
    ----------
    engine, version : str
        What was measured.
    constants : Constants
    factors : tuple of (str, float)
        On all kernels of models, by :attr:`Model.shape`; others keep those that are known of them. [1]
    log_sd, ttft_log_sd : float
        Spread of steps, and of a benchmark's TTFT, of models that were measured. Natural logarithm. [1]
    gpus : tuple of str
        GPUs that they were measured on.
    provenance : str
        Where the constants come from, and how far off they are.
    """

    engine: str
    version: str
    constants: Constants
    factors: tuple[tuple[str, float], ...]
    log_sd: float
    ttft_log_sd: float
    gpus: tuple[str, ...]
    provenance: str
