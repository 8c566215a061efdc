"""Cases of people who mix GPU types, and who reckon what tokens cost; each names its public thread."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from conftest import ScenarioBuilder

from planner import catalog
from planner.candidates import build_candidates
from planner.documents.fleet import fleet_from_text
from planner.engines import load_engine
from planner.errors import SpecError
from planner.latency import decode_step_time, prompt_time
from planner.memory import kv_capacity, memory_budgets
from planner.money import (
    break_even_reservation,
    break_even_utilization,
    cost_per_million,
    cost_per_month,
    token_cost,
)
from planner.operators import ReplicaSet
from planner.search import SolveOptions
from planner.specs import GPU, Dtype, Engine, Model, Parallelism, Phase, Precision
from planner.units import GIB, GIGA, MEGA
from planner.workflow import solve

QUICK = SolveOptions(alternatives=False, verify=False)


# --------------------------------------------------------------------------------------------
# U80: https://github.com/vllm-project/aibrix/issues/435, ai-dynamo/dynamo/issues/414,
# vllm-project/vllm/issues/13760


def split(scenario: ScenarioBuilder, prefill: str, decode: str, **changes: Any) -> Any:
    """One type for prompts, the other for answers."""
    given = {"price_per_gpu_hour": 1.0, "max_gpus": 16, "network_gbps_per_gpu": 200}
    return scenario(
        workload={"request_rate": 10, "input_tokens": 1000, "output_tokens": 200},
        slo={"ttft_ms": {"p99": 3000}, "tpot_ms": {"p99": 80}},
        fleet=[
            given | {"gpu": prefill, "max_decode_gpus": 0},
            given | {"gpu": decode, "max_prefill_gpus": 0},
        ],
        options={"max_pp": 1, "whole_nodes": False, "colocated": "forbidden"},
        **changes,
    )


@pytest.mark.parametrize(
    ("prefill", "decode"), [("a100-80gb-sxm", "h20"), ("rtx-4090", "l4"), ("h20", "a100-80gb-sxm")]
)
def test_types_differ_between_pools(scenario: ScenarioBuilder, prefill: str, decode: str) -> None:
    """A100 and H20, and 4090 with a smaller card (L20 has no profile): the split is planned as owned."""
    plan = solve(split(scenario, prefill, decode), QUICK)
    assert {g.gpu for g in plan.pool(Phase.PREFILL)} == {prefill}
    assert {g.gpu for g in plan.pool(Phase.DECODE)} == {decode}


def test_a_replica_has_gpus_of_one_type(scenario: ScenarioBuilder) -> None:
    """Every candidate takes all GPUs of its tensor-parallel group from one line of the fleet, and no plan has
    more replicas than that line's stock can make whole: 3 GPUs of each of two types are no group of four."""
    lines = [
        {"gpu": gpu, "price_per_gpu_hour": 1.0, "max_gpus": 3, "network_gbps_per_gpu": 200}
        for gpu in ("a100-80gb-sxm", "h20")
    ]
    loaded = scenario(fleet=lines, options={"max_pp": 1, "whole_nodes": False})
    (service,) = loaded.scenario.services
    found = build_candidates(loaded.scenario, service, load_engine(service.engine))
    assert {choice.item for choice in found.choices} == {0, 1}
    for candidate, choice in zip(found.candidates, found.choices, strict=True):
        assert candidate.gpu_type == choice.item
        assert candidate.gpus == choice.parallelism.num_gpus <= 3
        assert candidate.max_replicas * candidate.gpus <= 3


MIXED = """\
model: meta-llama/Llama-3.1-8B
workload: {request_rate: 1, input_tokens: 1000, output_tokens: 100}
slo: {ttft_ms: {p99: 4000}, tpot_ms: {p99: 100}}
groups:
  - {phase: prefill, gpu: h100-sxm, replicas: 1, network_gbps_per_gpu: 400}
  - {phase: decode, gpu: OTHER, replicas: 1, network_gbps_per_gpu: 400}
"""


def test_connectors_have_to_get_along() -> None:
    assert fleet_from_text(MIXED.replace("OTHER", "a100-80gb-sxm")).fleet.groups
    with pytest.raises(SpecError, match=r"groups\[1\]: cannot take KV caches from groups\[0\].*vendor"):
        fleet_from_text(MIXED.replace("OTHER", "mi300x"))


# --------------------------------------------------------------------------------------------
# U82: https://llmversus.com/blog/self-hosting-deepseek-r1-h100-costs


def test_dollars_per_million_tokens() -> None:
    """$2.49/h at 2,100 tok/s, all of them counted and always busy: $0.3294, rounded to 0.33 there."""
    assert cost_per_million(2.49, 2100) == pytest.approx(0.3294, abs=5e-5)
    assert cost_per_million(2.49, 2100, utilization=0.5) == pytest.approx(2 * 0.3294, abs=1e-4)


def test_break_even_against_an_api() -> None:
    """At $0.55 renting pays from 59.9 % of the time on, not from 55 % as claimed."""
    share = break_even_utilization(2.49, 2100, 0.55)
    assert share == pytest.approx(0.599, abs=5e-4)
    assert cost_per_million(2.49, 2100, share) == pytest.approx(0.55)
    assert cost_per_million(2.49, 2100, 0.55) > 0.55  # at 55 % it does not
    assert break_even_utilization(2.49, 2100, 0.30) > 1  # never


def test_the_denominator_is_stated() -> None:
    """The same bill over input tokens, over output tokens, over both; parts per bill add up."""
    cost = token_cost(36.0, request_rate=10, mean_isl=900, mean_osl=100, utilization=0.5)
    assert cost.input == pytest.approx(36.0 / (10 * 900 * 0.5 * 3600) * MEGA)
    assert cost.output == pytest.approx(9 * cost.input)
    assert 1 / cost.both == pytest.approx(1 / cost.input + 1 / cost.output)
    assert token_cost(36.0, 10, 900, 0).output == float("inf")
    assert token_cost(0.0, 10, 900, 0).output == 0.0


