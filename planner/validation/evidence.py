"""Load tests and measured rows as evidence of an engine's constants; what is none, with the reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import FloatArray
from planner.documents.load_tests import Arrivals, LoadTest
from planner.documents.measured_file import MeasuredRow
from planner.errors import SpecError
from planner.physics import decode_work, least_time
from planner.roofline import EFFICIENCY_LIMIT
from planner.specs import GPU, ClassKey, Engine, Metric, Model, Parallelism, Precision
from planner.validation.classes import class_of, is_wave
from planner.validation.points import REPEAT, Case, slots_of
from planner.validation.resolve import ENGINE_ALIASES, Target, Unpredicted, known_model

FEWEST_ROUNDS = 2.0
"""Requests per client below which a closed loop is little more than its first wave."""
MOST_FAILED = 0.05
"""Share of failed requests beyond which a run says little of the others. [1]"""
_USUAL_ROUNDS = 10.0  # requests per client of the benchmarks that the first wave's constant comes from
_KEPT_UP = 0.95  # share of the offered rate that an unsaturated fleet serves [1]
_LIMITED = 0.9  # share of the limit from which a run with a rate and a limit is a closed loop [1]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What load tests ran on, which their files do not say.

    `pools`: one layout with its number of replicas, or those of prefill and decode.
    """

    model: Model
    gpu: GPU
    engine: Engine
    precision: Precision
    pools: tuple[tuple[int, Parallelism], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One measured load.

    Attributes
    ----------
    id : str
        File and run, or the id of a row.
    slots : float
        Sequences that KV caches hold.
    key : ClassKey
        Engine, version, and where the row comes from.
    load : tuple
        What rows share that are of one configuration and load: they are held out together.
    ttft, tpot : float
        nan where not measured. [s]
    start, queue : float
        Weights of a first wave, and of waits of a stream at random times. [1]
    wave : bool
        Whether there is nothing but a first wave.
    """

    id: str
    case: Case
    slots: float
    key: ClassKey
    load: tuple[str, ...]
    ttft: float
    tpot: float
    start: float = 1.0
    queue: float = 0.0
    wave: bool = False


@dataclass(frozen=True, slots=True)
class Gathered:
    """Evidence, and runs that are none with the reasons."""

    evidence: tuple[Evidence, ...]
    skipped: tuple[tuple[str, str], ...]

    def require_some(self) -> None:
        """Refuse runs of which none is evidence.

        Raises
        ------
        SpecError
            With the reasons.
        """
        if not self.evidence:
            counted = "; ".join(f"{count} x {reason}" for reason, count in self.reasons.items())
            raise SpecError(f"none of the {len(self.skipped):,} rows can be used: {counted}")

    @property
    def reasons(self) -> dict[str, int]:
        """Skipped runs by reason."""
        return dict(Counter(reason for _, reason in self.skipped).most_common())


class _Unused(Exception):
    """Why a run is no evidence."""


def gathered(tests: Sequence[LoadTest], setup: Setup | None, rows: Sequence[MeasuredRow]) -> Gathered:
    """Load tests of one setup, and rows that say themselves what they are of.

    Raises
    ------
    SpecError
        A load test of another model than the setup's.
    """
    evidence: list[Evidence] = []
    skipped: list[tuple[str, str]] = []
    seen: set[tuple[object, ...]] = set()
    items: list[tuple[str, LoadTest | MeasuredRow]] = [(test.name, test) for test in tests]
    items += [(row.id, row) for row in rows]
    for name, item in items:
        try:
            if isinstance(item, MeasuredRow):
                found = _of_row(item)
            else:
                assert setup is not None
                found = _of_test(item, setup)
            identity = (found.key, found.load, found.ttft, found.tpot)
            if identity in seen:
                raise _Unused(REPEAT)
            seen.add(identity)
            evidence.append(found)
        except (_Unused, Unpredicted) as reason:
            skipped.append((name, str(reason)))
    return Gathered(tuple(evidence), tuple(skipped))


def engine_name(row: MeasuredRow) -> str:
    """Name of a row's engine."""
    return ENGINE_ALIASES.get(row.engine, row.engine)


# --------------------------------------------------------------------------------------------
# Rows and load tests


def _of_row(row: MeasuredRow) -> Evidence:
    case = Case.of(row)
    if math.isnan(row.tpot):
        raise _Unused(NO_TPOT)
    slots = slots_of(case)
    _check_possible(case, row.tpot)
    return Evidence(
        id=row.id,
        case=case,
        slots=slots,
        key=class_of(row),
        load=_load(case, f"{case.target.clients:g}", row.version),
        ttft=row.ttft,
        tpot=row.tpot,
        wave=is_wave(row),
    )


TOO_FAST = (
    "tokens come faster than the GPUs can read what a token needs: check precision, layout and units (or it "
    "was measured with a draft model)"
)


def _check_possible(case: Case, tpot: float) -> None:
    """Refuse a time per token that no kernel reaches: that of one sequence, at the GPU's peaks."""
    target = case.target
    work = decode_work(target.model, target.precision, target.pools[-1][1], 1.0, case.isl)
    if tpot * EFFICIENCY_LIMIT < float(np.max(least_time(work, target.gpu))):
        raise _Unused(TOO_FAST)


NO_TPOT = "no mean time per output token: measure with streaming and two tokens or more"
ALL_AT_ONCE = "all requests came at once: measure with a limit of requests under way, or at a rate"
NO_LOAD = "the file does not say how requests were sent: give --concurrency or --rate"
OVERLOADED = "the rate was not kept up with: queues grew, and no steady load was measured"
NO_LENGTHS = "no mean length of prompts or answers"


def _of_test(test: LoadTest, setup: Setup) -> Evidence:
    if test.empty or test.odd:
        raise _Unused(test.empty or test.odd)
    if test.failed > MOST_FAILED * (test.failed + test.completed):
        raise _Unused(f"more than {MOST_FAILED:.0%} of its requests failed")
    if not (test.prompt > 0 and test.output > 0):
        raise _Unused(NO_LENGTHS)
    tpot, ttft = test.mean(Metric.TPOT), test.mean(Metric.TTFT)
    if not (tpot > 0 and test.output > 1):
        raise _Unused(NO_TPOT)
    _check_model(test, setup)
    driven = _driven(test, ttft, tpot)
    case = Case(
        target=Target(
            model=setup.model,
            gpu=setup.gpu,
            engine=setup.engine,
            precision=setup.precision,
            pools=setup.pools,
            clients=driven.clients,
            repairs=(),
        ),
        isl=test.prompt,
        osl=test.output,
    )
    slots = slots_of(case)
    _check_possible(case, tpot)
    return Evidence(
        id=test.name,
        case=case,
        slots=slots,
        key=(setup.engine.name, setup.engine.version, test.tool),
        load=_load(case, driven.said, setup.engine.version),
        ttft=ttft if ttft > 0 and driven.ttft_counts else math.nan,
        tpot=tpot,
        start=driven.start,
        queue=driven.queue,
    )


@dataclass(frozen=True, slots=True)
class _Driven:
    """How requests came: as so many clients, with so much of a first wave and of a queue."""

    clients: float
    said: str
    start: float
    queue: float
    ttft_counts: bool = True


def _driven(test: LoadTest, ttft: float, tpot: float) -> _Driven:
    r"""A closed loop as it is; a stream as the loop with as many requests under way.

    Notes
    -----
    By Little's law :math:`N = \lambda\, (ttft + (osl - 1)\, tpot)`. A run of n requests ends one stay after
    its last arrival, so that it serves :math:`1 / (1 + N/n)` of the offered rate where that is kept up with.
    """
    stay = test.mean(Metric.E2E)
    if not stay > 0:
        stay = (ttft if ttft > 0 else 0.0) + (test.output - 1.0) * tpot
    limit, rate = test.concurrency, test.request_rate
    if limit is None and rate is None:
        raise _Unused(ALL_AT_ONCE if test.load_known else NO_LOAD)
    if limit is not None and (rate is None or rate * stay >= _LIMITED * limit):
        rounds = test.completed / limit
        if rounds < FEWEST_ROUNDS:
            raise _Unused(f"fewer than {FEWEST_ROUNDS:g} requests per client: little but a first wave")
        start = _USUAL_ROUNDS / rounds if rate is None else 0.0
        return _Driven(limit, f"{limit:g}", min(start, _USUAL_ROUNDS / FEWEST_ROUNDS), 0.0, rate is None)
    assert rate is not None
    clients = rate * stay
    ends = 1.0 + clients / test.completed
    if test.throughput is not None and test.throughput * ends < _KEPT_UP * rate:
        raise _Unused(OVERLOADED)
    queue = 1.0 if test.arrivals is Arrivals.POISSON else 0.0
    return _Driven(
        max(clients, 1e-3), f"{rate:g} req/s", 0.0, queue, ttft_counts=test.arrivals is not Arrivals.OTHER
    )


def _check_model(test: LoadTest, setup: Setup) -> None:
    """A name that the catalogue knows is of the model that the user says; a served name may be anything."""
    named = known_model(test.model) if test.model else None
    if named is not None and named.shape != setup.model.shape:
        raise SpecError(
            f"{test.path}: was measured with {test.model}, which is not --model {setup.model.name} "
            "(give the results of one model at a time)"
        )


def _load(case: Case, said: str, version: str) -> tuple[str, ...]:
    target = case.target
    formats = target.precision
    named = (target.model.name, target.gpu.name, target.engine.name, version, str(formats.weights))
    layout = (str(formats.of_experts), str(formats.kv_cache), *(f"{n} x {p}" for n, p in target.pools))
    return (*named, *layout, f"{round(case.isl, -1):g}", f"{round(case.osl, -1):g}", said)


def column(evidence: Sequence[Evidence], name: str) -> FloatArray:
    """One number of each."""
    return np.array([getattr(e, name) for e in evidence], dtype=np.float64)


def with_load(test: LoadTest, concurrency: float | None, rate: float | None) -> LoadTest:
    """`test`, with the load that the user gives for files that do not say theirs."""
    if test.load_known:
        return test
    given = concurrency is not None or rate is not None
    return replace(test, concurrency=concurrency, request_rate=rate, load_known=given)
