"""The simulator against queueing theory: mean waits within three standard errors over twenty seeds.

Step times are made linear in the tokens of a prompt, so that the service of a request is its prompt length;
replicas take one prompt at a time and answer with one token. Seeds are 0 to 19, as they come.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import poisson
from simulator_clusters import cluster_of_groups, group, linear_tables, requests_of, simulate

from planner.queueing import md1_mean_ttft, md1_mean_ttft_pipeline, md1_mean_ttft_tensor_parallel
from planner.queueing.numeric import erlang_c
from planner.simulator.cluster import LoadMeasure, Outcome, Router
from planner.specs import Phase

pytestmark = [pytest.mark.slow, pytest.mark.oracle]

SEEDS = range(20)
MOST_ERROR = 0.005  # pooled standard error over the theory's value [1]
SKIPPED = 2000  # requests that find an empty system
LONGEST = 300_000  # [tok]
MEAN = 10_000  # of exponential services, which are rounded up to whole tokens [tok]
TOKEN = 1 - math.exp(-1 / MEAN)  # so that the mean service is 1 s [s]
EXPONENTIAL = linear_tables(per_token=TOKEN, sequences=1, budget=LONGEST)


def assert_agrees(estimates: list[float] | np.ndarray, theory: float) -> None:
    error = np.std(estimates, ddof=1) / math.sqrt(len(estimates))
    assert error <= MOST_ERROR * theory
    assert abs(np.mean(estimates) - theory) <= 3 * error


def exponential_run(
    seed: int, servers: int, load: float, number: int, router: Router = Router.LEAST_LOADED
) -> Outcome:
    """Poisson arrivals before replicas with exponential services of mean 1 s."""
    rng = np.random.default_rng(seed)
    services = np.ceil(rng.exponential(MEAN, number))
    arrivals = np.cumsum(rng.exponential(1 / (servers * load), number))
    cluster = cluster_of_groups(group(Phase.COLOCATED, EXPONENTIAL, replicas=servers), router=router)
    return simulate(cluster, requests_of(arrivals, services), seed=seed)


def waits(outcome: Outcome) -> np.ndarray:
    return (outcome.request["begun"] - outcome.request["arrival"])[SKIPPED:]


def deterministic_estimates(
    rate: float, time: float, number: int, measure: Callable[[Outcome], float], stages: int = 1
) -> list[float]:
    """Of each seed, for one replica that takes `time` for a prompt, on a pipeline where it has stages."""
    tables = linear_tables(per_token=time / 100, sequences=stages, budget=100)
    replica = group(Phase.COLOCATED, tables, stages=stages, lanes=stages)
    estimates = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        arrivals = np.cumsum(rng.exponential(1 / rate, number))
        estimates.append(measure(simulate(cluster_of_groups(replica), requests_of(arrivals, 100))))
    return estimates


def mean_wait(outcome: Outcome) -> float:
    return float(waits(outcome).mean())


def mean_ttft(outcome: Outcome) -> float:
    return float((outcome.request["first"] - outcome.request["arrival"])[SKIPPED:].mean())


@pytest.mark.parametrize(("load", "number"), [(0.5, 200_000), (0.8, 400_000)])
def test_mean_wait_of_md1(load: float, number: int) -> None:
    assert_agrees(deterministic_estimates(load, 1.0, number, mean_wait), load / (2 * (1 - load)))


@pytest.mark.parametrize(
    ("servers", "load", "number"),
    [(1, 0.5, 200_000), (1, 0.8, 500_000), (4, 0.5, 400_000), (4, 0.8, 800_000)],
)
def test_mean_wait_of_mmn(servers: int, load: float, number: int) -> None:
    """The least work behind a router is the central queue of the theory."""
    theory = float(erlang_c(servers, servers * load)) / (servers * (1 - load))
    estimates = [mean_wait(exponential_run(seed, servers, load, number)) for seed in SEEDS]
    assert_agrees(estimates, theory)


@pytest.mark.parametrize(("load", "number"), [(0.5, 700_000), (0.8, 900_000)])
def test_mean_wait_of_mm16(load: float, number: int) -> None:
    """Waits are rare, so most of their variance is taken out by a control variate: infinitely many servers
    with the same arrivals and services, where as many are busy as a Poisson variable says (M/M/inf)."""
    servers = 16
    theory = float(erlang_c(servers, servers * load)) / (servers * (1 - load))
    levels = np.arange(200)
    known = float(poisson.pmf(levels, servers * load) @ np.maximum(levels - servers, 0))
    estimates, controls = [], []
    for seed in SEEDS:
        outcome = exponential_run(seed, servers, load, number)
        arrival = outcome.request["arrival"]
        ends = np.sort(arrival + outcome.request["isl"] * TOKEN)
        busy = np.arange(number) - np.searchsorted(ends, arrival)
        estimates.append(mean_wait(outcome))
        controls.append(float(np.maximum(busy[SKIPPED:] - servers, 0).mean()) - known)
    # Least squares of the estimates on the control: its value where the control is 0, and the error of that.
    design = np.column_stack([np.ones(len(SEEDS)), controls])
    fit, *_ = np.linalg.lstsq(design, np.array(estimates))
    rest = np.array(estimates) - design @ fit
    error = math.sqrt(float(rest @ rest) / (len(SEEDS) - 2) * float(np.linalg.inv(design.T @ design)[0, 0]))
    assert error <= MOST_ERROR * theory
    assert abs(fit[0] - theory) <= 3 * error


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_mean_wait_of_mg1(load: float) -> None:
    """Pollaczek and Khinchine's formula, with prompts of two lengths."""
    tables = linear_tables(per_token=0.001, sequences=1, budget=4000)
    services, weights = np.array([0.5, 4.0]), np.array([6 / 7, 1 / 7])  # mean 1 s
    theory = load * float(weights @ services**2) / (2 * (1 - load))
    estimates = []
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        lengths = rng.choice(services * 1000, 500_000, p=weights)
        arrivals = np.cumsum(rng.exponential(1 / load, lengths.size))
        cluster = cluster_of_groups(group(Phase.COLOCATED, tables))
        estimates.append(mean_wait(simulate(cluster, requests_of(arrivals, lengths))))
    assert_agrees(estimates, theory)


