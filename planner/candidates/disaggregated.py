"""Prefill and decode candidates, and which of them may stand behind one router."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from planner.arrays import FloatArray
from planner.candidates.basis import FEW, MANY, Basis
from planner.candidates.context import CandidateSet, Context, Rejection, ReplicaChoice, merge
from planner.candidates.curves import collect
from planner.candidates.layouts import fitting_replicas
from planner.candidates.paths import class_rates, egress, kv_repeats, path_rates
from planner.capacity import (
    FIRST_STEPS,
    Curves,
    DecodeDemand,
    Limit,
    PrefillDemand,
    PromptQueues,
    decode_curves,
    prefill_curves,
    prompt_queues,
)
from planner.collectives import LINK_LOAD_LIMIT, kv_transfer_time
from planner.plan import Binding
from planner.specs import Parallelism, Phase, Precision
from planner.transformer import kv_bytes

DECODE_TOKEN_BUDGET = 2048  # of a decode replica: recomputed sequences must fit through [tok]


def disaggregated(context: Context) -> CandidateSet:
    """Candidates of both pools, with the pairs that must not meet."""
    pools = _pools(context.basis)
    context.rejections.extend(pools.rejections)
    prefill, decode = pools.prefill, pools.decode
    if not prefill or not decode:  # what is there is kept, so that only what is missing is told
        return _decode_candidates(context, decode) if decode else CandidateSet(evaluated=len(prefill))
    budgets = sorted({choice.token_budget for choice in prefill})
    prefill_sets = [_prefill_candidates(context, budget) for budget in budgets]
    decode_set = _decode_candidates(context, decode)
    merged = merge([*prefill_sets, decode_set])
    return replace(merged, illegal_pairs=_illegal_pairs(merged, prefill, decode, pools.rates))


@dataclass(frozen=True, slots=True, eq=False)
class _Pools:
    """Replicas of both phases that fit.

    Attributes
    ----------
    rates, classes : ndarray, shape (prefill, decode)
        Of the path from one to the other, and slowest of its transfer class. [B/s]
    """

    prefill: tuple[ReplicaChoice, ...]
    decode: tuple[ReplicaChoice, ...]
    rejections: tuple[Rejection, ...]
    rates: FloatArray
    classes: FloatArray

    def versions(self, budget: int, steps: Sequence[float]) -> list[ReplicaChoice]:
        """Prefill replicas of one token budget in every transfer class that some decode replica needs,
        slowest first, and at every level of the first step."""
        return [
            replace(choice, path_rate=float(rate), first_step=step)
            for choice, classes in zip(self.prefill, self.classes, strict=True)
            if choice.token_budget == budget
            for rate in np.unique(classes[classes > 0])
            for step in steps
        ]


@lru_cache(maxsize=MANY)
def _pools(basis: Basis) -> _Pools:
    context = Context.of_basis(basis)
    decode = fitting_replicas(context, Phase.DECODE, [DECODE_TOKEN_BUDGET])
    prefill = fitting_replicas(context, Phase.PREFILL)
    rates = path_rates(context, prefill, decode) if prefill and decode else np.zeros((0, 0))
    classes = class_rates(context, rates) if rates.size else rates
    return _Pools(tuple(prefill), tuple(decode), tuple(context.rejections), rates, classes)


def _prefill_candidates(context: Context, budget: int) -> CandidateSet:
    basis, steps = context.basis, context.first_steps
    pools = _pools(basis)
    choices = pools.versions(budget, steps)
    if not choices:
        return CandidateSet(evaluated=sum(c.token_budget == budget for c in pools.prefill))

    def curves(starts: tuple[int, ...]) -> Curves:
        return _prefill_curves(basis, context.miss, context.ttft, steps, budget, starts)

    return collect(context, choices, curves)


@lru_cache(maxsize=MANY)
def _prefill_curves(
    basis: Basis,
    miss: float,
    ttft: tuple[Limit, ...],
    steps: tuple[float, ...],
    budget: int,
    starts: tuple[int, ...],
) -> Curves:
    context = Context.of_basis(basis, ttft=ttft, miss=miss)
    choices = _pools(basis).versions(budget, steps)
    position, queues = _queues(basis, budget)
    traffic, service = context.traffic, context.service
    size = kv_bytes(service.model, context.kv_cache, traffic.isl[:, None])
    path = np.array([c.path_rate for c in choices])
    layers = np.array([service.model.num_layers / c.parallelism.pp for c in choices])
    transfer = kv_transfer_time(traffic.isl[:, None], size, path, layers, context.engine)
    demand = PrefillDemand(
        ttft=ttft,
        admission_miss=miss,
        first_step=np.array(
            [FIRST_STEPS * c.first_step if math.isfinite(c.first_step) else 0.0 for c in choices]
        ),
        transfer=transfer,
        routing=context.scenario.options.routing,
    )
    replica = np.array([position[c.replica] for c in choices])
    result = prefill_curves(queues, replica, traffic, demand, starts)
    out = np.array([egress(context, c) for c in choices])
    result = result.at_most(_link_rate(context, out), Binding.NETWORK)
    return result.at_most(_prefill_memory_rate(context, choices, transfer), Binding.KV_CAPACITY)


@lru_cache(maxsize=FEW)
def _queues(basis: Basis, budget: int) -> tuple[dict[tuple[int, Parallelism, Precision], int], PromptQueues]:
    """Queues of the prefill replicas of a token budget, and where each stands in them."""
    context = Context.of_basis(basis)
    prefill = [choice for choice in _pools(basis).prefill if choice.token_budget == budget]
    queues = prompt_queues(context.replicas(prefill), context.traffic, float(budget))
    return {c.replica: i for i, c in enumerate(prefill)}, queues


def _link_rate(context: Context, nic: FloatArray) -> FloatArray:
    """Requests per second whose KV caches load NICs of rate `nic` [B/s] to the limit. [req/s]"""
    traffic = context.traffic
    sizes = kv_bytes(context.service.model, context.kv_cache, traffic.isl)
    request = float(traffic.isl_weights @ sizes)
    return np.asarray(LINK_LOAD_LIMIT * nic / request)


def _prefill_memory_rate(
    context: Context, choices: Sequence[ReplicaChoice], transfer: FloatArray
) -> FloatArray:
    """Rate at which prompts in service or waiting for their transfer fill the prefill's KV cache. [req/s]

    A prompt holds its blocks from the start of its step to the end of its transfer.
    """
    traffic = context.traffic
    budget = np.array([float(c.token_budget) for c in choices])
    tokens = np.array([float(c.kv_tokens) for c in choices])
    weights = traffic.isl_weights * traffic.isl
    held = weights @ (transfer + context.miss)  # tokens x time while the transfer runs
    free = np.maximum(tokens - budget - traffic.longest_isl, 0.0)  # beside one step and one long prompt
    return np.asarray(free / np.maximum(held, 1e-12))


def _decode_candidates(context: Context, decode: Sequence[ReplicaChoice]) -> CandidateSet:
    """Decode replicas at every level of the first decode step."""
    basis, steps = context.basis, context.first_steps

    def curves(starts: tuple[int, ...]) -> Curves:
        return _decode_curves(basis, context.miss, context.tpot, steps, starts)

    return collect(context, _at_steps(decode, steps), curves)


def _at_steps(decode: Sequence[ReplicaChoice], steps: Sequence[float]) -> list[ReplicaChoice]:
    return [replace(choice, first_step=step) for choice in decode for step in steps]


@lru_cache(maxsize=MANY)
def _decode_curves(
    basis: Basis,
    miss: float,
    tpot: tuple[Limit, ...],
    steps: tuple[float, ...],
    starts: tuple[int, ...],
) -> Curves:
    context = Context.of_basis(basis, tpot=tpot, miss=miss)
    choices = _at_steps(_pools(basis).decode, steps)
    demand = DecodeDemand(
        tpot=tpot,
        first_step=np.array([c.first_step for c in choices]),
        admission_miss=miss,
        kv_tokens=np.array([float(c.kv_tokens) for c in choices]),
        max_num_seqs=np.array([float(c.max_num_seqs) for c in choices]),
    )
    into = np.array([egress(context, c) / kv_repeats(context, c) for c in choices])
    result = decode_curves(context.replicas(choices), context.traffic, demand, starts)
    return result.at_most(_link_rate(context, into), Binding.NETWORK)


def _illegal_pairs(
    merged: CandidateSet,
    prefill: Sequence[ReplicaChoice],
    decode: Sequence[ReplicaChoice],
    rates: FloatArray,
) -> frozenset[tuple[int, int]]:
    """Pairs that break an engine rule, or take longer after the prefill than its candidate allows."""
    row = {c.replica: i for i, c in enumerate(prefill)}
    column = {c.replica: j for j, c in enumerate(decode)}
    pairs = set()
    for i in merged.of(Phase.PREFILL):
        p = merged.choices[i]
        for j in merged.of(Phase.DECODE):
            d = merged.choices[j]
            rate = rates[row[p.replica], column[d.replica]]
            if rate <= 0 or rate < p.path_rate * (1 - 1e-9) or d.first_step > p.first_step:
                pairs.add((i, j))
    return frozenset(pairs)


def forget() -> None:
    """Drop what is kept."""
    for kept in (_pools, _prefill_curves, _queues, _decode_curves):
        kept.cache_clear()
