"""One configuration at one load: what ``planner predict`` answers.

Colocated replicas or one prefill and one decode pool, of given sizes, under a closed loop of
`concurrency` clients or an open stream of `rate` requests per second, all of one length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.capacity import batch_for_tokens, colocated_state
from planner.collectives import kv_transfer_time, supports_world_size
from planner.engines.formats import gpu_obstacle
from planner.engines.legality import (
    EndPoint,
    legal_tp,
    pair_violation,
    require_legal,
)
from planner.errors import InfeasibleError, SpecError
from planner.fleet import Deployed, Fleet, path_rate
from planner.latency import OperatorTime, decode_breakdown, decode_step_time, prefill_breakdown, prompt_time
from planner.memory import kv_capacity, memory_budgets, prefill_budget, tightest, verified_sequences
from planner.operators import ReplicaSet
from planner.plan import MemoryBudget
from planner.prediction import INTERVAL_Z, predict_fleet
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
    tokens_per_step,
)
from planner.traffic import Traffic, unaccepted_tokens
from planner.transformer import equivalent_tokens, kv_bytes, kv_bytes_per_token
from planner.units import GIB

KV_CACHE_DTYPES = (Dtype.BF16, Dtype.FP16, Dtype.FP8)
_FIXED_POINT_STEPS = 60


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
        if replicas.parallelism.num_gpus > replicas.gpu.node_size:
            needs = f"{replicas.parallelism} needs {replicas.parallelism.num_gpus} GPUs"
            node = f"a node of {replicas.gpu.name} has {replicas.gpu.node_size}"
            raise SpecError(f"{needs}, {node}: replicas over several nodes are not modelled")
        ranks = replicas.parallelism.tp * replicas.parallelism.dp
        if not supports_world_size(replicas.gpu, ranks):
            raise SpecError(f"GPU {replicas.gpu.name!r}: no all-reduce over {ranks} GPUs is known")

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
class Prediction:
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
    sequence = _sequence_tokens(c, load)
    slots = int(tokens // sequence) * c.decoding.count
    if c.speculation is not None:  # a step verifies the drafts of so many
        slots = min(slots, c.sequences(c.decoding) * c.decoding.count)
    if load.rate is not None:
        middle, low, high = (_open(c, load, tokens, z) for z in (0.0, -INTERVAL_Z, INTERVAL_Z))
    else:
        middle, low, high = (_closed(c, load, slots, z) for z in (0.0, -INTERVAL_Z, INTERVAL_Z))
    notes = []
    if load.concurrency is not None and load.concurrency > slots:
        notes.append(
            f"{load.concurrency:g} clients exceed the {slots} sequences that fit in KV cache: the rest wait"
        )
    if "estimated" in {str(x.gpu.calibration.status) for x in (c.colocated, c.prefill, c.decode) if x}:
        notes.append("the GPU's calibration is estimated, not measured")
    if c.speculation is not None:
        notes.append(f"speculative decoding as given: {c.speculation}")
    return Prediction(
        ttft=middle.ttft,
        tpot=middle.tpot,
        ttft_range=(low.ttft, high.ttft),
        tpot_range=(low.tpot, high.tpot),
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


def _set(c: Configuration, replicas: Replicas, z: float) -> ReplicaSet:
    replica = [(replicas.gpu, replicas.parallelism)]
    return ReplicaSet.of(c.model, c.precision, c.engine, replica, z, c.speculation)


def _sequence_tokens(c: Configuration, load: Load) -> float:
    """What a sequence needs of a KV cache by its end. [tok]"""
    kept = float(equivalent_tokens(c.model, c.precision.kv_cache, load.isl + load.osl))
    return kept + unaccepted_tokens(c.model, c.precision.kv_cache, c.speculation)


def _memory(c: Configuration, replicas: Replicas, load: Load) -> tuple[MemoryBudget, int]:
    """Memory of the fullest GPU and tokens of one replica's KV cache; refuses what does not fit."""
    engine = c.engine
    budgets = memory_budgets(
        c.model, c.precision, engine, replicas.gpu, replicas.parallelism,
        c.budget(replicas), c.sequences(replicas), c.speculation,
    )  # fmt: skip
    tokens = kv_capacity(c.model, c.precision, engine, replicas.parallelism, budgets)
    memory = tightest(budgets)
    need = math.ceil(_sequence_tokens(c, load))
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
# Closed loop


