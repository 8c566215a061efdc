"""A folder back as a plan: the one that it was written for, with what its scripts say today."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from planner.deploy.build import plan_id
from planner.deploy.command_line import FlagList
from planner.deploy.dialect import Dialect
from planner.deploy.reading import (
    GroupEntry,
    Manifest,
    ReadEngine,
    engine_flags,
    engine_of_script,
    read_manifest,
    read_scripts,
)
from planner.documents.plan import load_plan
from planner.errors import SpecError
from planner.memory import kv_capacity, memory_budgets, tightest
from planner.plan import Group, Plan, PlanStatus
from planner.specs import Precision
from planner.standing import Standing, standing_plans


def folder_plan(folder: Path, dialect: Dialect) -> Plan:
    """The plan of a folder of scripts, as these have it today.

    Raises
    ------
    SpecError
        The folder has not all that emit writes, or its plan is another one.
    """
    manifest = read_manifest(folder)
    engines = {
        name: (engine_of_script(name, script, dialect.program), script.engines)
        for name, script in read_scripts(folder, manifest).items()
    }
    return plan_of_engines(folder, manifest, dialect, engines, engine_flags(manifest))


def plan_of_engines(
    folder: Path,
    manifest: Manifest,
    dialect: Dialect,
    engines: Mapping[str, tuple[ReadEngine, int]],
    flags: FlagList,
) -> Plan:
    """The plan that a folder was written for; where engines were changed, groups are as these have them.

    Memory and KV cache of changed groups are computed anew; what was predicted is that of the plan before,
    and marked so.

    Parameters
    ----------
    engines : mapping
        An engine of every group, and how many there are of it.

    Raises
    ------
    SpecError
        A group has no engine, or the plan is another one.
    """
    plan = load_plan(folder / "plan.yaml")
    if plan_id(plan) != manifest.plan:
        rule = f"is not the plan {manifest.plan} that the files were written for"
        raise SpecError(f"{folder / 'plan.yaml'}: {rule} (use it by itself, or emit it again)")
    standings = {name: s for s in standing_plans(plan, folder, str(folder)) for name in s.names}
    groups = {group.name: group for group in plan.groups}
    for entry in manifest.groups:
        if entry.planned_name not in groups or entry.name not in engines:
            raise SpecError(f"{folder}: group {entry.name} has no engine, or is not in the plan")
        engine, count = engines[entry.name]
        planned = groups[entry.planned_name]
        standing = standings[entry.planned_name]
        groups[entry.planned_name] = _read_group(dialect, planned, engine, count, entry, standing, flags)
    changed = [name for name, group in groups.items() if group not in plan.groups]
    return plan if not changed else _with_groups(plan, groups, changed)


def _read_group(
    dialect: Dialect,
    planned: Group,
    engine: ReadEngine,
    replicas: int,
    entry: GroupEntry,
    standing: Standing,
    flags: FlagList,
) -> Group:
    layout = dialect.layout(engine, flags)
    if layout is None:
        raise SpecError(f"{engine.file}: the sizes of its engines cannot be read")
    kept = planned.parallelism == layout
    limits = dialect.limits
    shared = layout.dp if limits.of_all_ranks else 1
    ranks = max(_number(engine, flags, limits.sequences) // shared, 1)
    sequences = ranks * layout.dp
    if kept and ranks == math.ceil(planned.max_num_seqs / layout.dp):
        sequences = planned.max_num_seqs
    read = replace(
        planned,
        replicas=replicas,
        parallelism=layout,
        precision=_precision(dialect, planned, engine, standing, flags),
        max_num_seqs=sequences,
        max_num_batched_tokens=max(_number(engine, flags, limits.tokens) // shared, 1),
        max_model_len=_number(engine, flags, limits.longest),
    )
    if read == planned:
        return planned
    return _costed(_in_memory(read, entry, standing), planned)


def _number(engine: ReadEngine, flags: FlagList, name: str) -> int:
    text = engine.value(flags, name)
    if not text.isdecimal() or not int(text):
        raise SpecError(f"{engine.file}: {name} must be a whole number, got {text or 'nothing'!r}")
    return int(text)


def _precision(
    dialect: Dialect, planned: Group, engine: ReadEngine, standing: Standing, flags: FlagList
) -> Precision:
    """Formats as the flags have them; what no flag says is as planned."""
    said, service = engine.value(flags, dialect.kv_cache), standing.fleet.service
    kv_cache = dialect.formats.get(said, planned.precision.kv_cache)
    if said == "auto" and not kv_cache.is_16_bit:
        kv_cache = Precision.of(service.model).kv_cache  # that of activations
    own = Precision.of(service.model).weights
    made = engine.value(flags, dialect.quantization)
    weights = dialect.formats.get(made, planned.precision.weights)
    loads_own = engine.model(flags, dialect.model_flag) == service.model.name
    if not made and loads_own and planned.precision.weights is not own:
        weights = own
    return replace(planned.precision, weights=weights, kv_cache=kv_cache)


def _in_memory(group: Group, entry: GroupEntry, standing: Standing) -> Group:
    """With the memory that its engines have now."""
    at = standing.names.index(entry.planned_name)
    service, engine = standing.fleet.service, standing.fleet.engine
    gpu = standing.fleet.groups[at].item.gpu
    precision = Precision.of(service.model, group.precision.weights, group.precision.kv_cache)
    ranks = math.ceil(group.max_num_seqs / group.parallelism.dp)
    budgets = memory_budgets(
        service.model, precision, engine, gpu, group.parallelism, group.max_num_batched_tokens, ranks,
        service.speculation,
    )  # fmt: skip
    tokens = kv_capacity(service.model, precision, engine, group.parallelism, budgets)
    return replace(group, memory=tightest(budgets), kv_capacity=max(tokens, 0))


def _costed(group: Group, planned: Group) -> Group:
    """Cost by GPUs, capacity by replicas."""
    cost = None if planned.cost is None else planned.cost / planned.num_gpus * group.num_gpus
    capacity = planned.capacity / planned.replicas * group.replicas
    return replace(group, cost=cost, capacity=capacity)


def _with_groups(plan: Plan, groups: Mapping[str, Group], changed: list[str]) -> Plan:
    """The plan with changed groups: nothing of it is proven or simulated any more."""
    before = {group.name: group for group in plan.groups}
    costs = [(groups[name].cost, before[name].cost) for name in changed]
    more = sum(new - old for new, old in costs if new is not None and old is not None)
    nodes = []
    for use in plan.nodes:
        place = (use.gpu, use.zone, use.price_class)
        used = sum(g.num_gpus for g in groups.values() if (g.gpu, g.zone, g.price_class) == place)
        nodes.append(replace(use, gpus_used=used, gpus_paid=max(use.gpus_paid, used)))
    note = f"changed since it was planned: {', '.join(changed)}; predictions are those from before"
    return replace(
        plan,
        status=PlanStatus.FEASIBLE,
        gap=math.inf,
        groups=tuple(groups[group.name] for group in plan.groups),
        nodes=tuple(nodes),
        cost=None if plan.cost is None else plan.cost + more,
        verification=None,
        notes=(*plan.notes, note),
    )
