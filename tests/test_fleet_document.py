"""Fleet files: what is read from good ones, and what is said about bad ones."""

import contextlib
import json
import math
import random
from pathlib import Path

import pytest
import yaml

from planner import catalog
from planner.candidates import build_candidates
from planner.collectives import spread
from planner.documents.fleet import LoadedFleet, fleet_from_text, load_fleet
from planner.documents.fleet_schema import PLAN_RESULTS, FleetGroupDocument
from planner.documents.plan_schema import GroupDocument
from planner.documents.schemas import json_schemas
from planner.engines import load_engine
from planner.errors import SpecError
from planner.memory import sequence_limit
from planner.specs import Dtype, Metric, Phase, Routing

EXAMPLES = Path(__file__).parents[1] / "examples" / "fleets"

FLEET = """\
model: meta-llama/Llama-3.1-70B-Instruct
precision: {weights: fp8, kv_cache: fp8}
engine: vllm
workload:
  request_rate: 20
  input_tokens: {histogram: [[500, 3], [3000, 1]]}
  output_tokens: 200
slo: {ttft_ms: {p99: 1000}, tpot_ms: {p99: 50}}
routing: round_robin
groups:
  - {phase: prefill, gpu: h100-sxm, tp: 2, replicas: 3, network_gbps_per_gpu: 400}
  - name: decode
    phase: decode
    gpu: h100-sxm
    tp: 2
    replicas: 1
    max_num_seqs: 256
    max_num_batched_tokens: 2048
    price_per_gpu_hour: 6.1
"""
PREFILL = "phase: prefill, gpu: h100-sxm, tp: 2, replicas: 3"
MORE_DECODE = "    price_per_gpu_hour: 6.1\n"  # the last line: more keys or groups go behind it

COLOCATED = """\
model: meta-llama/Llama-3.1-8B-Instruct
workload: {input_tokens: {histogram: [[100, 1], [1000, 1], [4000, 1]]}, output_tokens: 200}
slo: {ttft_ms: {p99: 1000}}
groups:
  - {phase: colocated, gpu: l40s, replicas: 2, input_tokens: {max: 999}}
  - {phase: colocated, gpu: h100-sxm, replicas: 1, input_tokens: {min: 1000}}
"""

EXPERTS = """\
model: deepseek-ai/DeepSeek-V3
workload: {input_tokens: 1000, output_tokens: 200}
slo: {ttft_ms: {p99: 2000}}
groups:
  - {phase: prefill, gpu: b200-sxm, dp: 8, ep: 8, replicas: 1}
  - {phase: decode, gpu: b200-sxm, dp: 8, ep: 8, replicas: 2}
"""


def edit(*changes: tuple[str, str], text: str = FLEET) -> str:
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def read(*changes: tuple[str, str], text: str = FLEET) -> LoadedFleet:
    return fleet_from_text(edit(*changes, text=text), "f.yaml")


def problems(*changes: tuple[str, str], text: str = FLEET) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(*changes, text=text)
    return [str(problem) for problem in caught.value.problems]


# Good ones


def test_units_are_converted_and_names_resolved():
    loaded = read()
    fleet = loaded.fleet
    assert fleet.service.model.name == "meta-llama/Llama-3.1-70B-Instruct"
    assert (fleet.service.precision.weights, fleet.service.precision.kv_cache) == (Dtype.FP8, Dtype.FP8)
    assert fleet.engine is load_engine("vllm")
    assert fleet.routing is Routing.ROUND_ROBIN
    assert loaded.slo is fleet.service.slo
    assert [t.limit for t in loaded.slo.of(Metric.TTFT)] == [1.0]
    prefill, decode = fleet.groups
    assert (prefill.phase, decode.phase) == (Phase.PREFILL, Phase.DECODE)
    assert (prefill.parallelism.tp, prefill.parallelism.num_gpus, prefill.replicas) == (2, 2, 3)
    assert prefill.item.network_bandwidth == 50e9
    assert prefill.item.network_given
    assert prefill.item.node_size == prefill.item.gpu.node_size == 8
    assert not decode.item.network_given
    assert decode.item.rdma
    assert (decode.token_budget, decode.max_num_seqs) == (2048, 256)
    assert loaded.document == yaml.safe_load(FLEET)


