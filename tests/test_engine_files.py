"""SGLang and TensorRT-LLM: known facts of their files, and plans and predictions with them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner import catalog
from planner.candidates import build_candidates
from planner.configuration import Configuration, Load, Replicas, predict
from planner.documents.engine import EngineDocument
from planner.documents.fleet import fleet_from_text
from planner.documents.scenario import LoadedScenario, scenario_from_text
from planner.documents.source import parse_document
from planner.engines import engine_names, estimated_engine, load_engine
from planner.engines import legality as rules
from planner.engines.formats import gpu_obstacle, weight_choices, weights_obstacle
from planner.errors import SpecError
from planner.latency import decode_step_time
from planner.memory import kv_capacity, memory_budgets, prefill_budget, sequence_limit, step_bytes
from planner.operators import ReplicaSet
from planner.specs import (
    GPU,
    Admission,
    Dtype,
    Engine,
    Model,
    Parallelism,
    Phase,
    Precision,
    SchedulerPolicy,
)
from planner.units import GIB, MIB, MILLI

BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
ONE = Parallelism(tp=1)
FOLDER = Path(rules.__file__).parent
NEW = ("sglang", "trtllm")


@pytest.fixture(scope="module")
def sglang() -> Engine:
    return load_engine("sglang")


@pytest.fixture(scope="module")
def trtllm() -> Engine:
    return load_engine("trtllm")


# --------------------------------------------------------------------------------------------
# Known facts


def test_there_are_three() -> None:
    assert engine_names() == ("sglang", "trtllm", "vllm")


@pytest.mark.parametrize(
    ("name", "policy", "admission", "first", "block", "sequences"),
    [
        ("vllm", SchedulerPolicy.CHUNKED_PREFILL, Admission.PAGED, Phase.DECODE, 16, 1024),
        ("sglang", SchedulerPolicy.PREFILL_FIRST, Admission.PAGED, Phase.PREFILL, 64, 2048),
        ("trtllm", SchedulerPolicy.CHUNKED_PREFILL, Admission.RESERVE, Phase.PREFILL, 32, 2048),
    ],
)
def test_scheduler_defaults(
    name: str, policy: SchedulerPolicy, admission: Admission, first: Phase, block: int, sequences: int
) -> None:
    engine = load_engine(name)
    assert (engine.scheduler, engine.admission, engine.first_token_phase) == (policy, admission, first)
    assert (engine.block_size, engine.max_num_seqs) == (block, sequences)
    file = estimated_engine(name)
    assert (file.step_overhead, file.decode_scale, file.prefill_scale) == (0.8 * MILLI, 1.0, 1.0)
    assert file.log_sd == 0.10


@pytest.mark.parametrize(
    ("gpu", "budgets"),
    [
        ("t4", (2048, 8192, 8192)),  # 14.6 GiB
        ("l4", (4096, 8192, 8192)),
        ("a100-40gb-sxm", (4096, 8192, 8192)),
        ("l40s", (4096, 8192, 8192)),
        ("a100-80gb-sxm", (8192, 8192, 8192)),
        ("h100-sxm", (8192, 8192, 8192)),
        ("h200-sxm", (8192, 8192, 8192)),
        ("b200-sxm", (16384, 8192, 8192)),
        ("mi300x", (16384, 8192, 8192)),
    ],
)
def test_prefill_chunks_follow_the_memory(gpu: str, budgets: tuple[int, ...]) -> None:
    assert tuple(prefill_budget(load_engine(n), catalog.load_gpu(gpu)) for n in engine_names()) == budgets


def test_sequence_limits_are_data_of_the_engine(h100: GPU, sglang: Engine, vllm: Engine) -> None:
    l40s = catalog.load_gpu("l40s")
    assert [sequence_limit(vllm, g, Phase.DECODE) for g in (l40s, h100)] == [256, 1024]
    assert [sequence_limit(sglang, g, Phase.DECODE) for g in (l40s, h100)] == [2048, 2048]
    assert sequence_limit(sglang, h100, Phase.PREFILL) == 256
    assert sequence_limit(dataclasses.replace(vllm, memory_tiers=()), l40s, Phase.COLOCATED) == 1024


def test_captured_batches(sglang: Engine, trtllm: Engine) -> None:
    assert sglang.graph_batch_sizes[:6] == (1, 2, 4, 8, 12, 16)
    assert sglang.graph_batch_sizes[-3:] == (480, 496, 512)
    assert len(sglang.graph_batch_sizes) == 5 + 31 + 15 + 1
    assert trtllm.graph_batch_sizes == (1, 2, 4, *range(8, 129, 8), 256, 512, 1024, 2048)


def test_what_runs_where(sglang: Engine, trtllm: Engine, vllm: Engine) -> None:
    a100, mi300x, t4 = (catalog.load_gpu(n) for n in ("a100-80gb-sxm", "mi300x", "t4"))
    assert gpu_obstacle(mi300x, trtllm) == "trtllm does not run on cdna3 GPUs"
    assert gpu_obstacle(t4, trtllm)
    assert not gpu_obstacle(mi300x, sglang)
    assert not any(gpu_obstacle(catalog.load_gpu(n), vllm) for n in catalog.gpu_names())
    fp8, block, int4 = (Precision(weights=d, kv_cache=Dtype.BF16) for d in ("fp8", "fp8_block", "int4"))
    assert weights_obstacle(fp8, a100, trtllm) == "no kernel for fp8 weights"
    assert weights_obstacle(block, a100, sglang) == "no kernel for fp8_block weights"
    assert not weights_obstacle(fp8, a100, sglang)
    assert not weights_obstacle(int4, a100, trtllm)


def test_trtllm_quantises_nothing_as_it_loads(llama_8b: Model, sglang: Engine, trtllm: Engine) -> None:
    assert weight_choices(llama_8b, trtllm) == (Dtype.BF16,)
    assert weight_choices(llama_8b, sglang) == (Dtype.BF16, Dtype.FP8)


@pytest.mark.parametrize(
    ("name", "prefill", "decode", "rule"),
    [
        ("sglang", {"tp": 4}, {"tp": 2}, None),  # slower, but not refused
        ("sglang", {"tp": 4}, {"tp": 6}, "pair.tp_divides"),
        ("sglang", {"pp": 2}, {"pp": 2}, None),
        ("sglang", {}, {"pp": 2}, "pair.decode_pp_matches"),
        ("sglang", {"block_size": 16}, {}, "pair.equal_block_size"),
        ("sglang", {"kv_cache": Dtype.FP8}, {}, "pair.kv_dtype"),
        ("sglang", {"vendor": "amd"}, {}, "pair.vendor"),
        ("trtllm", {"tp": 2}, {"tp": 1}, "pair.tp_fan_out"),
        ("trtllm", {"tp": 1}, {"tp": 2}, None),
        ("trtllm", {}, {"pp": 2}, None),
        ("trtllm", {"block_size": 64}, {}, "pair.equal_block_size"),
    ],
)
def test_pair_rules(
    name: str, prefill: dict[str, Any], decode: dict[str, Any], rule: str | None, llama_8b: Model
) -> None:
    def end(tp: int = 1, pp: int = 1, **changes: Any) -> rules.EndPoint:
        point = rules.EndPoint(
            parallelism=Parallelism(tp=tp, pp=pp),
            gpu="g",
            vendor="nvidia",
            kv_cache=Dtype.BF16,
            block_size=32,
        )
        return dataclasses.replace(point, **changes)

    found = rules.pair_violation(end(**prefill), end(**decode), llama_8b, load_engine(name).pair_rules)
    assert (found.rule if found else None) == rule
    assert found is None or (found.reason and found.source)


# --------------------------------------------------------------------------------------------
# Messages


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "value: paged",
            "value: eager",
            r"line 38: scheduler.admission.value: must be one of paged, reserve, got 'eager'",
        ),
        ("below_gib: 60", "below_gib: 10", r"line (\d+): scheduler.memory_tiers.value: must ascend"),
        (
            "free_share: {value: 1.0",
            "free_share: {value: 1.5",
            r"line (\d+): memory.free_share.value: must be",
        ),
        ("least_gib:", "least_gb:", r"line (\d+): memory.step_reserve.least_gb: unknown key \(did you mean"),
    ],
)
def test_faults_are_told_with_their_line(old: str, new: str, said: str) -> None:
    text = (FOLDER / "sglang.yaml").read_text(encoding="utf-8")
    assert text.count(old) == 1
    with pytest.raises(SpecError, match=said):
        parse_document(text.replace(old, new), "s.yaml", EngineDocument)


def test_admission_is_required() -> None:
    text = (FOLDER / "vllm.yaml").read_text(encoding="utf-8")
    with pytest.raises(SpecError, match=r"scheduler.admission: unknown key|scheduler.admission: is required"):
        parse_document(text.replace("  admission:", "  admision:"), "v.yaml", EngineDocument)


def test_an_unknown_engine_is_told_which_there_are(planner: Callable[..., Any]) -> None:
    for name, meant in (("sglan", "did you mean sglang? "), ("tgi", "")):
        asked = ("-m", "meta-llama/Llama-3.1-8B", "-g", "h100-sxm", "--engine", name)
        result = planner("memory", *asked)
        assert result.code == 2
        assert f"unknown engine '{name}': {meant}known: sglang, trtllm, vllm" in result.err
    with pytest.raises(SpecError, match=r"engine: must be one of sglang, trtllm, vllm, got 'tgi'"):
        scenario_of("tgi")


# --------------------------------------------------------------------------------------------
# Memory, by hand

WEIGHTS = 8_030_261_248 * 2  # parameters of Llama-3.1-8B in 16 bits


def test_a_share_of_what_is_free(llama_8b: Model, h100: GPU, trtllm: Engine) -> None:
    """0.9 of 79.19 GiB less weights, 2.51 GiB of activations and 0.25 outside the allocator."""
    (budget,) = memory_budgets(llama_8b, BF16, trtllm, h100, ONE, 8192, 2048)
    activations = 8192 * 4096 * 2 + 2048 * 128_256 * 10
    assert budget.activations == activations
    assert budget.weights == pytest.approx(WEIGHTS, rel=1e-6)
    free = 79.19 * GIB - WEIGHTS - activations - 0.25 * GIB
    assert budget.kv_cache == pytest.approx(0.9 * free, rel=1e-6)
    assert budget.reserved == pytest.approx(0.25 * GIB + 0.1 * free, rel=1e-6)
    assert budget.weights + budget.activations + budget.reserved + budget.kv_cache == pytest.approx(
        budget.usable, rel=1e-12
    )
    tokens = kv_capacity(llama_8b, BF16, trtllm, ONE, (budget,))
    assert tokens == 0.9 * free // (131_072 * 32) * 32


def test_what_is_missing_is_told_whole(llama_70b: Model, h100: GPU, trtllm: Engine) -> None:
    """Where nothing is free there is no share of it: 70B in 16 bits lack more than 50 GiB on one GPU."""
    (budget,) = memory_budgets(llama_70b, BF16, trtllm, h100, ONE, 8192, 2048)
    assert not budget.fits
    assert budget.reserved == 0.25 * GIB
    assert budget.kv_cache == budget.usable - budget.weights - budget.activations - budget.reserved
    assert budget.kv_cache < -50 * GIB


def test_sglang_sets_memory_for_steps_aside(llama_8b: Model, h100: GPU, sglang: Engine) -> None:
    """2,000 MiB, 1.5 MiB per token of a chunk, 128 MiB per GPU of the replica."""
    four = Parallelism(tp=4)
    assert step_bytes(llama_8b, sglang, h100, ONE, 8192, 2048) == (2000 + 1.5 * 8192 + 128) * MIB
    assert step_bytes(llama_8b, sglang, h100, four, 8192, 2048) == (2000 + 1.5 * 8192 + 4 * 128) * MIB
    (budget,) = memory_budgets(llama_8b, BF16, sglang, h100, ONE, 8192, 2048)
    assert budget.kv_cache == pytest.approx((79.19 - 0.25) * GIB - 14416 * MIB - WEIGHTS, rel=1e-6)
    # what --mem-fraction-static would be: 0.830 by SGLang's own count, with 256 captured at TP 1
    assert (budget.weights + budget.kv_cache) / h100.memory == pytest.approx(0.82, abs=0.01)


def test_large_gpus_keep_ten_gib(llama_8b: Model, h100: GPU, sglang: Engine) -> None:
    """A decode replica with steps of 2,048 tokens would set 5,200 MiB aside."""
    l40s = catalog.load_gpu("l40s")
    assert step_bytes(llama_8b, sglang, h100, ONE, 2048, 256) == 10 * GIB
    assert step_bytes(llama_8b, sglang, l40s, ONE, 2048, 256) == 5200 * MIB


def test_a_step_larger_than_the_reserve_counts(llama_8b: Model, h100: GPU, sglang: Engine) -> None:
    greedy = dataclasses.replace(sglang, logits_bytes_per_entry=100.0)
    sampler = 8192 * 4096 * 2 + 2048 * 128_256 * 100
    assert step_bytes(llama_8b, greedy, h100, ONE, 8192, 2048) == sampler


def test_memory_is_printed(planner: Callable[..., Any]) -> None:
    asked = ("memory", "-m", "meta-llama/Llama-3.1-8B", "-g", "b200-sxm", "--engine")
    facts = planner(*asked, "trtllm", "--json").facts
    assert facts["free_share"] == 0.9
    assert "90% of what is left for KV cache" in planner(*asked, "trtllm").out.replace("\n", " ")
    stage = planner(*asked, "sglang", "--json").facts["stages"][0]
    assert stage["activations_gib"] == (2000 + 1.5 * 16384 + 128) / 1024  # chunks of a GPU with 178 GiB


# --------------------------------------------------------------------------------------------
# The first token


def apart(model: Model, gpu: GPU, engine: Engine) -> Configuration:
    pool = Replicas(count=1, gpu=gpu, parallelism=ONE)
    return Configuration(model=model, precision=BF16, engine=engine, prefill=pool, decode=pool)


@pytest.mark.parametrize("name", NEW)
def test_a_handed_over_token_waits_for_no_decode_step(name: str, llama_8b: Model, h100: GPU) -> None:
    """One client: the TTFT of an engine whose decode side makes the token is longer by one step of one."""
    engine = load_engine(name)
    late = dataclasses.replace(engine, first_token_phase=Phase.DECODE)
    load = Load(isl=1000, osl=100, concurrency=1)
    early, other = (predict(apart(llama_8b, h100, e), load) for e in (engine, late))
    r = ReplicaSet.of(llama_8b, BF16, engine, [(h100, ONE)], 0.0)
    step = float(decode_step_time(r, 1.0, 1050.0)[0])
    assert other.ttft - early.ttft == pytest.approx(step, rel=0.02)
    assert early.tpot == pytest.approx(other.tpot, rel=1e-3)


@pytest.mark.parametrize("name", NEW)
def test_so_it_is_under_arrivals(name: str, llama_8b: Model, h100: GPU) -> None:
    """At light load a new sequence waits for about one step, or one and a half beside a running one."""
    engine = load_engine(name)
    late = dataclasses.replace(engine, first_token_phase=Phase.DECODE)
    load = Load(isl=1000, osl=100, rate=0.5)
    early, other = (predict(apart(llama_8b, h100, e), load) for e in (engine, late))
    assert 1.0 <= (other.ttft - early.ttft) / other.tpot <= 1.5


@pytest.mark.parametrize("name", NEW)
def test_prediction_and_simulation_agree_about_it(
    name: str, planner: Callable[..., Any], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(json.dumps(fleet_of(name)), encoding="utf-8")
    facts = planner("simulate", plan, "--json", "--requests", 3000).facts
    simulated = facts["ttft_ms"]["mean"]
    pool = Replicas(count=1, gpu=catalog.load_gpu("h100-sxm"), parallelism=ONE)
    model, engine = catalog.load_model("meta-llama/Llama-3.1-8B-Instruct"), load_engine(name)
    c = Configuration(model=model, precision=BF16, engine=engine, prefill=pool, decode=pool)
    predicted = predict(c, Load(isl=1000, osl=100, rate=2.0)).ttft / MILLI
    assert simulated == pytest.approx(predicted, rel=0.05)


# --------------------------------------------------------------------------------------------
# Plans


def scenario_of(engine: str, **options: Any) -> LoadedScenario:
    return scenario_from_text(json.dumps(document_of(engine, **options)))


def document_of(engine: str, **options: Any) -> dict[str, Any]:
    return {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "precision": {"weights": "bf16", "kv_cache": "bf16"},
        "engine": engine,
        "workload": {"request_rate": 10, "input_tokens": 1000, "output_tokens": 100},
        "slo": {"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 40}},
        "fleet": [
            {"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 8, "network_gbps_per_gpu": 400},
            {"gpu": "b200-sxm", "price_per_gpu_hour": 6.0, "max_gpus": 8, "network_gbps_per_gpu": 400},
            {"gpu": "mi300x", "price_per_gpu_hour": 2.0, "max_gpus": 8, "network_gbps_per_gpu": 400},
        ],
        "options": options,
    }


def fleet_of(engine: str, gpu: str = "h100-sxm") -> dict[str, Any]:
    group = {"gpu": gpu, "tp": 1, "replicas": 1, "network_gbps_per_gpu": 400}
    return {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "precision": {"weights": "bf16", "kv_cache": "bf16"},
        "engine": engine,
        "workload": {"request_rate": 2, "input_tokens": 1000, "output_tokens": 100},
        "slo": {"ttft_ms": {"p99": 1000}},
        "groups": [{"phase": "prefill", **group}, {"phase": "decode", **group}],
    }


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize(("mode", "verify"), [("forbidden", True), ("only", False)])
def test_a_scenario_is_solved(
    name: str, mode: str, verify: bool, planner: Callable[..., Any], tmp_path: Path
) -> None:
    path, target = tmp_path / "s.yaml", tmp_path / "plan.yaml"
    path.write_text(json.dumps(document_of(name, colocated=mode, max_tp=1)), encoding="utf-8")
    more = () if verify else ("--no-verify",)
    result = planner("solve", path, "--json", "--no-alternatives", "-o", target, *more)
    assert result.code == 0, result.err
    plan = result.facts
    assert plan["engine"] == {"name": name, "version": load_engine(name).version}
    phases = {group["phase"] for group in plan["groups"]}
    assert phases == ({"colocated"} if mode == "only" else {"prefill", "decode"})
    if verify:
        assert plan["verification"]["passed"]
    for group in plan["groups"]:
        gpu = catalog.load_gpu(group["gpu"])
        assert not gpu_obstacle(gpu, load_engine(name))
        if group["phase"] == "prefill":
            assert group["max_num_batched_tokens"] == prefill_budget(load_engine(name), gpu)
    assert planner("simulate", target, "--requests", 1000).code in (0, 5)


def test_chunks_of_prefill_candidates_are_those_of_their_gpus(sglang: Engine) -> None:
    loaded = scenario_of("sglang", colocated="forbidden", max_tp=1).scenario
    found = build_candidates(loaded, loaded.services[0], sglang)
    chunks = {
        (loaded.fleet[found.choices[i].item].gpu.name, found.choices[i].token_budget)
        for i in found.of(Phase.PREFILL)
    }
    assert chunks == {("h100-sxm", 8192), ("b200-sxm", 16384), ("mi300x", 16384)}
    assert len(found.choices) == len(found.candidates)


def test_gpus_that_an_engine_does_not_run_on_are_told(trtllm: Engine) -> None:
    loaded = scenario_of("trtllm").scenario
    found = build_candidates(loaded, loaded.services[0], trtllm)
    refused = {r.gpu for r in found.rejections if r.reason == "trtllm does not run on cdna3 GPUs"}
    assert refused == {"mi300x"}
    assert all(loaded.fleet[c.item].gpu.name != "mi300x" for c in found.choices)
    with pytest.raises(SpecError, match=r"groups\[0\].gpu: trtllm does not run on cdna3 GPUs"):
        fleet_from_text(json.dumps(fleet_of("trtllm", "mi300x")), "f.yaml")
    pool = Replicas(count=1, gpu=catalog.load_gpu("mi300x"), parallelism=ONE)
    with pytest.raises(SpecError, match="trtllm does not run on cdna3 GPUs"):
        Configuration(
            model=catalog.load_model("meta-llama/Llama-3.1-8B"), precision=BF16, engine=trtllm, colocated=pool
        )


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("pools", [(), ("--mode", "disagg", "--prefill", "1xTP1", "--decode", "1xTP2")])
def test_predict(name: str, pools: tuple[str, ...], planner: Callable[..., Any]) -> None:
    asked = ("-m", "meta-llama/Llama-3.1-8B", "-g", "h100-sxm", "--engine", name, "--isl", 1000, "--osl", 200)
    facts = planner("predict", *asked, *pools, "-c", 16, "--json").facts
    assert facts["fits"]
    assert 3 < facts["tpot_ms"] < 20  # two GPUs read the weights in 2.2 ms
    assert facts["ttft_ms"] > 20
