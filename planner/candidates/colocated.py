"""Candidates that do both phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.candidates.basis import FEW, MANY, Basis
from planner.candidates.context import CandidateSet, Context, Rejection, ReplicaChoice
from planner.candidates.curves import collect
from planner.candidates.layouts import fitting_replicas
from planner.capacity import (
    ColocatedDemand,
    ColocatedTable,
    Curves,
    Limit,
    SloMargins,
    colocated_curves,
    colocated_table,
    sojourns,
    tpot_margin,
    ttft_margin,
)
from planner.queueing import FlightSojourn, Sojourn
from planner.specs import Phase
from planner.traffic import Traffic


def colocated(context: Context) -> CandidateSet:
    """Replicas of every legal layout and token budget."""
    basis = context.basis
    pool = _pool(basis, context.miss)
    context.rejections.extend(pool.rejections)
    if not pool.choices:
        return CandidateSet()

    def curves(starts: tuple[int, ...]) -> Curves:
        return _curves(basis, context.miss, context.ttft, context.tpot, starts)

    return collect(context, pool.choices, curves)


@dataclass(frozen=True, slots=True, eq=False)
class _Pool:
    """Colocated replicas that fit, and their steps; the table of none is None."""

    choices: tuple[ReplicaChoice, ...]
    rejections: tuple[Rejection, ...]
    traffic: Traffic
    demand: ColocatedDemand
    table: ColocatedTable | None

    @property
    def known(self) -> ColocatedTable:
        assert self.table is not None  # asked only of replicas that fit
        return self.table


@lru_cache(maxsize=FEW)
def _pool(basis: Basis, miss: float) -> _Pool:
    context = Context.of_basis(basis, miss=miss)
    choices = tuple(fitting_replicas(context, Phase.COLOCATED, context.engine.token_budgets))
    demand = _demand(context, choices)
    table = colocated_table(context.replicas(choices), context.traffic, demand) if choices else None
    return _Pool(choices, tuple(context.rejections), context.traffic, demand, table)


def _demand(context: Context, choices: Sequence[ReplicaChoice]) -> ColocatedDemand:
    """What the replicas must meet, but for limits on latency."""
    return ColocatedDemand(
        ttft=(),
        tpot=(),
        admission_miss=context.miss,
        routing=context.scenario.options.routing,
        policy=context.engine.scheduler,
        token_budget=np.array([float(c.token_budget) for c in choices]),
        kv_tokens=np.array([float(c.kv_tokens) for c in choices]),
        max_num_seqs=np.array([float(c.max_num_seqs) for c in choices]),
    )


@lru_cache(maxsize=MANY)
def _curves(
    basis: Basis, miss: float, ttft: tuple[Limit, ...], tpot: tuple[Limit, ...], starts: tuple[int, ...]
) -> Curves:
    pool = _pool(basis, miss)
    margins = SloMargins(_ttft(basis, miss, ttft, starts), _tpot(basis, miss, tpot, starts))
    return colocated_curves(pool.known, pool.traffic, pool.demand, starts, margins)


@lru_cache(maxsize=MANY)
def _ttft(basis: Basis, miss: float, ttft: tuple[Limit, ...], starts: tuple[int, ...]) -> FloatArray:
    waits = _sojourns(basis, miss, starts)
    return ttft_margin(_pool(basis, miss).known, waits, ttft, miss, len(starts))


@lru_cache(maxsize=MANY)
def _tpot(basis: Basis, miss: float, tpot: tuple[Limit, ...], starts: tuple[int, ...]) -> FloatArray:
    pool = _pool(basis, miss)
    return tpot_margin(pool.known.state, pool.traffic, tpot, starts)


@lru_cache(maxsize=FEW)
def _sojourns(
    basis: Basis, miss: float, starts: tuple[int, ...]
) -> tuple[tuple[NDArray[np.int64], Sojourn | FlightSojourn], ...]:
    pool = _pool(basis, miss)
    return sojourns(pool.known, pool.traffic, pool.demand.routing, starts)


def forget() -> None:
    """Drop what is kept."""
    for kept in (_pool, _curves, _ttft, _tpot, _sojourns):
        kept.cache_clear()
