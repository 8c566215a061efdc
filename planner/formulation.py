"""From a scenario to its program: candidates of every stream, lines of the fleet, limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from planner.candidates import CandidateSet, ReplicaChoice, build_candidates, replicas_in_stock
from planner.documents.scenario import LoadedScenario
from planner.engines import engine_of
from planner.lines import expanded, merged_lines
from planner.program import Candidate, GpuType, Problem
from planner.program.problem import Stream
from planner.question import Question
from planner.specs import Engine, FleetItem, Objective, PriceClass, Scenario, Service
from planner.traffic import Traffic
from planner.transformer import kv_bytes
from planner.units import KILO, SECONDS_PER_HOUR

Build = Callable[[Scenario, Service, Engine], CandidateSet]
"""What gives the candidates of a service."""


def questions_of(loaded: LoadedScenario, build: Build = build_candidates) -> tuple[Question, ...]:
    """What a scenario asks of each of its services, with candidates."""
    services = loaded.scenario.services
    alone = len(services) == 1
    return tuple(
        question_of(loaded, service, asked=k, alone=alone, build=build) for k, service in enumerate(services)
    )


def question_of(
    loaded: LoadedScenario,
    service: Service,
    *,
    asked: int,
    alone: bool,
    build: Build = build_candidates,
    prompts: tuple[float, float] | None = None,
) -> Question:
    """What is asked of `service`, which is that number `asked` of the scenario, or a part of it."""
    engine = engine_of(service)
    bare = Question(
        scenario=loaded.scenario,
        document=loaded.document,
        service=service,
        engine=engine,
        candidates=CandidateSet(),
        asked=asked,
        alone=alone,
        prompts=prompts,
    )
    return with_candidates(bare, build)


def with_candidates(question: Question, build: Build = build_candidates) -> Question:
    """`question` with the candidates that `build` gives."""
    scenario, service = question.scenario, question.service
    lines = merged_lines(scenario.fleet)
    physical = replace(scenario, fleet=tuple(line.item for line in lines))
    found = expanded(build(physical, service, question.engine), scenario, lines)
    factors = [availability(scenario, scenario.fleet[choice.item]) for choice in found.choices]
    return scaled(replace(question, candidates=found), factors)


def availability(scenario: Scenario, item: FleetItem) -> float:
    """Share of the time that a replica serves: spot replicas are taken away, and take time to come back."""
    if item.price_class is not PriceClass.SPOT:
        return 1.0
    return 1.0 / (1.0 + item.interruptions * scenario.options.spot_recovery)


def scaled(question: Question, factors: Sequence[float]) -> Question:
    """`question` with the capacity of each candidate times its factor. [1]"""
    found = question.candidates
    candidates = tuple(
        candidate if factor == 1.0 else _scaled(question, candidate, choice, factor)
        for candidate, choice, factor in zip(found.candidates, found.choices, factors, strict=True)
    )
    return replace(question, candidates=replace(found, candidates=candidates))


def _scaled(question: Question, candidate: Candidate, choice: ReplicaChoice, factor: float) -> Candidate:
    rates = tuple(factor * rate for rate in candidate.curve.per_replica)
    most = candidate.max_replicas
    if 0 < factor < 1:
        stock = replicas_in_stock(question.item(choice), choice)
        most = max(most, min(stock, math.ceil(most / factor)))
    return replace(candidate, curve=replace(candidate.curve, per_replica=rates), max_replicas=most)


def program_candidates(questions: Sequence[Question]) -> tuple[Candidate, ...]:
    """Candidates of all questions, as those of the program's streams."""
    if len(questions) == 1:
        return questions[0].candidates.candidates
    return tuple(
        replace(c, stream=k, name=f"{q.service.name}:{c.name}")
        for k, q in enumerate(questions)
        for c in q.candidates.candidates
    )


def gpu_type(scenario: Scenario, item: FleetItem) -> GpuType:
    """What the program knows of a line of the fleet; owned GPUs cost no more than their power."""
    power = item.gpu.power
    price = 0.0 if item.owned else item.price
    if scenario.power is not None:
        power = scenario.power.drawn(item.gpu.power)
        price = None if price is None else price + scenario.power.price * power / KILO
    return GpuType(
        name=item.name,
        price=price,
        power=power,
        node_size=item.node_size,
        max_gpus=item.max_gpus,
        max_gpus_by_phase=item.max_gpus_by_phase,
        zone=item.zone,
        spot=item.price_class is PriceClass.SPOT,
        kind=item.gpu.name,
    )


def build_problem(questions: Sequence[Question], gap: float) -> Problem:
    """The program of all questions of one scenario."""
    scenario = questions[0].scenario
    options = scenario.options
    rates = [q.service.workload.request_rate for q in questions]
    total = sum(rates)
    demand = total * (1 + options.headroom)
    pairs: set[tuple[int, int]] = set()
    start = 0
    for q in questions:
        pairs |= {(i + start, j + start) for i, j in q.candidates.illegal_pairs}
        start += len(q.candidates.candidates)
    return Problem(
        candidates=program_candidates(questions),
        gpu_types=tuple(gpu_type(scenario, item) for item in scenario.fleet),
        demand=None if scenario.objective is Objective.THROUGHPUT else demand,
        streams=tuple(_stream(q, rate / total) for q, rate in zip(questions, rates, strict=True)),
        objective=scenario.objective,
        budget=scenario.budget,
        illegal_pairs=frozenset(pairs),
        min_replicas_per_pool=options.min_replicas_per_pool,
        spare_replicas=options.spare_replicas,
        spare_scope=options.spare_scope,
        survive_node=options.survive_node,
        survive_zone=options.survive_zone,
        surge_replicas=options.surge_replicas,
        on_demand_floor=options.on_demand_floor,
        across_zones=scenario.egress_price is not None,
        zone_caps=scenario.zones,
        power_cap=None if scenario.power is None else scenario.power.cap,
        whole_nodes=options.whole_nodes,
        colocated=options.colocated,
        gap=gap,
    )


def _stream(question: Question, share: float) -> Stream:
    name = "" if question.alone else question.service.name
    return Stream(name=name, share=share, egress_cost=_egress_cost(question))


def _egress_cost(question: Question) -> float:
    """Of KV caches that change zones. [USD/h per req/s]"""
    price = question.scenario.egress_price
    if price is None:
        return 0.0
    traffic = Traffic.of_service(question.service)
    sizes = kv_bytes(question.service.model, question.service.precision.kv_cache, traffic.isl)
    return float(traffic.isl_weights @ sizes) * price * SECONDS_PER_HOUR
