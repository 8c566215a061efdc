"""The interference picture: examples in ticks, runs of fleets, and ``planner timeline``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from planner.cli import main
from planner.documents.fleet import LoadedFleet, load_fleet
from planner.errors import SpecError
from planner.fleet import Fleet
from planner.report.timeline_text import timeline_text
from planner.simulator.arrivals import generated
from planner.simulator.build import Preemption, Setup, cluster_of, holdings
from planner.simulator.cluster import Failure, Outcome, run_cluster
from planner.simulator.interference import (
    MOST_HORIZON,
    MOST_REQUESTS,
    colocated_fleet,
    fleet_timeline,
    fleet_timelines,
    fleet_title,
    toy_horizon,
    toy_timeline,
)
from planner.simulator.requests import Requests
from planner.simulator.timeline import Activity, Timeline
from planner.specs import Parallelism, Phase, SchedulerPolicy

ROOT = Path(__file__).parents[1]
RUNNING = ROOT / "examples" / "fleets" / "llama-70b-running.yaml"
COLOCATED = ROOT / "examples" / "fleets" / "llama-8b-colocated.yaml"
MARKS = {
    Activity.PREFILL: "P",
    Activity.DECODE: "D",
    Activity.STALL: ".",
    Activity.TRANSFER: ">",
    Activity.QUEUED: "-",
}


def rows(timeline: Timeline) -> list[str]:
    """Each request in ticks, from its arrival to its last activity."""
    found = [""] * len(timeline.arrivals)
    for segment in timeline.segments:
        found[segment.request] += MARKS[segment.activity] * round(segment.end - segment.start)
    return found


# --------------------------------------------------------------------------------------------
# The example in ticks

KNOWN = {"arrivals": (0, 10, 16), "prefill": (5, 5, 5)}
FINER = {"arrivals": (0, 30, 48), "prefill": (15, 15, 15), "decode": 3, "transfer": 1}


@pytest.mark.parametrize(
    ("scene", "horizon", "colocated", "disaggregated"),
    [
        (KNOWN, 24, (9, 4, 3), (19, 9, 3)),  # the published figure has the first of this window
        (KNOWN, 27, (12, 7, 6), (22, 12, 6)),  # and the second of that one
        (FINER, 72, (9, 4, 3), (18, 8, 2)),
        (FINER, 81, (12, 7, 6), (21, 11, 5)),
    ],
)
def test_tokens_of_the_known_example(scene, horizon, colocated, disaggregated):
    assert toy_timeline(**scene, horizon=horizon, colocated=True).tokens == colocated
    assert toy_timeline(**scene, horizon=horizon, colocated=False).tokens == disaggregated


def test_picture_of_the_known_example():
    panels = [toy_timeline(**KNOWN, horizon=24, colocated=colocated) for colocated in (True, False)]
    assert (
        timeline_text(panels, 80)
        == """\
colocated: one replica, prompts first
    0    5    10   15   20    tokens
    +----+----+----+----+---
R1 |PPPPPDDDDD.....D.....DDD       9
R2           |PPPPPD.....DDD       4
R3                 |PPPPPDDD       3

disaggregated: one replica for prefill, one for decode
    0    5    10   15   20    tokens
    +----+----+----+----+---
R1 |PPPPPDDDDDDDDDDDDDDDDDDD      19
R2           |PPPPPDDDDDDDDD       9
R3                 |PPPPPDDD       3

