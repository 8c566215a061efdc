"""Which replicas become candidates, with which partners, and why others do not."""

from __future__ import annotations

from itertools import pairwise

import pytest

from planner.candidates import (
    MOST_REPLICAS,
    CandidateSet,
    build_candidates,
    forget,
    replica_counts,
)
from planner.candidates import colocated as of_colocated
from planner.candidates import disaggregated as of_disaggregated
from planner.candidates.basis import Basis
from planner.engines import load_engine
from planner.specs import Parallelism, Phase

H100 = {"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 64, "network_gbps_per_gpu": 400}
A100 = {"gpu": "a100-80gb-sxm", "price_per_gpu_hour": 1.5, "max_gpus": 64, "network_gbps_per_gpu": 200}
L40S = {"gpu": "l40s", "price_per_gpu_hour": 1.0, "max_gpus": 64, "network_gbps_per_gpu": 50}
MI300X = {"gpu": "mi300x", "price_per_gpu_hour": 2.0, "max_gpus": 64}
LARGE = {"model": "meta-llama/Llama-3.1-70B-Instruct", "precision": {"weights": "fp8", "kv_cache": "fp8"}}


def build(loaded) -> CandidateSet:
    (service,) = loaded.scenario.services
    return build_candidates(loaded.scenario, service, load_engine("vllm"))


def layouts(found: CandidateSet, phase: Phase) -> set[Parallelism]:
    return {found.choices[i].parallelism for i in found.of(phase)}


def items(found: CandidateSet, phase: Phase) -> set[int]:
    return {found.choices[i].item for i in found.of(phase)}


# --------------------------------------------------------------------------------------------


def test_everything_runs_in_parallel(scenario):
    found = build(scenario())
    number = len(found.candidates)
    assert number == len(found.choices) == len(found.operating) == len(found.binds) > 10
    for candidate, choice, operating, binds in zip(
        found.candidates, found.choices, found.operating, found.binds, strict=True
    ):
        assert candidate.phase is choice.phase
        assert candidate.gpu_type == choice.item
        assert candidate.gpus == choice.parallelism.num_gpus
        assert len(candidate.curve.starts) == len(operating) == len(binds)
        assert choice.memory.fits
        assert choice.kv_tokens >= 1200


def test_names_are_unique_and_say_what_they_are(scenario):
    found = build(scenario(fleet=[H100, A100, L40S], **LARGE))
    names = [c.name for c in found.candidates]
    assert len(set(names)) == len(names)
    for name, choice in zip(names, found.choices, strict=True):
        assert name.startswith(f"{choice.phase}-")
        assert f"-tp{choice.parallelism.tp}" in name


@pytest.mark.parametrize("use", ["forbidden", "only"])
def test_colocated_use(scenario, use):
    phases = {c.phase for c in build(scenario(options={"colocated": use})).choices}
    assert phases == ({Phase.COLOCATED} if use == "only" else {Phase.PREFILL, Phase.DECODE})


# --------------------------------------------------------------------------------------------
# Layouts


def test_allowed_tp(scenario):
    found = build(scenario(options={"allowed_tp": [2, 4]}))
    for phase in Phase:
        assert {p.tp for p in layouts(found, phase)} == {2, 4}


def test_max_tp(scenario):
    assert {p.tp for p in layouts(build(scenario(options={"max_tp": 2})), Phase.COLOCATED)} == {1, 2}


def test_pipelines_of_prefill_only(scenario):
    """The connector takes no decode side with pipeline stages."""
    found = build(scenario(options={"max_pp": 4}))
    assert {p.pp for p in layouts(found, Phase.PREFILL)} == {1, 2, 4}
    assert {p.pp for p in layouts(found, Phase.DECODE)} == {1}
    for choice in found.choices:
        assert choice.parallelism.num_gpus <= 8


def test_a_replica_stays_inside_a_node(scenario):
    found = build(scenario(fleet=[H100 | {"node_size": 2}]))
    assert max(c.parallelism.num_gpus for c in found.choices) <= 2


def test_a_replica_is_no_larger_than_the_stock(scenario):
    found = build(scenario(fleet=[H100 | {"max_gpus": 3}]))
    assert max(c.parallelism.num_gpus for c in found.choices) <= 2
    for candidate in found.candidates:
        assert candidate.max_replicas * candidate.gpus <= 3


def test_types_without_stock_are_left_out(scenario):
    assert items(build(scenario(fleet=[H100 | {"max_gpus": 0}, A100])), Phase.COLOCATED) == {1}


def test_caps_per_phase(scenario):
    found = build(scenario(fleet=[H100 | {"max_decode_gpus": 0, "max_prefill_gpus": 4}, A100]))
    assert items(found, Phase.DECODE) == {1}
    assert items(found, Phase.PREFILL) == {0, 1}
    for i in found.of(Phase.PREFILL):
        if found.choices[i].item == 0:
            assert found.candidates[i].max_replicas * found.candidates[i].gpus <= 4


# --------------------------------------------------------------------------------------------
# Rejections


def reasons(found: CandidateSet) -> dict[tuple[str, Phase, int], str]:
    return {(r.gpu, r.phase, r.parallelism.tp): r.reason for r in found.rejections}


def test_weights_that_do_not_fit_are_rejected_with_the_shortfall(scenario):
    found = build(scenario(model="meta-llama/Llama-3.1-70B-Instruct"))
    reason = reasons(found)["h100-sxm", Phase.DECODE, 1]
    assert reason.startswith("weights, activations and reserves exceed memory by ")
    assert reason.endswith(" GiB per GPU")
    assert float(reason.split()[-4]) > 50


def test_a_cache_too_small_for_the_longest_sequence_is_rejected(scenario):
    found = build(
        scenario(
            workload={"request_rate": 1, "input_tokens": 60000, "output_tokens": 1000},
            slo={"ttft_ms": {"p99": 60000}},
            fleet=[{"gpu": "l4", "price_per_gpu_hour": 1.0}],
        )
    )
    reason = reasons(found)["l4", Phase.DECODE, 1]
    assert "the longest sequence needs 61,000" in reason
    assert reason.startswith("KV cache holds ")


def test_a_replica_too_slow_for_one_request_is_rejected(scenario):
    found = build(scenario(slo={"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 9}}))
    assert reasons(found)["a100-80gb-sxm", Phase.DECODE, 1] == "one request alone exceeds an SLO"
    assert 0 in items(found, Phase.DECODE)


def test_a_format_without_a_kernel_is_rejected(scenario):
    found = build(
        scenario(
            precision={"weights": "int8", "kv_cache": "bf16"},
            fleet=[H100, {"gpu": "b200-sxm", "price_per_gpu_hour": 5.0}],
        )
    )
    assert "no kernel for int8 weights" in {r.reason for r in found.rejections if r.gpu == "h100-sxm"}
    assert items(found, Phase.COLOCATED) == set()


def test_four_bit_weights_run_natively_or_in_sixteen_bit_arithmetic(scenario):
    found = build(
        scenario(
            precision={"weights": "nvfp4", "kv_cache": "bf16"},
            fleet=[H100, {"gpu": "b200-sxm", "price_per_gpu_hour": 5.0}],
        )
    )
    assert items(found, Phase.COLOCATED) == {0, 1}


def test_fp8_weights_are_stored_on_a100(scenario):
    """w8a16: candidates exist, but prefill is no faster than with 16-bit weights."""

    def rate(weights: str) -> float:
        found = build(
            scenario(
                precision={"weights": weights, "kv_cache": "bf16"},
                fleet=[A100],
                options={"allowed_tp": [1], "max_pp": 1},
                workload={"request_rate": 100, "input_tokens": 4000, "output_tokens": 200},
                slo={"ttft_ms": {"p99": 5000}, "tpot_ms": {"p99": 100}},
            )
        )
        return max(found.candidates[i].curve.per_replica[0] for i in found.of(Phase.PREFILL))

    assert rate("fp8") == pytest.approx(rate("bf16"), rel=0.05)


# --------------------------------------------------------------------------------------------
# Pairs


def test_only_pairs_that_the_connector_takes_are_legal(scenario):
    found = build(scenario(fleet=[H100, A100], options={"max_pp": 1}))
    for i in found.of(Phase.PREFILL):
        for j in found.of(Phase.DECODE):
            p, d = found.choices[i], found.choices[j]
            if p.parallelism.tp > d.parallelism.tp:  # fan-in of grouped-query attention is not supported
                assert (i, j) in found.illegal_pairs
    legal = [
        (i, j)
        for i in found.of(Phase.PREFILL)
        for j in found.of(Phase.DECODE)
        if (i, j) not in found.illegal_pairs
    ]
    assert any(found.choices[i].item != found.choices[j].item for i, j in legal)  # types may differ


def test_vendors_do_not_pair(scenario):
    found = build(scenario(fleet=[H100, MI300X]))
    for i in found.of(Phase.PREFILL):
        for j in found.of(Phase.DECODE):
            if found.choices[i].item != found.choices[j].item:
                assert (i, j) in found.illegal_pairs


def test_slow_partners_make_a_class_of_their_own(scenario):
    """A slow NIC on the decode side leaves less of the TTFT to the prefill, in a class of its own."""
    slow = A100 | {"network_gbps_per_gpu": 10, "rdma": False}
    options = {"allowed_tp": [1], "max_pp": 1}
    found = build(scenario(fleet=[H100, slow], options=options))
    classes = {found.choices[i].path_rate for i in found.of(Phase.PREFILL) if found.choices[i].item == 0}
    assert len(classes) == 2
    step = max(found.choices[i].first_step for i in found.of(Phase.PREFILL))
    by_class = {
        found.choices[i].path_rate: found.candidates[i].curve.per_replica[0]
        for i in found.of(Phase.PREFILL)
        if found.choices[i].item == 0 and found.choices[i].first_step == step
    }
    assert by_class[max(classes)] > by_class[min(classes)]
    for i in found.of(Phase.PREFILL):
        for j in found.of(Phase.DECODE):
            if found.choices[j].item == 1 and found.choices[i].path_rate > min(classes):
                assert (i, j) in found.illegal_pairs


def test_fast_networks_are_one_class(scenario):
    found = build(
        scenario(fleet=[H100, A100 | {"network_gbps_per_gpu": 390}], options={"allowed_tp": [1], "max_pp": 1})
    )
    assert len({found.choices[i].path_rate for i in found.of(Phase.PREFILL)}) == 1


def test_slower_first_steps_need_prefills_that_leave_room(scenario):
    found = build(scenario())
    for i in found.of(Phase.PREFILL):
        for j in found.of(Phase.DECODE):
            if found.choices[j].first_step > found.choices[i].first_step:
                assert (i, j) in found.illegal_pairs


# --------------------------------------------------------------------------------------------
# Replica counts


def test_replica_counts_are_exact_at_first_and_end_where_asked():
    assert replica_counts(1) == (1,)
    assert replica_counts(4) == (1, 2, 3, 4)
    long = replica_counts(1000)
    assert long[:6] == (1, 2, 3, 4, 5, 6)
    assert long[-1] >= 1000
    assert long[: len(replica_counts(100))] == replica_counts(100)  # one grid, whatever the demand
    assert all(b <= max(a + 1, 1.26 * a + 1) for a, b in pairwise(long))


def test_no_more_replicas_than_the_demand_can_use(scenario):
    small = build(scenario(workload={"request_rate": 1, "input_tokens": 1000, "output_tokens": 200}))
    assert {c.max_replicas for c in small.candidates} == {1}
    spare = build(
        scenario(
            workload={"request_rate": 1, "input_tokens": 1000, "output_tokens": 200},
            options={"spare_replicas": 2, "min_replicas_per_pool": 4, "max_tp": 1},
        )
    )
    assert {c.max_replicas for c in spare.candidates} == {4}
    assert (
        max(
            c.max_replicas
            for c in build(scenario(fleet=[{k: v for k, v in H100.items() if k != "max_gpus"}])).candidates
        )
        <= MOST_REPLICAS
    )


def test_headroom_asks_for_more(scenario):
    plain, more = (build(scenario(options={"headroom": h, "max_tp": 1})) for h in (0.0, 1.0))
    for a, b in zip(plain.candidates, more.candidates, strict=True):
        assert b.max_replicas >= a.max_replicas
    assert any(
        b.max_replicas > a.max_replicas for a, b in zip(plain.candidates, more.candidates, strict=True)
    )


# --------------------------------------------------------------------------------------------
# What is kept between calls


def basis_of(loaded) -> Basis:
    (service,) = loaded.scenario.services
    formats = ((service.precision, ""),)
    return Basis.of(loaded.scenario, service, load_engine("vllm"), 0.0, formats)


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": {"request_rate": 500, "input_tokens": 1000, "output_tokens": 200}},
        {"slo": {"ttft_ms": {"mean": 300}}},
        {"fleet": [H100 | {"price_per_gpu_hour": 9.0, "zone": "a"}, A100 | {"zone": "b"}]},
        {"fleet": [H100 | {"max_gpus": 8}, A100]},
        {"options": {"headroom": 0.3, "spare_replicas": 2, "colocated": "forbidden"}},
        {"objective": "gpus", "budget_per_hour": 1000},
    ],
)
def test_what_no_latency_depends_on_is_no_part_of_a_basis(scenario, changes):
    assert basis_of(scenario(**changes)) == basis_of(scenario())
    assert hash(basis_of(scenario(**changes))) == hash(basis_of(scenario()))


@pytest.mark.parametrize(
    "changes",
    [
        {"workload": {"request_rate": 20, "input_tokens": 1001, "output_tokens": 200}},
        {"workload": {"request_rate": 20, "input_tokens": 1000, "output_tokens": 200, "arrivals": {"cv": 2}}},
        {"fleet": [H100 | {"max_gpus": 4}, A100]},
        {"fleet": [H100 | {"max_prefill_gpus": 2}, A100]},
        {"fleet": [H100 | {"network_gbps_per_gpu": 100}, A100]},
        {"fleet": [A100, H100]},
        {"options": {"max_tp": 2}},
        {"options": {"routing": "random"}},
        {"model": "meta-llama/Llama-3.1-70B-Instruct"},
    ],
)
def test_what_a_latency_depends_on_is_part_of_a_basis(scenario, changes):
    assert basis_of(scenario(**changes)) != basis_of(scenario())


def same(one: CandidateSet, other: CandidateSet) -> bool:
    plain = ("candidates", "choices", "binds", "illegal_pairs", "rejections", "evaluated")
    return all(getattr(one, name) == getattr(other, name) for name in plain) and all(
        a.tolist() == b.tolist() for a, b in zip(one.operating, other.operating, strict=True)
    )


def test_candidates_do_not_depend_on_what_was_asked_before(scenario):
    workload = {"input_tokens": 1000, "output_tokens": 200}
    asked = [
        scenario(workload=workload | {"request_rate": rate}, slo={"ttft_ms": {"p99": ttft}}, **more)
        for rate, ttft, more in (
            (5, 900, {}),
            (3000, 900, {"fleet": [H100 | {"max_gpus": 1000}]}),
            (20, 300, {"fleet": [H100 | {"max_gpus": 2}]}),
        )
    ]
    fresh = []
    for loaded in asked:
        forget()
        fresh.append(build(loaded))
    forget()
    for _ in range(2):
        for loaded, expected in zip(asked, fresh, strict=True):
            assert same(build(loaded), expected)
    assert max(len(c.curve.starts) for c in fresh[1].candidates) > 12  # several segments of counts


def test_what_is_kept_is_used(scenario, monkeypatch):
    forget()
    build(scenario())

    def never(*_arguments):
        raise AssertionError("evaluated again")

    for name in ("colocated_table", "sojourns", "ttft_margin"):
        monkeypatch.setattr(of_colocated, name, never)
    for name in ("prompt_queues", "prefill_curves"):
        monkeypatch.setattr(of_disaggregated, name, never)
    build(scenario(slo={"ttft_ms": {"p99": 1000}, "tpot_ms": {"p99": 38}}))  # of the same first steps
    forget()
    with pytest.raises(AssertionError, match="evaluated again"):
        build(scenario())
