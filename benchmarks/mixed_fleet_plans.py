"""The plans that `benchmarks.mixed_fleet` compares: what is asked, and what was found."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from planner.documents.files import write_text_atomic
from planner.documents.scenario import scenario_from_text
from planner.documents.yaml_text import dump_yaml
from planner.errors import InfeasibleError, SolverError
from planner.plan import Plan
from planner.search import Search, SolveOptions
from planner.specs import Phase
from planner.units import SECONDS_PER_HOUR
from planner.workflow import solve

MODEL = "meta-llama/Llama-3.1-70B"
PRESET = "azure-2023-conversation"
INSTANCES = {
    "a100": "coreweave/a100-8x",
    "h100": "coreweave/h100-8x",
    "l40s": "coreweave/l40s-8x",
    "mi300x": "azure/Standard_ND96isr_MI300X_v5",
    "b200": "coreweave/b200-8x",
}
"""Rented by the node of eight. CoreWeave rents no MI300X."""
MARKETS: dict[str, dict[str, int]] = {
    "all in stock": {},
    "16 H100 and 8 B200 left": {"h100": 16, "b200": 8},
}
TPOT = (30, 60, 120)  # p99 [ms]
RATES = (10, 40, 160)  # [req/s]
TTFT = 2000  # p99 [ms]
MIXED, COLOCATED = "mixed", "colocated"
KINDS = (MIXED, COLOCATED, *INSTANCES)


@dataclass(frozen=True, slots=True)
class Cell:
    """A question: which GPUs there are, the limit on TPOT [ms], the rate [req/s]."""

    market: str
    tpot: int
    rate: int

    @property
    def key(self) -> str:
        return f"{self.market}, {self.tpot} ms, {self.rate} req/s"


@dataclass(frozen=True, slots=True)
class Found:
    """A plan.

    Attributes
    ----------
    cost : float or None
        Of everything paid for; None: there is no such plan. [USD/h]
    paid : mapping
        GPUs paid for, by type.
    used : mapping
        GPUs used, by type.
    holds : bool
        In simulation; for a prediction whether there is a plan.
    rounds : int
        Plans that were simulated on the way.
    """

    cost: float | None
    fleet: str
    paid: Mapping[str, int]
    used: Mapping[str, int]
    colocated: bool
    holds: bool
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What was found for a cell, by kind of plan."""

    cell: Cell
    predicted: Mapping[str, Found]
    verified: Mapping[str, Found]


def cells() -> Iterator[Cell]:
    for market, tpot, rate in product(MARKETS, TPOT, RATES):
        yield Cell(market, tpot, rate)


def scenario(cell: Cell, kind: str = MIXED) -> dict[str, Any]:
    """What `planner solve` is asked, as the document it reads."""
    stock = MARKETS[cell.market]
    return {
        "model": MODEL,
        "engine": "vllm",
        "workload": {"request_rate": cell.rate, "preset": PRESET, "arrivals": "poisson"},
        "slo": {"ttft_ms": {"p99": TTFT}, "tpot_ms": {"p99": cell.tpot}},
        "fleet": [
            {"instance": instance, **({"max_gpus": stock[gpu]} if gpu in stock else {})}
            for gpu, instance in INSTANCES.items()
            if kind in (MIXED, COLOCATED, gpu)
        ],
        "options": {"colocated": "only" if kind == COLOCATED else "allowed"},
    }


def find(cell: Cell, kind: str, *, verify: bool) -> Found:
    """The cheapest plan of a kind."""
    loaded = scenario_from_text(dump_yaml(scenario(cell, kind)))
    try:
        plan = solve(loaded, SolveOptions(verify=verify, alternatives=False, explain=False))
    except (InfeasibleError, SolverError) as error:
        return Found(None, str(error).splitlines()[0], {}, {}, False, False)
    return _found(plan)


