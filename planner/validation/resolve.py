"""From a measured row to what is predicted: model, GPU, formats, layout, with every repair named.

Public rows are labelled by many hands. What can be told from other columns, or from the model's own
configuration, is put right, and counted under the rule that did it. What cannot be told is no prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from planner.catalog import (
    gpu_name,
    gpu_names,
    load_gpu,
    load_model,
    model_names,
    model_variants,
    names_file,
)
from planner.collectives import nodes_of
from planner.documents.measured_file import MeasuredPool, MeasuredRow
from planner.documents.names import did_you_mean
from planner.documents.tree import shorten
from planner.engines import engine_names, estimated_engine
from planner.engines.legality import require_legal
from planner.errors import SpecError
from planner.specs import GPU, Attention, Dtype, Engine, LatentAttention, Model, Parallelism, Precision

MODEL_ALIASES = {"zhipuai/GLM-5": "zai-org/GLM-5"}
"""Names of public files under which the catalogue has no entry."""

UNRECORDED_SPECULATION = ("DeepSeek-R1", "DeepSeek-R1-0528")
"""Models whose public rows mix runs with and without speculative decoding: equal settings, TPOT up to 3.8
times apart."""

_COARSE = {"fp4": "nvfp4", "int4": "int4_wo", "int8": "int8_wo"}
"""Formats of the column precision that have another name as the format of products."""

ENGINE_ALIASES = {
    "dynamo-vllm": "vllm",
    "dynamo-sglang": "sglang",
    "dynamo-trtllm": "trtllm",
    "dynamo-trt": "trtllm",
    "trt": "trtllm",
    "trt-llm": "trtllm",
    "tensorrt-llm": "trtllm",
    "tensorrt_llm": "trtllm",
}
"""Names of public files for engines, some of which run behind a router of another project."""

_FORMATS = {
    "": Dtype.BF16,
    "bf16": Dtype.BF16,
    "bfloat16": Dtype.BF16,
    "fp16": Dtype.FP16,
    "float16": Dtype.FP16,
    "fp8": Dtype.FP8,
    "fp8_static": Dtype.FP8,
    "fp8_block": Dtype.FP8_BLOCK,
    "nvfp4": Dtype.NVFP4,
    "w4a16_mxfp4": Dtype.MXFP4,
    "w4a8_mxfp4_mxfp8": Dtype.MXFP4,
    "mxfp4": Dtype.MXFP4,
    "int4_wo": Dtype.INT4,
    "int8_wo": Dtype.INT8,
}
_EIGHT_BITS = (Dtype.FP8, Dtype.FP8_BLOCK, Dtype.INT8)
_FOUR_BITS = (Dtype.NVFP4, Dtype.MXFP4, Dtype.INT4)

CONCURRENCY_FROM_BATCH = "concurrency is empty: batch_size, which equals it wherever both are given"
COARSE_FORMAT = "gemm_quant_mode is empty: the format in precision"
CACHE_FORMAT = "format of the KV cache is not recorded: FP8, as recipes of this engine have it on this GPU"
SIXTEEN_BITS = "format is empty: 16 bits"
OWN_FORMAT = "format from the model's own configuration, not from the label"
VARIANT_FORMAT = "format of the published checkpoint with this label"
BLOCKS = "experts in blocks of FP8: the whole checkpoint is"
WIDTH = "tp_size counts more ranks than share attention: GPUs of a replica / attention_dp_size"
EXPERT_WIDTH = "moe_tp_size x moe_ep_size is not the replica's width: the expert parallel size decides"
EXPERT_FORMAT = "format of the experts is empty: that of the other matrices"
WHOLE_EXPERTS = "experts that tensor parallelism cannot cut: expert parallelism over all ranks"
ATTENTION_RANKS = "latent attention wider than a node: attention data parallelism"
ALIAS = "model under the name the catalogue has"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a row was measured on.

    ``pools`` holds one layout, or those of prefill and decode, each with its number of replicas.
    """

    model: Model
    gpu: GPU
    engine: Engine
    precision: Precision
    pools: tuple[tuple[int, Parallelism], ...]
    clients: float
    repairs: tuple[str, ...]


class Unpredicted(Exception):
    """Why a row gets no prediction; a short phrase that rows are counted by."""


