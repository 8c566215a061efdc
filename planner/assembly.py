"""A program's solution as the plan that people and files get."""

from __future__ import annotations

import math
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
    predict_fleet,
    prefill_occupancy,
)
from planner.program import Solution
from planner.question import Question
from planner.specs import Dtype, Metric, Objective, Phase, Service
from planner.traffic import Traffic
from planner.transformer import kv_bytes

NETWORK_NOTED = 0.5  # load from which a network that binds is worth a note [1]
BATCH_MARGIN = 2.0  # of max_num_seqs over the batch that 99 % of steps stay below [1]


@dataclass(frozen=True, slots=True)
class Assembly:
    """Makes plans that answer `question`."""

    question: Question

    def plan(
        self,
        solution: Solution,
        alternatives: tuple[Alternative, ...],
        at_half: float | None,
        notes: tuple[str, ...] = (),
    ) -> Plan:
        fleet = self.question.fleet(solution)
        names = distinct_names([group.label for group in fleet.groups])
        members = zip(solution.used, fleet.groups, names, strict=True)
        groups = tuple(self._group(i, solution, fleet, group, name) for i, group, name in members)
        prediction = self._prediction(fleet.service, fleet, solution)
        return Plan(
            status=solution.status,
            objective=self.question.scenario.objective,
            value=solution.value,
            bound=solution.bound,
            gap=solution.gap,
            cost=solution.cost,
            power=sum(
                paid * item.gpu.power
                for paid, item in zip(solution.gpus_paid, self.question.scenario.fleet, strict=True)
            ),
            groups=groups,
            nodes=self._nodes(solution),
            predictions=(prediction,),
            alternatives=alternatives,
            engine=self.question.engine.name,
            engine_version=self.question.engine.version,
            routing=self.question.scenario.options.routing.value,
            scenario=self.question.document,
            provenance=self._provenance(solution),
            notes=(*notes, *self._notes(solution, groups, prediction)),
            cost_at_half_confidence=at_half,
        )

    def fleet(self, solution: Solution) -> Fleet:
        """The groups of `solution` with the limits that the plan gives their engines."""
        fleet = self.question.fleet(solution)
        limited = (
            replace(g, max_num_seqs=self._max_num_seqs(self.question.candidates.choices[i], fleet, g))
            for i, g in zip(solution.used, fleet.groups, strict=True)
        )
        return replace(fleet, groups=tuple(limited))

    def _occupancy(self, fleet: Fleet, group: Deployed) -> Occupancy:
        z = self.question.planned_z
        if group.phase is Phase.PREFILL:
            return prefill_occupancy(fleet, group, z)
        if group.phase is Phase.DECODE:
            return decode_group_occupancy(fleet, group, z)
        return colocated_group_occupancy(fleet, group, z)

    def _group(self, index: int, solution: Solution, fleet: Fleet, group: Deployed, name: str) -> Group:
        found = self.question.candidates
        choice, candidate = found.choices[index], found.candidates[index]
        occupancy = self._occupancy(fleet, group)
        item = group.item
        price = 0.0 if item.owned else item.price
        gpus = group.replicas * choice.parallelism.num_gpus
        physical = needed(fleet.service, group, occupancy.mean_batch)
        if max(physical.compute, physical.bandwidth) > 1.0:
            raise SolverError(
                f"{candidate.name}: the plan needs {physical.compute:.0%} of peak FLOP/s and "
                f"{physical.bandwidth:.0%} of memory bandwidth; please report this"
            )
        point = max(k for k, n in enumerate(candidate.curve.starts) if n <= group.replicas)
        return Group(
            name=name,
            service=self.question.service.model.name,
            phase=choice.phase,
            gpu=item.gpu.name,
            parallelism=choice.parallelism,
            replicas=group.replicas,
            precision=self.question.service.precision,
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
            cost=None if price is None else gpus * price,
            calibration=str(item.gpu.calibration.status),
            zone=item.zone,
        )

    def _max_num_seqs(self, choice: ReplicaChoice, fleet: Fleet, group: Deployed) -> int:
        """Limit that 99 % of steps stay well below; never above what memory was planned for."""
        if choice.phase is Phase.PREFILL:
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
        sizes = kv_bytes(self.question.service.model, self.question.service.precision.kv_cache, traffic.isl)
        moved = group.rate * float(traffic.isl_weights @ sizes)
        own = path_rate(fleet, group, group) * group.parallelism.dp * group.replicas
        return moved / own

    def _prediction(self, service: Service, fleet: Fleet, solution: Solution) -> ServicePrediction:
        planned_z = self.question.planned_z
        expected, planned, low, high = (
            predict_fleet(fleet, z).summaries() for z in (0.0, planned_z, -INTERVAL_Z, INTERVAL_Z)
        )
        traffic = Traffic.of_service(service)
        rate = service.workload.request_rate

        cost = solution.cost
        tokens = None if cost is None else token_cost(cost, rate, traffic.mean_isl, traffic.mean_osl)
        return ServicePrediction(
            service=service.model.name,
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

    def _nodes(self, solution: Solution) -> tuple[NodeUse, ...]:
        return tuple(
            NodeUse(
                gpu=item.gpu.name,
                gpus_used=used,
                gpus_paid=paid,
                nodes=nodes,
                price=0.0 if item.owned else item.price,
                zone=item.zone,
            )
            for item, used, paid, nodes in zip(
                self.question.scenario.fleet,
                solution.gpus_used,
                solution.gpus_paid,
                solution.nodes,
                strict=True,
            )
            if used
        )

    def _provenance(self, solution: Solution) -> tuple[str, ...]:
        items = {self.question.candidates.choices[i].item for i in solution.used}
        lines = []
        for index in sorted(items):
            gpu = self.question.scenario.fleet[index].gpu
            c = gpu.calibration
            lines.append(f"GPU {gpu.name}: {c.status} ({c.date}); {c.method}")
            if source := self.question.scenario.fleet[index].price_source:
                lines.append(f"price of {gpu.name}: {source}")
        engine, model = self.question.engine, self.question.service.model
        lines.append(f"engine {engine.name} {engine.version}: {engine.provenance}")
        lines.append(f"model {model.name}: {model.source}")
        workload = self.question.service.workload
        if workload.citation:
            lines.append(f"traffic {workload.name}: {workload.citation}")
        return tuple(lines)

    def _runs_fp16(self, group: Group) -> bool:
        """Whether 16-bit arithmetic of a group is fp16 for want of bf16."""
        peaks = next(i.gpu.peak_flops for i in self.question.scenario.fleet if i.gpu.name == group.gpu)
        return Dtype.BF16 not in peaks

    def _notes(
        self, solution: Solution, groups: tuple[Group, ...], prediction: ServicePrediction
    ) -> tuple[str, ...]:
        notes = [self.question.service.workload.note] if self.question.service.workload.note else []
        asked = self.question.document.get("workload")
        if self.question.scenario.objective is Objective.THROUGHPUT and "request_rate" in (asked or {}):
            notes.append("request_rate is not used: objective throughput looks for the largest rate")
        if solution.interrupted:
            notes.append("search interrupted: this is the best plan found so far")
        types = {g.gpu for g in groups if g.phase is not Phase.COLOCATED}
        fleet = self.question.scenario.fleet
        assumed = [i.gpu.name for i in fleet if i.gpu.name in types and not i.network_given]
        if assumed:
            notes.append(f"network of {', '.join(assumed)} not given: the profile's usual share is assumed")
        used = {g.gpu for g in groups}
        notes += [
            f"price of {item.gpu.name}: {item.price_source}"
            for item in self.question.scenario.fleet
            if item.gpu.name in used and item.price_source
        ]
        older = sorted({g.gpu for g in groups if self._runs_fp16(g)})
        if older:
            notes.append(f"{', '.join(older)} lacks bf16: its replicas compute in fp16")
        estimated = sorted({g.gpu for g in groups if g.calibration == "estimated"})
        if estimated:
            notes.append(f"calibration of {', '.join(estimated)} is estimated, not measured")
        if not all(math.isfinite(p.high.p99) for p in (prediction.ttft, prediction.tpot)):
            notes.append("at the upper end of the model error there is no steady state; headroom would help")
        if any(g.binds is Binding.NETWORK and g.utilization > NETWORK_NOTED for g in groups):
            notes.append("the network binds: a faster one carries more load on the same GPUs")
        return tuple(notes)
