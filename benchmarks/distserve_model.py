"""DistServe's A100 fits of OPT as a latency model, and what instances carry: by formula, by simulation.

Fits, KV cache sizes and measurements are read from the tables that are kept for tests, with their sources.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from planner.arrays import FloatArray, Numbers
from planner.capacity import DecodeDemand, Limit, PrefillDemand, decode_curves, prefill_curves, prompt_queues
from planner.latency import Companions
from planner.lengths import independent, marginal_from_quantiles, marginal_lognormal
from planner.program import Candidate, CapacityCurve, GpuType, Problem, solve
from planner.simulator.cluster import Cluster, Holdings, SimulatedGroup, run_cluster
from planner.simulator.metrics import measured_latencies
from planner.simulator.requests import Requests
from planner.simulator.tables import Grids, StepTables
from planner.specs import (
    ColocatedUse,
    Lengths,
    Marginal,
    Objective,
    Parallelism,
    Period,
    Phase,
    Routing,
    Workload,
)
from planner.traffic import Traffic
from planner.units import MILLI

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
Pair = tuple[Parallelism, Parallelism]
"""Layouts of a prefill and a decode instance."""

MODELS = {"OPT-13B": "facebook/opt-13b", "OPT-66B": "facebook/opt-66b"}
SIZES = (1, 2, 4, 8)  # of tensor and pipeline parallelism that DistServe searches
CLUSTER = 32  # GPUs of its cluster
NODE = {"OPT-13B": 4, "OPT-66B": 8}  # GPUs within which its scripts look for a pair
THRESHOLD = 95  # sequences of a micro-batch from which its other fit of a decode step counts
CONTEXT = 2048  # longest sequence of OPT [tok]
MOST_SEQUENCES = 2048.0
_BLOCK = 16  # tokens of a block [tok]
_BISECTIONS = 8
ATTAINMENT = 0.9  # share of requests within the SLOs [1]
MEANS = {"HumanEval": (171.3, 98.2), "LongBench": (1738.3, 90.7)}  # prompt, answer: of the paper [tok]
SPREAD = {"HumanEval": (0.6, 0.6), "LongBench": (0.15, 1.5)}  # coefficients of variation, assumed [1]
SIMULATED = 1.56  # per GPU: simdistserve/README.md, OPT-13B on ShareGPT, P90 within 200 and 100 ms [req/s]
SIMULATED_SLO = (0.2, 0.1)  # [s]
MEASURED_SLO = (0.25, 0.1)  # of tests/golden/distserve_measured.csv [s]


def table(name: str) -> list[dict[str, str]]:
    """Rows of one of the tables that are kept for tests."""
    text = (GOLDEN / name).read_text(encoding="utf-8")
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


# --------------------------------------------------------------------------------------------
# DistServe's latency model


@dataclass(frozen=True, slots=True)
class Fits:
    """Steps of C instances as DistServe's simulator has them (simdistserve/estimators/time_estimator.py).

    Prompts take ``a + b sum(len) + c sum(len^2)``, a decode step ``a + b sum(context) + c batch``, with other
    coefficients from 95 sequences on. A pipeline's stage takes its share of that; a micro-batch goes through
    all. There are no cached prefixes.

    Attributes
    ----------
    prefill, small, large : ndarray, shape (C, 3)
        [s, s/tok, s/tok^2] and [s, s/tok, s]
    pp : ndarray, shape (C,)
    """

    prefill: FloatArray
    small: FloatArray
    large: FloatArray
    pp: FloatArray

    @classmethod
    def of(cls, model: str, layouts: Sequence[Parallelism]) -> Fits:
        rows = coefficients(model)
        step = {
            name: np.array([rows[p.tp, name] for p in layouts])
            for name in ("prefill", "decode_small", "decode_large")
        }
        pp = np.array([float(p.pp) for p in layouts])
        return cls(step["prefill"], step["decode_small"], step["decode_large"], pp)

    @property
    def dp(self) -> FloatArray:
        return np.ones_like(self.pp)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        return (*range(1, 9), *range(16, THRESHOLD - 1, 8), THRESHOLD - 1)

    def prompt(
        self, query: Numbers, cached: Numbers, token_budget: Numbers, companions: Companions
    ) -> FloatArray:
        a, b, c = self.prefill.T
        tokens = np.asarray(query + companions.count * companions.query)
        squares = np.asarray(query) ** 2 + companions.count * 2 * companions.area
        return np.asarray(a + b * tokens + c * squares)

    def decode_step(self, batch: Numbers, context: Numbers) -> FloatArray:
        micro = np.asarray(batch / self.pp)
        few, many = (a + b * micro * context + c * micro for a, b, c in (self.small.T, self.large.T))
        return np.asarray(np.where(micro < THRESHOLD, few, many))


@cache
def coefficients(model: str) -> dict[tuple[int, str], tuple[float, float, float]]:
    """By tensor parallel size and kind of step, in seconds."""
    return {
        (int(row["tp"]), row["step"]): (
            float(row["a"]) * MILLI,
            float(row["b"]) * MILLI,
            float(row["c"]) * MILLI,
        )
        for row in table("distserve_a100.csv")
        if row["model"] == model
    }


@cache
def kv_tokens(model: str) -> dict[tuple[int, int], float]:
    """KV cache of an instance by its tensor and pipeline parallel size. [tok]"""
    rows = (row for row in table("distserve_kv_tokens.csv") if row["model"] == model)
    return {(int(row["tp"]), int(row["pp"])): float(row["kv_tokens"]) for row in rows}


# --------------------------------------------------------------------------------------------
# What is asked


@dataclass(frozen=True, slots=True)
class Case:
    """A model, a data set, SLOs, and what DistServe chose. [s]"""

    model: str
    data: str
    version: str
    ttft: float
    tpot: float
    chosen: Pair


def cases() -> Iterator[Case]:
    """The rows of the paper with both versions of their SLOs, once where these agree."""
    for row in table("distserve_placements.csv"):
        prefill, decode = (
            Parallelism(tp=int(row[f"{phase}_tp"]), pp=int(row[f"{phase}_pp"]))
            for phase in ("prefill", "decode")
        )
        versions = {
            name: (float(row[f"ttft_slo_s_{name}"]), float(row[f"tpot_slo_s_{name}"]))
            for name in ("paper", "artifact")
        }
        same = versions["paper"] == versions["artifact"]
        for name, (ttft, tpot) in versions.items():
            if name == "paper" or not same:
                label = "both" if same else name
                yield Case(row["model"], row["dataset"], label, ttft, tpot, (prefill, decode))


@cache
def lengths(data: str) -> Lengths:
    """ShareGPT as DistServe sampled it; of the others only means are public: log-normal around these."""
    if data == "ShareGPT":
        rows = table("distserve_sharegpt_lengths.csv")
        share = [float(row["probability"]) for row in rows]
        isl, osl = (
            marginal_from_quantiles(share, [float(row[key]) for row in rows])
            for key in ("input_tokens", "output_tokens")
        )
        return independent(isl, osl)
    (mean_isl, mean_osl), (cv_isl, cv_osl) = MEANS[data], SPREAD[data]
    longest = CONTEXT - mean_osl
    return independent(
        marginal_lognormal(mean_isl, cv_isl, longest), marginal_lognormal(mean_osl, cv_osl, CONTEXT / 2)
    )


@cache
def traffic(data: str) -> Traffic:
    """Poisson arrivals."""
    period = Period(name="", hours=1.0, request_rate=1.0)
    return Traffic.of(Workload(name=data, periods=(period,), lengths=lengths(data)))


# --------------------------------------------------------------------------------------------
# Goodput


@dataclass(frozen=True, slots=True)
class Rates:
    """What instances of each layout carry within an SLO. [req/s]"""

    layouts: tuple[Parallelism, ...]
    prefill: FloatArray
    decode: FloatArray

    def of(self, prefill: Parallelism, decode: Parallelism) -> float:
        """Goodput per GPU of one instance of each. [req/s]"""
        p, d = self.layouts.index(prefill), self.layouts.index(decode)
        return float(min(self.prefill[p], self.decode[d])) / (prefill.num_gpus + decode.num_gpus)

    def best(self, gpus: int) -> Pair:
        """The pair of most goodput per GPU within so many; of equal ones that on fewest, then that with most
        room in the pool that does not bind."""

        def key(pair: Pair) -> tuple[float, int, float]:
            prefill, decode = pair
            room = self.prefill[self.layouts.index(prefill)] + self.decode[self.layouts.index(decode)]
            return self.of(*pair), -(prefill.num_gpus + decode.num_gpus), float(room)

        pairs = [(p, d) for p in self.layouts for d in self.layouts if p.num_gpus + d.num_gpus <= gpus]
        return max(pairs, key=key)


def search_space(model: str) -> tuple[Parallelism, ...]:
    """Layouts with fits and with room for the model."""
    fitted = {tp for tp, _ in coefficients(model)}
    return tuple(
        Parallelism(tp=tp, pp=pp)
        for tp in SIZES
        for pp in SIZES
        if tp in fitted and (tp, pp) in kv_tokens(model)
    )


def rates(model: str, data: str, ttft: float, tpot: float, probability: float = ATTAINMENT) -> Rates:
    """Rate of one instance of every layout at which `probability` of the requests meet each SLO [s].

    A request that finds the KV cache full waits, which DistServe counts as TPOT: as many as may miss it may.
    """
    layouts = search_space(model)
    fits, served = Fits.of(model, layouts), traffic(data)
    kv = np.array([kv_tokens(model)[p.tp, p.pp] for p in layouts])
    queues = prompt_queues(fits, served, MOST_SEQUENCES * CONTEXT)
    prompts = PrefillDemand(
        ttft=(Limit(probability, ttft),),
        admission_miss=0.0,
        first_step=np.zeros(len(layouts)),  # DistServe emits the first token from prefill
        transfer=np.zeros((len(served.isl), len(layouts))),  # and moves KV caches over NVLink
        routing=Routing.LEAST_LOADED,
    )
    answers = DecodeDemand(
        tpot=(Limit(probability, tpot),),
        first_step=np.full(len(layouts), math.inf),
        admission_miss=1 - probability,
        kv_tokens=kv,
        max_num_seqs=np.full(len(layouts), MOST_SEQUENCES),
    )
    one = [1]
    return Rates(
        layouts,
        prefill_curves(queues, np.arange(len(layouts)), served, prompts, one).per_replica[:, 0],
        decode_curves(fits, served, answers, one).per_replica[:, 0],
    )


def fleet(found: Rates, gpus: int = CLUSTER) -> tuple[float, str]:
    """Most that any numbers of instances carry, per GPU, by the planner's program. [req/s]"""
    members = [
        (phase, layout, float(rate))
        for phase, values in ((Phase.PREFILL, found.prefill), (Phase.DECODE, found.decode))
        for layout, rate in zip(found.layouts, values, strict=True)
        if rate > 0
    ]
    problem = Problem(
        candidates=tuple(
            Candidate(
                name=f"{phase} {layout}",
                phase=phase,
                gpu_type=0,
                gpus=layout.num_gpus,
                curve=CapacityCurve(starts=(1,), per_replica=(rate,)),
                max_replicas=gpus // layout.num_gpus,
            )
            for phase, layout, rate in members
        ),
        gpu_types=(GpuType(name="a100", price=None, power=0.0, node_size=8, max_gpus=gpus),),
        demand=None,
        objective=Objective.THROUGHPUT,
        whole_nodes=False,
        colocated=ColocatedUse.FORBIDDEN,
        gap=0.0,
    )
    solution = solve(problem)
    named = (f"{solution.replicas[i]} x {problem.candidates[i].name}" for i in solution.used)
    return solution.value / gpus, ", ".join(named)


