"""Speculative decoding by numbers that are given: steps, plans, simulation and files agree on them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_clusters import cluster_of_groups, group, linear_tables, requests_of
from simulator_clusters import simulate as simulated

from planner import catalog, compare, explain, solve
from planner.configuration import Configuration, Load, Replicas, predict
from planner.documents.fleet import fleet_from_text
from planner.documents.plan import dump_plan, plan_from_text
from planner.documents.scenario import scenario_from_text
from planner.engines import load_engine
from planner.errors import SpecError
from planner.evaluation import simulate
from planner.fleet import Deployed, Fleet
from planner.latency import decode_breakdown, decode_kernels_time, decode_step_time, draft_time, prompt_time
from planner.memory import memory_budgets, tightest
from planner.operators import ReplicaSet
from planner.physics import needed
from planner.prediction import predict_fleet
from planner.simulator.build import Setup, cluster_of, holdings
from planner.simulator.cluster import run_cluster
from planner.simulator.run import run_fleet, simulate_fleet
from planner.simulator.source import RequestSource
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
    Speculation,
    Workload,
)
from planner.standing import standing_fleet, standing_plan
from planner.traffic import Traffic
from planner.units import GIGA
from planner.workflow import SolveOptions

ENGINE = load_engine("vllm")
H100 = catalog.load_gpu("h100-sxm")
BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
LARGE = catalog.load_model("meta-llama/Llama-3.1-70B")
SMALL = catalog.load_model("meta-llama/Llama-3.1-8B")
TP4 = Parallelism(tp=4)
KINDS = {
    "dense": ("meta-llama/Llama-3.1-70B", TP4),
    "pipeline": ("meta-llama/Llama-3.1-8B", Parallelism(tp=2, pp=2)),
    "MoE": ("Qwen/Qwen3-30B-A3B", Parallelism()),
    "latent": ("deepseek-ai/DeepSeek-V3", Parallelism(tp=8, ep=8)),
    "attention ranks": ("deepseek-ai/DeepSeek-V3", Parallelism(dp=8, ep=8)),
    "indexer": ("deepseek-ai/DeepSeek-V3.2", Parallelism(tp=8, ep=8)),
    "windows": ("openai/gpt-oss-120b", TP4),
    "states": ("Qwen/Qwen3-Next-80B-A3B-Instruct", TP4),
}
BATCHES = np.array([1.0, 2.0, 5.0, 16.0, 33.0, 64.0, 128.0, 200.0, 256.0, 512.0, 1000.0])[:, None]


def draft(k: int = 3, a: float = 2.4, share: float | None = 0.08, **more: Any) -> Speculation:
    return Speculation(draft_tokens=k, accepted_tokens=a, draft_share=share, **more)


def replicas(
    model=LARGE, layout: Parallelism = TP4, speculation: Speculation | None = None, z: float = 0.0
) -> ReplicaSet:
    return ReplicaSet.of(model, BF16, ENGINE, [(H100, layout)], z, speculation)


def step(r: ReplicaSet, batch: np.ndarray | float = 1.0, context: float = 1000.0) -> np.ndarray:
    return decode_step_time(r, batch, context)


# --------------------------------------------------------------------------------------------
# What is given


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"draft_tokens": 0}, "draft_tokens must be >= 1, got 0"),
        ({"accepted_tokens": 4.1}, "accepted_tokens must be 1 to draft_tokens + 1 = 4, got 4.1"),
        ({"accepted_tokens": 0.9}, "accepted_tokens must be 1 to draft_tokens + 1 = 4, got 0.9"),
        ({"accepted_tokens": float("nan")}, "accepted_tokens must be"),
        ({"draft_share": -0.1}, "draft_cost must be a finite number >= 0, got -0.1"),
        ({"draft_share": None}, "give either draft_cost or draft_ms, neither is given"),
        ({"draft_time": 0.001}, "give either draft_cost or draft_ms, not both"),
        ({"draft_share": None, "draft_time": float("inf")}, "draft_ms must be a finite number"),
        ({"draft_weights": -1.0}, "draft_weights_gb must be"),
    ],
)
def test_numbers_that_make_no_sense(changes, said):
    given_numbers = {"draft_tokens": 3, "accepted_tokens": 2.4, "draft_share": 0.08} | changes
    with pytest.raises(SpecError) as refused:
        Speculation(**given_numbers)
    assert said in str(refused.value)


# --------------------------------------------------------------------------------------------
# Steps


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 4])
def test_a_draft_of_which_nothing_is_accepted_never_pays(kind, k):
    """Not even for nothing: the step verifies more tokens, and emits one."""
    name, layout = KINDS[kind]
    model = catalog.load_model(name)
    plain, useless = (replicas(model, layout, s) for s in (None, draft(k, 1.0, 0.0)))
    assert np.all(step(useless, BATCHES) >= step(plain, BATCHES) * (1 - 1e-12))
    lengths = np.array([100.0, 1000.0, 9000.0])[:, None]
    beside = {"decode_batch": 32.0, "context": 1500.0}
    slow, fast = (prompt_time(r, lengths, 0.0, 2048.0, **beside) for r in (useless, plain))
    # Beside decodes, what a pure decode step has too runs at its scale; where that is the smaller one, a
    # decode step that gets longer takes this much off.
    less = max(plain.engine.prefill_scale - plain.engine.decode_scale, 0.0) * fast.steps
    longer = less * (decode_kernels_time(useless, 32.0, 1500.0) - decode_kernels_time(plain, 32.0, 1500.0))
    assert np.all(slow.service + longer >= fast.service * (1 - 1e-12))


@pytest.mark.parametrize("kind", ["dense", "pipeline", "windows"])
def test_a_lone_sequence_gains_nearly_what_is_accepted(kind):
    """Weights are read once, whatever the number of tokens that they meet."""
    name, layout = KINDS[kind]
    model = catalog.load_model(name)
    plain, drafted = (float(step(replicas(model, layout, s))[0]) for s in (None, draft(3, 2.4, 0.0)))
    experts = 4.0 if kind == "windows" else 1.0  # more tokens meet more experts
    assert plain <= drafted <= plain * (1.06 if experts == 1.0 else experts)


def test_a_large_batch_loses():
    """Where arithmetic bounds a step, verifying costs as much as decoding: TPOT gets worse."""
    plain, drafted = replicas(SMALL, Parallelism()), replicas(SMALL, Parallelism(), draft(4, 2.0, 0.0))
    gain = (step(plain, BATCHES) / step(drafted, BATCHES) * 2.0).ravel()
    assert gain[0] > 1.8
    assert gain[-1] < 1.0
    assert gain[BATCHES.ravel() == 512.0] < gain[BATCHES.ravel() == 64.0] < gain[0]


def test_drafting_is_a_share_of_a_plain_step_or_a_time():
    plain, free = step(replicas(), BATCHES), step(replicas(speculation=draft(share=0.0)), BATCHES)
    share = step(replicas(speculation=draft(share=0.25)), BATCHES)
    time = step(replicas(speculation=draft(share=None, draft_time=0.003)), BATCHES)
    np.testing.assert_allclose(share, free + 0.25 * plain, rtol=1e-12)
    np.testing.assert_allclose(time, free + 0.003, rtol=1e-12)


def test_the_model_error_is_not_that_of_a_time_that_was_given():
    def slower(s: Speculation | None) -> float:  # of kernels that are slow enough to beat no peak
        more, less = (step(replicas(speculation=s, z=z)) for z in (2.0, 1.0))
        return float((more / less)[0])

    factor = float(np.exp(max(replicas().log_sd[0], replicas().prompt_log_sd[0])))
    assert slower(None) == pytest.approx(factor)
    assert slower(draft()) == pytest.approx(factor)
    assert slower(draft(share=None, draft_time=0.01)) < factor * 0.99


def test_prompts_are_held_up_by_drafting_and_hold_up_no_more_for_it():
    """What prompts add to a step is there whatever drafting costs; their own steps contain it."""
    beside = {"decode_batch": 40.0, "context": 1500.0}
    free, dear = (
        prompt_time(replicas(speculation=draft(share=s)), 3000.0, 0.0, 2048.0, **beside) for s in (0.0, 0.5)
    )
    np.testing.assert_allclose(dear.stolen, free.stolen, rtol=1e-12)
    drafting = draft_time(replicas(speculation=draft(share=0.5)), 40.0, 1500.0)
    np.testing.assert_allclose(dear.service, free.service + free.steps * drafting, rtol=1e-12)
    alone = prompt_time(replicas(speculation=draft()), 3000.0, 0.0, 2048.0).service
    np.testing.assert_array_equal(alone, prompt_time(replicas(), 3000.0, 0.0, 2048.0).service)


def test_drafted_tokens_take_their_share_of_a_step():
    """2,048 tokens hold a prompt of 1,900 beside 100 sequences, not beside 100 with four tokens to verify."""
    beside = {"decode_batch": 100.0, "context": 500.0}
    assert prompt_time(replicas(), 1900.0, 0.0, 2048.0, **beside).steps.tolist() == [1]
    assert prompt_time(replicas(speculation=draft()), 1900.0, 0.0, 2048.0, **beside).steps.tolist() == [2]


@pytest.mark.parametrize("kind", KINDS)
def test_the_breakdown_adds_up(kind):
    name, layout = KINDS[kind]
    r = replicas(catalog.load_model(name), layout, draft())
    lines = {line.name: line.time for line in decode_breakdown(r, 37.0, 1500.0)}
    assert sum(lines.values()) == pytest.approx(float(step(r, 37.0, 1500.0)[0]), rel=1e-12)
    assert lines["draft"] == pytest.approx(float(draft_time(r, 37.0, 1500.0)[0]))
    assert min(lines.values()) >= 0


# --------------------------------------------------------------------------------------------
# One configuration


def configuration(speculation: Speculation | None, model=LARGE, layout: Parallelism = TP4) -> Configuration:
    pool = Replicas(count=1, gpu=H100, parallelism=layout)
    return Configuration(model=model, precision=BF16, engine=ENGINE, colocated=pool, speculation=speculation)


@pytest.mark.parametrize("load", [{"concurrency": 1}, {"concurrency": 64}, {"rate": 2.0}], ids=str)
def test_more_accepted_tokens_are_faster(load):
    found = [
        predict(configuration(draft(4, a)), Load(isl=1000, osl=400, **load)).tpot
        for a in (1.0, 1.5, 2.5, 4.0, 5.0)
    ]
    assert all(after < before for before, after in pairwise(found))


def test_tpot_of_one_client_is_a_step_over_its_tokens():
    found = predict(configuration(draft()), Load(isl=1000, osl=400, concurrency=1))
    whole = float(step(replicas(speculation=draft()), 1.0, 1200.0)[0])
    assert found.tpot == pytest.approx(whole / 2.4, rel=0.03)
    assert sum(line.time for line in found.decode) == pytest.approx(whole, rel=1e-6)
    assert any("2.4 tokens emitted per step" in note for note in found.notes)


def test_without_a_draft_nothing_changes():
    found = predict(configuration(None), Load(isl=100, osl=100, rate=1))
    assert not any("speculative" in note for note in found.notes)
    traffic = Traffic.of_service(service(None))
    assert traffic.tokens_per_step == 1.0
    assert traffic.unaccepted == 0.0
    assert traffic.decode_steps == traffic.mean_osl


def test_memory_counts_the_draft_and_its_logits():
    def budget(s: Speculation | None):
        return tightest(memory_budgets(LARGE, BF16, ENGINE, H100, TP4, 8192, 256, s))

    plain, heavy = budget(None), budget(draft(draft_weights=3 * GIGA))
    assert heavy.weights == plain.weights + 3 * GIGA
    assert heavy.activations >= plain.activations
    assert heavy.kv_cache <= plain.kv_cache - 3 * GIGA
    states = catalog.load_model(KINDS["states"][0])
    room = Traffic.of_service(replace(service(draft()), model=LARGE)).unaccepted
    assert room == 4.0
    assert Traffic.of_service(replace(service(draft()), model=states)).unaccepted > 4.0


# --------------------------------------------------------------------------------------------
# Fleets: closed forms and simulation


def service(speculation: Speculation | None, model=SMALL, rate: float = 5.0) -> Service:
    isl = Marginal(points=(500.0, 2000.0), weights=(0.7, 0.3))
    osl = Marginal(points=(100.0, 500.0), weights=(0.6, 0.4))
    return Service(
        model=model,
        precision=BF16,
        workload=Workload(
            name="",
            periods=(Period(name="", hours=1.0, request_rate=rate),),
            lengths=Lengths(isl=isl, osl=osl, isl_per_output_token=isl.mean),
        ),
        slo=Slo(targets=()),
        engine="vllm",
        speculation=speculation,
    )


def deployed(phase: Phase, rate: float, count: int = 1, **changes: Any) -> Deployed:
    given_limits: dict[str, Any] = {"token_budget": 8192, "kv_tokens": 400_000, "max_num_seqs": 256}
    return Deployed(
        phase=phase,
        item=FleetItem(
            gpu=H100, price=None, max_gpus=None, node_size=8, network_bandwidth=H100.network_bandwidth
        ),
        parallelism=Parallelism(),
        replicas=count,
        rate=rate,
        **(given_limits | changes),
    )


def fleet(kind: str, speculation: Speculation | None, rate: float) -> Fleet:
    if kind == "colocated":
        groups = (deployed(Phase.COLOCATED, rate, 2, token_budget=2048),)
    else:
        groups = (deployed(Phase.PREFILL, rate, 2), deployed(Phase.DECODE, rate, 1, token_budget=2048))
    asked = service(speculation, rate=rate)
    return Fleet(service=asked, engine=ENGINE, groups=groups, routing=Routing.LEAST_LOADED)


@pytest.mark.parametrize("kind", ["colocated", "disaggregated"])
@pytest.mark.parametrize("rate", [1.0, 8.0, 18.0])
@pytest.mark.parametrize("speculation", [draft(), draft(5, 3.7, None, draft_time=0.002)], ids=["share", "ms"])
def test_simulation_and_closed_forms_agree(kind, rate, speculation):
    f = fleet(kind, speculation, rate)
    ttft, tpot = predict_fleet(f).summaries()
    source = RequestSource(workload=f.service.workload, rate=rate, seed=3)
    found = simulate_fleet(f, source, number=20_000)
    assert tpot.mean == pytest.approx(found.tpot.value.mean, rel=0.04)
    assert ttft.mean == pytest.approx(found.ttft.value.mean, rel=0.1)
    assert tpot.p99 == pytest.approx(found.tpot.value.p99, rel=0.05)
    assert ttft.p99 == pytest.approx(found.ttft.value.p99, rel=0.15)
    assert found.itl.value.mean > 1.8 * found.tpot.value.mean
    assert any("time between steps" in note for note in found.notes)


@pytest.mark.parametrize("kind", KINDS)
def test_lone_requests_in_the_simulator(kind):
    """The first token comes with a step of its own, the others with a step per 2.5 of them."""
    name, layout = KINDS[kind]
    model, speculation, osl = catalog.load_model(name), draft(a=2.5), 101
    f = Fleet(
        service=service(speculation, model),
        engine=ENGINE,
        groups=tuple(
            replace(deployed(phase, 1.0, kv_tokens=10**7), parallelism=layout)
            for phase in (Phase.PREFILL, Phase.DECODE)
        ),
        routing=Routing.LEAST_LOADED,
    )
    isl = np.array([300, 1000, 2000])
    requests = requests_of(1000.0 * np.arange(isl.size), isl, osl)
    request = run_cluster(cluster_of(f, Setup()), requests, holdings(f, requests), samples=0).request
    lanes = float(layout.pp)
    r = replicas(model, layout, speculation)
    first = step(r, lanes, isl[:, None])[:, 0]
    np.testing.assert_allclose(request["first"] - request["joined"], first, rtol=0.01)
    tpot = (request["last"] - request["first"]) / (osl - 1)
    np.testing.assert_allclose(tpot, step(r, lanes, isl[:, None] + osl / 2)[:, 0] / 2.5, rtol=0.01)


@settings(max_examples=40, deadline=None)
@given(
    gain=st.floats(1.0, 9.0),
    osl=st.integers(1, 400),
    isl=st.integers(1, 300),
    block=st.sampled_from([1, 16, 64]),
)
def test_steps_and_blocks_of_sequences(gain, osl, isl, block):
    """A hundred requests, one at a time: steps by the tokens that each emits, all blocks given back."""
    rows = int(np.ceil(gain))
    tables = linear_tables(step=1.0, per_token=1e-9, sequences=8, budget=1024)
    g = group(Phase.COLOCATED, tables, budget=512)
    cluster = cluster_of_groups(g, block_size=block, tokens_per_step=gain, rows=rows)
    outcome = simulated(cluster, requests_of(1e5 * np.arange(100), isl, osl))
    steps = (outcome.request["last"] - outcome.request["first"]).mean()
    assert outcome.tokens.tolist() == [osl] * 100
    least = 1.0 if osl > 1 else 0.0
    assert steps == pytest.approx(max((osl - 1) / gain, least), abs=0.03 + 1e-6 * osl)
    assert outcome.replica["used"].tolist() == [0]
    most = int(outcome.replica["most_used"][0])
    assert abs(most * block - (isl + osl)) <= block + rows + 0.05 * osl


@settings(max_examples=30, deadline=None)
@given(gain=st.floats(1.0, 6.0), blocks=st.integers(8, 40), seed=st.integers(0, 99), swaps=st.booleans())
def test_short_memory_loses_nothing(gain, blocks, seed, swaps):
    """Preempted sequences keep their tokens, and every block comes back."""
    rng = np.random.default_rng(seed)
    tables = linear_tables(step=1.0, per_token=1e-3, sequences=16, budget=400)
    g = group(Phase.COLOCATED, tables, blocks=blocks, budget=200, swap_time=0.1 if swaps else None)
    cluster = cluster_of_groups(g, block_size=16, tokens_per_step=gain, rows=int(np.ceil(gain)))
    requests = requests_of(np.sort(rng.uniform(0, 100, 60)), rng.integers(1, 60, 60), rng.integers(1, 60, 60))
    outcome = simulated(cluster, requests)
    assert outcome.tokens.tolist() == requests.osl.tolist()
    assert outcome.replica["used"].tolist() == [0]
    assert int(outcome.control["finished"][0]) == 60


def test_growth_is_nearly_the_gain():
    for gain in np.linspace(1.0, 17.0, 161):
        cluster = replace(
            cluster_of_groups(group(Phase.COLOCATED, linear_tables()), block_size=16), tokens_per_step=gain
        )
        steps, blocks = cluster.growth
        assert blocks * 16 / steps == pytest.approx(gain, rel=0.02)


# --------------------------------------------------------------------------------------------
# Physics


def test_physics_counts_what_is_verified():
    """Per emitted token (k + 1) / a tokens of arithmetic, and 1 / a of what a step reads."""
    for phase in (Phase.DECODE, Phase.PREFILL):
        plain, drafted = (needed(service(s), deployed(phase, 5.0), 16.0) for s in (None, draft()))
        decodes = phase is Phase.DECODE
        assert drafted.compute == pytest.approx(plain.compute * (4 / 2.4 if decodes else 1.0))
        assert drafted.bandwidth == pytest.approx(plain.bandwidth / (2.4 if decodes else 1.0))


@pytest.mark.parametrize("batch", [1.0, 64.0, 512.0])
def test_no_step_beats_the_peaks(batch):
    """A replica that does nothing but decode at a batch needs no more than its GPU has."""
    speculation = draft(4, 5.0, 0.0)
    r = replicas(SMALL, Parallelism(), speculation)
    asked = service(speculation)
    traffic = Traffic.of_service(asked)
    rate = batch * 5.0 / traffic.mean_osl / float(step(r, batch, traffic.decode_context)[0])
    found = needed(asked, deployed(Phase.DECODE, rate), batch)
    assert max(found.compute, found.bandwidth) <= 1.0


# --------------------------------------------------------------------------------------------
# Plans


GIVEN = {"draft_tokens": 3, "accepted_tokens": 2.4, "draft_cost": 0.08}


def planned(scenario, **changes: Any):
    return solve(scenario(**changes), SolveOptions(verify=False))


def test_a_tight_tpot_is_met_by_fewer_gpus(scenario):
    changes = {
        "slo": {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 7.5}},
        "workload": {"request_rate": 60, "input_tokens": 1000, "output_tokens": 200},
        "options": {"whole_nodes": False},
    }
    plain, drafted = (planned(scenario, **changes, **more) for more in ({}, {"speculative": GIVEN}))
    assert drafted.cost < 0.7 * plain.cost
    assert drafted.predictions[0].tpot.planned.p99 <= 0.0075


def test_where_throughput_counts_a_poor_draft_costs(scenario):
    """Prompts are short, answers long, limits loose: batches are large, and verifying them is not free."""
    changes = {
        "workload": {"request_rate": 300, "input_tokens": 200, "output_tokens": 200},
        "slo": {"ttft_ms": {"p99": 4000}, "tpot_ms": {"p99": 100}},
        "options": {"whole_nodes": False},
    }
    poor = {"draft_tokens": 5, "accepted_tokens": 1.3, "draft_cost": 0.1}
    plain, drafted = (planned(scenario, **changes, **more) for more in ({}, {"speculative": poor}))
    assert drafted.cost > plain.cost


def test_a_plan_says_so_and_is_read_back(scenario, tmp_path):
    loaded = scenario(speculative=GIVEN | {"draft_weights_gb": 1.5})
    plan = solve(loaded, SolveOptions(verify=False))
    assert any("speculative decoding" in line and "given by the user" in line for line in plan.provenance)
    assert any("2.4 tokens emitted per step" in note for note in plan.notes)
    again = plan_from_text(dump_plan(plan))
    standing = standing_plan(again)
    speculation = loaded.scenario.services[0].speculation
    assert standing.fleet.service.speculation == speculation
    assert speculation.draft_weights == 1.5 * GIGA
    (tmp_path / "plan.yaml").write_text(dump_plan(plan))
    assert standing_plan(plan_from_text((tmp_path / "plan.yaml").read_text())).fleet == standing.fleet
    found = simulate(again, requests=20_000)
    assert found.tpot.value.mean == pytest.approx(plan.predictions[0].tpot.planned.mean, rel=0.05)


def test_groups_verify_no_more_than_a_step_holds(scenario):
    plan = planned(scenario, speculative={"draft_tokens": 7, "accepted_tokens": 3, "draft_ms": 0.5})
    for g in plan.groups:
        if g.phase is not Phase.PREFILL:
            assert g.max_num_seqs * 8 <= g.max_num_batched_tokens


def test_a_verified_plan_holds(scenario):
    plan = solve(scenario(speculative=GIVEN))
    assert plan.verification is not None
    assert plan.verification.passed


def test_explain_and_compare_tell(scenario):
    slo = {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 20}}
    plain, drafted = (planned(scenario, slo=slo, **more) for more in ({}, {"speculative": GIVEN}))
    found = compare(plain, drafted)
    told = {d.what: (d.before, d.after) for d in found.differences}
    assert told["speculative decoding"] == (
        "none",
        "draft_tokens 3, accepted_tokens 2.4, draft_cost 0.08",
    )
    assert not found.same_fleet
    assert any("speculative decoding" in note for note in explain(drafted).notes)
    assert compare(drafted, drafted).same


def test_models_of_one_scenario_have_their_own():
    models = [SERVED | {"name": "a", "speculative": GIVEN}, SERVED | {"name": "b"}]
    loaded = scenario_from_text(json.dumps({"models": models, "fleet": FLEET}))
    first, second = loaded.scenario.services
    assert first.speculation == draft()
    assert second.speculation is None
    plan = solve(loaded, SolveOptions(verify=False))
    assert any("speculative decoding of a" in note for note in plan.notes)


# --------------------------------------------------------------------------------------------
# Files and the command line

SERVED = {
    "model": "meta-llama/Llama-3.1-8B",
    "workload": {"request_rate": 20, "input_tokens": 1000, "output_tokens": 200},
    "slo": {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 40}},
}
FLEET = [{"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "network_gbps_per_gpu": 400}]
GROUPS = [{"phase": "colocated", "gpu": "h100-sxm", "replicas": 2, "max_num_batched_tokens": 2048}]


SOUND = "draft_tokens: 3, accepted_tokens: 2, draft_ms: 1"


def text_of(speculative: str) -> str:
    """A scenario whose last line is the draft."""
    lines = [f"{key}: {json.dumps(value)}" for key, value in (SERVED | {"fleet": FLEET}).items()]
    return "\n".join([*lines, f"speculative: {speculative}"])


@pytest.mark.parametrize(
    ("speculative", "said"),
    [
        (
            "draft_tokens: 3, accepted_tokens: 4.5, draft_cost: 0",
            "accepted_tokens: must be <= draft_tokens + 1",
        ),
        ("draft_tokens: 3, accepted_tokens: 0.5, draft_cost: 0", "accepted_tokens: must be >= 1"),
        ("draft_tokens: 0, accepted_tokens: 1, draft_cost: 0", "draft_tokens: must be >= 1"),
        ("draft_tokens: 2.5, accepted_tokens: 1, draft_cost: 0", "draft_tokens: must be"),
        (
            "draft_tokens: 3, accepted_tokens: 2, draft_cost: 1, draft_ms: 1",
            "draft_ms: is given beside draft_cost",
        ),
        ("draft_tokens: 3, accepted_tokens: 2", "draft_cost: is required"),
        ("draft_tokens: 3, draft_ms: 1", "accepted_tokens: is required"),
        ("draft_tokens: 3, accepted_tokens: 2, draft_cost: -0.1", "draft_cost: must be >= 0"),
        ("draft_tokens: 3, accepted_tokens: 2, draft_ms: -1", "draft_ms: must be >= 0"),
        (f"{SOUND}, draft_weights_gb: -2", "draft_weights_gb: must be >= 0"),
        (f"{SOUND}, acceptance_rate: 0.7", "acceptance_rate: unknown key (give accepted_tokens"),
        (f"{SOUND}, speed: 2", "speed: unknown key"),
        ("num_speculative_tokens: 3, accepted_tokens: 2, draft_ms: 1", "num_speculative_tokens"),
    ],
)
def test_bad_input(speculative, said, planner, tmp_path):
    path = tmp_path / "scenario.yaml"
    path.write_text(text_of("{" + speculative + "}"))
    found = planner("solve", path, "--no-verify")
    assert found.code == 2
    assert said in found.err
    line = len(path.read_text().splitlines())
    assert f":{line}" in found.err or f"line {line}" in found.err
    assert "Traceback" not in found.err


def test_one_problem_is_told_once():
    with pytest.raises(SpecError) as refused:
        scenario_from_text(text_of("{draft_tokens: 3, accepted_tokens: 9, draft_cost: 0.1}"))
    (problem,) = refused.value.problems
    assert problem.key == "speculative.accepted_tokens"


def test_beside_models_it_is_refused():
    text = json.dumps({"models": [SERVED], "fleet": FLEET, "speculative": GIVEN})
    with pytest.raises(SpecError, match="speculative"):
        scenario_from_text(text)


def fleet_file(**changes: Any) -> str:
    return json.dumps(SERVED | {"groups": GROUPS, "speculative": GIVEN} | changes)


def test_fleet_files_have_it():
    loaded = fleet_from_text(fleet_file())
    assert loaded.fleet.service.speculation == draft()
    assert loaded.fleet.groups[0].max_num_seqs == 2048 // 4
    plain = fleet_from_text(json.dumps(SERVED | {"groups": GROUPS}))
    heavy = fleet_from_text(fleet_file(speculative=GIVEN | {"draft_weights_gb": 20}))
    assert heavy.fleet.groups[0].kv_tokens < plain.fleet.groups[0].kv_tokens
    fast, slow = (
        simulate(standing_fleet(f), rate=2.0, requests=5000).tpot.value.mean for f in (loaded, plain)
    )
    assert fast < 0.6 * slow


def test_a_group_that_verifies_more_than_a_step_holds():
    with pytest.raises(SpecError, match="1,024 sequences with draft_tokens") as refused:
        fleet_from_text(fleet_file(groups=[GROUPS[0] | {"max_num_seqs": 1024}]))
    (problem,) = refused.value.problems
    assert problem.key == "groups[0].max_num_seqs"


def test_predict_takes_the_numbers(planner):
    base = ("predict", "--model", "meta-llama/Llama-3.1-70B", "--gpu", "h100-sxm", "--tp", 4)
    load = ("-c", 1, "--isl", 1000, "--osl", 200, "--json")
    plain = planner(*base, *load).facts
    given_numbers = ("--draft-tokens", 3, "--accepted-tokens", 2.4, "--draft-cost", 0.08)
    fast = planner(*base, *given_numbers, "--draft-weights-gb", 2, *load).facts
    assert 2.0 < plain["tpot_ms"] / fast["tpot_ms"] < 2.4
    assert "draft" in {line["operator"] for line in fast["breakdown"]}
    assert fast["memory_gib"]["weights"] > plain["memory_gib"]["weights"] + 1.8
    for wrong in (
        ("--draft-tokens", 3),
        ("--draft-cost", 0.1),
        ("--draft-tokens", 3, "--accepted-tokens", 2.4),
        (*given_numbers, "--draft-ms", 1),
        ("--draft-tokens", 1, "--accepted-tokens", 2.4, "--draft-ms", 1),
        ("--draft-tokens", 0, "--accepted-tokens", 1, "--draft-ms", 1),
        ("--draft-tokens", 65, "--accepted-tokens", 1, "--draft-ms", 1),
        ("--draft-tokens", 3, "--accepted-tokens", 2, "--draft-cost", 101),
        ("--draft-tokens", 3, "--accepted-tokens", 2, "--draft-ms", 10_001),
        (*given_numbers, "--draft-weights-gb", 10_001),
    ):
        found = planner(*base, *wrong, *load)
        assert found.code == 2
        assert "draft" in found.err
        assert "accepted" in found.err or "draft" in found.err


def test_the_schema_has_it(planner):
    for name in ("scenario", "fleet"):
        schema = planner("schema", name).facts
        assert "speculative" in schema["properties"]
        fields = schema["$defs"]["SpeculativeDocument"]
        assert sorted(fields["required"]) == ["accepted_tokens", "draft_tokens"]


def test_nothing_is_said_without_one(scenario):
    plan = planned(scenario)
    assert not any("speculative" in text for text in (*plan.notes, *plan.provenance))
    source = RequestSource(workload=service(None).workload, rate=2.0)
    outcome = run_fleet(fleet("colocated", None, 2.0), source, 500)
    assert outcome.cluster.growth == (outcome.cluster.block_size, 1)


def test_the_example_in_the_readme_is_one():
    text = Path(__file__).parents[1].joinpath("README.md").read_text()
    (example,) = re.findall(r"speculative: ({[^}]*})", text)
    assert scenario_from_text(text_of(example)).scenario.services[0].speculation == draft()
