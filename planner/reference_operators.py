"""Operators of fixed shapes that GPUs are compared by: predicted times on each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.collectives import AllReduce, all_reduce_time, supports_world_size
from planner.errors import SpecError
from planner.roofline import (
    DecodeAttentionKernel,
    GemmKernel,
    PrefillAttentionKernel,
    decode_attention_time,
    dtype_of_rows,
    gemm_time,
    prefill_attention_time,
)
from planner.specs import GPU, Dtype

WIDTH = 8192
"""Rows and columns of the weights, and width of the hidden state that ranks sum: those of a 70B model."""
FEW, MANY = 16, 4096  # tokens of a step that decodes, and of one that computes a prompt [tok]
SEQUENCES, CONTEXT = 64, 4096  # of a step's attention [1, tok]
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
RANKS = 4
_SIXTEEN_BIT = 2.0  # of a value [B]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceTime:
    """One operator on one GPU.

    Attributes
    ----------
    shape : str
        What is computed, in words.
    time : float or None
        None where the GPU cannot do it, or nobody knows how long it takes. [s]
    """

    operator: str
    shape: str
    time: float | None


def reference_times(gpu: GPU) -> tuple[ReferenceTime, ...]:
    """Times of all reference operators on `gpu`, in a fixed order."""
    heads = f"{HEADS} heads, {KV_HEADS} KV heads of {HEAD_DIM}"
    found = [
        ReferenceTime(
            operator=f"{name} product, {size} M",
            shape=f"{m} x {WIDTH} x {WIDTH}",
            time=_product(gpu, dtype, m),
        )
        for dtype, name in ((Dtype.BF16, "16-bit"), (Dtype.FP8, "fp8"))
        for size, m in (("small", FEW), ("large", MANY))
    ]
    attention = (
        ("decode attention", f"{SEQUENCES} sequences of {CONTEXT} tokens, {heads}", _decode_attention(gpu)),
        ("prefill attention", f"one prompt of {MANY} tokens, {heads}", _prefill_attention(gpu)),
    )
    links = (
        (
            "all-reduce, decode step",
            f"{SEQUENCES} tokens of {WIDTH} over {RANKS} GPUs",
            _all_reduce(gpu, SEQUENCES),
        ),
        ("all-reduce, prompt", f"{MANY} tokens of {WIDTH} over {RANKS} GPUs", _all_reduce(gpu, MANY)),
    )
    found += [
        ReferenceTime(operator=name, shape=shape, time=time) for name, shape, time in (*attention, *links)
    ]
    return tuple(found)


def _product(gpu: GPU, dtype: Dtype, m: int) -> float | None:
    """None where the GPU lacks the format; fp16 serves for bf16."""
    own = dtype_of_rows(dtype, gpu)
    if own is None:
        return None
    return float(gemm_time(GemmKernel.of(gpu, dtype), m, WIDTH, WIDTH))


def _decode_attention(gpu: GPU) -> float | None:
    try:
        kernel = DecodeAttentionKernel.of(gpu, Dtype.BF16)
    except SpecError:
        return None
    return float(decode_attention_time(kernel, SEQUENCES, CONTEXT, HEADS, KV_HEADS, HEAD_DIM))


def _prefill_attention(gpu: GPU) -> float | None:
    try:
        kernel = PrefillAttentionKernel.of(gpu)
    except SpecError:
        return None
    area = MANY**2 / 2
    return float(prefill_attention_time(kernel, area, MANY, MANY, 1, HEADS, KV_HEADS, HEAD_DIM))


def _all_reduce(gpu: GPU, tokens: int) -> float | None:
    """None where a node has no all-reduce of so many ranks."""
    if not supports_world_size(gpu, RANKS):
        return None
    row = AllReduce.of([gpu], [RANKS])
    return float(np.asarray(all_reduce_time(row, tokens * WIDTH * _SIXTEEN_BIT)).flat[0])
