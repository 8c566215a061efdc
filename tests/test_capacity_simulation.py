"""Queues of the planner against plain discrete-event simulations of an engine.

The simulations take only step times from the planner. Everything else is written out: central FIFO
queues, continuous batching, and chunked prefill one iteration at a time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from planner import catalog
from planner.capacity import (
    SLO_MARGIN,
    ColocatedDemand,
    Limit,
    colocated_curves,
    colocated_state,
    colocated_table,
    prompt_queues,
)
from planner.collectives import kv_transfer_time, network_rate
from planner.engines import load_engine
from planner.fleet import Deployed, Fleet
from planner.latency import decode_step_time, prompt_time
from planner.operators import ReplicaSet
from planner.plan import LatencySummary
from planner.prediction import predict_fleet, prefill_sojourn
from planner.specs import (
    Dtype,
    FleetItem,
    Lengths,
    Marginal,
    Parallelism,
    Period,
    Phase,
    Precision,
    Routing,
    Service,
    Slo,
    Workload,
)
from planner.traffic import Traffic
from planner.transformer import kv_bytes_per_token

ENGINE = load_engine("vllm")
BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
SMALL, LARGE = "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B"
FIXED = (Marginal(points=(1000.0,), weights=(1.0,)), Marginal(points=(200.0,), weights=(1.0,)))
MIXED = (
    Marginal(points=(300.0, 1000.0, 4000.0), weights=(0.4, 0.45, 0.15)),
    Marginal(points=(50.0, 200.0, 600.0), weights=(0.3, 0.5, 0.2)),
)
SHORT = (
    Marginal(points=(100.0, 400.0), weights=(0.6, 0.4)),
    Marginal(points=(50.0, 200.0, 600.0), weights=(0.3, 0.5, 0.2)),
)
LONG = (
    Marginal(points=(2000.0, 8000.0), weights=(0.7, 0.3)),
    Marginal(points=(100.0, 300.0), weights=(0.5, 0.5)),
)


def workload(lengths: tuple[Marginal, Marginal], rate: float) -> Workload:
    isl, osl = lengths
    return Workload(
        name="simulated",
        periods=(Period(name="", hours=1.0, request_rate=rate),),
        lengths=Lengths(isl=isl, osl=osl, isl_per_output_token=isl.mean),
    )


def fleet_item(gpu: str) -> FleetItem:
    profile = catalog.load_gpu(gpu)
    return FleetItem(
        gpu=profile, price=None, max_gpus=None, node_size=8, network_bandwidth=profile.network_bandwidth
    )


def group(
    phase: Phase, gpu: str, tp: int, replicas: int, rate: float, budget: int = 8192, kv_tokens: int = 10**7
) -> Deployed:
    return Deployed(
        phase=phase,
        item=fleet_item(gpu),
        parallelism=Parallelism(tp=tp),
        replicas=replicas,
        rate=rate,
        token_budget=budget,
        kv_tokens=kv_tokens,
        max_num_seqs=256,
    )


def fleet(model: str, lengths: tuple[Marginal, Marginal], rate: float, *groups: Deployed) -> Fleet:
    service = Service(
        model=catalog.load_model(model),
        precision=BF16,
        workload=workload(lengths, rate),
        slo=Slo(targets=()),
        engine="vllm",
    )
    return Fleet(service=service, engine=ENGINE, groups=groups, routing=Routing.LEAST_LOADED)


@dataclass(frozen=True)
class Requests:
    arrival: np.ndarray
    isl: np.ndarray
    osl: np.ndarray

    @classmethod
    def draw(cls, f: Fleet, number: int, rng: np.random.Generator) -> Requests:
        lengths = f.service.workload.lengths
        return cls(
            np.cumsum(rng.exponential(1 / f.service.workload.request_rate, number)),
            rng.choice(lengths.isl.points, number, p=lengths.isl.weights),
            rng.choice(lengths.osl.points, number, p=lengths.osl.weights).astype(int),
        )


def replica(f: Fleet, g: Deployed) -> ReplicaSet:
    return ReplicaSet.of(f.service.model, BF16, ENGINE, [(g.item.gpu, g.parallelism)])


def context(f: Fleet) -> float:
    """Mean context over decode steps, written out: a token at place k sees isl + k."""
    osl = f.service.workload.lengths.osl
    return f.service.workload.lengths.isl.mean + osl.moment(2) / osl.mean / 2


# --------------------------------------------------------------------------------------------
# Disaggregated


def simulate_disaggregated(f: Fleet, requests: Requests) -> tuple[np.ndarray, np.ndarray]:
    """TTFT and TPOT of each request; one prefill group and one decode group."""
    prefill, decode = f.groups
    only_prompts = Requests(requests.arrival, requests.isl, np.ones(len(requests.osl), dtype=int))
    ready, _ = _steps(f, prefill, only_prompts)
    rate = min(network_rate(g.item, ENGINE) * g.parallelism.tp for g in (prefill, decode))
    per_token = kv_bytes_per_token(f.service.model, Dtype.BF16)
    transfer = kv_transfer_time(
        requests.isl, requests.isl * per_token, rate, f.service.model.num_layers, ENGINE
    )
    first, last = _decode(f, decode, ready + transfer, requests.osl)
    return first - requests.arrival, (last - first) / (requests.osl - 1)


def simulate_one_prompt_per_step(f: Fleet, requests: Requests) -> np.ndarray:
    """Time until each prefill ends; one FIFO queue before all replicas of the first group, no batching."""
    prefill = f.groups[0]
    lengths = np.unique(requests.isl)
    own = prompt_time(replica(f, prefill), lengths[:, None], 0.0, prefill.token_budget).service[:, 0]
    service = own[np.searchsorted(lengths, requests.isl)]
    free = [0.0] * prefill.replicas
    ready = np.empty(len(service))
    for i, (at, time) in enumerate(zip(requests.arrival, service, strict=True)):
        start = max(at, heapq.heappop(free))
        heapq.heappush(free, start + time)
        ready[i] = start + time
    return ready - requests.arrival


def _decode(f: Fleet, g: Deployed, ready: np.ndarray, osl: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Times of first and last token; a sequence joins the next step of the emptiest replica."""
    table = decode_step_time(replica(f, g), np.arange(1.0, 1025)[:, None], context(f))[:, 0].tolist()
    first, last = np.empty(len(ready)), np.empty(len(ready))
    replicas = [DecodeReplica(table, osl, first, last) for _ in range(g.replicas)]
    for i in np.argsort(ready):
        for one in replicas:
            one.advance(float(ready[i]))
        min(replicas, key=lambda one: one.load).waiting.append(int(i))
    for one in replicas:
        one.advance(np.inf)
    return first, last


