"""One configuration at one load: what ``planner predict`` answers.

Colocated replicas or one prefill and one decode pool, of given sizes, under a closed loop of
`concurrency` clients or an open stream of `rate` requests per second, all of one length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray, Numbers
from planner.capacity import batch_for_tokens, colocated_state
from planner.closed_loop import STEADY, HostConstants, Loops, run, solved
from planner.collectives import kv_transfer_time, nodes_of, supports_world_size
from planner.engines.formats import gpu_obstacle
from planner.engines.legality import (
    EndPoint,
    legal_tp,
    pair_violation,
    require_legal,
)
from planner.errors import InfeasibleError, SpecError
from planner.fleet import Deployed, Fleet, path_rate
from planner.latency import OperatorTime, decode_breakdown, prefill_breakdown
from planner.memory import kv_capacity, memory_budgets, prefill_budget, tightest, verified_sequences
from planner.operators import ReplicaSet, beats_peaks
from planner.plan import MemoryBudget
from planner.prediction import INTERVAL_Z, predict_fleet
from planner.results import Result
from planner.specs import (
    GPU,
    Dtype,
    Engine,
    FleetItem,
    Lengths,
    Marginal,
    Model,
    Parallelism,
    Period,
    Phase,
    Precision,
    Routing,
    Service,
    Slo,
    Speculation,
    Workload,
)
from planner.traffic import Traffic, unaccepted_tokens
from planner.transformer import equivalent_tokens, kv_bytes, kv_bytes_per_token
from planner.units import BITS_PER_BYTE, GIB, GIGA

KV_CACHE_DTYPES = (Dtype.BF16, Dtype.FP16, Dtype.FP8)


@dataclass(frozen=True, kw_only=True, slots=True)
class Replicas:
    """`count` equal replicas on one GPU type."""

    count: int
    gpu: GPU
    parallelism: Parallelism


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """A closed loop of `concurrency` clients, or an open stream of `rate`; exactly one is given.

    `isl`, `osl` [tok]; `rate` [req/s].
    """

    isl: float
    osl: float
    concurrency: float | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise SpecError("give either a concurrency or a rate, not both")
        for name in ("isl", "osl", "concurrency", "rate"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise SpecError(f"{name} must be a finite number > 0, got {value!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """A model on given replicas: colocated, or prefill and decode; `speculation`: with a draft."""

    model: Model
    precision: Precision
    engine: Engine
    colocated: Replicas | None = None
    prefill: Replicas | None = None
    decode: Replicas | None = None
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        if (self.colocated is None) == (self.prefill is None or self.decode is None):
            raise SpecError("a configuration is colocated, or it has a prefill and a decode pool")
        for replicas in (self.colocated, self.prefill, self.decode):
            if replicas is not None:
                self._check(replicas)
        if self.prefill is not None and self.decode is not None:
            ends = self._end(self.prefill), self._end(self.decode)
            broken = pair_violation(*ends, self.model, self.engine.pair_rules)
            if broken is not None:
                raise SpecError(f"prefill and decode do not work together: {broken}")

    def _check(self, replicas: Replicas) -> None:
        obstacle = gpu_obstacle(replicas.gpu, self.engine)
        if obstacle:
            raise SpecError(obstacle)
        require_legal(self.model, replicas.parallelism, self.precision)
        nodes_of(replicas.gpu, replicas.parallelism)  # raises where it is not known how ranks meet

    def _end(self, replicas: Replicas) -> EndPoint:
        return EndPoint(
            parallelism=replicas.parallelism,
            gpu=replicas.gpu.name,
            vendor=replicas.gpu.vendor,
            kv_cache=self.precision.kv_cache,
            block_size=self.engine.block_size,
        )

    def budget(self, replicas: Replicas) -> int:
        """Tokens in a step of `replicas`: what the engine takes on their GPU. [tok]"""
        return prefill_budget(self.engine, replicas.gpu)

    def sequences(self, replicas: Replicas) -> int:
        """Sequences in a step of `replicas`: what the engine takes, and a step verifies the drafts of."""
        return verified_sequences(self.engine.max_num_seqs, self.budget(replicas), self.speculation)

    @property
    def decoding(self) -> Replicas:
        """The replicas whose KV cache limits concurrency."""
        replicas = self.colocated or self.decode
        assert replicas is not None
        return replicas


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction(Result):
    """What a configuration does at a load; times are means. [s]

    Attributes
    ----------
    ttft_range, tpot_range : tuple of float
        The 80 % interval of the model error.
    rate : float
        Requests served. [req/s]
    batch : float
        Sequences that decode on one replica.
    max_concurrency : int
        Sequences of this length that the decoding replicas' KV caches hold.
    prefill, decode : tuple of OperatorTime
        A prompt alone, and a step at `batch`.
    """

    ttft: float
    tpot: float
    ttft_range: tuple[float, float]
    tpot_range: tuple[float, float]
    rate: float
    batch: float
    memory: MemoryBudget
    kv_bytes_per_token: float
    kv_tokens: int
    max_concurrency: int
    prefill: tuple[OperatorTime, ...]
    decode: tuple[OperatorTime, ...]
    notes: tuple[str, ...]


def predict(configuration: Configuration, load: Load) -> Prediction:
    """TTFT and TPOT of `configuration` under `load`.

    Raises
    ------
    InfeasibleError
        If the weights do not fit, one sequence does not fit, or a rate has no steady state.
    """
    c = configuration
    if load.isl + load.osl > c.model.max_context:
        asked = f"{load.isl:,.0f} + {load.osl:,.0f} tokens"
        raise SpecError(f"{asked} exceed the {c.model.max_context:,} that the model takes")
    memory, tokens = _memory(c, c.decoding, load)
    if c.prefill is not None:
        _memory(c, c.prefill, load)
    if load.rate is not None:
        sequence = float(_sequence_tokens(c.model, c.precision.kv_cache, c.speculation, load.isl + load.osl))
        slots = int(tokens // sequence) * c.decoding.count
        if c.speculation is not None:  # a step verifies the drafts of so many
            slots = min(slots, c.sequences(c.decoding) * c.decoding.count)
        middle, low, high = (_open(c, load, tokens, z) for z in (0.0, -INTERVAL_Z, INTERVAL_Z))
        ttft_range, tpot_range = (low.ttft, high.ttft), (low.tpot, high.tpot)
    else:
        assert load.concurrency is not None
        found = predict_many([c], [0], *(np.array([v]) for v in (load.isl, load.osl, load.concurrency)))
        slots = int(found.slots[0])
        middle = _Point(*(float(v[0]) for v in (found.ttft, found.tpot, found.rate, found.batch)))
        ttft_range, tpot_range = (
            (float(ends[0, 0]), float(ends[1, 0])) for ends in (found.ttft_range, found.tpot_range)
        )
    notes = []
    if load.concurrency is not None and load.concurrency > slots:
        notes.append(
            f"{load.concurrency:g} clients exceed the {slots} sequences that fit in KV cache: the rest wait"
        )
    if "estimated" in {str(x.gpu.calibration.status) for x in (c.colocated, c.prefill, c.decode) if x}:
        notes.append("the GPU's calibration is estimated, not measured")
    notes += dict.fromkeys(note for x in (c.colocated, c.prefill, c.decode) if x for note in _placement(x))
    if c.speculation is not None:
        notes.append(f"speculative decoding as given: {c.speculation}")
    return Prediction(
        ttft=middle.ttft,
        tpot=middle.tpot,
        ttft_range=ttft_range,
        tpot_range=tpot_range,
        rate=middle.rate,
        batch=middle.batch,
        memory=memory,
        kv_bytes_per_token=kv_bytes_per_token(c.model, c.precision.kv_cache),
        kv_tokens=tokens,
        max_concurrency=slots,
        prefill=prefill_breakdown(
            _set(c, c.prefill or c.decoding, 0.0), load.isl, 0.0, c.budget(c.prefill or c.decoding)
        ),
        decode=decode_breakdown(_set(c, c.decoding, 0.0), max(middle.batch, 1.0), load.isl + load.osl / 2),
        notes=tuple(notes),
    )


def _placement(replicas: Replicas) -> Iterator[str]:
    """What is taken for granted of replicas that no usual node holds."""
    gpu, layout = replicas.gpu, replicas.parallelism
    if layout.num_gpus <= gpu.node_size:
        return
    nodes, gpus = nodes_of(gpu, layout), f"{layout} on {gpu.name}"
    if nodes > 1:
        rate = gpu.network_bandwidth * BITS_PER_BYTE / GIGA
        yield f"{gpus}: {nodes} nodes; what crosses them is estimated, over RDMA at {rate:g} Gbit/s per GPU"
    elif gpu.calibration.all_reduce is not None and layout.num_gpus <= gpu.scale_up_domain:
        yield f"{gpus}: within one {gpu.scale_up_kind} domain of {gpu.scale_up_domain} GPUs"
    else:
        yield f"{gpus}: taken as within one node, which usually has {gpu.node_size} GPUs"


def _set(c: Configuration, replicas: Replicas, z: float) -> ReplicaSet:
    replica = [(replicas.gpu, replicas.parallelism)]
    return ReplicaSet.of(c.model, c.precision, c.engine, replica, z, c.speculation)


def _sequence_tokens(
    model: Model, kv_cache: Dtype, speculation: Speculation | None, tokens: Numbers
) -> FloatArray:
    """What a sequence needs of a KV cache by its end, when it has so many tokens. [tok]"""
    kept = np.asarray(equivalent_tokens(model, kv_cache, tokens))
    return np.asarray(kept + unaccepted_tokens(model, kv_cache, speculation))


def _budget(c: Configuration, replicas: Replicas) -> tuple[MemoryBudget, int]:
    """Memory of the fullest GPU and tokens of one replica's KV cache. [tok]"""
    budgets = memory_budgets(
        c.model, c.precision, c.engine, replicas.gpu, replicas.parallelism,
        c.budget(replicas), c.sequences(replicas), c.speculation,
    )  # fmt: skip
    return tightest(budgets), kv_capacity(c.model, c.precision, c.engine, replicas.parallelism, budgets)


