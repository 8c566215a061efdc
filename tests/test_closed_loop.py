"""Closed loops on tables of kernels, checked by hand and against kernels computed where they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from planner import catalog
from planner.closed_loop import (
    FRACTIONS,
    STEADY,
    HostConstants,
    Loops,
    LoopState,
    LoopTable,
    Protocol,
    joined,
    run,
    solved,
)
from planner.engines import load_engine
from planner.latency import decode_kernels_time, decode_step_time, draft_time, loop_kernels, prompt_time
from planner.operators import ReplicaSet, attainable, beats_peaks
from planner.specs import Dtype, Parallelism, Precision, Speculation
from planner.units import MILLI

BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
H100 = catalog.load_gpu("h100-sxm")
SMALL, LARGE = catalog.load_model("meta-llama/Llama-3.1-8B"), catalog.load_model("meta-llama/Llama-3.1-70B")
BARE = replace(
    load_engine("vllm"),
    step_overhead=0.0, sequence_overhead=0.0, decode_scale=1.0, prefill_scale=1.0,
    model_factors=(), log_sd=0.0, family_log_sd=0.0,
)  # fmt: skip
CLIENTS = (1.0, 2.0, 7.0, 32.0, 100.0, 256.0)
HOST = HostConstants(step=1 * MILLI, sequence=0.01 * MILLI)


def replicas(
    layouts: Sequence[Parallelism] = (Parallelism(),),
    model=SMALL,
    speculation: Speculation | None = None,
    engine=BARE,
) -> ReplicaSet:
    return ReplicaSet.of(model, BF16, engine, [(H100, p) for p in layouts], speculation=speculation)


def loops(clients: Sequence[float] = CLIENTS, apart: bool = False, **changes: Any) -> Loops:
    ones = np.ones(len(clients))
    values: dict[str, Any] = {
        "isl": 1000.0, "osl": 200.0, "slots": 1e6, "replicas": 1.0, "prompt_replicas": 1.0,
        "token_budget": 8192.0, "transfer": 0.0,
    } | changes  # fmt: skip
    arrays = {name: value * ones for name, value in values.items() if name != "first_step"}
    return Loops(
        clients=np.array(clients),
        disaggregated=np.full(len(clients), apart),
        first_step=np.full(len(clients), changes.get("first_step", apart)),
        **arrays,
    )


def made(
    decode: Sequence[float], prompt: Sequence[float], of: Loops, lanes: float = 1.0, **changes: Any
) -> LoopTable:
    """A table whose kernels are given at no and at the full batch, linear in between."""
    ones = np.ones(of.clients.size)
    return LoopTable(
        loops=of,
        fractions=np.array([[0.0], [1.0]]),
        decode=np.outer(decode, ones),
        prompt=np.outer(prompt, ones),
        prompt_steps=ones,
        lanes=lanes * ones,
        prompt_lanes=lanes * ones,
        stages=ones,
        prompt_stages=ones,
        **changes,
    )


def state(of: Loops, r: ReplicaSet, host: HostConstants = HOST, protocol: Protocol = STEADY, **more: Any):
    """Steady states, each loop on the only replica of `r`."""
    whole = r.part(np.zeros(of.clients.size, dtype=np.intp))
    return solved(whole, whole, of, host, protocol, **more)[1]


def cycle(found: LoopState, osl: float = 200.0):
    return found.ttft + (osl - 1) * found.tpot


# --------------------------------------------------------------------------------------------
# By hand


def test_one_client_has_its_prompt_and_its_steps():
    """30 ms of prompt and steps of 10 + 1 ms: nothing waits, and nobody else's prompt is in its steps."""
    found = run(made((0.010, 0.010), (0.020, 0.020), loops([1.0])), HOST, STEADY)
    assert found.tpot == pytest.approx(0.010 + 0.001 + 1e-5 * found.batch)
    service = 0.020 + 0.010 + 0.001 + 1e-5 * (1 + found.batch)
    assert found.ttft == pytest.approx(service)
    assert found.rate == pytest.approx(1 / (service + 199 * found.tpot))


def test_of_several_clients_each_meets_the_prompts_of_the_others():
    table = made((0.010, 0.010), (0.020, 0.020), loops([4.0]))
    found = run(table, HOST, Protocol(first_wave=0.0))
    step = 0.011 + 1e-5 * found.batch
    assert found.tpot == pytest.approx(step + 3 / 4 * found.batch * 0.020 / 200)
    assert found.ttft == pytest.approx(0.020 + step + 1e-5 + 0.5 * found.tpot)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("protocol", [STEADY, Protocol(), Protocol(wave=True)], ids=["steady", "wave", "one"])
