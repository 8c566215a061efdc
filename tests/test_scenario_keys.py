"""Scenario files: several models, schedules of rates, zones, price classes, electricity, resilience."""

import json
import random
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator
from scenario_mutations import mutated_lines, mutated_value

from planner.documents.scenario import LoadedScenario, scenario_from_text
from planner.documents.schemas import json_schemas
from planner.errors import SpecError
from planner.specs import Dtype, Options, Power, PriceClass, Routing, Scaling, Scenario, SpareScope
from planner.units import GIGA

ALL = """\
models:
  - name: chat
    model: meta-llama/Llama-3.1-8B-Instruct
    precision: {weights: fp8}
    workload:
      request_rate:
        - {name: night, hours: 16, request_rate: 5}
        - {name: day, hours: 8, request_rate: 20}
      input_tokens: 1000
      output_tokens: 200
    slo: {ttft_ms: {p99: 1500}, tpot_ms: {p99: 50}}
  - model: openai/gpt-oss-120b
    workload: {preset: azure-2023-conversation, request_rate: [2, 8]}
    slo: {ttft_ms: {p99: 3000}}
  - model: openai/gpt-oss-120b
    workload: {preset: azure-2023-conversation, request_rate: 3}
    slo: {ttft_ms: {p99: 3000}}
periods: {startup_minutes: 15, max_added_replicas: 4, max_removed_replicas: 8, cyclic: false}
fleet:
  - {gpu: h100-sxm, zone: east, price_per_gpu_hour: 2.99}
  - {gpu: h100-sxm, zone: east, price_class: reserved, price_per_gpu_hour: 1.9, max_gpus: 16}
  - {instance: aws/g6e.48xlarge, zone: west, price_class: spot, interruptions_per_hour: 0.05}
  - {gpu: h100-sxm, zone: west, owned: true, max_gpus: 8}
zones: {east: {max_gpus: 64}, west: {max_gpus: 32}}
egress_per_gb: 0.01
power: {price_per_kwh: 0.12, utilization: 0.7, pue: 1.2, max_kw: 100}
budget_per_hour: 500
options:
  spare_replicas: 1
  spare_scope: pool
  survive: [node, zone]
  rolling_upgrade_surge: 2
  on_demand_floor: 0.5
  spot_recovery_minutes: 6
  routing: length_split
  max_length_buckets: 3
"""

ONE = """\
model: meta-llama/Llama-3.1-8B-Instruct
workload: {request_rate: 20, input_tokens: 1000, output_tokens: 200}
slo: {ttft_ms: {p99: 1500}}
fleet:
  - {gpu: h100-sxm, price_per_gpu_hour: 2.99}
  - {gpu: l40s, price_per_gpu_hour: 0.86}
"""


def load(text: str, folder: Path | None = None) -> LoadedScenario:
    return scenario_from_text(text, "s.yaml", folder=folder)


def read(text: str) -> Scenario:
    return load(text).scenario


