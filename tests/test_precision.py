"""Formats that a scenario leaves to the planner: which may be chosen where, and what choosing is worth."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from planner import catalog
from planner.assembly import changed_formats
from planner.candidates import CandidateSet, build_candidates
from planner.documents.fleet import fleet_from_text
from planner.documents.plan import dump_plan, plan_from_text
from planner.documents.scenario import scenario_from_text
from planner.engines.formats import (
    format_labels,
    kv_choices,
    kv_obstacle,
    weight_choices,
    weights_obstacle,
)
from planner.errors import SpecError
from planner.evaluation import simulate, standing_fleet, standing_plan
from planner.formulation import build_problem
from planner.memory import memory_budgets
from planner.operators import ReplicaSet
from planner.physics import needed
from planner.plan import Plan
from planner.prediction import predict_fleet
from planner.report.terminal import print_plan
from planner.search import Search, SolveOptions
from planner.simulator.build import holdings
from planner.specs import GPU, Dtype, Engine, Model, Parallelism, Phase, Precision, Service
from planner.traffic import Traffic
from planner.workflow import solve

EXACT = SolveOptions(alternatives=False, verify=False, gap=0.0)
BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
FP8 = Precision(weights=Dtype.FP8, kv_cache=Dtype.FP8)
FLEET: list[dict[str, Any]] = [
    {"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 16, "network_gbps_per_gpu": 400},
    {"gpu": "a100-80gb-sxm", "price_per_gpu_hour": 1.5, "max_gpus": 16, "network_gbps_per_gpu": 200},
    {"gpu": "l40s", "price_per_gpu_hour": 1.0, "max_gpus": 16, "network_gbps_per_gpu": 50},
]
SMALL: dict[str, Any] = {
    "fleet": FLEET,
    "workload": {"request_rate": 30, "input_tokens": 1500, "output_tokens": 300},
    "options": {"max_tp": 2, "max_pp": 1, "whole_nodes": False},
}


def scenario_text(weights: str, kv_cache: str, **changes: object) -> str:
    document = {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "precision": {"weights": weights, "kv_cache": kv_cache},
        "slo": {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 25}},
        **SMALL,
        **changes,
    }
    return json.dumps(document)


def search(weights: str, kv_cache: str, **changes: object) -> Search:
    return Search.of(scenario_from_text(scenario_text(weights, kv_cache, **changes)), EXACT)


def legal_pairs(found: CandidateSet) -> list[tuple[int, int]]:
    return [
        (i, j)
        for i in found.of(Phase.PREFILL)
        for j in found.of(Phase.DECODE)
        if (i, j) not in found.illegal_pairs
    ]


# --------------------------------------------------------------------------------------------
# What may be chosen


@pytest.mark.parametrize(
    ("name", "weights", "kv_cache"),
    [
        ("meta-llama/Llama-3.1-8B", ["bf16", "fp8"], ["bf16", "fp8"]),
        ("deepseek-ai/DeepSeek-V3", ["fp8_block"], ["bf16", "fp8"]),  # has its own scales
        ("openai/gpt-oss-120b", [Precision.of(catalog.load_model("openai/gpt-oss-120b")).weights], None),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", ["fp8"], ["fp8", "bf16"]),
    ],
)
def test_the_checkpoints_formats_come_first_and_no_other_checkpoint_is_needed(
    name: str, weights: list[str], kv_cache: list[str] | None, vllm: Engine
) -> None:
    model = catalog.load_model(name)
    assert list(weight_choices(model, vllm)) == weights
    if kv_cache is not None:
        assert list(kv_choices(model)) == kv_cache


def test_fp8_caches_where_the_engine_keeps_them(vllm: Engine) -> None:
    llama, deepseek = (catalog.load_model(n) for n in ("meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3"))

    def able(model: Model, gpu: str) -> bool:
        return not kv_obstacle(model, Dtype.FP8, catalog.load_gpu(gpu), vllm)

    assert [able(llama, g) for g in ("h100-sxm", "a100-80gb-sxm", "l40s", "t4", "v100-32gb-sxm")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert [able(deepseek, g) for g in ("h100-sxm", "a100-80gb-sxm")] == [True, False]
    assert not kv_obstacle(llama, Dtype.BF16, catalog.load_gpu("v100-32gb-sxm"), vllm)


def test_weights_need_a_kernel(a100: GPU, h100: GPU, vllm: Engine) -> None:
    bare = replace(vllm, weight_only_dtypes=())
    assert weights_obstacle(FP8, a100, bare) == "no kernel for fp8 weights"
    assert not weights_obstacle(FP8, a100, vllm)  # stored as fp8, computed in 16 bits
    assert not weights_obstacle(FP8, h100, bare)


def test_labels_say_what_differs() -> None:
    mixed = replace(FP8, kv_cache=Dtype.BF16)
    assert list(format_labels((BF16,)).values()) == [""]
    assert list(format_labels((BF16, mixed)).values()) == ["bf16", "fp8"]
    assert list(format_labels((BF16, mixed, FP8)).values()) == ["bf16-kv-bf16", "fp8-kv-bf16", "fp8-kv-fp8"]


def test_a_file_says_what_is_free() -> None:
    def service(weights: str, kv_cache: str) -> Service:
        return scenario_from_text(scenario_text(weights, kv_cache)).scenario.services[0]

    assert service("fp8", "bf16").choices == ()
    assert service("fp8", "bf16").formats == (replace(FP8, kv_cache=Dtype.BF16),)
    assert service("auto", "fp8").choices == (replace(BF16, kv_cache=Dtype.FP8), FP8)
    assert service("checkpoint", "auto").choices == (BF16, replace(BF16, kv_cache=Dtype.FP8))
    both = service("auto", "auto")
    assert both.precision == both.choices[0] == BF16
    assert len(set(both.choices)) == 4


def test_fleets_that_stand_have_no_free_formats() -> None:
    with pytest.raises(SpecError, match=r"precision.kv_cache: must be one of bf16, fp16, fp8, checkpoint"):
        fleet_from_text(MIXED.replace("kv_cache: bf16}\nw", "kv_cache: auto}\nw"))


# --------------------------------------------------------------------------------------------
# Candidates


def test_replicas_of_several_formats_stack(a100: GPU, h100: GPU, llama_8b: Model, vllm: Engine) -> None:
    one = [(h100, Parallelism()), (a100, Parallelism())]
    stacked = ReplicaSet.of(llama_8b, [FP8, BF16], vllm, one)
    alone = [ReplicaSet.of(llama_8b, p, vllm, [r]) for p, r in zip((FP8, BF16), one, strict=True)]
    for kernel in ("attention", "body", "head", "decode_attention"):
        for name in getattr(stacked, kernel).__slots__:
            values = getattr(getattr(stacked, kernel), name)
            assert values.tolist() == [float(getattr(getattr(r, kernel), name)[0]) for r in alone]


def test_names_are_unique_and_short_where_nothing_is_free() -> None:
    names = [c.name for c in search("auto", "auto").problem.candidates]
    assert len(set(names)) == len(names)
    assert {n.split("-tp1-")[1].split("-path")[0] for n in names if n.startswith("prefill-h100-sxm-tp1")} == {
        "bf16-kv-bf16", "bf16-kv-fp8", "fp8-kv-bf16", "fp8-kv-fp8",
    }  # fmt: skip
    fixed = [c.name for c in search("fp8", "fp8").problem.candidates]
    assert not [n for n in fixed if "fp8" in n]


def test_legal_pairs_share_the_kv_cache_and_may_differ_in_weights() -> None:
    found = search("auto", "auto").question.candidates
    pairs = [(found.choices[i].precision, found.choices[j].precision) for i, j in legal_pairs(found)]
    assert all(p.kv_cache is d.kv_cache for p, d in pairs)
    assert {(p.weights, d.weights) for p, d in pairs} == {
        (one, other) for one in (Dtype.BF16, Dtype.FP8) for other in (Dtype.BF16, Dtype.FP8)
    }


@pytest.mark.parametrize("kv_cache", ["bf16", "fp8"])
def test_a_free_choice_holds_the_candidates_of_each_fixed_one(kv_cache: str) -> None:
    """Curves are those of the fixed formats; names and the fastest classes of paths need not be."""
    free = search("auto", kv_cache).problem.candidates
    for weights in ("bf16", "fp8"):
        for candidate in search(weights, kv_cache).problem.candidates:
            pool, gpu, rest = candidate.phase, candidate.gpu_type, candidate.name.split("-tp")[1]
            layout, _, detail = rest.partition("-")
            twins = [
                c
                for c in free
                if (c.phase, c.gpu_type) == (pool, gpu)
                and c.name.split("-tp")[1] == "-".join(filter(None, [layout, weights, detail]))
            ]
            assert [twin.curve.per_replica[0] for twin in twins] == [candidate.curve.per_replica[0]]


def test_the_a100_never_computes_in_fp8(a100: GPU) -> None:
    """U84: on an A100 fp8 weights are stored, and computed in 16 bits."""
    assert not {Dtype.FP8, Dtype.FP8_BLOCK} & set(a100.peak_flops)
    q = search("auto", "auto").question
    choices = [c for c in q.candidates.choices if q.item(c).gpu.name == a100.name]
    assert {c.precision.weights for c in choices} == {Dtype.BF16, Dtype.FP8}
    for choice in choices:
        r = ReplicaSet.of(q.service.model, choice.precision, q.engine, [(a100, choice.parallelism)])
        assert float(r.body.compute_rate[0]) <= a100.peak_flops[Dtype.BF16]
        assert float(r.body.activation_bytes[0]) == 2.0


def test_405b_on_a100s(a100: GPU, vllm: Engine) -> None:
    """U84: 51.3 GB per GPU on eight, at the speed of 16-bit arithmetic; bf16 does not fit."""
    model, layout = catalog.load_model("meta-llama/Llama-3.1-405B"), Parallelism(tp=8)
    stored, whole = (
        memory_budgets(model, Precision.of(model, dtype), vllm, a100, layout, 8192, 256)[0]
        for dtype in (Dtype.FP8, Dtype.BF16)
    )
    assert stored.weights == pytest.approx(51.3e9, rel=0.03)
    assert stored.fits
    assert not whole.fits
    fp8, bf16 = (
        ReplicaSet.of(model, Precision.of(model, d), vllm, [(a100, layout)]) for d in (Dtype.FP8, Dtype.BF16)
    )
    assert fp8.body.compute_rate == bf16.body.compute_rate


# --------------------------------------------------------------------------------------------
# Plans


@pytest.mark.parametrize("colocated", ["forbidden", "allowed"])
def test_a_free_choice_never_costs_more_than_a_fixed_one(colocated: str) -> None:
    options = SMALL["options"] | {"colocated": colocated}

    def cost(weights: str, kv_cache: str) -> float:
        return search(weights, kv_cache, options=options).best().value

    fixed = {(w, k): cost(w, k) for w in ("bf16", "fp8") for k in ("bf16", "fp8")}
    by_kv = {k: cost("auto", k) for k in ("bf16", "fp8")}
    free = cost("auto", "auto")
    assert len(set(fixed.values())) > 2  # it matters
    for k, value in by_kv.items():
        assert value <= min(fixed["bf16", k], fixed["fp8", k]) + 1e-9
    # Pools share the format, so that the best of all is the best of one of them; colocated groups need not.
    assert (
        free == pytest.approx(min(by_kv.values()))
        if colocated == "forbidden"
        else free <= min(by_kv.values())
    )


@pytest.mark.parametrize("rate", [3, 30, 90])
@pytest.mark.parametrize("length", [300, 6000])
def test_pools_of_every_plan_share_the_kv_cache(rate: int, length: int) -> None:
    workload = {"request_rate": rate, "input_tokens": length, "output_tokens": 300}
    options = SMALL["options"] | {"colocated": "forbidden"}
    free = search("auto", "auto", workload=workload, options=options)
    fleet = free.question.fleet(free.best())
    assert len({fleet.service_of(g).precision.kv_cache for g in fleet.groups}) == 1


def mixed_plan() -> Plan:
    """An engine that computes in a format or not at all: fp8 on the H100, bf16 on the A100."""
    fleet = [FLEET[0] | {"max_decode_gpus": 0}, FLEET[1] | {"max_prefill_gpus": 0, "max_colocated_gpus": 0}]
    text = scenario_text("auto", "bf16", fleet=fleet, options=SMALL["options"] | {"colocated": "forbidden"})
    free = Search.of(scenario_from_text(text), EXACT)
    q = free.question
    bare = replace(q.engine, weight_only_dtypes=())
    candidates = build_candidates(q.scenario, q.service, bare)
    question = replace(q, engine=bare, candidates=candidates)
    own = replace(free, questions=(question,), problem=build_problem((question,), 0.0))
    _, solution = own.holding()
    return own.compared(solution).plan()


def test_a_plan_of_two_formats_is_told_read_and_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    plan = mixed_plan()
    formats = {(str(g.phase), g.gpu): g.precision.weights for g in plan.groups}
    assert formats == {
        ("prefill", "h100-sxm"): Dtype.FP8,
        ("decode", "a100-80gb-sxm"): Dtype.BF16,
    }
    (note,) = [n for n in plan.notes if n.startswith("precision auto chose")]
    where = "(prefill on h100-sxm)"
    assert note.startswith(f"precision auto chose fp8 weights {where}, where the checkpoint has bf16 weights")
    print_plan(plan, 160)
    head = f"fp8 weights {where}, bf16 weights (decode on a100-80gb-sxm), bf16 KV cache; vllm"
    assert head in capsys.readouterr().out

    read = plan_from_text(dump_plan(plan))
    assert [g.precision for g in read.groups] == [g.precision for g in plan.groups]
    standing = standing_plan(read, None)
    assert [g.precision for g in standing.fleet.groups] == [g.precision for g in plan.groups]
    rate = 0.2 * plan.predictions[0].request_rate
    result = simulate(read, rate=rate, requests=4000, confidence=0.5)
    light = replace(
        standing.fleet, groups=tuple(replace(g, rate=0.2 * g.rate) for g in standing.fleet.groups)
    )
    ttft, tpot = predict_fleet(light).summaries()
    assert result.ttft.value.mean == pytest.approx(ttft.mean, rel=0.03)
    assert result.tpot.value.mean == pytest.approx(tpot.mean, rel=0.03)
    same = replace(light, groups=tuple(replace(g, precision=BF16) for g in light.groups))
    assert predict_fleet(same).summaries()[0].mean > 1.05 * ttft.mean  # the formats of groups count


def test_a_fixed_plan_says_nothing_of_formats() -> None:
    plan = solve(scenario_from_text(scenario_text("fp8", "fp8")), EXACT)
    assert not [n for n in plan.notes if "auto" in n]
    free = solve(scenario_from_text(scenario_text("auto", "fp8")), EXACT)
    (note,) = [n for n in free.notes if "auto" in n]
    assert "chose fp8 weights, where" in note  # of the cache the file says so
    assert replace(free.groups[0], name="") == replace(plan.groups[0], name="")


def test_what_was_not_changed_is_not_told() -> None:
    service = scenario_from_text(scenario_text("auto", "auto")).scenario.services[0]
    groups = mixed_plan().groups
    own = [replace(g, precision=BF16) for g in groups]
    assert changed_formats(service, own) == []
    cached = [replace(g, precision=replace(BF16, kv_cache=Dtype.FP8)) for g in groups]
    (note,) = changed_formats(service, cached)
    assert note.startswith("precision auto chose fp8 KV cache, where")


# --------------------------------------------------------------------------------------------
# Fleets

MIXED = """\
model: meta-llama/Llama-3.1-8B-Instruct
precision: {weights: fp8, kv_cache: bf16}
workload: {request_rate: 2, input_tokens: 1000, output_tokens: 200}
slo: {ttft_ms: {p99: 1000}, tpot_ms: {p99: 50}}
groups:
  - {phase: prefill, gpu: h100-sxm, replicas: 1, network_gbps_per_gpu: 400}
  - phase: decode
    gpu: a100-80gb-sxm
    replicas: 1
    precision: {weights: bf16, kv_cache: bf16}