def test_what_is_left_out_is_the_engines_the_profiles_or_expected():
    loaded = read((", network_gbps_per_gpu: 400", ""), ("routing: round_robin\n", ""), ("engine: vllm\n", ""))
    prefill = loaded.fleet.groups[0]
    assert loaded.confidence == 0.5
    assert loaded.fleet.routing is Routing.LEAST_LOADED
    assert prefill.item.network_bandwidth == prefill.item.gpu.network_bandwidth
    assert prefill.token_budget == loaded.fleet.engine.prefill_token_budget
    assert read(("routing: round", "confidence: 0.9\nrouting: round")).confidence == 0.9


def test_replicas_over_several_nodes_meet_over_the_files_nics():
    prefill = read(("tp: 2, replicas: 3, network_gbps_per_gpu: 400", "tp: 2, pp: 8, replicas: 3, "
                    "network_gbps_per_gpu: 200")).fleet.groups[0]  # fmt: skip
    assert prefill.parallelism.num_gpus == 16
    assert prefill.item.gpu.network_bandwidth == prefill.item.network_bandwidth == 25e9
    single = read(("tp: 2", "tp: 2, node_size: 1")).fleet.groups[0]
    assert spread(single.item.gpu, 2) == (1, 2)


def test_groups_share_the_rate_by_the_replicas_of_their_pool():
    more = "  - {phase: decode, gpu: h200-sxm, tp: 2, replicas: 3}\n"
    loaded = read((MORE_DECODE, MORE_DECODE + more))
    assert loaded.request_rate == 20
    assert [group.rate for group in loaded.fleet.groups] == [20, 5, 15]


def test_without_a_rate_groups_have_none():
    loaded = read(text=COLOCATED)
    assert loaded.request_rate is None
    assert [group.rate for group in loaded.fleet.groups] == [0, 0]
    preset = read(("input_tokens: {histogram: [[100, 1], [1000, 1], [4000, 1]]}, output_tokens: 200",
                   "preset: azure-2023-conversation"), text=COLOCATED)  # fmt: skip
    assert preset.request_rate is None
    assert [group.rate for group in preset.fleet.groups] == [0, 0]


def test_prices_add_up_where_all_are_known():
    assert read().prices == (None, 6.1)
    assert read().cost is None
    assert read(("tp: 2, replicas: 3", "tp: 2, replicas: 3, price_per_gpu_hour: 2")).cost == 2 * 6 + 6.1 * 2


def test_names_are_given_or_those_of_a_plan():
    assert read().names == ("prefill-h100-sxm-tp2", "decode")
    alike = "  - {phase: prefill, gpu: h100-sxm, tp: 2, replicas: 1}\n"
    named = "  - {name: prefill-h100-sxm-tp2-1, phase: decode, gpu: h100-sxm, tp: 2, replicas: 1}\n"
    loaded = read((MORE_DECODE, MORE_DECODE + alike + named))
    assert loaded.names == (
        "prefill-h100-sxm-tp2-2",
        "decode",
        "prefill-h100-sxm-tp2-3",
        "prefill-h100-sxm-tp2-1",
    )


def test_ranges_of_prompts_hold_both_ends():
    loaded = read(text=COLOCATED)
    assert loaded.input_ranges == ((0, 1000), (1000, math.inf))  # low <= isl < high
    assert read().input_ranges == ((0, math.inf), (0, math.inf))
    assert read(("min: 1000", "min: 400"), text=COLOCATED).input_ranges[1] == (400, math.inf)


def test_kv_cache_is_what_memory_leaves_or_as_the_engine_reported_it():
    modelled = read().fleet.groups[1]
    assert 400_000 < modelled.kv_tokens < 500_000
    more_steps = read(("batched_tokens: 2048", "batched_tokens: 16384")).fleet.groups[1]
    assert more_steps.kv_tokens < modelled.kv_tokens
    reported = read((MORE_DECODE, MORE_DECODE + "    kv_capacity_tokens: 123456\n")).fleet.groups[1]
    assert reported.kv_tokens == 123456