def test_littles_law(apart, protocol):
    """All clients are under way; of the admitted ones those that decode stay for their tokens."""
    of = loops(apart=apart)
    found = run(made((0.004, 0.020), (0.012, 0.015), of), HOST, protocol)
    np.testing.assert_allclose(found.rate * cycle(found), of.clients, rtol=1e-9)
    np.testing.assert_allclose(found.batch, found.rate * 200 * found.tpot, rtol=1e-4)
    assert np.all(found.batch <= of.clients)


def test_no_first_wave_in_a_loop_that_has_run_for_long():
    """Where nothing waits for a server, a hundred clients see the TTFT of one and the rest of a step."""
    of = loops([100.0], prompt_replicas=1e6, apart=True)
    table = made((0.010, 0.010), (0.020, 0.020), of)
    steady, wave = (run(table, HOST, p) for p in (STEADY, Protocol(first_wave=0.05, queue=0.0)))
    service = 0.020 + 0.001 + 1e-5
    step = 0.010 + 0.001 + 1e-5 * steady.batch
    assert steady.ttft == pytest.approx(service + 0.5 * step + step, rel=1e-4)  # half of one, and its own
    few = run(made((0.010, 0.010), (0.020, 0.020), loops([100.0])), HOST, Protocol(first_wave=0.05))
    none = run(made((0.010, 0.010), (0.020, 0.020), loops([100.0])), HOST, Protocol(first_wave=0.0))
    assert few.ttft - none.ttft == pytest.approx(0.05 * 99 * 0.020, rel=0.02)
    assert wave.ttft == pytest.approx(steady.ttft, rel=1e-3)  # a replica each: nobody is ahead


def test_prompts_are_served_no_faster_than_they_are_computed():
    """One prefill replica, prompts of 50 ms: 20 a second at most, however many clients there are."""
    of = loops([1.0, 10.0, 100.0, 1000.0], apart=True, replicas=100.0)
    found = run(made((0.005, 0.005), (0.050, 0.050), of), HostConstants(), STEADY)
    assert np.all(found.rate <= 20 * (1 + 1e-9))
    assert found.rate[-1] == pytest.approx(20, rel=0.01)
    assert found.ttft[-1] == pytest.approx(1000 / 20 - 199 * 0.005, rel=0.01)
    two = loops([1000.0], True, replicas=100.0, prompt_replicas=2.0)
    half = run(made((0.005, 0.005), (0.050, 0.050), two), HostConstants(), STEADY)
    assert half.rate == pytest.approx(40, rel=0.01)


def test_the_wait_is_that_of_a_queue_of_random_prompts():
    """M/D/1: rho S / (2 (1 - rho)), as the other N - 1 of N clients make it."""
    of = loops([64.0], apart=True, first_step=False)
    found = run(made((0.010, 0.010), (0.020, 0.020), of), HostConstants(), STEADY)
    load = found.rate * 0.020
    assert 0.3 < load < 0.95
    wait = 63 / 64 * load * 0.020 / (2 * (1 - load))
    assert found.ttft == pytest.approx(0.020 + wait, rel=1e-6)


def test_first_tokens_of_the_prefill_side_cost_no_decode_step():
    table = made((0.010, 0.010), (0.020, 0.020), loops([8.0], True, replicas=8.0, transfer=0.003))
    handed = replace(table, loops=loops([8.0], True, replicas=8.0, transfer=0.003, first_step=False))
    late, early = (run(t, HostConstants(), STEADY) for t in (table, handed))
    assert late.ttft - early.ttft == pytest.approx(0.010, rel=0.2)
    alone = run(replace(handed, loops=loops([1.0], True, transfer=0.003, first_step=False)),
                HostConstants(), STEADY)  # fmt: skip
    assert alone.ttft == pytest.approx(0.023)
    assert alone.batch == pytest.approx(199 * 0.010 / (0.023 + 199 * 0.010), rel=1e-5)


def test_clients_beyond_the_slots_wait_for_one():
    of = loops([50.0, 150.0], slots=50.0)
    found = run(made((0.010, 0.010), (0.020, 0.020), of), HOST, STEADY)
    assert found.tpot[1] == pytest.approx(found.tpot[0])
    assert found.rate[1] == pytest.approx(found.rate[0])
    assert found.ttft[1] - found.ttft[0] == pytest.approx(100 / found.rate[0])


