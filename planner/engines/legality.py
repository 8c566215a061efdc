"""What an engine refuses to run: tensor and pipeline sizes of a model, pairs of prefill and decode replicas.

Pure functions of shapes. Each refusal says which rule was broken, why, and who says so, so that a plan
can repeat it. The pair rules are those of vLLM's NIXL connector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.specs import Dtype, Layer, Model, Parallelism

VOCABULARY_PADDING = 64
"""Engines pad the vocabulary to a multiple of this, then cut it into equal shards. [rows]"""

WEIGHT_BLOCK = 128
"""Edge of a block that shares one scale in block-quantised FP8 weights."""

MAX_TP = 8
"""Default upper end of the sizes looked at: the GPUs of the usual node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """A broken rule: its `name`, the `reason` in one sentence, the `source` that states it."""

    rule: str
    reason: str
    source: str

    def __str__(self) -> str:
        return f"{self.reason} [{self.rule}; {self.source}]"


# --------------------------------------------------------------------------------------------
# Tensor and pipeline parallelism


def tp_violation(model: Model, tp: int, weights: Dtype | None = None) -> Violation | None:
    """Why `model` cannot be cut into `tp` tensor-parallel ranks; None where it can.

    Parameters
    ----------
    weights : Dtype, optional
        Format of the weights; block-quantised ones cannot be cut within a block. Not looked at when None.
    """
    if tp == 1:
        return None
    found = (_layer_violation(run.layer, tp, weights) for run in model.layers)
    return next((v for v in found if v is not None), None) or _vocabulary_violation(model, tp)


