"""Tiers of KV caches as what-if: what is found where, what loading takes, and what a plan makes of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Runner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import planner as planner_api
from planner import catalog
from planner.cli.tier_option import DEFAULTS, tier_of
from planner.documents.scenario import scenario_from_text
from planner.documents.yaml_text import dump_yaml
from planner.errors import SpecError
from planner.reuse import reuse_curve
from planner.specs import Dtype, Parallelism, Precision, Service
from planner.traces import PromptBlocks
from planner.transformer import kv_bytes_per_token
from planner.units import GIGA, TERA
from planner.whatif.tier_loads import Load, Offer, break_even, offer_of
from planner.whatif.tier_rows import COLUMNS
from planner.whatif.tier_specs import Amount, Per, Pool, Tier
from planner.whatif.tiers import tiers

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
TOKEN = kv_bytes_per_token(catalog.load_model(MODEL), Dtype.BF16)
BLOCK = 512


def scenario(**changes: object):
    text = {
        "model": MODEL,
        "workload": {"request_rate": 30, "input_tokens": 6000, "output_tokens": 100},
        "slo": {"ttft_ms": {"p99": 2000}, "tpot_ms": {"p99": 40}},
        "fleet": [{"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 64}],
        "options": {"whole_nodes": False, "allowed_tp": [1, 2]},
    }
    return scenario_from_text(dump_yaml(text | changes))


@pytest.fixture(scope="module")
def service() -> Service:
    return scenario().scenario.services[0]


def conversations(seed: int = 0, number: int = 400, users: int = 60) -> tuple[PromptBlocks, np.ndarray]:
    """Prompts of users who come back, each time with what was said before and one more block."""
    rng = np.random.default_rng(seed)
    said: dict[int, list[int]] = {}
    rows = []
    for k in range(number):
        user = int(rng.integers(users))
        row = said.setdefault(user, [10_000 * user + b for b in range(6)])
        row.append(10**6 + k)
        rows.append(list(row))
    offsets = np.cumsum([0, *map(len, rows)])
    blocks = PromptBlocks(offsets=offsets, ids=np.concatenate(rows), size=BLOCK)
    return blocks, np.diff(offsets) * BLOCK


BLOCKS, ISL = conversations()
CURVE = reuse_curve(BLOCKS, ISL)
POOL = Pool(gpus=4, nodes=2, replicas=4, replica_gpus=1, tokens=20_000.0, copies=1.0)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "requests.jsonl"
    ends = BLOCKS.offsets
    rows = (
        {"timestamp": 100 * k, "input_length": int(ISL[k]), "output_length": 50,
         "hash_ids": BLOCKS.ids[ends[k] : ends[k + 1]].tolist()}
        for k in range(len(ISL))
    )  # fmt: skip
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


L40S = {"gpu": "l40s", "price_per_gpu_hour": 0.9, "max_gpus": 64}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    base = scenario()
    path.write_text(dump_yaml(dict(base.document) | {"fleet": [*base.document["fleet"], L40S]}))
    return path


# --------------------------------------------------------------------------------------------
# What is found, and how fast it comes


def tier(capacity: float = TERA, bandwidth: float = GIGA, per: Per = Per.ALL, name: str = "host") -> Tier:
    return Tier(name=name, capacity=Amount(capacity), bandwidth=Amount(bandwidth, per))


def test_each_tier_finds_what_the_ones_before_it_dropped(service: Service):
    kept = [tier(10_000 * TOKEN), tier(50_000 * TOKEN, name="ssd"), tier(math.inf, name="store")]
    offer = offer_of(kept, POOL, service, 1.0, CURVE)
    ends = [20_000, 30_000, 80_000, math.inf]
    found = np.cumsum([offer.hbm, *(load.found for load in offer.loads)])
    assert found == pytest.approx([CURVE.share(x) for x in ends])
    assert found[-1] == pytest.approx(CURVE.most)
    assert np.all(np.diff(found) >= 0)


def test_no_capacity_finds_nothing(service: Service):
    empty = replace(POOL, tokens=0.0)
    offer = offer_of([tier(0.0)], empty, service, 30.0, CURVE)
    assert (offer.hit_rate, offer.loads[0].found, offer.bandwidth) == (0.0, 0.0, math.inf)


def test_a_shared_tier_is_a_queue_in_which_all_read_at_once(service: Service):
    """30 req/s of 6,000 tokens, half of which is there: what is read, over what can be."""
    given_rate = Tier(name="store", hit_rate=0.5, bandwidth=Amount(100 * GIGA))
    (load,) = offer_of([given_rate], POOL, service, 30.0, None).loads
    demand = 30 * 3000 * TOKEN
    assert load.demand == pytest.approx(demand)
    assert load.bandwidth == pytest.approx(100e9 - demand)
    few = replace(POOL, replicas=1)
    assert offer_of([given_rate], few, service, 30.0, None).loads[0].bandwidth == pytest.approx(100e9)


def test_a_tier_that_cannot_keep_up_is_read_as_far_as_it_can(service: Service):
    slow = Tier(name="ssd", hit_rate=0.5, bandwidth=Amount(GIGA))
    offer = offer_of([slow], POOL, service, 30.0, None)
    (load,) = offer.loads
    assert load.demand == pytest.approx(0.8 * GIGA)
    assert load.used == pytest.approx(0.8 * GIGA / (30 * 6000 * TOKEN))
    assert load.found == 0.5
    assert load.bandwidth == pytest.approx(0.25 * GIGA)  # four replicas read at once, at most


def test_amounts_are_of_all_or_of_each_node_or_gpu(service: Service):
    node = Tier(name="a", hit_rate=0.1, bandwidth=Amount(50 * GIGA, Per.NODE))
    gpu = Tier(name="b", hit_rate=0.1, bandwidth=Amount(10 * GIGA, Per.GPU))
    large = replace(POOL, gpus=16, replica_gpus=4)
    a, b = offer_of([node, gpu], large, service, 30.0, None).loads
    demand = 30 * 600 * TOKEN
    assert a.bandwidth == pytest.approx(50e9 - demand / 2)  # two nodes
    assert b.bandwidth == 40e9  # a replica has four of its own
    assert Amount(3.0, Per.NODE).of(POOL) == 6.0
    assert Amount(3.0, Per.GPU).of(POOL) == 12.0


def test_the_rate_of_all_is_that_of_the_mean_time():
    offer = Offer(0.2, (Load(0.1, 0.1, 0.0, 10.0), Load(0.3, 0.3, 0.0, 5.0)))
    assert offer.hit_rate == pytest.approx(0.6)
    assert offer.bandwidth == pytest.approx(0.6 / (0.1 / 10 + 0.3 / 5))
    assert Offer(0.2).bandwidth == math.inf


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(1, 1e12), st.floats(1, 1e12))
def test_more_capacity_or_bandwidth_never_gives_less(one: float, more: float, slow: float, faster: float):
    service = scenario().scenario.services[0]

    def offered(capacity: float, bandwidth: float) -> Offer:
        return offer_of([tier(capacity * TOKEN, bandwidth)], POOL, service, 30.0, CURVE)

    assert offered(one + more, slow).hit_rate >= offered(one, slow).hit_rate
    a, b = offered(one, slow), offered(one, slow + faster)
    assert b.hit_rate >= a.hit_rate
    assert b.loads[0].bandwidth >= a.loads[0].bandwidth * (1 - 1e-12)


def test_break_even_is_where_loading_takes_as_long_as_computing(service: Service):
    """A replica that computes P tokens per second breaks even at P times the bytes of a token."""
    gpu = catalog.load_gpu("h100-sxm")
    precision = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
    found = break_even(service, gpu, Parallelism(), precision, 0.5)
    peak = gpu.peak_flops[Dtype.BF16]
    most = peak / (2 * 7e9) * TOKEN  # nothing computes faster than the peak
    assert 0.2 * most < found < most
    slow = break_even(service, catalog.load_gpu("l40s"), Parallelism(), precision, 0.5)
    assert slow < found / 2


# --------------------------------------------------------------------------------------------
# Plans


@pytest.mark.slow
def test_rows_get_no_worse_and_find_no_less(trace: Path):
    from planner.documents.trace_file import read_trace

    kept = [tier_of(text) for text in ("host:100GB/node:25GB/s/gpu", "ssd:1TB:10GB/s", "store:10TB:5GB/s")]
    found = tiers(scenario(), kept, trace=read_trace(trace))
    assert [row.name for row in found.steps] == ["no cache", "HBM", "host", "ssd", "store"]
    assert found.curve is not None
    assert found.curve.most == pytest.approx(CURVE.most)
    used = [row for row in found.steps if row.used]
    assert len(used) >= 3
    costs = [row.result.value for row in used]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]
    shares = [row.offer.hit_rate for row in used]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert shares[-1] == pytest.approx(CURVE.most, abs=0.02)
    computed = [row.computed for row in used]
    assert computed == pytest.approx([30 * 6000 * (1 - share) for share in shares])


@pytest.mark.slow
def test_more_bandwidth_is_never_dearer():
    costs = []
    for rate in ("0.5GB/s", "10GB/s", "1000GB/s"):
        found = tiers(scenario(), [tier_of(f"store:hits=0.5:{rate}")])
        costs.append(min(row.result.value for row in found.steps if row.used))
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]


@pytest.mark.slow
def test_a_tier_slower_than_computing_is_left_out():
    found = tiers(scenario(), [tier_of("tape:hits=0.5:0.05GB/s/gpu"), tier_of("host:hits=0.2:50GB/s/gpu")])
    tape, host = found.steps[2:]
    assert (tape.used, host.used) == (False, True)
    assert host.offer.hit_rate == pytest.approx(0.2)  # without what lies on tape
    assert host.result.value < found.steps[0].result.value


@pytest.mark.slow
def test_a_tier_that_costs_more_than_it_saves_is_left_out():
    dear, fair = (tiers(scenario(), [tier_of(f"host:hits=0.5:50GB/s/gpu:{price}")]) for price in (500, 1))
    assert not dear.steps[-1].used
    assert dear.steps[-1].total == pytest.approx(dear.steps[-1].result.cost + 500)
    assert fair.steps[-1].used
    assert fair.steps[-1].total < fair.steps[0].total


def test_slos_that_need_a_cache_have_a_plan_with_one():
    """A prompt of 100,000 tokens is too long for its limit, half of it is not."""
    tight = scenario(
        workload={"request_rate": 0.2, "input_tokens": 100_000, "output_tokens": 50},
        slo={"ttft_ms": {"p99": 2000}, "tpot_ms": {"p99": 100}},
        options={"whole_nodes": False, "allowed_tp": [4]},
    )
    found = tiers(tight, [tier_of("host:hits=0.7:200GB/s/gpu")])
    assert [row.result.feasible for row in found.steps] == [False, False, True]
    assert found.steps[0].result.reason == "no fleet meets the scenario then"


@pytest.mark.slow
def test_a_fleet_that_does_not_hold_with_a_tier_is_no_answer():
    """The largest rate of eight GPUs leaves no time to wait for a slow store."""
    most = scenario(
        objective="throughput",
        workload={"input_tokens": 6000, "output_tokens": 100},
        fleet=[{"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 8}],
    )
    found = tiers(most, [tier_of("host:hits=0.5:25GB/s/gpu"), tier_of("store:hits=0.2:2GB/s")])
    none, _, host, store = found.steps
    assert host.result.value > none.result.value
    assert (store.used, store.result.feasible, store.ttft) == (False, False, None)
    assert "misses an SLO with it" in store.result.reason


def test_an_interrupt_keeps_the_rows_so_far(monkeypatch: pytest.MonkeyPatch):
    done: list[None] = []

    def stop() -> None:
        done.append(None)
        if len(done) == 2:
            raise KeyboardInterrupt

    found = tiers(scenario(), [tier_of("host:hits=0.5:50GB/s")], on_row=stop)
    assert found.interrupted
    assert [row.name for row in found.steps] == ["no cache", "HBM"]
    assert "interrupted" in found.notes[-1]


# --------------------------------------------------------------------------------------------
# The command


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_it(planner: Runner, file: Path, trace: Path, tmp_path: Path):
    rows = tmp_path / "rows.csv"
    result = planner(
        "tiers", file, "--trace", trace, "--tier", "host:100GB/node:25GB/s/gpu:0.2/gpu", "-o", rows
    )
    assert result.code == 0, result.err
    assert "+ host" in result.out
    assert "loading beats computing on h100-sxm" in result.out
    assert "loading beats computing on l40s" in result.out
    assert f"rows written to {rows}" in result.out
    lines = rows.read_text().splitlines()
    assert lines[0].startswith("tier,used,capacity_tokens,hit_rate,loaded_share")
    assert [line.split(",")[0] for line in lines[1:]] == ["no cache", "HBM", "host"]


@pytest.mark.slow
def test_json_of_the_command(planner: Runner, file: Path, trace: Path):
    facts = planner("tiers", file, "--trace", trace, "--tier", "host:100GB/node:25GB/s/gpu", "--json").facts
    assert facts["trace"]["ideal_hit_rate"] == pytest.approx(CURVE.most)
    none, hbm, host = facts["rows"]
    assert (none["hit_rate"], none["capacity_tokens"]) == (0, None)
    assert host["capacity_tokens"] > hbm["capacity_tokens"] > 0
    assert host["feasible"]
    assert host["total_usd_per_hour"] == host["cost_per_hour"] + host["tiers_usd_per_hour"]
    assert {line["gpu"] for line in facts["break_even"]} == {"h100-sxm", "l40s"}
    assert all(line["gb_per_s"] > 0 for line in facts["break_even"])


LOADED = {
    "request_rate": 1,
    "input_tokens": 9,
    "output_tokens": 9,
    "prefix_cache_hit_rate": 0.2,
    "prefix_load_gb_per_s": 5,
}


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({}, [], "tier host: nothing says what prompts share (give --trace FILE with hashes of blocks"),
        ({}, ["a:hits=0.6:1GB/s", "b:hits=0.5:1GB/s"], "hit rates of all tiers come to 1.1, of at most 1"),
        ({}, ["a:hits=0.1:1GB/s", "a:hits=0.1:1GB/s"], "tier a: is named twice"),
        ({}, ["HBM:hits=0.1:1GB/s"], "tier HBM: is named twice"),
        (
            {"workload": LOADED},
            ["a:hits=0.1:1GB/s"],
            "prefix_load_gb_per_s: is what tiers work out (leave it out)",
        ),
    ],
)
def test_questions_that_cannot_be_answered(planner: Runner, tmp_path: Path, changes, options, said):
    path = tmp_path / "s.yaml"
    path.write_text(dump_yaml(dict(scenario(**changes).document)))
    result = planner("tiers", path, *(word for tier in options for word in ("--tier", tier)))
    assert result.code == 2
    assert said in result.err


def test_hit_rates_beside_a_trace_are_refused(planner: Runner, file: Path, trace: Path):
    result = planner("tiers", file, "--trace", trace, "--tier", "a:hits=0.1:1GB/s")
    assert (result.code, "hit rates are given beside a trace that has them" in result.err) == (2, True)


def test_a_trace_without_hashes_is_refused(planner: Runner, file: Path, tmp_path: Path):
    plain = tmp_path / "plain.csv"
    plain.write_text("timestamp_s,input_tokens,output_tokens\n0,10,10\n1,10,10\n")
    result = planner("tiers", file, "--trace", plain)
    assert result.code == 2
    assert "plain.csv: has no hashes of blocks (a column hash_ids)" in result.err


def test_several_services_are_refused():
    one = {key: value for key, value in scenario().document.items() if key in ("model", "workload", "slo")}
    both = {key: value for key, value in scenario().document.items() if key in ("fleet", "options")}
    loaded = scenario_from_text(dump_yaml(both | {"models": [one, one]}))
    with pytest.raises(SpecError, match="tiers are looked at for one model, the scenario has 2"):
        tiers(loaded, [tier_of("a:hits=0.1:1GB/s")])


def test_the_result_is_a_table_and_a_text():
    found = planner_api.tiers(scenario(), [tier_of("host:hits=0.5:50GB/s/gpu")])
    assert [row["tier"] for row in found.rows()] == ["no cache", "HBM", "host"]
    assert set(found.rows()[0]) == set(COLUMNS)
    assert "+ host" in found._repr_html_()


# --------------------------------------------------------------------------------------------
# The option


def test_tiers_as_people_write_them():
    assert tier_of("host:2TB/node:50GB/s/gpu:0.9/node") == Tier(
        name="host",
        capacity=Amount(2e12, Per.NODE),
        bandwidth=Amount(50e9, Per.GPU),
        price=Amount(0.9, Per.NODE),
    )
    assert tier_of("store: 1.5TiB : 200Gb/s : 3USD/h").capacity == Amount(1.5 * 2**40)
    assert tier_of("store:1PB:200Gb/s").bandwidth == Amount(25e9)
    assert tier_of("ssd:hits=0.25:500MB/s/node").hit_rate == 0.25
    assert [tier_of(text).name for text in DEFAULTS] == ["host", "ssd", "store"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("host", "'host' is not NAME:CAPACITY:BANDWIDTH[:PRICE], e.g. host:1TB/node:25GB/s/gpu"),
        ("host:1TB", "is not NAME:CAPACITY:BANDWIDTH"),
        (":1TB:1GB/s", "is not NAME:CAPACITY:BANDWIDTH"),
        ("host:1TB:1GB/s:1:2", "is not NAME:CAPACITY:BANDWIDTH"),
        ("host:2:1GB/s", "capacity '2' is not a number with one of GB, MB, TB, PB, GiB, TiB"),
        ("host:1TB:25GB", "bandwidth '25GB' is not a number with one of GB/s"),
        ("host:1TB:25GB/s/rack", "bandwidth '25GB/s/rack' is not a number"),
        ("host:xTB:25GB/s", "capacity 'xTB' is not a number"),
        ("host:1.2.3TB:25GB/s", "capacity '1.2.3TB' is not a number"),
        ("host:-1TB:25GB/s", "capacity '-1TB' is not a number"),
        ("host:1TB:0GB/s", "bandwidth must be > 0"),
        ("host:1TB:1GB/s:3EUR", "price '3EUR' is not a number with one of USD/h"),
        ("host:hits=1:1GB/s", "hits=1 is not a share from 0 to 1"),
        ("host:hits=x:1GB/s", "hits=x is not a share from 0 to 1"),
    ],
)
def test_tiers_that_are_none(planner: Runner, file: Path, text: str, said: str):
    result = planner("tiers", file, "--tier", text)
    assert result.code == 2
    assert said in " ".join(result.err.split())
