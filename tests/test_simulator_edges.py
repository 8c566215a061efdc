"""Corners of the simulator, on timelines that are worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from simulator_clusters import cluster_of_groups, group, linear_tables, requests_of, simulate

from planner.errors import SpecError
from planner.simulator import kernel
from planner.simulator.cluster import (
    Failure,
    LoadMeasure,
    Outcome,
    Router,
    SimulatedGroup,
    with_failures,
)
from planner.simulator.metrics import measure
from planner.specs import Metric, Phase, Slo, SloTarget, Statistic
from planner.traces import PromptBlocks

SLO = Slo(targets=(SloTarget(metric=Metric.TTFT, statistic=Statistic.P99, limit=10.0),))

# A prompt token takes 10 ms, a step of decoding 100 ms, whoever is in it.
TABLES = linear_tables(per_token=0.01, step=0.1, sequences=8, budget=100)
SMALL_CHUNKS = linear_tables(per_token=0.01, step=0.1, sequences=8, budget=10)


def colocated(tables: Any = TABLES, **changes: Any) -> SimulatedGroup:
    return group(Phase.COLOCATED, tables, **changes)


def apart(prefill: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, **changes: Any) -> Any:
    return cluster_of_groups(
        group(Phase.PREFILL, TABLES, **(prefill or {})),
        group(Phase.DECODE, TABLES, **(decode or {})),
        **changes,
    )


def times(outcome: Outcome, name: str) -> list[float]:
    return [round(float(t), 9) for t in outcome.request[name]]


def states(outcome: Outcome) -> list[int]:
    return [int(s) for s in outcome.request["state"]]


# --------------------------------------------------------------------------------------------
# One request


def test_one_request_on_a_colocated_replica() -> None:
    outcome = simulate(cluster_of_groups(colocated()), requests_of([2.0], 20, 3))
    assert times(outcome, "begun") == [2.0]
    assert times(outcome, "first") == times(outcome, "prompted") == [2.2]
    assert times(outcome, "last") == [2.4]
    assert outcome.end == pytest.approx(2.4)
    assert measure(outcome, SLO).tpot.value.mean == pytest.approx(0.1)


def test_one_request_through_both_pools() -> None:
    """20 tokens of 1 kB at 100 kB/s and 50 ms beside: 0.25 s; the first token is that of a decode step."""
    cluster = apart({"fixed": 0.05}, pair_rate=1e5)
    outcome = simulate(cluster, requests_of([2.0], 20, 3), bytes_per_token=1000.0)
    assert times(outcome, "prompted") == [2.2]
    assert times(outcome, "joined") == [2.45]
    assert times(outcome, "first") == [2.55]
    assert times(outcome, "last") == [2.75]


def test_the_first_token_may_come_with_the_hand_over() -> None:
    cluster = apart(pair_rate=1e5, first_token_from_prefill=True)
    outcome = simulate(cluster, requests_of([0.0], 20, 3), bytes_per_token=1000.0)
    assert times(outcome, "first") == times(outcome, "joined") == [0.4]
    assert times(outcome, "last") == [0.6]


def test_part_of_a_transfer_may_be_hidden() -> None:
    cluster = apart({"exposed": 0.25, "post": 0.001, "fixed": 0.05}, pair_rate=1e5)
    outcome = simulate(cluster, requests_of([0.0], 20, 3), bytes_per_token=1000.0)
    assert times(outcome, "joined") == [0.2 + 0.05 + 0.25 * (0.2 + 20 * 0.001)]


@pytest.mark.parametrize("cluster", [cluster_of_groups(colocated()), apart()], ids=["colocated", "apart"])
def test_no_output_is_one_token(cluster: Any) -> None:
    """As engines have it: the last step of a prompt makes a token."""
    none, one = (simulate(cluster, requests_of([0.0], 20, osl)) for osl in (0, 1))
    assert none.request.tobytes() == one.request.tobytes()
    assert none.control["tokens"][0] == 1
    result = measure(none, SLO)
    assert result.tpot.requests == 0
    assert result.attainment == 1


def test_a_prompt_that_is_cached_has_one_token_to_compute() -> None:
    requests = requests_of([0.0, 1.0], [20, 0], 1, cached=np.array([20, 0], np.int32))
    assert times(simulate(cluster_of_groups(colocated()), requests), "prompted") == [0.01, 1.01]


# --------------------------------------------------------------------------------------------
# Arrivals


def test_prompts_that_arrive_at_once_share_a_step() -> None:
    outcome = simulate(cluster_of_groups(colocated()), requests_of([1.0] * 3, [20, 30, 60]))
    assert times(outcome, "begun") == [1.0, 1.0, 1.0]
    assert times(outcome, "prompted") == [2.0, 2.0, 2.1]  # 20 + 30 + 50 tokens fill the budget


def test_prompts_that_arrive_at_once_are_split_among_replicas() -> None:
    cluster = cluster_of_groups(colocated(replicas=3))
    outcome = simulate(cluster, requests_of([1.0] * 3, 20))
    assert outcome.request["prefill"].tolist() == [0, 1, 2]
    assert times(outcome, "prompted") == [1.2, 1.2, 1.2]


def test_transfers_that_end_at_once_join_the_same_step() -> None:
    cluster = apart({"replicas": 2}, pair_rate=1e5)
    outcome = simulate(cluster, requests_of([0.0, 0.0], 20, 2), bytes_per_token=1000.0)
    assert times(outcome, "first") == [0.5, 0.5]
    assert outcome.replica["decode_steps"].tolist() == [0, 0, 2]


@pytest.mark.parametrize("arrival", [[1.0, 0.5], [-1.0, 2.0], [0.0, math.nan], [0.0, math.inf]])
def test_arrivals_must_be_sorted(arrival: list[float]) -> None:
    """A trace is sorted when it is read."""
    with pytest.raises(SpecError, match="by arrival"):
        simulate(cluster_of_groups(colocated()), requests_of(arrival, 10))


def test_there_must_be_requests() -> None:
    with pytest.raises(SpecError, match="no requests"):
        simulate(cluster_of_groups(colocated()), requests_of([], 10))


# --------------------------------------------------------------------------------------------
# Steps


def test_chunks_beside_decoding() -> None:
    """The budget of 10 tokens is shared: one decodes, so 20 tokens take chunks of 9, 9 and 2."""
    outcome = simulate(cluster_of_groups(colocated(SMALL_CHUNKS)), requests_of([0.0, 0.05], [4, 20], [5, 2]))
    # steps: 0-0.04 prompt, -0.14 decode, -0.33 and -0.52 with 9 tokens beside, -0.64 with 2, -0.74 decode
    assert times(outcome, "begun") == [0.0, 0.14]
    assert times(outcome, "first") == [0.04, 0.64]
    assert times(outcome, "last") == [0.64, 0.74]
    assert times(outcome, "stall") == [0.2, 0.0]
    assert outcome.replica["steps"][0] == 6


def test_prompts_first_hold_up_decoding() -> None:
    replica = colocated(SMALL_CHUNKS, prefill_first=True)
    outcome = simulate(cluster_of_groups(replica), requests_of([0.0, 0.05], [4, 20], [5, 2]))
    # steps: 0-0.04 prompt, -0.14 decode, -0.24 and -0.34 prompt, then decode
    assert times(outcome, "first") == [0.04, 0.34]
    assert times(outcome, "last") == [0.64, 0.44]
    assert times(outcome, "stall") == [0.2, 0.0]


def test_later_chunks_attend_to_earlier_ones() -> None:
    tables = linear_tables(per_token=0.01, per_pair=1e-4, budget=10)
    outcome = simulate(cluster_of_groups(colocated(tables)), requests_of([0.0], 25))
    assert times(outcome, "prompted") == [0.25 + 1e-4 * (10 * 10 + 5 * 20)]


def test_contexts_make_steps_longer() -> None:
    """A prompt of 20 tokens and its answer so far: 21 in the first step of decoding, then 22."""
    tables = linear_tables(per_token=0.01, step=0.1, per_context=1e-3)
    outcome = simulate(cluster_of_groups(colocated(tables)), requests_of([0.0], 20, 3))
    assert times(outcome, "last") == [0.2 + 0.121 + 0.122]


def test_a_pipeline_takes_a_prompt_per_stage() -> None:
    tables = linear_tables(per_token=0.01, sequences=8, budget=20)
    replica = colocated(tables, stages=2, lanes=2)
    outcome = simulate(cluster_of_groups(replica), requests_of([0.0] * 3, 20))
    assert times(outcome, "begun") == [0.0, 0.1, 0.2]
    assert times(outcome, "prompted") == [0.2, 0.3, 0.4]


def test_attention_ranks_have_pipelines_of_their_own() -> None:
    tables = linear_tables(per_token=0.01, sequences=8, budget=20)
    replica = group(Phase.PREFILL, tables, stages=2, lanes=4)
    cluster = cluster_of_groups(replica, group(Phase.DECODE, TABLES))
    outcome = simulate(cluster, requests_of([0.0] * 4, 20))
    assert sorted(times(outcome, "prompted")) == [0.2, 0.2, 0.3, 0.3]


def test_sequences_are_spread_over_the_lanes_of_a_decode_pipeline() -> None:
    """Two stages of 50 ms: the second sequence is half a step behind the first, not in its batch."""
    cluster = apart({"replicas": 2}, {"stages": 2, "lanes": 2})
    outcome = simulate(cluster, requests_of([0.0] * 2, 20, 3))
    assert times(outcome, "first") == [0.3, 0.35]
    assert times(outcome, "last") == [0.5, 0.55]


# --------------------------------------------------------------------------------------------
# KV cache


def test_a_full_cache_makes_prompts_wait() -> None:
    outcome = simulate(cluster_of_groups(colocated(blocks=11)), requests_of([0.0, 0.0], 6, 3))
    assert times(outcome, "last") == [0.26, 0.52]
    assert times(outcome, "begun") == [0.0, 0.26]
    assert outcome.replica["most_used"][0] == 8
    assert outcome.replica["preemptions"][0] == 0


@pytest.mark.parametrize("isl", [5000, 11])
def test_what_can_never_end_is_rejected_at_once(isl: int) -> None:
    """11 tokens fit into 12 blocks, but not with the 2 that the answer adds; 10 do."""
    outcome = simulate(cluster_of_groups(colocated(blocks=12)), requests_of([0.0] * 3, [10, isl, 1], 3))
    assert states(outcome) == [kernel.DONE, kernel.REJECTED, kernel.DONE]
    assert times(outcome, "begun")[2] == 0.0
    assert outcome.control["in_system"][0] == 0
    result = measure(outcome, SLO)
    assert result.unserved == 1
    assert result.attainment == pytest.approx(2 / 3)


def test_what_never_fits_on_the_decode_side_is_rejected_there() -> None:
    outcome = simulate(apart(decode={"blocks": 12}), requests_of([0.0, 0.0], [10, 9], 3))
    assert states(outcome) == [kernel.REJECTED, kernel.DONE]
    assert outcome.replica["used"].tolist() == [0, 0]


def test_the_youngest_is_computed_again() -> None:
    """12 blocks for two of 4 tokens: full after two steps. The second is thrown out, and computes its prompt
    and 3 tokens of its answer when the first has ended; that gives its fourth."""
    outcome = simulate(cluster_of_groups(colocated(blocks=12)), requests_of([0.0, 0.0], 4, 6))
    assert times(outcome, "first") == [0.08, 0.08]
    assert times(outcome, "last") == [0.58, 0.85]
    assert times(outcome, "stall") == [0.0, 0.37]
    assert outcome.request["preempted"].tolist() == [0, 1]
    assert outcome.control["tokens"][0] == 12


def test_the_youngest_is_swapped() -> None:
    """As above; 6 blocks of 10 ms go to host memory in the step that follows, and come back."""
    replica = colocated(blocks=12, swap_time=0.01)
    outcome = simulate(cluster_of_groups(replica), requests_of([0.0, 0.0], 4, 6))
    assert times(outcome, "last") == [0.64, 1.0]
    assert times(outcome, "stall") == [0.06, 0.42]
    assert outcome.replica["swaps"][0] == 1


def test_sequences_come_back_in_their_order() -> None:
    """The third is thrown out first, the second later; the second is served again first."""
    outcome = simulate(cluster_of_groups(colocated(blocks=13)), requests_of([0.0] * 3, 4, 6))
    assert outcome.request["preempted"].tolist()[0] == 0
    last = times(outcome, "last")
    assert last == sorted(last)
    assert min(outcome.request["preempted"][1:]) > 0


def test_a_preempted_sequence_goes_before_new_ones() -> None:
    """The second is thrown out at 0.24 s and has no room until the first ends at 0.84 s. The third would have
    had room at 0.29 s, but waits behind it."""
    outcome = simulate(
        apart({"replicas": 2}, {"blocks": 13}), requests_of([0.0, 0.0, 0.25], [4, 4, 4], [8, 8, 1])
    )
    assert outcome.request["preempted"].tolist() == [0, 1, 0]
    assert times(outcome, "last")[0] == 0.84
    assert times(outcome, "prompted") == [0.04, 0.9, 0.29]  # 4 tokens and 2 of its answer
    assert times(outcome, "joined") == [0.04, 0.9, 0.84]


def test_a_full_decode_pool_stops_prefill() -> None:
    """The decode replica has room for one sequence, the prefill replica for two prompts that wait for it."""
    tables = linear_tables(per_token=0.01, step=0.5, sequences=8)
    cluster = cluster_of_groups(
        group(Phase.PREFILL, TABLES, limit=1, blocks=20), group(Phase.DECODE, tables, blocks=13)
    )
    outcome = simulate(cluster, requests_of([0.0] * 4, 10, 3))
    assert times(outcome, "begun") == [0.0, 0.1, 0.2, 1.6]
    assert times(outcome, "prompted") == [0.1, 0.2, 0.3, 1.7]
    assert times(outcome, "joined") == [0.1, 1.6, 3.1, 4.6]
    assert times(outcome, "last") == [1.6, 3.1, 4.6, 6.1]
    assert outcome.replica["most_used"].tolist() == [20, 13]


def test_the_limit_of_sequences_makes_transfers_wait() -> None:
    outcome = simulate(apart({"replicas": 2}, {"limit": 1}), requests_of([0.0, 0.0], 20, 3))
    assert times(outcome, "joined") == [0.2, 0.5]


def test_one_token_from_prefill_makes_room_for_the_next() -> None:
    """A sequence that ends as its KV cache arrives: those behind it do not wait for ever."""
    cluster = apart({"replicas": 3}, {"limit": 1}, pair_rate=1e5, first_token_from_prefill=True)
    outcome = simulate(cluster, requests_of([0.0] * 3, 20, 1), bytes_per_token=1000.0)
    assert times(outcome, "last") == [0.4, 0.6, 0.8]


# --------------------------------------------------------------------------------------------
# Transfers


def test_transfers_to_one_nic_come_one_after_the_other() -> None:
    cluster = apart({"replicas": 2}, {"nic": 1e5}, pair_rate=1e5)
    outcome = simulate(cluster, requests_of([0.0, 0.0], 20, 3), bytes_per_token=1000.0)
    assert times(outcome, "prompted") == [0.2, 0.2]
    assert times(outcome, "joined") == [0.4, 0.6]
    assert outcome.replica["ingress_busy"].tolist() == [0.0, 0.0, pytest.approx(0.4)]


def test_transfers_from_one_nic_come_one_after_the_other() -> None:
    cluster = apart({"nic": 1e5}, {"replicas": 2}, pair_rate=1e5)
    outcome = simulate(cluster, requests_of([0.0, 0.0], 20, 3), bytes_per_token=1000.0)
    assert outcome.request["decode"].tolist() == [1, 2]
    assert times(outcome, "joined") == [0.6, 0.8]


def test_a_fast_nic_takes_several_slow_transfers() -> None:
    """The pair is the bottleneck: the NIC of the receiver has room for ten such transfers at once."""
    cluster = apart({"replicas": 2}, {"nic": 1e6}, pair_rate=1e5)
    outcome = simulate(cluster, requests_of([0.0, 0.0], 20, 3), bytes_per_token=1000.0)
    assert times(outcome, "joined") == [0.4, 0.4]


def test_a_slow_receiver_does_not_hold_up_the_others() -> None:
    """Two caches wait for a slow receiver; the sender's NIC is free for the third, to another one."""
    cluster = apart({"nic": 1e6, "replicas": 3}, {"replicas": 2, "nic": 1e4}, pair_rate=1e6)
    outcome = simulate(cluster, requests_of([0.0] * 3, 20, 3), bytes_per_token=1000.0)
    assert outcome.request["decode"].tolist() == [3, 4, 3]
    assert times(outcome, "joined") == [2.2, 2.2, 4.2]


