"""Every row of a published file: a value in its unit, or the reason why there is none.

Static batches and single requests come from the kernels of :mod:`planner.latency`, all rows of one model and
software at once; loads with queues come from :mod:`planner.configuration`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.collectives import nodes_of
from planner.configuration import Configuration, Load, Prediction, Replicas, predict
from planner.documents.published_file import PublishedRow
from planner.errors import InfeasibleError, SpecError
from planner.latency import Companions, decode_step_time, prompt_time
from planner.memory import kv_capacity, memory_budgets, tightest
from planner.operators import ReplicaSet
from planner.specs import GPU, Model, Parallelism, Precision
from planner.transformer import equivalent_tokens
from planner.units import MILLI
from planner.validation.published.hosts import FittedHost, Kernels, Times, fit_host, fitted_times, known_times
from planner.validation.published.names import (
    POWER_CAP,
    Lengths,
    gpu_of,
    lengths_of,
    model_of,
    parallelism_of,
    precision_of,
)
from planner.validation.published.software import Software, software_of
from planner.validation.scores import Errors, errors_of

ConstantsKind = Literal["none", "crossfit"]
_Kind = Literal["static", "full", "loaded"]

STEP_TOKENS = 8192.0  # of a step of prompts, for the memory that it takes and where nobody says [tok]
WHOLE_PROMPTS = 2048.0  # vLLM's least max_num_batched_tokens without chunked prefill [tok]
FEWEST_ROWS = 8  # of the other half, below which no host constant is fitted

_BATCH = {"ttft_ms", "ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms", "output_tok_s", "output_tok_s_per_gpu"}
_PHASES = {"ttft_ms", "ttft_mean_ms", "tpot_mean_ms"}  # of batches: one phase, timed by itself
_SERIAL = {"ttft_p50_ms", "tpot_p50_ms"}
_THROUGHPUT = {"output_tok_s", "output_tok_s_per_gpu", "total_tok_s", "req_s"}
_LOADED = {"ttft_mean_ms", "itl_mean_ms", "tpot_mean_ms", *_THROUGHPUT}

NO_LENGTHS = "lengths are not numbers"
NO_MODEL = "model not in the catalogue"
NO_GPU = "GPU not in the catalogue"
CAPPED = "power-capped GPU"
SOFTWARE_LOG_SD = 0.2
"""Spread between kernels of other years and those whose tables we have: ours, natural log. [1]"""

NO_SOFTWARE = "engine is not modelled"
NO_LAYOUT = "layout is not understood"
NO_PRECISION = "format is not understood"
NO_KERNEL = "no kernel for the format on this GPU"
NO_REDUCE = "no all-reduce of this size is known"
NO_MEMORY = "does not fit in memory"
DISAGGREGATED = "pools of several replicas"
NO_SINGLE_LENGTHS = "lengths of single requests are not stated"
NO_PROTOCOL = "metric under a protocol that is not stated"
NO_STEADY_STATE = "the rate has no steady state"
NO_METRIC = "metric is not predicted"


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedPredictions:
    """One entry per row, in the order of the rows.

    Attributes
    ----------
    predicted : ndarray
        In the row's unit; nan where not predicted.
    log_sd : ndarray
        Spread of the prediction, natural logarithm; nan where not predicted.
    reasons : tuple of str
        Why a row is not predicted; empty where it is.
    fitted : ndarray
        Whether a host constant fitted on other configurations is in the prediction.
    hosts : tuple of FittedHost
        Those constants.
    """

    predicted: FloatArray
    log_sd: FloatArray
    reasons: tuple[str, ...]
    fitted: NDArray[np.bool_]
    hosts: tuple[FittedHost, ...]

    def counted(self) -> dict[str, int]:
        """Rows that are not predicted, by reason, most frequent first."""
        return dict(Counter(reason for reason in self.reasons if reason).most_common())


@dataclass(frozen=True, slots=True)
class _System:
    """What a row ran on: published names, and what they stand for."""

    model_name: str
    gpu_name: str
    parallelism: Parallelism
    precision: Precision
    software: Software

    @property
    def model(self) -> Model:
        found = model_of(self.model_name)
        assert found is not None
        return found

    @property
    def gpu(self) -> GPU:
        found = gpu_of(self.gpu_name)
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class _Target:
    """A row's system, lengths, and which formula serves its load."""

    system: _System
    lengths: Lengths
    kind: _Kind


