"""A program's solution as the plan that people and files get."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from planner.candidates import ReplicaChoice
from planner.errors import SolverError
from planner.fleet import Deployed, Fleet, distinct_names, path_rate
from planner.money import token_cost
from planner.physics import needed
from planner.plan import Alternative, Binding, Group, NodeUse, Plan, PredictedLatency, ServicePrediction
from planner.prediction import (
    INTERVAL_Z,
    Occupancy,
    colocated_group_occupancy,
    decode_group_occupancy,
    prefill_occupancy,
    summaries,
)
from planner.program import Solution
from planner.question import Cell, Question
from planner.specs import Dtype, FleetItem, Metric, Objective, Phase, Precision, Scenario, Service
from planner.traffic import Traffic
from planner.transformer import kv_bytes

NETWORK_NOTED = 0.5  # load from which a network that binds is worth a note [1]
SAME_NODE = (
    "KV caches move over NVLink within one node: prefill and decode replicas must share it, and see "
    "each other's GPUs (CUDA IPC)"
)
INTERRUPTED = "search interrupted: this is the best plan found so far"
BATCH_MARGIN = 2.0  # of max_num_seqs over the batch that 99 % of steps stay below [1]


def changed_formats(service: Service, groups: Sequence[Group]) -> list[str]:
    """What to say of formats that were chosen for groups, and that are not the checkpoint's."""
    if not service.choices:
        return []
    own = Precision.of(service.model)
    said = []
    for dtype in sorted({g.precision.weights for g in groups} - {own.weights, service.precision.weights}):
        members = [f"{g.phase} on {g.gpu}" for g in groups if g.precision.weights is dtype]
        where = "" if len(members) == len(groups) else f" ({', '.join(dict.fromkeys(members))})"
        said.append(f"{dtype} weights{where}")
    caches = sorted({g.precision.kv_cache for g in groups} - {own.kv_cache, service.precision.kv_cache})
    said += [f"{dtype} KV cache" for dtype in caches]
    if not said:
        return []
    text = " and ".join(said)
    return [
        f"precision auto chose {text}, where the checkpoint has {own.weights} weights and its KV cache would "
        f"be {own.kv_cache}: this changes what the model answers, so measure its quality first"
    ]


def profile_note(service: Service, gpus: Iterable[str]) -> Iterator[str]:
    """What to say of a service whose engine was calibrated on other GPUs than some that it uses."""
    if service.profile is None:
        return
    others = sorted({gpu for gpu in gpus if gpu not in service.profile.gpus})
    if others:
        measured = ", ".join(service.profile.gpus)
        yield (
            f"the engine profile was measured on {measured}: its factors on kernels are taken over for "
            f"{', '.join(others)}, unmeasured"
        )


def speculation_note(service: Service, alone: bool = True) -> str:
    """What to say of a service that decodes with a draft."""
    of = "" if alone else f" of {service.name}"
    return (
        f"speculative decoding{of} as given: {service.speculation}; requests may differ in what is accepted, "
        "which TPOT percentiles leave out, and tokens come in bursts, which TPOT does not show"
    )