# --------------------------------------------------------------------------------------------
# Failures


def test_a_prompt_starts_again_on_another_replica() -> None:
    cluster = with_failures(
        cluster_of_groups(colocated(replicas=2)), [Failure(group=0, replica=0, time=0.15)]
    )
    outcome = simulate(cluster, requests_of([0.0], 20, 3))
    assert times(outcome, "prompted") == [0.35]
    assert times(outcome, "last") == [0.55]
    assert outcome.request["prefill"].tolist() == [1]
    assert outcome.replica["used"].tolist() == [0, 0]


def test_a_sequence_goes_on_where_it_was() -> None:
    """Two tokens were sent at 0.4 s: the prompt and these are computed on another replica, which makes the
    third; the first stays where it is in time."""
    cluster = with_failures(
        cluster_of_groups(colocated(replicas=2)), [Failure(group=0, replica=0, time=0.35)]
    )
    outcome = simulate(cluster, requests_of([0.0], 20, 4))
    assert times(outcome, "first") == [0.2]
    assert times(outcome, "last") == [0.67]
    assert times(outcome, "stall") == [0.27]  # from the second token, at 0.3 s, to the third
    assert outcome.control["tokens"][0] == 4


def test_a_decode_replica_fails() -> None:
    """At 0.45 s it has made 2 tokens; prefill computes prompt and answer again, and another takes over."""
    cluster = with_failures(apart(decode={"replicas": 2}), [Failure(group=1, replica=0, time=0.45)])
    outcome = simulate(cluster, requests_of([0.0], 20, 4))
    assert times(outcome, "first") == [0.3]
    assert times(outcome, "prompted") == [0.67]
    assert times(outcome, "last") == [0.87]
    assert outcome.control["tokens"][0] == 4


