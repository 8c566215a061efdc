"""Closed loops of measured rows: kernels computed once, model by model, for any constants afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.closed_loop import Loops, LoopTable, joined
from planner.collectives import kv_transfer_time
from planner.documents.measured_file import MeasuredRow
from planner.errors import SpecError
from planner.memory import kv_capacity, memory_budgets, prefill_budget, sequence_limit, tightest
from planner.operators import ReplicaSet
from planner.specs import Admission, Engine, FamilyKey, Parallelism, Phase
from planner.transformer import equivalent_tokens, kv_bytes
from planner.validation.resolve import Target, Unpredicted, resolve

LENGTH_SHARE = 0.9
"""Mean length over the nominal one: InferenceX draws "random" lengths from 0.8 to 1.0 of it."""
REPEAT = "repeats another row: the same configuration with the same figures"
DOES_NOT_FIT = "weights and one sequence do not fit in memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class Points:
    """Rows that can be predicted, and why the others cannot.

    Attributes
    ----------
    rows : tuple of MeasuredRow
        All rows, in the file's order.
    index : ndarray, shape (points,)
        Which of `rows` each entry of the arrays belongs to.
    table : LoopTable
        Kernels of the rows.
    targets : tuple of Target
        One per point.
    families : tuple of FamilyKey
        Engine and shape of the model of each.
    kernel_log_sd, prompt_kernel_log_sd : ndarray, shape (points,)
        Spread of kernels of decode steps and of prompts, natural logarithm. [1]
    ttft, tpot : ndarray, shape (points,)
        Measured; nan where absent. [s]
    reasons : dict of str
        By number of the row.
    """

    rows: tuple[MeasuredRow, ...]
    index: NDArray[np.intp]
    table: LoopTable
    targets: tuple[Target, ...]
    families: tuple[FamilyKey, ...]
    kernel_log_sd: FloatArray
    prompt_kernel_log_sd: FloatArray
    ttft: FloatArray
    tpot: FloatArray
    reasons: dict[int, str]


def points_of(rows: Sequence[MeasuredRow]) -> Points:
    """What of `rows` can be predicted.

    Raises
    ------
    SpecError
        If no row can.
    """
    found: dict[tuple[str, str, bool], list[tuple[int, Target, float]]] = {}
    reasons: dict[int, str] = {}
    seen: set[tuple[str, ...]] = set()
    for number, row in enumerate(rows):
        identity = tuple(value for name, value in row.cells.items() if name not in _LABELS)
        if identity in seen:
            reasons[number] = REPEAT
            continue
        seen.add(identity)
        try:
            target = resolve(row)
            slots = _slots(row, target)
        except Unpredicted as reason:
            reasons[number] = str(reason)
            continue
        key = (target.model.name, target.engine.name, row.disaggregated)
        found.setdefault(key, []).append((number, target, slots))
    if not found:
        counted = "; ".join(sorted(set(reasons.values())))
        raise SpecError(f"none of the {len(rows):,} rows can be predicted: {counted}")
    tables, order, targets, spreads = [], [], [], []
    for group in found.values():
        numbers = [number for number, _, _ in group]
        these = [target for _, target, _ in group]
        table, decoding, prompts = _table([rows[n] for n in numbers], these, [s for _, _, s in group])
        tables.append(table)
        order += numbers
        targets += these
        spreads.append((decoding.log_sd, prompts.log_sd))
    index = np.array(order, dtype=np.intp)
    return Points(
        rows=tuple(rows),
        index=index,
        table=joined(tables),
        targets=tuple(targets),
        families=tuple((t.engine.name, t.model.shape) for t in targets),
        kernel_log_sd=np.concatenate([d for d, _ in spreads]),
        prompt_kernel_log_sd=np.concatenate([p for _, p in spreads]),
        ttft=np.array([rows[i].ttft for i in order]),
        tpot=np.array([rows[i].tpot for i in order]),
        reasons=reasons,
    )


_LABELS = ("id", "measured", "origin", "repair")
"""Columns that are no part of what was measured."""


def _bare(engine: Engine) -> Engine:
    """`engine` without what is added to kernels or multiplies them, and without an error of its own."""
    return replace(
        engine,
        step_overhead=0.0,
        sequence_overhead=0.0,
        decode_scale=1.0,
        prefill_scale=1.0,
        model_factors=(),
        log_sd=0.0,
        family_log_sd=0.0,
    )


def _slots(row: MeasuredRow, target: Target) -> float:
    """Sequences that the KV caches of all decoding replicas hold."""
    phases = (Phase.PREFILL, Phase.DECODE) if row.disaggregated else (Phase.COLOCATED,)
    isl, osl = LENGTH_SHARE * row.isl, LENGTH_SHARE * row.osl
    held = 0.0
    for phase, (workers, layout) in zip(phases, target.pools, strict=True):
        held = workers * _held(target, layout, phase, isl, osl)
        if held < 1:
            raise Unpredicted(DOES_NOT_FIT)
    return held


def _held(target: Target, layout: Parallelism, phase: Phase, isl: float, osl: float) -> float:
    engine = target.engine
    limit = sequence_limit(engine, target.gpu, phase)
    budget = prefill_budget(engine, target.gpu)
    budgets = memory_budgets(target.model, target.precision, engine, target.gpu, layout, budget, limit)
    if not tightest(budgets).fits:
        return 0.0
    tokens = kv_capacity(target.model, target.precision, engine, layout, budgets)
    if phase is Phase.PREFILL:
        length = isl
    elif engine.admission is Admission.RESERVE:
        length = isl + osl
    else:
        length = isl + osl / 2
    return min(
        tokens / float(equivalent_tokens(target.model, target.precision.kv_cache, length)), limit * layout.dp
    )


def _table(
    rows: Sequence[MeasuredRow], targets: Sequence[Target], slots: Sequence[float]
) -> tuple[LoopTable, ReplicaSet, ReplicaSet]:
    """Rows of one model and engine, all colocated or none."""
    first = targets[0]
    engine = _bare(first.engine)
    formats = [t.precision for t in targets]
    disaggregated = rows[0].disaggregated
    decoding = ReplicaSet.of(first.model, formats, engine, [(t.gpu, t.pools[-1][1]) for t in targets])
    prompts = decoding
    if disaggregated:
        prompts = ReplicaSet.of(first.model, formats, engine, [(t.gpu, t.pools[0][1]) for t in targets])
    isl = LENGTH_SHARE * np.array([row.isl for row in rows])
    loops = Loops(
        isl=isl,
        osl=np.maximum(LENGTH_SHARE * np.array([row.osl for row in rows]), 1.0),
        clients=np.array([t.clients for t in targets]),
        slots=np.array(slots),
        replicas=np.array([float(t.pools[-1][0]) for t in targets]),
        prompt_replicas=np.array([float(t.pools[0][0]) for t in targets]),
        token_budget=np.array([float(prefill_budget(engine, t.gpu)) for t in targets]),
        transfer=np.array([_transfer(t, tokens) for t, tokens in zip(targets, isl, strict=True)])
        if disaggregated
        else np.zeros(len(rows)),
        disaggregated=np.full(len(rows), disaggregated),
        first_step=np.full(len(rows), disaggregated and engine.first_token_phase is Phase.DECODE),
    )
    return LoopTable.of(decoding, prompts, loops), decoding, prompts


def _transfer(target: Target, tokens: float) -> float:
    """Over the NIC of each GPU, or within one NVLink domain over that link. [s]"""
    engine, gpu = target.engine, target.gpu
    (workers, prefill), (others, decode) = target.pools
    gpus = workers * prefill.num_gpus + others * decode.num_gpus
    linked = gpus <= gpu.scale_up_domain and gpu.scale_up_kind in engine.transfer.peer_links
    rate = (
        gpu.scale_up_bandwidth * engine.transfer.peer_efficiency
        if linked
        else gpu.network_bandwidth * engine.transfer.rdma_efficiency
    )
    size = float(kv_bytes(target.model, target.precision.kv_cache, tokens))
    layers = target.model.num_layers / prefill.pp
    narrower = min(prefill.num_gpus, decode.num_gpus)
    return float(kv_transfer_time(tokens, size, rate * narrower, layers, engine))
