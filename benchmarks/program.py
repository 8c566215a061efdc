"""Size and solve time of the integer program over random scenarios with real candidates.

    python -m benchmarks.program [--instances 100] [--seed 0] [--gap 0.005]

Each scenario draws a model, some of the GPU profiles with prices and stock, a traffic preset, a rate of 1 to
300 req/s, SLOs, and options. Infeasible ones are drawn again and counted; their time is spent on explaining.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np

from benchmarks import heading, percentile, spread, verdict
from planner.candidates import CandidateSet
from planner.catalog import traffic_names
from planner.documents.scenario import scenario_from_text
from planner.errors import InfeasibleError, SolverError, SpecError
from planner.formulation import build_problem, questions_of
from planner.program import Problem, solve
from planner.program.search import program, reduced
from planner.units import MILLI

MEDIAN_TARGET, WORST_TARGET = 0.3, 3.0  # [s]
TIME_LIMIT = 60.0  # [s]
MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.1-70B-Instruct",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen2.5-14B",
    "Qwen/Qwen2.5-72B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-32B",
    "mistralai/Mistral-7B-v0.3",
    "mistralai/Mistral-Small-24B-Instruct-2501",
)
PRICES = {
    "a100-80gb-sxm": 2.0, "a10g": 1.0, "b200-sxm": 6.0, "gb200": 7.0, "h100-sxm": 3.0, "h200-sxm": 3.5,
    "l4": 0.8, "l40s": 1.9, "mi300x": 3.5,
}  # fmt: skip
"""Middle of the prices drawn; each is multiplied by 0.6 to 1.7. [USD/h]"""


@dataclass(frozen=True)
class Instance:
    """One solved program. Times in CPU-s."""

    label: str
    candidates: int
    left: int
    columns: int
    rows: int
    evaluation: float
    solution: float
    gap: float


def draw(rng: np.random.Generator) -> str:
    """A random scenario as YAML."""

    def between(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    names = tuple(PRICES)
    types = sorted(rng.choice(names, size=int(rng.integers(2, len(names) + 1)), replace=False).tolist())
    stock = bool(rng.random() < 0.5)
    lines = []
    for name in types:
        price = PRICES[name] * between(0.6, 1.7)
        limit = f", max_gpus: {8 * int(rng.integers(2, 17))}" if stock else ""
        network = rng.choice([25, 100, 200, 400])
        lines.append(
            f"  - {{gpu: {name}, price_per_gpu_hour: {price:.3f}, network_gbps_per_gpu: {network}{limit}}}"
        )
    weights, kv = rng.choice([["bf16", "bf16"], ["fp8", "bf16"], ["fp8", "fp8"]])
    return "\n".join(
        [
            f"model: {rng.choice(MODELS)}",
            f"precision: {{weights: {weights}, kv_cache: {kv}}}",
            f"workload: {{request_rate: {between(1, 300):.3g}, preset: {rng.choice(traffic_names())}, "
            "input_tokens: {max: 30000}}",
            f"slo: {{ttft_ms: {{p99: {between(500, 8000):.0f}}}, tpot_ms: {{p99: {between(20, 150):.0f}}}}}",
            "fleet:",
            *lines,
            f"options: {{whole_nodes: {str(bool(rng.random() < 0.7)).lower()}, "
            f"spare_replicas: {int(rng.random() < 0.3)}}}",
        ]
    )


def problem_of(text: str, gap: float) -> tuple[str, Problem, CandidateSet, float]:
    """Label, program, candidates, and the time to evaluate them."""
    loaded = scenario_from_text(text)
    started = time.process_time()
    (question,) = questions_of(loaded)
    seconds = time.process_time() - started
    service = question.service
    name, rate = service.model.name.split("/")[-1], service.workload.request_rate
    label = f"{name}, {rate:g} req/s, {len(loaded.scenario.fleet)} types"
    return label, build_problem((question,), gap), question.candidates, seconds


def measure(text: str, gap: float) -> Instance:
    label, problem, candidates, evaluation = problem_of(text, gap)
    started = time.process_time()
    solution = solve(problem, time_limit=TIME_LIMIT)
    seconds = time.process_time() - started
    lp = program(problem)
    return Instance(
        label=label,
        candidates=len(candidates.candidates),
        left=sum(c.max_replicas > 0 for c in reduced(problem).candidates),
        columns=len(lp.columns),
        rows=len(lp.rows),
        evaluation=evaluation,
        solution=seconds,
        gap=solution.gap,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--instances", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gap", type=float, default=0.005)
    parser.add_argument("--slowest", type=int, default=5, help="instances to list")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    solved: list[Instance] = []
    others: Counter[str] = Counter()
    explained: list[float] = []
    while len(solved) < arguments.instances:
        text = draw(rng)
        started = time.process_time()
        try:
            solved.append(measure(text, arguments.gap))
        except InfeasibleError:
            others["infeasible"] += 1
            explained.append(time.process_time() - started)
        except (SpecError, SolverError) as error:
            others[str(error).splitlines()[-1].strip()] += 1
    _report(solved, others, explained, arguments.gap, arguments.slowest)


def _report(
    solved: list[Instance], others: Counter[str], explained: list[float], gap: float, slowest: int
) -> None:
    times = [i.solution for i in solved]
    median, worst = percentile(times, 0.5), max(times)
    heading(f"{len(solved)} programs of real candidates, gap {gap:.1%}, one thread")
    print(f"candidates          {spread([i.candidates for i in solved], '', 0)}")
    print(f"  after dominance   {spread([i.left for i in solved], '', 0)}")
    print(f"columns             {spread([i.columns for i in solved], '', 0)}")
    print(f"rows                {spread([i.rows for i in solved], '', 0)}")
    print(f"evaluation          {spread([i.evaluation for i in solved], 'CPU-s')}")
    print(f"solution, median    {median:.3f} CPU-s   {verdict(median, MEDIAN_TARGET)}")
    print(f"solution, 95 %      {percentile(times, 0.95):.3f} CPU-s")
    print(f"solution, worst     {worst:.3f} CPU-s   {verdict(worst, WORST_TARGET)}")
    unproven = sum(i.gap > gap + MILLI * gap for i in solved)
    print(
        f"gap                 worst {max(i.gap for i in solved):.2%}, {unproven} not proven within {gap:.1%}"
    )
    for reason, count in others.most_common():
        print(f"drawn again         {count} x {reason}")
    if explained:
        print(f"explaining          {spread(explained, 'CPU-s')} per infeasible scenario")
    heading("slowest")
    for i in sorted(solved, key=lambda i: -i.solution)[:slowest]:
        print(f"{i.solution:7.3f} CPU-s  {i.columns:5} columns {i.rows:6} rows  {i.label}")


if __name__ == "__main__":
    main()
