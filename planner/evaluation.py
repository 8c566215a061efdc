"""Fleets that stand: a plan read from its file, or one written by hand, under traffic of any kind."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from planner.collectives import within_node
from planner.documents.files import file_error, read_text
from planner.documents.fleet import LoadedFleet, fleet_from_text, plan_group_problems
from planner.documents.names import did_you_mean
from planner.documents.plan import plan_from_text
from planner.documents.scenario import scenario_from_text
from planner.documents.stock import gpus_of, stock_problems
from planner.documents.trace_file import read_trace
from planner.documents.tree import Tree
from planner.documents.yaml_text import dump_yaml, parse_tree
from planner.engines import load_engine
from planner.errors import Problem, SpecError
from planner.fleet import Deployed, Fleet
from planner.latency import decode_step_time
from planner.money import token_cost
from planner.operators import ReplicaSet
from planner.plan import Group, Plan
from planner.queueing import normal_quantile
from planner.simulator.build import PLAIN, Setup
from planner.simulator.metrics import SimulationResult
from planner.simulator.run import Stage, carried_scale, simulate_fleet
from planner.simulator.source import RequestSource
from planner.specs import Metric, Phase, Precision, Scenario, Service
from planner.traces import Trace
from planner.traffic import Traffic
from planner.units import MEGA, MICRO
from planner.verification import blamed, source_of

FIRST_RATE = 1.0  # tried where nobody says how many requests come [req/s]
LEAST_RATE, MOST_RATE = MICRO, MEGA  # [req/s]
BEYOND = 1.05  # times the largest rate, at which is looked what breaks [1]
_CONFIRM_STEP = 0.98
_CONFIRMATIONS = 5
_RATIO = 2.0
_SHORT = 30_000  # requests of a run that only brackets


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Standing:
    """A fleet with its names, traffic and the model error to judge it by.

    Attributes
    ----------
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
# From files


def standing_plan(plan: Plan, folder: Path | None, source_name: str = "plan") -> Standing:
    """The fleet of a plan, its groups as the plan has them; files of its scenario are relative to `folder`.

    Raises
    ------
    SpecError
        If the scenario of the plan cannot be read, or does not know a GPU of its groups.
    """
    if not plan.scenario:
        raise SpecError(f"{source_name}: the plan does not hold the scenario that it answers")
    if not plan.groups or not plan.predictions:
        raise SpecError(f"{source_name}: the plan has no {'groups' if plan.predictions else 'services'}")
    loaded = scenario_from_text(dump_yaml(dict(plan.scenario)), f"scenario of {source_name}", folder=folder)
    scenario = loaded.scenario
    if len(scenario.services) > 1:
        raise SpecError(
            f"{source_name}: the plan serves {len(scenario.services)} models; one can be evaluated"
        )
    (service,) = scenario.services
    rate = plan.predictions[0].request_rate
    period = replace(service.workload.periods[0], request_rate=rate)
    workload = replace(service.workload, periods=(period,))
    fleet = Fleet(
        service=replace(service, workload=workload),
        engine=load_engine(plan.engine),
        groups=tuple(_deployed(scenario, group, source_name) for group in plan.groups),
        routing=scenario.options.routing,
    )
    return Standing(
        fleet=fleet,
        names=tuple(group.name for group in plan.groups),
        source=source_of(loaded, 0, workload),
        confidence=scenario.options.confidence,
        cost=plan.cost,
        offered=rate,
        longest=tuple(group.max_model_len for group in plan.groups),
    )


def _deployed(scenario: Scenario, group: Group, source_name: str) -> Deployed:
    (service,) = scenario.services
    place = (group.zone, group.price_class)
    of_type = [item for item in scenario.fleet if item.gpu.name == group.gpu]
    item = next((item for item in of_type if (item.zone, item.price_class) == place), None)
    if item is None:
        known = [item.name for item in of_type or scenario.fleet]
        near = "" if of_type else did_you_mean(group.gpu, known)
        hint = near or f"it has {', '.join(known)}"
        where = f" in zone {group.zone or 'none'}, {group.price_class}" if of_type else ""
        rule = f"the scenario's fleet has no GPU {group.gpu!r}{where} ({hint})"
        raise SpecError(f"{source_name}: group {group.name}: {rule}")
    return Deployed(
        phase=group.phase,
        item=within_node(item) if group.same_node else item,
        parallelism=group.parallelism,
        replicas=group.replicas,
        rate=group.request_rate,
        token_budget=group.max_num_batched_tokens,
        kv_tokens=group.kv_capacity,
        max_num_seqs=group.max_num_seqs,
        precision=Precision.of(service.model, group.precision.weights, group.precision.kv_cache),
    )


