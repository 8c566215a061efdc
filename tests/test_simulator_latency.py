"""The simulator against the latency model: lone requests, and steps between the points of its tables."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from simulator_clusters import requests_of

from planner import catalog
from planner.collectives import kv_transfer_time
from planner.engines import load_engine
from planner.fleet import Deployed, Fleet, path_rate
from planner.latency import decode_step_time, prompt_time
from planner.operators import ReplicaSet
from planner.simulator.build import Setup, cluster_of, holdings
from planner.simulator.cluster import Outcome, run_cluster
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
from planner.transformer import kv_bytes

ENGINE = load_engine("vllm")
BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
BUDGET = 8192
LENGTHS = (17, 300, 1000, 5000, 8192, 8193, 11_000, 30_000)  # the last ones take several steps
OSL = 64
LAYOUTS = {
    "TP1": Parallelism(),
    "TP4": Parallelism(tp=4),
    "TP2PP2": Parallelism(tp=2, pp=2),
    "TP8EP8": Parallelism(tp=8, ep=8),
    "DP8EP8": Parallelism(dp=8, ep=8),
    "TP8PP2": Parallelism(tp=8, pp=2),  # two nodes, as the next
    "DP16EP16": Parallelism(dp=16, ep=16),
}
MODELS = {
    "dense": ("meta-llama/Llama-3.1-8B", ("TP1", "TP4", "TP2PP2", "TP8PP2")),
    "MoE": ("Qwen/Qwen3-30B-A3B", ("TP1", "TP8EP8", "TP2PP2")),
    "MLA": ("deepseek-ai/DeepSeek-V3", ("TP8EP8", "DP8EP8", "TP2PP2", "DP16EP16")),
    "sparse MLA": ("deepseek-ai/DeepSeek-V3.2", ("TP8EP8", "DP8EP8")),
    "windows": ("openai/gpt-oss-120b", ("TP1", "TP4")),
    "long windows": ("google/gemma-3-27b-pt", ("TP1", "TP2PP2")),
    "hybrid": ("Qwen/Qwen3-Next-80B-A3B-Instruct", ("TP4", "TP8EP8")),
    "state space": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", ("TP1", "TP4")),
}
CASES = [
    pytest.param(name, layout, id=f"{kind} {layout}") for kind, (name, of) in MODELS.items() for layout in of
]


def deployed(phase: Phase, layout: Parallelism, budget: int = BUDGET, sequences: int = 256) -> Deployed:
    gpu = catalog.load_gpu("h100-sxm")
    return Deployed(
        phase=phase,
        item=FleetItem(
            gpu=gpu, price=None, max_gpus=None, node_size=8, network_bandwidth=gpu.network_bandwidth
        ),
        parallelism=layout,
        replicas=1,
        rate=1.0,
        token_budget=budget,
        kv_tokens=10**7,
        max_num_seqs=sequences,
    )


def fleet(model: str, *groups: Deployed) -> Fleet:
    longest = max(LENGTHS)
    lengths = Lengths(
        isl=Marginal(points=(1.0 * longest,), weights=(1.0,)),
        osl=Marginal(points=(1.0 * OSL,), weights=(1.0,)),
        isl_per_output_token=longest,
    )
    service = Service(
        model=catalog.load_model(model),
        precision=BF16,
        workload=Workload(name="", periods=(Period(name="", hours=1.0, request_rate=1.0),), lengths=lengths),
        slo=Slo(targets=()),
        engine="vllm",
    )
    return Fleet(service=service, engine=ENGINE, groups=groups, routing=Routing.LEAST_LOADED)


def replica(f: Fleet, g: Deployed) -> ReplicaSet:
    return ReplicaSet.of(f.service.model, BF16, ENGINE, [(g.item.gpu, g.parallelism)])


def run(f: Fleet, arrival: np.ndarray, isl: np.ndarray, osl: int | np.ndarray) -> Outcome:
    requests = requests_of(arrival, isl, osl)
    return run_cluster(cluster_of(f, Setup()), requests, holdings(f, requests), samples=0)


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_lone_requests(model: str, layout: str) -> None:
    """TTFT is the prompt, the transfer and a step; TPOT the step, at the context in between."""
    groups = (deployed(Phase.PREFILL, LAYOUTS[layout]), deployed(Phase.DECODE, LAYOUTS[layout]))
    f = fleet(model, *groups)
    isl = np.array(LENGTHS)
    outcome = run(f, 1000.0 * np.arange(isl.size), isl, OSL)
    r = replica(f, groups[0])
    prompt = prompt_time(r, isl, 0.0, float(BUDGET)).service
    size = kv_bytes(f.service.model, Dtype.BF16, isl.astype(np.float64))
    layers = f.service.model.num_layers / groups[0].parallelism.pp
    transfer = kv_transfer_time(isl, size, path_rate(f, *groups), layers, ENGINE)
    request = outcome.request
    np.testing.assert_allclose(request["prompted"] - request["arrival"], prompt, rtol=0.01)
    np.testing.assert_allclose(request["joined"] - request["prompted"], transfer, rtol=1e-6)
    lanes = groups[0].parallelism.pp  # one sequence occupies one of them; the formula would share it out
    first = prompt + transfer + decode_step_time(r, lanes, isl)
    np.testing.assert_allclose(request["first"] - request["arrival"], first, rtol=0.01)
    tpot = (request["last"] - request["first"]) / (OSL - 1)
    np.testing.assert_allclose(tpot, decode_step_time(r, lanes, isl + OSL / 2), rtol=0.01)


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_chunks_between_the_points_of_the_tables(model: str, layout: str) -> None:
    """Chunks of any length after any context: the first steps of prompts that are cached in part."""
    groups = (deployed(Phase.PREFILL, LAYOUTS[layout]), deployed(Phase.DECODE, LAYOUTS[layout]))
    f = fleet(model, *groups)
    rng = np.random.default_rng(0)
    query = np.unique(np.geomspace(1, BUDGET, 200).astype(int))
    past = np.exp(rng.uniform(0, np.log(max(LENGTHS) - BUDGET), query.size)).astype(int)
    past[rng.random(query.size) < 0.2] = 0
    requests = requests_of(1000.0 * np.arange(query.size), query + past, 1, cached=past.astype(np.int32))
    outcome = run_cluster(cluster_of(f, Setup()), requests, holdings(f, requests), samples=0)
    simulated = outcome.request["prompted"] - outcome.request["arrival"]
    exact = prompt_time(replica(f, groups[0]), query, past, float(BUDGET)).service
    np.testing.assert_allclose(simulated, exact, rtol=0.01)


@pytest.mark.parametrize(("model", "layout"), CASES)
def test_decode_steps_between_the_points_of_the_tables(model: str, layout: str) -> None:
    """The first step of batches whose KV caches arrive together: a prefill replica for each prompt."""
    most, lanes = 256, LAYOUTS[layout].pp
    f = fleet(model, *(deployed(phase, LAYOUTS[layout]) for phase in (Phase.PREFILL, Phase.DECODE)))
    given = cluster_of(f, Setup())
    prefill, decode = given.groups
    instant = {"nic": math.inf, "blocks": 10**9}
    cluster = replace(
        given,
        groups=(
            replace(prefill, replicas=most, fixed=1.0, post=0.0, **instant),
            replace(decode, **instant),
        ),
        pair_rates=np.where(given.pair_rates > 0, math.inf, 0.0),
    )
    rng = np.random.default_rng(0)
    batch = np.minimum(np.exp(rng.uniform(0, np.log(most), 40)).astype(int) * lanes, most)
    context = np.exp(rng.uniform(0, np.log(max(LENGTHS)), batch.size)).astype(int)
    which = np.repeat(np.arange(batch.size), batch)
    requests = requests_of(1000.0 * which, context[which], 1)
    request = run_cluster(cluster, requests, holdings(f, requests), samples=0).request
    first_of_each = np.cumsum(batch) - batch
    simulated = np.minimum.reduceat(request["first"] - request["joined"], first_of_each)
    exact = decode_step_time(replica(f, f.groups[1]), batch, context)
    np.testing.assert_allclose(simulated, exact, rtol=0.01)


@pytest.mark.parametrize("model", [name for name, _ in MODELS.values()])
def test_mixed_steps(model: str) -> None:
    """A prompt beside a batch that decodes, on a colocated replica."""
    f = fleet(model, deployed(Phase.COLOCATED, LAYOUTS["TP4"]))
    cluster = cluster_of(f, Setup())
    r = replica(f, f.groups[0])
    rng = np.random.default_rng(0)
    for _ in range(10):
        batch, context, query = (int(np.exp(rng.uniform(0, np.log(top)))) for top in (200, 5000, 7000))
        requests = requests_of([0.0] * batch + [200.0], [context] * batch + [query], [100_000] * batch + [1])
        kept = holdings(f, requests)
        request = run_cluster(cluster, requests, kept, samples=0, until=210.0).request[-1]
        before = run_cluster(cluster, requests, kept, samples=0, until=float(request["begun"]))
        assert np.all(before.tokens[:-1] < 100_000)  # all of them decode
        contexts = context + before.tokens[:-1]
        exact = prompt_time(r, query, 0.0, float(BUDGET), decode_batch=batch, context=contexts.mean())
        assert request["prompted"] - request["begun"] == pytest.approx(float(exact.service[0]), rel=0.01)
