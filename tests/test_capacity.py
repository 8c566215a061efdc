"""Capacity curves: laws, and agreement with the predicted percentiles of what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from planner.candidates import CandidateSet, build_candidates
from planner.capacity import (
    FIRST_STEPS,
    SLO_MARGIN,
    Limit,
    PrefillDemand,
    admission_miss,
    batch_for_tokens,
    colocated_state,
    held_up,
    limits,
    prefill_curves,
    prompt_queues,
)
from planner.engines import load_engine
from planner.fleet import Deployed, Fleet
from planner.latency import Companions, decode_step_time, prompt_time
from planner.operators import ReplicaSet
from planner.plan import Binding
from planner.prediction import predict_fleet, prefill_sojourn
from planner.queueing import later_arrivals, normal_quantile, prompts_per_step
from planner.specs import (
    Dtype,
    FleetItem,
    Metric,
    Parallelism,
    Phase,
    Precision,
    Routing,
    SchedulerPolicy,
    Service,
    Slo,
    SloTarget,
    Statistic,
)
from planner.traffic import Traffic

BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
STARTS = (1, 2, 3, 4, 6, 8, 16, 64)


def candidates(loaded) -> CandidateSet:
    (service,) = loaded.scenario.services
    return build_candidates(loaded.scenario, service, load_engine("vllm"))


def one_gpu(scenario, **changes) -> CandidateSet:
    """Candidates on H100 of TP 1 only."""
    changes = {
        "fleet": [{"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "network_gbps_per_gpu": 400}]
    } | changes
    return candidates(scenario(**({"options": {"allowed_tp": [1], "max_pp": 1}} | changes)))


def best(found: CandidateSet, phase: Phase) -> list[float]:
    """Largest rate per replica of any candidate of `phase`, over the replica counts."""
    return np.max([found.candidates[i].curve.per_replica for i in found.of(phase)], axis=0).tolist()


# --------------------------------------------------------------------------------------------
# Limits


def test_limits_are_planned_with_a_margin():
    slo = Slo(
        targets=(
            SloTarget(metric=Metric.TTFT, statistic=Statistic.P99, limit=1.0),
            SloTarget(metric=Metric.TTFT, statistic=Statistic.MEAN, limit=0.4),
            SloTarget(metric=Metric.TPOT, statistic=Statistic.P90, limit=0.05),
        )
    )
    assert limits(slo, Metric.TTFT) == (
        Limit(0.99, pytest.approx(SLO_MARGIN)),
        Limit(None, pytest.approx(0.4 * SLO_MARGIN)),
    )
    assert limits(slo, Metric.TTFT)[0].miss == pytest.approx(0.01)
    assert admission_miss(limits(slo, Metric.TTFT)) == pytest.approx(0.001)


def test_sequences_that_fit_by_hand(workload):
    """The sum of B reserved lengths at its quantile fills the cache."""
    traffic = Traffic.of(workload)
    (batch,) = batch_for_tokens(np.array([100_000.0]), traffic, 0.01).tolist()
    z = float(normal_quantile(0.99))
    needed = batch * traffic.reserved + z * traffic.reserved_sd * math.sqrt(batch)
    assert needed == pytest.approx(100_000.0, rel=1e-9)
    assert batch_for_tokens(np.array([0.0]), traffic, 0.01)[0] == 0.0


# --------------------------------------------------------------------------------------------
# Curves


@pytest.mark.parametrize("phase", list(Phase))
def test_a_replica_carries_no_less_in_a_larger_pool(scenario, phase):
    found = candidates(scenario(workload={"request_rate": 500, "input_tokens": 1000, "output_tokens": 200}))
    assert found.of(phase)
    for i in found.of(phase):
        rates = found.candidates[i].curve.per_replica
        assert list(rates) == sorted(rates)
        assert rates[0] > 0


@pytest.mark.parametrize(
    ("metric", "limits_ms", "phase"),
    [
        ("ttft_ms", (150, 300, 1000, 5000), Phase.PREFILL),
        ("ttft_ms", (150, 300, 1000, 5000), Phase.COLOCATED),
        ("tpot_ms", (9, 15, 30, 100), Phase.DECODE),
        ("tpot_ms", (9, 15, 30, 100), Phase.COLOCATED),
    ],
)
def test_capacity_falls_with_tighter_slos(scenario, metric, limits_ms, phase):
    slo = {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 40}}
    rates = []
    for limit in limits_ms:
        found = one_gpu(scenario, slo=slo | {metric: {"p99": limit}})
        rates.append(best(found, phase)[0] if found.of(phase) else 0.0)
    assert rates == sorted(rates)
    assert rates[-1] > 0


def test_capacity_stays_below_the_work_that_a_replica_can_do(scenario, h100, llama_8b, vllm):
    """However large the pool: utilisation of a prefill replica stays below one."""
    found = one_gpu(scenario, workload={"request_rate": 4000, "input_tokens": 1000, "output_tokens": 200})
    r = ReplicaSet.of(llama_8b, BF16, vllm, [(h100, Parallelism())], float(normal_quantile(0.8)))
    alone = float(prompt_time(r, 1000.0, 0.0, 8192.0).service[0])
    beside = Companions(7.0, 1000.0, 1000.0**2 / 2)
    eight = float(prompt_time(r, 1000.0, 0.0, 8192.0, beside).service[0]) / 8
    assert 0.9 / alone < best(found, Phase.PREFILL)[-1] < 1 / eight


def test_sharing_steps_saves_the_fixed_cost_only(h100, llama_8b, vllm, workload):
    """Two prompts in one step take twice one by itself, less what a step costs whatever is in it."""
    traffic = Traffic.of(workload)
    r = ReplicaSet.of(llama_8b, BF16, vllm, [(h100, Parallelism())])
    queues = prompt_queues(r, traffic, 8192.0)
    beside = Companions(1.0, traffic.mean_query, traffic.mean_area)
    two = prompt_time(r, traffic.query[:, None], 0.0, 8192.0, beside).service[:, 0] @ traffic.isl_weights
    alone = queues.alone[0] @ traffic.isl_weights
    assert queues.saved[0, 0] == 1.0
    assert queues.saved[0, 1] == pytest.approx(two / 2 / alone)
    assert np.all(np.diff(queues.saved[0]) <= 0)
    assert queues.saved[0, -1] > 0.5


@pytest.mark.parametrize("layout", [Parallelism(), Parallelism(pp=2), Parallelism(pp=4)], ids=str)
def test_the_rate_grows_with_the_load_and_is_found_again(h100, llama_8b, vllm, workload, layout):
    traffic = Traffic.of(workload)
    r = ReplicaSet.of(llama_8b, BF16, vllm, [(h100, layout)])
    queues = prompt_queues(r, traffic, 8192.0).at(np.array([0]))
    loads, counts = np.linspace(0.0, 0.95, 40)[None], np.full(40, 3.0)
    rates = queues.rate(loads, counts, Routing.LEAST_LOADED)[0]
    assert np.all(np.diff(rates) > 0)
    for k in (5, 20, 39):
        found = queues.load(3 * float(rates[k]), 3, Routing.LEAST_LOADED)
        assert found[0, 0] == pytest.approx(loads[0, k], abs=2e-3)


def test_steps_take_more_prompts_under_load():
    """M/D/1: a customer shares its step with rho^2 / (1 - rho^2) others; and more servers share less."""
    assert float(prompts_per_step(0.0, 1, 0.0)) == 1.0
    assert float(prompts_per_step(0.6, 1, 0.0)) == pytest.approx(1 + 0.36 / 0.64)
    assert float(prompts_per_step(0.6, 4, 0.0)) < float(prompts_per_step(0.6, 1, 0.0))
    assert float(later_arrivals(0.5, 1, 0.0)) == pytest.approx(1 / 3)
    assert float(later_arrivals(0.5, 8, 0.0)) < float(later_arrivals(0.5, 8, 1.0)) == pytest.approx(1 / 3)


def test_prompts_hold_up_a_pipeline():
    """Rare prompts stop all lanes, many ones or full steps only a share of the stages."""
    lanes, alone = np.array(4.0), np.array(0.0)
    assert float(held_up(np.array(0.0), lanes, alone)) == 1.0
    assert float(held_up(np.array(1e6), lanes, alone)) == pytest.approx(0.25, abs=0.01)
    assert float(held_up(np.array(0.3), lanes, alone, np.array(1.0))) == pytest.approx(0.25)
    assert float(held_up(np.array(5.0), np.array(1.0), alone)) == 1.0
    for lanes in (2, 4):
        for scv in (0.0, 1.0, 3.0):
            for met in (0.05, 0.3, 1.0, 4.0):
                seen = pipeline_growth(lanes, met, scv)
                assert float(held_up(np.array(met), np.array(lanes), np.array(scv))) == pytest.approx(
                    seen, rel=0.06
                )


def pipeline_growth(lanes: int, met: float, scv: float, steps: int = 60_000) -> float:
    """D_j = max(D_{j-1} + X_j / m, D_{j-m} + X_j) iterated, X compound Poisson of mean `met`."""
    rng = np.random.default_rng(0)
    counts = rng.poisson(met, steps)
    added = np.zeros(steps)
    sizes = rng.gamma(1 / scv, scv, counts.sum()) if scv else np.ones(counts.sum())
    np.add.at(added, np.repeat(np.arange(steps), counts), sizes)
    ends = [0.0] * lanes
    for x in added.tolist():
        ends = [*ends[1:], max(ends[-1] + x / lanes, ends[0] + x)]
    return ends[-1] / steps / met


def test_short_prompts_gain_from_sharing_steps(scenario):
    """100-token prompts are bound by the pass over the weights: a step takes many of them."""
    found = one_gpu(scenario, workload={"request_rate": 50, "input_tokens": 100, "output_tokens": 200})
    i = found.of(Phase.PREFILL)[-1]
    assert found.operating[i][0] >= 4


def test_unloaded_ttft_does_not_depend_on_replicas(h100, llama_8b, vllm, workload):
    """https://github.com/ai-dynamo/dynamo/pull/8861 added replicas to fix the time of one prompt."""
    traffic = Traffic.of(workload)
    r = ReplicaSet.of(llama_8b, BF16, vllm, [(h100, Parallelism())])
    queues = prompt_queues(r, traffic, 8192.0)
    slowest = float(queues.alone.max())

    def rates(limit: float) -> list[float]:
        demand = PrefillDemand(
            ttft=(Limit(0.99, limit),),
            admission_miss=0.0,
            first_step=np.zeros(1),
            transfer=np.zeros((len(traffic.isl), 1)),
            routing=Routing.LEAST_LOADED,
        )
        return prefill_curves(queues, np.array([0]), traffic, demand, STARTS).per_replica[0].tolist()

    assert rates(0.999 * slowest) == [0.0] * len(STARTS)
    assert min(rates(1.2 * slowest)) > 0


