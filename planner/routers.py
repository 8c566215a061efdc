"""The routers of a plan that was read: which groups stand behind each, at what load, in which period.

A plan has one router for each of its services or, where prefill and decode share a zone, one for each zone
that serves it. Somebody may have edited the plan: what no longer fits together is told with its line.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.buckets import bucket_of, label_of
from planner.collectives import beneath, within_node
from planner.documents.names import did_you_mean, unknown_name
from planner.documents.scenario import LoadedScenario
from planner.documents.tree import KeyPath, Tree, dotted
from planner.errors import Problem, SpecError
from planner.plan import Group, LengthBucket, LengthSplit, PeriodPlan, Plan
from planner.question import at_rate, part_of
from planner.specs import FleetItem, Phase, Scenario, Service
from planner.traces import Trace

ROUNDED = 1e-5  # relative, of numbers in a plan file [1]
_BETWEEN = ", "  # a service and its zone in the name of a router


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadPlan:
    """A plan with the scenario that it answers and, where it was read from a file, its lines.

    Attributes
    ----------
    source : str
        Name of the plan in messages.
    """

    plan: Plan
    loaded: LoadedScenario
    source: str
    tree: Tree | None = None

    @property
    def scenario(self) -> Scenario:
        return self.loaded.scenario

    @property
    def services(self) -> tuple[str, ...]:
        """Names of what the scenario asks for."""
        return tuple(service.name for service in self.scenario.services)

    def problem(self, path: KeyPath, rule: str, hint: str = "", value: str = "") -> Problem:
        """A broken rule; `value` is told where it is given."""
        line = 0 if self.tree is None else self.tree.line(path)
        told = repr(value) if value else ""
        return Problem(key=dotted(path), rule=rule, value=told, line=line, suggestion=hint)


def divided(loaded: LoadedScenario, split: LengthSplit | None) -> LoadedScenario:
    """A scenario whose services are divided by prompt length as a plan divides them."""
    if split is None:
        return loaded
    services: list[Service] = []
    traces: list[Trace | None] = []
    replays: list[bool] = []
    for k, service in enumerate(loaded.scenario.services):
        trace = loaded.traces[k] if loaded.traces else None
        replay = bool(loaded.replays) and loaded.replays[k]
        own = [_range(b) for b in split.buckets if b.service == label_of(service.label, *_range(b))]
        services += [bucket_of(service, low, high, service.label, trace).service for low, high in own]
        traces += [None if trace is None else trace.between(low, high) for low, high in own]
        if not own:
            services.append(service)
            traces.append(trace)
        replays += [replay] * max(len(own), 1)
    scenario = replace(loaded.scenario, services=tuple(services))
    return replace(loaded, scenario=scenario, traces=tuple(traces), replays=tuple(replays))


def _range(bucket: LengthBucket) -> tuple[float, float]:
    """Prompts of a bucket, ``low <= isl < high``. [tok]"""
    return float(bucket.shortest), math.inf if bucket.longest is None else bucket.longest + 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Router:
    """A front door of a plan.

    Attributes
    ----------
    asked : int
        Index of the scenario's service that it serves.
    service : Service
        That service at the rate that comes here.
    members : tuple of int
        Groups of the plan behind it, in their order.
    replicas, rates : tuple of int, tuple of float
        Of each of them. [1, req/s]
    cost : float or None
        Of these groups, with their part of what is paid for idle GPUs. [USD/h]
    """

    name: str
    asked: int
    service: Service
    members: tuple[int, ...]
    replicas: tuple[int, ...]
    rates: tuple[float, ...]
    cost: float | None

    @property
    def rate(self) -> float:
        """[req/s]"""
        return self.service.workload.request_rate


def routers_of(read: ReadPlan, period: str | None = None) -> tuple[Router, ...]:
    """Every router of a plan that gets requests, as the plan has them: in its busiest period.

    Parameters
    ----------
    period : str, optional
        Another period. Requests are shared among groups, and among zones, by what these carry: a replica
        as much as one of its group does in the busiest period.

    Raises
    ------
    SpecError
        With every contradiction between groups, services, periods and the scenario.
    """
    if problems := [*_entry_problems(read), *_group_problems(read), *_period_problems(read)]:
        raise SpecError.of_file(read.source, problems)
    members = _members(read)
    if problems := [
        read.problem(("services", i, "service"), "has no group that serves it", value=name)
        for i, name in enumerate(members)
        if not members[name]
    ]:
        raise SpecError.of_file(read.source, problems)
    if period is None:
        return tuple(_as_planned(read, name, groups) for name, groups in members.items())
    return tuple(_Running.of(read, _index_of(read, period)).routers(members))


def item_of(scenario: Scenario, group: Group) -> FleetItem | None:
    """The line of the scenario's fleet that a group takes its GPUs from."""
    place = (group.gpu, group.zone, group.price_class)
    found = next((i for i in scenario.fleet if (i.gpu.name, i.zone, i.price_class) == place), None)
    if found is None:
        return None
    return within_node(found) if group.same_node else beneath(found, group.parallelism)