def _layer_violation(layer: Layer, tp: int, weights: Dtype | None) -> Violation | None:
    heads, kv_heads = layer.attention.heads, layer.attention.kv_heads
    intermediate = layer.feed_forward.intermediate
    if heads % tp:
        return Violation(
            rule="tp.heads",
            reason=f"TP {tp} does not divide the {heads} attention heads",
            source="vLLM, ModelConfig.verify_with_parallel_config",
        )
    if kv_heads % tp and tp % kv_heads:
        return Violation(
            rule="tp.kv_heads",
            reason=f"TP {tp} and the {kv_heads} KV heads do not divide one another",
            source="vLLM, model code: KV heads are cut evenly or replicated evenly",
        )
    if intermediate % tp:
        return Violation(
            rule="tp.feed_forward",
            reason=f"TP {tp} does not divide the feed-forward size {intermediate}",
            source="vLLM, parallel linear layers",
        )
    if weights is Dtype.FP8_BLOCK and (intermediate // tp) % WEIGHT_BLOCK:
        return Violation(
            rule="tp.weight_block",
            reason=f"TP {tp} cuts the feed-forward size {intermediate} within a block of {WEIGHT_BLOCK}",
            source="vLLM, block-quantised FP8 linear layers",
        )
    return None


def _vocabulary_violation(model: Model, tp: int) -> Violation | None:
    padded = -(-model.vocab // VOCABULARY_PADDING) * VOCABULARY_PADDING
    if padded % tp:
        return Violation(
            rule="tp.vocabulary",
            reason=f"TP {tp} does not divide the padded vocabulary {padded}",
            source="vLLM, VocabParallelEmbedding",
        )
    return None


def pp_violation(model: Model, pp: int) -> Violation | None:
    """Why `model` cannot be cut into `pp` pipeline stages; None where it can."""
    if pp > model.num_layers:
        return Violation(
            rule="pp.layers",
            reason=f"PP {pp} exceeds the {model.num_layers} layers",
            source="a stage holds at least one layer",
        )
    return None


def legal_tp(model: Model, up_to: int = MAX_TP, weights: Dtype | None = None) -> tuple[int, ...]:
    """Every legal tensor-parallel size from 1 to `up_to`."""
    return tuple(tp for tp in range(1, up_to + 1) if tp_violation(model, tp, weights) is None)


def nearest_legal_tp(model: Model, tp: int, weights: Dtype | None = None) -> int:
    """The largest legal tensor-parallel size that needs no more than `tp` GPUs."""
    return max(legal_tp(model, max(tp, 1), weights))


# --------------------------------------------------------------------------------------------
# Prefill x decode


@dataclass(frozen=True, kw_only=True, slots=True)
class EndPoint:
    """What one side of a KV transfer looks like to the other.

    `vendor` is that of the GPU, `block_size` in tokens.
    """

    parallelism: Parallelism
    gpu: str
    vendor: str
    kv_cache: Dtype
    block_size: int


PairRule = Callable[[EndPoint, EndPoint, Model], Violation | None]


def pair_violation(prefill: EndPoint, decode: EndPoint, model: Model) -> Violation | None:
    """The first rule that keeps `prefill` from handing its KV cache to `decode`; None where none does."""
    return next(pair_violations(prefill, decode, model), None)


def pair_violations(prefill: EndPoint, decode: EndPoint, model: Model) -> Iterator[Violation]:
    """Every rule that keeps `prefill` from handing its KV cache to `decode`."""
    for rule in NIXL_RULES:
        violation = rule(prefill, decode, model)
        if violation is not None:
            yield violation


def _same_vendor(prefill: EndPoint, decode: EndPoint, model: Model) -> Violation | None:
    if prefill.vendor == decode.vendor:
        return None
    return Violation(
        rule="nixl.vendor",
        reason=f"{prefill.gpu} and {decode.gpu} are of different vendors: attention backends differ, and the "
        "handshake refuses the pair",
        source="vLLM 0.33.0, nixl/metadata.py, compatibility hash",
    )


def _same_kv_dtype(prefill: EndPoint, decode: EndPoint, model: Model) -> Violation | None:
    if prefill.kv_cache is decode.kv_cache:
        return None
    return Violation(
        rule="nixl.kv_dtype",
        reason=f"KV cache formats differ: {prefill.kv_cache} and {decode.kv_cache}",
        source="vLLM 0.33.0, nixl/metadata.py, compatibility hash",
    )


def _block_sizes(prefill: EndPoint, decode: EndPoint, model: Model) -> Violation | None:
    if decode.block_size % prefill.block_size == 0:
        return None
    return Violation(
        rule="nixl.block_size",
        reason=f"decode blocks of {decode.block_size} tokens are no multiple of prefill blocks of "
        f"{prefill.block_size}",
        source="vLLM 0.33.0, nixl/base_worker.py, block size ratio",
    )


def _decode_pipeline(prefill: EndPoint, decode: EndPoint, model: Model) -> Violation | None:
    if decode.parallelism.pp == 1:
        return None
    return Violation(
        rule="nixl.decode_pp",
        reason=f"the decode side has {decode.parallelism.pp} pipeline stages; it must have one",
        source="vLLM 0.33.0, nixl connectors, kv_consumer",
    )


def _tp_divides(prefill: EndPoint, decode: EndPoint, model: Model) -> Violation | None:
    p, d = prefill.parallelism.tp, decode.parallelism.tp
    if max(p, d) % min(p, d) == 0:
        return None
    return Violation(
        rule="nixl.tp_divides",
        reason=f"prefill TP {p} and decode TP {d} do not divide one another",
        source="vLLM 0.33.0, kv_connector/utils.py, tp_ratio",
    )


def _tp_fans_out(prefill: EndPoint, decode: EndPoint, model: Model) -> Violation | None:
    # vLLM itself asserts only where prefill replicates KV heads; llm-d documents the stricter rule, and
    # builds have crashed between the two. Latent attention, which has no heads to cut, will be exempt.
    p, d = prefill.parallelism.tp, decode.parallelism.tp
    if p <= d:
        return None
    return Violation(
        rule="nixl.tp_fan_out",
        reason=f"prefill TP {p} exceeds decode TP {d}, which is not supported for grouped-query attention",
        source="llm-d documentation; vLLM 0.33.0, nixl/base_worker.py",
    )


NIXL_RULES: tuple[PairRule, ...] = (
    _same_vendor,
    _same_kv_dtype,
    _block_sizes,
    _decode_pipeline,
    _tp_divides,
    _tp_fans_out,
)
