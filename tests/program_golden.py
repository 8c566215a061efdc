"""Tiny programs, one per family of constraints; run this file to rewrite ``golden/lp`` after a review."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planner.program import Candidate, CapacityCurve, GpuType, Problem
from planner.program.backends import write_lp
from planner.program.encoding import encode
from planner.program.problem import Moves, Stream
from planner.specs import ColocatedUse, Objective, Phase, SpareScope

FOLDER = Path(__file__).parent / "golden" / "lp"

STEPS = CapacityCurve(starts=(1, 2), per_replica=(1.0, 1.5))


def candidate(name: str, phase: Phase, gpu_type: int, gpus: int, max_replicas: int = 2) -> Candidate:
    return Candidate(
        name=name, phase=phase, gpu_type=gpu_type, gpus=gpus, curve=STEPS, max_replicas=max_replicas
    )


H100 = GpuType(name="h100-sxm", price=3.0, power=700.0, node_size=8)
L40S = GpuType(name="l40s", price=1.0, power=350.0, node_size=4)

BASE = Problem(
    candidates=(
        candidate("p_h100_tp4", Phase.PREFILL, 0, 4),
        candidate("d_h100_tp2", Phase.DECODE, 0, 2),
        candidate("d_l40s_tp2", Phase.DECODE, 1, 2),
    ),
    gpu_types=(H100, L40S),
    demand=2.0,
    objective=Objective.COST,
    whole_nodes=False,
    colocated=ColocatedUse.FORBIDDEN,
)

WITH_COLOCATED = replace(
    BASE,
    candidates=(*BASE.candidates, candidate("c_h100_tp2", Phase.COLOCATED, 0, 2)),
    colocated=ColocatedUse.ALLOWED,
)

ZONED = replace(WITH_COLOCATED, gpu_types=(replace(H100, zone="east"), replace(L40S, zone="west", spot=True)))

PROBLEMS = {
    "demand": BASE,
    "ranges": replace(
        BASE,
        candidates=(
            candidate("p_h100_tp4", Phase.PREFILL, 0, 4, max_replicas=6),
            *BASE.candidates[1:],
        ),
    ),
    "modes": WITH_COLOCATED,
    "minimum": replace(WITH_COLOCATED, min_replicas_per_pool=2),
    "pairs": replace(BASE, illegal_pairs=frozenset({(0, 2)})),
    "nodes": replace(BASE, whole_nodes=True),
    "stock": replace(BASE, gpu_types=(replace(H100, max_gpus=12), L40S)),
    "pool_caps": replace(BASE, gpu_types=(H100, replace(L40S, max_gpus_by_phase={Phase.DECODE: 3}))),
    "budget": replace(BASE, budget=40.0, objective=Objective.GPUS),
    "gpu_types": replace(BASE, max_gpu_types=1),
    "spare": replace(
        BASE,
        candidates=tuple(replace(c, max_replicas=3) for c in BASE.candidates),
        spare_replicas=1,
    ),
    "throughput": replace(
        WITH_COLOCATED,
        objective=Objective.THROUGHPUT,
        demand=None,
        gpu_types=(replace(H100, max_gpus=16), replace(L40S, max_gpus=8)),
    ),
    "streams": replace(
        WITH_COLOCATED,
        candidates=(*BASE.candidates, replace(WITH_COLOCATED.candidates[3], stream=1)),
        streams=(Stream(name="chat", share=0.75), Stream(name="code", share=0.25)),
    ),
    "zones": replace(ZONED, zone_caps={"east": 8}),
    "across_zones": replace(ZONED, across_zones=True, streams=(Stream(egress_cost=0.5),)),
    "survive_zone": replace(
        ZONED,
        candidates=(*ZONED.candidates, candidate("c_l40s_tp2", Phase.COLOCATED, 1, 2)),
        survive_zone=True,
    ),
    "survive_node": replace(
        BASE, candidates=tuple(replace(c, max_replicas=8) for c in BASE.candidates), survive_node=True
    ),
    "pool_spare": replace(
        BASE,
        candidates=tuple(replace(c, max_replicas=3) for c in BASE.candidates),
        spare_replicas=1,
        spare_scope=SpareScope.POOL,
    ),
    "spot": replace(BASE, gpu_types=(H100, replace(L40S, spot=True)), on_demand_floor=0.5),
    "surge": replace(BASE, gpu_types=(replace(H100, max_gpus=12), L40S), surge_replicas=1),
    "power": replace(BASE, power_cap=7500.0),
    "moves": replace(
        BASE,
        moves=(
            Moves(name="prefill", candidates=(0,), current=1, cost=0.3),
            Moves(name="decode", candidates=(1, 2), current=0, cost=0.2),
        ),
    ),
}


def main() -> None:
    for name, problem in PROBLEMS.items():
        write_lp(encode(problem).lp, FOLDER / f"{name}.lp")


if __name__ == "__main__":
    main()
