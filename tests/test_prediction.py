"""Mixtures of latencies: shares, percentiles by inversion, and limits that are known."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.capacity import FIRST_STEPS
from planner.collectives import kv_transfer_time, network_rate
from planner.fleet import Deployed, Fleet, path_rate
from planner.latency import decode_step_time, prompt_time
from planner.operators import ReplicaSet
from planner.prediction import (
    Component,
    colocated_group_occupancy,
    decode_group_occupancy,
    exceedance,
    predict_fleet,
    prefill_occupancy,
    summary,
)
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

BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)


def exponential(share: float, mean: float) -> Component:
    return Component(share, mean, lambda t: math.exp(-t / mean) if t > 0 else 1.0, mean)


def constant(isl: float, osl: float, rate: float) -> Workload:
    return Workload(
        name="constant",
        periods=(Period(name="", hours=1.0, request_rate=rate),),
        lengths=Lengths(
            isl=Marginal(points=(isl,), weights=(1.0,)),
            osl=Marginal(points=(osl,), weights=(1.0,)),
            isl_per_output_token=isl,
        ),
    )


@pytest.fixture
def make(h100, a100, llama_8b, vllm):
    """Builds a fleet; groups are (phase, gpu, tp, replicas, share of the rate)."""
    gpus = {"h100": h100, "a100": a100}

    def build(
        workload: Workload,
        *groups: tuple[Phase, str, int, int, float],
        rate: float | None = None,
        routing: Routing = Routing.LEAST_LOADED,
    ) -> Fleet:
        offered = workload.request_rate if rate is None else rate
        deployed = tuple(
            Deployed(
                phase=phase,
                item=FleetItem(
                    gpu=gpus[gpu],
                    price=None,
                    max_gpus=None,
                    node_size=8,
                    network_bandwidth=gpus[gpu].network_bandwidth,
                ),
                parallelism=Parallelism(tp=tp),
                replicas=replicas,
                rate=share * offered,
                token_budget=8192,
                kv_tokens=400_000,
                max_num_seqs=256,
            )
            for phase, gpu, tp, replicas, share in groups
        )
        service = Service(
            model=llama_8b, precision=BF16, workload=workload, slo=Slo(targets=()), engine="vllm"
        )
        return Fleet(service=service, engine=vllm, groups=deployed, routing=routing)

    return build


# --------------------------------------------------------------------------------------------
# Mixtures


def test_summary_of_one_exponential():
    found = summary([exponential(1.0, 2.0)])
    assert found.mean == 2.0
    for name, p in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        assert getattr(found, name) == pytest.approx(-2 * math.log(1 - p), rel=1e-3)


def test_percentiles_of_a_mixture_are_no_mean_of_percentiles():
    parts = [exponential(0.9, 1.0), exponential(0.1, 20.0)]
    found = summary(parts)
    assert exceedance(parts, found.p99) == pytest.approx(0.01, rel=1e-2)
    averaged = 0.9 * -math.log(0.01) + 0.1 * -20 * math.log(0.01)
    assert found.p99 > 2 * averaged
    assert found.mean == pytest.approx(2.9)


@given(
    st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 100)), min_size=1, max_size=5),
)
@settings(deadline=None, max_examples=50)
def test_percentiles_ascend(parts):
    total = sum(share for share, _ in parts)
    found = summary([exponential(share / total, mean) for share, mean in parts])
    assert found.p50 <= found.p90 <= found.p95 <= found.p99


def test_a_part_without_steady_state_makes_everything_infinite():
    never = Component(0.1, math.inf, lambda _t: 1.0, math.inf)
    assert summary([exponential(0.9, 1.0), never]).p50 == math.inf


# --------------------------------------------------------------------------------------------
# Known limits


def test_a_lone_request_on_an_idle_fleet(make, h100, llama_8b, vllm):
    """TTFT is the prompt, the transfer and the first step; TPOT is the step of one sequence."""
    f = make(
        constant(1000.0, 200.0, 1e-3), (Phase.PREFILL, "h100", 1, 1, 1.0), (Phase.DECODE, "h100", 1, 1, 1.0)
    )
    ttft, tpot = predict_fleet(f).summaries()
    r = ReplicaSet.of(llama_8b, BF16, vllm, [(h100, Parallelism())])
    prompt = float(prompt_time(r, 1000.0, 0.0, 8192.0).service[0])
    step = float(decode_step_time(r, 1.0, 1100.0)[0])
    rate = network_rate(f.groups[0].item, vllm)
    transfer = float(
        kv_transfer_time(1000.0, 1000 * kv_bytes_per_token(llama_8b, Dtype.BF16), rate, 32, vllm)
    )
    assert ttft.mean == pytest.approx(prompt + transfer + step, rel=0.01)
    assert ttft.p99 == pytest.approx(ttft.p50, rel=0.01)
    assert tpot.mean == pytest.approx(step, rel=1e-3)
    assert tpot.p50 == tpot.p99 == pytest.approx(step, rel=1e-3)


def test_a_busy_decode_pool_makes_the_first_token_wait_for_the_running_step(make):
    workload = constant(1000.0, 200.0, 20.0)
    groups = ((Phase.PREFILL, "h100", 1, 100, 1.0), (Phase.DECODE, "h100", 1, 1, 1.0))
    busy = predict_fleet(make(workload, *groups)).summaries()
    idle = predict_fleet(make(workload, groups[0], (Phase.DECODE, "h100", 1, 10_000, 1.0))).summaries()
    steps = FIRST_STEPS * busy[1].mean - idle[1].mean
    assert busy[0].mean - idle[0].mean == pytest.approx(steps, rel=0.05)


@pytest.mark.parametrize("routing", list(Routing))
def test_percentiles_grow_with_load(make, workload, routing):
    groups = ((Phase.PREFILL, "h100", 1, 3, 1.0), (Phase.DECODE, "h100", 1, 3, 1.0))
    found = [
        predict_fleet(make(workload, *groups, rate=rate, routing=routing)).summaries()
        for rate in (5.0, 40.0, 70.0, 85.0)
    ]
    for metric in (0, 1):
        for statistic in ("mean", "p50", "p99"):
            values = [getattr(both[metric], statistic) for both in found]
            assert values == sorted(values)


def test_overload_is_infinite(make, workload):
    groups = ((Phase.PREFILL, "h100", 1, 1, 1.0), (Phase.DECODE, "h100", 1, 4, 1.0))
    ttft, tpot = predict_fleet(make(workload, *groups, rate=200.0)).summaries()
    assert math.isinf(ttft.mean)
    assert math.isinf(ttft.p50)
    assert math.isfinite(tpot.mean)
    both = predict_fleet(make(workload, (Phase.COLOCATED, "h100", 1, 1, 1.0), rate=200.0)).summaries()
    assert all(math.isinf(x.mean) for x in both)


def test_a_slower_type_in_the_pool_shows_in_the_tail(make, workload):
    fast = make(workload, (Phase.PREFILL, "h100", 1, 2, 1.0), (Phase.DECODE, "h100", 1, 2, 1.0))
    mixed = make(
        workload,
        (Phase.PREFILL, "h100", 1, 2, 1.0),
        (Phase.DECODE, "h100", 1, 1, 0.6),
        (Phase.DECODE, "a100", 1, 1, 0.4),
    )
    components = predict_fleet(mixed).tpot
    assert [c.share for c in components] == pytest.approx([0.6, 0.4])
    slow = predict_fleet(mixed).summaries()[1]
    assert slow.p99 > 1.3 * predict_fleet(fast).summaries()[1].p99
    assert slow.mean == pytest.approx(sum(c.share * c.mean for c in components))


def test_every_prefill_group_hands_over_to_every_decode_group(make, workload):
    """The TTFT's first step is a mixture over the decode groups."""
    groups = (
        (Phase.PREFILL, "h100", 1, 4, 1.0),
        (Phase.DECODE, "h100", 1, 1, 0.5),
        (Phase.DECODE, "a100", 1, 1, 0.5),
    )
    mixed = predict_fleet(make(workload, *groups)).summaries()[0].mean
    alone = [
        predict_fleet(make(workload, groups[0], (Phase.DECODE, gpu, 1, 2, 1.0))).summaries()[0].mean
        for gpu in ("h100", "a100")
    ]
    assert min(alone) < mixed < max(alone)


