"""Fleets that stand, with their traffic: routers of a plan, or a fleet that somebody wrote down."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planner.documents.files import file_error, read_text
from planner.documents.fleet import LoadedFleet, PlanFleet, fleet_from_text, plan_group_problems
from planner.documents.names import did_you_mean
from planner.documents.plan import plan_from_text
from planner.documents.scenario import LoadedScenario, scenario_from_text
from planner.documents.stock import stock_problems
from planner.documents.tree import Tree
from planner.documents.yaml_text import dump_yaml, parse_tree
from planner.engines import engine_of
from planner.errors import Problem, SpecError
from planner.fleet import Deployed, Fleet
from planner.latency import decode_step_time
from planner.operators import ReplicaSet
from planner.plan import Group, Plan
from planner.routers import ReadPlan, Router, divided, item_of, routers_of
from planner.simulator.source import RequestSource
from planner.specs import Engine, FleetItem, Metric, Phase, Precision
from planner.traffic import Traffic
from planner.units import MEGA, MICRO
from planner.verification import source_of

LEAST_RATE, MOST_RATE = MICRO, MEGA  # [req/s]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Standing:
    """A fleet with its names, traffic and the model error to judge it by.

    Attributes
    ----------
    name : str
        Of its router in the plan; of a fleet file the service's.
    confidence : float
        Quantile of the model error. [1]
    cost : float or None
        Of the fleet; None where a price is unknown. [USD/h]
    offered : float or None
        Rate that the file gives, if it gives one. [req/s]
    input_ranges : tuple of (low, high)
        Prompts that each group serves; empty: all. [tok]
    longest : tuple of int
        Longest sequence that the engines of each group are told to take; empty: what the model takes. [tok]
    """

    name: str
    fleet: Fleet
    names: tuple[str, ...]
    source: RequestSource
    confidence: float
    cost: float | None
    offered: float | None
    input_ranges: tuple[tuple[float, float], ...] = ()
    longest: tuple[int, ...] = ()

    def group(self, name: str) -> int:
        """Index of a group by its name.

        Raises
        ------
        SpecError
        """
        if name not in self.names:
            hint = did_you_mean(name, self.names) or f"groups: {', '.join(self.names)}"
            raise SpecError(f"there is no group {name!r} ({hint})")
        return self.names.index(name)


# --------------------------------------------------------------------------------------------
# From plans


def standing_plans(
    plan: Plan, folder: Path | None = None, source_name: str = "plan", *, period: str | None = None
) -> tuple[Standing, ...]:
    """What stands behind each router of a plan, its groups as the plan has them.

    Parameters
    ----------
    folder : Path, optional
        Where relative names of files in its scenario start.
    period : str, optional
        Default: the busiest.

    Returns
    -------
    tuple of Standing
        One for each entry of the plan's services that gets requests in that period, in their order.

    Raises
    ------
    SpecError
        If the scenario of the plan cannot be read, or groups, services and periods contradict one another.
    """
    read = _read(plan, folder, source_name)
    return tuple(_standing(read, router) for router in routers_of(read, period))


def standing_plan(
    plan: Plan,
    folder: Path | None = None,
    source_name: str = "plan",
    *,
    service: str | None = None,
    period: str | None = None,
) -> Standing:
    """The one of :func:`standing_plans` that is named, or the only one.

    Raises
    ------
    SpecError
        As there, or if there is no such router, or several.
    """
    return only_one(of_service(standing_plans(plan, folder, source_name, period=period), service))


def of_service(standings: Sequence[Standing], name: str | None) -> tuple[Standing, ...]:
    """Those of a router or of a service of this name; without one all.

    Raises
    ------
    SpecError
        If there is none.
    """
    if name is None:
        return tuple(standings)
    routers = [s for s in standings if s.name == name]
    found = routers or [s for s in standings if s.fleet.service.name == name]
    if not found:
        known = [s.name for s in standings]
        hint = did_you_mean(name, known) or f"there is: {'; '.join(known)}"
        raise SpecError(f"there is no service {name!r} ({hint})")
    return tuple(found)


def only_one(standings: Sequence[Standing]) -> Standing:
    """The only one.

    Raises
    ------
    SpecError
        If there are several.
    """
    if len(standings) > 1:
        names = "; ".join(s.name for s in standings)
        raise SpecError(f"the plan has {len(standings)} services, of which one has to be named: {names}")
    return standings[0]


def _read(
    plan: Plan,
    folder: Path | None,
    source_name: str,
    tree: Tree | None = None,
    engine_profile: Path | None = None,
) -> ReadPlan:
    """A plan with its scenario; whether it has all that belongs to one."""
    if not plan.scenario:
        raise SpecError(f"{source_name}: the plan does not hold the scenario that it answers")
    if not plan.groups or not plan.predictions:
        raise SpecError(f"{source_name}: the plan has no {'groups' if plan.predictions else 'services'}")
    loaded = divided(_scenario(plan, folder, source_name, tree, engine_profile), plan.split)
    return ReadPlan(plan=plan, loaded=loaded, source=source_name, tree=tree)


def _scenario(
    plan: Plan, folder: Path | None, source_name: str, tree: Tree | None, engine_profile: Path | None
) -> LoadedScenario:
    """The scenario that a plan answers; its problems have the lines of the plan's file."""
    text = dump_yaml(dict(plan.scenario))
    try:
        name = f"scenario of {source_name}"
        return scenario_from_text(text, name, folder=folder, engine_profile=engine_profile)
    except SpecError as error:
        if tree is None or not error.problems:
            raise
        raise SpecError.of_file(source_name, [_within(tree, p) for p in error.problems]) from None