P prefill  D decode  . decode stall  | arrival
time in ticks; one column is 1 tick"""
    )


@pytest.mark.parametrize(
    ("chunk", "colocated", "expected"),
    [
        # R2 comes within a prompt: it waits, and with its prompt done, R1 has not decoded yet.
        (None, True, ["PPPPP...DDDDDDDD", "---PPPDDDDDDDD"]),
        # Step by step: P1 3; P1 2 and P2 1; P2 2 beside R1's decoding; both decode.
        (3, True, ["PPPPPP..DDDDDDDD", "-PPPPPPDDDDDDD"]),
        # The KV transfer takes two ticks, and R2 joins R1 between two steps.
        (None, False, ["PPPPP>>DDDDDDDDD", "---PPP>>DDDDDD"]),
    ],
)
def test_small_example_by_hand(chunk, colocated, expected):
    panel = toy_timeline((0, 2), (5, 3), horizon=16, colocated=colocated, transfer=2, chunk=chunk)
    assert rows(panel) == expected


def test_sequences_join_between_steps():
    panel = toy_timeline((0, 0), (1, 3), horizon=12, colocated=False, decode=4)
    assert rows(panel) == ["PDDDDDDDDDDD", "-PPP-DDDDDDD"]
    assert panel.tokens == (2, 1)


def by_hand(arrivals, prefill, decode, transfer, horizon, chunk, colocated) -> list[int]:
    """Tokens by the rules, without the simulator's code: one step after the other."""
    number = len(arrivals)
    left, tokens = list(prefill), [0] * number
    if colocated:
        now = 0
        while now < horizon:
            decoding = [i for i in range(number) if left[i] == 0]
            waiting = [i for i in range(number) if left[i] and arrivals[i] <= now]
            if chunk is None and waiting:
                now += left[waiting[0]]
                left[waiting[0]] = 0
                continue
            room = chunk or 0
            for i in waiting:
                taken = min(left[i], room)
                left[i] -= taken
                room -= taken
            took = (chunk or 0) - room
            if not decoding and not took:
                now = min(arrival for arrival in arrivals if arrival > now)
                continue
            now += took + (decode if decoding else 0)
            for i in decoding:
                tokens[i] += now <= horizon
        return tokens
    ready, free = [], 0
    for arrival, ticks in zip(arrivals, prefill, strict=True):
        free = max(arrival, free) + ticks
        ready.append(free + transfer)
    now = min(ready)
    while now < horizon:
        now += decode
        for i in range(number):
            tokens[i] += ready[i] <= now - decode and now <= horizon
    return tokens


@pytest.mark.oracle
def test_random_examples_follow_the_rules():
    rng = np.random.default_rng(5)
    for _ in range(60):
        number = int(rng.integers(1, 7))
        scene = {
            "arrivals": tuple(sorted(rng.integers(0, 30, number).tolist())),
            "prefill": tuple(rng.integers(1, 9, number).tolist()),
            "decode": int(rng.integers(1, 4)),
            "transfer": int(rng.integers(0, 4)),
            "horizon": int(rng.integers(31, 90)),
        }
        chunks = (None, int(rng.integers(1, 7)))
        for chunk, colocated in ((chunks[0], True), (chunks[1], True), (chunks[1], False)):
            panel = toy_timeline(**scene, chunk=chunk, colocated=colocated)
            assert list(panel.tokens) == by_hand(**scene, chunk=chunk, colocated=colocated), scene
            check_segments(panel)
            decoded = [row.count("D") // scene["decode"] for row in rows(panel)]
            assert decoded == list(panel.tokens)


def check_segments(timeline: Timeline) -> None:
    """Segments follow one another from the arrival on, none like the one before, and end by the horizon."""
    for request, arrival in enumerate(timeline.arrivals):
        own = [s for s in timeline.segments if s.request == request]
        assert not own or own[0].start == pytest.approx(arrival, abs=1e-9)
        assert all(s.start < s.end <= timeline.horizon for s in own)
        for before, after in pairwise(own):
            assert after.start == pytest.approx(before.end, abs=2e-9)
            assert after.activity is not before.activity
    assert list(timeline.segments) == sorted(timeline.segments, key=lambda s: (s.request, s.start))


@pytest.mark.parametrize("chunk", [None, 1, 7, 500])
def test_largest_example(chunk):
    scene = {
        "arrivals": (0,) * MOST_REQUESTS,
        "prefill": (500,) * MOST_REQUESTS,
        "horizon": MOST_HORIZON,
        "chunk": chunk,
        "colocated": True,
    }
    assert list(toy_timeline(**scene).tokens) == by_hand(**scene, decode=1, transfer=0)


def test_default_horizon_shows_six_tokens_of_the_last_request():
    until = toy_horizon(KNOWN["arrivals"], KNOWN["prefill"], 1, 0)
    assert until == 27
    assert toy_timeline(**KNOWN, horizon=until, colocated=False).tokens[-1] == 6
    assert toy_horizon((0,) * 40, (500,) * 40, 1, 0) == MOST_HORIZON


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"arrivals": (), "prefill": ()}, "there are no requests"),
        ({"arrivals": (0,) * 41, "prefill": (1,) * 41}, "41 requests are too many for a picture; at most 40"),
        ({"prefill": (5, 5)}, "3 requests arrive, and there are 2 times of prefill"),
        ({"arrivals": (0, 16, 10)}, "arrivals must be in order, got 0, 16, 10"),
        ({"arrivals": (-1, 10, 16)}, "arrivals must be from 0 to 4,999 ticks, got -1"),
        ({"prefill": (5, 0, 5)}, "prefill must be from 1 to 500 ticks, got 0"),
        ({"decode": 0}, "decode must be from 1 to 500 ticks, got 0"),
        ({"transfer": -2}, "transfer must be from 0 to 500 ticks, got -2"),
        ({"chunk": 501}, "chunk must be from 1 to 500 ticks, got 501"),
        ({"horizon": 5001}, "horizon must be from 1 to 5,000 ticks, got 5,001"),
        ({"arrivals": (10, 10, 16), "horizon": 10}, "horizon 10 is not after the first arrival, at 10"),
    ],
)
def test_example_refuses_what_makes_no_picture(changed, message):
    with pytest.raises(SpecError, match=message):
        toy_timeline(**{**KNOWN, "horizon": 24, "colocated": True, **changed})


