"""Measured times of single operators: what coefficients of a GPU are fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.errors import SpecError
from planner.specs import Dtype


class Operator(StrEnum):
    """What was timed. Kernels of one layer first, then links, then what tells of the device itself."""

    GEMM = "gemm"
    DECODE_ATTENTION = "decode_attention"
    PREFILL_ATTENTION = "prefill_attention"
    EXPERTS = "moe"
    LATENT_DECODE = "mla_decode"
    LATENT_PREFILL = "mla_prefill"
    ALL_REDUCE = "all_reduce"
    POINT_TO_POINT = "point_to_point"
    COPY = "copy"
    ELEMENTWISE = "elementwise"
    LAUNCH = "launch"
    HOST_COPY = "host_copy"


AXES: Mapping[Operator, tuple[str, ...]] = {
    Operator.GEMM: ("m", "n", "k", "quantize"),
    Operator.DECODE_ATTENTION: ("batch", "context", "heads", "kv_heads", "head_dim"),
    Operator.PREFILL_ATTENTION: ("batch", "query", "past", "window", "heads", "kv_heads", "head_dim"),
    Operator.EXPERTS: ("tokens", "hidden", "intermediate", "experts", "top_k", "ep", "matrices"),
    Operator.LATENT_DECODE: ("batch", "context", "heads"),
    Operator.LATENT_PREFILL: ("batch", "query", "heads"),
    Operator.ALL_REDUCE: ("bytes", "ranks"),
    Operator.POINT_TO_POINT: ("bytes", "ranks"),
    Operator.COPY: ("bytes",),
    Operator.ELEMENTWISE: ("bytes", "arrays"),
    Operator.LAUNCH: (),
    Operator.HOST_COPY: ("bytes",),
}
"""Axes of each operator, whole numbers of one GPU's share of the work.

``quantize`` is 1 where the time holds the pass that quantises 16-bit activations; ``past`` tokens are in the
KV cache already; ``window`` is 0 where there is none; ``intermediate`` is that of one expert on one rank;
``matrices`` is 3 with a gate and 2 without; ``arrays`` of a small kernel is 2 for a norm (one read, one
written) and 3 for a gated activation (two read). ``bytes`` are those of the message, or all that cross HBM.
"""
ALL_AXES: tuple[str, ...] = tuple(dict.fromkeys(axis for axes in AXES.values() for axis in axes))
TYPED = (
    Operator.GEMM,
    Operator.DECODE_ATTENTION,
    Operator.EXPERTS,
    Operator.LATENT_DECODE,
)
"""Operators with coefficients for each format: of weights, or of the KV cache."""

Key = tuple[Operator, Dtype | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Times of one operator at one format, one entry per case along every array.

    Attributes
    ----------
    dtype : Dtype or None
        Of the weights, or of the KV cache; None where the operator has coefficients of one format only.
    axes : mapping of str to ndarray
        The operator's axes.
    time : ndarray
        Median of the repetitions. [s]
    spread : ndarray
        Half the distance of the quartiles over the median; nan where unknown. [1]
    kernels : tuple of str
        What was run, e.g. a library's name; empty where unknown.
    """

    operator: Operator
    dtype: Dtype | None
    axes: Mapping[str, FloatArray]
    time: FloatArray
    spread: FloatArray
    kernels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if set(self.axes) != set(AXES[self.operator]):
            raise SpecError(f"samples of {self.operator}: axes must be {', '.join(AXES[self.operator])}")
        lengths = {len(values) for values in (*self.axes.values(), self.time, self.spread)}
        if len(lengths) != 1 or (self.kernels and len(self.kernels) not in lengths):
            raise SpecError(f"samples of {self.operator}: all arrays must have one length")

    def __len__(self) -> int:
        return len(self.time)

    @property
    def key(self) -> Key:
        return self.operator, self.dtype

    def part(self, kept: NDArray[np.bool_]) -> Samples:
        """Some of the cases."""
        return Samples(
            operator=self.operator,
            dtype=self.dtype,
            axes={name: values[kept] for name, values in self.axes.items()},
            time=self.time[kept],
            spread=self.spread[kept],
            kernels=tuple(k for k, keep in zip(self.kernels, kept, strict=True) if keep)
            if self.kernels
            else (),
        )

    @classmethod
    def of_rows(
        cls,
        operator: Operator,
        dtype: Dtype | None,
        rows: Sequence[Mapping[str, float]],
        time: Sequence[float],
        spread: Sequence[float] | None = None,
        kernels: Sequence[str] = (),
    ) -> Samples:
        """Samples from one mapping of axes per case; `time` in seconds."""
        return cls(
            operator=operator,
            dtype=dtype,
            axes={axis: np.array([float(row[axis]) for row in rows]) for axis in AXES[operator]},
            time=np.asarray(time, dtype=np.float64),
            spread=np.full(len(rows), np.nan) if spread is None else np.asarray(spread, dtype=np.float64),
            kernels=tuple(kernels),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleSet:
    """Everything that was measured on one device.

    Attributes
    ----------
    facts : mapping of str to str
        Of the device and the software, as they go into a file's head: device, driver, torch, ...
    """

    device: str
    tables: Mapping[Key, Samples]
    facts: Mapping[str, str] = field(default_factory=dict)

    def fastest(self) -> SampleSet:
        """For each case the time of the library that ran it fastest: that is what engines pick."""
        return replace(self, tables={key: fastest(found) for key, found in self.tables.items()})

    def get(self, operator: Operator, dtype: Dtype | None = None) -> Samples | None:
        """Samples of an operator; None where there are none."""
        return self.tables.get((operator, dtype))

    def formats(self, operator: Operator) -> tuple[Dtype, ...]:
        """Formats at which an operator was measured."""
        return tuple(dtype for op, dtype in self.tables if op is operator and dtype is not None)

    def __len__(self) -> int:
        return sum(len(samples) for samples in self.tables.values())


def fastest(samples: Samples) -> Samples:
    """One entry per case, in the order in which cases first stand there; no times count only alone."""
    axes = [samples.axes[name] for name in AXES[samples.operator]]
    best: dict[tuple[float, ...], int] = {}
    for i, case in enumerate(zip(*axes, strict=True) if axes else [()] * len(samples)):
        known = best.setdefault(case, i)
        if samples.time[i] > 0 and not samples.time[known] <= samples.time[i]:
            best[case] = i
    index = np.array(list(best.values()), dtype=np.intp)
    return Samples(
        operator=samples.operator,
        dtype=samples.dtype,
        axes={name: values[index] for name, values in samples.axes.items()},
        time=samples.time[index],
        spread=samples.spread[index],
        kernels=tuple(samples.kernels[i] for i in index) if samples.kernels else (),
    )
