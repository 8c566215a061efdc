"""Operators of a model's steps as points under a GPU's roofs.

FLOP and bytes of an operator are those that its time is computed from: the same functions, asked on a machine
that does one FLOP per second and moves bytes in no time, and on one that does the reverse, neither with fixed
costs. So what is counted is what :mod:`planner.operators` counts, for every kind of layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.arrays import Numbers
from planner.latency import decode_step_time, head_time, padded_batch, prompt_time
from planner.latent import INDEXER_COMPUTE_EFFICIENCY, STATE_COMPUTE_EFFICIENCY
from planner.memory import prefill_budget
from planner.operators import PromptShape, ReplicaSet, decode_mixing, layer_operators, prefill_mixing
from planner.roofline import ELEMENTWISE_EFFICIENCY, SIXTEEN_BITS, dtype_of_rows
from planner.rooflines import Roof, Roofline, RooflinePoint
from planner.specs import (
    GPU,
    Attention,
    Dtype,
    Engine,
    Layer,
    MixtureOfExperts,
    Model,
    Parallelism,
    Phase,
    Precision,
    StateMixer,
)
from planner.transformer import mixing_flop_per_pair, seen_context, state_flop

WHOLE_STEP = "whole step"
ATTENTION, HEAD = "attention", "head"
BATCHES = (1, 8, 64)
"""Sequences of decode steps that are shown where nobody says how many."""

_LEFT_OUT = ("all-reduce", "elementwise")
"""Operators of a layer without arithmetic to speak of, or whose bytes cross no HBM."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operating:
    """What a replica works on: decode steps of these batches at `context`, and prompts of `isl` tokens.

    Either may be left out: no `batches`, or None. `token_budget`: of a step; None: what the engine takes for
    prompts. [tok]
    """

    isl: float | None
    context: float
    batches: tuple[float, ...] = BATCHES
    token_budget: float | None = None


def roofline_of(
    gpu: GPU,
    model: Model,
    precision: Precision,
    engine: Engine,
    parallelism: Parallelism,
    operating: Operating,
) -> Roofline:
    """The operators of a model on one GPU of a replica.

    Raises
    ------
    SpecError
        If the GPU has no kernel for the formats, or its ranks no all-reduce.
    """
    r = ReplicaSet.of(model, precision, engine, [(gpu, parallelism)])
    points: list[RooflinePoint] = []
    if operating.isl is not None:
        budget = float(operating.token_budget or prefill_budget(engine, gpu))
        points += _prompt_points(r, gpu, precision, operating.isl, budget)
    for batch in operating.batches:
        points += _decode_points(r, gpu, precision, batch, operating.context)
    used = dict.fromkeys((*(p.dtype for p in points), _computed_in(gpu, precision.weights)))
    roofs = sorted((Roof.of(gpu, d) for d in used), key=lambda roof: (roof.peak, roof.compute_rate))
    status = gpu.calibration.status.value
    return Roofline(gpu=gpu.name, calibration=status, roofs=tuple(roofs), points=tuple(points))


# --------------------------------------------------------------------------------------------
# Counting


_KERNELS = (
    "attention", "body", "head", "decode_attention", "prefill_attention", "experts", "latent_decode",
    "latent_prefill",
)  # fmt: skip


def _counting(r: ReplicaSet, *, traffic: bool) -> ReplicaSet:
    """`r` on a machine whose times are counts: one FLOP per second and no time for bytes, or the reverse."""
    compute, memory = (np.inf, 1.0) if traffic else (1.0, np.inf)
    rates = {"compute_rate": compute, "memory_rate": memory, "activation_rate": memory}
    nothing = {"overhead": 0.0, "softmax_time": 0.0, "cta_time": 0.0, "block_time": 0.0, "row_tile": 1.0}
    values = {**rates, **nothing, "quantization_rate": np.inf}

    def counted(kernel: Any) -> Any:
        if kernel is None:
            return None
        own = {k: np.full_like(r.tp, v) for k, v in values.items() if hasattr(kernel, k)}
        return replace(kernel, **own)

    bandwidth = np.full_like(r.bandwidth, memory / ELEMENTWISE_EFFICIENCY)
    return replace(r, bandwidth=bandwidth, **{name: counted(getattr(r, name)) for name in _KERNELS})


def _with_peak(r: ReplicaSet, layer: Layer, *, traffic: bool) -> ReplicaSet:
    """The machine that counts, with the rate of operators that have no kernel of their own."""
    state = isinstance(layer.attention, StateMixer)
    share = STATE_COMPUTE_EFFICIENCY if state else INDEXER_COMPUTE_EFFICIENCY
    return replace(r, peak=np.full_like(r.peak, np.inf if traffic else 1.0 / share))


def _narrow(layer: Layer) -> Layer:
    """The layer with a router whose arithmetic counts as it is, not by how slow it is in 32 bits."""
    block = layer.feed_forward
    if not isinstance(block, MixtureOfExperts):
        return layer
    return replace(layer, feed_forward=replace(block, wide_router=False))


@dataclass(slots=True)
class _Sums:
    """FLOP, bytes and seconds of one operator over all layers."""

    flop: float = 0.0
    traffic: float = 0.0
    time: float = 0.0


