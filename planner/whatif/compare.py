"""From one plan to another: what to add, move and remove, and what changes for users and for the bill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from planner.plan import Group, Plan, ServicePrediction
from planner.results import Result
from planner.specs import Parallelism, Phase, SloTarget, Statistic
from planner.units import MILLI
from planner.whatif.asked import read_plan
from planner.whatif.words import placed


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class GroupKey:
    """What makes replicas alike: whoever has the same key is interchangeable.

    Attributes
    ----------
    engine : str
        Name and version, and whether it decodes with a draft.
    max_num_seqs, max_num_batched_tokens, max_model_len : int
        Limits that the engine is started with.
    """

    service: str
    phase: Phase
    gpu: str
    zone: str
    parallelism: Parallelism
    engine: str
    weights: str
    kv_cache: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int

    @property
    def label(self) -> str:
        """Pool, GPU and layout in words."""
        return f"{self.phase} {placed(self.gpu, self.zone)} {self.parallelism}"

    @property
    def limits(self) -> str:
        """The engine's limits in words."""
        return (
            f"max_num_seqs {self.max_num_seqs}, max_num_batched_tokens {self.max_num_batched_tokens}, "
            f"max_model_len {self.max_model_len}"
        )


class StepKind(StrEnum):
    """What is done with replicas on the way from one plan to the other."""

    ADD = "add"
    REMOVE = "remove"
    MOVE = "move"
    """The GPUs of a replica get another role: another pool, layout, service or format."""
    RECONFIGURE = "reconfigure"
    """The same role, with other limits or another version of the engine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """Some replicas that are added, removed, moved or reconfigured.

    Attributes
    ----------
    before, after : GroupKey or None
        What the replicas are then; None: not there.
    """

    kind: StepKind
    replicas: int
    before: GroupKey | None
    after: GroupKey | None

    @property
    def gpus(self) -> int:
        """GPUs that are touched."""
        key = self.after or self.before
        return 0 if key is None else self.replicas * key.parallelism.num_gpus


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuChange:
    """GPUs of one type, used and paid for."""

    gpu: str
    zone: str
    used: tuple[int, int]
    paid: tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupChange:
    """Groups of one role before and after; 0 where there is none.

    Attributes
    ----------
    cost : tuple of float or None
        None where a price is unknown. [USD/h]
    """

    label: str
    service: str
    phase: Phase
    replicas: tuple[int, int]
    gpus: tuple[int, int]
    cost: tuple[float | None, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class LatencyChange:
    """One statistic of one latency as each plan predicts it.

    Attributes
    ----------
    expected, planned : tuple of float or None
        Before and after; None where a plan has no such service. At the error planned for, `planned`. [s]
    """

    service: str
    metric: str
    statistic: str
    expected: tuple[float | None, float | None]
    planned: tuple[float | None, float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Something else that the plans do not share: model, engine, SLO, rate, routing, verdict."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison(Result):
    """Two plans.

    Attributes
    ----------
    steps : tuple of Step
        What makes the second of the first.
    groups : tuple of GroupChange
        All groups of both, changed or not.
    gpus : tuple of GpuChange
        Types of which the number used or paid for differs.
    cost, value : tuple
        Before and after. [USD/h; the unit of each plan's objective]
    latencies : tuple of LatencyChange
        Statistics that an SLO of either plan bounds.
    """

    steps: tuple[Step, ...]
    groups: tuple[GroupChange, ...]
    gpus: tuple[GpuChange, ...]
    cost: tuple[float | None, float | None]
    value: tuple[float, float]
    latencies: tuple[LatencyChange, ...]
    differences: tuple[Difference, ...]

    @property
    def same_fleet(self) -> bool:
        return not self.steps

    @property
    def same(self) -> bool:
        """Whether nothing that is compared differs."""
        unchanged = all(x.expected[0] == x.expected[1] for x in self.latencies)
        return self.same_fleet and not self.differences and not self.gpus and unchanged and self._same_bill

    @property
    def _same_bill(self) -> bool:
        return self.cost[0] == self.cost[1] and self.value[0] == self.value[1]

    def replicas(self, kind: StepKind) -> int:
        """Replicas in all steps of one kind."""
        return sum(step.replicas for step in self.steps if step.kind is kind)


def compare(before: Plan | str | Path, after: Plan | str | Path) -> Comparison:
    """What leads from one plan to another.

    Parameters
    ----------
    before, after : Plan, str or Path
        A path is that of a plan file.

    Raises
    ------
    SpecError
        If a file is no plan.
    """
    a, b = (plan if isinstance(plan, Plan) else read_plan(plan) for plan in (before, after))
    return Comparison(
        steps=tuple(steps_between(counted(a), counted(b))),
        groups=tuple(_groups(a, b)),
        gpus=tuple(_gpus(a, b)),
        cost=(a.cost, b.cost),
        value=(a.value, b.value),
        latencies=tuple(_latencies(a, b)),
        differences=tuple(_differences(a, b)),
    )


def counted(plan: Plan) -> dict[GroupKey, int]:
    """Replicas of a plan by what makes them alike."""
    counts: dict[GroupKey, int] = {}
    drafts = _drafts(plan)
    for group in plan.groups:
        draft = drafts.get("") or drafts.get(group.service)
        key = GroupKey(
            service=group.service,
            phase=group.phase,
            gpu=group.gpu,
            zone=group.zone,
            parallelism=group.parallelism,
            engine=f"{plan.engine} {plan.engine_version}" + (f", speculative: {draft}" if draft else ""),
            weights=group.precision.weights.value,
            kv_cache=group.precision.kv_cache.value,
            max_num_seqs=group.max_num_seqs,
            max_num_batched_tokens=group.max_num_batched_tokens,
            max_model_len=group.max_model_len,
        )
        counts[key] = counts.get(key, 0) + group.replicas
    return counts


# --------------------------------------------------------------------------------------------
# Steps


def steps_between(before: Mapping[GroupKey, int], after: Mapping[GroupKey, int]) -> Iterator[Step]:
    """Steps from some replicas to others, reconfiguring and moving before adding and removing.

    GPUs move where both replicas have equally many of one type in one zone: first to the same role, then to
    the same pool, then to another.
    """
    surplus = {key: n - after.get(key, 0) for key, n in before.items() if n > after.get(key, 0)}
    missing = {key: n - before.get(key, 0) for key, n in after.items() if n > before.get(key, 0)}
    for old, new in _matches(surplus, missing):
        replicas = min(surplus[old], missing[new])
        if replicas > 0:
            surplus[old] -= replicas
            missing[new] -= replicas
            kind = StepKind.RECONFIGURE if _role(old) == _role(new) else StepKind.MOVE
            yield Step(kind=kind, replicas=replicas, before=old, after=new)
    for key, n in sorted(missing.items()):
        if n:
            yield Step(kind=StepKind.ADD, replicas=n, before=None, after=key)
    for key, n in sorted(surplus.items()):
        if n:
            yield Step(kind=StepKind.REMOVE, replicas=n, before=key, after=None)


def _matches(
    surplus: Mapping[GroupKey, int], missing: Mapping[GroupKey, int]
) -> list[tuple[GroupKey, GroupKey]]:
    """Pairs of replicas on the same GPUs, nearest roles first."""

    def distance(pair: tuple[GroupKey, GroupKey]) -> tuple[int, GroupKey, GroupKey]:
        old, new = pair
        unlike = 4 * (old.service != new.service) + 2 * (old.phase != new.phase)
        return unlike + (_role(old) != _role(new)), old, new

    pairs = [(old, new) for old in surplus for new in missing if _gpus_of(old) == _gpus_of(new)]
    return sorted(pairs, key=distance)


def _gpus_of(key: GroupKey) -> tuple[str, str, int]:
    """Type, zone and number of a replica's GPUs."""
    return key.gpu, key.zone, key.parallelism.num_gpus


def _role(key: GroupKey) -> tuple[object, ...]:
    """What a replica is for, its limits and its engine apart."""
    return key.service, key.phase, key.gpu, key.zone, key.parallelism, key.weights, key.kv_cache


def applied(counts: Mapping[GroupKey, int], steps: tuple[Step, ...]) -> dict[GroupKey, int]:
    """Replicas after `steps`; those of which none are left are gone."""
    result = dict(counts)
    for step in steps:
        if step.before is not None:
            result[step.before] = result.get(step.before, 0) - step.replicas
        if step.after is not None:
            result[step.after] = result.get(step.after, 0) + step.replicas
    return {key: n for key, n in result.items() if n}


# --------------------------------------------------------------------------------------------
# What else differs


def _groups(a: Plan, b: Plan) -> Iterator[GroupChange]:
    """Pool by pool, GPUs of one type and layout together."""
    both = [_by_role(plan) for plan in (a, b)]
    order = list(Phase)
    for key in sorted({*both[0], *both[1]}, key=lambda k: (k[0], order.index(k[1]), *k[2:])):
        service, phase, where, layout = key
        parts = [by.get(key, []) for by in both]
        replicas, gpus = ([sum(getattr(g, name) for g in part) for part in parts] for name in _COUNTS)
        costs = [None if any(g.cost is None for g in p) else sum(g.cost or 0.0 for g in p) for p in parts]
        yield GroupChange(
            label=f"{phase} {where} {layout}",
            service=service,
            phase=phase,
            replicas=(replicas[0], replicas[1]),
            gpus=(gpus[0], gpus[1]),
            cost=(costs[0], costs[1]),
        )


_COUNTS = ("replicas", "num_gpus")


def _by_role(plan: Plan) -> dict[tuple[str, Phase, str, str], list[Group]]:
    found: dict[tuple[str, Phase, str, str], list[Group]] = {}
    for group in plan.groups:
        where = placed(group.gpu, group.zone, group.price_class)
        found.setdefault((group.service, group.phase, where, str(group.parallelism)), []).append(group)
    return found


def _gpus(a: Plan, b: Plan) -> Iterator[GpuChange]:
    uses = [_counted(plan) for plan in (a, b)]
    for gpu, zone in sorted({*uses[0], *uses[1]}):
        (used_a, paid_a), (used_b, paid_b) = (use.get((gpu, zone), (0, 0)) for use in uses)
        if (used_a, paid_a) != (used_b, paid_b):
            yield GpuChange(gpu=gpu, zone=zone, used=(used_a, used_b), paid=(paid_a, paid_b))


def _counted(plan: Plan) -> dict[tuple[str, str], tuple[int, int]]:
    """GPUs used and paid for by type and zone, however they are paid for."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for use in plan.nodes:
        used, paid = found.get((use.gpu, use.zone), (0, 0))
        found[use.gpu, use.zone] = (used + use.gpus_used, paid + use.gpus_paid)
    return found


def _by_service(plan: Plan) -> dict[str, ServicePrediction]:
    return {p.service: p for p in plan.predictions}


def _latencies(a: Plan, b: Plan) -> Iterator[LatencyChange]:
    """Each service's latencies, at the statistics that are bounded."""
    both = _by_service(a), _by_service(b)
    for service in dict.fromkeys((*both[0], *both[1])):
        predictions = [by.get(service) for by in both]
        bounded = {(t.metric.value, t.statistic) for p in predictions if p is not None for t in p.slo}
        for metric in ("ttft", "tpot"):
            for statistic in Statistic:
                if (metric, statistic) in bounded:
                    yield _latency(service, metric, statistic, predictions)


def _latency(
    service: str, metric: str, statistic: Statistic, predictions: list[ServicePrediction | None]
) -> LatencyChange:
    def of(prediction: ServicePrediction | None, which: str) -> float | None:
        if prediction is None:
            return None
        value: float = getattr(getattr(getattr(prediction, metric), which), statistic.value)
        return value

    first, second = predictions
    return LatencyChange(
        service=service,
        metric=metric,
        statistic=statistic.value,
        expected=(of(first, "expected"), of(second, "expected")),
        planned=(of(first, "planned"), of(second, "planned")),
    )


def _differences(a: Plan, b: Plan) -> Iterator[Difference]:
    sides = [_facts(plan) for plan in (a, b)]
    for what in dict.fromkeys((*sides[0], *sides[1])):
        before, after = (side.get(what, "none") for side in sides)
        if before != after:
            yield Difference(what=what, before=before, after=after)


def _facts(plan: Plan) -> dict[str, str]:
    """What a plan is made for, and how it was judged, in words."""
    facts = {
        "models": ", ".join(sorted({p.service for p in plan.predictions})) or "none",
        "engine": f"{plan.engine} {plan.engine_version}",
        "routing": plan.routing,
        "objective": plan.objective.value,
        "precision": ", ".join(
            sorted({f"{g.precision.weights} weights, {g.precision.kv_cache} KV cache" for g in plan.groups})
        ),
        "simulation": _verdict(plan),
    }
    for name, draft in _drafts(plan).items():
        facts[f"speculative decoding of {name}" if name else "speculative decoding"] = draft
    for name, point in _given(plan, "measured").items():
        facts[f"measured point of {name}" if name else "measured point"] = point
    for prediction in plan.predictions:
        of = f" of {prediction.service}" if len(plan.predictions) > 1 else ""
        facts[f"request rate{of}"] = f"{prediction.request_rate:g} req/s"
        for target in prediction.slo:
            facts[_slo_name(target, of)] = f"<= {target.limit / MILLI:g} ms"
    return facts


def _drafts(plan: Plan) -> dict[str, str]:
    """What the drafts of a plan's models do, in words; the name of a plan's only model is empty."""
    return _given(plan, "speculative")


def _given(plan: Plan, what: str) -> dict[str, str]:
    """A mapping that models of a plan's scenario have, in words."""
    scenario = plan.scenario
    several = [(entry.get("name") or entry.get("model"), entry) for entry in scenario.get("models", ())]
    return {
        (name if isinstance(name, str) else "model"): ", ".join(_words(served[what]))
        for name, served in (("", scenario), *several)
        if served.get(what)
    }


def _words(mapping: Mapping[str, Any]) -> Iterator[str]:
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            yield from _words(value)
        else:
            yield f"{key} {value:g}" if isinstance(value, int | float) else f"{key} {value}"


def _slo_name(target: SloTarget, of: str) -> str:
    return f"SLO {target.statistic} {target.metric.upper()}{of}"


def _verdict(plan: Plan) -> str:
    if plan.verification is None:
        return "not simulated"
    return "holds" if plan.verification.passed else "does not hold"
