"""A grid of what-if solves: the plan at every combination of values of some keys of a scenario."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner import __version__
from planner.assembly import INTERRUPTED
from planner.documents.scenario import LoadedScenario
from planner.documents.tree import Tree
from planner.documents.yaml_text import parse_tree
from planner.errors import InfeasibleError, PlannerError, SolverError, SpecError, StoppedError
from planner.plan import Plan
from planner.results import Result
from planner.search import COLOCATED, DEFAULT_GAP, SolveOptions
from planner.specs import ColocatedUse, Metric, Phase
from planner.units import MILLI
from planner.whatif.asked import Source, text_of
from planner.whatif.grid import Grid, grid_of, read_point, value_key
from planner.whatif.journal import Journal, Row
from planner.whatif.words import placed
from planner.whatif.workers import Workers, unordered
from planner.workflow import solve

COLUMNS = (
    "status", "reason", "cost_per_hour", "value", "gap", "gpus", "fleet", "disaggregated", "verified",
    "colocated_cost_per_hour",
)  # fmt: skip
"""Of a table, after those of the keys and before those of latencies."""
OPTIMAL, FEASIBLE, INFEASIBLE, FAILED, INVALID = "optimal", "feasible", "infeasible", "failed", "invalid"
STATUSES = (OPTIMAL, FEASIBLE, INFEASIBLE, FAILED, INVALID)
_MOST_TOGETHER = 25  # points that one worker gets at a time
_ROUNDS = 8  # times that each worker gets some, so that all end together
_CLUSTER = 32  # workers of a cluster for which there is work enough, or more
_DIGITS = 10  # of a number in the table
_PHASES = (Phase.PREFILL, Phase.DECODE, Phase.COLOCATED)
_LATENCY = "_ms"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepOptions:
    """How every point is solved.

    Attributes
    ----------
    time_limit : float or None
        Of one program. [s]
    verify : bool
        Whether plans are simulated, and capacities that prove wrong are corrected.
    seed : int
        Of the simulated requests.
    """

    solver: str = "highs"
    gap: float = DEFAULT_GAP
    time_limit: float | None = 60.0
    verify: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep(Result):
    """What came of every point.

    Attributes
    ----------
    name : str
        Of the scenario.
    keys : tuple of str
        What is varied; the last changes fastest.
    points : tuple of dict
        The rows of the table, in the order of the grid.
    """

    name: str
    keys: tuple[str, ...]
    points: tuple[Row, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the table: keys, results, and latencies that have an SLO somewhere."""
        known = {*self.keys, *COLUMNS}
        latencies = dict.fromkeys(column for row in self.points for column in row if column not in known)
        return (*self.keys, *COLUMNS, *sorted(latencies, key=lambda name: (Metric.TPOT in name, name)))

    @property
    def counts(self) -> dict[str, int]:
        """Points by status."""
        found = [row["status"] for row in self.points]
        return {status: found.count(status) for status in STATUSES if status in found}

    def rows(self) -> tuple[Row, ...]:
        """The points as flat rows with all columns."""
        return tuple({column: row.get(column) for column in self.columns} for row in self.points)


