"""What is timed on a device to tell its coefficients: shapes that lie on every side of the roofline's ridge.

Which shapes identify which coefficient was tried on published operator tables: of matrix products few rows
tell bandwidth and fixed time, many the rate of arithmetic; decode attention needs short and long contexts,
and batches from one to hundreds, to tell the traffic of the cache from the work per block of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, zip_longest

from planner.samples import Operator
from planner.specs import Dtype
from planner.units import GIB, MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One thing to time: an operator at a format and a shape, see :data:`planner.samples.AXES`."""

    operator: Operator
    dtype: Dtype | None
    axes: Mapping[str, float]

    def __str__(self) -> str:
        name = str(self.operator) if self.dtype is None else f"{self.operator}.{self.dtype}"
        return name + "".join(f" {axis}={value:g}" for axis, value in self.axes.items() if value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Shapes to time.

    Attributes
    ----------
    gemm_rows, gemm_shapes : rows (tokens) of a product, and its columns and depth.
    decode_heads, decode_loads : query and KV heads, and sequences with their context. [1], [tok]
    prefill_loads, prefill_heads : prompts with their length [tok]; query and KV heads and their width.
    elementwise_rows, elementwise_widths : rows, and values in each.
    experts_tokens, experts_shapes : tokens; hidden size, width of an expert, experts, experts of a token.
    message_bytes : of collectives. [B]
    copy_bytes : read and written by a copy. [B]
    """

    gemm_rows: tuple[int, ...]
    gemm_shapes: tuple[tuple[int, int], ...]
    decode_heads: tuple[tuple[int, int], ...]
    decode_loads: tuple[tuple[int, int], ...]
    prefill_loads: tuple[tuple[int, int], ...]
    prefill_heads: tuple[tuple[int, int, int], ...]
    elementwise_rows: tuple[int, ...]
    elementwise_widths: tuple[int, ...]
    experts_tokens: tuple[int, ...]
    experts_shapes: tuple[tuple[int, int, int, int], ...]
    message_bytes: tuple[int, ...]
    copy_bytes: tuple[int, ...]


_MESSAGES = (*(4096 * 4**i for i in range(8)), 128 * MIB)
HEAD_DIM = 128
NORM, ACTIVATION = 2, 3
"""Arrays that a norm and a gated activation read and write."""

FULL_GPU = Plan(
    gemm_rows=(1, 16, 128, 512, 2048, 8192),
    gemm_shapes=((1024, 4096), (4096, 1024), (5120, 5120), (16384, 8192)),
    decode_heads=((8, 1), (32, 8), (64, 8)),
    decode_loads=(
        (1, 128),
        (1, 4096),
        (1, 32768),
        (16, 2048),
        (64, 2048),
        (128, 1024),
        (256, 512),
        (512, 128),
    ),
    prefill_loads=((1, 64), (1, 512), (1, 2048), (1, 8192), (1, 16384), (32, 512)),
    prefill_heads=((32, 8, 128), (32, 8, 64), (8, 1, 128), (64, 8, 128)),
    elementwise_rows=(1, 16, 128, 512, 2048, 8192),
    elementwise_widths=(4096, 8192),
    experts_tokens=(1, 4, 8, 32, 64, 128, 512, 1024, 2048, 8192),
    experts_shapes=((4096, 1536, 64, 4), (2048, 768, 128, 8)),
    message_bytes=_MESSAGES,
    copy_bytes=(2 * GIB,),
)
QUICK_GPU = Plan(  # all of them among those above: runs can be compared
    gemm_rows=(1, 16, 512, 8192),
    gemm_shapes=((1024, 4096), (5120, 5120), (16384, 8192)),
    decode_heads=((8, 1), (32, 8)),
    decode_loads=((1, 128), (1, 32768), (64, 2048), (256, 512), (512, 128)),
    prefill_loads=((1, 64), (1, 2048), (1, 8192), (32, 512)),
    prefill_heads=((32, 8, 128), (8, 1, 128)),
    elementwise_rows=(1, 8192),
    elementwise_widths=(4096,),
    experts_tokens=(1, 32, 1024, 8192),
    experts_shapes=((2048, 768, 128, 8),),
    message_bytes=_MESSAGES[::2],
    copy_bytes=(2 * GIB,),
)
QUICK_CPU = Plan(
    gemm_rows=(1, 4, 16, 64, 256, 1024),
    gemm_shapes=((1024, 2048), (2048, 5632), (5632, 2048), (4096, 4096), (16384, 2048)),
    decode_heads=((8, 1), (32, 8)),
    decode_loads=((1, 128), (1, 2048), (1, 16384), (4, 1024), (16, 256), (16, 1024)),
    prefill_loads=((1, 64), (1, 256), (1, 1024), (1, 2048), (4, 256)),
    prefill_heads=((32, 8, 128), (16, 8, 64), (8, 1, 128)),
    elementwise_rows=(1, 16, 256, 1024),
    elementwise_widths=(2048, 5632),
    experts_tokens=(),
    experts_shapes=(),
    message_bytes=_MESSAGES[:6:2],
    copy_bytes=(256 * MIB,),
)
FULL_CPU = Plan(
    gemm_rows=(1, 2, 4, 8, 16, 64, 256, 1024, 2048),
    gemm_shapes=(*QUICK_CPU.gemm_shapes, (4096, 1024), (8192, 8192)),
    decode_heads=((8, 1), (32, 8), (64, 8)),
    decode_loads=(*QUICK_CPU.decode_loads, (4, 8192), (64, 256)),
    prefill_loads=(*QUICK_CPU.prefill_loads, (1, 4096)),
    prefill_heads=(*QUICK_CPU.prefill_heads, (32, 8, 64)),
    elementwise_rows=(1, 16, 256, 1024, 4096),
    elementwise_widths=(2048, 4096, 5632),
    experts_tokens=(1, 8, 32, 128, 512),
    experts_shapes=((1024, 2048, 8, 2), (2048, 768, 16, 4)),
    message_bytes=_MESSAGES[:7],
    copy_bytes=(256 * MIB,),
)


def plan_of(kind: str, *, full: bool) -> Plan:
    """Shapes for a kind of device, "cpu" or any other."""
    if kind == "cpu":
        return FULL_CPU if full else QUICK_CPU
    return FULL_GPU if full else QUICK_GPU


def cases_of(
    plan: Plan, weights: Sequence[Dtype], kv_caches: Sequence[Dtype], experts: Sequence[Dtype] = ()
) -> tuple[Case, ...]:
    """Cases of all operators of one device, in an order in which any first part covers all of them.

    Products of 8 and 4 bits are timed with and without the pass that quantises activations.
    """
    series: list[list[Case]] = [_copies(plan)]
    for dtype in weights:
        series.append([_gemm(dtype, m, shape, 0) for shape, m in product(plan.gemm_shapes, plan.gemm_rows)])
        if dtype.bytes < Dtype.BF16.bytes and dtype is not Dtype.INT8:
            shapes = product(plan.gemm_shapes, plan.gemm_rows)
            series.append([_gemm(dtype, m, shape, 1) for shape, m in shapes])
    for dtype in kv_caches:
        series.append([_decode(dtype, h, load) for h, load in product(plan.decode_heads, plan.decode_loads)])
    series.append([_prefill(h, load) for h, load in product(plan.prefill_heads, plan.prefill_loads)])
    sizes = product(plan.elementwise_widths, plan.elementwise_rows)
    series.append([_elementwise(*size, arrays) for size, arrays in product(sizes, (NORM, ACTIVATION))])
    for dtype in experts:
        series.append([_experts(dtype, s, t) for s, t in product(plan.experts_shapes, plan.experts_tokens)])
    return tuple(_interleaved([_spread_out(cases) for cases in series]))


def _interleaved(series: Sequence[Sequence[Case]]) -> Iterator[Case]:
    for row in zip_longest(*series):
        yield from (case for case in row if case is not None)


def _spread_out(cases: list[Case]) -> list[Case]:
    """A fixed order that soon has cases from everywhere: steps of about the golden section."""
    count = len(cases)
    if count < 3:
        return cases
    step = next(s for s in range(round(count * 0.618), count + 1) if _coprime(s, count))
    return [cases[i * step % count] for i in range(count)]


def _coprime(a: int, b: int) -> bool:
    while b:
        a, b = b, a % b
    return a == 1


def _copies(plan: Plan) -> list[Case]:
    return [Case(operator=Operator.COPY, dtype=None, axes={"bytes": size}) for size in plan.copy_bytes]


def _gemm(dtype: Dtype, m: int, shape: tuple[int, int], quantize: int) -> Case:
    n, k = shape
    return Case(operator=Operator.GEMM, dtype=dtype, axes={"m": m, "n": n, "k": k, "quantize": quantize})


def _decode(dtype: Dtype, heads: tuple[int, int], load: tuple[int, int]) -> Case:
    axes = {
        "batch": load[0],
        "context": load[1],
        "heads": heads[0],
        "kv_heads": heads[1],
        "head_dim": HEAD_DIM,
    }
    return Case(operator=Operator.DECODE_ATTENTION, dtype=dtype, axes=axes)


def _prefill(heads: tuple[int, int, int], load: tuple[int, int]) -> Case:
    axes = {"batch": load[0], "query": load[1], "past": 0, "window": 0}
    axes |= {"heads": heads[0], "kv_heads": heads[1], "head_dim": heads[2]}
    return Case(operator=Operator.PREFILL_ATTENTION, dtype=None, axes=axes)


def _elementwise(width: int, rows: int, arrays: int) -> Case:
    """A norm or an activation over 16-bit values."""
    axes = {"bytes": 2 * arrays * rows * width, "arrays": arrays}
    return Case(operator=Operator.ELEMENTWISE, dtype=None, axes=axes)


def _experts(dtype: Dtype, shape: tuple[int, int, int, int], tokens: int) -> Case:
    hidden, inner, experts, top_k = shape
    axes = {"tokens": tokens, "hidden": hidden, "intermediate": inner, "experts": experts, "top_k": top_k}
    return Case(operator=Operator.EXPERTS, dtype=dtype, axes={**axes, "ep": 1, "matrices": 3})


def footprint(case: Case) -> float:
    """Largest operand of a case, which the data to choose it from must hold. [B]"""
    a = case.axes
    if case.operator is Operator.GEMM:
        bytes_of = (case.dtype or Dtype.BF16).bytes
        return max(a["m"] * a["k"] * 2, a["n"] * a["k"] * max(bytes_of, 1.0))
    if case.operator is Operator.DECODE_ATTENTION:
        return 2 * a["batch"] * a["context"] * a["kv_heads"] * a["head_dim"] * 2
    if case.operator is Operator.PREFILL_ATTENTION:
        return 2 * a["batch"] * a["query"] * a["heads"] * a["head_dim"] * 2
    if case.operator is Operator.EXPERTS:
        return a["experts"] * a["hidden"] * 2 * a["intermediate"] * 2
    return a.get("bytes", 0.0)


def arithmetic(case: Case) -> float:
    """Arithmetic of a case, for products and prompts; 0 for what is bound by traffic. [FLOP]"""
    a = case.axes
    if case.operator is Operator.GEMM:
        return 2.0 * a["m"] * a["n"] * a["k"]
    if case.operator is Operator.PREFILL_ATTENTION:
        return 2.0 * a["batch"] * a["heads"] * a["head_dim"] * a["query"] ** 2
    return 0.0
