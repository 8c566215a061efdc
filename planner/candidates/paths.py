"""How KV caches get from one replica to another, and which transfers are told apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.arrays import FloatArray
from planner.candidates.context import Context, ReplicaChoice
from planner.collectives import network_rate
from planner.engines.legality import EndPoint, pair_violation
from planner.transformer import kv_bytes, kv_copies

FASTEST_CLASS = 0.002  # time on the wire below which transfers are not told apart [s]
CLASS_RATIO = 1.5  # between the times on the wire of neighbouring transfer classes [1]
_LONG_PROMPT = 0.99  # quantile of prompt lengths that transfer classes are told apart by


def egress(context: Context, choice: ReplicaChoice) -> float:
    """NIC rate of all GPUs of a replica. [B/s]"""
    return network_rate(context.fleet[choice.item], context.engine) * choice.parallelism.num_gpus


def one_request(context: Context, choice: ReplicaChoice) -> float:
    """NIC rate that one request can use: that of the GPUs of one attention rank. [B/s]"""
    return egress(context, choice) / choice.parallelism.dp


def kv_repeats(context: Context, choice: ReplicaChoice) -> float:
    """Times a KV head is held by a replica, once per rank beyond the number of KV heads. [1]"""
    return kv_copies(context.service.model, choice.parallelism.tp)


def path_rates(
    context: Context, prefill: Sequence[ReplicaChoice], decode: Sequence[ReplicaChoice]
) -> FloatArray:
    """Rate at which KV bytes get from each prefill to each decode replica; 0 where illegal. [B/s]"""
    out = np.array([one_request(context, c) for c in prefill])
    into = np.array([one_request(context, c) for c in decode])
    copies = np.array([kv_repeats(context, c) for c in decode])
    rates = np.asarray(np.minimum(out[:, None], into[None, :]) / copies)
    model, rules = context.service.model, context.engine.pair_rules
    decode_ends = [_end_point(context, choice) for choice in decode]
    for i, choice in enumerate(prefill):
        end = _end_point(context, choice)
        for j, decode_end in enumerate(decode_ends):
            if pair_violation(end, decode_end, model, rules):
                rates[i, j] = 0.0
    return rates


def _end_point(context: Context, choice: ReplicaChoice) -> EndPoint:
    gpu = context.fleet[choice.item].gpu
    return EndPoint(
        parallelism=choice.parallelism,
        gpu=gpu.name,
        vendor=gpu.vendor,
        kv_cache=choice.precision.kv_cache,
        block_size=context.engine.block_size,
    )


def class_rates(context: Context, rates: FloatArray) -> FloatArray:
    """Slowest rate of the transfer class of each path; 0 where illegal. [B/s]

    Classes are geometric in the time that a long prompt spends on the wire, on a grid that depends
    neither on the SLOs nor on the rest of the fleet: loosening an SLO or adding a GPU type leaves the
    candidates of all others as they were.
    """
    traffic = context.traffic
    long = float(np.interp(_LONG_PROMPT, np.cumsum(traffic.isl_weights), traffic.isl))
    size = float(kv_bytes(context.service.model, context.kv_cache, long))
    legal = rates > 0
    time = size / np.where(legal, rates, 1.0)
    steps = np.maximum(np.ceil(np.log(time / FASTEST_CLASS) / np.log(CLASS_RATIO) - 1e-9), 0.0)
    return np.where(legal, size / (FASTEST_CLASS * CLASS_RATIO**steps), 0.0)
