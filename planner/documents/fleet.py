"""The fleet file: groups of replicas that run, or that somebody wrote down, and what they serve.

Read like a scenario: the schema, rules that span several keys, and names report into one error. What a
group breaks by its layout, memory or traffic is told along with them, as far as the rest of the file is
sound enough to say so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from planner import catalog
from planner.collectives import beneath, placement_problem, within_node
from planner.configuration import smallest_layout
from planner.documents.files import read_text
from planner.documents.fleet_schema import (
    LAYOUT_KEYS,
    PLAN_RESULTS,
    FleetDocument,
    FleetGroupDocument,
    FleetPrecisionDocument,
    FleetWorkloadDocument,
    check_each_group,
    check_pools,
    layout_path,
)
from planner.documents.look_ups import Named, look_up_demand, reporting, text_at
from planner.documents.profile_override import with_engine_profile
from planner.documents.scenario import (
    check_demand,
    measured_of,
    own_lengths,
    precision_of,
    replays,
    service_of,
    speculation_of,
    workload_of,
)
from planner.documents.scenario_schema import MeasuredDocument, SpeculativeDocument
from planner.documents.schema_base import DocumentModel
from planner.documents.shared_node import Stand, node_problems
from planner.documents.source import validate
from planner.documents.supply import bytes_per_second
from planner.documents.tree import KeyPath, Tree, dotted, only
from planner.documents.yaml_text import parse_tree
from planner.engines import engine_names, loading_prefixes, profiled_engine
from planner.engines.formats import gpu_obstacle
from planner.engines.legality import EndPoint, nearest_legal_tp, pair_violations, parallelism_violations
from planner.errors import Problem, SpecError
from planner.fleet import Deployed, Fleet
from planner.memory import (
    kv_capacity,
    memory_budgets,
    prefill_budget,
    sequence_limit,
    tightest,
    verified_sequences,
)
from planner.operators import ReplicaSet
from planner.plan import MemoryBudget
from planner.specs import (
    GPU,
    Engine,
    FleetItem,
    Lengths,
    MeasuredPoint,
    Model,
    Parallelism,
    Phase,
    Precision,
    Routing,
    Service,
    Slo,
    Speculation,
    Workload,
)
from planner.traces import Trace
from planner.traffic import unaccepted_tokens
from planner.transformer import equivalent_tokens
from planner.units import GIB

S = TypeVar("S", bound=DocumentModel)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedFleet:
    """A fleet with what its file says beside it; tuples run in parallel with the fleet's groups.

    Attributes
    ----------
    fleet : Fleet
        Groups share `request_rate` by the replicas of their pool. Without one their rate is 0, and the
        workload has the rate of its trace or preset, or 1.
    request_rate : float or None
        As the file gives it. [req/s]
    confidence : float
        Quantile of the model error to judge by. [1]
    names : tuple of str
        One of its own for each group.
    input_ranges : tuple of (float, float)
        Prompts that a router by length sends to each group: ``low <= isl < high``; all of them where the
        file says nothing. Ranges of a pool leave no prompt out, and may overlap. [tok]
    document : mapping
        The file as read.
    trace : Trace or None
        Requests that lengths are drawn from.
    replay : bool
        Whether a simulation plays them as they came.
    """

    fleet: Fleet
    request_rate: float | None
    confidence: float
    names: tuple[str, ...]
    input_ranges: tuple[tuple[float, float], ...]
    document: Mapping[str, Any]
    trace: Trace | None = None
    replay: bool = False

    @property
    def slo(self) -> Slo:
        """What the fleet is judged by."""
        return self.fleet.service.slo

    @property
    def prices(self) -> tuple[float | None, ...]:
        """Price of one GPU of each group; None: unknown. [USD/h]"""
        return tuple(group.item.price for group in self.fleet.groups)

    @property
    def cost(self) -> float | None:
        """Cost of the GPUs in use, without idle ones of a node; None where a price is unknown. [USD/h]"""
        costs = [
            None if g.item.price is None else g.item.price * g.replicas * g.parallelism.num_gpus
            for g in self.fleet.groups
        ]
        known = [cost for cost in costs if cost is not None]
        return math.fsum(known) if len(known) == len(costs) else None


def load_fleet(path: str | Path) -> LoadedFleet:
    """Read a fleet file.

    Raises
    ------
    SpecError
        With every problem of the file.
    """
    path = Path(path)
    return fleet_from_text(read_text(path), str(path), folder=path.parent)


def fleet_from_text(
    text: str, source_name: str = "fleet", *, folder: Path | None = None, engine_profile: Path | None = None
) -> LoadedFleet:
    """Read a fleet from YAML or JSON; `folder` is where its relative paths start.

    `engine_profile` takes the place of its engine.
    """
    tree, problems = parse_tree(text, source_name, folder)
    tree = with_engine_profile(tree, engine_profile)
    document, found = validate(tree, FleetDocument)
    results = {dotted(("groups", i, key)) for i in range(len(tree.entries("groups"))) for key in PLAN_RESULTS}
    problems += [problem for problem in found if problem.key not in results]  # a result may be null
    named = look_up_demand(tree)
    _look_up_gpus(tree, named)
    problems += named.problems
    served = _served(tree, named, problems)
    groups = _groups(tree, named, served) if served is not None else []
    if served is not None:
        problems += _check(tree, named, served, groups)
    if problems or document is None or named.model is None or served is None:
        raise SpecError.of_file(source_name, problems)
    return LoadedFleet(
        fleet=Fleet(
            service=replace(
                service_of(document, named.model, named.preset),
                measured=served.measured,
                profile=named.profile,
            ),
            engine=served.engine,
            groups=_deployed(served, groups, document.workload.request_rate or 0.0),
            routing=Routing(document.routing),
        ),
        request_rate=document.workload.request_rate,
        confidence=document.confidence,
        names=_names(groups),
        input_ranges=tuple((group.low, group.high) for group in groups),
        document=tree.raw,
        trace=named.trace if own_lengths(document.workload) else None,
        replay=replays(document.workload),
    )


class PlanGroupsDocument(DocumentModel):
    """The groups of a plan, as a fleet file would take them."""

    groups: list[FleetGroupDocument]

    @classmethod
    def check(cls, tree: Tree) -> list[Problem]:
        return check_each_group(tree)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanFleet:
    """What stands behind one router of a plan.

    Attributes
    ----------
    items : mapping of int to FleetItem
        By the number of each of its groups in the plan, the GPUs that it takes.
    """

    service: Service
    engine: Engine
    items: Mapping[int, FleetItem]


def plan_group_problems(tree: Tree, fleets: Sequence[PlanFleet]) -> list[Problem]:
    """What is wrong with the groups of a plan that somebody may have edited.

    Parameters
    ----------
    tree : Tree
        The plan as read.
    fleets : sequence of PlanFleet
        Of all its routers; each group belongs to one of them.
    """
    sound, problems = validate(replace(tree, root=only(tree.root, "groups")), PlanGroupsDocument)
    problems += [problem for fleet in fleets for problem in check_pools(tree, list(fleet.items))]
    if problems or sound is None:
        return problems
    for fleet in fleets:
        service = fleet.service
        served = _Served(
            service.model, service.precision, fleet.engine, service.workload, service.speculation
        )
        groups = [
            replace(_group(i, sound.groups[i], item.gpu, served), item=item)
            for i, item in fleet.items.items()
        ]
        problems += _check_groups(tree, served, groups)
    return problems


# --------------------------------------------------------------------------------------------
# What is sound of a file


@dataclass(frozen=True, slots=True)
class _Served:
    """What the groups are checked against; without workload where the file's is broken.

    `precision` is that of groups that do not give their own.
    """

    model: Model
    precision: Precision
    engine: Engine
    workload: Workload | None
    speculation: Speculation | None = None
    measured: MeasuredPoint | None = None


@dataclass(frozen=True, slots=True)
class _Group:
    """One group with what its file leaves to others filled in; `low`, `high` as in :class:`LoadedFleet`."""

    index: int
    document: FleetGroupDocument
    item: FleetItem
    layout: Parallelism
    precision: Precision
    token_budget: int
    max_num_seqs: int
    low: float
    high: float

    @property
    def phase(self) -> Phase:
        return self.document.phase

    @property
    def gpu(self) -> GPU:
        return self.item.gpu

    def takes(self, isl: float) -> bool:
        """Whether prompts of this length come here. [tok]"""
        return self.low <= isl < self.high

    def longest_prompt(self, lengths: Lengths) -> float:
        """[tok]"""
        return min(lengths.isl.maximum, self.high - 1)

    def longest(self, lengths: Lengths) -> float:
        """Tokens of the longest sequence that is kept here: a prompt, and beyond prefill its answer. [tok]"""
        prompt = self.longest_prompt(lengths)
        return prompt if self.phase is Phase.PREFILL else min(lengths.longest, prompt + lengths.osl.maximum)


def _look_up_gpus(tree: Tree, named: Named) -> None:
    for i in range(len(tree.entries("groups"))):
        path: KeyPath = ("groups", i, "gpu")
        if name := text_at(tree, *path):
            with reporting(named, tree, path):
                named.gpus[i] = catalog.load_gpu(name, tree.folder)


def _sound(value: Any, schema: type[S]) -> S | None:
    """One part of a file, where it fits its schema."""
    try:
        return schema.model_validate_json(json.dumps(value), strict=True)
    except ValidationError:
        return None


def _served(tree: Tree, named: Named, problems: list[Problem]) -> _Served | None:
    """Model, formats and engine, and the workload if nothing is wrong with it.

    What is wrong with a measured point joins `problems`.
    """
    precision = _sound(tree.get("precision") or {}, FleetPrecisionDocument)
    engine = tree.get("engine") if tree.has("engine") else FleetDocument.model_fields["engine"].default
    if named.model is None or precision is None or engine not in engine_names():
        return None
    workload = _sound(tree.get("workload"), FleetWorkloadDocument)
    broken = {problem.key.partition(".")[0] for problem in problems}
    speculative = tree.get("speculative") if "speculative" not in broken else None
    measured = tree.get("measured") if "measured" not in broken else None
    formats = precision_of(precision, named.model)
    plain = profiled_engine(engine, named.profile)
    point = measured_of(
        tree,
        None if measured is None else _sound(measured, MeasuredDocument),
        named,
        plain,
        formats,
        problems,
    )
    traffic = None if "workload" in broken or workload is None else workload_of(workload, named.preset)
    if traffic is not None:
        plain = loading_prefixes(plain, traffic)
    return _Served(
        named.model,
        formats,
        plain if point is None else plain.with_factor(named.model.shape, point.factor),
        traffic,
        speculation_of(None if speculative is None else _sound(speculative, SpeculativeDocument)),
        point,
    )


def _groups(tree: Tree, named: Named, served: _Served) -> list[_Group]:
    """The groups that fit the schema and have a known GPU."""
    documents = [_sound(entry, FleetGroupDocument) for entry in tree.entries("groups")]
    return [
        _group(i, document, named.gpus[i], served)
        for i, document in enumerate(documents)
        if document is not None and i in named.gpus
    ]


def _group(index: int, document: FleetGroupDocument, gpu: GPU, served: _Served) -> _Group:
    engine, own = served.engine, document.precision
    sizes = document if document.parallelism is None else document.parallelism
    layout = Parallelism(**{key: getattr(sizes, key) or 1 for key in LAYOUT_KEYS})
    network = bytes_per_second(document.network_gbps_per_gpu)
    item = FleetItem(
        gpu=gpu,
        price=document.price_per_gpu_hour,
        max_gpus=None,
        node_size=document.node_size or gpu.node_size,
        network_bandwidth=gpu.network_bandwidth if network is None else network,
        network_given=network is not None,
        rdma=document.rdma,
        zone=document.zone or "",
    )
    item = beneath(item, layout)
    prompts = document.input_tokens
    budget = document.max_num_batched_tokens or prefill_budget(engine, gpu)
    sequences = sequence_limit(engine, gpu, document.phase)
    if document.phase is not Phase.PREFILL:
        sequences = verified_sequences(sequences, budget, served.speculation)
    return _Group(
        index=index,
        document=document,
        item=within_node(item) if document.same_node else item,
        layout=layout,
        precision=served.precision if own is None else Precision.of(served.model, own.weights, own.kv_cache),
        token_budget=budget,
        max_num_seqs=document.max_num_seqs or layout.dp * sequences,
        low=float(prompts.min or 0) if prompts is not None else 0.0,
        high=prompts.max + 1.0 if prompts is not None and prompts.max is not None else math.inf,
    )


# --------------------------------------------------------------------------------------------
# What groups may break


def _check(tree: Tree, named: Named, served: _Served, groups: Sequence[_Group]) -> list[Problem]:
    """What model, engine and traffic forbid."""
    problems: list[Problem] = []
    if served.workload is not None:
        problems += check_demand(tree, served.model, served.workload, named.trace)
        if problems:
            served = replace(served, workload=None)  # what follows from them goes without saying
    whole = len(groups) == len(tree.entries("groups")) and all(group.low < group.high for group in groups)
    if served.workload is not None and whole:
        problems += _check_ranges(tree, served.workload.lengths, groups)
    return [*problems, *_check_groups(tree, served, groups)]


def _check_groups(tree: Tree, served: _Served, groups: Sequence[_Group]) -> list[Problem]:
    """Layouts, formats and memory of each group, and which pairs of them may work together."""
    problems: list[Problem] = []
    legal = []
    for group in groups:
        broken = list(_check_layout(tree, served, group))
        if not broken:
            legal.append(group)
            broken += _check_memory(tree, served, group)
        problems += broken
    stands = [Stand(g.index, g.item, g.document.replicas * g.layout.num_gpus) for g in groups]
    problems += node_problems(tree, served.engine, stands)
    return [*problems, *_check_pairs(tree, served, legal)]


def _check_layout(tree: Tree, served: _Served, group: _Group) -> Iterator[Problem]:
    """A replica is one that the engine runs, on links and kernels that are known."""
    model, layout, i = served.model, group.layout, group.index
    broken: set[str] = set()  # sizes, each told once
    obstacle = gpu_obstacle(group.gpu, served.engine)
    if obstacle:
        yield tree.problem(("groups", i, "gpu"), obstacle)
    for violation in parallelism_violations(model, layout, group.precision):
        key = violation.rule.partition(".")[0]
        if key not in broken:
            nearest = nearest_legal_tp(model, layout.tp, group.precision) if key == "tp" else 0
            hint = f"the nearest legal TP is {nearest}" if nearest else ""
            yield tree.problem(layout_path(tree, i, key), violation.reason, hint)
        broken.add(key)
    if group.phase is Phase.COLOCATED and layout.dp > 1:
        broken.add("dp")
        rule = "colocated replicas with attention data parallelism are not modelled"
        yield tree.problem(layout_path(tree, i, "dp"), rule, "use prefill and decode groups, or TP")
    rule = placement_problem(group.item, layout)
    if rule and not broken:
        broken.add("num_gpus")
        yield tree.problem(("groups", i), rule, show_value=False)
    if not broken:
        try:
            ReplicaSet.of(model, group.precision, served.engine, [(group.gpu, layout)])
        except SpecError as error:
            yield tree.problem(("groups", i), str(error), show_value=False)


def _budgets(served: _Served, group: _Group) -> tuple[MemoryBudget, ...]:
    sequences = math.ceil(group.max_num_seqs / group.layout.dp)
    return memory_budgets(
        served.model, group.precision, served.engine, group.gpu, group.layout, group.token_budget, sequences,
        served.speculation,
    )  # fmt: skip


def _kv_tokens(served: _Served, group: _Group) -> int:
    """Tokens of a replica's KV cache: as given, else what the memory model leaves."""
    given = group.document.kv_capacity_tokens
    if given is not None:
        return given
    budgets = _budgets(served, group)
    return kv_capacity(served.model, group.precision, served.engine, group.layout, budgets)