def sweep(
    source: Source,
    vary: Mapping[str, Any],
    *,
    options: SweepOptions | None = None,
    workers: Workers | None = None,
    journal: Path | None = None,
    fresh: bool = False,
    on_start: Callable[[int, int], None] = lambda _known, _points: None,
    on_point: Callable[[], None] = lambda: None,
) -> Sweep:
    """Solve a scenario at every combination of values of some of its keys.

    Parameters
    ----------
    source : path, Scenario, LoadedScenario or Plan
        The scenario, as its file says it.
    vary : mapping
        Values by key: ``{"slo.tpot_ms.p99": [20, 30], "fleet.h100-sxm.max_gpus": "8:64:x2"}``. None leaves
        the key out.
    workers : Workers, optional
        Default: the cores of this machine.
    journal : Path, optional
        Where results are noted as they come, and read from where there are some. It stays.
    fresh : bool
        Whether what it has is dropped.
    on_start, on_point : callable
        Told how many points are known already, and of how many; and when one more is.

    Returns
    -------
    Sweep
        Points without a plan say why; no point ends the sweep.

    Raises
    ------
    SpecError
        A key or value that is none, or a journal of something else.
    StoppedError
        After an interrupt, where a journal keeps what was found.
    KeyboardInterrupt
        After an interrupt, where none does.
    """
    options, workers = options or SweepOptions(), workers or Workers()
    text, name, folder = text_of(source)
    base = _base(text, name, folder)
    grid = grid_of(base, vary)
    if taken := [key for key in grid.keys if key in COLUMNS]:
        raise SpecError(f"{taken[0]} is a column of the table (vary what lies in it, or {taken[0]}[0])")
    points = grid.points()
    keys = [point_key(values) for values in points]
    if journal is None:
        rows: dict[str, Row] = {}
        on_start(0, len(points))
        for point, row in _results(_Task(text, name, folder, grid, options), grid, rows, workers):
            rows[point] = row
            on_point()
    else:
        head = _head(base, grid, options)
        with Journal.opened(journal, head, fresh=fresh) as noted:
            rows = noted.rows
            on_start(sum(key in rows for key in keys), len(points))
            try:
                for point, row in _results(_Task(text, name, folder, grid, options), grid, rows, workers):
                    noted.add(point, row)
                    on_point()
            except KeyboardInterrupt:
                raise _interrupted(noted, len(points)) from None
    found = (
        {**dict(zip(grid.keys, map(_cell, values), strict=True)), **rows[key]}
        for key, values in zip(keys, points, strict=True)
    )
    return Sweep(name=name, keys=grid.keys, points=tuple(found))


def with_values(source: Source, values: Mapping[str, Any]) -> LoadedScenario:
    """A scenario with other values of some of its keys, as one point of a sweep has them.

    Raises
    ------
    SpecError
        A key or value that is none.
    """
    base = _base(*text_of(source))
    grid = grid_of(base, {key: [value] for key, value in values.items()})
    return read_point(base, grid, grid.points()[0])


def point_key(values: Sequence[Any]) -> str:
    """A point by the values of its keys."""
    return f"[{', '.join(map(value_key, values))}]"


def _interrupted(journal: Journal, points: int) -> StoppedError:
    return StoppedError(
        f"interrupted after {len(journal.rows):,} of {points:,} points; {journal.path} keeps them, and the "
        "same command goes on from there"
    )


def _head(base: Tree, grid: Grid, options: SweepOptions) -> dict[str, Any]:
    """What a journal is of."""
    document = json.dumps(base.raw, sort_keys=True)
    return {
        "planner": __version__,
        "scenario": hashlib.sha256(document.encode()).hexdigest(),
        "keys and values": [[axis.key, list(axis.values)] for axis in grid.axes],
        "options": asdict(options),
    }


# --------------------------------------------------------------------------------------------
# On the workers


@dataclass(frozen=True, slots=True)
class _Task:
    """Points of a sweep for one worker."""

    text: str
    name: str
    folder: Path | None
    grid: Grid
    options: SweepOptions
    points: tuple[tuple[Any, ...], ...] = ()