class DecodeReplica:
    """Steps of t(B), one token for each of the B sequences."""

    def __init__(self, table: list[float], osl: np.ndarray, first: np.ndarray, last: np.ndarray) -> None:
        self.table, self.osl, self.first, self.last = table, osl, first, last
        self.waiting: list[int] = []
        self.joined: list[int] = []
        self.ends: list[tuple[int, int]] = []  # (step in which the last token comes, request)
        self.now = 0.0
        self.step = 0
        self.stop = 0.0  # end of the step that runs

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.ends)

    def advance(self, until: float) -> None:
        """Run all steps that start before `until`; arrivals so far join the first of them."""
        while True:
            if self.stop >= until:
                return
            self._finish()
            if not self.waiting and not self.ends:
                self.stop = until
                return
            for i in self.waiting:
                heapq.heappush(self.ends, (self.step + int(self.osl[i]), i))
            self.joined, self.waiting = self.waiting, []
            self.step += 1
            self.stop += self.table[len(self.ends) - 1]

    def _finish(self) -> None:
        for i in self.joined:
            self.first[i] = self.stop
        self.joined = []
        while self.ends and self.ends[0][0] == self.step:
            self.last[heapq.heappop(self.ends)[1]] = self.stop


# --------------------------------------------------------------------------------------------
# Colocated, chunked prefill