def predict_published(rows: Sequence[PublishedRow], *, constants: ConstantsKind) -> PublishedPredictions:
    """Predict every row that can be predicted.

    Parameters
    ----------
    rows : sequence of PublishedRow
    constants : str
        ``none``: nothing fitted. ``crossfit``: the host constant of each software on a publisher's machines,
        per vendor of the GPUs, is fitted on one half of the configurations (model, GPU, layout, software) and
        used for the other, both ways. With fewer than `FEWEST_ROWS` rows in a half, the other half keeps what
        is known beforehand.
    """
    targets = [_target(row) for row in rows]
    predicted = np.full(len(rows), np.nan)
    log_sd = np.full(len(rows), np.nan)
    fitted = np.zeros(len(rows), dtype=np.bool_)
    reasons = [target if isinstance(target, str) else "" for target in targets]
    known = {i: t for i, t in enumerate(targets) if not isinstance(t, str)}
    for i, target in known.items():
        log_sd[i] = _spread(target.system)
        if target.kind != "static":
            value = _full(rows[i], target) if target.kind == "full" else _loaded(rows[i], target)
            predicted[i], reasons[i] = (math.nan, value) if isinstance(value, str) else (value, "")
    static = np.array([i for i, t in known.items() if t.kind == "static"], dtype=np.intp)
    hosts: tuple[FittedHost, ...] = ()
    if len(static):
        these, of = [rows[i] for i in static], [known[i] for i in static]
        kernels, fits = _kernels(these, of)
        values, used, hosts = _static(these, of, kernels, constants)
        predicted[static] = np.where(fits, values, np.nan)
        fitted[static] = used & fits
        for i, fit in zip(static, fits, strict=True):
            reasons[i] = "" if fit else NO_MEMORY
    log_sd[np.isnan(predicted)] = np.nan
    return PublishedPredictions(
        predicted=predicted, log_sd=log_sd, reasons=tuple(reasons), fitted=fitted, hosts=hosts
    )


def steady_rows(rows: Sequence[PublishedRow]) -> NDArray[np.bool_]:
    """Rows whose load has no queue: single requests and static batches."""
    return np.array([row.load_kind in ("batch", "serial") for row in rows], dtype=np.bool_)


def errors_by_group(
    rows: Sequence[PublishedRow], predictions: PublishedPredictions
) -> dict[tuple[str, str, str], Errors]:
    """Errors by group, kind of load and metric; without those that have no prediction."""
    keys = [(row.group, row.load_kind, row.metric) for row in rows]
    measured = np.array([row.value for row in rows])
    found = {}
    for key in dict.fromkeys(keys):
        index = np.array([k == key for k in keys])
        errors = errors_of(predictions.predicted[index], measured[index], predictions.log_sd[index])
        if errors is not None:
            found[key] = errors
    return found


# --------------------------------------------------------------------------------------------
# What a row is about


def _target(row: PublishedRow) -> _Target | str:
    """What a row ran on, or why it is not predicted."""
    if POWER_CAP in row.gpu.lower():
        return CAPPED
    software, gpu, model = software_of(row.framework), gpu_of(row.gpu), model_of(row.model)
    if software is None:
        return NO_SOFTWARE
    if model is None:
        return NO_MODEL
    if gpu is None:
        return NO_GPU
    if row.disaggregated:
        return DISAGGREGATED
    lengths = lengths_of(row)
    kind, obstacle = _kind(row, lengths)
    if kind is None or lengths is None:
        return obstacle or NO_LENGTHS
    layout = parallelism_of(row)
    if layout is None:
        return NO_LAYOUT
    try:
        nodes_of(gpu, layout)
    except SpecError:
        return NO_REDUCE
    precision = precision_of(row.precision, model, software.small_cache)
    if precision is None:
        return NO_PRECISION
    system = _System(row.model, row.gpu, layout, precision, software)
    return _Target(system, lengths, kind) if _runs(system) else NO_KERNEL


