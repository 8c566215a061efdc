"""Networks as what-if: what a transfer exposes, what it costs, and whether handing over still pays."""

from __future__ import annotations

import csv
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Runner
from test_simulator_latency import deployed, fleet

import planner as planner_api
from planner.documents.scenario import scenario_from_text
from planner.documents.yaml_text import dump_yaml
from planner.engines import engine_of, load_engine
from planner.errors import InfeasibleError, SpecError
from planner.specs import Dtype, Parallelism, Phase
from planner.transformer import kv_bytes
from planner.whatif import changes
from planner.whatif.network import networks, variants
from planner.whatif.network_rows import (
    AS_ASKED,
    COLUMNS,
    FP8,
    LADDER,
    SAME_NODE,
    exposed_transfer,
    narrower_end,
)

NAMES = ["TCP 25G", "TCP 100G", "RDMA 100G", "RDMA 200G", "RDMA 400G", "within one node"]


def scenario(**changed: object):
    text = {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "precision": {"weights": "bf16", "kv_cache": "bf16"},
        "workload": {"request_rate": 10, "input_tokens": 4000, "output_tokens": 200},
        "slo": {"ttft_ms": {"p99": 600}, "tpot_ms": {"p99": 20}},
        "fleet": [{"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 32}],
        "options": {"whole_nodes": False, "allowed_tp": [1, 2]},
    }
    return scenario_from_text(dump_yaml(text | changed))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.yaml"
    path.write_text(dump_yaml(dict(scenario().document)))
    return path


# --------------------------------------------------------------------------------------------
# Variants


def test_the_ladder_is_in_bytes_per_second():
    assert [n.name for n in LADDER] == NAMES
    assert [n.bandwidth for n in LADDER] == [3.125e9, 12.5e9, 12.5e9, 25e9, 50e9, None]
    assert [n.rdma for n in LADDER] == [False, False, True, True, True, True]


def test_every_network_comes_with_and_without_overlap_and_in_both_formats():
    found = variants(scenario().scenario)
    assert len(found) == 24
    assert {v.overlap for v in found} == {0.0, 1 - 1 / 32}  # all but one of 32 layers
    assert {v.kv_cache for v in found} == {AS_ASKED, FP8}
    fp8 = scenario(precision={"weights": "bf16", "kv_cache": "fp8"}).scenario
    assert {v.kv_cache for v in variants(fp8)} == {AS_ASKED}


def test_a_changed_service_has_a_changed_engine():
    own = load_engine("vllm").transfer
    service = scenario().scenario.services[0]
    assert engine_of(service).transfer == own
    assert engine_of(replace(service, overlap=0.5)).transfer == replace(own, overlap=0.5)
    assert engine_of(replace(service, node_links=False)).transfer.peer_links == ()
    changed = changes.on_network(scenario().scenario, 3.125e9, rdma=False)
    assert [(i.network_bandwidth, i.rdma, i.network_given) for i in changed.fleet] == [(3.125e9, False, True)]
    assert not changed.services[0].node_links


# --------------------------------------------------------------------------------------------
# Transfers


def test_exposed_transfer_of_one_pair_by_hand():
    """A prompt of 30,000 tokens over the NICs of two GPUs at a third of what two others have."""
    prefill, decode = deployed(Phase.PREFILL, Parallelism(tp=2)), deployed(Phase.DECODE, Parallelism(tp=2))
    slow = replace(decode, item=replace(decode.item, network_bandwidth=prefill.item.network_bandwidth / 3))
    f = fleet("meta-llama/Llama-3.1-8B", prefill, slow)
    costs = f.engine.transfer
    size = float(kv_bytes(f.service.model, Dtype.BF16, 30_000.0))
    wire = size / (2 * slow.item.network_bandwidth * costs.rdma_efficiency)
    blocks = 30_000 / f.engine.block_size * 32 * costs.per_block
    mean, long = exposed_transfer(f)
    assert mean == pytest.approx(costs.fixed + wire + blocks)
    assert long == pytest.approx(mean)
    assert narrower_end(f) == "decode h100-sxm"
    half = replace(f, engine=replace(f.engine, transfer=replace(costs, overlap=0.5)))
    assert exposed_transfer(half)[0] == pytest.approx(costs.fixed + (wire + blocks) / 2)


def test_the_narrower_end_is_that_of_fewer_nics():
    prefill, decode = deployed(Phase.PREFILL, Parallelism()), deployed(Phase.DECODE, Parallelism(tp=4))
    assert narrower_end(fleet("meta-llama/Llama-3.1-8B", prefill, decode)) == "prefill h100-sxm"


# --------------------------------------------------------------------------------------------
# Plans


@pytest.fixture(scope="module")
def found():
    return networks(scenario())


@pytest.mark.slow
def test_a_faster_network_is_never_dearer_nor_slower(found):
    assert len(found.points) == 24
    for kv_cache in (AS_ASKED, FP8):
        for overlap in {row.overlap for row in found.points}:
            rows = [r for r in found.points if (r.kv_cache, r.overlap) == (kv_cache, overlap)][:5]
            values = [row.result.value for row in rows]
            assert all(b <= a * 1.0002 for a, b in itertools.pairwise(values)), values
            assert rows[-1].exposed < rows[0].exposed


@pytest.mark.slow
def test_hidden_transfers_expose_less_and_cost_no_more(found):
    rows = {(r.kv_cache, r.overlap > 0, r.network.name): r for r in found.points}
    for kv_cache in (AS_ASKED, FP8):
        for name in NAMES[:5]:
            bare, hidden = rows[kv_cache, False, name], rows[kv_cache, True, name]
            assert hidden.exposed < bare.exposed
            assert hidden.result.value <= bare.result.value * 1.0002
    assert rows[FP8, False, "TCP 25G"].result.value <= rows[AS_ASKED, False, "TCP 25G"].result.value * 1.0002


@pytest.mark.slow
def test_whether_handing_over_pays_is_told_by_the_best_colocated_plan(found):
    assert set(found.colocated) == {AS_ASKED, FP8}
    for row in found.points:
        best = found.colocated[row.kv_cache].value
        value = row.result.value
        assert row.pays is (value is not None and (best is None or value < best))
        assert row.result.groups is None or {g.phase for g in row.result.groups} == {
            Phase.PREFILL,
            Phase.DECODE,
        }


@pytest.mark.slow
def test_within_one_node_groups_share_it_and_beside_that_nobody_does(found):
    inside = [row for row in found.points if row.network.name == SAME_NODE]
    assert inside
    for row in found.points:
        same = {g.same_node for g in row.result.groups or ()}
        assert same <= {row.network.name == SAME_NODE}
    feasible = [row for row in inside if row.result.feasible]
    assert feasible
    rdma = next(
        r for r in found.points if (r.network.name, r.overlap, r.kv_cache) == ("RDMA 400G", 0, AS_ASKED)
    )
    assert feasible[0].exposed < rdma.exposed


def test_gpus_without_a_link_cannot_share_a_node():
    l40s = scenario(
        fleet=[{"gpu": "l40s", "price_per_gpu_hour": 0.9, "max_gpus": 32}],
        slo={"ttft_ms": {"p99": 4000}, "tpot_ms": {"p99": 60}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.whatif.network.LADDER", LADDER[-1:])
        patch.setattr("planner.whatif.network.variants", lambda s: variants(s, LADDER[-1:])[:1])
        result = networks(l40s)
    (row,) = result.points
    assert row.result.reason == "vllm moves no KV cache over the links of this fleet"
    assert not row.pays


def test_what_has_no_hand_over_is_refused():
    with pytest.raises(SpecError, match=r"options\.colocated: is only, so nothing is handed over"):
        networks(scenario(options={"colocated": "only"}))


def test_several_services_are_refused():
    document = scenario().document
    one = {key: document[key] for key in ("model", "workload", "slo")}
    loaded = scenario_from_text(dump_yaml({"models": [one, one], "fleet": document["fleet"]}))
    with pytest.raises(SpecError, match="networks are looked at for one model, the scenario has 2"):
        networks(loaded)


@pytest.mark.slow
def test_a_scenario_that_no_network_helps_is_infeasible(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("planner.whatif.network.variants", lambda s: variants(s, LADDER[:1])[:1])
    with pytest.raises(InfeasibleError, match="p99 TTFT"):
        networks(scenario(slo={"ttft_ms": {"p99": 5}}))


def test_an_interrupt_keeps_the_rows_so_far():
    def stop() -> None:
        raise KeyboardInterrupt

    result = networks(scenario(), on_row=stop)
    assert result.interrupted
    assert len(result.points) == 1
    assert "interrupted" in result.notes[-1]


@pytest.mark.slow
def test_the_result_is_a_table_and_a_text(found):
    assert len(found.rows()) == 24
    assert set(found.rows()[0]) == set(COLUMNS)
    assert "KV cache fp8, transfers after the prompt" in found._repr_html_()
    assert planner_api.networks is networks


# --------------------------------------------------------------------------------------------
# The command


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two networks, and the KV cache as asked for."""
    few = (LADDER[0], LADDER[4])
    for place in ("planner.whatif.network", "planner.cli.network"):
        monkeypatch.setattr(f"{place}.variants", lambda s: variants(s, few)[:4])


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_the_command_prints_tables_and_writes_files(planner: Runner, file: Path, tmp_path: Path):
    rows, picture = tmp_path / "rows.csv", tmp_path / "cost.svg"
    result = planner("network", file, "-o", rows, "--plot", picture)
    assert result.code == 0, result.err
    assert "KV cache as asked, transfers after the prompt" in result.out
    assert "KV cache as asked, 97% of a transfer hidden" in result.out
    assert "without hand-over: " in result.out
    assert "the engine itself hides 0%" in result.out
    with rows.open(newline="") as lines:
        table = list(csv.DictReader(lines))
    assert [row["network"] for row in table] == ["TCP 25G", "RDMA 400G"] * 2
    assert [row["gbps_per_gpu"] for row in table] == ["25.0", "400.0"] * 2
    text = picture.read_text()
    assert "colocated, KV cache as asked" in text
    assert "TCP 25G" in text


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_json_of_the_command(planner: Runner, file: Path):
    facts = planner("network", file, "--json").facts
    assert facts["unit"] == "USD/h"
    assert set(facts["colocated"]) == {"as asked"}
    for row in facts["rows"]:
        assert row["feasible"]
        assert 0 < row["exposed_transfer_ms"] <= row["exposed_transfer_p99_ms"]
        assert row["ttft_mean_ms"] < row["ttft_p99_ms"]
        assert row["pays"] is (row["cost_per_hour"] < facts["colocated"]["as asked"]["cost_per_hour"])


def test_pictures_have_a_kind(planner: Runner, file: Path, tmp_path: Path):
    result = planner("network", file, "--plot", tmp_path / "cost.pdf")
    assert (result.code, "the name has to end in .png or .svg" in result.err) == (2, True)
