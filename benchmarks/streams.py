"""Solve time of the integer program of several streams that share GPUs: length classes of one service.

    python -m benchmarks.streams [--streams 8] [--types 6] [--instances 100] [--seed 0] [--gap 0.005]

Instances are synthetic, so that this measures the program alone: every stream has candidates of its own, for
every GPU type, phase and tensor parallelism, with capacity curves that bend. Whole nodes are paid for; half
of the instances have a stock, three in ten spares, half of them pairs that must not meet. Instances without
a plan are drawn again.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass

import numpy as np

from benchmarks import heading, percentile, spread, verdict
from planner.errors import InfeasibleError, SolverError
from planner.program import Candidate, CapacityCurve, GpuType, Problem, solve
from planner.program.problem import Stream
from planner.program.search import program
from planner.specs import Objective, Phase
from planner.units import MILLI

MEDIAN_TARGET, WORST_TARGET = 0.3, 3.0  # [s]
TIME_LIMIT = 60.0  # [s]
STARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
TENSOR_PARALLEL = (1, 2, 4, 8)
SHARES = {Phase.PREFILL: 1.0, Phase.DECODE: 1.0, Phase.COLOCATED: 0.5}
"""Of a GPU's rate, what it reaches in a pool. [1]"""


def drawn(seed: int, *, streams: int = 8, types: int = 6, gap: float = 0.005) -> Problem:
    """A random program.

    A stream's requests take 1 to 8 times the work of the lightest, and get 1 to 60 req/s. Rates are near
    proportional to prices, as on a market, so that the types compete.
    """
    rng = np.random.default_rng(seed)
    stocked = bool(rng.random() < 0.5)
    kinds = tuple(_kind(rng, f"type{g}", stocked=stocked) for g in range(types))
    rates = np.exp(rng.uniform(np.log(1), np.log(60), size=streams))
    work = np.exp(rng.uniform(0, np.log(8), size=streams))
    value = np.exp(rng.uniform(np.log(0.35), np.log(0.7), size=(types, len(Phase))))
    memory = rng.uniform(0.2, 1.5, size=types)
    candidates = tuple(
        candidate
        for s in range(streams)
        for g, kind in enumerate(kinds)
        for p, phase in enumerate(Phase)
        for candidate in _candidates(rng, kind, g, s, phase, value[g, p] / work[s], memory[g])
    )
    total = float(rates.sum())
    return Problem(
        candidates=candidates,
        gpu_types=kinds,
        demand=total,
        objective=Objective.COST,
        streams=tuple(Stream(name=f"class{s}", share=float(rate) / total) for s, rate in enumerate(rates)),
        illegal_pairs=_pairs(rng, candidates, types),
        spare_replicas=int(rng.random() < 0.3),
        whole_nodes=True,
        gap=gap,
    )


def _kind(rng: np.random.Generator, name: str, *, stocked: bool) -> GpuType:
    return GpuType(
        name=name,
        price=round(float(np.exp(rng.uniform(np.log(0.6), np.log(8)))), 2),
        power=500.0,
        node_size=int(rng.choice([4, 8, 8, 8])),
        max_gpus=int(rng.integers(1, 25)) * 8 if stocked else None,
    )


def _candidates(
    rng: np.random.Generator, kind: GpuType, g: int, s: int, phase: Phase, value: float, memory: float
) -> list[Candidate]:
    """Replicas of one type, stream and phase: rate per GPU falls with TP, but small ones lack memory."""
    assert kind.price is not None
    found = []
    for tp in TENSOR_PARALLEL:
        room = 1.0 if phase is Phase.PREFILL else max(1 - memory / tp, 0.0)
        rate = 8 * kind.price * value * SHARES[phase] * room * tp ** float(rng.uniform(0.8, 0.97))
        rate *= float(np.exp(rng.normal(0.0, 0.15)))
        bend = float(rng.uniform(0.05, 0.6))
        if rate > 0 and tp <= kind.node_size:
            curve = CapacityCurve(
                starts=STARTS, per_replica=tuple(rate * (1 - bend / math.sqrt(n)) for n in STARTS)
            )
            name = f"{phase.value}_{kind.name}_tp{tp}_class{s}"
            found.append(
                Candidate(
                    name=name, phase=phase, gpu_type=g, gpus=tp, curve=curve, max_replicas=4000, stream=s
                )
            )
    return found