# --------------------------------------------------------------------------------------------
# Names


def _served(name: str, services: Sequence[str]) -> str | None:
    """The service that a router of this name serves, whole or in one zone."""
    if name in services:
        return name
    service, _, zone = name.rpartition(_BETWEEN)
    return service if zone and service in services else None


def _router(group: Group, names: Sequence[str]) -> str | None:
    """The router, of those in `names`, before a group."""
    possible = (group.service, f"{group.service}{_BETWEEN}{group.zone}")
    return next((name for name in possible if name in names), None)


def _names(plan: Plan) -> tuple[str, ...]:
    return tuple(prediction.service for prediction in plan.predictions)


def _members(read: ReadPlan) -> dict[str, tuple[int, ...]]:
    """Groups of each router."""
    names = _names(read.plan)
    owners = [_router(group, names) for group in read.plan.groups]
    return {name: tuple(i for i, owner in enumerate(owners) if owner == name) for name in names}


def _entry_problems(read: ReadPlan) -> Iterator[Problem]:
    """Services of the plan are those of the scenario, each once."""
    names, services = _names(read.plan), read.services
    for i, name in enumerate(names):
        path: KeyPath = ("services", i, "service")
        service = _served(name, services)
        if service is None:
            rule, hint = unknown_name("service", name, services)
            yield read.problem(path, rule, hint, name)
        elif name in names[:i]:
            yield read.problem(path, "is listed twice", "give each service once", name)
        elif service != name and service in names:
            yield read.problem(path, f"is a part of {service!r}, which is listed too", value=name)


def _group_problems(read: ReadPlan) -> Iterator[Problem]:
    """Groups serve what the plan and its scenario know, on GPUs of the scenario's fleet."""
    names, services = _names(read.plan), read.services
    for i, group in enumerate(read.plan.groups):
        if group.service not in services:
            rule, hint = unknown_name("service", group.service, services)
            yield read.problem(("groups", i, "service"), rule, hint, group.service)
        elif item_of(read.scenario, group) is None:
            yield _misplaced(read, i, group)
        elif _router(group, names) is None:
            zones = [name for name in names if _served(name, services) == group.service]
            if zones:
                rule = f"services has no entry for {group.service!r} there"
                yield read.problem(("groups", i, "zone"), rule, f"it has {'; '.join(zones)}", group.zone)
            else:
                rule = "services has no entry for it"
                yield read.problem(("groups", i, "service"), rule, "say what it gets", group.service)


def _misplaced(read: ReadPlan, i: int, group: Group) -> Problem:
    """What a group on GPUs that the scenario does not have is told."""
    fleet = read.scenario.fleet
    of_type = [item for item in fleet if item.gpu.name == group.gpu]
    in_zone = [item for item in of_type if item.zone == group.zone]
    known = list(dict.fromkeys(item.name for item in of_type or fleet))
    name, names = (group.zone, [i.zone for i in of_type]) if of_type else (group.gpu, known)
    hint = ("" if in_zone else did_you_mean(name, names)) or f"it has {', '.join(known)}"
    where = f" in zone {group.zone or 'none'}, {group.price_class}" if of_type else ""
    key = "price_class" if in_zone else "zone" if of_type else "gpu"
    rule = f"the scenario's fleet has no GPU {group.gpu!r}{where}"
    return read.problem(("groups", i, key), rule, hint)


