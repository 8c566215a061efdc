"""One configuration at one load: closed and open loops, and refusals."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest

from planner import catalog
from planner.configuration import Configuration, Load, Replicas, default_precision, predict, predict_many
from planner.engines import load_engine
from planner.errors import InfeasibleError, SpecError
from planner.latency import decode_step_time, prompt_time
from planner.operators import ReplicaSet
from planner.specs import Dtype, Parallelism, Precision

BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)


@pytest.fixture
def colocated(llama_8b, vllm, h100):
    return Configuration(
        model=llama_8b,
        precision=BF16,
        engine=vllm,
        colocated=Replicas(count=1, gpu=h100, parallelism=Parallelism()),
    )


@pytest.fixture
def apart(llama_8b, vllm, h100, a100):
    return Configuration(
        model=llama_8b,
        precision=BF16,
        engine=vllm,
        prefill=Replicas(count=1, gpu=h100, parallelism=Parallelism()),
        decode=Replicas(count=2, gpu=a100, parallelism=Parallelism()),
    )


# --------------------------------------------------------------------------------------------
# Closed loop


def test_one_client(colocated, llama_8b, vllm, h100):
    """A prompt, then steps of one sequence; nothing waits and nothing else is in the steps."""
    found = predict(colocated, Load(isl=1000, osl=200, concurrency=1))
    r = ReplicaSet.of(llama_8b, BF16, vllm, [(h100, Parallelism())])
    step = float(decode_step_time(r, 1.0, 1100.0)[0])
    assert found.tpot == pytest.approx(step, rel=0.03)
    alone = float(prompt_time(r, 1000.0, 0.0, 8192.0).service[0])
    assert 0.995 * alone <= found.ttft <= alone + 1.01 * step
    assert found.rate == pytest.approx(1 / (found.ttft + 199 * found.tpot), rel=1e-6)


@pytest.mark.parametrize("which", ["colocated", "apart"])
def test_closed_loop_obeys_littles_law(which, request):
    c = request.getfixturevalue(which)
    for clients in (1, 8, 64, 200):
        found = predict(c, Load(isl=1000, osl=200, concurrency=clients))
        assert found.rate * (found.ttft + 199 * found.tpot) == pytest.approx(clients, rel=1e-3)
        assert found.batch * c.decoding.count <= clients * (1 + 1e-9)
        assert found.ttft_range[0] < found.ttft < found.ttft_range[1]
        assert found.tpot_range[0] < found.tpot < found.tpot_range[1]


@pytest.mark.parametrize("which", ["colocated", "apart"])
def test_more_clients_are_slower_and_serve_more(which, request):
    c = request.getfixturevalue(which)
    found = [predict(c, Load(isl=1000, osl=200, concurrency=n)) for n in (1, 4, 16, 64, 256)]
    for before, after in pairwise(found):
        assert after.tpot >= before.tpot * (1 - 1e-3)
        assert after.rate >= before.rate * (1 - 1e-3)
        assert after.ttft >= before.ttft * (1 - 1e-3)


def test_clients_beyond_the_cache_wait(colocated):
    """https://github.com/ai-dynamo/aiconfigurator/pull/652: they queue, and TPOT stays where it is."""
    slots = predict(colocated, Load(isl=8000, osl=1000, concurrency=1)).max_concurrency
    at, beyond = (predict(colocated, Load(isl=8000, osl=1000, concurrency=n)) for n in (slots, 3 * slots))
    assert beyond.tpot == pytest.approx(at.tpot, rel=1e-6)
    assert beyond.rate == pytest.approx(at.rate, rel=1e-6)
    assert beyond.ttft == pytest.approx(at.ttft + 2 * slots / at.rate, rel=1e-3)
    assert "exceed" in beyond.notes[0]
    assert not at.notes