def resolve(row: MeasuredRow) -> Target:
    """What `row` was measured on.

    Raises
    ------
    Unpredicted
        With the reason.
    """
    repairs: list[str] = []
    model = _model(row, repairs)
    gpu = _gpu(row.gpu)
    engine = _engine(row.engine)
    labelled = _precision(row, model, repairs)
    precision = with_cache_format(labelled, model, gpu, engine)
    if precision is not labelled:
        repairs.append(CACHE_FORMAT)
    pools = tuple(
        (pool.workers, _layout(pool, _pool_gpus(row), gpu, model, precision, repairs)) for pool in row.pools
    )
    clients = row.concurrency
    if clients is None:
        if row.batch_size is None or row.disaggregated:
            raise Unpredicted("no concurrency")
        clients = row.batch_size
        repairs.append(CONCURRENCY_FROM_BATCH)
    return Target(
        model=model, gpu=gpu, engine=engine, precision=precision, pools=pools, clients=clients,
        repairs=tuple(dict.fromkeys(repairs)),
    )  # fmt: skip


def _named(name: str, known: Sequence[str]) -> str:
    """A name that is not known, with the nearest that is."""
    hint = did_you_mean(name, known)
    return f"{shorten(name)} ({hint})" if hint else shorten(name)


def _model(row: MeasuredRow, repairs: list[str]) -> Model:
    name = MODEL_ALIASES.get(row.model, row.model)
    model = known_model(name)
    if model is None:
        name = row.model.rpartition("/")[2]
        model = known_model(name)
    if model is None:
        raise Unpredicted(f"model is not in the catalogue: {_named(row.model, model_names())}")
    if name != row.model:
        repairs.append(ALIAS)
    if model.name.rpartition("/")[2] in UNRECORDED_SPECULATION:
        raise Unpredicted("whether it speculates is not recorded, and rows of this model differ by it")
    return model


@cache
def known_model(name: str) -> Model | None:
    """The catalogue's; a name never stands for a file here."""
    return None if names_file("model", name) else load_model(name)


@cache
def _gpu(system: str) -> GPU:
    for name in (system.replace("_", "-"), system, system.split("_")[0], f"{system}-sxm"):
        try:
            return load_gpu(gpu_name(name))
        except SpecError:
            continue
    raise Unpredicted(f"GPU has no profile: {_named(system, gpu_names())}")


@cache
def _engine(name: str) -> Engine:
    own = ENGINE_ALIASES.get(name, name)
    if own not in engine_names():
        raise Unpredicted(f"engine is not known: {_named(name, engine_names())}")
    return estimated_engine(own)


# --------------------------------------------------------------------------------------------
# Formats


def _precision(row: MeasuredRow, model: Model, repairs: list[str]) -> Precision:
    label = row.gemm
    if not label and (label := row.cells.get("precision", "").lower()):
        repairs.append(COARSE_FORMAT)
        label = _COARSE.get(label, label)
    for name in (label, row.moe):
        if name not in _FORMATS:
            raise Unpredicted(f"format is not known: {_named(name, tuple(filter(None, _FORMATS)))}")
    gemm, experts = _FORMATS[label], _FORMATS[row.moe]
    own = Precision.of(model)
    stored = {own.weights, own.of_experts}
    if not label:
        repairs.append(SIXTEEN_BITS)
        return Precision.of(model) if stored == {gemm} else Precision.of(model, gemm)
    if not row.moe and model.routed:
        repairs.append(EXPERT_FORMAT)
        experts = gemm
    narrow = {d for d in stored if not d.is_16_bit}
    labelled = {d for d in (gemm, experts) if not d.is_16_bit}
    if narrow & labelled:
        if {gemm, experts} not in (stored, {own.of_attention, own.of_experts}):
            repairs.append(OWN_FORMAT)
        return own
    variant = _variant(model, labelled)
    if variant is not None:
        repairs.append(VARIANT_FORMAT)
        return variant
    if _width(narrow) == _width(labelled) != 16:
        repairs.append(OWN_FORMAT)
        return own
    if Dtype.FP8_BLOCK in (gemm, experts) and gemm is not Dtype.FP8_BLOCK and model.routed:
        repairs.append(BLOCKS)
        gemm = Dtype.FP8_BLOCK
    uniform = Precision.of(model, gemm)
    return replace(uniform, experts=experts if model.routed and experts is not gemm else None)