def test_a_reported_kv_cache_wins_over_what_memory_is_estimated_to_leave():
    tight = ("tp: 2, replicas", "tp: 1, max_num_batched_tokens: 65536, replicas")
    (found,) = problems(tight)
    assert "exceed the memory of h100-sxm TP1" in found
    reported = read(tight, ("tp: 1", "tp: 1, kv_capacity_tokens: 10000"))
    assert reported.fleet.groups[0].kv_tokens == 10000


def test_limit_of_sequences_is_that_of_candidates(scenario):
    gpus = ("h100-sxm", "l40s", "a100-80gb-sxm")
    fleet = [{"gpu": gpu, "price_per_gpu_hour": 1.0} for gpu in gpus]
    loaded = scenario(fleet=fleet).scenario
    engine = load_engine("vllm")
    choices = build_candidates(loaded, loaded.services[0], engine).choices
    assert {choice.phase for choice in choices} == set(Phase)
    for choice in choices:
        limit = sequence_limit(engine, loaded.fleet[choice.item].gpu, choice.phase)
        assert choice.max_num_seqs == limit * choice.parallelism.dp
    assert sequence_limit(engine, catalog.load_gpu("h100-sxm"), Phase.DECODE) == 1024
    assert sequence_limit(engine, catalog.load_gpu("h100-sxm"), Phase.PREFILL) == 256
    assert sequence_limit(engine, catalog.load_gpu("l40s"), Phase.COLOCATED) == 256
    groups = read(text=EXPERTS).fleet.groups
    assert [group.max_num_seqs for group in groups] == [8 * 256, 8 * 1024]  # of all attention ranks


def test_attention_ranks_share_what_a_file_gives_for_the_replica():
    own = read(text=EXPERTS).fleet.groups[1]
    given = f"replicas: 2, max_num_seqs: {own.max_num_seqs}, kv_capacity_tokens: {own.kv_tokens}"
    assert read(("replicas: 2", given), text=EXPERTS).fleet.groups[1] == own


