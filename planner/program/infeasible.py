"""Infeasible is an answer: what binds, by how much, and which change would help.

Two questions are asked of the requirements that a user can give way on (:class:`Family`).

- Which of them contradict one another? A deletion filter leaves one family out at a time; what must stay
  for the contradiction to stay is a minimal set.
- By how much? An elastic program gives every row of a family a slack and makes the sum of slacks
  small, all else being hard; and the largest rate that can be served says the same for the demand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from planner.errors import InfeasibleError
from planner.program.backends import LpStatus, solve_lp
from planner.program.encoding import encode
from planner.program.heuristic import simple_plan
from planner.program.limits import tighten, with_limits
from planner.program.problem import POOLS_OF_MODE, Family, Problem
from planner.program.rows import Column, LinearProgram, Row
from planner.program.search import Outcome, search
from planner.specs import ColocatedUse, Objective

STEP_LIMIT = 3.0
"""Time for each program of a diagnosis. [s]"""
STEP_GAP = 0.02
"""Relative gap of a shortfall: exact below 50 GPUs. [1]"""
MANY = 10**6
"""More replicas or GPUs than any plan has."""

_FILTER_ORDER = (  # those that explain best are tried last, because the last ones stay
    Family.REPLICAS,
    Family.WHOLE_NODES,
    Family.SURGE,
    Family.SPARE,
    Family.SURVIVAL,
    Family.SPOT,
    Family.MINIMUM,
    Family.COLOCATED,
    Family.PAIRS,
    Family.GPU_TYPES,
    Family.POOL_CAPS,
    Family.POWER,
    Family.ZONES,
    Family.BUDGET,
    Family.STOCK,
)
_ELASTIC = (Family.STOCK, Family.BUDGET, Family.POOL_CAPS, Family.ZONES, Family.POWER)
_CONTINUOUS = (Family.BUDGET, Family.POWER)


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """Why there is no plan.

    Attributes
    ----------
    binding : str
        The requirements that contradict one another, or what is missing.
    shortfall : str
        By how much the first of them that has a number falls short; empty if none has.
    families : tuple of Family
        A minimal contradicting set; empty if no family is to blame.
    max_rate : float
        Largest rate, up to the demand, found to be servable with all else as asked. [req/s]
    suggestions : tuple of str
        Changes each of which alone makes a plan possible.
    """

    binding: str
    shortfall: str = ""
    families: tuple[Family, ...] = ()
    max_rate: float = 0.0
    suggestions: tuple[str, ...] = ()

    def error(self) -> InfeasibleError:
        """The exception that says all this."""
        return InfeasibleError(self.binding, self.shortfall, self.suggestions)


def diagnose(problem: Problem, *, solver: str = "highs", briefly: bool = False) -> Diagnosis:
    """Why `problem`, known to be infeasible, has no plan; `briefly`: what binds, and no numbers."""
    question = _feasibility(problem)
    missing = _missing_pools(question)
    if missing:
        return Diagnosis(binding=f"no replica that fits and meets the objectives can do {missing}")
    if not _is_feasible(relax_all(question, tuple(Family)), solver):
        return Diagnosis(binding="no number of the replicas at hand carries the load")
    conflicts = _conflicts(question, solver)
    if not conflicts:
        return Diagnosis(binding="the requirements together")
    binding = "; and apart from that ".join(_joined(conflict) for conflict in conflicts)
    if briefly:
        return Diagnosis(binding=binding, families=conflicts[0])
    rest = tuple(family for conflict in conflicts[1:] for family in conflict)
    shortfalls = _shortfalls(relax_all(question, rest), solver)
    rate = _largest_rate(question, solver) if problem.demand is not None else 0.0
    amounts = [shortfalls[family] for family in conflicts[0] if family in shortfalls]
    suggestions = () if rest else _changes(question, conflicts[0], shortfalls, solver)
    if problem.demand is not None and 0 < rate < problem.demand:
        suggestions += (f"serve at most {_floored(rate)} req/s",)
    return Diagnosis(
        binding=binding,
        shortfall=amounts[0] if amounts else _rate_text(rate, problem.demand),
        families=conflicts[0],
        max_rate=rate,
        suggestions=suggestions,
    )


def relax(problem: Problem, family: Family) -> Problem:
    """`problem` without one family of requirements."""
    match family:
        case Family.STOCK:
            return replace(problem, gpu_types=tuple(replace(k, max_gpus=None) for k in problem.gpu_types))
        case Family.POOL_CAPS:
            kinds = tuple(replace(k, max_gpus_by_phase={}) for k in problem.gpu_types)
            return replace(problem, gpu_types=kinds)
        case Family.BUDGET:
            return replace(problem, budget=None)
        case Family.PAIRS:
            return replace(problem, illegal_pairs=frozenset())
        case Family.MINIMUM:
            return replace(problem, min_replicas_per_pool=1)
        case Family.SPARE:
            return replace(problem, spare_replicas=0)
        case Family.WHOLE_NODES:
            return replace(problem, whole_nodes=False)
        case Family.GPU_TYPES:
            return replace(problem, max_gpu_types=None)
        case Family.COLOCATED:
            return replace(problem, colocated=ColocatedUse.ALLOWED)
        case Family.SURVIVAL:
            return replace(problem, survive_node=False, survive_zone=False)
        case Family.SPOT:
            return replace(problem, on_demand_floor=0.0)
        case Family.SURGE:
            return replace(problem, surge_replicas=0)
        case Family.ZONES:
            return replace(problem, zone_caps={})
        case Family.POWER:
            return replace(problem, power_cap=None)
        case Family.REPLICAS:
            return with_limits(problem, [MANY if c.max_replicas else 0 for c in problem.candidates])


def relax_all(problem: Problem, families: tuple[Family, ...]) -> Problem:
    """`problem` without any of `families`."""
    for family in families:
        problem = relax(problem, family)
    return problem


def _feasibility(problem: Problem) -> Problem:
    """The question whether there is any plan: fewest GPUs, no price needed, and the first plan will do.

    For throughput: any plan that carries something.
    """
    demand = problem.demand
    if demand is None:
        largest = max(
            (problem.usable(i, c.max_replicas) for i, c in enumerate(problem.candidates)), default=0
        )
        demand = 1e-3 * largest or 1.0
    return replace(problem, objective=Objective.GPUS, demand=demand, gap=0.5, moves=())


def _missing_pools(problem: Problem) -> str:
    """Pools without a candidate, if that leaves no front door; else empty."""
    for s, stream in enumerate(problem.streams):
        present = {c.phase for c in problem.candidates if c.max_replicas > 0 and c.stream == s}
        missing = [[p for p in POOLS_OF_MODE[mode] if p not in present] for mode in problem.modes]
        if all(missing):
            of = f" of {stream.name}" if stream.name else ""
            return ", nor ".join(" and ".join(phases) for phases in missing) + of
    return ""


def _searched(problem: Problem, solver: str) -> Outcome:
    outcome = search(problem, solver=solver, time_limit=STEP_LIMIT)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome


def _is_feasible(problem: Problem, solver: str) -> bool:
    """Whether a plan is known; a search without an answer in time counts as one: nothing is blamed on it."""
    if simple_plan(tighten(problem)) is not None:
        return True
    outcome = _searched(problem, solver)
    return outcome.fleet is not None or outcome.stopped


def _conflicts(problem: Problem, solver: str) -> list[tuple[Family, ...]]:
    """Minimal contradicting sets that share no family; relaxing one family of each is needed."""
    conflicts: list[tuple[Family, ...]] = []
    while True:
        conflict = _contradicting(problem, solver)
        if not conflict:  # only if a search ran out of time
            return conflicts
        conflicts.append(conflict)
        problem = relax_all(problem, conflict)
        if _is_feasible(problem, solver):
            return conflicts


def _contradicting(problem: Problem, solver: str) -> tuple[Family, ...]:
    """A minimal set of families that together leave no plan, the most telling first."""
    kept = []
    for family in _FILTER_ORDER:
        without = relax(problem, family)
        if without == problem:
            continue
        if _is_feasible(without, solver):
            kept.append(family)
        else:
            problem = without
    return tuple(reversed(kept))


def _shortfalls(problem: Problem, solver: str) -> dict[Family, str]:
    """How far each family with a number must give way, where that alone helps."""
    texts = {family: _shortfall(problem, family, solver) for family in _ELASTIC}
    return {family: text for family, text in texts.items() if text}


def _shortfall(problem: Problem, family: Family, solver: str) -> str:
    """Least amount by which a family must give way, in words; empty if that alone does not help."""
    if family is Family.STOCK:  # a group's own limit is often no more than its stock
        problem = relax(problem, Family.REPLICAS)
    limits = [c.max_replicas for c in tighten(relax(problem, family)).candidates]
    lp, slacks = with_slack(encode(with_limits(problem, limits)).lp, family)
    if not slacks:
        return ""
    result = solve_lp(lp, solver=solver, time_limit=STEP_LIMIT, gap=STEP_GAP)
    if result.interrupted:
        raise KeyboardInterrupt
    if result.values is None:
        return ""
    missing = {name: result.values[column] for name, column in slacks.items() if result.values[column] > 1e-6}
    about = "" if result.status is LpStatus.OPTIMAL else " or fewer"
    total = sum(missing.values())
    if family is Family.BUDGET:
        return f"{math.ceil(total * 100 - 1e-6) / 100:.2f} USD/h of budget{about}"
    if family is Family.POWER:
        return f"{math.ceil(total - 1e-6):,} W of power{about}"
    caps = {Family.POOL_CAPS: " of pool caps", Family.ZONES: " of zone caps"}
    what = f"GPU{'s' if round(total) > 1 else ''}" + caps.get(family, "")
    each = ", ".join(f"{round(amount)} {subject}" for subject, amount in missing.items())
    return f"{round(total)} {what} ({each}){about}"


def with_slack(lp: LinearProgram, family: Family) -> tuple[LinearProgram, dict[str, int]]:
    """The elastic program of one family: its rows may give way, and the sum by which they do is minimised.

    Returns the program and the column of each slack by what its row is about.
    """
    columns = [replace(column, objective=0.0) for column in lp.columns]
    rows: list[Row] = []
    slacks: dict[str, int] = {}
    for row in lp.rows:
        if row.family is family:
            slacks[row.subject] = len(columns)
            whole = family not in _CONTINUOUS
            columns.append(
                Column(name=f"slack[{row.name}]", lower=0, upper=MANY, integer=whole, objective=1.0)
            )
            row = replace(row, terms=(*row.terms, (slacks[row.subject], -1.0)))
        rows.append(row)
    return LinearProgram(name=lp.name, columns=tuple(columns), rows=tuple(rows)), slacks


def _largest_rate(problem: Problem, solver: str) -> float:
    """Largest rate, up to the demand, with all else as asked. [req/s]"""
    assert problem.demand is not None
    limits = [c.max_replicas for c in tighten(problem).candidates]
    capped = with_limits(problem, limits)
    if problem.across_zones:  # what leaves a zone is priced by the request
        return 0.0
    outcome = _searched(replace(capped, objective=Objective.THROUGHPUT, demand=None, gap=1e-3), solver)
    return 0.0 if outcome.fleet is None else min(outcome.fleet.carried, problem.demand)


def _rate_text(rate: float, demand: float | None) -> str:
    """The demand's own shortfall."""
    if demand is None or rate <= 0:
        return ""
    return f"{demand - rate:.3g} req/s (at most {_floored(rate)} of {demand:g} can be served)"


def _floored(rate: float) -> str:
    """`rate` to three digits, never rounded up: a suggestion must hold."""
    if rate <= 0:
        return "0"
    unit = 10.0 ** (math.floor(math.log10(rate)) - 2)
    return f"{math.floor(rate / unit + 1e-9) * unit:.6g}"


def _changes(
    problem: Problem, families: tuple[Family, ...], shortfalls: dict[Family, str], solver: str
) -> tuple[str, ...]:
    """Single changes that make a plan possible."""
    changes = [f"add {text}" for text in shortfalls.values()]
    for family in families:
        if family not in _ELASTIC and _is_feasible(relax(problem, family), solver):
            changes.append(f"give way on {family}")
    return tuple(changes)


def _joined(families: tuple[Family, ...]) -> str:
    """Families in words: "a", "a with b", "a with b and c"."""
    first, *others = families
    if not others:
        return str(first)
    return f"{first} with " + ", ".join(others[:-1]) + (" and " if others[:-1] else "") + others[-1]
