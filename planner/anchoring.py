"""One measured point of a model on an engine, and the factor on kernels that makes its prediction right."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.configuration import Configuration, Load, Replicas, predict, predict_many
from planner.errors import InfeasibleError, SpecError
from planner.specs import GPU, Engine, MeasuredPoint, Model, Parallelism, Precision
from planner.units import MILLI

LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0
"""Beyond, kernels are not off by so much: something else was measured than what is predicted. [1]"""
CAUSES = (
    "likely another format of the weights or the KV cache, another version of the engine, speculative "
    "decoding, or a concurrency above what fits in memory"
)


def solved_factor(tpot: Callable[[float], float], measured: float) -> float:
    """Factor on kernels at which a prediction is what was measured, between a quarter and four. [1]

    Bisection: TPOT grows with the factor.
    """
    low, high = 0.25, 4.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        if tpot(middle) < measured:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def measured_point(
    model: Model,
    engine: Engine,
    gpu: GPU,
    parallelism: Parallelism,
    precision: Precision,
    *,
    concurrency: float,
    isl: float,
    osl: float,
    tpot: float,
) -> MeasuredPoint:
    """A closed loop on one colocated replica that was measured, with the factor that it gives.

    Parameters
    ----------
    concurrency : float
        Clients.
    isl, osl : float
        [tok]
    tpot : float
        Mean, as measured without a draft. [s]

    Raises
    ------
    SpecError
        If the point cannot run, or is off by more than kernels can be.
    """
    if not (tpot > 0 and math.isfinite(tpot)):
        raise SpecError(f"tpot_ms must be a finite number > 0, got {tpot / MILLI:g}")
    load = Load(isl=isl, osl=osl, concurrency=concurrency)
    replicas = Replicas(count=1, gpu=gpu, parallelism=parallelism)
    c = Configuration(model=model, precision=precision, engine=engine, colocated=replicas)
    try:
        plain = predict(c, load)
    except InfeasibleError as error:
        short = f", short by {error.shortfall}" if error.shortfall else ""
        hints = f" ({'; '.join(error.suggestions)})" if error.suggestions else ""
        raise SpecError(f"cannot have been measured: {error.binding}{short}{hints}") from error

    def predicted(factor: float) -> float:
        scaled = replace(c, engine=engine.with_factor(model.shape, factor))
        point = (np.array([value]) for value in (isl, osl, concurrency))
        return float(predict_many([scaled], [0], *point).tpot[0])

    factor = solved_factor(predicted, tpot)
    if not LEAST_FACTOR <= factor <= MOST_FACTOR:
        figures = f"measured TPOT {tpot / MILLI:.4g} ms, predicted {plain.tpot / MILLI:.4g} ms"
        fits = f"; {plain.max_concurrency:,} sequences fit" if concurrency > plain.max_concurrency else ""
        side = f"below {LEAST_FACTOR:g}" if factor < LEAST_FACTOR else f"above {MOST_FACTOR:g}"
        fastest = predicted(LEAST_FACTOR) if factor < LEAST_FACTOR else 0.0
        held = (
            f" (with {LEAST_FACTOR:g}, within the GPU's peaks, {fastest / MILLI:.4g} ms)" if fastest else ""
        )
        raise SpecError(f"{figures}: kernels would have a factor {side}{held}; {CAUSES}{fits}")
    return MeasuredPoint(
        gpu=gpu.name,
        parallelism=parallelism,
        precision=precision,
        concurrency=concurrency,
        isl=isl,
        osl=osl,
        tpot=tpot,
        factor=factor,
    )
