"""Prompts divided by length on Dynamo: a graph per pool, and the global router before them.

The global router picks a pool by a grid of equal steps of prompt length. Every pool has a router of its own
in the namespace of its graph, which the operator calls by the cluster's namespace and the graph's name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.deploy.description import Deployment, Front
from planner.deploy.findings import Finding
from planner.deploy.kubernetes.dynamo_graphs import (
    FRONTEND,
    KIND,
    MAIN,
    ROUTER_MODE,
    component,
    graph,
    helper,
)
from planner.deploy.kubernetes.pods import Object, environment, metadata
from planner.deploy.kubernetes.reading import ObjectFile
from planner.errors import SpecError
from planner.specs import Phase

_MOST_STEPS = 2_000
_CONFIG, _FOLDER = "global-router.json", "/etc/planner"
_LETTERS = {Phase.PREFILL: "p", Phase.DECODE: "d", Phase.COLOCATED: "w"}
_ENDPOINTS = {Phase.PREFILL: "prefill", Phase.DECODE: "backend", Phase.COLOCATED: "backend"}
_ANY_TARGET = {"ttft_min_ms": 1, "ttft_max_ms": 100_000, "ttft_resolution": 1}
_ANY_ITL = {"itl_min_ms": 1, "itl_max_ms": 10_000, "itl_resolution": 1}
_POOLS = {"prefill_pool_dynamo_namespaces", "decode_pool_dynamo_namespaces", "agg_pool_dynamo_namespaces"}


def divided(deployment: Deployment) -> Mapping[str, tuple[Front, ...]]:
    """Fronts that share a model by prompt length, from short to long, by their door."""
    found: dict[str, tuple[Front, ...]] = {}
    for front in deployment.fronts:
        if front.prompts is not None:
            found[front.door] = (*found.get(front.door, ()), front)
    return {door: tuple(sorted(fronts, key=_shortest)) for door, fronts in found.items()}


def _shortest(front: Front) -> int:
    assert front.prompts is not None
    return front.prompts[0]


def length_objects(deployment: Deployment, door: str, fronts: Sequence[Front]) -> dict[str, Object]:
    """Graphs of the door and of every pool, and the grid, by file.

    Raises
    ------
    SpecError
        The global router does not know the engine, or both kinds of pools at once.
    """
    if deployment.engine == "trtllm":
        rule = "Dynamo's global router, which divides prompts by length, is not validated for TensorRT-LLM"
        raise SpecError(f"{door}: {rule} (solve without routing: length_split)")
    if len({front.disaggregated for front in fronts}) > 1:
        rule = "Dynamo's global router has pools of colocated engines or of both phases, not a mix"
        hint = "plan with colocated: only or colocated: forbidden"
        raise SpecError(f"{door}: {rule} ({hint})")
    phases = (Phase.PREFILL, Phase.DECODE) if fronts[0].disaggregated else (Phase.COLOCATED,)
    found: dict[str, Object] = {}
    for k, front in enumerate(fronts):
        for phase in phases:
            name = _pool(door, phase, k)
            members = [
                component(deployment, front, group, name) for group in front.groups if group.role is phase
            ]
            router = _local_router(deployment, front, name, phase)
            found[f"graph-{name}.yaml"] = graph(deployment, name, [router, *members])
    grid = json.dumps(_grid(deployment, door, fronts, phases), separators=(",", ":"))
    found[f"grid-{door}.yaml"] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(deployment, f"{door}-grid"),
        "data": {_CONFIG: grid},
    }
    found[f"graph-{door}.yaml"] = graph(
        deployment,
        door,
        [_front_end(deployment, door, fronts[0]), _global_router(deployment, door, fronts[0])],
    )
    return found


def _pool(door: str, phase: Phase, k: int) -> str:
    """Name of a pool's graph; it does not begin with the door's, which the front end would take it by."""
    return f"{_LETTERS[phase]}{k + 1}-{door}"


def pool_name(deployment: Deployment, front: Front, phase: Phase) -> str:
    """Name of the graph of a front's pool."""
    return _pool(front.door, phase, divided(deployment)[front.door].index(front))


def _namespace(deployment: Deployment, name: str) -> str:
    return f"{deployment.cluster.namespace}-{name}"


def _local_router(deployment: Deployment, front: Front, name: str, phase: Phase) -> Object:
    block = next(group.block_size for group in front.groups if group.role is phase)
    overlap = [] if phase is Phase.PREFILL else ["--router-kv-overlap-score-credit", "0"]
    return helper(
        deployment,
        "router",
        {
            "name": MAIN,
            "image": deployment.image,
            "command": ["python3", "-m", "dynamo.router"],
            "args": [
                "--endpoint",
                f"{_namespace(deployment, name)}.{_ENDPOINTS[phase]}.generate",
                "--router-block-size",
                str(block),
                "--no-router-kv-events",
                *overlap,
            ],
        },
    )


def _front_end(deployment: Deployment, door: str, front: Front) -> Object:
    container = {
        "name": MAIN,
        "image": deployment.image,
        "command": ["python3", "-m", "dynamo.frontend"],
        "args": ["--namespace", _namespace(deployment, door), "--model-name", front.served_name],
        "env": environment(deployment, [(ROUTER_MODE, "round-robin")]),  # there is one to go to
    }
    return helper(deployment, FRONTEND, container, kind=FRONTEND)