def test_the_receiver_of_a_transfer_fails() -> None:
    """The prompt is kept where it was computed, and goes to the other replica when that NIC is free."""
    cluster = apart({"nic": 1e5}, {"replicas": 2}, pair_rate=1e5)
    failing = with_failures(cluster, [Failure(group=1, replica=0, time=0.3)])
    outcome = simulate(failing, requests_of([0.0], 20, 3), bytes_per_token=1000.0)
    assert times(outcome, "prompted") == [0.2]
    assert times(outcome, "joined") == [0.6]
    assert outcome.request["decode"].tolist() == [2]
    assert outcome.request["preempted"].tolist() == [0]
    assert outcome.replica["used"].tolist() == [0, 0, 0]


def test_the_sender_of_a_transfer_fails() -> None:
    cluster = apart({"replicas": 2}, {"nic": 1e5}, pair_rate=1e5)
    failing = with_failures(cluster, [Failure(group=0, replica=0, time=0.3)])
    outcome = simulate(failing, requests_of([0.0], 20, 3), bytes_per_token=1000.0)
    assert times(outcome, "prompted") == [0.5]
    assert times(outcome, "joined") == [0.7]
    assert outcome.request["prefill"].tolist() == [1]
    assert outcome.replica["used"].tolist() == [0, 0, 0]


