"""Rows of the operator tables of aiconfigurator-core: which are used, and what their columns mean.

Rows are those of sizes that serving has. Latencies stand in milliseconds, messages of collectives in
elements. Of tables that hold times with and without the host's launches, the latter count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.documents.operator_tables import Columns, tables_of
from planner.samples import Key, Operator, Samples
from planner.specs import Dtype
from planner.units import MILLI

LEAST_WIDTH, MOST_ROWS = 1024, 16384
HEAD_DIMS = (64, 128)
LEAST_PROMPT = 16
LEAST_HIDDEN, FEWEST_EXPERTS, LEAST_INTERMEDIATE, MOST_EP = 2048, 64, 96, 16
LEAST_MESSAGE, MOST_MESSAGE, MOST_RANKS = 2**12, 2**27, 8
UNGATED = ((1024, 2688), (2048, 5120), (2688, 1856), (8192, 5120))
"""Hidden and intermediate sizes of models without a gate: tables do not say whether one was run for them."""
COLD, TINY = 3.0, 0.05
FILTERS: Mapping[Operator, str] = {
    Operator.GEMM: f"n, k >= {LEAST_WIDTH}, m <= {MOST_ROWS}",
    Operator.DECODE_ATTENTION: "fewer KV heads than query heads, no window, head size 64 or 128; on boards "
    f"whose cache was hot, less than {TINY:g} or at least {COLD:g} times the cache",
    Operator.PREFILL_ATTENTION: "fewer KV heads than query heads, no window, head size 64 or 128, prompts of "
    f">= {LEAST_PROMPT} tokens, 16-bit cache",
    Operator.EXPERTS: f"hidden >= {LEAST_HIDDEN}, >= {FEWEST_EXPERTS} experts, intermediate of a rank >= "
    f"{LEAST_INTERMEDIATE}, ep <= {MOST_EP}, shapes of models with a gate, MXFP4 with 16-bit activations; "
    "every distribution of visits",
    Operator.LATENT_DECODE: "all",
    Operator.LATENT_PREFILL: "16-bit cache",
    Operator.ALL_REDUCE: f"replayed as a graph, 4 KiB to 128 MiB, <= {MOST_RANKS} ranks",
}
"""Rows that are used, in words."""

FORMATS: Mapping[Dtype, str] = {
    Dtype.BF16: "bfloat16",
    Dtype.FP8: "fp8",
    Dtype.FP8_BLOCK: "fp8_block",
    Dtype.NVFP4: "nvfp4",
    Dtype.MXFP4: "w4a16_mxfp4",
    Dtype.INT4: "int4_wo",
}
"""What the tables call a format."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Source:
    """Where an operator's rows stand: table, column of the format, axes of columns, and the filter."""

    family: str
    name: str
    format: str
    columns: tuple[str, ...]
    axes: Callable[[Columns, Dtype | None], dict[str, FloatArray]]
    kept: Callable[[Columns, dict[str, FloatArray]], Mask]


def _number(columns: Columns, name: str, default: float = 0.0) -> FloatArray:
    length = len(next(iter(columns.values())))
    return np.asarray(columns[name], dtype=np.float64) if name in columns else np.full(length, default)


def _gemm_axes(c: Columns, dtype: Dtype | None) -> dict[str, FloatArray]:
    axes = {axis: _number(c, axis) for axis in ("m", "n", "k")}
    return {**axes, "quantize": np.full(len(axes["m"]), float(dtype is not Dtype.BF16))}


def _gemm_kept(_: Columns, a: dict[str, FloatArray]) -> Mask:
    return np.asarray((a["n"] >= LEAST_WIDTH) & (a["k"] >= LEAST_WIDTH) & (a["m"] <= MOST_ROWS))


def _heads(c: Columns) -> dict[str, FloatArray]:
    names = {"heads": "num_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim"}
    return {axis: _number(c, name) for axis, name in names.items()}


