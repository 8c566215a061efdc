"""What is asked of a fleet over several periods, and what is answered. Rates in req/s, money in USD.

A *stream* is one model, or one class of prompt lengths, with a front door of its own. In a period with
demand it obeys the rules of :class:`planner.program.problem.Problem`; in one without, its replicas may
stand by or be gone. Streams share GPUs, nodes and stock; periods share what is reserved, and
replicas come and go between them only so fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from planner.errors import SpecError
from planner.plan import PlanStatus
from planner.program.problem import Candidate, GpuType, Problem
from planner.specs import ColocatedUse, Objective


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """Replicas that may serve one kind of request; attributes as those of `Problem`.

    The front door, colocated or disaggregated, is chosen once for all periods.
    """

    name: str
    candidates: tuple[Candidate, ...]
    illegal_pairs: frozenset[tuple[int, int]] = frozenset()
    min_replicas_per_pool: int = 1
    spare_replicas: int = 0
    colocated: ColocatedUse = ColocatedUse.ALLOWED


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """A stretch of time with constant demands. `hours` [h]"""

    name: str
    hours: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """How GPUs of one type can be had other than on demand.

    Attributes
    ----------
    reserved_price : float or None
        Of one GPU, paid for all hours of the horizon; None where nothing can be reserved. [USD/h]
    max_reserved : int or None
        Most GPUs that can be reserved; None is unlimited.
    owned : int
        GPUs that cost nothing more.
    """

    reserved_price: float | None = None
    max_reserved: int | None = None
    owned: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Horizon:
    """Which replicas may serve which load when, under which limits.

    Attributes
    ----------
    gpu_types : tuple of GpuType
        `price` is that on demand, `max_gpus` the most that all streams together may use at a time, whether
        owned, reserved or on demand.
    offers : tuple of Offer
        Per GPU type; empty where there are none.
    demands : tuple of tuple of float
        Per stream, per period; 0 is no demand. [req/s]
    whole_nodes : bool
        GPUs of a type that all streams use in a period fill whole nodes; owned, reserved and stock
        are counted in whole nodes as well.
    max_added, max_removed : int or None
        Most replicas that start, and that stop, in a pool (stream and phase) from one period to the next.
    cyclic : bool
        The last period is followed by the first.
    startup_hours : float
        Time for which a replica that starts is paid on demand before it serves. [h]
    gap : float
        Relative distance from the proven bound at which the search may stop. [1]
    """

    streams: tuple[Stream, ...]
    periods: tuple[Period, ...]
    gpu_types: tuple[GpuType, ...]
    demands: tuple[tuple[float, ...], ...]
    offers: tuple[Offer, ...] = ()
    whole_nodes: bool = True
    max_added: int | None = None
    max_removed: int | None = None
    cyclic: bool = True
    startup_hours: float = 0.0
    gap: float = 0.005

    def __post_init__(self) -> None:
        problems = list(_faults(self))
        if problems:
            raise SpecError("horizon: " + "; ".join(problems))

    @property
    def hours(self) -> float:
        """Of all periods together. [h]"""
        return math.fsum(period.hours for period in self.periods)

    @property
    def transitions(self) -> tuple[tuple[int, int], ...]:
        """Periods that follow one another."""
        last = len(self.periods) - 1
        pairs = tuple((t, t + 1) for t in range(last))
        return (*pairs, (last, 0)) if self.cyclic and last > 0 else pairs

    @property
    def limited(self) -> bool:
        """Whether replicas come or go only so fast."""
        return self.max_added is not None or self.max_removed is not None

    @property
    def tied(self) -> bool:
        """Whether one period's replicas matter to the next."""
        return bool(self.transitions) and (self.limited or self.startup_hours > 0)

    def offer(self, gpu_type: int) -> Offer:
        """How GPUs of a type can be had other than on demand."""
        return self.offers[gpu_type] if self.offers else Offer()

    def block(self, gpu_type: int) -> int:
        """GPUs that are paid for together: a node, or one."""
        return self.gpu_types[gpu_type].node_size if self.whole_nodes else 1

    def stock(self, gpu_type: int) -> int | None:
        """Blocks that may be in use at a time."""
        most = self.gpu_types[gpu_type].max_gpus
        return None if most is None else most // self.block(gpu_type)

    def owned(self, gpu_type: int) -> int:
        """Blocks that cost nothing more."""
        return self.offer(gpu_type).owned // self.block(gpu_type)

    def price(self, gpu_type: int) -> float:
        """Of one GPU on demand; 0 where it is unknown, and then no candidate uses it. [USD/h]"""
        return self.gpu_types[gpu_type].price or 0.0

    def startup_cost(self, stream: int, candidate: int) -> float:
        """Of one replica that starts. [USD]"""
        chosen = self.streams[stream].candidates[candidate]
        return self.startup_hours * self.price(chosen.gpu_type) * chosen.gpus

    def single(self, stream: int, demand: float) -> Problem:
        """One stream in one period, as if it were alone."""
        chosen = self.streams[stream]
        return Problem(
            candidates=chosen.candidates,
            gpu_types=self.gpu_types,
            demand=demand,
            objective=Objective.COST,
            illegal_pairs=chosen.illegal_pairs,
            min_replicas_per_pool=chosen.min_replicas_per_pool,
            spare_replicas=chosen.spare_replicas,
            whole_nodes=self.whole_nodes,
            colocated=chosen.colocated,
            gap=self.gap,
        )


