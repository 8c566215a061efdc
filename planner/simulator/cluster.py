"""A fleet as the event loop sees it, and what came of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.arrays import FloatArray
from planner.errors import SpecError
from planner.simulator import kernel, records
from planner.simulator.requests import Requests
from planner.simulator.tables import Grids, StepTables
from planner.specs import Phase, Routing

_PHASES = {
    Phase.PREFILL: kernel.PREFILL_PHASE,
    Phase.DECODE: kernel.DECODE_PHASE,
    Phase.COLOCATED: kernel.COLOCATED_PHASE,
}
_INT32 = np.iinfo(np.int32).max
_RECORDS_AT_ONCE = 4096
_MOST_GROWN = 32  # blocks of a pattern in which sequences grow
MOST_CACHE_ENTRIES = 2**28  # blocks of a trace times replicas that the prefix cache keeps books of


class Router(StrEnum):
    """How the front door of a simulation picks a replica."""

    LEAST_LOADED = "least_loaded"
    POWER_OF_TWO = "power_of_two"
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"
    PLAN_SHARES = "plan_shares"
    """A group by the plan's share of the load, then its least loaded replica."""
    PREFIX_AWARE = "prefix_aware"
    """The replica that will have computed the prompt first, with what its prefix cache holds of it."""

    @classmethod
    def of(cls, routing: Routing) -> Router:
        return cls(routing.value)


class LoadMeasure(StrEnum):
    """What of a replica a router looks at. Decode replicas are compared by their sequences for WORK, too."""

    WORK = "work"
    """Time until the prompts that are there are computed."""
    REQUESTS = "requests"
    TOKENS = "tokens"