def edit(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    return text


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(text)
    return [str(problem) for problem in caught.value.problems]


def rates(rate: str, more: str = "") -> str:
    """The scenario of one model with this request_rate."""
    return edit(ONE, ("request_rate: 20", f"request_rate: {rate}")) + more


# Good ones


def test_models_become_services_with_labels_of_their_own():
    chat, first, second = read(ALL).services
    assert [s.name for s in (chat, first, second)] == ["chat", "gpt-oss-120b", "gpt-oss-120b-2"]
    assert chat.precision.weights is Dtype.FP8
    assert first.precision.weights is Dtype.MXFP4
    assert first.model == second.model
    assert chat.slo.targets[0].limit == 1.5
    assert second.workload.lengths == first.workload.lengths


def test_the_json_schema_takes_every_key():
    document = json.loads(json.dumps(load(ALL).document))
    assert list(Draft202012Validator(json_schemas()["scenario"]).iter_errors(document)) == []


def test_a_single_model_has_no_label():
    (service,) = read(ONE).services
    assert (service.label, service.name) == ("", "meta-llama/Llama-3.1-8B-Instruct")


def test_default_labels_avoid_given_ones():
    text = edit(ALL, ("name: chat", "name: gpt-oss-120b"))
    assert [s.label for s in read(text).services] == ["gpt-oss-120b", "gpt-oss-120b-2", "gpt-oss-120b-3"]


def test_services_share_their_periods_and_a_constant_rate_is_repeated():
    found = [
        [(p.name, p.hours, p.request_rate) for p in service.workload.periods]
        for service in read(ALL).services
    ]
    assert found == [
        [("night", 16.0, rate), ("day", 8.0, busy)] for rate, busy in ((5.0, 20.0), (2.0, 8.0), (3.0, 3.0))
    ]
    assert [s.workload.request_rate for s in read(ALL).services] == [20.0, 8.0, 3.0]


def test_lines_of_a_fleet_differ_in_zone_and_price_class():
    fleet = read(ALL).fleet
    assert [item.name for item in fleet] == [
        "h100-sxm@east", "h100-sxm@east@reserved", "l40s@west@spot", "h100-sxm@west",
    ]  # fmt: skip
    assert [item.price for item in fleet] == [2.99, 1.9, pytest.approx(11.3507 / 8), 0.0]
    assert [item.interruptions for item in fleet] == [0.0, 0.0, 0.05, 0.0]
    assert fleet[2].price_source.startswith("aws/g6e.48xlarge spot in us-east-1 (2026, ")
    assert fleet[1].price_class is PriceClass.RESERVED


def test_what_is_shared_is_in_si_units():
    scenario = read(ALL)
    assert scenario.zones == {"east": 64, "west": 32}
    assert scenario.egress_price == pytest.approx(0.01 / GIGA)
    assert scenario.power == Power(price=0.12, utilization=0.7, pue=1.2, cap=100_000.0)
    assert scenario.scaling == Scaling(startup=0.25, max_added=4, max_removed=8, cyclic=False)


def test_options_of_resilience_and_of_the_split():
    assert read(ALL).options == Options(
        spare_replicas=1,
        spare_scope=SpareScope.POOL,
        survive_node=True,
        survive_zone=True,
        surge_replicas=2,
        on_demand_floor=0.5,
        spot_recovery=0.1,
        length_split=True,
        routing=Routing.LEAST_LOADED,
        max_length_buckets=3,
    )


def test_a_scenario_without_these_keys_has_none_of_it():
    scenario = read(ONE)
    assert (scenario.zones, scenario.egress_price, scenario.power, scenario.scaling) == ({}, None, None, None)
    assert scenario.options == Options()
    assert [p.hours for p in scenario.services[0].workload.periods] == [1.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (rates("[1, 2, 3]"), [("00:00", 8, 1), ("08:00", 8, 2), ("16:00", 8, 3)]),
        (rates("[1, 0]", "periods: {hours: 1}\n"), [("00:00", 0.5, 1), ("00:30", 0.5, 0)]),
        (rates("[1, 2]", "periods: {hours: [30, 6]}\n"), [("00:00", 30, 1), ("30:00", 6, 2)]),
        (rates("[1, 2]", "periods: {names: [a, b]}\n"), [("a", 12, 1), ("b", 12, 2)]),
        (rates("[1, 2]", "periods: {hours: [0.001, 5]}\n"), [("period 1", 0.001, 1), ("period 2", 5, 2)]),
        (
            rates("[{hours: 2, request_rate: 4}, {name: x, hours: 3, request_rate: 1}]"),
            [("00:00", 2, 4), ("x", 3, 1)],
        ),
    ],
)
def test_schedules_in_every_form(text, expected):
    scenario = read(text)
    (service,) = scenario.services
    assert [(p.name, p.hours, p.request_rate) for p in service.workload.periods] == expected
    assert scenario.scaling == Scaling()