def test_model_error_moves_everything_the_same_way(make, workload):
    for groups in (
        ((Phase.PREFILL, "h100", 1, 2, 1.0), (Phase.DECODE, "h100", 1, 2, 1.0)),
        ((Phase.COLOCATED, "h100", 1, 3, 1.0),),
    ):
        low, middle, high = (
            predict_fleet(make(workload, *groups), z).summaries() for z in (-1.28, 0.0, 1.28)
        )
        for metric in (0, 1):
            assert low[metric].p99 < middle[metric].p99 < high[metric].p99


def test_colocated_ttft_has_no_transfer_and_tpot_holds_the_prompts(make, workload):
    together = predict_fleet(make(workload, (Phase.COLOCATED, "h100", 1, 2, 1.0))).summaries()
    apart = predict_fleet(
        make(workload, (Phase.PREFILL, "h100", 1, 2, 1.0), (Phase.DECODE, "h100", 1, 2, 1.0))
    ).summaries()
    assert together[0].p50 < apart[0].p50
    assert together[1].mean > apart[1].mean
    assert together[1].p99 / together[1].p50 > apart[1].p99 / apart[1].p50


# --------------------------------------------------------------------------------------------
# Occupancy and paths


def test_occupancy_by_littles_law(make, workload):
    f = make(workload, (Phase.PREFILL, "h100", 1, 2, 1.0), (Phase.DECODE, "h100", 1, 2, 1.0))
    decode = decode_group_occupancy(f, f.groups[1])
    tpot = predict_fleet(f).summaries()[1].mean
    assert decode.mean_batch == pytest.approx(
        workload.request_rate / 2 * workload.lengths.osl.mean * tpot, rel=0.03
    )
    assert decode.mean_batch < decode.batch_p99 < 2 * decode.mean_batch
    r = ReplicaSet.of(f.service.model, BF16, f.engine, [(f.groups[0].item.gpu, Parallelism())])
    isl = workload.lengths.isl
    own = prompt_time(r, np.array(isl.points)[:, None], 0.0, 8192.0).service[:, 0] @ np.array(isl.weights)
    assert prefill_occupancy(f, f.groups[0]).busy == pytest.approx(workload.request_rate * own / 2, rel=0.01)


def test_occupancy_of_a_colocated_group(make, workload):
    f = make(workload, (Phase.COLOCATED, "h100", 1, 2, 1.0))
    found = colocated_group_occupancy(f, f.groups[0])
    tpot = predict_fleet(f).summaries()[1].mean
    assert found.mean_batch == pytest.approx(10 * workload.lengths.osl.mean * tpot, rel=0.05)
    assert 0 < found.busy < 1
    assert found.batch_p99 > found.mean_batch


def test_a_path_is_as_fast_as_its_narrower_end(make, workload, vllm):
    f = make(workload, (Phase.PREFILL, "h100", 4, 1, 1.0), (Phase.DECODE, "a100", 2, 1, 1.0))
    rates = [network_rate(g.item, vllm) * g.parallelism.tp for g in f.groups]
    assert path_rate(f, *f.groups) == min(rates)
    wide = [dataclasses.replace(g, parallelism=Parallelism(tp=16)) for g in f.groups]
    assert path_rate(f, *wide) == pytest.approx(8 * min(network_rate(g.item, vllm) for g in wide))