@pytest.mark.parametrize("together", [False, True])
def test_waits_are_those_of_one_queue(together: bool) -> None:
    """Each wait, not the mean alone: of the least work among 4 replicas, and of one replica with 4 lanes,
    against Kiefer and Wolfowitz's recursion (Trans. Amer. Math. Soc., vol. 78, 1955)."""
    number, servers = 20_000, 4
    rng = np.random.default_rng(0)
    services = np.ceil(rng.exponential(MEAN, number))
    arrivals = np.cumsum(rng.exponential(1 / (servers * 0.9), number))
    tables = linear_tables(per_token=TOKEN, sequences=servers, budget=LONGEST)
    replica = (
        group(Phase.COLOCATED, tables, lanes=servers)
        if together
        else group(Phase.COLOCATED, EXPONENTIAL, replicas=servers)
    )
    outcome = simulate(cluster_of_groups(replica), requests_of(arrivals, services))
    free = np.zeros(servers)
    expected = np.empty(number)
    for i in range(number):
        k = int(free.argmin())
        expected[i] = max(free[k] - arrivals[i], 0.0)
        free[k] = arrivals[i] + expected[i] + services[i] * TOKEN
    np.testing.assert_allclose(outcome.request["begun"] - arrivals, expected, atol=1e-6)


def test_random_routing_makes_queues_of_their_own() -> None:
    load, servers = 0.8, 4
    estimates = [
        mean_wait(exponential_run(seed, servers, load, 700_000, router=Router.RANDOM)) for seed in SEEDS
    ]
    assert_agrees(estimates, load / (1 - load))


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_round_robin_makes_arrivals_erlang(load: float) -> None:
    r"""Each replica of n sees every nth arrival: GI/M/1 with Erlang gaps, whose mean wait is
    :math:`\sigma / (1 - \sigma)` with the root of :math:`\sigma = A^*(1 - \sigma)`."""
    servers = 4
    rate = servers * load
    sigma = brentq(lambda s: (rate / (rate + 1 - s)) ** servers - s, 0.0, 1 - 1e-9)
    estimates = [
        mean_wait(exponential_run(seed, servers, load, 500_000, router=Router.ROUND_ROBIN)) for seed in SEEDS
    ]
    assert_agrees(estimates, sigma / (1 - sigma))


def test_two_choices_are_between_one_and_all() -> None:
    means = {
        router: np.mean([mean_wait(exponential_run(seed, 8, 0.8, 100_000, router=router)) for seed in SEEDS])
        for router in (Router.LEAST_LOADED, Router.POWER_OF_TWO, Router.ROUND_ROBIN, Router.RANDOM)
    }
    assert means[Router.LEAST_LOADED] < 0.7 * means[Router.POWER_OF_TWO]
    assert means[Router.POWER_OF_TWO] < 0.7 * means[Router.ROUND_ROBIN]
    assert means[Router.ROUND_ROBIN] < 0.8 * means[Router.RANDOM]


def test_two_choices_by_requests_for_many_replicas() -> None:
    r"""Mitzenmacher's limit for many replicas: the share with k requests or more is :math:`\rho^{2^k - 1}`
    (IEEE Trans. Parallel Distrib. Syst., vol. 12, no. 10, 2001), here within 2 % for 100 of them."""
    load, servers, number = 0.8, 100, 400_000
    rng = np.random.default_rng(0)
    services = np.ceil(rng.exponential(MEAN, number))
    arrivals = np.cumsum(rng.exponential(1 / (servers * load), number))
    cluster = cluster_of_groups(
        group(Phase.COLOCATED, EXPONENTIAL, replicas=servers),
        router=Router.POWER_OF_TWO,
        measure=LoadMeasure.REQUESTS,
    )
    outcome = simulate(cluster, requests_of(arrivals, services))
    limit = sum(load ** (2**k - 1) for k in range(1, 20)) / load
    assert mean_ttft(outcome) == pytest.approx(limit, rel=0.02)


RATES = (1.0, 2.0, 4.0, 5.0)  # Zhong et al., DistServe, OSDI 2024, section 3.1, at 0.15 s per prompt [req/s]


@pytest.mark.parametrize("rate", RATES)
def test_distserve_two_stages(rate: float) -> None:
    theory = float(md1_mean_ttft_pipeline(rate, 0.15))
    assert_agrees(deterministic_estimates(rate, 0.15, 60_000, mean_ttft, stages=2), theory)


@pytest.mark.parametrize("rate", RATES)
def test_distserve_tensor_parallel(rate: float) -> None:
    theory = float(md1_mean_ttft_tensor_parallel(rate, 0.15, 1.5))
    assert_agrees(deterministic_estimates(rate, 0.15 / 1.5, 60_000, mean_ttft), theory)
    assert float(md1_mean_ttft(rate, 0.1)) == pytest.approx(theory)
