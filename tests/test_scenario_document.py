"""Scenario files: what is read from good ones, and what is said about bad ones."""

import json
import random
import subprocess
import sys

import pytest
import yaml
from scenario_mutations import mutated_lines, mutated_value

from planner.documents.scenario import load_scenario, read_scenario, scenario_from_text
from planner.errors import Problem, SpecError
from planner.specs import (
    ColocatedUse,
    Dtype,
    Metric,
    Objective,
    Phase,
    Routing,
    Scenario,
    Statistic,
)

SCENARIO = """\
model: meta-llama/Llama-3.1-70B-Instruct
precision: {weights: fp8, kv_cache: e4m3}
engine: vllm
workload:
  request_rate: 20
  arrivals: {cv: 2.5}
  input_tokens: {mean: 1000, cv: 0.5}
  output_tokens: {p50: 100, p90: 400, p99: 900}
  prefix_cache_hit_rate: 0.3
slo:
  ttft_ms: {p99: 1500}
  tpot_ms: {p99: 15, mean: 10}
fleet:
  - gpu: h100-sxm
    price_per_gpu_hour: 2.99
    max_gpus: 64
    network_gbps_per_gpu: 400
  - {gpu: l40s, price_per_gpu_hour: 0.86, max_gpus: 0, node_size: 4, rdma: no, max_decode_gpus: 16}
objective: cost
options: {colocated: forbidden, routing: random, headroom: 0.1, confidence: 0.9, allowed_tp: [4, 1]}
"""


def read(text: str = SCENARIO) -> Scenario:
    return scenario_from_text(text, "s.yaml").scenario


def edit(*changes: tuple[str, str]) -> str:
    text = SCENARIO
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(text)
    return [str(problem) for problem in caught.value.problems]


# Good ones


def test_units_are_converted_and_names_resolved():
    scenario = read()
    (service,) = scenario.services
    h100, l40s = scenario.fleet
    assert service.model.name == "meta-llama/Llama-3.1-70B-Instruct"
    assert (service.precision.weights, service.precision.kv_cache) == (Dtype.FP8, Dtype.FP8)
    assert service.workload.request_rate == 20
    assert service.workload.arrival_scv == 6.25
    assert service.workload.prefix_hit_rate == 0.3
    assert service.workload.lengths.isl.mean == pytest.approx(1000)
    assert [(t.metric, t.statistic, t.limit) for t in service.slo.targets] == [
        (Metric.TTFT, Statistic.P99, pytest.approx(1.5)),
        (Metric.TPOT, Statistic.MEAN, pytest.approx(0.010)),
        (Metric.TPOT, Statistic.P99, pytest.approx(0.015)),
    ]
    assert (h100.gpu.name, h100.price, h100.max_gpus, h100.rdma) == ("h100-sxm", 2.99, 64, True)
    assert h100.network_bandwidth == 50e9
    assert h100.network_given
    assert h100.node_size == h100.gpu.node_size
    assert (l40s.max_gpus, l40s.node_size, l40s.rdma) == (0, 4, False)
    assert l40s.max_gpus_by_phase == {Phase.DECODE: 16}
    assert l40s.network_bandwidth == l40s.gpu.network_bandwidth
    assert not l40s.network_given
    assert scenario.objective is Objective.COST
    assert scenario.options.colocated is ColocatedUse.FORBIDDEN
    assert scenario.options.routing is Routing.RANDOM
    assert scenario.options.allowed_tp == (1, 4)
    assert scenario.budget is None


def test_the_document_is_kept_as_read():
    loaded = scenario_from_text(SCENARIO)
    assert loaded.document["slo"] == {"ttft_ms": {"p99": 1500}, "tpot_ms": {"p99": 15, "mean": 10}}
    assert loaded.document == yaml.safe_load(SCENARIO)


def test_files_are_read_with_paths_relative_to_them(tmp_path):
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_hidden_layers": 32,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "torch_dtype": "float16",
        "tie_word_embeddings": False,
    }
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    path = tmp_path / "scenario.yaml"
    path.write_text(
        edit(("meta-llama/Llama-3.1-70B-Instruct", "mine/config.json"), ("weights: fp8, kv_cache: e4m3", ""))
    )
    (service,) = load_scenario(path).services
    assert service.model.hidden == 4096
    assert (service.precision.weights, service.precision.kv_cache) == (Dtype.FP16, Dtype.FP16)
    assert read_scenario(path).document["model"] == "mine/config.json"


