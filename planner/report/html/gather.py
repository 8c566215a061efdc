"""From a plan to the facts of its report: some are in it, some are solved or simulated for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from planner.arrays import FloatArray
from planner.documents.yaml_text import dump_yaml
from planner.errors import InfeasibleError, PlannerError, SolverError, SpecError
from planner.fleet import Deployed
from planner.operating_points import Operating, roofline_of
from planner.plan import Group, Plan
from planner.queueing import normal_quantile
from planner.report.html.facts import Curve, OperatingPoints, ReportFacts
from planner.rooflines import Roofline
from planner.side_by_side import SideBySide, side_by_side
from planner.simulator.build import Setup
from planner.simulator.metrics import measured_latencies
from planner.simulator.run import run_fleet
from planner.specs import GPU, Engine, Metric, Phase
from planner.standing import Standing, standing_plans
from planner.traffic import Traffic
from planner.whatif.asked import Asked, asked_of
from planner.whatif.money import MoneyReport
from planner.whatif.money_report import money_report
from planner.whatif.pareto import Pareto, pareto
from planner.whatif.period_bill import PeriodBill, period_bill
from planner.whatif.resolve import ResolveOptions
from planner.whatif.sensitivity import Sensitivity, sensitivity, solves

PARETO_POINTS = 7
SIMULATED = 20_000  # requests of a curve
FIRST_REQUESTS = 12  # of a timeline
MOST_SERVICES = 4  # that get curves and timelines
_SHARES = (*np.linspace(0.02, 0.98, 49), 0.985, 0.99, 0.993, 0.995, 0.997, 0.999)
FAST, WITHOUT_SOLVES = "left out by --fast", "left out by --no-resolve"
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What is computed for a report beside what the plan holds; empty: it is, else why it is not."""

    without_solves: str = ""
    without_simulation: str = ""


FULL = Parts()


def steps(asked: Asked, parts: Parts) -> int:
    """Steps that :func:`gather` tells of."""
    scenario = asked_of(asked).loaded.scenario
    number = 1
    if not parts.without_solves:
        number += PARETO_POINTS * len(_varied(asked)) + solves(scenario)
    if not parts.without_simulation:
        number += 2
    return number


def gather(
    asked: Asked,
    parts: Parts = FULL,
    options: ResolveOptions | None = None,
    *,
    on_step: Callable[[], None] = lambda: None,
    date: str = "",
) -> ReportFacts:
    """The facts of a plan's report.

    What cannot be told of this plan is left out, with the reason.

    Raises
    ------
    SpecError
        If the plan contradicts its scenario.
    KeyboardInterrupt
        If the user stopped a search: a report would not say that points are missing.
    """
    plan = asked.plan
    if plan is None:
        raise SpecError(f"{asked.name}: is no plan (planner solve -o makes one of a scenario)")
    standings = standing_plans(plan, asked.folder, asked.name)
    work = _Work(asked, plan, standings, options or ResolveOptions(), on_step)
    work.options.on_stage("reading the plan")
    rooflines = tuple(_rooflines(plan, standings))
    bill = work.tried("cost", work.bill)
    on_step()
    absent = work.absent
    for key in ("pareto", "sensitivity"):
        if parts.without_solves:
            absent[key] = parts.without_solves
    if parts.without_simulation:
        absent |= {"timeline": parts.without_simulation, "curves": parts.without_simulation}
    solving, simulating = not parts.without_solves, not parts.without_simulation
    return ReportFacts(
        plan=plan,
        loaded=asked.loaded,
        scenario_text=dump_yaml(dict(plan.scenario)),
        gpus=_gpus(standings),
        engines=_engines(standings),
        rooflines=rooflines,
        bill=bill if isinstance(bill, MoneyReport) else None,
        period_bill=bill if isinstance(bill, PeriodBill) else None,
        curves=(work.tried("curves", work.curves) or {}) if simulating else {},
        timelines=(work.tried("timeline", work.timelines) or {}) if simulating else {},
        paretos=(work.tried("pareto", work.paretos) or ()) if solving else (),
        sensitivity=work.tried("sensitivity", work.sensitivity) if solving else None,
        absent=absent,
        date=date,
    )


def _varied(asked: Asked) -> tuple[str, ...]:
    """Latencies that have a limit."""
    services = asked.loaded.scenario.services
    return tuple(m.value for m in (Metric.TTFT, Metric.TPOT) if any(s.slo.of(m) for s in services))