def test_profiles_and_configurations_are_relative_to_the_file(tmp_path):
    profile = Path(catalog.__file__).parents[2] / "gpu_profiles" / "h100-sxm.yaml"
    (tmp_path / "gpus").mkdir()
    text = profile.read_text(encoding="utf-8").replace("name: h100-sxm", "name: mine", 1)
    (tmp_path / "gpus" / "mine.yaml").write_text(text, encoding="utf-8")
    path = tmp_path / "fleet.yaml"
    path.write_text(edit(("gpu: h100-sxm", "gpu: gpus/mine.yaml")), encoding="utf-8")
    assert [group.item.gpu.name for group in load_fleet(path).fleet.groups] == ["mine", "h100-sxm"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_are_read(path):
    assert load_fleet(path).fleet.groups


def test_there_are_examples_of_both_kinds():
    phases = [{g.phase for g in load_fleet(path).fleet.groups} for path in EXAMPLES.glob("*.yaml")]
    assert {Phase.COLOCATED} in phases
    assert {Phase.PREFILL, Phase.DECODE} in phases


# Groups of a plan

PLANNED = {
    "name": "decode-h100-sxm-tp2",
    "service": "meta-llama/Llama-3.1-70B-Instruct",
    "phase": "decode",
    "gpu": "h100-sxm",
    "parallelism": {"tp": 2, "pp": 1, "ep": 1, "dp": 1},
    "replicas": 2,
    "num_gpus": 4,
    "precision": {"weights": "fp8", "kv_cache": "fp8"},
    "max_num_seqs": 232,
    "max_num_batched_tokens": 2048,
    "max_model_len": 14336,
    "kv_capacity_tokens": 459456,
    "memory_gib": {"weights": 33.8, "activations": 1.9, "reserved": 2.1, "kv_cache": 35.1, "usable": 72.9},
    "request_rate": 20.0,
    "capacity_request_rate": None,
    "utilization": 0.9,
    "mean_batch": 157.0,
    "busy": 0.5,
    "binds": "tpot",
    "compute_utilization": 0.1,
    "bandwidth_utilization": 0.6,
    "network_utilization": 0.1,
    "cost_per_hour": None,
    "calibration": "fitted",
}


def planned(**changes: object) -> str:
    document = yaml.safe_load(FLEET)
    document["groups"][1] = PLANNED | changes
    return json.dumps(document)


def test_groups_are_pasted_from_a_plan():
    decode = fleet_from_text(planned()).fleet.groups[1]
    assert (decode.parallelism.tp, decode.replicas, decode.max_num_seqs) == (2, 2, 232)
    assert (decode.kv_tokens, decode.token_budget) == (459456, 2048)
    assert decode.rate == 20


def test_groups_of_a_zone_keep_it():
    loaded = fleet_from_text(planned(zone="east", price_class="spot"))
    assert [group.item.zone for group in loaded.fleet.groups] == ["", "east"]


def test_every_key_of_a_plans_group_is_known():
    assert set(PLANNED) == set(GroupDocument.model_fields) - {"zone", "price_class", "same_node"}
    assert set(GroupDocument.model_fields) <= set(FleetGroupDocument.model_fields)
    assert set(PLAN_RESULTS) == (set(PLANNED) | {"price_class"}) - {
        "name", "phase", "gpu", "parallelism", "replicas", "num_gpus", "precision", "max_num_seqs",
        "max_num_batched_tokens", "max_model_len", "kv_capacity_tokens",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"parallelism": {"tp": 2, "cp": 1}},
            "groups[1].parallelism.cp: unknown key (known keys: tp, pp, ep, dp)",
        ),
        ({"tp": 2}, "groups[1].tp: is given beside parallelism, got 2 (give one of them)"),
        ({"num_gpus": 6}, "groups[1].num_gpus: must be replicas x tp x pp x dp = 4, got 6 (or leave it out)"),
        (
            {"precision": {"weights": "fp8", "kv_cache": "bf16"}, "kv_capacity_tokens": 200_000},
            "groups[1]: cannot take KV caches from groups[0]: KV cache formats differ: fp8 and bf16",
        ),
        (
            {"max_model_len": 3000},
            "groups[1].max_model_len: is less than the longest sequence here, 3,200 tokens, got 3000 (raise",
        ),
        ({"max_num_seqs": None}, "groups[1].max_num_seqs: has no value (give one, or leave the key out)"),
        ({"zone": 1}, "groups[1].zone: must be text, got 1"),
        ({"bound": 1}, "groups[1].bound: unknown key (known keys: name, phase, gpu, tp"),
    ],
)
def test_what_contradicts_a_pasted_group_is_refused(changes, message):
    with pytest.raises(SpecError) as caught:
        fleet_from_text(planned(**changes))
    (problem,) = caught.value.problems
    assert message in str(problem)


# Bad ones: one problem each