def _edited_plan(tree: Tree, text: str) -> Standing:
    """The fleet of a plan file, which somebody may have changed.

    Raises
    ------
    SpecError
        Also for groups that could not run.
    """
    plan = plan_from_text(text, tree.source, folder=tree.folder)
    rate = plan.predictions[0].request_rate if plan.predictions else FIRST_RATE
    if not LEAST_RATE <= rate <= MOST_RATE:
        rule = f"must be {LEAST_RATE:g} to {MOST_RATE:,.0f} req/s"
        raise SpecError.of_file(tree.source, [tree.problem(("services", 0, "request_rate"), rule)])
    try:
        standing = standing_plan(plan, tree.folder, tree.source)
    except SpecError as error:
        if not error.problems:
            raise
        inside = [_within(tree, problem) for problem in error.problems]
        raise SpecError.of_file(tree.source, inside) from None
    fleet = standing.fleet
    items = [group.item for group in fleet.groups]
    problems = plan_group_problems(tree, fleet.service, fleet.engine, items)
    if problems := [*problems, *stock_problems(tree, fleet.groups)]:
        raise SpecError.of_file(tree.source, problems)
    return standing


def _within(tree: Tree, problem: Problem) -> Problem:
    """A problem of the scenario that a plan holds, where the plan's file has it."""
    parts = re.findall(r"\[(\d+)\]|([^.\[\]]+)", problem.key)
    path = ("scenario", *(int(index) if index else name for index, name in parts))
    return replace(problem, key=f"scenario.{problem.key}".rstrip("."), line=tree.line(path))


