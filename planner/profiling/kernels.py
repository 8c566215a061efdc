"""Calls that run one operator with one library, on rotating data.

Where several libraries can do the same, all are offered, and the fastest counts: that is what engines pick.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from planner.cases import ACTIVATION, Case
from planner.profiling.clock import Call
from planner.profiling.data import Data
from planner.profiling.experts import expert_calls
from planner.profiling.fusion import fused
from planner.samples import Operator
from planner.specs import Dtype
from planner.units import MIB

FP8_LARGEST = 448.0  # of float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Kernel:
    """A library's way to run a case: `calls` do the same to different data."""

    name: str
    calls: Sequence[Call]


Backend = Callable[[Case, Data], Iterator[Kernel]]


def kernels_of(case: Case, data: Data) -> Iterator[Kernel]:
    """Ways to run a case on the device of `data`. Building or running one may raise RuntimeError."""
    yield from _BACKENDS[case.operator](case, data)


# --------------------------------------------------------------------------------------------
# Matrix products


def _gemm(case: Case, data: Data) -> Iterator[Kernel]:
    m, n, k = (int(case.axes[axis]) for axis in ("m", "n", "k"))
    assert case.dtype is not None
    if case.dtype.is_16_bit or case.dtype is Dtype.FP32:
        dtype = data.dtype(case.dtype)
        a = data.views([(m, k)], dtype)[0][0]
        yield Kernel("linear", [partial(functional.linear, a, w) for (w,) in data.views([(n, k)], dtype)])
    elif case.dtype is Dtype.FP8:
        for per_token in (True, False):
            yield _fp8_gemm(m, n, k, data, quantized=bool(case.axes["quantize"]), per_token=per_token)
    elif case.dtype is Dtype.INT8:
        a = data.views([(m, k)], torch.int8)[0][0]
        calls = [partial(torch._int_mm, a, w.t()) for (w,) in data.views([(n, k)], torch.int8)]
        yield Kernel("_int_mm", calls)
    elif case.dtype is Dtype.NVFP4:
        yield _fp4_gemm(m, n, k, data)


def _fp8_gemm(m: int, n: int, k: int, data: Data, *, quantized: bool, per_token: bool) -> Kernel:
    """Scales per token and channel, as engines have them, or one of each; with the pass that makes 8 bits of
    16, or without."""
    rows = torch.ones(m, 1, device=data.device) if per_token else torch.ones((), device=data.device)
    columns = torch.ones(1, n, device=data.device) if per_token else torch.ones((), device=data.device)
    wide = data.views([(m, k)], torch.bfloat16)[0][0]
    narrow = data.views([(m, k)], data.narrow)[0][0]
    quantize = fused(_per_token if per_token else _per_tensor, data.device)

    def call(weight: torch.Tensor) -> torch.Tensor:
        a, scale = quantize(wide, data.narrow) if quantized else (narrow, rows)
        return torch._scaled_mm(a, weight.t(), scale, columns, out_dtype=torch.bfloat16)

    name = "_scaled_mm per token" if per_token else "_scaled_mm per tensor"
    return Kernel(name, [partial(call, w) for (w,) in data.views([(n, k)], data.narrow)])


