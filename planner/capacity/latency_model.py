"""What capacity asks of latency: the time of prompts and of decode steps on C replicas.

The planner's own answer is the roofline of :mod:`planner.latency`. Whoever has fits of an engine on a GPU can
give these instead: anything with the members of :class:`LatencyModel` will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from planner.arrays import FloatArray, Numbers
from planner.latency import Companions, decode_step_time, prompt_time
from planner.operators import ReplicaSet


class LatencyModel(Protocol):
    """Times of C replicas, which lie on the last axis; tokens and batches broadcast against it."""

    @property
    def pp(self) -> FloatArray:
        """Pipeline stages, shape (C,). [1]"""
        ...

    @property
    def dp(self) -> FloatArray:
        """Attention ranks, each of which takes prompts of its own, shape (C,). [1]"""
        ...

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batches of one lane, ascending, between which a step's time is taken as linear; it may jump between
        one of them and the next larger batch. [1]"""
        ...

    def prompt(
        self, query: Numbers, cached: Numbers, token_budget: Numbers, companions: Companions
    ) -> FloatArray:
        """From the start to the end of a prompt of `query` tokens after `cached` ones [tok], in steps of at
        most `token_budget` tokens, with the prompts computed beside it. [s]"""
        ...

    def decode_step(self, batch: Numbers, context: Numbers) -> FloatArray:
        """A step for `batch` sequences of a replica, of mean `context` [tok]. [s]"""
        ...


@dataclass(frozen=True, slots=True)
class Roofline:
    """The planner's own model of `replicas`."""

    replicas: ReplicaSet

    @property
    def pp(self) -> FloatArray:
        return self.replicas.pp

    @property
    def dp(self) -> FloatArray:
        return self.replicas.dp

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        sizes, rows = self.replicas.engine.graph_batch_sizes, self.replicas.rows
        return sizes if rows == 1 else tuple(sorted({size // rows for size in sizes if size >= rows}))

    def prompt(
        self, query: Numbers, cached: Numbers, token_budget: Numbers, companions: Companions
    ) -> FloatArray:
        return prompt_time(self.replicas, query, cached, token_budget, companions).service

    def decode_step(self, batch: Numbers, context: Numbers) -> FloatArray:
        return decode_step_time(self.replicas, batch, context)


def latency_of(replicas: ReplicaSet | LatencyModel) -> LatencyModel:
    """The model that is given, or that of replicas."""
    return Roofline(replicas) if isinstance(replicas, ReplicaSet) else replicas