def test_requests_wait_for_a_replica_to_come_back() -> None:
    cluster = with_failures(
        cluster_of_groups(colocated()), [Failure(group=0, replica=0, time=0.1, until=2.0)]
    )
    outcome = simulate(cluster, requests_of([0.0, 1.0], 20, 1))
    assert times(outcome, "prompted") == [2.4, 2.4]
    assert outcome.control["in_system"][0] == 0


def test_prompts_wait_for_a_decode_replica_to_come_back() -> None:
    cluster = with_failures(apart(), [Failure(group=1, replica=0, time=0.1, until=2.0)])
    outcome = simulate(cluster, requests_of([0.0, 1.0], 20, 1))
    assert times(outcome, "prompted") == [0.2, 1.2]
    assert times(outcome, "joined") == [2.0, 2.0]


@pytest.mark.parametrize("pool", [0, 1])
def test_a_pool_that_is_gone_serves_nobody(pool: int) -> None:
    cluster = with_failures(
        apart(decode={"replicas": 2}),
        [Failure(group=pool, replica=r, time=0.05) for r in range(2 if pool else 1)],
    )
    outcome = simulate(cluster, requests_of([0.0, 0.0], 20, 1))
    assert set(states(outcome)) == {kernel.HANDED if pool else kernel.PENDING}
    assert outcome.control["in_system"][0] == 2
    result = measure(outcome, SLO)
    assert result.unserved == 2
    assert result.attainment == 0
    assert result.ttft.value.mean == math.inf
    assert not result.passed


