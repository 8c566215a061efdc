"""From a fleet of the planner to the groups, tables and sizes of the event loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from planner.arrays import FloatArray
from planner.collectives import network_rate
from planner.errors import SpecError
from planner.fleet import Deployed, Fleet, path_rate
from planner.operators import ReplicaSet
from planner.simulator.cluster import Cluster, Failure, Holdings, LoadMeasure, Router, SimulatedGroup
from planner.simulator.requests import Requests
from planner.simulator.tables import Grids, step_tables
from planner.specs import (
    Attention,
    Dtype,
    LatentAttention,
    Model,
    Phase,
    SchedulerPolicy,
    rows_per_sequence,
    tokens_per_step,
)
from planner.traffic import unaccepted_tokens
from planner.transformer import equivalent_tokens, kv_bytes, kv_copies

_ORDER = (Phase.PREFILL, Phase.DECODE, Phase.COLOCATED)


class Preemption(StrEnum):
    """What happens to a sequence whose blocks are needed by older ones."""

    RECOMPUTE = "recompute"
    """Its cache is dropped, and computed again from prompt and answer so far."""
    SWAP = "swap"
    """Its cache goes to host memory and comes back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """How a fleet is simulated.

    Attributes
    ----------
    z : float
        Normal quantile of the model error assumed. [1]
    router, measure : Router and LoadMeasure, or None
        None: the fleet's own routing, by work.
    policy : SchedulerPolicy or None
        Of colocated replicas; None: the engine's.
    failures : tuple of Failure
        Groups count in the order of the fleet.
    input_ranges : tuple of (float, float)
        Prompt lengths that each group of the fleet serves, ``low <= isl < high``; empty: all. Decode groups
        take what groups hand over whose prompts they share. [tok]
    """

    z: float = 0.0
    router: Router | None = None
    measure: LoadMeasure = LoadMeasure.WORK
    policy: SchedulerPolicy | None = None
    preemption: Preemption = Preemption.RECOMPUTE
    failures: tuple[Failure, ...] = ()
    input_ranges: tuple[tuple[float, float], ...] = ()


PLAIN = Setup()


def group_order(fleet: Fleet) -> list[int]:
    """Groups of the fleet in the order of its simulation: prefill before decode."""
    return sorted(range(len(fleet.groups)), key=lambda k: _ORDER.index(fleet.groups[k].phase))


def cluster_of(
    fleet: Fleet, setup: Setup = PLAIN, longest: float | None = None, names: Sequence[str] = ()
) -> Cluster:
    """The cluster that simulates `fleet`.

    Parameters
    ----------
    longest : float, optional
        Longest prompt plus output that will come; default: that of the fleet's workload. [tok]
    names : sequence of str
        Of the groups of the fleet.

    Raises
    ------
    SpecError
        If a colocated replica has several attention ranks, which no model here covers.
    """
    order = group_order(fleet)
    deployed = [fleet.groups[k] for k in order]
    longest = fleet.service.workload.lengths.longest if longest is None else longest
    budgets = max(g.token_budget for g in deployed)
    grids = Grids.up_to(longest, min(budgets, longest), _kinks(fleet.service.model))
    place = {k: n for n, k in enumerate(order)}
    ranges = setup.input_ranges or ((0.0, math.inf),) * len(order)
    named = names or [str(k) for k in range(len(order))]
    groups = tuple(
        replace(
            _group(fleet, g, grids, setup),
            name=named[k],
            least=math.floor(ranges[k][0]),
            most=_last_below(ranges[k][1]),
        )
        for k, g in zip(order, deployed, strict=True)
    )
    return Cluster(
        groups=groups,
        grids=grids,
        pair_rates=_pair_rates(fleet, deployed, [ranges[k] for k in order]),
        block_size=fleet.engine.block_size,
        first_token_from_prefill=fleet.engine.first_token_phase is Phase.PREFILL,
        router=setup.router or Router.of(fleet.routing),
        measure=setup.measure,
        failures=tuple(replace(f, group=place[f.group]) for f in setup.failures),
        tokens_per_step=tokens_per_step(fleet.service.speculation),
        rows=rows_per_sequence(fleet.service.speculation),
    )


def _last_below(high: float) -> int:
    """The last whole length below `high`, as far as the simulator counts. [tok]"""
    most = int(np.iinfo(np.int32).max)
    return min(math.ceil(high) - 1, most) if math.isfinite(high) else most


