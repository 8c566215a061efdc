"""What holds for every simulated fleet, checked on fleets and requests drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from simulator_clusters import cluster_of_groups, group, linear_tables

from planner.simulator import kernel
from planner.simulator.cluster import (
    Cluster,
    Failure,
    Holdings,
    LoadMeasure,
    Outcome,
    Router,
    SimulatedGroup,
    _world,
    run_cluster,
)
from planner.simulator.metrics import measure
from planner.simulator.requests import Requests
from planner.specs import Metric, Phase, Slo, SloTarget, Statistic
from planner.traces import PromptBlocks

SLO = Slo(targets=(SloTarget(metric=Metric.TTFT, statistic=Statistic.P90, limit=1.0),))
CASES = range(150)


@dataclass(frozen=True)
class Case:
    """A run; `hopeless`: some requests may find no replica for ever."""

    cluster: Cluster
    requests: Requests
    holdings: Holdings
    hopeless: bool

    def run(self, seed: int = 0) -> Outcome:
        return run_cluster(self.cluster, self.requests, self.holdings, seed=seed, samples=20)


def drawn_group(rng: np.random.Generator, phase: Phase, block: int, longest: int) -> SimulatedGroup:
    """Small limits and caches, so that everything that can be short is."""
    stages = int(rng.choice([1, 1, 2, 3]))
    ranks = int(rng.choice([1, 1, 2])) if phase is not Phase.DECODE else 1
    limit = int(rng.choice([1, 3, 8, 32]))
    budget = int(rng.choice([16, 64, 256, 1024]))
    tables = linear_tables(
        per_token=rng.uniform(1e-5, 1e-4),
        per_pair=rng.uniform(0, 1e-7),
        step=rng.uniform(1e-3, 5e-3),
        per_sequence=rng.uniform(0, 5e-4),
        per_context=rng.uniform(0, 1e-6),
        host=rng.uniform(0, 1e-3),
        sequences=limit,
        budget=budget,
    )
    return group(
        phase,
        tables,
        replicas=int(rng.integers(1, 4)),
        blocks=int(longest * rng.choice([0.7, 1.05, 2, 5, 30]) / block) + 1,
        lanes=stages * ranks,
        stages=stages,
        nic=float(rng.choice([1e6, 1e7, np.inf])),
        fixed=float(rng.choice([0, 1e-3])),
        post=float(rng.choice([0, 1e-5])),
        exposed=float(rng.choice([0, 0.3, 1])),
        copies=float(rng.choice([1, 2])),
        weight=float(rng.uniform(0.5, 2)),
        prefill_first=bool(rng.random() < 0.4),
        emits=bool(rng.random() < 0.8),
        swap_time=float(rng.choice([1e-5, 1e-3])) if rng.random() < 0.5 else None,
        sequence_work=float(rng.choice([0, 1e-3])),
    )


def drawn_blocks(rng: np.random.Generator, isl: np.ndarray, size: int) -> PromptBlocks:
    """Prompts that share their beginnings: few conversations, each prompt a piece of one."""
    counts = -(-isl // size)
    talks = rng.integers(0, 6, isl.size) * 10_000
    ids = [np.arange(n) + talk for n, talk in zip(counts, talks, strict=True)]
    own = rng.random(isl.size) < 0.3  # a beginning in common, then their own
    for i in np.flatnonzero(own):
        ids[i][counts[i] // 2 :] += 100_000 + 1000 * i
    return PromptBlocks(offsets=np.concatenate([[0], np.cumsum(counts)]), ids=np.concatenate(ids), size=size)


def drawn_failures(rng: np.random.Generator, groups: list[SimulatedGroup], end: float) -> tuple[Failure, ...]:
    failures = []
    for _ in range(rng.integers(1, 8)):
        g = int(rng.integers(len(groups)))
        start = rng.uniform(0, end)
        back = start + rng.exponential(end / 5) if rng.random() < 0.8 else np.inf
        failures.append(
            Failure(group=g, replica=int(rng.integers(groups[g].replicas)), time=start, until=back)
        )
    return tuple(failures)


def drawn_case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    number = int(rng.choice([1, 50, 400]))
    isl = np.clip(rng.gamma(1.0, 60.0, number), 1, 400).astype(np.int32)
    osl = np.where(rng.random(number) < 0.1, rng.integers(0, 2, number), rng.integers(0, 80, number))
    osl = osl.astype(np.int32)
    isl[rng.random(number) < 0.02] = 20_000  # never fits
    block = int(rng.choice([1, 4, 16]))
    if rng.random() < 0.5:
        groups = [drawn_group(rng, Phase.COLOCATED, block, 480) for _ in range(rng.integers(1, 4))]
    else:
        groups = [drawn_group(rng, Phase.PREFILL, block, 480) for _ in range(rng.integers(1, 3))]
        groups += [drawn_group(rng, Phase.DECODE, block, 480) for _ in range(rng.integers(1, 4))]
    if rng.random() < 0.3 and groups[0].phase is Phase.COLOCATED:  # by length, and the last takes all
        groups = [replace(g, most=int(rng.integers(20, 200))) for g in groups[:-1]] + groups[-1:]
    arrival = np.cumsum(rng.exponential(rng.choice([1e-4, 3e-3, 3e-2]), number))
    if rng.random() < 0.3:
        arrival = np.round(arrival, 2)
    cached = (isl * rng.choice([0, 0, 0.5, 1.0])).astype(np.int32)
    requests = Requests(arrival=arrival, isl=isl, osl=osl, cached=cached)
    if rng.random() < 0.4:
        size = block * int(rng.choice([1, 2]))
        requests = replace(requests, blocks=drawn_blocks(rng, isl, size), cached=np.zeros_like(isl))
    failures = drawn_failures(rng, groups, float(arrival[-1]) + 0.5) if rng.random() < 0.5 else ()
    holdings = Holdings.plain(isl, 1000.0)
    if requests.blocks is None and rng.random() < 0.3:  # windows: a part of the prompt, whole when it decodes
        prompt = np.ceil(isl * 0.4).astype(np.int64)
        holdings = Holdings(prompt=prompt, decode=prompt + 3, size=isl * 500.0)
    cluster = cluster_of_groups(
        *groups,
        pair_rate=float(rng.choice([1e6, 1e8])),
        block_size=block,
        first_token_from_prefill=bool(rng.random() < 0.4),
        router=rng.choice(list(Router)),
        measure=rng.choice(list(LoadMeasure)),
        failures=failures,
    )
    rates = cluster.pair_rates
    if rng.random() < 0.4 and (rates > 0).any():  # some pairs are not legal; the first decode group always is
        first = next(k for k, g in enumerate(groups) if g.phase is Phase.DECODE)
        rates[:, first + 1 :] *= rng.random((len(groups), len(groups) - first - 1)) < 0.5
    hopeless = any(np.isinf(f.until) for f in failures)
    return Case(cluster, requests, holdings, hopeless)


@pytest.mark.parametrize("seed", CASES)
def test_laws(seed: int) -> None:
    case = drawn_case(seed)
    outcome = case.run()
    check_counts(case, outcome)
    check_times(outcome)
    check_little(outcome)
    check_use(outcome)
    if not case.hopeless:
        check_empty(outcome)
    again = case.run()
    for name in ("request", "lane", "replica", "control", "gaps", "samples"):
        assert getattr(again, name).tobytes() == getattr(outcome, name).tobytes(), name
    result = measure(outcome, SLO)
    assert 0 <= result.attainment <= 1
    assert 0 <= result.stall_share <= 1 + 1e-9


def check_counts(case: Case, outcome: Outcome) -> None:
    """Each request is served once, rejected, or has no replica; each token is counted once."""
    request, control = outcome.request, outcome.control[0]
    done = request["state"] == kernel.DONE
    rejected = request["state"] == kernel.REJECTED
    assert control["finished"] == done.sum()
    assert control["rejected"] == rejected.sum()
    assert control["in_system"] == (~done & ~rejected).sum()
    if not case.hopeless:
        assert (done | rejected).all()
    left = set(request["state"][~done & ~rejected].tolist())
    assert left <= {kernel.PENDING, kernel.HANDED, kernel.WAITING}
    np.testing.assert_array_equal(request["made"][done], np.maximum(case.requests.osl, 1)[done])
    assert control["tokens"] == outcome.tokens.sum() == outcome.replica["tokens"].sum()
    assert np.isnan(request["first"][request["made"] == 0]).all()
    small = request["isl"] < 20_000
    if all(g.blocks * case.cluster.block_size >= 480 for g in case.cluster.groups):
        assert not rejected[small].any()
    # Gaps between tokens: one for each token after the first, unless two come at once.
    served = np.maximum(request["made"] - 1, 0).sum()
    assert outcome.gaps.sum() <= served
    if not case.cluster.failures:
        assert outcome.gaps.sum() == served


def check_times(outcome: Outcome) -> None:
    request = outcome.request
    done = request[request["state"] == kernel.DONE]
    assert (done["begun"] >= done["arrival"]).all()
    assert (done["prompted"] > done["begun"]).all()
    assert (done["first"] > done["arrival"]).all()
    assert (done["last"] >= done["first"]).all()
    assert (done["last"] <= outcome.end).all()
    assert (done["stall"] >= -1e-9).all()
    assert (done["stall"] <= done["last"] - done["first"] + 1e-9).all()
    straight = done[done["preempted"] == 0]
    if outcome.cluster.groups[0].phase is Phase.COLOCATED:
        several = straight[straight["osl"] > 1]
        assert (several["joined"] == several["prompted"]).all()
        assert (straight["first"] >= straight["prompted"]).all()
    else:
        assert (straight["joined"] >= straight["prompted"])[straight["osl"] > 1].all()
        late = straight[~np.isnan(straight["joined"])]
        assert (late["first"] >= late["joined"]).all()
        if not outcome.cluster.first_token_from_prefill:
            assert (late["first"] > late["joined"]).all()
    groups = outcome.replica["group"][straight["prefill"]]
    for n, g in enumerate(outcome.cluster.groups):
        isl = straight["isl"][groups == n]
        assert ((isl >= g.least) & (isl <= g.most)).all()
    pairs = outcome.cluster.pair_rates[groups, outcome.replica["group"][straight["decode"]]]
    apart = straight["decode"] != straight["prefill"]
    assert (pairs[apart] > 0).all()


def check_little(outcome: Outcome) -> None:
    """Sum of stays: equal to the integral of the number in the system, where all have an end."""
    request = outcome.request
    if (request["state"] == kernel.DONE).all():
        stays = (request["last"] - request["arrival"]).sum()
        assert outcome.control["area"][0] == pytest.approx(stays, rel=1e-6)


def check_use(outcome: Outcome) -> None:
    replica, cluster = outcome.replica, outcome.cluster
    for r in replica:
        g = cluster.groups[r["group"]]
        assert r["most_used"] <= g.blocks
        assert 0 <= r["used_time"] <= g.blocks * outcome.end * (1 + 1e-9)
        assert 0 <= r["busy"] <= g.lanes * outcome.end * (1 + 1e-9)
        assert r["batch_time"] <= g.limit * r["busy"] * (1 + 1e-9)
        assert r["step_decodes"] <= g.limit * r["decode_steps"]


def check_empty(outcome: Outcome) -> None:
    replica, lane, control = outcome.replica, outcome.lane, outcome.control[0]
    for name in ("used", "queued", "queued_tokens", "waiting", "sequences", "incoming"):
        assert (replica[name] == 0).all(), name
    assert np.abs(replica["work"]).max() < 1e-9
    for name in ("head", "tail", "wait_head", "wait_tail"):
        assert (replica[name] == -1).all(), name
    for name in ("batch", "fresh", "joining", "context", "busy"):
        assert (lane[name] == 0).all(), name
    for name in ("head", "tail", "ready", "ready_tail", "partial", "completing"):
        assert (lane[name] == -1).all(), name
    assert control["pending"] == control["homeless"] == -1
    assert control["heap"] == control["starting"] == 0
    cluster = outcome.cluster
    blocks = np.array([cluster.groups[g].blocks for g in replica["group"]])
    assert (replica["cached"] * max(int(control["hash_blocks"]), 0) <= blocks).all()


@pytest.mark.parametrize("seed", CASES)
def test_books_of_the_prefix_cache(seed: int) -> None:
    """The list by use holds what is cached and nobody refers to, in both directions; rings are empty."""
    case = drawn_case(seed)
    world = _world(case.cluster, case.requests, case.holdings, 0, np.inf, 0, 0)
    kernel.run(world)
    if not case.hopeless:
        assert (world.ring == -1).all()
        assert (world.growth == 0).all()
    if case.requests.blocks is None:
        return
    for r, replica in enumerate(world.replica):
        assert replica["cached"] == (world.refers[r] == 0).sum()
        order, b = [], int(replica["lru_head"])
        while b >= 0:
            order.append(b)
            b = int(world.older[r, b])
        assert len(order) == len(set(order)) == replica["cached"]
        assert (world.refers[r, order] == 0).all()
        assert replica["lru_tail"] == (order[-1] if order else -1)
        if not case.hopeless:
            assert (world.refers[r] <= 0).all()


def test_cases_cover_what_can_happen() -> None:
    """The draws above preempt, swap, evict, reject, fail and queue."""
    seen = dict.fromkeys(("preemptions", "swaps", "evictions", "rejected", "hits", "lost"), 0)
    for seed in CASES:
        outcome = drawn_case(seed).run()
        for name in ("preemptions", "swaps", "evictions"):
            seen[name] += int(outcome.replica[name].sum())
        seen["rejected"] += int(outcome.control["rejected"][0])
        seen["hits"] += int(outcome.control["hits"][0])
        seen["lost"] += int(outcome.request["preempted"].sum() - outcome.replica["preemptions"].sum())
    assert min(seen.values()) > 100, seen


def test_a_cut_run_keeps_its_books() -> None:
    """Until a time: what was served by then is as in the whole run."""
    case = drawn_case(3)
    whole = case.run()
    until = whole.end / 2
    part = run_cluster(case.cluster, case.requests, case.holdings, until=until, samples=20)
    assert part.end <= until
    ended = whole.request["last"] <= until
    done = part.request["state"] == kernel.DONE
    np.testing.assert_array_equal(ended & (whole.request["state"] == kernel.DONE), done)
    assert part.control["tokens"][0] == part.tokens.sum()
