"""The periods of a scenario: which there are, whether its services agree on them, and how a fleet follows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from planner.documents.scenario_rules import demand_trees, repeated
from planner.documents.scenario_schema import ScenarioDocument
from planner.documents.schedule_schema import PeriodsDocument, RatePeriodDocument, rate_of
from planner.documents.tree import KeyPath, Tree
from planner.errors import Problem
from planner.specs import Period, Scaling
from planner.units import MINUTES_PER_HOUR

_DAY = 24.0  # h
_RATE: KeyPath = ("workload", "request_rate")

Entries = Sequence[float | RatePeriodDocument]


@dataclass(frozen=True, slots=True)
class SharedPeriods:
    """Names and lengths of the periods that all services of a scenario share. [h]"""

    names: tuple[str, ...]
    hours: tuple[float, ...]

    def with_rates(self, rate: float | Entries) -> tuple[Period, ...]:
        """Periods of one service: as its schedule says, or with the same rate in all. [req/s]"""
        rates = [rate] * len(self.hours) if isinstance(rate, int | float) else [rate_of(r) for r in rate]
        return tuple(
            Period(name=name, hours=hours, request_rate=float(r))
            for name, hours, r in zip(self.names, self.hours, rates, strict=True)
        )

    def agrees(self, other: SharedPeriods) -> bool:
        """Whether they are the same, up to rounding."""
        if self.names != other.names:
            return False
        return all(math.isclose(a, b) for a, b in zip(self.hours, other.hours, strict=True))


def periods_of(document: ScenarioDocument) -> SharedPeriods | None:
    """The periods of a scenario in which nothing is wrong; None where all rates are constant."""
    schedules = [entries for _, entries in _schedules(document)]
    if not schedules:
        return None
    own = next((entries for entries in schedules if _has_hours(entries)), None)
    return _shared(document.periods, len(schedules[0])) if own is None else _own(own)


def scaling_of(document: ScenarioDocument) -> Scaling | None:
    """How the fleet follows its traffic; None where there is nothing to follow."""
    if not _schedules(document):
        return None
    periods = document.periods or PeriodsDocument()
    return Scaling(
        startup=periods.startup_minutes / MINUTES_PER_HOUR,
        max_added=periods.max_added_replicas,
        max_removed=periods.max_removed_replicas,
        cyclic=periods.cyclic,
    )


def check_schedule(tree: Tree, document: ScenarioDocument) -> Iterator[Problem]:
    """`periods` has something to describe, and all schedules are of the same periods."""
    schedules = _schedules(document)
    if not schedules:
        if document.periods is not None:
            rule = "there is no schedule of rates"
            hint = "give workload.request_rate as a list, or leave periods out"
            yield tree.problem(("periods",), rule, hint, show_value=False)
        return
    hint = "all services share their periods"
    parts = demand_trees(tree)
    count = len(schedules[0][1])
    own = next(((i, _own(entries)) for i, entries in schedules if _has_hours(entries)), None)
    for i, entries in schedules[1:]:
        if len(entries) != count:
            where = f"line {parts[schedules[0][0]].line(_RATE)}"
            rule = f"has {len(entries)} rates, the schedule on {where} has {count}"
            yield parts[i].problem(_RATE, rule, hint, show_value=False)
        elif own is not None and _has_hours(entries) and not _own(entries).agrees(own[1]):
            rule = f"has other names or hours than the schedule on line {parts[own[0]].line(_RATE)}"
            yield parts[i].problem(_RATE, rule, hint, show_value=False)
    if document.periods is not None:
        yield from _check_periods(tree, document.periods, count, own is not None)


def _check_periods(tree: Tree, periods: PeriodsDocument, count: int, own: bool) -> Iterator[Problem]:
    """Names and hours of `periods` are as many as there are rates, and are not given twice."""
    for key in ("hours", "names"):
        given = getattr(periods, key)
        if given is None:
            continue
        path: KeyPath = ("periods", key)
        if own:
            rule = "is given beside a schedule that has its own"
            yield tree.problem(path, rule, "leave it out", show_value=False)
        elif isinstance(given, list) and len(given) != count:
            rule = f"has {len(given)} entries, the schedule has {count} rates"
            yield tree.problem(path, rule, "give one for each", show_value=False)
    names: list[KeyPath] = [("periods", "names", i) for i in range(len(periods.names or ()))]
    yield from repeated(tree, names, "is the name of another period", "give each its own")


def _schedules(document: ScenarioDocument) -> list[tuple[int, Entries]]:
    """Schedules of rates, with the index of their service."""
    rates = [(i, demand.workload.request_rate) for i, demand in enumerate(document.demands)]
    return [(i, rate) for i, rate in rates if isinstance(rate, list)]


def _has_hours(entries: Entries) -> bool:
    return all(isinstance(entry, RatePeriodDocument) for entry in entries)


def _own(entries: Entries) -> SharedPeriods:
    """Periods as a schedule gives them itself."""
    periods = [entry for entry in entries if isinstance(entry, RatePeriodDocument)]
    hours = tuple(period.hours for period in periods)
    defaults = _starts(hours)
    names = tuple(period.name or name for period, name in zip(periods, defaults, strict=True))
    return SharedPeriods(names, hours)


def _shared(document: PeriodsDocument | None, count: int) -> SharedPeriods:
    """Periods of schedules that are numbers alone."""
    given = None if document is None else document.hours
    total = _DAY if given is None or isinstance(given, list) else given
    hours = tuple(given) if isinstance(given, list) else (total / count,) * count
    names = None if document is None else document.names
    return SharedPeriods(_starts(hours) if names is None else tuple(names), hours)


def _starts(hours: Sequence[float]) -> tuple[str, ...]:
    """When each period begins, as 08:00; numbers where that does not tell them apart."""
    minutes = [round(start * MINUTES_PER_HOUR) for start in accumulate(hours, initial=0.0)][:-1]
    names = tuple(f"{m // 60:02d}:{m % 60:02d}" for m in minutes)
    return names if len(set(names)) == len(names) else tuple(f"period {k + 1}" for k in range(len(hours)))