def _decode_axes(c: Columns, _: Dtype | None) -> dict[str, FloatArray]:
    context = _number(c, "isl") + _number(c, "step")
    return {"batch": _number(c, "batch_size"), "context": context, **_heads(c)}


def _prefill_axes(c: Columns, _: Dtype | None) -> dict[str, FloatArray]:
    sizes = {"batch": "batch_size", "query": "isl", "past": "step", "window": "window_size"}
    return {**{axis: _number(c, name) for axis, name in sizes.items()}, **_heads(c)}


def _grouped(c: Columns, a: dict[str, FloatArray]) -> Mask:
    kept = (a["heads"] > a["kv_heads"]) & np.isin(a["head_dim"], HEAD_DIMS)
    return np.asarray(kept & (_number(c, "window_size") == 0))


def _prompts(c: Columns, a: dict[str, FloatArray]) -> Mask:
    return _grouped(c, a) & (a["query"] >= LEAST_PROMPT)


def _experts_axes(c: Columns, _: Dtype | None) -> dict[str, FloatArray]:
    hidden, inner = _number(c, "hidden_size"), _number(c, "inter_size")
    return {
        "tokens": _number(c, "num_tokens"),
        "hidden": hidden,
        "intermediate": inner / _number(c, "moe_tp_size"),
        "experts": _number(c, "num_experts"),
        "top_k": _number(c, "topk"),
        "ep": _number(c, "moe_ep_size"),
        "matrices": np.full(len(hidden), 3.0),
    }


def _experts_kept(c: Columns, a: dict[str, FloatArray]) -> Mask:
    whole = _number(c, "inter_size")
    wide = np.array(["w4a4mxfp4" not in str(name) for name in c["kernel_source"]], dtype=np.bool_)
    without = [(a["hidden"] == hidden) & (whole == inner) for hidden, inner in UNGATED]
    kept = (
        (a["hidden"] >= LEAST_HIDDEN)
        & (a["experts"] >= FEWEST_EXPERTS)
        & (a["intermediate"] >= LEAST_INTERMEDIATE)
        & (a["ep"] <= MOST_EP)
    )
    return np.asarray(kept & wide & ~np.any(without, axis=0))


def _latent_decode_axes(c: Columns, _: Dtype | None) -> dict[str, FloatArray]:
    context = _number(c, "isl") + _number(c, "step")
    return {"batch": _number(c, "batch_size"), "context": context, "heads": _number(c, "num_heads")}


def _latent_prefill_axes(c: Columns, _: Dtype | None) -> dict[str, FloatArray]:
    return {"batch": _number(c, "batch_size"), "query": _number(c, "isl"), "heads": _number(c, "num_heads")}


def _all(_: Columns, a: dict[str, FloatArray]) -> Mask:
    return np.ones(len(next(iter(a.values()))), dtype=np.bool_)


_ELEMENT_BYTES = {"bfloat16": 2.0, "half": 2.0, "float16": 2.0, "int8": 1.0, "float32": 4.0}


def _message_axes(c: Columns, _: Dtype | None) -> dict[str, FloatArray]:
    width = np.array([_ELEMENT_BYTES[str(name)] for name in c["allreduce_dtype"]])
    return {"bytes": _number(c, "message_size") * width, "ranks": _number(c, "num_gpus")}


def _replayed(c: Columns, a: dict[str, FloatArray]) -> Mask:
    """Rows without the host's launch: of graphs, where a table has both."""
    eager = np.array([str(name).endswith("_eager") for name in c.get("kernel_source", ())], dtype=np.bool_)
    size = (a["bytes"] >= LEAST_MESSAGE) & (a["bytes"] <= MOST_MESSAGE)
    return np.asarray(~eager & size & (a["ranks"] <= MOST_RANKS))