# --------------------------------------------------------------------------------------------
# As planned


def _asked(read: ReadPlan, name: str) -> int:
    service = _served(name, read.services)
    assert service is not None  # checked with the entries
    return read.services.index(service)


def _service(read: ReadPlan, asked: int, rate: float, of: float, period: str = "") -> Service:
    """What a router serves at `rate`, where its service gets `of` in all. [req/s]"""
    service = read.scenario.services[asked]
    periods = service.workload.periods
    chosen = next((p for p in periods if p.name == period), periods[0])
    steady = replace(service, workload=replace(service.workload, periods=(chosen,)))
    whole = at_rate(steady, of)
    return whole if rate >= of else part_of(whole, rate)


def _as_planned(read: ReadPlan, name: str, members: tuple[int, ...]) -> Router:
    plan, asked = read.plan, _asked(read, name)
    planned = {p.service: p.request_rate for p in plan.predictions}
    whole = math.fsum(rate for other, rate in planned.items() if _asked(read, other) == asked)
    if plan.periods:  # some groups stand in other periods only
        members = tuple(i for i in members if plan.groups[i].request_rate > 0)
    groups = [plan.groups[i] for i in members]
    return Router(
        name=name,
        asked=asked,
        service=_service(read, asked, planned[name], whole),
        members=members,
        replicas=tuple(group.replicas for group in groups),
        rates=tuple(group.request_rate for group in groups),
        cost=_part(plan, _paid_then(read, asked, whole), members, [group.replicas for group in plan.groups]),
    )


def _paid_then(read: ReadPlan, asked: int, rate: float) -> float | None:
    """What is paid for when a service gets `rate` [req/s]: of several periods the first in which it does."""
    service = read.services[asked]
    for period in read.plan.periods:
        if math.isclose(period.request_rates.get(service, 0.0), rate, rel_tol=ROUNDED):
            return period.cost
    return read.plan.cost


def _part(plan: Plan, paid: float | None, members: Sequence[int], replicas: Sequence[int]) -> float | None:
    """What is paid for some groups, where all of them together cost `paid`. [USD/h]"""
    listed = [
        None if group.cost is None else group.cost / group.replicas * count
        for group, count in zip(plan.groups, replicas, strict=True)
    ]
    running = {i for i, count in enumerate(replicas) if count}
    if running <= set(members):
        return paid
    known = [cost for cost in listed if cost is not None]
    own = [cost for i in members if (cost := listed[i]) is not None]
    if paid is None or len(known) < len(listed):
        return None
    total = math.fsum(known)
    return paid * math.fsum(own) / total if total else 0.0


# --------------------------------------------------------------------------------------------
# In one of several periods


def _index_of(read: ReadPlan, name: str) -> int:
    names = [period.name for period in read.plan.periods]
    if not names:
        raise SpecError(f"{read.source}: there is no period {name!r}: the plan is for one constant rate")
    if name not in names:
        rule, hint = unknown_name("period", name, names)
        raise SpecError(f"{read.source}: {rule} {name!r} ({hint})")
    return names.index(name)


def _period_problems(read: ReadPlan) -> Iterator[Problem]:
    """Periods name groups and services of the plan, and give the rate of each service."""
    plan = read.plan
    groups = [group.name for group in plan.groups]
    served = [name for name in read.services if any(g.service == name for g in plan.groups)]
    for k, period in enumerate(plan.periods):
        for kind, key, given, known in (
            ("group", "replicas", period.replicas, groups),
            ("service", "request_rates", period.request_rates, read.services),
        ):
            for name in [name for name in given if name not in known]:
                rule, hint = unknown_name(kind, name, known)
                yield read.problem(("periods", k, key, name), rule, hint)
        for name in [name for name in served if name not in period.request_rates]:
            rule = f"gives no rate of {name!r}"
            yield read.problem(("periods", k, "request_rates"), rule, "0: no requests come")
        if period.name in [other.name for other in plan.periods[:k]]:
            yield read.problem(("periods", k, "name"), "is the name of another period", value=period.name)