def test_24_rates_are_hours_of_a_day():
    periods = read(rates(str(list(range(24))))).services[0].workload.periods
    assert [p.hours for p in periods] == [1.0] * 24
    assert (periods[0].name, periods[23].name, periods[23].request_rate) == ("00:00", "23:00", 23)


def test_a_trace_belongs_to_its_service(tmp_path):
    rows = "\n".join(f"{i / 2},{100 + i},20" for i in range(50))
    (tmp_path / "t.csv").write_text(f"arrived_at,num_prefill_tokens,num_decode_tokens\n{rows}\n")
    text = edit(
        ALL,
        ("{preset: azure-2023-conversation, request_rate: [2, 8]}", "{trace: t.csv}"),
        ("request_rate: 3}", "request_rate: 3, arrivals: poisson}"),
    )
    loaded = load(text, tmp_path)
    assert [trace is not None for trace in loaded.traces] == [False, True, False]
    assert loaded.replays == (False, True, False)
    one = load(
        edit(ONE, ("request_rate: 20, input_tokens: 1000, output_tokens: 200", "trace: t.csv")), tmp_path
    )
    assert one.trace is one.traces[0] is not None
    assert one.replay
    assert load(ONE).trace is None
    assert not load(ONE).replay


def test_throughput_of_several_models_keeps_their_shares():
    constant = edit(ALL, ("[2, 8]", "8"), ("periods: {", "objective: throughput\nperiods: {"))
    start, end = constant.index("      request_rate:\n"), constant.index("      input_tokens")
    text = constant[:start] + "      request_rate: 4\n" + constant[end:]
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("periods"))
    assert [s.workload.request_rate for s in read(text).services] == [4, 8, 3]
    (problem,) = problems(text.replace("      request_rate: 4\n", ""))
    assert problem.startswith("line 5: models[0].workload.request_rate: is required")


def test_an_allowed_size_is_legal_for_some_model():
    text = ALL + "  allowed_tp: [64]\n"  # 64 heads of gpt-oss, 32 of Llama
    assert read(text).options.allowed_tp == (64,)
    assert problems(ALL + "  allowed_tp: [48]\n")[0].startswith(
        "line 37: options.allowed_tp[0]: TP 48 does not"
    )


def test_reserved_gpus_of_an_instance_take_ones_own_price():
    line = "{instance: aws/p5.48xlarge, price_class: reserved, price_per_gpu_hour: 4}"
    text = edit(ONE, ("{gpu: h100-sxm, price_per_gpu_hour: 2.99}", line))
    assert (read(text).fleet[0].price, read(text).fleet[0].price_source) == (4, "")
    free = edit(text, (", price_per_gpu_hour: 4", "")) + "objective: gpus\n"
    assert read(free).fleet[0].price is None


# Bad ones: one problem each

DAY = "[{name: a, hours: 8, request_rate: 2}, {name: b, hours: 16, request_rate: 1}]"
H100 = "{gpu: h100-sxm, price_per_gpu_hour: 2.99"
SPOT = "interruptions_per_hour: 0.05"

