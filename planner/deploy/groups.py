"""Groups of engines, with every setting that a plan counts on."""

from __future__ import annotations

import math
from collections.abc import Mapping

from planner.deploy.attention import Pinned, block_size_of, kind_of, pinned_backend
from planner.deploy.description import (
    EngineGroup,
    NodeLabel,
    Transfer,
    TransferSide,
)
from planner.deploy.engine_facts import EngineFacts, node_label
from planner.deploy.pairs import require_equal_heads, require_pairs
from planner.deploy.words import safe_text
from planner.documents.site_schema import SiteDocument
from planner.engines.legality import EndPoint
from planner.fleet import Deployed
from planner.memory import memory_budgets, step_bytes, tightest
from planner.specs import (
    Dtype,
    Engine,
    Model,
    Phase,
    Precision,
    Service,
    StateMixer,
    rows_per_sequence,
)
from planner.standing import Standing
from planner.units import MILLI


def precision_of(service: Service, group: Deployed) -> Precision:
    """Formats of a group: its own, or the service's."""
    return group.precision or service.precision


def _activations(standing: Standing) -> Dtype:
    """The 16-bit format that all GPUs of a front compute in; both sides of a hand-over have to agree."""
    everywhere = all(Dtype.BF16 in group.item.gpu.peak_flops for group in standing.fleet.groups)
    own = standing.fleet.service.model.checkpoint_dtype
    return Dtype.FP16 if own is Dtype.FP16 or not everywhere else Dtype.BF16


def _pinned(standing: Standing, facts: EngineFacts, site: SiteDocument) -> dict[int, Pinned]:
    """Backend of every group: one where KV caches are exchanged, each its own where they are not."""
    service, engine, groups = standing.fleet.service, standing.fleet.engine, standing.fleet.groups
    if site.attention_backend is not None:
        name = safe_text("attention_backend", site.attention_backend)
        known = facts.backends.get(name)
        size = engine.block_size if known is None else block_size_of(known, engine.block_size)
        return dict.fromkeys(range(len(groups)), Pinned(name, size))
    exchanged = any(group.phase is Phase.PREFILL for group in groups)
    together = [list(range(len(groups)))] if exchanged else [[i] for i in range(len(groups))]
    pinned: dict[int, Pinned] = {}
    for members in together:
        gpus = [groups[i].item.gpu for i in members]
        kv_cache = precision_of(service, groups[members[0]]).kv_cache
        backend = pinned_backend(facts, service.model, gpus, kv_cache, engine.block_size)
        pinned |= dict.fromkeys(members, backend)
    return pinned


def groups_of(
    standing: Standing,
    names: Mapping[str, str],
    facts: EngineFacts,
    site: SiteDocument,
    images: Mapping[str, str],
) -> tuple[EngineGroup, ...]:
    """The groups of a front, by their `names` in the deployment; `images` are those of vendors.

    Raises
    ------
    SpecError
        A pair of them cannot exchange KV caches, or no attention backend runs on all.
    """
    service, engine, groups = standing.fleet.service, standing.fleet.engine, standing.fleet.groups
    ends = [
        (name, group.phase, _end(standing, group)) for name, group in zip(standing.names, groups, strict=True)
    ]
    require_pairs(
        [(name, end) for name, phase, end in ends if phase is Phase.PREFILL],
        [(name, end) for name, phase, end in ends if phase is Phase.DECODE],
        service.model,
        engine,
    )
    if facts.equal_heads and any(phase is not Phase.COLOCATED for _, phase, _ in ends):
        require_equal_heads(service.model, f"{facts.engine} {facts.version}")
    pinned = _pinned(standing, facts, site)
    has_state = _has_state(service.model)
    activations = _activations(standing)
    vendors = {group.item.gpu.vendor for group in groups if group.phase is not Phase.COLOCATED}
    different = len({group.parallelism.tp for group in groups if group.phase is not Phase.COLOCATED}) > 1
    out = []
    for i, (name, group) in enumerate(zip(standing.names, groups, strict=True)):
        precision = precision_of(service, group)
        pool = math.fsum(other.rate for other in groups if other.phase is group.phase)
        out.append(
            EngineGroup(
                name=names[name],
                planned_name=name,
                role=group.phase,
                gpu=group.item.gpu.name,
                vendor=group.item.gpu.vendor,
                node_label=_label(group.item.gpu.name, site),
                zone=group.item.zone,
                replicas=group.replicas,
                parallelism=group.parallelism,
                nodes=math.ceil(group.parallelism.num_gpus / group.item.node_size),
                max_num_seqs=math.ceil(group.max_num_seqs / group.parallelism.dp),
                max_num_batched_tokens=group.token_budget,
                max_model_len=standing.longest[i],
                memory_fraction=_memory_fraction(standing, group),
                weights=precision.weights,
                kv_cache=precision.kv_cache,
                activations=activations,
                quantize=_quantized_at_load(service, precision, engine, site),
                block_size=pinned[i].block_size,
                prefix_caching=not has_state or service.workload.prefix_hit_rate > 0,
                attention_backend=pinned[i].name,
                contiguous_heads=different,
                has_state=has_state,
                latent=kind_of(service.model) != "heads",
                transfer=_transfer(group.phase, engine.connector, by_host=len(vendors) > 1),
                share=group.rate / pool if pool else 0.0,
                image=images[group.item.gpu.vendor],
            )
        )
    return tuple(out)


