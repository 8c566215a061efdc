"""What a load cannot do without, by hand."""

from __future__ import annotations

import dataclasses

import pytest

from planner import catalog
from planner.fleet import Deployed
from planner.physics import decode_work, least_time, needed, peak_flops, prompt_work
from planner.specs import (
    Dtype,
    FleetItem,
    Parallelism,
    Period,
    Phase,
    Precision,
    Service,
    Slo,
)
from planner.transformer import (
    active_weight_bytes,
    decode_flop,
    kv_bytes_per_token,
    kv_read_bytes,
    prefill_flop,
)

BF16 = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
FP8 = Precision(weights=Dtype.FP8, kv_cache=Dtype.FP8)


@pytest.fixture
def service(llama_70b, workload):
    return Service(model=llama_70b, precision=FP8, workload=workload, slo=Slo(targets=()), engine="vllm")


def group(gpu, phase: Phase, rate: float, replicas: int = 1, tp: int = 1) -> Deployed:
    return Deployed(
        phase=phase,
        item=FleetItem(gpu=gpu, price=None, max_gpus=None, node_size=8, network_bandwidth=5e10),
        parallelism=Parallelism(tp=tp),
        replicas=replicas,
        rate=rate,
        token_budget=8192,
        kv_tokens=10**6,
        max_num_seqs=256,
    )


def test_prefill_by_hand(service, h100):
    """Prompts of 500 and 2,500 tokens, three to one."""
    flop = 0.75 * float(prefill_flop(service.model, 500.0)) + 0.25 * float(
        prefill_flop(service.model, 2500.0)
    )
    found = needed(service, group(h100, Phase.PREFILL, 10.0, replicas=3, tp=2), 1.0)
    assert found.compute == pytest.approx(10 * flop / (6 * h100.peak_flops[Dtype.FP8]), rel=1e-9)
    assert found.bandwidth == 0.0


def test_decode_by_hand(service, h100):
    """Outputs of 100 and 400 tokens: the mean context is 1,000 and half of 340."""
    tokens = 10 * 250.0
    found = needed(service, group(h100, Phase.DECODE, 10.0, tp=4), 50.0)
    per_token = (
        1170.0 * kv_bytes_per_token(service.model, Dtype.FP8) + active_weight_bytes(service.model, FP8) / 50
    )
    assert found.bandwidth == pytest.approx(tokens * per_token / (4 * h100.hbm_bandwidth), rel=1e-9)
    flop = tokens * float(decode_flop(service.model, 1170.0))
    assert found.compute == pytest.approx(flop / (4 * h100.peak_flops[Dtype.FP8]), rel=1e-9)


def test_colocated_needs_both(service, h100):
    alone = [needed(service, group(h100, phase, 10.0), 20.0) for phase in (Phase.PREFILL, Phase.DECODE)]
    both = needed(service, group(h100, Phase.COLOCATED, 10.0), 20.0)
    assert both.compute == pytest.approx(sum(n.compute for n in alone))
    assert both.bandwidth == pytest.approx(alone[1].bandwidth)


def test_one_h100_never_prefills_70b_at_100_requests(llama_70b, workload, h100):
    """1,450 prompt tokens: about 20 PFLOP/s, twenty times the 16-bit peak and ten times that of fp8."""
    lengths = dataclasses.replace(
        workload.lengths, isl=dataclasses.replace(workload.lengths.isl, points=(1450.0,), weights=(1.0,))
    )
    fixed = dataclasses.replace(
        workload, lengths=lengths, periods=(Period(name="", hours=1.0, request_rate=100.0),)
    )
    for precision, factor in ((BF16, 20), (FP8, 10)):
        service = Service(
            model=llama_70b, precision=precision, workload=fixed, slo=Slo(targets=()), engine="vllm"
        )
        assert needed(service, group(h100, Phase.PREFILL, 100.0), 1.0).compute > factor


