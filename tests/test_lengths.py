"""Length distributions against closed forms of the laws they discretise."""

import math
from statistics import NormalDist

import numpy as np
import pytest

from planner import lengths
from planner.errors import SpecError


def test_bucket_edges_cover_everything_with_a_fine_tail():
    edges = lengths.BUCKET_EDGES
    assert edges[0] == 0
    assert edges[-1] == 1
    assert np.all(np.diff(edges) > 0)
    assert np.diff(edges)[-5:] == pytest.approx(0.001)


def test_fixed_is_one_point():
    marginal = lengths.marginal_fixed(500)
    assert (marginal.points, marginal.weights) == ((500.0,), (1.0,))


@pytest.mark.parametrize("mean", [20.0, 1000.0, 50_000.0])
@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0, 2.0])
def test_lognormal_keeps_its_mean_and_nearly_its_spread(mean, cv):
    marginal = lengths.marginal_lognormal(mean, cv)
    assert marginal.mean == pytest.approx(mean, rel=1e-9 if cv <= 1 else 0.02)
    spread = math.sqrt(marginal.moment(2) / marginal.mean**2 - 1)
    # Discrete buckets lose the spread within the last 0.1 %; never more than they had.
    assert 0.8 * cv < spread <= cv * (1 + 1e-9)


def test_lognormal_bucket_means_lie_between_the_quantiles_of_their_edges():
    mean, cv = 1000.0, 1.0
    sigma = math.sqrt(math.log(1 + cv**2))
    mu = math.log(mean) - sigma**2 / 2
    points = lengths.marginal_lognormal(mean, cv).points
    edges = [math.exp(mu + sigma * NormalDist().inv_cdf(p)) for p in lengths.BUCKET_EDGES[1:-1]]
    for i, edge in enumerate(edges):
        assert points[i] <= edge <= points[i + 1]


def test_lognormal_without_spread_is_fixed():
    assert lengths.marginal_lognormal(300, 0) == lengths.marginal_fixed(300)


def test_maximum_cuts_the_tail():
    assert lengths.marginal_lognormal(1000, 2.0, maximum=4096).maximum == 4096


def test_percentiles_of_a_lognormal_give_that_lognormal():
    mu, sigma = math.log(800), 0.9
    normal = NormalDist(mu, sigma)
    table = {p: math.exp(normal.inv_cdf(p)) for p in (0.5, 0.9, 0.99)}
    got = lengths.marginal_from_percentiles(table)
    mean = math.exp(mu + sigma**2 / 2)
    exact = lengths.marginal_lognormal(mean, math.sqrt(math.expm1(sigma**2)))
    assert got.points[:-1] == pytest.approx(exact.points[:-1])
    assert got.points[-1] < exact.points[-1]  # the tail is cut at 99.99 %


def test_percentiles_are_reproduced():
    marginal = lengths.marginal_from_percentiles({0.5: 900, 0.9: 3000, 0.99: 8000})
    cumulated = np.cumsum(marginal.weights)
    for p, value in ((0.5, 900), (0.9, 3000), (0.99, 8000)):
        below = int(np.searchsorted(cumulated, p - 1e-9))
        assert marginal.points[below] <= value <= marginal.points[below + 1]


def test_equal_percentiles_are_a_constant():
    marginal = lengths.marginal_from_percentiles({0.5: 64, 0.9: 64, 0.99: 64})
    assert marginal.points == pytest.approx([64] * len(marginal.points))


def test_steep_percentiles_stay_finite():
    marginal = lengths.marginal_from_percentiles({0.5: 1, 0.9: 1, 0.99: 1e7}, maximum=1e7)
    assert marginal.maximum == 1e7
    assert math.isfinite(marginal.moment(2))


def test_quantile_table_keeps_the_mean_of_its_trapezoids():
    marginal = lengths.marginal_from_quantiles([0, 0.5, 0.933, 1], [0, 100, 400, 5000])
    expected = 0.5 * 50 + 0.433 * 250 + 0.067 * 2700
    assert marginal.mean == pytest.approx(expected, rel=1e-3)  # lengths below 1 token are raised to 1
    assert marginal.maximum <= 5000


def test_small_histograms_are_kept_as_they_are():
    marginal = lengths.marginal_from_histogram([512, 128, 512], [1, 2, 1])
    assert marginal.points == (128, 512)
    assert marginal.weights == (0.5, 0.5)


def test_large_histograms_keep_their_mean():
    rng = np.random.default_rng(7)
    tokens, weights = rng.integers(1, 20_000, 3000), rng.random(3000)
    marginal = lengths.marginal_from_histogram(tokens, weights)
    assert len(marginal.points) == len(lengths.BUCKET_EDGES) - 1
    assert marginal.mean == pytest.approx(np.average(tokens, weights=weights))
    assert marginal.maximum <= tokens.max()


def test_independent_lengths_have_the_mean_prompt():
    pair = lengths.independent(lengths.marginal_lognormal(700, 1), lengths.marginal_fixed(100))
    assert pair.isl_per_output_token == pytest.approx(700)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lengths.marginal_fixed(0), "at least 1 token"),
        (lambda: lengths.marginal_fixed(math.nan), "at least 1 token"),
        (lambda: lengths.marginal_lognormal(100, -1), "cv >= 0"),
        (lambda: lengths.marginal_from_percentiles({0.5: 10}), "at least two percentiles"),
        (lambda: lengths.marginal_from_percentiles({0.5: 10, 0.9: 5}), "must not fall"),
        (lambda: lengths.marginal_from_percentiles({0.5: 10, 1.0: 50}), "between 0 and 100"),
        (lambda: lengths.marginal_from_quantiles([0.1, 1], [1, 2]), "ascend from 0 to 1"),
        (lambda: lengths.marginal_from_quantiles([0, 1], [2, 1]), "must not fall"),
        (lambda: lengths.marginal_from_histogram([1, 2], [0, 0]), "not all 0"),
        (lambda: lengths.marginal_from_histogram([1, 2], [1]), "as many weights"),
        (lambda: lengths.marginal_from_histogram([0], [1]), "at least 1 token"),
    ],
)
def test_what_is_no_distribution_is_refused(build, message):
    with pytest.raises(SpecError, match=message):
        build()