def _check_memory(tree: Tree, served: _Served, group: _Group) -> Iterator[Problem]:
    """Weights and the longest sequence fit, and no more KV cache is claimed than a GPU could hold.

    A KV cache that is given was seen by somebody: it counts, whatever the memory model estimates for
    activations and reserves.
    """
    budgets, layout = _budgets(served, group), group.layout
    memory, path = tightest(budgets), ("groups", group.index)
    yield from _check_verified(tree, served, group)
    given: KeyPath = (*path, "kv_capacity_tokens")
    if group.document.kv_capacity_tokens is not None:
        most = kv_capacity(
            served.model, group.precision, served.engine, layout,
            tuple(_bare(budget, group.gpu.memory) for budget in budgets),
        )  # fmt: skip
        if group.document.kv_capacity_tokens > most:
            rule = f"exceeds the {most:,} tokens that {group.gpu.name} {layout} holds beside the weights"
            yield tree.problem(given, rule)
            return
    elif not memory.fits:
        rule = (
            f"weights, activations and reserves exceed the memory of {group.gpu.name} {layout} by "
            f"{-memory.kv_cache / GIB:.1f} GiB per GPU"
        )
        hint = _smallest(served, group) or "lower max_num_batched_tokens or max_num_seqs"
        yield tree.problem(path, rule, hint, show_value=False)
        return
    if served.workload is None:
        return
    longest = group.longest(served.workload.lengths)
    limit = group.document.max_model_len
    if limit is not None and limit < longest:
        rule = f"is less than the longest sequence here, {longest:,.0f} tokens"
        yield tree.problem((*path, "max_model_len"), rule, "raise it, or cut input_tokens of the workload")
    tokens = _kv_tokens(served, group) // layout.dp
    kv_cache = group.precision.kv_cache
    beside = unaccepted_tokens(served.model, kv_cache, served.speculation)
    kept = float(equivalent_tokens(served.model, kv_cache, longest))
    needed = math.ceil(kept + (0.0 if group.phase is Phase.PREFILL else beside))
    if tokens < needed:
        rank = " of a rank" if layout.dp > 1 else ""
        rule = f"KV cache{rank} holds {tokens:,} tokens, the longest sequence needs {needed:,}"
        where = given if tree.has(*given) else path
        hint = "more GPUs per replica hold more; input_tokens: {max: ...} keeps long prompts away"
        yield tree.problem(where, rule, hint, show_value=False)