def test_splitting_removes_the_prompts_from_the_steps(colocated, llama_8b, vllm, h100):
    both = Configuration(
        model=llama_8b,
        precision=BF16,
        engine=vllm,
        prefill=Replicas(count=1, gpu=h100, parallelism=Parallelism()),
        decode=Replicas(count=1, gpu=h100, parallelism=Parallelism()),
    )
    load = Load(isl=4000, osl=200, concurrency=32)
    assert predict(both, load).tpot < predict(colocated, load).tpot


def test_a_busy_loop_waits_no_longer_than_a_stream_of_its_rate(colocated):
    """Prompts that wait share steps; TTFT was 2.3 s near saturation, where a stream of that rate has 0.12."""
    for clients in (16, 64, 128, 256):
        closed = predict(colocated, Load(isl=1000, osl=200, concurrency=clients))
        opened = predict(colocated, Load(isl=1000, osl=200, rate=closed.rate))
        assert closed.ttft == pytest.approx(opened.ttft, rel=0.35)
        assert closed.ttft <= opened.ttft
        assert closed.tpot == pytest.approx(opened.tpot, rel=0.2)


def test_prompts_of_a_lone_client_are_not_in_its_own_steps(colocated, llama_8b, vllm, h100):
    """A long prompt and a short answer: nobody else's prompt holds up the tokens."""
    found = predict(colocated, Load(isl=8000, osl=50, concurrency=1))
    r = ReplicaSet.of(llama_8b, BF16, vllm, [(h100, Parallelism())])
    assert found.tpot == pytest.approx(float(decode_step_time(r, 1.0, 8025.0)[0]), rel=0.03)


def test_no_engine_and_no_error_beats_the_data_sheet(colocated, h100):
    """15 GB of weights are read in every step, however fast an engine's kernels are said to be."""
    fast = dataclasses.replace(colocated.engine, decode_scale=0.2, prefill_scale=0.2, log_sd=0.3)
    found = predict(dataclasses.replace(colocated, engine=fast), Load(isl=1000, osl=200, concurrency=4))
    peak = 2 * 7.5e9 / h100.hbm_bandwidth
    assert peak < found.tpot_range[0] <= found.tpot < found.tpot_range[1]
    assert found.ttft_range[0] > 2 * 7e9 * 1000 / h100.peak_flops[Dtype.BF16]


# --------------------------------------------------------------------------------------------
# Many at once


@pytest.mark.parametrize("which", ["colocated", "apart"])
def test_many_points_are_each_as_by_itself(which, request, h100):
    first = request.getfixturevalue(which)
    wide = Replicas(count=2, gpu=h100, parallelism=Parallelism(tp=2))
    changes = {"colocated": wide} if which == "colocated" else {"decode": wide}
    configurations = [first, dataclasses.replace(first, **changes)]
    loads = [
        (0, 1000.0, 200.0, 1.0),
        (1, 3000.0, 50.0, 64.0),
        (0, 200.0, 900.0, 300.0),
        (1, 9000.0, 400.0, 8.0),
    ]
    index, *arrays = (np.array(column) for column in zip(*loads, strict=True))
    found = predict_many(configurations, index, *arrays)
    for k, (number, isl, osl, clients) in enumerate(loads):
        alone = predict(configurations[number], Load(isl=isl, osl=osl, concurrency=clients))
        assert found.ttft[k] == pytest.approx(alone.ttft, rel=1e-3)
        assert found.tpot[k] == pytest.approx(alone.tpot, rel=1e-3)
        assert found.tpot_range[:, k] == pytest.approx(alone.tpot_range, rel=1e-3)
        assert found.ttft_range[:, k] == pytest.approx(alone.ttft_range, rel=1e-3)
        assert found.rate[k] == pytest.approx(alone.rate, rel=1e-3)
        assert found.slots[k] == alone.max_concurrency
        assert found.log_sd[k] > 0