# --------------------------------------------------------------------------------------------
# Runs of fleets


@pytest.fixture(scope="module")
def running() -> LoadedFleet:
    return load_fleet(RUNNING)


def drawn(fleet: Fleet, number: int = 30, seed: int = 1) -> Requests:
    return generated(fleet.service.workload, number, np.random.default_rng(seed))


def run(fleet: Fleet, requests: Requests, setup: Setup | None = None, **options) -> Outcome:
    cluster = cluster_of(fleet, setup or Setup())
    return run_cluster(
        cluster, requests, holdings(fleet, requests), **{"log_capacity": 200_000, "samples": 0, **options}
    )


def lasting(timeline: Timeline, activity: Activity) -> list[float]:
    sums = [0.0] * len(timeline.arrivals)
    for segment in timeline.segments:
        if segment.activity is activity:
            sums[segment.request] += segment.end - segment.start
    return sums


@pytest.mark.parametrize("colocated", [True, False])
@pytest.mark.parametrize("policy", list(SchedulerPolicy))
def test_timeline_of_a_run_agrees_with_its_records(running, colocated, policy):
    fleet = colocated_fleet(running.fleet) if colocated else running.fleet
    requests = drawn(fleet)
    outcome = run(fleet, requests, Setup(policy=policy))
    timeline = fleet_timeline(outcome, "a run")
    check_segments(timeline)
    assert timeline.unit == "s"
    assert timeline.horizon == outcome.end
    assert timeline.arrivals == tuple(requests.arrival)
    assert timeline.tokens == tuple(requests.osl)
    ends = {segment.request: segment.end for segment in timeline.segments}
    assert list(ends.values()) == pytest.approx(list(outcome.request["last"]))
    assert lasting(timeline, Activity.STALL) == pytest.approx(list(outcome.request["stall"]), abs=1e-6)
    transfers = lasting(timeline, Activity.TRANSFER)
    if colocated:
        assert not any(transfers)
    else:
        assert min(transfers) > 0
        assert not any(lasting(timeline, Activity.STALL))