class _Tally(dict[str, _Sums]):
    """Sums by operator."""

    def add(self, name: str, flop: Numbers, traffic: Numbers, time: Numbers, count: float = 1.0) -> None:
        sums = self.setdefault(name, _Sums())
        sums.flop += count * float(np.asarray(flop).flat[0])
        sums.traffic += count * float(np.asarray(traffic).flat[0])
        sums.time += count * float(np.asarray(time).flat[0])


def _machines(r: ReplicaSet, layer: Layer) -> tuple[ReplicaSet, ReplicaSet]:
    """One that counts FLOP, and one that counts bytes, of this layer."""
    flop, traffic = (_with_peak(_counting(r, traffic=t), layer, traffic=t) for t in (False, True))
    return flop, traffic


def _add_matrices(tally: _Tally, r: ReplicaSet, tokens: float, real: float, times: float = 1.0) -> None:
    """Matrix products of all layers on `tokens`, of which `real` are no padding, `times` times."""
    for run in r.kinds:
        machines = _machines(r, run.layer)
        layers = (_narrow(run.layer), _narrow(run.layer), run.layer)
        asked = zip((*machines, r), layers, strict=True)
        each = [layer_operators(machine, layer, tokens, real) for machine, layer in asked]
        for flop, traffic, time in zip(*each, strict=True):
            if flop.name not in _LEFT_OUT:
                tally.add(flop.name, flop.time, traffic.time, time.time, times * run.count)


def _add_head(tally: _Tally, r: ReplicaSet, rows: float) -> None:
    machines = _machines(r, r.kinds[0].layer)
    flop, traffic, time = (head_time(machine, rows) for machine in (*machines, r))
    tally.add(HEAD, flop, traffic, time)


# --------------------------------------------------------------------------------------------
# Steps


def _prompt_points(
    r: ReplicaSet, gpu: GPU, precision: Precision, isl: float, budget: float
) -> Iterator[RooflinePoint]:
    """A prompt alone, in steps of at most `budget` tokens."""
    tally = _Tally()
    full, rest = divmod(isl, budget)
    for times, tokens in ((full, budget), (1.0, rest)):
        if times and tokens:
            _add_matrices(tally, r, tokens, tokens, times)
    steps = full + (rest > 0)
    shape = PromptShape(
        query=isl, cached=0.0, chunk=budget, others=0.0, others_query=0.0, others_area=0.0, steps=steps
    )
    for run in r.kinds:
        machines = (*_machines(r, run.layer), r)
        flop, traffic, own = (prefill_mixing(machine, run.layer, shape) for machine in machines)
        tally.add(ATTENTION, flop, traffic, own, run.count)
    _add_head(tally, r, 1.0)
    whole = float(prompt_time(r, isl, 0.0, budget).service.flat[0])
    yield from _points(tally, gpu, precision, Phase.PREFILL, 1.0, isl, whole)


def _decode_points(
    r: ReplicaSet, gpu: GPU, precision: Precision, batch: float, context: float
) -> Iterator[RooflinePoint]:
    """A step that gives each of `batch` sequences a token."""
    tally = _Tally()
    micro = float(batch / r.lanes[0])
    padded = float(padded_batch(r.engine, micro))
    _add_matrices(tally, r, padded, max(micro, 1.0 / float(r.dp[0])))
    for run in r.kinds:
        layer = run.layer
        flop, traffic, own = (decode_mixing(m, layer, micro, context) for m in (*_machines(r, layer), r))
        if isinstance(layer.attention, Attention | StateMixer):  # whose times come from bytes alone
            pairs = mixing_flop_per_pair(layer, absorbed=True) * seen_context(layer, context)
            flop = micro * (pairs + state_flop(layer)) / r.tp
        tally.add(ATTENTION, flop, traffic, own, run.count)
    _add_head(tally, r, padded)
    whole = float(decode_step_time(r, batch, context).flat[0])
    yield from _points(tally, gpu, precision, Phase.DECODE, batch, context, whole)


def _points(
    tally: _Tally, gpu: GPU, precision: Precision, phase: Phase, batch: float, context: float, whole: float
) -> Iterator[RooflinePoint]:
    """Each operator of a step, and all of them over the time of the whole step."""
    formats = {
        "qkv projection": _computed_in(gpu, precision.of_attention),
        "output projection": _computed_in(gpu, precision.of_attention),
        "experts": _computed_in(gpu, precision.of_experts),
        ATTENTION: _computed_in(gpu, Dtype.BF16),
        HEAD: _computed_in(gpu, Dtype.BF16),
        "router": _computed_in(gpu, Dtype.BF16),
    }
    body = _computed_in(gpu, precision.weights)
    sums = {name: s for name, s in tally.items() if s.flop > 0 and s.traffic > 0}
    total = _Sums(
        flop=sum(s.flop for s in sums.values()), traffic=sum(s.traffic for s in sums.values()), time=whole
    )
    for name, s in {**sums, WHOLE_STEP: total}.items():
        yield RooflinePoint(
            phase=phase,
            operator=name,
            dtype=formats.get(name, body),
            batch=batch,
            context=context,
            flop=s.flop,
            traffic=s.traffic,
            time=s.time,
        )


def _computed_in(gpu: GPU, dtype: Dtype) -> Dtype:
    """Format of the arithmetic on weights stored as `dtype`: 16 bits where the GPU has no other."""
    found = dtype_of_rows(dtype, gpu) or dtype_of_rows(Dtype.BF16, gpu)
    return found if found is not None else next((d for d in SIXTEEN_BITS if d in gpu.peak_flops), dtype)
