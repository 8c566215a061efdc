"""Number formats that an engine runs a model in: on which GPUs, and which of them a planner may choose."""

from __future__ import annotations

from planner.roofline import dtype_of_rows
from planner.specs import GPU, Dtype, Engine, LatentAttention, Model, Precision


def weight_choices(model: Model, engine: Engine) -> tuple[Dtype, ...]:
    """Formats of the weights that need no other checkpoint, the checkpoint's own first.

    Beside it there are those that the engine makes of 16-bit weights as it loads them. A checkpoint that is
    quantised in part is taken as it is.
    """
    own = Precision.of(model)
    whole = all(dtype.is_16_bit for dtype in (own.weights, own.of_attention, own.of_experts))
    return (own.weights, *(engine.load_time_dtypes if whole else ()))


def kv_choices(model: Model) -> tuple[Dtype, ...]:
    """Formats of the KV cache, the checkpoint's own first, then 16 bits and fp8."""
    own = Precision.of(model).kv_cache
    sixteen = model.checkpoint_dtype if model.checkpoint_dtype.is_16_bit else Dtype.BF16
    return tuple(dict.fromkeys((own, own if own.is_16_bit else sixteen, Dtype.FP8)))


def gpu_obstacle(gpu: GPU, engine: Engine) -> str:
    """Why the engine does not run on `gpu` at all; empty where it does."""
    if gpu.architecture in engine.architectures:
        return ""
    return f"{engine.name} does not run on {gpu.architecture} GPUs"


def weights_obstacle(precision: Precision, gpu: GPU, engine: Engine) -> str:
    """Why `gpu` cannot run the weights; empty where it can, natively or stored beside 16-bit arithmetic."""
    formats = {precision.weights, precision.of_attention, precision.of_experts}
    stored = engine.weight_only_dtypes
    missing = sorted(d for d in formats if dtype_of_rows(d, gpu) is None and d not in stored)
    return f"no kernel for {', '.join(missing)} weights" if missing else ""


def kv_obstacle(model: Model, kv_cache: Dtype, gpu: GPU, engine: Engine) -> str:
    """Why the engine keeps no KV cache of this format on `gpu`; empty where it does."""
    if kv_cache is not Dtype.FP8:
        return ""
    latent = any(isinstance(run.layer.attention, LatentAttention) for run in model.layers)
    able = engine.fp8_latent_architectures if latent else engine.fp8_kv_architectures
    if gpu.architecture in able:
        return ""
    return f"{engine.name} keeps no fp8 KV cache{' of latents' if latent else ''} on {gpu.architecture} GPUs"


def format_labels(formats: tuple[Precision, ...]) -> dict[Precision, str]:
    """Short names of formats by what they differ in, e.g. "fp8-kv-bf16"; empty where there is one."""
    weights = len({p.weights for p in formats}) > 1
    kv = len({p.kv_cache for p in formats}) > 1
    return {
        p: "-".join([*([str(p.weights)] if weights else []), *([f"kv-{p.kv_cache}"] if kv else [])])
        for p in formats
    }
