"""Cloud prices: the catalogue, scenarios that name an instance, and what plans say of it."""

import csv
import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from planner.catalog import cloud_instances, gpu_names, load_gpu, load_instance
from planner.catalog.clouds import CloudInstance
from planner.cli.look_up import gpus as gpus_command
from planner.documents.catalogue import CloudsDocument
from planner.documents.scenario import scenario_from_text
from planner.documents.source import parse_document
from planner.errors import SpecError
from planner.search import SolveOptions
from planner.specs import FleetItem, PriceClass
from planner.units import BITS_PER_BYTE, GIGA
from planner.workflow import solve

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"
GBPS = GIGA / BITS_PER_BYTE


def golden() -> list[dict[str, str]]:
    with (GOLDEN / "cloud_prices.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --------------------------------------------------------------------------------------------
# The catalogue


@pytest.mark.parametrize("row", golden(), ids=lambda row: row["instance"])
def test_prices_are_those_of_their_source(row):
    instance = load_instance(row["instance"])
    assert (instance.gpu, instance.gpus, instance.status) == (row["gpu"], int(row["gpus"]), row["status"])
    price = float(row["usd_per_gpu_h"]) if row["usd_per_gpu_h"] else None
    assert instance.price_per_gpu == (None if price is None else pytest.approx(price, abs=1e-4))
    network = float(row["network_gbps_total"]) if row["network_gbps_total"] else None
    assert instance.network_bandwidth == (None if network is None else pytest.approx(network * GBPS))


def test_every_instance_has_a_profile_and_a_source():
    instances = cloud_instances()
    assert len(instances) >= 80
    assert len({i.name for i in instances}) == len(instances)
    assert {i.gpu for i in instances} <= set(gpu_names())
    for instance in instances:
        assert instance.source
        assert instance.status in ("checked", "second-hand", "unverified")
        assert instance.status == "unverified" or instance.date, instance.name
        if instance.spot is not None and instance.on_demand is not None:
            assert instance.spot < instance.on_demand


@pytest.mark.parametrize("name", ["aws/p5.48xlarge", "AWS/P5.48XLARGE", "p5.48xlarge", " p5.48xlarge "])
def test_an_instance_goes_by_its_type_too(name):
    instance = load_instance(name)
    assert instance.name == "aws/p5.48xlarge"
    assert instance.price_per_gpu == pytest.approx(6.88)
    assert instance.network_per_gpu == 400 * GBPS
    assert instance.rdma is True


def test_networks_are_told_apart():
    assert load_instance("g5.xlarge").rdma is False  # ENA without EFA
    assert load_instance("a3-highgpu-8g").rdma is False  # GPUDirect over TCP
    assert load_instance("Standard_ND96isr_H100_v5").rdma is True  # InfiniBand
    assert load_instance("lambda/gpu_8x_v100").rdma is None
    assert load_instance("lambda/gpu_8x_v100").network_per_gpu is None


def test_an_unknown_instance_suggests_the_nearest():
    with pytest.raises(
        SpecError, match=r"unknown instance 'aws/p5\.48xlrge': did you mean aws/p5\.48xlarge\?"
    ):
        load_instance("aws/p5.48xlrge")
    with pytest.raises(SpecError, match=r"known: .*planner gpus prices"):
        load_instance("zzz")


def test_a_type_of_two_clouds_needs_its_cloud(monkeypatch):
    one = load_instance("p5.48xlarge")
    other = CloudInstance(**{**{f: getattr(one, f) for f in one.__slots__}, "cloud": "other"})
    monkeypatch.setattr("planner.catalog.clouds.cloud_instances", lambda: (one, other))
    with pytest.raises(SpecError, match=r"ambiguous: aws/p5\.48xlarge, other/p5\.48xlarge"):
        load_instance("p5.48xlarge")
    assert load_instance("other/p5.48xlarge") is other


def test_the_tool_writes_what_loads(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    tool = importlib.import_module("build_cloud_prices")
    blank = dict.fromkeys(
        ("spot_usd_h", "vcpus", "ram_gb", "network_gbps_total", "network_kind", "region", "date"), ""
    )
    rows = [
        {**blank, "cloud": "a", "instance_type": "x.1", "gpu": "H100-SXM5", "gpus": "8",
         "on_demand_usd_h": "24", "source": "a page", "status": "second-hand"},
        {**blank, "cloud": "a", "instance_type": "t", "gpu": "TPU-v6e", "gpus": "1",
         "on_demand_usd_h": "1", "source": "a page", "status": "checked"},
        {**blank, "cloud": "b", "instance_type": "y", "gpu": "T4", "gpus": "1", "on_demand_usd_h": "",
         "source": "from memory, unverified", "status": "unverified", "network_kind": "ENA"},
    ]  # fmt: skip
    text = tool.catalogue_text(rows)
    assert text == tool.catalogue_text(rows)
    clouds = parse_document(text, "clouds.yaml", CloudsDocument).model.clouds
    assert {cloud: list(types) for cloud, types in clouds.items()} == {"a": ["x.1"], "b": ["y"]}
    assert clouds["a"]["x.1"].on_demand_usd_per_hour == 24
    assert clouds["b"]["y"].on_demand_usd_per_hour is None
    assert (clouds["b"]["y"].source, clouds["b"]["y"].rdma) == ("from memory", False)


# --------------------------------------------------------------------------------------------
# Scenarios

SCENARIO = """\
model: meta-llama/Llama-3.1-8B-Instruct
workload: {request_rate: 5, input_tokens: 1000, output_tokens: 200}
slo: {ttft_ms: {p99: 2000}, tpot_ms: {p99: 60}}
fleet:
  - ITEM
"""


def scenario(item: str, more: str = "") -> str:
    return SCENARIO.replace("ITEM", item) + more


def fleet_item(item: str, more: str = "") -> FleetItem:
    (found,) = scenario_from_text(scenario(item, more)).scenario.fleet
    return found


def problem(item: str, more: str = "") -> str:
    with pytest.raises(SpecError) as caught:
        scenario_from_text(scenario(item, more))
    (found,) = caught.value.problems
    return str(found)


def test_an_instance_gives_gpu_price_node_and_network():
    item = fleet_item("{instance: aws/p5.48xlarge}")
    assert item.gpu.name == "h100-sxm"
    assert item.price == pytest.approx(6.88)
    assert item.node_size == 8
    assert item.network_bandwidth == 400 * GBPS
    assert item.network_given
    assert item.rdma
    assert "aws/p5.48xlarge on demand in us-east-1 (2026, " in item.price_source
    assert item.price_source.endswith(", checked)")


@pytest.mark.parametrize(
    ("keys", "attribute", "value"),
    [
        ("price_per_gpu_hour: 3", "price", 3.0),
        ("owned: true", "price", 0.0),
        ("node_size: 4", "node_size", 4),
        ("network_gbps_per_gpu: 100", "network_bandwidth", 100 * GBPS),
        ("rdma: false", "rdma", False),
        ("max_gpus: 16", "max_gpus", 16),
        ("gpu: H100", "network_bandwidth", 400 * GBPS),
    ],
)
def test_own_keys_win_over_the_instance(keys, attribute, value):
    item = fleet_item(f"{{instance: aws/p5.48xlarge, {keys}}}")
    assert getattr(item, attribute) == value
    assert item.gpu.name == "h100-sxm"
    assert bool(item.price_source) == ("price" not in keys and "owned" not in keys)


def test_what_an_instance_leaves_open_is_the_profiles():
    item = fleet_item("{instance: lambda/gpu_8x_v100}")
    assert item.network_bandwidth == load_gpu("v100-16gb-sxm").network_bandwidth
    assert not item.network_given
    assert item.rdma  # nothing is known of it
    assert not fleet_item("{instance: g5.xlarge}").rdma
    assert fleet_item("{instance: g5.xlarge, rdma: true}").rdma


SPOT = "price_class: spot, interruptions_per_hour: 0.05"


def test_spot_gpus_of_an_instance_take_its_spot_price():
    item = fleet_item(f"{{instance: aws/g6e.48xlarge, {SPOT}}}")
    assert item.price == pytest.approx(11.3507 / 8)
    assert item.price_class is PriceClass.SPOT
    assert item.price_source == load_instance("g6e.48xlarge").price_source(PriceClass.SPOT)
    assert item.price_source.startswith("aws/g6e.48xlarge spot in us-east-1 (2026, ")
    own = fleet_item(f"{{instance: aws/g6e.48xlarge, {SPOT}, price_per_gpu_hour: 1}}")
    assert (own.price, own.price_source) == (1, "")


def test_prices_that_an_instance_lacks_are_not_taken_from_another_class():
    for price_class, more in (("spot", ", interruptions_per_hour: 0.05"), ("reserved", "")):
        line = f"{{instance: aws/p5.48xlarge, price_class: {price_class}{more}}}"
        expected = f"{price_class} price of aws/p5.48xlarge is not known: give price_per_gpu_hour"
        assert expected in problem(line)
        assert fleet_item(line, "objective: gpus\n").price is None


def test_an_unknown_price_is_an_error_that_says_which():
    expected = "price of aws/p6-b300.48xlarge is not known: give price_per_gpu_hour"
    found = problem("{instance: aws/p6-b300.48xlarge}")
    assert found == f"line 5: fleet[0].instance: {expected}"
    more = "objective: gpus\nbudget_per_hour: 100\n"
    assert expected in problem("{instance: aws/p6-b300.48xlarge}", more)


def test_an_unknown_price_is_none_where_no_price_counts():
    assert fleet_item("{instance: aws/p6-b300.48xlarge, price_per_gpu_hour: 9}").price == 9
    assert fleet_item("{instance: aws/p6-b300.48xlarge, owned: true}").price == 0
    assert fleet_item("{instance: aws/p6-b300.48xlarge}", "objective: gpus\n").price is None


def test_a_gpu_that_contradicts_the_instance_is_refused():
    found = problem("{instance: aws/p5.48xlarge, gpu: l4}")
    assert "fleet[0].gpu: contradicts aws/p5.48xlarge, which has h100-sxm, got 'l4' (leave it out)" in found


def test_a_profile_of_ones_own_may_stand_for_the_instances_gpu(tmp_path):
    text = (ROOT / "gpu_profiles" / "h100-sxm.yaml").read_text(encoding="utf-8")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace("name: h100-sxm\n", "name: mine\n"), encoding="utf-8")
    item = fleet_item(f"{{instance: aws/p5.48xlarge, gpu: {mine}}}")
    assert (item.gpu.name, item.price) == ("mine", pytest.approx(6.88))


def test_a_gpu_or_an_instance_is_needed():
    found = problem("{price_per_gpu_hour: 3}")
    assert "fleet[0].gpu: is required (or name an instance)" in found


def test_an_unknown_instance_is_reported_at_its_line():
    assert "line 5: fleet[0].instance: unknown instance 'aws/p5.48xlrge'" in problem(
        "{instance: aws/p5.48xlrge}"
    )


def test_one_gpu_of_two_instances_is_listed_twice():
    found = problem("{instance: aws/p5.48xlarge}\n  - {instance: nebius/gpu-h100-sxm_8gpu-128vcpu-1600gb}")
    assert "line 6: fleet[1].instance: is listed twice, first on line 5" in found


def test_a_plan_says_where_its_prices_come_from():
    loaded = scenario_from_text(
        scenario("{instance: aws/p5.48xlarge}", "options: {whole_nodes: false, max_tp: 2, max_pp: 1}\n")
    )
    plan = solve(loaded, SolveOptions(alternatives=False, verify=False))
    expected = f"price of h100-sxm: {load_instance('p5.48xlarge').price_source()}"
    assert expected in plan.notes
    assert expected in plan.provenance
    assert plan.cost == pytest.approx(6.88 * sum(g.num_gpus for g in plan.groups))


def test_a_plan_at_ones_own_price_says_nothing_of_a_catalogue():
    loaded = scenario_from_text(
        scenario("{gpu: h100-sxm, price_per_gpu_hour: 3}", "options: {max_tp: 2, max_pp: 1}\n")
    )
    plan = solve(loaded, SolveOptions(alternatives=False, verify=False))
    assert not [note for note in (*plan.notes, *plan.provenance) if note.startswith("price of")]


# --------------------------------------------------------------------------------------------
# The command line


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def run(*arguments: str, width: int = 200) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        result = CliRunner().invoke(gpus_command, ["prices", *arguments], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    return run


def test_prices_are_listed(prices):
    text = prices()
    line = next(line for line in text.splitlines() if line.startswith("aws/p5.48xlarge"))
    assert line.split()[1:4] == ["h100-sxm", "8", "6.880"]
    assert "checked" in line
    assert len(text.splitlines()) == 1 + len(cloud_instances())
    unknown = next(line for line in text.splitlines() if line.startswith("aws/p6-b300"))
    assert unknown.split()[3] == "-"


def test_prices_of_one_gpu(prices):
    names = [line.split()[0] for line in prices("--gpu", "H200").splitlines()[1:]]
    assert names == [i.name for i in cloud_instances() if i.gpu == "h200-sxm"]
    with pytest.raises(SpecError, match="unknown GPU"):
        prices("--gpu", "h300x")


@pytest.mark.parametrize("width", [60, 80, 100])
def test_prices_fit_the_terminal(prices, width):
    lines = prices(width=width).splitlines()
    assert max(len(line) for line in lines) <= width
    assert "date" in lines[0] or width < 100


def test_prices_as_json(prices):
    found = {f["instance"]: f for f in json.loads(prices("--json", "--gpu", "b300"))}
    assert found["aws/p6-b300.48xlarge"]["usd_per_hour"] is None
    assert found["verda/1B300.30V"]["usd_per_gpu_hour"] == 6.99
    assert found["verda/1B300.30V"]["network_gbps"] is None
    assert found["aws/p6-b300.48xlarge"]["network_gbps"] == 6400