def test_outages_that_overlap_are_one() -> None:
    outages = [
        Failure(group=0, replica=0, time=0.1, until=2.0),
        Failure(group=0, replica=0, time=1.0, until=3.0),
        Failure(group=0, replica=0, time=3.0, until=4.0),
        Failure(group=0, replica=0, time=3.5, until=3.6),
    ]
    for failures in (outages, outages[::-1]):
        cluster = with_failures(cluster_of_groups(colocated()), failures)
        assert times(simulate(cluster, requests_of([0.0], 20)), "prompted") == [4.2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replica": 1}, "no replica 1 of group 0"),
        ({"group": 1}, "no replica 0 of group 1"),
        ({"time": 3.0, "until": 2.0}, "back at 2.0 s"),
        ({"time": math.nan}, "fails at nan s"),
    ],
)
def test_a_failure_must_make_sense(changes: dict[str, Any], message: str) -> None:
    failure = Failure(**({"group": 0, "replica": 0, "time": 1.0} | changes))
    with pytest.raises(SpecError, match=message):
        simulate(with_failures(cluster_of_groups(colocated()), [failure]), requests_of([0.0], 20))


# --------------------------------------------------------------------------------------------
# Routers


def test_groups_take_their_shares() -> None:
    cluster = cluster_of_groups(
        colocated(weight=3.0), colocated(weight=0.5, replicas=2), router=Router.PLAN_SHARES
    )
    outcome = simulate(cluster, requests_of(np.arange(100.0), 20))
    chosen = outcome.replica["group"][outcome.request["prefill"]]
    assert np.bincount(chosen).tolist() == [75, 25]
    assert np.bincount(chosen[:8]).tolist() == [6, 2]


