"""Who did what when: the picture of prefill, decode, stalls and KV transfer per request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Activity(StrEnum):
    """What happens to a request."""

    QUEUED = "queued"
    PREFILL = "prefill"
    TRANSFER = "transfer"
    DECODE = "decode"
    STALL = "stall"
    """Decoding is held up by the prompts of others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One activity of one request, from `start` to `end` [s or ticks]; requests count from 0."""

    request: int
    activity: Activity
    start: float
    end: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Requests of one fleet over a window.

    Attributes
    ----------
    title : str
        The fleet: "colocated", "disaggregated".
    unit : str
        Of times: "tick" or "s".
    horizon : float
        End of the window; segments are cut there.
    arrivals : tuple of float
        One per request.
    segments : tuple of Segment
        By request and start; those of one request do not overlap.
    tokens : tuple of int
        Tokens that each request has got by the horizon.
    """

    title: str
    unit: str
    horizon: float
    arrivals: tuple[float, ...]
    segments: tuple[Segment, ...]
    tokens: tuple[int, ...]
