"""Where requests of a service go in, how they are shared, and the load test that is its traffic."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.deploy.description import (
    PLACEHOLDER,
    Cluster,
    Host,
    LoadTest,
    RouterSettings,
)
from planner.deploy.description import Engine as EngineOnHost
from planner.deploy.engine_facts import RouterFacts
from planner.deploy.platform_facts import PlatformFacts
from planner.deploy.routing import router_policy
from planner.deploy.words import host_address
from planner.documents.site_schema import SiteDocument
from planner.errors import SpecError
from planner.plan import Plan
from planner.specs import (
    Metric,
    Phase,
    SloTarget,
    Statistic,
)
from planner.standing import Standing
from planner.units import MINUTES_PER_HOUR

_TEST_SECONDS = 5 * MINUTES_PER_HOUR  # of a load test; a minute has as many seconds as an hour minutes
_FEWEST_REQUESTS, _MOST_REQUESTS = 200, 100_000
_WIDEST = 0.99
_STEADIEST = 100.0  # burstiness of arrivals that hardly vary


def policy_of(
    plan: Plan, standing: Standing, router: RouterFacts, site: SiteDocument
) -> tuple[str, tuple[str, ...]]:
    """How the router of a service picks engines, and what is to be said of it."""
    groups = standing.fleet.groups
    pools = [
        [(group.replicas, group.rate / group.replicas) for group in groups if group.phase is phase]
        for phase in Phase
    ]
    return router_policy(plan, pools, router, site.router_policy)


def prompts_of(plan: Plan, standing: Standing) -> tuple[int, int | None] | None:
    """Lengths of the prompts that come to a service, where the plan divides them. [tok]"""
    buckets = () if plan.split is None else plan.split.buckets
    return next(((b.shortest, b.longest) for b in buckets if b.service == standing.name), None)


def own_front(site: SiteDocument, port: int) -> RouterSettings:
    """Where the router runs that an operator starts."""
    if site.router_host is None:
        return RouterSettings(address=f"{PLACEHOLDER}router-host", port=port, policy="")
    return RouterSettings(address=host_address("router_host", site.router_host), port=port, policy="")


def alone(
    router: RouterFacts, standing: Standing, hosts: Sequence[Host], engines: Sequence[EngineOnHost]
) -> RouterSettings:
    """Where the only engine of a colocated front answers requests itself.

    Raises
    ------
    SpecError
        There are several, among which the router shares nothing.
    """
    if len(engines) > 1:
        rule = f"shares no requests among colocated engines, the plan has {len(engines)} for {standing.name}"
        hint = "put a load balancer in front of plans of one engine each, or plan with colocated: forbidden"
        raise SpecError(f"{router}: {rule} ({hint}, or for another engine)")
    (engine,) = engines
    address = next(host.address for host in hosts if host.name == engine.host)
    return RouterSettings(address=address, port=engine.port, policy="")


def platform_front(
    platform: PlatformFacts, site: SiteDocument, cluster: Cluster, door: str
) -> RouterSettings:
    """Where the platform takes requests, or where the site says that they can be sent."""
    names = {"name": door, "namespace": cluster.namespace}
    if site.router_host is None:
        address = platform.front.format(**names)
    else:
        address = host_address("router_host", site.router_host)
    return RouterSettings(address=address, port=platform.port, path=platform.path.format(**names), policy="")


def load_test_of(standing: Standing) -> LoadTest:
    """The plan's traffic by mean lengths, their spread, rate and shared prefix."""
    workload = standing.fleet.service.workload
    isl, osl = workload.lengths.isl, workload.lengths.osl
    variance = max(isl.moment(2) - isl.mean**2, 0.0)
    spread = math.sqrt(3 * variance) / isl.mean  # of a uniform distribution with the same standard deviation
    longest = min(standing.longest)
    room = longest / (isl.mean + osl.mean) - 1
    prompt, output = round(isl.mean), max(round(osl.mean), 1)
    shared = min(round(workload.prefix_hit_rate * isl.mean), prompt - 1)
    rate = workload.request_rate
    requests = min(max(math.ceil(rate * _TEST_SECONDS), _FEWEST_REQUESTS), _MOST_REQUESTS)
    burstiness = 1 / workload.arrival_scv if workload.arrival_scv > 1 / _STEADIEST else _STEADIEST
    return LoadTest(
        request_rate=float(f"{rate:.6g}"),
        burstiness=float(f"{burstiness:.6g}"),
        prompt=max(prompt - shared, 1),
        shared_prefix=shared,
        output=output,
        spread=math.floor(100 * max(min(spread, room, _WIDEST), 0.0)) / 100,
        requests=requests,
    )


def strictest(slo: Sequence[SloTarget]) -> dict[Metric, SloTarget]:
    """Of each latency the bound on its highest percentile, which a request is judged by."""
    order = [Statistic.MEAN, Statistic.P50, Statistic.P90, Statistic.P95, Statistic.P99]
    found: dict[Metric, SloTarget] = {}
    for target in sorted(slo, key=lambda t: order.index(t.statistic)):
        found[target.metric] = target
    return found