def test_first_requests_of_a_run(running):
    outcome = run(running.fleet, drawn(running.fleet))
    whole, first = fleet_timeline(outcome, "all"), fleet_timeline(outcome, "first", 7)
    assert first.segments == tuple(s for s in whole.segments if s.request < 7)
    assert first.tokens == whole.tokens[:7]
    assert first.horizon == max(s.end for s in first.segments) < whole.horizon
    assert fleet_timeline(outcome, "all", 1000).tokens == whole.tokens


@pytest.mark.parametrize("preemption", list(Preemption))
def test_preempted_sequences_wait_without_overlap(running, preemption):
    fleet = colocated_fleet(running.fleet)
    groups = tuple(replace(g, kv_tokens=14_080) for g in fleet.groups[:1])
    fleet = replace(fleet, groups=groups)
    requests = drawn(fleet, 60)
    outcome = run(fleet, requests, Setup(preemption=preemption))
    assert outcome.request["preempted"].sum() > 0
    timeline = fleet_timeline(outcome, "preempted")
    check_segments(timeline)
    assert timeline.tokens == tuple(requests.osl)
    twice = int(np.argmax(outcome.request["preempted"]))
    own = [s.activity for s in timeline.segments if s.request == twice]
    assert own.count(Activity.PREFILL) > (preemption is Preemption.RECOMPUTE)


def test_requests_of_a_failed_replica_start_again(running):
    failure = Failure(group=1, replica=0, time=0.6, until=0.8)  # the one that decodes
    requests = drawn(running.fleet)
    outcome = run(running.fleet, requests, Setup(failures=(failure,)))
    timeline = fleet_timeline(outcome, "failed")
    check_segments(timeline)
    assert timeline.tokens == tuple(requests.osl)
    assert not [s for s in timeline.segments if s.activity is Activity.DECODE and 0.6 < s.start < 0.8]
    first = [s.activity for s in timeline.segments if s.request == 0]
    assert first.count(Activity.PREFILL) == 2


def test_stopped_run_shows_who_waits(running):
    failure = Failure(group=1, replica=0, time=0.0)
    outcome = run(running.fleet, drawn(running.fleet, 4), Setup(failures=(failure,)), until=3.0)
    timeline = fleet_timeline(outcome, "nobody decodes")
    check_segments(timeline)
    assert timeline.tokens == (0,) * 4
    assert timeline.horizon == outcome.end == max(outcome.request["prompted"])
    assert [s.activity for s in timeline.segments if s.request == 0] == [Activity.PREFILL, Activity.QUEUED]


def test_log_that_is_too_short_is_refused(running):
    outcome = run(running.fleet, drawn(running.fleet), log_capacity=100)
    with pytest.raises(SpecError, match=r"the timeline needs [\d,]+ activities, and the run kept 100"):
        fleet_timeline(outcome, "cut off")


def test_fleets_are_shown_over_one_window(running):
    fleets = (colocated_fleet(running.fleet), running.fleet)
    requests = drawn(running.fleet, 10)
    panels = fleet_timelines(fleets, requests, (Setup(), Setup()))
    assert panels[0].horizon == panels[1].horizon
    for fleet, panel in zip(fleets, panels, strict=True):
        check_segments(panel)
        assert min(panel.tokens) > 0  # by default everybody gets that far
        stopped = run(fleet, requests, until=panel.horizon)
        assert panel.tokens == tuple(stopped.tokens)
    short = fleet_timelines(fleets, requests, (Setup(), Setup()), horizon=0.3)
    assert [p.horizon for p in short] == [0.3, 0.3]
    assert max(s.end for p in short for s in p.segments) == 0.3
    assert fleet_timelines(fleets, requests, (Setup(), Setup())) == panels


def test_fleet_pictures_refuse_bad_windows(running):
    fleet = running.fleet
    with pytest.raises(SpecError, match="41 requests are too many"):
        fleet_timelines([fleet], drawn(fleet, 41), [Setup()])
    for horizon in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(SpecError, match="s is not after the first arrival, at"):
            fleet_timelines([fleet], drawn(fleet, 3), [Setup()], horizon=horizon)