def _memory(c: Configuration, replicas: Replicas, load: Load) -> tuple[MemoryBudget, int]:
    """As :func:`_budget`; refuses what does not fit."""
    engine = c.engine
    memory, tokens = _budget(c, replicas)
    longest = load.isl + load.osl
    need = math.ceil(_sequence_tokens(c.model, c.precision.kv_cache, c.speculation, longest))
    if memory.fits and tokens >= need * replicas.parallelism.dp:
        return memory, tokens
    fewest = smallest_layout(c.model, c.precision, engine, replicas.gpu, c.speculation)
    binding = f"memory of {replicas.gpu.name} {replicas.parallelism} for {c.model.name}"
    one_node = f"no layout of one node of {replicas.gpu.node_size} GPUs fits"
    hints = (f"the smallest layout that fits is {fewest}",) if fewest else (one_node,)
    if not memory.fits:
        raise InfeasibleError(binding, f"{-memory.kv_cache / GIB:.1f} GiB per GPU", hints)
    raise InfeasibleError(
        binding, f"{need - tokens:,} tokens of KV cache for one sequence of {need:,}", hints
    )


def smallest_layout(
    model: Model, precision: Precision, engine: Engine, gpu: GPU, speculation: Speculation | None = None
) -> Parallelism | None:
    """Layout with the fewest GPUs of one node whose weights fit, tensor parallel before pipelined."""
    layouts = [
        Parallelism(tp=tp, pp=pp)
        for tp in legal_tp(model, gpu.node_size, precision.weights)
        for pp in (1, 2, 4, 8)
        if gpu.node_size % (tp * pp) == 0 and pp <= model.num_layers and supports_world_size(gpu, tp)
    ]
    for layout in sorted(layouts, key=lambda p: (p.num_gpus, p.pp)):
        budget = prefill_budget(engine, gpu)
        budgets = memory_budgets(model, precision, engine, gpu, layout, budget, 1, speculation)
        if tightest(budgets).fits:
            return layout
    return None


