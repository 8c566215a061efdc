"""Prefill and decode candidates, and which of them may stand behind one router."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.arrays import FloatArray
from planner.candidates.context import CandidateSet, Context, ReplicaChoice, merge
from planner.candidates.curves import collect
from planner.candidates.layouts import fitting_replicas
from planner.candidates.paths import class_rates, egress, kv_repeats, path_rates
from planner.capacity import (
    FIRST_STEPS,
    Curves,
    DecodeDemand,
    PrefillDemand,
    decode_curves,
    prefill_curves,
    prompt_queues,
)
from planner.collectives import LINK_LOAD_LIMIT, kv_transfer_time
from planner.plan import Binding
from planner.specs import Phase
from planner.transformer import kv_bytes

DECODE_TOKEN_BUDGET = 2048  # of a decode replica: recomputed sequences must fit through [tok]


def disaggregated(context: Context) -> CandidateSet:
    """Candidates of both pools, with the pairs that must not meet."""
    decode = fitting_replicas(context, Phase.DECODE, [DECODE_TOKEN_BUDGET])
    prefill = fitting_replicas(context, Phase.PREFILL)
    if not prefill or not decode:  # what is there is kept, so that only what is missing is told
        return _decode_candidates(context, decode) if decode else CandidateSet(evaluated=len(prefill))
    rates = path_rates(context, prefill, decode)
    classes = class_rates(context, rates)
    prefill_sets = []
    for budget in sorted({choice.token_budget for choice in prefill}):
        rows = [i for i, choice in enumerate(prefill) if choice.token_budget == budget]
        prefill_sets.append(_prefill_candidates(context, [prefill[i] for i in rows], classes[rows], budget))
    decode_set = _decode_candidates(context, decode)
    merged = merge([*prefill_sets, decode_set])
    illegal = _illegal_pairs(context, merged, prefill, decode, rates)
    return replace(merged, illegal_pairs=illegal)


def _prefill_candidates(
    context: Context, prefill: Sequence[ReplicaChoice], class_rates: FloatArray, budget: int
) -> CandidateSet:
    """Prefill replicas of one token budget in every transfer class that some decode replica needs, slowest
    first."""
    choices = [
        replace(choice, path_rate=float(rate), first_step=step)
        for i, choice in enumerate(prefill)
        for rate in np.unique(class_rates[i][class_rates[i] > 0])
        for step in context.first_steps
    ]
    if not choices:
        return CandidateSet(evaluated=len(prefill))
    traffic, service = context.traffic, context.service
    queues = prompt_queues(context.replicas(prefill), traffic, float(budget))
    position = {c.replica: i for i, c in enumerate(prefill)}
    replica = np.array([position[c.replica] for c in choices])
    size = kv_bytes(service.model, context.kv_cache, traffic.isl[:, None])
    path = np.array([c.path_rate for c in choices])
    layers = np.array([service.model.num_layers / c.parallelism.pp for c in choices])
    transfer = kv_transfer_time(traffic.isl[:, None], size, path, layers, context.engine)
    demand = PrefillDemand(
        ttft=context.ttft,
        admission_miss=context.miss,
        first_step=np.array(
            [FIRST_STEPS * c.first_step if math.isfinite(c.first_step) else 0.0 for c in choices]
        ),
        transfer=transfer,
        routing=context.scenario.options.routing,
    )

    def curves(starts: Sequence[int]) -> Curves:
        result = prefill_curves(queues, replica, traffic, demand, starts)
        out = np.array([egress(context, c) for c in choices])
        result = result.at_most(_link_rate(context, out), Binding.NETWORK)
        return result.at_most(_prefill_memory_rate(context, choices, transfer), Binding.KV_CAPACITY)

    return collect(context, choices, curves)


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
    choices = [replace(choice, first_step=step) for choice in decode for step in context.first_steps]
    r = context.replicas(choices)
    demand = DecodeDemand(
        tpot=context.tpot,
        first_step=np.array([c.first_step for c in choices]),
        admission_miss=context.miss,
        kv_tokens=np.array([float(c.kv_tokens) for c in choices]),
        max_num_seqs=np.array([float(c.max_num_seqs) for c in choices]),
    )
    into = np.array([egress(context, c) / kv_repeats(context, c) for c in choices])
    link = _link_rate(context, into)

    def curves(starts: Sequence[int]) -> Curves:
        return decode_curves(r, context.traffic, demand, starts).at_most(link, Binding.NETWORK)

    return collect(context, choices, curves)


def _illegal_pairs(
    context: Context,
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