@dataclass(frozen=True, slots=True)
class Assembly:
    """Makes plans that answer `questions`, each with its own part of the plan's solution."""

    questions: tuple[Question, ...]

    def plan(
        self,
        solution: Solution,
        parts: Sequence[Solution],
        alternatives: tuple[Alternative, ...],
        at_half: float | None,
        notes: tuple[str, ...] = (),
    ) -> Plan:
        """The plan; `parts` are the solutions of the questions, in their order."""
        first = self.questions[0]
        scenario = first.scenario
        answers = [_Answer(q, part) for q, part in zip(self.questions, parts, strict=True)]
        groups = tuple(group for answer in answers for group in answer.groups())
        listed = sum(g.cost or 0.0 for g in groups)
        rent = 1.0 if not listed or solution.cost is None else solution.cost / listed
        predictions = tuple(p for answer in answers for p in answer.predictions(rent))
        said = [note for answer in answers for note in answer.notes(groups)]
        return Plan(
            status=solution.status,
            objective=scenario.objective,
            value=solution.value,
            bound=solution.bound,
            gap=solution.gap,
            cost=solution.cost,
            power=sum(
                paid * drawn(scenario, item)
                for paid, item in zip(solution.gpus_paid, scenario.fleet, strict=True)
            ),
            groups=groups,
            nodes=_nodes(scenario, solution),
            predictions=predictions,
            alternatives=alternatives,
            engine=first.engine.name,
            engine_version=first.engine.version,
            routing=scenario.options.routing.value,
            scenario=first.document,
            provenance=self._provenance(solution),
            notes=(*notes, *dict.fromkeys([*said, *_search_notes(solution, predictions, groups)])),
            cost_at_half_confidence=at_half,
        )

    def _provenance(self, solution: Solution) -> tuple[str, ...]:
        fleet = self.questions[0].scenario.fleet
        lines = []
        for item in (item for item, used in zip(fleet, solution.gpus_used, strict=True) if used):
            c = item.gpu.calibration
            lines.append(f"GPU {item.gpu.name}: {c.status} ({c.date}); {c.method}")
            if item.price_source:
                lines.append(f"price of {item.name}: {item.price_source}")
        for q in self.questions:
            lines.append(f"engine {q.engine.name} {q.engine.version}: {q.engine.provenance}")
            lines.append(f"model {q.service.model.name}: {q.service.model.source}")
            if q.service.speculation is not None:
                given = f"{q.service.speculation}: given by the user"
                lines.append(f"speculative decoding of {q.service.model.name}: {given}")
            if q.service.measured is not None:
                given = f"{q.service.measured}; given by the user"
                lines.append(f"measured point of {q.service.model.name}: {given}")
            workload = q.service.workload
            if workload.citation:
                lines.append(f"traffic {workload.name}: {workload.citation}")
        return tuple(dict.fromkeys(lines))


def drawn(scenario: Scenario, item: FleetItem) -> float:
    """Power that one GPU of a line counts for. [W]"""
    return item.gpu.power if scenario.power is None else scenario.power.drawn(item.gpu.power)


def _nodes(scenario: Scenario, solution: Solution) -> tuple[NodeUse, ...]:
    counted = zip(scenario.fleet, solution.gpus_used, solution.gpus_paid, solution.nodes, strict=True)
    return tuple(
        NodeUse(
            gpu=item.gpu.name,
            gpus_used=used,
            gpus_paid=paid,
            nodes=nodes,
            price=0.0 if item.owned else item.price,
            zone=item.zone,
            price_class=item.price_class,
        )
        for item, used, paid, nodes in counted
        if used
    )


def _search_notes(
    solution: Solution, predictions: Sequence[ServicePrediction], groups: Sequence[Group]
) -> Iterator[str]:
    """What is to be said of the plan as a whole."""
    if solution.interrupted:
        yield INTERRUPTED
    estimated = sorted({g.gpu for g in groups if g.calibration == "estimated"})
    if estimated:
        yield f"calibration of {', '.join(estimated)} is estimated, not measured"
    if not all(math.isfinite(x.high.p99) for p in predictions for x in (p.ttft, p.tpot)):
        yield "at the upper end of the model error there is no steady state; headroom would help"
    if any(g.binds is Binding.NETWORK and g.utilization > NETWORK_NOTED for g in groups):
        yield "the network binds: a faster one carries more load on the same GPUs"


def _cost(group: Deployed) -> float | None:
    """Of the GPUs that a group uses; None where their price is unknown. [USD/h]"""
    price = 0.0 if group.item.owned else group.item.price
    return None if price is None else group.replicas * group.parallelism.num_gpus * price


