"""Prefill and decode within one node: the same scenario with KV caches on the link between its GPUs.

A disaggregated plan that fits one node need not send KV caches over NICs. Whether it may depends on all of
its groups, which the program's pairs cannot say; so it is a scenario of its own, per line of the fleet, with
one node as its stock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from planner.collectives import links_node, within_node
from planner.documents.scenario import LoadedScenario
from planner.errors import InfeasibleError, SolverError
from planner.fleet import Deployed
from planner.physics import needed
from planner.plan import Alternative, Group, Plan
from planner.program import Problem, Solution, fits_in_stock
from planner.search import COLOCATED, DISAGGREGATED, Search
from planner.specs import ColocatedUse, FleetItem, Objective, Parallelism, Phase, Precision, Scenario, Service

SMALLEST = 2  # GPUs of a prefill and a decode replica


def best_within_node(first: Search, rival: Solution | None) -> tuple[Search, Solution] | None:
    """The best plan within one node, if it is better than another by more than chance.

    Parameters
    ----------
    first : Search
        Of the scenario as it is, capacities not corrected.
    rival : Solution or None
        The best plan that does without; None: there is none.

    Returns
    -------
    (Search, Solution) or None
        None where no line of the fleet has a link to gain from, or no plan over it is better: its value has
        to differ by more than the gap that solutions may have.
    """
    best: tuple[Search, Solution] | None = None
    for loaded in _variants(first, rival):
        options = replace(first.options, explain=False, save_lp=None)
        try:
            search = Search.of(loaded, options)
            if not fits_in_stock(search.problem):
                continue
            search, solution = search.holding()
        except (InfeasibleError, SolverError):
            continue
        worth = rival if best is None else best[1]
        if not solution.interrupted and (worth is None or _better(first.problem, solution, worth)):
            best = search, solution
    return best


def _variants(first: Search, rival: Solution | None) -> Iterator[LoadedScenario]:
    """The scenario within a node of each line where that may be better than `rival`."""
    if len(first.questions) > 1 or not _may_share(first.scenario):
        return
    scenario, question = first.scenario, first.question
    for i, line in enumerate(scenario.fleet):
        item = within_node(line)
        able = first.problem.demand is None or _could_carry(question.service, item)
        if able and links_node(line, question.engine) and _may_win(first.problem, i, line, rival):
            options = replace(scenario.options, colocated=ColocatedUse.FORBIDDEN)
            yield replace(first.loaded, scenario=replace(scenario, fleet=(item,), options=options))


def _may_share(scenario: Scenario) -> bool:
    """Whether one node may serve all of a scenario."""
    options = scenario.options
    one_line = scenario.objective is not Objective.THROUGHPUT or len(scenario.fleet) == 1
    return (
        scenario.scaling is None
        and len({item.zone for item in scenario.fleet}) <= 1
        and options.colocated is not ColocatedUse.ONLY
        and not (options.survive_node or options.survive_zone)
        and one_line
    )


def _could_carry(service: Service, item: FleetItem) -> bool:
    """Whether the peaks of a node's GPUs suffice for the load, all else apart: tells most nodes at once."""
    return any(_share(service, item, precision) <= 1 for precision in service.formats)


def _share(service: Service, item: FleetItem, precision: Precision) -> float:
    """Least share of a node's GPUs that prefill and decode take together. [1]"""
    return sum(
        max(n.compute, n.bandwidth)
        for n in (
            needed(service, _all_of(item, phase, service.workload.request_rate, precision), math.inf)
            for phase in (Phase.PREFILL, Phase.DECODE)
        )
    )


def _all_of(item: FleetItem, phase: Phase, rate: float, precision: Precision) -> Deployed:
    """A group on every GPU of a node."""
    return Deployed(
        phase=phase,
        item=item,
        parallelism=Parallelism(),
        replicas=item.max_gpus or 1,
        rate=rate,
        token_budget=1,
        kv_tokens=1,
        max_num_seqs=1,
        precision=precision,
    )


def _may_win(problem: Problem, index: int, item: FleetItem, rival: Solution | None) -> bool:
    """Whether the least that a plan in one node of a line can cost is below that of another."""
    if problem.demand is None:  # for the most that is carried, only where a node is all there is
        stock = problem.stock(index)
        return stock is not None and stock <= item.node_size
    least = max(problem.gpu_block(index), SMALLEST * problem.min_replicas_per_pool)
    return rival is None or least * problem.weight(index) < rival.value


def _better(problem: Problem, one: Solution, other: Solution) -> bool:
    """Whether a solution beats another by more than either may be from its best."""
    gain = one.value - other.value if problem.demand is None else other.value - one.value
    return gain > problem.gap * abs(other.value)


# --------------------------------------------------------------------------------------------
# Two plans of one scenario


def better(plan: Plan, within: Plan) -> Plan:
    """The better of a scenario's plan and the one within a node, told with the other where it belongs there.

    One that holds in simulation is better than one that does not.
    """
    own = _alternative(within)
    if (not _holds(plan), _loss(plan, plan.value)) > (not _holds(within), _loss(plan, within.value)):
        # It is itself the best of every kind that it is of.
        told = (a if a.name == COLOCATED else replace(own, name=a.name) for a in plan.alternatives)
        return replace(within, alternatives=tuple(told))
    told = (
        replace(own, name=a.name) if a.name == DISAGGREGATED and _beats(plan, own, a) else a
        for a in plan.alternatives
    )
    return replace(plan, alternatives=tuple(told))


def _holds(plan: Plan) -> bool:
    return plan.verification is not None and plan.verification.passed


def _loss(plan: Plan, value: float | None) -> float:
    """What the plan's objective makes small; infinite for what there is not."""
    if value is None:
        return float("inf")
    return -value if plan.objective is Objective.THROUGHPUT else value


def _beats(plan: Plan, own: Alternative, other: Alternative) -> bool:
    return own.verified is not False and _loss(plan, own.value) < _loss(plan, other.value)


def _alternative(plan: Plan) -> Alternative:
    groups = ", ".join(_in_words(group) for group in plan.groups)
    return Alternative(
        name="",
        value=plan.value,
        cost=plan.cost,
        summary=f"{groups}, within one node",
        verified=None if plan.verification is None else plan.verification.passed,
    )


def _in_words(group: Group) -> str:
    return f"{group.replicas} x {group.gpu} {group.parallelism} {group.phase}"