def test_presets_give_lengths_rate_and_burstiness_and_explicit_values_win():
    start = SCENARIO.index("  request_rate")
    text = SCENARIO[:start] + "  preset: azure-2023-conversation\n" + SCENARIO[SCENARIO.index("slo:") :]
    preset = read(text).services[0].workload
    assert preset.name == "azure-2023-conversation"
    assert preset.citation
    assert preset.request_rate > 0
    more = "  preset: azure-2023-conversation\n  output_tokens: 64\n  request_rate: 3\n  arrivals: poisson\n"
    mixed = read(text.replace("  preset: azure-2023-conversation\n", more)).services[0].workload
    assert mixed.lengths.isl == preset.lengths.isl
    assert mixed.lengths.osl.points == (64,)
    assert mixed.lengths.isl_per_output_token == mixed.lengths.isl.mean
    assert (mixed.request_rate, mixed.arrival_scv) == (3, 1)


def test_lengths_in_every_form():
    workload = (
        "{request_rate: 1, input_tokens: {histogram: [[100, 3], [900, 1]], max: 500}, output_tokens: 7}"
    )
    start, end = SCENARIO.index("workload:"), SCENARIO.index("slo:")
    lengths = read(f"{SCENARIO[:start]}workload: {workload}\n{SCENARIO[end:]}").services[0].workload.lengths
    assert (lengths.isl.points, lengths.isl.weights) == ((100, 500), (0.75, 0.25))
    assert lengths.osl.points == (7,)


def test_throughput_needs_no_rate_and_no_price():
    text = edit(
        ("  request_rate: 20\n", ""),
        ("    price_per_gpu_hour: 2.99\n", ""),
        ("price_per_gpu_hour: 0.86, ", ""),
        ("objective: cost", "objective: throughput"),
    )
    scenario = read(text)
    assert scenario.objective is Objective.THROUGHPUT
    assert [item.price for item in scenario.fleet] == [None, None]


def test_owned_gpus_may_be_free():
    for price in ("0", "1.5"):
        text = edit(("price_per_gpu_hour: 2.99", f"price_per_gpu_hour: {price}\n    owned: true"))
        assert read(text).fleet[0].price == float(price)
    assert read(edit(("price_per_gpu_hour: 2.99", "owned: true"))).fleet[0].price == 0


def test_weights_and_kv_cache_formats_are_independent():
    precision = read(edit(("{weights: fp8, kv_cache: e4m3}", "{weights: fp8}"))).services[0].precision
    assert (precision.weights, precision.kv_cache) == (Dtype.FP8, Dtype.BF16)
    precision = read(edit(("{weights: fp8, kv_cache: e4m3}", "{kv_cache: fp8}"))).services[0].precision
    assert (precision.weights, precision.kv_cache) == (Dtype.BF16, Dtype.FP8)


# Bad ones: one problem each

H100_PRICE = "    price_per_gpu_hour: 2.99\n"

