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


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A closed loop that was measured: on what, and with what mean lengths. [tok]"""

    target: Target
    isl: float
    osl: float

    @property
    def disaggregated(self) -> bool:
        return len(self.target.pools) == 2

    @classmethod
    def of(cls, row: MeasuredRow) -> Case:
        """That of a row of a public file.

        Raises
        ------
        Unpredicted
        """
        return cls(target=resolve(row), isl=LENGTH_SHARE * row.isl, osl=LENGTH_SHARE * row.osl)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """Kernels of cases, those of one model and engine together; `order` says which case each entry is of."""

    order: NDArray[np.intp]
    table: LoopTable
    decode_log_sd: FloatArray
    prompt_log_sd: FloatArray


def points_of(rows: Sequence[MeasuredRow]) -> Points:
    """What of `rows` can be predicted.

    Raises
    ------
    SpecError
        If no row can.
    """
    cases: list[tuple[int, Case, float]] = []
    reasons: dict[int, str] = {}
    seen: set[tuple[str, ...]] = set()
    for number, row in enumerate(rows):
        identity = tuple(value for name, value in row.cells.items() if name not in _LABELS)
        if identity in seen:
            reasons[number] = REPEAT
            continue
        seen.add(identity)
        try:
            case = Case.of(row)
            cases.append((number, case, slots_of(case)))
        except Unpredicted as reason:
            reasons[number] = str(reason)
    if not cases:
        counted = "; ".join(sorted(set(reasons.values())))
        raise SpecError(f"none of the {len(rows):,} rows can be predicted: {counted}")
    kernels = kernels_of([case for _, case, _ in cases], [slots for _, _, slots in cases])
    ordered = [cases[i] for i in kernels.order]
    index = np.array([number for number, _, _ in ordered], dtype=np.intp)
    targets = tuple(case.target for _, case, _ in ordered)
    return Points(
        rows=tuple(rows),
        index=index,
        table=kernels.table,
        targets=targets,
        families=tuple((t.engine.name, t.model.shape) for t in targets),
        kernel_log_sd=kernels.decode_log_sd,
        prompt_kernel_log_sd=kernels.prompt_log_sd,
        ttft=np.array([rows[i].ttft for i in index]),
        tpot=np.array([rows[i].tpot for i in index]),
        reasons=reasons,
    )


def kernels_of(cases: Sequence[Case], slots: Sequence[float]) -> Kernels:
    """Kernels of `cases`, whose KV caches hold so many sequences."""
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for number, case in enumerate(cases):
        key = (case.target.model.name, case.target.engine.name, case.disaggregated)
        groups.setdefault(key, []).append(number)
    parts = [_table([cases[i] for i in own], [slots[i] for i in own]) for own in groups.values()]
    return Kernels(
        order=np.array([i for own in groups.values() for i in own], dtype=np.intp),
        table=joined([table for table, _, _ in parts]),
        decode_log_sd=np.concatenate([decoding.log_sd for _, decoding, _ in parts]),
        prompt_log_sd=np.concatenate([prompts.log_sd for _, _, prompts in parts]),
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


def slots_of(case: Case) -> float:
    """Sequences that the KV caches of all decoding replicas hold.

    Raises
    ------
    Unpredicted
        Not one.
    """
    target = case.target
    phases = (Phase.PREFILL, Phase.DECODE) if case.disaggregated else (Phase.COLOCATED,)
    held = 0.0
    for phase, (workers, layout) in zip(phases, target.pools, strict=True):
        held = workers * _held(target, layout, phase, case.isl, case.osl)
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


def _table(cases: Sequence[Case], slots: Sequence[float]) -> tuple[LoopTable, ReplicaSet, ReplicaSet]:
    """Cases of one model and engine, all colocated or none."""
    targets = [case.target for case in cases]
    first = targets[0]
    engine = _bare(first.engine)
    formats = [t.precision for t in targets]
    disaggregated = cases[0].disaggregated
    decoding = ReplicaSet.of(first.model, formats, engine, [(t.gpu, t.pools[-1][1]) for t in targets])
    prompts = decoding
    if disaggregated:
        prompts = ReplicaSet.of(first.model, formats, engine, [(t.gpu, t.pools[0][1]) for t in targets])
    isl = np.array([case.isl for case in cases])
    loops = Loops(
        isl=isl,
        osl=np.maximum(np.array([case.osl for case in cases]), 1.0),
        clients=np.array([t.clients for t in targets]),
        slots=np.array(slots),
        replicas=np.array([float(t.pools[-1][0]) for t in targets]),
        prompt_replicas=np.array([float(t.pools[0][0]) for t in targets]),
        token_budget=np.array([float(prefill_budget(engine, t.gpu)) for t in targets]),
        transfer=np.array([_transfer(t, tokens) for t, tokens in zip(targets, isl, strict=True)])
        if disaggregated
        else np.zeros(len(cases)),
        disaggregated=np.full(len(cases), disaggregated),
        first_step=np.full(len(cases), disaggregated and engine.first_token_phase is Phase.DECODE),
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