class StepTimes:
    """Time of a step with D decode tokens and prompt chunks: a table in (D, Q) plus attention.

    A chunk of q tokens after `past` ones adds attention over q (past + q/2) pairs, which a step is
    linear in, and over past + q keys; the table holds one chunk without past.
    """

    def __init__(self, f: Fleet, g: Deployed) -> None:
        r, mean = replica(f, g), context(f)
        self.decode = [0.0, *decode_step_time(r, np.arange(1.0, 1025)[:, None], mean)[:, 0].tolist()]
        budget = g.token_budget
        self.size = np.unique(np.concatenate([[1], np.arange(16, budget, 16), [budget]])).astype(float)
        batch = np.arange(0.0, g.max_num_seqs + 1.0)
        q, d = self.size[:, None, None], batch[None, :, None]
        base = prompt_time(r, q, 0.0, q + d, decode_batch=d, context=mean).service[..., 0]
        self.table = base.T.tolist()
        pairs = {}
        for query in (256.0, 512.0):
            alone, after = (float(prompt_time(r, query, past, 1e6).service[0]) for past in (0.0, 1000.0))
            pairs[query] = (after - alone) / 1000.0  # a query + b
        self.per_pair = (pairs[512.0] - pairs[256.0]) / 256.0
        self.per_key = pairs[256.0] - 256.0 * self.per_pair

    def __call__(self, decodes: int, chunks: list[tuple[int, int]]) -> float:
        if not chunks:
            return self.decode[decodes]
        total = sum(q for q, _ in chunks)
        pairs = sum(q * (past + q / 2) for q, past in chunks) - total * total / 2
        keys = sum(past for _, past in chunks)
        row = self.table[decodes]
        k = min(total // 16, len(row) - 2)
        x0, x1 = self.size[k], self.size[k + 1]
        base = row[k] + (row[k + 1] - row[k]) * (total - x0) / (x1 - x0)
        return base + pairs * self.per_pair + keys * self.per_key


class ChunkingReplica:
    """Each step takes all decode tokens, then prompts first come, first served, up to the budget."""

    def __init__(
        self, times: StepTimes, group: Deployed, requests: Requests, first: np.ndarray, last: np.ndarray
    ) -> None:
        self.times, self.requests = times, requests
        self.budget, self.limit = group.token_budget, group.max_num_seqs
        self.first, self.last = first, last
        self.waiting: deque[list[int]] = deque()  # [request, tokens done]
        self.queued = 0
        self.completing: list[int] = []
        self.ends: list[tuple[int, int]] = []
        self.step = 0
        self.stop = 0.0

    @property
    def load(self) -> float:
        return self.queued + len(self.ends)

    def add(self, i: int) -> None:
        self.waiting.append([i, 0])
        self.queued += int(self.requests.isl[i])

    def advance(self, until: float) -> None:
        while self.stop < until:
            self._finish()
            if not self.waiting and not self.ends:
                self.stop = until
                return
            decodes = len(self.ends)
            chunks = self._chunks(self.budget - decodes)
            self.step += 1
            self.stop += self.times(decodes, chunks)

    def _chunks(self, room: int) -> list[tuple[int, int]]:
        chunks = []
        while self.waiting and room > 0 and len(self.ends) + len(self.completing) < self.limit:
            i, done = self.waiting[0]
            take = min(room, int(self.requests.isl[i]) - done)
            chunks.append((take, done))
            room -= take
            if done + take == int(self.requests.isl[i]):
                self.waiting.popleft()
                self.completing.append(i)
            else:
                self.waiting[0][1] = done + take
        return chunks

    def _finish(self) -> None:
        for i in self.completing:  # the prompt's last step gives the first token
            self.first[i] = self.stop
            self.queued -= int(self.requests.isl[i])
            heapq.heappush(self.ends, (self.step + int(self.requests.osl[i]) - 1, i))
        self.completing = []
        while self.ends and self.ends[0][0] == self.step:
            self.last[heapq.heappop(self.ends)[1]] = self.stop


def _steps(f: Fleet, g: Deployed, requests: Requests) -> tuple[np.ndarray, np.ndarray]:
    """Times of first and last token; the router takes the replica with the least to do."""
    times = StepTimes(f, g)
    first, last = np.empty(len(requests.arrival)), np.empty(len(requests.arrival))
    replicas = [ChunkingReplica(times, g, requests, first, last) for _ in range(g.replicas)]
    for i, at in enumerate(requests.arrival):
        for one in replicas:
            one.advance(float(at))
        min(replicas, key=lambda one: one.load).add(i)
    for one in replicas:
        one.advance(np.inf)
    return first, last


def simulate_colocated(f: Fleet, requests: Requests) -> tuple[np.ndarray, np.ndarray]:
    first, last = _steps(f, f.groups[0], requests)
    return first - requests.arrival, (last - first) / (requests.osl - 1)


# --------------------------------------------------------------------------------------------


Simulation = Callable[[Fleet, Requests], tuple[np.ndarray, np.ndarray]]


def errors(predicted: LatencySummary, seen: np.ndarray) -> dict[str, float]:
    """Predicted over simulated, minus one; the first and last twentieth are left out."""
    warm = seen[len(seen) // 20 : -len(seen) // 20]
    result = {"mean": predicted.mean / float(warm.mean()) - 1}
    for name, p in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        result[name] = getattr(predicted, name) / float(np.quantile(warm, p)) - 1
    return result


def compare(
    f: Fleet, simulate: Simulation, number: int = 30_000
) -> tuple[dict[str, float], dict[str, float]]:
    """Errors of TTFT and of TPOT."""
    seen = simulate(f, Requests.draw(f, number, np.random.default_rng(1)))
    ttft, tpot = predict_fleet(f).summaries()
    return errors(ttft, seen[0]), errors(tpot, seen[1])


def within(found: dict[str, float], **tolerance: float) -> bool:
    """Whether each error is within its own tolerance."""
    return all(abs(found[name]) <= limit for name, limit in tolerance.items())


def prefill_rate(lengths: tuple[Marginal, Marginal], replicas: int, load: float) -> float:
    """Rate at which H100 replicas of the 8B model that compute one prompt per step are busy for `load`."""
    f = fleet(SMALL, lengths, 1.0, group(Phase.PREFILL, "h100-sxm", 1, 1, 1.0))
    points = np.array(lengths[0].points)
    own = prompt_time(replica(f, f.groups[0]), points[:, None], 0.0, 8192).service[:, 0]
    return load * replicas / float(own @ np.array(lengths[0].weights))


def colocated_rate(f: Fleet, batch: float) -> float:
    """Rate at which the one colocated group holds `batch` sequences per replica."""
    (g,) = f.groups
    traffic = Traffic.of(f.service.workload)
    budget = np.array([float(g.token_budget)])
    state, _ = colocated_state(replica(f, g), traffic, ENGINE.scheduler, budget, np.array([[batch]]))
    return float(state.rate[0, 0]) * g.replicas


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize(
    ("lengths", "replicas", "decodes", "load", "tail"),
    [
        (FIXED, 1, 1, 0.5, 0.10),
        (FIXED, 2, 2, 0.7, 0.10),
        (FIXED, 4, 5, 0.85, 0.15),
        (MIXED, 1, 1, 0.5, 0.20),  # prompts that come later and join the step are not in the model
        (MIXED, 1, 1, 0.85, 0.15),
        (MIXED, 4, 5, 0.85, 0.15),
        (SHORT, 1, 1, 0.5, 0.15),
    ],
)
def test_disaggregated(lengths, replicas, decodes, load, tail):
    rate = prefill_rate(lengths, replicas, load)
    f = fleet(
        SMALL,
        lengths,
        rate,
        group(Phase.PREFILL, "h100-sxm", 1, replicas, rate),
        group(Phase.DECODE, "h100-sxm", 1, decodes, rate),
    )
    ttft, tpot = compare(f, simulate_disaggregated)
    assert within(ttft, mean=0.10, p90=0.15, p99=tail), ttft
    assert within(tpot, mean=0.02, p50=0.02, p90=0.03, p99=0.05), tpot


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize(
    ("lengths", "replicas", "load"), [(FIXED, 1, 0.6), (MIXED, 1, 0.6), (MIXED, 4, 0.85)]
)
def test_prefill_wait_without_sharing_of_steps(lengths, replicas, load):
    """One prompt per step is the M/G/n queue."""
    rate = prefill_rate(lengths, replicas, load)
    f = fleet(SMALL, lengths, rate, group(Phase.PREFILL, "h100-sxm", 1, replicas, rate))
    seen = simulate_one_prompt_per_step(f, Requests.draw(f, 60_000, np.random.default_rng(2)))
    traffic = Traffic.of(f.service.workload)
    queues = prompt_queues(replica(f, f.groups[0]), traffic, 8192.0)
    wait = queues.shape.at(np.array(0)).wait(rate, replicas)
    sojourn = wait.plus(queues.alone[0], traffic.isl_weights)
    assert float(sojourn.mean) == pytest.approx(seen.mean(), rel=0.06)
    assert float(sojourn.quantile(0.9)) == pytest.approx(np.quantile(seen, 0.9), rel=0.1)
    assert float(sojourn.quantile(0.99)) == pytest.approx(np.quantile(seen, 0.99), rel=0.15)


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("lengths", [MIXED, SHORT], ids=["mixed", "short"])
@pytest.mark.parametrize("load", [0.7, 0.9])
def test_prompts_that_share_steps(lengths, load):
    """Greedy batching: the 99th percentile must not be seen too low, nor lose what sharing gains."""
    rate = prefill_rate(lengths, 1, load)
    f = fleet(SMALL, lengths, rate, group(Phase.PREFILL, "h100-sxm", 1, 1, rate))
    requests = Requests.draw(f, 40_000, np.random.default_rng(3))
    only_prompts = Requests(requests.arrival, requests.isl, np.ones(len(requests.osl), dtype=int))
    seen = _steps(f, f.groups[0], only_prompts)[0] - requests.arrival
    sojourn = prefill_sojourn(f, f.groups[0], Traffic.of(f.service.workload), 0.0)
    assert float(sojourn.mean[0, 0]) == pytest.approx(seen.mean(), rel=0.15)
    assert -0.15 < float(sojourn.quantile(0.99)[0, 0]) / np.quantile(seen, 0.99) - 1 < 0.25


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tp", "lengths", "budget", "replicas", "batch", "ttft_tail", "tpot_tail"),
    [
        (SMALL, 1, FIXED, 2048, 1, 16, 0.15, 0.07),
        (SMALL, 1, FIXED, 2048, 4, 64, 0.25, 0.05),
        (SMALL, 1, MIXED, 2048, 4, 64, 0.15, 0.07),
        (SMALL, 1, MIXED, 8192, 1, 64, 0.15, 0.15),
        (SMALL, 1, SHORT, 2048, 4, 64, 0.20, 0.05),
        (SMALL, 1, LONG, 8192, 4, 64, 0.20, 0.15),
        (LARGE, 4, MIXED, 2048, 1, 16, 0.15, 0.10),
        (LARGE, 4, LONG, 8192, 1, 12, 0.20, 0.20),
    ],
)
def test_colocated_chunked_prefill(model, tp, lengths, budget, replicas, batch, ttft_tail, tpot_tail):
    """The closed form against an iteration-level loop.

    Known weaknesses, bounded here: a prompt's wait for the step that runs is taken as its mean, so that
    TTFT percentiles at light load are up to half a step low; bursts of prompts at one replica make the
    largest TPOT up to a fifth low.
    """
    f = fleet(model, lengths, 1.0, group(Phase.COLOCATED, "h100-sxm", tp, replicas, 1.0, budget))
    rate = colocated_rate(f, batch)
    f = fleet(model, lengths, rate, group(Phase.COLOCATED, "h100-sxm", tp, replicas, rate, budget))
    ttft, tpot = compare(f, simulate_colocated, 20_000)
    assert within(ttft, mean=0.12, p90=0.2, p99=ttft_tail), ttft
    assert within(tpot, mean=0.06, p50=0.06, p90=0.12, p99=tpot_tail), tpot


@pytest.mark.oracle
@pytest.mark.slow
def test_small_token_budgets_are_not_seen_too_fast():
    """Prompts share chunks; without that the wait would come out four times too long."""
    f = fleet(SMALL, MIXED, 1.0, group(Phase.COLOCATED, "h100-sxm", 1, 1, 1.0, 512))
    rate = colocated_rate(f, 48)
    f = fleet(SMALL, MIXED, rate, group(Phase.COLOCATED, "h100-sxm", 1, 1, rate, 512))
    ttft, tpot = compare(f, simulate_colocated, 20_000)
    assert within(ttft, mean=0.3, p99=0.3), ttft
    assert within(tpot, mean=0.06, p99=0.2), tpot


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize(
    ("share", "mean", "tail"), [(0.5, 0.05, 0.15), (0.7, 0.10, 0.25), (0.77, 0.15, 0.30)]
)
def test_prompts_in_almost_every_step(share, mean, tail):
    """200 tokens in and 50 out: about one new prompt per step, and more of them in the longer steps.

    The rate has a largest value, where a larger batch serves no more; TPOT is seen too low towards it. At
    0.78 of it the p99 of TPOT is 32 % too low (100,000 requests).
    """
    lengths = (Marginal(points=(200.0,), weights=(1.0,)), Marginal(points=(50.0,), weights=(1.0,)))
    model = "Qwen/Qwen3-32B"
    f = fleet(model, lengths, 1.0, group(Phase.COLOCATED, "h200-sxm", 1, 1, 1.0, 2048))
    rate = share * max(colocated_rate(f, batch) for batch in np.arange(8.0, 256.0, 8.0))
    f = fleet(model, lengths, rate, group(Phase.COLOCATED, "h200-sxm", 1, 1, rate, 2048))
    ttft, tpot = compare(f, simulate_colocated, 20_000)
    assert within(ttft, mean=0.2, p99=0.25), ttft
    assert within(tpot, mean=mean, p99=tail), tpot


@pytest.mark.oracle
@pytest.mark.slow
def test_the_capacity_of_a_colocated_group_holds_in_simulation():
    """At the capacity rate the simulated percentiles stay within the SLO (no model error is planned for)."""
    f = fleet(SMALL, MIXED, 1.0, group(Phase.COLOCATED, "h100-sxm", 1, 4, 1.0, 2048))
    traffic, r = Traffic.of(f.service.workload), replica(f, f.groups[0])
    demand = ColocatedDemand(
        ttft=(Limit(0.99, 0.5),),
        tpot=(Limit(0.99, 0.025),),
        admission_miss=0.001,
        routing=Routing.LEAST_LOADED,
        policy=ENGINE.scheduler,
        token_budget=np.array([2048.0]),
        kv_tokens=np.array([1e7]),
        max_num_seqs=np.array([256.0]),
    )
    curve = colocated_curves(colocated_table(r, traffic, demand), traffic, demand, (4,))
    rate = 4 * float(curve.per_replica[0, 0])
    f = fleet(SMALL, MIXED, rate, group(Phase.COLOCATED, "h100-sxm", 1, 4, rate, 2048))
    ttft, tpot = simulate_colocated(f, Requests.draw(f, 30_000, np.random.default_rng(5)))
    assert np.quantile(ttft[1500:-1500], 0.99) < 0.5 / SLO_MARGIN
    assert 0.8 < np.quantile(tpot[1500:-1500], 0.99) / 0.025 < 1 / SLO_MARGIN
