"""One load test, as any of the tools that are read reports it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from planner.documents.files import file_error
from planner.documents.tree import shorten
from planner.errors import SpecError
from planner.specs import Metric, Statistic


class Arrivals(StrEnum):
    """How the requests of an open-loop test come."""

    POISSON = "poisson"
    CONSTANT = "constant"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadTest:
    """What a tool wrote of one run.

    Attributes
    ----------
    path : Path
        Its file.
    name : str
        The file's name, and which run of it where there are several.
    tool : str
        Who wrote it.
    model : str
        Name under which the model was asked for; empty where the tool does not say.
    concurrency : float or None
        Most requests under way; None: no limit, or none is recorded.
    request_rate : float or None
        Offered; None: as fast as the limit allows, or none is recorded. [req/s]
    load_known : bool
        Whether the file says how requests were sent at all.
    arrivals : Arrivals
        With a request rate.
    completed, failed : int
        Requests.
    throughput : float or None
        Served. [req/s]
    prompt, output : float
        Mean tokens of a request.
    latencies : mapping
        By latency and statistic; what is no number in the file is left out. [s]
    empty : str
        Why it holds no measurement; empty where it does.
    odd : str
        Why it is no evidence of an engine's plain steps, such as a draft; empty for usual runs.
    """

    path: Path
    name: str
    tool: str
    model: str = ""
    concurrency: float | None = None
    request_rate: float | None = None
    load_known: bool = True
    arrivals: Arrivals = Arrivals.POISSON
    completed: int
    failed: int = 0
    throughput: float | None = None
    prompt: float = math.nan
    output: float = math.nan
    latencies: Mapping[tuple[Metric, Statistic], float]
    empty: str = ""
    odd: str = ""

    def mean(self, metric: Metric) -> float:
        """Mean of a latency; nan where it was not measured. [s]"""
        return self.latencies.get((metric, Statistic.MEAN), math.nan)


NO_REQUEST = "no request was completed"


@dataclass(frozen=True, slots=True)
class Fields:
    """Values of one run by name, with errors that say where they stand.

    Attributes
    ----------
    where : str
        Before names of keys: empty, or such as ``line 3: `` and ``benchmarks[2].``.
    """

    path: Path
    data: Mapping[str, Any]
    where: str = ""

    def section(self, *keys: str) -> Fields | None:
        """A mapping within; None where there is none."""
        data: Any = self.data
        for key in keys:
            data = data.get(key) if isinstance(data, Mapping) else None
        if not isinstance(data, Mapping):
            return None
        return Fields(self.path, data, f"{self.where}{'.'.join(keys)}.")

    def text(self, key: str) -> str:
        """A text; empty where there is none."""
        value = self.data.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str) -> float | None:
        """A number >= 0; None where the key is absent, null, or no number (nan).

        Raises
        ------
        SpecError
            It is something else, or below 0.
        """
        value = self.data.get(key)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise self.error(key, f"must be a number >= 0, got {shorten(repr(value))}")
        return float(value)

    def finite(self, key: str) -> float | None:
        """As :meth:`number`; infinity is refused as well."""
        value = self.number(key)
        if value is not None and math.isinf(value):
            raise self.error(key, "must be a finite number")
        return value

    def needed(self, key: str) -> float:
        """As :meth:`finite`; absent is refused as well."""
        value = self.finite(key)
        if value is None:
            raise self.error(key, f"must be a number >= 0, got {self.data.get(key)!r}")
        return value

    def error(self, key: str, rule: str) -> SpecError:
        """Something wrong with a key."""
        return file_error(self.path, f"{self.where}{key} {rule}")
