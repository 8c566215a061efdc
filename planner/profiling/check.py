"""A profile held against whole steps of a model on the device that it describes."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from planner.checked_steps import CheckedStep
from planner.documents.model_config import model_from_config
from planner.engines import estimated_engine
from planner.errors import SpecError
from planner.latency import decode_step_time, prompt_time
from planner.operators import ReplicaSet
from planner.profiling.clock import time_calls, warm_up
from planner.profiling.llama import LLAMA_1B, LLAMA_8B, Llama, LlamaShape, Step
from planner.specs import GPU, Dtype, Parallelism, Precision

_BACKENDS = {"cpu": ("flash",), "cuda": ("flash", "cudnn", "efficient")}
_BOX = 1.0  # of one step [s]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckPlan:
    """Steps to time: prompts by their length, decode steps by batch and context. [tok]"""

    shape: LlamaShape
    prompts: tuple[int, ...]
    decodes: tuple[tuple[int, int], ...]


CPU_PLAN = CheckPlan(
    shape=LLAMA_1B,
    prompts=(64, 256, 512, 1024),
    decodes=((1, 256), (1, 2048), (4, 512), (8, 1024), (16, 512)),
)
GPU_PLAN = CheckPlan(
    shape=LLAMA_8B,
    prompts=(512, 2048, 8192),
    decodes=((1, 1024), (1, 8192), (16, 1024), (16, 8192), (64, 1024), (64, 8192)),
)


def check(
    gpu: GPU,
    device: torch.device,
    plan: CheckPlan | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[CheckedStep, ...]:
    """Time a model of random weights, and predict the same steps from `gpu`.

    No engine is there: host time is not counted, and kernels are those of torch. Steps for which the device
    has no memory are left out.

    Raises
    ------
    SpecError
        If no step could be run.
    """
    plan = plan or (CPU_PLAN if device.type == "cpu" else GPU_PLAN)
    replicas = _replicas(gpu, plan.shape)
    steps: list[CheckedStep | None] = []
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says why it does not use a back end: the next one is tried
        model = Llama(plan.shape, device)
        warm_up(device, _BOX)
        for tokens in plan.prompts:
            name = f"prefill {tokens}"
            if progress is not None:
                progress(name)
            predicted = float(prompt_time(replicas, float(tokens), 0.0, float(tokens)).service.flat[0])
            steps.append(_step(name, lambda b, n=tokens: model.prefill(n, b), device, predicted))  # type: ignore[misc]
        for batch, context in plan.decodes:
            name = f"decode {batch} x {context}"
            if progress is not None:
                progress(name)
            predicted = float(decode_step_time(replicas, float(batch), float(context)).flat[0])
            steps.append(
                _step(name, lambda b, n=batch, c=context: model.decode(n, c, b), device, predicted)  # type: ignore[misc]
            )
    found = tuple(step for step in steps if step is not None)
    if not found:
        raise SpecError("the device has no memory for any step of the model")
    return found


def _step(
    name: str, make: Callable[[str], Step], device: torch.device, predicted: float
) -> CheckedStep | None:
    """The step with the back end of attention that is fastest at it; None where it does not fit."""
    timings = []
    for backend in _BACKENDS[device.type]:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        try:
            timings.append(time_calls([make(backend)], device, _BOX))
        except RuntimeError:  # no such kernel, or not enough memory
            if device.type == "cuda":
                torch.cuda.synchronize()
    if not timings:
        return None
    best = min(timings, key=lambda timing: timing.time)
    return CheckedStep(name=name, measured=best.time, predicted=predicted, spread=best.spread)


def _replicas(gpu: GPU, shape: LlamaShape) -> ReplicaSet:
    """One replica of the model, with no host time and no padding of batches."""
    bare = replace(
        estimated_engine("vllm"),
        step_overhead=0.0,
        sequence_overhead=0.0,
        decode_scale=1.0,
        prefill_scale=1.0,
        eager_overhead=0.0,
        graph_batch_sizes=tuple(range(1, 257)),
        model_factors=(),
    )
    model = model_from_config(shape.config(), "llama-shaped", "random weights")
    precision = Precision(weights=Dtype.BF16, kv_cache=Dtype.BF16)
    return ReplicaSet.of(model, precision, bare, [(gpu, Parallelism())])
