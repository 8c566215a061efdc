"""The schema of rates that change over time, and the rules of one schedule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag

from planner.documents.scenario_rules import is_number, repeated
from planner.documents.schema_base import DocumentModel, Text, kind_of, refused
from planner.documents.supply_schema import MAX_GPUS
from planner.documents.tree import Tree
from planner.errors import Problem
from planner.specs import Objective

MAX_PERIODS = 168  # hours of a week
MAX_HOURS = 8784  # of a leap year
LEAST_RATE = 1e-6
_RATE_KEY = ("workload", "request_rate")
RATE_TEXT = (
    "Arrivals: a number; or a schedule, which is a list of numbers for equal parts of a day, or of "
    "{name, hours, request_rate}. May be left out with a trace or a preset (its own rate), and where the "
    "largest rate is looked for: objective throughput, and fleet files. [req/s]"
)

Rate = Annotated[float, Field(ge=LEAST_RATE, le=1e9)]
ScheduledRate = Annotated[float, Field(ge=0, le=1e9)]
Hours = Annotated[float, Field(gt=0, le=MAX_HOURS)]


class RatePeriodDocument(DocumentModel):
    """A stretch of time with its own rate."""

    synonyms: ClassVar = {"rate": "request_rate", "qps": "request_rate", "rps": "request_rate"}

    name: Text | None = Field(default=None, description="Its name; default: when it begins.")
    hours: Hours = Field(description="How long it lasts. [h]")
    request_rate: ScheduledRate = Field(description="Arrivals meanwhile. [req/s]")


def _rate_kind(value: Any) -> str:
    return "(list)" if isinstance(value, list) else "(short)"


Schedule = Annotated[
    list[
        Annotated[
            Annotated[ScheduledRate, Tag("(short)")] | Annotated[RatePeriodDocument, Tag("(mapping)")],
            Discriminator(kind_of),
        ]
    ],
    Field(min_length=2, max_length=MAX_PERIODS),
]
RequestRate = Annotated[
    Annotated[Rate, Tag("(short)")] | Annotated[Schedule, Tag("(list)")],
    Discriminator(_rate_kind),
    refused((dict,), "must be a number, or a list of rates", "e.g. [{hours: 8, request_rate: 20}, ...]"),
]


class PeriodsDocument(DocumentModel):
    """How a fleet follows a schedule of rates, and what the numbers of a schedule stand for."""

    synonyms: ClassVar = {
        "startup": "startup_minutes",
        "max_added": "max_added_replicas",
        "max_removed": "max_removed_replicas",
    }

    hours: (
        Annotated[
            Annotated[Hours, Tag("(short)")]
            | Annotated[Annotated[list[Hours], Field(min_length=2, max_length=MAX_PERIODS)], Tag("(list)")],
            Discriminator(_rate_kind),
        ]
        | None
    ) = Field(
        default=None,
        description="Length of each period, or of all together, which are then equally long; default: 24 "
        "together. Not beside schedules that give their own. [h]",
    )
    names: Annotated[list[Text], Field(min_length=2, max_length=MAX_PERIODS)] | None = Field(
        default=None, description="Of the periods; default: when each begins, as 08:00."
    )
    startup_minutes: Annotated[float, Field(ge=0, le=10_000)] = Field(
        default=0.0, description="Time that a new replica is paid for before it serves. [min]"
    )
    max_added_replicas: Annotated[int, Field(ge=0, le=MAX_GPUS)] | None = Field(
        default=None, description="Most replicas of a pool that start between two periods; default: any."
    )
    max_removed_replicas: Annotated[int, Field(ge=0, le=MAX_GPUS)] | None = Field(
        default=None, description="Most replicas of a pool that stop between two periods; default: any."
    )
    cyclic: bool = Field(default=True, description="Whether the last period is followed by the first.")


def rate_of(entry: float | RatePeriodDocument) -> float:
    """Of one entry of a schedule. [req/s]"""
    return entry.request_rate if isinstance(entry, RatePeriodDocument) else entry


def check_rates(demand: Tree) -> Iterator[Problem]:
    """A schedule is all numbers or all periods, has traffic at some time, and leaves nothing to maximise."""
    entries = demand.entries(*_RATE_KEY)
    if not entries:
        return
    if demand.whole.get("objective") == Objective.THROUGHPUT:
        rule = "is a schedule, and objective throughput looks for one rate"
        yield demand.problem(_RATE_KEY, rule, "give one rate", show_value=False)
    mappings = sum(isinstance(entry, dict) for entry in entries)
    if 0 < mappings < len(entries):
        rule = "mixes numbers and periods with hours of their own"
        yield demand.problem(_RATE_KEY, rule, "write all as {hours, request_rate}", show_value=False)
    rates: list[Any] = [entry.get("request_rate") if isinstance(entry, dict) else entry for entry in entries]
    if all(is_number(rate) and 0 <= rate < LEAST_RATE for rate in rates):
        yield demand.problem(_RATE_KEY, f"needs a rate of {LEAST_RATE:g} or more", show_value=False)
    names = [(*_RATE_KEY, i, "name") for i in range(len(entries))]
    yield from repeated(demand, names, "is the name of another period", "give each its own, or none")