@dataclass(frozen=True, slots=True)
class _Answer:
    """One question's part of a plan."""

    question: Question
    solution: Solution

    def cells(self) -> tuple[Cell, ...]:
        """The groups by router, with the limits that the plan gives their engines."""
        return tuple(replace(cell, fleet=self._limited(cell)) for cell in self.question.cells(self.solution))

    def _limited(self, cell: Cell) -> Fleet:
        choices = self.question.candidates.choices
        limited = (
            replace(g, max_num_seqs=self._max_num_seqs(choices[i], cell.fleet, g))
            for i, g in zip(cell.members, cell.fleet.groups, strict=True)
        )
        return replace(cell.fleet, groups=tuple(limited))

    def groups(self) -> Iterator[Group]:
        """Of all routers."""
        cells = self.question.cells(self.solution, idle=True)
        labels = [self._label(group) for cell in cells for group in cell.fleet.groups]
        names = iter(distinct_names(labels))
        for cell in cells:
            for i, group in zip(cell.members, cell.fleet.groups, strict=True):
                yield self._group(i, cell.fleet, group, next(names))

    def _label(self, group: Deployed) -> str:
        return group.label if self.question.alone else f"{self.question.service.name}-{group.label}"

    def predictions(self, rent: float) -> Iterator[ServicePrediction]:
        """One per router; `rent` is what is paid in all over the price of the GPUs in use. [1]"""
        for cell in self.question.cells(self.solution):
            costs = [_cost(group) for group in cell.fleet.groups]
            known = [cost for cost in costs if cost is not None]
            yield self._prediction(cell, sum(known) * rent if len(known) == len(costs) else None)

    def _occupancy(self, fleet: Fleet, group: Deployed) -> Occupancy:
        z = self.question.planned_z
        if not group.rate:  # it stands by
            return Occupancy(busy=0.0, mean_batch=0.0, batch_p99=0.0)
        if group.phase is Phase.PREFILL:
            return prefill_occupancy(fleet, group, z)
        if group.phase is Phase.DECODE:
            return decode_group_occupancy(fleet, group, z)
        return colocated_group_occupancy(fleet, group, z)

    def _group(self, index: int, fleet: Fleet, group: Deployed, name: str) -> Group:
        found = self.question.candidates
        choice, candidate = found.choices[index], found.candidates[index]
        occupancy = self._occupancy(fleet, group)
        item = group.item
        physical = needed(fleet.service, group, occupancy.mean_batch)
        if max(physical.compute, physical.bandwidth) > 1.0:
            raise SolverError(
                f"{candidate.name}: the plan needs {physical.compute:.0%} of peak FLOP/s and "
                f"{physical.bandwidth:.0%} of memory bandwidth; please report this"
            )
        point = max(k for k, n in enumerate(candidate.curve.starts) if n <= group.replicas)
        return Group(
            name=name,
            service=self.question.service.name,
            phase=choice.phase,
            gpu=item.gpu.name,
            parallelism=choice.parallelism,
            replicas=group.replicas,
            precision=choice.precision,
            max_num_seqs=self._max_num_seqs(choice, fleet, group),
            max_num_batched_tokens=choice.token_budget,
            max_model_len=self._max_model_len(),
            kv_capacity=choice.kv_tokens,
            memory=choice.memory,
            request_rate=group.rate,
            capacity=candidate.curve.capacity(group.replicas),
            mean_batch=occupancy.mean_batch,
            busy=occupancy.busy,
            binds=found.binds[index][point],
            compute_utilization=physical.compute,
            bandwidth_utilization=physical.bandwidth,
            network_utilization=self._network(fleet, group),
            cost=_cost(group),
            calibration=str(item.gpu.calibration.status),
            zone=item.zone,
            price_class=item.price_class,
            same_node=item.same_node,
        )

    def _max_num_seqs(self, choice: ReplicaChoice, fleet: Fleet, group: Deployed) -> int:
        """Limit that 99 % of steps stay well below; never above what memory was planned for.

        What is left after a loss needs all that fits.
        """
        if choice.phase is Phase.PREFILL or self.question.may_lose:
            return choice.max_num_seqs
        occupancy = self._occupancy(fleet, group)
        if not math.isfinite(occupancy.batch_p99):
            return choice.max_num_seqs
        wanted = 8 * math.ceil((BATCH_MARGIN * occupancy.batch_p99 + 4) / 8)
        return min(choice.max_num_seqs, wanted)

    def _max_model_len(self) -> int:
        """Longest sequence of the traffic, rounded up, within what the model supports."""
        longest = Traffic.of_service(self.question.service).longest
        return min(self.question.service.model.max_context, 256 * math.ceil(longest / 256))

    def _network(self, fleet: Fleet, group: Deployed) -> float:
        """Load of the group's NICs by KV transfer. [1]"""
        if group.phase is Phase.COLOCATED:
            return 0.0
        traffic = Traffic.of_service(self.question.service)
        service = fleet.service_of(group)
        sizes = kv_bytes(service.model, service.precision.kv_cache, traffic.isl)
        moved = group.rate * float(traffic.isl_weights @ sizes)
        own = path_rate(fleet, group, group) * group.parallelism.dp * group.replicas
        return moved / own

    def _prediction(self, cell: Cell, paid: float | None) -> ServicePrediction:
        planned_z = self.question.planned_z
        service, fleet = cell.fleet.service, cell.fleet
        expected, planned, low, high = (
            summaries(fleet, z) for z in (0.0, planned_z, -INTERVAL_Z, INTERVAL_Z)
        )
        traffic = Traffic.of_service(service)
        rate = service.workload.request_rate

        tokens = None if paid is None else token_cost(paid, rate, traffic.mean_isl, traffic.mean_osl)
        return ServicePrediction(
            service=cell.name,
            request_rate=rate,
            ttft=PredictedLatency(
                metric=Metric.TTFT, expected=expected[0], planned=planned[0], low=low[0], high=high[0]
            ),
            tpot=PredictedLatency(
                metric=Metric.TPOT, expected=expected[1], planned=planned[1], low=low[1], high=high[1]
            ),
            slo=service.slo.targets,
            cost_per_million_input_tokens=None if tokens is None else tokens.input,
            cost_per_million_output_tokens=None if tokens is None else tokens.output,
            cost_per_million_tokens=None if tokens is None else tokens.both,
        )

    def _runs_fp16(self, group: Group) -> bool:
        """Whether 16-bit arithmetic of a group is fp16 for want of bf16."""
        peaks = next(i.gpu.peak_flops for i in self.question.scenario.fleet if i.gpu.name == group.gpu)
        return Dtype.BF16 not in peaks

    def _over_nodes(self) -> tuple[str, ...]:
        """Replicas that no node of their line holds."""
        found = self.question.candidates.choices
        used = [found[i] for i in self.solution.used]
        lines = [(c, self.question.item(c)) for c in used]
        wide = (f"{i.name} {c.parallelism}" for c, i in lines if c.parallelism.num_gpus > i.node_size)
        return tuple(dict.fromkeys(wide))

    def notes(self, groups: Sequence[Group]) -> Iterator[str]:
        """What a reader should know of the service's traffic and GPUs."""
        service, scenario = self.question.service, self.question.scenario
        own = [g for g in groups if g.service == service.name]
        if service.workload.note:
            yield service.workload.note
        yield from changed_formats(service, own)
        if service.speculation is not None:
            yield speculation_note(service, self.question.alone)
        yield from profile_note(service, (g.gpu for g in own))
        asked = self.question.document.get("workload")
        if scenario.objective is Objective.THROUGHPUT and "request_rate" in (asked or {}):
            yield "request_rate is not used: objective throughput looks for the largest rate"
        types = {g.gpu for g in own if g.phase is not Phase.COLOCATED}
        assumed = [i.gpu.name for i in scenario.fleet if i.gpu.name in types and not i.network_given]
        if assumed:
            names = ", ".join(dict.fromkeys(assumed))
            yield f"network of {names} not given: the profile's usual share is assumed"
        if any(g.same_node for g in own):
            yield SAME_NODE
        if wide := self._over_nodes():
            yield f"replicas over several nodes ({', '.join(wide)}) need RDMA; what crosses NICs is estimated"
        used = {(g.gpu, g.zone, g.price_class) for g in own}
        for item in scenario.fleet:
            if (item.gpu.name, item.zone, item.price_class) in used and item.price_source:
                yield f"price of {item.name}: {item.price_source}"
        older = sorted({g.gpu for g in own if self._runs_fp16(g)})
        if older:
            yield f"{', '.join(older)} lacks bf16: its replicas compute in fp16"


def limited_cells(question: Question, solution: Solution) -> tuple[Cell, ...]:
    """The groups of `solution` by router, with the limits that the plan gives their engines."""
    return _Answer(question, solution).cells()


def groups_of(question: Question, solution: Solution) -> dict[int, Group]:
    """The groups of one question as a plan has them, by candidate."""
    cells = question.cells(solution, idle=True)
    members = [i for cell in cells for i in cell.members]
    return dict(zip(members, _Answer(question, solution).groups(), strict=True))
