"""Queues of the planner against plain discrete-event simulations of an engine.

The simulations take only step times from the planner. Everything else is written out: central FIFO
queues, continuous batching, and chunked prefill one iteration at a time.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np
import pytest

from planner import catalog
from planner.collectives import kv_transfer_time, network_rate
from planner.engines import load_engine
from planner.latency import ReplicaSet, decode_step_time, prompt_time
from planner.prediction import Deployed, Fleet, predict_fleet
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
from planner.transformer import kv_bytes_per_token

ENGINE = load_engine("vllm")
BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
QUANTILES = (0.5, 0.9, 0.99)
FIXED = (Marginal(points=(1000.0,), weights=(1.0,)), Marginal(points=(200.0,), weights=(1.0,)))
MIXED = (
    Marginal(points=(300.0, 1000.0, 4000.0), weights=(0.4, 0.45, 0.15)),
    Marginal(points=(50.0, 200.0, 600.0), weights=(0.3, 0.5, 0.2)),
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
    lengths = np.unique(requests.isl)
    r = replica(f, prefill)
    own = prompt_time(r, lengths[:, None], 0.0, prefill.token_budget).service[:, 0]
    service = own[np.searchsorted(lengths, requests.isl)]
    rate = min(network_rate(g.item, ENGINE) * g.parallelism.tp for g in (prefill, decode))
    per_token = kv_bytes_per_token(f.service.model, Dtype.BF16)
    transfer = kv_transfer_time(requests.isl, per_token, rate, f.service.model.num_layers, ENGINE)

    free = [0.0] * prefill.replicas  # FIFO: the first replica to become free takes the next prompt
    ready = np.empty(len(service))
    for i, (at, time) in enumerate(zip(requests.arrival, service, strict=True)):
        start = max(at, heapq.heappop(free))
        heapq.heappush(free, start + time)
        ready[i] = start + time
    first, last = _decode(f, decode, ready + transfer, requests.osl)
    return first - requests.arrival, (last - first) / (requests.osl - 1)


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
        batch = np.arange(0.0, 257.0)
        q, d = self.size[:, None, None], batch[None, :, None]
        base = prompt_time(r, q, 0.0, q + d, decode_batch=d, context=mean).service[..., 0]
        self.table = base.T.tolist()
        pairs = {}
        for query in (256.0, 512.0):
            alone, after = (
                float(prompt_time(r, query, past, 1e6).service[0]) for past in (0.0, 1000.0)
            )
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

    def __init__(self, times: StepTimes, budget: int, requests: Requests, first, last) -> None:
        self.times, self.budget, self.requests = times, budget, requests
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
        while self.waiting and room > 0:
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


def simulate_colocated(f: Fleet, requests: Requests) -> tuple[np.ndarray, np.ndarray, list]:
    (g,) = f.groups
    times = StepTimes(f, g)
    first, last = np.empty(len(requests.arrival)), np.empty(len(requests.arrival))
    replicas = [ChunkingReplica(times, g.token_budget, requests, first, last) for _ in range(g.replicas)]
    for i, at in enumerate(requests.arrival):
        for one in replicas:
            one.advance(float(at))
        min(replicas, key=lambda one: one.load).add(i)
    for one in replicas:
        one.advance(np.inf)
    return first - requests.arrival, (last - first) / (requests.osl - 1)


# --------------------------------------------------------------------------------------------


def compare(f: Fleet, simulate, number: int, seed: int = 1) -> dict[str, float]:
    """Predicted over simulated, minus one, of the mean and the quantiles of both latencies."""
    rng = np.random.default_rng(seed)
    requests = Requests.draw(f, number, rng)
    observed = simulate(f, requests)
    warm = slice(number // 20, number - number // 20)
    result = {}
    for name, values, predicted in zip(
        ("ttft", "tpot"), observed, predict_fleet(f).summaries(), strict=True
    ):
        result[f"{name} mean"] = predicted.mean / values[warm].mean() - 1
        for p in QUANTILES:
            seen = float(np.quantile(values[warm], p))
            result[f"{name} p{int(100 * p)}"] = getattr(predicted, f"p{int(100 * p)}") / seen - 1
    return result