def _found(plan: Plan) -> Found:
    seen = plan.verification
    fleet = " + ".join(f"{g.replicas} x {_short(g.gpu)} {g.parallelism} {g.phase}" for g in plan.groups)
    return Found(
        cost=plan.cost,
        fleet=fleet,
        paid={_short(node.gpu): node.gpus_paid for node in plan.nodes if node.gpus_paid},
        used={_short(node.gpu): node.gpus_used for node in plan.nodes if node.gpus_used},
        colocated=all(g.phase == "colocated" for g in plan.groups),
        holds=seen is None or seen.passed,
        rounds=0 if seen is None else len(seen.details["rounds"]),
    )


def _short(gpu: str) -> str:
    return gpu.split("-")[0]


def predict(cell: Cell, kinds: tuple[str, ...] = KINDS) -> dict[str, Found]:
    """The cheapest plan of each kind, by prediction alone."""
    return {kind: find(cell, kind, verify=False) for kind in kinds}


def verify(cell: Cell, predicted: Mapping[str, Found]) -> dict[str, Found]:
    """The cheapest plans that hold in simulation.

    A plan of any kind that is of one type, or colocated, is the best of those as well. Single types are
    simulated from the cheapest on, as long as the prediction of the next is below what was found.
    """
    best = find(cell, MIXED, verify=True)
    found = {MIXED: best}
    found[COLOCATED] = best if best.holds and best.colocated else find(cell, COLOCATED, verify=True)
    cheapest = best.cost if best.holds and len(best.used) == 1 else None
    if cheapest is not None:
        found[next(iter(best.used))] = best
        return found
    for gpu in sorted(INSTANCES, key=lambda gpu: cost_of(predicted[gpu])):
        if cost_of(predicted[gpu]) < (float("inf") if cheapest is None else cheapest):
            found[gpu] = find(cell, gpu, verify=True)
            if found[gpu].holds:
                cheapest = min(cost_of(found[gpu]), float("inf") if cheapest is None else cheapest)
    return found


def cost_of(found: Found) -> float:
    """Infinite where there is no plan, or none that holds. [USD/h]"""
    return found.cost if found.cost is not None and found.holds else float("inf")


def answer(cell: Cell) -> Result:
    predicted = predict(cell)
    return Result(cell, predicted, verify(cell, predicted))


def kept(path: Path | None) -> dict[str, Result]:
    """Results of an earlier run."""
    if path is None or not path.exists():
        return {}
    read = [
        Result(
            Cell(**entry["cell"]),
            *({k: Found(**v) for k, v in entry[part].items()} for part in ("predicted", "verified")),
        )
        for entry in json.loads(path.read_text(encoding="utf-8"))
    ]
    return {result.cell.key: result for result in read}


def keep(path: Path, results: Mapping[str, Result]) -> None:
    """Write results for a later run."""
    write_text_atomic(path, json.dumps([asdict(r) for r in results.values()], indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class Worth:
    """Requests that a GPU type serves in a pool per USD, by its best layout in a large pool."""

    gpu: str
    phase: Phase
    tpot: int
    per_dollar: float
    layout: str
    kv_tokens: int


def worths(tpot: int) -> dict[tuple[str, Phase], Worth]:
    """By GPU type and pool, at a limit on TPOT [ms]; types that cannot serve in a pool are left out."""
    cell = Cell(next(iter(MARKETS)), tpot, max(RATES))
    search = Search.of(scenario_from_text(dump_yaml(scenario(cell))), SolveOptions())
    best: dict[tuple[str, Phase], Worth] = {}
    for candidate, choice in zip(search.problem.candidates, search.choices, strict=True):
        rate = candidate.curve.per_replica[-1]
        price = search.problem.price(candidate.gpu_type)
        gpu = _short(search.problem.gpu_types[candidate.gpu_type].name)
        found = Worth(
            gpu,
            choice.phase,
            tpot,
            rate * SECONDS_PER_HOUR / (candidate.gpus * price),
            str(choice.parallelism),
            choice.kv_tokens // candidate.gpus,
        )
        key = gpu, choice.phase
        if found.per_dollar > 0 and (key not in best or found.per_dollar > best[key].per_dollar):
            best[key] = found
    return best
