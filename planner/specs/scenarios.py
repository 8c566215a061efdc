"""Traffic, objectives, fleets: what a plan answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.errors import SpecError
from planner.specs.calibrated import EngineProfile
from planner.specs.gpus import GPU
from planner.specs.kinds import (
    ColocatedUse,
    Metric,
    Objective,
    Phase,
    PriceClass,
    Routing,
    SpareScope,
    Statistic,
)
from planner.specs.measured import MeasuredPoint
from planner.specs.models import Model, Precision
from planner.specs.speculation import Speculation
from planner.units import MILLI


@dataclass(frozen=True, kw_only=True, slots=True)
class Marginal:
    """A discrete distribution of lengths.

    Attributes
    ----------
    points, weights : tuple of float
        Ascending means of buckets, and their probabilities. [tok, 1]
    longest : float or None
        Longest length that occurs, which the last bucket's mean does not show; None: the last point.
        [tok]
    """

    points: tuple[float, ...]
    weights: tuple[float, ...]
    longest: float | None = None

    def __post_init__(self) -> None:
        if not self.points or len(self.points) != len(self.weights):
            raise SpecError("length distribution: as many weights as points, at least one")
        if abs(sum(self.weights) - 1) > 1e-9 or min(self.weights) < 0:
            raise SpecError("length distribution: weights must be >= 0 and add up to 1")
        if any(b < a for a, b in zip(self.points, self.points[1:], strict=False)):
            raise SpecError("length distribution: points must ascend")

    @property
    def mean(self) -> float:
        return self.moment(1)

    def moment(self, order: int) -> float:
        """Raw moment. [tok^order]"""
        return math.fsum(w * x**order for x, w in zip(self.points, self.weights, strict=True))

    @property
    def maximum(self) -> float:
        """Longest length. [tok]"""
        return self.points[-1] if self.longest is None else self.longest


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Prompt and output lengths of a traffic, with what ties the two together.

    Attributes
    ----------
    isl, osl : Marginal
        Input and output tokens.
    isl_per_output_token : float
        Mean prompt length seen by an output token, ``E[isl osl] / E[osl]``; equals ``E[isl]`` when
        the two are independent. [tok]
    longest_request : float or None
        Longest prompt plus output of one request; None: the longest of each may meet. [tok]
    """

    isl: Marginal
    osl: Marginal
    isl_per_output_token: float
    longest_request: float | None = None

    @property
    def longest(self) -> float:
        """Tokens of the longest request, prompt and output. [tok]"""
        both = self.isl.maximum + self.osl.maximum
        return both if self.longest_request is None else min(self.longest_request, both)