@dataclass(frozen=True, slots=True)
class _Running:
    """A period of a plan: replicas of every group, and what they carry. [1, req/s]"""

    read: ReadPlan
    index: int
    counts: tuple[int, ...]
    carried: tuple[float, ...]

    @classmethod
    def of(cls, read: ReadPlan, index: int) -> _Running:
        period = read.plan.periods[index]
        counts = tuple(period.replicas.get(group.name, group.replicas) for group in read.plan.groups)
        carried = tuple(
            (group.capacity if math.isfinite(group.capacity) else group.request_rate) / group.replicas * count
            for group, count in zip(read.plan.groups, counts, strict=True)
        )
        return cls(read, index, counts, carried)

    @property
    def period(self) -> PeriodPlan:
        return self.read.plan.periods[self.index]

    def offered(self, asked: int) -> float:
        """Of a whole service. [req/s]"""
        return self.period.request_rates.get(self.read.services[asked], 0.0)

    def pools(self, members: Sequence[int]) -> dict[Phase, float]:
        """What each pool of some groups carries. [req/s]"""
        groups = self.read.plan.groups
        colocated = any(groups[i].phase is Phase.COLOCATED for i in members)
        pools = (Phase.COLOCATED,) if colocated else (Phase.PREFILL, Phase.DECODE)
        return {
            pool: math.fsum(self.carried[i] for i in members if groups[i].phase is pool) for pool in pools
        }

    def routers(self, members: Mapping[str, tuple[int, ...]]) -> Iterator[Router]:
        """Those that get requests."""
        most = {name: min(self.pools(groups).values()) for name, groups in members.items()}
        asked = {name: _asked(self.read, name) for name in members}
        in_all = {k: math.fsum(most[name] for name in members if asked[name] == k) for k in asked.values()}
        if problems := list(self._stopped(members, in_all)):
            raise SpecError.of_file(self.read.source, problems)
        for name, groups in members.items():
            offered = self.offered(asked[name])
            if offered > 0 and most[name] > 0:
                yield self._router(name, groups, offered * most[name] / in_all[asked[name]])

    def _stopped(
        self, members: Mapping[str, tuple[int, ...]], in_all: Mapping[int, float]
    ) -> Iterator[Problem]:
        """Services that get requests while nothing serves them."""
        if not any(self.offered(k) > 0 for k in in_all):
            path: KeyPath = ("periods", self.index, "request_rates")
            yield self.read.problem(path, "no requests come: there is nothing to simulate")
        for name, groups in members.items():
            rate = self.offered(asked := _asked(self.read, name))
            if rate > 0 and not in_all[asked]:
                idle = " and ".join(pool for pool, carried in self.pools(groups).items() if not carried)
                rule = f"no {idle} replica of {name!r} runs, and {rate:.4g} req/s come"
                yield self.read.problem(("periods", self.index, "replicas"), rule)

    def _router(self, name: str, members: Sequence[int], rate: float) -> Router:
        """A router at its rate. [req/s]"""
        read, asked, pools = self.read, _asked(self.read, name), self.pools(members)
        running = tuple(i for i in members if self.counts[i])
        phases = [read.plan.groups[i].phase for i in running]
        shares = [self.carried[i] / pools[phase] for i, phase in zip(running, phases, strict=True)]
        return Router(
            name=name,
            asked=asked,
            service=_service(read, asked, rate, self.offered(asked), self.period.name),
            members=running,
            replicas=tuple(self.counts[i] for i in running),
            rates=tuple(rate * share for share in shares),
            cost=_part(read.plan, self.period.cost, running, self.counts),
        )