BAD = [
    # models
    (ALL, ("models:", "engine: vllm\nmodels:"), "line 1: engine: is given beside models (give it within mod"),
    (ALL, ("  - name: chat", "  - name: Chat 1"), "line 2: models[0].name: must be up to 63 small letters"),
    (ALL, ("  - name: chat", "  - nmae: chat"), "line 2: models[0].nmae: unknown key (did you mean name?)"),
    (
        ALL,
        ("  - model: openai", "  - name: chat\n    model: openai"),
        "line 12: models[1].name: is the name of another model, first on line 2, got 'chat' (give each its",
    ),
    (ALL, ("Llama-3.1-8B", "Lama-3.1-8B"), "line 3: models[0].model: unknown model 'meta-llama/Lama-3.1-8B-"),
    (ALL, ("weights: fp8", "weights: fp9"), "line 4: models[0].precision.weights: must be one of"),
    (
        ALL,
        ("      input_tokens: 1000\n", ""),
        "line 5: models[0].workload.input_tokens: is required (or name",
    ),
    (ALL, ("input_tokens: 1000", "input_tokens: 200000"), "line 9: models[0].workload.input_tokens: longest"),
    (ALL, ("azure-2023-conversation", "azure"), "line 13: models[1].workload.preset: unknown traffic preset"),
    (ALL, ("slo: {ttft_ms: {p99: 3000}}", "slo: {}"), "line 14: models[1].slo: at least one SLO is needed"),
    (ALL, ("slo: {ttft_ms: {p99: 3000}}", "engine: vllm"), "line 12: models[1].slo: is required"),
    (ONE, ("slo: {ttft_ms: {p99: 1500}}\n", ""), "line 1: slo: is required"),
    # schedules
    (ONE, ("rate: 20", "rate: [1]"), "line 2: workload.request_rate: must have 2 or more entries, has 1"),
    (ONE, ("rate: 20", "rate: [1, -1]"), "line 2: workload.request_rate[1]: must be >= 0, got -1"),
    (ONE, ("rate: 20", "rate: [0, 0]"), "line 2: workload.request_rate: needs a rate of 1e-06 or more"),
    (ONE, ("rate: 20", "rate: [1, {hours: 1, request_rate: 2}]"), "request_rate: mixes numbers and periods"),
    (ONE, ("rate: 20", f"rate: {DAY}".replace("hours: 8, ", "")), "request_rate[0].hours: is required"),
    (ONE, ("rate: 20", f"rate: {DAY}".replace("hours: 8", "hours: 0")), "rate[0].hours: must be > 0, got 0"),
    (ONE, ("rate: 20", f"rate: {DAY}".replace("name: b", "name: a")), "rate[1].name: is the name of another"),
    (ONE, ("rate: 20", f"rate: {DAY}".replace("hours: 8", "hour: 8, hours: 8")), "rate[0].hour: unknown key"),
    (
        ALL,
        ("[2, 8]", "[2, 8, 4]"),
        "line 13: models[1].workload.request_rate: has 3 rates, the schedule on li",
    ),
    (
        ALL,
        ("[2, 8]", "[{hours: 16, request_rate: 1}, {hours: 8, request_rate: 2}]"),
        "line 13: models[1].workload.request_rate: has other names or hours than the schedule on line 6 (all",
    ),
    # periods
    (
        ONE,
        ("fleet:", "periods: {cyclic: true}\nfleet:"),
        "line 4: periods: there is no schedule of rates (give",
    ),
    (ONE, ("fleet:", "periods: {max_added_replicas: 1}\nfleet:"), "line 4: periods: there is no schedule of"),
    (ALL, ("startup_minutes: 15", "startup_minutes: -1"), "line 18: periods.startup_minutes: must be >= 0"),
    (ALL, ("startup_minutes: 15", "startup_hours: 1"), "line 18: periods.startup_hours: unknown key ("),
    (
        ALL,
        ("max_added_replicas: 4", "max_added_replicas: 0.5"),
        "periods.max_added_replicas: must be a whole",
    ),
    (
        ALL,
        ("cyclic: false", "hours: 24"),
        "line 18: periods.hours: is given beside a schedule that has its ow",
    ),
    (
        ALL,
        ("cyclic: false", "names: [a, b]"),
        "line 18: periods.names: is given beside a schedule that has it",
    ),
    # the fleet
    (
        ALL,
        ("zone: east, price_class: reserved", "zone: east"),
        "line 21: fleet[1].gpu: is listed twice, first on line 20, got 'h100-sxm' (give each GPU type once i",
    ),
    (
        ONE,
        (H100, f"{H100}, price_class: sport"),
        "line 5: fleet[0].price_class: must be one of on_demand, res",
    ),
    (
        ONE,
        (H100, f"{H100}, price_class: spot"),
        "line 5: fleet[0].interruptions_per_hour: is required for spot",
    ),
    (
        ONE,
        (H100, f"{H100}, {SPOT}"),
        "line 5: fleet[0].interruptions_per_hour: belongs to spot GPUs, got 0.05",
    ),
    (
        ONE,
        (H100, f"{H100}, owned: true, price_class: spot, {SPOT}"),
        "line 5: fleet[0].price_class: contradicts owned: true, got 'spot' (leave one of them out)",
    ),
    (
        ONE,
        (H100, f"{{instance: aws/p5.48xlarge, price_class: spot, {SPOT}"),
        "line 5: fleet[0].instance: spot price of aws/p5.48xlarge is not known: give price_per_gpu_hour",
    ),
    (
        ONE,
        (H100, "{instance: aws/p5.48xlarge, price_class: reserved"),
        "line 5: fleet[0].instance: reserved price of aws/p5.48xlarge is not known: give price_per_gpu_hour",
    ),
    (ONE, (H100, f"{H100}, spot: true"), "line 5: fleet[0].spot: unknown key (write price_class: spot)"),
    # zones
    (ALL, ("zone: west, owned", "zone: West 1, owned"), "line 23: fleet[3].zone: must be up to 63 small"),
    (
        ONE,
        (H100, f"{H100}, zone: east"),
        "line 6: fleet[1].zone: is required: other lines of the fleet have on",
    ),
    (
        ALL,
        ("west: {max_gpus: 32}", "wset: {max_gpus: 32}"),
        "line 24: zones.wset: no line of the fleet is in",
    ),
    (
        ALL,
        ("west: {max_gpus: 32}", "west: {max_gpus: -1}"),
        "line 24: zones.west.max_gpus: must be >= 0, got",
    ),
    (ALL, ("west: {max_gpus: 32}", "west: {}"), "line 24: zones.west.max_gpus: is required"),
    (
        ALL,
        ("{east: {max_gpus: 64}, west: {max_gpus: 32}}", "{}"),
        "line 24: zones: must have 1 or more entries",
    ),
    (
        ONE,
        ("slo:", "egress_per_gb: 1\nslo:"),
        "line 3: egress_per_gb: needs two zones, the fleet has none, got",
    ),
    (ALL, ("egress_per_gb: 0.01", "egress_per_gb: -1"), "line 25: egress_per_gb: must be >= 0, got -1"),
    # electricity
    (ALL, ("price_per_kwh: 0.12", "price_per_kwh: -1"), "line 26: power.price_per_kwh: must be >= 0, got -1"),
    (ALL, ("utilization: 0.7", "utilization: 70"), "line 26: power.utilization: must be <= 1, got 70"),
    (ALL, ("pue: 1.2", "pue: 0.9"), "line 26: power.pue: must be >= 1, got 0.9"),
    (ALL, ("max_kw: 100", "max_kw: 0"), "line 26: power.max_kw: must be > 0, got 0"),
    (
        ONE,
        ("slo:", "power: {pue: 2}\nslo:"),
        "line 3: power: has neither price_per_kwh nor max_kw (give one of",
    ),
    (
        ONE,
        (H100, "{gpu: h100-sxm"),
        "line 5: fleet[0].price_per_gpu_hour: missing price: objective is cost (give it, or owned: true)",
    ),
    (
        edit(ONE, (H100, "{gpu: h100-sxm")),
        ("slo:", "power: {price_per_kwh: 0.1}\nslo:"),
        "line 6: fleet[0].price_per_gpu_hour: missing price: objective is cost (give it, or owned: true; ele",
    ),
    # options
    (ALL, ("spare_scope: pool", "spare_scope: pols"), "options.spare_scope: must be one of group, pool, got"),
    (
        ALL,
        ("[node, zone]", "[node, rack]"),
        "line 31: options.survive[1]: must be one of node, zone, got 'ra",
    ),
    (ALL, ("[node, zone]", "zone"), "line 31: options.survive: must be a list, got 'zone'"),
    (
        ONE,
        ("slo:", "options: {survive: [zone]}\nslo:"),
        "options.survive[0]: needs two zones, the fleet has no",
    ),
    (ALL, ("surge: 2", "surge: -2"), "line 32: options.rolling_upgrade_surge: must be >= 0, got -2"),
    (ALL, ("floor: 0.5", "floor: 1.5"), "line 33: options.on_demand_floor: must be <= 1, got 1.5"),
    (
        ALL,
        ("recovery_minutes: 6", "recovery_minutes: -6"),
        "options.spot_recovery_minutes: must be >= 0, got",
    ),
    (
        edit(ONE, (H100, f"{H100}, price_class: spot, {SPOT}"), ("0.86", f"0.86, price_class: spot, {SPOT}")),
        ("slo:", "options: {on_demand_floor: 0.1}\nslo:"),
        "line 3: options.on_demand_floor: cannot be held: all GPUs of the fleet are spot, got 0.1 (add other",
    ),
    (
        ALL,
        ("length_buckets: 3", "length_buckets: 9"),
        "line 36: options.max_length_buckets: must be <= 8, got",
    ),
    (
        ALL,
        ("routing: length_split", "routing: random"),
        "line 36: options.max_length_buckets: counts only with routing length_split, got 3 (add routing: len",
    ),
]