def holdings(fleet: Fleet, requests: Requests) -> Holdings:
    """KV cache of each request.

    Windows fill while a sequence decodes; their whole size is taken at its start, so that from then on a
    token takes the place of one token in the layers of full attention. Room for drafted tokens that may be
    rejected is taken then, too.
    """
    model, dtypes = fleet.service.model, _kv_formats(fleet)
    isl = requests.isl.astype(np.float64)
    size = kv_bytes(model, dtypes[0], isl)  # where it is sent there is one format
    prompt = np.ceil(_most_tokens(model, dtypes, isl))
    reserve = math.ceil(max(unaccepted_tokens(model, d, fleet.service.speculation) for d in dtypes))
    if np.array_equal(prompt, isl):
        decode = requests.isl + reserve if reserve else requests.isl
        return Holdings(prompt=requests.isl, decode=decode, size=size)
    if requests.blocks is not None:
        raise SpecError(
            f"{model.name}: a prefix cache is simulated only for models whose every layer keeps every token"
        )
    whole = np.ceil(_most_tokens(model, dtypes, isl + requests.osl))
    decode = np.maximum(prompt, whole - requests.osl) + reserve
    return Holdings(prompt=prompt.astype(np.int64), decode=decode.astype(np.int64), size=size)


def _kv_formats(fleet: Fleet) -> tuple[Dtype, ...]:
    """Formats of the KV caches of all groups, each once."""
    return tuple(dict.fromkeys(fleet.service_of(g).precision.kv_cache for g in fleet.groups))


def _most_tokens(model: Model, dtypes: Sequence[Dtype], length: FloatArray) -> FloatArray:
    """Tokens that sequences stand for in the format in which they stand for most: a state counts for more of
    them where tokens are small."""
    tokens = [equivalent_tokens(model, dtype, length) for dtype in dtypes]
    return np.asarray(np.max(tokens, axis=0))


def _kinks(model: Model) -> tuple[float, ...]:
    """Contexts at which the time of attention bends."""
    found: set[float] = set()
    for run in model.kinds:
        mixer = run.layer.attention
        if isinstance(mixer, Attention) and mixer.window is not None:
            found.add(float(mixer.window))
        if isinstance(mixer, LatentAttention) and mixer.indexer is not None:
            found.add(float(mixer.indexer.top_k))
    return tuple(sorted(found))


def _group(fleet: Fleet, g: Deployed, grids: Grids, setup: Setup) -> SimulatedGroup:
    engine, model, layout = fleet.engine, fleet.service.model, g.parallelism
    if g.phase is Phase.COLOCATED and layout.dp > 1:
        raise SpecError(
            f"{g.item.gpu.name} {layout}: colocated replicas with several attention ranks are not modelled"
        )
    precision = fleet.service_of(g).precision
    speculation = fleet.service.speculation
    r = ReplicaSet.of(model, precision, engine, [(g.item.gpu, layout)], setup.z, speculation)
    # The ranks of a decode replica step together: one batch. Those of a prefill replica have a prompt each.
    lanes = layout.pp if g.phase is Phase.DECODE else layout.lanes
    tables = step_tables(r, grids, g.max_num_seqs, g.token_budget, lanes)
    block_bytes = engine.block_size * float(kv_bytes(model, precision.kv_cache, 1.0))
    block_bytes *= kv_copies(model, layout.tp)
    host = g.item.gpu.host_bandwidth * layout.num_gpus / layout.dp
    costs = engine.transfer
    policy = setup.policy or engine.scheduler
    return SimulatedGroup(
        name="",
        phase=g.phase,
        replicas=g.replicas,
        tables=tables,
        budget=g.token_budget,
        limit=g.max_num_seqs,
        blocks=g.kv_tokens // engine.block_size,
        lanes=lanes,
        stages=layout.pp,
        nic=network_rate(g.item, engine) * layout.num_gpus,
        copies=kv_copies(model, layout.tp),
        fixed=costs.fixed,
        post=costs.per_block * model.num_layers / layout.pp,
        exposed=1.0 - costs.overlap,
        weight=g.rate / g.replicas if g.rate > 0 else 1.0,
        prefill_first=g.phase is Phase.COLOCATED and policy is SchedulerPolicy.PREFILL_FIRST,
        swap_time=block_bytes / host if setup.preemption is Preemption.SWAP else None,
        sequence_work=_sequence_work(fleet, g, tables.decode[:, 0] * tables.decode_scale),
    )


def _sequence_work(fleet: Fleet, g: Deployed, steps: np.ndarray) -> float:
    """What another decoding sequence takes from a replica until it ends, on average. [s]"""
    if g.phase is not Phase.COLOCATED or len(steps) < 3:
        return 0.0
    slope = float(steps[-1] - steps[1]) / (len(steps) - 2)
    tokens = fleet.service.workload.lengths.osl.mean / tokens_per_step(fleet.service.speculation)
    return slope * tokens / 2


def _pair_rates(
    fleet: Fleet, deployed: Sequence[Deployed], ranges: Sequence[tuple[float, float]]
) -> np.ndarray:
    """Rate of the slower end of each transfer; 0 where two groups share no prompt. [B/s]"""
    rates = np.zeros((len(deployed), len(deployed)))
    for i, p in enumerate(deployed):
        for j, d in enumerate(deployed):
            shared = max(ranges[i][0], ranges[j][0]) < min(ranges[i][1], ranges[j][1])
            if p.phase is Phase.PREFILL and d.phase is Phase.DECODE and shared:
                copies = kv_copies(fleet.service.model, d.parallelism.tp)
                rates[i, j] = path_rate(fleet, p, d) * copies
    return rates
