"""What arrives at the front door of a simulated fleet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.traces import PromptBlocks

Int32Array = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Requests:
    """Requests by arrival; arrays of shape (requests,).

    Attributes
    ----------
    arrival : ndarray of float64
        Not falling, from 0 on. [s]
    isl, osl : ndarray of int32
        Input and output tokens; a request without output has an `osl` of 0. [tok]
    cached : ndarray of int32
        Tokens of each prompt that the prefix cache is taken to hold, whatever was served before. [tok]
    blocks : PromptBlocks or None
        Hashes of the prompts, where the cache itself is simulated; `cached` is 0 then.
    name : str
        What the requests are, for people: "Poisson arrivals at 20 req/s".
    replayed : bool
        Whether they are those of a trace, so that more of them cannot be drawn.
    notes : tuple of str
    """

    arrival: FloatArray
    isl: Int32Array
    osl: Int32Array
    cached: Int32Array
    blocks: PromptBlocks | None = None
    name: str = ""
    replayed: bool = False
    notes: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        return self.arrival.size

    @property
    def request_rate(self) -> float:
        """Requests over the time from first to last arrival; 0 where all come at once. [req/s]"""
        span = float(self.arrival[-1] - self.arrival[0])
        return self.number / span if span > 0 else 0.0
