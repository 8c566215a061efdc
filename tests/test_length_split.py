"""Prompts divided by length: what a part is, where to divide, when it pays, and what a plan says of it."""

from __future__ import annotations

import copy
import itertools
import json
import math
import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner import length_split, verification
from planner.buckets import (
    bucket_of,
    cheapest_partitions,
    conditioned,
    edges_of,
    fewest_within,
    prompts_of,
    ranges_of,
)
from planner.documents.plan import dump_plan, plan_from_text
from planner.documents.scenario import scenario_from_text
from planner.documents.trace_file import read_trace
from planner.errors import SpecError
from planner.evaluation import simulate, standing_plans
from planner.length_split import KEPT_WHOLE, UNSPLIT, WORTH, by_length
from planner.lengths import independent, marginal_fixed, marginal_from_histogram, marginal_lognormal
from planner.plan import Plan
from planner.report.terminal import print_plan
from planner.search import Search, SolveOptions
from planner.simulator.build import Setup, cluster_of
from planner.specs import Lengths, Marginal, Metric, Period, Phase, Service, Workload
from planner.verification import source_of
from planner.workflow import solve

TRACE = Path(__file__).parents[1] / "examples" / "traces" / "synthetic-chat.jsonl"
MIDDLE, LONG = 1000, 1700  # of its prompts [tok]
QUICK = SolveOptions(alternatives=False, verify=False)
H100 = {"gpu": "h100-sxm", "price_per_gpu_hour": 3.0, "max_gpus": 512, "network_gbps_per_gpu": 400}
A100 = {"gpu": "a100-40gb-sxm", "price_per_gpu_hour": 0.3, "max_gpus": 512, "network_gbps_per_gpu": 25}
# Cheap GPUs take too long for long prompts, which are more than the p99 leaves out.
TWO_KINDS = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "engine": "vllm",
    "workload": {
        "request_rate": 20,
        "input_tokens": {"histogram": [[2000, 0.7], [16000, 0.3]]},
        "output_tokens": 100,
    },
    "slo": {"ttft_ms": {"p99": 1700}, "tpot_ms": {"p99": 60}},
    "fleet": [H100, A100],
    "options": {
        "routing": "length_split",
        "whole_nodes": False,
        "max_tp": 1,
        "max_pp": 1,
        "colocated": "forbidden",
    },
}


def edited(**changes: Any) -> dict[str, Any]:
    document = copy.deepcopy(TWO_KINDS)
    for path, value in changes.items():
        *folders, name = path.split("__")
        place: Any = document
        for folder in folders:
            place = place[folder]
        place[name] = value
    return document


@cache
def solved(text: str, options: SolveOptions = QUICK) -> Plan:
    return solve(scenario_from_text(text), options)


def plan_of(document: dict[str, Any], options: SolveOptions = QUICK) -> Plan:
    return solved(json.dumps(document), options)


def said(plan: Plan) -> str:
    return " ".join(plan.notes)


# --------------------------------------------------------------------------------------------
# What a part is


def service(lengths: Lengths, scv: float = 1.0) -> Service:
    (found,) = scenario_from_text(json.dumps(TWO_KINDS)).scenario.services
    periods = (
        Period(name="night", hours=16, request_rate=3.0),
        Period(name="day", hours=8, request_rate=11.0),
    )
    workload = Workload(name="workload", periods=periods, lengths=lengths, arrival_scv=scv)
    return replace(found, workload=workload, label="chat")


def parts_of(whole: Service, edges: tuple[int, ...], trace=None):
    return [bucket_of(whole, low, high, "chat", trace) for low, high in ranges_of(edges)]


def test_parts_have_all_requests_and_tokens():
    lengths = independent(marginal_lognormal(1500, 1.2, 30_000), marginal_lognormal(200, 0.7))
    parts = parts_of(service(lengths, scv=3.0), (700, 2000, 9000))
    workloads = [part.service.workload for part in parts]
    shares = [part.share for part in parts]
    assert math.fsum(shares) == pytest.approx(1, abs=1e-12)
    means = [w.lengths.isl.mean for w in workloads]
    assert np.dot(shares, means) == pytest.approx(lengths.isl.mean, rel=1e-12)
    assert all(w.lengths.osl == lengths.osl for w in workloads)
    assert [w.lengths.isl_per_output_token for w in workloads] == means
    for share, w in zip(shares, workloads, strict=True):
        assert [p.request_rate for p in w.periods] == [share * 3.0, share * 11.0]
        assert w.arrival_scv == pytest.approx(1 + share * 2.0)


