"""Whether every prefill group of a front may hand its KV caches to every decode group.

A router sends any request to any pair, so that one pair which the engine refuses spoils the whole front.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.engines.legality import EndPoint, Violation, pair_violations
from planner.errors import SpecError
from planner.specs import Attention, Engine, Model, StateMixer

WAYS_OUT = {
    "pair.vendor": "give prefill and decode GPUs of one vendor, plan colocated groups, or plan for vLLM with "
    "options: {cross_vendor: true}, which is experimental",
    "pair.kv_dtype": "give both sides one KV cache format (precision.kv_cache)",
    "pair.block_size": "give both sides one block size",
    "pair.equal_block_size": "give both sides one block size",
    "pair.hybrid_block_size": "give both sides one block size",
    "pair.decode_pp": "plan with max_pp: 1, or only TP for decode",
    "pair.decode_pp_matches": "plan with max_pp: 1, or equal pipelines on both sides",
    "pair.tp_divides": "plan with allowed_tp of powers of two",
    "pair.tp_fan_out": "give decode at least the TP of prefill (allowed_tp)",
    "pair.state_tp": "give both sides one TP (allowed_tp with one size)",
    "pair.state_pp": "plan with max_pp: 1",
}


def refused_pairs(
    prefill: Sequence[tuple[str, EndPoint]],
    decode: Sequence[tuple[str, EndPoint]],
    model: Model,
    engine: Engine,
) -> Iterator[tuple[str, str, Violation]]:
    """Names of the groups of every pair that the engine refuses, with each rule that it breaks."""
    for source, sender in prefill:
        for target, receiver in decode:
            for violation in pair_violations(sender, receiver, model, engine.pair_rules):
                yield source, target, violation
            for violation in _of_states(sender, receiver, model):
                yield source, target, violation


def require_pairs(
    prefill: Sequence[tuple[str, EndPoint]],
    decode: Sequence[tuple[str, EndPoint]],
    model: Model,
    engine: Engine,
) -> None:
    """Refuse pools with a pair that the engine refuses.

    Raises
    ------
    SpecError
        With every pair, rule, and way out.
    """
    broken = list(refused_pairs(prefill, decode, model, engine))
    if broken:
        lines = [
            f"  - {source} -> {target}: {violation} (way out: {WAYS_OUT[violation.rule]})"
            for source, target, violation in broken
        ]
        count = len({(source, target) for source, target, _ in broken})
        pairs = "1 pair of groups" if count == 1 else f"{count} pairs of groups"
        raise SpecError(f"{pairs} cannot exchange KV caches\n" + "\n".join(lines))


def require_equal_heads(model: Model, engine: str) -> None:
    """Refuse hand-overs of a model whose layers differ in heads of keys and values.

    Raises
    ------
    SpecError
    """
    mixers = [m for run in model.layers if isinstance(m := run.layer.attention, Attention) and m.owns_kv]
    heads = list(dict.fromkeys(f"{m.kv_heads} of {m.head_dim}" for m in mixers))
    if len(heads) > 1:
        rule = f"hands over KV caches only where all layers have equal heads, {model.name} has"
        hint = "plan with colocated: only, or for another engine"
        raise SpecError(f"{engine}: {rule} {', '.join(heads)} ({hint})")


def _of_states(prefill: EndPoint, decode: EndPoint, model: Model) -> Iterator[Violation]:
    """Models with recurrent states hand over more than blocks."""
    if not any(isinstance(run.layer.attention, StateMixer) for run in model.layers):
        return
    p, d = prefill.parallelism, decode.parallelism
    if p.tp != d.tp:
        yield Violation(
            rule="pair.state_tp",
            reason=f"layers with a state need equal TP, prefill has {p.tp} and decode {d.tp}",
            source="vLLM documentation, nixl_connector_compatibility",
        )
    if p.pp > 1:
        yield Violation(
            rule="pair.state_pp",
            reason=f"prefill has {p.pp} pipeline stages; with layers that have a state it must have one",
            source="vLLM 0.33.0, nixl/base_worker.py",
        )
