"""The feed-forward block of each layer: dense, or experts."""

from __future__ import annotations

from planner.documents.model_config.families import Experts, Family, Shared
from planner.documents.model_config.reader import Reader
from planner.specs import FeedForward, MixtureOfExperts

Block = FeedForward | MixtureOfExperts


def blocks(reader: Reader, family: Family, hidden: int, layers: int) -> list[Block] | None:
    """One block per layer; None, with problems, where a number is missing."""
    experts = family.experts
    if experts is None or (experts.optional and not reader.flag((experts.optional,), False)):
        dense = dense_block(reader, family, hidden, "intermediate_size")
        return None if dense is None else [dense] * layers
    sparse = _expert_layers(reader, experts, layers)
    if sparse is None:
        return None
    routed = expert_block(reader, family, experts) if any(sparse) else None
    dense = None if all(sparse) else dense_block(reader, family, hidden, experts.dense_width)
    found = [routed if has_experts else dense for has_experts in sparse]
    known = [block for block in found if block is not None]
    return known if len(known) == layers else None


def dense_block(reader: Reader, family: Family, hidden: int, key: str) -> FeedForward | None:
    """The dense block of the width that `key` gives."""
    given = reader.given(key)
    if given is None and family.four_times_hidden:
        width: int | None = 4 * hidden
    else:
        width = reader.need(key)
    if width is None:
        return None
    bias = reader.flag(family.mlp_bias_keys, family.mlp_bias)
    return FeedForward(intermediate=width, gated=family.gated, bias=bias)


def expert_block(reader: Reader, family: Family, experts: Experts) -> MixtureOfExperts | None:
    """Routed experts and those that every token visits."""
    numbers = reader.needed("experts", _top_k_key(reader), experts.width)
    if numbers is None:
        return None
    count, top_k, width = numbers
    shared = _shared_width(reader, experts, width)
    if top_k > count:
        reader.problem("num_experts_per_tok", f"must not exceed the {count} experts", top_k)
    if shared is None or top_k > count:
        return None
    topk_method = reader.get("topk_method")
    return MixtureOfExperts(
        experts=count,
        top_k=top_k,
        intermediate=width,
        gated=family.gated,
        shared_intermediate=shared,
        shared_gate=experts.shared_gate and shared > 0,
        router_bias=experts.router_bias if topk_method is None else topk_method == "noaux_tc",
        wide_router=experts.wide_router,
        expert_bias=experts.expert_bias,
        latent=reader.whole("moe_latent_size"),
    )


def _top_k_key(reader: Reader) -> str:
    """The experts a token visits; Hunyuan lists them per layer, where all layers have to agree."""
    value = reader.get("moe_topk")
    if isinstance(value, list):
        reader.problem("moe_topk", "must be one number: layers that differ in it are not modelled", value)
    return "num_experts_per_tok"


def _shared_width(reader: Reader, experts: Experts, width: int) -> int | None:
    """Width of the experts that every token visits, together; None where it is not given."""
    count = reader.whole("shared_experts", 0)
    match experts.shared:
        case Shared.NONE:
            return 0
        case Shared.ONE:
            return width
        case Shared.WIDTH:
            return reader.whole("shared_width", 0) or 0
        case Shared.DENSE:
            return reader.need("intermediate_size")
        case Shared.MIXED:
            return (count or 1) * width if reader.flag(("use_mixed_mlp_moe",), False) else 0
        case Shared.COUNT:
            if reader.given("shared_experts") is None and "n_shared_experts" not in reader.config:
                return reader.need("shared_experts")
            return (count or 0) * (reader.whole("moe_shared_expert_intermediate_size") or width)


def _expert_layers(reader: Reader, experts: Experts, layers: int) -> list[bool] | None:
    """Whether each layer has experts."""
    kinds = reader.entries("mlp_layer_types", str, layers)
    if kinds is not None:
        if set(kinds) - {"dense", "sparse"}:
            reader.problem("mlp_layer_types", 'must be "dense" or "sparse" for every layer')
            return None
        return [kind == "sparse" for kind in kinds]
    if isinstance(reader.get("moe_layer_freq"), list):
        flags = reader.entries("moe_layer_freq", int, layers)
        return None if flags is None else [bool(flag) for flag in flags]
    if experts.leading and reader.get("first_k_dense_replace") is None:
        reader.need("first_k_dense_replace")
        return None
    leading = reader.whole("first_k_dense_replace", 0) or 0
    step = reader.need(experts.step) if experts.step else reader.whole("decoder_sparse_step") or 1
    if step is None:
        return None
    frequency = reader.whole("moe_layer_freq") or 1
    dense = set(reader.entries("mlp_only_layers", int) or ())
    return [
        i >= leading and i % frequency == 0 and (i + 1) % step == 0 and i not in dense for i in range(layers)
    ]