"""


def test_groups_of_a_fleet_have_formats_of_their_own() -> None:
    loaded = fleet_from_text(MIXED)
    prefill, decode = loaded.fleet.groups
    assert (prefill.precision, decode.precision) == (replace(FP8, kv_cache=Dtype.BF16), BF16)
    result = simulate(loaded, requests=3000)
    ttft, tpot = predict_fleet(standing_fleet(loaded).fleet).summaries()
    assert result.ttft.value.mean == pytest.approx(ttft.mean, rel=0.03)
    assert result.tpot.value.mean == pytest.approx(tpot.mean, rel=0.03)


def test_pools_of_a_fleet_with_different_kv_caches_are_refused() -> None:
    text = MIXED.replace("{weights: bf16, kv_cache: bf16}", "{weights: bf16, kv_cache: fp8}")
    with pytest.raises(SpecError, match="KV cache formats differ: bf16 and fp8"):
        fleet_from_text(text)


def test_colocated_groups_may_differ_in_both_formats() -> None:
    text = MIXED.replace("prefill", "colocated").replace("decode", "colocated")
    loaded = fleet_from_text(
        text.replace("{weights: bf16, kv_cache: bf16}", "{weights: bf16, kv_cache: fp8}")
    )
    result = simulate(loaded, requests=3000)
    ttft, tpot = predict_fleet(standing_fleet(loaded).fleet).summaries()
    assert result.ttft.value.mean == pytest.approx(ttft.mean, rel=0.1)
    assert result.tpot.value.mean == pytest.approx(tpot.mean, rel=0.05)


def test_each_group_needs_what_its_formats_need() -> None:
    fleet = fleet_from_text(MIXED).fleet
    decode = fleet.groups[1]
    whole = needed(fleet.service, decode, 8.0)
    assert whole == needed(replace(fleet.service, precision=BF16), replace(decode, precision=None), 8.0)
    stored = needed(fleet.service, replace(decode, precision=None), 8.0)
    assert 0.5 < stored.bandwidth / whole.bandwidth < 0.7


def test_a_state_counts_for_more_tokens_in_a_smaller_cache() -> None:
    """A hybrid model's traffic depends on the KV cache of the group."""
    text = MIXED.replace("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-Next-80B-A3B-Instruct")
    text = text.replace("prefill", "colocated").replace("decode", "colocated")
    text = text.replace("replicas: 1, ", "replicas: 1, tp: 4, ").replace(
        "replicas: 1\n", "replicas: 1\n    tp: 4\n"
    )
    fleet = fleet_from_text(text.replace("bf16, kv_cache: bf16}", "bf16, kv_cache: fp8}")).fleet
    sixteen, eight = (Traffic.of_service(fleet.service_of(g)).reserved for g in fleet.groups)
    assert eight > sixteen
    requests = standing_fleet(fleet_from_text(text)).source.draw(10)
    mixed, plain = holdings(fleet, requests), holdings(replace(fleet, groups=fleet.groups[:1]), requests)
    small = holdings(replace(fleet, groups=fleet.groups[1:]), requests)
    assert (mixed.prompt > plain.prompt).all()
    assert (mixed.prompt == small.prompt).all()