def _check_verified(tree: Tree, served: _Served, group: _Group) -> Iterator[Problem]:
    """A step has room for the drafted tokens of all sequences."""
    if served.speculation is None or group.phase is Phase.PREFILL:
        return
    sequences, rows = math.ceil(group.max_num_seqs / group.layout.dp), served.speculation.rows
    if sequences * rows > group.token_budget:
        rule = (
            f"{sequences:,} sequences with draft_tokens + 1 = {rows} tokens each to verify make a step of "
            f"{sequences * rows:,} tokens, more than max_num_batched_tokens, {group.token_budget:,}"
        )
        given = tree.has("groups", group.index, "max_num_seqs")
        path = ("groups", group.index, "max_num_seqs" if given else "max_num_batched_tokens")
        yield tree.problem(path, rule, f"at most {group.token_budget // rows:,} sequences")


def _bare(budget: MemoryBudget, memory: float) -> MemoryBudget:
    """A GPU that holds weights and KV cache, and nothing else."""
    return replace(budget, activations=0.0, reserved=0.0, kv_cache=memory - budget.weights, usable=memory)


def _smallest(served: _Served, group: _Group) -> str:
    """The smallest layout that fits, as a suggestion; empty where the group's own is no smaller."""
    gpu = replace(group.gpu, node_size=group.item.node_size)
    fewest = smallest_layout(served.model, group.precision, served.engine, gpu, served.speculation)
    if fewest is None:
        return f"no layout of one node of {gpu.node_size} GPUs fits"
    larger = fewest.num_gpus > group.layout.num_gpus
    return f"the smallest layout that fits is {fewest}" if larger else ""


