"""What published names stand for: models, GPUs, layouts, formats and lengths. All of it is data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from planner.catalog import gpu_name, load_gpu, load_model, names_file
from planner.documents.published_file import PublishedRow
from planner.errors import SpecError
from planner.specs import GPU, Dtype, Model, Parallelism, Precision

MODELS = {
    "gpt-j 6b": "EleutherAI/gpt-j-6b",
    "falcon 180b": "tiiuae/falcon-180B",
    "llama 7b": "meta-llama/Llama-2-7b-hf",  # of TensorRT-LLM 0.5 to 0.9; the first LLaMA has the same shape
    "llama 70b": "meta-llama/Llama-2-70b-hf",
    "llama2-70b": "meta-llama/Llama-2-70b-hf",
    "bloom-176b": "bigscience/bloom",
    "mistral 7b": "mistralai/Mistral-7B-v0.1",
    "mixtral 8x7b": "mistralai/Mixtral-8x7B-v0.1",
    "mixtral 8x22b": "mistralai/Mixtral-8x22B-v0.1",
    "llama v3.1 8b": "meta-llama/Llama-3.1-8B",
    "llama 3.1 8b": "meta-llama/Llama-3.1-8B",
    "llama v3.1 70b": "meta-llama/Llama-3.1-70B",
    "llama 3.1 70b": "meta-llama/Llama-3.1-70B",
    "llama v3.1 405b": "meta-llama/Llama-3.1-405B",
    "redhatai/meta-llama-3.1-8b-instruct-fp8": "meta-llama/Llama-3.1-8B-Instruct",
    "redhatai/meta-llama-3.1-8b-instruct-quantized.w4a16": "meta-llama/Llama-3.1-8B-Instruct",
    "redhatai/meta-llama-3.1-8b-instruct-quantized.w8a16": "meta-llama/Llama-3.1-8B-Instruct",
    "redhatai/meta-llama-3.1-8b-instruct-quantized.w8a8": "meta-llama/Llama-3.1-8B-Instruct",
}
"""Published names, in lower case, that are none of the catalogue's."""

GPUS = {
    "a100-sxm": "a100-80gb-sxm",
    "a100-sxm-80": "a100-80gb-sxm",
    "a100-sxm-40?": "a100-40gb-sxm",
    "gh200-96?": "gh200",
    "rtx-pro-6000-se": "rtx-pro-6000-server",
    "nvidia a100-sxm4-80gb": "a100-80gb-sxm",
    "nvidia h100 80gb hbm3": "h100-sxm",
    "nvidia geforce rtx 4090": "rtx-4090",
    "nvidia l4": "l4",
    "nvidia rtx a6000": "rtx-a6000",
}
"""Published names, in lower case, that are none of the profiles'.

"A100-SXM-40?": a question mark of the file; Argonne's machine (Polaris) has A100 with 40 GB. Without a size
the vendor's own figures are those of 80 GB.
"""

POWER_CAP = "power cap"

DATA_SETS = {"edge set": 95.0}
"""Median prompts of data sets that are named without a number [tok]: AccelMark, datasets/sharegpt_edge_v1/
README.md (https://github.com/FreedomIntelligence/AccelMark)."""

_SIXTEEN_BITS = {"fp16": Dtype.FP16, "bf16": Dtype.BF16, "fp16/bf16": Dtype.BF16}
_SMALL = {"fp8": Dtype.FP8, "fp4": Dtype.NVFP4}


@cache
def model_of(name: str) -> Model | None:
    """The catalogue's model, None where it has none of that name."""
    known = MODELS.get(name.strip().lower(), name)
    return None if names_file("model", known) else load_model(known)


@cache
def gpu_of(name: str) -> GPU | None:
    """The GPU of a published name, None where there is no profile."""
    try:
        return load_gpu(gpu_name(GPUS.get(name.strip().lower(), name)))
    except SpecError:
        return None


def precision_of(name: str, model: Model, small_cache: bool) -> Precision | None:
    """Formats of weights and KV cache; None for a name that does not say them.

    Parameters
    ----------
    small_cache : bool
        Whether the software keeps an fp8 KV cache beside weights of 8 and 4 bits.
    """
    if name in _SIXTEEN_BITS:
        dtype = _SIXTEEN_BITS[name]
        return Precision(weights=dtype, kv_cache=dtype)
    if name not in _SMALL:
        return None
    own = model.checkpoint_dtype, model.checkpoint_experts
    quantised = Dtype.MXFP4 in own  # the label is that of the activations; the weights are the checkpoint's
    return Precision.of(model, None if quantised else _SMALL[name], Dtype.FP8 if small_cache else None)


def parallelism_of(row: PublishedRow) -> Parallelism | None:
    """Layout of one replica, None where the name is not understood or has other GPUs than the row.

    ``DEPn`` stands for attention data parallelism of n ranks that share the experts.
    """
    found = re.fullmatch(r"(TP|DEP)(\d+)(?:PP(\d+))?", row.parallelism)
    if found is None:
        return None
    ranks, pp = int(found[2]), int(found[3] or 1)
    layout = (
        Parallelism(tp=ranks, pp=pp)
        if found[1] == "TP"
        else Parallelism(tp=1, dp=ranks, ep=ranks, pp=pp)
        if ranks > 1
        else Parallelism(pp=pp)
    )
    return layout if layout.num_gpus == row.n_gpus else None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and answer. [tok]

    ``exact`` says that all requests have these lengths; else they are medians of a data set, and stand for
    a median request. An answer of "cap 256" is taken to reach its cap: the prompts it comes with are so long
    that its length hardly matters.
    """

    isl: float
    osl: float
    exact: bool


def lengths_of(row: PublishedRow) -> Lengths | None:
    """Lengths of a row, None where they are no numbers."""
    isl, exact_isl = _length(row.isl)
    osl, exact_osl = _length(row.osl)
    if isl is None or osl is None:
        return None
    return Lengths(isl, osl, exact_isl and exact_osl)


def _length(text: str) -> tuple[float | None, bool]:
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text), True
    found = re.match(r"p50 (\d+)\b", text) or re.fullmatch(r"cap (\d+)", text)
    if found is not None:
        return float(found[1]), False
    named = re.match(r"p50 (.+?) \(dataset\)", text)
    return (DATA_SETS.get(named[1]) if named is not None else None), False