def test_a_gpu_without_fp8_is_measured_by_its_16_bit_peak(service, a100):
    found = needed(service, group(a100, Phase.PREFILL, 10.0), 1.0)
    wide = needed(dataclasses.replace(service, precision=BF16), group(a100, Phase.PREFILL, 10.0), 1.0)
    assert found.compute == pytest.approx(wide.compute)


def test_cached_tokens_are_not_computed(service, h100):
    hit = dataclasses.replace(service, workload=dataclasses.replace(service.workload, prefix_hit_rate=0.5))
    plain, cached = (needed(s, group(h100, Phase.PREFILL, 10.0), 1.0).compute for s in (service, hit))
    assert 0.45 * plain < cached < 0.6 * plain


# --------------------------------------------------------------------------------------------
# Steps


def total(flop) -> float:
    return float(sum(flop.values()))


@pytest.mark.parametrize(
    "name",
    ["meta-llama/Llama-3.1-8B", "google/gemma-3-27b-pt", "deepseek-ai/DeepSeek-V2", "Qwen/Qwen3.5-27B"],
)
def test_steps_of_one_gpu_do_what_tokens_need(name):
    """Of one sequence: the weights that a token meets, but for vectors; the FLOP of one token."""
    model = catalog.load_model(name)
    step = decode_work(model, BF16, Parallelism(), 1.0, 3000.0)
    assert total(step.flop) == pytest.approx(float(decode_flop(model, 3000.0)), rel=1e-12)
    read = active_weight_bytes(model, BF16) + float(kv_read_bytes(model, Dtype.BF16, 3000.0))
    assert float(step.traffic) == pytest.approx(read, rel=3e-3)
    assert float(step.traffic) < read
    prompt = prompt_work(model, BF16, Parallelism(), 700.0, 300.0)
    assert total(prompt.flop) == pytest.approx(float(prefill_flop(model, 1000.0, 300.0)), rel=1e-12)


def test_a_step_reads_each_expert_that_is_hit_once():
    """Mixtral: 64 tokens meet all eight experts, one token two of them."""
    model = catalog.load_model("mistralai/Mixtral-8x7B-v0.1")
    one, many = (decode_work(model, BF16, Parallelism(), b, 1.0) for b in (1.0, 64.0))
    expert = 32 * 3 * 4096 * 14336 * 2
    cache = 63 * 32 * 2 * 8 * 128 * 2
    assert float(many.traffic - one.traffic) == pytest.approx(6 * expert + cache, rel=1e-6)
    spread = decode_work(model, BF16, Parallelism(tp=4, ep=4), 64.0, 1.0)
    assert float(spread.traffic) == pytest.approx(float(many.traffic) / 4, rel=1e-9)
    assert total(spread.flop) == pytest.approx(total(many.flop) / 4, rel=1e-9)


def test_formats_compute_where_the_gpu_has_them(h100, a100, llama_8b):
    assert peak_flops(h100, Dtype.FP8_BLOCK) == h100.peak_flops[Dtype.FP8]
    assert peak_flops(a100, Dtype.FP8) == 312e12
    assert peak_flops(h100, Dtype.INT4) == 989.4e12
    assert peak_flops(catalog.load_gpu("t4"), Dtype.BF16) == 65e12
    work = prompt_work(llama_8b, FP8, Parallelism(), 4096.0, 0.0)
    eight, sixteen = work.flop[Dtype.FP8], work.flop[Dtype.BF16]
    assert least_time(work, h100) == pytest.approx(
        eight / h100.peak_flops[Dtype.FP8] + sixteen / 989.4e12, rel=1e-12
    )
    assert least_time(work, a100) == pytest.approx((eight + sixteen) / 312e12, rel=1e-12)
    few = decode_work(llama_8b, FP8, Parallelism(), 1.0, 1.0)
    assert least_time(few, h100) == pytest.approx(float(few.traffic) / 3.35e12, rel=1e-12)