def test_round_robin_takes_turns_and_skips_who_is_down() -> None:
    cluster = with_failures(
        cluster_of_groups(colocated(replicas=3), router=Router.ROUND_ROBIN),
        [Failure(group=0, replica=1, time=2.5)],
    )
    outcome = simulate(cluster, requests_of(np.arange(7.0), 20))
    assert outcome.request["prefill"].tolist() == [0, 1, 2, 0, 2, 0, 2]


def test_prompts_go_where_their_length_is_served() -> None:
    short, long = colocated(most=50), colocated(least=51)
    outcome = simulate(cluster_of_groups(short, long), requests_of([0.0] * 4, [50, 51, 10, 90]))
    assert outcome.request["prefill"].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("router", list(Router))
@pytest.mark.parametrize("measure_by", list(LoadMeasure))
def test_no_router_picks_a_pair_that_is_not_legal(router: Router, measure_by: LoadMeasure) -> None:
    """The first prefill group reaches the second decode group only, and the other way round."""
    phases = (Phase.PREFILL, Phase.PREFILL, Phase.DECODE, Phase.DECODE)
    cluster = cluster_of_groups(
        *(group(phase, TABLES, replicas=2) for phase in phases), router=router, measure=measure_by
    )
    cluster.pair_rates[:2, 2:] = [[0.0, 1e9], [1e9, 0.0]]
    outcome = simulate(cluster, requests_of(np.arange(40) * 0.05, 20, 4))
    assert states(outcome) == [kernel.DONE] * 40
    source = outcome.replica["group"][outcome.request["prefill"]]
    target = outcome.replica["group"][outcome.request["decode"]]
    assert (source + target == 3).all()
    assert set(source.tolist()) == {0, 1}