def test_stages_cost_host_time_each_and_prompts_hold_up_one_lane():
    of = loops([64.0])
    one = run(made((0.010, 0.010), (0.020, 0.020), of), HOST, STEADY)
    table = made((0.010, 0.010), (0.020, 0.020), of, lanes=4.0)
    four = run(replace(table, stages=4 * np.ones(1), prompt_stages=4 * np.ones(1)), HOST, STEADY)
    step = 0.010 + 4 * 0.001 + 1e-5 * four.batch
    assert four.tpot == pytest.approx(step + 63 / 64 * four.batch * 0.020 / (4 * 200), rel=1e-6)
    assert four.ttft < one.ttft + 4 * 0.004


def test_a_step_with_a_draft_emits_several_tokens():
    """A step of 11 ms and 2 ms of drafting emits 2.5 tokens; drafting may be a share of a step instead."""
    table = made((0.010, 0.010), (0.020, 0.020), loops([1.0]), draft_time=0.002, emitted=2.5, rows=4.0)
    found = run(table, replace(HOST, sequence=0.0), STEADY)
    assert found.tpot == pytest.approx(0.013 / 2.5)
    slow = run(table, replace(HOST, sequence=0.0).times(2.0), STEADY)
    assert slow.tpot == pytest.approx((2 * 0.011 + 0.002) / 2.5)  # a given time is no one's error
    shared = replace(table, draft_time=0.0, draft_share=0.5, draft=np.full((2, 1), 0.005))
    assert run(shared, replace(HOST, sequence=0.0), STEADY).tpot == pytest.approx(1.5 * 0.011 / 2.5)


def test_no_multiplier_beats_the_bound():
    table = made((0.010, 0.010), (0.020, 0.020), loops([4.0]))
    held = replace(table, decode_bound=np.full((2, 1), 0.008), prompt_bound=np.full((2, 1), 0.015))
    found = run(held, HostConstants(decode_scale=0.1, prefill_scale=0.1), STEADY)
    assert found.tpot >= 0.008
    assert found.ttft >= 0.015
    free = run(held, HostConstants(), STEADY)
    assert free.tpot == pytest.approx(run(table, HostConstants(), STEADY).tpot)


def test_all_slower_is_all_slower():
    """Times that all grow by a factor keep shares, batches, and the form of the answer."""
    table = LoopTable.of(replicas(), replicas(), loops())
    plain, slow = run(table, HOST, STEADY), run(table, HOST.times(1.3), STEADY)
    np.testing.assert_allclose(slow.ttft, 1.3 * plain.ttft, rtol=1e-4)
    np.testing.assert_allclose(slow.tpot, 1.3 * plain.tpot, rtol=1e-4)
    np.testing.assert_allclose(slow.batch, plain.batch, rtol=1e-4)


# --------------------------------------------------------------------------------------------
# Kernels


@pytest.mark.parametrize("layout", [Parallelism(), Parallelism(tp=4), Parallelism(tp=2, pp=2)], ids=str)
@pytest.mark.parametrize("isl", [300.0, 5000.0, 20_000.0])
def test_kernels_are_those_of_steps_and_prompts(layout, isl):
    r = replicas([layout], LARGE if layout.tp > 1 else SMALL)
    batch, context, budget = 40.0, 1500.0, 2048.0
    found = loop_kernels(r, r, batch, context, isl, budget)
    assert found.decode == pytest.approx(decode_kernels_time(r, batch, context), rel=1e-12)
    time = prompt_time(r, isl, 0.0, budget, decode_batch=batch, context=context)
    assert found.prompt == pytest.approx(time.stolen, rel=1e-9)
    assert found.steps == time.steps
    alone = loop_kernels(r, replicas([layout], r.model), batch, context, isl, budget)
    assert alone.prompt == pytest.approx(prompt_time(r, isl, 0.0, budget).service, rel=1e-9)


def test_kernels_with_a_draft():
    draft = Speculation(draft_tokens=3, accepted_tokens=2.4, draft_share=0.1)
    r = replicas([Parallelism(tp=4)], LARGE, draft)
    found = loop_kernels(r, r, 40.0, 1500.0, 1000.0, 8192.0)
    step = found.decode + 0.1 * found.plain
    assert step == pytest.approx(decode_step_time(r, 40.0, 1500.0), rel=1e-12)
    assert 0.1 * found.plain == pytest.approx(draft_time(r, 40.0, 1500.0), rel=1e-12)