def test_parts_lie_within_their_bounds():
    lengths = independent(marginal_lognormal(1500, 1.2, 30_000), marginal_fixed(10))
    for part in parts_of(service(lengths), (700, 2000, 9000)):
        isl = part.service.workload.lengths.isl
        assert part.low <= isl.points[0] <= isl.points[-1] <= isl.maximum
        longest = lengths.isl.maximum if math.isinf(part.high) else part.high - 1
        assert isl.maximum == longest


def test_parts_keep_what_ties_outputs_to_prompts():
    isl = marginal_lognormal(1500, 0.8, 20_000)
    osl = marginal_lognormal(200, 0.3)
    lengths = Lengths(isl=isl, osl=osl, isl_per_output_token=1.05 * isl.mean)
    parts = parts_of(service(lengths), (1000, 3000))
    own = [(part.share, part.service.workload.lengths) for part in parts]
    assert [x.osl.mean for _, x in own] == sorted(x.osl.mean for _, x in own)
    assert own[0][1].osl.mean < osl.mean < own[-1][1].osl.mean
    tokens = math.fsum(share * x.osl.mean for share, x in own)
    products = math.fsum(share * x.osl.mean * x.isl_per_output_token for share, x in own)
    # The longest outputs may not grow, which costs a little.
    assert tokens == pytest.approx(osl.mean, rel=2e-3)
    assert products == pytest.approx(osl.mean * lengths.isl_per_output_token, rel=2e-3)


def test_outputs_never_change_beyond_reason():
    isl = marginal_from_histogram([100, 10_000], [0.9, 0.1])
    lengths = Lengths(isl=isl, osl=marginal_lognormal(200, 0.5), isl_per_output_token=120.0)
    for part in parts_of(service(lengths), (1000,)):
        own = part.service.workload.lengths
        assert lengths.osl.mean / 2 - 1 <= own.osl.mean <= 2 * lengths.osl.mean
        assert own.isl.points[0] <= own.isl_per_output_token <= own.isl.points[-1]


def test_parts_of_a_trace_are_as_the_trace_has_them():
    trace = read_trace(TRACE)
    most = int((trace.isl + trace.osl).max())
    lengths = independent(marginal_fixed(trace.isl.max()), marginal_fixed(trace.osl.max()))
    parts = parts_of(service(replace(lengths, longest_request=most)), (MIDDLE, LONG), trace)
    assert math.fsum(part.share for part in parts) == pytest.approx(1, abs=1e-12)
    for part in parts:
        own = part.service.workload.lengths
        index = (trace.isl >= part.low) & (trace.isl < part.high)
        isl, osl = trace.isl[index].astype(float), np.maximum(trace.osl[index], 1).astype(float)
        assert part.share == index.sum() / trace.requests
        assert own.isl.mean == pytest.approx(isl.mean(), rel=1e-9)
        assert own.osl.mean == pytest.approx(osl.mean(), rel=1e-9)
        assert own.isl_per_output_token == pytest.approx(isl @ osl / osl.sum())
        assert own.longest == min(own.isl.maximum + trace.osl.max(), most)


def test_a_part_without_requests_is_refused():
    with pytest.raises(SpecError, match="nothing from 10 to below 20 tokens"):
        conditioned(marginal_fixed(100), 10, 20)
    with pytest.raises(SpecError, match="no prompt has from 1e"):
        bucket_of(service(independent(marginal_fixed(1), marginal_fixed(1))), 1e7, 2e7, "", read_trace(TRACE))