def test_colocated_state_balances(h100, llama_8b, vllm, workload):
    """Tokens out equal tokens in, and the step is what decoding and prompts leave."""
    traffic = Traffic.of(workload)
    r = ReplicaSet.of(llama_8b, BF16, vllm, [(h100, Parallelism())])
    batch = np.array([[1.0], [16.0], [128.0]])
    for policy in SchedulerPolicy:
        state, _ = colocated_state(r, traffic, policy, np.array([2048.0]), batch)
        assert state.rate * traffic.colocated_steps * state.step == pytest.approx(batch)
        assert state.decode_step / (1 - state.rate * state.stolen) == pytest.approx(state.step)
        assert state.decode_step[:, 0] == pytest.approx(
            decode_step_time(r, batch, traffic.decode_context)[:, 0], rel=1e-12
        )


def test_prefill_first_steals_more_than_chunked_prefill(h100, llama_8b, vllm, workload):
    traffic = Traffic.of(workload)
    r = ReplicaSet.of(llama_8b, BF16, vllm, [(h100, Parallelism())])
    batch, budget = np.array([[64.0]]), np.array([2048.0])
    chunked, first = (
        colocated_state(r, traffic, policy, budget, batch)[0]
        for policy in (SchedulerPolicy.CHUNKED_PREFILL, SchedulerPolicy.PREFILL_FIRST)
    )
    assert first.stolen[0, 0] > chunked.stolen[0, 0]