@dataclass(frozen=True, slots=True)
class _Point:
    ttft: float
    tpot: float
    rate: float
    batch: float


# --------------------------------------------------------------------------------------------
# Closed loops

CHUNK = 8_192
"""Points computed at once: many beside the cost of a call, few enough for a core's caches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predictions:
    """Closed loops of many configurations and loads; means, arrays of shape ``(points,)``.

    Attributes
    ----------
    ttft, tpot : [s]
    ttft_range, tpot_range : ndarray, shape (2, points)
        The 80 % interval of the model error. [s]
    log_sd : ndarray
        Spread of that error, natural logarithm. [1]
    rate : ndarray
        Requests served. [req/s]
    batch : ndarray
        Sequences that decode on one replica.
    slots : ndarray
        Sequences of this length that the decoding replicas' KV caches hold.
    """

    ttft: FloatArray
    tpot: FloatArray
    ttft_range: FloatArray
    tpot_range: FloatArray
    log_sd: FloatArray
    rate: FloatArray
    batch: FloatArray
    slots: FloatArray


def predict_many(
    configurations: Sequence[Configuration],
    which: NDArray[np.intp] | Sequence[int],
    isl: FloatArray,
    osl: FloatArray,
    concurrency: FloatArray,
) -> Predictions:
    """Closed loops of clients that send their next request when the last one ends, many at once.

    Parameters
    ----------
    configurations : sequence of Configuration
        Of one model, engine and draft; all colocated, or none.
    which : ndarray of int, shape (points,)
        Configuration of each point.
    isl, osl : ndarray, shape (points,)
        [tok]
    concurrency : ndarray, shape (points,)
        Clients.

    Returns
    -------
    Predictions
        nan where weights or one sequence do not fit in memory, or the model takes no request so long.
    """
    fronts = _Fronts.of(configurations)
    given = [np.asarray(values, dtype=np.float64) for values in (isl, osl, concurrency)]
    shape = np.broadcast_shapes(np.shape(which), *(values.shape for values in given))
    index = np.broadcast_to(np.asarray(which, dtype=np.intp), shape).ravel()
    lengths, outputs, clients = (np.broadcast_to(values, shape).ravel() for values in given)
    slots = fronts.slots(index, lengths, outputs)
    kept = np.flatnonzero(slots > 0)
    chunks = np.split(kept, range(CHUNK, kept.size, CHUNK)) if kept.size else []
    parts = [fronts.predicted(index[k], lengths[k], outputs[k], clients[k], slots[k]) for k in chunks]
    found = {}
    for f in fields(Predictions):
        whole = np.full((2, index.size) if f.name.endswith("_range") else index.size, np.nan)
        for k, part in zip(chunks, parts, strict=True):
            whole[..., k] = getattr(part, f.name)
        found[f.name] = whole
    return Predictions(**found)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fronts:
    """Configurations stacked, one entry each; `prompts` are `decoding` where they are colocated."""

    first: Configuration
    decoding: ReplicaSet
    prompts: ReplicaSet
    replicas: FloatArray
    prompt_replicas: FloatArray
    budget: FloatArray
    tokens: FloatArray  # of the decoding replica's KV cache; 0 where weights do not fit [tok]
    prompt_tokens: FloatArray
    dtypes: tuple[Dtype, ...]  # of the KV caches
    kv_dtype: NDArray[np.intp]
    most: FloatArray  # sequences in a step of all decoding replicas
    log_sd: FloatArray
    rates: FloatArray  # of the path between pools [B/s]
    ranks: FloatArray
    prompt_ranks: FloatArray

    @classmethod
    def of(cls, configurations: Sequence[Configuration]) -> _Fronts:
        first = configurations[0]
        apart = first.colocated is None
        for c in configurations:
            alike = c.model == first.model and c.engine == first.engine and c.speculation == first.speculation
            if not alike or (c.colocated is None) != apart:
                raise SpecError("points predicted together have one model, engine and draft, and one mode")
        pools = [c.decoding for c in configurations]
        fills = [c.prefill or c.decoding for c in configurations]
        formats = [c.precision for c in configurations]

        def stacked(replicas: Sequence[Replicas]) -> ReplicaSet:
            pairs = [(r.gpu, r.parallelism) for r in replicas]
            return ReplicaSet.of(first.model, formats, first.engine, pairs, 0.0, first.speculation)

        decoding = stacked(pools)
        prompts = stacked(fills) if apart else decoding
        dtypes = tuple(dict.fromkeys(p.kv_cache for p in formats))
        most = [float(c.sequences(r) * r.count) for c, r in zip(configurations, pools, strict=True)]
        return cls(
            first=first,
            decoding=decoding,
            prompts=prompts,
            replicas=np.array([float(r.count) for r in pools]),
            prompt_replicas=np.array([float(r.count) for r in fills]),
            budget=np.array([float(c.budget(r)) for c, r in zip(configurations, fills, strict=True)]),
            tokens=np.array([_held(c, r) for c, r in zip(configurations, pools, strict=True)]),
            prompt_tokens=np.array([_held(c, r) for c, r in zip(configurations, fills, strict=True)]),
            dtypes=dtypes,
            kv_dtype=np.array([dtypes.index(p.kv_cache) for p in formats], dtype=np.intp),
            most=np.array(most) if first.speculation is not None else np.full(len(pools), np.inf),
            log_sd=np.maximum(
                np.maximum(decoding.log_sd, decoding.prompt_log_sd),
                np.maximum(prompts.log_sd, prompts.prompt_log_sd),
            ),
            rates=np.array([_path_rate(c) for c in configurations]),
            ranks=np.array([float(r.parallelism.dp) for r in pools]),
            prompt_ranks=np.array([float(r.parallelism.dp) for r in fills]),
        )

    def slots(self, index: NDArray[np.intp], isl: FloatArray, osl: FloatArray) -> FloatArray:
        """Sequences that the KV caches of all decoding replicas hold; 0 where a point does not fit."""
        each = [
            _sequence_tokens(self.first.model, dtype, self.first.speculation, isl + osl)
            for dtype in self.dtypes
        ]
        sequence = each[0] if len(each) == 1 else np.choose(self.kv_dtype[index], each)
        need, held = np.ceil(sequence), self.tokens[index]
        fits = (held >= need * self.ranks[index]) & (isl + osl <= self.first.model.max_context)
        fits &= self.prompt_tokens[index] >= need * self.prompt_ranks[index]
        return np.where(
            fits, np.minimum(np.floor(held / sequence) * self.replicas[index], self.most[index]), 0.0
        )

    def predicted(
        self,
        index: NDArray[np.intp],
        isl: FloatArray,
        osl: FloatArray,
        clients: FloatArray,
        slots: FloatArray,
    ) -> Predictions:
        """Points that fit."""
        apart = self.prompts is not self.decoding
        engine = self.decoding.engine
        loops = Loops(
            isl=isl,
            osl=osl,
            clients=clients,
            slots=slots,
            replicas=self.replicas[index],
            prompt_replicas=self.prompt_replicas[index],
            token_budget=self.budget[index],
            transfer=self._transfer(index, isl) if apart else np.zeros(index.size),
            disaggregated=np.full(index.size, apart),
            first_step=np.full(index.size, apart and engine.first_token_phase is Phase.DECODE),
        )
        host = HostConstants(
            step=engine.step_overhead,
            sequence=engine.sequence_overhead,
            decode_scale=engine.decode_scale,
            prefill_scale=engine.prefill_scale,
        )
        log_sd = self.log_sd[index]
        low, high = np.exp(-INTERVAL_Z * log_sd), np.exp(INTERVAL_Z * log_sd)
        decoding = self.decoding.part(index)
        prompts = self.prompts.part(index) if apart else decoding
        least = low * min(engine.decode_scale, engine.prefill_scale)
        near_peaks = beats_peaks(decoding, least) | beats_peaks(prompts, least)
        table, state = solved(decoding, prompts, loops, host, STEADY, bounded=bool(near_peaks.any()))
        if not apart and not near_peaks.any() and not table.draft_time:  # all times are longer alike
            ends = [(state.ttft * low, state.tpot * low), (state.ttft * high, state.tpot * high)]
        else:
            found = [run(table, host.times(factor), STEADY) for factor in (low, high)]
            ends = [(f.ttft, f.tpot) for f in found]
        return Predictions(
            ttft=state.ttft,
            tpot=state.tpot,
            ttft_range=np.stack([ttft for ttft, _ in ends]),
            tpot_range=np.stack([tpot for _, tpot in ends]),
            log_sd=log_sd,
            rate=state.rate,
            batch=state.batch,
            slots=slots,
        )

    def _transfer(self, index: NDArray[np.intp], isl: FloatArray) -> FloatArray:
        """Exposed time of moving a prompt's KV cache between pools. [s]"""
        model, engine = self.first.model, self.decoding.engine
        sizes = [np.asarray(kv_bytes(model, dtype, isl)) for dtype in self.dtypes]
        size = sizes[0] if len(sizes) == 1 else np.choose(self.kv_dtype[index], sizes)
        layers = model.num_layers / self.prompts.pp[index]
        return kv_transfer_time(isl, size, self.rates[index], layers, engine)