BAD = [
    # keys and kinds
    (("max_num_seqs", "max_seqs"), "line 17: groups[1].max_seqs: unknown key (did you mean max_num_seqs?)"),
    (("replicas: 3", "replicas: 0"), "line 11: groups[0].replicas: must be >= 1, got 0"),
    (("replicas: 3", "replicas: 1.5"), "line 11: groups[0].replicas: must be a whole number, got 1.5"),
    (("phase: prefill", "phase: prefil"), "line 11: groups[0].phase: must be one of prefill, decode, coloc"),
    (("phase: prefill, ", ""), "line 11: groups[0].phase: is required"),
    (("tp: 2", "tensor_parallel_size: 2"), "line 11: groups[0].tensor_parallel_size: unknown key (did you"),
    (("replicas: 3", "replicas: 3, rate: 5"), "unknown key (groups share workload.request_rate by their rep"),
    (("routing: round_robin", "fleet: []"), "line 9: fleet: unknown key (did you mean groups?)"),
    (("routing: round_robin", "options: {}"), "line 9: options: unknown key (routing and confidence stand"),
    (("round_robin", "round"), "line 9: routing: must be one of least_loaded, power_of_two, round_robi"),
    (("round_robin", "length_split"), "line 9: routing: is not supported by this version"),
    (("routing: round_robin", "confidence: 0.4"), "line 9: confidence: must be >= 0.5, got 0.4"),
    (("hour: 6.1", "hour: 0"), "line 19: groups[1].price_per_gpu_hour: must be > 0, got 0"),
    (("max_num_seqs: 256", "max_num_seqs:"), "line 17: groups[1].max_num_seqs: has no value (give one, or"),
    (("max_num_seqs: 256", "max_num_seqs: 0"), "line 17: groups[1].max_num_seqs: must be >= 1, got 0"),
    (("name: decode", "name: ''"), "line 12: groups[1].name: must not be empty"),
    # names
    (("gpu: h100-sxm", "gpu: h100-smx"), "line 11: groups[0].gpu: unknown GPU 'h100-smx': did you mean"),
    (("gpu: h100-sxm", "gpu: mine.yaml"), "line 11: groups[0].gpu: mine.yaml: no such file"),
    (("Llama-3.1-70B", "Lama-3.1-70B"), "line 1: model: unknown model 'meta-llama/Lama-3.1-70B-Instruct'"),
    (
        ("phase: prefill", "name: decode, phase: prefill"),
        "line 12: groups[1].name: is the name of another group, first on line 11, got 'decode' (give each",
    ),
    # demand
    (("{p99: 1000}", "{}"), "line 8: slo.ttft_ms: gives no limit (e.g. {p99: 1000})"),
    (("  output_tokens: 200\n", ""), "line 4: workload.output_tokens: is required (or name a preset"),
    (
        ("output_tokens: 200", "output_tokens: 200000"),
        "line 6: workload.input_tokens: longest prompt and output are 3,000 + 200,000 tokens, the model",
    ),
    # pools
    (
        ("phase: prefill", "phase: decode"),
        "line 10: groups: there are decode groups, but no prefill group (add one, or make them colocated)",
    ),
    (
        ("phase: decode", "phase: prefill"),
        "line 10: groups: there are prefill groups, but no decode group (add one, or make them colocated)",
    ),
    (
        ("phase: decode", "phase: colocated"),
        "line 13: groups[1].phase: cannot stand beside prefill and decode groups, got 'colocated' (a front",
    ),
    # layouts
    (("tp: 2", "tp: 3"), "TP 3 does not divide the 64 attention heads, got 3 (the nearest legal TP is 2)"),
    (("tp: 2", "tp: 2, ep: 2"), "line 11: groups[0].ep: EP 2 needs routed experts, and the model has none"),
    (("tp: 2", "tp: 2, dp: 2"), "line 11: groups[0].dp: DP 2 needs routed experts, and the model has none"),
    (("tp: 2", "tp: 1, pp: 81, node_size: 81"), "line 11: groups[0].pp: PP 81 exceeds the 80 layers, got 81"),
    (
        ("tp: 2", "tp: 2, pp: 8, rdma: false"),
        "line 11: groups[0]: TP2 PP8 needs 16 GPUs, a node of h100-sxm has 8: what plain TCP takes between "
        "ranks is not modelled (rdma: false)",
    ),
    (
        ("tp: 2", "tp: 8, node_size: 3"),
        "line 11: groups[0]: TP8 needs 8 GPUs, a node of h100-sxm has 3: 8 GPUs of 'h100-sxm' cannot be "
        "spread evenly over 3 nodes of 3",
    ),
    (("tp: 2", "tp: 16, node_size: 16"), "line 11: groups[0]: GPU 'h100-sxm' has no all-reduce over 16 GPUs"),
    (
        ("gpu: h100-sxm, tp: 2", "gpu: v100-32gb-sxm, tp: 8"),
        "line 12: groups[1]: cannot take KV caches from groups[0]: prefill TP 8 exceeds decode TP 2",
    ),
    # pairs
    (
        ("tp: 2", "tp: 4"),
        "line 12: groups[1]: cannot take KV caches from groups[0]: prefill TP 4 exceeds decode TP 2, which "
        "is not supported for grouped-query attention [pair.tp_fan_out; ",
    ),
    (
        ("gpu: h100-sxm", "gpu: mi300x"),
        "line 12: groups[1]: cannot take KV caches from groups[0]: mi300x and h100-sxm are of different",
    ),
    (
        (MORE_DECODE, "    pp: 2\n"),
        "groups[1]: cannot take KV caches from groups[0]: the decode side has 2 pipeline stages; it must",
    ),
    # memory
    (
        ("gpu: h100-sxm, tp: 2", "gpu: l40s, tp: 1"),
        "line 11: groups[0]: weights, activations and reserves exceed the memory of l40s TP1 by ",
    ),
    (
        ("gpu: h100-sxm, tp: 2", "gpu: l4, node_size: 1, tp: 1"),
        "GiB per GPU (no layout of one node of 1 GPUs fits)",
    ),
    (
        ("max_num_batched_tokens: 2048", "max_num_batched_tokens: 1000000"),
        "GiB per GPU (lower max_num_batched_tokens or max_num_seqs)",
    ),
    (
        (MORE_DECODE, "    kv_capacity_tokens: 700000\n"),
        "line 19: groups[1].kv_capacity_tokens: exceeds the 594,480 tokens that h100-sxm TP2 holds beside "
        "the weights, got 700000",
    ),
    (
        (MORE_DECODE, "    kv_capacity_tokens: 3199\n"),
        "line 19: groups[1].kv_capacity_tokens: KV cache holds 3,199 tokens, the longest sequence needs",
    ),
    # lengths of prompts
    (
        ("tp: 2", "input_tokens: {}, tp: 2"),
        "line 11: groups[0].input_tokens: gives no bound (e.g. {max: 4096})",
    ),
    (
        ("tp: 2", "input_tokens: {min: 500, max: 300}, tp: 2"),
        "line 11: groups[0].input_tokens.max: must be >= min, which is 500, got 300",
    ),
    (
        ("tp: 2", "input_tokens: {max: 2999}, tp: 2"),
        "line 10: groups: no prefill group takes prompts of 3,000 to 3,000 tokens; the workload has 500",
    ),
    (
        ("tp: 2", "input_tokens: {min: 501}, tp: 2"),
        "line 10: groups: no prefill group takes prompts of 500 to 500 tokens; the workload has 500 to 3,000",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BAD, ids=[f"{a} -> {b}" for (a, b), _ in BAD])
def test_one_mistake_is_one_problem(change, message):
    (found,) = problems(change)
    assert message in found


def test_a_fleet_has_groups():
    text = FLEET[: FLEET.index("groups:")] + "groups: []\n"
    assert problems(text=text) == [
        "line 10: groups: the fleet has no group, got an empty list (list what runs)"
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("max: 999", "max: 899"),
            "no colocated group takes prompts of 900 to 999 tokens; the workload has 100",
        ),
        (
            ("{max: 999}", "{min: 5000}"),
            "line 5: groups[0].input_tokens: holds none of the prompt lengths that the workload is computed "
            "with (the nearest is 4,000 tokens)",
        ),
        (
            ("replicas: 2", "replicas: 2, dp: 2"),
            "line 5: groups[0].dp: colocated replicas with attention data parallelism are not modelled",
        ),
    ],
)
def test_colocated_groups_and_their_ranges(change, message):
    assert any(message in problem for problem in problems(change, text=COLOCATED))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("dp: 8, ep: 8", "dp: 8, ep: 4"),
            "line 5: groups[0].ep: EP 4 is neither 1 nor the 8 ranks of TP and DP",
        ),
        (
            ("dp: 8, ep: 8", "tp: 6, ep: 6"),
            "line 5: groups[0].ep: EP 6 does not divide the 256 experts; 2 redun",
        ),
        (
            ("replicas: 2", "replicas: 2, kv_capacity_tokens: 8000"),
            "KV cache of a rank holds 1,000 tokens, the longest sequence needs 1,200",
        ),
    ],
)
def test_experts_and_attention_ranks(change, message):
    assert any(message in problem for problem in problems(change, text=EXPERTS))