# --------------------------------------------------------------------------------------------
# What a curve promises, the prediction finds


def deployed(loaded, found: CandidateSet, index: int, replicas: int, rate: float) -> Deployed:
    choice = found.choices[index]
    return Deployed(
        phase=choice.phase,
        item=loaded.scenario.fleet[choice.item],
        parallelism=choice.parallelism,
        replicas=replicas,
        rate=rate,
        token_budget=choice.token_budget,
        kv_tokens=choice.kv_tokens,
        max_num_seqs=choice.max_num_seqs,
    )


LENGTHS = [
    {"input_tokens": 1000, "output_tokens": 200},
    {"input_tokens": {"mean": 2000, "cv": 1.0}, "output_tokens": {"mean": 300, "cv": 0.8}},
    {"preset": "azure-2023-conversation"},
]


@pytest.mark.parametrize("lengths", LENGTHS, ids=["fixed", "lognormal", "preset"])
@pytest.mark.parametrize("replicas", [1, 4])
def test_percentiles_at_capacity_meet_the_limits(scenario, vllm, lengths, replicas):
    """At the capacity and the error planned for: no SLO is broken, a TPOT that binds is nearly used up."""
    slo = {"ttft_ms": {"p99": 1200}, "tpot_ms": {"p99": 25}}
    loaded = scenario(
        workload={"request_rate": 100} | lengths,
        slo=slo,
        fleet=[{"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "network_gbps_per_gpu": 400}],
        options={"allowed_tp": [1], "max_pp": 1},
    )
    (service,) = loaded.scenario.services
    found = build_candidates(loaded.scenario, service, vllm)
    z = float(normal_quantile(loaded.scenario.options.confidence))
    checked = set()
    for i in found.of(Phase.PREFILL) + found.of(Phase.DECODE) + found.of(Phase.COLOCATED):
        candidate, choice = found.candidates[i], found.choices[i]
        rate = candidate.curve.capacity(replicas)
        point = max(k for k, n in enumerate(candidate.curve.starts) if n <= replicas)
        binds = found.binds[i][point]
        groups = [deployed(loaded, found, i, replicas, rate)]
        if choice.phase is not Phase.COLOCATED:
            partner = _idle_partner(found, i)
            groups.append(deployed(loaded, found, partner, 1000, rate))
        ttft, tpot = predict_fleet(
            Fleet(service=service, engine=vllm, groups=tuple(groups), routing=Routing.LEAST_LOADED), z
        ).summaries()
        if choice.phase is not Phase.DECODE:
            assert ttft.p99 <= 1.2, candidate.name
        if choice.phase is not Phase.PREFILL:
            assert tpot.p99 <= 0.025, candidate.name
            if binds is Binding.TPOT:
                assert tpot.p99 >= 0.9 * 0.025, candidate.name
        checked.add((choice.phase, binds))
    assert (Phase.DECODE, Binding.TPOT) in checked or (Phase.DECODE, Binding.KV_CAPACITY) in checked
    assert (Phase.COLOCATED, Binding.TPOT) in checked
    assert {binds for phase, binds in checked if phase is Phase.PREFILL} <= {Binding.TTFT, Binding.COMPUTE}


@pytest.mark.parametrize("lengths", LENGTHS, ids=["fixed", "lognormal", "preset"])
@pytest.mark.parametrize("replicas", [1, 4])
def test_a_tenth_more_than_the_capacity_breaks_a_limit(scenario, vllm, lengths, replicas):
    """The other side: no candidate whose SLO binds is planned more than a tenth too carefully."""
    loaded = scenario(
        workload={"request_rate": 100} | lengths,
        slo={"ttft_ms": {"p99": 1200}, "tpot_ms": {"p99": 25}},
        fleet=[{"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "network_gbps_per_gpu": 400}],
        options={"allowed_tp": [1], "max_pp": 1},
    )
    (service,) = loaded.scenario.services
    found = build_candidates(loaded.scenario, service, vllm)
    z = float(normal_quantile(loaded.scenario.options.confidence))
    for i in found.of(Phase.COLOCATED):
        rate = 1.1 * found.candidates[i].curve.capacity(replicas)
        groups = (deployed(loaded, found, i, replicas, rate),)
        ttft, tpot = predict_fleet(
            Fleet(service=service, engine=vllm, groups=groups, routing=Routing.LEAST_LOADED), z
        ).summaries()
        assert ttft.p99 > 1.2 or tpot.p99 > 0.025


def _idle_partner(found: CandidateSet, index: int) -> int:
    """A candidate of the other phase that is allowed beside this one."""
    prefill = found.choices[index].phase is Phase.PREFILL
    others = found.of(Phase.DECODE if prefill else Phase.PREFILL)
    return next(j for j in others if ((index, j) if prefill else (j, index)) not in found.illegal_pairs)


@pytest.mark.parametrize("replicas", [1, 4])
def test_ttft_at_the_capacity_of_prefill(h100, llama_8b, vllm, workload, replicas):
    """The wait and the prompt alone: the p99 at capacity is the limit."""
    traffic = Traffic.of(workload)
    r = ReplicaSet.of(llama_8b, BF16, vllm, [(h100, Parallelism())])
    demand = PrefillDemand(
        ttft=(Limit(0.99, 0.4),),
        admission_miss=0.0,
        first_step=np.zeros(1),
        transfer=np.zeros((len(traffic.isl), 1)),
        routing=Routing.LEAST_LOADED,
    )
    queues = prompt_queues(r, traffic, 8192.0)
    curve = prefill_curves(queues, np.array([0]), traffic, demand, (replicas,))
    rate = replicas * float(curve.per_replica[0, 0])
    item = FleetItem(gpu=h100, price=None, max_gpus=None, node_size=8, network_bandwidth=5e10)
    group = Deployed(
        phase=Phase.PREFILL,
        item=item,
        parallelism=Parallelism(),
        replicas=replicas,
        rate=rate,
        token_budget=8192,
        kv_tokens=10**6,
        max_num_seqs=256,
    )
    service = Service(model=llama_8b, precision=BF16, workload=workload, slo=Slo(targets=()), engine="vllm")
    f = Fleet(service=service, engine=vllm, groups=(group,), routing=Routing.LEAST_LOADED)
    missed = float(prefill_sojourn(f, group, traffic, 0.0).exceeds(np.array([[0.4]]))[0, 0])
    assert 0.8 * 0.01 <= missed <= 1.05 * 0.01


def test_routers_that_pool_less_carry_less(scenario):
    rates = {}
    for routing in Routing:
        found = one_gpu(
            scenario,
            options={"allowed_tp": [1], "max_pp": 1, "routing": routing.value},
            workload={
                "request_rate": 200,
                "input_tokens": {"mean": 2000, "cv": 1.0, "max": 8000},
                "output_tokens": 100,
            },
        )
        i = found.of(Phase.PREFILL)[0]
        rates[routing] = found.candidates[i].curve.per_replica[7]
    assert rates[Routing.LEAST_LOADED] > rates[Routing.ROUND_ROBIN] > rates[Routing.RANDOM]
    assert rates[Routing.LEAST_LOADED] >= rates[Routing.POWER_OF_TWO] > rates[Routing.RANDOM]


def test_the_first_step_is_taken_from_the_ttft(scenario):
    """A prefill candidate that leaves room for slower first steps carries less."""
    found = one_gpu(scenario)
    by_path: dict[float, list[tuple[float, float]]] = {}
    for i in found.of(Phase.PREFILL):
        choice = found.choices[i]
        by_path.setdefault(choice.path_rate, []).append(
            (choice.first_step, found.candidates[i].curve.per_replica[0])
        )
    for pairs in by_path.values():
        rates = [rate for _, rate in sorted(pairs)]
        assert rates == sorted(rates, reverse=True)
    assert FIRST_STEPS == 1.5


# --------------------------------------------------------------------------------------------
# Overload


def test_overload_has_no_steady_state(h100, llama_8b, vllm, workload):
    """https://github.com/sgl-project/sglang/issues/6411: 1.25 of what prefill can do; TTFT has no value."""
    traffic = Traffic.of(workload)
    r = ReplicaSet.of(llama_8b, BF16, vllm, [(h100, Parallelism())])
    queues = prompt_queues(r, traffic, 2048.0)
    at_most = 1 / float(queues.shape.mean[0] * queues.saved[0, -1])
    wait = queues.shape.wait(1.25 * at_most, 1.0, 1.0)
    assert math.isinf(float(wait.mean[0]))
    for limit in (1.0, 1e3, 1e6):
        demand = PrefillDemand(
            ttft=(Limit(0.99, limit),),
            admission_miss=0.0,
            first_step=np.zeros(1),
            transfer=np.zeros((len(traffic.isl), 1)),
            routing=Routing.LEAST_LOADED,
        )
        curve = prefill_curves(queues, np.array([0]), traffic, demand, (1, 64))
        assert curve.per_replica.max() < at_most