@dataclass(frozen=True, slots=True)
class _Work:
    """One report in the making."""

    asked: Asked
    plan: Plan
    standings: tuple[Standing, ...]
    options: ResolveOptions
    on_step: Callable[[], None]
    absent: dict[str, str] = field(default_factory=dict)

    def tried(self, section: str, part: Callable[[], Answer]) -> Answer | None:
        """A part of the report; None where this plan does not allow it, and `absent` says why."""
        try:
            return part()
        except (SpecError, InfeasibleError, SolverError) as error:
            self.absent[section] = _first_line(error)
            return None

    def bill(self) -> MoneyReport | PeriodBill:
        if self.plan.periods:
            return period_bill(self.asked.name, self.plan, self.asked.loaded)
        return money_report(self.asked)

    def curves(self) -> dict[str, Curve]:
        self.options.on_stage("simulating the plan")
        found = {s.name: _curve(s) for s in self.standings[:MOST_SERVICES]}
        self.on_step()
        return found

    def timelines(self) -> dict[str, SideBySide]:
        self.options.on_stage("first requests")
        found = {s.name: side_by_side(s, FIRST_REQUESTS) for s in self.standings[:MOST_SERVICES]}
        self.on_step()
        return found

    def paretos(self) -> tuple[Pareto, ...]:
        found = []
        for varied in _varied(self.asked):
            curve = pareto(
                self.asked, varied, points=PARETO_POINTS, options=self.options, on_point=self.on_step
            )
            if curve.interrupted:
                raise KeyboardInterrupt
            found.append(curve)
        return tuple(found)

    def sensitivity(self) -> Sensitivity:
        found = sensitivity(self.asked, options=self.options, on_solve=self.on_step)
        if found.interrupted:
            raise KeyboardInterrupt
        return found


def _first_line(error: PlannerError) -> str:
    return str(error).splitlines()[0]


def _curve(standing: Standing) -> Curve:
    """At the model error that the plan withstands, as the plan itself was simulated."""
    z = float(normal_quantile(standing.confidence))
    setup = Setup(z=z, input_ranges=standing.input_ranges)
    outcome = run_fleet(standing.fleet, standing.source, SIMULATED, setup, names=standing.names)
    found = measured_latencies(outcome)
    return Curve(
        requests=int(found.ttft.size),
        shares=tuple(float(s) for s in _SHARES),
        ttft=_quantiles(found.ttft),
        tpot=_quantiles(found.tpot),
    )


def _quantiles(values: FloatArray) -> tuple[float, ...]:
    known = values[~np.isnan(values)]
    if known.size == 0:
        return ()
    return tuple(float(v) for v in np.quantile(known, _SHARES, method="higher"))


# --------------------------------------------------------------------------------------------
# What the groups run on


def _gpus(standings: tuple[Standing, ...]) -> tuple[GPU, ...]:
    found = {g.item.gpu.name: g.item.gpu for s in standings for g in s.fleet.groups}
    return tuple(found[name] for name in sorted(found))


def _engines(standings: tuple[Standing, ...]) -> tuple[Engine, ...]:
    found = {(s.fleet.engine.name, s.fleet.engine.version): s.fleet.engine for s in standings}
    return tuple(found[key] for key in sorted(found))


def _rooflines(plan: Plan, standings: tuple[Standing, ...]) -> list[OperatingPoints]:
    """Of each GPU type, every group at its operating point: a mean prompt, a step of its mean batch."""
    groups = {g.name: g for g in plan.groups}
    by_gpu: dict[str, list[tuple[str, Roofline]]] = {}
    for standing in standings:
        for deployed, name in zip(standing.fleet.groups, standing.names, strict=True):
            found = _group_roofline(standing, deployed, groups[name])
            by_gpu.setdefault(found.gpu, []).append((name, found))
    return [_merged(by_gpu[gpu]) for gpu in sorted(by_gpu)]


def _group_roofline(standing: Standing, deployed: Deployed, group: Group) -> Roofline:
    service = standing.fleet.service_of(deployed)
    traffic = Traffic.of_service(service)
    prompts = group.phase is not Phase.DECODE
    decodes = group.phase is not Phase.PREFILL and group.mean_batch > 0
    operating = Operating(
        isl=float(traffic.mean_query) if prompts else None,
        context=float(traffic.decode_context),
        batches=(group.mean_batch,) if decodes else (),
        token_budget=float(group.max_num_batched_tokens),
    )
    gpu, layout = deployed.item.gpu, deployed.parallelism
    return roofline_of(gpu, service.model, service.precision, standing.fleet.engine, layout, operating)


def _merged(parts: list[tuple[str, Roofline]]) -> OperatingPoints:
    first = parts[0][1]
    roofs = {roof.dtype: roof for _, part in parts for roof in part.roofs}
    return OperatingPoints(
        roofline=Roofline(
            gpu=first.gpu,
            calibration=first.calibration,
            roofs=tuple(sorted(roofs.values(), key=lambda roof: (roof.peak, roof.compute_rate))),
            points=tuple(point for _, part in parts for point in part.points),
        ),
        groups=tuple(name for name, part in parts for _ in part.points),
    )