def _kind(row: PublishedRow, lengths: Lengths | None) -> tuple[_Kind | None, str]:
    """How the row is predicted, or why it is not."""
    load, metric = row.load_kind, row.metric
    exact = lengths is not None and lengths.exact
    if load in ("poisson rate", "offline batch") and not exact:
        return None, NO_SINGLE_LENGTHS
    if load == "serial":
        return ("static", "") if metric in _SERIAL else (None, NO_METRIC)
    if not exact:
        return None, NO_LENGTHS
    if load == "max" or (load == "rate" and row.load_value == math.inf):
        return ("full", "") if metric in _THROUGHPUT else (None, NO_PROTOCOL)
    if row.load_value is None or not math.isfinite(row.load_value):
        return None, NO_PROTOCOL
    if load == "batch":
        return ("static", "") if metric in _BATCH else (None, NO_METRIC)
    if load in ("concurrency", "rate"):
        return ("loaded", "") if metric in _LOADED else (None, NO_METRIC)
    return None, NO_PROTOCOL


@cache
def _runs(system: _System) -> bool:
    """Whether the GPU has kernels for the formats."""
    try:
        _replica_set(system)
    except SpecError:
        return False
    return True


def _replica_set(system: _System) -> ReplicaSet:
    engine = system.software.engine()
    return ReplicaSet.of(system.model, system.precision, engine, [(system.gpu, system.parallelism)])


@cache
def _spread(system: _System) -> float:
    """Of the model error, natural log. [1]"""
    r = _replica_set(system)
    return math.hypot(float(np.maximum(r.log_sd, r.prompt_log_sd)[0]), SOFTWARE_LOG_SD)


@cache
def _cache_tokens(system: _System, token_budget: int) -> float:
    """Tokens of a replica's KV cache; 0 where the weights do not fit. [tok]"""
    engine = system.software.engine()
    budgets = memory_budgets(
        system.model, system.precision, engine, system.gpu, system.parallelism,
        token_budget, min(engine.max_num_seqs, token_budget),
    )  # fmt: skip
    if not tightest(budgets).fits:
        return 0.0
    return float(kv_capacity(system.model, system.precision, engine, system.parallelism, budgets))


def _sequences(system: _System, tokens: float, length: float) -> float:
    """Sequences of `length` tokens that `tokens` of the KV cache hold."""
    return math.floor(tokens / float(equivalent_tokens(system.model, system.precision.kv_cache, length)))


# --------------------------------------------------------------------------------------------
# Static batches and single requests


def _batch(row: PublishedRow) -> float:
    return 1.0 if row.load_kind == "serial" else float(row.load_value or 1.0)


def _kernels(rows: Sequence[PublishedRow], targets: Sequence[_Target]) -> tuple[Kernels, NDArray[np.bool_]]:
    """Kernels of all rows, and whether one request fits. One call per model and software."""
    columns = {name: np.zeros(len(rows)) for name in Kernels.__dataclass_fields__}
    fits = np.ones(len(rows), dtype=np.bool_)
    groups: dict[tuple[str, str], list[int]] = {}
    for i, target in enumerate(targets):
        groups.setdefault((target.system.model.name, target.system.software.name), []).append(i)
    for members in groups.values():
        index = np.array(members, dtype=np.intp)
        of = [targets[i] for i in members]
        batch = np.array([_batch(rows[i]) for i in members])
        isl = np.array([t.lengths.isl for t in of])
        osl = np.array([t.lengths.osl for t in of])
        queued = np.array([rows[i].metric not in _PHASES for i in members])
        at_once, fits[index] = _at_once(of, batch, isl, osl, queued)
        part = _group_kernels(of, at_once, isl, osl)
        part["waves"] = batch / at_once
        for name, values in part.items():
            columns[name][index] = values
    return Kernels(**columns), fits


