"""The bill of a plan, from its file and the scenario in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from planner.catalog import gpu_name
from planner.documents.names import did_you_mean
from planner.documents.scenario import LoadedScenario
from planner.errors import SpecError
from planner.plan import Group, NodeUse, Plan
from planner.routers import divided
from planner.specs import PriceClass, line_name
from planner.units import KILO, SECONDS_PER_HOUR
from planner.whatif.asked import Asked, asked_of, read_asked_plan
from planner.whatif.money import NO_OVERHEAD, BreakEven, Line, MoneyReport, Power, TokenPrice

UNSEEN = 1e-5  # of a plan's cost: what rounding in its file may come to [1]
ZONE = ", "  # between a service and its zone in the names of a plan's services


def money_report(
    plan: Plan | str | Path | Asked,
    *,
    prices: Mapping[str, float] | None = None,
    reserved_prices: Mapping[str, float] | None = None,
    power_price: float | None = None,
    pue: float = NO_OVERHEAD,
) -> MoneyReport:
    """The bill of a plan.

    Parameters
    ----------
    plan : Plan, str or Path
        A path is that of a plan file.
    prices : mapping, optional
        Of one GPU by type, instead of the plan's. [USD/h]
    reserved_prices : mapping, optional
        Of one reserved GPU by type, for the break-even. [USD/h]
    power_price : float, optional
        [USD/kWh]
    pue : float
        Power usage effectiveness. [1]

    Raises
    ------
    SpecError
        A price is unknown, or is given for a GPU that the plan does not use; a number is out of range.
    """
    if isinstance(plan, Asked):
        asked = plan
    else:
        asked = asked_of(plan) if isinstance(plan, Plan) else read_asked_plan(plan)
    if asked.plan is None:
        raise SpecError(f"{asked.name}: is no plan")
    if asked.plan.periods:
        raise SpecError(f"{asked.name}: a plan over periods has another bill in each: see period_bill")
    if power_price is not None:
        _check("power price", power_price, least=0.0)
    _check("pue", pue, least=1.0)
    answered = asked.plan
    given = _by_gpu("price", prices or {}, answered)
    reserved = _by_gpu("reserved price", reserved_prices or {}, answered)
    lines = _lines(answered, asked.loaded, given) + tuple(_beside_gpus(answered, asked.loaded))
    if power_price is not None and any(line.kind == "electricity" for line in lines):
        raise SpecError("power price: the plan's cost has the power of its scenario in it already")
    draw = math.fsum(line.power for line in lines)
    return MoneyReport(
        name=asked.name,
        lines=lines,
        tokens=tuple(_tokens(answered, asked.loaded, lines)),
        break_even=_break_even(answered, given, reserved),
        power=None if power_price is None else Power(price=power_price, pue=pue, draw=draw),
        notes=_notes(answered, given),
    )


def _check(what: str, value: float, *, least: float) -> None:
    if not least <= value < math.inf:
        raise SpecError(f"{what} must be a finite number >= {least:g}, got {value!r}")


def _by_gpu(what: str, prices: Mapping[str, float], plan: Plan) -> dict[str, float]:
    """Prices by the names that the plan has; aliases of the catalogue count."""
    known = list(dict.fromkeys(use.gpu for use in plan.nodes))
    found: dict[str, float] = {}
    for name, price in prices.items():
        _check(f"{what} of {name}", price, least=0.0)
        canonical = name if name in known else _canonical(name)
        if canonical not in known:
            hint = did_you_mean(name, known) or f"it uses {', '.join(known)}"
            raise SpecError(f"{what}: the plan uses no GPU {name!r} ({hint})")
        found[canonical] = price
    return found


def _canonical(name: str) -> str:
    try:
        return gpu_name(name)
    except SpecError:
        return name


def _price(use: NodeUse, given: Mapping[str, float]) -> float:
    """A price that is given is that on demand. [USD/h]"""
    price = given.get(use.gpu, use.price) if use.price_class is PriceClass.ON_DEMAND else use.price
    if price is None:
        raise SpecError(
            f"the price of {use.gpu} is not known: give --price {use.gpu}=USD, "
            "or price_per_gpu_hour in the scenario"
        )
    return price


def _lines(plan: Plan, loaded: LoadedScenario, given: Mapping[str, float]) -> tuple[Line, ...]:
    """Groups first, then what is paid for beside them."""
    uses = {(use.gpu, use.zone, use.price_class): use for use in plan.nodes}
    powers = {item.gpu.name: item.gpu.power for item in loaded.scenario.fleet}
    lines = [_group_line(g, uses, powers, given) for g in plan.groups]
    for use in plan.nodes:
        unused = use.gpus_paid - use.gpus_used
        if unused:
            lines.append(
                Line(
                    kind="unused",
                    name=f"unused {line_name(use.gpu, use.zone, use.price_class)}",
                    gpu=use.gpu,
                    zone=use.zone,
                    gpus=unused,
                    price=_price(use, given),
                    power=unused * powers.get(use.gpu, 0.0),
                )
            )
    return tuple(lines)


def _beside_gpus(plan: Plan, loaded: LoadedScenario) -> Iterator[Line]:
    """What a plan's cost has in it beside the price of GPUs: electricity, traffic between zones."""
    prices = [use.price for use in plan.nodes]
    if plan.cost is None or None in prices:
        return
    power = loaded.scenario.power
    electricity = plan.power / KILO * power.price if power is not None else 0.0
    gpus = math.fsum(use.gpus_paid * (use.price or 0.0) for use in plan.nodes)
    traffic = plan.cost - gpus - electricity
    if electricity > 0:
        yield _no_gpus("electricity", electricity)
    if loaded.scenario.egress_price and traffic > UNSEEN * plan.cost:
        yield _no_gpus("traffic", traffic)