def test_points_that_do_not_fit_are_nan(colocated, llama_8b):
    room = llama_8b.max_context
    found = predict_many(
        [colocated], [0, 0, 0], np.array([100.0, room, 100.0]), np.full(3, 50.0), np.full(3, 4.0)
    )
    assert np.isfinite(found.tpot).tolist() == [True, False, True]
    assert np.isnan(found.ttft_range[:, 1]).all()
    assert found.tpot[0] == found.tpot[2]


def test_chunks_make_no_difference(colocated, monkeypatch):
    rng = np.random.default_rng(3)
    loads = (rng.uniform(50, 4000, 40), rng.uniform(2, 900, 40), rng.uniform(1, 300, 40))
    whole = predict_many([colocated], np.zeros(40, dtype=int), *loads)
    monkeypatch.setattr("planner.configuration.CHUNK", 7)
    parts = predict_many([colocated], np.zeros(40, dtype=int), *loads)
    np.testing.assert_allclose(parts.ttft, whole.ttft, rtol=2e-3)
    np.testing.assert_allclose(parts.tpot, whole.tpot, rtol=2e-3)


def test_points_share_model_engine_and_mode(colocated, apart, llama_70b):
    one = np.ones(2)
    for other in (apart, dataclasses.replace(colocated, model=llama_70b)):
        with pytest.raises(SpecError, match="one model, engine and draft, and one mode"):
            predict_many([colocated, other], [0, 1], one, one, one)


# --------------------------------------------------------------------------------------------
# Open loop


@pytest.mark.parametrize("which", ["colocated", "apart"])
def test_open_loop_grows_with_the_rate_until_it_has_no_steady_state(which, request):
    c = request.getfixturevalue(which)
    found = [predict(c, Load(isl=1000, osl=200, rate=rate)) for rate in (0.1, 5, 10, 15)]
    for before, after in pairwise(found):
        assert after.tpot >= before.tpot
        assert after.ttft >= before.ttft
        assert after.batch > before.batch
    assert found[-1].rate == 15
    with pytest.raises(InfeasibleError, match="no steady state"):
        predict(c, Load(isl=1000, osl=200, rate=500))


def test_an_idle_open_loop_equals_one_client(colocated):
    closed = predict(colocated, Load(isl=1000, osl=200, concurrency=1))
    opened = predict(colocated, Load(isl=1000, osl=200, rate=1e-4))
    assert opened.tpot == pytest.approx(closed.tpot, rel=0.03)
    assert opened.ttft == pytest.approx(closed.ttft, rel=0.2)  # it may meet a step that runs


def test_the_range_may_reach_beyond_the_steady_state(colocated):
    """A rate that the expected times carry and the pessimistic ones do not."""
    rate = 10.0
    while math.isfinite(predict(colocated, Load(isl=1000, osl=200, rate=rate)).ttft_range[1]):
        rate *= 1.1
    found = predict(colocated, Load(isl=1000, osl=200, rate=rate))
    assert math.isfinite(found.ttft)


# --------------------------------------------------------------------------------------------
# What comes with it


def test_memory_and_breakdowns(colocated):
    found = predict(colocated, Load(isl=1000, osl=200, concurrency=32))
    assert found.kv_bytes_per_token == 131072
    assert found.max_concurrency == found.kv_tokens // 1200
    assert found.memory.fits
    assert {"head", "host", "decode attention"} <= {line.name for line in found.decode}
    assert {"head", "host", "prefill attention"} <= {line.name for line in found.prefill}


def test_estimated_profiles_are_pointed_out(llama_8b, vllm):

    c = Configuration(
        model=llama_8b,
        precision=BF16,
        engine=vllm,
        colocated=Replicas(count=1, gpu=catalog.load_gpu("mi300x"), parallelism=Parallelism()),
    )
    assert any("estimated" in note for note in predict(c, Load(isl=100, osl=100, concurrency=1)).notes)