def _within(tree: Tree, problem: Problem) -> Problem:
    """A problem of the scenario that a plan holds, where the plan's file has it."""
    parts = re.findall(r"\[(\d+)\]|([^.\[\]]+)", problem.key)
    path = ("scenario", *(int(index) if index else name for index, name in parts))
    return replace(problem, key=f"scenario.{problem.key}".rstrip("."), line=tree.line(path))


def _standing(read: ReadPlan, router: Router) -> Standing:
    options = read.scenario.options
    members = [read.plan.groups[i] for i in router.members]
    return Standing(
        name=router.name,
        fleet=Fleet(
            service=router.service,
            engine=_engine(read, router),
            groups=tuple(
                _deployed(read, group, router, count, rate)
                for group, count, rate in zip(members, router.replicas, router.rates, strict=True)
            ),
            routing=options.routing,
        ),
        names=tuple(group.name for group in members),
        source=source_of(read.loaded, router.asked, router.service.workload),
        confidence=options.confidence,
        cost=router.cost,
        offered=router.rate,
        longest=tuple(group.max_model_len for group in members),
    )


def _engine(read: ReadPlan, router: Router) -> Engine:
    """The plan names the engine of its first service."""
    service = router.service
    return engine_of(replace(service, engine=read.plan.engine) if router.asked == 0 else service)


def _item(read: ReadPlan, group: Group) -> FleetItem:
    item = item_of(read.scenario, group)
    assert item is not None  # routers are of groups on GPUs that are there
    return item


def _deployed(read: ReadPlan, group: Group, router: Router, replicas: int, rate: float) -> Deployed:
    return Deployed(
        phase=group.phase,
        item=_item(read, group),
        parallelism=group.parallelism,
        replicas=replicas,
        rate=rate,
        token_budget=group.max_num_batched_tokens,
        kv_tokens=group.kv_capacity,
        max_num_seqs=group.max_num_seqs,
        precision=Precision.of(router.service.model, group.precision.weights, group.precision.kv_cache),
    )


def _edited_plan(
    tree: Tree, text: str, period: str | None, engine_profile: Path | None
) -> tuple[Standing, ...]:
    """The fleets of a plan file, which somebody may have changed.

    Raises
    ------
    SpecError
        Also for groups that could not run.
    """
    plan = plan_from_text(text, tree.source, folder=tree.folder)
    rule = f"must be {LEAST_RATE:g} to {MOST_RATE:,.0f} req/s"
    rates = [
        tree.problem(("services", i, "request_rate"), rule)
        for i, prediction in enumerate(plan.predictions)
        if not LEAST_RATE <= prediction.request_rate <= MOST_RATE
    ]
    if rates:
        raise SpecError.of_file(tree.source, rates)
    read = _read(plan, tree.folder, tree.source, tree, engine_profile)
    fleets = [
        PlanFleet(
            service=router.service,
            engine=_engine(read, router),
            items={i: _item(read, plan.groups[i]) for i in router.members},
        )
        for router in routers_of(read)
    ]
    if problems := plan_group_problems(tree, fleets):
        raise SpecError.of_file(tree.source, problems)
    standings = tuple(_standing(read, router) for router in routers_of(read, period))
    groups = [group for standing in standings for group in standing.fleet.groups]
    if problems := list(stock_problems(tree, groups, read.loaded.scenario.fleet)):
        raise SpecError.of_file(tree.source, problems)
    return standings


