"""Load tests made from known constants: what a calibration has to find again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.catalog import load_gpu, load_model
from planner.configuration import default_precision
from planner.documents.load_tests import LoadTest
from planner.engines import estimated_engine, shipped_constants
from planner.specs import Constants, FittedConstants, Metric, Parallelism, Statistic
from planner.validation.evidence import Evidence, Setup, gathered
from planner.validation.holdout import Rows

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
PRIOR = shipped_constants()
LOADS = [(isl, osl, c) for isl, osl in ((512, 256), (2048, 256), (4096, 512)) for c in (1, 4, 16, 48)]
"""Prompt, answer, clients."""
TRUE = Constants(
    step=0.9e-3,
    sequence=16e-6,
    decode_scale=0.97,
    prefill_scale=1.15,
    fixed=0.02,
    services=1.05,
    steps=2.0,
    first_wave=0.06,
)
FACTOR = 1.12


def setup(gpu: str = "h100-sxm", engine: str = "vllm", **sizes: int) -> Setup:
    """One colocated replica of Llama-3.1-8B."""
    model = load_model(MODEL)
    return Setup(
        model=model,
        gpu=load_gpu(gpu),
        engine=estimated_engine(engine),
        precision=default_precision(model, None, None),
        pools=((1, Parallelism(**sizes)),),
    )


def run(isl: float = 1024, osl: float = 256, **changes: object) -> LoadTest:
    """A closed loop of eight clients."""
    plain = LoadTest(
        path=Path("run.json"),
        name="run.json",
        tool="a tool",
        concurrency=8.0,
        completed=80,
        throughput=1.0,
        prompt=isl,
        output=osl,
        latencies={(Metric.TTFT, Statistic.MEAN): 0.1, (Metric.TPOT, Statistic.MEAN): 0.01},
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def made(
    loads: Sequence[tuple[float, float, float]] = LOADS,
    constants: Constants = TRUE,
    factor: float = FACTOR,
    *,
    seed: int = 0,
    noise: float = 0.02,
    where: Setup | None = None,
    ttft: bool = True,
) -> list[Evidence]:
    """Rows of these loads, measured with noise where constants are those."""
    tests = [
        run(
            isl,
            osl,
            name=f"run {i}",
            concurrency=c,
            completed=int(10 * c),
            latencies={(Metric.TTFT, Statistic.MEAN): 0.1, (Metric.TPOT, Statistic.MEAN): 0.01 + 1e-9 * i},
        )
        for i, (isl, osl, c) in enumerate(loads)
    ]
    rows = Rows.of(gathered(tests, where or setup(), ()).evidence, FittedConstants())
    count = len(rows.evidence)
    state = rows.sample.predicted([constants] * count, np.full(count, factor))
    off = np.exp(noise * np.random.default_rng(seed).standard_normal((2, count)))
    return [
        replace(
            e,
            tpot=float(state.tpot[i] * off[0, i]),
            ttft=float(state.ttft[i] * off[1, i]) if ttft else np.nan,
        )
        for i, e in enumerate(rows.evidence)
    ]


def prior_of(evidence: Sequence[Evidence]) -> tuple[Constants, float]:
    """Constants and factor that the rows start from."""
    e = evidence[0]
    family = (e.case.target.engine.name, e.case.target.model.shape)
    return PRIOR.constants(e.key), PRIOR.factor(family) or 1.0