@pytest.mark.parametrize(("text", "change", "message"), BAD, ids=[bad[2][:60] for bad in BAD])
def test_one_mistake_gives_one_problem_with_line_key_and_rule(text, change, message):
    (problem,) = problems(edit(text, change))
    assert message in problem


def test_throughput_looks_for_one_rate():
    (problem,) = problems(rates("[1, 2]", "objective: throughput\n"))
    assert problem == (
        "line 2: workload.request_rate: is a schedule, and objective throughput looks for one rate "
        "(give one rate)"
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("periods: {hours: [1, 2, 3]}\n", "line 7: periods.hours: has 3 entries, the schedule has 2 rates"),
        ("periods: {names: [a, b, c]}\n", "line 7: periods.names: has 3 entries, the schedule has 2 rates"),
        (
            "periods: {names: [a, a]}\n",
            "line 7: periods.names[1]: is the name of another period, first on li",
        ),
        ("periods: {hours: 0}\n", "line 7: periods.hours: must be > 0, got 0"),
        ("periods: {hours: [1, x]}\n", "line 7: periods.hours[1]: must be a number, got 'x'"),
    ],
)
def test_periods_fit_their_schedule(more, said):
    (problem,) = problems(rates("[1, 2]", more))
    assert problem.startswith(said)