_ATTENTION = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
_OPTIONAL = ("window_size", "distribution")
"""Columns that older tables lack: their rows have no window, and even visits."""
_LATENT = ("batch_size", "isl", "step", "num_heads")
_CACHE = "kv_cache_dtype"
_SOURCES: Mapping[Operator, _Source] = {
    Operator.GEMM: _Source(
        family="gemm",
        name="gemm_perf",
        format="gemm_dtype",
        columns=("m", "n", "k"),
        axes=_gemm_axes,
        kept=_gemm_kept,
    ),
    Operator.DECODE_ATTENTION: _Source(
        family="attention",
        name="generation_attention_perf",
        format=_CACHE,
        columns=_ATTENTION,
        axes=_decode_axes,
        kept=_grouped,
    ),
    Operator.PREFILL_ATTENTION: _Source(
        family="attention",
        name="context_attention_perf",
        format=_CACHE,
        columns=_ATTENTION,
        axes=_prefill_axes,
        kept=_prompts,
    ),
    Operator.EXPERTS: _Source(
        family="moe",
        name="moe_perf",
        format="moe_dtype",
        columns=(
            *("num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
            *("moe_tp_size", "moe_ep_size"),
        ),
        axes=_experts_axes,
        kept=_experts_kept,
    ),
    Operator.LATENT_DECODE: _Source(
        family="mla",
        name="generation_mla_perf",
        format=_CACHE,
        columns=_LATENT,
        axes=_latent_decode_axes,
        kept=_all,
    ),
    Operator.LATENT_PREFILL: _Source(
        family="mla",
        name="context_mla_perf",
        format=_CACHE,
        columns=_LATENT,
        axes=_latent_prefill_axes,
        kept=_all,
    ),
    Operator.ALL_REDUCE: _Source(
        family="comm",
        name="custom_allreduce_perf",
        format="allreduce_dtype",
        columns=("num_gpus", "message_size"),
        axes=_message_axes,
        kept=_replayed,
    ),
}


def read_operator(systems: Path, system: str, key: Key, engine: str) -> tuple[Samples, str] | None:
    """Samples of an operator at a format from an engine's newest table that has it, and its version.

    None where the engine has no such table.

    Raises
    ------
    SpecError
        pyarrow missing, or a damaged table.
    """
    operator, dtype = key
    source = _SOURCES[operator]
    tables = tables_of(
        systems,
        system,
        source.family,
        engine,
        source.name,
        required=(*source.columns, source.format, "kernel_source", "latency"),
        optional=_OPTIONAL,
    )
    for table in tables:
        of_format = np.asarray(table.columns[source.format] == FORMATS[dtype or Dtype.BF16])
        if of_format.any():
            columns = {name: values[of_format] for name, values in table.columns.items()}
            return _samples(source, key, columns), table.version
    return None


def _samples(source: _Source, key: Key, columns: Columns) -> Samples:
    axes = source.axes(columns, key[1])
    kept = source.kept(columns, axes)
    samples = Samples(
        operator=key[0],
        dtype=key[1],
        axes=axes,
        time=_number(columns, "latency") * MILLI,
        spread=np.full(len(kept), np.nan),
        kernels=tuple(str(kernel) for kernel in columns["kernel_source"]),
    ).part(kept)
    return _unique(samples, columns.get("distribution", np.full(len(kept), ""))[kept])


def _unique(samples: Samples, distribution: NDArray[np.object_]) -> Samples:
    """One sample per case, kernel and distribution: the median of those that a table has twice."""
    columns = [*samples.axes.values()]
    words = [np.asarray(samples.kernels, dtype=object), distribution]
    columns += [np.unique(w.astype(str), return_inverse=True)[1].astype(np.float64) for w in words if len(w)]
    _, first, group = np.unique(np.column_stack(columns), axis=0, return_index=True, return_inverse=True)
    if len(first) == len(samples):
        return samples
    order = np.argsort(first)
    medians = np.array([np.median(samples.time[group == i]) for i in order])
    found = samples.part(np.isin(np.arange(len(samples)), first))
    return Samples(
        operator=found.operator,
        dtype=found.dtype,
        axes=found.axes,
        time=medians,
        spread=found.spread,
        kernels=found.kernels,
    )