def _results(
    task: _Task, grid: Grid, known: Mapping[str, Row], workers: Workers
) -> Iterator[tuple[str, Row]]:
    """Points that are not known yet, with their rows, as they come."""
    points = grid.points()
    left = [points[i] for i in grid.order() if point_key(points[i]) not in known]
    alone = workers.engine == "local" and workers.count(len(left)) == 1
    spread = workers.count(len(left)) if workers.engine == "local" else _CLUSTER
    most = 1 if alone else max(min(_MOST_TOGETHER, len(left) // (spread * _ROUNDS)), 1)
    tasks = [replace(task, points=tuple(left[k : k + most])) for k in range(0, len(left), most)]
    for rows in unordered(solved, tasks, workers):
        yield from rows


def solved(task: _Task) -> list[tuple[str, Row]]:
    """The points of a task with their rows."""
    base = _base(task.text, task.name, task.folder)
    return [(point_key(values), _row(base, task, values)) for values in task.points]


@lru_cache(maxsize=4)
def _base(text: str, name: str, folder: Path | None) -> Tree:
    tree, problems = parse_tree(text, name, folder)
    if problems:
        raise SpecError.of_file(name, problems)
    return tree


def _row(base: Tree, task: _Task, values: Sequence[Any]) -> Row:
    """What comes of one point; nothing but an interrupt stops the sweep."""
    options = task.options
    try:
        loaded = read_point(base, task.grid, values)
    except SpecError as error:
        problems = [str(replace(problem, line=0)) for problem in error.problems]  # values have no line
        return _without_plan(INVALID, "; ".join(problems) or str(error))
    asked = SolveOptions(
        solver=options.solver,
        gap=options.gap,
        time_limit=options.time_limit,
        verify=options.verify,
        seed=options.seed,
        beside=(COLOCATED,),
        briefly=True,
    )
    try:
        plan = solve(loaded, asked)
    except InfeasibleError as error:
        return _without_plan(INFEASIBLE, error.binding)
    except (SolverError, PlannerError) as error:
        return _without_plan(FAILED, str(error))
    except Exception as error:  # of one point: the others go on
        return _without_plan(FAILED, f"internal error: {type(error).__name__}: {error}")
    if INTERRUPTED in plan.notes:
        raise KeyboardInterrupt
    return _plan_row(plan, loaded.scenario.options.colocated)


def _without_plan(status: str, reason: str) -> Row:
    return {"status": status, "reason": (reason.splitlines() or [""])[0]}


def _plan_row(plan: Plan, use: ColocatedUse) -> Row:
    disaggregated = any(g.phase is not Phase.COLOCATED for g in plan.groups)
    beside = next((a.cost for a in plan.alternatives if a.name == COLOCATED), None)
    row: Row = {
        "status": plan.status.value,
        "cost_per_hour": _rounded(plan.cost),
        "value": _rounded(plan.value),
        "gap": _rounded(plan.gap),
        "gpus": plan.num_gpus,
        "fleet": fleet_text(plan),
        "disaggregated": disaggregated,
        "verified": None if plan.verification is None else plan.verification.passed,
        "colocated_cost_per_hour": _rounded(plan.cost if use is ColocatedUse.ONLY else beside),
    }
    several = len(plan.predictions) > 1
    for prediction in plan.predictions:
        for target in prediction.slo:
            latency = getattr(prediction, target.metric.value)
            name = f"{target.metric}_{target.statistic}"
            name = f"{prediction.service} {name}" if several else name
            for form, summary in (("", latency.expected), ("_planned", latency.planned)):
                seconds = getattr(summary, target.statistic.value)
                row[f"{name}{form}{_LATENCY}"] = _rounded(seconds / MILLI)
    return row


def fleet_text(plan: Plan) -> str:
    """A plan's groups by phase, e.g. "prefill 2xh100-sxm TP4; decode 1xh100-sxm TP8 + 3xl40s TP4"."""
    several = len({g.service for g in plan.groups}) > 1
    parts = []
    for service in dict.fromkeys(g.service for g in plan.groups):
        for phase in _PHASES:
            groups = [g for g in plan.pool(phase) if g.service == service]
            if groups:
                listed = (
                    f"{g.replicas}x{placed(g.gpu, g.zone, g.price_class)} {g.parallelism}" for g in groups
                )
                parts.append(f"{f'{service} ' if several else ''}{phase} {' + '.join(listed)}")
    return "; ".join(parts)


def _rounded(value: float | None) -> float | None:
    """A number without the noise of its last digits; None where there is none."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{_DIGITS}g}")


def _cell(value: Any) -> Any:
    """A varied value in a table: lists and mappings as text."""
    return json.dumps(value) if isinstance(value, list | dict) else value