def _global_router(deployment: Deployment, door: str, front: Front) -> Object:
    container: Object = {
        "name": MAIN,
        "image": deployment.image,
        "command": ["python3", "-m", "dynamo.global_router"],
        "args": [
            "--config",
            f"{_FOLDER}/{_CONFIG}",
            "--model-name",
            front.served_name,
            "--namespace",
            _namespace(deployment, door),
        ],
        "env": environment(deployment, ()),
        "volumeMounts": [{"name": "grid", "mountPath": _FOLDER, "readOnly": True}],
    }
    volumes: Any = [{"name": "grid", "configMap": {"name": f"{door}-grid"}}]
    return helper(deployment, "global-router", container, volumes=volumes)


# --------------------------------------------------------------------------------------------
# The grid


def steps(edges: Sequence[int]) -> tuple[int, list[int]]:
    """Size of equal steps that edges of buckets lie on, and the edges there. [tok]

    Where they would be too many, edges move to the nearest of steps that are not.
    """
    step = math.gcd(*edges)
    if edges[-1] // step > _MOST_STEPS:
        step = -(-edges[-1] // _MOST_STEPS)
    return step, [max(round(edge / step), 1) * step for edge in edges]


def _edges(fronts: Sequence[Front]) -> list[int]:
    return [_shortest(front) for front in fronts[1:]]


def _grid(
    deployment: Deployment, door: str, fronts: Sequence[Front], phases: Sequence[Phase]
) -> dict[str, Any]:
    step, edges = steps(_edges(fronts))
    cells = edges[-1] // step + 1
    pools = [sum(edge <= cell * step for edge in edges) for cell in range(cells)]
    names = {
        phase: [_namespace(deployment, _pool(door, phase, k)) for k in range(len(fronts))] for phase in phases
    }
    lengths = {"isl_min": 0, "isl_max": cells * step, "isl_resolution": cells}
    if phases == (Phase.COLOCATED,):
        return {
            "mode": "agg",
            "num_agg_pools": len(fronts),
            "agg_pool_dynamo_namespaces": names[Phase.COLOCATED],
            "agg_pool_selection_strategy": {
                **lengths, **_ANY_TARGET, **_ANY_ITL, "agg_pool_mapping": [[[pool]] for pool in pools],
            },
        }  # fmt: skip
    contexts = {f"context_length_{key.removeprefix('isl_')}": value for key, value in lengths.items()}
    return {
        "mode": "disagg",
        "num_prefill_pools": len(fronts),
        "num_decode_pools": len(fronts),
        "prefill_pool_dynamo_namespaces": names[Phase.PREFILL],
        "decode_pool_dynamo_namespaces": names[Phase.DECODE],
        "prefill_pool_selection_strategy": {
            **lengths, **_ANY_TARGET, "prefill_pool_mapping": [[pool] for pool in pools],
        },
        "decode_pool_selection_strategy": {
            **contexts, **_ANY_ITL, "decode_pool_mapping": [[pool] for pool in pools],
        },
    }  # fmt: skip


def length_notes(deployment: Deployment) -> Iterator[str]:
    """Edges that the grid has elsewhere; what routes within a pool."""
    for door, fronts in divided(deployment).items():
        step, moved = steps(_edges(fronts))
        for edge, there in zip(_edges(fronts), moved, strict=True):
            if edge != there:
                steps_of = f"the grid has steps of {step} tokens"
                yield f"{door}: {steps_of}; prompts part at {there}, not at {edge}."
        yield (
            f"{door}: the routers of its pools weigh the KV blocks under way of each engine; the plan "
            "assumes that they count requests."
        )


def length_faults(files: Sequence[ObjectFile]) -> Iterator[Finding]:
    """Grids name graphs that are there, and have a pool for every step."""
    graphs = {
        f"{file.tree.get('metadata', 'namespace')}-{file.tree.get('metadata', 'name')}"
        for file in files
        if file.kind == KIND["kind"]
    }
    for file in files:
        if file.kind == "ConfigMap" and file.tree.has("data", _CONFIG):
            yield from _grid_findings(file, graphs)


def _grid_findings(file: ObjectFile, graphs: set[str]) -> Iterator[Finding]:
    line = file.tree.line(("data", _CONFIG))
    try:
        grid = json.loads(str(file.tree.get("data", _CONFIG)))
    except ValueError as error:
        yield Finding(file=file.name, line=line, rule=f"{_CONFIG} is not valid JSON: {error}")
        return
    if not isinstance(grid, dict):
        yield Finding(file=file.name, line=line, rule=f"{_CONFIG} must be a mapping")
        return
    for key in sorted(_POOLS & grid.keys()):
        for name in grid[key]:
            if name not in graphs:
                yield Finding(file=file.name, line=line, rule=f"{key} names no graph", value=str(name))
    for key in sorted(key for key in grid if key.endswith("_strategy")):
        yield from _strategy_findings(file.name, line, key, grid)


def _strategy_findings(file: str, line: int, key: str, grid: Mapping[str, Any]) -> Iterator[Finding]:
    strategy, pool = grid[key], key.partition("_")[0]
    mapping = strategy.get(f"{pool}_pool_mapping", ())
    length = "context_length" if pool == "decode" else "isl"
    wanted, count = strategy.get(f"{length}_resolution"), grid.get(f"num_{pool}_pools", 0)
    if len(mapping) != wanted:
        rule = f"{key} must have a pool for each of its {wanted} steps"
        yield Finding(file=file, line=line, rule=rule, value=str(len(mapping)))
    cells = {cell for row in mapping for cell in _flat(row)}
    outside = sorted(str(cell) for cell in cells if cell not in range(count))
    if outside:
        rule = f"{key} names a pool beyond the {count}"
        yield Finding(file=file, line=line, rule=rule, value=outside[0])


def _flat(row: Any) -> Iterator[Any]:
    for one in row if isinstance(row, list) else [row]:
        yield from _flat(one) if isinstance(one, list) else (one,)
