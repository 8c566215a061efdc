"""Requests for the simulator: arrivals and lengths against the laws they are drawn from."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from scipy import stats

from planner import catalog
from planner.errors import SpecError
from planner.lengths import independent, marginal_fixed, marginal_lognormal
from planner.simulator.arrivals import (
    _normal_pairs,
    _pairs,
    cut,
    generated,
    repeated,
    replayed,
    resampled,
    scheduled,
)
from planner.specs import Lengths, Period, Workload
from planner.traces import PromptBlocks, Trace


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def workload_of(lengths: Lengths, scv: float = 1.0, prefix_hit_rate: float = 0.0) -> Workload:
    period = Period(name="", hours=1.0, request_rate=20.0)
    return Workload(
        name="w", periods=(period,), lengths=lengths, arrival_scv=scv, prefix_hit_rate=prefix_hit_rate
    )


def lognormal(
    ratio: float = 1.0, isl: float = 1000, osl: float = 200, longest: float | None = None
) -> Lengths:
    """Lengths of cv 1 whose prompts, seen by an output token, are `ratio` times as long as on average."""
    prompts, outputs = marginal_lognormal(isl, 1.0), marginal_lognormal(osl, 1.0)
    return Lengths(
        isl=prompts, osl=outputs, isl_per_output_token=ratio * prompts.mean, longest_request=longest
    )


def trace_of(arrival, isl=None, osl=None, blocks=None) -> Trace:
    arrival = np.asarray(arrival, float)
    n = arrival.size
    return Trace(
        name="t",
        source="t.csv",
        arrival=arrival,
        isl=np.arange(100, 100 + n) if isl is None else np.asarray(isl),
        osl=np.arange(10, 10 + n) if osl is None else np.asarray(osl),
        lines=np.arange(2, n + 2),
        blocks=blocks,
    )


def hashed(*rows: list[int]) -> PromptBlocks:
    return PromptBlocks(
        offsets=np.cumsum([0, *map(len, rows)]), ids=np.array(list(chain(*rows)), dtype=np.int64), size=512
    )


def rows_of(blocks: PromptBlocks | None) -> list[list[int]]:
    assert blocks is not None
    return [part.tolist() for part in np.split(blocks.ids, blocks.offsets[1:-1])]


def seen_by_output_tokens(requests) -> float:
    return float(requests.isl.astype(float) @ requests.osl / requests.osl.sum())


def everything(requests) -> tuple:
    arrays = (requests.arrival, requests.isl, requests.osl, requests.cached)
    return tuple(a.tobytes() for a in arrays), requests.name, requests.notes


# --------------------------------------------------------------------------------------------
# Arrivals of a workload


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.0, 5.0])
def test_rate_and_variation_of_gaps(workload, cv):
    n = 400_000
    gaps = np.diff(generated(workload, n, rng(), rate=7.0, arrival_cv=cv).arrival)
    # Standard errors: of the mean cv/sqrt(n); of the cv, from the fourth moment of the gamma distribution,
    # cv sqrt((1 + cv^2) / 2n).
    assert gaps.mean() * 7 == pytest.approx(1, abs=4 * cv / n**0.5)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=4 * ((1 + cv**2) / (2 * n)) ** 0.5)


def test_gaps_are_exponential_or_gamma(workload):
    poisson = np.diff(generated(workload, 50_000, rng(1)).arrival)
    assert stats.kstest(poisson, stats.expon(scale=1 / 20).cdf).pvalue > 0.01
    bursty = np.diff(generated(workload, 50_000, rng(1), arrival_cv=2.0).arrival)
    assert stats.kstest(bursty, stats.gamma(1 / 4, scale=4 / 20).cdf).pvalue > 0.01


def test_even_arrivals(workload):
    requests = generated(replace(workload, arrival_scv=0.0), 1000, rng())
    np.testing.assert_allclose(requests.arrival, np.arange(1, 1001) / 20, rtol=1e-14)
    assert requests.name == "even arrivals at 20 req/s"


def test_workload_says_rate_and_variation(workload):
    bursty = replace(workload, arrival_scv=4.0)
    assert everything(generated(bursty, 100, rng())) == everything(
        generated(workload, 100, rng(), rate=20.0, arrival_cv=2.0)
    )
    assert generated(bursty, 1, rng()).name == "gamma arrivals (cv 2) at 20 req/s"
    assert generated(workload, 1, rng(), rate=1234.5).name == "Poisson arrivals at 1,234 req/s"


def test_types_and_order(workload):
    for requests in (
        generated(workload, 1000, rng(), arrival_cv=5.0),
        scheduled(workload, [(10, 20), (5, 0), (5, 100)], rng()),
        replayed(trace_of([0, 1, 1, 4]), rng()),
        resampled(trace_of([0, 1, 1, 4]), workload, 1000, rng()),
    ):
        assert requests.arrival.dtype == np.float64
        assert {requests.isl.dtype, requests.osl.dtype, requests.cached.dtype} == {np.dtype(np.int32)}
        sizes = {a.shape for a in (requests.arrival, requests.isl, requests.osl, requests.cached)}
        assert sizes == {(requests.number,)}
        assert requests.arrival[0] >= 0
        assert np.all(np.diff(requests.arrival) >= 0)


def test_same_seed_same_bytes():
    dependent = workload_of(lognormal(1.3), scv=2.0, prefix_hit_rate=0.4)
    times = np.repeat(np.arange(20) * 3.0, 5)
    makers = (
        lambda r: generated(dependent, 2000, r),
        lambda r: scheduled(dependent, [(50, 10), (50, 30)], r),
        lambda r: replayed(trace_of(times), r),
        lambda r: resampled(trace_of(times), dependent, 2000, r),
    )
    for make in makers:
        assert everything(make(rng(5))) == everything(make(rng(5)))
        assert everything(make(rng(5))) != everything(make(rng(6)))


def test_single_request(workload):
    requests = generated(workload, 1, rng())
    assert requests.number == 1
    assert requests.arrival[0] > 0
    assert requests.request_rate == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"number": 0}, "at least 1 request is needed, got 0"),
        ({"rate": 0.0}, "rate must be > 0, got 0.0"),
        ({"rate": float("nan")}, "rate must be > 0, got nan"),
        ({"arrival_cv": -1.0}, "arrival_cv must be >= 0, got -1.0"),
    ],
)
def test_what_cannot_be_generated(workload, options, message):
    with pytest.raises(SpecError, match=message):
        generated(workload, **({"number": 10, "rng": rng()} | options))


# --------------------------------------------------------------------------------------------
# Lengths of a workload


def test_independent_lengths(workload):
    requests = generated(workload, 200_000, rng())
    assert set(requests.isl.tolist()) == {500, 2500}
    assert set(requests.osl.tolist()) == {100, 400}
    assert np.mean(requests.isl == 500) == pytest.approx(0.75, abs=0.005)
    assert np.corrcoef(requests.isl, requests.osl)[0, 1] == pytest.approx(0, abs=0.01)
    assert requests.notes == ()


@pytest.mark.parametrize("ratio", [0.7, 0.9, 1.0, 1.2, 1.6])
def test_dependent_lengths_keep_all_means(ratio):
    lengths = lognormal(ratio)
    requests = generated(workload_of(lengths), 500_000, rng())
    assert requests.isl.mean() == pytest.approx(lengths.isl.mean, rel=0.01)
    assert requests.osl.mean() == pytest.approx(lengths.osl.mean, rel=0.01)
    assert seen_by_output_tokens(requests) == pytest.approx(ratio * lengths.isl.mean, rel=0.01)
    assert requests.notes == ()


@pytest.mark.parametrize("name", catalog.traffic_names())
def test_lengths_of_presets(name):
    lengths = catalog.load_traffic(name).lengths
    requests = generated(workload_of(lengths), 500_000, rng())
    assert requests.isl.mean() == pytest.approx(lengths.isl.mean, rel=0.01)
    assert requests.osl.mean() == pytest.approx(lengths.osl.mean, rel=0.01)
    assert seen_by_output_tokens(requests) == pytest.approx(lengths.isl_per_output_token, rel=0.01)
    assert int((requests.isl + requests.osl).max()) <= lengths.longest
    assert requests.notes == ()


def test_dependence_owes_nothing_to_the_seed():
    once, again = _pairs(lognormal(1.3)), _pairs(lognormal(1.3))
    assert once.shares.tobytes() == again.shares.tobytes()
    assert once.means == pytest.approx((1000, 200, 1300), rel=1e-6)


def test_points_between_whole_lengths_keep_the_mean():
    requests = generated(workload_of(independent(marginal_fixed(10.25), marginal_fixed(1.5))), 100_000, rng())
    assert set(requests.isl.tolist()) == {10, 11}
    assert set(requests.osl.tolist()) == {1, 2}
    assert requests.isl.mean() == pytest.approx(10.25, abs=0.01)
    assert requests.osl.mean() == pytest.approx(1.5, abs=0.01)
    assert requests.notes == ()


@pytest.mark.parametrize(("ratio", "order"), [(9.0, 1), (0.01, -1)])
def test_dependence_beyond_reach_is_the_strongest_with_a_note(ratio, order):
    requests = generated(workload_of(lognormal(ratio)), 50_000, rng())
    # Ranks in one order, or in the opposite one; the error of the quadrature leaves pairs beside it.
    assert stats.spearmanr(requests.isl, requests.osl).statistic == pytest.approx(order, abs=0.01)
    [note] = requests.notes
    assert note.startswith("mean input tokens per output token: ")
    assert note.endswith(
        " drawn for 9,000; pairs of these lengths come no nearer" if order > 0 else "no nearer"
    )


def test_longest_request_cuts_outputs():
    lengths = lognormal(1.0, longest=3000)
    requests = generated(workload_of(lengths), 100_000, rng())
    free = generated(workload_of(lognormal()), 100_000, rng())
    assert int((requests.isl + requests.osl).max()) == 3000
    assert int(requests.osl.min()) == 1
    np.testing.assert_array_equal(requests.isl, np.minimum(free.isl, 2999))
    np.testing.assert_array_equal(requests.osl, np.minimum(free.osl, 3000 - requests.isl))
    assert any(n.startswith("mean output tokens: ") for n in requests.notes)


@pytest.mark.parametrize("hit_rate", [0.0, 0.4, 0.999, 1.0])
def test_cached_as_in_the_traffic_of_a_plan(hit_rate):
    requests = generated(workload_of(lognormal(), prefix_hit_rate=hit_rate), 10_000, rng())
    expected = np.minimum(np.round(hit_rate * requests.isl), requests.isl - 1)
    np.testing.assert_array_equal(requests.cached, expected)


@pytest.mark.oracle
@pytest.mark.parametrize("rho", [-0.999, -0.5, 0.2, 0.9, 0.999])
def test_normal_pairs_against_scipy(rho):
    first, second = np.array([0.1, 0.4, 0.3, 0.2]), np.array([0.75, 0.24, 0.01])
    joint = _normal_pairs(first, second, float(np.arcsin(rho)))
    np.testing.assert_allclose(joint.sum(axis=1), first, atol=1e-8)
    np.testing.assert_allclose(joint.sum(axis=0), second, atol=1e-8)
    cumulated = joint.cumsum(axis=0).cumsum(axis=1)
    normal = stats.multivariate_normal(cov=[[1, rho], [rho, 1]])
    for i, a in enumerate(stats.norm.ppf(np.cumsum(first)[:-1])):
        for j, b in enumerate(stats.norm.ppf(np.cumsum(second)[:-1])):
            assert cumulated[i, j] == pytest.approx(normal.cdf([a, b]), abs=1e-6)


def test_lengths_beyond_the_arrays_are_refused():
    huge = independent(marginal_fixed(3e9), marginal_fixed(1))
    with pytest.raises(
        SpecError, match="a length of 3,000,000,000 tokens is longer than a simulation can hold"
    ):
        generated(workload_of(huge), 10, rng())


# --------------------------------------------------------------------------------------------
# Schedules


@pytest.mark.parametrize("scv", [0.25, 1.0, 25.0])
def test_counts_of_a_schedule(workload, scv):
    pieces = [(100.0, 5.0), (50.0, 0.0), (10.0, 80.0), (0.0, 9.0)]
    counts = []
    for seed in range(300):
        arrival = scheduled(replace(workload, arrival_scv=scv), pieces, rng(seed)).arrival
        counts.append(np.histogram(arrival, [0, 100, 150, 160])[0])
    # A stationary process: as many as the rate says, whatever its variation. The variance of a count over a
    # long time is scv times its mean.
    mean = np.mean(counts, axis=0)
    assert mean[1] == 0
    assert mean[0] == pytest.approx(500, abs=4 * (scv * 500 / 300) ** 0.5)
    assert mean[2] == pytest.approx(800, abs=4 * (scv * 800 / 300) ** 0.5)
    if scv == 1:
        assert np.var(counts, axis=0)[[0, 2]] == pytest.approx([500, 800], rel=4 * (2 / 300) ** 0.5)


def test_poisson_arrivals_of_a_schedule_are_uniform_in_a_piece(workload):
    arrival = scheduled(workload, [(10, 0), (100, 300)], rng(2)).arrival
    assert stats.kstest(arrival, stats.uniform(10, 100).cdf).pvalue > 0.01


def test_even_arrivals_of_a_schedule(workload):
    requests = scheduled(replace(workload, arrival_scv=0.0), [(10, 2), (10, 0), (10, 4)], rng())
    gaps = np.diff(requests.arrival)
    assert requests.number == 60
    np.testing.assert_allclose(gaps[:19], 0.5)
    assert 10 < gaps[19] <= 10.5
    np.testing.assert_allclose(gaps[20:], 0.25)
    assert requests.name == "even arrivals on a schedule of 3 rates, 2 req/s on average"


def test_a_constant_schedule_is_a_constant_rate(workload):
    requests = scheduled(workload, [(1.5, 100), (0.5, 100), (8, 100)], rng())
    gaps = np.diff(requests.arrival)
    assert stats.kstest(gaps, stats.expon(scale=1 / 100).cdf).pvalue > 0.01
    assert requests.arrival[-1] <= 10


@pytest.mark.parametrize("pieces", [[], [(10, 0)], [(0, 10)], [(1e-9, 1.0)]])
def test_schedules_without_a_request(workload, pieces):
    with pytest.raises(SpecError, match=r"no request within the schedule of rates, where .* are expected"):
        scheduled(workload, pieces, rng())


@pytest.mark.parametrize("piece", [(-1, 2), (1, -2), (float("nan"), 2), (1, float("inf"))])
def test_schedules_of_no_sense(workload, piece):
    with pytest.raises(SpecError, match="a schedule of rates needs durations and rates >= 0"):
        scheduled(workload, [(1, 1), piece], rng())


# --------------------------------------------------------------------------------------------
# Replays


def test_a_trace_at_its_own_rate_is_as_it_was():
    trace = trace_of([0, 0.5, 0.5, 4], isl=[100, 7, 1, 60], osl=[5, 0, 3, 9])
    requests = replayed(trace, rng())
    np.testing.assert_array_equal(requests.arrival, trace.arrival)  # ties stay, in their order
    assert requests.isl.tolist() == [100, 7, 1, 60]
    assert requests.osl.tolist() == [5, 0, 3, 9]
    assert requests.cached.tolist() == [0, 0, 0, 0]
    assert (requests.name, requests.replayed, requests.notes) == ("t at its own 1 req/s", True, ())


def test_rate_scales_all_intervals():
    times = np.cumsum(rng().exponential(1.0, 1000))
    trace = trace_of(times - times[0])
    own = 1000 / trace.duration
    fast = replayed(trace, rng(), rate=4 * own)
    np.testing.assert_array_equal(fast.arrival, replayed(trace, rng(), rate_scale=4.0).arrival)
    np.testing.assert_array_equal(fast.arrival * 4, trace.arrival)
    assert replayed(trace, rng(), rate=20.0).request_rate == pytest.approx(20, rel=1e-12)
    np.testing.assert_allclose(
        replayed(trace, rng(), rate=20.0).arrival, trace.arrival * own / 20, rtol=1e-12
    )


def test_name_says_the_rates():
    trace = trace_of(np.array([0, 1, 2, 5, 7.0]) / 5)
    assert replayed(trace, rng(), rate=20.0).name == "t scaled x5.6 to 20 req/s"
    assert replayed(trace, rng(), rate_scale=0.5).name == "t scaled x0.5 to 1.79 req/s"


def test_coarse_timestamps_are_spread():
    times = np.repeat(np.arange(40) * 3.0, 30)
    trace = trace_of(times)
    requests = replayed(trace, rng())
    np.testing.assert_array_equal(np.floor(requests.arrival / 3) * 3, times)  # within the gap that follows
    assert np.unique(requests.arrival).size == requests.number
    np.testing.assert_array_equal(requests.isl, trace.isl)
    assert requests.notes == (
        "timestamps are multiples of about 3 s: equal ones were spread at random over the gap that follows",
    )
    assert replayed(trace, rng(), rate=20.0).request_rate == pytest.approx(20, rel=1e-12)
    kept = replayed(trace, rng(), spread_ties=False)
    np.testing.assert_array_equal(kept.arrival, times)
    assert kept.notes == ("timestamps are multiples of about 3 s: requests with the same one arrive at once",)


def test_hashes_or_a_hit_rate():
    blocks = hashed([1, 2], [1], [3, 4, 5])
    trace = trace_of([0, 1, 2], isl=[1000, 500, 1], blocks=blocks)
    kept = replayed(trace, rng(), prefix_hit_rate=0.5)
    assert rows_of(kept.blocks) == [[1, 2], [1], [3, 4, 5]]
    assert kept.cached.tolist() == [0, 0, 0]
    without = replayed(trace, rng(), prefix_hit_rate=0.5, with_blocks=False)
    assert without.blocks is None
    assert without.cached.tolist() == [500, 250, 0]
    assert replayed(trace_of([0, 1]), rng(), prefix_hit_rate=1.0).cached.tolist() == [99, 100]


def test_a_trace_without_duration():
    at_once = trace_of([0, 0, 0])
    assert replayed(at_once, rng()).name == "t, 3 at once"
    assert replayed(at_once, rng(), rate_scale=2.0).arrival.tolist() == [0, 0, 0]
    with pytest.raises(
        SpecError, match="t: its 3 requests arrive at once, so no scale brings them to 5 req/s"
    ):
        replayed(at_once, rng(), rate=5.0)
    single = replayed(trace_of([0]), rng(), rate=5.0)
    assert (single.arrival.tolist(), single.name) == ([0], "t")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 2.0, "rate_scale": 2.0}, "at a rate or at a multiple of its own rate, not both"),
        ({"rate": -1.0}, "rate must be > 0, got -1.0"),
        ({"rate_scale": 0.0}, "rate_scale must be > 0, got 0.0"),
        ({"prefix_hit_rate": 1.5}, "prefix_hit_rate must be from 0 to 1, got 1.5"),
    ],
)
def test_what_cannot_be_replayed(options, message):
    with pytest.raises(SpecError, match=message):
        replayed(trace_of([0, 1, 2]), rng(), **options)


def test_an_empty_trace_is_refused():
    with pytest.raises(SpecError, match="at least 1 request"):
        replayed(trace_of([]), rng())


# --------------------------------------------------------------------------------------------
# Lengths of a trace


def test_resampled_pairs_are_those_of_the_trace(workload):
    trace = trace_of([0, 1, 2], isl=[100, 200, 4000], osl=[0, 7, 900])
    hits = replace(workload, prefix_hit_rate=0.25)
    requests = resampled(trace, hits, 30_000, rng(), rate=3.0)
    pairs, counts = np.unique(np.stack([requests.isl, requests.osl]), axis=1, return_counts=True)
    assert pairs.T.tolist() == [[100, 0], [200, 7], [4000, 900]]
    assert counts == pytest.approx([10_000] * 3, rel=0.04)
    np.testing.assert_array_equal(requests.cached, requests.isl // 4)
    assert requests.request_rate == pytest.approx(3, rel=0.03)
    assert requests.name == "Poisson arrivals at 3 req/s, with lengths drawn from t"
    assert not requests.replayed
    same = generated(hits, 30_000, rng(), rate=3.0)
    np.testing.assert_array_equal(requests.arrival, same.arrival)


def test_resampling_needs_requests(workload):
    with pytest.raises(SpecError, match="at least 1 request is needed, got 0"):
        resampled(trace_of([0, 1]), workload, 0, rng())


# --------------------------------------------------------------------------------------------
# Cuts and repetitions


def test_cut():
    trace = trace_of([0, 1, 3, 7], blocks=hashed([1, 2], [], [3], [4, 5, 6]))
    requests = replayed(trace, rng())
    middle = cut(requests, 1, 3)
    assert middle.arrival.tolist() == [1, 3]
    assert middle.isl.tolist() == [101, 102]
    assert rows_of(middle.blocks) == [[], [3]]
    assert cut(requests, 2, 4).arrival.tolist() == [2, 6]
    assert cut(requests, 0, 4).arrival.tolist() == [0, 1, 3, 7]
    assert middle.name == "t at its own 0.571 req/s, requests 1 to 3"


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (2, 2), (3, 2), (0, 5)])
def test_cuts_beyond_the_requests(start, stop):
    with pytest.raises(SpecError, match=f"requests {start} to {stop} are not within 0 to 4"):
        cut(replayed(trace_of([0, 1, 2, 3]), rng()), start, stop)


def test_repeated():
    requests = replayed(trace_of([0, 1, 4], blocks=hashed([1, 2], [], [3])), rng())
    thrice = repeated(requests, 3)
    assert thrice.arrival.tolist() == [0, 1, 4, 6, 7, 10, 12, 13, 16]
    assert thrice.isl.tolist() == [100, 101, 102] * 3
    assert rows_of(thrice.blocks) == [[1, 2], [], [3]] * 3
    assert thrice.name == "t at its own 0.75 req/s, 3 times"
    assert everything(repeated(requests, 1)) == everything(requests)
    assert repeated(replayed(trace_of([0]), rng()), 2).arrival.tolist() == [0, 0]


def test_repeating_keeps_the_mean_gap(workload):
    requests = generated(workload, 1000, rng())
    many = repeated(requests, 20)
    assert np.diff(many.arrival).mean() == pytest.approx(np.diff(requests.arrival).mean(), rel=1e-9)
    with pytest.raises(SpecError, match="requests are repeated at least 1 time, got 0"):
        repeated(requests, 0)