def test_same_replicas_colocated(running):
    fleet = colocated_fleet(running.fleet)
    assert [g.phase for g in fleet.groups] == [Phase.COLOCATED] * 2
    assert [g.replicas for g in fleet.groups] == [3, 1]
    assert sum(g.rate for g in fleet.groups) == pytest.approx(15.0)
    assert fleet_title(fleet, Setup()) == "colocated: prefill and decode on 8 h100-sxm, chunked prefill"
    first = Setup(policy=SchedulerPolicy.PREFILL_FIRST)
    assert fleet_title(fleet, first) == "colocated: prefill and decode on 8 h100-sxm, prompts first"


def test_replicas_that_cannot_be_colocated(running):
    prefill, decode = running.fleet.groups
    ranks = replace(decode, parallelism=Parallelism(dp=8))
    with pytest.raises(SpecError, match="h100-sxm TP1 DP8: colocated replicas with several attention ranks"):
        colocated_fleet(replace(running.fleet, groups=(prefill, ranks)))
    small = replace(prefill, kv_tokens=14_064)
    with pytest.raises(SpecError, match="KV cache holds 14,064 tokens, and the longest sequence needs"):
        colocated_fleet(replace(running.fleet, groups=(small, decode)))


def test_long_title_counts_gpus(running):
    prefill, decode = running.fleet.groups
    named = [
        replace(prefill, item=replace(prefill.item, gpu=replace(prefill.item.gpu, name=name)))
        for name in ("rtx-pro-6000-blackwell", "rtx-6000-ada")
    ]
    two = replace(running.fleet, groups=(named[0], decode))
    assert fleet_title(two, Setup()) == (
        "disaggregated: prefill on 6 rtx-pro-6000-blackwell, decode on 2 h100-sxm"
    )
    three = replace(running.fleet, groups=(*named, decode))
    assert fleet_title(three, Setup()) == "disaggregated: prefill on 12 GPUs, decode on 2 GPUs"


# --------------------------------------------------------------------------------------------
# The command