@pytest.mark.parametrize("name", ["", "chat", "a" * 63])
def test_names_of_parts_may_stand_in_host_names(name):
    whole = service(independent(marginal_lognormal(1500, 1.2), marginal_fixed(10)))
    labels = [bucket_of(whole, low, high, name).service.label for low, high in ranges_of((700, 2000))]
    assert len(set(labels)) == 3
    assert all(re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", x) and len(x) <= 63 for x in labels)
    if name == "chat":
        assert labels == ["chat-le699", "chat-gt699-le1999", "chat-gt1999"]


def test_requests_of_a_trace_between_two_lengths():
    trace = read_trace(TRACE)
    part = trace.between(MIDDLE, LONG)
    index = np.flatnonzero((trace.isl >= MIDDLE) & (trace.isl < LONG))
    assert 0 < part.requests == index.size < trace.requests
    assert np.array_equal(part.lines, trace.lines[index])
    assert part.arrival[0] == 0
    assert np.allclose(np.diff(part.arrival), np.diff(trace.arrival[index]))
    assert trace.between(10**7, 10**8).requests == 0


@pytest.mark.parametrize("arrivals", ["trace", "poisson"])
def test_a_part_is_verified_with_its_own_requests(arrivals):
    document = edited(workload={"trace": str(TRACE), "request_rate": 20, "arrivals": arrivals})
    loaded = scenario_from_text(json.dumps(document))
    (asked,) = loaded.scenario.services
    bucket = bucket_of(asked, MIDDLE, LONG, "", loaded.trace)
    source = source_of(loaded, 0, bucket.service.workload, prompts=(MIDDLE, LONG))
    requests = source.draw(2000)
    assert source.replay == (arrivals == "trace")
    assert MIDDLE <= requests.isl.min() <= requests.isl.max() < LONG
    assert source.mean_rate == pytest.approx(20 * bucket.share)
    assert requests.request_rate == pytest.approx(20 * bucket.share, rel=0.1)


# --------------------------------------------------------------------------------------------
# Where to divide


def test_equal_prompts_cannot_be_divided():
    assert edges_of(marginal_fixed(1000)) == ()
    assert edges_of(marginal_lognormal(1000, 0.05)) == ()
    assert ranges_of(()) == ((0.0, math.inf),)


def test_a_gap_is_a_place_to_divide():
    (edge,) = edges_of(marginal_from_histogram([500, 24_000], [0.9, 0.1]))
    assert 500 < edge <= 24_000
    assert edges_of(marginal_from_histogram([100, 101], [0.5, 0.5])) == ()


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_edges_ascend_and_their_sides_differ(cv):
    isl = marginal_lognormal(2000, cv, 60_000)
    edges = edges_of(isl)
    assert 0 < len(edges) <= 4
    assert list(edges) == sorted(set(edges))
    for edge in edges:
        (short, _), (long, _) = conditioned(isl, 0, edge), conditioned(isl, edge, math.inf)
        assert long.mean >= 1.5 * short.mean
    assert all(b >= 1.25 * a for a, b in itertools.pairwise(edges))


def test_a_trace_is_divided_where_it_has_requests():
    trace = read_trace(TRACE)
    gap = replace(trace, isl=np.where(trace.isl < 1500, 500, 16_000))
    (table,) = scenario_from_text(json.dumps(TWO_KINDS)).scenario.services
    edges = edges_of(prompts_of(table, gap))
    assert len(edges) == 1
    assert all(gap.between(low, high).requests for low, high in ranges_of(edges))
    assert prompts_of(table, None) == table.workload.lengths.isl


def test_no_edge_divides_a_point():
    isl = Marginal(points=(10.2, 10.8, 500.5), weights=(0.4, 0.3, 0.3))
    for edge in edges_of(isl):
        assert conditioned(isl, 0, edge)[1] + conditioned(isl, edge, math.inf)[1] == pytest.approx(1)


def by_hand(costs: dict[tuple[int, int], float], stretches: int, parts: int) -> float:
    ways = []
    for cuts in itertools.combinations(range(1, stretches), parts - 1):
        bounds = [0, *cuts, stretches]
        ways.append(sum(costs[pair] for pair in itertools.pairwise(bounds)))
    return min(ways)


@pytest.mark.parametrize("seed", range(20))
def test_partitions_are_the_cheapest(seed):
    rng = random.Random(seed)
    stretches, most = rng.randint(1, 6), rng.randint(1, 5)
    pairs = [(a, b) for a in range(stretches) for b in range(a + 1, stretches + 1)]
    costs = {pair: math.inf if rng.random() < 0.2 else rng.uniform(1, 10) for pair in pairs}
    found = cheapest_partitions(lambda a, b: costs[a, b], stretches, most, worth=-math.inf)
    assert len(found) == min(most, stretches)
    for k, partition in enumerate(found, 1):
        assert partition.cost == pytest.approx(by_hand(costs, stretches, k))
        assert len(partition.parts) == k
        assert [a for a, _ in partition.parts] == [0, *(b for _, b in partition.parts[:-1])]
        assert partition.parts[-1][1] == stretches
        if math.isfinite(partition.cost):
            assert sum(costs[part] for part in partition.parts) == pytest.approx(partition.cost)


def test_more_parts_are_not_tried_where_one_more_saves_nothing():
    asked = []

    def cost(first: int, end: int) -> float:
        asked.append((first, end))
        return 10.0 * (end - first)

    found = cheapest_partitions(cost, 4, 4, worth=0.01)
    assert [p.cost for p in found] == [40.0, 40.0]
    assert len(asked) == len(set(asked)) == 7  # the whole, and three ways of two parts


def test_the_fewest_within_the_tolerance_win():
    assert fewest_within({1: 10.0, 2: 9.0, 3: 8.95}, 0.01) == 2
    assert fewest_within({1: 10.0, 2: 9.95}, 0.01) == 1
    assert fewest_within({1: math.inf, 2: 5.0}, 0.01) == 2
    assert fewest_within({1: math.inf, 2: math.inf}, 0.01) == 1


# --------------------------------------------------------------------------------------------
# Plans


def test_a_split_pays_where_long_prompts_need_other_gpus():
    plan = plan_of(TWO_KINDS)
    whole = plan_of(edited(options__routing="least_loaded"))
    assert plan.split is not None
    assert whole.split is None
    assert plan.cost < (1 - WORTH) * whole.cost
    assert plan.split.cost_unsplit == pytest.approx(whole.cost)
    assert plan.split.costs == {1: pytest.approx(whole.cost), 2: pytest.approx(plan.cost)}
    short, long = plan.split.buckets
    assert (short.shortest, short.longest + 1, long.longest) == (1, long.shortest, None)
    assert (short.share, long.share) == pytest.approx((0.7, 0.3))
    assert [p.service for p in plan.predictions] == [short.service, long.service]
    assert [p.request_rate for p in plan.predictions] == pytest.approx([14, 6])
    assert {g.service for g in plan.groups} == {short.service, long.service}
    for prediction in plan.predictions:
        for target in prediction.slo:
            latency = prediction.ttft if target.metric is Metric.TTFT else prediction.tpot
            assert getattr(latency.planned, target.statistic) <= target.limit
    (beside,) = [a for a in plan.alternatives if a.name == UNSPLIT]
    assert beside.cost == pytest.approx(whole.cost)
    change = 100 * (plan.cost / whole.cost - 1)
    costs = f"{plan.cost:,.6g} USD/h against {whole.cost:,.6g} USD/h without the split ({change:.1f} %)"
    assert costs in said(plan)


def test_prompts_alike_stay_together():
    narrow = edited(workload__input_tokens={"mean": 3000, "cv": 0.4})
    plan = plan_of(narrow)
    whole = plan_of({**narrow, "options": {**narrow["options"], "routing": "least_loaded"}})
    assert plan.split is None
    assert plan.groups == whole.groups
    assert "splitting by length saves nothing here: pools for two buckets" in said(plan)


def test_equal_prompts_are_not_looked_at():
    plan = plan_of(edited(workload__input_tokens=1000))
    assert plan.split is None
    assert "prompts hardly differ in length" in said(plan)


@pytest.mark.parametrize("ttft", [1500, 1800, 2100, 2400, 3000])
def test_a_plan_is_never_dearer_for_looking_at_splits(ttft):
    """All prompts together may have a plan within one node, which is no plan of the program's."""
    document = edited(
        slo__ttft_ms={"p99": ttft}, workload__input_tokens={"histogram": [[500, 0.7], [16_000, 0.3]]}
    )
    plan = plan_of(document)
    whole = plan_of({**document, "options": {**document["options"], "routing": "least_loaded"}})
    assert plan.value <= whole.value * (1 + whole.gap) + 1e-9


def test_a_split_that_proves_no_better_is_dropped(monkeypatch):
    whole = plan_of({**TWO_KINDS, "options": {**TWO_KINDS["options"], "routing": "least_loaded"}})
    monkeypatch.setattr("planner.workflow.worth_it", lambda plan, value: False)
    plan = solve(scenario_from_text(json.dumps(TWO_KINDS)), QUICK)
    assert plan.split is None
    assert KEPT_WHOLE in plan.notes
    assert plan.groups == whole.groups


@pytest.mark.parametrize("objective", ["gpus", "power"])
def test_fewer_gpus_may_do_where_long_prompts_hold_up_no_others(objective):
    document = edited(
        objective=objective,
        workload={
            "request_rate": 300,
            "input_tokens": {"histogram": [[1000, 0.95], [30_000, 0.05]]},
            "output_tokens": 800,
        },
        slo={"ttft_ms": {"p99": 4000}, "tpot_ms": {"p99": 23}},
        fleet=[H100, {"gpu": "l40s", "price_per_gpu_hour": 0.3, "network_gbps_per_gpu": 50}],
        options=TWO_KINDS["options"] | {"colocated": "only", "max_tp": 4},
    )
    plan = plan_of(document)
    whole = plan_of({**document, "options": {**document["options"], "routing": "least_loaded"}})
    assert plan.split is not None
    assert plan.value < (1 - WORTH) * whole.value
    assert f"against {whole.value:,.6g}" in said(plan)


def test_a_split_may_carry_more_for_the_same_money():
    document = edited(objective="throughput", budget_per_hour=20)
    plan = plan_of(document)
    whole = plan_of({**document, "options": {**document["options"], "routing": "least_loaded"}})
    assert plan.split is not None
    assert plan.value * (1 - WORTH) > whole.value
    assert plan.cost <= 20
    rates = [p.request_rate for p in plan.predictions]
    assert sum(rates) == pytest.approx(plan.value)
    assert rates[0] / sum(rates) == pytest.approx(0.7)


def test_a_split_may_make_the_only_plan():
    # Half of the prompts are too long for the few fast GPUs to share their pool with the others.
    document = edited(fleet=[H100 | {"max_gpus": 6}, A100])
    plan = plan_of(document)
    assert plan.split is not None
    assert plan.split.cost_unsplit is None
    (beside,) = [a for a in plan.alternatives if a.name == UNSPLIT]
    assert beside.cost is None
    assert "no plan without the split does" in said(plan)


def test_services_are_divided_each_by_itself():
    one = {key: TWO_KINDS[key] for key in ("model", "engine", "workload", "slo")}
    narrow = {**one, "workload": {**one["workload"], "input_tokens": 500}}
    shared = {key: TWO_KINDS[key] for key in ("fleet", "options")}
    plan = plan_of({**shared, "models": [{**one, "name": "wide"}, {**narrow, "name": "narrow"}]})
    assert plan.split is not None
    names = [b.service for b in plan.split.buckets]
    assert [name.partition("-")[0] for name in names] == ["wide", "wide", "narrow"]
    assert names[2] == "narrow"
    assert [b.share for b in plan.split.buckets] == pytest.approx([0.35, 0.15, 0.5])
    assert [p.request_rate for p in plan.predictions] == pytest.approx([14, 6, 20])


def test_every_bucket_is_a_stream_with_its_share():
    whole = Search.of(scenario_from_text(json.dumps(TWO_KINDS)), QUICK)
    search, division = by_length(whole)
    assert division.split is not None
    assert [s.share for s in search.problem.streams] == pytest.approx([0.7, 0.3])
    assert [q.asked for q in search.questions] == [0, 0]
    (_, middle), (again, end) = (q.prompts for q in search.questions)
    assert (again, end) == (middle, math.inf)
    assert search.problem.demand == pytest.approx(20)


def test_a_part_without_a_plan_spoils_only_its_division(monkeypatch):
    monkeypatch.setattr(length_split, "edges_of", lambda _isl: (4000, 6000))
    plan = solve(scenario_from_text(json.dumps(TWO_KINDS)), QUICK)  # nothing lies between the two
    assert plan.split is not None
    assert len(plan.split.buckets) == 2


def test_a_plan_with_a_split_survives_its_file():
    plan = plan_of(TWO_KINDS)
    again = plan_from_text(dump_plan(plan), "plan")
    assert again.split is not None
    assert again.split.buckets == plan.split.buckets
    assert again.split.front_door == plan.split.front_door
    assert again.split.costs == pytest.approx(plan.split.costs)
    assert dump_plan(again, reproducible=True) == dump_plan(plan, reproducible=True)


def test_a_plan_says_who_takes_which_prompts(capsys):
    plan = plan_of(TWO_KINDS)
    print_plan(plan, 100)
    out = " ".join(capsys.readouterr().out.split())
    assert "split by prompt length" in out
    edge = plan.split.buckets[0].longest
    assert f"prompts of 1 to {edge:,} tokens, 70 % of the requests" in out
    assert f"prompts from {edge + 1:,} tokens, 30 % of the requests" in out
    assert "front door: each bucket has pools of its own" in out


def test_routers_of_a_plan_take_their_prompts_only():
    plan = plan_of(TWO_KINDS)
    standings = standing_plans(plan, None)
    assert [s.name for s in standings] == [b.service for b in plan.split.buckets]
    assert [s.offered for s in standings] == pytest.approx([14, 6])
    for standing, bucket in zip(standings, plan.split.buckets, strict=True):
        isl = standing.source.draw(2000).isl
        assert bucket.shortest <= isl.min()
        assert isl.max() <= (bucket.longest or math.inf)
        assert simulate(standing, requests=5_000).request_rate == pytest.approx(standing.offered, rel=0.1)


def test_a_group_serves_prompts_below_its_upper_bound_and_hands_over_within_its_range():
    short, long = standing_plans(plan_of(TWO_KINDS), None)
    edge = plan_of(TWO_KINDS).split.buckets[0].longest
    ranges = [(1.0, edge + 1.0)] * len(short.names) + [(edge + 1.0, math.inf)] * len(long.names)
    both = replace(short.fleet, groups=(*short.fleet.groups, *long.fleet.groups))
    setup = Setup(z=0.0, input_ranges=tuple(ranges))
    cluster = cluster_of(both, setup, names=(*short.names, *long.names))
    for i, one in enumerate(cluster.groups):
        assert (one.least, one.most) in ((1, edge), (edge + 1, 2**31 - 1))
        for j, other in enumerate(cluster.groups):
            pairs = one.phase is Phase.PREFILL and other.phase is Phase.DECODE
            assert (cluster.pair_rates[i, j] > 0) == (pairs and one.least == other.least)


@pytest.mark.slow
def test_a_verified_split_holds():
    plan = plan_of(TWO_KINDS, SolveOptions(alternatives=False))
    assert plan.verification.passed
    assert set(plan.verification.details["services"]) == {b.service for b in plan.split.buckets}
    (beside,) = [a for a in plan.alternatives if a.name == UNSPLIT]
    assert beside.verified
    assert plan.cost < (1 - WORTH) * beside.cost


def test_each_part_of_a_trace_is_simulated_by_itself(tmp_path, monkeypatch):
    lines = [
        {"timestamp": 50 * k, "input_length": 16_000 if k % 10 < 3 else 2000, "output_length": 100}
        for k in range(2000)
    ]
    path = tmp_path / "two-kinds.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    seen = []
    real = verification.simulate_plan

    def watched(fleet, source, *args, **options):
        seen.append((fleet.service.label, source.trace))
        return real(fleet, source, *args, **options)

    monkeypatch.setattr(verification, "simulate_plan", watched)
    plan = plan_of(
        edited(workload={"trace": str(path), "request_rate": 20, "arrivals": "poisson"}),
        SolveOptions(alternatives=False),
    )
    assert plan.split is not None
    simulated = {
        b.service: [set(t.isl.tolist()) for label, t in seen if label == b.service]
        for b in plan.split.buckets
    }
    assert all(simulated.values())
    assert all(len(isl) == 1 for parts in simulated.values() for isl in parts)  # its own, not the trace's two
    for standing in standing_plans(plan, None):
        assert len(set(standing.source.trace.isl.tolist())) == 1