def _closed(c: Configuration, load: Load, slots: int, z: float) -> _Point:
    """Steady state of clients that send their next request when the last one ends.

    Fixed point of ``rate = concurrency / (ttft + (osl - 1) tpot)``: prompts find the queue of a stream of
    that rate, at most of all other clients; sequences beyond the KV cache's slots wait for one. A first token
    that the prefill side makes comes with the hand-over, and costs no decode step. Beside drafts to verify,
    steps are long whatever prompts are in them: there a prompt waits for the rest of a step, and takes from
    the others only what it adds to one.
    """
    assert load.concurrency is not None
    clients = load.concurrency
    admitted = min(clients, max(slots, 1))
    prompts = c.prefill or c.decoding
    r_prompt, r_decode = _set(c, prompts, z), _set(c, c.decoding, z)
    context = load.isl + load.osl / 2
    transfer = _transfer(c, load)
    handed_over = c.colocated is None and c.engine.first_token_phase is Phase.PREFILL
    steps = load.osl - 1 if handed_over else load.osl  # of a request on the decoding replicas
    budget = float(c.budget(prompts))
    emitted = tokens_per_step(c.speculation)
    batch = admitted / c.decoding.count
    ttft = tpot = rate = service = 0.0
    for _ in range(_FIXED_POINT_STEPS):
        step = float(decode_step_time(r_decode, batch, context)[0])
        if c.colocated is not None:
            time = prompt_time(
                r_prompt,
                load.isl,
                0.0,
                budget,
                decode_batch=batch,
                context=context,
            )
            tpot = step / emitted + batch * float(time.stolen[0]) / c.colocated.parallelism.lanes / load.osl
        else:
            time = prompt_time(r_prompt, load.isl, 0.0, budget)
            tpot = step / emitted
        service = float(time.service[0])
        first = 0.0 if c.colocated or handed_over else step
        taken = service
        if c.colocated is not None and c.speculation is not None:
            taken, first = float(time.stolen[0]), 0.5 * step * min(max(batch - 1.0, 0.0), 1.0)
        unqueued = service + transfer + first + (load.osl - 1) * tpot
        rate = _closed_rate(unqueued, taken / prompts.parallelism.lanes, prompts.count, admitted)
        ttft = admitted / rate - (load.osl - 1) * tpot
        fresh = rate * steps * tpot / c.decoding.count
        batch = 0.5 * (batch + min(max(fresh, 1e-3), admitted / c.decoding.count))
    beyond = (clients - admitted) / rate if clients > admitted else 0.0
    return _Point(ttft + beyond, tpot, rate, batch)


def _closed_rate(unqueued: float, occupancy: float, servers: int, clients: float) -> float:
    """Rate at which all clients are under way: ``rate (unqueued + wait(rate)) = clients``. [req/s]

    The left side grows with the rate, so that bisection finds the one solution; iterating over the wait
    would swing between an empty and an overloaded queue.
    """
    low, high = 0.0, clients / unqueued
    for _ in range(_FIXED_POINT_STEPS):
        middle = 0.5 * (low + high)
        if middle * (unqueued + _closed_wait(middle, occupancy, servers, clients)) < clients:
            low = middle
        else:
            high = middle
    return high


def _closed_wait(rate: float, occupancy: float, servers: int, clients: float) -> float:
    """Mean wait of equal prompts, bounded by all other clients being ahead. [s]"""
    most = max(clients / servers - 1, 0.0) * occupancy
    utilization = rate * occupancy / servers
    if utilization >= 1:
        return most
    return min(utilization * occupancy / (2 * (1 - utilization)) / servers, most)


def _transfer(c: Configuration, load: Load) -> float:
    if c.prefill is None or c.decode is None:
        return 0.0
    fleet = _fleet(c, load, 1.0, 1)
    rate = path_rate(fleet, *fleet.groups)
    size = kv_bytes(c.model, c.precision.kv_cache, load.isl)
    layers = c.model.num_layers / c.prefill.parallelism.pp
    return float(kv_transfer_time(load.isl, size, rate, layers, c.engine))


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
