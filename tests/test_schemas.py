"""JSON Schemas: current, complete, and of the same opinion as the planner about good and bad files."""

import json

import pytest
from jsonschema import Draft202012Validator

from planner.documents.schemas import FOLDER, json_schemas, schema_names, schema_text, write_schemas
from planner.documents.source import parse_tree

NAMES = ("scenario", "gpu-profile", "plan", "engine", "fleet", "site", "engine-profile")

SCENARIO = """\
model: meta-llama/Llama-3.1-70B-Instruct
workload: {request_rate: 20, arrivals: {cv: 2}, input_tokens: 1000, output_tokens: {mean: 200, cv: 1}}
slo: {ttft_ms: {p99: 1000}}
fleet: [{gpu: h100-sxm, price_per_gpu_hour: 2.99}]
options: {routing: random}
"""


@pytest.mark.parametrize("name", NAMES)
def test_files_are_current(name):
    # When this fails, run planner.documents.schemas.write_schemas().
    assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == schema_text(name)


def test_there_is_a_file_for_every_schema_and_no_other():
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(NAMES) == sorted(schema_names())


def test_schemas_are_written(tmp_path):
    write_schemas(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}.json" for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_valid_and_say_what_every_key_is(name):
    schema = json_schemas()[name]
    Draft202012Validator.check_schema(schema)
    parts = [schema, *schema["$defs"].values()]
    keys = [(key, info) for part in parts for key, info in part.get("properties", {}).items()]
    assert keys
    for key, info in keys:  # a key may leave it to what it refers to
        target = schema["$defs"].get(info.get("$ref", "").rpartition("/")[2], {})
        assert info.get("description") or target.get("description"), key


@pytest.mark.parametrize(
    ("old", "new", "good"),
    [
        ("", "", True),
        ("rate: 20", "rate: -20", False),
        ("rate: 20", "rate: [1, 2]", True),
        ("rate: 20", "rate: [1]", False),
        ("rate: 20", "rate: [1, -2]", False),
        ("rate: 20", "rate: [{hours: 8, request_rate: 2}, {hours: 16, request_rate: 1}]", True),
        ("rate: 20", "rate: [{hours: 0, request_rate: 2}, {hours: 16, request_rate: 1}]", False),
        ("rate: 20", "rate: ", False),
        ("rate: 20", "users: 20", False),
        ("random", "length_split", True),
        ("random", "length_spilt", False),
        ("2.99}", "2.99, price_class: spot, interruptions_per_hour: 0.1, zone: a}", True),
        ("2.99}", "2.99, price_class: sport}", False),
        ("2.99}", "2.99, zone: A b}", False),
        ("options", "zones: {a: {max_gpus: 8}}\noptions", True),
        ("options", "zones: {a: {}}\noptions", False),
        ("model: ", "models: [{model: a, workload: {preset: b}, slo: {ttft_ms: {p99: 1}}}]\nmodel: ", False),
        ("slo: {ttft_ms: {p99: 1000}}\n", "", False),
        ("ttft_ms", "ttft_s", False),
        ("{p99: 1000}", "1000", False),
        ("[{gpu: h100-sxm, price_per_gpu_hour: 2.99}]", "[]", False),
        ("options", "periods", False),
    ],
)
def test_the_scenario_schema_tells_good_from_bad(old, new, good):
    tree, _ = parse_tree(SCENARIO.replace(old, new), "s.yaml")
    document = json.loads(json.dumps(tree.raw))
    assert Draft202012Validator(json_schemas()["scenario"]).is_valid(document) is good


def test_the_scenario_schema_takes_several_models_instead_of_one():
    served = "{model: a, workload: {preset: b}, slo: {ttft_ms: {p99: 1}}}"
    text = f"models: [{served}, {served}]\nfleet: [{{gpu: h100-sxm, price_per_gpu_hour: 2.99}}]\n"
    validator = Draft202012Validator(json_schemas()["scenario"])
    assert validator.is_valid(parse_tree(text, "s.yaml")[0].raw)
    assert not validator.is_valid(parse_tree(text + "engine: vllm\n", "s.yaml")[0].raw)
    assert not validator.is_valid(parse_tree(text.replace("model: a", "name: a"), "s.yaml")[0].raw)


@pytest.mark.parametrize(("rate", "good"), [("3", True), ("[1, 2]", False)])
def test_fleet_files_have_one_rate(rate, good):
    text = (
        f"model: m\nworkload: {{request_rate: {rate}, preset: p}}\nslo: {{ttft_ms: {{p99: 1}}}}\n"
        "groups: [{phase: colocated, gpu: l4, replicas: 1}]\n"
    )
    assert Draft202012Validator(json_schemas()["fleet"]).is_valid(parse_tree(text, "f.yaml")[0].raw) is good