Replicas = tuple[tuple[tuple[int, ...], ...], ...]
"""Per stream, per period, per candidate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticPlan:
    """The same replicas in all periods, for the peak of each stream.

    `replicas` per stream and candidate; `reserved` GPUs per type; `value` and `bound` [USD per horizon].
    """

    replicas: tuple[tuple[int, ...], ...]
    reserved: tuple[int, ...]
    value: float
    bound: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HorizonSolution:
    """A plan for all periods, re-checked against the horizon.

    Attributes
    ----------
    replicas : tuple
        Per stream, per period, per candidate.
    reserved : tuple of int
        GPUs per type.
    on_demand : tuple of tuple of int
        GPUs per type, per period, beyond those owned and reserved.
    reserved_cost, on_demand_cost, startup_cost : float
        What `value` is made of. [USD]
    value, bound, gap : float
        Cost of the horizon, proven bound [USD], their relative difference.
    interrupted : bool
        The search was stopped by the user.
    static : StaticPlan or None
        What it would cost not to scale; None if stock does not allow that, or time ran out.
    """

    replicas: Replicas
    reserved: tuple[int, ...]
    on_demand: tuple[tuple[int, ...], ...]
    reserved_cost: float
    on_demand_cost: float
    startup_cost: float
    value: float
    bound: float
    gap: float
    status: PlanStatus
    interrupted: bool = False
    static: StaticPlan | None = None

    @property
    def saving(self) -> float | None:
        """Share of the static plan's cost that scaling saves. [1]"""
        if self.static is None:
            return None
        return 1 - self.value / self.static.value if self.static.value else 0.0


def _faults(horizon: Horizon) -> Iterator[str]:
    """Each rule that `horizon` breaks, in words."""
    if not horizon.streams or not horizon.periods:
        yield "at least one stream and one period are needed"
    for what, names in (("streams", horizon.streams), ("periods", horizon.periods)):
        if len({item.name for item in names}) < len(names):
            yield f"{what} must have different names"
    for period in horizon.periods:
        if not 0 < period.hours < math.inf:
            yield f"period {period.name!r}: hours must be finite and > 0, got {period.hours!r}"
    for name, limit in (("max_added", horizon.max_added), ("max_removed", horizon.max_removed)):
        if limit is not None and limit < 0:
            yield f"{name} must be >= 0, got {limit}"
    if not 0 <= horizon.startup_hours < math.inf:
        yield f"startup_hours must be finite and >= 0, got {horizon.startup_hours!r}"
    if not 0 <= horizon.gap < 1:
        yield f"gap must lie in [0, 1), got {horizon.gap!r}"
    yield from _demand_faults(horizon)
    yield from _type_faults(horizon)
    yield from _stream_faults(horizon)


def _demand_faults(horizon: Horizon) -> Iterator[str]:
    shape = [len(row) for row in horizon.demands]
    if shape != [len(horizon.periods)] * len(horizon.streams):
        yield "demands: one row per stream, in each one rate per period"
    for row in horizon.demands:
        for rate in row:
            if not 0 <= rate < math.inf:
                yield f"demand must be a finite rate >= 0, got {rate!r}"


def _type_faults(horizon: Horizon) -> Iterator[str]:
    if horizon.offers and len(horizon.offers) != len(horizon.gpu_types):
        yield "offers: one per GPU type, or none at all"
        return
    for index, kind in enumerate(horizon.gpu_types):
        offer = horizon.offer(index)
        if kind.max_gpus_by_phase:
            yield f"GPU type {kind.name!r}: caps per pool are not known to a horizon"
        if kind.max_gpus is not None and kind.max_gpus < 0:
            yield f"GPU type {kind.name!r}: max_gpus must be >= 0, got {kind.max_gpus}"
        if offer.owned < 0 or (offer.max_reserved is not None and offer.max_reserved < 0):
            yield f"GPU type {kind.name!r}: owned and max_reserved must be >= 0"
        for what, price in (("price", kind.price), ("reserved_price", offer.reserved_price)):
            if price is not None and not 0 <= price < math.inf:
                yield f"GPU type {kind.name!r}: {what} must be finite and >= 0, got {price!r}"


def _stream_faults(horizon: Horizon) -> Iterator[str]:
    for index, stream in enumerate(horizon.streams):
        try:
            horizon.single(index, 1.0)
        except SpecError as error:
            yield f"stream {stream.name!r}: {error}"