def test_reserving_pays_from_the_share_of_the_prices_on() -> None:
    share = break_even_reservation(1.5, 2.5)
    assert share == 0.6
    hours = 730.0
    assert cost_per_month(1.5) == pytest.approx(2.5 * share * hours)  # a month has 730 hours
    assert break_even_reservation(3.0, 2.5) > 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: cost_per_million(-1.0, 2100),
        lambda: cost_per_million(1.0, float("nan")),
        lambda: cost_per_million(1.0, 2100, utilization=0.0),
        lambda: cost_per_million(1.0, 2100, utilization=1.1),
        lambda: break_even_utilization(1.0, 2100, 0.0),
        lambda: break_even_reservation(1.0, 0.0),
    ],
)
def test_money_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(SpecError):
        wrong()


def test_a_plan_reckons_alike(scenario: ScenarioBuilder) -> None:
    plan = solve(scenario(options={"max_tp": 1, "max_pp": 1}), QUICK)
    (told,) = plan.predictions
    assert plan.cost is not None
    expected = token_cost(plan.cost, 20, 1000, 200)
    assert told.cost_per_million_input_tokens == pytest.approx(expected.input)
    assert told.cost_per_million_output_tokens == pytest.approx(expected.output)
    assert told.cost_per_million_tokens == pytest.approx(expected.both)


def test_a_70b_on_one_h100_leaves_no_room_for_a_batch_of_16(vllm: Engine, h100: GPU) -> None:
    """FP8 at utilization 0.90, the engine's defaults beside it: 1.5 GiB, 4,800 tokens of 16-bit cache."""
    model = catalog.load_model("deepseek-ai/DeepSeek-R1-Distill-Llama-70B")
    precision, engine = (
        Precision(weights=Dtype.FP8, kv_cache=Dtype.BF16),
        dataclasses.replace(vllm, memory_utilization=0.90),
    )
    (budget,) = budgets = memory_budgets(model, precision, engine, h100, Parallelism(tp=1), 2048, 1024)
    assert budget.kv_cache / GIB == pytest.approx(1.5, abs=0.1)
    tokens = kv_capacity(model, precision, engine, Parallelism(tp=1), budgets)
    assert tokens == pytest.approx(4800, rel=0.03)
    assert 16 * 298 <= tokens < 16 * 310


# --------------------------------------------------------------------------------------------
# U84: https://github.com/huggingface/huggingface-llama-recipes/issues/21


@pytest.fixture(scope="module")
def llama_405b() -> Model:
    return catalog.load_model("meta-llama/Llama-3.1-405B")


def test_405b_in_fp8_fits_eight_a100(llama_405b: Model, a100: GPU, vllm: Engine) -> None:
    """51.3 GB of weights per GPU; in 16 bits they do not fit."""
    fits = {}
    for weights in (Dtype.FP8, Dtype.BF16):
        precision = Precision(weights=weights, kv_cache=Dtype.BF16)
        (budget,) = memory_budgets(llama_405b, precision, vllm, a100, Parallelism(tp=8), 8192, 256)
        fits[weights] = budget.fits
        if weights is Dtype.FP8:
            assert budget.weights / GIGA == pytest.approx(51.3, abs=0.1)
    assert fits == {Dtype.FP8: True, Dtype.BF16: False}


def prompt_speed_up(model: Model, engine: Engine, gpu: GPU) -> float:
    """Time of a prompt of 4,096 tokens in 16-bit weights over that in FP8."""
    bf16, fp8 = (
        ReplicaSet.of(model, Precision(weights=w, kv_cache=Dtype.BF16), engine, [(gpu, Parallelism(tp=8))])
        for w in (Dtype.BF16, Dtype.FP8)
    )
    return float((prompt_time(bf16, 4096, 0, 8192).service / prompt_time(fp8, 4096, 0, 8192).service)[0])


def test_stored_in_fp8_computed_in_16_bits(llama_405b: Model, a100: GPU, h100: GPU, vllm: Engine) -> None:
    """w8a16 on A100: prompts are no faster; decode reads half the bytes. H100 has FP8 tensor cores."""
    assert prompt_speed_up(llama_405b, vllm, a100) == pytest.approx(1.0, abs=0.05)
    assert prompt_speed_up(llama_405b, vllm, h100) > 1.1
    steps = [
        float(
            decode_step_time(
                ReplicaSet.of(
                    llama_405b, Precision(weights=w, kv_cache=Dtype.BF16), vllm, [(a100, Parallelism(tp=8))]
                ),
                1.0,
                1000.0,
            )[0]
        )
        for w in (Dtype.BF16, Dtype.FP8)
    ]
    assert steps[1] < 0.7 * steps[0]


def test_pools_of_two_types_share_the_format_of_the_cache(scenario: ScenarioBuilder) -> None:
    """FP8 weights on A100 for prompts and H100 for answers: one format of the cache for both, and groups of a
    fleet file that say otherwise are refused."""
    plan = solve(
        split(scenario, "a100-80gb-sxm", "h100-sxm", precision={"weights": "fp8", "kv_cache": "fp8"}), QUICK
    )
    assert len({g.gpu for g in plan.groups}) == 2
    assert {g.precision.kv_cache for g in plan.groups} == {Dtype.FP8}
    text = MIXED.replace("OTHER", "a100-80gb-sxm, precision: {weights: bf16, kv_cache: fp8}")
    with pytest.raises(SpecError, match=r"KV cache formats differ"):
        fleet_from_text(text)