@pytest.mark.parametrize(
    ("sizes", "off"), [(tuple(range(1, 513)), 0.01), (BARE.graph_batch_sizes, 0.03)], ids=["all", "padded"]
)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("osl", [30.0, 200.0, 2000.0])
@pytest.mark.parametrize("isl", [200.0, 3000.0, 12_000.0])
def test_a_table_is_as_good_as_kernels_where_they_are_needed(isl, osl, apart, sizes, off):
    """Within 1 %, and within the height of the steps between captured sizes where batches are padded."""
    of = loops(apart=apart, isl=isl, osl=osl)
    engine, all_of_one = replace(BARE, graph_batch_sizes=sizes), np.zeros(len(CLIENTS), dtype=np.intp)
    r = replicas(engine=engine).part(all_of_one)
    p = replicas([Parallelism(tp=2)], engine=engine).part(all_of_one) if apart else r
    coarse = run(LoopTable.of(r, p, of), HOST, STEADY)
    fine = solved(r, p, of, HOST)[1]
    dense = run(LoopTable.of(r, p, of, np.linspace(0.01, 1.0, 100)[:, None]), HOST, STEADY)
    within = dense.share > 1.2 * FRACTIONS[0]  # below, a table of constants has no other kernels
    for name in ("ttft", "tpot", "rate"):
        np.testing.assert_allclose(getattr(fine, name), getattr(dense, name), rtol=off)
        np.testing.assert_allclose(getattr(coarse, name)[within], getattr(dense, name)[within], rtol=off)


def test_more_clients_are_slower_and_serve_more():
    clients = np.geomspace(1, 512, 28).round()
    found = state(loops(clients), replicas())
    for name in ("tpot", "ttft", "rate"):
        for before, after in pairwise(getattr(found, name)):
            assert after >= before * (1 - 2e-3)


def test_loops_of_several_tables_and_parts_of_them():
    one, two = loops([1.0, 8.0]), loops([32.0], isl=3000.0)
    tables = [LoopTable.of(replicas(), replicas(), of) for of in (one, two)]
    whole = joined(tables)
    found = run(whole, HOST, STEADY)
    np.testing.assert_allclose(found.tpot[:2], run(tables[0], HOST, STEADY).tpot, rtol=1e-5)
    np.testing.assert_allclose(found.tpot[2:], run(tables[1], HOST, STEADY).tpot, rtol=1e-5)
    part = run(whole.part(np.array([2, 0])), HOST, STEADY)
    np.testing.assert_allclose(part.ttft, found.ttft[[2, 0]], rtol=1e-5)
    assert whole.fractions.shape == (len(FRACTIONS), 1)


def test_replicas_by_number():
    both = replicas([Parallelism(), Parallelism(tp=2)])
    found = both.part(np.array([1, 0, 1]))
    assert found.tp.tolist() == [2.0, 1.0, 2.0]
    np.testing.assert_array_equal(
        decode_kernels_time(found, 16.0, 1000.0), np.take(decode_kernels_time(both, 16.0, 1000.0), [1, 0, 1])
    )


# --------------------------------------------------------------------------------------------
# Peaks


def test_bounds_are_the_work_at_peak_rates():
    """Reading the weights alone takes 16 GB / 3.35 TB/s."""
    table = LoopTable.of(replicas(), replicas(), loops([1.0]), bounded=True)
    assert table.decode_bound is not None
    weights = 2 * 7.5e9 / H100.hbm_bandwidth
    assert weights < table.decode_bound[-1, 0] < 1.1 * weights
    assert np.all(table.decode_bound <= table.decode)
    assert table.prompt_bound is not None
    flop = 2 * 7.0e9 * 1000
    assert table.prompt_bound[-1, 0] > flop / H100.peak_flops[Dtype.BF16] - weights
    assert np.all(table.prompt_bound <= table.prompt)


@pytest.mark.parametrize("scale", [0.9, 0.6, 0.3])
def test_a_fast_engine_is_held_to_peaks(scale):
    """Held step by step, a loop is no faster than at peaks, and close to operators that are each held."""
    host = replace(HOST, decode_scale=scale, prefill_scale=scale)
    of, r = loops([1.0, 16.0, 128.0]), replicas()
    found, free = state(of, r, host, bounded=True), state(of, r, host)
    assert np.all(found.tpot >= free.tpot * (1 - 1e-6))
    slowest = state(of, attainable(r, scale), host)
    assert np.all(found.tpot <= slowest.tpot * (1 + 1e-3))
    peak = 2 * 7.5e9 / H100.hbm_bandwidth
    assert np.all(found.tpot >= peak)
    assert beats_peaks(r, 0.3).all()
    assert not beats_peaks(r, 1.0).any()