def _check_pairs(tree: Tree, served: _Served, groups: Sequence[_Group]) -> Iterator[Problem]:
    """Every prefill group hands its KV caches to every decode group that takes some of its prompts."""
    prefill = [group for group in groups if group.phase is Phase.PREFILL]
    for decode in (group for group in groups if group.phase is Phase.DECODE):
        for source in prefill:
            if max(source.low, decode.low) >= min(source.high, decode.high):
                continue  # they share no prompt
            ends = _end(served, source), _end(served, decode)
            broken = list(pair_violations(*ends, served.model, served.engine.pair_rules))
            if broken:
                rule = f"cannot take KV caches from groups[{source.index}]: {'; '.join(map(str, broken))}"
                yield tree.problem(("groups", decode.index), rule, show_value=False)


def _end(served: _Served, group: _Group) -> EndPoint:
    return EndPoint(
        parallelism=group.layout,
        gpu=group.gpu.name,
        vendor=group.gpu.vendor,
        kv_cache=group.precision.kv_cache,
        block_size=served.engine.block_size,
    )


def _check_ranges(tree: Tree, lengths: Lengths, groups: Sequence[_Group]) -> Iterator[Problem]:
    """A router by length sends every prompt somewhere, and something to every group."""
    points = lengths.isl.points
    for group in groups:
        if not any(group.takes(isl) for isl in points):
            nearest = min(points, key=lambda isl: max(group.low - isl, isl - group.high))
            path = ("groups", group.index, "input_tokens")
            rule = "holds none of the prompt lengths that the workload is computed with"
            yield tree.problem(path, rule, f"the nearest is {nearest:,.0f} tokens", show_value=False)
    for phase in Phase:
        pool = sorted((g.low, g.high) for g in groups if g.phase is phase)
        for first, last in _gaps(pool, math.floor(points[0]), lengths.isl.maximum) if pool else ():
            rule = (
                f"no {phase} group takes prompts of {first:,.0f} to {last:,.0f} tokens; the workload has "
                f"{points[0]:,.0f} to {lengths.isl.maximum:,.0f}"
            )
            yield tree.problem(("groups",), rule, "widen input_tokens of a group", show_value=False)


