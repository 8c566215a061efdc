"""Configuration points per second of CPU time: closed loops of random lengths, clients, GPUs and layouts.

    python -m benchmarks.predict [--points 100000] [--seed 0]

Each point is one model on one GPU type at one tensor parallel size, with prompts of 100 to 16,000 tokens,
answers of 50 to 4,000 and 1 to 512 clients, all log-uniform; points that do not fit in memory are drawn again
before the clock starts. A point gives TTFT, TPOT, their 80 % intervals, rate and batch. One process, one
thread.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time

import numpy as np

from benchmarks import heading, spread
from planner import catalog
from planner.configuration import Configuration, Replicas, default_precision, predict_many
from planner.engines import load_engine
from planner.errors import SpecError
from planner.specs import Parallelism

MODELS = (
    ("meta-llama/Llama-3.1-70B-Instruct", "fp8", (1, 2, 4, 8), 100_000),
    ("openai/gpt-oss-120b", None, (1, 2, 4, 8), None),
    ("moonshotai/Kimi-K2.5", None, (8,), None),
)
"""Name, format of the weights, tensor parallel sizes, and points per CPU-second that are the target."""
GPUS = ("a100-80gb-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "mi300x")
ENGINE = "vllm"
REPEATS = 3


def layouts(name: str, weights: str | None, sizes: tuple[int, ...]) -> list[Configuration]:
    """One replica of each GPU type and size that runs the model."""
    model, engine = catalog.load_model(name), load_engine(ENGINE)
    found = []
    for gpu in map(catalog.load_gpu, GPUS):
        for tp in sizes:
            replicas = Replicas(count=1, gpu=gpu, parallelism=Parallelism(tp=tp))
            try:
                found.append(
                    Configuration(
                        model=model,
                        precision=default_precision(model, weights),
                        engine=engine,
                        colocated=replicas,
                    )
                )
            except SpecError:
                continue  # no kernel for the format, or no such layout
    return found


def draw(
    configurations: list[Configuration], points: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Configuration, prompt, answer and clients of points that fit in memory."""

    def between(low: float, high: float) -> np.ndarray:
        return np.exp(rng.uniform(math.log(low), math.log(high), points)).round()

    kept: list[tuple[np.ndarray, ...]] = []
    while sum(len(part[0]) for part in kept) < points:
        part = (
            rng.integers(0, len(configurations), points),
            between(100, 16_000),
            between(50, 4_000),
            between(1, 512),
        )
        fits = np.isfinite(predict_many(configurations, *part).tpot)
        kept.append(tuple(values[fits] for values in part))
    which, isl, osl, clients = (np.concatenate(parts)[:points] for parts in zip(*kept, strict=True))
    return which, isl, osl, clients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    heading(f"closed loops of {ENGINE}, {arguments.points:,} points, one thread")
    for name, weights, sizes, target in MODELS:
        configurations = layouts(name, weights, sizes)
        points = draw(configurations, arguments.points, np.random.default_rng(arguments.seed))
        rates = []
        for _ in range(REPEATS):
            started = time.process_time()
            found = predict_many(configurations, *points)
            rates.append(arguments.points / (time.process_time() - started))
        assert np.isfinite(found.ttft).all()
        label = f"{name.split('/')[-1]}{f' {weights}' if weights else ''}"
        told = (
            f"   target >= {target:,}: {'met' if statistics.median(rates) >= target else 'MISSED'}"
            if target
            else ""
        )
        print(f"{label:28} {len(configurations):3} layouts   {spread(rates, 'points per CPU-s', 0)}{told}")


if __name__ == "__main__":
    main()