def _per_token(x: torch.Tensor, narrow: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(dim=-1, keepdim=True).float().clamp(min=1e-6) / FP8_LARGEST
    return (x.float() / scale).to(narrow), scale


def _per_tensor(x: torch.Tensor, narrow: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """With a scale that a checkpoint brings."""
    return (x.float() * (1 / 8)).to(narrow), torch.ones((), device=x.device)


def _fp4_gemm(m: int, n: int, k: int, data: Data) -> Kernel:
    """NVFP4: two numbers a byte, one 8-bit scale per 16 of them in blocks of 128 by 4."""
    packed = torch.float4_e2m1fn_x2
    a = data.views([(m, k // 2)], torch.int8)[0][0].view(packed)

    def scales(rows: int) -> torch.Tensor:
        padded = -(-rows // 128) * 128 * (-(-(k // 16) // 4) * 4)
        return torch.ones(padded, device=data.device).to(torch.float8_e4m3fn)

    of_a, of_w = scales(m), scales(n)

    def call(weight: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a, weight.t(), of_a, of_w, out_dtype=torch.bfloat16)

    weights = data.views([(n, k // 2)], torch.int8)
    return Kernel("_scaled_mm", [partial(call, w.view(packed)) for (w,) in weights])


# --------------------------------------------------------------------------------------------
# Attention

_BACKENDS_OF_SDPA = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def _sdpa(device: torch.device) -> list[str]:
    """Back ends of torch worth trying on a device."""
    return ["flash"] if device.type == "cpu" else list(_BACKENDS_OF_SDPA)


def decode_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str = "flash"
) -> torch.Tensor:
    """One query per sequence: q (batch, kv_heads, heads / kv_heads, width), k and v (batch, kv_heads,
    context, width). The queries that share a KV head stand where queries of one sequence usually do, so that
    keys are read once for all of them."""
    with sdpa_kernel(_BACKENDS_OF_SDPA[backend]):
        return functional.scaled_dot_product_attention(q, k, v)


def prefill_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str = "flash"
) -> torch.Tensor:
    """Causal attention: q (batch, heads, query, width), k and v (batch, kv_heads, query, width)."""
    with sdpa_kernel(_BACKENDS_OF_SDPA[backend]):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _decode(case: Case, data: Data) -> Iterator[Kernel]:
    a = {axis: int(value) for axis, value in case.axes.items()}
    group = a["heads"] // a["kv_heads"]
    cache = (a["batch"], a["kv_heads"], a["context"], a["head_dim"])
    if case.dtype is not None and case.dtype.is_16_bit:
        dtype = data.dtype(case.dtype)
        q = data.views([(a["batch"], a["kv_heads"], group, a["head_dim"])], dtype)[0][0]
        caches = data.views([cache, cache], dtype)
        for name in _sdpa(data.device):
            yield Kernel(f"sdpa {name}", [partial(decode_attention, q, k, v, name) for k, v in caches])
        if data.device.type == "cuda" and importlib.util.find_spec("flash_attn") is not None:
            yield _flash_decode(a, dtype, data)
    if data.device.type == "cuda" and importlib.util.find_spec("flashinfer") is not None:
        assert case.dtype is not None
        yield _flashinfer_decode(a, data.dtype(case.dtype), data)


def _flash_decode(a: dict[str, int], dtype: torch.dtype, data: Data) -> Kernel:
    from flash_attn import flash_attn_with_kvcache  # installed with some engines only

    q = data.views([(a["batch"], 1, a["heads"], a["head_dim"])], dtype)[0][0]
    cache = (a["batch"], a["context"], a["kv_heads"], a["head_dim"])
    calls = [partial(flash_attn_with_kvcache, q, k, v) for k, v in data.views([cache, cache], dtype)]
    return Kernel("flash_attn", calls)


_PAGE = 16  # tokens of a block of the paged cache
_WORKSPACE = 128 * MIB


def _flashinfer_decode(a: dict[str, int], dtype: torch.dtype, data: Data) -> Kernel:
    import flashinfer  # installed with some engines only

    batch, pages = a["batch"], -(-a["context"] // _PAGE)
    workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=data.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    indptr = torch.arange(batch + 1, dtype=torch.int32, device=data.device) * pages
    indices = torch.arange(batch * pages, dtype=torch.int32, device=data.device)
    last = torch.full((batch,), (a["context"] - 1) % _PAGE + 1, dtype=torch.int32, device=data.device)
    wrapper.plan(
        indptr,
        indices,
        last,
        a["heads"],
        a["kv_heads"],
        a["head_dim"],
        _PAGE,
        q_data_type=torch.bfloat16,
        kv_data_type=dtype,
    )
    q = data.views([(batch, a["heads"], a["head_dim"])], torch.bfloat16)[0][0]
    cache = (batch * pages, 2, _PAGE, a["kv_heads"], a["head_dim"])
    return Kernel("flashinfer", [partial(wrapper.run, q, kv) for (kv,) in data.views([cache], dtype)])


def _prefill(case: Case, data: Data) -> Iterator[Kernel]:
    a = {axis: int(value) for axis, value in case.axes.items()}
    dtype = data.wide
    q_shape = (a["batch"], a["heads"], a["query"], a["head_dim"])
    kv_shape = (a["batch"], a["kv_heads"], a["query"], a["head_dim"])
    sets = data.views([q_shape, kv_shape, kv_shape], dtype)
    for name in _sdpa(data.device):
        yield Kernel(f"sdpa {name}", [partial(prefill_attention, q, k, v, name) for q, k, v in sets])
    if data.device.type == "cuda" and importlib.util.find_spec("flash_attn") is not None:
        from flash_attn import flash_attn_func  # installed with some engines only

        swapped = [[t.transpose(1, 2) for t in views] for views in sets]
        yield Kernel("flash_attn", [partial(flash_attn_func, *views, causal=True) for views in swapped])


# --------------------------------------------------------------------------------------------
# The rest


def _copy(case: Case, data: Data) -> Iterator[Kernel]:
    """Half of the bytes are read, half written."""
    half = int(case.axes["bytes"]) // 4
    source, target = data.views([(half,), (half,)], data.wide)[0]
    yield Kernel("copy_", [partial(target.copy_, source)])


_WIDTH = 2048  # values that a norm takes together


def activate(x: torch.Tensor) -> torch.Tensor:
    """Gate and value beside one another in the last dimension, as the product before leaves them."""
    gate, value = x.chunk(2, dim=-1)
    return functional.silu(gate) * value


def _elementwise(case: Case, data: Data) -> Iterator[Kernel]:
    """A norm: one array read, one written; or an activation with its gate: two read, one written."""
    arrays = int(case.axes["arrays"])
    rows = max(1, int(case.axes["bytes"]) // (2 * arrays * _WIDTH))
    if arrays == ACTIVATION:
        gated = fused(activate, data.device)
        views = data.views([(rows, 2 * _WIDTH)], data.wide)
        yield Kernel("silu and product", [partial(gated, x) for (x,) in views])
        return
    weight = torch.ones(_WIDTH, dtype=data.wide, device=data.device)
    views = data.views([(rows, _WIDTH)], data.wide)
    calls = [partial(functional.rms_norm, x, (_WIDTH,), weight) for (x,) in views]
    yield Kernel("rms_norm", calls)


def _moe(case: Case, data: Data) -> Iterator[Kernel]:
    for name, calls in expert_calls(case, data):
        yield Kernel(name, calls)


_BACKENDS: dict[Operator, Backend] = {
    Operator.GEMM: _gemm,
    Operator.DECODE_ATTENTION: _decode,
    Operator.PREFILL_ATTENTION: _prefill,
    Operator.COPY: _copy,
    Operator.ELEMENTWISE: _elementwise,
    Operator.EXPERTS: _moe,
}