def _variant(model: Model, labelled: set[Dtype]) -> Precision | None:
    """Formats of a published checkpoint in four bits with one of these labels: it leaves modules out."""
    if not labelled & set(_FOUR_BITS):
        return None
    for name in model_variants(model.name):
        other = Precision.of(load_model(name))
        if labelled & {other.weights, other.of_experts}:
            return other
    return None


def _width(formats: set[Dtype]) -> int:
    """Bits of the narrowest of `formats`; 16 for none."""
    if formats & set(_FOUR_BITS):
        return 4
    return 8 if formats & set(_EIGHT_BITS) else 16


def with_cache_format(precision: Precision, model: Model, gpu: GPU, engine: Engine) -> Precision:
    """The KV cache's format, which public rows do not record.

    TensorRT-LLM's checkpoints of eight and four bits ask for an FP8 cache. vLLM and SGLang keep 16 bits
    unless told, which their published recipes do on Blackwell and not on Hopper: the loads at which caches of
    public rows are full agree.
    """
    if model.checkpoint_kv_cache is not None or precision.kv_cache is Dtype.FP8:
        return precision
    narrow = precision.weights in (*_EIGHT_BITS, Dtype.NVFP4) or precision.of_experts is Dtype.NVFP4
    asked = engine.name == "trtllm" or gpu.architecture == "blackwell"
    heads = any(isinstance(run.layer.attention, Attention) for run in model.kinds)
    if narrow and asked and heads:
        return replace(precision, kv_cache=Dtype.FP8)
    return precision


# --------------------------------------------------------------------------------------------
# Layouts


def _pool_gpus(row: MeasuredRow) -> int | None:
    """GPUs of one replica, where there is only one."""
    return row.gpus if not row.disaggregated and row.pools[0].workers == 1 else None


def _layout(
    pool: MeasuredPool, gpus: int | None, gpu: GPU, model: Model, precision: Precision, repairs: list[str]
) -> Parallelism:
    if pool.tp is None:
        raise Unpredicted("no tensor parallel size")
    tp, pp, dp = pool.tp, pool.pp or 1, pool.dp or 1
    width = tp * dp if gpus is None else gpus // pp
    if gpus is not None and tp * dp * pp != gpus:
        counted = tp == width or (tp > width and tp == (pool.moe_tp or 1) * (pool.ep or 1))
        if gpus % pp or width % dp or not counted:
            raise Unpredicted("parallel sizes do not multiply to the GPUs")
        tp = width // dp
        repairs.append(WIDTH)
    elif gpus is None and dp > 1 and tp % dp == 0 and tp == (pool.moe_tp or 1) * (pool.ep or 1):
        tp, width = tp // dp, tp
        repairs.append(WIDTH)
    if tp & (tp - 1):
        raise Unpredicted("the tensor parallel size is a count of GPUs")
    ep = 1
    if model.routed:
        ep = pool.ep or 1
        if pool.moe_tp is not None and ep * pool.moe_tp != width:
            repairs.append(EXPERT_WIDTH)
        if width % ep:
            raise Unpredicted("expert parallel size does not divide the replica's width")
    if dp == 1 and ep == width > gpu.node_size and _is_latent(model):
        tp, dp = 1, width
        repairs.append(ATTENTION_RANKS)
    layout = Parallelism(tp=tp, pp=pp, dp=dp, ep=ep)
    if not _is_legal(model, layout, precision):
        whole = replace(layout, ep=width)
        if not (model.routed and _is_legal(model, whole, precision)):
            raise Unpredicted("layout cannot cut this model")
        repairs.append(WHOLE_EXPERTS)
        layout = whole
    _check(layout, gpu)
    return layout


def _is_latent(model: Model) -> bool:
    """Whether tensor parallelism would keep the whole cache on every GPU: published recipes with experts over
    several nodes give each rank sequences of its own, and TPOT of such rows hardly grows with the load."""
    mixers = [run.layer.attention for run in model.kinds if run.layer.attention is not None]
    return all(isinstance(mixer, LatentAttention) for mixer in mixers)


def _is_legal(model: Model, layout: Parallelism, precision: Precision) -> bool:
    try:
        require_legal(model, layout, precision)
    except SpecError:
        return False
    return True


def _check(layout: Parallelism, gpu: GPU) -> None:
    try:
        nodes_of(gpu, layout)
    except SpecError:
        raise Unpredicted("ranks cannot be spread over nodes of this GPU") from None