def _held(c: Configuration, replicas: Replicas) -> float:
    """Tokens of one replica's KV cache; 0 where the weights do not fit. [tok]"""
    memory, tokens = _budget(c, replicas)
    return float(tokens) if memory.fits else 0.0


def _path_rate(c: Configuration) -> float:
    """What a KV cache moves at from the prefill to the decode pool; inf where it stays. [B/s]"""
    if c.prefill is None or c.decode is None:
        return math.inf
    fleet = _fleet(c, Load(isl=1.0, osl=1.0, concurrency=1.0), 1.0, 1)
    return path_rate(fleet, *fleet.groups)


# --------------------------------------------------------------------------------------------
# Open loop


def _open(c: Configuration, load: Load, tokens: int, z: float) -> _Point:
    """Means under Poisson arrivals; infinite where the error quantile `z` leaves no steady state."""
    assert load.rate is not None
    fleet = _fleet(c, load, load.rate, tokens)
    ttft, tpot = predict_fleet(fleet, z).summaries()
    if z == 0.0 and not (math.isfinite(ttft.mean) and math.isfinite(tpot.mean)):
        raise InfeasibleError(
            f"{load.rate:g} req/s: the queue has no steady state",
            "",
            ("more replicas, a higher TP or a lower rate",),
        )
    traffic = Traffic.of_service(fleet.service)
    r = _set(c, c.decoding, z)
    per_replica = load.rate / c.decoding.count
    if c.colocated is None:
        batch = per_replica * load.osl * tpot.mean
    else:
        limit = np.array([float(c.budget(c.decoding))])
        slots = float(batch_for_tokens(np.array([float(tokens)]), traffic, 0.01)[0])
        state, _ = colocated_state(
            r,
            traffic,
            c.engine.scheduler,
            limit,
            np.array([[min(per_replica * load.osl * tpot.mean, slots)]]),
        )
        batch = float(state.batch[0, 0])
    return _Point(ttft.mean, tpot.mean, load.rate, batch)