def _no_gpus(kind: str, cost: float) -> Line:
    return Line(kind=kind, name=kind, gpu="", zone="", gpus=0, price=0.0, power=0.0, fixed=cost)


def _group_line(
    group: Group,
    uses: Mapping[tuple[str, str, PriceClass], NodeUse],
    powers: Mapping[str, float],
    given: Mapping[str, float],
) -> Line:
    use = uses.get((group.gpu, group.zone, group.price_class))
    if use is None or group.gpu not in powers:
        missing = "nodes" if use is None else "scenario's fleet"
        raise SpecError(f"group {group.name}: the plan's {missing} has no GPU {group.gpu!r}")
    return Line(
        kind="group",
        name=group.name,
        gpu=group.gpu,
        zone=group.zone,
        gpus=group.num_gpus,
        price=_price(use, given),
        power=group.num_gpus * powers[group.gpu],
        service=group.service,
        phase=group.phase.value,
        parallelism=str(group.parallelism),
        replicas=group.replicas,
        utilization=group.utilization,
    )


def _tokens(plan: Plan, loaded: LoadedScenario, lines: Sequence[Line]) -> list[TokenPrice]:
    """Each service with its share of the bill; none where it gets no request or its tokens are unknown."""
    services = divided(loaded, plan.split).scenario.services
    lengths = {s.name: s.workload.lengths for s in services}
    prices = []
    for prediction in plan.predictions:
        own = lengths.get(prediction.service.partition(ZONE)[0])
        if own is None or prediction.request_rate <= 0:
            continue
        requests = prediction.request_rate * SECONDS_PER_HOUR
        prices.append(
            TokenPrice(
                service=prediction.service,
                request_rate=prediction.request_rate,
                cost=_cost_of(prediction.service, lines),
                input_tokens=requests * own.isl.mean,
                output_tokens=requests * own.osl.mean,
            )
        )
    return prices


def _cost_of(service: str, lines: Sequence[Line]) -> float:
    """A service's groups, of one zone where its router has only that, and unused GPUs as far as they are the
    cause. [USD/h]"""
    name, _, zone = service.partition(ZONE)
    own = [line for line in lines if line.service == name and zone in ("", line.zone)]
    cost = [line.cost for line in own]
    everything = math.fsum(line.cost for line in lines if line.kind == "group")
    beside = math.fsum(line.cost for line in lines if line.kind in ("electricity", "traffic"))
    cost.append(beside * math.fsum(cost) / everything if everything else 0.0)
    for unused in (line for line in lines if line.kind == "unused"):
        kind = unused.gpu, unused.zone
        mine = sum(line.gpus for line in own if (line.gpu, line.zone) == kind)
        everyone = sum(x.gpus for x in lines if x.kind == "group" and (x.gpu, x.zone) == kind)
        cost.append(unused.cost * mine / everyone if everyone else 0.0)
    return math.fsum(cost)


def _break_even(
    plan: Plan, given: Mapping[str, float], reserved: Mapping[str, float]
) -> tuple[BreakEven, ...]:
    found = []
    for gpu in reserved:
        of_type = [use for use in plan.nodes if use.gpu == gpu]
        uses = [use for use in of_type if use.price_class is PriceClass.ON_DEMAND] or of_type
        on_demand = max(_price(use, given) for use in uses)
        if on_demand <= 0:
            raise SpecError(f"{gpu} is owned: to compare with a price on demand, give --price {gpu}=USD")
        gpus = sum(use.gpus_paid for use in uses)
        found.append(BreakEven(gpu=gpu, on_demand=on_demand, reserved=reserved[gpu], gpus=gpus))
    return tuple(found)


def _notes(plan: Plan, given: Mapping[str, float]) -> tuple[str, ...]:
    notes = [f"price of {gpu} as given here, not the plan's" for gpu in given]
    owned = [use.gpu for use in plan.nodes if use.price == 0 and use.gpu not in given]
    if owned:
        notes.append(f"{', '.join(owned)} owned: counted as free of charge")
    if plan.verification is not None and not plan.verification.passed:
        notes.append("the plan does not hold in simulation")
    return tuple(notes)
