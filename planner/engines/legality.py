"""What an engine refuses to run: ways to spread a model over GPUs, pairs of prefill and decode replicas.

Pure functions of shapes. Each refusal says which rule was broken, why, and who says so, so that a plan
can repeat it. Which pair rules hold is data of the engine at its version; how each is checked is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from planner.errors import SpecError
from planner.specs import (
    Attention,
    Dtype,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    MixtureOfExperts,
    Model,
    PairCheck,
    PairRule,
    Parallelism,
    Precision,
    StateMixer,
)
from planner.transformer import padded_vocabulary, stage_layers

WEIGHT_BLOCKS = {Dtype.FP8_BLOCK: 128, Dtype.INT4: 128}
"""Neighbouring weights that share one scale and cannot be parted, by format."""

EXPERT_BLOCKS = {Dtype.FP8_BLOCK: 128}
"""The same for routed experts; kernels of other formats pad what is cut within a group."""

_ALIKE = "SGLang and TensorRT-LLM cut alike"
"""Layouts are cut by the same rules in every engine here; each rule was read where its source says."""

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
# Tensor parallelism

Weights = Dtype | Precision | None
"""Formats of the weights: one, or one per kind of module; None: not looked at."""


def tp_violation(
    model: Model, tp: int, weights: Weights = None, *, expert_parallel: bool = False
) -> Violation | None:
    """The first reason why `model` cannot be cut into `tp` tensor-parallel ranks; None where it can.

    Parameters
    ----------
    weights : Dtype or Precision, optional
        Block-quantised weights cannot be cut within a block.
    expert_parallel : bool
        Routed experts are spread whole instead of being cut.
    """
    return next(tp_violations(model, tp, weights, expert_parallel=expert_parallel), None)


def tp_violations(
    model: Model, tp: int, weights: Weights = None, *, expert_parallel: bool = False
) -> Iterator[Violation]:
    """Every rule that `tp` tensor-parallel ranks break, each once. See :func:`tp_violation`."""
    if tp == 1:
        return
    seen: set[str] = set()
    for run in model.layers:
        for violation in _layer_violations(run.layer, tp, weights, expert_parallel):
            if violation.rule not in seen:
                seen.add(violation.rule)
                yield violation
    yield from _vocabulary_violations(model, tp)


def _layer_violations(layer: Layer, tp: int, weights: Weights, expert_parallel: bool) -> Iterator[Violation]:
    mixer, block = layer.attention, layer.feed_forward
    if mixer is not None:
        yield from _mixer_violations(mixer, tp)
    if isinstance(block, FeedForward):
        dtype = weights.weights if isinstance(weights, Precision) else weights
        yield from _cut_violations("feed-forward size", block.intermediate, tp, dtype, WEIGHT_BLOCKS)
    elif block is not None:
        yield from _expert_violations(block, tp, weights, expert_parallel)


def _mixer_violations(mixer: Mixer, tp: int) -> Iterator[Violation]:
    if isinstance(mixer, StateMixer):
        for what, count in (("heads", mixer.heads), ("groups", mixer.groups)):
            if count % tp and count > 1:
                yield Violation(
                    rule=f"tp.state_{what}",
                    reason=f"TP {tp} does not divide the {count} {what} of the {mixer.kind} layers",
                    source=f"vLLM, model code: states are cut by heads and groups; {_ALIKE}",
                )
        return
    if mixer.heads % tp:
        yield Violation(
            rule="tp.heads",
            reason=f"TP {tp} does not divide the {mixer.heads} attention heads",
            source=f"vLLM, ModelConfig.verify_with_parallel_config; {_ALIKE}",
        )
    if isinstance(mixer, Attention) and mixer.owns_kv and mixer.kv_heads % tp and tp % mixer.kv_heads:
        yield Violation(
            rule="tp.kv_heads",
            reason=f"TP {tp} and the {mixer.kv_heads} KV heads do not divide one another",
            source=f"vLLM, model code: KV heads are cut evenly or replicated evenly; {_ALIKE}",
        )


def _expert_violations(
    block: MixtureOfExperts, tp: int, weights: Weights, expert_parallel: bool
) -> Iterator[Violation]:
    dense, routed = (
        (weights.weights, weights.of_experts) if isinstance(weights, Precision) else (weights, weights)
    )
    if block.shared_intermediate:
        width = block.shared_intermediate
        yield from _cut_violations("shared experts' size", width, tp, dense, WEIGHT_BLOCKS)
    if not expert_parallel:
        yield from _cut_violations("experts' size", block.intermediate, tp, routed, EXPERT_BLOCKS)


def _cut_violations(
    what: str, width: int, tp: int, dtype: Dtype | None, blocks: dict[Dtype, int]
) -> Iterator[Violation]:
    edge = 1 if dtype is None else blocks.get(dtype, 1)
    if width % tp:
        yield Violation(
            rule="tp.feed_forward",
            reason=f"TP {tp} does not divide the {what} {width}",
            source=f"vLLM, parallel linear layers; {_ALIKE}",
        )
    elif (width // tp) % edge:
        yield Violation(
            rule="tp.weight_block",
            reason=f"TP {tp} cuts the {what} {width} into {width // tp}, within a block of {edge}",
            source=f"vLLM, {dtype} linear layers; {_ALIKE}",
        )


def _vocabulary_violations(model: Model, tp: int) -> Iterator[Violation]:
    padded = padded_vocabulary(model, tp=1)
    if padded % tp:
        yield Violation(
            rule="tp.vocabulary",
            reason=f"TP {tp} does not divide the padded vocabulary {padded}",
            source=f"vLLM, VocabParallelEmbedding; {_ALIKE}",
        )


def legal_tp(
    model: Model, up_to: int = MAX_TP, weights: Weights = None, *, expert_parallel: bool = False
) -> tuple[int, ...]:
    """Every legal tensor-parallel size from 1 to `up_to`."""
    sizes = range(1, up_to + 1)
    return tuple(n for n in sizes if tp_violation(model, n, weights, expert_parallel=expert_parallel) is None)


def nearest_legal_tp(model: Model, tp: int, weights: Weights = None) -> int:
    """The largest legal tensor-parallel size that needs no more than `tp` GPUs."""
    return max(legal_tp(model, max(tp, 1), weights))


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """Replicas of `tp` GPUs each that a number of GPUs holds, and the GPUs left over."""

    tp: int
    replicas: int
    spare: int


def uses(model: Model, gpus: int, weights: Weights = None) -> tuple[Use, ...]:
    """What `gpus` GPUs can be used for, largest replicas first: every legal size."""
    return tuple(
        Use(tp=tp, replicas=gpus // tp, spare=gpus % tp) for tp in reversed(legal_tp(model, gpus, weights))
    )


# --------------------------------------------------------------------------------------------
# Pipeline, expert and attention-data parallelism


def pp_violation(model: Model, pp: int) -> Violation | None:
    """Why `model` cannot be cut into `pp` pipeline stages; None where it can."""
    if pp > model.num_layers:
        return Violation(
            rule="pp.layers",
            reason=f"PP {pp} exceeds the {model.num_layers} layers",
            source="a stage holds at least one layer",
        )
    return None


def uneven_stages(model: Model, pp: int) -> str:
    """How layers are split where the stages cannot be equal, in one sentence; empty where they can."""
    sizes = stage_layers(model.num_layers, pp)
    if len(set(sizes)) == 1:
        return ""
    return f"{model.num_layers} layers over {pp} pipeline stages: {' + '.join(map(str, sizes))}"


def expert_violations(
    model: Model, parallelism: Parallelism, redundant_experts: int = 0
) -> Iterator[Violation]:
    """Every rule of expert and attention-data parallelism that `parallelism` breaks.

    `redundant_experts` are copies of experts that fill up the slots of the ranks.
    """
    counts = {
        run.layer.feed_forward.experts
        for run in model.layers
        if isinstance(run.layer.feed_forward, MixtureOfExperts)
    }
    ep, dp, ranks = parallelism.ep, parallelism.dp, parallelism.tp * parallelism.dp
    if not counts:
        for name, size in (("ep", ep), ("dp", dp)):
            if size > 1:
                yield Violation(
                    rule=f"{name}.dense",
                    reason=f"{name.upper()} {size} needs routed experts, and the model has none",
                    source="a dense model scales by replicas",
                )
        return
    for experts in sorted(counts):
        slots = experts + redundant_experts
        if slots % ep:
            extra = -experts % ep
            copies = f" with {redundant_experts} redundant copies" if redundant_experts else ""
            yield Violation(
                rule="ep.experts",
                reason=f"EP {ep} does not divide the {experts} experts{copies}; {extra} redundant would do",
                source=f"vLLM, expert placement; {_ALIKE}",
            )
    if ep not in (1, ranks):
        yield Violation(
            rule="ep.ranks",
            reason=f"EP {ep} is neither 1 nor the {ranks} ranks of TP and DP",
            source="vLLM, --enable-expert-parallel spreads experts over all ranks; mixtures are not modelled",
        )


def _shared_violations(model: Model, parallelism: Parallelism, weights: Weights) -> Iterator[Violation]:
    """Experts that are not spread are cut over the GPUs of all attention ranks, not of one alone."""
    ranks = parallelism.tp * parallelism.dp
    if parallelism.dp == 1 or parallelism.ep > 1:
        return
    routed = weights.of_experts if isinstance(weights, Precision) else weights
    blocks = [b for run in model.kinds if isinstance(b := run.layer.feed_forward, MixtureOfExperts)]
    for width in sorted({block.intermediate for block in blocks}):
        for violation in _cut_violations("experts' size", width, ranks, routed, EXPERT_BLOCKS):
            reason = violation.reason.replace(f"TP {ranks}", f"TP {parallelism.tp} x DP {parallelism.dp}")
            yield replace(violation, rule="dp.experts", reason=reason)


def parallelism_violations(
    model: Model, parallelism: Parallelism, weights: Weights = None, redundant_experts: int = 0
) -> tuple[Violation, ...]:
    """Every rule that `parallelism` breaks for one replica of `model`."""
    pipeline = pp_violation(model, parallelism.pp)
    return (
        *tp_violations(model, parallelism.tp, weights, expert_parallel=parallelism.ep > 1),
        *_shared_violations(model, parallelism, weights),
        *expert_violations(model, parallelism, redundant_experts),
        *((pipeline,) if pipeline else ()),
    )


def require_legal(model: Model, parallelism: Parallelism, weights: Weights = None) -> None:
    """Refuse a layout that breaks a rule.

    Raises
    ------
    SpecError
        With the first reason, and the nearest legal tensor-parallel size where that is what is wrong.
    """
    broken = next(iter(parallelism_violations(model, parallelism, weights)), None)
    if broken is None:
        return
    nearest = nearest_legal_tp(model, parallelism.tp, weights)
    hint = f"; the nearest legal TP is {nearest}" if broken.rule.startswith("tp.") else ""
    raise SpecError(f"{broken.reason}{hint}")


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


def pair_violation(
    prefill: EndPoint, decode: EndPoint, model: Model, rules: Iterable[PairRule]
) -> Violation | None:
    """The first of `rules` that keeps `prefill` from handing its KV cache to `decode`, or None."""
    return next(pair_violations(prefill, decode, model, rules), None)


def pair_violations(
    prefill: EndPoint, decode: EndPoint, model: Model, rules: Iterable[PairRule]
) -> Iterator[Violation]:
    """Every one of `rules` that keeps `prefill` from handing its KV cache to `decode`."""
    for rule in rules:
        reason = _CHECKS[rule.check](prefill, decode, model)
        if reason is not None:
            yield Violation(rule=f"pair.{rule.check}", reason=reason, source=rule.source)


def _vendor(prefill: EndPoint, decode: EndPoint, model: Model) -> str | None:
    if prefill.vendor == decode.vendor:
        return None
    return (
        f"{prefill.gpu} and {decode.gpu} are of different vendors: attention backends differ, and the "
        "handshake refuses the pair"
    )


def _kv_dtype(prefill: EndPoint, decode: EndPoint, model: Model) -> str | None:
    if prefill.kv_cache is Dtype.FP8 and decode.kv_cache is Dtype.FP8 and prefill.vendor != decode.vendor:
        return "fp8 KV caches of two vendors are encoded in different ways (e4m3fn, e4m3fnuz): take 16 bits"
    if prefill.kv_cache is decode.kv_cache:
        return None
    return f"KV cache formats differ: {prefill.kv_cache} and {decode.kv_cache}"


def _block_size(prefill: EndPoint, decode: EndPoint, model: Model) -> str | None:
    if decode.block_size % prefill.block_size == 0:
        return None
    return (
        f"decode blocks of {decode.block_size} tokens are no multiple of prefill blocks of "
        f"{prefill.block_size}"
    )


def _equal_block_size(prefill: EndPoint, decode: EndPoint, model: Model) -> str | None:
    if decode.block_size == prefill.block_size:
        return None
    return f"blocks differ: {prefill.block_size} and {decode.block_size} tokens"


def _hybrid_block_size(prefill: EndPoint, decode: EndPoint, model: Model) -> str | None:
    if prefill.block_size == decode.block_size or not _has(model, StateMixer):
        return None
    return (
        f"layers with a state need equal blocks, prefill has {prefill.block_size} tokens and decode "
        f"{decode.block_size}"
    )


def _decode_pp(prefill: EndPoint, decode: EndPoint, model: Model) -> str | None:
    if decode.parallelism.pp == 1:
        return None
    return f"the decode side has {decode.parallelism.pp} pipeline stages; it must have one"


def _decode_pp_matches(prefill: EndPoint, decode: EndPoint, model: Model) -> str | None:
    p, d = prefill.parallelism.pp, decode.parallelism.pp
    if d in (1, p):
        return None
    return f"the decode side has {d} pipeline stages; it must have one, or the {p} of the prefill side"


def _tp_divides(prefill: EndPoint, decode: EndPoint, model: Model) -> str | None:
    p, d = prefill.parallelism.tp, decode.parallelism.tp
    if max(p, d) % min(p, d) == 0:
        return None
    return f"prefill TP {p} and decode TP {d} do not divide one another"


def _tp_fan_out(prefill: EndPoint, decode: EndPoint, model: Model) -> str | None:
    p, d = prefill.parallelism.tp, decode.parallelism.tp
    if p <= d or _has(model, LatentAttention):  # latent attention has no heads to cut
        return None
    return f"prefill TP {p} exceeds decode TP {d}, which is not supported for grouped-query attention"


def _has(model: Model, kind: type[Mixer]) -> bool:
    return any(isinstance(run.layer.attention, kind) for run in model.layers)


_CHECKS: dict[PairCheck, Callable[[EndPoint, EndPoint, Model], str | None]] = {
    PairCheck.VENDOR: _vendor,
    PairCheck.KV_DTYPE: _kv_dtype,
    PairCheck.BLOCK_SIZE: _block_size,
    PairCheck.EQUAL_BLOCK_SIZE: _equal_block_size,
    PairCheck.HYBRID_BLOCK_SIZE: _hybrid_block_size,
    PairCheck.DECODE_PP: _decode_pp,
    PairCheck.DECODE_PP_MATCHES: _decode_pp_matches,
    PairCheck.TP_DIVIDES: _tp_divides,
    PairCheck.TP_FAN_OUT: _tp_fan_out,
}