def measured_goodput(decode_pp: int) -> float:
    """Rate per GPU at which 90 % of the requests met both SLOs, linear between the two runs that enclose it.
    [req/s]

    Of OPT-13B on ShareGPT, prefill on TP 2, decode on TP 1 with so many stages.
    """
    runs = [row for row in table("distserve_measured.csv") if int(row["decode_pp"]) == decode_pp]
    points = [(float(row["attainment"]), float(row["request_rate"])) for row in runs]
    below = next(i for i, (share, _) in enumerate(points) if share < ATTAINMENT)
    (high, slow), (low, fast) = points[below - 1], points[below]
    rate = slow + (high - ATTAINMENT) / (high - low) * (fast - slow)
    return rate / (2 + decode_pp)


# --------------------------------------------------------------------------------------------
# By simulation

_GRIDS = Grids(  # all tables are linear
    contexts=np.array([0.0, CONTEXT]), queries=np.array([1.0, CONTEXT]), pasts=np.array([0.0, CONTEXT])
)
_PROMPT_TOKENS, _PROMPTS, _SEQUENCES = 32 * CONTEXT, 256, 512  # of a step, at most


def _tables(model: str, layout: Parallelism, sequences: int, tokens: int) -> StepTables:
    """The fits as the event loop has them: prompts on a prefill instance, steps on a decode instance."""
    fits = Fits.of(model, [layout])
    a, b, c = fits.prefill[0]
    batch = np.arange(sequences + 1.0)[:, None]
    decode = np.where(batch > 0, fits.decode_step(batch * layout.pp, _GRIDS.contexts), 0.0)
    return StepTables(
        decode=decode,
        beside=np.zeros_like(decode),
        tokens=b * np.arange(tokens + sequences + 1.0),
        head=np.zeros(sequences + 1),
        attention=np.repeat(c * _GRIDS.queries[:, None], _GRIDS.pasts.size, axis=1),
        launch=float(a),
        host=0.0,
        host_decode=0.0,
        host_sequence=0.0,
        decode_scale=1.0,
        prefill_scale=1.0,
    )


