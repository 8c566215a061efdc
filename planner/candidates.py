"""Every replica that fits and meets the SLOs, with its capacity curve: scenario -> program.

A candidate is (phase, GPU type, parallelism, token budget). What happens between prefill and first
token couples the two pools, and percentiles of a sum must not be added. So a prefill candidate comes
in several versions: by the slowest path that its KV caches may take (*transfer class*), and by the
longest decode step that its first tokens may wait for; its TTFT is computed at these. A decode
candidate comes in versions by the longest step that it runs. Prefill and decode may stand behind
one router only where path and step are within what the prefill version allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.arrays import FloatArray
from planner.capacity import (
    FIRST_STEPS,
    ColocatedDemand,
    Curves,
    DecodeDemand,
    Limit,
    PrefillDemand,
    admission_miss,
    colocated_curves,
    colocated_table,
    decode_curves,
    limits,
    prefill_curves,
    prompt_queues,
)
from planner.collectives import LINK_LOAD_LIMIT, kv_transfer_time, network_rate, supports_world_size
from planner.engines.legality import EndPoint, legal_tp, pair_violation
from planner.memory import kv_capacity, memory_budgets, tightest
from planner.operators import ReplicaSet
from planner.plan import Binding, MemoryBudget
from planner.program import Candidate, CapacityCurve
from planner.queueing import normal_quantile
from planner.roofline import dtype_of_rows
from planner.specs import (
    ColocatedUse,
    Engine,
    FleetItem,
    LatentAttention,
    Metric,
    MixtureOfExperts,
    Objective,
    Parallelism,
    Phase,
    Scenario,
    Service,
)
from planner.traffic import Traffic
from planner.transformer import equivalent_tokens, kv_bytes, kv_copies
from planner.units import GIB, GIGA, MILLI

SMALL_GPU_MEMORY = 70 * GIB  # engines default to fewer sequences below it [B]
SMALL_GPU_SEQUENCES = 256
DECODE_TOKEN_BUDGET = 2048  # of a decode replica: recomputed sequences must fit through [tok]
FASTEST_CLASS = 0.002  # time on the wire below which transfers are not told apart [s]
FASTEST_STEP = 0.0125  # first of the levels of the first decode step, each twice the one before [s]
SHORT_STEP_SHARE = 0.05  # of the TTFT limit; shorter first steps are not told apart [1]
CLASS_RATIO = 1.5  # between the times on the wire of neighbouring transfer classes [1]
MOST_REPLICAS = 2**20
_EXACT = 6  # replica counts evaluated one by one before ranges grow
_GROWTH = 1.25
_LONG_PROMPT = 0.99  # quantile of prompt lengths that transfer classes are told apart by


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaChoice:
    """One way to build a replica that fits in memory.

    Attributes
    ----------
    item : int
        Index into the scenario's fleet.
    kv_tokens : int
        Tokens that its KV cache holds.
    path_rate : float
        Prefill: slowest path its KV caches may take. [B/s]
    first_step : float
        Prefill: longest decode step its TTFT leaves room for; decode: longest step it may run. [s]
    """

    phase: Phase
    item: int
    parallelism: Parallelism
    token_budget: int
    max_num_seqs: int
    kv_tokens: int
    memory: MemoryBudget
    path_rate: float = math.inf
    first_step: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Rejection:
    """Why a replica is no candidate."""

    gpu: str
    phase: Phase
    parallelism: Parallelism
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CandidateSet:
    """Candidates of one service with all that a plan needs to say about them.

    `candidates`, `choices`, `operating` and `binds` run in parallel; `operating` and `binds` are arrays
    over `candidates[i].curve.starts`.
    """

    candidates: tuple[Candidate, ...] = ()
    choices: tuple[ReplicaChoice, ...] = ()
    operating: tuple[FloatArray, ...] = ()
    binds: tuple[tuple[Binding, ...], ...] = ()
    illegal_pairs: frozenset[tuple[int, int]] = frozenset()
    rejections: tuple[Rejection, ...] = ()
    evaluated: int = 0

    def of(self, phase: Phase) -> list[int]:
        return [i for i, c in enumerate(self.choices) if c.phase is phase]


@dataclass(frozen=True, slots=True)
class _Context:
    """What all steps below share."""

    service: Service
    scenario: Scenario
    engine: Engine
    traffic: Traffic
    z: float
    ttft: tuple[Limit, ...]
    tpot: tuple[Limit, ...]
    miss: float
    rejections: list[Rejection] = field(default_factory=list)

    @property
    def fleet(self) -> tuple[FleetItem, ...]:
        return self.scenario.fleet

    def replicas(self, choices: Sequence[ReplicaChoice]) -> ReplicaSet:
        pairs = [(self.fleet[c.item].gpu, c.parallelism) for c in choices]
        return ReplicaSet.of(self.service.model, self.service.precision, self.engine, pairs, self.z)

    def reject(self, item: FleetItem, phase: Phase, layout: Parallelism, reason: str) -> None:
        """Note why a replica is no candidate."""
        self.rejections.append(Rejection(gpu=item.gpu.name, phase=phase, parallelism=layout, reason=reason))

    @property
    def tightest_ttft(self) -> float:
        return min((limit.time for limit in self.ttft), default=math.inf)

    @property
    def first_steps(self) -> tuple[float, ...]:
        """Decode steps that a first token may wait for, as levels to choose from. [s]

        A fixed grid, from one that hardly takes from the TTFT up to one that leaves the TPOT limit to
        bind. Where no decode step precedes the first token there is nothing to choose.
        """
        if not math.isfinite(self.tightest_ttft) or self.engine.first_token_phase is not Phase.DECODE:
            return (math.inf,)
        slowest = min([self.tightest_ttft, *(limit.time for limit in self.tpot)])
        levels = [FASTEST_STEP]
        while levels[-1] < slowest:
            levels.append(2 * levels[-1])
        shortest = max(SHORT_STEP_SHARE * self.tightest_ttft, FASTEST_STEP)
        return tuple(s for s in levels if 2 * s > shortest) or (levels[-1],)

    @property
    def demand(self) -> float:
        rate = self.service.workload.request_rate
        return rate * (1 + self.scenario.options.headroom)


def build_candidates(
    scenario: Scenario, service: Service, engine: Engine, z: float | None = None
) -> CandidateSet:
    """All candidates of `service` on the scenario's fleet.

    Parameters
    ----------
    z : float, optional
        Normal quantile of the model error to plan for; by default that of ``options.confidence``.
    """
    options = scenario.options
    traffic = Traffic.of_service(service)
    ttft = limits(service.slo, Metric.TTFT)
    tpot = limits(service.slo, Metric.TPOT) if traffic.has_tpot else ()
    context = _Context(
        service=service,
        scenario=scenario,
        engine=engine,
        traffic=traffic,
        z=float(normal_quantile(options.confidence)) if z is None else z,
        ttft=ttft,
        tpot=tpot,
        miss=admission_miss(ttft),
    )
    parts: list[CandidateSet] = []
    if options.colocated is not ColocatedUse.ONLY:
        parts.append(_disaggregated(context))
    if options.colocated is not ColocatedUse.FORBIDDEN:
        parts.append(_colocated(context))
    merged = _merge(parts)
    return replace(merged, rejections=tuple(context.rejections))


# --------------------------------------------------------------------------------------------
# Which replicas fit


def parallelisms(context: _Context, item: FleetItem, phase: Phase) -> list[Parallelism]:
    """Legal layouts inside one node of `item`, smallest first; whole numbers of them fill a node."""
    options = context.scenario.options
    model = context.service.model
    sizes = [
        tp
        for tp in legal_tp(model, item.node_size, context.service.precision.weights)
        if item.node_size % tp == 0
        and tp <= (options.max_tp or tp)
        and (options.allowed_tp is None or tp in options.allowed_tp)
        and supports_world_size(item.gpu, tp)
    ]
    most = 1 if phase is Phase.DECODE else options.max_pp
    stages = [2**k for k in range(12) if 2**k <= min(most, item.node_size, model.num_layers)]
    layouts = [Parallelism(tp=tp, pp=pp) for tp in sizes for pp in stages if item.node_size % (tp * pp) == 0]
    return sorted({*layouts, *_expert_layouts(context, item, phase, layouts)})


def _expert_layouts(
    context: _Context, item: FleetItem, phase: Phase, layouts: Sequence[Parallelism]
) -> list[Parallelism]:
    """Layouts that spread experts over ranks; for a latent cache also attention data parallelism, which
    does not repeat it. Colocated replicas keep their ranks in step, which no model here covers."""
    model = context.service.model
    routed = [b for run in model.layers if isinstance(b := run.layer.feed_forward, MixtureOfExperts)]
    if not routed:
        return []
    spread = [replace(p, ep=p.tp) for p in layouts if p.tp > 1]
    latent = any(isinstance(run.layer.attention, LatentAttention) for run in model.layers)
    if latent and phase is not Phase.COLOCATED:
        ranks = [n for n in range(2, item.node_size + 1) if item.node_size % n == 0]
        spread += [Parallelism(tp=1, dp=n, ep=n) for n in ranks if supports_world_size(item.gpu, n)]
    return [p for p in spread if all(block.experts % p.ep == 0 for block in routed)]


def _choices(context: _Context, phase: Phase, budgets: Sequence[int]) -> list[ReplicaChoice]:
    return [
        choice
        for index, item in enumerate(context.fleet)
        if _available(context, item, phase) and _runs(context, item, phase)
        for layout in parallelisms(context, item, phase)
        for budget in budgets
        if (choice := _choice(context, phase, index, item, layout, budget)) is not None
    ]


def _available(context: _Context, item: FleetItem, phase: Phase) -> bool:
    """Whether the scenario leaves any of these GPUs to the pool."""
    if item.max_gpus == 0:
        reason = "max_gpus is 0"
    elif item.max_gpus_by_phase.get(phase) == 0:
        reason = f"max_{phase}_gpus is 0"
    else:
        return True
    context.reject(item, phase, Parallelism(), reason)
    return False


def _runs(context: _Context, item: FleetItem, phase: Phase) -> bool:
    """Whether the GPU has kernels for the weights, natively or as stored weights in 16-bit arithmetic."""
    precision = context.service.precision
    formats = {precision.weights, precision.of_attention, precision.of_experts}
    stored = context.engine.weight_only_dtypes
    missing = sorted(d for d in formats if dtype_of_rows(d, item.gpu) is None and d not in stored)
    if not missing:
        return True
    reason = f"no kernel for {', '.join(missing)} weights"
    context.reject(item, phase, Parallelism(), reason)
    return False


def _choice(
    context: _Context, phase: Phase, index: int, item: FleetItem, layout: Parallelism, budget: int
) -> ReplicaChoice | None:
    service, engine = context.service, context.engine
    sequences = engine.max_num_seqs  # of one attention rank
    if item.gpu.memory < SMALL_GPU_MEMORY:
        sequences = min(sequences, SMALL_GPU_SEQUENCES)
    if phase is Phase.PREFILL:
        sequences = min(sequences, SMALL_GPU_SEQUENCES)
    budgets = memory_budgets(service.model, service.precision, engine, item.gpu, layout, budget, sequences)
    tokens = kv_capacity(service.model, service.precision, engine, layout, budgets)
    memory = tightest(budgets)
    longest = context.traffic.longest_isl if phase is Phase.PREFILL else context.traffic.longest
    room = min(item.max_gpus or layout.num_gpus, item.max_gpus_by_phase.get(phase, layout.num_gpus))
    if layout.num_gpus > room:
        context.reject(item, phase, layout, f"needs {layout.num_gpus} GPUs, the scenario allows {room}")
        return None
    needed = float(equivalent_tokens(service.model, service.precision.kv_cache, longest))
    if memory.kv_cache <= 0 or tokens < needed * layout.dp:
        reason = (
            f"weights, activations and reserves exceed memory by {-memory.kv_cache / GIB:.1f} GiB per GPU"
            if memory.kv_cache <= 0
            else f"KV cache holds {tokens:,} tokens, the longest sequence needs {math.ceil(needed):,}"
        )
        context.reject(item, phase, layout, reason)
        return None
    return ReplicaChoice(
        phase=phase,
        item=index,
        parallelism=layout,
        token_budget=budget,
        max_num_seqs=sequences * layout.dp,
        kv_tokens=tokens,
        memory=memory,
    )


# --------------------------------------------------------------------------------------------
# Disaggregated


def _disaggregated(context: _Context) -> CandidateSet:
    decode = _choices(context, Phase.DECODE, [DECODE_TOKEN_BUDGET])
    prefill = _choices(context, Phase.PREFILL, [context.engine.prefill_token_budget])
    if not prefill or not decode:  # what is there is kept, so that only what is missing is told
        return _decode_candidates(context, decode) if decode else CandidateSet(evaluated=len(prefill))
    rates = _path_rates(context, prefill, decode)
    prefill_set = _prefill_candidates(context, prefill, _class_rates(context, rates))
    decode_set = _decode_candidates(context, decode)
    merged = _merge([prefill_set, decode_set])
    illegal = _illegal_pairs(context, merged, prefill, decode, rates)
    return replace(merged, illegal_pairs=illegal)


def _egress(context: _Context, choice: ReplicaChoice) -> float:
    """NIC rate of all GPUs of a replica. [B/s]"""
    return network_rate(context.fleet[choice.item], context.engine) * choice.parallelism.num_gpus


def _one_request(context: _Context, choice: ReplicaChoice) -> float:
    """NIC rate that one request can use: that of the GPUs of one attention rank. [B/s]"""
    return _egress(context, choice) / choice.parallelism.dp


def _copies(context: _Context, choice: ReplicaChoice) -> float:
    """Times a KV head is held by a replica, once per rank beyond the number of KV heads. [1]"""
    return kv_copies(context.service.model, choice.parallelism.tp)


def _path_rates(
    context: _Context, prefill: Sequence[ReplicaChoice], decode: Sequence[ReplicaChoice]
) -> FloatArray:
    """Rate at which KV bytes get from each prefill to each decode replica; 0 where illegal. [B/s]"""
    out = np.array([_one_request(context, c) for c in prefill])
    into = np.array([_one_request(context, c) for c in decode])
    copies = np.array([_copies(context, c) for c in decode])
    rates = np.asarray(np.minimum(out[:, None], into[None, :]) / copies)
    for i, p in enumerate(prefill):
        for j, d in enumerate(decode):
            if pair_violation(_end_point(context, p), _end_point(context, d), context.service.model):
                rates[i, j] = 0.0
    return rates


def _end_point(context: _Context, choice: ReplicaChoice) -> EndPoint:
    gpu = context.fleet[choice.item].gpu
    return EndPoint(
        parallelism=choice.parallelism,
        gpu=gpu.name,
        vendor=gpu.vendor,
        kv_cache=context.service.precision.kv_cache,
        block_size=context.engine.block_size,
    )


def _class_rates(context: _Context, rates: FloatArray) -> FloatArray:
    """Slowest rate of the transfer class of each path; 0 where illegal. [B/s]

    Classes are geometric in the time that a long prompt spends on the wire, on a grid that depends
    neither on the SLOs nor on the rest of the fleet: loosening an SLO or adding a GPU type leaves the
    candidates of all others as they were.
    """
    traffic = context.traffic
    long = float(np.interp(_LONG_PROMPT, np.cumsum(traffic.isl_weights), traffic.isl))
    size = float(kv_bytes(context.service.model, context.service.precision.kv_cache, long))
    legal = rates > 0
    time = size / np.where(legal, rates, 1.0)
    steps = np.maximum(np.ceil(np.log(time / FASTEST_CLASS) / np.log(CLASS_RATIO) - 1e-9), 0.0)
    return np.where(legal, size / (FASTEST_CLASS * CLASS_RATIO**steps), 0.0)


def _prefill_candidates(
    context: _Context, prefill: Sequence[ReplicaChoice], class_rates: FloatArray
) -> CandidateSet:
    """Prefill replicas in every transfer class that some decode replica needs, slowest first."""
    choices = [
        replace(choice, path_rate=float(rate), first_step=step)
        for i, choice in enumerate(prefill)
        for rate in np.unique(class_rates[i][class_rates[i] > 0])
        for step in context.first_steps
    ]
    if not choices:
        return CandidateSet(evaluated=len(prefill))
    traffic, service, budget = context.traffic, context.service, context.engine.prefill_token_budget
    queues = prompt_queues(context.replicas(prefill), traffic, float(budget))
    position = {(c.item, c.parallelism): i for i, c in enumerate(prefill)}
    replica = np.array([position[c.item, c.parallelism] for c in choices])
    size = kv_bytes(service.model, service.precision.kv_cache, traffic.isl[:, None])
    path = np.array([c.path_rate for c in choices])
    layers = np.array([service.model.num_layers / c.parallelism.pp for c in choices])
    transfer = kv_transfer_time(traffic.isl[:, None], size, path, layers, context.engine)
    demand = PrefillDemand(
        ttft=context.ttft,
        admission_miss=context.miss,
        first_step=np.array(
            [FIRST_STEPS * c.first_step if math.isfinite(c.first_step) else 0.0 for c in choices]
        ),
        transfer=transfer,
        routing=context.scenario.options.routing,
    )

    def curves(starts: Sequence[int]) -> Curves:
        result = prefill_curves(queues, replica, traffic, demand, starts)
        out = np.array([_egress(context, c) for c in choices])
        result = result.at_most(_link_rate(context, out), Binding.NETWORK)
        return result.at_most(_prefill_memory_rate(context, choices, transfer), Binding.KV_CAPACITY)

    return _collect(context, choices, curves)


def _link_rate(context: _Context, nic: FloatArray) -> FloatArray:
    """Requests per second whose KV caches load NICs of rate `nic` [B/s] to the limit. [req/s]"""
    service = context.service
    traffic = context.traffic
    sizes = kv_bytes(service.model, service.precision.kv_cache, traffic.isl)
    request = float(traffic.isl_weights @ sizes)
    return np.asarray(LINK_LOAD_LIMIT * nic / request)


def _prefill_memory_rate(
    context: _Context, choices: Sequence[ReplicaChoice], transfer: FloatArray
) -> FloatArray:
    """Rate at which prompts in service or waiting for their transfer fill the prefill's KV cache. [req/s]

    A prompt holds its blocks from the start of its step to the end of its transfer.
    """
    traffic, budget = context.traffic, context.engine.prefill_token_budget
    tokens = np.array([float(c.kv_tokens) for c in choices])
    weights = traffic.isl_weights * traffic.isl
    held = weights @ (transfer + context.miss)  # tokens x time while the transfer runs
    free = np.maximum(tokens - budget - traffic.longest_isl, 0.0)  # beside one step and one long prompt
    return np.asarray(free / np.maximum(held, 1e-12))


def _decode_candidates(context: _Context, decode: Sequence[ReplicaChoice]) -> CandidateSet:
    """Decode replicas at every level of the first decode step."""
    choices = [replace(choice, first_step=step) for choice in decode for step in context.first_steps]
    r = context.replicas(choices)
    demand = DecodeDemand(
        tpot=context.tpot,
        first_step=np.array([c.first_step for c in choices]),
        admission_miss=context.miss,
        kv_tokens=np.array([float(c.kv_tokens) for c in choices]),
        max_num_seqs=np.array([float(c.max_num_seqs) for c in choices]),
    )
    into = np.array([_egress(context, c) / _copies(context, c) for c in choices])
    link = _link_rate(context, into)

    def curves(starts: Sequence[int]) -> Curves:
        return decode_curves(r, context.traffic, demand, starts).at_most(link, Binding.NETWORK)

    return _collect(context, choices, curves)


def _illegal_pairs(
    context: _Context,
    merged: CandidateSet,
    prefill: Sequence[ReplicaChoice],
    decode: Sequence[ReplicaChoice],
    rates: FloatArray,
) -> frozenset[tuple[int, int]]:
    """Pairs that break an engine rule, or take longer after the prefill than its candidate allows."""
    row = {(c.item, c.parallelism): i for i, c in enumerate(prefill)}
    column = {(c.item, c.parallelism): j for j, c in enumerate(decode)}
    pairs = set()
    for i in merged.of(Phase.PREFILL):
        p = merged.choices[i]
        for j in merged.of(Phase.DECODE):
            d = merged.choices[j]
            rate = rates[row[p.item, p.parallelism], column[d.item, d.parallelism]]
            if rate <= 0 or rate < p.path_rate * (1 - 1e-9) or d.first_step > p.first_step:
                pairs.add((i, j))
    return frozenset(pairs)


# --------------------------------------------------------------------------------------------
# Colocated


def _colocated(context: _Context) -> CandidateSet:
    choices = _choices(context, Phase.COLOCATED, context.engine.token_budgets)
    if not choices:
        return CandidateSet()
    demand = ColocatedDemand(
        ttft=context.ttft,
        tpot=context.tpot,
        admission_miss=context.miss,
        routing=context.scenario.options.routing,
        policy=context.engine.scheduler,
        token_budget=np.array([float(c.token_budget) for c in choices]),
        kv_tokens=np.array([float(c.kv_tokens) for c in choices]),
        max_num_seqs=np.array([float(c.max_num_seqs) for c in choices]),
    )
    table = colocated_table(context.replicas(choices), context.traffic, demand)
    return _collect(context, choices, lambda starts: colocated_curves(table, context.traffic, demand, starts))


# --------------------------------------------------------------------------------------------
# Curves -> candidates


def replica_counts(most: int) -> tuple[int, ...]:
    """First replica count of each range that `most` reaches: one by one, then growing by a quarter.

    The counts do not depend on `most` but for their end, so that curves of different scenarios compare.
    """
    starts = list(range(1, min(most, _EXACT) + 1))
    while starts[-1] < most:
        starts.append(math.ceil(starts[-1] * _GROWTH))
    return tuple(starts)


def _collect(
    context: _Context, choices: Sequence[ReplicaChoice], curves: Callable[[Sequence[int]], Curves]
) -> CandidateSet:
    """Evaluate `curves` on as many replica counts as the demand can use, and keep who carries load."""
    single = curves((1,)).per_replica[:, 0]
    useful = [i for i, rate in enumerate(single) if rate > 0]
    for i in set(range(len(choices))) - set(useful):
        choice = choices[i]
        item = context.fleet[choice.item]
        context.reject(item, choice.phase, choice.parallelism, "one request alone exceeds an SLO")
    if not useful:
        return CandidateSet(evaluated=len(choices))
    most = [_most_replicas(context, choices[i], float(single[i])) for i in useful]
    table = curves(replica_counts(max(1, *most)))
    starts = tuple(int(n) for n in table.starts)
    return CandidateSet(
        candidates=tuple(
            Candidate(
                name=candidate_name(context, choices[i]),
                phase=choices[i].phase,
                gpu_type=choices[i].item,
                gpus=choices[i].parallelism.num_gpus,
                curve=CapacityCurve(starts=starts, per_replica=tuple(table.per_replica[i].tolist())),
                max_replicas=most[k],
            )
            for k, i in enumerate(useful)
        ),
        choices=tuple(choices[i] for i in useful),
        operating=tuple(table.operating[i] for i in useful),
        binds=tuple(tuple(Binding(str(b)) for b in table.binds[i]) for i in useful),
        evaluated=len(choices),
    )


def _most_replicas(context: _Context, choice: ReplicaChoice, single: float) -> int:
    """Replicas that the stock holds, and that the demand can use with spares and minimum."""
    item, options = context.fleet[choice.item], context.scenario.options
    caps = [MOST_REPLICAS]
    if item.max_gpus is not None:
        caps.append(item.max_gpus // choice.parallelism.num_gpus)
    if choice.phase in item.max_gpus_by_phase:
        caps.append(item.max_gpus_by_phase[choice.phase] // choice.parallelism.num_gpus)
    if context.scenario.objective is not Objective.THROUGHPUT:
        needed = math.ceil(context.demand / single) + options.spare_replicas
        caps.append(max(needed, options.min_replicas_per_pool))
    return min(caps)


def candidate_name(context: _Context, choice: ReplicaChoice) -> str:
    """Unique and readable: phase, GPU, layout, and what else tells candidates apart."""
    item = context.fleet[choice.item]
    parts = [choice.phase.value, item.gpu.name, f"tp{choice.parallelism.tp}"]
    sizes = {"pp": choice.parallelism.pp, "ep": choice.parallelism.ep, "dp": choice.parallelism.dp}
    parts += [f"{name}{size}" for name, size in sizes.items() if size > 1]
    if choice.phase is Phase.COLOCATED:
        parts.append(f"chunk{choice.token_budget}")
    if math.isfinite(choice.path_rate):
        parts.append(f"path{choice.path_rate / GIGA:.4g}")
    if math.isfinite(choice.first_step):
        parts.append(f"step{choice.first_step / MILLI:g}")
    return "-".join(parts)


def _merge(parts: Sequence[CandidateSet]) -> CandidateSet:
    """Concatenate; pair indices of later parts shift."""
    pairs: set[tuple[int, int]] = set()
    offset = 0
    for part in parts:
        pairs |= {(i + offset, j + offset) for i, j in part.illegal_pairs}
        offset += len(part.candidates)
    return CandidateSet(
        candidates=tuple(c for p in parts for c in p.candidates),
        choices=tuple(c for p in parts for c in p.choices),
        operating=tuple(o for p in parts for o in p.operating),
        binds=tuple(b for p in parts for b in p.binds),
        illegal_pairs=frozenset(pairs),
        evaluated=sum(p.evaluated for p in parts),
    )