def test_default_precision(llama_8b):
    assert default_precision(llama_8b) == BF16
    assert default_precision(llama_8b, "fp8", "fp8") == Precision(weights=Dtype.FP8, kv_cache=Dtype.FP8)
    with pytest.raises(SpecError, match=r"unknown precision 'fp7'; known: .*fp8"):
        default_precision(llama_8b, "fp7")


# --------------------------------------------------------------------------------------------
# Refusals


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({"isl": 10, "osl": 10}, "either a concurrency or a rate"),
        ({"isl": 10, "osl": 10, "rate": 1, "concurrency": 1}, "either a concurrency or a rate"),
        ({"isl": 0, "osl": 10, "rate": 1}, "isl must be a finite number > 0"),
        ({"isl": 10, "osl": math.inf, "rate": 1}, "osl must be a finite number > 0"),
        ({"isl": 10, "osl": 10, "rate": -1}, "rate must be a finite number > 0"),
        ({"isl": 10, "osl": 10, "concurrency": math.nan}, "concurrency must be a finite number > 0"),
    ],
)
def test_loads_that_are_none(load, message):
    with pytest.raises(SpecError, match=message):
        Load(**load)


def test_half_a_configuration_is_refused(llama_8b, vllm, h100):
    one = Replicas(count=1, gpu=h100, parallelism=Parallelism())
    for pools in ({}, {"prefill": one}, {"colocated": one, "prefill": one, "decode": one}):
        with pytest.raises(SpecError, match="colocated, or it has a prefill and a decode pool"):
            Configuration(model=llama_8b, precision=BF16, engine=vllm, **pools)


def test_illegal_tp_names_the_nearest_legal_one(llama_8b, vllm, h100):
    three = Replicas(count=1, gpu=h100, parallelism=Parallelism(tp=3))
    with pytest.raises(SpecError, match=r"TP 3 does not divide.*nearest legal TP is 2"):
        Configuration(model=llama_8b, precision=BF16, engine=vllm, colocated=three)


def test_illegal_pairs_are_refused(llama_8b, vllm, h100):
    wide, narrow = (Replicas(count=1, gpu=h100, parallelism=Parallelism(tp=tp)) for tp in (8, 4))
    with pytest.raises(SpecError, match="prefill TP 8 exceeds decode TP 4"):
        Configuration(model=llama_8b, precision=BF16, engine=vllm, prefill=wide, decode=narrow)
    Configuration(model=llama_8b, precision=BF16, engine=vllm, prefill=narrow, decode=wide)


def test_a_world_size_without_all_reduce_is_refused(llama_8b, vllm, h100):
    wide = dataclasses.replace(h100, node_size=16)
    sixteen = Replicas(count=1, gpu=wide, parallelism=Parallelism(tp=16))
    with pytest.raises(SpecError, match="no all-reduce over 16 GPUs"):
        Configuration(model=llama_8b, precision=BF16, engine=vllm, colocated=sixteen)


def test_a_replica_over_two_nodes_end_to_end(llama_8b, vllm, h100):
    """The same engine and load: stages on two nodes hand over through NICs, ranks reduce through them."""

    def found(**layout):
        pool = Replicas(count=1, gpu=h100, parallelism=Parallelism(**layout))
        c = Configuration(model=llama_8b, precision=BF16, engine=vllm, colocated=pool)
        return predict(c, Load(isl=1000, osl=200, concurrency=8))

    one, stages, ranks = found(tp=8), found(tp=8, pp=2), found(tp=16)
    note = "2 nodes; what crosses them is estimated, over RDMA at 400 Gbit/s per GPU"
    assert not any("nodes" in text for text in one.notes)
    assert f"TP8 PP2 on h100-sxm: {note}" in stages.notes
    assert f"TP16 on h100-sxm: {note}" in ranks.notes
    assert ranks.tpot > one.tpot  # two round trips between nodes in each of 64 sums
    reduced = {name: sum(x.time for x in p.decode if x.name == "all-reduce")
               for name, p in (("one", one), ("ranks", ranks))}  # fmt: skip
    assert reduced["ranks"] - reduced["one"] > 64 * 2 * 11e-6 * vllm.decode_scale
    assert stages.kv_tokens > 1.9 * one.kv_tokens
    assert math.log(ranks.tpot_range[1] / ranks.tpot_range[0]) > math.log(
        one.tpot_range[1] / one.tpot_range[0]
    )