def _gaps(ranges: Sequence[tuple[float, float]], first: float, last: float) -> Iterator[tuple[float, float]]:
    """Whole numbers from `first` to `last` that none of the ascending `ranges` holds, as (first, last)."""
    reach = first
    for low, high in ranges:
        if low > reach and reach <= last:
            yield reach, min(low - 1, last)
        reach = max(reach, high)
    if reach <= last:
        yield reach, last


# --------------------------------------------------------------------------------------------
# Into the result


def _deployed(served: _Served, groups: Sequence[_Group], request_rate: float) -> tuple[Deployed, ...]:
    """Groups that share the requests by the replicas of their pool."""
    pools = {phase: sum(g.document.replicas for g in groups if g.phase is phase) for phase in Phase}
    return tuple(
        Deployed(
            phase=group.phase,
            item=group.item,
            parallelism=group.layout,
            replicas=group.document.replicas,
            rate=request_rate * group.document.replicas / pools[group.phase],
            token_budget=group.token_budget,
            kv_tokens=_kv_tokens(served, group),
            max_num_seqs=group.max_num_seqs,
            precision=group.precision,
        )
        for group in groups
    )


def _names(groups: Sequence[_Group]) -> tuple[str, ...]:
    """Names as given, else as a plan would give them, told apart by numbers."""
    plain = [
        group.document.name or f"{group.phase}-{group.gpu.name}-{str(group.layout).lower().replace(' ', '-')}"
        for group in groups
    ]
    taken = {group.document.name for group in groups}
    names = []
    for group, name in zip(groups, plain, strict=True):
        numbered = (f"{name}-{k}" for k in range(1, len(groups) + 1))
        if group.document.name is None and plain.count(name) > 1:
            name = next(other for other in numbered if other not in taken)
        taken.add(name)
        names.append(name)
    return tuple(names)