def _at_once(
    targets: Sequence[_Target], batch: FloatArray, isl: FloatArray, osl: FloatArray, queued: NDArray[np.bool_]
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Sequences of each batch that run together, and whether there is one: the others wait for memory.

    Engines that are told their batch hold it, as do rows that time one phase of it.
    """
    held = batch.copy()
    fits = np.ones(len(batch), dtype=np.bool_)
    for i, target in enumerate(targets):
        system = target.system
        if not (system.software.paged and queued[i]):
            continue
        step = min(_step_tokens(system, batch[i], isl[i]), STEP_TOKENS)
        most = _sequences(system, _cache_tokens(system, int(step)), isl[i] + osl[i])
        most = min(most, float(system.software.max_num_seqs))
        fits[i] = most >= 1
        held[i] = max(min(batch[i], most), 1.0)
    return held, fits


def _step_tokens(system: _System, batch: float, isl: float) -> float:
    """Tokens of a step of prompts. [tok]"""
    if system.software.whole_prompts:
        most = max(float(system.model.max_context), WHOLE_PROMPTS)
        return min(max(math.floor(most / isl), 1), batch) * isl
    return min(system.software.token_budget, batch * isl)


def _group_kernels(
    targets: Sequence[_Target], batch: FloatArray, isl: FloatArray, osl: FloatArray
) -> dict[str, FloatArray]:
    systems = [target.system for target in targets]
    model, software = systems[0].model, systems[0].software
    r = ReplicaSet.of(
        model,
        [system.precision for system in systems],
        software.engine(),
        [(system.gpu, system.parallelism) for system in systems],
    )
    budget = np.array([_step_tokens(*each) for each in zip(systems, batch, isl, strict=True)])
    prompts = prompt_time(r, isl, 0.0, budget, Companions(batch - 1.0, isl, isl**2 / 2))
    context = isl + osl / 2
    return {
        "prompt": prompts.service,
        "steps": prompts.steps,
        "decode": decode_step_time(r, batch, context),
        "count": np.maximum(osl - 1.0, 0.0),
        "layers": np.full(len(targets), float(model.num_layers)),
        "context": context,
    }


def _static(
    rows: Sequence[PublishedRow], targets: Sequence[_Target], kernels: Kernels, constants: ConstantsKind
) -> tuple[FloatArray, NDArray[np.bool_], tuple[FittedHost, ...]]:
    """Values of all rows, which of them use a fitted constant, and those constants."""
    values = np.zeros(len(rows))
    used = np.zeros(len(rows), dtype=np.bool_)
    hosts: list[FittedHost] = []
    measured = np.array([row.value for row in rows])
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i, target in enumerate(targets):
        key = rows[i].group, target.system.software.name, target.system.gpu.vendor
        groups.setdefault(key, []).append(i)
    for (group, name, vendor), members in sorted(groups.items()):
        index = np.array(members, dtype=np.intp)
        software = targets[members[0]].system.software
        values[index] = _Units.of([rows[i] for i in members], targets, index)(
            known_times(kernels.part(index), software)
        )
        if constants == "none" or not software.fitted:
            continue
        sides = _sides([rows[i] for i in members])
        for side in (0, 1):
            teach, learn = index[sides == side], index[sides != side]
            if len(teach) < FEWEST_ROWS or not len(learn):
                continue
            taught = _Units.of([rows[i] for i in teach], targets, teach)
            per_layer, overlapped = fit_host(kernels.part(teach), taught, measured[teach])
            learner = _Units.of([rows[i] for i in learn], targets, learn)
            values[learn] = learner(fitted_times(kernels.part(learn), per_layer, overlapped))
            used[learn] = True
            hosts.append(
                FittedHost(
                    group=group, software=name, vendor=vendor, side=side, per_layer=per_layer,
                    overlapped=overlapped, rows=len(teach),
                )
            )  # fmt: skip
    return values, used, tuple(hosts)


def _sides(rows: Sequence[PublishedRow]) -> NDArray[np.intp]:
    """0 or 1 for each row: configurations alternate in sorted order, all loads of one on the same side."""
    keys = [(row.model, row.gpu, row.parallelism, row.framework) for row in rows]
    order = {key: i % 2 for i, key in enumerate(sorted(set(keys)))}
    return np.array([order[key] for key in keys], dtype=np.intp)


@dataclass(frozen=True, slots=True)
class _Units:
    """From times of static batches to what the rows measure, in their units."""

    metric: NDArray[np.str_]
    tokens: FloatArray
    gpus: FloatArray

    @classmethod
    def of(cls, rows: Sequence[PublishedRow], targets: Sequence[_Target], index: NDArray[np.intp]) -> _Units:
        osl = np.array([targets[i].lengths.osl for i in index])
        return cls(
            np.array([row.metric for row in rows]),
            osl * np.array([_batch(row) for row in rows]),
            np.array([float(row.n_gpus) for row in rows]),
        )

    def __call__(self, times: Times) -> FloatArray:
        per_second = self.tokens / times.whole
        return np.select(
            [
                np.char.startswith(self.metric, "ttft"),
                np.char.startswith(self.metric, "tpot"),
                self.metric == "e2e_mean_ms",
                self.metric == "output_tok_s",
            ],
            [times.prompt / MILLI, times.step / MILLI, times.whole / MILLI, per_second],
            per_second / self.gpus,
        )


# --------------------------------------------------------------------------------------------
# Loads with queues


def _full(row: PublishedRow, target: _Target) -> float | str:
    """Throughput of a replica whose batch is always full: all requests are queued at once.

    Each request costs its share of the steps of prompts and `osl` places in decode steps of the batch that
    fits: ``1 / rate = prompt / lanes + osl step / batch``.
    """
    lengths, system = target.lengths, target.system
    budget = min(system.software.token_budget, STEP_TOKENS)
    context = lengths.isl + lengths.osl / 2
    batch = _sequences(system, _cache_tokens(system, int(budget)), context)
    if batch < 1:
        return NO_MEMORY
    batch = min(batch, float(system.software.max_num_seqs) * system.parallelism.dp)
    r = replace(_replica_set(system), engine=system.software.serving_engine())
    together = max(budget // lengths.isl, 1.0)
    beside = Companions(together - 1.0, lengths.isl, lengths.isl**2 / 2)
    prompt = float(prompt_time(r, lengths.isl, 0.0, budget, beside).service[0]) / together
    step = float(decode_step_time(r, batch, context)[0])
    rate = 1.0 / (prompt / system.parallelism.lanes + lengths.osl * step / batch)
    return _throughput(row, lengths, rate)


def _throughput(row: PublishedRow, lengths: Lengths, rate: float) -> float:
    """Value of a throughput at `rate` requests per second of one replica."""
    if row.metric == "req_s":
        return rate
    if row.metric == "total_tok_s":
        return rate * (lengths.isl + lengths.osl)
    return rate * lengths.osl / (row.n_gpus if row.metric.endswith("_per_gpu") else 1)


def _loaded(row: PublishedRow, target: _Target) -> float | str:
    """A closed loop or an open stream of requests of one length."""
    found = _prediction(target, row.load_kind, float(row.load_value or 0.0))
    if isinstance(found, str):
        return found
    if row.metric in _THROUGHPUT:
        return _throughput(row, target.lengths, found.rate)
    return (found.ttft if row.metric == "ttft_mean_ms" else found.tpot) / MILLI


@cache
def _prediction(target: _Target, load_kind: str, value: float) -> Prediction | str:
    system = target.system
    try:
        return predict(
            Configuration(
                model=system.model,
                precision=system.precision,
                engine=system.software.serving_engine(),
                colocated=Replicas(count=1, gpu=system.gpu, parallelism=system.parallelism),
            ),
            Load(
                isl=target.lengths.isl,
                osl=target.lengths.osl,
                concurrency=value if load_kind == "concurrency" else None,
                rate=value if load_kind == "rate" else None,
            ),
        )
    except InfeasibleError:
        return NO_STEADY_STATE if load_kind == "rate" else NO_MEMORY
    except SpecError:
        return NO_LAYOUT