def _pairs(
    rng: np.random.Generator, candidates: tuple[Candidate, ...], types: int
) -> frozenset[tuple[int, int]]:
    """None, two vendors that must not meet, or some pairs of types that must not."""
    choice = rng.random()
    vendor, odd = rng.integers(0, 2, size=types), rng.random((types, types)) < 0.3
    return frozenset(
        (i, j)
        for i, p in enumerate(candidates)
        for j, d in enumerate(candidates)
        if p.phase is Phase.PREFILL and d.phase is Phase.DECODE and p.stream == d.stream
        if (choice < 0.25 and vendor[p.gpu_type] != vendor[d.gpu_type])
        or (0.25 < choice < 0.5 and odd[p.gpu_type, d.gpu_type])
    )


@dataclass(frozen=True)
class Instance:
    """One solved program; time in CPU-s."""

    seed: int
    candidates: int
    columns: int
    rows: int
    seconds: float
    gap: float
    stocked: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--types", type=int, default=6)
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gap", type=float, default=0.005)
    parser.add_argument("--slowest", type=int, default=5, help="instances to list")
    arguments = parser.parse_args()
    solved: list[Instance] = []
    others: list[str] = []
    seed = arguments.seed
    while len(solved) < arguments.instances:
        problem = drawn(seed, streams=arguments.streams, types=arguments.types, gap=arguments.gap)
        try:
            solved.append(measure(seed, problem))
        except (InfeasibleError, SolverError) as error:
            others.append(str(error).splitlines()[0])
        seed += 1
    _report(solved, others, arguments)


def measure(seed: int, problem: Problem) -> Instance:
    """Solve one program."""
    started = time.process_time()
    solution = solve(problem, time_limit=TIME_LIMIT, explain=False)
    seconds = time.process_time() - started
    lp = program(problem)
    return Instance(
        seed=seed,
        candidates=len(problem.candidates),
        columns=len(lp.columns),
        rows=len(lp.rows),
        seconds=seconds,
        gap=solution.gap,
        stocked=any(kind.max_gpus is not None for kind in problem.gpu_types),
    )


def _report(solved: list[Instance], others: list[str], arguments: argparse.Namespace) -> None:
    gap = arguments.gap
    times = [i.seconds for i in solved]
    median, worst = percentile(times, 0.5), max(times)
    heading(f"{len(solved)} programs of {arguments.streams} streams, gap {gap:.1%}, one thread")
    print(f"candidates          {spread([i.candidates for i in solved], '', 0)}")
    print(f"columns             {spread([i.columns for i in solved], '', 0)}")
    print(f"rows                {spread([i.rows for i in solved], '', 0)}")
    print(f"solution, median    {median:.3f} CPU-s   {verdict(median, MEDIAN_TARGET)}")
    print(f"solution, 95 %      {percentile(times, 0.95):.3f} CPU-s")
    print(f"solution, worst     {worst:.3f} CPU-s   {verdict(worst, WORST_TARGET)}")
    unproven = sum(i.gap > gap + MILLI * gap for i in solved)
    print(f"gap                 worst {max(i.gap for i in solved):.2%}, {unproven} not within {gap:.1%}")
    print(f"drawn again         {len(others)}")
    heading("slowest")
    for i in sorted(solved, key=lambda i: -i.seconds)[: arguments.slowest]:
        print(f"{i.seconds:7.3f} CPU-s  seed {i.seed}, gap {i.gap:.2%}, {'' if i.stocked else 'no '}stock")


if __name__ == "__main__":
    main()