def standing_fleet(loaded: LoadedFleet, seed: int = 0) -> Standing:
    """A fleet from its own file; groups of a pool take load by what they can do."""
    fleet = _weighted(loaded.fleet)
    workload = fleet.service.workload
    return Standing(
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
    r = ReplicaSet.of(service.model, service.precision, fleet.engine, [(group.item.gpu, group.parallelism)])
    batch = np.arange(1.0, most + 1)
    step = decode_step_time(r, batch[:, None], traffic.decode_context)[:, 0]
    limit = min((t.limit for t in service.slo.of(Metric.TPOT)), default=math.inf)
    within = np.flatnonzero(step <= limit)
    at = int(within[-1]) if within.size else 0
    return float(batch[at] / step[at])


# --------------------------------------------------------------------------------------------
# What a fleet carries


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evaluation:
    """The most that a fleet carries within its SLOs, and what stops it.

    Attributes
    ----------
    request_rate : float
        The most; 0: not even a hundredth of a request per second. [req/s]
    at_most : SimulationResult or None
        The fleet at that rate; None where it carries nothing.
    at_offered : SimulationResult or None
        At the rate that the file gives; None where it gives none.
    beyond : SimulationResult
        At 5 % more than the most.
    breaks : tuple of Phase
        Pools that fail there first.
    gpus : int
        In use.
    cost : float or None
        Of these. [USD/h]
    """

    request_rate: float
    at_most: SimulationResult | None
    at_offered: SimulationResult | None
    beyond: SimulationResult
    breaks: tuple[Phase, ...]
    gpus: int
    cost: float | None

    def cost_per_million_tokens(self, service: Service) -> float | None:
        """Input and output tokens together, at the largest rate. [USD]"""
        lengths = service.workload.lengths
        if self.cost is None or self.request_rate <= 0:
            return None
        return token_cost(self.cost, self.request_rate, lengths.isl.mean, lengths.osl.mean).both


def setup_of(standing: Standing, z: float) -> Setup:
    """How a standing fleet is simulated by default."""
    return Setup(z=z, input_ranges=standing.input_ranges)


def evaluate(
    fleet: Standing | LoadedFleet | Plan | str | Path,
    setup: Setup = PLAIN,
    *,
    offered: float | None = None,
    number: int | None = None,
    on_stage: Stage = lambda _s: None,
) -> Evaluation:
    """Find the largest rate at which the fleet meets every SLO, by simulation.

    Parameters
    ----------
    offered : float, optional
        Rate that the fleet is meant for, looked at too. [req/s]
    number : int, optional
        Requests of a run; default: until percentiles are known to 2 %.

    Raises
    ------
    SpecError
        If there is no SLO to meet.
    """
    standing = _standing(fleet)
    source = standing.source
    if not standing.fleet.service.slo.targets:
        raise SpecError("evaluate needs an SLO: without one there is no largest rate")

    def at(rate: float, number: int | None) -> SimulationResult:
        on_stage(f"simulating {rate:.4g} req/s")
        source_at = replace(source, rate=rate)
        names = standing.names
        return simulate_fleet(standing.fleet, source_at, setup, number=number, names=names, on_stage=on_stage)

    start = replace(source, rate=_checked_rate(offered or FIRST_RATE))
    most = _bracketed(standing, start, setup, on_stage)
    rate = most * carried_scale(standing.fleet, replace(source, rate=most), setup, on_stage=on_stage)
    confirmed = None
    for _ in range(_CONFIRMATIONS if rate > 0 else 0):
        confirmed = at(rate, number)
        if confirmed.passed:
            break
        rate *= _CONFIRM_STEP
    else:
        rate, confirmed = 0.0, None
    beyond = at(max(rate * BEYOND, FIRST_RATE / 64), confirmed.requests if confirmed else number)
    return Evaluation(
        request_rate=rate,
        at_most=confirmed,
        at_offered=confirmed if offered == rate else at(offered, number) if offered else None,
        beyond=beyond,
        breaks=tuple(sorted(blamed(standing.fleet, beyond))),
        gpus=gpus_of(standing.fleet.groups),
        cost=standing.cost,
    )


def _checked_rate(rate: float) -> float:
    """A rate at which times keep their digits. [req/s]"""
    if not LEAST_RATE <= rate <= MOST_RATE:  # also refuses NaN
        raise SpecError(f"rate must be {LEAST_RATE:g} to {MOST_RATE:,.0f} req/s, got {rate!r}")
    return rate


def _bracketed(standing: Standing, source: RequestSource, setup: Setup, on_stage: Stage) -> float:
    """A rate that the fleet does not carry, at most twice one that it does. [req/s]"""
    rate = source.mean_rate
    while rate < MOST_RATE:
        on_stage(f"simulating {rate:.4g} req/s")
        result = simulate_fleet(
            standing.fleet, replace(source, rate=rate), setup, number=_SHORT, on_stage=on_stage
        )
        if not result.passed:
            return rate
        rate *= _RATIO
    raise SpecError(f"the fleet carries more than {MOST_RATE:,.0f} req/s: is an SLO missing?")


def simulate(
    plan: Plan | Standing | LoadedFleet | str | Path,
    *,
    trace: Trace | str | Path | None = None,
    rate: float | None = None,
    requests: int | None = None,
    seed: int = 0,
    confidence: float | None = None,
    setup: Setup = PLAIN,
) -> SimulationResult:
    """Send requests through a fleet.

    Parameters
    ----------
    plan : Plan, Standing, LoadedFleet, str or Path
        A path is that of a plan.
    trace : Trace, str or Path, optional
        Requests to replay; default: those that the fleet is meant for.
    rate : float, optional
        Default: the trace's own, else the fleet's. [req/s]
    requests : int, optional
        How many; default: until percentiles are known to 2 %.
    confidence : float, optional
        Quantile of the model error; default: the fleet's. [1]
    setup : Setup
        Router, failures and the like; its `z` and input ranges are set here.

    Raises
    ------
    SpecError
    """
    standing = _standing(plan)
    source = replace(standing.source, seed=seed)
    if trace is not None:
        read = trace if isinstance(trace, Trace) else read_trace(Path(trace))
        source = replace(source, trace=read, replay=True, rate=None, prefix_cache=read.blocks is not None)
    if rate is not None:
        source = replace(source, rate=_checked_rate(rate))
    z = float(normal_quantile(confidence or standing.confidence))
    how = replace(setup, z=z, input_ranges=standing.input_ranges)
    return simulate_fleet(standing.fleet, source, how, number=requests, names=standing.names)


def _standing(plan: Plan | Standing | LoadedFleet | str | Path) -> Standing:
    if isinstance(plan, Standing):
        return plan
    if isinstance(plan, LoadedFleet):
        return standing_fleet(plan)
    if isinstance(plan, Plan):
        return standing_plan(plan, None)
    return standing_file(Path(plan))


def standing_file(path: Path) -> Standing:
    """A plan or a fleet file, told apart by its keys; ``-`` is standard input.

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
        return _edited_plan(tree, text)
    if tree.has("fleet") and not tree.has("groups"):
        raise file_error(
            name, "is a scenario, not a plan or a fleet of groups", "planner solve makes a plan of it"
        )
    return standing_fleet(fleet_from_text(text, name, folder=folder))
