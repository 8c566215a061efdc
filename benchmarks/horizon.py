"""Plans over a day for many streams: time to a proven gap.

    python -m benchmarks.horizon [--seeds 3] [--first-seed 0] [--types 12] [--models 3] [--classes 8]
        [--periods 24] [--startup-minutes 0]

Each instance draws GPU types, candidates (TP 1 to 8 in three phases) and a day curve per model; a class needs
up to about 40 replicas at its peak. It is solved without coupling, GPU by GPU, and then with
all of it: whole nodes, half of what the popular types would need at the peak in stock, capacity reserved
once at 0.6 of the price, and at most 6 replicas of a pool added or removed per hour; start-ups, if asked for.
Times are CPU-s, on one thread; the clock may show twice as many before the search is stopped.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, replace

import numpy as np

from benchmarks import heading, spread, verdict
from planner.program.horizon import Horizon, HorizonSolution, Offer, Period, Stream, solve
from planner.program.horizon.bill import gpus_used
from planner.program.problem import Candidate, CapacityCurve, GpuType
from planner.specs import Phase
from planner.units import MINUTES_PER_HOUR

UNCOUPLED_TIME, UNCOUPLED_GAP = 30.0, 0.005  # [s], [1]
COUPLED_TIME, COUPLED_GAP = 120.0, 0.03
STARTS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 32, 40, 50, 64)
TENSOR_PARALLEL = (1, 2, 4, 8)
PATIENCE = 2.0  # time on the clock, in that of the CPU
SCALING = 6  # replicas of a pool per hour, up or down
MEMORY = ((0.2, 1.5), (1.0, 3.0), (3.0, 6.0))  # weights of a small, a middle and a large model [GPUs]
RESERVED_SHARE = 0.6  # of the price on demand


def day(rng: np.random.Generator, periods: int) -> np.ndarray:
    """Demand as a share of the peak: one wave a day, 3 to 5 times higher at its peak than at its trough."""
    trough = 1 / rng.uniform(3, 5)
    hours = np.arange(periods) * 24 / periods
    wave = (1 + np.cos((hours - rng.normal(14, 1.5)) * 2 * math.pi / 24)) / 2
    shape = (trough + (1 - trough) * wave) * np.exp(rng.normal(0, 0.04, periods))
    return shape / shape.max()


def gpu_types(rng: np.random.Generator, count: int) -> tuple[GpuType, ...]:
    return tuple(
        GpuType(
            name=f"gpu{g}",
            price=round(float(np.exp(rng.uniform(math.log(0.6), math.log(8)))), 2),
            power=500.0,
            node_size=int(rng.choice([4, 8, 8, 8])),
        )
        for g in range(count)
    )


def stream(
    rng: np.random.Generator, name: str, kinds: tuple[GpuType, ...], worth: np.ndarray, memory: np.ndarray
) -> Stream:
    """All types x TP x phases; `worth` [G, phase] is the rate per USD/h, `memory` [G] what weights take."""
    found = []
    mix = float(np.exp(rng.normal(0, 0.5)))  # how much prefill a request of this class needs per decode
    for g, kind in enumerate(kinds):
        for p, phase in enumerate(Phase):
            base = (kind.price or 1.0) * worth[g, p] * float(np.exp(rng.normal(0, 0.08)))
            base *= {Phase.PREFILL: mix, Phase.DECODE: 1.0, Phase.COLOCATED: 0.5 * min(mix, 1.0)}[phase]
            bend, power = float(rng.uniform(0.05, 0.5)), float(rng.uniform(0.8, 0.97))
            for tp in TENSOR_PARALLEL:
                room = max(1 - memory[g] / tp, 0.0)  # prefill needs no more than that the weights fit
                rate = base * tp**power * (float(room > 0) if phase is Phase.PREFILL else room)
                if rate > 0:
                    rates = tuple(rate * (1 - bend / math.sqrt(n)) for n in STARTS)
                    found.append(
                        Candidate(
                            name=f"{phase.value[0]}_{kind.name}_tp{tp}",
                            phase=phase,
                            gpu_type=g,
                            gpus=tp,
                            curve=CapacityCurve(starts=STARTS, per_replica=rates),
                            max_replicas=1000,
                        )
                    )
    return Stream(name=name, candidates=tuple(found))


def uncoupled(seed: int, types: int, models: int, classes: int, periods: int) -> Horizon:
    """Streams of all models and classes; GPUs paid for one by one, no limits."""
    rng = np.random.default_rng(seed)
    kinds = gpu_types(rng, types)
    streams, demands = [], []
    for m in range(models):
        worth = np.exp(rng.uniform(math.log(0.35), math.log(0.7), (types, 3)))
        memory = rng.uniform(*MEMORY[m % len(MEMORY)], types)
        for c in range(classes):
            chosen = stream(rng, f"m{m}c{c}", kinds, worth, memory)
            usual = np.median([x.curve.per_replica[3] for x in chosen.candidates])
            peak = float(usual) * float(np.exp(rng.uniform(math.log(1.5), math.log(40))))
            streams.append(chosen)
            demands.append(tuple(float(x) for x in peak * day(rng, periods)))
    return Horizon(
        streams=tuple(streams),
        periods=tuple(Period(name=f"h{t}", hours=24 / periods) for t in range(periods)),
        gpu_types=kinds,
        demands=tuple(demands),
        whole_nodes=False,
        gap=UNCOUPLED_GAP,
    )


def coupled(free: Horizon, peaks: np.ndarray, startup_hours: float = 0.0) -> Horizon:
    """`free` with whole nodes, stock, reserved capacity, scaling limits and start-ups.

    `peaks` are the GPUs per type that the plan without coupling uses at its peak: types above the median have
    half of that in stock.
    """
    popular = peaks >= np.median(peaks[peaks > 0])
    kinds = tuple(
        replace(kind, max_gpus=max(int(peaks[g] / 2) // kind.node_size, 1) * kind.node_size)
        if popular[g] and peaks[g]
        else kind
        for g, kind in enumerate(free.gpu_types)
    )
    return replace(
        free,
        gpu_types=kinds,
        offers=tuple(Offer(reserved_price=RESERVED_SHARE * (kind.price or 0.0)) for kind in kinds),
        whole_nodes=True,
        max_added=SCALING,
        max_removed=SCALING,
        startup_hours=startup_hours,
        gap=COUPLED_GAP,
    )


@dataclass(frozen=True)
class Run:
    """One solved horizon. Time in CPU-s."""

    seconds: float
    solution: HorizonSolution


def measure(horizon: Horizon, time_limit: float) -> Run:
    started = time.process_time()
    solution = solve(horizon, time_limit=PATIENCE * time_limit)
    return Run(seconds=time.process_time() - started, solution=solution)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--startup-minutes", type=float, default=0.0)
    parser.add_argument("--types", type=int, default=12)
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--periods", type=int, default=24)
    arguments = parser.parse_args()
    free, tied = [], []
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        horizon = uncoupled(seed, arguments.types, arguments.models, arguments.classes, arguments.periods)
        free.append(measure(horizon, UNCOUPLED_TIME))
        peaks = np.array(gpus_used(horizon, free[-1].solution.replicas)).max(axis=1)
        bound = coupled(horizon, peaks, arguments.startup_minutes / MINUTES_PER_HOUR)
        tied.append(measure(bound, COUPLED_TIME))
        _print_line(seed, "uncoupled", free[-1])
        _print_line(seed, "coupled", tied[-1])
        _print_stock(bound, tied[-1].solution)
    _report("uncoupled", free, UNCOUPLED_TIME, UNCOUPLED_GAP)
    _report("coupled by stock, nodes, reserved capacity, scaling limits", tied, COUPLED_TIME, COUPLED_GAP)


def _print_line(seed: int, name: str, run: Run) -> None:
    found = run.solution
    static = "" if found.static is None else f"  static costs {found.static.value:,.0f}"
    print(
        f"seed {seed}  {name:9}  {run.seconds:6.1f} CPU-s  {found.value:10,.0f} USD/day  gap {found.gap:.2%}"
        f"{static}  (reserved {found.reserved_cost:,.0f}, on demand {found.on_demand_cost:,.0f}, "
        f"start-ups {found.startup_cost:,.0f})",
        flush=True,
    )


def _print_stock(horizon: Horizon, solution: HorizonSolution) -> None:
    """How much of the stock is in use at the peak."""
    used = gpus_used(horizon, solution.replicas)
    shares = [
        f"{max(used[g])} of {kind.max_gpus}"
        for g, kind in enumerate(horizon.gpu_types)
        if kind.max_gpus is not None
    ]
    print(f"        GPUs in use at the peak where there is a stock: {', '.join(shares)}")


def _report(name: str, runs: list[Run], time_target: float, gap_target: float) -> None:
    seconds, gaps = [run.seconds for run in runs], [run.solution.gap for run in runs]
    heading(f"{len(runs)} horizons, {name}")
    print(f"time   {spread(seconds, 'CPU-s', 1)}   {verdict(max(seconds), time_target)}")
    print(f"gap    {spread([100 * g for g in gaps], '%')}   {verdict(100 * max(gaps), 100 * gap_target)}")


if __name__ == "__main__":
    main()