def _fleet(c: Configuration, load: Load, rate: float, tokens: int) -> Fleet:
    """The configuration as groups that serve `rate` requests of one length."""
    lengths = Lengths(
        isl=Marginal(points=(float(load.isl),), weights=(1.0,)),
        osl=Marginal(points=(float(load.osl),), weights=(1.0,)),
        isl_per_output_token=float(load.isl),
    )
    workload = Workload(
        name="fixed", periods=(Period(name="", hours=24.0, request_rate=rate),), lengths=lengths
    )
    service = Service(
        model=c.model,
        precision=c.precision,
        workload=workload,
        slo=Slo(targets=()),
        engine=c.engine.name,
        speculation=c.speculation,
    )
    pools = ((Phase.COLOCATED, c.colocated), (Phase.PREFILL, c.prefill), (Phase.DECODE, c.decode))
    groups = tuple(_deployed(c, phase, pool, rate, tokens) for phase, pool in pools if pool is not None)
    return Fleet(service=service, engine=c.engine, groups=groups, routing=Routing.LEAST_LOADED)


def _deployed(c: Configuration, phase: Phase, pool: Replicas, rate: float, tokens: int) -> Deployed:
    gpu = pool.gpu
    item = FleetItem(
        gpu=gpu, price=None, max_gpus=None, node_size=gpu.node_size, network_bandwidth=gpu.network_bandwidth
    )
    return Deployed(
        phase=phase,
        item=item,
        parallelism=pool.parallelism,
        replicas=pool.count,
        rate=rate,
        token_budget=c.budget(pool),
        kv_tokens=tokens,
        max_num_seqs=c.sequences(pool),
    )


def default_precision(model: Model, weights: str | None = None, kv_cache: str | None = None) -> Precision:
    """Precision by names; None stands for the checkpoint's own, as :meth:`Precision.of` says."""

    def named(text: str, known: tuple[Dtype, ...]) -> Dtype:
        if text not in known:
            raise SpecError(f"unknown precision {text!r}; known: {', '.join(known)}")
        return Dtype(text)

    return Precision.of(
        model,
        None if weights is None else named(weights, tuple(Dtype)),
        None if kv_cache is None else named(kv_cache, KV_CACHE_DTYPES),
    )