@dataclass(frozen=True, kw_only=True, slots=True)
class Period:
    """A stretch of time with its own request rate. [h, req/s]"""

    name: str
    hours: float
    request_rate: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Offered traffic of one model.

    Attributes
    ----------
    periods : tuple of Period
        One for a constant rate.
    arrival_scv : float
        Squared coefficient of variation of inter-arrival times; 1 is Poisson. [1]
    prefix_hit_rate : float
        Share of input tokens found in the prefill side's cache. [1]
    prefix_bandwidth : float
        Rate at which their KV cache comes to a replica, on average over all that are found; infinite where
        they lie in HBM. [B/s]
    note : str
        What a reader of the plan should know of this traffic.
    """

    name: str
    periods: tuple[Period, ...]
    lengths: Lengths
    arrival_scv: float = 1.0
    prefix_hit_rate: float = 0.0
    prefix_bandwidth: float = math.inf
    citation: str = ""
    note: str = ""

    @property
    def request_rate(self) -> float:
        """Rate of the busiest period. [req/s]"""
        return max(p.request_rate for p in self.periods)


@dataclass(frozen=True, kw_only=True, slots=True)
class SloTarget:
    """One bound: `statistic` of `metric` at most `limit`. [s]"""

    metric: Metric
    statistic: Statistic
    limit: float

    def __str__(self) -> str:
        return f"{self.statistic} {self.metric.upper()} <= {self.limit / MILLI:g} ms"


@dataclass(frozen=True, kw_only=True, slots=True)
class Slo:
    """All bounds of a service; `attainment` is the share of requests that must meet every one of them."""

    targets: tuple[SloTarget, ...]
    attainment: float | None = None

    def of(self, metric: Metric) -> tuple[SloTarget, ...]:
        return tuple(t for t in self.targets if t.metric is metric)


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """One model with its traffic and objectives.

    Attributes
    ----------
    precision : Precision
        What is asked for, and where the choice is free the checkpoint's own.
    label : str
        Tells services of one scenario apart.
    choices : tuple of Precision
        Formats that groups may have, preferred ones first; empty: `precision` alone.
    speculation : Speculation or None
        What its draft does; None: it decodes one token per step.
    measured : MeasuredPoint or None
        Of its model on its engine; None: predictions have the constants of the engine alone.
    profile : EngineProfile or None
        Of its engine; None: the constants that come with this package.
    cross_vendor : bool
        Whether prefill may hand over to decode on GPUs of another vendor, which no engine does by itself.
    overlap : float or None
        Share of KV transfers that is hidden behind prompts; None: the engine's. [1]
    node_links : bool
        Whether KV caches may take the link within a node instead of NICs.
    """

    model: Model
    precision: Precision
    workload: Workload
    slo: Slo
    engine: str
    label: str = ""
    choices: tuple[Precision, ...] = ()
    speculation: Speculation | None = None
    measured: MeasuredPoint | None = None
    profile: EngineProfile | None = None
    cross_vendor: bool = False
    overlap: float | None = None
    node_links: bool = True

    @property
    def name(self) -> str:
        """What a plan calls the service: its label, else its model."""
        return self.label or self.model.name

    @property
    def formats(self) -> tuple[Precision, ...]:
        """Every precision that a group may have."""
        return self.choices or (self.precision,)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetItem:
    """GPUs of one type that may be used.

    Attributes
    ----------
    price : float or None
        Of one GPU; None where no price is used. [USD/h]
    max_gpus : int or None
        Stock; None is unlimited, 0 is none.
    network_bandwidth : float
        NIC share of one GPU, one direction. [B/s]
    rdma : bool
        False where the network is plain TCP.
    price_source : str
        Where the price comes from, with its date and status; empty where the user gave it.
    max_gpus_by_phase : mapping of Phase
        Caps per pool.
    price_class : PriceClass
        Lines of one GPU type differ in zone or price class.
    interruptions : float
        Of one spot replica. [1/h]
    same_node : bool
        Whether all groups share one node: `network_bandwidth` is then that of the link within it.
    """

    gpu: GPU
    price: float | None
    max_gpus: int | None
    node_size: int
    network_bandwidth: float
    network_given: bool = True
    rdma: bool = True
    owned: bool = False
    zone: str = ""
    price_source: str = ""
    max_gpus_by_phase: Mapping[Phase, int] = field(default_factory=dict, hash=False)
    price_class: PriceClass = PriceClass.ON_DEMAND
    interruptions: float = 0.0
    same_node: bool = False

    @property
    def name(self) -> str:
        """The GPU, with zone and price class where they are not the usual ones."""
        return line_name(self.gpu.name, self.zone, self.price_class)


def line_name(gpu: str, zone: str, price_class: PriceClass) -> str:
    """A GPU with its zone and price class where they are not the usual ones."""
    unusual = () if price_class is PriceClass.ON_DEMAND else (str(price_class),)
    return "@".join([gpu, *filter(None, [zone]), *unusual])


@dataclass(frozen=True, kw_only=True, slots=True)
class Power:
    """What electricity costs and how much of it there is.

    Attributes
    ----------
    price : float
        [USD/kWh]
    utilization : float
        Mean power of a GPU over its TDP. [1]
    pue : float
        Power of the site over that of its computers. [1]
    cap : float or None
        Of the site, for all GPUs paid for. [W]
    """

    price: float = 0.0
    utilization: float = 1.0
    pue: float = 1.0
    cap: float | None = None

    def drawn(self, tdp: float) -> float:
        """Power that a GPU of `tdp` [W] costs the site. [W]"""
        return tdp * self.utilization * self.pue


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """How a fleet may follow its traffic over the periods.

    Attributes
    ----------
    startup : float
        Time that a new replica is paid for before it serves. [h]
    max_added, max_removed : int or None
        Most replicas of one pool that start or stop between two periods; None: any number.
    cyclic : bool
        Whether the last period is followed by the first.
    """

    startup: float = 0.0
    max_added: int | None = None
    max_removed: int | None = None
    cyclic: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How a plan is searched; see the scenario schema for the meaning of each."""

    colocated: ColocatedUse = ColocatedUse.ALLOWED
    routing: Routing = Routing.LEAST_LOADED
    min_replicas_per_pool: int = 1
    spare_replicas: int = 0
    whole_nodes: bool = True
    headroom: float = 0.0
    confidence: float = 0.8
    max_tp: int | None = None
    max_pp: int = 4
    max_nodes_per_replica: int = 1
    allowed_tp: tuple[int, ...] | None = None
    spare_scope: SpareScope = SpareScope.GROUP
    survive_node: bool = False
    survive_zone: bool = False
    surge_replicas: int = 0
    on_demand_floor: float = 0.0
    spot_recovery: float = 0.0
    length_split: bool = False
    max_length_buckets: int = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """Everything a plan answers.

    Attributes
    ----------
    budget : float or None
        [USD/h]
    zones : mapping of str to int
        Most GPUs per zone, of zones that have a limit.
    egress_price : float or None
        Of KV caches sent from zone to zone; None: prefill and decode share a zone. [USD/B]
    """

    services: tuple[Service, ...]
    fleet: tuple[FleetItem, ...]
    objective: Objective
    options: Options
    budget: float | None = None
    source: str = ""
    zones: Mapping[str, int] = field(default_factory=dict, hash=False)
    egress_price: float | None = None
    power: Power | None = None
    scaling: Scaling | None = None