def test_ranks_that_nodes_cannot_share_evenly_are_refused(vllm, h100):
    model = catalog.load_model("openai/gpt-oss-120b")
    fives = dataclasses.replace(h100, node_size=5, scale_up_domain=5)
    pool = Replicas(count=1, gpu=fives, parallelism=Parallelism(dp=18))
    with pytest.raises(SpecError, match="18 GPUs of 'h100-sxm' cannot be spread evenly over 4 nodes of 5"):
        Configuration(model=model, precision=Precision.of(model), engine=vllm, colocated=pool)


def test_wider_links_and_wider_nodes_are_said():
    """GB200: 16 of 72 GPUs of one NVLink domain; A10G: 8 in a node that usually has 4."""
    model, vllm = catalog.load_model("meta-llama/Llama-3.1-8B"), load_engine("vllm")

    def notes(gpu: str, tp: int):
        pool = Replicas(count=1, gpu=catalog.load_gpu(gpu), parallelism=Parallelism(tp=tp))
        c = Configuration(model=model, precision=BF16, engine=vllm, colocated=pool)
        return predict(c, Load(isl=1000, osl=200, concurrency=8)).notes

    assert "TP16 on gb200: within one nvlink domain of 72 GPUs" in notes("gb200", 16)
    assert "TP8 on a10g: taken as within one node, which usually has 4 GPUs" in notes("a10g", 8)
    assert not any("gb200:" in note for note in notes("gb200", 4))


def test_attention_ranks_of_grouped_query_models(vllm, h100):
    """gpt-oss on 4 ranks: each holds all of attention, a quarter of the experts, and its own sequences."""
    model = catalog.load_model("openai/gpt-oss-120b")

    def held(**layout):
        pool = Replicas(count=1, gpu=h100, parallelism=Parallelism(**layout))
        c = Configuration(model=model, precision=Precision.of(model), engine=vllm, colocated=pool)
        return predict(c, Load(isl=1000, osl=1000, concurrency=64))

    ranks, cut = held(dp=4, ep=4), held(tp=4, ep=4)
    assert ranks.memory.weights - cut.memory.weights > 0.7 * 36 * 2 * (2 * 4096 + 2 * 512) * 2880 * 3 / 4
    assert ranks.kv_tokens == pytest.approx(4 * ranks.memory.kv_cache / 36_864, abs=4 * 16)
    assert cut.kv_tokens == pytest.approx(4 * cut.memory.kv_cache / 36_864, abs=4 * 16)
    assert ranks.kv_tokens % 4 == 0


def test_what_does_not_fit_is_refused_with_the_smallest_tp(llama_70b, vllm, h100):
    c = Configuration(
        model=llama_70b,
        precision=BF16,
        engine=vllm,
        colocated=Replicas(count=1, gpu=h100, parallelism=Parallelism()),
    )
    with pytest.raises(InfeasibleError, match=r"the smallest layout that fits is TP[24]"):
        predict(c, Load(isl=1000, osl=100, concurrency=1))


def test_one_sequence_too_long_for_the_cache_is_refused(llama_8b, vllm):

    c = Configuration(
        model=llama_8b,
        precision=BF16,
        engine=vllm,
        colocated=Replicas(count=1, gpu=catalog.load_gpu("l4"), parallelism=Parallelism()),
    )
    with pytest.raises(InfeasibleError, match=r"tokens of KV cache for one sequence of 101,000"):
        predict(c, Load(isl=100_000, osl=1000, concurrency=1))
