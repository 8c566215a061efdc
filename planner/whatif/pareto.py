"""Cost against what is asked: a plan for each of several limits on one latency, or confidences."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from planner.errors import InfeasibleError, SpecError
from planner.results import Result
from planner.specs import Metric, Objective, Scenario, SloTarget, Statistic
from planner.units import MILLI
from planner.whatif import changes
from planner.whatif.asked import Source, asked_of
from planner.whatif.corrections import capacity_factors
from planner.whatif.resolve import Resolved, ResolveOptions, Resolver
from planner.whatif.values import CORRECTED, INTERRUPTED, kept_from_harder
from planner.whatif.words import UNITS

VARIED = ("ttft", "tpot", "confidence")
POINTS, MOST_POINTS = 9, 200
SPAN = 4.0  # times the limit asked for, and that part of it, where no range is given [1]
CONFIDENCES = (0.5, 0.95)  # where no range is given [1]
COLUMNS = ("value", "objective", "unit", "usd_per_hour", "feasible", "proven", "fleet", "reason")
"""Of a table, after the column of what is varied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One limit or confidence, and the plan for it.

    Attributes
    ----------
    x : float
        The limit [s], or the confidence [1].
    factor : float
        Multiple of the limits that the scenario asks for; 1 for a confidence. [1]
    """

    x: float
    factor: float
    result: Resolved


@dataclass(frozen=True, kw_only=True, slots=True)
class Pareto(Result):
    """What a scenario comes to over a range of limits.

    Attributes
    ----------
    varied : str
        "ttft", "tpot" or "confidence".
    statistic : Statistic or None
        Of the limit that `x` shows; other limits on the same latency move in proportion.
    asked : float
        Where the scenario itself lies on `x`.
    points : tuple of Point
        By ascending `x`. The value never gets worse as less is asked: a plan for a harder point is kept for
        an easier one.
    """

    name: str
    objective: Objective
    varied: str
    statistic: Statistic | None
    asked: float
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def unit(self) -> str:
        return UNITS[self.objective]

    @property
    def axis(self) -> str:
        """Name of the column of `x`: "ttft_p99_ms", or "confidence"."""
        return self.varied if self.statistic is None else f"{self.varied}_{self.statistic}_ms"

    def shown(self, x: float) -> float:
        """`x` in the unit of the column: ms, or a share."""
        return x if self.statistic is None else x / MILLI

    def rows(self) -> tuple[dict[str, Any], ...]:
        """The points as flat rows, one column after the other as in :data:`COLUMNS`."""
        return tuple(
            {
                self.axis: float(f"{self.shown(p.x):.9g}"),
                "value": p.result.value,
                "objective": self.objective.value,
                "unit": self.unit,
                "usd_per_hour": p.result.cost,
                "feasible": p.result.feasible,
                "proven": p.result.proven,
                "fleet": p.result.description,
                "reason": p.result.reason,
            }
            for p in self.points
        )


def pareto(
    source: Source,
    vary: str,
    *,
    points: int = POINTS,
    low: float | None = None,
    high: float | None = None,
    options: ResolveOptions | None = None,
    on_point: Callable[[], None] = lambda: None,
) -> Pareto:
    """Solve a scenario at several limits on one latency, or at several confidences.

    Parameters
    ----------
    vary : str
        "ttft", "tpot" or "confidence".
    points : int
        How many, evenly spread; limits are spread by ratio.
    low, high : float, optional
        Of the limit [s] or the confidence [1]; default: a quarter to four times the limit asked for, and
        0.5 to 0.95.
    on_point : callable
        Told after each point.

    Returns
    -------
    Pareto
        After an interrupt, what was found until then; infeasible points say so.

    Raises
    ------
    SpecError
        Something else to vary, a range that is none, or no SLO on that latency.
    InfeasibleError
        If no point has a plan.
    """
    asked = asked_of(source)
    options = options or ResolveOptions()
    resolver = Resolver(asked.loaded, options, capacity_factors(asked.plan))
    scenario = asked.loaded.scenario
    target = _target(scenario, vary)
    centre = scenario.options.confidence if target is None else target.limit
    places = _places(centre, target, points, low, high)
    found: list[Point] = []
    interrupted = False
    # Hardest first: what is infeasible there costs little, and each plan is kept for the next.
    for x in sorted(places, reverse=target is None):
        try:
            options.on_stage(f"{vary} {x:.4g}")
            factor = 1.0 if target is None else x / target.limit
            result = resolver.resolve(_moved(scenario, vary, x, factor))
            found.append(Point(x=x, factor=factor, result=result))
            on_point()
        except KeyboardInterrupt:
            interrupted = True
            break
    if not interrupted and not any(p.result.feasible for p in found):
        resolver.plan()  # says why
        raise InfeasibleError(f"{vary} between {min(places):g} and {max(places):g}")
    return Pareto(
        name=asked.name,
        objective=scenario.objective,
        varied=vary,
        statistic=None if target is None else target.statistic,
        asked=centre,
        points=_monotone(scenario.objective, found),
        notes=_notes(scenario, target, corrected=bool(resolver.factors), interrupted=interrupted),
        interrupted=interrupted,
    )


def _target(scenario: Scenario, vary: str) -> SloTarget | None:
    """The limit that is shown: of several that of the highest percentile; None for the confidence."""
    if vary not in VARIED:
        raise SpecError(f"there is no way to vary {vary!r}: one of {', '.join(VARIED)}")
    if vary == "confidence":
        return None
    metric = Metric(vary)
    targets = [t for service in scenario.services for t in service.slo.of(metric)]
    if not targets:
        raise SpecError(f"the scenario has no {metric.upper()} SLO to vary")
    return max(targets, key=lambda t: t.statistic.probability or 0.0)


def _places(
    centre: float, target: SloTarget | None, points: int, low: float | None, high: float | None
) -> list[float]:
    """Where to solve: evenly spread confidences, limits spread by ratio."""
    if not 1 <= points <= MOST_POINTS:
        raise SpecError(f"points must be 1 to {MOST_POINTS}, got {points}")
    if target is None:
        low, high = CONFIDENCES[0] if low is None else low, CONFIDENCES[1] if high is None else high
        if not 0 < low <= high < 1:
            raise SpecError(f"confidences must ascend between 0 and 1, got {low:g} to {high:g}")
    else:
        low, high = centre / SPAN if low is None else low, centre * SPAN if high is None else high
        if not 0 < low <= high < math.inf:
            raise SpecError(f"limits must be > 0 and ascend, got {low / MILLI:g} to {high / MILLI:g} ms")
    if points == 1 or low == high:
        return [centre if low < centre < high else low]
    shares = [i / (points - 1) for i in range(points)]
    if target is None:
        return [low + share * (high - low) for share in shares]
    return [low * (high / low) ** share for share in shares]


def _moved(scenario: Scenario, vary: str, x: float, factor: float) -> Scenario:
    if vary == "confidence":
        return changes.with_confidence(scenario, x)
    return changes.looser(scenario, Metric(vary), factor)


def _monotone(objective: Objective, found: list[Point]) -> tuple[Point, ...]:
    """By ascending x what was found hardest first, with the plan of a harder point where that is better."""
    results = kept_from_harder(objective, [p.result for p in reversed(found)])[::-1]
    kept = (replace(p, result=r) for p, r in zip(found, results, strict=True))
    return tuple(sorted(kept, key=lambda p: p.x))


def _notes(
    scenario: Scenario, target: SloTarget | None, *, corrected: bool, interrupted: bool
) -> tuple[str, ...]:
    how = f"by prediction, {CORRECTED}" if corrected else "by prediction alone"
    notes = [f"found {how}: none of these plans was simulated"]
    if target is not None:
        same = [t for s in scenario.services for t in s.slo.of(target.metric)]
        if len(same) > 1:
            notes.append(f"the other {target.metric.upper()} limits move in proportion")
    if interrupted:
        notes.append(INTERRUPTED)
    return tuple(notes)