# --------------------------------------------------------------------------------------------
# From fleet files


def standing_fleet(loaded: LoadedFleet, seed: int = 0) -> Standing:
    """A fleet from its own file; groups of a pool take load by what they can do."""
    fleet = _weighted(loaded.fleet)
    workload = fleet.service.workload
    return Standing(
        name=fleet.service.name,
        fleet=fleet,
        names=loaded.names,
        source=RequestSource(
            workload=workload,
            rate=loaded.request_rate or workload.request_rate,
            trace=loaded.trace,
            replay=loaded.replay,
            seed=seed,
        ),
        confidence=loaded.confidence,
        cost=loaded.cost,
        offered=loaded.request_rate,
        input_ranges=loaded.input_ranges,
    )


def _weighted(fleet: Fleet) -> Fleet:
    """The fleet with the load of each decode pool split by speed, which a router that looks at the number of
    sequences has to know."""
    speeds = [_decode_speed(fleet, g) if g.phase is Phase.DECODE else 1.0 for g in fleet.groups]
    total = sum(s * g.replicas for s, g in zip(speeds, fleet.groups, strict=True) if g.phase is Phase.DECODE)
    rate = fleet.service.workload.request_rate
    return replace(
        fleet,
        groups=tuple(
            replace(g, rate=rate * s * g.replicas / total) if g.phase is Phase.DECODE else g
            for s, g in zip(speeds, fleet.groups, strict=True)
        ),
    )


def _decode_speed(fleet: Fleet, group: Deployed) -> float:
    """Sequences of a replica at the largest batch within memory and the TPOT limits. [1]"""
    service = fleet.service_of(group)
    traffic = Traffic.of_service(service)
    most = max(min(group.max_num_seqs, int(group.kv_tokens / traffic.reserved)), 1)
    replica = [(group.item.gpu, group.parallelism)]
    r = ReplicaSet.of(
        service.model, service.precision, fleet.engine, replica, speculation=service.speculation
    )
    batch = np.arange(1.0, most + 1)
    step = decode_step_time(r, batch[:, None], traffic.decode_context)[:, 0]
    limit = min((t.limit for t in service.slo.of(Metric.TPOT)), default=math.inf)
    within = np.flatnonzero(step <= limit * traffic.tokens_per_step)
    at = int(within[-1]) if within.size else 0
    return float(batch[at] / step[at])


# --------------------------------------------------------------------------------------------
# From either


def standing_files(
    path: Path, *, period: str | None = None, engine_profile: Path | None = None
) -> tuple[Standing, ...]:
    """The routers of a plan, or a fleet file's only one; told apart by their keys.

    Parameters
    ----------
    path : Path
        ``-`` is standard input.
    period : str, optional
        Of a plan for several; default: the busiest.
    engine_profile : Path, optional
        In place of the file's engine.

    Raises
    ------
    SpecError
        With every problem of the file.
    """
    piped = str(path) == "-"
    text = read_text("/dev/stdin" if piped else path)
    name, folder = ("standard input", Path()) if piped else (str(path), path.parent)
    tree, _ = parse_tree(text, name, folder)
    if tree.has("schema_version") or tree.has("scenario"):
        return _edited_plan(tree, text, period, engine_profile)
    if tree.has("fleet") and not tree.has("groups"):
        raise file_error(
            name, "is a scenario, not a plan or a fleet of groups", "planner solve makes a plan of it"
        )
    fleet = standing_fleet(fleet_from_text(text, name, folder=folder, engine_profile=engine_profile))
    if period is not None:
        raise SpecError(f"{name}: there is no period {period!r}: a fleet file has one rate")
    return (fleet,)


def standing_file(path: Path, *, service: str | None = None, period: str | None = None) -> Standing:
    """The one of :func:`standing_files` that is named, or the only one.

    Raises
    ------
    SpecError
        As there, or if there is no such router, or several.
    """
    return only_one(of_service(standing_files(path, period=period), service))