def test_top_level_keys_beside_models_are_each_named():
    found = problems("model: a\nslo: {ttft_ms: {p99: 1}}\nprecision: {}\n" + ALL)
    assert [problem.split(":")[1].strip() for problem in found] == ["model", "slo", "precision"]


@pytest.mark.parametrize("models", ["[]", "{}", "1", "[1]", "[{}]", "[null]", "null"])
def test_what_is_no_list_of_models_is_refused(models):
    assert problems(f"models: {models}\n" + ONE[ONE.index("fleet:") :])


# Fuzzing


def problems_or_none(text: str) -> tuple[object, ...] | None:
    """Problems of a text; None where it is a scenario. Any other exception fails the test."""
    try:
        assert isinstance(read(text), Scenario)
    except SpecError as error:
        return error.problems
    return None


@pytest.mark.parametrize("seed", range(6))
def test_mutated_scenarios_give_a_scenario_or_a_spec_error(seed):
    rng = random.Random(seed)
    for _ in range(50):
        text = mutated_lines(ALL, rng)
        found = problems_or_none(text)
        assert found != (), text
        assert all(len(str(problem)) < 1000 for problem in found or ())


@pytest.mark.parametrize("seed", range(6))
def test_mutated_values_give_a_scenario_or_a_spec_error(seed):
    rng = random.Random(seed)
    for _ in range(60):
        document = mutated_value(mutated_value(yaml.safe_load(ALL), rng), rng)
        assert problems_or_none(yaml.safe_dump(document)) != (), document
