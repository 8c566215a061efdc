"""Prompts on pipelined replicas: the table, its laws, and the event loop as oracle."""

from __future__ import annotations

import numpy as np
import pytest

from planner import catalog
from planner.engines import load_engine
from planner.fleet import Deployed, Fleet
from planner.latency import prompt_time
from planner.lengths import independent, marginal_fixed, marginal_lognormal
from planner.operators import ReplicaSet
from planner.prediction import prefill_sojourn
from planner.queueing import Flight, FlightSojourn, Pipelines
from planner.queueing.pipeline import BUDGETS, LEVELS, LOADS, REPLICAS, STAGES, VARIATIONS
from planner.simulator.arrivals import generated
from planner.simulator.build import cluster_of, holdings
from planner.simulator.cluster import run_cluster
from planner.specs import (
    Dtype,
    FleetItem,
    Lengths,
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

LARGE = "meta-llama/Llama-3.1-70B-Instruct"
FP8 = Precision(weights=Dtype.FP8, kv_cache=Dtype.FP8)


def kinds(stages: float, scv: float, budget: float) -> Pipelines:
    return Pipelines.of(np.array([stages]), np.array([scv]), np.array([budget]))


def flight(stages: float, scv: float, budget: float, load: float, replicas: float) -> Flight:
    return kinds(stages, scv, budget).flight(np.array([[load]]), np.array([[replicas]]), np.ones((1, 1)))


# --------------------------------------------------------------------------------------------
# The table


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("budget", [1.0, 4.0, 20.0])
@pytest.mark.parametrize("scv", [0.0, 1.0, 3.0])
def test_more_load_and_fewer_replicas_are_never_shorter(stages, budget, scv):
    table = kinds(stages, scv, budget)
    loads = np.linspace(0.0, 0.99, 40)[None]
    counts = [np.full_like(loads, n) for n in (1.0, 3.0, 12.0)]
    times = [table.flight(loads, n, np.ones((1, 1))).times[0] for n in counts]
    for found in times:
        assert np.all(np.diff(found, axis=0) >= -1e-12)
        assert np.all(np.diff(found, axis=1) >= 0)
    assert np.all(times[0] >= times[1] - 1e-12)
    assert np.all(times[1] >= times[2] - 1e-12)


def test_an_idle_pipeline_holds_nobody_up():
    found = flight(4, 1.0, 5.0, 0.0, 1)
    assert np.all(found.times == 0)
    sojourn = FlightSojourn(found, np.array([[[2.0]]]), np.array([[[0.5]]]), np.ones(1))
    assert sojourn.exceeds(1.99)[0, 0] == 1
    assert sojourn.exceeds(2.01)[0, 0] < 1e-6
    assert sojourn.mean[0, 0] == pytest.approx(2.0)


def test_an_overloaded_pipeline_has_no_steady_state():
    found = flight(2, 1.0, 5.0, 1.0, 1)
    assert np.all(np.isinf(found.times))
    assert np.all(found.exceeds(np.array([[[1e9]]])) == 1)


def test_the_tail_at_tabulated_levels():
    found = flight(4, VARIATIONS[1], BUDGETS[2], LOADS[6], REPLICAS[1])
    for level, time in zip(LEVELS, found.times[0, 0], strict=True):
        if time > 0:
            assert found.exceeds(np.array([[[time]]]))[0, 0, 0] == pytest.approx(level, rel=1e-6)
    assert found.exceeds(np.array([[[-1.0]]]))[0, 0, 0] == 1


def test_behind_a_long_prompt_a_short_one_waits_at_every_stage():
    """U = 10 for certain: a prompt of 1 on four stages leaves at 10.25, one of 20 after its own time."""
    certain = Flight(np.full((1, 1, len(LEVELS)), 10.0))
    points = FlightSojourn(
        certain, np.array([[[1.0, 20.0]]]), np.array([[[0.25, 5.0]]]), np.array([0.5, 0.5])
    )
    assert points.exceeds(10.2)[0, 0] > 0.95
    assert points.exceeds(10.3)[0, 0] == pytest.approx(0.5, abs=0.01)
    assert points.exceeds(20.1)[0, 0] < 0.01


# --------------------------------------------------------------------------------------------
# Against the event loop


def fleet(lengths: Lengths, pp: int, replicas: int, load: float) -> Fleet:
    """70B in FP8 on H100 TP 2, decoding where nothing waits; the load is that of steps of one prompt."""
    gpu, model, engine = catalog.load_gpu("h100-sxm"), catalog.load_model(LARGE), load_engine("vllm")
    item = FleetItem(gpu=gpu, price=None, max_gpus=None, node_size=8, network_bandwidth=1e15)
    layout = Parallelism(tp=2, pp=pp)
    r = ReplicaSet.of(model, FP8, engine, [(gpu, layout)])
    points, weights = np.array(lengths.isl.points), np.array(lengths.isl.weights)
    own = float(prompt_time(r, points[:, None], 0.0, 8192.0).service[:, 0] @ weights)
    rate = load * replicas * pp / own
    groups = tuple(
        Deployed(
            phase=phase,
            item=item,
            parallelism=parallelism,
            replicas=number,
            rate=rate,
            token_budget=budget,
            kv_tokens=10**9,
            max_num_seqs=1024,
        )
        for phase, parallelism, number, budget in (
            (Phase.PREFILL, layout, replicas, 8192),
            (Phase.DECODE, Parallelism(tp=8), 8, 2048),
        )
    )
    workload = Workload(
        name="drawn", periods=(Period(name="", hours=1.0, request_rate=rate),), lengths=lengths
    )
    service = Service(model=model, precision=FP8, workload=workload, slo=Slo(targets=()), engine="vllm")
    return Fleet(service=service, engine=engine, groups=groups, routing=Routing.LEAST_LOADED)


LENGTHS = {
    "fixed": independent(marginal_fixed(2000), marginal_fixed(2)),
    "lognormal": independent(marginal_lognormal(1500, 1.0, 32_768), marginal_fixed(2)),
    "code": independent(catalog.load_traffic("azure-2023-code").lengths.isl, marginal_fixed(2)),
}


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("pp", "replicas", "load"), [(2, 1, 0.5), (2, 8, 0.7), (4, 3, 0.5), (4, 3, 0.65)])
def test_prompts_of_a_pipeline(lengths, pp, replicas, load):
    """A common queue before replicas faster by the number of stages would be up to 70 % too short here.

    Known weakness: prompts of one length of which a whole number just fills a step, 31 % too short at p99.
    """
    f = fleet(LENGTHS[lengths], pp, replicas, load)
    requests = generated(f.service.workload, 100_000, np.random.default_rng(0))
    record = run_cluster(cluster_of(f), requests, holdings(f, requests), samples=0).request[20_000:]
    seen = record["prompted"] - record["arrival"]
    sojourn = prefill_sojourn(f, f.groups[0], Traffic.of(f.service.workload), 0.0)
    assert float(sojourn.mean[0, 0]) == pytest.approx(seen.mean(), rel=0.14)
    shorter = 0.65 if lengths == "fixed" else 0.8
    for p in (0.9, 0.99):
        time = float(np.quantile(seen, p))
        assert sojourn.exceeds(np.array([[1.25 * time]]))[0, 0] <= 1 - p
        assert sojourn.exceeds(np.array([[shorter * time]]))[0, 0] >= 1 - p
