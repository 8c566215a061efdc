"""Where the decision stands among the columns of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from planner.program.problem import Piece

FlowKey = tuple[int, int, bool, str, str]
"""Event, stream, whether disaggregated, zone of the prefill and of the decode pool (or of the only one)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeColumns:
    """Columns of one range of one candidate; `extra` is None where the range has one n."""

    piece: Piece
    use: int
    extra: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The columns by what they stand for.

    ``ranges`` per candidate; ``disaggregated`` per stream; ``nodes`` per GPU type and ``mixes`` by kind,
    empty where not modelled; ``started`` per kind of moves. ``references`` per stream is what a load of 1 in
    the rows stands for. [req/s]
    """

    ranges: tuple[tuple[RangeColumns, ...], ...]
    streams: tuple[int, ...]
    disaggregated: tuple[int, ...]
    nodes: tuple[int, ...]
    mixes: Mapping[str, int]
    rate: int | None
    references: tuple[float, ...]
    flows: Mapping[FlowKey, int] = field(default_factory=dict)
    started: tuple[int, ...] = ()

    def used(self, candidate: int) -> Iterator[tuple[int, float]]:
        """Terms of "group exists": 1 or 0."""
        return ((r.use, 1.0) for r in self.ranges[candidate])

    def count(self, candidate: int, factor: float = 1.0) -> Iterator[tuple[int, float]]:
        """Terms of ``factor * n``."""
        for r in self.ranges[candidate]:
            yield r.use, factor * r.piece.first
            if r.extra is not None:
                yield r.extra, factor

    def capacity(self, candidate: int, lost: int) -> Iterator[tuple[int, float]]:
        """Terms of what the group carries without `lost` replicas, as a share of its stream's reference."""
        reference = self.references[self.streams[candidate]]
        for r in self.ranges[candidate]:
            yield r.use, r.piece.capacity[lost] / reference
            if r.extra is not None:
                yield r.extra, r.piece.slope[lost] / reference
