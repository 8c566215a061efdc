"""Floating-point work of prompts and output tokens."""

from __future__ import annotations

import numpy as np

from planner.arrays import Numbers
from planner.specs import Attention, LatentAttention, Layer, Model, StateMixer
from planner.transformer.cache import seen_context
from planner.transformer.weights import idle_share, layer_weights


def matrix_flop_per_token(model: Model) -> float:
    """FLOP of the layers' matrices for one token, head excluded: two per weight it meets. [FLOP]"""
    total = 0.0
    for run in model.kinds:
        w = layer_weights(run.layer, model)
        total += run.count * (w.attention + w.feed_forward + w.experts * (1 - idle_share(run.layer)))
    return 2.0 * total


def head_flop(model: Model) -> float:
    """FLOP of the language-model head for one token. [FLOP]"""
    return 2.0 * model.hidden * model.vocab


def attention_area(layer: Layer, query: Numbers, cached: Numbers = 0.0) -> Numbers:
    """Query-key pairs of `query` tokens after `cached` ones under the causal mask, clipped to what
    :func:`seen_context` allows. [tok^2]"""
    limit = seen_context(layer, np.inf)
    if np.isinf(limit):
        return query * (cached + query / 2)
    return windowed_area(query, cached, limit)


def windowed_area(query: Numbers, cached: Numbers, limit: Numbers) -> Numbers:
    """Query-key pairs of `query` tokens after `cached` ones, each seeing at most `limit` keys. [tok^2]"""
    growing = np.clip(limit - cached, 0.0, query)  # tokens that still see all before them
    return growing * (np.minimum(cached, limit) + growing / 2) + (query - growing) * limit


def mixing_flop_per_pair(layer: Layer, *, absorbed: bool) -> float:
    """FLOP of one query-key pair over all heads; latents may be read as they are (absorbed)."""
    mixer = layer.attention
    if isinstance(mixer, Attention):
        return 4.0 * mixer.heads * mixer.head_dim
    if isinstance(mixer, LatentAttention):
        if absorbed:
            return 2.0 * mixer.heads * (2 * mixer.kv_rank + mixer.rope_dim)
        return 2.0 * mixer.heads * (mixer.query_dim + mixer.value_dim)
    return 0.0


def attention_flop(model: Model, area: Numbers) -> Numbers:
    """FLOP of attention over `area` query-key pairs in every layer. [FLOP]"""
    per_pair = sum(run.count * mixing_flop_per_pair(run.layer, absorbed=False) for run in model.kinds)
    return per_pair * area


def state_flop(layer: Layer) -> float:
    """FLOP of a recurrent state's update and read-out for one token: two multiply-adds an element."""
    return 4.0 * layer.attention.state_elements if isinstance(layer.attention, StateMixer) else 0.0


def prefill_flop(model: Model, isl: Numbers, cached: Numbers = 0.0) -> Numbers:
    """FLOP of a prompt of `isl` tokens of which `cached` are already in the KV cache. [FLOP]"""
    computed = isl - cached
    mixing = sum(
        run.count
        * (
            mixing_flop_per_pair(run.layer, absorbed=False) * attention_area(run.layer, computed, cached)
            + state_flop(run.layer) * computed
        )
        for run in model.kinds
    )
    return computed * matrix_flop_per_token(model) + mixing + head_flop(model)


def decode_flop(model: Model, context: Numbers) -> Numbers:
    """FLOP of one output token at `context` tokens. [FLOP]"""
    mixing = sum(
        run.count
        * (
            mixing_flop_per_pair(run.layer, absorbed=True) * seen_context(run.layer, context)
            + state_flop(run.layer)
        )
        for run in model.kinds
    )
    return matrix_flop_per_token(model) + head_flop(model) + mixing