def _instance(model: str, phase: Phase, layout: Parallelism) -> SimulatedGroup:
    prefill = phase is Phase.PREFILL
    limit, budget = (_PROMPTS, _PROMPT_TOKENS) if prefill else (_SEQUENCES, CONTEXT)
    return SimulatedGroup(
        name=phase.value,
        phase=phase,
        replicas=1,
        tables=_tables(model, layout, limit, budget),
        budget=budget,
        limit=limit * layout.pp,
        blocks=int(kv_tokens(model)[layout.tp, layout.pp]) // _BLOCK,
        lanes=layout.pp,
        stages=layout.pp,
    )


def attained(
    model: str, data: str, pair: Pair, rate: float, limits: tuple[float, float], number: int = 20_000
) -> float:
    """Share of simulated requests within both limits [s] at a Poisson `rate` [req/s]; transfers take no time.
    [1]"""
    rng = np.random.default_rng(0)
    drawn = [_drawn(rng, marginal, number) for marginal in (lengths(data).isl, lengths(data).osl)]
    requests = Requests(
        arrival=np.cumsum(rng.exponential(1 / rate, number)),
        isl=drawn[0],
        osl=drawn[1],
        cached=np.zeros(number, np.int32),
    )
    groups = tuple(
        _instance(model, phase, layout)
        for phase, layout in zip((Phase.PREFILL, Phase.DECODE), pair, strict=True)
    )
    cluster = Cluster(
        groups=groups,
        grids=_GRIDS,
        pair_rates=np.array([[0.0, math.inf], [0.0, 0.0]]),
        block_size=_BLOCK,
        first_token_from_prefill=True,
    )
    outcome = run_cluster(cluster, requests, Holdings.plain(requests.isl), samples=0)
    seen = measured_latencies(outcome)
    tpot = np.nan_to_num(seen.tpot, nan=0.0)  # of one token there is none
    return float(np.mean((seen.ttft <= limits[0]) & (tpot <= limits[1])))


def _drawn(rng: np.random.Generator, marginal: Marginal, number: int) -> np.ndarray:
    points = np.maximum(np.round(marginal.points), 1)
    return rng.choice(points, size=number, p=marginal.weights).astype(np.int32)


def simulated_goodput(model: str, data: str, pair: Pair, limits: tuple[float, float]) -> float:
    """Rate per GPU at which 90 % of simulated requests are within both limits [s], by bisection. [req/s]"""
    low, high = 0.0, 2 * rates(model, data, *limits).of(*pair)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        gpus = pair[0].num_gpus + pair[1].num_gpus
        enough = attained(model, data, pair, middle * gpus, limits) >= ATTAINMENT
        low, high = (middle, high) if enough else (low, middle)
    return low
