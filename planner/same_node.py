"""Prefill and decode within one node: the same scenario with KV caches on the link between its GPUs.

A disaggregated plan that fits one node need not send KV caches over NICs. Whether it may depends on all of
its groups, which the program's pairs cannot say; so it is a scenario of its own, per line of the fleet, with
one node as its stock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.collectives import links_node, within_node
from planner.documents.scenario import LoadedScenario
from planner.errors import InfeasibleError, SolverError
from planner.plan import Alternative, Group, Plan
from planner.program import Problem, Solution
from planner.search import COLOCATED, Search
from planner.specs import ColocatedUse, FleetItem, Objective, Scenario

MOST_NODES = 2  # worth of GPUs of a plan that one node may take the place of
SMALLEST = 2  # GPUs of a prefill and a decode replica


def best_within_node(first: Search, found: Solution | None) -> tuple[Search, Solution] | None:
    """The best plan within one node, if it is better than `found` by more than chance.

    Parameters
    ----------
    first : Search
        Of the scenario as it is, not solved by corrected capacities.
    found : Solution or None
        What it came to; None: there is no plan.

    Returns
    -------
    (Search, Solution) or None
        None where no line of the fleet has a link to gain from, or no plan over it is better: its value has
        to differ by more than the gap that solutions may have.
    """
    best: tuple[Search, Solution] | None = None
    for loaded in _variants(first, found):
        options = replace(first.options, explain=False, save_lp=None)
        try:
            search, solution = Search.of(loaded, options).holding()
        except (InfeasibleError, SolverError):
            continue
        worth = found if best is None else best[1]
        if not solution.interrupted and (worth is None or _better(first.problem, solution, worth)):
            best = search, solution
    return best


def _variants(first: Search, found: Solution | None) -> Iterator[LoadedScenario]:
    """The scenario within a node of each line where that may be better than `found`."""
    scenario = first.scenario
    if not _may_share(scenario):
        return
    engine = first.question.engine
    for i, item in enumerate(scenario.fleet):
        if links_node(item, engine) and _may_win(first.problem, i, item, found):
            options = replace(scenario.options, colocated=ColocatedUse.FORBIDDEN)
            within = replace(scenario, fleet=(within_node(item),), options=options)
            yield replace(first.loaded, scenario=within)


def _may_share(scenario: Scenario) -> bool:
    """Whether one node may serve all of a scenario."""
    options = scenario.options
    small = scenario.objective is not Objective.THROUGHPUT or len(scenario.fleet) == 1
    return (
        len(scenario.services) == 1
        and scenario.scaling is None
        and len({item.zone for item in scenario.fleet}) <= 1
        and options.colocated is not ColocatedUse.ONLY
        and not (options.survive_node or options.survive_zone or options.length_split)
        and small
    )


def _may_win(problem: Problem, index: int, item: FleetItem, found: Solution | None) -> bool:
    """Whether the least that a plan in one node of a line can cost is below what was found."""
    if problem.demand is None:
        stock = problem.stock(index)
        return stock is not None and stock <= item.node_size
    if found is None:
        return True
    least = max(problem.gpu_block(index), SMALLEST * problem.min_replicas_per_pool)
    used = sum(found.gpus_used)
    return used <= MOST_NODES * item.node_size and least * problem.weight(index) < found.value


def _better(problem: Problem, one: Solution, other: Solution) -> bool:
    """Whether a solution beats another by more than either may be from its best."""
    least = problem.gap * abs(other.value)
    gain = one.value - other.value if problem.demand is None else other.value - one.value
    return gain > least


def better(plan: Plan, within: Plan) -> Plan:
    """The plan within a node beside the alternatives of the other, or the other where it turns out better.

    One that holds in simulation is better than one that does not.
    """
    sign = -1.0 if plan.objective is Objective.THROUGHPUT else 1.0
    ranks = [(not _holds(p), sign * p.value) for p in (plan, within)]
    return plan if ranks[0] <= ranks[1] else _beside(within, plan.alternatives)


def _holds(plan: Plan) -> bool:
    return plan.verification is not None and plan.verification.passed


def _beside(plan: Plan, others: Sequence[Alternative]) -> Plan:
    """`plan` with what it was compared with: it is itself the best of every kind that it belongs to."""
    own = Alternative(
        name="",
        value=plan.value,
        cost=plan.cost,
        summary=", ".join(_in_words(g) for g in plan.groups),
        verified=None if plan.verification is None else plan.verification.passed,
    )
    alternatives = tuple(a if a.name == COLOCATED else replace(own, name=a.name) for a in others)
    return replace(plan, alternatives=alternatives)


def _in_words(group: Group) -> str:
    return f"{group.replicas} x {group.gpu} {group.parallelism} {group.phase}"
