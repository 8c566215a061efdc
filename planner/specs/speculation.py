"""Speculative decoding: what a draft does, in numbers that the user gives."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.errors import SpecError
from planner.units import GIGA, MILLI

MAX_DRAFT = 64
MAX_DRAFT_COST = 100
MAX_DRAFT_MS = 10_000
MAX_DRAFT_GB = 10_000
"""What a file or an option may give of draft_tokens, draft_cost, draft_ms and draft_weights_gb."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speculation:
    """A draft proposes tokens, and the model verifies them in one step. Nothing of it is assumed.

    Attributes
    ----------
    draft_tokens : int
        Tokens proposed per step and sequence, k.
    accepted_tokens : float
        Mean tokens that a step emits per sequence, the model's own included, 1 to k + 1. [tok]
    draft_share : float or None
        Time of drafting k tokens, over that of the model's own plain step at the same batch. [1]
    draft_time : float or None
        The same as a time, whatever the batch; one of the two is given. [s]
    draft_weights : float
        Memory that the draft takes of each GPU. [B]
    """

    draft_tokens: int
    accepted_tokens: float
    draft_share: float | None = None
    draft_time: float | None = None
    draft_weights: float = 0.0

    def __post_init__(self) -> None:
        most = self.draft_tokens + 1
        if self.draft_tokens < 1:
            raise SpecError(f"speculative decoding: draft_tokens must be >= 1, got {self.draft_tokens!r}")
        if not 1 <= self.accepted_tokens <= most:
            raise SpecError(
                f"speculative decoding: accepted_tokens must be 1 to draft_tokens + 1 = {most}, "
                f"got {self.accepted_tokens!r}"
            )
        if (self.draft_share is None) == (self.draft_time is None):
            which = "neither is given" if self.draft_share is None else "not both"
            raise SpecError(f"speculative decoding: give either draft_cost or draft_ms, {which}")
        for name, value in (
            ("draft_cost", self.draft_share),
            ("draft_ms", self.draft_time),
            ("draft_weights_gb", self.draft_weights),
        ):
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise SpecError(f"speculative decoding: {name} must be a finite number >= 0, got {value!r}")

    @property
    def rows(self) -> int:
        """Tokens of each sequence that a step verifies: those drafted, and the one after them."""
        return self.draft_tokens + 1

    def __str__(self) -> str:
        tokens = f"{self.draft_tokens} draft token{'s' if self.draft_tokens > 1 else ''}"
        if self.draft_time is None:
            cost = f"drafting takes {self.draft_share:.4g} of a plain step"
        else:
            cost = f"drafting takes {self.draft_time / MILLI:.4g} ms"
        text = f"{tokens}, {self.accepted_tokens:.4g} tokens emitted per step, {cost}"
        return f"{text}, {self.draft_weights / GIGA:.4g} GB of draft per GPU" if self.draft_weights else text


def tokens_per_step(speculation: Speculation | None) -> float:
    """Mean tokens that a decode step emits per sequence; 1 without a draft. [tok]"""
    return 1.0 if speculation is None else speculation.accepted_tokens


def rows_per_sequence(speculation: Speculation | None) -> int:
    """Tokens that a decode step computes per sequence; 1 without a draft. [tok]"""
    return 1 if speculation is None else speculation.rows