Runner = Callable[..., tuple[int, str, str]]


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Runner]:
    """Runs the command line: exit code, standard output, standard error."""
    handler = signal.getsignal(signal.SIGINT)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["planner", "timeline", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        caught = capsys.readouterr()
        return int(ended.value.code or 0), caught.out, caught.err

    monkeypatch.setenv("COLUMNS", "100")
    yield run
    signal.signal(signal.SIGINT, handler)


def counts(document: dict, fleet: int) -> list[int]:
    return [request["tokens"] for request in document["fleets"][fleet]["requests"]]


def test_known_example_on_the_command_line(planner):
    code, out, err = planner()
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "colocated: one replica, prompts first"
    assert lines[3] == "R1 |PPPPPDDDDD.....D.....DDDDDD      12"
    assert lines[10] == "R1 |PPPPPDDDDDDDDDDDDDDDDDDDDDD      22"
    table = lines.index("tokens after  colocated     disaggregated")
    assert lines[table + 1 : table + 3] == [
        "24 ticks      9/4/3         19/9/3",
        "27 ticks      12/7/6        22/12/6",
    ]
    said = " ".join(out.split())
    assert "has 9/4/3 tokens colocated, at 24 ticks, side by side with 22/12/6 disaggregated" in said
    assert "over the same window" in said
    assert "Disaggregated is two replicas, colocated one" in said
    assert max(map(len, lines)) <= 100
    assert "\033" not in out


def test_known_example_as_json(planner):
    code, out, _ = planner("--json", "--horizon", 24)
    document = json.loads(out)
    assert code == 0
    assert (document["unit"], document["horizon"]) == ("tick", 24)
    assert [counts(document, 0), counts(document, 1)] == [[9, 4, 3], [19, 9, 3]]
    assert document["windows"] == [
        {"horizon": 24, "tokens": [[9, 4, 3], [19, 9, 3]]},
        {"horizon": 27, "tokens": [[12, 7, 6], [22, 12, 6]]},
    ]
    third = document["fleets"][0]["requests"][2]
    assert third == {
        "name": "R3",
        "arrival": 16,
        "tokens": 3,
        "segments": [
            {"activity": "prefill", "start": 16, "end": 21},
            {"activity": "decode", "start": 21, "end": 24},
        ],
    }


def test_example_of_ones_own(planner):
    options = ("--arrivals", "0,30,48", "--prefill", 15, "--decode", 3, "--transfer", 1, "--horizon", 81)
    code, out, _ = planner(*options, "--json")
    document = json.loads(out)
    assert code == 0
    assert [counts(document, 0), counts(document, 1)] == [[12, 7, 6], [21, 11, 5]]
    assert document["windows"] == []
    _, out, _ = planner(*options)
    assert "KV transfer" in out
    assert "side by side" not in out


def test_prompts_of_their_own_length_in_chunks(planner):
    options = ("--arrivals", "0,2", "--prefill", "5,3", "--chunk", 3, "--horizon", 16)
    _, out, _ = planner(*options)
    assert "colocated: one replica, prompts in chunks of 3 ticks" in out
    assert "R1 |PPPPPP..DDDDDDDD       8" in out


def test_arrivals_are_sorted_with_their_prompts(planner):
    code, out, _ = planner("--arrivals", "16,0,10", "--prefill", "4,5,6", "--json")
    document = json.loads(out)
    assert code == 0
    assert [r["arrival"] for r in document["fleets"][0]["requests"]] == [0, 10, 16]
    assert document["fleets"][1]["requests"][2]["segments"][0] == {
        "activity": "prefill", "start": 16, "end": 20,
    }  # fmt: skip
    assert "Arrivals were sorted: R1 is the first to come." in document["notes"]


def test_pictures_are_written(planner, tmp_path):
    pytest.importorskip("matplotlib")
    png, svg = tmp_path / "a.png", tmp_path / "b.SVG"
    assert f"picture written to {png}" in planner("-o", png)[1]
    assert planner("--output", svg, "--json")[0] == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text(encoding="utf-8")
    assert text.index("colocated: one replica") < text.index("disaggregated: one replica")
    for colour in ("#f08a24", "#2f6fb4", "#ffffff"):
        assert colour in text
    before = png.read_bytes()
    planner("-o", png)
    assert png.read_bytes() == before  # the same picture each time


def test_disaggregated_fleet_below_the_same_gpus_colocated(planner):
    code, out, err = planner(RUNNING, "--requests", 5)
    assert (code, err) == (0, "")
    above = out.index("colocated: prefill and decode on 8 h100-sxm, chunked prefill")
    assert above < out.index("disaggregated: prefill on 6 h100-sxm, decode on 2 h100-sxm")
    said = " ".join(out.split())
    assert "Poisson arrivals at 15 req/s, seed 0. Fleets are empty at first." in said
    assert "Colocated: the same replicas as they are, each of them doing both phases." in said
    assert out.count("R5 ") == 2
    assert planner(RUNNING, "--requests", 5)[1] == out
    assert planner(RUNNING, "--requests", 5, "--seed", 1)[1] != out


def test_colocated_fleet_has_one_panel(planner):
    code, out, _ = planner(COLOCATED, "--requests", 4, "--horizon", 1.5, "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["unit"], document["horizon"]) == ("s", 1.5)
    assert [f["title"] for f in document["fleets"]] == [
        "colocated: prefill and decode on 6 l40s, chunked prefill"
    ]
    assert "(the file gives no rate)" in document["notes"][0]


def test_fleet_that_cannot_be_colocated_says_why(planner, tmp_path):
    path = tmp_path / "fleet.yaml"
    text = RUNNING.read_text(encoding="utf-8")
    path.write_text(text.replace("replicas: 3,", "replicas: 3, kv_capacity_tokens: 14064,"), encoding="utf-8")
    code, out, _ = planner(path, "--requests", 3)
    said = " ".join(out.split())
    assert code == 0
    assert "Not shown colocated: h100-sxm TP2: the KV cache holds 14,064 tokens, and the longest" in said
    assert "prompts first" not in out
    assert "chunked prefill" not in out


BAD = [
    (["--arrivals=-1,5"], "arrivals must be from 0 to 4,999 ticks, got -1"),
    (["--arrivals", "a,b"], "--arrivals: whole ticks with commas between them, got 'a,b'"),
    (["--arrivals", ""], "--arrivals: whole ticks with commas between them, got ''"),
    (["--arrivals", ",".join(map(str, range(41)))], "41 requests are too many for a picture; at most 40"),
    (["--prefill", "3,4"], "--prefill: one number, or one per request, got 2 for 3 arrivals"),
    (["--prefill", "0"], "prefill must be from 1 to 500 ticks, got 0"),
    (["--decode", "-2"], "decode must be from 1 to 500 ticks, got -2"),
    (["--transfer", "-1"], "transfer must be from 0 to 500 ticks, got -1"),
    (["--chunk", "0"], "chunk must be from 1 to 500 ticks, got 0"),
    (["--horizon", "2.5"], "--horizon: a whole number of ticks, got 2.5"),
    (["--horizon", "nan"], "--horizon: a whole number of ticks, got nan"),
    (["--arrivals", "10", "--horizon", "10"], "horizon 10 is not after the first arrival, at 10"),
    (["--requests", "3"], "--requests goes with a FLEET file"),
    (["--seed", "3"], "--seed goes with a FLEET file"),
    ([RUNNING, "--decode", "2"], "--decode is for the example in ticks; a FLEET file has its own"),
    ([RUNNING, "--requests", "41"], "--requests: a picture has 1 to 40 requests, got 41"),
    ([RUNNING, "--requests", "0"], "--requests: a picture has 1 to 40 requests, got 0"),
    ([RUNNING, "--horizon", "0"], "horizon 0 s is not after the first arrival, at 0.0453 s"),
    (["nowhere.yaml"], "no such file"),
    (["--decode", "x"], "Invalid value for '--decode': 'x' is not a valid integer."),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input_has_one_message_and_writes_nothing(planner, tmp_path, arguments, message):
    picture = tmp_path / "picture.png"
    code, out, err = planner(*arguments, "--output", picture)
    assert (code, out) == (2, "")
    assert err.count(message) == 1
    assert not picture.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("picture.pdf", "is no plot (the name has to end in .png or .svg)"),
        ("picture", "is no plot (the name has to end in .png or .svg)"),
        ("", "is a folder, not a file"),
        ("missing/picture.png", "cannot be written: there is no folder"),
    ],
)
def test_bad_output_is_refused(planner, tmp_path, name, message):
    code, out, err = planner("--output", tmp_path / name)
    assert (code, out) == (2, "")
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_folder_with_the_name_of_a_picture_is_refused(planner, tmp_path):
    folder = tmp_path / "picture.png"
    folder.mkdir()
    code, out, err = planner("--output", folder)
    assert (code, out) == (2, "")
    assert "is a folder, not a file" in err
    assert list(folder.iterdir()) == []


def test_picture_without_matplotlib_says_what_to_install(planner, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    picture = tmp_path / "picture.png"
    code, out, err = planner("--output", picture)
    assert (code, out) == (2, "")
    assert "plots need matplotlib: pip install 'pd-planner[report]'" in err
    assert not picture.exists()
    assert planner()[0] == 0  # text does without


def test_colours_on_a_terminal_only(planner, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\033[" not in planner()[1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\033[" in planner()[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\033[" not in planner()[1]


def test_help_loads_no_simulator():
    script = (
        "import contextlib, io, sys\nfrom planner.cli import main\n"
        "sys.argv = ['planner', 'timeline', '--help']\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    main()\n"
        "print(sorted({'numba', 'matplotlib', 'rich'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert result.stdout.strip() == "[]"