def _memory_fraction(standing: Standing, group: Deployed) -> float:
    """Share of a GPU that the engine takes, as its flag counts it. [1]

    An engine with a rule for steps counts weights and KV cache only, of what is free once it stands. One that
    leaves some memory free (`free_share`) counts the KV cache only, of what weights and a step leave of the
    whole GPU: the share that the plan's own budget gives it, on the stage with the least.
    """
    service, engine = standing.fleet.service, standing.fleet.engine
    gpu, layout = group.item.gpu, group.parallelism
    if engine.free_share < 1:
        return _share_of_free(standing, group)
    if engine.step_reserve is None:
        return engine.memory_utilization
    outside = engine.non_torch_single if layout.num_gpus == 1 else engine.non_torch_parallel
    sampled = math.ceil(group.max_num_seqs / layout.dp) * rows_per_sequence(service.speculation)
    step = step_bytes(service.model, engine, gpu, layout, group.token_budget, sampled)
    free = gpu.memory * engine.memory_utilization - outside
    return math.floor((1 - step / free) / MILLI) * MILLI  # three digits, as SGLang rounds its own


def _share_of_free(standing: Standing, group: Deployed) -> float:
    """Share for the KV cache of what weights, steps, and what lies outside the allocator leave. [1]"""
    service, engine = standing.fleet.service, standing.fleet.engine
    gpu, layout = group.item.gpu, group.parallelism
    ranks = math.ceil(group.max_num_seqs / layout.dp)
    budget = tightest(
        memory_budgets(
            service.model, precision_of(service, group), engine, gpu, layout, group.token_budget, ranks,
            service.speculation,
        )
    )  # fmt: skip
    outside = engine.non_torch_single if layout.num_gpus == 1 else engine.non_torch_parallel
    free = gpu.memory - budget.weights - budget.activations - outside
    return round(budget.kv_cache / free / MILLI) * MILLI


def _end(standing: Standing, group: Deployed) -> EndPoint:
    return EndPoint(
        parallelism=group.parallelism,
        gpu=group.item.gpu.name,
        vendor=group.item.gpu.vendor,
        kv_cache=precision_of(standing.fleet.service, group).kv_cache,
        block_size=standing.fleet.engine.block_size,
    )


def _transfer(role: Phase, connector: str, *, by_host: bool) -> Transfer | None:
    if role is Phase.COLOCATED:
        return None
    side = TransferSide.SENDS if role is Phase.PREFILL else TransferSide.RECEIVES
    return Transfer(connector=connector, side=side, by_host=by_host)


def _quantized_at_load(service: Service, precision: Precision, engine: Engine, site: SiteDocument) -> bool:
    """Whether the engine makes the weights' format; a checkpoint that the site names has it already."""
    own = Precision.of(service.model).weights
    makes = own.is_16_bit and precision.weights in engine.load_time_dtypes
    return precision.weights is not own and makes and service.name not in site.models


def _has_state(model: Model) -> bool:
    return any(isinstance(run.layer.attention, StateMixer) for run in model.layers)


def _label(gpu: str, site: SiteDocument) -> NodeLabel:
    if gpu not in site.node_labels:
        return node_label(gpu)
    given = site.node_labels[gpu]
    return NodeLabel(
        key=safe_text(f"node_labels: {gpu}", given.key), value=safe_text(f"node_labels: {gpu}", given.value)
    )