def test_long_prompts_need_room_only_where_they_go():
    """A group of short prompts may have a cache that the longest request of the traffic would not fit."""
    small = ("replicas: 2", "replicas: 2, kv_capacity_tokens: 1199")
    assert read(small, text=COLOCATED).fleet.groups[0].kv_tokens == 1199
    (found,) = problems(small, ("{max: 999}", "{max: 1000}"), text=COLOCATED)
    assert (
        "groups[0].kv_capacity_tokens: KV cache holds 1,199 tokens, the longest sequence needs 1,200" in found
    )


def test_groups_that_share_no_prompt_need_not_be_a_legal_pair():
    short = ("tp: 2, replicas: 3", "tp: 4, replicas: 3, input_tokens: {max: 1000}")
    other = "  - {phase: prefill, gpu: h100-sxm, tp: 2, replicas: 1, input_tokens: {min: 1001}}\n"
    wide = "  - {phase: decode, gpu: h100-sxm, tp: 4, replicas: 1, input_tokens: {max: 1000}}\n"
    long = MORE_DECODE + "    input_tokens: {min: 1001}\n"
    assert len(read(short, (MORE_DECODE, long + other + wide)).fleet.groups) == 4
    (found,) = problems(short, (MORE_DECODE, MORE_DECODE + other))
    assert "groups[1]: cannot take KV caches from groups[0]: prefill TP 4 exceeds decode TP 2" in found


