"""Prefixes that do not lie in HBM: loading them takes time, in formulas, simulation and plans alike."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from simulator_clusters import requests_of
from test_simulator_latency import BF16, BUDGET, MODELS, deployed, fleet
from test_traces import hashed

from planner import catalog
from planner.documents.scenario import scenario_from_text
from planner.documents.yaml_text import dump_yaml
from planner.engines import engine_of, load_engine
from planner.errors import SpecError
from planner.latency import Companions, prompt_time
from planner.operators import ReplicaSet
from planner.prediction import predict_fleet
from planner.simulator.build import Setup, cluster_of, holdings
from planner.simulator.cluster import run_cluster
from planner.specs import Dtype, Parallelism, Phase
from planner.transformer import kv_bytes_per_token
from planner.whatif.resolve import ResolveOptions, Resolver

SLOW = 5e9  # [B/s]


def replicas(model: str, layout: Parallelism, bandwidth: float) -> ReplicaSet:
    engine = replace(load_engine("vllm"), prefix_bandwidth=bandwidth)
    return ReplicaSet.of(
        catalog.load_model(model), BF16, engine, [(catalog.load_gpu("h100-sxm"), layout)], 0.5
    )


@pytest.mark.parametrize(
    ("model", "layout", "copies"),
    [
        ("meta-llama/Llama-3.1-8B", Parallelism(), 1),
        ("meta-llama/Llama-3.1-8B", Parallelism(tp=8, pp=2), 1),  # 8 heads for 8 ranks
        ("deepseek-ai/DeepSeek-V3", Parallelism(tp=8), 8),  # a latent on every rank
        ("deepseek-ai/DeepSeek-V3", Parallelism(dp=8, ep=8), 1),
    ],
)
def test_a_prompt_waits_for_its_prefix_and_for_those_beside_it(model: str, layout: Parallelism, copies: int):
    slow, none = (replicas(model, layout, bandwidth) for bandwidth in (SLOW, math.inf))
    companions = Companions(3.0, 500.0, 500.0 * 900.0, 650.0)
    times = [prompt_time(r, 1000.0, 3000.0, float(BUDGET), companions) for r in (slow, none)]
    token = copies * kv_bytes_per_token(catalog.load_model(model), Dtype.BF16) / SLOW
    for part in ("service", "stolen"):
        added = getattr(times[0], part) - getattr(times[1], part)
        np.testing.assert_allclose(added, (3000 + 3 * 650) * token)
    assert times[0].steps == times[1].steps


@pytest.mark.parametrize("kind", ["dense", "MLA"])
def test_lone_prompts_take_as_long_in_simulation(kind: str):
    layout = Parallelism() if kind == "dense" else Parallelism(dp=8, ep=8)
    groups = (deployed(Phase.PREFILL, layout), deployed(Phase.DECODE, layout))
    plain = fleet(MODELS[kind][0], *groups)
    slow = replace(plain, engine=replace(plain.engine, prefix_bandwidth=SLOW))
    isl, cached = np.array([100, 5000, 20_000]), np.array([40, 4000, 5000], dtype=np.int32)
    requests = requests_of(1000.0 * np.arange(3), isl, 8, cached=cached)
    outcome = run_cluster(cluster_of(slow, Setup()), requests, holdings(slow, requests), samples=0)
    r = ReplicaSet.of(slow.service.model, BF16, slow.engine, [(groups[0].item.gpu, layout)])
    expected = prompt_time(r, isl - cached, cached, float(BUDGET)).service
    simulated = outcome.request["prompted"] - outcome.request["arrival"]
    np.testing.assert_allclose(simulated, expected, rtol=0.01)
    base = run_cluster(cluster_of(plain, Setup()), requests, holdings(plain, requests), samples=0).request
    token = kv_bytes_per_token(slow.service.model, Dtype.BF16) / SLOW
    np.testing.assert_allclose(simulated - (base["prompted"] - base["arrival"]), cached * token, rtol=1e-9)


def test_prefixes_of_hashed_blocks_lie_in_hbm():
    groups = (deployed(Phase.PREFILL, Parallelism()), deployed(Phase.DECODE, Parallelism()))
    plain = fleet(MODELS["dense"][0], *groups)
    slow = replace(plain, engine=replace(plain.engine, prefix_bandwidth=SLOW))
    blocks = hashed([1, 2], [1, 2], size=512)
    requests = replace(requests_of(np.array([0.0, 100.0]), np.array([1024, 1024]), 8), blocks=blocks)
    ends = [
        run_cluster(cluster_of(f, Setup()), requests, holdings(f, requests), samples=0).request["prompted"]
        for f in (plain, slow)
    ]
    np.testing.assert_array_equal(*ends)


# --------------------------------------------------------------------------------------------
# Scenarios


def scenario(**workload: object):
    text = {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "workload": {"request_rate": 30, "input_tokens": 6000, "output_tokens": 100, **workload},
        "slo": {"ttft_ms": {"p99": 2000}, "tpot_ms": {"p99": 40}},
        "fleet": [{"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 64}],
        "options": {"whole_nodes": False},
    }
    return scenario_from_text(dump_yaml(text))


def test_the_key_is_in_si_units_and_reaches_the_engine():
    service = scenario(prefix_cache_hit_rate=0.5, prefix_load_gb_per_s=20).scenario.services[0]
    assert service.workload.prefix_bandwidth == 20e9
    assert service.workload.note == "prefixes that are found come to their replica at 20 GB/s"
    assert engine_of(service).prefix_bandwidth == 20e9
    plain = scenario(prefix_cache_hit_rate=0.5).scenario.services[0]
    assert engine_of(plain).prefix_bandwidth == math.inf


def test_a_load_time_without_hits_is_refused():
    with pytest.raises(
        SpecError, match="prefix_load_gb_per_s: there is nothing to load: prefix_cache_hit_rate is 0"
    ):
        scenario(prefix_load_gb_per_s=20)
    with pytest.raises(SpecError, match="prefix_load_gb_per_s: must be > 0, got 0"):
        scenario(prefix_cache_hit_rate=0.5, prefix_load_gb_per_s=0)


@pytest.mark.slow
def test_the_faster_the_load_the_cheaper_the_plan():
    """From slower than computing to as good as HBM."""
    loaded = [scenario(prefix_cache_hit_rate=0.6, prefix_load_gb_per_s=rate) for rate in (1, 3, 10, 100, 1e6)]
    costs = [Resolver(x, ResolveOptions()).plan().value for x in loaded]
    assert costs == sorted(costs, reverse=True)
    without, hbm = (
        Resolver(scenario(prefix_cache_hit_rate=h), ResolveOptions()).plan().value for h in (0, 0.6)
    )
    assert costs[-1] == hbm < without < costs[0]


def test_ttft_of_a_given_fleet_grows_by_more_than_the_load():
    """It queues as well."""
    base = fleet(
        "meta-llama/Llama-3.1-8B",
        deployed(Phase.PREFILL, Parallelism()),
        deployed(Phase.DECODE, Parallelism()),
    )
    workload = replace(base.service.workload, prefix_hit_rate=0.5)
    plain = replace(base, service=replace(base.service, workload=workload))
    slow = replace(plain, engine=replace(plain.engine, prefix_bandwidth=SLOW))
    fast, late = (predict_fleet(f).summaries()[0].mean for f in (plain, slow))
    load = 15_000 * kv_bytes_per_token(base.service.model, Dtype.BF16) / SLOW
    assert late - fast > load * 1.05