BAD = [
    # unknown keys and wrong units
    (("max_gpus: 64", "max_gpu: 64"), "line 16: fleet[0].max_gpu: unknown key (did you mean max_gpus?)"),
    (
        ("ttft_ms: {p99: 1500}", "ttft_s: {p99: 1.5}"),
        "line 11: slo.ttft_s: unknown key (did you mean ttft_ms?)",
    ),
    (("ttft_ms: {p99: 1500}", "ttft: {p99: 1.5}"), "line 11: slo.ttft: unknown key (did you mean ttft_ms?)"),
    (("tpot_ms: {p99: 15", "itl_ms: {p99: 15"), "line 12: slo.itl_ms: unknown key (did you mean tpot_ms?)"),
    (("p99: 1500", "p999: 1500"), "line 11: slo.ttft_ms.p999: unknown key (did you mean p99?)"),
    (("cv: 2.5", "cv: 2.5, sd: 1"), "line 6: workload.arrivals.sd: unknown key (known keys: cv)"),
    (("{mean: 1000, cv: 0.5}", "{mean: 1000, cv: 0.5, maximum: 9}"), "input_tokens.maximum: unknown key ("),
    (("headroom: 0.1", "headrom: 0.1"), "line 20: options.headrom: unknown key (did you mean headroom?)"),
    (("objective: cost", "budget: 10"), "line 19: budget: unknown key (did you mean budget_per_hour?)"),
    (("  request_rate: 20", "  request_rate: 20\n  concurrency: 5"), "give request_rate = users / (seconds"),
    # prices
    ((H100_PRICE, ""), "line 14: fleet[0].price_per_gpu_hour: missing price: objective is cost (give it, or"),
    (
        ("hour: 2.99", "hour: 0"),
        "line 15: fleet[0].price_per_gpu_hour: must be > 0, got 0 (or say owned: true)",
    ),
    (("hour: 2.99", "hour: -1"), "line 15: fleet[0].price_per_gpu_hour: must be >= 0, got -1"),
    (
        ("hour: 2.99", "hour: $2.99"),
        "line 15: fleet[0].price_per_gpu_hour: must be a number, got '$2.99' (write",
    ),
    (("objective: cost", "budget_per_hour: 0"), "line 19: budget_per_hour: must be > 0, got 0"),
    # traffic
    (("request_rate: 20", "request_rate: -20"), "line 5: workload.request_rate: must be >= 1e-06, got -20"),
    (("request_rate: 20", "request_rate: 0"), "line 5: workload.request_rate: must be >= 1e-06, got 0"),
    (
        ("request_rate: 20", "request_rate: .inf"),
        "line 5: workload.request_rate: must be a finite number, got",
    ),
    (
        ("request_rate: 20", "request_rate: '20'"),
        "line 5: workload.request_rate: must be a number, got '20' (rem",
    ),
    (
        ("request_rate: 20", "request_rate: {a: 1}"),
        "line 5: workload.request_rate: must be a number, or a list of rates, got a mapping of keys (e.g.",
    ),
    (("  request_rate: 20\n", ""), "line 4: workload.request_rate: is required"),
    (("  request_rate: 20\n", "  users: 20\n"), "line 5: workload.users: users are not supported by this"),
    (("{cv: 2.5}", "trace"), "line 6: workload.arrivals: there is no trace to take them from, got 'trace' "),
    (
        ("{cv: 2.5}", "poison"),
        "line 6: workload.arrivals: must be one of poisson, trace, got 'poison' (did you me",
    ),
    (("{cv: 2.5}", "{cv: -1}"), "line 6: workload.arrivals.cv: must be >= 0, got -1"),
    (("hit_rate: 0.3", "hit_rate: 1"), "line 9: workload.prefix_cache_hit_rate: must be < 1, got 1"),
    (
        ("  prefix", "  trace: t.csv\n  prefix"),
        "line 9: workload.trace: t.csv: no such file",
    ),
    (("  prefix", "  preset: azure\n  prefix"), "line 9: workload.preset: unknown traffic preset 'azure'"),
    # lengths
    (("{mean: 1000, cv: 0.5}", "0"), "line 7: workload.input_tokens: must be >= 1, got 0"),
    (("{mean: 1000, cv: 0.5}", "long"), "line 7: workload.input_tokens: must be a number, got 'long'"),
    (("{mean: 1000, cv: 0.5}", "{}"), "line 7: workload.input_tokens: says nothing of the distribution (use"),
    (("{mean: 1000, cv: 0.5}", "{mean: 9}"), "line 7: workload.input_tokens.cv: is required (use {mean, cv}"),
    (("{mean: 1000, cv: 0.5}", "{cv: 9}"), "line 7: workload.input_tokens.mean: is required (use {mean, cv}"),
    (("cv: 0.5", "p50: 10"), "line 7: workload.input_tokens: mixes several kinds of distribution (use"),
    (("p90: 400", "p90: 40"), "line 8: workload.output_tokens.p90: must be >= p50, got 40"),
    (("p90: 400, p99: 900", ""), "line 8: workload.output_tokens: needs at least two of p50, p90, p99"),
    (
        ("{p50: 100, p90: 400, p99: 900}", "{histogram: [[5, 0]]}"),
        "histogram: needs a weight > 0, got a list",
    ),
    (("{p50: 100, p90: 400, p99: 900}", "{histogram: []}"), "histogram: must have 1 or more entries, has 0"),
    (("{p50: 100, p90: 400, p99: 900}", "{histogram: [[5]]}"), "output_tokens.histogram[0][1]: is required"),
    (
        ("  output_tokens: {p50: 100, p90: 400, p99: 900}\n", ""),
        "workload.output_tokens: is required (or name",
    ),
    # SLOs
    (("{p99: 1500}", "{p99: fast}"), "line 11: slo.ttft_ms.p99: must be a number, got 'fast'"),
    (("{p99: 1500}", "{p99: 0}"), "line 11: slo.ttft_ms.p99: must be > 0, got 0"),
    (
        ("{p99: 1500}", "{p99: 1500ms}"),
        "must be a number, got '1500ms' (write the number alone: the unit is in",
    ),
    (
        ("{p99: 1500}", "1500"),
        "line 11: slo.ttft_ms: say which statistic the limit is for, got 1500 (e.g. {p99:",
    ),
    (("{p99: 1500}", "{}"), "line 11: slo.ttft_ms: gives no limit (e.g. {p99: 1000})"),
    (
        ("  tpot_ms", "  e2e_ms: {p99: 1}\n  tpot_ms"),
        "line 12: slo.e2e_ms: end-to-end SLOs are not supported",
    ),
    (
        ("  tpot_ms", "  attainment: 0.9\n  tpot_ms"),
        "line 12: slo.attainment: joint attainment is not supported",
    ),
    # fleet
    (
        ("gpu: l40s", "gpu: h100-sxm"),
        "line 18: fleet[1].gpu: is listed twice, first on line 14, got 'h100-sxm'",
    ),
    (
        ("gpu: h100-sxm", "gpu: h100-smx"),
        "line 14: fleet[0].gpu: unknown GPU 'h100-smx': did you mean h100-sxm?",
    ),
    (("gpu: h100-sxm", "gpu: mine.yaml"), "line 14: fleet[0].gpu: mine.yaml: no such file"),
    (("max_gpus: 64", "max_gpus: -1"), "line 16: fleet[0].max_gpus: must be >= 0, got -1"),
    (("max_gpus: 64", "max_gpus: 6.4"), "line 16: fleet[0].max_gpus: must be a whole number, got 6.4"),
    (
        ("max_gpus: 64", "max_gpus:"),
        "line 16: fleet[0].max_gpus: has no value (give one, or leave the key out)",
    ),
    (("max_gpus: 64", "max_gpus: true"), "line 16: fleet[0].max_gpus: must be a whole number, got true"),
    (("rdma: no", "rdma: 0"), "line 18: fleet[1].rdma: must be true or false, got 0"),
    (("rdma: no", "zone: a"), "line 14: fleet[0].zone: is required: other lines of the fleet have one (give"),
    (("per_gpu: 400", "per_gpu: 0"), "line 17: fleet[0].network_gbps_per_gpu: must be > 0, got 0"),
    # the rest
    (
        ("Llama-3.1-70B", "Lama-3.1-70B"),
        "line 1: model: unknown model 'meta-llama/Lama-3.1-70B-Instruct': did",
    ),
    (("meta-llama/Llama-3.1-70B-Instruct", "no"), "line 1: model: must be text, got no (put it in quotes"),
    (("meta-llama/Llama-3.1-70B-Instruct", "./nowhere"), "line 1: model: "),
    (
        ("weights: fp8", "weights: fp9"),
        "line 2: precision.weights: must be one of fp32, bf16, fp16, fp8, fp8_bl",
    ),
    (
        ("weights: fp8", "weights: automatic"),
        "line 2: precision.weights: must be one of fp32, bf16, fp16, fp8, fp8_bl",
    ),
    (
        ("cache: e4m3", "cache: int4"),
        "line 2: precision.kv_cache: is not supported by this version, got 'int4'",
    ),
    (
        ("engine: vllm", "engine: tgi"),
        "line 3: engine: must be one of sglang, trtllm, vllm, got 'tgi'",
    ),
    (
        ("engine: vllm", "engine: vlm"),
        "line 3: engine: must be one of sglang, trtllm, vllm, got 'vlm' (did you mean vllm?)",
    ),
    (
        ("objective: cost", "objective: cots"),
        "line 19: objective: must be one of cost, gpus, power, throughput",
    ),
    (("colocated: forbidden", "colocated: no"), "options.colocated: must be one of allowed, forbidden, only"),
    (
        ("routing: random", "routing: length_spilt"),
        "round_robin, random, length_split, got 'length_spilt' (did you mean length_split?)",
    ),
    (("confidence: 0.9", "confidence: 1"), "line 20: options.confidence: must be <= 0.99, got 1"),
    (("headroom: 0.1", "headroom: 10.5"), "line 20: options.headroom: must be <= 10, got 10.5"),
    (
        ("[4, 1]", "[4, 3]"),
        "line 20: options.allowed_tp[1]: TP 3 does not divide the 64 attention heads, got 3 (",
    ),
    (("[4, 1]", "[48]"), "TP 48 does not divide the 64 attention heads, got 48 (nearest: 32, 64)"),
    (("[4, 1]", "[]"), "line 20: options.allowed_tp: must have 1 or more entries, has 0, got an empty list"),
    (
        ("objective: cost", "owned: true"),
        "line 19: owned: is a key of the fleet's lines: write owned: true beside the GPUs that are paid for",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[f"{i}-{m[:40]}" for i, (_, m) in enumerate(BAD)])
def test_one_mistake_gives_one_problem_with_line_key_and_rule(change, message):
    (problem,) = problems(edit(change))
    assert message in problem


def test_an_empty_fleet_is_refused():
    text = SCENARIO[: SCENARIO.index("fleet:")] + "fleet: []\n"
    assert problems(text) == [
        "line 13: fleet: the fleet is empty, got an empty list (list at least one GPU type)"
    ]


def test_no_slo_at_all_is_refused():
    text = SCENARIO[: SCENARIO.index("slo:")] + "slo: {}\n" + SCENARIO[SCENARIO.index("fleet:") :]
    assert problems(text) == [
        "line 10: slo: at least one SLO is needed, got an empty mapping (e.g. ttft_ms: {p99: 1000})"
    ]


def test_a_budget_needs_prices_too():
    text = edit((H100_PRICE, ""), ("objective: cost", "objective: throughput\nbudget_per_hour: 100"))
    assert problems(text) == [
        "line 14: fleet[0].price_per_gpu_hour: missing price: there is a budget (give it, or owned: true)"
    ]


def test_a_list_is_no_scenario():
    assert problems("- model: x\n") == ["line 1: must be a mapping of keys at top level, got a list"]


def test_files_of_other_tools_say_what_is_missing_and_what_is_meant():
    found = problems(
        "workload: {concurrent_users: 5, isl: 10, osl: 1}\ninventory: [{gpu: x}]\nbackend: vllm\n"
    )
    assert "line 1: workload.isl: unknown key (did you mean input_tokens?)" in found
    assert "line 2: inventory: unknown key (did you mean fleet?)" in found
    assert "line 3: backend: unknown key (did you mean engine?)" in found
    assert "line 1: slo: is required" in found


def test_all_problems_of_a_file_are_reported_at_once():
    text = edit(
        ("70B", "71B"),
        ("request_rate: 20", "request_rate: -20"),
        ("p90: 400", "p90: 40"),
        ("{p99: 1500}", "1500"),
        (H100_PRICE, ""),
        ("max_gpus: 64", "max_gpu: 64"),
        ("gpu: l40s", "gpu: h100-sxm"),
        ("[4, 1]", "[0]"),
        ("objective: cost", "objective: cost\nobjective: cost"),
    )
    found = problems(text)
    assert [problem.split(":")[0] for problem in found] == [
        f"line {line}" for line in (1, 5, 8, 11, 14, 15, 17, 19, 20)
    ]


# Fuzzing


def _problems_or_none(text: str) -> tuple[Problem, ...] | None:
    """Problems of a text; None where it is a scenario. Any other exception fails the test."""
    try:
        assert isinstance(read(text), Scenario)
    except SpecError as error:
        return error.problems
    return None


@pytest.mark.parametrize("seed", range(62))
def test_mutated_scenarios_give_a_scenario_or_a_spec_error(seed):
    rng = random.Random(seed)
    for _ in range(60):
        text = mutated_lines(SCENARIO, rng)
        found = _problems_or_none(text)
        assert found != (), text
        assert all(len(str(problem)) < 1000 for problem in found or ())


def test_mutated_values_give_a_scenario_or_a_spec_error():
    rng = random.Random(1)
    for _ in range(300):
        document = mutated_value(mutated_value(yaml.safe_load(SCENARIO), rng), rng)
        assert _problems_or_none(yaml.safe_dump(document)) != (), document


def test_reading_scenarios_loads_no_heavy_library():
    heavy = ("scipy", "numba", "pandas", "torch", "matplotlib", "pulp")
    code = f"import sys, planner.documents.scenario; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


PRESET = """\
model: {model}
workload: {{request_rate: 5, preset: {preset}{more}}}
slo: {{ttft_ms: {{p99: 5000}}}}
fleet: [{{gpu: h100, price_per_gpu_hour: 3}}]
"""


def test_longest_request_must_fit_the_context() -> None:
    text = PRESET.format(model="Llama-2-70B", preset="mooncake-conversation", more="")
    with pytest.raises(SpecError) as error:
        read(text)
    (problem,) = error.value.problems
    assert problem.line == 2
    assert problem.rule.startswith(
        "longest prompt and output are 126,195 + 2,000 tokens, the model takes 4,096"
    )
    assert problem.suggestion == "cut them: input_tokens: {max: 2096}"


def test_a_preset_can_be_cut() -> None:
    more = ", input_tokens: {max: 2096}"
    text = PRESET.format(model="Llama-2-70B", preset="mooncake-conversation", more=more)
    assert read(text).services[0].workload.lengths.isl.maximum == 2096


def test_bursts_of_minutes_are_planned_as_poisson_and_said() -> None:
    text = PRESET.format(model="Llama-3.1-8B", preset="azure-2023-code", more="")
    workload = read(text).services[0].workload
    assert workload.arrival_scv == 1.0
    assert "comes in bursts (inter-arrival CV 13.2) and is planned as Poisson" in workload.note
    given = read(text.replace("azure-2023-code", "azure-2023-code, arrivals: {cv: 3}"))
    assert given.services[0].workload.arrival_scv == 9.0
    assert given.services[0].workload.note == ""


# Models that the scenario describes itself

INLINE = """{name: mine, model_type: llama, hidden_size: 4096, num_hidden_layers: 32, num_attention_heads: 32,
  num_key_value_heads: 8, intermediate_size: 14336, vocab_size: 128256, max_position_embeddings: 131072}"""


def test_a_scenario_may_hold_the_keys_of_a_model():
    model = read(edit(("meta-llama/Llama-3.1-70B-Instruct", INLINE))).services[0].model
    assert (model.name, model.hidden, model.num_layers, model.layers[0].layer.attention.kv_heads) == (
        "mine", 4096, 32, 8,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("hidden_size: 4096", "hidden_size: wide", 'must be a whole number > 0, got "wide"'),
        ("vocab_size: 128256,", "", "line 1: model.vocab_size: is missing under the names vocab_size"),
        ("llama", "mystery", "line 1: model.model_type: unknown model_type; its layers have to be those of"),
        ("name: mine,", "name: mine, kv_lora_rank: 512,", "model.kv_lora_rank: means latent attention"),
        ("num_key_value_heads: 8", "num_key_value_heads: 5", "model.num_key_value_heads: must divide the 32"),
    ],
)  # fmt: skip
def test_such_a_model_is_checked_like_a_file(old, new, said):
    text = edit(("meta-llama/Llama-3.1-70B-Instruct", INLINE)).replace(old, new, 1)
    assert any(said in problem for problem in problems(text)), problems(text)