def test_the_smallest_layout_that_fits_is_named():
    (found,) = problems(("gpu: h100-sxm, tp: 2", "gpu: l40s, tp: 1"))
    assert found.endswith("(the smallest layout that fits is TP2)")


def test_all_problems_are_told_at_once():
    found = problems(
        ("p99: 1000", "p99: fast"),
        ("request_rate: 20", "request_rate: -1"),
        ("tp: 2", "tp: 3"),
        ("gpu: h100-sxm\n", "gpu: h100\n"),
        ("max_num_seqs", "max_seqs"),
    )
    keys = [problem.split(": ")[1] for problem in found]
    assert keys == ["workload.request_rate", "slo.ttft_ms.p99", "groups[0].tp", "groups[1].max_seqs"]


def test_the_json_schema_has_the_keys_that_are_read():
    schema = json_schemas()["fleet"]
    assert {"model", "workload", "slo", "groups"} == set(schema["required"])
    assert set(schema["$defs"]["FleetGroupDocument"]["properties"]) == set(FleetGroupDocument.model_fields)


@pytest.mark.parametrize(
    "groups", ["1", "[1]", "[[]]", "{a: 1}", "[{}]", "[{phase: [decode], gpu: {}, tp: x}]"]
)
def test_groups_of_any_kind_are_refused(groups):
    assert problems(text=FLEET[: FLEET.index("groups:")] + f"groups: {groups}\n")


def test_mutated_values_give_a_fleet_or_a_spec_error():
    rng = random.Random(7)
    values = [None, 0, -1, 1.5, "x", [], {}, True, 10**12, 3, 16, "decode", {"max": 1}, {"tp": 3}]
    keys = ("tp", "pp", "ep", "dp", "input_tokens", "kv_capacity_tokens", "node_size", "parallelism", "name")
    for _ in range(200):
        document = yaml.safe_load(rng.choice((FLEET, COLOCATED, EXPERTS)))
        group = rng.choice(document["groups"])
        place, key = rng.choice([(document, k) for k in document] + [(group, k) for k in (*group, *keys)])
        place[key] = rng.choice(values)
        with contextlib.suppress(SpecError):
            assert fleet_from_text(json.dumps(document)).fleet.groups