_ROUTERS = {
    Router.LEAST_LOADED: kernel.LEAST_LOADED,
    Router.POWER_OF_TWO: kernel.POWER_OF_TWO,
    Router.ROUND_ROBIN: kernel.ROUND_ROBIN,
    Router.RANDOM: kernel.RANDOM,
    Router.PLAN_SHARES: kernel.SHARES,
    Router.PREFIX_AWARE: kernel.PREFIX_AWARE,
}
_MEASURES = {
    LoadMeasure.WORK: kernel.WORK,
    LoadMeasure.REQUESTS: kernel.REQUESTS,
    LoadMeasure.TOKENS: kernel.TOKENS,
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SimulatedGroup:
    """Equal replicas, in the terms of the event loop.

    Attributes
    ----------
    lanes, stages : int
        Steps that a replica runs side by side, and stages of a pipeline that these share.
    budget, limit : int
        max_num_batched_tokens [tok] and max_num_seqs of a replica.
    blocks : int
        Of a replica's KV cache.
    nic : float
        Rate of all NICs of a replica, one direction. [B/s]
    copies : float
        Times that each byte of a KV cache is sent to a replica. [1]
    fixed, post, exposed : float
        Of a transfer from here: fixed time, time per block, share that is not hidden. [s, s, 1]
    weight : float
        Load that a replica is meant to carry, in any unit that is common to a pool.
    prefill_first : bool
        Prompts stop the decoding (else: chunks beside it).
    emits : bool
        Whether a prompt's last step makes a token.
    swap_time : float or None
        Of one block to or from host memory; None: preempted sequences are computed again. [s]
    sequence_work : float
        Time that a decoding sequence will take from a colocated replica, for the router. [s]
    least, most : int
        Prompt lengths that are sent here. [tok]
    """

    name: str
    phase: Phase
    replicas: int
    tables: StepTables
    budget: int
    limit: int
    blocks: int
    lanes: int = 1
    stages: int = 1
    nic: float = math.inf
    copies: float = 1.0
    fixed: float = 0.0
    post: float = 0.0
    exposed: float = 1.0
    weight: float = 1.0
    prefill_first: bool = False
    emits: bool = True
    swap_time: float | None = None
    sequence_work: float = 0.0
    least: int = 0
    most: int = _INT32


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """A replica that fails at `time` and is back at `until`. [s]"""

    group: int
    replica: int
    time: float
    until: float = math.inf


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Cluster:
    """Groups behind one front door: prefill groups, then decode groups; or colocated groups.

    Attributes
    ----------
    pair_rates : ndarray, shape (groups, groups)
        Rate of the slower end of a transfer from one group to another; 0: never. [B/s]
    block_size : int
        Tokens of a KV block.
    tokens_per_step : float
        Mean tokens that a decode step emits for a sequence. [tok]
    rows : int
        Tokens that it computes for a sequence.
    """

    groups: tuple[SimulatedGroup, ...]
    grids: Grids
    pair_rates: FloatArray
    block_size: int = 16
    first_token_from_prefill: bool = False
    router: Router = Router.LEAST_LOADED
    measure: LoadMeasure = LoadMeasure.WORK
    failures: tuple[Failure, ...] = ()
    tokens_per_step: float = 1.0
    rows: int = 1

    def __post_init__(self) -> None:
        phases = [g.phase for g in self.groups]
        both = phases == sorted(phases, key=list(Phase).index) and set(phases) == {
            Phase.PREFILL,
            Phase.DECODE,
        }
        if not (both or set(phases) == {Phase.COLOCATED}):
            raise SpecError("a cluster has prefill and then decode groups, or colocated groups alone")

    @property
    def replicas(self) -> int:
        return sum(g.replicas for g in self.groups)

    @property
    def growth(self) -> tuple[int, int]:
        """(steps, blocks): a sequence that decodes grows by so many blocks in so many steps, nearly."""
        found = (
            (max(round(n * self.block_size / self.tokens_per_step), 1), n) for n in range(1, _MOST_GROWN + 1)
        )
        return min(found, key=lambda x: (abs(x[1] * self.block_size / x[0] / self.tokens_per_step - 1), x[1]))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Holdings:
    """What each request keeps and moves; arrays of shape (requests,).

    Attributes
    ----------
    prompt, decode : ndarray
        KV cache of the prompt, and of the sequence when it starts to decode, in tokens of full
        attention. [tok]
    size : ndarray
        Of the prompt's KV cache, each head once. [B]
    """

    prompt: NDArray[Any]
    decode: NDArray[Any]
    size: FloatArray

    @classmethod
    def plain(cls, isl: NDArray[Any], bytes_per_token: float = 0.0) -> Holdings:
        """A model whose every layer keeps every token."""
        return cls(prompt=isl, decode=isl, size=isl * bytes_per_token)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Outcome:
    """What came of a run: the records of the event loop, as :mod:`planner.simulator.records` has them.

    Attributes
    ----------
    request, lane, replica, control : structured arrays
    gaps : ndarray
        Histogram of the times between tokens.
    samples, sample_times : ndarray
        Figures of each group over time, shape (times, groups, figures); times in s.
    log : structured array
        Activities, where they were asked for.
    """

    cluster: Cluster
    requests: Requests
    request: NDArray[Any]
    lane: NDArray[Any]
    replica: NDArray[Any]
    control: NDArray[Any]
    gaps: NDArray[np.int64]
    samples: FloatArray
    sample_times: FloatArray
    log: NDArray[Any] = field(default_factory=lambda: np.zeros(0, records.ACTIVITY))

    @property
    def end(self) -> float:
        """Time of the last event. [s]"""
        return float(self.control["now"][0])

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Tokens that each request has got so far."""
        made = self.request["made"].astype(np.int64)
        decoding = self.request["state"] == kernel.DECODE
        lanes = self.request["lane"][decoding]
        steps = self.lane["iteration"][lanes] - self.request["joined_at"][decoding]
        alone = np.minimum(steps, made[decoding] == 0)  # the first of all
        emitted = alone + np.floor((steps - alone) * self.cluster.tokens_per_step).astype(np.int64)
        made[decoding] = np.minimum(made[decoding] + emitted, self.request["osl"][decoding])
        return made


def run_cluster(
    cluster: Cluster,
    requests: Requests,
    holdings: Holdings,
    *,
    seed: int = 0,
    until: float = math.inf,
    samples: int = 240,
    log_capacity: int = 0,
) -> Outcome:
    """Send `requests` through the cluster until all are served, or until a time. [s]

    Parameters
    ----------
    seed : int
        Of the routers that draw lots.
    samples : int
        Instants, evenly spaced up to the last arrival, at which every group is looked at.
    log_capacity : int
        Activities that are kept; 0: none are noted.

    Raises
    ------
    SpecError
        There are no requests, or they do not come by arrival; a failure makes no
        sense; blocks of a trace do not fill those of the engine, or are too many to keep books of.
    """
    world = _world(cluster, requests, holdings, seed, until, samples, log_capacity)
    kernel.run(world)
    return _outcome(cluster, requests, world)


def _world(
    cluster: Cluster,
    requests: Requests,
    holdings: Holdings,
    seed: int,
    until: float,
    samples: int,
    log_capacity: int,
) -> records.World:
    """The arrays of one run."""
    if requests.number == 0:
        raise SpecError("there are no requests to simulate")
    tables, group = _group_records(cluster, loads=requests.blocks is None)
    lane, replica = _replica_records(cluster)
    control = _control_record(cluster, requests, seed, until, log_capacity > 0)
    lanes = len(lane)
    ring_size = 1 << int(int(requests.osl.max(initial=1)) + 2).bit_length()
    slots = sum(g.limit * g.replicas for g in cluster.groups if g.phase is Phase.DECODE)
    transfers = min(slots, requests.number) * (1 + len(cluster.failures))  # void ones stay until their time
    last = min(float(requests.arrival[-1]), until)
    times = np.linspace(0.0, last, samples + 1)[1:] if samples and last > 0 else np.zeros(0)
    refers, older, newer, offsets, ids = _cache_arrays(requests, cluster)
    return records.World(
        request=_request_records(requests, holdings),
        lane=lane,
        replica=replica,
        group=group,
        control=control,
        tables=tables,
        ring=np.full((lanes, ring_size), -1, np.int32),
        growth=np.zeros((lanes, cluster.growth[0]), np.int32),
        refers=refers,
        older=older,
        newer=newer,
        offsets=offsets,
        ids=ids,
        starting=np.zeros(lanes + 1, np.int32),
        heap=np.zeros(transfers + 1, records.TRANSFER_EVENT),
        pairs=np.ascontiguousarray(cluster.pair_rates, dtype=np.float64),
        stage=np.zeros((lanes, max(g.stages for g in cluster.groups))),
        tree=np.full(2 << max(lanes - 1, 1).bit_length(), math.inf),
        gaps=np.zeros(kernel.GAP_BINS, np.int64),
        samples=np.zeros((times.size, len(cluster.groups), kernel.SAMPLED)),
        sample_times=times,
        log=np.zeros(log_capacity, records.ACTIVITY),
        failures=_failure_records(cluster),
        lost=np.zeros(requests.number if cluster.failures else 1, np.int64),
    )


def _outcome(cluster: Cluster, requests: Requests, world: records.World) -> Outcome:
    control, replica = world.control, world.replica
    rest = float(control["now"][0]) - replica["used_since"]
    replica["used_time"] += replica["used"] * rest
    reached = int(control["sample"][0])
    return Outcome(
        cluster=cluster,
        requests=requests,
        request=world.request,
        lane=world.lane,
        replica=replica,
        control=control,
        gaps=world.gaps,
        samples=world.samples[:reached],
        sample_times=world.sample_times[:reached],
        log=world.log[: min(int(control["logged"][0]), len(world.log))],
    )


def _request_records(requests: Requests, holdings: Holdings) -> NDArray[Any]:
    """One record per request. An engine makes a token of whatever prompt: no output is an output of one."""
    arrival = requests.arrival
    if not (np.isfinite(arrival).all() and arrival[0] >= 0 and (np.diff(arrival) >= 0).all()):
        raise SpecError("requests to simulate must come by arrival, from 0 s on")
    fresh = np.zeros((), records.REQUEST)
    for name in ("begun", "prompted", "joined", "first", "last"):
        fresh[name] = math.nan
    for name in ("next", "before", "ring_next", "ring_before", "prefill", "decode", "lane"):
        fresh[name] = -1
    request = np.zeros(requests.number, records.REQUEST)  # padding too: the same bytes each time
    for start in range(0, requests.number, _RECORDS_AT_ONCE):  # each part stays in the processor's cache
        part = slice(start, start + _RECORDS_AT_ONCE)
        some = request[part]
        some[:] = fresh
        some["arrival"] = arrival[part]
        some["isl"], some["osl"] = np.maximum(requests.isl[part], 1), np.maximum(requests.osl[part], 1)
        some["cached"] = np.minimum(requests.cached[part], some["isl"] - 1)  # at least one is computed
        some["kv_prompt"] = np.minimum(holdings.prompt[part], _INT32)
        some["kv_decode"] = np.minimum(holdings.decode[part], _INT32)
        some["size"] = holdings.size[part]
    return request


def _group_records(cluster: Cluster, *, loads: bool) -> tuple[FloatArray, NDArray[Any]]:
    """Group records, and all tables one after the other; `loads`: whether prefixes that are found are loaded.
    Those of a trace's hashes lie in HBM."""
    group = np.zeros(len(cluster.groups), records.GROUP)
    parts: list[FloatArray] = []
    offset = 0

    def place(table: FloatArray) -> int:
        nonlocal offset
        flat = np.ascontiguousarray(table, dtype=np.float64).ravel()
        parts.append(flat)
        offset += flat.size
        return offset - flat.size

    for grid in (cluster.grids.contexts, cluster.grids.queries, cluster.grids.pasts):
        place(grid)
    first = 0
    pool_weight: dict[int, float] = {}
    for g in cluster.groups:
        pool_weight[_PHASES[g.phase]] = pool_weight.get(_PHASES[g.phase], 0.0) + g.weight * g.replicas
    for record, g in zip(group, cluster.groups, strict=True):
        t = g.tables
        record["host"], record["host_decode"] = t.host, t.host_decode
        record["host_sequence"] = t.host_sequence
        record["decode_scale"], record["prefill_scale"] = t.decode_scale, t.prefill_scale
        record["launch"] = t.launch
        record["load"] = t.load if loads else 0.0
        record["swap_rate"] = g.swap_time or 0.0
        record["swaps"] = g.swap_time is not None
        for name in (
            "nic", "fixed", "exposed", "post", "copies", "weight", "sequence_work", "blocks", "lanes",
            "stages", "budget", "limit", "least", "most", "replicas", "prefill_first", "emits",
        ):  # fmt: skip
            record[name] = getattr(g, name)
        record["phase"] = _PHASES[g.phase]
        record["share"] = g.weight * g.replicas / pool_weight[_PHASES[g.phase]]
        record["first"] = first
        record["decode_table"], record["beside_table"] = place(t.decode), place(t.beside)
        record["token_table"], record["head_table"] = place(t.tokens), place(t.head)
        record["attention_table"] = place(t.attention)
        first += g.replicas
    return np.concatenate(parts), group


def _replica_records(cluster: Cluster) -> tuple[NDArray[Any], NDArray[Any]]:
    lane = np.zeros(sum(g.replicas * g.lanes for g in cluster.groups), records.LANE)
    for name in ("completing", "completing_tail", "partial", "head", "tail", "ready", "ready_tail"):
        lane[name] = -1
    replica = np.zeros(cluster.replicas, records.REPLICA)
    for name in ("head", "tail", "wait_head", "wait_tail", "lru_head", "lru_tail"):
        replica[name] = -1
    replica["up"] = 1
    numbers = [n for n, g in enumerate(cluster.groups) for _ in range(g.replicas)]
    replica["group"] = numbers
    lanes = [cluster.groups[n].lanes for n in numbers]
    replica["first_lane"] = np.cumsum([0, *lanes])[:-1]
    lane["replica"] = np.repeat(np.arange(cluster.replicas), lanes)
    return lane, replica


def _control_record(
    cluster: Cluster, requests: Requests, seed: int, until: float, logging: bool
) -> NDArray[Any]:
    control = np.zeros(1, records.CONTROL)
    for name in ("pending", "pending_tail", "homeless", "homeless_tail"):
        control[name] = -1
    control["until"] = until
    control["random"] = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    control["routing"], control["measure"] = _ROUTERS[cluster.router], _MEASURES[cluster.measure]
    control["first_from_prefill"] = cluster.first_token_from_prefill
    control["block"] = cluster.block_size
    control["gain"], control["verified"] = cluster.tokens_per_step, cluster.rows
    control["period"], control["grown"] = cluster.growth
    control["logging"] = logging
    sizes = [g.size for g in (cluster.grids.contexts, cluster.grids.queries, cluster.grids.pasts)]
    control["contexts"], control["queries"], control["pasts"] = sizes
    control["context_grid"], control["query_grid"], control["past_grid"] = 0, sizes[0], sum(sizes[:2])
    first = [g for g in cluster.groups if g.phase is not Phase.DECODE]
    control["first_pool"] = sum(g.replicas for g in first)
    if requests.blocks is not None:
        if requests.blocks.size % cluster.block_size:
            raise SpecError(
                f"prefix cache: blocks of {requests.blocks.size} tokens are no multiple of the engine's "
                f"{cluster.block_size}"
            )
        control["hash_block"] = requests.blocks.size
        control["hash_blocks"] = requests.blocks.size // cluster.block_size
    return control


def _cache_arrays(requests: Requests, cluster: Cluster) -> tuple[NDArray[Any], ...]:
    """References and order of use of each block on each replica, and the blocks of each prompt."""
    if requests.blocks is None:
        empty = np.zeros((1, 1), np.int32)
        return empty, empty.copy(), empty.copy(), np.zeros(2, np.int64), np.zeros(1, np.int32)
    distinct, ids = np.unique(requests.blocks.ids, return_inverse=True)
    entries = distinct.size * cluster.replicas
    if entries > MOST_CACHE_ENTRIES:
        raise SpecError(
            f"prefix cache: {distinct.size:,} blocks on {cluster.replicas} replicas are more than can be "
            "simulated; cut the trace, or leave the cache out"
        )
    shape = (cluster.replicas, max(distinct.size, 1))
    books = [np.full(shape, -1, np.int32) for _ in range(3)]
    return (*books, requests.blocks.offsets.astype(np.int64), ids.astype(np.int32))


def _failure_records(cluster: Cluster) -> NDArray[Any]:
    """Failures and recoveries by time, the latter first; outages of a replica that overlap are one."""
    first = np.cumsum([0, *(g.replicas for g in cluster.groups)])
    outages: dict[int, list[tuple[float, float]]] = {}
    for f in cluster.failures:
        if not (0 <= f.group < len(cluster.groups) and 0 <= f.replica < cluster.groups[f.group].replicas):
            raise SpecError(f"failure: there is no replica {f.replica} of group {f.group}")
        if not 0 <= f.time < f.until:
            raise SpecError(f"failure: a replica fails at {f.time!r} s and is back at {f.until!r} s")
        outages.setdefault(int(first[f.group]) + f.replica, []).append((f.time, f.until))
    events: list[tuple[float, int, int]] = []
    for replica, times in outages.items():
        down = -math.inf
        for start, end in sorted(times):
            if start > down:
                events.append((start, replica, 0))
            elif end > down:
                events.remove((down, replica, 1))
            if end > down:
                down = end
                events.append((end, replica, 1))
    events = sorted((e for e in events if math.isfinite(e[0])), key=lambda e: (e[0], -e[2], e[1]))
    return np.array(events, dtype=records.FAILURE) if events else np.zeros(0, records.FAILURE)


def with_failures(cluster: Cluster, failures: Sequence[Failure]) -> Cluster:
    """The same cluster, some replicas of which fail."""
    return replace(cluster, failures=tuple(failures))