# --------------------------------------------------------------------------------------------
# Prefix cache


def prompts_with_blocks(arrival: list[float], isl: list[int], blocks: list[list[int]]) -> Any:
    offsets = np.concatenate([[0], np.cumsum([len(b) for b in blocks])])
    ids = np.concatenate([np.array(b) for b in blocks])
    return requests_of(arrival, isl, blocks=PromptBlocks(offsets=offsets, ids=ids, size=4))


def test_a_prompt_that_was_here_before_costs_its_last_block() -> None:
    requests = prompts_with_blocks([0.0, 1.0, 2.0], [12, 12, 14], [[1, 2, 3], [1, 2, 3], [1, 2, 3, 9]])
    outcome = simulate(cluster_of_groups(colocated(blocks=6), block_size=4), requests)
    assert times(outcome, "prompted") == [0.12, 1.04, 2.02]
    assert outcome.control["hits"][0] == 8 + 12
    assert measure(outcome, SLO).prefix_hit_rate == pytest.approx(20 / 38)
    assert outcome.replica["cached"][0] == 3


def test_the_least_recently_used_block_goes_first() -> None:
    """Three blocks: the second prompt takes the place of the end of the first one, whose head is found."""
    requests = prompts_with_blocks([0.0, 1.0, 2.0], [8, 8, 8], [[1, 2], [3, 4], [1, 2]])
    outcome = simulate(cluster_of_groups(colocated(blocks=3), block_size=4), requests)
    assert outcome.replica["evictions"][0] >= 1
    assert times(outcome, "prompted") == [0.08, 1.08, 2.04]


def test_blocks_of_a_trace_must_fill_those_of_the_engine() -> None:
    requests = prompts_with_blocks([0.0], [8], [[1, 2]])
    with pytest.raises(SpecError, match="no multiple of the engine's 16"):
        simulate(cluster_of_groups(colocated(), block_size=16), requests)
